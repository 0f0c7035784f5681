/* version.c: pawl version: the version, the services of this build, the layout of what is stored. */
#include "options.h"
#include <stdio.h>
#include <string.h>

int cmd_version(int argc, char **argv) {
    static const struct verb verb = {
        .name = "version",
        .usage = "pawl version [--json]\n\nThe version, the services that this build can use, and the layout of what "
                 "is stored.\n",
        .common = COMMON_JSON,
        .mixed = true,
    };
    struct common common = COMMON_INIT;
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    const char *version = pawl_version(); /* "0.1.0 file mem redis; layout 1" */
    if (!common.json) {
        printf("pawl %s\n", version);
        return 0;
    }
    const char *semicolon = strchr(version, ';');
    size_t length = strcspn(version, " ;");
    printf("{\"version\":\"%.*s\",\"services\":[", (int)length, version);
    const char *comma = "";
    for (const char *at = version + length; at < semicolon;) {
        at += strspn(at, " ");
        length = strcspn(at, " ;");
        if (length) printf("%s\"%.*s\"", comma, (int)length, at);
        at += length;
        comma = ",";
    }
    printf("],\"layout\":%s}\n", semicolon ? semicolon + strlen("; layout ") : "null");
    return 0;
}
