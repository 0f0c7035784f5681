/* holder.c: the middle process of `pawl run`: takes the lock, keeps it, watches CMD, and sees to it that the tree is
 * dead before anybody else can have the lock. See run.h for the whole.
 *
 * It is in a process group of its own and blocks every signal: what a terminal sends to its foreground group, what kill
 * %1 sends, and SIGTTOU for a message from the background must never stop or end the one who renews. */
#include "holder.h"
#include "clock.h"
#include "tree.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    RELEASE_MS = 2000,     /* for the last question to the service */
    LOST_MS = 200,         /* the same when there is little to hope for */
    PASS_ON_MS = 200,      /* for helpers of a command that a signal ended */
    CLEAR_MS = 300,        /* for front to erase the waiting line */
    KILL_EACH_NS = 100000, /* what a large tree needs on top of the kill time, for each process */
    MOST_FDS = 16
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* --- to front --- */

static void send_fds(int sock, char message, int *fds, size_t n) {
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = &message, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(header), fds, n * sizeof(int));
    }
    while (sendmsg(sock, &msg, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
}

/* A message of front: 0: none, -1: front is gone, else the signal with which to leave. */
static int read_front(const struct holder *h) {
    unsigned char message[2];
    ssize_t n = recv(h->sock, message, sizeof message, MSG_DONTWAIT);
    if (n <= 0) return n < 0 ? 0 : -1;
    return n == 2 && message[0] == MESSAGE_CANCEL ? message[1] : 0;
}

/* --- the lock --- */

/* Brings the safe deadline up to date. A lock that is lost keeps the last one: nobody else had it before. */
static bool look_at_lock(struct holder *h) {
    int64_t now = clock_now_ns(), left = pawl_remaining_ms(h->lock);
    bool held = pawl_check(h->lock) == PAWL_OK;
    if (held) atomic_store(&h->shared->safe_ns, clock_after_ms(now, left));
    if (held && left != PAWL_FOREVER) h->shared->result.least_left_ms = least(h->shared->result.least_left_ms, left);
    return held;
}

static void open_timers(struct holder *h) {
    h->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    h->lost_fd = pawl_lost_fd(h->lock); /* without a lease as well: a session may end */
}

static void arm(struct holder *h, int64_t at_ns) {
    struct itimerspec when = {0};
    if (at_ns <= 0) at_ns = 1;
    if (at_ns != INT64_MAX) when.it_value = (struct timespec){.tv_sec = at_ns / NS_PER_S, .tv_nsec = at_ns % NS_PER_S};
    timerfd_settime(h->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
    h->armed_ns = at_ns;
}

/* Who has it and for how long is asked for only if somebody will read it. */
static void name_holder(struct holder *h, int code) {
    char who[240], waited[32];
    struct run_result *result = &h->shared->result;
    bool read = h->run->stderr_terminal || messages.verbose || h->run->receipt_fd >= 0;
    if (!read || !watch_holder(h->client, h->run, who, sizeof who)) return;
    format_duration(result->waited_ms, waited, sizeof waited);
    if (code == PAWL_EBUSY) snprintf(result->text, sizeof result->text, "busy, %s", who);
    else snprintf(result->text, sizeof result->text, "waited %s, %s", waited, who);
}

static void not_taken(struct holder *h, int code, const pawl_error *error) {
    struct run_result *result = &h->shared->result;
    result->outcome = OUTCOME_NOT_TAKEN;
    result->code = code;
    snprintf(result->text, sizeof result->text, "%s", *error->text ? error->text : pawl_strerror(code));
    if (code == PAWL_EBUSY || code == PAWL_ETIMEOUT) name_holder(h, code);
    if (code != PAWL_ECANCELLED) return;
    result->outcome = OUTCOME_CANCELLED;
    int sig = read_front(h);
    result->status = sig > 0 ? sig : SIGTERM;
}

static bool take(struct holder *h) {
    pawl_options options;
    pawl_acquire_options how = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    int64_t began = clock_now_ns();
    common_options(&h->run->options.common, &options);
    if (h->run->seal) options.for_correctness = 0; /* the guard stands in for what the service cannot promise */
    options.observe = holder_observe;
    options.pid = h->run->front; /* whoever is told to kill it must reach the one that passes signals on */
    options.observe_data = h;
    how.wait_ms = h->run->options.wait_ms;
    how.shared = h->run->options.shared;
    how.cancel_fd = h->sock;
    int code = pawl_open(h->run->options.common.url, &options, &h->client, &error);
    if (!code) {
        struct watcher *watcher = NULL;
        if (waiting_each_ms(h->run)) watcher = watch_start(h->client, h->run);
        code = pawl_acquire(h->client, h->run->options.name, &how, &h->lock, &error);
        watch_stop(watcher);
    }
    h->granted_ns = clock_now_ns();
    h->shared->result.waited_ms = (h->granted_ns - began) / NS_PER_MS;
    if (code) not_taken(h, code, &error);
    return code == PAWL_OK;
}

/* The resource learns the token before the command can run; if it refuses, the lock goes back. */
static bool seal(struct holder *h) {
    pawl_error error = PAWL_ERROR_INIT;
    const struct run_options *options = &h->run->options;
    if (!h->run->seal) return true;
    int code = seal_raise(h->run->seal, pawl_token(h->lock), h->child.pid, options->command[0], h->sock, &error);
    if (code) not_taken(h, code, &error);
    return code == PAWL_OK;
}

/* Front must have erased its line before the command can write. */
static void clear_line(const struct holder *h) {
    struct pollfd p = {.fd = h->sock, .events = POLLIN};
    int64_t until = clock_after_ms(clock_now_ns(), CLEAR_MS);
    while (atomic_load(&h->shared->line_shown) && poll(&p, 1, clock_poll_ms(clock_now_ns(), until)) > 0) {
        unsigned char message[2];
        if (recv(h->sock, message, sizeof message, MSG_PEEK | MSG_DONTWAIT) != 1) return; /* leave it to others */
        if (recv(h->sock, message, 1, MSG_DONTWAIT) < 0) return;
    }
}

/* The first reason counts. */
static void set_lost(struct holder *h, int reason, const char *text) {
    struct run_result *result = &h->shared->result;
    result->outcome = OUTCOME_LOST;
    result->code = PAWL_ELOST;
    if (!*result->text) result->lost_reason = reason;
    if (!*result->text) snprintf(result->text, sizeof result->text, "%s", text);
}

/* A command that would be told to end at once is not started. */
static bool in_time(struct holder *h) {
    int64_t safe = atomic_load(&h->shared->safe_ns);
    pawl_error error = PAWL_ERROR_INIT;
    if (clock_now_ns() < told_at(h->run, safe)) return true;
    snprintf(error.text, sizeof error.text,
             "granted too late: %lld ms are left of a ttl of %lld ms, no more than the command may need to end; "
             "use a larger ttl",
             (long long)pawl_remaining_ms(h->lock), (long long)h->run->options.common.ttl_ms);
    not_taken(h, PAWL_EUNREACHABLE, &error);
    return false;
}

/* Granted: tells front, and lets the command go. */
static bool start_command(struct holder *h) {
    int fds[MOST_FDS];
    struct run_result *result = &h->shared->result;
    int n = pawl_holding_fds(h->lock, fds, MOST_FDS);
    result->token = pawl_token(h->lock);
    result->cmd = h->child.pid;
    if (!look_at_lock(h)) { /* --seal took too long */
        set_lost(h, holder_lost_reason(PAWL_LOST_UNPROVEN), "the lock was lost before the command was started");
        return false;
    }
    if (!in_time(h)) return false;
    atomic_store(&h->shared->cmd, h->child.pid);
    atomic_store(&h->shared->phase, PHASE_HELD);
    send_fds(h->sock, MESSAGE_HELD, fds, n > 0 ? (size_t)n : 0);
    clear_line(h);
    holder_tell_remark(h);
    int sig = read_front(h); /* -1 is for the loop, which kills */
    if (sig > 0) {
        result->outcome = OUTCOME_CANCELLED;
        result->status = sig;
        return false;
    }
    report_progress(h->run, "held, token %lld, after %lld ms", (long long)result->token, (long long)result->waited_ms);
    child_go(&h->child, result->token); /* a failure shows as the end of CMD */
    return true;
}

/* --- losing it --- */

/* Tells the tree to end, and fixes when it is killed. */
static void stop_tree(struct holder *h, int reason, const char *text, bool at_once) {
    int64_t now = clock_now_ns(), safe = atomic_load(&h->shared->safe_ns);
    int64_t latest = safe == INT64_MAX ? safe : safe - h->run->kill_ms * NS_PER_MS;
    set_lost(h, reason, text);
    h->stopping = true;
    atomic_store(&h->shared->phase, PHASE_STOPPING);
    h->kill_ns = at_once ? now : least(latest, clock_after_ms(now, h->run->grace_ms));
    if (at_once) return;
    h->shared->result.told_wall_ms = clock_wall_us() / 1000;
    size_t n = tree_signal(getpid(), SIGTERM, 0, 1);
    if (latest != INT64_MAX) h->kill_ns = least(h->kill_ns, latest - (int64_t)n * KILL_EACH_NS);
}

static void kill_tree(struct holder *h) {
    struct tree_death death;
    struct run_result *result = &h->shared->result;
    atomic_store(&h->shared->cmd_gone, 1);
    tree_kill(h->child.pid, &death);
    if (death.leader_status >= 0 && result->status < 0) result->status = death.leader_status;
    result->spared = death.spared;
    result->spared_pid = death.spared_pid;
    h->tree_dead = true;
}

static void check_lease(struct holder *h) {
    bool at_once = h->run->options.kill_at_once, held = look_at_lock(h);
    int64_t now = clock_now_ns(), safe = atomic_load(&h->shared->safe_ns);
    char text[560];
    if (h->stopping) return;
    holder_tell_doubt(h);
    if (!held) {
        int reason = h->shared->result.stopped_ms ? METRICS_LOST_WATCHER : holder_lost_reason(PAWL_LOST_GONE);
        holder_doubt(text, sizeof text);
        if (h->shared->result.stopped_ms)
            snprintf(text, sizeof text, "the process that renews (pid %d) was stopped", (int)getpid());
        stop_tree(h, reason, *text ? text : "the lock is not ours any more", at_once);
    } else if (h->max_hold_ns <= now) {
        stop_tree(h, PAWL_LOST_MAX_HOLD, "held for as long as --max-hold allows", false);
    } else if (now >= told_at(h->run, safe)) {
        holder_doubt(text, sizeof text);
        stop_tree(h, PAWL_LOST_UNPROVEN, *text ? text : "no renewal was confirmed in time", at_once);
    }
}

/* When to look again. */
static int64_t next_look(const struct holder *h) {
    int64_t safe = atomic_load(&h->shared->safe_ns), now = clock_now_ns();
    if (h->stopping) return h->kill_ns;
    int64_t at = h->max_hold_ns;
    if (safe != INT64_MAX) {
        at = least(at, told_at(h->run, safe));
        at = least(at, clock_after_ms(now, look_each_ms(h->run, safe - now))); /* publish renewals */
    }
    if (atomic_load(&h->shared->front_stops)) at = least(at, clock_after_ms(now, 10));
    return at;
}

/* --- CMD and its tree --- */

static void command_ended(struct holder *h, const siginfo_t *info) {
    atomic_store(&h->shared->cmd_gone, 1);
    h->command_ended = true;
    if (h->shared->result.status < 0)
        h->shared->result.status = info->si_code == CLD_EXITED ? (info->si_status & 0xff) << 8 : info->si_status;
}

static void command_stopped(struct holder *h, const siginfo_t *info) {
    if (info->si_code == CLD_STOPPED) {
        atomic_store(&h->shared->stop_signal, info->si_status);
        send_fds(h->sock, MESSAGE_STOPPED, NULL, 0);
    } else if (info->si_code == CLD_CONTINUED) {
        atomic_store(&h->shared->stop_signal, 0);
        kill(h->run->front, SIGCONT);
    }
}

/* A stop is taken before anything is done about it, or the next one could be taken for it: the message wakes front, and
 * fg and another ^Z may come before we run again. The dead are looked at before they are reaped: until then front may
 * signal CMD by its pid. */
static void reap(struct holder *h) {
    siginfo_t info;
    while (info.si_pid = 0, waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 && info.si_pid)
        if (info.si_pid == h->child.pid) command_stopped(h, &info);
    for (;;) {
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT)) h->tree_dead = errno == ECHILD;
        if (info.si_pid == 0) return;
        if (info.si_pid == h->child.pid) command_ended(h, &info);
        waitpid(info.si_pid, NULL, WNOHANG);
    }
}

static void read_exec(struct holder *h) {
    int error = 0;
    ssize_t n = read(h->child.exec, &error, sizeof error);
    if (n == sizeof error) h->shared->result.exec_errno = error;
    close(h->child.exec);
    h->child.exec = -1;
}

/* CMD continued while front was on its way to stop itself: the signal may have come too early. */
static void wake_front(const struct holder *h) {
    if (atomic_load(&h->shared->front_stops) && !atomic_load(&h->shared->stop_signal)) kill(h->run->front, SIGCONT);
}

static void front_died(struct holder *h) {
    set_lost(h, METRICS_LOST_WATCHER, "the process that you started was killed");
    h->front_dead = true;
    kill_tree(h);
}

static void read_socket(struct holder *h) {
    int sig = read_front(h);
    if (sig < 0) h->sock_closed = true; /* the pidfd follows */
    if (sig > 0 && !h->command_ended) kill(h->child.pid, sig);
}

static void drain(int fd) {
    char buffer[sizeof(struct signalfd_siginfo) * 4];
    while (read(fd, buffer, sizeof buffer) > 0) continue;
}

static bool over(const struct holder *h) { return h->tree_dead || (h->command_ended && !h->stopping); }

/* Until CMD has ended, or, when the lock is lost, until the tree is dead. */
static void keep(struct holder *h) {
    enum { CHLD, SOCK, FRONT, TIMER, EXEC, LOST, N };
    while (!over(h)) {
        struct pollfd p[N] = {[CHLD] = {.fd = h->signal_fd, .events = POLLIN},
                              [SOCK] = {.fd = h->sock_closed ? -1 : h->sock, .events = POLLIN},
                              [FRONT] = {.fd = h->front_fd, .events = POLLIN},
                              [TIMER] = {.fd = h->timer_fd, .events = POLLIN},
                              [EXEC] = {.fd = h->child.exec, .events = POLLIN},
                              [LOST] = {.fd = h->stopping ? -1 : h->lost_fd, .events = POLLIN}};
        arm(h, next_look(h));
        if (poll(p, N, -1) < 0 && errno != EINTR) break;
        if (p[FRONT].revents) {
            front_died(h);
            return;
        }
        if (p[TIMER].revents) {
            holder_note_lateness(h);
            drain(h->timer_fd);
        }
        wake_front(h);
        if (p[EXEC].revents) read_exec(h);
        if (p[SOCK].revents) read_socket(h);
        if (p[CHLD].revents) {
            drain(h->signal_fd);
            reap(h);
        }
        if (over(h)) break;
        check_lease(h);
        if (h->stopping && clock_now_ns() >= h->kill_ns) kill_tree(h);
    }
    if (h->child.exec >= 0) read_exec(h);
}

/* --- the end --- */

/* A command that was ended by a signal to pawl may leave helpers in its group, which would have got the signal if it
 * had been sent to the group, as timeout(1) and a terminal do: they get it now, and a moment to end while the lock is
 * held. */
static void pass_on(struct holder *h, int status) {
    int sig = atomic_load(&h->shared->forwarded);
    int64_t until = clock_after_ms(clock_now_ns(), PASS_ON_MS);
    if (!sig || !WIFSIGNALED(status) || WTERMSIG(status) != sig) return;
    if (!tree_signal(getpid(), sig, h->run->terminal ? getpgid(h->run->front) : h->child.pid, 0)) return;
    while (!h->tree_dead && clock_wait_fd(h->signal_fd, POLLIN, until, -1) == 1) {
        drain(h->signal_fd);
        reap(h);
    }
}

/* --hold-at-least: until then, until the lock is lost, or until front says that the user has had enough. */
static void hold_on(struct holder *h) {
    enum { SOCK, FRONT, TIMER, LOST, N };
    int64_t at = clock_after_ms(h->granted_ns, h->run->options.hold_at_least_ms);
    while (!atomic_load(&h->shared->asked_to_end) && clock_now_ns() < at && pawl_check(h->lock) == PAWL_OK) {
        struct pollfd p[N] = {[SOCK] = {.fd = h->sock_closed ? -1 : h->sock, .events = POLLIN},
                              [FRONT] = {.fd = h->front_fd, .events = POLLIN},
                              [TIMER] = {.fd = h->timer_fd, .events = POLLIN},
                              [LOST] = {.fd = h->lost_fd, .events = POLLIN}};
        arm(h, at);
        if (poll(p, N, -1) <= 0) continue;
        if (p[FRONT].revents || p[LOST].revents || (p[SOCK].revents && read_front(h) != 0)) return;
    }
}

static void let_go(struct holder *h) {
    struct run_result *result = &h->shared->result;
    pawl_error error = PAWL_ERROR_INIT;
    int code = PAWL_OK;
    if (h->lock) {
        result->held_ms = (clock_now_ns() - h->granted_ns) / NS_PER_MS;
        code = pawl_release(h->lock, result->outcome == OUTCOME_LOST ? LOST_MS : RELEASE_MS, &error);
        if (code && result->outcome == OUTCOME_RAN) {
            result->code = code;
            result->lost_reason = holder_lost_reason(PAWL_LOST_GONE);
            result->unproven = h->run->options.receipt || h->run->options.common.for_correctness;
            snprintf(result->text, sizeof result->text, "%s", error.text);
        }
    }
    if (h->client && code != PAWL_EUNREACHABLE) pawl_close(h->client); /* else it would only try once more */
}

static void conclude(struct holder *h) {
    struct run_result *result = &h->shared->result;
    bool told = result->told_wall_ms && !h->stopping; /* by front, because we were stopped */
    if (!h->stopping && !h->front_dead && result->exec_errno) {
        result->outcome = OUTCOME_CANNOT_EXEC;
    } else if (h->stopping || h->front_dead || told || pawl_check(h->lock) != PAWL_OK) {
        if (told) set_lost(h, PAWL_LOST_UNPROVEN, "no renewal was confirmed in time");
        else if (!h->stopping && !h->front_dead) /* all of us were stopped, or the machine slept */
            set_lost(h, PAWL_LOST_UNPROVEN, "the command ran past the time for which the lock was proven");
        if (!h->tree_dead) kill_tree(h);
        result->gone_wall_ms = clock_wall_us() / 1000;
        if (h->stopping || h->front_dead) watch_name_successor(h->client, h->run);
    } else {
        result->outcome = OUTCOME_RAN;
        if (!h->tree_dead) {
            pass_on(h, result->status);
            tree_names(getpid(), h->shared->result.left_behind, sizeof h->shared->result.left_behind);
        }
    }
    atomic_store(&h->shared->phase, PHASE_ENDED);
    if (result->outcome == OUTCOME_RAN && h->run->options.hold_at_least_ms) hold_on(h);
}

static _Noreturn void finish(struct holder *h) {
    let_go(h);
    holder_tell_remark(h);
    bool orphan = h->front_dead || getppid() != h->run->front;
    if (orphan) record_outcome(h->run, &h->shared->result, report_end(h->run, &h->shared->result));
    atomic_store(&h->shared->phase, PHASE_DONE);
    _exit(0);
}

/* It was never told to go; whoever waits for us must not find it left behind. */
static void drop_command(const struct holder *h) {
    kill(h->child.pid, SIGKILL);
    waitpid(h->child.pid, NULL, 0);
}

static void set_up(struct holder *h) {
    sigset_t chld;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "pawl-holder"); /* killall of one name should not hit both watchers */
    h->front_fd = pidfd_open(h->run->front, 0);
    if (h->front_fd < 0 || getppid() != h->run->front) _exit(0);
    int error = child_fork(h->run, &h->child);
    setpgid(0, 0); /* not earlier: CMD stays in front's group */
    if (error) {
        snprintf(h->shared->result.text, sizeof h->shared->result.text, "cannot fork: %s", strerror(error));
        atomic_store(&h->shared->phase, PHASE_DONE);
        _exit(0);
    }
    drop_stdio();
    int kept[] = {h->sock, h->front_fd, h->child.go, h->child.exec, h->run->receipt_fd};
    keep_only(kept, sizeof kept / sizeof *kept);
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    h->signal_fd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    const char *command = h->run->options.command[0], *slash = strrchr(command, '/');
    program_invocation_short_name = (char *)(slash && slash[1] ? slash + 1 : command); /* what who shows */
}

_Noreturn void holder_main(struct run *run, int sock) {
    struct holder h = {
        .run = run, .shared = run->shared, .sock = sock, .lost_fd = -1, .timer_fd = -1, .max_hold_ns = INT64_MAX};
    h.shared->result.status = -1;
    h.shared->result.least_left_ms = INT64_MAX;
    set_up(&h);
    if (!take(&h) || !seal(&h)) drop_command(&h), finish(&h);
    if (run->options.max_hold_ms) h.max_hold_ns = clock_after_ms(h.granted_ns, run->options.max_hold_ms);
    if (start_command(&h)) {
        open_timers(&h);
        keep(&h);
        conclude(&h);
    } else {
        drop_command(&h);
    }
    finish(&h);
}
