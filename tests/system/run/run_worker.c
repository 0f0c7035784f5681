/* run_worker: the command of the kill rounds: a tree that does all it can to survive its wrapper.
 *
 *     run_worker LOG     the leader ignores TERM; a child in a session of its own; a double-forked one without
 *                        descriptors; one that forks and exits for ever. Each writes a record a millisecond.
 *
 * A record is one write to a file opened for appending, so the order in the file is the order of the acts, whatever the
 * clocks say. */
#include "run_worker.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *path;
static int64_t token;

static void act(int kind) {
    struct act record = {.token = token, .pid = getpid(), .kind = kind};
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || write(fd, &record, sizeof record) != sizeof record) _exit(3);
    close(fd);
}

static _Noreturn void act_for_ever(int kind) {
    for (;;) {
        act(kind);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void deafen(void) {
    const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGPIPE};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], SIG_IGN);
}

static _Noreturn void hop(void) {
    for (;;) {
        act(ACT_HOPPER);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        pid_t pid = fork();
        if (pid > 0) _exit(0);
    }
}

static _Noreturn void tree(void) {
    deafen();
    signal(SIGCHLD, SIG_IGN);
    if (fork() == 0) {
        setsid();
        act_for_ever(ACT_SESSION);
    }
    if (fork() == 0) {
        if (fork() != 0) _exit(0);
        setsid();
        close_range(0, ~0U, 0);
        act_for_ever(ACT_ORPHAN);
    }
    if (fork() == 0) {
        setsid();
        close_range(0, ~0U, 0);
        hop();
    }
    act_for_ever(ACT_LEADER);
}

int main(int argc, char **argv) {
    const char *text = getenv("PAWL_TOKEN");
    if (argc != 2 || !text) return 2;
    path = argv[1];
    token = strtoll(text, NULL, 10);
    tree();
}
