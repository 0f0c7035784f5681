#include "backend.h"
extern const struct backend file_backend;
const struct backend file_backend = {.caps = {.scheme = "file"}};
