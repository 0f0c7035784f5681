#include "leased.h"
#include "clock.h"
#include "mem/mem.h"
#include <stdlib.h>
#include <string.h>

extern const struct backend mem_backend;

struct item { /* a grant that hangs on the lease */
    struct item *next;
    struct bk_claim claim;
    struct bk_grant grant;
    char name[];
};

struct lease { /* life->of: what the service knows of it */
    int64_t ends_ns;
    struct item *items;
};

static const struct bk_until whenever = {INT64_MAX, -1};

static void cut(struct item **at) {
    struct item *gone = *at;
    *at = gone->next;
    free(gone);
}

static struct item **by_owner(struct lease *lease, const struct bk_claim *claim) {
    struct item **at = &lease->items;
    while (*at && memcmp((*at)->claim.owner, claim->owner, sizeof claim->owner) != 0) at = &(*at)->next;
    return at;
}

static int64_t left_ms(const struct lease *lease) { return (lease->ends_ns - mem_clock()) / NS_PER_MS; }

/* All that hangs on it ends when it does. */
static void spread(struct bk_session *session, struct lease *lease) {
    for (struct item **at = &lease->items; *at;) {
        struct bk_life own = {.ttl_ms = left_ms(lease), .grant = &(*at)->grant}, *one = &own;
        enum bk_says says = BK_NO;
        int64_t left;
        mem_backend.renew(session, &one, 1, whenever, &says, &left, NULL);
        if (says == BK_YES) at = &(*at)->next;
        else cut(at);
    }
}

static enum bk_says no_lease(pawl_error *error) {
    error_set(error, PAWL_EUNREACHABLE, "leased", "the lease is not there any more");
    return BK_FAULT;
}

static enum bk_says begin_life(struct bk_session *session, struct bk_life *life, struct bk_until until,
                               int64_t *ret_left_ms, pawl_error *error) {
    (void)session, (void)until;
    struct lease *lease = life->of;
    if (!lease && !(life->of = lease = calloc(1, sizeof *lease))) {
        error_set(error, PAWL_EINTERNAL, "leased", "out of memory");
        return BK_FAULT;
    }
    if (left_ms(lease) <= 0) lease->ends_ns = mem_clock() + life->ttl_ms * NS_PER_MS;
    *ret_left_ms = left_ms(lease);
    return BK_YES;
}

static enum bk_says end_life(struct bk_session *session, struct bk_life *life, struct bk_until until,
                             pawl_error *error) {
    struct lease *lease = life->of;
    for (; lease && lease->items; cut(&lease->items)) {
        struct bk_grant *one = &lease->items->grant;
        enum bk_says says;
        mem_backend.release(session, &one, 1, until, &says, error);
    }
    if (lease) lease->ends_ns = 0;
    return BK_YES;
}

static void free_life(struct bk_life *life) {
    struct lease *lease = life->of;
    while (lease && lease->items) cut(&lease->items);
    free(lease);
    life->of = NULL;
}

static enum bk_says take(struct bk_session *session, struct bk_claim *claim, bool queue, struct bk_until until,
                         struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    struct lease *lease = claim->life ? claim->life->of : NULL;
    if (!lease || left_ms(lease) <= 0) return no_lease(error);
    struct bk_claim own = *claim;
    own.ttl_ms = left_ms(lease);
    enum bk_says says = mem_backend.take(session, &own, queue, until, ret, ret_busy, error);
    if (says != BK_YES || *by_owner(lease, claim)) return says;
    struct item *item = calloc(1, sizeof *item + claim->name_len + 1);
    if (!item) abort();
    memcpy(item->name, claim->name, claim->name_len);
    item->claim = *claim;
    item->claim.name = item->name;
    item->grant = *ret;
    item->grant.claim = &item->claim;
    item->next = lease->items;
    lease->items = item;
    ret->left_ms = -1;
    return BK_YES;
}

static void unhang(const struct bk_claim *claim) {
    struct lease *lease = claim->life ? claim->life->of : NULL;
    struct item **at = lease ? by_owner(lease, claim) : NULL;
    if (at && *at) cut(at);
}

static enum bk_says forget(struct bk_session *session, struct bk_claim *claim, struct bk_until until,
                           pawl_error *error) {
    unhang(claim);
    return mem_backend.forget(session, claim, until, error);
}

static enum bk_says release(struct bk_session *session, struct bk_grant *const grants[], int n, struct bk_until until,
                            enum bk_says ret[], pawl_error *error) {
    enum bk_says says = mem_backend.release(session, grants, n, until, ret, error);
    for (int i = 0; i < n; i++)
        if (ret[i] == BK_YES) unhang(grants[i]->claim);
    return says;
}

static enum bk_says renew(struct bk_session *session, struct bk_life *const lives[], int n, struct bk_until until,
                          enum bk_says ret[], int64_t ret_left_ms[], pawl_error *error) {
    (void)until, (void)error;
    for (int i = 0; i < n; i++) {
        struct lease *lease = lives[i]->of;
        ret[i] = lease && left_ms(lease) > 0 ? BK_YES : BK_NO;
        if (ret[i] == BK_NO) continue;
        lease->ends_ns = mem_clock() + lives[i]->ttl_ms * NS_PER_MS;
        spread(session, lease);
        ret_left_ms[i] = left_ms(lease);
    }
    return BK_YES;
}

const struct backend *leased_backend(void) {
    static struct backend leased_table;
    leased_table = mem_backend;
    leased_table.caps.life = BK_LIFE_TTL;
    leased_table.take = take;
    leased_table.forget = forget;
    leased_table.release = release;
    leased_table.renew = renew;
    leased_table.begin_life = begin_life;
    leased_table.end_life = end_life;
    leased_table.free_life = free_life;
    return &leased_table;
}
