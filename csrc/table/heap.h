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
    HEAP_TIMES,   /* all chunks with a time to come, by that time */
};

static inline uint64_t heap_key(enum heap_kind kind, const struct queue_chunk *c) {
    return kind == HEAP_TIMES ? c->states->next_us : c->first_position;
}

/* The chunk's place in the heap, from 1 on; 0: it is not there. */
static inline uint32_t *heap_at(enum heap_kind kind, struct queue_chunk *c) {
    return kind == HEAP_BACK ? &c->back_at : kind == HEAP_EXPIRED ? &c->states->expired_at : &c->states->times_at;
}

static inline void heap_put(struct chunk_heap *h, enum heap_kind kind, uint32_t at, struct queue_chunk *c) {
    h->all[at] = c;
    *heap_at(kind, c) = at + 1;
}

/* Puts the chunk at this place of the heap or above it. */
static inline void heap_rise(struct chunk_heap *h, enum heap_kind kind, uint32_t at, struct queue_chunk *c) {
    while (at > 0 && heap_key(kind, h->all[(at - 1) / 2]) > heap_key(kind, c)) {
        heap_put(h, kind, at, h->all[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(h, kind, at, c);
}

/* The same, or below it. */
static inline void heap_sink(struct chunk_heap *h, enum heap_kind kind, uint32_t at, struct queue_chunk *c) {
    for (uint32_t child = 2 * at + 1; child < h->count; child = 2 * at + 1) {
        if (child + 1 < h->count && heap_key(kind, h->all[child + 1]) < heap_key(kind, h->all[child])) {
            child++;
        }
        if (heap_key(kind, h->all[child]) > heap_key(kind, c)) {
            break;
        }
        heap_put(h, kind, at, h->all[child]);
        at = child;
    }
    heap_put(h, kind, at, c);
}

static inline void heap_add(struct chunk_heap *h, enum heap_kind kind, struct queue_chunk *c) {
    assert(h->count < h->capacity && *heap_at(kind, c) == 0);
    h->count++;
    heap_rise(h, kind, h->count - 1, c);
}

static inline void heap_remove(struct chunk_heap *h, enum heap_kind kind, struct queue_chunk *c) {
    uint32_t at = *heap_at(kind, c) - 1;
    struct queue_chunk *last = h->all[--h->count];
    *heap_at(kind, c) = 0;
    if (last == c) {
        return;
    }
    if (at > 0 && heap_key(kind, h->all[(at - 1) / 2]) > heap_key(kind, last)) {
        heap_rise(h, kind, at, last);
    } else {
        heap_sink(h, kind, at, last);
    }
}

#endif
