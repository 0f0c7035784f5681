#include "redlock.h"
#include "clock.h"
#include "module.h"
#include "random.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 48      /* lives in one renewal script */
#define CONNECT_MS 50 /* once a quorum is there, the others have so long to come */
_Static_assert(3 + 1 + 2 * BATCH + 1 + 3 * BATCH <= WIRE_ARGS, "script; meta, keys, id and arguments of each life");

/* --- texts --- */

void names_of(const struct bk *bk, const struct bk_claim *c, struct names *ret) {
    size_t kind = bk->place.prefix_length + 1;
    place_keys(&bk->place, c->name, c->name_len, &ret->keys);
    ret->keys.queue[kind] = 'l';
    memcpy(ret->counter, ret->keys.queue, ret->keys.queue_length);
    memcpy(ret->turn, ret->keys.queue, ret->keys.queue_length);
    ret->counter[kind] = 'c';
    ret->turn[kind] = 't';
}

void attempt_text(const struct bk *bk, const unsigned char owner[16], unsigned k, char ret[OWNER_CHARS + 1]) {
    unsigned char value[16];
    memcpy(value, owner, 16);
    unsigned last = ((unsigned)value[14] << 8 | value[15]) + k;
    value[14] = (unsigned char)(last >> 8);
    value[15] = (unsigned char)last;
    memcpy(ret, bk->client_id, 16);
    random_hex(value, 16, ret + 16);
}

/* --- release and undo --- */

struct tally { /* of one lock */
    int yes, no;
};

/* RELEASE of one lock at all instances; not waited for longer than it takes to be sure. Where a connection broke before
 * the answer came, it is asked once more, and "not ours" says nothing then: it may be so since the first time. */
static enum bk_says release_one(struct bk_session *s, const struct bk_claim *c, const char *value, size_t length,
                                const char *most, bool undo, struct bk_until until, pawl_error *error) {
    struct bk *bk = s->bk;
    struct question q = {.script = &script_release, .keys = 3, .args.n = 3};
    struct names names;
    struct tally t = {0, 0};
    char channel[PREFIX_MAX + 8], member[OWNER_CHARS + ABOUT_SIZE];
    int i;
    s->name = c->name;
    names_of(bk, c, &names);
    attempt_text(bk, c->owner, 0, member);
    snprintf(member + OWNER_CHARS, sizeof member - OWNER_CHARS, "%s", c->about ? c->about : "");
    snprintf(channel, sizeof channel, "%s%%w:", bk->place.prefix);
    arg(&q.args, names.keys.lock, names.keys.lock_length);
    arg(&q.args, names.keys.queue, names.keys.queue_length);
    arg(&q.args, names.turn, names.keys.queue_length);
    arg(&q.args, value, length);
    arg_text(&q.args, most);
    arg_text(&q.args, channel);
    if (undo || claim_came_ms(c)) arg_text(&q.args, member); /* it may wait somewhere still */
    round_start(s, &q, everybody(s), c->ttl_ms, until);
    /* An undo goes to all that can be reached; a release is over when a quorum said so. */
    for (redisReply *reply;
         (undo || (t.yes < bk->quorum && t.no <= bk->n - bk->quorum)) && round_next(s, &i, &reply) == BK_YES;
         freeReplyObject(reply)) {
        if (reply->type != REDIS_REPLY_INTEGER) round_verdict(s, i, reply);
        else if (reply->integer) t.yes++;
        else if (undo || !(s->again >> i & 1)) t.no++;
        else
            error_set(&s->peers[i].why, PAWL_EUNREACHABLE, s->peers[i].node, "%s: its answer was lost",
                      s->peers[i].node);
    }
    if (t.yes >= bk->quorum || (undo && t.yes && t.yes + t.no >= bk->quorum)) return BK_YES;
    if (t.no > bk->n - bk->quorum) return BK_NO;
    if (!round_cut(s, error)) round_no_quorum(s, t.yes + t.no, error);
    return BK_UNKNOWN;
}

static enum bk_says redlock_forget(struct bk_session *s, struct bk_claim *c, struct bk_until until, pawl_error *error) {
    char base[OWNER_CHARS + 1];
    s->verb = "giving up";
    attempt_text(s->bk, c->owner, 0, base);
    return release_one(s, c, base, BASE_CHARS, "", true, until, error);
}

static enum bk_says redlock_release(struct bk_session *s, struct bk_grant *const g[], int n, struct bk_until until,
                                    enum bk_says ret[], pawl_error *error) {
    enum bk_says says = BK_YES;
    s->verb = "releasing";
    for (int i = 0; i < n; i++) {
        char most[24], value[OWNER_CHARS + 1];
        const struct grant *of = g[i]->of;
        snprintf(most, sizeof most, "%llu", (unsigned long long)g[i]->token);
        attempt_text(s->bk, g[i]->claim->owner, claim_attempt(g[i]->claim), value);
        ret[i] = says == BK_YES
                     ? release_one(s, g[i]->claim, of ? of->value : value, OWNER_CHARS, most, false, until, error)
                     : BK_UNKNOWN;
        if (ret[i] > BK_NO) says = ret[i];
    }
    return says;
}

/* --- renew and prove --- */

struct renewal { /* texts of one lock in a batch */
    struct names names;
    char value[OWNER_CHARS + 1], most[24], ttl[24];
};

static void renewal_of(const struct bk *bk, const struct bk_grant *g, int64_t ttl_ms, struct renewal *ret) {
    const struct grant *of = g->of;
    names_of(bk, g->claim, &ret->names);
    if (of) memcpy(ret->value, of->value, sizeof ret->value);
    else attempt_text(bk, g->claim->owner, claim_attempt(g->claim), ret->value);
    snprintf(ret->most, sizeof ret->most, "%llu", (unsigned long long)g->token);
    snprintf(ret->ttl, sizeof ret->ttl, "%lld", (long long)ttl_ms);
}

static bool decided(const struct bk *bk, const struct tally t[], int n) {
    for (int i = 0; i < n; i++)
        if (t[i].yes < bk->quorum && t[i].no <= bk->n - bk->quorum) return false;
    return true;
}

/* One round, in whatever epoch each instance is: no number is given in it. One that lost its memory says no. */
static void renew_round(struct bk_session *s, struct bk_life *const lives[], int n, struct renewal texts[],
                        struct bk_until until, struct tally t[]) {
    struct question q = {.script = &script_seal, .keys = 1 + 2 * n, .args.n = 3};
    char meta[PREFIX_MAX + 8];
    int i;
    snprintf(meta, sizeof meta, "%s%%r", s->bk->place.prefix);
    arg_text(&q.args, meta);
    for (i = 0; i < n; i++) {
        renewal_of(s->bk, lives[i]->grant, lives[i]->ttl_ms, &texts[i]);
        arg(&q.args, texts[i].names.keys.lock, texts[i].names.keys.lock_length);
        arg(&q.args, texts[i].names.counter, texts[i].names.keys.queue_length);
    }
    arg(&q.args, "", 0);
    for (i = 0; i < n; i++) {
        arg_text(&q.args, texts[i].value);
        arg_text(&q.args, texts[i].ttl);
        arg_text(&q.args, texts[i].most);
    }
    round_start(s, &q, everybody(s), lives[0]->ttl_ms, until);
    for (redisReply *reply; !decided(s->bk, t, n) && round_next(s, &i, &reply) == BK_YES; freeReplyObject(reply)) {
        bool newer = false, abstains = round_abstains(s, i, reply, &newer);
        bool fine = reply->type == REDIS_REPLY_STRING && reply->len == (size_t)n + 1 && reply->str[0] == 'S';
        if (!abstains && !fine) round_verdict(s, i, reply);
        for (int j = 0; j < n && (abstains || fine); j++) fine && reply->str[j + 1] == '1' ? t[j].yes++ : t[j].no++;
        if (fine && n == 1 && reply->str[1] != '1')
            error_set(&s->peers[i].why, PAWL_ELOST, s->peers[i].node, "%s: does not have it", s->peers[i].node);
    }
}

static enum bk_says redlock_renew(struct bk_session *s, struct bk_life *const lives[], int n, struct bk_until until,
                                  enum bk_says ret[], int64_t ret_left_ms[], pawl_error *error) {
    struct renewal *texts = malloc((size_t)(n < BATCH ? n : BATCH) * sizeof *texts);
    if (!texts) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    s->verb = n == 1 ? "renewing" : "renewing locks, among them";
    for (int from = 0, many; from < n; from += many) {
        struct tally t[BATCH] = {{0, 0}};
        many = n - from < BATCH ? n - from : BATCH;
        s->name = lives[from]->grant->claim->name;
        renew_round(s, lives + from, many, texts, until, t);
        for (int i = 0; i < many; i++) {
            ret[from + i] = t[i].yes >= s->bk->quorum            ? BK_YES
                            : t[i].no > s->bk->n - s->bk->quorum ? BK_NO
                                                                 : BK_UNKNOWN;
            ret_left_ms[from + i] = ret[from + i] == BK_YES ? lives[from + i]->ttl_ms : 0;
            if (ret[from + i] == BK_UNKNOWN) round_no_quorum(s, t[i].yes + t[i].no, error);
        }
    }
    free(texts);
    return BK_YES;
}

/* A glance: SEAL would say it, but changes the ttl. */
static enum bk_says redlock_prove(struct bk_session *s, const struct bk_grant *g, struct bk_until until,
                                  pawl_error *error) {
    struct question q = {.script = &script_prove, .keys = 2, .args.n = 3};
    struct renewal r;
    struct tally t = {0, 0};
    char meta[PREFIX_MAX + 8];
    int i;
    s->verb = "proving";
    s->name = g->claim->name;
    snprintf(meta, sizeof meta, "%s%%r", s->bk->place.prefix);
    renewal_of(s->bk, g, g->claim->ttl_ms, &r);
    arg_text(&q.args, meta);
    arg(&q.args, r.names.keys.lock, r.names.keys.lock_length);
    arg_text(&q.args, r.value);
    arg_text(&q.args, r.most);
    round_start(s, &q, everybody(s), g->claim->ttl_ms, until);
    for (redisReply *reply; !decided(s->bk, &t, 1) && round_next(s, &i, &reply) == BK_YES; freeReplyObject(reply)) {
        bool newer = false, abstains = round_abstains(s, i, reply, &newer);
        if (reply->type == REDIS_REPLY_STRING) abstains || strcmp(reply->str, "S1") ? t.no++ : t.yes++;
        else round_verdict(s, i, reply);
    }
    if (t.yes >= s->bk->quorum) return BK_YES;
    if (t.no > s->bk->n - s->bk->quorum) return BK_NO;
    if (!round_cut(s, error)) round_no_quorum(s, t.yes + t.no, error);
    return BK_UNKNOWN;
}

static void redlock_end(struct bk_grant *g, bool forked) {
    (void)forked;
    free(g->of);
    g->of = NULL;
}

/* --- sessions --- */

void redlock_drop(struct bk_session *s, bool forked) {
    for (int i = 0; i < s->bk->n; i++) peer_close(&s->peers[i], forked);
    free(s);
}

/* Until all are connected or known not to be; once a quorum is, the others have not much longer. */
static void connect_all(struct bk_session *s, struct bk_until until) {
    struct bk *bk = s->bk;
    int64_t soft_ns = INT64_MAX;
    for (int i = 0; i < bk->n; i++) peer_dial(&s->peers[i], until);
    for (;;) {
        struct pollfd fds[PEERS_MAX + 1];
        int ready = 0, slow = 0, empty = 0;
        nfds_t n = 0;
        for (int i = 0; i < bk->n; i++) {
            struct peer *p = &s->peers[i];
            peer_step(p, until);
            ready += p->state == PEER_READY;
            empty += p->state == PEER_READY && p->empty;
            if (!peer_comes(p)) continue;
            slow += atomic_load(&bk->slow[i]);
            fds[n].fd = peer_fd(p, &fds[n].events);
            n++;
        }
        int64_t now = clock_now_ns();
        bool first_start = ready >= bk->quorum && empty == ready;
        if (ready >= bk->quorum && soft_ns == INT64_MAX)
            soft_ns = clock_after_ms(now, first_start ? BEGIN_MS : bk->timeout_ms ? bk->timeout_ms : CONNECT_MS);
        int64_t at_ns = soft_ns < until.at_ns ? soft_ns : until.at_ns;
        if (n == 0 || now >= at_ns || (ready >= bk->quorum && slow == (int)n && !first_start)) break;
        fds[n] = (struct pollfd){.fd = until.cancel_fd, .events = POLLIN};
        if (poll(fds, n + 1, clock_poll_ms(now, at_ns)) > 0 && fds[n].revents) break;
    }
    for (int i = 0; i < bk->n; i++) {
        struct peer *p = &s->peers[i];
        if (!peer_comes(p)) continue;
        atomic_store(&bk->slow[i], true);
        error_set(&p->why, PAWL_EUNREACHABLE, p->node, "%s: does not answer%s", p->node,
                  p->state == PEER_SHAKING ? " (does that port speak TLS?)" : "");
    }
}

/* A set-up that can never be right, whoever else answers. */
static bool check_setup(const struct bk_session *s, pawl_error *error) {
    for (int i = 0; i < s->bk->n; i++) {
        const struct peer *p = &s->peers[i];
        if (p->refused && p->greeting.replica) {
            error_set(error, PAWL_EUNSAFE, p->node,
                      "%s is a replica: redlock wants independent instances, for a replica may lack what its primary "
                      "has granted",
                      p->node);
            return false;
        }
        if (p->refused && p->why.code == PAWL_EUNSUPPORTED) {
            error_copy(error, &p->why);
            return false;
        }
        for (int j = 0; j < i && p->state == PEER_READY; j++) {
            if (s->peers[j].state != PEER_READY || strcmp(s->peers[j].greeting.run_id, p->greeting.run_id) != 0)
                continue;
            error_set(error, PAWL_EUNSAFE, p->node, "%s and %s are the same Redis instance: it would vote twice",
                      s->peers[j].node, p->node);
            return false;
        }
    }
    return true;
}

enum bk_says redlock_connect(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error) {
    struct bk_session *s = calloc(1, sizeof *s + (size_t)bk->n * sizeof *s->peers);
    int ready = 0;
    if (!s) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    s->bk = bk;
    s->verb = "connecting";
    s->name = "";
    s->until.cancel_fd = until.cancel_fd;
    memset(s->epoch, '0', EPOCH_CHARS);
    s->epoch[16] = '.';
    for (int i = 0; i < bk->n; i++) peer_init(&s->peers[i], &bk->place, &bk->place.hosts[i]);
    connect_all(s, until);
    for (int i = 0; i < bk->n; i++) ready += s->peers[i].state == PEER_READY;
    bool fine = check_setup(s, error);
    if (fine && ready < bk->quorum) {
        fine = false;
        if (!round_cut(s, error)) round_no_quorum(s, ready, error);
    }
    if (!fine) {
        redlock_drop(s, false);
        return BK_FAULT;
    }
    for (int i = 0; i < bk->n; i++)
        if (!s->peers[i].lost) adopt_epoch(s, s->peers[i].epoch);
    *ret = s;
    return BK_YES;
}

static int redlock_fds(struct bk_session *s, const struct bk_grant *g, int *ret, int max) {
    (void)s, (void)g, (void)ret, (void)max; /* that one instance hung up says nothing of the lock */
    return 0;
}

/* --- opening --- */

static bool number(const char *text, int least, int most, int *ret) {
    char *end;
    long n = strtol(text, &end, 10);
    if (!*text || *end || n < least || n > most) return false;
    *ret = (int)n;
    return true;
}

static enum bk_says refuse(const struct url *url, int code, const char *what, pawl_error *error) {
    error_set(error, code, NULL, "url %s: %s", url->shown, what);
    return BK_FAULT;
}

static enum bk_says parse(const struct url *url, struct bk *bk, pawl_error *error) {
    const char *quorum = url_param(url, "quorum"), *timeout = url_param(url, "timeout");
    const char *durable = url_param(url, "durable");
    int ms = 0;
    if (timeout && !number(timeout, 1, 10000, &ms))
        return refuse(url, PAWL_EINVALID, "timeout is 1 to 10000 milliseconds", error);
    if (durable && strcmp(durable, "yes") != 0 && strcmp(durable, "no") != 0)
        return refuse(url, PAWL_EINVALID, "durable is yes or no", error);
    if (place_parse(url, &bk->place, error) != BK_YES) return BK_FAULT;
    bk->timeout_ms = ms;
    bk->durable = durable && strcmp(durable, "yes") == 0;
    bk->n = (int)bk->place.n_hosts;
    bk->quorum = bk->n / 2 + 1;
    if (bk->place.n_hosts > PEERS_MAX) return refuse(url, PAWL_EUNSUPPORTED, "15 instances at the most", error);
    if (bk->n < 3)
        return refuse(url, PAWL_EUNSAFE,
                      "redlock needs three independent instances or more: one is redis:, and two "
                      "cannot lose one",
                      error);
    if (bk->n % 2 == 0 && !quorum)
        return refuse(url, PAWL_EUNSAFE,
                      "an even number of instances survives no more failures than one less: name an "
                      "odd number, or say quorum=",
                      error);
    if (quorum && !number(quorum, bk->quorum, bk->n, &bk->quorum))
        return refuse(url, PAWL_EUNSAFE, "a quorum is more than half of the instances", error);
    for (int i = 0; i < bk->n; i++)
        for (int j = 0; j < i; j++)
            if (bk->place.hosts[i].port == bk->place.hosts[j].port &&
                strcmp(bk->place.hosts[i].host, bk->place.hosts[j].host) == 0)
                return refuse(url, PAWL_EUNSAFE, "an instance is named twice", error);
    return BK_YES;
}

static enum bk_says redlock_open(const struct url *url, struct bk **ret, pawl_error *error) {
    struct bk *bk = calloc(1, sizeof *bk);
    unsigned char id[8];
    if (!bk) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    random_bytes(id, sizeof id);
    random_hex(id, sizeof id, bk->client_id);
    enum bk_says says = parse(url, bk, error);
    if (says == BK_YES) {
        *ret = bk;
    } else {
        place_free(&bk->place);
        free(bk);
    }
    return says;
}

static void redlock_close(struct bk *bk, bool forked) {
    hub_close(bk, forked);
    place_free(&bk->place);
    free(bk);
}

static const struct backend redlock_backend = {
    .caps = {.scheme = "redlock",
             .life = BK_LIFE_LOCK,
             .hub = true,
             .renew_batch = BATCH,
             .ttl_min_ms = 100,
             .ttl_max_ms = 24 * 3600 * 1000},
    .open = redlock_open,
    .close = redlock_close,
    .connect = redlock_connect,
    .drop = redlock_drop,
    .fds = redlock_fds,
    .take = redlock_take,
    .forget = redlock_forget,
    .release = redlock_release,
    .renew = redlock_renew,
    .prove = redlock_prove,
    .end = redlock_end,
    .records = redlock_records,
    .doctor = redlock_doctor,
    .tokens = redlock_tokens,
    .init = redlock_init,
    .init_above = redlock_init_above,
    .hub_open = hub_open,
    .hub_fd = hub_fd,
    .hub_io = hub_io,
    .hub_close = hub_close,
};
MODULE_EXPORT_BACKEND(redlock_backend);
