/* init.c: preparing a service: asked once by whoever may, not by every client. */
#include "client.h"
#include "clock.h"
#include "export.h"
#include "token.h"

static struct bk_until patience(const pawl_client *c, int64_t wait_ms) {
    return (struct bk_until){.at_ns = clock_after_ms(client_now(c), wait_ms > 0 ? wait_ms : QUESTION_MS),
                             .cancel_fd = -1};
}

static int result(enum bk_says says, const pawl_error *own, pawl_error *error) {
    if (says == BK_YES && (own->code || !*own->text)) return PAWL_OK;
    error_copy(error, own);
    if (says == BK_YES) return PAWL_OK;
    return own->code ? own->code : PAWL_EUNREACHABLE;
}

PAWL_EXPORT int pawl_init(pawl_client *c, int64_t wait_ms, pawl_error *error) {
    pawl_error own = PAWL_ERROR_INIT;
    int code = client_enter(c, error);
    if (code) return code;
    if (!c->be->init) return error_set(error, PAWL_EUNSUPPORTED, NULL, "%s: needs no preparing", c->be->caps.scheme);
    return result(c->be->init(c->bk, patience(c, wait_ms), &own), &own, error);
}

PAWL_EXPORT int pawl_init_above(pawl_client *c, int64_t floor, int64_t wait_ms, pawl_error *error) {
    pawl_error own = PAWL_ERROR_INIT;
    int code = client_enter(c, error);
    if (code) return code;
    if (!c->be->init_above)
        return error_set(error, PAWL_EUNSUPPORTED, NULL,
                         "%s: has no floor to go on above; its tokens are lifted by pawl token advance --to",
                         c->be->caps.scheme);
    code = token_may_lift(floor, clock_wall_us(), error);
    if (code) return code;
    return result(c->be->init_above(c->bk, (uint64_t)floor, patience(c, wait_ms), &own), &own, error);
}

PAWL_EXPORT const char *pawl_init_text(pawl_client *c) { return c->be->init_text ? c->be->init_text() : NULL; }
