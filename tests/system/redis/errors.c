/* redis_errors.c: each way in which a Redis refuses, brought about on a real server: what take, renew and release
 * conclude from it, and that the text says which it was. */
#include "probe.h"
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static struct server server, other;
static struct probe p;

#define says(call, result, pawl_code, words)                                                                           \
    do {                                                                                                               \
        enum bk_says said = (call);                                                                                    \
        if (said != (result) || p.error.code != (pawl_code) || !strstr(p.error.text, words))                           \
            fail_msg("%s: said %d, code %d: %s", #call, said, p.error.code, p.error.text);                             \
        assert_non_null(strstr(p.error.text, "127.0.0.1"));                                                            \
    } while (0)

/* All three questions alike: nothing was done, the lock is still there. */
#define all_say(pawl_code, words)                                                                                      \
    do {                                                                                                               \
        says(probe_renew(&p), BK_FAULT, pawl_code, words);                                                             \
        says(probe_release(&p), BK_FAULT, pawl_code, words);                                                           \
        struct bk_claim held = p.claim;                                                                                \
        probe_name(&p, "another");                                                                                     \
        says(probe_take(&p, false), BK_FAULT, pawl_code, words);                                                       \
        p.claim = held;                                                                                                \
        strcpy(p.name, "probe");                                                                                       \
    } while (0)

static void command(int port, const char *text) {
    char *reply = server_redis(port, "%s", text);
    if (!reply || *reply == '-') fail_msg("%s: %s", text, reply ? reply : "no answer");
    free(reply);
}

static int setup(void **state) {
    (void)state;
    server_start_redis(&server, NULL);
    probe_ready(&p, "%s", server.url);
    assert_int_equal(probe_take(&p, false), BK_YES);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    probe_close(&p);
    server_stop(&server);
    return 0;
}

static void still_held_and_released(void) {
    assert_int_equal(server_redis_int(server.port, "EXISTS pawl:probe"), 1);
    assert_int_equal(server_redis_int(server.port, "EXISTS pawl:another"), 0);
    assert_int_equal(probe_renew(&p), BK_YES);
    assert_int_equal(probe_release(&p), BK_YES);
}

static void test_readonly(void **state) {
    (void)state;
    char text[64];
    server_start_redis(&other, NULL);
    snprintf(text, sizeof text, "REPLICAOF 127.0.0.1 %d", other.port);
    command(server.port, text);
    all_say(PAWL_EUNREACHABLE, "it is a replica");
    says(probe_connect(&p), BK_FAULT, PAWL_EUNREACHABLE, "is a replica of 127.0.0.1");
    server_stop(&other);
}

static bool copied(void *data) {
    (void)data;
    return server_redis_int(other.port, "EXISTS pawl:probe") == 1;
}

/* What a replica reads, it must not tell: a release and a renewal that find another value are not "lost" there. */
static void test_replica_says_no_to_nobody(void **state) {
    (void)state;
    char text[64];
    server_start_redis(&other, NULL);
    snprintf(text, sizeof text, "REPLICAOF 127.0.0.1 %d", server.port);
    command(other.port, text);
    assert_true(server_until(copied, NULL, 20000));
    struct probe at_replica;
    probe_open(&at_replica, "%s", other.url);
    assert_int_equal(probe_connect(&at_replica), BK_FAULT);
    command(other.port, "REPLICAOF NO ONE");
    assert_int_equal(probe_connect(&at_replica), BK_YES);
    command(other.port, text);
    assert_int_equal(probe_take(&at_replica, false), BK_FAULT);
    assert_int_equal(probe_take(&at_replica, true), BK_FAULT);
    assert_int_equal(probe_renew(&at_replica), BK_FAULT);
    assert_int_equal(probe_release(&at_replica), BK_FAULT);
    assert_int_equal(probe_forget(&at_replica), BK_FAULT);
    assert_int_equal(probe_backend->prove(at_replica.session, &at_replica.grant, probe_soon(10000), &at_replica.error),
                     BK_FAULT);
    probe_close(&at_replica);
    server_stop(&other);
}

static void test_noreplicas(void **state) {
    (void)state;
    command(server.port, "CONFIG SET min-replicas-to-write 1");
    all_say(PAWL_EUNREACHABLE, "min-replicas-to-write");
    command(server.port, "CONFIG SET min-replicas-to-write 0");
    still_held_and_released();
}

static void test_out_of_memory(void **state) {
    (void)state;
    struct bk_claim held = p.claim;
    command(server.port, "CONFIG SET maxmemory 1");
    probe_name(&p, "another");
    says(probe_take(&p, false), BK_FAULT, PAWL_EUNREACHABLE, "out of memory");
    p.claim = held;
    strcpy(p.name, "probe");
    still_held_and_released(); /* what is held is renewed and released all the same */
}

static bool save_failed(void *data) {
    char *info = server_redis(*(int *)data, "INFO persistence");
    bool failed = info && strstr(info, "rdb_last_bgsave_status:err");
    free(info);
    return failed;
}

static void test_misconf(void **state) {
    (void)state;
    static const char *const saving[] = {"--save", "3600 1", NULL};
    char path[96];
    server_stop(&server);
    probe_close(&p);
    server_start_redis(&server, saving);
    probe_ready(&p, "%s", server.url);
    assert_int_equal(probe_take(&p, false), BK_YES);
    snprintf(path, sizeof path, "%s/dump.rdb", server.dir);
    assert_int_equal(mkdir(path, 0700), 0); /* nothing can be renamed over it */
    free(server_redis(server.port, "BGSAVE"));
    assert_true(server_until(save_failed, &server.port, 10000));
    all_say(PAWL_EUNREACHABLE, "cannot save");
    command(server.port, "CONFIG SET stop-writes-on-bgsave-error no");
    still_held_and_released();
}

static bool is_busy(void *data) {
    (void)data;
    char *reply = server_redis(server.port, "PING");
    bool busy = reply && strncmp(reply, "-BUSY", 5) == 0;
    free(reply);
    return busy;
}

static bool is_idle(void *data) { return !is_busy(data); }

static void test_busy(void **state) {
    (void)state;
    command(server.port, "CONFIG SET busy-reply-threshold 10");
    int fd = server_dial(server.port);
    assert_true(fd >= 0);
    dprintf(fd, "EVAL \"local t = redis.call('TIME')[1] while redis.call('TIME')[1] - t < 30 do end\" 0\r\n");
    assert_true(server_until(is_busy, NULL, 20000));
    all_say(PAWL_EUNREACHABLE, "keeps it busy");
    command(server.port, "SCRIPT KILL");
    assert_true(server_until(is_idle, NULL, 20000));
    still_held_and_released();
}

static bool answers_anything(const struct server *s) {
    char *text = server_redis(s->port, "PING");
    free(text);
    return text;
}

static void test_loading(void **state) {
    (void)state;
    server_start_redis(&other, NULL);
    int fd = server_dial(other.port);
    char done[16];
    assert_true(fd >= 0);
    dprintf(fd, "EVAL \"for i = 1, 9000 do redis.call('SET', 'filler:' .. i, i) end\" 0\r\nSAVE\r\n");
    for (size_t got = 0; got < 8;) got += (size_t)recv(fd, done, sizeof done, 0); /* "$-1" and "+OK" */
    close(fd);
    server_kill(&other, SIGKILL);
    server_arg(&other, "--key-load-delay");
    server_arg(&other, "1000");
    server_arg(&other, "--loading-process-events-interval-bytes");
    server_arg(&other, "1024");
    other.ready = answers_anything;
    server_run(&other);
    probe_close(&p);
    probe_ready(&p, "%s", other.url);
    all_say(PAWL_EUNREACHABLE, "still loading");
    command(other.port, "CONFIG SET key-load-delay 0");
    server_stop(&other);
}

static void test_noscript(void **state) {
    (void)state;
    command(server.port, "SCRIPT FLUSH");
    assert_int_equal(probe_renew(&p), BK_YES);
    command(server.port, "SCRIPT FLUSH");
    assert_int_equal(probe_take(&p, false), BK_YES);
    command(server.port, "SCRIPT FLUSH");
    assert_int_equal(probe_release(&p), BK_YES);
}

static void test_wrong_type(void **state) {
    (void)state;
    command(server.port, "DEL pawl:probe");
    command(server.port, "HSET pawl:probe a b");
    assert_int_equal(probe_renew(&p), BK_NO);
    assert_int_equal(probe_release(&p), BK_NO);
    says(probe_take(&p, false), BK_FAULT, PAWL_EUNSAFE, "something that is not pawl");
    assert_int_equal(server_redis_int(server.port, "HEXISTS pawl:probe a"), 1);
}

static void test_foreign_numbers(void **state) {
    (void)state;
    command(server.port, "FLUSHALL");
    command(server.port, "SET pawl:%n 17");
    probe_name(&p, "another");
    says(probe_take(&p, false), BK_FAULT, PAWL_EUNSAFE, "was not written by pawl");
    assert_int_equal(server_redis_int(server.port, "DBSIZE"), 1);
}

static void test_max_clients(void **state) {
    (void)state;
    command(server.port, "CONFIG SET maxclients 1");
    struct bk_session *first = p.session;
    says(probe_connect(&p), BK_FAULT, PAWL_EUNREACHABLE, "no room for another connection");
    p.session = first;
}

/* A server that says one thing to whoever connects, and hangs up. */
static const char *canned;
static void *say_it(void *data) {
    int listener = *(int *)data, fd = accept(listener, NULL, NULL);
    if (fd >= 0) dprintf(fd, "%s", canned);
    if (fd >= 0) shutdown(fd, SHUT_WR);
    char rest[1024];
    while (fd >= 0 && recv(fd, rest, sizeof rest, 0) > 0) {
    }
    close(fd);
    return NULL;
}

static void hear(const char *text, int code, const char *words) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_t thread;
    struct probe q;
    assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    canned = text;
    assert_int_equal(pthread_create(&thread, NULL, say_it, &listener), 0);
    probe_open(&q, "redis://127.0.0.1:%d", ntohs(address.sin_port));
    assert_int_equal(probe_connect(&q), BK_FAULT);
    if (q.error.code != code || !strstr(q.error.text, words)) fail_msg("code %d: %s", q.error.code, q.error.text);
    probe_close(&q);
    pthread_join(thread, NULL);
    close(listener);
}

static void test_protected_mode(void **state) {
    (void)state;
    hear("-DENIED Redis is running in protected mode because protected mode is enabled\r\n", PAWL_EDENIED,
         "protected mode");
}

static void test_strange_servers(void **state) {
    (void)state;
    hear("HTTP/1.1 400 Bad Request\r\n\r\n", PAWL_EUNREACHABLE, "speaks HTTP, not the Redis protocol");
    hear("\x15\x03\x03 alert", PAWL_EUNREACHABLE, "speaks TLS, not the Redis protocol: write rediss://");
    hear("", PAWL_EUNREACHABLE, "closed the connection without a word (is it Redis that listens there, without TLS?)");
    hear("+OK\r\n+OK\r\n", PAWL_EUNREACHABLE, "not a Redis server?");
    hear("$14\r\nredis_mode:x\r\n\r\n$0\r\n\r\n", PAWL_EUNSUPPORTED, "5 or newer");
    hear("*99999999999\r\n", PAWL_EUNREACHABLE, "does not speak");
}

static void test_passwords(void **state) {
    (void)state;
    struct probe none, wrong, right;
    command(server.port, "CONFIG SET requirepass p@:/#%+=_x");
    probe_open(&none, "%s", server.url);
    assert_int_equal(probe_connect(&none), BK_FAULT);
    assert_int_equal(none.error.code, PAWL_EDENIED);
    assert_non_null(strstr(none.error.text, "wants a password: redis://:password@host, or"));
    probe_open(&wrong, "redis://:secret-but-wrong@127.0.0.1:%d", server.port);
    assert_int_equal(probe_connect(&wrong), BK_FAULT);
    assert_int_equal(wrong.error.code, PAWL_EDENIED);
    assert_non_null(strstr(wrong.error.text, "password is wrong"));
    assert_null(strstr(wrong.error.text, "secret"));
    probe_ready(&right, "redis://default:p%%40%%3A%%2F%%23%%25%%2B%%3D_x@127.0.0.1:%d", server.port);
    assert_int_equal(probe_take(&right, false), BK_NO);
    probe_close(&right);
    probe_ready(&right, "redis://default:p%%40%%3A%%2F%%23%%25+%%3D_x@127.0.0.1:%d", server.port); /* a + is a + */
    assert_int_equal(probe_take(&right, false), BK_NO);
    probe_close(&none);
    probe_close(&wrong);
    probe_close(&right);
    assert_int_equal(probe_renew(&p), BK_YES); /* whoever is in stays in */
}

static void test_password_not_wanted(void **state) {
    (void)state;
    struct probe q;
    probe_open(&q, "redis://:x@127.0.0.1:%d", server.port);
    assert_int_equal(probe_connect(&q), BK_FAULT);
    assert_int_equal(q.error.code, PAWL_EDENIED);
    assert_non_null(strstr(q.error.text, "does not accept the password"));
    probe_close(&q);
}

static void test_cluster(void **state) {
    (void)state;
    struct probe q;
    char bus[8];
    snprintf(bus, sizeof bus, "%d", server_free_port());
    const char *const options[] = {"--cluster-enabled", "yes", "--cluster-port", bus, NULL};
    server_start_redis(&other, options);
    probe_open(&q, "%s", other.url);
    assert_int_equal(probe_connect(&q), BK_FAULT);
    assert_int_equal(q.error.code, PAWL_EUNSUPPORTED);
    assert_non_null(strstr(q.error.text, "Redis Cluster"));
    probe_close(&q);
    server_stop(&other);
}

static void test_not_redis(void **state) {
    (void)state;
    struct probe q;
    server_start_sentinel(&other, server.port, "");
    probe_open(&q, "redis://127.0.0.1:%d", other.port);
    assert_int_equal(probe_connect(&q), BK_FAULT);
    assert_int_equal(q.error.code, PAWL_EINVALID);
    assert_non_null(strstr(q.error.text, "is a sentinel"));
    probe_close(&q);
    server_stop(&other);
}

#define CASE(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(readonly),
        CASE(replica_says_no_to_nobody),
        CASE(noreplicas),
        CASE(out_of_memory),
        CASE(misconf),
        CASE(busy),
        CASE(loading),
        CASE(noscript),
        CASE(wrong_type),
        CASE(foreign_numbers),
        CASE(max_clients),
        CASE(protected_mode),
        CASE(strange_servers),
        CASE(passwords),
        CASE(password_not_wanted),
        CASE(cluster),
        CASE(not_redis),
    };
    return cmocka_run_group_tests_name("redis errors", tests, NULL, NULL);
}
