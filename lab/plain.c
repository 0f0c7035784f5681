#include "plain.h"
#include "clock.h"
#include "error.h"

int plain_poll(int (*once)(void *client, const char *name, int64_t *ret_token, pawl_error *error), void *client,
               const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    int64_t end = clock_after_ms(clock_now_ns(), wait_ms);
    for (;;) {
        int code = once(client, name, ret_token, error);
        if (code != PAWL_EBUSY || wait_ms == 0) return code;
        if (clock_now_ns() >= end)
            return error_set(error, PAWL_ETIMEOUT, NULL, "somebody else held %s for %lld ms", name, (long long)wait_ms);
        clock_wait_fd(-1, 0, clock_after_ms(clock_now_ns(), 50), -1);
    }
}
