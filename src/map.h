/* map.h: an intrusive hash table. The caller embeds a node and compares keys itself while it walks the nodes of one
 * hash. */
#ifndef PAWL_MAP_H
#define PAWL_MAP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_node {
    struct map_node *next;
    uint64_t hash;
};
struct map {
    struct map_node **slots;
    size_t n, n_slots; /* n_slots: a power of two, or 0 */
};

uint64_t map_hash(const void *key, size_t size); /* FNV-1a, 64 bit */
bool map_reserve(struct map *map);               /* room for one more; false: out of memory */
void map_add(struct map *map, struct map_node *node, uint64_t hash);
void map_remove(struct map *map, struct map_node *node); /* a node that is not in the map is allowed */
/* The first node with that hash, and the next one after it; NULL: none. */
struct map_node *map_find(const struct map *map, uint64_t hash);
struct map_node *map_next(const struct map_node *node);
void map_free(struct map *map); /* the table only */
#endif
