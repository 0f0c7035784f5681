/* init.c: pawl init: prepares a service, or prints what that would do. */
#include "options.h"
#include <stdio.h>
#include <stdlib.h>

static const char usage[] = "pawl init [URL] [--print] [--floor N]\n"
                            "\n"
                            "Prepares a service for pawl. postgresql: installs the schema `pawl` (one sequence, one "
                            "row, some functions); may be\n"
                            "repeated. redlock: admits instances that never voted, or lost their memory. file:, "
                            "redis: and etcd: need none.\n"
                            "\n"
                            "      --print       print the SQL instead of running it, for psql or a migration tool\n"
                            "      --floor N     redlock: so many instances lost their memory that nobody knows "
                            "where the tokens stood: they\n"
                            "                    go on above N, the highest that any resource saw (pawl guard get)\n"
                            "  -w, --wait DUR    for the service to answer (30s)\n"
                            "  -u, --url URL   -v   -q   --log text|json\n"
                            "\n"
                            "Exit: 0; 120 unreachable or denied; 125 failed.\n";

/* With a floor the numbers go on above it, although the service may have lost them. */
static int prepare(pawl_client *client, int64_t wait_ms, int64_t floor, pawl_error *error) {
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    int code = pawl_init(client, wait_ms, error);
    if (floor && (code == PAWL_OK || code == PAWL_EUNSAFE))
        code = pawl_tokens_advance(client, floor, wait_ms, &tokens, error);
    return code;
}

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
    if (text && floor) {
        complain(EXIT_FAILED, NULL, "--floor is for redlock:; pawl token advance --to lifts other services' numbers");
        pawl_close(client);
        return EXIT_FAILED;
    }
    char *url = shown_url(common.url);
    int result = PAWL_OK;
    if (text && print) fputs(text, stdout);
    else result = prepare(client, wait_ms, floor, &error);
    if (result == PAWL_EUNSUPPORTED) {
        result = PAWL_OK;
        fprintf(stderr, "pawl: %s needs no preparing\n", url);
    } else if (!(text && print) && !result && !messages.quiet) {
        fprintf(stderr, "pawl: %s is prepared\n", url);
    }
    free(url);
    pawl_close(client);
    return result ? complain_error(NULL, &error) : 0;
}
