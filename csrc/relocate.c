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
#include "relocate.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "io.h"

enum {
    ATTEMPTS_MAX = 100,
    RECORDS_AT_ONCE = 64,
    COPIED_PER_STATE = 4, /* of a long state at least so many times its bytes are copied before it is written */
};

struct mover {
    ls_store *store;
    struct log *g;
    struct segment *victim;
    uint64_t head_lsn; /* where the newest segment began: what is above it has just come */
    uint8_t *window;
    size_t window_bytes;
    uint64_t time_us; /* of the batch that is read */
    uint64_t *later;  /* chains of more than one record here, moved once the segment was read */
    size_t later_count;
    size_t later_capacity;
};

/* ---- what a message's state is ---- */

struct state {
    struct message_relocated counts;
    struct chunk_row *chunks;
    struct place_row *places;
    struct pending_row *pending;
    uint32_t version;
    bool staged;
};

static void free_state(struct state *s) {
    free(s->chunks);
    free(s->places);
    free(s->pending);
    *s = (struct state){.chunks = NULL};
}

/* Places count until their queue is deleted, although the sweep may not have come to them yet; and so does work. */
static bool counts(const struct place *p) { return !p->at.chunk->queue->deleted; }

static bool work_counts(const struct table *t, const struct work *w) { return table_queue(t, w->queue_id) != NULL; }

static uint32_t count_places(struct message *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->place_count; i++) {
        n += counts(&message_places(m)[i]) ? 1 : 0;
    }
    return n;
}

static uint32_t count_pending(const struct table *t, const struct message *m) {
    uint32_t n = 0;
    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        n += work_counts(t, w) ? 1 : 0;
    }
    return n;
}

/* Its queue is deleted, and the sweep will end it. */
static bool is_going(struct message *m) {
    return (m->flags & MESSAGE_STAGED) == 0 && message_pending(m) == 0 && count_places(m) == 0;
}

static void put_places(struct message *m, struct place_row *rows) {
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        if (counts(p)) {
            const struct entry *e = place_entry(p);
            *rows++ =
                (struct place_row){.order_lsn = e->order_lsn, .queue_id = p->queue_id, .order_index = e->order_index};
        }
    }
}

/* The list has the newest first. */
static void put_pending(const struct table *t, const struct message *m, uint32_t n, struct pending_row *rows) {
    for (const struct work *w = n > 0 ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        if (!work_counts(t, w)) {
            continue;
        }
        rows[--n] = (struct pending_row){
            .tx_id = w->tx->id,
            .lsn = w->lsn,
            .queue_id = w->queue_id,
            .kind = w->kind == WORK_ENQUEUE ? PENDING_ENQUEUE : PENDING_DEQUEUE,
            .order_index = w->order_index,
        };
    }
}

/* With the chunks where they are now. False: no memory. */
static bool take_state(const struct table *t, struct message *m, uint64_t start_lsn, struct state *s) {
    const struct message_extra *x = m->extra;
    s->counts = (struct message_relocated){
        .content_bytes = message_content_bytes(m),
        .start_lsn = start_lsn,
        .chunk_count = x->chunk_count,
        .place_count = count_places(m),
        .pending_count = count_pending(t, m),
    };
    s->version = x->version;
    s->staged = (m->flags & MESSAGE_STAGED) != 0;
    s->chunks = calloc(s->counts.chunk_count + 1u, sizeof *s->chunks);
    s->places = calloc(s->counts.place_count + 1u, sizeof *s->places);
    s->pending = calloc(s->counts.pending_count + 1u, sizeof *s->pending);
    if (s->chunks == NULL || s->places == NULL || s->pending == NULL) {
        free_state(s);
        return false;
    }
    for (uint32_t i = 0; i < x->chunk_count; i++) {
        s->chunks[i] = (struct chunk_row){
            .lsn = x->chunks[i].lsn, .offset = x->chunks[i].offset, .content_bytes = x->chunks[i].content_bytes};
    }
    put_places(m, s->places);
    put_pending(t, m, s->counts.pending_count, s->pending);
    return true;
}

/* A queue's deletion alone leaves the version as it is: it ends places and work of many messages at once. */
static bool is_still(const struct table *t, struct message *m, const struct state *s) {
    return m->extra->version == s->version && count_places(m) == s->counts.place_count &&
           count_pending(t, m) == s->counts.pending_count;
}

/* ---- inline copies ---- */

struct inline_form {
    bool ordered;
    uint64_t order_lsn;
    uint32_t order_index;
    uint32_t queue_count;
};

/* Whether one record can hold it all, and how. */
static bool has_inline_form(const struct table *t, struct message *m, struct inline_form *f) {
    const struct place *places = message_places(m);
    uint32_t low = UINT32_MAX, high = 0, n = 0;
    bool same_index = true;
    *f = (struct inline_form){.order_lsn = 0};
    if (count_pending(t, m) > 0 || (m->flags & MESSAGE_STAGED) != 0 ||
        (m->extra != NULL && m->extra->chunk_count > 0)) {
        return false;
    }
    for (uint32_t i = 0; i < m->place_count; i++) {
        if (!counts(&places[i])) {
            continue;
        }
        const struct entry *e = place_entry(&places[i]);
        if (n > 0 && e->order_lsn != f->order_lsn) {
            return false;
        }
        same_index = same_index && (n == 0 || e->order_index == low);
        f->order_lsn = e->order_lsn;
        low = e->order_index < low ? e->order_index : low;
        high = e->order_index > high ? e->order_index : high;
        n++;
    }
    f->ordered = f->order_lsn != m->id;
    f->order_index = n > 0 ? low : 0;
    f->queue_count = f->ordered ? high - low + 1 : n;
    if (!f->ordered) {
        return n > 0 && same_index && low == 0;
    }
    return n > 0 && (n == 1 || !same_index) && high - low < 4 * n; /* a longer list of gaps would be no saving */
}

/* False if two places have one number, which is no commit's doing but leaves them without a form in a list. */
static bool put_inline_queues(struct message *m, const struct inline_form *f, uint32_t *queue_ids) {
    uint32_t next = 0;
    memset(queue_ids, 0, f->queue_count * sizeof *queue_ids);
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        if (counts(p)) {
            uint32_t at = f->ordered ? place_entry(p)->order_index - f->order_index : next++;
            if (queue_ids[at] != 0) {
                return false;
            }
            queue_ids[at] = p->queue_id;
        }
    }
    return true;
}

/* ---- switching a message over ---- */

static void release_record(struct log *g, uint64_t lsn, uint64_t bytes) {
    struct segment *s = log_segment(g, lsn);
    assert(s != NULL);
    log_release(g, s, 1, bytes);
}

static void live_record(struct log *g, uint64_t lsn, uint64_t bytes) {
    struct segment *s = log_segment(g, lsn);
    assert(s != NULL);
    log_live(s, 1, bytes);
}

static void switch_start(struct log *g, struct message *m, uint64_t lsn, uint32_t record_bytes) {
    release_record(g, m->extra->start_lsn, message_start_weight(m));
    live_record(g, lsn, record_bytes);
    m->extra->start_lsn = lsn;
    m->extra->state_bytes = 0;
    m->record_bytes = record_bytes;
}

/* The state that follows the start record at once lives and dies with it. 0: there is none. */
static void switch_state(struct log *g, struct message *m, uint32_t bytes) {
    struct segment *s = log_segment(g, m->extra->start_lsn);
    assert(s != NULL);
    log_live(s, 0, bytes);
    if (m->extra->state_bytes > 0) {
        log_release(g, s, 0, m->extra->state_bytes);
    }
    m->extra->state_bytes = bytes;
}

/* Takes the list over. */
static void switch_parts(struct log *g, struct message *m, struct chunk_place *parts, uint32_t count) {
    struct message_extra *x = m->extra;
    for (uint32_t i = 0; i < x->part_count; i++) {
        release_record(g, x->parts[i].lsn, x->parts[i].record_bytes);
    }
    for (uint32_t i = 0; i < count; i++) {
        live_record(g, parts[i].lsn, parts[i].record_bytes);
    }
    free(x->parts);
    x->parts = parts;
    x->part_count = count;
}

static struct slot copy_slot(const struct mover *v, const struct message *m, uint16_t flags) {
    return log_slot(v->g, m->id, message_last_lsn(m), flags);
}

static void append_counted(struct mover *v, const struct slot *s, enum record_type type, uint32_t bytes) {
    log_append(v->g, s, (uint16_t)type, bytes);
    v->g->stats.relocated_bytes += bytes;
}

static uint16_t start_flags(const struct message *m) {
    return FLAG_COPY | ((m->flags & MESSAGE_PUBLISHED) != 0 ? FLAG_PUBLISHED : 0);
}

/* The message, if its start record is still the one at this LSN. */
static struct message *still_there(const struct mover *v, uint64_t id, uint64_t start_lsn) {
    uint32_t number = table_find(&v->store->table, id);
    struct message *m = number != INDEX_NONE ? table_message(&v->store->table, number) : NULL;
    return m != NULL && message_start_lsn(m) == start_lsn && !is_going(m) ? m : NULL;
}

/* ---- moving what is one record ---- */

static void append_inline(struct mover *v, struct message *m, const struct message_start *from,
                          const struct inline_form *f, const uint32_t *queue_ids) {
    uint16_t flags = start_flags(m) | FLAG_INLINE | (f->ordered ? FLAG_ORDERED : 0);
    struct slot s = copy_slot(v, m, flags);
    uint64_t key = f->ordered ? f->order_lsn : from->enqueue_time_us;
    uint32_t bytes = format_put_start(&s, key, f->order_index, queue_ids, f->queue_count, from->header,
                                      from->header_bytes, from->content, from->content_bytes);
    append_counted(v, &s, MESSAGE_START, bytes);
    switch_start(v->g, m, s.lsn, bytes);
    switch_parts(v->g, m, NULL, 0);
    m->extra->last_lsn = s.lsn;
    message_moved(&v->store->table, m);
}

static void append_start_and_state(struct mover *v, struct message *m, const struct message_start *from,
                                   struct state *s) {
    struct slot at = copy_slot(v, m, start_flags(m));
    uint32_t bytes =
        format_put_start(&at, 0, 0, NULL, 0, from->header, from->header_bytes, from->content, from->content_bytes);
    append_counted(v, &at, MESSAGE_START, bytes);
    struct slot state = log_slot(v->g, m->id, at.lsn, s->staged ? FLAG_STAGED : 0);
    s->counts.start_lsn = at.lsn;
    uint32_t state_bytes = format_put_relocated(&state, &s->counts, s->chunks, s->places, s->pending);
    append_counted(v, &state, MESSAGE_RELOCATED, state_bytes);
    switch_start(v->g, m, at.lsn, bytes);
    switch_state(v->g, m, state_bytes);
    switch_parts(v->g, m, NULL, 0);
    m->extra->last_lsn = state.lsn;
    message_moved(&v->store->table, m);
}

/* What log_reserve can give at once. */
static bool fits_batch(const struct log *g, uint64_t bytes) {
    return bytes + BATCH_RECORD_BYTES + FOOTER_BYTES_MAX <= g->batch_bytes_max;
}

/*
 * A message without chunks here; `from` points into the window. *moved is false if it needs the long way. After each
 * wait its form is looked at again.
 */
static int move_small(struct mover *v, uint64_t id, uint64_t start_lsn, const struct message_start *from, bool *moved) {
    struct log *g = v->g;
    const struct table *t = &v->store->table;
    struct message *m;
    *moved = true;
    for (uint64_t reserved = 0; (m = still_there(v, id, start_lsn)) != NULL;) {
        struct inline_form f;
        if (message_extra(m) == NULL) {
            return fail_memory();
        }
        bool in_line = has_inline_form(t, m, &f);
        uint64_t inline_bytes = format_start_bytes(from->header_bytes, from->content_bytes, f.queue_count);
        in_line = in_line && inline_bytes <= g->record_bytes_max;
        uint64_t state_bytes = format_relocated_bytes(m->extra->chunk_count, count_places(m), count_pending(t, m));
        uint64_t bytes =
            in_line ? inline_bytes : format_start_bytes(from->header_bytes, from->content_bytes, 0) + state_bytes;
        if (!in_line && (state_bytes > g->record_bytes_max || !fits_batch(g, bytes))) {
            *moved = false;
            return LS_OK;
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
            in_line = put_inline_queues(m, &f, ids);
            if (in_line) {
                append_inline(v, m, from, &f, ids);
            }
            if (ids != few) {
                free(ids);
            }
            *moved = in_line;
            return LS_OK;
        }
        struct state s = {.staged = false};
        if (!take_state(t, m, 0, &s)) {
            return fail_memory();
        }
        append_start_and_state(v, m, from, &s);
        free_state(&s);
        return LS_OK;
    }
    return LS_OK;
}

static int move_tx(struct mover *v, uint64_t id, uint64_t start_lsn) {
    struct log *g = v->g;
    int rc = log_reserve(g, XID_RECORD_BYTES_MAX + 16, RESERVE_MOVES);
    struct tx *tx = table_tx(&v->store->table, id);
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
    append_counted(v, &s, TX_RELOCATED, format_put_tx_relocated(&s, &t));
    release_record(g, start_lsn, 0);
    live_record(g, s.lsn, 0);
    tx->start_lsn = tx->last_lsn = s.lsn;
    return LS_OK;
}

/* ---- moving a chain of several records ---- */

struct copied {
    uint32_t index; /* of the chunk */
    struct chunk_place old;
    uint64_t lsn;
};

/* Reads one record, verified and durable; the caller frees it. Lock held at both ends. */
static int read_record(struct mover *v, uint64_t lsn, uint32_t bytes, uint8_t **into, struct record *r) {
    struct log *g = v->g;
    struct segment *s = log_segment(g, lsn);
    assert(s != NULL);
    int file = log_segment_file(g, s);
    *into = malloc(bytes);
    if (*into == NULL) {
        return fail_memory();
    }
    s->readers++;
    log_unlock_for_io(g);
    int64_t got = file < 0 ? file : io_read(g->v, file, *into, bytes, lsn - s->first_lsn);
    bool sound = got == bytes && format_get_record(*into, bytes, s->seed, lsn, r) == FORMAT_OK;
    log_relock_after_io(g);
    s->readers--;
    if (sound) {
        return LS_OK;
    }
    free(*into);
    *into = NULL;
    return got < 0 ? fail_errno(LS_IO, (int)-got, "a segment cannot be read")
                   : fail_at(LS_CORRUPT, s->first_lsn, lsn, "a record that is to be moved is damaged");
}

static bool in_victim(const struct mover *v, uint64_t lsn) {
    return lsn >= v->victim->first_lsn && lsn - v->victim->first_lsn < v->g->segment_size;
}

/* A copy of the start record at the head; 0 in *lsn if the message died meanwhile. */
static int copy_start(struct mover *v, uint64_t id, uint64_t start_lsn, uint64_t *lsn, uint32_t *bytes) {
    struct message *m = still_there(v, id, start_lsn);
    uint8_t *memory = NULL;
    struct record r;
    struct message_start from;
    *lsn = 0;
    int rc = m != NULL ? read_record(v, start_lsn, m->record_bytes, &memory, &r) : LS_OK;
    if (m == NULL || rc != LS_OK) {
        return rc;
    }
    if (format_get_start(&r, &from) != FORMAT_OK || r.id != id) {
        rc = fail_at(LS_CORRUPT, v->victim->first_lsn, start_lsn, "a record that is to be moved is damaged");
    } else {
        rc = log_reserve(v->g, format_start_bytes(from.header_bytes, from.content_bytes, 0), RESERVE_MOVES);
    }
    if (rc == LS_OK && (m = still_there(v, id, start_lsn)) != NULL) {
        struct slot s = copy_slot(v, m, start_flags(m));
        *bytes = format_put_start(&s, 0, 0, NULL, 0, from.header, from.header_bytes, from.content, from.content_bytes);
        append_counted(v, &s, MESSAGE_START, *bytes);
        *lsn = s.lsn;
    }
    free(memory);
    return rc;
}

static int copy_chunk(struct mover *v, uint64_t id, uint64_t prev, struct copied *c) {
    uint8_t *memory = NULL;
    struct record r;
    struct message_chunk from;
    int rc = read_record(v, c->old.lsn, c->old.record_bytes, &memory, &r);
    if (rc == LS_OK && (format_get_chunk(&r, &from) != FORMAT_OK || r.id != id || from.offset != c->old.offset)) {
        rc = fail_at(LS_CORRUPT, v->victim->first_lsn, c->old.lsn, "a record that is to be moved is damaged");
    }
    rc = rc == LS_OK ? log_reserve(v->g, c->old.record_bytes, RESERVE_MOVES) : rc;
    if (rc == LS_OK) {
        struct slot s = log_slot(v->g, id, prev, FLAG_COPY);
        append_counted(v, &s, MESSAGE_CHUNK, format_put_chunk(&s, from.offset, from.content, from.content_bytes));
        c->lsn = s.lsn;
    }
    free(memory);
    return rc;
}

/* How many rows of a size go into what is left of a record. */
static uint32_t rows_that_fit(uint64_t *room, uint32_t rows, uint32_t row_bytes) {
    uint32_t n = *room / row_bytes < rows ? (uint32_t)(*room / row_bytes) : rows;
    *room -= (uint64_t)n * row_bytes;
    return n;
}

/*
 * The state's records, the last of which makes the copies count. LS_END: the chain has changed meanwhile. On LS_OK
 * *parts are they, nothing was waited for since the last one, and the message is as the state says.
 */
static int append_state(struct mover *v, uint64_t id, uint64_t old_start_lsn, uint64_t prev, const struct state *s,
                        struct chunk_place **parts, uint32_t *count) {
    struct log *g = v->g;
    struct message_relocated done = {.part = 0};
    bool last = false;
    *parts = NULL;
    *count = 0;
    while (!last) {
        struct message_relocated m = s->counts;
        uint64_t room = g->record_bytes_max - 80;
        m.part = *count;
        m.chunk_count = rows_that_fit(&room, s->counts.chunk_count - done.chunk_count, 24);
        m.place_count = rows_that_fit(&room, s->counts.place_count - done.place_count, 32);
        m.pending_count = rows_that_fit(&room, s->counts.pending_count - done.pending_count, 32);
        last = done.chunk_count + m.chunk_count == s->counts.chunk_count &&
               done.place_count + m.place_count == s->counts.place_count &&
               done.pending_count + m.pending_count == s->counts.pending_count;
        struct chunk_place *grown = realloc(*parts, (*count + 1) * sizeof *grown);
        if (grown == NULL) {
            return fail_memory();
        }
        *parts = grown;
        uint64_t bytes = format_relocated_bytes(m.chunk_count, m.place_count, m.pending_count);
        int rc = log_reserve(g, bytes, RESERVE_MOVES);
        if (rc != LS_OK) {
            return rc;
        }
        struct message *now = still_there(v, id, old_start_lsn);
        if (now == NULL || !is_still(&v->store->table, now, s)) {
            return LS_END;
        }
        uint16_t flags = (last ? 0 : FLAG_PART) | (last && s->staged ? FLAG_STAGED : 0);
        struct slot at = log_slot(g, id, prev, flags);
        append_counted(v, &at, MESSAGE_RELOCATED,
                       format_put_relocated(&at, &m, s->chunks + done.chunk_count, s->places + done.place_count,
                                            s->pending + done.pending_count));
        grown[(*count)++] = (struct chunk_place){.lsn = at.lsn, .record_bytes = (uint32_t)bytes};
        prev = at.lsn;
        done.chunk_count += m.chunk_count;
        done.place_count += m.place_count;
        done.pending_count += m.pending_count;
    }
    return LS_OK;
}

/* What the state's records will need, about. */
static uint64_t state_bytes_of(const struct table *t, struct message *m) {
    return format_relocated_bytes(m->extra->chunk_count, count_places(m), count_pending(t, m));
}

/*
 * The chunks that lie in the victim, copied one by one. Where the state is long, those that come after them too: it is
 * written once for all of them, and would otherwise cost more than it frees.
 */
static int copy_chunks(struct mover *v, uint64_t id, uint64_t start_lsn, uint64_t *prev, struct copied **list,
                       uint32_t *count) {
    uint32_t capacity = 0;
    uint64_t copied = 0;
    for (uint32_t i = 0;; i++) {
        struct message *m = still_there(v, id, start_lsn);
        if (m == NULL || i >= m->extra->chunk_count) {
            return LS_OK;
        }
        uint64_t lsn = m->extra->chunks[i].lsn;
        bool along = copied > 0 && lsn < v->head_lsn && lsn < v->g->durable_lsn &&
                     copied < COPIED_PER_STATE * state_bytes_of(&v->store->table, m);
        if (!in_victim(v, lsn) && !along) {
            continue;
        }
        if (*count == capacity) {
            capacity = capacity == 0 ? 16 : 2 * capacity;
            struct copied *grown = realloc(*list, capacity * sizeof *grown);
            if (grown == NULL) {
                return fail_memory();
            }
            *list = grown;
        }
        struct copied *c = &(*list)[*count];
        *c = (struct copied){.index = i, .old = m->extra->chunks[i]};
        int rc = copy_chunk(v, id, *prev, c);
        if (rc != LS_OK) {
            return rc;
        }
        *prev = c->lsn;
        copied += c->old.record_bytes;
        (*count)++;
    }
}

struct long_move {
    uint64_t old_start_lsn;
    uint64_t new_start_lsn; /* 0: the start stays */
    uint32_t new_start_bytes;
    struct copied *chunks;
    uint32_t chunk_count;
    uint64_t prev;
};

static void switch_over(struct mover *v, struct message *m, const struct long_move *l, struct chunk_place *parts,
                        uint32_t part_count) {
    struct log *g = v->g;
    uint64_t last_lsn = parts[part_count - 1].lsn;
    if (l->new_start_lsn != 0) {
        switch_start(g, m, l->new_start_lsn, l->new_start_bytes);
    }
    for (uint32_t i = 0; i < l->chunk_count; i++) {
        const struct copied *c = &l->chunks[i];
        release_record(g, c->old.lsn, c->old.record_bytes);
        live_record(g, c->lsn, c->old.record_bytes);
        m->extra->chunks[c->index].lsn = c->lsn;
    }
    bool follows = part_count == 1 && last_lsn == m->extra->start_lsn + m->record_bytes;
    switch_state(g, m, follows ? parts[0].record_bytes : 0);
    switch_parts(g, m, follows ? NULL : parts, follows ? 0 : part_count);
    if (follows) {
        free(parts);
    }
    m->extra->last_lsn = last_lsn;
    message_moved(&v->store->table, m);
}

static int append_long_state(struct mover *v, uint64_t id, const struct long_move *l) {
    int rc = LS_END;
    for (int attempt = 0; rc == LS_END && attempt < ATTEMPTS_MAX; attempt++) {
        struct message *m = still_there(v, id, l->old_start_lsn);
        struct state s = {.staged = false};
        struct chunk_place *parts = NULL;
        uint32_t count;
        if (m == NULL) {
            return LS_OK;
        }
        if (!take_state(&v->store->table, m, l->new_start_lsn != 0 ? l->new_start_lsn : l->old_start_lsn, &s)) {
            return fail_memory();
        }
        for (uint32_t i = 0; i < l->chunk_count; i++) {
            s.chunks[l->chunks[i].index].lsn = l->chunks[i].lsn;
        }
        rc = append_state(v, id, l->old_start_lsn, l->prev, &s, &parts, &count);
        if (rc == LS_OK) {
            switch_over(v, still_there(v, id, l->old_start_lsn), l, parts, count);
        } else {
            free(parts);
        }
        free_state(&s);
    }
    return rc == LS_END ? LS_OK : rc; /* it changes all the time: next time */
}

static bool has_part_in_victim(const struct mover *v, uint64_t id) {
    uint32_t number = table_find(&v->store->table, id);
    const struct message_extra *x = number != INDEX_NONE ? table_message(&v->store->table, number)->extra : NULL;
    for (uint32_t i = 0; x != NULL && i < x->part_count; i++) {
        if (in_victim(v, x->parts[i].lsn)) {
            return true;
        }
    }
    return false;
}

/* Whatever of the chain lies in the victim: its start, chunks, and the records of its state. */
static int move_long(struct mover *v, uint64_t id) {
    uint32_t number = table_find(&v->store->table, id);
    if (number == INDEX_NONE) {
        return LS_OK;
    }
    struct message *m = table_message(&v->store->table, number);
    if (message_extra(m) == NULL) {
        return fail_memory();
    }
    struct long_move l = {.old_start_lsn = message_start_lsn(m), .prev = message_last_lsn(m)};
    int rc = LS_OK;
    if (in_victim(v, l.old_start_lsn)) {
        rc = copy_start(v, id, l.old_start_lsn, &l.new_start_lsn, &l.new_start_bytes);
        if (l.new_start_lsn == 0) {
            return rc; /* it died, or the copy failed */
        }
        l.prev = l.new_start_lsn;
    }
    rc = rc == LS_OK ? copy_chunks(v, id, l.old_start_lsn, &l.prev, &l.chunks, &l.chunk_count) : rc;
    if (rc == LS_OK && (l.new_start_lsn != 0 || l.chunk_count > 0 || has_part_in_victim(v, id))) {
        rc = append_long_state(v, id, &l);
    }
    free(l.chunks);
    return rc;
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
    uint32_t number = table_find(&v->store->table, r->id);
    const struct message *m = number != INDEX_NONE ? table_message(&v->store->table, number) : NULL;
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
    const struct table *t = &v->store->table;
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

static int read_and_move(struct mover *v) {
    struct log *g = v->g;
    struct segment *s = v->victim;
    uint64_t lsn = s->first_lsn + SEGMENT_HEADER_BYTES;
    while (lsn < s->end_lsn && s->live_records > 0) {
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
    return LS_OK;
}

int relocate_segment(ls_store *store, struct segment *victim) {
    struct log *g = &store->log;
    struct mover v = {
        .store = store,
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
        rc = move_long(&v, v.later[i]);
    }
    victim->readers--;
    free(v.window);
    free(v.later);
    return rc;
}
