/* init.c: pawl init: prepares a service, or prints what that would do. */
#include "options.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "pawl init [URL] [--print] [--floor N]\n"
    "\n"
    "Prepares a service for pawl. postgresql: installs the schema `pawl` (one sequence, one "
    "row, some functions); may be\n"
    "repeated. redlock: admits instances that never voted, or lost their memory. file:, "
    "redis: and etcd: need none.\n"
    "\n"
    "      --print       print the SQL instead of running it, for psql or a migration tool\n"
    "      --floor N     redlock: so many instances lost their memory that nobody knows "
    "where the tokens stood: they\n"
    "                    go on above N, the highest that any resource saw (pawl guard get), at most ten years ahead\n"
    "                    of the clock. It says too that no lock of before is held: instances that wait before they\n"
    "                    vote wait no longer\n"
    "  -w, --wait DUR    for the service to answer (30s)\n"
    "  -u, --url URL   -v   -q   --log text|json\n"
    "\n"
    "Exit: 0 done, or nothing to do; 119 refused: redlock: a quorum lost its memory; 120 unreachable or denied, or "
    "redlock:\n"
    "done, but no quorum votes yet; 125 failed.\n";

int cmd_init(int argc, char **argv) {
    struct common common = COMMON_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    int64_t wait_ms = 30000, floor = 0;
    bool print = false;
    const struct option_row rows[] = {{"print", OPT_ON, &print, 1},
                                      {"floor", OPT_NUMBER, &floor, 1, (INT64_C(1) << 53) - 1},
                                      {"w wait timeout", OPT_DURATION, &wait_ms, 1},
                                      {NULL}};
    const struct verb verb = {
        .name = "init", .usage = usage, .rows = rows, .common = COMMON_URL, .mixed = true, .most = 1, .url_operand = 1};
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    code = open_client(&common, NULL, &client);
    if (code) return code;
    const char *text = pawl_init_text(client);
    if (print && (!text || floor)) {
        complain(EXIT_FAILED, NULL,
                 floor ? "--print does not go with --floor"
                       : "--print is for postgresql: other services are prepared by no text");
        pawl_close(client);
        return EXIT_FAILED;
    }
    char *url = shown_url(common.url);
    int result = PAWL_OK;
    if (print) fputs(text, stdout);
    else result = floor ? pawl_init_above(client, floor, wait_ms, &error) : pawl_init(client, wait_ms, &error);
    if (result == PAWL_EUNSUPPORTED && floor) {
        result = error.code = PAWL_EINVALID;
    } else if (result == PAWL_EUNSUPPORTED && strncmp(common.url, "file:", 5) == 0 &&
               pawl_connect(client, wait_ms, &error)) { /* its directory is to be there, and fit for locks */
        result = error.code;
    } else if (result == PAWL_EUNSUPPORTED) {
        result = PAWL_OK;
        inform(NULL, "%s needs no preparing", url);
    } else if (!print && !result) {
        if (*error.text) warn(NULL, "%s", error.text);
        inform(NULL, "%s is prepared", url);
    }
    free(url);
    pawl_close(client);
    return result ? complain_error(NULL, &error) : 0;
}
