/* The index of times.h. */
#include "table/times.h"

#include "table/heap.h"

static uint64_t time_in(const uint64_t *array, uint32_t slot) { return array != NULL ? array[slot] : 0; }

/* The bit of a place with this one, now. */
static uint8_t bit_at(const struct chunk_states *s, uint32_t slot, uint8_t bit, uint64_t now_us) {
    uint64_t expires_us = time_in(s->expires_us, slot);
    if (bit == ENTRY_EXPIRED || (expires_us != 0 && expires_us <= now_us)) {
        return expires_us != 0 ? ENTRY_EXPIRED : 0;
    }
    return bit == ENTRY_HIDDEN && time_in(s->not_before_us, slot) > now_us ? ENTRY_HIDDEN : 0;
}

/* When a place with this bit changes next. */
static uint64_t next_of(const struct chunk_states *s, uint32_t slot, uint8_t bit) {
    uint64_t expires_us = time_in(s->expires_us, slot), next_us = expires_us != 0 ? expires_us : UINT64_MAX;
    if (bit == ENTRY_HIDDEN && s->not_before_us[slot] < next_us) {
        next_us = s->not_before_us[slot];
    }
    return bit == ENTRY_EXPIRED ? UINT64_MAX : next_us;
}

/* Somebody waits for the first time of all, and is to be told of another one. */
static void tell_first(const struct queue *q) {
    if (q->times->due->waiting > 0 || q->times->due->watching_times > 0) {
        q->times->due->came_back = true;
    }
}

/* A place of the chunk changes at this time. */
static void expect(struct queue_chunk *c, uint64_t at_us) {
    struct times *times = c->queue->times;
    struct chunk_states *s = c->states;
    if (at_us == UINT64_MAX || (s->times_at != 0 && s->next_us <= at_us)) {
        return;
    }
    s->next_us = at_us;
    if (s->times_at == 0) {
        heap_add(&times->heap, HEAP_TIMES, c);
    } else {
        heap_rise(&times->heap, HEAP_TIMES, s->times_at - 1, c);
    }
    if (s->times_at == 1) {
        tell_first(c->queue);
    }
}

static bool is_held(const struct entry *e) { return (e->state & (ENTRY_DEAD | ENTRY_LOCKED | ENTRY_ACQUIRED)) != 0; }

/* Sets the bit of a place, and what counts it but the tallies. */
static void set_bit(const struct place *p, uint8_t bit) {
    struct entry *e = place_entry(p);
    bool was_ahead = entry_is_ahead(e);
    e->state = (uint8_t)((e->state & ~(ENTRY_HIDDEN | ENTRY_EXPIRED)) | bit);
    p->at.chunk->ahead = (uint16_t)(p->at.chunk->ahead + entry_is_ahead(e) - was_ahead);
}

/* The same with the tallies, for a place in its run. */
static void change_bit(const struct place *p, const struct message *m, uint8_t bit) {
    struct entry *e = place_entry(p);
    enum standing before = entry_standing(e);
    if ((e->state & (ENTRY_HIDDEN | ENTRY_EXPIRED)) == bit) {
        return;
    }
    offer_went(p);
    set_bit(p, bit);
    queue_tally(p->at.chunk->queue, m, before, entry_standing(e));
    offer_came_back(p);
}

void times_given_back(const struct place *p) {
    const struct chunk_states *s = p->at.chunk->states;
    const struct entry *e = place_entry(p);
    if ((s->not_before_us == NULL && s->expires_us == NULL) || is_held(e)) {
        return;
    }
    uint8_t bit = bit_at(s, p->slot, e->state & (ENTRY_HIDDEN | ENTRY_EXPIRED), p->at.chunk->queue->times->now_us);
    set_bit(p, bit);
    expect(p->at.chunk, next_of(s, p->slot, bit));
}

void times_replaced(const struct place *p, const struct message *m) {
    const struct chunk_states *s = p->at.chunk->states;
    uint8_t hidden = time_in(s->not_before_us, p->slot) != 0 ? ENTRY_HIDDEN : 0;
    uint8_t bit = bit_at(s, p->slot, hidden, p->at.chunk->queue->times->now_us);
    change_bit(p, m, bit);
    if (!is_held(place_entry(p))) {
        expect(p->at.chunk, next_of(s, p->slot, bit));
    }
}

/* Looks at all places of the chunk on top of the heap. */
static void pass_chunk(const struct table *t, struct queue_chunk *c, uint64_t now_us) {
    struct chunk_states *s = c->states;
    uint64_t next_us = UINT64_MAX;
    for (uint32_t slot = 0; slot < c->used; slot++) {
        const struct entry *e = &c->entries[slot];
        if (is_held(e) || (time_in(s->not_before_us, slot) == 0 && time_in(s->expires_us, slot) == 0)) {
            continue;
        }
        uint8_t was = e->state & (ENTRY_HIDDEN | ENTRY_EXPIRED), bit = bit_at(s, slot, was, now_us);
        if (bit != was) {
            const struct place p = {.at.chunk = c, .slot = slot, .queue_id = c->queue->id};
            change_bit(&p, table_message(t, e->message), bit);
        }
        uint64_t at_us = next_of(s, slot, bit);
        next_us = at_us < next_us ? at_us : next_us;
    }
    s->next_us = next_us;
}

void times_pass(struct table *t, uint64_t now_us) {
    struct chunk_heap *h = &t->times.heap;
    t->times.now_us = now_us;
    while (times_next(t) <= now_us) {
        struct queue_chunk *c = h->all[0];
        pass_chunk(t, c, now_us);
        if (c->states->next_us == UINT64_MAX) {
            heap_remove(h, HEAP_TIMES, c);
        } else {
            heap_sink(h, HEAP_TIMES, 0, c);
        }
    }
}

void times_expired_came(struct queue_chunk *c) {
    if (c->states->expired++ == 0) {
        heap_add(&c->queue->expired, HEAP_EXPIRED, c);
    }
}

void times_expired_went(struct queue_chunk *c) {
    if (--c->states->expired == 0) {
        heap_remove(&c->queue->expired, HEAP_EXPIRED, c);
    }
}

void times_leave(struct queue_chunk *c) {
    if (c->states->times_at != 0) {
        heap_remove(&c->queue->times->heap, HEAP_TIMES, c);
    }
}

bool times_find_expired(const struct queue *q, uint64_t durable_lsn, struct place *p) {
    if (q->expired.count == 0) {
        return false;
    }
    struct queue_chunk *c = q->expired.all[0];
    *p = (struct place){.at.chunk = c, .slot = p->at.chunk == c ? p->slot : 0, .queue_id = q->id};
    while (!entry_is_expired(&c->entries[p->slot])) {
        p->slot++;
        assert(p->slot < c->used);
    }
    return place_entry(p)->order_lsn < durable_lsn;
}
