/*
 * Places with a note or a header of their own, and moves from queue to queue: one record each, whatever the message's size.
 * See store.h for the order of each. table/remembered.h has the states in memory.
 */
#include <assert.h>
#include <stdlib.h>

#include "store/store.h"

static const struct remembered nothing = {.own = NULL};

static int check_note(size_t note_bytes) {
    return note_bytes <= NOTE_BYTES_MAX
               ? LS_OK
               : fail(LS_OPTION, "a note has at most %d bytes, not %zu", NOTE_BYTES_MAX, note_bytes);
}

int store_check_remembers(const ls_store *store) {
    return store->remembers
               ? LS_OK
               : fail(LS_WRONG_STATE, "notes, moves, times and headers of places are written once every member of the "
                                      "cluster runs a program that knows them; update the others");
}

/* A relocation must be able to write the place's row in one record. */
static int check_header(const ls_store *store, uint64_t header_bytes) {
    uint64_t limit = log_record_bytes_max(store->log);
    uint64_t row = header_bytes > limit ? limit : round_up(PLACED_ROW_BYTES + NOTE_BYTES_MAX + header_bytes, 8);
    return format_relocated_placed_bytes(0, row) <= limit ? LS_OK
                                                          : message_too_large("a place's header", header_bytes, limit);
}

/* The number is where the message was before a wait, and where it is after the call. */
static int find(ls_store *store, uint64_t id, uint32_t *number, struct message **m) {
    const struct table *t = &store->state.table;
    *number = table_find_at(t, *number, id);
    if (*number == INDEX_NONE) {
        return message_find(store, id, number, m);
    }
    *m = table_message(t, *number);
    return message_is_going(*m) ? message_fail_unknown(id) : LS_OK;
}

/* ---- notes ---- */

/* Memory for a note of a transaction's work, which lies in the record that is written next; no bytes: none. */
static bool make_note(struct remembered *made, size_t note_bytes) {
    const struct own_bytes later = {.lsn = 1, .bytes = (uint32_t)note_bytes};
    *made = (struct remembered){.own = NULL};
    return note_bytes == 0 || remembered_set_note(made, &later);
}

static struct own_bytes own_in(const struct slot *s, uint32_t record_bytes, uint32_t at, uint32_t bytes) {
    return (struct own_bytes){.lsn = s->lsn, .record_bytes = record_bytes, .at = at, .bytes = bytes};
}

static uint32_t put_note(ls_store *store, struct message *m, const struct message_place *note, struct remembered *state,
                         uint64_t *lsn) {
    struct slot s = log_slot(store->log, m->id, message_last_lsn(m), 0);
    uint32_t bytes = format_put_place(&s, note);
    log_append(store->log, &s, MESSAGE_PLACE, bytes);
    if (state->own != NULL) {
        state->own->note = own_in(&s, bytes, (uint32_t)format_place_bytes(0), note->note_bytes);
    }
    *lsn = s.lsn;
    return bytes;
}

static int note_now(ls_store *store, struct message *m, struct place *p, const struct message_place *note,
                    uint64_t *lsn) {
    struct table *t = &store->state.table;
    struct own own = {.note.lsn = 0};
    struct remembered state = {.own = note->note_bytes > 0 ? &own : NULL};
    if (message_extra(m) == NULL || !chunk_prepare_state(p->at.chunk, remembered_parts(&state))) {
        return fail_memory();
    }
    (void)put_note(store, m, note, &state, lsn);
    table_touch(t, m);
    message_appended(m, *lsn);
    place_take_note(t, m, p, &state);
    return LS_OK;
}

static int note_in_tx(ls_store *store, uint32_t number, struct place *p, struct tx *tx, struct message_place *note,
                      uint64_t *lsn) {
    struct table *t = &store->state.table;
    struct message *m = table_message(t, number);
    const struct work *last = message_last_work(m, note->queue_id);
    int rc = work_check_limit(tx, 1);
    struct work *w = rc == LS_OK ? work_make(1, note->note_bytes > 0 ? &nothing : NULL) : NULL;
    bool ready = w != NULL && message_extra(m) != NULL && (w->state == NULL || make_note(w->state, note->note_bytes));
    if (rc != LS_OK || !ready) {
        work_free(w);
        return rc != LS_OK ? rc : fail_memory();
    }
    note->tx_id = tx->id;
    (void)put_note(store, m, note, w->state != NULL ? w->state : &(struct remembered){.own = NULL}, lsn);
    table_touch(t, m);
    message_appended(m, *lsn);
    w->kind = WORK_NOTE;
    w->message = number;
    w->queue_id = note->queue_id;
    w->lsn = *lsn;
    w->locks = p != NULL && last == NULL;
    if (w->locks) {
        queue_lock(p, m);
    }
    tx_add_work(t, tx, w);
    return LS_OK;
}

static int annotate_locked(ls_store *store, uint64_t id, struct message_place note, ls_tx *handle, uint64_t *lsn) {
    uint32_t number = table_find(&store->state.table, id);
    struct message *m = NULL;
    struct tx *tx;
    struct place *p = NULL;
    int rc = store_check_remembers(store);
    rc = rc == LS_OK ? message_reserve_states(store, id, number, 1, note.note_bytes,
                                              format_place_bytes(note.note_bytes), RESERVE_GROWS)
                     : rc;
    rc = rc == LS_OK ? tx_check_work(store, handle, &tx) : rc;
    rc = rc == LS_OK ? store_check_queues(store, &note.queue_id, 1) : rc;
    rc = rc == LS_OK ? find(store, id, &number, &m) : rc;
    rc = rc == LS_OK ? place_check_dequeue(m, note.queue_id, tx, &p) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    return tx != NULL ? note_in_tx(store, number, p, tx, &note, lsn) : note_now(store, m, p, &note, lsn);
}

int ls_annotate(ls_store *store, uint64_t id, uint32_t queue_id, const uint8_t *note, size_t note_bytes, ls_tx *tx,
                int flags, uint64_t *lsn) {
    *lsn = 0;
    int rc = check_note(note_bytes);
    rc = rc == LS_OK ? work_try(store, tx, flags) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    struct message_place place = {.queue_id = queue_id, .note_bytes = (uint8_t)note_bytes, .note = note};
    rc = annotate_locked(store, id, place, tx, lsn);
    return work_leave(store, tx, rc, flags);
}

/* ---- moves ---- */

static struct own_bytes own_or_none(const struct own_bytes *bytes) {
    return bytes != NULL ? *bytes : (struct own_bytes){.lsn = 0};
}

/* The state of the new place. What it has of its own is in the record that is written next, or is kept; `own` is its memory. */
static struct remembered state_of(const struct message_move *move, const struct seen_place *from, struct own *own) {
    const struct own_bytes note = {.lsn = 1, .bytes = move->state.note_bytes};
    const struct own_bytes header = {.lsn = 1, .bytes = move->state.header_bytes};
    *own = (struct own){
        .note = own_or_none(move->keeps_note             ? from->note
                            : move->state.note_bytes > 0 ? &note
                                                         : NULL),
        .header = own_or_none(move->keeps_header           ? from->header
                              : move->state.header != NULL ? &header
                                                           : NULL),
    };
    return (struct remembered){
        .not_before_us = move->state.not_before_us,
        .expires_us = move->state.expires_us,
        .delivery_count = move->state.delivery_count,
        .own = own->note.lsn != 0 || own->header.lsn != 0 ? own : NULL,
    };
}

static void put_move(ls_store *store, struct message *m, const struct message_move *move, struct remembered *state,
                     uint64_t *lsn) {
    struct slot s = log_slot(store->log, m->id, message_last_lsn(m), 0);
    uint32_t bytes = format_put_move(&s, move);
    uint32_t at = (uint32_t)format_move_bytes(0, 0);
    log_append(store->log, &s, MESSAGE_MOVE, bytes);
    if (move->state.note_bytes > 0) {
        state->own->note = own_in(&s, bytes, at, move->state.note_bytes);
    }
    if (move->state.header != NULL) {
        state->own->header = own_in(&s, bytes, at + move->state.note_bytes, move->state.header_bytes);
    }
    *lsn = s.lsn;
}

/* The log gets the count of the place that the next record ends, if it lacks it. The place ends in memory, so only the message
   grows as in a replay. */
static void put_last_count(ls_store *store, struct message *m, const struct place *from, struct remembered *before) {
    const struct remembered stood = *before;
    struct slot s = log_slot(store->log, 0, 0, 0);
    before->delivery_count = counts_lacking(from);
    if (before->delivery_count == 0) {
        before->delivery_count = stood.delivery_count;
        return;
    }
    const struct state_row row = {
        .id = m->id,
        .not_before_us = stood.not_before_us,
        .expires_us = stood.expires_us,
        .queue_id = from->queue_id,
        .delivery_count = before->delivery_count,
    };
    log_append(store->log, &s, PLACE_STATES, format_put_place_states(&s, &row, 1));
    message_state_changes(&store->state.table, m, &stood, before);
}

/* The row of the place that ends is replaced, so only what the new one has of its own makes the message grow. */
static void replace_place(struct table *t, struct message *m, struct place *from, const struct remembered *before,
                          const struct remembered *state) {
    uint32_t queue_id = from->queue_id;
    message_grows_places(t, m, 0);
    message_state_changes(t, m, before, state);
    queue_kill(from, m);
    message_drop_place(t, m, queue_id);
}

static int move_now(ls_store *store, uint32_t number, struct place *from, const struct message_move *move, bool counts,
                    uint64_t *lsn) {
    struct table *t = &store->state.table;
    struct message *m = table_message(t, number);
    const struct seen_place seen = message_see_place(t, m, 0, move->from_queue_id);
    struct queue *q = table_queue_cached(t, move->queue_id);
    struct own own;
    struct remembered state = state_of(move, &seen, &own);
    if (message_extra(m) == NULL || (from == NULL && !message_prepare_places(m, 1)) || !queue_prepare(q, 1) ||
        !queue_prepare_state(q, remembered_parts(&state))) {
        return fail_memory();
    }
    struct remembered before = from != NULL ? place_state(from) : nothing;
    if (counts) {
        put_last_count(store, m, from, &before);
    }
    put_move(store, m, move, &state, lsn);
    table_touch(t, m);
    message_appended(m, *lsn);
    m->flags &= (uint16_t)~MESSAGE_STAGED;
    if (from != NULL) {
        replace_place(t, m, from, &before, &state);
    } else {
        message_grows_places(t, m, 1);
    }
    message_add_place(t, m, queue_append(q, m, number, *lsn, 0));
    const struct place *made = message_place(m, move->queue_id);
    if (from == NULL) {
        message_state_changes(t, m, &nothing, &state);
    }
    store_time_for(store, &state);
    place_remember(made, m, &state);
    return LS_OK;
}

static int move_in_tx(ls_store *store, uint32_t number, struct place *from, struct tx *tx, struct message_move *move,
                      uint64_t *lsn) {
    struct table *t = &store->state.table;
    struct message *m = table_message(t, number);
    const struct work *last = message_last_work(m, move->from_queue_id);
    const struct seen_place seen = message_see_place(t, m, tx->id, move->from_queue_id);
    int rc = work_check_limit(tx, 2);
    struct work *ends = rc == LS_OK && move->from_queue_id != 0 ? work_make(1, NULL) : NULL;
    struct work *made = rc == LS_OK ? work_make(1, &nothing) : NULL;
    struct own own;
    const struct remembered state = state_of(move, &seen, &own);
    bool ready = made != NULL && (ends != NULL || move->from_queue_id == 0) && message_extra(m) != NULL &&
                 remembered_copy(made->state, &state);
    if (rc != LS_OK || !ready) {
        work_free(ends);
        work_free(made);
        return rc != LS_OK ? rc : fail_memory();
    }
    move->tx_id = tx->id;
    move->order_index = tx->enqueue_count;
    put_move(store, m, move, made->state, lsn);
    table_touch(t, m);
    message_appended(m, *lsn);
    if (ends != NULL) {
        ends->kind = WORK_DEQUEUE;
        ends->message = number;
        ends->queue_id = move->from_queue_id;
        ends->lsn = *lsn;
        ends->locks = from != NULL && last == NULL;
        if (ends->locks) {
            queue_lock(from, m);
        }
        tx_add_work(t, tx, ends);
    }
    if (remembers_nothing(made->state)) {
        free(made->state);
        made->state = NULL;
    }
    made->kind = WORK_ENQUEUE;
    made->order_index = tx->enqueue_count++;
    made->message = number;
    made->queue_id = move->queue_id;
    made->lsn = *lsn;
    tx_add_work(t, tx, made);
    return LS_OK;
}

/* Bytes of the new place's own header and note, also of those that it keeps. */
static int64_t own_bytes_of(const ls_store *store, uint64_t id, uint32_t hint, const struct message_move *move,
                            const ls_tx *handle) {
    const struct table *t = &store->state.table;
    const struct tx *tx = handle != NULL ? tx_of(handle) : NULL;
    uint32_t number = move->keeps_header ? table_find_at(t, hint, id) : INDEX_NONE;
    const struct seen_place seen =
        number != INDEX_NONE
            ? message_see_place(t, table_message(t, number), tx != NULL ? tx->id : 0, move->from_queue_id)
            : (struct seen_place){.is_there = false};
    uint64_t kept = seen.header != NULL ? seen.header->bytes : 0;
    return (int64_t)(kept + (move->keeps_note ? NOTE_BYTES_MAX : 0) + move->state.header_bytes +
                     move->state.note_bytes);
}

/* (waits) Meanwhile another thread may have given the place another header, which the new one is to keep. */
static int reserve_move(ls_store *store, uint64_t id, uint32_t hint, const struct message_move *move,
                        const ls_tx *handle, uint64_t bytes) {
    bool exchange = handle != NULL && move->from_queue_id != 0;
    int64_t reserved, own_bytes = own_bytes_of(store, id, hint, move, handle);
    int rc;
    do {
        reserved = own_bytes;
        rc = message_reserve_states(store, id, hint, exchange ? 2 : 1, reserved, bytes,
                                    exchange ? RESERVE_EXCHANGE : RESERVE_GROWS);
        own_bytes = own_bytes_of(store, id, hint, move, handle);
    } while (rc == LS_OK && own_bytes > reserved);
    return rc;
}

/* With `keeps_expiry` the new place expires when the one that is held does. */
static int move_locked(ls_store *store, uint64_t id, struct message_move move, const ls_delivery *held,
                       bool keeps_expiry, ls_tx *handle, uint64_t *lsn) {
    uint32_t number = table_find_at(&store->state.table, held != NULL ? held->number : INDEX_NONE, id);
    struct message *m = NULL;
    struct tx *tx;
    struct place *from = NULL;
    const uint32_t queues[] = {move.queue_id, move.from_queue_id};
    bool ends = move.from_queue_id != 0, stays = move.from_queue_id == move.queue_id;
    int rc = store_check_remembers(store);
    rc = rc == LS_OK ? check_header(store, move.state.header_bytes) : rc;
    uint64_t bytes = format_move_bytes(move.state.header_bytes, move.state.note_bytes);
    bool counts =
        ends && held != NULL && move.state.delivery_count == 0; /* the record has the count of the new place */
    if (rc == LS_OK && counts) {
        uint64_t both = bytes + format_place_states_bytes(1);
        if (handle != NULL || both > log_record_bytes_max(store->log)) {
            counts_write_one(store, move.from_queue_id, held);
            counts = false;
        }
        bytes = counts ? both : bytes;
    }
    rc = rc == LS_OK ? reserve_move(store, id, number, &move, handle, bytes) : rc;
    rc = rc == LS_OK ? tx_check_work(store, handle, &tx) : rc;
    rc = rc == LS_OK ? store_check_queues(store, queues, ends && !stays ? 2 : 1) : rc;
    rc = rc == LS_OK ? find(store, id, &number, &m) : rc;
    rc = rc == LS_OK && (m->flags & MESSAGE_APPENDING) != 0 ? message_fail_appending(id) : rc;
    rc = rc == LS_OK && held != NULL ? place_check_held(m, move.from_queue_id, held) : rc;
    rc = rc == LS_OK && ends ? place_check_dequeue(m, move.from_queue_id, tx, &from) : rc;
    rc = rc == LS_OK && !stays ? place_check_enqueue(m, move.queue_id, tx) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    if (keeps_expiry && from != NULL) {
        move.state.expires_us = place_state(from).expires_us;
    }
    return tx != NULL ? move_in_tx(store, number, from, tx, &move, lsn)
                      : move_now(store, number, from, &move, counts, lsn);
}

int ls_move(ls_store *store, uint64_t id, const ls_place_move *move, const ls_delivery *held, ls_tx *tx, int flags,
            uint64_t *lsn) {
    const bool keeps_expiry = move->keeps_expiry != 0 && held != NULL;
    const ls_times times = {move->times.not_before_us, keeps_expiry ? 0 : move->times.expires_us};
    *lsn = 0;
    int rc = place_check_reason(move->reason);
    rc = rc == LS_OK ? check_note(move->note_bytes) : rc;
    rc = rc == LS_OK ? times_check(&times) : rc;
    if (rc == LS_OK && move->header_bytes > UINT32_MAX) {
        rc = message_too_large("a place's header", move->header_bytes, log_record_bytes_max(store->log));
    }
    rc = rc == LS_OK ? work_try(store, tx, flags) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    static const uint8_t no_bytes[1];
    const uint8_t *header = move->header != NULL ? move->header : no_bytes;
    bool keeps = move->from_queue_id != 0;
    struct message_move m = {
        .from_queue_id = move->from_queue_id,
        .queue_id = move->queue_id,
        .reason = keeps ? (uint8_t)move->reason : 0,
        .keeps_header = keeps && move->header_given == 0,
        .keeps_note = keeps && move->note_given == 0,
        .state = {.not_before_us = times.not_before_us,
                  .expires_us = times.expires_us,
                  .delivery_count = move->keeps_count != 0 && held != NULL ? held->count : 0,
                  .header = move->header_given != 0 ? header : NULL,
                  .header_bytes = move->header_given != 0 ? (uint32_t)move->header_bytes : 0,
                  .note = move->note_given != 0 ? move->note : NULL,
                  .note_bytes = move->note_given != 0 ? (uint8_t)move->note_bytes : 0},
    };
    rc = move_locked(store, id, m, held, keeps_expiry, tx, lsn);
    return work_leave(store, tx, rc, flags);
}
