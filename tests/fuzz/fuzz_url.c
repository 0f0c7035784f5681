/* Any text as a URL: parsed or refused with a reason, and never is a password shown. */
#include "fuzz.h"
#include "url.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    struct url *url = NULL;
    pawl_error error = PAWL_ERROR_INIT;
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (url_parse(text, &url, &error) == PAWL_OK) {
        MUST(url->scheme && *url->scheme && url->rest && url->path && url->shown);
        if (url->password && *url->password) MUST(strstr(url->shown, ":***@"));
        for (size_t i = 0; i < url->n_hosts; i++) MUST(url->hosts[i].port >= 0 && url->hosts[i].port < 65536);
        if (url_params_known(url, &error) != PAWL_OK) MUST(url->n_params > 0 && error.text[0]);
        const char *password = url_param(url, "password");
        if (password && *password) MUST(strstr(url->shown, "***"));
        struct url *again = NULL; /* what is shown is a URL as well, but for secrets in it */
        if (url_parse(url->shown, &again, NULL) == PAWL_OK) MUST(strcmp(again->scheme, url->scheme) == 0);
        url_free(again);
    } else {
        MUST(error.code == PAWL_EINVALID && error.text[0]);
    }
    url_free(url);
    free(text);
    return 0;
}
