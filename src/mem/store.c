#include "store.h"
#include "about.h"
#include "clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct entry *next;
    unsigned char owner[16];
    char about[ABOUT_SIZE];
    bool shared;
    uint64_t token;   /* holder */
    int64_t ends_ns;  /* holder: when it is over. Waiter with a turn: when the turn is over; 0: no turn yet */
    int64_t since_us; /* wall clock, for who */
    void *listener;   /* waiter */
};

struct named {
    struct named *next;
    struct entry *holders, *waiters; /* in order */
    size_t length;
    char name[];
};

struct store *store_new(const char *name, int64_t wall_us) {
    struct store *store = calloc(1, sizeof *store);
    if (!store) return NULL;
    store->name = strdup(name);
    if (!store->name) {
        free(store);
        return NULL;
    }
    token_admit(&store->tokens, wall_us);
    return store;
}

/* --- names --- */

static struct named **bucket(struct store *store, const char *name, size_t length) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    return &store->buckets[hash % STORE_BUCKETS];
}

static struct named *find(struct store *store, const char *name, size_t length) {
    struct named *at = *bucket(store, name, length);
    while (at && (at->length != length || memcmp(at->name, name, length) != 0)) at = at->next;
    return at;
}

static struct named *find_or_add(struct store *store, const char *name, size_t length) {
    struct named *named = find(store, name, length), **head = bucket(store, name, length);
    if (named) return named;
    named = calloc(1, sizeof *named + length + 1);
    if (!named) return NULL;
    named->length = length;
    memcpy(named->name, name, length);
    named->next = *head;
    return *head = named;
}

static void drop_if_unused(struct store *store, struct named *named) {
    if (!named || named->holders || named->waiters) return;
    struct named **at = bucket(store, named->name, named->length);
    while (*at != named) at = &(*at)->next;
    *at = named->next;
    free(named);
}

/* --- entries --- */

static struct entry **by_owner(struct entry **at, const unsigned char owner[16]) {
    while (*at && memcmp((*at)->owner, owner, 16) != 0) at = &(*at)->next;
    return at;
}

static struct entry **tail(struct entry **at) {
    while (*at) at = &(*at)->next;
    return at;
}

static void cut(struct entry **at) {
    struct entry *gone = *at;
    *at = gone->next;
    free(gone);
}

/* The place of the holder that is exactly this grant, NULL if none. */
static struct entry **by_grant(struct named *named, const struct bk_grant *grant) {
    if (!named) return NULL;
    struct entry **at = by_owner(&named->holders, grant->claim->owner);
    return *at && (*at)->token == grant->token ? at : NULL;
}

/* May it be granted beside the holders and the `ahead` waiters that have a turn, of which `shared` tells the mode? */
static bool fits(const struct named *named, bool ahead, bool ahead_shared, bool shared) {
    if (named->holders && !(shared && named->holders->shared)) return false;
    return !ahead || (shared && ahead_shared);
}

/* Rule at the head of store.h. The asker is here, so its turn is not over. Returns whether a newcomer of that mode may
 * be granted behind those who have a turn. */
static bool settle(struct named *named, const unsigned char *asker, bool shared, store_wake *wake, int64_t now) {
    for (struct entry **at = &named->holders; *at;)
        if ((*at)->ends_ns <= now) cut(at);
        else at = &(*at)->next;
    bool ahead = false, ahead_shared = false;
    for (struct entry **at = &named->waiters; *at;) {
        struct entry *waiter = *at;
        if (!fits(named, ahead, ahead_shared, waiter->shared)) return false;
        if (waiter->ends_ns && waiter->ends_ns <= now && !(asker && memcmp(asker, waiter->owner, 16) == 0)) {
            cut(at);
            continue;
        }
        if (!waiter->ends_ns) {
            waiter->ends_ns = now + STORE_CLAIM_MS * NS_PER_MS;
            if (waiter->listener) wake(waiter->listener, waiter->owner);
        }
        ahead = true;
        ahead_shared = waiter->shared;
        at = &waiter->next;
    }
    return fits(named, ahead, ahead_shared, shared);
}

static int64_t ms_up(int64_t ns) { return ns <= 0 ? 1 : (ns + NS_PER_MS - 1) / NS_PER_MS; }

/* When to look again. The first who is blocked: when the last holder's or the first turn's time is over. Those behind
 * him: sooner than that if it is far, because those before them may be dead or gone; the later their place, the later.
 */
static int64_t look_again_ms(const struct named *named, const struct entry *me, int64_t now) {
    int64_t turn = 0, over = now;
    int behind = 0;
    for (const struct entry *at = named->holders; at; at = at->next)
        if (at->ends_ns > over) over = at->ends_ns;
    for (const struct entry *at = named->waiters; at && at != me; at = at->next) {
        if (!at->ends_ns) behind++;
        else if (!turn || at->ends_ns < turn) turn = at->ends_ns;
    }
    int64_t ms = ms_up((turn ? turn : over) - now);
    if (behind > 10) behind = 10;
    if (behind && ms > STORE_CLAIM_MS * behind) ms = STORE_CLAIM_MS * behind;
    ms += 50 * behind;
    if (me && !me->listener && ms > 100) ms = 100;
    return ms;
}

static struct entry *new_entry(const struct bk_claim *claim, int64_t wall_us) {
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry) return NULL;
    memcpy(entry->owner, claim->owner, 16);
    snprintf(entry->about, sizeof entry->about, "%s", claim->about ? claim->about : "");
    entry->shared = claim->shared;
    entry->since_us = wall_us;
    return entry;
}

/* Moves the waiter's entry, or a new one, to the holders. */
static enum bk_says grant(struct store *store, struct named *named, const struct bk_claim *claim, int64_t now,
                          struct bk_grant *ret, pawl_error *error) {
    int64_t wall_us = clock_wall_us();
    struct entry **place = by_owner(&named->waiters, claim->owner), *entry = *place;
    if (!entry && !(entry = new_entry(claim, wall_us))) {
        error_set(error, PAWL_EINTERNAL, "mem", "out of memory");
        return BK_FAULT;
    }
    uint64_t token = token_grant(&store->tokens, wall_us);
    if (!token) {
        if (!*place) free(entry);
        error_set(error, PAWL_EUNSAFE, "mem", "the numbers for tokens are used up");
        return BK_FAULT;
    }
    if (*place) *place = entry->next;
    *tail(&named->holders) = entry;
    entry->next = NULL;
    entry->token = token;
    entry->ends_ns = now + claim->ttl_ms * NS_PER_MS;
    entry->since_us = wall_us;
    entry->listener = NULL;
    *ret = (struct bk_grant){.token = token, .left_ms = claim->ttl_ms};
    return BK_YES;
}

static enum bk_says busy(struct named *named, const struct bk_claim *claim, bool queue, void *listener, int64_t now,
                         struct bk_busy *ret, pawl_error *error) {
    struct entry **place = by_owner(&named->waiters, claim->owner);
    if (!*place && queue && !(*place = new_entry(claim, clock_wall_us()))) {
        error_set(error, PAWL_EINTERNAL, "mem", "out of memory");
        return BK_FAULT;
    }
    if (*place) (*place)->listener = listener;
    *ret = (struct bk_busy){.wake_fd = -1, .queued = *place != NULL, .ask_again_ms = look_again_ms(named, *place, now)};
    const struct entry *holder = named->holders ? named->holders : named->waiters;
    snprintf(ret->holder, sizeof ret->holder, "%s", holder && holder != *place ? holder->about : "");
    return BK_NO;
}

static enum bk_says take(struct store *store, struct named *named, const struct bk_claim *claim, bool queue,
                         void *listener, store_wake *wake, int64_t now, struct bk_grant *ret, struct bk_busy *ret_busy,
                         pawl_error *error) {
    bool room = settle(named, claim->owner, claim->shared, wake, now);
    const struct entry *mine = *by_owner(&named->holders, claim->owner);
    if (mine) {
        *ret = (struct bk_grant){.token = mine->token, .left_ms = (mine->ends_ns - now) / NS_PER_MS};
        return BK_YES;
    }
    const struct entry *waiting = *by_owner(&named->waiters, claim->owner);
    if (waiting ? waiting->ends_ns != 0 : room) return grant(store, named, claim, now, ret, error);
    return busy(named, claim, queue, listener, now, ret_busy, error);
}

enum bk_says store_take(struct store *store, const struct bk_claim *claim, bool queue, void *listener, store_wake *wake,
                        int64_t now_ns, struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    struct named *named = find_or_add(store, claim->name, claim->name_len);
    if (!named) {
        error_set(error, PAWL_EINTERNAL, "mem", "out of memory");
        return BK_FAULT;
    }
    enum bk_says says = take(store, named, claim, queue, listener, wake, now_ns, ret, ret_busy, error);
    drop_if_unused(store, named);
    return says;
}

bool store_forget(struct store *store, const struct bk_claim *claim, store_wake *wake, int64_t now_ns) {
    struct named *named = find(store, claim->name, claim->name_len);
    if (!named) return false;
    settle(named, claim->owner, false, wake, now_ns);
    struct entry **held = by_owner(&named->holders, claim->owner);
    struct entry **waits = by_owner(&named->waiters, claim->owner);
    bool was_there = *held || *waits;
    if (*held) cut(held);
    if (*waits) cut(waits);
    settle(named, NULL, false, wake, now_ns);
    drop_if_unused(store, named);
    return was_there;
}

bool store_release(struct store *store, const struct bk_grant *ours, store_wake *wake, int64_t now_ns) {
    struct named *named = find(store, ours->claim->name, ours->claim->name_len);
    if (!named) return false;
    settle(named, NULL, false, wake, now_ns);
    struct entry **held = by_grant(named, ours);
    if (held) {
        cut(held);
        settle(named, NULL, false, wake, now_ns);
    }
    drop_if_unused(store, named);
    return held != NULL;
}

int64_t store_renew(struct store *store, const struct bk_grant *ours, int64_t ttl_ms, store_wake *wake,
                    int64_t now_ns) {
    struct named *named = find(store, ours->claim->name, ours->claim->name_len);
    if (!named) return -1;
    settle(named, NULL, false, wake, now_ns);
    int64_t left = -1;
    struct entry **held = by_grant(named, ours);
    if (held) {
        if (ttl_ms) (*held)->ends_ns = now_ns + ttl_ms * NS_PER_MS;
        left = ((*held)->ends_ns - now_ns) / NS_PER_MS;
    }
    drop_if_unused(store, named);
    return left;
}

/* The holders go; the first of them becomes ours, with a token of its own, for as long as the last one had. */
enum bk_says store_evict(struct store *store, const struct bk_claim *claim, bool at_once, store_wake *wake,
                         int64_t now_ns, struct bk_evicted *ret, pawl_error *error) {
    struct named *named = find(store, claim->name, claim->name_len);
    struct bk_evicted evicted = {0};
    struct bk_grant unused;
    if (!named) return BK_NO;
    settle(named, NULL, false, wake, now_ns);
    struct entry *holder = named->holders;
    if (!holder) {
        drop_if_unused(store, named);
        return BK_NO;
    }
    snprintf(evicted.holder, sizeof evicted.holder, "%s", holder->about);
    evicted.token = holder->token;
    for (const struct entry *at = holder; at; at = at->next)
        if ((at->ends_ns - now_ns) / NS_PER_MS > evicted.free_in_ms)
            evicted.free_in_ms = (at->ends_ns - now_ns) / NS_PER_MS;
    if (at_once) evicted.free_in_ms = 0;
    if (evicted.free_in_ms > 0) {
        struct bk_claim ours = *claim;
        ours.ttl_ms = evicted.free_in_ms;
        if (grant(store, named, &ours, now_ns, &unused, error) != BK_YES) return BK_FAULT; /* all is as it was */
    }
    while (named->holders && memcmp(named->holders->owner, claim->owner, 16) != 0) cut(&named->holders);
    settle(named, NULL, false, wake, now_ns);
    drop_if_unused(store, named);
    *ret = evicted;
    return BK_YES;
}

void store_deafen(struct store *store, const void *listener) {
    for (size_t i = 0; i < STORE_BUCKETS; i++)
        for (struct named *named = store->buckets[i]; named; named = named->next)
            for (struct entry *at = named->waiters; at; at = at->next)
                if (at->listener == listener) at->listener = NULL;
}

/* --- records --- */

static bool add_record(struct bk_record **list, int *n, const struct named *named, const struct entry *entry, int place,
                       int64_t now) {
    struct bk_record *more = realloc(*list, ((size_t)*n + 1) * sizeof *more);
    if (!more) return false;
    *list = more;
    char *name = strndup(named->name, named->length), *about = strdup(entry->about);
    if (!name || !about) {
        free(name);
        free(about);
        return false;
    }
    more[(*n)++] = (struct bk_record){
        .name = name,
        .about = about,
        .token = entry->token,
        .since_ms = entry->since_us / 1000,
        .left_ms = place ? -1 : (entry->ends_ns - now) / NS_PER_MS,
        .shared = entry->shared,
        .place = place,
    };
    return true;
}

static bool add_named(struct bk_record **list, int *n, const struct named *named, int64_t now) {
    int place = 0;
    for (const struct entry *at = named->holders; at; at = at->next)
        if (!add_record(list, n, named, at, 0, now)) return false;
    for (const struct entry *at = named->waiters; at; at = at->next)
        if (!add_record(list, n, named, at, ++place, now)) return false;
    return true;
}

struct bk_record *store_records(struct store *store, const char *name, store_wake *wake, int64_t now_ns, int *ret_n) {
    struct bk_record *list = NULL;
    bool enough = true;
    int n = 0;
    size_t length = name ? strlen(name) : 0;
    for (size_t i = 0; i < STORE_BUCKETS; i++) {
        for (struct named *named = store->buckets[i], *next; named && enough; named = next) {
            next = named->next;
            if (name && (named->length != length || memcmp(named->name, name, length) != 0)) continue;
            settle(named, NULL, false, wake, now_ns);
            enough = add_named(&list, &n, named, now_ns);
            drop_if_unused(store, named);
        }
    }
    if (!enough) {
        store_free_records(list, n);
        list = NULL;
        n = -1;
    }
    *ret_n = n;
    return list;
}

void store_free_records(struct bk_record *list, int n) {
    for (int i = 0; i < n; i++) {
        free((char *)list[i].name);
        free((char *)list[i].about);
    }
    free(list);
}
