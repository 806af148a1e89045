/* A bundle that `farm fetch` wrote, on a GPU: its layers one by one, or its whole network.
 *
 * Compile farm.c with your program and link with the CUDA driver: cc program.c farm.c -lcuda
 * A CUDA context must be current in every call, the same for all calls with a bundle. Functions that give an int give 0,
 * or -1 and a message in farm_error(). A bundle serves one call at a time.
 */
#ifndef FARM_H
#define FARM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As cuda.h has them, which need not be installed. */
#ifndef __cuda_cuda_h__
typedef unsigned long long CUdeviceptr;
typedef struct CUstream_st *CUstream;
#endif

typedef struct farm_bundle farm_bundle;

typedef struct {
    const char *name;
    size_t input_bytes;  /* of one image, or of one row of a linear layer */
    size_t output_bytes; /* the residual's too */
    int has_residual;
    size_t gate_bytes; /* of an image, where the input is multiplied by gates; else 0 */
} farm_layer;

typedef struct {
    const char *name;
    const char *dtype; /* float32, float16 or bfloat16 */
    size_t image_bytes;
    int rows;         /* the first size of its shape, for each image: mostly 1 */
    int rank;         /* how many sizes follow */
    const int *shape; /* these */
} farm_port;

/* What went wrong in this thread last. */
const char *farm_error(void);

/* Opens a folder or a .farm file, and loads the code of every layer for the GPU of the current context. */
int farm_open(const char *path, farm_bundle **bundle);
void farm_close(farm_bundle *bundle);

int farm_layer_count(const farm_bundle *bundle);
const farm_layer *farm_get_layer(const farm_bundle *bundle, int layer);
/* The number of a layer, or -1. */
int farm_find_layer(const farm_bundle *bundle, const char *name);

/* Enqueues a layer on a stream. Pointers are multiples of 16 bytes; the residual is 0 where the layer adds none, the gate
 * where it has none. */
int farm_run_layer(
    farm_bundle *bundle, int layer, int images, CUdeviceptr input, CUdeviceptr output, CUdeviceptr residual,
    CUdeviceptr gate, CUstream stream);

/* How many inputs and outputs the network has; both 0 where the bundle's network has operators that are not run here,
 * which farm_run names. */
int farm_input_count(const farm_bundle *bundle);
int farm_output_count(const farm_bundle *bundle);
const farm_port *farm_input(const farm_bundle *bundle, int number);
const farm_port *farm_output(const farm_bundle *bundle, int number);

/* Enqueues the whole network on a stream. The first call with so many images allocates its buffers, so that later ones
 * can be recorded as a CUDA graph. */
int farm_run(
    farm_bundle *bundle, int images, const CUdeviceptr *inputs, const CUdeviceptr *outputs, CUstream stream);

#ifdef __cplusplus
}
#endif
#endif
