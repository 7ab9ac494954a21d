/* The index of times.h. */
#include "table/times.h"

#include "logstore.h"
#include "os/array.h"
#include "table/heap.h"

enum { CHUNKS_AHEAD = 8 }; /* whose places that are due are fetched together */

static uint64_t time_in(const uint64_t *array, uint32_t slot) { return array != NULL ? array[slot] : 0; }

/* The bit of a place with this one, now. */
static uint8_t bit_at(const struct chunk_states *s, uint32_t slot, uint8_t bit, uint64_t now_us) {
    uint64_t expires_us = time_in(s->expires_us, slot);
    if (bit == ENTRY_EXPIRED || (expires_us != 0 && expires_us <= now_us)) {
        return expires_us != 0 ? ENTRY_EXPIRED : 0;
    }
    return bit == ENTRY_HIDDEN && time_in(s->not_before_us, slot) > now_us ? ENTRY_HIDDEN : 0;
}

/* Somebody waits for the first time of all, and is to be told of another one. */
static void tell_first(const struct queue *q) {
    if (q->times->due->waiting > 0 || q->times->due->watching_times > 0) {
        q->times->due->came_back = true;
    }
}

/* A place that was hidden may be acquired: perhaps it never could be before. */
static void tell_arrival(const struct queue *q) {
    if (q->takers != NULL) {
        watched_tell(&q->takers->watched, LS_ARRIVED);
    }
}

/* A place of the chunk changes at this time. */
static void expect(struct queue_chunk *c, uint64_t *bits, uint32_t slot, uint64_t at_us) {
    struct chunk_heap *h = &c->queue->times->heap;
    bits[slot / 64] |= UINT64_C(1) << slot % 64;
    if (c->times_at == 0) {
        heap_add(h, HEAP_TIMES, c, at_us);
    } else if (h->times[c->times_at - 1] > at_us) {
        heap_rise(h, HEAP_TIMES, c->times_at - 1, c, at_us);
    } else {
        return;
    }
    if (c->times_at == 1) {
        tell_first(c->queue);
    }
}

/* The next changes of a place with this bit. */
static void expect_changes(struct queue_chunk *c, uint32_t slot, uint8_t bit) {
    struct chunk_states *s = c->states;
    if (bit == ENTRY_HIDDEN) {
        expect(c, s->opening, slot, s->not_before_us[slot]);
    }
    if (bit != ENTRY_EXPIRED && time_in(s->expires_us, slot) != 0) {
        expect(c, s->ending, slot, s->expires_us[slot]);
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
    if (before == STANDING_HIDDEN && bit == 0) {
        tell_arrival(p->at.chunk->queue);
    }
}

void times_given_back(const struct place *p) {
    const struct chunk_states *s = p->at.chunk->states;
    const struct entry *e = place_entry(p);
    if (is_held(e)) {
        return;
    }
    uint8_t bit = bit_at(s, p->slot, e->state & (ENTRY_HIDDEN | ENTRY_EXPIRED), p->at.chunk->queue->times->now_us);
    set_bit(p, bit);
    expect_changes(p->at.chunk, p->slot, bit);
}

void times_replaced(const struct place *p, const struct message *m) {
    const struct chunk_states *s = p->at.chunk->states;
    uint8_t hidden = time_in(s->not_before_us, p->slot) != 0 ? ENTRY_HIDDEN : 0;
    uint8_t bit = bit_at(s, p->slot, hidden, p->at.chunk->queue->times->now_us);
    change_bit(p, m, bit);
    if (!is_held(place_entry(p))) {
        expect_changes(p->at.chunk, p->slot, bit);
    }
}

void times_begin(const struct place *p, const struct message *m) {
    struct queue_chunk *c = p->at.chunk;
    const struct chunk_states *s = c->states;
    uint8_t hidden = time_in(s->not_before_us, p->slot) != 0 ? ENTRY_HIDDEN : 0;
    uint8_t bit = bit_at(s, p->slot, hidden, c->queue->times->now_us);
    if (bit == ENTRY_EXPIRED) { /* rare */
        times_replaced(p, m);
        return;
    }
    if (bit == ENTRY_HIDDEN) {
        c->entries[p->slot].state |= ENTRY_HIDDEN;
        c->ahead++;
        queue_tally(c->queue, m, STANDING_READY, STANDING_HIDDEN);
    }
    expect_changes(c, p->slot, bit);
}

static void change_due(const struct table *t, struct queue_chunk *c, uint32_t slot, uint64_t now_us) {
    const struct entry *e = &c->entries[slot];
    if (!is_held(e)) {
        const struct place p = {.at.chunk = c, .slot = slot, .queue_id = c->queue->id};
        uint8_t bit = bit_at(c->states, slot, e->state & (ENTRY_HIDDEN | ENTRY_EXPIRED), now_us);
        change_bit(&p, table_message(t, e->message), bit);
    }
}

/* Takes the bits of what is due away, into `due`; returns when the next is. */
static uint64_t take_due(uint64_t *bits, const uint64_t *at_us, uint64_t now_us, uint64_t *due) {
    uint64_t next_us = UINT64_MAX;
    for (uint32_t half = 0; half < 2; half++) {
        uint64_t taken = 0;
        for (uint64_t left = bits[half]; left != 0; left &= left - 1) {
            uint64_t at = at_us[64 * half + (uint32_t)__builtin_ctzll(left)];
            if (at <= now_us) {
                taken |= left & (0 - left);
            } else if (at < next_us) {
                next_us = at;
            }
        }
        bits[half] &= ~taken;
        due[half] |= taken;
    }
    return next_us;
}

/* Due places of a chunk. */
struct due_places {
    struct queue_chunk *chunk;
    uint64_t bits[2];
};

/* Takes the first chunk out of the heap. */
static struct queue_chunk *take_first(struct table *t) {
    struct queue_chunk *c = t->times.heap.all[0];
    heap_remove(&t->times.heap, HEAP_TIMES, c);
    prefetch(c->states);
    return c;
}

static void prefetch_times(const uint64_t *at_us) {
    enum { TIMES_OF_LINE = 8 };
    for (uint32_t i = 0; at_us != NULL && i < CHUNK_PLACES; i += TIMES_OF_LINE) {
        prefetch(&at_us[i]);
    }
}

/* Takes the chunk's places that are due, and puts the chunk at its next time. */
static void take_places(struct table *t, struct due_places *due, uint64_t now_us) {
    struct chunk_states *s = due->chunk->states;
    uint64_t opens_us = take_due(s->opening, s->not_before_us, now_us, due->bits);
    uint64_t ends_us = take_due(s->ending, s->expires_us, now_us, due->bits);
    uint64_t next_us = opens_us < ends_us ? opens_us : ends_us;
    if (next_us != UINT64_MAX) {
        heap_add(&t->times.heap, HEAP_TIMES, due->chunk, next_us);
    }
}

static void prefetch_entries(const struct due_places *due) {
    for (uint32_t half = 0; half < 2; half++) {
        for (uint64_t left = due->bits[half]; left != 0; left &= left - 1) {
            prefetch(&due->chunk->entries[64 * half + (uint32_t)__builtin_ctzll(left)]);
        }
    }
}

static void prefetch_messages(const struct table *t, const struct due_places *due) {
    for (uint32_t half = 0; half < 2; half++) {
        for (uint64_t left = due->bits[half]; left != 0; left &= left - 1) {
            const struct entry *e = &due->chunk->entries[64 * half + (uint32_t)__builtin_ctzll(left)];
            if (!is_held(e)) {
                message_prefetch(table_message(t, e->message));
            }
        }
    }
}

static void change_all(const struct table *t, const struct due_places *due, uint64_t now_us) {
    for (uint32_t half = 0; half < 2; half++) {
        for (uint64_t left = due->bits[half]; left != 0; left &= left - 1) {
            change_due(t, due->chunk, 64 * half + (uint32_t)__builtin_ctzll(left), now_us);
        }
    }
}

/* Several chunks at once: their times, entries and messages are fetched into the cache, so that the waits for memory overlap. */
void times_pass(struct table *t, uint64_t now_us) {
    struct due_places due[CHUNKS_AHEAD];
    t->times.now_us = now_us;
    while (times_next(t) <= now_us) {
        uint32_t count = 0;
        for (; count < CHUNKS_AHEAD && times_next(t) <= now_us; count++) {
            due[count] = (struct due_places){.chunk = take_first(t)};
        }
        for (uint32_t i = 0; i < count; i++) {
            prefetch_times(due[i].chunk->states->not_before_us);
            prefetch_times(due[i].chunk->states->expires_us);
        }
        for (uint32_t i = 0; i < count; i++) {
            take_places(t, &due[i], now_us);
            prefetch_entries(&due[i]);
        }
        for (uint32_t i = 0; i < count; i++) {
            prefetch_messages(t, &due[i]);
        }
        for (uint32_t i = 0; i < count; i++) {
            change_all(t, &due[i], now_us);
        }
    }
}

bool times_prepare(struct times *times) {
    uint32_t capacity = times->heap.capacity; /* both arrays have it */
    return array_grow(&times->heap.times, &capacity, times->chunks, 1) &&
           array_grow(&times->heap.all, &times->heap.capacity, times->chunks, 1);
}

void times_expired_came(struct queue_chunk *c) {
    if (c->states->expired++ == 0) {
        heap_add(&c->queue->expired, HEAP_EXPIRED, c, c->first_position);
    }
}

void times_expired_went(struct queue_chunk *c) {
    if (--c->states->expired == 0) {
        heap_remove(&c->queue->expired, HEAP_EXPIRED, c);
    }
}

void times_leave(struct queue_chunk *c) {
    if (c->times_at != 0) {
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
