// What the sparse DNN challenge takes beside the layers' own kernels, and an index kernel to compare them with.
//
// Columns are rows of the batch, in tiles: element [neuron][column] of tile t lies at (t * NEURONS + neuron) * WIDTH + column.
// WIDTH, NEURONS and CLIP are given on the command line.
#define LISTERS 1024
#define LISTED 4  // columns of a thread of list_columns: the bytes of a word
#define COUNTED 16  // marks that a thread counts at once: the bytes of a uint4

// Each mark is a byte of 0 or 1.
__device__ int marked(unsigned word) { return word * 0x01010101u >> 24; }
__device__ int marked(uint4 words) { return marked(words.x) + marked(words.y) + marked(words.z) + marked(words.w); }

// After a layer: which of its `count` columns have an output. `places[i]` becomes the column that is the i-th of those,
// `*left` how many there are, and `kept` the names of those in `names`. `others`, the marks of the next layer, are made
// zero; beyond `count` there may be marks of earlier layers. A block lists LISTERS * LISTED columns, and counts those before.
extern "C" __global__ void __launch_bounds__(LISTERS) list_columns(const int* __restrict__ count,
                                                                  const unsigned char* __restrict__ marks,
                                                                  unsigned char* __restrict__ others,
                                                                  int* __restrict__ places, int* __restrict__ left,
                                                                  const int* __restrict__ names, int* __restrict__ kept) {
    __shared__ unsigned long long sums[LISTERS];
    const int columns = *count, first = blockIdx.x * (LISTERS * LISTED), begin = first + threadIdx.x * LISTED;
    int earlier = 0;
    for (int i = threadIdx.x * COUNTED; i < first; i += 4 * LISTERS * COUNTED) {
#pragma unroll
        for (int j = i; j < i + 4 * LISTERS * COUNTED; j += LISTERS * COUNTED)
            if (j < first) earlier += marked(*(const uint4*)(marks + j));
    }
    if (first && first >= columns) return;
    const int inside = columns - begin;
    unsigned here = 0;
    int4 name = {};
    if (inside > 0) {
        const unsigned word = *(const unsigned*)(marks + begin);
        here = inside < LISTED ? word & (1u << 8 * inside) - 1 : word;
        name = *(const int4*)(names + begin);
        *(unsigned*)(others + begin) = 0;
    }
    const int found = marked(here);
    // Sums over the threads up to each: of what is before the block above, of what is in it below.
    unsigned long long sum = (unsigned long long)earlier << 32 | found;
    for (int distance = 1; distance < LISTERS; distance *= 2) {
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x >= distance) sum += sums[threadIdx.x - distance];
        __syncthreads();
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    const unsigned long long all = sums[LISTERS - 1];
    int next = (int)(all >> 32) + (int)sum - found;
    const int held[LISTED] = {name.x, name.y, name.z, name.w};
#pragma unroll
    for (int i = 0; i < LISTED; ++i)
        if (here >> i * 8 & 1) {
            places[next] = begin + i;
            kept[next++] = held[i];
        }
    if (threadIdx.x == 0 && first + LISTERS * LISTED >= columns) *left = (int)(all >> 32) + (int)all;
}

// The columns of a thread: those of neighbouring warps in different blocks, so that few columns keep all blocks busy.
#define FIRST_COLUMN ((threadIdx.x / 32 * gridDim.x + blockIdx.x) * 32 + threadIdx.x % 32)

// From compute_90 on a layer may be launched before the one ahead of it has ended, and lets the next one in as early.
#if __CUDA_ARCH__ >= 900
#define LET_THE_NEXT_IN asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define WAIT_FOR_THE_LAST asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define LET_THE_NEXT_IN
#define WAIT_FOR_THE_LAST
#endif

// An input times its weights of a group's outputs.
__device__ __forceinline__ void add_products(float (&sum)[GROUP], float x, const float4* weights) {
#pragma unroll
    for (int k = 0; k < GROUP / 4; ++k) {
        const float4 w = weights[k];
        sum[4 * k] = fmaf(x, w.x, sum[4 * k]);
        sum[4 * k + 1] = fmaf(x, w.y, sum[4 * k + 1]);
        sum[4 * k + 2] = fmaf(x, w.z, sum[4 * k + 2]);
        sum[4 * k + 3] = fmaf(x, w.w, sum[4 * k + 3]);
    }
}

// Stores a group's outputs of a column; whether one of them is not zero.
__device__ __forceinline__ bool store_clipped(const float (&sum)[GROUP], float* out) {
    unsigned any = 0;
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
        const float value = fminf(fmaxf(sum[k], 0.f), CLIP);
        out[k * WIDTH] = value;
        any |= __float_as_uint(value);
    }
    return any;
}

// A layer by its indices, under the same launches as the compiled ones: a block has a group of GROUP outputs, whose
// inputs and weights [input][output] it keeps in shared memory, and goes over the columns.
extern "C" __global__ void __launch_bounds__(256) index_layer(const float* __restrict__ input, float* __restrict__ output,
                                                             const int* __restrict__ count, const int* __restrict__ places,
                                                             unsigned char* __restrict__ marks, const int* __restrict__ first,
                                                             const int* __restrict__ inputs, const float4* __restrict__ weights,
                                                             const float* __restrict__ biases) {
    extern __shared__ float4 held[];
    LET_THE_NEXT_IN;
    const int group = blockIdx.z, begin = first[group], entries = first[group + 1] - begin;
    int* const offsets = (int*)(held + entries * (GROUP / 4));
    for (int i = threadIdx.x; i < entries * (GROUP / 4); i += 256) held[i] = weights[begin * (GROUP / 4) + i];
    for (int i = threadIdx.x; i < entries; i += 256) offsets[i] = inputs[begin + i] * WIDTH;
    __syncthreads();
    WAIT_FOR_THE_LAST;
    const int columns = *(const volatile int*)count;
    for (int column = FIRST_COLUMN; column < columns; column += gridDim.x * 256) {
        const int place = places ? places[column] : column;
        const float* const in = input + (size_t)(place / WIDTH) * (NEURONS * WIDTH) + place % WIDTH;
        float sum[GROUP];
#pragma unroll
        for (int k = 0; k < GROUP; ++k) sum[k] = biases[group * GROUP + k];
#pragma unroll 8
        for (int e = 0; e < entries; ++e) {
            add_products(sum, in[offsets[e]], held + e * (GROUP / 4));
        }
        float* const out = output + (size_t)(column / WIDTH) * (NEURONS * WIDTH) + group * (GROUP * WIDTH) + column % WIDTH;
        if (store_clipped(sum, out)) marks[column] = 1;
    }
}

// The same for a pattern whose groups share few inputs: every output has EDGES inputs and weights of its own.
extern "C" __global__ void __launch_bounds__(256) index_edges(const float* __restrict__ input, float* __restrict__ output,
                                                             const int* __restrict__ count, const int* __restrict__ places,
                                                             unsigned char* __restrict__ marks, const int* __restrict__ first,
                                                             const int* __restrict__ inputs, const float* __restrict__ weights,
                                                             const float* __restrict__ biases) {
    extern __shared__ float2 edges[];
    LET_THE_NEXT_IN;
    const int group = blockIdx.z, begin = first[group * GROUP];
    const int entries = first[(group + 1) * GROUP] - begin;
    for (int i = threadIdx.x; i < entries; i += 256)
        edges[i] = make_float2(__int_as_float(inputs[begin + i] * WIDTH), weights[begin + i]);
    __syncthreads();
    WAIT_FOR_THE_LAST;
    const int columns = *(const volatile int*)count;
    for (int column = FIRST_COLUMN; column < columns; column += gridDim.x * 256) {
        const int place = places ? places[column] : column;
        const float* const in = input + (size_t)(place / WIDTH) * (NEURONS * WIDTH) + place % WIDTH;
        float* const out = output + (size_t)(column / WIDTH) * (NEURONS * WIDTH) + group * (GROUP * WIDTH) + column % WIDTH;
        unsigned any = 0;
        for (int k = 0; k < GROUP; ++k) {
            float sum = biases[group * GROUP + k];
            const int last = first[group * GROUP + k + 1] - begin;
#pragma unroll 8
            for (int e = first[group * GROUP + k] - begin; e < last; ++e)
                sum = fmaf(in[__float_as_int(edges[e].x)], edges[e].y, sum);
            const float value = fminf(fmaxf(sum, 0.f), CLIP);
            out[k * WIDTH] = value;
            any |= __float_as_uint(value);
        }
        if (any) marks[column] = 1;
    }
}

// Where a layer's tables are.
struct Tables {
    const int* first;
    const int* inputs;
    const float4* weights;
    const float* biases;
};

// index_layer for layers that follow one another, under the same launch as compiled ones: a block has a group of outputs
// of all layers and a tile of the columns, which goes on once all groups have done it, as `done` counts, CHAINED apart.
// The first layer reads `input` and writes `output`, the second reads that and writes `spare`, and these two take turns;
// only the last one marks. A thread has two columns, so that weights from shared memory serve both.
// Of `kept` layers number `first_layer` is the first; number `again` follows the last. All blocks must run at once.
#define CHAINED 32
extern "C" __global__ void __launch_bounds__(256, 2) index_chain(const float* input, float* output,
                                                                const int* __restrict__ count, const int* __restrict__ places,
                                                                unsigned char* __restrict__ marks, float* spare,
                                                                unsigned* done, int first_layer, int layers, int again,
                                                                int kept, int most, const Tables* __restrict__ tables) {
    extern __shared__ float4 held[];
    const int group = blockIdx.z, columns = *count, of_layer = most * (GROUP / 4);
    int* const offsets = (int*)(held + 2 * of_layer);
    done += blockIdx.x * CHAINED;
    int entries, following = 0;
    const auto fill = [&](int number, int half) {
        const Tables& of = tables[number];
        const int begin = of.first[group];
        following = of.first[group + 1] - begin;
        for (int i = threadIdx.x; i < following * (GROUP / 4); i += 256) held[half * of_layer + i] = of.weights[begin * (GROUP / 4) + i];
        for (int i = threadIdx.x; i < following; i += 256) offsets[half * most + i] = of.inputs[begin + i] * WIDTH;
    };
    fill(first_layer, 0);
    for (int layer = 0, number = first_layer; layer < layers; ++layer) {
        entries = following;
        if (layer && threadIdx.x == 0) {
            unsigned seen;
            do asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(seen) : "l"(done) : "memory");
            while (seen < layer * (NEURONS / GROUP));
        }
        __syncthreads();
        const float4* const weights = held + layer % 2 * of_layer;
        const int* const from = offsets + layer % 2 * most;
        const float* const biases = tables[number].biases + group * GROUP;
        const int step = gridDim.x * 256;
        for (int column = FIRST_COLUMN; column < columns; column += 2 * step) {
            const int both[] = {column, column + step};
            const float* in[2];
            float sum[2][GROUP];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int at = both[c] < columns ? both[c] : column, place = places ? places[at] : at;
                in[c] = input + (size_t)(place / WIDTH) * (NEURONS * WIDTH) + place % WIDTH;
#pragma unroll
                for (int k = 0; k < GROUP; ++k) sum[c][k] = biases[k];
            }
#pragma unroll 8
            for (int e = 0; e < entries; ++e) {
                const float x = __ldcg(in[0] + from[e]), y = __ldcg(in[1] + from[e]);
                add_products(sum[0], x, weights + e * (GROUP / 4));
                add_products(sum[1], y, weights + e * (GROUP / 4));
            }
#pragma unroll
            for (int c = 0; c < 2; ++c)
                if (both[c] < columns) {
                    const int tile = both[c] / WIDTH;
                    float* const out = output + (size_t)tile * (NEURONS * WIDTH) + group * (GROUP * WIDTH) + both[c] % WIDTH;
                    const bool any = store_clipped(sum[c], out);
                    if (any && layer + 1 == layers) marks[both[c]] = 1;
                }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            asm volatile("red.relaxed.gpu.global.add.u32 [%0],1;" :: "l"(done) : "memory");
        }
        number = number + 1 < kept ? number + 1 : again;
        if (layer + 1 < layers) fill(number, (layer + 1) % 2);
        input = output;
        output = spare;
        spare = (float*)input;
        places = nullptr;
    }
}

// What follows a product of cuSPARSE, [NEURONS][columns]: bias, clip, marks, in place.
extern "C" __global__ void __launch_bounds__(256) finish(float* values, const float* __restrict__ biases,
                                                        unsigned char* marks, int columns) {
    const int column = blockIdx.x * 256 + threadIdx.x;
    if (column >= columns) return;
    unsigned any = 0;
#pragma unroll 8
    for (int neuron = blockIdx.y * 32; neuron < blockIdx.y * 32 + 32; ++neuron) {
        float* const at = values + (size_t)neuron * columns + column;
        const float value = fminf(fmaxf(*at + biases[neuron], 0.f), CLIP);
        *at = value;
        any |= __float_as_uint(value);
    }
    if (any) marks[column] = 1;
}

// And the columns that are left, side by side: `columns` of them out of `of`.
extern "C" __global__ void __launch_bounds__(256) gather(const float* __restrict__ values, float* __restrict__ chosen,
                                                        const int* __restrict__ places, int of, int columns) {
    const int column = blockIdx.x * 256 + threadIdx.x;
    if (column >= columns) return;
    const int place = places[column];
#pragma unroll 8
    for (int neuron = blockIdx.y * 32; neuron < blockIdx.y * 32 + 32; ++neuron)
        chosen[(size_t)neuron * columns + column] = values[(size_t)neuron * of + place];
}
