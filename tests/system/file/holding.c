/* holding.c: who holds what: copies of descriptors in other processes, dead holders, files that are removed or replaced
 * meanwhile, users who share a directory, and what who is told. */
#include "clock.h"
#include "file/counter.h"
#include "parties.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void must_be(int status) {
    int got;
    assert_true(wait(&got) > 0);
    assert_int_equal(got, status);
}

/* --- copies --- */

static void a_forked_copy_breaks_no_release(void **state) {
    (void)state;
    struct party party, other;
    char byte;
    int stay[2];
    assert_int_equal(pipe2(stay, O_CLOEXEC), 0);
    party_open(&party, dir, "x");
    party_open(&other, dir, "x");
    assert_int_equal(party_take(&party, false), BK_YES);
    pid_t child = fork();
    if (child == 0) {
        close(stay[1]);
        _exit(read(stay[0], &byte, 1) == 0 ? 0 : 1);
    }
    party_release(&party);
    assert_int_equal(party_take(&other, false), BK_YES);
    close(stay[1]);
    close(stay[0]);
    must_be(0);
    party_close(&party);
    party_close(&other);
}

static void a_forked_child_takes_nothing_away(void **state) {
    (void)state;
    struct party party, other;
    party_open(&party, dir, "x");
    party_open(&other, dir, "x");
    assert_int_equal(party_take(&party, false), BK_YES);
    if (fork() == 0) {
        file_backend.end(&party.grant, true);
        file_backend.drop(party.session, true);
        file_backend.close(party.bk, true);
        _exit(0);
    }
    must_be(0);
    assert_int_equal(party_take(&other, false), BK_NO);
    assert_int_equal(file_backend.prove(party.session, &party.grant, soon(), &party.error), BK_YES);
    party_close(&party);
    party_close(&other);
}

/* A process locks, forks a child that stays, locks again if `again`, says so, and is killed: is the lock free? */
static bool free_after_kill(bool before_fork) {
    struct party other;
    char byte;
    int said[2], stay[2];
    assert_int_equal(pipe2(said, O_CLOEXEC) | pipe2(stay, O_CLOEXEC), 0);
    pid_t holder = fork();
    if (holder == 0) {
        struct party party;
        close(stay[1]);
        party_open(&party, dir, "x");
        if (party_take(&party, false) != BK_YES) _exit(1);
        if (!before_fork) party_release(&party);
        if (fork() == 0) _exit(read(stay[0], &byte, 1) == 0 ? 0 : 1);
        if (!before_fork && party_take(&party, false) != BK_YES) _exit(1);
        if (write(said[1], "x", 1) == 1) pause();
        _exit(1);
    }
    close(stay[0]);
    close(said[1]);
    assert_int_equal(read(said[0], &byte, 1), 1);
    kill(holder, SIGKILL);
    must_be(SIGKILL);
    party_open(&other, dir, "x");
    enum bk_says says = party_take(&other, false);
    close(stay[1]);
    close(said[0]);
    if (says == BK_NO) assert_true(party_wait(&other)); /* the child goes, and with it the lock */
    party_close(&other);
    return says == BK_YES;
}

static void a_dead_holder_frees(void **state) {
    (void)state;
    assert_false(free_after_kill(true)); /* forked while it held: its child has a copy; documented */
    assert_true(free_after_kill(false)); /* forked before: the child must not have one */
}

static void a_lent_descriptor_serves_one_grant_only(void **state) {
    (void)state;
    struct party party, other;
    int fd;
    party_open(&party, dir, "x");
    party_open(&other, dir, "x");
    assert_int_equal(party_take(&party, false), BK_YES);
    assert_int_equal(file_backend.fds(party.session, &party.grant, &fd, 1), 1);
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    file_backend.end(&party.grant, false); /* as if we had died: the copy keeps it */
    party.held = false;
    assert_int_equal(party_take(&other, false), BK_NO);
    close(copy);
    assert_int_equal(party_take(&other, false), BK_YES);
    party_release(&other);

    assert_int_equal(party_take(&party, false), BK_YES);
    assert_int_equal(file_backend.fds(party.session, &party.grant, &fd, 1), 1);
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    party_release(&party);
    assert_int_equal(party_take(&party, false), BK_YES);
    flock(copy, LOCK_UN); /* the copy of the former grant has no power over this one */
    assert_int_equal(party_take(&other, false), BK_NO);
    close(copy);
    party_close(&party);
    party_close(&other);
}

/* --- removed, replaced --- */

static void a_removed_file_is_a_lost_lock(void **state) {
    (void)state;
    struct party party, other;
    struct bk_grant *one = &party.grant;
    enum bk_says says;
    static const char *const ways[] = {"rm %s/x", "mv %s/x %s/y", "touch %s/z && mv %s/z %s/x"};
    for (size_t i = 0; i < 3; i++) {
        party_open(&party, dir, "x");
        party_open(&other, dir, "x");
        assert_int_equal(party_take(&party, false), BK_YES);
        char command[300];
        snprintf(command, sizeof command, ways[i], dir, dir, dir);
        assert_int_equal(shell("%s", command), 0);
        assert_int_equal(file_backend.prove(party.session, &party.grant, soon(), &party.error), BK_NO);
        assert_int_equal(party_take(&other, false), BK_YES);
        assert_int_equal(file_backend.release(party.session, &one, 1, soon(), &says, &party.error), BK_YES);
        assert_int_equal(says, BK_NO);
        party_close(&party);
        party_close(&other);
    }
}

static void a_waiter_follows_the_path(void **state) {
    (void)state;
    struct party party, other;
    party_open(&party, dir, "x");
    party_open(&other, dir, "x");
    assert_int_equal(party_take(&party, false), BK_YES);
    assert_int_equal(party_take(&other, true), BK_NO);
    assert_int_equal(shell("mv %s/x %s/old", dir, dir), 0);
    assert_in_range(other.busy.ask_again_ms, 1, 5000);
    assert_int_equal(party_take(&other, true), BK_YES); /* asked again, as it was told to */
    party_close(&party);
    party_close(&other);
}

static void a_replaced_directory_is_found_out(void **state) {
    (void)state;
    struct party party, other;
    party_open(&party, dir, "x");
    assert_int_equal(party_take(&party, false), BK_YES);
    party_release(&party);
    assert_int_equal(shell("mv %s %s.old && mkdir -m 700 %s && rm -r %s.old", dir, dir, dir, dir), 0);
    party_open(&other, dir, "x");
    assert_int_equal(party_take(&other, false), BK_YES);
    assert_int_equal(party_take(&party, false), BK_NO);
    party_release(&other);
    assert_int_equal(party_take(&party, false), BK_YES);
    party_close(&party);
    party_close(&other);
}

/* The collector of lock files, as documented: lock, see that it is the file, remove, unlock. */
static void collect(const char *path) {
    struct stat a, b;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino)
        unlink(path);
    close(fd);
}

static void take_until_told(int stop, atomic_int *taken) {
    struct pollfd told = {.fd = stop, .events = POLLIN};
    struct party party;
    party_open(&party, dir, "x");
    while (poll(&told, 1, 0) == 0) {
        if (!party_wait(&party)) _exit(1);
        int in = open(in_dir(".in"), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (in < 0) _exit(2);
        close(in);
        if (unlink(in_dir(".in")) != 0) _exit(3);
        party_release(&party);
        atomic_fetch_add(taken, 1);
    }
    _exit(0);
}

static void removing_while_taking_never_lets_two_in(void **state) {
    (void)state;
    enum { TAKERS = 3, TAKEN = 3000, REMOVED = 20 };
    int stop[2], removed = 0;
    atomic_int *taken = mmap(NULL, sizeof *taken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(taken != MAP_FAILED && pipe2(stop, O_CLOEXEC) == 0);
    for (int p = 0; p < TAKERS; p++)
        if (fork() == 0) {
            close(stop[1]);
            take_until_told(stop[0], taken);
        }
    for (int64_t until = soon().at_ns; clock_now_ns() < until && (*taken < TAKEN || removed < REMOVED);) {
        bool there = access(in_dir("x"), F_OK) == 0;
        collect(in_dir("x"));
        removed += there && access(in_dir("x"), F_OK) != 0;
    }
    printf("# taken %d times, removed %d times\n", *taken, removed);
    close(stop[1]);
    for (int p = 0; p < TAKERS; p++) must_be(0);
    close(stop[0]);
    assert_true(*taken > 0 && removed > 0);
}

/* --- users --- */

static int take_as(uid_t uid, bool queue, int *ret_status) {
    pid_t pid = fork();
    if (pid == 0) {
        gid_t group = 4242;
        umask(077);
        if (setgroups(1, &group) || setgid(uid) || setuid(uid)) _exit(98);
        struct party party;
        party_open(&party, dir, "shared");
        enum bk_says says = party_take(&party, queue);
        if (says != BK_YES) fprintf(stderr, "# %s\n", party.error.text);
        if (says == BK_YES) party_release(&party);
        _exit((int)says);
    }
    assert_int_equal(waitpid(pid, ret_status, 0), pid);
    return *ret_status;
}

static void users_share_a_directory_of_their_group(void **state) {
    (void)state;
    int status;
    if (geteuid() != 0) skip();
    assert_int_equal(chown(dir, 0, 4242), 0);
    assert_int_equal(chmod(dir, 02770), 0);
    for (uid_t uid = 5001; uid <= 5003; uid++) assert_int_equal(take_as(uid, false, &status), 0);
    struct stat st;
    assert_int_equal(stat(in_dir("shared"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0660);
    assert_int_equal(st.st_gid, 4242);
    assert_int_equal(stat(in_dir(COUNTER_FILE), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0660);
}

static void elsewhere_files_are_private(void **state) {
    (void)state;
    struct party party;
    struct stat st;
    mode_t before = umask(0);
    party_open(&party, dir, "x");
    assert_int_equal(party_take(&party, false), BK_YES);
    umask(before);
    assert_int_equal(stat(in_dir("x"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(stat(in_dir(COUNTER_FILE), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    party_close(&party);
}

/* --- records --- */

static void records_of_the_living_only(void **state) {
    (void)state;
    struct party party, watcher;
    struct seen seen[8];
    char byte;
    int said[2];
    party_open(&watcher, dir, "x");
    assert_int_equal(party_records(&watcher, "x", seen, 8), 0); /* no file */
    assert_int_equal(pipe2(said, O_CLOEXEC), 0);
    pid_t holder = fork();
    if (holder == 0) {
        party_open(&party, dir, "x");
        party.claim.about = "host=h&pid=4711&command=backup";
        if (party_take(&party, false) == BK_YES && write(said[1], "x", 1) == 1) pause();
        _exit(1);
    }
    assert_int_equal(read(said[0], &byte, 1), 1);
    assert_int_equal(party_records(&watcher, "x", seen, 8), 1);
    assert_string_equal(seen[0].about, "host=h&pid=4711&command=backup");
    assert_true(seen[0].record.token > 0 && seen[0].record.left_ms == -1 && seen[0].record.place == 0);
    assert_true(llabs(seen[0].record.since_ms - clock_wall_us() / 1000) < 60000);
    assert_int_equal(party_take(&watcher, false), BK_NO);
    assert_string_equal(watcher.busy.holder, "host=h&pid=4711&command=backup");
    assert_false(watcher.busy.foreign);
    kill(holder, SIGKILL);
    must_be(SIGKILL);
    assert_int_equal(party_records(&watcher, "x", seen, 8), 0); /* the record is still in the file */
    assert_int_equal(party_records(&watcher, NULL, seen, 8), 0);
    close(said[0]);
    close(said[1]);
    party_close(&watcher);
}

/* Held is held, also for somebody who may not read the file. */
static void records_for_those_who_may_not_read(void **state) {
    (void)state;
    struct party party;
    struct seen seen[8];
    int status;
    if (geteuid() != 0) skip();
    assert_int_equal(chmod(dir, 0755), 0);
    party_open(&party, dir, "x");
    for (int held = 0; held < 2; held++) {
        if (held) assert_int_equal(party_take(&party, false), BK_YES);
        pid_t pid = fork();
        if (pid == 0) {
            struct party stranger;
            if (setgroups(0, NULL) || setgid(5001) || setuid(5001)) _exit(98);
            party_open(&stranger, dir, "x");
            int n = party_records(&stranger, "x", seen, 8);
            _exit(n == party_records(&stranger, NULL, seen + n, 8 - n) && (n == 0 || strstr(seen[0].about, "pid="))
                      ? n
                      : 97);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, held << 8);
    }
    party_close(&party);
}

static void records_of_waiters_and_readers(void **state) {
    (void)state;
    struct party reader[2], waiter[3], watcher;
    struct seen seen[16];
    char about[3][40];
    party_open(&watcher, dir, "a.b/c");
    for (int i = 0; i < 2; i++) {
        party_open(reader + i, dir, "a.b/c");
        reader[i].claim.shared = true;
        assert_int_equal(party_take(reader + i, false), BK_YES);
    }
    for (int i = 0; i < 3; i++) {
        party_open(waiter + i, dir, "a.b/c");
        snprintf(about[i], sizeof about[i], "pid=%d&command=w%d", (int)getpid(), i);
        waiter[i].claim.about = about[i];
        waiter[i].claim.shared = i == 1;
        assert_int_equal(party_take(waiter + i, true), BK_NO);
    }
    assert_int_equal(party_records(&watcher, NULL, seen, 16), 5);
    assert_true(seen[0].record.shared && seen[1].record.shared && seen[0].record.place == 0);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(seen[2 + i].name, "a.b/c");
        assert_string_equal(seen[2 + i].about, about[i]);
        assert_int_equal(seen[2 + i].record.place, i + 1);
        assert_int_equal(seen[2 + i].record.shared, i == 1);
        assert_int_equal(seen[2 + i].record.token, 0);
    }
    party_forget(waiter);
    /* the reader behind it has got the lock in this moment, or soon, but does not know yet */
    assert_in_range(party_records(&watcher, "a.b/c", seen, 16), 3, 4);
    party_release(reader);
    party_release(reader + 1);
    assert_true(party_wait(waiter + 1)); /* a reader, now first */
    assert_int_equal(party_records(&watcher, "a.b/c", seen, 16), 2);
    assert_string_equal(seen[0].about, about[1]);
    assert_int_equal(seen[0].record.place, 0);
    party_release(waiter + 1);
    assert_true(party_wait(waiter + 2));
    assert_int_equal(party_records(&watcher, "a.b/c", seen, 16), 1);
    for (int i = 0; i < 2; i++) party_close(reader + i);
    for (int i = 0; i < 3; i++) party_close(waiter + i);
    party_close(&watcher);
}

/* The holder waited, and keeps its place in the queue: it is no waiter, and ours behind it is not in flock(2), but
 * flock's own is. */
static void a_foreign_waiter_behind_one_who_waited(void **state) {
    (void)state;
    struct party party[3];
    struct seen seen[8];
    int n = 0;
    for (int i = 0; i < 3; i++) party_open(party + i, dir, "x");
    assert_int_equal(party_take(party, false), BK_YES);
    assert_int_equal(party_take(party + 1, true), BK_NO);
    party_release(party);
    assert_true(party_wait(party + 1));
    assert_int_equal(party_take(party + 2, true), BK_NO);
    assert_int_equal(party_records(party, "x", seen, 8), 2);
    pid_t stranger = fork();
    if (stranger == 0) _exit(flock(open(in_dir("x"), O_RDWR), LOCK_EX) != 0);
    for (int64_t until = soon().at_ns; n != 3 && clock_now_ns() < until; poll(NULL, 0, 1))
        n = party_records(party, "x", seen, 8);
    assert_int_equal(n, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(seen[i].record.place, i);
    kill(stranger, SIGKILL);
    must_be(SIGKILL);
    for (int i = 0; i < 3; i++) party_close(party + i);
}

static void looking_never_makes_a_try_fail(void **state) {
    (void)state;
    struct party party, watcher;
    struct seen seen[4];
    party_open(&watcher, dir, "x");
    pid_t pid = fork();
    if (pid == 0)
        for (;;) party_records(&watcher, NULL, seen, 4);
    party_open(&party, dir, "x");
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(party_take(&party, false), BK_YES);
        party_release(&party);
    }
    kill(pid, SIGKILL);
    must_be(SIGKILL);
    party_close(&party);
    party_close(&watcher);
}

static void names(void **state) {
    (void)state;
    static const char *const some[] = {".",     "..",  "../x", "/etc/passwd", ".pawl.tokens",
                                       "a%2Fb", "a/b", "A",    "a",           "\xc3\xa4 b\n"};
    struct party party[sizeof some / sizeof *some];
    struct seen seen[32];
    char long_a[513], long_b[513];
    size_t n = sizeof some / sizeof *some;
    for (size_t i = 0; i < n; i++) {
        party_open(party + i, dir, some[i]);
        assert_int_equal(party_take(party + i, false), BK_YES);
    }
    memset(long_a, 'n', 512);
    long_a[512] = 0;
    strcpy(long_b, long_a);
    long_b[511] = 'm';
    struct party a, b;
    party_open(&a, dir, long_a);
    party_open(&b, dir, long_b);
    assert_int_equal(party_take(&a, false), BK_YES);
    assert_int_equal(party_take(&b, false), BK_YES);
    assert_int_equal(party_records(&a, NULL, seen, 32), (int)n + 2);
    int found = 0;
    for (size_t i = 0; i < n + 2; i++) {
        for (size_t j = 0; j < n; j++) found += strcmp(seen[i].name, some[j]) == 0;
        found += strcmp(seen[i].name, long_a) == 0;
        found += strcmp(seen[i].name, long_b) == 0;
    }
    assert_int_equal(found, (int)n + 2);
    for (size_t i = 0; i < n; i++) party_close(party + i);
    party_close(&a);
    party_close(&b);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_forked_copy_breaks_no_release),
        TEST(a_forked_child_takes_nothing_away),
        TEST(a_dead_holder_frees),
        TEST(a_lent_descriptor_serves_one_grant_only),
        TEST(a_removed_file_is_a_lost_lock),
        TEST(a_waiter_follows_the_path),
        TEST(a_replaced_directory_is_found_out),
        TEST(removing_while_taking_never_lets_two_in),
        TEST(users_share_a_directory_of_their_group),
        TEST(elsewhere_files_are_private),
        TEST(records_of_the_living_only),
        TEST(records_for_those_who_may_not_read),
        TEST(records_of_waiters_and_readers),
        TEST(a_foreign_waiter_behind_one_who_waited),
        TEST(looking_never_makes_a_try_fail),
        TEST(names),
    };
    return cmocka_run_group_tests_name("file_holding", tests, NULL, NULL);
}
