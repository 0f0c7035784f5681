/* limits.c: names, parameters, deadlines, descriptors. */
#include "clock.h"
#include "contract.h"
#include "ran.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>

static const char *const odd_names[] = {"a",
                                        "ab",
                                        "A",
                                        "a/b",
                                        "a%2Fb",
                                        "a%2fb",
                                        "/",
                                        "/a",
                                        "..",
                                        ".",
                                        "../a",
                                        "%",
                                        "%%",
                                        "%25",
                                        "a\nb",
                                        "a\r\n",
                                        "\x01",
                                        "\x7f",
                                        "{a}",
                                        "a}b",
                                        "a:b",
                                        "%q:a",
                                        "%n",
                                        "%w:a",
                                        "a b",
                                        " ",
                                        "*",
                                        "a*",
                                        "?",
                                        "[a]",
                                        "'",
                                        "\"",
                                        "\\",
                                        "$(a)",
                                        "-a",
                                        "--",
                                        "a&b=c",
                                        "a=b",
                                        "a;b",
                                        "a.lock",
                                        ".a",
                                        "a~",
                                        "#a",
                                        "a\tb",
                                        "\xc3\xa9",
                                        "e\xcc\x81",
                                        "\xf0\x9f\x94\x92",
                                        "CON",
                                        "a,b"};
enum { ODD_NAMES = sizeof odd_names / sizeof *odd_names };

static void names_do_not_meet(void **state) {
    struct suite *suite = *state;
    char longest[513], shorter[512];
    memset(longest, 'x', sizeof longest - 1);
    longest[512] = 0;
    memset(shorter, 'x', sizeof shorter - 1);
    shorter[511] = 0;
    const char *names[ODD_NAMES + 2] = {[ODD_NAMES] = longest, shorter};
    memcpy(names, odd_names, sizeof odd_names);
    enum { N = ODD_NAMES + 2 };
    struct party *party[N];
    struct bk_record record;
    for (int i = 0; i < N; i++) {
        party[i] = i ? party_beside(suite, party[0], names[i]) : party_new(suite, names[0]);
        if (!party_take(suite, party[i], false)) fail_msg("name %d (%.40s) meets another", i, names[i]);
    }
    for (int i = 0; i < N; i++) {
        struct party *other = party_beside(suite, party[0], names[i]);
        if (party_take(suite, other, false)) fail_msg("name %d (%.40s) is not excluded", i, names[i]);
        party_gone(suite, other);
        if (party_records(suite, party[0], names[i], &record) != 1) fail_msg("records of name %d (%.40s)", i, names[i]);
        assert_string_equal(record.name, names[i]);
    }
    assert_int_equal(party_records(suite, party[0], NULL, NULL), N);
    for (int i = 0; i < N; i++) assert_true(party_release(suite, party[i]));
    assert_int_equal(party_records(suite, party[0], NULL, NULL), 0);
}

static void unknown_parameter_is_named(void **state) {
    struct suite *suite = *state;
    pawl_error error = PAWL_ERROR_INIT;
    struct url *url = NULL;
    struct bk *bk = NULL;
    char text[1024];
    const char *good = suite->fixture->url();
    snprintf(text, sizeof text, "%s%cnonsense=1", good, strchr(good, '?') ? '&' : '?');
    assert_int_equal(url_parse(text, &url, &error), PAWL_OK);
    assert_int_equal(suite->backend->open(url, &bk, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EINVALID);
    assert_non_null(strstr(error.text, "nonsense"));
    assert_null(bk);
    url_free(url);
}

static void past_deadline_ends_at_once(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "past"), *b = party_new(suite, "past");
    pawl_error error = PAWL_ERROR_INIT;
    struct bk_grant grant = {0};
    assert_true(party_take(suite, a, false));
    int64_t start = ran_ns();
    struct bk_until past = {clock_now_ns() - NS_PER_S, -1};
    enum bk_says says = suite->backend->take(b->session, &b->claim, true, past, &grant, &b->busy, &error);
    assert_int_not_equal(says, BK_YES);
    assert_true(ran_ns() - start < NS_PER_S);
    if (says == BK_FAULT || says == BK_UNKNOWN) {
        assert_int_not_equal(error.code, PAWL_OK);
        suite->backend->drop(b->session, false);
        b->session = NULL;
        assert_int_equal(suite->backend->connect(b->bk, soon(), &b->session, &error), BK_YES);
    }
    assert_true(party_release(suite, a));
}

static int descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static void no_descriptor_is_left(void **state) {
    struct suite *suite = *state;
    int before = 0;
    for (int i = 0; i < 12; i++) {
        struct party *a = party_new(suite, "descriptors"), *b = party_new(suite, "descriptors");
        assert_true(party_take(suite, a, false));
        assert_false(party_take(suite, b, true));
        if (i % 2) assert_true(party_release(suite, a));
        party_forget(suite, b);
        case_teardown(state);
        if (i == 1) before = descriptors(); /* the first may keep something for good */
    }
    assert_int_equal(descriptors(), before);
}

static void descriptors_are_close_on_exec(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "exec"), *b = party_new(suite, "exec");
    assert_true(party_take(suite, a, false));
    assert_false(party_take(suite, b, true));
    int fds[8], n = suite->backend->fds(a->session, NULL, fds, 4);
    n += suite->backend->fds(a->grant.pin ? a->grant.pin : a->session, &a->grant, fds + n, 4);
    if (b->hub) fds[n++] = suite->backend->hub_fd(b->bk);
    for (int i = 0; i < n; i++) {
        char path[64], line[128];
        unsigned flags = 0;
        snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fds[i]);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        while (fgets(line, sizeof line, file)) (void)sscanf(line, "flags: %o", &flags);
        fclose(file);
        assert_true(flags & 02000000);
    }
}

const struct contract_case limit_cases[] = {
    CASE(names_do_not_meet, ALWAYS),
    CASE(unknown_parameter_is_named, ALWAYS),
    CASE(past_deadline_ends_at_once, ALWAYS),
    CASE(no_descriptor_is_left, ALWAYS),
    CASE(descriptors_are_close_on_exec, ALWAYS),
    {0},
};
