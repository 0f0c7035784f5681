#include "../stage.h"

static bool taken(void *data) { return server_redis_int(*(int *)data, "EXISTS lock pawl:lock") == 1; }

static void play(struct stage *s) {
    struct server *redis = stage_server(s);
    server_start_redis(redis, NULL);
    struct proxy *proxy = stage_proxy(s, redis->port);
    char url[64];
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", proxy_port(proxy));
    stage_ttl(s, 1500);
    struct worker *a = stage_worker(s, "A", url), *b = stage_worker(s, "B", redis->url);
    worker_must_take(s, a, 5000); /* connected, scripts loaded */
    worker_release(s, a);
    proxy_drop(proxy, PROXY_TO_CLIENT, true);
    stage_fault(s, "network of A", "answers to A get lost");
    worker_take_start(s, a, 5000);
    stage_until(s, taken, &redis->port, 5000, "A's request to arrive");
    worker_kill(s, a);
    if (!worker_take(s, b, 6000)) stage_broke(s, "the lock of a dead client is never free again");
    else worker_write(s, b);
}

const struct scenario scenario_lost_reply = {
    .name = "lost-reply",
    .title = "a client is killed between the request and the reply",
    .happens =
        "A asks for the lock, Redis grants it, and A is killed before it learns of it, or sets the expiry. B waits.",
    .believed = "SETNX, then EXPIRE: the key has a ttl.",
    .truth =
        "Between two requests there is room for a crash. Grant and ttl must be one step; then a crash costs one ttl.",
    .service = "redis",
    .needs = "redis-server",
    .plain = &plain_setnx,
    .plain_breaks = true,
    .quick = true,
    .play = play};
