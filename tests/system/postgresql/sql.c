#include "sql.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct server primary;
const char *sql_settings = "";

int sql_group_setup(void **state) {
    (void)state;
    server_start_postgres(&primary, sql_settings);
    sql_install(primary.url);
    return 0;
}

int sql_group_teardown(void **state) {
    (void)state;
    server_stop(&primary);
    return 0;
}

PGconn *sql_dial(int port, const char *more) {
    char where[256];
    snprintf(where, sizeof where, "host=127.0.0.1 port=%d user=postgres dbname=postgres connect_timeout=5 %s", port,
             more);
    PGconn *conn = PQconnectdb(where);
    if (PQstatus(conn) != CONNECTION_OK) fail_msg("%s", PQerrorMessage(conn));
    return conn;
}

char *sql_ask(PGconn *conn, const char *sql) {
    PGresult *result = PQexec(conn, sql);
    char *text;
    if (PQresultStatus(result) == PGRES_TUPLES_OK) text = strdup(PQntuples(result) ? PQgetvalue(result, 0, 0) : "");
    else if (PQresultStatus(result) == PGRES_COMMAND_OK) text = strdup("");
    else {
        const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
        assert_true(asprintf(&text, "-%s %s", state ? state : "?????", PQerrorMessage(conn)) > 0);
    }
    PQclear(result);
    return text;
}

static char *ask(PGconn *conn, const char *format, va_list arguments) {
    char *sql;
    assert_true(vasprintf(&sql, format, arguments) > 0);
    char *text = sql_ask(conn, sql);
    if (*text == '-' && strspn(text + 1, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ?") == 5) fail_msg("%s: %s", sql, text);
    free(sql);
    return text;
}

void sql_does(PGconn *conn, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    free(ask(conn, format, arguments));
    va_end(arguments);
}

int64_t sql_number(PGconn *conn, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = ask(conn, format, arguments);
    va_end(arguments);
    int64_t n = strtoll(text, NULL, 10);
    free(text);
    return n;
}

void sql_refuses(PGconn *conn, const char *sql, const char *state, const char *saying) {
    char *text = sql_ask(conn, sql);
    if (strncmp(text + 1, state, 5) != 0 || !strstr(text, saying)) fail_msg("%s: %s", sql, text);
    free(text);
}

void sql_install(const char *url) {
    pawl_client *client;
    pawl_error error = PAWL_ERROR_INIT;
    if (pawl_open(url, NULL, &client, &error) || pawl_init(client, 20000, &error)) fail_msg("%s", error.text);
    pawl_close(client);
}

void shell(const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (system(line)) fail_msg("%s", line);
}
