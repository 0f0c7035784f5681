/* A holder is stopped for longer than its lease, and does not know: the failure that every lock with a ttl has. */
#include "../stage.h"

static void play(struct stage *s, int64_t ttl_ms, int64_t pause_ms) {
    struct server *redis = stage_server(s);
    server_start_redis(redis, NULL);
    stage_ttl(s, ttl_ms);
    struct worker *a = stage_worker(s, "A", redis->url), *b = stage_worker(s, "B", redis->url);
    worker_must_take(s, a, 5000);
    stage_say(s, "A asks itself whether it has the lock (yes), and is about to write");
    worker_pause(s, a);
    worker_take_start(s, b, ttl_ms + 10000);
    stage_wait(s, pause_ms * 3 / 4); /* the lease ends meanwhile */
    if (!worker_take_end(s, b)) stage_fail(s, "B never got the lock");
    worker_write(s, b);
    stage_wait(s, pause_ms / 4);
    worker_resume(s, a);
    worker_write_late(s, a);
}

static void play_short(struct stage *s) { play(s, 300, 500); }
static void play_long(struct stage *s) { play(s, 10000, 15000); }

#define ZOMBIE                                                                                                         \
    .happens = "A has the lock and is about to write. It is stopped (a long collection, swap, a paused machine) for "  \
               "longer than "                                                                                          \
               "its lease. B gets the lock and writes. A goes on where it was, and writes.",                           \
    .believed = "The lock service keeps two writers apart; whoever asks just before it writes is safe.",               \
    .truth = "Between the question and the write any time can pass. Only the resource can refuse, by the token.",      \
    .service = "redis", .needs = "redis-server", .plain = &plain_redis, .plain_breaks = true, .pawl_breaks = true

const struct scenario scenario_zombie = {.name = "zombie",
                                         .title =
                                             "a holder is paused for longer than its lease (ttl 300 ms, pause 500 ms)",
                                         ZOMBIE,
                                         .quick = true,
                                         .play = play_short};
const struct scenario scenario_zombie_long = {
    .name = "zombie-long",
    .title = "a holder is paused for longer than a usual lease (ttl 10 s, pause 15 s)",
    ZOMBIE,
    .play = play_long};
