/* Writers with random tokens, killed at random, then the power goes: whatever was accepted is still there.
 *
 *   crash KIND               must hold
 *   crash KIND files|dirs    flushes of files, or of directories, do nothing: an accepted write must be seen to be lost
 *   crash redis unsaved      the server keeps nothing on disk: the same
 *
 * Where a service keeps the data it is killed too, again and again while they write, and started on what it left.
 *
 * Each writer notes in shared memory what it tries before, and what was accepted after each step, so the killed ones
 * are known too. Default: 50 writers, 2 rounds; PAWL_TEST_FULL=1: 20 rounds. */
#include "pawl_guard.h"
#include "powercut.h"
#include "server.h"
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { WRITERS = 50, KILLS = 40 };
#define BASE INT64_C(1796043852000000)

static const char *kind = "dir", *what_breaks;
static bool wal;         /* "sqlite-wal": in a file with that journal mode */
static long steps = 600; /* of all writers together, a round */
static struct server server;
static char service_url[160]; /* "" of a kind that is a file */

static bool is_service(void) { return *service_url; }

struct shared {
    _Atomic int64_t tried, accepted, written; /* the highest ones; written: accepted with data */
    _Atomic long steps, stale;
    _Atomic int failed;
    char why[800];
};
static struct shared *shared;
static int told[2]; /* a pipe: one byte a step */

static void raise_to(_Atomic int64_t *to, int64_t value) {
    int64_t was = atomic_load(to);
    while (was < value && !atomic_compare_exchange_weak(to, &was, value)) {
    }
}

static void violation(const char *format, int64_t a, int64_t b, const char *text) {
    if (atomic_exchange(&shared->failed, 1) == 0)
        snprintf(shared->why, sizeof shared->why, format, (long)a, (long)b, text);
}

static void guard_url(char *ret, size_t size, const char *folder) {
    if (is_service()) snprintf(ret, size, "%s", service_url);
    else snprintf(ret, size, strcmp(kind, "dir") == 0 ? "dir:%s" : "sqlite:%s/set.db", folder);
}

static bool listens(void *unused) {
    (void)unused;
    int fd = server_dial(server.port);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static void step(pawl_guard *guard, unsigned *seed, pid_t self) {
    char data[128];
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard_write w = PAWL_GUARD_WRITE_INIT;
    int64_t before = atomic_load(&shared->accepted), top = before > BASE ? before : BASE;
    w.resource = "acct/../1";
    w.lock = "acct";
    w.token = top + rand_r(seed) % 41 - 20;
    bool seal = rand_r(seed) % 8 == 0;
    int length =
        snprintf(data, sizeof data, "token %ld, writer %d, %0*d", (long)w.token, (int)self, rand_r(seed) % 60 + 1, 0);
    raise_to(&shared->tried, w.token);
    int code = seal ? pawl_guard_seal(guard, &w, &error) : pawl_guard_put(guard, &w, data, (size_t)length, &error);
    int64_t tried = atomic_load(&shared->tried);
    if (code == PAWL_EUNREACHABLE && is_service()) { /* killed; it may have happened */
        server_until(listens, NULL, 20000);
        return;
    }
    if (code == PAWL_OK) {
        if (w.token < before) violation("accepted %ld after %ld was%s", w.token, before, "");
        raise_to(&shared->accepted, w.token);
        if (!seal) raise_to(&shared->written, w.token);
    } else if (code == PAWL_GSTALE) {
        atomic_fetch_add(&shared->stale, 1);
        if (w.token >= tried) violation("%ld was stale, but none higher than %ld was tried%s", w.token, tried, "");
    } else violation("token %ld: code %ld: %s", w.token, code, error.text);
    atomic_fetch_add(&shared->steps, 1);
    if (write(told[1], "", 1) < 0) _exit(1);
}

/* PostgreSQL's processes die together only if the first of them tells them; nothing is written then. */
static void kill_service(void) { server_kill(&server, strcmp(kind, "postgresql") == 0 ? SIGQUIT : SIGKILL); }

static pid_t start_writer(const char *url) {
    pid_t pid = fork();
    if (pid) return pid;
    pawl_guard_options options = PAWL_GUARD_OPTIONS_INIT;
    pawl_guard *guard;
    options.wait_ms = 60000;
    if (pawl_guard_open(url, &options, &guard, NULL)) _exit(1);
    for (unsigned seed = (unsigned)getpid();;) step(guard, &seed, getpid());
}

static void wait_steps(long n) {
    char bytes[64];
    while (n > 0 && !atomic_load(&shared->failed)) {
        struct pollfd p = {.fd = told[0], .events = POLLIN};
        if (poll(&p, 1, 60000) != 1) fail_msg("no step in a minute");
        ssize_t got = read(told[0], bytes, n < 64 ? (size_t)n : 64);
        if (got > 0) n -= got;
    }
}

/* Writers run and are killed one by one, then all at once. */
static void run_writers(const char *url, unsigned *seed) {
    pid_t pids[WRITERS];
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    for (int i = 0; i < WRITERS; i++) pids[i] = start_writer(url);
    for (int kills = 1; kills <= (is_service() ? KILLS / 2 : KILLS) && !atomic_load(&shared->failed); kills++) {
        wait_steps(steps / KILLS);
        if (is_service() && kills % (getenv("PAWL_TEST_FULL") ? 8 : 12) == 0) {
            kill_service();
            server_restart(&server);
        }
        int victim = rand_r(seed) % WRITERS;
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], NULL, 0);
        pids[victim] = start_writer(url);
    }
    if (is_service()) kill_service(); /* while they write */
    for (int i = 0; i < WRITERS; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < WRITERS; i++) waitpid(pids[i], NULL, 0);
    close(told[0]);
    close(told[1]);
}

/* The record, as it is in a tree; NULL and the reason when something that was accepted is not there. */
static const char *look(const char *folder) {
    static char why[1024];
    char url[256];
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard *guard;
    pawl_guard_record *record = NULL;
    guard_url(url, sizeof url, folder);
    assert_int_equal(pawl_guard_open(url, NULL, &guard, &error), PAWL_OK);
    int64_t accepted = atomic_load(&shared->accepted), written = atomic_load(&shared->written), of_data = 0;
    int code = pawl_guard_get(guard, "acct/../1", &record, &error);
    *why = 0;
    if (code) snprintf(why, sizeof why, "%s", error.text);
    else if (record->written && sscanf(record->data, "token %ld,", (long *)&of_data) != 1)
        snprintf(why, sizeof why, "torn data");
    else if (record->token < accepted || record->token > atomic_load(&shared->tried) || of_data < written ||
             of_data > record->token)
        snprintf(why, sizeof why, "record %ld with data of %ld; accepted %ld, written %ld", (long)record->token,
                 (long)of_data, (long)accepted, (long)written);
    else {
        pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
        write.resource = "acct/../1";
        write.lock = "acct";
        write.token = record->token - 1;
        if (pawl_guard_put(guard, &write, "x", 1, NULL) != PAWL_GSTALE)
            snprintf(why, sizeof why, "a stale write came through");
        write.token = record->token + 1;
        if (pawl_guard_put(guard, &write, "x", 1, &error))
            snprintf(why, sizeof why, "no write is possible: %s", error.text);
    }
    pawl_guard_free(record);
    pawl_guard_close(guard);
    return *why ? why : NULL;
}

static void remove_tree(const char *path) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0) fail_msg("cannot remove %s", path);
}

static void first_write(const char *url) {
    char command[160];
    snprintf(command, sizeof command, "sqlite3 '%s' 'PRAGMA journal_mode = WAL' >/dev/null", strchr(url, ':') + 1);
    if (wal) assert_int_equal(system(command), 0);
    pawl_guard *guard;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    write.resource = "acct/../1";
    write.lock = "acct";
    write.token = BASE - 1000;
    assert_int_equal(pawl_guard_open(url, NULL, &guard, NULL), PAWL_OK);
    assert_int_equal(pawl_guard_put(guard, &write, "token 1,", 8, NULL), PAWL_OK);
    pawl_guard_close(guard);
}

/* What was lost after one round; NULL: nothing. */
static const char *round_of(unsigned *seed) {
    char base[] = "/tmp/pawl-crash-XXXXXX", root[64], shadow[64], out[64], url[128];
    static char why[1200];
    memset(shared, 0, sizeof *shared);
    assert_non_null(mkdtemp(base));
    snprintf(root, sizeof root, "%s/root", base);
    snprintf(shadow, sizeof shadow, "%s/shadow", base);
    mkdir(root, 0777);
    mkdir(shadow, 0777);
    guard_url(url, sizeof url, root);
    /* Without flushes of directories SQLite loses a file's own entry; later it needs a cut at the very moment of a
     * commit. */
    if (!what_breaks || strcmp(what_breaks, "files") == 0 || strcmp(kind, "dir") == 0) first_write(url);
    powercut_begin(root, shadow);
    if (what_breaks)
        powercut_break(strcmp(what_breaks, "files") == 0 ? POWERCUT_FILES_NOT_FLUSHED
                                                         : POWERCUT_DIRECTORIES_NOT_FLUSHED);
    run_writers(url, seed);
    powercut_end();
    *why = 0;
    if (atomic_load(&shared->failed)) fail_msg("while running: %s", shared->why);
    for (uint64_t cut = 0; cut < 6 && !*why; cut++) {
        snprintf(out, sizeof out, "%s/out%d", base, (int)cut);
        uint64_t mix = cut ? (uint64_t)rand_r(seed) * 2654435761u + 1 : 0;
        if (!powercut_restore(root, shadow, out, mix)) fail_msg("restore failed");
        const char *lost = look(out);
        if (lost) snprintf(why, sizeof why, "after power cut %d: %s", (int)cut, lost);
    }
    const char *lost = *why ? NULL : look(root);
    if (lost) snprintf(why, sizeof why, "after the kills alone: %s", lost);
    print_message("# %ld steps, %ld stale, highest accepted BASE+%ld: %s\n", atomic_load(&shared->steps),
                  atomic_load(&shared->stale), (long)(atomic_load(&shared->accepted) - BASE), *why ? why : "all there");
    if (atomic_load(&shared->stale) == 0 || atomic_load(&shared->accepted) == 0) fail_msg("the round tried nothing");
    remove_tree(base);
    return *why ? why : NULL;
}

static void start_service(void) {
    static const char *const saved[] = {"--appendonly", "yes", "--appendfsync", "always", NULL};
    if (strcmp(kind, "redis") == 0) server_start_redis(&server, what_breaks ? NULL : saved);
    if (strcmp(kind, "etcd") == 0) server_start_etcd(&server, NULL);
    /* A guard does not take the server's word for durability. */
    if (strcmp(kind, "postgresql") == 0)
        server_start_postgres(&server, "synchronous_commit = off\nwal_writer_delay = 10s\n");
    snprintf(service_url, sizeof service_url, "%s", server.url);
    pawl_guard *guard;
    assert_int_equal(pawl_guard_open(service_url, NULL, &guard, NULL), PAWL_OK);
    assert_int_equal(pawl_guard_install(guard, PAWL_RULE_GE, NULL), PAWL_OK);
    pawl_guard_close(guard);
}

/* What was lost after one round with a service; NULL: nothing. */
static const char *round_with_service(unsigned *seed) {
    memset(shared, 0, sizeof *shared);
    start_service();
    first_write(service_url);
    run_writers(service_url, seed);
    server_restart(&server);
    const char *lost = atomic_load(&shared->failed) ? shared->why : look("");
    print_message("# %ld steps, %ld stale, highest accepted BASE+%ld: %s\n", atomic_load(&shared->steps),
                  atomic_load(&shared->stale), (long)(atomic_load(&shared->accepted) - BASE),
                  lost ? lost : "all there");
    server_stop(&server);
    if (!what_breaks && (atomic_load(&shared->stale) == 0 || atomic_load(&shared->accepted) == 0))
        fail_msg("the round tried nothing");
    return lost;
}

static void test_crash(void **data) {
    (void)data;
    const char *given = getenv("PAWL_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)time(NULL);
    int rounds = getenv("PAWL_TEST_FULL") ? 20 : what_breaks ? 4 : 2;
    const char *lost = NULL;
    print_message("# PAWL_TEST_SEED=%u\n", seed);
    bool file = strcmp(kind, "dir") == 0 || strcmp(kind, "sqlite") == 0;
    if (!file && !getenv("PAWL_TEST_FULL")) rounds = 1;
    for (int i = 0; i < rounds && !lost; i++) lost = file ? round_of(&seed) : round_with_service(&seed);
    if (what_breaks && !lost) fail_msg("%s are not flushed, and nobody saw it", what_breaks);
    if (!what_breaks && lost) fail_msg("%s", lost);
}

int main(int argc, char **argv) {
    if (argc > 1) kind = argv[1];
    if (argc > 2) what_breaks = argv[2];
    if ((wal = strcmp(kind, "sqlite-wal") == 0)) kind = "sqlite";
    if (strcmp(kind, "sqlite") == 0 && !getenv("PAWL_TEST_FULL")) steps = 300; /* its busy waits are long */
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_crash)};
    return cmocka_run_group_tests_name(what_breaks ? what_breaks : kind, tests, NULL, NULL);
}
