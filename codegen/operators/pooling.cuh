// A max pool of 2x2: the four threads of a window leave their sums in shared memory, where the input was, and each takes
// the windows of every fourth output channel. `out` is this thread's window of the pooled map.
#define MEET __syncthreads()
#define LEAVE(p, j, bias, slot)      \
    ADD_BIAS(total[p][j], j, bias);  \
    tile[(slot) * CHANNEL_SUMS + thread] = total[p][j]
// The largest of a window of the output channels left from `slot` on, of which there are `count`.
#define TAKE(slot, count)                                                                                             \
    const float* const corner = first_corner + ((slot) + ONE_OF(count)) * CHANNEL_SUMS;                               \
    const float2 upper = *(const float2*)corner, lower = *(const float2*)(corner + TILE_WIDTH);                       \
    float largest = larger(larger(upper.x, upper.y), larger(lower.x, lower.y));                                       \
    asm volatile("{ .reg .pred q; .reg .f32 v,r; mov.f32 v,%0; " STEPS "mov.f32 %0,v; }" : "+f"(largest))
// A thread's own of so many output channels, where there is none another one. Not the smaller of two numbers: machine code
// without ptxas has no instruction for that.
#define ONE_OF(count) \
    ((count) == 4 ? quarter : (count) == 3 ? quarter - (quarter & quarter >> 1) : quarter & (count) - 1)
#define KEEP(j, i, ok, image, offset) STORE_AFTER("", largest, j, (quarter == (i)) & (ok), image, offset)

    const int quarter = row % 2 * 2 + column % 2;
    const float* const first_corner = tile + (thread - row % 2 * TILE_WIDTH - column % 2);
