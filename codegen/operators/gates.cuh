    // The gates of a block's images, of the channels of its stream, into shared memory: before the first chunk's barrier.
    // A word has the gates of as many images as a word of the input; those of images or channels that there are not are
    // zero.
#if DATA_TYPE == FLOAT32
#define GET_GATE "mov.b32 a,0; @p ld.global.nc.b32 a,[%3];"
#elif DATA_TYPE == BFLOAT16
#define GET_GATE "mov.b16 h,0; mov.b16 l,h; @p ld.global.nc.b16 h,[%3]; mov.b32 a,{l,h};"
#elif PAIR_IMAGES == 2
#define GET_GATE "mov.b16 h,0; mov.b16 l,h; @p ld.global.nc.b16 l,[%3]; @q ld.global.nc.b16 h,[%3+%5]; mov.b32 a,{l,h};"
#else
#define GET_GATE "mov.b16 h,0; @p ld.global.nc.b16 h,[%3]; mov.b32 a,{h,h};"
#endif
#pragma unroll
    for (int n = 0; n < (GATE_COUNT + THREADS - 1) / THREADS; ++n) {
        const unsigned at = thread + n * THREADS, i = at / GATE_PLACES, c = at % GATE_PLACES;
        const int from = first_image + i * PAIR_IMAGES, in_block = at < GATE_COUNT, exists = in_block & (c < GATE_CHANNELS);
        const int present = exists & (from < images), second = exists & (from + 1 < images);
        asm volatile("{ .reg .pred p,q,t; .reg .b16 l,h; .reg .b32 a; setp.ne.b32 p,%0,0; setp.ne.b32 q,%1,0; "
                     "setp.ne.b32 t,%2,0; " GET_GATE " @t st.shared.b32 [%4],a; }"
                     :: "r"(present), "r"(second), "r"(in_block), "l"(gate + (long long)from * CHANNELS + first_channel + c),
                     "r"(tile_address + (GATES + i * GATE_STEP + c) * 4), "n"(CHANNELS * ELEMENT_BYTES) : "memory");
    }
    const unsigned own_gates = tile_address + (GATES + image / PAIR_IMAGES * GATE_STEP) * 4;
