/* fixtures.c: one row a backend. To plug one in: add its row here and its name in meson.build. */
#include "clock.h"
#include "contract.h"
#include "fault.h"
#include "leased.h"
#include "mem/mem.h"
#include "server.h"
#include "virtual_clock.h"
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char url[256];

static void real_pass(int64_t ms) {
    for (int64_t end = clock_after_ms(clock_now_ns(), ms), now; (now = clock_now_ns()) < end;)
        poll(NULL, 0, clock_poll_ms(now, end));
}

/* --- mem, in virtual time --- */

static const char *mem_start(void) {
    mem_clock = virtual_true_ns;
    return NULL;
}
static void mem_stop(void) { mem_clock = clock_now_ns; }
static const char *mem_url(void) {
    snprintf(url, sizeof url, "mem:contract-%d", contract_case_number);
    return url;
}
static void mem_pass(int64_t ms) { virtual_advance_ns(ms * NS_PER_MS); }

/* --- mem behind the fault backend, every take and renewal done twice --- */

static struct fault *fault;

static const char *fault_start(void) {
    enum fault_op twice[] = {FAULT_TAKE, FAULT_RENEW};
    fault = fault_new(1);
    if (!fault) return "out of memory";
    for (int i = 0; i < 2; i++) fault_odds(fault, twice[i], FAULT_TWICE, 1000);
    return mem_start();
}
static void fault_stop(void) {
    fault_free(fault);
    mem_stop();
}
/* The same mem with leases on which many grants hang. */
static const struct backend *leased_table(const struct backend *inner) {
    (void)inner;
    return leased_backend();
}

static const struct backend *fault_table(const struct backend *inner) { return fault_backend(fault, inner); }

/* --- redis --- */

static struct server redis;

static const char *redis_start(void) {
    if (access("/usr/bin/redis-server", X_OK)) return "no redis-server here";
    server_start_redis(&redis, NULL);
    return NULL;
}
static void redis_stop(void) { server_stop(&redis); }
static const char *redis_url(void) {
    snprintf(url, sizeof url, "%s?prefix=case%d:", redis.url, contract_case_number);
    return url;
}

/* --- redlock: three instances --- */

static struct server instances[3];

static const char *redlock_start(void) {
    if (access("/usr/bin/redis-server", X_OK)) return "no redis-server here";
    for (int i = 0; i < 3; i++) server_start_redis(&instances[i], NULL);
    return NULL;
}
static void redlock_stop(void) {
    for (int i = 0; i < 3; i++) server_stop(&instances[i]);
}
static const char *redlock_url(void) {
    snprintf(url, sizeof url, "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d?prefix=case%d:&timeout=2000",
             instances[0].port, instances[1].port, instances[2].port, contract_case_number);
    return url;
}

/* --- file, a directory for each case --- */

static char file_dir[] = "/tmp/pawl-contract-XXXXXX";

static void empty_directory(const char *path) {
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir) closedir(dir);
    rmdir(path);
}
static const char *file_start(void) { return mkdtemp(file_dir) ? NULL : "cannot make a temporary directory"; }
static void file_stop(void) {
    for (int i = 0; i <= contract_case_number; i++) {
        snprintf(url, sizeof url, "%s/%d", file_dir, i);
        empty_directory(url);
    }
    rmdir(file_dir);
}
static const char *file_url(void) {
    snprintf(url, sizeof url, "file:%s/%d", file_dir, contract_case_number);
    mkdir(url + 5, 0700);
    return url;
}

/* --- postgresql, a database for each case --- */

static struct server postgres;

static const char *postgres_start(void) {
    char command[512];
    if (access("/usr/lib/postgresql", X_OK)) return "no PostgreSQL server here";
    server_start_postgres(&postgres, "");
    snprintf(command, sizeof command,
             "psql -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -p %d -U postgres -d template1 -f '%s' >/dev/null 2>&1",
             postgres.port, PAWL_SQL);
    return system(command) ? "pawl.sql failed" : NULL;
}
static void postgres_stop(void) { server_stop(&postgres); }
static const char *postgres_url(void) {
    static int made;
    if (made != contract_case_number) free(server_sql(postgres.port, "CREATE DATABASE case%d", contract_case_number));
    made = contract_case_number;
    snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:%d/case%d", postgres.port, contract_case_number);
    return url;
}

/* A statement that waits says nothing when it arrives, but the lock table does. */
static bool all_wait(void *data) {
    char *n = server_sql(postgres.port, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
    bool over = n && atoi(n) >= *(int *)data;
    free(n);
    return over;
}
static void postgres_settle(int waiting) {
    (void)server_until(all_wait, &waiting, 500); /* some may be granted already */
}

/* --- etcd --- */

static struct server etcd;

static const char *etcd_start(void) {
    if (access("/usr/bin/etcd", X_OK)) return "no etcd here";
    server_start_etcd(&etcd, (const char *const[]){"--heartbeat-interval=50", "--election-timeout=500", NULL});
    return NULL;
}
static void etcd_stop(void) { server_stop(&etcd); }
static const char *etcd_url(void) {
    snprintf(url, sizeof url, "%s/case%d/", etcd.url, contract_case_number);
    return url;
}

const struct fixture fixtures[] = {
    {"file", "file", file_start, file_stop, file_url, real_pass, NULL, NULL},
    {"mem", "mem", mem_start, mem_stop, mem_url, mem_pass, NULL, NULL},
    {"fault", "mem", fault_start, fault_stop, mem_url, mem_pass, fault_table, NULL},
    {"leased", "mem", mem_start, mem_stop, mem_url, mem_pass, leased_table, NULL},
    {"postgresql", "postgresql", postgres_start, postgres_stop, postgres_url, real_pass, NULL, postgres_settle},
    {"etcd", "etcd", etcd_start, etcd_stop, etcd_url, real_pass, NULL, NULL},
    {"redlock", "redlock", redlock_start, redlock_stop, redlock_url, real_pass, NULL, NULL},
    {"redis", "redis", redis_start, redis_stop, redis_url, real_pass, NULL, NULL},
    {0},
};
