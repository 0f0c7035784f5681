/* torture_rack.h: a torture while it lasts: the workers, what is done to them, and what they did. */
#ifndef LAB_TORTURE_RACK_H
#define LAB_TORTURE_RACK_H
#include "history.h"
#include "torture.h"
#include "worker.h"

struct torture {
    const struct victim *victim;
    double minutes;
    int64_t seed;
    bool schedule, json, own_guard;
    const char *save;
};

enum soul_state { IDLE, TAKING, HOLDING, WRITING, RELEASING };
struct soul { /* a worker and what it is about */
    struct worker worker;
    struct part part;
    char name[24], url[256], guard[256];
    uint64_t random;
    int incarnation;
    enum soul_state state;
    int64_t due_ns, asked_ns, last_grant_ns;
    struct history_event hold; /* what: HISTORY_HOLD while one is open, else HISTORY_WHATS */
    char lock[24];
    int64_t stopped_until_ns; /* 0: it runs */
};

struct rack {
    const struct torture *o;
    char dir[64], file[96];
    struct server servers[TORTURE_SERVERS];
    struct proxy *proxies[TORTURE_SERVERS];
    int64_t heal_ns[TORTURE_SERVERS][WRONGS]; /* 0: whole */
    struct soul souls[TORTURE_WORKERS];
    struct wrong *wrongs;
    int n_wrongs, next_wrong, done[WRONGS];
    int64_t began_ns;
    struct history *history;
    FILE *save;
    struct history_event *holds; /* once more, to tell which overlaps are admitted */
    int n_holds;
    uint64_t grants, busy, failed, lost, accepted, refused, unclear;
    char last_failure[300];
};

/* At the end nothing goes wrong for a while, and everybody must be served. */
int64_t torture_calm_ms(const struct torture *o);
int64_t torture_length_ms(const struct torture *o);
/* Workers that nobody served when nothing went wrong any more. */
uint64_t rack_stuck(const struct rack *r);

/* Judges what was recorded, and prints the verdict: LAB_OK or LAB_FOUND. */
int rack_judge(struct rack *r);
#endif
