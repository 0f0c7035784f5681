/* picture.h: a story as SVG. Every place on the time axis is a percentage, so a picture fits any width with letters of
 * constant size; colours are classes, so that they follow the reader's light or dark. */
#ifndef LAB_PICTURE_H
#define LAB_PICTURE_H
#include "story.h"
#include <stdio.h>

extern const char picture_style[]; /* CSS of the classes */
extern const char picture_defs[];  /* patterns; once in a page, before the pictures */

int picture_height(const struct story *t);
/* scale_ns: the time from the left to the right edge, the same for stories to be compared. attributes: of the svg. */
void picture_draw(FILE *to, const struct story *t, int64_t scale_ns, const char *attributes);
void picture_text(FILE *to, const char *text); /* with < > & " escaped */
int64_t picture_scale(const struct story *stories, int n);
#endif
