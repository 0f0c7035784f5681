/* driver_redis.c: the floor of Redis locks, with nothing but hiredis. Uncontended: SET NX PX, and a script that deletes
 * the key if the value is still ours. Contended: one token in a list, taken by BLPOP and given back by LPUSH, which is
 * the quickest hand-over that the server offers (and loses the lock for ever with a holder that dies: a floor, not a
 * lock). */
#include "driver.h"
#include "error.h"
#include "url.h"
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TTL_MS 15000
#define DELETE_IF_OURS "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"

struct client {
    redisContext *redis;
    bool contended;
    long many;
    char key[240], value[40], script[41];
};

static int failed(struct client *c, const char *what, const redisReply *reply, pawl_error *error) {
    const char *why = !reply ? c->redis->errstr : reply->type == REDIS_REPLY_ERROR ? reply->str : "unexpected reply";
    return error_set(error, PAWL_EUNREACHABLE, NULL, "raw %s: %s", what, why);
}

static void close_client(void *of, bool sweep) {
    (void)sweep;
    struct client *c = of;
    if (c->redis) {
        for (long i = 0; i < c->many; i++) redisAppendCommand(c->redis, "DEL %s:%ld", c->key, i);
        if (!c->many) redisAppendCommand(c->redis, "PEXPIRE %s %d", c->key, TTL_MS);
        redisReply *reply;
        for (long i = 0; i < (c->many ? c->many : 1); i++)
            if (redisGetReply(c->redis, (void **)&reply) != REDIS_OK) break;
            else freeReplyObject(reply);
        redisFree(c->redis);
    }
    free(c);
}

static redisContext *dial(const struct url *url) {
    bool local = strcmp(url->scheme, "redis+unix") == 0;
    const char *host = url->n_hosts && *url->hosts[0].host ? url->hosts[0].host : "127.0.0.1";
    int port = url->n_hosts && url->hosts[0].port ? url->hosts[0].port : 6379;
    char path[256];
    snprintf(path, sizeof path, "%s%s", *url->path == '/' ? "" : "/", url->path);
    redisContext *redis = local ? redisConnectUnix(path) : redisConnect(host, port);
    if (!redis || redis->err) return redis;
    const char *database = local ? "" : url->path;
    redisReply *reply = NULL;
    if (url->password && url->user && *url->user) reply = redisCommand(redis, "AUTH %s %s", url->user, url->password);
    else if (url->password) reply = redisCommand(redis, "AUTH %s", url->password);
    freeReplyObject(reply);
    reply = *database ? redisCommand(redis, "SELECT %s", database) : NULL;
    freeReplyObject(reply);
    return redis;
}

static int open_client(const char *text, const char *key, bool contended, void **ret, pawl_error *error) {
    struct url *url;
    int r = url_parse(text, &url, error);
    if (r) return r;
    struct client *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->contended = contended;
    c->redis = dial(url);
    url_free(url);
    snprintf(c->key, sizeof c->key, "pawl-lab:raw:%s", key);
    snprintf(c->value, sizeof c->value, "%032d", (int)getpid());
    redisReply *reply = NULL;
    if (!c->redis || c->redis->err) r = failed(c, "connect", NULL, error);
    else if (!(reply = redisCommand(c->redis, "SCRIPT LOAD %s", DELETE_IF_OURS)) || reply->type != REDIS_REPLY_STRING)
        r = failed(c, "SCRIPT LOAD", reply, error);
    else snprintf(c->script, sizeof c->script, "%s", reply->str);
    freeReplyObject(reply);
    if (r == PAWL_OK && contended) { /* the first client puts the token there */
        reply = redisCommand(c->redis, "SET %s:init 1 NX PX %d", c->key, 600000);
        if (reply && reply->type == REDIS_REPLY_STATUS) freeReplyObject(redisCommand(c->redis, "LPUSH %s t", c->key));
        freeReplyObject(reply);
    }
    if (r) close_client(c, false);
    else *ret = c;
    return r;
}

static int acquire(void *of, pawl_error *error) {
    struct client *c = of;
    redisReply *reply = c->contended ? redisCommand(c->redis, "BLPOP %s 0", c->key)
                                     : redisCommand(c->redis, "SET %s %s NX PX %d", c->key, c->value, TTL_MS);
    bool held = reply && reply->type == (c->contended ? REDIS_REPLY_ARRAY : REDIS_REPLY_STATUS);
    int r = held ? PAWL_OK : failed(c, c->contended ? "BLPOP" : "SET", reply, error);
    freeReplyObject(reply);
    return r;
}

static int release(void *of, pawl_error *error) {
    struct client *c = of;
    redisReply *reply = c->contended ? redisCommand(c->redis, "LPUSH %s t", c->key)
                                     : redisCommand(c->redis, "EVALSHA %s 1 %s %s", c->script, c->key, c->value);
    bool freed = reply && reply->type == REDIS_REPLY_INTEGER && reply->integer >= 1;
    int r = freed ? PAWL_OK : failed(c, c->contended ? "LPUSH" : "EVALSHA", reply, error);
    freeReplyObject(reply);
    return r;
}

static int64_t token(const void *of) {
    (void)of;
    return 0;
}

static int take_many(void *of, long n, pawl_error *error) {
    struct client *c = of;
    for (; c->many < n;) {
        long batch = n - c->many < 500 ? n - c->many : 500;
        for (long i = 0; i < batch; i++)
            redisAppendCommand(c->redis, "SET %s:%ld %s NX PX %d", c->key, c->many + i, c->value, TTL_MS);
        for (long i = 0; i < batch; i++) {
            redisReply *reply = NULL;
            redisGetReply(c->redis, (void **)&reply);
            if (!reply || reply->type != REDIS_REPLY_STATUS) {
                int r = failed(c, "SET", reply, error);
                freeReplyObject(reply);
                return r;
            }
            freeReplyObject(reply);
        }
        c->many += batch;
    }
    return PAWL_OK;
}

const struct driver driver_redis = {.name = "raw",
                                    .does = "SET NX PX, compare-and-delete (contended: BLPOP, LPUSH) through hiredis",
                                    .open = open_client,
                                    .acquire = acquire,
                                    .release = release,
                                    .token = token,
                                    .close = close_client,
                                    .take_many = take_many};

/* What clients send in a hand-over; commands made inside scripts are counted under other names. */
static uint64_t requests_in(const char *stats) {
    static const char *const names[] = {"evalsha", "eval", "subscribe", "blpop", "lpush"};
    uint64_t sum = 0, calls;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char word[48];
        snprintf(word, sizeof word, "cmdstat_%s:calls=", names[i]);
        const char *at = strstr(stats, word);
        if (at && sscanf(at + strlen(word), "%" SCNu64, &calls) == 1) sum += calls;
    }
    return sum;
}

void driver_redis_about(const char *text, char *ret_version, size_t size, uint64_t *ret_requests) {
    struct url *url;
    if (url_parse(text, &url, NULL)) return;
    redisContext *redis = dial(url);
    url_free(url);
    redisReply *reply = redis && !redis->err ? redisCommand(redis, "INFO commandstats") : NULL;
    if (reply && reply->type == REDIS_REPLY_STRING) *ret_requests = requests_in(reply->str);
    freeReplyObject(reply);
    reply = redis && !redis->err ? redisCommand(redis, "INFO server") : NULL;
    const char *at = reply && reply->type == REDIS_REPLY_STRING ? strstr(reply->str, "redis_version:") : NULL;
    if (at) snprintf(ret_version, size, "redis %.*s", (int)strcspn(at + 14, "\r\n"), at + 14);
    freeReplyObject(reply);
    if (redis) redisFree(redis);
}
