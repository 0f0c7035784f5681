#include "module.h"
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct backend file_backend, mem_backend;

/* One row a scheme; `module` NULL: built in. Deleting a row and its folder removes a backend. */
static const struct row {
    const char *scheme, *module;
    const struct backend *builtin;
} rows[] = {
    {"file", NULL, &file_backend},
    {"mem", NULL, &mem_backend},
    {"redis", "redis", NULL},
    {"rediss", "redis", NULL},
    {"redis+unix", "redis", NULL},
    {"redis+sentinel", "redis", NULL},
    {"redlock", "redlock", NULL},
    {"redlocks", "redlock", NULL},
    {"postgresql", "postgresql", NULL},
    {"postgres", "postgresql", NULL},
    {"etcd", "etcd", NULL},
    {"etcds", "etcd", NULL},
};

/* Beside libpawl.so: in the build tree as installed (there in pawl/). */
static bool module_path(const char *name, char *ret, size_t size) {
    Dl_info info;
    char self[PATH_MAX];
    if (!dladdr((const void *)rows, &info) || !info.dli_fname || !realpath(info.dli_fname, self)) return false;
    const char *folder = dirname(self);
    snprintf(ret, size, "%s/pawl/pawl-%s.so", folder, name);
    if (access(ret, F_OK) == 0) return true;
    /* In the build tree a module lies in its source folder: guard-sqlite in guard/. */
    snprintf(ret, size, "%s/%.*s/pawl-%s.so", folder, (int)strcspn(name, "-"), name, name);
    return access(ret, F_OK) == 0;
}

int module_symbol(const char *name, const char *symbol, void **ret, pawl_error *error) {
    char path[PATH_MAX + 64];
    if (!module_path(name, path, sizeof path))
        return error_set(error, PAWL_EUNSUPPORTED, NULL,
                         "this build of pawl has no module '%s' (install it, or build with -Dbackends=%s)", name, name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) return error_set(error, PAWL_EUNSUPPORTED, path, "cannot load %s: %s", path, dlerror());
    const int *abi = dlsym(handle, "pawl_backend_abi");
    if (!abi || *abi != MODULE_ABI)
        return error_set(error, PAWL_EUNSUPPORTED, path, "%s belongs to another version of pawl", path);
    void *found = dlsym(handle, symbol);
    if (!found) return error_set(error, PAWL_EUNSUPPORTED, path, "%s has no %s", path, symbol);
    *ret = found;
    return PAWL_OK;
}

int module_backend(const char *scheme, const struct backend **ret, pawl_error *error) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].scheme, scheme) != 0) continue;
        if (rows[i].builtin) {
            *ret = rows[i].builtin;
            return PAWL_OK;
        }
        void *symbol;
        int code = module_symbol(rows[i].module, MODULE_BACKEND_SYMBOL, &symbol, error);
        if (code == PAWL_OK) *ret = *(const struct backend *const *)symbol;
        return code;
    }
    char list[128];
    module_list(list, sizeof list);
    return error_set(error, PAWL_EINVALID, NULL, "unknown scheme '%s:'; this build has %s", scheme, list);
}

void module_list(char *ret, size_t size) {
    char path[PATH_MAX + 64];
    size_t used = 0;
    const char *last = NULL;
    *ret = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].module &&
            ((last && strcmp(last, rows[i].module) == 0) || !module_path(rows[i].module, path, sizeof path)))
            continue;
        last = rows[i].module;
        int n = snprintf(ret + used, size - used, "%s%s", used ? " " : "", rows[i].scheme);
        if (n > 0 && (size_t)n < size - used) used += (size_t)n;
        ret[used] = 0; /* whole names only */
    }
}
