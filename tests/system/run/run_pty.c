/* run_pty: pawl run in an interactive bash on a terminal. What must be as without pawl is tried without pawl first,
 * with the very same expectations.
 *
 * PAWL_BIN and RUN_EDITOR name the programs. */
#include "server.h"
#include "terminal.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/pawl-run-pty.XXXXXX", url[128];
static struct server redis;
static struct pty t = {.fd = -1};

/* A new shell in which $P runs a command: as it is, or under a lock. */
static void shell(const char *options) {
    pty_open(&t);
    pty_line(&t, "cd %s; PAWL=%s; E=%s", dir, getenv("PAWL_BIN"), getenv("RUN_EDITOR"));
    pty_prompt(&t);
    if (options) pty_line(&t, "P=\"$PAWL run %s n\"", options);
    else pty_line(&t, "P=");
    pty_prompt(&t);
}

static void expect_code(int code) {
    char text[32];
    pty_prompt(&t);
    pty_line(&t, "echo code=$?");
    snprintf(text, sizeof text, "code=%d\r\n", code);
    pty_expect(&t, text);
    pty_prompt(&t);
}

/* The number of times that text came after `from`, when nothing more is to come: another command has run since. */
static int times(size_t from, const char *text) {
    pty_line(&t, "echo mark");
    pty_expect(&t, "mark\r\n");
    pty_prompt(&t);
    return pty_count(&t, from, t.at, text);
}

static void with_and_without(void (*scenario)(void)) {
    char options[160];
    shell(NULL);
    scenario();
    pty_close(&t);
    snprintf(options, sizeof options, "-u %s", url);
    shell(options);
    scenario();
    pty_close(&t);
}

/* --- signals --- */

/* Types a line to `run_editor count`: its signals so far. */
static void expect_count(int n) {
    char text[32];
    snprintf(text, sizeof text, "COUNT %d\r\n", n);
    pty_type(&t, "how many\r");
    pty_expect(&t, text);
}

static void interrupt(void) {
    pty_line(&t, "$P $E count");
    pty_expect(&t, "READY");
    for (int i = 1; i <= 20; i += 2) { /* a second one may melt into the first, but not each time */
        pty_type(&t, "\003");
        pty_expect(&t, "^C");
        expect_count(i);
        pty_type(&t, "\034");
        pty_expect(&t, "^\\");
        expect_count(i + 1);
    }
    pty_type(&t, "end\r");
    expect_code(5);
}

/* A shell loop ends only if it sees that INT ended its command. */
static void interrupt_ends_loop(void) {
    pty_line(&t, "for i in 1 2 3; do $P sh -c 'echo READY$0; exec sleep 30' $i; done; echo not''here");
    pty_expect(&t, "READY1");
    size_t from = t.at;
    pty_type(&t, "\003");
    expect_code(130);
    assert_int_equal(times(from, "READY"), 0);
    assert_int_equal(times(from, "nothere"), 0);
}

/* A line through the fifo to `run_editor count`; its answer. */
static int ask_count(void) {
    pty_line(&t, "echo how many >&8");
    pty_expect(&t, "COUNT ");
    pty_expect(&t, "\r\n");
    return atoi(strrchr(t.seen, 'C') + strlen("COUNT "));
}

static void kill_by_pid(void) {
    pty_line(&t, "[ -p fifo ] || mkfifo fifo; exec 8<>fifo; $P $E count <fifo &");
    pty_expect(&t, "READY");
    pty_line(&t, "kill -USR1 $!; kill -TERM $!");
    int n = 0;
    for (int tries = 0; n < 2 && tries < 200; tries++) n = ask_count();
    for (int i = 0; i < 10; i++) assert_int_equal(ask_count(), 2);
    pty_line(&t, "echo end >&8; wait $!");
    expect_code(5);
}

static void test_interrupt(void **state) {
    (void)state;
    with_and_without(interrupt);
}
static void test_interrupt_ends_loop(void **state) {
    (void)state;
    with_and_without(interrupt_ends_loop);
}
static void test_kill_by_pid(void **state) {
    (void)state;
    with_and_without(kill_by_pid);
}

/* --- stopping --- */

/* A wrapper that stops once too often, or not at all, shows in one of the turns. */
static void fg_bg(void) {
    pty_line(&t, "$P sh -c 'echo READY; while read x && [ $x != end ]; do echo GOT-$x; done'");
    pty_expect(&t, "READY");
    for (int i = 0; i < 4; i++) {
        pty_type(&t, "\032");
        pty_expect(&t, "Stopped");
        pty_prompt(&t);
        pty_line(&t, "jobs");
        pty_expect(&t, "Stopped");
        pty_prompt(&t);
        pty_line(&t, "fg");
        pty_type(&t, "hello%d\r", i);
        pty_expect(&t, "GOT-hello");
        pty_idle(&t, 50); /* a ^Z that is typed while the shell is still at its fg can be undone by its CONT */
    }
    pty_type(&t, "end\r");
    expect_code(0);
    pty_line(&t, "$P sh -c 'echo READY; exec sleep 0.3'"); /* exec: dash waits in vfork where nothing stops it */
    pty_expect(&t, "READY");
    pty_type(&t, "\032");
    pty_expect(&t, "Stopped");
    pty_prompt(&t);
    pty_line(&t, "bg; wait $!; echo D\"\"ONE");
    pty_expect(&t, "DONE");
    pty_prompt(&t);
}

static void stops_itself(void) {
    pty_line(&t, "$P sh -c 'kill -STOP $$; echo AFTER; exit 3'");
    pty_expect(&t, "Stopped");
    pty_prompt(&t);
    pty_line(&t, "fg");
    pty_expect(&t, "AFTER");
    expect_code(3);
}

static void background_terminal(void) {
    pty_line(&t, "$P sh -c 'read x; echo GOT-$x' &");
    pty_prompt(&t);
    pty_line(&t, "until jobs | grep -q Stopped; do :; done; jobs");
    pty_expect(&t, "Stopped");
    pty_prompt(&t);
    pty_line(&t, "fg");
    pty_type(&t, "hello\r");
    pty_expect(&t, "GOT-hello\r\n");
    pty_prompt(&t);
    pty_line(&t, "stty tostop; $P sh -c 'echo O\\UT' &");
    pty_prompt(&t);
    size_t from = t.at;
    pty_line(&t, "until jobs | grep -q Stopped; do :; done; jobs");
    pty_expect(&t, "Stopped");
    pty_prompt(&t);
    assert_int_equal(times(from, "OUT\r\n"), 0);
    pty_line(&t, "fg");
    pty_expect(&t, "OUT\r\n");
    expect_code(0);
}

static void test_fg_bg(void **state) {
    (void)state;
    with_and_without(fg_bg);
}
static void test_stops_itself(void **state) {
    (void)state;
    with_and_without(stops_itself);
}
static void test_background_terminal(void **state) {
    (void)state;
    with_and_without(background_terminal);
}

/* --- programs --- */

static void editor(void) {
    pty_line(&t, "$P $E");
    pty_expect(&t, "EDITOR");
    pty_type(&t, "a");
    pty_expect(&t, "KEY 97");
    pty_type(&t, "\003");
    pty_expect(&t, "KEY 3");
    pty_type(&t, "\032");
    pty_expect(&t, "Stopped");
    pty_prompt(&t);
    pty_line(&t, "echo between");
    pty_expect(&t, "between");
    pty_line(&t, "fg");
    pty_expect(&t, "EDITOR");
    pty_type(&t, "b");
    pty_expect(&t, "KEY 98");
    struct winsize size = {.ws_row = 40, .ws_col = 100};
    assert_int_equal(ioctl(t.fd, TIOCSWINSZ, &size), 0);
    pty_expect(&t, "SIZE 100x40 after 1\r\n");
    pty_type(&t, "q");
    expect_code(0);
}

static void pipeline(void) {
    pty_line(&t, "echo a''bc | $P cat | tr a-c A-C");
    pty_expect(&t, "ABC\r\n");
    pty_prompt(&t);
    pty_line(&t, "echo x | $P sh -c 'echo READY; read y </dev/tty; read z; echo T-$y-$z'");
    pty_expect(&t, "READY");
    pty_type(&t, "typed\r");
    pty_expect(&t, "T-typed-x\r\n");
    expect_code(0);
    pty_line(&t, "$P sh -c 'echo READY >&2; exec sleep 30' | cat");
    pty_expect(&t, "READY");
    pty_type(&t, "\003");
    pty_prompt(&t);
    pty_line(&t, "echo ${PIPESTATUS[0]}");
    pty_expect(&t, "130\r\n");
    pty_line(&t, "yes | $P head -1 | cat; echo ${PIPESTATUS[*]}");
    pty_expect(&t, "y\r\n141 0 0\r\n");
}

static void hang_up(void) {
    pty_line(&t, "rm -f hup; $P sh -c 'trap \"echo hup >>hup; exit 0\" HUP; echo READY; while :; do sleep 0.05; done'");
    pty_expect(&t, "READY");
    close(t.fd);
    t.fd = -1;
}

static bool hup_seen(void *data) {
    (void)data;
    struct stat st;
    return stat("hup", &st) == 0 && st.st_size > 0;
}

static void nohup(void) {
    pty_line(&t, "nohup $P sh -c 'kill -HUP $$; echo ALI\\VE; sed -n s/SigIgn/IGN/p /proc/$$/status' | cat");
    pty_expect(&t, "ALIVE");
    pty_prompt(&t);
    pty_line(&t, "sh -c \"$P grep SigIgn /proc/self/status & wait\"");
    pty_expect(&t, "SigIgn:\t0000000000000006\r\n");
    pty_prompt(&t);
}

static void test_editor(void **state) {
    (void)state;
    with_and_without(editor);
}
static void test_pipeline(void **state) {
    (void)state;
    with_and_without(pipeline);
}
static void test_hang_up(void **state) {
    char line[16] = "", options[160];
    (void)state;
    snprintf(options, sizeof options, "-u %s", url);
    shell(options);
    hang_up();
    pty_close(&t);
    assert_true(server_until(hup_seen, NULL, 20000));
    FILE *file = fopen("hup", "r");
    assert_non_null(file);
    size_t n = fread(line, 1, sizeof line, file);
    fclose(file);
    assert_int_equal(n, 4);
    /* and the lock is free */
    char command[512];
    snprintf(command, sizeof command, "timeout 5 %s run -u %s n true", getenv("PAWL_BIN"), url);
    assert_int_equal(system(command), 0);
}
static void test_nohup(void **state) {
    (void)state;
    with_and_without(nohup);
}

/* --- pawl's own --- */

static void test_front_killed_in_raw_mode(void **state) {
    char options[160];
    (void)state;
    snprintf(options, sizeof options, "-u %s", url);
    shell(options);
    pty_line(&t, "stty >modes; $P sh -c 'echo $PPID >holder; exec $0' $E");
    pty_expect(&t, "EDITOR");
    pty_type(&t, "a");
    pty_expect(&t, "KEY 97");
    char command[512];
    snprintf(command, sizeof command, "kill -9 $(cut -d' ' -f4 /proc/$(cat %s/holder)/stat)", dir);
    assert_int_equal(system(command), 0);
    expect_code(137);
    pty_line(&t, "stty | cmp - modes && echo sa''me");
    pty_expect(&t, "same\r\n");
    pty_close(&t);
}

static void test_waiting(void **state) {
    char options[160];
    (void)state;
    snprintf(options, sizeof options, "-u %s", url);
    shell(options);
    pty_line(&t, "$P sh -c 'echo HELD; until [ -e free ] || [ ! -d locks ]; do sleep 0.05; done' &");
    pty_expect(&t, "HELD");
    pty_line(&t, "$P echo never");
    pty_expect(&t, "pawl: n: waiting ");
    pty_expect(&t, " s, 1st in line, held by sh (pid ");
    pty_expect(&t, "\r"
                   "pawl: n: waiting "); /* drawn again, over itself */
    pty_type(&t, "\003");                /* leaves the queue */
    expect_code(130);
    size_t from = t.at;
    pty_line(&t, "$P sh -c 'echo TO\\KEN'");
    pty_expect(&t, "waiting ");
    pty_type(&t, "\032");
    pty_expect(&t, "Stopped");
    pty_prompt(&t);
    pty_line(&t, "touch free; fg");
    pty_expect(&t, "TOKEN\r\n");
    expect_code(0);
    assert_int_equal(times(from, "never"), 0);
    pty_close(&t);
}

/* The hold goes on while the command is stopped: longer than the ttl, with and without tostop, and with messages. */
static void renewed_while_stopped(const char *prepare, const char *more) {
    char options[192];
    snprintf(options, sizeof options, "-u %s -t 3s %s", redis.url, more);
    shell(options);
    pty_line(&t, "%s", prepare);
    pty_prompt(&t);
    pty_line(&t, "$P sh -c 'echo READY; read x; echo GOT-$x'");
    pty_expect(&t, "READY");
    char *before = server_redis(redis.port, "GET pawl:n");
    assert_true(before && *before);
    pty_type(&t, "\032");
    pty_expect(&t, "Stopped");
    pty_idle(&t, 4500);
    char *after = server_redis(redis.port, "GET pawl:n");
    assert_string_equal(before, after);
    free(before);
    free(after);
    pty_line(&t, "fg");
    pty_type(&t, "on\r");
    pty_expect(&t, "GOT-on\r\n");
    expect_code(0);
    pty_close(&t);
}

static void test_renewed_while_stopped(void **state) {
    (void)state;
    if (!redis.pid) skip();
    renewed_while_stopped(":", "");
    renewed_while_stopped("stty tostop", "-v");
}

static bool pid_written(void *data) {
    char text[16];
    (void)data;
    FILE *file = fopen("pid", "r");
    bool written = file && fgets(text, sizeof text, file) && strchr(text, '\n');
    if (file) fclose(file);
    return written;
}

/* A terminal stopped with ^S blocks whoever writes to it: that must not be the one who kills. */
static void test_blocked_terminal(void **state) {
    char options[192];
    (void)state;
    if (!redis.pid) skip();
    snprintf(options, sizeof options, "-v -u %s -t 600ms", redis.url);
    shell(options);
    pty_line(&t, "rm -f pid; read x; $P sh -c 'echo $$ >pid; trap : TERM; while :; do sleep 0.05; done'");
    pty_type(&t, "\023\r"); /* ^S: the -v message that it is held finds the terminal blocked */
    assert_true(server_until(pid_written, NULL, 20000));
    free(server_redis(redis.port, "DEL pawl:n"));
    char command[256];
    snprintf(command, sizeof command, "timeout 5 sh -c 'while kill -0 $(cat %s/pid) 2>/dev/null; do sleep 0.02; done'",
             dir);
    assert_int_equal(system(command), 0);
    pty_type(&t, "\021"); /* ^Q */
    pty_expect(&t, "LOST");
    expect_code(122);
    pty_close(&t);
}

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(dir) || chdir(dir)) return -1;
    if (mkdir("locks", 0700)) return -1;
    snprintf(url, sizeof url, "file:%s/locks", dir);
    if (!getenv("NO_REDIS")) server_start_redis(&redis, NULL);
    return 0;
}
static int tear_down(void **state) {
    char command[64];
    (void)state;
    if (redis.pid) server_stop(&redis);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

/* A test that failed must not leave its lock behind. */
static int close_shell(void **state) {
    (void)state;
    if (t.bash) pty_close(&t);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_interrupt, close_shell),
        cmocka_unit_test_teardown(test_interrupt_ends_loop, close_shell),
        cmocka_unit_test_teardown(test_kill_by_pid, close_shell),
        cmocka_unit_test_teardown(test_fg_bg, close_shell),
        cmocka_unit_test_teardown(test_stops_itself, close_shell),
        cmocka_unit_test_teardown(test_background_terminal, close_shell),
        cmocka_unit_test_teardown(test_editor, close_shell),
        cmocka_unit_test_teardown(test_pipeline, close_shell),
        cmocka_unit_test_teardown(test_hang_up, close_shell),
        cmocka_unit_test_teardown(test_nohup, close_shell),
        cmocka_unit_test_teardown(test_front_killed_in_raw_mode, close_shell),
        cmocka_unit_test_teardown(test_waiting, close_shell),
        cmocka_unit_test_teardown(test_renewed_while_stopped, close_shell),
        cmocka_unit_test_teardown(test_blocked_terminal, close_shell),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]); /* by hand: run_pty test_editor */
    return cmocka_run_group_tests_name("run_pty", tests, set_up, tear_down);
}
