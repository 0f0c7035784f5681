#include "terminal.h"
#include "clock.h"
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000 };

void pty_open(struct pty *pty) {
    *pty = (struct pty){.fd = -1};
    struct winsize size = {.ws_row = 30, .ws_col = 200};
    pid_t parent = getpid();
    pty->bash = forkpty(&pty->fd, NULL, NULL, &size);
    assert_true(pty->bash >= 0);
    if (pty->bash == 0) {
        sigset_t none;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        for (int sig = 1; sig < NSIG; sig++) signal(sig, SIG_DFL);
        setenv("PS1", "PS> ", 1);
        setenv("TERM", "dumb", 1);
        setenv("LC_ALL", "C", 1);
        unsetenv("PROMPT_COMMAND");
        execlp("bash", "bash", "--norc", "--noprofile", "--noediting", "-i", (char *)NULL);
        _exit(127);
    }
    pty_prompt(pty);
}

/* false: nothing more will come, or time is over. */
static bool more(struct pty *pty, int64_t until) {
    struct pollfd p = {.fd = pty->fd, .events = POLLIN};
    if (poll(&p, 1, clock_poll_ms(clock_now_ns(), until)) <= 0) return false;
    ssize_t n = read(pty->fd, pty->seen + pty->length, sizeof pty->seen - 1 - pty->length);
    if (n <= 0) return false;
    pty->length += (size_t)n;
    pty->seen[pty->length] = 0;
    return true;
}

void pty_close(struct pty *pty) {
    if (pty->fd >= 0) close(pty->fd);
    pty->fd = -1;
    kill(pty->bash, SIGKILL);
    waitpid(pty->bash, NULL, 0);
    pty->bash = 0;
}

static void type(struct pty *pty, const char *format, va_list args) {
    char text[4096];
    int n = vsnprintf(text, sizeof text, format, args);
    assert_true(n >= 0 && n < (int)sizeof text);
    assert_int_equal(write(pty->fd, text, (size_t)n), n);
}

void pty_type(struct pty *pty, const char *format, ...) {
    va_list args;
    va_start(args, format);
    type(pty, format, args);
    va_end(args);
}

void pty_expect(struct pty *pty, const char *text) {
    int64_t until = clock_after_ms(clock_now_ns(), PATIENCE_MS);
    for (;;) {
        char *found = strstr(pty->seen + pty->at, text);
        if (found) {
            pty->at = (size_t)(found - pty->seen) + strlen(text);
            return;
        }
        if (more(pty, until)) continue;
        fprintf(stderr, "transcript:\n%s\n", pty->seen); /* too long for cmocka */
        fail_msg("'%s' did not come", text);
    }
}

void pty_line(struct pty *pty, const char *format, ...) {
    va_list args;
    va_start(args, format);
    type(pty, format, args);
    va_end(args);
    pty_type(pty, " # go\r");
    pty_expect(pty, "# go\r\n");
}

void pty_prompt(struct pty *pty) { pty_expect(pty, "PS> "); }

int pty_count(const struct pty *pty, size_t from, size_t to, const char *text) {
    int n = 0;
    for (const char *at = pty->seen + from; (at = strstr(at, text)) && (size_t)(at - pty->seen) < to; at++) n++;
    return n;
}

void pty_idle(struct pty *pty, int ms) {
    int64_t until = clock_after_ms(clock_now_ns(), ms);
    while (more(pty, until)) {
    }
}
