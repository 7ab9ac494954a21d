/* Taking messages off their queues: by id, or by the delivery of a consumer that acquired them; one, or many at once. */
#include <assert.h>

#include "store/store.h"

int place_check_dequeue(struct message *m, uint32_t queue_id, const struct tx *tx, struct place **place) {
    const struct work *w = message_last_work(m, queue_id);
    *place = message_place(m, queue_id);
    if (w != NULL && w->tx != tx && (*place != NULL || w->kind == WORK_DEQUEUE)) {
        return fail(LS_MESSAGE_LOCKED, "message %llu on queue %u is locked by a transaction; wait for its outcome",
                    (unsigned long long)m->id, (unsigned)queue_id);
    }
    bool there = w != NULL && w->tx == tx ? w->kind != WORK_DEQUEUE : *place != NULL;
    if (!there) {
        return fail(LS_NOT_ENQUEUED, "message %llu is not on queue %u", (unsigned long long)m->id, (unsigned)queue_id);
    }
    return LS_OK;
}

int place_check_reason(int reason) {
    if (reason < 0 || reason > DEQUEUE_REASON_MAX) {
        return fail(LS_OPTION, "a dequeue's reason is 0 to %d, not %d", DEQUEUE_REASON_MAX, reason);
    }
    return LS_OK;
}

static int dequeue_in_tx(ls_store *store, uint32_t number, struct place *place, struct tx *tx,
                         struct message_dequeue *d, uint64_t *lsn) {
    struct log *g = store->log;
    struct message *m = table_message(&store->state.table, number);
    const struct work *last = message_last_work(m, d->queue_id);
    int rc = work_check_limit(tx, 1);
    if (rc != LS_OK) {
        return rc;
    }
    struct work *w = work_make(1, NULL);
    if (w == NULL || message_extra(m) == NULL) {
        work_free(w);
        return fail_memory();
    }
    d->tx_id = tx->id;
    struct slot s = log_slot(g, m->id, message_last_lsn(m), 0);
    log_append(g, &s, MESSAGE_DEQUEUE, format_put_dequeue(&s, d));
    table_touch(&store->state.table, m);
    message_appended(m, s.lsn);
    w->kind = WORK_DEQUEUE;
    w->message = number;
    w->queue_id = d->queue_id;
    w->lsn = s.lsn;
    w->locks = place != NULL && last == NULL;
    if (w->locks) {
        queue_lock(place, m);
    }
    tx_add_work(&store->state.table, tx, w);
    *lsn = s.lsn;
    return LS_OK;
}

/* In place of a delivery: the place must not be acquired. */
static const ls_delivery not_acquired;

/* A stale delivery must not settle a place that a consumer has acquired since. */
int place_check_held(struct message *m, uint32_t queue_id, const ls_delivery *held) {
    const struct place *p = message_place(m, queue_id);
    if (p == NULL) {
        return LS_OK; /* place_check_dequeue reports it */
    }
    if (held == &not_acquired) {
        bool acquired = (place_entry(p)->state & ENTRY_ACQUIRED) != 0;
        return acquired ? fail(LS_MESSAGE_LOCKED, "message %llu is acquired", (unsigned long long)m->id) : LS_OK;
    }
    return delivery_holds(held, p) ? LS_OK : delivery_fail(held->id, queue_id);
}

/* A delivery has a hint where its message is in the table. */
static int find(ls_store *store, uint64_t id, const ls_delivery *held, uint32_t *number, struct message **m) {
    const struct table *t = &store->state.table;
    *number = held != NULL ? table_find_at(t, held->number, id) : INDEX_NONE;
    if (*number == INDEX_NONE) {
        return message_find(store, id, number, m);
    }
    *m = table_message(t, *number);
    return LS_OK;
}

static int dequeue_locked(ls_store *store, uint64_t id, struct message_dequeue d, const ls_delivery *held,
                          ls_tx *handle, uint64_t *lsn) {
    struct log *g = store->log;
    uint32_t number = 0;
    struct message *m = NULL;
    struct tx *tx;
    struct place *place = NULL;
    int rc = handle != NULL ? message_reserve(store, id, 1, DEQUEUE_RECORD_BYTES, RESERVE_WORK)
                            : log_reserve(g, DEQUEUE_RECORD_BYTES, RESERVE_SHRINKS);
    rc = rc == LS_OK ? tx_check_work(store, handle, &tx) : rc;
    rc = rc == LS_OK ? store_check_queues(store, &d.queue_id, 1) : rc;
    rc = rc == LS_OK ? find(store, id, held, &number, &m) : rc;
    rc = rc == LS_OK && held != NULL ? place_check_held(m, d.queue_id, held) : rc;
    rc = rc == LS_OK ? place_check_dequeue(m, d.queue_id, tx, &place) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    if (tx != NULL) {
        return dequeue_in_tx(store, number, place, tx, &d, lsn);
    }
    bool last = m->place_count == 1 && message_pending(m) == 0;
    if (!last && message_extra(m) == NULL) {
        return fail_memory(); /* the chain continues, and needs its back-link */
    }
    struct slot s = log_slot(g, id, message_last_lsn(m), last ? FLAG_DELETES : 0);
    log_append(g, &s, MESSAGE_DEQUEUE, format_put_dequeue(&s, &d));
    table_touch(&store->state.table, m);
    message_appended(m, s.lsn);
    *lsn = s.lsn;
    queue_kill(place, m);
    message_drop_place(&store->state.table, m, d.queue_id);
    if (last) {
        message_die(store, number);
    }
    return LS_OK;
}

/* The header's count has 16 bits. */
static uint16_t count_of(uint32_t deliveries) { return deliveries < UINT16_MAX ? (uint16_t)deliveries : UINT16_MAX; }

int ls_dequeue(ls_store *store, uint64_t id, uint32_t queue_id, ls_tx *tx, int reason, int delivery_count, int flags,
               uint64_t *lsn) {
    *lsn = 0;
    int rc = place_check_reason(reason);
    rc = rc == LS_OK ? work_try(store, tx, flags) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    struct message_dequeue d = {
        .queue_id = queue_id,
        .reason = (uint16_t)reason,
        .delivery_count = count_of(delivery_count < 0 ? 0 : (uint32_t)delivery_count),
    };
    rc = dequeue_locked(store, id, d, NULL, tx, lsn);
    return work_leave(store, tx, rc, flags);
}

int ls_settle(ls_store *store, uint32_t queue_id, const ls_delivery *delivery, ls_tx *tx, int reason, int flags,
              uint64_t *lsn) {
    *lsn = 0;
    int rc = place_check_reason(reason);
    rc = rc == LS_OK ? work_try(store, tx, flags) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    struct message_dequeue d = {
        .queue_id = queue_id,
        .reason = (uint16_t)reason,
        .delivery_count = count_of(delivery->count),
    };
    rc = dequeue_locked(store, delivery->id, d, delivery, tx, lsn);
    return work_leave(store, tx, rc, flags);
}

/* ---- many at once ---- */

enum {
    FETCHED_AT_ONCE = 32, /* several times the cache lines that a processor fetches at once */
    FETCHED_STEP = 16,    /* the same in deliveries: each step is so far ahead of the next; divides FETCHED_AT_ONCE */
};

typedef void fetch_fn(const struct table *t, const ls_delivery *of, size_t n);

/* The arguments of one call: messages of one queue, given by id or as deliveries. */
struct chosen {
    const uint64_t *ids;     /* NULL: take them from the deliveries */
    const ls_delivery *held; /* NULL: whether they are acquired does not matter */
    size_t n;
    uint32_t queue_id;
    int reason;
};

static uint64_t id_at(const struct chosen *c, size_t i) { return c->held != NULL ? c->held[i].id : c->ids[i]; }

/* One step for the deliveries that are so many after this one; at the first of all for all of them until there. */
static void fetch_held(const ls_store *store, const struct chosen *c, size_t at, size_t ahead, fetch_fn *fetch) {
    size_t from = at == 0 ? 0 : at + ahead - FETCHED_STEP, to = at + ahead < c->n ? at + ahead : c->n;
    if (from < to) {
        fetch(&store->state.table, c->held + from, to - from);
    }
}

/* Called for the check and again for the change: a thousand messages are on more pages than the TLB has entries. */
static void fetch_ahead(const ls_store *store, const struct chosen *c, size_t at) {
    const struct table *t = &store->state.table;
    if (at % FETCHED_STEP != 0) {
        return;
    }
    if (c->held != NULL) {
        fetch_held(store, c, at, 3 * FETCHED_STEP, table_prefetch_messages);
        fetch_held(store, c, at, 2 * FETCHED_STEP, table_prefetch_places);
        if (t->times.chunks > 0) { /* places that were due lie scattered */
            fetch_held(store, c, at, FETCHED_STEP, table_prefetch_counts);
        }
    } else if (at % FETCHED_AT_ONCE == 0) {
        table_prefetch(t, c->ids + at, c->n - at < FETCHED_AT_ONCE ? c->n - at : FETCHED_AT_ONCE);
    }
}

static int check_all(ls_store *store, const struct chosen *c, ls_tx *handle) {
    struct tx *tx;
    int rc = tx_check_work(store, handle, &tx);
    rc = rc == LS_OK ? store_check_queues(store, &c->queue_id, 1) : rc;
    for (size_t i = 0; rc == LS_OK && i < c->n; i++) {
        uint32_t number;
        struct message *m = NULL;
        struct place *place;
        fetch_ahead(store, c, i);
        rc = find(store, id_at(c, i), c->held != NULL ? &c->held[i] : NULL, &number, &m);
        rc = rc == LS_OK && c->held != NULL ? place_check_held(m, c->queue_id, &c->held[i]) : rc;
        rc = rc == LS_OK ? place_check_dequeue(m, c->queue_id, tx, &place) : rc;
    }
    return rc;
}

static int dequeue_all(ls_store *store, const struct chosen *c, ls_tx *tx, int flags, size_t *done) {
    assert(c->held != NULL || c->ids != NULL || c->n == 0);
    *done = 0;
    int rc = place_check_reason(c->reason);
    rc = rc == LS_OK ? work_try(store, tx, flags) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    rc = check_all(store, c, tx);
    struct message_dequeue d = {.queue_id = c->queue_id, .reason = (uint16_t)c->reason};
    while (rc == LS_OK && *done < c->n) {
        uint64_t lsn;
        const ls_delivery *held = c->held != NULL ? &c->held[*done] : NULL;
        d.delivery_count = count_of(held != NULL ? held->count : 0);
        fetch_ahead(store, c, *done);
        rc = dequeue_locked(store, id_at(c, *done), d, held, tx, &lsn);
        *done += rc == LS_OK ? 1 : 0;
    }
    return work_leave(store, tx, rc, flags);
}

int ls_dequeue_many(ls_store *store, const uint64_t *ids, size_t n, uint32_t queue_id, ls_tx *tx, int reason, int flags,
                    size_t *done) {
    struct chosen c = {.ids = ids, .n = n, .queue_id = queue_id, .reason = reason};
    return dequeue_all(store, &c, tx, flags, done);
}

int ls_settle_all(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, ls_tx *tx, int reason,
                  int flags, size_t *done) {
    struct chosen c = {.held = deliveries, .n = n, .queue_id = queue_id, .reason = reason};
    return dequeue_all(store, &c, tx, flags, done);
}

int ls_purge(ls_store *store, uint32_t queue_id, const uint64_t *ids, size_t n, int reason, int flags, size_t *done) {
    *done = 0;
    int rc = place_check_reason(reason);
    rc = rc == LS_OK && (flags & LS_TRY) == 0 ? store_may_wait(store) : rc;
    rc = rc == LS_OK ? store_try(store, flags) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    struct chosen c = {.ids = ids, .n = n, .queue_id = queue_id};
    struct message_dequeue d = {.queue_id = queue_id, .reason = (uint16_t)reason};
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        uint64_t lsn;
        fetch_ahead(store, &c, i);
        rc = dequeue_locked(store, ids[i], d, &not_acquired, NULL, &lsn);
        *done += rc == LS_OK ? 1 : 0;
        if (rc == LS_UNKNOWN_MESSAGE || rc == LS_NOT_ENQUEUED || rc == LS_MESSAGE_LOCKED) {
            rc = LS_OK;
        }
    }
    return store_leave(store, rc, flags);
}
