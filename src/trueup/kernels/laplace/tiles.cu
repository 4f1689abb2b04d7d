// Sums of the columns of a bin's rows, weighted by 2^-(factor * L1 distance): a tile of 128 x 128 pairs at a time.
//
// A block of 8 warps holds the 128 rows of one tile in shared memory. Each warp meets them with 16 rows of another tile at
// a time, a thread 16 x 4 pairs in registers, and copies what it reads next by itself: warps do not wait for each other.
// COLUMNS (how many are summed), AMONG (1: the rows among themselves, each pair of tiles once; 0: other points), DEEP (words
// of the block's rows in shared memory), PART (words of the others; it divides DEEP), UNROLLED and PACKED are given when it
// is compiled.
//
// A word is one coordinate in float32: two additions per pair. If PACKED it is two integers below 2^16: with S the sum of a
// row's integers, |a - b| = 2 sum max(a, b) - S_a - S_b, so a maximum and a dot product with (2, 2) per pair and two
// dimensions. Sums of ranges are below 2^22: S + 2^23 and |a - b| + S_b + 2^23 have the bits of their float32.

#define SIDE 128
#define WIDE 16                               // rows of the other tile
#define EXTRA (COLUMNS + PACKED)              // columns and, if PACKED, S + 2^23
#define FAR __int_as_float(0x7F800000)        // an infinite distance: a kernel of 0
constexpr int unrolled = UNROLLED;

struct Task { int block, first, last; };

template <class T, class F> __device__ __forceinline__ void copy4(T* to, const F* from) {
    *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
}

// Copy 4 words to shared memory, where the GPU can without waiting for them.
__device__ __forceinline__ void fetch(int* to, const int* from) {
#if __CUDA_ARCH__ >= 800
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from) : "memory");
#else
    copy4(to, from);
#endif
}

// Copy lines of all SIDE words by the threads of a block, or of WIDE words by those of a warp.
__device__ __forceinline__ void fetch_lines(int* to, const int* from, int lines) {
    #pragma unroll 1
    for (int at = 4 * threadIdx.x; at < lines * SIDE; at += 1024) fetch(to + at, from + at);
}

template <int LINES> __device__ __forceinline__ void fetch_columns(int* to, const int* from) {
    const int lane = threadIdx.x % 32, line = lane / 4;
    #pragma unroll
    for (int k = 0; k < LINES; k += 8)
        if (k + line < LINES) fetch(to + k * WIDE + 4 * lane, from + (k + line) * SIDE + lane % 4 * 4);
}

__device__ __forceinline__ void arrive() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
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
    long long m, int chunks, int scales)
{
    // X (tiles, chunks * DEEP, SIDE) are the words of the rows, C (tiles, EXTRA, SIDE) their columns; Y and D those of the m
    // points asked about, X and C themselves where AMONG. A thread has rows 32 k + 4 y .. + 3 and, of the warp's others, 4 x
    // .. 4 x + 3.
    extern __shared__ __align__(16) float kept[];                  // (4 COLUMNS, 256, 4): sums of each thread
    int* const ours = reinterpret_cast<int*>(kept + 4 * COLUMNS * 1024);  // (DEEP, SIDE)
    __shared__ __align__(16) int mine[EXTRA * SIDE], others[8 * 2 * EXTRA * WIDE];
    const int t = threadIdx.x, warp = t / 32, x = t % 4, y = t % 32 / 4;
    int* const theirs = ours + DEEP * SIDE + warp * 2 * PART * WIDE;  // (2, PART, WIDE)
    int* const its = others + warp * 2 * EXTRA * WIDE;
    const Task task = tasks[blockIdx.x];
    const int parts = chunks * (DEEP / PART);
    const int* const rows = Y + (long long)task.block * parts * PART * SIDE;
    const int* words = X + ((long long)task.first * parts * PART * SIDE + warp * WIDE);
    const int* values = C + ((long long)task.first * EXTRA * SIDE + warp * WIDE);

    for (int k = 0; k < 4 * COLUMNS; k++) *reinterpret_cast<float4*>(kept + 1024 * k + 4 * t) = float4{0, 0, 0, 0};
    fetch_lines(mine, D + (long long)task.block * EXTRA * SIDE, EXTRA);
    if (chunks == 1) fetch_lines(ours, rows, DEEP);
    fetch_columns<EXTRA>(its, values);
    fetch_columns<PART>(theirs, words);
    arrive();
    __syncthreads();

    int now = 0, tile = 0;  // which of two parts, and of the columns of two tiles
    for (int other = task.first; other < task.last; other++, tile ^= 1) {
        const bool more = other + 1 < task.last, itself = AMONG && other == task.block;
        float far[16][4];
        #pragma unroll
        for (int k = 0; k < 16; k += 4) {
            int sums[4] = {};
            if (PACKED) copy4(sums, mine + COLUMNS * SIDE + 8 * k + 4 * y);
            #pragma unroll
            for (int a = 0; a < 4; a++)
                #pragma unroll
                for (int b = 0; b < 4; b++) far[k + a][b] = __int_as_float(PACKED ? 2 * 0x4B000000u - sums[a] : 0);
        }
        for (int part = 0; part < parts; part++, now ^= 1) {
            arrive();
            __syncwarp();
            words += PART * SIDE;
            if (more || part + 1 < parts) fetch_columns<PART>(theirs + (now ^ 1) * PART * WIDE, words);
            if (more && !part) fetch_columns<EXTRA>(its + (tile ^ 1) * EXTRA * WIDE, values += EXTRA * SIDE);
            if (chunks > 1 && part % (DEEP / PART) == 0) {
                __syncthreads();
                fetch_lines(ours, rows + part * PART * SIDE, DEEP);
                arrive();
                __syncthreads();
            }
            const int* const left = ours + part % (DEEP / PART) * PART * SIDE + 4 * y;
            const int* const right = theirs + now * PART * WIDE + 4 * x;
            #pragma unroll unrolled
            for (int k = 0; k < PART; k++) {
                int p[16], q[4];
                copy4(q, right + k * WIDE);
                #pragma unroll
                for (int a = 0; a < 16; a += 4) copy4(p + a, left + k * SIDE + 8 * a);
                #pragma unroll
                for (int b = 0; b < 4; b++)
                    #pragma unroll
                    for (int a = 0; a < 16; a++) measure(far[a][b], p[a], q[b]);
            }
        }
        const int* const column = its + tile * EXTRA * WIDE + 4 * x;
        if (itself) {  // a row is not among the others
            #pragma unroll
            for (int a = 0; a < 16; a++)
                #pragma unroll
                for (int b = 0; b < 4; b++)
                    if (a / 4 * 32 + 4 * y + a % 4 == WIDE * warp + 4 * x + b) far[a][b] = FAR;
        }
        #pragma unroll 1
        for (int g = 0; g < scales; g++) {
            double* const total = out + g * COLUMNS * m;
            const float factor = factors[g];
            float columns[COLUMNS][4], back[COLUMNS][4] = {}, offset[4] = {};
            #pragma unroll
            for (int c = 0; c < COLUMNS; c++) copy4(columns[c], column + c * WIDE);
            if (PACKED) copy4(offset, column + COLUMNS * WIDE);
            #pragma unroll
            for (int b = 0; b < 4; b++) offset[b] *= factor;
            #pragma unroll
            for (int k = 0; k < 4; k++) {
                float weights[COLUMNS][4], sums[COLUMNS][4];
                #pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    copy4(weights[c], mine + c * SIDE + 32 * k + 4 * y);
                    copy4(sums[c], kept + (4 * c + k) * 1024 + 4 * t);
                }
                #pragma unroll
                for (int a = 0; a < 4; a++) {
                    float near[4];
                    #pragma unroll
                    for (int b = 0; b < 4; b++) near[b] = exp2f(fmaf(far[4 * k + a][b], -factor, offset[b]));
                    #pragma unroll
                    for (int b = 0; b < 4; b++)
                        #pragma unroll
                        for (int c = 0; c < COLUMNS; c++) {
                            sums[c][a] += near[b] * columns[c][b];
                            if (AMONG) back[c][b] += near[b] * weights[c][a];
                        }
                }
                #pragma unroll
                for (int c = 0; c < COLUMNS; c++) copy4(kept + (4 * c + k) * 1024 + 4 * t, sums[c]);
            }
            if (AMONG && !itself) {
                #pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    fold<4>(back[c], 16);
                    fold<2>(back[c], 8);
                    const float sum = back[c][0] + __shfl_xor_sync(~0u, back[c][0], 4);
                    if (y % 2 == 0) atomicAdd(total + c * m + (other * SIDE + WIDE * warp + 4 * x + y / 2), (double)sum);
                }
            }
            if (scales > 1 || !more) {
                #pragma unroll 1
                for (int k = 0; k < 4 * COLUMNS; k++) {
                    float sums[4], *place = kept + k * 1024 + 4 * t;
                    copy4(sums, place);
                    *reinterpret_cast<float4*>(place) = float4{0, 0, 0, 0};
                    fold<4>(sums, 2);
                    fold<2>(sums, 1);
                    atomicAdd(total + k / 4 * m + (task.block * SIDE + k % 4 * 32 + 4 * y + x), (double)sums[0]);
                }
            }
        }
    }
}
