/* The compiled layers of a bundle, as AOTInductor's code calls them. farm/torch/package.py links this file, the C
 * runtime and the bundle itself into the code of a .pt2 package, which then needs no other file and no Python.
 *
 * Built with ENTRY, the name of the function, and BUNDLE, the path of the .farm file to contain.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "error.h"
#include "farm.h"

#define ALIGNMENT 16
#define MOST_DEVICES 64
#define MOST_RANK 8

/* The C interface of PyTorch that AOTInductor's code uses too; its header is C++. Functions return 0, or 1 after they
 * have printed why. */
typedef struct tensor *tensor;
int32_t aoti_torch_get_data_ptr(tensor from, void **pointer);
int32_t aoti_torch_get_dim(tensor from, int64_t *rank);
int32_t aoti_torch_get_sizes(tensor from, int64_t **sizes);
int32_t aoti_torch_get_numel(tensor from, int64_t *count);
int32_t aoti_torch_get_dtype(tensor from, int32_t *dtype);
int32_t aoti_torch_get_device_type(tensor from, int32_t *type);
int32_t aoti_torch_get_device_index(tensor from, int32_t *index);
int32_t aoti_torch_is_contiguous(tensor from, _Bool *is_contiguous);
size_t aoti_torch_dtype_element_size(int32_t dtype);
int32_t aoti_torch_empty_strided(
    int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type, int32_t device_index,
    tensor *made);
int32_t aoti_torch_copy_(tensor to, tensor from, int32_t non_blocking);
int32_t aoti_torch_delete_tensor_object(tensor given);
int32_t aoti_torch_get_current_cuda_stream(int32_t device_index, void **stream);

typedef int CUresult;
typedef struct CUctx_st *CUcontext;
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxGetDevice(int *device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, int device);

/* The bundle's file, inside this library. */
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    "bundle_begin:\n"
    ".incbin \"" BUNDLE "\"\n"
    "bundle_end:\n"
    ".previous\n");
extern const char bundle_begin[], bundle_end[]; /* in this file */

static struct {
    farm_bundle *bundle;
    CUcontext context;
} loaded[MOST_DEVICES]; /* by GPU */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a bundle serves one call at a time */

static int check(int32_t failed, const char *what) { return failed ? farm_fail("%s failed", what) : 0; }

#define CHECK(call) TRY(check((int32_t)(call), #call))

/* Writes the bundle to a file in memory, which its reader opens by path. */
static int open_contained(farm_bundle **bundle) {
    const char *from = bundle_begin;
    char path[64];
    int file = memfd_create("bundle.farm", MFD_CLOEXEC), failed = 0;
    if (file < 0) return farm_fail("no memory for a bundle of %lld bytes", (long long)(bundle_end - bundle_begin));
    while (!failed && from < bundle_end) {
        ssize_t count = write(file, from, (size_t)(bundle_end - from));
        if (count > 0) from += count;
        else failed = farm_fail("no memory for a bundle of %lld bytes", (long long)(bundle_end - bundle_begin));
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    failed = failed || farm_open(path, bundle) != 0;
    close(file);
    return failed ? -1 : 0;
}

/* Finds the bundle on the GPU of the current context, and loads it at the first call. */
static int find_bundle(int32_t index, farm_bundle **bundle) {
    CUcontext context = NULL;
    int device;
    CHECK(cuCtxGetCurrent(&context));
    if (!context) { /* a thread in which PyTorch has not called CUDA yet */
        CHECK(cuDevicePrimaryCtxRetain(&context, index));
        CHECK(cuCtxSetCurrent(context));
    }
    CHECK(cuCtxGetDevice(&device));
    if (device < 0 || device >= MOST_DEVICES) return farm_fail("GPU %d is beyond the first %d", device, MOST_DEVICES);
    if (!loaded[device].bundle) {
        TRY(open_contained(&loaded[device].bundle));
        loaded[device].context = context;
    }
    *bundle = loaded[device].bundle;
    return 0;
}

/* Unloads the bundles when the model is unloaded; at the end of the process the driver may be gone already. */
__attribute__((destructor)) static void unload(void) {
    int device;
    CUcontext context;
    for (device = 0; device < MOST_DEVICES; device++) {
        if (!loaded[device].bundle || cuCtxPushCurrent_v2(loaded[device].context) != 0) continue;
        farm_close(loaded[device].bundle);
        cuCtxPopCurrent_v2(&context);
    }
}

static int address_of(tensor of, CUdeviceptr *address) {
    void *pointer;
    CHECK(aoti_torch_get_data_ptr(of, &pointer));
    *address = (CUdeviceptr)(uintptr_t)pointer;
    return 0;
}

static int bytes_of(tensor of, uint64_t *bytes) {
    int64_t count;
    int32_t dtype;
    CHECK(aoti_torch_get_numel(of, &count));
    CHECK(aoti_torch_get_dtype(of, &dtype));
    *bytes = (uint64_t)count * aoti_torch_dtype_element_size(dtype);
    return 0;
}

/* Makes a contiguous tensor of the data type and on the device of another. */
static int make_beside(tensor other, int64_t rank, const int64_t *sizes, tensor *made) {
    int64_t strides[MOST_RANK], i, step = 1;
    int32_t dtype, type, index;
    if (rank > MOST_RANK) return farm_fail("a tensor has %lld dimensions", (long long)rank);
    for (i = rank - 1; i >= 0; i--) {
        strides[i] = step;
        step *= sizes[i] > 1 ? sizes[i] : 1;
    }
    CHECK(aoti_torch_get_dtype(other, &dtype));
    CHECK(aoti_torch_get_device_type(other, &type));
    CHECK(aoti_torch_get_device_index(other, &index));
    CHECK(aoti_torch_empty_strided(rank, sizes, strides, dtype, type, index, made));
    return 0;
}

/* The address of a tensor, or of a copy if it is not contiguous or not aligned. The caller deletes the copy. */
static int place_of(tensor given, CUdeviceptr *address, tensor *copy) {
    _Bool is_contiguous;
    int64_t rank, *sizes;
    CHECK(aoti_torch_is_contiguous(given, &is_contiguous));
    TRY(address_of(given, address));
    if (is_contiguous && *address % ALIGNMENT == 0) return 0;
    CHECK(aoti_torch_get_dim(given, &rank));
    CHECK(aoti_torch_get_sizes(given, &sizes));
    TRY(make_beside(given, rank, sizes, copy));
    CHECK(aoti_torch_copy_(*copy, given, 1));
    return address_of(*copy, address);
}

typedef struct {
    tensor input, residual, gate, output; /* residual and gate may be NULL */
} tensors;

/* The number of images, after a check that every tensor has the bytes of as many. */
static int count_images(const farm_layer *about, tensors given, int *images) {
    const tensor each[] = {given.input, given.output, given.residual, given.gate};
    const size_t image_bytes[] = {about->input_bytes, about->output_bytes, about->output_bytes, about->gate_bytes};
    uint64_t bytes, count = 0;
    int i;
    for (i = 0; i < 4; i++) {
        if (!each[i]) continue;
        TRY(bytes_of(each[i], &bytes));
        count = i ? count : bytes / image_bytes[0];
        if (bytes != count * image_bytes[i] || count > INT_MAX)
            return farm_fail("layer %s is given tensors of other sizes than its own", about->name);
    }
    *images = (int)count;
    return 0;
}

static int launch(farm_bundle *bundle, int64_t layer, tensors given, int32_t index, tensor copies[3]) {
    const farm_layer *about = layer >= 0 && layer <= INT_MAX ? farm_get_layer(bundle, (int)layer) : NULL;
    CUdeviceptr input, output, residual = 0, gate = 0;
    void *stream;
    int images;
    if (!about) return farm_fail("the bundle has no layer %lld", (long long)layer);
    TRY(count_images(about, given, &images));
    if (images == 0) return 0;
    TRY(address_of(given.output, &output));
    TRY(place_of(given.input, &input, &copies[0]));
    if (given.residual) TRY(place_of(given.residual, &residual, &copies[1]));
    if (given.gate) TRY(place_of(given.gate, &gate, &copies[2]));
    CHECK(aoti_torch_get_current_cuda_stream(index, &stream));
    return farm_run_layer(bundle, (int)layer, images, input, output, residual, gate, (CUstream)stream);
}

static int run(int64_t layer, tensors given, int64_t rank, const int64_t *sizes, tensor *output) {
    tensor copies[3] = {NULL, NULL, NULL};
    farm_bundle *bundle;
    int32_t index;
    int failed, i;
    CHECK(aoti_torch_get_device_index(given.input, &index));
    TRY(make_beside(given.input, rank, sizes, output));
    given.output = *output;
    pthread_mutex_lock(&lock);
    failed = find_bundle(index, &bundle) != 0 || launch(bundle, layer, given, index, copies) != 0;
    pthread_mutex_unlock(&lock);
    for (i = 0; i < 3; i++)
        if (copies[i]) aoti_torch_delete_tensor_object(copies[i]);
    if (failed) aoti_torch_delete_tensor_object(*output);
    return failed ? -1 : 0;
}

int32_t ENTRY(
    tensor input, tensor *residual, tensor *gate, int64_t layer, const int64_t *sizes, int64_t rank, tensor *output) {
    tensors given = {input, residual ? *residual : NULL, gate ? *gate : NULL, NULL};
    if (run(layer, given, rank, sizes, output) == 0) return 0;
    fprintf(stderr, "farm: %s\n", farm_error());
    return 1;
}
