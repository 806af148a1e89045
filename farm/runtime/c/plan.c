/* See plan.h. */
#include "plan.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

static const char version[] = "farm-plan 4\n";
static const int64_t most_blocks[3] = {INT_MAX, 65535, 65535};

/* The words of one line. */
typedef struct {
    farm_plan *plan;
    int number;
    char *place; /* the next word, or NULL after the last one */
} line;

static int wrong(const line *at, const char *what) {
    return farm_fail("%s is damaged in line %d (%s): fetch the bundle again", PLAN_FILE, at->number, what);
}

/* Adds a zeroed element to an array, whose size doubles, up to a limit. */
static int add(const line *at, void **array, int *count, int most, size_t bytes) {
    if (*count >= most) return wrong(at, "too many lines of its kind");
    if ((*count & (*count - 1)) == 0) {
        void *larger = realloc(*array, (*count ? 2 * (size_t)*count : 1) * bytes);
        if (!larger) return farm_fail("out of memory");
        *array = larger;
    }
    memset((char *)*array + (size_t)*count * bytes, 0, bytes);
    (*count)++;
    return 0;
}

#define ADD(at, array, count, most) TRY(add((at), (void **)&(array), &(count), (most), sizeof *(array)))

static int word(line *at, char **found) {
    char *end;
    if (!at->place) return wrong(at, "a word is missing");
    *found = at->place;
    end = strchr(at->place, ' ');
    if (end) *end = 0;
    at->place = end ? end + 1 : NULL;
    return **found ? 0 : wrong(at, "two spaces");
}

/* Reads decimal digits without superfluous zeros, with '-' before them if negative numbers are in the range. */
static int integer(const line *at, const char *digits, int64_t least, int64_t most, int64_t *found) {
    int is_negative = least < 0 && *digits == '-';
    const char *first = digits + is_negative, *place = first;
    int64_t value = 0;
    for (; *place >= '0' && *place <= '9' && place < first + 18; place++) value = 10 * value + (*place - '0');
    if (*place || place == first || (*first == '0' && (first[1] || is_negative))) return wrong(at, "an invalid number");
    if (is_negative) value = -value;
    if (value < least || value > most) return wrong(at, "a number out of range");
    *found = value;
    return 0;
}

static int number(line *at, int64_t least, int64_t most, int64_t *found) {
    char *digits;
    TRY(word(at, &digits));
    return integer(at, digits, least, most, found);
}

static int small(line *at, int64_t least, int64_t most, int *found) {
    int64_t value;
    TRY(number(at, least, most, &value));
    *found = (int)value;
    return 0;
}

static int positive(line *at, int64_t most, unsigned *found) {
    int64_t value;
    TRY(number(at, 1, most, &value));
    *found = (unsigned)value;
    return 0;
}

static int size(line *at, int64_t least, int64_t most, size_t *found) {
    int64_t value;
    TRY(number(at, least, most, &value));
    *found = (size_t)value;
    return 0;
}

static int digit(char character) {
    if (character >= '0' && character <= '9') return character - '0';
    return character >= 'a' && character <= 'f' ? character - 'a' + 10 : -1;
}

/* Reads `bytes` bytes as lower-case hexadecimal digits that end the word. */
static int hexadecimal(const line *at, const char *digits, size_t bytes, unsigned char *found) {
    size_t i;
    if (strlen(digits) != 2 * bytes) return wrong(at, "an invalid hexadecimal number");
    for (i = 0; i < bytes; i++) {
        int high = digit(digits[2 * i]), low = digit(digits[2 * i + 1]);
        if (high < 0 || low < 0) return wrong(at, "an invalid hexadecimal number");
        found[i] = (unsigned char)(high << 4 | low);
    }
    return 0;
}

/* Whether bytes are UTF-8: each character in its shortest form, none of them half of a pair. */
static int is_utf8(const unsigned char *text) {
    static const struct {
        unsigned char first, last, least, most; /* of the first byte; of the second byte */
        int more;
    } forms[] = {
        {0x01, 0x7f, 0x00, 0x00, 0}, {0xc2, 0xdf, 0x80, 0xbf, 1}, {0xe0, 0xe0, 0xa0, 0xbf, 2},
        {0xe1, 0xec, 0x80, 0xbf, 2}, {0xed, 0xed, 0x80, 0x9f, 2}, {0xee, 0xef, 0x80, 0xbf, 2},
        {0xf0, 0xf0, 0x90, 0xbf, 3}, {0xf1, 0xf3, 0x80, 0xbf, 3}, {0xf4, 0xf4, 0x80, 0x8f, 3},
    };
    while (*text) {
        size_t form = 0;
        int i;
        while (form < sizeof forms / sizeof *forms && (*text < forms[form].first || *text > forms[form].last)) form++;
        if (form == sizeof forms / sizeof *forms) return 0;
        if (forms[form].more && (text[1] < forms[form].least || text[1] > forms[form].most)) return 0;
        for (i = 2; i <= forms[form].more; i++)
            if ((text[i] & 0xc0) != 0x80) return 0;
        text += 1 + forms[form].more;
    }
    return 1;
}

/* Reads a name as farm/runtime/plan_text.py quotes it: %xx for a byte, % alone for no bytes. */
static int name(line *at, const char **found) {
    char *from, *to;
    TRY(word(at, &from));
    *found = to = from;
    if (strcmp(from, "%") == 0) from++;
    while (*from) {
        unsigned char byte = (unsigned char)*from++;
        if (byte == '%') {
            char digits[3] = {0};
            digits[0] = *from ? *from++ : 0;
            digits[1] = *from ? *from++ : 0;
            TRY(hexadecimal(at, digits, 1, &byte));
            if (!byte) return wrong(at, "a zero in a name");
        }
        *to++ = (char)byte;
    }
    *to = 0;
    return is_utf8((const unsigned char *)*found) ? 0 : wrong(at, "a name that is not UTF-8");
}

/* Reads the name of a kernel: letters, digits and '_'. */
static int identifier(line *at, const char **found) {
    static const char known[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    char *text;
    TRY(word(at, &text));
    *found = text;
    return text[strspn(text, known)] ? wrong(at, "an invalid name of a kernel") : 0;
}

static int read_grid(line *at, farm_grid_size *grid) {
    int axis;
    for (axis = 0; axis < 3; axis++) {
        TRY(number(at, 1, most_blocks[axis], &grid[axis].fixed));
        TRY(number(at, 0, MOST_IMAGES, &grid[axis].images));
    }
    return 0;
}

int64_t farm_rows_limit(const farm_grid_size grid[3]) {
    int64_t limit = MOST_IMAGES;
    int axis;
    for (axis = 0; axis < 3; axis++) {
        int64_t most = most_blocks[axis] / grid[axis].fixed * grid[axis].images;
        if (grid[axis].images && most < limit) limit = most;
    }
    return limit;
}

static int read_file(line *at) {
    farm_plan *plan = at->plan;
    farm_file *file;
    char *digest, *path;
    ADD(at, plan->files, plan->file_count, MOST_LINES);
    file = &plan->files[plan->file_count - 1];
    TRY(size(at, 1, MOST_FILE_BYTES, &file->bytes));
    TRY(word(at, &digest));
    TRY(hexadecimal(at, digest, sizeof file->sha256, file->sha256));
    TRY(word(at, &path));
    file->path = path;
    if (strcmp(path, CONSTANTS_FILE) == 0) plan->constants_file = plan->file_count - 1;
    if (strcmp(path, GLUE_FILE) == 0) plan->glue_file = plan->file_count - 1;
    return farm_is_member_path(path) ? 0 : wrong(at, "a path that leaves the bundle");
}

static int read_layer(line *at) {
    farm_plan *plan = at->plan;
    farm_layer *layer;
    ADD(at, plan->layers, plan->layer_count, MOST_LINES);
    layer = &plan->layers[plan->layer_count - 1];
    TRY(size(at, 1, MOST_TENSOR_BYTES, &layer->input_bytes));
    TRY(size(at, 1, MOST_TENSOR_BYTES, &layer->output_bytes));
    TRY(small(at, 0, 1, &layer->has_residual));
    TRY(size(at, 0, MOST_TENSOR_BYTES, &layer->gate_bytes));
    return name(at, &layer->name);
}

/* Reads sm_90, sm_90a or compute_80: a number of two or three digits. */
static int read_arch(line *at, farm_kernel *kernel) {
    char *text;
    size_t digits;
    TRY(word(at, &text));
    kernel->is_ptx = strncmp(text, "compute_", 8) == 0;
    if (!kernel->is_ptx && strncmp(text, "sm_", 3) != 0) return wrong(at, "an invalid architecture");
    text += kernel->is_ptx ? 8 : 3;
    digits = strspn(text, "0123456789");
    kernel->is_exact = text[digits] == 'a';
    if (*text == '0' || digits < 2 || digits > 3 || (text[digits] && text[digits] != 'a' && text[digits] != 'f') ||
        (text[digits] && text[digits + 1]))
        return wrong(at, "an invalid architecture");
    kernel->arch = atoi(text);
    return 0;
}

/* Whether the letters are those of a layer's kernel: each at most once, those of all its tensors among them. */
static int are_arguments(const char *letters, const farm_layer *layer) {
    static const char known[] = "iorgnst";
    const char *letter;
    for (letter = letters; *letter; letter++)
        if (!strchr(known, *letter) || strchr(letter + 1, *letter)) return 0;
    return strchr(letters, 'i') && strchr(letters, 'o') && !strchr(letters, 'r') == !layer->has_residual &&
           !strchr(letters, 'g') == !layer->gate_bytes;
}

/* Whether a step in elements is that of a contiguous tensor, whose elements have two or four bytes; 0 is no step. */
static int is_contiguous(int step, size_t bytes) {
    return !step || (size_t)step * 4 == bytes || (size_t)step * 2 == bytes;
}

static int read_kernel(line *at) {
    farm_plan *plan = at->plan;
    farm_kernel *kernel;
    const farm_layer *layer;
    char *letters;
    int i;
    ADD(at, plan->kernels, plan->kernel_count, MOST_LINES);
    kernel = &plan->kernels[plan->kernel_count - 1];
    TRY(small(at, plan->kernel_count > 1 ? kernel[-1].layer : 0, plan->layer_count - 1, &kernel->layer));
    TRY(read_arch(at, kernel));
    TRY(small(at, plan->kernel_count > 1 ? kernel[-1].file + 1 : 0, plan->file_count - 1, &kernel->file));
    TRY(small(at, 1, MOST_IMAGES, &kernel->most_rows));
    TRY(identifier(at, &kernel->entry));
    TRY(read_grid(at, kernel->grid));
    for (i = 0; i < 3; i++) TRY(positive(at, MOST_THREADS, &kernel->block[i]));
    if (kernel->block[0] * kernel->block[1] * kernel->block[2] > MOST_THREADS) return wrong(at, "too many threads");
    TRY(small(at, 0, MOST_SHARED_BYTES, &i));
    kernel->shared_bytes = (unsigned)i;
    TRY(small(at, 0, 1, &kernel->waits));
    TRY(small(at, 0, INT_MAX, &kernel->output_step));
    TRY(small(at, 0, INT_MAX, &kernel->input_step));
    TRY(word(at, &letters));
    kernel->arguments = letters;
    layer = &plan->layers[kernel->layer];
    if (!are_arguments(letters, layer)) return wrong(at, "other arguments than the layer's");
    if (!is_contiguous(kernel->output_step, layer->output_bytes) || !is_contiguous(kernel->input_step, layer->input_bytes))
        return wrong(at, "a step that is not the layer's");
    return 0;
}

static int read_refused(line *at) { return name(at, &at->plan->refused); }

static int read_images(line *at) { return small(at, 0, MOST_IMAGES, &at->plan->images); }

static int read_constants(line *at) {
    farm_plan *plan = at->plan;
    int64_t bytes = plan->constants_file < 0 ? 0 : (int64_t)plan->files[plan->constants_file].bytes;
    TRY(number(at, 0, MOST_FILE_BYTES, &plan->constants_bytes));
    if (plan->constants_bytes == bytes) return 0;
    return wrong(at, "another size than that of " CONSTANTS_FILE);
}

static int read_port(line *at, farm_port *port) {
    char *dtype;
    int64_t bytes;
    int *shape, i;
    TRY(size(at, 1, MOST_TENSOR_BYTES, &port->image_bytes));
    TRY(word(at, &dtype));
    port->dtype = dtype;
    bytes = strcmp(dtype, "float32") == 0 ? 4 : strcmp(dtype, "float16") == 0 || strcmp(dtype, "bfloat16") == 0 ? 2 : 0;
    if (!bytes) return wrong(at, "an unknown data type");
    TRY(small(at, 1, MOST_IMAGES, &port->rows));
    TRY(small(at, 0, MOST_RANK, &port->rank));
    port->shape = shape = calloc((size_t)port->rank + 1, sizeof *shape);
    if (!shape) return farm_fail("out of memory");
    bytes *= port->rows;
    for (i = 0; i < port->rank; i++) {
        TRY(small(at, 1, INT_MAX, &shape[i]));
        if (bytes > MOST_TENSOR_BYTES / shape[i]) return wrong(at, "a size that is not the shape's");
        bytes *= shape[i];
    }
    if ((size_t)bytes != port->image_bytes) return wrong(at, "a size that is not the shape's");
    return name(at, &port->name);
}

static int read_input(line *at) {
    ADD(at, at->plan->inputs, at->plan->input_count, MOST_LINES);
    return read_port(at, &at->plan->inputs[at->plan->input_count - 1]);
}

static int read_output(line *at) {
    ADD(at, at->plan->outputs, at->plan->output_count, MOST_LINES);
    return read_port(at, &at->plan->outputs[at->plan->output_count - 1]);
}

static int read_buffer(line *at) {
    farm_plan *plan = at->plan;
    ADD(at, plan->buffer_bytes, plan->buffer_count, MOST_LINES);
    return size(at, 1, MOST_TENSOR_BYTES, &plan->buffer_bytes[plan->buffer_count - 1]);
}

/* Reads an argument; those of a layer and the output of a kernel are places. */
static int read_argument(line *at, farm_argument *argument) {
    unsigned char bits[4];
    char *text;
    const farm_plan *plan = at->plan;
    TRY(word(at, &text));
    argument->kind = *text;
    argument->value = 0;
    switch (*text++) {
        case 'i': return integer(at, text, 0, plan->input_count - 1, &argument->value);
        case 'o': return integer(at, text, 0, plan->output_count - 1, &argument->value);
        case 'b': return integer(at, text, 0, plan->buffer_count - 1, &argument->value);
        case 'c': return integer(at, text, 0, plan->constants_bytes - 1, &argument->value);
        case 'd': return integer(at, text, INT_MIN, INT_MAX, &argument->value);
        case 'n': return *text ? wrong(at, "an unknown argument") : 0;
        case 'f':
            TRY(hexadecimal(at, text, sizeof bits, bits));
            argument->value = (int64_t)bits[0] << 24 | bits[1] << 16 | bits[2] << 8 | bits[3];
            return 0;
        default: return wrong(at, "an unknown argument");
    }
}

static int is_written(const farm_argument *argument) { return argument->kind == 'o' || argument->kind == 'b'; }

/* Whether a place has room for so many bytes of each image. */
static int has_room(const farm_plan *plan, const farm_argument *place, uint64_t bytes) {
    switch (place->kind) {
        case 'i': return bytes <= plan->inputs[place->value].image_bytes;
        case 'o': return bytes <= plan->outputs[place->value].image_bytes;
        case 'b': return bytes <= plan->buffer_bytes[place->value];
        case 'c':
            return plan->images && bytes <= (uint64_t)(plan->constants_bytes - place->value) / (uint64_t)plan->images;
        default: return 0;
    }
}

static int add_step(line *at, farm_step **step) {
    ADD(at, at->plan->steps, at->plan->step_count, MOST_STEPS);
    *step = &at->plan->steps[at->plan->step_count - 1];
    return 0;
}

static int read_run(line *at) {
    farm_plan *plan = at->plan;
    farm_step *step;
    const farm_layer *layer;
    size_t bytes[4];
    const char *tensor;
    int i, wanted = 2;
    TRY(add_step(at, &step));
    TRY(small(at, 0, plan->layer_count - 1, &step->layer));
    TRY(small(at, 1, MOST_IMAGES, &step->rows));
    layer = &plan->layers[step->layer];
    bytes[0] = layer->input_bytes;
    bytes[1] = layer->output_bytes;
    if (layer->has_residual) bytes[wanted++] = layer->output_bytes;
    if (layer->gate_bytes) bytes[wanted++] = layer->gate_bytes;
    TRY(small(at, wanted, wanted, &step->count));
    for (i = 0; i < step->count; i++) {
        TRY(read_argument(at, &step->arguments[i]));
        if (!has_room(plan, &step->arguments[i], (uint64_t)step->rows * bytes[i]) ||
            (i == 1 && !is_written(&step->arguments[i])))
            return wrong(at, "a place that a tensor of the layer cannot have");
    }
    return name(at, &tensor);
}

static int read_launch(line *at) {
    farm_step *step;
    farm_argument output;
    const char *tensor;
    int i, has_output = 0;
    if (at->plan->glue_file < 0) return wrong(at, "a kernel without " GLUE_FILE);
    TRY(add_step(at, &step));
    step->layer = -1;
    TRY(identifier(at, &step->kernel));
    TRY(small(at, 1, MOST_IMAGES, &step->rows));
    TRY(read_grid(at, step->grid));
    TRY(positive(at, MOST_THREADS, &step->threads));
    TRY(read_argument(at, &output));
    TRY(small(at, 1, MOST_ARGUMENTS, &step->count));
    for (i = 0; i < step->count; i++) {
        TRY(read_argument(at, &step->arguments[i]));
        has_output = has_output || (step->arguments[i].kind == output.kind && step->arguments[i].value == output.value);
    }
    if (!has_output || !is_written(&output)) return wrong(at, "an output that is not among the arguments");
    if (farm_rows_limit(step->grid) < step->rows) return wrong(at, "more rows than a launch takes");
    return name(at, &tensor);
}

/* The kinds of lines, in the order in which a plan has them. Lines of one rank may be mixed. */
enum { FILES, LAYERS, KERNELS, REFUSED, IMAGES, CONSTANTS, INPUTS, OUTPUTS, BUFFERS, STEPS };

static const struct {
    const char *word;
    int rank, is_single;
    int (*read)(line *at);
} kinds[] = {
    {"file", FILES, 0, read_file},       {"layer", LAYERS, 0, read_layer},
    {"kernel", KERNELS, 0, read_kernel}, {"refused", REFUSED, 1, read_refused},
    {"images", IMAGES, 1, read_images},  {"constants", CONSTANTS, 1, read_constants},
    {"input", INPUTS, 0, read_input},    {"output", OUTPUTS, 0, read_output},
    {"buffer", BUFFERS, 0, read_buffer}, {"run", STEPS, 0, read_run},
    {"launch", STEPS, 0, read_launch},
};

static int read_line(line *at, int *rank) {
    char *kind;
    size_t i;
    TRY(word(at, &kind));
    for (i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int is_first = kinds[i].rank > *rank;
        if (strcmp(kind, kinds[i].word) != 0) continue;
        if (kinds[i].rank < *rank || (kinds[i].is_single && !is_first) || at->plan->refused)
            return wrong(at, "a line in the wrong place");
        if (kinds[i].rank > CONSTANTS && *rank < CONSTANTS) return wrong(at, "no number of constants before it");
        if (kinds[i].rank == CONSTANTS && *rank < IMAGES) return wrong(at, "no number of images before it");
        *rank = kinds[i].rank;
        TRY(kinds[i].read(at));
        return at->place ? wrong(at, "too many words") : 0;
    }
    return wrong(at, "an unknown word");
}

/* Checks the digest in the last line, which is of everything before it, and cuts that line off. */
static int check_digest(char *text, size_t bytes) {
    static const char head[] = "sha256 ";
    unsigned char wanted[SHA256_BYTES], found[SHA256_BYTES];
    size_t last = sizeof head - 1 + 2 * SHA256_BYTES + 1;
    line at = {NULL, 0, NULL};
    if (bytes <= last || text[bytes - 1] != '\n' || memcmp(text + bytes - last, head, sizeof head - 1) != 0)
        return farm_fail("%s is damaged: its end is missing. Fetch the bundle again", PLAN_FILE);
    text[bytes - 1] = 0;
    TRY(hexadecimal(&at, text + bytes - last + sizeof head - 1, sizeof wanted, wanted));
    text[bytes - last] = 0;
    farm_sha256(text, bytes - last, found);
    if (memcmp(wanted, found, sizeof wanted) == 0) return 0;
    return farm_fail("%s is damaged: its digest differs from the one in it. Fetch the bundle again", PLAN_FILE);
}

static int by_path(const void *one, const void *other) {
    return strcmp((*(const farm_file *const *)one)->path, (*(const farm_file *const *)other)->path);
}

/* Checks that no two files have the same path, so that each is read once. */
static int check_paths(const farm_plan *plan) {
    const farm_file **files = calloc((size_t)plan->file_count + 1, sizeof *files);
    int i, failed = 0;
    if (!files) return farm_fail("out of memory");
    for (i = 0; i < plan->file_count; i++) files[i] = &plan->files[i];
    qsort(files, (size_t)plan->file_count, sizeof *files, by_path);
    for (i = 1; i < plan->file_count; i++)
        if (by_path(&files[i - 1], &files[i]) == 0)
            failed = farm_fail("%s is damaged: two of its files have the same path. Fetch the bundle again", PLAN_FILE);
    free(files);
    return failed;
}

static int read_lines(farm_plan *plan) {
    line at = {NULL, 1, NULL};
    char *next = plan->text + sizeof version - 1, *place;
    int rank = -1;
    at.plan = plan;
    while (*next) {
        char *begin = next, *end = strchr(begin, '\n');
        at.number++;
        if (!end) return wrong(&at, "no end");
        *end = 0;
        next = end + 1;
        for (place = begin; place < end; place++)
            if (*place < ' ' || *place > '~') return wrong(&at, "a byte that is not printable ASCII");
        at.place = begin;
        TRY(read_line(&at, &rank));
    }
    if (!plan->refused && rank < CONSTANTS) return wrong(&at, "no number of constants after it");
    return check_paths(plan);
}

int farm_read_plan(char *text, size_t bytes, farm_plan *plan) {
    memset(plan, 0, sizeof *plan);
    plan->text = text;
    plan->constants_file = plan->glue_file = -1;
    if (strncmp(text, version, sizeof version - 1) != 0)
        return farm_fail("its %s has another version: fetch the bundle again with this version of farm", PLAN_FILE);
    if (strlen(text) != bytes) return farm_fail("%s is damaged: it has a zero. Fetch the bundle again", PLAN_FILE);
    TRY(check_digest(text, bytes));
    return read_lines(plan);
}

static void free_ports(farm_port *ports, int count) {
    int i;
    for (i = 0; i < count; i++) free((void *)ports[i].shape);
    free(ports);
}

void farm_free_plan(farm_plan *plan) {
    free_ports(plan->inputs, plan->input_count);
    free_ports(plan->outputs, plan->output_count);
    free(plan->files);
    free(plan->layers);
    free(plan->kernels);
    free(plan->buffer_bytes);
    free(plan->steps);
    free(plan->text);
    memset(plan, 0, sizeof *plan);
}
