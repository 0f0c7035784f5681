/* front.c: the process that the user sees: passes signals on, stops and continues as CMD does, draws the waiting line,
 * and kills the tree when the holder is killed or hangs. See run.h for the whole.
 *
 * Every signal is blocked and read from a signalfd, which tells where it came from: what the terminal sent (SI_KERNEL),
 * CMD got as well, being in the same group, and must not get twice. */
#include "clock.h"
#include "metrics.h"
#include "run.h"
#include "tree.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_AFTER_MS = 2000, MOST_FDS = 16, PAUSE_MS = 1000 };

struct front {
    struct run *run;
    struct run_shared *shared;
    pid_t holder;
    int sock, holder_fd, signal_fd, timer_fd;
    int fds[MOST_FDS]; /* duplicates of the lock's descriptors */
    size_t n_fds;
    int64_t began_ns, line_ns; /* line_ns: when to draw the waiting line; INT64_MAX: never */
    bool told;                 /* the tree got TERM from us, the holder being silent */
    bool stop;                 /* --repeat: the user has had enough */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int phase(const struct front *f) { return atomic_load(&f->shared->phase); }

/* --- signals --- */

static void send_cancel(const struct front *f, int sig) {
    unsigned char message[2] = {MESSAGE_CANCEL, (unsigned char)sig};
    send(f->sock, message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static bool ends(int sig) { return sig == SIGINT || sig == SIGTERM || sig == SIGHUP || sig == SIGQUIT; }
static bool stops(int sig) { return sig == SIGTSTP || sig == SIGTTIN || sig == SIGTTOU; }

/* To CMD itself, once. Its pid is its own until cmd_gone, which is set before it is reaped. */
static void forward(struct front *f, int sig) {
    int fd = pidfd_open(atomic_load(&f->shared->cmd), 0);
    if (fd < 0) return;
    if (ends(sig)) atomic_store(&f->shared->forwarded, sig);
    if (!atomic_load(&f->shared->cmd_gone)) pidfd_send_signal(fd, sig, NULL, 0);
    close(fd);
}

/* Whoever continued us by fg continued CMD as well, being in the same group: passed on, that CONT could undo a ^Z that
 * CMD got meanwhile. If only we were continued, CMD is still stopped. */
static void take_continue(struct front *f) {
    sigset_t set;
    siginfo_t info;
    bool ours = false;
    sigemptyset(&set);
    sigaddset(&set, SIGCONT);
    while (sigtimedwait(&set, &info, &(struct timespec){0}) == SIGCONT) ours = ours || info.si_pid != f->holder;
    if (ours && phase(f) == PHASE_HELD && process_state(atomic_load(&f->shared->cmd), NULL, NULL, NULL, NULL) == 'T')
        forward(f, SIGCONT);
}

/* Stops this process the way CMD was stopped, so that the shell says the same. */
static void stop_self(struct front *f, int sig) {
    sigset_t set;
    atomic_store(&f->shared->front_stops, 1);
    if (sigismember(&f->run->ignored, sig)) sig = SIGSTOP;
    sigemptyset(&set);
    sigaddset(&set, sig);
    kill(getpid(), sig);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    sigprocmask(SIG_BLOCK, &set, NULL);
    take_continue(f);
    atomic_store(&f->shared->front_stops, 0);
}

/* Only if CMD is stopped now: a stale message would stop us again right after fg. */
static void command_stopped(struct front *f) {
    int sig = atomic_load(&f->shared->stop_signal);
    if (!f->run->terminal || !sig) return;
    atomic_store(&f->shared->front_stops, 1); /* before looking: if CMD continues from here on, the holder wakes us */
    if (process_state(atomic_load(&f->shared->cmd), NULL, NULL, NULL, NULL) == 'T') stop_self(f, sig);
    atomic_store(&f->shared->front_stops, 0);
}

static void handle_signal(struct front *f, const struct signalfd_siginfo *info) {
    int sig = (int)info->ssi_signo;
    bool from_kernel = info->ssi_code == SI_KERNEL, ignored = sigismember(&f->run->ignored, sig);
    if (sig == SIGCHLD || (info->ssi_code <= 0 && (pid_t)info->ssi_pid == getpid())) return;
    if (info->ssi_code <= 0 && (pid_t)info->ssi_pid == f->holder) return; /* CONT, sent to wake us */
    if (ends(sig) && !ignored) {
        f->stop = true;
        atomic_store(&f->shared->asked_to_end, sig);
    }
    switch (phase(f)) {
    case PHASE_WAITING:
        if (ends(sig) && !ignored) send_cancel(f, sig);
        if (stops(sig) && !ignored) stop_self(f, sig);
        return;
    case PHASE_HELD:
    case PHASE_STOPPING:
        if (sig == SIGCONT && f->run->terminal) return; /* see take_continue */
        if (!from_kernel) forward(f, sig);
        return;
    default:
        if (ends(sig) && !ignored) send_cancel(f, sig); /* --hold-at-least */
    }
}

/* What commands of earlier rounds left behind. The holder, and CMD after it, are others' to reap: until then their pids
 * are in use. */
static void reap_left(const struct front *f) {
    siginfo_t info;
    while (info.si_pid = 0, waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid) {
        if (info.si_pid == f->holder || info.si_pid == atomic_load(&f->shared->cmd)) return;
        waitpid(info.si_pid, NULL, WNOHANG);
    }
}

static void read_signals(struct front *f) {
    struct signalfd_siginfo info;
    while (read(f->signal_fd, &info, sizeof info) == sizeof info) handle_signal(f, &info);
    reap_left(f);
}

/* --- the holder's messages --- */

static void keep_fds(struct front *f, struct msghdr *msg) {
    for (struct cmsghdr *header = CMSG_FIRSTHDR(msg); header; header = CMSG_NXTHDR(msg, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        f->n_fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(f->fds, CMSG_DATA(header), f->n_fds * sizeof(int));
    }
}

static void clear_line(struct front *f) {
    f->line_ns = INT64_MAX;
    if (!atomic_load(&f->shared->line_shown)) return;
    report_waiting(f->run, 0, NULL);
    atomic_store(&f->shared->line_shown, 0);
    send(f->sock, &(char){MESSAGE_CLEARED}, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* false: the holder's end is closed. */
static bool read_message(struct front *f) {
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control;
    char message;
    struct iovec iov = {.iov_base = &message, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(f->sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    keep_fds(f, &msg);
    if (message == MESSAGE_HELD) clear_line(f);
    if (message == MESSAGE_STOPPED) command_stopped(f);
    return true;
}

/* --- deadlines --- */

/* A holder that is alive acts at kill_ms before the safe deadline; half of that is left for us. */
static int64_t kill_at(const struct front *f, int64_t safe) { return safe - f->run->kill_ms * NS_PER_MS / 2; }
static int64_t tell_at(const struct front *f, int64_t safe) {
    int64_t late = least(f->run->grace_ms / 4, 50);
    return safe - (f->run->kill_ms + f->run->grace_ms - late) * NS_PER_MS;
}

static bool guarded(const struct front *f, int64_t *ret_safe) {
    int now = phase(f);
    *ret_safe = atomic_load(&f->shared->safe_ns);
    return (now == PHASE_HELD || now == PHASE_STOPPING) && *ret_safe != INT64_MAX;
}

/* The holder has not told the tree to end, and neither have we. */
static bool tells(const struct front *f) { return !f->told && !f->run->options.kill_at_once && phase(f) == PHASE_HELD; }

static void arm(struct front *f) {
    int64_t safe, at = f->line_ns;
    struct itimerspec when = {0};
    if (guarded(f, &safe)) {
        at = least(at, kill_at(f, safe));
        if (tells(f)) at = least(at, tell_at(f, safe));
    }
    if (at <= 0) at = 1; /* 0 would disarm it */
    if (at != INT64_MAX) when.it_value = (struct timespec){.tv_sec = at / NS_PER_S, .tv_nsec = at % NS_PER_S};
    timerfd_settime(f->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void draw_line(struct front *f, int64_t now) {
    char text[sizeof f->shared->waiting];
    unsigned before = atomic_load(&f->shared->waiting_version);
    memcpy(text, f->shared->waiting, sizeof text);
    text[sizeof text - 1] = 0;
    if (before % 2 || atomic_load(&f->shared->waiting_version) != before) *text = 0;
    atomic_store(&f->shared->line_shown, 1);
    if (phase(f) == PHASE_WAITING) report_waiting(f->run, (now - f->began_ns) / NS_PER_MS, text);
    f->line_ns = clock_after_ms(now, waiting_each_ms(f->run));
}

/* true: the holder let the time go by (it is stopped, or hangs), and must die with the tree. */
static bool look_at_clock(struct front *f) {
    int64_t safe, now = clock_now_ns();
    if (phase(f) != PHASE_WAITING) f->line_ns = INT64_MAX;
    else if (now >= f->line_ns) draw_line(f, now);
    if (!guarded(f, &safe)) return false;
    if (now >= kill_at(f, safe)) return true;
    if (tells(f) && now >= tell_at(f, safe)) {
        f->told = true;
        f->shared->result.told_wall_ms = clock_wall_us() / 1000;
        tree_signal(f->holder, SIGTERM, 0, 1);
    }
    return false;
}

/* --- one round: one holder, one command --- */

/* The holder is dead, or is killed now; what it leaves comes up to us. */
static void take_over(struct front *f, const char *reason) {
    struct tree_death death;
    struct run_result *result = &f->shared->result;
    int was = phase(f);
    tree_kill(atomic_load(&f->shared->cmd), &death);
    result->status = death.leader_status;
    result->spared = death.spared;
    result->spared_pid = death.spared_pid;
    snprintf(result->text, sizeof result->text, "%s", reason);
    if (was == PHASE_WAITING) {
        result->outcome = OUTCOME_NONE;
        return;
    }
    result->outcome = OUTCOME_LOST;
    result->lost_reason = METRICS_LOST_WATCHER;
    result->code = PAWL_ELOST;
    result->held_ms = (clock_now_ns() - f->began_ns) / NS_PER_MS - result->waited_ms;
    result->gone_wall_ms = clock_wall_us() / 1000;
}

static void watch(struct front *f) {
    enum { SIGNAL, SOCK, HOLDER, TIMER, N };
    bool open = true;
    char reason[120];
    for (;;) {
        arm(f);
        struct pollfd p[N] = {[SIGNAL] = {.fd = f->signal_fd, .events = POLLIN},
                              [SOCK] = {.fd = open ? f->sock : -1, .events = POLLIN},
                              [HOLDER] = {.fd = f->holder_fd, .events = POLLIN},
                              [TIMER] = {.fd = f->timer_fd, .events = POLLIN}};
        if (poll(p, N, -1) < 0 && errno != EINTR) return;
        if (p[SOCK].revents) open = read_message(f);
        if (p[SIGNAL].revents) read_signals(f);
        if (p[HOLDER].revents) break;
        if (p[TIMER].revents && look_at_clock(f)) {
            snprintf(reason, sizeof reason, "the process that renews (pid %d) was stopped or hung", (int)f->holder);
            take_over(f, reason);
            return;
        }
    }
    if (phase(f) == PHASE_DONE) {
        waitpid(f->holder, NULL, 0);
        return;
    }
    snprintf(reason, sizeof reason, "the process that renews (pid %d) was killed", (int)f->holder);
    take_over(f, reason);
}

static int start_holder(struct front *f) {
    int pair[2];
    *f->shared = (struct run_shared){0};
    f->shared->result.status = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return errno;
    f->holder = fork();
    if (f->holder == 0) {
        close(pair[0]); /* or front's death would not be seen */
        holder_main(f->run, pair[1]);
    }
    int error = errno;
    close(pair[1]);
    f->sock = pair[0];
    if (f->holder > 0 && (f->holder_fd = pidfd_open(f->holder, 0)) >= 0) return 0;
    if (f->holder > 0) {
        error = errno;
        kill(f->holder, SIGKILL);
        waitpid(f->holder, NULL, 0);
    }
    close(f->sock);
    return error;
}

static int round_of(struct front *f, struct run_result *ret) {
    struct run *run = f->run;
    f->began_ns = clock_now_ns();
    f->line_ns = waiting_each_ms(run) ? clock_after_ms(f->began_ns, LINE_AFTER_MS) : INT64_MAX;
    f->told = false;
    f->n_fds = 0;
    int error = start_holder(f);
    if (error) return complain(EXIT_FAILED, run->options.name, "cannot start: %s", strerror(error));
    if (!run->options.repeat) {
        int kept[] = {f->sock, f->holder_fd, f->signal_fd, f->timer_fd, run->receipt_fd};
        drop_stdio();
        keep_only(kept, sizeof kept / sizeof *kept);
    }
    watch(f);
    clear_line(f);
    *ret = f->shared->result;
    for (size_t i = 0; i < f->n_fds; i++) close(f->fds[i]); /* the tree is dead, or the lock was released */
    close(f->sock);
    close(f->holder_fd);
    int code = report_end(run, ret);
    record_outcome(run, ret, code);
    return code;
}

/* --- all of it --- */

static int set_up(struct front *f) {
    sigset_t all;
    const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    f->run->front = getpid();
    signal(SIGCHLD, SIG_DFL); /* ignored, it would hide how the command ended */
    sigemptyset(&f->run->ignored);
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction action;
        if (sigaction(sig, NULL, &action) == 0 && action.sa_handler == SIG_IGN) sigaddset(&f->run->ignored, sig);
    }
    sigfillset(&all);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) sigdelset(&all, fatal[i]);
    sigprocmask(SIG_SETMASK, &all, &f->run->mask);
    sigdelset(&f->run->mask, SIGCHLD);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int terminal = open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    f->run->terminal = terminal >= 0;
    if (terminal >= 0) close(terminal);
    f->shared = f->run->shared =
        mmap(NULL, sizeof *f->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    f->signal_fd = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    f->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (f->shared == MAP_FAILED || f->signal_fd < 0 || f->timer_fd < 0)
        return complain(EXIT_FAILED, f->run->options.name, "cannot start: %s", strerror(errno));
    return 0;
}

/* Between two rounds of --repeat: at least PAUSE_MS from start to start, and no end of waiting after a signal. */
static void pause_before_next(struct front *f) {
    int64_t until = clock_after_ms(f->began_ns, PAUSE_MS);
    f->holder = 0;
    atomic_store(&f->shared->cmd, 0); /* both are reaped */
    reap_left(f);
    while (!f->stop && clock_wait_fd(f->signal_fd, POLLIN, until, -1) == 1) {
        struct signalfd_siginfo info;
        while (read(f->signal_fd, &info, sizeof info) == sizeof info)
            if (ends((int)info.ssi_signo) && !sigismember(&f->run->ignored, (int)info.ssi_signo)) f->stop = true;
        reap_left(f);
    }
}

static bool again(const struct front *f, const struct run_result *result) {
    if (!f->run->options.repeat || f->stop) return false;
    switch (result->outcome) {
    case OUTCOME_RAN:
    case OUTCOME_LOST: return true;
    case OUTCOME_NOT_TAKEN:
        return result->code == PAWL_EBUSY || result->code == PAWL_ETIMEOUT || result->code == PAWL_EUNREACHABLE ||
               result->code == PAWL_ELOST;
    default: return false;
    }
}

/* A shell must see that it was INT, or its loop would go on with the next round. */
static void die_of_interrupt(const struct run_result *result) {
    sigset_t set;
    bool command = result->outcome == OUTCOME_RAN && WIFSIGNALED(result->status) && WTERMSIG(result->status) == SIGINT;
    if (!command && !(result->outcome == OUTCOME_CANCELLED && result->status == SIGINT)) return;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    signal(SIGINT, SIG_DFL);
    kill(getpid(), SIGINT);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

int front_run(struct run *run) {
    struct front f = {.run = run};
    struct run_result result = {0};
    int code = set_up(&f);
    if (code) return code;
    for (;;) {
        code = round_of(&f, &result);
        if (!again(&f, &result)) break;
        pause_before_next(&f);
        if (f.stop) break;
    }
    if (code == 128 + SIGINT) die_of_interrupt(&result);
    return code;
}
