/* bench_report.c: the rows of a bench as one page: for each scenario a table, and for each service a histogram, all of
 * one scenario on the same axis. No script, nothing fetched; follows the reader's light or dark, fits a phone, prints.
 */
#include "bench_report.h"
#include "clock.h"
#include "lab.h"
#include "picture.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { HEIGHT = 120, BASE = 96 }; /* of a histogram; below BASE stand the numbers */

#define LIGHT "--page:#fff;--ink:#1b1f24;--mute:#626b76;--line:#e3e6ea;--ours:#2f6fd8;--raw:#c2650a"
#define DARK "--page:#14171b;--ink:#e8eaed;--mute:#98a1ac;--line:#2b3138;--ours:#6aa3ff;--raw:#f0964a"

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width,initial-scale=1\"><title>pawl-lab bench</title><style>"
    ":root{color-scheme:light dark;" LIGHT "}@media(prefers-color-scheme:dark){:root{" DARK "}}"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 3rem;background:var(--page);"
    "color:var(--ink);font:16px/1.5 system-ui,sans-serif;-webkit-text-size-adjust:100%}"
    "h1{font-size:1.6rem;margin:.4rem 0}h2{font-size:1.2rem;margin:2.6rem 0 .4rem}p{max-width:44rem;margin:.4rem 0}"
    ".mute{color:var(--mute);font-size:.9rem}code{font-size:.85rem;overflow-wrap:anywhere}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem;"
    "font-variant-numeric:tabular-nums;margin:.6rem 0 1rem}th,td{padding:.3rem "
    ".6rem;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--line)}th{color:var(--mute);font-weight:600}tr>:first-child{text-align:left;"
    "padding-left:0}figure{margin:0 0 1rem;break-inside:avoid}figcaption{font-size:.9rem}figcaption b{font-weight:600}"
    "svg{display:block;width:100%;overflow:visible;font:11px/1 system-ui,sans-serif}svg text{fill:var(--mute)}"
    ".ours{fill:var(--ours)}.raw{fill:none;stroke:var(--raw);stroke-width:1.5;vector-effect:non-scaling-stroke}"
    ".axis{stroke:var(--line)}.key{display:inline-block;width:1em;height:.8em;border:2px solid}"
    ".key.o{background:var(--ours);border-color:var(--ours)}.key.r{border-color:var(--raw)}"
    "@media print{:root{" LIGHT "}body{max-width:none;font-size:10pt;padding:0}"
    "*{print-color-adjust:exact;-webkit-print-color-adjust:exact}h2{break-after:avoid}}"
    "</style></head><body>\n<h1>pawl-lab bench</h1>\n";

static const char *const words[SCENARIOS] = {
    [CYCLE] = "One client takes and frees one free lock, again and again. A round is an acquire and a release.",
    [THOUSAND] = "One client takes and frees one free lock a thousand times.",
    [HANDOFF] = "Clients hold one lock in turn and ask again at once. A gap lies between the end of a hold and the "
                "begin of the next one, by another client.",
    [RELAY] = "As handoff, but each rests about as long as all others hold it.",
    [MANY] = "One client takes many locks, in one loop.",
};

/* --- the histogram --- */

/* The bars that any entry of the scenario uses: all have one axis. */
static void axis_of(const struct bench_page *page, enum scenario s, int *ret_from, int *ret_to) {
    *ret_from = HISTOGRAM_BARS;
    *ret_to = 0;
    for (int e = 0; e < page->n; e++) {
        const struct row *row = &page->entries[e].row;
        if (page->entries[e].scenario != s || row->code) continue;
        for (int bar = 0; bar < HISTOGRAM_BARS; bar++)
            for (int i = 0; i < row->tries; i++)
                if (row->pawl[i].histogram[bar] || row->floor[i].histogram[bar]) {
                    if (bar < *ret_from) *ret_from = bar;
                    if (bar >= *ret_to) *ret_to = bar + 1;
                }
    }
}

/* Over all tries, each bar as a part of the highest; 0: there are none. */
static bool heights(const struct row *row, bool raw, double ret[HISTOGRAM_BARS]) {
    double most = 0;
    for (int bar = 0; bar < HISTOGRAM_BARS; bar++) {
        ret[bar] = 0;
        for (int i = 0; i < row->tries; i++)
            ret[bar] += raw ? row->floor[i].histogram[bar] : row->pawl[i].histogram[bar];
        if (ret[bar] > most) most = ret[bar];
    }
    for (int bar = 0; bar < HISTOGRAM_BARS && most > 0; bar++) ret[bar] /= most;
    return most > 0;
}

/* A tick at each power of ten, in the unit that fits. */
static void draw_axis(FILE *to, int from, int bars) {
    static const char *const names[] = {"100 ns", "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s"};
    fprintf(to, "<line class=\"axis\" x1=\"0\" x2=\"100%%\" y1=\"%d\" y2=\"%d\"/>", BASE, BASE);
    for (int i = 0; i < 9; i++) {
        double at = (histogram_bar(pow(10, i - 1)) - from) / bars * 100;
        if (at < 0 || at > 97) continue;
        fprintf(to, "<line class=\"axis\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"0\" y2=\"%d\"/>", at, at, BASE + 4);
        if (at > 88) continue; /* the number would not fit */
        fprintf(to, "<text x=\"%.2f%%\" y=\"%d\" dx=\"3\">%s</text>", at, BASE + 16, names[i]);
    }
}

static void draw_raw(FILE *to, const double raw[HISTOGRAM_BARS], int from, int bars) {
    fprintf(to,
            "<svg x=\"0\" y=\"0\" width=\"100%%\" height=\"%d\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\">"
            "<path class=\"raw\" d=\"M0 %d",
            BASE, bars, BASE, BASE);
    for (int bar = 0; bar < bars; bar++) fprintf(to, "V%.1fH%d", BASE - raw[from + bar] * (BASE - 6), bar + 1);
    fprintf(to, "V%d\"/></svg>", BASE);
}

static void draw(FILE *to, const struct bench_entry *e, int from, int bars) {
    double ours[HISTOGRAM_BARS], raw[HISTOGRAM_BARS];
    if (!heights(&e->row, false, ours)) return;
    fputs("<figure><figcaption><b>", to);
    picture_text(to, e->service);
    fprintf(to,
            "</b></figcaption><svg role=\"img\" height=\"%d\" aria-label=\"how long it took, on a logarithmic axis\">",
            HEIGHT);
    draw_axis(to, from, bars);
    for (int bar = 0; bar < bars; bar++) {
        double height = ours[from + bar] * (BASE - 6);
        if (height <= 0) continue;
        if (height < 1) height = 1; /* one out of many is to be seen */
        fprintf(to, "<rect class=\"ours\" x=\"%.3f%%\" width=\"%.3f%%\" y=\"%.1f\" height=\"%.1f\"/>",
                bar * 100. / bars, 92. / bars, BASE - height, height);
    }
    if (e->row.raw && heights(&e->row, true, raw)) draw_raw(to, raw, from, bars);
    fputs("</svg></figure>\n", to);
}

/* --- the page --- */

static double over_tries(const struct row *row, bool raw, double (*field)(const struct side *)) {
    double values[TRIES_MOST];
    for (int i = 0; i < row->tries; i++) values[i] = field(raw ? &row->floor[i] : &row->pawl[i]);
    return median(values, row->tries);
}
static double ops(const struct side *s) { return s->ops_s; }
static double p50(const struct side *s) { return s->p50_us; }
static double p99(const struct side *s) { return s->p99_us; }

static void cell(FILE *to, double value, bool known) {
    if (!known) fputs("<td>-</td>", to);
    else fprintf(to, value < 100 ? "<td>%.1f</td>" : "<td>%.0f</td>", value);
}

static void table_row(FILE *to, const struct bench_entry *e) {
    const struct row *row = &e->row;
    fputs("<tr><td>", to);
    picture_text(to, e->service);
    if (row->code) {
        fputs("</td><td colspan=\"6\">failed: ", to);
        picture_text(to, row->text);
        fputs("</td></tr>\n", to);
        return;
    }
    if (row->raw) fprintf(to, "</td><td><b>%.2f</b></td>", row_ratio(row));
    else fputs("</td><td>-</td>", to);
    bool times = e->scenario != MANY;
    cell(to, over_tries(row, false, ops), true);
    cell(to, over_tries(row, false, p50), times);
    cell(to, over_tries(row, false, p99), times);
    cell(to, over_tries(row, true, ops), row->raw);
    cell(to, over_tries(row, true, p50), row->raw && times);
    fputs("</tr>\n", to);
}

static void section(FILE *to, const struct bench_page *page, enum scenario s) {
    int from, until, found = 0;
    for (int i = 0; i < page->n; i++) found += page->entries[i].scenario == s;
    if (!found) return;
    fprintf(to,
            "<h2>%s</h2><p>%s</p>\n<div class=\"scroll\"><table><tr><th>service</th><th>ratio</th><th>a "
            "second</th><th>p50 us</th>"
            "<th>p99 us</th><th>bare: a second</th><th>p50 us</th></tr>\n",
            scenario_names[s], words[s]);
    for (int i = 0; i < page->n; i++)
        if (page->entries[i].scenario == s) table_row(to, &page->entries[i]);
    fputs("</table></div>\n", to);
    axis_of(page, s, &from, &until);
    for (int i = 0; i < page->n; i++)
        if (page->entries[i].scenario == s && !page->entries[i].row.code && until > from)
            draw(to, &page->entries[i], from, until - from);
}

static void machine(FILE *to, const struct bench_page *page) {
    struct utsname name;
    char when[32];
    time_t now = (time_t)(clock_wall_us() / 1000000);
    uname(&name);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", gmtime(&now));
    fprintf(to, "<p class=\"mute\">%s, %ld cores, Linux %s", when, sysconf(_SC_NPROCESSORS_ONLN), name.release);
    if (*page->version) fputs(", ", to);
    picture_text(to, page->version);
    fprintf(
        to,
        ", loopback. %.0f %% of the cores were ours before, %.0f %% after; longest stall %.1f and %.1f ms; load %.1f "
        "and %.1f; the tries lie up to %.0f %% apart.</p>\n<p class=\"mute\"><code>",
        page->before.ours_percent, page->after.ours_percent, page->before.stall_ms, page->after.stall_ms,
        page->before.load, page->after.load, page->spread);
    picture_text(to, page->command);
    fputs("</code></p>\n", to);
}

int bench_report(const char *path, const struct bench_page *page) {
    FILE *to = fopen(path, "w");
    if (!to) return lab_complain("cannot write %s: %s", path, strerror(errno));
    fputs(head, to);
    fputs("<p>pawl beside the bare service, measured in turns within one run. Read the ratio (1: as fast as the bare "
          "service; more is better), and the shapes; the absolute numbers are this machine's.</p>\n"
          "<p class=\"mute\"><span class=\"key o\"></span> pawl &nbsp; <span class=\"key r\"></span> the bare service. "
          "Each histogram is as high as its highest bar; all of a scenario have one logarithmic axis.</p>\n",
          to);
    machine(to, page);
    for (int s = 0; s < SCENARIOS; s++) section(to, page, (enum scenario)s);
    fputs("</body></html>\n", to);
    bool failed = ferror(to);
    if (fclose(to) || failed) return lab_complain("cannot write %s: %s", path, strerror(errno));
    return LAB_OK;
}
