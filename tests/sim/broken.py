#!/usr/bin/python3
"""broken.py ID SOURCE OUT: writes a copy of SOURCE in which one rule is broken (see CORES), for tests/sim.
broken.py --list: "id;source;law;rule" of each.

A rule whose words are no longer in the source yields an unbroken copy, so that its test fails and says so."""
import sys

CORES = {
    # id: (source, the law that must be seen to break, what is broken, words, other words)
    "sent_take": ("lock.c", "held is held", "rule 3: the deadline of a grant counts from its reply",
                  "life_confirm(&l->lease->life, l->last_sent_ns, l->grant.left_ms)",
                  "life_confirm(&l->lease->life, client_now(l->client), l->grant.left_ms)"),
    "sent_renew": ("lease.c", "held is held", "rule 3: the deadline of a renewal counts from its reply",
                   "b.says[i], b.sent_ns,", "b.says[i], client_now(c),"),
    "unknown_no": ("lease.c", "true loss", "rule 2: a renewal without an answer is a no",
                   "    if (says != BK_YES)\n        for (int i = 0; i < b->n; i++) b->says[i] = BK_UNKNOWN;",
                   "    if (says != BK_YES)\n        for (int i = 0; i < b->n; i++) b->says[i] = BK_NO;"),
    "unknown_yes": ("lease.c", "held is held", "rule 2: a renewal without an answer is a yes",
                    "    if (says != BK_YES)\n        for (int i = 0; i < b->n; i++) b->says[i] = BK_UNKNOWN;",
                    "    if (says != BK_YES)\n        for (int i = 0; i < b->n; i++)\n"
                    "            b->says[i] = BK_YES, b->left_ms[i] = b->lives[i]->ttl_ms;"),
    "unknown_take": ("lock.c", "nothing left", "rule 2: a take without an answer is a no",
                     "if (says == BK_UNKNOWN && code == PAWL_OK) {", "if (0) {"),
    "margin": ("life.c", "held is held", "rule 4: no margin",
               "clock_after_ms(sent_ns, left_ms) - life->margin_ns", "clock_after_ms(sent_ns, left_ms)"),
    "past_deadline": ("life.c", "lost for good", "rule 4: renewals go on past the deadline",
                      "if (end == INT64_MIN || now_ns >= end) return LIFE_LOSE;",
                      "if (end == INT64_MIN) return LIFE_LOSE;"),
    "renew_creates": ("mem/store.c", "one holder", "rule 5: a renewal creates what is gone",
                      "    int64_t left = -1;\n",
                      "    int64_t left = -1;\n    struct entry *made = NULL;\n"
                      "    if (ttl_ms && !by_grant(named, ours) && (made = new_entry(ours->claim, 0))) {\n"
                      "        made->token = ours->token;\n        *tail(&named->holders) = made;\n    }\n"),
    "owner_reused": ("lock.c", "held is held", "rule 6: each attempt of a client has the same owner value",
                     "random_bytes(l->claim.owner, sizeof l->claim.owner);\n    *ret = l;",
                     "memcpy(l->claim.owner, &l->client, sizeof l->client);\n    *ret = l;"),
    "no_undo": ("lock.c", "woken when free", "rule 6: nothing is undone",
                "if (!l->granted && !l->dirty) return true;", "if (!l->granted) return true;"),
    "loss_untold": ("event.c", "loss is told", "rule 7: a loss makes no event",
                    "l->loss_waits = true;\n    enqueue_locked(l);", ""),
    "joined": ("lock.c", "loss is told", "rule 7: a lock that joins a lease does not bring its deadline",
               "    event_deadline_locked(c, lock_safe_until(l));\n", ""),
    "late_yes": ("lease.c", "lost for good", "rule 7: a renewal that comes behind the deadline makes a lost lock held again",
                 "} else if (wanted && life_due(&lease->life, client_now(c)) == LIFE_LOSE) {", "} else if (0) {"),
    "no_local_queue": ("names.c", "local order", "rule 8: all threads of a client go to the service",
                       "return n->active == 0 || (l->claim.shared && !n->exclusive);", "return n && l;"),
    "local_wake": ("names.c", "calls end", "rule 8: the next of the local queue is not woken",
                   "lock_wake_locked(next);", "(void)next;"),
    "lost_wake": ("hub.c", "woken when free", "rule 9: what the hub says is not passed on",
                  "else lock_wake_locked(l);", "else (void)l;"),
    "nobody_listens": ("hub.c", "woken when free", "hub.c: whoever listened goes on, and nobody listens in its place",
                       "if (c->listener) eventfd_write(c->listener->wake_fd, 1);", ";"),
}

if sys.argv[1] == "--list":
    for name, (source, law, rule, _, _) in CORES.items():
        print(f"{name};{source};{law};{rule}")
    sys.exit(0)
_, _, _, words, other = CORES[sys.argv[1]]
with open(sys.argv[2]) as file:
    text = file.read()
if text.count(words) != 1:
    print(f"broken.py: {sys.argv[1]}: the words to change are {text.count(words)} times in {sys.argv[2]}", file=sys.stderr)
with open(sys.argv[3], "w") as file:
    file.write(text.replace(words, other))
