/* skew.c: the preloaded half of skew.h. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SHIM __attribute__((visibility("default")))

SHIM int clock_gettime(clockid_t clock, struct timespec *ret);
SHIM int gettimeofday(struct timeval *ret, void *zone);
SHIM time_t time(time_t *ret);

static const volatile int64_t *offset_ms; /* NULL: no file */

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("PAWL_TEST_SKEW");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof *offset_ms, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) offset_ms = page;
}

int clock_gettime(clockid_t clock, struct timespec *ret) {
    if (syscall(SYS_clock_gettime, clock, ret)) return -1;
    if ((clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && offset_ms) {
        int64_t ns = ret->tv_nsec + *offset_ms % 1000 * 1000000;
        ret->tv_sec += *offset_ms / 1000 + ns / 1000000000;
        ret->tv_nsec = ns % 1000000000;
        if (ret->tv_nsec < 0) {
            ret->tv_nsec += 1000000000;
            ret->tv_sec--;
        }
    }
    return 0;
}

int gettimeofday(struct timeval *ret, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    ret->tv_sec = now.tv_sec;
    ret->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *ret) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (ret) *ret = now.tv_sec;
    return now.tv_sec;
}
