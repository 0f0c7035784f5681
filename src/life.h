/* life.h: how long a lock is surely ours, and when to ask the service again. Pure: told the time and the answers, it
 * says what to do next; no I/O, no clock, so that the simulation runs the shipped code. */
#ifndef PAWL_LIFE_H
#define PAWL_LIFE_H
#include <stdbool.h>
#include <stdint.h>

#define LIFE_ENDLESS INT64_MAX

struct life {
    int64_t ttl_ns, margin_ns;
    _Atomic int64_t
        safe_until_ns;  /* LIFE_ENDLESS: the kernel or a session holds it; INT64_MIN: lost. Any thread reads it */
    int64_t next_ns;    /* when life_due has something to say; never beyond safe_until */
    int64_t backoff_ns; /* 0: sure; else in doubt, and the pause before the next try */
};

enum life_do { LIFE_WAIT, LIFE_RENEW, LIFE_LOSE };

/* margin_ms 0: max(ttl/100 + 2 ms, 20 ms). */
void life_init(struct life *life, int64_t ttl_ms, int64_t margin_ms);
/* A grant or a renewal was confirmed. sent_ns: read before the question left; left_ms: what the reply said is left, -1
 * for ever. True: this ended a doubt. */
bool life_confirm(struct life *life, int64_t sent_ns, int64_t left_ms);
/* A renewal ended without an answer: neither state nor deadline change. True: a doubt begins. */
bool life_doubt(struct life *life, int64_t now_ns);
/* The service says it is gone, or the caller gave it up. Final. */
void life_end(struct life *life);
enum life_do life_due(const struct life *life, int64_t now_ns);
#endif
