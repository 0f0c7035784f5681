/* terminal.h: an interactive bash on a pseudo terminal, driven like a person: type, and wait for text. Nothing here
 * sleeps.
 */
#ifndef TESTS_TERMINAL_H
#define TESTS_TERMINAL_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct pty {
    int fd;
    pid_t bash;
    char seen[65536];  /* everything that came, ended by NUL */
    size_t length, at; /* at: what was waited for lies before */
};

/* Starts bash -i without any rc file, prompt "PS> ". */
void pty_open(struct pty *pty);
/* Ends the session the hard way: the terminal is hung up, bash is reaped. */
void pty_close(struct pty *pty);
/* Types text as it is: "ls\r", "\003". */
void pty_type(struct pty *pty, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Waits for text to appear behind what was waited for before; fails the test with the transcript after 8 s. */
void pty_expect(struct pty *pty, const char *text);
/* Types a command line, and waits for the echo of it, so that what is expected next is output. */
void pty_line(struct pty *pty, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Waits for a prompt. */
void pty_prompt(struct pty *pty);
/* How often text came between two points of the transcript. */
int pty_count(const struct pty *pty, size_t from, size_t to, const char *text);
/* Reads what is there, for up to ms: for what must not come. */
void pty_idle(struct pty *pty, int ms);
#endif
