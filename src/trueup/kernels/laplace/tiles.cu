// Sums of the columns of a bin's rows, weighted by 2^-(factor * L1 distance): a tile of 128 x 128 pairs at a time.
//
// A block of 256 threads holds one tile, each thread 8 x 8 pairs in registers. COLUMNS (how many are summed), AMONG (1: the
// rows among themselves, each pair of blocks once; 0: other points), DEEP (words of a chunk) and PACKED are given when it is
// compiled. Two chunks of each side are in shared memory, one being read while the next one comes; a chunk of this side that
// holds all words comes once.
//
// A word is one coordinate in float32: two additions per pair. If PACKED it is two integers below 2^16: with S the sum of a
// row's integers, |a - b| = 2 sum max(a, b) - S_a - S_b, so a maximum and a dot product with (2, 2) per pair and two
// dimensions. Distances are below 2^23; added to the bits of 2^23 they are a float32 as they are.

#define SIDE 128
#define CHUNK (DEEP * SIDE)
#define EXTRA (COLUMNS + PACKED)              // columns and, if PACKED, the sum of the integers
#define ORIGIN (PACKED ? 0x4B000000 : 0)      // the bits of 2^23
#define FAR __int_as_float(0x7F800000)        // an infinite distance: a kernel of 0

struct Task { int block, first, last; };

__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Thread t has rows (and columns) 4 a .. 4 a + 3 and 64 + 4 a .. 64 + 4 a + 3: neighbours read neighbouring words.
__device__ __forceinline__ int spread(int a, int k) { return (k >> 2) * 64 + 4 * a + (k & 3); }

__device__ __forceinline__ void read(int* to, const int* from) {
    *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
    *reinterpret_cast<int4*>(to + 4) = *reinterpret_cast<const int4*>(from + 64);
}

// Copy 128 * lines words to shared memory without waiting for them, where the GPU can.
__device__ __forceinline__ void fetch(int* to, const int* from, int lines) {
    for (int at = 4 * threadIdx.x; at < lines * SIDE; at += 1024) {
#if __CUDA_ARCH__ >= 800
        unsigned address = (unsigned)__cvta_generic_to_shared(to + at);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from + at));
#else
        *reinterpret_cast<int4*>(to + at) = *reinterpret_cast<const int4*>(from + at);
#endif
    }
}

__device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;");
#endif
}

// Wait for all copies but those of the last commit.
__device__ __forceinline__ void arrive() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group 1;");
#endif
}

// Add values over two lanes, whose numbers differ in the bit `step`; the lane with the bit keeps the second half of them.
template <int N> __device__ __forceinline__ void fold(float* values, int step) {
    const bool second = threadIdx.x & step;
    #pragma unroll
    for (int k = 0; k < N / 2; k++) {
        const float given = second ? values[k] : values[k + N / 2], kept = second ? values[k + N / 2] : values[k];
        values[k] = kept + __shfl_xor_sync(~0u, given, step);
    }
}

// Add the distance of a word to that of a pair.
__device__ __forceinline__ void measure(float& far, int p, int q) {
#if PACKED
    int most, sum = __float_as_int(far);
#if __CUDA_ARCH__ >= 900
    asm("max.u16x2 %0, %1, %2;" : "=r"(most) : "r"(p), "r"(q));
#else
    most = __vmaxu2(p, q);
#endif
    asm("dp2a.lo.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(most), "r"(0x0202));
    far = __int_as_float(sum);
#else
    far += fabsf(__int_as_float(p) - __int_as_float(q));
#endif
}

extern "C" __global__ void __launch_bounds__(256, 2) sums(
    const int* X, const int* C, const int* Y, const int* D, const Task* tasks, const float* factors, double* out,
    long long m, int d, int scales)
{
    // X (tiles, d, SIDE) are the words of the rows, C (tiles, EXTRA, SIDE) their columns; Y and D those of the m points asked
    // about, X and C themselves where AMONG.
    extern __shared__ __align__(16) double rows[];                         // (scales * COLUMNS, SIDE): this block's sums
    int* ours = reinterpret_cast<int*>(rows + scales * COLUMNS * SIDE);    // two chunks
    int* theirs = ours + 2 * CHUNK;                                        // two chunks
    __shared__ __align__(16) int mine[EXTRA * SIDE], its[2 * EXTRA * SIDE];  // columns of both blocks
    __shared__ float across[2 * COLUMNS * SIDE], down[4 * COLUMNS * SIDE];   // partial sums of the warps
    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int x = (warp & 1) * 8 + (lane & 7), y = (warp >> 1) * 4 + (lane >> 3);
    const Task task = tasks[blockIdx.x];
    const long long i0 = (long long)task.block * SIDE;
    const int chunks = (d + DEEP - 1) / DEEP, stages = (task.last - task.first) * chunks;

    for (int at = t; at < scales * COLUMNS * SIDE; at += 256) rows[at] = 0;
    for (int at = t; at < EXTRA * SIDE; at += 256) mine[at] = D[i0 * EXTRA + at];

    float far[8][8];
    for (int stage = -1, chunk = -1, other = task.first; stage < stages; stage++) {
        const int here = stage & 1;
        int next = chunk + 1, then = other;  // the chunk to fetch, and its tile
        if (next == chunks) next = 0, then++;
        if (stage + 1 < stages) {
            const int k0 = DEEP * next, words = min(DEEP, d - k0);
            const long long j0 = (long long)then * SIDE;
            if (chunks > 1 || stage < 0) fetch(ours + (here ^ 1) * CHUNK, Y + i0 * d + k0 * SIDE, words);
            fetch(theirs + (here ^ 1) * CHUNK, X + j0 * d + k0 * SIDE, words);
            if (!k0) fetch(its + (then & 1) * EXTRA * SIDE, C + j0 * EXTRA, EXTRA);
        }
        commit();
        if (stage >= 0) {
            arrive();
            __syncthreads();
            const int words = min(DEEP, d - DEEP * chunk);
            const int* column = its + (other & 1) * EXTRA * SIDE;
            if (!chunk) {
                int p[8] = {}, q[8] = {};
                if (PACKED) {
                    read(p, mine + COLUMNS * SIDE + 4 * y);
                    read(q, column + COLUMNS * SIDE + 4 * x);
                }
                #pragma unroll
                for (int a = 0; a < 8; a++)
                    #pragma unroll
                    for (int b = 0; b < 8; b++) far[a][b] = __int_as_float(ORIGIN - p[a] - q[b]);
            }
            const int *from = ours + (chunks > 1 ? here : 0) * CHUNK + 4 * y, *to = theirs + here * CHUNK + 4 * x;
            #pragma unroll 4
            for (int k = 0; k < words; k++, from += SIDE, to += SIDE) {
                int p[8], q[8];
                read(p, from);
                read(q, to);
                #pragma unroll
                for (int a = 0; a < 8; a++)
                    #pragma unroll
                    for (int b = 0; b < 8; b++) measure(far[a][b], p[a], q[b]);
            }
            __syncthreads();
            if (chunk == chunks - 1) {
                const bool itself = AMONG && other == task.block;
                if (itself) {  // a row is not among the others
                    #pragma unroll
                    for (int a = 0; a < 8; a++)
                        #pragma unroll
                        for (int b = 0; b < 8; b++)
                            if (spread(y, a) == spread(x, b)) far[a][b] = FAR;
                }
                for (int g = 0; g < scales; g++) {
                    const float factor = -factors[g], offset = -factor * __int_as_float(ORIGIN);
                    float columns[COLUMNS][8], sums[COLUMNS][8], back[COLUMNS][8];
                    #pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        read(reinterpret_cast<int*>(columns[c]), column + c * SIDE + 4 * x);
                        #pragma unroll
                        for (int b = 0; b < 8; b++) back[c][b] = 0;
                    }
                    #pragma unroll
                    for (int a = 0; a < 8; a++) {
                        float near[8];
                        #pragma unroll
                        for (int b = 0; b < 8; b++) near[b] = power(fmaf(far[a][b], factor, offset));
                        #pragma unroll
                        for (int c = 0; c < COLUMNS; c++) {
                            sums[c][a] = 0;
                            #pragma unroll
                            for (int b = 0; b < 8; b++) sums[c][a] += near[b] * columns[c][b];
                            if (AMONG) {
                                const float weight = __int_as_float(mine[c * SIDE + spread(y, a)]);
                                #pragma unroll
                                for (int b = 0; b < 8; b++) back[c][b] += near[b] * weight;
                            }
                        }
                    }
                    #pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        fold<8>(sums[c], 4);
                        fold<4>(sums[c], 2);
                        fold<2>(sums[c], 1);
                        across[((warp & 1) * COLUMNS + c) * SIDE + spread(y, lane & 7)] = sums[c][0];
                        if (AMONG) {
                            fold<8>(back[c], 16);
                            fold<4>(back[c], 8);
                            float* to = down + ((warp >> 1) * COLUMNS + c) * SIDE + spread(x, lane >> 4 << 2) + (lane >> 2 & 2);
                            to[0] = back[c][0], to[1] = back[c][1];
                        }
                    }
                    __syncthreads();
                    #pragma unroll 1
                    for (int at = t; at < COLUMNS * SIDE; at += 256) {
                        rows[g * COLUMNS * SIDE + at] += (double)across[at] + (double)across[COLUMNS * SIDE + at];
                        if (AMONG && !itself) {
                            const float* part = down + at;
                            const float sum = (part[0] + part[COLUMNS * SIDE])
                                            + (part[2 * COLUMNS * SIDE] + part[3 * COLUMNS * SIDE]);
                            atomicAdd(out + (g * COLUMNS + at / SIDE) * m + other * (long long)SIDE + at % SIDE, (double)sum);
                        }
                    }
                    __syncthreads();
                }
            }
        }
        chunk = next, other = then;
    }
    for (int at = t; at < scales * COLUMNS * SIDE; at += 256)
        atomicAdd(out + (at / SIDE) * m + i0 + at % SIDE, rows[at]);
}
