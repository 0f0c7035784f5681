/* Any content of a lock file, which another user of the directory may have written: what comes out of it is printable
 * and bounded, a name comes back as the file name that it has, and nothing is read beyond the end. And any content of
 * the token counter: it is believed only if it is, byte for byte, what we would have written. */
#include "file/counter.c"
#include "file/lockfile.h"
#include "fuzz.h"
#include <stdlib.h>
#include <sys/mman.h>

static void look(int fd, int64_t size) {
    struct slot slot;
    char name[NAME_MAX_LOCK + 1], file[NAME_FILE_SIZE], back[NAME_MAX_LOCK + 1];
    for (int i = 0; i < lockfile_slots(size); i++)
        if (lockfile_read(fd, i, &slot)) {
            MUST(strlen(slot.about) < sizeof slot.about && strchr("xswr", slot.kind));
            for (const char *p = slot.about; *p; p++) MUST(*p > ' ' && *p <= '~');
            MUST(!lockfile_living(fd, &slot));
        }
    MUST(!lockfile_holder(fd, &slot));
    if (!lockfile_headed(fd) || !lockfile_name(fd, name) || !name_encode(name, strlen(name), file)) return;
    if (!name_is_short(file)) MUST(name_decode(file, back) && strcmp(back, name) == 0);
}

static void count(const uint8_t *data, size_t size) {
    char text[COUNTER_SIZE] = {0}, again[COUNTER_SIZE];
    struct counter_state state;
    memcpy(text, data, size < sizeof text ? size : sizeof text);
    if (!parse_state(text, &state)) return;
    MUST(state.since <= state.last && state.last <= state.bound && state.synced <= state.bound);
    print_state(&state, again);
    MUST(memcmp(text, again, sizeof text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    char name[NAME_MAX_LOCK + 1], file[NAME_FILE_SIZE], *text = malloc(size + 1);
    if (fd < 0) fd = memfd_create("lock", MFD_CLOEXEC);
    if (!text || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    look(fd, (int64_t)size);
    count(data, size);
    memcpy(text, data, size);
    text[size] = 0;
    if (name_decode(text, name)) MUST(name_encode(name, strlen(name), file) && strcmp(file, text) == 0);
    if (name_encode(text, size, file)) MUST(strlen(file) < sizeof file && *file != '.' && !strchr(file, '/'));
    free(text);
    return 0;
}
