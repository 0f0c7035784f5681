/* token.c: pawl token: where the numbers of a service stand, and lifting them before locks move to it. */
#include "options.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "pawl token show [URL]\n"
    "pawl token advance [URL] [--to N]\n"
    "\n"
    "Where the token numbers of a service stand (URL or -u). advance lifts them: every later token is\n"
    "above N, above the service's clock, and above all before. Do it when locks move to a service that\n"
    "was used before, with N from `token show` of the old one.\n"
    "\n"
    "      --to N        at least this; at most ten years ahead of the clock\n"
    "      --json        one JSON object\n"
    "  -w, --wait DUR    for the service to answer (5s)\n"
    "  -u, --url URL   -v   -q   --log text|json\n"
    "\n"
    "Exit: 0; 119 this service refuses; 120 unreachable or denied; 123 transactions that drew a token are open\n"
    "(PostgreSQL); 125 failed.\n";

static void print_json(const char *url, const pawl_tokens *tokens) {
    char clock[40];
    fputs("{\"url\":", stdout);
    print_json_string(stdout, url);
    if (tokens->last) printf(",\"last\":\"%" PRId64 "\",\"since\":\"%" PRId64 "\"", tokens->last, tokens->since);
    else fputs(",\"last\":null,\"since\":null", stdout);
    format_time(tokens->clock_us / 1000, clock, sizeof clock);
    printf(",\"clock\":\"%s\",\"stored\":", clock);
    print_json_string(stdout, *tokens->stored ? tokens->stored : NULL);
    fputs(",\"answering\":", stdout);
    print_json_string(stdout, *tokens->answering ? tokens->answering : NULL);
    puts("}");
}

/* A number beside the time that it stands for. */
static void print_number(const char *what, int64_t number) {
    char clock[40];
    format_time(number / 1000, clock, sizeof clock);
    printf("  %-9s %-17" PRId64 " %s\n", what, number, clock);
}

static void print_text(const char *url, const pawl_tokens *tokens) {
    puts(url);
    if (tokens->last) {
        print_number("last", tokens->last);
        print_number("since", tokens->since);
    } else {
        puts("  last      none yet");
    }
    print_number("clock", tokens->clock_us);
    if (*tokens->stored || *tokens->answering) {
        bool same = strcmp(tokens->stored, tokens->answering) == 0;
        fputs("  identity  ", stdout);
        print_plain(stdout, tokens->answering);
        puts(same ? "" : "  (changed: the next token is lifted to the clock)");
    }
}

int cmd_token(int argc, char **argv) {
    struct common common = COMMON_INIT;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    int64_t wait_ms = 5000, to = 0;
    const struct option_row rows[] = {
        {"to", OPT_NUMBER, &to, 1, (INT64_C(1) << 53) - 1}, {"w wait timeout", OPT_DURATION, &wait_ms, 1}, {NULL}};
    const struct verb verb = {.name = "token",
                              .usage = usage,
                              .rows = rows,
                              .common = COMMON_URL | COMMON_JSON,
                              .mixed = true,
                              .least = 1,
                              .most = 2,
                              .operands = "show or advance",
                              .url_operand = 2};
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    bool advance = strcmp(argv[1], "advance") == 0;
    if (!advance && strcmp(argv[1], "show") != 0)
        return complain(EXIT_FAILED, NULL, "token: '%.80s' is neither show nor advance", argv[1]);
    if (!advance && to) return complain(EXIT_FAILED, NULL, "token: --to is for advance");
    code = open_client(&common, NULL, &client);
    if (code) return code;
    int result = advance ? pawl_tokens_advance(client, to, wait_ms, &tokens, &error)
                         : pawl_tokens_show(client, wait_ms, &tokens, &error);
    pawl_close(client);
    if (result) return complain_error(NULL, &error);
    char *url = shown_url(common.url);
    if (common.json) print_json(url, &tokens);
    else print_text(url, &tokens);
    free(url);
    return 0;
}
