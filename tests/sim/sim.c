/* sim.c: many seeds of world.h. Says how many of them reached what is worth testing.
 * sim [SEED]: PAWL_TEST_SEED is the first seed; a SEED runs that one alone, and tells what happens in it. */
#include "world.h"
#include <stdio.h>
#include <stdlib.h>

#define SEEDS 2000
#define SEEDS_FULL 100000

static int number, failed;

static void tap(bool ok, const char *what, const char *more) {
    printf("%sok %d - %s%s%s\n", ok ? "" : "not ", ++number, what, *more ? ": " : "", more);
    failed += !ok;
}

static void reached(const char *what, int n, int seeds) {
    char text[64];
    snprintf(text, sizeof text, "%d of %d seeds, %.1f %%", n, seeds, 100.0 * n / seeds);
    tap(100 * n > seeds, what, text);
}

int main(int argc, char **argv) {
    const char *first_text = getenv("PAWL_TEST_SEED");
    uint64_t first = first_text ? strtoull(first_text, NULL, 10) : 1;
    int seeds = getenv("PAWL_TEST_FULL") ? SEEDS_FULL : SEEDS, wrong[LAWS] = {0};
    int loss = 0, repeat = 0, undo = 0, hand_over = 0;
    int64_t grants = 0, steps = 0;
    char example[LAWS][320] = {{0}};
    if (argc > 1) {
        first = strtoull(argv[1], NULL, 10);
        seeds = 1;
        world_traced = true;
    }
    for (int i = 0; i < seeds; i++) {
        struct outcome out;
        world_run(first + (uint64_t)i, &out);
        loss += out.loss;
        repeat += out.repeat;
        undo += out.undo;
        hand_over += out.hand_over;
        grants += out.grants;
        steps += out.steps;
        if (out.broken && !wrong[out.broken]++)
            snprintf(example[out.broken], sizeof example[0], "seed %llu%s %s",
                     (unsigned long long)(first + (uint64_t)i), out.quiet ? " (quiet)" : "", out.text);
    }
    printf("1..%d\n# first seed %llu, %lld grants, %lld steps\n", LAWS - 1 + 4, (unsigned long long)first,
           (long long)grants, (long long)steps);
    for (int law = 1; law < LAWS; law++) {
        char text[360] = "";
        if (wrong[law]) snprintf(text, sizeof text, "broken by %d of %d seeds; %s", wrong[law], seeds, example[law]);
        tap(!wrong[law], law_names[law], text);
    }
    reached("seeds with a loss", loss, seeds);
    reached("seeds with a repeat", repeat, seeds);
    reached("seeds with an undo", undo, seeds);
    reached("seeds with a hand-over", hand_over, seeds);
    return failed != 0;
}
