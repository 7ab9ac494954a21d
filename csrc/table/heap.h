/*
 * Binary heaps of chunks, the one with the smallest key on top. A chunk knows where it stands in each of them, so it is taken out, or
 * gets another key, in as many steps as the heap has chunks in binary digits. The room is made before: no change allocates.
 */
#ifndef LOGSTORE_TABLE_HEAP_H
#define LOGSTORE_TABLE_HEAP_H

#include <assert.h>

#include "table/remembered.h"

/* Which heap: by what it is sorted. A constant wherever it is given. */
enum heap_kind {
    HEAP_BACK,    /* a queue's chunks with places that came back, by position */
    HEAP_EXPIRED, /* a queue's chunks with expired places, by position */
    HEAP_TIMES,   /* chunks with times, by the first to come */
};

static inline uint64_t heap_key(const struct chunk_heap *h, enum heap_kind kind, uint32_t at) {
    return kind == HEAP_TIMES ? h->times[at] : h->all[at]->first_position;
}

/* The chunk's place in the heap, from 1 on; 0: it is not there. */
static inline uint32_t *heap_at(enum heap_kind kind, struct queue_chunk *c) {
    return kind == HEAP_BACK ? &c->back_at : kind == HEAP_EXPIRED ? &c->states->expired_at : &c->times_at;
}

static inline void heap_put(struct chunk_heap *h, enum heap_kind kind, uint32_t at, struct queue_chunk *c,
                            uint64_t key) {
    h->all[at] = c;
    if (kind == HEAP_TIMES) {
        h->times[at] = key;
    }
    *heap_at(kind, c) = at + 1;
}

/* Puts the chunk with this key at this place of the heap or above it. */
static inline void heap_rise(struct chunk_heap *h, enum heap_kind kind, uint32_t at, struct queue_chunk *c,
                             uint64_t key) {
    while (at > 0 && heap_key(h, kind, (at - 1) / 2) > key) {
        heap_put(h, kind, at, h->all[(at - 1) / 2], heap_key(h, kind, (at - 1) / 2));
        at = (at - 1) / 2;
    }
    heap_put(h, kind, at, c, key);
}

/* The same, or below it. */
static inline void heap_sink(struct chunk_heap *h, enum heap_kind kind, uint32_t at, struct queue_chunk *c,
                             uint64_t key) {
    for (uint32_t child = 2 * at + 1; child < h->count; child = 2 * at + 1) {
        if (child + 1 < h->count && heap_key(h, kind, child + 1) < heap_key(h, kind, child)) {
            child++;
        }
        if (heap_key(h, kind, child) > key) {
            break;
        }
        heap_put(h, kind, at, h->all[child], heap_key(h, kind, child));
        at = child;
    }
    heap_put(h, kind, at, c, key);
}

static inline void heap_add(struct chunk_heap *h, enum heap_kind kind, struct queue_chunk *c, uint64_t key) {
    assert(h->count < h->capacity && *heap_at(kind, c) == 0);
    h->count++;
    heap_rise(h, kind, h->count - 1, c, key);
}

static inline void heap_remove(struct chunk_heap *h, enum heap_kind kind, struct queue_chunk *c) {
    uint32_t at = *heap_at(kind, c) - 1;
    struct queue_chunk *last = h->all[h->count - 1];
    uint64_t key = heap_key(h, kind, h->count - 1);
    h->count--;
    *heap_at(kind, c) = 0;
    if (last == c) {
        return;
    }
    if (at > 0 && heap_key(h, kind, (at - 1) / 2) > key) {
        heap_rise(h, kind, at, last, key);
    } else {
        heap_sink(h, kind, at, last, key);
    }
}

#endif
