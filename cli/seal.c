#include "seal.h"
#include "guard.h"
#include <stdio.h>
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

int seal_raise(struct seal *seal, int64_t token, pid_t worker, const char *command, pawl_error *error) {
    char by[256];
    pawl_error said = PAWL_ERROR_INIT;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    describe_process(worker, command, by, sizeof by);
    write.resource = seal->resource;
    write.lock = seal->name;
    write.token = token;
    write.by = by;
    int code = pawl_guard_seal(seal->guard, &write, &said);
    if (code == PAWL_OK) return code;
    *error = said;
    snprintf(error->text, sizeof error->text, "cannot seal '%.160s': %.330s", seal->resource, said.text);
    return code == PAWL_ETIMEOUT ? PAWL_EUNREACHABLE : code; /* the lock itself was not busy */
}

void seal_close(struct seal *seal) {
    if (!seal) return;
    pawl_guard_close(seal->guard);
    free(seal->name);
    free(seal->resource);
    free(seal);
}
