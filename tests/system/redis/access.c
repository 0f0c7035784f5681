/* redis_access.c: every way to a Redis that a URL can name (TLS, sockets, users, databases, several addresses), and the
 * rights that are needed there: the documented line suffices, and one right less is said. */
#include "certificates.h"
#include "probe.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct server server, other;

static void command(const char *text) {
    char *reply = server_redis(server.port, "%s", text);
    if (!reply || *reply == '-') fail_msg("%s: %s", text, reply ? reply : "no answer");
    free(reply);
}

static int setup(void **state) {
    (void)state;
    server_start_redis(&server, NULL);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    server_stop(&server);
    return 0;
}

/* A full turn through that URL. */
static void works(const char *url) {
    struct probe p;
    probe_ready(&p, "%s", url);
    if (probe_take(&p, false) != BK_YES) fail_msg("%s: %s", url, p.error.text);
    assert_int_equal(probe_renew(&p), BK_YES);
    assert_int_equal(probe_release(&p), BK_YES);
    probe_close(&p);
}

/* Connecting fails with that code, and says those words. */
static void fails(const char *url, int code, const char *words) {
    struct probe p;
    probe_open(&p, "%s", url);
    if (probe_connect(&p) != BK_FAULT || p.error.code != code || !strstr(p.error.text, words))
        fail_msg("%s: code %d: %s", url, p.error.code, p.error.text);
    probe_close(&p);
}

/* The URL itself is refused, and the culprit named. */
static void refused(const char *text, const char *words) {
    struct url *url;
    struct bk *bk;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(url_parse(text, &url, &error), PAWL_OK);
    assert_int_equal(probe_backend->open(url, &bk, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EINVALID);
    if (!strstr(error.text, words)) fail_msg("%s: %s", text, error.text);
    url_free(url);
}

static char url[1024];
#define URL(...) (snprintf(url, sizeof url, __VA_ARGS__), url)

static void test_bad_urls(void **state) {
    (void)state;
    works(server.url);
    refused("redis://h?frobnicate=1", "'frobnicate'");
    refused("redis://h/x", "a database is a number");
    refused("redis://h/1?db=2", "twice");
    refused("redis://h?cacert=/x", "need TLS");
    refused("redis:h", "redis://HOST");
    refused("rediss://h?key=/x", "key needs cert");
    refused("redis://ana@h", "without a password");
    refused("redis+sentinel://h", "name the master");
    refused("redis+sentinel://h/m?tls=maybe", "tls is yes or no");
    refused("redis+sentinel://h/m?sentinel-user=u", "sentinel-password");
    refused("redis+sentinel://h/m?map=a:1", "HOST:PORT>HOST:PORT");
    refused("redis+sentinel://h/m?map=a:1>b:2,c>d:3", "HOST:PORT>HOST:PORT");
    refused("redis://h?map=a:1>b:2", "'map'");
    refused("redis+unix://host/x", "a socket is a path");
    refused("redis+unix:", "a socket is a path");
    char prefix[200] = "";
    memset(prefix, 'x', 129);
    refused(URL("redis://h?prefix=%s", prefix), "longer than 128");
}

static void test_database_and_prefix(void **state) {
    (void)state;
    struct probe p;
    probe_ready(&p, "redis://127.0.0.1:%d/3?prefix=app:%%2a:", server.port);
    probe_name(&p, "a{b}%c\nd e");
    assert_int_equal(probe_take(&p, false), BK_YES);
    char *keys = server_redis(server.port,
                              "EVAL return(redis.call('SELECT','3')and(table.concat(redis.call('KEYS','*'),'|'))) 0");
    assert_non_null(keys);
    if (!strstr(keys, "app:*:a%7Bb%7D%25c%0Ad e") || !strstr(keys, "app:*:%n")) fail_msg("%s", keys);
    free(keys);
    probe_close(&p);
    fails(URL("redis://127.0.0.1:%d/99", server.port), PAWL_EINVALID, "no such database");
}

static void test_unix_socket(void **state) {
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%.60s/../pawl-sock-%d", server.dir, (int)getpid());
    const char *options[] = {"--unixsocket", path, NULL};
    server_start_redis(&other, options);
    works(URL("redis+unix://%s", path));
    works(URL("redis+unix:%s?db=2&prefix=x:", path));
    server_stop(&other);
    unlink(path);
    fails(URL("redis+unix://%s", path), PAWL_EUNREACHABLE, "cannot connect to");
}

static void test_several_addresses(void **state) {
    (void)state;
    server_start_redis(&other, NULL);
    char *reply = server_redis(other.port, "REPLICAOF 127.0.0.1 %d", server.port);
    free(reply);
    int nobody = server_free_port();
    works(URL("redis://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", nobody, other.port, server.port));
    works(URL("redis://localhost:%d", server.port));
    fails(URL("redis://127.0.0.1:%d,127.0.0.1:%d", nobody, other.port), PAWL_EUNREACHABLE, "is a replica of");
    fails(URL("redis://no-such-host.invalid"), PAWL_EUNREACHABLE, "no-such-host.invalid");
    server_stop(&other);
}

static void test_ipv6(void **state) {
    (void)state;
    const char *options[] = {"--bind", "127.0.0.1 -::1", NULL};
    server_start_redis(&other, options);
    struct probe p;
    probe_open(&p, "redis://[::1]:%d", other.port);
    bool no_ipv6 = probe_connect(&p) != BK_YES;
    probe_close(&p);
    if (!no_ipv6) works(URL("redis://[::1]:%d", other.port));
    server_stop(&other);
    if (no_ipv6) skip();
}

/* --- TLS --- */

static void test_tls(void **state) {
    (void)state;
    char port[16], file[4][96];
    const char *names[] = {"server.crt", "server.key", "ca.crt"};
    assert_true(make_certificates(server.dir));
    for (int i = 0; i < 3; i++) snprintf(file[i], sizeof file[i], "%s/%s", server.dir, names[i]);
    int tls_port = server_free_port();
    snprintf(port, sizeof port, "%d", tls_port);
    const char *options[] = {
        "--tls-port", port, "--tls-cert-file", file[0], "--tls-key-file", file[1], "--tls-ca-cert-file", file[2], NULL};
    server_start_redis(&other, options);
    const char *d = server.dir;
    works(URL("rediss://127.0.0.1:%d?cacert=%s/ca.crt&cert=%s/client.crt&key=%s/client.key", tls_port, d, d, d));
    works(URL("rediss://localhost:%d?cacert=%s/ca.crt&cert=%s/client.crt&key=%s/client.key&server-name=lock.test",
              tls_port, d, d, d));
    fails(URL("rediss://localhost:%d?cacert=%s/ca.crt&cert=%s/client.crt&key=%s/client.key", tls_port, d, d, d),
          PAWL_EDENIED, "was not accepted for 'localhost'");
    fails(URL("rediss://127.0.0.1:%d?cert=%s/client.crt&key=%s/client.key", tls_port, d, d), PAWL_EDENIED,
          "was not accepted");
    fails(URL("rediss://127.0.0.1:%d?cacert=%s/none.crt", tls_port, d), PAWL_EINVALID, "authorities");
    fails(URL("rediss://127.0.0.1:%d?cacert=%s/ca.crt&cert=%s/ca.key", tls_port, d, d), PAWL_EINVALID,
          "client certificate");
    struct probe p;
    probe_open(&p, "rediss://127.0.0.1:%d?cacert=%s/ca.crt", tls_port, d); /* the server wants to see a certificate */
    assert_int_equal(probe_connect(&p), BK_FAULT);
    probe_close(&p);
    fails(URL("redis://127.0.0.1:%d", tls_port), PAWL_EUNREACHABLE, "");
    fails(URL("rediss://127.0.0.1:%d", other.port), PAWL_EUNREACHABLE, "TLS handshake");
    server_stop(&other);
}

/* --- rights --- */

#define RIGHTS                                                                                                         \
    "+info +evalsha +eval +time +exists +get +getrange +set +incr +del +pexpire +pttl +zadd +zrem +zrange +zrank "     \
    "+publish +subscribe +scan"

static bool count(const struct bk_record *record, void *data) {
    (void)record;
    ++*(int *)data;
    return true;
}

/* A whole life: taken, queued for, handed over, claimed, renewed, left, released, looked at. Ends at the first denial.
 */
static enum bk_says whole_life(bool queues, pawl_error *ret) {
    struct probe a, b;
    int records = 0;
    enum bk_says says = BK_FAULT;
    probe_open(&a, "redis://app:pw@127.0.0.1:%d", server.port);
    probe_open(&b, "redis://app:pw@127.0.0.1:%d", server.port);
#define STEP(who, call)                                                                                                \
    do {                                                                                                               \
        if (says == BK_FAULT || says == BK_UNKNOWN) break;                                                             \
        says = call;                                                                                                   \
        error_copy(ret, &who.error);                                                                                   \
    } while (0)
    says = BK_YES;
    STEP(a, probe_connect(&a));
    STEP(b, probe_connect(&b));
    STEP(b, probe_backend->hub_open(b.bk, probe_soon(10000), &b.error));
    STEP(a, probe_take(&a, false));
    STEP(a, probe_take(&a, false)); /* a repeat */
    STEP(b, probe_take(&b, true));
    STEP(a, probe_renew(&a));
    STEP(a, probe_backend->records(a.session, NULL, count, &records, probe_soon(10000), &a.error));
    STEP(a, probe_release(&a));
    STEP(b, probe_take(&b, true));
    STEP(a, probe_take(&a, true));
    STEP(a, probe_forget(&a));
    STEP(b, probe_release(&b));
    STEP(b, (probe_name(&b, "probe"), probe_take(&b, false)));
    STEP(b, probe_release(&b));
    if (says == BK_YES && queues) assert_int_equal(records, 2);
    probe_close(&a);
    probe_close(&b);
    return says;
}

static void set_rights(const char *without) {
    char rights[] = RIGHTS, line[512];
    snprintf(line, sizeof line, "ACL SETUSER app reset on >pw ~pawl:* &pawl:*");
    for (char *at = rights, *word; (word = strsep(&at, " "));)
        if (strcmp(word, without) != 0) snprintf(line + strlen(line), sizeof line - strlen(line), " %s", word);
    command(line);
}

static void test_rights(void **state) {
    (void)state;
    pawl_error error = PAWL_ERROR_INIT;
    char rights[] = RIGHTS;
    set_rights("");
    if (whole_life(true, &error) != BK_YES) fail_msg("the documented rights do not suffice: %s", error.text);
    for (char *at = rights, *word; (word = strsep(&at, " "));) {
        command("FLUSHALL");
        command("SCRIPT FLUSH");
        set_rights(word);
        error = (pawl_error)PAWL_ERROR_INIT;
        enum bk_says says = whole_life(strncmp(word, "+z", 2) != 0, &error);
        if (says == BK_YES) {
            /* without telling, and without a queue, waiting is slower, and nothing fails for it */
            if (!strstr("+publish +zadd +zrem +zrange +zrank", word))
                fail_msg("without %s everything worked: it is not needed", word);
        } else if (error.code != PAWL_EDENIED || !strstr(error.text, "the user lacks")) {
            fail_msg("without %s: code %d: %s", word, error.code, error.text);
        }
    }
}

/* A channel or a key outside the user's patterns. */
static void test_patterns(void **state) {
    (void)state;
    pawl_error error = PAWL_ERROR_INIT;
    char rights[] = RIGHTS, line[512];
    snprintf(line, sizeof line, "ACL SETUSER app reset on >pw ~pawl:* %s", rights);
    command(line);
    assert_int_equal(whole_life(true, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EDENIED);
    assert_non_null(strstr(error.text, "subscribing"));
    snprintf(line, sizeof line, "ACL SETUSER app reset on >pw ~other:* &pawl:* %s", rights);
    command(line);
    assert_int_equal(whole_life(true, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EDENIED);
    assert_non_null(strstr(error.text, "taking 'probe'"));
}

static int remarks;
static char remarked[512];
static void heed(const pawl_event *event, const char *name, void *data) {
    (void)name;
    (void)data;
    if (event->type != PAWL_REMARK) return;
    remarks++;
    snprintf(remarked, sizeof remarked, "%s", event->text);
}

/* Without that right a wait for a held lock ends in time, a wait for one that gets free ends well, and that it is a
 * question again and again is said once. */
static void waits_without(const char *right, const char *words) {
    struct probe holder, waiter;
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_acquire_options acquire = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    pawl_lock *lock;
    char app[64];
    set_rights(right);
    options.observe = heed;
    remarks = 0;
    acquire.wait_ms = 1500;
    snprintf(app, sizeof app, "redis://app:pw@127.0.0.1:%d", server.port);
    assert_int_equal(pawl_open(app, &options, &client, &error), PAWL_OK);
    probe_ready(&holder, "%s", server.url);
    assert_int_equal(probe_take(&holder, false), BK_YES);
    /* A machine that stands still at the end of a wait leaves its last question open. */
    for (int i = 0, stalls = 0; i < 2; i++) {
        int code = pawl_acquire(client, "probe", &acquire, &lock, &error);
        if (code == PAWL_EUNREACHABLE && stalls++ < 5) i--;
        else if (code != PAWL_ETIMEOUT) fail_msg("without %s: %d %s", right, code, error.text);
    }
    assert_int_equal(probe_release(&holder), BK_YES);
    acquire.wait_ms = 10000;
    for (int i = 0; i < 2; i++) {
        if (pawl_acquire(client, "probe", &acquire, &lock, &error)) fail_msg("without %s: %s", right, error.text);
        probe_ready(&waiter, "%s", server.url);
        assert_int_equal(probe_backend->hub_open(waiter.bk, probe_soon(10000), &waiter.error), BK_YES);
        assert_int_equal(probe_take(&waiter, true), BK_NO);
        if (pawl_release(lock, 10000, &error)) fail_msg("without %s: %s", right, error.text);
        assert_int_equal(probe_take(&waiter, true), BK_YES);
        assert_int_equal(probe_release(&waiter), BK_YES);
        probe_close(&waiter);
    }
    if (remarks != 1 || !strstr(remarked, words))
        fail_msg("without %s: %d remarks, the last: %s", right, remarks, remarked);
    probe_close(&holder);
    pawl_close(client);
}

static void test_slower_waits_are_said_once(void **state) {
    (void)state;
    waits_without("+subscribe", "subscribing to wake-ups");
    waits_without("+zadd", "may not keep a queue");
    waits_without("+zrem", "may not keep a queue");
    waits_without("+zrange", "may not keep a queue");
    waits_without("+zrank", "may not keep a queue");
    waits_without("+publish", "may not tell the next waiter");
}

#define CASE(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(bad_urls),
        CASE(database_and_prefix),
        CASE(unix_socket),
        CASE(several_addresses),
        CASE(ipv6),
        CASE(tls),
        CASE(rights),
        CASE(patterns),
        CASE(slower_waits_are_said_once),
    };
    return cmocka_run_group_tests_name("redis access", tests, NULL, NULL);
}
