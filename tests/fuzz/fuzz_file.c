/* Any bytes as the files of file:, which other programs may write: shown or refused, and what is not ours is not
 * written. The first byte chooses: the counter of tokens; a lock file as it is; or the slots of a good one, one a
 * line. */
#include "backend.h"
#include "clock.h"
#include "file/counter.h"
#include "file/lockfile.h"
#include "fuzz.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { MOST = 65536, HEAD = 2048, SLOT = 512 };

extern const struct backend file_backend;
static char dir[] = "/dev/shm/pawl-fuzz-XXXXXX", lock_path[64], counter_path[64];
static char good_lock[MOST], good_counter[COUNTER_SIZE];
static struct bk *bk;
static struct bk_session *session;

static struct bk_until soon(void) { return (struct bk_until){clock_after_ms(clock_now_ns(), 2000), -1}; }

static void clean(void) {
    unlink(lock_path);
    unlink(counter_path);
    rmdir(dir);
}

static size_t get(const char *path, char *ret, size_t most) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, most);
    if (fd >= 0) close(fd);
    return n < 0 ? 0 : (size_t)n;
}
static void put(const char *path, const char *text, size_t size) {
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0600);
    MUST(fd >= 0 && write(fd, text, size) == (ssize_t)size);
    close(fd);
}

static enum bk_says turn(void) {
    struct bk_claim claim = {.name = "n", .name_len = 1, .owner = {1}, .ttl_ms = 1000, .about = "pid=1&command=fuzz"};
    struct bk_grant grant = {0}, *all[1] = {&grant};
    struct bk_busy busy = {.wake_fd = -1};
    pawl_error error = PAWL_ERROR_INIT;
    enum bk_says released, says = file_backend.take(session, &claim, false, soon(), &grant, &busy, &error);
    grant.claim = &claim;
    if (says == BK_YES) {
        MUST(grant.token > 0);
        MUST(file_backend.release(session, all, 1, soon(), &released, &error) == BK_YES && released == BK_YES);
        file_backend.end(&grant, false);
    } else if (says == BK_NO) {
        MUST(strlen(busy.holder) < sizeof busy.holder);
    } else {
        MUST(error.code && error.text[0]);
    }
    return says;
}

static void start(void) {
    char text[64];
    struct url *url;
    MUST(mkdtemp(dir));
    atexit(clean);
    snprintf(text, sizeof text, "file:%s", dir);
    snprintf(lock_path, sizeof lock_path, "%s/n", dir);
    snprintf(counter_path, sizeof counter_path, "%s/%s", dir, COUNTER_FILE);
    MUST(url_parse(text, &url, NULL) == PAWL_OK && file_backend.open(url, &bk, NULL) == BK_YES);
    url_free(url);
    MUST(file_backend.connect(bk, soon(), &session, NULL) == BK_YES);
    MUST(turn() == BK_YES);
    MUST(get(lock_path, good_lock, sizeof good_lock) >= HEAD);
    MUST(get(counter_path, good_counter, sizeof good_counter) == COUNTER_SIZE);
}

static bool each(const struct bk_record *r, void *data) {
    (void)data;
    MUST(r->name && r->about && r->place >= 0);
    return true;
}

/* With every byte of the file locked by somebody else, so that each record counts as one of the living. */
static void look(void) {
    pawl_error error = PAWL_ERROR_INIT;
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(lock_path, O_RDWR | O_CLOEXEC);
    MUST(fd >= 0 && fcntl(fd, F_OFD_SETLK, &all) == 0 && flock(fd, LOCK_EX) == 0);
    file_backend.records(session, "n", each, NULL, soon(), &error);
    file_backend.records(session, NULL, each, NULL, soon(), &error);
    MUST(turn() != BK_YES);
    close(fd);
}

static void slots(char *file, const uint8_t *data, size_t size) {
    memset(file + HEAD, 0, MOST - HEAD);
    for (size_t slot = 0, at = 0; at < size && HEAD + (slot + 1) * SLOT <= MOST; slot++) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t n = end ? (size_t)(end - data) - at + 1 : size - at;
        memcpy(file + HEAD + slot * SLOT, data + at, n < SLOT ? n : SLOT);
        at += n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char file[MOST], after[MOST];
    if (!bk) start();
    if (size < 1 || size > MOST) return 0;
    const char *content = (const char *)data + 1;
    size_t length = size - 1;
    if (data[0] == 'c') {
        put(counter_path, content, length);
        struct bk_tokens tokens;
        pawl_error error = PAWL_ERROR_INIT;
        enum bk_says says = file_backend.tokens(session, false, 0, soon(), &tokens, &error);
        if (turn() == BK_FAULT) /* damaged: left as it is, for people to look at */
            MUST(get(counter_path, after, sizeof after) == length && memcmp(after, content, length) == 0);
        MUST(says == BK_YES || error.text[0]);
        unlink(counter_path);
        put(counter_path, good_counter, sizeof good_counter);
        return 0;
    }
    if (data[0] == 's') {
        memcpy(file, good_lock, HEAD);
        slots(file, data + 1, size - 1);
        content = file;
        length = MOST;
    }
    put(lock_path, content, length);
    look();
    if (turn() == BK_FAULT) MUST(get(lock_path, after, sizeof after) == length && memcmp(after, content, length) == 0);
    return 0;
}
