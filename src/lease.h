/* lease.h: what is renewed: a life with its place in the keeper's plan. Each lock has one of its own (redis), or all
 * locks of a client with one ttl hang on a shared one (etcd), or it never ends by itself (file, postgresql). */
#ifndef PAWL_LEASE_H
#define PAWL_LEASE_H
#include "backend.h"
#include "heap.h"
#include "life.h"

enum lease_state {
    LEASE_NEW,
    LEASE_ASKED, /* shared: somebody is asking the service for it */
    LEASE_ALIVE,
    LEASE_UNSURE, /* shared: its deadline passed, and nobody holds what hangs on it */
    LEASE_ENDED   /* lost, or given up; shared: out of the client's list */
};

struct lease {
    struct life life;
    struct bk_life bk;
    enum lease_state state;
    int users;              /* shared: locks that hang on it, the keeper while it asks */
    struct heap_node timer; /* in client->leases while alive */
    pawl_client *client;
    pawl_lock *own;     /* NULL: shared */
    struct lease *next; /* shared: of the client */
};

/* The lock's own lease, or the shared one of its ttl, made if there is none. false: out of memory. */
bool lease_attach_locked(pawl_lock *lock);
void lease_detach_locked(pawl_lock *lock);
/* Before a claim is sent: PAWL_OK; PAWL_EBUSY: somebody else is asking for the lease, the lock is woken when that is
 * over; else *ret_says and *error say why there is none. */
int lease_begin(pawl_lock *lock, struct bk_session *session, struct bk_until until, enum bk_says *ret_says,
                pawl_error *error);
/* The service does not know it any more: it is lost, with all that hangs on it. */
void lease_gone(pawl_lock *lock);
/* The lock was granted: its own lease is planned; with one that ended, or is not known to live, the lock is lost. */
void lease_held_locked(pawl_lock *lock);
/* A held lock hangs on it: plans the renewal. */
void lease_plan_locked(struct lease *lease);
/* Renews all that is due, in batches; loses what is past its deadline. */
void lease_renew_due_locked(pawl_client *client);
/* Ends shared leases at the service, as far as time allows, and frees them all. */
void lease_close(pawl_client *client, int64_t until_ns, bool forked);
#endif
