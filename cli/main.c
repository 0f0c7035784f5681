/* main.c: the table of verbs. A verb is one row here, one file, and one line in meson.build. */
#include "cli.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int cmd_help(int argc, char **argv);

static const struct row {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *operands, *what;
} rows[] = {
    {"run", cmd_run, "[options] NAME CMD...", "hold the lock while CMD runs"},
    {"hold", cmd_hold, "[-d] NAME", "take it, tell each event as JSON, keep it until stdin ends"},
    {"release", cmd_release, "HANDLE", "end a hold -d"},
    {"who", cmd_who, "NAME", "who holds it, and who waits"},
    {"ls", cmd_ls, "", "all locks"},
    {"watch", cmd_watch, "NAME", "each change of who holds it, and who waits"},
    {"break", cmd_break, "NAME", "take a stuck lock away from its holder"},
    {"doctor", cmd_doctor, "[URL]", "is this set-up good for locks, and for what"},
    {"init", cmd_init, "[URL] [--print]", "prepare a service (PostgreSQL, Redlock)"},
    {"token", cmd_token, "show|advance [URL]", "where the numbers of a service stand; lift them"},
    {"guard", cmd_guard, "put|get|seal|exec|...", "the resource side: refuse whoever lost the lock"},
    {"demo", cmd_demo, "[zombie]", "see a lost lock do harm, then see it refused"},
    {"version", cmd_version, "", "what this is, and which services it can use"},
    {"help", cmd_help, "[VERB]", "this text, or that of a verb"},
};

enum { N_ROWS = sizeof rows / sizeof *rows };

static void print_help(void) {
    const char *bold = use_colour(1) ? "\033[1m" : "", *plain = *bold ? "\033[0m" : "";
    printf("%spawl%s: locks with fencing tokens, on this machine or over Redis, PostgreSQL and etcd.\n\n", bold, plain);
    for (int i = 0; i < N_ROWS; i++) {
        int width = printf("  pawl %s%s%s %s", bold, rows[i].name, plain, rows[i].operands);
        width -= (int)(strlen(bold) + strlen(plain));
        printf("%*s%s\n", width < 46 ? 46 - width : 2, "", rows[i].what);
    }
    puts("\n"
         "  -u, --url URL      where the lock lives: file:DIR (default file:), redis://HOST, @PROFILE; pawl-url(7)\n"
         "  -t, --ttl 15s      how long a lock outlives a holder that died (not for file:)\n"
         "  -v  -q             more or fewer messages;  --log json: as JSON\n"
         "\n"
         "pawl VERB --help tells the rest; man pawl, pawl-url(7), pawl.conf(5).");
}

static const struct row *find_verb(const char *name) {
    for (int i = 0; i < N_ROWS; i++)
        if (strcmp(name, rows[i].name) == 0) return &rows[i];
    return NULL;
}

static int unknown_verb(const char *name) {
    struct nearest nearest = {.text = name};
    for (int i = 0; i < N_ROWS; i++) nearest_offer(&nearest, rows[i].name);
    bool option = *name == '-';
    return complain(EXIT_FAILED, NULL, "unknown %s '%s'%s%s%s (try: pawl --help)", option ? "option" : "verb", name,
                    nearest.word ? "; did you mean '" : "", nearest.word ? nearest.word : "",
                    nearest.word ? "'?"
                    : option     ? "; options stand behind the verb"
                                 : "");
}

static int cmd_help(int argc, char **argv) {
    char *help[] = {NULL, (char[]){"--help"}, NULL};
    if (argc < 2 || argv[1][0] == '-') {
        print_help();
        return 0;
    }
    const struct row *row = find_verb(argv[1]);
    if (!row) return unknown_verb(argv[1]);
    if (row->run == cmd_help) return cmd_help(1, help);
    help[0] = argv[1];
    return row->run(2, help);
}

/* A descriptor that we open must never become 0, 1 or 2; a word for a stdout that is closed fails. A command that we
 * run finds closed what was closed. */
static void open_standard_descriptors(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", (fd == 2 ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
}

int main(int argc, char **argv) {
    open_standard_descriptors();
    if (argc < 2) return complain(EXIT_FAILED, NULL, "a verb is missing (try: pawl --help)");
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) name = "version";
    const struct row *row = find_verb(name);
    if (!row) return unknown_verb(name);
    int code = row->run(argc - 1, argv + 1);
    return flush_stdout(NULL) ? code : EXIT_FAILED; /* nobody got the answer, whatever it was */
}
