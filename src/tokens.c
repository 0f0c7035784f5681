/* tokens.c: where the numbers of a service stand, and lifting them: one question each, on a borrowed session. */
#include "client.h"
#include "clock.h"
#include "export.h"
#include "metrics.h"
#include "sized.h"
#include "token.h"
#include <stdio.h>
#include <string.h>

static int ask(pawl_client *c, bool advance, uint64_t to, int64_t wait_ms, pawl_tokens *ret, pawl_error *error) {
    struct session *s;
    struct bk_tokens answer = {0};
    pawl_error own = PAWL_ERROR_INIT;
    int code = client_enter(c, error);
    if (code) return code;
    int64_t patience_ms = wait_ms > 0 ? wait_ms : QUESTION_MS;
    const struct bk_until until = {.at_ns = clock_after_ms(client_now(c), patience_ms), .cancel_fd = -1};
    code = session_borrow(c, SESSION_ANY, until, &s, error);
    if (code) return code;
    enum bk_says says = c->be->tokens(s->bk, advance, to, until, &answer, &own);
    session_return(c, s, says == BK_UNKNOWN || (says == BK_FAULT && own.code == PAWL_EUNREACHABLE));
    if (says != BK_YES) {
        error_copy(error, &own);
        return own.code ? own.code : PAWL_EUNREACHABLE;
    }
    int64_t skew_us = answer.clock_us - clock_wall_us();
    if (answer.clock_us && c->url->n_hosts) metrics_skew(&process_metrics, c->url->hosts[0].host, skew_us);
    pawl_tokens tokens = {sizeof tokens, (int64_t)answer.last, (int64_t)answer.since, answer.clock_us, "", ""};
    snprintf(tokens.stored, sizeof tokens.stored, "%s", answer.stored);
    snprintf(tokens.answering, sizeof tokens.answering, "%s", answer.answering);
    sized_give(ret, &tokens);
    return PAWL_OK;
}

PAWL_EXPORT int pawl_tokens_show(pawl_client *c, int64_t wait_ms, pawl_tokens *ret, pawl_error *error) {
    return ask(c, false, 0, wait_ms, ret, error);
}

PAWL_EXPORT int pawl_tokens_advance(pawl_client *c, int64_t to, int64_t wait_ms, pawl_tokens *ret, pawl_error *error) {
    int code = to ? token_may_lift(to, clock_wall_us(), error) : PAWL_OK;
    if (code) return code;
    return ask(c, true, (uint64_t)to, wait_ms, ret, error);
}
