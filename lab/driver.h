/* driver.h: one client of one lock, as the bench sees it: through pawl, or the bare service (the floor). The bench
 * measures both with the same loop, so the ratio of the two is what pawl costs. */
#ifndef LAB_DRIVER_H
#define LAB_DRIVER_H
#include "pawl.h"
#include <stdbool.h>

struct driver {
    const char *name;
    const char *does; /* what one acquire and release are, for people */
    /* contended: acquire will be called while others hold. Connects; PAWL_OK or an error. */
    int (*open)(const char *url, const char *key, bool contended, void **ret, pawl_error *error);
    int (*acquire)(void *client, pawl_error *error); /* waits until it is held */
    int (*release)(void *client, pawl_error *error);
    int64_t (*token)(const void *client); /* of the grant just held; 0: it has none */
    /* sweep: also removes what the floor made (files), which nobody uses any more. */
    void (*close)(void *client, bool sweep);
    /* Takes key:0 .. key:n-1 at once, in the cheapest way; they are free after close. NULL: the event form. */
    int (*take_many)(void *client, long n, pawl_error *error);
};

extern const struct driver driver_pawl, driver_file, driver_redis, driver_redlock, driver_postgresql, driver_etcd;
/* The floor of a URL; NULL: none is known. */
const struct driver *driver_raw(const char *url);

/* Name and version of the server ("" unknown), and requests that clients sent so far (0 unknown). */
void driver_about(const char *url, char *ret_version, size_t size, uint64_t *ret_requests);
void driver_redis_about(const char *url, char *ret_version, size_t size, uint64_t *ret_requests);
void driver_redlock_about(const char *url, char *ret_version, size_t size, uint64_t *ret_requests);
void driver_etcd_about(const char *url, char *ret_version, size_t size, uint64_t *ret_requests);
void driver_postgresql_about(const char *url, char *ret_version, size_t size, uint64_t *ret_requests);
#endif
