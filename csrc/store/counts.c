/*
 * Delivery counts. Acquiring writes nothing. Places that come back are noted, and their counts are written together: once there
 * are COUNTED_MAX, or with the next change that is not quiet. An orderly close writes those of all places that were handed out.
 * Nobody waits for them: a crash can lose the newest counts, and then every place counts as handed out anyway (seen.c).
 *
 * A row gives the whole count, so one that could not be written is made up for by the next.
 */
#include "store/store.h"

enum { ROWS_MAX = CHUNK_PLACES };

/* Rows of one record, and the bytes by which their messages will grow when they are moved, at most. */
struct counting {
    struct state_row rows[ROWS_MAX];
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

static uint32_t rows_at_once(const struct log *g) {
    uint64_t fit = (log_record_bytes_max(g) - format_place_states_bytes(0)) / STATE_ROW_BYTES;
    return fit < ROWS_MAX ? (uint32_t)fit : ROWS_MAX;
}

static uint32_t count_of(const struct counting *c, const struct place *p) {
    bool again = c->of_released && (place_entry(p)->state & ENTRY_ACQUIRED) != 0;
    return p->at.chunk->handed_out[p->slot].count - (again ? 1 : 0);
}

/* Whether the log lacks the count of this place. */
static bool lacks_count(const struct counting *c, const struct place *p) {
    return p->at.chunk->handed_out != NULL && (place_entry(p)->state & ENTRY_DEAD) == 0 &&
           count_of(c, p) != place_state(p).delivery_count;
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
    return chunk_prepare_states(p->at.chunk, remembered_parts(state)) && (alone || message_extra(m) != NULL);
}

void states_put(ls_store *store, const struct state_row *rows, uint32_t n) {
    struct table *t = &store->state.table;
    struct slot s = log_slot(store->log, 0, 0, 0);
    log_append(store->log, &s, PLACE_STATES, format_put_place_states(&s, rows, n));
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

/* Adds a row for the place if the log lacks its count. False: there is no memory for it. */
static bool add_row(const struct table *t, struct counting *c, const struct place *p) {
    if (!lacks_count(c, p)) {
        return true;
    }
    struct remembered state = place_state(p);
    state.delivery_count = count_of(c, p);
    struct message *m = table_message(t, place_entry(p)->message);
    if (!states_prepare(m, p, &state, &c->rows[c->n])) {
        return false;
    }
    c->n++;
    c->expansion += message_states_grow_at_most(t, m, 1, 0);
    return true;
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
        states_put(store, c->rows, c->n);
    }
    c->n = 0;
    c->expansion = 0;
    return true;
}

/* A list of deliveries of one queue, or what was noted. */
static void write_counts(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n) {
    struct log *g = store->log;
    bool was_trying = log_is_trying(g), goes_on = store->remembers && rows_at_once(g) > 0;
    uint32_t most = rows_at_once(g);
    struct counting c;
    begin(&c, deliveries == NULL);
    log_set_trying(g, true);
    for (size_t i = 0; goes_on && i < n; i++) {
        const struct counted *noted = deliveries == NULL ? &store->counted[i] : NULL;
        const ls_delivery *d = noted != NULL ? &noted->delivery : &deliveries[i];
        uint32_t of_queue = noted != NULL ? noted->queue_id : queue_id;
        struct message *m;
        const struct place *p = delivery_place(&store->state.table, of_queue, d, &m);
        if (table_queue_cached(&store->state.table, of_queue) == NULL) {
            continue; /* it was deleted since: the log has the end of its places, even if the sweep has not reached this one */
        }
        goes_on = p == NULL || add_row(&store->state.table, &c, p);
        goes_on = goes_on && (c.n < most || write_some(store, &c));
    }
    (void)write_some(store, &c);
    log_set_trying(g, was_trying);
}

void counts_write_noted(ls_store *store) {
    write_counts(store, 0, NULL, store->counted_n);
    store->counted_n = 0;
}

void counts_write_one(ls_store *store, uint32_t queue_id, const ls_delivery *delivery) {
    write_counts(store, queue_id, delivery, 1);
}

void counts_note(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n) {
    if (n > COUNTED_MAX - store->counted_n && store->counted_n > 0) {
        counts_write_noted(store);
    }
    if (n > COUNTED_MAX) {
        write_counts(store, queue_id, deliveries, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        store->counted[store->counted_n++] = (struct counted){.delivery = deliveries[i], .queue_id = queue_id};
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
            states_put(store, c.rows, c.n);
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
