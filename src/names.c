/* names.c: threads of this process that want the same name queue here, first come first served, and one goes to the
 * service; shared ones pass together. So a process does not compete with itself, and its order is kept whatever the
 * service does. */
#include "client.h"
#include <stdlib.h>
#include <string.h>

struct name {
    struct map_node node;
    pawl_lock *first, *last; /* waiting */
    int active;
    bool exclusive; /* the one active lock is exclusive */
    size_t length;
    char text[];
};

static struct name *find_locked(const pawl_client *c, const struct bk_claim *claim, uint64_t hash) {
    for (struct map_node *node = map_find(&c->names, hash); node; node = map_next(node)) {
        struct name *n = container_of(node, struct name, node);
        if (n->length == claim->name_len && memcmp(n->text, claim->name, n->length) == 0) return n;
    }
    return NULL;
}

static struct name *find_or_make_locked(pawl_client *c, const struct bk_claim *claim) {
    uint64_t hash = map_hash(claim->name, claim->name_len);
    struct name *n = find_locked(c, claim, hash);
    if (n || !map_reserve(&c->names)) return n;
    n = calloc(1, sizeof *n + claim->name_len);
    if (!n) return NULL;
    n->length = claim->name_len;
    memcpy(n->text, claim->name, n->length);
    map_add(&c->names, &n->node, hash);
    return n;
}

static bool fits(const struct name *n, const pawl_lock *l) {
    return n->active == 0 || (l->claim.shared && !n->exclusive);
}

static void admit(struct name *n, pawl_lock *l) {
    n->active++;
    n->exclusive = !l->claim.shared;
    atomic_store(&l->admitted, true);
}

int names_enter_locked(pawl_lock *l) {
    struct name *n = find_or_make_locked(l->client, &l->claim);
    if (!n) return PAWL_EINTERNAL;
    if (!n->first && fits(n, l)) {
        l->name_entry = n;
        admit(n, l);
        return PAWL_OK;
    }
    if (l->is_try && !l->event_form) return PAWL_EBUSY; /* else its first step says so, as an event */
    l->name_entry = n;
    l->name_previous = n->last;
    l->name_next = NULL;
    if (n->last) n->last->name_next = l;
    else n->first = l;
    n->last = l;
    return PAWL_OK;
}

static void unlink_waiter(struct name *n, pawl_lock *l) {
    if (l->name_previous) l->name_previous->name_next = l->name_next;
    else n->first = l->name_next;
    if (l->name_next) l->name_next->name_previous = l->name_previous;
    else n->last = l->name_previous;
    l->name_next = l->name_previous = NULL;
}

void names_leave_locked(pawl_lock *l) {
    struct name *n = l->name_entry;
    if (!n) return;
    l->name_entry = NULL;
    if (atomic_load(&l->admitted)) n->active--;
    else unlink_waiter(n, l);
    while (n->first && fits(n, n->first)) {
        pawl_lock *next = n->first;
        unlink_waiter(n, next);
        admit(n, next);
        lock_wake_locked(next);
    }
    if (n->active == 0) {
        map_remove(&l->client->names, &n->node);
        free(n);
    }
}

/* Names may share a word: their places are then larger than they need be. */
static uint64_t *places(const pawl_lock *l) {
    return &l->client->places[map_hash(l->claim.name, l->claim.name_len) % PLACES];
}

void names_give_place_locked(pawl_lock *l) {
    uint64_t *taken = places(l);
    if (~*taken == 0) return;
    l->claim.place = 1 + __builtin_ctzll(~*taken);
    *taken |= UINT64_C(1) << (l->claim.place - 1);
}

void names_take_place_locked(pawl_lock *l) {
    if (l->claim.place > 0 && !l->unsure) *places(l) &= ~(UINT64_C(1) << (l->claim.place - 1));
    l->claim.place = 0;
}

void names_free(pawl_client *c) {
    for (size_t i = 0; i < c->names.n_slots; i++)
        for (struct map_node *node = c->names.slots[i], *next; node; node = next) {
            next = node->next;
            free(container_of(node, struct name, node));
        }
    map_free(&c->names);
}
