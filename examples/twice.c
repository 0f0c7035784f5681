/* twice.c: take a lock, verify it, see a second client turned away, work, give it back, take it again.
 *
 *   twice URL [NAME [HOLD-MS]]
 *
 *   twice etcd://127.0.0.1:2379                                    etcd's lock: a lease of 5 s
 *   twice redlock://127.0.0.1:6379,127.0.0.1:6380,127.0.0.1:6381   Redlock over three instances
 *   twice postgresql://postgres@127.0.0.1/postgres?key=int8 12345  the advisory lock 12345, two sessions */
#include <pawl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

static void must(int code, const pawl_error *error, const char *what) {
    if (code == PAWL_OK) return;
    fprintf(stderr, "%s: %s\n", what, error->text);
    exit(1);
}

int main(int argc, char **argv) {
    pawl_error error = PAWL_ERROR_INIT;
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_acquire_options once = PAWL_ACQUIRE_INIT;
    pawl_client *one, *two;
    pawl_lock *lock, *other;
    if (argc < 2) return fputs("usage: twice URL [NAME [HOLD-MS]]\n", stderr), 2;
    const char *name = argc > 2 ? argv[2] : "example";
    int hold_ms = argc > 3 ? atoi(argv[3]) : 2000;
    options.ttl_ms = 5000; /* renewed as long as it is held, and this program lives */
    once.wait_ms = 0;
    must(pawl_open(argv[1], &options, &one, &error), &error, argv[1]);
    must(pawl_open(argv[1], &options, &two, &error), &error, argv[1]);

    must(pawl_acquire(one, name, NULL, &lock, &error), &error, name);
    printf("one has '%s'\n", name);
    /* Advice, and true when it was asked; what must not be wrong sends the token to the data (pawl_guard.h). */
    must(pawl_verify(lock, 2000, &error), &error, "verify");
    puts("the service says so too");
    int code = pawl_acquire(two, name, &once, &other, &error);
    if (code != PAWL_EBUSY) return fprintf(stderr, "two should have been turned away: %d\n", code), 1;
    puts("two is turned away");
    poll(NULL, 0, hold_ms); /* the work */
    int64_t first = pawl_token(lock);
    must(pawl_release(lock, 2000, &error), &error, "release");

    must(pawl_acquire(two, name, NULL, &other, &error), &error, name);
    if (pawl_token(other) <= first) return fputs("its token should be higher\n", stderr), 1;
    puts("two has it, with a higher token");
    must(pawl_release(other, 2000, &error), &error, "release");
    pawl_close(one);
    pawl_close(two);
    return 0;
}
