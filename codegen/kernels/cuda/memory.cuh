// Shared by all kernels: elements, copies to shared memory, finishing and storing a sum.
//
// `parameters.h` comes first: it holds the macros of one shape and tiling. `copies.h` has a line for every word or
// four words that a thread copies of one chunk, `body.h` the multiply-adds, `epilogue.h` the stores.
#define FLOAT32 0
#define FLOAT16 1
#define BFLOAT16 2

// With WAITS a kernel begins before the one ahead of it has ended. Inputs are loaded by READ: ptxas may move
// `ld.global.nc`, whose data never changes while a kernel runs, before the wait. Residuals are read behind the loop over
// chunks, which no load crosses. The next kernel begins when all blocks have only their sums left to store: earlier, kernels
// would queue and crowd on few multiprocessors. Behind table_conv2d it begins at once, which takes as long there.
#if WAITS
#define WAIT_FOR_PRIOR_KERNEL asm volatile("griddepcontrol.wait;" ::: "memory")
#define LAUNCH_DEPENDENTS asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define READ "ld.global"
#else
#define WAIT_FOR_PRIOR_KERNEL
#define LAUNCH_DEPENDENTS
#define READ "ld.global.nc"
#endif

// Whether copies move whole words, as they lie in memory: of float32, or two neighbours of float16.
#define WHOLE_WORDS (DATA_TYPE == FLOAT32 || NEIGHBOURS == 2)

// Whether the conversion to 16 bits applies the last ReLU. It converts a pair of values, also where one is stored: of a
// single value ptxas makes an instruction that the assembler lacks.
#define RECTIFIES (ENDS_IN_RELU && DATA_TYPE != FLOAT32 && __CUDA_ARCH__ >= 800)
#define RECTIFY(pair) "cvt.rn.relu." pair ".f32 a,0f00000000,v; mov.b32 {h,z},a; "

#if DATA_TYPE == FLOAT32
typedef float Element;
#define ELEMENT_BYTES 4
#define GET_RESIDUAL "mov.f32 r,0f00000000; @p ld.global.nc.f32 r,[%4+%5]; "
#define PUT "@p st.global.cs.f32 [%1+%3],v; "
#elif WHOLE_WORDS
typedef unsigned Element;
#define ELEMENT_BYTES 4
#define GET_RESIDUAL "cvt.f32.f16 r,l; "
#else
typedef unsigned short Element;
#define ELEMENT_BYTES 2
#define GET_HALF "mov.b16 h,0; @p ld.global.nc.b16 h,[%4+%5]; "
#define PUT_HALF "@p st.global.cs.b16 [%1+%3],h; "
#if DATA_TYPE == FLOAT16
#define GET_RESIDUAL GET_HALF "cvt.f32.f16 r,h; "
#if RECTIFIES
#define PUT RECTIFY("f16x2") PUT_HALF
#else
#define PUT "cvt.rn.f16.f32 h,v; " PUT_HALF
#endif
#else
#define GET_RESIDUAL GET_HALF "mov.b32 r,{z,h}; "
#if RECTIFIES
#define PUT RECTIFY("bf16x2") PUT_HALF
#elif __CUDA_ARCH__ >= 800
#define PUT "cvt.rn.bf16.f32 h,v; " PUT_HALF
#else
// To nearest, ties to even, in integers; a NaN keeps its upper half, with the quiet bit set.
#define PUT                                                                                                   \
    "mov.b32 a,v; shr.u32 b,a,16; and.b32 b,b,1; add.u32 b,b,32767; add.u32 b,b,a; or.b32 a,a,4194304; "      \
    "setp.nan.f32 q,v,v; selp.b32 a,a,b,q; mov.b32 {z,h},a; " PUT_HALF
#endif
#endif
#endif

// A lane of a float16 kernel computes two outputs at once, in the halves of its words; what it reads for them lies
// PAIR_OFFSET elements apart.
#define PAIRS (DATA_TYPE == FLOAT16 ? 2 : 1)

#if WHOLE_WORDS && __CUDA_ARCH__ >= 800
#define ASYNCHRONOUS 1
#else
#define ASYNCHRONOUS 0
#endif

__device__ __forceinline__ void wait_for_copies() {
#if ASYNCHRONOUS
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
#endif
    __syncthreads();
}

#if CLUSTER > 1
// Until the others have read its sums, a block's shared memory must stay: what it stored waited for what it has read.
__device__ __forceinline__ void keep_until_read() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif

#if LOOPED
#include "copy_loop.cuh"
#elif QUADS
#include "cluster.cuh"
#else
// A thread's copies of every chunk. The part of an address that depends on the channel is an immediate of the
// instruction, so that a pointer serves all channels of a chunk. `present`: which halves of the word (or whether all of
// it) lie within the input; the rest is zero. The kernel's macro `enabled(c)`: whether the chunk has a channel c at
// all.
struct Copies {
    const Element* source[POINTERS];
    unsigned target[POINTERS];
    unsigned present[POINTERS];
    bool inside[POINTERS];
    unsigned word[ASYNCHRONOUS ? 1 : HELD];

    __device__ __forceinline__ void advance(int channel) {
        // Channels that are rows of patches: after the last one, to those of the next channel of the input.
        const int jump = JUMP && (channel + CHUNK_CHANNELS) % JUMP_AFTER == 0 ? JUMP : 0;
#pragma unroll
        for (int j = 0; j < POINTERS; ++j) source[j] += ADVANCE + jump;
    }

#if ASYNCHRONOUS
    __device__ __forceinline__ void fetch(int channel, unsigned stage) {
#if UNIT == 4
#define CACHED "cg"
#else
#define CACHED "ca"
#endif
#if GIVEN_UP_FIRST
// Streamed data is evicted from the caches before code.
#define POLICY ".reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once,1.0; "
#define HINT(copy, source) copy ".L2::cache_hint" source ",once; "
#else
#define POLICY
#define HINT(copy, source) copy source "; "
#endif
#define COPY(j, i, c, from, to)                                                                                        \
    asm volatile("{ .reg .pred p; " POLICY "setp.ne.b32 p,%3,0; "                                                      \
                 HINT("@p cp.async." CACHED ".shared.global", " [%0+%4],[%1+%5],%6,%2") "}"                            \
                 :: "r"(target[j] + stage), "l"(source[j]), "r"(PRESENT(j, channel) * (4 * UNIT)),                     \
                 "r"((int)(inside[j] & ENABLED(channel, c))), "n"((to) * 4), "n"((from) * 4), "n"(4 * UNIT) : "memory");
#include "copies.h"
#undef COPY
        asm volatile("cp.async.commit_group;" ::: "memory");
        advance(channel);
    }
    __device__ __forceinline__ void commit(int channel, unsigned stage, unsigned nothing) const {}
#else
    // Through registers: `fetch` before a chunk's multiply-adds, `commit` after them.
#if WHOLE_WORDS
    __device__ __forceinline__ void fetch(int channel, unsigned stage) {
#define COPY_WORD(j, i, c, from)                                                                           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p,%2,0; mov.b32 %0,0; @p " READ ".b32 %0,[%1+%3]; }"     \
                 : "=&r"(word[i]) : "l"(source[j]),                                                        \
                 "r"((int)(inside[j] & ENABLED(channel, c) & PRESENT(j, channel))), "n"((from) * 4));
#if UNIT == 4
#define COPY(j, i, c, from, to)          \
    COPY_WORD(j, 4 * i, c, from)         \
    COPY_WORD(j, 4 * i + 1, c, from + 1) \
    COPY_WORD(j, 4 * i + 2, c, from + 2) \
    COPY_WORD(j, 4 * i + 3, c, from + 3)
#elif UNIT == 2
#define COPY(j, i, c, from, to)  \
    COPY_WORD(j, 2 * i, c, from) \
    COPY_WORD(j, 2 * i + 1, c, from + 1)
#else
#define COPY(j, i, c, from, to) COPY_WORD(j, i, c, from)
#endif
#include "copies.h"
#undef COPY
        advance(channel);
    }
    __device__ __forceinline__ void commit(int channel, unsigned stage, unsigned nothing) const {
#define COMMIT_WORD(j, i, c, to)                                                                             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p,%1,0; @p st.shared.b32 [%0+%3],%2; }" :: "r"(target[j] + stage), \
                 "r"((int)(inside[j] & ENABLED(channel, c))), "r"(word[i]), "n"((to) * 4) : "memory");
#if UNIT == 4
#define COPY(j, i, c, from, to)           \
    COMMIT_WORD(j, 4 * i, c, to)          \
    COMMIT_WORD(j, 4 * i + 1, c, to + 1)  \
    COMMIT_WORD(j, 4 * i + 2, c, to + 2)  \
    COMMIT_WORD(j, 4 * i + 3, c, to + 3)
#elif UNIT == 2
#define COPY(j, i, c, from, to)  \
    COMMIT_WORD(j, 2 * i, c, to) \
    COMMIT_WORD(j, 2 * i + 1, c, to + 1)
#else
#define COPY(j, i, c, from, to) COMMIT_WORD(j, i, c, to)
#endif
#include "copies.h"
#undef COPY
    }
#else
    // One load has the halves of all words of a copy, or with SPREAD each word's own and the one beside it; in `word` lie
    // those of the first output, then those of the second.
    __device__ __forceinline__ void fetch(int channel, unsigned stage) {
#if SPREAD
#define LOADED UNIT
#else
#define LOADED ((UNIT + 1) / 2)
#endif
// Zeros beside the map, where a position within it reads them; what positions beside it compute is never stored.
// bfloat16 has zeros always: without them the assembler refuses more of it.
#if FILLED
#define FILL(word) "mov.b32 " word ",0; "
#else
#define FILL(word)
#endif
#if LOADED == 4
#define LOAD_HALVES(ok, j, i, from)                                                                             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p,%5,0; " FILL("%0") FILL("%1") FILL("%2") FILL("%3")             \
                 "@p " READ ".v4.b32 {%0,%1,%2,%3},[%4+%6]; }"                                              \
                 : "=&r"(word[i]), "=&r"(word[i + 1]), "=&r"(word[i + 2]), "=&r"(word[i + 3])                   \
                 : "l"(source[j]), "r"((int)(ok)), "n"((from) * 2));
#elif LOADED == 2
#define LOAD_HALVES(ok, j, i, from)                                                                             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p,%3,0; " FILL("%0") FILL("%1")                                   \
                 "@p " READ ".v2.b32 {%0,%1},[%2+%4]; }" : "=&r"(word[i]), "=&r"(word[i + 1])               \
                 : "l"(source[j]), "r"((int)(ok)), "n"((from) * 2));
#else
#if UNIT == 2
#define LOAD READ ".b32"
#else
#define LOAD READ ".u16"
#endif
#define LOAD_HALVES(ok, j, i, from)                                                                             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p,%2,0; " FILL("%0") "@p " LOAD " %0,[%1+%3]; }"                  \
                 : "=&r"(word[i]) : "l"(source[j]), "r"((int)(ok)), "n"((from) * 2));
#endif
#if DATA_TYPE == FLOAT16
#define COPY(j, i, c, from, to)                                                                                 \
    LOAD_HALVES(inside[j] & ENABLED(channel, c) & PRESENT(j, channel) & 1, j, 2 * LOADED * i, from)             \
    LOAD_HALVES(inside[j] & ENABLED(channel, c) & (PRESENT(j, channel) >> 1), j, 2 * LOADED * i + LOADED,       \
                from + (PAIR_OFFSET))
#else
#define COPY(j, i, c, from, to) \
    LOAD_HALVES(inside[j] & ENABLED(channel, c) & PRESENT(j, channel), j, LOADED * i, from)
#endif
#include "copies.h"
#undef COPY
        advance(channel);
    }
    // A float16 word is a half of the second output above one of the first; a bfloat16 above zeros is a float32.
    // `nothing` is zero, which ptxas does not know: it would put words together, and so wait for the loads, before the
    // multiply-adds that `nothing` comes from.
    __device__ __forceinline__ void commit(int channel, unsigned stage, unsigned nothing) const {
        const unsigned lower = 0x5410 | nothing, upper = 0x7632 | nothing;
#if DATA_TYPE == FLOAT16
#define FIRST(i, n) word[2 * LOADED * i + n]
#define SECOND(i, n) word[2 * LOADED * i + LOADED + n]
#else
#define FIRST(i, n) 0
#define SECOND(i, n) word[LOADED * i + n]
#endif
// The n-th word of a copy: a half of FIRST and one of SECOND.
#if SPREAD
#define HALVES(i, n) "r"(FIRST(i, n)), "r"(SECOND(i, n)), "r"(lower)
#else
#define HALVES(i, n) "r"(FIRST(i, (n) / 2)), "r"(SECOND(i, (n) / 2)), "r"((n) % 2 ? upper : lower)
#endif
#if UNIT == 4
#define COPY(j, i, c, from, to)                                                                                       \
    asm volatile("{ .reg .pred p; .reg .b32 a,b,c,d; setp.ne.b32 p,%1,0; prmt.b32 a,%3,%4,%5; "                       \
                 "prmt.b32 b,%6,%7,%8; prmt.b32 c,%9,%10,%11; prmt.b32 d,%12,%13,%14; "                               \
                 "@p st.shared.v4.b32 [%0+%2],{a,b,c,d}; }"                                                           \
                 :: "r"(target[j] + stage), "r"((int)(inside[j] & ENABLED(channel, c))), "n"((to) * 4),               \
                 HALVES(i, 0), HALVES(i, 1), HALVES(i, 2), HALVES(i, 3) : "memory");
#elif UNIT == 2
#define COPY(j, i, c, from, to)                                                                                       \
    asm volatile("{ .reg .pred p; .reg .b32 a,b; setp.ne.b32 p,%1,0; prmt.b32 a,%3,%4,%5; prmt.b32 b,%6,%7,%8; "      \
                 "@p st.shared.v2.b32 [%0+%2],{a,b}; }" :: "r"(target[j] + stage),                                    \
                 "r"((int)(inside[j] & ENABLED(channel, c))), "n"((to) * 4), HALVES(i, 0), HALVES(i, 1) : "memory");
#else
#define COPY(j, i, c, from, to)                                                                                       \
    asm volatile("{ .reg .pred p; .reg .b32 a; setp.ne.b32 p,%1,0; prmt.b32 a,%2,%3,%5; @p st.shared.b32 [%0+%4],a; }" \
                 :: "r"(target[j] + stage), "r"((int)(inside[j] & ENABLED(channel, c))), "r"(FIRST(i, 0)),            \
                 "r"(SECOND(i, 0)), "n"((to) * 4), "r"(lower) : "memory");
#endif
#include "copies.h"
#undef COPY
    }
#endif
#endif
};
#endif

#if GATED
#include "channel_gates.cuh"
#endif

// An input of a bounded layer, once for all its multiply-adds: the rewriter puts in the bounds of its channel, and
// drops the lines of infinite bounds and of inputs without weights.
#if __CUDA_ARCH__ >= 800
#define NOT_BELOW(x) "max.NaN.f32 " x "," x ",b; "
#define NOT_ABOVE(x) "min.NaN.f32 " x "," x ",b; "
#else
#define NOT_BELOW(x) "setp.lt.f32 p," x ",b; selp.f32 " x ",b," x ",p; "
#define NOT_ABOVE(x) "setp.gt.f32 p," x ",b; selp.f32 " x ",b," x ",p; "
#endif

#if POOLED
__device__ __forceinline__ float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0,%0,%1;" : "+f"(a) : "f"(b));
    return a;
#else
    return a > b || a != a ? a : b;
#endif
}
#endif

// Bounds of a value in the forms of epilogue_ptx.py.
#if DATA_TYPE != FLOAT32 && __CUDA_ARCH__ >= 800
#define BOUNDS(joined, compared) joined
#else
#define BOUNDS(joined, compared) compared
#endif

// One line for the bias and one for the steps after it and the store: the rewriter drops the lines of output channels
// that do not exist. STEPS is the text of the layer's epilogue.
#if HAS_RESIDUAL
#define RESIDUAL_OPERANDS(offset) , "l"(residual), "n"((offset) * ELEMENT_BYTES)
#define ADDED_PARAMETER const Element* __restrict__ added,
#else
#define RESIDUAL_OPERANDS(offset)
#define ADDED_PARAMETER
#endif
#if GATED
#define GATE_PARAMETER const Element* __restrict__ gate,
#else
#define GATE_PARAMETER
#endif
#if BOUNDED
#define INPUT_STEP_PARAMETER , int input_step
#define IMAGE_STEP input_step
#else
#define INPUT_STEP_PARAMETER
#define IMAGE_STEP IMAGE_ELEMENTS
#endif
#define PARAMETERS \
    const Element* __restrict__ input, Element* __restrict__ output, ADDED_PARAMETER GATE_PARAMETER int images
#define ADD_BIAS(value, j, bias) asm volatile("add.rn.f32 %0,%0," bias "; // farm.bias " #j : "+f"(value))
#define FINISH(value, j, ok, image, offset) STORE_AFTER(STEPS, value, j, ok, image, offset)
#define STORE_AFTER(steps, value, j, ok, image, offset) PUT_AFTER(steps, value, ok, image, offset, " // farm.store " #j)
#define PUT_AFTER(steps, value, ok, image, offset, note)                                                              \
    asm volatile("{ .reg .pred p,q; .reg .f32 v,r; .reg .b16 h,z; .reg .b32 a,b; mov.b16 z,0; mov.f32 v,%0; "         \
                 "setp.ne.b32 p,%2,0; " steps PUT "}" note                                                            \
                 :: "f"(value), "l"(out[image]), "r"((int)(ok)), "n"((offset) * ELEMENT_BYTES)                        \
                 RESIDUAL_OPERANDS((image) * IMAGE_OUTPUTS + (offset)) : "memory")
// The store of both halves of a word: their residuals come in one word, and they are stored as one.
#if HAS_RESIDUAL
#define GET_WORD "mov.b32 a,0; @p ld.global.nc.b32 a,[%5+%6]; mov.b32 {l,h},a; "
#define SECOND_HALF "mov.b16 l,h; "
#else
#define GET_WORD
#define SECOND_HALF
#endif
#if RECTIFIES
#define HOLD_FIRST "mov.f32 f,v; "
#define JOIN "cvt.rn.relu.f16x2.f32 a,v,f; "
#else
#define HOLD_FIRST "cvt.rn.f16.f32 z,v; "
#define JOIN "cvt.rn.f16.f32 h,v; mov.b32 a,{z,h}; "
#endif
#define FINISH_WORD(first, second, j, ok, offset) STORE_WORD_AFTER(STEPS, first, second, j, ok, offset)
#define STORE_WORD_AFTER(steps, first, second, j, ok, offset)                                                         \
    asm volatile("{ .reg .pred p,q; .reg .f32 v,r,f; .reg .b16 l,h,z; .reg .b32 a; mov.f32 v,%0; "                    \
                 "setp.ne.b32 p,%3,0; " GET_WORD steps HOLD_FIRST "mov.f32 v,%1; " SECOND_HALF steps JOIN             \
                 "@p st.global.cs.b32 [%2+%4],a; } // farm.store " #j                                                 \
                 :: "f"(first), "f"(second), "l"(out[0]), "r"((int)(ok)), "n"((offset) * ELEMENT_BYTES)               \
                 RESIDUAL_OPERANDS(offset) : "memory")
// The assembler counts a store for each bias: this one never runs, as the number of images is not negative.
#define NEVER_STORE(j, image, offset)                                                                                 \
    asm volatile("{ .reg .pred q; .reg .b16 z; mov.b16 z,0; setp.lt.s32 q,%1,0; @q st.global.cs.b16 [%0+%2],z; } "    \
                 "// farm.store " #j :: "l"(out[image]), "r"(images), "n"((offset) * ELEMENT_BYTES + 2) : "memory")
