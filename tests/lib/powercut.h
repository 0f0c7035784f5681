/* powercut.h: what a disk keeps when the power goes, for programs that promise durability (killing a process proves
 * nothing: the kernel still has its writes).
 *
 * powercut.c replaces fsync, fdatasync, unlink and rename in the program that it is linked into (export_dynamic: true,
 * so that shared libraries see it too), or as a preloaded library (POWERCUT_ROOT, POWERCUT_SHADOW). A flush copies the
 * file's content, or the directory's entries, into a shadow directory; nothing is really flushed, so it is fast. After
 * all writers were killed, powercut_restore builds the tree as a disk might hold it.
 *
 * Not modelled: O_SYNC, sync_file_range, writes through mmap that are made during a flush, directories moved by rename.
 */
#ifndef PAWL_TEST_POWERCUT_H
#define PAWL_TEST_POWERCUT_H
#include <stdbool.h>
#include <stdint.h>

/* From now on, in this process and its children, flushes below root go to shadow. Both exist, on one file system,
 * neither inside the other; what is in root now counts as durable. */
void powercut_begin(const char *root, const char *shadow);
void powercut_end(void);

/* For the test of a test: flushes that do nothing. */
enum { POWERCUT_FILES_NOT_FLUSHED = 1, POWERCUT_DIRECTORIES_NOT_FLUSHED = 2 };
void powercut_break(int what);

/* Makes out (new) the tree root after a power cut. seed 0: everything that was not flushed is gone. Else each directory
 * has its flushed or its last entries, and each file a mix of flushed and last blocks, by chance. false: errno. */
bool powercut_restore(const char *root, const char *shadow, const char *out, uint64_t seed);
#endif
