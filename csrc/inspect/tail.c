/*
 * The tail explained: which chains need what lies in the oldest segment, what lives in every segment, and what moving it
 * all would come to. It looks at the table in slices, so that nobody waits for long; what changes between two slices may
 * be told as it was or as it is.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "os/io.h"
#include "store/store.h"

enum { SLICE_MESSAGES = 4096, WINDOW_BYTES = 256 << 10 };

struct candidate {
    uint64_t lsn;
    uint64_t id;
    int kind;
};

struct look {
    ls_store *store;
    ls_tail *tail;
    ls_tail_segment *segments; /* of the log, all of them */
    size_t segment_count;
    uint64_t base_end_lsn; /* of the oldest segment's span */
    struct candidate *lowest;
    size_t count;
    size_t capacity;
};

static int take_segments(struct look *k) {
    struct log *g = &k->store->log;
    size_t all = g->segment_count + g->space.spare_count;
    k->segments = calloc(all + 1, sizeof *k->segments);
    if (k->segments == NULL) {
        return fail_memory();
    }
    for (size_t i = 0; i < g->segment_count; i++) {
        const struct segment *s = g->segments[i];
        bool current = i + 1 == g->segment_count;
        k->segments[k->segment_count++] = (ls_tail_segment){
            .first_lsn = s->first_lsn,
            .epoch = s->epoch,
            .end_lsn = s->end_lsn != 0 ? s->end_lsn : g->end_lsn,
            .live_bytes = s->live_bytes,
            .live_records = s->live_records,
            .state = i < g->base_index ? LS_SEGMENT_DEAD
                     : current         ? LS_SEGMENT_CURRENT
                                       : LS_SEGMENT_NEEDED,
        };
    }
    size_t at = k->segment_count;
    for (const struct segment *s = g->space.spares; s != NULL; s = s->next_spare) {
        k->segments[at++] = (ls_tail_segment){.first_lsn = s->first_lsn, .state = LS_SEGMENT_SPARE};
    }
    uint64_t base_lsn = log_base_lsn(g);
    *k->tail = (ls_tail){
        .segment_size = g->segment_size,
        .base_lsn = base_lsn,
        .needed_lsn = g->end_lsn,
        .durable_lsn = g->durable_lsn,
        .next_lsn = g->end_lsn,
        .live_bytes = log_live_bytes(g),
        .segments = g->segment_count,
        .spares = g->space.spare_count,
        .held_segments = g->space.held_count,
        .files_wanted = g->space.files_wanted,
        .will_move = g->serving && spares_are_behind(g),
    };
    k->base_end_lsn = base_lsn + g->segment_size;
    return LS_OK;
}

static ls_tail_segment *segment_of(const struct look *k, uint64_t lsn) {
    size_t low = 0, high = k->segment_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (k->segments[middle].first_lsn <= lsn) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return high > 0 && k->segments[low].first_lsn <= lsn && lsn - k->segments[low].first_lsn < k->tail->segment_size
               ? &k->segments[low]
               : NULL;
}

/* Keeps the lowest, in order. */
static void note_candidate(struct look *k, uint64_t lsn, uint64_t id, int kind) {
    if (k->capacity == 0 || (k->count == k->capacity && lsn > k->lowest[k->count - 1].lsn)) {
        return;
    }
    size_t low = 0, high = k->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (k->lowest[middle].lsn < lsn) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    size_t kept = k->count < k->capacity ? k->count : k->capacity - 1;
    memmove(k->lowest + low + 1, k->lowest + low, (kept - low) * sizeof *k->lowest);
    k->lowest[low] = (struct candidate){lsn, id, kind};
    k->count = kept + 1;
}

/* One record that lives. */
struct needs {
    uint64_t lowest_lsn;
    uint64_t bytes;
    uint64_t bytes_at_base;
};

static void need(struct look *k, struct needs *n, uint64_t lsn, uint64_t bytes, bool moved) {
    ls_tail_segment *s = moved ? segment_of(k, lsn) : NULL;
    if (s != NULL) {
        s->moved_bytes += bytes;
    }
    n->lowest_lsn = lsn < n->lowest_lsn ? lsn : n->lowest_lsn;
    n->bytes += bytes;
    n->bytes_at_base += lsn >= k->tail->base_lsn && lsn < k->base_end_lsn ? bytes : 0;
}

static struct needs needs_of_message(struct look *k, const struct message *m) {
    struct needs n = {.lowest_lsn = UINT64_MAX};
    const struct message_extra *x = m->extra;
    bool moved = message_start_lsn(m) != m->id;
    need(k, &n, message_start_lsn(m), message_start_weight(m), moved);
    for (uint32_t i = 0; x != NULL && i < x->chunk_count; i++) {
        need(k, &n, x->chunks[i].lsn, x->chunks[i].record_bytes, moved);
    }
    for (uint32_t i = 0; x != NULL && i < x->part_count; i++) {
        need(k, &n, x->parts[i].lsn, x->parts[i].record_bytes, moved);
    }
    return n;
}

static void count_needs(struct look *k, const struct needs *n, uint64_t id, int kind) {
    k->tail->needed_lsn = n->lowest_lsn < k->tail->needed_lsn ? n->lowest_lsn : k->tail->needed_lsn;
    if (n->bytes_at_base == 0) {
        return;
    }
    k->tail->holding_messages += kind == LS_HOLDER_MESSAGE ? 1 : 0;
    k->tail->holding_transactions += kind == LS_HOLDER_TRANSACTION ? 1 : 0;
    k->tail->holding_bytes += n->bytes_at_base;
    note_candidate(k, n->lowest_lsn, id, kind);
}

static void look_at_messages(struct look *k) {
    const struct table *t = &k->store->state.table;
    for (uint32_t number = 0; number < t->message_slots; number++) {
        const struct message *m = table_message(t, number);
        if ((m->flags & MESSAGE_FREE) == 0) {
            struct needs n = needs_of_message(k, m);
            count_needs(k, &n, m->id, LS_HOLDER_MESSAGE);
        }
        if (number % SLICE_MESSAGES == SLICE_MESSAGES - 1) { /* others get their turn */
            log_let_go(&k->store->log);
            log_take_back(&k->store->log);
        }
    }
}

static void look_at_transactions(struct look *k) {
    const struct table *t = &k->store->state.table;
    for (uint32_t i = 0; i < t->tx_slots; i++) {
        const struct tx *tx = t->txs[i];
        if (tx != NULL) {
            struct needs n = {.lowest_lsn = UINT64_MAX};
            need(k, &n, tx->start_lsn, tx_start_bytes(tx), tx->start_lsn != tx->id);
            count_needs(k, &n, tx->id, LS_HOLDER_TRANSACTION);
        }
    }
}

/* ---- who they are ---- */

static const struct work *locking_work(const struct message *m, uint32_t queue_id) {
    const struct work *w = m->extra != NULL ? m->extra->work : NULL;
    while (w != NULL && (w->kind != WORK_DEQUEUE || !w->locks || w->queue_id != queue_id)) {
        w = w->next_of_message;
    }
    return w;
}

static void tell_xid(ls_xid *into, const struct tx *tx) {
    into->format_id = tx->xid.format_id;
    into->gtrid_bytes = tx->xid.gtrid_bytes;
    into->bqual_bytes = tx->xid.bqual_bytes;
    memcpy(into->data, tx->xid.data, sizeof tx->xid.data);
}

static void add_item(ls_holder *h, int kind, uint32_t queue_id, uint64_t position, const struct tx *tx) {
    _Static_assert(sizeof h->items / sizeof *h->items == LS_HOLDER_ITEMS_MAX, "as many as are told");
    if (h->item_count < LS_HOLDER_ITEMS_MAX) {
        ls_holder_item *item = &h->items[h->item_count];
        *item = (ls_holder_item){.kind = kind, .queue_id = queue_id, .position = position};
        if (tx != NULL) {
            item->tx_id = tx->id;
            item->tx_state = tx->state;
            item->distributed = tx->distributed;
            tell_xid(&item->xid, tx);
        }
    }
    h->item_count++;
}

static void describe_message(struct look *k, struct message *m, ls_holder *h) {
    struct needs n = needs_of_message(k, m);
    h->bytes = n.bytes;
    h->content_bytes = message_content_bytes(m);
    h->staged = (m->flags & MESSAGE_STAGED) != 0;
    h->moved = message_start_lsn(m) != m->id;
    h->record_bytes = m->record_bytes;
    h->start_lsn = message_start_lsn(m);
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        const struct work *w = locking_work(m, p->queue_id);
        add_item(h, w != NULL ? LS_HOLDS_LOCKED : LS_HOLDS_PLACE, p->queue_id, p->at.chunk->first_position + p->slot,
                 w != NULL ? w->tx : NULL);
    }
    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        if (w->kind == WORK_ENQUEUE || !w->locks) {
            add_item(h, w->kind == WORK_ENQUEUE ? LS_HOLDS_ENQUEUE : LS_HOLDS_DEQUEUE, w->queue_id, 0, w->tx);
        }
    }
}

static void describe_tx(const struct tx *tx, ls_holder *h) {
    h->bytes = tx_start_bytes(tx);
    h->start_lsn = tx->start_lsn;
    h->moved = tx->start_lsn != tx->id;
    h->operations = tx->work_count;
    h->state = tx->state;
    h->distributed = tx->distributed;
    h->time_us = tx->started_us;
    h->prepared_us = tx->prepared_us;
    tell_xid(&h->xid, tx);
}

/* What is gone meanwhile is left out. */
static size_t describe(struct look *k, ls_holder *holders) {
    struct table *t = &k->store->state.table;
    ls_tail_segment *counted = k->segments;
    size_t done = 0, segments = k->segment_count;
    k->segment_count = 0; /* its bytes have been counted */
    for (size_t i = 0; i < k->count; i++) {
        const struct candidate *c = &k->lowest[i];
        ls_holder *h = &holders[done];
        *h = (ls_holder){.id = c->id, .lsn = c->lsn, .kind = c->kind};
        uint32_t number = c->kind == LS_HOLDER_MESSAGE ? table_find(t, c->id) : INDEX_NONE;
        const struct tx *tx = c->kind == LS_HOLDER_TRANSACTION ? table_tx(t, c->id) : NULL;
        if (number != INDEX_NONE) {
            describe_message(k, table_message(t, number), h);
            done++;
        } else if (tx != NULL) {
            describe_tx(tx, h);
            done++;
        }
    }
    k->segments = counted;
    k->segment_count = segments;
    return done;
}

/* ---- since when: a record's batch says when it was written, and a copy when its message was enqueued ---- */

struct window {
    vfs *v;
    int file;
    uint64_t first_lsn;
    uint64_t seed;
    uint8_t *bytes;
    uint64_t lsn; /* of its first byte */
    size_t filled;
};

/* `bytes` of the segment at `lsn`, or NULL. */
static const uint8_t *bytes_at(struct window *w, uint64_t lsn, size_t bytes) {
    if (lsn < w->lsn || lsn + bytes > w->lsn + w->filled) {
        int64_t got = io_read(w->v, w->file, w->bytes, WINDOW_BYTES, lsn - w->first_lsn);
        w->lsn = lsn;
        w->filled = got > 0 ? (size_t)got : 0;
    }
    return lsn >= w->lsn && lsn + bytes <= w->lsn + w->filled ? w->bytes + (lsn - w->lsn) : NULL;
}

static uint64_t time_of_copy(struct window *w, const ls_holder *h) {
    struct record r;
    struct message_start m;
    if (h->record_bytes > WINDOW_BYTES) {
        return 0;
    }
    const uint8_t *at = bytes_at(w, h->start_lsn, h->record_bytes);
    if (at == NULL || format_get_record(at, h->record_bytes, w->seed, h->start_lsn, &r) != FORMAT_OK ||
        format_get_start(&r, &m) != FORMAT_OK || (r.flags & (FLAG_INLINE | FLAG_ORDERED)) != FLAG_INLINE) {
        return 0;
    }
    return m.enqueue_time_us;
}

/* The file may be another segment's by now: then its batches do not validate, and the times stay unknown. */
static void tell_times(struct window *w, ls_holder *holders, size_t n) {
    uint64_t lsn = w->first_lsn + SEGMENT_HEADER_BYTES;
    size_t next = 0;
    while (next < n) {
        struct record r;
        struct batch b;
        const uint8_t *at = bytes_at(w, lsn, BATCH_RECORD_BYTES);
        if (at == NULL || format_get_record(at, BATCH_RECORD_BYTES, w->seed, lsn, &r) != FORMAT_OK ||
            format_get_batch(&r, &b) != FORMAT_OK) {
            return;
        }
        for (; next < n && holders[next].lsn < lsn + b.bytes; next++) {
            ls_holder *h = &holders[next];
            if (h->kind != LS_HOLDER_MESSAGE || h->start_lsn < w->first_lsn) {
                continue;
            }
            h->time_us = h->moved && h->start_lsn == h->lsn ? time_of_copy(w, h) : 0;
            h->at_least = h->moved && h->time_us == 0;
            h->time_us = h->time_us == 0 ? b.time_us : h->time_us;
        }
        lsn += b.bytes;
    }
}

static void add_times(struct look *k, ls_holder *holders, size_t n) {
    struct log *g = &k->store->log;
    struct window w = {.v = g->v, .first_lsn = k->tail->base_lsn};
    const ls_tail_segment *s = segment_of(k, w.first_lsn);
    char name[SEGMENT_NAME_BYTES];
    w.bytes = s != NULL && n > 0 ? malloc(WINDOW_BYTES) : NULL;
    if (w.bytes == NULL) {
        return;
    }
    w.seed = format_segment_seed(g->uuid, w.first_lsn, s->epoch);
    format_segment_name(name, w.first_lsn);
    const struct inspection *looked_at = k->store->inspection;
    w.file = g->v->open(g->v, looked_at != NULL ? inspection_dir(looked_at) : g->dir, name, 0);
    if (w.file >= 0) {
        tell_times(&w, holders, n);
        (void)g->v->close(g->v, w.file);
    }
    free(w.bytes);
}

int ls_tail_read(ls_store *store, ls_tail *tail, ls_tail_segment *segments, size_t n, size_t *count, ls_holder *holders,
                 size_t holders_max, size_t *done) {
    struct look k = {.store = store, .tail = tail, .capacity = holders_max};
    k.lowest = calloc(holders_max + 1, sizeof *k.lowest);
    *done = *count = 0;
    if (k.lowest == NULL) {
        return fail_memory();
    }
    int rc = store_look(store);
    if (rc == LS_OK) {
        rc = take_segments(&k);
        if (rc == LS_OK) {
            look_at_messages(&k);
            look_at_transactions(&k);
            *done = describe(&k, holders);
        }
        rc = store_leave(store, rc, LEAVE_QUIETLY);
    }
    if (rc == LS_OK) {
        add_times(&k, holders, *done);
        *count = (size_t)(tail->segments + tail->spares);
        memcpy(segments, k.segments, (*count < n ? *count : n) * sizeof *segments);
    }
    free(k.segments);
    free(k.lowest);
    return rc;
}
