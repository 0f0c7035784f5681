/* The two containers of the core against plain models of themselves. */
#include "heap.h"
#include "map.h"
#include "random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N 300

static void test_heap_gives_the_earliest(void **data) {
    (void)data;
    struct heap heap = {0};
    static struct heap_node nodes[N];
    memset(nodes, 0, sizeof nodes);
    for (int step = 0; step < 20000; step++) {
        struct heap_node *node = &nodes[random_between(0, N - 1)];
        if (random_between(0, 2) == 0) heap_remove(&heap, node);
        else {
            assert_true(heap_reserve(&heap, heap.n));
            heap_set(&heap, node, random_between(-1000, 1000));
        }
        int64_t earliest = INT64_MAX;
        size_t n = 0;
        for (int i = 0; i < N; i++) {
            if (nodes[i].place == 0) continue;
            n++;
            assert_ptr_equal(heap.nodes[nodes[i].place - 1], &nodes[i]);
            if (nodes[i].at_ns < earliest) earliest = nodes[i].at_ns;
        }
        assert_int_equal(heap.n, n);
        if (n == 0) assert_null(heap_first(&heap));
        else assert_int_equal(heap_first(&heap)->at_ns, earliest);
    }
    heap_free(&heap);
}

struct entry {
    struct map_node node;
    int key;
    int in;
};

static void test_map_finds_what_is_there(void **data) {
    (void)data;
    struct map map = {0};
    static struct entry entries[N];
    memset(entries, 0, sizeof entries);
    assert_null(map_find(&map, 1));
    map_remove(&map, &entries[0].node); /* of an empty map */
    for (int step = 0; step < 20000; step++) {
        int i = (int)random_between(0, N - 1);
        struct entry *e = &entries[i];
        e->key = i % 50; /* six entries share each hash */
        uint64_t hash = map_hash(&e->key, sizeof e->key);
        if (e->in) {
            map_remove(&map, &e->node);
            map_remove(&map, &e->node); /* twice is allowed */
        } else {
            assert_true(map_reserve(&map));
            map_add(&map, &e->node, hash);
        }
        e->in = !e->in;
        size_t wanted = 0, found = 0;
        for (int k = 0; k < N; k++) wanted += entries[k].in && k % 50 == e->key;
        for (struct map_node *node = map_find(&map, hash); node; node = map_next(node)) {
            assert_int_equal(((struct entry *)(void *)node)->key, e->key);
            found++;
        }
        assert_int_equal(found, wanted);
    }
    map_free(&map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap_gives_the_earliest),
        cmocka_unit_test(test_map_finds_what_is_there),
    };
    return cmocka_run_group_tests_name("heap_map", tests, NULL, NULL);
}
