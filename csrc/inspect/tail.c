/* The tail explained, over a table. See tail.h. */
#include "inspect/tail.h"

#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "os/array.h"
#include "os/error.h"
#include "os/io.h"
#include "table/remembered.h"

enum { SLICE_MESSAGES = 4096, WINDOW_BYTES = 256 << 10 };

static ls_tail_segment *segment_of(const struct tail_look *k, uint64_t lsn) {
    size_t above = array_lower_bound(ls_tail_segment, k->segments, k->segment_count, first_lsn, lsn + 1);
    ls_tail_segment *s = above > 0 ? &k->segments[above - 1] : NULL;
    return s != NULL && lsn - s->first_lsn < k->tail->segment_size ? s : NULL;
}

/* Keeps the candidates with the lowest LSNs, in order. */
static void note_candidate(struct tail_look *k, uint64_t lsn, uint64_t id, int kind) {
    if (k->capacity == 0 || (k->count == k->capacity && lsn > k->lowest[k->count - 1].lsn)) {
        return;
    }
    size_t low = array_lower_bound(struct tail_candidate, k->lowest, k->count, lsn, lsn);
    size_t kept = k->count < k->capacity ? k->count : k->capacity - 1;
    memmove(k->lowest + low + 1, k->lowest + low, (kept - low) * sizeof *k->lowest);
    k->lowest[low] = (struct tail_candidate){lsn, id, kind};
    k->count = kept + 1;
}

/* The live records of one message or transaction. */
struct needs {
    uint64_t lowest_lsn;
    uint64_t bytes;
    uint64_t bytes_at_base;
};

static void add_need(struct tail_look *k, struct needs *n, uint64_t lsn, uint64_t bytes, bool moved) {
    ls_tail_segment *s = moved ? segment_of(k, lsn) : NULL;
    if (s != NULL) {
        s->moved_bytes += bytes;
    }
    n->lowest_lsn = lsn < n->lowest_lsn ? lsn : n->lowest_lsn;
    n->bytes += bytes;
    n->bytes_at_base += lsn >= k->tail->base_lsn && lsn - k->tail->base_lsn < k->tail->segment_size ? bytes : 0;
}

static struct needs needs_of_message(struct tail_look *k, const struct message *m) {
    struct needs n = {.lowest_lsn = UINT64_MAX};
    const struct message_extra *x = m->extra;
    bool moved = message_start_lsn(m) != m->id;
    add_need(k, &n, message_start_lsn(m), message_start_weight(m), moved);
    for (uint32_t i = 0; x != NULL && i < x->chunk_count; i++) {
        add_need(k, &n, x->chunks[i].lsn, x->chunks[i].record_bytes, moved);
    }
    for (uint32_t i = 0; x != NULL && i < x->part_count; i++) {
        add_need(k, &n, x->parts[i].lsn, x->parts[i].record_bytes, moved);
    }
    return n;
}

static void count_needs(struct tail_look *k, const struct needs *n, uint64_t id, int kind) {
    k->tail->needed_lsn = n->lowest_lsn < k->tail->needed_lsn ? n->lowest_lsn : k->tail->needed_lsn;
    if (n->bytes_at_base == 0) {
        return;
    }
    k->tail->holding_messages += kind == LS_HOLDER_MESSAGE ? 1 : 0;
    k->tail->holding_transactions += kind == LS_HOLDER_TRANSACTION ? 1 : 0;
    k->tail->holding_bytes += n->bytes_at_base;
    note_candidate(k, n->lowest_lsn, id, kind);
}

static void look_at_messages(struct tail_look *k) {
    const struct table *t = k->table;
    for (uint32_t number = 0; number < t->message_slots; number++) {
        const struct message *m = table_message(t, number);
        if ((m->flags & MESSAGE_FREE) == 0) {
            struct needs n = needs_of_message(k, m);
            count_needs(k, &n, m->id, LS_HOLDER_MESSAGE);
        }
        if (number % SLICE_MESSAGES == SLICE_MESSAGES - 1 && k->yield != NULL) {
            k->yield(k->context);
        }
    }
}

static void look_at_transactions(struct tail_look *k) {
    const struct table *t = k->table;
    for (uint32_t i = 0; i < t->tx_slots; i++) {
        const struct tx *tx = t->txs[i];
        if (tx != NULL) {
            struct needs n = {.lowest_lsn = UINT64_MAX};
            add_need(k, &n, tx->start_lsn, tx_start_bytes(tx), tx->start_lsn != tx->id);
            count_needs(k, &n, tx->id, LS_HOLDER_TRANSACTION);
        }
    }
}

/* ---- the holders ---- */

static const struct work *locking_work(const struct message *m, uint32_t queue_id) {
    const struct work *w = m->extra != NULL ? m->extra->work : NULL;
    while (w != NULL && (!w->locks || w->queue_id != queue_id)) {
        w = w->next_of_message;
    }
    return w;
}

void tail_copy_xid(ls_xid *into, const struct tx *tx) {
    into->format_id = tx->xid.format_id;
    into->gtrid_bytes = tx->xid.gtrid_bytes;
    into->bqual_bytes = tx->xid.bqual_bytes;
    memcpy(into->data, tx->xid.data, sizeof tx->xid.data);
}

static void add_item(ls_holder *h, ls_holder_item item, const struct tx *tx) {
    _Static_assert(sizeof h->items / sizeof *h->items == LS_HOLDER_ITEMS_MAX,
                   "LS_HOLDER_ITEMS_MAX is the length of ls_holder.items");
    if (h->item_count < LS_HOLDER_ITEMS_MAX) {
        if (tx != NULL) {
            item.tx_id = tx->id;
            item.tx_state = tx->state;
            item.distributed = tx->distributed;
            tail_copy_xid(&item.xid, tx);
        }
        h->items[h->item_count] = item;
    }
    h->item_count++;
}

static int kind_of_place(const struct entry *e) {
    enum standing standing = entry_standing(e);
    return standing == STANDING_HIDDEN    ? LS_HOLDS_HIDDEN
           : standing == STANDING_EXPIRED ? LS_HOLDS_EXPIRED
                                          : LS_HOLDS_PLACE;
}

static int kind_of_work(const struct work *w) {
    return w->kind == WORK_ENQUEUE ? LS_HOLDS_ENQUEUE : w->kind == WORK_DEQUEUE ? LS_HOLDS_DEQUEUE : LS_HOLDS_NOTE;
}

static void describe_message(struct tail_look *k, struct message *m, ls_holder *h) {
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
        const struct remembered state = place_state(p);
        const ls_holder_item item = {
            .kind = w != NULL ? LS_HOLDS_LOCKED : kind_of_place(place_entry(p)),
            .queue_id = p->queue_id,
            .position = p->at.chunk->first_position + p->slot,
            .times = {state.not_before_us, state.expires_us},
        };
        add_item(h, item, w != NULL ? w->tx : NULL);
    }
    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        if (w->kind == WORK_ENQUEUE || !w->locks) {
            add_item(h, (ls_holder_item){.kind = kind_of_work(w), .queue_id = w->queue_id}, w->tx);
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
    tail_copy_xid(&h->xid, tx);
}

/* Skips holders that have ended meanwhile. */
static size_t describe(struct tail_look *k, ls_holder *holders) {
    struct table *t = k->table;
    ls_tail_segment *counted = k->segments;
    size_t done = 0, segments = k->segment_count;
    k->segment_count = 0; /* no bytes are counted again */
    for (size_t i = 0; i < k->count; i++) {
        const struct tail_candidate *c = &k->lowest[i];
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

/* ---- times: a record's batch has the time of its write, an inline copy the time of the message's enqueue ---- */

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

/* If the file has become another segment, its batches do not validate, and the times stay unknown. */
static void fill_times(struct window *w, ls_holder *holders, size_t n) {
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

/* ---- all of it ---- */

int tail_prepare(struct tail_look *k, size_t holders_max) {
    k->capacity = holders_max;
    k->lowest = calloc(holders_max + 1, sizeof *k->lowest);
    return k->lowest == NULL ? fail_memory() : LS_OK;
}

void tail_free(struct tail_look *k) {
    free(k->segments);
    free(k->lowest);
}

size_t tail_explain(struct tail_look *k, ls_holder *holders) {
    k->tail->needed_lsn = k->tail->next_lsn;
    look_at_messages(k);
    look_at_transactions(k);
    return describe(k, holders);
}

void tail_add_times(const struct tail_look *k, ls_holder *holders, size_t n) {
    struct window w = {.v = k->v, .first_lsn = k->tail->base_lsn};
    const ls_tail_segment *s = segment_of(k, w.first_lsn);
    char name[SEGMENT_NAME_BYTES];
    w.bytes = s != NULL && n > 0 ? malloc(WINDOW_BYTES) : NULL;
    if (w.bytes == NULL) {
        return;
    }
    w.seed = format_segment_seed(k->uuid, w.first_lsn, s->epoch);
    format_segment_name(name, w.first_lsn);
    w.file = w.v->open(w.v, k->dir, name, 0);
    if (w.file >= 0) {
        fill_times(&w, holders, n);
        (void)w.v->close(w.v, w.file);
    }
    free(w.bytes);
}
