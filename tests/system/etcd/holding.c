/* holding.c: one member: what is held is kept, its loss is noticed, and nothing is left behind. */
#include "common.h"
#include "ran.h"
#include <poll.h>

#define SHORT_MS 3000

static void test_the_lease_is_kept_and_given_back(void **state) {
    (void)state;
    pawl_client *c = client(url, SHORT_MS), *d = client(url, SHORT_MS);
    pawl_lock *lock = take(c, "n", 0);
    pawl_error error = PAWL_ERROR_INIT;
    assert_true(stays_held(lock, SHORT_MS + 1000));
    assert_int_equal(try_it(d, "n", &error), PAWL_EBUSY);
    assert_int_equal(pawl_verify(lock, 5000, &error), PAWL_OK);
    assert_int_equal(pawl_release(lock, 5000, &error), PAWL_OK);
    pawl_close(c);
    pawl_close(d);
    assert_string_equal(etcdctl("lease list"), "found 0 leases\n");
}

static void test_a_lock_removed_by_hand_is_lost_at_once(void **state) {
    (void)state;
    pawl_client *c = client(url, SHORT_MS);
    pawl_lock *lock = take(c, "n", 0), *other = take(c, "other", 0);
    pawl_error error = PAWL_ERROR_INIT;
    assert_true(stays_held(lock, SHORT_MS / 3 + 500)); /* it is watched from the first renewal on */
    etcdctl("del --prefix /locks/n/");
    assert_true(lost_within(lock, 20000)); /* renewals would not tell */
    assert_int_equal(pawl_release(lock, 5000, &error), PAWL_ELOST);
    assert_non_null(strstr(error.text, "removed from the service"));
    assert_true(stays_held(other, 100)); /* on the same lease */
    lock = take(c, "n", 0);
    etcdctl("del --prefix /locks/n/");     /* before it is watched: */
    assert_true(lost_within(lock, 20000)); /* the watch begins where the grant was */
    pawl_release(lock, 5000, NULL);
    assert_int_equal(pawl_release(other, 5000, &error), PAWL_OK);
    pawl_close(c);
}

static void test_a_lock_removed_while_nobody_listens_is_lost(void **state) {
    (void)state;
    char at[64];
    struct proxy *p = proxy_start(members[0].port);
    snprintf(at, sizeof at, "etcd://127.0.0.1:%d/locks/", proxy_port(p));
    pawl_client *c = client(at, SHORT_MS);
    pawl_lock *lock = take(c, "n", 0);
    assert_true(stays_held(lock, SHORT_MS / 3 + 500));
    proxy_cut(p, true);
    etcdctl("del --prefix /locks/n/");
    proxy_cut(p, false);
    assert_true(lost_within(lock, SHORT_MS)); /* the stream is opened anew, and begins where it had ended */
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
    proxy_stop(p);
}

static double received(const char *method) { return metric("grpc_server_msg_received_total", method); }

static void reaches(const char *method, double n, pawl_lock *held) {
    for (int i = 0; received(method) < n; i++) {
        assert_true(i < 300);
        assert_true(stays_held(held, 100));
    }
}

/* For a watch that begins far back the server reads all that was written since: it begins now, and the holder asks. */
static void test_a_watch_begins_where_the_server_need_not_read_much(void **state) {
    (void)state;
    char at[64];
    struct proxy *p = proxy_start(members[0].port);
    snprintf(at, sizeof at, "etcd://127.0.0.1:%d/locks/", proxy_port(p));
    pawl_client *c = client(at, 2 * TTL_MS), *d = client(url, TTL_MS);
    pawl_lock *kept = take(c, "kept", 0), *removed = take(c, "removed", 0);
    pawl_error error = PAWL_ERROR_INIT;
    reaches("\"Watch\"", 2, kept);
    for (int i = 0; i < 5001; i++) assert_int_equal(try_it(d, "busy", &error), PAWL_OK); /* two revisions each */
    pawl_close(d);
    assert_int_equal(pawl_verify(kept, 20000, &error), PAWL_OK); /* so the client knows how far the store is */
    double before = received("\"Txn\"");
    proxy_cut(p, true);
    etcdctl("del --prefix /locks/removed/");
    proxy_cut(p, false);
    assert_true(lost_within(removed, 20000)); /* renewals would not tell */
    reaches("\"Txn\"", before + 2,
            kept); /* one for each: a watch that begins in the past asks for none that is there */
    pawl_release(removed, 5000, NULL);
    etcdctl("del --prefix /locks/kept/");
    assert_true(lost_within(kept, 20000));
    pawl_release(kept, 5000, NULL);
    pawl_close(c);
    proxy_stop(p);
}

static void test_what_is_taken_away_is_free_and_that_is_said(void **state) {
    (void)state;
    pawl_client *c = client(url, SHORT_MS);
    pawl_lock *lock = take(c, "n", 0);
    shell("\"$PAWL_BIN\" break --json -u '%s' n | grep -q '\"free_in_ms\":0,\"hint\":\"its holder is told at once, or'",
          url);
    shell("\"$PAWL_BIN\" run -u '%s' n true", url);
    assert_true(lost_within(lock, 20000)); /* at its first renewal */
    lock = take(c, "n", 0);
    shell("\"$PAWL_BIN\" break -u '%s' n | grep -q 'free now; its holder is told at once, or'", url);
    shell("\"$PAWL_BIN\" break --json -u '%s' n | grep -q '\"broken\":false,.*\"hint\":null'", url);
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

static void test_a_revoked_lease_is_lost_at_once(void **state) {
    (void)state;
    char id[32] = "";
    pawl_client *c = client(url, TTL_MS);
    pawl_lock *lock = take(c, "n", 0);
    assert_true(stays_held(lock, TTL_MS / 3 + 500));
    assert_int_equal(sscanf(etcdctl("lease list"), "found 1 leases %31s", id), 1);
    etcdctl("lease revoke %s", id);
    assert_true(lost_within(lock, 1900));
    pawl_release(lock, 5000, NULL);
    lock = take(c, "n", 0); /* a new lease */
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

/* A shared lease keeps its deadline: a grant proves nothing about when the lease ends. */
static void test_a_lock_gets_the_deadline_that_its_lease_has(void **state) {
    (void)state;
    pawl_client *c = client(url, TTL_MS);
    pawl_lock *first = take(c, "first", 0);
    poll(NULL, 0, 1500);
    pawl_lock *second = take(c, "second", 0);
    assert_in_range(pawl_remaining_ms(second), 1, TTL_MS - 1400);
    assert_true(pawl_remaining_ms(second) <= pawl_remaining_ms(first) + 1);
    pawl_release(first, 5000, NULL);
    pawl_release(second, 5000, NULL);
    pawl_close(c);
}

static int64_t revision(void) {
    const char *at = strstr(etcdctl("get x -w json"), "\"revision\":");
    return at ? atoll(at + strlen("\"revision\":")) : -1;
}

static bool nothing_is_left(void *data) {
    (void)data;
    return locks_keys("/locks/") == 0;
}

static void test_an_attempt_that_nobody_heard_the_end_of_leaves_nothing(void **state) {
    (void)state;
    char at[64];
    struct proxy *p = proxy_start(members[0].port);
    snprintf(at, sizeof at, "etcd://127.0.0.1:%d/locks/", proxy_port(p));
    pawl_client *c = client(at, TTL_MS), *d = client(url, TTL_MS);
    pawl_lock *lock = take(c, "other", 0);
    pawl_error error = PAWL_ERROR_INIT;
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_lock *never;
    o.wait_ms = 300;
    int64_t before = revision();
    proxy_drop(p, PROXY_TO_CLIENT, true);
    assert_int_equal(pawl_acquire(c, "n", &o, &never, &error), PAWL_EUNREACHABLE);
    assert_int_equal(revision() - before, 2); /* it had happened, and so had the undo, as well as it could be told */
    proxy_drop(p, PROXY_TO_CLIENT, false);
    assert_int_equal(pawl_release(lock, 5000, NULL), PAWL_OK);
    assert_true(server_until(nothing_is_left, NULL, 3000)); /* long before the lease ends */
    lock = take(d, "n", 0);
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
    pawl_close(d);
    assert_string_equal(etcdctl("lease list"), "found 0 leases\n");
    proxy_stop(p);
}

static bool key_ends_with(const char *suffix) {
    char key[512];
    snprintf(key, sizeof key, "%s", etcdctl("get --prefix --keys-only /locks/n/"));
    key[strcspn(key, "\n")] = 0;
    return strlen(key) > strlen(suffix) && strcmp(key + strlen(key) - strlen(suffix), suffix) == 0;
}

/* etcd's index keeps each key that ever was until it compacts, and who asks for a lock passes all of its keys. */
static void test_a_lock_that_is_taken_again_uses_its_key_again(void **state) {
    (void)state;
    char at[64];
    struct proxy *p = proxy_start(members[0].port);
    snprintf(at, sizeof at, "etcd://127.0.0.1:%d/locks/", proxy_port(p));
    pawl_client *c = client(at, TTL_MS), *d = client(url, TTL_MS);
    pawl_error error = PAWL_ERROR_INIT;
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_lock *lock, *never;
    int64_t token = 0;
    for (int i = 0; i < 3; i++) {
        lock = take(c, "n", 0);
        assert_true(key_ends_with("-1"));
        assert_true(pawl_token(lock) > token);
        token = pawl_token(lock);
        assert_int_equal(pawl_release(lock, 5000, NULL), PAWL_OK);
        assert_int_equal(try_it(d, "n", &error), PAWL_OK);
    }
    o.wait_ms = 300;
    proxy_drop(p, PROXY_TO_CLIENT, true);
    assert_int_equal(pawl_acquire(c, "n", &o, &never, &error), PAWL_EUNREACHABLE);
    proxy_drop(p, PROXY_TO_CLIENT, false);
    lock = take(c, "n", 10000); /* something of that attempt may still come: not under its key */
    assert_true(key_ends_with("-2"));
    assert_true(pawl_token(lock) > token);
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
    pawl_close(d);
    proxy_stop(p);
}

static void test_a_failed_try_leaves_no_key_and_no_lease(void **state) {
    (void)state;
    pawl_client *c = client(url, TTL_MS);
    pawl_lock *lock = take(c, "n", 0);
    pawl_error error = PAWL_ERROR_INIT;
    for (int i = 0; i < 5; i++) {
        pawl_client *d = client(url, TTL_MS);
        assert_int_equal(try_it(d, "n", &error), PAWL_EBUSY);
        pawl_close(d);
    }
    assert_int_equal(locks_keys("/locks/"), 1);
    assert_non_null(strstr(etcdctl("lease list"), "found 1 leases"));
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

static char remarked[512];
static void observe(const pawl_event *event, const char *name, void *data) {
    (void)name, (void)data;
    if (event->type == PAWL_REMARK) snprintf(remarked, sizeof remarked, "%s", event->text);
}

static pawl_lock *take_observed(int64_t ttl_ms, pawl_client **ret) {
    pawl_options o = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    o.ttl_ms = ttl_ms;
    o.observe = observe;
    *remarked = 0;
    if (pawl_open(url, &o, ret, &error)) fail_msg("%s", error.text);
    return take(*ret, "n", 0);
}

static void test_a_larger_least_ttl_is_used_and_told(void **state) {
    (void)state;
    pawl_client *c;
    server_stop(&members[0]);
    server_start_etcd(&members[0], (const char *const[]){"--heartbeat-interval=200", "--election-timeout=4000", NULL});
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d/locks/", members[0].port);
    pawl_lock *lock = take_observed(5000, &c);
    assert_non_null(strstr(remarked, "for 6 s at the least"));
    assert_in_range(pawl_remaining_ms(lock), 5100, 6000);
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
    lock = take_observed(15000, &c);
    assert_string_equal(remarked, "");
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

static void test_a_short_ttl_is_remarked(void **state) {
    (void)state;
    pawl_client *c;
    pawl_lock *lock = take_observed(4000, &c);
    assert_non_null(strstr(remarked, "5 s or more is advised"));
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
    lock = take_observed(5000, &c);
    assert_string_equal(remarked, "");
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

static bool it_works(void *data) { return access(data, R_OK) == 0; }

/* The command hears nothing of TERM, and is dead all the same before its lease can have ended. */
static void test_a_frozen_service_never_lets_the_command_outlive_the_lease(void **state) {
    (void)state;
    char acts[96], text[1024] = "", act[32] = "", last[32] = "";
    snprintf(acts, sizeof acts, "%s/acts", members[0].dir);
    snprintf(text, sizeof text,
             "%s run -t 3s -u '%s' n -- sh -c 'trap \"\" TERM; while :; do date +%%s%%6N >>%s; sleep 0.02; done' "
             "2>/dev/null; echo $?",
             getenv("PAWL_BIN"), url, acts);
    FILE *run = popen(text, "r");
    assert_non_null(run);
    assert_true(server_until(it_works, acts, 20000));
    poll(NULL, 0, 1500); /* into the time between two renewals */
    int64_t froze_us = clock_wall_us(), since = clock_now_ns(), ran = ran_ns();
    server_kill(&members[0], SIGSTOP);
    assert_non_null(fgets(text, sizeof text, run));
    pclose(run);
    server_kill(&members[0], SIGCONT);
    FILE *file = fopen(acts, "r");
    assert_non_null(file);
    while (fgets(act, sizeof act, file))
        strcpy(last, act); /* added to, line by line: whoever is killed in between leaves it whole */
    fclose(file);
    assert_string_equal(text, "122\n");
    int64_t stood_us = (clock_now_ns() - since - (ran_ns() - ran)) / 1000; /* the machine: it could not kill then */
    assert_in_range(atoll(last), froze_us, froze_us + 3000000 + stood_us);
}

/* Longer than any key of ours: another program may have written it. */
static void test_a_long_key_of_another_program_is_broken(void **state) {
    (void)state;
    pawl_client *c = client(url, TTL_MS);
    pawl_broken broken = PAWL_BROKEN_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    shell("ETCDCTL_API=3 etcdctl --endpoints=127.0.0.1:%d put \"/locks/n/$(head -c 3000 /dev/zero | tr '\\0' k)\" v "
          ">/dev/null",
          members[0].port);
    assert_int_equal(try_it(c, "n", &error), PAWL_EBUSY);
    if (pawl_break(c, "n", 0, 20000, &broken, &error)) fail_msg("%s", error.text);
    assert_true(broken.was_held);
    assert_int_equal(try_it(c, "n", &error), PAWL_OK);
    pawl_close(c);
}

static int write_down(const pawl_entry *entry, void *data) {
    char *text = data;
    sprintf(text + strlen(text), "%s %s, ", entry->name, entry->held ? "held" : "waits");
    return 0;
}

static const char *inspected(pawl_client *c, const char *name) {
    static char text[1024];
    pawl_error error = PAWL_ERROR_INIT;
    *text = 0;
    if (pawl_inspect(c, name, 20000, write_down, text, &error)) fail_msg("%s", error.text);
    return text;
}

static void break_it(pawl_client *c, const char *name) {
    pawl_broken broken = PAWL_BROKEN_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    if (pawl_break(c, name, 0, 20000, &broken, &error)) fail_msg("%s", error.text);
    assert_true(broken.was_held);
}

/* Whatever keeps a lock from being taken is shown, and can be broken: with no name of its own, or with more '/' in it;
 * between such keys another lock's name may stand. A key that is no lock's is passed over. */
static void test_keys_put_by_hand_are_seen_as_they_hold(void **state) {
    (void)state;
    pawl_client *c = client(url, TTL_MS);
    pawl_error error = PAWL_ERROR_INIT;
    etcdctl("put /locks/ hand");
    etcdctl("put /locks/nightly/ hand");
    assert_int_equal(try_it(c, "nightly", &error), PAWL_EBUSY);
    assert_string_equal(inspected(c, "nightly"), "nightly held, ");
    assert_string_equal(inspected(c, NULL), "nightly held, ");
    break_it(c, "nightly");
    assert_int_equal(try_it(c, "nightly", &error), PAWL_OK);
    etcdctl("put /locks/n/sub/x hand");
    etcdctl("put /locks/n!a/x hand");
    etcdctl("put /locks/n/a hand");
    assert_string_equal(inspected(c, NULL), "n!a held, n held, n waits, ");
    break_it(c, "n");
    assert_string_equal(etcdctl("get --prefix --keys-only /locks/n/"), "/locks/n/a\n\n");
    pawl_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_long_key_of_another_program_is_broken, one, teardown),
        cmocka_unit_test_setup_teardown(test_keys_put_by_hand_are_seen_as_they_hold, one, teardown),
        cmocka_unit_test_setup_teardown(test_the_lease_is_kept_and_given_back, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_lock_removed_by_hand_is_lost_at_once, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_lock_removed_while_nobody_listens_is_lost, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_watch_begins_where_the_server_need_not_read_much, one, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_taken_away_is_free_and_that_is_said, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_revoked_lease_is_lost_at_once, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_lock_gets_the_deadline_that_its_lease_has, one, teardown),
        cmocka_unit_test_setup_teardown(test_an_attempt_that_nobody_heard_the_end_of_leaves_nothing, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_lock_that_is_taken_again_uses_its_key_again, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_failed_try_leaves_no_key_and_no_lease, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_frozen_service_never_lets_the_command_outlive_the_lease, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_larger_least_ttl_is_used_and_told, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_short_ttl_is_remarked, one, teardown),
    };
    return RUN("etcd: holding", tests);
}
