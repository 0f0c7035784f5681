/* What a holder says of itself: always short, always the form, never able to speak to a terminal. */
#include "about.h"
#include "url.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static void test_self(void **data) {
    (void)data;
    char text[ABOUT_SIZE], host[65] = "";
    struct about about;
    pawl_entry entry = {.size = sizeof entry};
    about_self("nightly run, 100 %", 0, text);
    about_parse(text, &about, &entry);
    gethostname(host, 64);
    assert_string_equal(entry.host, host);
    assert_int_equal(entry.pid, getpid());
    assert_string_equal(entry.command, program_invocation_short_name);
    assert_string_equal(entry.label, "nightly run, 100 %");
    assert_null(strchr(text, ' '));
    about_free(&about);
    entry.label = NULL;
    about_self(NULL, 0, text);
    about_parse(text, &about, &entry);
    assert_null(entry.label);
    about_free(&about);
}

static void test_long_labels_are_cut_at_a_character(void **data) {
    (void)data;
    char label[2001];
    static const char *const units[] = {"x", "%", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x94\x92"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t unit = strlen(units[u]), n = 0;
        for (; n + unit < sizeof label; n += unit) memcpy(label + n, units[u], unit);
        label[n] = 0;
        char text[ABOUT_SIZE];
        struct about about;
        pawl_entry entry = {.size = sizeof entry};
        about_self(label, 0, text);
        assert_true(strlen(text) < ABOUT_SIZE);
        about_parse(text, &about, &entry);
        assert_int_equal(entry.pid, getpid());
        assert_non_null(entry.label);
        assert_true(strlen(entry.label) > 0 && strlen(entry.label) <= 64);
        assert_int_equal(strlen(entry.label) % unit, 0);
        assert_memory_equal(entry.label, label, strlen(entry.label));
        about_free(&about);
    }
}

static void test_foreign_text(void **data) {
    (void)data;
    static const char *const texts[] = {"",           "some value of redlock", "a=b&", "%", "&&", "host", "pid=x",
                                        "5f3c:9=%00", "host=a&host=b"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct about about;
        pawl_entry entry = {.size = sizeof entry};
        about_parse(texts[i], &about, &entry);
        assert_null(entry.command);
        assert_int_equal(entry.pid, 0);
        about_free(&about);
        char said[64];
        about_describe(texts[i], said, sizeof said);
        assert_string_equal(said, "another program");
    }
}

static void test_describe(void **data) {
    (void)data;
    char said[128];
    about_describe("host=web1&pid=4711&user=ana&command=backup&label=x", said, sizeof said);
    assert_string_equal(said, "backup (pid 4711, ana@web1)");
    about_describe("host=web1&pid=4711&command=backup", said, sizeof said);
    assert_string_equal(said, "backup (pid 4711, web1)");
    about_describe("pid=4711", said, sizeof said);
    assert_string_equal(said, "a program (pid 4711, ?)");
    about_describe("host=web1&pid=4711&user=ana&command=backup", said, 10);
    assert_string_equal(said, "backup (p");
}

static void test_describe_cannot_speak_to_a_terminal(void **data) {
    (void)data;
    char said[256];
    about_describe("host=%1b%5b2J%07&pid=1&user=%c2%9b31m%7f&command=a%0db%0a", said, sizeof said);
    for (const char *p = said; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 32 || c == 127 || (c == 0xC2 && (unsigned char)p[1] < 0xA0)) fail_msg("byte %02x is shown", c);
    }
    assert_non_null(strstr(said, "pid 1"));
    about_describe("command=%e2%80%aexcod.%e2%81%a6&pid=1&host=%9b%ff", said, sizeof said);
    assert_string_equal(said, "???xcod.??? (pid 1, ?\?)");
    about_describe("command=B%c3%a4ckup&pid=1&host=h", said, sizeof said);
    assert_string_equal(said, "B\xc3\xa4"
                              "ckup (pid 1, h)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_long_labels_are_cut_at_a_character),
        cmocka_unit_test(test_foreign_text),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_describe_cannot_speak_to_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
