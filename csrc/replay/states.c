/*
 * Records that give, replace or end the states of places; sections 6 and 7 of docs/format.md have their meaning. What a
 * place has of its own stays on the disk: only where it lies is kept. See replay.h.
 */
#include <stdlib.h>

#include "os/error.h"
#include "replay/messages.h"

static struct own_bytes bytes_in(const struct record *r, const uint8_t *at, uint32_t bytes) {
    return (struct own_bytes){
        .lsn = r->lsn, .record_bytes = r->length, .at = (uint32_t)(at - r->bytes), .bytes = bytes};
}

bool replay_read_state(const struct record *r, const struct place_state *from, struct remembered *made) {
    *made = (struct remembered){
        .not_before_us = from->not_before_us,
        .expires_us = from->expires_us,
        .delivery_count = from->delivery_count,
    };
    bool fine = true;
    if (from->note_bytes > 0) {
        const struct own_bytes note = bytes_in(r, from->note, from->note_bytes);
        fine = remembered_set_note(made, &note);
    }
    if (fine && from->header != NULL) {
        const struct own_bytes header = bytes_in(r, from->header, from->header_bytes);
        fine = remembered_set_header(made, &header);
    }
    return fine;
}

int replay_set_state(const struct replay *p, struct message *m, struct place *place, struct remembered *state) {
    const struct remembered before = unplaced_state(place);
    message_state_changes(p->t, m, &before, state);
    if (!unplaced_remember(p->t, place, state)) {
        remembered_free(state);
        return fail_memory();
    }
    return LS_OK;
}

int replay_set_note(const struct replay *p, struct message *m, struct place *place, const struct own_bytes *note) {
    const struct remembered before = unplaced_state(place);
    struct remembered after;
    if (!remembered_copy(&after, &before)) {
        return fail_memory();
    }
    if (!remembered_set_note(&after, note)) {
        remembered_free(&after);
        return fail_memory();
    }
    return replay_set_state(p, m, place, &after);
}

/* ---- a start whose places have a state ---- */

int replay_start_placed(const struct replay *p, const struct record *r) {
    struct message_start m;
    struct place_state from;
    struct remembered state;
    uint32_t number;
    if (format_get_start_placed(r, &m, &from) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (!replay_read_state(r, &from, &state)) {
        return fail_memory();
    }
    const struct message_enqueue e = {m.tx_id, m.order_index, m.queue_count, m.queues};
    int rc = replay_add_message(p, r, m.content_bytes, &number);
    rc = rc == LS_OK ? replay_enqueues(p, r, number, &e, &state) : rc;
    remembered_free(&state);
    return rc;
}

/* ---- notes ---- */

/* A transaction may have work on a deleted queue until its outcome. */
static bool may_be_gone(const struct replay *p, uint64_t tx_id, uint32_t queue_id) {
    const struct queue *q = tx_id != 0 ? table_any_queue(p->t, queue_id) : NULL;
    return q != NULL && q->deleted;
}

int replay_place(const struct replay *p, const struct record *r) {
    struct message_place from;
    uint32_t number;
    struct message *m = replay_find_message(p, r, &number);
    if (format_get_place(r, &from) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (m == NULL) {
        return replay_missing_chain(p, r);
    }
    if (message_extra(m) == NULL) {
        return fail_memory();
    }
    if (!message_see_place(p->t, m, from.tx_id, from.queue_id).is_there && !may_be_gone(p, from.tx_id, from.queue_id)) {
        return replay_inconsistent(p, r, "a note is put on a place that is not there");
    }
    message_appended(m, r->lsn);
    const struct own_bytes note = bytes_in(r, from.note, from.note_bytes);
    const struct own_bytes *given = from.note_bytes > 0 ? &note : NULL;
    if (from.tx_id == 0) {
        return replay_set_note(p, m, message_place(m, from.queue_id), given);
    }
    struct remembered state = {.own = NULL};
    if (!remembered_set_note(&state, given)) {
        return fail_memory();
    }
    const struct work w = {.lsn = r->lsn, .queue_id = from.queue_id, .kind = WORK_NOTE};
    return replay_add_work(p, r, number, from.tx_id, &w, &state);
}

/* ---- moves ---- */

/* The state of the new place: what stands in the record, and what it keeps of the place that ends. */
static bool read_moved_state(const struct record *r, const struct message_move *from, const struct seen_place *ends,
                             struct remembered *state) {
    bool fine = replay_read_state(r, &from->state, state);
    if (fine && from->keeps_note) {
        fine = remembered_set_note(state, ends->note);
    }
    if (fine && from->keeps_header) {
        fine = remembered_set_header(state, ends->header);
    }
    if (!fine) {
        remembered_free(state);
    }
    return fine;
}

/* Takes the state over. */
static int move_now(const struct replay *p, const struct record *r, struct message *m, const struct message_move *from,
                    struct remembered *state) {
    bool there = message_place(m, from->queue_id) != NULL && from->queue_id != from->from_queue_id;
    if (there || !message_prepare_places(m, 1)) {
        remembered_free(state);
        return there ? replay_inconsistent(p, r, "a message is moved to a queue that has it already") : fail_memory();
    }
    struct place *ends = from->from_queue_id != 0 ? message_place(m, from->from_queue_id) : NULL;
    m->flags &= (uint16_t)~MESSAGE_STAGED;
    message_grows_places(p->t, m, ends == NULL ? 1 : 0); /* else its row replaces another */
    if (ends == NULL) {
        message_add_place(p->t, m, (struct place){.at.order_lsn = r->lsn, .slot = 0, .queue_id = from->queue_id});
        return replay_set_state(p, m, message_place(m, from->queue_id), state);
    }
    struct remembered before = unplaced_forget(p->t, ends);
    message_state_changes(p->t, m, &before, state);
    remembered_free(&before);
    message_drop_place(p->t, m, from->from_queue_id);
    message_add_place(p->t, m, (struct place){.at.order_lsn = r->lsn, .slot = 0, .queue_id = from->queue_id});
    if (!unplaced_remember(p->t, message_place(m, from->queue_id), state)) {
        remembered_free(state);
        return fail_memory();
    }
    return LS_OK;
}

/* Takes the state over. */
static int move_at_commit(const struct replay *p, const struct record *r, uint32_t number,
                          const struct message_move *from, struct remembered *state) {
    int rc = LS_OK;
    if (from->from_queue_id != 0) {
        struct remembered none = {.own = NULL};
        const struct work ends = {.lsn = r->lsn, .queue_id = from->from_queue_id, .kind = WORK_DEQUEUE};
        rc = replay_add_work(p, r, number, from->tx_id, &ends, &none);
    }
    if (rc != LS_OK) {
        remembered_free(state);
        return rc;
    }
    const struct work made = {
        .lsn = r->lsn, .queue_id = from->queue_id, .kind = WORK_ENQUEUE, .order_index = from->order_index};
    return replay_add_work(p, r, number, from->tx_id, &made, state);
}

int replay_move(const struct replay *p, const struct record *r) {
    struct message_move from;
    uint32_t number;
    struct message *m = replay_find_message(p, r, &number);
    if (format_get_move(r, &from) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (m == NULL) {
        return replay_missing_chain(p, r);
    }
    if (message_extra(m) == NULL) {
        return fail_memory();
    }
    struct seen_place ends = message_see_place(p->t, m, from.tx_id, from.from_queue_id);
    if (from.from_queue_id != 0 && !ends.is_there && !may_be_gone(p, from.tx_id, from.from_queue_id)) {
        return replay_inconsistent(p, r, "a message is moved from a queue that does not have it");
    }
    struct remembered state;
    if (!read_moved_state(r, &from, &ends, &state)) {
        return fail_memory();
    }
    message_appended(m, r->lsn);
    return from.tx_id == 0 ? move_now(p, r, m, &from, &state) : move_at_commit(p, r, number, &from, &state);
}

/* ---- counts and times of many places ---- */

/* The places of a deleted queue have ended. */
static int take_row(const struct replay *p, const struct record *r, const struct state_row *row) {
    const struct queue *q = table_any_queue(p->t, row->queue_id);
    if (q != NULL && q->deleted) {
        return LS_OK;
    }
    uint32_t number = table_find(p->t, row->id);
    if (number == INDEX_NONE && row->id < p->base_lsn) {
        p->report->orphans++;
        p->report->orphan_messages++;
        return LS_OK;
    }
    struct message *m = number != INDEX_NONE ? table_message(p->t, number) : NULL;
    struct place *place = m != NULL ? message_place(m, row->queue_id) : NULL;
    if (place == NULL) {
        const struct record of_message = {.lsn = r->lsn, .id = row->id};
        return replay_inconsistent(p, &of_message, "the state of a place that is not there");
    }
    if (m->place_count > 1 && message_extra(m) == NULL) {
        return fail_memory();
    }
    table_touch(p->t, m);
    struct remembered state = unplaced_state(place);
    state.not_before_us = row->not_before_us;
    state.expires_us = row->expires_us;
    state.delivery_count = row->delivery_count;
    return replay_set_state(p, m, place, &state);
}

int replay_place_states(const struct replay *p, const struct record *r) {
    struct place_states from;
    if (format_get_place_states(r, &from) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < from.row_count; i++) {
        const struct state_row row = format_state_row(from.rows, i);
        rc = take_row(p, r, &row);
    }
    return rc;
}
