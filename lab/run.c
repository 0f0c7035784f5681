/* run.c: pawl-lab list and run. Each variant is played in a process of its own, the three of a scenario side by side,
 * below one temporary directory. The runner takes in what they leave behind (it is a subreaper), so that an interrupt
 * ends everything that was started before it goes. */
#include "folder.h"
#include "lab.h"
#include "report.h"
#include "stage.h"
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char help[] =
    "usage: pawl-lab run [options] [SCENARIO...]     all of them if none is named; see pawl-lab list\n"
    "  --service NAME   those of redis, redlock, postgresql, etcd, file\n"
    "  --quick          the short set: at most a minute\n"
    "  --variant NAME   only plain, pawl, or guarded\n"
    "  --json           one JSON object for each variant on stdout\n"
    "  --report FILE    a page to look at, with a picture of each variant\n"
    "  --save FILE      everything that happened, one JSON object a line, for pawl-lab report\n"
    "  -v, --verbose    the steps\n"
    "Servers run on free ports of the loopback in a temporary directory. Nothing else is touched.\n"
    "exit: 0 everything as theory says, 1 something not, 125 nothing can be said (usage, a play that\n"
    "failed, all of them skipped), 130 interrupted, 143 terminated\n";

struct options {
    const char *service, *report, *save;
    bool quick, json, verbose, only[VARIANTS];
    char **names;
};

struct playing {
    pid_t pid;
    int fd;
};

static void abandon(int signal) {
    (void)signal;
    folder_end_below(2000);
    _exit(130);
}

static void in_child(const struct scenario *scenario, enum variant variant, int fd, pid_t parent) {
    struct story story;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGTERM, abandon);
    signal(SIGINT, SIG_IGN);
    stage_play(scenario, variant, &story);
    json_t *json = story_json(&story);
    json_dumpfd(json, fd, JSON_COMPACT);
    folder_end_below(2000); /* what a play that failed left running */
    _exit(0);
}

static struct playing start(const struct scenario *scenario, enum variant variant) {
    struct playing p = {.fd = -1};
    int pair[2];
    if (pipe2(pair, O_CLOEXEC)) return p;
    pid_t parent = getpid();
    fflush(NULL);
    p.pid = fork();
    if (p.pid == 0) in_child(scenario, variant, pair[1], parent);
    close(pair[1]);
    p.fd = pair[0];
    return p;
}

/* The text of one that ended, or was ended; NULL: out of memory. */
static char *hear(struct playing *p) {
    char *text = NULL;
    size_t used = 0;
    for (ssize_t n = 1; n > 0 && !lab_interrupted;) {
        struct pollfd fd = {.fd = p->fd, .events = POLLIN};
        if (poll(&fd, 1, 200) <= 0) continue;
        char *more = realloc(text, used + 65536);
        if (!more) break;
        text = more;
        n = read(p->fd, text + used, 65535);
        if (n > 0) used += (size_t)n;
    }
    if (text) text[used] = 0;
    close(p->fd);
    return text;
}

static void finish(struct playing all[VARIANTS], const struct scenario *scenario, enum variant variant,
                   struct story *ret) {
    struct playing *p = &all[variant];
    char *text = hear(p);
    for (int v = 0; v < VARIANTS && lab_interrupted; v++)
        if (all[v].pid > 0) kill(all[v].pid, SIGTERM);
    waitpid(p->pid, NULL, 0);
    p->pid = 0;
    json_t *json = text ? json_loads(text, 0, NULL) : NULL;
    if (!json || !story_read(json, ret)) {
        *ret = (struct story){.variant = variant, .verdict = VERDICT_FAILED};
        snprintf(ret->scenario, sizeof ret->scenario, "%s", scenario->name);
        snprintf(ret->why, sizeof ret->why, "%s", lab_interrupted ? "interrupted" : "the stage died; see above");
    }
    json_decref(json);
    free(text);
}

/* --- what is printed --- */

static bool use_colour(void) {
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && !(no && *no) && term && *term && strcmp(term, "dumb") != 0;
}

static const char *ink(bool good, bool bad) {
    if (!use_colour()) return "";
    return bad ? "\033[31m" : good ? "\033[32m" : "\033[0m";
}

static void print_step(const struct story *t, const struct step *step) {
    bool refused = strstr(step->text, "REFUSED") != NULL;
    printf("      %8.3f s  %s%s%s\n", (double)(step->at - t->began) / 1e9, refused ? ink(true, false) : "", step->text,
           refused ? ink(false, false) : "");
}

static void print_head(const struct options *o) {
    if (!o->json)
        printf("%-20s %-8s %5s %5s %6s %7s %5s %8s  %s\n", "scenario", "variant", "holds", "overl", "stale+", "refused",
               "token", "gap ms", "verdict");
}

/* To be read while the servers start. */
static void print_words(const struct scenario *s, const struct options *o) {
    const char *bold = use_colour() ? "\033[1m" : "";
    if (!o->verbose || o->json) return;
    printf("\n%s%s: %s%s\n  %s\n  People believe: %s\n  Plain: %s\n\n", bold, s->name, s->title, ink(false, false),
           s->happens, s->believed, scenario_recipe(s));
    print_head(o);
    fflush(stdout);
}

static void print_row(const struct story *t, const struct options *o) {
    if (o->json) {
        json_t *row = story_row(t);
        json_dumpf(row, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(row);
    } else {
        printf("%-20s %-8s %5" PRIu64 " %5" PRIu64 " %6" PRIu64 " %7" PRIu64 " %5" PRIu64 " %8.0f  %s%-7s%s %s%s\n",
               t->variant == VARIANT_PLAIN || o->only[t->variant] ? t->scenario : "", variant_name(t->variant),
               t->holds, t->overlaps, t->stale_accepted, t->stale_refused, t->token_regressions, t->max_gap_ms,
               ink(t->verdict == VERDICT_HELD, t->verdict == VERDICT_BROKE || t->verdict == VERDICT_FAILED),
               verdict_name(t->verdict), ink(false, false), t->expected ? "" : "NOT AS EXPECTED: ", t->why);
        for (int i = 0; o->verbose && i < t->n_steps; i++) print_step(t, &t->steps[i]);
    }
    fflush(stdout);
}

/* --- the round --- */

static bool wanted(const struct scenario *s, const struct options *o) {
    if (o->service && strcmp(s->service, o->service) != 0) return false;
    if (o->quick && !s->quick) return false;
    for (char **name = o->names; *name; name++)
        if (strcmp(*name, s->name) == 0) return true;
    return !*o->names;
}

static const char *missing_program(const char *needs) {
    static char name[64];
    for (const char *at = needs; *at;) {
        size_t n = strcspn(at, " ");
        char command[160];
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        snprintf(command, sizeof command,
                 "PATH=\"$PATH:/usr/sbin:/usr/lib/postgresql/15/bin\" command -v %s >/dev/null", name);
        if (system(command)) return name;
        at += n + strspn(at + n, " ");
    }
    return NULL;
}

static void play_one(const struct scenario *s, const struct options *o, struct story stories[VARIANTS]) {
    struct playing playing[VARIANTS] = {0};
    const char *missing = missing_program(s->needs);
    for (int v = 0; v < VARIANTS && !missing; v++)
        if (o->only[v]) playing[v] = start(s, (enum variant)v);
    for (int v = 0; v < VARIANTS; v++) {
        if (!o->only[v]) continue;
        if (!missing) finish(playing, s, (enum variant)v, &stories[v]);
        else {
            stories[v] = (struct story){.variant = (enum variant)v, .verdict = VERDICT_SKIPPED, .expected = true};
            snprintf(stories[v].scenario, sizeof stories[v].scenario, "%s", s->name);
            snprintf(stories[v].why, sizeof stories[v].why, "%s is not installed", missing);
        }
        if (!lab_interrupted) print_row(&stories[v], o);
    }
}

static int save(const char *path, const struct story *stories, int n) {
    FILE *file = fopen(path, "we");
    bool good = file != NULL;
    for (int i = 0; i < n && good; i++) {
        json_t *json = story_json(&stories[i]);
        good = json_dumpf(json, file, JSON_COMPACT) == 0 && fputc('\n', file) != EOF;
        json_decref(json);
    }
    if (file && fclose(file)) good = false;
    return good ? LAB_OK : lab_complain("cannot write %s: %s", path, strerror(errno));
}

/* What was not played to its end says nothing, nor does a round in which nothing was played. */
static int judge(const struct story *stories, int n) {
    int skipped = 0, failed = 0;
    for (int i = 0; i < n; i++) {
        skipped += stories[i].verdict == VERDICT_SKIPPED;
        failed += stories[i].verdict == VERDICT_FAILED;
        if (!stories[i].expected && stories[i].verdict != VERDICT_FAILED) return LAB_FOUND;
    }
    if (n == 0) return lab_complain("nothing can be said: no scenario is all that was asked for; see pawl-lab list");
    if (skipped == n) return lab_complain("nothing can be said: everything was skipped");
    return failed ? lab_complain("nothing can be said: %d of %d failed", failed, n) : LAB_OK;
}

static int round_of(const void *options) {
    const struct options *o = options;
    struct story stories[VARIANTS * 64];
    int n = 0;
    if (!o->verbose) print_head(o);
    for (int i = 0; scenarios[i] && !lab_interrupted; i++) {
        struct story three[VARIANTS];
        if (!wanted(scenarios[i], o)) continue;
        print_words(scenarios[i], o);
        play_one(scenarios[i], o, three);
        if (o->verbose && !o->json) printf("  What is true: %s\n", scenarios[i]->truth);
        for (int v = 0; v < VARIANTS; v++) {
            if (!o->only[v]) continue;
            stories[n++] = three[v];
        }
    }
    if (lab_interrupted) return LAB_INTERRUPTED;
    int code = judge(stories, n);
    if (o->save && save(o->save, stories, n)) code = LAB_FAILED;
    if (o->report && report_write(o->report, stories, n)) code = LAB_FAILED;
    for (int i = 0; i < n; i++) story_free(&stories[i]);
    return code;
}

static bool is_service(const char *name) {
    for (int i = 0; scenarios[i]; i++)
        if (strcmp(scenarios[i]->service, name) == 0) return true;
    return false;
}

static int parse(int argc, char **argv, struct options *o) {
    enum { SERVICE = 256, QUICK, VARIANT, JSON, REPORT, SAVE, HELP };
    static const struct option longs[] = {
        {"service", 1, NULL, SERVICE}, {"quick", 0, NULL, QUICK},   {"variant", 1, NULL, VARIANT},
        {"json", 0, NULL, JSON},       {"report", 1, NULL, REPORT}, {"save", 1, NULL, SAVE},
        {"verbose", 0, NULL, 'v'},     {"help", 0, NULL, HELP},     {0}};
    int c, v;
    bool all = true;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":hv", longs, NULL)) != -1) switch (c) {
        case SERVICE: o->service = optarg; break;
        case QUICK: o->quick = true; break;
        case VARIANT:
            for (v = 0; v < VARIANTS && strcmp(optarg, variant_name((enum variant)v)) != 0;) v++;
            if (v == VARIANTS) return lab_complain("--variant wants plain, pawl or guarded, not %s", optarg);
            o->only[v] = true;
            all = false;
            break;
        case JSON: o->json = true; break;
        case REPORT: o->report = optarg; break;
        case SAVE: o->save = optarg; break;
        case 'v': o->verbose = true; break;
        case 'h':
        case HELP: fputs(help, stdout); exit(LAB_OK);
        case ':': return lab_complain("%s wants a value", argv[optind - 1]);
        default: return lab_complain("unknown option: %s", argv[optind - 1]);
        }
    for (v = 0; v < VARIANTS; v++) o->only[v] |= all;
    o->names = argv + optind;
    if (o->service && !is_service(o->service))
        return lab_complain("--service wants redis, redlock, postgresql, etcd or file, not %s", o->service);
    if ((o->save && lab_writable(o->save)) || (o->report && lab_writable(o->report))) return LAB_FAILED;
    for (char **name = o->names; *name; name++)
        if (!scenario_find(*name)) return lab_complain("there is no scenario %s; pawl-lab list shows them", *name);
    return LAB_OK;
}

int lab_run(int argc, char **argv) {
    struct options o = {0};
    int code = parse(argc, argv, &o);
    return code ? code : lab_in_folder(round_of, &o, true);
}
