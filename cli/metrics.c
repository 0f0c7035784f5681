/* metrics.c: pawl run --metrics-dir DIR: what became of the run, for the textfile collector of Prometheus' node
 * exporter: one file a class of locks, DIR/pawl_CLASS.prom, whose counters go on from run to run. The file is replaced
 * in one step and readable by everybody, whatever the umask: the exporter is another user. What fails here never fails
 * a run. */
#include "metrics.h"
#include "clock.h"
#include "pawl_guard.h"
#include "run.h"
#include "url.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOCK_TRIES = 100, LOCK_PAUSE_MS = 10, FILE_NAME_SIZE = 3 * METRICS_CLASS_NAME + 16 };

/* The gauges of the last run; in the file behind the counters. */
static const struct gauge {
    const char *name, *help;
} gauges[] = {{"pawl_run_last_end_timestamp_seconds", "When the last command under the lock ended."},
              {"pawl_run_last_success_timestamp_seconds", "When the last one ended that exited with 0; 0: none yet."},
              {"pawl_run_last_exit_code", "The exit code of pawl run after the last command."},
              {"pawl_run_last_duration_seconds", "How long the last command held the lock."}};
enum { LAST_END, LAST_SUCCESS, LAST_CODE, LAST_DURATION, GAUGES };

struct page {
    struct metrics counters;
    double gauge[GAUGES];
    bool has_run;
    char class[METRICS_CLASS_NAME], file[FILE_NAME_SIZE];
};

void metrics_check_dir(struct run_options *options) {
    const char *dir = options->metrics_dir;
    if (!dir) return;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) close(fd);
    if (fd >= 0 && access(dir, W_OK) == 0) return;
    warn(options->name, "cannot write metrics into %s: %s; this run is not counted", dir, strerror(errno));
    options->metrics_dir = NULL;
}

/* --- the old page --- */

static void name_file(struct page *page) {
    char escaped[3 * METRICS_CLASS_NAME] = "";
    url_escape(escaped, sizeof escaped, page->class, strlen(page->class), "._-");
    snprintf(page->file, sizeof page->file, "pawl_%s.prom", escaped);
}

/* A class that would be one too many is counted as "other". */
static void choose_file(int dir, const char *lock, struct page *page) {
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0;
    metrics_class_name(lock, page->class);
    name_file(page);
    DIR *listing = faccessat(dir, page->file, F_OK, 0) == 0 || copy < 0 ? NULL : fdopendir(copy);
    for (const struct dirent *entry; listing && (entry = readdir(listing));)
        n += strncmp(entry->d_name, "pawl_", 5) == 0 && strstr(entry->d_name, ".prom") != NULL;
    if (listing) closedir(listing);
    else if (copy >= 0) close(copy);
    if (n < METRICS_CLASSES) return;
    snprintf(page->class, sizeof page->class, METRICS_OTHER);
    name_file(page);
}

static void read_page(int dir, struct page *page) {
    char line[512], *value;
    int fd = openat(dir, page->file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (metrics_read(&page->counters, line) || !(value = strstr(line, "\"} "))) continue;
        for (int i = 0; i < GAUGES; i++) {
            size_t n = strlen(gauges[i].name);
            if (strncmp(line, gauges[i].name, n) != 0 || line[n] != '{') continue;
            page->gauge[i] = strtod(value + 3, NULL);
            page->has_run = true;
        }
    }
    if (file) fclose(file);
    else if (fd >= 0) close(fd);
}

/* --- this run --- */

static void add_run(struct page *page, const struct run_result *result, int exit_code) {
    struct metrics_class *class = metrics_class(&page->counters, page->class);
    bool granted = result->token != 0;
    if (result->outcome == OUTCOME_NOT_TAKEN && result->code > PAWL_EINTERNAL) { /* --seal was refused */
        granted = true;
        class->stale += result->code == PAWL_GSTALE;
    }
    if (!granted) {
        int code = result->outcome == OUTCOME_CANCELLED ? PAWL_ECANCELLED : result->code;
        metrics_acquired(class, code ? code : PAWL_EINTERNAL);
        return;
    }
    metrics_acquired(class, PAWL_OK);
    metrics_time(&class->acquisition, result->waited_ms * 1000);
    metrics_time(&class->held, result->held_ms * 1000);
    if (result->outcome == OUTCOME_LOST || (result->outcome == OUTCOME_RAN && result->code == PAWL_ELOST))
        metrics_lost(class, result->lost_reason);
    if (result->outcome != OUTCOME_RAN && result->outcome != OUTCOME_LOST) return;
    double now = (double)(clock_wall_us() / 1000) / 1000;
    page->has_run = true;
    page->gauge[LAST_END] = now;
    page->gauge[LAST_CODE] = exit_code;
    page->gauge[LAST_DURATION] = (double)result->held_ms / 1000;
    if (exit_code == 0) page->gauge[LAST_SUCCESS] = now;
}

/* --- the new page --- */

static void write_gauges(const struct page *page, FILE *file) {
    for (int i = 0; i < GAUGES && page->has_run; i++) {
        fprintf(file, "# HELP %s %s\n# TYPE %s gauge\n", gauges[i].name, gauges[i].help, gauges[i].name);
        metrics_label(file, gauges[i].name, "", "class", page->class);
        fprintf(file, "} %.3f\n", page->gauge[i]);
    }
}

/* 0 or errno. */
static int write_page(int dir, struct page *page) {
    char draft[48];
    int number = 0;
    snprintf(draft, sizeof draft, ".pawl-%d", (int)getpid()); /* we have the directory's lock */
    unlinkat(dir, draft, 0);
    int fd = openat(dir, draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) {
        number = errno;
        if (fd >= 0) {
            close(fd);
            unlinkat(dir, draft, 0);
        }
        return number;
    }
    metrics_write(&page->counters, false, file);
    write_gauges(page, file);
    if (fflush(file) || ferror(file) || fchmod(fd, 0644)) number = errno;
    if (fclose(file) && !number) number = errno;
    if (!number && renameat(dir, draft, dir, page->file)) number = errno;
    if (number) unlinkat(dir, draft, 0);
    return number;
}

static int lock_directory(int dir) {
    for (int tries = 0; flock(dir, LOCK_EX | LOCK_NB); tries++) {
        if (errno != EWOULDBLOCK || tries == LOCK_TRIES) return errno;
        poll(NULL, 0, LOCK_PAUSE_MS);
    }
    return 0;
}

void metrics_add_run(const struct run *run, const struct run_result *result, int exit_code) {
    const char *path = run->options.metrics_dir;
    if (!path || result->code == PAWL_EINVALID) return;
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), number = dir < 0 ? errno : lock_directory(dir);
    struct page *page = number ? NULL : calloc(1, sizeof *page);
    if (!number && !page) number = ENOMEM;
    if (page) {
        pthread_mutex_init(&page->counters.mutex, NULL);
        choose_file(dir, run->options.name, page);
        read_page(dir, page);
        add_run(page, result, exit_code);
        number = write_page(dir, page);
    }
    if (number) warn(run->options.name, "cannot write metrics into %s: %s", path, strerror(number));
    free(page);
    if (dir >= 0) close(dir);
}
