/* setup.c: what a set-up promises, costs and needs: pawl doctor's --guarantees, --acl, and the lines below its
 * findings. The promises are the rows of docs/GUARANTEES.md in short; a finding that is not well takes a promise back.
 */
#include "doctor.h"
#include "url.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *setup_scheme(const char *url) {
    static const char *const schemes[][2] = {
        {"file:", "file"},   {"mem:", "mem"},      {"redis:", "redis"},           {"rediss:", "redis"},
        {"redis+", "redis"}, {"rediss+", "redis"}, {"redlock:", "redlock"},       {"redlocks:", "redlock"},
        {"etcd:", "etcd"},   {"etcds:", "etcd"},   {"postgresql:", "postgresql"}, {"postgres:", "postgresql"},
    };
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strncmp(url, schemes[i][0], strlen(schemes[i][0])) == 0) return schemes[i][1];
    return "";
}

/* --- promises --- */

enum promise { NOTHING_FAILS, PAUSED, FAILOVER, CLOCKS, RISES, RISES_OVER, RESTART, FREED, ORDER, PROMISES };
static const char *const promises[PROMISES] = {
    [NOTHING_FAILS] = "one holder, nothing failing",
    [PAUSED] = "one holder, holder paused or partitioned",
    [FAILOVER] = "one holder, service failover",
    [CLOCKS] = "one holder, clocks jump",
    [RISES] = "token rises, nothing failing",
    [RISES_OVER] = "token rises over restart, failover, lost data",
    [RESTART] = "one holder, service restarts",
    [FREED] = "freed after the holder dies",
    [ORDER] = "order of waiters",
};

/* The first row of a promise that applies counts: one with an id applies if that finding is not well. */
static const struct row {
    const char *scheme;
    enum promise promise;
    const char *id, *kept, *text;
} rows[] = {
    {"file", NOTHING_FAILS, NULL, "yes", "while nobody removes or replaces the lock file"},
    {"file", PAUSED, NULL, "yes", "the kernel keeps the lock as long as the holder lives"},
    {"file", FAILOVER, NULL, "-", "does not apply"},
    {"file", CLOCKS, NULL, "yes", "no clock decides about a file lock"},
    {"file", RISES, NULL, "yes", ""},
    {"file", RISES_OVER, "F01", "if", "the file system forgets them (F01): by the clock alone, which must not go back"},
    {"file", RISES_OVER, NULL, "yes", "while the data is kept; else by the clock, which must not go back"},
    {"file", FREED, NULL, "yes", "once its process tree is dead"},
    {"file", ORDER, NULL, "yes", "first come, first served"},
    {"redis", NOTHING_FAILS, "R03", "no", "Redis may remove locks when its memory is full (R03)"},
    {"redis", NOTHING_FAILS, NULL, "yes", ""},
    {"redis", PAUSED, NULL, "no", "the lease ends, another one is served: a guard"},
    {"redis", FAILOVER, "R02", "no", "it has replicas that nobody follows here (R02): a guard, and redis+sentinel:"},
    {"redis", FAILOVER, NULL, "no", "a replica that is promoted may not know of the lock: a guard"},
    {"redis", RESTART, "R05", "no", "it forgets what is held (R05): a guard"},
    {"redis", RESTART, "R10", "no", "it forgets the last grants (R10): a guard"},
    {"redis", RESTART, NULL, "yes", "each grant is on disk before it counts, and a restart takes less than a ttl"},
    {"redis", CLOCKS, NULL, "no", "the server's clock measures the lease: a guard"},
    {"redis", RISES, NULL, "yes", ""},
    {"redis", RISES_OVER, "C02", "if", "the clocks are set right (C02)"},
    {"redis", RISES_OVER, NULL, "yes", "if clocks are off by less than the time since the last such event"},
    {"redis", FREED, NULL, "yes", "after the ttl"},
    {"redis", ORDER, NULL, "yes", "first come, first served"},
    {"redlock", NOTHING_FAILS, "L03", "no", "an instance may remove locks when its memory is full (L03)"},
    {"redlock", NOTHING_FAILS, NULL, "yes", ""},
    {"redlock", PAUSED, NULL, "no", "as plain Redlock: a guard"},
    {"redlock", FAILOVER, "L05", "no", "an instance forgets what it granted when it restarts (L05): a guard"},
    {"redlock", FAILOVER, NULL, "yes", "while a majority keeps its data"},
    {"redlock", CLOCKS, NULL, "no", "as plain Redlock: a guard"},
    {"redlock", RISES, NULL, "yes", ""},
    {"redlock", RISES_OVER, "L05", "no", "one that restarts is believed, and may have forgotten its last numbers (L05)"},
    {"redlock", RISES_OVER, NULL, "yes", "without any clock, while a majority keeps its counters"},
    {"redlock", FREED, NULL, "yes", "after the ttl"},
    {"redlock", ORDER, NULL, "-", "not promised"},
    {"postgresql", NOTHING_FAILS, NULL, "yes", ""},
    {"postgresql", PAUSED, NULL, "yes", "as long as its session lives; not claimed beyond that: a guard"},
    {"postgresql", FAILOVER, "P02", "no", "the lock table of a standby that is promoted is empty (P02): a guard"},
    {"postgresql", FAILOVER, NULL, "no", "the lock table of whatever takes its place is empty: a guard"},
    {"postgresql", CLOCKS, NULL, "yes", "no clock decides about an advisory lock"},
    {"postgresql", RISES, NULL, "yes", ""},
    {"postgresql", RISES_OVER, "P05", "no", "a crash may lose what was committed, the numbers too (P05)"},
    {"postgresql", RISES_OVER, "C02", "if", "the clocks are set right (C02)"},
    {"postgresql", RISES_OVER, NULL, "yes", "if clocks are off by less than the time since the last such event"},
    {"postgresql", FREED, NULL, "yes", "when its connection ends; within the ttl and 2 s if its host vanished"},
    {"postgresql", ORDER, NULL, "yes", "first come, first served within a slice of 1 to 5 s"},
    {"etcd", NOTHING_FAILS, "E13", "no", "the URL names two clusters (E13)"},
    {"etcd", NOTHING_FAILS, "E14", "no", "nothing is renewed here: it is lost when its ttl is over (E14)"},
    {"etcd", NOTHING_FAILS, NULL, "yes", ""},
    {"etcd", PAUSED, NULL, "no", "the lease ends, another one is served: a guard"},
    {"etcd", FAILOVER, "E02", "no", "there is no member too many (E02): while one is down, nothing is renewed"},
    {"etcd", FAILOVER, "E03", "no", "a member is down already (E03)"},
    {"etcd", FAILOVER, "E01", "if", "no leader wakes up that was stopped: it may end live leases (E01)"},
    {"etcd", FAILOVER, NULL, "yes", "while a majority of its members lives"},
    {"etcd", CLOCKS, NULL, "-", "no clock that is set measures a lease; not tested"},
    {"etcd", RISES, NULL, "yes", ""},
    {"etcd", RISES_OVER, "E08", "no", "token=revision: a restored snapshot begins lower (E08)"},
    {"etcd", RISES_OVER, "C02", "if", "the clocks are set right (C02)"},
    {"etcd", RISES_OVER, NULL, "yes", "if the restore took longer than a second, and than clocks are off"},
    {"etcd", FREED, "E06", "yes",
     "after the cluster's least ttl or the ttl (E06); a change of leader may add one more"},
    {"etcd", FREED, NULL, "yes", "after the ttl; a change of leader may add one more"},
    {"etcd", ORDER, NULL, "yes", "first come, first served"},
    {"mem", NOTHING_FAILS, NULL, "yes", "this process only: for tests and demos"},
};

static bool not_well(const struct findings *all, const char *id) {
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->list[i].id, id) == 0 &&
            (all->list[i].level == PAWL_LEVEL_WARNING || all->list[i].level == PAWL_LEVEL_UNSAFE))
            return true;
    return false;
}

static void print_promise(const struct row *row, bool json) {
    if (!json) {
        printf("%-46s  %-3s%s%s\n", promises[row->promise], strcmp(row->kept, "no") == 0 ? "NO" : row->kept,
               *row->text ? "  " : "", row->text);
        return;
    }
    fputs("{\"promise\":", stdout);
    print_json_string(stdout, promises[row->promise]);
    fputs(",\"kept\":", stdout);
    print_json_string(stdout, row->kept);
    fputs(",\"text\":", stdout);
    print_json_string(stdout, *row->text ? row->text : NULL);
    puts("}");
}

void setup_guarantees(const char *scheme, const struct findings *all, bool json) {
    for (int promise = 0; promise < PROMISES; promise++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const struct row *row = &rows[i];
            if (row->promise != (enum promise)promise || strcmp(row->scheme, scheme) != 0) continue;
            if (row->id && !not_well(all, row->id)) continue;
            print_promise(row, json);
            break;
        }
    if (!json) puts("\nEach yes has its test, and each no its failure: docs/GUARANTEES.md");
}

/* --- cost --- */

void setup_cost(const char *scheme, int64_t ttl_ms, char ret[SETUP_TEXT]) {
    static const struct {
        const char *scheme, *text;
    } costs[] = {
        {"file", "a lock: 1 small file, which stays; no request, no connection; a thread for each that waits"},
        {"redis", "a lock: 1 key of some 180 bytes, 2 requests, and while it is held 1 more each %s; a client: 1 "
                  "connection, 2 while it waits"},
        {"redlock", "at each instance: a lock 2 keys, 2 requests, and while it is held 1 more each %s; a client 1 "
                    "connection, 2 while it waits"},
        {"postgresql", "a lock: 1 entry of the lock table, 2 statements; a client: 1 connection for 256 held locks, 1 "
                       "more for each that waits (8 at most); it is asked each %s whether it still answers"},
        {"etcd",
         "a lock: 1 key of some 200 bytes, 2 requests; a client: 1 lease, renewed each %s whatever the number of "
         "locks, 1 connection, 2 while it waits"},
    };
    char each[32];
    spell_duration(ttl_ms / 3, each, sizeof each);
    *ret = 0;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (strcmp(costs[i].scheme, scheme) == 0) {
            const char *at = strstr(costs[i].text, "%s");
            if (at) snprintf(ret, SETUP_TEXT, "%.*s%s%s", (int)(at - costs[i].text), costs[i].text, each, at + 2);
            else snprintf(ret, SETUP_TEXT, "%s", costs[i].text);
        }
}

/* --- rights --- */

static const char redis_commands[] = "+info +evalsha +eval +time +exists +get +getrange +set +incr +del +pexpire +pttl "
                                     "+zadd +zrem +zrange +zrank +publish +subscribe +scan";
static const char redlock_commands[] = "+info +evalsha +eval +time +get +mget +getrange +set +setrange +del +pexpire "
                                       "+pttl +zadd +zrem +zrange +zrank +publish +subscribe +scan";

static const char *user_of(const struct url *url) { return url->user && *url->user ? url->user : "app"; }

/* A user must be let choose a database that is not the first. */
static bool names_database(const struct url *url) {
    const char *database = url_param(url, "db"), *slash = strchr(url->path, '/');
    bool socket = strstr(url->scheme, "+unix") != NULL, sentinel = strstr(url->scheme, "+sentinel") != NULL;
    if (!database && !socket) database = !sentinel ? url->path : slash ? slash + 1 : "";
    return database && *database && strcmp(database, "0") != 0;
}

#define QUOTED 1300 /* a text of 320 bytes, each of them four */

/* As a word for the shell. */
static void shell_word(const char *text, char ret[QUOTED]) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@+=,-";
    size_t n = 0;
    if (*text && text[strspn(text, plain)] == 0) {
        snprintf(ret, QUOTED, "%s", text);
        return;
    }
    ret[n++] = '\'';
    for (; *text && n < QUOTED - 6; text++) {
        if (*text == '\'') n += (size_t)snprintf(ret + n, QUOTED - n, "'\\''");
        else ret[n++] = *text;
    }
    ret[n++] = '\'';
    ret[n] = 0;
}

/* As a pattern for Redis: what is special there is escaped. It takes no blanks, and redis-cli no quotes inside a word:
 * for these, "any one byte". */
static void redis_pattern(const char *text, char ret[QUOTED]) {
    size_t n = 0;
    for (; *text && n < QUOTED - 3; text++) {
        if (strchr("*?[]\\", *text)) ret[n++] = '\\';
        ret[n++] = (unsigned char)*text <= ' ' || *text == '"' || *text == '\'' || *text == 0x7F ? '?' : *text;
    }
    ret[n] = 0;
}

static void redis_rights(const struct url *url, const char *commands, char ret[SETUP_TEXT]) {
    char pattern[QUOTED];
    const char *prefix = url_param(url, "prefix");
    if (strpbrk(user_of(url), " \t\r\n\"'\\")) return; /* Redis has no such users */
    redis_pattern(prefix ? prefix : "pawl:", pattern);
    snprintf(ret, SETUP_TEXT, "ACL SETUSER %s on >PASSWORD ~%s* &%s* %s%s", user_of(url), pattern, pattern, commands,
             names_database(url) ? " +select" : "");
}

static void etcd_rights(const struct url *url, char ret[SETUP_TEXT]) {
    const char *prefix = url_param(url, "prefix"), *path = url->path;
    char own[300] = "/pawl/", quoted[QUOTED], user[QUOTED];
    if (prefix) snprintf(own, sizeof own, "%s", prefix);
    else if (*path) snprintf(own, sizeof own, "/%s%s", path, path[strlen(path) - 1] == '/' ? "" : "/");
    shell_word(own, quoted);
    shell_word(user_of(url), user);
    snprintf(ret, SETUP_TEXT,
             "etcdctl role add locks\n"
             "etcdctl role grant-permission locks readwrite --prefix=true %s\n"
             "etcdctl user add %s && etcdctl user grant-role %s locks",
             quoted, user, user);
}

#define SQL_NAME 130 /* of 63 bytes, all of them quotes */

/* As SQL quotes a name. */
static void sql_name(const char *name, char ret[SQL_NAME]) {
    size_t n = 0;
    ret[n++] = '"';
    for (; *name && n < SQL_NAME - 3; name++) {
        if (*name == '"') ret[n++] = '"';
        ret[n++] = *name;
    }
    ret[n++] = '"';
    ret[n] = 0;
}

/* A role of its own, also where the URL names the superuser of every installation. The schema is everybody's until that
 * is taken back. */
static void postgresql_rights(const struct url *url, char ret[SETUP_TEXT]) {
    const char *user = strcmp(user_of(url), "postgres") == 0 ? "app" : user_of(url);
    char role[SQL_NAME], base[SQL_NAME];
    sql_name(user, role);
    sql_name(*url->path ? url->path : user_of(url), base);
    snprintf(ret, SETUP_TEXT,
             "CREATE ROLE %s LOGIN PASSWORD 'PASSWORD';\n"
             "GRANT CONNECT ON DATABASE %s TO %s;\n"
             "REVOKE USAGE ON SCHEMA pawl FROM PUBLIC;\n"
             "GRANT USAGE ON SCHEMA pawl TO %s;",
             role, base, role, role);
}

static void file_rights(const struct url *url, char ret[SETUP_TEXT]) {
    char quoted[QUOTED];
    shell_word(*url->path ? url->path : "DIR", quoted);
    snprintf(ret, SETUP_TEXT, "install -d -m 2770 -g GROUP %s", quoted);
}

bool setup_rights(const char *text, char ret[SETUP_TEXT]) {
    const char *scheme = setup_scheme(text);
    struct url *url;
    *ret = 0;
    if (url_parse(text, &url, NULL)) return false;
    if (strcmp(scheme, "file") == 0) file_rights(url, ret);
    else if (strcmp(scheme, "redis") == 0) redis_rights(url, redis_commands, ret);
    else if (strcmp(scheme, "redlock") == 0) redis_rights(url, redlock_commands, ret);
    else if (strcmp(scheme, "etcd") == 0) etcd_rights(url, ret);
    else if (strcmp(scheme, "postgresql") == 0) postgresql_rights(url, ret);
    url_free(url);
    return *ret != 0;
}
