/* sha256.h: SHA-256 (FIPS 180-4), for shortening long names only. Our own sixty lines, because the core links no
 * cryptographic library, and the kernel's AF_ALG is absent or forbidden in many containers. */
#ifndef PAWL_FILE_SHA256_H
#define PAWL_FILE_SHA256_H
#include <stddef.h>

void sha256(const void *data, size_t size, unsigned char ret[32]);
#endif
