/*
 * Which places a queue offers to its consumers: those that came back first, then those that were never offered, each in the
 * order of positions.
 *
 * The offer of new places is at queue.fresh. Every place before it is dead, locked, acquired, or has come back;
 * `returned` counts the last kind, in the queue and in each chunk, so that a search for them skips all others. Each has
 * ENTRY_PASSED, and so have the places that were passed while they were locked. A free place keeps only its two bits
 * and its count, so waiting places need no more memory; the counts of a chunk are allocated when the first of its
 * places is acquired, so that giving a place back allocates nothing.
 */
#include <assert.h>
#include <stdlib.h>

#include "table/table.h"

static void find_returned(struct queue *q) {
    struct cursor *c = &q->front;
    for (;;) {
        if (c->chunk->returned == 0 || c->slot == c->chunk->used) {
            c->chunk = c->chunk->next;
            c->slot = 0;
            assert(c->chunk != NULL);
        } else if (entry_came_back(&c->chunk->entries[c->slot])) {
            return;
        } else {
            c->slot++;
        }
    }
}

static bool find_fresh(struct queue *q, uint64_t durable_lsn) {
    uint64_t position;
    struct entry *e = cursor_entry(&q->fresh, &position);
    while (e != NULL && e->order_lsn < durable_lsn && (e->state & ENTRY_LOCKED) != 0) {
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

bool offer_prepare(const struct place *p) {
    struct queue_chunk *c = p->at.chunk;
    if (c->handed_out == NULL) {
        c->handed_out = calloc(CHUNK_PLACES, sizeof *c->handed_out);
    }
    return c->handed_out != NULL;
}

uint32_t offer_acquire(struct queue *q, const struct place *p) {
    struct entry *e = place_entry(p);
    uint32_t *count = &p->at.chunk->handed_out[p->slot];
    assert((e->state & (ENTRY_DEAD | ENTRY_LOCKED | ENTRY_ACQUIRED)) == 0);
    if ((e->state & ENTRY_PASSED) != 0) {
        offer_went(p);
        cursor_step(&q->front);
    } else {
        cursor_step(&q->fresh);
    }
    e->state |= ENTRY_ACQUIRED | ENTRY_PASSED;
    q->acquired++;
    *count += *count < UINT32_MAX ? 1 : 0;
    return *count;
}

bool offer_is_acquired(const struct place *p, uint32_t count) {
    return (place_entry(p)->state & ENTRY_ACQUIRED) != 0 && p->at.chunk->handed_out[p->slot] == count;
}

void offer_give_back(struct place *p, bool unseen) {
    struct entry *e = place_entry(p);
    assert((e->state & ENTRY_ACQUIRED) != 0);
    e->state &= (uint8_t)~ENTRY_ACQUIRED;
    p->at.chunk->queue->acquired--;
    p->at.chunk->handed_out[p->slot] -= unseen ? 1 : 0;
    offer_came_back(p);
}

void offer_came_back(const struct place *p) {
    struct queue *q = p->at.chunk->queue;
    if (!entry_came_back(place_entry(p))) {
        return; /* a consumer or a transaction still has it, or it was never offered */
    }
    if (q->returned == 0 || cursor_stands_after(&q->front, p)) {
        q->front.chunk = p->at.chunk;
        q->front.slot = p->slot;
    }
    p->at.chunk->returned++;
    q->returned++;
    if (q->takers != NULL && q->takers->first != NULL) {
        takers_set_due(q->takers, true);
        q->takers->all->came_back = true;
    }
}
