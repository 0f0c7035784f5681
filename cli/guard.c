/* guard.c: pawl guard: the resource side, for shells and for whoever has no binding. */
#include "guard.h"
#include "config.h"
#include "options.h"
#include "token.h"
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA_MAX (INT64_C(256) << 20)

void describe_process(pid_t pid, const char *command, char *ret, size_t size) {
    char path[64], name[64] = "a program", host[65] = "?";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = command ? NULL : fopen(path, "re");
    if (file && fgets(name, sizeof name, file)) name[strcspn(name, "\n")] = 0;
    if (file) fclose(file);
    if (command) {
        const char *slash = strrchr(command, '/');
        snprintf(name, sizeof name, "%s", slash ? slash + 1 : command);
    }
    gethostname(host, sizeof host - 1);
    const struct passwd *user = getpwuid(geteuid());
    snprintf(ret, size, "%s (pid %d, %s%s%s)", name, (int)pid, user ? user->pw_name : "", user ? "@" : "", host);
}

int open_guard(const char *url, const char *name, pawl_guard **ret) {
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard_options options = PAWL_GUARD_OPTIONS_INIT;
    struct config config = CONFIG_INIT;
    char by[256], *secret = NULL;
    int code = *url == '@' ? config_read(url + 1, &config) : 0;
    if (code) return code;
    if (config.url) url = config.url;
    else if ((secret = hide((char *)(uintptr_t)url))) {
        advise(name,
               "a password in a URL can be seen in ps for a moment: put it into a profile of pawl.conf(5), and use "
               "@profile");
        url = secret;
    }
    describe_process(getppid(), NULL, by, sizeof by);
    options.by = by;
    code = pawl_guard_open(url, &options, ret, &error) ? complain_error(name, &error) : 0;
    if (secret) explicit_bzero(secret, strlen(secret));
    free(secret);
    config_free(&config);
    return code;
}

/* --- what the writing verbs share --- */

struct writing {
    const char *lock, *token, *by, *rule;
    int64_t seq;
    bool accept_jump;
    pawl_guard_write write; /* as it was asked for */
    pawl_guard *guard;
};

#define WRITING_HELP                                                                                                   \
    "  --lock NAME     the lock that protects the resource (PAWL_NAME, set by pawl run)\n"                             \
    "  --token N       its fencing token (PAWL_TOKEN, set by pawl run)\n"                                              \
    "  --by WORKER     who writes; else the program that runs pawl\n"                                                  \
    "  --rule R        ge: token >= last (default), gt: once a grant, seq: with --seq; fixed by the first write\n"     \
    "  --accept-jump   take a token that is more than a day ahead of the clock\n"
#define WRITING_SEQ "  --seq N         rule seq: the number of this write, rising within a grant\n"
#define WRITING_EXIT                                                                                                   \
    "119 another lock's token, a damaged one, or none; 120 no access;\n"                                               \
    "121 stale: a later holder was here; 124 other writers kept the\n"                                                 \
    "resource locked all the time (10 s); 125 failed.\n"

/* 0, or the exit code after a complaint. */
static int fill(const struct writing *w, const char *resource, pawl_guard_write *ret) {
    static const char *const rules[] = {"ge", "gt", "seq"};
    const char *name = getenv("PAWL_NAME"), *token = w->token, *service = NULL;
    /* PAWL_TOKEN is of the lock PAWL_NAME: for another one it says nothing. */
    if (!token && !(w->lock && name && strcmp(w->lock, name) != 0)) {
        token = getenv("PAWL_TOKEN");
        service = getenv("PAWL_SERVICE");
    }
    uint64_t number = 0;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    write.resource = resource;
    write.lock = w->lock ? w->lock : name;
    write.by = w->by;
    write.seq = w->seq;
    write.service = service && *service ? service : NULL;
    write.flags = w->accept_jump ? PAWL_GUARD_ACCEPT_JUMP : 0;
    if (!write.lock) return complain(EXIT_FAILED, resource, "which lock? Give --lock, or use pawl run (PAWL_NAME)");
    for (int i = 0; w->rule && !write.rule && i < 3; i++)
        if (strcmp(rules[i], w->rule) == 0) write.rule = PAWL_RULE_GE + i;
    if (w->rule && !write.rule) return complain(EXIT_FAILED, resource, "--rule %s: ge, gt or seq", w->rule);
    if (token && *token && !token_parse(token, &number))
        return complain(EXIT_REFUSED, resource, "damaged token '%s': a token is 1 to %" PRIu64 ". Nothing was changed.",
                        token, (uint64_t)TOKEN_MAX);
    write.token = (int64_t)number;
    *ret = write;
    return 0;
}

static int answer(int code, const char *resource, const pawl_error *error) {
    if (code > PAWL_EINTERNAL) return complain(exit_code(code), resource, "%s", error->text); /* a refusal */
    return code ? complain_error(resource, error) : 0;
}

/* Options and operands URL RESOURCE into *w, and the guard opened. -1: go on; else the exit code. */
static int begin(const char *name, const char *usage, bool has_seq, int most, int argc, char **argv,
                 struct writing *w) {
    const struct option_row seq = {"seq", OPT_NUMBER, &w->seq, 1, INT64_MAX};
    const struct option_row rows[] = {{"lock", OPT_TEXT, &w->lock},
                                      {"token", OPT_TEXT, &w->token},
                                      {"by", OPT_TEXT, &w->by},
                                      {"rule", OPT_TEXT, &w->rule},
                                      {"accept-jump", OPT_ON, &w->accept_jump},
                                      has_seq ? seq : (struct option_row){0},
                                      {0}};
    const struct verb verb = {.name = name,
                              .usage = usage,
                              .rows = rows,
                              .mixed = true,
                              .least = most < 0 ? 3 : 2,
                              .most = most,
                              .operands = most < 0 ? "URL RESOURCE -- CMD" : "URL RESOURCE"};
    struct common common = COMMON_INIT;
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    code = fill(w, argv[2], &w->write);
    if (!code) code = open_guard(argv[1], argv[2], &w->guard);
    return code ? code : -1;
}

/* All of stdin. */
static int read_data(const char *resource, char **ret, size_t *ret_length) {
    size_t size = 65536, used = 0;
    char *data = malloc(size);
    for (;;) {
        if (used == size && size < DATA_MAX) {
            char *more = realloc(data, size *= 2);
            if (!more) break;
            data = more;
        }
        ssize_t n = data ? read(0, data + used, size - used) : -1;
        if (n < 0 && data && errno == EINTR) continue;
        if (n == 0 && used < size) {
            *ret = data;
            *ret_length = used;
            return 0;
        }
        if (n <= 0) break;
        used += (size_t)n;
    }
    free(data);
    return complain(EXIT_FAILED, resource, used >= DATA_MAX ? "more than 256 MiB of data" : "cannot read stdin");
}

/* --- verbs --- */

static int guard_put(int argc, char **argv) {
    static const char usage[] =
        "pawl guard put URL RESOURCE [options] < DATA\n\n"
        "Replaces the data of RESOURCE with stdin, if the token is new enough.\n"
        "URL is dir:DIRECTORY, sqlite:FILE, redis://HOST, postgresql://HOST, or etcd://HOST.\n\n" WRITING_HELP
            WRITING_SEQ "\nExit: 0 written; " WRITING_EXIT;
    struct writing w = {0};
    pawl_error error = PAWL_ERROR_INIT;
    char *data = NULL;
    size_t length = 0;
    int code = begin("guard put", usage, true, 2, argc, argv, &w);
    if (code >= 0) return code;
    if ((code = read_data(argv[2], &data, &length)) == 0) {
        code = answer(pawl_guard_put(w.guard, &w.write, data, length, &error), argv[2], &error);
        free(data);
    }
    pawl_guard_close(w.guard);
    return code;
}

static int guard_seal(int argc, char **argv) {
    static const char usage[] =
        "pawl guard seal URL RESOURCE [options]\n\n"
        "Raises the mark of RESOURCE without a write: every earlier holder is refused from now on.\n"
        "pawl run --seal URL#RESOURCE does it before its command starts.\n\n" WRITING_HELP
        "\nExit: 0 sealed; " WRITING_EXIT;
    struct writing w = {0};
    pawl_error error = PAWL_ERROR_INIT;
    int code = begin("guard seal", usage, false, 2, argc, argv, &w);
    if (code >= 0) return code;
    code = answer(pawl_guard_seal(w.guard, &w.write, &error), argv[2], &error);
    pawl_guard_close(w.guard);
    return code;
}

static int guard_run(int argc, char **argv) {
    static const char usage[] =
        "pawl guard exec URL RESOURCE [options] -- CMD [ARG...]\n\n"
        "Checks the token, raises the mark, and runs CMD while every other writer of RESOURCE waits:\n"
        "for a resource that is changed by other means. With sqlite:FILE, CMD must not write FILE.\n\n" WRITING_HELP
            WRITING_SEQ "\nExit: that of CMD (126, 127: it cannot be run), or\n" WRITING_EXIT;
    struct writing w = {0};
    pawl_error error = PAWL_ERROR_INIT;
    int code = begin("guard exec", usage, true, -1, argc, argv, &w);
    if (code >= 0) return code;
    if ((code = answer(pawl_guard_enter(w.guard, &w.write, &error), argv[2], &error)) == 0)
        code = guard_exec(w.guard, argv[2], argv + 3);
    pawl_guard_close(w.guard);
    return code;
}

static void print_literal(const char *text) {
    putchar('\'');
    for (; *text; text++) {
        if (*text == '\'') putchar('\'');
        putchar(*text);
    }
    putchar('\'');
}

static int print_install(pawl_guard *guard, const char *rule, const char *table, const char *expression) {
    const char *text = pawl_guard_install_text(guard);
    if (!text) return complain(EXIT_FAILED, NULL, "guard install --print: only postgresql: is prepared by SQL");
    fputs(text, stdout);
    printf("INSERT INTO pawl.guard_set (rule) VALUES ('%s') ON CONFLICT DO NOTHING;\n", rule);
    if (!table) return 0;
    fputs("SELECT pawl.protect(", stdout);
    print_literal(table);
    if (expression) {
        fputs(", ", stdout);
        print_literal(expression);
    }
    puts(");");
    return 0;
}

static int guard_install(int argc, char **argv) {
    const char *rule = "ge", *table = NULL, *expression = NULL;
    bool print = false;
    const struct option_row rows[] = {{"rule", OPT_TEXT, &rule},
                                      {"protect", OPT_TEXT, &table},
                                      {"resource", OPT_TEXT, &expression},
                                      {"print", OPT_ON, &print, 1},
                                      {0}};
    const struct verb verb = {
        .name = "guard install",
        .usage = "pawl guard install URL [--rule ge|gt|seq] [--protect TABLE [--resource EXPR]] [--print]\n\n"
                 "Prepares a set of resources and fixes the rule for those to come. Without it the first\n"
                 "write prepares the set, with ge; but postgresql: needs it, or pawl init.\n\n"
                 "  --protect TABLE   postgresql: refuse each INSERT, UPDATE and DELETE without a current token\n"
                 "                    (SET LOCAL pawl.lock, pawl.token). It stops programs that forgot one, not a\n"
                 "                    role that makes one up\n"
                 "  --resource EXPR   what a row's resource is, in SQL over its columns; else TABLE:PRIMARY KEY\n"
                 "  --print           print the SQL instead of running it\n\n"
                 "Exit: 0 ready; 120 no access; 125 it was installed with another rule.\n",
        .rows = rows,
        .mixed = true,
        .least = 1,
        .most = 1,
        .operands = "URL"};
    struct common common = COMMON_INIT;
    int n, code = parse_options(&verb, argc, argv, &common, &n), number = PAWL_RULE_DEFAULT;
    if (code >= 0) return code;
    for (int i = PAWL_RULE_GE; i <= PAWL_RULE_SEQ; i++)
        if (strcmp(pawl_guard_rule_name(i), rule) == 0) number = i;
    if (!number) return complain(EXIT_FAILED, NULL, "--rule %s: ge, gt or seq", rule);
    if (expression && !table) return complain(EXIT_FAILED, NULL, "--resource needs --protect TABLE");
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard *guard;
    if ((code = open_guard(argv[1], NULL, &guard))) return code;
    if (print) code = print_install(guard, rule, table, expression);
    else {
        int result = pawl_guard_install(guard, number, &error);
        if (!result && table) result = pawl_guard_protect(guard, table, expression, &error);
        code = answer(result, NULL, &error);
    }
    pawl_guard_close(guard);
    return code;
}

static int guard_reset(int argc, char **argv) {
    const char *to = NULL, *why = NULL, *by = NULL;
    const struct option_row rows[] = {{"to", OPT_TEXT, &to}, {"why", OPT_TEXT, &why}, {"by", OPT_TEXT, &by}, {0}};
    const struct verb verb = {
        .name = "guard reset",
        .usage = "pawl guard reset URL RESOURCE --to N --why TEXT [--by WHO]\n\n"
                 "Sets the mark, lower or higher, after tokens were lost for good. Data, lock and rule stay.\n"
                 "The reset is kept with its reason; pawl guard audit lists it.\n\n"
                 "Exit: 0 done; 1 no such record; 120 no access; 124 others kept it locked; 125 failed.\n",
        .rows = rows,
        .mixed = true,
        .least = 2,
        .most = 2,
        .operands = "URL RESOURCE"};
    struct common common = COMMON_INIT;
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    uint64_t number;
    if (!to || !why) return complain(EXIT_FAILED, argv[2], "guard reset wants --to N and --why TEXT");
    if (!token_parse(to, &number))
        return complain(EXIT_FAILED, argv[2], "--to %s: a token is 1 to %" PRIu64, to, (uint64_t)TOKEN_MAX);
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard *guard;
    if ((code = open_guard(argv[1], argv[2], &guard))) return code;
    code = pawl_guard_reset(guard, argv[2], (int64_t)number, by, why, &error);
    code = code == PAWL_GNORECORD ? complain(1, argv[2], "%s", error.text) : answer(code, argv[2], &error);
    pawl_guard_close(guard);
    return code;
}

int cmd_guard(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } verbs[] = {{"put", guard_put},     {"get", cmd_guard_get},     {"seal", guard_seal},
                 {"exec", guard_run},    {"install", guard_install}, {"audit", cmd_guard_audit},
                 {"reset", guard_reset}, {"test", cmd_guard_test}};
    static const struct verb verb = {
        .name = "guard",
        .usage = "pawl guard put|seal|exec|get|audit|install|reset|test ...\n\n"
                 "The resource's side of a fencing token: keeps the highest token beside the data, and refuses a lower "
                 "one.\n\n"
                 "  put URL RESOURCE < DATA          write, if the token is new enough\n"
                 "  seal URL RESOURCE                refuse earlier holders from now on\n"
                 "  exec URL RESOURCE -- CMD         run CMD while every other writer waits\n"
                 "  get URL RESOURCE [--json]        the data, or all of the record\n"
                 "  audit URL RESOURCE [--json]      the resets of the record\n"
                 "  install URL [--rule ge|gt|seq]   prepare a set of resources; protect a table\n"
                 "  reset URL RESOURCE --to N --why TEXT\n"
                 "  test URL | --exec PROGRAM        does this guard keep its promises?\n\n"
                 "URL is dir:DIRECTORY, sqlite:FILE, redis://HOST (all forms of it),\n"
                 "postgresql://HOST, or etcd://HOST.\n"
                 "pawl guard VERB --help tells the rest.\n",
        .least = 1,
        .most = -1,
        .operands = "VERB"};
    struct common common = COMMON_INIT;
    struct nearest nearest = {.text = argc > 1 ? argv[1] : ""};
    for (size_t i = 0; argc > 1 && i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(argv[1], verbs[i].name) == 0) return verbs[i].run(argc - 1, argv + 1);
        nearest_offer(&nearest, verbs[i].name);
    }
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    return complain(EXIT_FAILED, NULL, "guard: unknown verb '%s'%s%s%s (try: pawl guard --help)", argv[1],
                    nearest.word ? "; did you mean '" : "", nearest.word ? nearest.word : "", nearest.word ? "'?" : "");
}
