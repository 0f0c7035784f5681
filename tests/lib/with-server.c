/* with-server: `with-server redis [OPTION VALUE...] -- CMD...` starts a server, exports PAWL_TEST_REDIS (its URL) and
 * PAWL_TEST_REDIS_PORT, runs CMD, ends the server, and returns CMD's status. `with-server postgresql [SETTING
 * VALUE...]` exports PAWL_TEST_POSTGRESQL and PAWL_TEST_POSTGRESQL_PORT, `with-server etcd [OPTION...]` the same for
 * etcd, `with-server redlock` starts five of redis. For bats and for work by hand. */
#include "server.h"
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 5 };
static struct server servers[MANY], *const server = servers;

static int usage(void) {
    fputs("usage: with-server redis|redlock|postgresql|etcd [OPTION VALUE...] -- CMD [ARG...]\n", stderr);
    return 125;
}

static void start(const char *service, const char *const options[]) {
    char lines[1024] = "", name[64], port[16], all[256] = "";
    bool postgresql = strcmp(service, "postgresql") == 0;
    bool redlock = strcmp(service, "redlock") == 0;
    if (strcmp(service, "redis") == 0) server_start_redis(server, options);
    if (strcmp(service, "etcd") == 0) server_start_etcd(server, options);
    for (int i = 0; redlock && i < MANY; i++) {
        server_start_redis(&servers[i], options);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s127.0.0.1:%d", i ? "," : "redlock://",
                 servers[i].port);
    }
    for (int i = 0; postgresql && options[i] && options[i + 1]; i += 2)
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s = %s\n", options[i], options[i + 1]);
    if (postgresql) server_start_postgres(server, lines);
    snprintf(name, sizeof name, "PAWL_TEST_%.40s", service);
    for (char *c = name; *c; c++) *c = (char)toupper((unsigned char)*c);
    setenv(name, redlock ? all : server->url, 1);
    strcat(name, "_PORT");
    snprintf(port, sizeof port, "%d", server->port);
    setenv(name, port, 1);
}

int main(int argc, char **argv) {
    int split = 2, status;
    while (split < argc && strcmp(argv[split], "--") != 0) split++;
    if (split + 1 >= argc || (strcmp(argv[1], "redis") != 0 && strcmp(argv[1], "redlock") != 0 &&
                              strcmp(argv[1], "postgresql") != 0 && strcmp(argv[1], "etcd") != 0))
        return usage();
    argv[split] = NULL;
    start(argv[1], (const char *const *)argv + 2);
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
    for (int i = 0; i < MANY; i++) server_stop(&servers[i]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
