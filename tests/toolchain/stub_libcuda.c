/* The CUDA driver as far as the runtimes call it, without a GPU: memory is the host's, and launches are written down.
 *
 * Code is `fake NAME LETTERS` (i, o, r, g are pointers, n and s numbers), or PTX, of whose entries the parameters are read.
 * Of an ELF file the arguments are not written down. The environment says the file (STUB_LOG), the architecture
 * (STUB_ARCH, as in 90), which call fails (STUB_FAIL), whether streams are recorded (STUB_RECORDED) and the blocks of a
 * cluster of each kernel (STUB_CLUSTER). A graph is a number, which its recording and its launches write down.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LETTERS 200 /* of a kernel */
#define MOST_BYTES ((size_t)1 << 26) /* of memory */
#define ALIGNMENT 256 /* of memory, before which its size is kept */

typedef struct function {
    char name[256], letters[MOST_LETTERS + 1];
    struct function *next;
} function;

typedef struct {
    char *text;
    uint64_t code; /* of an ELF file: where it says that its kernel lies */
    function *functions;
} module;

static int handles;
static void *recorded; /* the stream that a graph is recorded of */
static size_t allocated_bytes;

static FILE *log_file(void) {
    static FILE *file;
    return file ? file : (file = fopen(getenv("STUB_LOG"), "a"));
}

static void say(const char *format, unsigned long long a, unsigned long long b) { fprintf(log_file(), format, a, b); }

static int fails(const char *name) {
    const char *failing = getenv("STUB_FAIL");
    return failing && strcmp(failing, name) == 0 ? 222 : 0;
}

int cuInit(unsigned flags) { (void)flags; return fails("cuInit"); }
int cuDeviceGetCount(int *count) { *count = atoi(getenv("STUB_ARCH")) > 0; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int size, int device) { (void)device; snprintf(name, (size_t)size, "Stub"); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int arch = atoi(getenv("STUB_ARCH"));
    (void)device;
    switch (attribute) {
        case 75: *value = arch / 10; break; /* the compute capability */
        case 76: *value = arch % 10; break;
        case 16: *value = 132; break; /* multiprocessors */
        case 81: *value = 233472; break; /* shared memory of a multiprocessor, most of a block, reserved for each */
        case 97: *value = 232448; break;
        case 111: *value = 1024; break;
        default: *value = 60000000; /* the L2 cache */
    }
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &handles; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; say("release\n", 0, 0); return 0; }
int cuCtxPushCurrent_v2(void *context) { (void)context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = &handles; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuGetErrorName(int error, const char **name) {
    *name = error == 222 ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" : "CUDA_ERROR_UNKNOWN";
    return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    char *memory;
    if (fails("cuMemAlloc_v2")) return 222;
    if (bytes > MOST_BYTES - allocated_bytes) return 2;
    memory = aligned_alloc(ALIGNMENT, (bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    memset(memory, 0, ALIGNMENT + bytes);
    memcpy(memory, &bytes, sizeof bytes);
    allocated_bytes += bytes;
    *address = (uint64_t)(uintptr_t)memory + ALIGNMENT;
    say("alloc %llx %llu\n", *address, bytes);
    return 0;
}
int cuMemFree_v2(uint64_t address) {
    char *memory = (char *)(uintptr_t)address - ALIGNMENT;
    size_t bytes;
    say("free %llx\n", address, 0);
    memcpy(&bytes, memory, sizeof bytes);
    allocated_bytes -= bytes;
    free(memory);
    return 0;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { memcpy((void *)(uintptr_t)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return 0; }

static int handle(void **made) { *made = (void *)(uintptr_t)++handles; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; return handle(stream); }
int cuStreamDestroy_v2(void *stream) { (void)stream; return 0; }
int cuStreamSynchronize(void *stream) { (void)stream; return 0; }
int cuStreamIsCapturing(void *stream, int *status) {
    *status = getenv("STUB_RECORDED") != NULL || (stream && stream == recorded);
    return 0;
}
int cuStreamBeginCapture_v2(void *stream, int mode) { (void)mode; recorded = stream; return fails("cuStreamBeginCapture_v2"); }
int cuStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    recorded = NULL;
    handle(graph);
    say("recorded %llu\n", (uintptr_t)*graph, 0);
    return 0;
}
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
    (void)flags;
    *made = graph;
    return fails("cuGraphInstantiateWithFlags");
}
int cuGraphDestroy(void *graph) { (void)graph; return 0; }
int cuGraphExecDestroy(void *graph) { say("dropped %llu\n", (uintptr_t)graph, 0); return 0; }
int cuGraphLaunch(void *graph, void *stream) {
    say("replay %llu %llu\n", (uintptr_t)graph, (uintptr_t)stream);
    return fails("cuGraphLaunch");
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    fprintf(log_file(), "copy p%llx p%llx %zu\n", (unsigned long long)to, (unsigned long long)from, bytes);
    return 0;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    say("wait %llu %llu\n", (uintptr_t)stream, (uintptr_t)event);
    return 0;
}
int cuEventCreate(void **event, unsigned flags) { (void)flags; return handle(event); }
int cuEventRecord(void *event, void *stream) {
    say("record %llu %llu\n", (uintptr_t)event, (uintptr_t)stream);
    return 0;
}
int cuEventDestroy_v2(void *event) { (void)event; return 0; }
int cuEventSynchronize(void *event) { (void)event; return 0; }

int cuModuleLoadData(module **loaded, const void *image) {
    /* Of a file with a variable, the tables of sections are behind everything else. */
    const unsigned char *elf = image;
    uint64_t sections = 0;
    if (memcmp(elf, "\177ELF", 4) == 0) memcpy(&sections, elf + 40, 8);
    if (sections > 300000 && fails("variable")) return 200;
    if (strstr(image, "fetch_code") && fails("fetcher")) return 200;
    if (fails("cuModuleLoadData")) return 222;
    *loaded = calloc(1, sizeof **loaded);
    (*loaded)->text = strdup(image);
    (*loaded)->code = 0x1000u * (uint64_t)++handles;
    return 0;
}
int cuModuleUnload(module *loaded) {
    function *each, *next;
    say("unload\n", 0, 0);
    for (each = loaded->functions; each; each = next) {
        next = each->next;
        free(each);
    }
    free(loaded->text);
    free(loaded);
    return 0;
}

int cuModuleGetGlobal_v2(uint64_t *address, size_t *bytes, module *loaded, const char *name) {
    *address = (uint64_t)(uintptr_t)&loaded->code;
    *bytes = sizeof loaded->code;
    return strcmp(name, "code_address") == 0 ? 0 : 500;
}

/* Of the entry of a PTX file. */
static void read_parameters(function *found, const char *entry) {
    const char *end = strchr(entry, ')'), *place = entry;
    size_t count = 0;
    while (count < MOST_LETTERS && (place = strstr(place, ".param .")) && place < end) {
        place += 8;
        found->letters[count++] = strncmp(place, "u64", 3) == 0 ? 'i' : strncmp(place, "f32", 3) == 0 ? 'f' : 'n';
    }
    found->letters[count] = 0;
}

/* The shape of a cluster. */
int cuFuncGetAttribute(int *value, int attribute, function *of) {
    const char *size = getenv("STUB_CLUSTER");
    (void)of;
    *value = size && attribute == 13 ? atoi(size) : 0;
    return fails("cuFuncGetAttribute");
}
int cuFuncSetAttribute(function *of, int attribute, int value) {
    (void)of;
    say("attribute %llu %llu\n", (unsigned long long)attribute, (unsigned long long)value);
    return 0;
}

int cuModuleGetFunction(function **found, module *loaded, const char *name) {
    char start[300];
    const char *entry;
    for (*found = loaded->functions; *found; *found = (*found)->next)
        if (strcmp((*found)->name, name) == 0) return 0;
    *found = calloc(1, sizeof **found);
    (*found)->next = loaded->functions;
    loaded->functions = *found;
    snprintf((*found)->name, sizeof (*found)->name, "%s", name);
    snprintf(start, sizeof start, ".entry %s(", name);
    if (strncmp(loaded->text, "fake ", 5) == 0) {
        char fake[256];
        sscanf(loaded->text + 5, "%255s %200s", fake, (*found)->letters);
        return strcmp(fake, name) == 0 ? 0 : 500;
    }
    if (strncmp(loaded->text, "\177ELF", 4) == 0) return 0;
    entry = strstr(loaded->text, start);
    if (!entry) return 500;
    read_parameters(*found, entry);
    return 0;
}

static void say_launch(
    const char *early, function *launched, const unsigned *sizes, void *stream, void **arguments) {
    FILE *log = log_file();
    size_t i;
    fprintf(log, "launch %s%s", launched->name, early);
    for (i = 0; i < 7; i++) fprintf(log, " %u", sizes[i]);
    fprintf(log, " %llu", (unsigned long long)(uintptr_t)stream);
    for (i = 0; launched->letters[i]; i++) {
        if (strchr("iorg", launched->letters[i])) fprintf(log, " p%llx", *(unsigned long long *)arguments[i]);
        else if (launched->letters[i] == 'f') fprintf(log, " f%08x", *(unsigned *)arguments[i]);
        else fprintf(log, " d%d", *(int *)arguments[i]);
    }
    fprintf(log, "\n");
}

int cuLaunchKernel(
    function *launched, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    unsigned shared_bytes, void *stream, void **arguments, void **extra) {
    unsigned sizes[7] = {gx, gy, gz, bx, by, bz, shared_bytes};
    (void)extra;
    say_launch("", launched, sizes, stream, arguments);
    return fails("cuLaunchKernel");
}

/* CUlaunchConfig and CUlaunchAttribute, with the one attribute that the runtimes set. */
typedef struct {
    int id, pad, value[16];
} attribute;
typedef struct {
    unsigned sizes[7];
    void *stream;
    attribute *attributes;
    unsigned count;
} configuration;

int cuLaunchKernelEx(const configuration *how, function *launched, void **arguments, void **extra) {
    (void)extra;
    if (how->count != 1 || how->attributes->id != 6 || how->attributes->value[0] != 1) return 1;
    say_launch("+early", launched, how->sizes, how->stream, arguments);
    return fails("cuLaunchKernelEx");
}
