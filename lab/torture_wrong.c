#include "torture.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define BIT(kind) (1u << WRONG_##kind)
#define NETWORK (BIT(SILENCE) | BIT(CUT) | BIT(DELAY))
#define WORKERS (BIT(PAUSE) | BIT(KILL))

static const char *const names[WRONGS] = {"pause", "kill", "silence", "cut", "delay", "stop", "restart", "forget"};
const char *wrong_name(enum wrong_kind kind) { return names[kind]; }

/* splitmix64: the same everywhere, for ever. */
uint64_t torture_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* --- the services --- */

static void start_nothing(struct server servers[]) { (void)servers; }

/* Processes are killed, not machines: what was written is there, synced or not. */
static void start_redis(struct server servers[]) {
    server_start_redis(&servers[0], (const char *[]){"--appendonly", "yes", "--appendfsync", "no", NULL});
}

static void start_five(struct server servers[]) {
    for (int i = 0; i < 5; i++) start_redis(&servers[i]);
}

static void start_postgres(struct server servers[]) {
    server_start_postgres(&servers[0], "max_connections = 200\nfsync = off");
}
static void start_etcd(struct server servers[]) { server_start_etcd_cluster(servers, 3, NULL); }

static void forget_redis(struct server *server) { free(server_redis(server->port, "FLUSHDB")); }

static const struct victim file = {.name = "file", .ttl_ms = 2000, .wrongs = WORKERS, .start = start_nothing};
static const struct victim redis = {.name = "redis",
                                    .servers = 1,
                                    .fragile = 1,
                                    .ttl_ms = 1000,
                                    .wrongs = WORKERS | NETWORK | BIT(STOP) | BIT(RESTART) | BIT(FORGET),
                                    .admitted = BIT(FORGET),
                                    .start = start_redis,
                                    .forget = forget_redis,
                                    .plain = &plain_redis};
static const struct victim redlock = {.name = "redlock",
                                      .servers = 5,
                                      .fragile = 2, /* a majority without its memory waits for pawl init --floor */
                                      .ttl_ms = 1500,
                                      .wrongs = WORKERS | NETWORK | BIT(STOP) | BIT(RESTART) | BIT(FORGET),
                                      .start = start_five,
                                      .forget = forget_redis,
                                      .plain = &plain_redlock};
static const struct victim postgresql = {.name = "postgresql", /* a lock lives as long as its session */
                                         .servers = 1,
                                         .fragile = 1,
                                         .ttl_ms = 2000,
                                         .wrongs = WORKERS | NETWORK | BIT(STOP) | BIT(RESTART),
                                         .admitted = BIT(CUT) | BIT(SILENCE) | BIT(RESTART) | BIT(STOP),
                                         .start = start_postgres,
                                         .plain = &plain_postgresql};
static const struct victim etcd = {.name = "etcd",
                                   .servers = 3,
                                   .fragile = 3,
                                   .ttl_ms = 5000,
                                   .wrongs = WORKERS | NETWORK | BIT(STOP) | BIT(RESTART),
                                   .start = start_etcd,
                                   .plain = &plain_etcd};
const struct victim *const victims[] = {&file, &redis, &redlock, &postgresql, &etcd, NULL};

void victim_url(const struct victim *victim, const struct server servers[], struct proxy *const proxies[],
                const char *dir, char *ret, size_t size) {
    if (victim->servers == 0) {
        snprintf(ret, size, "file:%s/locks", dir);
        return;
    }
    bool database = strcmp(victim->name, "postgresql") == 0;
    snprintf(ret, size, "%s://%s", victim->name, database ? "postgres@" : "");
    for (int i = 0; i < victim->servers; i++) {
        size_t used = strlen(ret);
        snprintf(ret + used, size - used, "%s127.0.0.1:%d", i ? "," : "",
                 proxies ? proxy_port(proxies[i]) : servers[i].port);
    }
    if (database) strncat(ret, "/postgres", size - strlen(ret) - 1);
}

void victim_guard(const struct victim *victim, const struct server servers[], struct proxy *const proxies[],
                  const char *dir, char *ret, size_t size) {
    int last = victim->servers - 1;
    if (victim->servers == 0) snprintf(ret, size, "sqlite:%s/guard.db", dir);
    else if (victim->forget) /* database 1: what is forgotten is the locks' */
        snprintf(ret, size, "redis://127.0.0.1:%d/1", proxies ? proxy_port(proxies[last]) : servers[last].port);
    else victim_url(victim, servers, proxies, dir, ret, size);
}

/* --- the schedule --- */

static int64_t between(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(torture_random(state) % (uint64_t)(high - low + 1));
}

int torture_schedule(const struct victim *victim, uint64_t seed, int64_t ms, int64_t calm_ms, struct wrong **ret) {
    uint64_t state = seed;
    int n = 0;
    struct wrong *all = NULL;
    for (int64_t at = 500;;) {
        struct wrong w = {.at_ms = at += between(&state, 100, 1800)};
        do w.kind = (enum wrong_kind)(torture_random(&state) % WRONGS);
        while (!(victim->wrongs & 1u << w.kind));
        w.for_ms = between(&state, 20, w.kind == WRONG_DELAY ? 400 : victim->ttl_ms * 2);
        bool network = NETWORK & 1u << w.kind;
        int targets = w.kind <= WRONG_KILL      ? TORTURE_WORKERS
                      : w.kind >= WRONG_RESTART ? victim->fragile
                                                : victim->servers + network;
        w.target = (int)(torture_random(&state) % (uint64_t)targets);
        if (at + w.for_ms > ms - calm_ms) break;
        all = realloc(all, ((size_t)n + 1) * sizeof *all);
        if (!all) abort();
        all[n++] = w;
    }
    *ret = all;
    return n;
}
