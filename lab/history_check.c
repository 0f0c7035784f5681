/* history_check.c: the judge. Each rule is one sweep over events sorted by lock and time, so a million events take a
 * second.
 *
 * One thing to know: "A came before B" is said only where the times prove it: A ended before B began (for two grants
 * that exclude each other), or A was already granted when B was asked for. Equal times prove nothing. */
#include "history_store.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct judge {
    const struct history *h;
    struct history_verdict *v;
    int64_t zero; /* examples count from the first event */
};

/* Names the first few of each kind. */
static void found(struct judge *j, enum history_fault fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void found(struct judge *j, enum history_fault fault, const char *format, ...) {
    uint64_t n = j->v->faults[fault]++;
    j->v->all_faults++;
    if (n >= HISTORY_EXAMPLES) return;
    va_list args;
    va_start(args, format);
    vsnprintf(j->v->examples[fault][n], sizeof j->v->examples[fault][n], format, args);
    va_end(args);
}

static const char *name_of(const struct judge *j, uint32_t number) { return j->h->names[number].text; }

/* Seconds since the first event, for people. */
struct moment {
    char text[32];
};
static struct moment at(const struct judge *j, int64_t ns) {
    struct moment m;
    if (ns == HISTORY_OPEN) snprintf(m.text, sizeof m.text, "for ever");
    else snprintf(m.text, sizeof m.text, "%.6f s", (double)(ns - j->zero) / 1e9);
    return m;
}

#define COMPARE(a, b)                                                                                                  \
    if ((a) != (b)) return (a) < (b) ? -1 : 1

static int by_start(const void *x, const void *y) {
    const struct record *a = x, *b = y;
    COMPARE(a->lock, b->lock);
    COMPARE(a->start, b->start);
    COMPARE(a->end, b->end);
    COMPARE(a->line, b->line);
    return 0;
}
static int by_end(const void *x, const void *y) {
    const struct record *a = *(const struct record *const *)x, *b = *(const struct record *const *)y;
    COMPARE(a->lock, b->lock);
    COMPARE(a->end, b->end);
    COMPARE(a->start, b->start);
    return 0;
}
static int by_asked(const void *x, const void *y) {
    const struct record *a = *(const struct record *const *)x, *b = *(const struct record *const *)y;
    COMPARE(a->lock, b->lock);
    COMPARE(a->asked, b->asked);
    return 0;
}
static int by_who(const void *x, const void *y) {
    const struct record *a = *(const struct record *const *)x, *b = *(const struct record *const *)y;
    COMPARE(a->lock, b->lock);
    COMPARE(a->who, b->who);
    COMPARE(a->start, b->start);
    return 0;
}
static int by_grant(const void *x, const void *y) { /* highest token first; one grant's events together */
    const struct record *a = *(const struct record *const *)x, *b = *(const struct record *const *)y;
    COMPARE(a->lock, b->lock);
    COMPARE(b->token, a->token);
    COMPARE(a->who, b->who);
    COMPARE(a->what, b->what); /* holds before acts */
    COMPARE(a->start, b->start);
    return 0;
}

typedef int compare_fn(const void *, const void *);
/* Pointers to all records of a (and b, unless NULL), sorted; to be freed. */
static const struct record **sorted(const struct records *a, const struct records *b, compare_fn *compare) {
    size_t more = b ? b->n : 0;
    const struct record **p = history_alloc(NULL, a->n + more, sizeof *p);
    for (size_t i = 0; i < a->n; i++) p[i] = &a->at[i];
    for (size_t i = 0; i < more; i++) p[a->n + i] = &b->at[i];
    qsort(p, a->n + more, sizeof *p, compare);
    return p;
}

/* Both by_start within one lock: a hold that begins while another one, which excludes it, has not ended. */
static void check_overlaps(struct judge *j, const struct records *holds) {
    const struct record *last = NULL, *last_exclusive = NULL; /* those that end last */
    for (size_t i = 0; i < holds->n; i++) {
        const struct record *b = &holds->at[i];
        if (i && b[-1].lock != b->lock) last = last_exclusive = NULL;
        const struct record *a = b->shared ? last_exclusive : last;
        if (a && a->end > b->start) {
            bool mixed = a->shared || b->shared;
            found(j, mixed ? HISTORY_SHARED_OVERLAP : HISTORY_OVERLAP,
                  "%s: %s held it%s from %s (line %" PRIu32 ") while %s held it%s until %s (line %" PRIu32 ")",
                  name_of(j, b->lock), name_of(j, b->who), b->shared ? ", shared," : "", at(j, b->start).text, b->line,
                  name_of(j, a->who), a->shared ? ", shared," : "", at(j, a->end).text, a->line);
        }
        if (!last || b->end > last->end) last = b;
        if (!b->shared && (!last_exclusive || b->end > last_exclusive->end)) last_exclusive = b;
    }
}

static void token_fell(struct judge *j, enum history_fault fault, const struct record *a, const struct record *b) {
    bool write = fault == HISTORY_STALE_WRITE;
    found(j, fault,
          "%s: %s of %s with token %" PRIu64 " at %s (line %" PRIu32 ") after %s with token %" PRIu64
          " at %s (line %" PRIu32 ")",
          name_of(j, b->lock), write ? "write" : "grant", name_of(j, b->who), b->token, at(j, b->start).text, b->line,
          name_of(j, a->who), a->token, at(j, write ? a->end : a->start).text, a->line);
}

/* b->start lies behind the end of a: an end at the very begin proves it only if a has a length. */
static bool ended_before(const struct record *a, const struct record *b) {
    return a->lock == b->lock && (a->end < b->start || (a->end == b->start && a->start < b->start));
}

/* Lost before its holder was told (it was stopped in between): granted at some time since it was asked for. */
static bool was_told_late(const struct record *b) {
    return b->what == HISTORY_HOLD && b->outcome == HISTORY_LOST && b->start == b->end && b->asked != HISTORY_NEVER;
}

/* For each record the highest token of all that ended before it. Shared holds are not ordered among themselves by this.
 * told: set for those that were reported. */
static void check_ended_before(struct judge *j, const struct records *r, enum history_fault fault, bool *told) {
    const struct record **ends = sorted(r, NULL, by_end), *high = NULL, *high_exclusive = NULL;
    size_t p = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct record *b = &r->at[i];
        if (i && b[-1].lock != b->lock) {
            high = high_exclusive = NULL;
            while (p < r->n && ends[p]->lock != b->lock) p++;
        }
        for (; p < r->n && ended_before(ends[p], b); p++) {
            if (!high || ends[p]->token > high->token) high = ends[p];
            if (!ends[p]->shared && (!high_exclusive || ends[p]->token > high_exclusive->token))
                high_exclusive = ends[p];
        }
        const struct record *a = b->shared ? high_exclusive : high;
        if (!a || !b->token || a->token <= b->token || was_told_late(b)) continue;
        token_fell(j, fault, a, b);
        if (told) told[i] = true;
    }
    free(ends);
}

/* The same for what had been granted already when b was asked for; this orders shared holds too. */
static void check_granted_before(struct judge *j, const struct records *holds, const bool *told) {
    const struct record **asks = sorted(holds, NULL, by_asked), *high = NULL;
    size_t p = 0;
    for (size_t i = 0; i < holds->n; i++) {
        const struct record *b = asks[i];
        if (i && asks[i - 1]->lock != b->lock) {
            high = NULL;
            while (p < holds->n && holds->at[p].lock != b->lock) p++;
        }
        if (b->asked == HISTORY_NEVER) continue;
        for (; p < holds->n && holds->at[p].lock == b->lock && holds->at[p].start < b->asked; p++)
            if (!high || holds->at[p].token > high->token) high = &holds->at[p];
        if (high && b->token && high->token > b->token && !told[b - holds->at])
            token_fell(j, HISTORY_TOKEN_FELL, high, b);
    }
    free(asks);
}

static void check_repeats(struct judge *j, const struct record *const *grants, size_t n) {
    const struct record *before = NULL; /* the hold before in order of tokens */
    for (size_t i = 0; i < n; i++) {
        const struct record *b = grants[i];
        if (b->what != HISTORY_HOLD) continue;
        if (before && before->lock == b->lock && before->token == b->token && b->token)
            found(j, HISTORY_TOKEN_REPEATED,
                  "%s: token %" PRIu64 " was granted to %s (line %" PRIu32 ") and to %s (line %" PRIu32 ")",
                  name_of(j, b->lock), b->token, name_of(j, before->who), before->line, name_of(j, b->who), b->line);
        before = b;
    }
}

static void late(struct judge *j, const struct record *act, const char *why, const struct record *than, int64_t when) {
    found(j, HISTORY_LATE_ACT,
          "%s: act of %s, token %" PRIu64 ", lasted until %s (line %" PRIu32 "), %s %s at %s (line %" PRIu32 ")",
          name_of(j, act->lock), name_of(j, act->who), act->token, at(j, act->end).text, act->line, why,
          name_of(j, than->who), at(j, when).text, than->line);
}

/* Acts with a token: against the hold of the same grant, and against everything of a higher token that excludes it.
 * grants: holds and acts by_grant. */
static void check_acts(struct judge *j, const struct record *const *grants, size_t n) {
    const struct record *first = NULL, *first_exclusive = NULL; /* earliest begin among higher tokens */
    for (size_t i = 0, end; i < n; i = end) {
        if (i && grants[i - 1]->lock != grants[i]->lock) first = first_exclusive = NULL;
        const struct record *hold = NULL;
        bool shared = false;
        for (end = i; end < n && grants[end]->lock == grants[i]->lock && grants[end]->token == grants[i]->token;
             end++) {
            const struct record *b = grants[end];
            if (hold && hold->who != b->who) hold = NULL;
            if (b->what == HISTORY_HOLD) {
                if (!hold || b->end > hold->end) hold = b;
                continue;
            }
            if (!b->token) continue;
            shared |= b->shared || (hold && hold->shared);
            const struct record *next = shared ? first_exclusive : first;
            if (hold && b->end > hold->end) late(j, b, "but its hold ended for", hold, hold->end);
            else if (next && b->end > next->start) late(j, b, "but a later grant began with", next, next->start);
        }
        if (!grants[i]->token) continue;
        for (size_t k = i; k < end; k++) {
            const struct record *b = grants[k];
            if (!first || b->start < first->start) first = b;
            if (b->shared || (shared && b->what == HISTORY_ACT)) continue;
            if (!first_exclusive || b->start < first_exclusive->start) first_exclusive = b;
        }
    }
}

/* Acts without a token: inside the last hold that the same worker began before. Without any such hold nothing
 * is known. */
static void check_plain_acts(struct judge *j, const struct records *holds, const struct records *acts) {
    const struct record **p = sorted(holds, acts, by_who), *hold = NULL;
    for (size_t i = 0; i < holds->n + acts->n; i++) {
        const struct record *b = p[i];
        if (i && (p[i - 1]->lock != b->lock || p[i - 1]->who != b->who)) hold = NULL;
        if (b->what == HISTORY_HOLD) hold = b;
        else if (!b->token && hold && b->end > hold->end) late(j, b, "but its hold ended for", hold, hold->end);
    }
    free(p);
}

/* Grants of each worker that asked, lock by lock. */
static void check_fairness(struct judge *j, const struct records *holds, const struct records *waits,
                           const struct history_limits *limits) {
    const struct record **p = sorted(holds, waits, by_who);
    double worst = -1;
    size_t n = holds->n + waits->n;
    for (size_t i = 0, end; i < n; i = end) {
        uint64_t most = 0, least = UINT64_MAX, workers = 0;
        const struct record *poor = p[i];
        for (end = i; end < n && p[end]->lock == p[i]->lock; workers++) {
            uint64_t grants = 0;
            const struct record *b = p[end];
            for (; end < n && p[end]->lock == b->lock && p[end]->who == b->who; end++)
                grants += p[end]->what == HISTORY_HOLD;
            if (grants > most) most = grants;
            if (grants < least) least = grants, poor = b;
        }
        j->v->locks++;
        double ratio = least ? (double)most / (double)least : (double)most + 1e9;
        if (ratio > worst) worst = ratio, j->v->grants_max = most, j->v->grants_min = least;
        if (least < limits->min_grants)
            found(j, HISTORY_STARVED, "%s: %s was granted it %" PRIu64 " times, wanted %" PRIu64,
                  name_of(j, poor->lock), name_of(j, poor->who), least, limits->min_grants);
        else if (workers > 1 && limits->max_ratio > 0 && ratio > limits->max_ratio)
            found(j, HISTORY_STARVED, "%s: %s was granted it %" PRIu64 " times, another worker %" PRIu64,
                  name_of(j, poor->lock), name_of(j, poor->who), least, most);
    }
    free(p);
}

static void check_waits(struct judge *j, const struct records *r, const struct history_limits *limits) {
    for (size_t i = 0; i < r->n; i++) {
        const struct record *b = &r->at[i];
        int64_t wait = 0;
        if (b->what == HISTORY_WAIT && b->end != HISTORY_OPEN) wait = b->end - b->start;
        if (b->what == HISTORY_HOLD && b->asked != HISTORY_NEVER) wait = b->start - b->asked;
        if (wait > j->v->wait_max_ns) j->v->wait_max_ns = wait;
        if (limits->max_wait_ns && wait > limits->max_wait_ns)
            found(j, HISTORY_STARVED, "%s: %s waited %.3f s (line %" PRIu32 ")", name_of(j, b->lock),
                  name_of(j, b->who), (double)wait / 1e9, b->line);
    }
}

static void count(struct judge *j) {
    const struct records *of = j->h->of;
    struct history_verdict *v = j->v;
    v->holds = of[HISTORY_HOLD].n;
    v->waits = of[HISTORY_WAIT].n;
    v->acts = of[HISTORY_ACT].n;
    v->writes = of[HISTORY_WRITE].n;
    v->events = v->holds + v->waits + v->acts + v->writes;
    bool *seen = history_alloc(NULL, j->h->n_names, sizeof *seen);
    memset(seen, 0, j->h->n_names * sizeof *seen);
    j->zero = INT64_MAX;
    for (int k = 0; k < HISTORY_WHATS; k++)
        for (size_t i = 0; i < of[k].n; i++) {
            const struct record *b = &of[k].at[i];
            if (!seen[b->who]) seen[b->who] = true, v->workers++;
            if (b->start < j->zero) j->zero = b->start;
        }
    free(seen);
    const struct record *before = NULL; /* holds are by_start */
    for (size_t i = 0; i < of[HISTORY_HOLD].n; i++) {
        const struct record *b = &of[HISTORY_HOLD].at[i];
        v->lost += b->outcome == HISTORY_LOST;
        if (b->shared) continue;
        v->handovers += before && before->lock == b->lock && before->who != b->who;
        before = b;
    }
}

void history_check(struct history *h, const struct history_limits *limits, struct history_verdict *ret) {
    static const struct history_limits none = {0};
    if (!limits) limits = &none;
    memset(ret, 0, sizeof *ret);
    struct judge j = {.h = h, .v = ret};
    struct records *holds = &h->of[HISTORY_HOLD], *writes = &h->of[HISTORY_WRITE];
    if (holds->n) qsort(holds->at, holds->n, sizeof *holds->at, by_start);
    count(&j);

    check_overlaps(&j, holds);
    bool *told = history_alloc(NULL, holds->n, sizeof *told);
    memset(told, 0, holds->n * sizeof *told);
    check_ended_before(&j, holds, HISTORY_TOKEN_FELL, told);
    check_granted_before(&j, holds, told);
    free(told);

    const struct record **grants = sorted(holds, &h->of[HISTORY_ACT], by_grant);
    check_repeats(&j, grants, holds->n + h->of[HISTORY_ACT].n);
    check_acts(&j, grants, holds->n + h->of[HISTORY_ACT].n);
    free(grants);
    check_plain_acts(&j, holds, &h->of[HISTORY_ACT]);

    struct records accepted = {.at = history_alloc(NULL, writes->n, sizeof *accepted.at)};
    for (size_t i = 0; i < writes->n; i++)
        if (writes->at[i].outcome == HISTORY_ACCEPTED) {
            accepted.at[accepted.n] = writes->at[i];
            accepted.at[accepted.n++].shared = false;
        }
    if (accepted.n) qsort(accepted.at, accepted.n, sizeof *accepted.at, by_start);
    check_ended_before(&j, &accepted, HISTORY_STALE_WRITE, NULL);
    free(accepted.at);

    check_waits(&j, holds, limits);
    check_waits(&j, &h->of[HISTORY_WAIT], limits);
    check_fairness(&j, holds, &h->of[HISTORY_WAIT], limits);
}
