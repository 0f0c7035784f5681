/* history.h: what some workers did with some locks, on one clock, and whether that was right.
 *
 * A history is a bag of events in any order. history_check sorts and judges it: exclusive holds that overlap, tokens
 * that fall or repeat, acts after the end of the hold, stale writes that a resource accepted, starvation. It reports
 * only what the times prove: events whose order cannot be told from their times are never called wrong.
 *
 * Times are nanoseconds on one clock of the caller's choice (clock_now_ns, or a virtual one). A hold begins after the
 * acquire returned and ends before the release is called, so that what is reported as overlap did overlap. */
#ifndef LAB_HISTORY_H
#define LAB_HISTORY_H
#include "pawl.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define HISTORY_OPEN INT64_MAX  /* end of a hold whose end nobody saw */
#define HISTORY_NEVER INT64_MIN /* asked: not known */

enum history_what {
    HISTORY_HOLD,  /* start: granted; end: about to release, or known as lost; asked: when the acquire was called */
    HISTORY_WAIT,  /* a request that was not granted; start: asked; end: given up */
    HISTORY_ACT,   /* something done under the lock */
    HISTORY_WRITE, /* something done to a resource that checks tokens */
    HISTORY_WHATS
};
enum history_outcome {
    HISTORY_RELEASED,
    HISTORY_LOST,
    HISTORY_KILLED,
    HISTORY_BUSY,
    HISTORY_TIMEOUT,
    HISTORY_CANCELLED,
    HISTORY_FAILED,
    HISTORY_DONE,
    HISTORY_ACCEPTED,
    HISTORY_REFUSED,
    HISTORY_OUTCOMES
};
struct history_event {
    enum history_what what;
    enum history_outcome outcome;
    const char *who, *lock; /* copied; a write's lock names the resource */
    uint64_t token;         /* 0: none; then the rules about tokens pass it over */
    int64_t start, end, asked;
    bool shared;
};

/* What is looked for. The names are in history_fault_name. */
enum history_fault {
    HISTORY_OVERLAP,        /* an exclusive hold began during another exclusive hold */
    HISTORY_SHARED_OVERLAP, /* a shared and an exclusive hold overlap */
    HISTORY_TOKEN_FELL,     /* granted later, with a lower token */
    HISTORY_TOKEN_REPEATED, /* two grants of one lock with one token */
    HISTORY_LATE_ACT,       /* an act after the end of its hold, or after the begin of a later one that excludes it */
    HISTORY_STALE_WRITE,    /* accepted although a higher token had been accepted before */
    HISTORY_STARVED,        /* beyond a limit of struct history_limits */
    HISTORY_FAULTS
};
struct history_limits { /* 0: no limit */
    double max_ratio;   /* grants of the luckiest worker of a lock by those of the unluckiest */
    int64_t max_wait_ns;
    uint64_t min_grants; /* of each worker that asked, each lock */
};
#define HISTORY_EXAMPLES 3
struct history_verdict {
    uint64_t events, holds, waits, acts, writes, locks, workers;
    uint64_t lost;      /* holds that ended as lost */
    uint64_t handovers; /* exclusive holds that followed one of another worker */
    uint64_t faults[HISTORY_FAULTS];
    uint64_t all_faults;
    uint64_t grants_max, grants_min;                      /* of the lock with the greatest ratio of the two */
    int64_t wait_max_ns;                                  /* longest, granted or not */
    char examples[HISTORY_FAULTS][HISTORY_EXAMPLES][320]; /* the first ones found, for people */
};

struct history;
struct history *history_new(void); /* aborts when out of memory, as everything here: it is for tests */
void history_free(struct history *h);
/* Line numbers in examples count the calls, from 1. */
void history_add(struct history *h, const struct history_event *event);
void history_clear(struct history *h); /* as new, with its memory kept */
/* limits may be NULL. May be called again after more events. */
void history_check(struct history *h, const struct history_limits *limits, struct history_verdict *ret);

const char *history_fault_name(enum history_fault fault); /* "overlap", "token_fell", ... */
const char *history_what_name(enum history_what what);
const char *history_outcome_name(enum history_outcome outcome);

/* One event as a line of JSON with its newline, as history_read wants it; the length, or 0 if size is too small. To be
 * written by one write(2) to a file opened with O_APPEND, many processes may share a history. */
size_t history_line(const struct history_event *event, char *ret, size_t size);
/* Adds all lines of a file. PAWL_EINVALID names the line and what is wrong with it. (history_json.c; needs jansson.) */
int history_read(struct history *h, FILE *file, const char *name, pawl_error *error);
#endif
