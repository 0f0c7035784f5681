/* connect.c: what a connection is refused for, what it is given by the URL, by files and by the settings of the role,
 * and what others see of it. */
#include "holding.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct server server, standby, pooler;
static char base[64]; /* postgresql://127.0.0.1:PORT, without a user */

static void sql(const char *text) {
    char *answer = server_sql(server.port, "%s", text);
    if (!answer || *answer == '-') fail_msg("%s: %s", text, answer ? answer : "no answer");
    free(answer);
}

/* An authority, a certificate for 127.0.0.1, and an authority that nobody knows, before the server reads them. */
static void configure(void) {
    shell("cd %s/data && exec 2>/dev/null && for n in ca other; do openssl req -x509 -newkey ec -pkeyopt "
          "ec_paramgen_curve:P-256 -nodes -keyout $n.key -out ../$n.crt -subj /CN=$n -days 2 || exit 1; done && "
          "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out server.csr -subj "
          "/CN=server && printf 'subjectAltName=IP:127.0.0.1' >ext && openssl x509 -req -in server.csr -CA ../ca.crt "
          "-CAkey ca.key -CAcreateserial -out server.crt -days 2 -extfile ext && chmod 600 server.key && "
          ""
          "{ echo 'host all locked all scram-sha-256'; cat pg_hba.conf; } >hba && cat hba >pg_hba.conf && find . "
          "-maxdepth 1 -type f -exec chown --reference=postgresql.conf {} +",
          server.dir);
    sql("ALTER SYSTEM SET ssl = on");
    sql("SELECT pg_reload_conf()");
}

static int group_setup(void **state) {
    (void)state;
    server_start_postgres(&server, "");
    sql_install(server.url);
    snprintf(base, sizeof base, "127.0.0.1:%d", server.port);
    configure();
    return 0;
}

static int group_teardown(void **state) {
    (void)state;
    server_stop(&pooler);
    server_stop(&standby);
    server_stop(&server);
    return 0;
}

static int connects(const char *url) {
    pawl_client *client = client_of(url, 0);
    holding_error = (pawl_error)PAWL_ERROR_INIT;
    int code = pawl_connect(client, 5000, &holding_error);
    pawl_close(client);
    return code;
}

static void is_refused(const char *url, int code, const char *saying) {
    int got = connects(url);
    if (got != code || !strstr(holding_error.text, saying))
        fail_msg("%s: %d (%d wanted, saying '%s'): %s", url, got, code, saying, holding_error.text);
}

/* A whole cycle. */
static void locks(const char *url) {
    pawl_client *client = client_of(url, 0);
    let_go(hold(client, "cycle"));
    pawl_close(client);
}

static int pooled_findings(const pawl_finding *finding, void *data) {
    if (strcmp(finding->id, "P09") == 0) *(int *)data = finding->level;
    return 0;
}

/* One session for all clients: what the first one prepared is there, and is not ours. Nothing is left in it. */
static void test_a_pooler_that_is_not_what_was_said(void) {
    pawl_client *client[2];
    pawl_lock *lock;
    int level = -1;
    for (int i = 0; i < 2; i++) client[i] = client_of(with(pooler.url, "pooler=session"), 0);
    let_go(hold(client[0], "first"));
    assert_int_equal(take(client[1], "second", 0, &lock), PAWL_EUNSAFE);
    if (!strstr(holding_error.text, "does not keep sessions whole")) fail_msg("%s", holding_error.text);
    assert_null(strstr(holding_error.text, "not installed"));
    must(pawl_doctor(client[0], 20000, pooled_findings, &level, &holding_error));
    assert_int_equal(level, PAWL_LEVEL_UNSAFE);
    for (int i = 0; i < 2; i++) pawl_close(client[i]);
    assert_int_equal(advisory(server.port, true), 0);
}

static void test_poolers(void **state) {
    (void)state;
    static const char *const modes[] = {"session", "transaction", "statement"};
    if (!server_has_pgbouncer()) skip();
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        server_start_pgbouncer(&pooler, &server, modes[i], "default_pool_size = 1\n");
        is_refused(pooler.url, PAWL_EUNSAFE, "is a pooler");
        assert_non_null(strstr(holding_error.text, "the server itself"));
        assert_non_null(strstr(holding_error.text, "pawl.lock("));
        assert_non_null(strstr(holding_error.text, "?pooler=session"));
        pawl_client *installer = client_of(pooler.url, 0);
        assert_int_equal(pawl_init(installer, 5000, &holding_error), PAWL_EUNSAFE);
        assert_non_null(strstr(holding_error.text, "pawl init --print URL | psql -1 URL"));
        pawl_close(installer);
        if (i == 0) { /* where that is true, settings and all arrive */
            pawl_client *client = client_of(with(pooler.url, "pooler=session"), 0);
            pawl_lock *lock = hold(client, "pooled");
            assert_int_equal(advisory(server.port, true), 1);
            let_go(lock);
            pawl_close(client);
        } else if (i == 1) { /* where it is not, the test finds two clients in one session */
            is_refused(with(pooler.url, "pooler=session&selftest=on"), PAWL_EUNSAFE, "does not keep sessions whole");
            test_a_pooler_that_is_not_what_was_said();
        }
        server_stop(&pooler);
    }
    assert_int_equal(advisory(server.port, true), 0);
}

static void test_pretended_locks(void **state) {
    (void)state;
    char url[128];
    sql("CREATE DATABASE pretending");
    snprintf(url, sizeof url, "postgresql://postgres@%s/pretending", base);
    locks(with(url, "token=off&selftest=on"));
    PGconn *conn = sql_dial(server.port, "dbname=pretending");
    sql_does(conn,
             "SET allow_system_table_mods = on; CREATE OR REPLACE FUNCTION pg_catalog.pg_try_advisory_lock(bigint) "
             "RETURNS boolean LANGUAGE sql AS 'SELECT true'");
    PQfinish(conn);
    is_refused(with(url, "token=off&selftest=on"), PAWL_EUNSAFE, "pretends to lock");
}

/* What the server answers to a release counts: "not held" is a loss. */
static void test_a_release_is_what_the_server_says(void **state) {
    (void)state;
    char url[128];
    pawl_error error = PAWL_ERROR_INIT;
    sql("CREATE DATABASE forgetful");
    snprintf(url, sizeof url, "postgresql://postgres@%s/forgetful", base);
    PGconn *conn = sql_dial(server.port, "dbname=forgetful");
    pawl_client *client = client_of(with(url, "token=off"), 0);
    pawl_lock *held = hold(client, "n");
    sql_does(conn, "SET allow_system_table_mods = on; CREATE OR REPLACE FUNCTION pg_catalog.pg_advisory_unlock(bigint) "
                   "RETURNS boolean LANGUAGE sql AS 'SELECT false'");
    assert_int_equal(pawl_release(held, 10000, &error), PAWL_ELOST);
    assert_true(*error.text);
    pawl_close(client);
    PQfinish(conn);
}

static void test_passwords(void **state) {
    (void)state;
    char path[96];
    sql("CREATE ROLE locked LOGIN PASSWORD 'p@:/#%+= \xc3\xa9'");
    char url[256];
    snprintf(url, sizeof url, "postgresql://locked:s3cret@%s/postgres", base);
    is_refused(url, PAWL_EDENIED, "28P01");
    assert_null(strstr(holding_error.text, "s3cret"));
    snprintf(url, sizeof url, "postgresql://locked:p%%40%%3A%%2F%%23%%25+%%3D%%20%%C3%%A9@%s/postgres", base);
    locks(url);
    snprintf(url, sizeof url, "postgresql://locked@%s/postgres", base);
    is_refused(with(url, "passfile=/nowhere"), PAWL_EDENIED, "no password supplied");
    snprintf(path, sizeof path, "%s/pass", server.dir);
    FILE *file = fopen(path, "w");
    assert_true(file && fprintf(file, "127.0.0.1:%d:postgres:locked:p@\\:/#%%+= \xc3\xa9\n", server.port) > 0);
    assert_int_equal(fclose(file) | chmod(path, 0600), 0);
    locks(with(url, "passfile=%s", path));
    char home[96], own[112], *before = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    snprintf(home, sizeof home, "%s/home", server.dir);
    snprintf(own, sizeof own, "%s/.pgpass", home);
    assert_int_equal(mkdir(home, 0700) | rename(path, own) | setenv("HOME", home, 1), 0);
    locks(url); /* ~/.pgpass, unsaid */
    if (before) setenv("HOME", before, 1);
    free(before);
}

static void test_service_file(void **state) {
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/service", server.dir);
    FILE *file = fopen(path, "w");
    assert_true(file &&
                fprintf(file, "[mine]\nhost=127.0.0.1\nport=%d\nuser=postgres\ndbname=postgres\n", server.port) > 0);
    assert_int_equal(fclose(file) | setenv("PGSERVICEFILE", path, 1), 0);
    locks("postgresql:service=mine");
    locks("service=mine");
    pawl_client *client;
    assert_int_equal(pawl_open("postgresql:///?service=other", NULL, &client, &holding_error), PAWL_EINVALID);
    assert_non_null(strstr(holding_error.text, "\"other\" not found"));
    unsetenv("PGSERVICEFILE");
}

static void test_certificates(void **state) {
    (void)state;
    char url[128];
    snprintf(url, sizeof url, "postgresql://postgres@%s/postgres", base);
    locks(with(url, "sslmode=verify-full&sslrootcert=%s/ca.crt", server.dir));
    is_refused(with(url, "sslmode=verify-full&sslrootcert=%s/other.crt", server.dir), PAWL_EDENIED,
               "certificate verify failed");
    snprintf(url, sizeof url, "postgresql://postgres@localhost:%d/postgres", server.port);
    is_refused(with(url, "sslmode=verify-full&sslrootcert=%s/ca.crt", server.dir), PAWL_EDENIED, "does not match");
    locks(with(url, "sslmode=verify-ca&sslrootcert=%s/ca.crt", server.dir));
}

static bool is_ready(void *data) {
    (void)data;
    char *text = server_sql(standby.port, "SELECT count(*) FROM pawl.meta");
    bool ready = text && *text == '1';
    free(text);
    return ready;
}

static void test_several_hosts(void **state) {
    (void)state;
    char url[256];
    server_start_standby(&standby, &server, "ssl = off\n");
    assert_true(server_until(is_ready, NULL, 20000));
    snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:1,127.0.0.1:%d,%s/postgres", standby.port, base);
    is_refused(url, PAWL_EUNREACHABLE, "is a standby");
    assert_non_null(strstr(holding_error.text, "target_session_attrs=read-write"));
    locks(with(url, "target_session_attrs=read-write"));
    pawl_client *a = client_of(with(url, "target_session_attrs=primary"), 0), *b = client_of(server.url, 0);
    pawl_lock *held = hold(a, "hosts");
    is_busy(b, "hosts");
    let_go(held);
    pawl_close(a);
    pawl_close(b);
    server_stop(&standby);
}

/* Whatever a role or a database sets to end sessions and statements early, or to change what they mean. */
static void test_settings_of_the_role(void **state) {
    (void)state;
    static const char *const settings[] = {"statement_timeout = '300ms'",
                                           "lock_timeout = '300ms'",
                                           "idle_session_timeout = '1s'", /* it counts from the connection on, and a
                                                                             loaded machine needs time until our SET */
                                           "idle_in_transaction_session_timeout = '300ms'",
                                           "default_transaction_read_only = on",
                                           "default_transaction_isolation = "
                                           "serializable",
                                           "search_path = nowhere",
                                           "synchronous_commit = off",
                                           "client_min_messages = debug1"};
    char url[128], line[160];
    sql("CREATE ROLE hurried LOGIN");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        snprintf(line, sizeof line, "ALTER ROLE hurried SET %s", settings[i]);
        sql(line);
    }
    snprintf(url, sizeof url, "postgresql://hurried@%s/postgres", base);
    pawl_client *a = client_of(url, 0), *b = client_of(url, 0);
    pawl_lock *held = hold(a, "hurried"), *lock;
    assert_int_equal(take(b, "hurried", 1500, &lock), PAWL_ETIMEOUT);
    must(pawl_verify(held, 10000, &holding_error));
    let_go(held);
    must(take(b, "hurried", 10000, &lock));
    let_go(lock);
    pawl_close(a);
    pawl_close(b);
}

/* An efficiency lock: no schema, nothing written, nothing in the log, and waiting all the same. */
static void test_without_tokens(void **state) {
    (void)state;
    static const char *const modes[] = {"", "&key=int4x2", "&key=hashtext"};
    char url[128];
    sql("CREATE DATABASE bare");
    snprintf(url, sizeof url, "postgresql://postgres@%s/bare", base);
    PGconn *conn = sql_dial(server.port, "dbname=bare");
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const char *name = i == 1 ? "-7/2147483647" : "it's $$ bare";
        pawl_client *a = client_of(with(url, "token=off%s", modes[i]), 0),
                    *b = client_of(with(url, "token=off%s", modes[i]), 0);
        pawl_lock *held = hold(a, name), *lock;
        int64_t ids = sql_number(conn, "SELECT txid_snapshot_xmax(txid_current_snapshot())");
        int errors = log_errors(&server);
        assert_int_equal(pawl_token(held), 0);
        assert_int_equal(take(b, name, 1500, &lock), PAWL_ETIMEOUT); /* one slice of a second ends in it */
        let_go(held);
        must(take(b, name, 10000, &held));
        pawl_acquire_options options = PAWL_ACQUIRE_INIT;
        must(pawl_acquire_start(a, name, &options, NULL, &lock, &holding_error));
        for (int64_t end = clock_now_ns() + 10 * NS_PER_S; advisory(server.port, false) == 0 && clock_now_ns() < end;)
            continue;
        let_go(held);
        pawl_event event = PAWL_EVENT_INIT;
        for (int64_t end = clock_now_ns() + 10 * NS_PER_S; !pawl_next_event(a, &event) && clock_now_ns() < end;)
            continue;
        assert_int_equal(event.type, PAWL_GRANTED);
        let_go(lock);
        assert_int_equal(sql_number(conn, "SELECT txid_snapshot_xmax(txid_current_snapshot())"), ids);
        /* The slice that ended, and the cancellation, are caught; one that comes before the block begins, or behind it,
         * is not. */
        assert_in_range(log_errors(&server), errors, errors + 1);
        pawl_close(a);
        pawl_close(b);
    }
    PQfinish(conn);
}

static int look(const pawl_entry *entry, void *data) {
    bool *seen = data;
    *seen = entry->held && entry->pid == getpid() && entry->label && strcmp(entry->label, "nightly run") == 0 &&
            strcmp(entry->name, "shown") == 0;
    return 0;
}

static int collect(const pawl_entry *entry, void *data) {
    char *names = data;
    snprintf(names + strlen(names), 256 - strlen(names), "%s ", entry->name);
    return 0;
}

/* What is shown as a name is one: the holder is found by it, and the lock taken away. */
static void by_name(pawl_client *client, char *names, PGconn *conn) {
    for (char *save, *name = strtok_r(names, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
        char found[256] = "", same[256];
        snprintf(same, sizeof same, "%s ", name);
        must(pawl_inspect(client, name, 5000, collect, found, &holding_error));
        assert_string_equal(found, same);
        pawl_broken broken = PAWL_BROKEN_INIT;
        if (!conn) continue;
        must(pawl_break(client, name, 0, 20000, &broken, &holding_error));
        assert_true(broken.was_held);
        return; /* its session had the others */
    }
}

/* pawl ls: names are not kept anywhere. A number that is the name of a lock is shown so, any other as a key. */
static void test_numbers_are_shown_as_what_they_are(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"", "key:7 key:-5/9 "}, {"key=int8", "7 key:-5/9 "}, {"key=int4x2", "key:7 -5/9 "}};
    PGconn *conn = sql_dial(server.port, "");
    sql_does(conn, "SELECT pg_advisory_lock(7), pg_advisory_lock(-5, 9)");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char names[256] = "";
        pawl_client *client = client_of(with(server.url, "%s", rows[i][0]), 0);
        must(pawl_inspect(client, NULL, 5000, collect, names, &holding_error));
        assert_string_equal(names, rows[i][1]);
        by_name(client, names, NULL);
        if (i == 0) {
            char none[256] = "";
            must(pawl_inspect(client, "key:8", 5000, collect, none, &holding_error));
            must(pawl_inspect(client, "key:9/-5", 5000, collect, none, &holding_error));
            pawl_lock *called = hold(client, "key:11"); /* a name as any other */
            must(pawl_inspect(client, "key:11", 5000, collect, none, &holding_error));
            assert_string_equal(none, "key:11 ");
            must(pawl_release(called, 5000, &holding_error));
        }
        pawl_close(client);
    }
    pawl_client *client = client_of(server.url, 0);
    char name[] = "key:-5/9";
    by_name(client, name, conn);
    pawl_close(client);
    PQfinish(conn);
}

static void test_what_others_see(void **state) {
    (void)state;
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_client *a, *b = client_of(server.url, 0);
    bool seen = false;
    options.label = "nightly run";
    must(pawl_open(server.url, &options, &a, &holding_error));
    pawl_lock *held = hold(a, "shown"), *lock;
    must(pawl_inspect(b, "shown", 10000, look, &seen, &holding_error));
    assert_true(seen);
    assert_int_equal(take(b, "shown", 0, &lock), PAWL_EBUSY);
    char pid[16];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    assert_non_null(strstr(holding_error.text, pid)); /* who holds it */
    static const int64_t waits_ms[] = {300, 2300};    /* looked for at once, and behind the first slice */
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(take(b, "shown", waits_ms[i], &lock), PAWL_ETIMEOUT);
        assert_non_null(strstr(holding_error.text, pid));
    }
    let_go(held);
    PGconn *conn = sql_dial(server.port, "application_name=psql");
    sql_does(conn, "SELECT pg_advisory_lock(hashtextextended('shown', 0))");
    assert_int_equal(take(b, "shown", 0, &lock), PAWL_EBUSY);
    assert_non_null(strstr(holding_error.text, "psql"));
    PQfinish(conn);
    pawl_close(a);
    pawl_close(b);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poolers),
        cmocka_unit_test(test_pretended_locks),
        cmocka_unit_test(test_a_release_is_what_the_server_says),
        cmocka_unit_test(test_passwords),
        cmocka_unit_test(test_service_file),
        cmocka_unit_test(test_certificates),
        cmocka_unit_test(test_several_hosts),
        cmocka_unit_test(test_settings_of_the_role),
        cmocka_unit_test(test_without_tokens),
        cmocka_unit_test(test_numbers_are_shown_as_what_they_are),
        cmocka_unit_test(test_what_others_see),
    };
    return cmocka_run_group_tests_name("postgresql connect", tests, group_setup, group_teardown);
}
