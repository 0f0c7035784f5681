/* sqlite.c: guard in a SQLite file, as a module. A step is one IMMEDIATE transaction.
 *
 * The tables (`schema` below) may be read by the application's own SQL in the same file.
 * The journal mode of the file is left as it is. synchronous=EXTRA, not FULL: in the default journal mode FULL returns
 * before the removal of the journal is durable, and a power cut would roll back a write that was already accepted. */
#include "clock.h"
#include "guard.h"
#include "module.h"
#include <errno.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS pawl_guard (resource TEXT PRIMARY KEY, lock TEXT NOT NULL, token INTEGER NOT NULL,"
    " seq INTEGER NOT NULL, rule TEXT NOT NULL, used INTEGER NOT NULL, written INTEGER NOT NULL, writer TEXT NOT NULL,"
    " at_us INTEGER NOT NULL, data BLOB NOT NULL, service TEXT NOT NULL DEFAULT '');"
    "CREATE TABLE IF NOT EXISTS pawl_guard_reset (resource TEXT NOT NULL, at_us INTEGER NOT NULL, from_token INTEGER "
    "NOT NULL,"
    " to_token INTEGER NOT NULL, writer TEXT NOT NULL, why TEXT NOT NULL);"
    "CREATE TABLE IF NOT EXISTS pawl_guard_set (one INTEGER PRIMARY KEY CHECK (one = 1), rule TEXT NOT NULL);";

enum { SELECT_MARK, SELECT_SET, WRITE, SEAL, ADD_RESET, SET_RULE, SELECT_DATA, SELECT_RESETS, N_STATEMENTS };
#define MARK_COLUMNS "lock, token, seq, rule, used, written, writer, at_us, service"
#define REPLACE_MARK                                                                                                   \
    " ON CONFLICT (resource) DO UPDATE SET lock = excluded.lock, token = excluded.token, seq = excluded.seq,"          \
    " rule = excluded.rule, used = excluded.used, written = excluded.written, writer = excluded.writer,"               \
    " at_us = excluded.at_us, service = excluded.service"
static const char *const texts[N_STATEMENTS] = {
    [SELECT_MARK] = "SELECT " MARK_COLUMNS " FROM pawl_guard WHERE resource = ?1",
    [SELECT_SET] = "SELECT rule FROM pawl_guard_set",
    [WRITE] = "INSERT INTO pawl_guard (resource, " MARK_COLUMNS
              ", data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)" REPLACE_MARK ", data = excluded.data",
    [SEAL] = "INSERT INTO pawl_guard (resource, " MARK_COLUMNS
             ", data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)" REPLACE_MARK,
    [ADD_RESET] = "INSERT INTO pawl_guard_reset VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    [SET_RULE] = "INSERT INTO pawl_guard_set VALUES (1, ?1)",
    [SELECT_DATA] = "SELECT " MARK_COLUMNS ", data FROM pawl_guard WHERE resource = ?1",
    [SELECT_RESETS] =
        "SELECT at_us, from_token, to_token, writer, why FROM pawl_guard_reset WHERE resource = ?1 ORDER BY rowid"};

struct guard_store {
    char *path;
    sqlite3 *db; /* NULL: not opened yet */
    sqlite3_stmt *statements[N_STATEMENTS];
    bool made; /* the tables were made in the transaction that is open */
    char resource[GUARD_NAME_MAX + 1];
};

static int sqlite_open(const struct url *url, struct guard_store **ret, pawl_error *error) {
    if (url->authority || !*url->path)
        return error_set(error, PAWL_EINVALID, NULL, "url %s: write sqlite:FILE", url->shown);
    struct guard_store *store = calloc(1, sizeof *store);
    if (!store || !(store->path = strdup(url->path))) {
        free(store);
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    }
    *ret = store;
    return PAWL_OK;
}

static void forget_statements(struct guard_store *store) {
    for (int i = 0; i < N_STATEMENTS; i++) {
        sqlite3_finalize(store->statements[i]);
        store->statements[i] = NULL;
    }
}

static void disconnect(struct guard_store *store) {
    forget_statements(store);
    sqlite3_close(store->db);
    store->db = NULL;
}

static void sqlite_close(struct guard_store *store) {
    disconnect(store);
    free(store->path);
    free(store);
}

static int db_error(struct guard_store *store, const char *what, pawl_error *error) {
    int code;
    switch (store->db ? sqlite3_errcode(store->db) & 0xff : SQLITE_NOMEM) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return error_set(error, PAWL_ETIMEOUT, store->path, "another writer kept %s locked all the time", store->path);
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN: code = PAWL_EDENIED; break;
    case SQLITE_NOMEM: code = PAWL_EINTERNAL; break;
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
    case SQLITE_ERROR:
    case SQLITE_SCHEMA:
    case SQLITE_MISMATCH: code = PAWL_EUNSAFE; break;
    default: code = PAWL_EUNREACHABLE; break;
    }
    return error_set(error, code, store->path, "cannot %s %s: %s", what, store->path,
                     store->db ? sqlite3_errmsg(store->db) : "out of memory");
}

/* With make, an absent file is created; without, PAWL_GNORECORD. Busy waits end at until_ns. */
static int connect_to(struct guard_store *store, bool make, int64_t until_ns, pawl_error *error) {
    int wait_ms = clock_poll_ms(clock_now_ns(), until_ns);
    if (wait_ms < 0) wait_ms = INT_MAX;
    if (store->db) {
        sqlite3_busy_timeout(store->db, wait_ms);
        return PAWL_OK;
    }
    if (!make && access(store->path, F_OK) < 0 && errno == ENOENT) return PAWL_GNORECORD;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (make ? SQLITE_OPEN_CREATE : 0);
    if (sqlite3_open_v2(store->path, &store->db, flags, NULL) != SQLITE_OK ||
        sqlite3_busy_timeout(store->db, wait_ms) != SQLITE_OK || /* the next one reads the file already */
        sqlite3_exec(store->db, "PRAGMA synchronous = EXTRA", NULL, NULL, NULL) != SQLITE_OK) {
        int code = db_error(store, "open", error);
        disconnect(store);
        return code;
    }
    return PAWL_OK;
}

/* The statement, reset and with `resource` as ?1 (NULL: none); NULL: it cannot be prepared. */
static sqlite3_stmt *statement(struct guard_store *store, int which, const char *resource) {
    sqlite3_stmt **s = &store->statements[which];
    if (!*s && sqlite3_prepare_v3(store->db, texts[which], -1, SQLITE_PREPARE_PERSISTENT, s, NULL) != SQLITE_OK)
        return NULL;
    sqlite3_reset(*s);
    if (resource) sqlite3_bind_text(*s, 1, resource, -1, SQLITE_TRANSIENT);
    return *s;
}

static const char *column_text(sqlite3_stmt *s, int column) {
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text ? text : "";
}

static bool mark_of(sqlite3_stmt *s, struct guard_mark *ret) {
    struct guard_mark mark = {.rule = guard_rule_by_name(column_text(s, 3)),
                              .used = sqlite3_column_int(s, 4),
                              .written = sqlite3_column_int(s, 5),
                              .token = (uint64_t)sqlite3_column_int64(s, 1),
                              .seq = (uint64_t)sqlite3_column_int64(s, 2),
                              .at_us = sqlite3_column_int64(s, 7)};
    snprintf(mark.lock, sizeof mark.lock, "%s", column_text(s, 0));
    snprintf(mark.by, sizeof mark.by, "%s", column_text(s, 6));
    snprintf(mark.service, sizeof mark.service, "%s", column_text(s, 8));
    *ret = mark;
    return mark.rule && *mark.lock && sqlite3_column_type(s, 1) == SQLITE_INTEGER && mark.token > 0;
}

static int bad_row(const struct guard_store *store, const char *resource, pawl_error *error) {
    return error_set(error, PAWL_EUNSAFE, store->path,
                     "the row of '%s' in %s is not a record of this guard; it is left alone: look at it", resource,
                     store->path);
}

static int select_set(struct guard_store *store, int *ret_rule, pawl_error *error) {
    sqlite3_stmt *s = statement(store, SELECT_SET, NULL);
    int code = s ? sqlite3_step(s) : SQLITE_ERROR;
    if (code != SQLITE_ROW && code != SQLITE_DONE) return db_error(store, "read", error);
    *ret_rule = code == SQLITE_ROW ? guard_rule_by_name(column_text(s, 0)) : PAWL_RULE_DEFAULT;
    sqlite3_reset(s);
    return PAWL_OK;
}

/* --- the contract --- */

static void sqlite_end(struct guard_store *store) {
    if (!store->db || sqlite3_get_autocommit(store->db)) return;
    sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    if (store->made) forget_statements(store); /* their tables went with the transaction */
    store->made = false;
}

/* An open transaction with the tables in it. */
static int start(struct guard_store *store, int64_t until_ns, pawl_error *error) {
    int code = connect_to(store, true, until_ns, error);
    if (code) return code;
    if (sqlite3_exec(store->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK)
        return db_error(store, "lock", error);
    if (statement(store, SELECT_MARK, NULL)) return PAWL_OK;
    store->made = true;
    if (sqlite3_exec(store->db, schema, NULL, NULL, NULL) != SQLITE_OK) {
        code = db_error(store, "make the guard's tables in", error);
        sqlite_end(store);
    }
    return code;
}

static int sqlite_begin(struct guard_store *store, const struct guard_step *step, struct guard_found *ret,
                        pawl_error *error) {
    int code = start(store, step->until_ns, error);
    if (code) return code;
    struct guard_found found = {.now_us = clock_wall_us()};
    snprintf(store->resource, sizeof store->resource, "%s", step->resource);
    sqlite3_stmt *s = statement(store, SELECT_MARK, step->resource);
    int got = s ? sqlite3_step(s) : SQLITE_ERROR;
    if (got == SQLITE_ROW) code = mark_of(s, &found.mark) ? PAWL_OK : bad_row(store, step->resource, error);
    else if (got == SQLITE_DONE) code = select_set(store, &found.set_rule, error);
    else code = db_error(store, "read", error);
    if (s) sqlite3_reset(s);
    if (code) sqlite_end(store);
    else *ret = found;
    return code;
}

static bool add_reset(struct guard_store *store, const pawl_guard_reset_entry *entry) {
    sqlite3_stmt *s = statement(store, ADD_RESET, store->resource);
    if (!s) return false;
    sqlite3_bind_int64(s, 2, entry->at_ms * 1000);
    sqlite3_bind_int64(s, 3, entry->from);
    sqlite3_bind_int64(s, 4, entry->to);
    sqlite3_bind_text(s, 5, entry->by, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 6, entry->why, -1, SQLITE_STATIC);
    bool done = sqlite3_step(s) == SQLITE_DONE;
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return done;
}

static int sqlite_commit(struct guard_store *store, const struct guard_change *change, pawl_error *error) {
    const struct guard_mark *mark = change->mark;
    sqlite3_stmt *s = statement(store, change->data ? WRITE : SEAL, store->resource);
    if (!s) return db_error(store, "write", error);
    sqlite3_bind_text(s, 2, mark->lock, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 3, (int64_t)mark->token);
    sqlite3_bind_int64(s, 4, (int64_t)mark->seq);
    sqlite3_bind_text(s, 5, guard_rule_name(mark->rule), -1, SQLITE_STATIC);
    sqlite3_bind_int(s, 6, mark->used);
    sqlite3_bind_int(s, 7, mark->written);
    sqlite3_bind_text(s, 8, mark->by, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 9, mark->at_us);
    sqlite3_bind_text(s, 10, mark->service, -1, SQLITE_STATIC);
    sqlite3_bind_blob64(s, 11, change->data ? change->data : "", change->data ? change->length : 0, SQLITE_STATIC);
    bool done = sqlite3_step(s) == SQLITE_DONE;
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    if (!done || (change->reset && !add_reset(store, change->reset)) ||
        sqlite3_exec(store->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        return db_error(store, "write", error);
    store->made = false;
    return PAWL_OK;
}

/* A POSIX lock dies with its process whatever its descriptors' duplicates. */
static int sqlite_fd(struct guard_store *store) {
    (void)store;
    return -1;
}

static int collect_resets(struct guard_store *store, const char *resource, pawl_guard_reset_entry **ret,
                          size_t *ret_n) {
    sqlite3_stmt *s = statement(store, SELECT_RESETS, resource);
    int code = s ? SQLITE_OK : SQLITE_ERROR;
    while (s && (code = sqlite3_step(s)) == SQLITE_ROW) {
        pawl_guard_reset_entry *more = realloc(*ret, (*ret_n + 1) * sizeof *more);
        char *by = strdup(column_text(s, 3)), *why = strdup(column_text(s, 4));
        if (more) *ret = more;
        if (!more || !by || !why) {
            free(by);
            free(why);
            code = SQLITE_NOMEM;
            break;
        }
        more[(*ret_n)++] = (pawl_guard_reset_entry){by, why, sqlite3_column_int64(s, 1), sqlite3_column_int64(s, 2),
                                                    sqlite3_column_int64(s, 0) / 1000};
    }
    if (s) sqlite3_reset(s);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

/* Inside a read transaction, so that record and resets belong together. */
static int read_record(struct guard_store *store, const char *resource, pawl_guard_record **ret, pawl_error *error) {
    sqlite3_stmt *s = statement(store, SELECT_DATA, resource);
    if (!s) return sqlite3_errcode(store->db) == SQLITE_ERROR ? PAWL_GNORECORD : db_error(store, "read", error);
    struct guard_mark mark;
    pawl_guard_reset_entry *resets = NULL;
    size_t n = 0;
    int code = PAWL_OK, got = sqlite3_step(s);
    if (got == SQLITE_DONE) code = PAWL_GNORECORD;
    else if (got != SQLITE_ROW || collect_resets(store, resource, &resets, &n) != SQLITE_OK)
        code = db_error(store, "read", error);
    else if (!mark_of(s, &mark)) code = bad_row(store, resource, error);
    else {
        const void *data = sqlite3_column_blob(s, 9);
        pawl_guard_record *record =
            guard_record_make(resource, &mark, data, (size_t)sqlite3_column_bytes(s, 9), resets, n);
        if (record) *ret = record;
        else code = error_set(error, PAWL_EINTERNAL, store->path, "out of memory");
    }
    sqlite3_reset(s);
    for (size_t i = 0; i < n; i++) {
        free((char *)resets[i].by);
        free((char *)resets[i].why);
    }
    free(resets);
    return code;
}

static int sqlite_read(struct guard_store *store, const struct guard_step *step, pawl_guard_record **ret,
                       pawl_error *error) {
    int code = connect_to(store, false, step->until_ns, error);
    if (code) return code;
    if (sqlite3_exec(store->db, "BEGIN", NULL, NULL, NULL) != SQLITE_OK) return db_error(store, "read", error);
    code = read_record(store, step->resource, ret, error);
    sqlite_end(store);
    return code;
}

static int sqlite_install(struct guard_store *store, int rule, int64_t until_ns, pawl_error *error) {
    int code = start(store, until_ns, error), there = PAWL_RULE_DEFAULT;
    if (code) return code;
    if ((code = select_set(store, &there, error)) == PAWL_OK && there && there != rule)
        code = error_set(error, PAWL_EINVALID, store->path, "%s was installed with rule %s, not %s", store->path,
                         guard_rule_name(there), guard_rule_name(rule));
    if (code == PAWL_OK && !there) {
        sqlite3_stmt *s = statement(store, SET_RULE, guard_rule_name(rule));
        int done = s ? sqlite3_step(s) : SQLITE_ERROR;
        if (s) sqlite3_reset(s);
        if (done != SQLITE_DONE || sqlite3_exec(store->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
            code = db_error(store, "write", error);
        else store->made = false;
    }
    sqlite_end(store);
    return code;
}

static const struct guard_kind guard_sqlite = {.scheme = "sqlite",
                                               .open = sqlite_open,
                                               .close = sqlite_close,
                                               .begin = sqlite_begin,
                                               .commit = sqlite_commit,
                                               .end = sqlite_end,
                                               .fd = sqlite_fd,
                                               .read = sqlite_read,
                                               .install = sqlite_install};

__attribute__((visibility("default"))) extern const struct guard_kind *const pawl_guard_kind;
const struct guard_kind *const pawl_guard_kind = &guard_sqlite;
__attribute__((visibility("default"))) extern const int pawl_backend_abi;
const int pawl_backend_abi = MODULE_ABI;
