/* story.h: what happened in one variant of a scenario: who held the lock when, what was written, what was broken, in
 * what order; and the row of numbers that comes of it. Times are ns on the clock of clock.h. */
#ifndef LAB_STORY_H
#define LAB_STORY_H
#include "history.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum variant { VARIANT_PLAIN, VARIANT_PAWL, VARIANT_GUARDED, VARIANTS };
enum span_kind { SPAN_HOLD, SPAN_WAIT, SPAN_PAUSE, SPAN_FAULT, SPAN_KINDS };
enum point_kind { POINT_ACCEPTED, POINT_STALE, POINT_REFUSED, POINT_KILLED, POINT_LOST, POINT_KINDS };
enum verdict { VERDICT_HELD, VERDICT_BROKE, VERDICT_SKIPPED, VERDICT_FAILED, VERDICTS };

struct span { /* of a lane of the picture */
    enum span_kind kind;
    char who[24];                 /* a worker, or a part of the service */
    int64_t from, to, asked;      /* to: INT64_MAX while it lasts. asked: of a hold */
    int64_t token;                /* of a hold; 0: none */
    enum history_outcome outcome; /* of a hold or a wait */
    bool overlap;                 /* a hold that began during another one, or during which one began */
    char text[96];
};
struct point {
    enum point_kind kind;
    char who[24];
    int64_t at;
    int hold; /* of a write: index of its hold among the spans */
    char text[160];
};
struct step {
    int64_t at;
    char text[240];
};
struct story {
    char scenario[40];
    enum variant variant;
    struct span *spans;
    struct point *points;
    struct step *steps;
    int n_spans, n_points, n_steps;
    int64_t began, ended;

    /* The row. */
    uint64_t holds, overlaps, stale_accepted, stale_refused, token_regressions;
    double max_gap_ms; /* longest time in which somebody wanted the lock and nobody had it */
    enum verdict verdict;
    bool expected; /* as theory says */
    char why[240]; /* broke, skipped, failed: in what way */
};

struct span *story_span(struct story *t, enum span_kind kind, const char *who, int64_t from);
struct point *story_point(struct story *t, enum point_kind kind, const char *who, int64_t at);
void story_step(struct story *t, int64_t at, const char *text);
/* Fills the row from spans and points. t->why, if set before, is a break of the scenario's own kind. */
void story_judge(struct story *t);
void story_free(struct story *t);

json_t *story_row(const struct story *t);  /* what --json prints */
json_t *story_json(const struct story *t); /* all of it */
/* false: no such story; ret->why says what is wrong. */
bool story_read(json_t *from, struct story *ret);

const char *variant_name(enum variant variant);
const char *verdict_name(enum verdict verdict);
#endif
