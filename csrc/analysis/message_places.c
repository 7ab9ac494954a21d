/* Records with states of places in a pass over messages, and the states that it keeps. See message_rows.h. */
#include <stdlib.h>

#include "format/bytes.h"
#include "os/error.h"
#include "analysis/message_rows.h"

/* ---- states ---- */

static bool is_some_state(const struct place_state *s) {
    return s->not_before_us != 0 || s->expires_us != 0 || s->delivery_count != 0 || s->note_bytes != 0 ||
           s->header != NULL;
}

bool life_placed_new(const struct place_state *state, struct life_placed **kept) {
    *kept = NULL;
    if (!is_some_state(state)) {
        return true;
    }
    struct life_placed *made = malloc(sizeof *made + state->note_bytes);
    if (made == NULL) {
        return false;
    }
    *made = (struct life_placed){.not_before_us = state->not_before_us,
                                 .expires_us = state->expires_us,
                                 .delivery_count = state->delivery_count,
                                 .header_bytes = state->header_bytes,
                                 .has_header = state->header != NULL,
                                 .note_bytes = state->note_bytes};
    if (state->note_bytes > 0) {
        memcpy(made->note, state->note, state->note_bytes);
    }
    *kept = made;
    return true;
}

struct place_state life_placed_view(const struct life_placed *kept) {
    if (kept == NULL) {
        return (struct place_state){.delivery_count = 0};
    }
    return (struct place_state){.not_before_us = kept->not_before_us,
                                .expires_us = kept->expires_us,
                                .delivery_count = kept->delivery_count,
                                .header_bytes = kept->header_bytes,
                                .header = kept->has_header ? kept->note : NULL,
                                .note = kept->note,
                                .note_bytes = kept->note_bytes};
}

int life_placed_replace(struct life_placed **kept, const struct place_state *state) {
    struct life_placed *made;
    if (!life_placed_new(state, &made)) {
        return fail_memory();
    }
    free(*kept);
    *kept = made;
    return LS_OK;
}

int life_placed_replace_note(struct life_placed **kept, const struct place_state *with_note) {
    struct place_state state = life_placed_view(*kept);
    state.note = with_note->note;
    state.note_bytes = with_note->note_bytes;
    return life_placed_replace(kept, &state);
}

/*
 *  0        4                8               16           24             28           29           30  32
 *  | number | delivery_count | not_before_us | expires_us | header_bytes | note_bytes | has_header | 0 | note |
 * Zeros follow the note up to a multiple of 8.
 */
enum { KEPT_BYTES_MIN = 32 };

size_t life_placed_bytes(const struct life_placed *kept) {
    return kept == NULL ? 0 : KEPT_BYTES_MIN + (size_t)round_up(kept->note_bytes, 8);
}

uint8_t *life_placed_put(uint8_t *at, uint32_t number, const struct life_placed *kept) {
    if (kept == NULL) {
        return at;
    }
    put32(at, number);
    put32(at + 4, kept->delivery_count);
    put64(at + 8, kept->not_before_us);
    put64(at + 16, kept->expires_us);
    put32(at + 24, kept->header_bytes);
    at[28] = kept->note_bytes;
    at[29] = kept->has_header ? 1 : 0;
    if (kept->note_bytes > 0) {
        memcpy(at + KEPT_BYTES_MIN, kept->note, kept->note_bytes);
    }
    return at + life_placed_bytes(kept);
}

bool life_placed_get(struct life_placed_reader *from, uint32_t number, struct life_placed **kept, int *rc) {
    const uint8_t *at = from->at;
    *kept = NULL;
    if (from->bytes < KEPT_BYTES_MIN || get32(at) != number) {
        return true; /* bytes of no place and no work are left over in the end */
    }
    const struct place_state state = {.delivery_count = get32(at + 4),
                                      .not_before_us = get64(at + 8),
                                      .expires_us = get64(at + 16),
                                      .header_bytes = get32(at + 24),
                                      .header = at[29] != 0 ? at : NULL,
                                      .note = at + KEPT_BYTES_MIN,
                                      .note_bytes = at[28]};
    size_t bytes = KEPT_BYTES_MIN + (size_t)round_up(state.note_bytes, 8);
    bool sound = bytes <= from->bytes && state.not_before_us <= PLACE_TIME_MAX && state.expires_us <= PLACE_TIME_MAX &&
                 at[29] <= 1 && (state.header != NULL || state.header_bytes == 0) && all_zero(at + 30, 2) &&
                 all_zero(state.note + state.note_bytes, bytes - KEPT_BYTES_MIN - state.note_bytes) &&
                 is_some_state(&state);
    if (sound && !life_placed_new(&state, kept)) {
        *rc = fail_memory();
    }
    from->at += sound ? bytes : 0;
    from->bytes -= sound ? bytes : 0;
    return sound;
}

/* ---- records ---- */

int places_note(pass *p, const struct record *r) {
    struct message_place m;
    uint32_t number;
    if (format_get_place(r, &m) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    if (pass_counted(p, r, &number) == NULL) {
        return LS_OK;
    }
    const struct place_state with_note = {.note = m.note, .note_bytes = m.note_bytes};
    if (m.tx_id != 0) {
        struct life_work work = {.tx_id = m.tx_id, .lsn = r->lsn, .queue_id = m.queue_id, .kind = PENDING_NOTE};
        return life_placed_new(&with_note, &work.state) ? life_add_work(p, number, &work) : fail_memory();
    }
    struct life_place *place;
    int rc = life_need_place(p, number, m.queue_id, &place);
    if (rc == LS_OK && place != NULL) {
        rc = life_placed_replace_note(&place->state, &with_note);
        life_simplify(p, number);
    }
    return rc;
}

int places_states(pass *p, const struct record *r) {
    struct place_states m;
    int rc = LS_OK;
    if (format_get_place_states(r, &m) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    for (uint32_t i = 0; rc == LS_OK && i < m.row_count; i++) {
        const struct state_row row = format_state_row(m.rows, i);
        uint32_t number;
        struct life_place *place = NULL;
        if (lives_find(p, row.id, &number) != NULL) {
            rc = life_need_place(p, number, row.queue_id, &place);
        }
        if (rc == LS_OK && place != NULL) {
            struct place_state state = life_placed_view(place->state);
            state.delivery_count = row.delivery_count;
            state.not_before_us = row.not_before_us;
            state.expires_us = row.expires_us;
            rc = life_placed_replace(&place->state, &state);
            life_simplify(p, number);
        }
    }
    return rc;
}

/*
 * Adds to *state what the move keeps. In a transaction that is what the place has for the transaction: its newest pending
 * note, and what its newest pending enqueue gives; else what the place itself has.
 */
static void keep(const struct life *l, const struct message_move *m, struct place_state *state) {
    bool header = m->keeps_header, note = m->keeps_note, pending = false;
    for (uint32_t i = m->tx_id != 0 ? life_work_count(l) : 0; !pending && i-- > 0;) {
        const struct life_work *w = &l->more->work[i];
        if (w->tx_id != m->tx_id || w->queue_id != m->from_queue_id || w->kind == PENDING_DEQUEUE) {
            continue;
        }
        const struct place_state found = life_placed_view(w->state);
        pending = w->kind == PENDING_ENQUEUE;
        if (note) {
            state->note = found.note;
            state->note_bytes = found.note_bytes;
            note = false;
        }
        if (pending && header) {
            state->header = found.header;
            state->header_bytes = found.header_bytes;
        }
    }
    const struct place_state there = life_placed_view(pending ? NULL : life_state_on(l, m->from_queue_id));
    if (!pending && note) {
        state->note = there.note;
        state->note_bytes = there.note_bytes;
    }
    if (!pending && header) {
        state->header = there.header;
        state->header_bytes = there.header_bytes;
    }
}

/* Outside transactions. A message never ends by a move. */
static int move_now(pass *p, const struct record *r, uint32_t number, const struct message_move *m,
                    struct life_place *made) {
    struct life_place *from = NULL;
    int rc = m->from_queue_id != 0 ? life_need_place(p, number, m->from_queue_id, &from) : LS_OK;
    if (rc != LS_OK || (m->from_queue_id != 0 && from == NULL)) {
        free(made->state);
        return rc;
    }
    if (from != NULL) {
        p->end.how = PLACE_DEQUEUED;
        p->end.reason = m->reason;
        (void)life_end_place(p, life_at(p, number), m->from_queue_id, &p->end);
    }
    life_enqueued(p, life_at(p, number));
    made->enqueue_lsn = r->lsn;
    made->enqueue_time_us = pass_time(p);
    return life_add_place(p, number, made);
}

/* In a transaction: a pending dequeue, if a place ends, and a pending enqueue. */
static int move_in_transaction(pass *p, const struct record *r, uint32_t number, const struct message_move *m,
                               struct life_placed *state) {
    const struct life_work ends = {
        .tx_id = m->tx_id, .lsn = r->lsn, .queue_id = m->from_queue_id, .reason = m->reason, .kind = PENDING_DEQUEUE};
    const struct life_work makes = {.tx_id = m->tx_id,
                                    .lsn = r->lsn,
                                    .state = state,
                                    .queue_id = m->queue_id,
                                    .order_index = m->order_index,
                                    .kind = PENDING_ENQUEUE};
    int rc = m->from_queue_id != 0 ? life_add_work(p, number, &ends) : LS_OK;
    if (rc != LS_OK) {
        free(state);
        return rc;
    }
    return life_add_work(p, number, &makes);
}

int places_move(pass *p, const struct record *r) {
    struct message_move m;
    uint32_t number;
    if (format_get_move(r, &m) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    const struct life *l = pass_counted(p, r, &number);
    if (l == NULL) {
        return LS_OK;
    }
    struct place_state state = m.state;
    struct life_place made = {.queue_id = m.queue_id};
    if (m.from_queue_id != 0) {
        keep(l, &m, &state);
    }
    if (!life_placed_new(&state, &made.state)) {
        return fail_memory();
    }
    return m.tx_id != 0 ? move_in_transaction(p, r, number, &m, made.state) : move_now(p, r, number, &m, &made);
}
