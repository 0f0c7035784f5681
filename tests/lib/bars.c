#include "bars.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

json_t *bench(const char *options, ...) {
    char command[1024];
    int used = snprintf(command, sizeof command, "%s bench --json ", getenv("PAWL_LAB"));
    va_list arguments;
    va_start(arguments, options);
    used += vsnprintf(command + used, sizeof command - (size_t)used, options, arguments);
    va_end(arguments);
    snprintf(command + used, sizeof command - (size_t)used, " 2>/dev/null");
    FILE *out = popen(command, "re");
    assert_non_null(out);
    json_error_t error;
    json_t *row = json_loadf(out, JSON_DISABLE_EOF_CHECK, &error);
    int status = pclose(out);
    if (!row || status) fail_msg("%s: status %d: %s", command, status, error.text);
    char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(4));
    printf("# %s\n", text); /* print_message has room for 1 KB */
    free(text);
    return row;
}

double number(const json_t *row, const char *key) { return json_number_value(json_object_get(row, key)); }
