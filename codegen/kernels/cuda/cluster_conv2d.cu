// Direct 2-D convolution whose input channels are split over the blocks of a cluster, NCHW, float32.
//
// For layers with much code and few positions: a block has TILE_HEIGHT * ROWS rows by TILE_WIDTH columns of positions
// of IMAGES images, as in conv2d.cu, but only its rank's share of the channels of a K group, and so a short stream of
// instructions: all multiprocessors together fetch the layer's code once. Each block adds up the products of its share
// for all outputs of the group, then the blocks of the cluster read each other's sums in distributed shared memory:
// each finishes some of the outputs, adding the shares in the order of the ranks.
//
// blockIdx.x = tile, blockIdx.y = images, blockIdx.z = stream: K group times CLUSTER, plus rank.
#include "parameters.h"
#define THREADS (TILE_WIDTH * TILE_HEIGHT * IMAGES)
#define OUTPUT_PLANE (OUTPUT_HEIGHT * OUTPUT_WIDTH)
#define IMAGE_OUTPUTS (OUTPUT_CHANNELS * OUTPUT_PLANE)
#include "memory.cuh"

extern "C" __global__ void __cluster_dims__(1, 1, CLUSTER) __launch_bounds__(THREADS)
    stationary(PARAMETERS, int output_step INPUT_STEP_PARAMETER) {
    extern __shared__ __align__(16) float tile[];
    const unsigned thread = threadIdx.x;
    const int column = thread % TILE_WIDTH, row = thread / TILE_WIDTH % TILE_HEIGHT * ROWS;
    const int image = thread / (TILE_WIDTH * TILE_HEIGHT), first_image = blockIdx.y * IMAGES;
    const int tile_column = blockIdx.x % TILES_X * TILE_WIDTH;
    const int tile_row = blockIdx.x / TILES_X * (TILE_HEIGHT * ROWS);
    const unsigned tile_address = __cvta_generic_to_shared(tile);
    int group;
    asm volatile("mov.u32 %0,0; // farm.first_group" : "=r"(group));
    group += blockIdx.z;
    const int rank = group % CLUSTER, first_channel = rank * SHARE_CHANNELS;
    const int first_output = group / CLUSTER * GROUP_OUTPUTS + rank * STORED_OUTPUTS;

    Copies copies;
    const Element* channels = input + (size_t)first_image * IMAGE_STEP + (size_t)first_channel * CHANNEL_STEP;
#pragma unroll
    for (int j = 0; j < POINTERS; ++j) {
        const int place = thread + j * THREADS;
        const int i = place / PLANE, y = place % PLANE / ROW_PLACES, x = place % ROW_PLACES;
        int in_y = tile_row * STRIDE_Y - PAD_TOP + y * STEP_Y, in_x = tile_column * STRIDE_X - PAD_LEFT + x * STEP_X;
        // If all places of a tile were in one row, the compiler would branch on whether that row is within the map.
        asm volatile("" : "+r"(in_y));
        const bool present = (unsigned)in_y < HEIGHT && (unsigned)in_x < WIDTH && first_image + i < images;
        // A mask: a conditional expression could become a branch.
        const int offset = i * IMAGE_STEP + in_y * WIDTH + in_x;
        copies.source[j] = channels + (offset & -(int)present);
        copies.bytes[j] = present * 4;
        copies.target[j] = tile_address + (i * IMAGE_WORDS + place % PLANE * 4) * 4;
        copies.length[j] = (place < IMAGES * PLANE) * (CHUNK_CHANNELS / 4 * PLANE * 16);
    }

    const int out_y = tile_row + row, out_x = tile_column + column;
    const long long of_image = (long long)first_output * OUTPUT_PLANE + out_y * OUTPUT_WIDTH + out_x;
    Element* out[] = {output + (long long)(first_image + image) * output_step + of_image};
#if HAS_RESIDUAL
    const Element* residual = added + (long long)(first_image + image) * IMAGE_OUTPUTS + of_image;
#endif
    const float* window = tile + image * IMAGE_WORDS +
                          (row * (STRIDE_Y / STEP_Y) * ROW_PLACES + column * (STRIDE_X / STEP_X)) * 4;
    const bool has_image = IMAGES == 1 || first_image + image < images;
#define IN_RANGE(dy) (has_image && (unsigned)(out_y + (dy)) < OUTPUT_HEIGHT && (unsigned)out_x < OUTPUT_WIDTH)
#include "chunk_loop.cuh"
    keep_until_read();
}
