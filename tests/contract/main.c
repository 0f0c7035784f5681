/* main.c: contract NAME [MODULE]: runs the suite for one backend, built in or from a module file. */
#include "contract.h"
#include "module.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int skip_all(const char *why) {
    printf("1..0 # SKIP %s\n", why);
    return 0;
}

static const struct backend *load(const struct fixture *fixture, const char *path) {
    const struct backend *backend = NULL;
    pawl_error error = PAWL_ERROR_INIT;
    if (!path) {
        if (module_backend(fixture->scheme, &backend, &error)) fprintf(stderr, "%s\n", error.text);
        return backend;
    }
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct backend *const *table = module ? dlsym(module, MODULE_BACKEND_SYMBOL) : NULL;
    if (!table) fprintf(stderr, "%s\n", dlerror());
    return table ? *table : NULL;
}

static unsigned offers(const struct bk_caps *caps) {
    bool owners = caps->life != BK_LIFE_NONE && !caps->session_bound;
    return (owners ? OWNERS | TTL : 0u) | (caps->life == BK_LIFE_LOCK ? LOCK_LIFE : 0u) |
           (caps->shared ? SHARED : NOT_SHARED) | (caps->fifo ? FIFO : 0u) | (caps->hub ? HUB : 0u) |
           (caps->life == BK_LIFE_NONE ? DESCRIPTORS : 0u) |
           (strcmp(caps->scheme, "file") != 0 && strcmp(caps->scheme, "mem") != 0 ? SERVERS : 0u);
}

static void add(struct CMUnitTest *all, size_t *n, const struct contract_case *some, struct suite *suite) {
    for (; some->name; some++)
        if ((some->needs & ~offers(&suite->backend->caps)) == 0)
            all[(*n)++] = (struct CMUnitTest){.name = some->name,
                                              .test_func = some->function,
                                              .setup_func = case_setup,
                                              .teardown_func = case_teardown,
                                              .initial_state = suite};
        else printf("# not owed: %s\n", some->name);
}

int main(int argc, char **argv) {
    struct suite suite = {0};
    struct CMUnitTest all[64];
    size_t n = 0;
    if (argc < 2) return 2;
    for (suite.fixture = fixtures; suite.fixture->name && strcmp(suite.fixture->name, argv[1]) != 0;) suite.fixture++;
    if (!suite.fixture->name) return 2;
    if (!(suite.backend = load(suite.fixture, argc > 2 ? argv[2] : NULL))) return 1;
    const char *why = suite.fixture->start();
    if (why) return skip_all(why);
    if (suite.fixture->wrap) suite.backend = suite.fixture->wrap(suite.backend);
    contract_prepare(&suite, argc > 2 ? argv[2] : NULL);
    for (const struct contract_case *const *list = contract_lists; *list; list++) add(all, &n, *list, &suite);
    if (getenv("CONTRACT_ONLY")) cmocka_set_test_filter(getenv("CONTRACT_ONLY"));
    int failed = _cmocka_run_group_tests(argv[1], all, n, NULL, NULL);
    suite.fixture->stop();
    return failed ? 1 : 0;
}
