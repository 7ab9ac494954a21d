/*
 * Relocation of messages and transactions: the first client's part of it. See relocate.c for the pass over the segment.
 *
 * Most messages need one record, an inline copy that is no longer than the record it replaces. Others (chunks, pending
 * work, places of several order keys) need their copies and a state; a state that is too long for one record is written
 * in parts, again from the first part if the chain changes meanwhile. One thread moves at a time, one chain after the
 * other; replay relies on that.
 */
#include "relocate/parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "read/damage.h"

/* ---- chains of one record ---- */

static void append_inline(struct message_mover *v, struct message *m, const struct message_start *from,
                          const struct inline_form *f, const uint32_t *queue_ids) {
    table_touch(v->t, m);
    uint16_t flags = chain_start_flags(m) | FLAG_INLINE | (f->ordered ? FLAG_ORDERED : 0);
    struct slot s = chain_slot(v, m, flags);
    uint64_t key = f->ordered ? f->order_lsn : from->enqueue_time_us;
    uint32_t bytes = format_put_start(&s, key, f->order_index, queue_ids, f->queue_count, from->header,
                                      from->header_bytes, from->content, from->content_bytes);
    chain_append(v, &s, MESSAGE_START, bytes);
    chain_switch_start(v->g, m, s.lsn, bytes);
    chain_switch_parts(v->g, m, NULL, 0);
    m->extra->last_lsn = s.lsn;
    message_moved(v->t, m);
}

static void append_start_and_state(struct message_mover *v, struct message *m, const struct message_start *from,
                                   struct chain_state *s) {
    table_touch(v->t, m);
    struct slot at = chain_slot(v, m, chain_start_flags(m));
    uint32_t bytes =
        format_put_start(&at, 0, 0, NULL, 0, from->header, from->header_bytes, from->content, from->content_bytes);
    chain_append(v, &at, MESSAGE_START, bytes);
    struct slot state = log_slot(v->g, m->id, at.lsn, s->staged ? FLAG_STAGED : 0);
    s->counts.start_lsn = at.lsn;
    uint32_t state_bytes = chain_put_part(&state, s, &s->counts, &(struct message_relocated){.part = 0});
    chain_append(v, &state, chain_state_type(s), state_bytes);
    chain_switch_own(v->t, m, s);
    chain_switch_start(v->g, m, at.lsn, bytes);
    chain_switch_state(v->g, m, state_bytes);
    chain_switch_parts(v->g, m, NULL, 0);
    m->extra->last_lsn = state.lsn;
    message_moved(v->t, m);
}

/*
 * Moves a message of which the start, but no chunk, is in this segment; `from` points into the window, as the record `r`
 * does. *moved is false if move_long must do it: if places have notes or headers in other records, for one. The message can
 * change during a wait, so its form is computed again after each.
 */
static int move_small(struct message_mover *v, const struct record *r, const struct message_start *from, bool *moved) {
    uint64_t id = r->id, start_lsn = r->lsn;
    struct own_source own = {.record = r->bytes, .record_lsn = r->lsn};
    struct log *g = v->g;
    const struct table *t = v->t;
    struct message *m;
    bool learned = false;
    *moved = true;
    for (uint64_t reserved = 0; (m = chain_still_there(v, id, start_lsn)) != NULL;) {
        struct inline_form f;
        if (message_extra(m) == NULL) {
            return fail_memory();
        }
        if (!own_is_in(m, start_lsn)) {
            *moved = false;
            return LS_OK;
        }
        bool in_line = chain_has_inline_form(t, m, &f);
        uint64_t inline_bytes = format_start_bytes(from->header_bytes, from->content_bytes, f.queue_count);
        in_line = in_line && inline_bytes <= log_record_bytes_max(g);
        uint64_t state_bytes = chain_state_bytes(t, m);
        uint64_t bytes =
            in_line ? inline_bytes : format_start_bytes(from->header_bytes, from->content_bytes, 0) + state_bytes;
        if (!in_line && bytes > log_record_bytes_max(g)) { /* too much could stay unused at a segment's end */
            *moved = false;
            return LS_OK;
        }
        if (!in_line && !learned) {
            learned = true;
            times_learn(v, id, start_lsn, from->enqueue_time_us);
            reserved = 0; /* other threads may have taken the room */
            continue;
        }
        if (reserved < bytes) {
            int rc = log_reserve(g, bytes, RESERVE_MOVES);
            if (rc != LS_OK) {
                return rc;
            }
            reserved = bytes;
            continue;
        }
        if (in_line) {
            uint32_t few[16];
            uint32_t *ids = f.queue_count <= 16 ? few : calloc(f.queue_count, sizeof *ids);
            if (ids == NULL) {
                return fail_memory();
            }
            in_line = chain_put_inline_queues(m, &f, ids);
            if (in_line) {
                append_inline(v, m, from, &f, ids);
            }
            if (ids != few) {
                free(ids);
            }
            *moved = in_line;
            return LS_OK;
        }
        struct chain_state s = {.staged = false};
        if (!chain_take_state(v, m, 0, &own, &s)) {
            return fail_memory();
        }
        append_start_and_state(v, m, from, &s);
        chain_free_state(&s);
        return LS_OK;
    }
    return LS_OK;
}

static int move_tx(struct message_mover *v, uint64_t id, uint64_t start_lsn) {
    struct log *g = v->g;
    int rc = log_reserve(g, XID_RECORD_BYTES_MAX + 16, RESERVE_MOVES);
    struct tx *tx = table_tx(v->t, id);
    if (rc != LS_OK || tx == NULL || tx->start_lsn != start_lsn) {
        return rc;
    }
    struct tx_relocated t = {
        .xid = tx->xid,
        .kind = tx->distributed ? TX_KIND_DISTRIBUTED : TX_KIND_LOCAL,
        .state = tx->state == LS_TX_PREPARED ? TX_STATE_PREPARED
                 : tx->state == LS_TX_ENDED  ? TX_STATE_ENDED
                                             : TX_STATE_ACTIVE,
        .start_time_us = tx->started_us,
        .prepare_time_us = tx->prepared_us,
    };
    struct slot s = log_slot(g, id, tx->last_lsn, 0);
    chain_append(v, &s, TX_RELOCATED, format_put_tx_relocated(&s, &t));
    log_release_record(g, start_lsn, tx_start_bytes(tx));
    tx->start_lsn = tx->last_lsn = s.lsn;
    log_live_record(g, s.lsn, tx_start_bytes(tx));
    return LS_OK;
}

/* ---- by record ---- */

static int move_later(struct message_mover *v, uint64_t id) {
    if (!array_grow(&v->later, &v->later_capacity, v->later_count, 1)) {
        return fail_memory();
    }
    v->later[v->later_count++] = id;
    return LS_OK;
}

static bool is_chunk_or_part(const struct message_extra *x, uint64_t lsn) {
    for (uint32_t i = 0; i < x->part_count; i++) {
        if (x->parts[i].lsn == lsn) {
            return true;
        }
    }
    for (uint32_t i = 0; i < x->chunk_count; i++) {
        if (x->chunks[i].lsn == lsn) {
            return true;
        }
    }
    return false;
}

static int move_start(struct message_mover *v, const struct record *r) {
    struct message_start from;
    uint32_t number = table_find(v->t, r->id);
    const struct message *m = number != INDEX_NONE ? table_message(v->t, number) : NULL;
    if (m == NULL || message_start_lsn(m) != r->lsn) {
        return LS_OK;
    }
    if (m->extra != NULL && m->extra->chunk_count > 0) {
        return move_later(v, r->id);
    }
    if (format_get_either_start(r, &from) != FORMAT_OK) {
        return fail_at(LS_CORRUPT, v->victim_lsn, r->lsn, "a record that is to be moved is damaged");
    }
    bool in_line = (r->flags & FLAG_INLINE) != 0;
    from.enqueue_time_us = in_line ? from.enqueue_time_us : from.queue_count > 0 && from.tx_id == 0 ? v->time_us : 0;
    bool moved;
    int rc = move_small(v, r, &from, &moved);
    return rc == LS_OK && !moved ? move_later(v, r->id) : rc;
}

static int move_record(struct message_mover *v, const struct record *r) {
    const struct table *t = v->t;
    uint32_t number;
    const struct tx *tx;
    switch ((enum record_type)r->type) {
    case MESSAGE_START:
    case MESSAGE_START_PLACED:
        return move_start(v, r);
    case MESSAGE_CHUNK:
    case MESSAGE_RELOCATED:
    case MESSAGE_RELOCATED_PLACED:
        if (v->later_count > 0 && v->later[v->later_count - 1] == r->id) {
            return LS_OK;
        }
        number = table_find(t, r->id);
        if (number != INDEX_NONE && table_message(t, number)->extra != NULL &&
            is_chunk_or_part(table_message(t, number)->extra, r->lsn)) {
            return move_later(v, r->id);
        }
        return LS_OK;
    case DTX_START:
    case TX_START:
    case TX_RELOCATED:
        tx = table_tx(t, r->id);
        return tx != NULL && tx->start_lsn == r->lsn ? move_tx(v, r->id, r->lsn) : LS_OK;
    default:
        return LS_OK;
    }
}

int messages_relocate(struct message_mover *v, struct table *t, const struct mover *of, const struct record *r) {
    v->t = t;
    v->g = of->g;
    v->victim_lsn = of->victim.first_lsn;
    v->victim_end_lsn = of->end_lsn;
    v->head_lsn = of->head_lsn;
    v->time_us = of->time_us;
    return move_record(v, r);
}

int messages_relocate_end(struct message_mover *v, int rc) {
    for (size_t i = 0; rc == LS_OK && i < v->later_count; i++) {
        log_begin_chain(v->g);
        rc = move_long(v, v->later[i]);
        log_end_chain(v->g);
    }
    free(v->later);
    times_free(v);
    *v = (struct message_mover){.later = NULL};
    return rc;
}
