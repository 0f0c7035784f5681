/* story_json.c: a story as JSON and back: how a stage tells the runner, and what `run --save` writes. */
#include "story.h"
#include <stdlib.h>
#include <string.h>

static int index_of(const char *name, const char *(*name_of)(int), int n) {
    for (int i = 0; name && i < n; i++)
        if (strcmp(name_of(i), name) == 0) return i;
    return -1;
}
static const char *span_name(int i) { return (const char *const[]){"hold", "wait", "pause", "fault"}[i]; }
static const char *point_name(int i) {
    return (const char *const[]){"accepted", "stale", "refused", "killed", "lost"}[i];
}
static const char *variant_at(int i) { return variant_name((enum variant)i); }
static const char *verdict_at(int i) { return verdict_name((enum verdict)i); }
static const char *outcome_at(int i) { return history_outcome_name((enum history_outcome)i); }

json_t *story_row(const struct story *t) {
    json_t *o = json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:f,s:s,s:b}", "scenario", t->scenario, "variant",
                          variant_name(t->variant), "holds", (json_int_t)t->holds, "overlaps", (json_int_t)t->overlaps,
                          "stale_accepted", (json_int_t)t->stale_accepted, "stale_refused",
                          (json_int_t)t->stale_refused, "token_regressions", (json_int_t)t->token_regressions,
                          "max_gap_ms", (double)(int64_t)(t->max_gap_ms * 10) / 10, "verdict", verdict_name(t->verdict),
                          "expected", t->expected);
    if (*t->why) json_object_set_new(o, "why", json_string(t->why));
    return o;
}

json_t *story_json(const struct story *t) {
    json_t *o = story_row(t), *spans = json_array(), *points = json_array(), *steps = json_array();
    for (int i = 0; i < t->n_spans; i++) {
        const struct span *s = &t->spans[i];
        json_array_append_new(spans,
                              json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:s,s:b,s:s}", "kind", span_name((int)s->kind), "who",
                                        s->who, "from", (json_int_t)s->from, "to", (json_int_t)s->to, "asked",
                                        (json_int_t)s->asked, "token", (json_int_t)s->token, "outcome",
                                        history_outcome_name(s->outcome), "overlap", s->overlap, "text", s->text));
    }
    for (int i = 0; i < t->n_points; i++) {
        const struct point *p = &t->points[i];
        json_array_append_new(points, json_pack("{s:s,s:s,s:I,s:i,s:s}", "kind", point_name((int)p->kind), "who",
                                                p->who, "at", (json_int_t)p->at, "hold", p->hold, "text", p->text));
    }
    for (int i = 0; i < t->n_steps; i++)
        json_array_append_new(steps,
                              json_pack("{s:I,s:s}", "at", (json_int_t)t->steps[i].at, "text", t->steps[i].text));
    json_object_set_new(o, "began", json_integer(t->began));
    json_object_set_new(o, "ended", json_integer(t->ended));
    json_object_set_new(o, "spans", spans);
    json_object_set_new(o, "points", points);
    json_object_set_new(o, "steps", steps);
    return o;
}

static bool read_span(json_t *from, struct story *t) {
    const char *kind, *who, *outcome, *text;
    json_int_t start, end, asked, token;
    int overlap;
    if (json_unpack(from, "{s:s,s:s,s:I,s:I,s:I,s:I,s:s,s:b,s:s}", "kind", &kind, "who", &who, "from", &start, "to",
                    &end, "asked", &asked, "token", &token, "outcome", &outcome, "overlap", &overlap, "text", &text))
        return false;
    int k = index_of(kind, span_name, SPAN_KINDS), o = index_of(outcome, outcome_at, HISTORY_OUTCOMES);
    if (k < 0 || o < 0) return false;
    struct span *s = story_span(t, (enum span_kind)k, who, start);
    s->to = end;
    s->asked = asked;
    s->token = token;
    s->outcome = (enum history_outcome)o;
    s->overlap = overlap;
    snprintf(s->text, sizeof s->text, "%s", text);
    return true;
}

static bool read_point(json_t *from, struct story *t) {
    const char *kind, *who, *text;
    json_int_t at;
    int hold;
    if (json_unpack(from, "{s:s,s:s,s:I,s:i,s:s}", "kind", &kind, "who", &who, "at", &at, "hold", &hold, "text", &text))
        return false;
    int k = index_of(kind, point_name, POINT_KINDS);
    if (k < 0) return false;
    struct point *p = story_point(t, (enum point_kind)k, who, at);
    p->hold = hold;
    snprintf(p->text, sizeof p->text, "%s", text);
    return true;
}

/* It becomes a file's name and part of a page. */
static bool is_name(const char *text) {
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return n > 0 && !text[n] && n < sizeof((struct story *)0)->scenario;
}

static bool read_row(json_t *from, struct story *t) {
    const char *scenario, *variant, *verdict, *why = "";
    json_int_t holds, overlaps, accepted, refused, fell, began, ended;
    double gap;
    int expected;
    if (json_unpack(from, "{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:F,s:s,s:b,s?s,s:I,s:I}", "scenario", &scenario, "variant",
                    &variant, "holds", &holds, "overlaps", &overlaps, "stale_accepted", &accepted, "stale_refused",
                    &refused, "token_regressions", &fell, "max_gap_ms", &gap, "verdict", &verdict, "expected",
                    &expected, "why", &why, "began", &began, "ended", &ended))
        return false;
    int v = index_of(variant, variant_at, VARIANTS), d = index_of(verdict, verdict_at, VERDICTS);
    if (v < 0 || d < 0 || !is_name(scenario)) return false;
    *t = (struct story){.variant = (enum variant)v,
                        .verdict = (enum verdict)d,
                        .holds = (uint64_t)holds,
                        .overlaps = (uint64_t)overlaps,
                        .stale_accepted = (uint64_t)accepted,
                        .stale_refused = (uint64_t)refused,
                        .token_regressions = (uint64_t)fell,
                        .max_gap_ms = gap,
                        .expected = expected,
                        .began = began,
                        .ended = ended};
    snprintf(t->scenario, sizeof t->scenario, "%s", scenario);
    snprintf(t->why, sizeof t->why, "%s", why);
    return true;
}

bool story_read(json_t *from, struct story *ret) {
    struct story t;
    size_t i;
    json_t *one;
    if (!json_is_object(from) || !read_row(from, &t)) return false;
    bool good = true;
    json_array_foreach(json_object_get(from, "spans"), i, one) good = good && read_span(one, &t);
    json_array_foreach(json_object_get(from, "points"), i, one) good = good && read_point(one, &t);
    json_array_foreach(json_object_get(from, "steps"), i, one) {
        json_int_t at;
        const char *text;
        good = good && !json_unpack(one, "{s:I,s:s}", "at", &at, "text", &text);
        if (good) story_step(&t, at, text);
    }
    if (good) *ret = t;
    else story_free(&t);
    return good;
}
