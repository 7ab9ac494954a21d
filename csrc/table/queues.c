/* Queues: runs of places in the order in which they became visible, and cursors over the runs. See table.h. */
#include <assert.h>
#include <stdlib.h>

#include "logstore.h"
#include "table/times.h"
#include "os/array.h"

/* ---- which queues there are ---- */

struct queue *table_any_queue(const struct table *t, uint32_t id) {
    uint32_t number = index_find(&t->queue_index, id);
#ifdef LOGSTORE_POISON
    table_give_out(t, INDEX_NONE, number, INDEX_NONE);
#endif
    return number == INDEX_NONE ? NULL : t->queues[number];
}

struct queue *table_queue(const struct table *t, uint32_t id) {
    struct queue *q = table_any_queue(t, id);
    return q == NULL || q->deleted ? NULL : q;
}

struct queue *table_queue_again(struct table *t, uint32_t id) {
    struct queue *before = t->found_before;
    if (before != NULL && before->id == id && !before->deleted) {
        return before;
    }
    t->found_before = t->found;
    t->found = table_queue(t, id);
    return t->found;
}

static uint32_t free_queue_slot(const struct table *t) {
    if (t->live_queues == t->queue_count) {
        return t->queue_count;
    }
    uint32_t number = 0;
    while (t->queues[number] != NULL) {
        number++;
    }
    return number;
}

bool table_add_queue(struct table *t, uint32_t id) {
    uint32_t number = free_queue_slot(t);
    if (!array_grow(&t->queues, &t->queue_capacity, number, 1)) {
        return false;
    }
    struct queue *q = calloc(1, sizeof *q);
    if (q == NULL || !index_prepare(&t->queue_index, 1)) {
        free(q);
        return false;
    }
    q->id = id;
    q->times = &t->times;
    t->queues[number] = q;
    t->queue_count += number == t->queue_count ? 1 : 0;
    t->live_queues++;
    index_insert(&t->queue_index, id, number);
    return true;
}

void table_remove_queue(struct table *t, struct queue *q) {
    while (q->cursors != NULL) {
        cursor_stop(q->cursors);
    }
    while (q->first != NULL) {
        struct queue_chunk *next = q->first->next;
        free(q->first->handed_out);
        chunk_free_states(q->first);
        free(q->first);
        q->first = next;
    }
    while (q->prepared != NULL) {
        struct queue_chunk *next = q->prepared->next;
        chunk_free_states(q->prepared);
        free(q->prepared);
        q->prepared = next;
    }
    takers_free(q->takers);
    free(q->back.all);
    free(q->expired.all);
    uint32_t number = index_find(&t->queue_index, q->id);
    assert(number != INDEX_NONE);
    index_remove(&t->queue_index, q->id, number);
    t->found = t->found == q ? NULL : t->found;
    t->found_before = t->found_before == q ? NULL : t->found_before;
    t->queues[number] = NULL;
    t->live_queues--;
    free(q);
}

/* ---- the run ---- */

bool queue_prepare(struct queue *q, uint64_t more) {
    uint64_t room = q->last != NULL ? CHUNK_PLACES - q->last->used : 0;
    uint32_t chunks = q->chunk_count;
    for (struct queue_chunk *c = q->prepared; c != NULL; c = c->next) {
        room += CHUNK_PLACES;
        chunks++;
    }
    while (room < more) {
        if (!array_grow(&q->back.all, &q->back.capacity, chunks, 1)) {
            return false;
        }
        struct queue_chunk *c = malloc(sizeof *c);
        if (c == NULL) {
            return false;
        }
        c->queue = q;
        c->next = q->prepared;
        c->states = NULL;
        c->used = 0;
        q->prepared = c;
        room += CHUNK_PLACES;
        chunks++;
    }
    return true;
}

/* Moves the cursor from a chunk that is being freed, or from the end, to the next chunk. */
static void cursor_leave(struct cursor *cursor, const struct queue_chunk *from, struct queue_chunk *to) {
    if (cursor->chunk == from) {
        cursor->chunk = to;
        cursor->slot = 0;
    }
}

static void add_chunk(struct queue *q) {
    struct queue_chunk *c = q->prepared;
    assert(c != NULL);
    q->prepared = c->next;
    c->prev = q->last;
    c->next = NULL;
    c->first_position = q->next_position;
    c->handed_out = NULL;
    c->live = 0;
    c->returned = 0;
    c->ahead = 0;
    c->back_at = 0;
    c->times_at = 0;
    q->chunk_count++;
    if (q->last != NULL) {
        q->last->next = c;
    } else {
        q->first = c;
    }
    q->last = c;
    cursor_leave(&q->fresh, NULL, c);
    for (struct cursor *cursor = q->cursors; cursor != NULL; cursor = cursor->next) {
        cursor_leave(cursor, NULL, c);
    }
}

struct place queue_append(struct queue *q, const struct message *m, uint32_t number, uint64_t order_lsn,
                          uint32_t order_index) {
    assert(order_index <= ORDER_INDEX_MAX);
    if (q->last == NULL || q->last->used == CHUNK_PLACES) {
        add_chunk(q);
    }
    struct queue_chunk *c = q->last;
    struct place p = {.at.chunk = c, .slot = c->used, .queue_id = q->id};
    c->entries[c->used] = (struct entry){
        .order_lsn = order_lsn, .message = number, .order_index = order_index & ORDER_INDEX_MAX, .state = 0};
    c->used++;
    c->live++;
    q->next_position++;
    q->tallies[STANDING_READY].places++;
    q->tallies[STANDING_READY].bytes += message_content_bytes(m);
    if (q->takers != NULL) {
        takers_place_added(q->takers, order_lsn);
    }
    return p;
}

/* Frees an empty chunk, unless it is the last one and has unused entries. Rare, and out of line for queue_kill. */
__attribute__((noinline)) static void drop_chunk(struct queue_chunk *c) {
    struct queue *q = c->queue;
    if (c == q->last && c->used < CHUNK_PLACES) {
        return;
    }
    assert(c->back_at == 0 && (c->states == NULL || c->states->expired_at == 0));
    q->chunk_count--;
    cursor_leave(&q->front, c, c->next);
    cursor_leave(&q->fresh, c, c->next);
    q->sought = q->sought == c ? c->next : q->sought;
    for (struct cursor *cursor = q->cursors; cursor != NULL; cursor = cursor->next) {
        cursor_leave(cursor, c, c->next);
    }
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        q->first = c->next;
    }
    if (c->next != NULL) {
        c->next->prev = c->prev;
    } else {
        q->last = c->prev;
    }
    free(c->handed_out);
    chunk_free_states(c);
    free(c);
}

void queue_lock(struct place *p, const struct message *m) {
    struct entry *e = place_entry(p);
    assert((e->state & (ENTRY_DEAD | ENTRY_LOCKED)) == 0);
    offer_went(p);
    enum standing before = entry_standing(e);
    e->state |= ENTRY_LOCKED;
    queue_tally(p->at.chunk->queue, m, before, entry_standing(e));
}

bool cursor_stands_after(const struct cursor *c, const struct place *p) {
    return c->chunk == NULL || c->chunk->first_position + c->slot > place_position(p);
}

void queue_unlock(struct place *p, const struct message *m) {
    struct entry *e = place_entry(p);
    struct queue *q = p->at.chunk->queue;
    assert((e->state & ENTRY_LOCKED) != 0);
    enum standing before = entry_standing(e);
    e->state &= (uint8_t)~ENTRY_LOCKED;
    if (chunk_has_times(p->at.chunk)) {
        times_given_back(p);
    }
    queue_tally(q, m, before, entry_standing(e));
    offer_came_back(p);
    for (struct cursor *c = q->cursors; c != NULL; c = c->next) {
        if (c->kind == LS_CURSOR_OFFER && cursor_stands_after(c, p)) {
            c->chunk = p->at.chunk;
            c->slot = p->slot;
        }
    }
}

void queue_kill(struct place *p, const struct message *m) {
    struct entry *e = place_entry(p);
    struct queue_chunk *c = p->at.chunk;
    assert((e->state & ENTRY_DEAD) == 0);
    bool was_offered = e->state == (ENTRY_ACQUIRED | ENTRY_PASSED); /* in its turn, and it waits for no time */
    if (e->state != 0 && !was_offered) {
        offer_went(p);
        if (entry_is_ahead(e)) {
            c->ahead--;
        }
    }
    struct tally *from = &c->queue->tallies[entry_standing(e)];
    from->places--;
    from->bytes -= message_content_bytes(m);
    place_forget(p);
    e->state = ENTRY_DEAD;
    c->live--;
    if (c->live == 0) {
        drop_chunk(c);
    }
}

/* ---- cursors ---- */

void cursor_start(struct cursor *c, struct queue *q, int kind) {
    *c = (struct cursor){.queue = q, .chunk = q->first, .slot = 0, .kind = kind, .next = q->cursors};
    q->cursors = c;
}

void cursor_stop(struct cursor *c) {
    if (c->queue == NULL) {
        return;
    }
    struct cursor **link = &c->queue->cursors;
    while (*link != c) {
        link = &(*link)->next;
    }
    *link = c->next;
    c->queue = NULL;
    c->chunk = NULL;
}

struct entry *cursor_entry(struct cursor *c, uint64_t *position) {
    while (c->chunk != NULL) {
        if (c->slot < c->chunk->used) {
            struct entry *e = &c->chunk->entries[c->slot];
            if ((e->state & ENTRY_DEAD) == 0) {
                *position = c->chunk->first_position + c->slot;
                return e;
            }
            c->slot++;
        } else if (c->chunk->next != NULL) {
            c->chunk = c->chunk->next;
            c->slot = 0;
        } else {
            return NULL; /* the cursor stays here, to continue with entries appended later */
        }
    }
    return NULL;
}

void cursor_step(struct cursor *c) { c->slot++; }

static uint64_t distance(const struct queue_chunk *c, uint64_t position) {
    return c->first_position < position ? position - c->first_position : c->first_position - position;
}

/*
 * From the nearest of the two ends and the last such search to the last chunk that begins at or before the position: a
 * walk over chunks, and one step for positions that are asked for in order.
 */
void cursor_seek(struct cursor *c, struct queue *q, uint64_t position) {
    struct queue_chunk *at = q->first;
    struct queue_chunk *const others[] = {q->last, q->sought};
    for (size_t i = 0; i < 2; i++) {
        at = others[i] != NULL && distance(others[i], position) < distance(at, position) ? others[i] : at;
    }
    while (at != NULL && at->first_position > position && at->prev != NULL) {
        at = at->prev;
    }
    while (at != NULL && at->next != NULL && at->next->first_position <= position) {
        at = at->next;
    }
    q->sought = at;
    c->chunk = at;
    c->slot = 0;
    if (at != NULL && at->first_position < position) {
        uint64_t slot = position - at->first_position;
        c->slot = slot < at->used ? (uint32_t)slot : at->used;
    }
}
