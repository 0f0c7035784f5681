#include "common.h"
#include <poll.h>

struct server members[3];
char url[512];
const char *const quick[] = {"--heartbeat-interval=50", "--election-timeout=500", NULL};

int one(void **state) {
    (void)state;
    server_start_etcd(&members[0], quick);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d/locks/", members[0].port);
    return 0;
}

int three(void **state) {
    (void)state;
    server_start_etcd_cluster(members, 3, quick);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/locks/", members[0].port, members[1].port,
             members[2].port);
    return 0;
}

int teardown(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) server_stop(&members[i]);
    return 0;
}

pawl_client *client(const char *at, int64_t ttl_ms) {
    pawl_options o = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *c;
    o.ttl_ms = ttl_ms;
    if (pawl_open(at, &o, &c, &error)) fail_msg("%s", error.text);
    return c;
}

pawl_lock *take(pawl_client *c, const char *name, int64_t wait_ms) {
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock = NULL;
    o.wait_ms = wait_ms;
    if (pawl_acquire(c, name, &o, &lock, &error)) fail_msg("%s", error.text);
    return lock;
}

int try_it(pawl_client *c, const char *name, pawl_error *error) {
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_lock *lock;
    o.wait_ms = 0;
    int code = pawl_acquire(c, name, &o, &lock, error);
    if (code == PAWL_OK) pawl_release(lock, 5000, NULL);
    return code;
}

bool lost_within(pawl_lock *lock, int ms) {
    struct pollfd p = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

bool stays_held(pawl_lock *lock, int ms) { return !lost_within(lock, ms) && pawl_check(lock) == PAWL_OK; }

void shell(const char *format, ...) {
    char command[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    if (system(command)) fail_msg("failed: %s", command);
}

const char *etcdctl(const char *format, ...) {
    static char output[65536];
    char command[2048];
    int n =
        snprintf(command, sizeof command,
                 "ETCDCTL_API=3 timeout 40 etcdctl --command-timeout=20s --endpoints=127.0.0.1:%d ", members[0].port);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command + n, sizeof command - (size_t)n, format, arguments);
    va_end(arguments);
    FILE *from = popen(command, "r");
    size_t used = from ? fread(output, 1, sizeof output - 1, from) : 0;
    output[used] = 0;
    if (!from || pclose(from)) fail_msg("failed: %s: %s", command, output);
    return output;
}

int locks_keys(const char *prefix) {
    int n = 0;
    char text[65536];
    snprintf(text, sizeof text, "%s", etcdctl("get --prefix --keys-only '%s'", prefix));
    for (char *at, *line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at))
        if (!strstr(line, "%token")) n++;
    return n;
}

double metric_at(const struct server *s, const char *name, const char *words) {
    char command[256], line[1024];
    double sum = 0;
    snprintf(command, sizeof command, "curl -s -m 5 http://127.0.0.1:%d/metrics", s->port);
    FILE *from = popen(command, "r");
    while (from && fgets(line, sizeof line, from))
        if (strncmp(line, name, strlen(name)) == 0 && strstr(line, words)) sum += atof(strrchr(line, ' '));
    if (!from || pclose(from)) fail_msg("no metrics");
    return sum;
}

double metric(const char *name, const char *words) { return metric_at(&members[0], name, words); }

int run_group(const char *name, const struct CMUnitTest tests[], size_t n) {
    if (access("/usr/bin/etcd", X_OK)) {
        printf("1..0 # SKIP no etcd here\n");
        return 0;
    }
    if (getenv("ONLY")) cmocka_set_test_filter(getenv("ONLY"));
    return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}
