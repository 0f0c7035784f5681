/* install.c: `pawl init`: again, twice at once, over an older layout and under a newer one; and that whoever uses locks
 * needs no right to change them. */
#include "clock.h"
#include "pawl.h"
#include "pawl_postgres.h"
#include "ran.h"
#include "server.h"
#include "sql.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int group_setup(void **state) {
    (void)state;
    server_start_postgres(&primary, "");
    return 0;
}

static void url_of(const char *user, const char *database, char ret[128]) {
    snprintf(ret, 128, "postgresql://%s@127.0.0.1:%d/%s", user, primary.port, database);
}

/* A database of its own for a test. */
static PGconn *database(const char *name, char url[128]) {
    char more[64];
    free(server_sql(primary.port, "CREATE DATABASE %s", name));
    snprintf(more, sizeof more, "dbname=%s", name);
    url_of("postgres", name, url);
    return sql_dial(primary.port, more);
}

/* All that is in the schema, its rights, and where the numbers stand. */
static char *everything(PGconn *conn) {
    return sql_ask(
        conn, "SELECT string_agg(t, E'\\n' ORDER BY t) FROM ("
              "SELECT format('%s %s %s %s', p.oid::regprocedure, md5(p.prosrc), p.proacl, p.proconfig) FROM pg_proc p "
              "WHERE p.pronamespace = 'pawl'::regnamespace "
              "UNION ALL SELECT format('%s %s %s', c.oid, c.relname, c.relacl) FROM pg_class c WHERE c.relnamespace = "
              "'pawl'::regnamespace UNION ALL SELECT nspacl::text FROM pg_namespace WHERE nspname = 'pawl' "
              "UNION ALL SELECT format('%s %s %s %s', m.layout, t.last_value, s.last_value, v.last_value) "
              "FROM pawl.meta m, pawl.token t, pawl.since s, pawl.server v) AS all_of_it(t)");
}

static void test_again_changes_nothing(void **state) {
    (void)state;
    char url[128];
    PGconn *c = database("again", url);
    sql_install(url);
    sql_does(c, "SELECT pawl.admit()");
    char *before = everything(c);
    assert_non_null(strstr(before, "lock(text,interval,text)"));
    sql_install(url);
    char *after = everything(c);
    assert_string_equal(before, after);
    free(before);
    free(after);
    PQfinish(c);
}

static void *install(void *data) {
    sql_install(data);
    return NULL;
}

static void test_several_at_once(void **state) {
    (void)state;
    for (int round = 0; round < 3; round++) {
        char name[16], url[128];
        pthread_t threads[4];
        snprintf(name, sizeof name, "atonce%d", round);
        PGconn *c = database(name, url);
        for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, install, url), 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        assert_int_equal(sql_number(c, "SELECT layout FROM pawl.meta"), 2);
        PQfinish(c);
    }
}

/* The text for other tools is the same, and whole: it needs one transaction, and no more. */
static void test_as_text(void **state) {
    (void)state;
    char url[128];
    PGconn *c = database("astext", url);
    pawl_client *client;
    assert_int_equal(pawl_open(url, NULL, &client, NULL), PAWL_OK);
    const char *text = pawl_init_text(client);
    for (int i = 0; i < 2; i++) {
        sql_does(c, "BEGIN");
        PGresult *result = PQexec(c, text);
        if (PQresultStatus(result) != PGRES_COMMAND_OK) fail_msg("%s", PQerrorMessage(c));
        PQclear(result);
        assert_int_equal(PQtransactionStatus(c), PQTRANS_INTRANS); /* a migration's transaction is its own */
        sql_does(c, "COMMIT");
    }
    pawl_error error = PAWL_ERROR_INIT;
    if (pawl_connect(client, 5000, &error)) fail_msg("%s", error.text);
    pawl_close(client);
    PQfinish(c);
}

static void test_layouts(void **state) {
    (void)state;
    char url[128];
    PGconn *c = database("layouts", url);
    pawl_client *client;
    pawl_error error = PAWL_ERROR_INIT;
    /* What the first layout had, as far as it differs. */
    sql_does(c, "CREATE SCHEMA pawl; CREATE SEQUENCE pawl.token MAXVALUE 9007199254740991;"
                "CREATE TABLE pawl.meta (one boolean PRIMARY KEY DEFAULT true CHECK (one), layout integer NOT NULL, id "
                "text NOT "
                "NULL, since bigint NOT NULL); INSERT INTO pawl.meta (layout, id, since) VALUES (1, 'new', 0);"
                "CREATE FUNCTION pawl.admit(client_us bigint DEFAULT 0) RETURNS void LANGUAGE sql AS ''");
    sql_does(c, "SELECT setval('pawl.token', 4000000000000000)"); /* ahead of the clock */
    assert_int_equal(pawl_open(url, NULL, &client, NULL), PAWL_OK);
    assert_int_equal(pawl_connect(client, 5000, &error), PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "older layout"));
    if (pawl_init(client, 20000, &error)) fail_msg("%s", error.text);
    if (pawl_connect(client, 5000, &error)) fail_msg("%s", error.text);
    assert_int_equal(sql_number(c, "SELECT layout FROM pawl.meta"), 2);
    sql_does(c, "BEGIN");
    assert_true(sql_number(c, "SELECT pawl.lock('n')") > INT64_C(4000000000000000)); /* the numbers went on */
    sql_does(c, "COMMIT; UPDATE pawl.meta SET layout = 3");
    char *before = everything(c);
    assert_int_equal(pawl_init(client, 20000, &error), PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "newer"));
    char *after = everything(c);
    assert_string_equal(before, after);
    free(before);
    free(after);
    pawl_close(client);
    assert_int_equal(pawl_open(url, NULL, &client, NULL), PAWL_OK); /* and whoever would lock is refused as well */
    assert_int_equal(pawl_connect(client, 5000, &error), PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "newer"));
    pawl_close(client);
    PQfinish(c);
}

static int take_and_release(const char *url, pawl_error *error) {
    pawl_client *client;
    pawl_lock *lock;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    int code = pawl_open(url, NULL, &client, error);
    if (code) return code;
    code = pawl_acquire(client, "n", NULL, &lock, error);
    if (code == PAWL_OK) code = pawl_release(lock, 2000, error);
    if (code == PAWL_OK) code = pawl_tokens_show(client, 2000, &tokens, error);
    if (code == PAWL_OK) code = pawl_inspect(client, NULL, 2000, NULL, NULL, error);
    pawl_close(client);
    return code;
}

static void test_who_uses_cannot_change(void **state) {
    (void)state;
    static const char *const forbidden[] = {
        "SELECT pawl.advance()",
        "SELECT setval('pawl.token', 1)",
        "SELECT setval('pawl.server', 0)",
        "ALTER SEQUENCE pawl.token RESTART",
        "UPDATE pawl.meta SET layout = 1",
        "DROP SCHEMA pawl CASCADE",
        "CREATE TABLE pawl.mine ()",
        "CREATE OR REPLACE FUNCTION pawl.clock_us() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'"};
    char owner[128], app[128];
    pawl_error error = PAWL_ERROR_INIT;
    PGconn *c = database("roles", owner);
    sql_does(c, "CREATE ROLE owner LOGIN; CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE roles TO owner");
    url_of("owner", "roles", owner);
    url_of("app", "roles", app);
    sql_install(owner);
    PQfinish(c);
    server_restart(&primary); /* the application's first question begins the numbers anew */
    PGconn *a = sql_dial(primary.port, "dbname=roles user=app");
    int64_t token;
    sql_does(a, "BEGIN");
    if (pawl_postgres_lock(a, "n", NULL, &token, &error)) fail_msg("%s", error.text);
    sql_does(a, "COMMIT");
    if (take_and_release(app, &error)) fail_msg("%s", error.text);
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) sql_refuses(a, forbidden[i], "42501", "");
    pawl_client *client;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    assert_int_equal(pawl_open(app, NULL, &client, NULL), PAWL_OK);
    assert_int_equal(pawl_init(client, 5000, &error), PAWL_EDENIED);
    assert_int_equal(pawl_tokens_advance(client, 0, 5000, &tokens, &error), PAWL_EDENIED);
    pawl_close(client);
    PGconn *o = sql_dial(primary.port, "dbname=roles user=owner");
    assert_true(sql_number(o, "SELECT pawl.advance()") > token);
    /* Kept from everybody, given to one: and another `pawl init` leaves it so. */
    sql_does(o, "REVOKE USAGE ON SCHEMA pawl FROM PUBLIC");
    sql_install(owner);
    assert_int_equal(take_and_release(app, &error), PAWL_EDENIED);
    sql_refuses(a, "SELECT pawl.lock('n')", "42501", "schema pawl");
    sql_does(o, "GRANT USAGE ON SCHEMA pawl TO app");
    if (take_and_release(app, &error)) fail_msg("%s", error.text);
    PQfinish(a);
    PQfinish(o);
}

/* ADVANCE shuts out whoever draws; with an open transaction that has drawn it says so, soon, and nothing is changed. */
static void test_advance_and_open_transactions(void **state) {
    (void)state;
    char url[128];
    PGconn *c = database("advance", url), *other = sql_dial(primary.port, "dbname=advance");
    pawl_client *client;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    sql_install(url);
    assert_int_equal(pawl_open(url, NULL, &client, NULL), PAWL_OK);
    sql_does(c, "BEGIN");
    int64_t drawn = sql_number(c, "SELECT pawl.lock('n')"), began = ran_ns();
    assert_int_equal(pawl_tokens_advance(client, 0, 10000, &tokens, &error), PAWL_EBUSY);
    assert_non_null(strstr(error.text, "still open"));
    assert_in_range(ran_ns() - began, 0, 8000 * NS_PER_MS);
    sql_does(other, "BEGIN");
    assert_int_equal(sql_number(other, "SELECT pawl.lock('m')"), drawn + 1);
    sql_does(other, "COMMIT");
    sql_does(c, "COMMIT");
    if (pawl_tokens_advance(client, drawn + INT64_C(5000000000), 10000, &tokens, &error)) fail_msg("%s", error.text);
    sql_does(other, "BEGIN");
    assert_true(sql_number(other, "SELECT pawl.lock('m')") > drawn + INT64_C(5000000000));
    sql_does(other, "COMMIT");
    pawl_close(client);
    PQfinish(c);
    PQfinish(other);
}

/* What a role of no rights puts before the types, functions, operators and collations of the system runs with its
 * rights: else it makes itself a superuser. In its temporary schema, which is looked into first, and in one of its own.
 */
static void test_nobody_gets_the_rights_of_the_owner(void **state) {
    (void)state;
    static const char *const calls[] = {
        "SELECT pawl.admit()",
        "BEGIN; SELECT pawl.lock('n'); COMMIT",
        "BEGIN; SELECT pawl.try_lock('n', '1s'); COMMIT",
        "SELECT pawl.guard('r', 'l', 7)",
        "SELECT pawl.guard('r', 'l', 7)",
        "SELECT pawl.guard('r', 'l', 8)",
        "SELECT pawl.guard('r', 'l', 6)",
        "SELECT pawl.guard_or_refuse('s', 'l', 7, 0, NULL)",
        "SELECT pawl.guard_or_refuse('s', 'l', 6, 0, NULL)",
        "SELECT pawl.guard_step('put', 's', 'l', 8, 0, '', 'w', '', false, '', 1000)",
        "SELECT pawl.guard_row('t', 't')",
        "BEGIN; SET LOCAL pawl.lock = 'l'; SET LOCAL pawl.token = '8'; SELECT pawl.guard_row('t', 't'), "
        "pawl.guard_row('t', 't'), pawl.guard_row_anew('t', 'u'); INSERT INTO public.kept SELECT count(*), 1 FROM "
        "public.kept; UPDATE public.kept SET n = 2; COMMIT"};
    char url[128];
    PGconn *c = database("eve", url);
    sql_install(url);
    sql_does(c, "CREATE ROLE eve LOGIN; CREATE TABLE public.kept (id int PRIMARY KEY, n int); SELECT "
                "pawl.protect('public.kept'); GRANT ALL ON public.kept TO eve; CREATE SCHEMA evil AUTHORIZATION eve");
    static const char *const places[] = {"pg_temp", "evil"}, *const types[] = {"text", "oid",    "regclass", "bytea",
                                                                               "name", "float8", "int8"};
    for (size_t place = 0; place < 2; place++)
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            PGconn *eve = sql_dial(primary.port, "dbname=eve user=eve");
            sql_does(c, "TRUNCATE pawl.guarded; SELECT setval('pawl.server', 0)");
            if (place) sql_does(eve, "DROP SCHEMA IF EXISTS evil CASCADE");
            if (place) sql_does(c, "CREATE SCHEMA evil AUTHORIZATION eve");
            const char *in = places[place];
            sql_does(eve,
                     "CREATE FUNCTION %s.spring() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN IF current_user <> 'eve' "
                     "THEN ALTER ROLE eve SUPERUSER; END IF; RETURN true; END $$;"
                     "CREATE FUNCTION %s.spring(a pg_catalog.text, b pg_catalog.text) RETURNS bool LANGUAGE plpgsql AS "
                     "$$ BEGIN PERFORM %s.spring(); RETURN a OPERATOR(pg_catalog.=) b; END $$;",
                     in, in, in);
            for (size_t t = 0; t < sizeof types / sizeof *types; t++)
                sql_does(eve, "CREATE DOMAIN %s.%s AS pg_catalog.%s CHECK (%s.spring())", in, types[t], types[t], in);
            if (place)
                sql_does(eve, "CREATE OPERATOR evil.= (leftarg = pg_catalog.text, rightarg = pg_catalog.text, function "
                              "= evil.spring); CREATE FUNCTION evil.nextval(pg_catalog.text) RETURNS bigint LANGUAGE "
                              "sql AS 'SELECT evil.spring()::int::bigint'; CREATE COLLATION evil.\"C\" FROM "
                              "pg_catalog.\"POSIX\"; SET search_path = evil, pg_catalog");
            free(sql_ask(eve, calls[i]));
            free(sql_ask(eve, "ROLLBACK"));
            if (sql_number(c, "SELECT count(*) FROM pg_roles WHERE rolname = 'eve' AND rolsuper"))
                fail_msg("with types in %s, %s made its role a superuser", in, calls[i]);
            PQfinish(eve);
        }
    PQfinish(c);
}

/* Every function of ours has a search path with the temporary schema last, but for those that are called at each lock
 * or row, where it would cost as much as the rest: these are in the list, and name the schema of everything. */
static void test_search_paths(void **state) {
    (void)state;
    char url[128];
    PGconn *c = database("paths", url);
    sql_install(url);
    sql_does(c, "CREATE TABLE public.kept (id int PRIMARY KEY, n int); SELECT pawl.protect('public.kept')");
    char *loose = sql_ask(c, "SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = "
                             "'pawl'::regnamespace AND array_to_string(proconfig, ';') IS DISTINCT FROM NULL AND NOT "
                             "'search_path=pg_catalog, pg_temp' = ANY (proconfig)");
    assert_string_equal(loose, "");
    free(loose);
    loose = sql_ask(c, "SELECT string_agg(regexp_replace(proname, '_[0-9]+$', ''), ' ' ORDER BY proname) FROM pg_proc "
                       "WHERE pronamespace = 'pawl'::regnamespace AND proconfig IS NULL");
    assert_string_equal(loose, "clock_us guard guard_row lock lock_shared next_token protect take try_lock "
                               "try_lock_shared try_xact_lock xact_lock");
    free(loose);
    /* A cast, a collation, or an operator in bodies with the owner's rights. */
    loose = sql_ask(c, "SELECT string_agg(proname || ': ' || m[1], '; ') FROM pg_proc, regexp_matches(prosrc, "
                       "'(::(?!pg_catalog\\.|bigint|integer)\\w+|COLLATE \"C\"|[^:]=[^>]|<[>=]?|\\|\\|)', 'g') m WHERE "
                       "pronamespace = 'pawl'::regnamespace AND prosecdef AND proconfig IS NULL AND m[1] !~ "
                       "'[.]=|:='");
    assert_string_equal(loose, "");
    free(loose);
    PQfinish(c);
}

/* The end of the numbers is said in words; nobody gets there by a slip. */
static void test_the_end_of_the_numbers(void **state) {
    (void)state;
    char url[128];
    pawl_error error = PAWL_ERROR_INIT;
    PGconn *c = database("far", url);
    sql_install(url);
    sql_refuses(c, "SELECT pawl.advance(9007199254740991)", "22023", "ten years ahead");
    assert_int_equal(take_and_release(url, &error), PAWL_OK);
    sql_does(c, "SELECT setval('pawl.token', 9007199254740991), setval('pawl.server', 0)");
    sql_refuses(c, "SELECT pawl.admit()", "2200H", "the token numbers are used up");
    assert_int_equal(take_and_release(url, &error), PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "used up"));
    sql_does(c, "SELECT setval('pawl.token', 7), pawl.admit(), setval('pawl.token', 9007199254740991)");
    assert_int_equal(take_and_release(url, &error), PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "used up"));
    PQfinish(c);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again_changes_nothing),
        cmocka_unit_test(test_several_at_once),
        cmocka_unit_test(test_as_text),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_who_uses_cannot_change),
        cmocka_unit_test(test_nobody_gets_the_rights_of_the_owner),
        cmocka_unit_test(test_search_paths),
        cmocka_unit_test(test_advance_and_open_transactions),
        cmocka_unit_test(test_the_end_of_the_numbers),
    };
    return cmocka_run_group_tests_name("install", tests, group_setup, sql_group_teardown);
}
