/*
 * Places that consumers have acquired, and those that they give back. table/offer.c has the order; take.c acquires out of
 * it; dequeue.c settles.
 *
 * Nothing here is written, so no call waits; takers.c has those that wait for a message. A delivery names its place by message, position and count: after a release
 * and another acquisition the count differs, and a message that is enqueued again has another position.
 */
#include "store/store.h"

bool delivery_holds(const ls_delivery *d, const struct place *p) {
    return place_position(p) == d->position && offer_is_acquired(p, d->count);
}

int delivery_fail(uint64_t id, uint32_t queue_id) {
    return fail(LS_NOT_ENQUEUED, "message %llu is no longer acquired from queue %u: it was settled before",
                (unsigned long long)id, (unsigned)queue_id);
}

int acquire_from(const ls_store *store, struct queue *q, ls_delivery *into, size_t n, size_t *done) {
    const struct table *t = &store->state.table;
    struct place p;
    uint64_t durable_lsn = log_durable_lsn(store->log);
    *done = 0;
    while (*done < n && offer_find(q, durable_lsn, &p)) {
        if (!offer_prepare(&p)) {
            return *done == 0 ? fail_memory() : LS_OK;
        }
        uint32_t count = offer_acquire(q, &p, table_message(t, place_entry(&p)->message));
        into[(*done)++] = delivery_of(t, &p, count);
    }
    return LS_OK;
}

int ls_acquire(ls_store *store, uint32_t queue_id, ls_delivery *into, size_t n, int flags, size_t *done) {
    *done = 0;
    int rc = store_try(store, flags);
    if (rc != LS_OK) {
        return rc;
    }
    rc = store_check_queues(store, &queue_id, 1);
    if (rc == LS_OK) {
        rc = acquire_from(store, table_queue(&store->state.table, queue_id), into, n, done);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

/* NULL: the delivery's place has ended, although the message may have a new one. */
static struct place *place_of(const struct table *t, uint32_t queue_id, const ls_delivery *d) {
    uint32_t number = table_find_at(t, d->number, d->id);
    struct place *p = number != INDEX_NONE ? message_place(table_message(t, number), queue_id) : NULL;
    return p != NULL && place_position(p) == d->position ? p : NULL;
}

void acquire_give_back(const ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, bool unseen) {
    const struct table *t = &store->state.table;
    for (size_t i = 0; i < n; i++) {
        struct place *p = place_of(t, queue_id, &deliveries[i]);
        if (p != NULL && delivery_holds(&deliveries[i], p)) { /* false if the list has it twice */
            offer_give_back(p, table_message(t, place_entry(p)->message), unseen);
        }
    }
}

int ls_release(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, int flags) {
    int rc = store_try(store, flags);
    if (rc != LS_OK) {
        return rc;
    }
    const struct table *t = &store->state.table;
    rc = store_check_queues(store, &queue_id, 1);
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        const struct place *p = place_of(t, queue_id, &deliveries[i]);
        rc = p == NULL || delivery_holds(&deliveries[i], p) ? LS_OK : delivery_fail(deliveries[i].id, queue_id);
    }
    if (rc == LS_OK) {
        acquire_give_back(store, queue_id, deliveries, n, (flags & LS_UNSEEN) != 0);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
