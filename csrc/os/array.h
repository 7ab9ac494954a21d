/* Arrays that grow, and arrays sorted by a key: one way to do each. */
#ifndef LOGSTORE_ARRAY_H
#define LOGSTORE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * Makes room for `more` items behind the `count` in the array that the pointer at `array` names; the array may move.
 * `capacity` points to a size_t or a uint32_t. False: no memory, or too many items; then nothing has changed.
 */
#define array_grow(array, capacity, count, more) \
    _Generic((capacity), uint32_t *              \
             : array_grow_short, size_t *        \
             : array_grow_long)((array), (capacity), (count), (more), sizeof **(array))

bool array_grow_long(void *array, size_t *capacity, size_t count, size_t more, size_t item_bytes);
bool array_grow_short(void *array, uint32_t *capacity, size_t count, size_t more, size_t item_bytes);

/*
 * The number of items whose key lies below `key`, which is the index of the first other one. The items are of this
 * struct type and sorted by the field, a uint64_t or uint32_t. Give key + 1 for the number of items up to and with
 * `key`.
 */
#define array_lower_bound(type, items, count, field, key) \
    array_search((items), (count), sizeof(type), offsetof(type, field), sizeof(((const type *)0)->field), (key))

/* The same for an array of bare keys. */
#define array_lower_bound_of(keys, count, key) array_search((keys), (count), sizeof *(keys), 0, sizeof *(keys), (key))

static inline size_t array_search(const void *items, size_t count, size_t item_bytes, size_t key_offset,
                                  size_t key_bytes, uint64_t key) {
    const unsigned char *bytes = items;
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uint64_t found = 0;
        if (key_bytes == sizeof(uint32_t)) {
            uint32_t narrow;
            memcpy(&narrow, bytes + middle * item_bytes + key_offset, sizeof narrow);
            found = narrow;
        } else {
            memcpy(&found, bytes + middle * item_bytes + key_offset, sizeof found);
        }
        if (found < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

#endif
