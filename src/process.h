/* process.h: who we are, without a system call: it is asked at every public call, to notice a fork. */
#ifndef PAWL_PROCESS_H
#define PAWL_PROCESS_H
#include <stdint.h>
#include <sys/types.h>

/* getpid(), remembered in a page that the kernel clears in a forked child. Any thread, also in a signal handler. */
pid_t process_id(void);
/* A random number that differs in a forked child, also in one that got an ancestor's pid again. Never 0. */
uint64_t process_nonce(void);
#endif
