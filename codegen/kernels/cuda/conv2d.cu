// Direct 2-D convolution, NCHW, one set of weights in the instruction stream.
//
// A block computes TILE_HEIGHT * ROWS rows by TILE_WIDTH * PAIR_COLUMNS columns of positions of IMAGES images, for one
// group of output channels: blockIdx.x = tile, blockIdx.y = images, blockIdx.z = group (slowest, so that all
// multiprocessors follow the same instruction stream at the same time), or in the order of block_order.cuh. A position
// is one output of every channel; in a transposed convolution UP_Y * UP_X neighbouring outputs, each with its own
// weights. A thread owns one column and ROWS rows (in float16 of two images, or two columns of one) and keeps their
// sums in registers. The input tile with its halo passes through shared memory in chunks of CHUNK_CHANNELS channels,
// STAGES deep; shared_input_tile.py has the layout of its words. The channels may be split over the blocks of a cluster,
// as in cluster_conv2d.cu, not in bfloat16: blockIdx.z is then group times CLUSTER, plus rank. From an image of the output
// to the next it is `output_step` elements: an output may be channels of a larger tensor, and by `input_step` the input
// of a bounded layer too. The residual is contiguous.
//
// A block may have BLOCK_GROUPS K groups, each with GROUP_THREADS threads, whole warps: the input comes from memory once
// for all of them. blockIdx.z then counts blocks instead of groups.
//
// The lines that begin with `// farm.` reach the PTX; codegen/ptx/template.py finds its way by them.
#include "parameters.h"
#define POSITIONS (TILE_WIDTH * TILE_HEIGHT * (IMAGES / PAIR_IMAGES))
#define THREADS (BLOCK_GROUPS * GROUP_THREADS)
#define OUTPUT_PLANE (OUTPUT_HEIGHT * OUTPUT_WIDTH)
#define IMAGE_OUTPUTS (OUTPUT_CHANNELS * OUTPUT_PLANE)
#define PRESENT(j, channel) present[j]
// Where two neighbouring columns of float16 are one word, that is the element here, and columns are counted in words.
#define OUTPUT_STEP (output_step >> (NEIGHBOURS - 1))
#define ENABLED(channel, c) (channel + (c) < SHARE_CHANNELS)
#define GIVEN_UP_FIRST 1
#include "memory.cuh"
#include "block_order.cuh"

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(1, 1, CLUSTER)
#else
#define CLUSTERED
#endif
#if RESIDENT_BLOCKS > 0
extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, RESIDENT_BLOCKS) conv2d(PARAMETERS, int output_step INPUT_STEP_PARAMETER) {
#else
extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS) conv2d(PARAMETERS, int output_step INPUT_STEP_PARAMETER) {
#endif
    extern __shared__ __align__(16) float tile[];
    FIND_PLACE
    const unsigned thread = threadIdx.x;
#if BLOCK_GROUPS == 1
    const unsigned position = thread;
#define HAS_POSITION true
#else
    // The threads that fill up the last warp of a K group compute the last position too, and store nothing.
    unsigned position = min(thread % GROUP_THREADS, POSITIONS - 1);
    // Of a number below 256 ptxas would compute with instructions that the assembler does not support.
    asm("" : "+r"(position));
#define HAS_POSITION (POSITIONS == GROUP_THREADS || thread % GROUP_THREADS < POSITIONS)
#endif
    const int column = position % TILE_WIDTH, row = position / TILE_WIDTH % TILE_HEIGHT * ROWS;
    const int image = position / (TILE_WIDTH * TILE_HEIGHT) * PAIR_IMAGES, first_image = IMAGES_NUMBER * IMAGES;
    const int tile_column = TILE_NUMBER % TILES_X * TILE_STEP_X;
    const int tile_row = TILE_NUMBER / TILES_X * TILE_STEP_Y;
    const unsigned tile_address = __cvta_generic_to_shared(tile);
#if FULL
    const int group = GROUP_NUMBER;
#else
    int group;
    asm volatile("mov.u32 %0,0; // farm.first_group" : "=r"(group));
#if BLOCK_GROUPS == 1
    group += GROUP_NUMBER;
#else
    group += (GROUP_NUMBER / CLUSTER * BLOCK_GROUPS + thread / GROUP_THREADS) * CLUSTER + GROUP_NUMBER % CLUSTER;
#endif
#endif
#if CLUSTER > 1
    const int rank = group % CLUSTER, first_channel = rank * SHARE_CHANNELS;
    const int first_output = group / CLUSTER * GROUP_OUTPUTS + rank * STORED_OUTPUTS;
#else
    const int span = SPANS == 1 ? 0 : group / GROUPS_PER_SPAN, first_channel = span * SPAN_CHANNELS;
    const int first_output = span * SPAN_OUTPUTS + (group - span * GROUPS_PER_SPAN) * GROUP_OUTPUTS;
#endif

    Copies copies;
    const Element* channels = input + (size_t)first_image * IMAGE_STEP + (size_t)first_channel * CHANNEL_STEP;
#pragma unroll
    for (int j = 0; j < POINTERS; ++j) {
        const unsigned unit = thread + j * THREADS;
        const int i = unit / IMAGE_UNITS * PAIR_IMAGES, c = unit % IMAGE_UNITS / CHANNEL_UNITS;
        const int y = unit % IMAGE_UNITS % CHANNEL_UNITS / ROW_UNITS, x = unit % ROW_UNITS * UNIT;
#if WHOLE_ROWS
        // The block's part of a channel as one row: zero outside its first and last word.
        const int in_y = 0, in_x = (tile_row * STRIDE_Y - PAD_TOP) * WIDTH - MARGIN + x;
#else
        const int in_y = tile_row * STRIDE_Y - PAD_TOP + y * STEP_Y;
        int in_x = tile_column * STRIDE_X - PAD_LEFT - MARGIN + x * STEP_X;
#endif
        int row_inside = (unsigned)in_y < HEIGHT;
        // Equal for the whole block: each pointer gets a value of its own, or the compiler makes the shared part a
        // branch.
#if !WHOLE_ROWS && CHANNEL_UNITS == ROW_UNITS
        asm volatile("" : "+r"(row_inside));
#elif !WHOLE_ROWS && ROW_UNITS == 1 && POINTERS > 1
        asm volatile("" : "+r"(in_x));
#endif
        const bool in_rows = row_inside && (IMAGES == 1 || first_image + i < images);
        copies.present[j] = in_rows && (unsigned)in_x < ROW_LENGTH;
#if PAIR_IMAGES == 2
        copies.present[j] |= (copies.present[j] && first_image + i + 1 < images) * 2;
#elif PAIR_COLUMNS == 2
        copies.present[j] |= (in_rows && (unsigned)(in_x + PAIR_OFFSET) < ROW_LENGTH) * 2;
#endif
        // A mask: a conditional expression could become a branch.
        const int offset = i * IMAGE_STEP + c * CHANNEL_STEP + in_y * ROW_STEP + in_x;
        copies.source[j] = channels + (offset & -(int)(copies.present[j] != 0));
        copies.inside[j] = EVEN_COPIES || unit < IMAGES / PAIR_IMAGES * IMAGE_UNITS;
#if PATCH_GAP
        const int in_row = x + x / STRIDE_X * PATCH_GAP;
#else
        const int in_row = x;
#endif
        copies.target[j] = tile_address + (i / PAIR_IMAGES * IMAGE_WORDS + c * CHANNEL_WORDS + y * ROW_WORDS + in_row) * 4;
    }

    const int out_y = ((tile_row + row) * UP_Y - CROP_Y) >> POOLED;
    const int out_x = ((tile_column + column) * UP_X - CROP_X) >> POOLED;
    const long long of_image = (long long)first_output * OUTPUT_PLANE + out_y * OUTPUT_WIDTH + out_x;
    Element* out[PAIR_IMAGES];
#pragma unroll
    for (int i = 0; i < PAIR_IMAGES; ++i) out[i] = output + (long long)(first_image + image + i) * OUTPUT_STEP + of_image;
#if HAS_RESIDUAL
    const Element* residual = added + (long long)(first_image + image) * IMAGE_OUTPUTS + of_image;
#endif
    const int word = image / PAIR_IMAGES * IMAGE_WORDS + row * (STRIDE_Y / STEP_Y) * ROW_WORDS +
                     column * (STRIDE_X / STEP_X + PATCH_GAP) + MARGIN;
    const float* window = tile + word;
#if EDGES
#pragma unroll
    for (int i = 0; i < (ZERO_WORDS + THREADS - 1) / THREADS; ++i)
        asm volatile("{ .reg .pred p; setp.lt.s32 p,%0,%2; @p st.shared.b32 [%1],0; }"
                     :: "r"(thread + i * THREADS), "r"(tile_address + (STAGES * STAGE + thread + i * THREADS) * 4),
                     "n"(ZERO_WORDS) : "memory");
    // In the bank of the word that a position would read.
    const float* zeros = tile + STAGES * STAGE + ZEROS_BEFORE + word % 32;
    const int edge_starts[EDGES] = EDGE_STARTS;
    bool outside[EDGES];
#pragma unroll
    for (int e = 0; e < EDGES; ++e) outside[e] = (unsigned)(column * STRIDE_X + edge_starts[e]) >= WIDTH;
#if ROW_EDGES
    const int edge_rows[EDGES] = EDGE_ROWS;
#pragma unroll
    for (int e = 0; e < EDGES; ++e) outside[e] |= (unsigned)(row * STRIDE_Y + edge_rows[e]) >= HEIGHT;
#endif
#endif
    const bool has_image[] = {HAS_POSITION && (IMAGES == 1 || first_image + image < images),
                              HAS_POSITION && first_image + image + 1 < images};
#define IN_RANGE(which, dy, dx) \
    (has_image[which] && (unsigned)(out_y + (dy)) < OUTPUT_HEIGHT && (unsigned)(out_x + (dx)) < OUTPUT_WIDTH)
#include "chunk_loop.cuh"
#if CLUSTER > 1
    keep_until_read();
#endif
#if NEIGHBOURS == 2
    // Behind the end of the code that runs.
    asm volatile("{ .reg .pred q; setp.ge.s32 q,%0,0; @q exit; }" :: "r"(images) : "memory");
#undef STORE
#define STORE(p, j, bias, ok, image, offset)                                              \
    asm volatile("{ .reg .b16 z; mov.b16 z,0; st.global.cs.b16 [%0+%1],z; } // farm.store " #j \
                 :: "l"(out[0]), "n"((offset) * ELEMENT_BYTES + 2) : "memory")
#include "epilogue.h"
#endif
}
