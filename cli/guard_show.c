/* guard_show.c: pawl guard get and audit: what a record says. */
#include "guard.h"
#include "options.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Could a JSON string hold it unchanged? */
static bool is_text(const unsigned char *at, size_t length) {
    for (const unsigned char *end = at + length; at < end;) {
        int more = *at < 0x80                  ? 0
                   : *at >= 0xC2 && *at < 0xE0 ? 1
                   : *at >= 0xE0 && *at < 0xF0 ? 2
                   : *at < 0xF5 && *at >= 0xF0 ? 3
                                               : -1;
        if (*at == 0 || more < 0 || end - at <= more) return false;
        if ((*at == 0xE0 && at[1] < 0xA0) || (*at == 0xED && at[1] > 0x9F) || (*at == 0xF0 && at[1] < 0x90) ||
            (*at == 0xF4 && at[1] > 0x8F))
            return false;
        for (at++; more > 0; more--, at++)
            if ((*at & 0xC0) != 0x80) return false;
    }
    return true;
}

static void print_base64(const unsigned char *data, size_t length) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < length; i += 3) {
        unsigned n = (unsigned)data[i] << 16;
        if (i + 1 < length) n |= (unsigned)data[i + 1] << 8;
        if (i + 2 < length) n |= data[i + 2];
        putchar(digits[n >> 18]);
        putchar(digits[n >> 12 & 63]);
        putchar(i + 1 < length ? digits[n >> 6 & 63] : '=');
        putchar(i + 2 < length ? digits[n & 63] : '=');
    }
}

static void print_time(const char *key, int64_t at_ms) {
    char text[40];
    format_time(at_ms, text, sizeof text);
    printf("\"%s\":\"%s\"", key, text);
}

static void print_reset_json(const pawl_guard_reset_entry *reset) {
    putchar('{');
    print_time("at", reset->at_ms);
    printf(",\"from\":\"%" PRId64 "\",\"to\":\"%" PRId64 "\",\"by\":", reset->from, reset->to);
    print_json_string(stdout, reset->by);
    fputs(",\"why\":", stdout);
    print_json_string(stdout, reset->why);
    putchar('}');
}

static void print_record_json(const pawl_guard_record *record) {
    fputs("{\"resource\":", stdout);
    print_json_string(stdout, record->resource);
    fputs(",\"lock\":", stdout);
    print_json_string(stdout, record->lock);
    printf(",\"token\":\"%" PRId64 "\",\"seq\":%" PRId64 ",\"rule\":\"%s\",\"by\":", record->token, record->seq,
           pawl_guard_rule_name(record->rule));
    print_json_string(stdout, record->by);
    fputs(",\"service\":", stdout);
    if (*record->service) print_json_string(stdout, record->service);
    else fputs("null", stdout);
    putchar(',');
    print_time("at", record->at_ms);
    printf(",\"written\":%s,\"length\":%zu", record->written ? "true" : "false", record->length);
    if (!record->written) fputs(",\"data\":null", stdout);
    else if (is_text(record->data, record->length)) {
        fputs(",\"data\":", stdout);
        print_json_string(stdout, record->data);
    } else {
        fputs(",\"data_base64\":\"", stdout);
        print_base64(record->data, record->length);
        putchar('"');
    }
    fputs(",\"resets\":[", stdout);
    for (size_t i = 0; i < record->n_resets; i++) {
        if (i) putchar(',');
        print_reset_json(&record->resets[i]);
    }
    puts("]}");
}

/* Operands URL RESOURCE, --json. -1 with the record, or the exit code. */
static int fetch(const char *name, const char *usage, int argc, char **argv, bool *ret_json, pawl_guard_record **ret) {
    const struct verb verb = {.name = name,
                              .usage = usage,
                              .common = COMMON_JSON,
                              .mixed = true,
                              .least = 2,
                              .most = 2,
                              .operands = "URL RESOURCE"};
    struct common common = COMMON_INIT;
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard *guard;
    *ret_json = common.json;
    if ((code = open_guard(argv[1], argv[2], &guard))) return code;
    code = pawl_guard_get(guard, argv[2], ret, &error);
    pawl_guard_close(guard);
    if (code == PAWL_GNORECORD) return complain(1, argv[2], "%s", error.text);
    return code ? complain_error(argv[2], &error) : -1;
}

#define SHOW_EXIT "Exit: 0; 1 no such record; 119 not a guard's file; 120 no access; 125 failed.\n"

int cmd_guard_get(int argc, char **argv) {
    static const char usage[] = "pawl guard get URL RESOURCE [--json]\n\n"
                                "The data of RESOURCE as it was written; with --json the whole record.\n\n" SHOW_EXIT;
    pawl_guard_record *record;
    bool json;
    int code = fetch("guard get", usage, argc, argv, &json, &record);
    if (code >= 0) return code;
    if (json) print_record_json(record);
    else fwrite(record->data, 1, record->length, stdout);
    if (!json && !record->written) advise(argv[2], "sealed with token %" PRId64 ", never written", record->token);
    pawl_guard_free(record);
    return 0;
}

static void print_reset(const pawl_guard_reset_entry *reset) {
    char when[40];
    format_time(reset->at_ms, when, sizeof when);
    printf("%s  %" PRId64 " -> %" PRId64 "  ", when, reset->from, reset->to);
    print_plain(stdout, reset->by);
    fputs(": ", stdout);
    print_plain(stdout, reset->why);
}

int cmd_guard_audit(int argc, char **argv) {
    static const char usage[] = "pawl guard audit URL RESOURCE [--json]\n\n"
                                "The resets of RESOURCE, oldest first: when, from, to, by whom, why.\n\n" SHOW_EXIT;
    pawl_guard_record *record;
    bool json;
    int code = fetch("guard audit", usage, argc, argv, &json, &record);
    if (code >= 0) return code;
    for (size_t i = 0; i < record->n_resets; i++) {
        if (json) print_reset_json(&record->resets[i]);
        else print_reset(&record->resets[i]);
        putchar('\n');
    }
    pawl_guard_free(record);
    return 0;
}
