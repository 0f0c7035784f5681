/* options.c: the parser, and what follows from the common options: configuration, URL, secrets out of sight. */
#include "options.h"
#include "config.h"
#include "url.h"
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the common options point at while parsing; what was not given is filled from the configuration. */
struct given {
    const char *url, *label, *purpose, *log;
    int64_t ttl_ms;
    bool json, help;
};

struct parser {
    const struct verb *verb;
    const struct option_row *tables[5]; /* the verb's own first */
    int n_tables;
};

static int bad(const struct verb *verb, const char *what) {
    return complain(EXIT_FAILED, NULL, "%s: %s (try: pawl %s --help)", verb->name, what, verb->name);
}

/* --- one option --- */

/* Is `text` of this length one of the space separated names? */
static bool has_name(const char *names, const char *text, size_t length) {
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, " ");
        if (n == length && strncmp(at, text, n) == 0) return true;
        at += n + (at[n] == ' ');
    }
    return false;
}

static const struct option_row *find_row(const struct parser *parser, const char *text, size_t length) {
    for (int i = 0; i < parser->n_tables; i++)
        for (const struct option_row *row = parser->tables[i]; row && row->names; row++)
            if (has_name(row->names, text, length)) return row;
    return NULL;
}

static int unknown_option(const struct parser *parser, const char *text, size_t length) {
    char word[64], what[160];
    snprintf(word, sizeof word, "%.*s", (int)length, text);
    struct nearest nearest = {.text = word};
    char candidates[64][32];
    size_t n = 0;
    for (int i = 0; i < parser->n_tables; i++)
        for (const struct option_row *row = parser->tables[i]; row && row->names; row++)
            for (const char *at = row->names; *at && n < 64;) {
                size_t m = strcspn(at, " ");
                if (m > 1) {
                    snprintf(candidates[n], sizeof candidates[n], "%.*s", (int)m, at);
                    nearest_offer(&nearest, candidates[n++]);
                }
                at += m + (at[m] == ' ');
            }
    const char *dashes = length > 1 ? "--" : "-";
    if (nearest.word)
        snprintf(what, sizeof what, "unknown option %s%s; did you mean --%s?", dashes, word, nearest.word);
    else snprintf(what, sizeof what, "unknown option %s%s", dashes, word);
    return bad(parser->verb, what);
}

static int bad_value(const struct verb *verb, const char *name, const char *value, const char *must) {
    char what[320];
    snprintf(what, sizeof what, "%s '%.80s': must be %s", name, value, must);
    return bad(verb, what);
}

static int store_duration(const struct verb *verb, const struct option_row *row, const char *name, const char *value) {
    int64_t ms;
    char low[24], high[24], must[128];
    spell_duration(row->min, low, sizeof low);
    spell_duration(row->max, high, sizeof high);
    if (!parse_duration(value, &ms)) {
        snprintf(must, sizeof must, "a duration of %s at most, as in 250ms, 15s, 2m, 1h, or seconds",
                 row->max ? high : "10 years");
        return bad_value(verb, name, value, must);
    }
    if (ms < row->min || (row->max && ms > row->max)) {
        snprintf(must, sizeof must, row->max ? "from %s to %s" : "%s or more", low, high);
        return bad_value(verb, name, value, must);
    }
    *(int64_t *)row->to = ms;
    return -1;
}

static int store_number(const struct verb *verb, const struct option_row *row, const char *name, const char *value) {
    char *end, must[64];
    size_t digits = strspn(value, "0123456789");
    long long n = strtoll(value, &end, 10);
    if (digits == 0 || digits > 18 || *end || n < row->min || n > row->max) {
        snprintf(must, sizeof must, "a number from %" PRId64 " to %" PRId64, row->min, row->max);
        return bad_value(verb, name, value, must);
    }
    *(int64_t *)row->to = n;
    return -1;
}

static int store(const struct verb *verb, const struct option_row *row, const char *name, const char *value) {
    switch (row->kind) {
    case OPT_ON: *(bool *)row->to = true; break;
    case OPT_OFF: *(bool *)row->to = false; break;
    case OPT_TEXT: *(const char **)row->to = value; break;
    case OPT_DURATION: return store_duration(verb, row, name, value);
    case OPT_NUMBER: return store_number(verb, row, name, value);
    case OPT_EXIT_CODE:
        if (!parse_exit_code(value, row->to)) return bad_value(verb, name, value, "an exit code from 0 to 255");
    }
    return -1;
}

static bool takes_value(const struct option_row *row) { return row->kind != OPT_ON && row->kind != OPT_OFF; }

static int missing_value(const struct verb *verb, const char *name) {
    char what[96];
    snprintf(what, sizeof what, "%s needs a value", name);
    return bad(verb, what);
}

static int parse_long(const struct parser *parser, char **argv, int argc, int *at) {
    const char *text = argv[*at] + 2, *equals = strchr(text, '=');
    size_t length = equals ? (size_t)(equals - text) : strlen(text);
    char name[64], what[96];
    const struct option_row *row = length > 1 ? find_row(parser, text, length) : NULL;
    if (!row) return unknown_option(parser, text, length);
    snprintf(name, sizeof name, "--%.*s", (int)length, text);
    if (!takes_value(row)) {
        if (!equals) return store(parser->verb, row, name, NULL);
        snprintf(what, sizeof what, "%s takes no value", name);
        return bad(parser->verb, what);
    }
    const char *value = equals ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
    return value ? store(parser->verb, row, name, value) : missing_value(parser->verb, name);
}

/* "-nv", "-t5s", "-t 5s". */
static int parse_short(const struct parser *parser, char **argv, int argc, int *at) {
    int code = -1;
    for (const char *p = argv[*at] + 1; *p && code < 0; p++) {
        const char name[] = {'-', *p, 0};
        const struct option_row *row = find_row(parser, p, 1);
        if (!row) return unknown_option(parser, p, 1);
        if (!takes_value(row)) {
            code = store(parser->verb, row, name, NULL);
            continue;
        }
        const char *value = p[1] ? p + 1 : *at + 1 < argc ? argv[++*at] : NULL;
        return value ? store(parser->verb, row, name, value) : missing_value(parser->verb, name);
    }
    return code;
}

static int parse_all(const struct parser *parser, int argc, char **argv, int *ret_operands) {
    int n = 0;
    bool more = true; /* options may still come */
    for (int i = 1; i < argc; i++) {
        if (more && strcmp(argv[i], "--") == 0 && (n == 0 || parser->verb->mixed)) {
            more = false;
        } else if (more && argv[i][0] == '-' && argv[i][1]) {
            int code = argv[i][1] == '-' ? parse_long(parser, argv, argc, &i) : parse_short(parser, argv, argc, &i);
            if (code >= 0) return code;
        } else {
            argv[++n] = argv[i];
            more = more && parser->verb->mixed;
        }
    }
    argv[n + 1] = n + 1 < argc ? NULL : argv[n + 1];
    *ret_operands = n;
    return -1;
}

/* --- what follows --- */

/* "file:" with the directory that it stands for; NULL: out of memory. */
static char *shown_default(void) {
    char *shown;
    const struct passwd *entry = geteuid() == 0 ? NULL : getpwuid(geteuid());
    if (geteuid() == 0) return strdup("file:/var/lib/pawl");
    if (!entry) return strdup("file:");
    return asprintf(&shown, "file:%s/.local/state/pawl", entry->pw_dir) < 0 ? NULL : shown;
}

char *shown_url(const char *url) {
    struct url *parsed;
    char *shown;
    if (strcmp(url, "file:") == 0) return shown_default();
    if (url_parse(url, &parsed, NULL)) { /* no way to tell what is secret */
        const char *authority = strstr(url, "://");
        if (!authority || !strchr(url, '@')) return strdup(url);
        return asprintf(&shown, "%.*s***", (int)(authority + 3 - url), url) < 0 ? NULL : shown;
    }
    shown = strdup(parsed->shown);
    url_free(parsed);
    return shown;
}

char *hide(char *text) {
    char *shown = shown_url(text), *copy = NULL;
    if (shown && strstr(shown, "***") && strcmp(shown, text) != 0 && (copy = strdup(text))) {
        size_t length = strlen(text);
        explicit_bzero(text, length);
        strncpy(text, shown, length);
    }
    free(shown);
    return copy;
}

/* A password in the URL: out of argv and out of the environment, which children would inherit. A child that needs the
 * service must not fall back on another one in silence, so it finds the URL with *** instead. */
static int hide_secret(struct common *common, const char *name) {
    static char *copy; /* until the process ends */
    copy = hide((char *)common->url);
    if (!copy) return -1;
    if (strcmp(common->from, "PAWL_URL") == 0 && setenv("PAWL_URL", common->url, 1))
        return complain(EXIT_FAILED, NULL, "%s: out of memory", name);
    if (strcmp(common->from, "-u") == 0)
        advise(NULL, "a password in -u can be seen in ps for a moment: put it into a profile of pawl.conf(5), and use "
                     "-u @profile");
    common->url = copy;
    return -1;
}

static int settle_url(const struct verb *verb, struct common *common, const char *option, struct config *config) {
    const char *environment = getenv("PAWL_URL");
    if (!(environment && *environment)) environment = NULL;
    if (option && environment && *environment != '@') { /* not for us, nor for the command */
        char *copy = hide((char *)environment);
        if (copy && setenv("PAWL_URL", environment, 1))
            return complain(EXIT_FAILED, NULL, "%s: out of memory", verb->name);
        if (copy) explicit_bzero(copy, strlen(copy));
        free(copy);
    }
    common->url = option ? option : environment;
    common->from = option ? "-u" : "PAWL_URL";
    const char *profile = common->url && *common->url == '@' ? common->url + 1 : NULL;
    if (profile && !*profile) return bad(verb, "a profile is @NAME");
    if (common->url && !profile) { /* at once: reading files takes time */
        if (strstr(common->url, ":***@") && strcmp(common->from, "PAWL_URL") == 0)
            return complain(EXIT_FAILED, NULL,
                            "PAWL_URL is %s: its password was kept from this process; use a profile of "
                            "pawl.conf(5)",
                            common->url);
        int code = hide_secret(common, verb->name);
        if (code >= 0) return code;
    }
    int code = config_read(profile, config);
    if (code) return code;
    if (common->url && !profile) return -1;
    common->url = config->url ? config->url : "file:";
    common->from = config->url ? config->file : "default";
    return -1;
}

/* Config and options into *common. */
static int settle(const struct verb *verb, struct common *common, const struct given *given) {
    static struct config config = CONFIG_INIT; /* *common points into it until the process ends */
    if (given->log && !messages.json && strcmp(given->log, "text") != 0)
        return bad_value(verb, "--log", given->log, "text or json");
    if (given->purpose && strcmp(given->purpose, "efficiency") != 0 && strcmp(given->purpose, "correctness") != 0)
        return bad_value(verb, "--for", given->purpose, "efficiency or correctness");
    if (verb->common & COMMON_URL) {
        int code = settle_url(verb, common, given->url, &config);
        if (code >= 0) return code;
    }
    if (!given->log && config.log_json >= 0) messages.json = config.log_json;
    if (given->ttl_ms || config.ttl_ms) common->ttl_ms = given->ttl_ms ? given->ttl_ms : config.ttl_ms;
    common->label = given->label ? given->label : config.label;
    common->for_correctness = given->purpose ? strcmp(given->purpose, "correctness") == 0 : config.for_correctness > 0;
    common->for_efficiency = given->purpose ? !common->for_correctness : config.for_correctness == 0;
    common->json = given->json;
    return -1;
}

static int check_operands(const struct verb *verb, char **argv, int n) {
    char what[320];
    if (n < verb->least) {
        snprintf(what, sizeof what, "%s is missing", verb->operands);
        return bad(verb, what);
    }
    if (verb->most < 0 || n <= verb->most) return -1;
    snprintf(what, sizeof what, "one operand too many: '%.200s'", argv[verb->most + 1]);
    return bad(verb, what);
}

int parse_options(const struct verb *verb, int argc, char **argv, struct common *common, int *ret_operands) {
    struct given given = {0};
    int n = 0;
    const struct option_row every[] = {{"v verbose", OPT_ON, &messages.verbose},
                                       {"q quiet", OPT_ON, &messages.quiet},
                                       {"log", OPT_TEXT, &given.log},
                                       {"h help", OPT_ON, &given.help},
                                       {NULL}};
    const struct option_row url[] = {{"u url", OPT_TEXT, &given.url}, {NULL}};
    const struct option_row lock[] = {{"t ttl", OPT_DURATION, &given.ttl_ms, 100, 86400000},
                                      {"label", OPT_TEXT, &given.label},
                                      {"for", OPT_TEXT, &given.purpose},
                                      {NULL}};
    const struct option_row json[] = {{"json", OPT_ON, &given.json}, {NULL}};
    struct parser parser = {.verb = verb};
    parser.tables[parser.n_tables++] = verb->rows;
    parser.tables[parser.n_tables++] = every;
    if (verb->common & COMMON_URL) parser.tables[parser.n_tables++] = url;
    if (verb->common & COMMON_LOCK) parser.tables[parser.n_tables++] = lock;
    if (verb->common & COMMON_JSON) parser.tables[parser.n_tables++] = json;
    int code = parse_all(&parser, argc, argv, &n);
    messages.json = given.log && strcmp(given.log, "json") == 0;
    if (code < 0 && given.help) {
        fputs(verb->usage, stdout);
        return 0;
    }
    if (code < 0) code = check_operands(verb, argv, n);
    if (code < 0 && verb->url_operand && n >= verb->url_operand) {
        if (given.url) return bad(verb, "the URL is given twice");
        given.url = argv[verb->url_operand];
    }
    if (code < 0) code = settle(verb, common, &given);
    if (code < 0) *ret_operands = n;
    return code;
}
