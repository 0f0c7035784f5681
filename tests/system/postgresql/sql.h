/* sql.h: SQL beside the code under test, on connections of the test's own. */
#ifndef TESTS_POSTGRESQL_SQL_H
#define TESTS_POSTGRESQL_SQL_H
#include "pawl.h"
#include "server.h"
#include <libpq-fe.h>
#include <stdint.h>

/* A server with pawl installed for all tests of a program; sql_settings: lines of its configuration, said before. */
extern struct server primary;
extern const char *sql_settings;
int sql_group_setup(void **state);
int sql_group_teardown(void **state);

/* more: further keywords of libpq, or "". */
PGconn *sql_dial(int port, const char *more);
/* The first column of the first row, "" for NULL or none, "-SQLSTATE text" for an error. The caller frees it. */
char *sql_ask(PGconn *conn, const char *sql);
/* The same in the format of printf, and an error fails the test. */
void sql_does(PGconn *conn, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t sql_number(PGconn *conn, const char *format, ...) __attribute__((format(printf, 2, 3))); /* 0 for NULL */
/* The server refuses, with that SQLSTATE, and says so. */
void sql_refuses(PGconn *conn, const char *sql, const char *state, const char *saying);
/* A command that has to succeed. */
void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* `pawl init` of a database, as the user of the URL. */
void sql_install(const char *url);
#endif
