// Convolution of a few positions with its weights in a table beside the code.
//
// At small batches a GPU fetches the code of a layer for longer than it computes: 16 bytes for each weight, by every
// multiprocessor. In the table a weight is 8 bytes, its value and where its input lies in the tile, and each block
// reads those of its own output channels. The code is the same for every checkpoint: the rewriter puts in nothing but
// the table (`farm.table`).
//
// A block has a tile of positions of one image, and GROUP_OUTPUTS output channels. LANES threads compute one channel at
// the tile's positions, ROWS each. SLICES such groups of threads share a channel's weights; their sums meet in shared
// memory in a fixed order. So do those of the blocks of a cluster, each of which has a share of the channels.
//
// Of 16-bit types all is added up in float32: elements are widened on their way to the tile. Where NEIGHBOURS is two, a
// position is a word of two neighbouring columns, which stays packed in the tile, and a thread has two sums for it. Where
// PAIRED is two, a word of the tile has the inputs of two of a thread's ROWS positions, half of them apart.
//
// The table: where the units of each output channel and chunk begin, the most units of any, the biases, then the units,
// four weights each. A unit that is not full ends with weights of zero, whose inputs lie behind the tile and are zero.
//
// blockIdx.x = tile, blockIdx.y = image, blockIdx.z = K group times SHARES, plus rank.
#include "parameters.h"
#define GROUP_THREADS (LANES * GROUP_OUTPUTS)
#define THREADS (GROUP_THREADS * SLICES)
#define OUTPUT_PLANE (OUTPUT_HEIGHT * OUTPUT_WIDTH)
#define IMAGE_OUTPUTS 0
#include "no_copies.cuh"
#include "memory.cuh"
#if !WHOLE_WORDS
#include "widening.cuh"
#endif

#define ROW_WORDS (ROWS / PAIRED)

#define COPIED_PLACES (PLANE / UNIT)
#define CHANNELS_A_TURN (THREADS >= COPIED_PLACES ? THREADS / COPIED_PLACES : 1)
#define SLOTS ((COPIED_PLACES + THREADS - 1) / THREADS)
// From a thread's position to its next one, in the tile.
#define NEXT_PLACE (ROW_Y * TILE_STRIDE_Y * ROW_PLACES + ROW_X * TILE_STRIDE_X)
#define STORED (GROUP_OUTPUTS / SHARES)
#define OUTPUT_STEP (output_step >> (NEIGHBOURS - 1))
// Words of elements of 16 bits of a thread on their way to the tile at once.
#define AHEAD (16 / PAIRED)
// In the input, from an element of a word to the other one.
#define OTHER_Y (ROW_WORDS * ROW_Y * TILE_STRIDE_Y * STEP_Y)
#define OTHER_X (ROW_WORDS * ROW_X * TILE_STRIDE_X * STEP_X)

#if PAIRED == 2
typedef unsigned Place;
__device__ __forceinline__ float half_of(unsigned word, int half) { return widened((Element)(word >> half * 16)); }
#elif NEIGHBOURS == 2
typedef unsigned Place;
__device__ __forceinline__ float half_of(unsigned word, int half) {
    float value;
    asm("cvt.f32.f16 %0,%1;" : "=f"(value) : "h"((unsigned short)(word >> half * 16)));
    return value;
}
#else
typedef float Place;
__device__ __forceinline__ float half_of(float value, int) { return value; }
#endif
#if !WHOLE_WORDS
#define LOAD_ELEMENT(element, source, ok)                                                        \
    asm volatile("{ .reg .pred p; setp.ne.b32 p,%2,0; mov.b16 %0,0; @p " READ ".b16 %0,[%1]; }" \
                 : "=&h"(element) : "l"(source), "r"((int)(ok)));
#endif

__device__ __forceinline__ void copy_16(unsigned target, const void* source) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" :: "r"(target), "l"(source) : "memory");
}

// Channels from `first` on, with zeros around the map.
__device__ __forceinline__ void copy_chunk(unsigned target, const Element* image, int first, int tile_row, int tile_column) {
    const int thread = threadIdx.x, count = min(CHUNK_CHANNELS, CHANNELS - first);
#pragma unroll
    for (int j = 0; j < SLOTS; ++j) {
        const int place = SLOTS > 1 ? thread + j * THREADS : thread % COPIED_PLACES;
        const int y = place * UNIT / ROW_PLACES, x = place * UNIT % ROW_PLACES;
        const int in_y = tile_row * STRIDE_Y - PAD_TOP + y * STEP_Y, in_x = tile_column * STRIDE_X - PAD_LEFT + x * STEP_X;
        const bool present = (unsigned)in_y < HEIGHT && (unsigned)in_x < WIDTH;
        const int bytes = present * 4 * UNIT;
        const int channel = SLOTS > 1 ? 0 : thread / COPIED_PLACES;
        const Element* source = image + (size_t)(first + channel) * CHANNEL_STEP + (present ? in_y * WIDTH + in_x : 0);
#if PAIRED == 2
        const int other_y = in_y + OTHER_Y, other_x = in_x + OTHER_X;
        const bool other_present = (unsigned)other_y < HEIGHT && (unsigned)other_x < WIDTH;
        const Element* other = image + (size_t)(first + channel) * CHANNEL_STEP + (other_present ? other_y * WIDTH + other_x : 0);
#endif
        unsigned to = target + (channel * PLANE + place * UNIT) * 4;
        if (SLOTS > 1 ? place < COPIED_PLACES : channel < CHANNELS_A_TURN) {
#if !WHOLE_WORDS
#pragma unroll 1
            for (int c = channel; c < count; c += AHEAD * CHANNELS_A_TURN) {
                Element held[PAIRED][AHEAD];
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    const int step = i * (CHANNELS_A_TURN * CHANNEL_STEP);
                    const bool in_chunk = c + i * CHANNELS_A_TURN < count;
                    LOAD_ELEMENT(held[0][i], source + step, present && in_chunk)
#if PAIRED == 2
                    LOAD_ELEMENT(held[1][i], other + step, other_present && in_chunk)
#endif
                }
#pragma unroll
                for (int i = 0; i < AHEAD; ++i)
                    if (c + i * CHANNELS_A_TURN < count) {
                        const unsigned there = to + i * (CHANNELS_A_TURN * PLANE * 4);
#if PAIRED == 2
                        const unsigned word = held[0][i] | (unsigned)held[1][i] << 16;
                        asm volatile("st.shared.b32 [%0],%1;" :: "r"(there), "r"(word) : "memory");
#else
                        asm volatile("st.shared.f32 [%0],%1;" :: "r"(there), "f"(widened(held[0][i])) : "memory");
#endif
                    }
                source += AHEAD * CHANNELS_A_TURN * CHANNEL_STEP;
#if PAIRED == 2
                other += AHEAD * CHANNELS_A_TURN * CHANNEL_STEP;
#endif
                to += AHEAD * CHANNELS_A_TURN * PLANE * 4;
            }
#else
#pragma unroll 4
            for (int c = channel; c < count; c += CHANNELS_A_TURN) {
#if UNIT == 4
                asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" :: "r"(to), "l"(source), "r"(bytes) : "memory");
#else
                asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" :: "r"(to), "l"(source), "r"(bytes) : "memory");
#endif
                source += CHANNELS_A_TURN * CHANNEL_STEP;
                to += CHANNELS_A_TURN * PLANE * 4;
            }
#endif
        }
    }
}

// A thread's outputs: its own sums, or those that it adds up of other threads'.
#if SLICES * SHARES == 1
#define OUTPUTS ROWS
#define OUTPUT_CHANNEL(n) (first_output + of_group)
#define OUTPUT_ROW(n) (n)
#define OUTPUT_LANE(n) lane
#define OUTPUT_EXISTS(n) true
#else
#define SUMS_LEFT (STORED * ROWS * LANES)
#define OUTPUTS ((SUMS_LEFT + THREADS - 1) / THREADS)
#define OUTPUT_CHANNEL(n) (first_output + rank * STORED + (thread + (n) * THREADS) / (LANES * ROWS))
#define OUTPUT_ROW(n) ((thread + (n) * THREADS) / LANES % ROWS)
#define OUTPUT_LANE(n) ((thread + (n) * THREADS) % LANES)
#define OUTPUT_EXISTS(n) (thread + (n) * THREADS < SUMS_LEFT)
#endif
#if HAS_RESIDUAL
#undef RESIDUAL_OPERANDS
#if NEIGHBOURS == 2
typedef unsigned Residual;
#undef GET_WORD
#define GET_WORD "mov.b32 {l,h},%5; "
#define RESIDUAL_OPERANDS(offset) , "r"(residuals[n])
#define LOAD_RESIDUAL "mov.b32 %0,0; @p " READ ".b32 %0,[%2]; "
#define RESIDUAL_REGISTER "=&r"
#else
typedef float Residual;
#undef GET_RESIDUAL
#define GET_RESIDUAL "mov.f32 r,%4; "
#define RESIDUAL_OPERANDS(offset) , "f"(residuals[n])
#define RESIDUAL_REGISTER "=&f"
#if DATA_TYPE == FLOAT32
#define LOAD_RESIDUAL "mov.f32 %0,0f00000000; @p " READ ".f32 %0,[%2]; "
#elif DATA_TYPE == FLOAT16
#define LOAD_RESIDUAL "mov.b16 h,0; @p " READ ".b16 h,[%2]; cvt.f32.f16 %0,h; "
#else
#define LOAD_RESIDUAL "mov.b16 h,0; @p " READ ".b16 h,[%2]; mov.b16 z,0; mov.b32 %0,{z,h}; "
#endif
#endif
#endif
#define MULTIPLY_ADD(r, place, bits)                                                                   \
    {                                                                                                  \
        const Place x = *(const Place*)(window + (place) + (r) * (NEXT_PLACE * 4));                    \
        _Pragma("unroll") for (int h = 0; h < NEIGHBOURS * PAIRED; ++h)                                \
            sums[h * ROW_WORDS + (r)] =                                                                \
                fmaf(half_of(x, h), __uint_as_float(bits), sums[h * ROW_WORDS + (r)]);                 \
    }
// Where output n lies in its image, and whether there is one.
#define LOCATE(n)                                                                                              \
    const int channel = OUTPUT_CHANNEL(n), at = OUTPUT_LANE(n);                                                 \
    const int out_y = tile_row + OUTPUT_ROW(n) * ROW_Y + at / TILE_WIDTH;                                      \
    const int out_x = tile_column + OUTPUT_ROW(n) * ROW_X + at % TILE_WIDTH;                                   \
    const long long place = (long long)channel * OUTPUT_PLANE + out_y * OUTPUT_WIDTH + out_x;                  \
    const bool is_output = OUTPUT_EXISTS(n) && at < TILE_WIDTH * TILE_HEIGHT && channel < OUTPUT_CHANNELS &&           \
                           out_y < OUTPUT_HEIGHT && out_x < OUTPUT_WIDTH;

#if SHARES > 1
#define CLUSTERED __cluster_dims__(1, 1, SHARES)
#else
#define CLUSTERED
#endif

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS) tabled_conv2d(PARAMETERS, int output_step) {
    extern __shared__ __align__(16) float tile[];
    LAUNCH_DEPENDENTS;
    const int thread = threadIdx.x, lane = thread % LANES;
    const int of_group = thread / LANES % GROUP_OUTPUTS, slice = thread / GROUP_THREADS;
    const int rank = blockIdx.z % SHARES, first_output = blockIdx.z / SHARES * GROUP_OUTPUTS;
    const bool exists = first_output + of_group < OUTPUT_CHANNELS;
    const int tile_column = blockIdx.x % TILES_X * TILE_COLUMNS, tile_row = blockIdx.x / TILES_X * TILE_ROWS;
    const unsigned tile_address = __cvta_generic_to_shared(tile);
    const Element* image = input + (size_t)blockIdx.y * IMAGE_ELEMENTS;
    const unsigned* table;
    asm volatile("mov.u64 %0,0; // farm.table" : "=l"(table));
    const uint4* units = (const uint4*)(table + HEAD_WORDS);
    const unsigned* starts = table + ((exists ? first_output + of_group : 0) * SHARES + rank) * CHUNKS;
    const unsigned turns = (__ldg(table + MOST_WORD) + SLICES * BUFFER_UNITS - 1) / (SLICES * BUFFER_UNITS);
    // Each LANES threads have a buffer for units behind the tile.
    const int buffer_word = TILE_WORDS + thread / LANES * BUFFER_WORDS;
    const uint4* buffer = (const uint4*)(tile + buffer_word);
    const int position = lane < TILE_WIDTH * TILE_HEIGHT ? lane : 0;
    const int row = position / TILE_WIDTH, column = position % TILE_WIDTH;
    const char* window = (const char*)(tile + row * TILE_STRIDE_Y * ROW_PLACES + column * TILE_STRIDE_X);
    float sums[NEIGHBOURS * ROWS] = {}, biases[OUTPUTS];
#pragma unroll
    for (int n = 0; n < OUTPUTS; ++n) {
        const unsigned* bias = table + BIAS_WORD + min(OUTPUT_CHANNEL(n), OUTPUT_CHANNELS - 1);
        asm volatile("ld.global.nc.f32 %0,[%1];" : "=f"(biases[n]) : "l"(bias));
    }
#if HAS_RESIDUAL
    Residual residuals[OUTPUTS];
#endif
    for (int n = thread; n < ZEROS; n += THREADS) tile[CHUNK_CHANNELS * PLANE + n] = 0.f;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        if (chunk) __syncthreads();
        const unsigned begin = __ldg(starts + chunk), count = exists ? __ldg(starts + chunk + 1) - begin : 0;
        unsigned unit = begin + count * slice / SLICES;
        const unsigned end = begin + count * (slice + 1) / SLICES;
#pragma unroll 1
        for (unsigned turn = 0; turn < turns; ++turn) {
            if (turn) __syncthreads();
            const int here = min(end - unit, BUFFER_UNITS);
            for (int i = lane; i < 2 * here; i += LANES)
                copy_16(tile_address + buffer_word * 4 + i * 16, units + 2 * (size_t)unit + i);
            if (turn == 0) {
                if (chunk == 0) WAIT_FOR_PRIOR_KERNEL;
                copy_chunk(tile_address, image, (rank * CHUNKS + chunk) * CHUNK_CHANNELS, tile_row, tile_column);
#if HAS_RESIDUAL
                if (chunk == 0) {
#pragma unroll
                    for (int n = 0; n < OUTPUTS; ++n) {
                        LOCATE(n)
                        const Element* residual = added + (size_t)blockIdx.y * (OUTPUT_CHANNELS * OUTPUT_PLANE) + place;
                        asm volatile("{ .reg .pred p; .reg .b16 h,z; setp.ne.b32 p,%1,0; " LOAD_RESIDUAL "}"
                                     : RESIDUAL_REGISTER(residuals[n]) : "r"((int)is_output), "l"(residual) : "memory");
                    }
                }
#endif
            }
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
#pragma unroll 2
            for (int i = 0; i < here; ++i) {
                const uint4 pairs[2] = {buffer[2 * i], buffer[2 * i + 1]};
#pragma unroll
                for (int j = 0; j < 2; ++j) {
#pragma unroll
                    for (int r = 0; r < ROW_WORDS; ++r) MULTIPLY_ADD(r, pairs[j].y, pairs[j].x)
#pragma unroll
                    for (int r = 0; r < ROW_WORDS; ++r) MULTIPLY_ADD(r, pairs[j].w, pairs[j].z)
                }
            }
            unit += here;
        }
    }

#if SLICES * SHARES > 1
    // The sums take the tile's memory: [half][slice][output channel][row][lane].
    __syncthreads();
#pragma unroll
    for (int h = 0; h < NEIGHBOURS; ++h)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            tile[h * (THREADS * ROWS) + (thread / LANES * ROWS + r) * LANES + lane] = sums[h * ROWS + r];
#if SHARES > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
#endif
#pragma unroll
    for (int n = 0; n < OUTPUTS; ++n) {
        float total[NEIGHBOURS];
#pragma unroll
        for (int h = 0; h < NEIGHBOURS; ++h) {
#if SLICES * SHARES == 1
            total[h] = sums[h * ROWS + n];
#else
            const int index = h * (THREADS * ROWS) + rank * SUMS_LEFT + min(thread + n * THREADS, SUMS_LEFT - 1);
            total[h] = 0.f;
#pragma unroll
            for (int g = 0; g < SHARES; ++g) {
#if SHARES > 1
                unsigned there;
                asm volatile("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(there) : "r"(tile_address + index * 4), "r"(g));
#endif
#pragma unroll
                for (int s = 0; s < SLICES; ++s) {
                    float share;
#if SHARES > 1
                    asm volatile("ld.shared::cluster.f32 %0,[%1];"
                                 : "=f"(share) : "r"(there + s * (GROUP_THREADS * ROWS * 4)) : "memory");
#else
                    share = tile[s * (GROUP_THREADS * ROWS) + index];
#endif
                    total[h] = g + s == 0 ? share : total[h] + share;
                }
            }
#endif
        }
        LOCATE(n)
        Element* out[] = {output + (long long)blockIdx.y * OUTPUT_STEP + place};
#if NEIGHBOURS == 2
        FINISH_WORD(total[0] + biases[n], total[1] + biases[n], 0, is_output, 0);
#else
        FINISH(total[0] + biases[n], 0, is_output, 0, 0);
#endif
    }
#if SHARES > 1
    // Until the others have read its sums, a block's shared memory must stay.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
