/* Cubins, which are ELF files. Internal: programs include farm.h. */
#ifndef FARM_ELF_H
#define FARM_ELF_H

#include <stddef.h>

/* Whether a file of code may be given to the driver, which is not told its size: a cubin whose tables, sections and
 * segments lie within it, or text, which a zero must follow. */
int farm_is_code(const char *data, size_t bytes);

/* Adds a variable to a cubin, which the driver sets to the address of the kernel's code: the C version of
 * farm/cuda/code_address.py. NULL for anything but a cubin with one kernel and no variables of its own. The caller frees
 * the result. */
char *farm_with_address(const char *data, size_t bytes, size_t *made_bytes, size_t *code_bytes);

#endif
