/* wait.c: see wait.h. The one thing to know: the thread owns nothing. Descriptor and memory belong to the claim, so
 * however a cancellation meets a grant, unlocking the descriptor after the thread has ended leaves nothing behind.
 *
 * A thread that has got a lock rests until the next wait: the new holder need not share its processor with the end of a
 * thread, nor the next waiter with the beginning of one.
 *
 * Only a signal ends a blocked flock, and a library installs no handlers; pthread_cancel uses glibc's own. */
#include "wait.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STACK = 64 * 1024, RESTING_MOST = 8 };

struct wait {
    struct lockfile file; /* fd -1: none, it rests */
    bool shared;
    int fd;           /* eventfd; drained when the next wait begins */
    int error;        /* written before over */
    atomic_bool over; /* set before the eventfd is written */
    sem_t begin;      /* posted once a wait, and once to quit */
    bool quit;
    pthread_t thread;
    struct waits *all;
    struct wait *next;
};

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER; /* of the links only */

void wait_fork_begins(void) { pthread_mutex_lock(&lists); }
void wait_fork_ends(void) { pthread_mutex_unlock(&lists); }

static void delist_locked(struct wait *wait) {
    struct wait **at = &wait->all->first;
    while (*at != wait) at = &(*at)->next;
    *at = wait->next;
}

/* --- the thread --- */

static void wait_for(struct wait *wait) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    wait->error = lockfile_turn(&wait->file);
    if (wait->error == 0) wait->error = lockfile_wait(&wait->file, wait->shared);
    if (wait->shared) lockfile_leave(&wait->file); /* the next reader may pass before this one has noticed */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
}

static void *run(void *data) {
    struct wait *wait = data;
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    for (;;) {
        while (sem_wait(&wait->begin) != 0) continue;
        if (wait->quit) return NULL;
        wait_for(wait);
        atomic_store(&wait->over, true);
        eventfd_write(wait->fd, 1);
    }
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

/* Returns errno. */
static int make(struct wait **ret) {
    struct wait *wait = calloc(1, sizeof *wait);
    if (!wait) return ENOMEM;
    sem_init(&wait->begin, 0, 0);
    wait->fd = place_above_two(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    int number = wait->fd < 0 ? errno : start_thread(wait);
    if (number) {
        if (wait->fd >= 0) close(wait->fd);
        free(wait);
        return number;
    }
    *ret = wait;
    return 0;
}

static void free_wait(struct wait *wait) {
    close(wait->fd);
    sem_destroy(&wait->begin);
    free(wait);
}

/* The thread rests, or is to be cancelled: it may have come to rest meanwhile, where no cancellation reaches it. */
static void end(struct wait *wait, bool cancel) {
    wait->quit = true;
    sem_post(&wait->begin);
    if (cancel) pthread_cancel(wait->thread);
    pthread_join(wait->thread, NULL);
}

/* --- one wait --- */

static struct wait *wake_one(struct waits *all) {
    pthread_mutex_lock(&lists);
    struct wait *wait = all->resting;
    if (wait) all->resting = wait->next, all->n_resting--;
    pthread_mutex_unlock(&lists);
    return wait;
}

int wait_start(struct waits *all, const struct lockfile *file, bool shared, struct wait **ret, pawl_error *error) {
    struct lockfile copy = *file;
    copy.seen = false;
    struct wait *wait = wake_one(all);
    errno = wait ? 0 : make(&wait);
    if (!wait) {
        int code =
            error_errno(error, PAWL_EINTERNAL, copy.file, "cannot start to wait for the lock file %s", copy.file);
        lockfile_unlock(&copy);
        lockfile_close(&copy);
        return code;
    }
    eventfd_t last;
    eventfd_read(wait->fd, &last);
    wait->over = false;
    wait->file = copy;
    wait->shared = shared;
    wait->all = all;
    pthread_mutex_lock(&lists);
    wait->next = all->first;
    all->first = wait;
    pthread_mutex_unlock(&lists);
    sem_post(&wait->begin);
    *ret = wait;
    return PAWL_OK;
}

int wait_fd(const struct wait *wait) { return wait->fd; }

struct lockfile *wait_file(struct wait *wait) {
    return &wait->file;
}

bool wait_collect(struct wait *wait, struct lockfile *ret, int *ret_errno) {
    struct waits *all = wait->all;
    if (!atomic_load(&wait->over)) return false;
    *ret = wait->file;
    *ret_errno = wait->error;
    wait->file.fd = -1;
    pthread_mutex_lock(&lists);
    delist_locked(wait);
    bool rests = all->n_resting < RESTING_MOST;
    if (rests) {
        wait->next = all->resting;
        all->resting = wait;
        all->n_resting++;
    }
    pthread_mutex_unlock(&lists);
    if (!rests) {
        end(wait, false);
        free_wait(wait);
    }
    return true;
}

void wait_cancel(struct wait *wait) {
    end(wait, true);
    lockfile_unlock(&wait->file);
    lockfile_close(&wait->file);
    pthread_mutex_lock(&lists);
    delist_locked(wait);
    pthread_mutex_unlock(&lists);
    free_wait(wait);
}

void wait_end_resting(struct waits *all) {
    for (struct wait *wait; (wait = wake_one(all));) {
        end(wait, false);
        free_wait(wait);
    }
}

void wait_forget_all(struct waits *all) {
    struct wait **lists_of[] = {&all->first, &all->resting};
    for (int i = 0; i < 2; i++)
        for (struct wait *wait = *lists_of[i], *next; wait; wait = next) {
            next = wait->next;
            if (wait->file.fd >= 0) lockfile_close(&wait->file);
            close(wait->fd);
            free(wait);
        }
    *all = (struct waits){0};
}
