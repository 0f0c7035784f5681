/* who.c: pawl who NAME and pawl ls: who holds, who waits. Records are copied out of the library's callback, grouped by
 * lock name, and printed; what is unknown is "-" or null, never a guess. Looking never blocks a lock. */
#include "clock.h"
#include "people.h"
#include "text.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- for people --- */

/* "backup.sh    pid 4711, ana@web1, "nightly backup"" */
static void print_person(const pawl_entry *e, bool known, int width) {
    const char *command = e->command ? e->command : known ? "-" : "another program", *comma = "";
    print_plain(stdout, command);
    int pad = width - (int)strlen(command);
    if (e->pid || e->user || e->host || e->label) printf("%*s ", pad > 0 ? pad : 0, "");
    if (e->pid) printf("pid %" PRId64, e->pid), comma = ", ";
    if (e->user || e->host) {
        fputs(comma, stdout);
        if (e->user) print_plain(stdout, e->user);
        if (e->user && e->host) fputc('@', stdout);
        if (e->host) print_plain(stdout, e->host);
        comma = ", ";
    }
    if (e->label) {
        printf("%s\"", comma);
        print_plain(stdout, e->label);
        fputc('"', stdout);
    }
}

static void print_holder(const pawl_entry *e, int64_t now_ms) {
    char when[40], duration[40];
    fputs("  held by   ", stdout);
    print_person(e, e->pid || e->user || e->host, 14);
    if (e->shared) fputs(" (shared)", stdout);
    fputc('\n', stdout);
    bool left = e->left_ms > 0;
    if (e->since_ms) {
        format_clock(e->since_ms, when, sizeof when);
        format_duration(now_ms - e->since_ms, duration, sizeof duration);
        printf("  since     %-14s %s ago", when, duration);
        if (left) printf(", %.1f s left unless renewed", (double)e->left_ms / 1000);
        fputc('\n', stdout);
    } else if (left) {
        printf("  left      %.1f s unless renewed\n", (double)e->left_ms / 1000);
    }
    if (e->token) printf("  token     %" PRId64 "\n", e->token);
}

static void print_waiter(const pawl_entry *e, bool first, int64_t now_ms) {
    char duration[40];
    printf("  %-8s  %d  ", first ? "waiting" : "", e->place);
    print_person(e, true, 11);
    if (e->shared) fputs(" (shared)", stdout);
    if (e->since_ms) {
        format_duration(now_ms - e->since_ms, duration, sizeof duration);
        printf("  %s", duration);
    }
    fputc('\n', stdout);
}

static void print_lock(const char *name, const char *url, const struct people *people) {
    int64_t now_ms = (clock_wall_us() / 1000);
    bool first = true, held = people->n > 0 && people->list[0].entry.held;
    print_plain(stdout, name);
    if (!held) {
        printf(" is free (%s)\n", url);
    } else {
        int pad = 26 - (int)strlen(name);
        printf("%*s %s\n", pad > 0 ? pad : 0, "", url);
    }
    for (size_t i = 0; i < people->n; i++) {
        const pawl_entry *e = &people->list[i].entry;
        if (e->held) print_holder(e, now_ms);
        else print_waiter(e, first, now_ms), first = false;
    }
}

/* --- pawl ls: columns without blanks in them --- */

enum { COLUMNS = 6 };

/* Text as one word: blanks and what text_plain denies as %XX, which is also how % is written; NULL is "-". */
static void word(const char *text, char *ret, size_t size) {
    size_t used = 0;
    for (uint32_t code; text && *text && used + 13 < size;) { /* 12: four bytes, each as %XX */
        size_t n = text_next(text, &code);
        for (bool plain = text_plain(code) && code != ' ' && code != '%'; n > 0; n--, text++) {
            if (plain) ret[used++] = *text;
            else used += (size_t)snprintf(ret + used, size - used, "%%%02X", (unsigned char)*text);
        }
    }
    ret[used] = 0;
    if (!used) snprintf(ret, size, "-");
}

struct line {
    char *column[COLUMNS]; /* NULL: unknown */
};

/* "backup.sh(4711,ana@web1)+2": the first of three holders. */
static char *holders_word(const pawl_entry *e, size_t holders) {
    char command[400], user[400], host[400], pid[24] = "-", more[24] = "", *text;
    if (!e->command && !e->pid) return NULL;
    word(e->command, command, sizeof command);
    word(e->user, user, sizeof user);
    word(e->host, host, sizeof host);
    if (e->pid) snprintf(pid, sizeof pid, "%" PRId64, e->pid);
    if (holders > 1) snprintf(more, sizeof more, "+%zu", holders - 1);
    return asprintf(&text, "%s(%s,%s@%s)%s", command, pid, user, host, more) < 0 ? NULL : text;
}

static char *number_word(int64_t number) {
    char *text;
    return asprintf(&text, "%" PRId64, number) < 0 ? NULL : text;
}

/* "12.3s" */
static char *seconds_word(int64_t ms) {
    char *text;
    int64_t tenths = ms > 0 ? (ms + 50) / 100 : 0;
    return asprintf(&text, "%" PRId64 ".%" PRId64 "s", tenths / 10, tenths % 10) < 0 ? NULL : text;
}

static void fill_line(struct line *line, const struct person *list, size_t n, int64_t now_ms) {
    const pawl_entry *e = &list[0].entry;
    size_t holders = 0;
    char name[1600];
    for (size_t i = 0; i < n; i++) holders += list[i].entry.held != 0;
    word(e->name, name, sizeof name);
    line->column[0] = strdup(name);
    line->column[5] = number_word((int64_t)(n - holders));
    if (holders == 0) return;
    if (e->token) line->column[1] = number_word(e->token);
    line->column[2] = holders_word(e, holders);
    if (e->since_ms) line->column[3] = seconds_word(now_ms - e->since_ms);
    if (e->left_ms > 0) line->column[4] = seconds_word(e->left_ms);
}

static const char *cell(const struct line *line, int column) {
    return line->column[column] ? line->column[column] : "-";
}

static void print_row(const struct line *line, const int width[COLUMNS]) {
    for (int j = 0; j < COLUMNS - 1; j++) printf("%-*s  ", width[j], cell(line, j));
    puts(cell(line, COLUMNS - 1));
}

/* A pipe gets lines of locks only. */
static void print_lines(const struct line *lines, size_t n) {
    static const struct line head = {{"NAME", "TOKEN", "HELD-BY", "FOR", "LEFT", "WAITING"}};
    int width[COLUMNS] = {0};
    bool with_head = isatty(1) && n > 0;
    for (size_t i = 0; i < n + with_head; i++)
        for (int j = 0; j < COLUMNS; j++) {
            int length = (int)strlen(cell(i < n ? &lines[i] : &head, j));
            if (length > width[j]) width[j] = length;
        }
    if (with_head) print_row(&head, width);
    for (size_t i = 0; i < n; i++) print_row(&lines[i], width);
}

static void free_lines(struct line *lines, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (int j = 0; j < COLUMNS; j++) free(lines[i].column[j]);
    free(lines);
}

/* --- verbs --- */

static const char who_usage[] =
    "pawl who [options] NAME\n"
    "\n"
    "Who holds the lock, since when, with which token, and who waits.\n"
    "\n"
    "      --json        one JSON object\n"
    "  -w, --wait DUR    for the service to answer (5s)\n"
    "  -q                no output: the exit code tells\n"
    "  -u, --url URL   -v   --log text|json\n"
    "\n"
    "Exit: 0 held; 1 free; 119 no locks can be kept there; 120 the service does not answer, or\n"
    "denies it; 125 failed.\n";

int cmd_who(int argc, char **argv) {
    struct common common = COMMON_INIT;
    struct people people = {0};
    int64_t wait_ms = 5000;
    const struct option_row rows[] = {{"w wait timeout", OPT_DURATION, &wait_ms, 1}, {NULL}};
    const struct verb verb = {.name = "who",
                              .usage = who_usage,
                              .rows = rows,
                              .common = COMMON_URL | COMMON_JSON,
                              .mixed = true,
                              .least = 1,
                              .most = 1,
                              .operands = "NAME"};
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    code = people_look(&common, argv[1], wait_ms, &people);
    if (code == 0) {
        char *url = shown_url(common.url);
        if (!messages.quiet && common.json) people_print_json(NULL, argv[1], url, people.list, people.n);
        else if (!messages.quiet) print_lock(argv[1], url, &people);
        code = people.n > 0 && people.list[0].entry.held ? 0 : 1;
        free(url);
    }
    people_free(&people);
    return code;
}

static const char ls_usage[] =
    "pawl ls [options]\n"
    "\n"
    "All locks that are held or waited for, one a line, sorted by name:\n"
    "NAME TOKEN HELD-BY FOR LEFT WAITING. Unknown is -; blanks in a column are %20.\n"
    "\n"
    "      --json        one JSON object a line\n"
    "  -w, --wait DUR    for the service to answer (5s)\n"
    "  -u, --url URL   -v   -q   --log text|json\n"
    "\n"
    "Exit: 0; 119 no locks can be kept there; 120 the service does not answer, or denies it; 125 failed.\n";

static int list_locks(const struct people *people, const char *url, bool json) {
    struct line *lines = json || people->n == 0 ? NULL : calloc(people->n, sizeof *lines);
    size_t n = 0;
    if (!json && people->n && !lines) return complain(EXIT_FAILED, NULL, "out of memory");
    for (size_t i = 0, group; i < people->n; i += group) {
        group = people_of_name(people, i);
        if (json) people_print_json(NULL, people->list[i].entry.name, url, people->list + i, group);
        else fill_line(&lines[n++], people->list + i, group, (clock_wall_us() / 1000));
    }
    if (!json) print_lines(lines, n);
    free_lines(lines, n);
    return 0;
}

int cmd_ls(int argc, char **argv) {
    struct common common = COMMON_INIT;
    struct people people = {0};
    int64_t wait_ms = 5000;
    const struct option_row rows[] = {{"w wait timeout", OPT_DURATION, &wait_ms, 1}, {NULL}};
    const struct verb verb = {.name = "ls",
                              .usage = ls_usage,
                              .rows = rows,
                              .common = COMMON_URL | COMMON_JSON,
                              .mixed = true,
                              .least = 0,
                              .most = 0,
                              .operands = ""};
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    code = people_look(&common, NULL, wait_ms, &people);
    if (code == 0) {
        char *url = shown_url(common.url);
        code = list_locks(&people, url, common.json);
        free(url);
    }
    people_free(&people);
    return code;
}
