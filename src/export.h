/* export.h: what libpawl.so shows. Everything else is hidden. */
#ifndef PAWL_EXPORT_H
#define PAWL_EXPORT_H
#define PAWL_EXPORT __attribute__((visibility("default")))
#endif
