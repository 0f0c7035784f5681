/* Two URLs that mean the same names of the same service are one place for "already runs under this lock". */
#include "run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void run_inside(const char *outer, const char *inner, bool same) {
    struct run_options holds = {.common.url = (char *)outer, .name = "n"};
    struct run_options wants = {.common.url = (char *)inner, .name = "n"};
    int64_t token = 0;
    char *chain = nested_chain(&holds, getpid(), 7);
    assert_non_null(chain);
    setenv("PAWL_LOCK", chain, 1);
    if (nested_conflict(&wants, &token) != same) fail_msg("%s in %s: %s", inner, outer, same ? "missed" : "refused");
    assert_int_equal(token, same ? 7 : 0);
    unsetenv("PAWL_LOCK");
    free(chain);
}

static void the_same_place(void **state) {
    (void)state;
    static const char *const same[][2] = {
        {"redis://h", "redis://u:pw@H:6379/0?timeout=1s"},
        {"redis://h/3", "redis://h?db=3"},
        {"rediss://h", "rediss://h:6379?prefix=pawl:&cacert=/x"},
        {"redis+sentinel://a,b/m", "redis+sentinel://b:26379,a/m/0"},
        {"redis+sentinel://a,b/m/2", "redis+sentinel://b,a/m?db=2"},
        {"redlock://a,b,c", "redlock://c:6379,B,a/0?timeout=20ms"},
        {"redlocks://a,b,c", "redlocks://c,b,a"},
        {"postgresql://h/d", "postgres://u:pw@h:5432/d?key=hashtextextended&sslmode=require"},
        {"etcd://a,b", "etcd://b:2379,a?prefix=/pawl/"},
        {"etcds://a/jobs", "etcds://a?prefix=/jobs/"},
        {"file:/", "file:/../"},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        run_inside(same[i][0], same[i][1], true);
        run_inside(same[i][1], same[i][0], true);
    }
}

static void another_place(void **state) {
    (void)state;
    static const char *const other[][2] = {
        {"redis://h", "redis://h:6380"},
        {"redis://h", "redis://h/1"},
        {"redis://h", "redis://h?prefix=x:"},
        {"redis+sentinel://a,b/m", "redis+sentinel://a,b/k"},
        {"redis+sentinel://a,b/m", "redis://a,b/m"},
        {"redlock://a,b,c", "redlock://a,b,d"},
        {"postgresql://h/d", "postgresql://h/e"},
        {"postgresql://h/d", "postgresql://h/d?key=int8"},
        {"etcd://a", "etcd://a?prefix=/jobs/"},
        {"file:/", "file:/tmp"},
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        run_inside(other[i][0], other[i][1], false);
        run_inside(other[i][1], other[i][0], false);
    }
}

static void another_name_or_mode(void **state) {
    (void)state;
    int64_t token = 0;
    struct run_options holds = {.common.url = "redis://h", .name = "n", .shared = true};
    struct run_options wants = {.common.url = "redis://h", .name = "m"};
    char *chain = nested_chain(&holds, getpid(), 7);
    setenv("PAWL_LOCK", chain, 1);
    assert_false(nested_conflict(&wants, &token));
    wants.name = "n";
    assert_true(nested_conflict(&wants, &token));
    wants.shared = true;
    assert_false(nested_conflict(&wants, &token));
    unsetenv("PAWL_LOCK");
    free(chain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_place),
        cmocka_unit_test(another_place),
        cmocka_unit_test(another_name_or_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
