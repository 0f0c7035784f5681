/* plain.h: locks as people write them, without pawl: what the scenarios break. Each follows the usual recipe, and
 * believes in its lock until it releases it. A client is used by one thread; a call blocks. */
#ifndef LAB_PLAIN_H
#define LAB_PLAIN_H
#include "pawl.h"
#include <stdbool.h>

struct plain {
    const char *does; /* the recipe, for people */
    int (*open)(const char *url, int64_t ttl_ms, void **ret, pawl_error *error);
    /* Waits wait_ms at most, 0: one try. PAWL_OK, PAWL_EBUSY, PAWL_ETIMEOUT, PAWL_EUNREACHABLE. ret_token: 0 where the
     * recipe has none. */
    int (*take)(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error);
    int (*release)(void *client, pawl_error *error);
    void (*close)(void *client);
};

extern const struct plain plain_redis; /* SET NX PX, polling; compare-and-delete */
extern const struct plain plain_del;   /* the same, released with DEL */
extern const struct plain plain_setnx; /* SETNX, then EXPIRE: two requests */
extern const struct plain plain_wait;  /* SET NX PX, then WAIT for a replica */
extern const struct plain plain_redlock;
extern const struct plain plain_postgresql; /* pg_advisory_lock in a session */
extern const struct plain plain_flock;
extern const struct plain plain_counter; /* flock, and a counter as token */
extern const struct plain plain_pidfile;
extern const struct plain plain_etcd; /* lease, Txn, the token read afterwards; renews through its first endpoint */

/* Polls `once` (PAWL_EBUSY: again) every 50 ms until wait_ms are over, as the recipes do. */
int plain_poll(int (*once)(void *client, const char *name, int64_t *ret_token, pawl_error *error), void *client,
               const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error);
#endif
