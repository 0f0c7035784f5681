#include "three.h"
#include "clock.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct server three[N];
struct proxy *ways[N];
char url[256];
pawl_error error;

int three_start(void **state) {
    (void)state;
    memset(three, 0, sizeof three);
    for (int i = 0; i < N; i++) server_start_redis(&three[i], NULL);
    for (int i = 0; i < N; i++) ways[i] = proxy_start(three[i].port);
    snprintf(url, sizeof url, "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", proxy_port(ways[0]),
             proxy_port(ways[1]), proxy_port(ways[2]));
    error = (pawl_error)PAWL_ERROR_INIT;
    return 0;
}

int three_stop(void **state) {
    (void)state;
    for (int i = 0; i < N; i++) proxy_stop(ways[i]);
    for (int i = 0; i < N; i++) server_stop(&three[i]);
    return 0;
}

pawl_client *client_of(const char *text, int64_t ttl_ms, pawl_observer *observer, void *data) {
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_client *client = NULL;
    options.ttl_ms = ttl_ms;
    options.observe = observer;
    options.observe_data = data;
    if (pawl_open(text, &options, &client, &error)) fail_msg("%s", error.text);
    return client;
}

pawl_client *client_new(void) { return client_of(url, 10000, NULL, NULL); }

int take(pawl_client *client, const char *name, int64_t wait_ms, pawl_lock **ret) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    options.wait_ms = wait_ms;
    error = (pawl_error)PAWL_ERROR_INIT;
    return pawl_acquire(client, name, &options, ret, &error);
}

pawl_lock *must_take(pawl_client *client, const char *name) {
    pawl_lock *lock = NULL;
    int64_t end_ns = clock_after_ms(clock_now_ns(), 30000);
    while (take(client, name, 10000, &lock) == PAWL_EUNREACHABLE && clock_now_ns() < end_ns) poll(NULL, 0, 20);
    if (!lock) fail_msg("%s", error.text);
    return lock;
}

void must_release(pawl_lock *lock) {
    if (pawl_release(lock, 10000, &error)) fail_msg("%s", error.text);
}

int64_t ms_since(int64_t start_ns) { return (clock_now_ns() - start_ns) / NS_PER_MS; }

void says(const char *part) {
    if (!strstr(error.text, part)) fail_msg("'%s' is not in: %s", part, error.text);
}

bool is_seeded(int i) { return server_redis_int(three[i].port, "STRLEN pawl:%%r") == 212; }

void observe(const pawl_event *event, const char *name, void *data) {
    struct seen *seen = data;
    (void)name;
    if (event->type == PAWL_LOST) __atomic_fetch_add(&seen->lost, 1, __ATOMIC_SEQ_CST);
    if (event->type == PAWL_REMARK) snprintf(seen->remark, sizeof seen->remark, "%s", event->text);
}
