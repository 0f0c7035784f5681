/* fuzz.h: what a fuzz target is: a function that must survive any input, and abort if a promise is broken. */
#ifndef PAWL_FUZZ_H
#define PAWL_FUZZ_H
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                                                \
    do                                                                                                                 \
        if (!(condition)) __builtin_trap();                                                                            \
    while (0)
#endif
