/* guard_exec.c: a command under a guard's own lock. The lock lasts as long as the command: the command keeps it where
 * it can (pawl_guard_fd), and is killed with us where it cannot. */
#include "guard.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void child(char **command, pid_t parent, int lock_fd, const sigset_t *mask, int report) {
    if (lock_fd >= 0) fcntl(lock_fd, F_SETFD, 0);
    else if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) _exit(EXIT_FAILED);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(command[0], command);
    int number = errno;
    if (write(report, &number, sizeof number) != (ssize_t)sizeof number) _exit(EXIT_FAILED);
    _exit(EXIT_CANNOT_EXEC);
}

/* Passes signals on until the child has ended. The terminal's own INT and QUIT reach it without us. */
static int wait_for(pid_t pid, const sigset_t *watched) {
    for (;;) {
        int status;
        siginfo_t info;
        int signal = sigwaitinfo(watched, &info);
        if (signal > 0 && signal != SIGCHLD && info.si_code != SI_KERNEL) kill(pid, signal);
        if (waitpid(pid, &status, WNOHANG) != pid) continue;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
}

int guard_exec(pawl_guard *guard, const char *resource, char **command) {
    sigset_t watched, before;
    sigemptyset(&watched);
    static const int signals[] = {SIGCHLD, SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaddset(&watched, signals[i]);
    int report[2], number = 0;
    if (pipe2(report, O_CLOEXEC) < 0) return complain(EXIT_FAILED, resource, "cannot make a pipe: %s", strerror(errno));
    sigprocmask(SIG_BLOCK, &watched, &before);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) child(command, parent, pawl_guard_fd(guard), &before, report[1]);
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        return complain(EXIT_FAILED, resource, "cannot fork: %s", strerror(errno));
    }
    ssize_t n = read(report[0], &number, sizeof number);
    close(report[0]);
    int code = wait_for(pid, &watched);
    if (n != (ssize_t)sizeof number) return code;
    return complain(number == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXEC, resource, "cannot run %s: %s", command[0],
                    strerror(number));
}
