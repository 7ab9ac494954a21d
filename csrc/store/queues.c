/* Queues and cursors as the public API has them. */
#include <assert.h>
#include <stdlib.h>

#include "store/store.h"

enum { SWEEP_PLACES = 1024 }; /* places of a deleted queue that are removed under one hold of the lock */

static int add_queue(ls_store *store, uint32_t queue_id) {
    struct table *t = &store->state.table;
    if (!table_add_queue(t, queue_id)) {
        return fail_memory();
    }
    struct queue *q = table_queue(t, queue_id);
    int rc = inboxes_add_queue(store, q);
    if (rc != LS_OK) {
        inboxes_end_queue(store, q);
        table_remove_queue(t, q);
    }
    return rc;
}

int ls_queue_add(ls_store *store, uint32_t queue_id) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    if (queue_id == 0 || queue_id > QUEUE_ID_MAX) {
        rc = fail(LS_OPTION, "a queue id is 1 to %u", (unsigned)QUEUE_ID_MAX);
    } else if (store->state.table.live_queues >= QUEUES_MAX) {
        rc = fail(LS_BUSY, "%d queues are declared, the most there may be", QUEUES_MAX);
    } else if (table_any_queue(&store->state.table, queue_id) == NULL) {
        rc = add_queue(store, queue_id);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

bool queue_sweep(ls_store *store, struct queue *q) {
    for (int i = 0; i < SWEEP_PLACES; i++) {
        struct cursor c = {.chunk = q->first};
        uint64_t position;
        const struct entry *e = cursor_entry(&c, &position);
        if (e == NULL) {
            return false;
        }
        uint32_t number = e->message;
        struct message *m = table_message(&store->state.table, number);
        struct place *p = message_place(m, q->id);
        assert(p != NULL && place_entry(p) == e);
        table_touch(&store->state.table, m);
        queue_kill(p, m);
        message_drop_place(&store->state.table, m, q->id);
        if (message_is_dead(m)) {
            message_die(store, number);
        }
    }
    return true;
}

static void write_end(ls_store *store, struct queue *q) {
    struct log *g = store->log;
    struct slot s = log_slot(g, 0, 0, 0);
    state_note_deletion(&store->state, q->id, s.lsn);
    log_append(g, &s, QUEUE_DELETE, format_put_queue_delete(&s, q->id));
    q->deleted = true;
    takers_end_queue(q, LS_UNKNOWN_QUEUE);
    inboxes_end_queue(store, q);
    while (q->cursors != NULL) {
        cursor_stop(q->cursors);
    }
}

int queues_end_with(ls_store *store, uint32_t *queue_ids, size_t *n, uint64_t bytes) {
    int rc = log_reserve(store->log, *n * QUEUE_DELETE_RECORD_BYTES + bytes, RESERVE_SHRINKS);
    if (rc == LS_OK && !state_prepare_deletions(&store->state, *n)) {
        rc = fail_memory();
    }
    if (rc != LS_OK) {
        return rc;
    }
    size_t ended = 0;
    for (size_t i = 0; i < *n; i++) {
        struct queue *q = table_queue(&store->state.table, queue_ids[i]); /* NULL also for one that stands here twice */
        if (q != NULL) {
            queue_ids[ended++] = q->id;
            write_end(store, q);
        }
    }
    *n = ended;
    return LS_OK;
}

int queue_end(ls_store *store, uint32_t queue_id) {
    uint32_t ended = queue_id;
    size_t n = 1;
    int rc = queues_end_with(store, &ended, &n, 0);
    return rc == LS_OK && n == 0 ? fail(LS_UNKNOWN_QUEUE, "there is no queue with id %u", (unsigned)queue_id) : rc;
}

void queue_remove(ls_store *store, uint32_t queue_id) {
    struct log *g = store->log;
    struct queue *q = table_any_queue(&store->state.table, queue_id);
    while (queue_sweep(store, q)) { /* the queue is deleted, and no other thread removes it from the table */
        log_let_go(g);
        log_take_back(g);
        q = table_any_queue(&store->state.table, queue_id);
    }
    table_remove_queue(&store->state.table, q);
    base_after_sweep(g);
}

int ls_queue_delete(ls_store *store, uint32_t queue_id, int flags) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    rc = queue_end(store, queue_id);
    if (rc == LS_OK) {
        queue_remove(store, queue_id);
    }
    return store_leave(store, rc, flags);
}

int ls_queues_delete(ls_store *store, uint32_t first_id, uint32_t last_id, int flags, size_t *done) {
    *done = 0;
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    const struct table *t = &store->state.table;
    for (uint32_t i = 0; rc == LS_OK && i < t->queue_count; i++) { /* the array may change while a deletion waits */
        const struct queue *q = t->queues[i];
        if (q == NULL || q->deleted || q->id < first_id || q->id > last_id) {
            continue;
        }
        uint32_t queue_id = q->id;
        rc = queue_end(store, queue_id);
        if (rc == LS_OK) {
            queue_remove(store, queue_id);
            (*done)++;
        } else if (rc == LS_UNKNOWN_QUEUE) { /* another thread has deleted it meanwhile */
            rc = LS_OK;
        }
    }
    return store_leave(store, rc, flags);
}

int ls_queue_depth(ls_store *store, uint32_t queue_id, uint64_t *places, uint64_t *locked) {
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    const struct queue *q = table_queue(&store->state.table, queue_id);
    if (q == NULL) {
        rc = fail(LS_UNKNOWN_QUEUE, "there is no queue with id %u", (unsigned)queue_id);
    } else {
        *places = queue_depth(q);
        *locked = queue_locked(q);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_queue_counts_get(ls_store *store, uint32_t queue_id, ls_queue_counts *into) {
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    store_times(store);
    const struct queue *q = table_queue_cached(&store->state.table, queue_id);
    if (q == NULL) {
        rc = fail(LS_UNKNOWN_QUEUE, "there is no queue with id %u", (unsigned)queue_id);
    } else {
        *into = (ls_queue_counts){
            .depth = queue_depth(q),
            .ready = q->tallies[STANDING_READY].places,
            .acquired = q->tallies[STANDING_ACQUIRED].places,
            .locked = queue_locked(q),
            .acquired_locked = q->tallies[STANDING_BOTH].places,
            .bytes = queue_bytes(q),
            .ready_bytes = q->tallies[STANDING_READY].bytes,
            .hidden = q->tallies[STANDING_HIDDEN].places,
            .expired = q->tallies[STANDING_EXPIRED].places,
        };
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_cursor_open(ls_store *store, uint32_t queue_id, int kind, ls_cursor **cursor) {
    *cursor = NULL;
    ls_cursor *made = calloc(1, sizeof *made);
    int rc = made == NULL ? fail_memory() : store_look(store);
    if (rc != LS_OK) {
        free(made);
        return rc;
    }
    struct queue *q = table_queue(&store->state.table, queue_id);
    if (q == NULL) {
        rc = fail(LS_UNKNOWN_QUEUE, "there is no queue with id %u", (unsigned)queue_id);
        free(made);
    } else {
        made->store = store;
        atomic_fetch_add(&store->handles, 1);
        cursor_start(&made->cursor, q, kind);
        *cursor = made;
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

static uint64_t offered_below(const ls_store *store) {
    return store->inspection != NULL ? UINT64_MAX : log_durable_lsn(store->log);
}

/* Rare, and out of line so that the walk over places stays in one function. */
__attribute__((noinline)) static void tell_counted(const struct cursor *c, ls_place *place) {
    const struct place p = {.at.chunk = c->chunk, .slot = c->slot};
    place->recovered |= offer_count(&p) > 0;
    place->has_header = place_has_header(&p);
}

/* A place is offered only once the record that made it visible is durable; the order of a run is that of LSNs. */
static inline const struct message *place_at(const struct table *t, struct cursor *c, uint64_t durable_lsn,
                                             ls_place *place) {
    for (;; cursor_step(c)) {
        uint64_t position;
        const struct entry *e = cursor_entry(c, &position);
        if (e == NULL || (c->kind == LS_CURSOR_OFFER && e->order_lsn >= durable_lsn)) {
            return NULL;
        }
        bool locked = (e->state & ENTRY_LOCKED) != 0;
        if (!locked || c->kind == LS_CURSOR_ALL) {
            const struct message *m = table_message(t, e->message);
            *place = (ls_place){
                .position = position,
                .id = m->id,
                .content_bytes = message_content_bytes(m),
                .locked = locked,
                .recovered = (e->state & ENTRY_RECOVERED) != 0,
            };
            if (c->chunk->handed_out != NULL || c->chunk->states != NULL) { /* of few chunks */
                tell_counted(c, place);
            }
            return m;
        }
    }
}

const struct message *cursor_place(ls_cursor *cursor, ls_place *place) {
    const ls_store *store = cursor->store;
    return place_at(&store->state.table, &cursor->cursor, offered_below(store), place);
}

int ls_cursor_next(ls_cursor *cursor, ls_place *places, size_t n, size_t *done) {
    *done = 0;
    ls_store *store = cursor->store;
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    struct cursor *c = &cursor->cursor;
    uint64_t durable_lsn = offered_below(store);
    if (c->queue == NULL) {
        rc = fail(LS_UNKNOWN_QUEUE, "the queue was deleted");
    }
    while (rc == LS_OK && *done < n && place_at(&store->state.table, c, durable_lsn, &places[*done]) != NULL) {
        cursor_step(c);
        (*done)++;
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

void ls_cursor_close(ls_cursor *cursor) {
    if (cursor == NULL) {
        return;
    }
    struct log *g = cursor->store->log;
    if (!atomic_load(&cursor->store->foreign)) {
        log_lock(g);
        cursor_stop(&cursor->cursor);
        log_unlock(g);
    }
    store_drop(cursor->store);
    free(cursor);
}

int ls_places_check(ls_store *store, uint32_t queue_id, const uint64_t *ids, const uint64_t *positions, size_t n,
                    uint8_t *states) {
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t number = table_find(&store->state.table, ids[i]);
        struct message *m = number != INDEX_NONE ? table_message(&store->state.table, number) : NULL;
        const struct place *p = m != NULL ? message_place(m, queue_id) : NULL;
        states[i] = 0;
        if (p != NULL && p->at.chunk->first_position + p->slot == positions[i]) {
            states[i] = (place_entry(p)->state & ENTRY_LOCKED) != 0 ? 2 : 1;
        }
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
