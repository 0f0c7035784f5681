/* doctor.c: is this etcd good for locks? What each endpoint of the URL says of itself and of the cluster: no question
 * here needs a right beyond those of a lock. */
#include "ask.h"
#include "clock.h"
#include "etcd.h"
#include "resolve.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ADVISED_TTL_S = 5,
    ANSWER_MS = 2000, /* for one endpoint: who needs longer is as good as down */
    MEMBERS_MAX = 32,
    TEXT = 200
};

struct looking {
    struct bk_session *s;
    bk_find *find;
    void *data;
};

/* What the endpoints said, together. */
struct health {
    uint64_t members[MEMBERS_MAX];          /* that answered */
    int n_members, n_voters;                /* n_voters: of the cluster; 0: not told */
    bool leaderless, mixed, learner, wakes; /* wakes: badly */
    uint64_t cluster;                       /* of the first that answered */
    char other[TEXT];                       /* endpoints of another one */
    char version[32], silent[TEXT], alarms[TEXT];
    int n_silent;
    pawl_error why_silent;       /* of the last one */
    char where[MEMBERS_MAX][64]; /* the host behind each endpoint */
    uint64_t who[MEMBERS_MAX];   /* the member behind each endpoint; 0: silent */
    int64_t slowest_us;
    uint64_t first_term, last_term;
};

static void tell(const struct looking *l, const char *id, int level, const char *about, const char *seen,
                 const char *why, const char *fix) {
    bool quiet = level == PAWL_LEVEL_FINE || level == PAWL_LEVEL_UNSEEN;
    struct bk_finding f = {id, level, about, seen, quiet ? "" : why, quiet ? "" : fix};
    l->find(&f, l->data);
}

static int bad(bool is, int level) { return is ? level : PAWL_LEVEL_FINE; }

static void append(char *to, const char *text) {
    size_t n = strlen(to);
    if (!strstr(to, text)) snprintf(to + n, TEXT - n, n ? ", %s" : "%s", text);
}

/* --- the endpoints --- */

static void note_alarms(struct health *h, const Pb__StatusResponse *status) {
    for (size_t i = 0; i < status->n_errors; i++) {
        if (strstr(status->errors[i], "NOSPACE")) append(h->alarms, "NOSPACE");
        else if (strstr(status->errors[i], "CORRUPT")) append(h->alarms, "CORRUPT");
        else if (strstr(status->errors[i], "no leader")) h->leaderless = true;
        else append(h->alarms, "another one");
    }
}

/* etcd-io/etcd issue 15247: a leader that was stopped, or whose disk hung, ends leases that live on. */
static bool wakes_badly(const char *version) {
    int major = 0, minor = 0, patch = 0;
    sscanf(version, "%d.%d.%d", &major, &minor, &patch);
    return major == 3 && (minor < 4 || (minor == 4 && patch < 31) || (minor == 5 && patch < 13));
}

static void note_status(struct health *h, const Pb__StatusResponse *status, const char *node, int64_t took_us) {
    int i = 0;
    if (!h->cluster) h->cluster = status->header->cluster_id;
    else if (h->cluster != status->header->cluster_id) append(h->other, node);
    h->wakes |= wakes_badly(status->version);
    while (i < h->n_members && h->members[i] != status->header->member_id) i++;
    if (i == h->n_members && i < MEMBERS_MAX) h->members[h->n_members++] = status->header->member_id;
    if (!*h->version) snprintf(h->version, sizeof h->version, "%s", status->version);
    h->mixed |= strncmp(h->version, status->version, sizeof h->version - 1) != 0;
    h->leaderless |= status->leader == 0;
    h->learner |= status->is_learner;
    if (!h->first_term) h->first_term = status->header->raft_term;
    h->last_term = status->header->raft_term;
    if (took_us > h->slowest_us) h->slowest_us = took_us;
    note_alarms(h, status);
}

/* *ret_who: the member that answered. */
static enum bk_says ask_status(struct bk_session *s, struct bk_until until, struct health *h, uint64_t *ret_who,
                               pawl_error *error) {
    Pb__StatusRequest request = PB__STATUS_REQUEST__INIT;
    struct grpc_reply reply;
    int64_t from = clock_now_ns();
    http2_doing(s->h, "asking for its state", NULL);
    enum bk_says says = call(s, "/etcdserverpb.Maintenance/Status", &request.base, until, &reply, NULL, error);
    if (says != BK_YES) return says;
    Pb__StatusResponse *status = pb__status_response__unpack(NULL, reply.size, reply.body);
    free(reply.body);
    bool fits = status && status->header;
    if (fits) {
        note_status(h, status, http2_node(s->h), (clock_now_ns() - from) / 1000);
        *ret_who = status->header->member_id;
    }
    pb__status_response__free_unpacked(status, NULL);
    return fits ? BK_YES : nonsense(s, error);
}

static void note_address(struct health *h, size_t i, const char *host, const struct http2 *way) {
    *h->where[i] = 0;
    if (way) resolve_peer(http2_fd(way), h->where[i]);
    if (!*h->where[i]) snprintf(h->where[i], sizeof h->where[i], "%.60s", host);
}

static void ask_endpoints(const struct looking *l, struct bk_until until, struct health *h) {
    struct bk *bk = l->s->bk;
    for (size_t i = 0; i < bk->place.n_hosts; i++) {
        struct bk_session s = {.bk = bk};
        uint64_t ignored;
        pawl_error error = PAWL_ERROR_INIT;
        int64_t end = clock_after_ms(clock_now_ns(), ANSWER_MS);
        struct bk_until soon = {.at_ns = end < until.at_ns ? end : until.at_ns, .cancel_fd = until.cancel_fd};
        enum bk_says says = dial_one(bk, i, soon, &s, &error);
        note_address(h, i, bk->place.hosts[i].host, says == BK_YES ? s.h : NULL);
        if (says == BK_YES) says = ask_status(&s, soon, h, i < MEMBERS_MAX ? &h->who[i] : &ignored, &error);
        if (says != BK_YES) {
            char node[160];
            snprintf(node, sizeof node, "%.120s:%d", bk->place.hosts[i].host, bk->place.hosts[i].port);
            append(h->silent, node);
            h->n_silent++;
            h->why_silent = error;
        }
        http2_close(s.h, true);
    }
}

static void ask_members(const struct looking *l, struct bk_until until, struct health *h, pawl_error *error) {
    Pb__MemberListRequest request = PB__MEMBER_LIST_REQUEST__INIT;
    struct grpc_reply reply;
    if (call(l->s, "/etcdserverpb.Cluster/MemberList", &request.base, until, &reply, NULL, error) != BK_YES) return;
    Pb__MemberListResponse *list = pb__member_list_response__unpack(NULL, reply.size, reply.body);
    free(reply.body);
    for (size_t i = 0; list && i < list->n_members; i++) h->n_voters += !list->members[i]->is_learner;
    pb__member_list_response__free_unpacked(list, NULL);
}

/* --- what follows from it --- */

static void server(const struct looking *l, const struct health *h) {
    char seen[TEXT];
    int major = 0, minor = 0;
    sscanf(h->version, "%d.%d", &major, &minor);
    bool old = major < 3 || (major == 3 && minor < 4), wakes = h->wakes;
    snprintf(seen, sizeof seen, "etcd %s%s", h->version, h->mixed ? ", and another version at other endpoints" : "");
    tell(l, "E01", bad(old || wakes || h->mixed, PAWL_LEVEL_WARNING), "version", seen,
         old     ? "pawl was never tried on it"
         : wakes ? "a leader that was stopped, or whose disk hung, may end live leases when it wakes up: their holders "
                   "lose their locks, and are told"
                 : "an upgrade that stopped half way",
         wakes ? "etcd 3.4.31, 3.5.13 or newer" : "finish the upgrade");
}

/* Locks of one do not exclude those of the other. */
static void one_cluster(const struct looking *l, const struct health *h) {
    char seen[2 * TEXT];
    if (l->s->bk->place.n_hosts < 2) return;
    snprintf(seen, sizeof seen, *h->other ? "another one at %s" : "the same at each endpoint that answers", h->other);
    tell(l, "E13", bad(*h->other, PAWL_LEVEL_UNSAFE), "cluster", seen,
         "locks of two clusters do not exclude each other: two hold the same one",
         "name the members of one cluster: etcdctl endpoint status shows who is of which");
}

static void members(const struct looking *l, struct bk_until until, struct health *h) {
    pawl_error error = PAWL_ERROR_INIT;
    char seen[TEXT];
    ask_members(l, until, h, &error);
    snprintf(seen, sizeof seen, "%d voting member%s", h->n_voters, h->n_voters == 1 ? "" : "s");
    if (!h->n_voters) tell(l, "E02", PAWL_LEVEL_UNSEEN, "members", error.text, "", "");
    else if (h->n_voters == 1)
        tell(l, "E02", PAWL_LEVEL_WARNING, "members", seen,
             "when it is down no lock can be taken or kept, and its disk is the only copy",
             "three members, or five, on different machines");
    else
        tell(l, "E02", bad(h->n_voters % 2 == 0, PAWL_LEVEL_WARNING), "members", seen,
             "an even number survives no more failures than one less, and has one more that can fail",
             "three members, or five");
}

static bool no_majority(const struct health *h) {
    return h->leaderless || h->n_members == 0 ||
           (h->n_voters && h->n_members <= h->n_voters / 2 && h->n_members + h->n_silent > h->n_voters / 2);
}

static void quorum(const struct looking *l, const struct health *h) {
    char seen[2 * TEXT];
    bool none = no_majority(h);
    size_t n = l->s->bk->place.n_hosts;
    snprintf(seen, sizeof seen, "%zu of %zu endpoints answer%s%s%s", n - (size_t)h->n_silent, n,
             h->n_silent ? "; silent: " : "", h->silent, h->leaderless ? "; no leader" : "");
    tell(l, "E03", none ? PAWL_LEVEL_UNSAFE : bad(h->n_silent > 0, PAWL_LEVEL_WARNING), "quorum", seen,
         none ? "without a majority no lock can be taken or renewed" : "one more, and there may be no majority",
         "bring them back, or replace them: etcdctl endpoint status");
}

static void endpoints(const struct looking *l, const struct health *h) {
    char seen[TEXT];
    int named = h->n_members + h->n_silent; /* one that is named twice is one */
    if (!h->n_voters) return;
    snprintf(seen, sizeof seen, "the URL names %d, the cluster has %d%s", named, h->n_voters,
             h->learner ? "; one of them does not vote" : "");
    tell(l, "E04", bad(named < h->n_voters || h->learner, PAWL_LEVEL_WARNING), "endpoints", seen,
         h->learner ? "a member that does not vote serves no locks"
                    : "when those that are named are down, the others are not found, and the lock is lost",
         "name every voting member: etcd://e1,e2,e3");
}

static bool one_member(const struct health *h, int i, int j) { return h->who[i] && h->who[i] == h->who[j]; }
static bool one_host(const struct health *h, int i, int j) {
    return one_member(h, i, j) || strcmp(h->where[i], h->where[j]) == 0;
}

/* How many endpoints, at the most, are alike; *ret_at: one of them. */
static int most_alike(const struct health *h, int n, bool (*alike)(const struct health *, int, int), int *ret_at) {
    int most = 0;
    for (int i = 0; i < n; i++) {
        int same = 0;
        for (int j = 0; j < n; j++) same += i == j || alike(h, i, j);
        if (same > most) most = same, *ret_at = i;
    }
    return most;
}

/* Only you know about power and racks; a member that is named twice, and a host that endpoints have in common, are
 * known here. */
static void independence(const struct looking *l, const struct health *h) {
    char seen[TEXT];
    int at = 0, n = (int)l->s->bk->place.n_hosts;
    if (n > MEMBERS_MAX) n = MEMBERS_MAX;
    if (n < 2) return;
    int twice = most_alike(h, n, one_member, &at), most = most_alike(h, n, one_host, &at);
    if (twice == most && most > 1) snprintf(seen, sizeof seen, "%d of %d endpoints are one member", most, n);
    else if (most > 1)
        snprintf(seen, sizeof seen, "%d of %d endpoints are %s %s", most, n,
                 strcmp(h->where[at], THIS_MACHINE) == 0 ? "on" : "at", h->where[at]);
    else snprintf(seen, sizeof seen, "%d of %d endpoints at each address", most, n);
    tell(l, "E12", bad(most > 1, PAWL_LEVEL_WARNING), "independence", seen,
         most > (n - 1) / 2 ? "one host down, and there is no majority: one member is as good" : "they fail together",
         "a host of its own for each member, and each named once");
}

static void alarms(const struct looking *l, const struct health *h) {
    tell(l, "E05", bad(*h->alarms, PAWL_LEVEL_UNSAFE), "alarms", *h->alarms ? h->alarms : "none",
         strstr(h->alarms, "CORRUPT") ? "a member's data differs from the others'" : "no new lock can be taken",
         strstr(h->alarms, "CORRUPT") ? "replace that member" : "compact, defragment, then etcdctl alarm disarm");
}

/* What could not be asked is no reason to keep the rest back. */
static void unseen(const struct looking *l, const char *id, const char *about, const pawl_error *error) {
    tell(l, id, PAWL_LEVEL_UNSEEN, about, error->text, "", "");
}

/* What grants may not carry renewals: a grpc-proxy does not. */
static void renewal(const struct looking *l, struct bk_life *life, struct bk_until until) {
    struct bk_life *const one[] = {life};
    enum bk_says each = BK_UNKNOWN;
    int64_t left_ms;
    pawl_error error = PAWL_ERROR_INIT;
    bool renewed = lease_renew(l->s, one, 1, until, &each, &left_ms, &error) == BK_YES && each == BK_YES;
    tell(l, "E14", bad(!renewed, PAWL_LEVEL_UNSAFE), "renewal",
         renewed       ? "a lease was renewed"
         : *error.text ? error.text
                       : "a lease was gone as soon as it was made",
         "whatever is taken here is lost when its ttl is over",
         "name the members themselves; an etcd grpc-proxy carries no renewals of ours");
}

static void least_ttl(const struct looking *l, struct bk_until until) {
    char seen[TEXT];
    int64_t left_ms = 0, wanted_ms = l->s->bk->ttl_ms;
    struct bk_life life = {.ttl_ms = 1000};
    pawl_error error = PAWL_ERROR_INIT;
    enum bk_says says = lease_begin(l->s, &life, until, &left_ms, &error);
    if (says == BK_YES) renewal(l, &life, until);
    if (says == BK_YES) lease_end(l->s, &life, until, NULL);
    lease_free(&life);
    if (says != BK_YES) {
        unseen(l, "E06", "ttl", &error);
        return;
    }
    bool raised = wanted_ms && wanted_ms < left_ms, brief = wanted_ms && wanted_ms < ADVISED_TTL_S * 1000;
    snprintf(seen, sizeof seen, "%" PRId64 " ms; this cluster keeps a lease for %" PRId64 " s at the least", wanted_ms,
             left_ms / 1000);
    tell(l, "E06", bad(raised || brief, PAWL_LEVEL_WARNING), "ttl", seen,
         raised ? "the ttl is raised to that: a dead holder keeps the lock for longer than you said"
                : "a change of leader takes 2 to 3 s, in which nothing is renewed: the lock may be lost",
         raised ? "a shorter --election-timeout, or a ttl that says what is true" : "a ttl of 5 s or more");
}

/* How often leaders changed in the past is told to nobody without the metrics of the members; what is seen is a change
 * between the first question and the last. */
static void leader(const struct looking *l, struct bk_until until, const struct health *h) {
    char seen[TEXT];
    struct health again = {0};
    uint64_t who;
    pawl_error error = PAWL_ERROR_INIT;
    if (ask_status(l->s, until, &again, &who, &error) != BK_YES || !h->first_term) {
        unseen(l, "E07", "leader", &error);
        return;
    }
    if (no_majority(h) || again.leaderless) {
        tell(l, "E07", PAWL_LEVEL_UNSAFE, "leader", "none that a majority follows", "nothing can be taken or renewed",
             "bring the members back (E03)");
        return;
    }
    uint64_t elections = again.last_term > h->first_term ? again.last_term - h->first_term : 0;
    snprintf(seen, sizeof seen, "term %" PRIu64 ", %" PRIu64 " elections while we looked", again.last_term, elections);
    tell(l, "E07", bad(elections > 0, PAWL_LEVEL_WARNING), "leader", seen,
         "it changes often, to be seen so: in each election nothing is renewed for 1 to 3 s",
         "slow disks or a slow network: etcd_disk_wal_fsync_duration_seconds; a longer --election-timeout");
}

/* --- the way there --- */

/* Whether nothing is told to who does not log in. */
static bool wants_login(const struct looking *l, struct bk_until until) {
    AUTO_TXN found = NULL;
    char base[PREFIX_MAX + 16];
    struct asking a;
    pawl_error error = PAWL_ERROR_INIT;
    if (l->s->bk->place.user || l->s->bk->place.tls_options.cert) return false;
    base_key(&l->s->bk->place, base);
    ask_begin(&a);
    ask_if(&a, base, NULL, 0);
    ask_range(&a, true, base, NULL, 0);
    return txn(l->s, &a.txn, until, &found, &error) != BK_YES && error.code == PAWL_EDENIED;
}

static void access_to(const struct looking *l, struct bk_until until) {
    const struct place *place = &l->s->bk->place;
    const char *far = NULL;
    for (size_t i = 0; i < place->n_hosts; i++)
        if (!resolve_is_loopback(place->hosts[i].host)) far = place->hosts[i].host;
    char seen[TEXT];
    snprintf(seen, sizeof seen, "none, and the network is between: %.120s", far ? far : "");
    tell(l, "E09", bad(far && !place->tls, PAWL_LEVEL_WARNING), "encryption",
         place->tls ? "TLS, the server's certificate is verified"
         : far      ? seen
                    : "none, on this machine",
         "whoever is on the way reads the password and can answer in etcd's place", "etcds://, and cacert=");
    if (wants_login(l, until)) {
        tell(l, "E10", PAWL_LEVEL_UNSAFE, "login", "none, and it wants one", "it tells and gives nothing without",
             "etcd://user:password@host, or a client certificate");
        return;
    }
    bool idle = place->user && !*l->s->token, open = !place->user && !place->tls_options.cert && far;
    tell(l, "E10", bad(idle || open, PAWL_LEVEL_WARNING), "login",
         *l->s->token  ? "as a user of etcd's"
         : idle        ? "a user is given, but authentication is not enabled there"
         : place->user ? "not needed"
                       : "none",
         "whoever reaches it can remove any lock", "etcdctl auth enable, with the role of pawl doctor --acl");
}

static void tokens(const struct looking *l) {
    bool bare = l->s->bk->place.bare;
    tell(l, "E08", bad(bare, PAWL_LEVEL_WARNING), "numbers", bare ? "token=revision" : "revisions, raised by a base",
         "after a restored snapshot, or in a new cluster, tokens fall below those that guards have seen",
         "without token=revision; or reset the guards after a restore");
}

enum bk_says look_doctor(struct bk_session *s, bk_find *find, void *data, struct bk_until until, pawl_error *error) {
    const struct looking l = {s, find, data};
    struct health h = {.why_silent = PAWL_ERROR_INIT};
    http2_doing(s->h, "looking at the service", NULL);
    ask_endpoints(&l, until, &h);
    if (h.n_members == 0) { /* what nobody was asked is neither well nor not */
        quorum(&l, &h);
        error_copy(error, &h.why_silent);
        return BK_FAULT;
    }
    server(&l, &h);
    members(&l, until, &h);
    one_cluster(&l, &h);
    quorum(&l, &h);
    endpoints(&l, &h);
    independence(&l, &h);
    alarms(&l, &h);
    least_ttl(&l, until);
    leader(&l, until, &h);
    tokens(&l);
    access_to(&l, until);
    char seen[TEXT];
    int64_t ttl_ms = s->bk->ttl_ms ? s->bk->ttl_ms : 15000;
    snprintf(seen, sizeof seen, "the slowest endpoint took %" PRId64 " ms", h.slowest_us / 1000);
    tell(&l, "E11", bad(h.slowest_us / 1000 > ttl_ms / 20, PAWL_LEVEL_WARNING), "latency", seen,
         "that is much of the ttl: a slow moment may lose a lock that is held",
         "a longer ttl, or members that are nearer");
    return BK_YES;
}
