/* doctor.c: is this Redis good for locks? What INFO says (a right that locks need anyhow), and what CONFIG says where
 * it may be asked. */
#include "dial.h"
#include "pawl.h"
#include "redis.h"
#include "resolve.h"
#include "rights.h"
#include "verdict.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTINELS_MAX = 32 };

struct looking {
    struct bk_session *s;
    const char *info;
    bk_find *find;
    void *data;
};

static void tell(const struct looking *l, const char *id, int level, const char *about, const char *seen,
                 const char *why, const char *fix) {
    bool fine = level == PAWL_LEVEL_FINE;
    struct bk_finding f = {id, level, about, seen, fine ? "" : why, fine ? "" : fix};
    l->find(&f, l->data);
}

/* "key:value" of INFO; "" if it is not there. */
static const char *info(const struct looking *l, const char *key, char ret[96]) {
    size_t n = strlen(key);
    *ret = 0;
    for (const char *at = strstr(l->info, key); at; at = strstr(at + 1, key))
        if ((at == l->info || at[-1] == '\n') && at[n] == ':') {
            snprintf(ret, 96, "%.*s", (int)strcspn(at + n + 1, "\r\n"), at + n + 1);
            break;
        }
    return ret;
}

static long long number(const struct looking *l, const char *key) {
    char text[96];
    return atoll(info(l, key, text));
}

static void server(const struct looking *l) {
    char version[96], seen[160];
    snprintf(seen, sizeof seen, "Redis %.60s, primary", info(l, "redis_version", version));
    tell(l, "R01", PAWL_LEVEL_FINE, "server", seen, "", "");
}

static void replicas(const struct looking *l) {
    char seen[96];
    long long n = number(l, "connected_slaves");
    bool followed = l->s->bk->place.master != NULL;
    snprintf(seen, sizeof seen, "%lld replicas%s", n, followed ? ", followed through sentinels" : "");
    tell(l, "R02", n && !followed ? PAWL_LEVEL_UNSAFE : PAWL_LEVEL_FINE, "replicas", seen,
         "they follow asynchronously: whoever makes one the primary grants locks again that are held",
         "redis+sentinel://, so that pawl goes along and tokens rise; and a guard, or --seal");
}

static void eviction(const struct looking *l) {
    char policy[96], seen[160];
    long long most = number(l, "maxmemory");
    bool evicts = *info(l, "maxmemory_policy", policy) && strcmp(policy, "noeviction") != 0;
    snprintf(seen, sizeof seen, "maxmemory %lld, policy %.60s", most, *policy ? policy : "unknown");
    if (!*policy) tell(l, "R03", PAWL_LEVEL_UNSEEN, "eviction", seen, "", "");
    else
        tell(l, "R03",
             !evicts ? PAWL_LEVEL_FINE
             : most  ? PAWL_LEVEL_UNSAFE
                     : PAWL_LEVEL_WARNING,
             "eviction", seen,
             most ? "when memory is full Redis may remove locks that are held, and what counts the tokens"
                  : "once maxmemory is set, Redis may remove locks that are held",
             "CONFIG SET maxmemory-policy noeviction, or an instance of its own");
}

static void memory(const struct looking *l) {
    char seen[96];
    long long most = number(l, "maxmemory"), used = number(l, "used_memory"), percent = most ? used * 100 / most : 0;
    if (most) snprintf(seen, sizeof seen, "%lld bytes are used, maxmemory is %lld", used, most);
    else snprintf(seen, sizeof seen, "no limit is set");
    tell(l, "R04", percent >= 90 ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, "memory", seen,
         "a full Redis grants no new lock", "raise maxmemory, or give locks an instance of their own");
}

static void persistence(const struct looking *l) {
    char status[96];
    bool aof = number(l, "aof_enabled") != 0;
    tell(
        l, "R05", aof ? PAWL_LEVEL_FINE : PAWL_LEVEL_WARNING, "persistence", aof ? "appendonly yes" : "appendonly no",
        "a restart forgets what is held, so that a lock can be granted twice within one ttl (tokens rise all the same)",
        "appendonly yes; or a guard");
    bool bad = strcmp(info(l, "rdb_last_bgsave_status", status), "err") == 0 ||
               strcmp(info(l, "aof_last_write_status", status), "err") == 0;
    tell(l, "R06", bad ? PAWL_LEVEL_UNSAFE : PAWL_LEVEL_FINE, "last write to disk", bad ? "it failed" : "well",
         "Redis refuses every write while it cannot save (MISCONF)", "see its log: disk full, or no rights");
    bool loading = number(l, "loading") != 0;
    if (loading)
        tell(l, "R07", PAWL_LEVEL_WARNING, "loading", "it is loading its data", "no lock can be taken", "wait");
}

static void clients(const struct looking *l) {
    char seen[96];
    long long now = number(l, "connected_clients"), most = number(l, "maxclients");
    if (!most) {
        tell(l, "R08", PAWL_LEVEL_UNSEEN, "connections", "this version does not tell its limit", "", "");
        return;
    }
    snprintf(seen, sizeof seen, "%lld of %lld", now, most);
    tell(l, "R08", now * 100 / most >= 80 ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, "connections", seen,
         "a client that cannot connect can neither take nor keep a lock", "raise maxclients");
}

/* One command; *ret_text: its text, the second element of a list, or "" with an error reply. */
static enum bk_says ask(const struct looking *l, const char *const words[], struct bk_until until, char ret[96],
                        bool *ret_allowed, pawl_error *error) {
    AUTO_REPLY reply = NULL;
    *ret = 0;
    l->s->wire.verb = "looking at";
    l->s->wire.name = words[0];
    wire_words(&l->s->wire, words);
    enum bk_says says = wire_flush(&l->s->wire, until, error);
    if (says == BK_YES) says = wire_reply(&l->s->wire, until, &reply, error);
    if (says != BK_YES) return says;
    *ret_allowed = reply->type != REDIS_REPLY_ERROR;
    const redisReply *value = reply->type == REDIS_REPLY_ARRAY && reply->elements > 1 ? reply->element[1] : reply;
    if (value->str) snprintf(ret, 96, "%.90s", value->str);
    return BK_YES;
}

static enum bk_says settings(const struct looking *l, struct bk_until until, pawl_error *error) {
    static const struct {
        const char *id, *key, *good, *why, *fix;
    } rows[] = {
        {"R09", "timeout", "0", "connections that rest are closed: each wait and each renewal may have to dial again",
         "CONFIG SET timeout 0"},
        {"R10", "appendfsync", "always", "a crash of the machine forgets grants of the last second, or more",
         "CONFIG SET appendfsync always; or a guard"},
    };
    char value[96], seen[160];
    bool allowed, aof = number(l, "aof_enabled") != 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum bk_says says =
            ask(l, (const char *const[]){"CONFIG", "GET", rows[i].key, NULL}, until, value, &allowed, error);
        if (says != BK_YES) return says;
        bool matters = i == 0 || aof, fine = strcmp(value, rows[i].good) == 0 || !matters;
        snprintf(seen, sizeof seen, allowed ? "%s %s" : "CONFIG GET %s is not allowed to this user%.0s", rows[i].key,
                 value);
        tell(l, rows[i].id,
             !allowed ? PAWL_LEVEL_UNSEEN
             : fine   ? PAWL_LEVEL_FINE
                      : PAWL_LEVEL_WARNING,
             rows[i].key, seen, allowed ? rows[i].why : "", allowed ? rows[i].fix : "");
    }
    return BK_YES;
}

/* Who may not publish is not told when a lock gets free, and tells nobody. */
static enum bk_says wake_ups(const struct looking *l, struct bk_until until, pawl_error *error) {
    char channel[PREFIX_MAX + 32], said[96];
    bool allowed;
    snprintf(channel, sizeof channel, "%s%%w:0000000000000000", l->s->bk->place.prefix);
    enum bk_says says = ask(l, (const char *const[]){"PUBLISH", channel, "", NULL}, until, said, &allowed, error);
    if (says != BK_YES) return says;
    tell(l, "R11", allowed ? PAWL_LEVEL_FINE : PAWL_LEVEL_WARNING, "wake-ups", allowed ? "PUBLISH is allowed" : said,
         "who waits is not told when a lock gets free, and finds out within some seconds",
         "ACL SETUSER ... +publish +subscribe &pawl:*");
    return BK_YES;
}

/* Over a connection of its own, since listening ends all other talk; and whoever may not connect twice is told of that
 * elsewhere. */
static void look_at_channel(const struct looking *l, struct bk_until until, struct missing *m) {
    struct wire wire;
    struct watch watch = {.wire.fd = -1};
    char run_id[41];
    if (dial(l->s->bk, NULL, until, &wire, run_id, &watch, NULL) != BK_YES) return;
    rights_look_at_channel(&l->s->bk->place, &wire, until, m);
    wire_close(&wire, false);
    watch_end(&watch, false);
}

/* All that are missing at once: who gives them is often somebody else. */
static enum bk_says look_at_rights(const struct looking *l, struct bk_until until, pawl_error *error) {
    struct missing m = {.locks = false};
    char fix[440];
    enum bk_says says = rights_look(&l->s->bk->place, RIGHTS_REDIS, &l->s->wire, until, &m, error);
    if (says != BK_YES) return says;
    look_at_channel(l, until, &m);
    snprintf(fix, sizeof fix, "ACL SETUSER ... %s", m.text);
    tell(l, "R12", rights_level(&m), "rights", *m.text ? m.text : "all that locks need", rights_why(&m), fix);
    return BK_YES;
}

static void way_there(const struct looking *l) {
    const struct place *place = &l->s->bk->place;
    bool far = false;
    for (size_t i = 0; i < place->n_hosts; i++) far |= !resolve_is_loopback(place->hosts[i].host);
    tell(l, "R13", far && !place->tls ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, "encryption",
         place->tls ? "TLS, the server's certificate is verified"
         : far      ? "none, and the network is between"
                    : "none, on this machine",
         "whoever is on the way reads the password and can answer in Redis' place", "rediss://, and cacert=");
    tell(l, "R14", far && !place->password ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, "login",
         place->password ? "with a password" : "none", "whoever reaches it can remove any lock",
         "a user of its own: pawl doctor --acl");
}

/* What the sentinels of the URL are, each asked by itself: whoever only looks for the primary asks the first that
 * answer. */
struct sentinels {
    char ids[SENTINELS_MAX][48]; /* of those that tell it */
    size_t n_ids, again;         /* again: named, and one that was named before by another name */
    size_t n_silent, beside;     /* beside: on the primary's host */
    char silent[200];
};

/* One that refuses to tell who it is answers, too. */
static enum bk_says ask_sentinel(const struct place *place, struct wire *wire, struct bk_until until, char ret[48]) {
    AUTO_REPLY auth = NULL;
    AUTO_REPLY id = NULL;
    if (place->sentinel_password) greet_auth(wire, place->sentinel_user, place->sentinel_password);
    wire_words(wire, (const char *const[]){"SENTINEL", "MYID", NULL});
    enum bk_says says = wire_flush(wire, until, NULL);
    if (says == BK_YES && place->sentinel_password) says = wire_reply(wire, until, &auth, NULL);
    if (says == BK_YES) says = wire_reply(wire, until, &id, NULL);
    *ret = 0;
    if (says == BK_YES && id->type == REDIS_REPLY_STRING) snprintf(ret, 48, "%.47s", id->str);
    return says;
}

static void note_id(struct sentinels *all, const char *id) {
    if (!*id) return;
    for (size_t i = 0; i < all->n_ids; i++)
        if (strcmp(all->ids[i], id) == 0) {
            all->again++;
            return;
        }
    if (all->n_ids < SENTINELS_MAX) strcpy(all->ids[all->n_ids++], id);
}

static void look_at_sentinels(const struct looking *l, struct bk_until until, struct sentinels *all) {
    const struct place *place = &l->s->bk->place;
    char primary[64], where[64], id[48];
    resolve_peer(l->s->wire.fd, primary);
    for (size_t i = 0; i < place->n_hosts; i++) {
        struct wire wire;
        struct bk_until soon = dial_share(until, 2 * (place->n_hosts - i));
        enum bk_says says = dial_host(place, &place->hosts[i], soon, &wire, NULL);
        if (says == BK_YES) {
            resolve_peer(wire.fd, where);
            all->beside += *where && strcmp(where, primary) == 0;
            says = ask_sentinel(place, &wire, soon, id);
            wire_close(&wire, true);
        }
        if (says == BK_YES) {
            note_id(all, id);
            continue;
        }
        size_t used = strlen(all->silent);
        snprintf(all->silent + used, sizeof all->silent - used, "%s%.80s:%d",
                 all->n_silent++ ? ", " : "; silent: ", place->hosts[i].host, place->hosts[i].port);
    }
}

static void sentinels(const struct looking *l, struct bk_until until) {
    char seen[400], same[64] = "";
    struct sentinels all = {.n_ids = 0};
    size_t n = l->s->bk->place.n_hosts;
    if (!l->s->bk->place.master) return;
    look_at_sentinels(l, until, &all);
    bool few = n - all.again < 3, all_beside = all.beside == n;
    if (all.again) snprintf(same, sizeof same, ", but only %zu by their ids", n - all.again);
    snprintf(seen, sizeof seen, "the URL names %zu%s%s%s", n, same, all.silent,
             all_beside ? "; all are on the primary's host" : "");
    tell(l, "R15", few || all.again || all.n_silent || all_beside ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, "sentinels",
         seen,
         few            ? "when those are down nobody says where the primary is; two cannot outvote one that is cut off"
         : all.again    ? "one is named twice, or two have one id and count as one"
         : all.n_silent ? "one more, and there may be none that agrees to a failover, or says where the primary is"
                        : "when that host is down, nobody is left who makes a replica the primary",
         few || all.again || !all.n_silent ? "three sentinels on different machines, all of them in the URL"
                                           : "bring them back");
}

enum bk_says redis_doctor(struct bk_session *s, bk_find *find, void *data, struct bk_until until, pawl_error *error) {
    AUTO_REPLY reply = NULL;
    s->wire.verb = "looking at";
    s->wire.name = "INFO";
    wire_words(&s->wire, (const char *const[]){"INFO", NULL});
    enum bk_says says = wire_flush(&s->wire, until, error);
    if (says == BK_YES) says = wire_reply(&s->wire, until, &reply, error);
    if (says != BK_YES) return says;
    if (reply->type == REDIS_REPLY_ERROR || !reply->str)
        return verdict(&s->wire, reply->str ? reply->str : "INFO does not answer with a text", error);
    const struct looking l = {s, reply->str, find, data};
    server(&l);
    replicas(&l);
    eviction(&l);
    memory(&l);
    persistence(&l);
    clients(&l);
    way_there(&l);
    sentinels(&l, until);
    says = settings(&l, until, error);
    if (says == BK_YES) says = wake_ups(&l, until, error);
    return says == BK_YES ? look_at_rights(&l, until, error) : says;
}
