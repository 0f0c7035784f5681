#include "server.h"
#include "clock.h"
#include "random.h"
#include "skew.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("server: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Below the kernel's ephemeral range, so that no client's connection takes the port before the server does. It stays
 * bound to a socket of ours as long as we live, so that nobody else who asks so gets it; a server that sets
 * SO_REUSEADDR, as all of ours do, can have it beside a socket that sets it and does not listen. */
int server_free_port(void) {
    for (int i = 0; i < 200; i++) {
        struct sockaddr_in address = loopback((int)random_between(10000, 32000));
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0)
            return ntohs(address.sin_port);
        if (fd >= 0) close(fd);
    }
    die("no free port: %s", strerror(errno));
}

int server_dial(int port) {
    struct sockaddr_in address = loopback(port);
    struct timeval limit = {.tv_sec = 2};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

/* What a program that ends by exit() has left standing, as one does whose test failed: ended, and its folder removed.
 */
static struct standing {
    char dir[sizeof((struct server *)0)->dir];
    pid_t pid;
    int quit;
} standing[64];
static pid_t owner; /* not its children */

static struct standing *standing_at(const char *dir) {
    struct standing *end = standing + sizeof standing / sizeof *standing;
    for (struct standing *at = standing; at < end; at++)
        if (strcmp(at->dir, dir) == 0) return at;
    return NULL;
}

static void remove_dir(const char *dir) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf -- '%.63s'", dir);
    if (system(command)) fprintf(stderr, "server: cannot remove %s\n", dir);
}

static void sweep(void) {
    if (getpid() != owner) return;
    for (size_t i = 0; i < sizeof standing / sizeof *standing; i++) {
        struct server s = {.pid = standing[i].pid};
        if (!*standing[i].dir) continue;
        if (s.pid && waitpid(s.pid, NULL, WNOHANG) == 0) { /* else the number may be another process by now */
            kill(s.pid, SIGCONT);
            server_kill(&s, standing[i].quit ? standing[i].quit : SIGKILL);
        }
        remove_dir(standing[i].dir);
    }
}

static void note(const struct server *s) {
    struct standing *at = standing_at(s->dir);
    if (!at && (at = standing_at(""))) memcpy(at->dir, s->dir, sizeof at->dir);
    if (at) at->pid = s->pid, at->quit = s->quit;
    if (!owner && atexit(sweep) == 0) owner = getpid();
}

void server_make_dir(struct server *s, const char *name) {
    const char *base = getenv("TMPDIR");
    snprintf(s->dir, sizeof s->dir, "%.30s/pawl-%s-XXXXXX", base ? base : "/tmp", name);
    if (!mkdtemp(s->dir)) die("cannot make %s: %s", s->dir, strerror(errno));
    note(s);
}

void server_arg(struct server *s, const char *format, ...) {
    va_list arguments;
    int i = 0;
    while (s->argv[i]) i++;
    if (i + 1 >= SERVER_ARGS) die("too many arguments");
    va_start(arguments, format);
    if (vasprintf(&s->argv[i], format, arguments) < 0) die("out of memory");
    va_end(arguments);
}

/* Another user cannot read what is in the build tree of this one. */
static void lend_shim(const struct server *s) {
    char command[1024];
    snprintf(command, sizeof command, "install -m 644 '%s' '%s/skew.so'", s->shim, s->dir);
    if (system(command)) die("cannot copy %s to %s", s->shim, s->dir);
}

static void child(const struct server *s, pid_t parent) {
    char path[sizeof s->dir + 16];
    sigset_t none;
    if (s->user && (setgroups(0, NULL) || setgid(s->group) || setuid(s->user))) _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* after the change of user, which clears it */
    if (getppid() != parent) _exit(1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* an interrupt typed at the terminal is for the test, which ends its servers */
    snprintf(path, sizeof path, "%s/log", s->dir);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600), null = open("/dev/null", O_RDONLY);
    if (log < 0 || null < 0 || chdir(s->dir)) _exit(1);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    if (s->shim) {
        snprintf(path, sizeof path, "%s/skew", s->dir);
        setenv("PAWL_TEST_SKEW", path, 1);
        snprintf(path, sizeof path, "%s/skew.so", s->dir);
        setenv("LD_PRELOAD", path, 1);
    }
    execvp(s->argv[0], s->argv);
    dprintf(2, "cannot run %s: %s\n", s->argv[0], strerror(errno));
    _exit(127);
}

/* A PostgreSQL whose postmaster was killed a moment ago: its other processes have not noticed yet. */
static bool too_early(const struct server *s) {
    char command[160];
    snprintf(command, sizeof command, "tail -2 %s/log | grep -q 'pre-existing shared memory block'", s->dir);
    return system(command) == 0;
}

void server_await(struct server *s) {
    int64_t end = clock_after_ms(clock_now_ns(), 60000);
    int status;
    while (!s->ready(s)) {
        bool ended = waitpid(s->pid, &status, WNOHANG) == s->pid;
        if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 127)
            die("%s cannot be run: is it installed, and in PATH?", s->argv[0]);
        if (ended && clock_now_ns() < end && too_early(s)) {
            poll(NULL, 0, 20);
            server_begin(s);
        } else if (ended || clock_now_ns() > end) {
            fprintf(stderr, "server: %s did not come up; the last lines of its log:\n", s->argv[0]);
            char command[128];
            snprintf(command, sizeof command, "tail -5 %s/log >&2", s->dir);
            if (system(command)) fputs("(it has none)\n", stderr);
            kill(s->pid, SIGKILL);
            exit(1);
        }
        poll(NULL, 0, 10);
    }
}

void server_begin(struct server *s) {
    pid_t parent = getpid();
    if (s->shim) {
        skew_set(s, 0);
        lend_shim(s);
    }
    if (!s->quit) s->quit = SIGKILL;
    s->pid = fork();
    if (s->pid < 0) die("fork: %s", strerror(errno));
    if (s->pid == 0) child(s, parent);
    note(s);
}

void server_run(struct server *s) {
    server_begin(s);
    server_await(s);
}

/* In the build tree, or installed beside the modules. */
const char *skew_library(void) { return access(SKEW_BUILT, R_OK) == 0 ? SKEW_BUILT : SKEW_INSTALLED; }

void skew_set(const struct server *s, int64_t ms) {
    char path[sizeof s->dir + 8];
    snprintf(path, sizeof path, "%s/skew", s->dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || pwrite(fd, &ms, sizeof ms, 0) != sizeof ms) die("cannot write %s: %s", path, strerror(errno));
    close(fd);
}

void server_kill(struct server *s, int signal) {
    if (!s->pid) return;
    kill(s->pid, signal);
    int64_t end = clock_after_ms(clock_now_ns(), signal == SIGSTOP ? 1000 : 5000);
    if (signal == SIGSTOP) /* until its last thread stands still; if it did before, nothing tells */
        while (waitpid(s->pid, NULL, WUNTRACED | WNOHANG) == 0 && clock_now_ns() < end) poll(NULL, 0, 1);
    if (signal == SIGSTOP || signal == SIGCONT) return;
    while (waitpid(s->pid, NULL, WNOHANG) == 0) { /* PostgreSQL may miss a SIGQUIT while it starts */
        if (clock_now_ns() > end) kill(s->pid, SIGKILL);
        poll(NULL, 0, 2);
    }
    s->pid = 0;
}

void server_restart(struct server *s) {
    server_kill(s, SIGKILL);
    server_run(s);
}

void server_stop(struct server *s) {
    struct standing *at = s->dir[0] ? standing_at(s->dir) : NULL;
    if (s->pid) kill(s->pid, SIGCONT);
    server_kill(s, s->quit ? s->quit : SIGKILL);
    if (s->dir[0]) remove_dir(s->dir);
    if (at) *at->dir = 0;
    for (int i = 0; s->argv[i]; i++) free(s->argv[i]);
    memset(s, 0, sizeof *s);
}

bool server_until(bool (*condition)(void *), void *data, int ms) {
    int64_t end = clock_after_ms(clock_now_ns(), ms);
    for (;;) {
        if (condition(data)) return true;
        if (clock_now_ns() > end) return false;
        poll(NULL, 0, 10);
    }
}
