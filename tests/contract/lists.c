/* lists.c: the suite below the core: struct backend. */
#include "contract.h"

const struct contract_case *const contract_lists[] = {basic_cases, wait_cases, limit_cases, NULL};
void contract_prepare(struct suite *suite, const char *module) { (void)suite, (void)module; }
