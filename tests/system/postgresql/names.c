/* names.c: from names to the numbers of advisory locks: the same in a session, in SQL, and in what other people have;
 * in databases of any encoding; and whatever the environment says to libpq. */
#include "pawl.h"
#include "pawl_postgres.h"
#include "server.h"
#include "sql.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static pawl_client *client(const char *url) {
    pawl_client *c;
    pawl_error error = PAWL_ERROR_INIT;
    if (pawl_open(url, NULL, &c, &error)) fail_msg("%s", error.text);
    return c;
}

static int try(pawl_client *c, const char *name, pawl_lock **ret, pawl_error *error) {
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    o.wait_ms = 0;
    return pawl_acquire(c, name, &o, ret, error);
}

static pawl_lock *take(pawl_client *c, const char *name) {
    pawl_lock *lock;
    pawl_error error = PAWL_ERROR_INIT;
    if (try(c, name, &lock, &error)) fail_msg("%s: %s", name, error.text);
    return lock;
}

/* mode, name, and the arguments of a lock function as other people write them */
static const char *const rows[][3] = {
    {"hashtextextended", "payment:order_123", "hashtextextended('payment:order_123', 0)"},
    {"hashtextextended", "zażółć 😀", "hashtextextended('zażółć 😀', 0)"},
    {"hashtext", "payment:order_123", "hashtext('payment:order_123')"},
    {"hashtext", "x", "hashtext('x')"},
    {"int8", "8472948291048", "8472948291048"},
    {"int8", "-9223372036854775808", "'-9223372036854775808'::bigint"},
    {"int8", "0", "0"},
    {"int4x2", "1001/45892", "1001, 45892"},
    {"int4x2", "-2147483648/2147483647", "-2147483648, 2147483647"},
    {"int4x2", "orders/order_123", "hashtext('orders'), hashtext('order_123')"},
    {"int4x2", "orders/45892", "hashtext('orders'), 45892"},
    {"int4x2", "1/a/b", "1, hashtext('a/b')"},
    {"fnv1a63", "job", "4999694984129765468"},
    {"fnv1a63", "foobar", "402018224477661160"}, /* of the reference: 85944171f73967e8, without the highest bit */
    {"java31", "hello", "99162322"},             /* "hello".hashCode() */
    {"java31", "😀", "1772899"},                  /* 31 * 0xd83d + 0xde00 */
    {"java31", "polygenelubricants", "0"},       /* hashCode() is Integer.MIN_VALUE */
};

static void test_keys_meet_each_other(void **state) {
    (void)state;
    PGconn *a = sql_dial(primary.port, ""), *b = sql_dial(primary.port, "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *mode = rows[i][0], *name = rows[i][1], *foreign = rows[i][2];
        char url[256];
        snprintf(url, sizeof url, "%s?key=%s", primary.url, mode);
        pawl_client *c = client(url);
        pawl_error error = PAWL_ERROR_INIT;
        pawl_lock *lock = take(c, name);
        char *theirs = NULL;
        assert_true(asprintf(&theirs, "SELECT pg_try_advisory_xact_lock(%s)::int", foreign) > 0);
        sql_does(a, "BEGIN"); /* the session holds it */
        if (sql_number(a, "%s", theirs) != 0) fail_msg("%s %s: %s", mode, name, theirs);
        if (sql_number(a, "SELECT pawl.try_lock('%s', key => '%s')", name, mode) != 0) fail_msg("%s %s", mode, name);
        assert_int_equal(pawl_release(lock, 2000, NULL), PAWL_OK);
        assert_int_equal(sql_number(a, "%s", theirs), 1); /* somebody else holds it */
        assert_int_equal(try(c, name, &lock, &error), PAWL_EBUSY);
        sql_does(b, "BEGIN");
        assert_int_equal(sql_number(b, "SELECT pawl.try_lock('%s', key => '%s')", name, mode), 0);
        sql_does(a, "COMMIT; BEGIN");
        pawl_postgres_options o = PAWL_POSTGRES_INIT; /* a transaction holds it */
        o.key = mode;
        int64_t token;
        if (pawl_postgres_lock(b, name, &o, &token, &error)) fail_msg("%s", error.text);
        assert_int_equal(try(c, name, &lock, &error), PAWL_EBUSY);
        assert_int_equal(sql_number(a, "%s", theirs), 0);
        sql_does(a, "COMMIT");
        sql_does(b, "COMMIT");
        free(theirs);
        pawl_close(c);
    }
    PQfinish(a);
    PQfinish(b);
}

static void test_what_is_no_key(void **state) {
    (void)state;
    static const char *const bad[][2] = {{"int8", "12a"},    {"int8", "007"},    {"int8", "+5"},
                                         {"int8", "-0"},     {"int8", " 5"},     {"int8", "9223372036854775808"},
                                         {"int4x2", "1001"}, {"int4x2", "/1"},   {"int4x2", "1/"},
                                         {"int4x2", "01/1"}, {"int4x2", "1/+1"}, {"int4x2", "2147483648/1"}};
    PGconn *a = sql_dial(primary.port, "");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char url[256], sql[128];
        snprintf(url, sizeof url, "%s?key=%s", primary.url, bad[i][0]);
        snprintf(sql, sizeof sql, "SELECT pawl.key('%s', '%s')", bad[i][1], bad[i][0]);
        pawl_client *c = client(url);
        pawl_lock *lock;
        pawl_error error = PAWL_ERROR_INIT;
        if (try(c, bad[i][1], &lock, &error) != PAWL_EINVALID) fail_msg("%s", bad[i][1]);
        char *text = sql_ask(a, sql);
        if (strncmp(text, "-22", 3) != 0) fail_msg("%s: %s", sql, text);
        free(text);
        pawl_close(c);
    }
    PQfinish(a);
}

/* A name is what its bytes are, whatever the collation of the column that it comes from, and whatever the search path.
 */
static void test_collation_and_search_path(void **state) {
    (void)state;
    PGconn *a = sql_dial(primary.port, "");
    pawl_client *c = client(primary.url);
    pawl_lock *lock = take(c, "Name");
    sql_does(a, "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)");
    sql_does(a, "CREATE TABLE job (name text COLLATE ci); INSERT INTO job VALUES ('Name')");
    sql_does(a,
             "CREATE SCHEMA trap; CREATE FUNCTION trap.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS "
             "'SELECT 7::bigint'; SET search_path = trap, public, pg_catalog");
    assert_int_equal(sql_number(a, "SELECT count(*) FROM job WHERE name = 'nAME'"), 1);
    sql_does(a, "BEGIN");
    assert_int_equal(sql_number(a, "SELECT pawl.try_lock(name) FROM job"), 0);
    assert_true(sql_number(a, "SELECT pawl.try_lock('nAME')") > 0);
    sql_does(a, "COMMIT");
    sql_does(a,
             "BEGIN; SELECT pawl.try_lock(name, key => 'int4x2') FROM (SELECT 'Name/7' COLLATE ci AS name) n; COMMIT");
    pawl_release(lock, 2000, NULL);
    pawl_close(c);
    PQfinish(a);
}

static void test_encodings(void **state) {
    (void)state;
    static const char *const encodings[] = {"LATIN1", "SQL_ASCII", "EUC_JP"};
    for (int i = 0; i < 3; i++) {
        char url[128], more[64], database[16];
        snprintf(database, sizeof database, "db%d", i);
        snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:%d/%s", primary.port, database);
        snprintf(more, sizeof more, "dbname=%s client_encoding=UTF8", database);
        free(server_sql(primary.port, "CREATE DATABASE %s ENCODING '%s' LOCALE 'C' TEMPLATE template0", database,
                        encodings[i]));
        sql_install(url);
        const char *name = i == 2 ? "錠" : "é"; /* that all but SQL_ASCII convert */
        PGconn *a = sql_dial(primary.port, more);
        pawl_client *c = client(url);
        pawl_error error = PAWL_ERROR_INIT;
        pawl_lock *lock = take(c, name), *none;
        sql_does(a, "BEGIN");
        assert_int_equal(sql_number(a, "SELECT pawl.try_lock('%s')", name), 0);
        assert_int_equal(sql_number(a, "SELECT pg_try_advisory_xact_lock(hashtextextended('%s', 0))::int", name), 0);
        assert_int_equal(pawl_release(lock, 2000, NULL), PAWL_OK);
        pawl_postgres_options o = PAWL_POSTGRES_INIT;
        int64_t token;
        o.wait_ms = 0;
        if (pawl_postgres_lock(a, name, &o, &token, &error)) fail_msg("%s", error.text);
        assert_int_equal(try(c, name, &none, &error), PAWL_EBUSY);
        sql_does(a, "COMMIT");
        assert_true(sql_number(a, "SELECT id FROM pawl.key('%s', 'fnv1a63')", name) ==
                    (i == 2 ? INT64_C(9094534681461733768) : INT64_C(775207407765167617)));
        assert_int_equal(sql_number(a, "SELECT id FROM pawl.key('%s', 'java31')", name), i == 2 ? 0x9320 : 0xe9);
        int code = try(c, "😀", &lock, &error); /* that LATIN1 and EUC_JP lack: said, and no lock instead */
        assert_int_equal(code, i == 1 ? PAWL_OK : PAWL_EINVALID);
        if (code) assert_non_null(strstr(error.text, "no equivalent"));
        else pawl_release(lock, 2000, NULL);
        lock = take(c, "plain");
        pawl_release(lock, 2000, NULL);
        pawl_close(c);
        PQfinish(a);
    }
}

/* What libpq would read from the environment, with values that would break each connection. */
static void test_environment(void **state) {
    (void)state;
    static const char *const variables[][2] = {{"PGHOST", "/nowhere"},
                                               {"PGHOSTADDR", "192.0.2.1"},
                                               {"PGPORT", "1"},
                                               {"PGDATABASE", "nowhere"},
                                               {"PGUSER", "nobody"},
                                               {"PGPASSWORD", "wrong"},
                                               {"PGPASSFILE", "/nowhere"},
                                               {"PGREQUIREPEER", "nobody"},
                                               {"PGSSLMODE", "verify-full"},
                                               {"PGSSLROOTCERT", "/nowhere"},
                                               {"PGSSLCERT", "/nowhere"},
                                               {"PGSSLKEY", "/nowhere"},
                                               {"PGSSLCRL", "/nowhere"},
                                               {"PGSSLMINPROTOCOLVERSION", "TLSv9"},
                                               {"PGSSLMAXPROTOCOLVERSION", "TLSv0"},
                                               {"PGGSSENCMODE", "require"},
                                               {"PGCHANNELBINDING", "require"},
                                               {"PGTARGETSESSIONATTRS", "standby"},
                                               {"PGOPTIONS", "-c default_transaction_read_only=on -c nonsense=x"},
                                               {"PGAPPNAME", "somebody"},
                                               {"PGCLIENTENCODING", "LATIN1"},
                                               {"PGCONNECT_TIMEOUT", "x"},
                                               {"PGDATESTYLE", "German"},
                                               {"PGTZ", "Asia/Kathmandu"}};
    pawl_client *before = client(primary.url);
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *held = take(before, "é"), *lock;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        setenv(variables[i][0], variables[i][1], 1);
        pawl_client *c = client(primary.url);
        int code = try(c, "é", &lock, &error);
        if (code != PAWL_EBUSY) fail_msg("%s: %s", variables[i][0], error.text);
        lock = take(c, "other");
        assert_int_equal(pawl_release(lock, 2000, NULL), PAWL_OK);
        pawl_close(c);
    }
    pawl_client *c = client(primary.url); /* all together */
    assert_int_equal(try(c, "é", &lock, &error), PAWL_EBUSY);
    pawl_close(c);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i][0]);
    pawl_release(held, 2000, NULL);
    pawl_close(before);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_meet_each_other),
        cmocka_unit_test(test_what_is_no_key),
        cmocka_unit_test(test_collation_and_search_path),
        cmocka_unit_test(test_encodings),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests_name("names", tests, sql_group_setup, sql_group_teardown);
}
