/* See array.h. */
#include "os/array.h"

#include <stdlib.h>

static bool resize(void *array, size_t capacity, size_t item_bytes) {
    void *items;
    if (capacity > PTRDIFF_MAX / item_bytes) {
        return false;
    }
    memcpy(&items, array, sizeof items); /* a pointer of any type */
    void *grown = realloc(items, capacity * item_bytes);
    if (grown == NULL) {
        return false;
    }
    memcpy(array, &grown, sizeof grown);
    return true;
}

bool array_grow_long(void *array, size_t *capacity, size_t count, size_t more, size_t item_bytes) {
    if (more > SIZE_MAX - count) {
        return false;
    }
    size_t needed = count + more;
    if (needed <= *capacity) {
        return true;
    }
    size_t twice = *capacity <= SIZE_MAX / 2 ? 2 * *capacity : needed, grown = twice > needed ? twice : needed;
    if (!resize(array, grown, item_bytes)) {
        return false;
    }
    *capacity = grown;
    return true;
}

bool array_grow_short(void *array, uint32_t *capacity, size_t count, size_t more, size_t item_bytes) {
    size_t grown = *capacity;
    if (more > UINT32_MAX || count > UINT32_MAX - more || !array_grow_long(array, &grown, count, more, item_bytes)) {
        return false;
    }
    *capacity = grown < UINT32_MAX ? (uint32_t)grown : UINT32_MAX;
    return true;
}
