/* client.c: opening and closing; what a client is asked that is not about one lock. */
#include "client.h"
#include "clock.h"
#include "export.h"
#include "lock.h"
#include "module.h"
#include "pawl_guard.h"
#include "process.h"
#include "sized.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLOSE_MS 1000
#define TTL_LOWEST_MS 100
#define TTL_HIGHEST_MS (INT64_C(24) * 3600 * 1000)

static int64_t boottime(void *data) {
    (void)data;
    return clock_now_ns();
}

int client_check_ttl(const pawl_client *c, int64_t ttl_ms, pawl_error *error) {
    const struct bk_caps *caps = &c->be->caps;
    if (ttl_ms == 0) return PAWL_OK;
    if (ttl_ms < TTL_LOWEST_MS || ttl_ms > TTL_HIGHEST_MS)
        return error_set(error, PAWL_EINVALID, NULL, "a ttl is from 100 ms to 24 h, not %lld ms", (long long)ttl_ms);
    if (caps->life != BK_LIFE_NONE &&
        ((caps->ttl_min_ms && ttl_ms < caps->ttl_min_ms) || (caps->ttl_max_ms && ttl_ms > caps->ttl_max_ms)))
        return error_set(error, PAWL_EINVALID, NULL, "%s: has ttls from %lld to %lld ms, not %lld ms", caps->scheme,
                         (long long)caps->ttl_min_ms, (long long)caps->ttl_max_ms, (long long)ttl_ms);
    int64_t margin = c->options.margin_ms;
    if (margin > ttl_ms / 2)
        return error_set(error, PAWL_EINVALID, NULL, "a margin of %lld ms leaves too little of a ttl of %lld ms",
                         (long long)margin, (long long)ttl_ms);
    return PAWL_OK;
}

int client_new(const struct backend *be, struct bk *bk, struct url *url, const pawl_options *options, pawl_client **ret,
               pawl_error *error) {
    pawl_client *c = calloc(1, sizeof *c);
    if (!c || (options->label && !(c->label = strdup(options->label)))) {
        free(c);
        be->close(bk, false);
        url_free(url);
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    }
    c->pid = process_id();
    c->be = be;
    c->bk = bk;
    c->url = url;
    c->options = *options;
    c->now = boottime;
    c->poke_fd = c->hang_up_fd = c->event_fd = c->queue_fd = c->deadline_fd = c->spare_wake_fd = -1;
    c->keeper_sleeps_until_ns = c->earliest_ns = INT64_MAX;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->session_free, NULL);
    pthread_cond_init(&c->proved, NULL);
    about_self(c->label, c->options.pid, c->about);
    if (be->introduce) be->introduce(bk, c->options.ttl_ms, c->about);
    *ret = c;
    return PAWL_OK;
}

static int check_options(pawl_client *c, pawl_error *error) {
    const struct bk_caps *caps = &c->be->caps;
    const pawl_options *o = &c->options;
    if (o->flags) return error_set(error, PAWL_EINVALID, NULL, "unknown flags %#x in pawl_options", o->flags);
    if (o->ttl_ms <= 0 || o->margin_ms < 0)
        return error_set(error, PAWL_EINVALID, NULL, "a ttl is from 100 ms to 24 h, a margin is not negative");
    if (o->for_correctness && !caps->fences_alone)
        return error_set(
            error, PAWL_EUNSAFE, NULL,
            "%s: may grant a lock to another holder while this one is paused or cut off; for correctness the "
            "resource must check tokens: name a guard, or use file:",
            caps->scheme);
    return client_check_ttl(c, o->ttl_ms, error);
}

/* A keyword string of libpq, "host=db1 dbname=app", is a URL without its scheme. */
static int parse_url(const char *text, struct url **ret, pawl_error *error) {
    char *whole = NULL;
    size_t word = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
    if (word == 0 || text[word] != '=') return url_parse(text, ret, error);
    if (asprintf(&whole, "postgresql:%s", text) < 0) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    int code = url_parse(whole, ret, error);
    explicit_bzero(whole, strlen(whole));
    free(whole);
    return code;
}

PAWL_EXPORT int pawl_open(const char *text, const pawl_options *given, pawl_client **ret_client, pawl_error *error) {
    pawl_options options = PAWL_OPTIONS_INIT;
    const struct backend *be;
    struct url *url;
    struct bk *bk;
    pawl_error own = PAWL_ERROR_INIT;
    int code = sized_take(&options, given, "options of pawl_open", error);
    if (code) return code;
    code = text ? parse_url(text, &url, error) : error_set(error, PAWL_EINVALID, NULL, "no url");
    if (code) return code;
    code = module_backend(url->scheme, &be, error);
    if (code == PAWL_OK && be->open(url, &bk, &own) != BK_YES) {
        error_copy(error, &own);
        code = own.code ? own.code : PAWL_EINVALID;
    }
    if (code) {
        url_free(url);
        return code;
    }
    pawl_client *c;
    code = client_new(be, bk, url, &options, &c, error);
    if (code) return code;
    code = check_options(c, error);
    if (code == PAWL_OK) *ret_client = c;
    else pawl_close(c);
    return code;
}

int client_enter(pawl_client *c, pawl_error *error) {
    if (c->pid != process_id()) {
        if (c->started)
            return error_set(error, PAWL_EINVALID, NULL,
                             "this process was forked after the client was used: open a client of its own (and "
                             "pawl_forget this one)");
        c->pid = process_id(); /* opened, then forked: nothing is shared yet */
        about_self(c->label, c->options.pid, c->about);
    }
    if (__atomic_load_n(&c->started, __ATOMIC_ACQUIRE)) return PAWL_OK;
    int code = PAWL_OK;
    pthread_mutex_lock(&c->mutex);
    if (!c->started) {
        if (!client_needs_no_service(c)) code = keeper_start_locked(c, error); /* else when it gets something to do */
        if (code == PAWL_OK) __atomic_store_n(&c->started, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&c->mutex);
    return code;
}

/* --- closing --- */

/* The thread is gone: whatever is still held or may be there is given back here, as far as time allows. */
static void end_all(pawl_client *c) {
    int64_t end = clock_after_ms(client_now(c), CLOSE_MS);
    for (pawl_lock *l = c->locks, *next; l; l = next) {
        next = l->next;
        int64_t left_ms = (end - client_now(c)) / NS_PER_MS;
        if ((left_ms > 0 || client_needs_no_service(c)) && (l->granted || l->dirty)) lock_end_step(l, left_ms, NULL);
    }
}

static void free_client(pawl_client *c, bool forked) {
    for (pawl_lock *l = c->locks, *next; l; l = next) {
        next = l->next;
        if (!forked) {
            names_leave_locked(l);
            lease_detach_locked(l);
        }
        lock_free(l, forked);
    }
    lease_close(c, forked ? 0 : clock_after_ms(client_now(c), CLOSE_MS / 2), forked);
    session_drop_all(c, forked);
    if (c->hub_ready) c->be->hub_close(c->bk, forked);
    c->be->close(c->bk, forked);
    int fds[] = {c->poke_fd, c->hang_up_fd, c->event_fd, c->queue_fd, c->deadline_fd, c->spare_wake_fd};
    for (int i = 0; i < 6; i++)
        if (fds[i] >= 0) close(fds[i]);
    heap_free(&c->leases);
    heap_free(&c->work);
    names_free(c);
    map_free(&c->waiters);
    if (!forked) {
        pthread_mutex_destroy(&c->mutex);
        pthread_cond_destroy(&c->session_free);
        pthread_cond_destroy(&c->proved);
    }
    url_free(c->url);
    free(c->label);
    free(c);
}

PAWL_EXPORT void pawl_close(pawl_client *c) {
    if (!c) return;
    if (c->pid != process_id() && c->started) {
        pawl_forget(c);
        return;
    }
    keeper_stop(c);
    end_all(c);
    free_client(c, false);
}

PAWL_EXPORT void pawl_forget(pawl_client *c) {
    if (c && c->pid == process_id()) pawl_close(c); /* it is this process's own: its thread may run */
    else if (c) free_client(c, true);
}

/* --- looking --- */

static int lend(pawl_client *c, int64_t wait_ms, struct bk_until *ret_until, struct session **ret, pawl_error *error) {
    int code = client_enter(c, error);
    if (code) return code;
    *ret_until =
        (struct bk_until){.at_ns = clock_after_ms(client_now(c), wait_ms > 0 ? wait_ms : QUESTION_MS), .cancel_fd = -1};
    return session_borrow(c, SESSION_ANY, *ret_until, ret, error);
}

PAWL_EXPORT int pawl_connect(pawl_client *c, int64_t wait_ms, pawl_error *error) {
    struct bk_until until;
    struct session *s;
    int code = lend(c, wait_ms, &until, &s, error);
    if (code == PAWL_OK) session_return(c, s, false);
    return code;
}

struct inspection {
    pawl_entry_fn *fn;
    void *data;
};

static bool show(const struct bk_record *r, void *data) {
    const struct inspection *i = data;
    struct about about;
    pawl_entry entry = {.size = sizeof entry,
                        .name = r->name,
                        .token = (int64_t)r->token,
                        .since_ms = r->since_ms,
                        .left_ms = r->left_ms < 0 ? 0 : r->left_ms,
                        .held = r->place == 0,
                        .shared = r->shared,
                        .place = r->place};
    about_parse(r->about, &about, &entry);
    bool go_on = i->fn(&entry, i->data) == 0;
    about_free(&about);
    return go_on;
}

static bool valid_utf8(const unsigned char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        unsigned more = s[i] < 0x80                   ? 0
                        : s[i] >= 0xC2 && s[i] < 0xE0 ? 1
                        : s[i] >= 0xE0 && s[i] < 0xF0 ? 2
                        : s[i] >= 0xF0 && s[i] < 0xF5 ? 3
                                                      : 9;
        if (more == 9 || n - i <= more) return false;
        if ((s[i] == 0xE0 && s[i + 1] < 0xA0) || (s[i] == 0xED && s[i + 1] > 0x9F) ||
            (s[i] == 0xF0 && s[i + 1] < 0x90) || (s[i] == 0xF4 && s[i + 1] > 0x8F))
            return false;
        for (unsigned k = 1; k <= more; k++)
            if ((s[i + k] & 0xC0) != 0x80) return false;
        i += more + 1;
    }
    return true;
}

int client_check_name(const char *name, pawl_error *error) {
    size_t n = name ? strnlen(name, NAME_MAX_BYTES + 1) : 0;
    if (n > 0 && n <= NAME_MAX_BYTES)
        return valid_utf8((const unsigned char *)name, n)
                   ? PAWL_OK
                   : error_set(error, PAWL_EINVALID, NULL, "the lock name is not UTF-8");
    return error_set(error, PAWL_EINVALID, NULL, "a lock name has 1 to %d bytes, this one has %s", NAME_MAX_BYTES,
                     n == 0 ? "none" : "more");
}

PAWL_EXPORT int pawl_inspect(pawl_client *c, const char *name, int64_t wait_ms, pawl_entry_fn *fn, void *data,
                             pawl_error *error) {
    struct bk_until until;
    struct session *s;
    struct inspection inspection = {fn, data};
    pawl_error own = PAWL_ERROR_INIT;
    int code = name ? client_check_name(name, error) : PAWL_OK; /* NULL: all */
    if (!code) code = lend(c, wait_ms, &until, &s, error);
    if (code) return code;
    enum bk_says says = c->be->records(s->bk, name, show, &inspection, until, &own);
    session_return(c, s, says == BK_UNKNOWN || (says == BK_FAULT && own.code == PAWL_EUNREACHABLE));
    if (says == BK_YES) return PAWL_OK;
    error_copy(error, &own);
    return own.code ? own.code : PAWL_EUNREACHABLE;
}

PAWL_EXPORT int pawl_guarantees(pawl_client *c, char *json, size_t size, pawl_error *error) {
    const struct bk_caps *caps = &c->be->caps;
    int n = snprintf(json, size,
                     "{\"scheme\":\"%s\",\"one_holder\":true,\"one_holder_if_paused\":%s,\"shared\":%s,\"fifo\":%s,"
                     "\"freed_after_death\":\"%s\"}",
                     caps->scheme, caps->fences_alone ? "true" : "false", caps->shared ? "true" : "false",
                     caps->fifo ? "true" : "false", caps->life == BK_LIFE_NONE ? "at once" : "ttl");
    return n >= 0 && (size_t)n < size
               ? PAWL_OK
               : error_set(error, PAWL_EINVALID, NULL, "a buffer of %zu bytes is too small", size);
}

/* --- small things --- */

PAWL_EXPORT const char *pawl_version(void) {
    static char text[160];
    char list[128];
    module_list(list, sizeof list);
    snprintf(text, sizeof text, PAWL_VERSION_TEXT " %s; layout 1", list);
    return text;
}

PAWL_EXPORT void pawl_options_init(pawl_options *options, size_t size) {
    const pawl_options init = PAWL_OPTIONS_INIT;
    sized_init(options, size, &init);
}

PAWL_EXPORT void pawl_acquire_init(pawl_acquire_options *options, size_t size) {
    const pawl_acquire_options init = PAWL_ACQUIRE_INIT;
    sized_init(options, size, &init);
}

PAWL_EXPORT const char *pawl_strerror(int code) {
    static const char *const texts[] = {
        "done",   "busy",          "waited too long",  "cancelled",          "lock lost",      "service unreachable",
        "denied", "unsafe set-up", "invalid argument", "not supported here", "internal error",
    };
    static const char *const refusals[] = {
        "stale token", "wrong lock", "damaged token", "no such record", "no token",
    };
    if (code >= PAWL_GSTALE && code <= PAWL_GNOTOKEN) return refusals[code - PAWL_GSTALE];
    return code >= 0 && code <= PAWL_EINTERNAL ? texts[code] : "unknown code";
}
