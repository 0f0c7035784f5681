/* server_postgres.c: starts PostgreSQL, which refuses to run as root, and asks it things beside the code under test. */
#include "server.h"
#include <glob.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The folder of the newest installed version. */
static void program(const char *name, char ret[256]) {
    glob_t found;
    snprintf(ret, 256, "%s", name);
    if (glob("/usr/lib/postgresql/*/bin", 0, NULL, &found) == 0) {
        snprintf(ret, 256, "%s/%s", found.gl_pathv[found.gl_pathc - 1], name);
        globfree(&found);
    }
}

static void fail(const struct server *s, const char *what) {
    char command[128]; /* the folder goes with this program */
    fprintf(stderr, "server: %s failed; the last lines of what it said:\n", what);
    snprintf(command, sizeof command, "tail -5 %s/setup.log >&2", s->dir);
    if (system(command)) fputs("(nothing)\n", stderr);
    exit(1);
}

/* As root everything is done as the user postgres, to whom the folder is given. */
static void run(const struct server *s, const char *what, const char *command) {
    char line[1024];
    snprintf(line, sizeof line, "%s%s >>%s/setup.log 2>&1",
             s->user ? "setpriv --reuid=postgres --regid=postgres --clear-groups " : "", command, s->dir);
    if (system(line)) fail(s, what);
}

static void prepare(struct server *s, const char *name) {
    struct passwd *postgres = geteuid() == 0 ? getpwnam("postgres") : NULL;
    server_make_dir(s, name);
    s->port = server_free_port();
    if (geteuid() == 0 && !postgres) fail(s, "looking for the user postgres");
    if (postgres) {
        s->user = postgres->pw_uid;
        s->group = postgres->pw_gid;
        if (chown(s->dir, s->user, s->group)) fail(s, "chown");
    }
    snprintf(s->url, sizeof s->url, "postgresql://postgres@127.0.0.1:%d/postgres", s->port);
}

static void configure(const struct server *s, const char *settings) {
    char path[128];
    snprintf(path, sizeof path, "%s/data/postgresql.auto.conf", s->dir);
    FILE *file = fopen(path, "a");
    if (!file ||
        fprintf(file,
                "\nport = %d\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '%s'\nfsync = off\n"
                "max_wal_senders = 4\nwal_level = replica\nmax_connections = 100\nshared_buffers = 16MB\n%s\n",
                s->port, s->dir, settings) < 0 ||
        fclose(file))
        fail(s, "writing its configuration");
}

char *server_sql(int port, const char *format, ...) {
    char *sql, where[128], *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&sql, format, arguments) < 0) sql = NULL;
    va_end(arguments);
    if (!sql) return NULL;
    snprintf(where, sizeof where, "host=127.0.0.1 port=%d user=postgres dbname=postgres connect_timeout=8", port);
    PGconn *conn = PQconnectdb(where);
    if (PQstatus(conn) == CONNECTION_OK) {
        PGresult *result = PQexec(conn, sql);
        ExecStatusType status = PQresultStatus(result);
        if (status == PGRES_TUPLES_OK && PQntuples(result) > 0) text = strdup(PQgetvalue(result, 0, 0));
        else if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) text = strdup("");
        else if (asprintf(&text, "-%s %s", PQresultErrorField(result, PG_DIAG_SQLSTATE), PQresultErrorMessage(result)) <
                 0)
            text = NULL;
        PQclear(result);
    }
    PQfinish(conn);
    free(sql);
    return text;
}

static bool answers(const struct server *s) {
    char *text = server_sql(s->port, "SELECT 1");
    bool up = text && strcmp(text, "1") == 0;
    free(text);
    return up;
}

static void start(struct server *s) {
    char path[256];
    program("postgres", path);
    s->ready = answers;
    s->quit = SIGQUIT; /* killed, it leaves its shared memory behind */
    server_arg(s, "%s", path);
    server_arg(s, "-D");
    server_arg(s, "%s/data", s->dir);
    server_run(s);
}

void server_start_postgres(struct server *s, const char *settings) {
    char path[256], command[512];
    prepare(s, "postgres");
    program("initdb", path);
    snprintf(command, sizeof command, "%s -D %s/data -U postgres -A trust -E UTF8 --locale=C --no-sync", path, s->dir);
    run(s, "initdb", command);
    configure(s, settings);
    start(s);
}

void server_start_standby(struct server *s, const struct server *primary, const char *settings) {
    char path[256], command[512];
    prepare(s, "standby");
    program("pg_basebackup", path);
    snprintf(command, sizeof command, "%s -D %s/data -h 127.0.0.1 -p %d -U postgres -R -X stream --no-sync -c fast",
             path, s->dir, primary->port);
    run(s, "pg_basebackup", command);
    configure(s, settings);
    start(s);
}

bool server_has_pgbouncer(void) { return access("/usr/sbin/pgbouncer", X_OK) == 0; }

static bool listens(const struct server *s) {
    int fd = server_dial(s->port);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

void server_start_pgbouncer(struct server *s, const struct server *postgres, const char *mode, const char *settings) {
    char path[128];
    prepare(s, "pgbouncer");
    s->ready = listens;
    snprintf(path, sizeof path, "%s/ini", s->dir);
    FILE *file = fopen(path, "w");
    if (!file ||
        fprintf(file,
                "[databases]\n* = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
                "listen_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = %s\n%s\n",
                postgres->port, s->port, mode, settings) < 0 ||
        fclose(file) || (s->user && chown(path, s->user, s->group)))
        fail(s, "writing its configuration");
    server_arg(s, "/usr/sbin/pgbouncer");
    server_arg(s, "%s", path);
    server_run(s);
}
