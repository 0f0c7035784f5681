/* calls_arguments.c: what a program may ask for, and in what form. */
#include "calls.h"
#include <string.h>

static void arguments_are_checked(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    pawl_lock *lock = NULL;
    pawl_error error = PAWL_ERROR_INIT;
    char longest[514];
    memset(longest, 'n', sizeof longest - 1);
    longest[513] = 0;
    const char *names[] = {"", longest, "\xff", "a\xc3", "\xed\xa0\x80", NULL};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        error.code = 0;
        assert_int_equal(pawl_acquire(client, names[i], NULL, &lock, &error), PAWL_EINVALID);
        assert_int_equal(error.code, PAWL_EINVALID);
        assert_true(strlen(error.text) > 5);
    }
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    int64_t wrong[][3] = {{-1, 0, 0}, {0, 99, 0}, {0, 24 * 3600 * 1000 + 1, 0}, {0, -1, 0}, {0, 0, -1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options.wait_ms = wrong[i][0];
        options.ttl_ms = wrong[i][1];
        options.max_hold_ms = wrong[i][2];
        if (pawl_acquire(client, "range", &options, &lock, NULL) != PAWL_EINVALID) fail_msg("range %zu", i);
    }
    options = (pawl_acquire_options)PAWL_ACQUIRE_INIT;
    options.cancel_fd = 9999;
    assert_int_equal(pawl_acquire(client, "cancel", &options, &lock, &error), PAWL_EINVALID);
    assert_non_null(strstr(error.text, "9999"));
    longest[512] = 0;
    assert_int_equal(call_try(client, longest), PAWL_OK);
    assert_null(lock);
    pawl_close(client);
}

static void options_without_init_are_refused(void **state) {
    struct suite *suite = *state;
    const char *url = suite->fixture->url();
    pawl_client *client = NULL, *fine = call_open(suite);
    pawl_lock *lock = NULL;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_options none = {.for_correctness = 1}, margin = PAWL_OPTIONS_INIT;
    assert_int_equal(pawl_open(url, &none, &client, &error), PAWL_EINVALID); /* its wish would be lost without a word */
    assert_non_null(strstr(error.text, "INIT"));
    const int64_t margins[] = {INT64_MAX, INT64_MAX - 100000, INT64_MAX / 2 + 1, 1001};
    margin.ttl_ms = 2000;
    for (size_t i = 0; i < sizeof margins / sizeof *margins; i++) {
        margin.margin_ms = margins[i];
        assert_int_equal(pawl_open(url, &margin, &client, NULL), PAWL_EINVALID);
    }
    struct {
        pawl_acquire_options known;
        int64_t later;
    } newer = {PAWL_ACQUIRE_INIT, 0};
    newer.known.size = sizeof newer;
    assert_int_equal(pawl_acquire(fine, "newer", &newer.known, &lock, NULL), PAWL_OK);
    call_release(lock);
    newer.later = 1;
    assert_int_equal(pawl_acquire(fine, "newer", &newer.known, &lock, NULL), PAWL_EINVALID);
    newer.known.size = 0;
    assert_int_equal(pawl_acquire(fine, "newer", &newer.known, &lock, NULL), PAWL_EINVALID);
    pawl_close(fine);
}

const struct contract_case argument_cases[] = {
    CASE(arguments_are_checked, ALWAYS),
    CASE(options_without_init_are_refused, ALWAYS),
    {0},
};
