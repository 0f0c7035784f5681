/* three.h: three real instances, each reached through a proxy, for one test; and how a test takes a lock there. */
#ifndef TESTS_THREE_H
#define TESTS_THREE_H
#include "pawl.h"
#include "proxy.h"
#include "server.h"
#include <stdbool.h>
#include <stdint.h>

enum { N = 3 };
extern struct server three[N];
extern struct proxy *ways[N];
extern char url[256]; /* through the proxies */
extern pawl_error error;

int three_start(void **state);
int three_stop(void **state);
pawl_client *client_of(const char *text, int64_t ttl_ms, pawl_observer *observer, void *data);
pawl_client *client_new(void); /* a ttl of 10 s */
int take(pawl_client *client, const char *name, int64_t wait_ms, pawl_lock **ret);
pawl_lock *must_take(pawl_client *client, const char *name);
void must_release(pawl_lock *lock);
void says(const char *part); /* the last error */
int64_t ms_since(int64_t start_ns);
bool is_seeded(int i); /* it has numbers, whether it votes already or not */

struct seen {
    int lost;
    char remark[512];
};
pawl_observer observe;
#endif
