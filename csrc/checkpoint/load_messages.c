/* The rows of messages and of the states of their places, from a checkpoint into the table. See load.c. */
#include <stdlib.h>

#include "checkpoint/load_parts.h"
#include "os/array.h"
#include "table/remembered.h"

enum {
    ROWS_AHEAD = 16,
    APART_MAX =
        128, /* bytes of rows of one message for which the next ones are looked for; 16 times that fit into a block */
};

static int take_chunks(struct loading *l, const struct message_row *r, struct message_extra *x) {
    uint64_t offset = r->content_bytes;
    for (uint32_t i = 0; i < r->chunk_count; i++) {
        const uint8_t *row;
        struct chain_chunk c;
        int rc = load_following_row(l, CHAIN_CHUNK_BYTES, &row);
        if (rc != LS_OK) {
            return rc;
        }
        if (format_get_chain_chunk(row, l->h.lsn, r->id, &c) != FORMAT_OK || c.offset != offset) {
            return LOAD_DAMAGED;
        }
        if (!message_prepare_chunks(x, i + 1)) {
            return fail_memory();
        }
        x->chunks[i] = (struct chain_record){
            .lsn = c.lsn, .offset = c.offset, .record_bytes = c.record_bytes, .content_bytes = c.content_bytes};
        x->chunk_count = i + 1;
        offset += c.content_bytes;
    }
    return offset == r->content_total ? LS_OK : LOAD_DAMAGED;
}

static int take_parts(struct loading *l, const struct message_row *r, struct message_extra *x) {
    uint32_t capacity = 0;
    for (uint32_t i = 0; i < r->part_count; i++) {
        const uint8_t *row;
        struct chain_part c;
        int rc = load_following_row(l, CHAIN_PART_BYTES, &row);
        if (rc != LS_OK) {
            return rc;
        }
        if (format_get_chain_part(row, l->h.lsn, r->id, &c) != FORMAT_OK) {
            return LOAD_DAMAGED;
        }
        if (!array_grow(&x->parts, &capacity, i, 1)) {
            return fail_memory();
        }
        x->parts[i] = (struct chain_record){.lsn = c.lsn, .record_bytes = c.record_bytes};
        x->part_count = i + 1;
    }
    return LS_OK;
}

static int take_places(struct loading *l, const struct message_row *r, struct message *m) {
    for (uint32_t i = 0; i < r->place_count; i++) {
        const uint8_t *row;
        struct chain_place c;
        int rc = load_following_row(l, CHAIN_PLACE_BYTES, &row);
        if (rc != LS_OK) {
            return rc;
        }
        if (format_get_chain_place(row, l->h.lsn, r->id, &c) != FORMAT_OK || message_place(m, c.queue_id) != NULL) {
            return LOAD_DAMAGED;
        }
        if (!message_prepare_places(m, 1)) {
            return fail_memory();
        }
        message_add_place(l->t, m,
                          (struct place){.at.order_lsn = c.order_lsn, .slot = c.order_index, .queue_id = c.queue_id});
    }
    l->places += r->place_count;
    return LS_OK;
}

static int take_operations(struct loading *l, const struct message_row *r, uint32_t number) {
    for (uint32_t i = 0; i < r->operation_count; i++) {
        const uint8_t *row;
        struct chain_operation c;
        int rc = load_following_row(l, CHAIN_OPERATION_BYTES, &row);
        if (rc != LS_OK) {
            return rc;
        }
        struct tx *tx =
            format_get_chain_operation(row, l->h.lsn, r->id, &c) == FORMAT_OK ? table_tx(l->t, c.tx_id) : NULL;
        if (tx == NULL) {
            return LOAD_DAMAGED;
        }
        struct work *w = calloc(1, sizeof *w);
        if (w == NULL) {
            return fail_memory();
        }
        *w = (struct work){
            .lsn = c.lsn,
            .message = number,
            .queue_id = c.queue_id,
            .order_index = c.order_index,
            .kind = c.kind == PENDING_ENQUEUE   ? WORK_ENQUEUE
                    : c.kind == PENDING_DEQUEUE ? WORK_DEQUEUE
                                                : WORK_NOTE,
        };
        tx_add_work(l->t, tx, w);
    }
    l->operations += r->operation_count;
    return LS_OK;
}

/*
 * Restores the growth that admission counts: it cannot be computed again, since it depends on the order of past
 * operations.
 */
static void set_growth(struct table *t, struct message *m, const struct message_row *r) {
    message_moved(t, m);
    if ((r->flags & ROW_LOOSE) != 0) {
        message_grows(t, m, r->growth);
    } else if (m->extra != NULL) {
        m->extra->growth = r->growth;
        t->growth += r->growth;
    }
    if ((r->flags & ROW_WIDE) != 0) {
        message_widens(t, m);
    }
    if (m->extra != NULL) {
        m->extra->work_state = r->work_state;
        m->extra->work_rows = r->work_rows;
        t->growth += (uint64_t)r->work_state + r->work_rows;
    }
}

static int take_chain(struct loading *l, const struct message_row *r, uint32_t number) {
    struct message *m = table_message(l->t, number);
    struct message_extra *x = message_extra(m);
    if (x == NULL) {
        return fail_memory();
    }
    x->start_lsn = r->start_lsn;
    x->last_lsn = r->last_lsn;
    x->content_bytes = r->content_total;
    x->state_bytes = r->state_bytes;
    int rc = take_chunks(l, r, x);
    rc = rc == LS_OK ? take_parts(l, r, x) : rc;
    rc = rc == LS_OK ? take_places(l, r, m) : rc;
    rc = rc == LS_OK ? take_operations(l, r, number) : rc;
    set_growth(l->t, m, r); /* even if no place is left: work on a deleted queue has no row */
    return rc;
}

static int take_single(struct loading *l, const struct message_row *r, uint32_t number) {
    struct message *m = table_message(l->t, number);
    if (r->start_lsn != r->id || r->last_lsn != r->id || r->growth != 0) {
        struct message_extra *x = message_extra(m);
        if (x == NULL) {
            return fail_memory();
        }
        x->start_lsn = r->start_lsn;
        x->last_lsn = r->last_lsn;
    }
    message_add_place(l->t, m,
                      (struct place){.at.order_lsn = r->order_lsn, .slot = r->order_index, .queue_id = r->queue_id});
    set_growth(l->t, m, r);
    l->places++;
    return LS_OK;
}

/*
 * Most messages have as many bytes of rows as the one before. If not, the wrong memory is fetched, which costs little; so does a
 * block that is not verified yet.
 */
static void look_ahead(struct loading *l, const uint8_t *row) {
    size_t bytes = l->last_row != NULL && row > l->last_row ? (size_t)(row - l->last_row) : l->apart;
    l->last_row = row;
    l->apart = bytes <= APART_MAX ? bytes : l->apart;
    size_t ahead = ROWS_AHEAD * l->apart, left = (size_t)(l->end - row);
    size_t gap = ahead < left ? 0 : l->next_block_from; /* it is in the next block */
    if (ahead + gap + PLACE_STATE_ROW_BYTES + PLAIN_ROW_BYTES <= (size_t)(l->window_end - row)) {
        const uint8_t *at = row + ahead + gap;
        at += *at == ROW_STATE ? PLACE_STATE_ROW_BYTES : 0; /* of a message of the block before */
        index_prefetch(&l->t->messages, format_checkpoint_row_id(at));
    }
}

int load_message(struct loading *l, const uint8_t *row) {
    struct message_row r;
    look_ahead(l, row);
    if (format_get_message_row(row, l->h.lsn, &r) != FORMAT_OK || l->messages == l->h.messages ||
        (r.id <= l->highest_id && table_find(l->t, r.id) != INDEX_NONE)) {
        return LOAD_DAMAGED;
    }
    l->highest_id = r.id > l->highest_id ? r.id : l->highest_id;
    if (!table_prepare(l->t, 1)) {
        return fail_memory();
    }
    uint16_t flags = MESSAGE_RECOVERED | ((r.flags & ROW_STAGED) != 0 ? MESSAGE_STAGED : 0) |
                     ((r.flags & ROW_PUBLISHED) != 0 ? MESSAGE_PUBLISHED : 0);
    uint32_t number = table_add(l->t, r.id, flags);
    struct message *m = table_message(l->t, number);
    m->record_bytes = r.record_bytes;
    m->content_bytes = r.content_bytes;
    l->messages++;
    l->number = number;
    int rc = r.kind == ROW_CHAIN ? take_chain(l, &r, number) : take_single(l, &r, number);
    l->work = m->extra != NULL ? m->extra->work : NULL;
    l->later = 0;
    return rc;
}

/* ---- states of places, behind the rows of their message ---- */

static int take_own(struct loading *l, uint64_t id, bool is_note, struct remembered *state) {
    const uint8_t *row;
    struct own_bytes_row o;
    int rc = load_following_row(l, OWN_BYTES_ROW_BYTES, &row);
    if (rc != LS_OK) {
        return rc;
    }
    if (format_get_own_bytes_row(row, l->h.lsn, id, is_note, &o) != FORMAT_OK) {
        return LOAD_DAMAGED;
    }
    const struct own_bytes own = {.lsn = o.lsn, .record_bytes = o.record_bytes, .at = o.at, .bytes = o.bytes};
    return (is_note ? remembered_set_note(state, &own) : remembered_set_header(state, &own)) ? LS_OK : fail_memory();
}

/* The place has none yet. */
static int state_place(const struct loading *l, struct message *m, uint32_t queue_id, struct remembered *state) {
    struct place *place = message_place(m, queue_id);
    if (place == NULL || unplaced_remembers(place)) {
        return LOAD_DAMAGED;
    }
    if (!unplaced_remember(l->t, place, state)) {
        return fail_memory();
    }
    state->own = NULL;
    return LS_OK;
}

/* A dequeue has none, a note's is the note. */
static bool may_have(const struct work *w, const struct remembered *state) {
    bool timed = state->not_before_us != 0 || state->expires_us != 0 || state->delivery_count != 0;
    return w->kind == WORK_ENQUEUE ||
           (w->kind == WORK_NOTE && !timed && state->own != NULL && state->own->header.lsn == 0);
}

/* The states come in the order of the operations, from the newest on. */
static int state_operation(struct loading *l, uint32_t later, struct remembered *state) {
    while (l->work != NULL && l->later < later) {
        l->work = l->work->next_of_message;
        l->later++;
    }
    if (l->work == NULL || l->later != later || l->work->state != NULL || !may_have(l->work, state)) {
        return LOAD_DAMAGED;
    }
    l->work->state = malloc(sizeof *state);
    if (l->work->state == NULL) {
        return fail_memory();
    }
    *l->work->state = *state;
    state->own = NULL;
    return LS_OK;
}

int load_place_state(struct loading *l, const uint8_t *row) {
    struct place_state_row r;
    if (format_get_place_state_row(row, &r) != FORMAT_OK || l->messages == 0) {
        return LOAD_DAMAGED;
    }
    struct message *m = table_message(l->t, l->number);
    table_note_state(l->t, m);
    struct remembered state = {
        .not_before_us = r.not_before_us, .expires_us = r.expires_us, .delivery_count = r.delivery_count};
    int rc = (r.bits & ROW_HAS_NOTE) != 0 ? take_own(l, m->id, true, &state) : LS_OK;
    rc = rc == LS_OK && (r.bits & ROW_HAS_HEADER) != 0 ? take_own(l, m->id, false, &state) : rc;
    if (rc == LS_OK) {
        rc = (r.bits & ROW_OF_OPERATION) != 0 ? state_operation(l, r.of, &state) : state_place(l, m, r.of, &state);
    }
    remembered_free(&state);
    return rc;
}
