#include "heap.h"
#include <stdlib.h>

static void put(struct heap *heap, struct heap_node *node, size_t place) {
    heap->nodes[place - 1] = node;
    node->place = place;
}

static void sift(struct heap *heap, struct heap_node *node) {
    size_t place = node->place;
    while (place > 1 && heap->nodes[place / 2 - 1]->at_ns > node->at_ns) {
        put(heap, heap->nodes[place / 2 - 1], place);
        place /= 2;
    }
    for (;;) {
        size_t child = 2 * place;
        if (child > heap->n) break;
        if (child < heap->n && heap->nodes[child]->at_ns < heap->nodes[child - 1]->at_ns) child++;
        if (heap->nodes[child - 1]->at_ns >= node->at_ns) break;
        put(heap, heap->nodes[child - 1], place);
        place = child;
    }
    put(heap, node, place);
}

bool heap_reserve(struct heap *heap, size_t n) {
    if (n < heap->room) return true;
    size_t room = n < 8 ? 16 : 2 * n;
    struct heap_node **more = realloc(heap->nodes, room * sizeof(struct heap_node *));
    if (!more) return false;
    heap->nodes = more;
    heap->room = room;
    return true;
}

void heap_set(struct heap *heap, struct heap_node *node, int64_t at_ns) {
    node->at_ns = at_ns;
    if (node->place == 0) put(heap, node, ++heap->n);
    sift(heap, node);
}

void heap_remove(struct heap *heap, struct heap_node *node) {
    if (node->place == 0) return;
    struct heap_node *last = heap->nodes[--heap->n];
    if (last != node) {
        put(heap, last, node->place);
        sift(heap, last);
    }
    node->place = 0;
}

struct heap_node *heap_first(const struct heap *heap) {
    return heap->n ? heap->nodes[0] : NULL;
}

void heap_free(struct heap *heap) {
    free(heap->nodes);
    *heap = (struct heap){0};
}
