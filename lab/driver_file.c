/* driver_file.c: the floor of file locks: open, flock, close on one path, which is what a program without a library
 * does. */
#include "driver.h"
#include "error.h"
#include "url.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

struct client {
    int fd;
    int *fds;
    long n_fds;
    char path[400];
};

static int open_client(const char *text, const char *key, bool contended, void **ret, pawl_error *error) {
    (void)contended;
    struct url *url;
    int r = url_parse(text, &url, error);
    if (r) return r;
    struct client *c = calloc(1, sizeof *c);
    if (!c) abort();
    snprintf(c->path, sizeof c->path, "%s/%s.raw", url->path, key);
    url_free(url);
    *ret = c;
    return PAWL_OK;
}

static int lock(const char *path, int *ret, pawl_error *error) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return error_errno(error, PAWL_EDENIED, path, "opening %s", path);
    while (flock(fd, LOCK_EX))
        if (errno != EINTR) {
            close(fd);
            return error_errno(error, PAWL_EINTERNAL, path, "locking %s", path);
        }
    *ret = fd;
    return PAWL_OK;
}

static int acquire(void *of, pawl_error *error) {
    struct client *c = of;
    return lock(c->path, &c->fd, error);
}

static int release(void *of, pawl_error *error) {
    struct client *c = of;
    return close(c->fd) ? error_errno(error, PAWL_EINTERNAL, c->path, "closing %s", c->path) : PAWL_OK;
}

static int64_t token(const void *of) {
    (void)of;
    return 0;
}

static int take_many(void *of, long n, pawl_error *error) {
    struct client *c = of;
    c->fds = calloc((size_t)n, sizeof *c->fds);
    if (!c->fds) abort();
    for (; c->n_fds < n; c->n_fds++) {
        char path[440];
        snprintf(path, sizeof path, "%s.%ld", c->path, c->n_fds);
        int r = lock(path, &c->fds[c->n_fds], error);
        if (r) return r;
    }
    return PAWL_OK;
}

static void close_client(void *of, bool sweep) {
    struct client *c = of;
    for (long i = 0; i < c->n_fds; i++) {
        char path[440];
        snprintf(path, sizeof path, "%s.%ld", c->path, i);
        close(c->fds[i]);
        if (sweep) unlink(path);
    }
    free(c->fds);
    if (sweep) unlink(c->path);
    free(c);
}

const struct driver driver_file = {.name = "raw",
                                   .does = "open, flock, close",
                                   .open = open_client,
                                   .acquire = acquire,
                                   .release = release,
                                   .token = token,
                                   .close = close_client,
                                   .take_many = take_many};
