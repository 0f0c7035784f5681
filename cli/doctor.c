/* doctor.c: pawl doctor URL: is this set-up good for locks, and for what? The verdict first, then what is wrong, with
 * the fix, then what is well in one line, and what could not be seen. */
#include "doctor.h"
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
    "      --guarantees       what is promised here, and what is not, given what was found\n"
    "      --acl              only the smallest rights, as lines for the service's own tools; asks nobody\n"
    "      --json             one JSON object for each finding, the good ones too; or promise; or line\n"
    "  -t, --ttl DUR          the ttl that the locks will have (15s)\n"
    "  -w, --wait DUR         for the service to answer (10s)\n"
    "  -u, --url URL   -v   -q   --label TEXT   --log text|json\n"
    "\n"
    "Exit: 0 fine; 1 warnings; 2 unsafe; 119 refused; 120 the service does not answer, or denies it; 125 failed.\n";

static const char *const levels[] = {"ok", "warn", "UNSAFE", "unseen"};
static const char *const level_words[] = {"ok", "warning", "unsafe", "unseen"};

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

/* What is no verdict: printed below the findings, whole. */
static bool is_note(const struct finding *f) { return strcmp(f->id, "C06") == 0 || strcmp(f->id, "C07") == 0; }

static void print_level(const struct findings *all, int level) {
    for (int i = 0; i < all->n; i++)
        if (all->list[i].level == level) print_finding(&all->list[i]);
}

static void print_fine(const struct findings *all) {
    const char *before = "ok      ";
    for (int i = 0; i < all->n; i++) {
        const struct finding *f = &all->list[i];
        if (f->level != PAWL_LEVEL_FINE || is_note(f)) continue;
        printf("%s%s %s", before, f->id, f->about);
        before = "  ";
    }
    putchar('\n');
}

static void print_note(const struct finding *f) {
    printf("%-8s", f->about);
    for (const char *at = f->seen; *at; at++)
        if (*at == '\n') fputs("\n        ", stdout);
        else putchar(*at);
    putchar('\n');
}

static void print_all(const struct findings *all, const char *url, bool fences) {
    bool usable = all->worst < PAWL_LEVEL_UNSAFE;
    print_line("", url);
    printf("good for   efficiency: %s        correctness: %s\n\n", usable ? "yes" : "NO",
           usable && fences ? "yes"
           : usable         ? "with a guard only: a holder that is paused or cut off may not know that it lost the lock"
                            : "NO");
    print_level(all, PAWL_LEVEL_UNSAFE);
    print_level(all, PAWL_LEVEL_WARNING);
    print_fine(all);
    print_level(all, PAWL_LEVEL_UNSEEN);
    puts("");
    for (int i = 0; i < all->n; i++)
        if (is_note(&all->list[i])) print_note(&all->list[i]);
}

static void add_notes(struct findings *all, const struct common *common) {
    char text[SETUP_TEXT];
    pawl_finding note = {sizeof note, PAWL_LEVEL_FINE, "C06", "cost", text, "", ""};
    setup_cost(setup_scheme(common->url), common->ttl_ms, text);
    if (*text) collect(&note, all);
    note.id = "C07";
    note.about = "rights";
    if (setup_rights(common->url, text)) collect(&note, all);
}

/* --acl: nobody is asked, for the rights may be what is missing. */
static int print_rights(const struct common *common) {
    char text[SETUP_TEXT];
    if (!setup_rights(common->url, text))
        return complain(EXIT_FAILED, NULL, "doctor: there are no rights to give for %s",
                        *setup_scheme(common->url) ? setup_scheme(common->url) : "such a URL");
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (common->json) {
            fputs("{\"line\":", stdout);
            print_json_string(stdout, line);
            puts("}");
        } else puts(line);
    }
    return 0;
}

/* true: one holder even if it is paused or cut off. */
static bool fences_alone(pawl_client *client) {
    char json[2048];
    return pawl_guarantees(client, json, sizeof json, NULL) == PAWL_OK &&
           strstr(json, "\"one_holder_if_paused\":true") != NULL;
}

static void add_correctness(struct findings *all) {
    const pawl_finding f = {sizeof f,
                            PAWL_LEVEL_UNSAFE,
                            "C05",
                            "correctness",
                            "the service may grant a lock twice",
                            "a holder that is paused or cut off for longer than the ttl may not know that it lost the "
                            "lock",
                            "a guard at the resource: pawl run --seal, pawl guard; or postgresql:, file:"};
    collect(&f, all);
}

static int report(struct findings *all, const struct common *common, bool guarantees, bool fences) {
    char *url = shown_url(common->url);
    if (common->for_correctness && !fences) add_correctness(all);
    add_notes(all, common);
    for (int i = 0; common->json && !guarantees && i < all->n; i++) print_json(&all->list[i]);
    if (!common->json && !messages.quiet && guarantees) print_line("", url ? url : "?");
    if (guarantees && !messages.quiet) setup_guarantees(setup_scheme(common->url), all, common->json);
    else if (!common->json && !messages.quiet) print_all(all, url ? url : "?", fences);
    free(url);
    return all->worst;
}

int cmd_doctor(int argc, char **argv) {
    struct common common = COMMON_INIT;
    int64_t wait_ms = 10000;
    bool guarantees = false, acl = false;
    const struct option_row rows[] = {{"w wait timeout", OPT_DURATION, &wait_ms, 1},
                                      {"guarantees", OPT_ON, &guarantees},
                                      {"acl", OPT_ON, &acl},
                                      {NULL}};
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
    if (acl) return print_rights(&common);
    pawl_options options;
    common_options(&common, &options);
    options.for_correctness = 0; /* that is what we are to find out */
    if ((code = open_client_with(&common, &options, NULL, &client))) return code;
    if (pawl_doctor(client, wait_ms, collect, &all, &error)) code = complain_error(NULL, &error);
    else code = report(&all, &common, guarantees, fences_alone(client));
    free_findings(&all);
    pawl_close(client);
    return code;
}
