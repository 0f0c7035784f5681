/* follow.c: pawl watch NAME: a line for each change of who holds a lock and who waits. The services have no common way
 * to be told of that, so it asks again and again, which blocks nobody and costs a question each time. */
#include "clock.h"
#include "people.h"
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "pawl watch [options] NAME\n"
    "\n"
    "A line for each change of who holds the lock and who waits, until it is interrupted.\n"
    "\n"
    "      --every DUR   how often to ask (500ms)\n"
    "      --json        the object of pawl who --json, with the time; unknown: held is null\n"
    "  -w, --wait DUR    for each answer of the service (5s)\n"
    "  -u, --url URL   -v   -q   --log text|json\n"
    "\n"
    "Exit: 119 no locks can be kept there; 120 the service denies it; 125 failed; 128+N ended by signal N. While the\n"
    "service does not answer the line says so.\n";

struct view {
    const struct common *common;
    const char *name, *url;
    bool known;
    struct people people;
    char *shown; /* what the last line showed */
};

static void describe(const pawl_entry *e, FILE *file) {
    if (!e->command && !e->pid) {
        fputs("another program", file);
        return;
    }
    print_plain(file, e->command ? e->command : "-");
    fprintf(file, " (pid %" PRId64, e->pid);
    if (e->user || e->host) fputs(", ", file);
    if (e->user) print_plain(file, e->user);
    if (e->user && e->host) fputc('@', file);
    if (e->host) print_plain(file, e->host);
    if (e->label) {
        fputs(", \"", file);
        print_plain(file, e->label);
        fputc('"', file);
    }
    fputc(')', file);
    if (e->token) fprintf(file, ", token %" PRId64, e->token);
}

/* "held by backup.sh (pid 4711, root@db1), token 17..; waiting: sh (pid 5, ..)": whatever is in it is a change. */
static char *describe_all(const struct view *view) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (!file) return NULL;
    const char *before = "held by ";
    if (!view->known) fputs("unknown: the service does not answer", file);
    else if (view->people.n == 0 || !view->people.list[0].entry.held) fputs("free", file);
    for (size_t i = 0; view->known && i < view->people.n; i++) {
        const pawl_entry *e = &view->people.list[i].entry;
        if (!e->held && (i == 0 || view->people.list[i - 1].entry.held)) before = "; waiting: ";
        fputs(before, file);
        describe(e, file);
        before = ", ";
    }
    if (fclose(file) == 0) return text;
    free(text);
    return NULL;
}

static void print_unknown(const struct view *view, const char *when) {
    printf("{\"time\":\"%s\",\"name\":", when);
    print_json_string(stdout, view->name);
    fputs(",\"url\":", stdout);
    print_json_string(stdout, view->url);
    puts(",\"held\":null,\"holders\":[],\"waiting\":[]}");
}

/* false: stdout cannot be written. */
static bool print(const struct view *view) {
    char when[40];
    int64_t now_ms = clock_wall_us() / 1000;
    if (!view->common->json) {
        format_clock(now_ms, when, sizeof when);
        printf("%s  ", when);
        print_plain(stdout, view->name);
        printf(" %s\n", view->shown);
        return flush_stdout(view->name);
    }
    format_time(now_ms, when, sizeof when);
    if (view->known) people_print_json(when, view->name, view->url, view->people.list, view->people.n);
    else print_unknown(view, when);
    return flush_stdout(view->name);
}

static int follow(struct view *view, pawl_client *client, int64_t every_ms, int64_t wait_ms) {
    for (;;) {
        pawl_error error = PAWL_ERROR_INIT;
        int code = people_ask(client, view->name, wait_ms, &view->people, &error);
        if (code && code != PAWL_EUNREACHABLE) return complain_error(view->name, &error);
        if (code && view->known) complain_error(view->name, &error);
        view->known = !code;
        char *shown = describe_all(view);
        if (!shown) return complain(EXIT_FAILED, view->name, "out of memory");
        bool changed = !view->shown || strcmp(shown, view->shown) != 0;
        free(view->shown);
        view->shown = shown;
        if (changed && !print(view)) return EXIT_FAILED;
        people_free(&view->people);
        view->people = (struct people){0};
        struct pollfd reader = {.fd = STDOUT_FILENO}; /* a pipe that nobody reads any more tells it by itself */
        if (poll(&reader, 1, (int)every_ms) > 0) {
            raise(SIGPIPE); /* as the next line would */
            return complain(EXIT_FAILED, view->name, "nobody reads stdout any more");
        }
    }
}

int cmd_watch(int argc, char **argv) {
    struct common common = COMMON_INIT;
    int64_t wait_ms = 5000, every_ms = 500;
    const struct option_row rows[] = {
        {"every", OPT_DURATION, &every_ms, 10, 3600000}, {"w wait timeout", OPT_DURATION, &wait_ms, 1}, {NULL}};
    const struct verb verb = {.name = "watch",
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
    if ((code = open_client(&common, argv[1], &client))) return code;
    char *url = shown_url(common.url);
    struct view view = {.common = &common, .name = argv[1], .url = url, .known = true};
    code = follow(&view, client, every_ms, wait_ms);
    people_free(&view.people);
    free(view.shown);
    free(url);
    pawl_close(client);
    return code;
}
