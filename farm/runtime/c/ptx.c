/* See ptx.h. */
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

static const char head[] = ".visible .entry ";

/* Reads the kinds of parameters, or returns -1. */
static int read_kinds(const char *parameters, char *kinds) {
    static const char *const types[] = {"p.u64 ", "d.u32 ", "d.s32 ", "f.f32 "};
    size_t count = 0, i;
    for (; (parameters = strstr(parameters, ".param ")); count++) {
        parameters += 7;
        for (i = 0; i < 4; i++)
            if (strncmp(parameters, types[i] + 1, strlen(types[i]) - 1) == 0) break;
        if (i == 4 || count == MOST_ARGUMENTS) return -1;
        kinds[count] = *types[i];
    }
    kinds[count] = 0;
    return 0;
}

static int by_name(const void *one, const void *other) {
    return strcmp(((const farm_entry *)one)->name, ((const farm_entry *)other)->name);
}

int farm_read_entries(char *ptx, farm_entry **entries, size_t *count) {
    size_t most = 0;
    const char *place;
    *count = 0;
    for (place = ptx; (place = strstr(place, head)); place += sizeof head - 1) most++;
    *entries = calloc(most + 1, sizeof **entries);
    if (!*entries) return farm_fail("out of memory");
    while ((ptx = strstr(ptx, head))) {
        char *name = ptx + sizeof head - 1, *parameters = name + strcspn(name, "(\n"), *end;
        ptx = name;
        if (*parameters != '(') continue;
        end = strchr(parameters, ')');
        if (!end) break;
        ptx = end + 1;
        *parameters = *end = 0;
        (*entries)[*count].name = name;
        if (read_kinds(parameters + 1, (*entries)[*count].kinds) == 0) ++*count;
    }
    qsort(*entries, *count, sizeof **entries, by_name);
    return 0;
}

int farm_takes(const farm_entry *entries, size_t count, const char *kernel, const char *kinds) {
    farm_entry wanted;
    const farm_entry *found;
    wanted.name = kernel;
    found = bsearch(&wanted, entries, count, sizeof wanted, by_name);
    return found && strcmp(found->kinds, kinds) == 0;
}
