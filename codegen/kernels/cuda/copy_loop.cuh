// Copies to shared memory in a loop of the kernel, for chunks so large that a line of code for each copy would be most
// of the code. A thread has the same elements of every n-th row, and copies only rows of the batch.
//
// Each loop is one line of PTX in a scope of its own: the rewriter repeats it with the chunk, labels and all.
#define ROW_UNITS (CHUNK_CHANNELS / UNIT)
#define PASS_ROWS (THREADS * BLOCK_GROUPS / ROW_UNITS)

struct Copies {
    const Element* source;
    unsigned target;
    // The address after the last row of the batch that the block has, in the first stage.
    unsigned end;
#if DATA_TYPE == FLOAT16
    // That address for the rows of its upper halves; before the first one if there are none.
    int upper_end;
#endif
    // Elements of the row from this thread's first on: none if the thread copies nothing.
    int channels;

    __device__ __forceinline__ void begin(const Element* rows, int first, unsigned thread, int count, int upper_count, unsigned tile) {
        const unsigned row = thread / ROW_UNITS, channel = thread % ROW_UNITS * UNIT;
        source = rows + (size_t)row * CHANNELS + first + channel;
        target = tile + (row * ROW_WORDS + channel) * 4;
        end = tile + min(count, THREADS * ROWS) * (ROW_WORDS * 4);
#if DATA_TYPE == FLOAT16
        upper_end = (int)tile + min(upper_count, THREADS * ROWS) * (ROW_WORDS * 4);
#endif
        channels = CHANNELS % (CLUSTER * CHUNK_CHANNELS) ? min(CHANNELS - first - (int)channel, SHARE_CHANNELS) : SHARE_CHANNELS;
        if (THREADS * BLOCK_GROUPS % ROW_UNITS) channels &= -(int)(row < PASS_ROWS);
    }

    __device__ __forceinline__ void fetch(int channel, unsigned stage) {
        // A mask: a conditional expression could become a branch.
        const unsigned last = (end + stage) & -(unsigned)(channel < channels);
#define NEXT_ROW "add.s64 s,s,%3; "
#if ASYNCHRONOUS
#if UNIT == 4
#define COPY_ROW "cp.async.cg.shared.global [t],[s],16; " NEXT_ROW "add.u32 t,t,%4; "
#else
#define COPY_ROW "cp.async.ca.shared.global [t],[s],4; " NEXT_ROW "add.u32 t,t,%4; "
#endif
#else
// Four rows at a time, whose loads wait together.
#if DATA_TYPE == FLOAT16
// A word is a half of a row above one of the row that lies as many before it as the block has threads.
#if UNIT == 4
#define LOAD_PAIR(n) "@p" n " " READ ".v2.b32 {a" n ",b" n "},[s]; @q" n " " READ ".v2.b32 {c" n ",d" n "},[s+%6]; "
#define STORE_PAIR(n)                                                                                              \
    "prmt.b32 u,a" n ",c" n ",0x5410; prmt.b32 v,a" n ",c" n ",0x7632; prmt.b32 w,b" n ",d" n ",0x5410; "           \
    "prmt.b32 x,b" n ",d" n ",0x7632; @p" n " st.shared.v4.b32 [t],{u,v,w,x}; "
#else
#define LOAD_PAIR(n) "@p" n " " READ ".u16 a" n ",[s]; @q" n " " READ ".u16 c" n ",[s+%6]; "
#define STORE_PAIR(n) "prmt.b32 u,a" n ",c" n ",0x5410; @p" n " st.shared.b32 [t],u; "
#endif
#define LOAD_ROW(n)                                                                                                \
    "setp.lt.u32 p" n ",u,%2; setp.lt.s32 q" n ",u,%5; mov.b32 c" n ",0; mov.b32 d" n ",0; " LOAD_PAIR(n)           \
    NEXT_ROW "add.u32 u,u,%4; "
#define STORE_ROW(n) STORE_PAIR(n) "add.u32 t,t,%4; "
#else
#if UNIT == 4
#define WORDS ".v4.b32"
#define ROW(n) "{a" n ",b" n ",c" n ",d" n "}"
#else
#define WORDS ".b32"
#define ROW(n) "a" n
#endif
#define LOAD_ROW(n) "setp.lt.u32 p" n ",u,%2; @p" n " " READ WORDS " " ROW(n) ",[s]; " NEXT_ROW "add.u32 u,u,%4; "
#define STORE_ROW(n) "@p" n " st.shared" WORDS " [t]," ROW(n) "; add.u32 t,t,%4; "
#endif
#define COPY_ROW                                                                                                       \
    "mov.b32 u,t; " LOAD_ROW("0") LOAD_ROW("1") LOAD_ROW("2") LOAD_ROW("3")                                             \
    STORE_ROW("0") STORE_ROW("1") STORE_ROW("2") STORE_ROW("3")
#endif
#if DATA_TYPE == FLOAT16
#define UPPER_REGISTERS ".reg .pred q0,q1,q2,q3; .reg .b32 v,w,x; "
#define UPPER_OPERANDS , "r"(upper_end + (int)stage), "n"((PAIR_OFFSET) * ELEMENT_BYTES)
#else
#define UPPER_REGISTERS
#define UPPER_OPERANDS
#endif
        asm volatile("{ " UPPER_REGISTERS ".reg .pred p,p0,p1,p2,p3; .reg .b64 s; .reg .b32 t,u,a0,b0,c0,d0,a1,b1,c1,d1,a2,b2,c2,d2,a3,b3,c3,d3; "
                     "setp.ge.u32 p,%0,%2; @p bra done; mov.b64 s,%1; mov.b32 t,%0; "
                     "next: .pragma \"nounroll\"; " COPY_ROW "setp.lt.u32 p,t,%2; @p bra next; done: }"
                     :: "r"(target + stage), "l"(source), "r"(last), "n"(PASS_ROWS * CHANNELS * ELEMENT_BYTES),
                     "n"(PASS_ROWS * ROW_WORDS * 4) UPPER_OPERANDS : "memory");
#if ASYNCHRONOUS
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
        source += ADVANCE;
    }
    __device__ __forceinline__ void commit(int channel, unsigned stage, unsigned nothing) const {}
};
