/* cli.h: what every verb of the command shares. A verb is one file with one cmd_ function; main.c has the table. */
#ifndef PAWL_CLI_H
#define PAWL_CLI_H
#include "pawl.h"
#include <stdbool.h>
#include <stdint.h>

/* Exit codes (SPEC): the child's own pass through. */
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

int cmd_run(int argc, char **argv);
int cmd_hold(int argc, char **argv);
int cmd_release(int argc, char **argv);
int cmd_who(int argc, char **argv);
int cmd_ls(int argc, char **argv);
int cmd_guard(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_version(int argc, char **argv);

/* The exit code for a PAWL_E... code. */
int exit_code(int pawl_code);
/* "pawl: NAME: text" on stderr; name may be NULL. Returns code, so that `return complain(EXIT_FAILED, ...)` reads well. */
int complain(int code, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* "250ms", "15s", "2m", "1h", "1.5" (seconds); false: not a duration, negative, or over 10 years. */
bool parse_duration(const char *text, int64_t *ret_ms);
/* 0 .. 255. */
bool parse_exit_code(const char *text, int *ret);
/* "4 min 12 s", "3 s", "250 ms": for people. */
void format_duration(int64_t ms, char *ret, size_t size);
/* Bounded copy of text as a JSON string, with quotes; invalid UTF-8 becomes U+FFFD. */
void print_json_string(void *file, const char *text);
#endif
