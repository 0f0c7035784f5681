/* text.h: UTF-8, and what of it a terminal may be shown. Leaf. */
#ifndef PAWL_TEXT_H
#define PAWL_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEXT_NOT_UTF8 UINT32_MAX

/* The character at `at`, which is not at the NUL: its bytes, and its number; a byte that begins none is taken alone, as
 * TEXT_NOT_UTF8. */
size_t text_next(const char *at, uint32_t *ret_code);
/* All of it, up to the NUL. */
bool text_valid(const char *text);
/* What others wrote may speak to the terminal, or turn the line around: false for controls (C0, DEL, C1), for the ends
 * of lines and the bidirectional controls of Unicode, and for what is not UTF-8. */
bool text_plain(uint32_t code);
#endif
