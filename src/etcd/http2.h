/* http2.h: one HTTP/2 connection on a non-blocking socket of our own, by nghttp2, plain or TLS. It knows requests and
 * bytes, nothing of gRPC. Used by one thread at a time. Every wait ends at `until`. */
#ifndef ETCD_HTTP2_H
#define ETCD_HTTP2_H
#include "backend.h"
#include "tls.h"
#include <stdint.h>

struct http2;

struct http2_header {
    const char *name, *value;
};

/* One request and what came for it. Zeroed by the caller before http2_start; http2_done afterwards. */
struct http2_call {
    int32_t id;
    struct http2_call *next;
    unsigned char *in; /* body bytes not yet taken */
    size_t in_used, in_size;
    unsigned char *out; /* body bytes not yet handed to the connection */
    size_t out_used, out_size;
    bool out_ended;         /* nothing follows out */
    bool closed;            /* the stream ended */
    bool refused;           /* and the server surely did nothing (REFUSED_STREAM, GOAWAY before it) */
    int status;             /* :status; 0: none came */
    int grpc_status;        /* -1: none came */
    char grpc_message[256]; /* percent-decoded */
};

/* Takes over fd and tls. NULL: out of memory; both are closed. */
struct http2 *http2_open(int fd, struct tls *tls, const char *authority, bool secure, const char *node);
void http2_close(struct http2 *h, bool quiet);
int http2_fd(const struct http2 *h);
const char *http2_node(const struct http2 *h);
/* What is being attempted, for errors: "taking", "nightly"; name NULL: it has none. Both texts must last meanwhile. */
void http2_doing(struct http2 *h, const char *verb, const char *name);
const char *http2_at(struct http2 *h); /* how an error begins: the node, and what is attempted there */
/* No more requests here: the connection broke, the server says goodbye, or stream ids run out. */
bool http2_worn(const struct http2 *h);

bool http2_would_send(const struct http2 *h); /* with the next pump */

/* Submits; nothing is sent before the next pump. false: not possible on this connection any more. */
bool http2_start(struct http2 *h, struct http2_call *call, const char *path, const struct http2_header *headers, int n);
/* Appends to the body; end: the last of it. false: out of memory. */
bool http2_write(struct http2 *h, struct http2_call *call, const void *data, size_t size, bool end);
/* Sends what is to be sent and reads what is there. YES: something moved; NO: nothing did, and would_wait was true or
 * time is up (then *error says so); FAULT: the connection is gone: all its calls are closed. */
enum bk_says http2_pump(struct http2 *h, bool would_wait, struct bk_until until, pawl_error *error);
/* Forgets the call; resets its stream if it is open. */
void http2_done(struct http2 *h, struct http2_call *call);
#endif
