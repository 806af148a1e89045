/* SHA-256 (FIPS 180-4). Internal: programs include farm.h. */
#ifndef FARM_SHA256_H
#define FARM_SHA256_H

#include <stddef.h>

#define SHA256_BYTES 32

void farm_sha256(const void *data, size_t bytes, unsigned char digest[SHA256_BYTES]);

#endif
