/* The token numbers through the library: shown as they were granted, and lifted above whatever is asked for. */
#include "pawl.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static int64_t grant(pawl_client *client) {
    pawl_lock *lock;
    assert_int_equal(pawl_acquire(client, "n", NULL, &lock, NULL), PAWL_OK);
    int64_t token = pawl_token(lock);
    assert_int_equal(pawl_release(lock, 1000, NULL), PAWL_OK);
    return token;
}

static void shown_and_advanced(void **state) {
    (void)state;
    pawl_client *client;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    assert_int_equal(pawl_open("mem:", NULL, &client, NULL), PAWL_OK);
    int64_t first = grant(client);
    assert_int_equal(pawl_tokens_show(client, 0, &tokens, NULL), PAWL_OK);
    assert_int_equal(tokens.last, first);
    assert_true(tokens.since > 0 && tokens.since <= first);
    assert_string_equal(tokens.stored, tokens.answering);

    const int64_t to = tokens.clock_us + INT64_C(3600000000);
    assert_int_equal(pawl_tokens_advance(client, to, 1000, &tokens, NULL), PAWL_OK);
    assert_int_equal(tokens.last, to);
    assert_true(grant(client) > to);

    assert_int_equal(pawl_tokens_advance(client, 0, 1000, &tokens, NULL), PAWL_OK);
    assert_true(tokens.last > to + (1 << 20));
    pawl_close(client);
}

static void impossible_numbers(void **state) {
    (void)state;
    pawl_client *client;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    assert_int_equal(pawl_open("mem:", NULL, &client, NULL), PAWL_OK);
    int64_t first = grant(client);
    assert_int_equal(pawl_tokens_advance(client, -1, 0, &tokens, &error), PAWL_EINVALID);
    assert_int_equal(pawl_tokens_advance(client, INT64_C(1) << 53, 0, &tokens, &error), PAWL_EINVALID);
    assert_int_equal(pawl_tokens_advance(client, (INT64_C(1) << 53) - 1, 0, &tokens, &error), PAWL_EINVALID);
    assert_int_equal(pawl_tokens_advance(client, first + 11 * 366 * INT64_C(86400000000), 0, &tokens, &error),
                     PAWL_EINVALID);
    assert_non_null(strstr(error.text, "ten years ahead"));
    assert_int_equal(tokens.last, 0);
    assert_int_equal(pawl_tokens_show(client, 0, &tokens, NULL), PAWL_OK);
    assert_int_equal(tokens.last, first);
    pawl_close(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shown_and_advanced), cmocka_unit_test(impossible_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
