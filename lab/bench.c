/* bench.c: pawl-lab bench: measures pawl beside the bare service, prints the ratio beside the number and how to run it
 * again. */
#include "bench.h"
#include "bench_report.h"
#include "error.h"
#include "folder.h"
#include "lab.h"
#include "random.h"
#include "url.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char help[] =
    "usage: pawl-lab bench [options]\n"
    "  --scenario S      cycle, 1000, handoff, relay or many; may be repeated (cycle, handoff and\n"
    "                    relay)\n"
    "  -u, --url URL     where the locks live; may be repeated (file:). file: without a directory is a temporary one\n"
    "  --raw             measure the bare service too, in the same run, and print the ratio\n"
    "  --json            one JSON object for each row on stdout\n"
    "  --report FILE     the rows as a page of HTML with histograms as well\n"
    "  --clients N       of handoff (2) and relay (8)\n"
    "  --seconds S       of each side of each try (1)\n"
    "  --tries N         the median of N tries (3)\n"
    "  --hold DUR        of each turn of handoff and relay (1ms)\n"
    "  --locks N         of many (10000)\n"
    "  --seed N          order of the sides, rests\n"
    "exit: 0 measured, 1 measured, and a fault was found (an overlap, a falling token), 125 nothing could be "
    "measured, 130 interrupted, 143 terminated\n";

#define URLS_MOST 16

struct request {
    const char *urls[URLS_MOST];
    int n_urls;
    bool scenarios[SCENARIOS];
    bool json, seconds_given;
    uint64_t seed;
    int clients; /* 0: the scenario's own */
    struct plan plan;
    char directory[128]; /* for file: */
    struct noise noise;
    double spread;
    char version[32];
    const char *report; /* NULL: none */
    struct bench_entry *entries;
    int n_entries;
    int result;
    bool measured; /* at least one row */
    int argc;
    char **argv;
};

uint64_t plan_random(struct plan *plan) {
    plan->random = plan->random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return plan->random >> 33;
}

int row_fail(struct row *row, const pawl_error *error) {
    row->code = error->code ? error->code : PAWL_EINTERNAL;
    snprintf(row->text, sizeof row->text, "%s", *error->text ? error->text : pawl_strerror(row->code));
    return row->code;
}

static int pick_scenario(struct request *q, const char *name) {
    for (int s = 0; s < SCENARIOS; s++)
        if (strcmp(name, scenario_names[s]) == 0) {
            q->scenarios[s] = true;
            return LAB_OK;
        }
    return lab_complain("--scenario: %s is none of cycle, 1000, handoff, relay, many", name);
}

static int parse_number(const char *option, int64_t low, int64_t high, int64_t *ret) {
    if (lab_number(optarg, low, high, ret)) return LAB_OK;
    return lab_complain("%s wants a number from %" PRId64 " to %" PRId64 ", not %s", option, low, high, optarg);
}

enum { SCENARIO = 256, RAW, JSON, REPORT, CLIENTS, SECONDS, TRIES, HOLD, LOCKS, SEED, HELP };

static int parse_option(struct request *q, int c, const char *given) {
    int64_t number;
    int r = LAB_OK;
    switch (c) {
    case SCENARIO: return pick_scenario(q, optarg);
    case 'u':
        if (q->n_urls == URLS_MOST) return lab_complain("more than %d URLs", URLS_MOST);
        q->urls[q->n_urls++] = optarg;
        break;
    case RAW: q->plan.raw = true; break;
    case JSON: q->json = true; break;
    case REPORT: q->report = optarg; break;
    case CLIENTS:
        if ((r = parse_number("--clients", 2, 1000, &number)) == LAB_OK) q->clients = (int)number;
        break;
    case SECONDS:
        if (!lab_duration(optarg, &number) || number < 10000000)
            return lab_complain("--seconds wants a number of seconds, at least 0.01, not %s", optarg);
        q->plan.seconds = (double)number / 1e9;
        break;
    case TRIES:
        if ((r = parse_number("--tries", 1, TRIES_MOST, &number)) == LAB_OK) q->plan.tries = (int)number;
        break;
    case HOLD:
        if (!lab_duration(optarg, &q->plan.hold_ns))
            return lab_complain("--hold wants a duration like 1ms, not %s", optarg);
        break;
    case LOCKS:
        if ((r = parse_number("--locks", 1, 1000000, &number)) == LAB_OK) q->plan.locks = (long)number;
        break;
    case SEED:
        if ((r = parse_number("--seed", 0, INT64_MAX, &number)) == LAB_OK) q->seed = (uint64_t)number;
        break;
    case 'h':
    case HELP: fputs(help, stdout); exit(LAB_OK);
    case ':': return lab_complain("%s wants a value", given);
    default: return lab_complain("unknown option: %s", given);
    }
    return r;
}

static int parse(int argc, char **argv, struct request *q) {
    static const struct option longs[] = {{"scenario", 1, NULL, SCENARIO},
                                          {"url", 1, NULL, 'u'},
                                          {"raw", 0, NULL, RAW},
                                          {"json", 0, NULL, JSON},
                                          {"report", 1, NULL, REPORT},
                                          {"clients", 1, NULL, CLIENTS},
                                          {"seconds", 1, NULL, SECONDS},
                                          {"tries", 1, NULL, TRIES},
                                          {"hold", 1, NULL, HOLD},
                                          {"locks", 1, NULL, LOCKS},
                                          {"seed", 1, NULL, SEED},
                                          {"help", 0, NULL, HELP},
                                          {0}};
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":hu:", longs, NULL)) != -1) {
        int r = parse_option(q, c, argv[optind - 1]);
        if (r) return r;
    }
    if (optind != argc) return lab_complain("bench wants no %s", argv[optind]);
    if (!q->n_urls) q->urls[q->n_urls++] = "file:";
    bool any = false;
    for (int s = 0; s < SCENARIOS; s++) any |= q->scenarios[s];
    if (!any) q->scenarios[CYCLE] = q->scenarios[HANDOFF] = q->scenarios[RELAY] = true;
    return LAB_OK;
}

/* Runs one scenario in a child, so that every measurement has a fresh process and this one never has a thread. */
static void run_apart(scenario_fn *run, struct plan *plan, const char *url, struct row *ret) {
    struct row *row = mmap(NULL, sizeof *row, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (row == MAP_FAILED) abort();
    plan_random(plan);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run(plan, url, row);
        _exit(0);
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        pawl_error error = PAWL_ERROR_INIT;
        error_set(&error, PAWL_EINTERNAL, NULL, "the measuring process ended with status %#x", (unsigned)status);
        row_fail(row, &error);
    }
    memcpy(ret, row, sizeof *ret);
    munmap(row, sizeof *row);
}

static void progress(const struct request *q, enum scenario s, const char *service, const struct plan *plan) {
    double expected = plan->seconds * plan->tries * (plan->raw ? 2 : 1);
    if (s == THOUSAND || (s != MANY && expected <= 2)) return;
    fprintf(stderr, "pawl-lab: %s on %s", scenario_names[s], service);
    if (s != MANY) fprintf(stderr, ", about %.0f s", expected);
    fputs(isatty(2) && !q->json ? " ...\r" : " ...\n", stderr);
}

static void keep_entry(struct request *q, enum scenario s, const char *service, const struct plan *plan,
                       const struct row *row) {
    if (!q->report) return;
    q->entries = reallocarray(q->entries, (size_t)q->n_entries + 1, sizeof *q->entries);
    if (!q->entries) abort();
    struct bench_entry *e = &q->entries[q->n_entries++];
    *e = (struct bench_entry){.scenario = s, .plan = *plan, .row = *row};
    snprintf(e->service, sizeof e->service, "%s", service);
}

static void measure(struct request *q, enum scenario s, const char *url) {
    static scenario_fn *const runs[SCENARIOS] = {scenario_cycle, scenario_cycle, scenario_turns, scenario_turns,
                                                 scenario_many};
    char service[32], text[160], key[64];
    struct plan plan = q->plan;
    snprintf(service, sizeof service, "%s", url);
    service[strcspn(service, ":")] = 0;
    if (strcmp(url, "file:") == 0) {
        snprintf(text, sizeof text, "file:%s", q->directory);
        url = text;
    }
    snprintf(key, sizeof key, "pawl-lab-%d-%s", (int)getpid(), scenario_names[s]);
    plan.key = key;
    plan.random = q->seed;
    plan.raw = plan.raw && driver_raw(url);
    plan.rest = s == RELAY;
    plan.rounds = s == THOUSAND ? 1000 : 0;
    plan.clients = q->clients ? q->clients : s == RELAY ? 8 : 2;
    if (strcmp(service, "mem") == 0 && (s == HANDOFF || s == RELAY)) { /* each process would have a lock of its own */
        if (!q->json) printf("  %-12s inside one process only: not measured between processes\n", service);
        return;
    }
    progress(q, s, service, &plan);
    struct row *row = calloc(1, sizeof *row);
    if (!row) abort();
    run_apart(runs[s], &plan, url, row);
    if (lab_interrupted) { /* the row says nothing */
        free(row);
        return;
    }
    q->measured |= !row->code;
    if (row->code) q->result = LAB_FAILED;
    else if (row->faults && !q->result) q->result = LAB_FOUND;
    if (!row->code && row_spread(row) > q->spread) q->spread = row_spread(row);
    if (q->json) print_row_json(s, service, &plan, row, &q->noise);
    else print_row(s, service, &plan, row);
    keep_entry(q, s, service, &plan, row);
    free(row);
}

/* How to run it again, with the seed that was drawn. */
static char *command_of(const struct request *q, int argc, char **argv) {
    char *text = NULL;
    size_t size;
    bool seeded = false;
    FILE *to = open_memstream(&text, &size);
    if (!to) abort();
    fputs("pawl-lab", to);
    for (int i = 0; i < argc; i++) {
        struct url *url = NULL; /* without its password */
        bool is_url = strchr(argv[i], ':') && url_parse(argv[i], &url, NULL) == PAWL_OK;
        fprintf(to, " %s", is_url ? url->shown : argv[i]);
        url_free(url);
    }
    for (int i = 0; i < argc; i++) seeded |= strcmp(argv[i], "--seed") == 0 || strncmp(argv[i], "--seed=", 7) == 0;
    if (!seeded) fprintf(to, " --seed %" PRIu64, q->seed);
    fclose(to);
    return text;
}

static void finish(struct request *q) {
    struct noise after = noise_probe();
    char *command = command_of(q, q->argc, q->argv);
    if (!q->json && q->measured) {
        print_machine(&q->noise, &after, q->spread, q->version);
        printf("rerun: %s\n", command);
    }
    const struct bench_page page = {q->entries, q->n_entries, q->noise, after, q->spread, q->version, command};
    if (q->report && bench_report(q->report, &page)) q->result = LAB_FAILED;
    free(command);
    free(q->entries);
}

static int bench(const void *request) {
    struct request q = *(const struct request *)request;
    snprintf(q.directory, sizeof q.directory, "%.100s/locks", getenv("TMPDIR"));
    if (mkdir(q.directory, 0700)) return lab_complain("cannot make %s: %s", q.directory, strerror(errno));
    q.noise = noise_probe();
    for (int i = 0; i < q.n_urls; i++) {
        uint64_t requests;
        if (!*q.version) driver_about(q.urls[i], q.version, sizeof q.version, &requests);
    }
    for (int s = 0; s < SCENARIOS && !lab_interrupted; s++) {
        if (!q.scenarios[s]) continue;
        struct plan shown = q.plan;
        shown.clients = q.clients ? q.clients : s == RELAY ? 8 : 2;
        if (!q.json) print_head((enum scenario)s, &shown);
        for (int i = 0; i < q.n_urls && !lab_interrupted; i++) measure(&q, (enum scenario)s, q.urls[i]);
    }
    if (lab_interrupted) return LAB_INTERRUPTED;
    finish(&q);
    return q.result;
}

int lab_bench(int argc, char **argv) {
    struct request q = {.plan = {.tries = 3, .seconds = 1, .hold_ns = 1000000, .locks = 10000}};
    unsigned char bytes[2] = {0};
    random_bytes(bytes, sizeof bytes);
    q.seed = (uint64_t)(bytes[0] << 8 | bytes[1]);
    int r = parse(argc, argv, &q);
    if (r) return r;
    if (q.report && lab_writable(q.report)) return LAB_FAILED;
    q.argc = argc;
    q.argv = argv;
    return lab_in_folder(bench, &q, false);
}
