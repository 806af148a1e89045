// Escoin's method (Chen, "Escort: Efficient Sparse Convolutional Neural Networks on GPUs", arXiv 1802.10280): direct
// sparse convolution. The weights of an output channel are a row of CSR whose column indices were stretched beforehand
// into offsets within the padded image (Park et al., "Faster CNNs with Direct Sparse Convolutions and Guided Pruning",
// ICLR 2017), so that a multiply-add needs no index arithmetic: it takes one load, at the offset plus the position's
// own. A block has one output channel; its weights go through shared memory, its threads lie along the positions, so
// that loads and stores of a warp are consecutive. Blocks of all channels at one place run together and share its input
// in the caches. POSITIONS, of a thread, is what is tuned: each weight that is read serves so many multiply-adds.

namespace {

constexpr int kThreads = 256;
constexpr int kStaged = 512;  // weights in shared memory at a time
constexpr unsigned kPlace = H_OUT * W_OUT;

template <int POSITIONS>
__device__ __forceinline__ void convolve(
    const float* __restrict__ input, const int* __restrict__ rows, const int2* __restrict__ entries,
    float* __restrict__ output, int images) {
    __shared__ int2 staged[kStaged];
    const unsigned kernel = blockIdx.x % K, tile = blockIdx.x / K;
    const unsigned positions = images * kPlace, first = tile * (kThreads * POSITIONS) + threadIdx.x;
    const float* source[POSITIONS];
    float sum[POSITIONS];
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
        // Beyond the end: the last position again, computed and not stored.
        const unsigned position = min(first + p * kThreads, positions - 1), place = position % kPlace;
        source[p] = input + static_cast<size_t>(position / kPlace) * (C * H_PADDED * W_PADDED) +
                    place / W_OUT * (STRIDE_Y * W_PADDED) + place % W_OUT * STRIDE_X;
        sum[p] = 0.f;
    }
    const int end = rows[kernel + 1];
    for (int start = rows[kernel]; start < end; start += kStaged) {
        const int count = min(kStaged, end - start);
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += kThreads) staged[i] = entries[start + i];
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < count; ++i) {
            const int2 entry = staged[i];
#pragma unroll
            for (int p = 0; p < POSITIONS; ++p) sum[p] = fmaf(__int_as_float(entry.y), source[p][entry.x], sum[p]);
        }
    }
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
        const unsigned position = first + p * kThreads;
        if (position < positions)
            output[(static_cast<size_t>(position / kPlace) * K + kernel) * kPlace + position % kPlace] = sum[p];
    }
}

}  // namespace

#define ESCOIN(POSITIONS)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256) escoin_##POSITIONS(                                          \
        const float* input, const int* rows, const int2* entries, float* output, int images) {                     \
        convolve<POSITIONS>(input, rows, entries, output, images);                                                 \
    }

ESCOIN(1)
ESCOIN(2)
ESCOIN(4)
ESCOIN(8)
