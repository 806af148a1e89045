/* The subgraphs of a network that the C runtime runs, as AOTInductor's code calls them. farm/torch/packages/aot_inductor.py links this
 * file, the C runtime and a bundle for each subgraph into the code of a .pt2 package, which then needs no other file and no
 * Python.
 *
 * A subgraph of several steps is recorded as a CUDA graph for each number of images, since launching one graph takes the
 * CPU less time than launching its kernels. The graph works in memory of its own, between which and the tensors a call
 * copies.
 *
 * Built with ENTRY, the name of the function, and SUBGRAPHS, the number of bundles.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "error.h"
#include "farm.h"

#define ALIGNMENT 16 /* of tensors */
#define MEMORY_ALIGNMENT 256 /* of tensors in the memory of recorded graphs */
#define LEAST_RECORDED 4 /* steps; fewer are launched in less time than a graph and its copies */
#define MOST_DEVICES 64
#define MOST_GRAPHS 64 /* of a subgraph on a GPU; other numbers of images are launched step by step */
#define MOST_PORTS 64
#define MOST_RANK 16

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
int32_t aoti_torch_dtype_uint8(void);
int32_t aoti_torch_empty_strided(
    int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type, int32_t device_index,
    tensor *made);
int32_t aoti_torch_copy_(tensor to, tensor from, int32_t non_blocking);
int32_t aoti_torch_delete_tensor_object(tensor given);
int32_t aoti_torch_get_current_cuda_stream(int32_t device_index, void **stream);

typedef int CUresult;
typedef struct CUctx_st *CUcontext;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxGetDevice(int *device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, int device);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphExecDestroy(CUgraphExec graph);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);

/* The bundles' files, inside this library: where each begins, and where the last one ends. */
extern const char *const subgraph_bundles[SUBGRAPHS + 1];

/* A subgraph on a GPU. */
typedef struct {
    farm_bundle *bundle;
    CUcontext context;
    CUstream recorder;
    CUevent replayed; /* recorded after each replay, since graphs share their memory */
    CUdeviceptr memory; /* of the graphs */
    int memory_images; /* the largest number of images that it has room for */
    struct {
        int images;
        CUgraphExec graph;
    } graphs[MOST_GRAPHS];
    int graph_count;
} subgraph;

static subgraph *loaded[SUBGRAPHS][MOST_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a bundle serves one call at a time */

/* Inputs and outputs of a call: addresses, in the order of the bundle's ports. */
typedef struct {
    CUdeviceptr inputs[MOST_PORTS], outputs[MOST_PORTS];
} places;

static int check(int32_t failed, const char *what) { return failed ? farm_fail("%s failed", what) : 0; }

#define CHECK(call) TRY(check((int32_t)(call), #call))

/* Writes a bundle to a file in memory, which its reader opens by path. */
static int open_contained(int number, farm_bundle **bundle) {
    const char *from = subgraph_bundles[number], *end = subgraph_bundles[number + 1];
    char path[64];
    int file = memfd_create("bundle.farm", MFD_CLOEXEC), failed = 0;
    if (file < 0) return farm_fail("no memory for a bundle of %lld bytes", (long long)(end - from));
    while (!failed && from < end) {
        ssize_t count = write(file, from, (size_t)(end - from));
        if (count > 0) from += count;
        else failed = farm_fail("no memory for a bundle of %lld bytes", (long long)(end - from));
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    failed = failed || farm_open(path, bundle) != 0;
    close(file);
    return failed ? -1 : 0;
}

static void drop_graphs(subgraph *of) {
    while (of->graph_count) cuGraphExecDestroy(of->graphs[--of->graph_count].graph);
    if (of->memory) cuMemFree_v2(of->memory);
    of->memory = 0;
    of->memory_images = 0;
}

static void unload(subgraph *of) {
    drop_graphs(of);
    if (of->recorder) cuStreamDestroy_v2(of->recorder);
    if (of->replayed) cuEventDestroy_v2(of->replayed);
    farm_close(of->bundle);
    free(of);
}

static int load(subgraph *of, int number) {
    TRY(open_contained(number, &of->bundle));
    if (farm_input_count(of->bundle) > MOST_PORTS || farm_output_count(of->bundle) > MOST_PORTS)
        return farm_fail("a subgraph has more than %d inputs or outputs", MOST_PORTS);
    CHECK(cuStreamCreate(&of->recorder, 1));
    CHECK(cuEventCreate(&of->replayed, 2));
    return 0;
}

/* Finds a subgraph on the GPU of the current context, and loads it at the first call. */
static int find_subgraph(int number, int32_t index, subgraph **found) {
    CUcontext context = NULL;
    int device;
    CHECK(cuCtxGetCurrent(&context));
    if (!context) { /* a thread in which PyTorch has not called CUDA yet */
        CHECK(cuDevicePrimaryCtxRetain(&context, index));
        CHECK(cuCtxSetCurrent(context));
    }
    CHECK(cuCtxGetDevice(&device));
    if (device < 0 || device >= MOST_DEVICES) return farm_fail("GPU %d is beyond the first %d", device, MOST_DEVICES);
    if (!loaded[number][device]) {
        subgraph *made = calloc(1, sizeof *made);
        if (!made) return farm_fail("out of memory");
        made->context = context;
        if (load(made, number) != 0) {
            unload(made);
            return -1;
        }
        loaded[number][device] = made;
    }
    *found = loaded[number][device];
    return 0;
}

/* Unloads the bundles when the model is unloaded; at the end of the process the driver may be gone already. */
__attribute__((destructor)) static void unload_all(void) {
    int number, device;
    CUcontext context;
    for (number = 0; number < SUBGRAPHS; number++)
        for (device = 0; device < MOST_DEVICES; device++) {
            subgraph *each = loaded[number][device];
            if (!each || cuCtxPushCurrent_v2(each->context) != 0) continue;
            unload(each);
            cuCtxPopCurrent_v2(&context);
        }
}

static size_t aligned(size_t bytes) { return (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT; }

/* Places inputs, outputs and, behind them, the workspace in memory for a number of images; gives its end. */
static CUdeviceptr place_ports(const subgraph *of, int images, CUdeviceptr at, places *made) {
    int i;
    for (i = 0; i < farm_input_count(of->bundle); i++) {
        made->inputs[i] = at;
        at += aligned(farm_input(of->bundle, i)->image_bytes * (size_t)images);
    }
    for (i = 0; i < farm_output_count(of->bundle); i++) {
        made->outputs[i] = at;
        at += aligned(farm_output(of->bundle, i)->image_bytes * (size_t)images);
    }
    return at;
}

/* Makes memory for graphs of a number of images; leaves none if the GPU has too little. */
static int make_memory(subgraph *of, int images) {
    places unused;
    size_t bytes;
    CHECK(cuEventSynchronize(of->replayed));
    drop_graphs(of);
    TRY(farm_workspace_bytes(of->bundle, images, &bytes));
    bytes += (size_t)place_ports(of, images, 0, &unused);
    if (cuMemAlloc_v2(&of->memory, bytes) != 0) of->memory = 0;
    else of->memory_images = images;
    return 0;
}

static int record(subgraph *of, int images, CUgraphExec *made) {
    CUgraph graph = NULL;
    places at;
    CUdeviceptr workspace = place_ports(of, of->memory_images, of->memory, &at);
    int failed;
    CHECK(cuStreamBeginCapture_v2(of->recorder, 1)); /* other threads may go on calling CUDA */
    failed = farm_run_in(of->bundle, images, at.inputs, at.outputs, workspace, of->recorder);
    if (cuStreamEndCapture(of->recorder, &graph) != 0 && !failed) failed = farm_fail("cuStreamEndCapture failed");
    if (!failed) failed = check(cuGraphInstantiateWithFlags(made, graph, 0), "cuGraphInstantiateWithFlags");
    if (graph) cuGraphDestroy(graph);
    return failed ? -1 : 0;
}

/* Finds the graph for a number of images, or records it; gives NULL if there is no room for it. */
static int find_graph(subgraph *of, int images, CUgraphExec *found) {
    int i;
    for (i = 0; i < of->graph_count; i++)
        if (of->graphs[i].images == images) {
            *found = of->graphs[i].graph;
            return 0;
        }
    *found = NULL;
    if (of->graph_count == MOST_GRAPHS) return 0;
    if (images > of->memory_images) TRY(make_memory(of, images));
    if (!of->memory) return 0;
    TRY(record(of, images, found));
    of->graphs[of->graph_count].images = images;
    of->graphs[of->graph_count++].graph = *found;
    return 0;
}

static int replay(subgraph *of, CUgraphExec graph, int images, const places *given, CUstream stream) {
    places at;
    int i;
    place_ports(of, of->memory_images, of->memory, &at);
    CHECK(cuStreamWaitEvent(stream, of->replayed, 0)); /* the last call may have been on another stream */
    for (i = 0; i < farm_input_count(of->bundle); i++) {
        size_t bytes = farm_input(of->bundle, i)->image_bytes * (size_t)images;
        CHECK(cuMemcpyDtoDAsync_v2(at.inputs[i], given->inputs[i], bytes, stream));
    }
    CHECK(cuGraphLaunch(graph, stream));
    for (i = 0; i < farm_output_count(of->bundle); i++) {
        size_t bytes = farm_output(of->bundle, i)->image_bytes * (size_t)images;
        CHECK(cuMemcpyDtoDAsync_v2(given->outputs[i], at.outputs[i], bytes, stream));
    }
    CHECK(cuEventRecord(of->replayed, stream));
    return 0;
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

/* Makes a contiguous tensor on the device of another. */
static int make_beside(tensor other, int64_t rank, const int64_t *sizes, int32_t dtype, tensor *made) {
    int64_t strides[MOST_RANK], i, step = 1;
    int32_t type, index;
    if (rank < 0 || rank > MOST_RANK) return farm_fail("a tensor has %lld dimensions", (long long)rank);
    for (i = rank - 1; i >= 0; i--) {
        strides[i] = step;
        step *= sizes[i] > 1 ? sizes[i] : 1;
    }
    CHECK(aoti_torch_get_device_type(other, &type));
    CHECK(aoti_torch_get_device_index(other, &index));
    CHECK(aoti_torch_empty_strided(rank, sizes, strides, dtype, type, index, made));
    return 0;
}

/* The address of a tensor, or of a copy if it is not contiguous or not aligned. The caller deletes the copy. */
static int place_of(tensor given, CUdeviceptr *address, tensor *copy) {
    _Bool is_contiguous;
    int64_t rank, *sizes;
    int32_t dtype;
    CHECK(aoti_torch_is_contiguous(given, &is_contiguous));
    TRY(address_of(given, address));
    if (is_contiguous && *address % ALIGNMENT == 0) return 0;
    CHECK(aoti_torch_get_dim(given, &rank));
    CHECK(aoti_torch_get_sizes(given, &sizes));
    CHECK(aoti_torch_get_dtype(given, &dtype));
    TRY(make_beside(given, rank, sizes, dtype, copy));
    CHECK(aoti_torch_copy_(*copy, given, 1));
    return address_of(*copy, address);
}

/* Launches the steps one by one, in memory of PyTorch's: a graph that the caller records keeps that. */
static int run_steps(subgraph *of, int images, const places *given, tensor beside, CUstream stream) {
    tensor memory = NULL;
    CUdeviceptr workspace = 0;
    size_t bytes;
    int failed = 0;
    TRY(farm_workspace_bytes(of->bundle, images, &bytes));
    if (bytes) {
        int64_t size = (int64_t)bytes;
        TRY(make_beside(beside, 1, &size, aoti_torch_dtype_uint8(), &memory));
        failed = address_of(memory, &workspace);
    }
    failed = failed || farm_run_in(of->bundle, images, given->inputs, given->outputs, workspace, stream) != 0;
    if (memory) aoti_torch_delete_tensor_object(memory);
    return failed ? -1 : 0;
}

static int enqueue(subgraph *of, int images, const places *given, tensor beside, CUstream stream) {
    CUgraphExec graph = NULL;
    int is_recorded = 0;
    CHECK(cuStreamIsCapturing(stream, &is_recorded));
    if (!is_recorded && farm_step_count(of->bundle) >= LEAST_RECORDED) TRY(find_graph(of, images, &graph));
    return graph ? replay(of, graph, images, given, stream) : run_steps(of, images, given, beside, stream);
}

/* The number of images, after a check that every tensor has the bytes of as many. */
static int count_images(const subgraph *of, const tensor *inputs, const tensor *outputs, int *images) {
    int i, input_count = farm_input_count(of->bundle);
    uint64_t bytes, count = 0;
    for (i = 0; i < input_count + farm_output_count(of->bundle); i++) {
        const farm_port *port = i < input_count ? farm_input(of->bundle, i) : farm_output(of->bundle, i - input_count);
        TRY(bytes_of(i < input_count ? inputs[i] : outputs[i - input_count], &bytes));
        count = i ? count : bytes / port->image_bytes;
        if (bytes != count * port->image_bytes || count > INT_MAX)
            return farm_fail("%s has another size than the model gives it", port->name);
    }
    *images = (int)count;
    return 0;
}

/* A call: its inputs, and the outputs that it makes. */
typedef struct {
    tensor inputs[MOST_PORTS], outputs[MOST_PORTS], copies[MOST_PORTS]; /* copies of inputs, or NULL */
} call;

/* Makes the outputs. `sizes` has for each its number of dimensions and those. */
static int make_outputs(const subgraph *of, const int64_t *sizes, int64_t size_count, call *made) {
    const int64_t *end = sizes + size_count;
    int32_t dtype;
    int i;
    CHECK(aoti_torch_get_dtype(made->inputs[0], &dtype));
    for (i = 0; i < farm_output_count(of->bundle); i++) {
        if (sizes == end || *sizes >= end - sizes) return farm_fail("a subgraph lacks sizes of its outputs");
        TRY(make_beside(made->inputs[0], *sizes, sizes + 1, dtype, &made->outputs[i]));
        sizes += 1 + *sizes;
    }
    return 0;
}

static int run(subgraph *of, int32_t index, const int64_t *sizes, int64_t size_count, call *made) {
    places given;
    void *stream;
    int images = 0, i;
    TRY(make_outputs(of, sizes, size_count, made));
    TRY(count_images(of, made->inputs, made->outputs, &images));
    if (images == 0) return 0;
    for (i = 0; i < farm_input_count(of->bundle); i++)
        TRY(place_of(made->inputs[i], &given.inputs[i], &made->copies[i]));
    for (i = 0; i < farm_output_count(of->bundle); i++) TRY(address_of(made->outputs[i], &given.outputs[i]));
    CHECK(aoti_torch_get_current_cuda_stream(index, &stream));
    return enqueue(of, images, &given, made->inputs[0], (CUstream)stream);
}

/* Runs a subgraph; gives the number of outputs, or -1. */
static int run_numbered(int64_t number, int64_t input_count, const int64_t *sizes, int64_t size_count, call *made) {
    subgraph *of = NULL;
    int32_t index;
    CHECK(aoti_torch_get_device_index(made->inputs[0], &index));
    TRY(find_subgraph((int)number, index, &of));
    if (input_count != farm_input_count(of->bundle)) return farm_fail("a subgraph is given other inputs than its own");
    TRY(run(of, index, sizes, size_count, made));
    return farm_output_count(of->bundle);
}

/* The operator farm::subgraph, with a pointer for each output behind the other arguments. */
int32_t ENTRY(
    const tensor *inputs, int64_t input_count, int64_t number, const int64_t *sizes, int64_t size_count, ...) {
    call made = {{NULL}, {NULL}, {NULL}};
    va_list outputs;
    int i, count = -1;
    if (number < 0 || number >= SUBGRAPHS || input_count < 1 || input_count > MOST_PORTS) {
        farm_fail("the package has no subgraph %lld of %lld inputs", (long long)number, (long long)input_count);
    } else {
        for (i = 0; i < input_count; i++) made.inputs[i] = inputs[i];
        pthread_mutex_lock(&lock);
        count = run_numbered(number, input_count, sizes, size_count, &made);
        pthread_mutex_unlock(&lock);
    }
    va_start(outputs, size_count);
    for (i = 0; i < count; i++) *va_arg(outputs, tensor *) = made.outputs[i];
    va_end(outputs);
    for (i = 0; i < MOST_PORTS; i++) {
        if (made.copies[i]) aoti_torch_delete_tensor_object(made.copies[i]);
        if (count < 0 && made.outputs[i]) aoti_torch_delete_tensor_object(made.outputs[i]);
    }
    if (count >= 0) return 0;
    fprintf(stderr, "farm: %s\n", farm_error());
    return 1;
}
