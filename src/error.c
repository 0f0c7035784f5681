#include "error.h"
#include "sized.h"
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* number: 0, or the errno that is told behind it. */
static void fill(pawl_error *ret, int code, const char *node, const char *format, va_list arguments, int number) {
    if (!ret) return;
    pawl_error error = {.size = sizeof error, .code = code, .sys_errno = number};
    char buffer[128];
    snprintf(error.node, sizeof error.node, "%s", node ? node : "");
    int n = vsnprintf(error.text, sizeof error.text, format, arguments);
    if (number && n >= 0 && (size_t)n < sizeof error.text)
        snprintf(error.text + n, sizeof error.text - (size_t)n, ": %s", strerror_r(number, buffer, sizeof buffer));
    sized_give(ret, &error);
}

int error_set(pawl_error *error, int code, const char *node, const char *format, ...) {
    int number = errno;
    va_list arguments;
    va_start(arguments, format);
    fill(error, code, node, format, arguments, 0);
    va_end(arguments);
    errno = number;
    return code;
}

int error_errno(pawl_error *error, int code, const char *node, const char *format, ...) {
    int number = errno;
    va_list arguments;
    va_start(arguments, format);
    fill(error, code, node, format, arguments, number);
    va_end(arguments);
    errno = number;
    return code;
}

void error_copy(pawl_error *dst, const pawl_error *src) {
    if (dst && dst != src) sized_give(dst, src);
}
