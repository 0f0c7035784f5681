/* report.c: what `pawl run` prints, and with which code it ends.
 *
 * A terminal that was stopped with Ctrl-S, or a pipe that nobody reads, blocks whoever writes to it; so nothing is
 * written while the lock is held unless stderr can take it at once. The last words come when the tree is dead. */
#include "clock.h"
#include "run.h"
#include "text.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static bool can_write(void) {
    struct pollfd p = {.fd = 2, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT);
}

void report_progress(const struct run *run, const char *format, ...) {
    char text[640];
    if (!messages.verbose || !can_write()) return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    advise(run->options.name, "%s", text);
}

void report_remark(const struct run *run, const char *text) {
    if (can_write()) warn(run->options.name, "%s", text);
}

bool waiting_draws(const struct run *run) { return run->stderr_terminal && !messages.json; }

int waiting_each_ms(const struct run *run) {
    bool draws = waiting_draws(run);
    if (!run->options.wait_ms || !(draws ? !messages.quiet : messages.verbose)) return 0;
    return draws ? 1000 : 60000;
}

/* Text for a terminal, in place: what must not be shown becomes '?', and no more than so many characters stay. Returns
 * how many there are. */
static int tame_line(char *line, int columns) {
    char *to = line;
    int n = 0;
    for (uint32_t code; *line && n < columns; n++) {
        size_t bytes = text_next(line, &code);
        if (text_plain(code)) memmove(to, line, bytes), to += bytes;
        else *to++ = '?';
        line += bytes;
    }
    *to = 0;
    return n;
}

void report_waiting(const struct run *run, int64_t waited_ms, const char *text) {
    char line[640], waited[32];
    struct winsize window;
    format_duration(waited_ms / 1000 * 1000, waited, sizeof waited);
    if (!waiting_draws(run)) {
        if (text) report_progress(run, "waiting %s%s%s", waited, *text ? ", " : "", text);
        return;
    }
    if (!can_write() || tcgetpgrp(2) != getpgrp()) return;
    if (!text) {
        if (write(2, "\r\033[K", 4) < 0) return;
        return;
    }
    int columns = ioctl(2, TIOCGWINSZ, &window) == 0 && window.ws_col > 20 ? window.ws_col - 1 : 79;
    snprintf(line, sizeof line, "pawl: %s: waiting %s%s%s", run->options.name, waited, *text ? ", " : "", text);
    int n = tame_line(line, columns);
    bool room = columns - n > 12;
    dprintf(2, "\r%s%s\033[K", line, room ? "   ^C leaves" : "");
}

/* --- the end --- */

static int code_of_status(int status) {
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : EXIT_FAILED;
}

static const char *command_name(const struct run *run) {
    const char *slash = strrchr(run->options.command[0], '/');
    return slash && slash[1] ? slash + 1 : run->options.command[0];
}

static int report_not_taken(const struct run *run, const struct run_result *result) {
    int code = exit_code(result->code);
    if (result->code != PAWL_EBUSY && result->code != PAWL_ETIMEOUT)
        return complain(code, run->options.name, "%s", result->text);
    if ((run->stderr_terminal && !messages.quiet) || messages.verbose)
        complain(code, run->options.name, "%s", result->text);
    return run->options.conflict_code >= 0 ? run->options.conflict_code : code;
}

static int report_lost(const struct run *run, const struct run_result *result) {
    char held[32], fate[200] = "", told[40], gone[40], at[40];
    format_duration(result->held_ms, held, sizeof held);
    format_clock(result->gone_wall_ms ? result->gone_wall_ms : clock_wall_us() / 1000, gone, sizeof gone);
    format_clock(result->told_wall_ms, told, sizeof told);
    format_clock(clock_wall_us() / 1000, at, sizeof at);
    if (result->cmd && result->told_wall_ms)
        snprintf(fate, sizeof fate, "; %.32s (pid %d) got TERM at %s and was gone at %s", command_name(run),
                 (int)result->cmd, told, gone);
    else if (result->cmd)
        snprintf(fate, sizeof fate, "; %.32s (pid %d) got KILL at %s", command_name(run), (int)result->cmd, gone);
    complain(EXIT_LOST, run->options.name, "%s after %s: %s%s",
             result->lost_reason == PAWL_LOST_MAX_HOLD ? "ENDED" : "LOST", held, result->text, fate);
    if (result->late_ms >= run->margin_ms && !result->stopped_ms)
        warn(run->options.name, "timers of this machine came %lld ms late: use a longer ttl",
             (long long)result->late_ms);
    if (result->spared)
        complain(EXIT_LOST, run->options.name, "pid %d could not be killed (another user's?) and still runs",
                 (int)result->spared_pid);
    return EXIT_LOST;
}

/* What went well this time, and might not the next. */
static void report_narrow(const struct run *run, const struct run_result *result) {
    long long ttl = run->options.common.ttl_ms;
    if (result->least_left_ms == INT64_MAX) return;
    if (result->stopped_ms > run->margin_ms) {
        warn(run->options.name, "the process that renews was stopped for %lld ms, with a ttl of %lld ms",
             (long long)result->stopped_ms, ttl);
        return;
    }
    if (result->least_left_ms < ttl / 4)
        warn(run->options.name,
             "renewals came late: %lld ms of a ttl of %lld ms were left at the worst; use a longer ttl",
             (long long)result->least_left_ms, ttl);
    if (result->late_ms >= run->margin_ms)
        warn(run->options.name,
             "timers of this machine came %lld ms late, more than the margin of %lld ms: use a longer "
             "ttl",
             (long long)result->late_ms, (long long)run->margin_ms);
}

static int report_ran(const struct run *run, const struct run_result *result) {
    int code = code_of_status(result->status);
    if (*result->left_behind) warn(run->options.name, "left running without the lock: %s", result->left_behind);
    report_narrow(run, result);
    if (result->code == PAWL_OK) return code;
    if (result->code == PAWL_ELOST) return complain(EXIT_LOST, run->options.name, "%s", result->text);
    complain(code, run->options.name, "%s exited with %d, but the release failed: %s", command_name(run), code,
             result->text);
    return result->unproven ? EXIT_LOST : code;
}

int report_end(const struct run *run, const struct run_result *result) {
    switch (result->outcome) {
    case OUTCOME_RAN: return report_ran(run, result);
    case OUTCOME_LOST: return report_lost(run, result);
    case OUTCOME_NOT_TAKEN: return report_not_taken(run, result);
    case OUTCOME_CANNOT_EXEC:
        return complain(result->exec_errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXEC, run->options.name,
                        "cannot run %s: %s", run->options.command[0], strerror(result->exec_errno));
    case OUTCOME_CANCELLED: return 128 + result->status;
    case OUTCOME_NONE: break;
    }
    return complain(EXIT_FAILED, run->options.name, "%s", *result->text ? result->text : "no result");
}
