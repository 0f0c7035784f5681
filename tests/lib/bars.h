/* bars.h: one run of pawl-lab bench ($PAWL_LAB), for the tests of the speeds that are promised. What a process must
 * wait for a core says nothing about pawl: a row has "ours_percent", and where that is below BARS_QUIET there is no
 * verdict about a time. */
#ifndef PAWL_TEST_BARS_H
#define PAWL_TEST_BARS_H
#include <jansson.h>

#define BARS_QUIET 80.0 /* percent of the cores ours */

/* Its row; options in the format of printf. A run that fails fails the test. */
json_t *bench(const char *options, ...) __attribute__((format(printf, 1, 2)));
double number(const json_t *row, const char *key);
#endif
