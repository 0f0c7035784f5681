/* child.c: the future CMD. It is forked first, from a small process without threads or sockets, and waits for "go": so
 * it never has anything of the lock, and its start costs no fork of a grown process. Everything is as pawl found it. */
#include "run.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

void keep_only(int *keep, size_t n) {
    int next = 3;
    qsort(keep, n, sizeof *keep, by_number);
    for (size_t i = 0; i < n; i++) {
        if (keep[i] < next) continue;
        if (keep[i] > next) close_range((unsigned)next, (unsigned)keep[i] - 1, 0);
        next = keep[i] + 1;
    }
    close_range((unsigned)next, ~0U, 0);
}

void drop_stdio(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0) return;
    dup2(null, 0);
    dup2(null, 1);
    if (null > 2) close(null);
}

/* Last, so that ours win over what was inherited. */
static int set_environment(const struct run *run, pid_t holder, int64_t token) {
    char number[24], service[32];
    const char *url = run->options.common.url;
    snprintf(number, sizeof number, "%" PRId64, token);
    snprintf(service, sizeof service, "%.*s", (int)strcspn(url, ":"), url);
    char *chain = nested_chain(&run->options, holder, token);
    int failed = !chain || setenv("PAWL_NAME", run->options.name, 1) || setenv("PAWL_TOKEN", number, 1) ||
                 setenv("PAWL_SERVICE", service, 1) || setenv("PAWL_LOCK", chain, 1);
    free(chain);
    return failed ? ENOMEM : 0;
}

static _Noreturn void child_main(struct run *run, pid_t holder, int go, int exec) {
    int64_t token;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != holder) _exit(0); /* it died before that took effect */
    if (!run->terminal) setpgid(0, 0);
    ssize_t n;
    do n = read(go, &token, sizeof token);
    while (n < 0 && errno == EINTR);
    if (n != sizeof token) _exit(0); /* not granted */
    int error = set_environment(run, holder, token);
    if (!error) {
        sigprocmask(SIG_SETMASK, &run->mask, NULL);
        execvp(run->options.command[0], run->options.command);
        error = errno;
    }
    if (write(exec, &error, sizeof error) < 0) _exit(1);
    _exit(error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXEC);
}

int child_fork(struct run *run, struct child *ret) {
    int go[2], exec[2];
    pid_t holder = getpid();
    if (pipe2(go, O_CLOEXEC)) return errno;
    if (pipe2(exec, O_CLOEXEC)) {
        int error = errno;
        close(go[0]);
        close(go[1]);
        return error;
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(go[1]); /* or the end of the holder would not be seen */
        child_main(run, holder, go[0], exec[1]);
    }
    int error = errno;
    close(go[0]);
    close(exec[1]);
    *ret = (struct child){.pid = pid, .go = go[1], .exec = exec[0]};
    return pid < 0 ? error : 0;
}

int child_go(struct child *child, int64_t token) {
    ssize_t n = write(child->go, &token, sizeof token);
    int error = n == sizeof token ? 0 : n < 0 ? errno : EIO;
    close(child->go);
    child->go = -1;
    return error;
}
