#include "refusal.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *state; /* the whole SQLSTATE, or its class */
    int code;
    const char *advice;
} rows[] = {
    {"PW005", PAWL_EUNSAFE, NULL},
    {"PW006", PAWL_EUNSAFE, NULL},
    {"PW007", PAWL_EINVALID, NULL},
    {"PW008", PAWL_EUNSAFE, NULL},
    {"42501", PAWL_EDENIED, NULL}, /* insufficient_privilege */
    {"42P05", PAWL_EINVALID, "it is prepared on this connection already"},
    {"42", PAWL_EUNSAFE,
     "pawl is not installed there, or another version: pawl init URL"}, /* undefined function, table */
    {"3F000", PAWL_EUNSAFE, "pawl is not installed there: pawl init URL"},
    {"2200H", PAWL_EUNSAFE,
     "the token numbers are used up; as the owner of the schema, while nobody holds a lock: setval('pawl.token', N), "
     "with "
     "N above every number that a guard has seen"},
    {"22", PAWL_EINVALID, NULL}, /* a name that the database's encoding lacks, a key that is none */
    {"26000", PAWL_EINVALID, "prepare it on this connection first"}, /* no such prepared statement */
    {"53200", PAWL_EUNREACHABLE, "its lock table is full; raise max_locks_per_transaction"},
    {"55P03", PAWL_EBUSY, NULL},        /* lock_not_available */
    {"40P01", PAWL_EBUSY, NULL},        /* deadlock_detected */
    {"25006", PAWL_EUNREACHABLE, NULL}, /* read-only */
    {"57", PAWL_EUNREACHABLE, NULL},    /* shutting down */
    {"53", PAWL_EUNREACHABLE, NULL},    /* no resources */
    {"08", PAWL_EUNREACHABLE, NULL},
};

int refusal(const PGresult *result, const char *node, pawl_error *error) {
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE),
               *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY), *advice = NULL;
    int code = PAWL_EINTERNAL;
    if (!state) state = "?";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strncmp(state, rows[i].state, strlen(rows[i].state)) == 0) {
            code = rows[i].code;
            advice = rows[i].advice;
            break;
        }
    bool prepared = strcmp(state, "42P05") == 0 || strcmp(state, "26000") == 0;
    if (prepared && text &&
        strstr(text, "\"pawl")) { /* one of ours: there already, or not there, in another's session */
        code = PAWL_EUNSAFE;
        advice = REFUSAL_POOLER;
    }
    return error_set(error, code, node, "%s: %.280s (%s)%s%s", node, text ? text : "no text", state, advice ? ": " : "",
                     advice ? advice : "");
}

void refusal_text(const PGconn *conn, char *ret, size_t size) {
    snprintf(ret, size, "%s", PQerrorMessage(conn));
    for (char *c = ret; *c; c++)
        if (*c == '\n' || *c == '\t') *c = c[1] ? ' ' : 0;
}

void refusal_goodbye(const PGresult *said, char *ret, size_t size) {
    const char *state = PQresultErrorField(said, PG_DIAG_SQLSTATE),
               *text = PQresultErrorField(said, PG_DIAG_MESSAGE_PRIMARY);
    bool asked_for = state && strcmp(state, "57P01") == 0;
    snprintf(ret, size, "%.160s (%.5s)%s", text ? text : "no text", state ? state : "?",
             asked_for ? "; somebody ended this session (pawl break, pg_terminate_backend), or stopped the server"
                       : "");
}
