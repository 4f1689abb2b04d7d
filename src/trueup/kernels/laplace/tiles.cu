// Sums of the columns of a bin's rows, weighed by 2^-(factor * L1 distance): a tile of 128 x 128 pairs at a time.
//
// A block of 256 threads holds one tile, each thread 8 x 8 pairs in registers: two additions a pair and dimension, the
// least there can be. COLUMNS (how many are summed), AMONG (1: the rows among themselves, each pair of blocks once;
// 0: other points) and DEEP (dimensions of a chunk) are given when it is compiled. Two chunks of each side are in shared
// memory, one being read while the next one comes; a chunk of this side that holds all dimensions comes once.

#define SIDE 128
#define CHUNK (DEEP * SIDE)

struct Task { int block, first, last; };

__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Thread t has rows (and columns) 4 a .. 4 a + 3 and 64 + 4 a .. 64 + 4 a + 3: neighbours read neighbouring words.
__device__ __forceinline__ int spread(int a, int k) { return (k >> 2) * 64 + 4 * a + (k & 3); }

// Copy 16 bytes to shared memory without waiting for them, where the card can.
__device__ __forceinline__ void copy(float* to, const float* from) {
#if __CUDA_ARCH__ >= 800
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from));
#else
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
#endif
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

__device__ __forceinline__ void fetch(float* to, const float* from, long long stride, int dims) {
    for (int at = threadIdx.x; at < dims * (SIDE / 4); at += 256) {
        const int k = at / (SIDE / 4), q = 4 * (at % (SIDE / 4));
        copy(to + k * SIDE + q, from + k * stride + q);
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) sums(
    const float* X, const float* C, const float* Y, const Task* tasks, const float* factors, double* out,
    long long n, long long m, int d, int scales)
{
    // X (d, n) rows and C (COLUMNS, n) their columns; Y (d, m) the points asked about, X itself where AMONG.
    extern __shared__ __align__(16) double rows[];                           // (scales * COLUMNS, SIDE): this block's sums
    float* ours = reinterpret_cast<float*>(rows + scales * COLUMNS * SIDE);  // two chunks
    float* theirs = ours + 2 * CHUNK;                                        // two chunks
    __shared__ __align__(16) float mine[COLUMNS * SIDE], its[2 * COLUMNS * SIDE];  // columns of both blocks
    __shared__ float across[2 * COLUMNS * SIDE], down[4 * COLUMNS * SIDE];   // partial sums of the warps
    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int x = (warp & 1) * 8 + (lane & 7), y = (warp >> 1) * 4 + (lane >> 3);
    const Task task = tasks[blockIdx.x];
    const long long i0 = (long long)task.block * SIDE;
    const int chunks = (d + DEEP - 1) / DEEP, stages = (task.last - task.first) * chunks;

    for (int at = t; at < scales * COLUMNS * SIDE; at += 256) rows[at] = 0;
    if (AMONG)
        for (int at = t; at < COLUMNS * SIDE; at += 256) mine[at] = C[(at / SIDE) * n + i0 + at % SIDE];

    float far[8][8];
    for (int stage = -1; stage < stages; stage++) {
        const int next = stage + 1, here = stage & 1;
        if (next < stages) {
            const int k0 = DEEP * (next % chunks), dims = min(DEEP, d - k0);
            const long long j0 = (long long)(task.first + next / chunks) * SIDE;
            if (chunks > 1 || !next) fetch(ours + (next & 1) * CHUNK, Y + k0 * m + i0, m, dims);
            fetch(theirs + (next & 1) * CHUNK, X + k0 * n + j0, n, dims);
            if (!k0) fetch(its + (next / chunks & 1) * COLUMNS * SIDE, C + j0, n, COLUMNS);
        }
        commit();
        if (stage < 0) continue;
        arrive();
        __syncthreads();
        const int chunk = stage % chunks, dims = min(DEEP, d - DEEP * chunk), other = task.first + stage / chunks;
        if (!chunk) {
            #pragma unroll
            for (int a = 0; a < 8; a++)
                #pragma unroll
                for (int b = 0; b < 8; b++) far[a][b] = 0;
        }
        const float *from = ours + (chunks > 1 ? here : 0) * CHUNK + 4 * y, *to = theirs + here * CHUNK + 4 * x;
        #pragma unroll 2
        for (int k = 0; k < dims; k++) {
            float p[8], q[8];
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                *reinterpret_cast<float4*>(p + 4 * h) = *reinterpret_cast<const float4*>(from + k * SIDE + 64 * h);
                *reinterpret_cast<float4*>(q + 4 * h) = *reinterpret_cast<const float4*>(to + k * SIDE + 64 * h);
            }
            #pragma unroll
            for (int a = 0; a < 8; a++)
                #pragma unroll
                for (int b = 0; b < 8; b++) far[a][b] += fabsf(p[a] - q[b]);
        }
        __syncthreads();
        if (chunk < chunks - 1) continue;
        const long long j0 = (long long)other * SIDE;
        const float* column = its + (stage / chunks & 1) * COLUMNS * SIDE;
        const bool itself = AMONG && other == task.block;
        for (int g = 0; g < scales; g++) {
            const float factor = -factors[g];
            float back[COLUMNS][8];
            #pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                #pragma unroll
                for (int b = 0; b < 8; b++) back[c][b] = 0;
            #pragma unroll
            for (int a = 0; a < 8; a++) {
                float near[8];
                #pragma unroll
                for (int b = 0; b < 8; b++) {
                    near[b] = power(far[a][b] * factor);
                    if (itself && spread(y, a) == spread(x, b)) near[b] = 0;  // a row is not among the others
                }
                #pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    float sum = 0;
                    #pragma unroll
                    for (int b = 0; b < 8; b++) sum += near[b] * column[c * SIDE + spread(x, b)];
                    #pragma unroll
                    for (int step = 1; step < 8; step <<= 1) sum += __shfl_xor_sync(~0u, sum, step);
                    if (!(lane & 7)) across[((warp & 1) * COLUMNS + c) * SIDE + spread(y, a)] = sum;
                    if (AMONG) {
                        const float weight = mine[c * SIDE + spread(y, a)];
                        #pragma unroll
                        for (int b = 0; b < 8; b++) back[c][b] += near[b] * weight;
                    }
                }
            }
            if (AMONG) {
                #pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    #pragma unroll
                    for (int b = 0; b < 8; b++) {
                        float sum = back[c][b];
                        #pragma unroll
                        for (int step = 8; step < 32; step <<= 1) sum += __shfl_xor_sync(~0u, sum, step);
                        if (lane < 8) down[((warp >> 1) * COLUMNS + c) * SIDE + spread(x, b)] = sum;
                    }
            }
            __syncthreads();
            for (int at = t; at < COLUMNS * SIDE; at += 256) {
                rows[g * COLUMNS * SIDE + at] += (double)across[at] + (double)across[COLUMNS * SIDE + at];
                if (AMONG && !itself) {
                    double sum = 0;
                    for (int w = 0; w < 4; w++) sum += (double)down[w * COLUMNS * SIDE + at];
                    atomicAdd(out + (g * COLUMNS + at / SIDE) * m + j0 + at % SIDE, sum);
                }
            }
            __syncthreads();
        }
    }
    for (int at = t; at < scales * COLUMNS * SIDE; at += 256)
        atomicAdd(out + (at / SIDE) * m + i0 + at % SIDE, rows[at]);
}
