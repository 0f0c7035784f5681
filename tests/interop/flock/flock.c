/* flock.c: pawl and util-linux flock on the same file exclude each other, wait for each other, and share with each
 * other. */
#include "clock.h"
#include "parties.h"
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* `flock OPTION DIR/x cat`: what is written to `in` comes back from `out` while the lock is held. */
struct flock_process {
    pid_t pid;
    int in, out;
};

static struct flock_process start_flock(const char *option) {
    int in[2], out[2];
    char path[100];
    struct flock_process p;
    snprintf(path, sizeof path, "%s/x", dir);
    assert_int_equal(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC), 0);
    p.pid = fork();
    if (p.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execlp("flock", "flock", option, path, "cat", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    p.in = in[1];
    p.out = out[0];
    assert_int_equal(write(p.in, "x", 1), 1);
    return p;
}

/* Whether it has the lock, within ms. */
static bool flock_has(struct flock_process *p, int64_t ms) {
    return clock_wait_fd(p->out, POLLIN, clock_after_ms(clock_now_ns(), ms), -1) == 1;
}

static void end_flock(struct flock_process *p) {
    int status;
    close(p->in);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    assert_int_equal(status, 0);
    close(p->out);
}

static int try_flock(const char *option) { return shell("flock -n %s %s/x true", option, dir); }

static void each_excludes_the_other(void **state) {
    (void)state;
    struct party party;
    party_open(&party, dir, "x");
    assert_int_equal(party_take(&party, false), BK_YES);
    assert_int_equal(try_flock("-x"), 1);
    assert_int_equal(try_flock("-s"), 1);
    party_release(&party);
    assert_int_equal(try_flock("-x"), 0);
    struct flock_process other = start_flock("-x");
    assert_true(flock_has(&other, 10000));
    assert_int_equal(party_take(&party, false), BK_NO);
    assert_true(party.busy.foreign);
    party.claim.shared = true;
    assert_int_equal(party_take(&party, false), BK_NO);
    end_flock(&other);
    assert_int_equal(party_take(&party, false), BK_YES);
    party_close(&party);
}

static void they_share(void **state) {
    (void)state;
    struct party party;
    party_open(&party, dir, "x");
    party.claim.shared = true;
    struct flock_process other = start_flock("-s");
    assert_true(flock_has(&other, 10000));
    assert_int_equal(party_take(&party, false), BK_YES);
    end_flock(&other);
    assert_int_equal(try_flock("-s"), 0);
    assert_int_equal(try_flock("-x"), 1);
    party_release(&party);
    assert_int_equal(try_flock("-x"), 0);
    party_close(&party);
}

static const char *in_job(void) {
    static char path[100];
    snprintf(path, sizeof path, "%s/job.sh", dir);
    return path;
}

/* Until a waiter is in the kernel's queue. */
static void until_two_records(struct party *party, struct seen *seen) {
    for (int64_t end = clock_after_ms(clock_now_ns(), 10000); party_records(party, "x", seen, 4) < 2;)
        assert_true(clock_now_ns() < end);
}

static void each_waits_for_the_other(void **state) {
    (void)state;
    struct party party;
    party_open(&party, dir, "x");
    struct flock_process other = start_flock("-x");
    assert_true(flock_has(&other, 10000));
    assert_int_equal(party_take(&party, true), BK_NO);
    end_flock(&other);
    assert_true(party_wait(&party));
    other = start_flock("-x");
    struct seen seen[4];
    until_two_records(&party, seen);
    assert_int_equal(seen[1].record.place, 1);
    assert_non_null(strstr(seen[1].about, "command=flock"));
    assert_false(flock_has(&other, 0));
    party_release(&party);
    assert_true(flock_has(&other, 10000));
    end_flock(&other);
    party_close(&party);
}

static void flocks_file_is_used_as_it_is(void **state) {
    (void)state;
    char path[100];
    struct stat before, after;
    struct party party;
    snprintf(path, sizeof path, "%s/x", dir);
    mode_t mask = umask(022);
    assert_int_equal(try_flock("-x"), 0);
    umask(mask);
    assert_int_equal(stat(path, &before), 0);
    party_open(&party, dir, "x");
    assert_int_equal(party_take(&party, false), BK_YES);
    assert_int_equal(try_flock("-x"), 1);
    party_release(&party);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_int_equal(after.st_mode, before.st_mode);
    assert_int_equal(try_flock("-x"), 0); /* with pawl's records in it */
    party_close(&party);
}

static void who_names_flock(void **state) {
    (void)state;
    char pid[32];
    struct seen seen[4];
    struct party party;
    struct flock_process other = start_flock("-x");
    assert_true(flock_has(&other, 10000));
    party_open(&party, dir, "x");
    assert_int_equal(party_records(&party, "x", seen, 4), 1);
    snprintf(pid, sizeof pid, "pid=%d&", (int)other.pid);
    assert_non_null(strstr(seen[0].about, pid));
    assert_non_null(strstr(seen[0].about, "command=flock"));
    assert_int_equal(seen[0].record.token, 0);
    assert_int_equal(party_take(&party, true), BK_NO);
    until_two_records(&party,
                      seen); /* nothing is written into flock's file while flock has it: the kernel's table tells */
    assert_int_equal(seen[1].record.place, 1);
    end_flock(&other);
    party_close(&party);
}

/* Both in a loop; mkdir fails if somebody is in. */
static void mixed_they_never_overlap(void **state) {
    (void)state;
    enum { ROUNDS = 60 };
    int status;
    for (int i = 0; i < 4; i++) {
        if (fork() > 0) continue;
        if (i % 2)
            _exit(shell("i=0; while [ $i -lt %d ]; do flock %s/x sh -c 'mkdir %s/in && rmdir %s/in' || exit 1; "
                        "i=$((i+1)); done",
                        ROUNDS, dir, dir, dir));
        char in[100];
        struct party party;
        snprintf(in, sizeof in, "%s/in", dir);
        party_open(&party, dir, "x");
        for (int round = 0; round < 3 * ROUNDS; round++) {
            if (!party_wait(&party) || mkdir(in, 0700) != 0 || rmdir(in) != 0) _exit(1);
            party_release(&party);
        }
        _exit(0);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
}

/* Takes and releases until the file is there. */
static void take_until(const char *stop) {
    char in[100];
    struct party party;
    snprintf(in, sizeof in, "%s/.in", dir);
    party_open(&party, dir, "x");
    while (access(stop, F_OK) != 0) {
        if (!party_wait(&party) || mkdir(in, 0700) != 0 || rmdir(in) != 0) _exit(1);
        party_release(&party);
        poll(NULL, 0, 3); /* so that the collector finds it free now and then */
    }
    _exit(0);
}

/* examples/collect-locks.sh, as it is documented. */
static void the_collector_lets_no_two_in(void **state) {
    (void)state;
    enum { TAKERS = 2, ENOUGH = 3 };
    char file[100], stop[100];
    int removed = 0, status;
    const char *script = getenv("COLLECT_LOCKS");
    if (!script) skip();
    snprintf(file, sizeof file, "%s/x", dir);
    snprintf(stop, sizeof stop, "%s/.stop", dir);
    write_file(in_job(), "content", 7);
    for (int i = 0; i < TAKERS; i++)
        if (fork() == 0) take_until(stop);
    for (int64_t end = clock_after_ms(clock_now_ns(), 30000); removed < ENOUGH && clock_now_ns() < end;) {
        struct stat before, after;
        bool there = stat(file, &before) == 0;
        assert_int_equal(shell("%s %s 0 2>/dev/null & %s %s 0 2>/dev/null; wait", script, dir, script, dir), 0);
        removed += there && (stat(file, &after) != 0 || after.st_ino != before.st_ino);
    }
    write_file(stop, "", 0);
    for (int i = 0; i < TAKERS; i++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(removed, ENOUGH);
    assert_int_equal(access(in_job(), F_OK), 0); /* not a lock file */
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)
    const struct CMUnitTest tests[] = {
        TEST(each_excludes_the_other),      TEST(they_share),      TEST(each_waits_for_the_other),
        TEST(flocks_file_is_used_as_it_is), TEST(who_names_flock), TEST(mixed_they_never_overlap),
        TEST(the_collector_lets_no_two_in),
    };
    if (shell("flock --version >/dev/null 2>&1") != 0) {
        printf("1..0 # SKIP no flock here\n");
        return 0;
    }
    return cmocka_run_group_tests_name("flock", tests, NULL, NULL);
}
