/* See elf.h. */
#include "elf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CUBIN 190 /* machine */
#define MOST_SECTIONS 62 /* of a cubin that gets a variable; those of the farm have about twenty */
#define MOST_SEGMENTS 62

enum { DATA = 1, SYMBOLS = 2, STRINGS = 3, RELOCATIONS = 4, NO_BYTES = 8 }; /* kinds of sections */
enum { LOADED = 1, WRITABLE = 1, IN_MEMORY = 2, READ_AND_WRITTEN = 6, HAS_INFO = 0x40 };
enum { FUNCTION = 2, GLOBAL_OBJECT = 0x11, ADDRESS = 2 /* R_CUDA_64 */ };

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

static const char variable_name[] = "code_address";
static const char section_names[] = ".nv.global.init\0.rela.nv.global.init";
#define RELOCATIONS_NAME 16 /* where the second name begins */

static int lies_within(uint64_t offset, uint64_t size, size_t bytes) { return offset <= bytes && size <= bytes - offset; }

static elf_section section_at(const char *data, const elf_header *header, size_t number) {
    elf_section section;
    memcpy(&section, data + header->sections + number * sizeof section, sizeof section);
    return section;
}

static elf_segment segment_at(const char *data, const elf_header *header, size_t number) {
    elf_segment segment;
    memcpy(&segment, data + header->segments + number * sizeof segment, sizeof segment);
    return segment;
}

/* Reads the header of a 64-bit ELF file that holds its tables, its sections and its segments. */
static int read_header(const char *data, size_t bytes, elf_header *header) {
    size_t i;
    if (bytes < sizeof *header) return -1;
    memcpy(header, data, sizeof *header);
    if (memcmp(header->magic, "\177ELF\2\1", 6) != 0) return -1;
    if (header->section_count && header->section_bytes != sizeof(elf_section)) return -1;
    if (header->segment_count && header->segment_bytes != sizeof(elf_segment)) return -1;
    if (!lies_within(header->sections, header->section_count * sizeof(elf_section), bytes)) return -1;
    if (!lies_within(header->segments, header->segment_count * sizeof(elf_segment), bytes)) return -1;
    for (i = 0; i < header->section_count; i++) {
        elf_section section = section_at(data, header, i);
        if (section.kind != NO_BYTES && !lies_within(section.offset, section.bytes, bytes)) return -1;
    }
    for (i = 0; i < header->segment_count; i++) {
        elf_segment segment = segment_at(data, header, i);
        if (!lies_within(segment.offset, segment.file_bytes, bytes)) return -1;
    }
    return 0;
}

int farm_is_code(const char *data, size_t bytes) {
    elf_header header;
    if (bytes >= 4 && memcmp(data, "\177ELF", 4) == 0) return read_header(data, bytes, &header) == 0;
    return bytes > 0 && !memchr(data, 0, bytes);
}

/* A cubin with one kernel, read as far as the variable needs it. */
typedef struct {
    elf_header header;
    elf_section sections[MOST_SECTIONS + 2];
    elf_section *names, *symbols, *strings; /* among the sections */
    size_t code, kernel; /* numbers of the kernel's section and of its symbol */
} cubin;

/* Whether a section is a table of strings, so that a name at an offset in it ends. */
static int are_strings(const char *data, const elf_section *section) {
    return section->kind == STRINGS && section->bytes && !data[section->offset + section->bytes - 1];
}

static int find_sections(const char *data, cubin *read) {
    size_t i, codes = 0;
    for (i = 0; i < read->header.section_count; i++) {
        const char *name = data + read->names->offset + read->sections[i].name;
        if (read->sections[i].name >= read->names->bytes || strcmp(name, ".nv.global.init") == 0) return -1;
        if (strcmp(name, ".symtab") == 0) read->symbols = &read->sections[i];
        if (strncmp(name, ".text.", 6) == 0) read->code = i, codes++;
    }
    if (codes != 1 || read->sections[read->code].kind != DATA) return -1;
    if (!read->symbols || read->symbols->kind != SYMBOLS || read->symbols->bytes % sizeof(elf_symbol)) return -1;
    if (read->symbols->link >= read->header.section_count) return -1;
    read->strings = &read->sections[read->symbols->link];
    return are_strings(data, read->strings) && read->strings != read->names ? 0 : -1;
}

static int find_kernel(const char *data, cubin *read) {
    size_t i, kernels = 0;
    for (i = 0; i < read->symbols->bytes / sizeof(elf_symbol); i++) {
        elf_symbol symbol;
        memcpy(&symbol, data + read->symbols->offset + i * sizeof symbol, sizeof symbol);
        if (symbol.section == read->code && (symbol.kind & 15) == FUNCTION) read->kernel = i, kernels++;
    }
    return kernels == 1 ? 0 : -1;
}

static int read_cubin(const char *data, size_t bytes, cubin *read) {
    size_t i;
    memset(read, 0, sizeof *read);
    if (read_header(data, bytes, &read->header) != 0 || read->header.machine != CUBIN) return -1;
    if (read->header.section_count > MOST_SECTIONS || read->header.segment_count > MOST_SEGMENTS) return -1;
    if (read->header.names >= read->header.section_count) return -1;
    for (i = 0; i < read->header.section_count; i++) read->sections[i] = section_at(data, &read->header, i);
    read->names = &read->sections[read->header.names];
    if (!are_strings(data, read->names) || find_sections(data, read) != 0) return -1;
    return find_kernel(data, read);
}

/* A file being made: its bytes and their number. */
typedef struct {
    char *data;
    size_t bytes;
} output;

/* Appends data at a multiple of 8 bytes and returns the offset. */
static size_t put(output *to, const void *data, size_t bytes) {
    size_t at = (to->bytes + 7) / 8 * 8;
    memset(to->data + to->bytes, 0, at - to->bytes);
    memcpy(to->data + at, data, bytes);
    to->bytes = at + bytes;
    return at;
}

/* Moves a section to the end and appends bytes to it. */
static void grow(output *to, elf_section *section, const void *more, size_t bytes) {
    section->offset = put(to, to->data + section->offset, (size_t)section->bytes);
    section->bytes += bytes;
    memcpy(to->data + to->bytes, more, bytes);
    to->bytes += bytes;
}

/* Adds the symbol, the variable and the relocation, and returns the variable's offset. */
static size_t put_variable(output *to, cubin *read) {
    const uint64_t zero = 0;
    size_t variable, count = read->header.section_count;
    elf_symbol symbol = {0, GLOBAL_OBJECT, 0, 0, 0, sizeof zero};
    elf_relocation relocation = {0, (uint64_t)read->kernel << 32 | ADDRESS, 0};
    elf_section *made = &read->sections[count];
    symbol.name = (uint32_t)read->strings->bytes;
    symbol.section = (uint16_t)count;
    made[0].name = (uint32_t)read->names->bytes;
    made[1].name = made[0].name + RELOCATIONS_NAME;
    read->symbols->info = (uint32_t)(read->symbols->bytes / sizeof symbol + 1);
    grow(to, read->names, section_names, sizeof section_names);
    grow(to, read->strings, variable_name, sizeof variable_name);
    grow(to, read->symbols, &symbol, sizeof symbol);
    variable = put(to, &zero, sizeof zero);
    made[0].kind = DATA;
    made[0].flags = WRITABLE | IN_MEMORY;
    made[0].offset = variable;
    made[0].bytes = made[0].alignment = sizeof zero;
    made[1].kind = RELOCATIONS;
    made[1].flags = HAS_INFO;
    made[1].offset = put(to, &relocation, sizeof relocation);
    made[1].bytes = made[1].entry_bytes = sizeof relocation;
    made[1].link = (uint32_t)(read->symbols - read->sections);
    made[1].info = (uint32_t)count;
    made[1].alignment = 8;
    read->header.section_count = (uint16_t)(count + 2);
    read->header.sections = put(to, read->sections, read->header.section_count * sizeof *read->sections);
    return variable;
}

/* Adds a segment for the variable, and moves the table of segments, which two segments contain. */
static void put_segments(output *to, const char *data, cubin *read, size_t variable) {
    elf_header old = read->header;
    elf_segment segment = {LOADED, READ_AND_WRITTEN, 0, 0, 0, 0, 0, 0};
    size_t i, bytes = (old.segment_count + 1u) * sizeof segment;
    read->header.segments = (to->bytes + 7) / 8 * 8;
    read->header.segment_count++;
    for (i = 0; i < old.segment_count; i++) {
        elf_segment each = segment_at(data, &old, i);
        if (each.offset == old.segments) {
            each.offset = read->header.segments;
            each.file_bytes = each.memory_bytes = bytes;
        }
        put(to, &each, sizeof each);
    }
    segment.offset = variable;
    segment.file_bytes = segment.memory_bytes = segment.alignment = sizeof(uint64_t);
    put(to, &segment, sizeof segment);
}

char *farm_with_address(const char *data, size_t bytes, size_t *made_bytes, size_t *code_bytes) {
    cubin read;
    output to;
    size_t variable, room;
    if (read_cubin(data, bytes, &read) != 0) return NULL;
    room = sizeof section_names + sizeof variable_name + sizeof(elf_symbol) + sizeof(elf_relocation) + 128;
    room += (size_t)(read.names->bytes + read.strings->bytes + read.symbols->bytes) + sizeof read.sections;
    room += (read.header.segment_count + 1u) * sizeof(elf_segment);
    to.data = malloc(bytes + room);
    if (!to.data) return NULL;
    memcpy(to.data, data, bytes);
    to.bytes = bytes;
    *code_bytes = (size_t)read.sections[read.code].bytes;
    variable = put_variable(&to, &read);
    put_segments(&to, data, &read, variable);
    read.header.segment_bytes = sizeof(elf_segment);
    memcpy(to.data, &read.header, sizeof read.header);
    *made_bytes = to.bytes;
    return to.data;
}
