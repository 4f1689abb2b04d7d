// Sums that decay along sorted rows: S_i = decay_i S_(i - 1) + what row i adds, kept apart for four codes and COLUMNS columns.
//
// A row receives the sums of the code opposite to its own over the rows before it (way 0) and after it (way 1), decayed to
// its place. A decay of 0 starts a new run. A warp sums LENGTH rows, 32 at a time: first the `ends` of all such stretches
// (phase 0), then the sums before each (phase 1), then those before each row (phase 2).

#define SUMS (4 * COLUMNS)
#define LENGTH 1024

__device__ __forceinline__ double up(double value, int step) { return __shfl_up_sync(~0u, value, step); }

extern "C" __global__ void __launch_bounds__(128) scan(
    const double* decay, const unsigned char* code, const double* brings, double* finds, double* ends, int n, int opposite,
    int phase)
{
    // brings (n, COLUMNS), finds (2, n, COLUMNS), ends (2, stretches, SUMS + 1): the sums, and the decay over the stretch.
    const int lane = threadIdx.x & 31, way = blockIdx.y, stretches = (n + LENGTH - 1) / LENGTH;
    const int stretch = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    ends += (long long)way * stretches * (SUMS + 1);
    if (phase == 1) {
        double sum = 0;
        if (threadIdx.x < SUMS)
            for (int s = 0; s < stretches; s++, ends += SUMS + 1) {
                const double end = ends[threadIdx.x];
                ends[threadIdx.x] = sum;
                sum = sum * ends[SUMS] + end;
            }
        return;
    }
    if (stretch >= stretches) return;
    ends += (long long)stretch * (SUMS + 1);
    double before[SUMS], whole = 1;
    #pragma unroll
    for (int k = 0; k < SUMS; k++) before[k] = phase ? ends[k] : 0;
    for (int first = stretch * LENGTH; first < min(n, (stretch + 1) * LENGTH); first += 32) {
        const int at = first + lane, row = way ? n - 1 - at : at;
        double sums[SUMS] = {}, fade = 1;
        int own = 0;
        if (at < n) {
            own = code[row];
            fade = way ? (at ? decay[row + 1] : 0) : decay[row];
            #pragma unroll
            for (int k = 0; k < SUMS; k++)
                if (k / COLUMNS == own) sums[k] = brings[(long long)row * COLUMNS + k % COLUMNS];
        }
        const double last = fade;  // the decay since the row before
        #pragma unroll
        for (int step = 1; step < 32; step <<= 1) {
            #pragma unroll
            for (int k = 0; k < SUMS; k++) {
                const double sum = up(sums[k], step);
                if (lane >= step) sums[k] += sum * fade;
            }
            const double fades = up(fade, step);
            if (lane >= step) fade *= fades;
        }
        #pragma unroll
        for (int k = 0; k < SUMS; k++) {
            sums[k] += before[k] * fade;
            const double sum = up(sums[k], 1);
            if (phase && at < n && k / COLUMNS == (own ^ opposite))
                finds[((long long)way * n + row) * COLUMNS + k % COLUMNS] = (lane ? sum : before[k]) * last;
            before[k] = __shfl_sync(~0u, sums[k], 31);
        }
        whole *= __shfl_sync(~0u, fade, 31);
    }
    if (!phase && !lane) {
        #pragma unroll
        for (int k = 0; k < SUMS; k++) ends[k] = before[k];
        ends[SUMS] = whole;
    }
}
