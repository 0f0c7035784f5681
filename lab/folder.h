/* folder.h: a verb that starts servers: below one temporary directory, which is $TMPDIR meanwhile, and with whatever
 * they leave behind taken in (it is a subreaper), so that nothing is left, also after an interrupt. */
#ifndef LAB_FOLDER_H
#define LAB_FOLDER_H
#include <signal.h>

extern volatile sig_atomic_t lab_interrupted; /* the signal; 0: none */

/* Runs fn(data) there and removes the directory; returns what fn does, or LAB_FAILED. INT and TERM only set
 * lab_interrupted: fn is to end then. */
int lab_in_folder(int (*fn)(const void *data), const void *data);
#endif
