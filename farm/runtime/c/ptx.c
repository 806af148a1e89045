/* See ptx.h. */
#include "ptx.h"

#include <string.h>

int farm_takes(const char *ptx, const char *kernel, const char *kinds) {
    static const char head[] = ".visible .entry ";
    static const char *const types[] = {"p.u64 ", "d.u32 ", "d.s32 ", "f.f32 "};
    const char *place = ptx, *end;
    size_t length = strlen(kernel), i;
    while ((place = strstr(place, head))) {
        place += sizeof head - 1;
        if (strncmp(place, kernel, length) == 0 && place[length] == '(') break;
    }
    end = place ? strchr(place, ')') : NULL;
    if (!end) return 0;
    while ((place = strstr(place, ".param ")) && place < end) {
        place += 7;
        for (i = 0; i < 4; i++)
            if (*types[i] == *kinds && strncmp(place, types[i] + 1, strlen(types[i]) - 1) == 0) break;
        if (i == 4 || !*kinds) return 0;
        kinds++;
    }
    return !*kinds;
}
