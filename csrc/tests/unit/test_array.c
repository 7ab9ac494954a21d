/*
 * Growing arrays keep their items and refuse impossible sizes; a lower bound is the one that a look at every item
 * finds.
 */
#include "os/array.h"

#include "tests/kit/vfs_test.h"

struct item {
    uint64_t value;
    uint32_t small;
    uint64_t key;
};

static void a_grown_array_keeps_its_items_and_has_the_room(void) {
    uint64_t *numbers = NULL;
    uint32_t capacity = 0, count = 0;

    for (uint32_t step = 0; count < 100000; step++) {
        uint32_t more = 1 + step % 7;

        require(array_grow(&numbers, &capacity, count, more) && capacity >= count + more);
        for (uint32_t i = 0; i < more; i++, count++)
            numbers[count] = count * UINT64_C(3);
    }
    for (uint32_t i = 0; i < count; i++)
        require(numbers[i] == i * UINT64_C(3));
    free(numbers);
}

static void room_that_is_there_is_not_asked_for_again(void) {
    struct item *items = NULL;
    size_t capacity = 0, times = 0;

    for (size_t count = 0; count < 1000; count++) {
        size_t before = capacity;

        require(array_grow(&items, &capacity, count, 1));
        times += capacity != before ? 1 : 0;
    }
    check(times <= 11 && array_grow(&items, &capacity, 1000, 0));
    free(items);
}

static void more_than_can_be_is_refused_and_changes_nothing(void) {
    uint64_t *numbers = NULL;
    size_t capacity = 0;
    uint32_t short_capacity = 0;

    require(array_grow(&numbers, &capacity, 0, 4));
    uint64_t *before = numbers;
    check(!array_grow(&numbers, &capacity, SIZE_MAX, 1) && !array_grow(&numbers, &capacity, 4, SIZE_MAX));
    check(!array_grow(&numbers, &capacity, 4, SIZE_MAX / sizeof *numbers));
    check(!array_grow(&numbers, &capacity, 4, PTRDIFF_MAX / sizeof *numbers));
    check(numbers == before && capacity == 4);
    check(!array_grow(&numbers, &short_capacity, UINT32_MAX, 1) && numbers == before && short_capacity == 0);
    free(numbers);
}

static size_t bound_by_every_item(const struct item *items, size_t count, uint64_t key) {
    size_t low = 0;

    while (low < count && items[low].key < key)
        low++;
    return low;
}

static void a_lower_bound_is_what_a_look_at_every_item_finds(void) {
    struct item items[40];
    uint32_t bare[40];
    uint64_t c = 1;

    for (size_t count = 0; count <= 40; count++) {
        uint64_t key = chance(&c) % 3;

        for (size_t i = 0; i < count; i++, key += chance(&c) % 3) {
            items[i] = (struct item){.value = 100 - i, .small = (uint32_t)key, .key = key};
            bare[i] = (uint32_t)key;
        }
        for (uint64_t sought = 0; sought <= key + 2; sought++) {
            size_t expected = bound_by_every_item(items, count, sought);

            check(array_lower_bound(struct item, items, count, key, sought) == expected);
            check(array_lower_bound(struct item, items, count, small, sought) == expected);
            check(array_lower_bound_of(bare, count, sought) == expected);
        }
    }
    check(array_lower_bound(struct item, (struct item *)NULL, 0, key, 7) == 0);
}

int main(void) {
    static void (*const tests[])(void) = {
        a_grown_array_keeps_its_items_and_has_the_room,
        room_that_is_there_is_not_asked_for_again,
        more_than_can_be_is_refused_and_changes_nothing,
        a_lower_bound_is_what_a_look_at_every_item_finds,
    };
    int count = (int)(sizeof tests / sizeof *tests), failed = 0;

    for (int i = 0; i < count; i++) {
        failures_here = 0;
        tests[i]();
        failed += failures_here > 0;
    }
    return verdict(count - failed, failed);
}
