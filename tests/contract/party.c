#include "clock.h"
#include "contract.h"
#include "random.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bk_until soon(void) {
    return (struct bk_until){clock_after_ms(clock_now_ns(), 10000), -1};
}

struct bk *open_url(struct suite *suite, const char *text) {
    pawl_error error = PAWL_ERROR_INIT;
    struct url *url = NULL;
    struct bk *bk = NULL;
    if (url_parse(text, &url, &error)) fail_msg("%s", error.text);
    if (suite->backend->open(url, &bk, &error) != BK_YES) fail_msg("open %s: %s", text, error.text);
    url_free(url);
    return bk;
}

static struct party *make(struct suite *suite, struct bk *bk, const char *name) {
    static int number;
    pawl_error error = PAWL_ERROR_INIT;
    struct party *party = calloc(1, sizeof *party);
    assert_non_null(party);
    party->bk = bk;
    snprintf(party->name, sizeof party->name, "%s", name);
    snprintf(party->about, sizeof party->about, "host=h&pid=%d&command=contract", ++number);
    if (suite->backend->introduce) suite->backend->introduce(bk, TTL_MS, party->about);
    if (suite->backend->connect(bk, soon(), &party->session, &error) != BK_YES) fail_msg("connect: %s", error.text);
    party->life = (struct bk_life){.ttl_ms = TTL_MS, .grant = &party->grant};
    party->claim = (struct bk_claim){
        .name = party->name, .name_len = strlen(party->name), .ttl_ms = TTL_MS, .about = party->about};
    if (suite->backend->caps.life != BK_LIFE_NONE) party->claim.life = &party->life;
    party_new_owner(party);
    party->next = suite->parties;
    return suite->parties = party;
}

struct party *party_new(struct suite *suite, const char *name) {
    struct party *party = make(suite, open_url(suite, suite->fixture->url()), name);
    party->own_bk = true;
    return party;
}

struct party *party_beside(struct suite *suite, struct party *other, const char *name) {
    struct party *party = make(suite, other->bk, name);
    party->hub = other->hub;
    return party;
}

void party_shared(struct party *party) { party->claim.shared = true; }

void party_ttl(struct party *party, int64_t ttl_ms) { party->life.ttl_ms = party->claim.ttl_ms = ttl_ms; }

void party_new_owner(struct party *party) { random_bytes(party->claim.owner, sizeof party->claim.owner); }

/* The core sends to the session to which a claim or a grant is pinned. */
static struct bk_session *claim_session(struct party *party) {
    return party->claim.pin ? party->claim.pin : party->session;
}
static struct bk_session *grant_session(struct party *party) {
    return party->grant.pin ? party->grant.pin : party->session;
}

static bool yes(enum bk_says says, const char *what, const pawl_error *error) {
    if (says != BK_YES && says != BK_NO)
        fail_msg("%s: %s: %s", what, says == BK_UNKNOWN ? "unknown" : "fault", error->text);
    return says == BK_YES;
}

static void end_grant(struct suite *suite, struct party *party) {
    if (party->held) suite->backend->end(&party->grant, false);
    party->held = false;
}

static int waiting(const struct suite *suite) {
    int n = 0;
    for (const struct party *party = suite->parties; party; party = party->next) n += party->claim.of != NULL;
    return n;
}

bool party_take(struct suite *suite, struct party *party, bool queue) {
    pawl_error error = PAWL_ERROR_INIT;
    const struct backend *backend = suite->backend;
    if (queue && backend->caps.hub && !party->hub)
        party->hub = backend->hub_fd(party->bk) >= 0 || /* of the party beside it */
                     yes(backend->hub_open(party->bk, soon(), &error), "hub_open", &error);
    struct bk_grant grant = {0};
    bool waited = party->claim.of;
    int64_t left_ms;
    if (backend->caps.life == BK_LIFE_TTL && !party->life.of)
        yes(backend->begin_life(party->session, &party->life, soon(), &left_ms, &error), "begin_life", &error);
    if (!yes(backend->take(claim_session(party), &party->claim, queue, soon(), &grant, &party->busy, &error), "take",
             &error)) {
        if (!waited && party->claim.of && suite->fixture->settle) suite->fixture->settle(waiting(suite));
        return false;
    }
    end_grant(suite, party);
    party->grant = grant;
    party->grant.claim = &party->claim;
    party->held = true;
    assert_in_range(party->grant.token, 1, (UINT64_C(1) << 53) - 1);
    if (backend->caps.life == BK_LIFE_LOCK) assert_in_range(party->grant.left_ms, 1, party->claim.ttl_ms);
    return true;
}

static bool heard(const unsigned char owner[16], void *data) {
    struct suite *suite = data;
    bool any = false;
    for (struct party *party = suite->parties; party; party = party->next) {
        if (owner && memcmp(owner, party->claim.owner, 16) != 0) continue;
        party->woken++;
        any = true;
    }
    return any;
}

void party_hear(struct suite *suite, struct party *party, int64_t at_ns) {
    pawl_error error = PAWL_ERROR_INIT;
    int fds[2] = {party->hub ? suite->backend->hub_fd(party->bk) : -1, party->busy.queued ? party->busy.wake_fd : -1};
    struct pollfd polls[2] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};
    poll(polls, 2, clock_poll_ms(clock_now_ns(), at_ns));
    if (polls[0].revents && suite->backend->hub_io(party->bk, heard, suite, &error) != BK_YES)
        fail_msg("hub_io: %s", error.text);
    if (polls[1].revents) party->woken++;
}

void party_hear_all(struct suite *suite) {
    for (int quiet = 0; quiet < 2;) {
        int before = 0, after = 0;
        for (struct party *party = suite->parties; party; party = party->next) before += party->woken;
        for (struct party *party = suite->parties; party; party = party->next)
            if (party->hub) party_hear(suite, party, clock_after_ms(clock_now_ns(), 30));
        for (struct party *party = suite->parties; party; party = party->next) after += party->woken;
        quiet = before == after ? quiet + 1 : 0;
    }
}

bool party_await(struct suite *suite, struct party *party) {
    int64_t end = soon().at_ns;
    while (!party_take(suite, party, true)) {
        int64_t now = clock_now_ns(), again = clock_after_ms(now, party->busy.ask_again_ms);
        if (now >= end) return false;
        party->woken = 0;
        while (!party->woken && clock_now_ns() < again) party_hear(suite, party, again < end ? again : end);
    }
    return true;
}

bool party_forget(struct suite *suite, struct party *party) {
    pawl_error error = PAWL_ERROR_INIT;
    bool was_there = yes(suite->backend->forget(claim_session(party), &party->claim, soon(), &error), "forget", &error);
    end_grant(suite, party);
    return was_there;
}

bool party_release(struct suite *suite, struct party *party) {
    pawl_error error = PAWL_ERROR_INIT;
    struct bk_grant *one = &party->grant;
    enum bk_says says = BK_UNKNOWN;
    assert_true(yes(suite->backend->release(grant_session(party), &one, 1, soon(), &says, &error), "release", &error));
    return yes(says, "release", &error);
}

bool party_renew(struct suite *suite, struct party *party) {
    pawl_error error = PAWL_ERROR_INIT;
    struct bk_life *one = &party->life;
    enum bk_says says = BK_UNKNOWN;
    int64_t left = 0;
    assert_true(yes(suite->backend->renew(party->session, &one, 1, soon(), &says, &left, &error), "renew", &error));
    if (says == BK_YES) assert_in_range(left, 1, party->life.ttl_ms);
    return yes(says, "renew", &error);
}

bool party_prove(struct suite *suite, struct party *party) {
    pawl_error error = PAWL_ERROR_INIT;
    return yes(suite->backend->prove(grant_session(party), &party->grant, soon(), &error), "prove", &error);
}

struct count {
    int n;
    struct bk_record *last;
};

static bool count_record(const struct bk_record *record, void *data) {
    static char name[520], about[300];
    struct count *count = data;
    count->n++;
    if (!count->last) return true;
    *count->last = *record;
    snprintf(name, sizeof name, "%s", record->name);
    snprintf(about, sizeof about, "%s", record->about);
    count->last->name = name;
    count->last->about = about;
    return true;
}

int party_records(struct suite *suite, struct party *party, const char *name, struct bk_record *ret_last) {
    pawl_error error = PAWL_ERROR_INIT;
    struct count count = {0, ret_last};
    assert_true(
        yes(suite->backend->records(party->session, name, count_record, &count, soon(), &error), "records", &error));
    return count.n;
}

void party_gone(struct suite *suite, struct party *party) {
    end_grant(suite, party);
    if (suite->backend->caps.life == BK_LIFE_TTL) suite->backend->free_life(&party->life);
    if (party->session) suite->backend->drop(party->session, false);
    if (party->own_bk) {
        if (party->hub) suite->backend->hub_close(party->bk, false);
        suite->backend->close(party->bk, false);
    }
    struct party **at = &suite->parties;
    while (*at != party) at = &(*at)->next;
    *at = party->next;
    free(party);
}

int contract_case_number;

int case_setup(void **state) {
    (void)state;
    contract_case_number++;
    return 0;
}

/* Those beside a client come before it in the list, so they go first. */
int case_teardown(void **state) {
    struct suite *suite = *state;
    pawl_error error = PAWL_ERROR_INIT;
    while (suite->parties) {
        struct party *party = suite->parties;
        suite->backend->forget(claim_session(party), &party->claim, soon(), &error);
        party_gone(suite, party);
    }
    return 0;
}
