/* calls_event.c: the event form, losses, and their descriptors. */
#include "calls.h"
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The next event, or one of type 0 if none comes in time. */
static pawl_event next_event(pawl_client *client, int64_t ms) {
    pawl_event event = PAWL_EVENT_INIT;
    int64_t end = call_now_ms() + ms, left;
    while (!pawl_next_event(client, &event) && (left = end - call_now_ms()) > 0)
        call_readable(pawl_event_fd(client), left);
    return event;
}

static pawl_lock *start(pawl_client *client, const char *name, int64_t wait_ms, int64_t max_hold_ms, void *user) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock = NULL;
    options.wait_ms = wait_ms;
    options.max_hold_ms = max_hold_ms;
    if (pawl_acquire_start(client, name, &options, user, &lock, &error)) fail_msg("start: %s", error.text);
    return lock;
}

static void event_of_a_grant(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    int user;
    pawl_lock *lock = start(client, "event", PAWL_FOREVER, 0, &user);
    pawl_event event = next_event(client, AWAIT_MS);
    assert_int_equal(event.type, PAWL_GRANTED);
    assert_ptr_equal(event.lock, lock);
    assert_ptr_equal(event.user, &user);
    assert_true(event.token > 0 && event.token == pawl_token(lock));
    assert_int_equal(pawl_check(lock), PAWL_OK);
    assert_false(call_readable(pawl_event_fd(client), 0));
    call_release(lock);
    assert_int_equal(next_event(client, 50).type, 0);
    assert_int_equal(call_try(client, "event"), PAWL_OK);
    pawl_close(client);
}

/* Busy is told by an event, whoever is in the way: another client, or this very one. */
static void event_of_a_try(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_lock *held = call_acquire(a, "event-try", 0);
    for (int i = 0; i < 2; i++) {
        pawl_client *client = i ? b : a;
        pawl_lock *lock = start(client, "event-try", 0, 0, NULL);
        pawl_event event = next_event(client, AWAIT_MS);
        assert_int_equal(event.type, PAWL_FAILED);
        assert_int_equal(event.code, PAWL_EBUSY);
        assert_ptr_equal(event.lock, lock);
        assert_int_equal(pawl_release(lock, AWAIT_MS, NULL), PAWL_OK);
    }
    call_release(held);
    assert_int_equal(call_try(a, "event-try"), PAWL_OK);
    pawl_close(a);
    pawl_close(b);
}

static void event_after_waiting(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_lock *held = call_acquire(a, "event-wait", 0), *lock = start(b, "event-wait", PAWL_FOREVER, 0, NULL);
    assert_int_equal(next_event(b, 100).type, 0);
    assert_int_equal(pawl_token(lock), 0);
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    call_release(held);
    assert_int_equal(next_event(b, AWAIT_MS).type, PAWL_GRANTED);
    call_release(lock);
    pawl_close(a);
    pawl_close(b);
}

static void event_of_a_failure(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_lock *held = call_acquire(a, "event-fail", 0), *lock = start(b, "event-fail", 1500, 0, NULL);
    pawl_event event = next_event(b, AWAIT_MS);
    assert_int_equal(event.type, PAWL_FAILED);
    assert_int_equal(event.code, PAWL_ETIMEOUT);
    assert_ptr_equal(event.lock, lock);
    assert_true(*event.text);
    assert_int_equal(pawl_release(lock, AWAIT_MS, NULL), PAWL_OK);
    call_await_entries(a, "event-fail", 1);
    call_release(held);
    assert_int_equal(call_try(b, "event-fail"), PAWL_OK);
    pawl_close(a);
    pawl_close(b);
}

static void release_cancels_what_is_pending(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_lock *held = call_acquire(a, "event-cancel", 0), *lock = start(b, "event-cancel", PAWL_FOREVER, 0, NULL);
    assert_int_equal(next_event(b, 100).type, 0);
    assert_int_equal(pawl_release(lock, 0, NULL), PAWL_OK);
    call_await_entries(a, "event-cancel", 1);
    call_release(held);
    assert_int_equal(call_try(a, "event-cancel"), PAWL_OK);
    assert_int_equal(next_event(b, 50).type, 0);
    pawl_close(a);
    pawl_close(b);
}

static void many_at_once(void **state) {
    struct suite *suite = *state;
    enum { N = 50 };
    pawl_client *client = call_open(suite);
    pawl_lock *locks[N];
    char name[32];
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "many/%d", i);
        locks[i] = start(client, name, PAWL_FOREVER, 0, NULL);
    }
    for (int i = 0; i < N; i++) assert_int_equal(next_event(client, AWAIT_MS).type, PAWL_GRANTED);
    for (int i = 0; i < N; i++) assert_int_equal(pawl_release(locks[i], 0, NULL), PAWL_OK);
    call_await_entries(client, NULL, 0);
    pawl_close(client);
}

static void loss_is_told_everywhere(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    pawl_lock *lock = start(client, "loss", PAWL_FOREVER, 1500, NULL);
    assert_int_equal(next_event(client, AWAIT_MS).type, PAWL_GRANTED);
    int fd = pawl_lost_fd(lock);
    assert_true(fd >= 0);
    assert_int_equal(pawl_lost_fd(lock), fd);
    assert_int_equal(pawl_check(lock), PAWL_OK);
    assert_true(call_readable(fd, AWAIT_MS));
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    assert_true(pawl_remaining_ms(lock) <= 0);
    pawl_event event = next_event(client, AWAIT_MS);
    assert_int_equal(event.type, PAWL_LOST);
    assert_int_equal(event.code, PAWL_ELOST);
    assert_int_equal(next_event(client, 50).type, 0);
    assert_true(call_readable(fd, 0)); /* for good */
    assert_int_equal(pawl_release(lock, AWAIT_MS, NULL), PAWL_ELOST);
    assert_int_equal(call_try(client, "loss"), PAWL_OK);
    pawl_close(client);
}

static void loss_of_a_blocking_lock(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_lock *lock = NULL;
    options.max_hold_ms = 1500;
    assert_int_equal(pawl_acquire(client, "loss2", &options, &lock, NULL), PAWL_OK);
    assert_in_range(pawl_remaining_ms(lock), 1, 1500);
    assert_true(call_readable(pawl_lost_fd(lock), AWAIT_MS));
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    assert_int_equal(next_event(client, 0).type, 0);
    pawl_release(lock, AWAIT_MS, NULL);
    assert_int_equal(call_try(client, "loss2"), PAWL_OK);
    pawl_close(client);
}

static void count_renewals(const pawl_event *event, const char *name, void *data) {
    if (event->type == PAWL_RENEWED && strcmp(name, "renewed") == 0)
        __atomic_fetch_add((int *)data, 1, __ATOMIC_SEQ_CST);
}

/* Time goes on well beyond the ttl, and the lock with it; who observes is told. */
static void renewed_while_held(void **state) {
    struct suite *suite = *state;
    pawl_options observed = PAWL_OPTIONS_INIT;
    pawl_client *a, *b = call_open(suite);
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_lock *lock = NULL;
    int renewals = 0;
    observed.observe = count_renewals;
    observed.observe_data = &renewals;
    observed.ttl_ms = suite->backend->caps.ttl_min_ms > 3000 ? suite->backend->caps.ttl_min_ms : 3000;
    options.ttl_ms = observed.ttl_ms;
    assert_int_equal(pawl_open(suite->fixture->url(), &observed, &a, NULL), PAWL_OK);
    assert_int_equal(pawl_acquire(a, "renewed", &options, &lock, NULL), PAWL_OK);
    assert_false(call_readable(pawl_lost_fd(lock), 2 * options.ttl_ms));
    assert_int_equal(pawl_check(lock), PAWL_OK);
    assert_true(__atomic_load_n(&renewals, __ATOMIC_SEQ_CST) >= 2); /* or it would have ended */
    assert_int_equal(call_try(b, "renewed"), PAWL_EBUSY);
    assert_int_equal(pawl_verify(lock, AWAIT_MS, NULL), PAWL_OK);
    call_release(lock);
    pawl_close(a);
    pawl_close(b);
}

static int descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static void no_descriptor_remains(void **state) {
    struct suite *suite = *state;
    int before = 0;
    for (int i = 0; i < 6; i++) {
        pawl_client *a = call_open(suite), *b = call_open(suite);
        pawl_lock *lock = call_acquire(a, "descriptors", 0), *pending = start(b, "descriptors", PAWL_FOREVER, 0, NULL);
        pawl_event_fd(b);
        pawl_lost_fd(lock);
        assert_int_equal(next_event(b, 20).type, 0);
        if (i % 2) call_release(lock);
        if (i % 3) pawl_release(pending, 0, NULL);
        pawl_close(b);
        pawl_close(a);
        if (i == 1) before = descriptors(); /* the first may keep something for good */
    }
    assert_int_equal(descriptors(), before);
}

static void *start_and_release(void *data) {
    for (int i = 0; i < 200; i++) {
        char name[24];
        snprintf(name, sizeof name, "let-go/%d", i % 7);
        pawl_release(start(data, name, PAWL_FOREVER, 0, NULL), 0, NULL);
    }
    return NULL;
}

static long counted(const char *what) {
    static char text[1 << 20];
    assert_true(pawl_metrics(text, sizeof text) < sizeof text);
    const char *at = strstr(text, what);
    return at ? strtol(at + strlen(what), NULL, 10) : 0;
}

/* While the client's thread asks for them. */
static void let_go_while_asked_for(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, start_and_release, client), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    pawl_close(client);
    assert_int_equal(counted("pawl_lock_waiters{class=\"let-go\"} "), 0);
    assert_int_equal(counted("pawl_locks_held{class=\"let-go\"} "), 0);
}

const struct contract_case event_cases[] = {
    CASE(event_of_a_grant, ALWAYS),
    CASE(event_after_waiting, ALWAYS),
    CASE(event_of_a_try, ALWAYS),
    CASE(event_of_a_failure, ALWAYS),
    CASE(release_cancels_what_is_pending, ALWAYS),
    CASE(many_at_once, ALWAYS),
    CASE(let_go_while_asked_for, ALWAYS),
    CASE(loss_is_told_everywhere, ALWAYS),
    CASE(loss_of_a_blocking_lock, ALWAYS),
    CASE(renewed_while_held, TTL),
    CASE(no_descriptor_remains, ALWAYS),
    {0},
};
