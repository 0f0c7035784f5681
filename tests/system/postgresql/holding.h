/* holding.h: what the tests of session scope share: clients, locks, and one server with pawl installed for the program.
 */
#ifndef TESTS_POSTGRESQL_HOLDING_H
#define TESTS_POSTGRESQL_HOLDING_H
#include "clock.h"
#include "pawl.h"
#include "server.h"
#include "sql.h"
#include <stdbool.h>
#include <stdint.h>

/* An error of pawl fails the test with its text. */
extern pawl_error holding_error;
#define must(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (call);                                                                                            \
        if (code_) fail_msg("%s: %d %s", #call, code_, holding_error.text);                                            \
    } while (0)

/* url with "?" and the parameters behind it; good until the eighth next. */
const char *with(const char *url, const char *format, ...) __attribute__((format(printf, 2, 3)));
pawl_client *client_of(const char *url, int64_t ttl_ms); /* 0: the default */
int take(pawl_client *client, const char *name, int64_t wait_ms, pawl_lock **ret);
pawl_lock *hold(pawl_client *client, const char *name); /* it is free: taken at once */
void let_go(pawl_lock *lock);
/* Tries once: PAWL_EBUSY. */
void is_busy(pawl_client *client, const char *name);
/* Is told of its loss within so long. */
bool lost_within(pawl_lock *lock, int64_t ms);
int64_t ms_since(int64_t start_ns);
/* Advisory locks that the server has: granted, or waited for. */
int64_t advisory(int port, bool granted);
/* Statements that the server's log says failed. */
int log_errors(const struct server *server);
#endif
