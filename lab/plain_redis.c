/* plain_redis.c: the recipes for one Redis, found directly or through Sentinel, and for several (Redlock), as they
 * stand in a hundred tutorials. Nobody renews; the random value keeps one from deleting another one's lock. */
#include "clock.h"
#include "error.h"
#include "plain.h"
#include "random.h"
#include "url.h"
#include <hiredis/hiredis.h>
#include <stdlib.h>
#include <string.h>

#define DELETE_IF_OURS "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"

enum { HOSTS = 9 };
struct client {
    struct url *url;
    redisContext *redis[HOSTS];
    int n;
    int64_t ttl_ms;
    char name[64], value[33];
};

static redisContext *dial(const char *host, int port) {
    struct timeval limit = {.tv_usec = 500000};
    redisContext *redis = redisConnectWithTimeout(host, port, limit);
    if (redis && !redis->err) {
        redisSetTimeout(redis, limit);
        return redis;
    }
    if (redis) redisFree(redis);
    return NULL;
}

/* The primary that the first sentinel that answers names. */
static redisContext *dial_primary(const struct client *c) {
    redisContext *found = NULL;
    for (size_t i = 0; i < c->url->n_hosts && !found; i++) {
        redisContext *sentinel = dial(c->url->hosts[i].host, c->url->hosts[i].port);
        redisReply *reply =
            sentinel ? redisCommand(sentinel, "SENTINEL get-master-addr-by-name %s", c->url->path) : NULL;
        if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2)
            found = dial(reply->element[0]->str, atoi(reply->element[1]->str));
        freeReplyObject(reply);
        if (sentinel) redisFree(sentinel);
    }
    return found;
}

static redisReply *command(struct client *c, int i, const char *format, ...) {
    va_list arguments;
    const struct url_host *host = &c->url->hosts[i];
    if (c->redis[i] && c->redis[i]->err) {
        redisFree(c->redis[i]);
        c->redis[i] = NULL;
    }
    if (!c->redis[i])
        c->redis[i] = strcmp(c->url->scheme, "redis+sentinel") == 0 ? dial_primary(c) : dial(host->host, host->port);
    if (!c->redis[i]) return NULL;
    va_start(arguments, format);
    redisReply *reply = redisvCommand(c->redis[i], format, arguments);
    va_end(arguments);
    return reply;
}

static int open_client(const char *url, int64_t ttl_ms, void **ret, pawl_error *error) {
    struct client *c = calloc(1, sizeof *c);
    if (!c) abort();
    int code = url_parse(url, &c->url, error);
    if (code) {
        free(c);
        return code;
    }
    c->n = strcmp(c->url->scheme, "redlock") == 0 ? (int)c->url->n_hosts : 1;
    c->ttl_ms = ttl_ms;
    *ret = c;
    return PAWL_OK;
}

static void close_client(void *of) {
    struct client *c = of;
    for (int i = 0; i < c->n; i++)
        if (c->redis[i]) redisFree(c->redis[i]);
    url_free(c->url);
    free(c);
}

static void new_value(struct client *c, const char *name) {
    unsigned char bytes[16];
    random_bytes(bytes, sizeof bytes);
    random_hex(bytes, sizeof bytes, c->value);
    snprintf(c->name, sizeof c->name, "%s", name);
}

/* 1 done, 0 refused, -1 no answer. */
static int said(redisReply *reply) {
    int r = !reply || reply->type == REDIS_REPLY_ERROR ? -1
            : reply->type == REDIS_REPLY_STATUS        ? 1
            : reply->type == REDIS_REPLY_INTEGER       ? reply->integer > 0
                                                       : 0;
    freeReplyObject(reply);
    return r;
}

static int outcome(int said, pawl_error *error) {
    if (said == 1) return PAWL_OK;
    return said == 0 ? error_set(error, PAWL_EBUSY, NULL, "the key is there")
                     : error_set(error, PAWL_EUNREACHABLE, NULL, "Redis does not answer");
}

static int set(struct client *c, int i) {
    return said(command(c, i, "SET %s %s NX PX %lld", c->name, c->value, (long long)c->ttl_ms));
}

static int once(void *of, const char *name, int64_t *ret_token, pawl_error *error) {
    struct client *c = of;
    new_value(c, name);
    *ret_token = 0;
    return outcome(set(c, 0), error);
}

static int take(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    return plain_poll(once, client, name, wait_ms, ret_token, error);
}

static int release(void *of, pawl_error *error) {
    struct client *c = of;
    int good = 0;
    for (int i = 0; i < c->n; i++)
        good |= said(command(c, i, "EVAL %s 1 %s %s", DELETE_IF_OURS, c->name, c->value)) == 1;
    return good ? PAWL_OK : error_set(error, PAWL_ELOST, NULL, "the key was not ours any more");
}

const struct plain plain_redis = {"SET NX PX with a random value, tried again every 50 ms; compare-and-delete",
                                  open_client, take, release, close_client};

static int release_del(void *of, pawl_error *error) {
    struct client *c = of;
    return outcome(said(command(c, 0, "DEL %s", c->name)), error);
}

const struct plain plain_del = {"SET NX PX; DEL", open_client, take, release_del, close_client};

static int once_setnx(void *of, const char *name, int64_t *ret_token, pawl_error *error) {
    struct client *c = of;
    new_value(c, name);
    *ret_token = 0;
    int r = said(command(c, 0, "SETNX %s %s", c->name, c->value));
    if (r == 1) r = said(command(c, 0, "PEXPIRE %s %lld", c->name, (long long)c->ttl_ms));
    return outcome(r, error);
}

static int take_setnx(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    return plain_poll(once_setnx, client, name, wait_ms, ret_token, error);
}

const struct plain plain_setnx = {"SETNX, then EXPIRE", open_client, take_setnx, release, close_client};

static int once_wait(void *of, const char *name, int64_t *ret_token, pawl_error *error) {
    struct client *c = of;
    new_value(c, name);
    *ret_token = 0;
    int r = set(c, 0);
    if (r != 1 || said(command(c, 0, "WAIT 1 300")) == 1) return outcome(r, error);
    release(c, NULL);
    return error_set(error, PAWL_EUNREACHABLE, NULL, "no replica has it");
}

static int take_wait(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    return plain_poll(once_wait, client, name, wait_ms, ret_token, error);
}

const struct plain plain_wait = {"SET NX PX, then WAIT 1: not held unless a replica has it", open_client, take_wait,
                                 release, close_client};

/* A majority within the time that is left, minus the drift that the algorithm allows for; else undo everywhere. */
static int once_redlock(void *of, const char *name, int64_t *ret_token, pawl_error *error) {
    struct client *c = of;
    int64_t start = clock_now_ns();
    int got = 0;
    new_value(c, name);
    *ret_token = 0;
    for (int i = 0; i < c->n; i++) got += set(c, i) == 1;
    int64_t validity = c->ttl_ms - (clock_now_ns() - start) / NS_PER_MS - (c->ttl_ms / 100 + 2);
    if (got > c->n / 2 && validity > 0) return PAWL_OK;
    release(c, NULL);
    return error_set(error, PAWL_EBUSY, NULL, "%d of %d instances", got, c->n);
}

static int take_redlock(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    return plain_poll(once_redlock, client, name, wait_ms, ret_token, error);
}

const struct plain plain_redlock = {"Redlock: SET NX PX on a majority of instances, validity = ttl - elapsed - drift",
                                    open_client, take_redlock, release, close_client};
