/* record.c: what kinds share: a record for the caller in one block of memory, and the names of rules. */
#include "guard.h"
#include <stdlib.h>
#include <string.h>

static char *put(char **at, const void *from, size_t length) {
    char *start = *at;
    if (length) memcpy(start, from, length);
    start[length] = 0;
    *at += length + 1;
    return start;
}

pawl_guard_record *guard_record_make(const char *resource, const struct guard_mark *mark, const void *data,
                                     size_t length, const pawl_guard_reset_entry *resets, size_t n_resets) {
    size_t size = sizeof(pawl_guard_record) + n_resets * sizeof *resets + strlen(resource) + strlen(mark->lock) +
                  strlen(mark->by) + strlen(mark->service) + length + 5;
    for (size_t i = 0; i < n_resets; i++) size += strlen(resets[i].by) + strlen(resets[i].why) + 2;
    pawl_guard_record *record = malloc(size);
    if (!record) return NULL;
    pawl_guard_reset_entry *entries = (pawl_guard_reset_entry *)(record + 1);
    char *at = (char *)(entries + n_resets);
    for (size_t i = 0; i < n_resets; i++) {
        entries[i] = resets[i];
        entries[i].by = put(&at, resets[i].by, strlen(resets[i].by));
        entries[i].why = put(&at, resets[i].why, strlen(resets[i].why));
    }
    *record = (pawl_guard_record){.resource = put(&at, resource, strlen(resource)),
                                  .lock = put(&at, mark->lock, strlen(mark->lock)),
                                  .by = put(&at, mark->by, strlen(mark->by)),
                                  .token = (int64_t)mark->token,
                                  .seq = (int64_t)mark->seq,
                                  .at_ms = mark->at_us / 1000,
                                  .rule = mark->rule,
                                  .written = mark->written,
                                  .data = put(&at, data, length),
                                  .length = length,
                                  .resets = entries,
                                  .n_resets = n_resets,
                                  .service = put(&at, mark->service, strlen(mark->service))};
    return record;
}

static const char *const rules[] = {[PAWL_RULE_GE] = "ge", [PAWL_RULE_GT] = "gt", [PAWL_RULE_SEQ] = "seq"};

const char *guard_rule_name(int rule) { return rule >= PAWL_RULE_GE && rule <= PAWL_RULE_SEQ ? rules[rule] : NULL; }

int guard_rule_by_name(const char *name) {
    for (int rule = PAWL_RULE_GE; rule <= PAWL_RULE_SEQ; rule++)
        if (strcmp(rules[rule], name) == 0) return rule;
    return PAWL_RULE_DEFAULT;
}
