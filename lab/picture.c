#include "picture.h"
#include <stdlib.h>
#include <string.h>

enum { LANES = 24, LABEL = 17, BAR = 18, STEP = 42, AXIS = 24 };

const char picture_style[] =
    ".t{display:block;font:12px/1 system-ui,sans-serif;overflow:visible}"
    ".t text{fill:var(--ink)} .t .mute{fill:var(--mute)} .t .who{font-weight:600}"
    ".rule{stroke:var(--line);stroke-width:1} .bed{fill:var(--bed)}"
    ".c0{fill:var(--c0)} .c1{fill:var(--c1)} .c2{fill:var(--c2)} .c3{fill:var(--c3)} .cx{fill:var(--mute)}"
    ".wait{stroke:var(--mute);stroke-width:2;stroke-dasharray:1 4;stroke-linecap:round}"
    ".pause{fill:url(#hatch);stroke:var(--ink);stroke-width:1;stroke-opacity:.55}"
    ".fault{fill:var(--fault)} .both{fill:var(--bad);fill-opacity:.22;stroke:var(--bad);stroke-width:2}"
    ".bad{fill:var(--bad)} .badline{stroke:var(--bad);stroke-width:2.5;fill:none} "
    ".stroke{stroke:var(--ink);stroke-width:2.5;fill:none}"
    ".ring{fill:var(--page);stroke:var(--bad);stroke-width:2.5} .dot{fill:var(--page);stroke:var(--ink);stroke-width:2}"
    ".t .in{fill:#fff;font-weight:600}";

const char picture_defs[] =
    "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>"
    "<pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
    "<rect width=\"7\" height=\"7\" fill=\"var(--page)\" fill-opacity=\".72\"/><rect width=\"2\" height=\"7\" "
    "fill=\"var(--ink)\" fill-opacity=\".5\"/></pattern></defs></svg>\n";

struct frame {
    FILE *to;
    const struct story *story;
    int64_t scale_ns;
    const char *lane[LANES];
    bool is_fault[LANES];
    int n_lanes;
};

void picture_text(FILE *to, const char *text) {
    for (; *text; text++) switch (*text) {
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '&': fputs("&amp;", to); break;
        case '"': fputs("&quot;", to); break;
        default: fputc(*text, to);
        }
}

static int lane_of(struct frame *f, const char *who, bool is_fault) {
    for (int i = 0; i < f->n_lanes; i++)
        if (strcmp(f->lane[i], who) == 0) return i;
    if (f->n_lanes == LANES) return LANES - 1;
    f->lane[f->n_lanes] = who;
    f->is_fault[f->n_lanes] = is_fault;
    return f->n_lanes++;
}

/* What breaks first, then the workers. */
static void find_lanes(struct frame *f) {
    const struct story *t = f->story;
    for (int i = 0; i < t->n_spans; i++)
        if (t->spans[i].kind == SPAN_FAULT) lane_of(f, t->spans[i].who, true);
    for (int i = 0; i < t->n_spans; i++)
        if (t->spans[i].kind != SPAN_FAULT) lane_of(f, t->spans[i].who, false);
}

static bool has_writes(const struct story *t) {
    for (int i = 0; i < t->n_points; i++)
        if (t->points[i].kind <= POINT_REFUSED) return true;
    return false;
}

int picture_height(const struct story *t) {
    struct frame f = {.story = t};
    find_lanes(&f);
    return (f.n_lanes + has_writes(t)) * STEP + AXIS;
}

int64_t picture_scale(const struct story *stories, int n) {
    int64_t scale = 1;
    for (int i = 0; i < n; i++)
        if (stories[i].n_steps && stories[i].ended - stories[i].began > scale)
            scale = stories[i].ended - stories[i].began;
    return scale;
}

static double x(const struct frame *f, int64_t at) {
    double part = (double)(at - f->story->began) / (double)f->scale_ns;
    return .8 + 97 * (part < 0 ? 0 : part > 1 ? 1 : part);
}

static int y(int lane) { return lane * STEP + LABEL; }

/* The workers have the colours in the order of their lanes. */
static const char *colour(struct frame *f, const char *who) {
    static const char *const classes[] = {"c0", "c1", "c2", "c3"};
    int n = 0, lane = lane_of(f, who, false);
    for (int i = 0; i < lane; i++) n += !f->is_fault[i];
    return n < 4 ? classes[n] : "cx";
}

static void title(struct frame *f, const char *text) {
    fputs("<title>", f->to);
    picture_text(f->to, text);
    fputs("</title>", f->to);
}

static void box(struct frame *f, const char *class, int64_t from, int64_t to, int top, int height, const char *text) {
    double left = x(f, from), width = x(f, to) - left;
    fprintf(f->to, "<rect class=\"%s\" x=\"%.2f%%\" y=\"%d\" width=\"%.2f%%\" height=\"%d\" rx=\"3\">", class, left,
            top, width < .25 ? .25 : width, height);
    if (text && *text) title(f, text);
    fputs("</rect>\n", f->to);
}

/* A sign of its own size at a time: what is in it is drawn about 0,0. */
static void sign(struct frame *f, int64_t at, int middle, const char *drawing, const char *text) {
    fprintf(f->to, "<svg class=\"t\" x=\"%.2f%%\" y=\"%d\">", x(f, at), middle);
    if (*text) title(f, text);
    fprintf(f->to, "%s</svg>\n", drawing);
}

static void draw_lanes(struct frame *f) {
    for (int i = 0; i < f->n_lanes; i++) {
        fprintf(f->to, "<rect class=\"bed\" x=\"0\" y=\"%d\" width=\"100%%\" height=\"%d\" rx=\"3\"/>", y(i), BAR);
        fprintf(f->to, "<text class=\"%s\" x=\"0\" y=\"%d\">", f->is_fault[i] ? "mute" : "who", y(i) - 6);
        picture_text(f->to, f->lane[i]);
        fputs("</text>\n", f->to);
    }
}

static void draw_spans(struct frame *f) {
    const struct story *t = f->story;
    char text[160];
    double last = -1;
    for (int i = 0; i < t->n_spans; i++) {
        const struct span *s = &t->spans[i];
        int top = y(lane_of(f, s->who, false));
        double from = x(f, s->kind == SPAN_HOLD ? s->asked : s->from),
               to = x(f, s->kind == SPAN_HOLD ? s->from : s->to);
        if ((s->kind == SPAN_HOLD || s->kind == SPAN_WAIT) && to - from > .4)
            fprintf(f->to, "<line class=\"wait\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"%d\" y2=\"%d\"/>\n", from, to,
                    top + BAR / 2, top + BAR / 2);
        if (s->kind == SPAN_FAULT) box(f, "fault", s->from, s->to, top + 3, BAR - 6, s->text);
        if (s->kind != SPAN_HOLD) continue;
        if (x(f, s->to) - x(f, s->from) < .25) { /* one of many: a bare stroke, and none over another */
            if (x(f, s->from) - last > .15)
                box(f, colour(f, s->who), s->from, s->to, top, BAR, NULL), last = x(f, s->from);
            continue;
        }
        snprintf(text, sizeof text, "%s holds the lock%s", s->who,
                 s->outcome == HISTORY_LOST ? " until it knows that it has lost it" : "");
        box(f, colour(f, s->who), s->from, s->to, top, BAR, text);
    }
    for (int i = 0; i < t->n_spans; i++)
        if (t->spans[i].kind == SPAN_PAUSE)
            box(f, "pause", t->spans[i].from, t->spans[i].to, y(lane_of(f, t->spans[i].who, false)) - 2, BAR + 4,
                "stopped");
}

/* Where two hold at once, both are framed in red. */
static void draw_overlaps(struct frame *f) {
    const struct story *t = f->story;
    for (int i = 0; i < t->n_spans; i++)
        for (int k = 0; k < t->n_spans; k++) {
            const struct span *a = &t->spans[i], *b = &t->spans[k];
            if (i == k || a->kind != SPAN_HOLD || b->kind != SPAN_HOLD || a->from >= b->to || b->from >= a->to)
                continue;
            box(f, "both", a->from > b->from ? a->from : b->from, a->to < b->to ? a->to : b->to,
                y(lane_of(f, a->who, false)) - 3, BAR + 6, "two hold the lock at once");
        }
}

static void draw_points(struct frame *f) {
    static const char *const drawings[POINT_KINDS] = {
        [POINT_ACCEPTED] = "<circle class=\"dot\" r=\"5\"/>",
        [POINT_STALE] = "<circle class=\"bad\" r=\"7\"/><text class=\"in\" y=\"4\" text-anchor=\"middle\">!</text>",
        [POINT_REFUSED] = "<circle class=\"ring\" r=\"7\"/><path class=\"badline\" d=\"M-4.5 4.5 4.5-4.5\"/>",
        [POINT_KILLED] = "<path class=\"stroke\" d=\"M-6-6 6 6M-6 6 6-6\"/>",
        [POINT_LOST] = "<path class=\"stroke\" d=\"M0-12V12M-4-12H4M-4 12H4\"/>"};
    static const char *const words[POINT_KINDS] = {"writes", "a stale write, accepted", "refused", "killed",
                                                   "knows that the lock is lost"};
    char text[240];
    for (int i = 0; i < f->story->n_points; i++) {
        const struct point *p = &f->story->points[i];
        snprintf(text, sizeof text, "%s: %s%s%s", p->who, words[p->kind], *p->text ? ": " : "", p->text);
        sign(f, p->at, y(lane_of(f, p->who, false)) + BAR / 2, drawings[p->kind], text);
    }
}

/* What is in the resource: the colour of who wrote last; red where a stale write is what everybody reads. */
static void draw_resource(struct frame *f) {
    const struct story *t = f->story;
    int top = y(f->n_lanes);
    fprintf(f->to, "<text class=\"mute\" x=\"0\" y=\"%d\">resource</text>", top - 6);
    fprintf(f->to, "<rect class=\"bed\" x=\"0\" y=\"%d\" width=\"100%%\" height=\"%d\" rx=\"3\"/>\n", top, BAR);
    for (int i = 0; i < t->n_points; i++) {
        const struct point *p = &t->points[i];
        int64_t until = t->ended;
        if (p->kind != POINT_ACCEPTED && p->kind != POINT_STALE) continue;
        for (int k = 0; k < t->n_points; k++)
            if (t->points[k].kind <= POINT_STALE && t->points[k].at > p->at && t->points[k].at < until)
                until = t->points[k].at;
        char text[200];
        snprintf(text, sizeof text, "%s%s", p->kind == POINT_STALE ? "a stale write: " : "", p->text);
        box(f, p->kind == POINT_STALE ? "bad" : colour(f, p->who), p->at, until, top + 3, BAR - 6, text);
    }
}

static void draw_axis(struct frame *f, int top) {
    static const double steps[] = {.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 60, 300};
    double seconds = (double)f->scale_ns / 1e9, step = 600;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (seconds / steps[i] <= 5.5) {
            step = steps[i];
            break;
        }
    for (int i = 0; i * step <= seconds; i++) {
        double at = x(f, f->story->began + (int64_t)(i * step * 1e9));
        fprintf(f->to, "<line class=\"rule\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"0\" y2=\"%d\"/>", at, at, top);
        fprintf(f->to, "<text class=\"mute\" x=\"%.2f%%\" y=\"%d\"%s>", at, top + 14,
                i ? " text-anchor=\"middle\"" : "");
        if (step < 1 && step * i < 1) fprintf(f->to, i ? "%.0f ms" : "0", i * step * 1e3);
        else fprintf(f->to, step < 1 ? "%.1f s" : i ? "%.0f s" : "%.0f", i * step);
        fputs("</text>\n", f->to);
    }
}

void picture_draw(FILE *to, const struct story *t, int64_t scale_ns, const char *attributes) {
    struct frame f = {.to = to, .story = t, .scale_ns = scale_ns};
    find_lanes(&f);
    int height = picture_height(t);
    fprintf(to, "<svg class=\"t\" role=\"img\" width=\"100%%\" height=\"%d\" %s>", height, attributes);
    title(&f, variant_name(t->variant));
    draw_axis(&f, height - AXIS);
    draw_lanes(&f);
    if (has_writes(t)) draw_resource(&f);
    draw_spans(&f);
    draw_overlaps(&f);
    draw_points(&f);
    fputs("</svg>\n", to);
}
