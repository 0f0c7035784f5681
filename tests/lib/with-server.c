/* with-server: `with-server redis [OPTION VALUE...] -- CMD...` starts a server, exports PAWL_TEST_REDIS (its URL) and
 * PAWL_TEST_REDIS_PORT, runs CMD, ends the server, and returns CMD's status. For bats and for work by hand. */
#include "server.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static struct server server;

static int usage(void) {
    fputs("usage: with-server redis [OPTION VALUE...] -- CMD [ARG...]\n", stderr);
    return 125;
}

int main(int argc, char **argv) {
    char port[16];
    int split = 2, status;
    while (split < argc && strcmp(argv[split], "--") != 0) split++;
    if (split + 1 >= argc || strcmp(argv[1], "redis") != 0) return usage();
    argv[split] = NULL;
    server_start_redis(&server, (const char *const *)argv + 2);
    snprintf(port, sizeof port, "%d", server.port);
    setenv("PAWL_TEST_REDIS", server.url, 1);
    setenv("PAWL_TEST_REDIS_PORT", port, 1);
    signal(SIGINT, SIG_IGN); /* the command gets it too; the server is to be ended behind it */
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGINT, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execvp(argv[split + 1], argv + split + 1);
        perror(argv[split + 1]);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0) status = 125 << 8;
    server_stop(&server);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
