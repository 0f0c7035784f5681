/* recipe.c: what etcd.c and hub.c say where no server is heard: the module's own files, linked. */
#include "etcd.h"
#include "module.h"
#include "url.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

extern const struct backend *const pawl_backend;

static struct bk *opened(struct url **ret_url) {
    struct bk *bk = NULL;
    assert_int_equal(url_parse("etcd://localhost/locks/", ret_url, NULL), PAWL_OK);
    assert_int_equal(pawl_backend->open(*ret_url, &bk, NULL), BK_YES);
    return bk;
}

/* Nobody reads: more wishes than a pipe commonly has room for are kept, and whose is not is told so. */
static void test_a_wish_is_kept_or_that_is_said(void **state) {
    (void)state;
    struct url *url;
    struct bk *bk = opened(&url);
    const unsigned char owner[16] = {1}, key[] = "/locks/n/1";
    char packet[4096];
    int kept = 0, read_back = 0, probe[2];
    for (int i = 0; i < 1000; i++) kept += hub_wish(bk, owner, key, sizeof key - 1, 1) != 0;
    while (read(bk->wish_read, packet, sizeof packet) > 0) read_back++;
    assert_int_equal(kept, read_back);
    assert_int_equal(pipe(probe), 0);
    if (fcntl(probe[1], F_SETPIPE_SZ, 1 << 20) > 0) assert_in_range(kept, 100, 1000); /* or this user has no more */
    close(probe[0]);
    close(probe[1]);
    assert_true(hub_wish(bk, owner, key, sizeof key - 1, 1) != 0); /* there is room again */
    pawl_backend->close(bk, false);
    url_free(url);
}

/* Each grant has its verdict, also those that were not come to. */
static void test_a_release_that_breaks_off_is_unknown_for_the_rest(void **state) {
    (void)state;
    struct url *url;
    struct bk *bk = opened(&url);
    struct bk_until until = {.at_ns = INT64_MAX, .cancel_fd = -1};
    int ends[2];
    int64_t lease = 77;
    struct bk_life life = {.ttl_ms = 6000, .of = &lease};
    struct bk_claim claim = {.name = "n", .name_len = 1, .ttl_ms = 6000, .life = &life};
    struct place_in_line line = {.revision = 5, .token = 5};
    struct bk_grant one = {.claim = &claim, .token = 5, .of = &line}, two = one;
    enum bk_says each[2] = {BK_YES, BK_YES};
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    close(ends[1]);
    struct bk_session s = {.bk = bk, .h = http2_open(ends[0], NULL, "server:2379", false, "server:2379")};
    assert_non_null(s.h);
    assert_true(pawl_backend->release(&s, (struct bk_grant *const[]){&one, &two}, 2, until, each, &error) > BK_NO);
    assert_true(each[0] > BK_NO);
    assert_int_equal(each[1], BK_UNKNOWN);
    http2_close(s.h, true);
    pawl_backend->close(bk, false);
    url_free(url);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wish_is_kept_or_that_is_said),
        cmocka_unit_test(test_a_release_that_breaks_off_is_unknown_for_the_rest),
    };
    return cmocka_run_group_tests_name("etcd: recipe", tests, NULL, NULL);
}
