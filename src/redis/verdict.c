#include "verdict.h"
#include <stdio.h>
#include <string.h>

static const struct row {
    const char *code; /* the first word of the reply; with a space in it: a text anywhere */
    enum bk_says says;
    int error;
    const char *advice; /* PREFIX: of the keys; NAME: of the lock */
} rows[] = {
    {"READONLY", BK_FAULT, PAWL_EUNREACHABLE, "it is a replica; locks need the primary"},
    {"PAWLREPLICA", BK_FAULT, PAWL_EUNREACHABLE, "it is a replica; locks need the primary"},
    {"MASTERDOWN", BK_FAULT, PAWL_EUNREACHABLE, "it is a replica without its primary"},
    {"NOREPLICAS", BK_FAULT, PAWL_EUNREACHABLE,
     "it takes no writes while its replicas are away (min-replicas-to-write)"},
    {"LOADING", BK_FAULT, PAWL_EUNREACHABLE, "it is still loading its data; try again"},
    {"MISCONF", BK_FAULT, PAWL_EUNREACHABLE, "it cannot save its data and takes no writes; look at its disk"},
    {"OOM", BK_FAULT, PAWL_EUNREACHABLE, "it is out of memory (maxmemory)"},
    {"BUSY", BK_FAULT, PAWL_EUNREACHABLE, "a script of somebody's keeps it busy"},
    {"max number of clients reached", BK_FAULT, PAWL_EUNREACHABLE,
     "it has no room for another connection (maxclients)"},
    {"NOAUTH", BK_FAULT, PAWL_EDENIED, "it wants a password: redis://:password@host, or redis://user:password@host for an ACL user"},
    {"unauthenticated multibulk", BK_FAULT, PAWL_EDENIED, "it wants a password: redis://:password@host, or redis://user:password@host for an ACL user"},
    {"WRONGPASS", BK_FAULT, PAWL_EDENIED, "user or password is wrong"},
    {"NOPERM", BK_FAULT, PAWL_EDENIED, "the user lacks a right; pawl doctor --acl prints what is needed"},
    {"user executing the script can't", BK_FAULT, PAWL_EDENIED,
     "the user lacks a command that the scripts call; pawl doctor --acl prints what is needed"},
    {"DENIED", BK_FAULT, PAWL_EDENIED, "protected mode admits local clients only"},
    {"MOVED", BK_FAULT, PAWL_EUNSUPPORTED, "Redis Cluster is not supported; use a single primary, or redlock:"},
    {"CROSSSLOT", BK_FAULT, PAWL_EUNSUPPORTED, "Redis Cluster is not supported; use a single primary, or redlock:"},
    {"CLUSTERDOWN", BK_FAULT, PAWL_EUNSUPPORTED, "Redis Cluster is not supported; use a single primary, or redlock:"},
    {"WRONGTYPE", BK_FAULT, PAWL_EUNSAFE,
     "the key 'PREFIXNAME', or one that pawl keeps beside it ('PREFIX%...'), holds something that is not pawl's; "
     "choose "
     "another name or prefix"},
    {"PAWLNUMBERS", BK_FAULT, PAWL_EUNSAFE, "the key 'PREFIX%n' was not written by pawl; choose another prefix"},
    {"PAWLMETA", BK_FAULT, PAWL_EUNSAFE,
     "the key 'PREFIX%r' is damaged or not pawl's: delete it there, and the instance comes back as one that lost its "
     "memory; or choose another prefix"},
    {"PAWLRECORD", BK_FAULT, PAWL_EUNSAFE, "the key holds something else than a guard's record; it is left alone"},
    {"PAWLCLOCK", BK_FAULT, PAWL_EUNSAFE,
     "its clock and ours are over a day apart; tokens start at the clock: set it right"},
    {"PAWLEXHAUSTED", BK_FAULT, PAWL_EUNSAFE, "the token numbers are used up"},
    {"unknown command", BK_FAULT, PAWL_EUNSUPPORTED, "is this Redis 5 or newer?"},
};

bool verdict_is(const char *reply, const char *code) {
    size_t n = strlen(code);
    if (strchr(code, ' ')) return strstr(reply, code);
    if (strncmp(reply, code, n) == 0 && (reply[n] == ' ' || !reply[n])) return true;
    const char *at = strstr(reply, code); /* raised in a script: "ERR user_script:9: CODE", or behind a '-' */
    return at && at > reply && (at[-1] == ' ' || at[-1] == '-') && (strncmp(code, "PAWL", 4) == 0 || at[-1] == '-');
}

static void fill_in(const struct wire *w, const char *advice, char *ret, size_t size) {
    for (size_t used = 0; *advice && used + 1 < size; used = strlen(ret)) {
        bool prefix = strncmp(advice, "PREFIX", 6) == 0, name = strncmp(advice, "NAME", 4) == 0;
        snprintf(ret + used, size - used, "%.*s", prefix || name ? 200 : 1,
                 prefix ? w->prefix ? w->prefix : ""
                 : name ? w->name
                        : advice);
        advice += prefix ? 6 : name ? 4 : 1;
    }
}

enum bk_says verdict(const struct wire *w, const char *reply, pawl_error *error) {
    char advice[512] = "";
    const char *space = *w->name ? " '" : "", *quote = *w->name ? "'" : "";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!verdict_is(reply, rows[i].code)) continue;
        fill_in(w, rows[i].advice, advice, sizeof advice);
        const char *script = strstr(reply, " script: "); /* which line of ours failed is no help */
        int length = script && script - reply < 160 ? (int)(script - reply) : 160;
        error_set(error, rows[i].error, w->node, "%s: %s%s%s%s: %s (%.*s)", w->node, w->verb, space, w->name, quote,
                  advice, length, reply);
        return rows[i].says;
    }
    error_set(error, PAWL_EUNREACHABLE, w->node, "%s: %s%s%s%s: the server says: %.200s", w->node, w->verb, space,
              w->name, quote, reply);
    return BK_UNKNOWN;
}
