// Fully connected layer for a few rows of a batch with its weights in a table beside the code.
//
// Each weight is used once for each row then. As an immediate it is 16 bytes of code, which a GPU fetches at an eighth of
// the rate of data; in the table it is its value and its column, 6 bytes, or 4 of 16-bit types. The code that reads
// them is the same for every checkpoint: the rewriter puts in nothing but the table (`farm.table`).
//
// A warp computes one output of IMAGES rows: blockIdx.x = rows, blockIdx.z = outputs. The inputs pass through shared
// memory in chunks of CHUNK_CHANNELS columns, the rows of an input side by side, two of 16-bit types in a word. The
// table: where the units of each output and chunk begin, the biases, then the units, 128 non-zeros each, four for each
// lane: as the lanes find them, so that a load of all lanes is in one piece. Lanes without a weight have column
// CHUNK_CHANNELS, whose inputs are zero.
#include "parameters.h"
#define THREADS TILE_WIDTH
#define WARPS GROUP_OUTPUTS
#define IMAGE_OUTPUTS 0
#include "no_copies.cuh"
#include "memory.cuh"
#include "widening.cuh"

#define LANES 32
#define LOAD_ONCE "ld.global.nc.L1::no_allocate"
// Not by ld.global.nc where the kernel waits, as in memory.cuh.
#if WAITS
#define INPUT(address) __ldcg(address)
#else
#define INPUT(address) __ldg(address)
#endif

#if DATA_TYPE == FLOAT32
typedef uint4 Quad;
#define UNIT_QUADS 48
#else
typedef uint2 Quad;
#define UNIT_QUADS 32
#endif
#if PACKED_ROWS == 2
typedef unsigned Word;
#else
typedef float Word;
#endif
#define ROW_WORDS (IMAGES / PACKED_ROWS)
// The rows of a column: one access to shared memory.
struct __align__(4 * ROW_WORDS) Rows {
    Word words[ROW_WORDS];
};

__device__ __forceinline__ float row_of(Word word, int h) {
#if PACKED_ROWS == 2
    return widened((Element)(word >> h * 16));
#else
    return word;
#endif
}

// Four weights of a lane.
struct Weights {
    float values[4];
    unsigned columns[2];

    __device__ __forceinline__ void load(const uint4* unit, int lane) {
        uint4 quad;
        asm volatile(LOAD_ONCE ".v4.u32 {%0,%1,%2,%3},[%4];"
                     : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w) : "l"(unit + lane));
#if DATA_TYPE == FLOAT32
        values[0] = __uint_as_float(quad.x), values[1] = __uint_as_float(quad.y);
        values[2] = __uint_as_float(quad.z), values[3] = __uint_as_float(quad.w);
        asm volatile(LOAD_ONCE ".v2.u32 {%0,%1},[%2];"
                     : "=r"(columns[0]), "=r"(columns[1]) : "l"((const uint2*)(unit + LANES) + lane));
#else
        values[0] = widened(quad.x & 0xFFFF), values[1] = widened(quad.x >> 16);
        values[2] = widened(quad.y & 0xFFFF), values[3] = widened(quad.y >> 16);
        columns[0] = quad.z, columns[1] = quad.w;
#endif
    }
    __device__ __forceinline__ void multiply(float (&sums)[IMAGES], const Rows* inputs) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Rows rows = inputs[columns[i / 2] >> i % 2 * 16 & 0xFFFF];
#pragma unroll
            for (int n = 0; n < IMAGES; ++n)
                sums[n] = fmaf(row_of(rows.words[n / PACKED_ROWS], n % PACKED_ROWS), values[i], sums[n]);
        }
    }
};

// The value of the lane whose number differs by these bits: the sum of both is the same for both.
__device__ __forceinline__ float of_other_lane(float value, int bits) {
    float other;
    asm volatile("shfl.sync.bfly.b32 %0,%1,%2,31,-1;" : "=f"(other) : "f"(value), "r"(bits));
    return other;
}

// The inputs of a chunk from column `first` on, of the rows from `image` on; rows beyond the batch are zero.
__device__ __forceinline__ void copy(Rows* inputs, const Element* input, int first, int image, int images, int thread) {
    const int count = min(CHUNK_CHANNELS, CHANNELS - first);
    const Element* source = input + (size_t)image * CHANNELS + first;
#if IMAGES == 1 && UNIT == 4 && DATA_TYPE == FLOAT32 && ASYNCHRONOUS
    const unsigned target = __cvta_generic_to_shared(inputs);
    for (int column = thread * 4; column < count; column += THREADS * 4)
        asm volatile("cp.async.cg.shared.global [%0],[%1],16;" :: "r"(target + column * 4), "l"(source + column) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
#elif IMAGES == 1 && UNIT == 4
#pragma unroll 4
    for (int column = thread * 4; column < count; column += THREADS * 4) {
        const Quad quad = INPUT((const Quad*)(source + column));
        const Element* elements = (const Element*)&quad;
#pragma unroll
        for (int i = 0; i < 4; ++i) inputs[column + i].words[0] = widened(elements[i]);
    }
#else
    // A thread has all rows of a column, so that neighbours write next to each other.
#pragma unroll 2
    for (int column = thread; column < count; column += THREADS) {
        Element elements[IMAGES];
#pragma unroll
        for (int n = 0; n < IMAGES; ++n)
            elements[n] = image + n < images ? INPUT(source + n * CHANNELS + column) : Element(0);
        Rows rows;
#pragma unroll
        for (int w = 0; w < ROW_WORDS; ++w)
#if PACKED_ROWS == 2
            rows.words[w] = elements[2 * w] | (unsigned)elements[2 * w + 1] << 16;
#else
            rows.words[w] = widened(elements[w]);
#endif
        inputs[column] = rows;
    }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) tabled(PARAMETERS) {
    extern __shared__ __align__(16) Rows inputs[];
    const int thread = threadIdx.x, lane = thread % LANES;
    const int channel = blockIdx.z * WARPS + thread / LANES, image = blockIdx.x * IMAGES;
    const bool exists = channel < OUTPUT_CHANNELS;
    const unsigned* table;
    asm volatile("mov.u64 %0,0; // farm.table" : "=l"(table));
    const unsigned* starts = table + (exists ? channel : OUTPUT_CHANNELS) * CHUNKS;
    const uint4* units = (const uint4*)(table + HEAD_WORDS);
    unsigned unit = __ldg(starts), end = __ldg(starts + exists);
    const float bias = __uint_as_float(__ldg(table + BIAS_WORD + min(channel, OUTPUT_CHANNELS - 1)));
    Weights held[AHEAD];
    float sums[IMAGES] = {};
// A warp's units follow each other: the first of a chunk are on their way before its inputs are there.
#define LOAD_AHEAD                     \
    _Pragma("unroll")                  \
    for (int u = 0; u < AHEAD; ++u)    \
        if (unit + u < end) held[u].load(units + (size_t)(unit + u) * UNIT_QUADS, lane);
    LOAD_AHEAD
    if (thread == 0) inputs[CHUNK_CHANNELS] = Rows{};
    WAIT_FOR_PRIOR_KERNEL;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        if (chunk) __syncthreads();
        copy(inputs, input, chunk * CHUNK_CHANNELS, image, images, thread);
        const unsigned next = CHUNKS > 1 && exists && chunk + 1 < CHUNKS ? __ldg(starts + chunk + 2) : end;
        __syncthreads();
#pragma unroll 1
        while (unit < end) {
#pragma unroll
            for (int u = 0; u < AHEAD; ++u)
                if (unit + u < end) held[u].multiply(sums, inputs);
            unit += AHEAD;
            LOAD_AHEAD
        }
        unit = end;
        end = next;
        if (CHUNKS > 1) LOAD_AHEAD
    }
    LAUNCH_DEPENDENTS;
    float value = 0.f;
#pragma unroll
    for (int n = 0; n < IMAGES; ++n) {
#pragma unroll
        for (int step = LANES / 2; step; step /= 2) sums[n] += of_other_lane(sums[n], step);
        if (lane == n) value = sums[n];
    }
    value += bias;
    const size_t place = (size_t)(image + lane) * OUTPUT_CHANNELS + channel;
    Element* out[] = {output + place};
#if HAS_RESIDUAL
    const Element* residual = added + place;
#endif
    FINISH(value, 0, lane < IMAGES && exists && image + lane < images, 0, 0);
}
