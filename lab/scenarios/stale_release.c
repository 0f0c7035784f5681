#include "../stage.h"

static void play(struct stage *s) {
    struct server *redis = stage_server(s);
    server_start_redis(redis, NULL);
    stage_ttl(s, 1500);
    struct worker *a = stage_worker(s, "A", redis->url), *b = stage_worker(s, "B", redis->url),
                  *c = stage_worker(s, "C", redis->url);
    worker_must_take(s, a, 5000);
    worker_pause(s, a);
    worker_must_take(s, b, 10000);
    worker_resume(s, a);
    worker_release(s, a);
    if (worker_try(s, c)) worker_write(s, c);
    stage_wait(s, 300);
    worker_write(s, b);
}

const struct scenario scenario_stale_release = {
    .name = "stale-release",
    .title = "a holder whose lease is over releases the lock of another one",
    .happens = "A is paused past its lease. B gets the lock. A wakes up and releases, as it must. C finds the lock "
               "free, and has it "
               "together with B.",
    .believed = "Release in a finally block, and nothing can go wrong.",
    .truth = "A release must say which grant it means. pawl's names the owner value and the token, and does nothing to "
             "others.",
    .service = "redis",
    .needs = "redis-server",
    .plain = &plain_del,
    .plain_breaks = true,
    .quick = true,
    .play = play};
