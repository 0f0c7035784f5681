#include "clock.h"
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <time.h>

int64_t clock_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t clock_wall_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_after_ms(int64_t now_ns, int64_t ms) {
    return ms >= (INT64_MAX - now_ns) / NS_PER_MS ? INT64_MAX : now_ns + ms * NS_PER_MS;
}

int clock_poll_ms(int64_t now_ns, int64_t at_ns) {
    if (at_ns == INT64_MAX) return -1;
    if (at_ns <= now_ns) return 0;
    int64_t ms = (at_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

int clock_wait_fd(int fd, short events, int64_t at_ns, int cancel_fd) {
    struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = cancel_fd, .events = POLLIN}};
    for (;;) {
        int n = poll(p, 2, clock_poll_ms(clock_now_ns(), at_ns));
        if (n < 0 && errno != EINTR) return -2;
        if (n > 0) return p[1].revents ? -1 : 1;
        if (n == 0 && clock_now_ns() >= at_ns) return 0;
    }
}
