/*
 * Relocation: what lives in the oldest segment is copied to the head, under its old id, so that the base can pass it.
 *
 * The segment is read and checked without the lock. A record whose chain still needs it is then moved under the lock:
 * log_reserve first (it may wait, so everything is looked up again after it), then the copy and the state that the
 * table holds at that very moment, then the table and the live counts. The old place stays counted until the batch
 * with the new one is durable, so a crash at any moment finds one or the other.
 *
 * Most messages need one record, an inline copy that is no longer than what it replaces. Others (chunks, pending work,
 * places of several order keys) need their copies and a state; a state too long for one record goes out in parts, and
 * starts over if the chain changes between two of them. One thread moves at a time, one chain after the other, which
 * is what replay relies on.
 */
#include "relocate/parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "os/io.h"
#include "read/damage.h"

enum { RECORDS_AT_ONCE = 64 };

/* ---- moving what is one record ---- */

static void append_inline(struct mover *v, struct message *m, const struct message_start *from,
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

static void append_start_and_state(struct mover *v, struct message *m, const struct message_start *from,
                                   struct chain_state *s) {
    table_touch(v->t, m);
    struct slot at = chain_slot(v, m, chain_start_flags(m));
    uint32_t bytes =
        format_put_start(&at, 0, 0, NULL, 0, from->header, from->header_bytes, from->content, from->content_bytes);
    chain_append(v, &at, MESSAGE_START, bytes);
    struct slot state = log_slot(v->g, m->id, at.lsn, s->staged ? FLAG_STAGED : 0);
    s->counts.start_lsn = at.lsn;
    uint32_t state_bytes = format_put_relocated(&state, &s->counts, s->chunks, s->places, s->pending);
    chain_append(v, &state, MESSAGE_RELOCATED, state_bytes);
    chain_switch_start(v->g, m, at.lsn, bytes);
    chain_switch_state(v->g, m, state_bytes);
    chain_switch_parts(v->g, m, NULL, 0);
    m->extra->last_lsn = state.lsn;
    message_moved(v->t, m);
}

/*
 * A message without chunks here; `from` points into the window. *moved is false if it needs the long way. After each
 * wait its form is looked at again.
 */
static int move_small(struct mover *v, uint64_t id, uint64_t start_lsn, const struct message_start *from, bool *moved) {
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
        bool in_line = chain_has_inline_form(t, m, &f);
        uint64_t inline_bytes = format_start_bytes(from->header_bytes, from->content_bytes, f.queue_count);
        in_line = in_line && inline_bytes <= g->record_bytes_max;
        uint64_t state_bytes =
            format_relocated_bytes(m->extra->chunk_count, chain_count_places(m), chain_count_pending(t, m));
        uint64_t bytes =
            in_line ? inline_bytes : format_start_bytes(from->header_bytes, from->content_bytes, 0) + state_bytes;
        if (!in_line && bytes > g->record_bytes_max) { /* no more than a record may be lost at a segment's end */
            *moved = false;
            return LS_OK;
        }
        if (!in_line && !learned) {
            learned = true;
            times_learn(v, id, start_lsn, from->enqueue_time_us);
            reserved = 0; /* others may have taken the room */
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
        if (!chain_take_state(v, m, 0, &s)) {
            return fail_memory();
        }
        append_start_and_state(v, m, from, &s);
        chain_free_state(&s);
        return LS_OK;
    }
    return LS_OK;
}

static int move_tx(struct mover *v, uint64_t id, uint64_t start_lsn) {
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
    chain_release_record(g, start_lsn, tx_start_bytes(tx));
    tx->start_lsn = tx->last_lsn = s.lsn;
    chain_live_record(g, s.lsn, tx_start_bytes(tx));
    return LS_OK;
}

/* ---- reading the segment ---- */

static int move_later(struct mover *v, uint64_t id) {
    if (v->later_count == v->later_capacity) {
        size_t capacity = v->later_capacity == 0 ? 64 : 2 * v->later_capacity;
        uint64_t *grown = realloc(v->later, capacity * sizeof *grown);
        if (grown == NULL) {
            return fail_memory();
        }
        v->later = grown;
        v->later_capacity = capacity;
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

static int move_start(struct mover *v, const struct record *r) {
    struct message_start from;
    uint32_t number = table_find(v->t, r->id);
    const struct message *m = number != INDEX_NONE ? table_message(v->t, number) : NULL;
    if (m == NULL || message_start_lsn(m) != r->lsn) {
        return LS_OK;
    }
    if (m->extra != NULL && m->extra->chunk_count > 0) {
        return move_later(v, r->id);
    }
    if (format_get_start(r, &from) != FORMAT_OK) {
        return fail_at(LS_CORRUPT, v->victim->first_lsn, r->lsn, "a record that is to be moved is damaged");
    }
    bool in_line = (r->flags & FLAG_INLINE) != 0;
    from.enqueue_time_us = in_line ? from.enqueue_time_us : from.queue_count > 0 && from.tx_id == 0 ? v->time_us : 0;
    bool moved;
    int rc = move_small(v, r->id, r->lsn, &from, &moved);
    return rc == LS_OK && !moved ? move_later(v, r->id) : rc;
}

static int move_record(struct mover *v, const struct record *r) {
    const struct table *t = v->t;
    uint32_t number;
    const struct tx *tx;
    struct batch b;
    switch ((enum record_type)r->type) {
    case BATCH:
        v->time_us = format_get_batch(r, &b) == FORMAT_OK ? b.time_us : 0;
        return LS_OK;
    case MESSAGE_START:
        return move_start(v, r);
    case MESSAGE_CHUNK:
    case MESSAGE_RELOCATED:
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

/* The records that stand whole in the window, each checked; *used says how many bytes they are. */
static int move_window(struct mover *v, uint64_t lsn, size_t bytes, size_t *used) {
    struct log *g = v->g;
    unsigned since = 0;
    *used = 0;
    while (*used < bytes) {
        struct record r;
        enum format_result why = format_get_record(v->window + *used, bytes - *used, v->victim->seed, lsn + *used, &r);
        if (why == FORMAT_SHORT) {
            return LS_OK;
        }
        if (why != FORMAT_OK) {
            return fail_at(LS_CORRUPT, v->victim->first_lsn, lsn + *used,
                           "a segment that is to be moved is damaged (%s)", format_result_text(why));
        }
        int rc = move_record(v, &r);
        if (rc != LS_OK) {
            return rc;
        }
        *used += r.length;
        if (++since == RECORDS_AT_ONCE) {
            since = 0;
            log_unlock_for_io(g); /* others get their turn */
            log_relock_after_io(g);
        }
        if (g->stopping || !g->serving) {
            return fail(LS_CLOSED, "the store is being closed");
        }
    }
    return LS_OK;
}

/* Records of it that no batch on its way lets go: what is moved counts there until its copy is durable. */
static uint64_t staying_records(const struct log *g, const struct segment *s) {
    uint64_t leaving = 0;
    for (uint32_t i = 0; i < g->buffer_count; i++) {
        leaving += s->pending[i].records;
    }
    assert(s->live_records >= leaving);
    return s->live_records - leaving;
}

static int read_and_move(struct mover *v) {
    struct log *g = v->g;
    struct segment *s = v->victim;
    uint64_t lsn = s->first_lsn + SEGMENT_HEADER_BYTES;
    for (;;) {
        spares_pace(g, lsn - s->first_lsn);
        if (lsn >= s->end_lsn || staying_records(g, s) == 0) {
            return LS_OK;
        }
        if (g->stopping || !g->serving) {
            return fail(LS_CLOSED, "the store is being closed");
        }
        size_t want = s->end_lsn - lsn < v->window_bytes ? (size_t)(s->end_lsn - lsn) : v->window_bytes;
        int file = log_segment_file(g, s);
        log_unlock_for_io(g);
        int64_t got = file < 0 ? file : io_read(g->v, file, v->window, want, lsn - s->first_lsn);
        log_relock_after_io(g);
        if (got < 0) {
            return fail_errno(LS_IO, (int)-got, "a segment cannot be read");
        }
        size_t used;
        int rc = move_window(v, lsn, (size_t)got, &used);
        if (rc != LS_OK) {
            return rc;
        }
        if (used == 0) {
            return fail_at(LS_CORRUPT, s->first_lsn, lsn, "a segment that is to be moved is cut short");
        }
        lsn += used;
    }
}

int relocate_segment(struct log *g, struct table *t, struct segment *victim) {
    struct mover v = {
        .t = t,
        .g = g,
        .victim = victim,
        .head_lsn = g->segments[g->segment_count - 1]->first_lsn,
        .window_bytes = g->batch_bytes_max,
    };
    v.window = malloc(v.window_bytes);
    if (v.window == NULL) {
        return fail_memory();
    }
    victim->readers++; /* its file stays open, and the segment where it is */
    int rc = read_and_move(&v);
    for (size_t i = 0; rc == LS_OK && i < v.later_count; i++) {
        g->mid_chain = true;
        rc = move_long(&v, v.later[i]);
        g->mid_chain = false;
        (void)pthread_cond_broadcast(&g->maker_done);
    }
    log_unpin(g, victim);
    free(v.window);
    free(v.later);
    times_free(&v);
    return rc;
}
