/*
 * Replay: from the accepted log to the table. Writes nothing.
 *
 * Records are replayed in LSN order. What belongs to a transaction pends until its outcome, which always comes later
 * in the same log; when the log ends, transactions are settled first (an outcome that is missing is a rollback,
 * unless the transaction is prepared), and only then messages: the dead go, places are sorted into their queues by
 * the LSN at which they became visible, and what prepared transactions dequeued is locked. docs/recovery.md has the
 * argument for each step.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

struct replay {
    ls_store *store;
    struct table *t;
    struct log *g;
    ls_recovery *report;
    uint64_t base_lsn;
    uint64_t time_us; /* of the batch */
};

static int inconsistent(const struct replay *p, const struct record *r, const char *what) {
    const struct segment *s = log_segment(p->g, r->lsn);
    return fail_at(LS_CORRUPT, s != NULL ? s->first_lsn : 0, r->lsn,
                   "the log contradicts itself: %s (chain %llu). Nothing was changed; keep a copy of the directory",
                   what, (unsigned long long)r->id);
}

static int malformed(const struct replay *p, const struct record *r) {
    return inconsistent(p, r, "a record's checksum is right but its contents are impossible");
}

/* Of a chain that is not there: an orphan if it began below the base. */
static int missing_chain(const struct replay *p, const struct record *r) {
    if (r->id >= p->base_lsn) {
        return inconsistent(p, r, "a record's chain has no start");
    }
    p->report->orphans++;
    return LS_OK;
}

static struct message *find(const struct replay *p, uint64_t id, uint32_t *number) {
    *number = table_find(p->t, id);
    return *number == INDEX_NONE ? NULL : table_message(p->t, *number);
}

/* ---- pending work ---- */

/* The transaction of an operation; made here if its start lies below the base, since its outcome still lies above. */
static int find_tx(const struct replay *p, const struct record *r, uint64_t tx_id, struct tx **tx) {
    *tx = table_tx(p->t, tx_id);
    if (*tx != NULL) {
        return LS_OK;
    }
    if (tx_id >= p->base_lsn) {
        return inconsistent(p, r, "an operation's transaction is not open");
    }
    if (!table_prepare_tx(p->t, tx)) {
        return fail_memory();
    }
    (*tx)->state = LS_TX_ACTIVE;
    table_add_tx(p->t, *tx, tx_id);
    return LS_OK;
}

static int add_work(const struct replay *p, const struct record *r, uint32_t number, uint64_t tx_id, uint32_t queue_id,
                    enum work_kind kind, uint32_t order_index) {
    struct tx *tx;
    int rc = find_tx(p, r, tx_id, &tx);
    if (rc != LS_OK) {
        return rc;
    }
    struct work *w = calloc(1, sizeof *w);
    if (w == NULL || message_extra(table_message(p->t, number)) == NULL) {
        free(w);
        return fail_memory();
    }
    w->kind = (uint8_t)kind;
    w->order_index = order_index;
    w->message = number;
    w->queue_id = queue_id;
    w->lsn = r->lsn;
    tx_add_work(p->t, tx, w);
    return LS_OK;
}

/* ---- message records ---- */

static int place_message(const struct replay *p, const struct record *r, uint32_t number, uint64_t tx_id,
                         uint32_t order_index, const uint8_t *queues, uint32_t count) {
    struct message *m = table_message(p->t, number);
    if (tx_id == 0 && count > 0) {
        if (!message_prepare_places(m, count)) {
            return fail_memory();
        }
        m->flags &= (uint16_t)~MESSAGE_STAGED;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t queue_id = format_queue_id(queues, i);
        if (queue_id == 0 || queue_id > QUEUE_ID_MAX) {
            return malformed(p, r);
        }
        if (tx_id != 0) {
            int rc = add_work(p, r, number, tx_id, queue_id, WORK_ENQUEUE, order_index + i);
            if (rc != LS_OK) {
                return rc;
            }
            continue;
        }
        if (message_place(m, queue_id) != NULL) {
            return inconsistent(p, r, "a message is enqueued where it is already");
        }
        message_add_place(p->t, m, (struct place){.at.order_lsn = r->lsn, .slot = 0, .queue_id = queue_id});
    }
    return LS_OK;
}

static int replay_start(const struct replay *p, const struct record *r) {
    struct message_start m;
    if (format_get_start(r, &m) != FORMAT_OK) {
        return malformed(p, r);
    }
    if (!table_prepare(p->t, 1)) {
        return fail_memory();
    }
    uint32_t number = table_add(p->t, r->id);
    struct message *made = table_message(p->t, number);
    made->record_bytes = r->length;
    made->content_bytes = m.content_bytes;
    made->flags = MESSAGE_STAGED | MESSAGE_RECOVERED | ((r->flags & FLAG_PUBLISHED) != 0 ? MESSAGE_PUBLISHED : 0);
    log_live(log_segment(p->g, r->lsn), 1, r->length);
    return place_message(p, r, number, m.tx_id, m.order_index, m.queues, m.queue_count);
}

static int replay_chunk(const struct replay *p, const struct record *r) {
    struct message_chunk c;
    uint32_t number;
    struct message *m = find(p, r->id, &number);
    if (format_get_chunk(r, &c) != FORMAT_OK) {
        return malformed(p, r);
    }
    if (m == NULL) {
        return missing_chain(p, r);
    }
    struct message_extra *x = message_extra(m);
    if (x == NULL) {
        return fail_memory();
    }
    if (c.offset != x->content_bytes) {
        return inconsistent(p, r, "a chunk does not continue its content");
    }
    if (x->chunk_count == x->chunk_capacity) {
        uint32_t capacity = x->chunk_capacity == 0 ? 4 : 2 * x->chunk_capacity;
        struct chunk_place *chunks = realloc(x->chunks, capacity * sizeof *chunks);
        if (chunks == NULL) {
            return fail_memory();
        }
        x->chunks = chunks;
        x->chunk_capacity = capacity;
    }
    x->chunks[x->chunk_count++] = (struct chunk_place){
        .lsn = r->lsn, .offset = c.offset, .record_bytes = r->length, .content_bytes = c.content_bytes};
    x->content_bytes += c.content_bytes;
    x->last_lsn = r->lsn;
    log_live(log_segment(p->g, r->lsn), 1, r->length);
    return LS_OK;
}

static int replay_enqueue(const struct replay *p, const struct record *r) {
    struct message_enqueue e;
    uint32_t number;
    struct message *m = find(p, r->id, &number);
    if (format_get_enqueue(r, &e) != FORMAT_OK) {
        return malformed(p, r);
    }
    if (m == NULL) {
        return missing_chain(p, r);
    }
    if (message_extra(m) == NULL) {
        return fail_memory();
    }
    message_appended(m, r->lsn);
    return place_message(p, r, number, e.tx_id, e.order_index, e.queues, e.queue_count);
}

/* QUEUE_DELETE ended them; the message learns it when somebody asks whether it still has a place. */
static void drop_places_of_deleted_queues(const struct replay *p, struct message *m) {
    for (uint32_t i = m->place_count; i-- > 0;) {
        uint32_t id = message_places(m)[i].queue_id;
        const struct queue *q = table_any_queue(p->t, id);
        if (q != NULL && q->deleted) {
            message_drop_place(p->t, m, id);
        }
    }
}

static void bury_if_dead(const struct replay *p, uint32_t number) {
    if (message_is_dead(table_message(p->t, number))) {
        message_die(p->store, number);
    }
}

static int replay_dequeue(const struct replay *p, const struct record *r) {
    struct message_dequeue d;
    uint32_t number;
    struct message *m = find(p, r->id, &number);
    if (format_get_dequeue(r, &d) != FORMAT_OK) {
        return malformed(p, r);
    }
    if (m == NULL) {
        return missing_chain(p, r);
    }
    if (d.tx_id == 0 && (r->flags & FLAG_DELETES) == 0 && message_extra(m) == NULL) {
        return fail_memory();
    }
    if (d.tx_id != 0) {
        int rc = add_work(p, r, number, d.tx_id, d.queue_id, WORK_DEQUEUE, 0);
        message_appended(m, r->lsn);
        return rc;
    }
    message_appended(m, r->lsn);
    if (message_place(m, d.queue_id) == NULL) {
        return inconsistent(p, r, "a message is dequeued where it is not");
    }
    message_drop_place(p->t, m, d.queue_id);
    if ((r->flags & FLAG_DELETES) != 0) {
        drop_places_of_deleted_queues(p, m);
    }
    if ((r->flags & FLAG_DELETES) != 0 && !message_is_dead(m)) {
        return inconsistent(p, r, "a message is deleted that is still needed");
    }
    bury_if_dead(p, number);
    return LS_OK;
}

/* A note of a death that replay has derived already, or the end of a staged message. */
static int replay_delete(const struct replay *p, const struct record *r) {
    uint32_t number;
    struct message *m = find(p, r->id, &number);
    if (m == NULL) {
        return LS_OK;
    }
    drop_places_of_deleted_queues(p, m);
    if (m->place_count > 0 || message_pending(m) > 0) {
        return inconsistent(p, r, "a message is deleted that is still needed");
    }
    m->flags &= (uint16_t)~MESSAGE_STAGED;
    bury_if_dead(p, number);
    return LS_OK;
}

/* ---- transaction records ---- */

static int replay_tx_start(const struct replay *p, const struct record *r) {
    struct tx *tx;
    struct xid x = {0};
    if (r->type == DTX_START && format_get_xid(r, &x) != FORMAT_OK) {
        return malformed(p, r);
    }
    if (table_tx(p->t, r->id) != NULL) {
        return inconsistent(p, r, "a transaction starts twice");
    }
    if (!table_prepare_tx(p->t, &tx)) {
        return fail_memory();
    }
    tx->state = LS_TX_ACTIVE;
    tx->started = true;
    tx->distributed = r->type == DTX_START;
    tx->xid = x;
    table_add_tx(p->t, tx, r->id);
    log_live(log_segment(p->g, r->lsn), 1, 0);
    return LS_OK;
}

static void forget(const struct replay *p, struct tx *tx) {
    if (tx->started) {
        log_release(p->g, log_segment(p->g, tx->id), 1, 0);
    }
    table_remove_tx(p->t, tx);
}

static void settle(const struct replay *p, uint32_t number) {
    struct message *m = table_message(p->t, number);
    if (message_pending(m) == 0 && m->place_count == 0 && (m->flags & MESSAGE_PUBLISHED) != 0) {
        m->flags &= (uint16_t)~MESSAGE_STAGED;
    }
    bury_if_dead(p, number);
}

static void undo(const struct replay *p, struct tx *tx) {
    while (tx->first != NULL) {
        uint32_t number = tx->first->message;
        tx_drop_work(p->t, tx->first);
        settle(p, number);
    }
}

static int apply(const struct replay *p, struct tx *tx, const struct record *r) {
    while (tx->first != NULL) {
        struct work *w = tx->first;
        uint32_t number = w->message;
        struct message *m = table_message(p->t, number);
        const struct queue *q = table_any_queue(p->t, w->queue_id);
        bool there = message_place(m, w->queue_id) != NULL;
        bool queue_gone = q != NULL && q->deleted;
        if (there == (w->kind == WORK_ENQUEUE) && !queue_gone) {
            return inconsistent(p, r, "a committed operation does not fit its queue");
        }
        if (w->kind == WORK_ENQUEUE) {
            if (!message_prepare_places(m, 1)) {
                return fail_memory();
            }
            m->flags &= (uint16_t)~MESSAGE_STAGED;
            if (!there) {
                message_add_place(
                    p->t, m, (struct place){.at.order_lsn = r->lsn, .slot = w->order_index, .queue_id = w->queue_id});
            }
        } else if (there) {
            message_drop_place(p->t, m, w->queue_id);
        }
        tx_drop_work(p->t, w);
        settle(p, number);
    }
    return LS_OK;
}

static int replay_tx_step(const struct replay *p, const struct record *r) {
    struct tx *tx = table_tx(p->t, r->id);
    if (r->type == TX_DELETE) {
        return LS_OK;
    }
    if (tx == NULL) {
        return missing_chain(p, r);
    }
    tx->last_lsn = r->lsn;
    int rc = LS_OK;
    switch (r->type) {
    case TX_END:
        tx->state = LS_TX_ENDED;
        break;
    case TX_PREPARE:
        if (format_get_xid(r, &tx->xid) != FORMAT_OK) {
            return malformed(p, r);
        }
        tx->distributed = true;
        tx->state = LS_TX_PREPARED;
        tx->prepared_us = p->time_us;
        break;
    case TX_COMMIT:
        rc = apply(p, tx, r);
        if (rc == LS_OK) {
            p->report->transactions_committed++;
            forget(p, tx);
        }
        break;
    default: /* TX_ROLLBACK */
        undo(p, tx);
        p->report->transactions_rolled_back++;
        forget(p, tx);
        break;
    }
    return rc;
}

static int replay_queue_delete(const struct replay *p, const struct record *r) {
    uint32_t id;
    if (format_get_queue_delete(r, &id) != FORMAT_OK || id == 0 || id > QUEUE_ID_MAX) {
        return malformed(p, r);
    }
    if (table_any_queue(p->t, id) == NULL && !table_add_queue(p->t, id)) {
        return fail_memory();
    }
    table_any_queue(p->t, id)->deleted = true;
    return LS_OK;
}

static int replay_record(const struct replay *p, const struct record *r) {
    if ((r->type & TYPE_SKIPPABLE) != 0) {
        return LS_OK;
    }
    switch ((enum record_type)r->type) {
    case MESSAGE_START:
        return (r->flags & FLAG_COPY) != 0 ? LS_OK : replay_start(p, r);
    case MESSAGE_CHUNK:
        return (r->flags & FLAG_COPY) != 0 ? LS_OK : replay_chunk(p, r);
    case MESSAGE_ENQUEUE:
        return replay_enqueue(p, r);
    case MESSAGE_DEQUEUE:
        return replay_dequeue(p, r);
    case MESSAGE_DELETE:
        return replay_delete(p, r);
    case DTX_START:
    case TX_START:
        return replay_tx_start(p, r);
    case TX_END:
    case TX_PREPARE:
    case TX_COMMIT:
    case TX_ROLLBACK:
    case TX_DELETE:
        return replay_tx_step(p, r);
    case QUEUE_DELETE:
        return replay_queue_delete(p, r);
    case MESSAGE_RELOCATED:
    case TX_RELOCATED:
        return fail(LS_VERSION,
                    "the log holds relocated chains, which this version does not read; use a newer logstore");
    case BATCH:
    case FILLER:
    case FOOTER:
    case CLOSE:
        return LS_OK;
    }
    return malformed(p, r);
}

/* ---- the phases ---- */

/* Every file of the log becomes a segment; those behind the base wait at the front to be recycled. */
static int take_segments(struct replay *p) {
    struct scan *s = &p->store->scan;
    for (size_t i = 0; i < s->count; i++) {
        struct scan_file *f = &s->files[i];
        bool behind = f->state == SCAN_VALID && f->first_lsn < s->base_lsn;
        if (i == s->last && s->end_lsn <= f->first_lsn) {
            f->in_log = false; /* nothing of the log is in it */
        }
        if (!f->in_log && !behind) {
            continue;
        }
        struct segment *made = segment_new(p->g, f->first_lsn, f->header.epoch);
        if (made == NULL) {
            return fail_memory();
        }
        made->prev_end_lsn = f->header.prev_end_lsn;
        made->end_lsn = behind ? f->first_lsn + s->meta.segment_size : f->end_lsn != 0 ? f->end_lsn : s->end_lsn;
        int rc = log_add_segment(p->g, made);
        if (rc != LS_OK) {
            segment_free(p->g, made);
            return rc;
        }
        p->g->base_index += behind ? 1 : 0;
        p->report->segments += behind ? 0 : 1;
    }
    p->g->named_base_lsn = s->base_lsn;
    return LS_OK;
}

static int replay_log(struct replay *p) {
    struct scan_batch b;
    int rc;
    while ((rc = scan_next(&p->store->scan, &b)) == LS_OK) {
        p->report->batches++;
        p->report->records += b.batch.count;
        p->time_us = b.batch.time_us;
        uint32_t offset = BATCH_RECORD_BYTES;
        struct record r;
        while (rc == LS_OK && scan_record(&b, &offset, &r)) {
            rc = replay_record(p, &r);
        }
        if (rc != LS_OK) {
            return rc;
        }
    }
    return rc == LS_END ? LS_OK : rc;
}

/* What has no outcome is rolled back, unless it is prepared; its record is owed, and pins its start until then. */
static int settle_transactions(struct replay *p) {
    for (uint32_t i = 0; i < p->t->tx_slots; i++) {
        struct tx *tx = p->t->txs[i];
        if (tx == NULL) {
            continue;
        }
        if (!tx->started) {
            struct record r = {.lsn = tx->first != NULL ? tx->first->lsn : p->base_lsn, .id = tx->id};
            return inconsistent(p, &r, "an operation's transaction has neither start nor outcome");
        }
        if (tx->state == LS_TX_PREPARED) {
            p->report->transactions_in_doubt++;
        } else {
            undo(p, tx);
            p->report->transactions_abandoned++;
        }
    }
    return LS_OK;
}

/* The dead and the never enqueued go; places are counted by queue. */
static int settle_messages(struct replay *p) {
    for (uint32_t number = 0; number < p->t->slab_count * SLAB_MESSAGES; number++) {
        struct message *m = table_message(p->t, number);
        if ((m->flags & MESSAGE_FREE) != 0) {
            continue;
        }
        drop_places_of_deleted_queues(p, m);
        if ((m->flags & MESSAGE_STAGED) != 0 && message_pending(m) == 0) {
            m->flags &= (uint16_t)~MESSAGE_STAGED;
            p->report->staged_dropped++;
        }
        if (message_is_dead(m)) {
            message_die(p->store, number);
            continue;
        }
        for (uint32_t i = 0; i < m->place_count; i++) {
            uint32_t id = message_places(m)[i].queue_id;
            if (table_any_queue(p->t, id) == NULL && !table_add_queue(p->t, id)) {
                return fail_memory();
            }
            table_any_queue(p->t, id)->wanted++;
        }
    }
    return LS_OK;
}

struct ordered {
    uint64_t order_lsn;
    uint32_t order_index;
    uint32_t message;
};

static int by_order(const void *a, const void *b) {
    const struct ordered *x = a, *y = b;
    int by_lsn = (x->order_lsn > y->order_lsn) - (x->order_lsn < y->order_lsn);
    return by_lsn != 0 ? by_lsn : (x->order_index > y->order_index) - (x->order_index < y->order_index);
}

static bool is_sorted(const struct ordered *list, size_t n) {
    for (size_t i = 1; i < n; i++) {
        if (by_order(&list[i - 1], &list[i]) > 0) {
            return false;
        }
    }
    return true;
}

static int build_run(const struct replay *p, struct queue *q, struct ordered *list, size_t n) {
    if (!queue_prepare(q, n)) {
        return fail_memory();
    }
    if (!is_sorted(list, n)) {
        qsort(list, n, sizeof *list, by_order);
    }
    for (size_t i = 0; i < n; i++) {
        struct place *place = message_place(table_message(p->t, list[i].message), q->id);
        *place = queue_append(q, list[i].message, list[i].order_lsn, list[i].order_index);
        place_entry(place)->state = ENTRY_RECOVERED;
    }
    return LS_OK;
}

/* One array for all queues: each has a stretch of it, as long as its count. */
static int build_runs(struct replay *p) {
    struct table *t = p->t;
    if (t->place_count == 0) {
        return LS_OK;
    }
    struct ordered *all = calloc(t->place_count, sizeof *all);
    size_t *ends = calloc(t->queue_count + 1, sizeof *ends);
    int rc = all == NULL || ends == NULL ? fail_memory() : LS_OK;
    size_t at = 0;
    for (uint32_t i = 0; rc == LS_OK && i < t->queue_count; i++) {
        ends[i] = at;
        if (t->queues[i] != NULL) {
            at += t->queues[i]->wanted;
            t->queues[i]->wanted = i; /* from here on: where its stretch is in `ends` */
        }
    }
    for (uint32_t number = 0; rc == LS_OK && number < t->slab_count * SLAB_MESSAGES; number++) {
        struct message *m = table_message(t, number);
        for (uint32_t i = 0; (m->flags & MESSAGE_FREE) == 0 && i < m->place_count; i++) {
            const struct place *place = &message_places(m)[i];
            uint32_t q = table_any_queue(t, place->queue_id)->wanted;
            all[ends[q]++] = (struct ordered){place->at.order_lsn, place->slot, number};
        }
    }
    size_t from = 0;
    for (uint32_t i = 0; i < t->queue_count; i++) {
        if (t->queues[i] != NULL) {
            t->queues[i]->wanted = 0;
            if (rc == LS_OK && ends[i] > from) {
                rc = build_run(p, t->queues[i], all + from, ends[i] - from);
            }
            from = rc == LS_OK ? ends[i] : from;
        }
    }
    free(all);
    free(ends);
    return rc;
}

/* The first dequeue of a message on a queue locks the place it found; later ones undo enqueues of their own. */
static void lock_in_doubt(const struct replay *p) {
    for (uint32_t i = 0; i < p->t->tx_slots; i++) {
        struct tx *tx = p->t->txs[i];
        for (struct work *w = tx != NULL ? tx->first : NULL; w != NULL; w = w->next) {
            struct place *place = message_place(table_message(p->t, w->message), w->queue_id);
            if (w->kind == WORK_DEQUEUE && place != NULL && (place_entry(place)->state & ENTRY_LOCKED) == 0) {
                queue_lock(place);
                w->locks = true;
            }
        }
    }
}

static void report_scan(struct replay *p) {
    const struct scan *s = &p->store->scan;
    p->report->clean = s->clean;
    p->report->direct = s->direct;
    p->report->base_lsn = s->base_lsn;
    p->report->end_lsn = s->end_lsn;
    p->report->watermark_lsn = s->watermark_lsn;
    p->report->torn_bytes = s->torn_bytes;
    p->report->bytes_read = s->bytes_read;
    p->store->was_clean = s->clean;
}

int recover_replay(ls_store *store) {
    struct replay p = {.store = store, .t = &store->table, .g = &store->log, .report = &store->recovery};
    vfs *v = store->log.v;
    uint64_t start_us = v->monotonic_us(v);
    int rc = scan_open(&store->scan, v, store->log.dir, &store->meta, true, NULL);
    p.base_lsn = store->scan.base_lsn;
    rc = rc == LS_OK ? take_segments(&p) : rc;
    rc = rc == LS_OK ? replay_log(&p) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    report_scan(&p);
    uint64_t scanned_us = v->monotonic_us(v);
    rc = settle_transactions(&p);
    uint64_t settled_us = v->monotonic_us(v);
    rc = rc == LS_OK ? settle_messages(&p) : rc;
    rc = rc == LS_OK ? build_runs(&p) : rc;
    if (rc == LS_OK) {
        lock_in_doubt(&p);
    }
    store->recovery.messages = store->table.message_count;
    store->recovery.places = store->table.place_count;
    store->recovery.scan_us = scanned_us - start_us;
    store->recovery.transactions_us = settled_us - scanned_us;
    store->recovery.messages_us = v->monotonic_us(v) - settled_us;
    return rc;
}
