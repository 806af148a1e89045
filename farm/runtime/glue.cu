// Glue kernels, for the operators between compiled layers: pooling, activations, sums, copies, dense layers.
//
// glue.ptx is this file compiled for the oldest GPUs by `nvcc -ptx -O3 -std=c++17 -arch=compute_75`; the driver compiles
// it for the present GPU. All arithmetic is in float32, whatever the type of the elements. Sizes and strides are those
// of one image, in elements. A kernel with an argument `blocks` has that many blocks for each image, in the order of
// the images, and one thread for each output. No header is included, so that nvcc alone compiles this file.

struct Half {
    unsigned short bits;
};
struct Brain {
    unsigned short bits;
};

__device__ __forceinline__ float get(const float* p) { return *p; }
__device__ __forceinline__ float get(const Half* p) {
    float value;
    asm("cvt.f32.f16 %0,%1;" : "=f"(value) : "h"(p->bits));
    return value;
}
__device__ __forceinline__ float get(const Brain* p) { return __uint_as_float((unsigned)p->bits << 16); }

__device__ __forceinline__ void put(float* p, float value) { *p = value; }
__device__ __forceinline__ void put(Half* p, float value) {
    asm("cvt.rn.f16.f32 %0,%1;" : "=h"(p->bits) : "f"(value));
}
__device__ __forceinline__ void put(Brain* p, float value) {
    const unsigned bits = __float_as_uint(value);  // to nearest, ties to even
    p->bits = value != value ? (bits >> 16) | 64 : (bits + 32767 + ((bits >> 16) & 1)) >> 16;
}

#define OF_EACH_IMAGE(blocks, count)                                                     \
    const unsigned image = blockIdx.x / blocks;                                          \
    const unsigned i = (blockIdx.x - image * blocks) * blockDim.x + threadIdx.x;         \
    if (i >= count) return;

// The sum or the maximum of one value of every thread of the block, returned to all threads.
#define THREADS 128
template <bool LARGEST>
__device__ __forceinline__ float together(float value) {
    __shared__ float values[THREADS];
    __syncthreads();  // the values of the call before are read
    values[threadIdx.x] = value;
    __syncthreads();
#pragma unroll 1
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            const float other = values[threadIdx.x + half], mine = values[threadIdx.x];
            values[threadIdx.x] = LARGEST ? (other > mine || other != other ? other : mine) : mine + other;
        }
        __syncthreads();
    }
    return values[0];
}

// The largest of a window whose size the compiler knows, so that all loads are in flight at once. For max pools that
// `pool_stride_two` cannot compute: other strides, as in Inception, and widths not divisible by eight, as VGG's last.
template <int SIZE, typename E>
__device__ __forceinline__ float largest_of(const E* plane, int y0, int x0, int height, int width) {
    float result = __uint_as_float(0xff800000);
#pragma unroll
    for (int wy = 0; wy < SIZE; wy++)
#pragma unroll
        for (int wx = 0; wx < SIZE; wx++) {
            const int y = y0 + wy, x = x0 + wx;
            if (y < 0 || y >= height || x < 0 || x >= width) continue;
            const float value = get(plane + y * width + x);
            result = value > result || value != value ? value : result;
        }
    return result;
}

template <typename E, bool LARGEST>
__device__ __forceinline__ void pool(
    const E* input, E* output, unsigned blocks, unsigned channels, int height, int width, int out_height,
    int out_width, int window_height, int window_width, int stride_y, int stride_x, int top, int left, int bottom,
    int right, int dilation_y, int dilation_x, int counts_padding) {
    OF_EACH_IMAGE(blocks, channels * out_height * out_width)
    const unsigned channel = i / (out_height * out_width);
    const int place = i - channel * out_height * out_width, row = place / out_width, column = place - row * out_width;
    const int y0 = row * stride_y - top, x0 = column * stride_x - left;
    const E* const plane = input + ((size_t)image * channels + channel) * height * width;
    E* const place_out = output + ((size_t)image * channels + channel) * out_height * out_width + place;
    if (LARGEST && window_height == window_width && dilation_y == 1 && dilation_x == 1) {
        if (window_width == 2) return put(place_out, largest_of<2>(plane, y0, x0, height, width));
        if (window_width == 3) return put(place_out, largest_of<3>(plane, y0, x0, height, width));
    }
    float result = LARGEST ? __uint_as_float(0xff800000) : 0;
    int padded = 0, present = 0;
#pragma unroll 1
    for (int wy = 0; wy < window_height; wy++) {
        const int y = y0 + wy * dilation_y;
#pragma unroll 1
        for (int wx = 0; wx < window_width; wx++) {
            const int x = x0 + wx * dilation_x;
            padded += y < height + bottom && x < width + right;
            if (y < 0 || y >= height || x < 0 || x >= width) continue;
            const float value = get(plane + y * width + x);
            if (LARGEST) result = value > result || value != value ? value : result;
            else result += value;
            present++;
        }
    }
    if (!LARGEST) result /= (float)(counts_padding ? padded : present);
    put(place_out, result);
}

// COUNT adjacent elements at an address that is a multiple of their size.
template <typename E, int COUNT>
struct alignas(COUNT * sizeof(E)) Pack {
    E values[COUNT];
};

// A max pool with stride two and windows of WINDOW by WINDOW, over maps whose width is divisible by eight. Windows of
// three begin one column further left. A thread computes four outputs of a row from packs of 16 bytes.
template <typename E, int WINDOW>
__device__ __forceinline__ void pool_stride_two(
    const E* input, E* output, unsigned blocks, unsigned count, int height, int fours, int out_height, int top,
    unsigned input_image) {
    OF_EACH_IMAGE(blocks, count)
    const unsigned line = i / fours, four = i - line * fours, channel = line / out_height;
    const int width = 8 * fours, y0 = 2 * (int)(line - channel * out_height) - top;
    const E* const plane = input + (size_t)image * input_image + (size_t)channel * height * width + 8 * four;
    constexpr int PACK = 16 / sizeof(E);
    const float least = __uint_as_float(0xff800000);
    float largest[4] = {least, least, least, least};
#pragma unroll
    for (int wy = 0; wy < WINDOW; wy++) {
        const int y = y0 + wy;
        if (y < 0 || y >= height) continue;
        float values[9];
        values[0] = WINDOW == 3 && four > 0 ? get(plane + y * width - 1) : least;
#pragma unroll
        for (int first = 0; first < 8; first += PACK) {
            const Pack<E, PACK> pack = *(const Pack<E, PACK>*)(plane + y * width + first);
#pragma unroll
            for (int j = 0; j < PACK; j++) values[1 + first + j] = get(pack.values + j);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int wx = 3 - WINDOW; wx < 3; wx++) {
                const float value = values[2 * j + wx];
                largest[j] = value > largest[j] || value != value ? value : largest[j];
            }
        }
    }
    Pack<E, 4> made;
#pragma unroll
    for (int j = 0; j < 4; j++) put(made.values + j, largest[j]);
    *(Pack<E, 4>*)(output + ((size_t)image * count + i) * 4) = made;
}

// One block for each row.
template <typename E>
__device__ __forceinline__ void mean(const E* input, E* output, unsigned length) {
    float sum = 0;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < length; i += THREADS) sum += get(input + (size_t)blockIdx.x * length + i);
    sum = together<false>(sum);
    if (threadIdx.x == 0) put(output + blockIdx.x, sum / length);
}

// As exact as expf, with instructions that every GPU and the emulator have: the product's rounding error is added back.
__device__ __forceinline__ float exponential(float x) {
    if (x > 88.722839f) return __uint_as_float(0x7f800000);
    x = x < -104 ? -104 : x;
    const float product = x * 1.44269504f, lost = fmaf(x, 1.44269504f, -product) + x * 1.92596299e-8f;
    float power;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(power) : "f"(product));
    return power + power * (lost * 0.693147181f);
}

// One block for each row, whose elements are `stride` apart.
template <typename E>
__device__ __forceinline__ void softmax(const E* input, E* output, unsigned length, unsigned stride, int logarithm) {
    const size_t first = (size_t)(blockIdx.x / stride) * length * stride + blockIdx.x % stride;
    float largest = __uint_as_float(0xff800000);
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < length; i += THREADS) {
        const float value = get(input + first + (size_t)i * stride);
        largest = value > largest || value != value ? value : largest;
    }
    largest = together<true>(largest);
    float sum = 0;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < length; i += THREADS)
        sum += exponential(get(input + first + (size_t)i * stride) - largest);
    sum = together<false>(sum);
    const float log_sum = logf(sum);
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < length; i += THREADS) {
        const float value = get(input + first + (size_t)i * stride) - largest;
        put(output + first + (size_t)i * stride, logarithm ? value - log_sum : exponential(value) / sum);
    }
}

__device__ __forceinline__ float sigmoid(float v) { return 1 / (1 + exponential(-v)); }
__device__ __forceinline__ float within(float v, float low, float high) { return v < low ? low : v > high ? high : v; }

template <typename E>
__device__ __forceinline__ void unary(
    const E* input, E* output, unsigned blocks, unsigned count, int code, float a, float b) {
    OF_EACH_IMAGE(blocks, count)
    const float v = get(input + (size_t)image * count + i);
    float result = v;
    switch (code) {
        case 0: result = within(v, a, b); break;
        case 1: result = v < 0 ? a * v : v; break;
        case 2: result = v < 0 ? a * (exponential(v) - 1) : v; break;
        case 3: result = sigmoid(v); break;
        case 4: result = tanhf(v); break;
        case 5: result = within(a * v + b, 0, 1); break;
        case 6: result = v * within(v / 6 + 0.5f, 0, 1); break;
        case 7: result = v * sigmoid(a * v); break;
        case 8: result = 0.5f * v * (1 + erff(v * 0.70710678f)); break;
        case 9: result = 0.5f * v * (1 + tanhf(0.79788456f * (v + 0.044715f * v * v * v))); break;
        case 10: result = v * tanhf(v > 20 ? v : logf(1 + exponential(v))); break;
        case 11: result = exponential(v); break;
        case 12: result = sqrtf(v); break;
        case 13: result = fabsf(v); break;
        case 14: result = -v; break;
        case 15: result = a * within(rintf(v / a), b, b + 255); break;  // quantized to 8 bits and dequantized
    }
    put(output + (size_t)image * count + i, result);
}

// The output has four sizes. A broadcast operand has stride 0 there, and between images if it is the same for all.
template <typename E>
__device__ __forceinline__ void binary(
    const E* left, const E* right, E* output, unsigned blocks, unsigned count, unsigned size1, unsigned size2,
    unsigned size3, unsigned left_image, unsigned left0, unsigned left1, unsigned left2, unsigned left3,
    unsigned right_image, unsigned right0, unsigned right1, unsigned right2, unsigned right3, int code) {
    OF_EACH_IMAGE(blocks, count)
    const unsigned c3 = i % size3, c2 = i / size3 % size2, c1 = i / size3 / size2 % size1, c0 = i / size3 / size2 / size1;
    const float a = get(left + (size_t)image * left_image + c0 * left0 + c1 * left1 + c2 * left2 + c3 * left3);
    const float b = get(right + (size_t)image * right_image + c0 * right0 + c1 * right1 + c2 * right2 + c3 * right3);
    float result = a;
    switch (code) {
        case 0: result = a + b; break;
        case 1: result = a - b; break;
        case 2: result = a * b; break;
        case 3: result = a / b; break;
        case 4: result = a > b || a != a ? a : b; break;
        case 5: result = a < b || a != a ? a : b; break;
    }
    put(output + (size_t)image * count + i, result);
}

// Copies one box of four sizes to another: for Concat, Slice, Transpose and Pad.
template <typename E>
__device__ __forceinline__ void copy(
    const E* input, E* output, unsigned blocks, unsigned count, unsigned size1, unsigned size2, unsigned size3,
    unsigned in_image, int in_first, int in0, int in1, int in2, int in3, unsigned out_image, unsigned out_first,
    unsigned out0, unsigned out1, unsigned out2, unsigned out3) {
    OF_EACH_IMAGE(blocks, count)
    const int c3 = i % size3, c2 = i / size3 % size2, c1 = i / size3 / size2 % size1, c0 = i / size3 / size2 / size1;
    const float value = get(input + (size_t)image * in_image + (in_first + c0 * in0 + c1 * in1 + c2 * in2 + c3 * in3));
    put(output + (size_t)image * out_image + (out_first + c0 * out0 + c1 * out1 + c2 * out2 + c3 * out3), value);
}

template <typename E>
__device__ __forceinline__ void fill(E* output, unsigned blocks, unsigned count, float value) {
    OF_EACH_IMAGE(blocks, count)
    put(output + (size_t)image * count + i, value);
}

// A dense layer that is not compiled: weights are [inputs, outputs], or transposed; a block has 16 x 16 outputs.
#define TILE 16
template <typename E>
__device__ __forceinline__ void gemm(
    const E* input, const E* weights, const E* bias, E* output, int rows, int inputs, int outputs, int transposed,
    int has_bias) {
    __shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const int column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    const int other = blockIdx.x * TILE + y;  // if transposed, this thread's column: loads of neighbours are adjacent
    float sum = 0;
    for (int first = 0; first < inputs; first += TILE) {
        left[y][x] = row < rows && first + x < inputs ? get(input + (size_t)row * inputs + first + x) : 0;
        if (transposed)
            right[x][y] = other < outputs && first + x < inputs ? get(weights + (size_t)other * inputs + first + x) : 0;
        else
            right[y][x] = column < outputs && first + y < inputs ? get(weights + (size_t)(first + y) * outputs + column) : 0;
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += left[y][k] * right[k][x];
        __syncthreads();
    }
    if (row >= rows || column >= outputs) return;
    put(output + (size_t)row * outputs + column, has_bias ? sum + get(bias + column) : sum);
}

#define KERNELS(type, E)                                                                                              \
    extern "C" __global__ void max_pool_##type(                                                                       \
        const E* input, E* output, unsigned blocks, unsigned channels, int height, int width, int out_height,         \
        int out_width, int window_height, int window_width, int stride_y, int stride_x, int top, int left,            \
        int bottom, int right, int dilation_y, int dilation_x, int counts_padding) {                                  \
        pool<E, true>(                                                                                                \
            input, output, blocks, channels, height, width, out_height, out_width, window_height, window_width,       \
            stride_y, stride_x, top, left, bottom, right, dilation_y, dilation_x, counts_padding);                    \
    }                                                                                                                 \
    extern "C" __global__ void max_pool_2x2_##type(                                                                   \
        const E* input, E* output, unsigned blocks, unsigned count, int height, int fours, int out_height, int top,   \
        unsigned input_image) {                                                                                       \
        pool_stride_two<E, 2>(input, output, blocks, count, height, fours, out_height, top, input_image);             \
    }                                                                                                                 \
    extern "C" __global__ void max_pool_3x3_##type(                                                                   \
        const E* input, E* output, unsigned blocks, unsigned count, int height, int fours, int out_height, int top,   \
        unsigned input_image) {                                                                                       \
        pool_stride_two<E, 3>(input, output, blocks, count, height, fours, out_height, top, input_image);             \
    }                                                                                                                 \
    extern "C" __global__ void average_pool_##type(                                                                   \
        const E* input, E* output, unsigned blocks, unsigned channels, int height, int width, int out_height,         \
        int out_width, int window_height, int window_width, int stride_y, int stride_x, int top, int left,            \
        int bottom, int right, int dilation_y, int dilation_x, int counts_padding) {                                  \
        pool<E, false>(                                                                                               \
            input, output, blocks, channels, height, width, out_height, out_width, window_height, window_width,       \
            stride_y, stride_x, top, left, bottom, right, dilation_y, dilation_x, counts_padding);                    \
    }                                                                                                                 \
    extern "C" __global__ void mean_##type(const E* input, E* output, unsigned length) {                              \
        mean(input, output, length);                                                                                  \
    }                                                                                                                 \
    extern "C" __global__ void softmax_##type(                                                                        \
        const E* input, E* output, unsigned length, unsigned stride, int logarithm) {                                 \
        softmax(input, output, length, stride, logarithm);                                                            \
    }                                                                                                                 \
    extern "C" __global__ void unary_##type(                                                                          \
        const E* input, E* output, unsigned blocks, unsigned count, int code, float a, float b) {                     \
        unary(input, output, blocks, count, code, a, b);                                                              \
    }                                                                                                                 \
    extern "C" __global__ void binary_##type(                                                                         \
        const E* left, const E* right, E* output, unsigned blocks, unsigned count, unsigned size1, unsigned size2,    \
        unsigned size3, unsigned left_image, unsigned left0, unsigned left1, unsigned left2, unsigned left3,          \
        unsigned right_image, unsigned right0, unsigned right1, unsigned right2, unsigned right3, int code) {         \
        binary(                                                                                                       \
            left, right, output, blocks, count, size1, size2, size3, left_image, left0, left1, left2, left3,          \
            right_image, right0, right1, right2, right3, code);                                                       \
    }                                                                                                                 \
    extern "C" __global__ void copy_##type(                                                                           \
        const E* input, E* output, unsigned blocks, unsigned count, unsigned size1, unsigned size2, unsigned size3,   \
        unsigned in_image, int in_first, int in0, int in1, int in2, int in3, unsigned out_image, unsigned out_first,  \
        unsigned out0, unsigned out1, unsigned out2, unsigned out3) {                                                 \
        copy(                                                                                                         \
            input, output, blocks, count, size1, size2, size3, in_image, in_first, in0, in1, in2, in3, out_image,     \
            out_first, out0, out1, out2, out3);                                                                       \
    }                                                                                                                 \
    extern "C" __global__ void fill_##type(E* output, unsigned blocks, unsigned count, float value) {                 \
        fill(output, blocks, count, value);                                                                           \
    }                                                                                                                 \
    extern "C" __global__ void gemm_##type(                                                                           \
        const E* input, const E* weights, const E* bias, E* output, int rows, int inputs, int outputs,                \
        int transposed, int has_bias) {                                                                               \
        gemm(input, weights, bias, output, rows, inputs, outputs, transposed, has_bias);                              \
    }

KERNELS(float32, float)
KERNELS(float16, Half)
KERNELS(bfloat16, Brain)
