/* torture.h: what goes wrong during a torture, and when: drawn from a seed before it begins. */
#ifndef LAB_TORTURE_H
#define LAB_TORTURE_H
#include "plain.h"
#include "proxy.h"
#include "server.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { TORTURE_WORKERS = 6, TORTURE_LOCKS = 3, TORTURE_SERVERS = 5 };

enum wrong_kind {
    WRONG_PAUSE,   /* of a worker */
    WRONG_KILL,    /* of a worker; another one takes its place */
    WRONG_SILENCE, /* between the workers of the second half and a server: nothing passes */
    WRONG_CUT,     /* their connections to a server are reset, and refused for a while */
    WRONG_DELAY,   /* what the server says to them is late */
    WRONG_STOP,    /* a server is stopped for a while */
    WRONG_RESTART, /* a server is killed, and started again with its data */
    WRONG_FORGET,  /* a server loses its data */
    WRONGS
};
struct wrong {
    enum wrong_kind kind;
    int64_t at_ms, for_ms;
    int target;                 /* a worker or a server; for the network also the number of servers: all of them */
    int64_t began_ns, ended_ns; /* as it was done; ended 0: it lasts */
};

/* One service with everything that may go wrong with it. */
struct victim {
    const char *name;
    int servers;
    int fragile; /* so many of them, the first ones, are restarted and lose their memory */
    int64_t ttl_ms;
    unsigned wrongs;   /* bits: what is done */
    unsigned admitted; /* bits: what may let two hold a lock, as docs/GUARANTEES.md says */
    void (*start)(struct server servers[]);
    void (*forget)(struct server *server);
    const struct plain *plain; /* what it is compared with, when that is planted */
};
extern const struct victim *const victims[]; /* ends with NULL */

/* The schedule of `ms`: times rise. The last `calm_ms` are free of it. Returns the number; free(*ret). */
int torture_schedule(const struct victim *victim, uint64_t seed, int64_t ms, int64_t calm_ms, struct wrong **ret);
const char *wrong_name(enum wrong_kind kind);
/* "etcd://127.0.0.1:1,127.0.0.1:2": through the proxies, where given (not NULL). */
void victim_url(const struct victim *victim, const struct server servers[], struct proxy *const proxies[],
                const char *dir, char *ret, size_t size);
/* A guard that the service itself keeps, out of reach of `forget`; of file: an SQLite file. */
void victim_guard(const struct victim *victim, const struct server servers[], struct proxy *const proxies[],
                  const char *dir, char *ret, size_t size);
uint64_t torture_random(uint64_t *state);
#endif
