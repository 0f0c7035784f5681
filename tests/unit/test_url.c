/* URLs: every form of the table in README, what is refused and by which words, and that no text ever shows a secret. */
#include "url.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct url *parsed(const char *text) {
    struct url *url = NULL;
    pawl_error error = PAWL_ERROR_INIT;
    if (url_parse(text, &url, &error) != PAWL_OK) fail_msg("%s: %s", text, error.text);
    return url;
}

static void refused(const char *text, const char *why) {
    struct url *url = NULL;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(url_parse(text, &url, &error), PAWL_EINVALID);
    assert_int_equal(error.code, PAWL_EINVALID);
    assert_null(url);
    if (!strstr(error.text, why)) fail_msg("%s: '%s' does not say '%s'", text, error.text, why);
}

static void test_file_forms(void **data) {
    (void)data;
    static const struct {
        const char *text, *path;
    } forms[] = {{"file:", ""},           {"file:/srv/locks", "/srv/locks"}, {"file:locks", "locks"},
                 {"file:a%20b", "a b"},   {"file:/a,b@c:d", "/a,b@c:d"},     {"file:///srv", "srv"},
                 {"file:/x?mode=0", "/x"}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct url *url = parsed(forms[i].text);
        assert_string_equal(url->scheme, "file");
        assert_string_equal(url->path, forms[i].path);
        assert_string_equal(url->rest, forms[i].text + 5);
        assert_int_equal(url->authority, strstr(forms[i].text, "//") != NULL);
        assert_int_equal(url->n_hosts, 0);
        assert_null(url->user);
        url_free(url);
    }
}

static void test_hosts(void **data) {
    (void)data;
    struct url *url = parsed("redis+sentinel://ana:s%40cret@h1:26379,[::1]:7000,h3/mymaster/2?prefix=a%3Ab:&ttl=5s");
    assert_string_equal(url->scheme, "redis+sentinel");
    assert_string_equal(url->user, "ana");
    assert_string_equal(url->password, "s@cret");
    assert_int_equal(url->n_hosts, 3);
    assert_string_equal(url->hosts[0].host, "h1");
    assert_int_equal(url->hosts[0].port, 26379);
    assert_string_equal(url->hosts[1].host, "::1");
    assert_int_equal(url->hosts[1].port, 7000);
    assert_string_equal(url->hosts[2].host, "h3");
    assert_int_equal(url->hosts[2].port, 0);
    assert_string_equal(url->path, "mymaster/2");
    assert_string_equal(url_param(url, "prefix"), "a:b:");
    assert_null(url_param(url, "Prefix"));
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(url_params_known(url, &error), PAWL_EINVALID);
    assert_non_null(strstr(error.text, "'ttl'"));
    assert_string_equal(url_param(url, "ttl"), "5s");
    assert_int_equal(url_params_known(url, &error), PAWL_OK);
    url_free(url);

    url = parsed("redis://:pw@[fe80::1]/0");
    assert_null(url->user);
    assert_string_equal(url->password, "pw");
    assert_string_equal(url->hosts[0].host, "fe80::1");
    assert_int_equal(url->hosts[0].port, 0);
    url_free(url);

    url = parsed("redis://u:@h");
    assert_string_equal(url->password, "");
    url_free(url);

    url = parsed("etcd://h:65535");
    assert_int_equal(url->hosts[0].port, 65535);
    assert_string_equal(url->path, "");
    url_free(url);
}

static void test_parameters(void **data) {
    (void)data;
    struct url *url = parsed("mem:?a&b=&c=%3d%26&d=x=y&");
    assert_int_equal(url->n_params, 4);
    assert_string_equal(url_param(url, "a"), "");
    assert_string_equal(url_param(url, "b"), "");
    assert_string_equal(url_param(url, "c"), "=&");
    assert_string_equal(url_param(url, "d"), "x=y");
    assert_int_equal(url_params_known(url, NULL), PAWL_OK);
    url_free(url);
}

static void test_refused(void **data) {
    (void)data;
    refused("", "no scheme");
    refused("nightly", "no scheme");
    refused("/srv/locks", "no scheme");
    refused(":x", "no scheme");
    refused("1file:x", "no scheme");
    refused("10.0.0.5:6379", "no scheme");
    refused("re dis://h", "no scheme");
    refused("redis://h:0", "port");
    refused("redis://h:65536", "port");
    refused("redis://h:", "port");
    refused("redis://h:6379x", "port");
    refused("redis://h:+1", "port");
    refused("redis://h: 1", "port");
    refused("redis://h:123456789012345678901", "port");
    refused("redis://[::1", "']'");
    refused("redis://[::1]x", "behind ']'");
    refused("redlock://a,,c", "host 2 of the list is empty");
    refused("redlock://,b,c", "host 1 of the list is empty");
    refused("etcd://a,b,", "host 3 of the list is empty");
    refused("redis+sentinel://u:p@a,:26379/m", "host 2 of the list is empty");
    refused("redis://h%zz", "%XX");
    refused("redis://h%0", "%XX");
    refused("redis://h%00", "%XX");
    refused("file:/a%2", "%XX in the path");
    refused("redis://a%:b@h", "%XX in the user");
    refused("redis://a:b%@h", "%XX in the user");
    refused("redis://:p@w@h",
            "url redis://:***@h: character 11 of it, a raw '@' in the user or password: write it as %40");
    refused("redis://ana:p#w@h/1", "character 14 of it, a raw '#' in the user or password: write it as %23");
    refused("redis://:p/w@h/1", "character 11 of it, a raw '/' in the user or password: write it as %2F");
    refused("redis://:p?w@h/1", "character 11 of it, a raw '?' in the user or password: write it as %3F");
    refused("postgresql://ana:p@w@h/db", "raw '@'");
    refused("mem:?=x", "key=value");
    refused("mem:?a=1&&b=2", "key=value");
    refused("mem:?a=%", "key=value");
    refused("mem:?a=1&a=2", "'a' is given twice");
    refused("mem:?a=1&%61=2", "'a' is given twice");
}

/* A user and password of one host only, wherever it stands. The character is where the last of them begins. */
static void test_hosts_with_a_password_each(void **data) {
    (void)data;
    static const struct {
        const char *text;
        int character;
    } rows[] = {{"redlock://a:6379,u:SECRET@b,c", 18},
                {"redlock://a,u:SECRET@b,c", 13},
                {"redlock://a,b,u:SECRET@c", 15},
                {"redlock://a:1,b:2,c:3,u:SECRET@d", 23},
                {"redlock://a:1,b:2,c:3,u:SECRET@", 23},
                {"redlock://a,b,:SECRET@c", 15},
                {"redlock://a,:SECRET@b:6379,c", 13},
                {"redlock://a:6379,SECRET@b,c", 18},
                {"redlock://a,SECRET@b,c", 13},
                {"redlock://a,SECRET%40x@b,c", 13},
                {"redlock://a:6379,b:6379,u@c:6379", 25},
                {"redlock://u@a,u@b,c", 15},
                {"redlock://u:SECRET@a,u:SECRET@b,u:SECRET@c", 33},
                {"redlock://u:SECRET@a,v:SECRET@b,c", 22},
                {"redlock://:SECRET@a,:SECRET@b,:SECRET@c", 31},
                {"redlock://u:SECRET@a,b,c@d", 24},
                {"redlock://u:x@SECRET@a,v:SECRET@b,c", 24},
                {"redlock://a,u%3ASECRET@b,c", 13},
                {"redlock://a,u:x%40SECRET@b,c", 13},
                {"redlock://a:6379,u:x@SECRET@b:6379,c:6379", 18},
                {"redlock://a,u:p:SECRET@b,c", 13},
                {"redlock://a:6379,u:SECRET?x@b,c", 18},
                {"redlock://a:6379,u:SECRET/x@b,c", 18},
                {"redlock://a,u:SECRET#x@b,c", 13},
                {"redlock://a:6379,u:1/SECRET@b,c", 0},
                {"redlock://a,redis://u:SECRET@b,c", 13},
                {"redlock://[::1]:6379,u:SECRET@[::2]:6379,c", 22},
                {"redlock://[::1],u:SECRET@b,c", 17},
                {"redlocks://a,u:SECRET@b,c", 14},
                {"redis+sentinel://a:26379,u:SECRET@b/m", 26},
                {"etcd://a,u:SECRET@b", 10},
                {"postgresql://a,u:SECRET@b/db", 16}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct url *url = NULL;
        pawl_error error = PAWL_ERROR_INIT;
        char where[60];
        int code = url_parse(rows[i].text, &url, &error);
        const char *told = url ? url->shown : error.text;
        snprintf(where, sizeof where, "with character %d of it another user or password begins", rows[i].character);
        if (strstr(told, "SECRET")) fail_msg("%s: the secret is shown: %s", rows[i].text, told);
        if (rows[i].character && (code != PAWL_EINVALID || !strstr(told, where)))
            fail_msg("%s: '%s' does not say '%s'", rows[i].text, told, where);
        url_free(url);
    }
}

/* Before the first host, and for all. */
static void test_one_password_for_all_hosts(void **data) {
    (void)data;
    static const char *const rows[][3] = {
        {"redlock://u:p@a,b,c", "u", "p"},           {"redlock://:p@a:1,b:2,c:3", NULL, "p"},
        {"redlock://u:p%2Cq@a,b,c", "u", "p,q"},     {"redlock://u:p,q@a,b,c", "u", "p,q"},
        {"redlock://u:1%2C2@a,b,c", "u", "1,2"},     {"redlock://u:%40p%3A@a,b,c", "u", "@p:"},
        {"redlock://u%3Av:p@a,b,c", "u:v", "p"},     {"redlock://u@a,b,c", "u", NULL},
        {"redlock://u:p@[::1]:1,[::2],c", "u", "p"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct url *url = parsed(rows[i][0]);
        assert_int_equal(url->n_hosts, 3);
        assert_int_equal(url->user != NULL, rows[i][1] != NULL);
        assert_int_equal(url->password != NULL, rows[i][2] != NULL);
        if (url->user) assert_string_equal(url->user, rows[i][1]);
        if (url->password) assert_string_equal(url->password, rows[i][2]);
        url_free(url);
    }
}

static const char *const with_secret[] = {
    "redis://ana:SECRET@h",
    "redis://:SECRET@h:1,h2:2/0?prefix=x",
    "redis://:SECRET@@h",    /* a raw @: refused, but not shown */
    "redis://:a/SECRET@h/0", /* raw slash in a password: refused, but not shown */
    "redis://:a?SECRET@h/0", /* raw question mark in a password */
    "redis://ana:a?SECRET@h/0?b=c",
    "redis://:SECRET%@h",
    "redis://u%3ASECRET@h",
    "redis://u:12?SECRET@h",
    "redis://:12?SECRET@h/0?b=c",
    "redlock://a:6379,u:SECRET?x=1@b,c",
    "redis://h?password=SECRET",
    "redis://h?a=b&password=SECRET&c=d",
    "redis://h?p%61ssword=SECRET",
    "postgresql:///db?host=/tmp&sslpassword=SECRET",
    "etcd://h?client-secret=SECRET&x=1",
    "redis://h?pass=SECRET",
    "redis://h:port?password=SECRET",
    "redis://h?password=SECRET&password=SECRET",
    "redis://h?password=SECRET%",
    "postgresql:/}/db?host=/tmp&password=x@SECRET",
    "postgresql:/db?password=x@SECRET&a=b",
};

static void test_no_secret_is_shown(void **data) {
    (void)data;
    for (size_t i = 0; i < sizeof with_secret / sizeof *with_secret; i++) {
        struct url *url = NULL;
        pawl_error error = PAWL_ERROR_INIT;
        url_parse(with_secret[i], &url, &error);
        if (strstr(error.text, "SECRET")) fail_msg("%s: the error shows the secret: %s", with_secret[i], error.text);
        if (url && strstr(url->shown, "SECRET")) fail_msg("%s: shown as %s", with_secret[i], url->shown);
        if (url && !strstr(url->shown, "***")) fail_msg("%s: shown without *** as %s", with_secret[i], url->shown);
        if (url) {
            url_params_known(url, &error);
            if (strstr(error.text, "SECRET")) fail_msg("%s: %s", with_secret[i], error.text);
        }
        url_free(url);
    }
}

static void test_shown_keeps_the_rest(void **data) {
    (void)data;
    static const char *const pairs[][2] = {
        {"redis://ana:x@h:1/0?a=b", "redis://ana:***@h:1/0?a=b"},
        {"redis://h?a=b&password=x&c=d", "redis://h?a=b&password=***&c=d"},
        {"redis://h?password=x", "redis://h?password=***"},
        {"redis://ana@h/0", "redis://ana@h/0"},
        {"redis://h:6379/0?label=ana@web", "redis://h:6379/0?label=ana@web"},
        {"redlock://h:1,[::1]:2,i?label=ana@web", "redlock://h:1,[::1]:2,i?label=ana@web"},
        {"file:/a:b@c", "file:/a:b@c"},
        {"file:", "file:"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct url *url = parsed(pairs[i][0]);
        assert_string_equal(url->shown, pairs[i][1]);
        url_free(url);
    }
}

static void test_escape(void **data) {
    (void)data;
    char text[16] = "";
    assert_true(url_escape(text, sizeof text, "a-b/\xc3\xa9", 6, "-"));
    assert_string_equal(text, "a-b%2F%C3%A9");
    assert_false(url_escape(text, sizeof text, "xyz%", 4, "")); /* nothing of it is appended */
    assert_string_equal(text, "a-b%2F%C3%A9");
    assert_true(url_escape(text, sizeof text, "xyz", 3, ""));
    assert_string_equal(text, "a-b%2F%C3%A9xyz"); /* exactly full */
    assert_false(url_escape(text, sizeof text, "x", 1, ""));
    char nul[8] = "";
    assert_true(url_escape(nul, sizeof nul, "a\0b", 3, "-"));
    assert_string_equal(nul, "a%00b");
}

static void test_escape_and_parse_agree(void **data) {
    (void)data;
    char text[2048] = "k=", raw[256];
    for (int i = 1; i < 256; i++) raw[i - 1] = (char)i;
    raw[255] = 0;
    assert_true(url_escape(text, sizeof text, raw, 255, "-_."));
    struct url_param *params;
    size_t n;
    assert_int_equal(url_parse_params(text, &params, &n), PAWL_OK);
    assert_int_equal(n, 1);
    assert_string_equal(params[0].value, raw);
    url_free_params(params, n);
}

/* Whatever was mistyped, a password is not repeated. */
static void test_mistyped_secrets_are_not_shown(void **data) {
    (void)data;
    static const char *const texts[] = {
        "redis:/:s3cr3t@host",        "redis:user:s3cr3t@host/1",          "host=h password=s3cr3t port=1",
        "password='s3cr3t x' host=h", "postgresql:host=h password=s3cr3t", "redis//:s3cr3t@host?password=s3cr3t",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct url *url = NULL;
        pawl_error error = PAWL_ERROR_INIT;
        if (url_parse(texts[i], &url, &error) != PAWL_OK) assert_null(strstr(error.text, "s3cr3t"));
        else if (strstr(url->shown, "s3cr3t")) fail_msg("%s is shown as %s", texts[i], url->shown);
        url_free(url);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_forms),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_hosts_with_a_password_each),
        cmocka_unit_test(test_one_password_for_all_hosts),
        cmocka_unit_test(test_no_secret_is_shown),
        cmocka_unit_test(test_shown_keeps_the_rest),
        cmocka_unit_test(test_escape),
        cmocka_unit_test(test_escape_and_parse_agree),
        cmocka_unit_test(test_mistyped_secrets_are_not_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
