/* Any text as a configuration file: read, or refused with 125. */
#include "cli.h"
#include "config.h"
#include "fuzz.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    if (fd < 0) {
        char path[64];
        fd = memfd_create("config", MFD_CLOEXEC);
        MUST(fd >= 0 && fchmod(fd, 0600) == 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        setenv("PAWL_CONFIG", path, 1);
    }
    MUST(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    static const char *const profiles[] = {NULL, "prod"};
    for (int i = 0; i < 2; i++) {
        struct config config = CONFIG_INIT;
        int code = config_read(profiles[i], &config);
        MUST(code == 0 || code == EXIT_FAILED);
        if (code == 0 && i == 1) MUST(config.url);
        if (code == 0) config_free(&config);
    }
    return 0;
}
