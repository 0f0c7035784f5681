/* plain_file.c: the recipes for one machine: flock on a file, a file with the holder's pid, and flock beside a counter
 * that is written to a new file and renamed, nobody asking whether the write went well. */
#include "clock.h"
#include "error.h"
#include "plain.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct client {
    char dir[128], path[256];
    int fd; /* -1: not held */
};

static int open_client(const char *url, int64_t ttl_ms, void **ret, pawl_error *error) {
    (void)ttl_ms; /* nothing of it ends by itself */
    struct client *c = calloc(1, sizeof *c);
    if (!c) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    snprintf(c->dir, sizeof c->dir, "%s", url + strlen("file:"));
    c->fd = -1;
    *ret = c;
    return PAWL_OK;
}

static void close_client(void *of) {
    struct client *c = of;
    if (c->fd >= 0) close(c->fd);
    free(c);
}

/* --- flock --- */

static int lock_file(void *of, const char *name, int64_t *ret_token, pawl_error *error) {
    struct client *c = of;
    *ret_token = 0;
    snprintf(c->path, sizeof c->path, "%s/%.60s", c->dir, name);
    c->fd = open(c->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (c->fd < 0) return error_errno(error, PAWL_EDENIED, NULL, c->path);
    if (flock(c->fd, LOCK_EX | LOCK_NB) == 0) return PAWL_OK;
    close(c->fd);
    c->fd = -1;
    return error_set(error, PAWL_EBUSY, NULL, "%s is locked", c->path);
}

static int take_flock(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    return plain_poll(lock_file, client, name, wait_ms, ret_token, error);
}

static int release_flock(void *of, pawl_error *error) {
    struct client *c = of;
    (void)error;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    return PAWL_OK;
}

const struct plain plain_flock = {"flock on a file", open_client, take_flock, release_flock, close_client};

/* --- with a counter --- */

static int count(void *of, const char *name, int64_t *ret_token, pawl_error *error) {
    struct client *c = of;
    long long last = 0;
    char path[256], made[256];
    int code = lock_file(of, name, ret_token, error);
    if (code) return code;
    snprintf(path, sizeof path, "%s/counter", c->dir);
    snprintf(made, sizeof made, "%s/counter.new", c->dir);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%lld", &last) != 1) last = 0;
    if (file) fclose(file);
    file = fopen(made, "we");
    if (file) {
        fprintf(file, "%lld\n", last + 1);
        fclose(file);
        (void)rename(made, path);
    }
    *ret_token = last + 1;
    return PAWL_OK;
}

static int take_counted(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    return plain_poll(count, client, name, wait_ms, ret_token, error);
}

const struct plain plain_counter = {"flock on a file; a counter, written to a new file and renamed over the old one",
                                    open_client, take_counted, release_flock, close_client};

/* --- a file with a pid --- */

static bool is_dead(const char *path) {
    int pid = 0;
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%d", &pid) != 1) pid = 0;
    if (file) fclose(file);
    return pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

static int make_file(void *of, const char *name, int64_t *ret_token, pawl_error *error) {
    struct client *c = of;
    *ret_token = 0;
    snprintf(c->path, sizeof c->path, "%s/%.60s.pid", c->dir, name);
    if (is_dead(c->path)) unlink(c->path);
    int fd = open(c->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST) return error_set(error, PAWL_EBUSY, NULL, "%s is there, and its pid lives", c->path);
    if (fd < 0) return error_errno(error, PAWL_EDENIED, NULL, c->path);
    dprintf(fd, "%d\n", (int)getpid());
    close(fd);
    return PAWL_OK;
}

static int take_pidfile(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    return plain_poll(make_file, client, name, wait_ms, ret_token, error);
}

static int release_pidfile(void *of, pawl_error *error) {
    struct client *c = of;
    (void)error;
    unlink(c->path);
    return PAWL_OK;
}

const struct plain plain_pidfile = {"a file with the holder's pid, removed if kill -0 finds nobody", open_client,
                                    take_pidfile, release_pidfile, close_client};
