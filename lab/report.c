/* report.c: stories as one page: a table, then each scenario in words and three pictures. No script, nothing fetched;
 * follows the reader's light or dark, fits a phone, and prints. Also the single pictures of docs/FAILURES.md. */
#include "report.h"
#include "clock.h"
#include "lab.h"
#include "picture.h"
#include "stage.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LIGHT                                                                                                          \
    "--page:#fff;--ink:#1b1f24;--mute:#626b76;--line:#e3e6ea;--bed:#f1f3f5;--card:#fafbfc;--bad:#d1242f;--good:#"      \
    "1a7f37;"                                                                                                          \
    "--fault:#b58900;--c0:#2f6fd8;--c1:#c2650a;--c2:#2c8a5b;--c3:#8250c4"
#define DARK                                                                                                           \
    "--page:#14171b;--ink:#e8eaed;--mute:#98a1ac;--line:#2b3138;--bed:#20252b;--card:#1a1e23;--bad:#ff6b61;--good:#"   \
    "4ac26b;"                                                                                                          \
    "--fault:#d9a520;--c0:#6aa3ff;--c1:#f0964a;--c2:#56c48f;--c3:#b68cf2"

static const char page_style[] =
    ":root{color-scheme:light dark;" LIGHT "}@media(prefers-color-scheme:dark){:root{" DARK "}}"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem "
    "4rem;background:var(--page);color:var(--ink);"
    "font:16px/1.55 system-ui,sans-serif;-webkit-text-size-adjust:100%}"
    "h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.25rem;line-height:1.3;margin:3.2rem 0 .6rem}"
    "h2 code{display:block;font-size:.8rem;font-weight:400;color:var(--mute)}"
    "a{color:inherit}p{max-width:44rem}.lead{color:var(--mute)}dl{margin:0 0 "
    "1rem;max-width:44rem}dt{color:var(--mute);font-size:.85rem}"
    "dd{margin:0 0 "
    ".6rem}.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;width:100%;font-variant-numeric:"
    "tabular-nums}"
    "th,td{padding:.35rem .6rem;text-align:left;border-bottom:1px solid "
    "var(--line);vertical-align:top}th{font-weight:600;color:var(--mute)}"
    ".v{border:1px solid var(--line);border-radius:10px;background:var(--card);padding:.9rem 1rem 1rem;margin:0 0 1rem;"
    "break-inside:avoid}.v h3{margin:0 0 .7rem;font-size:1rem;display:flex;flex-wrap:wrap;gap:.3rem "
    ".6rem;align-items:baseline}"
    ".v h3 "
    "span:not(.b){font-weight:400;color:var(--mute)}.b{font-size:.8rem;font-weight:600;border-radius:99px;padding:."
    "1rem .6rem;"
    "border:1.5px "
    "solid;white-space:nowrap}.broke,.failed{color:var(--bad)}.held{color:var(--good)}.skipped{color:var(--mute)}"
    ".n{font-size:.85rem;color:var(--mute);margin:.6rem 0 "
    "0}details{font-size:.85rem;margin-top:.4rem}summary{cursor:pointer;"
    "color:var(--mute)}ol{list-style:none;margin:.5rem 0 0;padding:0}li{display:flex;gap:.8rem;padding:.1rem "
    "0;overflow-wrap:anywhere}"
    "li time{flex:0 0 4.5rem;text-align:right;color:var(--mute);font-variant-numeric:tabular-nums}"
    ".key{display:flex;flex-wrap:wrap;gap:.4rem 1.4rem;font-size:.85rem;padding:0;margin:1rem 0;list-style:none}"
    ".key li{align-items:center;gap:.5rem}.key svg{flex:none}"
    "@media(max-width:40rem){table,tbody{display:block}tr{display:grid;grid-template-columns:repeat(3,1fr)}"
    "th,td{border:0;padding:.15rem 0}tr{border-bottom:1px solid "
    "var(--line);padding:.35rem 0}tr>:first-child{grid-column:1/-1}}"
    "@media print{:root{" LIGHT
    "}body{max-width:none;font-size:11pt;padding:0}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}"
    "h2{break-after:avoid}details{display:none}}";

static const char key[] =
    "<ul class=\"key\"><li><svg width=\"34\" height=\"18\"><rect class=\"c0\" width=\"34\" height=\"18\" "
    "rx=\"3\"/></svg>holds the lock</li>"
    "<li><svg width=\"34\" height=\"18\"><line class=\"wait\" x1=\"1\" x2=\"33\" y1=\"9\" y2=\"9\"/></svg>waits</li>"
    "<li><svg width=\"34\" height=\"18\"><rect class=\"pause\" x=\"1\" y=\"1\" width=\"32\" height=\"16\" "
    "rx=\"3\"/></svg>is stopped</li>"
    "<li><svg width=\"34\" height=\"18\"><rect class=\"fault\" y=\"3\" width=\"34\" height=\"12\" "
    "rx=\"3\"/></svg>something is broken</li>"
    "<li><svg width=\"34\" height=\"22\"><rect class=\"both\" x=\"1\" y=\"1\" width=\"32\" height=\"20\" "
    "rx=\"3\"/></svg>two hold it at once</li>"
    "<li><svg width=\"18\" height=\"18\"><circle class=\"dot\" cx=\"9\" cy=\"9\" r=\"5\"/></svg>writes</li>"
    "<li><svg class=\"t\" width=\"18\" height=\"18\"><circle class=\"bad\" cx=\"9\" cy=\"9\" r=\"7\"/><text "
    "class=\"in\" x=\"9\" y=\"13\" "
    "text-anchor=\"middle\">!</text></svg>a stale write, accepted</li>"
    "<li><svg width=\"18\" height=\"18\"><circle class=\"ring\" cx=\"9\" cy=\"9\" r=\"7\"/><path class=\"badline\" "
    "d=\"M4.500 13.500 13.500 4.500\"/>"
    "</svg>a stale write, refused</li>"
    "<li><svg width=\"18\" height=\"24\"><path class=\"stroke\" d=\"M9 1V23M5 1H13M5 23H13\"/></svg>knows that the "
    "lock is lost</li>"
    "<li><svg width=\"18\" height=\"18\"><path class=\"stroke\" d=\"M3 3 15 15M3 15 15 3\"/></svg>is "
    "killed</li></ul>\n";

static const char *const meanings[VARIANTS] = {"the lock as people write it",
                                               "pawl, and a resource that checks nothing",
                                               "pawl, and a resource that checks the token"};

static void badge(FILE *to, const struct story *t) {
    fprintf(to, "<span class=\"b %s\">%s%s</span>", verdict_name(t->verdict), verdict_name(t->verdict),
            t->expected ? "" : " (not expected)");
}

static int group(const struct story *stories, int n) {
    int same = 1;
    while (same < n && strcmp(stories[same].scenario, stories[0].scenario) == 0) same++;
    return same;
}

static void write_table(FILE *to, const struct story *stories, int n) {
    fputs("<div class=\"scroll\"><table><tr><th>failure</th><th>plain</th><th>pawl</th><th>guarded</th></tr>\n", to);
    for (int i = 0, same; i < n; i += same) {
        same = group(stories + i, n - i);
        const struct scenario *s = scenario_find(stories[i].scenario);
        fputs("<tr><td><a href=\"#", to);
        picture_text(to, stories[i].scenario);
        fputs("\">", to);
        picture_text(to, s ? s->title : stories[i].scenario);
        fputs("</a></td>", to);
        for (int v = 0; v < VARIANTS; v++) {
            fputs("<td>", to);
            for (int k = i; k < i + same; k++)
                if (stories[k].variant == (enum variant)v) badge(to, &stories[k]);
            fputs("</td>", to);
        }
        fputs("</tr>\n", to);
    }
    fputs("</table></div>\n", to);
}

static void write_words(FILE *to, const struct scenario *s) {
    const char *const terms[] = {"What happens", s->happens,     "What people believe",
                                 s->believed,    "What is true", s->truth};
    fputs("<dl>", to);
    for (int i = 0; i < 6; i += 2) {
        fprintf(to, "<dt>%s</dt><dd>", terms[i]);
        picture_text(to, terms[i + 1]);
        fputs("</dd>", to);
    }
    fputs("</dl>\n", to);
}

static void write_variant(FILE *to, const struct story *t, int64_t scale) {
    const struct scenario *s = scenario_find(t->scenario);
    fprintf(to, "<div class=\"v\"><h3>%s ", variant_name(t->variant));
    badge(to, t);
    fputs(" <span>", to);
    picture_text(to, s && t->variant == VARIANT_PLAIN ? scenario_recipe(s) : meanings[t->variant]);
    fputs("</span></h3>\n", to);
    if (t->n_spans) picture_draw(to, t, scale, "");
    fprintf(to,
            "<p class=\"n\">holds: %" PRIu64 ", overlaps: %" PRIu64 "; stale writes: %" PRIu64 " accepted, %" PRIu64
            " refused; tokens that fell: %" PRIu64 "; longest gap %.0f ms",
            t->holds, t->overlaps, t->stale_accepted, t->stale_refused, t->token_regressions, t->max_gap_ms);
    if (*t->why) fprintf(to, "<br>%s: ", verdict_name(t->verdict));
    picture_text(to, t->why);
    fputs("</p>\n<details><summary>the steps</summary><ol>\n", to);
    for (int i = 0; i < t->n_steps; i++) {
        fprintf(to, "<li><time>%.3f s</time><span>", (double)(t->steps[i].at - t->began) / 1e9);
        picture_text(to, t->steps[i].text);
        fputs("</span></li>\n", to);
    }
    fputs("</ol></details></div>\n", to);
}

static void write_page(FILE *to, const struct story *stories, int n) {
    time_t now = (time_t)(clock_wall_us() / 1000000);
    char when[40];
    strftime(when, sizeof when, "%e %B %Y, %H:%M UTC", gmtime(&now));
    fprintf(to,
            "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
            "content=\"width=device-width\">\n"
            "<title>How locks fail</title>\n<style>%s%s</style>\n<body>\n%s",
            page_style, picture_style, picture_defs);
    fprintf(to,
            "<h1>How locks fail</h1>\n<p class=\"lead\">Each failure was made to happen on real servers, three times: "
            "with the lock as "
            "people write it, with pawl, and with pawl and a resource that checks the fencing token. "
            "pawl-lab " PAWL_VERSION_TEXT ", %s.</p>\n",
            when);
    write_table(to, stories, n);
    fputs(key, to);
    for (int i = 0, same; i < n; i += same) {
        same = group(stories + i, n - i);
        const struct scenario *s = scenario_find(stories[i].scenario);
        fputs("<section id=\"", to);
        picture_text(to, stories[i].scenario);
        fputs("\"><h2><code>", to);
        picture_text(to, stories[i].scenario);
        fputs("</code>", to);
        picture_text(to, s ? s->title : stories[i].scenario);
        fputs("</h2>\n", to);
        if (s) write_words(to, s);
        for (int k = i; k < i + same; k++) write_variant(to, &stories[k], picture_scale(stories + i, same));
        fputs("</section>\n", to);
    }
    fputs("</body></html>\n", to);
}

/* The three pictures of one scenario, one below the other, for a document that shows images. */
static void write_svg(FILE *to, const struct story *stories, int n) {
    int height = 0, top = 0;
    for (int i = 0; i < n; i++) height += picture_height(&stories[i]) + 44;
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"%d\"><style>svg{" LIGHT "}"
            "@media(prefers-color-scheme:dark){svg{" DARK "}}%s .h{font:600 14px system-ui,sans-serif;fill:var(--ink)}"
            ".broke{fill:var(--bad)}.held{fill:var(--good)}</style>%s<rect width=\"100%%\" height=\"100%%\" rx=\"8\" "
            "fill=\"var(--page)\"/>\n",
            height + 8, picture_style, picture_defs);
    for (int i = 0; i < n; i++) {
        char attributes[64];
        fprintf(to, "<text class=\"h\" x=\"16\" y=\"%d\">%s <tspan class=\"%s\">%s</tspan></text>\n", top + 26,
                variant_name(stories[i].variant), verdict_name(stories[i].verdict), verdict_name(stories[i].verdict));
        snprintf(attributes, sizeof attributes, "y=\"%d\"", top + 38);
        fprintf(to, "<svg x=\"16\" y=\"%d\" width=\"728\">", top + 38);
        picture_draw(to, &stories[i], picture_scale(stories, n), "");
        fputs("</svg>\n", to);
        top += picture_height(&stories[i]) + 44;
    }
    fputs("</svg>\n", to);
}

static int write_file(const char *path, const struct story *stories, int n,
                      void (*write)(FILE *, const struct story *, int)) {
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(path, "we");
    if (file) write(file, stories, n);
    if (is_stdout) return LAB_OK; /* main sees whether it could be written */
    if (file && !ferror(file) && fclose(file) == 0) return LAB_OK;
    return lab_complain("cannot write %s: %s", path, strerror(errno));
}

int report_write(const char *path, const struct story *stories, int n) {
    return write_file(path, stories, n, write_page);
}

/* --- the verb --- */

static const char help[] = "usage: pawl-lab report FILE [options]        FILE is what pawl-lab run --save FILE kept\n"
                           "  -o, --output PAGE    a page of HTML; -: to standard output\n"
                           "  --svg DIRECTORY      one picture for each scenario, NAME.svg\n";

static int read_stories(const char *path, struct story **ret, int *ret_n) {
    FILE *file = fopen(path, "re");
    if (!file) return lab_complain("cannot open %s: %s", path, strerror(errno));
    struct story *stories = NULL;
    char *line = NULL;
    size_t size = 0;
    int n = 0, code = LAB_OK;
    while (code == LAB_OK && getline(&line, &size, file) > 0) {
        json_t *json = json_loads(line, 0, NULL);
        stories = realloc(stories, ((size_t)n + 1) * sizeof *stories);
        if (!stories) abort();
        if (story_read(json, &stories[n])) n++;
        else code = lab_complain("%s:%d: not what run --save writes", path, n + 1);
        json_decref(json);
    }
    free(line);
    fclose(file);
    if (code == LAB_OK && n == 0) code = lab_complain("%s: empty", path);
    *ret = stories;
    *ret_n = n;
    return code;
}

static int write_svgs(const char *dir, const struct story *stories, int n) {
    int code = LAB_OK;
    for (int i = 0, same; i < n && code == LAB_OK; i += same) {
        char path[512];
        same = group(stories + i, n - i);
        snprintf(path, sizeof path, "%s/%s.svg", dir, stories[i].scenario);
        code = write_file(path, stories + i, same, write_svg);
    }
    return code;
}

int lab_report(int argc, char **argv) {
    static const struct option longs[] = {{"output", 1, NULL, 'o'}, {"svg", 1, NULL, 's'}, {"help", 0, NULL, 'h'}, {0}};
    const char *page = NULL, *dir = NULL;
    struct story *stories = NULL;
    int c, n = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":ho:", longs, NULL)) != -1) switch (c) {
        case 'o': page = optarg; break;
        case 's': dir = optarg; break;
        case 'h': fputs(help, stdout); return LAB_OK;
        case ':': return lab_complain("%s wants a value", argv[optind - 1]);
        default: return lab_complain("unknown option: %s", argv[optind - 1]);
        }
    if (optind == argc) return lab_complain("report wants a FILE: what pawl-lab run --save FILE kept\n%s", help);
    if (optind + 1 < argc) return lab_complain("report wants one FILE only, not also %s", argv[optind + 1]);
    if (!page && !dir) return lab_complain("report wants -o PAGE or --svg DIRECTORY: where to write\n%s", help);
    int code = read_stories(argv[optind], &stories, &n);
    if (code == LAB_OK && page) code = report_write(page, stories, n);
    if (code == LAB_OK && dir) code = write_svgs(dir, stories, n);
    for (int i = 0; i < n; i++) story_free(&stories[i]);
    free(stories);
    return code;
}
