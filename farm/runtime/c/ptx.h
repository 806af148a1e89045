/* The kernels of a PTX text. Internal: programs include farm.h. */
#ifndef FARM_PTX_H
#define FARM_PTX_H

#include <stddef.h>

#include "plan.h"

typedef struct {
    const char *name;
    char kinds[MOST_ARGUMENTS + 1]; /* of its parameters: p for a pointer, d for a 32-bit integer, f for a float */
} farm_entry;

/* Finds the kernels of a text, sorted by name, in time linear in its size. Their names point into the text, which is
 * changed. A kernel with other parameters, or more, is left out. The caller frees the array. */
int farm_read_entries(char *ptx, farm_entry **entries, size_t *count);

/* Whether a kernel takes these arguments. The driver reads as many as the kernel has parameters, whatever it is given. */
int farm_takes(const farm_entry *entries, size_t count, const char *kernel, const char *kinds);

#endif
