#include "error.h"
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static void fill(pawl_error *error, int code, const char *node, const char *format, va_list arguments, int number,
                 bool with_errno) {
    if (!error) return;
    error->code = code;
    error->sys_errno = number;
    snprintf(error->node, sizeof error->node, "%s", node ? node : "");
    int n = vsnprintf(error->text, sizeof error->text, format, arguments);
    if (!with_errno || n < 0 || (size_t)n >= sizeof error->text) return;
    char buffer[128];
    snprintf(error->text + n, sizeof error->text - (size_t)n, ": %s", strerror_r(number, buffer, sizeof buffer));
}

int error_set(pawl_error *error, int code, const char *node, const char *format, ...) {
    int number = errno;
    va_list arguments;
    va_start(arguments, format);
    fill(error, code, node, format, arguments, number, false);
    va_end(arguments);
    errno = number;
    return code;
}

int error_errno(pawl_error *error, int code, const char *node, const char *format, ...) {
    int number = errno;
    va_list arguments;
    va_start(arguments, format);
    fill(error, code, node, format, arguments, number, true);
    va_end(arguments);
    errno = number;
    return code;
}

void error_copy(pawl_error *dst, const pawl_error *src) {
    if (!dst || dst == src) return;
    size_t size = dst->size;
    memcpy(dst, src, size < src->size ? size : src->size);
    dst->size = size;
}
