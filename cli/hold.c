/* hold.c: pawl hold: takes a lock, tells each event as one JSON line on stdout, and keeps it until stdin ends or INT or
 * TERM comes: the binding for languages that can start a program. With -d the same loop runs in the background, behind
 * a handle (handle.h). One poll loop: the client's events, what its observer saw, signals, stdin, and `pawl release`.
 */
#include "about.h"
#include "clock.h"
#include "handle.h"
#include "options.h"
#include "run.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char usage[] =
    "pawl hold [options] NAME\n"
    "\n"
    "Takes the lock, prints one JSON line per event (waiting, held, doubt, lost, released, ...), and keeps it until "
    "stdin\n"
    "ends, or INT or TERM comes.\n"
    "\n"
    "  -d, --detach           in the background, once it is held; prints a handle for `pawl release`\n"
    "  -n, --nonblock         do not wait\n"
    "  -w, --wait DUR         wait so long at most (for ever)\n"
    "  -s, --shared           with other shared holders; -x, --exclusive is the default\n"
    "      --max-hold DUR     the lock counts as lost after so long\n"
    "      --metrics-dir DIR  counters for Prometheus' textfile collector, as with pawl run\n"
    "  -E N                   exit code when it was busy or the wait was too long (123, 124)\n"
    "  -t, --ttl DUR          how long the lock outlives a holder that died (15s; not for file:)\n"
    "      --label TEXT       shown by who\n"
    "      --for correctness  refuse a service that may grant a lock twice\n"
    "      --json             with -d: handle, name and token as JSON\n"
    "  -u, --url URL   -v   -q   --log text|json\n"
    "\n"
    "Exit: 0 released; 119 refused; 120 unreachable; 122 lost; 123 busy; 124 waited too long; 125 failed;\n"
    "128+N ended by signal N before it was held.\n";

#define INPUT_PATIENCE_NS (2 * NS_PER_S)

struct hold {
    struct common common;
    pawl_acquire_options acquire;
    int conflict_code; /* -E, or -1 */
    const char *name;
    pawl_client *client;
    pawl_lock *lock;
    int64_t token, held_since_ns;
    int observed[2]; /* from the observer, in any thread, to the loop: one datagram an event */
    int signal_fd, input_fd;
    bool detach;
    int starter_fd, listener, requester; /* detached: -1 where there is none (any more) */
    char handle[HANDLE_SIZE];
    struct hold_result result; /* of the last event */
    int64_t input_from_ns;     /* stdin counts from here on, or from the first answer: "</dev/null" is no race */
    bool over, output_failed;
    char metrics_dir[PATH_MAX]; /* "": none */
    struct run_result seen;     /* the same for the metrics */
    int64_t began_ns;
};

/* --- events --- */

static const char *code_name(int code) {
    static const char *const names[] = {"ok",     "busy",   "timeout", "cancelled",   "lost",    "unreachable",
                                        "denied", "unsafe", "invalid", "unsupported", "internal"};
    return code >= 0 && code <= PAWL_EINTERNAL ? names[code] : "unknown";
}

static int64_t held_ms(const struct hold *h) {
    return h->held_since_ns ? (clock_now_ns() - h->held_since_ns) / NS_PER_MS : 0;
}

/* The JSON line, kept in h->result as well; printed at once unless detached. */
static void emit(struct hold *h, const char *event, int code, const char *text) {
    char when[40];
    FILE *out = fmemopen(h->result.json, sizeof h->result.json, "w");
    if (!out) return;
    format_time(clock_wall_us() / 1000, when, sizeof when);
    fprintf(out, "{\"event\":\"%s\",\"time\":\"%s\",\"name\":", event, when);
    print_json_string(out, h->name);
    if (h->token) fprintf(out, ",\"token\":\"%" PRId64 "\"", h->token);
    if (strcmp(event, "held") == 0) {
        int64_t left = pawl_remaining_ms(h->lock);
        if (left == PAWL_FOREVER) fputs(",\"remaining_ms\":null", out);
        else fprintf(out, ",\"remaining_ms\":%" PRId64, left);
        fprintf(out, ",\"shared\":%s", h->acquire.shared ? "true" : "false");
    }
    if (strcmp(event, "lost") == 0 || strcmp(event, "released") == 0) fprintf(out, ",\"held_ms\":%" PRId64, held_ms(h));
    if (strcmp(event, "released") == 0) fprintf(out, ",\"proven\":%s", code ? "false" : "true");
    if (code) fprintf(out, ",\"code\":\"%s\"", code_name(code));
    if (text && *text) {
        fputs(",\"text\":", out);
        print_json_string(out, text);
    }
    fputc('}', out);
    fclose(out);
    if (h->detach) return;
    puts(h->result.json);
    h->output_failed = !flush_stdout(h->name);
}

/* The end: exit code and text for people, which `pawl release` prints. */
static void conclude(struct hold *h, int exit, const char *format, const char *text) {
    FILE *out = fmemopen(h->result.text, sizeof h->result.text, "w");
    if (out) {
        char line[700];
        snprintf(line, sizeof line, format, text);
        print_plain(out, h->name);
        fputs(": ", out);
        print_plain(out, line);
        fclose(out);
    }
    h->result.code = exit;
    h->over = true;
}

static void failed(struct hold *h, int code, const char *text) {
    bool conflict = code == PAWL_EBUSY || code == PAWL_ETIMEOUT;
    int exit = conflict && h->conflict_code >= 0 ? h->conflict_code : exit_code(code);
    h->seen.outcome = OUTCOME_NOT_TAKEN;
    h->seen.code = code;
    emit(h, "failed", code, text);
    if (!conflict || messages.verbose || (isatty(2) && !messages.quiet)) complain(exit, h->name, "%s", text);
    conclude(h, exit, "%s", text);
}

static void lost(struct hold *h, int reason, const char *text) {
    h->seen.outcome = OUTCOME_LOST;
    h->seen.code = PAWL_ELOST;
    h->seen.lost_reason = reason;
    emit(h, "lost", PAWL_ELOST, text);
    complain(EXIT_LOST, h->name, "LOST: %s", text);
    conclude(h, EXIT_LOST, "LOST: %s", text);
}

static int granted(struct hold *h) {
    h->token = pawl_token(h->lock);
    h->held_since_ns = clock_now_ns();
    h->seen.outcome = OUTCOME_RAN;
    h->seen.token = h->token;
    h->seen.waited_ms = (h->held_since_ns - h->began_ns) / NS_PER_MS;
    h->input_from_ns = 0;
    emit(h, "held", 0, NULL);
    if (!h->detach) return 0;
    if (h->common.json) {
        printf("{\"handle\":\"%s\",\"name\":", h->handle);
        print_json_string(stdout, h->name);
        printf(",\"token\":\"%" PRId64 "\"}\n", h->token);
    } else {
        puts(h->handle);
    }
    h->output_failed = !flush_stdout(h->name);
    if (h->output_failed) return -1;
    if (strncmp(h->common.url, "file:", 5) == 0 && chdir("/")) advise(h->name, "stays in its working directory");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    if (null > 2) close(null);
    setsid();
    if (write(h->starter_fd, "k", 1) != 1) return -1; /* it died meanwhile: nobody has the handle */
    close(h->starter_fd);
    h->starter_fd = -1;
    return 0;
}

/* Lets go for a reason; signal 0: none. */
static void stop(struct hold *h, int signal, const char *reason) {
    pawl_error error = PAWL_ERROR_INIT;
    bool held = h->token != 0;
    int64_t patience = h->common.ttl_ms < 5000 ? h->common.ttl_ms : 5000;
    int code = pawl_release(h->lock, held ? patience : 1000, &error);
    h->lock = NULL;
    if (!held) {
        h->seen.outcome = OUTCOME_CANCELLED;
        emit(h, "cancelled", PAWL_ECANCELLED, reason);
        advise(h->name, "left the queue: %s", reason);
        conclude(h, signal ? 128 + signal : EXIT_FAILED, "cancelled: %s", reason);
    } else if (code == PAWL_ELOST) {
        lost(h, PAWL_LOST_GONE, error.text);
    } else {
        emit(h, "released", code, code ? error.text : reason);
        if (code) warn(h->name, "not released, free within its ttl: %s", error.text);
        bool unproven = code && h->common.for_correctness;
        conclude(h, unproven ? EXIT_LOST : 0, code ? "not released, free within its ttl: %s" : "released: %s",
                 code ? error.text : reason);
    }
}

/* --- the loop --- */

static void observe(const pawl_event *event, const char *name, void *data) {
    const struct hold *h = data;
    (void)name;
    if (event->type == PAWL_WAITING || event->type == PAWL_DOUBT || event->type == PAWL_DOUBT_OVER ||
        event->type == PAWL_REMARK)
        send(h->observed[1], event, sizeof *event, MSG_DONTWAIT | MSG_NOSIGNAL); /* full: one message less */
}

static void show_observed(struct hold *h) {
    pawl_event event;
    char holder[ABOUT_SIZE];
    while (recv(h->observed[0], &event, sizeof event, MSG_DONTWAIT) == sizeof event) {
        const char *what = event.type == PAWL_WAITING  ? "waiting"
                           : event.type == PAWL_DOUBT  ? "doubt"
                           : event.type == PAWL_REMARK ? "remark"
                                                       : "doubt_over";
        h->input_from_ns = 0;
        if (event.type == PAWL_WAITING) {
            about_describe(event.text, holder, sizeof holder);
            snprintf(event.text, sizeof event.text, "held by %s", holder);
        }
        emit(h, what, event.type == PAWL_WAITING ? 0 : event.code, event.text);
        if (event.type == PAWL_REMARK) warn(h->name, "%s", event.text);
        else advise(h->name, "%s: %s", what, event.text);
    }
}

static void take_events(struct hold *h) {
    pawl_event event = PAWL_EVENT_INIT;
    while (!h->over && pawl_next_event(h->client, &event)) {
        if (event.type == PAWL_GRANTED) {
            if (granted(h)) stop(h, 0, "nobody took the handle");
        } else if (event.type == PAWL_FAILED) {
            failed(h, event.code, *event.text ? event.text : pawl_strerror(event.code));
        } else if (event.type == PAWL_LOST) {
            lost(h, event.reason, event.text);
        }
    }
}

/* Whatever is written to us is ignored. A background job that may not read the terminal goes on without stdin. */
static void read_input(struct hold *h) {
    char buffer[4096];
    ssize_t n = read(h->input_fd, buffer, sizeof buffer);
    if (n == 0) stop(h, 0, "stdin ended");
    else if (n < 0 && errno != EINTR && errno != EAGAIN) h->input_fd = -1;
}

static void take_signal(struct hold *h) {
    struct signalfd_siginfo info;
    char reason[64];
    if (read(h->signal_fd, &info, sizeof info) != sizeof info) return;
    snprintf(reason, sizeof reason, "SIG%s", sigabbrev_np((int)info.ssi_signo));
    stop(h, (int)info.ssi_signo, reason);
}

static void loop(struct hold *h) {
    enum { EVENTS, OBSERVED, SIGNAL, INPUT, STARTER, LISTENER, N };
    int event_fd = pawl_event_fd(h->client);
    if (event_fd < 0) {
        failed(h, PAWL_EINTERNAL, "out of descriptors");
        return;
    }
    h->input_from_ns = clock_now_ns() + INPUT_PATIENCE_NS;
    while (!h->over) {
        int64_t now = clock_now_ns();
        bool hear_input = now >= h->input_from_ns;
        struct pollfd p[N] = {
            {.fd = event_fd, .events = POLLIN},     {.fd = h->observed[0], .events = POLLIN},
            {.fd = h->signal_fd, .events = POLLIN}, {.fd = hear_input ? h->input_fd : -1, .events = POLLIN},
            {.fd = h->starter_fd, .events = 0}, /* POLLERR: it went away */
            {.fd = h->listener, .events = POLLIN},
        };
        if (poll(p, N, clock_poll_ms(now, hear_input ? INT64_MAX : h->input_from_ns)) < 0) continue;
        show_observed(h);
        if (p[EVENTS].revents) take_events(h);
        if (!h->over && p[SIGNAL].revents) take_signal(h);
        if (!h->over && p[INPUT].revents) read_input(h);
        if (!h->over && h->starter_fd >= 0 && p[STARTER].revents) stop(h, 0, "whoever started it went away");
        if (!h->over && p[LISTENER].revents && (h->requester = handle_accept(h->listener)) >= 0)
            stop(h, 0, "as asked by pawl release");
        if (!h->over && h->output_failed) stop(h, 0, "stdout cannot be written");
    }
}

/* --- start --- */

static int prepare(struct hold *h) {
    static const int stops[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        struct sigaction old;
        sigaction(stops[i], NULL, &old);
        if (old.sa_handler != SIG_IGN) sigaddset(&set, stops[i]); /* nohup stays nohup */
    }
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTTIN, SIG_IGN);
    h->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (h->signal_fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, h->observed))
        return complain(EXIT_FAILED, h->name, "out of descriptors: %s", strerror(errno));
    return 0;
}

static int open_observed(struct hold *h) {
    pawl_options options;
    common_options(&h->common, &options);
    options.observe = observe;
    options.observe_data = h;
    return open_client_with(&h->common, &options, h->name, &h->client);
}

/* As pawl run counts: the time under the lock is what the command's would be. */
static void count(struct hold *h, int exit) {
    const struct run run = {.options = {.name = h->name, .metrics_dir = *h->metrics_dir ? h->metrics_dir : NULL}};
    h->seen.held_ms = held_ms(h);
    metrics_add_run(&run, &h->seen, exit);
}

static int hold(struct hold *h) {
    pawl_error error = PAWL_ERROR_INIT;
    h->began_ns = clock_now_ns();
    int code = prepare(h);
    if (code == 0) code = open_observed(h);
    if (code) return code;
    if (pawl_acquire_start(h->client, h->name, &h->acquire, NULL, &h->lock, &error)) failed(h, error.code, error.text);
    else loop(h);
    if (h->lock) pawl_release(h->lock, 0, NULL);
    pawl_close(h->client);
    code = h->output_failed ? EXIT_FAILED : h->result.code;
    count(h, code);
    return code;
}

/* Whoever asked for the release may have lost patience: he will ask again. */
static bool gone(int fd) {
    struct pollfd p = {.fd = fd};
    return poll(&p, 1, 0) > 0;
}

/* The background side; whoever started it waits for "k", or for the exit code. */
static int hold_behind_handle(struct hold *h) {
    h->listener = handle_listen(h->handle);
    if (h->listener < 0) return EXIT_FAILED;
    int code = hold(h);
    bool waits = h->requester >= 0 && !gone(h->requester);
    bool will_be_asked = !waits && h->held_since_ns && h->starter_fd < 0; /* the handle was taken */
    handle_end(h->handle, will_be_asked ? &h->result : NULL);
    if (waits) handle_answer(h->requester, &h->result);
    return code;
}

static int detach(struct hold *h) {
    int ends[2], status;
    char byte;
    pid_t child = pipe2(ends, O_CLOEXEC) ? -1 : fork();
    if (child < 0) return complain(EXIT_FAILED, h->name, "cannot start a process: %s", strerror(errno));
    if (child == 0) {
        int keep[] = {ends[1]};
        keep_only(keep, 1); /* a lock or a pipe of the script that started us would last as long as we do */
        h->starter_fd = ends[1];
        h->input_fd = -1;
        return hold_behind_handle(h);
    }
    close(ends[1]);
    if (TEMP_FAILURE_RETRY(read(ends[0], &byte, 1)) == 1) return 0;
    if (TEMP_FAILURE_RETRY(waitpid(child, &status, 0)) != child) return EXIT_FAILED;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int cmd_hold(int argc, char **argv) {
    struct hold h = {.common = COMMON_INIT,
                     .acquire = PAWL_ACQUIRE_INIT,
                     .conflict_code = -1,
                     .starter_fd = -1,
                     .listener = -1,
                     .requester = -1};
    bool nonblock = false, shared = false;
    const char *metrics_dir = NULL;
    const struct option_row rows[] = {{"d detach", OPT_ON, &h.detach},
                                      {"n nb nonblock nonblocking nowait", OPT_ON, &nonblock},
                                      {"w wait timeout", OPT_DURATION, &h.acquire.wait_ms},
                                      {"s shared", OPT_ON, &shared},
                                      {"x e exclusive", OPT_OFF, &shared},
                                      {"max-hold", OPT_DURATION, &h.acquire.max_hold_ms, 100},
                                      {"metrics-dir", OPT_TEXT, &metrics_dir},
                                      {"E conflict-exit-code", OPT_EXIT_CODE, &h.conflict_code},
                                      {NULL}};
    const struct verb verb = {.name = "hold",
                              .usage = usage,
                              .rows = rows,
                              .common = COMMON_URL | COMMON_LOCK | COMMON_JSON,
                              .mixed = true,
                              .least = 1,
                              .most = 1,
                              .operands = "NAME"};
    int n, code = parse_options(&verb, argc, argv, &h.common, &n);
    if (code >= 0) return code;
    h.name = argv[1];
    h.acquire.shared = shared;
    if (nonblock) h.acquire.wait_ms = 0;
    struct run_options counted = {.name = h.name, .metrics_dir = metrics_dir};
    metrics_check_dir(&counted);
    if (counted.metrics_dir && !realpath(metrics_dir, h.metrics_dir))
        *h.metrics_dir = 0; /* it may leave this directory */
    return h.detach ? detach(&h) : hold(&h);
}
