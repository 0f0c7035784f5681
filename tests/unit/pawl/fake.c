/* A module for test_module: KIND 1 is right, 2 was built for another contract, 3 says nothing of a contract. */
#include "module.h"

static const struct backend fake = {.caps = {.scheme = "fake"}};
#if KIND == 1
MODULE_EXPORT_BACKEND(fake);
#elif KIND == 2
__attribute__((visibility("default"))) extern const int pawl_backend_abi;
const int pawl_backend_abi = MODULE_ABI + 1;
#endif
#if KIND != 1
__attribute__((visibility("default"))) extern const struct backend *const pawl_backend;
const struct backend *const pawl_backend = &fake;
#endif
