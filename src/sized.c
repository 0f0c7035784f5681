#include "sized.h"
#include "error.h"
#include <string.h>

#define LARGEST 4096 /* no version's struct is larger */

static size_t size_of(const void *of) {
    size_t size;
    memcpy(&size, of, sizeof size);
    return size;
}

int sized_take(void *ret, const void *given, const char *what, pawl_error *error) {
    if (!given) return PAWL_OK;
    size_t known = size_of(ret), size = size_of(given);
    const char *bytes = given;
    if (size < known || size > LARGEST)
        return error_set(error, PAWL_EINVALID, NULL, "the %s were not begun with their INIT: their size is %zu", what,
                         size);
    for (size_t i = known; i < size; i++)
        if (bytes[i])
            return error_set(error, PAWL_EINVALID, NULL, "the %s want what this version of pawl does not have", what);
    memcpy(ret, given, known);
    memcpy(ret, &known, sizeof known);
    return PAWL_OK;
}

void sized_give(void *ret, const void *from) {
    size_t known = size_of(from), size = size_of(ret);
    memcpy(ret, from, size && size < known ? size : known); /* 0: it has no INIT, and the size of today */
    memcpy(ret, &size, sizeof size);
}

void sized_init(void *ret, size_t size, const void *init) {
    memset(ret, 0, size);
    memcpy(ret, &size, sizeof size);
    sized_give(ret, init);
}
