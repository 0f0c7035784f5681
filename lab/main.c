/* main.c: pawl-lab, the workbench beside pawl: makes the known failures of locks happen on real servers, judges what
 * lock users did, and measures. Not needed to use locks. */
#include "lab.h"
#include "pawl.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name, *does;
    int (*run)(int argc, char **argv);
} verbs[] = {
    {"list", "the failures that it can show", lab_list},
    {"run", "make them happen on real servers: a plain lock, pawl, and pawl with a guard", lab_run},
    {"report", "a page with pictures of what was saved by run", lab_report},
    {"up", "a service to play with, until Ctrl-C", lab_up},
    {"torture", "random work and random faults, judged by what is promised", lab_torture},
    {"bench", "measure pawl beside the bare service, in the same run", lab_bench},
    {"check", "judge a history: overlaps, tokens, late acts, stale writes, starvation", lab_check},
};

int lab_complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("pawl-lab: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return LAB_FAILED;
}

int lab_writable(const char *path) {
    bool new = access(path, F_OK) != 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return lab_complain("cannot write %s: %s", path, strerror(errno));
    close(fd);
    if (new) unlink(path);
    return LAB_OK;
}

bool lab_duration(const char *text, int64_t *ret_ns) {
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}, {"", 1e9}};
    char *end;
    const char *first = text + (*text == '.'); /* ".3" too, but no sign, no blank, no "inf" */
    if (*first < '0' || *first > '9') return false;
    double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].name) == 0 && isfinite(value) && value * units[i].ns < 9e18) {
            *ret_ns = (int64_t)(value * units[i].ns);
            return true;
        }
    return false;
}

bool lab_number(const char *text, int64_t low, int64_t high, int64_t *ret) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high) return false;
    *ret = value;
    return true;
}

static void usage(FILE *to) {
    fputs("usage: pawl-lab VERB [options]\n", to);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) fprintf(to, "  %-8s %s\n", verbs[i].name, verbs[i].does);
    fputs("pawl-lab VERB --help tells more; see pawl-lab(1)\n", to);
}

/* Whoever reads standard output must not take half of it for the whole. */
static int told(int code) {
    return fflush(stdout) || ferror(stdout) ? lab_complain("cannot write to standard output") : code;
}

int main(int argc, char **argv) {
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage(stdout);
        return told(LAB_OK);
    }
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("pawl-lab %s\n", pawl_version());
        return told(LAB_OK);
    }
    for (size_t i = 0; argc > 1 && i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) return told(verbs[i].run(argc - 1, argv + 1));
    if (argc > 1) lab_complain("unknown verb: %s", argv[1]);
    usage(stderr);
    return LAB_FAILED;
}
