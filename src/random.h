/* random.h: owner values must never meet; jitter need not be good. */
#ifndef PAWL_RANDOM_H
#define PAWL_RANDOM_H
#include <stddef.h>
#include <stdint.h>

void random_bytes(void *ret, size_t size);         /* from the kernel; never fails: it waits */
int64_t random_between(int64_t low, int64_t high); /* low .. high; cheap, per thread, seeded from the kernel */
void random_hex(const unsigned char *bytes, size_t size, char *ret); /* 2 * size + 1 characters */
#endif
