// 1x1 convolution with direct global loads of its inputs, one set of weights in the instruction stream.
//
// For few weights: most inputs of a chunk in shared memory would be unused. Neighbouring lanes have neighbouring
// columns, so that their loads are coalesced; an input without weights in a group is not loaded for it. A block
// computes TILE_WIDTH columns of an image for one group of output channels: blockIdx.x = columns, blockIdx.y = image,
// blockIdx.z = group. A sparse multi-layer perceptron is such a convolution, whose columns are rows of the batch.
//
// With LISTED the columns of all images are one row, and the kernel computes the first `count[0]` of them. `places` has
// the place of each column's input; null: its own. A thread goes on with the column a grid's width further: the
// rewriter closes that loop (`farm.turn`). `marks` gets a 1 for each column with a non-zero output. From compute_90 on
// such a kernel may be launched before the one ahead of it has ended, and lets the next one start as early.
#include "parameters.h"
#define THREADS TILE_WIDTH
#define UNIT 1
#define IMAGE_OUTPUTS (OUTPUT_CHANNELS * WIDTH)
#include "no_copies.cuh"
#include "memory.cuh"

#if LISTED
// Columns of neighbouring warps are in different blocks, so that few columns keep all blocks equally busy.
#define FIRST_COLUMN ((threadIdx.x / 32 * gridDim.x + blockIdx.x) * 32 + threadIdx.x % 32)
#define LIST_PARAMETERS , const int* __restrict__ count, const int* __restrict__ places, unsigned char* __restrict__ marks
#else
#define LIST_PARAMETERS
#endif

extern "C" __global__ void __launch_bounds__(THREADS) unstaged(PARAMETERS, int output_step LIST_PARAMETERS) {
    int group;
    asm volatile("mov.u32 %0,0; // farm.first_group" : "=r"(group));
    group += blockIdx.z;
#if LISTED
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    // These loads must not move to before the wait: what they read is written until then.
    int columns, column;
    asm volatile("ld.global.s32 %0,[%1];" : "=r"(columns) : "l"(count) : "memory");
    columns = min(columns, images * WIDTH);
    const int step = gridDim.x * THREADS;
    asm volatile("mov.u32 %0,%1; // farm.turn %2" : "=r"(column) : "r"(FIRST_COLUMN), "r"(step));
    asm volatile("{ .reg .pred p; setp.ge.s32 p,%0,%1; @p exit; }" :: "r"(column), "r"(columns) : "memory");
    int place = column;
    asm volatile("{ .reg .pred p; setp.ne.u64 p,%1,0; @p ld.global.s32 %0,[%2]; }"
                 : "+r"(place) : "l"(places), "l"(places + column) : "memory");
    const Element* in = input + (long long)(place / WIDTH) * (CHANNELS * WIDTH) + place % WIDTH;
    Element* out[] = {output + (long long)(column / WIDTH) * output_step + group * (GROUP_OUTPUTS * WIDTH) + column % WIDTH};
    const bool inside = true;
    unsigned any = 0;
#else
    const int column = blockIdx.x * THREADS + threadIdx.x;
    const bool inside = WIDTH % THREADS == 0 || column < WIDTH;
    // A mask: a conditional expression could become a branch.
    const int here = column & -(int)inside;
    const Element* in = input + (size_t)blockIdx.y * (CHANNELS * WIDTH) + here;
    const size_t of_image = group * (GROUP_OUTPUTS * WIDTH) + here;
    Element* out[] = {output + (long long)blockIdx.y * output_step + of_image};
#if HAS_RESIDUAL
    const Element* residual = added + (size_t)blockIdx.y * IMAGE_OUTPUTS + of_image;
#endif
#endif

    float sum[1][SUMS];
#pragma unroll
#if LISTED
    // Zeros that look different to ptxas, which would compute the outputs of equal weights once; that is measured
    // apart.
    for (int j = 0; j < SUMS; ++j) sum[0][j] = __int_as_float(images >> 31 & (j + 1));
#else
    for (int j = 0; j < SUMS; ++j) sum[0][j] = 0.f;
#endif
    // The number of chunks is hidden from the compiler: the loop stays a loop, also when there is one chunk.
    int chunks;
    asm volatile("mov.u32 %0,%1;" : "=r"(chunks) : "n"(CHUNKS));
    int chunk = 0;
    asm volatile("// farm.group %0" :: "r"(group));
#pragma unroll 1
    do {
        asm volatile("// farm.body.begin");
#include "body.h"
        asm volatile("// farm.body.end");
        in += CHUNK_CHANNELS * WIDTH;
    } while (++chunk < chunks);
    asm volatile("// farm.epilogue");
#if LISTED
#undef FINISH
#define FINISH(value, j, ok, image, offset)                                                                    \
    asm volatile("{ .reg .pred p,q; .reg .f32 v,r; .reg .b32 a; setp.eq.u32 p,0,0; mov.f32 v,%2; " STEPS       \
                 "@p st.global.f32 [%1+%3],v; mov.b32 a,v; or.b32 %0,%0,a; } // farm.store " #j                \
                 : "+r"(any) : "l"(out[image]), "f"(value), "n"((offset) * ELEMENT_BYTES) : "memory")
#endif
#define STORE(p, j, bias, ok, image, offset) \
    ADD_BIAS(sum[p][j], j, bias);            \
    FINISH(sum[p][j], j, ok, image, offset)
#include "epilogue.h"
#if LISTED
    // -0.0 counts as zero.
    asm volatile("{ .reg .pred p; .reg .b32 a,b; shl.b32 a,%0,1; setp.ne.b32 p,a,0; mov.u32 b,1; @p st.global.u8 [%1],b; }"
                 :: "r"(any), "l"(marks + column) : "memory");
#endif
}
