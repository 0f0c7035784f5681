/* doctor.c: are these instances good for locks, and each by itself? What INFO says, a right that locks need anyhow, and
 * what each keeps (seed.lua). One instance after the other, then what only all together show. */
#include "clock.h"
#include "pawl.h"
#include "redis/rights.h"
#include "redlock.h"
#include "resolve.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MS 2000 /* for the last instance */
#define SKEW_MS 1000
#define LONG_TTL_MS (10 * 60 * 1000)

struct looking {
    struct bk_session *s;
    bk_find *find;
    void *data;
    redisReply *info[PEERS_MAX]; /* NULL: it did not answer */
    struct looked looked[PEERS_MAX];
    char where[PEERS_MAX][64]; /* the address behind the name */
};

static void tell(const struct looking *l, const char *id, int level, const char *about, const char *seen,
                 const char *why, const char *fix) {
    bool fine = level == PAWL_LEVEL_FINE || level == PAWL_LEVEL_UNSEEN;
    struct bk_finding f = {id, level, about, seen, fine ? "" : why, fine ? "" : fix};
    l->find(&f, l->data);
}

/* "key:value" of INFO; "" if it is not there. */
static const char *info(const struct looking *l, int i, const char *key, char ret[96]) {
    size_t n = strlen(key);
    *ret = 0;
    for (const char *at = strstr(l->info[i]->str, key); at; at = strstr(at + 1, key))
        if ((at == l->info[i]->str || at[-1] == '\n') && at[n] == ':') {
            snprintf(ret, 96, "%.*s", (int)strcspn(at + n + 1, "\r\n"), at + n + 1);
            break;
        }
    return ret;
}

static long long number(const struct looking *l, int i, const char *key) {
    char text[96];
    return atoll(info(l, i, key, text));
}

/* Of what is left, for one of so many questions: an instance that is silent may use it up. */
static struct bk_until share(struct bk_until until, int questions) {
    int64_t now = clock_now_ns();
    if (until.at_ns > now) until.at_ns = now + (until.at_ns - now) / questions;
    return until;
}

/* A plain command at all of them; each that answers well has a reply then. */
static void ask_all(struct bk_session *s, const char *const words[], struct bk_until until,
                    redisReply *ret[PEERS_MAX]) {
    struct question q = {.args.n = 0};
    redisReply *reply;
    int i;
    int64_t latest_ns = clock_after_ms(clock_now_ns(), PATIENCE_MS);
    if (until.at_ns > latest_ns) until.at_ns = latest_ns;
    memset(ret, 0, PEERS_MAX * sizeof *ret);
    for (; *words; words++) arg_text(&q.args, *words);
    round_start(s, &q, everybody(s), PATIENCE_MS, until);
    s->enough = s->bk->n;
    while (round_next(s, &i, &reply) == BK_YES) ret[i] = reply;
}

static void let_go(redisReply *replies[PEERS_MAX]) {
    for (int i = 0; i < PEERS_MAX; i++)
        if (replies[i]) freeReplyObject(replies[i]);
}

/* --- one instance --- */

/* Whether it answers, and votes. */
static void instance(const struct looking *l, int i) {
    const struct peer *p = &l->s->peers[i];
    char about[160], seen[480], version[96], when[48];
    snprintf(about, sizeof about, "instance %s", p->node);
    if (!l->info[i] || !l->looked[i].came) {
        const char *why = p->why.code ? p->why.text : "does not answer";
        size_t n = strlen(p->node);
        if (strncmp(why, p->node, n) == 0 && strncmp(why + n, ": ", 2) == 0) why += n + 2;
        tell(l, "L01", PAWL_LEVEL_WARNING, about, why, "the others have to agree without it",
             "see what became of it; the next finding says how many more can be lost");
        return;
    }
    snprintf(seen, sizeof seen, "Redis %.40s, run id %.8s, %s", info(l, i, "redis_version", version),
             p->greeting.run_id,
             p->lost       ? p->empty ? "has nothing and does not vote" : "was restarted or promoted and does not vote"
             : p->ready_ns ? peer_ready_text(p, when)
                           : "votes");
    int lost = 0;
    for (int j = 0; j < l->s->bk->n; j++) lost += l->looked[j].came && l->s->peers[j].lost;
    if (p->lost)
        tell(l, "L01", PAWL_LEVEL_WARNING, about, seen, "it lost its memory, or is another process than the admitted",
             lost > l->s->bk->n - l->s->bk->quorum
                 ? "no quorum knows the numbers any more: pawl init URL --floor N, the highest that any resource saw"
                 : "whoever takes a lock next gives it its numbers; at once: pawl init URL");
    else
        tell(l, "L01", p->ready_ns ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, about, seen,
             "it came back without its memory; somebody may hold a lock that it has forgotten, until the longest ttl "
             "has passed",
             "wait; appendonly yes, appendfsync always and durable=yes spare that");
}

static void replicas(const struct looking *l, int i) {
    char about[160], seen[96];
    long long n = number(l, i, "connected_slaves");
    snprintf(about, sizeof about, "replicas of %s", l->s->peers[i].node);
    snprintf(seen, sizeof seen, "%lld replicas", n);
    tell(l, "L02", n ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, about, seen,
         "a replica that is promoted may lack what was granted; it would not vote, as one that lost its memory",
         "instances of redlock are independent: no replicas, no failover");
}

static void eviction(const struct looking *l, int i) {
    char about[160], policy[96], seen[160];
    long long most = number(l, i, "maxmemory"), used = number(l, i, "used_memory");
    bool known = *info(l, i, "maxmemory_policy", policy), evicts = known && strcmp(policy, "noeviction") != 0;
    snprintf(about, sizeof about, "eviction at %s", l->s->peers[i].node);
    snprintf(seen, sizeof seen, "maxmemory %lld, policy %.60s", most, known ? policy : "unknown");
    tell(l, "L03",
         !known    ? PAWL_LEVEL_UNSEEN
         : !evicts ? PAWL_LEVEL_FINE
         : most    ? PAWL_LEVEL_UNSAFE
                   : PAWL_LEVEL_WARNING,
         about, seen,
         most ? "when memory is full it may remove locks that are held, or its vote"
              : "once maxmemory is set, it may remove locks that are held, or its vote",
         "CONFIG SET maxmemory-policy noeviction, or an instance of its own");
    snprintf(about, sizeof about, "memory of %s", l->s->peers[i].node);
    if (most) snprintf(seen, sizeof seen, "%lld bytes are used, maxmemory is %lld", used, most);
    else snprintf(seen, sizeof seen, "no limit is set");
    tell(l, "L04", most && used * 100 / most >= 90 ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, about, seen,
         "a full Redis grants no new lock", "raise maxmemory, or give locks an instance of their own");
}

/* sync: what CONFIG says of appendfsync; NULL or an error: it may not be seen. */
static void persistence(const struct looking *l, int i, const redisReply *sync) {
    char about[160], seen[200], status[96];
    bool durable = l->s->bk->durable, aof = number(l, i, "aof_enabled") != 0;
    const char *how = sync && sync->type == REDIS_REPLY_ARRAY && sync->elements > 1 ? sync->element[1]->str : NULL;
    bool kept = aof && how && strcmp(how, "always") == 0;
    snprintf(about, sizeof about, "persistence of %s", l->s->peers[i].node);
    snprintf(seen, sizeof seen, "appendonly %s, appendfsync %.20s, durable=%s", aof ? "yes" : "no",
             how ? how : "not to be seen", durable ? "yes" : "no");
    if (durable)
        tell(
            l, "L05",
            kept          ? PAWL_LEVEL_FINE
            : aof && !how ? PAWL_LEVEL_UNSEEN
                          : PAWL_LEVEL_UNSAFE,
            about, seen,
            "the url says that a restart loses nothing, so that this instance is believed after one: tokens may repeat",
            "CONFIG SET appendonly yes, appendfsync always; or leave durable=yes out");
    else tell(l, "L05", PAWL_LEVEL_FINE, about, seen, "", "");
    bool bad = strcmp(info(l, i, "rdb_last_bgsave_status", status), "err") == 0 ||
               strcmp(info(l, i, "aof_last_write_status", status), "err") == 0;
    snprintf(about, sizeof about, "last write to disk of %s", l->s->peers[i].node);
    tell(l, "L06", bad ? PAWL_LEVEL_UNSAFE : PAWL_LEVEL_FINE, about, bad ? "it failed" : "well",
         "Redis refuses every write while it cannot save (MISCONF)", "see its log: disk full, or no rights");
}

/* Over a session of its own, which listens in the end. */
static void rights(const struct looking *l, struct bk_until until) {
    struct bk_session *own;
    char about[160], fix[440];
    if (redlock_connect(l->s->bk, share(until, 2), &own, NULL) != BK_YES) return; /* that is told elsewhere */
    for (int i = 0; i < l->s->bk->n; i++) {
        struct peer *p = &own->peers[i];
        struct missing m = {.locks = false};
        if (p->state != PEER_READY || !l->info[i]) continue;
        struct bk_until each = share(until, l->s->bk->n - i + 1);
        if (rights_look(p->place, RIGHTS_REDLOCK, &p->wire, each, &m, NULL) != BK_YES) continue;
        rights_look_at_channel(p->place, &p->wire, each, &m);
        snprintf(about, sizeof about, "rights at %s", p->node);
        snprintf(fix, sizeof fix, "ACL SETUSER ... %s", m.text);
        tell(l, "L11", rights_level(&m), about, *m.text ? m.text : "all that locks need", rights_why(&m), fix);
    }
    redlock_drop(own, false);
}

/* --- all together --- */

static void quorum(const struct looking *l) {
    const struct bk *bk = l->s->bk;
    char seen[160];
    int votes = 0;
    for (int i = 0; i < bk->n; i++) votes += l->looked[i].came && !l->s->peers[i].lost && !l->s->peers[i].ready_ns;
    snprintf(seen, sizeof seen, "%d of %d instances vote, %d are needed", votes, bk->n, bk->quorum);
    tell(l, "L07",
         votes < bk->quorum    ? PAWL_LEVEL_UNSAFE
         : votes == bk->quorum ? PAWL_LEVEL_WARNING
                               : PAWL_LEVEL_FINE,
         "quorum", seen, votes < bk->quorum ? "no lock can be taken or kept" : "no more can be lost",
         "bring the others back; where a quorum lost its memory: pawl init URL --floor N");
}

static void addresses(struct looking *l) {
    for (int i = 0; i < l->s->bk->n; i++) {
        const struct peer *p = &l->s->peers[i];
        *l->where[i] = 0;
        if (p->wire.fd >= 0) resolve_peer(p->wire.fd, l->where[i]);
        if (!*l->where[i]) snprintf(l->where[i], sizeof l->where[i], "%.60s", p->host->host);
    }
}

/* Only you know about power and racks; an address that two have in common is known here. */
static void independence(const struct looking *l) {
    const struct bk *bk = l->s->bk;
    char seen[160];
    int most = 0, at = 0;
    for (int i = 0; i < bk->n; i++) {
        int same = 0;
        for (int j = 0; j < bk->n; j++) same += strcmp(l->where[i], l->where[j]) == 0;
        if (same > most) most = same, at = i;
    }
    snprintf(seen, sizeof seen,
             most == 1                                 ? "%d of %d instances at each address"
             : strcmp(l->where[at], THIS_MACHINE) == 0 ? "%d of %d instances are on %s"
                                                       : "%d of %d instances are at %s",
             most, bk->n, l->where[at]);
    /* No less than one Redis alone, so no worse a verdict: it stands still, and refuses once its memory is lost. */
    tell(l, "L08", most == 1 ? PAWL_LEVEL_FINE : PAWL_LEVEL_WARNING, "independence", seen,
         most > bk->n - bk->quorum ? "one host down, or restarted, and there is no quorum: one redis: is as good"
                                   : "they fail together",
         "a host of its own for each instance");
}

/* Each against ours, which is somewhere between asked and heard: they are at least so far apart. */
static void clocks(const struct looking *l) {
    char seen[200];
    int64_t most = INT64_MIN, least = INT64_MAX;
    int slow = 0, fast = 0;
    for (int i = 0; i < l->s->bk->n; i++) {
        const struct looked *a = &l->looked[i];
        if (!a->came) continue;
        if (a->clock_us - a->heard_us > most) most = a->clock_us - a->heard_us, fast = i;
        if (a->clock_us - a->asked_us < least) least = a->clock_us - a->asked_us, slow = i;
    }
    if (least == INT64_MAX) return;
    int64_t ms = most > least ? (most - least) / 1000 : 0;
    snprintf(seen, sizeof seen, "%lld ms apart%s%.60s%s%.60s", (long long)ms, ms > SKEW_MS ? ": " : "",
             ms > SKEW_MS ? l->s->peers[fast].node : "", ms > SKEW_MS ? " is ahead of " : "",
             ms > SKEW_MS ? l->s->peers[slow].node : "");
    tell(l, "L09", ms > SKEW_MS ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, "clocks of the instances", seen,
         "when one is set right by a step, its locks end early or late",
         "let all follow a time server that slews (chrony, systemd-timesyncd)");
}

static void longest_ttl(const struct looking *l) {
    char seen[200];
    uint64_t ms = 0;
    for (int i = 0; i < l->s->bk->n; i++)
        if (l->looked[i].came && l->looked[i].ttl_ms > ms) ms = l->looked[i].ttl_ms;
    snprintf(seen, sizeof seen, "the longest of today and yesterday is %llu s", (unsigned long long)(ms + 999) / 1000);
    tell(l, "L10", ms > LONG_TTL_MS ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, "ttl", seen,
         "for so long an instance that comes back empty does not vote",
         "shorter ttls: locks are renewed while they are held");
}

enum bk_says redlock_doctor(struct bk_session *s, bk_find *find, void *data, struct bk_until until, pawl_error *error) {
    struct looking l = {.s = s, .find = find, .data = data};
    redisReply *sync[PEERS_MAX];
    int n = 0;
    s->verb = "looking at the instances";
    s->name = "";
    ask_all(s, (const char *const[]){"CONFIG", "GET", "appendfsync", NULL}, share(until, 3), sync);
    ask_all(s, (const char *const[]){"INFO", NULL}, share(until, 2), l.info);
    seed_look(s, until, l.looked);
    addresses(&l);
    for (int i = 0; i < s->bk->n; i++) {
        if (l.info[i] && (l.info[i]->type == REDIS_REPLY_ERROR || !l.info[i]->str)) {
            round_verdict(s, i, l.info[i]);
            freeReplyObject(l.info[i]);
            l.info[i] = NULL;
        }
        n += l.info[i] != NULL;
        instance(&l, i);
        if (!l.info[i]) continue;
        replicas(&l, i);
        eviction(&l, i);
        persistence(&l, i, sync[i]);
    }
    quorum(&l);
    independence(&l);
    clocks(&l);
    longest_ttl(&l);
    rights(&l, until);
    let_go(sync);
    let_go(l.info);
    if (n == 0 && !round_cut(s, error)) round_no_quorum(s, 0, error);
    return n ? BK_YES : BK_UNKNOWN;
}
