/* waiting.c: many processes that want one lock; waiters that give up in the very moment of the grant, or die; readers
 * and writers. PAWL_TEST_FULL: 20 s of contention, and compared with processes that wait by inotify. */
#include "clock.h"
#include "parties.h"
#include "random.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PROCESSES = 200, GAPS = 100000 };

static bool full(void) { return getenv("PAWL_TEST_FULL") != NULL; }

/* --- contention --- */

static struct crowd {
    atomic_int ready, inside, overlaps, falls, failed, handovers, n_gaps;
    _Atomic int64_t stop_ns, released_ns;
    _Atomic uint64_t token;
    int last; /* who held it last */
    int64_t gaps[GAPS];
    int grants[PROCESSES];
} * crowd;

static void hold(int self, uint64_t token) {
    int64_t now = clock_now_ns(), released = crowd->released_ns;
    if (atomic_fetch_add(&crowd->inside, 1) != 0) crowd->overlaps++;
    if (token && token <= crowd->token) crowd->falls++;
    if (token) crowd->token = token;
    if (now < crowd->stop_ns) {
        crowd->grants[self]++;
        if (crowd->last != self && released) {
            int at = crowd->n_gaps;
            crowd->handovers++;
            if (at < GAPS) crowd->gaps[crowd->n_gaps++] = now - released;
        }
    }
    crowd->last = self;
    poll(NULL, 0, 1);
    atomic_fetch_sub(&crowd->inside, 1);
    crowd->released_ns = clock_now_ns();
}

static void pawl_way(int self) {
    struct party party;
    party_open(&party, dir, "crowd");
    crowd->ready++;
    while (clock_now_ns() < crowd->stop_ns) {
        if (!party_wait(&party)) {
            crowd->failed++;
            return;
        }
        hold(self, party.grant.token);
        party_release(&party);
    }
}

static void library_way(int self) {
    char url[100];
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    pawl_lock *lock;
    snprintf(url, sizeof url, "file:%s", dir);
    if (pawl_open(url, NULL, &client, &error)) crowd->failed++;
    crowd->ready++;
    while (!crowd->failed && clock_now_ns() < crowd->stop_ns) {
        if (pawl_acquire(client, "library", NULL, &lock, &error)) {
            fprintf(stderr, "# %s\n", error.text);
            crowd->failed++;
            return;
        }
        hold(self, (uint64_t)pawl_token(lock));
        if (pawl_release(lock, 10000, &error)) crowd->failed++;
    }
    pawl_close(client);
}

/* What others do: try, and watch for the close of the file. (A user has 128 inotify instances.) */
static void inotify_way(int self) {
    char path[100];
    snprintf(path, sizeof path, "%s/inotify", dir);
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    close(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (inotify_add_watch(watch, path, IN_CLOSE_WRITE) < 0) crowd->failed++;
    crowd->ready++;
    while (clock_now_ns() < crowd->stop_ns) {
        char events[4096];
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            hold(self, 0);
            close(fd);
            continue;
        }
        clock_wait_fd(watch, POLLIN, clock_after_ms(clock_now_ns(), 100), -1);
        while (read(watch, events, sizeof events) > 0) continue;
        close(fd);
        while (read(watch, events, sizeof events) > 0) continue; /* its own close */
    }
}

/* Nothing but the kernel: unfair, but nobody is faster. */
static void flock_way(int self) {
    char path[100];
    snprintf(path, sizeof path, "%s/flock", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    crowd->ready++;
    while (clock_now_ns() < crowd->stop_ns && flock(fd, LOCK_EX) == 0) {
        hold(self, 0);
        flock(fd, LOCK_UN);
    }
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

struct result {
    int grants, least, most, handovers;
    double gap_us, cpu_us; /* median; of a grant */
};

static int64_t children_us(void) {
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * INT64_C(1000000) + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
}

static struct result contend(void (*way)(int), int processes, int64_t ms) {
    crowd = mmap(NULL, sizeof *crowd, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(crowd != MAP_FAILED);
    crowd->last = -1;
    crowd->stop_ns = INT64_MAX;
    int64_t before = children_us();
    for (int i = 0; i < processes; i++)
        if (fork() == 0) {
            way(i);
            _exit(0);
        }
    while (crowd->ready < processes) sched_yield();
    memset(crowd->grants, 0, sizeof crowd->grants);
    crowd->n_gaps = crowd->handovers = 0;
    crowd->stop_ns = clock_after_ms(clock_now_ns(), ms);
    for (int i = 0, status; i < processes; i++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    struct result result = {.least = crowd->grants[0], .most = crowd->grants[0], .handovers = crowd->handovers};
    for (int i = 0; i < processes; i++) {
        int n = crowd->grants[i];
        result.grants += n;
        if (n < result.least) result.least = n;
        if (n > result.most) result.most = n;
    }
    qsort(crowd->gaps, (size_t)crowd->n_gaps, sizeof *crowd->gaps, by_value);
    if (crowd->n_gaps) result.gap_us = (double)crowd->gaps[crowd->n_gaps / 2] / 1000;
    if (result.grants) result.cpu_us = (double)(children_us() - before) / result.grants;
    printf("# %d processes, %lld ms: %d grants, %d to %d each, %d hand-overs, gap p50 %.1f us, cpu %.0f us a grant\n",
           processes, (long long)ms, result.grants, result.least, result.most, result.handovers, result.gap_us,
           result.cpu_us);
    assert_int_equal(crowd->overlaps, 0);
    assert_int_equal(crowd->falls, 0);
    assert_int_equal(crowd->failed, 0);
    munmap(crowd, sizeof *crowd);
    return result;
}

/* For as long as it takes until it means something: a slow machine gets longer. */
static struct result contend_until(void (*way)(int), int processes, int ms, int handovers) {
    struct result r = contend(way, processes, ms);
    for (; r.handovers <= handovers && ms < 30000; ms *= 2) r = contend(way, processes, 2 * ms);
    return r;
}

static void a_crowd_is_served_in_turn(void **state) {
    (void)state;
    int enough = full() ? 1000 : 600;
    struct result r = contend_until(pawl_way, PROCESSES, full() ? 20000 : 2500, enough);
    assert_true(r.handovers > enough);
    assert_true(r.least > 0 && r.most < 3 * r.least);
    if (!full()) return;
    struct result kernel = contend(flock_way, PROCESSES, 5000);
    struct result others = contend(inotify_way, PROCESSES / 2, 5000);
    /* 100 us on a machine that has nothing else to do; on a busy one each of the two wake-ups takes its time */
    assert_true(r.gap_us < 100 || r.gap_us < 15 * kernel.gap_us);
    assert_true(r.cpu_us < others.cpu_us / 4);
}

static void the_library_too(void **state) {
    (void)state;
    struct result r = contend_until(library_way, 50, full() ? 10000 : 1500, 200);
    assert_true(r.least > 0 && r.most < 3 * r.least);
}

/* --- giving up --- */

static void *release_it(void *party) {
    party_release(party);
    return NULL;
}

static void spin_us(int64_t us) {
    for (int64_t end = clock_now_ns() + us * 1000; clock_now_ns() < end;) continue;
}

static void giving_up_never_keeps_the_lock(void **state) {
    (void)state;
    struct party holder, waiter, other;
    int granted = 0, rounds = full() ? 30000 : 3000;
    party_open(&holder, dir, "x");
    party_open(&waiter, dir, "x");
    party_open(&other, dir, "x");
    for (int i = 0; i < rounds; i++) {
        pthread_t thread;
        bool beside = i % 2;
        waiter.claim.shared = i % 3 == 0;
        assert_int_equal(party_take(&holder, false), BK_YES);
        assert_int_equal(party_take(&waiter, true), BK_NO);
        if (beside) assert_int_equal(pthread_create(&thread, NULL, release_it, &holder), 0);
        else party_release(&holder);
        spin_us(random_between(0, beside ? 120 : 60));
        struct pollfd wake = {.fd = waiter.busy.wake_fd, .events = POLLIN};
        granted += poll(&wake, 1, 0);
        party_forget(&waiter);
        assert_null(waiter.claim.of);
        if (beside) pthread_join(thread, NULL);
        if (party_take(&other, false) != BK_YES) fail_msg("round %d: the lock is stuck", i);
        party_release(&other);
    }
    printf("# %d of %d had been granted already\n", granted, rounds);
    assert_in_range(granted, 1, rounds - 1);
    party_close(&holder);
    party_close(&waiter);
    party_close(&other);
}

static void giving_up_frees_despite_copies(void **state) {
    (void)state;
    struct party holder, waiter, other;
    int stay[2], status;
    char byte;
    assert_int_equal(pipe2(stay, O_CLOEXEC), 0);
    party_open(&holder, dir, "x");
    party_open(&waiter, dir, "x");
    party_open(&other, dir, "x");
    assert_int_equal(party_take(&holder, false), BK_YES);
    assert_int_equal(party_take(&waiter, true), BK_NO);
    pid_t child = fork(); /* has a copy of what the waiter waits with */
    if (child == 0) {
        close(stay[1]);
        _exit(read(stay[0], &byte, 1) == 0 ? 0 : 1);
    }
    party_release(&holder);
    assert_int_equal(clock_wait_fd(waiter.busy.wake_fd, POLLIN, soon().at_ns, -1), 1);
    party_forget(&waiter);
    assert_int_equal(party_take(&other, false), BK_YES);
    close(stay[1]);
    close(stay[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    party_close(&holder);
    party_close(&waiter);
    party_close(&other);
}

/* A process that waits forks a child, which closes what it inherited and stays; it gets the lock, and is killed. */
static void a_child_forked_while_waiting_keeps_nothing(void **state) {
    (void)state;
    struct party holder, other;
    int stay[2], said[2], status;
    char byte;
    assert_int_equal(pipe2(stay, O_CLOEXEC) | pipe2(said, O_CLOEXEC), 0);
    party_open(&holder, dir, "x");
    assert_int_equal(party_take(&holder, false), BK_YES);
    pid_t parent = fork();
    if (parent == 0) {
        struct party waiter;
        close(stay[1]);
        party_open(&waiter, dir, "x");
        if (party_take(&waiter, true) != BK_NO) _exit(1);
        if (fork() == 0) {
            file_backend.drop(waiter.session, true);
            file_backend.close(waiter.bk, true);
            if (write(said[1], "c", 1) != 1) _exit(1);
            _exit(read(stay[0], &byte, 1) == 0 ? 0 : 1);
        }
        if (!party_wait(&waiter) || write(said[1], "p", 1) != 1) _exit(1);
        pause();
    }
    assert_int_equal(read(said[0], &byte, 1), 1);
    assert_int_equal(byte, 'c');
    party_release(&holder);
    assert_int_equal(read(said[0], &byte, 1), 1);
    assert_int_equal(byte, 'p');
    kill(parent, SIGKILL);
    assert_int_equal(waitpid(parent, &status, 0), parent);
    party_close(&holder); /* it has a copy of nothing, but must not be in the way */
    party_open(&other, dir, "x");
    assert_int_equal(party_take(&other, false), BK_YES);
    party_close(&other);
    close(stay[0]);
    close(stay[1]);
    close(said[0]);
    close(said[1]);
}

static void giving_up_lets_the_next_pass(void **state) {
    (void)state;
    struct party party[4];
    for (int i = 0; i < 4; i++) {
        party_open(party + i, dir, "x");
        assert_int_equal(party_take(party + i, true), i == 0 ? BK_YES : BK_NO);
    }
    party_forget(party + 1);
    party_release(party);
    assert_true(party_wait(party + 2));
    assert_int_equal(party_take(party + 3, true), BK_NO);
    party_release(party + 2);
    assert_true(party_wait(party + 3));
    for (int i = 0; i < 4; i++) party_close(party + i);
}

/* A process that queues, says so, and when it was granted says its number. */
static pid_t waiting_process(int number, int said) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    struct party party;
    char byte = (char)number;
    party_open(&party, dir, "x");
    if (party_take(&party, true) != BK_NO || write(said, &byte, 1) != 1 || !party_wait(&party)) _exit(1);
    if (write(said, &byte, 1) != 1) _exit(1);
    party_release(&party);
    _exit(0);
}

static void dead_waiters_leave_the_queue(void **state) {
    (void)state;
    struct party holder;
    pid_t pids[5];
    char byte;
    int said[2], status;
    assert_int_equal(pipe2(said, O_CLOEXEC), 0);
    party_open(&holder, dir, "x");
    assert_int_equal(party_take(&holder, false), BK_YES);
    for (int i = 0; i < 5; i++) {
        pids[i] = waiting_process(i, said[1]);
        assert_int_equal(read(said[0], &byte, 1), 1);
        assert_int_equal(byte, i);
    }
    for (int i = 0; i < 4; i += 2) {
        kill(pids[i], SIGKILL);
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
    }
    party_release(&holder);
    static const char order[] = {1, 3, 4};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(read(said[0], &byte, 1), 1);
        assert_int_equal(byte, order[i]);
        assert_int_equal(waitpid(pids[(int)byte], &status, 0), pids[(int)byte]);
        assert_int_equal(status, 0);
    }
    close(said[0]);
    close(said[1]);
    party_close(&holder);
}

static void overlapping_readers_starve_no_writer(void **state) {
    (void)state;
    struct party reader[2], writer;
    for (int i = 0; i < 2; i++) {
        party_open(reader + i, dir, "x");
        reader[i].claim.shared = true;
    }
    party_open(&writer, dir, "x");
    assert_int_equal(party_take(reader, false), BK_YES);
    assert_int_equal(party_take(reader + 1, false), BK_YES);
    assert_int_equal(party_take(&writer, true), BK_NO);
    for (int i = 0; i < 2; i++) {
        party_release(reader + i);
        assert_int_equal(party_take(reader + i, true), BK_NO); /* behind the writer, though another reader holds it */
    }
    assert_true(party_wait(&writer));
    party_release(&writer);
    assert_true(party_wait(reader + 1));
    assert_true(party_wait(reader));
    for (int i = 0; i < 2; i++) party_close(reader + i);
    party_close(&writer);
}

/* The threads of a waiting process but its first: their blocked signals. */
static uint64_t blocked_in_waiters(void) {
    uint64_t all = UINT64_MAX;
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[300], line[200];
        if (*entry->d_name == '.' || atoi(entry->d_name) == getpid()) continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof line, file)) {
            unsigned long long mask;
            if (sscanf(line, "SigBlk: %llx", &mask) == 1) all &= mask, n++;
        }
        if (file) fclose(file);
    }
    closedir(tasks);
    return n ? all : 0;
}

static void signals_go_to_the_application(void **state) {
    (void)state;
    struct party holder, waiter;
    party_open(&holder, dir, "x");
    party_open(&waiter, dir, "x");
    assert_int_equal(party_take(&holder, false), BK_YES);
    assert_int_equal(party_take(&waiter, true), BK_NO);
    uint64_t blocked = blocked_in_waiters();
    static const int signals[] = {SIGHUP, SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM, SIGTSTP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) assert_true(blocked >> (signals[i] - 1) & 1);
    party_close(&holder);
    party_close(&waiter);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_crowd_is_served_in_turn),
        TEST(the_library_too),
        TEST(giving_up_never_keeps_the_lock),
        TEST(giving_up_frees_despite_copies),
        TEST(a_child_forked_while_waiting_keeps_nothing),
        TEST(giving_up_lets_the_next_pass),
        TEST(dead_waiters_leave_the_queue),
        TEST(overlapping_readers_starve_no_writer),
        TEST(signals_go_to_the_application),
    };
    return cmocka_run_group_tests_name("file_waiting", tests, NULL, NULL);
}
