/* Counters by class: what is written is read back, classes are bounded, and the library counts what happens. */
#include "metrics.h"
#include "pawl.h"
#include <locale.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct metrics *fresh(void) {
    struct metrics *m = calloc(1, sizeof *m);
    assert_non_null(m);
    pthread_mutex_init(&m->mutex, NULL);
    return m;
}

static char *text_of(struct metrics *m) {
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    metrics_write(m, false, file);
    fclose(file);
    return text;
}

static void test_class_names(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"nightly", "nightly"}, {"order:42", "order"}, {"a/b:c", "a"}, {":x", "other"}, {"ä/x", "ä"}};
    char name[METRICS_CLASS_NAME], longest[200];
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        metrics_class_name(pairs[i][0], name);
        assert_string_equal(name, pairs[i][1]);
    }
    memset(longest, 'x', sizeof longest);
    memcpy(longest + 62, "ä", 2); /* the cut would go through it */
    longest[199] = 0;
    metrics_class_name(longest, name);
    assert_int_equal(strlen(name), 62);
}

static void test_a_thousand_names_are_at_most_101_classes(void **state) {
    (void)state;
    struct metrics *m = fresh();
    char name[32];
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "name%d", i);
        metrics_acquired(metrics_class(m, name), PAWL_OK);
    }
    assert_int_equal(m->n_classes, METRICS_CLASSES + 1);
    assert_string_equal(m->classes[METRICS_CLASSES].name, METRICS_OTHER);
    assert_int_equal(m->classes[METRICS_CLASSES].acquire[PAWL_OK], 900);
    assert_ptr_equal(metrics_class(m, "name7"), &m->classes[7]);
    free(m);
}

static void test_read_back(void **state) {
    (void)state;
    struct metrics *m = fresh(), *again = fresh();
    struct metrics_class *c = metrics_class(m, "we\"ird\\na\nme:x");
    static const int64_t times[] = {0, 1000, 1001, 700000, 90000000000};
    for (size_t i = 0; i < 5; i++) metrics_time(&c->acquisition, times[i]), metrics_time(&c->held, times[i] / 2);
    for (int code = 0; code <= PAWL_EINTERNAL; code++) metrics_acquired(c, code);
    metrics_lost(c, PAWL_LOST_GONE);
    c->stale = 3;
    char *first = text_of(m), *rest = strdup(first), *save = NULL;
    for (char *line = strtok_r(rest, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        assert_int_equal(metrics_read(again, line), *line != '#');
    char *second = text_of(again);
    assert_string_equal(first, second);
    assert_non_null(strstr(first, "pawl_lost_total{class=\"we\\\"ird\\\\na\\nme\",reason=\"gone\"} 1"));
    assert_non_null(strstr(first, "le=\"0.001\"} 2\n"));
    free(first), free(second), free(rest), free(m), free(again);
}

static void test_other_lines_are_refused(void **state) {
    (void)state;
    static const char *const lines[] = {"",
                                        "# HELP pawl_lost_total x",
                                        "pawl_acquire_total 3",
                                        "node_load1{class=\"x\"} 3",
                                        "pawl_acquire_total{class=\"x\",result=\"busy\"} -1",
                                        "pawl_acquire_total{class=\"x\",result=\"busy\"",
                                        "pawl_acquire_total{class=\"x",
                                        "pawl_lock_held_duration_seconds_bucket{class=\"x\",le=\"1\"} 1e99"};
    struct metrics *m = fresh();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) assert_false(metrics_read(m, lines[i]));
    for (int i = 0; i < m->n_classes; i++) assert_int_equal(m->classes[i].acquire[PAWL_EBUSY], 0);
    free(m);
}

static void test_reasons(void **state) {
    (void)state;
    struct metrics *m = fresh();
    static const char *const wanted[] = {"unproven", "gone", "session", "max_hold", "watcher"};
    struct metrics_class *c = metrics_class(m, "n");
    char line[80];
    for (int i = 0; i < METRICS_REASONS; i++)
        for (int n = 0; n <= i; n++) metrics_lost(c, i);
    metrics_lost(c, 99); /* of a newer library: counted all the same */
    char *text = text_of(m);
    for (int i = 0; i < METRICS_REASONS; i++) {
        snprintf(line, sizeof line, "pawl_lost_total{class=\"n\",reason=\"%s\"} %d\n", wanted[i], i ? i + 1 : 2);
        assert_non_null(strstr(text, line));
    }
    free(text);
    free(m);
}

/* --- the library's own --- */

static int64_t value(const char *series) {
    char *text = malloc(1 << 20), *at;
    size_t length = pawl_metrics(text, 1 << 20);
    assert_int_equal(length, strlen(text));
    assert_int_equal(pawl_metrics(NULL, 0), length);
    at = strstr(text, series);
    int64_t n = at ? atoll(at + strlen(series)) : -1;
    free(text);
    return n;
}

static void test_the_library_counts(void **state) {
    (void)state;
    pawl_client *client;
    pawl_lock *lock, *waiting;
    pawl_acquire_options now = PAWL_ACQUIRE_INIT;
    now.wait_ms = 0;
    assert_int_equal(pawl_open("mem:", NULL, &client, NULL), PAWL_OK);
    assert_int_equal(pawl_acquire(client, "lib:1", NULL, &lock, NULL), PAWL_OK);
    assert_int_equal(value("pawl_locks_held{class=\"lib\"} "), 1);
    assert_int_equal(pawl_acquire(client, "lib:1", &now, &waiting, NULL), PAWL_EBUSY);
    assert_int_equal(pawl_acquire_start(client, "lib:1", NULL, NULL, &waiting, NULL), PAWL_OK);
    assert_int_equal(pawl_release(waiting, 0, NULL), PAWL_OK);
    assert_int_equal(pawl_release(lock, 1000, NULL), PAWL_OK);
    assert_int_equal(pawl_acquire(client, "lib:2", NULL, &lock, NULL), PAWL_OK);
    pawl_close(client); /* with a lock in hand */
    assert_int_equal(value("pawl_locks_held{class=\"lib\"} "), 0);
    assert_int_equal(value("pawl_lock_waiters{class=\"lib\"} "), 0);
    assert_int_equal(value("pawl_acquire_total{class=\"lib\",result=\"granted\"} "), 2);
    assert_int_equal(value("pawl_acquire_total{class=\"lib\",result=\"cancelled\"} "), 1);
    assert_int_equal(value("pawl_lock_acquisition_duration_seconds_count{class=\"lib\"} "), 2);
    assert_int_equal(value("pawl_lock_held_duration_seconds_count{class=\"lib\"} "), 2);
    char few[8];
    assert_true(pawl_metrics(few, sizeof few) > sizeof few);
    assert_int_equal(strlen(few), 7);
}

static void test_numbers_have_points_in_every_locale(void **state) {
    (void)state;
    static const char *const commas[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "pt_BR.UTF-8"};
    const char *set = NULL; /* where none is installed, it is the C locale that is looked at */
    for (size_t i = 0; i < sizeof commas / sizeof *commas && !set; i++) set = setlocale(LC_NUMERIC, commas[i]);
    struct metrics *m = fresh();
    metrics_time(&metrics_class(m, "n")->held, 1500);
    metrics_skew(m, "node", -1250000);
    metrics_class(m, "n")->renewal_lag_us = 70;
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    metrics_write(m, true, file);
    fclose(file);
    setlocale(LC_NUMERIC, "C");
    assert_non_null(strstr(text, "_bucket{class=\"n\",le=\"0.001\"} 0\n"));
    assert_non_null(strstr(text, "_bucket{class=\"n\",le=\"0.5\"} 1\n"));
    assert_non_null(strstr(text, "_bucket{class=\"n\",le=\"86400\"} 1\n"));
    assert_non_null(strstr(text, "_sum{class=\"n\"} 0.001500\n"));
    assert_non_null(strstr(text, "pawl_clock_skew_seconds{node=\"node\"} -1.250000\n"));
    assert_non_null(strstr(text, "pawl_renewal_lag_seconds{class=\"n\"} 0.000070\n"));
    free(text);
    free(m);
}

static char state_of_main(void) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    const char *end = n ? strrchr(text, ')') : NULL;
    return end ? end[2] : 'S';
}

/* Until the other thread waits: for us in fork, or for the child, when fork did not care. */
static void *hold_mutex(void *told) {
    pthread_mutex_lock(&process_metrics.mutex);
    sem_post(told);
    while (state_of_main() != 'S') sched_yield();
    pthread_mutex_unlock(&process_metrics.mutex);
    return NULL;
}

static void test_a_child_counts_whatever_the_parent_did(void **state) {
    (void)state;
    pthread_t thread;
    sem_t told;
    int status;
    sem_init(&told, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, hold_mutex, &told), 0);
    sem_wait(&told);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        metrics_class(&process_metrics, "of the child");
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    pthread_join(thread, NULL);
    sem_destroy(&told);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_class_names),
                                       cmocka_unit_test(test_a_thousand_names_are_at_most_101_classes),
                                       cmocka_unit_test(test_read_back),
                                       cmocka_unit_test(test_other_lines_are_refused),
                                       cmocka_unit_test(test_reasons),
                                       cmocka_unit_test(test_numbers_have_points_in_every_locale),
                                       cmocka_unit_test(test_a_child_counts_whatever_the_parent_did),
                                       cmocka_unit_test(test_the_library_counts)};
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
