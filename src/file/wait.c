/* wait.c: see wait.h. The one thing to know: the thread owns nothing. Descriptor and memory belong to the claim, so
 * however a cancellation meets a grant, unlocking the descriptor after the thread has ended leaves nothing behind.
 *
 * Only a signal ends a blocked flock, and a library installs no handlers; pthread_cancel uses glibc's own. */
#include "wait.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STACK = 64 * 1024 };

struct wait {
    struct lockfile file;
    bool shared;
    int fd;    /* eventfd */
    int error; /* written before the eventfd is */
    pthread_t thread;
    struct waits *all;
    struct wait *next;
};

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER; /* of the links only */

void wait_fork_begins(void) { pthread_mutex_lock(&lists); }
void wait_fork_ends(void) { pthread_mutex_unlock(&lists); }

static void enlist(struct wait *wait, struct waits *all) {
    pthread_mutex_lock(&lists);
    wait->all = all;
    wait->next = all->first;
    all->first = wait;
    pthread_mutex_unlock(&lists);
}

static void delist(struct wait *wait) {
    pthread_mutex_lock(&lists);
    struct wait **at = &wait->all->first;
    while (*at != wait) at = &(*at)->next;
    *at = wait->next;
    pthread_mutex_unlock(&lists);
}

static void *run(void *data) {
    struct wait *wait = data;
    wait->error = lockfile_turn(&wait->file);
    if (wait->error == 0) wait->error = lockfile_wait(&wait->file, wait->shared);
    if (wait->shared) lockfile_leave(&wait->file); /* the next reader may pass before this one has noticed */
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    eventfd_write(wait->fd, 1);
    return NULL;
}

static bool cancellable;
static void find_unwinder(void) {
    cancellable = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != NULL;
}

/* glibc ends the process if it cannot load the unwinder when a thread is cancelled (after a chroot, say): so it is
 * loaded before the first one is started. */
bool wait_possible(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_unwinder);
    return cancellable;
}

/* All signals blocked: they belong to the application's threads. */
static int start_thread(struct wait *wait) {
    sigset_t all, before;
    pthread_attr_t attributes;
    int number = pthread_attr_init(&attributes);
    if (number) return number;
    pthread_attr_setstacksize(&attributes, STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    number = pthread_create(&wait->thread, &attributes, run, wait);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return number;
}

static void end(struct wait *wait) {
    if (wait->fd >= 0) close(wait->fd);
    free(wait);
}

int wait_start(struct waits *all, const struct lockfile *file, bool shared, struct wait **ret, pawl_error *error) {
    struct lockfile copy = *file;
    copy.seen = false;
    struct wait *wait = calloc(1, sizeof *wait);
    if (wait) {
        *wait = (struct wait){
            .file = copy, .shared = shared, .fd = place_above_two(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
        errno = wait->fd < 0 ? errno : start_thread(wait);
        if (wait->fd >= 0 && errno == 0) {
            enlist(wait, all);
            *ret = wait;
            return PAWL_OK;
        }
    } else errno = ENOMEM;
    int code = error_errno(error, PAWL_EINTERNAL, copy.file, "cannot start to wait for the lock file %s", copy.file);
    lockfile_unlock(&copy);
    lockfile_close(&copy);
    if (wait) end(wait);
    return code;
}

int wait_fd(const struct wait *wait) { return wait->fd; }

struct lockfile *wait_file(struct wait *wait) {
    return &wait->file;
}

bool wait_collect(struct wait *wait, struct lockfile *ret, int *ret_errno) {
    eventfd_t over;
    if (eventfd_read(wait->fd, &over) != 0) return false;
    pthread_detach(wait->thread); /* all that is left of it is its end, for which nobody need wait */
    *ret = wait->file;
    *ret_errno = wait->error;
    delist(wait);
    end(wait);
    return true;
}

void wait_cancel(struct wait *wait) {
    pthread_cancel(wait->thread);
    pthread_join(wait->thread, NULL);
    lockfile_unlock(&wait->file);
    lockfile_close(&wait->file);
    delist(wait);
    end(wait);
}

void wait_forget_all(struct waits *all) {
    while (all->first) {
        struct wait *wait = all->first;
        all->first = wait->next;
        lockfile_close(&wait->file);
        end(wait);
    }
}
