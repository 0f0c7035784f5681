/* list.c: pawl-lab list: the scenarios in words; --markdown: as docs/FAILURES.md has them. */
#include "lab.h"
#include "stage.h"
#include <stdio.h>
#include <string.h>

static void print_line(const struct scenario *s) {
    printf("%-20s %-11s %s%s\n", s->name, s->service, s->title, s->quick ? " (quick)" : "");
}

static void print_full(const struct scenario *s) {
    print_line(s);
    printf("    what happens   %s\n    what people believe   %s\n    what is true   %s\n    plain   %s\n\n", s->happens,
           s->believed, s->truth, scenario_recipe(s));
}

static const char *word(bool breaks) { return breaks ? "**breaks**" : "holds"; }

static void print_markdown(const struct scenario *s) {
    printf("\n## %s\n\n%c%s.\n\n", s->name, *s->title >= 'a' && *s->title <= 'z' ? *s->title - 'a' + 'A' : *s->title,
           s->title + 1);
    printf("**What happens.** %s\n\n**What people believe.** %s\n\n**What is true.** %s\n\n", s->happens, s->believed,
           s->truth);
    printf("| plain | pawl | guarded |\n| --- | --- | --- |\n| %s: %s | %s | holds |\n\n", word(s->plain_breaks),
           scenario_recipe(s), word(s->pawl_breaks));
    printf("![%s: plain, pawl, guarded](failures/%s.svg)\n", s->name, s->name);
}

int lab_list(int argc, char **argv) {
    void (*print)(const struct scenario *) = print_line;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-v") == 0 || strcmp(argv[i], "--verbose") == 0) print = print_full;
        else if (strcmp(argv[i], "--markdown") == 0) print = print_markdown;
        else if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            puts("usage: pawl-lab list [options]\n  -v, --verbose    what each scenario is about\n"
                 "  --markdown       the same, as docs/FAILURES.md has it");
            return LAB_OK;
        } else return lab_complain("list: unknown argument: %s", argv[i]);
    for (int i = 0; scenarios[i]; i++) print(scenarios[i]);
    return LAB_OK;
}
