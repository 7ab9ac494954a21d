/*
 * Delivery counts. Acquiring writes nothing; a release writes the counts of the places that come back, and an orderly close
 * those of all places that were handed out, each in records of many rows that nobody waits for. They lie in the log with
 * what comes next: a crash can lose the newest counts, and then every place counts as handed out anyway (seen.c).
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
};

static uint32_t rows_at_once(const struct log *g) {
    uint64_t fit = (log_record_bytes_max(g) - format_place_states_bytes(0)) / STATE_ROW_BYTES;
    return fit < ROWS_MAX ? (uint32_t)fit : ROWS_MAX;
}

/* Whether the log lacks the count of this place. */
static bool lacks_count(const struct place *p) {
    const struct hand_out *counts = p->at.chunk->handed_out;
    return counts != NULL && (place_entry(p)->state & ENTRY_DEAD) == 0 &&
           counts[p->slot].count != place_state(p).delivery_count;
}

static struct remembered with_count(const struct place *p) {
    struct remembered state = place_state(p);
    state.delivery_count = p->at.chunk->handed_out[p->slot].count;
    return state;
}

/* Adds a row for the place if the log lacks its count. False: there is no memory for it. */
static bool add_row(const struct table *t, struct counting *c, const struct place *p) {
    struct message *m = table_message(t, place_entry(p)->message);
    if (!lacks_count(p)) {
        return true;
    }
    struct remembered state = with_count(p);
    bool alone = m->place_count == 1 && message_pending(m) == 0;
    if (!chunk_prepare_states(p->at.chunk, remembered_parts(&state)) || (!alone && message_extra(m) == NULL)) {
        return false;
    }
    c->expansion += message_states_grow_at_most(t, m, 1, 0);
    c->rows[c->n++] = (struct state_row){
        .id = m->id,
        .not_before_us = state.not_before_us,
        .expires_us = state.expires_us,
        .queue_id = p->queue_id,
        .delivery_count = state.delivery_count,
    };
    return true;
}

/* Appends the record; its bytes were reserved under this hold of the lock. */
static void append(ls_store *store, const struct counting *c) {
    struct table *t = &store->state.table;
    struct slot s = log_slot(store->log, 0, 0, 0);
    log_append(store->log, &s, PLACE_STATES, format_put_place_states(&s, c->rows, c->n));
    for (uint32_t i = 0; i < c->n; i++) {
        struct message *m = table_message(t, table_find(t, c->rows[i].id));
        const struct place *p = message_place(m, c->rows[i].queue_id);
        struct remembered before = place_state(p), after = with_count(p);
        message_state_changes(t, m, &before, &after);
        place_remember(p, &after);
    }
}

static int reserve(ls_store *store, const struct counting *c) {
    return log_reserve_to_grow(store->log, format_place_states_bytes(c->n), c->expansion, RESERVE_GROWS);
}

void counts_write(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n) {
    struct log *g = store->log;
    bool was_trying = log_is_trying(g);
    uint32_t most = rows_at_once(g);
    if (!store->remembers || most == 0) {
        return;
    }
    log_set_trying(g, true);
    for (size_t at = 0; at < n;) {
        struct counting c;
        c.n = 0;
        c.expansion = 0;
        for (; at < n && c.n < most; at++) {
            struct message *m;
            const struct place *p = delivery_place(&store->state.table, queue_id, &deliveries[at], &m);
            if (p != NULL && !add_row(&store->state.table, &c, p)) {
                break;
            }
        }
        if (c.n == 0 || reserve(store, &c) != LS_OK) {
            break;
        }
        append(store, &c);
    }
    log_set_trying(g, was_trying);
}

/* ---- at a close ---- */

/* The first chunk from the position on with a count that the log lacks. NULL: there is none. */
static struct queue_chunk *next_lacking(struct queue *q, uint64_t position) {
    struct cursor at = {.queue = q};
    cursor_seek(&at, q, position);
    for (struct queue_chunk *c = at.chunk; c != NULL; c = c->next) {
        struct place p = {.at.chunk = c, .queue_id = q->id};
        for (p.slot = 0; c->handed_out != NULL && p.slot < c->used; p.slot++) {
            if (place_position(&p) >= position && lacks_count(&p)) {
                return c;
            }
        }
    }
    return NULL;
}

/* (waits) Writes the counts of one chunk, and moves the position behind it; UINT64_MAX: the queue has no more. */
static int write_chunk(ls_store *store, uint32_t queue_id, uint64_t *position) {
    struct log *g = store->log;
    const struct table *t = &store->state.table;
    struct queue *q = table_queue(t, queue_id);
    struct queue_chunk *chunk = q != NULL ? next_lacking(q, *position) : NULL;
    struct counting c;
    c.n = 0;
    c.expansion = 0;
    if (chunk == NULL) {
        *position = UINT64_MAX;
        return LS_OK;
    }
    uint64_t next = chunk->first_position;
    struct place p = {.at.chunk = chunk, .queue_id = queue_id};
    for (p.slot = 0; p.slot < chunk->used && c.n < rows_at_once(g); p.slot++) {
        if (place_position(&p) >= *position && !add_row(t, &c, &p)) {
            return fail_memory();
        }
        next = place_position(&p) + 1;
    }
    uint64_t let_go = log_times_let_go(g);
    int rc = reserve(store, &c);
    if (rc == LS_OK && log_times_let_go(g) == let_go) { /* else the chunk may be another one: it is looked at again */
        append(store, &c);
        *position = next;
    }
    return rc;
}

int counts_write_all(ls_store *store) {
    const struct table *t = &store->state.table;
    int rc = LS_OK;
    if (!store->remembers || rows_at_once(store->log) == 0) {
        return LS_FULL;
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
