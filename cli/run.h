/* run.h: what the three processes of `pawl run` share.
 *
 *     front      the pid that the user sees: terminal, signals, messages, receipt; no lock, no thread, no socket
 *       holder   takes the lock and renews it, watches CMD; in a process group of its own, all signals blocked
 *         CMD    forked before the holder has any thread or connection, waits for "go", then execs
 *
 * Front and holder are both subreapers and watch each other: whoever is left kills the tree. Both keep the lock's
 * descriptors until the tree is dead. They talk through one shared page (facts) and one socket pair (wake-ups). */
#ifndef PAWL_CLI_RUN_H
#define PAWL_CLI_RUN_H
#include "options.h"
#include "seal.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

struct run_options {
    struct common common;
    const char *name;
    char **command;                                           /* ended by NULL */
    int64_t wait_ms, grace_ms, hold_at_least_ms, max_hold_ms; /* grace_ms -1: not said; max_hold_ms 0: none */
    int conflict_code;                                        /* -1: not said */
    bool shared, kill_at_once, repeat;
    const char *receipt, *seal, *metrics_dir; /* NULL: none */
};

enum run_phase {
    PHASE_WAITING,
    PHASE_HELD,     /* CMD was told to go */
    PHASE_STOPPING, /* the tree was told to end: the lock is lost or cannot be proven, or was held too long */
    PHASE_ENDED,    /* CMD has ended; the lock is being released */
    PHASE_DONE      /* the result is complete */
};

enum run_outcome {
    OUTCOME_NONE,
    OUTCOME_RAN,
    OUTCOME_LOST,
    OUTCOME_NOT_TAKEN, /* see code */
    OUTCOME_CANNOT_EXEC,
    OUTCOME_CANCELLED
};

/* How it ended. Filled by the holder; by front if the holder died. */
struct run_result {
    enum run_outcome outcome;
    int code;   /* PAWL_E... of acquire, or of release after the command ran */
    int status; /* wait status of CMD, -1: unknown or never started; CANCELLED: the signal that did it */
    int exec_errno;
    bool unproven; /* ran, but the service could not be asked at the end */
    int64_t token, waited_ms, held_ms;
    int64_t told_wall_ms, gone_wall_ms; /* when TERM was sent, and when the tree was dead; 0: not */
    pid_t cmd;
    int64_t least_left_ms; /* of the lease, when it was at its shortest and still ours; INT64_MAX: there is none */
    int64_t late_ms;       /* the latest timer */
    int64_t stopped_ms;    /* the same when it came late because the holder had been stopped */
    size_t spared;
    pid_t spared_pid;
    int lost_reason; /* PAWL_LOST_..., METRICS_LOST_WATCHER */
    char text[640];  /* why: for a loss, or what the library said */
    char left_behind[256];
};

/* The shared page. Times are CLOCK_BOOTTIME ns. */
struct run_shared {
    _Atomic int64_t safe_ns;  /* no other holder is possible before; INT64_MAX: no such time; 0: not held */
    _Atomic int64_t asked_ns; /* when the holder last looked at the lock, to warn of a holder that hangs */
    _Atomic int phase;
    _Atomic int cmd_gone; /* set before CMD is reaped: until then its pid is CMD's */
    _Atomic int cmd;
    _Atomic int stop_signal;          /* that stopped CMD; 0: it runs */
    _Atomic int front_stops;          /* front is stopping itself as CMD did */
    _Atomic int asked_to_end;         /* the last signal that asks a program to end, wherever it came from */
    _Atomic int forwarded;            /* the last of these signals that front passed on to CMD */
    _Atomic int line_shown;           /* the waiting line stands on the terminal */
    _Atomic unsigned waiting_version; /* odd: being written */
    char waiting[256];                /* what is waited for */
    struct run_result result;         /* valid in PHASE_DONE */
};

struct run {
    struct run_options options;
    struct run_shared *shared;
    int64_t margin_ms;         /* that the library keeps free before a lease ends */
    int64_t grace_ms, kill_ms; /* kill_ms: what killing the tree may take */
    bool terminal;             /* there is a controlling terminal: CMD stays in front's process group */
    bool stderr_terminal;
    sigset_t mask;    /* as found */
    sigset_t ignored; /* as found */
    pid_t front;
    int receipt_fd;    /* -1: none */
    struct seal *seal; /* NULL: none */
};

/* Messages between front and holder: one byte, and SCM_RIGHTS with HELD. */
enum { MESSAGE_HELD = 'H', MESSAGE_STOPPED = 'S', MESSAGE_CLEARED = 'L', MESSAGE_CANCEL = 'C' };

/* front.c: runs it all; the exit code. Does not return if the command died of SIGINT: then so do we. */
int front_run(struct run *run);
/* holder.c: the holder's whole life. sock: to front. */
_Noreturn void holder_main(struct run *run, int sock);

/* child.c */
struct child {
    pid_t pid;
    int go;   /* write the token here */
    int exec; /* readable: an errno (int), or EOF when exec worked */
};
/* Forks the future CMD. 0, or an errno. */
int child_fork(struct run *run, struct child *ret);
/* 0, or an errno: CMD is dead already. */
int child_go(struct child *child, int64_t token);
/* Closes every descriptor but 0, 1, 2 and those of keep (sorted here; -1 is skipped): a watcher that kept the ends of
 * pipes meant for CMD would keep their readers waiting. */
void keep_only(int *keep, size_t n);
/* Points 0 and 1 at /dev/null, for the same reason. */
void drop_stdio(void);

/* nested.c: PAWL_LOCK, the grants under which a process runs. */
/* true: an ancestor holds this very lock in a mode that excludes ours; *ret_token is its token. */
bool nested_conflict(const struct run_options *options, int64_t *ret_token);
/* The new value of PAWL_LOCK for a child of `holder`: what was there, and this grant. To be freed; NULL: no memory. */
char *nested_chain(const struct run_options *options, pid_t holder, int64_t token);

/* loss.c: the times at which the tree is told to end, and killed. */
/* Settles grace_ms and kill_ms; 0, or an exit code after the reason was printed. */
int settle_times(struct run *run);
/* When the tree is told to end (or killed, where it is not told), of a lock that is safe until then. */
int64_t told_at(const struct run *run, int64_t safe_ns);
/* Renewals are due at ttl/3; when one is late, each look counts. */
int64_t look_each_ms(const struct run *run, int64_t left_ns);

/* report.c: everything that is printed, and the exit code. None of these blocks while the lock is held. */
int report_end(const struct run *run, const struct run_result *result);
/* One event with -v; skipped when stderr cannot take it at once. */
void report_remark(const struct run *run, const char *text);
void report_progress(const struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* How often it is told who holds the lock while we wait: on a terminal, and seldom with -v. 0: never. */
int waiting_each_ms(const struct run *run);
/* The waiting line is drawn on a terminal; else it is a line of a log. */
bool waiting_draws(const struct run *run);
/* Draws or, with text NULL, erases the waiting line; without a terminal it is a line of the log. */
void report_waiting(const struct run *run, int64_t waited_ms, const char *text);

/* receipt.c: one JSON line appended for every outcome. 0, or 125 and the reason was printed. */
int receipt_open(struct run *run);
/* Into the receipt and the metrics. */
void record_outcome(const struct run *run, const struct run_result *result, int exit_code);

/* metrics.c: counters for Prometheus, in a file that goes on from run to run. */
/* Warns at once, and forgets metrics_dir, if nothing can be written there. */
void metrics_check_dir(struct run_options *options);
void metrics_add_run(const struct run *run, const struct run_result *result, int exit_code);

/* watch.c: finds out what is waited for, while the main thread of the holder waits. */
struct watcher;
struct watcher *watch_start(pawl_client *client, struct run *run);
void watch_stop(struct watcher *watcher); /* NULL allowed */
/* "held by backup.sh (pid 4711, root@db1) for 4 min 12 s"; false: not known. */
bool watch_holder(pawl_client *client, struct run *run, char *ret, size_t size);
/* Whose the lock is now, behind the reason of a loss that says that it is not ours. */
void watch_name_successor(pawl_client *client, const struct run *run);
#endif
