#include "name.h"
#include "random.h"
#include "sha256.h"
#include "url.h"
#include <stdio.h>
#include <string.h>

enum { SHORT_KEEP = 128 };

bool name_encode(const char *name, size_t length, char ret[NAME_FILE_SIZE]) {
    char full[3 * NAME_MAX_LOCK + 1] = "";
    if (length == 0 || length > NAME_MAX_LOCK || memchr(name, 0, length)) return false;
    size_t dot = *name == '.' ? 1 : 0;
    if (dot) strcpy(full, "%2E");
    if (!url_escape(full, sizeof full, name + dot, length - dot, "._-")) return false;
    if (strlen(full) < NAME_FILE_SIZE) {
        strcpy(ret, full);
        return true;
    }
    unsigned char digest[32];
    sha256(name, length, digest);
    memcpy(ret, full, SHORT_KEEP);
    memcpy(ret + SHORT_KEEP, "%-", 2);
    random_hex(digest, sizeof digest, ret + SHORT_KEEP + 2);
    return true;
}

bool name_is_short(const char *file) {
    size_t length = strlen(file);
    return length == SHORT_KEEP + 2 + 64 && memcmp(file + SHORT_KEEP, "%-", 2) == 0;
}

static int hex(char c) {
    const char *digits = "0123456789ABCDEF", *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

bool name_decode(const char *file, char ret[NAME_MAX_LOCK + 1]) {
    char name[NAME_FILE_SIZE], again[NAME_FILE_SIZE];
    size_t n = 0;
    if (!*file || strlen(file) >= NAME_FILE_SIZE) return false;
    for (const char *p = file; *p; p++) {
        if (*p != '%') {
            name[n++] = *p;
            continue;
        }
        int high = hex(p[1]), low = high < 0 ? -1 : hex(p[2]);
        if (low < 0) return false;
        name[n++] = (char)(high * 16 + low);
        p += 2;
    }
    name[n] = 0;
    if (!name_encode(name, n, again) || strcmp(again, file) != 0) return false; /* "a b", "%41": not as we write it */
    memcpy(ret, name, n + 1);
    return true;
}
