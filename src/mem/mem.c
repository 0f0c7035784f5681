/* mem.c: the backend "mem:": a service inside this process, for tests and demos. Clients that name the same store
 * ("mem:NAME") meet in it.
 *
 * The one thing to know: the one mutex here belongs to the service, not to the sessions. Stores live as long as the
 * process, so that their tokens never fall; a forked child begins without any. */
#include "mem.h"
#include "clock.h"
#include "store.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int64_t (*mem_clock)(void) = clock_now_ns;

typedef unsigned char owner_value[16];

struct bk {
    struct store *store;
    int wake_fd;        /* -1: the hub is not open */
    owner_value *woken; /* not yet told through hub_io */
    size_t n_woken, size_woken;
    bool missed; /* some could not be noted: wake everybody */
};

struct bk_session {
    struct bk *bk;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct store *stores;

static void unlock(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }
#define LOCKED                                                                                                         \
    __attribute__((cleanup(unlock), unused)) pthread_mutex_t *held = &mutex;                                           \
    pthread_mutex_lock(held)

static void after_fork_in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    stores = NULL;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

/* --- open --- */

static struct store *find_store(const char *name) {
    struct store *store = stores;
    while (store && strcmp(store->name, name) != 0) store = store->next;
    if (store || !(store = store_new(name, clock_wall_us()))) return store;
    store->next = stores;
    return stores = store;
}

static enum bk_says mem_open(const struct url *url, struct bk **ret, pawl_error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (url->authority) {
        error_set(error, PAWL_EINVALID, NULL, "url %s: write mem: or mem:NAME, without //", url->shown);
        return BK_FAULT;
    }
    if (url_params_known(url, error)) return BK_FAULT;
    pthread_once(&once, watch_forks);
    struct bk *bk = calloc(1, sizeof *bk);
    LOCKED;
    struct store *store = bk ? find_store(url->path) : NULL;
    if (!store) {
        free(bk);
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    *bk = (struct bk){.store = store, .wake_fd = -1};
    *ret = bk;
    return BK_YES;
}

static void close_hub(struct bk *bk) {
    if (bk->wake_fd >= 0) close(bk->wake_fd);
    bk->wake_fd = -1;
    free(bk->woken);
    bk->woken = NULL;
    bk->n_woken = bk->size_woken = 0;
}

static void mem_hub_close(struct bk *bk, bool forked) {
    if (forked) { /* the stores that we came with are not this process's */
        close_hub(bk);
        return;
    }
    LOCKED;
    if (bk->wake_fd >= 0) store_deafen(bk->store, bk);
    close_hub(bk);
}

static void mem_close(struct bk *bk, bool forked) {
    mem_hub_close(bk, forked);
    free(bk);
}

static enum bk_says mem_connect(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error) {
    (void)until;
    struct bk_session *session = malloc(sizeof *session);
    if (!session) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    session->bk = bk;
    *ret = session;
    return BK_YES;
}

static void mem_drop(struct bk_session *session, bool forked) {
    (void)forked;
    free(session);
}

static int mem_fds(struct bk_session *session, const struct bk_grant *grant, int *ret, int max) {
    (void)session, (void)grant, (void)ret, (void)max;
    return 0;
}

/* --- the hub --- */

/* Called by the store, with the mutex held. */
static void note_wake(void *listener, const unsigned char owner[16]) {
    struct bk *bk = listener;
    if (bk->n_woken == bk->size_woken) {
        size_t size = bk->size_woken ? 2 * bk->size_woken : 16;
        owner_value *more = realloc(bk->woken, size * sizeof *more);
        if (more) {
            bk->woken = more;
            bk->size_woken = size;
        }
    }
    if (bk->n_woken < bk->size_woken) memcpy(bk->woken[bk->n_woken++], owner, 16);
    else bk->missed = true;
    if (eventfd_write(bk->wake_fd, 1)) bk->missed = true;
}

static enum bk_says mem_hub_open(struct bk *bk, struct bk_until until, pawl_error *error) {
    (void)until;
    LOCKED;
    if (bk->wake_fd < 0) bk->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (bk->wake_fd >= 0) return BK_YES;
    error_errno(error, PAWL_EINTERNAL, "mem", "cannot make the descriptor by which waiters are woken");
    return BK_FAULT;
}

static int mem_hub_fd(struct bk *bk) { return bk->wake_fd; }

static enum bk_says mem_hub_io(struct bk *bk, bk_wake *wake, void *data, pawl_error *error) {
    (void)error;
    owner_value *woken;
    size_t n;
    bool missed;
    {
        LOCKED;
        eventfd_t count;
        if (bk->wake_fd >= 0) (void)!eventfd_read(bk->wake_fd, &count);
        woken = bk->woken;
        n = bk->n_woken;
        missed = bk->missed;
        bk->woken = NULL;
        bk->n_woken = bk->size_woken = 0;
        bk->missed = false;
    }
    for (size_t i = 0; i < n; i++) wake(woken[i], data);
    if (missed) wake(NULL, data);
    free(woken);
    return BK_YES;
}

/* --- questions: all answer at once --- */

static enum bk_says mem_take(struct bk_session *session, struct bk_claim *claim, bool queue, struct bk_until until,
                             struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    (void)until;
    struct bk *bk = session->bk;
    LOCKED;
    return store_take(bk->store, claim, queue, bk->wake_fd >= 0 ? bk : NULL, note_wake, mem_clock(), ret, ret_busy,
                      error);
}

static enum bk_says mem_forget(struct bk_session *session, struct bk_claim *claim, struct bk_until until,
                               pawl_error *error) {
    (void)until, (void)error;
    LOCKED;
    return store_forget(session->bk->store, claim, note_wake, mem_clock()) ? BK_YES : BK_NO;
}

static enum bk_says mem_release(struct bk_session *session, struct bk_grant *const grants[], int n,
                                struct bk_until until, enum bk_says ret[], pawl_error *error) {
    (void)until, (void)error;
    LOCKED;
    for (int i = 0; i < n; i++)
        ret[i] = store_release(session->bk->store, grants[i], note_wake, mem_clock()) ? BK_YES : BK_NO;
    return BK_YES;
}

static enum bk_says mem_renew(struct bk_session *session, struct bk_life *const lives[], int n, struct bk_until until,
                              enum bk_says ret[], int64_t ret_left_ms[], pawl_error *error) {
    (void)until, (void)error;
    LOCKED;
    for (int i = 0; i < n; i++) {
        int64_t left = store_renew(session->bk->store, lives[i]->grant, lives[i]->ttl_ms, note_wake, mem_clock());
        ret[i] = left >= 0 ? BK_YES : BK_NO;
        if (left >= 0) ret_left_ms[i] = left;
    }
    return BK_YES;
}

static enum bk_says mem_prove(struct bk_session *session, const struct bk_grant *grant, struct bk_until until,
                              pawl_error *error) {
    (void)until, (void)error;
    LOCKED;
    return store_renew(session->bk->store, grant, 0, note_wake, mem_clock()) >= 0 ? BK_YES : BK_NO;
}

static enum bk_says mem_evict(struct bk_session *session, const struct bk_claim *claim, bool at_once,
                              struct bk_until until, struct bk_evicted *ret, pawl_error *error) {
    (void)until;
    LOCKED;
    return store_evict(session->bk->store, claim, at_once, note_wake, mem_clock(), ret, error);
}

static void mem_end(struct bk_grant *grant, bool forked) { (void)grant, (void)forked; }

static enum bk_says mem_records(struct bk_session *session, const char *name, bk_each *each, void *data,
                                struct bk_until until, pawl_error *error) {
    (void)until;
    struct bk_record *list;
    int n;
    {
        LOCKED;
        list = store_records(session->bk->store, name, note_wake, mem_clock(), &n);
    }
    if (n < 0) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    for (int i = 0; i < n && each(&list[i], data); i++) continue;
    store_free_records(list, n);
    return BK_YES;
}

static enum bk_says mem_tokens(struct bk_session *session, bool advance, uint64_t to, struct bk_until until,
                               struct bk_tokens *ret, pawl_error *error) {
    (void)until, (void)error;
    LOCKED;
    struct token_state *state = &session->bk->store->tokens;
    int64_t now_us = clock_wall_us();
    if (advance) token_advance(state, now_us, to);
    *ret = (struct bk_tokens){.since = state->since, .last = state->last, .clock_us = now_us};
    snprintf(ret->stored, sizeof ret->stored, "process %d", (int)getpid());
    snprintf(ret->answering, sizeof ret->answering, "process %d", (int)getpid());
    return BK_YES;
}

extern const struct backend mem_backend;
const struct backend mem_backend = {
    .caps = {.scheme = "mem",
             .life = BK_LIFE_LOCK,
             .shared = true,
             .fifo = true,
             .hub = true,
             .renew_batch = 1000,
             .ttl_min_ms = 100,
             .ttl_max_ms = 86400000},
    .open = mem_open,
    .close = mem_close,
    .connect = mem_connect,
    .drop = mem_drop,
    .fds = mem_fds,
    .take = mem_take,
    .forget = mem_forget,
    .release = mem_release,
    .renew = mem_renew,
    .prove = mem_prove,
    .end = mem_end,
    .records = mem_records,
    .evict = mem_evict,
    .tokens = mem_tokens,
    .hub_open = mem_hub_open,
    .hub_fd = mem_hub_fd,
    .hub_io = mem_hub_io,
    .hub_close = mem_hub_close,
};
