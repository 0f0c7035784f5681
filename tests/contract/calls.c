#include "calls.h"
#include "clock.h"
#include "mem/mem.h"
#include "ran.h"
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- helpers --- */

int64_t call_now_ms(void) { return clock_now_ns() / NS_PER_MS; }
int64_t call_ran_ms(void) { return ran_ns() / NS_PER_MS; }

pawl_client *call_open(struct suite *suite) {
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client = NULL;
    options.label = "contract";
    options.ttl_ms = 5000;
    if (pawl_open(suite->fixture->url(), &options, &client, &error)) fail_msg("pawl_open: %s", error.text);
    return client;
}

pawl_lock *call_acquire(pawl_client *client, const char *name, int64_t wait_ms) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock = NULL;
    options.wait_ms = wait_ms;
    if (pawl_acquire(client, name, &options, &lock, &error)) fail_msg("pawl_acquire: %d %s", error.code, error.text);
    return lock;
}

int call_try(pawl_client *client, const char *name) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_lock *lock = NULL;
    options.wait_ms = 0;
    int code = pawl_acquire(client, name, &options, &lock, NULL);
    if (code == PAWL_OK) call_release(lock);
    return code;
}

void call_release(pawl_lock *lock) {
    pawl_error error = PAWL_ERROR_INIT;
    if (pawl_release(lock, AWAIT_MS, &error)) fail_msg("pawl_release: %s", error.text);
}

static int count_entry(const pawl_entry *entry, void *data) {
    (void)entry;
    ++*(int *)data;
    return 0;
}

int call_entries(pawl_client *client, const char *name) {
    pawl_error error = PAWL_ERROR_INIT;
    int n = 0;
    if (pawl_inspect(client, name, AWAIT_MS, count_entry, &n, &error)) fail_msg("pawl_inspect: %s", error.text);
    return n;
}

void call_await_entries(pawl_client *client, const char *name, int n) {
    int64_t end = call_now_ms() + AWAIT_MS;
    int seen;
    while ((seen = call_entries(client, name)) != n && call_now_ms() < end) poll(NULL, 0, 5);
    assert_int_equal(seen, n);
}

bool call_readable(int fd, int64_t ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, (int)ms) == 1;
}

static void *acquire_in_thread(void *data) {
    struct call_thread *t = data;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    options.wait_ms = t->wait_ms;
    options.cancel_fd = t->cancel_fd;
    options.shared = t->shared;
    int64_t start = call_now_ms();
    t->code = pawl_acquire(t->client, t->name, &options, &t->lock, NULL);
    t->took_ms = call_now_ms() - start;
    t->token = t->code == PAWL_OK ? pawl_token(t->lock) : 0;
    return NULL;
}

void call_thread_start(struct call_thread *t) {
    if (t->wait_ms == 0) t->wait_ms = PAWL_FOREVER;
    if (t->cancel_fd == 0) t->cancel_fd = -1;
    assert_int_equal(pthread_create(&t->thread, NULL, acquire_in_thread, t), 0);
}

void call_thread_join(struct call_thread *t) { assert_int_equal(pthread_join(t->thread, NULL), 0); }

/* The library looks for modules beside its own file, which is this program: a link makes the module be there. */
void contract_prepare(struct suite *suite, const char *module) {
    char self[PATH_MAX] = "", path[2 * PATH_MAX], target[PATH_MAX];
    (void)suite;
    mem_clock = clock_now_ns;
    if (!module || !realpath(module, target) || readlink("/proc/self/exe", self, sizeof self - 1) < 0) return;
    snprintf(path, sizeof path, "%s/%s", dirname(self), suite->fixture->name);
    mkdir(path, 0755);
    snprintf(path + strlen(path), sizeof path - strlen(path), "/pawl-%s.so", suite->fixture->name);
    (void)!symlink(target, path);
}

const struct contract_case *const contract_lists[] = {call_cases,    argument_cases, event_cases,
                                                      process_cases, away_cases,     NULL};

/* --- the blocking calls --- */

static void acquire_and_release(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    pawl_lock *lock = call_acquire(client, "calls/one", PAWL_FOREVER);
    int64_t token = pawl_token(lock);
    assert_in_range(token, 1, (INT64_C(1) << 53) - 1);
    assert_int_equal(pawl_check(lock), PAWL_OK);
    assert_true(pawl_remaining_ms(lock) > 1000);
    assert_string_equal(pawl_name(lock), "calls/one");
    assert_int_equal(pawl_verify(lock, AWAIT_MS, NULL), PAWL_OK);
    assert_int_equal(call_entries(client, "calls/one"), 1);
    call_release(lock);
    assert_int_equal(call_entries(client, "calls/one"), 0);
    lock = call_acquire(client, "calls/one", 0);
    assert_true(pawl_token(lock) > token);
    call_release(lock);
    pawl_close(client);
}

static void nothing_is_allowed(void **state) {
    pawl_client *client = NULL, *c;
    pawl_lock *lock = NULL;
    pawl_broken broken = PAWL_BROKEN_INIT;
    int n = 0;
    assert_int_equal(pawl_open(NULL, NULL, &client, NULL), PAWL_EINVALID);
    assert_null(client);
    assert_int_equal(pawl_open("mem:nothing", NULL, &client, NULL), PAWL_OK);
    pawl_close(client);
    c = call_open(*state);
    assert_int_equal(pawl_acquire(c, NULL, NULL, &lock, NULL), PAWL_EINVALID);
    assert_int_equal(pawl_acquire_start(c, NULL, NULL, NULL, &lock, NULL), PAWL_EINVALID);
    assert_int_equal(pawl_break(c, NULL, 0, AWAIT_MS, &broken, NULL), PAWL_EINVALID);
    assert_null(lock);
    assert_int_equal(pawl_acquire(c, "nothing", NULL, &lock, NULL), PAWL_OK);
    assert_int_equal(pawl_verify(lock, AWAIT_MS, NULL), PAWL_OK);
    assert_int_equal(pawl_inspect(c, NULL, AWAIT_MS, count_entry, &n, NULL), PAWL_OK);
    assert_true(n > 0);
    assert_int_equal(pawl_release(lock, AWAIT_MS, NULL), PAWL_OK);
    pawl_close(c);
    assert_int_equal(pawl_release(NULL, 0, NULL), PAWL_OK);
    pawl_close(NULL);
    pawl_forget(NULL);
}

static void try_is_busy(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_lock *lock = call_acquire(a, "busy", 0), *other = NULL;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    options.wait_ms = 0;
    int64_t start = call_ran_ms();
    assert_int_equal(pawl_acquire(b, "busy", &options, &other, &error), PAWL_EBUSY);
    assert_int_equal(pawl_acquire(a, "busy", &options, &other, NULL), PAWL_EBUSY);
    assert_true(call_ran_ms() - start < 2000);
    assert_null(other);
    assert_int_equal(error.code, PAWL_EBUSY);
    assert_non_null(strstr(error.text, "busy"));
    call_release(lock);
    assert_int_equal(call_try(b, "busy"), PAWL_OK);
    pawl_close(a);
    pawl_close(b);
}

static void wait_ends_in_time(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_lock *lock = call_acquire(a, "timeout", 0), *other = NULL;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    options.wait_ms = 2000;
    int64_t start = call_now_ms(), ran = call_ran_ms();
    assert_int_equal(pawl_acquire(b, "timeout", &options, &other, &error), PAWL_ETIMEOUT);
    assert_true(call_now_ms() - start >= 2000 && call_ran_ms() - ran < 5000);
    assert_non_null(strstr(error.text, "waited"));
    call_await_entries(a, "timeout", 1); /* it left the queue */
    call_release(lock);
    assert_int_equal(call_try(b, "timeout"), PAWL_OK);
    pawl_close(a);
    pawl_close(b);
}

static void wait_is_cancelled(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_lock *lock = call_acquire(a, "cancel", 0);
    struct call_thread t = {.client = b, .name = "cancel", .cancel_fd = eventfd(0, EFD_CLOEXEC)};
    call_thread_start(&t);
    assert_false(call_readable(t.cancel_fd, 100)); /* time to wait in earnest */
    int64_t start = call_ran_ms();
    eventfd_write(t.cancel_fd, 1);
    call_thread_join(&t);
    assert_int_equal(t.code, PAWL_ECANCELLED);
    assert_true(call_ran_ms() - start < 2000);
    assert_true(call_readable(t.cancel_fd, 0)); /* polled, never read */
    call_await_entries(a, "cancel", 1);
    call_release(lock);
    assert_int_equal(call_try(b, "cancel"), PAWL_OK);
    close(t.cancel_fd);
    pawl_close(a);
    pawl_close(b);
}

/* Joins the one that ends first: which it is depends on the machine. */
static struct call_thread *join_either(struct call_thread *a, struct call_thread *b) {
    for (;; poll(NULL, 0, 1)) {
        if (pthread_tryjoin_np(a->thread, NULL) == 0) return a;
        if (pthread_tryjoin_np(b->thread, NULL) == 0) return b;
    }
}

static void waiter_gets_it(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_lock *lock = call_acquire(a, "waiter", 0);
    int64_t token = pawl_token(lock);
    struct call_thread other = {.client = b, .name = "waiter"}, same = {.client = a, .name = "waiter"};
    call_thread_start(&other);
    poll(NULL, 0, 50);
    call_thread_start(&same);
    poll(NULL, 0, 50);
    call_release(lock);
    struct call_thread *first = join_either(&other, &same), *second = first == &other ? &same : &other;
    assert_int_equal(first->code, PAWL_OK);
    assert_true(first->token > token);
    call_release(first->lock);
    call_thread_join(second);
    assert_int_equal(second->code, PAWL_OK);
    assert_true(second->token > first->token);
    call_release(second->lock);
    pawl_close(a);
    pawl_close(b);
}

/* A ttl counts from the request that got the lock, not from the first. */
static void waiting_costs_no_ttl(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_lock *held = call_acquire(a, "late", 0);
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_event event = PAWL_EVENT_INIT;
    pawl_lock *lock;
    options.ttl_ms = suite->backend->caps.ttl_min_ms > 3000 ? suite->backend->caps.ttl_min_ms : 3000;
    assert_int_equal(pawl_acquire_start(b, "late", &options, NULL, &lock, NULL), PAWL_OK);
    assert_false(call_readable(pawl_event_fd(b), options.ttl_ms + 500));
    call_release(held);
    assert_true(call_readable(pawl_event_fd(b), AWAIT_MS));
    int64_t left = pawl_remaining_ms(lock);
    while (!pawl_next_event(b, &event)) continue;
    assert_int_equal(event.type, PAWL_GRANTED);
    assert_in_range(left, 1, options.ttl_ms);
    assert_int_equal(pawl_check(lock), PAWL_OK);
    assert_false(call_readable(pawl_lost_fd(lock), options.ttl_ms)); /* and is renewed */
    call_release(lock);
    pawl_close(a);
    pawl_close(b);
}

struct crowd {
    pawl_client *client;
    int *inside, *entered;
    int64_t *last;
    bool wrong;
};

static void *work(void *data) {
    struct crowd *c = data;
    for (int i = 0; i < 20; i++) {
        pawl_lock *lock;
        if (pawl_acquire(c->client, "crowd", NULL, &lock, NULL)) c->wrong = true;
        else {
            c->wrong =
                c->wrong || __atomic_fetch_add(c->inside, 1, __ATOMIC_SEQ_CST) != 0 || pawl_token(lock) <= *c->last;
            *c->last = pawl_token(lock);
            ++*c->entered;
            __atomic_fetch_sub(c->inside, 1, __ATOMIC_SEQ_CST);
            if (pawl_release(lock, AWAIT_MS, NULL)) c->wrong = true;
        }
    }
    return NULL;
}

static void one_at_a_time(void **state) {
    struct suite *suite = *state;
    pawl_client *clients[2] = {call_open(suite), call_open(suite)};
    pthread_t threads[6];
    struct crowd crowd[6];
    int inside = 0, entered = 0;
    int64_t last = 0;
    for (int i = 0; i < 6; i++) {
        crowd[i] = (struct crowd){clients[i % 2], &inside, &entered, &last, false};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &crowd[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        assert_false(crowd[i].wrong);
    }
    assert_int_equal(entered, 120);
    pawl_close(clients[0]);
    pawl_close(clients[1]);
}

static void shared_pass_together(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    struct call_thread r[3] = {{.client = a, .name = "shared", .shared = 1, .wait_ms = 5000},
                               {.client = a, .name = "shared", .shared = 1, .wait_ms = 5000},
                               {.client = b, .name = "shared", .shared = 1, .wait_ms = 5000}};
    for (int i = 0; i < 3; i++) call_thread_start(&r[i]);
    for (int i = 0; i < 3; i++) {
        call_thread_join(&r[i]);
        assert_int_equal(r[i].code, PAWL_OK);
        for (int j = 0; j < i; j++) assert_int_not_equal(r[i].token, r[j].token);
    }
    assert_int_equal(call_try(a, "shared"), PAWL_EBUSY);
    assert_int_equal(call_try(b, "shared"), PAWL_EBUSY);
    for (int i = 0; i < 3; i++) call_release(r[i].lock);
    assert_int_equal(call_try(b, "shared"), PAWL_OK);
    pawl_close(a);
    pawl_close(b);
}

static void shared_is_not_offered(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock = NULL;
    options.shared = 1;
    assert_int_equal(pawl_acquire(client, "shared", &options, &lock, &error), PAWL_EUNSUPPORTED);
    assert_null(lock);
    pawl_close(client);
}

static void close_gives_back(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    call_acquire(a, "close/1", 0);
    call_acquire(a, "close/2", 0);
    assert_int_equal(call_try(b, "close/1"), PAWL_EBUSY);
    pawl_close(a);
    assert_int_equal(call_try(b, "close/1"), PAWL_OK);
    assert_int_equal(call_try(b, "close/2"), PAWL_OK);
    pawl_close(b);
}

static void guarantees_are_told(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    char json[2048], small[8];
    assert_int_equal(pawl_guarantees(client, json, sizeof json, NULL), PAWL_OK);
    assert_true(json[0] == '{' && strstr(json, suite->backend->caps.scheme));
    assert_int_equal(pawl_guarantees(client, small, sizeof small, NULL), PAWL_EINVALID);
    pawl_close(client);
}

/* Held by a for a short ttl; b breaks it. false: not to be had here, and the lock is still held. */
static bool broken(pawl_client *a, pawl_client *b, unsigned flags, pawl_lock **ret_lock, pawl_broken *ret,
                   int64_t *ret_since_ms) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    options.ttl_ms = 2000;
    if (pawl_acquire(a, "stuck", &options, ret_lock, &error)) fail_msg("pawl_acquire: %s", error.text);
    *ret_since_ms = call_now_ms();
    int code = pawl_break(b, "stuck", flags, AWAIT_MS, ret, &error);
    if (code == PAWL_EUNSUPPORTED) return false;
    if (code) fail_msg("pawl_break: %s", error.text);
    assert_true(ret->was_held);
    assert_true(ret->token == 0 || ret->token == pawl_token(*ret_lock));
    return true;
}

static void a_broken_lock_is_lost_and_the_next_token_is_higher(void **state) {
    struct suite *suite = *state;
    pawl_client *a = call_open(suite), *b = call_open(suite);
    pawl_broken result = PAWL_BROKEN_INIT;
    pawl_lock *lock, *next;
    int64_t since;
    for (unsigned at_once = 0; at_once < 2; at_once++) {
        if (!broken(a, b, at_once ? PAWL_BREAK_AT_ONCE : 0, &lock, &result, &since)) {
            assert_int_equal(pawl_verify(lock, AWAIT_MS, NULL), PAWL_OK);
            call_release(lock);
            break;
        }
        int64_t token = pawl_token(lock);
        if (at_once) assert_int_equal(result.free_in_ms, 0);
        next = call_acquire(b, "stuck", AWAIT_MS);
        assert_true(call_now_ms() - since >= result.free_in_ms - 20);
        assert_true(pawl_token(next) > token);
        if (result.free_in_ms) assert_int_equal(pawl_check(lock), PAWL_ELOST); /* before another began */
        assert_true(call_readable(pawl_lost_fd(lock), AWAIT_MS));
        assert_int_equal(pawl_release(lock, AWAIT_MS, NULL), PAWL_ELOST);
        assert_int_equal(pawl_verify(next, AWAIT_MS, NULL), PAWL_OK);
        call_release(next);
        assert_int_equal(pawl_break(b, "stuck", 0, AWAIT_MS, &result, NULL), PAWL_OK);
        assert_false(result.was_held);
    }
    assert_int_equal(pawl_break(b, "", 0, AWAIT_MS, &result, NULL), PAWL_EINVALID);
    pawl_close(a);
    pawl_close(b);
}

struct examined {
    int n, unsafe;
    char said[64][200]; /* rule and object: a rule may look at many */
    bool lock_is_fine;
};

static int examine(const pawl_finding *f, void *data) {
    struct examined *all = data;
    bool bad = f->level == PAWL_LEVEL_WARNING || f->level == PAWL_LEVEL_UNSAFE;
    assert_true(*f->about && *f->seen && all->n < 64);
    snprintf(all->said[all->n], sizeof all->said[0], "%s %s", f->id, f->about);
    for (int i = 0; i < all->n; i++) assert_string_not_equal(all->said[i], all->said[all->n]);
    all->n++;
    if (bad != (*f->why && *f->fix)) fail_msg("%s: level %d, why '%s', fix '%s'", f->id, f->level, f->why, f->fix);
    if (strcmp(f->id, "C01") == 0) all->lock_is_fine = f->level < PAWL_LEVEL_UNSAFE;
    return 0;
}

static void doctor_finds_a_lock_to_take(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    struct examined all = {.n = 0};
    pawl_error error = PAWL_ERROR_INIT;
    if (pawl_doctor(client, AWAIT_MS, examine, &all, &error)) fail_msg("pawl_doctor: %s", error.text);
    assert_true(all.lock_is_fine);
    assert_true(all.n >= 2);
    assert_int_equal(call_entries(client, "pawl-doctor"), 0);
    pawl_close(client);
}

const struct contract_case call_cases[] = {
    CASE(acquire_and_release, ALWAYS),
    CASE(nothing_is_allowed, ALWAYS),
    CASE(try_is_busy, ALWAYS),
    CASE(wait_ends_in_time, ALWAYS),
    CASE(wait_is_cancelled, ALWAYS),
    CASE(waiter_gets_it, ALWAYS),
    CASE(waiting_costs_no_ttl, TTL),
    CASE(one_at_a_time, ALWAYS),
    CASE(shared_pass_together, SHARED),
    CASE(shared_is_not_offered, NOT_SHARED),
    CASE(close_gives_back, ALWAYS),
    CASE(guarantees_are_told, ALWAYS),
    CASE(doctor_finds_a_lock_to_take, ALWAYS),
    CASE(a_broken_lock_is_lost_and_the_next_token_is_higher, ALWAYS),
    {0},
};
