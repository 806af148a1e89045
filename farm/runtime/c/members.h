/* The files of a bundle, which is a folder or an uncompressed zip archive. Internal: programs include farm.h.
 *
 * Bundles are hostile input. A member is a regular file inside the bundle, reached without symbolic links, of the size and
 * the digest that the plan says. Members do not overlap, so that memory and time are bounded by the sizes of the files.
 */
#ifndef FARM_MEMBERS_H
#define FARM_MEMBERS_H

#include <stddef.h>

#include "sha256.h"

#define MOST_PATH 512 /* bytes of a member's path, with the zero at its end */

typedef struct farm_members farm_members;

/* A file as the plan describes it. */
typedef struct {
    const char *path;
    size_t bytes;
    unsigned char sha256[SHA256_BYTES];
} farm_file;

int farm_open_members(const char *path, farm_members **members);
void farm_close_members(farm_members *members);

/* Whether a path may be a member's: parts of letters, digits, '.', '_' and '-', none of which begins with '.'. */
int farm_is_member_path(const char *path);

/* Reads a member and checks its size and its digest. A zero follows the bytes, which the caller frees. */
int farm_read_member(const farm_members *members, const farm_file *file, char **data);

/* Reads a member that no plan describes, which is the plan itself. */
int farm_read_plan_member(const farm_members *members, const char *path, size_t most_bytes, char **data, size_t *bytes);

#endif
