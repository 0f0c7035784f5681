/* Three failures of Redlock: A has three of five instances, and one or two of them forget it. */
#include "../stage.h"
#include <signal.h>
#include <string.h>

struct five {
    struct server *redis[5];
    struct proxy *way_a[5], *way_b[5]; /* NULL: none */
    char url_a[160], url_b[160];
};

static void urls(struct five *f) {
    strcpy(f->url_a, "redlock://");
    strcpy(f->url_b, "redlock://");
    for (int i = 0; i < 5; i++) {
        char *a = f->url_a + strlen(f->url_a), *b = f->url_b + strlen(f->url_b);
        snprintf(a, 24, "%s127.0.0.1:%d", i ? "," : "", f->way_a[i] ? proxy_port(f->way_a[i]) : f->redis[i]->port);
        snprintf(b, 24, "%s127.0.0.1:%d", i ? "," : "", f->way_b[i] ? proxy_port(f->way_b[i]) : f->redis[i]->port);
    }
}

/* Five instances; A reaches the last two, and B the first two, through proxies. */
static void start(struct stage *s, struct five *f, const char *shim) {
    *f = (struct five){0};
    for (int i = 0; i < 5; i++) {
        f->redis[i] = stage_server(s);
        f->redis[i]->shim = shim;
        server_start_redis(f->redis[i], NULL);
    }
    for (int i = 3; i < 5; i++) f->way_a[i] = stage_proxy(s, f->redis[i]->port);
    for (int i = 0; i < 2; i++) f->way_b[i] = stage_proxy(s, f->redis[i]->port);
    char direct[160] = "redlock://";
    for (int i = 0; i < 5; i++)
        snprintf(direct + strlen(direct), 24, "%s127.0.0.1:%d", i ? "," : "", f->redis[i]->port);
    stage_init(s, direct);
    urls(f);
}

static void play_clock(struct stage *s) {
    struct five f;
    start(s, &f, skew_library());
    stage_ttl(s, 10000);
    struct worker *a = stage_worker(s, "A", f.url_a), *b = stage_worker(s, "B", f.url_b);
    for (int i = 3; i < 5; i++) proxy_cut(f.way_a[i], true);
    stage_fault(s, "network of A", "A cannot reach instances 4 and 5");
    worker_must_take(s, a, 5000);
    skew_set(f.redis[2], 5000);
    stage_fault(s, "redis 3", "the clock of instance 3 is set 5 s ahead");
    if (worker_take(s, b, 7000)) worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
}

static void play_partition(struct stage *s) {
    struct five f;
    start(s, &f, NULL);
    stage_ttl(s, 2000);
    for (int i = 0; i < 2; i++) f.way_a[i] = stage_proxy(s, f.redis[i]->port);
    urls(&f);
    struct worker *a = stage_worker(s, "A", f.url_a), *b = stage_worker(s, "B", f.url_b);
    for (int i = 3; i < 5; i++) proxy_cut(f.way_a[i], true);
    stage_fault(s, "network of A", "A cannot reach instances 4 and 5");
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    for (int i = 0; i < 2; i++) proxy_freeze(f.way_a[i], true), proxy_cut(f.way_b[i], true);
    stage_fault(s, "redis 1, 2", "instances 1 and 2 are cut off from everybody");
    worker_try(s, b);
    stage_wait(s, 2500);
    for (int i = 0; i < 2; i++) proxy_freeze(f.way_a[i], false), proxy_cut(f.way_b[i], false);
    stage_fault_over(s, "redis 1, 2", "the partition heals; the keys on 1 and 2 have expired meanwhile");
    if (worker_take(s, b, 10000)) worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
}

static void play_restart(struct stage *s) {
    struct five f;
    start(s, &f, NULL);
    stage_ttl(s, 10000);
    struct worker *a = stage_worker(s, "A", f.url_a), *b = stage_worker(s, "B", f.url_b);
    for (int i = 3; i < 5; i++) proxy_cut(f.way_a[i], true);
    stage_fault(s, "network of A", "A cannot reach instances 4 and 5");
    worker_must_take(s, a, 5000);
    server_kill(f.redis[2], SIGKILL);
    stage_fault(s, "redis 3", "instance 3 dies");
    server_restart(f.redis[2]);
    stage_fault_over(s, "redis 3", "instance 3 is back, and empty");
    if (worker_take(s, b, 3000)) worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
}

#define REDLOCK .service = "redlock", .needs = "redis-server", .plain = &plain_redlock, .plain_breaks = true

const struct scenario scenario_redlock_clock = {
    .name = "redlock-clock",
    .title = "the clock of one of five instances jumps 5 s ahead (ttl 10 s)",
    .happens = "A holds the lock on instances 1, 2 and 3. The clock of 3 jumps; its key expires 5 s early. B gets 3, 4 "
               "and 5: two "
               "majorities.",
    .believed = "The drift term of the algorithm takes care of clocks.",
    .truth = "It takes care of slow drift, not of a step. pawl renews at a third of the ttl, which survives this one; "
             "a step beyond "
             "what is left of the lease it cannot survive, and a guard can.",
    REDLOCK,
    .play = play_clock};
const struct scenario scenario_redlock_partition = {
    .name = "redlock-partition",
    .title = "two of the holder's three instances are cut off, expire, and come back",
    .happens =
        "A holds 1, 2 and 3. 1 and 2 are cut off; their keys expire there. After the partition B gets a majority.",
    .believed = "A majority is a majority.",
    .truth = "It was one when the lock was taken. Whoever holds must keep proving it: pawl's holder loses the lock "
             "when fewer than "
             "three instances renew it, and knows before B can have it.",
    REDLOCK,
    .play = play_partition};
const struct scenario scenario_redlock_restart = {
    .name = "redlock-restart",
    .title = "one of five instances restarts empty",
    .happens = "A holds 1, 2 and 3. Instance 3 crashes and comes back without its data. B gets 3, 4 and 5.",
    .believed = "Redlock survives the loss of a minority of instances.",
    .truth =
        "It survives instances that are away, not instances that forget. pawl notices the loss, gives the instance "
        "its numbers back, so that tokens rise, and lets it vote only when the longest ttl has passed: whatever it "
        "forgot has ended then, or was renewed by the others.",
    REDLOCK,
    .play = play_restart};
