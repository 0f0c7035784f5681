#include "seal.h"
#include "clock.h"
#include "guard.h"
#include "options.h"
#include "url.h"
#include <errno.h>
#include <libgen.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct seal {
    pawl_guard *guard;
    char *name, *resource;
    char *path;       /* of a guard in a file or a directory; NULL: a service's */
    char service[32]; /* scheme of the lock's service */
};

static char *path_of(const char *text) {
    struct url *url;
    if ((strncmp(text, "dir:", 4) != 0 && strncmp(text, "sqlite:", 7) != 0) || url_parse(text, &url, NULL)) return NULL;
    char *path = strdup(url->path);
    url_free(url);
    return path;
}

int seal_open(const char *text, const char *name, const char *lock_url, struct seal **ret) {
    struct seal *seal = calloc(1, sizeof *seal);
    char *secret = hide((char *)(uintptr_t)text);
    if (secret) text = secret;
    const char *mark = strrchr(text, '#');
    char *url = mark ? strndup(text, (size_t)(mark - text)) : strdup(text);
    int code = 0;
    if (seal) {
        snprintf(seal->service, sizeof seal->service, "%.*s", (int)strcspn(lock_url, ":"), lock_url);
        seal->name = strdup(name);
        seal->resource = strdup(mark ? mark + 1 : name);
        seal->path = url ? path_of(url) : NULL;
    }
    if (!seal || !url || !seal->name || !seal->resource) code = complain(EXIT_FAILED, name, "out of memory");
    else if (!*seal->resource) code = complain(EXIT_FAILED, name, "--seal %s: no resource behind '#'", text);
    else code = open_guard(url, name, &seal->guard);
    free(url);
    free(secret);
    if (code) seal_close(seal);
    else *ret = seal;
    return code;
}

/* *ret_there: the guard's file or directory is there, or it is a service's. PAWL_EDENIED: it is not, and cannot be
 * made: only the last part of its path would be. */
static int look_at_place(const struct seal *seal, bool *ret_there, pawl_error *error) {
    *ret_there = !seal->path || access(seal->path, F_OK) == 0;
    if (*ret_there) return PAWL_OK;
    char *copy = errno == ENOENT ? strdup(seal->path) : NULL;
    int number = errno;
    if (copy && access(dirname(copy), W_OK | X_OK) == 0) number = 0;
    else if (copy) number = errno;
    free(copy);
    if (!number) return PAWL_OK;
    snprintf(error->text, sizeof error->text, "the guard's place %.300s is not there, and cannot be made: %s",
             seal->path, strerror(number));
    return error->code = PAWL_EDENIED;
}

int seal_look(struct seal *seal, pawl_error *error) {
    pawl_guard_record *record = NULL;
    bool there;
    int code = look_at_place(seal, &there, error);
    if (code || !there) return code;
    code = pawl_guard_get(seal->guard, seal->resource, &record, error);
    if (!code) pawl_guard_free(record);
    if (code && code != PAWL_GNORECORD) return code;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    write.resource = write.lock = seal->name;
    write.token = clock_wall_us();
    pawl_error own = PAWL_ERROR_INIT;
    code = pawl_guard_seal(seal->guard, &write, &own);
    if (code == PAWL_OK || code >= PAWL_GSTALE) return PAWL_OK; /* whatever it judged: it could */
    if (code == PAWL_EINVALID) return PAWL_OK;                  /* a set with rule seq judges so */
    *error = own;
    return code;
}

/* A guard that others keep busy cannot be cancelled: so it is asked in a thread, which may be left behind. */
struct raising {
    struct seal *seal;
    char by[256];
    int64_t token;
    int done_fd; /* eventfd */
    int code;
    pawl_error said;
};

static void *raise_main(void *data) {
    struct raising *raising = data;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    write.resource = raising->seal->resource;
    write.lock = raising->seal->name;
    write.token = raising->token;
    write.by = raising->by;
    write.service = *raising->seal->service ? raising->seal->service : NULL;
    raising->code = pawl_guard_seal(raising->seal->guard, &write, &raising->said);
    eventfd_write(raising->done_fd, 1);
    return NULL;
}

int seal_raise(struct seal *seal, int64_t token, pid_t worker, const char *command, int cancel_fd, pawl_error *error) {
    pthread_t thread;
    struct raising *raising = calloc(1, sizeof *raising);
    if (!raising) return PAWL_EINTERNAL;
    *raising =
        (struct raising){.seal = seal, .token = token, .done_fd = eventfd(0, EFD_CLOEXEC), .said = PAWL_ERROR_INIT};
    describe_process(worker, command, raising->by, sizeof raising->by);
    if (raising->done_fd < 0 || pthread_create(&thread, NULL, raise_main, raising)) {
        if (raising->done_fd >= 0) close(raising->done_fd);
        free(raising);
        return PAWL_EINTERNAL;
    }
    if (clock_wait_fd(raising->done_fd, POLLIN, INT64_MAX, cancel_fd) != 1) return PAWL_ECANCELLED;
    pthread_join(thread, NULL);
    int code = raising->code;
    if (code) {
        *error = raising->said;
        snprintf(error->text, sizeof error->text, "cannot seal '%.160s': %.330s", seal->resource, raising->said.text);
    }
    close(raising->done_fd);
    free(raising);
    return code == PAWL_ETIMEOUT ? PAWL_EUNREACHABLE : code; /* the lock itself was not busy */
}

void seal_close(struct seal *seal) {
    if (!seal) return;
    pawl_guard_close(seal->guard);
    free(seal->name);
    free(seal->resource);
    free(seal->path);
    free(seal);
}
