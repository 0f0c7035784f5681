/* module.h: which backend serves a scheme. file and mem are part of the library; the others are modules beside it,
 * loaded when first needed, so that nobody pays for a client library that he does not use. */
#ifndef PAWL_MODULE_H
#define PAWL_MODULE_H
#include "backend.h"

/* A module exports one table under this name. */
#define MODULE_BACKEND_SYMBOL "pawl_backend"
/* Raised whenever backend.h changes: a module of another build is refused. Exported as int pawl_backend_abi. */
#define MODULE_ABI 8
#define MODULE_EXPORT_BACKEND(table)                                                                                   \
    __attribute__((visibility("default"))) extern const struct backend *const pawl_backend;                            \
    __attribute__((visibility("default"))) extern const int pawl_backend_abi;                                          \
    const struct backend *const pawl_backend = &(table);                                                               \
    const int pawl_backend_abi = MODULE_ABI

int module_backend(const char *scheme, const struct backend **ret, pawl_error *error);
/* Opens any module file "pawl-<name>.so" of this build and returns the address of `symbol` (guards use it too). */
int module_symbol(const char *name, const char *symbol, void **ret, pawl_error *error);
/* "file mem redis": what this build has. */
void module_list(char *ret, size_t size);
#endif
