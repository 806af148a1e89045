// Direct 2-D convolution, NCHW, one set of weights in the instruction stream (method.md's operator template).
//
// A block computes TILE_HEIGHT * ROWS rows by TILE_WIDTH columns of GROUP_KERNELS output channels of one image:
//   blockIdx.x = tile, blockIdx.y = image, blockIdx.z = group of kernels (slowest, so that all multiprocessors
//   follow the same instruction stream at the same time).
// A thread owns one column and ROWS rows and keeps ROWS * GROUP_KERNELS sums in registers. The input tile with its
// halo passes through shared memory in chunks of CHUNK_CHANNELS channels, STAGES deep.
//
// `parameters.h` holds the macros of one shape and tiling; `body.h` the generated multiply-adds. The lines that begin
// with `// farm.` reach the PTX; codegen/template.py finds its way by them.
#include "parameters.h"

#define THREADS (TILE_WIDTH * TILE_HEIGHT)
#define INPUT_TILE_HEIGHT ((TILE_HEIGHT * ROWS - 1) * STRIDE_Y + KERNEL_HEIGHT)
#define INPUT_TILE_WIDTH ((TILE_WIDTH - 1) * STRIDE_X + KERNEL_WIDTH)
#define INPUT_TILE (INPUT_TILE_HEIGHT * INPUT_TILE_WIDTH)
#define COPIES ((INPUT_TILE + THREADS - 1) / THREADS)
#define STAGE (CHUNK_CHANNELS * INPUT_TILE)
#define TILES_X ((OUTPUT_WIDTH + TILE_WIDTH - 1) / TILE_WIDTH)
#define PLANE (HEIGHT * WIDTH)
#define OUTPUT_PLANE (OUTPUT_HEIGHT * OUTPUT_WIDTH)

// Copies 4 bytes of channel `c` of a chunk to shared memory; `bytes` 0 writes a zero (the halo), `enabled` 0 does nothing.
// What depends on the channel is an immediate of the instruction: a pointer serves all channels of a chunk.
#define COPY_CHANNEL(c) "n"((c) * INPUT_TILE * 4), "n"((c) * PLANE * 4)
#if __CUDA_ARCH__ >= 800
#define COPY(j, c)                                                                                                     \
    asm volatile("{ .reg .pred p; setp.ne.b32 p,%3,0; @p cp.async.ca.shared.global [%0+%4],[%1+%5],4,%2; }"            \
                 :: "r"(target[j] + stage), "l"(source[j]), "r"(bytes[j]), "r"((int)(inside[j] & (channel + c < CHANNELS))), \
                 COPY_CHANNEL(c) : "memory")
#else
#define COPY(j, c)                                                                                                     \
    asm volatile("{ .reg .pred p, q; .reg .f32 x; setp.ne.b32 p,%3,0; setp.ne.and.b32 q,%2,0,p;\n"                     \
                 " mov.f32 x,0f00000000; @q ld.global.nc.f32 x,[%1+%5]; @p st.shared.f32 [%0+%4],x; }"                 \
                 :: "r"(target[j] + stage), "l"(source[j]), "r"(bytes[j]), "r"((int)(inside[j] & (channel + c < CHANNELS))), \
                 COPY_CHANNEL(c) : "memory")
#endif

__device__ __forceinline__ void end_of_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
#endif
    __syncthreads();
}

struct Copies {
    const float* source[COPIES];
    unsigned target[COPIES];
    unsigned bytes[COPIES];
    bool inside[COPIES];

    __device__ __forceinline__ void issue(int channel, unsigned stage) const {
#include "copies.h"
        end_of_copies();
    }
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int j = 0; j < COPIES; ++j) source[j] += CHUNK_CHANNELS * PLANE;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
conv2d(const float* __restrict__ input, float* __restrict__ output) {
    extern __shared__ __align__(16) float tile[];
    const int thread = threadIdx.x;
    const int column = thread % TILE_WIDTH, row = thread / TILE_WIDTH * ROWS;
    const int tile_column = blockIdx.x % TILES_X * TILE_WIDTH;
    const int tile_row = blockIdx.x / TILES_X * (TILE_HEIGHT * ROWS);
    const unsigned tile_address = __cvta_generic_to_shared(tile);

    Copies copies;
    const float* image = input + (size_t)blockIdx.y * (CHANNELS * PLANE);
#pragma unroll
    for (int j = 0; j < COPIES; ++j) {
        const int element = thread + j * THREADS;
        const int y = tile_row * STRIDE_Y - PAD_TOP + element / INPUT_TILE_WIDTH;
        const int x = tile_column * STRIDE_X - PAD_LEFT + element % INPUT_TILE_WIDTH;
        const bool in_image = (unsigned)y < HEIGHT && (unsigned)x < WIDTH;
        copies.source[j] = image + (in_image ? y * WIDTH + x : 0);
        copies.target[j] = tile_address + element * 4;
        copies.bytes[j] = in_image ? 4 : 0;
        copies.inside[j] = element < INPUT_TILE;
    }

    const int y = tile_row + row, x = tile_column + column;
    float* out = output + ((size_t)blockIdx.y * KERNELS + blockIdx.z * GROUP_KERNELS) * OUTPUT_PLANE +
                 y * OUTPUT_WIDTH + x;
    const float* window = tile + row * STRIDE_Y * INPUT_TILE_WIDTH + column * STRIDE_X;

    float sum[ROWS][GROUP_KERNELS];
#pragma unroll
    for (int p = 0; p < ROWS; ++p)
#pragma unroll
        for (int k = 0; k < GROUP_KERNELS; ++k) sum[p][k] = 0.f;

#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        copies.issue(s * CHUNK_CHANNELS, s * (STAGE * 4));
        copies.advance();
    }

#if FULL
#define CHUNK(n)                                                                           \
    wait_for_copies();                                                                     \
    copies.issue((n + STAGES - 1) * CHUNK_CHANNELS, (n + STAGES - 1) % STAGES * (STAGE * 4)); \
    copies.advance()
#define INPUT(n, c, y, s) window[n % STAGES * STAGE + (c * INPUT_TILE_HEIGHT + y) * INPUT_TILE_WIDTH + s]
#define MULTIPLY_ADD(p, k, x, bits) sum[p][k] = fmaf(x, __uint_as_float(bits), sum[p][k])
#define STORE(p, k, bits)                                     \
    if (y + p < OUTPUT_HEIGHT && x < OUTPUT_WIDTH)            \
    out[p * OUTPUT_WIDTH + k * OUTPUT_PLANE] = sum[p][k] + __uint_as_float(bits)
#else
    // The number of chunks is hidden from the compiler: the loop stays a loop, also when there is one chunk.
    int chunks;
    asm volatile("mov.u32 %0,%1;" : "=r"(chunks) : "n"(CHUNKS));
    int chunk = 0, read_stage = 0, write_stage = STAGES - 1;
    asm volatile("// farm.group %0" :: "r"(blockIdx.z));
#pragma unroll 1
    do {
        wait_for_copies();
        copies.issue((chunk + STAGES - 1) * CHUNK_CHANNELS, write_stage * (STAGE * 4));
        copies.advance();
        const float* in = window + read_stage * STAGE;
        asm volatile("// farm.body.begin");
#include "body.h"
        asm volatile("// farm.body.end");
        read_stage = read_stage == STAGES - 1 ? 0 : read_stage + 1;
        write_stage = write_stage == STAGES - 1 ? 0 : write_stage + 1;
    } while (++chunk < chunks);
    asm volatile("// farm.epilogue");
    // One line for the bias and one for the store: the rewriter leaves out the lines of kernels that do not exist.
#define STORE(p, k, bias)                                                                                         \
    asm volatile("add.rn.f32 %0,%0," bias "; // farm.bias " #k "\n\t"                                             \
                 "{ .reg .pred p; setp.ne.b32 p,%2,0; @p st.global.f32 [%1+%3],%0; } // farm.store " #k           \
                 : "+f"(sum[p][k])                                                                                \
                 : "l"(out), "r"((int)(y + p < OUTPUT_HEIGHT && x < OUTPUT_WIDTH)),                               \
                   "n"((p * OUTPUT_WIDTH + k * OUTPUT_PLANE) * 4)                                                 \
                 : "memory")
#endif
#include "epilogue.h"
}
