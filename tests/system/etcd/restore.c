/* restore.c: what happens to the store: emptied, restored from a snapshot, compacted, full. */
#include "common.h"
#include <poll.h>

#define HELD_MS 9000

static void test_tokens_rise_over_an_emptied_cluster(void **state) {
    (void)state;
    pawl_client *c = client(url, TTL_MS);
    pawl_lock *lock = take(c, "n", 0);
    int64_t before = pawl_token(lock);
    pawl_release(lock, 5000, NULL);
    lock = take(c, "n", 0);
    assert_in_range(pawl_token(lock) - before, 1, 100); /* nothing happened: it counts */
    before = pawl_token(lock);
    pawl_release(lock, 5000, NULL);
    server_kill(&members[0], SIGKILL);
    shell("rm -rf '%s/data'", members[0].dir);
    server_run(&members[0]);   /* empty: revisions begin again, under the same cluster id */
    lock = take(c, "n", 5000); /* by the same client: its lease is gone, too */
    assert_true(pawl_token(lock) > before);
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

static const char *peer_url(void) {
    const char flag[] = "--listen-peer-urls=";
    for (char **a = members[0].argv; *a; a++)
        if (strncmp(*a, flag, sizeof flag - 1) == 0) return *a + sizeof flag - 1;
    fail_msg("no peer URL");
    return NULL;
}

/* A lock of before the snapshot lives on; one that was taken after it is lost, even if its lease is of before; and
 * whoever takes it then gets a higher token. */
static void restored(const char *cluster_token) {
    const char *d = members[0].dir;
    pawl_client *a = client(url, HELD_MS), *b = client(url, HELD_MS);
    pawl_lock *kept = take(a, "kept", 0);
    etcdctl("snapshot save %s/snapshot 2>/dev/null", d);
    pawl_lock *later = take(a, "later", 0), *gone = take(b, "gone", 0);
    int64_t token = pawl_token(gone);
    assert_true(token > pawl_token(kept));
    server_kill(&members[0], SIGKILL);
    shell("cd '%s' && rm -rf data && ETCDCTL_API=3 etcdctl snapshot restore snapshot --data-dir data %s "
          "--initial-cluster default=%s --initial-advertise-peer-urls %s >/dev/null 2>&1",
          d, cluster_token, peer_url(), peer_url());
    server_run(&members[0]);
    assert_true(lost_within(later, HELD_MS));
    assert_true(lost_within(gone, HELD_MS));
    pawl_release(later, 5000, NULL);
    pawl_release(gone, 5000, NULL);
    assert_true(stays_held(kept, 100));
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(try_it(b, "kept", &error), PAWL_EBUSY);
    pawl_lock *after = take(b, "later", 0);
    assert_true(pawl_token(after) > token);
    pawl_release(after, 5000, NULL);
    if (pawl_release(kept, 5000, &error)) fail_msg("%s", error.text);
    pawl_close(a);
    pawl_close(b);
}

static void test_restored_under_the_same_cluster_token(void **state) {
    (void)state;
    restored("");
}

static void test_restored_under_a_new_cluster_token(void **state) {
    (void)state;
    restored("--initial-cluster-token new");
}

/* Locks of one do not exclude those of the other: a client that saw one of them takes none in the other. */
static void test_two_clusters_in_one_url(void **state) {
    (void)state;
    char at[128];
    pawl_error error = PAWL_ERROR_INIT;
    server_start_etcd(&members[1], quick);
    snprintf(at, sizeof at, "etcd://127.0.0.1:%d,127.0.0.1:%d/locks/", members[0].port, members[1].port);
    pawl_client *c = client(at, TTL_MS);
    assert_int_equal(try_it(c, "n", &error), PAWL_OK);
    server_kill(&members[0], SIGSTOP);
    int code;
    do code = try_it(c, "n", &error); /* the first fails on the old connection */
    while (code == PAWL_EUNREACHABLE && !strstr(error.text, "another cluster"));
    server_kill(&members[0], SIGCONT);
    assert_int_equal(code, PAWL_EUNREACHABLE);
    assert_int_equal(try_it(c, "n", &error), PAWL_EUNSAFE);
    if (!strstr(error.text, "two clusters")) fail_msg("%s", error.text);
    pawl_close(c);
}

static void write_and_compact(void) {
    long revision = 0;
    for (int i = 0; i < 5; i++) {
        etcdctl("put x %d", i);
        const char *at = strstr(etcdctl("get x -w json"), "\"revision\":");
        revision = at ? atol(at + strlen("\"revision\":")) : 0;
    }
    etcdctl("compact --physical %ld", revision);
}

static bool two_wait(void *data) {
    (void)data;
    return locks_keys("/locks/n/") == 3;
}

static void granted(pawl_client *c) {
    pawl_event event = PAWL_EVENT_INIT;
    struct pollfd p = {.fd = pawl_event_fd(c), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 20000), 1);
    assert_int_equal(pawl_next_event(c, &event), 1);
    assert_int_equal(event.type, PAWL_GRANTED);
}

static void test_compaction_disturbs_no_waiter(void **state) {
    (void)state;
    char at[64];
    struct proxy *p = proxy_start(members[0].port);
    snprintf(at, sizeof at, "etcd://127.0.0.1:%d/locks/", proxy_port(p));
    pawl_client *a = client(url, TTL_MS), *b = client(at, TTL_MS), *c = client(url, TTL_MS);
    pawl_lock *lock = take(a, "n", 0), *second, *third;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_acquire_start(b, "n", NULL, NULL, &second, &error), PAWL_OK);
    assert_int_equal(pawl_acquire_start(c, "n", NULL, NULL, &third, &error), PAWL_OK);
    assert_true(server_until(two_wait, NULL, 30000));
    write_and_compact();
    proxy_cut(p, true); /* the stream is cut, and opened anew behind a compaction */
    write_and_compact();
    proxy_cut(p, false);
    write_and_compact();
    pawl_release(lock, 5000, NULL);
    for (int i = 0; i < 2; i++) { /* whoever came first */
        struct pollfd both[] = {{.fd = pawl_event_fd(b), .events = POLLIN}, {.fd = pawl_event_fd(c), .events = POLLIN}};
        assert_in_range(poll(both, 2, 5000), 1, 2);
        granted(both[0].revents ? b : c);
        pawl_release(both[0].revents ? second : third, 5000, NULL);
    }
    pawl_close(a);
    pawl_close(b);
    pawl_close(c);
    proxy_stop(p);
}

static void test_a_watch_of_ones_own_key_survives_compaction(void **state) {
    (void)state;
    pawl_client *c = client(url, TTL_MS);
    pawl_lock *lock = take(c, "n", 0);
    write_and_compact(); /* before it is watched: from a revision that is no more */
    assert_true(stays_held(lock, TTL_MS / 3 + 500));
    etcdctl("del --prefix /locks/n/");
    assert_true(lost_within(lock, 20000));
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

static int small(void **state) {
    (void)state;
    server_start_etcd(&members[0], (const char *const[]){"--heartbeat-interval=50", "--election-timeout=500",
                                                         "--quota-backend-bytes=16777216", NULL});
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d/locks/", members[0].port);
    return 0;
}

static void test_a_full_store_takes_no_lock_and_keeps_what_is_held(void **state) {
    (void)state;
    char at[64];
    struct proxy *p = proxy_start(members[0].port);
    snprintf(at, sizeof at, "etcd://127.0.0.1:%d/locks/", proxy_port(p));
    pawl_client *c = client(at, TTL_MS), *d = client(url, TTL_MS);
    pawl_lock *lock = take(c, "held", 0);
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(try_it(d, "warm", &error), PAWL_OK);
    shell("head -c 1000000 /dev/zero | tr '\\0' x >'%s/big'; i=0; while ETCDCTL_API=3 etcdctl --endpoints=127.0.0.1:%d "
          "put k$i "
          "<'%s/big' >/dev/null 2>&1 && [ $i -lt 40 ]; do i=$((i+1)); done",
          members[0].dir, members[0].port, members[0].dir);
    assert_non_null(strstr(etcdctl("alarm list"), "NOSPACE"));
    assert_int_equal(try_it(d, "n", &error), PAWL_EUNREACHABLE);
    if (!strstr(error.text, "database space exceeded") || !strstr(error.text, "alarm disarm"))
        fail_msg("%s", error.text);
    proxy_cut(p, false); /* also on a new connection */
    assert_true(stays_held(lock, TTL_MS + 500));
    if (pawl_release(lock, 5000, &error)) fail_msg("%s", error.text);
    pawl_close(c);
    pawl_close(d);
    proxy_stop(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tokens_rise_over_an_emptied_cluster, one, teardown),
        cmocka_unit_test_setup_teardown(test_restored_under_the_same_cluster_token, one, teardown),
        cmocka_unit_test_setup_teardown(test_restored_under_a_new_cluster_token, one, teardown),
        cmocka_unit_test_setup_teardown(test_two_clusters_in_one_url, one, teardown),
        cmocka_unit_test_setup_teardown(test_compaction_disturbs_no_waiter, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_watch_of_ones_own_key_survives_compaction, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_full_store_takes_no_lock_and_keeps_what_is_held, small, teardown),
    };
    return RUN("etcd: restore", tests);
}
