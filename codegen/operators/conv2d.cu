// Direct 2-D convolution, NCHW, one set of weights in the instruction stream (method.md's operator template).
//
// A block computes TILE_HEIGHT * ROWS rows by TILE_WIDTH * PAIRS columns of positions of one image, for one group of
// kernels: blockIdx.x = tile, blockIdx.y = image, blockIdx.z = group (slowest, so that all multiprocessors follow the
// same instruction stream at the same time). A position is one output of every kernel; of a transposed convolution it is
// UP_Y * UP_X neighbouring outputs, each with weights of its own. A thread owns one column and ROWS rows (in float16 two
// columns) and keeps their sums in registers. The input tile with its halo passes through shared memory in chunks of
// CHUNK_CHANNELS channels, STAGES deep.
//
// The lines that begin with `// farm.` reach the PTX; codegen/template.py finds its way by them.
#include "parameters.h"
#define THREADS (TILE_WIDTH * TILE_HEIGHT)
#define STAGE (CHUNK_CHANNELS * INPUT_TILE_HEIGHT * INPUT_TILE_WIDTH)
#define PLANE (HEIGHT * WIDTH)
#define OUTPUT_PLANE (OUTPUT_HEIGHT * OUTPUT_WIDTH)
#define PRESENT(j, channel) present[j]
#define ENABLED(channel, c) (channel + (c) < SPAN_CHANNELS)
#include "stream.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) conv2d(PARAMETERS) {
    extern __shared__ __align__(16) float tile[];
    const int thread = threadIdx.x;
    const int column = thread % TILE_WIDTH, row = thread / TILE_WIDTH * ROWS;
    const int tile_column = blockIdx.x % TILES_X * (TILE_WIDTH * PAIRS);
    const int tile_row = blockIdx.x / TILES_X * (TILE_HEIGHT * ROWS);
    const unsigned tile_address = __cvta_generic_to_shared(tile);
#if FULL
    const int group = blockIdx.z;
#else
    int group;
    asm volatile("mov.u32 %0,0; // farm.first_group" : "=r"(group));
    group += blockIdx.z;
#endif
    const int first_channel = group / GROUPS_PER_SPAN * SPAN_CHANNELS;
    const int first_kernel = group / GROUPS_PER_SPAN * SPAN_KERNELS + group % GROUPS_PER_SPAN * GROUP_KERNELS;

    Copies copies;
    const Element* image = input + (size_t)blockIdx.y * (CHANNELS * PLANE) + (size_t)first_channel * PLANE;
#pragma unroll
    for (int j = 0; j < POINTERS; ++j) {
#if FLAT
        // A 1x1 convolution reads a contiguous piece of each channel: no halo, UNIT words at a time.
        const int word = (thread + j * THREADS) * UNIT;
        const int channel = word / INPUT_TILE_WIDTH, x = word % INPUT_TILE_WIDTH;
        copies.source[j] = image + channel * PLANE + tile_column + x;
        copies.present[j] = tile_column + x < WIDTH;
        if (PAIRS == 2) copies.present[j] |= (tile_column + x + TILE_WIDTH < WIDTH) * 2;
        copies.inside[j] = word < STAGE;
        if (!copies.present[j] || !copies.inside[j]) copies.source[j] = image;
        copies.target[j] = tile_address + word * 4;
#else
        const int word = thread + j * THREADS;
        const int y = tile_row * STRIDE_Y - PAD_TOP + word / INPUT_TILE_WIDTH * STEP_Y;
        const int x = tile_column * STRIDE_X - PAD_LEFT + word % INPUT_TILE_WIDTH * STEP_X;
        const bool in_rows = (unsigned)y < HEIGHT;
        copies.present[j] = in_rows && (unsigned)x < WIDTH;
        if (PAIRS == 2) copies.present[j] |= (in_rows && (unsigned)(x + PAIR_OFFSET) < WIDTH) * 2;
        copies.source[j] = image + (copies.present[j] ? y * WIDTH + x : 0);
        copies.inside[j] = word < INPUT_TILE_HEIGHT * INPUT_TILE_WIDTH;
        copies.target[j] = tile_address + word * 4;
#endif
    }

    const int out_y = (tile_row + row) * UP_Y - CROP_Y, out_x = (tile_column + column) * UP_X - CROP_X;
    const long long first = ((long long)blockIdx.y * KERNELS + first_kernel) * OUTPUT_PLANE + out_y * OUTPUT_WIDTH + out_x;
    Element* out = output + first;
#if HAS_RESIDUAL
    const Element* residual = added + first;
#endif
    const float* window = tile + row * (STRIDE_Y / STEP_Y) * INPUT_TILE_WIDTH + column * (STRIDE_X / STEP_X);
#define IN_RANGE(dy, dx) ((unsigned)(out_y + (dy)) < OUTPUT_HEIGHT && (unsigned)(out_x + (dx)) < OUTPUT_WIDTH)
#include "loop.cuh"
}
