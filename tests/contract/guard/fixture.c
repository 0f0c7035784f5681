#include "fixture.h"
#include "server.h"
#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

const char *kind;
char folder[64], url[192];
pawl_guard *guard;
pawl_error error;
static bool wal;
static struct server server;
static int number; /* of the test: its prefix */

bool is_service(void) { return strcmp(kind, "dir") != 0 && strcmp(kind, "sqlite") != 0; }

void begin_kind(const char *name) {
    kind = name;
    if ((wal = strcmp(kind, "sqlite-wal") == 0)) kind = "sqlite";
    static const char *const durable[] = {"--appendonly", "yes", "--appendfsync", "always", NULL};
    if (strcmp(kind, "redis") == 0) server_start_redis(&server, durable);
    if (strcmp(kind, "etcd") == 0) server_start_etcd(&server, NULL);
    if (strcmp(kind, "postgresql") == 0) {
        pawl_client *client = NULL;
        error = (pawl_error)PAWL_ERROR_INIT;
        server_start_postgres(&server, "");
        int code = pawl_open(server.url, NULL, &client, &error);
        if (!code) code = pawl_init(client, 20000, &error);
        if (code) fprintf(stderr, "%s\n", error.text);
        pawl_close(client);
    }
}

void end_kind(void) {
    if (is_service()) server_stop(&server);
}

void service_signal(int signal) { server_kill(&server, signal); }
void service_restart(void) { server_restart(&server); }

int set_up(void **data) {
    (void)data;
    number++;
    snprintf(folder, sizeof folder, "/tmp/pawl-guard-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    if (strcmp(kind, "postgresql") == 0) { /* a set is a database: a copy of the prepared one */
        free(server_sql(server.port, "CREATE DATABASE t%d TEMPLATE postgres", number));
        snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:%d/t%d", server.port, number);
    } else if (is_service())
        snprintf(url, sizeof url, "%s%sprefix=t%d:", server.url, strchr(server.url, '?') ? "&" : "?", number);
    else snprintf(url, sizeof url, strcmp(kind, "dir") == 0 ? "dir:%s/set" : "sqlite:%s/set.db", folder);
    if (wal) {
        char command[160];
        snprintf(command, sizeof command, "sqlite3 %s/set.db 'PRAGMA journal_mode = WAL' >/dev/null", folder);
        if (system(command) != 0) return -1;
    }
    error = (pawl_error)PAWL_ERROR_INIT;
    int code = pawl_guard_open(url, NULL, &guard, &error);
    if (code) fprintf(stderr, "%s\n", error.text);
    return code;
}

static void remove_tree(const char *path) {
    DIR *dir = opendir(path);
    struct dirent *entry;
    char name[PATH_MAX];
    while (dir && (entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (entry->d_type == DT_DIR) remove_tree(name);
        else unlink(name);
    }
    if (dir) closedir(dir);
    rmdir(path);
}

int tear_down(void **data) {
    (void)data;
    pawl_guard_close(guard);
    remove_tree(folder);
    return 0;
}

int entries_of(const char *path) {
    DIR *dir = opendir(path);
    int entries = -2; /* . and .. */
    while (readdir(dir)) entries++;
    closedir(dir);
    return entries;
}

const char *foreign_place(void) {
    static char place[192];
    if (strcmp(kind, "redis") == 0) snprintf(place, sizeof place, "127.0.0.1:%d", server.port);
    else if (strcmp(kind, "etcd") == 0) snprintf(place, sizeof place, "t%d:%%guard/r/", number);
    else if (strcmp(kind, "postgresql") == 0) snprintf(place, sizeof place, "127.0.0.1:%d", server.port);
    else snprintf(place, sizeof place, strcmp(kind, "dir") == 0 ? "%s/set/r.record" : "%s/set.db", folder);
    return place;
}

/* A command with the text as "$1". */
static void command_for(bool write, char *ret, size_t size) {
    const char *place = foreign_place();
    if (strcmp(kind, "redis") == 0)
        snprintf(ret, size, "redis-cli -p %d %s t%d:%%g:r field %s", server.port, write ? "HSET" : "HGET", number,
                 write ? "\"$1\" >/dev/null" : "");
    else if (strcmp(kind, "postgresql") == 0)
        snprintf(ret, size, "psql -qAtX -h 127.0.0.1 -p %d -U postgres t%d -c \"%s\"", server.port, number,
                 write ? "ALTER TABLE pawl.guarded RENAME TO old; CREATE TABLE pawl.guarded AS SELECT 'somebody''s "
                         "own'::text AS note"
                       : "SELECT note FROM pawl.guarded");
    else if (strcmp(kind, "etcd") == 0)
        snprintf(ret, size, "ETCDCTL_API=3 etcdctl --endpoints 127.0.0.1:%d %s %s", server.port,
                 write ? "put" : "get --print-value-only", place);
    else snprintf(ret, size, write ? "printf %%s \"$1\" >%s" : "cat %s", place);
    if (write && strcmp(kind, "etcd") == 0) strncat(ret, " \"$1\" >/dev/null", size - strlen(ret) - 1);
}

void foreign_write(const char *text) {
    char inner[400], whole[700];
    command_for(true, inner, sizeof inner);
    snprintf(whole, sizeof whole, "set -- \"%s\"; %s", text, inner);
    assert_int_equal(system(whole), 0);
}

char *foreign_read(void) {
    char command[400], text[256] = "";
    command_for(false, command, sizeof command);
    FILE *pipe = popen(command, "re");
    assert_non_null(pipe);
    size_t n = fread(text, 1, sizeof text - 1, pipe);
    assert_int_equal(pclose(pipe), 0);
    text[n] = 0;
    text[strcspn(text, "\n")] = 0;
    return strdup(text);
}
