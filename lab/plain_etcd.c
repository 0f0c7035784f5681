/* plain_etcd.c: an etcd lease and a key, as the recipes have it, through the JSON gateway: grant a lease, create the
 * key if it is absent, then read the store to have a token; a thread renews through the endpoint it began with, and
 * nobody looks at what it is told. */
#include "clock.h"
#include "error.h"
#include "plain.h"
#include "server.h"
#include "url.h"
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct client {
    int port;
    int64_t ttl_ms;
    char key[128], lease[32]; /* base64; decimal, "" for none */
    pthread_mutex_t mutex;    /* around lease */
    pthread_t thread;
    bool renewing;
};

static void base64(const char *text, char *ret, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strlen(text), used = 0;
    for (size_t i = 0; i < n && used + 5 < size; i += 3) {
        unsigned bits = 0;
        for (size_t k = 0; k < 3; k++) bits = bits << 8 | (i + k < n ? (unsigned char)text[i + k] : 0);
        for (int k = 0; k < 4; k++) ret[used++] = i + (size_t)k > n ? '=' : digits[bits >> (18 - 6 * k) & 63];
    }
    ret[used] = 0;
}

/* POSTs one JSON text; NULL: no answer, or not what was asked for. */
static json_t *post(const struct client *c, const char *path, const char *format, ...) {
    char body[1024], request[1536], reply[8192];
    size_t used = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(body, sizeof body, format, arguments);
    va_end(arguments);
    int fd = server_dial(c->port);
    if (fd < 0) return NULL;
    int n = snprintf(request, sizeof request, "POST %s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", path, strlen(body),
                     body);
    if (send(fd, request, (size_t)n, MSG_NOSIGNAL) == n) {
        for (ssize_t got; used < sizeof reply - 1; used += (size_t)got)
            if ((got = read(fd, reply + used, sizeof reply - 1 - used)) < 0 && errno == EINTR)
                got = 0; /* was stopped */
            else if (got <= 0) break;
    }
    close(fd);
    reply[used] = 0;
    const char *json = strstr(reply, "\r\n\r\n");
    return json && strstr(reply, " 200 ") ? json_loads(json + 4, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
}

static void renew(struct client *c) {
    char lease[sizeof c->lease];
    pthread_mutex_lock(&c->mutex);
    snprintf(lease, sizeof lease, "%s", c->lease);
    pthread_mutex_unlock(&c->mutex);
    if (*lease) json_decref(post(c, "/v3/lease/keepalive", "{\"ID\":\"%s\"}", lease));
}

static void *keep(void *of) {
    struct client *c = of;
    for (;;) {
        clock_wait_fd(-1, 0, clock_after_ms(clock_now_ns(), c->ttl_ms / 3), -1);
        renew(c);
    }
    return NULL;
}

static int open_client(const char *text, int64_t ttl_ms, void **ret, pawl_error *error) {
    struct url *url;
    int code = url_parse(text, &url, error);
    if (code) return code;
    struct client *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->port = url->hosts[0].port;
    c->ttl_ms = ttl_ms;
    pthread_mutex_init(&c->mutex, NULL);
    url_free(url);
    *ret = c;
    return PAWL_OK;
}

static void close_client(void *of) { (void)of; /* its thread ends with the process */ }

static int no_answer(pawl_error *error, const char *what) {
    return error_set(error, PAWL_EUNREACHABLE, NULL, "etcd does not answer: %s", what);
}

/* The token as the recipe gets it: the revision of a read that comes after the transaction. */
static int64_t read_token(const struct client *c) {
    const char *revision = NULL;
    json_t *reply = post(c, "/v3/kv/range", "{\"key\":\"%s\"}", c->key);
    int64_t token = 0;
    if (reply && !json_unpack(reply, "{s:{s:s}}", "header", "revision", &revision)) token = atoll(revision);
    json_decref(reply);
    return token;
}

static int once(void *of, const char *name, int64_t *ret_token, pawl_error *error) {
    struct client *c = of;
    const char *id = NULL;
    base64(name, c->key, sizeof c->key);
    json_t *reply = post(c, "/v3/lease/grant", "{\"TTL\":\"%lld\"}", (long long)((c->ttl_ms + 999) / 1000));
    if (!reply || json_unpack(reply, "{s:s}", "ID", &id)) {
        json_decref(reply);
        return no_answer(error, "lease");
    }
    char lease[sizeof c->lease];
    snprintf(lease, sizeof lease, "%s", id);
    json_decref(reply);
    reply = post(c, "/v3/kv/txn",
                 "{\"compare\":[{\"key\":\"%s\",\"target\":\"VERSION\",\"version\":\"0\"}],"
                 "\"success\":[{\"requestPut\":{\"key\":\"%s\",\"value\":\"\",\"lease\":\"%s\"}}]}",
                 c->key, c->key, lease);
    if (!reply) return no_answer(error, "transaction");
    bool mine = json_is_true(json_object_get(reply, "succeeded"));
    json_decref(reply);
    if (!mine) {
        json_decref(post(c, "/v3/lease/revoke", "{\"ID\":\"%s\"}", lease));
        return error_set(error, PAWL_EBUSY, NULL, "the key is there");
    }
    pthread_mutex_lock(&c->mutex);
    snprintf(c->lease, sizeof c->lease, "%s", lease);
    pthread_mutex_unlock(&c->mutex);
    if (!c->renewing) c->renewing = pthread_create(&c->thread, NULL, keep, c) == 0;
    *ret_token = read_token(c);
    return PAWL_OK;
}

static int take(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    return plain_poll(once, client, name, wait_ms, ret_token, error);
}

static int release(void *of, pawl_error *error) {
    struct client *c = of;
    char lease[sizeof c->lease];
    pthread_mutex_lock(&c->mutex);
    snprintf(lease, sizeof lease, "%s", c->lease);
    *c->lease = 0;
    pthread_mutex_unlock(&c->mutex);
    json_t *reply = *lease ? post(c, "/v3/lease/revoke", "{\"ID\":\"%s\"}", lease) : NULL;
    bool done = reply != NULL;
    json_decref(reply);
    return done ? PAWL_OK : no_answer(error, "revoke");
}

const struct plain plain_etcd = {
    "a lease renewed through one endpoint, a key created if absent, the token read afterwards", open_client, take,
    release, close_client};
