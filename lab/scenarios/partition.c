#include "../stage.h"

static void play(struct stage *s) {
    struct server *redis = stage_server(s);
    server_start_redis(redis, NULL);
    struct proxy *proxy = stage_proxy(s, redis->port);
    char url[64];
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", proxy_port(proxy));
    stage_ttl(s, 1500);
    struct worker *a = stage_worker(s, "A", url), *b = stage_worker(s, "B", redis->url);
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    proxy_freeze(proxy, true);
    stage_fault(s, "network of A", "nothing passes between A and Redis any more");
    worker_must_take(s, b, 15000);
    worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
    proxy_freeze(proxy, false);
    stage_fault_over(s, "network of A", "the network is whole again");
    worker_write(s, a);
}

const struct scenario scenario_partition = {
    .name = "partition",
    .title = "the network between the holder and the lock service is cut, not that to the resource",
    .happens = "A has the lock. Its network to Redis falls silent; the one to the storage does not. The lease ends, B "
               "gets the "
               "lock and writes. A goes on writing.",
    .believed = "A lease ends by itself, so a partition costs a little time and nothing else.",
    .truth = "The lease ends in Redis, not in A. pawl keeps a deadline of its own and knows in time; a write that is "
             "already on "
             "its way still needs a guard.",
    .service = "redis",
    .needs = "redis-server",
    .plain = &plain_redis,
    .plain_breaks = true,
    .quick = true,
    .play = play};
