/* Which backend serves a scheme, and what is said of a module that is missing, foreign or damaged. */
#include "module.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void test_built_in(void **data) {
    (void)data;
    const struct backend *file = NULL, *mem = NULL;
    assert_int_equal(module_backend("file", &file, NULL), PAWL_OK);
    assert_int_equal(module_backend("mem", &mem, NULL), PAWL_OK);
    assert_string_equal(file->caps.scheme, "file");
    assert_string_equal(mem->caps.scheme, "mem");
}

static void test_unknown_scheme(void **data) {
    (void)data;
    static const char *const schemes[] = {"", "fil", "files", "FILE", "redi", "http", "fake"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        const struct backend *found = NULL;
        pawl_error error = PAWL_ERROR_INIT;
        char quoted[16];
        assert_int_equal(module_backend(schemes[i], &found, &error), PAWL_EINVALID);
        snprintf(quoted, sizeof quoted, "'%s:'", schemes[i]);
        assert_non_null(strstr(error.text, quoted));
        assert_non_null(strstr(error.text, "file mem"));
        assert_null(found);
    }
}

static void test_list(void **data) {
    (void)data;
    char list[128], small[6] = "?????";
    module_list(list, sizeof list);
    assert_int_equal(strncmp(list, "file mem", 8), 0);
    const char *first = strstr(list, "redis");
    assert_true(!first || !strstr(first + 1, "redis")); /* a module is listed once, whatever its schemes */
    module_list(small, sizeof small);
    assert_string_equal(small, "file");
}

static void test_a_good_module(void **data) {
    (void)data;
    void *symbol = NULL;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(module_symbol("fake", MODULE_BACKEND_SYMBOL, &symbol, &error), PAWL_OK);
    assert_string_equal((*(const struct backend *const *)symbol)->caps.scheme, "fake");
    symbol = NULL;
    assert_int_equal(module_symbol("fake", "nothing_here", &symbol, &error), PAWL_EUNSUPPORTED);
    assert_non_null(strstr(error.text, "nothing_here"));
    assert_null(symbol);
}

static void test_bad_modules(void **data) {
    (void)data;
    static const char *const pairs[][2] = {
        {"nosuch", "no module 'nosuch'"},
        {"old", "another version"},
        {"bare", "another version"},
        {"broken", "cannot load"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        void *symbol = NULL;
        pawl_error error = PAWL_ERROR_INIT;
        assert_int_equal(module_symbol(pairs[i][0], MODULE_BACKEND_SYMBOL, &symbol, &error), PAWL_EUNSUPPORTED);
        if (!strstr(error.text, pairs[i][1])) fail_msg("'%s' does not say '%s'", error.text, pairs[i][1]);
        assert_null(symbol);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_built_in),      cmocka_unit_test(test_unknown_scheme), cmocka_unit_test(test_list),
        cmocka_unit_test(test_a_good_module), cmocka_unit_test(test_bad_modules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
