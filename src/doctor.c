/* doctor.c: what is looked at wherever the lock lives: can it be taken, how long does that take, do the clocks agree.
 * What is special to a service is in its backend. */
#include "client.h"
#include "clock.h"
#include "export.h"
#include "random.h"
#include "token.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 5, SKEW_MS = 1000, OWN_TTL_MS = 5000 };

struct report {
    pawl_finding_fn *fn;
    void *data;
    bool stopped;
};

static void tell(const struct bk_finding *f, void *data) {
    struct report *report = data;
    const pawl_finding finding = {sizeof finding, f->level, f->id, f->about, f->seen, f->why, f->fix};
    if (!report->stopped) report->stopped = report->fn(&finding, report->data) != 0;
}

static int by_value(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Takes and releases a lock of its own, some times. false: that failed, and was told. */
static bool look_at_a_lock(pawl_client *c, int64_t until_ns, struct report *report) {
    char seen[96], name[32] = "pawl-doctor"; /* always the same for file:, since a file, once made, stays */
    unsigned char suffix[8];
    int64_t took[ROUNDS];
    pawl_error error = PAWL_ERROR_INIT;
    random_bytes(suffix, sizeof suffix);
    if (c->be->caps.life != BK_LIFE_NONE) name[11] = '-', random_hex(suffix, sizeof suffix, name + 12);
    for (int i = 0; i < ROUNDS; i++) {
        pawl_acquire_options options = PAWL_ACQUIRE_INIT;
        pawl_lock *lock;
        int64_t from = client_now(c);
        /* redlock: for the longest ttl that was asked for an instance that comes back empty does not vote */
        if (c->be->caps.life == BK_LIFE_LOCK && c->options.ttl_ms > OWN_TTL_MS) options.ttl_ms = OWN_TTL_MS;
        options.wait_ms = from < until_ns ? (until_ns - from) / NS_PER_MS : 0;
        int code = pawl_acquire(c, name, &options, &lock, &error);
        if (!code) code = pawl_release(lock, QUESTION_MS, &error);
        took[i] = client_now(c) - from;
        if (!code) continue;
        bool busy = code == PAWL_EBUSY || code == PAWL_ETIMEOUT; /* somebody else's: that says nothing of the service */
        struct bk_finding bad = {"C01",
                                 busy ? PAWL_LEVEL_UNSEEN : PAWL_LEVEL_UNSAFE,
                                 "a lock",
                                 error.text,
                                 busy ? "" : "no lock can be taken and released here",
                                 busy ? "" : "as the message says; other findings may tell more"};
        tell(&bad, report);
        return false;
    }
    qsort(took, ROUNDS, sizeof *took, by_value);
    int64_t us = took[ROUNDS / 2] / 1000, ttl_ms = c->options.ttl_ms;
    snprintf(seen, sizeof seen, "taken and released in %" PRId64 ".%03d ms", us / 1000, (int)(us % 1000));
    bool slow = c->be->caps.life != BK_LIFE_NONE && us / 1000 > ttl_ms / 20;
    struct bk_finding f = {"C01",
                           slow ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE,
                           "a lock",
                           seen,
                           slow ? "that is much of the ttl: a slow moment may lose a lock that is held" : "",
                           slow ? "use a longer ttl, or a service that is nearer" : ""};
    tell(&f, report);
    return true;
}

static void look_at_clocks(pawl_client *c, int64_t wait_ms, struct report *report) {
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    char seen[200];
    if (pawl_tokens_show(c, wait_ms, &tokens, &error)) {
        struct bk_finding f = {"C02", PAWL_LEVEL_UNSEEN, "clocks and tokens", error.text, "", ""};
        tell(&f, report);
        return;
    }
    int64_t skew_ms = (tokens.clock_us - clock_wall_us()) / 1000, ahead_ms = (tokens.last - tokens.clock_us) / 1000;
    bool skewed = skew_ms > SKEW_MS || skew_ms < -SKEW_MS;
    snprintf(seen, sizeof seen, "the clock of the service is %" PRId64 " ms ahead of ours", skew_ms);
    struct bk_finding f = {"C02",
                           skewed ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE,
                           "clock",
                           seen,
                           skewed ? "tokens go on from the clock when the service loses its numbers" : "",
                           skewed ? "let both follow a time server (chrony, systemd-timesyncd)" : ""};
    tell(&f, report);
    bool ahead = tokens.last && ahead_ms > SKEW_MS + (int64_t)TOKEN_LEAP / 1000; /* an admission may put them ahead */
    snprintf(seen, sizeof seen,
             ahead ? "the last token is %" PRId64 " ms ahead of the clock" : "the last token is behind the clock",
             ahead_ms);
    struct bk_finding t = {
        "C03",
        ahead ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE,
        "tokens",
        seen,
        ahead ? "a clock was set back; numbers that are lost now would begin below those that were given out" : "",
        ahead ? "set the clock; after a loss of data: pawl token advance --to N" : ""};
    tell(&t, report);
}

static int look_at_the_service(pawl_client *c, int64_t until_ns, struct report *report, pawl_error *error) {
    struct session *s;
    pawl_error own = PAWL_ERROR_INIT;
    const struct bk_until until = {.at_ns = until_ns, .cancel_fd = -1};
    if (!c->be->doctor) {
        struct bk_finding f = {
            "C04", PAWL_LEVEL_UNSEEN, "the service", "nothing but the above is looked at with this service", "", ""};
        tell(&f, report);
        return PAWL_OK;
    }
    int code = session_borrow(c, SESSION_ANY, until, &s, error);
    if (code) return code;
    enum bk_says says = c->be->doctor(s->bk, tell, report, until, &own);
    session_return(c, s, says == BK_UNKNOWN || (says == BK_FAULT && own.code == PAWL_EUNREACHABLE));
    if (says == BK_YES) return PAWL_OK;
    error_copy(error, &own);
    return own.code ? own.code : PAWL_EUNREACHABLE;
}

PAWL_EXPORT int pawl_doctor(pawl_client *c, int64_t wait_ms, pawl_finding_fn *fn, void *data, pawl_error *error) {
    struct report report = {.fn = fn, .data = data};
    int code = pawl_connect(c, wait_ms, error);
    if (code) return code;
    int64_t now = client_now(c), until_ns = clock_after_ms(now, wait_ms > 0 ? wait_ms : QUESTION_MS);
    /* half of the time for a lock: if there is none, the service may say why */
    if (look_at_a_lock(c, now + (until_ns - now) / 2, &report)) look_at_clocks(c, wait_ms, &report);
    return look_at_the_service(c, until_ns, &report, error);
}
