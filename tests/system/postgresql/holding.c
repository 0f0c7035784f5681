#include "holding.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

pawl_error holding_error = PAWL_ERROR_INIT;

const char *with(const char *url, const char *format, ...) {
    static char texts[8][512];
    static int next;
    char *text = texts[next++ % 8];
    va_list arguments;
    int n = snprintf(text, sizeof texts[0], "%s?", url);
    va_start(arguments, format);
    vsnprintf(text + n, sizeof texts[0] - (size_t)n, format, arguments);
    va_end(arguments);
    return text;
}

pawl_client *client_of(const char *url, int64_t ttl_ms) {
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_client *client;
    if (ttl_ms) options.ttl_ms = ttl_ms;
    must(pawl_open(url, &options, &client, &holding_error));
    return client;
}

int take(pawl_client *client, const char *name, int64_t wait_ms, pawl_lock **ret) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    options.wait_ms = wait_ms;
    holding_error = (pawl_error)PAWL_ERROR_INIT;
    return pawl_acquire(client, name, &options, ret, &holding_error);
}

pawl_lock *hold(pawl_client *client, const char *name) {
    pawl_lock *lock;
    must(take(client, name, 0, &lock));
    return lock;
}

void let_go(pawl_lock *lock) { must(pawl_release(lock, 5000, &holding_error)); }

void is_busy(pawl_client *client, const char *name) {
    pawl_lock *lock;
    assert_int_equal(take(client, name, 0, &lock), PAWL_EBUSY);
}

bool lost_within(pawl_lock *lock, int64_t ms) {
    struct pollfd p = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    return poll(&p, 1, (int)ms) == 1 && pawl_check(lock) == PAWL_ELOST;
}

int64_t ms_since(int64_t start_ns) { return (clock_now_ns() - start_ns) / NS_PER_MS; }

int64_t advisory(int port, bool granted) {
    char *text = server_sql(port, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND %sgranted",
                            granted ? "" : "NOT ");
    if (!text || *text == '-') fail_msg("%s", text ? text : "no answer");
    int64_t n = strtoll(text, NULL, 10);
    free(text);
    return n;
}

int log_errors(const struct server *server) {
    char path[128], line[1024];
    int errors = 0;
    snprintf(path, sizeof path, "%s/log", server->dir);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) errors += strstr(line, "ERROR:") != NULL;
    fclose(file);
    return errors;
}
