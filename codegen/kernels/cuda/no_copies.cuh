// Before memory.cuh, for kernels without its copies to shared memory: they read their inputs in their own way.
#define LOOPED 0
#define POINTERS 1
#define HELD 1
#define ADVANCE 0
#define JUMP 0
#define JUMP_AFTER 1
#define GIVEN_UP_FIRST 0
#define PRESENT(j, channel) 0
#define ENABLED(channel, c) 0
