/* runtime_fuzzer BUNDLE MEMBER COUNT SEED: opens and runs mutants of a bundle on the driver that is played.
 *
 * Of a folder the file MEMBER is mutated, and the plan's digests are made to fit; of an archive, with MEMBER empty, its
 * bytes. The bundle is changed in place, so that the mutant of a failure is left there, and mutant n of a seed is always
 * the same. A mutant must be refused in one printable line, or run, in SECONDS of the CPU.
 */
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "farm.h"
#include "sha256.h"

#define SECONDS 5
#define MOST_BYTES (1 << 24)
#define MOST_REPEATS 70000
#define DIGEST_LINE 72 /* bytes of a plan's last line */
#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct {
    char *data;
    size_t bytes;
} buffer;

typedef struct {
    size_t begin, end;
} range;

static uint64_t state; /* of the random numbers */
static unsigned long long mutant, seed;

static void tell(void) { fprintf(stderr, "mutant %llu of seed %llu\n", mutant, seed); }

static void take_too_long(int number) {
    (void)number;
    tell();
    fprintf(stderr, "it takes more than %d s of the CPU\n", SECONDS);
    abort();
}

static void must(int holds, const char *what) {
    if (holds) return;
    tell();
    fprintf(stderr, "%s: %s\n", what, farm_error());
    abort();
}

static uint64_t drawn(uint64_t below) { /* SplitMix64 */
    uint64_t value = state += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return (value ^ value >> 31) % below;
}

static buffer read_file(const char *path) {
    buffer read = {malloc(MOST_BYTES), 0};
    FILE *file = fopen(path, "rb");
    must(file && read.data, path);
    read.bytes = fread(read.data, 1, MOST_BYTES, file);
    fclose(file);
    return read;
}

static void write_file(const char *path, const buffer *text) {
    FILE *file = fopen(path, "wb");
    must(file && fwrite(text->data, 1, text->bytes, file) == text->bytes && fclose(file) == 0, path);
}

/* Puts bytes, which may be the buffer's own, in the place of a range, if there is room for them. */
static void splice(buffer *text, range old, const char *bytes, size_t count) {
    char *copy;
    if (text->bytes - (old.end - old.begin) + count > MOST_BYTES - DIGEST_LINE) return;
    copy = malloc(count + 1);
    must(copy != NULL, "no memory");
    memcpy(copy, bytes, count);
    memmove(text->data + old.begin + count, text->data + old.end, text->bytes - old.end);
    memcpy(text->data + old.begin, copy, count);
    text->bytes = text->bytes - (old.end - old.begin) + count;
    free(copy);
}

static void copy_to(buffer *text, range from, range to) {
    splice(text, to, text->data + from.begin, from.end - from.begin);
}

static range at(size_t place) { return (range){place, place}; }

static range drawn_range(range within) {
    size_t begin = within.begin + drawn(within.end - within.begin + 1);
    return (range){begin, begin + drawn(within.end - begin + 1)};
}

/* Mutations of texts, which are lines of words. */

/* One of the pieces into which a separator divides a range, with the separator behind it. */
static range drawn_piece(const buffer *text, range within, char separator) {
    size_t i, skipped = 1;
    char *end;
    for (i = within.begin; i < within.end; i++) skipped += text->data[i] == separator;
    for (skipped = drawn(skipped), i = within.begin; skipped; i++) skipped -= text->data[i] == separator;
    end = memchr(text->data + i, separator, within.end - i);
    return (range){i, end ? (size_t)(end - text->data) + 1 : within.end};
}

static range drawn_line(const buffer *text) { return drawn_piece(text, (range){0, text->bytes}, '\n'); }

static range drawn_word(const buffer *text) {
    range word = drawn_line(text);
    if (word.end > word.begin && text->data[word.end - 1] == '\n') word.end--;
    word = drawn_piece(text, word, ' ');
    if (word.end > word.begin && text->data[word.end - 1] == ' ') word.end--;
    return word;
}

static void replace_word(buffer *text) {
    static const char *const words[] = {
        "", " ", "0", "1", "2", "7", "-1", "-3", "00", "1e3", "0x10", "+1", "255", "1024", "65535", "65536", "99999",
        "1073741824", "2000000000", "2147483647", "2147483648", "-2147483648", "4294967295", "4294967296", "8589934592",
        "999999999999999999", "1000000000000000000", "9223372036854775807", "18446744073709551616", "i0", "i1", "i7", "o0",
        "o1", "o9", "b0", "b1", "b-3", "b99999", "c0", "c5", "c16", "n", "n1", "d0", "d-1", "d2147483647", "d2147483648",
        "f0000000", "f7fc00000", "%", "%00", "%ff", "%c3%a9", "%c0%80", "%ed%a0%80", "%e2%80%ae", "%1b[2J", "sm_90", "sm_9",
        "sm_80", "sm_86a", "sm_90f", "compute_80", "compute_90", "io", "ion", "iorgnst", "ionst", "../x", "/dev/zero",
        "network.plan", "glue.ptx", "network.constants", "float32", "float16", "float64", "file", "layer", "kernel",
        "refused", "images", "constants", "input", "output", "buffer", "run", "launch", "sha256", "\x1b[1m", "\xc3\xa9",
    };
    const char *word = words[drawn(COUNT(words))];
    splice(text, drawn_word(text), word, strlen(word));
}

/* Replaces the number at the end of a word by one that is near, or twice as large, or negative. */
static void change_number(buffer *text) {
    range word = drawn_word(text), digits = {word.end, word.end};
    char made[32];
    long long number;
    while (digits.begin > word.begin && digits.end - digits.begin < 18 && text->data[digits.begin - 1] >= '0' &&
           text->data[digits.begin - 1] <= '9')
        digits.begin--;
    if (digits.begin == digits.end) return;
    memcpy(made, text->data + digits.begin, digits.end - digits.begin);
    made[digits.end - digits.begin] = 0;
    number = atoll(made);
    switch (drawn(6)) {
        case 0: number++; break;
        case 1: number--; break;
        case 2: number *= 2; break;
        case 3: number = (long long)drawn((uint64_t)number + 16); break;
        case 4: number = (long long)drawn(UINT64_MAX) >> drawn(64); break;
        default: number = -number; break;
    }
    splice(text, digits, made, (size_t)snprintf(made, sizeof made, "%lld", number));
}

static void repeat_line(buffer *text) {
    range line = drawn_line(text);
    size_t count = drawn(256) ? 2 : drawn(MOST_REPEATS), bytes = line.end - line.begin, i;
    char *made;
    if (count * bytes > MOST_BYTES) return;
    made = malloc(count * bytes + 1);
    must(made != NULL, "no memory");
    for (i = 0; i < count; i++) memcpy(made + i * bytes, text->data + line.begin, bytes);
    splice(text, line, made, count * bytes);
    free(made);
}

static void flip(buffer *text, range within) {
    if (within.end > within.begin)
        text->data[within.begin + drawn(within.end - within.begin)] ^= (char)(1 << drawn(8));
}

static void mutate_text(buffer *text) {
    range piece;
    switch (drawn(10)) {
        case 0:
        case 1: replace_word(text); break;
        case 2:
        case 3: change_number(text); break;
        case 4: piece = drawn_word(text); copy_to(text, piece, drawn_word(text)); break;
        case 5: piece = drawn_word(text); splice(text, piece, "", 0); break;
        case 6: piece = drawn_line(text); copy_to(text, piece, at(drawn_line(text).begin)); break;
        case 7: piece = drawn_line(text); splice(text, piece, "", 0); break;
        case 8: repeat_line(text); break;
        default: flip(text, drawn_line(text)); break;
    }
}

/* Mutations of ELF files and archives, most of them in the tables. */

static uint64_t little(const buffer *text, size_t place, size_t bytes) {
    uint64_t value = 0;
    if (place + bytes <= text->bytes) memcpy(&value, text->data + place, bytes);
    return value;
}

/* The header of an ELF file, or an entry of its sections, segments or symbols. */
static range elf_entry(const buffer *text) {
    static const size_t places[][3] = {{40, 60, 64}, {32, 56, 56}}; /* of tables: where, how many, of what size */
    size_t kind = drawn(3), table, count;
    if (kind == 2) return (range){0, 64};
    table = (size_t)little(text, places[kind][0], 8);
    count = (size_t)little(text, places[kind][1], 2);
    if (!count) return (range){0, 64};
    table += drawn(count) * places[kind][2];
    if (kind == 0 && little(text, table + 4, 4) == 2 && drawn(2)) { /* in the table of symbols */
        size_t symbols = (size_t)little(text, table + 24, 8);
        return (range){symbols, symbols + (size_t)little(text, table + 32, 8)};
    }
    return (range){table, table + places[kind][2]};
}

/* A header of an archive's member, or an entry of its directory, or its end. */
static range zip_record(const buffer *text) {
    size_t place = drawn(text->bytes), i;
    for (i = 0; i < text->bytes; i++, place = (place + 1) % text->bytes)
        if (place + 4 < text->bytes && memcmp(text->data + place, "PK", 2) == 0 && text->data[place + 2] < 7)
            return (range){place, place + 46};
    return (range){0, text->bytes};
}

static void set_number(buffer *text, range within) {
    static const uint64_t extremes[] = {
        0, 1, 2, 3, 4, 8, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
        INT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 63, UINT64_MAX - 7, UINT64_MAX,
    };
    size_t bytes = (size_t)1 << drawn(4), steps = (within.end - within.begin) / 2, place;
    uint64_t number = extremes[drawn(COUNT(extremes))];
    if (!steps) return;
    place = within.begin + 2 * drawn(steps);
    if (place + bytes > text->bytes) return;
    switch (drawn(5)) {
        case 0: number = little(text, place, bytes) + drawn(5) - 2; break;
        case 1: number = text->bytes + drawn(130) - 65; break;
        case 2: number = drawn(text->bytes); break;
        case 3: number = little(text, within.begin + 2 * drawn(steps), bytes); break;
        default: break;
    }
    memcpy(text->data + place, &number, bytes);
}

static void mutate_bytes(buffer *text) {
    range whole = {0, text->bytes}, within = whole;
    if (text->bytes < 64) return;
    if (drawn(4)) within = memcmp(text->data, "PK", 2) == 0 ? zip_record(text) : elf_entry(text);
    if (within.end > text->bytes || within.begin >= within.end) within = whole;
    switch (drawn(16)) {
        case 0: splice(text, drawn_range(within), "", 0); break;
        case 1: copy_to(text, within, at(drawn(text->bytes))); break;
        case 2: copy_to(text, within, drawn_range(within)); break;
        case 3: text->bytes = drawn(text->bytes + 1); break;
        case 4:
        case 5:
        case 6: flip(text, within); break;
        default: set_number(text, within); break;
    }
}

/* A mutant of a file: up to three mutations, or a few more. */
static void mutate(buffer *text) {
    int is_text = !memchr(text->data, 0, text->bytes);
    do (is_text ? mutate_text : mutate_bytes)(text);
    while (drawn(2));
}

/* Ends a plan with the digest of what is before it. */
static void end_plan(buffer *plan) {
    unsigned char digest[SHA256_BYTES];
    char line[DIGEST_LINE + 1] = "sha256 ";
    int i;
    farm_sha256(plan->data, plan->bytes, digest);
    for (i = 0; i < SHA256_BYTES; i++) sprintf(line + 7 + 2 * i, "%02x", digest[i]);
    line[DIGEST_LINE - 1] = '\n';
    splice(plan, at(plan->bytes), line, DIGEST_LINE);
}

/* Says in a plan, which ends before its digest, what size and digest a file has. */
static void describe(buffer *plan, const char *path, const buffer *file) {
    unsigned char digest[SHA256_BYTES];
    char line[600];
    size_t begin = 0, length = strlen(path);
    int count, i;
    while (begin < plan->bytes) {
        size_t end = begin + (size_t)((char *)memchr(plan->data + begin, '\n', plan->bytes - begin) - (plan->data + begin));
        if (memcmp(plan->data + begin, "file ", 5) == 0 && memcmp(plan->data + end - length - 1, " ", 1) == 0 &&
            memcmp(plan->data + end - length, path, length) == 0) {
            farm_sha256(file->data, file->bytes, digest);
            count = sprintf(line, "file %zu ", file->bytes);
            for (i = 0; i < SHA256_BYTES; i++) count += sprintf(line + count, "%02x", digest[i]);
            count += sprintf(line + count, " %s", path);
            splice(plan, (range){begin, end}, line, (size_t)count);
            return;
        }
        begin = end + 1;
    }
    must(0, "the plan has no such file");
}

/* What a program does with a bundle. */

static void check_message(void) {
    const char *place = farm_error();
    must(*place != 0, "an error has no message");
    for (; *place; place++) must(*place >= ' ' && *place <= '~', "a message is not printable");
}

static int run_layers(farm_bundle *bundle, int images) {
    int i, ran = 0;
    for (i = 0; i < farm_layer_count(bundle); i++) {
        const farm_layer *layer = farm_get_layer(bundle, i);
        must(farm_find_layer(bundle, layer->name) <= i, "a layer is not found by its name");
        if (farm_run_layer(bundle, i, images, 16, 16, layer->has_residual ? 16 : 0, layer->gate_bytes ? 16 : 0, NULL))
            check_message();
        else
            ran = 1;
    }
    return ran;
}

static int run_network(farm_bundle *bundle, int images) {
    int counts[2], i, axis, failed;
    CUdeviceptr *places[2];
    counts[0] = farm_input_count(bundle);
    counts[1] = farm_output_count(bundle);
    for (i = 0; i < 2; i++) {
        places[i] = calloc((size_t)counts[i] + 1, sizeof **places);
        must(places[i] != NULL, "no memory");
    }
    for (i = 0; i < counts[0]; i++) {
        const farm_port *port = farm_input(bundle, i);
        uint64_t size = (uint64_t)port->rows * (strcmp(port->dtype, "float32") == 0 ? 4 : 2);
        for (axis = 0; axis < port->rank; axis++) size *= (uint64_t)port->shape[axis];
        must(size == port->image_bytes, "an input has another size than its shape");
    }
    failed = farm_run(bundle, images, places[0], places[1], NULL);
    if (failed) check_message();
    free(places[0]);
    free(places[1]);
    return !failed;
}

/* Opens a bundle on a drawn GPU, whose driver fails now and then, and runs it. */
static void run(const char *path, int *opened, int *ran) {
    static const char *const archs[] = {"80", "86", "90", "120"};
    static const char *const failures[] = {"cuMemAlloc_v2", "cuModuleLoadData", "cuLaunchKernel", "cuLaunchKernelEx",
                                           "cuFuncGetAttribute", "variable", "fetcher"};
    static const int images[] = {1, 2, 3, 70};
    int count = images[drawn(COUNT(images))];
    farm_bundle *bundle;
    setenv("STUB_ARCH", archs[drawn(8) ? 2 : drawn(COUNT(archs))], 1);
    if (drawn(2)) setenv("STUB_RECORDED", "1", 1);
    else unsetenv("STUB_RECORDED");
    setenv("STUB_FAIL", drawn(16) ? "" : failures[drawn(COUNT(failures))], 1);
    if (farm_open(path, &bundle) != 0) {
        check_message();
        return;
    }
    ++*opened;
    *ran += run_layers(bundle, count) && run_network(bundle, count);
    farm_close(bundle);
}

/* A file that is mutated, and the bundle's plan without its last line. Both are kept, with room for a mutant of each. */
typedef struct {
    char path[4096], plan_path[4096];
    const char *member;
    buffer original, made, plan, made_plan;
} target;

static void open_target(target *opened, const char *bundle, const char *member) {
    snprintf(opened->path, sizeof opened->path, "%s%s%s", bundle, *member ? "/" : "", member);
    snprintf(opened->plan_path, sizeof opened->plan_path, "%s/network.plan", bundle);
    opened->member = member;
    opened->original = read_file(opened->path);
    opened->made = read_file(opened->path);
    if (!*member) return;
    opened->plan = read_file(opened->plan_path);
    opened->made_plan = read_file(opened->plan_path);
    opened->plan.bytes -= DIGEST_LINE;
    if (strcmp(member, "network.plan") == 0) opened->original.bytes -= DIGEST_LINE;
}

static void close_target(target *opened) {
    free(opened->original.data);
    free(opened->made.data);
    free(opened->plan.data);
    free(opened->made_plan.data);
}

static void assign(buffer *to, const buffer *from) { splice(to, (range){0, to->bytes}, from->data, from->bytes); }

/* Writes a mutant of the file into the bundle. */
static void write_mutant(target *of) {
    int is_plan = strcmp(of->member, "network.plan") == 0;
    assign(&of->made, &of->original);
    mutate(&of->made);
    if (is_plan) end_plan(&of->made);
    write_file(of->path, &of->made);
    if (!*of->member || is_plan) return;
    assign(&of->made_plan, &of->plan);
    describe(&of->made_plan, of->member, &of->made);
    end_plan(&of->made_plan);
    write_file(of->plan_path, &of->made_plan);
}

int main(int count, char **arguments) {
    const struct itimerval limit = {{0, 0}, {SECONDS, 0}};
    static target opened;
    int open_count = 0, ran = 0;
    unsigned long long mutants;
    if (count != 5) return 2;
    mutants = strtoull(arguments[3], NULL, 10);
    seed = strtoull(arguments[4], NULL, 10);
    __sanitizer_set_death_callback(tell);
    signal(SIGPROF, take_too_long);
    open_target(&opened, arguments[1], arguments[2]);
    for (mutant = 0; mutant < mutants; mutant++) {
        state = seed + mutant;
        state = drawn(UINT64_MAX); /* so that neighbours differ from their first number on */
        write_mutant(&opened);
        setitimer(ITIMER_PROF, &limit, NULL);
        run(arguments[1], &open_count, &ran);
    }
    close_target(&opened);
    printf("%llu %d %d\n", mutants, open_count, ran);
    return 0;
}
