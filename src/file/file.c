/* file.c: the backend "file:": locks that the kernel keeps. See lockfile.h for the locks, counter.h for the tokens,
 * wait.h for waiting, records.h for who, place.h for the directory.
 *
 * The one thing to know: a grant is an open file description. It ends when the last copy of it is closed (a holder that
 * died), or by an explicit unlock, copies or not. Nothing here expires. */
#include "backend.h"
#include "clock.h"
#include "counter.h"
#include "doctor.h"
#include "records.h"
#include "wait.h"
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct backend file_backend;

enum { LOOK_AGAIN_MS = 2000 }; /* a waiter looks whether its file was replaced */

struct bk {
    char *dir; /* absolute; NULL: the default */
    struct waits waits;
};
struct bk_session {
    struct bk *bk;
    struct place *place;
    /* The file released last, open but unlocked: opening it again would be a third of a lock's cost. */
    struct lockfile spare; /* fd -1: none */
    unsigned spare_forks;
};

/* A forked child has copies of our descriptors, and would keep a lock that is taken later through one of them. */
static atomic_uint forks;
static void fork_begins(void) {
    wait_fork_begins();
    atomic_fetch_add(&forks, 1);
}
static void watch_forks(void) { pthread_atfork(fork_begins, wait_fork_ends, wait_fork_ends); }

/* --- the place --- */

static int absolute(const char *path, bool authority, char ret[PATH_MAX], pawl_error *error) {
    char here[PATH_MAX] = "";
    bool relative = *path != '/' && !authority;
    if (relative && !getcwd(here, sizeof here))
        return error_errno(error, PAWL_EDENIED, path, "file:%s is relative, and the working directory is unknown",
                           path);
    if (snprintf(ret, PATH_MAX, "%s%s%s", here, *path == '/' ? "" : "/", path) >= PATH_MAX)
        return error_set(error, PAWL_EINVALID, NULL, "the path of the lock directory is too long");
    for (size_t n = strlen(ret); n > 1 && ret[n - 1] == '/'; n--) ret[n - 1] = 0;
    return PAWL_OK;
}

static enum bk_says open_url(const struct url *url, struct bk **ret, pawl_error *error) {
    char path[PATH_MAX];
    if (url_params_known(url, error)) return BK_FAULT;
    if (url->n_hosts || url->user || url->password) {
        error_set(error, PAWL_EINVALID, NULL, "url %s: file: has no host; write file:/DIR or file:///DIR", url->shown);
        return BK_FAULT;
    }
    bool named = *url->path || url->authority;
    if (named && absolute(url->path, url->authority, path, error)) return BK_FAULT;
    struct bk *bk = calloc(1, sizeof *bk);
    if (bk && named) bk->dir = strdup(path);
    if (!bk || (named && !bk->dir)) {
        free(bk);
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    *ret = bk;
    return BK_YES;
}

static void close_bk(struct bk *bk, bool forked) {
    if (forked) wait_forget_all(&bk->waits);
    else wait_end_resting(&bk->waits);
    free(bk->dir);
    free(bk);
}

static enum bk_says connect_place(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error) {
    (void)until;
    char home[PATH_MAX];
    if (!bk->dir && place_default(home, sizeof home, error)) return BK_FAULT;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    struct bk_session *session = calloc(1, sizeof *session);
    if (!session) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    if (place_open(bk->dir ? bk->dir : home, !bk->dir, &session->place, error)) {
        free(session);
        return BK_FAULT;
    }
    session->bk = bk;
    session->spare.fd = -1;
    *ret = session;
    return BK_YES;
}

static void drop(struct bk_session *session, bool forked) {
    (void)forked;
    if (session->spare.fd >= 0) lockfile_close(&session->spare);
    place_close(session->place);
    free(session);
}

static int fds(struct bk_session *session, const struct bk_grant *grant, int *ret, int max) {
    (void)session;
    if (!grant || max < 1) return 0;
    struct lockfile *file = grant->of;
    file->lent = true;
    *ret = file->fd;
    return 1;
}

/* --- taking --- */

static void give_back(struct lockfile *file) {
    lockfile_unlock(file);
    lockfile_close(file);
}

static void record(struct lockfile *file, const struct bk_claim *claim, uint64_t token) {
    struct slot slot = {.kind = token ? (claim->shared ? 's' : 'x') : (claim->shared ? 'r' : 'w'),
                        .token = token,
                        .since_ms = clock_wall_us() / 1000,
                        .order = file->arrival};
    if (claim->about) memcpy(slot.about, claim->about, strnlen(claim->about, sizeof slot.about - 1));
    lockfile_record(file, claim->name, claim->name_len, &slot);
}

/* Unlocked by now: kept for the next, or closed. */
static void put_aside(struct bk_session *session, struct lockfile *file) {
    if (session->spare.fd >= 0) lockfile_close(&session->spare);
    memcpy(&session->spare, file, lockfile_size(file)); /* it may be no longer than that */
    session->spare.seen = false;                        /* others may write into it until it is taken again */
    session->spare_forks = atomic_load(&forks);
    file->fd = -1;
}

static bool take_spare(struct bk_session *session, const struct bk_claim *claim, struct lockfile *ret) {
    char file[NAME_FILE_SIZE];
    if (session->spare.fd < 0 || session->spare_forks != atomic_load(&forks) ||
        !name_encode(claim->name, claim->name_len, file) || strcmp(file, session->spare.file) != 0)
        return false;
    *ret = session->spare;
    session->spare.fd = -1;
    return true;
}

/* *file is locked: it becomes a grant, or is given back. */
static enum bk_says grant(struct bk_session *session, struct bk_claim *claim, struct lockfile *file,
                          struct bk_until until, struct bk_grant *ret, pawl_error *error) {
    uint64_t token;
    struct lockfile *held = malloc(lockfile_size(file));
    if (!held) error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    if (!held || (!file->seen && lockfile_recheck(session->place, file, error)) ||
        counter_draw(session->place, until, &token, error) != BK_YES) {
        give_back(file);
        free(held);
        return BK_FAULT;
    }
    if (claim->shared) lockfile_leave(file);
    record(file, claim, token);
    memcpy(held, file, lockfile_size(file));
    ret->token = token;
    ret->left_ms = -1;
    ret->pin = NULL;
    ret->of = held;
    return BK_YES;
}

static void tell_holder(int fd, struct bk_busy *busy) {
    struct slot slot;
    busy->foreign = !lockfile_holder(fd, &slot);
    if (!busy->foreign) snprintf(busy->holder, sizeof busy->holder, "%s", slot.about);
}

static enum bk_says failed(const struct bk_session *session, struct lockfile *file, int number, pawl_error *error) {
    errno = number;
    place_errno(session->place, file->file, "lock", error);
    give_back(file);
    return BK_FAULT;
}

/* Busy: with queue the wait begins, or goes on (claim->of is set). */
static enum bk_says queue_up(const struct bk_session *session, struct bk_claim *claim, struct lockfile *file,
                             bool queue, struct bk_busy *ret_busy, pawl_error *error) {
    struct wait *wait = claim->of;
    queue = queue && (wait || wait_possible());
    struct bk_busy busy = {.ask_again_ms = queue ? LOOK_AGAIN_MS : 10, .wake_fd = -1, .queued = queue};
    tell_holder(file->fd, &busy);
    if (queue && !wait) {
        int number = lockfile_queue(file);
        if (number) return failed(session, file, number, error);
        record(file, claim, 0);
        if (wait_start(&session->bk->waits, file, claim->shared, &wait, error)) return BK_FAULT;
        claim->of = wait;
    } else if (!wait) lockfile_close(file);
    if (wait) busy.wake_fd = wait_fd(wait);
    *ret_busy = busy;
    return BK_NO;
}

/* From the beginning: open, try, and see whether it is still the file that the path leads to. */
static enum bk_says begin(struct bk_session *session, struct bk_claim *claim, bool queue, struct bk_until until,
                          struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    struct lockfile file;
    for (int tries = 0; tries < 100; tries++) {
        if (!take_spare(session, claim, &file) &&
            lockfile_open(session->place, claim->name, claim->name_len, &file, error))
            return BK_FAULT;
        int64_t size = file.size;
        int busy = lockfile_try(&file, claim->shared);
        if (busy < 0) return failed(session, &file, errno, error);
        bool current = lockfile_current(session->place, &file);
        if (file.headed && file.size == size) file.seen = true; /* whoever copies over a file changes its size */
        if (current)
            return busy ? queue_up(session, claim, &file, queue, ret_busy, error)
                        : grant(session, claim, &file, until, ret, error);
        give_back(&file);
        if (place_refresh(session->place, error)) return BK_FAULT;
    }
    error_set(error, PAWL_EUNREACHABLE, file.file, "the lock file %s/%s is replaced all the time", session->place->dir,
              file.file);
    return BK_FAULT;
}

static enum bk_says take(struct bk_session *session, struct bk_claim *claim, bool queue, struct bk_until until,
                         struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    struct wait *wait = claim->of;
    struct lockfile file;
    int number;
    if (!wait) return begin(session, claim, queue, until, ret, ret_busy, error);
    if (!wait_collect(wait, &file, &number)) {
        if (lockfile_current(session->place, wait_file(wait)))
            return queue_up(session, claim, wait_file(wait), true, ret_busy, error);
        wait_cancel(wait); /* removed or replaced: whoever comes now locks another file */
        claim->of = NULL;
        return begin(session, claim, queue, until, ret, ret_busy, error);
    }
    claim->of = NULL;
    if (number) return failed(session, &file, number, error);
    if (lockfile_current(session->place, &file)) return grant(session, claim, &file, until, ret, error);
    give_back(&file);
    return begin(session, claim, queue, until, ret, ret_busy, error);
}

static enum bk_says forget(struct bk_session *session, struct bk_claim *claim, struct bk_until until,
                           pawl_error *error) {
    (void)session, (void)until, (void)error;
    if (claim->of) wait_cancel(claim->of);
    claim->of = NULL;
    return BK_YES;
}

/* --- holding --- */

static enum bk_says release(struct bk_session *session, struct bk_grant *const grants[], int n, struct bk_until until,
                            enum bk_says ret[], pawl_error *error) {
    (void)until, (void)error;
    for (int i = 0; i < n; i++) {
        struct lockfile *file = grants[i]->of;
        if (file->fd < 0) { /* released before */
            ret[i] = BK_NO;
            continue;
        }
        /* removed, replaced or moved while we held it: others may have held the lock beside us */
        ret[i] = lockfile_still(session->place, file) ? BK_YES : BK_NO;
        lockfile_unlock(file);
        if (ret[i] == BK_YES && !file->lent) put_aside(session, file);
    }
    return BK_YES;
}

static enum bk_says prove(struct bk_session *session, const struct bk_grant *held, struct bk_until until,
                          pawl_error *error) {
    (void)until, (void)error;
    struct lockfile *file = held->of;
    return file->fd >= 0 && lockfile_current(session->place, file) ? BK_YES : BK_NO;
}

/* Closing alone frees nothing while a copy is open elsewhere: so in a forked child the parent keeps its lock. */
static void end(struct bk_grant *held, bool forked) {
    (void)forked;
    struct lockfile *file = held->of;
    if (file->fd >= 0) lockfile_close(file);
    free(file);
    held->of = NULL;
}

static enum bk_says records(struct bk_session *session, const char *name, bk_each *each, void *data,
                            struct bk_until until, pawl_error *error) {
    return records_of(session->place, name, each, data, until, error);
}

static enum bk_says doctor(struct bk_session *session, bk_find *find, void *data, struct bk_until until,
                           pawl_error *error) {
    (void)until;
    return doctor_of(session->place, find, data, error);
}

static enum bk_says tokens(struct bk_session *session, bool advance, uint64_t to, struct bk_until until,
                           struct bk_tokens *ret, pawl_error *error) {
    return counter_stand(session->place, advance, to, until, ret, error);
}

const struct backend file_backend = {
    .caps = {.scheme = "file",
             .life = BK_LIFE_NONE,
             .shared = true,
             .fifo = true,
             .fences_alone = true,
             .ttl_min_ms = 100,
             .ttl_max_ms = INT64_C(86400000)},
    .open = open_url,
    .close = close_bk,
    .connect = connect_place,
    .drop = drop,
    .fds = fds,
    .take = take,
    .forget = forget,
    .release = release,
    .prove = prove,
    .end = end,
    .records = records,
    .doctor = doctor,
    .tokens = tokens,
};
