/* Any text as a holder's about, which another machine wrote: no control character reaches a terminal. And any text as a
 * label of ours: what we write, we can read. */
#include "about.h"
#include "fuzz.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1), said[200], mine[ABOUT_SIZE];
    struct about about;
    pawl_entry entry = {.size = sizeof entry};
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    about_describe(text, said, sizeof said);
    MUST(*said);
    for (const char *p = said; *p; p++) MUST((unsigned char)*p >= 32 && *p != 127);
    about_self(text, 0, mine);
    MUST(strlen(mine) < sizeof mine);
    about_parse(mine, &about, &entry);
    MUST(entry.pid == getpid());
    if (entry.label) MUST(strncmp(entry.label, text, strlen(entry.label)) == 0);
    about_free(&about);
    free(text);
    return 0;
}
