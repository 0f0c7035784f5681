/* doctor.c: pawl doctor URL: is this set-up good for locks, and for what? The verdict first, then what is wrong, with
 * the fix, then what is well in one line, and what could not be seen. */
#include "clock.h"
#include "options.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "pawl doctor [options] [URL]\n"
    "\n"
    "Is this set-up good for locks, and for what? Takes and releases a lock of its own, looks at what the service "
    "says\n"
    "of itself, and prints each finding with an id, what was seen, why it matters, and what to do.\n"
    "\n"
    "      --for correctness  what may grant a lock twice is unsafe, as long as no guard is named\n"
    "      --json             one JSON object for each finding, the good ones too\n"
    "  -t, --ttl DUR          the ttl that the locks will have (15s)\n"
    "  -w, --wait DUR         for the service to answer (10s)\n"
    "  -u, --url URL   -v   -q   --label TEXT   --log text|json\n"
    "\n"
    "Exit: 0 fine; 1 warnings; 2 unsafe; 119 refused; 120 the service does not answer, or denies it; 125 failed.\n";

static const char *const levels[] = {"ok", "warn", "UNSAFE", "unseen"};
static const char *const level_words[] = {"ok", "warning", "unsafe", "unseen"};

struct finding {
    int level;
    char *id, *about, *seen, *why, *fix;
};
struct findings {
    struct finding list[64];
    int n, worst; /* worst: PAWL_LEVEL_FINE, WARNING or UNSAFE */
};

static int collect(const pawl_finding *f, void *data) {
    struct findings *all = data;
    if (all->n == sizeof all->list / sizeof *all->list) return 1;
    all->list[all->n++] =
        (struct finding){f->level, strdup(f->id), strdup(f->about), strdup(f->seen), strdup(f->why), strdup(f->fix)};
    if (f->level != PAWL_LEVEL_UNSEEN && f->level > all->worst) all->worst = f->level;
    return 0;
}

static void free_findings(struct findings *all) {
    for (int i = 0; i < all->n; i++) {
        struct finding *f = &all->list[i];
        char *const texts[] = {f->id, f->about, f->seen, f->why, f->fix};
        for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) free(texts[j]);
    }
}

static void print_json(const struct finding *f) {
    const char *const keys[] = {"id", "level", "about", "seen", "why", "fix"};
    const char *const values[] = {f->id, level_words[f->level], f->about, f->seen, f->why, f->fix};
    for (int i = 0; i < 6; i++) {
        printf("%c\"%s\":", i ? ',' : '{', keys[i]);
        print_json_string(stdout, values[i] && *values[i] ? values[i] : NULL);
    }
    puts("}");
}

static void print_line(const char *head, const char *text) {
    fputs(head, stdout);
    print_plain(stdout, text ? text : "");
    putchar('\n');
}

static void print_finding(const struct finding *f) {
    printf("%-6s  %s  %s: ", levels[f->level], f->id, f->about);
    print_line("", f->seen);
    if (f->why && *f->why) print_line("             why: ", f->why);
    if (f->fix && *f->fix) print_line("             fix: ", f->fix);
}

static void print_all(const struct findings *all, const char *url, bool fences) {
    static const int order[] = {PAWL_LEVEL_UNSAFE, PAWL_LEVEL_WARNING};
    bool usable = all->worst < PAWL_LEVEL_UNSAFE;
    print_line("", url);
    printf("good for   efficiency: %s        correctness: %s\n\n", usable ? "yes" : "NO",
           usable && fences ? "yes"
           : usable         ? "with a guard only: a holder that is paused or cut off may not know that it lost the lock"
                            : "NO");
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < all->n; j++)
            if (all->list[j].level == order[i]) print_finding(&all->list[j]);
    const char *before = "ok      ";
    for (int j = 0; j < all->n; j++) {
        if (all->list[j].level != PAWL_LEVEL_FINE) continue;
        printf("%s%s %s", before, all->list[j].id, all->list[j].about);
        before = "  ";
    }
    putchar('\n');
    for (int j = 0; j < all->n; j++)
        if (all->list[j].level == PAWL_LEVEL_UNSEEN) print_finding(&all->list[j]);
}

/* true: one holder even if it is paused or cut off. */
static bool fences_alone(pawl_client *client) {
    char json[2048];
    return pawl_guarantees(client, json, sizeof json, NULL) == PAWL_OK &&
           strstr(json, "\"one_holder_if_paused\":true") != NULL;
}

static int report(struct findings *all, const struct common *common, bool fences) {
    char *url = shown_url(common->url);
    if (common->for_correctness && !fences) {
        const pawl_finding f = {
            sizeof f,
            PAWL_LEVEL_UNSAFE,
            "C05",
            "correctness",
            "the service may grant a lock twice",
            "a holder that is paused or cut off for longer than the ttl may not know that it lost the lock",
            "a guard at the resource: pawl run --seal, pawl guard; or postgresql:, file:"};
        collect(&f, all);
    }
    for (int i = 0; common->json && i < all->n; i++) print_json(&all->list[i]);
    if (!common->json && !messages.quiet) print_all(all, url ? url : "?", fences);
    free(url);
    return all->worst;
}

int cmd_doctor(int argc, char **argv) {
    struct common common = COMMON_INIT;
    int64_t wait_ms = 10000;
    const struct option_row rows[] = {{"w wait timeout", OPT_DURATION, &wait_ms, 1}, {NULL}};
    const struct verb verb = {.name = "doctor",
                              .usage = usage,
                              .rows = rows,
                              .common = COMMON_URL | COMMON_LOCK | COMMON_JSON,
                              .mixed = true,
                              .least = 0,
                              .most = 1,
                              .operands = "URL",
                              .url_operand = 1};
    struct findings all = {.n = 0};
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    pawl_options options;
    common_options(&common, &options);
    options.for_correctness = 0; /* that is what we are to find out */
    if ((code = open_client_with(&common, &options, NULL, &client))) return code;
    if (pawl_doctor(client, wait_ms, collect, &all, &error)) code = complain_error(NULL, &error);
    else code = report(&all, &common, fences_alone(client));
    free_findings(&all);
    pawl_close(client);
    return code;
}
