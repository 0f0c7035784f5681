/* break.c: pawl break NAME: takes a stuck lock away from whoever holds it. */
#include "doctor.h"
#include "people.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "pawl break [options] NAME\n"
    "\n"
    "Takes the lock away from whoever holds it: nothing that he still asks of it succeeds, and the next token is\n"
    "higher. A lock with a ttl stays taken, in your name, for what was left of his, so that he has stopped before\n"
    "another begins. PostgreSQL: his session is ended. etcd: free at once; he is told at once, but before his first\n"
    "renewal (a third of the ttl) only by that. file: and redlock: cannot: only the end of the holder frees it\n"
    "(redlock: within its ttl).\n"
    "\n"
    "      --now         free at once: until he finds out, only a guard keeps him from doing harm\n"
    "      --label TEXT  why; redis: shown by pawl who, and to the one who lost it\n"
    "      --json        what was done, as JSON\n"
    "  -w, --wait DUR    for the service to answer (5s)\n"
    "  -u, --url URL   -v   -q   --log text|json\n"
    "\n"
    "Exit: 0 taken away; 1 it was free; 119 not to be had here; 120 the service does not answer, or denies it;\n"
    "123, 124 still held (PostgreSQL: a prepared transaction, a session that does not end); 125 failed.\n";

/* Of etcd what is taken is free before its holder may know. NULL: nothing to say. */
static const char *hint(const char *scheme, const pawl_broken *broken) {
    if (!broken->was_held || broken->free_in_ms || strcmp(scheme, "etcd") != 0) return NULL;
    return "its holder is told at once, or at its first renewal if it has had the lock for less than a third of its "
           "ttl; until it is told, only a guard keeps it from doing harm";
}

static void print_json(const char *name, const char *url, const pawl_broken *broken, const char *hint) {
    fputs("{\"name\":", stdout);
    print_json_string(stdout, name);
    fputs(",\"url\":", stdout);
    print_json_string(stdout, url);
    printf(",\"broken\":%s,\"holder\":", broken->was_held ? "true" : "false");
    print_json_string(stdout, broken->was_held ? broken->holder : NULL);
    if (broken->token) printf(",\"token\":\"%" PRId64 "\"", broken->token);
    else fputs(",\"token\":null", stdout);
    printf(",\"free_in_ms\":%" PRId64 ",\"hint\":", broken->free_in_ms);
    print_json_string(stdout, hint);
    puts("}");
}

static void print_text(const char *name, const pawl_broken *broken, const char *hint) {
    char duration[40], token[40] = "";
    print_plain(stdout, name);
    if (!broken->was_held) {
        puts(" is free");
        return;
    }
    format_duration(broken->free_in_ms, duration, sizeof duration);
    if (broken->token) snprintf(token, sizeof token, ", token %" PRId64, broken->token);
    fputs(": taken from ", stdout);
    print_plain(stdout, broken->holder);
    if (broken->free_in_ms) printf("%s; free in %s, when that has stopped\n", token, duration);
    else printf("%s; free now%s%s\n", token, hint ? "; " : "", hint ? hint : "");
}

/* Where nobody can be made to let go: which process to end. */
static void name_processes(pawl_client *client, const char *name, int64_t wait_ms) {
    struct people people = {0};
    pawl_error error = PAWL_ERROR_INIT;
    if (people_ask(client, name, wait_ms, &people, &error) == PAWL_OK)
        for (size_t i = 0; i < people.n; i++) {
            const pawl_entry *e = &people.list[i].entry;
            if (e->held && e->pid)
                complain(0, name, "held by %s: kill %" PRId64 "%s%s", e->command ? e->command : "a program", e->pid,
                         e->host ? " on " : "", e->host ? e->host : "");
        }
    people_free(&people);
}

int cmd_break(int argc, char **argv) {
    struct common common = COMMON_INIT;
    bool now = false;
    const char *label = "kept after a break"; /* what pawl who shows beside our name, which is the holder's now */
    int64_t wait_ms = 5000;
    const struct option_row rows[] = {
        {"now", OPT_ON, &now}, {"label", OPT_TEXT, &label}, {"w wait timeout", OPT_DURATION, &wait_ms, 1}, {NULL}};
    const struct verb verb = {.name = "break",
                              .usage = usage,
                              .rows = rows,
                              .common = COMMON_URL | COMMON_JSON,
                              .mixed = true,
                              .least = 1,
                              .most = 1,
                              .operands = "NAME"};
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    pawl_client *client;
    pawl_broken broken = PAWL_BROKEN_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    const char *name = argv[1];
    common.label = label;
    if ((code = open_client(&common, name, &client))) return code;
    if (pawl_break(client, name, now ? PAWL_BREAK_AT_ONCE : 0, wait_ms, &broken, &error)) {
        code = complain_error(name, &error);
        if (error.code == PAWL_EUNSUPPORTED) name_processes(client, name, wait_ms);
    } else {
        char *url = shown_url(common.url);
        const char *said = hint(setup_scheme(common.url), &broken);
        if (!messages.quiet && common.json) print_json(name, url, &broken, said);
        else if (!messages.quiet) print_text(name, &broken, said);
        code = broken.was_held ? 0 : 1;
        free(url);
    }
    pawl_close(client);
    return code;
}
