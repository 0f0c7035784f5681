#include "map.h"
#include <stdlib.h>

uint64_t map_hash(const void *key, size_t size) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)key)[i]) * UINT64_C(1099511628211);
    return hash ^ hash >> 32;
}

static struct map_node **slot(const struct map *map, uint64_t hash) { return &map->slots[hash & (map->n_slots - 1)]; }

bool map_reserve(struct map *map) {
    if (map->n < map->n_slots) return true;
    struct map bigger = {.n_slots = map->n_slots ? 2 * map->n_slots : 16};
    bigger.slots = calloc(bigger.n_slots, sizeof(struct map_node *));
    if (!bigger.slots) return false;
    for (size_t i = 0; i < map->n_slots; i++)
        for (struct map_node *node = map->slots[i], *next; node; node = next) {
            next = node->next;
            map_add(&bigger, node, node->hash);
        }
    free(map->slots);
    *map = bigger;
    return true;
}

void map_add(struct map *map, struct map_node *node, uint64_t hash) {
    struct map_node **at = slot(map, hash);
    node->hash = hash;
    node->next = *at;
    *at = node;
    map->n++;
}

void map_remove(struct map *map, struct map_node *node) {
    if (!map->n_slots) return;
    for (struct map_node **at = slot(map, node->hash); *at; at = &(*at)->next)
        if (*at == node) {
            *at = node->next;
            map->n--;
            return;
        }
}

static struct map_node *first_of(struct map_node *node, uint64_t hash) {
    while (node && node->hash != hash) node = node->next;
    return node;
}

struct map_node *map_find(const struct map *map, uint64_t hash) {
    return map->n_slots ? first_of(*slot(map, hash), hash) : NULL;
}

struct map_node *map_next(const struct map_node *node) {
    return first_of(node->next, node->hash);
}

void map_free(struct map *map) {
    free(map->slots);
    *map = (struct map){0};
}
