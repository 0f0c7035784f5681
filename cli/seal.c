#include "seal.h"
#include "guard.h"
#include <stdlib.h>
#include <string.h>

struct seal {
    pawl_guard *guard;
    char *name, *resource;
};

int seal_open(const char *text, const char *name, struct seal **ret) {
    struct seal *seal = calloc(1, sizeof *seal);
    const char *mark = strrchr(text, '#');
    char *url = mark ? strndup(text, (size_t)(mark - text)) : strdup(text);
    int code = 0;
    if (seal) {
        seal->name = strdup(name);
        seal->resource = strdup(mark ? mark + 1 : name);
    }
    if (!seal || !url || !seal->name || !seal->resource) code = complain(EXIT_FAILED, name, "out of memory");
    else if (!*seal->resource) code = complain(EXIT_FAILED, name, "--seal %s: no resource behind '#'", text);
    else code = open_guard(url, name, &seal->guard);
    free(url);
    if (code) seal_close(seal);
    else *ret = seal;
    return code;
}

int seal_raise(struct seal *seal, int64_t token, pid_t worker, const char *command) {
    char by[256];
    describe_process(worker, command, by, sizeof by);
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    write.resource = seal->resource;
    write.lock = seal->name;
    write.token = token;
    write.by = by;
    if (pawl_guard_seal(seal->guard, &write, &error) == PAWL_OK) return 0;
    return complain(exit_code(error.code), seal->name, "cannot seal '%s': %s", seal->resource, error.text);
}

void seal_close(struct seal *seal) {
    if (!seal) return;
    pawl_guard_close(seal->guard);
    free(seal->name);
    free(seal->resource);
    free(seal);
}
