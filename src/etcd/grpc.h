/* grpc.h: gRPC over one HTTP/2 connection: framing, deadlines, metadata, status. It knows messages as bytes, nothing of
 * etcd. One call that is answered once (unary; a stream of one message each way as well), and one stream that goes on.
 */
#ifndef ETCD_GRPC_H
#define ETCD_GRPC_H
#include "http2.h"

/* gRPC status codes that somebody asks for (grpc.io, "Status codes and their use in gRPC"). */
enum {
    GRPC_OK,
    GRPC_UNKNOWN = 2,
    GRPC_INVALID = 3,
    GRPC_NOT_FOUND = 5,
    GRPC_DENIED = 7,
    GRPC_EXHAUSTED = 8,
    GRPC_PRECONDITION = 9,
    GRPC_UNIMPLEMENTED = 12,
    GRPC_UNAVAILABLE = 14,
    GRPC_UNAUTHENTICATED = 16
};

struct grpc_reply {
    int status;          /* GRPC_...; -1: the answer was not gRPC */
    char message[256];   /* the server's words for a status that is not OK */
    unsigned char *body; /* of the first message, which comes with OK; to be freed; NULL: the status is not OK */
    size_t size;
};

/* YES: the server answered, with whatever status. FAULT: surely not executed. UNKNOWN: may have been. token NULL: none.
 */
enum bk_says grpc_call(struct http2 *h, const char *path, const char *token, const void *message, size_t size,
                       struct bk_until until, struct grpc_reply *ret, pawl_error *error);

struct grpc_stream {
    struct http2_call call;
};
bool grpc_stream_open(struct http2 *h, struct grpc_stream *stream, const char *path, const char *token);
bool grpc_stream_send(struct http2 *h, struct grpc_stream *stream, const void *message, size_t size);
/* YES: a message (to be freed); NO: none is complete yet; FAULT: the stream ended, *error says why. Does no I/O. */
enum bk_says grpc_stream_next(struct http2 *h, struct grpc_stream *stream, unsigned char **ret, size_t *ret_size,
                              pawl_error *error);
void grpc_stream_close(struct http2 *h, struct grpc_stream *stream);
#endif
