/*
 * Copies a checkpoint's rows from the table while other threads change it. One bit of each message says whether it was
 * copied: a message that is about to change is copied first (table_touch), the others by a walk. The walk goes along
 * the queues, so that loading the rows builds their runs in order, and then over all slots for messages on no queue.
 * New messages count as copied.
 *
 * Only rows that wait to be written take memory, and their size is limited. If memory runs out, the other rows are
 * skipped, but the walk still sets every message's bit, so that all bits are equal for the next checkpoint.
 */
#include "checkpoint/checkpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "table/remembered.h"

enum {
    SLICE_MESSAGES = 512, /* copied under one hold of the lock */
    BLOCKS_WAITING_MAX = 256,
    OPERATIONS_AT_HAND = 16,
};

struct walk {
    uint32_t queue; /* its slot in the table */
    bool on_queue;
    struct cursor cursor;
    uint64_t end_position;
    uint32_t slot;
    uint32_t slot_end;
};

/* ---- blocks ---- */

static void close_block(struct rows *r) {
    if (r->filling != NULL) {
        *r->full_end = r->filling;
        r->full_end = &r->filling->next;
        r->full_count++;
        r->filling = NULL;
    }
}

/* Memory for a row of `bytes` in one block. NULL: the checkpoint has failed. */
static uint8_t *row_room(struct rows *r, uint32_t bytes) {
    if (r->filling != NULL && r->filling->used + bytes > CHECKPOINT_BLOCK_BYTES) {
        close_block(r);
    }
    if (r->filling == NULL && !r->failed) {
        struct row_block *made = r->full_count < BLOCKS_WAITING_MAX ? malloc(sizeof *made) : NULL;
        if (made != NULL) {
            made->next = NULL;
            made->index = r->block_count++;
            made->used = CHECKPOINT_BLOCK_HEADER_BYTES;
        }
        r->filling = made;
    }
    if (r->failed || r->filling == NULL) {
        r->failed = true;
        return NULL;
    }
    uint8_t *at = r->filling->bytes + r->filling->used;
    r->filling->used += bytes;
    return at;
}

struct row_block *rows_take_full(struct rows *r) {
    struct row_block *list = r->full;
    r->full = NULL;
    r->full_end = &r->full;
    r->full_count = 0;
    return list;
}

/* ---- which work and which deletions are written ---- */

static int by_queue(const void *a, const void *b) {
    const struct deletion *x = a, *y = b;
    return (x->queue_id > y->queue_id) - (x->queue_id < y->queue_id);
}

/* The LSN of the message's newest relocated state; 0: it was never moved. */
static uint64_t moved_at(const struct message *m) {
    const struct message_extra *x = m->extra;
    if (x->part_count > 0) {
        return x->parts[x->part_count - 1].lsn;
    }
    return x->start_lsn != m->id ? x->start_lsn : 0;
}

/*
 * Whether replay would know this work. Work on a deleted queue has no effect, but replay knows it until a relocation
 * writes the chain's state without it. A deletion that is not in the list came after the checkpoint's LSN or fell below
 * the base.
 */
static bool is_told(const struct rows *r, const struct message *m, const struct work *w) {
    const struct table *t = &r->state->table;
    bool unknown = r->unsettled && table_any_queue(t, w->queue_id) == NULL; /* queues are made when a replay settles */
    if (unknown || table_queue(t, w->queue_id) != NULL) {
        return true;
    }
    const struct deletions *d = &r->state->deletions;
    for (size_t i = d->count; i-- > 0 && d->items[i].lsn >= r->header->lsn;) {
        if (d->items[i].queue_id == w->queue_id) {
            return true;
        }
    }
    const struct deletion wanted = {.queue_id = w->queue_id}, *found = NULL;
    if (r->deletion_count > 0) {
        found = bsearch(&wanted, r->deletions, r->deletion_count, sizeof wanted, by_queue);
    }
    return found != NULL && moved_at(m) < found->lsn;
}

static uint32_t count_work(const struct rows *r, const struct message *m) {
    uint32_t n = 0;
    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        n += is_told(r, m, w) ? 1 : 0;
    }
    return n;
}

/* ---- one message ---- */

static uint8_t row_flags(const struct message *m) {
    return (uint8_t)(((m->flags & MESSAGE_STAGED) != 0 ? ROW_STAGED : 0) |
                     ((m->flags & MESSAGE_PUBLISHED) != 0 ? ROW_PUBLISHED : 0) |
                     ((m->flags & MESSAGE_LOOSE) != 0 ? ROW_LOOSE : 0) |
                     ((m->flags & MESSAGE_WIDE) != 0 ? ROW_WIDE : 0));
}

/* Whether one row holds the whole message. */
static bool is_single(const struct message *m) {
    const struct message_extra *x = m->extra;
    return m->place_count == 1 && (m->flags & MESSAGE_STAGED) == 0 &&
           (x == NULL || (x->chunk_count == 0 && x->part_count == 0 && x->pending == 0 && x->state_bytes == 0 &&
                          x->work_state == 0 && x->work_rows == 0 && x->content_bytes == m->content_bytes));
}

/* The place's order key. */
static struct chain_place key_of(bool unsettled, const struct place *p) {
    const struct entry *e = unsettled ? NULL : place_entry(p);
    return e != NULL ? (struct chain_place){e->order_lsn, e->order_index, p->queue_id}
                     : (struct chain_place){unplaced_order_lsn(p), unplaced_order_index(p), p->queue_id};
}

static struct message_row describe(bool unsettled, struct message *m) {
    const struct message_extra *x = m->extra;
    struct message_row row = {
        .kind = ROW_CHAIN,
        .flags = row_flags(m),
        .id = m->id,
        .record_bytes = m->record_bytes,
        .content_bytes = m->content_bytes,
        .start_lsn = message_start_lsn(m),
        .last_lsn = message_last_lsn(m),
        .content_total = message_content_bytes(m),
        .place_count = m->place_count,
        .chunk_count = x != NULL ? x->chunk_count : 0,
        .part_count = x != NULL ? x->part_count : 0,
        .state_bytes = x != NULL ? x->state_bytes : 0,
        .growth = x != NULL ? x->growth : 0,
        .work_state = x != NULL ? x->work_state : 0,
        .work_rows = x != NULL ? x->work_rows : 0,
    };
    if (is_single(m)) {
        const struct place *p = message_places(m);
        const struct chain_place key = key_of(unsettled, p);
        row.order_lsn = key.order_lsn;
        row.order_index = key.order_index;
        row.queue_id = p->queue_id;
        bool plain = row.start_lsn == m->id && row.last_lsn == m->id && row.growth == 0 && row.order_lsn == m->id &&
                     row.order_index == 0;
        row.kind = plain ? ROW_PLAIN : ROW_SINGLE;
    }
    return row;
}

static void put_chunks_and_parts(struct rows *r, const struct message_extra *x) {
    uint8_t *at;
    for (uint32_t i = 0; x != NULL && i < x->chunk_count && (at = row_room(r, CHAIN_CHUNK_BYTES)) != NULL; i++) {
        const struct chain_record *c = &x->chunks[i];
        (void)format_put_chain_chunk(at, &(struct chain_chunk){c->lsn, c->offset, c->record_bytes, c->content_bytes});
    }
    for (uint32_t i = 0; x != NULL && i < x->part_count && (at = row_room(r, CHAIN_PART_BYTES)) != NULL; i++) {
        (void)format_put_chain_part(at, &(struct chain_part){x->parts[i].lsn, x->parts[i].record_bytes});
    }
}

/* The list begins with the newest work, the file with the oldest. */
static void put_work(struct rows *r, const struct message *m, uint32_t n) {
    const struct work *few[OPERATIONS_AT_HAND];
    const struct work **list = n <= OPERATIONS_AT_HAND ? few : calloc(n, sizeof *list);
    if (list == NULL) {
        r->failed = true;
        return;
    }
    uint32_t left = n;
    for (const struct work *w = n > 0 ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        if (is_told(r, m, w)) {
            list[--left] = w;
        }
    }
    uint8_t *at;
    for (uint32_t i = 0; i < n && (at = row_room(r, CHAIN_OPERATION_BYTES)) != NULL; i++) {
        const struct work *w = list[i];
        (void)format_put_chain_operation(at, &(struct chain_operation){
                                                 .tx_id = w->tx->id,
                                                 .lsn = w->lsn,
                                                 .queue_id = w->queue_id,
                                                 .order_index = w->order_index,
                                                 .kind = w->kind == WORK_ENQUEUE   ? PENDING_ENQUEUE
                                                         : w->kind == WORK_DEQUEUE ? PENDING_DEQUEUE
                                                                                   : PENDING_NOTE,
                                             });
    }
    if (list != few) {
        free(list);
    }
}

static uint64_t state_rows_bytes(const struct remembered *s) {
    uint64_t notes = s->own != NULL && s->own->note.lsn != 0 ? 1 : 0;
    uint64_t headers = s->own != NULL && s->own->header.lsn != 0 ? 1 : 0;
    return remembers_nothing(s) ? 0 : PLACE_STATE_ROW_BYTES + OWN_BYTES_ROW_BYTES * (notes + headers);
}

static void put_own(struct rows *r, const struct own_bytes *o) {
    uint8_t *at = o->lsn != 0 ? row_room(r, OWN_BYTES_ROW_BYTES) : NULL;
    if (at != NULL) {
        (void)format_put_own_bytes_row(at, &(struct own_bytes_row){o->lsn, o->record_bytes, o->at, o->bytes});
    }
}

/* `of` is the queue's id, or with ROW_OF_OPERATION the operation's number. */
static void put_state(struct rows *r, const struct remembered *s, uint32_t of, uint8_t bits) {
    uint8_t *at = !remembers_nothing(s) ? row_room(r, PLACE_STATE_ROW_BYTES) : NULL;
    if (at == NULL) {
        return;
    }
    bool has_note = s->own != NULL && s->own->note.lsn != 0, has_header = s->own != NULL && s->own->header.lsn != 0;
    bits = (uint8_t)(bits | (has_note ? ROW_HAS_NOTE : 0) | (has_header ? ROW_HAS_HEADER : 0));
    (void)format_put_place_state_row(at, &(struct place_state_row){.not_before_us = s->not_before_us,
                                                                   .expires_us = s->expires_us,
                                                                   .delivery_count = s->delivery_count,
                                                                   .of = of,
                                                                   .bits = bits});
    if (s->own != NULL) {
        put_own(r, &s->own->note);
        put_own(r, &s->own->header);
    }
}

static struct remembered state_of(bool unsettled, const struct place *p) {
    return unsettled ? unplaced_state(p) : place_state(p);
}

/* Of the message's places, and of its operations from the newest on. */
static void put_states(struct rows *r, struct message *m) {
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        const struct remembered s = state_of(r->unsettled, p);
        put_state(r, &s, p->queue_id, 0);
    }
    uint32_t later = 0;
    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        if (is_told(r, m, w)) {
            if (w->state != NULL) {
                put_state(r, w->state, later, ROW_OF_OPERATION);
            }
            later++;
        }
    }
}

static void put_message(struct rows *r, struct message *m) {
    struct message_row row = describe(r->unsettled, m);
    row.operation_count = row.kind == ROW_CHAIN ? count_work(r, m) : 0;
    uint8_t *at = row_room(r, format_checkpoint_row_bytes(row.kind));
    if (at == NULL) {
        return;
    }
    (void)format_put_message_row(at, &row);
    if (row.kind == ROW_CHAIN) {
        put_chunks_and_parts(r, m->extra);
        for (uint32_t i = 0; i < m->place_count && (at = row_room(r, CHAIN_PLACE_BYTES)) != NULL; i++) {
            const struct place *p = &message_places(m)[i];
            const struct chain_place key = key_of(r->unsettled, p);
            (void)format_put_chain_place(at, &key);
        }
        put_work(r, m, row.operation_count);
    }
    put_states(r, m);
    r->header->messages++;
    r->header->places += m->place_count;
    r->header->operations += row.operation_count;
}

uint64_t rows_bytes_of(struct message *m) {
    struct message_row row = describe(false, m);
    uint64_t bytes = format_checkpoint_row_bytes(row.kind);
    if (row.kind == ROW_CHAIN) {
        bytes += (uint64_t)CHAIN_CHUNK_BYTES * row.chunk_count + (uint64_t)CHAIN_PART_BYTES * row.part_count +
                 (uint64_t)CHAIN_PLACE_BYTES * row.place_count + (uint64_t)CHAIN_OPERATION_BYTES * message_pending(m);
    }
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct remembered s = place_state(&message_places(m)[i]);
        bytes += state_rows_bytes(&s);
    }
    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        bytes += w->state != NULL ? state_rows_bytes(w->state) : 0;
    }
    return bytes;
}

/* table_touch */
static void copy_message(void *context, struct message *m) {
    struct rows *r = context;
    m->flags ^= MESSAGE_COPIED;
    if (!r->failed) {
        put_message(r, m);
    }
}

/* ---- deletions and transactions, all at once ---- */

/*
 * No record tells of deletions below the base any more; they are dropped, unless places on the queue are still being
 * swept.
 */
void rows_forget_old_deletions(struct state *state, uint64_t base_lsn) {
    struct deletions *d = &state->deletions;
    size_t kept = 0;
    for (size_t i = 0; i < d->count; i++) {
        if (d->items[i].lsn >= base_lsn || table_any_queue(&state->table, d->items[i].queue_id) != NULL) {
            d->items[kept++] = d->items[i];
        }
    }
    d->count = kept;
}

static bool copy_deletions(struct rows *r) {
    const struct deletions *d = &r->state->deletions;
    if (d->count == 0) {
        return true;
    }
    r->deletions = calloc(d->count, sizeof *r->deletions);
    if (r->deletions == NULL) {
        return false;
    }
    memcpy(r->deletions, d->items, d->count * sizeof *r->deletions);
    r->deletion_count = d->count;
    qsort(r->deletions, r->deletion_count, sizeof *r->deletions, by_queue);
    for (size_t i = 0; i < r->deletion_count; i++) {
        uint8_t *at = row_room(r, DELETION_ROW_BYTES);
        if (at == NULL) {
            return false;
        }
        (void)format_put_deletion_row(
            at, &(struct deletion_row){.lsn = r->deletions[i].lsn, .queue_id = r->deletions[i].queue_id});
        r->header->deletions++;
    }
    return true;
}

static bool copy_transactions(struct rows *r) {
    const struct table *t = &r->state->table;
    for (uint32_t i = 0; i < t->tx_slots; i++) {
        const struct tx *tx = t->txs[i];
        if (tx == NULL) {
            continue;
        }
        uint8_t *at = row_room(r, TRANSACTION_ROW_BYTES);
        if (at == NULL) {
            return false;
        }
        assert(tx->started);
        struct transaction_row row = {
            .id = tx->id,
            .start_lsn = tx->start_lsn,
            .last_lsn = tx->last_lsn,
            .start_time_us = tx->started_us,
            .prepare_time_us = tx->prepared_us,
            .xid = tx->xid,
            .kind = tx->distributed ? TX_KIND_DISTRIBUTED : TX_KIND_LOCAL,
            .state = tx->state == LS_TX_PREPARED ? TX_STATE_PREPARED
                     : tx->state == LS_TX_ENDED  ? TX_STATE_ENDED
                                                 : TX_STATE_ACTIVE,
        };
        (void)format_put_transaction_row(at, &row);
        r->header->transactions++;
    }
    return true;
}

/* ---- other clients, all at once ---- */

uint8_t *rows_put_client(struct rows *r, uint32_t stream, uint32_t length) {
    uint32_t padded = (uint32_t)round_up(length, 8);
    assert(stream > STREAMS_COUNTED && length > 0 && padded <= CLIENT_BYTES_MAX);
    uint8_t *at = row_room(r, CLIENT_ROW_BYTES + padded);
    if (at == NULL) {
        return NULL;
    }
    at += format_put_client_row(at, &(struct client_row){.stream = stream, .length = length});
    memset(at + length, 0, padded - length);
    return at;
}

static bool copy_clients(struct rows *r) {
    const struct log_clients *clients = r->state->clients;
    bool fine = true;
    for (size_t i = 0; fine && i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        fine = c->calls->put_rows == NULL || c->calls->put_rows(c->context, r);
    }
    return fine;
}

/* ---- the walk ---- */

int rows_begin(struct rows *r, struct state *state, struct checkpoint_header *header, bool unsettled) {
    struct table *t = &state->table;
    assert(t->copy == NULL);
    *r = (struct rows){.state = state, .header = header, .unsettled = unsettled};
    r->full_end = &r->full;
    r->walk = calloc(1, sizeof *r->walk);
    rows_forget_old_deletions(state, header->base_lsn);
    if (r->walk == NULL || !copy_deletions(r) || !copy_transactions(r) || !copy_clients(r)) {
        rows_free(r);
        return fail_memory();
    }
    r->walk->slot_end = t->message_slots;
    t->copied ^= MESSAGE_COPIED;
    t->copy = copy_message;
    t->copy_context = r;
    return LS_OK;
}

/*
 * The next message along the queues; NULL at the end of the last queue. A message on several queues comes several
 * times.
 */
static struct message *next_on_queue(struct rows *r) {
    struct walk *w = r->walk;
    const struct table *t = &r->state->table;
    while (w->queue < t->queue_count) {
        struct queue *q = t->queues[w->queue];
        if (!w->on_queue && q != NULL && !q->deleted) {
            cursor_start(&w->cursor, q, LS_CURSOR_ALL);
            w->end_position = q->next_position;
            w->on_queue = true;
        }
        uint64_t position;
        const struct entry *e = w->on_queue && w->cursor.queue != NULL ? cursor_entry(&w->cursor, &position) : NULL;
        if (e != NULL && position < w->end_position) {
            cursor_step(&w->cursor);
            return table_message(t, e->message);
        }
        if (w->on_queue) {
            cursor_stop(&w->cursor);
        }
        w->on_queue = false;
        w->queue++;
    }
    return NULL;
}

static struct message *next_slot(struct rows *r) {
    struct walk *w = r->walk;
    return w->slot < w->slot_end ? table_message(&r->state->table, w->slot++) : NULL;
}

bool rows_copy_some(struct rows *r) {
    for (int i = 0; i < SLICE_MESSAGES; i++) {
        struct message *m = r->failed || r->unsettled ? NULL : next_on_queue(r);
        m = m != NULL ? m : next_slot(r);
        if (m == NULL) {
            return false;
        }
        if ((m->flags & MESSAGE_FREE) == 0) {
            table_touch(&r->state->table, m);
        }
    }
    return true;
}

void rows_end(struct rows *r) {
    struct table *t = &r->state->table;
    if (r->walk->on_queue) {
        cursor_stop(&r->walk->cursor);
        r->walk->on_queue = false;
    }
    t->copy = NULL;
    t->copy_context = NULL;
    close_block(r);
}

void rows_free(struct rows *r) {
    close_block(r);
    struct row_block *list = rows_take_full(r);
    while (list != NULL) {
        struct row_block *next = list->next;
        free(list);
        list = next;
    }
    free(r->deletions);
    free(r->walk);
    r->deletions = NULL;
    r->walk = NULL;
}
