/* oom.c: the calls of pawl.h over mem: while memory runs out: the n-th allocation fails, for every n, once or from then
 * on. Nothing crashes, every failure has a code and a text, and behind it nothing is left. The linker hands the
 * library's allocations to this file (--wrap). */
#include "clock.h"
#include "pawl.h"
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static long fail_at, calls; /* fail_at 0: never */
static int for_good;

static int fails(void) {
    long n = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST), at = __atomic_load_n(&fail_at, __ATOMIC_SEQ_CST);
    if (!at || (n != at && !(for_good && n > at))) return 0;
    errno = ENOMEM;
    return 1;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);

void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *old, size_t size) { return fails() ? NULL : __real_realloc(old, size); }
char *__wrap_strdup(const char *text) { return fails() ? NULL : __real_strdup(text); }
char *__wrap_strndup(const char *text, size_t size) { return fails() ? NULL : __real_strndup(text, size); }

static void set_failure(long at, int good) {
    __atomic_store_n(&calls, 0, __ATOMIC_SEQ_CST);
    for_good = good;
    __atomic_store_n(&fail_at, at, __ATOMIC_SEQ_CST);
}

/* A call went well, or says that it is out of memory. */
static int checked(int code, const pawl_error *error, const char *what) {
    if (code != PAWL_OK && (code != PAWL_EINTERNAL || error->code != code || !strstr(error->text, "memory")))
        fail_msg("%s at allocation %ld%s: %d, %d '%s'", what, fail_at, for_good ? " and on" : "", code, error->code,
                 error->text);
    return code;
}

static pawl_client *open_client(void) {
    pawl_client *client = NULL;
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    options.label = "oom";
    checked(pawl_open("mem:oom", &options, &client, &error), &error, "pawl_open");
    return client;
}

static pawl_lock *acquire(pawl_client *client, const char *name, int expected) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock = NULL;
    options.wait_ms = expected == PAWL_OK ? 0 : 20;
    options.label = "of its own";
    int code = client ? pawl_acquire(client, name, &options, &lock, &error) : PAWL_OK;
    if (code != expected || code == PAWL_OK) checked(client ? code : PAWL_OK, &error, "pawl_acquire");
    return lock;
}

static void release(pawl_lock *lock) {
    pawl_error error = PAWL_ERROR_INIT;
    if (lock) checked(pawl_release(lock, 1000, &error), &error, "pawl_release");
}

static void event_form(pawl_client *client) {
    pawl_event event = PAWL_EVENT_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock = NULL;
    if (!client || checked(pawl_acquire_start(client, "oom/event", NULL, NULL, &lock, &error), &error, "start")) return;
    for (int64_t end = clock_after_ms(clock_now_ns(), 10000); !pawl_next_event(client, &event);) {
        if (clock_now_ns() > end) fail_msg("no event at allocation %ld", fail_at);
        struct pollfd p = {.fd = pawl_event_fd(client), .events = POLLIN};
        poll(&p, 1, 100);
    }
    if (event.type == PAWL_FAILED) assert_int_equal(event.code, PAWL_EINTERNAL);
    else assert_int_equal(event.type, PAWL_GRANTED);
    release(lock);
}

static int count(const pawl_entry *entry, void *data) {
    (void)entry;
    ++*(int *)data;
    return 0;
}

static void everything(void) {
    pawl_error error = PAWL_ERROR_INIT;
    int entries = 0;
    pawl_client *a = open_client(), *b = open_client();
    pawl_lock *held = acquire(a, "oom", PAWL_OK);
    if (held) release(acquire(b, "oom", PAWL_ETIMEOUT)); /* waits, with the hub */
    if (a) checked(pawl_inspect(a, NULL, 1000, count, &entries, &error), &error, "pawl_inspect");
    event_form(a);
    if (held) pawl_lost_fd(held);
    release(held);
    acquire(b, "oom/closed", PAWL_OK); /* given back by pawl_close */
    pawl_close(a);
    pawl_close(b);
}

static void nothing_is_left(void) {
    int entries = 0;
    pawl_client *client = open_client();
    assert_int_equal(pawl_inspect(client, NULL, 1000, count, &entries, NULL), PAWL_OK);
    if (entries) fail_msg("%d entries are left behind a failure of allocation %ld", entries, fail_at);
    pawl_close(client);
}

static long every_allocation_fails(int good) {
    long n = 0, made;
    do {
        set_failure(++n, good);
        everything();
        made = __atomic_load_n(&calls, __ATOMIC_SEQ_CST);
        __atomic_store_n(&fail_at, 0, __ATOMIC_SEQ_CST);
        if (!good) nothing_is_left();
    } while (made >= n);
    return n;
}

static void each_allocation_fails_once(void **state) {
    (void)state;
    assert_in_range(every_allocation_fails(0), 30, 2000);
}

static void memory_stays_short(void **state) {
    (void)state;
    assert_in_range(every_allocation_fails(1), 30, 2000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_fails_once),
        cmocka_unit_test(memory_stays_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
