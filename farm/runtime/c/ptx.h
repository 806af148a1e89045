/* The parameters of kernels in PTX. Internal: programs include farm.h. */
#ifndef FARM_PTX_H
#define FARM_PTX_H

/* Whether a kernel takes these arguments: `kinds` has a letter for each, p for a pointer, d for a 32-bit integer, f for a
 * float. The driver reads as many arguments as a kernel has parameters, whatever it is given. */
int farm_takes(const char *ptx, const char *kernel, const char *kinds);

#endif
