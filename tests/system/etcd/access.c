/* access.c: who may: TLS with client certificates, users and passwords, tokens that run out. */
#include "common.h"
#include <poll.h>
#include <stdatomic.h>

#define APP "app:p%%40%%3A%%2F%%23%%25%%2B%%3D%%20%%C3%%A9" /* p@:/#%+= é */

#define HELD_MS 8000
static char dir[64];

static int certificates(void **state) {
    (void)state;
    struct server holder = {0};
    server_make_dir(&holder, "etcd-tls");
    snprintf(dir, sizeof dir, "%s", holder.dir);
    shell("cd %s && exec 2>/dev/null && "
          "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt "
          "-subj /CN=authority -days 2 && "
          "for n in server other client; do openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
          "-keyout $n.key -out $n.csr -subj /CN=$n || exit 1; done && "
          "printf 'subjectAltName=IP:127.0.0.1,DNS:localhost' >server.ext && printf 'subjectAltName=DNS:lock.test' "
          ">other.ext && "
          "printf 'extendedKeyUsage=clientAuth' >client.ext && "
          "for n in server other client; do openssl x509 -req -in $n.csr -CA ca.crt -CAkey ca.key -CAcreateserial "
          "-out $n.crt -days 2 -extfile $n.ext || exit 1; done",
          dir);
    return 0;
}

static int end(void **state) {
    teardown(state);
    if (*dir) shell("rm -rf '%s'", dir);
    *dir = 0;
    return 0;
}

static void start_tls(struct server *s, const char *name, bool mutual) {
    char options[4][160];
    const char *all[5] = {options[0], options[1], mutual ? options[2] : NULL, options[3], NULL};
    snprintf(options[0], sizeof options[0], "--cert-file=%s/%s.crt", dir, name);
    snprintf(options[1], sizeof options[1], "--key-file=%s/%s.key", dir, name);
    snprintf(options[2], sizeof options[2], "--trusted-ca-file=%s/ca.crt", dir);
    snprintf(options[3], sizeof options[3], "--client-cert-auth");
    server_start_etcd(s, all);
}

static int attempt(const char *at, pawl_error *error) {
    pawl_options o = PAWL_OPTIONS_INIT;
    pawl_client *c = NULL;
    o.ttl_ms = TTL_MS;
    int code = pawl_open(at, &o, &c, error);
    if (code == PAWL_OK) code = try_it(c, "n", error);
    pawl_close(c);
    return code;
}

__attribute__((format(printf, 1, 2))) static void works(const char *format, ...) {
    char at[1024];
    pawl_error error = PAWL_ERROR_INIT;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(at, sizeof at, format, arguments);
    va_end(arguments);
    if (attempt(at, &error)) fail_msg("%s: %s", at, error.text);
}

__attribute__((format(printf, 3, 4))) static void fails(int code, const char *words, const char *format, ...) {
    char at[1024];
    pawl_error error = PAWL_ERROR_INIT;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(at, sizeof at, format, arguments);
    va_end(arguments);
    int got = attempt(at, &error);
    if (got != code || !strstr(error.text, words)) fail_msg("%s: %d, %s", at, got, error.text);
    assert_null(strstr(error.text, "p@:"));
}

static void test_tls(void **state) {
    (void)state;
    start_tls(&members[0], "server", false);
    start_tls(&members[1], "other", false);
    int port = members[0].port, other = members[1].port;
    works("etcds://127.0.0.1:%d?cacert=%s/ca.crt", port, dir);
    works("etcds://localhost:%d?cacert=%s/ca.crt", port, dir);
    works("etcds://127.0.0.1:%d?cacert=%s/ca.crt&server-name=lock.test", other, dir);
    fails(PAWL_EDENIED, "not accepted for '127.0.0.1'", "etcds://127.0.0.1:%d?cacert=%s/ca.crt", other, dir);
    fails(PAWL_EDENIED, "not accepted", "etcds://127.0.0.1:%d", port); /* not by the system's authorities */
    fails(PAWL_EUNREACHABLE, "TLS", "etcd://127.0.0.1:%d", port);
    fails(PAWL_EINVALID, "write etcds://", "etcd://127.0.0.1:%d?cacert=%s/ca.crt", port, dir);
    server_start_etcd(&members[2], NULL);
    fails(PAWL_EUNREACHABLE, "TLS", "etcds://127.0.0.1:%d?cacert=%s/ca.crt", members[2].port, dir);
    /* Each host is verified by its own name, whichever is asked first. */
    works("etcds://127.0.0.1:%d,localhost:%d?cacert=%s/ca.crt", other, port, dir);
}

/* Starts a member again with a certificate of its own. */
static void with_certificate(struct server *s, const char *name) {
    for (char **word = s->argv; *word; word++) {
        bool key = strncmp(*word, "--key-file=", 11) == 0;
        if (!key && strncmp(*word, "--cert-file=", 12) != 0) continue;
        free(*word);
        if (asprintf(word, key ? "--key-file=%s/%s.key" : "--cert-file=%s/%s.crt", dir, name) < 0) fail();
    }
    server_restart(s);
}

static char everywhere[512];
static bool can_be_taken(void *data) { return attempt(everywhere, data) == PAWL_OK; }

/* Each member has a certificate for the name that it is called by, and for no other. */
static void test_tls_with_a_member_down(void **state) {
    (void)state;
    pawl_error error = PAWL_ERROR_INIT;
    char certificate[128], key[128];
    snprintf(certificate, sizeof certificate, "--cert-file=%s/server.crt", dir);
    snprintf(key, sizeof key, "--key-file=%s/server.key", dir);
    shell("cd %s && exec 2>/dev/null && printf 'subjectAltName=IP:127.0.0.1' >number.ext && printf "
          "'subjectAltName=DNS:localhost' >name.ext && for n in number name; do openssl req -newkey ec -pkeyopt "
          "ec_paramgen_curve:P-256 -nodes -keyout $n.key -out $n.csr -subj /CN=$n && openssl x509 -req -in $n.csr -CA "
          "ca.crt -CAkey ca.key -CAcreateserial -out $n.crt -days 2 -extfile $n.ext || exit 1; done",
          dir);
    server_start_etcd_cluster(
        members, 3,
        (const char *const[]){"--heartbeat-interval=200", "--election-timeout=2000", certificate, key, NULL});
    with_certificate(&members[0], "number");
    with_certificate(&members[1], "name");
    with_certificate(&members[2], "name");
    snprintf(everywhere, sizeof everywhere, "etcds://127.0.0.1:%d,localhost:%d,localhost:%d/locks/?cacert=%s/ca.crt",
             members[0].port, members[1].port, members[2].port, dir);
    if (!server_until(can_be_taken, &error, 120000)) fail_msg("%s", error.text);
    fails(PAWL_EDENIED, "not accepted for 'localhost'", "etcds://localhost:%d?cacert=%s/ca.crt", members[0].port, dir);
    fails(PAWL_EDENIED, "not accepted for '127.0.0.1'", "etcds://127.0.0.1:%d?cacert=%s/ca.crt", members[1].port, dir);
    for (int i = 0; i < 3; i++) {
        server_kill(&members[i], SIGKILL);
        if (!server_until(can_be_taken, &error, 120000)) fail_msg("without %d: %s", i, error.text);
        shell("%s doctor -w 60s -u '%s' >%s/doctor 2>&1; grep -q 'localhost:%d' %s/doctor && ! grep -q 'not accepted' "
              "%s/doctor",
              getenv("PAWL_BIN"), everywhere, dir, members[i ? i : 1].port, dir, dir);
        server_run(&members[i]);
    }
}

static void test_client_certificates(void **state) {
    (void)state;
    start_tls(&members[0], "server", true);
    int port = members[0].port;
    works("etcds://127.0.0.1:%d?cacert=%s/ca.crt&cert=%s/client.crt&key=%s/client.key", port, dir, dir, dir);
    fails(PAWL_EDENIED, "bad certificate", "etcds://127.0.0.1:%d?cacert=%s/ca.crt", port, dir);
    fails(PAWL_EINVALID, "/none.key: No such file",
          "etcds://127.0.0.1:%d?cacert=%s/ca.crt&cert=%s/client.crt&key=%s/none.key", port, dir, dir, dir);
    fails(PAWL_EINVALID, "/none.crt: No such file", "etcds://127.0.0.1:%d?cacert=%s/none.crt", port, dir);
    fails(PAWL_EINVALID, "private key", "etcds://127.0.0.1:%d?cacert=%s/ca.crt&cert=%s/client.crt&key=%s/other.key",
          port, dir, dir, dir);
}

static void test_a_lock_over_tls_is_kept(void **state) {
    (void)state;
    char at[256];
    start_tls(&members[0], "server", false);
    snprintf(at, sizeof at, "etcds://127.0.0.1:%d?cacert=%s/ca.crt", members[0].port, dir);
    pawl_client *c = client(at, 3000), *d = client(at, 3000);
    pawl_lock *lock = take(c, "n", 0), *next;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_event event = PAWL_EVENT_INIT;
    assert_true(stays_held(lock, 3500));
    assert_int_equal(pawl_acquire_start(d, "n", NULL, NULL, &next, &error), PAWL_OK);
    poll(NULL, 0, 300);
    assert_int_equal(pawl_release(lock, 5000, &error), PAWL_OK);
    struct pollfd p = {.fd = pawl_event_fd(d), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 8000), 1);
    assert_int_equal(pawl_next_event(d, &event), 1);
    assert_int_equal(event.type, PAWL_GRANTED);
    pawl_release(next, 5000, NULL);
    pawl_close(c);
    pawl_close(d);
}

/* --- users --- */

static void start_users(const char *token, const char *more) {
    server_start_etcd(&members[0],
                      (const char *const[]){"--heartbeat-interval=50", "--election-timeout=500", token, more, NULL});
    etcdctl("user add root:rootpw");
    etcdctl("user add 'app:p@:/#%%+= é'");
    etcdctl("user add poor:poor");
    etcdctl("role add locks");
    etcdctl("role grant-permission locks readwrite --prefix=true /locks/");
    etcdctl("user grant-role app locks");
    etcdctl("user grant-role root root");
    snprintf(url, sizeof url, "etcd://" APP "@127.0.0.1:%d/locks/", members[0].port);
}

static void start_auth(const char *token, const char *more) {
    start_users(token, more);
    etcdctl("auth enable");
}

static void granted_after_release(pawl_client *d, pawl_lock *held) {
    pawl_lock *next;
    pawl_event event = PAWL_EVENT_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_acquire_start(d, "n", NULL, NULL, &next, &error), PAWL_OK);
    assert_true(stays_held(held, 2500)); /* so long it waits: its token ran out meanwhile */
    if (pawl_release(held, 5000, &error)) fail_msg("%s", error.text);
    struct pollfd p = {.fd = pawl_event_fd(d), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 8000), 1);
    assert_int_equal(pawl_next_event(d, &event), 1);
    assert_int_equal(event.type, PAWL_GRANTED);
    if (pawl_release(next, 5000, &error)) fail_msg("%s", error.text);
}

static void hold_over_expiries(void) {
    pawl_client *c = client(url, HELD_MS), *d = client(url, HELD_MS);
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock = take(c, "n", 0);
    assert_true(stays_held(lock, HELD_MS / 2));
    if (pawl_verify(lock, 5000, &error)) fail_msg("%s", error.text);
    granted_after_release(d, lock);
    granted_after_release(d, take(c, "n", 0)); /* the stream is an old one now: its token ran out */
    pawl_close(c);
    pawl_close(d);
}

static void test_a_login_that_runs_out_is_renewed(void **state) {
    (void)state;
    start_auth("--auth-token-ttl=1", NULL);
    hold_over_expiries();
    int port = members[0].port;
    fails(PAWL_EDENIED, "authentication failed", "etcd://app:wrong@127.0.0.1:%d/locks/", port);
    fails(PAWL_EDENIED, "user name is empty", "etcd://127.0.0.1:%d/locks/", port);
    fails(PAWL_EDENIED, "readwrite on the prefix", "etcd://poor:poor@127.0.0.1:%d/locks/", port);
    fails(PAWL_EDENIED, "readwrite on the prefix /elsewhere/", "etcd://" APP "@127.0.0.1:%d/elsewhere/", port);
    fails(PAWL_EINVALID, "needs a password", "etcd://app@127.0.0.1:%d/locks/", port);
}

static void test_signed_tokens_and_changed_users(void **state) {
    (void)state;
    char token[400];
    shell("cd %s && exec 2>/dev/null && openssl genrsa -out jwt.key %s && openssl rsa -in jwt.key -pubout -out jwt.pub",
          dir, getenv("PAWL_TEST_FULL") ? "4096" : "2048");
    snprintf(token, sizeof token, "--auth-token=jwt,pub-key=%s/jwt.pub,priv-key=%s/jwt.key,sign-method=RS256,ttl=2s",
             dir, dir);
    start_auth(token, NULL);
    pawl_client *c = client(url, HELD_MS);
    pawl_lock *lock = take(c, "n", 0);
    pawl_error error = PAWL_ERROR_INIT;
    etcdctl("--user root:rootpw user add another:x"); /* each token of before is of an old revision now */
    if (pawl_verify(lock, 5000, &error)) fail_msg("%s", error.text);
    assert_true(stays_held(lock, HELD_MS + 1000));
    assert_int_equal(pawl_release(lock, 5000, &error), PAWL_OK);
    pawl_close(c);
    if (getenv("PAWL_TEST_FULL")) hold_over_expiries();
}

/* Connections that found nothing to log in to, of a holder, of a waiter, and of what is written under the lock. */
static void test_logins_are_asked_for_from_now_on(void **state) {
    (void)state;
    start_users("--auth-token-ttl=60", NULL);
    pawl_client *c = client(url, HELD_MS), *d = client(url, HELD_MS);
    pawl_lock *lock = take(c, "n", 0);
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(try_it(d, "m", &error), PAWL_OK);
    etcdctl("auth enable");
    if (pawl_verify(lock, 5000, &error)) fail_msg("%s", error.text);
    assert_int_equal(try_it(d, "n", &error), PAWL_EBUSY);
    granted_after_release(d, lock);
    pawl_close(c);
    pawl_close(d);
}

/* --- words --- */

static char doubts[512];
static atomic_bool doubted;
static void hear_doubts(const pawl_event *event, const char *name, void *data) {
    (void)name, (void)data;
    if (event->type != PAWL_DOUBT || doubted) return;
    snprintf(doubts, sizeof doubts, "%s", event->text);
    doubted = true;
}
static bool does_doubt(void *data) {
    (void)data;
    return doubted;
}

static int entry(const pawl_entry *e, void *data) {
    (void)e, (void)data;
    return 0;
}

static void said(int code, const char *attempted, int got, const pawl_error *error) {
    char words[128];
    snprintf(words, sizeof words, "127.0.0.1:%d: %s", members[0].port, attempted);
    if (got != code || !strstr(error->text, words)) fail_msg("not '%s', %d: %s", words, got, error->text);
}

/* By a service that refuses, and by one that is silent. */
static void test_errors_say_what_was_attempted(void **state) {
    (void)state;
    pawl_options o = PAWL_OPTIONS_INIT;
    pawl_broken broken = PAWL_BROKEN_INIT;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    pawl_error e = PAWL_ERROR_INIT;
    pawl_client *c;
    o.ttl_ms = HELD_MS;
    start_auth("--auth-token-ttl=60", NULL);
    fails(PAWL_EDENIED, "logging in as 'app': etcd says: ", "etcd://app:wrong@127.0.0.1:%d/locks/", members[0].port);
    fails(PAWL_EDENIED, "(it wants a user: etcd://user:password@host)", "etcd://127.0.0.1:%d/locks/", members[0].port);
    if (pawl_open(url, &o, &c, &e)) fail_msg("%s", e.text);
    pawl_lock *lock = take(c, "n", 0), *other = take(c, "k", 0);
    etcdctl("--user root:rootpw role revoke-permission locks --prefix=true /locks/");
    said(PAWL_EDENIED, "proving 'n': etcd says: ", pawl_verify(lock, 5000, &e), &e);
    said(PAWL_EDENIED, "releasing 'k': etcd says: ", pawl_release(other, 5000, &e), &e);
    said(PAWL_EDENIED, "taking 'm': etcd says: ", try_it(c, "m", &e), &e);
    said(PAWL_EDENIED, "looking at 'n': etcd says: ", pawl_inspect(c, "n", 5000, entry, NULL, &e), &e);
    said(PAWL_EDENIED, "listing the locks: etcd says: ", pawl_inspect(c, NULL, 5000, entry, NULL, &e), &e);
    said(PAWL_EDENIED, "breaking 'n': etcd says: ", pawl_break(c, "n", 0, 5000, &broken, &e), &e);
    said(PAWL_EDENIED, "reading the tokens: etcd says: ", pawl_tokens_show(c, 5000, &tokens, &e), &e);
    said(PAWL_EDENIED, "advancing the tokens: etcd says: ", pawl_tokens_advance(c, 0, 5000, &tokens, &e), &e);
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

/* What silence is called when a renewal and a release met it. */
static void meet_silence(pawl_error *ret) {
    pawl_options o = PAWL_OPTIONS_INIT;
    pawl_error e = PAWL_ERROR_INIT;
    pawl_client *c;
    o.ttl_ms = HELD_MS;
    o.observe = hear_doubts;
    doubted = false;
    if (pawl_open(url, &o, &c, &e)) fail_msg("%s", e.text);
    pawl_lock *lock = take(c, "n", 30000);
    server_kill(&members[0], SIGSTOP);
    assert_true(server_until(does_doubt, NULL, 60000));
    pawl_release(lock, 1500, ret);
    server_kill(&members[0], SIGCONT);
    pawl_close(c);
}

/* Unless time ran out before anything was sent, as it may where this process stood still. */
static void test_silence_says_what_was_attempted(void **state) {
    (void)state;
    pawl_error e = PAWL_ERROR_INIT;
    bool renewing = false, releasing = false;
    for (int i = 0; i < 5 && !(renewing && releasing); i++) {
        meet_silence(&e);
        renewing |= strstr(doubts, ": renewing the lease: the server did not answer in time (") != NULL;
        releasing |= strstr(e.text, ": releasing 'n': the server did not answer in time (") != NULL;
    }
    if (!renewing || !releasing) fail_msg("%s; %s", doubts, e.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tls, certificates, end),
        cmocka_unit_test_setup_teardown(test_tls_with_a_member_down, certificates, end),
        cmocka_unit_test_setup_teardown(test_client_certificates, certificates, end),
        cmocka_unit_test_setup_teardown(test_a_lock_over_tls_is_kept, certificates, end),
        cmocka_unit_test_setup_teardown(test_a_login_that_runs_out_is_renewed, NULL, end),
        cmocka_unit_test_setup_teardown(test_logins_are_asked_for_from_now_on, NULL, end),
        cmocka_unit_test_setup_teardown(test_errors_say_what_was_attempted, NULL, end),
        cmocka_unit_test_setup_teardown(test_silence_says_what_was_attempted, one, end),
        cmocka_unit_test_setup_teardown(test_signed_tokens_and_changed_users, certificates, end),
    };
    return RUN("etcd: access", tests);
}
