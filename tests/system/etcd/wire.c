/* wire.c: http2.c and grpc.c against a server of the test's own, made of nghttp2, that says goodbye, resets, hides its
 * window, or answers in pieces. Client and server are two threads on one socket pair. */
#include "../../../src/etcd/http2.c" /* to come near the last stream id */
#include "grpc.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define PREFIX 5 /* of a gRPC message */
#define BIG (3u << 20)

enum habit {
    ANSWERS,
    PINGS,
    SAYS_GOODBYE_FIRST,
    SAYS_GOODBYE_LATER,
    RESETS,
    REFUSES,
    SMALL_WINDOW,
    BIG_ANSWER,
    NO_WORDS,      /* OK, and no message */
    HALF_WORDS,    /* OK, and a part of one */
    EMPTY_MESSAGE, /* which is one */
    BREAKS_OFF,    /* after its headers */
    NOT_GRPC,      /* only the HTTP status that http_status says */
    SILENT
};

struct service {
    enum habit habit;
    int fd;
    nghttp2_session *session;
    pthread_t thread;
    int calls;       /* requests that were complete */
    size_t received; /* bytes of the last one */
    int packets;     /* that brought a request, or a part of one */
    int pings, pongs;
    const char *http_status;
};

static ssize_t body(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t size, uint32_t *flags,
                    nghttp2_data_source *source, void *data) {
    struct service *s = data;
    size_t length = s->habit == BIG_ANSWER ? BIG : s->habit == EMPTY_MESSAGE ? 0 : 3, *sent = (size_t *)&source->fd;
    size_t all = s->habit == NO_WORDS ? 0 : s->habit == HALF_WORDS ? PREFIX + 1 : PREFIX + length;
    size_t n = all - *sent < size ? all - *sent : size;
    for (size_t i = 0; i < n; i++) {
        size_t at = *sent + i;
        buffer[i] = (uint8_t)(at == 0 ? 0 : at < PREFIX ? length >> 8 * (PREFIX - 1 - at) : 'x');
    }
    *sent += n;
    if (s->habit == BREAKS_OFF) {
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_INTERNAL_ERROR);
        return NGHTTP2_ERR_DEFERRED;
    }
    if (*sent == all) {
        nghttp2_nv trailer[] = {{(uint8_t *)(uintptr_t) "grpc-status", (uint8_t *)(uintptr_t) "0", 11, 1, 0}};
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        nghttp2_submit_trailer(session, id, trailer, 1);
    }
    return (ssize_t)n;
}

static void answer(struct service *s, int32_t id) {
    nghttp2_nv headers[] = {{(uint8_t *)(uintptr_t) ":status", (uint8_t *)(uintptr_t) "200", 7, 3, 0}};
    nghttp2_data_provider provider = {.source.ptr = NULL, .read_callback = body};
    if (s->habit == NOT_GRPC) headers[0].value = (uint8_t *)(uintptr_t)s->http_status;
    nghttp2_submit_response(s->session, id, headers, 1, s->habit == NOT_GRPC ? NULL : &provider);
}

static int on_request(nghttp2_session *session, const nghttp2_frame *frame, void *data) {
    struct service *s = data;
    int32_t id = frame->hd.stream_id;
    bool begins = frame->hd.type == NGHTTP2_HEADERS, ends = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (frame->hd.type == NGHTTP2_PING && frame->hd.flags & NGHTTP2_FLAG_ACK) {
        assert_memory_equal(frame->ping.opaque_data, "pingping", 8);
        s->pongs++;
    }
    if (begins && s->habit == SAYS_GOODBYE_FIRST)
        nghttp2_submit_goaway(session, NGHTTP2_FLAG_NONE, id > 2 ? id - 2 : 0, NGHTTP2_NO_ERROR, NULL, 0);
    if (!ends || (!begins && frame->hd.type != NGHTTP2_DATA)) return 0;
    s->calls++;
    if (s->habit == PINGS && s->pings == s->pongs) { /* as grpc-go does it: one at a time, before it answers */
        nghttp2_submit_ping(session, NGHTTP2_FLAG_NONE, (const uint8_t *)"pingping");
        s->pings++;
    }
    if (s->habit == SAYS_GOODBYE_LATER)
        nghttp2_submit_goaway(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_NO_ERROR, NULL, 0);
    if (s->habit == RESETS) nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_INTERNAL_ERROR);
    else if (s->habit == REFUSES) nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_REFUSED_STREAM);
    else if (s->habit != SILENT && s->habit != SAYS_GOODBYE_FIRST) answer(s, id);
    return 0;
}

static int on_bytes(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes, size_t length,
                    void *data) {
    (void)session, (void)flags, (void)id, (void)bytes;
    ((struct service *)data)->received += length;
    return 0;
}

static ssize_t send_it(nghttp2_session *session, const uint8_t *bytes, size_t length, int flags, void *data) {
    (void)session, (void)flags;
    ssize_t n = send(((struct service *)data)->fd, bytes, length, MSG_NOSIGNAL);
    return n < 0 ? NGHTTP2_ERR_CALLBACK_FAILURE : n;
}

static void *serve(void *data) {
    struct service *s = data;
    uint8_t buffer[16384];
    for (ssize_t n; (n = recv(s->fd, buffer, sizeof buffer, 0)) > 0; s->packets++)
        if (nghttp2_session_mem_recv(s->session, buffer, (size_t)n) != n || nghttp2_session_send(s->session)) break;
    return NULL;
}

static struct http2 *start_service(struct service *s, enum habit habit) {
    int ends[2];
    nghttp2_session_callbacks *callbacks;
    nghttp2_settings_entry window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 100};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    *s = (struct service){.habit = habit, .fd = ends[1]};
    assert_int_equal(nghttp2_session_callbacks_new(&callbacks), 0);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_request);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_bytes);
    nghttp2_session_callbacks_set_send_callback(callbacks, send_it);
    assert_int_equal(nghttp2_session_server_new(&s->session, callbacks, s), 0);
    nghttp2_session_callbacks_del(callbacks);
    assert_int_equal(nghttp2_submit_settings(s->session, NGHTTP2_FLAG_NONE, &window, habit == SMALL_WINDOW), 0);
    assert_int_equal(nghttp2_session_send(s->session), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
    struct http2 *h = http2_open(ends[0], NULL, "server:2379", false, "server:2379");
    assert_non_null(h);
    return h;
}

static void end_service(struct service *s, struct http2 *h) {
    http2_close(h, true);
    pthread_join(s->thread, NULL);
    nghttp2_session_del(s->session);
    close(s->fd);
}

static enum bk_says ask(struct http2 *h, size_t size, int ms, size_t *ret_size, pawl_error *error) {
    struct bk_until until = {.at_ns = clock_after_ms(clock_now_ns(), ms), .cancel_fd = -1};
    struct grpc_reply reply = {0};
    unsigned char *message = calloc(1, size);
    enum bk_says says = grpc_call(h, "/etcdserverpb.KV/Txn", NULL, message, size, until, &reply, error);
    free(message);
    if (says == BK_YES) assert_int_equal(reply.status, GRPC_OK);
    if (ret_size) *ret_size = reply.size;
    free(reply.body);
    return says;
}

/* Ports are mixed up: what answers says by its first bytes what it is. */
static void test_what_is_not_etcd_is_named(void **state) {
    (void)state;
    static const char *const said[][2] = {{"-ERR unknown command\r\n", "write redis://"},
                                          {"\x15\x03\x01\x02", "write etcds://"},
                                          {"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak HTTP/2"}};
    for (int i = 0; i < 3; i++) {
        int ends[2];
        pawl_error error = PAWL_ERROR_INIT;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        struct http2 *h = http2_open(ends[0], NULL, "server:2379", false, "server:2379");
        assert_int_equal(send(ends[1], said[i][0], strlen(said[i][0]), 0), strlen(said[i][0]));
        assert_true(ask(h, 10, 20000, NULL, &error) > BK_NO);
        if (!strstr(error.text, said[i][1])) fail_msg("%s", error.text);
        http2_close(h, true);
        close(ends[1]);
    }
}

static void test_one_after_the_other(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct http2 *h = start_service(&s, ANSWERS);
    size_t size;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(ask(h, 10, 5000, &size, &error), BK_YES);
        assert_int_equal(size, 3);
    }
    assert_false(http2_worn(h));
    end_service(&s, h);
    assert_int_equal(s.calls, 100);
    assert_in_range(s.packets, 100, 102); /* each request in one piece; SETTINGS, and that they were understood */
}

/* The answer to a ping that follows what we sent goes with a later request, so that a server that measures with them
 * does so from time to time, not with each request. */
static void test_pings_cost_nothing(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct http2 *h = start_service(&s, PINGS);
    int64_t began = clock_now_ns();
    for (int i = 0; i < 100; i++) assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_YES);
    poll(NULL, 0, (int)(PONG_NS / NS_PER_MS) + 10);
    assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_YES);
    int64_t due = (clock_now_ns() - began) / PONG_NS;
    end_service(&s, h);
    assert_in_range(s.pongs, 1, due);
    assert_in_range(s.packets, 101, 103 + due);
}

/* One that comes by itself asks whether we live: it is answered at once, as is a second one while one is open. */
static void test_a_ping_by_itself_is_answered(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct bk_until now = {.at_ns = 0, .cancel_fd = -1};
    struct http2 *h = start_service(&s, ANSWERS);
    assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_YES);
    while (http2_pump(h, false, now, &error) == BK_YES) continue; /* that its settings were understood */
    poll(NULL, 0, (int)(PONG_NS / NS_PER_MS) + 10);
    static const uint8_t ping[] = {0, 0, 8, 6, 0, 0, 0, 0, 0, 'p', 'i', 'n', 'g', 'p', 'i', 'n', 'g'};
    assert_int_equal(send(s.fd, ping, sizeof ping, 0), sizeof ping);
    while (http2_pump(h, false, now, &error) == BK_YES) continue;
    assert_true(h->pinged_ns == 0);
    for (int i = 0; i < 2; i++) { /* just after a send: the first one waits, the second one does not */
        assert_int_equal(send(s.fd, ping, sizeof ping, 0), sizeof ping);
        while (http2_pump(h, false, now, &error) == BK_YES) continue;
    }
    end_service(&s, h);
    assert_in_range(s.pongs, 2, 3); /* 3: it was not "just after" on a slow machine */
}

/* What the server did not look at surely did not happen. */
static void test_goaway_before_the_call(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct http2 *h = start_service(&s, SAYS_GOODBYE_FIRST);
    assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EUNREACHABLE);
    assert_true(http2_worn(h));
    end_service(&s, h);
}

/* A call that is under way ends well; no other one is begun. */
static void test_goaway_with_a_call_in_flight(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct http2 *h = start_service(&s, SAYS_GOODBYE_LATER);
    assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_YES);
    assert_true(http2_worn(h));
    assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_FAULT);
    end_service(&s, h);
    assert_int_equal(s.calls, 1);
}

static void test_resets(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct http2 *h = start_service(&s, RESETS);
    assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_UNKNOWN); /* it may have been done */
    end_service(&s, h);
    h = start_service(&s, REFUSES);
    assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_FAULT); /* REFUSED_STREAM: it was not */
    assert_false(http2_worn(h));
    end_service(&s, h);
}

/* Only a status that blames the request says that nothing was done: a proxy that gives up may do so after the service
 * did what was asked. */
static void test_an_answer_that_is_not_grpc(void **state) {
    (void)state;
    static const struct {
        const char *status;
        enum bk_says says;
    } answers[] = {{"200", BK_UNKNOWN}, {"400", BK_FAULT},   {"404", BK_FAULT},   {"408", BK_UNKNOWN},
                   {"499", BK_UNKNOWN}, {"502", BK_UNKNOWN}, {"503", BK_UNKNOWN}, {"504", BK_UNKNOWN}};
    struct service s;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        pawl_error error = PAWL_ERROR_INIT;
        struct http2 *h = start_service(&s, NOT_GRPC);
        s.http_status = answers[i].status;
        enum bk_says says = ask(h, 10, 20000, NULL, &error);
        end_service(&s, h);
        if (says != answers[i].says) fail_msg("HTTP status %s: %d", answers[i].status, says);
        if (!strstr(error.text, answers[i].status)) fail_msg("%s", error.text);
    }
}

static void test_a_stream_that_breaks_off(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct http2 *h = start_service(&s, BREAKS_OFF);
    assert_int_equal(ask(h, 10, 20000, NULL, &error), BK_UNKNOWN);
    end_service(&s, h);
}

/* OK says yes only with the message that belongs to it. One of no bytes is a message. */
static void test_ok_without_a_message(void **state) {
    (void)state;
    struct service s;
    for (enum habit habit = NO_WORDS; habit <= HALF_WORDS; habit++) {
        pawl_error error = PAWL_ERROR_INIT;
        struct http2 *h = start_service(&s, habit);
        assert_int_equal(ask(h, 10, 20000, NULL, &error), BK_UNKNOWN);
        assert_int_equal(error.code, PAWL_EUNREACHABLE);
        end_service(&s, h);
    }
    pawl_error error = PAWL_ERROR_INIT;
    size_t size = 1;
    struct http2 *h = start_service(&s, EMPTY_MESSAGE);
    assert_int_equal(ask(h, 10, 20000, &size, &error), BK_YES);
    assert_int_equal(size, 0);
    end_service(&s, h);
}

static void test_windows(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct http2 *h = start_service(&s, SMALL_WINDOW); /* 100 bytes at a time */
    assert_int_equal(ask(h, 20000, 10000, NULL, &error), BK_YES);
    end_service(&s, h);
    assert_int_equal(s.received, PREFIX + 20000);
    h = start_service(&s, BIG_ANSWER); /* more than our own window, again and again */
    for (int i = 0; i < 5; i++) {
        size_t size;
        assert_int_equal(ask(h, 10, 10000, &size, &error), BK_YES);
        assert_int_equal(size, BIG);
    }
    end_service(&s, h);
}

static void test_silence_ends_in_time(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct http2 *h = start_service(&s, SILENT);
    int64_t began = clock_now_ns();
    assert_int_equal(ask(h, 10, 200, NULL, &error), BK_UNKNOWN);
    assert_in_range(clock_now_ns() - began, 200 * NS_PER_MS, 2000 * NS_PER_MS);
    assert_non_null(strstr(error.text, "connecting: the server did not answer in time ("));
    end_service(&s, h);
}

static void test_stream_ids_run_out(void **state) {
    (void)state;
    struct service s;
    pawl_error error = PAWL_ERROR_INIT;
    struct http2 *h = start_service(&s, ANSWERS);
    assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_YES);
    assert_int_equal(nghttp2_session_set_next_stream_id(h->session, LAST_STREAM_ID - 3), 0);
    for (int i = 0; i < 2; i++) {
        assert_false(http2_worn(h));
        assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_YES);
    }
    assert_true(http2_worn(h)); /* a new connection, in time */
    assert_int_equal(ask(h, 10, 5000, NULL, &error), BK_FAULT);
    end_service(&s, h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_not_etcd_is_named),
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_pings_cost_nothing),
        cmocka_unit_test(test_a_ping_by_itself_is_answered),
        cmocka_unit_test(test_goaway_before_the_call),
        cmocka_unit_test(test_goaway_with_a_call_in_flight),
        cmocka_unit_test(test_resets),
        cmocka_unit_test(test_an_answer_that_is_not_grpc),
        cmocka_unit_test(test_a_stream_that_breaks_off),
        cmocka_unit_test(test_ok_without_a_message),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_silence_ends_in_time),
        cmocka_unit_test(test_stream_ids_run_out),
    };
    return cmocka_run_group_tests_name("etcd: wire", tests, NULL, NULL);
}
