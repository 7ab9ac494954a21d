/* Publishing, and putting messages on queues. See store.h for the order of each. dequeue.c takes them off. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

/* ---- queues ---- */

static int unknown_queue(uint32_t id) {
    return fail(LS_UNKNOWN_QUEUE, "there is no queue with id %u; declare it first", (unsigned)id);
}

/* LS_UNKNOWN_QUEUE or LS_OPTION, unless each queue exists and is named once. */
int store_check_queues(ls_store *store, const uint32_t *queue_ids, size_t n) {
    int rc = LS_OK;
    size_t seen = 0;
    if (n == 1) {
        return table_queue_cached(&store->state.table, queue_ids[0]) != NULL ? LS_OK : unknown_queue(queue_ids[0]);
    }
    for (; rc == LS_OK && seen < n; seen++) {
        struct queue *q = table_queue_cached(&store->state.table, queue_ids[seen]);
        if (q == NULL) {
            rc = unknown_queue(queue_ids[seen]);
        } else if (q->wanted != 0) {
            rc = fail(LS_OPTION, "queue %u is named twice", (unsigned)queue_ids[seen]);
        } else {
            q->wanted = 1;
        }
    }
    for (size_t i = 0; i < seen; i++) {
        struct queue *q = table_queue_cached(&store->state.table, queue_ids[i]);
        if (q != NULL) {
            q->wanted = 0;
        }
    }
    return rc;
}

/* ---- enqueueing ---- */

int place_check_enqueue(struct message *m, uint32_t queue_id, const struct tx *tx) {
    const struct work *w = message_last_work(m, queue_id);
    if (w != NULL && w->tx != tx) {
        return fail(LS_MESSAGE_LOCKED,
                    "message %llu on queue %u is in another transaction's work; wait for its outcome",
                    (unsigned long long)m->id, (unsigned)queue_id);
    }
    bool there = w != NULL ? w->kind != WORK_DEQUEUE : message_place(m, queue_id) != NULL;
    if (there) {
        return fail(LS_ALREADY_ENQUEUED, "message %llu is on queue %u already", (unsigned long long)m->id,
                    (unsigned)queue_id);
    }
    return LS_OK;
}

void work_free(struct work *list) {
    while (list != NULL) {
        struct work *next = list->next;
        work_free_one(list);
        list = next;
    }
}

struct work *work_make(size_t n, const struct remembered *state) {
    struct work *list = NULL;
    for (size_t i = 0; i < n; i++) {
        struct work *w = calloc(1, sizeof *w);
        if (w == NULL) {
            work_free(list);
            return NULL;
        }
        w->next = list;
        list = w;
        w->state = state != NULL ? malloc(sizeof *w->state) : NULL;
        if (state != NULL && w->state == NULL) {
            work_free(list);
            return NULL;
        }
        if (state != NULL) {
            *w->state = *state;
        }
    }
    return list;
}

int work_check_limit(const struct tx *tx, size_t n) {
    if (tx != NULL && (tx->work_count >= ORDER_INDEX_MAX || n > ORDER_INDEX_MAX - tx->enqueue_count)) {
        return fail(LS_TRANSACTION_LIMIT, "a transaction holds at most %u operations; commit it and begin another",
                    (unsigned)ORDER_INDEX_MAX);
    }
    return LS_OK;
}

int places_prepare(ls_store *store, struct message *m, const uint32_t *queue_ids, size_t n,
                   const struct remembered *state, const struct tx *tx, struct work **work) {
    bool ready = true;
    *work = NULL;
    if (tx != NULL) {
        *work = work_make(n, state);
        ready = *work != NULL && message_extra(m) != NULL;
    } else {
        ready = message_prepare_places(m, (uint32_t)n) && (state == NULL || n == 1 || message_extra(m) != NULL);
        for (size_t i = 0; ready && i < n; i++) {
            struct queue *q = table_queue_cached(&store->state.table, queue_ids[i]);
            ready = queue_prepare(q, 1) && (state == NULL || queue_prepare_state(q, remembered_parts(state)));
        }
    }
    if (!ready) {
        work_free(*work);
        *work = NULL;
        return fail_memory();
    }
    return LS_OK;
}

/* Notes in memory that the record at `lsn` enqueues the message on these queues, at once or at the commit. */
static void take_places(ls_store *store, uint32_t number, const uint32_t *queue_ids, size_t n, struct tx *tx,
                        struct work *work, uint64_t lsn) {
    struct message *m = table_message(&store->state.table, number);
    if (tx == NULL && lsn != m->id) {
        message_grows_places(&store->state.table, m, (uint32_t)n);
    }
    for (size_t i = 0; i < n; i++) {
        if (tx == NULL) {
            struct queue *q = table_queue_cached(&store->state.table, queue_ids[i]);
            message_add_place(&store->state.table, m, queue_append(q, m, number, lsn, 0));
        } else {
            struct work *w = work;
            work = work->next;
            w->kind = WORK_ENQUEUE;
            w->order_index = tx->enqueue_count++;
            w->message = number;
            w->queue_id = queue_ids[i];
            w->lsn = lsn;
            tx_add_work(&store->state.table, tx, w);
        }
    }
    if (tx == NULL) {
        m->flags &= (uint16_t)~MESSAGE_STAGED;
    }
}

/* Bytes by which a message grows when moved, with n more places or as many pending operations. */
static uint64_t expansion_with(const ls_store *store, uint64_t id, uint32_t hint, size_t n, int64_t own_bytes) {
    const struct table *t = &store->state.table;
    struct message none = {.id = 0};
    uint32_t number = table_find_at(t, hint, id);
    struct message *m = number != INDEX_NONE ? table_message(t, number) : &none;
    return own_bytes < 0 ? message_grows_at_most(t, m, n) : message_states_grow_at_most(t, m, n, (uint64_t)own_bytes);
}

int message_reserve_states(ls_store *store, uint64_t id, uint32_t hint, size_t n, int64_t own_bytes, uint64_t bytes,
                           enum purpose purpose) {
    struct log *g = store->log;
    uint64_t expansion = expansion_with(store, id, hint, n, own_bytes), reserved, let_go;
    int rc;
    do {
        reserved = expansion;
        let_go = log_times_let_go(g);
        rc = log_reserve_to_grow(g, bytes, reserved, purpose);
        expansion = log_times_let_go(g) != let_go ? expansion_with(store, id, hint, n, own_bytes) : reserved;
    } while (rc == LS_OK && expansion > reserved);
    return rc;
}

int message_reserve(ls_store *store, uint64_t id, size_t n, uint64_t bytes, enum purpose purpose) {
    return message_reserve_states(store, id, INDEX_NONE, n, -1, bytes, purpose);
}

/* The transaction has taken the message off at least n more queues than it has put it on: it may have as many again. */
bool place_is_exchange(ls_store *store, uint64_t id, size_t n, const ls_tx *handle) {
    const struct tx *tx = handle != NULL ? tx_of(handle) : NULL;
    uint32_t number = tx != NULL ? table_find(&store->state.table, id) : INDEX_NONE;
    const struct message *m = number != INDEX_NONE ? table_message(&store->state.table, number) : NULL;
    size_t off = 0, on = n;
    for (const struct work *w = m != NULL && m->extra != NULL ? m->extra->work : NULL; w != NULL;
         w = w->next_of_message) {
        off += w->tx == tx && w->kind == WORK_DEQUEUE ? 1 : 0;
        on += w->tx == tx && w->kind == WORK_ENQUEUE ? 1 : 0;
    }
    return off >= on;
}

static int enqueue_reserve(ls_store *store, uint64_t id, size_t n, uint64_t bytes, const ls_tx *handle) {
    if (!place_is_exchange(store, id, n, handle)) {
        return message_reserve(store, id, n, bytes, RESERVE_GROWS);
    }
    int rc = message_reserve(store, id, n, bytes, RESERVE_EXCHANGE);
    bool is_still =
        rc != LS_OK || place_is_exchange(store, id, n, handle); /* another thread may have used the transaction */
    return is_still ? rc : message_reserve(store, id, n, bytes, RESERVE_GROWS);
}

int enqueue_check(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, ls_tx *handle, struct tx **tx,
                  uint32_t *number, struct message **m) {
    int rc = tx_check_work(store, handle, tx);
    rc = rc == LS_OK ? store_check_queues(store, queue_ids, n) : rc;
    rc = rc == LS_OK ? message_find(store, id, number, m) : rc;
    if (rc == LS_OK && message_is_going(*m)) { /* a copy that follows has swept it already */
        rc = message_fail_unknown(id);
    }
    rc = rc == LS_OK ? work_check_limit(*tx, n) : rc;
    rc = rc == LS_OK && ((*m)->flags & MESSAGE_APPENDING) != 0 ? message_fail_appending(id) : rc;
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        rc = place_check_enqueue(*m, queue_ids[i], *tx);
    }
    if (rc == LS_OK && (*m)->extra == NULL && message_extra(*m) == NULL) {
        rc = fail_memory(); /* no memory for the chain's back-link */
    }
    return rc;
}

int enqueue_locked(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, ls_tx *handle, uint64_t *lsn) {
    struct log *g = store->log;
    uint32_t number = 0;
    struct message *m = NULL;
    struct tx *tx;
    struct work *work;
    uint64_t bytes = format_enqueue_bytes(n);
    if (n == 0 || bytes > log_record_bytes_max(g)) {
        return n == 0 ? fail(LS_OPTION, "no queue is named")
                      : message_too_large("the list of queues", bytes, log_record_bytes_max(g));
    }
    int rc = enqueue_reserve(store, id, n, bytes, handle);
    rc = rc == LS_OK ? enqueue_check(store, id, queue_ids, n, handle, &tx, &number, &m) : rc;
    rc = rc == LS_OK ? places_prepare(store, m, queue_ids, n, NULL, tx, &work) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    struct slot s = log_slot(g, id, message_last_lsn(m), 0);
    log_append(
        g, &s, MESSAGE_ENQUEUE,
        format_put_enqueue(&s, tx != NULL ? tx->id : 0, tx != NULL ? tx->enqueue_count : 0, queue_ids, (uint32_t)n));
    table_touch(&store->state.table, m);
    message_appended(m, s.lsn);
    take_places(store, number, queue_ids, n, tx, work, s.lsn);
    *lsn = s.lsn;
    return LS_OK;
}

int ls_enqueue(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, ls_tx *tx, int flags, uint64_t *lsn) {
    int rc = work_enter(store, tx);
    if (rc != LS_OK) {
        return rc;
    }
    *lsn = 0;
    rc = enqueue_locked(store, id, queue_ids, n, tx, lsn);
    return work_leave(store, tx, rc, flags);
}

/* ---- publishing ---- */

static uint32_t put_start_placed(const struct slot *s, const struct message_start *m, const uint32_t *queue_ids,
                                 const struct remembered *state) {
    const struct place_state written = {.not_before_us = state->not_before_us, .expires_us = state->expires_us};
    return format_put_start_placed(s, m, queue_ids, &written);
}

uint32_t message_put_start(ls_store *store, const struct message_start *m, const uint32_t *queue_ids,
                           const struct remembered *state, uint16_t flags) {
    struct log *g = store->log;
    struct slot s = log_slot(g, 0, 0, flags);
    s.id = s.lsn;
    uint32_t bytes = state != NULL ? put_start_placed(&s, m, queue_ids, state)
                                   : format_put_start(&s, m->tx_id, m->order_index, queue_ids, m->queue_count,
                                                      m->header, m->header_bytes, m->content, m->content_bytes);
    log_append_live(g, &s, state != NULL ? MESSAGE_START_PLACED : MESSAGE_START, bytes, bytes);
    uint32_t number =
        table_add(&store->state.table, s.lsn, MESSAGE_STAGED | ((flags & FLAG_PUBLISHED) != 0 ? MESSAGE_PUBLISHED : 0));
    struct message *made = table_message(&store->state.table, number);
    made->record_bytes = bytes;
    made->content_bytes = m->content_bytes;
    return number;
}

uint64_t message_start_bytes(uint64_t header_bytes, uint64_t content_bytes, uint64_t n,
                             const struct remembered *state) {
    return state != NULL ? format_start_placed_bytes(header_bytes, content_bytes, n, 0)
                         : format_start_bytes(header_bytes, content_bytes, n);
}

static int reserve_inline(ls_store *store, const struct message_start *m, const struct remembered *state,
                          const ls_tx *handle) {
    uint64_t expansion = handle != NULL ? message_made_grows_at_most(m->queue_count) : 0;
    if (state != NULL) {
        struct message none = {.id = 0};
        expansion = message_states_grow_at_most(&store->state.table, &none, m->queue_count, 0);
    }
    return log_reserve_to_grow(store->log,
                               message_start_bytes(m->header_bytes, m->content_bytes, m->queue_count, state), expansion,
                               RESERVE_GROWS);
}

void place_starts(struct table *t, struct message *m, uint32_t queue_id, const struct remembered *state) {
    const struct remembered nothing = {.own = NULL};
    message_state_changes(t, m, &nothing, state);
    place_begins(message_place(m, queue_id), m, state);
}

/* Content and places in one record. */
static int publish_inline(ls_store *store, const struct message_start *given, const uint32_t *queue_ids,
                          const struct remembered *state, ls_tx *handle, uint64_t *id) {
    struct message_start m = *given;
    struct message none = {.id = 0};
    struct work *work = NULL;
    struct tx *tx;
    int rc = reserve_inline(store, &m, state, handle);
    rc = rc == LS_OK ? tx_check_work(store, handle, &tx) : rc;
    rc = rc == LS_OK ? store_check_queues(store, queue_ids, m.queue_count) : rc;
    rc = rc == LS_OK ? work_check_limit(tx, m.queue_count) : rc;
    if (rc == LS_OK && !table_prepare(&store->state.table, 1)) {
        rc = fail_memory();
    }
    rc = rc == LS_OK ? places_prepare(store, &none, queue_ids, m.queue_count, state, tx, &work) : rc;
    if (rc != LS_OK) {
        free(none.extra);
        if (none.listed != 0) {
            free(none.places.list.all);
        }
        return rc;
    }
    m.tx_id = tx != NULL ? tx->id : 0;
    m.order_index = tx != NULL ? tx->enqueue_count : 0;
    uint32_t number = message_put_start(store, &m, queue_ids, state, FLAG_PUBLISHED);
    struct message *made = table_message(&store->state.table, number);
    made->places = none.places;
    made->listed = none.listed;
    made->extra = none.extra;
    if (made->extra != NULL) {
        made->extra->last_lsn = made->extra->start_lsn = made->id;
        made->extra->content_bytes = m.content_bytes;
    }
    *id = made->id;
    take_places(store, number, queue_ids, m.queue_count, tx, work, made->id);
    if (state != NULL && tx == NULL) {
        store_note_time(store);
        for (uint32_t i = 0; i < m.queue_count; i++) {
            place_starts(&store->state.table, made, queue_ids[i], state);
        }
    }
    return LS_OK;
}

int publish_locked(ls_store *store, const uint32_t *queue_ids, size_t n, const uint8_t *header, size_t header_bytes,
                   const uint8_t *content, size_t content_bytes, const struct remembered *state, ls_tx *handle,
                   uint64_t *id) {
    uint64_t limit = log_record_bytes_max(store->log);
    int rc = state != NULL ? store_check_remembers(store) : LS_OK;
    if (rc != LS_OK) {
        return rc;
    }
    if (n == 0 || n > limit) {
        return n == 0 ? fail(LS_OPTION, "no queue is named") : message_too_large("the list of queues", 4 * n, limit);
    }
    if (header_bytes <= limit && content_bytes <= limit &&
        message_start_bytes(header_bytes, content_bytes, n, state) <= limit) {
        struct message_start m = {
            .header_bytes = (uint32_t)header_bytes,
            .content_bytes = (uint32_t)content_bytes,
            .queue_count = (uint32_t)n,
            .header = header,
            .content = content,
        };
        return publish_inline(store, &m, queue_ids, state, handle, id);
    }
    if (log_is_trying(store->log)) {
        return LS_WOULD_WAIT; /* it would have to wait between its records */
    }
    struct tx *tx;
    uint64_t lsn;
    rc = tx_check_work(store, handle, &tx);
    rc = rc == LS_OK ? store_check_queues(store, queue_ids, n) : rc;
    rc = rc == LS_OK ? message_stage(store, header, header_bytes, content, content_bytes, FLAG_PUBLISHED, id) : rc;
    if (rc == LS_OK) {
        rc = state != NULL ? enqueue_timed_locked(store, *id, queue_ids, n, state, handle, &lsn)
                           : enqueue_locked(store, *id, queue_ids, n, handle, &lsn);
    }
    if (rc != LS_OK && *id != 0) {
        rc = message_fail_and_unstage(store, *id);
        *id = 0;
    }
    return rc;
}

int ls_publish(ls_store *store, const uint32_t *queue_ids, size_t n, const uint8_t *header, size_t header_bytes,
               const uint8_t *content, size_t content_bytes, ls_tx *tx, int flags, uint64_t *id) {
    int rc = work_try(store, tx, flags);
    if (rc != LS_OK) {
        return rc;
    }
    *id = 0;
    rc = publish_locked(store, queue_ids, n, header, header_bytes, content, content_bytes, NULL, tx, id);
    return work_leave(store, tx, rc, flags);
}
