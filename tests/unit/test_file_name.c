/* Names of locks as names of files: none leaves the directory, none meets another, and all come back. */
#include "file/name.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void as_written(void **state) {
    (void)state;
    static const struct {
        const char *name, *file;
    } rows[] = {
        {"nightly", "nightly"},
        {"report.lock", "report.lock"},
        {"a b/c", "a%20b%2Fc"},
        {".", "%2E"},
        {"..", "%2E."},
        {"../x", "%2E.%2Fx"},
        {".pawl.tokens", "%2Epawl.tokens"},
        {"100%", "100%25"},
        {"a%2Fb", "a%252Fb"},
        {"\xc3\xa4", "%C3%A4"},
        {"-rf", "-rf"},
        {"%-", "%25-"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char file[NAME_FILE_SIZE], back[NAME_MAX_LOCK + 1];
        assert_true(name_encode(rows[i].name, strlen(rows[i].name), file));
        assert_string_equal(file, rows[i].file);
        assert_true(name_decode(file, back));
        assert_string_equal(back, rows[i].name);
        assert_false(name_is_short(file));
    }
}

static void not_written_by_us(void **state) {
    (void)state;
    static const char *const files[] = {"a b", "%41", "%2f", "%2", "%", "%ZZ", ".x", "", "%00", "a%2E", "\xc3\xa4"};
    char back[NAME_MAX_LOCK + 1];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (name_decode(files[i], back)) fail_msg("'%s' is taken for '%s'", files[i], back);
}

static void refused(void **state) {
    (void)state;
    char name[NAME_MAX_LOCK + 2], file[NAME_FILE_SIZE];
    memset(name, 'n', sizeof name);
    assert_false(name_encode(name, 0, file));
    assert_false(name_encode(name, NAME_MAX_LOCK + 1, file));
    assert_false(name_encode("a\0b", 3, file));
}

/* From the longest that is kept to the longest there is; bytes that take one place and three. */
static void long_names(void **state) {
    (void)state;
    char name[NAME_MAX_LOCK + 1], file[NAME_FILE_SIZE], other[NAME_FILE_SIZE], back[NAME_MAX_LOCK + 1];
    for (size_t length = 60; length <= NAME_MAX_LOCK; length++)
        for (int wide = 0; wide < 2; wide++) {
            size_t full = length * (wide ? 3 : 1);
            memset(name, wide ? '/' : 'n', length);
            name[length] = 0;
            assert_true(name_encode(name, length, file));
            assert_true(strlen(file) < NAME_FILE_SIZE && !strchr(file, '/'));
            assert_int_equal(name_is_short(file), full >= NAME_FILE_SIZE);
            assert_int_equal(name_decode(file, back), full < NAME_FILE_SIZE);
            name[length - 1] = 'm';
            assert_true(name_encode(name, length, other));
            assert_string_not_equal(file, other);
        }
    memset(name, 'n', 300);
    assert_true(name_encode(name, 300, file));
    /* printf 'n%.0s' $(seq 300) | sha256sum */
    assert_string_equal(file + 128, "%-230b077491957fb486227d8d66cc84eb751bc5475cc5c41e99d9b1caf847732f");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_written),
        cmocka_unit_test(not_written_by_us),
        cmocka_unit_test(refused),
        cmocka_unit_test(long_names),
    };
    return cmocka_run_group_tests_name("file_name", tests, NULL, NULL);
}
