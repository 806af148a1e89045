/* See farm.h. Reads network.plan, whose text farm/runtime/plan.py and plan_files.py write. */
#include "farm.h"

#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 16
#define BRANCHES 8 /* parts of a layer run beside each other on so many streams */
#define MOST_ARGUMENTS 32
#define MOST_NAME 512

/* The driver, as far as it is needed here. */
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
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuLaunchKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments, void **extra);
#endif

typedef struct {
    long fixed, images; /* images is 0 where the size does not grow with them */
} grid_size;

typedef struct {
    int layer, arch, is_ptx, is_exact;
    char path[MOST_NAME], entry[MOST_NAME], arguments[8];
    grid_size grid[3];
    unsigned block[3], shared_bytes;
    long images_limit;
    int output_step;
    CUmodule module;
    CUfunction function;
} kernel;

typedef struct {
    CUdeviceptr input, output, residual, gate; /* the last two 0 where a layer has none */
} tensors;

typedef struct {
    char kind; /* i, o, b or c, the place of a tensor; n, how many rows; d, a number; f, the bits of a float */
    long value;
} argument;

typedef struct {
    int layer; /* -1 of a launch of rest.ptx */
    int rows;
    grid_size grid[3];
    unsigned threads;
    CUfunction function;
    int count;
    argument arguments[MOST_ARGUMENTS];
} step;

typedef struct {
    char name[MOST_NAME];
    long offset;
    size_t bytes;
} zip_entry;

struct farm_bundle {
    char path[4096];
    FILE *archive; /* NULL of a folder */
    zip_entry *entries;
    int entry_count;
    int images; /* the only number that the network takes, 0 for any */
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
    CUmodule rest;
    char refused[1024];
    long most_images; /* of one turn */
    CUstream streams[BRANCHES - 1];
    CUevent begin, ends[BRANCHES - 1];
    int stream_count;
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

/* An array that grows by one; NULL, and the old one is kept, without memory. */
static void *grown(void *array, int count, size_t size) {
    void *larger = realloc(array, (size_t)(count + 1) * size);
    if (!larger) {
        fail("there is no memory left");
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
    else fail("there is no memory left");
    return copy;
}

/* Files: of a folder, or of an uncompressed zip archive. */

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
        return fail("%s is no bundle: farm fetch writes one", bundle->path);
    if (read_at(bundle->archive, size - 22, tail, 22) != 0 || memcmp(tail, "PK\5\6", 4) != 0)
        return fail("%s is no bundle: farm fetch writes one", bundle->path);
    count = (int)little(tail + 10, 2);
    place = (long)little(tail + 16, 4);
    if (count == 0xffff || place == 0xffffffffL)
        return fail("%s is larger than 4 GB: unpack it into a folder", bundle->path);
    for (i = 0; i < count; i++) {
        zip_entry *entry;
        size_t length;
        if (read_at(bundle->archive, place, head, 46) != 0 || memcmp(head, "PK\1\2", 4) != 0)
            return fail("%s is damaged: fetch it again", bundle->path);
        length = little(head + 28, 2);
        if (little(head + 10, 2) != 0)
            return fail("%s is compressed: fetch it again, or unpack it into a folder", bundle->path);
        GROW(bundle->entries, bundle->entry_count);
        entry = &bundle->entries[bundle->entry_count - 1];
        if (length >= sizeof entry->name || read_at(bundle->archive, place + 46, entry->name, length) != 0)
            return fail("%s is damaged: fetch it again", bundle->path);
        entry->bytes = little(head + 24, 4);
        entry->offset = (long)little(head + 42, 4);
        place += 46 + (long)(length + little(head + 30, 2) + little(head + 32, 2));
    }
    return 0;
}

/* The bytes of a file and a zero after them; the caller frees them. */
static int read_file(farm_bundle *bundle, const char *name, char **data, size_t *bytes) {
    FILE *file = bundle->archive;
    long offset = 0, size;
    char path[4096 + MOST_NAME + 1];
    *data = NULL;
    if (file) {
        unsigned char head[30];
        int i = 0;
        while (i < bundle->entry_count && strcmp(bundle->entries[i].name, name) != 0) i++;
        if (i == bundle->entry_count) return fail("%s: there is no %s in it: fetch it again", bundle->path, name);
        if (read_at(file, bundle->entries[i].offset, head, 30) != 0)
            return fail("%s is damaged: fetch it again", bundle->path);
        offset = bundle->entries[i].offset + 30 + (long)(little(head + 26, 2) + little(head + 28, 2));
        size = (long)bundle->entries[i].bytes;
    } else {
        snprintf(path, sizeof path, "%s/%s", bundle->path, name);
        file = fopen(path, "rb");
        if (!file) return fail("%s: there is no %s in it: fetch it again", bundle->path, name);
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

/* The plan: words with spaces between them. */

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
    if (!shape) return fail("there is no memory left");
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

/* A GPU runs the cubins of its major version that are not newer, those with a letter (sm_90a) if they are its own, and
 * the PTX of every virtual architecture that is not newer. */
static int runs_on(const kernel *each, int gpu) {
    if (each->is_ptx) return each->arch <= gpu;
    if (each->is_exact) return each->arch == gpu;
    return each->arch / 10 == gpu / 10 && each->arch <= gpu;
}

/* Which of two that run here is rather taken: a cubin, and the newer one. */
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
    each.is_exact = arch[strlen(arch) - 1] > '9';
    copy_word(each.path, word(line), sizeof each.path);
    copy_word(each.entry, word(line), sizeof each.entry);
    read_grid(line, each.grid);
    for (i = 0; i < 3; i++) each.block[i] = (unsigned)number(line);
    each.shared_bytes = (unsigned)number(line);
    each.images_limit = number(line);
    each.output_step = (int)number(line);
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
    if (bundle->rest) return 0;
    TRY(read_file(bundle, "rest.ptx", &image, &bytes));
    failed = driver(cuModuleLoadData(&bundle->rest, image), "cuModuleLoadData of rest.ptx");
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
        if (made->layer < 0 || made->layer >= bundle->layer_count) return fail("the plan runs a layer that is not there");
        return read_arguments(line, made);
    }
    TRY(load_rest(bundle));
    DRIVER(cuModuleGetFunction(&made->function, bundle->rest, word(line)));
    made->rows = (int)number(line);
    read_grid(line, made->grid);
    made->threads = (unsigned)number(line);
    word(line); /* where its output is, which is among the arguments */
    return read_arguments(line, made);
}

static int read_constants(farm_bundle *bundle, size_t wanted) {
    char *data;
    size_t bytes;
    int failed;
    if (!wanted) return 0;
    TRY(read_file(bundle, "network.constants", &data, &bytes));
    failed = bytes == wanted ? 0 : fail("%s: network.constants is damaged: fetch it again", bundle->path);
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
    if (strncmp(text, "farm-plan 2\n", 12) != 0)
        failed = fail("%s: its network.plan is of another version: fetch it again", bundle->path);
    for (line = text; !failed && *line; line = end + 1) {
        end = strchr(line, '\n');
        if (!end) break;
        *end = 0;
        failed = read_line(bundle, line, gpu);
    }
    free(text);
    return failed;
}

static int load_kernels(farm_bundle *bundle, int gpu) {
    int i, layer, most_parts = 1;
    for (layer = 0; layer < bundle->layer_count; layer++) {
        int parts = 0;
        for (i = 0; i < bundle->kernel_count; i++) parts += bundle->kernels[i].layer == layer;
        if (!parts)
            return fail(
                "%s has nothing that runs on this GPU (sm_%d): compile the model with --arch sm_%d and fetch it again",
                bundle->path, gpu, gpu);
        most_parts = parts > most_parts ? parts : most_parts;
    }
    for (i = 0; i < bundle->kernel_count; i++) {
        kernel *each = &bundle->kernels[i];
        char *image;
        size_t bytes;
        int failed;
        TRY(read_file(bundle, each->path, &image, &bytes));
        failed = driver(cuModuleLoadData(&each->module, image), "cuModuleLoadData");
        free(image);
        TRY(failed);
        DRIVER(cuModuleGetFunction(&each->function, each->module, each->entry));
    }
    DRIVER(cuEventCreate(&bundle->begin, 2)); /* without a time */
    while (bundle->stream_count < most_parts - 1 && bundle->stream_count < BRANCHES - 1) {
        DRIVER(cuStreamCreate(&bundle->streams[bundle->stream_count], 1)); /* does not wait for the default stream */
        DRIVER(cuEventCreate(&bundle->ends[bundle->stream_count], 2));
        bundle->stream_count++;
    }
    return 0;
}

/* How many images every launch takes at once, so that each turn begins at an aligned address. */
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
    int major, minor;
    if (strlen(path) >= sizeof bundle->path) return fail("the path of the bundle is too long");
    strcpy(bundle->path, path);
    snprintf(name, sizeof name, "%s/manifest.json", path);
    file = fopen(name, "rb");
    if (file) {
        fclose(file);
    } else {
        bundle->archive = fopen(path, "rb");
        if (!bundle->archive) return fail("%s is no bundle: farm fetch writes one", path);
        TRY(read_directory(bundle));
    }
    DRIVER(cuCtxGetDevice(&device));
    DRIVER(cuDeviceGetAttribute(&major, 75, device)); /* the compute capability */
    DRIVER(cuDeviceGetAttribute(&minor, 76, device));
    TRY(read_plan(bundle, major * 10 + minor));
    TRY(load_kernels(bundle, major * 10 + minor));
    if (bundle->buffer_count && !(bundle->buffers = calloc((size_t)bundle->buffer_count, sizeof *bundle->buffers)))
        return fail("there is no memory left");
    limit_images(bundle);
    return 0;
}

int farm_open(const char *path, farm_bundle **opened) {
    farm_bundle *bundle = calloc(1, sizeof *bundle);
    *opened = NULL;
    if (!bundle) return fail("there is no memory left");
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
    if (bundle->rest) cuModuleUnload(bundle->rest);
    for (i = 0; bundle->buffers && i < bundle->buffer_count; i++)
        if (bundle->buffers[i]) cuMemFree_v2(bundle->buffers[i]);
    if (bundle->constants) cuMemFree_v2(bundle->constants);
    for (i = 0; i < bundle->stream_count; i++) {
        cuStreamDestroy_v2(bundle->streams[i]);
        cuEventDestroy_v2(bundle->ends[i]);
    }
    if (bundle->begin) cuEventDestroy_v2(bundle->begin);
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
    int i, images = (int)rows, output_step = each->output_step;
    for (i = 0; each->arguments[i]; i++) switch (each->arguments[i]) {
            case 'i': pointers[i] = &given.input; break;
            case 'o': pointers[i] = &given.output; break;
            case 'r': pointers[i] = &given.residual; break;
            case 'g': pointers[i] = &given.gate; break;
            case 's': pointers[i] = &output_step; break;
            default: pointers[i] = &images; break;
        }
    DRIVER(cuLaunchKernel(
        each->function, blocks(each->grid[0], rows), blocks(each->grid[1], rows), blocks(each->grid[2], rows),
        each->block[0], each->block[1], each->block[2], each->shared_bytes, stream, pointers, NULL));
    return 0;
}

/* To the stream it is one launch: parts begin after what the stream has, what follows waits for all. */
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
        return fail("layer %s is given a pointer that is no multiple of %d bytes", about->name, ALIGNMENT);
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
        return fail("the network takes %d images and is given %d", bundle->images, images);
    if (images < 1) return fail("the network takes one or more images and is given %d", images);
    for (i = 0; i < bundle->input_count + bundle->output_count; i++)
        if ((i < bundle->input_count ? inputs[i] : outputs[i - bundle->input_count]) % ALIGNMENT)
            return fail("the network is given a pointer that is no multiple of %d bytes", ALIGNMENT);
    TRY(reserve(bundle, images < bundle->most_images ? images : bundle->most_images));
    for (start = 0; start < images; start += bundle->most_images) {
        long count = images - start < bundle->most_images ? images - start : bundle->most_images;
        for (i = 0; i < bundle->step_count; i++)
            TRY(run_step(bundle, &bundle->steps[i], start, count, inputs, outputs, stream));
    }
    return 0;
}
