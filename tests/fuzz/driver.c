/* driver.c: main of a fuzz target without libFuzzer, for ./check: each file of the corpus, then changed copies of them
 * from a fixed seed. TAP with one case. Under libFuzzer (./check --fuzz SECONDS) this file is not linked. */
#include "fuzz.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 4096

static uint64_t state = 0x9E3779B97F4A7C15u;
static size_t below(size_t n) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)((state * 2685821657736338717u) >> 33) % n;
}

/* Bytes flipped, cut out, doubled, or replaced by one that a parser cares for. */
static size_t change(unsigned char *text, size_t size) {
    static const char special[] = "%&=?:/@[],*$+-\r\n\t\"{}\\ 09\x80\xff";
    for (size_t times = 1 + below(4); times > 0 && size > 0; times--) {
        size_t at = below(size), n = 1 + below(size - at > 8 ? 8 : size - at);
        switch (below(5)) {
        case 0: text[at] ^= (unsigned char)(1u << below(8)); break;
        case 1: text[at] = (unsigned char)special[below(sizeof special)]; break;
        case 2:
            memmove(text + at, text + at + n, size - at - n);
            size -= n;
            break;
        case 3:
            if (size + n > MOST) break;
            memmove(text + at + n, text + at, size - at);
            size += n;
            break;
        default: size = at;
        }
    }
    return size;
}

static void one(const unsigned char *data, size_t size) {
    unsigned char *exact = malloc(size ? size : 1); /* so that a sanitizer sees a step beyond the end */
    if (!exact) abort();
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

int main(int argc, char **argv) {
    static unsigned char text[MOST], copy[MOST];
    int changes = getenv("PAWL_TEST_FULL") ? 20000 : 500, files = 0;
    DIR *folder = argc > 1 ? opendir(argv[1]) : NULL;
    printf("1..1\n");
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!file) continue;
        size_t size = fread(text, 1, sizeof text, file);
        fclose(file);
        files++;
        one(text, size);
        for (int i = 0; i < changes; i++) {
            memcpy(copy, text, size);
            one(copy, change(copy, size));
        }
    }
    if (folder) closedir(folder);
    one(text, 0);
    printf("%s 1 - %d files, each with %d changed copies\n", files ? "ok" : "not ok", files, changes);
    return !files;
}
