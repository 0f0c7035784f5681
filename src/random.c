#include "random.h"
#include "process.h"
#include <string.h>
#include <sys/random.h>

static void from_kernel(void *ret, size_t size) {
    unsigned char *at = ret;
    while (size > 0) {
        ssize_t n = getrandom(at, size, 0);
        if (n <= 0) continue; /* EINTR only: the pool is ready once, then for ever */
        at += n;
        size -= (size_t)n;
    }
}

/* Owner values are small and many: fetched from the kernel by the hundred, used once. */
void random_bytes(void *ret, size_t size) {
    static _Thread_local unsigned char stock[512];
    static _Thread_local size_t left;
    static _Thread_local uint64_t stocked_by; /* process_nonce: a forked child must not hand out the same again */
    if (size > sizeof stock) {
        from_kernel(ret, size);
        return;
    }
    if (left < size || stocked_by != process_nonce()) {
        from_kernel(stock, sizeof stock);
        left = sizeof stock;
        stocked_by = process_nonce();
    }
    left -= size;
    memcpy(ret, stock + left, size);
    explicit_bzero(stock + left, size);
}

int64_t random_between(int64_t low, int64_t high) {
    static _Thread_local uint64_t state; /* xorshift64*, Vigna 2014 */
    static _Thread_local uint64_t seeded_by;
    if (seeded_by != process_nonce()) {
        do random_bytes(&state, sizeof state);
        while (state == 0);
        seeded_by = process_nonce();
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
