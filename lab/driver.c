/* driver.c: pawl as the bench drives it, and which floor belongs to a URL. */
#include "driver.h"
#include "error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct client {
    pawl_client *pawl;
    pawl_lock *lock;
    int64_t token;
    char key[200];
};

static void close_client(void *of, bool sweep) {
    (void)sweep;
    struct client *c = of;
    if (c->lock) pawl_release(c->lock, 1000, NULL);
    pawl_close(c->pawl);
    free(c);
}

static int open_client(const char *url, const char *key, bool contended, void **ret, pawl_error *error) {
    (void)contended;
    struct client *c = calloc(1, sizeof *c);
    if (!c) return error_errno(error, PAWL_EINTERNAL, NULL, "opening %s", url);
    snprintf(c->key, sizeof c->key, "%s", key);
    pawl_options options = PAWL_OPTIONS_INIT;
    options.label = "pawl-lab";
    int r = pawl_open(url, &options, &c->pawl, error);
    if (r == PAWL_OK) r = pawl_connect(c->pawl, 5000, error);
    if (r) {
        close_client(c, false);
        return r;
    }
    *ret = c;
    return PAWL_OK;
}

static int acquire(void *of, pawl_error *error) {
    struct client *c = of;
    int r = pawl_acquire(c->pawl, c->key, NULL, &c->lock, error);
    if (r == PAWL_OK) c->token = pawl_token(c->lock);
    return r;
}

static int release(void *of, pawl_error *error) {
    struct client *c = of;
    pawl_lock *lock = c->lock;
    c->lock = NULL;
    return pawl_release(lock, 5000, error);
}

static int64_t token(const void *of) { return ((const struct client *)of)->token; }

const struct driver driver_pawl = {.name = "pawl",
                                   .does = "pawl_acquire, pawl_release",
                                   .open = open_client,
                                   .acquire = acquire,
                                   .release = release,
                                   .token = token,
                                   .close = close_client};

const struct driver *driver_raw(const char *url) {
    static const struct {
        const char *scheme;
        const struct driver *driver;
    } floors[] = {
        {"file:", &driver_file},       {"redis:", &driver_redis},           {"redis+unix:", &driver_redis},
        {"redlock:", &driver_redlock}, {"postgresql:", &driver_postgresql}, {"postgres:", &driver_postgresql},
#ifdef LAB_ETCD
        {"etcd:", &driver_etcd},
#endif
    };
    for (size_t i = 0; i < sizeof floors / sizeof *floors; i++)
        if (strncmp(url, floors[i].scheme, strlen(floors[i].scheme)) == 0) return floors[i].driver;
    return NULL;
}

void driver_about(const char *url, char *ret_version, size_t size, uint64_t *ret_requests) {
    const struct driver *floor = driver_raw(url);
    *ret_version = 0;
    *ret_requests = 0;
    if (floor == &driver_redis) driver_redis_about(url, ret_version, size, ret_requests);
    if (floor == &driver_redlock) driver_redlock_about(url, ret_version, size, ret_requests);
    if (floor == &driver_postgresql) driver_postgresql_about(url, ret_version, size, ret_requests);
#ifdef LAB_ETCD
    if (floor == &driver_etcd) driver_etcd_about(url, ret_version, size, ret_requests);
#endif
}
