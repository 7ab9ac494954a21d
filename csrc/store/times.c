/*
 * Times of places: what is due becomes free, or expires; places that are given back for later; places that have expired.
 * table/times.h has the index. The wall clock is looked at only while a place waits for it,
 * or gets a time.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "inspect/inspect.h"
#include "store/store.h"

static uint64_t wall_us(const ls_store *store) {
    vfs *v = store->inspection != NULL ? store->inspection->reader->v : store->directory.v;
    return v->now_us(v);
}

void store_note_time(ls_store *store) { store->state.table.times.now_us = wall_us(store); }

void store_pass_times(ls_store *store) {
    struct table *t = &store->state.table;
    times_pass(t, wall_us(store));
    if (t->due.came_back) {
        takers_serve_due(store); /* before the caller acquires */
    }
}

/* ---- release for later ---- */

/* Bytes by which the messages of the places grow at most. */
static uint64_t grow_at_most(const ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n) {
    const struct table *t = &store->state.table;
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        struct message *m;
        bool there = delivery_place(t, queue_id, &deliveries[i], &m) != NULL;
        bytes += there ? message_states_grow_at_most(t, m, 1, 0) : 0;
    }
    return bytes;
}

/* (waits) Other threads may meanwhile make the messages grow. */
static int reserve(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n) {
    uint64_t reserved, expansion = grow_at_most(store, queue_id, deliveries, n);
    int rc;
    do {
        reserved = expansion;
        rc = log_reserve_to_grow(store->log, states_bytes(store->log, n), reserved, RESERVE_GROWS);
        expansion = grow_at_most(store, queue_id, deliveries, n);
    } while (rc == LS_OK && expansion > reserved);
    return rc;
}

/* Rows of those places that are still there. */
static int make_rows(const ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n,
                     uint64_t not_before_us, bool unseen, struct state_row *rows, uint32_t *count) {
    const struct table *t = &store->state.table;
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        struct message *m;
        const struct place *p = delivery_place(t, queue_id, &deliveries[i], &m);
        if (p == NULL) {
            continue;
        }
        struct remembered state = place_state(p);
        state.not_before_us = not_before_us;
        state.delivery_count = deliveries[i].count - (unseen ? 1 : 0);
        if (!states_prepare(m, p, &state, &rows[(*count)++])) {
            return fail_memory();
        }
    }
    return LS_OK;
}

static int delay_locked(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n,
                        uint64_t not_before_us, bool unseen, struct state_row *rows) {
    uint32_t count = 0;
    int rc = store_check_remembers(store);
    rc = rc == LS_OK ? release_check(store, queue_id, deliveries, n) : rc;
    rc = rc == LS_OK && n > 0 ? reserve(store, queue_id, deliveries, n) : rc;
    rc = rc == LS_OK ? release_check(store, queue_id, deliveries, n) : rc;
    rc = rc == LS_OK ? make_rows(store, queue_id, deliveries, n, not_before_us, unseen, rows, &count) : rc;
    if (rc != LS_OK || count == 0) {
        return rc;
    }
    store_pass_times(store); /* whether the places are hidden is decided by the time of now */
    states_put(store, rows, count);
    acquire_give_back(store, queue_id, deliveries, n, unseen);
    return LS_OK;
}

static int check_delay(const ls_store *store, size_t n, uint64_t not_before_us) {
    uint64_t most = states_most(store->log);
    if (not_before_us == 0) {
        return fail(LS_OPTION, "a release for later needs a time; release the places without one");
    }
    return n <= most
               ? LS_OK
               : fail(LS_OPTION,
                      "at most %" PRIu64 " places are released for later at once, not %zu: that many fit into one "
                      "batch of this store; make several calls",
                      most, n);
}

int ls_delay(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, uint64_t not_before_us,
             int flags) {
    int rc = check_delay(store, n, not_before_us);
    struct state_row *rows = rc == LS_OK ? calloc(n + 1, sizeof *rows) : NULL;
    if (rc == LS_OK && rows == NULL) {
        return fail_memory();
    }
    rc = rc == LS_OK ? work_try(store, NULL, flags) : rc;
    if (rc == LS_OK) {
        rc = delay_locked(store, queue_id, deliveries, n, not_before_us, (flags & LS_UNSEEN) != 0, rows);
        rc = work_leave(store, NULL, rc, flags);
    }
    free(rows);
    return rc;
}

/* ---- expired places ---- */

static int acquire_expired(const ls_store *store, struct queue *q, ls_delivery *into, size_t n, size_t *done) {
    const struct table *t = &store->state.table;
    uint64_t durable_lsn = log_durable_lsn(store->log);
    struct place p = {.at.chunk = NULL};
    uint32_t tenths = acquire_time(store);
    while (*done < n && times_find_expired(q, durable_lsn, &p)) {
        if (!offer_prepare(&p)) {
            return *done == 0 ? fail_memory() : LS_OK;
        }
        const struct message *m = table_message(t, place_entry(&p)->message);
        uint32_t count = offer_take_expired(&p, m, tenths);
        into[(*done)++] = delivery_of(m, &p, count);
    }
    return LS_OK;
}

int ls_acquire_expired(ls_store *store, uint32_t queue_id, ls_delivery *into, size_t n, int flags, size_t *done) {
    *done = 0;
    int rc = store_try(store, flags);
    if (rc != LS_OK) {
        return rc;
    }
    store_times(store);
    rc = store_check_queues(store, &queue_id, 1);
    if (rc == LS_OK) {
        rc = acquire_expired(store, table_queue(&store->state.table, queue_id), into, n, done);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
