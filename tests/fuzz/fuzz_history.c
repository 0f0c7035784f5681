/* Any text as a history: read and judged, or refused with the line named. */
#include "fuzz.h"
#include "history.h"
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0; /* fmemopen refuses it */
    FILE *file = fmemopen((void *)(uintptr_t)data, size, "r");
    struct history *history = history_new();
    struct history_verdict verdict;
    pawl_error error = PAWL_ERROR_INIT;
    MUST(file && history);
    if (history_read(history, file, "input", &error) == PAWL_OK) {
        history_check(history, NULL, &verdict);
        MUST(verdict.holds + verdict.waits + verdict.acts + verdict.writes == verdict.events);
    } else {
        MUST(strstr(error.text, "input"));
    }
    history_free(history);
    fclose(file);
    return 0;
}
