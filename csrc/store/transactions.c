/*
 * Transactions: begin, end, prepare, commit, rollback. An operation of a transaction is logged at once and pends on its
 * message; the outcome is one record, with which all operations take effect or none. A commit is one force.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

static ls_tx_info info_of(const struct tx *tx, int state) {
    ls_tx_info info = {
        .id = tx->id,
        .prepared_us = tx->prepared_us,
        .operations = tx->work_count,
        .state = state,
        .distributed = tx->distributed,
    };
    info.xid.format_id = tx->xid.format_id;
    info.xid.gtrid_bytes = tx->xid.gtrid_bytes;
    info.xid.bqual_bytes = tx->xid.bqual_bytes;
    memcpy(info.xid.data, tx->xid.data, sizeof tx->xid.data);
    return info;
}

static void remember(ls_tx *handle, const struct tx *tx) { handle->last = info_of(tx, tx->state); }

/* The record with which the transaction gets this state is appended: a prepared one comes into doubt, or leaves it. */
static void notice_in_doubt(ls_store *store, const struct tx *tx, int state) {
    if (store->noticing.in_doubt && tx->state == LS_TX_PREPARED) {
        ls_tx_info info = info_of(tx, state);
        notices_of_tx(store, &info);
    }
}

static int leave(ls_tx *handle, int rc, int flags) {
    rc = store_leave(handle->store, rc, flags);
    tx_drop(handle);
    return rc;
}

/* (waits) Reserves room for `bytes`, and then looks the transaction up: another thread may have ended it meanwhile. */
static int reserve_and_find(ls_tx *handle, uint64_t bytes, struct tx **tx) {
    *tx = tx_of(handle);
    int rc = *tx != NULL ? log_reserve(handle->store->log, bytes, RESERVE_SHRINKS) : LS_OK;
    *tx = tx_of(handle);
    if (rc == LS_OK && *tx == NULL) {
        (void)tx_fail_ended(handle);
        return LS_TRANSACTION_ENDED;
    }
    return rc;
}

/* ---- begin ---- */

static int take_xid(const ls_xid *from, struct xid *x) {
    if (from->gtrid_bytes > XID_PART_BYTES_MAX || from->bqual_bytes > XID_PART_BYTES_MAX) {
        return fail(LS_OPTION, "a part of an xid has at most %d bytes", XID_PART_BYTES_MAX);
    }
    x->format_id = from->format_id;
    x->gtrid_bytes = (uint8_t)from->gtrid_bytes;
    x->bqual_bytes = (uint8_t)from->bqual_bytes;
    memcpy(x->data, from->data, (size_t)from->gtrid_bytes + from->bqual_bytes);
    return LS_OK;
}

static void hand_out(ls_tx *handle, ls_store *store, struct tx *tx) {
    tx->handed_out = true;
    handle->store = store;
    handle->id = tx->id;
    handle->number = tx->number;
    atomic_init(&handle->users, 1);
    atomic_fetch_add(&store->handles, 1);
    remember(handle, tx);
}

static int begin_locked(ls_store *store, const struct xid *x, ls_tx *handle) {
    static const struct xid none;
    struct log *g = store->log;
    struct tx *tx;
    uint64_t when_moved = format_tx_relocated_bytes(x != NULL ? x : &none) + TX_GROWS_BYTES;
    int rc =
        log_reserve_to_grow(g, x != NULL ? format_xid_record_bytes(x) : PLAIN_RECORD_BYTES, when_moved, RESERVE_WORK);
    if (rc != LS_OK) {
        return rc;
    }
    if (store->state.table.tx_count >= TX_MAX) {
        return fail(LS_TRANSACTION_LIMIT, "%d transactions are open, the most there may be", TX_MAX);
    }
    if (x != NULL && table_find_xid(&store->state.table, x) != NULL) {
        return fail(LS_DUPLICATE_XID, "a branch with this xid is open or prepared; resolve it first");
    }
    if (!table_prepare_tx(&store->state.table, &tx)) {
        return fail_memory();
    }
    struct slot s = log_slot(g, 0, 0, 0);
    s.id = s.lsn;
    enum record_type type = x != NULL ? DTX_START : TX_START;
    uint32_t bytes = x != NULL ? format_put_xid(&s, type, x) : format_put_plain(&s, type);
    tx->state = LS_TX_ACTIVE;
    tx->started = true;
    tx->started_us = store->directory.v->now_us(store->directory.v);
    if (x != NULL) {
        tx->distributed = true;
        tx->xid = *x;
    }
    log_append_live(g, &s, (uint16_t)type, bytes, tx_start_bytes(tx));
    table_add_tx(&store->state.table, tx, s.lsn);
    hand_out(handle, store, tx);
    return LS_OK;
}

int ls_begin(ls_store *store, const ls_xid *xid, ls_tx **handle) {
    *handle = NULL;
    struct xid x = {0};
    int rc = xid != NULL ? take_xid(xid, &x) : LS_OK;
    ls_tx *made = calloc(1, sizeof *made);
    if (made == NULL) {
        rc = fail_memory();
    }
    if (rc == LS_OK) {
        rc = store_enter(store);
    }
    if (rc != LS_OK) {
        free(made);
        return rc;
    }
    rc = store_leave(store, begin_locked(store, xid != NULL ? &x : NULL, made), LEAVE_QUIETLY);
    if (rc != LS_OK) {
        free(made);
        return rc;
    }
    *handle = made;
    return LS_OK;
}

/* ---- outcomes ---- */

static void append_plain(ls_store *store, struct tx *tx, enum record_type type) {
    struct slot s = log_slot(store->log, tx->id, tx->last_lsn, 0);
    log_append(store->log, &s, (uint16_t)type, format_put_plain(&s, type));
    tx->last_lsn = s.lsn;
}

/* Called after the outcome: the start record is no longer needed once the outcome is durable. */
static void forget_tx(ls_store *store, struct tx *tx) {
    log_release_record(store->log, tx->start_lsn, tx_start_bytes(tx));
    table_remove_tx(&store->state.table, tx);
}

/* For calls on the handle once the transaction has left the table. */
static void remember_outcome(ls_tx *handle, const struct tx *tx, int state) { handle->last = info_of(tx, state); }

int ls_tx_end(ls_tx *handle) {
    int rc = work_enter(handle->store, handle);
    if (rc != LS_OK) {
        return rc;
    }
    struct tx *tx;
    rc = reserve_and_find(handle, PLAIN_RECORD_BYTES, &tx);
    if (rc == LS_OK && (!tx->distributed || tx->state != LS_TX_ACTIVE)) {
        rc = tx_fail_state(tx, tx->distributed ? "it cannot be ended again"
                                               : "it has no end but commit or rollback: it is local");
    }
    if (rc == LS_OK) {
        append_plain(handle->store, tx, TX_END);
        tx->state = LS_TX_ENDED;
        remember(handle, tx);
    }
    return leave(handle, rc, LEAVE_QUIETLY);
}

int ls_prepare(ls_tx *handle, int flags) {
    int rc = work_enter(handle->store, handle);
    if (rc != LS_OK) {
        return rc;
    }
    ls_store *store = handle->store;
    struct tx *tx;
    rc = reserve_and_find(handle, XID_RECORD_BYTES_MAX, &tx);
    if (rc == LS_OK && (!tx->distributed || tx->state != LS_TX_ENDED)) {
        rc = tx_fail_state(tx, tx->distributed ? "it cannot be prepared: end it first"
                                               : "it cannot be prepared: it is local");
    }
    if (rc == LS_OK && store->options.max_prepared != 0 &&
        store->state.table.prepared_count >= store->options.max_prepared) {
        rc = fail(LS_TRANSACTION_LIMIT,
                  "%u transactions are prepared, the most that max_prepared allows; commit or roll back some",
                  (unsigned)store->state.table.prepared_count);
    }
    rc = rc == LS_OK ? tx_prepare_clients(store, tx) : rc;
    if (rc == LS_OK) {
        struct slot s = log_slot(store->log, tx->id, tx->last_lsn, 0);
        log_append(store->log, &s, TX_PREPARE, format_put_xid(&s, TX_PREPARE, &tx->xid));
        tx->last_lsn = s.lsn;
        tx_prepared(&store->state.table, tx, store->directory.v->now_us(store->directory.v));
        remember(handle, tx);
        notice_in_doubt(store, tx, LS_TX_PREPARED);
    }
    return leave(handle, rc, flags);
}

int ls_commit(ls_tx *handle, int flags) {
    int rc = work_enter(handle->store, handle);
    if (rc != LS_OK) {
        return rc;
    }
    ls_store *store = handle->store;
    struct tx *tx;
    rc = reserve_and_find(handle, 2 * PLAIN_RECORD_BYTES, &tx);
    if (rc == LS_OK && tx->distributed && tx->state == LS_TX_ACTIVE) {
        rc = tx_fail_state(tx, "it cannot be committed: end it first");
    }
    if (rc == LS_OK && !tx_prepare_commit(store, tx)) {
        rc = fail_memory();
    }
    if (rc == LS_OK) {
        append_plain(store, tx, TX_COMMIT);
        remember_outcome(handle, tx, LS_TX_COMMITTED);
        notice_in_doubt(store, tx, LS_TX_COMMITTED);
        tx_apply_work(store, tx, tx->last_lsn);
        append_plain(store, tx, TX_DELETE);
        forget_tx(store, tx);
        store_log_deaths(store);
    }
    return leave(handle, rc, flags);
}

/* (waits) Its records have reserved room; only logging the messages' deaths waits, after the transaction has ended. */
static void roll_back(ls_store *store, struct tx *tx) {
    append_plain(store, tx, TX_ROLLBACK);
    notice_in_doubt(store, tx, LS_TX_ROLLED_BACK);
    tx_undo_work(store, tx);
    append_plain(store, tx, TX_DELETE);
    forget_tx(store, tx);
    store_log_deaths(store);
}

int tx_roll_back_open(ls_store *store, uint64_t id) {
    int rc = log_reserve(store->log, 2 * PLAIN_RECORD_BYTES, RESERVE_SHRINKS);
    struct tx *tx = table_tx(&store->state.table, id);
    if (rc == LS_OK && tx != NULL && tx->state != LS_TX_PREPARED) {
        roll_back(store, tx);
    }
    return rc;
}

int ls_rollback(ls_tx *handle, int flags) {
    int rc = work_enter(handle->store, handle);
    if (rc != LS_OK) {
        return rc;
    }
    struct tx *tx;
    rc = reserve_and_find(handle, 2 * PLAIN_RECORD_BYTES, &tx);
    if (rc == LS_OK) {
        remember_outcome(handle, tx, LS_TX_ROLLED_BACK);
        roll_back(handle->store, tx);
    }
    return leave(handle, rc, flags);
}

void ls_tx_describe(ls_tx *handle, ls_tx_info *info) {
    struct log *g = handle->store->log;
    if (atomic_load(&handle->store->foreign)) {
        *info = handle->last;
        return;
    }
    atomic_fetch_add(&handle->users, 1);
    log_lock(g);
    const struct tx *tx = tx_of(handle);
    if (tx != NULL) {
        remember(handle, tx);
    }
    *info = handle->last;
    log_unlock(g);
    tx_drop(handle);
}

/*
 * Lets a prepared transaction stay in doubt until it is taken again, and rolls any other back. True: it was rolled
 * back.
 */
static bool let_go_of(ls_tx *handle) {
    const struct tx *tx = tx_of(handle);
    int rc = LS_OK;
    if (tx != NULL && tx->state != LS_TX_PREPARED) {
        rc = log_reserve(handle->store->log, 2 * PLAIN_RECORD_BYTES, RESERVE_SHRINKS);
    }
    struct tx *now = tx_of(handle);
    if (now != NULL) {
        now->handed_out = false;
    }
    if (now == NULL || rc != LS_OK || now->state == LS_TX_PREPARED) {
        return false;
    }
    remember_outcome(handle, now, LS_TX_ROLLED_BACK);
    roll_back(handle->store, now);
    return true;
}

/* Not for_good: another thread that is in a call on this handle can continue the transaction. */
static void give_up(ls_tx *handle, bool for_good) {
    if (!atomic_load(&handle->store->foreign) && store_enter(handle->store) == LS_OK) {
        bool rolled_back = let_go_of(handle);
        handle->number = for_good ? INDEX_NONE : handle->number; /* no transaction has this number */
        (void)store_leave(handle->store, LS_OK, rolled_back ? 0 : LEAVE_QUIETLY);
    }
}

void ls_tx_abandon(ls_tx *handle) { give_up(handle, true); }

void ls_tx_free(ls_tx *handle) {
    if (handle == NULL) {
        return;
    }
    give_up(handle, false);
    tx_drop(handle);
}

/* ---- in doubt ---- */

int ls_in_doubt(ls_store *store, uint64_t *ids, size_t n, size_t *count) {
    *count = 0;
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    for (uint32_t i = 0; i < store->state.table.tx_slots; i++) {
        const struct tx *tx = store->state.table.txs[i];
        if (tx != NULL && tx->state == LS_TX_PREPARED) {
            if (*count < n) {
                ids[*count] = tx->id;
            }
            (*count)++;
        }
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_in_doubt_take(ls_store *store, uint64_t id, ls_tx **handle) {
    *handle = NULL;
    ls_tx *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return fail_memory();
    }
    int rc = store_enter(store);
    if (rc != LS_OK) {
        free(made);
        return rc;
    }
    struct tx *tx = table_tx(&store->state.table, id);
    if (tx == NULL || tx->state != LS_TX_PREPARED) {
        rc = fail(LS_UNKNOWN_XID, "no prepared transaction has id %llu; it may have been resolved",
                  (unsigned long long)id);
    } else if (tx->handed_out) {
        rc = fail(LS_BUSY, "transaction %llu is in other hands already", (unsigned long long)id);
    } else {
        hand_out(made, store, tx);
    }
    rc = store_leave(store, rc, LEAVE_QUIETLY);
    if (rc != LS_OK) {
        free(made);
        return rc;
    }
    *handle = made;
    return LS_OK;
}
