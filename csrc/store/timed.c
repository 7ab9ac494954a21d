/*
 * Messages whose places have times from the beginning. A start record holds them where everything fits into one record; larger
 * messages, and those that are staged, get one MESSAGE_MOVE without a place that ends for each queue, all in one batch. So a
 * message is on all of its queues or on none.
 */
#include <assert.h>

#include "store/store.h"

int times_check(const ls_times *times) {
    uint64_t not_before = times->not_before_us, expires = times->expires_us;
    if (not_before > PLACE_TIME_MAX || expires > PLACE_TIME_MAX) {
        uint64_t time = not_before > PLACE_TIME_MAX ? not_before : expires;
        return fail(LS_OPTION, "times are at most %llu microseconds since 1970, not %llu",
                    (unsigned long long)PLACE_TIME_MAX, (unsigned long long)time);
    }
    if (expires != 0 && expires <= not_before) {
        return fail(LS_OPTION, "a place that expires at %llu would never be offered from %llu on: expire it later",
                    (unsigned long long)expires, (unsigned long long)not_before);
    }
    return LS_OK;
}

/* Appends the record of one place and makes it, or the transaction's work; as in the record's replay. */
static uint64_t put_one(ls_store *store, uint32_t number, uint32_t queue_id, const struct remembered *state,
                        struct tx *tx, struct work *w) {
    struct table *t = &store->state.table;
    struct message *m = table_message(t, number);
    const struct message_move move = {
        .tx_id = tx != NULL ? tx->id : 0,
        .queue_id = queue_id,
        .order_index = tx != NULL ? tx->enqueue_count : 0,
        .state = {.not_before_us = state->not_before_us, .expires_us = state->expires_us},
    };
    struct slot s = log_slot(store->log, m->id, message_last_lsn(m), 0);
    log_append(store->log, &s, MESSAGE_MOVE, format_put_move(&s, &move));
    table_touch(t, m);
    message_appended(m, s.lsn);
    if (tx != NULL) {
        assert(w != NULL); /* one for each queue */
        w->kind = WORK_ENQUEUE;
        w->order_index = tx->enqueue_count++;
        w->message = number;
        w->queue_id = queue_id;
        w->lsn = s.lsn;
        tx_add_work(t, tx, w);
        return s.lsn;
    }
    m->flags &= (uint16_t)~MESSAGE_STAGED;
    message_grows_places(t, m, 1);
    message_add_place(t, m, queue_append(table_queue_cached(t, queue_id), m, number, s.lsn, 0));
    place_starts(t, m, queue_id, state);
    return s.lsn;
}

int enqueue_timed_locked(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n,
                         const struct remembered *state, ls_tx *handle, uint64_t *lsn) {
    uint64_t limit = log_record_bytes_max(store->log), record = format_move_bytes(0, 0);
    uint32_t number = 0;
    struct message *m = NULL;
    struct tx *tx;
    struct work *work;
    if (n == 0 || n > limit / record) {
        return n == 0 ? fail(LS_OPTION, "no queue is named")
                      : message_too_large("the list of queues", n > limit ? limit * record : n * record, limit);
    }
    int rc = store_check_remembers(store);
    rc = rc == LS_OK ? message_reserve_states(store, id, INDEX_NONE, n, 0, n * record, RESERVE_GROWS) : rc;
    rc = rc == LS_OK ? enqueue_check(store, id, queue_ids, n, handle, &tx, &number, &m) : rc;
    rc = rc == LS_OK ? places_prepare(store, m, queue_ids, n, state, tx, &work) : rc;
    if (rc == LS_OK) {
        store_note_time(store);
    }
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        struct work *w = work;
        work = work != NULL ? work->next : NULL;
        *lsn = put_one(store, number, queue_ids[i], state, tx, w);
    }
    return rc;
}

const struct remembered *times_state(const ls_times *times, struct remembered *made) {
    *made = (struct remembered){.own = NULL};
    if (times != NULL) {
        made->not_before_us = times->not_before_us;
        made->expires_us = times->expires_us;
    }
    return remembers_nothing(made) ? NULL : made;
}

int ls_publish_timed(ls_store *store, const uint32_t *queue_ids, size_t n, const uint8_t *header, size_t header_bytes,
                     const uint8_t *content, size_t content_bytes, const ls_times *times, ls_tx *tx, int flags,
                     uint64_t *id) {
    struct remembered made;
    const struct remembered *state = times_state(times, &made);
    int rc = state != NULL ? times_check(times) : LS_OK;
    rc = rc == LS_OK ? work_try(store, tx, flags) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    *id = 0;
    rc = publish_locked(store, queue_ids, n, header, header_bytes, content, content_bytes, state, tx, id);
    return work_leave(store, tx, rc, flags);
}

int ls_enqueue_timed(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, const ls_times *times,
                     ls_tx *tx, int flags, uint64_t *lsn) {
    struct remembered made;
    const struct remembered *state = times_state(times, &made);
    int rc = state != NULL ? times_check(times) : LS_OK;
    rc = rc == LS_OK ? work_enter(store, tx) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    *lsn = 0;
    rc = state != NULL ? enqueue_timed_locked(store, id, queue_ids, n, state, tx, lsn)
                       : enqueue_locked(store, id, queue_ids, n, tx, lsn);
    return work_leave(store, tx, rc, flags);
}
