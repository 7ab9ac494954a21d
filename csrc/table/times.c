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

/* A place of the chunk changes at its time of these. */
static void expect(struct queue_chunk *c, uint64_t *bits, uint64_t *times_us, uint32_t slot) {
    struct chunk_heap *h = &c->queue->times->heap;
    uint64_t at_us = times_us[slot], *first_us = &times_us[TIMES_FIRST_AT + slot / TIMES_GROUP];
    bits[slot / 64] |= UINT64_C(1) << slot % 64;
    *first_us = at_us < *first_us ? at_us : *first_us;
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
        expect(c, s->opening, s->not_before_us, slot);
    }
    if (bit != ENTRY_EXPIRED && time_in(s->expires_us, slot) != 0) {
        expect(c, s->ending, s->expires_us, slot);
    }
}

static bool is_held(const struct entry *e) { return (e->state & (ENTRY_DEAD | ENTRY_LOCKED | ENTRY_ACQUIRED)) != 0; }

/* Sets the bit of a place, and what counts it but the tallies. */
static void set_bit(const struct place *p, uint8_t bit) {
    struct entry *e = place_entry(p);
    bool was_ahead = entry_is_ahead(e);
    e->state = (uint8_t)((e->state & ~(ENTRY_HIDDEN | ENTRY_EXPIRED)) | bit);
    p->at.chunk->ahead = (uint16_t)(p->at.chunk->ahead + entry_is_ahead(e) - was_ahead);
    if (entry_came_back(e)) {
        p->at.chunk->states->back[p->slot / 64] |= UINT64_C(1) << p->slot % 64;
    }
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

static void set_content_bytes(const struct chunk_states *s, uint32_t slot, const struct message *m) {
    uint64_t bytes = message_content_bytes(m);
    s->content_bytes[slot] = bytes <= UINT16_MAX ? (uint16_t)bytes : 0;
}

void times_replaced(const struct place *p, const struct message *m) {
    const struct chunk_states *s = p->at.chunk->states;
    uint8_t hidden = time_in(s->not_before_us, p->slot) != 0 ? ENTRY_HIDDEN : 0;
    uint8_t bit = bit_at(s, p->slot, hidden, p->at.chunk->queue->times->now_us);
    set_content_bytes(s, p->slot, m);
    change_bit(p, m, bit);
    if (!is_held(place_entry(p))) {
        expect_changes(p->at.chunk, p->slot, bit);
    }
}

/* Bytes of content of the place's message, which is looked at only if the chunk does not have them. */
static uint64_t content_bytes_at(const struct table *t, const struct queue_chunk *c, uint32_t slot) {
    uint16_t known = c->states->content_bytes[slot];
    if (known == 0) {
        return message_content_bytes(table_message(t, c->entries[slot].message));
    }
#ifdef LOGSTORE_CHECK
    assert(known == message_content_bytes(table_message(t, c->entries[slot].message)));
#endif
    return known;
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
    set_content_bytes(s, p->slot, m);
    if (bit == ENTRY_HIDDEN) {
        c->entries[p->slot].state |= ENTRY_HIDDEN;
        c->ahead++;
        queue_tally(c->queue, m, STANDING_READY, STANDING_HIDDEN);
    }
    expect_changes(c, p->slot, bit);
}

static void expire_due(const struct table *t, struct queue_chunk *c, uint32_t slot, uint64_t now_us) {
    const struct entry *e = &c->entries[slot];
    if (!is_held(e)) {
        const struct place p = {.at.chunk = c, .slot = slot, .queue_id = c->queue->id};
        uint8_t bit = bit_at(c->states, slot, e->state & (ENTRY_HIDDEN | ENTRY_EXPIRED), now_us);
        change_bit(&p, table_message(t, e->message), bit);
    }
}

/* Places of a chunk that are due. */
struct due_places {
    struct queue_chunk *chunk;
    uint32_t at; /* in the heap */
    uint64_t opening[2];
    uint64_t ending[2];
    uint64_t next_us; /* the chunk's next time */
};

/* The groups of which a time has come, as bits. */
static uint32_t due_groups(const uint64_t *times_us, uint64_t now_us) {
    uint32_t groups = 0;
    for (uint32_t g = 0; g < TIMES_GROUPS; g++) {
        groups |= (uint32_t)(times_us[TIMES_FIRST_AT + g] <= now_us) << g;
    }
    return groups;
}

/* Takes the marks of the places of a group that are due away, and returns them. No branch depends on a random time. */
static uint64_t take_group(uint64_t *times_us, uint32_t g, uint64_t marked, uint64_t now_us) {
    uint64_t first_us = UINT64_MAX, due = 0;
    for (uint64_t left = marked; left != 0; left &= left - 1) {
        uint64_t at_us = times_us[TIMES_GROUP * g + (uint32_t)__builtin_ctzll(left)];
        bool is_due = at_us <= now_us;
        uint64_t later_us = is_due ? UINT64_MAX : at_us;
        due |= left & (0 - left) & (0 - (uint64_t)is_due);
        first_us = later_us < first_us ? later_us : first_us;
    }
    times_us[TIMES_FIRST_AT + g] = first_us;
    return due;
}

/* Takes the bits of what is due away, into `due`; returns when the next is. NULL: the chunk has no such times. */
static uint64_t take_due(uint64_t *bits, uint64_t *times_us, uint64_t now_us, uint64_t *due) {
    enum { GROUPS_OF_HALF = 64 / TIMES_GROUP, GROUP_BITS = (1 << TIMES_GROUP) - 1 };
    uint64_t next_us = UINT64_MAX;
    for (uint32_t left = times_us != NULL ? due_groups(times_us, now_us) : 0; left != 0; left &= left - 1) {
        uint32_t g = (uint32_t)__builtin_ctz(left), half = g / GROUPS_OF_HALF, shift = g % GROUPS_OF_HALF * TIMES_GROUP;
        due[half] |= take_group(times_us, g, bits[half] >> shift & GROUP_BITS, now_us) << shift;
    }
    for (uint32_t g = 0; times_us != NULL && g < TIMES_GROUPS; g++) {
        uint64_t first_us = times_us[TIMES_FIRST_AT + g];
        next_us = first_us < next_us ? first_us : next_us;
    }
    bits[0] &= ~due[0];
    bits[1] &= ~due[1];
    return next_us;
}

static void take_places(struct due_places *due, uint64_t now_us) {
    struct chunk_states *s = due->chunk->states;
    uint64_t opens_us = take_due(s->opening, s->not_before_us, now_us, due->opening);
    uint64_t ends_us = take_due(s->ending, s->expires_us, now_us, due->ending);
    due->next_us = opens_us < ends_us ? opens_us : ends_us;
}

/* The hidden places of the chunk that are due and do not expire become free. All are counted at once. */
static void open_places(const struct table *t, const struct due_places *due) {
    struct queue_chunk *c = due->chunk;
    struct queue *q = c->queue;
    struct tally opened = {.places = 0};
    uint64_t back[2] = {0, 0};
    for (uint32_t half = 0; half < 2; half++) {
        for (uint64_t left = due->opening[half] & ~due->ending[half]; left != 0; left &= left - 1) {
            uint32_t slot = 64 * half + (uint32_t)__builtin_ctzll(left);
            struct entry *e = &c->entries[slot];
            if ((e->state & ENTRY_HIDDEN) == 0 || entry_standing(e) != STANDING_HIDDEN) {
                continue; /* it has ended, or somebody holds it */
            }
            opened.places++;
            opened.bytes += content_bytes_at(t, c, slot);
            e->state &= (uint8_t)~ENTRY_HIDDEN;
            back[half] |= (e->state & ENTRY_PASSED) != 0 ? left & (0 - left) : 0;
        }
    }
    if (opened.places == 0) {
        return;
    }
    uint32_t returned = (uint32_t)(__builtin_popcountll(back[0]) + __builtin_popcountll(back[1]));
    c->ahead = (uint16_t)(c->ahead - (opened.places - returned));
    queue_tally_all(q, &opened, STANDING_HIDDEN, STANDING_READY);
    offer_came_back_all(c, back);
    if (q->takers != NULL) {
        takers_place_freed(q->takers);
    }
    tell_arrival(q);
}

/* The deepest place of the heap below this one on a path of times that have come, the left one first. */
static uint32_t deepest_due(const struct chunk_heap *h, uint32_t at, uint64_t now_us) {
    for (uint32_t child = 2 * at + 1; child < h->count; child = 2 * at + 1) {
        child += h->times[child] > now_us ? 1 : 0;
        if (child >= h->count || h->times[child] > now_us) {
            break;
        }
        at = child;
    }
    return at;
}

/* The next place whose time has come: a chunk comes after those below it. The root is the last. */
static uint32_t next_due(const struct chunk_heap *h, uint32_t at, uint64_t now_us) {
    bool is_left = at % 2 == 1;
    return is_left && at + 1 < h->count && h->times[at + 1] <= now_us ? deepest_due(h, at + 1, now_us) : (at - 1) / 2;
}

static void prefetch_first_times(const uint64_t *times_us) {
    if (times_us != NULL) {
        prefetch_bytes(times_us + TIMES_FIRST_AT, TIMES_GROUPS * sizeof *times_us);
    }
}

static void prefetch_times(const uint64_t *times_us, uint64_t now_us) {
    for (uint32_t left = times_us != NULL ? due_groups(times_us, now_us) : 0; left != 0; left &= left - 1) {
        prefetch(&times_us[TIMES_GROUP * (uint32_t)__builtin_ctz(left)]);
    }
}

static void prefetch_places(const struct due_places *due) {
    for (uint32_t half = 0; half < 2; half++) {
        for (uint64_t left = due->opening[half] | due->ending[half]; left != 0; left &= left - 1) {
            uint32_t slot = 64 * half + (uint32_t)__builtin_ctzll(left);
            prefetch(&due->chunk->entries[slot]);
            prefetch(&due->chunk->states->content_bytes[slot]);
        }
    }
}

static void change_places(const struct table *t, const struct due_places *due, uint64_t now_us) {
    open_places(t, due);
    for (uint32_t half = 0; half < 2; half++) {
        for (uint64_t left = due->ending[half]; left != 0; left &= left - 1) {
            expire_due(t, due->chunk, 64 * half + (uint32_t)__builtin_ctzll(left), now_us);
        }
    }
}

/*
 * Chunks whose time has come, several at once: what they need is fetched into the cache together, so that the waits for memory
 * overlap. In the heap they are together at the top. They are visited from the bottom up: when one gets its next time,
 * those below it are in order, and it sinks only through them.
 */
void times_pass(struct table *t, uint64_t now_us) {
    struct chunk_heap *h = &t->times.heap;
    struct due_places due[CHUNKS_AHEAD];
    t->times.now_us = now_us;
    bool more = times_next(t) <= now_us;
    uint32_t at = more ? deepest_due(h, 0, now_us) : 0;
    while (more) {
        uint32_t count = 0;
        for (; more && count < CHUNKS_AHEAD; count++) {
            due[count] = (struct due_places){.chunk = h->all[at], .at = at};
            prefetch_bytes(h->all[at], offsetof(struct queue_chunk, entries));
            more = at > 0;
            at = more ? next_due(h, at, now_us) : 0;
        }
        for (uint32_t i = 0; i < count; i++) {
            prefetch_bytes(due[i].chunk->states, sizeof *due[i].chunk->states);
        }
        for (uint32_t i = 0; i < count; i++) {
            prefetch_first_times(due[i].chunk->states->not_before_us);
            prefetch_first_times(due[i].chunk->states->expires_us);
        }
        for (uint32_t i = 0; i < count; i++) {
            prefetch_times(due[i].chunk->states->not_before_us, now_us);
            prefetch_times(due[i].chunk->states->expires_us, now_us);
        }
        for (uint32_t i = 0; i < count; i++) {
            take_places(&due[i], now_us);
            prefetch_places(&due[i]);
        }
        for (uint32_t i = 0; i < count; i++) {
            change_places(t, &due[i], now_us);
            heap_sink(h, HEAP_TIMES, due[i].at, due[i].chunk, due[i].next_us);
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
