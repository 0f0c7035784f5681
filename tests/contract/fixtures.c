/* fixtures.c: one row a backend. To plug one in: add its row here and its name in meson.build. */
#include "clock.h"
#include "contract.h"
#include "mem/mem.h"
#include "virtual_clock.h"
#include <stdio.h>

static const char *mem_start(void) {
    mem_clock = virtual_true_ns;
    return NULL;
}
static void mem_stop(void) { mem_clock = clock_now_ns; }
static const char *mem_url(void) { return "mem:contract"; }
static void mem_pass(int64_t ms) { virtual_advance_ns(ms * NS_PER_MS); }

const struct fixture fixtures[] = {
    {.name = "mem", .scheme = "mem", .start = mem_start, .stop = mem_stop, .url = mem_url, .pass_ms = mem_pass},
    {0},
};
