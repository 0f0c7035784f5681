/* cli.h: what every verb of the command shares. A verb is one file with one cmd_ function; main.c has the table.
 *
 * stdout is for results only. Messages go to stderr as "pawl: NAME: text", or as one JSON object a line with --log
 * json. */
#ifndef PAWL_CLI_H
#define PAWL_CLI_H
#include "pawl.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes (pawl(1)); the child's own pass through. */
enum {
    EXIT_REFUSED = 119,     /* this set-up cannot give what was asked */
    EXIT_UNREACHABLE = 120, /* no service, or it denied us */
    EXIT_STALE = 121,       /* a guard refused the token */
    EXIT_LOST = 122,        /* lock lost or unproven */
    EXIT_BUSY = 123,        /* -n */
    EXIT_TIMEOUT = 124,     /* -w */
    EXIT_FAILED = 125,      /* pawl failed otherwise, usage included */
    EXIT_CANNOT_EXEC = 126,
    EXIT_NOT_FOUND = 127
};

/* argv[0] is the verb; the result is the exit code. */
int cmd_run(int argc, char **argv);
int cmd_hold(int argc, char **argv);
int cmd_release(int argc, char **argv);
int cmd_who(int argc, char **argv);
int cmd_ls(int argc, char **argv);
int cmd_watch(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_break(int argc, char **argv);
int cmd_init(int argc, char **argv);
int cmd_token(int argc, char **argv);
int cmd_guard(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_version(int argc, char **argv);

/* The exit code for a PAWL_E... or PAWL_G... code. */
int exit_code(int pawl_code);

/* How messages are printed; set by parse_options (options.h). */
struct messages {
    bool verbose, quiet, json;
};
extern struct messages messages;

/* One message on stderr, always. name may be NULL. Returns code, so that `return complain(EXIT_FAILED, ...)` reads
 * well. Control characters are shown as \xNN. */
int complain(int code, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same, from what the library said; returns its exit code. */
int complain_error(const char *name, const pawl_error *error);
/* The same unless -q: a warning, and what is only good to know; and only with -v. */
void warn(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void inform(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void advise(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "250ms", "15s", "2m", "1h", "1.5" (seconds; rounded up to milliseconds); false: not a duration, negative, or over 10
 * years. */
bool parse_duration(const char *text, int64_t *ret_ms);
/* The other way round, as one may write it: "100ms", "15s", "24h". */
void spell_duration(int64_t ms, char *ret, size_t size);
/* 0 .. 255. */
bool parse_exit_code(const char *text, int *ret);
/* "4 min 12 s", "3 s", "250 ms": for people. */
void format_duration(int64_t ms, char *ret, size_t size);
/* Wall clock in ms since 1970 as "2026-11-30T14:03:07.250Z", for JSON. */
void format_time(int64_t wall_ms, char *ret, size_t size);
/* The same for people: "14:01:07" local time, with the date in front when it is another day. */
void format_clock(int64_t wall_ms, char *ret, size_t size);
/* text as a JSON string, with quotes; invalid UTF-8 becomes U+FFFD, what text_plain denies \uNNNN; NULL is null. file
 * is a FILE *. */
void print_json_string(void *file, const char *text);
/* Text from elsewhere for a terminal: what text_plain (text.h) denies as \xNN. file is a FILE *. */
void print_plain(void *file, const char *text);
/* Writes out what was printed on stdout; false: that, or an earlier one, could not be written, which is said at once.
 */
bool flush_stdout(const char *name);
/* A terminal that wants colours: NO_COLOR and TERM=dumb are honoured. */
bool use_colour(int fd);

/* The nearest of some words, for "did you mean". Begin with {.text = what was given}; .word is NULL if none is near. */
struct nearest {
    const char *text, *word;
    size_t distance;
};
void nearest_offer(struct nearest *nearest, const char *candidate);
#endif
