#include "../stage.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct sentinels {
    struct server *redis[3], *sentinel[3];
};

static bool at_least(int port, const char *command, const char *key, int least) {
    char *text = server_redis(port, "%s", command), *at = text ? strstr(text, key) : NULL;
    bool ok = at && atoi(at + strlen(key)) >= least;
    free(text);
    return ok;
}

/* Every sentinel knows both replicas and the other two. */
static bool settled(void *data) {
    const struct sentinels *all = data;
    for (int i = 0; i < 3; i++)
        if (!at_least(all->sentinel[i]->port, "SENTINEL MASTER mymaster", "num-slaves\n", 2) ||
            !at_least(all->sentinel[i]->port, "SENTINEL MASTER mymaster", "num-other-sentinels\n", 2))
            return false;
    return at_least(all->redis[0]->port, "INFO replication", "connected_slaves:", 2);
}

static bool moved(void *data) {
    const struct sentinels *all = data;
    for (int i = 0; i < 3; i++) {
        char *text = server_redis(all->sentinel[i]->port, "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster");
        char *line = text ? strchr(text, '\n') : NULL;
        bool old = !line || atoi(line + 1) == all->redis[0]->port;
        free(text);
        if (old) return false;
    }
    return true;
}

static void start(struct stage *s, struct sentinels *all) {
    char follow[32];
    for (int i = 0; i < 3; i++) all->redis[i] = stage_server(s);
    server_start_redis(all->redis[0], NULL);
    snprintf(follow, sizeof follow, "127.0.0.1 %d", all->redis[0]->port);
    for (int i = 1; i < 3; i++) server_start_redis(all->redis[i], (const char *[]){"--replicaof", follow, NULL});
    for (int i = 0; i < 3; i++) server_start_sentinel(all->sentinel[i] = stage_server(s), all->redis[0]->port, "");
    stage_until(s, settled, all, 20000, "the sentinels to know each other");
}

static void lag(struct stage *s, struct sentinels *all, int first) {
    for (int i = first; i < 3; i++) server_kill(all->redis[i], SIGSTOP);
    free(server_redis(all->redis[0]->port, "CLIENT KILL TYPE replica")); /* what is on its way would still arrive */
    stage_fault(s, "replicas", first == 1 ? "the replicas lag behind" : "one replica lags behind");
}

static bool one_follows(void *data) {
    const struct sentinels *all = data;
    return at_least(all->redis[0]->port, "INFO replication", "connected_slaves:", 1);
}

static void play(struct stage *s, bool waits) {
    struct sentinels all;
    char url[128];
    start(s, &all);
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/mymaster", all.sentinel[0]->port,
             all.sentinel[1]->port, all.sentinel[2]->port);
    stage_ttl(s, 20000);
    struct worker *a = stage_worker(s, "A", url), *b = stage_worker(s, "B", url);
    lag(s, &all, 1);
    if (waits) {
        if (!stage_has_pawl(s) && worker_try(s, a)) stage_fail(s, "WAIT did not notice that no replica has it");
        server_kill(all.redis[1], SIGCONT);
        stage_until(s, one_follows, &all, 10000, "a replica to follow again");
        stage_say(s, "the first replica follows again; the second one does not");
    }
    worker_must_take(s, a, 5000);
    server_kill(all.redis[0], SIGKILL);
    if (waits) server_kill(all.redis[1], SIGKILL);
    stage_fault(s, "primary",
                waits ? "the primary and the replica that has A's grant die together"
                      : "the primary dies before it has told the replicas of A's grant");
    for (int i = 1 + waits; i < 3; i++) server_kill(all.redis[i], SIGCONT);
    stage_fault_over(s, "replicas", "what is left of the replicas answers again");
    stage_until(s, moved, &all, 20000, "a replica to be promoted");
    stage_fault_over(s, "primary", "Sentinel has promoted a replica, which knows of no lock");
    if (waits) { /* another replica joins, so that B can wait for it */
        server_restart(all.redis[1]);
        free(server_redis(all.redis[1]->port, "REPLICAOF 127.0.0.1 %d", all.redis[2]->port));
        stage_say(s, "the other one comes back, empty, and follows it");
    }
    worker_must_take(s, b, 15000);
    worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
}

static void play_plain(struct stage *s) { play(s, false); }
static void play_wait(struct stage *s) { play(s, true); }

const struct scenario scenario_redis_failover = {.name = "redis-failover",
                                                 .title = "Sentinel promotes a replica that never heard of the lock",
                                                 .happens =
                                                     "A sets the key on the primary and is told OK. The primary dies "
                                                     "before the key has reached a replica. Sentinel promotes "
                                                     "one. B finds no key, and gets the lock too.",
                                                 .believed = "With Sentinel the lock is highly available.",
                                                 .truth = "Replication is asynchronous: a failover can forget a grant. "
                                                          "No client can know. Tokens of the new primary are higher "
                                                          "all the same, so a guard refuses A.",
                                                 .service = "redis",
                                                 .needs = "redis-server redis-sentinel",
                                                 .plain = &plain_redis,
                                                 .plain_breaks = true,
                                                 .pawl_breaks = true,
                                                 .play = play_plain};
const struct scenario scenario_redis_failover_wait = {
    .name = "redis-failover-wait",
    .title = "a failover loses the lock though the client waited until a replica had it",
    .happens = "A counts the lock as held only when WAIT says that a replica has it: while none does, it is refused. "
               "Then the primary "
               "and that replica die together. Sentinel promotes the other one, which knows of no lock.",
    .believed = "With WAIT, or min-replicas-to-write, replication is synchronous.",
    .truth = "It makes the loss rarer, not impossible: nothing says that the replica with the key is the one that is "
             "promoted.",
    .service = "redis",
    .needs = "redis-server redis-sentinel",
    .plain = &plain_wait,
    .plain_breaks = true,
    .pawl_breaks = true,
    .play = play_wait};
