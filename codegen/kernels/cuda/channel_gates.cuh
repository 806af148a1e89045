// The gates of a block's images, of the channels of its stream, which come into shared memory with its first chunk.
//
// A word has the gates of as many images as a word of the input. Gates of images and channels that do not exist are
// zero.
#if ASYNCHRONOUS && GATES_ALIGNED
#define GATE_UNIT 4
#define COPY_GATES "cp.async.cg.shared.global"
#else
#define GATE_UNIT 1
#define COPY_GATES "cp.async.ca.shared.global"
#endif
#define GATE_PLACES (GATE_WORDS / GATE_UNIT)
#define GATE_COUNT (GATE_PLACES * GATE_IMAGES)
#define GATE_LOADS ((GATE_COUNT + THREADS - 1) / THREADS)
#if DATA_TYPE == FLOAT32
#define GET_GATE "mov.b32 %0,0; @p " READ ".b32 %0,[%1];"
#elif DATA_TYPE == BFLOAT16
#define GET_GATE "mov.b16 h,0; mov.b16 l,h; @p " READ ".b16 h,[%1]; mov.b32 %0,{l,h};"
#elif PAIR_IMAGES == 2
#define GET_GATE "mov.b16 h,0; mov.b16 l,h; @p " READ ".b16 l,[%1]; @q " READ ".b16 h,[%1+%4]; mov.b32 %0,{l,h};"
#else
#define GET_GATE "mov.b16 h,0; @p " READ ".b16 h,[%1]; mov.b32 %0,{h,h};"
#endif

struct Gates {
    unsigned address;
    unsigned word[ASYNCHRONOUS ? 1 : GATE_LOADS];

    // A thread's gates, GATE_UNIT channels each, all at once: before the first chunk, and waited for with its copies.
    __device__ __forceinline__ void fetch(const Element* gate, int first_image, int first_channel, int images) {
#pragma unroll
        for (int n = 0; n < GATE_LOADS; ++n) {
            const int at = threadIdx.x + n * THREADS, from = first_image + at / GATE_PLACES * PAIR_IMAGES;
            const int c = at % GATE_PLACES * GATE_UNIT, present = (at < GATE_COUNT) & (c < GATE_CHANNELS) & (from < images);
            // A mask: a conditional expression could become a branch.
            const Element* source = gate + (((long long)from * CHANNELS + first_channel + c) & -(long long)present);
#if ASYNCHRONOUS
            asm volatile("{ .reg .pred p; setp.ne.b32 p,%0,0; @p " COPY_GATES " [%1],[%2],%4,%3; }"
                         :: "r"((int)(at < GATE_COUNT)), "r"(target(at)), "l"(source), "r"(present * (4 * GATE_UNIT)),
                         "n"(4 * GATE_UNIT) : "memory");
#else
            asm volatile("{ .reg .pred p,q; .reg .b16 l,h; setp.ne.b32 p,%2,0; setp.ne.b32 q,%3,0; " GET_GATE " }"
                         : "=&r"(word[n]) : "l"(source), "r"(present), "r"(present & (from + 1 < images)),
                         "n"(CHANNELS * ELEMENT_BYTES));
#endif
        }
    }

    // Gates that came through registers, before the first chunk's barrier.
    __device__ __forceinline__ void commit() const {
#if !ASYNCHRONOUS
#pragma unroll
        for (int n = 0; n < GATE_LOADS; ++n) {
            const int at = threadIdx.x + n * THREADS;
            asm volatile("{ .reg .pred p; setp.ne.b32 p,%0,0; @p st.shared.b32 [%1],%2; }"
                         :: "r"((int)(at < GATE_COUNT)), "r"(target(at)), "r"(word[n]) : "memory");
        }
#endif
    }

    __device__ __forceinline__ unsigned target(int at) const {
        return address + (at / GATE_PLACES * GATE_STEP + at % GATE_PLACES * GATE_UNIT) * 4;
    }
};
