#include "scheduler.h"
#include "clock.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/types.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#define ACTORS_MAX 32
#define STACK_SIZE (256 * 1024)
#define STEPS_AT_ONE_TIME 100000
#define FIRST_FD (1 << 20)
#define FDS_MAX 512

struct actor {
    ucontext_t context;
    char *stack; /* kept from seed to seed */
    struct host *host;
    actor_fn *run;
    void *data;
    bool ended;
    int64_t wake_ns;
    ready_fn *ready;
    void *ready_data;
    void *fake_stack, *fiber; /* the sanitizers' */
};

static struct actor actors[ACTORS_MAX];
static int n_actors;
static struct actor *current;
static ucontext_t main_context;
#if defined(__SANITIZE_ADDRESS__)
static const void *main_bottom;
static size_t main_size;
#endif
#if defined(__SANITIZE_THREAD__)
static void *main_fiber;
#endif
static void *main_fake_stack;
static uint64_t random_state;
static struct {
    bool open;
    uint64_t count;
} fds[FDS_MAX];

/* --- random numbers --- */

uint64_t sched_random(void) {
    random_state ^= random_state >> 12; /* xorshift64* */
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}

int64_t sched_between(int64_t low, int64_t high) {
    return high <= low ? low : low + (int64_t)((sched_random() >> 11) % (uint64_t)(high - low + 1));
}

bool sched_chance(unsigned per_mille) { return sched_between(0, 999) < (int64_t)per_mille; }

/* --- changing places --- */

static void after_switch(void *fake_stack) {
    (void)fake_stack;
#if defined(__SANITIZE_ADDRESS__)
    if (current)
        __sanitizer_finish_switch_fiber(fake_stack, main_bottom ? NULL : &main_bottom, main_bottom ? NULL : &main_size);
    else __sanitizer_finish_switch_fiber(fake_stack, NULL, NULL);
#endif
}

static void to_actor(struct actor *actor) {
    current = actor;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&main_fake_stack, actor->stack, STACK_SIZE);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(actor->fiber, 0);
#endif
    swapcontext(&main_context, &actor->context);
    after_switch(main_fake_stack);
}

static void to_main(void) {
    struct actor *me = current;
    current = NULL;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(me->ended ? NULL : &me->fake_stack, main_bottom, main_size);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(main_fiber, 0);
#endif
    swapcontext(&me->context, &main_context);
    after_switch(me->fake_stack);
}

static void begin(void) {
    after_switch(NULL);
    current->run(current->data);
    current->ended = true;
    to_main();
}

void sched_start(uint64_t seed) {
    n_actors = 0;
    memset(fds, 0, sizeof fds);
    random_state = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < 8; i++) sched_random();
#if defined(__SANITIZE_THREAD__)
    main_fiber = __tsan_get_current_fiber();
#endif
}

void sched_spawn(struct host *host, actor_fn *run, void *data) {
    if (n_actors == ACTORS_MAX) abort();
    struct actor *actor = &actors[n_actors++];
    char *stack = actor->stack ? actor->stack : malloc(STACK_SIZE);
    if (!stack) abort();
#if defined(__SANITIZE_THREAD__)
    if (actor->fiber) __tsan_destroy_fiber(actor->fiber);
#endif
    *actor = (struct actor){.stack = stack, .host = host, .run = run, .data = data};
#if defined(__SANITIZE_THREAD__)
    actor->fiber = __tsan_create_fiber(0);
#endif
    getcontext(&actor->context);
    actor->context.uc_stack.ss_sp = stack;
    actor->context.uc_stack.ss_size = STACK_SIZE;
    makecontext(&actor->context, begin, 0);
}

void sched_wait(int64_t at_ns, ready_fn *ready, void *data) {
    if (!current) {
        if (at_ns != INT64_MAX && at_ns > virtual_true_ns()) virtual_set_ns(at_ns);
        return;
    }
    current->wake_ns = at_ns;
    current->ready = ready;
    current->ready_data = data;
    to_main();
}

/* When the actor can go on; INT64_MAX: only if somebody else does something. */
static int64_t can_go_ns(const struct actor *actor, int64_t now) {
    int64_t at = actor->wake_ns;
    if (at > now && actor->ready && actor->ready(actor->ready_data)) at = now;
    if (at != INT64_MAX && at < actor->host->paused_until_ns) at = actor->host->paused_until_ns;
    return at;
}

bool sched_run(int64_t end_ns, ready_fn *before, ready_fn *after, void *data) {
    int standing = 0;
    for (;;) {
        struct actor *able[ACTORS_MAX];
        int n = 0, alive = 0;
        int64_t now = virtual_true_ns(), next = INT64_MAX;
        for (int i = 0; i < n_actors; i++) {
            if (actors[i].ended) continue;
            alive++;
            int64_t at = can_go_ns(&actors[i], now);
            if (at <= now) able[n++] = &actors[i];
            else if (at < next) next = at;
        }
        if (alive == 0) return true;
        if (n > 0) {
            to_actor(able[sched_between(0, n - 1)]);
            if (!after(data) || ++standing > STEPS_AT_ONE_TIME) return false;
            continue;
        }
        if (next == INT64_MAX || next > end_ns) return false;
        virtual_set_ns(next);
        standing = 0;
        if (!before(data)) return false;
    }
}

/* --- what the linker gives us instead of the kernel --- */

int __wrap_eventfd(unsigned count, int flags);
int __wrap_eventfd_read(int fd, eventfd_t *ret);
int __wrap_eventfd_write(int fd, eventfd_t more);
int __wrap_close(int fd);
int __real_close(int fd);
int __wrap_poll(struct pollfd *polls, nfds_t n, int timeout_ms);
void __wrap_random_bytes(void *ret, size_t size);
int64_t __wrap_random_between(int64_t low, int64_t high);

static bool is_ours(int fd) { return fd >= FIRST_FD && fd < FIRST_FD + FDS_MAX && fds[fd - FIRST_FD].open; }

int __wrap_eventfd(unsigned count, int flags) {
    (void)flags;
    for (int i = 0; i < FDS_MAX; i++) {
        if (fds[i].open) continue;
        fds[i].open = true;
        fds[i].count = count;
        return FIRST_FD + i;
    }
    errno = EMFILE;
    return -1;
}

int __wrap_eventfd_read(int fd, eventfd_t *ret) {
    if (!is_ours(fd)) abort();
    if (fds[fd - FIRST_FD].count == 0) {
        errno = EAGAIN;
        return -1;
    }
    *ret = fds[fd - FIRST_FD].count;
    fds[fd - FIRST_FD].count = 0;
    return 0;
}

int __wrap_eventfd_write(int fd, eventfd_t more) {
    if (!is_ours(fd)) abort();
    fds[fd - FIRST_FD].count += more;
    return 0;
}

int __wrap_close(int fd) {
    if (!is_ours(fd)) return __real_close(fd);
    fds[fd - FIRST_FD].open = false;
    return 0;
}

bool sched_fd_readable(int fd) { return is_ours(fd) && fds[fd - FIRST_FD].count > 0; }

struct polled {
    struct pollfd *polls;
    nfds_t n;
};

static bool any_readable(void *data) {
    const struct polled *p = data;
    for (nfds_t i = 0; i < p->n; i++)
        if (sched_fd_readable(p->polls[i].fd)) return true;
    return false;
}

int __wrap_poll(struct pollfd *polls, nfds_t n, int timeout_ms) {
    struct polled p = {polls, n};
    int found = 0;
    if (timeout_ms != 0 && !any_readable(&p))
        sched_wait(timeout_ms < 0 ? INT64_MAX : clock_after_ms(virtual_true_ns(), timeout_ms), any_readable, &p);
    for (nfds_t i = 0; i < n; i++) {
        polls[i].revents = sched_fd_readable(polls[i].fd) ? POLLIN : 0;
        found += polls[i].revents != 0;
    }
    return found;
}

void __wrap_random_bytes(void *ret, size_t size) {
    unsigned char *at = ret;
    for (size_t i = 0; i < size; i++) at[i] = (unsigned char)(sched_random() >> 40);
}

int64_t __wrap_random_between(int64_t low, int64_t high) { return sched_between(low, high); }
