/* skew.h: a server whose wall clock is wrong. Preloaded, skew.c adds an offset from a mapped file to what
 * gettimeofday, time and clock_gettime(CLOCK_REALTIME) say; monotonic clocks stay. A test asserts first that its victim
 * sees the shift. */
#ifndef LAB_SKEW_H
#define LAB_SKEW_H
#include "server.h"

/* The library to put into server.shim before the server is started. */
const char *skew_library(void);
/* Shifts the clock of a running (or stopped) server from now on. */
void skew_set(const struct server *s, int64_t ms);
#endif
