    // The rest of a kernel, in its body: chunk after chunk into the sums, and the stores. It uses `copies`, `window`
    // (this thread's first word of shared memory), with EDGES `outside` and `zeros` (which columns of the filter lie
    // beside the map, and the address read instead), `out` (of each image of this thread), `residual`, and what the
    // stores of `epilogue.h` name.
    float sum[ROWS * PAIRS][SUMS];
#pragma unroll
    for (int p = 0; p < ROWS * PAIRS; ++p)
#pragma unroll
        for (int j = 0; j < SUMS; ++j) sum[p][j] = 0.f;

    WAIT_FOR_PRIOR_KERNEL;
#if GATED
    Gates gates_of_images;
    gates_of_images.address = tile_address + GATES * 4;
    gates_of_images.fetch(gate, first_image, first_channel, images);
#endif
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        copies.fetch(s * CHUNK_CHANNELS, s * (STAGE * 4));
        copies.commit(s * CHUNK_CHANNELS, s * (STAGE * 4), 0);
    }
#if GATED
    gates_of_images.commit();
    const unsigned own_gates = gates_of_images.address + image / PAIR_IMAGES * (GATE_STEP * 4);
#endif

#if FULL
#define CHUNK(n)                                                                               \
    wait_for_copies();                                                                         \
    copies.fetch((n + STAGES - 1) * CHUNK_CHANNELS, (n + STAGES - 1) % STAGES * (STAGE * 4));  \
    copies.commit((n + STAGES - 1) * CHUNK_CHANNELS, (n + STAGES - 1) % STAGES * (STAGE * 4), 0)
#define INPUT(n, offset) window[n % STAGES * STAGE + offset]
#define MULTIPLY_ADD(p, j, x, bits) sum[p][j] = fmaf(x, __uint_as_float(bits), sum[p][j])
#define STORE(p, j, bits, ok, image, offset)                     \
    {                                                            \
        const float total = sum[p][j] + __uint_as_float(bits);   \
        FINISH(total, j, ok, image, offset);                     \
    }
#else
#if DATA_TYPE == FLOAT16
    unsigned packed[ROWS][SUMS];
#pragma unroll
    for (int p = 0; p < ROWS; ++p)
#pragma unroll
        for (int j = 0; j < SUMS; ++j) packed[p][j] = 0;
#if FLOAT32_SUMS || POOLED
// A packed sum into the float32 sums of both outputs, from zero again: the rewriter leaves it in after chunks with which
// a sum has as many products as it may. At the end too of pooled sums, which ptxas would convert once for each use.
#define ACCUMULATE(p, j)                                                                                         \
    asm volatile("{ .reg .b16 l,h; .reg .f32 a,b; mov.b32 {l,h},%2; cvt.f32.f16 a,l; cvt.f32.f16 b,h; "          \
                 "add.rn.f32 %0,%0,a; add.rn.f32 %1,%1,b; mov.b32 %2,0; } // farm.accumulate " #p " " #j         \
                 : "+f"(sum[2 * p][j]), "+f"(sum[2 * p + 1][j]), "+r"(packed[p][j]));
#else
// A packed sum as those of both outputs, at the end.
#define ACCUMULATE(p, j)                                                                                        \
    asm volatile("{ .reg .b16 l,h; mov.b32 {l,h},%2; cvt.f32.f16 %0,l; cvt.f32.f16 %1,h; } // farm.accumulate " \
                 #p " " #j : "=f"(sum[2 * p][j]), "=f"(sum[2 * p + 1][j]) : "r"(packed[p][j]));
#endif
    typedef unsigned Word;
// The sign of the number of images, of a register that the last multiply-adds of a chunk write.
#define NOTHING (packed[ROWS - 1][SUMS - 1] & (unsigned)images >> 31)
#else
    typedef float Word;
#define NOTHING (__float_as_uint(sum[ROWS - 1][SUMS - 1]) & (unsigned)images >> 31)
#endif
    // The number of chunks is hidden from the compiler: the loop stays a loop, also when there is one chunk.
    int chunks;
    asm volatile("mov.u32 %0,%1;" : "=r"(chunks) : "n"(CHUNKS));
    int chunk = 0, read_stage = 0, write_stage = STAGES - 1;
    asm volatile("// farm.group %0" :: "r"(group));
#pragma unroll 1
    do {
        wait_for_copies();
#if STAGES > CHUNKS && CLUSTER > 1 && ASYNCHRONOUS
        asm volatile("cp.async.commit_group;" ::: "memory");  // all is on its way already
#else
        copies.fetch((chunk + STAGES - 1) * CHUNK_CHANNELS, write_stage * (STAGE * 4));
#endif
        const Word* in = (const Word*)window + read_stage * STAGE;
#if GATED
        const unsigned gates = own_gates + chunk * (CHUNK_CHANNELS * 4);
#endif
#if EDGES
        const Word* edge[EDGES];
#pragma unroll
        for (int e = 0; e < EDGES; ++e) edge[e] = outside[e] ? (const Word*)zeros : in;
#endif
        asm volatile("// farm.body.begin");
#include "body.h"
        asm volatile("// farm.body.end");
        copies.commit((chunk + STAGES - 1) * CHUNK_CHANNELS, write_stage * (STAGE * 4), NOTHING);
#if DATA_TYPE == FLOAT16 && FLOAT32_SUMS
#include "accumulate.h"
#endif
        read_stage = read_stage == STAGES - 1 ? 0 : read_stage + 1;
        write_stage = write_stage == STAGES - 1 ? 0 : write_stage + 1;
    } while (++chunk < chunks);
    LAUNCH_DEPENDENTS;
    asm volatile("// farm.epilogue");
#if DATA_TYPE == FLOAT16 && !FLOAT32_SUMS
#include "accumulate.h"
#endif
#if CLUSTER > 1 && !LARGE
#include "cluster_reduce.cuh"
#else
#define total sum
#endif
#if NEIGHBOURS == 2
#define STORE(p, j, bias, ok, image, offset)   \
    ADD_BIAS(total[2 * (p)][j], j, bias);      \
    ADD_BIAS(total[2 * (p) + 1][j], j, bias);  \
    FINISH_WORD(total[2 * (p)][j], total[2 * (p) + 1][j], j, ok, offset)
#else
#define STORE(p, j, bias, ok, image, offset) \
    ADD_BIAS(total[p][j], j, bias);          \
    FINISH(total[p][j], j, ok, image, offset)
#endif
#endif
#if POOLED
#include "max_pool.cuh"
#endif
#include "epilogue.h"
