/* error.h: one way to say what went wrong. A text goes from general to particular: what was attempted, what came back,
 * what to do. It never holds a secret. */
#ifndef PAWL_ERROR_H
#define PAWL_ERROR_H
#include "pawl.h"

/* Fills *error (NULL allowed) and returns code. node may be NULL. errno is not changed. */
int error_set(pawl_error *error, int code, const char *node, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same with ": <strerror(errno)>" behind it, and errno in sys_errno. */
int error_errno(pawl_error *error, int code, const char *node, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Copies src into *dst whatever the sizes with which both were compiled. */
void error_copy(pawl_error *dst, const pawl_error *src);
#endif
