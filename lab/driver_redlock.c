/* driver_redlock.c: the floor of Redlock, with nothing but hiredis: SET NX PX written to all instances, then all
 * replies read; and the same with a script that deletes the key if the value is still ours. It has no quorum, no undo
 * and no token. Contended: one token in a list on the first instance, taken by BLPOP, as for Redis: no hand-over is
 * quicker. */
#include "driver.h"
#include "error.h"
#include "url.h"
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TTL_MS 15000
#define MOST 15
#define DELETE_IF_OURS "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"

struct client {
    redisContext *redis[MOST];
    int n;
    long many;
    bool contended;
    char key[240], value[40], script[41];
};

static int failed(const redisContext *redis, const char *what, const redisReply *reply, pawl_error *error) {
    const char *why = !reply ? redis->errstr : reply->type == REDIS_REPLY_ERROR ? reply->str : "unexpected reply";
    return error_set(error, PAWL_EUNREACHABLE, NULL, "raw %s: %s", what, why);
}

static void close_client(void *of, bool sweep) {
    (void)sweep;
    struct client *c = of;
    for (int i = 0; i < c->n; i++) {
        if (!c->redis[i]) continue;
        for (long k = 0; k < c->many; k++) redisAppendCommand(c->redis[i], "DEL %s:%ld", c->key, k);
        for (long k = 0; k < c->many; k++) {
            redisReply *reply = NULL;
            if (redisGetReply(c->redis[i], (void **)&reply) != REDIS_OK) break;
            freeReplyObject(reply);
        }
        freeReplyObject(redisCommand(c->redis[i], "PEXPIRE %s %d", c->key, TTL_MS));
        redisFree(c->redis[i]);
    }
    free(c);
}

static int load(struct client *c, const redisContext *redis, int i, pawl_error *error) {
    if (!redis || redis->err) return failed(redis, "connect", NULL, error);
    redisReply *reply = redisCommand(c->redis[i], "SCRIPT LOAD %s", DELETE_IF_OURS);
    int r = reply && reply->type == REDIS_REPLY_STRING ? PAWL_OK : failed(redis, "SCRIPT LOAD", reply, error);
    if (r == PAWL_OK) snprintf(c->script, sizeof c->script, "%s", reply->str);
    freeReplyObject(reply);
    return r;
}

static int open_client(const char *text, const char *key, bool contended, void **ret, pawl_error *error) {
    struct url *url;
    int r = url_parse(text, &url, error);
    if (r) return r;
    struct client *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->contended = contended;
    snprintf(c->key, sizeof c->key, "pawl-lab:raw:%s", key);
    snprintf(c->value, sizeof c->value, "%032d", (int)getpid());
    for (size_t i = 0; i < url->n_hosts && c->n < MOST && r == PAWL_OK; i++) {
        c->redis[c->n] = redisConnect(url->hosts[i].host, url->hosts[i].port ? url->hosts[i].port : 6379);
        r = load(c, c->redis[c->n], c->n, error);
        c->n++;
    }
    url_free(url);
    if (r == PAWL_OK && contended) { /* the first client puts the token there */
        redisReply *reply = redisCommand(c->redis[0], "SET %s:init 1 NX PX %d", c->key, 600000);
        if (reply && reply->type == REDIS_REPLY_STATUS)
            freeReplyObject(redisCommand(c->redis[0], "LPUSH %s t", c->key));
        freeReplyObject(reply);
    }
    if (r) close_client(c, false);
    else *ret = c;
    return r;
}

/* The replies of all instances; a majority must be of that type. */
static int read_all(struct client *c, const char *what, int type, pawl_error *error) {
    int fine = 0;
    for (int i = 0; i < c->n; i++) {
        redisReply *reply = NULL;
        if (redisGetReply(c->redis[i], (void **)&reply) == REDIS_OK && reply->type == type) fine++;
        freeReplyObject(reply);
    }
    return fine > c->n / 2 ? PAWL_OK : failed(c->redis[0], what, NULL, error);
}

/* The hand-over, on the first instance alone. */
static int one(struct client *c, const char *command, int type, pawl_error *error) {
    redisReply *reply = redisCommand(c->redis[0], command, c->key);
    int r = reply && reply->type == type ? PAWL_OK : failed(c->redis[0], command, reply, error);
    freeReplyObject(reply);
    return r;
}

/* Written first, so that all instances work at the same time. */
static void flush_all(struct client *c) {
    for (int i = 0, done; i < c->n; i++)
        for (done = 0; !done && redisBufferWrite(c->redis[i], &done) == REDIS_OK;) {
        }
}

static int acquire(void *of, pawl_error *error) {
    struct client *c = of;
    if (c->contended) return one(c, "BLPOP %s 0", REDIS_REPLY_ARRAY, error);
    for (int i = 0; i < c->n; i++) redisAppendCommand(c->redis[i], "SET %s %s NX PX %d", c->key, c->value, TTL_MS);
    flush_all(c);
    return read_all(c, "SET", REDIS_REPLY_STATUS, error);
}

static int release(void *of, pawl_error *error) {
    struct client *c = of;
    if (c->contended) return one(c, "LPUSH %s t", REDIS_REPLY_INTEGER, error);
    for (int i = 0; i < c->n; i++) redisAppendCommand(c->redis[i], "EVALSHA %s 1 %s %s", c->script, c->key, c->value);
    flush_all(c);
    return read_all(c, "EVALSHA", REDIS_REPLY_INTEGER, error);
}

/* 500 at a time, at all instances. */
static int take_many(void *of, long n, pawl_error *error) {
    struct client *c = of;
    int r = PAWL_OK;
    while (c->many < n && r == PAWL_OK) {
        long batch = n - c->many < 500 ? n - c->many : 500;
        for (long k = c->many; k < c->many + batch; k++)
            for (int i = 0; i < c->n; i++)
                redisAppendCommand(c->redis[i], "SET %s:%ld %s NX PX %d", c->key, k, c->value, TTL_MS);
        c->many += batch;
        flush_all(c);
        while (batch-- > 0 && r == PAWL_OK) r = read_all(c, "SET", REDIS_REPLY_STATUS, error);
    }
    return r;
}

static int64_t token(const void *of) {
    (void)of;
    return 0;
}

const struct driver driver_redlock = {
    .name = "raw",
    .does = "SET NX PX at all, script that deletes at all; contended: BLPOP, LPUSH at one",
    .open = open_client,
    .acquire = acquire,
    .release = release,
    .token = token,
    .close = close_client,
    .take_many = take_many};

void driver_redlock_about(const char *text, char *ret_version, size_t size, uint64_t *ret_requests) {
    struct url *url;
    if (url_parse(text, &url, NULL)) return;
    for (size_t i = 0; i < url->n_hosts; i++) {
        char one_url[300];
        uint64_t requests = 0;
        snprintf(one_url, sizeof one_url, "redis://%s:%d", url->hosts[i].host,
                 url->hosts[i].port ? url->hosts[i].port : 6379);
        driver_redis_about(one_url, ret_version, size, &requests);
        *ret_requests += requests;
    }
    url_free(url);
}
