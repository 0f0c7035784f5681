#include "tls.h"
#include "clock.h"
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct tls {
    SSL_CTX *context;
    SSL *ssl;
    BIO_METHOD *method;
    const char *alert, *alpn; /* alpn NULL: none asked for */
    const char *service, *plain;
    char host[256], node[288]; /* host: whose certificate it has to be */
    int fd;
};

static int bio_write(BIO *bio, const char *data, int size) {
    BIO_clear_retry_flags(bio);
    ssize_t n = send(((struct tls *)BIO_get_data(bio))->fd, data, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
    return (int)n;
}

static int bio_read(BIO *bio, char *data, int size) {
    BIO_clear_retry_flags(bio);
    ssize_t n = recv(((struct tls *)BIO_get_data(bio))->fd, data, (size_t)size, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
    return (int)n;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

void tls_end(struct tls *tls, bool quiet) {
    if (!tls) return;
    if (tls->ssl) {
        ERR_clear_error();
        if (!quiet) SSL_shutdown(tls->ssl);
        SSL_free(tls->ssl);
    }
    SSL_CTX_free(tls->context);
    BIO_meth_free(tls->method);
    ERR_clear_error();
    free(tls);
}

static enum bk_says refuse(const char *node, int code, const char *what, pawl_error *error) {
    char reason[160] = "";
    unsigned long number = ERR_peek_last_error();
    if (number) ERR_error_string_n(number, reason, sizeof reason);
    ERR_clear_error();
    error_set(error, code, node, "%s: %s%s%s", node, what, *reason ? ": " : "", reason);
    return BK_FAULT;
}

/* OpenSSL does not say that a file is missing. */
static bool unreadable(const char *path, const char *what, pawl_error *error) {
    if (!path || access(path, R_OK) == 0) return false;
    error_errno(error, PAWL_EINVALID, NULL, "cannot read %s %s", what, path);
    return true;
}

static enum bk_says configure(struct tls *tls, const struct tls_options *o, const char *node, pawl_error *error) {
    tls->context = SSL_CTX_new(TLS_client_method());
    tls->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "pawl socket");
    if (!tls->context || !tls->method) return refuse(node, PAWL_EINTERNAL, "cannot start TLS", error);
    if (unreadable(o->cacert, "the certificates of authorities,", error) ||
        unreadable(o->cert, "the client certificate", error) || unreadable(o->key, "the private key", error))
        return BK_FAULT;
    BIO_meth_set_write(tls->method, bio_write);
    BIO_meth_set_read(tls->method, bio_read);
    BIO_meth_set_ctrl(tls->method, bio_control);
    SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION);
    SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER, NULL);
    if (o->cacert ? !SSL_CTX_load_verify_locations(tls->context, o->cacert, NULL)
                  : !SSL_CTX_set_default_verify_paths(tls->context))
        return refuse(o->cacert ? o->cacert : node, PAWL_EINVALID, "cannot read the certificates of authorities",
                      error);
    if (o->cert && SSL_CTX_use_certificate_chain_file(tls->context, o->cert) != 1)
        return refuse(o->cert, PAWL_EINVALID, "cannot read this client certificate", error);
    if (o->cert && SSL_CTX_use_PrivateKey_file(tls->context, o->key ? o->key : o->cert, SSL_FILETYPE_PEM) != 1)
        return refuse(o->key ? o->key : o->cert, PAWL_EINVALID, "cannot use this private key", error);
    return BK_YES;
}

static enum bk_says attach(struct tls *tls, const char *host, const char *node, pawl_error *error) {
    unsigned char address[16];
    BIO *bio = BIO_new(tls->method);
    tls->ssl = SSL_new(tls->context);
    if (!bio || !tls->ssl) {
        BIO_free(bio);
        return refuse(node, PAWL_EINTERNAL, "cannot start TLS", error);
    }
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio);
    SSL_set_mode(tls->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_set_connect_state(tls->ssl);
    bool literal = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    int ok = literal ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls->ssl), host)
                     : SSL_set1_host(tls->ssl, host) && SSL_set_tlsext_host_name(tls->ssl, host);
    return ok ? BK_YES : refuse(node, PAWL_EINTERNAL, "cannot set the name to verify", error);
}

static enum bk_says offer(struct tls *tls, const char *alpn, const char *node, pawl_error *error) {
    unsigned char list[32];
    size_t length = strlen(alpn);
    list[0] = (unsigned char)length;
    memcpy(list + 1, alpn, length);
    if (SSL_set_alpn_protos(tls->ssl, list, (unsigned)length + 1) == 0) return BK_YES;
    return refuse(node, PAWL_EINTERNAL, "cannot offer a protocol", error);
}

static enum bk_says agreed(struct tls *tls, pawl_error *error) {
    const unsigned char *chosen;
    unsigned length;
    SSL_get0_alpn_selected(tls->ssl, &chosen, &length);
    if (length == strlen(tls->alpn) && memcmp(chosen, tls->alpn, length) == 0) return BK_YES;
    error_set(error, PAWL_EUNREACHABLE, tls->node,
              "%s: speaks TLS, but not the protocol '%s': is it %s that listens there?", tls->node, tls->alpn,
              tls->service);
    return BK_FAULT;
}

/* What SSL_get_error means: the events to wait for, or 0: failed, errno is set (0: closed). */
static int wants(struct tls *tls, int result) {
    int number = errno;
    switch (SSL_get_error(tls->ssl, result)) {
    case SSL_ERROR_WANT_READ: return POLLIN;
    case SSL_ERROR_WANT_WRITE: return POLLOUT;
    case SSL_ERROR_ZERO_RETURN: errno = 0; return 0;
    case SSL_ERROR_SYSCALL: errno = number; return 0;
    default: errno = EPROTO; return 0;
    }
}

enum bk_says tls_shake(struct tls *tls, int *ret_events, pawl_error *error) {
    ERR_clear_error();
    int result = SSL_do_handshake(tls->ssl);
    if (result == 1) return tls->alpn ? agreed(tls, error) : BK_YES;
    *ret_events = wants(tls, result);
    if (*ret_events) return BK_NO;
    long verdict = SSL_get_verify_result(tls->ssl);
    unsigned long number = ERR_peek_last_error();
    bool strange = ERR_GET_LIB(number) == ERR_LIB_SSL && ERR_GET_REASON(number) == SSL_R_WRONG_VERSION_NUMBER;
    if (verdict == X509_V_OK && (strange || !number)) { /* its first bytes are no TLS; or none came */
        error_set(error, PAWL_EUNREACHABLE, tls->node,
                  "%s: the TLS handshake failed, %s: is it %s that listens there, and with TLS? if without, write %s",
                  tls->node, strange ? "what answers does not speak TLS" : "the server closed the connection",
                  tls->service, tls->plain);
        ERR_clear_error();
        return BK_FAULT;
    }
    if (verdict == X509_V_OK) return refuse(tls->node, PAWL_EUNREACHABLE, "the TLS handshake failed", error);
    error_set(error, PAWL_EDENIED, tls->node,
              "%s: its certificate was not accepted for '%s': %s (see cacert and "
              "server-name)",
              tls->node, tls->host, X509_verify_cert_error_string(verdict));
    ERR_clear_error();
    return BK_FAULT;
}

void tls_late(const struct tls_options *options, const char *node, pawl_error *error) {
    error_set(error, PAWL_EUNREACHABLE, node,
              "%s: the TLS handshake did not end in time: is it %s that listens there, and with TLS? if without, write "
              "%s",
              node, options->service, options->plain);
}

enum bk_says tls_begin(int fd, const struct tls_options *options, const char *host, const char *node, struct tls **ret,
                       pawl_error *error) {
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls) return refuse(node, PAWL_EINTERNAL, "out of memory", error);
    tls->fd = fd;
    tls->alpn = options->alpn;
    tls->service = options->service;
    tls->plain = options->plain;
    snprintf(tls->host, sizeof tls->host, "%s", options->server_name ? options->server_name : host);
    snprintf(tls->node, sizeof tls->node, "%s", node);
    enum bk_says says = configure(tls, options, node, error);
    if (says == BK_YES) says = attach(tls, tls->host, node, error);
    if (says == BK_YES && tls->alpn) says = offer(tls, tls->alpn, node, error);
    if (says == BK_YES) *ret = tls;
    else tls_end(tls, true);
    return says;
}

enum bk_says tls_start(int fd, const struct tls_options *options, const char *host, const char *node,
                       struct bk_until until, struct tls **ret, pawl_error *error) {
    struct tls *tls;
    int events, ready = 1;
    enum bk_says says = tls_begin(fd, options, host, node, &tls, error);
    if (says != BK_YES) return says;
    while (ready == 1 && (says = tls_shake(tls, &events, error)) == BK_NO)
        ready = clock_wait_fd(fd, (short)events, until.at_ns, until.cancel_fd);
    if (ready == -1) error_set(error, PAWL_ECANCELLED, node, "%s: the TLS handshake was cancelled", node);
    else if (ready != 1) tls_late(options, node, error);
    if (says == BK_YES) {
        *ret = tls;
        return BK_YES;
    }
    tls_end(tls, true);
    return BK_FAULT;
}

static ssize_t outcome(struct tls *tls, int result, int *events) {
    if (result > 0) return result;
    int waited = wants(tls, result);
    if (waited) {
        *events = waited;
        errno = EAGAIN;
        return -1;
    }
    /* With TLS 1.3 a server judges our certificate only after its own handshake is over. */
    unsigned long number = ERR_peek_last_error();
    if (ERR_GET_LIB(number) == ERR_LIB_SSL && ERR_GET_REASON(number) >= SSL_AD_REASON_OFFSET)
        tls->alert = SSL_alert_desc_string_long(ERR_GET_REASON(number) - SSL_AD_REASON_OFFSET);
    ERR_clear_error();
    return errno ? -1 : 0;
}

const char *tls_alert(const struct tls *tls) { return tls->alert ? tls->alert : ""; }

ssize_t tls_recv(struct tls *tls, void *buffer, size_t size, int *events) {
    ERR_clear_error();
    errno = 0;
    return outcome(tls, SSL_read(tls->ssl, buffer, (int)size), events);
}

ssize_t tls_send(struct tls *tls, const void *buffer, size_t size, int *events) {
    ERR_clear_error();
    errno = 0;
    ssize_t n = outcome(tls, SSL_write(tls->ssl, buffer, (int)size), events);
    if (n == 0) errno = EPIPE;
    return n ? n : -1;
}
