/*
 * Which places a queue offers to its consumers: those that came back first, then new ones, each in the order of
 * positions. As the first kind stands before queue.fresh and the second from there on, that is the order of the queue.
 *
 * The offer of new places is at queue.fresh. What always holds:
 *   - a place that is not dead has ENTRY_PASSED if and only if it stands before `fresh`;
 *   - every place before `fresh` is dead, locked, acquired, hidden, expired, or has come back; `returned` counts the last kind, in the
 *     queue and in each chunk; queue.back has the chunks that have some, so that the first of them is found in as many
 *     steps as the run has chunks in binary digits;
 *   - a place from `fresh` on may be acquired: a consumer that names it, or a position before it, does not wait for its
 *     turn. `ahead` counts these in each chunk, and hidden and expired ones. The offer passes them as it passes locked ones. If
 *     one is given back, or is no longer hidden, before that, it is a new place again, and not one that came back: the places
 *     between are offered first.
 *
 * A free place keeps only its two bits and its count, so waiting places need no more memory; the counts of a chunk are
 * allocated when the first of its places is acquired, so that giving a place back allocates nothing. They begin with the
 * counts of the places' states: those that are in the log (store/counts.c).
 */
#include <assert.h>
#include <stdlib.h>

#include "logstore.h"
#include "table/heap.h"
#include "table/times.h"

/* ---- the chunks with places that came back ---- */

void offer_none_back(struct queue_chunk *c) { heap_remove(&c->queue->back, HEAP_BACK, c); }

static void find_returned(struct queue *q) {
    struct cursor *c = &q->front;
    if (c->chunk != q->back.all[0]) {
        c->chunk = q->back.all[0];
        c->slot = 0;
    }
    for (;; c->slot++) {
        assert(c->slot < c->chunk->used);
        if (entry_came_back(&c->chunk->entries[c->slot])) {
            return;
        }
    }
}

/* ---- offering ---- */

static bool find_fresh(struct queue *q, uint64_t durable_lsn) {
    uint64_t position;
    struct entry *e = cursor_entry(&q->fresh, &position);
    while (e != NULL && e->order_lsn < durable_lsn && !entry_is_free(e)) {
        if (entry_is_ahead(e)) {
            q->fresh.chunk->ahead--;
        }
        e->state |= ENTRY_PASSED;
        cursor_step(&q->fresh);
        e = cursor_entry(&q->fresh, &position);
    }
    return e != NULL && e->order_lsn < durable_lsn;
}

bool offer_find(struct queue *q, uint64_t durable_lsn, struct place *p) {
    const struct cursor *c = q->returned > 0 ? &q->front : &q->fresh;
    if (q->returned > 0) {
        find_returned(q);
    } else if (!find_fresh(q, durable_lsn)) {
        return false;
    }
    *p = (struct place){.at.chunk = c->chunk, .slot = c->slot, .queue_id = q->id};
    return true;
}

void offer_use_counts(struct queue_chunk *c, struct hand_out *zeros) {
    const uint32_t *counts = c->states != NULL ? c->states->delivery_counts : NULL;
    for (uint32_t i = 0; counts != NULL && i < c->used; i++) {
        zeros[i].count = counts[i];
    }
    c->handed_out = zeros;
}

bool offer_prepare(const struct place *p) {
    struct queue_chunk *c = p->at.chunk;
    if (c->handed_out == NULL) {
        struct hand_out *zeros = calloc(CHUNK_PLACES, sizeof *zeros);
        if (zeros == NULL) {
            return false;
        }
        offer_use_counts(c, zeros);
    }
    return true;
}

static inline uint32_t count_acquisition(struct hand_out *h, uint32_t tenths) {
    h->count += h->count < UINT32_MAX ? 1 : 0;
    h->since_tenths = tenths;
    return h->count;
}

static inline uint32_t hand_out(struct queue *q, const struct place *p, const struct message *m, enum standing from,
                                uint8_t state, uint32_t tenths) {
    struct entry *e = place_entry(p);
    struct hand_out *h = &p->at.chunk->handed_out[p->slot];
    e->state |= state;
    queue_tally(q, m, from, STANDING_ACQUIRED);
    return count_acquisition(h, tenths);
}

uint32_t offer_acquire(struct queue *q, const struct place *p, const struct message *m, uint32_t tenths) {
    const struct entry *e = place_entry(p);
    assert(entry_is_free(e));
    if ((e->state & ENTRY_PASSED) != 0) {
        offer_went(p);
        cursor_step(&q->front);
    } else {
        cursor_step(&q->fresh);
    }
    return hand_out(q, p, m, STANDING_READY, ENTRY_ACQUIRED | ENTRY_PASSED, tenths);
}

/* It leaves the heap at once, so that the next one can be taken, unless it has more places than n. */
bool offer_take_chunk(struct queue *q, size_t n, struct timed_chunk *taken) {
    struct queue_chunk *c = n > 0 && offer_is_timed(q) ? q->back.all[0] : NULL;
    if (c == NULL || !offer_prepare(&(struct place){.at.chunk = c})) {
        return false;
    }
    prefetch_bytes(c->states, sizeof *c->states);
    *taken = (struct timed_chunk){.chunk = c, .places = c->returned < n ? c->returned : (uint32_t)n};
    c->returned = (uint16_t)(c->returned - taken->places);
    q->returned -= taken->places;
    if (c->returned == 0) {
        offer_none_back(c);
    }
    return true;
}

void offer_fetch_chunk(const struct timed_chunk *taken) {
    const struct queue_chunk *c = taken->chunk;
    for (uint32_t half = 0; half < 2; half++) {
        for (uint64_t left = c->states->back[half]; left != 0; left &= left - 1) {
            uint32_t slot = 64 * half + (uint32_t)__builtin_ctzll(left);
            prefetch(&c->entries[slot]);
            prefetch(&c->handed_out[slot]);
        }
    }
}

void offer_acquire_chunk(const struct table *t, const struct timed_chunk *taken, uint32_t tenths, uint8_t *slots) {
    struct queue_chunk *c = taken->chunk;
    uint32_t found = 0, slot = 0;
    while (found < taken->places) {
        uint32_t half = c->states->back[0] != 0 ? 0 : 1;
        uint64_t *left = &c->states->back[half];
        assert(*left != 0);
        slot = 64 * half + (uint32_t)__builtin_ctzll(*left);
        *left &= *left - 1;
        struct entry *e = &c->entries[slot];
        if (entry_came_back(e)) {
            message_prefetch(table_message(t, e->message));
            e->state |= ENTRY_ACQUIRED;
            (void)count_acquisition(&c->handed_out[slot], tenths);
            slots[found++] = (uint8_t)slot;
        }
    }
    c->queue->front.chunk = c;
    c->queue->front.slot = slot + 1;
}

/* Whether the counts show that no place of the chunk is free. The chunk at `fresh` has places of both kinds. */
static bool has_none(const struct queue *q, const struct queue_chunk *c) {
    const struct queue_chunk *fresh = q->fresh.chunk;
    if (fresh == NULL || c->first_position < fresh->first_position) {
        return c->returned == 0;
    }
    return c != fresh && c->ahead == c->live;
}

bool offer_next(struct cursor *c, uint64_t durable_lsn, struct place *p) {
    const struct queue *q = c->queue;
    for (;; cursor_step(c)) {
        while (c->chunk != NULL && has_none(q, c->chunk)) {
            c->chunk = c->chunk->next;
            c->slot = 0;
        }
        uint64_t position;
        const struct entry *e = cursor_entry(c, &position);
        if (e == NULL || e->order_lsn >= durable_lsn) {
            return false;
        }
        if (entry_is_free(e)) {
            *p = (struct place){.at.chunk = c->chunk, .slot = c->slot, .queue_id = q->id};
            return true;
        }
    }
}

uint32_t offer_take(const struct place *p, const struct message *m, uint32_t tenths) {
    const struct entry *e = place_entry(p);
    struct queue_chunk *c = p->at.chunk;
    assert(entry_is_free(e));
    offer_went(p);
    if ((e->state & ENTRY_PASSED) == 0) {
        c->ahead++;
    }
    return hand_out(c->queue, p, m, STANDING_READY, ENTRY_ACQUIRED, tenths);
}

uint32_t offer_take_expired(const struct place *p, const struct message *m, uint32_t tenths) {
    assert(entry_is_expired(place_entry(p)));
    offer_went(p); /* it is counted in `ahead` already */
    return hand_out(p->at.chunk->queue, p, m, STANDING_EXPIRED, ENTRY_ACQUIRED, tenths);
}

bool offer_is_acquired(const struct place *p, uint32_t count) {
    return (place_entry(p)->state & ENTRY_ACQUIRED) != 0 && p->at.chunk->handed_out[p->slot].count == count;
}

/* In a chunk with times, which decide what the place is now. */
static void give_back_timed(const struct place *p, const struct message *m) {
    struct entry *e = place_entry(p);
    enum standing before = entry_standing(e);
    e->state &= (uint8_t)~ENTRY_ACQUIRED;
    if ((e->state & ENTRY_PASSED) == 0 && !entry_is_ahead(e)) {
        p->at.chunk->ahead--;
    }
    times_given_back(p);
    queue_tally(p->at.chunk->queue, m, before, entry_standing(e));
}

void offer_give_back(struct place *p, const struct message *m, bool unseen) {
    struct entry *e = place_entry(p);
    assert((e->state & ENTRY_ACQUIRED) != 0);
    p->at.chunk->handed_out[p->slot].count -= unseen ? 1 : 0;
    if (chunk_has_times(p->at.chunk)) {
        give_back_timed(p, m);
        offer_came_back(p);
        return;
    }
    if ((e->state & ENTRY_PASSED) == 0) {
        p->at.chunk->ahead--;
    }
    if ((e->state & ENTRY_LOCKED) == 0) {
        queue_tally(p->at.chunk->queue, m, STANDING_ACQUIRED, STANDING_READY);
    } else { /* a transaction has locked it, and it stays locked */
        queue_tally(p->at.chunk->queue, m, STANDING_BOTH, STANDING_LOCKED);
    }
    e->state &= (uint8_t)~ENTRY_ACQUIRED;
    offer_came_back(p);
}

/* Places of the chunk came back, the first of them at this slot. */
static inline void add_returned(struct queue_chunk *c, uint32_t first, uint32_t n) {
    struct queue *q = c->queue;
    if (q->front.chunk == c && q->front.slot > first) {
        q->front.slot = first;
    }
    uint16_t before = c->returned;
    c->returned = (uint16_t)(before + n);
    if (before == 0) {
        heap_add(&q->back, HEAP_BACK, c, c->first_position); /* queue_prepare saw to its room */
    }
    q->returned += n;
}

void offer_came_back(const struct place *p) {
    struct queue *q = p->at.chunk->queue;
    if (q->takers != NULL && entry_is_free(place_entry(p))) {
        takers_place_freed(q->takers);
    }
    if (!entry_came_back(
            place_entry(p))) { /* a consumer or a transaction still has it, or the offer has not reached it, */
        if (entry_is_expired(place_entry(p))) { /* or it is not offered any more */
            times_expired_came(p->at.chunk);
            if (q->takers != NULL) {
                watched_tell(&q->takers->watched, LS_EXPIRED);
            }
        }
        return;
    }
    add_returned(p->at.chunk, p->slot, 1);
}

void offer_came_back_all(struct queue_chunk *c, const uint64_t *bits) {
    uint32_t n = (uint32_t)(__builtin_popcountll(bits[0]) + __builtin_popcountll(bits[1]));
    if (n == 0) {
        return;
    }
    c->states->back[0] |= bits[0];
    c->states->back[1] |= bits[1];
    uint32_t first = (uint32_t)(bits[0] != 0 ? __builtin_ctzll(bits[0]) : 64 + __builtin_ctzll(bits[1]));
    add_returned(c, first, n);
}

void offer_mark_back(struct queue_chunk *c) {
    for (uint32_t slot = 0; slot < c->used; slot++) {
        if (entry_came_back(&c->entries[slot])) {
            c->states->back[slot / 64] |= UINT64_C(1) << slot % 64;
        }
    }
}
