/*
 * Relocated chains on replay. A relocation gives a chain's whole state. If the chain is known already, because the
 * replaced records are still in the log, the two states must agree. Only pending work may differ: an open may undo work
 * and move the chain before it logs the rollback, and then that work is missing in the state.
 */
#include <stdlib.h>
#include <string.h>

#include "replay/messages.h"

#include "os/array.h"
#include "os/error.h"
#include "table/remembered.h"

static void free_states(struct remembered *states, size_t count) {
    for (size_t i = 0; states != NULL && i < count; i++) {
        remembered_free(&states[i]);
    }
    free(states);
}

static void forget_parts(struct moving *v) {
    free_states(v->place_states, v->place_count);
    free_states(v->pending_states, v->pending_count);
    v->place_states = v->pending_states = NULL;
    v->place_state_capacity = v->pending_state_capacity = 0;
    free(v->parts);
    free(v->chunks);
    free(v->places);
    free(v->pending);
    v->parts = v->chunks = NULL;
    v->places = NULL;
    v->pending = NULL;
    v->id = v->next_part = 0;
    v->chunk_count = v->place_count = v->pending_count = 0;
    v->part_capacity = v->chunk_capacity = v->place_capacity = v->pending_capacity = 0;
}

void replay_free(struct replay *p) { forget_parts(&p->moving); }

/* A relocated state without its rows, which are in `moving`. */
struct moved_state {
    uint64_t start_lsn;
    uint64_t content_bytes;
    uint32_t start_record_bytes;
    uint32_t start_content_bytes;
    bool staged;
    bool published;
    bool has_parts;       /* the state has records that do not follow the start at once */
    uint32_t state_bytes; /* of the state's record if it follows the start record at once */
};

/* ---- into the table ---- */

static bool places_agree(const struct moving *v, struct message *m) {
    if (m->place_count != v->place_count) {
        return false;
    }
    for (size_t i = 0; i < v->place_count; i++) {
        const struct place *place = message_place(m, v->places[i].queue_id);
        if (place == NULL || unplaced_order_lsn(place) != v->places[i].order_lsn ||
            unplaced_order_index(place) != v->places[i].order_index) {
            return false;
        }
    }
    return true;
}

/* How long a place's own note or header is; -1: it has none. */
static int64_t own_length(const struct own_bytes *bytes) { return bytes->lsn != 0 ? (int64_t)bytes->bytes : -1; }

/* Their bytes are on the disk, in two places, and are not compared. */
static bool are_alike(const struct remembered *a, const struct remembered *b) {
    const struct own none = {.note = {.lsn = 0}}, *x = a->own != NULL ? a->own : &none,
                     *y = b->own != NULL ? b->own : &none;
    return a->delivery_count == b->delivery_count && a->not_before_us == b->not_before_us &&
           a->expires_us == b->expires_us && own_length(&x->note) == own_length(&y->note) &&
           own_length(&x->header) == own_length(&y->header);
}

/* After places_agree. */
static bool states_agree(const struct moving *v, struct message *m) {
    bool agree = true;
    for (size_t i = 0; agree && i < v->place_count; i++) {
        const struct remembered held = unplaced_state(message_place(m, v->places[i].queue_id));
        agree = v->place_states != NULL ? are_alike(&held, &v->place_states[i]) : remembers_nothing(&held);
    }
    return agree;
}

/* The notes and headers lie in the state's records from now on. Growth is counted anew when all of the chain is known. */
static int take_states(const struct replay *p, struct moving *v, struct message *m) {
    for (size_t i = 0; v->place_states != NULL && i < v->place_count; i++) {
        if (!unplaced_remember(p->t, message_place(m, v->places[i].queue_id), &v->place_states[i])) {
            return fail_memory();
        }
        v->place_states[i].own = NULL;
    }
    return LS_OK;
}

static int add_places(const struct replay *p, const struct record *r, struct message *m) {
    const struct moving *v = &p->moving;
    if (!message_prepare_places(m, (uint32_t)v->place_count)) {
        return fail_memory();
    }
    for (size_t i = 0; i < v->place_count; i++) {
        const struct place_row *row = &v->places[i];
        if (message_place(m, row->queue_id) != NULL || row->order_index > ORDER_INDEX_MAX) {
            return replay_malformed(p, r);
        }
        message_add_place(
            p->t, m,
            (struct place){.at.order_lsn = row->order_lsn, .slot = row->order_index, .queue_id = row->queue_id});
    }
    return LS_OK;
}

static uint8_t kind_of_work(const struct pending_row *row) {
    return row->kind == PENDING_ENQUEUE ? WORK_ENQUEUE : row->kind == PENDING_DEQUEUE ? WORK_DEQUEUE : WORK_NOTE;
}

static int replace_work(struct replay *p, const struct record *r, uint32_t number) {
    struct moving *v = &p->moving;
    const struct message *m = table_message(p->t, number);
    while (m->extra->work != NULL) {
        tx_drop_work(p->t, m->extra->work);
    }
    for (size_t i = 0; i < v->pending_count; i++) {
        const struct pending_row *row = &v->pending[i];
        if (row->order_index > ORDER_INDEX_MAX) {
            return replay_malformed(p, r);
        }
        struct work w = {
            .lsn = row->lsn,
            .queue_id = row->queue_id,
            .kind = kind_of_work(row),
            .order_index = row->order_index,
        };
        struct remembered state = v->pending_states != NULL ? v->pending_states[i] : (struct remembered){.own = NULL};
        if (v->pending_states != NULL) {
            v->pending_states[i].own = NULL;
        }
        int rc = replay_add_work(p, r, number, row->tx_id, &w, &state);
        if (rc != LS_OK) {
            return rc;
        }
    }
    return LS_OK;
}

/* The chunks continue the start record's content without a gap, to its end. */
static int take_chunks(const struct replay *p, const struct record *r, const struct moved_state *s,
                       struct message_extra *x) {
    const struct moving *v = &p->moving;
    uint64_t at = s->start_content_bytes;
    for (size_t i = 0; i < v->chunk_count; i++) {
        if (v->chunks[i].offset != at) {
            return replay_malformed(p, r);
        }
        at += v->chunks[i].content_bytes;
    }
    if (at != s->content_bytes) {
        return replay_malformed(p, r);
    }
    if (v->chunk_count > 0 && !message_prepare_chunks(x, (uint32_t)v->chunk_count)) {
        return fail_memory();
    }
    if (v->chunk_count > 0) {
        memcpy(x->chunks, v->chunks, v->chunk_count * sizeof *x->chunks);
    }
    x->chunk_count = (uint32_t)v->chunk_count;
    return LS_OK;
}

static int apply_state(struct replay *p, const struct record *r, const struct moved_state *s) {
    struct moving *v = &p->moving;
    uint32_t number = table_find(p->t, r->id);
    bool known = number != INDEX_NONE;
    if (!known) {
        if (r->id >= p->base_lsn) {
            return replay_inconsistent(p, r, "a relocated chain has ended before, or never began");
        }
        if (!table_prepare(p->t, 1)) {
            return fail_memory();
        }
        number = table_add(
            p->t, r->id, MESSAGE_RECOVERED | (s->staged ? MESSAGE_STAGED : 0) | (s->published ? MESSAGE_PUBLISHED : 0));
    }
    struct message *m = table_message(p->t, number);
    table_touch(p->t, m);
    struct message_extra *x = message_extra(m);
    if (x == NULL) {
        return fail_memory();
    }
    replay_drop_deleted(p, m);
    bool agree = (known ? x->content_bytes : s->content_bytes) == s->content_bytes &&
                 ((m->flags & MESSAGE_STAGED) != 0) == s->staged && (!known || places_agree(v, m));
    if (!agree) {
        return replay_inconsistent(p, r, "a relocated state is not that of its chain");
    }
    if (known && !states_agree(v, m)) {
        return replay_inconsistent(p, r, "a relocated state has other states of places than its chain");
    }
    m->record_bytes = s->start_record_bytes;
    m->content_bytes = s->start_content_bytes;
    x->content_bytes = s->content_bytes;
    x->start_lsn = s->start_lsn;
    x->last_lsn = r->lsn;
    free(x->parts);
    x->parts = s->has_parts ? v->parts : NULL;
    x->part_count = s->has_parts ? v->next_part : 0;
    x->state_bytes = s->state_bytes;
    v->parts = s->has_parts ? NULL : v->parts;
    int rc = take_chunks(p, r, s, x);
    rc = rc == LS_OK && !known ? add_places(p, r, m) : rc;
    if (v->place_states != NULL) {
        table_note_state(p->t, m);
    }
    rc = rc == LS_OK ? take_states(p, v, m) : rc;
    rc = rc == LS_OK ? replace_work(p, r, number) : rc;
    message_moved(p->t, m); /* with its places and its pending work */
    return rc;
}

/* ---- copied starts ---- */

/* Without an order key of their own, all places became visible with the message, under one order index. */
static int take_inline_places(struct replay *p, const struct message_start *m, bool ordered) {
    struct moving *v = &p->moving;
    v->places = calloc(m->queue_count, sizeof *v->places);
    if (v->places == NULL) {
        return fail_memory();
    }
    for (uint32_t i = 0; i < m->queue_count; i++) {
        uint32_t queue_id = format_queue_id(m->queues, i);
        if (queue_id != 0) {
            v->places[v->place_count++] = (struct place_row){
                .order_lsn = m->order_lsn,
                .queue_id = queue_id,
                .order_index = m->order_index + (ordered ? i : 0),
            };
        }
    }
    return LS_OK;
}

int replay_copied_start(struct replay *p, const struct record *r) {
    struct message_start m;
    struct moving *v = &p->moving;
    if (format_get_start(r, &m) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    v->copy_lsn = 0;
    if ((r->flags & FLAG_INLINE) == 0) {
        v->copy_id = r->id;
        v->copy_lsn = r->lsn;
        v->copy_record_bytes = r->length;
        v->copy_content_bytes = m.content_bytes;
        v->copy_flags = r->flags;
        return LS_OK;
    }
    forget_parts(v);
    int rc = take_inline_places(p, &m, (r->flags & FLAG_ORDERED) != 0);
    struct moved_state s = {
        .start_lsn = r->lsn,
        .content_bytes = m.content_bytes,
        .start_record_bytes = r->length,
        .start_content_bytes = m.content_bytes,
        .published = (r->flags & FLAG_PUBLISHED) != 0,
    };
    rc = rc == LS_OK ? apply_state(p, r, &s) : rc;
    forget_parts(v);
    return rc;
}

/* ---- states ---- */

/* The rows with their states; there is memory for the rows. */
static int gather_placed(struct moving *v, const struct record *r, const struct message_relocated *m) {
    if (!array_grow(&v->place_states, &v->place_state_capacity, v->place_count, m->place_count + 1u) ||
        !array_grow(&v->pending_states, &v->pending_state_capacity, v->pending_count, m->pending_count + 1u)) {
        return fail_memory();
    }
    const uint8_t *at = m->places;
    struct place_state state;
    for (uint32_t i = 0; i < m->place_count; i++) {
        v->places[v->place_count] = format_placed_place(&at, &state);
        if (!replay_read_state(r, &state, &v->place_states[v->place_count])) {
            return fail_memory();
        }
        v->place_count++;
    }
    at = m->pending;
    for (uint32_t i = 0; i < m->pending_count; i++) {
        v->pending[v->pending_count] = format_placed_pending(&at, &state);
        if (!replay_read_state(r, &state, &v->pending_states[v->pending_count])) {
            return fail_memory();
        }
        v->pending_count++;
    }
    return LS_OK;
}

static int gather_part(struct replay *p, const struct record *r, const struct message_relocated *m) {
    struct moving *v = &p->moving;
    if (!array_grow(&v->parts, &v->part_capacity, v->next_part, 1) ||
        !array_grow(&v->chunks, &v->chunk_capacity, v->chunk_count, m->chunk_count) ||
        !array_grow(&v->places, &v->place_capacity, v->place_count, m->place_count) ||
        !array_grow(&v->pending, &v->pending_capacity, v->pending_count, m->pending_count)) {
        return fail_memory();
    }
    v->parts[v->next_part++] = (struct chain_record){.lsn = r->lsn, .record_bytes = r->length};
    for (uint32_t i = 0; i < m->chunk_count; i++) {
        struct chunk_row row = format_chunk_row(m->chunks, i);
        v->chunks[v->chunk_count++] = (struct chain_record){
            .lsn = row.lsn,
            .offset = row.offset,
            .record_bytes = (uint32_t)format_chunk_bytes(row.content_bytes),
            .content_bytes = row.content_bytes,
        };
    }
    if (r->type == MESSAGE_RELOCATED_PLACED) {
        return gather_placed(v, r, m);
    }
    for (uint32_t i = 0; i < m->place_count; i++) {
        v->places[v->place_count++] = format_place_row(m->places, i);
    }
    for (uint32_t i = 0; i < m->pending_count; i++) {
        v->pending[v->pending_count++] = format_pending_row(m->pending, i);
    }
    return LS_OK;
}

/* The start record that the state names; false if it lies below the base: then this state is superseded. */
static bool find_start(const struct replay *p, const struct record *r, uint64_t start_lsn, struct moved_state *s) {
    const struct moving *v = &p->moving;
    if (v->copy_lsn == start_lsn && v->copy_id == r->id) {
        s->start_record_bytes = v->copy_record_bytes;
        s->start_content_bytes = v->copy_content_bytes;
        s->published = (v->copy_flags & FLAG_PUBLISHED) != 0;
        return true;
    }
    uint32_t number = table_find(p->t, r->id);
    const struct message *m = number != INDEX_NONE ? table_message(p->t, number) : NULL;
    if (m == NULL || message_start_lsn(m) != start_lsn) {
        return false;
    }
    s->start_record_bytes = m->record_bytes;
    s->start_content_bytes = m->content_bytes;
    s->published = (m->flags & MESSAGE_PUBLISHED) != 0;
    return true;
}

int replay_relocated(struct replay *p, const struct record *r) {
    struct message_relocated m;
    struct moving *v = &p->moving;
    bool placed = r->type == MESSAGE_RELOCATED_PLACED;
    if ((placed ? format_get_relocated_placed(r, &m) : format_get_relocated(r, &m)) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (m.part == 0) {
        forget_parts(v);
        v->id = r->id;
        v->type = r->type;
    }
    if (v->id != r->id || v->next_part != m.part) { /* its first parts lie below the base: superseded */
        p->report->orphans++;
        return LS_OK;
    }
    if (v->type != r->type) {
        return replay_inconsistent(p, r, "the parts of a relocated state are of two types");
    }
    int rc = gather_part(p, r, &m);
    if (rc != LS_OK || (r->flags & FLAG_PART) != 0) {
        return rc;
    }
    struct moved_state s = {
        .start_lsn = m.start_lsn,
        .content_bytes = m.content_bytes,
        .staged = (r->flags & FLAG_STAGED) != 0,
    };
    if (find_start(p, r, m.start_lsn, &s)) {
        s.has_parts = v->next_part > 1 || r->lsn != m.start_lsn + s.start_record_bytes;
        s.state_bytes = s.has_parts ? 0 : r->length;
        rc = apply_state(p, r, &s);
    } else if (m.start_lsn >= p->base_lsn) {
        rc = replay_inconsistent(p, r, "a relocated state names a start record that is not there");
    } else {
        p->report->orphans++;
    }
    forget_parts(v);
    return rc;
}

int replay_tx_relocated(const struct replay *p, const struct record *r) {
    struct tx_relocated state;
    if (format_get_tx_relocated(r, &state) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    struct tx *tx = table_tx(p->t, r->id);
    if (tx == NULL) {
        if (r->id >= p->base_lsn) {
            return replay_inconsistent(p, r, "a relocated transaction has ended before, or never began");
        }
        if (!table_prepare_tx(p->t, &tx)) {
            return fail_memory();
        }
        table_add_tx(p->t, tx, r->id);
    }
    if (state.state == TX_STATE_PREPARED) {
        tx_prepared(p->t, tx, state.prepare_time_us);
    } else {
        tx->state = state.state == TX_STATE_ENDED ? LS_TX_ENDED : LS_TX_ACTIVE;
    }
    tx->distributed = state.kind == TX_KIND_DISTRIBUTED;
    tx->xid = state.xid;
    tx->started = true;
    tx->started_us = state.start_time_us;
    tx->start_lsn = tx->last_lsn = r->lsn;
    return LS_OK;
}
