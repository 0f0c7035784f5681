/* torture_verdict.c: what a torture is judged by: the promises of its backend in docs/GUARANTEES.md. */
#include "clock.h"
#include "lab.h"
#include "torture_rack.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int64_t torture_calm_ms(const struct torture *o) { return 8000 + 2 * o->victim->ttl_ms; }
int64_t torture_length_ms(const struct torture *o) { return (int64_t)(o->minutes * 60e3); }

struct sentence {
    struct history_verdict v;
    uint64_t overlaps, admitted, stuck;
};

static int by_lock(const void *a, const void *b) {
    const struct history_event *x = a, *y = b;
    int r = strcmp(x->lock, y->lock);
    return r ? r : (x->start > y->start) - (x->start < y->start);
}

/* Something went wrong between the two grants, or during the first, that the promise table admits. */
static bool is_admitted(const struct rack *r, const struct history_event *first, const struct history_event *second) {
    for (int i = 0; i < r->next_wrong; i++) {
        const struct wrong *w = &r->wrongs[i];
        bool is_over = w->ended_ns && w->ended_ns + 500 * NS_PER_MS < first->start;
        if (r->o->victim->admitted & 1u << w->kind && !is_over && w->began_ns < second->start) return true;
    }
    return false;
}

static void count_overlaps(struct rack *r, struct sentence *s) {
    if (r->n_holds) qsort(r->holds, (size_t)r->n_holds, sizeof *r->holds, by_lock);
    const struct history_event *last = NULL; /* the one that lasts longest */
    for (int i = 0; i < r->n_holds; i++) {
        const struct history_event *h = &r->holds[i];
        bool same = last && strcmp(last->lock, h->lock) == 0;
        if (same && h->start < last->end) {
            if (is_admitted(r, last, h)) s->admitted++;
            else {
                s->overlaps++;
                fprintf(stderr,
                        "  overlap: %s, token %" PRIu64 " from %.3f s to %.3f s, token %" PRIu64 " from %.3f s\n",
                        h->lock, last->token, (double)(last->start - r->began_ns) / 1e9,
                        (double)(last->end - r->began_ns) / 1e9, h->token, (double)(h->start - r->began_ns) / 1e9);
            }
        }
        if (!same || h->end > last->end) last = h;
    }
}

static bool is_stuck(const struct rack *r, const struct soul *s) {
    return s->last_grant_ns < r->began_ns + (torture_length_ms(r->o) - 8000) * NS_PER_MS;
}

uint64_t rack_stuck(const struct rack *r) {
    uint64_t n = 0;
    for (int i = 0; i < TORTURE_WORKERS; i++) n += is_stuck(r, &r->souls[i]);
    return n;
}

static struct sentence judge(struct rack *r) {
    struct sentence s = {.stuck = rack_stuck(r)};
    history_check(r->history, NULL, &s.v);
    count_overlaps(r, &s);
    for (int i = 0; i < TORTURE_WORKERS; i++)
        if (is_stuck(r, &r->souls[i]))
            fprintf(stderr, "  stuck: %s, last served at %.3f s\n", r->souls[i].name,
                    (double)(r->souls[i].last_grant_ns - r->began_ns) / 1e9);
    return s;
}

static void tell_json(const struct rack *r, const struct sentence *s, uint64_t fell, uint64_t stale, bool violated) {
    json_t *faults = json_object();
    for (int k = 0; k < WRONGS; k++)
        if (r->done[k]) json_object_set_new(faults, wrong_name((enum wrong_kind)k), json_integer(r->done[k]));
    json_t *o =
        json_pack("{s:s,s:f,s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:i,s:o,s:s,s:s}", "backend",
                  r->o->victim->name, "minutes", r->o->minutes, "seed", (json_int_t)r->o->seed, "guard",
                  r->o->own_guard ? "service" : "dir", "grants", (json_int_t)r->grants, "lost", (json_int_t)r->lost,
                  "overlaps", (json_int_t)s->overlaps, "overlaps_admitted", (json_int_t)s->admitted, "accepted",
                  (json_int_t)r->accepted, "stale_accepted", (json_int_t)stale, "stale_refused", (json_int_t)r->refused,
                  "unclear", (json_int_t)r->unclear, "token_regressions", (json_int_t)fell, "stuck",
                  (json_int_t)s->stuck, "unreachable", (json_int_t)r->failed, "wrongs", r->next_wrong, "faults", faults,
                  "last_failure", r->last_failure, "verdict", violated ? "violated" : "ok");
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(o);
}

static void tell_text(const struct rack *r, const struct sentence *s, uint64_t fell, uint64_t stale, bool violated) {
    printf("torture %s, %.1f minutes, seed %" PRId64 ": %" PRIu64 " grants (%" PRIu64 " lost), %" PRIu64
           " busy, %" PRIu64 " unreachable, %" PRIu64 " writes accepted, %" PRIu64 " stale ones refused, %" PRIu64
           " unclear (guard: %s)\n  went wrong:",
           r->o->victim->name, r->o->minutes, r->o->seed, r->grants, r->lost, r->busy, r->failed, r->accepted,
           r->refused, r->unclear, r->o->own_guard ? "service" : "dir");
    for (int k = 0; k < WRONGS; k++)
        if (r->done[k]) printf(" %s %d", wrong_name((enum wrong_kind)k), r->done[k]);
    printf("\n  overlaps %" PRIu64 " (and %" PRIu64
           " that the promise table admits), tokens that fell or repeated %" PRIu64 ", stale writes accepted %" PRIu64
           ", stuck at the end %" PRIu64 "\n  %s\n",
           s->overlaps, s->admitted, fell, stale, s->stuck, violated ? "VIOLATED" : "ok");
    if (*r->last_failure) printf("  last failure: %s\n", r->last_failure);
}

static int tell(const struct rack *r, const struct sentence *s) {
    uint64_t fell = s->v.faults[HISTORY_TOKEN_FELL] + s->v.faults[HISTORY_TOKEN_REPEATED],
             stale = s->v.faults[HISTORY_STALE_WRITE];
    bool violated = s->overlaps + fell + stale + s->stuck > 0;
    (r->o->json ? tell_json : tell_text)(r, s, fell, stale, violated);
    FILE *to = r->o->json ? stderr : stdout;
    for (int f = 0; f < HISTORY_FAULTS; f++)
        for (uint64_t i = 0; f != HISTORY_OVERLAP && i < s->v.faults[f] && i < HISTORY_EXAMPLES; i++)
            fprintf(to, "  %s\n", s->v.examples[f][i]);
    return violated ? LAB_FOUND : LAB_OK;
}

int rack_judge(struct rack *r) {
    struct sentence s = judge(r);
    return tell(r, &s);
}
