/* broken.c: broken LAW RULE: the simulation of a core in which one rule is broken (broken.py): that law must be seen to
 * break. Other laws may break before. */
#include "world.h"
#include <stdio.h>
#include <string.h>

#define SEEDS 20000

int main(int argc, char **argv) {
    struct outcome out;
    int others = 0;
    if (argc != 3) return 2;
    printf("1..1\n");
    for (unsigned long long seed = 1; seed <= SEEDS; seed++) {
        world_run(seed, &out);
        if (!out.broken) continue;
        if (strcmp(law_names[out.broken], argv[1]) != 0) {
            others++;
            continue;
        }
        printf("ok 1 - %s: caught by '%s' at seed %llu, %s\n", argv[2], argv[1], seed, out.text);
        return 0;
    }
    printf("not ok 1 - %s: not caught by '%s' in %d seeds, but %d times by other laws\n", argv[2], argv[1], SEEDS,
           others);
    return 1;
}
