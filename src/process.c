#include "process.h"
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

struct page {
    _Atomic pid_t pid;
    _Atomic uint64_t nonce;
};
static _Atomic(struct page *) page;

/* A page that reads as zero in a forked child. Without one (an odd kernel) the system is asked each time. */
__attribute__((constructor)) static void make_page(void) {
    void *made = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return;
    if (madvise(made, sizeof(struct page), MADV_WIPEONFORK) != 0) munmap(made, sizeof(struct page));
    else atomic_store(&page, made);
}

pid_t process_id(void) {
    struct page *mine = atomic_load_explicit(&page, memory_order_acquire);
    if (!mine) return getpid();
    pid_t pid = atomic_load_explicit(&mine->pid, memory_order_relaxed);
    if (pid == 0) atomic_store_explicit(&mine->pid, pid = getpid(), memory_order_relaxed);
    return pid;
}

static uint64_t draw(void) {
    uint64_t nonce = 0;
    while (nonce == 0)
        if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) nonce = 0;
    return nonce;
}

uint64_t process_nonce(void) {
    struct page *mine = atomic_load_explicit(&page, memory_order_acquire);
    if (!mine) return draw(); /* never the same twice: nobody keeps anything */
    uint64_t nonce = atomic_load_explicit(&mine->nonce, memory_order_acquire), fresh = nonce ? 0 : draw();
    if (nonce || atomic_compare_exchange_strong(&mine->nonce, &nonce, fresh)) return nonce ? nonce : fresh;
    return nonce; /* another thread was first */
}
