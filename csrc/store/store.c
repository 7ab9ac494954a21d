/*
 * What every operation has in common: its beginning, which asks whether the store and the caller's transaction may be used and
 * takes the lock, and its end, which forces if the caller waits and gives the lock back. Durability and figures of the store.
 */
#include "store/store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/inspect.h"

/* ---- around every operation ---- */

/* Fails by the store's phase, and releases the lock. */
static int fail_phase(ls_store *store) {
    bool is_inspection = store->inspection != NULL && store->phase == PHASE_OPENED, inspected = store->inspected;
    log_unlock(store->log);
    if (is_inspection && !inspected) {
        return fail(LS_CLOSED, "the log has not been read to its end yet");
    }
    return is_inspection ? fail(LS_CLOSED, "the store is only inspected; open it to change it")
                         : fail(LS_CLOSED, "the store is closed; open it again");
}

static int fail_forked(void) {
    return fail(LS_FORKED, "this process is a fork of the one that opened the store; open it again after fork, in one "
                           "process only");
}

int store_enter(ls_store *store) {
    if (atomic_load(&store->foreign)) {
        return fail_forked();
    }
    log_lock(store->log);
    return store->phase == PHASE_SERVING ? LS_OK : fail_phase(store);
}

int store_try(ls_store *store, int flags) {
    if ((flags & LS_TRY) == 0) {
        return store_enter(store);
    }
    if ((flags & LS_WAIT) != 0) {
        return fail(LS_OPTION, "a call cannot both wait (LS_WAIT) and refuse to wait (LS_TRY)");
    }
    if (atomic_load(&store->foreign)) {
        return fail_forked();
    }
    if (!log_try_lock(store->log)) {
        return LS_WOULD_WAIT;
    }
    if (store->phase != PHASE_SERVING) {
        return fail_phase(store);
    }
    log_set_trying(store->log, true);
    return LS_OK;
}

int store_may_wait(const ls_store *store) {
    return store->moving_thread == 0 || store->moving_thread != (uint64_t)pthread_self()
               ? LS_OK
               : fail(LS_OPTION,
                      "a call that may wait would never end on the thread that moves the log to the other copies "
                      "(the loop of the cluster's member): make it in another thread; nothing was done");
}

int store_enter_opened(ls_store *store) {
    if (atomic_load(&store->foreign)) {
        return fail_forked();
    }
    log_lock(store->log);
    return store->phase == PHASE_CLOSED || store->inspection != NULL ? fail_phase(store) : LS_OK;
}

int store_look(ls_store *store) {
    if (atomic_load(&store->foreign)) {
        return fail_forked();
    }
    log_lock(store->log);
    bool inspected = store->inspected && store->phase == PHASE_OPENED;
    return store->phase == PHASE_SERVING || inspected ? LS_OK : fail_phase(store);
}

int store_leave(ls_store *store, int rc, int flags) {
    struct log *g = store->log;
    log_set_trying(g, false);
    if (store->state.table.due.came_back) {
        takers_serve_due(store);
    }
    if ((flags & LEAVE_QUIETLY) == 0) {
        if (store->counted_n > 0 && rc == LS_OK) {
            counts_write_noted(store); /* they go along */
        }
        if (rc == LS_OK && (flags & LS_WAIT) != 0 && !store->relaxed) {
            rc = log_force(g, log_end_lsn(g));
        } else if ((flags & LS_MORE) == 0) {
            log_flush_soon(g);
        }
    }
    log_unlock(g);
    return rc;
}

/* ---- around an operation that may be a transaction's ---- */

struct tx *tx_of(const ls_tx *handle) {
    return table_tx_at(&handle->store->state.table, handle->number, handle->id);
}

void tx_drop(ls_tx *handle) {
    if (atomic_fetch_sub(&handle->users, 1) == 1) {
        store_drop(handle->store);
        free(handle);
    }
}

int work_try(ls_store *store, ls_tx *handle, int flags) {
    int rc = (flags & LS_TRY) != 0 ? LS_OK : store_may_wait(store);
    if (rc != LS_OK || handle == NULL) {
        return rc == LS_OK ? store_try(store, flags) : rc;
    }
    atomic_fetch_add(&handle->users, 1);
    rc = store_try(store, flags);
    if (rc != LS_OK) {
        tx_drop(handle);
    }
    return rc;
}

int work_enter(ls_store *store, ls_tx *handle) { return work_try(store, handle, 0); }

int work_leave(ls_store *store, ls_tx *handle, int rc, int flags) {
    if (handle == NULL) {
        return store_leave(store, rc, flags);
    }
    rc = store_leave(store, rc, LEAVE_QUIETLY);
    tx_drop(handle);
    return rc;
}

static const char *state_name(int state) {
    static const char *const names[] = {"unknown", "active", "ended", "prepared", "committed", "rolled back"};
    return state >= 0 && state <= LS_TX_ROLLED_BACK ? names[state] : names[0];
}

int tx_fail_ended(const ls_tx *handle) {
    if (handle->last.state < LS_TX_COMMITTED) {
        return fail(LS_TRANSACTION_ENDED, "transaction %llu was abandoned; begin another, or take it if it is in doubt",
                    (unsigned long long)handle->last.id);
    }
    return fail(LS_TRANSACTION_ENDED, "transaction %llu is %s already; begin another",
                (unsigned long long)handle->last.id, state_name(handle->last.state));
}

int tx_fail_state(const struct tx *tx, const char *what) {
    return fail(LS_WRONG_STATE, "transaction %llu is %s, so %s", (unsigned long long)tx->id, state_name(tx->state),
                what);
}

int tx_check_work(ls_store *store, ls_tx *handle, struct tx **tx) {
    *tx = NULL;
    if (handle == NULL) {
        return LS_OK;
    }
    if (handle->store != store) {
        return fail(LS_WRONG_STATE, "the transaction belongs to another store");
    }
    struct tx *found = tx_of(handle);
    if (found == NULL) {
        return tx_fail_ended(handle);
    }
    if (found->state != LS_TX_ACTIVE) {
        return tx_fail_state(found, "it takes no more work");
    }
    *tx = found;
    return LS_OK;
}

/* ---- durability and figures ---- */

int ls_creating(const ls_store *store) { return store->creating && store->phase == PHASE_OPENED; }

void ls_uuid(const ls_store *store, uint8_t uuid[16]) { memcpy(uuid, store->meta.uuid, UUID_BYTES); }

void ls_recovery_report(const ls_store *store, ls_recovery *report) { *report = store->state.report; }

uint64_t ls_segment_size(const ls_store *store) { return store->meta.segment_size; }

/* 0 in a forked child: a thread of the parent may have held the lock, which no thread of the child ever lets go. */
static uint64_t read_locked(ls_store *store, uint64_t (*what)(const struct log *g)) {
    if (atomic_load(&store->foreign)) {
        return 0;
    }
    log_lock(store->log);
    uint64_t value = what(store->log);
    log_unlock(store->log);
    return value;
}

uint64_t ls_base_lsn(const ls_store *store) { return read_locked((ls_store *)(uintptr_t)store, log_base_lsn); }

uint64_t ls_durable_lsn(const ls_store *store) {
    return atomic_load(&store->foreign) ? 0 : log_durable_lsn(store->log);
}

static uint64_t next_lsn_and_unlock(struct log *g) {
    uint64_t lsn = log_next_lsn(g);
    log_unlock(g);
    return lsn;
}

uint64_t ls_next_lsn(ls_store *store) {
    if (atomic_load(&store->foreign)) {
        return 0;
    }
    log_lock(store->log);
    return next_lsn_and_unlock(store->log);
}

uint64_t ls_next_lsn_try(ls_store *store) {
    return atomic_load(&store->foreign) || !log_try_lock(store->log) ? 0 : next_lsn_and_unlock(store->log);
}

uint32_t ls_room_percent(ls_store *store) {
    if (atomic_load(&store->foreign)) {
        return 0;
    }
    log_lock(store->log);
    uint32_t percent = log_room_percent(store->log);
    log_unlock(store->log);
    return percent;
}

int ls_room_percent_try(ls_store *store) {
    if (atomic_load(&store->foreign) || !log_try_lock(store->log)) {
        return -1;
    }
    int percent = (int)log_room_percent(store->log);
    log_unlock(store->log);
    return percent;
}

int ls_poisoned(const ls_store *store) { return atomic_load(&store->foreign) ? 0 : log_poison(store->log); }

int ls_force(ls_store *store, uint64_t lsn) {
    int rc = store_may_wait(store);
    rc = rc == LS_OK ? store_enter(store) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    uint64_t end_lsn = log_end_lsn(store->log);
    if (lsn > end_lsn) {
        rc = fail(LS_OPTION, "LSN %" PRIu64 " lies beyond the end of the log, %" PRIu64, lsn, end_lsn);
    } else {
        rc = log_force(store->log, lsn == 0 ? end_lsn : lsn);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_durable_soon(ls_store *store, uint64_t lsn, int flags) {
    struct log *g = store->log;
    if (log_durable_lsn(g) >= lsn) {
        return 1;
    }
    int rc = store_try(store, flags);
    if (rc == LS_OK) {
        log_durable_soon(g, lsn);
        (void)store_leave(store, LS_OK, LEAVE_QUIETLY);
    }
    return rc == LS_WOULD_WAIT ? rc : 0;
}

int ls_flush_soon(ls_store *store) {
    int rc = store_enter(store);
    return rc == LS_OK ? store_leave(store, rc, 0) : rc;
}

int ls_event_fd(ls_store *store, int *fd) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    return store_leave(store, log_event_new(store->log, fd), LEAVE_QUIETLY);
}

void ls_event_end(ls_store *store, int fd) {
    if (atomic_load(&store->foreign)) {
        return;
    }
    log_lock(store->log);
    log_event_end(store->log, fd);
    log_unlock(store->log);
}

int ls_event_answer(ls_store *store, int fd, uint64_t lsn, int socket, const uint8_t *bytes, size_t count) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    return store_leave(store, log_answer(store->log, fd, lsn, socket, bytes, count), LEAVE_QUIETLY);
}

int ls_event_answer_all(ls_store *store, int fd, int socket, const uint8_t *bytes, size_t count, int flags,
                        uint64_t *lsn) {
    *lsn = 0;
    int rc = store_try(store, flags);
    if (rc != LS_OK) {
        return rc;
    }
    return store_leave(store, log_answer_all(store->log, fd, socket, bytes, count, lsn), LEAVE_QUIETLY);
}

int64_t ls_event_answered(ls_store *store, int fd) {
    if (atomic_load(&store->foreign)) {
        return -1;
    }
    log_lock(store->log);
    int64_t sent = log_answered(store->log, fd);
    log_unlock(store->log);
    return sent;
}

void ls_stats_get(ls_store *store, ls_stats *stats) {
    struct log *g = store->log;
    *stats = (ls_stats){.relaxed = store->relaxed};
    if (atomic_load(&store->foreign)) {
        return;
    }
    log_lock(g);
    log_stats(g, stats);
    stats->messages = store->state.table.message_count;
    stats->places = store->state.table.place_count;
    stats->transactions = store->state.table.tx_count;
    stats->waiting = store->state.table.due.waiting;
    stats->device_bytes = atomic_load(&store->directory.written.bytes);
    stats->device_writes = atomic_load(&store->directory.written.calls);
    stats->relaxed = store->relaxed;
    stats->checkpoints = store->checkpoints.taken;
    stats->checkpoint_failures = store->checkpoints.failures;
    stats->checkpoint_lsn = store->checkpoints.lsn;
    stats->checkpoint_bytes = store->checkpoints.bytes;
    log_unlock(g);
}

int ls_segments(ls_store *store, ls_segment_info *into, size_t n, size_t *count) {
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    if (store->inspection != NULL) {
        *count = inspection_segments(store->inspection, into, n);
        return store_leave(store, rc, LEAVE_QUIETLY);
    }
    *count = log_segments(store->log, into, n);
    return store_leave(store, rc, LEAVE_QUIETLY);
}
