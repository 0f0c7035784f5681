/* tls.c: redlocks: with real certificates: who is accepted, who is not, and that one instance which never finishes its
 * handshake holds nobody up. */
#include "certificates.h"
#include "clock.h"
#include "ran.h"
#include "three.h"
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char dir[] = "/tmp/pawl-redlocks-XXXXXX";
static struct server secure[N];
static struct proxy *way[N]; /* to its TLS port */

static int start(void **state) {
    (void)state;
    if (!mkdtemp(dir) || !make_certificates(dir)) return 1;
    for (int i = 0; i < N; i++) {
        char port[16], file[3][96];
        int tls_port = server_free_port();
        const char *names[] = {"server.crt", "server.key", "ca.crt"};
        snprintf(port, sizeof port, "%d", tls_port);
        for (int k = 0; k < 3; k++) snprintf(file[k], sizeof file[k], "%s/%s", dir, names[k]);
        const char *options[] = {
            "--tls-port", port, "--tls-cert-file", file[0], "--tls-key-file", file[1], "--tls-ca-cert-file",
            file[2],      NULL};
        server_start_redis(&secure[i], options);
        way[i] = proxy_start(tls_port);
    }
    return 0;
}

static int stop(void **state) {
    (void)state;
    char line[80];
    for (int i = 0; i < N; i++) proxy_stop(way[i]);
    for (int i = 0; i < N; i++) server_stop(&secure[i]);
    snprintf(line, sizeof line, "rm -rf %s", dir);
    return system(line);
}

static pawl_client *client_with(const char *host, bool ca, bool cert, const char *more) {
    char text[900];
    int n = snprintf(text, sizeof text, "redlocks://%s:%d,%s:%d,%s:%d?timeout=300%s", host, proxy_port(way[0]), host,
                     proxy_port(way[1]), host, proxy_port(way[2]), more);
    if (ca) n += snprintf(text + n, sizeof text - (size_t)n, "&cacert=%s/ca.crt", dir);
    if (cert) snprintf(text + n, sizeof text - (size_t)n, "&cert=%s/client.crt&key=%s/client.key", dir, dir);
    return client_of(text, 10000, NULL, NULL);
}

static void must_fail(pawl_client *c, int code, const char *part) {
    error = (pawl_error)PAWL_ERROR_INIT;
    int got = pawl_connect(c, 10000, &error);
    pawl_close(c);
    if (got != code) fail_msg("%d %s", got, error.text);
    says(part);
}

static void test_certificates(void **state) {
    (void)state;
    pawl_client *a = client_with("127.0.0.1", true, true, ""),
                *b = client_with("localhost", true, true, "&server-name=lock.test");
    pawl_lock *lock = must_take(a, "tls"), *other = NULL;
    int64_t token = pawl_token(lock);
    assert_int_not_equal(take(b, "tls", 0, &other), PAWL_OK);
    must_release(lock);
    lock = must_take(b, "tls");
    assert_true(pawl_token(lock) > token);
    must_release(lock);
    pawl_close(a);
    pawl_close(b);
    must_fail(client_with("localhost", true, true, ""), PAWL_EDENIED, "was not accepted for 'localhost'");
    must_fail(client_with("127.0.0.1", false, true, ""), PAWL_EDENIED, "was not accepted");
    must_fail(client_with("127.0.0.1", true, false, ""), PAWL_EUNREACHABLE,
              "no quorum: 0 of 3"); /* they want one of ours */
}

/* One that accepts and says nothing: the others shake hands meanwhile, and it costs one time limit, of 300 ms here. */
static void test_hung_handshake(void **state) {
    (void)state;
    for (int hung = 0; hung < N; hung++) {
        proxy_freeze(way[hung], true);
        pawl_client *c = client_with("127.0.0.1", true, true, "");
        int64_t start_ns = ran_ns();
        if (pawl_connect(c, 10000, &error)) fail_msg("%s", error.text);
        int64_t ms = (ran_ns() - start_ns) / NS_PER_MS;
        if (ms >= 1000) fail_msg("instance %d hung: %lld ms to connect", hung, (long long)ms);
        must_release(must_take(c, "hung"));
        proxy_freeze(way[hung], false);
        int64_t end_ns = clock_after_ms(clock_now_ns(), 30000); /* and it takes part again */
        char counter[64] = "";
        do {
            pawl_lock *lock = must_take(c, "again");
            snprintf(counter, sizeof counter, "%lld", (long long)pawl_token(lock));
            must_release(lock);
            poll(NULL, 0, 20);
        } while (server_redis_int(secure[hung].port, "GET pawl:%%c:again") != atoll(counter) &&
                 clock_now_ns() < end_ns);
        assert_int_equal(server_redis_int(secure[hung].port, "GET pawl:%%c:again"), atoll(counter));
        pawl_close(c);
    }
}

/* A quorum that never finishes is no quorum, and each is named. */
static void test_hung_quorum(void **state) {
    (void)state;
    proxy_freeze(way[0], true);
    proxy_freeze(way[2], true);
    pawl_client *c = client_with("127.0.0.1", true, true, "");
    assert_int_equal(pawl_connect(c, 1500, &error), PAWL_EUNREACHABLE);
    says("no quorum: 1 of 3");
    says("does that port speak TLS?");
    pawl_close(c);
    proxy_freeze(way[0], false);
    proxy_freeze(way[2], false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_certificates), cmocka_unit_test(test_hung_handshake),
                                       cmocka_unit_test(test_hung_quorum)};
    return cmocka_run_group_tests(tests, start, stop);
}
