/* calls_away.c: a service that is not there, or falls silent, while somebody waits: the time that he gave is his
 * patience with the service, too, and the last word counts: "busy" if it was an answer, the trouble if there was none.
 */
#include "calls.h"
#include "proxy.h"
#include "ran.h"
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };
static struct away { /* between a client and the servers of the URL */
    struct proxy *proxies[MOST];
    int n;
    char url[512];
    atomic_int doubts, waits;
    bool freeze; /* as soon as it is known to be busy */
} away;

static void all_cut(bool on) {
    for (int i = 0; i < away.n; i++) proxy_cut(away.proxies[i], on);
}

static void all_frozen(bool on) {
    for (int i = 0; i < away.n; i++) proxy_freeze(away.proxies[i], on);
}

static void note(const pawl_event *event, const char *name, void *data) {
    (void)name, (void)data;
    if (event->type == PAWL_DOUBT) atomic_fetch_add(&away.doubts, 1);
    if (event->type != PAWL_WAITING) return;
    if (away.freeze) all_frozen(true);
    atomic_fetch_add(&away.waits, 1);
}

/* A client whose way there can be cut. */
static pawl_client *open_far(struct suite *suite) {
    static const char host[] = "127.0.0.1:";
    const char *from = suite->fixture->url(), *at;
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client = NULL;
    memset(&away, 0, sizeof away);
    for (; (at = strstr(from, host)) && away.n < MOST; from = at) {
        at += strlen(host);
        away.proxies[away.n] = proxy_start(atoi(at));
        snprintf(away.url + strlen(away.url), sizeof away.url - strlen(away.url), "%.*s%d", (int)(at - from), from,
                 proxy_port(away.proxies[away.n++]));
        at += strspn(at, "0123456789");
    }
    snprintf(away.url + strlen(away.url), sizeof away.url - strlen(away.url), "%s", from);
    options.ttl_ms = 5000;
    options.observe = note;
    if (pawl_open(away.url, &options, &client, &error)) fail_msg("pawl_open: %s", error.text);
    return client;
}

static void close_far(pawl_client *client) {
    pawl_close(client);
    for (int i = 0; i < away.n; i++) proxy_stop(away.proxies[i]);
}

static void first_start(struct suite *suite) {
    pawl_client *near = call_open(suite);
    call_release(call_acquire(near, "first", AWAIT_MS));
    pawl_close(near);
}

static int wait_for(pawl_client *client, int64_t wait_ms, pawl_error *error) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_lock *lock = NULL;
    options.wait_ms = wait_ms;
    int code = pawl_acquire(client, "away", &options, &lock, error);
    if (lock) call_release(lock);
    return code;
}

static void a_service_that_comes_up_is_waited_for(void **state) {
    struct suite *suite = *state;
    first_start(suite);
    pawl_client *far = open_far(suite);
    struct call_thread t = {.client = far, .name = "away", .wait_ms = 60000};
    all_cut(true);
    call_thread_start(&t);
    int64_t end = call_now_ms() + AWAIT_MS;
    while (atomic_load(&away.doubts) < 2 && call_now_ms() < end) poll(NULL, 0, 5);
    all_cut(false);
    call_thread_join(&t);
    assert_true(away.doubts >= 2);
    assert_int_equal(t.code, PAWL_OK);
    call_release(t.lock);
    close_far(far);
}

/* Until the time is over; at once where no time was said. */
static void a_service_that_stays_away_is_named(void **state) {
    struct suite *suite = *state;
    static const int64_t waits_ms[] = {0, PAWL_FOREVER, 700, 700};
    first_start(suite);
    pawl_client *far = open_far(suite);
    all_cut(true);
    for (int i = 0; i < 4; i++) {
        if (i == 3) all_cut(false), all_frozen(true);
        pawl_error error = PAWL_ERROR_INIT;
        int64_t start = call_now_ms(), ran = call_ran_ms();
        int code = wait_for(far, waits_ms[i], &error);
        if (code != PAWL_EUNREACHABLE) fail_msg("%d: %s", code, error.text);
        assert_true(call_ran_ms() - ran < AWAIT_MS);
        if (waits_ms[i] == 700) assert_true(call_now_ms() - start >= 700);
        for (int k = 0; k < away.n; k++) {
            char port[16];
            snprintf(port, sizeof port, "%d", proxy_port(away.proxies[k]));
            if (!strstr(error.text, port)) fail_msg("%s is not in: %s", port, error.text);
        }
    }
    all_frozen(false);
    close_far(far);
}

/* It was busy a moment ago, and the time is over while a question is open, if there is one: that is no silence yet. */
static void a_question_open_at_the_end_is_no_silence(void **state) {
    struct suite *suite = *state;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *near = call_open(suite), *far = open_far(suite);
    pawl_lock *held = call_acquire(near, "away", AWAIT_MS);
    away.freeze = true;
    int64_t start = call_now_ms();
    int code = wait_for(far, 500, &error);
    bool at_once = call_now_ms() - start < 950; /* else the machine stood still, and it is a silence */
    all_frozen(false);
    if (away.waits && at_once && code != PAWL_ETIMEOUT) fail_msg("%d: %s", code, error.text);
    if (code == PAWL_ETIMEOUT) assert_non_null(strstr(error.text, "busy, held by"));
    close_far(far);
    call_release(held);
    pawl_close(near);
}

const struct contract_case away_cases[] = {
    CASE(a_service_that_comes_up_is_waited_for, SERVERS),
    CASE(a_service_that_stays_away_is_named, SERVERS),
    CASE(a_question_open_at_the_end_is_no_silence, SERVERS),
    {0},
};
