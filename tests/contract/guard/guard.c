/* What each kind of guard owes (docs/FENCING.md), through the public header: every answer, and that a refusal changes
 * nothing. */
#include "fixture.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define TOP INT64_C(9007199254740991) /* 2^53 - 1 */
#define DAY INT64_C(86400000000)

static pawl_guard_write of(const char *resource, int64_t token) {
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    write.resource = resource;
    write.lock = "acct";
    write.token = token;
    write.by = "worker 1";
    return write;
}

static int put(const char *resource, int64_t token, const char *data) {
    pawl_guard_write write = of(resource, token);
    return pawl_guard_put(guard, &write, data, strlen(data), &error);
}

static int seal(const char *resource, int64_t token) {
    pawl_guard_write write = of(resource, token);
    return pawl_guard_seal(guard, &write, &error);
}

static void is(const char *resource, int64_t token, const char *data) {
    pawl_guard_record *record = NULL;
    if (pawl_guard_get(guard, resource, &record, &error)) fail_msg("get %s: %s", resource, error.text);
    assert_string_equal(record->resource, resource);
    assert_int_equal(record->token, token);
    assert_int_equal(record->written, data != NULL);
    assert_int_equal(record->length, data ? strlen(data) : 0);
    assert_string_equal(record->data, data ? data : "");
    pawl_guard_free(record);
}

static void says(const char *part) {
    if (!strstr(error.text, part)) fail_msg("'%s' does not say '%s'", error.text, part);
}

static void test_life_of_a_resource(void **data) {
    (void)data;
    pawl_guard_record *record = NULL;
    assert_int_equal(pawl_guard_get(guard, "balance", &record, &error), PAWL_GNORECORD);
    assert_null(record);
    assert_int_equal(pawl_guard_reset(guard, "balance", 5, NULL, "why", &error), PAWL_GNORECORD);
    assert_int_equal(put("balance", 7, "1000"), PAWL_OK);
    is("balance", 7, "1000");
    assert_int_equal(put("balance", 7, "1001"), PAWL_OK);
    assert_int_equal(put("balance", 8, ""), PAWL_OK);
    is("balance", 8, "");
    assert_int_equal(put("balance", 7, "1500"), PAWL_GSTALE);
    assert_int_equal(error.code, PAWL_GSTALE);
    says("stale token 7 from worker 1; current is 8, written by worker 1");
    says("Nothing was changed.");
    is("balance", 8, "");
    assert_int_equal(pawl_guard_get(guard, "balance", &record, &error), PAWL_OK);
    assert_string_equal(record->lock, "acct");
    assert_string_equal(record->by, "worker 1");
    assert_int_equal(record->rule, PAWL_RULE_GE);
    assert_true(llabs(record->at_ms / 1000 - (int64_t)time(NULL)) < 60);
    assert_int_equal(record->n_resets, 0);
    pawl_guard_free(record);
}

static void test_refusals_differ_and_change_nothing(void **data) {
    (void)data;
    assert_int_equal(put("r", 7, "data"), PAWL_OK);
    pawl_guard_write write = of("r", 9);
    write.lock = "other";
    assert_int_equal(pawl_guard_put(guard, &write, "x", 1, &error), PAWL_GWRONGLOCK);
    says("belongs to lock 'acct', not 'other'");
    assert_int_equal(pawl_guard_seal(guard, &write, &error), PAWL_GWRONGLOCK);
    assert_int_equal(put("r", 0, "x"), PAWL_GNOTOKEN);
    assert_int_equal(put("r", -1, "x"), PAWL_GDAMAGED);
    assert_int_equal(put("r", TOP, "x"), PAWL_GDAMAGED);
    says("9007199254740991");
    assert_int_equal(put("r", (int64_t)time(NULL) * 1000000 + DAY + 60000000, "x"), PAWL_GDAMAGED);
    assert_int_equal(seal("r", TOP), PAWL_GDAMAGED);
    assert_int_equal(put("r", 6, "x"), PAWL_GSTALE);
    assert_int_equal(seal("r", 6), PAWL_GSTALE);
    is("r", 7, "data");
    assert_int_equal(put("r", (int64_t)time(NULL) * 1000000 + DAY - 60000000, "y"), PAWL_OK);
}

static void test_last_digit(void **data) {
    (void)data;
    pawl_guard_write write = of("r", TOP - 1);
    write.flags = PAWL_GUARD_ACCEPT_JUMP;
    assert_int_equal(pawl_guard_put(guard, &write, "a", 1, &error), PAWL_OK);
    is("r", TOP - 1, "a");
    assert_int_equal(put("r", TOP - 2, "b"), PAWL_GSTALE);
    says("current is 9007199254740990");
    assert_int_equal(put("r", TOP, "c"), PAWL_OK);
    assert_int_equal(put("r", TOP - 1, "d"), PAWL_GSTALE);
    write.token = TOP + 1;
    assert_int_equal(pawl_guard_put(guard, &write, "e", 1, &error), PAWL_GDAMAGED);
    is("r", TOP, "c");
}

static void test_seal_stops_the_old_holder_before_the_new_one_writes(void **data) {
    (void)data;
    assert_int_equal(put("acct", 7, "old"), PAWL_OK);
    assert_int_equal(seal("acct", 8), PAWL_OK);
    is("acct", 8, "old");
    assert_int_equal(put("acct", 7, "zombie"), PAWL_GSTALE);
    says("current is 8, sealed by worker 1");
    is("acct", 8, "old");
    assert_int_equal(put("acct", 8, "new"), PAWL_OK);
    assert_int_equal(seal("acct", 8), PAWL_OK);
    is("acct", 8, "new");
    assert_int_equal(seal("fresh", 3), PAWL_OK);
    is("fresh", 3, NULL);
    assert_int_equal(put("fresh", 2, "x"), PAWL_GSTALE);
}

static void test_reset_is_kept(void **data) {
    (void)data;
    assert_int_equal(put("r", 100, "data"), PAWL_OK);
    assert_int_equal(pawl_guard_reset(guard, "r", 50, "ana", "counter lost with db1", &error), PAWL_OK);
    is("r", 50, "data");
    assert_int_equal(put("r", 49, "x"), PAWL_GSTALE);
    pawl_guard_write other = of("r", 60);
    other.lock = "other";
    assert_int_equal(pawl_guard_put(guard, &other, "x", 1, &error), PAWL_GWRONGLOCK);
    assert_int_equal(put("r", 51, "new"), PAWL_OK);
    assert_int_equal(pawl_guard_reset(guard, "r", 200, NULL, "and up again", &error), PAWL_OK);
    assert_int_equal(put("r", 199, "x"), PAWL_GSTALE);
    pawl_guard_record *record = NULL;
    assert_int_equal(pawl_guard_get(guard, "r", &record, &error), PAWL_OK);
    assert_int_equal(record->n_resets, 2);
    assert_int_equal(record->resets[0].from, 100);
    assert_int_equal(record->resets[0].to, 50);
    assert_string_equal(record->resets[0].by, "ana");
    assert_string_equal(record->resets[0].why, "counter lost with db1");
    assert_int_equal(record->resets[1].from, 51);
    assert_int_equal(record->resets[1].to, 200);
    assert_true(record->resets[1].at_ms >= record->resets[0].at_ms);
    pawl_guard_free(record);
    assert_int_equal(pawl_guard_reset(guard, "r", 0, NULL, "x", &error), PAWL_EINVALID);
    assert_int_equal(pawl_guard_reset(guard, "r", TOP + 1, NULL, "x", &error), PAWL_EINVALID);
    assert_int_equal(pawl_guard_reset(guard, "r", 5, NULL, "", &error), PAWL_EINVALID);
}

static void test_rules(void **data) {
    (void)data;
    pawl_guard_write write = of("once", 7);
    write.rule = PAWL_RULE_GT;
    assert_int_equal(seal("once-default", 7), PAWL_OK);
    assert_int_equal(pawl_guard_seal(guard, &write, &error), PAWL_OK);
    assert_int_equal(put("once", 7, "a"), PAWL_OK);
    assert_int_equal(put("once", 7, "b"), PAWL_GSTALE);
    says("has written already");
    is("once", 7, "a");
    write.rule = PAWL_RULE_GE;
    write.token = 9;
    assert_int_equal(pawl_guard_put(guard, &write, "x", 1, &error), PAWL_EINVALID);
    says("is gt since its first write, not ge");
    write = of("counted", 7);
    write.rule = PAWL_RULE_SEQ;
    assert_int_equal(pawl_guard_put(guard, &write, "x", 1, &error), PAWL_EINVALID);
    write.seq = 1;
    assert_int_equal(pawl_guard_put(guard, &write, "1", 1, &error), PAWL_OK);
    write.rule = PAWL_RULE_DEFAULT;
    assert_int_equal(pawl_guard_put(guard, &write, "1", 1, &error), PAWL_GSTALE);
    says("stale sequence 1 of token 7");
    write.seq = INT64_MAX;
    assert_int_equal(pawl_guard_put(guard, &write, "2", 1, &error), PAWL_OK);
    write.token = 8;
    write.seq = 1;
    assert_int_equal(pawl_guard_put(guard, &write, "3", 1, &error), PAWL_OK);
    is("counted", 8, "3");
}

static void test_install(void **data) {
    (void)data;
    assert_int_equal(pawl_guard_install(guard, PAWL_RULE_GT, &error), PAWL_OK);
    assert_int_equal(pawl_guard_install(guard, PAWL_RULE_GT, &error), PAWL_OK);
    assert_int_equal(pawl_guard_install(guard, PAWL_RULE_SEQ, &error), PAWL_EINVALID);
    assert_int_equal(put("r", 7, "a"), PAWL_OK);
    assert_int_equal(put("r", 7, "b"), PAWL_GSTALE);
    pawl_guard_write write = of("free", 7);
    write.rule = PAWL_RULE_GE;
    assert_int_equal(pawl_guard_put(guard, &write, "a", 1, &error), PAWL_OK);
    assert_int_equal(put("free", 7, "b"), PAWL_OK);
    assert_int_equal(pawl_guard_install(guard, 77, &error), PAWL_EINVALID);
}

static void test_names_and_data(void **data) {
    (void)data;
    char longest[513], other[513];
    memset(longest, '/', 512);
    longest[512] = 0;
    strcpy(other, longest);
    other[511] = 'x';
    const char *names[] = {".",
                           "..",
                           "../../escape",
                           "a/b",
                           "a%2Fb",
                           "a",
                           "a.record",
                           "a.lock",
                           ".a",
                           "a.new",
                           ".pawl-guard",
                           "%%",
                           "\xC3\xA9t\xC3\xA9 \xE2\x82\xAC",
                           "new\nline",
                           "A",
                           longest,
                           other,
                           "'; DROP TABLE pawl_guard; --"};
    size_t n = sizeof names / sizeof *names;
    for (size_t i = 0; i < n; i++)
        if (put(names[i], (int64_t)i + 1, names[i])) fail_msg("put %s: %s", names[i], error.text);
    for (size_t i = 0; i < n; i++) is(names[i], (int64_t)i + 1, names[i]);
    static const char *const bad[] = {"", "\xC3", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xC0\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(put(bad[i], 1, "x"), PAWL_EINVALID);
    char over[514];
    memset(over, 'a', 513);
    over[513] = 0;
    assert_int_equal(put(over, 1, "x"), PAWL_EINVALID);
    assert_int_equal(put("a", 0, "x"), PAWL_GNOTOKEN);
    if (!is_service())
        assert_in_range(entries_of(folder), 1, 3); /* nothing was made outside the set; SQLite's journal */
    size_t length = 1 << 20;
    char *big = malloc(length);
    for (size_t i = 0; i < length; i++) big[i] = (char)(i * 7);
    pawl_guard_write write = of("big", 1);
    assert_int_equal(pawl_guard_put(guard, &write, big, length, &error), PAWL_OK);
    assert_int_equal(seal("big", 2), PAWL_OK); /* copies the data */
    pawl_guard_record *record = NULL;
    assert_int_equal(pawl_guard_get(guard, "big", &record, &error), PAWL_OK);
    assert_int_equal(record->length, length);
    assert_memory_equal(record->data, big, length);
    pawl_guard_free(record);
    free(big);
}

/* While one is inside, another waits, and is then judged by the mark that the first one raised. */
static void test_enter_keeps_others_out(void **data) {
    (void)data;
    pawl_guard_options options = PAWL_GUARD_OPTIONS_INIT;
    options.wait_ms = 30;
    pawl_guard *second = NULL;
    assert_int_equal(pawl_guard_open(url, &options, &second, &error), PAWL_OK);
    assert_int_equal(put("r", 7, "a"), PAWL_OK);
    pawl_guard_write write = of("r", 6), later = of("r", 9);
    if (is_service()) {
        assert_int_equal(pawl_guard_enter(guard, &write, &error), PAWL_EUNSUPPORTED);
        says("cannot know whether you are still at it");
        assert_int_equal(pawl_guard_fd(guard), -1);
        pawl_guard_leave(guard);
        is("r", 7, "a");
        pawl_guard_close(second);
        return;
    }
    assert_int_equal(pawl_guard_enter(guard, &write, &error), PAWL_GSTALE);
    write.token = 8;
    if (pawl_guard_enter(guard, &write, &error)) fail_msg("enter: %s", error.text);
    assert_int_equal(put("r", 8, "x"), PAWL_EINVALID);
    assert_int_equal(pawl_guard_put(second, &later, "b", 1, &error), PAWL_ETIMEOUT);
    assert_int_equal(pawl_guard_fd(guard) >= 0, strcmp(kind, "dir") == 0);
    pawl_guard_leave(guard);
    assert_int_equal(pawl_guard_fd(guard), -1);
    later.token = 7;
    assert_int_equal(pawl_guard_put(second, &later, "b", 1, &error), PAWL_GSTALE);
    later.token = 9;
    assert_int_equal(pawl_guard_put(second, &later, "b", 1, &error), PAWL_OK);
    pawl_guard_close(second);
    is("r", 9, "b");
}

static void test_foreign_content_is_left_alone(void **data) {
    (void)data;
    static const char text[] = "somebody's own";
    char *back;
    /* a database that SQLite has open is not read again, least of all with a write-ahead log */
    if (strncmp(kind, "sqlite", 6) != 0) assert_int_equal(put("other", 1, "x"), PAWL_OK);
    foreign_write(text);
    assert_int_equal(put("r", 5, "x"), PAWL_EUNSAFE);
    says(foreign_place());
    pawl_guard_record *record = NULL;
    assert_int_equal(pawl_guard_get(guard, "r", &record, &error), PAWL_EUNSAFE);
    assert_non_null(back = foreign_read());
    assert_string_equal(back, text);
    free(back);
}

/* The service does not answer, or is gone: the error says where, and the handle is good again when it is back. */
static void test_service_away(void **data) {
    (void)data;
    pawl_guard_options options = PAWL_GUARD_OPTIONS_INIT;
    pawl_guard_write write = of("r", 8);
    pawl_guard *hasty = NULL;
    options.wait_ms = 150;
    assert_int_equal(put("r", 7, "old"), PAWL_OK);
    assert_int_equal(pawl_guard_open(url, &options, &hasty, &error), PAWL_OK);
    service_signal(SIGSTOP);
    assert_int_equal(pawl_guard_put(hasty, &write, "new", 3, &error), PAWL_EUNREACHABLE);
    says("127.0.0.1");
    service_signal(SIGCONT);
    pawl_guard_close(hasty);
    is("r", 7, "old");
    service_restart(); /* our connection is gone, the data are not */
    assert_int_equal(put("r", 9, "new"), PAWL_OK);
    is("r", 9, "new");
    assert_int_equal(put("r", 8, "old"), PAWL_GSTALE);
}

static void test_moved_from_another_service(void **data) {
    (void)data;
    pawl_guard_write write = of("r", 9);
    write.service = "redis";
    assert_int_equal(pawl_guard_put(guard, &write, "a", 1, &error), PAWL_OK);
    write.token = 8;
    assert_int_equal(pawl_guard_put(guard, &write, "b", 1, &error), PAWL_GSTALE);
    if (strstr(error.text, "another service")) fail_msg("%s", error.text);
    write.service = "etcd";
    assert_int_equal(pawl_guard_put(guard, &write, "b", 1, &error), PAWL_GSTALE);
    says("Moved from another service: that one is of redis:, this one of etcd:");
    says("pawl token advance --to 9");
    pawl_guard_record *record = NULL;
    assert_int_equal(pawl_guard_get(guard, "r", &record, &error), PAWL_OK);
    assert_string_equal(record->service, "redis");
    pawl_guard_free(record);
    assert_int_equal(put("r", 10, "c"), PAWL_OK); /* by one that does not tell */
    assert_int_equal(pawl_guard_get(guard, "r", &record, &error), PAWL_OK);
    assert_string_equal(record->service, "");
    pawl_guard_free(record);
    write.service = "a name that is longer than a scheme";
    assert_int_equal(pawl_guard_put(guard, &write, "b", 1, &error), PAWL_EINVALID);
}

/* A disk that is full, by a limit on the size of files. */
static void test_failed_write_leaves_the_old_record(void **data) {
    (void)data;
    size_t length = 1 << 20;
    char *big = calloc(1, length);
    assert_non_null(big);
    assert_int_equal(put("r", 7, "old"), PAWL_OK);
    pid_t pid = fork();
    if (pid == 0) { /* the limit is a process' own */
        struct rlimit limit = {100000, 100000};
        pawl_guard_write write = of("r", 8);
        pawl_guard *full = NULL;
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) || pawl_guard_open(url, NULL, &full, NULL)) _exit(1);
        int code = pawl_guard_put(full, &write, big, length, &error);
        bool says_where = strstr(error.text, folder) != NULL;
        write.token = 9;
        int next = pawl_guard_put(full, &write, "small", 5, NULL); /* the handle is still good */
        pawl_guard_close(full);
        _exit(code == PAWL_EUNREACHABLE && says_where && next == PAWL_OK ? 0 : 2);
    }
    int status;
    waitpid(pid, &status, 0);
    free(big);
    assert_int_equal(status, 0);
    is("r", 9, "small");
    assert_int_equal(put("r", 8, "x"), PAWL_GSTALE);
}

static void test_fork(void **data) {
    (void)data;
    assert_int_equal(put("r", 7, "a"), PAWL_OK);
    pid_t pid = fork();
    if (pid == 0) {
        bool right = put("r", 8, "b") == PAWL_EINVALID && strstr(error.text, "fork");
        pawl_guard_close(guard);
        _exit(right ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(put("r", 8, "c"), PAWL_OK);
    is("r", 8, "c");
    pawl_guard *unused = NULL; /* opened before, first used in the child */
    assert_int_equal(pawl_guard_open(url, NULL, &unused, &error), PAWL_OK);
    if ((pid = fork()) == 0) {
        pawl_guard_write write = of("r", 9);
        _exit(pawl_guard_put(unused, &write, "d", 1, NULL));
    }
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    pawl_guard_close(unused);
    is("r", 9, "d");
}

static void test_arguments(void **data) {
    (void)data;
    pawl_guard *none = NULL;
    assert_int_equal(pawl_guard_open("nothing:x", NULL, &none, &error), PAWL_EINVALID);
    says("dir: sqlite:");
    says("redis+sentinel: postgresql: postgres: etcd: etcds:");
    assert_int_equal(pawl_guard_open("dir:", NULL, &none, &error), PAWL_EINVALID);
    char unknown[256];
    snprintf(unknown, sizeof unknown, "%s%cmode=fast", url, strchr(url, '?') ? '&' : '?');
    assert_int_equal(pawl_guard_open(unknown, NULL, &none, &error), PAWL_EINVALID);
    says("mode");
    assert_null(none);
    pawl_guard_write write = of("r", 1);
    write.lock = NULL;
    assert_int_equal(pawl_guard_put(guard, &write, "", 0, &error), PAWL_EINVALID);
    write = of("r", 1);
    write.flags = 8;
    assert_int_equal(pawl_guard_put(guard, &write, "", 0, &error), PAWL_EINVALID);
    write.flags = 0;
    write.rule = 9;
    assert_int_equal(pawl_guard_put(guard, &write, "", 0, NULL), PAWL_EINVALID);
    char unreachable[128];
    snprintf(unreachable, sizeof unreachable, is_service() ? "%s://127.0.0.1:1/" : "%s:%s/no/such/place", kind, folder);
    assert_int_equal(pawl_guard_open(unreachable, NULL, &none, &error), PAWL_OK);
    write = of("r", 1);
    int code = pawl_guard_put(none, &write, "", 0, &error);
    assert_true(code == PAWL_EUNREACHABLE || code == PAWL_EDENIED);
    says(is_service() ? "127.0.0.1" : "/no/such/place");
    pawl_guard_close(none);
    pawl_guard_close(NULL);
    assert_string_equal(pawl_guard_rule_name(PAWL_RULE_SEQ), "seq");
    assert_null(pawl_guard_rule_name(9));
}

/* Random steps on a few resources, beside a reference that has nothing but guard_judge: the same answers, the same
 * records. */
static void test_same_answers(void **data) {
    (void)data;
    const char *given = getenv("PAWL_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)time(NULL);
    struct mirror mirror[3] = {0};
    print_message("# PAWL_TEST_SEED=%u\n", seed);
    for (int i = 0; i < (is_service() ? 1000 : 400); i++) { /* files are flushed each time */
        const char *why = mirror_step(&mirror[rand_r(&seed) % 3], &seed);
        if (why) fail_msg("step %d: %s", i, why);
    }
}

int main(int argc, char **argv) {
    begin_kind(argc > 1 ? argv[1] : "dir");
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    struct CMUnitTest tests[] = {T(test_life_of_a_resource),
                                 T(test_refusals_differ_and_change_nothing),
                                 T(test_last_digit),
                                 T(test_seal_stops_the_old_holder_before_the_new_one_writes),
                                 T(test_reset_is_kept),
                                 T(test_rules),
                                 T(test_install),
                                 T(test_names_and_data),
                                 T(test_enter_keeps_others_out),
                                 T(test_foreign_content_is_left_alone),
                                 T(test_moved_from_another_service),
                                 T(test_fork),
                                 T(test_arguments),
                                 T(test_same_answers),
                                 T(test_failed_write_leaves_the_old_record)};
    if (is_service()) tests[14] = (struct CMUnitTest)T(test_service_away);
    int failures = cmocka_run_group_tests_name(kind, tests, NULL, NULL);
    end_kind();
    return failures;
}
