/* Any bytes as what an etcd server sends on its HTTP/2 connection. The first byte chooses: one call, two calls, or a
 * stream. */
#include "clock.h"
#include "fuzz.h"
#include "grpc.h"
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void calls(struct http2 *h, int n) {
    struct bk_until until = {.at_ns = clock_after_ms(clock_now_ns(), 1000), .cancel_fd = -1};
    for (int i = 0; i < n; i++) {
        struct grpc_reply reply = {.status = -2};
        pawl_error error = PAWL_ERROR_INIT;
        enum bk_says says =
            grpc_call(h, "/etcdserverpb.KV/Txn", i ? "token" : NULL, "question", 8, until, &reply, &error);
        MUST(says != BK_NO);
        MUST(says == BK_YES ? reply.status >= 0 : error.code != 0 && error.text[0]);
        if (says == BK_YES) MUST((reply.status == GRPC_OK) == (reply.body != NULL));
        if (says == BK_YES) free(reply.body);
    }
}

static void stream(struct http2 *h) {
    struct bk_until now = {.at_ns = 0, .cancel_fd = -1};
    struct grpc_stream s;
    pawl_error error = PAWL_ERROR_INIT;
    enum bk_says says = BK_YES, moved = BK_YES;
    if (!grpc_stream_open(h, &s, "/etcdserverpb.Watch/Watch", NULL)) return;
    grpc_stream_send(h, &s, "watch", 5);
    while (moved == BK_YES && says != BK_FAULT) {
        unsigned char *body;
        size_t size;
        moved = http2_pump(h, false, now, &error);
        while ((says = grpc_stream_next(h, &s, &body, &size, &error)) == BK_YES) free(body);
        if (says != BK_FAULT) grpc_stream_send(h, &s, "more", 4);
    }
    MUST(error.code && error.text[0]); /* the other end closed, at the latest */
    grpc_stream_close(h, &s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int ends[2];
    if (size < 1 || size > 60000) return 0;
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    MUST(write(ends[1], data + 1, size - 1) == (ssize_t)size - 1 && shutdown(ends[1], SHUT_WR) == 0);
    struct http2 *h = http2_open(ends[0], NULL, "server:2379", false, "server:2379");
    MUST(h);
    if (data[0] % 3 == 2) stream(h);
    else calls(h, 1 + data[0] % 3);
    http2_close(h, true);
    close(ends[1]);
    return 0;
}
