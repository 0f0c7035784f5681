#include "random.h"
#include <sys/random.h>
#include <unistd.h>

void random_bytes(void *ret, size_t size) {
    unsigned char *at = ret;
    while (size > 0) {
        ssize_t n = getrandom(at, size, 0);
        if (n <= 0) continue; /* EINTR only: the pool is ready once, then for ever */
        at += n;
        size -= (size_t)n;
    }
}

int64_t random_between(int64_t low, int64_t high) {
    static _Thread_local uint64_t state; /* xorshift64*, Vigna 2014 */
    static _Thread_local pid_t seeded_by;
    if (seeded_by != getpid()) {
        do random_bytes(&state, sizeof state);
        while (state == 0);
        seeded_by = getpid();
    }
    if (high <= low) return low;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return low + (int64_t)((state * UINT64_C(2685821657736338717)) % ((uint64_t)(high - low) + 1));
}

void random_hex(const unsigned char *bytes, size_t size, char *ret) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size; i++) {
        ret[2 * i] = digits[bytes[i] >> 4];
        ret[2 * i + 1] = digits[bytes[i] & 15];
    }
    ret[2 * size] = 0;
}
