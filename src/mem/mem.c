#include "backend.h"
extern const struct backend mem_backend;
const struct backend mem_backend = {.caps = {.scheme = "mem"}};
