/* dial.h: from a place to a connection that can be asked for locks. */
#ifndef REDIS_DIAL_H
#define REDIS_DIAL_H
#include "greet.h"
#include "redis.h"

/* A sentinel that is asked again and again whether the primary is still where it was. */
struct watch {
    struct wire wire; /* to the sentinel that knew best; fd -1: closed */
    size_t sentinel;  /* which of the URL */
    char address[256];
    int port;
    int64_t asked_ns;
};

/* --- dial.c --- */

/* Host i of a place, or its socket; nothing is said yet. */
enum bk_says dial_place(const struct place *p, size_t i, struct bk_until until, struct wire *ret, pawl_error *error);
enum bk_says dial_host(const struct place *p, const struct url_host *h, struct bk_until until, struct wire *ret,
                       pawl_error *error);
/* An even share of the time, of which n are wanted. */
struct bk_until dial_share(struct bk_until until, size_t n);
/* The primary: authenticated, database selected, role and version checked. watch: only needed with sentinels; NULL
 * else. channel: as of greet_server. */
enum bk_says dial(struct bk *bk, const char *channel, struct bk_until until, struct wire *ret, char ret_run_id[41],
                  struct watch *watch, pawl_error *error);

/* --- sentinel.c --- */

/* Asks several sentinels and believes the one with the highest epoch, whose connection is kept in *ret. */
enum bk_says sentinel_find(const struct place *p, struct bk_until until, struct watch *ret, pawl_error *error);
/* YES: the primary is where it was, as far as a sentinel answers (asked twice a second at most, and not for long).
 * FAULT: it moved. */
enum bk_says watch_ask(const struct place *p, struct watch *watch, struct bk_until until, pawl_error *error);
void watch_end(struct watch *watch, bool quiet);
#endif
