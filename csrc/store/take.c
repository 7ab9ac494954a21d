/*
 * Places that consumers acquire out of their order: those after a position. They leave the others as they were, and once
 * given back they stand where they stood; table/offer.c says how. As in acquire.c no call waits.
 */
#include "store/store.h"

/* From the place behind the position on. The cursor is in no list: use it while the lock is held, and end no place. */
static int cursor_behind(struct cursor *c, struct queue *q, uint64_t position) {
    if (position >= q->next_position) {
        return fail(LS_OPTION,
                    "no place of queue %u has had position %llu since the store was opened; go on after that of a "
                    "delivery or message of this queue and this open",
                    (unsigned)q->id, (unsigned long long)position);
    }
    cursor_seek(c, q, position + 1);
    return LS_OK;
}

int ls_cursor_after(ls_cursor *cursor, uint64_t position) {
    ls_store *store = cursor->store;
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    struct queue *q = cursor->cursor.queue;
    rc = q == NULL ? fail(LS_UNKNOWN_QUEUE, "the queue was deleted") : cursor_behind(&cursor->cursor, q, position);
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_acquire_after(ls_store *store, uint32_t queue_id, uint64_t position, ls_delivery *into, size_t n, int flags,
                     size_t *done) {
    *done = 0;
    int rc = store_try(store, flags);
    if (rc != LS_OK) {
        return rc;
    }
    const struct table *t = &store->state.table;
    rc = store_check_queues(store, &queue_id, 1);
    struct cursor c = {.queue = rc == LS_OK ? table_queue(t, queue_id) : NULL};
    rc = rc == LS_OK ? cursor_behind(&c, c.queue, position) : rc;
    struct place p;
    uint64_t durable_lsn = log_durable_lsn(store->log);
    while (rc == LS_OK && *done < n && offer_next(&c, durable_lsn, &p)) {
        if (!offer_prepare(&p)) {
            rc = *done == 0 ? fail_memory() : LS_OK;
            break;
        }
        uint32_t count = offer_take(&p);
        into[(*done)++] = delivery_of(t, &p, count);
        cursor_step(&c);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
