/* sized.h: the structs of the public headers, which begin with their own size, so that a program and a library of
 * different versions get on. */
#ifndef PAWL_SIZED_H
#define PAWL_SIZED_H
#include <pawl.h>
#include <stddef.h>

/* *ret has its defaults and is of the size that this version knows; what the caller gave is laid over it.
 * PAWL_EINVALID: it was not begun with its INIT (so its wishes cannot be told from rubbish), or wishes for what this
 * version lacks. */
int sized_take(void *ret, const void *given, const char *what, pawl_error *error);
/* As much as the caller has room for. */
void sized_give(void *ret, const void *from);
/* What an INIT does, for languages without a preprocessor. */
void sized_init(void *ret, size_t size, const void *init);
#endif
