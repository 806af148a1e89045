/* See farm.h. Loads the code of a bundle and follows its plan. */
#include "farm.h"

#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "elf.h"
#include "error.h"
#include "members.h"
#include "plan.h"
#include "ptx.h"

#define ALIGNMENT 16
#define BRANCHES 8 /* streams on which the parts of a layer run concurrently, at most */
#define GIVEN_SHARED_BYTES (48 * 1024) /* shared memory that every kernel may use; more has to be requested */
#define MOST_WORKSPACE_BYTES (SIZE_MAX / 4)
#define BUFFER_ALIGNMENT 256 /* of each buffer in the workspace */
#define MOST_LAUNCHES (1 << 20) /* of a network */
#define MOST_PARAMETER_BYTES 32768 /* of a kernel, by the driver */
#define EARLY 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
#define MOST_SHARED 8 /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
#define CLUSTER_WIDTH 11 /* CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH; _HEIGHT and _DEPTH follow */
#define SHARED_UNIT 128 /* shared memory is given in multiples of this */

/* Constants of farm/cuda/prefetch.py, which explains them. */
#define WARP 32
#define MIN_CODE_BYTES 100000.0
#define FETCH_BYTES_PER_MICROSECOND 1500000.0
#define INSTRUCTION_BYTES 16
#define ISSUED_PER_MICROSECOND 4700.0
#define STREAMED_PER_MICROSECOND 300.0
#define LAUNCH_MICROSECONDS 2.0
#define WAIT_SHARE 0.6
#define MIN_MOVED_BYTES 5000000.0
#define CACHE_SHARE 0.4
#define FETCH_BLOCKS 2
#define FETCH_THREADS 32
#define MOST_WAIT_MICROSECONDS 1e6
static const char fetch_ptx[] =
    ".version 8.0\n"
    ".target sm_90\n"
    ".address_size 64\n"
    ".visible .entry fetch_code(.param .u64 begin, .param .u64 bytes, .param .u64 wait)\n"
    "{\n"
    "    .reg .b64 %at, %end, %left, %step, %now, %until;\n"
    "    .reg .b32 %block, %blocks, %thread, %size;\n"
    "    .reg .pred %none;\n"
    "    ld.param.u64 %at, [begin];\n"
    "    ld.param.u64 %end, [bytes];\n"
    "    add.u64 %end, %at, %end;\n"
    "    mov.u32 %block, %ctaid.x;\n"
    "    mov.u32 %blocks, %nctaid.x;\n"
    "    mov.u32 %thread, %tid.x;\n"
    "    mul.wide.u32 %step, %block, 4096;\n"
    "    add.u64 %at, %at, %step;\n"
    "    mul.wide.u32 %step, %blocks, 4096;\n"
    "    setp.ne.u32 %none, %thread, 0;\n"
    "    @%none bra done;\n"
    "    setp.ge.u64 %none, %at, %end;\n"
    "    @%none bra done;\n"
    "    ld.param.u64 %until, [wait];\n"
    "    mov.u64 %now, %globaltimer;\n"
    "    add.u64 %until, %until, %now;\n"
    "asleep:\n"
    "    mov.u64 %now, %globaltimer;\n"
    "    setp.ge.u64 %none, %now, %until;\n"
    "    @%none bra next;\n"
    "    nanosleep.u32 500;\n"
    "    bra asleep;\n"
    "next:\n"
    "    sub.u64 %left, %end, %at;\n"
    "    min.u64 %left, %left, 4096;\n"
    "    cvt.u32.u64 %size, %left;\n"
    "    cp.async.bulk.prefetch.L2.global [%at], %size;\n"
    "    add.u64 %at, %at, %step;\n"
    "    setp.lt.u64 %none, %at, %end;\n"
    "    @%none bra next;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

/* The part of the driver that is used here. */
#ifndef __cuda_cuda_h__
typedef int CUresult;
typedef int CUdevice;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUevent_st *CUevent;
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function);
CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuLaunchKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments, void **extra);
typedef struct {
    int id;
    char pad[4];
    union {
        char pad[64];
        int programmaticStreamSerializationAllowed;
    } value;
} CUlaunchAttribute;
typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra);
#endif

/* A kernel of the plan for this GPU, loaded. */
typedef struct {
    farm_kernel plan;
    size_t image_bytes;
    CUdeviceptr code; /* address of the instructions, 0 if unknown */
    size_t code_bytes;
    CUmodule module;
    CUfunction function;
    unsigned bytes_of_one; /* shared memory of a block in a launch for one image or row */
} kernel;

/* Multiprocessors of the GPU and the bytes of their shared memory: of one multiprocessor, the maximum of a block, and what
 * the driver reserves of each block. */
typedef struct {
    int multiprocessors, multiprocessor_bytes, block_bytes, reserved_bytes;
} shared_memory;

/* Kernels of a layer that together compute it. */
typedef struct {
    int begin, end;
} group;

/* An argument of a kernel. */
typedef union {
    CUdeviceptr pointer;
    int32_t number;
    uint32_t bits;
} value;

typedef struct {
    CUdeviceptr input, output, residual, gate; /* the last two are 0 if the layer has none */
} tensors;

/* What is known of a step of the plan beside the plan. */
typedef struct {
    CUfunction function; /* of a glue kernel */
    int fetched, next; /* the first step whose layer's code is prefetched beside this one, and the next such; or -1 */
    double wait; /* microseconds before the first prefetch beside this step */
} step_state;

struct farm_bundle {
    char *path;
    farm_plan plan;
    kernel *kernels; /* those for this GPU, in the order of the layers, and for few rows first */
    int *first; /* the first kernel of each layer, and behind the last layer their number */
    int64_t *limits; /* the largest number of rows of each layer for one launch of each of its kernels */
    int kernel_count;
    step_state *steps;
    size_t *buffers; /* where each lies in the workspace, and behind the last the size of that */
    CUdeviceptr workspace; /* of farm_run */
    size_t workspace_bytes;
    CUdeviceptr constants;
    CUmodule glue;
    int64_t most_images; /* of one pass */
    /* The arguments of a launch and pointers to them. Hostile code may have more or larger parameters than the plan says,
     * and the driver reads those of the code: there are as many pointers, and bytes behind them, as a kernel can have. */
    value *values;
    void **pointers;
    CUstream streams[BRANCHES - 1];
    CUevent begin, ends[BRANCHES - 1];
    int stream_count;
    double multiprocessors, l2_bytes;
    CUmodule fetcher;
    CUfunction fetch; /* NULL if no code is prefetched */
    CUstream side;
    CUevent fetching, fetched;
    int is_fetching;
    int64_t planned_images; /* the number of images that the prefetches are for */
};

static int driver(CUresult result, const char *what) {
    const char *name = NULL;
    if (result == 0) return 0;
    cuGetErrorName(result, &name);
    return farm_fail("%s failed (%s)", what, name ? name : "an unknown error");
}

#define DRIVER(call) TRY(driver((call), #call))

/* Memory for some zeroed elements, for none too. NULL with a message. */
static void *zeroed(int count, size_t bytes) {
    void *made = calloc((size_t)count + 1, bytes);
    if (!made) farm_fail("out of memory");
    return made;
}

/* Xavier, Orin, a GPU in no public table, Thor's old and new number: compatible with no other architecture. */
static int is_integrated(int arch) { return arch == 72 || arch == 87 || arch == 88 || arch == 101 || arch == 110; }

/* Whether a GPU runs a kernel: cubins of its major version that are not newer, cubins that are exact (sm_90a) or for an
 * integrated GPU if they are for exactly this one, and PTX of every virtual architecture that is not newer. */
static int runs_on(const farm_kernel *each, int gpu) {
    if (each->is_ptx) return each->arch <= gpu;
    if (each->is_exact || is_integrated(each->arch) || is_integrated(gpu)) return each->arch == gpu;
    return each->arch / 10 == gpu / 10 && each->arch <= gpu;
}

/* The higher, the rather it is taken: cubins before PTX, newer ones before older ones; 0 if the GPU does not run it. */
static int preference(const farm_kernel *each, int gpu) {
    return runs_on(each, gpu) ? (each->is_ptx ? 0 : 100000) + each->arch * 2 + each->is_exact : 0;
}

/* Orders kernels of a layer: those for few rows first, and otherwise as the plan has them. */
static int by_rows(const void *a, const void *b) {
    const farm_kernel *x = &((const kernel *)a)->plan, *y = &((const kernel *)b)->plan;
    return x->most_rows != y->most_rows ? (x->most_rows > y->most_rows) - (x->most_rows < y->most_rows)
                                        : (x->file > y->file) - (x->file < y->file);
}

/* The kernels of a layer for a number of rows; farm/bundle/row_groups.py has the same rule. */
static group group_for(const farm_bundle *bundle, int layer, int64_t rows) {
    int last = bundle->first[layer + 1];
    group found;
    found.begin = found.end = bundle->first[layer];
    for (;;) {
        int64_t most = bundle->kernels[found.begin].plan.most_rows;
        while (found.end < last && bundle->kernels[found.end].plan.most_rows == most) found.end++;
        if (rows <= most || found.end == last) return found;
        found.begin = found.end;
    }
}

/* Chooses the kernels of every layer for a GPU. */
static int choose_kernels(farm_bundle *bundle, int gpu) {
    const farm_plan *plan = &bundle->plan;
    int layer, i, end = 0;
    bundle->kernels = zeroed(plan->kernel_count, sizeof *bundle->kernels);
    bundle->first = zeroed(plan->layer_count, sizeof *bundle->first);
    if (!bundle->kernels || !bundle->first) return -1;
    for (layer = 0; layer < plan->layer_count; layer++) {
        int begin = end, best = 0;
        for (; end < plan->kernel_count && plan->kernels[end].layer == layer; end++) {
            int each = preference(&plan->kernels[end], gpu);
            best = each > best ? each : best;
        }
        if (!best)
            return farm_fail(
                "it has no code for this GPU (sm_%d): compile the model with --arch sm_%d and fetch it again", gpu, gpu);
        bundle->first[layer] = bundle->kernel_count;
        for (i = begin; i < end; i++)
            if (preference(&plan->kernels[i], gpu) == best) bundle->kernels[bundle->kernel_count++].plan = plan->kernels[i];
        i = bundle->first[layer];
        qsort(&bundle->kernels[i], (size_t)(bundle->kernel_count - i), sizeof *bundle->kernels, by_rows);
    }
    bundle->first[plan->layer_count] = bundle->kernel_count;
    return 0;
}

/* Loads a module, or leaves it NULL. */
static CUresult load_image(CUmodule *module, const char *image) {
    CUresult failed = cuModuleLoadData(module, image);
    if (failed) *module = NULL;
    return failed;
}

/* Loads a kernel's module, with the address of its code if the driver accepts the changed cubin. */
static int load_module(kernel *each, const char *image, size_t bytes) {
    size_t made_bytes, size;
    CUdeviceptr variable;
    char *addressed = farm_with_address(image, bytes, &made_bytes, &each->code_bytes);
    each->image_bytes = bytes;
    if (addressed) {
        CUresult failed = load_image(&each->module, addressed);
        free(addressed);
        if (!failed) {
            DRIVER(cuModuleGetGlobal_v2(&variable, &size, each->module, "code_address"));
            return driver(cuMemcpyDtoH_v2(&each->code, variable, sizeof each->code), "cuMemcpyDtoH_v2");
        }
    }
    return driver(load_image(&each->module, image), "cuModuleLoadData");
}

static unsigned blocks(farm_grid_size size, int64_t rows) {
    return (unsigned)(size.fixed * (size.images ? (rows + size.images - 1) / size.images : 1));
}

/* Finds the shared memory that a kernel asks for when it is launched for one image. A kernel that waits begins early: its
 * blocks ask for so much that they lie evenly on the multiprocessors, as farm/cuda/even_blocks.py explains. */
static int find_bytes_of_one(kernel *each, shared_memory gpu) {
    const farm_grid_size *grid = each->plan.grid;
    int i, size, cluster = 1, usable, most;
    int64_t share;
    each->bytes_of_one = each->plan.shared_bytes;
    if (!each->plan.waits) return 0;
    for (i = 0; i < 3; i++) {
        DRIVER(cuFuncGetAttribute(&size, CLUSTER_WIDTH + i, each->function));
        cluster *= size > 1 ? size : 1;
    }
    usable = cluster <= 2 ? gpu.multiprocessors : gpu.multiprocessors * 10 / 11 / cluster * cluster;
    usable = usable > 1 ? usable : 1;
    share = ((int64_t)blocks(grid[0], 1) * blocks(grid[1], 1) * blocks(grid[2], 1) + usable - 1) / usable;
    most = (int)(gpu.multiprocessor_bytes / share) - gpu.reserved_bytes;
    most = (most < gpu.block_bytes ? most : gpu.block_bytes) / SHARED_UNIT * SHARED_UNIT;
    if (most > (int)each->bytes_of_one) each->bytes_of_one = (unsigned)most;
    return 0;
}

static int load_kernel(const farm_members *members, const farm_plan *plan, shared_memory gpu, kernel *each) {
    const farm_file *file = &plan->files[each->plan.file];
    char *image;
    int failed;
    TRY(farm_read_member(members, file, &image));
    failed = farm_is_code(image, file->bytes) ? load_module(each, image, file->bytes)
                                              : farm_fail("%s is not machine code. Fetch the bundle again", file->path);
    free(image);
    TRY(failed);
    DRIVER(cuModuleGetFunction(&each->function, each->module, each->plan.entry));
    TRY(find_bytes_of_one(each, gpu));
    if (each->bytes_of_one > GIVEN_SHARED_BYTES)
        DRIVER(cuFuncSetAttribute(each->function, MOST_SHARED, (int)each->bytes_of_one));
    return 0;
}

/* Loads the prefetch kernel. Without it, on a GPU older than sm_90 or an old driver, no code is prefetched. */
static int load_fetcher(farm_bundle *bundle) {
    int i, known = 0;
    for (i = 0; i < bundle->kernel_count; i++) known = known || bundle->kernels[i].code;
    if (!known || load_image(&bundle->fetcher, fetch_ptx)) return 0;
    DRIVER(cuModuleGetFunction(&bundle->fetch, bundle->fetcher, "fetch_code"));
    DRIVER(cuStreamCreate(&bundle->side, 1));
    DRIVER(cuEventCreate(&bundle->fetching, 2));
    DRIVER(cuEventCreate(&bundle->fetched, 2));
    return 0;
}

static int load_kernels(farm_bundle *bundle, const farm_members *members, shared_memory gpu) {
    int i, layer, most_parts = 1;
    for (i = 0; i < bundle->kernel_count; i++) TRY(load_kernel(members, &bundle->plan, gpu, &bundle->kernels[i]));
    TRY(load_fetcher(bundle));
    for (layer = 0; layer < bundle->plan.layer_count; layer++) {
        int parts = 0;
        for (i = bundle->first[layer]; i < bundle->first[layer + 1]; i++) {
            int is_same = parts && bundle->kernels[i].plan.most_rows == bundle->kernels[i - 1].plan.most_rows;
            parts = is_same ? parts + 1 : 1;
            most_parts = parts > most_parts ? parts : most_parts;
        }
    }
    DRIVER(cuEventCreate(&bundle->begin, 2)); /* without timing */
    while (bundle->stream_count < most_parts - 1 && bundle->stream_count < BRANCHES - 1) {
        CUstream stream;
        DRIVER(cuStreamCreate(&stream, 1)); /* does not wait for the default stream */
        bundle->streams[bundle->stream_count++] = stream;
        DRIVER(cuEventCreate(&bundle->ends[bundle->stream_count - 1], 2));
    }
    return 0;
}

/* Whether a glue kernel has the parameters for a step's arguments. */
static int takes(const farm_entry *entries, size_t count, const farm_step *each) {
    char kinds[MOST_ARGUMENTS + 1] = {0};
    int i;
    for (i = 0; i < each->count; i++) {
        char kind = each->arguments[i].kind;
        kinds[i] = kind == 'n' || kind == 'd' ? 'd' : kind == 'f' ? 'f' : 'p';
    }
    return farm_takes(entries, count, each->kernel, kinds);
}

static int find_functions(farm_bundle *bundle, const farm_entry *entries, size_t count) {
    int i;
    for (i = 0; i < bundle->plan.step_count; i++) {
        const farm_step *each = &bundle->plan.steps[i];
        if (each->layer >= 0) continue;
        if (!takes(entries, count, each))
            return farm_fail("%s has no kernel %s with the plan's arguments. Fetch the bundle again", GLUE_FILE, each->kernel);
        DRIVER(cuModuleGetFunction(&bundle->steps[i].function, bundle->glue, each->kernel));
    }
    return 0;
}

/* Loads the kernels between the layers. */
static int load_glue(farm_bundle *bundle, const farm_members *members) {
    char *ptx;
    farm_entry *entries = NULL;
    size_t count;
    int i = 0, failed;
    bundle->steps = zeroed(bundle->plan.step_count, sizeof *bundle->steps);
    if (!bundle->steps) return -1;
    while (i < bundle->plan.step_count && bundle->plan.steps[i].layer >= 0) i++;
    if (i == bundle->plan.step_count) return 0;
    TRY(farm_read_member(members, &bundle->plan.files[bundle->plan.glue_file], &ptx));
    failed = driver(load_image(&bundle->glue, ptx), "cuModuleLoadData of glue.ptx") != 0 ||
             farm_read_entries(ptx, &entries, &count) != 0 || find_functions(bundle, entries, count) != 0;
    free(entries);
    free(ptx);
    return failed ? -1 : 0;
}

static int load_constants(farm_bundle *bundle, const farm_members *members) {
    size_t bytes = (size_t)bundle->plan.constants_bytes;
    char *data;
    int failed;
    if (!bytes) return 0;
    TRY(farm_read_member(members, &bundle->plan.files[bundle->plan.constants_file], &data));
    failed = driver(cuMemAlloc_v2(&bundle->constants, bytes), "cuMemAlloc_v2");
    if (failed) bundle->constants = 0;
    failed = failed || driver(cuMemcpyHtoD_v2(bundle->constants, data, bytes), "cuMemcpyHtoD_v2");
    failed = failed || driver(cuStreamSynchronize(NULL), "cuMemcpyHtoD_v2"); /* other streams do not wait for the copy */
    free(data);
    return failed ? -1 : 0;
}

/* The images of one pass: not more than a launch takes, and so that each pass begins at an aligned address. */
static int64_t pass_images(int64_t limit) { return limit >= ALIGNMENT ? limit / ALIGNMENT * ALIGNMENT : 1; }

static int make_arguments(farm_bundle *bundle) {
    int i;
    bundle->values = zeroed(MOST_ARGUMENTS * (int)sizeof(value) + MOST_PARAMETER_BYTES, 1);
    bundle->pointers = zeroed(MOST_PARAMETER_BYTES, sizeof *bundle->pointers);
    if (!bundle->values || !bundle->pointers) return -1;
    for (i = 0; i < MOST_PARAMETER_BYTES; i++)
        bundle->pointers[i] = &bundle->values[i < MOST_ARGUMENTS ? i : MOST_ARGUMENTS];
    return 0;
}

static int limit_images(farm_bundle *bundle) {
    int64_t most = MOST_IMAGES, launches = 0;
    int i, layer;
    bundle->limits = zeroed(bundle->plan.layer_count, sizeof *bundle->limits);
    if (!bundle->limits) return -1;
    for (layer = 0; layer < bundle->plan.layer_count; layer++) {
        bundle->limits[layer] = MOST_IMAGES;
        for (i = bundle->first[layer]; i < bundle->first[layer + 1]; i++) {
            int64_t limit = farm_rows_limit(bundle->kernels[i].plan.grid);
            if (limit < bundle->limits[layer]) bundle->limits[layer] = limit;
        }
    }
    for (i = 0; i < bundle->plan.step_count; i++) {
        const farm_step *each = &bundle->plan.steps[i];
        int64_t limit = each->layer >= 0 ? bundle->limits[each->layer] : farm_rows_limit(each->grid);
        if (limit < each->rows) return farm_fail("step %d has more rows than a launch takes. Fetch the bundle again", i);
        most = limit / each->rows < most ? limit / each->rows : most;
        launches += each->layer >= 0 ? bundle->first[each->layer + 1] - bundle->first[each->layer] : 1;
    }
    if (launches > MOST_LAUNCHES)
        return farm_fail(
            "its network has %lld launches, more than %d. Fetch the bundle again", (long long)launches, MOST_LAUNCHES);
    bundle->most_images = pass_images(most);
    return 0;
}

static int load(farm_bundle *bundle, const farm_members *members) {
    CUdevice device;
    char *text;
    size_t bytes;
    int major, minor, l2_bytes;
    shared_memory gpu;
    DRIVER(cuCtxGetDevice(&device));
    DRIVER(cuDeviceGetAttribute(&major, 75, device)); /* the compute capability */
    DRIVER(cuDeviceGetAttribute(&minor, 76, device));
    DRIVER(cuDeviceGetAttribute(&l2_bytes, 38, device));
    DRIVER(cuDeviceGetAttribute(&gpu.multiprocessors, 16, device));
    DRIVER(cuDeviceGetAttribute(&gpu.multiprocessor_bytes, 81, device));
    DRIVER(cuDeviceGetAttribute(&gpu.block_bytes, 97, device));
    DRIVER(cuDeviceGetAttribute(&gpu.reserved_bytes, 111, device));
    bundle->multiprocessors = gpu.multiprocessors;
    bundle->l2_bytes = l2_bytes;
    TRY(farm_read_plan_member(members, PLAN_FILE, MOST_PLAN_BYTES, &text, &bytes));
    TRY(farm_read_plan(text, bytes, &bundle->plan));
    TRY(choose_kernels(bundle, major * 10 + minor));
    TRY(load_kernels(bundle, members, gpu));
    TRY(load_glue(bundle, members));
    TRY(load_constants(bundle, members));
    TRY(make_arguments(bundle));
    bundle->buffers = zeroed(bundle->plan.buffer_count, sizeof *bundle->buffers);
    return bundle->buffers ? limit_images(bundle) : -1;
}

static int open_bundle(farm_bundle *bundle, const char *path) {
    farm_members *members;
    int failed;
    bundle->path = malloc(strlen(path) + 1);
    if (!bundle->path) return farm_fail("out of memory");
    strcpy(bundle->path, path);
    TRY(farm_open_members(path, &members));
    failed = load(bundle, members);
    farm_close_members(members);
    return failed ? farm_fail("%s: %s", path, farm_error()) : 0;
}

int farm_open(const char *path, farm_bundle **opened) {
    farm_bundle *bundle = calloc(1, sizeof *bundle);
    *opened = NULL;
    if (!bundle) return farm_fail("out of memory");
    if (open_bundle(bundle, path) != 0) {
        farm_close(bundle);
        return -1;
    }
    *opened = bundle;
    return 0;
}

void farm_close(farm_bundle *bundle) {
    int i;
    if (!bundle) return;
    cuStreamSynchronize(NULL);
    for (i = 0; i < bundle->kernel_count; i++)
        if (bundle->kernels[i].module) cuModuleUnload(bundle->kernels[i].module);
    if (bundle->glue) cuModuleUnload(bundle->glue);
    if (bundle->workspace) cuMemFree_v2(bundle->workspace);
    if (bundle->constants) cuMemFree_v2(bundle->constants);
    for (i = 0; i < bundle->stream_count; i++) {
        cuStreamDestroy_v2(bundle->streams[i]);
        if (bundle->ends[i]) cuEventDestroy_v2(bundle->ends[i]);
    }
    if (bundle->begin) cuEventDestroy_v2(bundle->begin);
    if (bundle->fetcher) cuModuleUnload(bundle->fetcher);
    if (bundle->side) cuStreamDestroy_v2(bundle->side);
    if (bundle->fetching) cuEventDestroy_v2(bundle->fetching);
    if (bundle->fetched) cuEventDestroy_v2(bundle->fetched);
    farm_free_plan(&bundle->plan);
    free(bundle->kernels);
    free(bundle->first);
    free(bundle->limits);
    free(bundle->values);
    free(bundle->pointers);
    free(bundle->steps);
    free(bundle->buffers);
    free(bundle->path);
    free(bundle);
}

int farm_layer_count(const farm_bundle *bundle) { return bundle->plan.layer_count; }

const farm_layer *farm_get_layer(const farm_bundle *bundle, int layer) {
    return layer >= 0 && layer < bundle->plan.layer_count ? &bundle->plan.layers[layer] : NULL;
}

int farm_find_layer(const farm_bundle *bundle, const char *name) {
    int i;
    for (i = 0; i < bundle->plan.layer_count; i++)
        if (strcmp(bundle->plan.layers[i].name, name) == 0) return i;
    return farm_fail("%s has no layer %s", bundle->path, name);
}

int farm_input_count(const farm_bundle *bundle) { return bundle->plan.input_count; }
int farm_output_count(const farm_bundle *bundle) { return bundle->plan.output_count; }

int farm_step_count(const farm_bundle *bundle) { return bundle->plan.step_count; }

const farm_port *farm_input(const farm_bundle *bundle, int number) {
    return number >= 0 && number < bundle->plan.input_count ? &bundle->plan.inputs[number] : NULL;
}

const farm_port *farm_output(const farm_bundle *bundle, int number) {
    return number >= 0 && number < bundle->plan.output_count ? &bundle->plan.outputs[number] : NULL;
}

/* Launches a kernel with some arguments, and zeros behind them. One that waits itself begins before the kernel ahead of it
 * has ended. */
static int launch_kernel(
    farm_bundle *bundle, CUfunction function, const farm_grid_size grid[3], int64_t rows, const unsigned block[3],
    unsigned shared_bytes, int waits, CUstream stream, const value *values, int count) {
    unsigned x = blocks(grid[0], rows), y = blocks(grid[1], rows), z = blocks(grid[2], rows);
    memset(bundle->values, 0, MOST_ARGUMENTS * sizeof *values);
    memcpy(bundle->values, values, (size_t)count * sizeof *values);
    if (waits) {
        CUlaunchAttribute early = {EARLY, {0}, {{0}}};
        CUlaunchConfig how = {x, y, z, block[0], block[1], block[2], shared_bytes, stream, &early, 1};
        early.value.programmaticStreamSerializationAllowed = 1;
        return driver(cuLaunchKernelEx(&how, function, bundle->pointers, NULL), "cuLaunchKernelEx");
    }
    return driver(
        cuLaunchKernel(
            function, x, y, z, block[0], block[1], block[2], shared_bytes, stream, bundle->pointers, NULL),
        "cuLaunchKernel");
}

static int launch_part(farm_bundle *bundle, const kernel *loaded, int64_t rows, tensors given, CUstream stream) {
    const farm_kernel *each = &loaded->plan;
    value values[MOST_ARGUMENTS] = {{0}};
    int i;
    for (i = 0; each->arguments[i]; i++) switch (each->arguments[i]) {
            case 'i': values[i].pointer = given.input; break;
            case 'o': values[i].pointer = given.output; break;
            case 'r': values[i].pointer = given.residual; break;
            case 'g': values[i].pointer = given.gate; break;
            case 's': values[i].number = each->output_step; break;
            case 't': values[i].number = each->input_step; break;
            default: values[i].number = (int32_t)rows; break;
        }
    return launch_kernel(
        bundle, loaded->function, each->grid, rows, each->block, rows == 1 ? loaded->bytes_of_one : each->shared_bytes,
        each->waits, stream, values, i);
}

/* The prefetch plan: which layer's code is fetched into the L2 cache beside which step, for a number of images. The rules
 * are those of farm/cuda/prefetch.py, which gives the reasons. */
typedef struct {
    double microseconds, fetch_microseconds, code_bytes, moved_bytes;
} layer_run;

static layer_run run_of(const farm_bundle *bundle, int layer, int64_t rows) {
    layer_run made = {0, 0, 0, 0};
    const farm_layer *about = &bundle->plan.layers[layer];
    double issued = 0, longest = 0, followed;
    group kernels = group_for(bundle, layer, rows);
    int i;
    for (i = kernels.begin; i < kernels.end; i++) {
        const farm_kernel *each = &bundle->kernels[i].plan;
        double bytes = (double)bundle->kernels[i].image_bytes;
        int64_t limit = farm_rows_limit(each->grid), images = rows < limit ? rows : limit;
        double followers = (double)blocks(each->grid[0], images) * blocks(each->grid[1], images);
        double stream = bytes / blocks(each->grid[2], images);
        unsigned warps = (each->block[0] * each->block[1] * each->block[2] + WARP - 1) / WARP;
        issued += followers * warps * bytes / INSTRUCTION_BYTES;
        longest = stream > longest ? stream : longest;
        made.code_bytes += bytes;
    }
    issued = issued / ISSUED_PER_MICROSECOND / bundle->multiprocessors;
    followed = longest / INSTRUCTION_BYTES / STREAMED_PER_MICROSECOND;
    made.microseconds = LAUNCH_MICROSECONDS + (issued > followed ? issued : followed);
    made.moved_bytes = (double)rows * (double)(about->input_bytes + about->output_bytes);
    if (made.code_bytes >= MIN_CODE_BYTES)
        made.fetch_microseconds = LAUNCH_MICROSECONDS + made.code_bytes / FETCH_BYTES_PER_MICROSECOND;
    return made;
}

/* The layer before this step in the plan, or -1. */
static int layer_before(const farm_bundle *bundle, int number) {
    do number--;
    while (number >= 0 && bundle->plan.steps[number].layer < 0);
    return number;
}

/* The step beside which a layer's code is prefetched: the latest one that leaves enough time, or a later one if the code
 * from there on is more than the cache keeps; -1 for the first layer. Shortens the step's wait as the prefetch needs. */
static int start_of(farm_bundle *bundle, const layer_run *runs, int number, double room) {
    int start = layer_before(bundle, number), before;
    double time, waiting, wait;
    if (start < 0) return -1;
    time = runs[start].microseconds;
    waiting = runs[number].code_bytes + runs[start].code_bytes;
    while (time < runs[number].fetch_microseconds && (before = layer_before(bundle, start)) >= 0 &&
           waiting + runs[before].code_bytes <= room) {
        start = before;
        time += runs[start].microseconds;
        waiting += runs[start].code_bytes;
    }
    wait = (runs[start].moved_bytes >= MIN_MOVED_BYTES ? WAIT_SHARE : 0) * time - runs[number].fetch_microseconds;
    wait = wait > MOST_WAIT_MICROSECONDS ? MOST_WAIT_MICROSECONDS : wait;
    if (wait < bundle->steps[start].wait) bundle->steps[start].wait = wait > 0 ? wait : 0;
    return start;
}

static int plan_fetches(farm_bundle *bundle, int64_t images) {
    int i, count = bundle->plan.step_count;
    double total = 0, room = CACHE_SHARE * bundle->l2_bytes;
    layer_run *runs;
    if (!bundle->fetch || bundle->planned_images == images) return 0;
    runs = zeroed(count, sizeof *runs);
    if (!runs) return -1;
    for (i = 0; i < count; i++) {
        const farm_step *each = &bundle->plan.steps[i];
        bundle->steps[i].wait = DBL_MAX;
        bundle->steps[i].fetched = -1;
        if (each->layer < 0) continue;
        runs[i] = run_of(bundle, each->layer, each->rows * images);
        total += runs[i].code_bytes + runs[i].moved_bytes;
    }
    for (i = count - 1; i >= 0 && total > room; i--) {
        int start = runs[i].fetch_microseconds > 0 ? start_of(bundle, runs, i, room) : -1;
        if (start < 0) continue;
        bundle->steps[i].next = bundle->steps[start].fetched;
        bundle->steps[start].fetched = i;
    }
    free(runs);
    bundle->planned_images = images;
    return 0;
}

/* Prefetches the code of a step's layer beside another step, after a wait if it is the first prefetch there. */
static int fetch_layer(farm_bundle *bundle, const farm_step *of, int number, int *begun, CUstream stream) {
    group kernels = group_for(bundle, of->layer, of->rows * bundle->planned_images);
    int i;
    for (i = kernels.begin; i < kernels.end; i++) {
        kernel *each = &bundle->kernels[i];
        unsigned long long wait = *begun ? 0 : (unsigned long long)(1000 * bundle->steps[number].wait);
        void *pointers[3];
        if (!each->code) continue;
        if (!*begun) {
            DRIVER(cuEventRecord(bundle->fetching, stream));
            DRIVER(cuStreamWaitEvent(bundle->side, bundle->fetching, 0));
            *begun = bundle->is_fetching = 1;
        }
        pointers[0] = &each->code;
        pointers[1] = &each->code_bytes;
        pointers[2] = &wait;
        DRIVER(cuLaunchKernel(bundle->fetch, FETCH_BLOCKS, 1, 1, FETCH_THREADS, 1, 1, 0, bundle->side, pointers, NULL));
    }
    return 0;
}

/* Enqueues the prefetches that run beside this step, if the stream is recorded as a CUDA graph: otherwise they would cost
 * as much CPU time as the layers' launches. Call it before the step's launch. */
static int fetch_with(farm_bundle *bundle, int number, CUstream stream) {
    const farm_step *steps = bundle->plan.steps;
    int i, begun = 0, recorded = 0;
    if (!bundle->fetch || steps[number].layer < 0) return 0;
    DRIVER(cuStreamIsCapturing(stream, (void *)&recorded));
    for (i = recorded ? bundle->steps[number].fetched : -1; i >= 0; i = bundle->steps[i].next)
        TRY(fetch_layer(bundle, &steps[i], number, &begun, stream));
    return 0;
}

static int end_fetches(farm_bundle *bundle, CUstream stream) {
    if (!bundle->is_fetching) return 0;
    bundle->is_fetching = 0;
    DRIVER(cuEventRecord(bundle->fetched, bundle->side));
    DRIVER(cuStreamWaitEvent(stream, bundle->fetched, 0));
    return 0;
}

/* Launches the parts of a layer concurrently, after the stream's earlier work and before its later work. */
static int launch_layer(farm_bundle *bundle, int layer, int64_t rows, tensors given, CUstream stream) {
    group kernels = group_for(bundle, layer, rows);
    int parts = kernels.end - kernels.begin, i, others;
    others = parts - 1 < bundle->stream_count ? parts - 1 : bundle->stream_count;
    if (others) DRIVER(cuEventRecord(bundle->begin, stream));
    for (i = 0; i < others; i++) DRIVER(cuStreamWaitEvent(bundle->streams[i], bundle->begin, 0));
    for (i = 0; i < parts; i++) {
        int branch = i % (others + 1);
        const kernel *each = &bundle->kernels[kernels.begin + i];
        TRY(launch_part(bundle, each, rows, given, branch ? bundle->streams[branch - 1] : stream));
    }
    for (i = 0; i < others; i++) {
        DRIVER(cuEventRecord(bundle->ends[i], bundle->streams[i]));
        DRIVER(cuStreamWaitEvent(stream, bundle->ends[i], 0));
    }
    return 0;
}

int farm_run_layer(
    farm_bundle *bundle, int layer, int images, CUdeviceptr input, CUdeviceptr output, CUdeviceptr residual,
    CUdeviceptr gate, CUstream stream) {
    const farm_layer *about = farm_get_layer(bundle, layer);
    int64_t start, limit;
    if (!about) return farm_fail("%s has no layer %d", bundle->path, layer);
    if (images < 0) return farm_fail("layer %s is given %d images", about->name, images);
    if ((residual != 0) != about->has_residual)
        return farm_fail("layer %s adds %s residual", about->name, about->has_residual ? "a" : "no");
    if ((gate != 0) != (about->gate_bytes != 0))
        return farm_fail("layer %s takes %s gate", about->name, about->gate_bytes ? "a" : "no");
    if (input % ALIGNMENT || output % ALIGNMENT || residual % ALIGNMENT || gate % ALIGNMENT)
        return farm_fail("layer %s is given a pointer that is not a multiple of %d bytes", about->name, ALIGNMENT);
    limit = pass_images(bundle->limits[layer]);
    for (start = 0; start < images; start += limit) {
        int64_t count = images - start < limit ? images - start : limit;
        CUdeviceptr first = (CUdeviceptr)start;
        tensors given;
        given.input = input + first * about->input_bytes;
        given.output = output + first * about->output_bytes;
        given.residual = residual ? residual + first * about->output_bytes : 0;
        given.gate = gate ? gate + first * about->gate_bytes : 0;
        TRY(launch_layer(bundle, layer, count, given, stream));
    }
    return 0;
}

/* Places the buffers for a number of images in the workspace. */
static int place_buffers(farm_bundle *bundle, int64_t images) {
    size_t end = 0;
    int i;
    for (i = 0; i < bundle->plan.buffer_count; i++) {
        size_t bytes = bundle->plan.buffer_bytes[i] * (size_t)images;
        bundle->buffers[i] = end;
        end += (bytes + BUFFER_ALIGNMENT - 1) / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
        if (end > MOST_WORKSPACE_BYTES) return farm_fail("out of memory");
    }
    bundle->buffers[i] = end;
    return 0;
}

/* The images of one pass, where the network is given so many. */
static int64_t first_pass(const farm_bundle *bundle, int64_t images) {
    return images < bundle->most_images ? images : bundle->most_images;
}

int farm_workspace_bytes(farm_bundle *bundle, int images, size_t *bytes) {
    TRY(place_buffers(bundle, first_pass(bundle, images)));
    *bytes = bundle->buffers[bundle->plan.buffer_count];
    return 0;
}

static int run_step(
    farm_bundle *bundle, int number, int64_t start, int64_t images, const CUdeviceptr *inputs,
    const CUdeviceptr *outputs, CUdeviceptr workspace, CUstream stream) {
    const farm_step *each = &bundle->plan.steps[number];
    const farm_port *ports;
    value values[MOST_ARGUMENTS] = {{0}};
    unsigned block[3] = {1, 1, 1};
    int64_t rows = each->rows * images;
    int i;
    for (i = 0; i < each->count; i++) {
        farm_argument given = each->arguments[i];
        switch (given.kind) {
            case 'i':
            case 'o':
                ports = given.kind == 'i' ? bundle->plan.inputs : bundle->plan.outputs;
                values[i].pointer = (given.kind == 'i' ? inputs : outputs)[given.value];
                values[i].pointer += (CUdeviceptr)start * ports[given.value].image_bytes;
                break;
            case 'b': values[i].pointer = workspace + bundle->buffers[given.value]; break;
            case 'c': values[i].pointer = bundle->constants + (CUdeviceptr)given.value; break;
            case 'n': values[i].number = (int32_t)rows; break;
            case 'f': values[i].bits = (uint32_t)given.value; break;
            default: values[i].number = (int32_t)given.value; break;
        }
    }
    if (each->layer >= 0) {
        const farm_layer *about = &bundle->plan.layers[each->layer];
        tensors given = {0, 0, 0, 0};
        given.input = values[0].pointer;
        given.output = values[1].pointer;
        if (about->has_residual) given.residual = values[2].pointer;
        if (about->gate_bytes) given.gate = values[2 + about->has_residual].pointer;
        return launch_layer(bundle, each->layer, rows, given, stream);
    }
    block[0] = each->threads;
    return launch_kernel(
        bundle, bundle->steps[number].function, each->grid, rows, block, 0, 0, stream, values, each->count);
}

int farm_run_in(
    farm_bundle *bundle, int images, const CUdeviceptr *inputs, const CUdeviceptr *outputs, CUdeviceptr workspace,
    CUstream stream) {
    const farm_plan *plan = &bundle->plan;
    int64_t start;
    int i;
    if (plan->refused) return farm_fail("%s: %s", bundle->path, plan->refused);
    if (plan->images && images != plan->images)
        return farm_fail("the network takes %d images but is given %d", plan->images, images);
    if (images < 1) return farm_fail("the network takes one or more images but is given %d", images);
    for (i = 0; i < plan->input_count + plan->output_count; i++)
        if ((i < plan->input_count ? inputs[i] : outputs[i - plan->input_count]) % ALIGNMENT)
            return farm_fail("the network is given a pointer that is not a multiple of %d bytes", ALIGNMENT);
    TRY(place_buffers(bundle, first_pass(bundle, images)));
    for (start = 0; start < images; start += bundle->most_images) {
        int64_t count = first_pass(bundle, images - start);
        TRY(plan_fetches(bundle, count));
        for (i = 0; i < plan->step_count; i++) {
            TRY(fetch_with(bundle, i, stream));
            TRY(run_step(bundle, i, start, count, inputs, outputs, workspace, stream));
        }
    }
    return end_fetches(bundle, stream);
}

int farm_run(
    farm_bundle *bundle, int images, const CUdeviceptr *inputs, const CUdeviceptr *outputs, CUstream stream) {
    size_t bytes = 0;
    if (!bundle->plan.refused && images > 0) TRY(farm_workspace_bytes(bundle, images, &bytes));
    if (bytes > bundle->workspace_bytes) {
        CUdeviceptr made;
        DRIVER(cuStreamSynchronize(NULL));
        if (bundle->workspace) DRIVER(cuMemFree_v2(bundle->workspace));
        bundle->workspace = bundle->workspace_bytes = 0;
        DRIVER(cuMemAlloc_v2(&made, bytes));
        bundle->workspace = made;
        bundle->workspace_bytes = bytes;
    }
    return farm_run_in(bundle, images, inputs, outputs, bundle->workspace, stream);
}
