/* lab.h: what the verbs of pawl-lab share. A verb is one file with one lab_ function; main.c has the table. */
#ifndef LAB_LAB_H
#define LAB_LAB_H
#include <stdbool.h>
#include <stdint.h>

enum {
    LAB_OK = 0,
    LAB_FOUND = 1,    /* what was looked for was found: a violation, a bar missed */
    LAB_FAILED = 125, /* usage, unreadable input, no service: nothing can be said */
};

int lab_check(int argc, char **argv);
int lab_bench(int argc, char **argv);
int lab_list(int argc, char **argv);
int lab_run(int argc, char **argv);
int lab_up(int argc, char **argv);
int lab_torture(int argc, char **argv);
int lab_report(int argc, char **argv);

/* "pawl-lab: text" on stderr; returns LAB_FAILED. */
int lab_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Whether a file can be written there later, before there is anything to write: LAB_OK, or complains. */
int lab_writable(const char *path);
/* "250ms", "15s", "2m", "1h", "1.5" (seconds), "80us"; false: no duration, or negative. */
bool lab_duration(const char *text, int64_t *ret_ns);
/* A whole number, low .. high. */
bool lab_number(const char *text, int64_t low, int64_t high, int64_t *ret);
#endif
