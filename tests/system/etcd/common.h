/* common.h: what the tests of etcd share: servers, clients, etcdctl. */
#ifndef TESTS_ETCD_COMMON_H
#define TESTS_ETCD_COMMON_H
#include "clock.h"
#include "pawl.h"
#include "proxy.h"
#include "server.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TTL_MS 6000
extern struct server members[3];
extern char url[512];             /* of the member or members, prefix /locks/ */
extern const char *const quick[]; /* options: an election within half a second */

/* Fixtures: one member, three. */
int one(void **state);
int three(void **state);
int teardown(void **state);

pawl_client *client(const char *url, int64_t ttl_ms);
pawl_lock *take(pawl_client *c, const char *name, int64_t wait_ms); /* must succeed */
int try_it(pawl_client *c, const char *name, pawl_error *error);    /* free again at once */
/* Waits for so long, or until the lock is lost. */
bool stays_held(pawl_lock *lock, int ms);
bool lost_within(pawl_lock *lock, int ms);
/* A shell command (printf form); must exit with 0. */
void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What etcdctl prints at the first member; static. options and arguments in printf form. */
const char *etcdctl(const char *format, ...) __attribute__((format(printf, 1, 2)));
int locks_keys(const char *prefix); /* how many keys there are under it, without pawl's own %token */
/* A counter of the first member's /metrics page, summed over its lines; words: text that a line must contain. */
double metric(const char *name, const char *words);
double metric_at(const struct server *s, const char *name, const char *words);
/* Leaves a long case out, unless all is wanted. */
#define FULL_ONLY()                                                                                                    \
    if (!getenv("PAWL_TEST_FULL")) return
int run_group(const char *name, const struct CMUnitTest tests[], size_t n);
#define RUN(name, tests) run_group(name, tests, sizeof(tests) / sizeof *(tests))
#endif
