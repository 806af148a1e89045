/* See members.h. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "members.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

#define END_BYTES 22 /* of the record at the end of an archive, without a comment */
#define ENTRY_BYTES 46 /* of an entry of its directory, without the name */
#define HEAD_BYTES 30 /* of the header before a member's bytes, without the name */
#define MOST_ENTRIES 0xffff /* the number itself stands for more, in another format */
#define NO_OFFSET 0xffffffffu /* as well */
#define MOST_READ ((size_t)1 << 30) /* at once: Linux reads no more than 2 GB */

typedef struct {
    char path[MOST_PATH];
    uint64_t header, bytes, end; /* where its header begins, size, and where the next header begins, or the directory */
} entry;

struct farm_members {
    int file; /* the folder or the archive, -1 if it is not open */
    int is_archive;
    uint64_t directory; /* where the directory of an archive begins */
    entry *entries; /* sorted by their paths */
    size_t count;
};

static uint64_t little(const unsigned char *bytes, int count) {
    uint64_t value = 0;
    while (count--) value = value << 8 | bytes[count];
    return value;
}

int farm_is_member_path(const char *path) {
    const char *part = path, *place;
    if (strlen(path) >= MOST_PATH) return 0;
    for (place = path;; place++) {
        int is_known = (*place >= 'a' && *place <= 'z') || (*place >= 'A' && *place <= 'Z') ||
                       (*place >= '0' && *place <= '9') || *place == '.' || *place == '_' || *place == '-';
        if (is_known) continue;
        if ((*place && *place != '/') || place == part || *part == '.') return 0;
        if (!*place) return 1;
        part = place + 1;
    }
}

/* Reads exactly so many bytes of a file. */
static int read_at(int file, uint64_t offset, void *to, size_t bytes) {
    while (bytes) {
        ssize_t count = pread(file, to, bytes < MOST_READ ? bytes : MOST_READ, (off_t)offset);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return -1;
        to = (char *)to + count;
        offset += (uint64_t)count;
        bytes -= (size_t)count;
    }
    return 0;
}

static int damaged(void) { return farm_fail("its directory of files is damaged: fetch the bundle again"); }

static int by_path(const void *one, const void *other) {
    return strcmp(((const entry *)one)->path, ((const entry *)other)->path);
}

static int by_header(const void *one, const void *other) {
    uint64_t first = ((const entry *)one)->header, second = ((const entry *)other)->header;
    return (first > second) - (first < second);
}

/* Reads an entry of the directory and returns its size, or 0. */
static size_t read_entry(const unsigned char *head, size_t left, entry *to) {
    size_t name, bytes;
    if (left < ENTRY_BYTES || memcmp(head, "PK\1\2", 4) != 0) return damaged(), 0;
    name = (size_t)little(head + 28, 2);
    bytes = ENTRY_BYTES + name + (size_t)little(head + 30, 2) + (size_t)little(head + 32, 2);
    if (bytes > left || name >= sizeof to->path || memchr(head + ENTRY_BYTES, 0, name)) return damaged(), 0;
    memcpy(to->path, head + ENTRY_BYTES, name);
    to->path[name] = 0;
    to->bytes = little(head + 24, 4);
    to->header = little(head + 42, 4);
    if (!farm_is_member_path(to->path)) return damaged(), 0;
    if (little(head + 8, 2) & 1 || little(head + 10, 2) != 0) {
        farm_fail("%s is compressed or encrypted: fetch the bundle again", to->path);
        return 0;
    }
    if (little(head + 20, 4) != to->bytes) return damaged(), 0;
    return bytes;
}

static int read_entries(farm_members *members, const unsigned char *directory, size_t bytes) {
    size_t i, place = 0;
    members->entries = calloc(members->count + 1, sizeof *members->entries);
    if (!members->entries) return farm_fail("out of memory");
    for (i = 0; i < members->count; i++) {
        size_t read = read_entry(directory + place, bytes - place, &members->entries[i]);
        if (!read) return -1;
        place += read;
    }
    if (place != bytes) return damaged();
    qsort(members->entries, members->count, sizeof *members->entries, by_header);
    for (i = 0; i < members->count; i++)
        members->entries[i].end = i + 1 < members->count ? members->entries[i + 1].header : members->directory;
    qsort(members->entries, members->count, sizeof *members->entries, by_path);
    for (i = 1; i < members->count; i++)
        if (by_path(&members->entries[i - 1], &members->entries[i]) == 0)
            return farm_fail("it has two files %s: fetch the bundle again", members->entries[i].path);
    return 0;
}

static int read_directory(farm_members *members, uint64_t file_bytes) {
    unsigned char end[END_BYTES], *directory;
    uint64_t bytes;
    int failed;
    if (file_bytes < END_BYTES || read_at(members->file, file_bytes - END_BYTES, end, END_BYTES) != 0 ||
        memcmp(end, "PK\5\6", 4) != 0)
        return farm_fail("it is not a bundle: farm fetch writes one");
    members->count = (size_t)little(end + 10, 2);
    bytes = little(end + 12, 4);
    members->directory = little(end + 16, 4);
    if (members->count == MOST_ENTRIES || members->directory == NO_OFFSET)
        return farm_fail("it is larger than 4 GB: unpack it into a folder");
    if (little(end + 4, 4) != 0 || little(end + 8, 2) != members->count || little(end + 20, 2) != 0 ||
        members->directory + bytes != file_bytes - END_BYTES || bytes < members->count * ENTRY_BYTES)
        return damaged();
    directory = malloc((size_t)bytes + 1);
    if (!directory) return farm_fail("out of memory");
    failed = read_at(members->file, members->directory, directory, (size_t)bytes) != 0
                 ? damaged()
                 : read_entries(members, directory, (size_t)bytes);
    free(directory);
    return failed;
}

static int open_members(farm_members *members, const char *path) {
    struct stat about;
    members->file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (members->file < 0 || fstat(members->file, &about) != 0)
        return farm_fail("it is not a bundle (%s): farm fetch writes one", strerror(errno));
    members->is_archive = S_ISREG(about.st_mode);
    if (members->is_archive) return read_directory(members, (uint64_t)about.st_size);
    return S_ISDIR(about.st_mode) ? 0 : farm_fail("it is not a bundle: farm fetch writes one");
}

int farm_open_members(const char *path, farm_members **opened) {
    farm_members *members = calloc(1, sizeof *members);
    *opened = NULL;
    if (!members) return farm_fail("out of memory");
    members->file = -1;
    if (open_members(members, path) != 0) {
        farm_close_members(members);
        return -1;
    }
    *opened = members;
    return 0;
}

void farm_close_members(farm_members *members) {
    if (!members) return;
    if (members->file >= 0) close(members->file);
    free(members->entries);
    free(members);
}

/* Opens a file below a folder, part by part without following symbolic links. -1 with errno. */
static int open_below(int folder, const char *path) {
    char part[MOST_PATH];
    int file = folder, next;
    while (*path) {
        size_t length = strcspn(path, "/");
        int is_last = !path[length];
        memcpy(part, path, length);
        part[length] = 0;
        next = openat(
            file, part, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (is_last ? O_NONBLOCK : O_DIRECTORY)); /* a FIFO would wait */
        if (file != folder) {
            int error = errno;
            close(file);
            errno = error;
        }
        if (next < 0) return -1;
        file = next;
        path += length + !is_last;
    }
    return file;
}

/* Opens a member: the file with its bytes, where they begin, and their number. The caller closes a file of a folder. */
static int open_member(const farm_members *members, const char *path, int *file, uint64_t *offset, uint64_t *bytes) {
    unsigned char head[HEAD_BYTES + MOST_PATH];
    struct stat about;
    size_t length = strlen(path);
    entry wanted;
    const entry *found;
    if (!farm_is_member_path(path)) return farm_fail("%s is not a path inside a bundle", path);
    if (!members->is_archive) {
        *file = open_below(members->file, path);
        if (*file < 0 && (errno == ENOENT || errno == ENOTDIR))
            return farm_fail("%s is missing: fetch the bundle again", path);
        if (*file < 0 && errno == ELOOP)
            return farm_fail("%s is a symbolic link, which bundles do not have", path);
        if (*file < 0) return farm_fail("%s cannot be read (%s)", path, strerror(errno));
        if (fstat(*file, &about) != 0 || !S_ISREG(about.st_mode)) {
            close(*file);
            return farm_fail("%s is not a file: fetch the bundle again", path);
        }
        *offset = 0;
        *bytes = (uint64_t)about.st_size;
        return 0;
    }
    strcpy(wanted.path, path);
    found = bsearch(&wanted, members->entries, members->count, sizeof wanted, by_path);
    if (!found) return farm_fail("%s is missing: fetch the bundle again", path);
    if (read_at(members->file, found->header, head, HEAD_BYTES + length) != 0 || memcmp(head, "PK\3\4", 4) != 0 ||
        little(head + 6, 2) & 1 || little(head + 8, 2) != 0 || little(head + 26, 2) != length ||
        memcmp(head + HEAD_BYTES, path, length) != 0)
        return damaged();
    *file = members->file;
    *offset = found->header + HEAD_BYTES + length + little(head + 28, 2);
    *bytes = found->bytes;
    return *offset + *bytes <= found->end ? 0 : damaged(); /* files do not overlap: together they are no larger than it */
}

/* Reads a member whose size is in a range. */
static int read_member(
    const farm_members *members, const char *path, uint64_t least, uint64_t most, char **data, size_t *bytes) {
    uint64_t offset, size;
    int file, failed;
    *data = NULL;
    TRY(open_member(members, path, &file, &offset, &size));
    if (size < least || size > most || size >= SIZE_MAX)
        failed = farm_fail(
            "%s is damaged: it has %llu bytes, expected %llu%s. Fetch the bundle again", path, (unsigned long long)size,
            (unsigned long long)most, least < most ? " at most" : "");
    else if (!(*data = malloc((size_t)size + 1)))
        failed = farm_fail("out of memory");
    else
        failed = read_at(file, offset, *data, (size_t)size) == 0
                     ? 0
                     : farm_fail("%s cannot be read: fetch the bundle again", path);
    if (!members->is_archive) close(file);
    if (failed) {
        free(*data);
        *data = NULL;
        return -1;
    }
    (*data)[size] = 0;
    *bytes = (size_t)size;
    return 0;
}

int farm_read_plan_member(const farm_members *members, const char *path, size_t most_bytes, char **data, size_t *bytes) {
    return read_member(members, path, 1, most_bytes, data, bytes);
}

int farm_read_member(const farm_members *members, const farm_file *file, char **data) {
    unsigned char digest[SHA256_BYTES];
    size_t bytes;
    TRY(read_member(members, file->path, file->bytes, file->bytes, data, &bytes));
    farm_sha256(*data, bytes, digest);
    if (memcmp(digest, file->sha256, sizeof digest) == 0) return 0;
    free(*data);
    *data = NULL;
    return farm_fail("%s is damaged: its digest differs from the plan's. Fetch the bundle again", file->path);
}
