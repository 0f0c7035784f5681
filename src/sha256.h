/* sha256.h: FIPS 180-4, to shorten names that are too long for a file. Not used for secrets. */
#ifndef PAWL_SHA256_H
#define PAWL_SHA256_H
#include <stddef.h>

void sha256(const void *data, size_t length, unsigned char ret[32]);
#endif
