/* break.c: taking a lock away from whoever holds it. */
#include "client.h"
#include "clock.h"
#include "export.h"
#include "random.h"
#include "sized.h"
#include <stdio.h>
#include <string.h>

PAWL_EXPORT int pawl_break(pawl_client *c, const char *name, unsigned flags, int64_t wait_ms, pawl_broken *ret,
                           pawl_error *error) {
    struct session *s;
    struct bk_evicted evicted = {.token = 0};
    pawl_error own = PAWL_ERROR_INIT;
    int code = client_enter(c, error);
    if (!code) code = client_check_name(name, error);
    if (code) return code;
    if (flags & ~PAWL_BREAK_AT_ONCE) return error_set(error, PAWL_EINVALID, NULL, "pawl_break: unknown flags");
    if (!c->be->evict)
        return error_set(error, PAWL_EUNSUPPORTED, NULL,
                         "%s: has no way to take a lock from its holder: end that process (pawl who tells which)",
                         c->be->caps.scheme);
    int64_t patience_ms = wait_ms > 0 ? wait_ms : QUESTION_MS;
    const struct bk_until until = {.at_ns = clock_after_ms(client_now(c), patience_ms), .cancel_fd = -1};
    struct bk_claim claim = {.name = name, .name_len = strlen(name), .about = c->about, .ttl_ms = c->options.ttl_ms};
    random_bytes(claim.owner, sizeof claim.owner);
    code = session_borrow(c, SESSION_ANY, until, &s, error);
    if (code) return code;
    enum bk_says says = c->be->evict(s->bk, &claim, flags & PAWL_BREAK_AT_ONCE, until, &evicted, &own);
    session_return(c, s, says == BK_UNKNOWN || (says == BK_FAULT && own.code == PAWL_EUNREACHABLE));
    if (says > BK_NO) {
        error_copy(error, &own);
        return own.code ? own.code : PAWL_EUNREACHABLE;
    }
    pawl_broken broken = {.size = sizeof broken, .was_held = says == BK_YES};
    if (says == BK_YES) {
        about_describe(evicted.holder, broken.holder, sizeof broken.holder);
        broken.token = (int64_t)evicted.token;
        broken.free_in_ms = evicted.free_in_ms;
    }
    sized_give(ret, &broken);
    return PAWL_OK;
}
