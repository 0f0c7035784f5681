/* release.c: pawl release HANDLE: ends a `pawl hold -d` and tells how it ended. */
#include "handle.h"
#include "options.h"
#include <stdio.h>
#include <string.h>

static const char usage[] = "pawl release [--json] HANDLE\n"
                            "\n"
                            "Ends a `pawl hold -d`, which printed HANDLE, and waits until the lock is released.\n"
                            "\n"
                            "  --json   the event that ended it, on stdout\n"
                            "\n"
                            "Exit: 0 released; 122 the lock was lost before, or its holder died; 125 no such hold.\n";

int cmd_release(int argc, char **argv) {
    static const struct verb verb = {.name = "release",
                                     .usage = usage,
                                     .common = COMMON_JSON,
                                     .mixed = true,
                                     .least = 1,
                                     .most = 1,
                                     .operands = "HANDLE"};
    struct common common = COMMON_INIT;
    struct hold_result result;
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    const char *handle = argv[1];
    if (!handle_valid(handle))
        return complain(EXIT_FAILED, NULL, "release: '%.80s' is not a handle, as hold -d prints one", handle);
    switch (handle_release(handle, &result)) {
    case HANDLE_ERROR: return EXIT_FAILED;
    case HANDLE_UNKNOWN: return complain(EXIT_FAILED, NULL, "release: there is no hold %s of this user", handle);
    case HANDLE_DIED:
        return complain(EXIT_LOST, NULL, "release: the hold %s had died: its lock is free, or will be within its ttl",
                        handle);
    case HANDLE_TALKS:
    case HANDLE_ENDED: break;
    }
    if (common.json) puts(result.json);
    if (result.code) return complain(result.code, NULL, "%s", result.text);
    advise(NULL, "%s", result.text);
    return 0;
}
