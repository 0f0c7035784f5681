/* A forked child is another process, however it is asked. */
#include "process.h"
#include "random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void test_itself(void **data) {
    (void)data;
    assert_int_equal(process_id(), getpid());
    assert_int_equal(process_id(), getpid());
    assert_true(process_nonce() != 0);
    assert_true(process_nonce() == process_nonce());
}

static void test_forked_child_differs(void **data) {
    (void)data;
    unsigned char before[16], after[16];
    uint64_t nonce = process_nonce();
    pid_t parent = process_id();
    int pipes[2], status;
    random_bytes(before, sizeof before); /* the stock is filled: the child inherits it */
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        unsigned char mine[16];
        random_bytes(mine, sizeof mine);
        bool good = process_id() == getpid() && process_id() != parent && process_nonce() != nonce &&
                    write(pipes[1], mine, sizeof mine) == sizeof mine;
        _exit(good ? 0 : 1);
    }
    unsigned char childs[16];
    random_bytes(after, sizeof after);
    assert_int_equal(read(pipes[0], childs, sizeof childs), sizeof childs);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_memory_not_equal(childs, after, sizeof after); /* the next of the stock that both had */
    assert_int_equal(process_id(), parent);
    close(pipes[0]);
    close(pipes[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_itself),
        cmocka_unit_test(test_forked_child_differs),
    };
    return cmocka_run_group_tests_name("process", tests, NULL, NULL);
}
