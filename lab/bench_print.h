/* bench_print.h: the rows of a bench, for people and as JSON: the ratio beside the number, and what the machine was
 * doing. */
#ifndef LAB_BENCH_PRINT_H
#define LAB_BENCH_PRINT_H
#include "bench.h"

enum scenario { CYCLE, THOUSAND, HANDOFF, RELAY, MANY, SCENARIOS };
extern const char *const scenario_names[SCENARIOS];

void print_head(enum scenario scenario, const struct plan *plan);
void print_row(enum scenario scenario, const char *service, const struct plan *plan, const struct row *row);
void print_row_json(enum scenario scenario, const char *service, const struct plan *plan, const struct row *row,
                    const struct noise *noise);
/* version: of Redis, "" if it took no part. */
void print_machine(const struct noise *before, const struct noise *after, double spread, const char *version);
/* Between the tries, of the floor if it was measured: in per cent. */
double row_spread(const struct row *row);
#endif
