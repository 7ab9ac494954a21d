/*
 * Places that consumers acquire out of their order: those after a position, those of given messages, and that of a message
 * which the caller itself puts on the queue. They leave the others as they were, and once given back they stand where
 * they stood; table/offer.c says how.
 */
#include <assert.h>
#include <stdlib.h>

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
    store_times(store);
    rc = store_check_queues(store, &queue_id, 1);
    struct cursor c = {.queue = rc == LS_OK ? table_queue(t, queue_id) : NULL};
    rc = rc == LS_OK ? cursor_behind(&c, c.queue, position) : rc;
    struct place p;
    uint64_t durable_lsn = log_durable_lsn(store->log);
    uint32_t tenths = acquire_time(store);
    while (rc == LS_OK && *done < n && offer_next(&c, durable_lsn, &p)) {
        if (!offer_prepare(&p)) {
            rc = *done == 0 ? fail_memory() : LS_OK;
            break;
        }
        const struct message *m = table_message(t, place_entry(&p)->message);
        uint32_t count = offer_take(&p, m, tenths);
        into[(*done)++] = delivery_of(m, &p, count);
        cursor_step(&c);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

/* The message's place on the queue, if a consumer may have it now; else NULL. */
static const struct place *free_place(const struct table *t, uint64_t id, uint32_t queue_id, uint64_t durable_lsn) {
    uint32_t number = table_find(t, id);
    const struct place *p = number != INDEX_NONE ? message_place(table_message(t, number), queue_id) : NULL;
    return p != NULL && entry_is_free(place_entry(p)) && place_entry(p)->order_lsn < durable_lsn ? p : NULL;
}

int ls_acquire_ids(ls_store *store, uint32_t queue_id, const uint64_t *ids, size_t n, ls_delivery *into, int flags,
                   size_t *done) {
    *done = 0;
    int rc = store_try(store, flags);
    if (rc != LS_OK) {
        return rc;
    }
    const struct table *t = &store->state.table;
    store_times(store);
    uint64_t durable_lsn = log_durable_lsn(store->log);
    uint32_t tenths = acquire_time(store);
    rc = store_check_queues(store, &queue_id, 1);
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        const struct place *p = free_place(t, ids[i], queue_id, durable_lsn);
        rc = p == NULL || offer_prepare(p) ? LS_OK : fail_memory();
    }
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        const struct place *p = free_place(t, ids[i], queue_id, durable_lsn);
        if (p != NULL) {
            const struct message *m = table_message(t, place_entry(p)->message);
            uint32_t count = offer_take(p, m, tenths);
            into[(*done)++] = delivery_of(m, p, count);
        }
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

/* ---- messages that their publisher acquires ---- */

/* The counts of the place's chunk are allocated before its record is appended; whether they are needed is known after. */
static int enter_with_counts(ls_store *store, int flags, struct hand_out **counts) {
    *counts = calloc(CHUNK_PLACES, sizeof **counts);
    int rc = *counts == NULL ? fail_memory() : work_try(store, NULL, flags);
    if (rc != LS_OK) {
        free(*counts);
    }
    return rc;
}

/* Unless `rc` is a failure, acquires the place that the caller has just made, under the same hold of the lock. */
static int take_and_leave(ls_store *store, uint64_t id, uint32_t queue_id, int rc, int flags, struct hand_out *counts,
                          ls_delivery *made) {
    if (rc == LS_OK) {
        const struct table *t = &store->state.table;
        struct message *m = table_message(t, table_find(t, id));
        const struct place *p = message_place(m, queue_id);
        assert(p != NULL);
        if (p->at.chunk->handed_out == NULL) {
            offer_use_counts(p->at.chunk, counts);
            counts = NULL;
        }
        bool has_expired = entry_is_expired(place_entry(p)); /* since the caller named the time */
        uint32_t tenths = acquire_time(store);
        uint32_t count = has_expired ? offer_take_expired(p, m, tenths) : offer_take(p, m, tenths);
        *made = delivery_of(m, p, count);
    }
    free(counts);
    return work_leave(store, NULL, rc, flags);
}

int ls_publish_acquired(ls_store *store, uint32_t queue_id, const uint8_t *header, size_t header_bytes,
                        const uint8_t *content, size_t content_bytes, uint64_t expires_us, int flags,
                        ls_delivery *made) {
    const ls_times times = {.expires_us = expires_us};
    struct remembered state;
    struct hand_out *counts;
    uint64_t id = 0;
    int rc = times_check(&times);
    rc = rc == LS_OK ? enter_with_counts(store, flags, &counts) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    rc = publish_locked(store, &queue_id, 1, header, header_bytes, content, content_bytes, times_state(&times, &state),
                        NULL, &id);
    return take_and_leave(store, id, queue_id, rc, flags, counts, made);
}

int ls_enqueue_acquired(ls_store *store, uint64_t id, uint32_t queue_id, uint64_t expires_us, int flags,
                        ls_delivery *made) {
    const ls_times times = {.expires_us = expires_us};
    struct remembered made_of;
    const struct remembered *state = times_state(&times, &made_of);
    struct hand_out *counts;
    uint64_t lsn;
    int rc = times_check(&times);
    rc = rc == LS_OK ? enter_with_counts(store, flags, &counts) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    rc = state != NULL ? enqueue_timed_locked(store, id, &queue_id, 1, state, NULL, &lsn)
                       : enqueue_locked(store, id, &queue_id, 1, NULL, &lsn);
    return take_and_leave(store, id, queue_id, rc, flags, counts, made);
}
