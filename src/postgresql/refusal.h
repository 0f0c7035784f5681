/* refusal.h: what a PostgreSQL server's error means to a caller of pawl. */
#ifndef POSTGRESQL_REFUSAL_H
#define POSTGRESQL_REFUSAL_H
#include "error.h"
#include <libpq-fe.h>

#define REFUSAL_POOLER                                                                                                 \
    "a pooler stands between that does not keep sessions whole: a lock there could be somebody else's. Connect to "    \
    "the "                                                                                                             \
    "server itself, let the pooler give whole sessions, or lock inside of a transaction, in SQL: pawl.lock(name)"

/* Fills *error (NULL allowed) and returns the PAWL_E... code. */
int refusal(const PGresult *result, const char *node, pawl_error *error);
/* The text of the connection's last error, in one line. */
void refusal_text(const PGconn *conn, char *ret, size_t size);
/* The server's last words, when it ends a connection. */
void refusal_goodbye(const PGresult *said, char *ret, size_t size);
#endif
