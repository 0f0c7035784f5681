/* payment.c: a payment is charged once, though two workers get the same request, or one gets it twice, or one stalls.
 *
 *   payment LOCKS GUARD ID CENTS        payment file:/srv/locks sqlite:/srv/payments.db 4711 995
 *
 * The lock keeps two workers from charging at the same time. The record of the payment, behind a guard, tells whether it was
 * charged; and a worker that lost the lock while it stalled cannot write it over. What is charged outside, at a bank, must also
 * know the payment by a key of its own (here its ID): no lock can take back what was sent. */
#include <pawl_guard.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int code, const pawl_error *error, const char *what) {
    if (code == PAWL_OK) return;
    fprintf(stderr, "%s: %s\n", what, error->text);
    exit(code == PAWL_GSTALE ? 121 : 1);
}

/* The bank: takes an idempotency key, and answers the same to the same key. */
static void charge(const char *id, long cents) { printf("charging %ld.%02ld for payment %s\n", cents / 100, cents % 100, id); }

int main(int argc, char **argv) {
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    pawl_lock *lock;
    pawl_guard *guard;
    pawl_guard_record *record = NULL;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    char name[128];
    if (argc != 5) return fputs("usage: payment LOCKS GUARD ID CENTS\n", stderr), 2;
    snprintf(name, sizeof name, "payment:%s", argv[3]);
    must(pawl_open(argv[1], NULL, &client, &error), &error, argv[1]);
    must(pawl_guard_open(argv[2], NULL, &guard, &error), &error, argv[2]);
    must(pawl_acquire(client, name, NULL, &lock, &error), &error, name);

    write.resource = name;
    write.lock = name;
    write.token = pawl_token(lock);
    /* From now on nothing of an earlier holder gets in; so what is read now stays true until we write. */
    must(pawl_guard_seal(guard, &write, &error), &error, name);
    must(pawl_guard_get(guard, name, &record, &error), &error, name);
    if (record->written && strcmp(record->data, "charged") == 0) puts("already charged");
    else {
        charge(argv[3], atol(argv[4]));
        must(pawl_guard_put(guard, &write, "charged", 7, &error), &error, name);
    }
    pawl_guard_free(record);
    pawl_guard_close(guard);
    pawl_release(lock, 2000, &error);
    pawl_close(client);
    return 0;
}
