/* doctor.c: pawl doctor URL: is this set-up good for locks, and for what? The verdict first, then what is wrong, with
 * the fix, then what is well in one line, and what could not be seen. */
#include "doctor.h"
#include "seal.h"
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
    "      --for efficiency   what only matters if nothing may ever be done twice is no warning\n"
    "      --seal GUARD[#RESOURCE]  that pawl run will name; doctor has to be able to write there (it leaves one\n"
    "                     record of its own, pawl-doctor)\n"
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

/* What may grant a lock twice now and then, or lower its numbers, and costs no lock otherwise. */
static bool efficiency_needs(const pawl_finding *f) {
    static const char *const others[] = {"C03", "C05", "R02", "R10", "L02", "L05", "E08", "P05"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(f->id, others[i]) == 0) return false;
    return strcmp(f->id, "P02") != 0 || f->level == PAWL_LEVEL_UNSAFE; /* a standby that is waited for */
}

static int collect(const pawl_finding *f, void *data) {
    struct findings *all = data;
    if (all->n == sizeof all->list / sizeof *all->list) return 1;
    all->list[all->n++] =
        (struct finding){f->level, strdup(f->id), strdup(f->about), strdup(f->seen), strdup(f->why), strdup(f->fix)};
    if (f->level == PAWL_LEVEL_UNSEEN) return 0;
    if (f->level > all->worst) all->worst = f->level;
    if (f->level > all->worst_of_service && strcmp(f->id, "C05") != 0) all->worst_of_service = f->level;
    if (f->level > all->worst_efficiency && efficiency_needs(f)) all->worst_efficiency = f->level;
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

/* What keeps a stale holder from doing harm. */
enum fence { FENCED_NOT, FENCED_ALONE, FENCED_GUARD };

/* What is no verdict: printed below the findings, whole. */
static bool is_note(const struct finding *f) { return strcmp(f->id, "C06") == 0 || strcmp(f->id, "C07") == 0; }

static void print_level(const struct findings *all, int level) {
    for (int i = 0; i < all->n; i++)
        if (all->list[i].level == level) print_finding(&all->list[i]);
}

/* How many good findings have the id of the i-th, which has to be good; 0: it is not, or not the first of them. */
static int good_alike(const struct findings *all, int i) {
    int n = 0;
    for (int k = 0; k < all->n; k++) {
        if (all->list[k].level != PAWL_LEVEL_FINE || strcmp(all->list[k].id, all->list[i].id) != 0) continue;
        if (n++ == 0 && k != i) return 0;
    }
    return is_note(&all->list[i]) || all->list[i].level != PAWL_LEVEL_FINE ? 0 : n;
}

/* What there is of each instance is told once: "L01-L06 on 5 instances". */
static void print_fine(const struct findings *all) {
    const char *before = "ok      ", *from = NULL, *to = NULL;
    for (int i = 0, each = 0; i <= all->n; i++) {
        const struct finding *f = &all->list[i];
        int n = i < all->n ? good_alike(all, i) : 0;
        if (i < all->n && n == 0) continue;
        if (from && n != each) {
            printf("%s%s%s%s on %d instances", before, from, to ? "-" : "", to ? to : "", each);
            before = "  ";
            from = to = NULL;
        }
        if (n == 1) {
            printf("%s%s %s", before, f->id, f->about);
            before = "  ";
        } else if (n > 1) {
            *(from ? &to : &from) = f->id;
            each = n;
        }
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

static const char *correctness(const struct findings *all, enum fence fence) {
    if (all->worst_of_service >= PAWL_LEVEL_UNSAFE) return "NO";
    return fence == FENCED_ALONE   ? "yes"
           : fence == FENCED_GUARD ? "yes, with that guard"
                                   : "with a guard only: a holder that is paused or cut off may not know that it lost "
                                     "the lock";
}

static void print_all(const struct findings *all, const char *url, enum fence fence) {
    print_line("", url);
    printf("good for   efficiency: %s        correctness: %s\n\n",
           all->worst_efficiency < PAWL_LEVEL_UNSAFE ? "yes" : "NO", correctness(all, fence));
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

static void add_correctness(struct findings *all, enum fence fence, const char *why_not) {
    bool guarded = fence == FENCED_GUARD;
    const pawl_finding f = {sizeof f,
                            guarded ? PAWL_LEVEL_FINE : PAWL_LEVEL_UNSAFE,
                            "C05",
                            "correctness",
                            guarded    ? "the guard can be written, or will be made by the first write"
                            : *why_not ? why_not
                                       : "the service may grant a lock twice, and no guard is named",
                            guarded ? ""
                            : *why_not
                                ? "with that guard pawl run --seal fails, and starts nothing"
                                : "a holder that is paused or cut off for longer than the ttl may not know that it "
                                  "lost the lock",
                            guarded    ? ""
                            : *why_not ? "a guard that can be reached and written from here"
                                       : "a guard at the resource: --seal GUARD#RESOURCE here and for pawl run; or, on "
                                         "one machine, file:"};
    collect(&f, all);
}

/* --for efficiency: what that does not need is told as well, but judged by nobody. */
static void forgive(struct findings *all) {
    for (int i = 0; i < all->n; i++) {
        struct finding *f = &all->list[i];
        const pawl_finding as = {.level = f->level, .id = f->id};
        if (f->level != PAWL_LEVEL_UNSEEN && !efficiency_needs(&as)) f->level = PAWL_LEVEL_FINE;
    }
    all->worst = all->worst_efficiency;
}

static int report(struct findings *all, const struct common *common, bool guarantees, enum fence fence) {
    char *url = shown_url(common->url);
    add_notes(all, common);
    if (common->for_efficiency && !guarantees) forgive(all);
    for (int i = 0; common->json && !guarantees && i < all->n; i++) print_json(&all->list[i]);
    if (!common->json && !messages.quiet && guarantees) print_line("", url ? url : "?");
    if (guarantees && !messages.quiet) setup_guarantees(setup_scheme(common->url), all, common->json);
    else if (!common->json && !messages.quiet) print_all(all, url ? url : "?", fence);
    free(url);
    return all->worst;
}

/* Such as: the lock that was taken was the first ever. */
static void remark(const pawl_event *event, const char *name, void *data) {
    (void)name, (void)data;
    if (event->type == PAWL_REMARK) warn(NULL, "%s", event->text);
}

int cmd_doctor(int argc, char **argv) {
    struct common common = COMMON_INIT;
    int64_t wait_ms = 10000;
    bool guarantees = false, acl = false;
    const char *guard = NULL;
    struct seal *seal = NULL;
    const struct option_row rows[] = {{"w wait timeout", OPT_DURATION, &wait_ms, 1},
                                      {"guarantees", OPT_ON, &guarantees},
                                      {"acl", OPT_ON, &acl},
                                      {"seal", OPT_TEXT, &guard},
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
    if (acl && guarantees) return complain(EXIT_FAILED, NULL, "doctor: --acl or --guarantees, not both");
    if (acl) return print_rights(&common);
    if (guard && (code = seal_open(guard, "pawl-doctor", common.url, &seal))) return code;
    pawl_options options;
    common_options(&common, &options);
    options.for_correctness = 0; /* that is what we are to find out */
    options.observe = remark;
    if ((code = open_client_with(&common, &options, NULL, &client)) == 0) {
        if (pawl_doctor(client, wait_ms, collect, &all, &error)) code = complain_error(NULL, &error);
        else {
            enum fence fence = fences_alone(client) ? FENCED_ALONE : FENCED_NOT;
            bool answers = seal && seal_look(seal, &error) == PAWL_OK;
            if (fence == FENCED_NOT && answers) fence = FENCED_GUARD;
            if ((seal && !answers) || (fence != FENCED_ALONE && (common.for_correctness || seal)))
                add_correctness(&all, fence, error.text);
            code = report(&all, &common, guarantees, fence);
        }
        free_findings(&all);
        pawl_close(client);
    }
    seal_close(seal);
    return code;
}
