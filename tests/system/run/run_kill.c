/* run_kill: kill -9 of one of pawl run's two watchers, in every state: the last act of the old tree comes before the
 * first act of the next holder, whatever the tree does (run_worker.c).
 *
 *     run_kill [file|redis]      PAWL_BIN and RUN_WORKER name the programs; PAWL_TEST_FULL=1: 200 rounds of each kind
 */
#include "clock.h"
#include "pawl.h"
#include "ran.h"
#include "run_worker.h"
#include "server.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum kind { KILL_FRONT, KILL_HOLDER, KILL_STOPPED_FRONT, KILL_STOPPED_HOLDER, STOP_HOLDER };

#define LATE_NS (10 * NS_PER_MS) /* the watcher kills half of a margin of 20 ms before the end */

static char dir[] = "/tmp/pawl-run-kill.XXXXXX", url[256];
static const char *ttl;
static int rounds;
static struct server server;

struct round {
    pid_t first, second, holder;
    int log;
};

/* Forks; the child dies with us. */
static pid_t fork_child(void) {
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
    }
    return pid;
}

static pid_t start_tree(const char *log) {
    pid_t pid = fork_child();
    if (pid == 0) {
        setsid(); /* no terminal, whoever runs the tests */
        const char *pawl = getenv("PAWL_BIN"), *worker = getenv("RUN_WORKER");
        execl(pawl, pawl, "run", "-u", url, "-t", ttl, "n", "--", worker, log, (char *)NULL);
        _exit(127);
    }
    return pid;
}

static pid_t start_next(const struct round *r) {
    pid_t pid = fork_child();
    if (pid == 0) {
        pawl_client *client;
        pawl_lock *lock;
        if (pawl_open(url, NULL, &client, NULL)) _exit(2);
        if (pawl_acquire(client, "n", NULL, &lock, NULL)) _exit(3);
        struct act act = {.token = pawl_token(lock), .pid = getpid(), .kind = ACT_NEXT};
        if (write(r->log, &act, sizeof act) != sizeof act) _exit(4);
        _exit(pawl_release(lock, 1000, NULL) ? 5 : 0);
    }
    return pid;
}

static int count_waiting(const pawl_entry *entry, void *data) {
    *(int *)data += !entry->held;
    return 0;
}
static bool next_waits(void *client) {
    int n = 0;
    return pawl_inspect(client, "n", 1000, count_waiting, &n, NULL) == PAWL_OK && n == 1;
}

/* The only child of a process; 0: none yet. */
static pid_t child_of(pid_t pid) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 ? (pid_t)atoi(text) : 0;
}

static char state_of(pid_t pid) {
    char path[64], text[128] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    const char *end = n > 0 ? strrchr(text, ')') : NULL;
    return end && end[1] ? end[2] : 0;
}

static bool all_act(void *data) {
    const struct round *r = data;
    struct act acts[4096];
    bool seen[ACTS] = {false};
    ssize_t n = pread(r->log, acts, sizeof acts, 0);
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *acts; i++) seen[acts[i].kind] = true;
    return seen[ACT_LEADER] && seen[ACT_SESSION] && seen[ACT_ORPHAN] && seen[ACT_HOPPER];
}

static bool is_stopped(void *data) { return state_of(*(pid_t *)data) == 'T'; }

static void stop(pid_t pid) {
    kill(pid, SIGSTOP);
    assert_true(server_until(is_stopped, &pid, 5000));
}

static void strike(const struct round *r, enum kind kind) {
    switch (kind) {
    case KILL_STOPPED_FRONT: stop(r->first); __attribute__((fallthrough));
    case KILL_FRONT: kill(r->first, SIGKILL); break;
    case KILL_STOPPED_HOLDER: stop(r->holder); __attribute__((fallthrough));
    case KILL_HOLDER: kill(r->holder, SIGKILL); break;
    case STOP_HOLDER: stop(r->holder); break;
    }
}

/* The end of a process that must come within ms; its wait status. */
static bool has_ended(void *data) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t) * (pid_t *)data, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid;
}
static int ended(pid_t pid, int ms) {
    int status;
    if (!server_until(has_ended, &pid, ms)) {
        kill(pid, SIGKILL);
        fail_msg("process %d did not end in %d ms", (int)pid, ms);
    }
    waitpid(pid, &status, 0);
    return status;
}

/* Fails if the old tree acted after the next holder; unless late: then false, for it was to be killed by a process that
 * got no processor in time, which no watcher can help. */
static bool check_log(const struct round *r, int64_t late_ns) {
    struct act a;
    int64_t token = 0;
    int n = 0;
    bool next = false;
    lseek(r->log, 0, SEEK_SET);
    for (; read(r->log, &a, sizeof a) == sizeof a;) {
        if (a.kind == ACT_NEXT) {
            assert_true(a.token > token);
            next = true;
        } else if (next && late_ns > LATE_NS) {
            print_message("# not judged: processes ran up to %d ms late\n", (int)(late_ns / NS_PER_MS));
            return false;
        } else if (next) {
            fail_msg("act %d of the old tree (kind %d, pid %d) after the next holder's", n, a.kind, a.pid);
        } else {
            token = a.token;
            n++;
        }
    }
    assert_true(next && n > 0);
    return true;
}

/* false: it says nothing, for the machine was too busy. */
static bool one_round(enum kind kind) {
    struct round r;
    char log[128];
    snprintf(log, sizeof log, "%s/log", dir);
    r.log = open(log, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    assert_true(r.log >= 0);
    r.first = start_tree(log);
    assert_true(server_until(all_act, &r, 10000));
    r.holder = child_of(r.first);
    assert_true(r.holder > 0);
    r.second = start_next(&r);
    pawl_client *client; /* not before the forks */
    assert_int_equal(pawl_open(url, NULL, &client, NULL), PAWL_OK);
    assert_true(server_until(next_waits, client, 10000));
    pawl_close(client);
    int64_t began_ns = clock_now_ns(), ran_began_ns = ran_ns();
    strike(&r, kind);
    int status = ended(r.first, 10000);
    if (kind == KILL_FRONT || kind == KILL_STOPPED_FRONT) assert_true(WIFSIGNALED(status));
    else assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 122);
    status = ended(r.second, 10000);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    int64_t late_ns = clock_now_ns() - began_ns - (ran_ns() - ran_began_ns);
    bool judged = check_log(&r, kind == STOP_HOLDER ? late_ns : 0); /* only there it is a matter of time */
    close(r.log);
    return judged;
}

static void many(enum kind kind) {
    int again = 0;
    for (int i = 0; i < rounds; i++)
        if (!one_round(kind)) {
            if (++again > 5 + rounds / 4) fail_msg("the machine is too busy, or it is not its fault");
            i--;
        }
}

static void test_front(void **state) {
    (void)state;
    many(KILL_FRONT);
}
static void test_holder(void **state) {
    (void)state;
    many(KILL_HOLDER);
}
static void test_stopped_front(void **state) {
    (void)state;
    many(KILL_STOPPED_FRONT);
}
static void test_stopped_holder(void **state) {
    (void)state;
    many(KILL_STOPPED_HOLDER);
}
static void test_hanging_holder(void **state) {
    (void)state;
    many(STOP_HOLDER);
}

/* A lock without a lease is lost with its session: the tree is told, and killed after the grace. */
static void test_session_ended(void **state) {
    struct round r;
    char log[128];
    (void)state;
    snprintf(log, sizeof log, "%s/log", dir);
    r.log = open(log, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    assert_true(r.log >= 0);
    r.first = start_tree(log);
    assert_true(server_until(all_act, &r, 10000));
    free(server_sql(server.port, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                                 "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"));
    int status = ended(r.first, 10000);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 122);
    close(r.log);
}

static int set_up(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}
static int tear_down(void **state) {
    char command[64];
    (void)state;
    if (server.pid) server_stop(&server);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

/* A service to try it on. */
struct place {
    const char *name, *ttl, *needs;
    int rounds, full_rounds;
    bool lease; /* a holder that hangs loses it */
    void (*start)(void);
};

static void start_file(void) { snprintf(url, sizeof url, "file:%s", dir); }
static void start_redis(void) {
    server_start_redis(&server, NULL);
    snprintf(url, sizeof url, "%s", server.url);
}
static void start_postgresql(void) {
    char command[512];
    server_start_postgres(&server, "");
    snprintf(command, sizeof command,
             "psql -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -p %d -U postgres -f '%s' >/dev/null 2>&1", server.port,
             PAWL_SQL);
    if (system(command)) fail_msg("pawl.sql failed");
    snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:%d/postgres", server.port);
}
static void start_etcd(void) {
    server_start_etcd(&server, (const char *const[]){"--heartbeat-interval=50", "--election-timeout=500", NULL});
    snprintf(url, sizeof url, "%s", server.url);
}

static const struct place places[] = {
    {"file", "15s", "/", 10, 200, false, start_file},
    {"redis", "600ms", "/usr/bin/redis-server", 2, 200, true, start_redis},
    {"postgresql", "15s", "/usr/lib/postgresql", 1, 10, false, start_postgresql},
    {"etcd", "2s", "/usr/bin/etcd", 1, 10, true, start_etcd},
};

int main(int argc, char **argv) {
    const struct place *place = places, *end = places + sizeof places / sizeof *places;
    while (argc > 1 && place < end && strcmp(place->name, argv[1]) != 0) place++;
    if (place == end) return 2;
    if (access(place->needs, X_OK)) {
        printf("1..0 # SKIP no %s here\n", place->needs);
        return 0;
    }
    rounds = getenv("PAWL_TEST_FULL") ? place->full_rounds : place->rounds;
    ttl = place->ttl;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_front),
        cmocka_unit_test(test_holder),
        cmocka_unit_test(test_stopped_front),
        cmocka_unit_test(test_stopped_holder),
        place->lease ? (struct CMUnitTest)cmocka_unit_test(test_hanging_holder)
                     : (struct CMUnitTest)cmocka_unit_test(test_session_ended),
    };
    if (set_up(NULL)) return 1;
    place->start();
    return _cmocka_run_group_tests(place->name, tests, sizeof tests / sizeof *tests - (place->start == start_file),
                                   NULL, tear_down);
}
