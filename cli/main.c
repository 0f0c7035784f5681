#include "cli.h"
#include <stdio.h>

int main(int argc, char **argv) {
    (void)argc;
    (void)argv;
    puts(pawl_version());
    return 0;
}
