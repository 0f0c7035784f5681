#include "../stage.h"

static void play(struct stage *s) {
    struct server *redis = stage_server(s);
    server_start_redis(redis, NULL);
    struct worker *a = stage_worker(s, "A", redis->url), *b = stage_worker(s, "B", redis->url);
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    stage_wait(s, 200);
    worker_release(s, a);
    worker_must_take(s, b, 5000);
    worker_write(s, b);
    stage_wait(s, 200);
    stage_fault(s, "network of A", "A's write was sent twice, for its answer was late; the second one arrives now");
    worker_write_late(s, a);
    stage_fault_over(s, "network of A", "everything has arrived");
}

const struct scenario scenario_late_duplicate = {
    .name = "late-duplicate",
    .title = "a command arrives a second time, after the lock has moved on",
    .happens = "A writes and releases properly. B takes the lock and writes. A repetition of A's write, sent when the "
               "answer was "
               "late, arrives after it.",
    .believed = "Whoever releases only after the answer has come is safe.",
    .truth =
        "Networks and clients repeat requests. No lock can call a request back; the resource refuses it by its token.",
    .service = "redis",
    .needs = "redis-server",
    .plain = &plain_redis,
    .plain_breaks = true,
    .pawl_breaks = true,
    .quick = true,
    .play = play};
