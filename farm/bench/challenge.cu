// What the sparse DNN challenge takes beside the layers' own kernels, and an index kernel to compare them with.
//
// Columns are rows of the batch, in tiles: element [neuron][column] of tile t lies at (t * NEURONS + neuron) * WIDTH + column.
// WIDTH, NEURONS and CLIP are given on the command line.
#define LISTERS 1024

// After a layer: which of its `count` columns have an output. `places[i]` becomes the column that is the i-th of those,
// `*left` how many there are, and `kept` the names of those in `names`. The marks are zero again. One block.
extern "C" __global__ void __launch_bounds__(LISTERS) list_columns(const int* count, unsigned char* marks, int* places,
                                                                  int* left, const int* names, int* kept) {
    __shared__ int of_warp[32];
    const int columns = *count, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int share = (columns + LISTERS * 16 - 1) / (LISTERS * 16) * 16;
    const int begin = min(columns, (int)threadIdx.x * share), end = min(columns, begin + share);
    int found = 0;
    for (int i = begin; i < end; i += 16) {
        const uint4 word = *(const uint4*)(marks + i);
        found += __popc(word.x) + __popc(word.y) + __popc(word.z) + __popc(word.w);
    }
    int before = found;
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(~0u, before, distance);
        if (lane >= distance) before += other;
    }
    if (lane == 31) of_warp[warp] = before;
    __syncthreads();
    if (warp == 0) {
        int sum = of_warp[lane];
        for (int distance = 1; distance < 32; distance *= 2) {
            const int other = __shfl_up_sync(~0u, sum, distance);
            if (lane >= distance) sum += other;
        }
        of_warp[lane] = sum;
    }
    __syncthreads();
    int next = before - found + (warp ? of_warp[warp - 1] : 0);
    for (int i = begin; i < end; i += 16) {
        uint4* const word = (uint4*)(marks + i);
        const uint4 each = *word;
        const unsigned char* bytes = (const unsigned char*)&each;
        *word = make_uint4(0, 0, 0, 0);
        for (int j = 0; j < 16; ++j)
            if (bytes[j]) {
                places[next] = i + j;
                kept[next++] = names[i + j];
            }
    }
    if (threadIdx.x == 0) *left = of_warp[31];
}

// A layer by its indices, under the same launches as the compiled ones: a block has a group of GROUP outputs, whose
// inputs and weights [input][output] it keeps in shared memory, and goes over the columns.
extern "C" __global__ void __launch_bounds__(256) index_layer(const float* __restrict__ input, float* __restrict__ output,
                                                             const int* __restrict__ count, const int* __restrict__ places,
                                                             unsigned char* __restrict__ marks, const int* __restrict__ first,
                                                             const int* __restrict__ inputs, const float4* __restrict__ weights,
                                                             const float* __restrict__ biases) {
    extern __shared__ float4 held[];
    const int group = blockIdx.z, begin = first[group], entries = first[group + 1] - begin;
    int* const offsets = (int*)(held + entries * (GROUP / 4));
    for (int i = threadIdx.x; i < entries * (GROUP / 4); i += 256) held[i] = weights[begin * (GROUP / 4) + i];
    for (int i = threadIdx.x; i < entries; i += 256) offsets[i] = inputs[begin + i] * WIDTH;
    __syncthreads();
    const int columns = *count;
    for (int column = blockIdx.x * 256 + threadIdx.x; column < columns; column += gridDim.x * 256) {
        const int place = places ? places[column] : column;
        const float* const in = input + (size_t)(place / WIDTH) * (NEURONS * WIDTH) + place % WIDTH;
        float sum[GROUP];
#pragma unroll
        for (int k = 0; k < GROUP; ++k) sum[k] = biases[group * GROUP + k];
#pragma unroll 8
        for (int e = 0; e < entries; ++e) {
            const float x = in[offsets[e]];
#pragma unroll
            for (int k = 0; k < GROUP / 4; ++k) {
                const float4 w = held[e * (GROUP / 4) + k];
                sum[4 * k] = fmaf(x, w.x, sum[4 * k]);
                sum[4 * k + 1] = fmaf(x, w.y, sum[4 * k + 1]);
                sum[4 * k + 2] = fmaf(x, w.z, sum[4 * k + 2]);
                sum[4 * k + 3] = fmaf(x, w.w, sum[4 * k + 3]);
            }
        }
        float* const out = output + (size_t)(column / WIDTH) * (NEURONS * WIDTH) + group * (GROUP * WIDTH) + column % WIDTH;
        unsigned any = 0;
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const float value = fminf(fmaxf(sum[k], 0.f), CLIP);
            out[k * WIDTH] = value;
            any |= __float_as_uint(value);
        }
        if (any) marks[column] = 1;
    }
}

// The same for a pattern whose groups share few inputs: every output has EDGES inputs and weights of its own.
extern "C" __global__ void __launch_bounds__(256) index_edges(const float* __restrict__ input, float* __restrict__ output,
                                                             const int* __restrict__ count, const int* __restrict__ places,
                                                             unsigned char* __restrict__ marks, const int* __restrict__ first,
                                                             const int* __restrict__ inputs, const float* __restrict__ weights,
                                                             const float* __restrict__ biases) {
    extern __shared__ float2 edges[];
    const int group = blockIdx.z, begin = first[group * GROUP];
    const int entries = first[(group + 1) * GROUP] - begin;
    for (int i = threadIdx.x; i < entries; i += 256)
        edges[i] = make_float2(__int_as_float(inputs[begin + i] * WIDTH), weights[begin + i]);
    __syncthreads();
    const int columns = *count;
    for (int column = blockIdx.x * 256 + threadIdx.x; column < columns; column += gridDim.x * 256) {
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
