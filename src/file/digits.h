/* digits.h: text of fixed shape by hand, because snprintf would cost a tenth of an uncontended lock. Each appends at
 * *at and moves it on. */
#ifndef PAWL_FILE_DIGITS_H
#define PAWL_FILE_DIGITS_H
#include <stdint.h>
#include <string.h>

static inline void put_text(char **at, const char *text, size_t length) {
    memcpy(*at, text, length);
    *at += length;
}

/* The literal, then n in so many digits. */
static inline void put_number(char **at, const char *literal, int digits, uint64_t n) {
    put_text(at, literal, strlen(literal));
    for (int i = digits - 1; i >= 0; i--, n /= 10) (*at)[i] = (char)('0' + n % 10);
    *at += digits;
}
#endif
