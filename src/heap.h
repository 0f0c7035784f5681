/* heap.h: a binary heap of nodes ordered by time; each node knows its place, so that moving or removing one is O(log
 * n). */
#ifndef PAWL_HEAP_H
#define PAWL_HEAP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_node {
    int64_t at_ns;
    size_t place; /* 1 .. n; 0: in no heap */
};
struct heap {
    struct heap_node **nodes;
    size_t n, room;
};

/* Makes room for one node more than n; false: out of memory. heap_set of a node that is not in the heap needs room. */
bool heap_reserve(struct heap *heap, size_t n);
void heap_set(struct heap *heap, struct heap_node *node, int64_t at_ns); /* inserts or moves */
void heap_remove(struct heap *heap, struct heap_node *node);             /* a node in no heap is allowed */
struct heap_node *heap_first(const struct heap *heap);                   /* NULL: empty */
void heap_free(struct heap *heap);
#endif
