/* init.c: preparing a service: asked once by whoever may, not by every client. */
#include "client.h"
#include "clock.h"
#include "export.h"

PAWL_EXPORT int pawl_init(pawl_client *c, int64_t wait_ms, pawl_error *error) {
    pawl_error own = PAWL_ERROR_INIT;
    int code = client_enter(c, error);
    if (code) return code;
    if (!c->be->init) return error_set(error, PAWL_EUNSUPPORTED, NULL, "%s: needs no preparing", c->be->caps.scheme);
    int64_t patience_ms = wait_ms > 0 ? wait_ms : QUESTION_MS;
    const struct bk_until until = {.at_ns = clock_after_ms(client_now(c), patience_ms), .cancel_fd = -1};
    if (c->be->init(c->bk, until, &own) == BK_YES) return PAWL_OK;
    error_copy(error, &own);
    return own.code ? own.code : PAWL_EUNREACHABLE;
}

PAWL_EXPORT const char *pawl_init_text(pawl_client *c) { return c->be->init_text ? c->be->init_text() : NULL; }
