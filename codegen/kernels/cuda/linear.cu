// Fully connected layer: rows of inputs to rows of outputs, one set of weights in the instruction stream.
//
// One input element is multiplied into a whole group of outputs, whose weights stay where they are, in the instructions
// (Shi et al., 2020: one input element times a weight row). A block computes THREADS * ROWS rows of
// the batch (in float16 twice as many) for one group of GROUP_OUTPUTS outputs: blockIdx.x = rows, blockIdx.z = group. A
// thread owns ROWS rows. The inputs pass through shared memory in chunks of CHUNK_CHANNELS elements of each row; rows
// are padded so that the lanes of a warp read distinct banks.
//
// A large block may have BLOCK_GROUPS groups for the same rows, each with THREADS threads: the inputs come from memory
// once for all of them.
//
// The inputs may be split over the blocks of a cluster: blockIdx.z is then group times CLUSTER, plus rank; the last
// ranks may have fewer inputs, or none. Small blocks store some of the outputs each (OWN_ROWS), as in cluster_conv2d.cu;
// large blocks all outputs of some of the rows.
#include "parameters.h"
#define THREADS TILE_WIDTH
#define BLOCK_GROUPS TILE_HEIGHT
#define EDGES 0
#define STAGE (THREADS * ROWS * ROW_WORDS)
// The lower bits of `present`: channels from this one to the end of the row. The upper bits: which halves are there.
#if CHANNELS % CHUNK_CHANNELS == 0
#define PRESENT(j, channel) (present[j] >> 24)
#else
#define PRESENT(j, channel) ((channel < (int)(present[j] & 0xFFFFFF)) * (present[j] >> 24))
#endif
#define ENABLED(channel, c) (channel < CHANNELS)
#define GIVEN_UP_FIRST 0
#define FILLED 1
#define IMAGE_OUTPUTS 0
#include "block_order.cuh"
#include "memory.cuh"
#if BY_PLACE
#define ROWS_NUMBER place.images
#else
#define ROWS_NUMBER blockIdx.x
#endif

#if CLUSTER > 1
extern "C" __global__ void __cluster_dims__(1, 1, CLUSTER) __launch_bounds__(THREADS * BLOCK_GROUPS) linear(PARAMETERS) {
#else
extern "C" __global__ void __launch_bounds__(THREADS * BLOCK_GROUPS) linear(PARAMETERS) {
#endif
    extern __shared__ __align__(16) float tile[];
#if BLOCK_GROUPS == 1
    const int nth_group = 0, thread = threadIdx.x;
#else
    const int nth_group = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
#endif
    FIND_PLACE
    const int first_row = ROWS_NUMBER * (THREADS * ROWS * PAIRS);
    const unsigned tile_address = __cvta_generic_to_shared(tile);
    int group;
    asm volatile("mov.u32 %0,0; // farm.first_group" : "=r"(group));
#if BLOCK_GROUPS == 1
    group += GROUP_NUMBER;
#else
    group += (GROUP_NUMBER / CLUSTER * BLOCK_GROUPS + nth_group) * CLUSTER + GROUP_NUMBER % CLUSTER;
#endif
    const int rank = group % CLUSTER, first_channel = rank * SHARE_CHANNELS;
    const int first_output = group / CLUSTER * GROUP_OUTPUTS + (OWN_ROWS ? rank * STORED_OUTPUTS : 0);

    Copies copies;
#if LOOPED
    // Rows left, counted from the first row and from the first row of the upper halves: two differences, or ptxas takes
    // other instructions.
    int upper_row = first_row + THREADS * ROWS;
    asm("" : "+r"(upper_row));
    copies.begin(input + (size_t)first_row * CHANNELS, first_channel, threadIdx.x, images - first_row, images - upper_row, tile_address);
#else
#pragma unroll
    for (int j = 0; j < POINTERS; ++j) {
        const int word = (thread + j * THREADS) * UNIT;
        const int row = word / CHUNK_CHANNELS, channel = word % CHUNK_CHANNELS;
        const bool present = first_row + row < images;
        copies.source[j] = input + (present ? (size_t)(first_row + row) * CHANNELS + channel : 0);
        copies.present[j] = CHANNELS - channel | present << 24;
        if (PAIRS == 2) copies.present[j] |= (first_row + row + THREADS * ROWS < images) << 25;
        copies.inside[j] = word < THREADS * ROWS * CHUNK_CHANNELS;
        copies.target[j] = tile_address + (row * ROW_WORDS + channel) * 4;
    }
#endif

#if OWN_ROWS
    const int row = first_row + thread;
    const size_t first = (size_t)row * OUTPUT_CHANNELS + first_output;
#else
    // A thread leaves its sums in shared memory and stores those of others: LANES lanes store neighbouring outputs of a
    // row. If each stored its own row, every output would be written to a sector of its own.
    const int lane = thread % LANES;
#if CLUSTER > 1
    // A block of a cluster stores its share of the rows, which are all lower or all upper halves.
    const int half = rank * PAIRS / CLUSTER, first_taken_row = rank * (THREADS * PAIRS / CLUSTER) - half * THREADS;
    const int first_taken = first_taken_row + thread / 32 * (32 * PAIRS / CLUSTER) + thread % 32 / LANES;
#else
    const int half = 0, first_taken = thread / 32 * 32 + thread % 32 / LANES;
#endif
    const int row = first_row + half * THREADS + first_taken, rows_left = images - row;
    const size_t first = (size_t)row * OUTPUT_CHANNELS + first_output + lane;
    const unsigned left_at = tile_address + (nth_group * THREADS + thread) * (LEFT_WORDS * 4);
    const unsigned taken_from = tile_address + ((nth_group * THREADS + first_taken) * LEFT_WORDS + half * GROUP_OUTPUTS + lane) * 4;
#endif
    Element* out[] = {output + first};
#if HAS_RESIDUAL
    const Element* residual = added + first;
#endif
#if LOOPED
    // Rows beyond the batch are not copied: their threads read its last row.
    const float* window = tile + min(thread, images - first_row - 1) * ROW_WORDS;
#else
    const float* window = tile + thread * ROW_WORDS;
#endif
#if OWN_ROWS
#define IN_RANGE(rows) (row + (rows) < images)
#else
#define MEET __syncthreads()
// Volatile: ptxas joins neighbouring stores where it takes the address to be aligned.
#define LEAVE(p, j, bias, place)                                                                            \
    ADD_BIAS(sum[p][j], j, bias);                                                                           \
    asm volatile("{ st.volatile.shared.f32 [%0+%1],%2; } // farm.store " #j                                 \
                 :: "r"(left_at), "n"((place) * 4), "f"(sum[p][j]) : "memory")
// Rows of the batch of which this lane stores an output: none if it has none of the `count` from the `output`-th on.
#define ROWS_TO_STORE(rows, output, count)                                                                  \
    ((count) < LANES && lane >= (count)                                                               ? 0   \
     : OUTPUT_CHANNELS % (BLOCK_GROUPS * GROUP_OUTPUTS) && first_output + (output) + lane >= OUTPUT_CHANNELS  ? 0            \
                                                                                  : rows_left - (rows))
#if CLUSTER > 1
#define MEET_CLUSTER                                                                                        \
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");                                   \
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
// The address of the same word in a block of the cluster.
#define FIND(g)                                                                                             \
    unsigned taken_from_##g;                                                                                \
    asm volatile("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(taken_from_##g) : "r"(taken_from), "r"(g));
#define TAKE(r, g, place)                                                                                   \
    float taken##r##_##g;                                                                                   \
    asm volatile("{ .reg .pred p; setp.ne.b32 p,%2,0; @p ld.shared::cluster.f32 %0,[%1+%3]; }"              \
                 : "=f"(taken##r##_##g)                                                                     \
                 : "r"(taken_from_##g), "r"((int)((r) < to_store)), "n"(((r) * LEFT_WORDS + (place)) * 4) : "memory")
#define ADD_UP(r, g) taken##r##_0 += taken##r##_##g
#define GIVE(r, output) PUT_AFTER(STEPS, taken##r##_0, (r) < to_store, 0, (r) * OUTPUT_CHANNELS + (output), "")
#else
#define TAKE(r)                                                                                             \
    float taken##r;                                                                                         \
    asm volatile("{ .reg .pred p; setp.ne.b32 p,%2,0; @p ld.shared.f32 %0,[%1+%3]; }"                       \
                 : "=f"(taken##r) : "r"(taken_from), "r"((int)((r) < to_store)), "n"((r) * LEFT_WORDS * 4))
#define GIVE(r, rows, output) \
    PUT_AFTER(STEPS, taken##r, (r) < to_store, 0, ((rows) + (r)) * OUTPUT_CHANNELS + (output), "")
#endif
#endif
#include "chunk_loop.cuh"
#if CLUSTER > 1
    keep_until_read();
#endif
}
