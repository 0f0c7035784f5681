/* report.h: stories as one page of HTML with pictures, that needs nothing else. */
#ifndef LAB_REPORT_H
#define LAB_REPORT_H
#include "story.h"

/* LAB_OK, or LAB_FAILED and says why. Stories of one scenario stand together. */
int report_write(const char *path, const struct story *stories, int n);
#endif
