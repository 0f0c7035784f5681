#include "pawl.h"
#include "export.h"
#include "module.h"
#include <stdio.h>

PAWL_EXPORT const char *pawl_strerror(int code) {
    static const char *const texts[] = {
        "done",
        "busy",
        "waited too long",
        "cancelled",
        "lock lost",
        "service unreachable",
        "denied",
        "unsafe set-up",
        "invalid argument",
        "not supported here",
        "internal error",
    };
    return code >= 0 && code <= PAWL_EINTERNAL ? texts[code] : "unknown code";
}

PAWL_EXPORT const char *pawl_version(void) {
    static char text[160];
    char list[128];
    module_list(list, sizeof list);
    snprintf(text, sizeof text, PAWL_VERSION_TEXT " %s; layout 1", list);
    return text;
}
