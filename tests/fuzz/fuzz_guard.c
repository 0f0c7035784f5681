/* Any bytes as a record file of a dir guard: refused, or written again and read back as the same. */
#include "fuzz.h"
#include "guard/record_file.h"
#include <stdlib.h>
#include <string.h>

static struct record_head parsed(const char *bytes, size_t size, char **ret_text, const char **ret_why) {
    struct record_head head = {0};
    size_t at = 0;
    char *text = malloc(size + 1);
    MUST(text);
    memcpy(text, bytes, size);
    *ret_why = record_head_parse(text, size, &head, &at);
    MUST(*ret_why || at <= size);
    *ret_text = text;
    return head;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text, *again_text, *lines;
    const char *why;
    size_t length;
    struct record_head head = parsed((const char *)data, size, &text, &why);
    if (why) {
        free(text);
        return 0;
    }
    lines = record_head_lines(head.resource, &head.mark, &head, NULL, head.length, &length);
    MUST(lines);
    struct record_head again = parsed(lines, length, &again_text, &why);
    MUST(!why);
    MUST(strcmp(again.resource, head.resource) == 0 && again.length == head.length && again.n_resets == head.n_resets);
    MUST(again.mark.token == head.mark.token && again.mark.seq == head.mark.seq && again.mark.rule == head.mark.rule);
    MUST(again.mark.used == head.mark.used && again.mark.written == head.mark.written &&
         again.mark.at_us == head.mark.at_us);
    MUST(strcmp(again.mark.lock, head.mark.lock) == 0 && strcmp(again.mark.by, head.mark.by) == 0);
    for (size_t i = 0; i < head.n_resets; i++)
        MUST(strcmp(again.resets[i].why, head.resets[i].why) == 0 && again.resets[i].to == head.resets[i].to);
    record_head_free(&head);
    record_head_free(&again);
    free(text);
    free(again_text);
    free(lines);
    return 0;
}
