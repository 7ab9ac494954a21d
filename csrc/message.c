/* The operations on messages: stage, append, enqueue, publish, dequeue, destroy. See store.h for their order. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

/* ---- life and death ---- */

bool message_is_dead(const struct message *m) {
    return m->place_count == 0 && message_pending(m) == 0 && (m->flags & MESSAGE_STAGED) == 0;
}

void message_appended(struct message *m, uint64_t lsn) {
    if (m->extra != NULL) {
        m->extra->last_lsn = lsn;
    }
}

void message_die(ls_store *store, uint32_t number) {
    struct message *m = table_message(&store->table, number);
    struct log *g = &store->log;
    struct segment *s = log_segment(g, message_start_lsn(m));
    assert(s != NULL);
    log_release(g, s, 1, message_start_weight(m));
    for (uint32_t i = 0; m->extra != NULL && i < m->extra->chunk_count; i++) {
        s = log_segment(g, m->extra->chunks[i].lsn);
        assert(s != NULL);
        log_release(g, s, 1, m->extra->chunks[i].record_bytes);
    }
    for (uint32_t i = 0; m->extra != NULL && i < m->extra->part_count; i++) {
        s = log_segment(g, m->extra->parts[i].lsn);
        assert(s != NULL);
        log_release(g, s, 1, m->extra->parts[i].record_bytes);
    }
    table_remove(&store->table, number);
}

/* Without memory the note is left out: the death follows from the outcome all the same. */
void message_die_derived(ls_store *store, uint32_t number) {
    const struct message *m = table_message(&store->table, number);
    if (store->death_count == store->death_capacity) {
        size_t capacity = store->death_capacity == 0 ? 64 : 2 * store->death_capacity;
        struct death *deaths = realloc(store->deaths, capacity * sizeof *deaths);
        if (deaths != NULL) {
            store->deaths = deaths;
            store->death_capacity = capacity;
        }
    }
    if (store->death_count < store->death_capacity) {
        store->deaths[store->death_count++] = (struct death){m->id, message_last_lsn(m)};
    }
    message_die(store, number);
}

void store_log_deaths(ls_store *store) {
    while (store->death_count > 0 && log_reserve(&store->log, PLAIN_RECORD_BYTES, RESERVE_SHRINKS) == LS_OK) {
        if (store->death_count == 0) {
            break; /* another thread logged them while we waited */
        }
        struct death d = store->deaths[--store->death_count];
        struct slot s = log_slot(&store->log, d.id, d.last_lsn, 0);
        log_append(&store->log, &s, MESSAGE_DELETE, format_put_plain(&s, MESSAGE_DELETE));
    }
    store->death_count = 0;
}

static int unknown_message(uint64_t id) {
    return fail(LS_UNKNOWN_MESSAGE, "there is no message %llu: it was never stored, or is gone already",
                (unsigned long long)id);
}

static int unknown_queue(uint32_t id) {
    return fail(LS_UNKNOWN_QUEUE, "there is no queue with id %u; declare it first", (unsigned)id);
}

static int find_message(ls_store *store, uint64_t id, uint32_t *number, struct message **m) {
    *number = table_find(&store->table, id);
    if (*number == INDEX_NONE) {
        return unknown_message(id);
    }
    *m = table_message(&store->table, *number);
    return LS_OK;
}

/* Each is there, and named once. */
static int check_queues(ls_store *store, const uint32_t *queue_ids, size_t n) {
    int rc = LS_OK;
    size_t seen = 0;
    for (; rc == LS_OK && seen < n; seen++) {
        struct queue *q = table_queue(&store->table, queue_ids[seen]);
        if (q == NULL) {
            rc = unknown_queue(queue_ids[seen]);
        } else if (q->wanted != 0) {
            rc = fail(LS_OPTION, "queue %u is named twice", (unsigned)queue_ids[seen]);
        } else {
            q->wanted = 1;
        }
    }
    for (size_t i = 0; i < seen; i++) {
        struct queue *q = table_queue(&store->table, queue_ids[i]);
        if (q != NULL) {
            q->wanted = 0;
        }
    }
    return rc;
}

static int too_large(const char *what, uint64_t bytes, uint64_t limit) {
    return fail(LS_OPTION,
                "%s needs %llu bytes in one record, and this store's records hold %llu: a larger segment_size "
                "allows more",
                what, (unsigned long long)bytes, (unsigned long long)limit);
}

/* ---- staging ---- */

/* Appends the start record and makes the message; everything it needs is there. */
static uint32_t start_message(ls_store *store, const struct message_start *m, const uint32_t *queue_ids,
                              uint16_t flags) {
    struct log *g = &store->log;
    struct slot s = log_slot(g, 0, 0, flags);
    s.id = s.lsn;
    uint32_t bytes = format_put_start(&s, m->tx_id, m->order_index, queue_ids, m->queue_count, m->header,
                                      m->header_bytes, m->content, m->content_bytes);
    log_append(g, &s, MESSAGE_START, bytes);
    log_live(g->open->segment, 1, bytes);
    uint32_t number =
        table_add(&store->table, s.lsn, MESSAGE_STAGED | ((flags & FLAG_PUBLISHED) != 0 ? MESSAGE_PUBLISHED : 0));
    struct message *made = table_message(&store->table, number);
    made->record_bytes = bytes;
    made->content_bytes = m->content_bytes;
    return number;
}

/* How much content one start or chunk record can take beside what else it holds. */
static uint64_t content_room(const struct log *g, uint64_t other_bytes) {
    return g->record_bytes_max > other_bytes ? g->record_bytes_max - other_bytes : 0;
}

static int append_chunk(ls_store *store, uint64_t id, const uint8_t *content, uint32_t bytes) {
    struct log *g = &store->log;
    uint32_t number = 0;
    struct message *m = NULL;
    int rc = log_reserve(g, format_chunk_bytes(bytes), RESERVE_GROWS);
    if (rc == LS_OK) {
        rc = find_message(store, id, &number, &m);
    }
    if (rc != LS_OK) {
        return rc;
    }
    if ((m->flags & MESSAGE_STAGED) == 0 || message_pending(m) > 0) {
        return fail(LS_MESSAGE_IN_USE, "message %llu is enqueued; content is added before that",
                    (unsigned long long)id);
    }
    struct message_extra *x = message_extra(m);
    if (x == NULL) {
        return fail_memory();
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
    struct slot s = log_slot(g, id, x->last_lsn, 0);
    uint32_t record_bytes = format_put_chunk(&s, x->content_bytes, content, bytes);
    log_append(g, &s, MESSAGE_CHUNK, record_bytes);
    log_live(g->open->segment, 1, record_bytes);
    x->chunks[x->chunk_count++] = (struct chunk_place){
        .lsn = s.lsn, .offset = x->content_bytes, .record_bytes = record_bytes, .content_bytes = bytes};
    x->content_bytes += bytes;
    x->last_lsn = s.lsn;
    message_grows(&store->table, m, CHUNK_ROW_BYTES);
    message_changed(m);
    return LS_OK;
}

static int append_chunks(ls_store *store, uint64_t id, const uint8_t *content, uint64_t bytes) {
    uint64_t room = content_room(&store->log, 64);
    int rc = LS_OK;
    while (rc == LS_OK && bytes > 0) {
        uint32_t part = (uint32_t)(bytes < room ? bytes : room);
        rc = append_chunk(store, id, content, part);
        content += part;
        bytes -= part;
    }
    return rc;
}

/* A start record with as much content as fits, and chunks with the rest. */
static int stage_locked(ls_store *store, const uint8_t *header, size_t header_bytes, const uint8_t *content,
                        size_t content_bytes, uint16_t flags, uint64_t *id) {
    struct log *g = &store->log;
    uint64_t other = format_start_bytes(header_bytes, 0, 0) + 8;
    if (other > g->record_bytes_max || header_bytes > g->record_bytes_max) {
        return too_large("the message's header", other, g->record_bytes_max);
    }
    uint64_t room = content_room(g, other);
    struct message_start m = {
        .header_bytes = (uint32_t)header_bytes,
        .content_bytes = (uint32_t)(content_bytes < room ? content_bytes : room),
        .header = header,
        .content = content,
    };
    int rc = log_reserve(g, format_start_bytes(m.header_bytes, m.content_bytes, 0), RESERVE_GROWS);
    if (rc != LS_OK) {
        return rc;
    }
    if (!table_prepare(&store->table, 1)) {
        return fail_memory();
    }
    *id = table_message(&store->table, start_message(store, &m, NULL, flags))->id;
    rc = append_chunks(store, *id, content == NULL ? NULL : content + m.content_bytes, content_bytes - m.content_bytes);
    return rc;
}

/* Takes back what a failed publish or stage has put into the log. */
static void unstage(ls_store *store, uint64_t id) {
    uint32_t number = table_find(&store->table, id);
    if (number == INDEX_NONE || log_reserve(&store->log, PLAIN_RECORD_BYTES, RESERVE_SHRINKS) != LS_OK) {
        return; /* recovery drops it */
    }
    number = table_find(&store->table, id);
    struct message *m = number != INDEX_NONE ? table_message(&store->table, number) : NULL;
    if (m != NULL && m->place_count == 0 && message_pending(m) == 0) {
        struct slot s = log_slot(&store->log, id, message_last_lsn(m), 0);
        log_append(&store->log, &s, MESSAGE_DELETE, format_put_plain(&s, MESSAGE_DELETE));
        m->flags &= (uint16_t)~MESSAGE_STAGED;
        message_die(store, number);
    }
}

/* Runs the unstaging, keeping the failure that led to it. */
static int fail_and_unstage(ls_store *store, uint64_t id) {
    ls_error kept = *ls_last_error();
    unstage(store, id);
    return fail_again(&kept);
}

int ls_stage(ls_store *store, const uint8_t *header, size_t header_bytes, const uint8_t *content, size_t content_bytes,
             int flags, uint64_t *id) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    *id = 0;
    rc = stage_locked(store, header, header_bytes, content, content_bytes,
                      (flags & LS_PUBLISHED) != 0 ? FLAG_PUBLISHED : 0, id);
    if (rc != LS_OK && *id != 0) {
        rc = fail_and_unstage(store, *id);
    }
    return store_leave(store, rc, flags);
}

int ls_append_content(ls_store *store, uint64_t id, const uint8_t *content, size_t content_bytes, int flags) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    uint32_t number = 0;
    struct message *m = NULL;
    rc = find_message(store, id, &number, &m);
    if (rc == LS_OK) {
        rc = append_chunks(store, id, content, content_bytes);
    }
    return store_leave(store, rc, flags);
}

/* ---- enqueueing ---- */

static int check_enqueue(struct message *m, uint32_t queue_id, const struct tx *tx) {
    const struct work *w = message_last_work(m, queue_id);
    if (w != NULL && w->tx != tx) {
        return fail(LS_MESSAGE_LOCKED,
                    "message %llu on queue %u is in another transaction's work; wait for its outcome",
                    (unsigned long long)m->id, (unsigned)queue_id);
    }
    bool there = w != NULL ? w->kind == WORK_ENQUEUE : message_place(m, queue_id) != NULL;
    if (there) {
        return fail(LS_ALREADY_ENQUEUED, "message %llu is on queue %u already", (unsigned long long)m->id,
                    (unsigned)queue_id);
    }
    return LS_OK;
}

static void free_work(struct work *list) {
    while (list != NULL) {
        struct work *next = list->next;
        free(list);
        list = next;
    }
}

static struct work *make_work(size_t n) {
    struct work *list = NULL;
    for (size_t i = 0; i < n; i++) {
        struct work *w = calloc(1, sizeof *w);
        if (w == NULL) {
            free_work(list);
            return NULL;
        }
        w->next = list;
        list = w;
    }
    return list;
}

static int check_work_limit(const struct tx *tx, size_t n) {
    if (tx != NULL && (tx->work_count >= ORDER_INDEX_MAX || n > ORDER_INDEX_MAX - tx->enqueue_count)) {
        return fail(LS_TRANSACTION_LIMIT, "a transaction holds at most %u operations; commit it and begin another",
                    (unsigned)ORDER_INDEX_MAX);
    }
    return LS_OK;
}

/* Memory for places, runs or work of one message on these queues. */
static int prepare_places(ls_store *store, struct message *m, const uint32_t *queue_ids, size_t n, struct tx *tx,
                          struct work **work) {
    bool ready = true;
    *work = NULL;
    if (tx != NULL) {
        *work = make_work(n);
        ready = *work != NULL && message_extra(m) != NULL;
    } else {
        ready = message_prepare_places(m, (uint32_t)n);
        for (size_t i = 0; ready && i < n; i++) {
            ready = queue_prepare(table_queue(&store->table, queue_ids[i]), 1);
        }
    }
    if (!ready) {
        free_work(*work);
        *work = NULL;
        return fail_memory();
    }
    return LS_OK;
}

/* The record at `lsn` puts the message on these queues, now or at the commit. */
static void take_places(ls_store *store, uint32_t number, const uint32_t *queue_ids, size_t n, struct tx *tx,
                        struct work *work, uint64_t lsn) {
    struct message *m = table_message(&store->table, number);
    if (tx == NULL && lsn != m->id) {
        message_grows_places(&store->table, m, (uint32_t)n);
    }
    for (size_t i = 0; i < n; i++) {
        if (tx == NULL) {
            struct queue *q = table_queue(&store->table, queue_ids[i]);
            message_add_place(&store->table, m, queue_append(q, number, lsn, 0));
        } else {
            struct work *w = work;
            work = work->next;
            w->kind = WORK_ENQUEUE;
            w->order_index = tx->enqueue_count++;
            w->message = number;
            w->queue_id = queue_ids[i];
            w->lsn = lsn;
            tx_add_work(&store->table, tx, w);
        }
    }
    if (tx == NULL) {
        m->flags &= (uint16_t)~MESSAGE_STAGED;
    }
}

static int enqueue_locked(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, ls_tx *handle,
                          uint64_t *lsn) {
    struct log *g = &store->log;
    uint32_t number = 0;
    struct message *m = NULL;
    struct tx *tx;
    struct work *work;
    uint64_t bytes = format_enqueue_bytes(n);
    if (n == 0 || bytes > g->record_bytes_max) {
        return n == 0 ? fail(LS_OPTION, "no queue is named")
                      : too_large("the list of queues", bytes, g->record_bytes_max);
    }
    int rc = log_reserve(g, bytes, RESERVE_GROWS);
    rc = rc == LS_OK ? tx_check_work(store, handle, &tx) : rc;
    rc = rc == LS_OK ? check_queues(store, queue_ids, n) : rc;
    rc = rc == LS_OK ? find_message(store, id, &number, &m) : rc;
    rc = rc == LS_OK ? check_work_limit(tx, n) : rc;
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        rc = check_enqueue(m, queue_ids[i], tx);
    }
    if (rc == LS_OK && m->extra == NULL && message_extra(m) == NULL) {
        rc = fail_memory(); /* the chain's back-link */
    }
    rc = rc == LS_OK ? prepare_places(store, m, queue_ids, n, tx, &work) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    struct slot s = log_slot(g, id, message_last_lsn(m), 0);
    log_append(
        g, &s, MESSAGE_ENQUEUE,
        format_put_enqueue(&s, tx != NULL ? tx->id : 0, tx != NULL ? tx->enqueue_count : 0, queue_ids, (uint32_t)n));
    message_appended(m, s.lsn);
    take_places(store, number, queue_ids, n, tx, work, s.lsn);
    *lsn = s.lsn;
    return LS_OK;
}

int ls_enqueue(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, ls_tx *tx, int flags, uint64_t *lsn) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    *lsn = 0;
    rc = enqueue_locked(store, id, queue_ids, n, tx, lsn);
    return store_leave(store, rc, tx != NULL ? LEAVE_QUIETLY : flags);
}

/* ---- publishing ---- */

/* Content and places in one record. */
static int publish_inline(ls_store *store, const struct message_start *given, const uint32_t *queue_ids, ls_tx *handle,
                          uint64_t *id) {
    struct log *g = &store->log;
    struct message_start m = *given;
    struct message none = {.id = 0};
    struct work *work = NULL;
    struct tx *tx;
    int rc = log_reserve(g, format_start_bytes(m.header_bytes, m.content_bytes, m.queue_count), RESERVE_GROWS);
    rc = rc == LS_OK ? tx_check_work(store, handle, &tx) : rc;
    rc = rc == LS_OK ? check_queues(store, queue_ids, m.queue_count) : rc;
    rc = rc == LS_OK ? check_work_limit(tx, m.queue_count) : rc;
    if (rc == LS_OK && !table_prepare(&store->table, 1)) {
        rc = fail_memory();
    }
    rc = rc == LS_OK ? prepare_places(store, &none, queue_ids, m.queue_count, tx, &work) : rc;
    if (rc != LS_OK) {
        free(none.extra);
        if (none.many != 0) {
            free(none.places.list.many);
        }
        return rc;
    }
    m.tx_id = tx != NULL ? tx->id : 0;
    m.order_index = tx != NULL ? tx->enqueue_count : 0;
    uint32_t number = start_message(store, &m, queue_ids, FLAG_PUBLISHED);
    struct message *made = table_message(&store->table, number);
    made->places = none.places;
    made->many = none.many;
    made->extra = none.extra;
    if (made->extra != NULL) {
        made->extra->last_lsn = made->extra->start_lsn = made->id;
        made->extra->content_bytes = m.content_bytes;
    }
    *id = made->id;
    take_places(store, number, queue_ids, m.queue_count, tx, work, made->id);
    return LS_OK;
}

static int publish_locked(ls_store *store, const uint32_t *queue_ids, size_t n, const uint8_t *header,
                          size_t header_bytes, const uint8_t *content, size_t content_bytes, ls_tx *handle,
                          uint64_t *id) {
    uint64_t limit = store->log.record_bytes_max;
    if (n == 0 || n > limit) {
        return n == 0 ? fail(LS_OPTION, "no queue is named") : too_large("the list of queues", 4 * n, limit);
    }
    if (header_bytes <= limit && content_bytes <= limit &&
        format_start_bytes(header_bytes, content_bytes, n) <= limit) {
        struct message_start m = {
            .header_bytes = (uint32_t)header_bytes,
            .content_bytes = (uint32_t)content_bytes,
            .queue_count = (uint32_t)n,
            .header = header,
            .content = content,
        };
        return publish_inline(store, &m, queue_ids, handle, id);
    }
    struct tx *tx;
    uint64_t lsn;
    int rc = tx_check_work(store, handle, &tx);
    rc = rc == LS_OK ? check_queues(store, queue_ids, n) : rc;
    rc = rc == LS_OK ? stage_locked(store, header, header_bytes, content, content_bytes, FLAG_PUBLISHED, id) : rc;
    rc = rc == LS_OK ? enqueue_locked(store, *id, queue_ids, n, handle, &lsn) : rc;
    if (rc != LS_OK && *id != 0) {
        rc = fail_and_unstage(store, *id);
        *id = 0;
    }
    return rc;
}

int ls_publish(ls_store *store, const uint32_t *queue_ids, size_t n, const uint8_t *header, size_t header_bytes,
               const uint8_t *content, size_t content_bytes, ls_tx *tx, int flags, uint64_t *id) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    *id = 0;
    rc = publish_locked(store, queue_ids, n, header, header_bytes, content, content_bytes, tx, id);
    return store_leave(store, rc, tx != NULL ? LEAVE_QUIETLY : flags);
}

int ls_publish_many(ls_store *store, uint32_t queue_id, size_t n, const uint8_t *content, const uint64_t *sizes,
                    const uint8_t *headers, const uint64_t *header_sizes, ls_tx *tx, int flags, uint64_t *ids,
                    size_t *done) {
    *done = 0;
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    while (rc == LS_OK && *done < n) {
        size_t i = *done;
        size_t header_bytes = header_sizes != NULL ? (size_t)header_sizes[i] : 0;
        ids[i] = 0;
        rc = publish_locked(store, &queue_id, 1, headers, header_bytes, content, (size_t)sizes[i], tx, &ids[i]);
        if (rc == LS_OK) {
            headers = headers != NULL ? headers + header_bytes : NULL;
            content += sizes[i];
            (*done)++;
        }
    }
    return store_leave(store, rc, tx != NULL ? LEAVE_QUIETLY : flags);
}

/* ---- dequeueing ---- */

static int check_dequeue(struct message *m, uint32_t queue_id, const struct tx *tx, struct place **place) {
    const struct work *w = message_last_work(m, queue_id);
    *place = message_place(m, queue_id);
    if (w != NULL && w->tx != tx && (*place != NULL || w->kind == WORK_DEQUEUE)) {
        return fail(LS_MESSAGE_LOCKED, "message %llu on queue %u is locked by a transaction; wait for its outcome",
                    (unsigned long long)m->id, (unsigned)queue_id);
    }
    bool there = w != NULL && w->tx == tx ? w->kind == WORK_ENQUEUE : *place != NULL;
    if (!there) {
        return fail(LS_NOT_ENQUEUED, "message %llu is not on queue %u", (unsigned long long)m->id, (unsigned)queue_id);
    }
    return LS_OK;
}

static int check_reason(int reason) {
    if (reason < 0 || reason > DEQUEUE_REASON_MAX) {
        return fail(LS_OPTION, "a dequeue's reason is 0 to %d, not %d", DEQUEUE_REASON_MAX, reason);
    }
    return LS_OK;
}

static int dequeue_in_tx(ls_store *store, uint32_t number, struct place *place, struct tx *tx,
                         struct message_dequeue *d, uint64_t *lsn) {
    struct log *g = &store->log;
    struct message *m = table_message(&store->table, number);
    const struct work *last = message_last_work(m, d->queue_id);
    int rc = check_work_limit(tx, 1);
    if (rc != LS_OK) {
        return rc;
    }
    struct work *w = make_work(1);
    if (w == NULL || message_extra(m) == NULL) {
        free_work(w);
        return fail_memory();
    }
    d->tx_id = tx->id;
    struct slot s = log_slot(g, m->id, message_last_lsn(m), 0);
    log_append(g, &s, MESSAGE_DEQUEUE, format_put_dequeue(&s, d));
    message_appended(m, s.lsn);
    w->kind = WORK_DEQUEUE;
    w->message = number;
    w->queue_id = d->queue_id;
    w->lsn = s.lsn;
    w->locks = place != NULL && last == NULL;
    if (w->locks) {
        queue_lock(place);
    }
    tx_add_work(&store->table, tx, w);
    *lsn = s.lsn;
    return LS_OK;
}

static int dequeue_locked(ls_store *store, uint64_t id, struct message_dequeue d, ls_tx *handle, uint64_t *lsn) {
    struct log *g = &store->log;
    uint32_t number = 0;
    struct message *m = NULL;
    struct tx *tx;
    struct place *place = NULL;
    int rc = log_reserve(g, DEQUEUE_RECORD_BYTES, handle != NULL ? RESERVE_GROWS : RESERVE_SHRINKS);
    rc = rc == LS_OK ? tx_check_work(store, handle, &tx) : rc;
    rc = rc == LS_OK ? check_queues(store, &d.queue_id, 1) : rc;
    rc = rc == LS_OK ? find_message(store, id, &number, &m) : rc;
    rc = rc == LS_OK ? check_dequeue(m, d.queue_id, tx, &place) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    if (tx != NULL) {
        return dequeue_in_tx(store, number, place, tx, &d, lsn);
    }
    bool last = m->place_count == 1 && message_pending(m) == 0;
    if (!last && message_extra(m) == NULL) {
        return fail_memory(); /* the chain goes on, and needs its back-link */
    }
    struct slot s = log_slot(g, id, message_last_lsn(m), last ? FLAG_DELETES : 0);
    log_append(g, &s, MESSAGE_DEQUEUE, format_put_dequeue(&s, &d));
    message_appended(m, s.lsn);
    *lsn = s.lsn;
    queue_kill(place);
    message_drop_place(&store->table, m, d.queue_id);
    if (last) {
        message_die(store, number);
    }
    return LS_OK;
}

int ls_dequeue(ls_store *store, uint64_t id, uint32_t queue_id, ls_tx *tx, int reason, int delivery_count, int flags,
               uint64_t *lsn) {
    *lsn = 0;
    int rc = check_reason(reason);
    rc = rc == LS_OK ? store_enter(store) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    int count = delivery_count < 0 ? 0 : delivery_count > UINT16_MAX ? UINT16_MAX : delivery_count;
    struct message_dequeue d = {
        .queue_id = queue_id,
        .reason = (uint16_t)reason,
        .delivery_count = (uint16_t)count,
    };
    rc = dequeue_locked(store, id, d, tx, lsn);
    return store_leave(store, rc, tx != NULL ? LEAVE_QUIETLY : flags);
}

static int check_all(ls_store *store, const uint64_t *ids, size_t n, uint32_t queue_id, ls_tx *handle, size_t *at) {
    struct tx *tx;
    int rc = tx_check_work(store, handle, &tx);
    rc = rc == LS_OK ? check_queues(store, &queue_id, 1) : rc;
    for (*at = 0; rc == LS_OK && *at < n; (*at)++) {
        uint32_t number;
        struct message *m = NULL;
        struct place *place;
        rc = find_message(store, ids[*at], &number, &m);
        rc = rc == LS_OK ? check_dequeue(m, queue_id, tx, &place) : rc;
        if (rc != LS_OK) {
            return rc;
        }
    }
    return rc;
}

int ls_dequeue_many(ls_store *store, const uint64_t *ids, size_t n, uint32_t queue_id, ls_tx *tx, int reason, int flags,
                    size_t *done) {
    *done = 0;
    int rc = check_reason(reason);
    rc = rc == LS_OK ? store_enter(store) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    size_t culprit;
    rc = check_all(store, ids, n, queue_id, tx, &culprit);
    struct message_dequeue d = {.queue_id = queue_id, .reason = (uint16_t)reason};
    while (rc == LS_OK && *done < n) {
        uint64_t lsn;
        rc = dequeue_locked(store, ids[*done], d, tx, &lsn);
        *done += rc == LS_OK ? 1 : 0;
    }
    return store_leave(store, rc, tx != NULL ? LEAVE_QUIETLY : flags);
}

int ls_destroy(ls_store *store, uint64_t id, int flags) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    uint32_t number = 0;
    struct message *m = NULL;
    rc = log_reserve(&store->log, PLAIN_RECORD_BYTES, RESERVE_SHRINKS);
    rc = rc == LS_OK ? find_message(store, id, &number, &m) : rc;
    if (rc == LS_OK && (m->place_count > 0 || message_pending(m) > 0)) {
        rc = fail(LS_MESSAGE_IN_USE, "message %llu is on %u queues and in %u pending operations; dequeue it instead",
                  (unsigned long long)id, (unsigned)m->place_count, (unsigned)message_pending(m));
    }
    if (rc == LS_OK) {
        unstage(store, id);
    }
    return store_leave(store, rc, flags);
}

int ls_message(ls_store *store, uint64_t id, ls_message_info *info) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    uint32_t number = 0;
    struct message *m = NULL;
    rc = find_message(store, id, &number, &m);
    if (rc == LS_OK) {
        *info = (ls_message_info){
            .id = id,
            .content_bytes = message_content_bytes(m),
            .start_bytes = m->record_bytes,
            .places = m->place_count,
            .pending = message_pending(m),
            .staged = (m->flags & MESSAGE_STAGED) != 0,
        };
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
