/* check.c: pawl-lab check FILE: reads a history and prints the verdict, for people or as one JSON object. */
#include "history.h"
#include "lab.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: pawl-lab check [options] FILE        FILE - is stdin\n"
    "  --json            one JSON object on stdout\n"
    "  --max-ratio R     starved: one worker of a lock got R times as many grants as another\n"
    "  --max-wait DUR    starved: a wait longer than DUR\n"
    "  --min-grants N    starved: a worker that asked got a lock less than N times\n"
    "FILE has one JSON object a line: who, what (hold wait act write), lock, token, start, end, outcome (released "
    "lost\n"
    "killed busy timeout cancelled failed done accepted refused), asked, shared; times in ns on one clock.\n"
    "exit: 0 nothing wrong, 1 something is, 125 nothing can be said (usage, unreadable or empty history)\n";

static json_t *verdict_json(const struct history_verdict *v) {
    json_t *faults = json_object(), *examples = json_array();
    for (int f = 0; f < HISTORY_FAULTS; f++) {
        const char *name = history_fault_name((enum history_fault)f);
        json_object_set_new(faults, name, json_integer((json_int_t)v->faults[f]));
        for (uint64_t i = 0; i < v->faults[f] && i < HISTORY_EXAMPLES; i++)
            json_array_append_new(examples, json_pack("{s:s,s:s}", "fault", name, "text", v->examples[f][i]));
    }
    json_t *o =
        json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "verdict", v->all_faults ? "violated" : "ok", "events",
                  (json_int_t)v->events, "holds", (json_int_t)v->holds, "waits", (json_int_t)v->waits, "acts",
                  (json_int_t)v->acts, "writes", (json_int_t)v->writes, "locks", (json_int_t)v->locks, "workers",
                  (json_int_t)v->workers, "handovers", (json_int_t)v->handovers, "lost", (json_int_t)v->lost);
    json_object_set_new(o, "grants_max", json_integer((json_int_t)v->grants_max));
    json_object_set_new(o, "grants_min", json_integer((json_int_t)v->grants_min));
    json_object_set_new(o, "wait_max_ms", json_real((double)v->wait_max_ns / 1e6));
    json_object_set_new(o, "faults", faults);
    json_object_set_new(o, "examples", examples);
    return o;
}

static void print_people(const struct history_verdict *v, const char *name) {
    printf("%s: %" PRIu64 " holds (%" PRIu64 " lost), %" PRIu64 " given up, %" PRIu64 " acts, %" PRIu64
           " writes; %" PRIu64 " locks, %" PRIu64 " workers\n",
           name, v->holds, v->lost, v->waits, v->acts, v->writes, v->locks, v->workers);
    printf("  hand-overs %" PRIu64 ", grants max/min %" PRIu64 "/%" PRIu64 ", longest wait %.3f s\n", v->handovers,
           v->grants_max, v->grants_min, (double)v->wait_max_ns / 1e9);
    for (int f = 0; f < HISTORY_FAULTS; f++) {
        if (!v->faults[f]) continue;
        printf("  %s: %" PRIu64 "\n", history_fault_name((enum history_fault)f), v->faults[f]);
        for (uint64_t i = 0; i < v->faults[f] && i < HISTORY_EXAMPLES; i++) printf("    %s\n", v->examples[f][i]);
    }
    puts(v->all_faults ? "  violated" : "  ok");
}

struct options {
    struct history_limits limits;
    bool json;
    const char *file;
};

static int parse(int argc, char **argv, struct options *o) {
    enum { RATIO = 256, WAIT, GRANTS, JSON, HELP };
    static const struct option longs[] = {{"max-ratio", 1, NULL, RATIO},   {"max-wait", 1, NULL, WAIT},
                                          {"min-grants", 1, NULL, GRANTS}, {"json", 0, NULL, JSON},
                                          {"help", 0, NULL, HELP},         {0}};
    int c;
    int64_t number;
    char *end;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longs, NULL)) != -1) switch (c) {
        case RATIO:
            o->limits.max_ratio = strtod(optarg, &end);
            if (*end || !(o->limits.max_ratio >= 1))
                return lab_complain("--max-ratio wants a number from 1 on, not %s", optarg);
            break;
        case WAIT:
            if (!lab_duration(optarg, &o->limits.max_wait_ns) || !o->limits.max_wait_ns)
                return lab_complain("--max-wait wants a duration like 250ms, not %s", optarg);
            break;
        case GRANTS:
            if (!lab_number(optarg, 1, INT64_MAX, &number))
                return lab_complain("--min-grants wants a number, not %s", optarg);
            o->limits.min_grants = (uint64_t)number;
            break;
        case JSON: o->json = true; break;
        case 'h':
        case HELP: fputs(help, stdout); exit(LAB_OK);
        case ':': return lab_complain("%s wants a value", argv[optind - 1]);
        default: return lab_complain("unknown option: %s", argv[optind - 1]);
        }
    if (optind + 1 != argc) return lab_complain("check wants exactly one FILE\n%s", help);
    o->file = argv[optind];
    return LAB_OK;
}

int lab_check(int argc, char **argv) {
    struct options o = {0};
    int r = parse(argc, argv, &o);
    if (r) return r;
    bool standard = strcmp(o.file, "-") == 0;
    FILE *file = standard ? stdin : fopen(o.file, "re");
    if (!file) return lab_complain("cannot open %s: %s", o.file, strerror(errno));

    struct history *h = history_new();
    pawl_error error = PAWL_ERROR_INIT;
    struct history_verdict v;
    r = history_read(h, file, standard ? "stdin" : o.file, &error);
    if (!standard) fclose(file);
    if (r) {
        history_free(h);
        return lab_complain("%s", error.text);
    }
    history_check(h, &o.limits, &v);
    history_free(h);
    if (!v.events) return lab_complain("%s: an empty history proves nothing", o.file);
    if (o.json) {
        json_t *verdict = verdict_json(&v);
        json_dumpf(verdict, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(verdict);
    } else {
        print_people(&v, standard ? "stdin" : o.file);
    }
    return v.all_faults ? LAB_FOUND : LAB_OK;
}
