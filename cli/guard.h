/* guard.h: what the verbs round a guard share. */
#ifndef PAWL_CLI_GUARD_H
#define PAWL_CLI_GUARD_H
#include "cli.h"
#include "pawl_guard.h"
#include <sys/types.h>

/* "sh (pid 4790, ana@web1)": a process of this user here. command: what it runs; NULL: ask the kernel. */
void describe_process(pid_t pid, const char *command, char *ret, size_t size);
/* Opens a guard for writes by the process that started us. 0, or the exit code and the reason was printed under `name`.
 */
int open_guard(const char *url, const char *name, pawl_guard **ret);

/* guard_exec.c: runs command (ended by NULL) inside a guard that was entered; the exit code. */
int guard_exec(pawl_guard *guard, const char *resource, char **command);

/* guard_show.c */
int cmd_guard_get(int argc, char **argv);
int cmd_guard_audit(int argc, char **argv);

/* guard_test.c: pawl guard test. */
int cmd_guard_test(int argc, char **argv);
#endif
