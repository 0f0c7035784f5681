/* clock.h: the one clock for waits and deadlines: CLOCK_BOOTTIME, which no administrator sets and which counts
 * suspends. Wall clocks are for people and for tokens only (clock_wall_us); tests/lint refuses them elsewhere. */
#ifndef PAWL_CLOCK_H
#define PAWL_CLOCK_H
#include <stdint.h>

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

int64_t clock_now_ns(void);
int64_t clock_wall_us(void); /* microseconds since 1970 */
/* now + ms without overflow; PAWL_FOREVER gives INT64_MAX. */
int64_t clock_after_ms(int64_t now_ns, int64_t ms);
/* The timeout for poll(2) that ends at `at_ns`: rounded up, 0 if past, -1 for INT64_MAX. */
int clock_poll_ms(int64_t now_ns, int64_t at_ns);
/* Waits for `events` on fd. 1: ready. 0: at_ns passed. -1: cancel_fd is readable (-1: none). -2: poll failed. */
int clock_wait_fd(int fd, short events, int64_t at_ns, int cancel_fd);
#endif
