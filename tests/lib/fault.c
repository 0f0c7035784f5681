#include "fault.h"
#include "clock.h"
#include <stdlib.h>
#include <string.h>

#define SCRIPT 16
#define UNKNOWN_KEPT 8

struct late {
    struct late *next;
    enum fault_op op;
    struct bk_session *inner; /* of its own: the one that sent it is dropped */
    struct bk_claim claim;    /* with copies of what it points at */
    struct bk_grant grant;
    struct bk_life life;
    bool queue;
};

struct fault {
    struct backend table;
    const struct backend *inner;
    uint64_t random;
    struct {
        enum fault_op op;
        enum fault_kind kind;
    } script[SCRIPT];
    int n_script;
    unsigned odds[FAULT_OPS][FAULT_KINDS];
    int count[FAULT_OPS][FAULT_KINDS];
    int misuses;
    unsigned char unknown[UNKNOWN_KEPT][16]; /* owners of the last takes that ended UNKNOWN */
    int n_unknown, repeats;
    fault_pass_fn *pass;
    void *pass_data;
    struct late *late;
};

struct bk {
    struct bk *inner;
    struct fault *fault;
};

struct bk_session {
    struct bk_session *inner;
    struct bk *bk;
    bool dead;
};

static struct fault *opening;

/* --- what goes wrong --- */

static unsigned draw(struct fault *fault, unsigned below) {
    fault->random ^= fault->random >> 12; /* xorshift64* */
    fault->random ^= fault->random << 25;
    fault->random ^= fault->random >> 27;
    return (unsigned)((fault->random * UINT64_C(2685821657736338717)) >> 33) % below;
}

static enum fault_kind scripted(struct fault *fault, enum fault_op op) {
    for (int i = 0; i < fault->n_script; i++) {
        if (fault->script[i].op != op) continue;
        enum fault_kind kind = fault->script[i].kind;
        memmove(&fault->script[i], &fault->script[i + 1], (size_t)(fault->n_script - i - 1) * sizeof fault->script[0]);
        fault->n_script--;
        return kind;
    }
    return FAULT_KINDS;
}

static enum fault_kind decide(struct fault *fault, enum fault_op op) {
    enum fault_kind kind = scripted(fault, op);
    if (kind == FAULT_KINDS) {
        unsigned point = draw(fault, 1000);
        kind = FAULT_NONE;
        for (enum fault_kind k = FAULT_REFUSED; k < FAULT_KINDS; k++) {
            if (point < fault->odds[op][k]) {
                kind = k;
                break;
            }
            point -= fault->odds[op][k];
        }
    }
    fault->count[op][kind]++;
    return kind;
}

static bool travel(struct fault *fault, enum fault_leg leg, struct bk_until until) {
    return !fault->pass || fault->pass(leg, until.at_ns, fault->pass_data);
}

/* What the caller sees of a question that goes wrong before or after its effect. */
static enum bk_says wrong(struct bk_session *session, enum fault_kind kind, struct bk_until until, pawl_error *error) {
    if (kind == FAULT_DENIED) {
        error_set(error, PAWL_EDENIED, "fault", "asking: denied on purpose");
        return BK_FAULT;
    }
    session->dead = true;
    if (kind != FAULT_REFUSED) travel(session->bk->fault, FAULT_TIMED_OUT, until);
    error_set(error, PAWL_EUNREACHABLE, "fault", "asking: %s on purpose", kind == FAULT_REFUSED ? "refused" : "lost");
    return kind == FAULT_REFUSED ? BK_FAULT : BK_UNKNOWN;
}

struct question {
    struct bk_session *session;
    struct fault *fault;
    const struct backend *inner;
    enum fault_kind kind;
    struct bk_until until;
    bool effect; /* the request arrives now */
};

static struct question ask(struct bk_session *session, enum fault_op op, struct bk_until until) {
    struct fault *fault = session->bk->fault;
    if (session->dead) fault->misuses++;
    enum fault_kind kind = decide(fault, op);
    bool effect = kind == FAULT_NONE || kind == FAULT_REPLY_LOST || kind == FAULT_TWICE;
    if (effect && !travel(fault, FAULT_WAY_THERE, until)) {
        fault->count[op][kind]--;
        fault->count[op][kind = FAULT_REQUEST_LOST]++;
        effect = false;
    }
    return (struct question){session, fault, fault->inner, kind, until, effect};
}

/* `says` is what the service said, if it was asked. */
static enum bk_says answer(const struct question *q, enum bk_says says, pawl_error *error) {
    if (!q->effect || q->kind == FAULT_REPLY_LOST) return wrong(q->session, q->kind, q->until, error);
    if (!travel(q->fault, FAULT_WAY_BACK, q->until)) return wrong(q->session, FAULT_REPLY_LOST, q->until, error);
    return says;
}

/* --- requests that come late --- */

static void free_late(struct fault *fault, struct late *late) {
    fault->inner->drop(late->inner, false);
    free((char *)late->claim.name);
    free((char *)late->claim.about);
    free(late);
}

static void throw_late_away(struct fault *fault) {
    for (struct late *late; (late = fault->late);) {
        fault->late = late->next;
        free_late(fault, late);
    }
}

static void keep_late(struct question *q, enum fault_op op, const struct bk_claim *claim, const struct bk_grant *grant,
                      bool queue) {
    struct late *late = q->kind == FAULT_LATE ? calloc(1, sizeof *late) : NULL;
    if (!late) return;
    if (q->inner->connect(q->session->bk->inner, q->until, &late->inner, NULL) != BK_YES) {
        free(late);
        return;
    }
    late->op = op;
    late->queue = queue;
    late->claim = *claim;
    late->claim.name = strdup(claim->name);
    late->claim.about = strdup(claim->about ? claim->about : "");
    if (grant) late->grant = *grant;
    late->grant.claim = &late->claim;
    late->life = (struct bk_life){.ttl_ms = claim->ttl_ms, .grant = &late->grant};
    late->claim.life = &late->life;
    struct late **end = &q->fault->late;
    while (*end) end = &(*end)->next;
    *end = late;
}

static void arrive(const struct backend *inner, struct late *late) {
    struct bk_until until = {INT64_MAX, -1};
    struct bk_grant grant = {0}, *one = &late->grant;
    struct bk_life *life = &late->life;
    struct bk_busy busy = {.wake_fd = -1};
    enum bk_says says;
    int64_t left;
    if (late->op == FAULT_TAKE) {
        if (inner->take(late->inner, &late->claim, late->queue, until, &grant, &busy, NULL) == BK_YES)
            inner->end(&grant, false);
    } else if (late->op == FAULT_FORGET) inner->forget(late->inner, &late->claim, until, NULL);
    else if (late->op == FAULT_RELEASE) inner->release(late->inner, &one, 1, until, &says, NULL);
    else if (late->op == FAULT_RENEW) inner->renew(late->inner, &life, 1, until, &says, &left, NULL);
}

int fault_arrive(struct fault *fault) {
    int n = 0;
    for (struct late *late; (late = fault->late); n++) {
        fault->late = late->next;
        arrive(fault->inner, late);
        free_late(fault, late);
    }
    return n;
}

/* --- the table --- */

static enum bk_says fault_open(const struct url *url, struct bk **ret, pawl_error *error) {
    struct bk *bk = malloc(sizeof *bk), *inner = NULL;
    if (!bk) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    enum bk_says says = opening->inner->open(url, &inner, error);
    if (says != BK_YES) {
        free(bk);
        return says;
    }
    *bk = (struct bk){inner, opening};
    *ret = bk;
    return BK_YES;
}

static void fault_close(struct bk *bk, bool forked) {
    throw_late_away(bk->fault);
    bk->fault->inner->close(bk->inner, forked);
    free(bk);
}

static enum bk_says fault_connect(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error) {
    struct bk_session *session = calloc(1, sizeof *session);
    if (!session) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    session->bk = bk;
    struct question q = ask(session, FAULT_CONNECT, until);
    enum bk_says says = q.effect ? q.inner->connect(bk->inner, until, &session->inner, error) : BK_FAULT;
    says = answer(&q, says, error);
    if (says == BK_YES) {
        *ret = session;
        return BK_YES;
    }
    if (session->inner) q.inner->drop(session->inner, false);
    free(session);
    return says;
}

static void fault_drop(struct bk_session *session, bool forked) {
    session->bk->fault->inner->drop(session->inner, forked);
    free(session);
}

static int fault_fds(struct bk_session *session, const struct bk_grant *grant, int *ret, int max) {
    return session->bk->fault->inner->fds(session->inner, grant, ret, max);
}

static void note_take(struct fault *fault, const unsigned char owner[16], bool after, enum bk_says told) {
    int n = fault->n_unknown < UNKNOWN_KEPT ? fault->n_unknown : UNKNOWN_KEPT;
    for (int i = 0; !after && i < n; i++)
        if (memcmp(fault->unknown[i], owner, 16) == 0) {
            fault->repeats++;
            return;
        }
    if (after && told == BK_UNKNOWN) memcpy(fault->unknown[fault->n_unknown++ % UNKNOWN_KEPT], owner, 16);
}

static enum bk_says fault_take(struct bk_session *session, struct bk_claim *claim, bool queue, struct bk_until until,
                               struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    struct question q = ask(session, FAULT_TAKE, until);
    enum bk_says says = BK_UNKNOWN;
    struct bk_grant grant = {0};
    struct bk_busy busy = {.wake_fd = -1};
    note_take(q.fault, claim->owner, false, BK_YES);
    keep_late(&q, FAULT_TAKE, claim, NULL, queue);
    for (int i = 0; q.effect && i < (q.kind == FAULT_TWICE ? 2 : 1); i++) {
        if (says == BK_YES) q.inner->end(&grant, false);
        says = q.inner->take(session->inner, claim, queue, until, &grant, &busy, error);
    }
    enum bk_says told = answer(&q, says, error);
    note_take(q.fault, claim->owner, true, told);
    if (told == BK_YES) *ret = grant;
    else if (says == BK_YES) q.inner->end(&grant, false);
    if (told == BK_NO) *ret_busy = busy;
    return told;
}

static enum bk_says fault_forget(struct bk_session *session, struct bk_claim *claim, struct bk_until until,
                                 pawl_error *error) {
    struct question q = ask(session, FAULT_FORGET, until);
    enum bk_says says = BK_UNKNOWN;
    keep_late(&q, FAULT_FORGET, claim, NULL, false);
    for (int i = 0; q.effect && i < (q.kind == FAULT_TWICE ? 2 : 1); i++)
        says = q.inner->forget(session->inner, claim, until, error);
    return answer(&q, says, error);
}

static enum bk_says fault_release(struct bk_session *session, struct bk_grant *const grants[], int n,
                                  struct bk_until until, enum bk_says ret[], pawl_error *error) {
    struct question q = ask(session, FAULT_RELEASE, until);
    enum bk_says says = BK_UNKNOWN;
    for (int i = 0; i < n; i++) keep_late(&q, FAULT_RELEASE, grants[i]->claim, grants[i], false);
    for (int i = 0; q.effect && i < (q.kind == FAULT_TWICE ? 2 : 1); i++)
        says = q.inner->release(session->inner, grants, n, until, ret, error);
    return answer(&q, says, error);
}

static enum bk_says fault_renew(struct bk_session *session, struct bk_life *const lives[], int n, struct bk_until until,
                                enum bk_says ret[], int64_t ret_left_ms[], pawl_error *error) {
    struct question q = ask(session, FAULT_RENEW, until);
    enum bk_says says = BK_UNKNOWN;
    for (int i = 0; i < n && lives[i]->grant; i++)
        keep_late(&q, FAULT_RENEW, lives[i]->grant->claim, lives[i]->grant, false);
    for (int i = 0; q.effect && i < (q.kind == FAULT_TWICE ? 2 : 1); i++)
        says = q.inner->renew(session->inner, lives, n, until, ret, ret_left_ms, error);
    return answer(&q, says, error);
}

static enum bk_says fault_begin_life(struct bk_session *session, struct bk_life *life, struct bk_until until,
                                     int64_t *ret_left_ms, pawl_error *error) {
    struct question q = ask(session, FAULT_LIFE, until);
    enum bk_says says = BK_UNKNOWN;
    int64_t left_ms = 0;
    for (int i = 0; q.effect && i < (q.kind == FAULT_TWICE ? 2 : 1); i++)
        says = q.inner->begin_life(session->inner, life, until, &left_ms, error);
    says = answer(&q, says, error);
    if (says == BK_YES) *ret_left_ms = left_ms;
    return says;
}

static enum bk_says fault_end_life(struct bk_session *session, struct bk_life *life, struct bk_until until,
                                   pawl_error *error) {
    struct question q = ask(session, FAULT_LIFE, until);
    enum bk_says says = q.effect ? q.inner->end_life(session->inner, life, until, error) : BK_UNKNOWN;
    return answer(&q, says, error);
}

static enum bk_says fault_prove(struct bk_session *session, const struct bk_grant *grant, struct bk_until until,
                                pawl_error *error) {
    struct question q = ask(session, FAULT_PROVE, until);
    enum bk_says says = q.effect ? q.inner->prove(session->inner, grant, until, error) : BK_UNKNOWN;
    return answer(&q, says, error);
}

static enum bk_says fault_records(struct bk_session *session, const char *name, bk_each *each, void *data,
                                  struct bk_until until, pawl_error *error) {
    return session->bk->fault->inner->records(session->inner, name, each, data, until, error);
}

static enum bk_says fault_tokens(struct bk_session *session, bool advance, uint64_t to, struct bk_until until,
                                 struct bk_tokens *ret, pawl_error *error) {
    return session->bk->fault->inner->tokens(session->inner, advance, to, until, ret, error);
}

static enum bk_says fault_hub_open(struct bk *bk, struct bk_until until, pawl_error *error) {
    return bk->fault->inner->hub_open(bk->inner, until, error);
}

static int fault_hub_fd(struct bk *bk) { return bk->fault->inner->hub_fd(bk->inner); }

static bool hear_nothing(const unsigned char owner[16], void *data) { return owner || data; }

static enum bk_says fault_hub_io(struct bk *bk, bk_wake *wake, void *data, pawl_error *error) {
    const struct backend *inner = bk->fault->inner;
    enum fault_kind kind = decide(bk->fault, FAULT_HUB);
    if (kind == FAULT_REFUSED) {
        inner->hub_close(bk->inner, false);
        error_set(error, PAWL_EUNREACHABLE, "fault", "listening: cut on purpose");
        return BK_FAULT;
    }
    return inner->hub_io(bk->inner, kind == FAULT_REQUEST_LOST ? hear_nothing : wake, data, error);
}

static void fault_hub_close(struct bk *bk, bool forked) { bk->fault->inner->hub_close(bk->inner, forked); }

static void fault_hub_watch(struct bk *bk, const struct bk_grant *grant) {
    bk->fault->inner->hub_watch(bk->inner, grant);
}

/* --- control --- */

struct fault *fault_new(uint64_t seed) {
    struct fault *fault = calloc(1, sizeof *fault);
    if (fault) fault->random = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    return fault;
}

void fault_free(struct fault *fault) { free(fault); }

const struct backend *fault_backend(struct fault *fault, const struct backend *inner) {
    fault->inner = inner;
    fault->table = (struct backend){
        .caps = inner->caps,
        .open = fault_open,
        .close = fault_close,
        .connect = fault_connect,
        .drop = fault_drop,
        .fds = fault_fds,
        .take = fault_take,
        .forget = fault_forget,
        .release = fault_release,
        .renew = inner->renew ? fault_renew : NULL,
        .prove = fault_prove,
        .end = inner->end,
        .begin_life = inner->begin_life ? fault_begin_life : NULL,
        .end_life = inner->end_life ? fault_end_life : NULL,
        .free_life = inner->free_life,
        .records = fault_records,
        .tokens = fault_tokens,
        .hub_open = inner->hub_open ? fault_hub_open : NULL,
        .hub_fd = inner->hub_fd ? fault_hub_fd : NULL,
        .hub_io = inner->hub_io ? fault_hub_io : NULL,
        .hub_close = inner->hub_close ? fault_hub_close : NULL,
        .hub_watch = inner->hub_watch ? fault_hub_watch : NULL,
    };
    opening = fault;
    return &fault->table;
}

void fault_script(struct fault *fault, enum fault_op op, enum fault_kind kind) {
    if (fault->n_script == SCRIPT) abort();
    fault->script[fault->n_script].op = op;
    fault->script[fault->n_script++].kind = kind;
}

void fault_odds(struct fault *fault, enum fault_op op, enum fault_kind kind, unsigned per_mille) {
    fault->odds[op][kind] = per_mille;
}

void fault_calm(struct fault *fault) { memset(fault->odds, 0, sizeof fault->odds); }

void fault_pass(struct fault *fault, fault_pass_fn *pass, void *data) {
    fault->pass = pass;
    fault->pass_data = data;
}

int fault_count(const struct fault *fault, enum fault_op op, enum fault_kind kind) { return fault->count[op][kind]; }
int fault_repeats(const struct fault *fault) { return fault->repeats; }
int fault_misuses(const struct fault *fault) { return fault->misuses; }
