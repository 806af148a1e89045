/* Runs a bundle of `farm fetch` on a GPU: single layers, or the whole network.
 *
 * Compile all files of this folder with your program and link with the CUDA driver: cc program.c error.c
 * elf.c farm.c members.c plan.c ptx.c sha256.c -lcuda
 * Bundles are hostile input: one that breaks the rules of its format, or whose files differ from their digests, is refused.
 * A CUDA context must be current in every call, the same for all calls with a bundle. Functions for actions return 0,
 * or -1 with a message in farm_error(). A bundle serves one call at a time.
 */
#ifndef FARM_H
#define FARM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The types of cuda.h, which need not be installed. */
#ifndef __cuda_cuda_h__
typedef unsigned long long CUdeviceptr;
typedef struct CUstream_st *CUstream;
#endif

typedef struct farm_bundle farm_bundle;

typedef struct {
    const char *name; /* UTF-8, as the model has it; show it with care */
    size_t input_bytes;  /* of one image, or of one row of a linear layer */
    size_t output_bytes; /* also of the residual */
    int has_residual;
    size_t gate_bytes; /* for one image, 0 if the layer has no gates */
} farm_layer;

typedef struct {
    const char *name;
    const char *dtype; /* float32, float16 or bfloat16 */
    size_t image_bytes;
    int rows;         /* first size of the shape for each image: mostly 1 */
    int rank;         /* number of other sizes */
    const int *shape; /* the other sizes */
} farm_port;

/* The message of the last error in this thread. */
const char *farm_error(void);

/* Opens a folder or a .farm file, and loads the code of every layer for the GPU of the current context. */
int farm_open(const char *path, farm_bundle **bundle);
void farm_close(farm_bundle *bundle);

int farm_layer_count(const farm_bundle *bundle);
const farm_layer *farm_get_layer(const farm_bundle *bundle, int layer);
/* The number of a layer, or -1. */
int farm_find_layer(const farm_bundle *bundle, const char *name);

/* Enqueues a layer on a stream. Pointers are multiples of 16 bytes; residual and gate are 0 if the layer has none. */
int farm_run_layer(
    farm_bundle *bundle, int layer, int images, CUdeviceptr input, CUdeviceptr output, CUdeviceptr residual,
    CUdeviceptr gate, CUstream stream);

/* Number of inputs and outputs of the network. Both are 0 if it has operators that the runtime does not run; farm_run
 * names them. */
int farm_input_count(const farm_bundle *bundle);
int farm_output_count(const farm_bundle *bundle);
const farm_port *farm_input(const farm_bundle *bundle, int number);
const farm_port *farm_output(const farm_bundle *bundle, int number);

/* Number of steps of the network: compiled layers, and kernels between them. */
int farm_step_count(const farm_bundle *bundle);

/* Enqueues the whole network on a stream. The first call with a number of images allocates memory for the tensors between
 * the layers, so that later ones can be recorded as a CUDA graph. */
int farm_run(
    farm_bundle *bundle, int images, const CUdeviceptr *inputs, const CUdeviceptr *outputs, CUstream stream);

/* Enqueues the whole network, with the tensors between the layers in memory of the caller's: at a multiple of 16 bytes,
 * and of as many bytes as farm_workspace_bytes gives. Work in one workspace must not overlap in time. */
int farm_run_in(
    farm_bundle *bundle, int images, const CUdeviceptr *inputs, const CUdeviceptr *outputs, CUdeviceptr workspace,
    CUstream stream);
int farm_workspace_bytes(farm_bundle *bundle, int images, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
