/* Error texts: bounded by what the caller has room for, errno kept, and copied between builds whose structs differ in
 * size. */
#include "error.h"
#include "pawl_guard.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static void test_set(void **data) {
    (void)data;
    pawl_error error = PAWL_ERROR_INIT;
    errno = ENOENT;
    assert_int_equal(error_set(&error, PAWL_EBUSY, "h:1", "%s is %d", "x", 7), PAWL_EBUSY);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(error.code, PAWL_EBUSY);
    assert_int_equal(error.sys_errno, 0); /* it was about something else */
    assert_string_equal(error.node, "h:1");
    assert_string_equal(error.text, "x is 7");
    error_set(&error, PAWL_ELOST, NULL, "y");
    assert_string_equal(error.node, "");
    assert_int_equal(error_set(NULL, PAWL_ELOST, "n", "%d", 1), PAWL_ELOST);
    assert_int_equal(error_errno(NULL, PAWL_ELOST, "n", "%d", 1), PAWL_ELOST);
}

static void test_errno(void **data) {
    (void)data;
    pawl_error error = PAWL_ERROR_INIT;
    errno = EACCES;
    assert_int_equal(error_errno(&error, PAWL_EDENIED, "/srv", "cannot open %s", "/srv"), PAWL_EDENIED);
    assert_string_equal(error.text, "cannot open /srv: Permission denied");
    assert_int_equal(error.sys_errno, EACCES);
    assert_int_equal(errno, EACCES);
}

static void test_too_long(void **data) {
    (void)data;
    struct {
        pawl_error error;
        char guard[16];
    } both = {PAWL_ERROR_INIT, "untouched"};
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    errno = EIO;
    error_errno(&both.error, PAWL_EINTERNAL, longer, "%s", longer);
    assert_int_equal(strlen(both.error.text), sizeof both.error.text - 1);
    assert_int_equal(strlen(both.error.node), sizeof both.error.node - 1);
    longer[sizeof both.error.text - 4] = 0; /* no room for all of strerror */
    error_errno(&both.error, PAWL_EINTERNAL, "", "%s", longer);
    assert_int_equal(strlen(both.error.text), sizeof both.error.text - 1);
    assert_string_equal(both.guard, "untouched");
}

static void test_a_shorter_struct(void **data) {
    (void)data;
    pawl_error shorter;
    size_t size = offsetof(pawl_error, text) + 8;
    memset(&shorter, '!', sizeof shorter);
    shorter.size = size;
    error_set(&shorter, PAWL_EINVALID, "node", "%s", "a long text");
    assert_int_equal(shorter.size, size);
    assert_string_equal(shorter.node, "node");
    assert_memory_equal(shorter.text, "a long t!!", 10); /* nothing behind what the caller has */
}

static void test_copy_between_sizes(void **data) {
    (void)data;
    struct {
        pawl_error error;
        char newer_field[16];
    } big;
    pawl_error small = PAWL_ERROR_INIT;
    memset(&big, 0x5a, sizeof big);
    big.error.size = sizeof big;
    error_set(&small, PAWL_EDENIED, "n", "no");
    error_copy(&big.error, &small);
    assert_int_equal(big.error.size, sizeof big);
    assert_int_equal(big.error.code, PAWL_EDENIED);
    assert_string_equal(big.error.text, "no");
    assert_int_equal(big.newer_field[0], 0x5a); /* of a newer caller: left alone */
    error_set(&big.error, PAWL_EBUSY, "m", "yes");
    error_copy(&small, &big.error);
    assert_int_equal(small.size, sizeof small);
    assert_string_equal(small.text, "yes");
    error_copy(NULL, &small);
    error_copy(&small, &small);
    assert_string_equal(small.text, "yes");
}

static void test_every_code_has_a_text(void **data) {
    (void)data;
    for (int code = PAWL_OK; code <= PAWL_EINTERNAL; code++) {
        assert_string_not_equal(pawl_strerror(code), "unknown code");
        for (int other = PAWL_OK; other < code; other++)
            assert_string_not_equal(pawl_strerror(code), pawl_strerror(other));
    }
    assert_string_equal(pawl_strerror(PAWL_GSTALE), "stale token");
    assert_string_equal(pawl_strerror(PAWL_GNOTOKEN), "no token");
    assert_string_equal(pawl_strerror(PAWL_GNOTOKEN + 1), "unknown code");
    assert_string_equal(pawl_strerror(-1), "unknown code");
    assert_string_equal(pawl_strerror(PAWL_EINTERNAL + 1), "unknown code");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_errno),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_a_shorter_struct),
        cmocka_unit_test(test_copy_between_sizes),
        cmocka_unit_test(test_every_code_has_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
