/* key.c: from a lock's name to the numbers of an advisory lock, so that programs which use advisory locks already meet
 * ours. One bigint and two integers are two spaces that never overlap (PostgreSQL documentation, "Advisory Lock
 * Functions"). sql/lock.sql does the same in SQL.
 *
 *   hashtextextended  the server's hashtextextended(name, 0): the default, 64 bits
 *   hashtext          the server's hashtext(name): what many SQL snippets use, 32 bits
 *   fnv1a63           FNV-1a, 64 bit, without the sign bit: common in Go
 *   java31            String.hashCode() & 0x7fffffff, of the UTF-16 form: common in Java
 *   int8              the name is the number
 *   int4x2            "CLASS/ID": each is a number, or a word, of which the server's hashtext is taken */
#include "postgresql.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *expression;
} modes[] = {
    [KEY_HASHTEXTEXTENDED] = {"hashtextextended", "hashtextextended($1::text, 0)"},
    [KEY_HASHTEXT] = {"hashtext", "hashtext($1::text)::int8"},
    [KEY_FNV1A63] = {"fnv1a63", "$1::int8"},
    [KEY_JAVA31] = {"java31", "$1::int8"},
    [KEY_INT8] = {"int8", "$1::int8"},
    [KEY_INT4X2] = {"int4x2", KEY_PART("$1") ", " KEY_PART("$2")},
};

const char *key_expression(enum key_mode mode) { return modes[mode].expression; }

bool key_mode_parse(const char *text, enum key_mode *ret) {
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, text) == 0) {
            *ret = (enum key_mode)i;
            return true;
        }
    return false;
}

static int64_t fnv1a63(const unsigned char *s, size_t n) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++) hash = (hash ^ s[i]) * UINT64_C(1099511628211);
    return (int64_t)(hash & INT64_MAX);
}

/* The UTF-8 is valid: the core checked it. */
static int64_t java31(const unsigned char *s, size_t n) {
    uint32_t hash = 0;
    for (size_t i = 0; i < n;) {
        unsigned more = s[i] < 0x80 ? 0 : s[i] < 0xE0 ? 1 : s[i] < 0xF0 ? 2 : 3;
        uint32_t c = more == 0 ? s[i] : s[i] & (0x3Fu >> more);
        for (unsigned k = 1; k <= more && i + k < n; k++) c = c << 6 | (s[i + k] & 0x3Fu);
        i += more + 1;
        if (c >= 0x10000) {
            hash = 31 * hash + (0xD800 + ((c - 0x10000) >> 10));
            c = 0xDC00 + ((c - 0x10000) & 0x3FF);
        }
        hash = 31 * hash + c;
    }
    return hash & 0x7fffffff;
}

static bool number(const char *text, size_t length, int64_t low, int64_t high, char ret[24]) {
    char copy[24], *end;
    if (length == 0 || length >= sizeof copy || *text == '+' || *text == ' ') return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    long long n = strtoll(copy, &end, 10);
    if (*end || n < low || n > high) return false;
    snprintf(ret, 24, "%lld", n);
    return strcmp(ret, copy) == 0; /* one name, one lock: no second spelling, and no overflow */
}

/* What looks like a number is one, and has one spelling; all else is a word. */
static bool part(const char *text, size_t length, char ret[], size_t size) {
    size_t sign = length > 0 && (*text == '-' || *text == '+'), digits = 0;
    while (sign + digits < length && text[sign + digits] >= '0' && text[sign + digits] <= '9') digits++;
    if (digits > 0 && sign + digits == length) return number(text, length, INT32_MIN, INT32_MAX, ret);
    snprintf(ret, size, "%.*s", (int)length, text);
    return length > 0;
}

static bool two_parts(const char *name, size_t length, struct key *ret, pawl_error *error) {
    const char *slash = memchr(name, '/', length);
    if (slash && part(name, (size_t)(slash - name), ret->text[0], sizeof ret->text[0]) &&
        part(slash + 1, length - (size_t)(slash - name) - 1, ret->text[1], sizeof ret->text[1]))
        return true;
    error_set(error, PAWL_EINVALID, NULL,
              "with key=int4x2 a lock is named CLASS/ID, each a number of 32 bits or a word, as orders/45892");
    return false;
}

int key_shown(const char *name, int64_t ret[2]) {
    char text[24];
    if (strncmp(name, "key:", 4) != 0) return 0;
    const char *first = name + 4, *slash = strchr(first, '/');
    if (!slash) {
        if (!number(first, strlen(first), INT64_MIN, INT64_MAX, text)) return 0;
        ret[0] = strtoll(text, NULL, 10);
        return 1;
    }
    if (!number(first, (size_t)(slash - first), INT32_MIN, INT32_MAX, text)) return 0;
    ret[0] = strtoll(text, NULL, 10);
    if (!number(slash + 1, strlen(slash + 1), INT32_MIN, INT32_MAX, text)) return 0;
    ret[1] = strtoll(text, NULL, 10);
    return 2;
}

bool key_of(enum key_mode mode, const char *name, size_t length, struct key *ret, pawl_error *error) {
    *ret = (struct key){.expression = modes[mode].expression, .n = mode == KEY_INT4X2 ? 2 : 1};
    ret->values[0] = ret->text[0];
    ret->values[1] = ret->text[1];
    switch (mode) {
    case KEY_HASHTEXTEXTENDED:
    case KEY_HASHTEXT: ret->values[0] = name; return true;
    case KEY_FNV1A63:
        snprintf(ret->text[0], sizeof ret->text[0], "%lld", (long long)fnv1a63((const unsigned char *)name, length));
        return true;
    case KEY_JAVA31:
        snprintf(ret->text[0], sizeof ret->text[0], "%lld", (long long)java31((const unsigned char *)name, length));
        return true;
    case KEY_INT4X2: return two_parts(name, length, ret, error);
    case KEY_INT8: break;
    }
    if (number(name, length, INT64_MIN, INT64_MAX, ret->text[0])) return true;
    error_set(error, PAWL_EINVALID, NULL, "with key=int8 a lock is named by a number of 64 bits");
    return false;
}
