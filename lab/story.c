#include "story.h"
#include "clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const variants[] = {"plain", "pawl", "guarded"};
static const char *const verdicts[] = {"held", "broke", "skipped", "failed"};

const char *variant_name(enum variant variant) { return variants[variant]; }
const char *verdict_name(enum verdict verdict) { return verdicts[verdict]; }

static void *grown(void *old, int n, size_t each) {
    if (n & (n - 1)) return old; /* room for the next power of two */
    void *at = realloc(old, (n ? 2 * (size_t)n : 1) * each);
    if (!at) abort();
    return at;
}

struct span *story_span(struct story *t, enum span_kind kind, const char *who, int64_t from) {
    t->spans = grown(t->spans, t->n_spans, sizeof *t->spans);
    struct span *span = &t->spans[t->n_spans++];
    *span = (struct span){.kind = kind, .from = from, .to = INT64_MAX, .asked = from};
    snprintf(span->who, sizeof span->who, "%s", who);
    return span;
}

struct point *story_point(struct story *t, enum point_kind kind, const char *who, int64_t at) {
    t->points = grown(t->points, t->n_points, sizeof *t->points);
    struct point *point = &t->points[t->n_points++];
    *point = (struct point){.kind = kind, .at = at, .hold = -1};
    snprintf(point->who, sizeof point->who, "%s", who);
    return point;
}

void story_step(struct story *t, int64_t at, const char *text) {
    t->steps = grown(t->steps, t->n_steps, sizeof *t->steps);
    int i = t->n_steps++;
    for (; i > 0 && t->steps[i - 1].at > at; i--) t->steps[i] = t->steps[i - 1]; /* told late, of a time before */
    struct step *step = &t->steps[i];
    step->at = at;
    snprintf(step->text, sizeof step->text, "%s", text);
}

void story_free(struct story *t) {
    free(t->spans);
    free(t->points);
    free(t->steps);
    *t = (struct story){0};
}

/* --- the row --- */

/* The order of a grant: its token, or, where the lock has none or lies about it, its place in time. */
static uint64_t order_of(const struct story *t, int hold) {
    uint64_t order = 1;
    if (hold < 0) return 0;
    if (t->variant != VARIANT_PLAIN) return (uint64_t)t->spans[hold].token;
    for (int i = 0; i < t->n_spans; i++)
        order += t->spans[i].kind == SPAN_HOLD && t->spans[i].from < t->spans[hold].from;
    return order;
}

static bool is_write(const struct point *p) {
    return p->kind == POINT_ACCEPTED || p->kind == POINT_STALE || p->kind == POINT_REFUSED;
}

static void add_events(const struct story *t, struct history *h) {
    for (int i = 0; i < t->n_spans; i++) {
        const struct span *s = &t->spans[i];
        if (s->kind != SPAN_HOLD && s->kind != SPAN_WAIT) continue;
        history_add(h, &(struct history_event){.what = s->kind == SPAN_HOLD ? HISTORY_HOLD : HISTORY_WAIT,
                                               .outcome = s->outcome,
                                               .who = s->who,
                                               .lock = "lock",
                                               .token = (uint64_t)s->token,
                                               .start = s->from,
                                               .end = s->to,
                                               .asked = s->asked});
    }
    for (int i = 0; i < t->n_points; i++) {
        const struct point *p = &t->points[i];
        if (!is_write(p)) continue;
        history_add(h, &(struct history_event){.what = HISTORY_WRITE,
                                               .outcome = p->kind == POINT_REFUSED ? HISTORY_REFUSED : HISTORY_ACCEPTED,
                                               .who = p->who,
                                               .lock = "resource",
                                               .token = order_of(t, p->hold),
                                               .start = p->at,
                                               .end = p->at,
                                               .asked = HISTORY_NEVER});
    }
}

static void mark_overlaps(struct story *t) {
    for (int i = 0; i < t->n_spans; i++)
        for (int k = 0; k < t->n_spans; k++) {
            struct span *a = &t->spans[i], *b = &t->spans[k];
            if (i == k || a->kind != SPAN_HOLD || b->kind != SPAN_HOLD) continue;
            if (a->from < b->to && b->from < a->to) a->overlap = b->overlap = true;
        }
}

static void mark_stale(struct story *t) {
    for (int i = 0; i < t->n_points; i++)
        for (int k = 0; k < t->n_points; k++) {
            struct point *late = &t->points[i], *before = &t->points[k];
            if (late->kind != POINT_ACCEPTED || (before->kind != POINT_ACCEPTED && before->kind != POINT_STALE))
                continue;
            if (before->at < late->at && order_of(t, before->hold) > order_of(t, late->hold)) late->kind = POINT_STALE;
        }
}

/* The longest stretch in which a request waited and no hold lasted. Few spans: each end of a hold is looked at. */
static double longest_gap(const struct story *t) {
    int64_t longest = 0;
    for (int i = 0; i < t->n_spans; i++) {
        const struct span *want = &t->spans[i];
        if (want->kind != SPAN_HOLD && want->kind != SPAN_WAIT) continue;
        int64_t until = want->kind == SPAN_HOLD ? want->from : want->to, since = want->asked;
        if (until == INT64_MAX) continue;
        for (int k = 0; k < t->n_spans; k++) {
            const struct span *held = &t->spans[k];
            if (held->kind == SPAN_HOLD && held != want && held->from < until && held->to > since) since = held->to;
        }
        if (until - since > longest) longest = until - since;
    }
    return (double)longest / 1e6;
}

static void judge_kind(struct story *t) {
    bool own = *t->why; /* the scenario's own break */
    char text[200] = "";
    if (t->variant == VARIANT_GUARDED ? t->stale_accepted || t->token_regressions
                                      : t->overlaps || t->stale_accepted || t->token_regressions) {
        snprintf(text, sizeof text, "%s%s%s%s", own ? "; " : "",
                 t->stale_accepted ? "a stale write was accepted"
                 : t->overlaps     ? "two held it at once"
                                   : "a token went back",
                 t->stale_accepted && t->overlaps ? ", two held it at once" : "",
                 t->token_regressions && t->stale_accepted ? ", a token went back" : "");
        size_t used = strlen(t->why);
        snprintf(t->why + used, sizeof t->why - used, "%s", text);
    }
    t->verdict = *t->why ? VERDICT_BROKE : VERDICT_HELD;
}

void story_judge(struct story *t) {
    struct history_verdict v;
    struct history *h = history_new();
    for (int i = 0; i < t->n_spans; i++)
        if (t->spans[i].to == INT64_MAX) t->spans[i].to = t->ended;
    mark_overlaps(t);
    mark_stale(t);
    add_events(t, h);
    history_check(h, NULL, &v);
    history_free(h);
    t->holds = v.holds;
    t->overlaps = v.faults[HISTORY_OVERLAP];
    t->stale_accepted = v.faults[HISTORY_STALE_WRITE];
    t->token_regressions = v.faults[HISTORY_TOKEN_FELL] + v.faults[HISTORY_TOKEN_REPEATED];
    t->stale_refused = 0;
    for (int i = 0; i < t->n_points; i++) t->stale_refused += t->points[i].kind == POINT_REFUSED;
    t->max_gap_ms = longest_gap(t);
    judge_kind(t);
}
