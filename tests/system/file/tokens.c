/* tokens.c: the token counter against power cuts, other boots, kills, clocks, restores, damage and full disks.
 *
 * Power cuts: counter_io is replaced by a layer that knows what the disk has. At a cut the file becomes what the disk
 * may have at that time: any state from the last sync on, since the kernel writes pages back when it likes. That the
 * layer finds a missing sync is a test of its own. */
#include "clock.h"
#include "file/counter.h"
#include "parties.h"
#include "token.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
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

enum { PENDING = 64 };

static struct {
    char disk[COUNTER_SIZE];             /* as of the last sync */
    char pending[PENDING][COUNTER_SIZE]; /* written since, oldest first */
    int n_pending;
    int64_t wall_us;
    bool sync_lies, sync_fails;
    int write_errno;
    uint64_t random;
} world;

static uint64_t draw_number(uint64_t below) {
    world.random = world.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (world.random >> 33) % below;
}

static ssize_t note_write(int fd, const void *data, size_t size, off_t at) {
    if (world.write_errno) {
        errno = world.write_errno;
        return -1;
    }
    assert_true(at == 0 && size == COUNTER_SIZE && world.n_pending < PENDING);
    memcpy(world.pending[world.n_pending++], data, size);
    return pwrite(fd, data, size, at);
}

static int note_sync(int fd) {
    if (world.sync_fails) {
        errno = EIO;
        return -1;
    }
    if (world.sync_lies) return 0;
    assert_int_equal(pread(fd, world.disk, COUNTER_SIZE, 0), COUNTER_SIZE);
    world.n_pending = 0;
    return 0;
}

static int64_t virtual_wall(void) { return world.wall_us; }

static const struct counter_io layer = {note_write, note_sync, virtual_wall};
static struct counter_io real_io;

#define START_US INT64_C(1790000000000000)

static int setup(void **state) {
    (void)state;
    real_io = counter_io;
    memset(&world, 0, sizeof world);
    world.wall_us = START_US;
    world.random = 7;
    new_dir(dir);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    counter_io = real_io;
    remove_dir(dir);
    return 0;
}

static struct place *open_place(int boot) {
    struct place *place;
    pawl_error error = PAWL_ERROR_INIT;
    if (place_open(dir, false, &place, &error)) fail_msg("%s", error.text);
    if (boot) snprintf(place->boot, sizeof place->boot, "00000000-0000-0000-0000-%012d", boot);
    return place;
}

static uint64_t draw(struct place *place) {
    uint64_t token = 0;
    pawl_error error = PAWL_ERROR_INIT;
    if (counter_draw(place, soon(), &token, &error) != BK_YES) fail_msg("%s", error.text);
    return token;
}

static void counter_path(char ret[100]) { snprintf(ret, 100, "%s/%s", dir, COUNTER_FILE); }

/* The disk may have any state from the last sync on. */
static void cut_power(void) {
    char path[100];
    int keep = (int)draw_number((uint64_t)world.n_pending + 1);
    const char *content = keep ? world.pending[keep - 1] : world.disk;
    counter_path(path);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, content, COUNTER_SIZE, 0), COUNTER_SIZE);
    close(fd);
    memmove(world.disk, content, COUNTER_SIZE);
    world.n_pending = 0;
}

/* A counter that nobody has used. */
static void new_world(void) {
    static char unused[COUNTER_SIZE];
    char path[100];
    counter_path(path);
    world.n_pending = 0;
    world.sync_fails = false;
    counter_io = real_io;
    if (access(path, F_OK) != 0) {
        struct place *place = open_place(1);
        pawl_error error = PAWL_ERROR_INIT;
        struct bk_tokens tokens;
        assert_int_equal(counter_stand(place, false, 0, soon(), &tokens, &error), BK_YES); /* makes the file */
        assert_int_equal(pread(place->counter.fd, unused, COUNTER_SIZE, 0), COUNTER_SIZE);
        place_close(place);
    } else write_file(path, unused, COUNTER_SIZE);
    memcpy(world.disk, unused, COUNTER_SIZE);
    counter_io = layer;
}

/* One random history; true: every token was above all before it. */
static bool history(uint64_t seed) {
    world.random = seed * 2654435761u + 1;
    world.wall_us = START_US;
    new_world();
    int boot = 1;
    uint64_t last = 0, token;
    struct place *place = open_place(boot);
    bool good = true;
    for (int i = 0; i < 40 && good; i++) {
        pawl_error error = PAWL_ERROR_INIT;
        switch (draw_number(8)) {
        case 0: /* the power goes, at any moment; the clock of the next boot may be wrong */
            cut_power();
            place_close(place);
            place = open_place(++boot);
            if (draw_number(4) == 0) world.wall_us -= (int64_t)draw_number(7200) * 1000000;
            break;
        case 1: /* a process is killed after its write, before its sync */
            world.sync_fails = true;
            if (counter_draw(place, soon(), &token, &error) == BK_YES) good = token > last, last = token;
            world.sync_fails = false;
            place_close(place);
            place = open_place(boot);
            break;
        case 2: world.wall_us += (int64_t)draw_number(UINT64_C(600000000)); break;
        case 3: world.wall_us -= (int64_t)draw_number(3600) * 1000000; break;
        default: /* writes are few enough for the list of pending ones, though there are syncs too rarely to empty it */
            if (world.n_pending > PENDING - 4) break;
            token = draw(place);
            good = token > last;
            last = token;
            world.wall_us += (int64_t)draw_number(1000);
        }
    }
    place_close(place);
    return good;
}

static int histories(void) { return getenv("PAWL_TEST_FULL") ? 10000 : 1000; }

static void tokens_rise_over_power_cuts(void **state) {
    (void)state;
    for (int i = 0; i < histories(); i++)
        if (!history((uint64_t)i)) fail_msg("seed %d: a token did not rise", i);
}

static void a_missing_sync_is_found(void **state) {
    (void)state;
    int found = 0, n = histories() / 4;
    world.sync_lies = true;
    for (int i = 0; i < n; i++) found += !history((uint64_t)i);
    printf("# %d of %d histories fall without the sync\n", found, n);
    assert_true(found > n / 100);
}

static void bound_is_synced_before_it_is_used(void **state) {
    (void)state;
    new_world();
    struct place *place = open_place(1);
    pawl_error error = PAWL_ERROR_INIT;
    uint64_t token;
    world.sync_fails = true;
    assert_int_equal(counter_draw(place, soon(), &token, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EUNREACHABLE);
    assert_non_null(strstr(error.text, COUNTER_FILE));
    assert_int_equal(counter_draw(place, soon(), &token, &error), BK_FAULT); /* the first did not pretend */
    world.sync_fails = false;
    assert_int_equal(counter_draw(place, soon(), &token, &error), BK_YES);
    place_close(place);
}

static void clock_steps_back(void **state) {
    (void)state;
    counter_io.wall_us = virtual_wall;
    struct place *place = open_place(0);
    uint64_t first = draw(place), second;
    world.wall_us -= INT64_C(86400) * 365 * 1000000;
    assert_true((second = draw(place)) > first);
    world.wall_us = 1000000; /* 1970: nothing starts at the clock here, so it does not matter */
    assert_true(draw(place) > second);
    place_close(place);
}

static void an_absurd_clock_is_refused_at_the_start(void **state) {
    (void)state;
    counter_io.wall_us = virtual_wall;
    world.wall_us = INT64_C(946684800000000); /* 2000-01-01 */
    struct place *place = open_place(0);
    pawl_error error = PAWL_ERROR_INIT;
    struct bk_tokens tokens;
    uint64_t token;
    assert_int_equal(counter_draw(place, soon(), &token, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "2020"));
    assert_int_equal(counter_stand(place, true, 0, soon(), &tokens, &error), BK_FAULT);
    world.wall_us = START_US;
    assert_in_range(draw(place), START_US, START_US + 2);
    place_close(place);
}

static void tokens_are_never_far_ahead_of_the_clock(void **state) {
    (void)state;
    new_world();
    struct place *place = open_place(1);
    for (int i = 0; i < 200; i++) {
        world.n_pending = 0;
        world.wall_us += 600000000;
        assert_in_range(draw(place), START_US, world.wall_us + 1);
        place_close(place);
        place = open_place(i + 2); /* a boot each ten minutes */
    }
    place_close(place);
}

/* --- restores --- */

static void copied_back_from_a_backup(void **state) {
    (void)state;
    counter_io.wall_us = virtual_wall;
    struct place *place = open_place(0);
    draw(place);
    assert_int_equal(shell("cp -a %s %s.backup", dir, dir), 0);
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) last = draw(place);
    const char *const ways[] = {
        "rm -r %1$s && cp -a %1$s.backup %1$s",                                   /* the directory is new */
        "cp -a --remove-destination %1$s.backup/.pawl.tokens %1$s/",              /* the file is */
        "mv %1$s/.pawl.tokens %1$s/.old && cp -a %1$s.backup/.pawl.tokens %1$s/", /* the old one lives on */
        "mv %1$s %1$s.old && cp -a %1$s.backup %1$s && rm -r %1$s.old",
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char command[600];
        pawl_error error = PAWL_ERROR_INIT;
        snprintf(command, sizeof command, ways[i], dir);
        assert_int_equal(shell("%s", command), 0);
        world.wall_us += 2000000;
        struct place *fresh = open_place(0);
        uint64_t token = draw(fresh);
        if (token <= last) fail_msg("way %zu: %llu after %llu", i, (unsigned long long)token, (unsigned long long)last);
        last = token;
        place_close(fresh);
        place->counter.looked_ns = 0; /* the millisecond is over */
        assert_int_equal(place_refresh(place, &error), PAWL_OK);
        token = draw(place); /* one that had the old files open */
        if (token <= last)
            fail_msg("way %zu, old session: %llu after %llu", i, (unsigned long long)token, (unsigned long long)last);
        last = token;
    }
    place_close(place);
    shell("rm -r %s.backup", dir);
}

static void put_back_in_place(void **state) {
    (void)state;
    char path[100];
    size_t size;
    counter_io.wall_us = virtual_wall;
    struct place *place = open_place(0);
    draw(place);
    counter_path(path);
    char *backup = read_file(path, &size);
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) {
        world.wall_us += 20; /* under an eighth of a token a microsecond */
        last = draw(place);
    }
    write_file(path, backup, size);
    world.wall_us += 20;
    assert_true(draw(place) > last);
    place_close(place);
    free(backup);
}

/* --- damage --- */

static void refused_and_unchanged(struct place *place, const char *path, const char *content, size_t size, size_t at) {
    uint64_t token;
    struct bk_tokens tokens;
    pawl_error error = PAWL_ERROR_INIT;
    write_file(path, content, size);
    if (counter_draw(place, soon(), &token, &error) != BK_FAULT) fail_msg("%zu: a damaged counter is believed", at);
    assert_int_equal(error.code, PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "damaged"));
    assert_int_equal(counter_stand(place, true, 0, soon(), &tokens, &error), BK_FAULT);
    size_t after_size;
    char *after = read_file(path, &after_size);
    assert_int_equal(after_size, size);
    assert_memory_equal(after, content, size);
    free(after);
}

static void a_damaged_file_is_refused(void **state) {
    (void)state;
    char path[100];
    size_t size;
    struct place *place = open_place(0);
    draw(place);
    counter_path(path);
    char *good = read_file(path, &size);
    assert_int_equal(size, COUNTER_SIZE);
    for (size_t i = 0; i < size; i++) {
        char bad[COUNTER_SIZE];
        memcpy(bad, good, size);
        bad[i] ^= 1;
        refused_and_unchanged(place, path, bad, size, i);
        refused_and_unchanged(place, path, good, i, i); /* cut off there; 0: emptied */
    }
    write_file(path, good, size);
    draw(place);
    place_close(place);
    free(good);
}

static void a_full_disk_is_named(void **state) {
    (void)state;
    new_world();
    struct place *place = open_place(1);
    uint64_t before = draw(place), token;
    pawl_error error = PAWL_ERROR_INIT;
    world.write_errno = ENOSPC;
    assert_int_equal(counter_draw(place, soon(), &token, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EDENIED);
    assert_non_null(strstr(error.text, COUNTER_FILE));
    assert_non_null(strstr(error.text, "No space"));
    world.write_errno = 0;
    assert_true(draw(place) > before);
    place_close(place);
}

static void a_stopped_process_is_no_end_of_waiting(void **state) {
    (void)state;
    char path[100];
    struct place *place = open_place(0);
    uint64_t token;
    pawl_error error = PAWL_ERROR_INIT;
    draw(place);
    counter_path(path);
    assert_int_equal(shell("true"), 0);
    int cancel[2], fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pipe2(cancel, O_CLOEXEC), 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    struct bk_until until = {clock_after_ms(clock_now_ns(), 50), -1};
    assert_int_equal(counter_draw(place, until, &token, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EUNREACHABLE);
    assert_int_equal(write(cancel[1], "x", 1), 1);
    assert_int_equal(counter_draw(place, (struct bk_until){INT64_MAX, cancel[0]}, &token, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_ECANCELLED);
    close(fd);
    draw(place);
    close(cancel[0]);
    close(cancel[1]);
    place_close(place);
}

/* --- many processes --- */

enum { PROCESSES = 4, DRAWS = 5000 };

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void no_token_twice(void **state) {
    (void)state;
    size_t bytes = PROCESSES * DRAWS * sizeof(uint64_t);
    uint64_t *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    for (int p = 0; p < PROCESSES; p++) {
        if (fork() > 0) continue;
        struct place *place = open_place(0);
        uint64_t *mine = all + p * DRAWS, last = 0;
        for (int i = 0; i < DRAWS; i++) {
            mine[i] = draw(place);
            if (mine[i] <= last) _exit(1);
            last = mine[i];
        }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    qsort(all, PROCESSES * DRAWS, sizeof *all, by_value);
    for (int i = 1; i < PROCESSES * DRAWS; i++) assert_true(all[i] > all[i - 1]);
    munmap(all, bytes);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(tokens_rise_over_power_cuts),
        TEST(a_missing_sync_is_found),
        TEST(bound_is_synced_before_it_is_used),
        TEST(clock_steps_back),
        TEST(an_absurd_clock_is_refused_at_the_start),
        TEST(tokens_are_never_far_ahead_of_the_clock),
        TEST(copied_back_from_a_backup),
        TEST(put_back_in_place),
        TEST(a_damaged_file_is_refused),
        TEST(a_full_disk_is_named),
        TEST(a_stopped_process_is_no_end_of_waiting),
        TEST(no_token_twice),
    };
    return cmocka_run_group_tests_name("file_tokens", tests, NULL, NULL);
}
