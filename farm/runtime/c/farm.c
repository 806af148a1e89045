/* See farm.h. Reads network.plan, which farm/runtime/plan.py and plan_files.py write. */
#include "farm.h"

#include <float.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 16
#define BRANCHES 8 /* streams on which the parts of a layer run concurrently, at most */
#define GIVEN_SHARED_BYTES (48 * 1024) /* shared memory that every kernel may use; more has to be requested */
#define MOST_SHARED 8 /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
#define MOST_ARGUMENTS 32
#define MOST_NAME 512

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
#endif

typedef struct {
    long fixed, images; /* images is 0 if the size does not grow with their number */
} grid_size;

typedef struct {
    int layer, arch, is_ptx, is_exact;
    char path[MOST_NAME], entry[MOST_NAME], arguments[8];
    grid_size grid[3];
    unsigned block[3], shared_bytes;
    long images_limit;
    int output_step, input_step;
    size_t image_bytes;
    CUdeviceptr code; /* address of the instructions, 0 if unknown */
    size_t code_bytes;
    CUmodule module;
    CUfunction function;
} kernel;

typedef struct {
    CUdeviceptr input, output, residual, gate; /* the last two are 0 if the layer has none */
} tensors;

typedef struct {
    char kind; /* i, o, b or c: the place of a tensor; n: number of rows; d: an integer; f: the bits of a float */
    long value;
} argument;

typedef struct {
    int layer; /* -1 for a glue kernel */
    int rows;
    grid_size grid[3];
    unsigned threads;
    CUfunction function;
    int count;
    argument arguments[MOST_ARGUMENTS];
    int fetched_with; /* the step beside which the layer's code is prefetched, or -1 */
    double wait; /* microseconds before the first prefetch beside this step */
} step;

typedef struct {
    char name[MOST_NAME];
    long offset;
    size_t bytes;
} zip_entry;

struct farm_bundle {
    char path[4096];
    FILE *archive; /* NULL for a folder */
    zip_entry *entries;
    int entry_count;
    int images; /* the only number of images that the network takes, 0 for any */
    farm_layer *layers;
    int layer_count;
    kernel *kernels; /* those for this GPU */
    int kernel_count;
    farm_port *inputs, *outputs;
    int input_count, output_count;
    step *steps;
    int step_count;
    size_t *buffer_bytes; /* for each image */
    CUdeviceptr *buffers;
    int buffer_count, reserved_images;
    CUdeviceptr constants;
    CUmodule glue;
    char refused[1024];
    long most_images; /* of one pass */
    CUstream streams[BRANCHES - 1];
    CUevent begin, ends[BRANCHES - 1];
    int stream_count;
    double multiprocessors, l2_bytes;
    CUmodule fetcher;
    CUfunction fetch; /* NULL if no code is prefetched */
    CUstream side;
    CUevent fetching, fetched;
    int is_fetching;
    long planned_images; /* the number of images that `fetched_with` is for */
};

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
static _Thread_local char message[2048];
#else
static char message[2048];
#endif

const char *farm_error(void) { return message; }

static int fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    return -1;
}

static int driver(CUresult result, const char *what) {
    const char *name = NULL;
    if (result == 0) return 0;
    cuGetErrorName(result, &name);
    return fail("%s failed (%s)", what, name ? name : "an unknown error");
}

#define TRY(call)                        \
    do {                                 \
        if ((call) != 0) return -1;      \
    } while (0)
#define DRIVER(call) TRY(driver((call), #call))

/* Grows an array by one zeroed element. NULL without memory, and the old array stays valid. */
static void *grown(void *array, int count, size_t size) {
    void *larger = realloc(array, (size_t)(count + 1) * size);
    if (!larger) {
        fail("out of memory");
        return NULL;
    }
    memset((char *)larger + (size_t)count * size, 0, size);
    return larger;
}

#define GROW(array, count)                                              \
    do {                                                                \
        void *larger = grown((array), (count), sizeof *(array));        \
        if (!larger) return -1;                                         \
        (array) = larger;                                               \
        (count)++;                                                      \
    } while (0)

static char *copied(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    if (copy) strcpy(copy, text);
    else fail("out of memory");
    return copy;
}

/* Files of a folder or of an uncompressed zip archive. */

static unsigned long little(const unsigned char *bytes, int count) {
    unsigned long value = 0;
    while (count--) value = value << 8 | bytes[count];
    return value;
}

static int read_at(FILE *file, long offset, void *bytes, size_t count) {
    return fseek(file, offset, SEEK_SET) == 0 && fread(bytes, 1, count, file) == count ? 0 : -1;
}

static int read_directory(farm_bundle *bundle) {
    unsigned char head[46], tail[22];
    long size, place;
    int i, count;
    if (fseek(bundle->archive, 0, SEEK_END) != 0 || (size = ftell(bundle->archive)) < 22)
        return fail("%s is not a bundle: farm fetch writes one", bundle->path);
    if (read_at(bundle->archive, size - 22, tail, 22) != 0 || memcmp(tail, "PK\5\6", 4) != 0)
        return fail("%s is not a bundle: farm fetch writes one", bundle->path);
    count = (int)little(tail + 10, 2);
    place = (long)little(tail + 16, 4);
    if (count == 0xffff || place == 0xffffffffL)
        return fail("%s is larger than 4 GB: unpack it into a folder", bundle->path);
    for (i = 0; i < count; i++) {
        zip_entry *entry;
        size_t length;
        if (read_at(bundle->archive, place, head, 46) != 0 || memcmp(head, "PK\1\2", 4) != 0)
            return fail("%s is damaged: fetch the bundle again", bundle->path);
        length = little(head + 28, 2);
        if (little(head + 10, 2) != 0)
            return fail("%s is compressed: fetch it again, or unpack it into a folder", bundle->path);
        GROW(bundle->entries, bundle->entry_count);
        entry = &bundle->entries[bundle->entry_count - 1];
        if (length >= sizeof entry->name || read_at(bundle->archive, place + 46, entry->name, length) != 0)
            return fail("%s is damaged: fetch the bundle again", bundle->path);
        entry->bytes = little(head + 24, 4);
        entry->offset = (long)little(head + 42, 4);
        place += 46 + (long)(length + little(head + 30, 2) + little(head + 32, 2));
    }
    return 0;
}

/* Reads a file and puts a zero after its bytes. The caller frees them. */
static int read_file(farm_bundle *bundle, const char *name, char **data, size_t *bytes) {
    FILE *file = bundle->archive;
    long offset = 0, size;
    char path[4096 + MOST_NAME + 1];
    *data = NULL;
    if (file) {
        unsigned char head[30];
        int i = 0;
        while (i < bundle->entry_count && strcmp(bundle->entries[i].name, name) != 0) i++;
        if (i == bundle->entry_count) return fail("%s: %s is missing: fetch the bundle again", bundle->path, name);
        if (read_at(file, bundle->entries[i].offset, head, 30) != 0)
            return fail("%s is damaged: fetch the bundle again", bundle->path);
        offset = bundle->entries[i].offset + 30 + (long)(little(head + 26, 2) + little(head + 28, 2));
        size = (long)bundle->entries[i].bytes;
    } else {
        snprintf(path, sizeof path, "%s/%s", bundle->path, name);
        file = fopen(path, "rb");
        if (!file) return fail("%s: %s is missing: fetch the bundle again", bundle->path, name);
        fseek(file, 0, SEEK_END);
        size = ftell(file);
    }
    *bytes = (size_t)size;
    *data = malloc(*bytes + 1);
    if (!*data || read_at(file, offset, *data, *bytes) != 0) {
        free(*data);
        *data = NULL;
        if (!bundle->archive) fclose(file);
        return fail("%s: %s cannot be read", bundle->path, name);
    }
    (*data)[*bytes] = 0;
    if (!bundle->archive) fclose(file);
    return 0;
}

/* The plan: words separated by spaces. */

typedef struct {
    char *place;
} words;

static char *word(words *line) {
    char *start = line->place, *end = strchr(start, ' ');
    if (end) *end = 0;
    line->place = end ? end + 1 : start + strlen(start);
    return start;
}

static long number(words *line) { return strtol(word(line), NULL, 10); }

static void read_grid(words *line, grid_size *grid) {
    int axis;
    for (axis = 0; axis < 3; axis++) {
        grid[axis].fixed = number(line);
        grid[axis].images = number(line);
    }
}

static void copy_word(char *to, const char *from, size_t size) { snprintf(to, size, "%.*s", (int)size - 1, from); }

static int read_port(words *line, farm_port **ports, int *count) {
    farm_port *port;
    int *shape, i;
    GROW(*ports, *count);
    port = &(*ports)[*count - 1];
    port->image_bytes = (size_t)number(line);
    TRY((port->dtype = copied(word(line))) ? 0 : -1);
    port->rows = (int)number(line);
    port->rank = (int)number(line);
    shape = calloc((size_t)port->rank + 1, sizeof *shape);
    if (!shape) return fail("out of memory");
    port->shape = shape;
    for (i = 0; i < port->rank; i++) shape[i] = (int)number(line);
    return (port->name = copied(line->place)) ? 0 : -1;
}

static argument read_argument(const char *text) {
    argument read;
    read.kind = text[0];
    read.value = text[0] == 'n' ? 0 : strtol(text + 1, NULL, text[0] == 'f' ? 16 : 10);
    return read;
}

static int read_arguments(words *line, step *made) {
    int i;
    made->count = (int)number(line);
    if (made->count < 0 || made->count > MOST_ARGUMENTS) return fail("the plan has a step with %d arguments", made->count);
    for (i = 0; i < made->count; i++) made->arguments[i] = read_argument(word(line));
    return 0;
}

/* Xavier, Orin, a GPU in no public table, Thor's old and new number: compatible with no other architecture. */
static int is_integrated(int arch) { return arch == 72 || arch == 87 || arch == 88 || arch == 101 || arch == 110; }

/* Whether a GPU runs a kernel: cubins of its major version that are not newer, cubins that are exact (sm_90a) or for an
 * integrated GPU if they are for exactly this one, and PTX of every virtual architecture that is not newer. */
static int runs_on(const kernel *each, int gpu) {
    if (each->is_ptx) return each->arch <= gpu;
    if (each->is_exact || is_integrated(each->arch) || is_integrated(gpu)) return each->arch == gpu;
    return each->arch / 10 == gpu / 10 && each->arch <= gpu;
}

/* The higher, the rather it is taken: cubins before PTX, newer ones before older ones. */
static int preference(const kernel *each) { return (each->is_ptx ? 0 : 100000) + each->arch * 2 + each->is_exact; }

static int read_kernel(farm_bundle *bundle, words *line, int gpu) {
    kernel each;
    const char *arch;
    int i, kept = 0;
    memset(&each, 0, sizeof each);
    each.layer = (int)number(line);
    arch = word(line);
    each.is_ptx = strncmp(arch, "compute_", 8) == 0;
    each.arch = atoi(arch + (each.is_ptx ? 8 : 3));
    each.is_exact = arch[strlen(arch) - 1] == 'a';
    copy_word(each.path, word(line), sizeof each.path);
    copy_word(each.entry, word(line), sizeof each.entry);
    read_grid(line, each.grid);
    for (i = 0; i < 3; i++) each.block[i] = (unsigned)number(line);
    each.shared_bytes = (unsigned)number(line);
    each.images_limit = number(line);
    each.output_step = (int)number(line);
    each.input_step = (int)number(line);
    copy_word(each.arguments, word(line), sizeof each.arguments);
    if (each.layer < 0 || each.layer >= bundle->layer_count) return fail("the plan has a kernel without a layer");
    if (!runs_on(&each, gpu)) return 0;
    for (i = 0; i < bundle->kernel_count; i++) {
        const kernel *other = &bundle->kernels[i];
        if (other->layer == each.layer && preference(other) > preference(&each)) return 0;
        if (other->layer != each.layer || preference(other) >= preference(&each)) bundle->kernels[kept++] = *other;
    }
    bundle->kernel_count = kept;
    GROW(bundle->kernels, bundle->kernel_count);
    bundle->kernels[bundle->kernel_count - 1] = each;
    return 0;
}

static int load_rest(farm_bundle *bundle) {
    char *image;
    size_t bytes;
    int failed;
    if (bundle->glue) return 0;
    TRY(read_file(bundle, "glue.ptx", &image, &bytes));
    failed = driver(cuModuleLoadData(&bundle->glue, image), "cuModuleLoadData of glue.ptx");
    free(image);
    return failed;
}

static int read_step(farm_bundle *bundle, words *line, int is_layer) {
    step *made;
    GROW(bundle->steps, bundle->step_count);
    made = &bundle->steps[bundle->step_count - 1];
    made->layer = -1;
    if (is_layer) {
        made->layer = (int)number(line);
        made->rows = (int)number(line);
        if (made->layer < 0 || made->layer >= bundle->layer_count) return fail("the plan runs an unknown layer");
        return read_arguments(line, made);
    }
    TRY(load_rest(bundle));
    DRIVER(cuModuleGetFunction(&made->function, bundle->glue, word(line)));
    made->rows = (int)number(line);
    read_grid(line, made->grid);
    made->threads = (unsigned)number(line);
    word(line); /* the output's place, which is among the arguments */
    return read_arguments(line, made);
}

static int read_constants(farm_bundle *bundle, size_t wanted) {
    char *data;
    size_t bytes;
    int failed;
    if (!wanted) return 0;
    TRY(read_file(bundle, "network.constants", &data, &bytes));
    failed = bytes == wanted ? 0 : fail("%s: network.constants is damaged: fetch the bundle again", bundle->path);
    failed = failed || driver(cuMemAlloc_v2(&bundle->constants, bytes), "cuMemAlloc");
    failed = failed || driver(cuMemcpyHtoD_v2(bundle->constants, data, bytes), "cuMemcpyHtoD");
    failed = failed || driver(cuStreamSynchronize(NULL), "cuMemcpyHtoD"); /* other streams do not wait for the copy */
    free(data);
    return failed ? -1 : 0;
}

static int read_line(farm_bundle *bundle, char *text, int gpu) {
    words line;
    const char *kind;
    line.place = text;
    kind = word(&line);
    if (strcmp(kind, "layer") == 0) {
        farm_layer *layer;
        GROW(bundle->layers, bundle->layer_count);
        layer = &bundle->layers[bundle->layer_count - 1];
        layer->input_bytes = (size_t)number(&line);
        layer->output_bytes = (size_t)number(&line);
        layer->has_residual = (int)number(&line);
        layer->gate_bytes = (size_t)number(&line);
        return (layer->name = copied(line.place)) ? 0 : -1;
    }
    if (strcmp(kind, "kernel") == 0) return read_kernel(bundle, &line, gpu);
    if (strcmp(kind, "refused") == 0) copy_word(bundle->refused, line.place, sizeof bundle->refused);
    if (strcmp(kind, "images") == 0) bundle->images = (int)number(&line);
    if (strcmp(kind, "constants") == 0) return read_constants(bundle, (size_t)number(&line));
    if (strcmp(kind, "input") == 0) return read_port(&line, &bundle->inputs, &bundle->input_count);
    if (strcmp(kind, "output") == 0) return read_port(&line, &bundle->outputs, &bundle->output_count);
    if (strcmp(kind, "buffer") == 0) {
        GROW(bundle->buffer_bytes, bundle->buffer_count);
        bundle->buffer_bytes[bundle->buffer_count - 1] = (size_t)number(&line);
    }
    if (strcmp(kind, "run") == 0) return read_step(bundle, &line, 1);
    if (strcmp(kind, "launch") == 0) return read_step(bundle, &line, 0);
    return 0;
}

static int read_plan(farm_bundle *bundle, int gpu) {
    char *text, *line, *end;
    size_t bytes;
    int failed = 0;
    TRY(read_file(bundle, "network.plan", &text, &bytes));
    if (strncmp(text, "farm-plan 1\n", 12) != 0)
        failed = fail("%s: its network.plan has another version: fetch the bundle again", bundle->path);
    for (line = text; !failed && *line; line = end + 1) {
        end = strchr(line, '\n');
        if (!end) break;
        *end = 0;
        failed = read_line(bundle, line, gpu);
    }
    free(text);
    return failed;
}

/* Adds a variable to a cubin, which the driver sets to the address of the kernel's code: the C version of
 * farm/cuda/code_address.py. NULL for anything but a cubin with one kernel and no variables of its own. */
typedef struct {
    unsigned char magic[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, segments, sections;
    uint32_t flags;
    uint16_t header_bytes, segment_bytes, segment_count, section_bytes, section_count, names;
} elf_header;

typedef struct {
    uint32_t name, kind;
    uint64_t flags, address, offset, bytes;
    uint32_t link, info;
    uint64_t alignment, entry_bytes;
} elf_section;

typedef struct {
    uint32_t kind, flags;
    uint64_t offset, virtual_address, physical_address, file_bytes, memory_bytes, alignment;
} elf_segment;

typedef struct {
    uint32_t name;
    unsigned char kind, other;
    uint16_t section;
    uint64_t value, bytes;
} elf_symbol;

typedef struct {
    uint64_t place, what;
    int64_t addend;
} elf_relocation;

/* Appends data at a multiple of 8 bytes and returns the offset. */
static size_t put(char *to, size_t *end, const void *data, size_t bytes) {
    size_t at = (*end + 7) / 8 * 8;
    memset(to + *end, 0, at - *end);
    memcpy(to + at, data, bytes);
    *end = at + bytes;
    return at;
}

/* Moves a section to the end and appends bytes to it. */
static void grow(char *to, size_t *end, elf_section *section, const void *more, size_t bytes) {
    size_t old = section->offset, had = section->bytes;
    section->offset = put(to, end, to + old, had);
    section->bytes = had + bytes;
    memcpy(to + *end, more, bytes);
    *end += bytes;
}

static char *with_address(const char *data, size_t bytes, size_t *made_bytes, size_t *code_bytes) {
    static const char names[] = ".nv.global.init\0.rela.nv.global.init";
    elf_header header;
    elf_section sections[64], *table = NULL, *strings, *texts;
    elf_segment segment;
    elf_symbol symbol;
    elf_relocation relocation = {0, 0, 0};
    uint64_t zero = 0;
    size_t end = bytes, i, count, code = 0, kernel = 0, kernels = 0, codes = 0, variable, old_names, old_segments;
    char *made;
    if (bytes < sizeof header) return NULL;
    memcpy(&header, data, sizeof header);
    count = header.section_count;
    if (memcmp(header.magic, "\177ELF\2\1", 6) != 0 || header.machine != 190 || count + 2 > 64 || header.names >= count)
        return NULL;
    if (header.sections > bytes || bytes - header.sections < count * sizeof *sections) return NULL;
    if (header.segments > bytes || bytes - header.segments < header.segment_count * sizeof segment) return NULL;
    memcpy(sections, data + header.sections, count * sizeof *sections);
    texts = &sections[header.names];
    for (i = 0; i < count; i++)
        if (sections[i].kind != 8 && (sections[i].offset > bytes || bytes - sections[i].offset < sections[i].bytes))
            return NULL;
    if (!texts->bytes || data[texts->offset + texts->bytes - 1]) return NULL;
    for (i = 0; i < count; i++) {
        const char *name = data + texts->offset + sections[i].name;
        if (sections[i].name >= texts->bytes || strcmp(name, ".nv.global.init") == 0) return NULL;
        if (strcmp(name, ".symtab") == 0) table = &sections[i];
        if (strncmp(name, ".text.", 6) == 0) code = i, codes++;
    }
    if (codes != 1 || !table || table->link >= count) return NULL;
    strings = &sections[table->link];
    for (i = 0; i < table->bytes / sizeof symbol; i++) {
        memcpy(&symbol, data + table->offset + i * sizeof symbol, sizeof symbol);
        if (symbol.section == code && (symbol.kind & 15) == 2) kernel = i, kernels++;
    }
    if (kernels != 1) return NULL;
    made = malloc(bytes + texts->bytes + strings->bytes + table->bytes + (count + 8) * sizeof *sections +
                  (header.segment_count + 4u) * sizeof segment + 512);
    if (!made) return NULL;
    memcpy(made, data, bytes);
    memset(&symbol, 0, sizeof symbol);
    symbol.name = (uint32_t)strings->bytes;
    symbol.kind = 0x11; /* a global object */
    symbol.section = (uint16_t)count;
    symbol.bytes = sizeof zero;
    old_names = texts->bytes;
    table->info = (uint32_t)(table->bytes / sizeof symbol + 1);
    grow(made, &end, texts, names, sizeof names);
    grow(made, &end, strings, "code_address", 13);
    grow(made, &end, table, &symbol, sizeof symbol);
    variable = put(made, &end, &zero, sizeof zero);
    relocation.what = (uint64_t)kernel << 32 | 2; /* R_CUDA_64 */
    memset(&sections[count], 0, 2 * sizeof *sections);
    sections[count].name = (uint32_t)old_names;
    sections[count].kind = 1; /* data */
    sections[count].flags = 3; /* writable, in memory */
    sections[count].offset = variable;
    sections[count].bytes = sections[count].alignment = sizeof zero;
    sections[count + 1].name = (uint32_t)old_names + 16;
    sections[count + 1].kind = 4; /* relocations */
    sections[count + 1].flags = 0x40;
    sections[count + 1].offset = put(made, &end, &relocation, sizeof relocation);
    sections[count + 1].bytes = sections[count + 1].entry_bytes = sizeof relocation;
    sections[count + 1].link = (uint32_t)(table - sections);
    sections[count + 1].info = (uint32_t)count;
    sections[count + 1].alignment = 8;
    *code_bytes = sections[code].bytes;
    header.section_count = (uint16_t)(count + 2);
    header.sections = put(made, &end, sections, header.section_count * sizeof *sections);
    old_segments = header.segments;
    header.segments = (end + 7) / 8 * 8;
    for (i = 0; i <= header.segment_count; i++) {
        memcpy(&segment, data + old_segments + (i < header.segment_count ? i : 0) * sizeof segment, sizeof segment);
        if (i == header.segment_count) {
            memset(&segment, 0, sizeof segment);
            segment.kind = 1;
            segment.flags = 6; /* read and written */
            segment.offset = variable;
            segment.file_bytes = segment.memory_bytes = segment.alignment = sizeof zero;
        } else if (segment.offset == old_segments) {
            segment.offset = header.segments;
            segment.file_bytes = segment.memory_bytes = (header.segment_count + 1u) * sizeof segment;
        }
        put(made, &end, &segment, sizeof segment);
    }
    header.segment_count++;
    memcpy(made, &header, sizeof header);
    *made_bytes = end;
    return made;
}
/* Loads a kernel's module, with the address of its code if the driver accepts the changed cubin. */
static int load_module(kernel *each, const char *image, size_t bytes) {
    size_t made_bytes, size;
    CUdeviceptr variable;
    char *addressed = with_address(image, bytes, &made_bytes, &each->code_bytes);
    each->image_bytes = bytes;
    if (addressed) {
        CUresult failed = cuModuleLoadData(&each->module, addressed);
        free(addressed);
        if (!failed) {
            DRIVER(cuModuleGetGlobal_v2(&variable, &size, each->module, "code_address"));
            DRIVER(cuMemcpyDtoH_v2(&each->code, variable, sizeof each->code));
            return 0;
        }
    }
    return driver(cuModuleLoadData(&each->module, image), "cuModuleLoadData");
}

/* Loads the prefetch kernel. Without it, on a GPU older than sm_90 or an old driver, no code is prefetched. */
static int load_fetcher(farm_bundle *bundle) {
    int i, known = 0;
    for (i = 0; i < bundle->kernel_count; i++) known = known || bundle->kernels[i].code;
    if (!known || cuModuleLoadData(&bundle->fetcher, fetch_ptx)) return 0;
    DRIVER(cuModuleGetFunction(&bundle->fetch, bundle->fetcher, "fetch_code"));
    DRIVER(cuStreamCreate(&bundle->side, 1));
    DRIVER(cuEventCreate(&bundle->fetching, 2));
    DRIVER(cuEventCreate(&bundle->fetched, 2));
    return 0;
}

static int load_kernels(farm_bundle *bundle, int gpu) {
    int i, layer, most_parts = 1;
    for (layer = 0; layer < bundle->layer_count; layer++) {
        int parts = 0;
        for (i = 0; i < bundle->kernel_count; i++) parts += bundle->kernels[i].layer == layer;
        if (!parts)
            return fail(
                "%s has no code for this GPU (sm_%d): compile the model with --arch sm_%d and fetch it again",
                bundle->path, gpu, gpu);
        most_parts = parts > most_parts ? parts : most_parts;
    }
    for (i = 0; i < bundle->kernel_count; i++) {
        kernel *each = &bundle->kernels[i];
        char *image;
        size_t bytes;
        int failed;
        TRY(read_file(bundle, each->path, &image, &bytes));
        failed = load_module(each, image, bytes);
        free(image);
        TRY(failed);
        DRIVER(cuModuleGetFunction(&each->function, each->module, each->entry));
        if (each->shared_bytes > GIVEN_SHARED_BYTES)
            DRIVER(cuFuncSetAttribute(each->function, MOST_SHARED, (int)each->shared_bytes));
    }
    TRY(load_fetcher(bundle));
    DRIVER(cuEventCreate(&bundle->begin, 2)); /* without timing */
    while (bundle->stream_count < most_parts - 1 && bundle->stream_count < BRANCHES - 1) {
        DRIVER(cuStreamCreate(&bundle->streams[bundle->stream_count], 1)); /* does not wait for the default stream */
        DRIVER(cuEventCreate(&bundle->ends[bundle->stream_count], 2));
        bundle->stream_count++;
    }
    return 0;
}

/* Limits the images of one pass so that every launch takes them and each pass begins at an aligned address. */
static void limit_images(farm_bundle *bundle) {
    static const long most_blocks[3] = {INT_MAX, 65535, 65535};
    int i, j, axis;
    long most = 1L << 30;
    for (i = 0; i < bundle->step_count; i++) {
        const step *each = &bundle->steps[i];
        long limit = 1L << 30;
        for (j = 0; j < bundle->kernel_count; j++)
            if (bundle->kernels[j].layer == each->layer && bundle->kernels[j].images_limit < limit)
                limit = bundle->kernels[j].images_limit;
        for (axis = 0; each->layer < 0 && axis < 3; axis++)
            if (each->grid[axis].images && most_blocks[axis] / each->grid[axis].fixed * each->grid[axis].images < limit)
                limit = most_blocks[axis] / each->grid[axis].fixed * each->grid[axis].images;
        if (limit / each->rows < most) most = limit / each->rows;
    }
    bundle->most_images = most >= ALIGNMENT ? most / ALIGNMENT * ALIGNMENT : 1;
}

static int open_bundle(farm_bundle *bundle, const char *path) {
    CUdevice device;
    FILE *file;
    char name[sizeof bundle->path + 16];
    int major, minor, multiprocessors, l2_bytes;
    if (strlen(path) >= sizeof bundle->path) return fail("the path of the bundle is too long");
    strcpy(bundle->path, path);
    snprintf(name, sizeof name, "%s/manifest.json", path);
    file = fopen(name, "rb");
    if (file) {
        fclose(file);
    } else {
        bundle->archive = fopen(path, "rb");
        if (!bundle->archive) return fail("%s is not a bundle: farm fetch writes one", path);
        TRY(read_directory(bundle));
    }
    DRIVER(cuCtxGetDevice(&device));
    DRIVER(cuDeviceGetAttribute(&major, 75, device)); /* the compute capability */
    DRIVER(cuDeviceGetAttribute(&minor, 76, device));
    DRIVER(cuDeviceGetAttribute(&multiprocessors, 16, device));
    DRIVER(cuDeviceGetAttribute(&l2_bytes, 38, device));
    bundle->multiprocessors = multiprocessors;
    bundle->l2_bytes = l2_bytes;
    TRY(read_plan(bundle, major * 10 + minor));
    TRY(load_kernels(bundle, major * 10 + minor));
    if (bundle->buffer_count && !(bundle->buffers = calloc((size_t)bundle->buffer_count, sizeof *bundle->buffers)))
        return fail("out of memory");
    limit_images(bundle);
    return 0;
}

int farm_open(const char *path, farm_bundle **opened) {
    farm_bundle *bundle = calloc(1, sizeof *bundle);
    *opened = NULL;
    if (!bundle) return fail("out of memory");
    if (open_bundle(bundle, path) != 0) {
        farm_close(bundle);
        return -1;
    }
    *opened = bundle;
    return 0;
}

static void free_ports(farm_port *ports, int count) {
    int i;
    for (i = 0; i < count; i++) {
        free((void *)ports[i].name);
        free((void *)ports[i].dtype);
        free((void *)ports[i].shape);
    }
    free(ports);
}

void farm_close(farm_bundle *bundle) {
    int i;
    if (!bundle) return;
    cuStreamSynchronize(NULL);
    for (i = 0; i < bundle->kernel_count; i++)
        if (bundle->kernels[i].module) cuModuleUnload(bundle->kernels[i].module);
    if (bundle->glue) cuModuleUnload(bundle->glue);
    for (i = 0; bundle->buffers && i < bundle->buffer_count; i++)
        if (bundle->buffers[i]) cuMemFree_v2(bundle->buffers[i]);
    if (bundle->constants) cuMemFree_v2(bundle->constants);
    for (i = 0; i < bundle->stream_count; i++) {
        cuStreamDestroy_v2(bundle->streams[i]);
        cuEventDestroy_v2(bundle->ends[i]);
    }
    if (bundle->begin) cuEventDestroy_v2(bundle->begin);
    if (bundle->fetcher) cuModuleUnload(bundle->fetcher);
    if (bundle->side) cuStreamDestroy_v2(bundle->side);
    if (bundle->fetching) cuEventDestroy_v2(bundle->fetching);
    if (bundle->fetched) cuEventDestroy_v2(bundle->fetched);
    for (i = 0; i < bundle->layer_count; i++) free((void *)bundle->layers[i].name);
    free_ports(bundle->inputs, bundle->input_count);
    free_ports(bundle->outputs, bundle->output_count);
    if (bundle->archive) fclose(bundle->archive);
    free(bundle->entries);
    free(bundle->layers);
    free(bundle->kernels);
    free(bundle->steps);
    free(bundle->buffer_bytes);
    free(bundle->buffers);
    free(bundle);
}

int farm_layer_count(const farm_bundle *bundle) { return bundle->layer_count; }

const farm_layer *farm_get_layer(const farm_bundle *bundle, int layer) {
    return layer >= 0 && layer < bundle->layer_count ? &bundle->layers[layer] : NULL;
}

int farm_find_layer(const farm_bundle *bundle, const char *name) {
    int i;
    for (i = 0; i < bundle->layer_count; i++)
        if (strcmp(bundle->layers[i].name, name) == 0) return i;
    return fail("%s has no layer %s", bundle->path, name);
}

int farm_input_count(const farm_bundle *bundle) { return bundle->input_count; }
int farm_output_count(const farm_bundle *bundle) { return bundle->output_count; }

const farm_port *farm_input(const farm_bundle *bundle, int number_) {
    return number_ >= 0 && number_ < bundle->input_count ? &bundle->inputs[number_] : NULL;
}

const farm_port *farm_output(const farm_bundle *bundle, int number_) {
    return number_ >= 0 && number_ < bundle->output_count ? &bundle->outputs[number_] : NULL;
}

static unsigned blocks(grid_size size, long rows) {
    return (unsigned)(size.fixed * (size.images ? (rows + size.images - 1) / size.images : 1));
}

static int launch_part(const kernel *each, long rows, tensors given, CUstream stream) {
    void *pointers[sizeof each->arguments];
    int i, images = (int)rows, output_step = each->output_step, input_step = each->input_step;
    for (i = 0; each->arguments[i]; i++) switch (each->arguments[i]) {
            case 'i': pointers[i] = &given.input; break;
            case 'o': pointers[i] = &given.output; break;
            case 'r': pointers[i] = &given.residual; break;
            case 'g': pointers[i] = &given.gate; break;
            case 's': pointers[i] = &output_step; break;
            case 't': pointers[i] = &input_step; break;
            default: pointers[i] = &images; break;
        }
    DRIVER(cuLaunchKernel(
        each->function, blocks(each->grid[0], rows), blocks(each->grid[1], rows), blocks(each->grid[2], rows),
        each->block[0], each->block[1], each->block[2], each->shared_bytes, stream, pointers, NULL));
    return 0;
}

/* The prefetch plan: which layer's code is fetched into the L2 cache beside which step, for a number of images. The rules
 * are those of farm/cuda/prefetch.py, which gives the reasons. */
typedef struct {
    double microseconds, fetch_microseconds, code_bytes, moved_bytes;
} layer_run;

static layer_run run_of(const farm_bundle *bundle, int layer, long rows) {
    layer_run made = {0, 0, 0, 0};
    double issued = 0, longest = 0, followed;
    int i;
    for (i = 0; i < bundle->kernel_count; i++) {
        const kernel *each = &bundle->kernels[i];
        long images = rows < each->images_limit ? rows : each->images_limit;
        double followers = (double)blocks(each->grid[0], images) * blocks(each->grid[1], images);
        double stream = (double)each->image_bytes / blocks(each->grid[2], images);
        unsigned warps = (each->block[0] * each->block[1] * each->block[2] + WARP - 1) / WARP;
        if (each->layer != layer) continue;
        issued += followers * warps * (double)each->image_bytes / INSTRUCTION_BYTES;
        longest = stream > longest ? stream : longest;
        made.code_bytes += (double)each->image_bytes;
    }
    issued = issued / ISSUED_PER_MICROSECOND / bundle->multiprocessors;
    followed = longest / INSTRUCTION_BYTES / STREAMED_PER_MICROSECOND;
    made.microseconds = LAUNCH_MICROSECONDS + (issued > followed ? issued : followed);
    made.moved_bytes = (double)rows * (double)(bundle->layers[layer].input_bytes + bundle->layers[layer].output_bytes);
    if (made.code_bytes >= MIN_CODE_BYTES)
        made.fetch_microseconds = LAUNCH_MICROSECONDS + made.code_bytes / FETCH_BYTES_PER_MICROSECOND;
    return made;
}

/* The layer before this step in the plan, or -1. */
static int layer_before(const farm_bundle *bundle, int number) {
    do number--;
    while (number >= 0 && bundle->steps[number].layer < 0);
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
    if (wait < bundle->steps[start].wait) bundle->steps[start].wait = wait > 0 ? wait : 0;
    return start;
}

static int plan_fetches(farm_bundle *bundle, long images) {
    layer_run *runs;
    double total = 0, room = CACHE_SHARE * bundle->l2_bytes;
    int i;
    if (!bundle->fetch || bundle->planned_images == images) return 0;
    runs = calloc((size_t)bundle->step_count + 1, sizeof *runs);
    if (!runs) return fail("out of memory");
    for (i = 0; i < bundle->step_count; i++) {
        step *each = &bundle->steps[i];
        each->wait = DBL_MAX;
        if (each->layer < 0) continue;
        runs[i] = run_of(bundle, each->layer, each->rows * images);
        total += runs[i].code_bytes + runs[i].moved_bytes;
    }
    for (i = 0; i < bundle->step_count; i++) {
        int fetched = total > room && runs[i].fetch_microseconds > 0;
        bundle->steps[i].fetched_with = fetched ? start_of(bundle, runs, i, room) : -1;
    }
    free(runs);
    bundle->planned_images = images;
    return 0;
}

/* Enqueues the prefetches that run beside this step, if the stream is recorded as a CUDA graph: otherwise they would cost
 * as much CPU time as the layers' launches. Call it before the step's launch. */
static int fetch_with(farm_bundle *bundle, int number, CUstream stream) {
    int i, j, begun = 0, recorded = 0;
    unsigned long long wait;
    if (!bundle->fetch || bundle->steps[number].layer < 0) return 0;
    DRIVER(cuStreamIsCapturing(stream, (void *)&recorded));
    for (i = number + 1; recorded && i < bundle->step_count; i++) {
        if (bundle->steps[i].fetched_with != number) continue;
        for (j = 0; j < bundle->kernel_count; j++) {
            kernel *each = &bundle->kernels[j];
            void *pointers[3];
            if (each->layer != bundle->steps[i].layer || !each->code) continue;
            wait = begun ? 0 : (unsigned long long)(1000 * bundle->steps[number].wait);
            if (!begun) {
                DRIVER(cuEventRecord(bundle->fetching, stream));
                DRIVER(cuStreamWaitEvent(bundle->side, bundle->fetching, 0));
                begun = bundle->is_fetching = 1;
            }
            pointers[0] = &each->code;
            pointers[1] = &each->code_bytes;
            pointers[2] = &wait;
            DRIVER(cuLaunchKernel(
                bundle->fetch, FETCH_BLOCKS, 1, 1, FETCH_THREADS, 1, 1, 0, bundle->side, pointers, NULL));
        }
    }
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
static int launch_layer(farm_bundle *bundle, int layer, long rows, tensors given, CUstream stream) {
    int i, part = 0, parts = 0, others;
    for (i = 0; i < bundle->kernel_count; i++) parts += bundle->kernels[i].layer == layer;
    others = parts - 1 < bundle->stream_count ? parts - 1 : bundle->stream_count;
    if (others) DRIVER(cuEventRecord(bundle->begin, stream));
    for (i = 0; i < others; i++) DRIVER(cuStreamWaitEvent(bundle->streams[i], bundle->begin, 0));
    for (i = 0; i < bundle->kernel_count; i++) {
        int branch = part % (others + 1);
        if (bundle->kernels[i].layer != layer) continue;
        TRY(launch_part(&bundle->kernels[i], rows, given, branch ? bundle->streams[branch - 1] : stream));
        part++;
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
    long start, limit = 1L << 30;
    int i;
    if (!about) return fail("%s has no layer %d", bundle->path, layer);
    if (images < 0) return fail("layer %s is given %d images", about->name, images);
    if ((residual != 0) != about->has_residual)
        return fail("layer %s adds %s residual", about->name, about->has_residual ? "a" : "no");
    if ((gate != 0) != (about->gate_bytes != 0))
        return fail("layer %s takes %s gate", about->name, about->gate_bytes ? "a" : "no");
    if (input % ALIGNMENT || output % ALIGNMENT || residual % ALIGNMENT || gate % ALIGNMENT)
        return fail("layer %s is given a pointer that is not a multiple of %d bytes", about->name, ALIGNMENT);
    for (i = 0; i < bundle->kernel_count; i++)
        if (bundle->kernels[i].layer == layer && bundle->kernels[i].images_limit < limit)
            limit = bundle->kernels[i].images_limit;
    limit = limit / ALIGNMENT * ALIGNMENT;
    for (start = 0; start < images; start += limit) {
        long count = images - start < limit ? images - start : limit;
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

static int reserve(farm_bundle *bundle, long images) {
    int i;
    if (images <= bundle->reserved_images) return 0;
    DRIVER(cuStreamSynchronize(NULL));
    bundle->reserved_images = 0;
    for (i = 0; i < bundle->buffer_count; i++) {
        if (bundle->buffers[i]) DRIVER(cuMemFree_v2(bundle->buffers[i]));
        bundle->buffers[i] = 0;
    }
    for (i = 0; i < bundle->buffer_count; i++)
        DRIVER(cuMemAlloc_v2(&bundle->buffers[i], bundle->buffer_bytes[i] * (size_t)images));
    bundle->reserved_images = (int)images;
    return 0;
}

typedef union {
    CUdeviceptr pointer;
    int32_t number;
    uint32_t bits;
} value;

static int run_step(
    farm_bundle *bundle, const step *each, long start, long images, const CUdeviceptr *inputs,
    const CUdeviceptr *outputs, CUstream stream) {
    value values[MOST_ARGUMENTS];
    void *pointers[MOST_ARGUMENTS];
    long rows = each->rows * images;
    int i;
    for (i = 0; i < each->count; i++) {
        argument given = each->arguments[i];
        pointers[i] = &values[i];
        switch (given.kind) {
            case 'i':
                values[i].pointer = inputs[given.value] + (CUdeviceptr)start * bundle->inputs[given.value].image_bytes;
                break;
            case 'o':
                values[i].pointer = outputs[given.value] + (CUdeviceptr)start * bundle->outputs[given.value].image_bytes;
                break;
            case 'b': values[i].pointer = bundle->buffers[given.value]; break;
            case 'c': values[i].pointer = bundle->constants + (CUdeviceptr)given.value; break;
            case 'n': values[i].number = (int32_t)rows; break;
            case 'f': values[i].bits = (uint32_t)given.value; break;
            default: values[i].number = (int32_t)given.value; break;
        }
    }
    if (each->layer >= 0) {
        const farm_layer *about = &bundle->layers[each->layer];
        tensors given = {0, 0, 0, 0};
        given.input = values[0].pointer;
        given.output = values[1].pointer;
        if (about->has_residual) given.residual = values[2].pointer;
        if (about->gate_bytes) given.gate = values[2 + about->has_residual].pointer;
        return launch_layer(bundle, each->layer, rows, given, stream);
    }
    DRIVER(cuLaunchKernel(
        each->function, blocks(each->grid[0], rows), blocks(each->grid[1], rows), blocks(each->grid[2], rows),
        each->threads, 1, 1, 0, stream, pointers, NULL));
    return 0;
}

int farm_run(
    farm_bundle *bundle, int images, const CUdeviceptr *inputs, const CUdeviceptr *outputs, CUstream stream) {
    long start;
    int i;
    if (bundle->refused[0]) return fail("%s: %s", bundle->path, bundle->refused);
    if (bundle->images && images != bundle->images)
        return fail("the network takes %d images but is given %d", bundle->images, images);
    if (images < 1) return fail("the network takes one or more images but is given %d", images);
    for (i = 0; i < bundle->input_count + bundle->output_count; i++)
        if ((i < bundle->input_count ? inputs[i] : outputs[i - bundle->input_count]) % ALIGNMENT)
            return fail("the network is given a pointer that is not a multiple of %d bytes", ALIGNMENT);
    TRY(reserve(bundle, images < bundle->most_images ? images : bundle->most_images));
    for (start = 0; start < images; start += bundle->most_images) {
        long count = images - start < bundle->most_images ? images - start : bundle->most_images;
        TRY(plan_fetches(bundle, count));
        for (i = 0; i < bundle->step_count; i++) {
            TRY(fetch_with(bundle, i, stream));
            TRY(run_step(bundle, &bundle->steps[i], start, count, inputs, outputs, stream));
        }
    }
    return end_fetches(bundle, stream);
}
