/* options.h: one small option parser for all verbs, with the options that they share.
 *
 * A verb describes itself in a struct verb, and parse_options does the rest: it refuses what is unknown and says what
 * was probably meant, prints --help, reads the configuration, settles the URL, and hides passwords from ps. */
#ifndef PAWL_OPTIONS_H
#define PAWL_OPTIONS_H
#include "cli.h"

enum option_kind {
    OPT_ON,       /* *(bool *)to = true */
    OPT_OFF,      /* *(bool *)to = false */
    OPT_TEXT,     /* *(const char **)to: points into argv */
    OPT_DURATION, /* *(int64_t *)to in ms, from min to max (0: 10 years) */
    OPT_NUMBER,   /* *(int64_t *)to, from min to max */
    OPT_EXIT_CODE /* *(int *)to, 0 .. 255 */
};

struct option_row {
    const char *names; /* "w wait timeout": one letter is -w, more are --wait; the first long one is used in messages */
    enum option_kind kind;
    void *to;
    int64_t min, max;
};

/* Which of the common options a verb has. */
enum {
    COMMON_URL = 1,  /* -u --url; the URL is settled */
    COMMON_LOCK = 2, /* -t --ttl, --label, --for */
    COMMON_JSON = 4  /* --json */
};
/* Every verb has -v -q --log --help. */
struct common {
    const char *url;   /* settled: never NULL after parse_options with COMMON_URL */
    const char *label; /* NULL: none */
    const char *from;  /* where the URL came from: "-u", "PAWL_URL", a configuration file, "default" */
    int64_t ttl_ms;
    bool for_correctness, for_efficiency, json; /* for_...: what was said; neither: nothing */
};
#define COMMON_INIT                                                                                                    \
    { .ttl_ms = 15000 }

struct verb {
    const char *name;
    const char *usage;             /* the text of --help, ended by a newline */
    const struct option_row *rows; /* own options, ended by one without names; NULL: none */
    unsigned common;               /* COMMON_... */
    bool mixed;           /* options may stand behind operands; else everything behind the first is left alone */
    int least, most;      /* operands; most < 0: any number */
    const char *operands; /* for the message: "NAME" */
    int url_operand;      /* the operand that may be there instead of -u; 0: none */
};

/* Compacts argv: afterwards argv[1 .. *ret_operands] are the operands ("--" in front of the first is gone).
 * -1: go on. Else the exit code with which to end: 0 after --help, or 125 and the culprit was named. */
int parse_options(const struct verb *verb, int argc, char **argv, struct common *common, int *ret_operands);

/* What pawl_open is to be given. */
void common_options(const struct common *common, pawl_options *ret);
/* Opens the settled URL. 0, or the exit code and the reason was printed. */
int open_client(const struct common *common, const char *name, pawl_client **ret);
/* The same with options that began as common_options: an observer, a margin. */
int open_client_with(const struct common *common, const pawl_options *options, const char *name, pawl_client **ret);
/* A URL for people: without its secrets, and file: with its directory; to be freed. */
char *shown_url(const char *url);
/* Overwrites text, which stands where ps can see it, with its shown form; NULL if there was no secret, else a copy. */
char *hide(char *text);
#endif
