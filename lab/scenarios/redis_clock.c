#include "../stage.h"

static void play(struct stage *s) {
    struct server *redis = stage_server(s);
    redis->shim = skew_library();
    server_start_redis(redis, NULL);
    stage_ttl(s, 10000);
    struct worker *a = stage_worker(s, "A", redis->url), *b = stage_worker(s, "B", redis->url);
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    stage_wait(s, 300);
    skew_set(redis, 11000);
    stage_fault(s, "clock of Redis", "the clock of the Redis server is set 11 s ahead");
    worker_must_take(s, b, 5000);
    worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
}

const struct scenario scenario_redis_clock = {.name = "redis-clock",
                                              .title =
                                                  "the clock of the Redis server is set ahead (ttl 10 s, step 11 s)",
                                              .happens = "A has the lock for 10 s. An administrator, a hypervisor or "
                                                         "NTP steps the clock of the server by 11 s: the key is over "
                                                         "at once. B gets the lock.",
                                              .believed = "A ttl is a duration.",
                                              .truth = "Redis keeps a time of day, and compares it with a clock that "
                                                       "others set. Nothing tells A before its next renewal; a guard "
                                                       "refuses A's late write.",
                                              .service = "redis",
                                              .needs = "redis-server",
                                              .plain = &plain_redis,
                                              .plain_breaks = true,
                                              .pawl_breaks = true,
                                              .quick = true,
                                              .play = play};
