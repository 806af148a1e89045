// Helpers of blocks that divide the channels of a K group: copies of a chunk in loops, and the exchange of sums.
//
// In shared memory four channels lie side by side: [image][channels / 4][place of the tile][4], so that a thread loads
// those at a place together. Zeros around the map are copied too, as copies of no bytes.
#define LOAD_QUAD(x, place)                                              \
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4+%5];"               \
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])        \
                 : "r"((unsigned)__cvta_generic_to_shared(in)), "n"((place) * 16));
struct Copies {
    const Element* source[POINTERS];
    unsigned target[POINTERS];
    // Bytes that a thread copies of a place in each channel: 0 beside the map.
    unsigned bytes[POINTERS];
    // Offset from the first four channels of a chunk to the end of its last: 0 beyond the tile.
    unsigned length[POINTERS];

    // One line of PTX each, which the rewriter repeats with the chunk, label and all.
    __device__ __forceinline__ void fetch(int channel, unsigned stage) {
#pragma unroll
        for (int j = 0; j < POINTERS; ++j) {
            const unsigned end = target[j] + stage + (length[j] & -(unsigned)(channel < SHARE_CHANNELS));
            asm volatile("{ .reg .pred p; .reg .b64 s; .reg .b32 t; mov.b64 s,%1; mov.b32 t,%0; "
                         "setp.ge.u32 p,t,%2; @p bra done; next: .pragma \"nounroll\"; "
                         "cp.async.ca.shared.global [t],[s],4,%3; cp.async.ca.shared.global [t+4],[s+%4],4,%3; "
                         "cp.async.ca.shared.global [t+8],[s+%5],4,%3; cp.async.ca.shared.global [t+12],[s+%6],4,%3; "
                         "add.s64 s,s,%7; add.u32 t,t,%8; setp.lt.u32 p,t,%2; @p bra next; done: }"
                         :: "r"(target[j] + stage), "l"(source[j]), "r"(end), "r"(bytes[j]), "n"(CHANNEL_STEP * 4),
                         "n"(CHANNEL_STEP * 8), "n"(CHANNEL_STEP * 12), "n"(CHANNEL_STEP * 16), "n"(PLANE * 16) : "memory");
            source[j] += CHUNK_CHANNELS * CHANNEL_STEP;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    __device__ __forceinline__ void commit(int channel, unsigned stage, unsigned nothing) const {}
};
