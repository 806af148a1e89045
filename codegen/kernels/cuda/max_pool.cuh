// A max pool: the first four positions of a window belong to four threads, or with two rows a thread to two. They leave
// their sums in shared memory, where the input was, and each takes the windows of every fourth output channel, or of
// every second. `out` is this thread's window of the pooled map.
#define MEET __syncthreads()
#define LEFT_AT(slot) ((slot) * CHANNEL_SUMS + (slot) / 2 * SUMS_SKEW)
#if ROWS == 2
// The larger sum of the two rows, and that of the first row, which the window above has as well.
#define LEAVE(p, j, bias, slot)                                                                                  \
    ADD_BIAS(total[p][j], j, bias);                                                                              \
    ADD_BIAS(total[(p) + PAIRS][j], j, bias);                                                                    \
    tile[LEFT_AT(slot) + thread] = larger(above_map ? total[(p) + PAIRS][j] : total[p][j], total[(p) + PAIRS][j]); \
    tile[LEFT_AT((slot) + 2) + thread] = total[p][j]
#else
#define LEAVE(p, j, bias, slot)      \
    ADD_BIAS(total[p][j], j, bias);  \
    tile[LEFT_AT(slot) + thread] = total[p][j]
#endif
// The largest of a window of the output channels left from `slot` on, of which there are `count`.
#define TAKE(slot, count)                                                                                             \
    const float* const corner = first_corner + LEFT_AT((slot) + ONE_OF(count));                                       \
    FIND_LARGEST                                                                                                      \
    asm volatile("{ .reg .pred q; .reg .f32 v,r; mov.f32 v,%0; " STEPS "mov.f32 %0,v; }" : "+f"(largest))
// The thread's own among `count` output channels, or another one beyond. Not by `min`: the assembler does not support
// it.
#define ONE_OF(count) \
    ((count) == 4 ? quarter : (count) == 3 ? quarter - (quarter & quarter >> 1) : quarter & (count) - 1)
#if ROWS == 2
#define KEEP(j, i, ok, image, offset)    \
    KEEP_IT(j, i, ok, image, offset);    \
    NEVER_STORE(j, image, offset)
#else
#define KEEP KEEP_IT
#endif
#define KEEP_IT(j, i, ok, image, offset) STORE_AFTER("", largest, j, (quarter == (i)) & HAS_WINDOW(ok), image, offset)

    const int quarter = row % 2 * 2 + column % 2;
#if OVERLAP
    // Beyond the last windows of the tile a thread has none, and reads the one before.
    const int has_window = row < TILE_STEP_Y && column < TILE_STEP_X;
    const int window_row = (row & -2) - (row >= TILE_STEP_Y ? 2 : 0);
    const int window_column = (column & -2) - (column >= TILE_STEP_X ? 2 : 0);
    // Elements beside the map are read at the middle of the window, which is within the map.
    const int first_row = tile_row + window_row - POOL_TOP, first_column = tile_column + window_column - POOL_LEFT;
    const int before = POOL_LEFT ? first_column >= 0 : 1, after = BEYOND ? first_column + 2 < MAP_WIDTH : 1;
    const float* const first_corner = tile + (thread - row / ROWS * TILE_WIDTH - column) +
                                      ((window_row / ROWS + 2 - ROWS) * TILE_WIDTH + window_column + 1);
#define ACROSS(place) larger(larger(corner[(place) - before], corner[(place) + after]), corner[place])
#if ROWS == 2
    const bool above_map = POOL_TOP && tile_row + row == 0;
    const int below = LEFT_AT(2) + TILE_WIDTH, down = BELOW ? below & -(first_row + 2 < MAP_HEIGHT) : below;
#define FIND_LARGEST float largest = larger(ACROSS(0), ACROSS(down));
#else
    const int up = POOL_TOP ? TILE_WIDTH & -(first_row >= 0) : TILE_WIDTH;
    const int down = BELOW ? TILE_WIDTH & -(first_row + 2 < MAP_HEIGHT) : TILE_WIDTH;
#define FIND_LARGEST float largest = larger(larger(ACROSS(-up), ACROSS(down)), ACROSS(0));
#endif
#define HAS_WINDOW(ok) (has_window & (ok))
#else
    const float* const first_corner = tile + (thread - row % 2 * TILE_WIDTH - column % 2);
#define FIND_LARGEST                                                                                 \
    const float2 upper = *(const float2*)corner, lower = *(const float2*)(corner + TILE_WIDTH);      \
    float largest = larger(larger(upper.x, upper.y), larger(lower.x, lower.y));
#define HAS_WINDOW(ok) (ok)
#endif
