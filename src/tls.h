/* tls.h: TLS over a non-blocking socket. The BIO is our own, because OpenSSL's socket BIO writes with write(2), which
 * raises SIGPIPE in the application. The server is verified always: chain and name. */
#ifndef PAWL_TLS_H
#define PAWL_TLS_H
#include "backend.h"
#include <sys/types.h>

struct tls_options {
    char *cacert, *cert, *key, *server_name; /* NULL: the system's, none, none, the host that is dialled */
    const char *alpn;                        /* the protocol that must be agreed on, as "h2"; NULL: none */
    const char *service, *plain;             /* for errors: who should be there; what to write if he does without TLS */
};
struct tls;

/* The handshake. YES: *ret owns nothing but its own memory; fd stays the caller's. */
enum bk_says tls_start(int fd, const struct tls_options *options, const char *host, const char *node,
                       struct bk_until until, struct tls **ret, pawl_error *error);
/* The same without waiting: nothing is sent before the first tls_shake. NO: to be called again when *ret_events come.
 */
enum bk_says tls_begin(int fd, const struct tls_options *options, const char *host, const char *node, struct tls **ret,
                       pawl_error *error);
enum bk_says tls_shake(struct tls *tls, int *ret_events, pawl_error *error);
/* The words for a handshake that takes too long. */
void tls_late(const struct tls_options *options, const char *node, pawl_error *error);
/* What the other side said when it ended the connection, as "certificate required"; "" nothing. */
const char *tls_alert(const struct tls *tls);
void tls_end(struct tls *tls, bool quiet); /* NULL allowed */
/* As recv(2) and send(2); -1 with EAGAIN sets *events to what is to be waited for. */
ssize_t tls_recv(struct tls *tls, void *buffer, size_t size, int *events);
ssize_t tls_send(struct tls *tls, const void *buffer, size_t size, int *events);
#endif
