/* verdict.h: what an error reply of the server means for a question that was asked by script. Nearly all say that
 * nothing was done; what is not known here may have happened. */
#ifndef REDIS_VERDICT_H
#define REDIS_VERDICT_H
#include "wire.h"

/* FAULT or UNKNOWN, with the error filled in. */
enum bk_says verdict(const struct wire *w, const char *reply, pawl_error *error);
/* Does the error carry that code, raised in a script or outside? */
bool verdict_is(const char *reply, const char *code);
#endif
