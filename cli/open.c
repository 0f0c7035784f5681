/* open.c: from the common options to a client of the library. */
#include "options.h"
#include <stdlib.h>

void common_options(const struct common *common, pawl_options *ret) {
    *ret = (pawl_options)PAWL_OPTIONS_INIT;
    ret->ttl_ms = common->ttl_ms;
    ret->label = common->label;
    ret->for_correctness = common->for_correctness;
}

int open_client_with(const struct common *common, const pawl_options *options, const char *name, pawl_client **ret) {
    pawl_error error = PAWL_ERROR_INIT;
    if (pawl_open(common->url, options, ret, &error)) return complain_error(name, &error);
    if (messages.verbose) {
        char *shown = shown_url(common->url);
        advise(name, "url %s (from %s)", shown ? shown : "?", common->from);
        free(shown);
    }
    return 0;
}

int open_client(const struct common *common, const char *name, pawl_client **ret) {
    pawl_options options;
    common_options(common, &options);
    return open_client_with(common, &options, name, ret);
}
