#include "bench_print.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

const char *const scenario_names[SCENARIOS] = {"cycle", "1000", "handoff", "relay", "many"};

/* The median over the tries of one field. */
#define OVER_TRIES(row, side, field) median_of(&(row)->side[0].field, (row)->tries)
static double median_of(const double *first, int tries) {
    double v[TRIES_MOST];
    for (int i = 0; i < tries; i++) /* the field of the next try is one struct further on */
        v[i] = *(const double *)(const void *)((const char *)first + (size_t)i * sizeof(struct side));
    return median(v, tries);
}

double row_ratio(const struct row *row) { return row->raw ? median(row->ratio, row->tries) : 0; }

double row_spread(const struct row *row) {
    double v[TRIES_MOST];
    for (int i = 0; i < row->tries; i++) v[i] = row->raw ? row->floor[i].ops_s : row->pawl[i].ops_s;
    return spread_percent(v, row->tries);
}

static uint64_t all_of(const struct row *row) {
    uint64_t n = 0;
    for (int i = 0; i < row->tries; i++) n += row->pawl[i].n;
    return n;
}

/* 1234567 as 1,234,567. */
struct grouped {
    char text[32];
};
static struct grouped grouped(double value) {
    struct grouped g;
    char plain[24];
    int n = snprintf(plain, sizeof plain, "%.0f", value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) g.text[at++] = ',';
        g.text[at++] = plain[i];
    }
    g.text[at] = 0;
    return g;
}

/* Thirty cells; a full bar is the floor itself. */
static void print_ratio(const struct row *row) {
    double ratio = row_ratio(row);
    if (!row->raw) {
        printf("%8s\n", "-");
        return;
    }
    int cells = (int)(ratio * 30 + 0.5);
    if (cells > 30) cells = 30;
    printf("%8.2f   |%.*s%*s|\n", ratio, cells, "##############################", 30 - cells, "");
}

static void print_cycle_head(void) {
    printf("  %-12s %10s %8s %8s %8s %10s %8s %8s %7s\n", "service", "ops/s", "p50 us", "p99 us", "cpu us", "raw ops/s",
           "raw p50", "raw cpu", "ratio");
}

void print_head(enum scenario s, const struct plan *plan) {
    const char *raw = plan->raw ? ", raw floor in the same run" : "";
    double hold = (double)plan->hold_ns / 1e6;
    switch (s) {
    case CYCLE:
        printf("cycle: acquire + release, 1 client, %d tries of %g s%s\n", plan->tries, plan->seconds,
               plan->raw ? ", raw floor interleaved" : "");
        print_cycle_head();
        break;
    case THOUSAND:
        printf("1000: acquire + release 1,000 times, 1 client, %d tries%s\n", plan->tries,
               plan->raw ? ", raw floor interleaved" : "");
        print_cycle_head();
        break;
    case HANDOFF:
        printf("handoff: %d clients, hold %g ms, ask again at once, %d tries of %g s%s\n", plan->clients, hold,
               plan->tries, plan->seconds, raw);
        break;
    case RELAY:
        printf("relay: %d clients, hold %g ms, rest %g ms, %d tries of %g s%s\n", plan->clients, hold,
               hold * plan->clients, plan->tries, plan->seconds, raw);
        break;
    case MANY:
        printf("many: %s locks held by one client, event form, one epoll loop, %d tries%s\n",
               grouped((double)plan->locks).text, plan->tries, raw);
        printf("  %-12s %10s %9s %11s %8s %10s %7s\n", "service", "locks/s", "longest", "bytes/lock", "sockets", "raw",
               "ratio");
        break;
    case SCENARIOS: break;
    }
    if (s == HANDOFF || s == RELAY)
        printf("  %-12s %8s %9s %9s %9s %9s %8s %8s %9s %7s\n", "service", "turns/s", "handed/s", "gap p50", "gap p99",
               "wait p99", "max/min", "req/turn", s == RELAY ? "raw turns" : "raw gap", "ratio");
    fflush(stdout);
}

static void print_turns(enum scenario s, const char *service, const struct row *row) {
    const struct side *last = &row->pawl[row->tries - 1];
    char fair[32], requests[16] = "-", raw[32] = "-";
    snprintf(fair, sizeof fair, "%" PRIu64 "/%" PRIu64, last->grants_max, last->grants_min);
    if (last->requests > 0) snprintf(requests, sizeof requests, "%.1f", OVER_TRIES(row, pawl, requests));
    if (row->raw && s == RELAY) snprintf(raw, sizeof raw, "%.0f", OVER_TRIES(row, floor, ops_s));
    if (row->raw && s == HANDOFF) snprintf(raw, sizeof raw, "%.0f us", OVER_TRIES(row, floor, p50_us));
    printf("  %-12s %8.0f %9.0f %6.0f us %6.0f us %6.1f ms %8s %8s %9s", service, OVER_TRIES(row, pawl, ops_s),
           OVER_TRIES(row, pawl, handoffs_s), OVER_TRIES(row, pawl, p50_us), OVER_TRIES(row, pawl, p99_us),
           OVER_TRIES(row, pawl, wait_p99_us) / 1e3, fair, requests, raw);
    print_ratio(row);
}

void print_row(enum scenario s, const char *service, const struct plan *plan, const struct row *row) {
    (void)plan;
    char raw_ops[32] = "-", raw_p50[16] = "-", raw_cpu[16] = "-";
    if (row->code) {
        printf("  %-12s failed: %s\n", service, row->text);
        return;
    }
    if (row->raw) {
        snprintf(raw_ops, sizeof raw_ops, "%s", grouped(OVER_TRIES(row, floor, ops_s)).text);
        snprintf(raw_p50, sizeof raw_p50, "%.1f", OVER_TRIES(row, floor, p50_us));
        snprintf(raw_cpu, sizeof raw_cpu, "%.1f", OVER_TRIES(row, floor, cpu_us));
    }
    if (s == CYCLE || s == THOUSAND) {
        printf("  %-12s %10s %8.1f %8.1f %8.1f %10s %8s %8s", service, grouped(OVER_TRIES(row, pawl, ops_s)).text,
               OVER_TRIES(row, pawl, p50_us), OVER_TRIES(row, pawl, p99_us), OVER_TRIES(row, pawl, cpu_us), raw_ops,
               raw_p50, raw_cpu);
        print_ratio(row);
    } else if (s == MANY) {
        printf("  %-12s %10s %6.2f ms %11s %8d %10s", service, grouped(OVER_TRIES(row, pawl, ops_s)).text, row->step_ms,
               grouped((double)row->bytes_per_lock).text, row->sockets, raw_ops);
        print_ratio(row);
    } else {
        print_turns(s, service, row);
    }
    if (row->faults) printf("  %-12s WRONG: %" PRIu64 " faults, e.g. %s\n", service, row->faults, row->text);
    fflush(stdout);
}

static json_t *tries_json(const struct row *row) {
    json_t *all = json_array();
    for (int i = 0; i < row->tries; i++) {
        json_t *t = json_pack("{s:f,s:f,s:f}", "ops_s", row->pawl[i].ops_s, "p50_us", row->pawl[i].p50_us, "p99_us",
                              row->pawl[i].p99_us);
        if (row->raw)
            json_object_update_new(t, json_pack("{s:f,s:f,s:f}", "raw_ops_s", row->floor[i].ops_s, "raw_p50_us",
                                                row->floor[i].p50_us, "ratio", row->ratio[i]));
        json_array_append_new(all, t);
    }
    return all;
}

void print_row_json(enum scenario s, const char *service, const struct plan *plan, const struct row *row,
                    const struct noise *noise) {
    json_t *o =
        json_pack("{s:s,s:s,s:I}", "backend", service, "scenario", scenario_names[s], "n", (json_int_t)all_of(row));
    if (row->code) {
        json_object_update_new(o, json_pack("{s:i,s:s}", "code", row->code, "error", row->text));
    } else {
        json_object_update_new(o, json_pack("{s:f,s:f,s:f}", "ops_s", OVER_TRIES(row, pawl, ops_s), "p50_us",
                                            OVER_TRIES(row, pawl, p50_us), "p99_us", OVER_TRIES(row, pawl, p99_us)));
        if (row->raw)
            json_object_update_new(o, json_pack("{s:f,s:f,s:f}", "raw_ops_s", OVER_TRIES(row, floor, ops_s),
                                                "raw_p50_us", OVER_TRIES(row, floor, p50_us), "ratio", row_ratio(row)));
        if (s == CYCLE || s == THOUSAND) {
            json_object_set_new(o, "cpu_us", json_real(OVER_TRIES(row, pawl, cpu_us)));
            if (row->raw) json_object_set_new(o, "raw_cpu_us", json_real(OVER_TRIES(row, floor, cpu_us)));
        }
        if (s == HANDOFF || s == RELAY)
            json_object_update_new(
                o, json_pack("{s:i,s:f,s:f,s:f,s:I,s:I,s:I}", "clients", plan->clients, "handoffs_s",
                             OVER_TRIES(row, pawl, handoffs_s), "wait_p99_us", OVER_TRIES(row, pawl, wait_p99_us),
                             "requests_per_turn", OVER_TRIES(row, pawl, requests), "grants_max",
                             (json_int_t)row->pawl[row->tries - 1].grants_max, "grants_min",
                             (json_int_t)row->pawl[row->tries - 1].grants_min, "faults", (json_int_t)row->faults));
        if (s == MANY)
            json_object_update_new(o, json_pack("{s:I,s:I,s:i,s:f}", "locks", (json_int_t)row->locks, "bytes_per_lock",
                                                (json_int_t)row->bytes_per_lock, "sockets", row->sockets,
                                                "longest_step_ms", row->step_ms));
        json_object_set_new(o, "tries", tries_json(row));
    }
    json_object_update_new(o, json_pack("{s:f,s:f,s:f,s:f}", "spread_percent", row_spread(row), "ours_percent",
                                        noise->ours_percent, "stall_ms", noise->stall_ms, "load", noise->load));
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    fflush(stdout);
    json_decref(o);
}

void print_machine(const struct noise *before, const struct noise *after, double spread, const char *version) {
    struct utsname name;
    uname(&name);
    printf("machine: %ld cores, Linux %s%s%s, loopback; spread between tries up to %.0f %%\n",
           sysconf(_SC_NPROCESSORS_ONLN), name.release, *version ? ", " : "", version, spread);
    printf("noise: %.0f %% of the cores were ours before, %.0f %% after; longest stall %.1f and %.1f ms; load %.1f and "
           "%.1f\n",
           before->ours_percent, after->ours_percent, before->stall_ms, after->stall_ms, before->load, after->load);
}
