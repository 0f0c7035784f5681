/* Two turns of one lock on three Redis instances, as the example of every Redlock library: ttl 5 s, held for a while,
 * released, taken again. What is different: each turn has a number, and the second one is higher.
 *
 *   cc redlock.c $(pkg-config --cflags --libs libpawl) && ./a.out
 * redlock://127.0.0.1:6379,127.0.0.1:6380,127.0.0.1:6381 2000 */
#include <pawl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    pawl_lock *lock;
    if (argc < 2) return 2;
    options.ttl_ms = 5000;
    if (pawl_open(argv[1], &options, &client, &error)) goto failed;
    for (int turn = 1; turn <= 2; turn++) {
        if (pawl_acquire(client, "report", NULL, &lock, &error)) goto failed;
        printf("turn %d: token %lld, safe for another %lld ms\n", turn, (long long)pawl_token(lock),
               (long long)pawl_remaining_ms(lock));
        /* The work. It ends early if the lock is lost; a resource that checks the token is safe even if it does not. */
        struct pollfd lost = {.fd = pawl_lost_fd(lock), .events = POLLIN};
        if (poll(&lost, 1, argc > 2 ? atoi(argv[2]) : 0) > 0) puts("lost");
        if (pawl_release(lock, 1000, &error)) goto failed;
    }
    pawl_close(client);
    return 0;
failed:
    fprintf(stderr, "%s\n", error.text);
    return 1;
}
