/*
 * Delivery counts. Acquiring writes nothing. Places that come back are noted, and their counts are written together: once there
 * are COUNTED_MAX, or with the next change that is not quiet. An orderly close writes those of all places that were handed out.
 * Nobody waits for them: a crash can lose the newest counts, and then every place counts as handed out anyway (seen.c).
 *
 * A row gives the whole count, so one that could not be written is made up for by the next.
 */
#include <assert.h>

#include "store/store.h"

enum { ROWS_MAX = CHUNK_PLACES };

/* Rows of one record with their places, and the bytes by which their messages will grow when they are moved, at most. */
struct counting {
    struct state_row rows[ROWS_MAX];
    struct place places[ROWS_MAX];
    uint32_t n;
    uint64_t expansion;
    bool of_released; /* a place that was acquired again since is counted when it comes back: it may come back unseen */
};

/* The rows take long to set. */
static void begin(struct counting *c, bool of_released) {
    c->n = 0;
    c->expansion = 0;
    c->of_released = of_released;
}

static uint64_t rows_of_bytes(uint64_t bytes) {
    uint64_t others = format_place_states_bytes(0);
    return bytes > others ? (bytes - others) / STATE_ROW_BYTES : 0;
}

static uint64_t rows_in_record(const struct log *g) { return rows_of_bytes(log_record_bytes_max(g)); }

static uint32_t rows_at_once(const struct log *g) {
    uint64_t fit = rows_in_record(g);
    return fit < ROWS_MAX ? (uint32_t)fit : ROWS_MAX;
}

uint64_t states_most(const struct log *g) {
    uint64_t rows = rows_in_record(g), room = log_batch_room(g), record = format_place_states_bytes(rows);
    return room / record * rows + rows_of_bytes(room % record);
}

uint64_t states_bytes(const struct log *g, uint64_t n) {
    uint64_t rows = rows_in_record(g);
    assert(rows > 0); /* the records of the smallest segments hold 126 */
    uint64_t rest = n % rows;
    return n / rows * format_place_states_bytes(rows) + (rest > 0 ? format_place_states_bytes(rest) : 0);
}

static uint32_t logged_count(const struct place *p) {
    const struct chunk_states *s = p->at.chunk->states;
    return s != NULL && s->delivery_counts != NULL ? s->delivery_counts[p->slot] : 0;
}

static uint32_t count_of(const struct counting *c, const struct place *p) {
    bool again = c->of_released && (place_entry(p)->state & ENTRY_ACQUIRED) != 0;
    return p->at.chunk->handed_out[p->slot].count - (again ? 1 : 0);
}

/* Whether the log lacks the count of this place. */
static bool lacks_count(const struct counting *c, const struct place *p) {
    return p->at.chunk->handed_out != NULL && (place_entry(p)->state & ENTRY_DEAD) == 0 &&
           count_of(c, p) != logged_count(p);
}

bool states_prepare(struct message *m, const struct place *p, const struct remembered *state, struct state_row *row) {
    bool alone = m->place_count == 1 && message_pending(m) == 0;
    *row = (struct state_row){
        .id = m->id,
        .not_before_us = state->not_before_us,
        .expires_us = state->expires_us,
        .queue_id = p->queue_id,
        .delivery_count = state->delivery_count,
    };
    unsigned parts = remembered_parts(state) & ~(unsigned)REMEMBERS_OWN; /* it has that already */
    return chunk_prepare_state(p->at.chunk, parts) && (alone || message_extra(m) != NULL);
}

static void append_rows(ls_store *store, const struct state_row *rows, uint32_t n) {
    struct slot s = log_slot(store->log, 0, 0, 0);
    log_append(store->log, &s, PLACE_STATES, format_put_place_states(&s, rows, n));
}

void states_put(ls_store *store, const struct state_row *rows, uint32_t n) {
    struct table *t = &store->state.table;
    uint32_t most = (uint32_t)rows_in_record(store->log);
    for (uint32_t from = 0; from < n; from += most) {
        append_rows(store, rows + from, n - from < most ? n - from : most);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct message *m = table_message(t, table_find(t, rows[i].id));
        const struct place *p = message_place(m, rows[i].queue_id);
        struct remembered before = place_state(p), after = before;
        after.not_before_us = rows[i].not_before_us;
        after.expires_us = rows[i].expires_us;
        after.delivery_count = rows[i].delivery_count;
        message_state_changes(t, m, &before, &after);
        place_remember(p, m, &after);
    }
}

/* For a place whose first count is to be written: memory, and the growth of its message. False: no memory. */
static bool prepare_first(const struct table *t, struct counting *c, struct message *m, const struct place *p) {
    bool alone = m->place_count == 1 && message_pending(m) == 0;
    if (!chunk_prepare_state(p->at.chunk, REMEMBERS_COUNT) || (!alone && message_extra(m) == NULL)) {
        return false;
    }
    c->expansion += message_states_grow_at_most(t, m, 1, 0);
    return true;
}

/* Adds a row for the place if the log lacks its count. False: there is no memory for it. */
static bool add_row(const struct table *t, struct counting *c, const struct place *p) {
    if (!lacks_count(c, p)) {
        return true;
    }
    struct message *m = table_message(t, place_entry(p)->message);
    if (logged_count(p) == 0 && !prepare_first(t, c, m, p)) {
        return false;
    }
    const struct chunk_states *s = p->at.chunk->states;
    c->places[c->n] = *p;
    c->rows[c->n++] = (struct state_row){
        .id = m->id,
        .not_before_us = s->not_before_us != NULL ? s->not_before_us[p->slot] : 0,
        .expires_us = s->expires_us != NULL ? s->expires_us[p->slot] : 0,
        .queue_id = p->queue_id,
        .delivery_count = count_of(c, p),
    };
    return true;
}

/* A place with a count keeps the length of its row, whatever the count. */
static void take_count(struct table *t, const struct place *p, uint32_t count) {
    struct message *m = table_message(t, place_entry(p)->message);
    if (logged_count(p) == 0) {
        struct remembered before = place_state(p), after = before;
        after.delivery_count = count;
        message_state_changes(t, m, &before, &after);
    } else {
        table_touch(t, m);
        message_changed(m);
    }
    p->at.chunk->states->delivery_counts[p->slot] = count;
}

/* Appends the record; its bytes were reserved under this hold of the lock. */
static void append(ls_store *store, const struct counting *c) {
    append_rows(store, c->rows, c->n);
    for (uint32_t i = 0; i < c->n; i++) {
        take_count(&store->state.table, &c->places[i], c->rows[i].delivery_count);
    }
}

static int reserve(ls_store *store, const struct counting *c) {
    return log_reserve_to_grow(store->log, format_place_states_bytes(c->n), c->expansion, RESERVE_GROWS);
}

/* Without a wait. False: there is no room now. */
static bool write_some(ls_store *store, struct counting *c) {
    if (c->n > 0 && reserve(store, c) != LS_OK) {
        return false;
    }
    if (c->n > 0) {
        append(store, c);
    }
    c->n = 0;
    c->expansion = 0;
    return true;
}

/* The place that came back. NULL: it has ended, or its queue was deleted since: the log has the end of its places, even if the
   sweep has not reached this one. */
static const struct place *place_noted(const struct table *t, const struct counted *noted) {
    uint32_t number = table_find_at(t, noted->number, noted->id);
    const struct place *p = number != INDEX_NONE ? message_place(table_message(t, number), noted->queue_id) : NULL;
    return p != NULL && place_position(p) == noted->position && !p->at.chunk->queue->deleted ? p : NULL;
}

static void write_counts(ls_store *store, const struct counted *noted, size_t n, bool of_released) {
    struct log *g = store->log;
    bool was_trying = log_is_trying(g), goes_on = store->remembers && rows_at_once(g) > 0;
    uint32_t most = rows_at_once(g);
    struct counting c;
    begin(&c, of_released);
    log_set_trying(g, true);
    for (size_t i = 0; goes_on && i < n; i++) {
        const struct place *p = place_noted(&store->state.table, &noted[i]);
        goes_on = p == NULL || add_row(&store->state.table, &c, p);
        goes_on = goes_on && (c.n < most || write_some(store, &c));
    }
    (void)write_some(store, &c);
    log_set_trying(g, was_trying);
}

void counts_write_noted(ls_store *store) {
    write_counts(store, store->counted, store->counted_n, true);
    store->counted_n = 0;
}

static struct counted counted_of(uint32_t queue_id, const ls_delivery *d) {
    return (struct counted){.id = d->id, .position = d->position, .number = d->number, .queue_id = queue_id};
}

uint32_t counts_lacking(const struct place *p) {
    const struct hand_out *counts = p->at.chunk->handed_out;
    return counts != NULL && counts[p->slot].count != logged_count(p) ? counts[p->slot].count : 0;
}

void counts_write_one(ls_store *store, uint32_t queue_id, const ls_delivery *delivery) {
    const struct counted one = counted_of(queue_id, delivery);
    write_counts(store, &one, 1, false);
}

void counts_note(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (store->counted_n == COUNTED_MAX) {
            counts_write_noted(store);
        }
        store->counted[store->counted_n++] = counted_of(queue_id, &deliveries[i]);
    }
}

/* ---- at a close ---- */

/* The first chunk from the position on with a count that the log lacks. NULL: there is none. */
static struct queue_chunk *next_lacking(const struct counting *of, struct queue *q, uint64_t position) {
    struct cursor at = {.queue = q};
    cursor_seek(&at, q, position);
    for (struct queue_chunk *c = at.chunk; c != NULL; c = c->next) {
        struct place p = {.at.chunk = c, .queue_id = q->id};
        for (p.slot = 0; c->handed_out != NULL && p.slot < c->used; p.slot++) {
            if (place_position(&p) >= position && lacks_count(of, &p)) {
                return c;
            }
        }
    }
    return NULL;
}

/* Rows of the first chunk from the position on whose counts the log lacks; *next is behind them, UINT64_MAX if there are none.
   False: no memory. */
static bool collect(ls_store *store, uint32_t queue_id, uint64_t position, struct counting *c, uint64_t *next) {
    const struct table *t = &store->state.table;
    struct queue *q = table_queue(t, queue_id);
    struct queue_chunk *chunk = q != NULL ? next_lacking(c, q, position) : NULL;
    struct place p = {.at.chunk = chunk, .queue_id = queue_id};
    *next = UINT64_MAX;
    for (; chunk != NULL && p.slot < chunk->used && c->n < rows_at_once(store->log); p.slot++) {
        if (place_position(&p) >= position && !add_row(t, c, &p)) {
            return false;
        }
        *next = place_position(&p) + 1;
    }
    return true;
}

/* (waits) Writes the counts of one chunk, and moves the position behind it; UINT64_MAX: the queue has no more. */
static int write_chunk(ls_store *store, uint32_t queue_id, uint64_t *position) {
    struct counting c;
    uint64_t next;
    begin(&c, false);
    if (!collect(store, queue_id, *position, &c, &next)) {
        return fail_memory();
    }
    uint64_t expansion = c.expansion, bytes = format_place_states_bytes(rows_at_once(store->log));
    int rc = c.n > 0 ? log_reserve_to_grow(store->log, bytes, expansion, RESERVE_GROWS) : LS_OK;
    if (rc == LS_OK && c.n > 0) { /* it may have let go of the lock */
        begin(&c, false);
        rc = collect(store, queue_id, *position, &c, &next) ? LS_OK : fail_memory();
    }
    if (rc == LS_OK && c.expansion <= expansion) { /* else it is tried again */
        if (c.n > 0) {
            append(store, &c);
        }
        *position = next;
    }
    return rc;
}

int counts_write_all(ls_store *store) {
    const struct table *t = &store->state.table;
    int rc = LS_OK;
    if (!store->remembers || store->leader != NULL || rows_at_once(store->log) == 0) {
        return LS_FULL; /* the next leader serves as after a crash */
    }
    for (uint32_t i = 0; rc == LS_OK && i < t->queue_count; i++) {
        uint32_t queue_id = t->queues[i] != NULL ? t->queues[i]->id : 0;
        uint64_t position = queue_id != 0 ? 0 : UINT64_MAX;
        while (rc == LS_OK && position != UINT64_MAX) {
            rc = write_chunk(store, queue_id, &position);
        }
    }
    return rc;
}
