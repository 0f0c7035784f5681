/* tree.h: the processes below one: listed, signalled, killed.
 *
 * The caller is a child subreaper, so whatever is orphaned below it becomes its own child: a tree is dead when waitpid
 * says that there are no children. Pids below a direct child may be reused at any moment; they are signalled through a
 * pidfd that was checked after it was opened. */
#ifndef PAWL_CLI_TREE_H
#define PAWL_CLI_TREE_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct tree_entry {
    pid_t pid, parent;
};

/* Everything below root, parents before children; the number of entries. *ret is to be freed. What is forked meanwhile
 * may be missing. */
size_t tree_list(pid_t root, struct tree_entry **ret);
/* "sleep (pid 4711), sh (pid 4712)": what runs below root, as far as there is room. ret is untouched if nothing does. */
void tree_names(pid_t root, char *ret, size_t size);
/* Sends sig to everything below root (group > 0: only to members of that process group), and SIGCONT after it if
 * `wake`, so that a stopped process acts on it. Returns the number of processes reached. */
size_t tree_signal(pid_t root, int sig, pid_t group, int wake);

struct tree_death {
    size_t killed, spared; /* spared: not ours to kill (another user's), still running */
    pid_t spared_pid;
    int leader_status; /* wait status of `leader` if it was reaped here, else -1 */
};
/* SIGKILLs and reaps everything below the calling process until nothing is left, or only what cannot be killed. SIGCHLD
 * must be blocked. leader: the process whose status is wanted; 0: none. */
void tree_kill(pid_t leader, struct tree_death *ret);

/* The one-letter state of a process ('R', 'S', 'T', ...), 0 if there is none; parent, group and start time (clock ticks
 * since boot) where not NULL; name: at least 16 bytes, or NULL. */
char process_state(pid_t pid, pid_t *ret_parent, pid_t *ret_group, uint64_t *ret_start, char *ret_name);
#endif
