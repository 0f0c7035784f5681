/* wire.h: one connection that speaks RESP, plain or TLS, on a non-blocking socket of our own; hiredis is its parser
 * only. Requests are added, then flushed together; replies are read one by one. Every wait ends at `until`. */
#ifndef REDIS_WIRE_H
#define REDIS_WIRE_H
#include "backend.h"
#include "tls.h"
#include <hiredis/hiredis.h>

struct wire {
    int fd; /* -1: closed */
    struct tls *tls;
    redisReader *reader;
    char *out;
    size_t out_used, out_size;
    int events; /* what the socket is waited for */
    char node[128];
    const char *prefix;      /* of pawl's keys, for errors */
    const char *verb, *name; /* what is being attempted, for errors: "taking", "nightly" */
    bool failed;             /* out of memory while requests were added */
    bool heard;              /* anything at all */
    const char *strange;     /* what came first is not Redis's, that is; NULL: it may be */
};

#define WIRE_ARGS 320
struct args {
    const char *value[WIRE_ARGS];
    size_t length[WIRE_ARGS];
    int n;
};

/* Takes over fd (and tls, NULL: plain). false: out of memory; fd is closed. */
bool wire_open(struct wire *w, int fd, struct tls *tls, const char *node, const char *prefix);
/* quiet: says no TLS goodbye (after fork). */
void wire_close(struct wire *w, bool quiet);
/* For a connection on which nothing is ever asked: only this finds out that the host at the other end is gone. A unix
 * socket has no such options, and needs none. */
void wire_keep_alive(struct wire *w);

static inline void arg(struct args *a, const char *value, size_t length) {
    a->value[a->n] = value;
    a->length[a->n++] = length;
}
void arg_text(struct args *a, const char *value);
void wire_add(struct wire *w, const struct args *a);
void wire_words(struct wire *w, const char *const words[]); /* ended by NULL */
/* FAULT: nothing left us. UNKNOWN: a part may have. */
enum bk_says wire_flush(struct wire *w, struct bk_until until, pawl_error *error);
/* YES or UNKNOWN. An error reply is a reply. To be freed with freeReplyObject. */
enum bk_says wire_reply(struct wire *w, struct bk_until until, redisReply **ret, pawl_error *error);
/* Never waits: YES with a reply, NO: none is complete yet, FAULT: the connection is gone. */
enum bk_says wire_poll(struct wire *w, redisReply **ret, pawl_error *error);
/* Behind a reply of wire_poll: is it worth calling again at once, or is the descriptor to be waited for? */
bool wire_has_more(const struct wire *w);
/* All that was added, and one reply. */
enum bk_says wire_ask(struct wire *w, const struct args *a, struct bk_until until, redisReply **ret, pawl_error *error);

static inline void free_reply(redisReply **reply) {
    if (*reply) freeReplyObject(*reply);
}
#define AUTO_REPLY __attribute__((cleanup(free_reply))) redisReply *
#endif
