/* What cli.c reads and prints: durations, exit codes, times, JSON strings, the nearest word. */
#include "cli.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static void durations(void **state) {
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {{"250ms", 250},
                {"15s", 15000},
                {"2m", 120000},
                {"1h", 3600000},
                {"10", 10000},
                {"1.5", 1500},
                {".5", 500},
                {"0", 0},
                {"0.0001", 1},
                {"1.0005s", 1001},
                {"0.25m", 15000},
                {"1.5ms", 2},
                {"24h", 86400000},
                {"0000000000001", 1000},
                {"1.00000000000000000000001", 1000}};
    static const char *const bad[] = {"",
                                      " ",
                                      "s",
                                      "1 fortnight",
                                      "1d",
                                      "-1",
                                      "+1",
                                      "1e3",
                                      "inf",
                                      "nan",
                                      "0x10",
                                      "1.s",
                                      "1..2",
                                      "1 s",
                                      " 1",
                                      "1s ",
                                      "1m30s",
                                      "1,5",
                                      ".",
                                      "88000h",
                                      "9223372036854775807",
                                      "99999999999999999999999999",
                                      "1S",
                                      "1e9s",
                                      "292y"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t ms = -1;
        if (!parse_duration(good[i].text, &ms) || ms != good[i].ms) fail_msg("%s is %lld", good[i].text, (long long)ms);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t ms = -7;
        if (parse_duration(bad[i], &ms) || ms != -7) fail_msg("'%s' was taken, or touched the result", bad[i]);
    }
}

static void exit_codes(void **state) {
    (void)state;
    int code = -1;
    assert_true(parse_exit_code("0", &code) && code == 0);
    assert_true(parse_exit_code("255", &code) && code == 255);
    static const char *const bad[] = {"", "256", "-1", "1x", "0000", "1 "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(parse_exit_code(bad[i], &code));
    assert_int_equal(code, 255);
    assert_int_equal(exit_code(PAWL_OK), 0);
    assert_int_equal(exit_code(PAWL_EBUSY), 123);
    assert_int_equal(exit_code(PAWL_ETIMEOUT), 124);
    assert_int_equal(exit_code(PAWL_ECANCELLED), 125);
    assert_int_equal(exit_code(PAWL_ELOST), 122);
    assert_int_equal(exit_code(PAWL_EUNREACHABLE), 120);
    assert_int_equal(exit_code(PAWL_EDENIED), 120);
    assert_int_equal(exit_code(PAWL_EUNSAFE), 119);
    assert_int_equal(exit_code(PAWL_EINVALID), 125);
    assert_int_equal(exit_code(PAWL_EUNSUPPORTED), 119);
    assert_int_equal(exit_code(PAWL_EINTERNAL), 125);
}

static void assert_duration(int64_t ms, const char *expected) {
    char text[40];
    format_duration(ms, text, sizeof text);
    assert_string_equal(text, expected);
}

static void shown_durations(void **state) {
    (void)state;
    assert_duration(-5, "0 ms");
    assert_duration(0, "0 ms");
    assert_duration(999, "999 ms");
    assert_duration(1000, "1 s");
    assert_duration(3999, "3 s");
    assert_duration(252000, "4 min 12 s");
    assert_duration(240000, "4 min");
    assert_duration(7500000, "2 h 5 min");
    assert_duration(90000000, "1 d 1 h");
}

static void times(void **state) {
    (void)state;
    char text[40];
    format_time(1796043852343, text, sizeof text);
    assert_string_equal(text, "2026-11-30T13:04:12.343Z");
    setenv("TZ", "UTC", 1);
    tzset();
    format_clock(0, text, sizeof text);
    assert_string_equal(text, "1970-01-01 00:00:00");
    format_clock((int64_t)time(NULL) * 1000, text, sizeof text);
    assert_int_equal(strlen(text), strlen("14:01:07"));
}

static void assert_json(const char *text, const char *expected) {
    char buffer[256];
    FILE *out = fmemopen(buffer, sizeof buffer, "w");
    print_json_string(out, text);
    fclose(out);
    assert_string_equal(buffer, expected);
}

static void json_strings(void **state) {
    (void)state;
    assert_json(NULL, "null");
    assert_json("", "\"\"");
    assert_json("a\"b\\c/d", "\"a\\\"b\\\\c/d\"");
    assert_json("\n\t\x01\x7F", "\"\\n\\t\\u0001\\u007f\"");
    assert_json("ä€😀", "\"ä€😀\"");
    assert_json("a\xFFz", "\"a\\ufffdz\"");
    assert_json("\xC0\x80", "\"\\ufffd\\ufffd\"");            /* overlong */
    assert_json("\xED\xA0\x80", "\"\\ufffd\\ufffd\\ufffd\""); /* a surrogate */
    assert_json("\xE2\x82", "\"\\ufffd\\ufffd\"");            /* cut */
    assert_json("\xC2\x9B\u202E", "\"\\u009b\\u202e\"");
}

static void assert_plain(const char *text, const char *expected) {
    char buffer[256];
    FILE *out = fmemopen(buffer, sizeof buffer, "w");
    print_plain(out, text);
    fclose(out);
    assert_string_equal(buffer, expected);
}

static void plain_text(void **state) {
    (void)state;
    assert_plain("a b ä€😀", "a b ä€😀");
    assert_plain("\x1B[31m\n\x7F", "\\x1B[31m\\x0A\\x7F");
    assert_plain("\xC2\x9B"
                 "31m",
                 "\\xC2\\x9B31m"); /* CSI in one character */
    assert_plain("\u202Etxt.\u2066x\u2029", "\\xE2\\x80\\xAEtxt.\\xE2\\x81\\xA6x\\xE2\\x80\\xA9"); /* turned around */
    assert_plain("\x9B\xFFz\xE2\x82", "\\x9B\\xFFz\\xE2\\x82");
}

static const char *nearest(const char *text) {
    static const char *const words[] = {"run", "hold", "release", "version", "conflict-exit-code"};
    struct nearest n = {.text = text};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) nearest_offer(&n, words[i]);
    return n.word;
}

static void nearest_words(void **state) {
    (void)state;
    assert_string_equal(nearest("runn"), "run");
    assert_string_equal(nearest("hodl"), "hold");
    assert_string_equal(nearest("relaese"), "release");
    assert_string_equal(nearest("conflict"), "conflict-exit-code");
    assert_null(nearest("x"));
    assert_null(nearest("fun-and-more-than-thirty-one-bytes-long"));
    assert_null(nearest(""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations),  cmocka_unit_test(exit_codes),   cmocka_unit_test(shown_durations),
        cmocka_unit_test(times),      cmocka_unit_test(json_strings), cmocka_unit_test(nearest_words),
        cmocka_unit_test(plain_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
