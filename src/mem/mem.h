/* mem.h: what tests may turn in the backend "mem:". */
#ifndef PAWL_MEM_H
#define PAWL_MEM_H
#include <stdint.h>

/* The clock of the service, nanoseconds that never go back; clock_now_ns unless a test sets it before the first client.
 */
extern int64_t (*mem_clock)(void);
#endif
