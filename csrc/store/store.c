/* Opening, closing, and what every operation has in common. See store.h and docs/recovery.md. */
#include "store/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "inspect/inspect.h"
#include "os/io.h"
#include "relocate/relocate.h"

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
    if ((flags & LEAVE_QUIETLY) == 0) {
        if (rc == LS_OK && (flags & LS_WAIT) != 0 && !store->relaxed) {
            rc = log_force(g, log_end_lsn(g));
        } else if ((flags & LS_MORE) == 0) {
            log_flush_soon(g);
        }
    }
    log_unlock(g);
    return rc;
}

/* ---- options ---- */

void ls_options_default(ls_options *options) {
    *options = (ls_options){.initial_segments = 2, .max_write_buffers = 10, .create = 1, .background = 1};
}

static int check_options(const ls_options *o) {
    if (o->max_write_buffers < 2 || o->max_write_buffers > LS_BUFFERS_MAX) {
        return fail(LS_OPTION, "max_write_buffers is 2 to %d", LS_BUFFERS_MAX);
    }
    if (o->initial_segments < 1 || o->initial_segments > 65536) {
        return fail(LS_OPTION, "initial_segments is 1 to 65536");
    }
    if (o->segment_size > SEGMENT_BYTES_MAX) {
        return fail(LS_OPTION, "segment_size is at most %llu bytes", (unsigned long long)SEGMENT_BYTES_MAX);
    }
    if (o->max_undurable_bytes > LSN_MAX / 4) {
        return fail(LS_OPTION, "max_undurable_bytes is too large");
    }
    return LS_OK;
}

static int check_log_limit(uint64_t max_log_bytes, const struct meta *m) {
    if (max_log_bytes != 0 && max_log_bytes / 6 < m->segment_size) {
        return fail(LS_OPTION, "max_log_bytes is at least 6 segments, %llu bytes",
                    (unsigned long long)(6 * m->segment_size));
    }
    return LS_OK;
}

/* ---- open ---- */

/*
 * Checks, before the directory is changed, that a new store's limit fits its segments. Ignores the error of a system
 * call: the open makes the same call and reports it.
 */
static int check_limit_of_new(vfs *v, const char *path, const ls_options *o) {
    if (o->create == 0 || o->max_log_bytes == 0 || directory_has_meta(v, path)) {
        return LS_OK;
    }
    const struct meta m = {.segment_size = directory_segment_size(o)};
    return check_log_limit(o->max_log_bytes, &m);
}

static int open_parts(ls_store *store, vfs *v, const char *path, const ls_options *o) {
    struct directory *d = &store->directory;
    d->v = v;
    int rc = check_options(o);
    rc = rc == LS_OK ? check_limit_of_new(v, path, o) : rc;
    rc = rc == LS_OK ? fork_register(store) : rc;
    rc = rc == LS_OK ? directory_open(d, path, o->create != 0) : rc;
    rc = rc == LS_OK ? directory_take_lock(store, path, o->create != 0) : rc;
    rc = rc == LS_OK ? directory_find_meta(store, o) : rc;
    rc = rc == LS_OK ? check_log_limit(o->max_log_bytes, &store->meta) : rc;
    rc = rc == LS_OK && store->creating ? directory_sync_parent(d, path) : rc;
    rc = rc == LS_OK ? log_init(store->log, d, o, &store->meta) : rc;
    if (rc == LS_OK && !store->creating) {
        rc = recover_replay(store);
    }
    return rc;
}

static int register_clients(ls_store *store, const struct log_client *clients, size_t count) {
    struct log_client messages = messages_client(store);
    int rc = log_register(store->log, &messages);
    for (size_t i = 0; rc == LS_OK && i < count; i++) {
        rc = log_register(store->log, &clients[i]);
    }
    return rc;
}

int store_new(const ls_options *options, const struct log_client *clients, size_t count, ls_store **store) {
    ls_store *made = *store = calloc(1, sizeof *made);
    if (made == NULL) {
        return fail_memory();
    }
    made->log = log_new(relocate_segment);
    if (made->log == NULL) {
        free(made);
        *store = NULL;
        return fail_memory();
    }
    atomic_init(&made->handles, 1);
    made->options = *options;
    made->relaxed = options->relaxed != 0;
    made->scan.file = made->directory.dir = made->lock_file = -1;
    state_init(&made->state, log_clients(made->log));
    checkpoints_init(&made->checkpoints, made->log, &made->state, &made->directory, &made->meta, options);
    int rc = register_clients(made, clients, count);
    made->scan.known = made->state.clients->known;
    return rc;
}

static void free_failed(ls_store *store) {
    ls_error kept = *ls_last_error();
    if (store != NULL) {
        ls_free(store);
    }
    (void)fail_again(&kept);
}

int store_open_with(vfs *system, const char *store_dir, const ls_options *options, const struct log_client *clients,
                    size_t count, ls_store **store) {
    ls_store *made;
    *store = NULL;
    system = system != NULL ? system : vfs_posix();
    int rc = store_new(options, clients, count, &made);
    if (rc == LS_OK) {
        uint64_t start_us = system->monotonic_us(system);
        rc = open_parts(made, system, store_dir, options);
        made->state.report.total_us = system->monotonic_us(system) - start_us;
    }
    if (rc != LS_OK) {
        free_failed(made);
        return rc;
    }
    *store = made;
    return LS_OK;
}

int ls_open(vfs *system, const char *store_dir, const ls_options *options, ls_store **store) {
    return store_open_with(system, store_dir, options, NULL, 0, store);
}

int ls_limit_log(ls_store *store, uint64_t max_log_bytes) {
    struct log *g = store->log;
    if (atomic_load(&store->foreign)) {
        return fail_forked();
    }
    log_lock(g);
    if (store->phase == PHASE_CLOSED || store->inspection != NULL) {
        return fail_phase(store);
    }
    int rc = check_log_limit(max_log_bytes, &store->meta);
    if (rc == LS_OK) {
        log_limit(g, max_log_bytes);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

/* ---- close ---- */

static int roll_back_open_transactions(ls_store *store) {
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < store->state.table.tx_slots; i++) {
        struct tx *tx = store->state.table.txs[i];
        if (tx != NULL && tx->state != LS_TX_PREPARED) {
            rc = tx_roll_back_open(store, tx->id);
        }
    }
    return rc;
}

/* Writes nothing if nothing was written since the last orderly close. */
static int write_close(ls_store *store) {
    int rc = roll_back_open_transactions(store);
    if (rc == LS_OK && store->was_clean && log_is_untouched(store->log)) {
        return rc;
    }
    if (rc == LS_OK || rc == LS_FULL) { /* the next open derives a rollback that could not be logged */
        rc = log_write_close(store->log);
    }
    return rc == LS_FULL ? LS_OK : rc; /* all records are durable; a full log only lacks CLOSE */
}

/* Releases the lock on the store last. */
static void close_files(ls_store *store) {
    struct directory *d = &store->directory;
    int *handles[] = {&d->dir, &store->lock_file};
    log_close_files(store->log);
    for (size_t i = 0; i < sizeof handles / sizeof *handles; i++) {
        if (*handles[i] >= 0) {
            (void)d->v->close(d->v, *handles[i]);
            *handles[i] = -1;
        }
    }
}

int ls_close(ls_store *store) {
    struct log *g = store->log;
    if (atomic_load(&store->foreign)) {
        return LS_OK;
    }
    log_lock(g);
    if (store->phase == PHASE_CLOSED) {
        log_unlock(g);
        return LS_OK;
    }
    bool was_serving = store->phase == PHASE_SERVING;
    store->phase = PHASE_CLOSED; /* no operation can begin, and one that waits for room gets LS_CLOSED */
    log_begin_close(g);
    int rc = was_serving && log_poison(g) == 0 ? write_close(store) : LS_OK;
    ls_error kept = *ls_last_error();
    log_drain(g);
    log_unlock(g);
    checkpoint_stop_thread(&store->checkpoints);
    log_stop_threads(g);
    scan_close(&store->scan);
    log_lock(g);
    if (was_serving && rc == LS_OK) {
        checkpoint_at_close(&store->checkpoints);
    }
    log_signal(g);
    fork_wait();
    close_files(store);
    fork_go_on();
    log_unlock(g);
    fork_forget(store);
    return rc == LS_OK ? LS_OK : fail_again(&kept);
}

void store_drop(ls_store *store) {
    if (atomic_fetch_sub(&store->handles, 1) > 1) {
        return;
    }
    if (atomic_load(&store->foreign)) {
        fork_leave_behind(store);
        return;
    }
    scan_close(&store->scan);
    state_free(&store->state);
    checkpoints_free(&store->checkpoints);
    inspection_free(store->inspection);
    log_free(store->log);
    free(store->deaths);
    free(store);
}

void ls_free(ls_store *store) {
    if (store == NULL) {
        return;
    }
    if (!atomic_load(&store->foreign) && store->phase != PHASE_CLOSED) {
        (void)ls_close(store);
    }
    store_drop(store);
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

uint64_t ls_durable_lsn(const ls_store *store) { return log_durable_lsn(store->log); }

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

int ls_poisoned(const ls_store *store) { return atomic_load(&store->foreign) ? 0 : log_poison(store->log); }

int ls_force(ls_store *store, uint64_t lsn) {
    int rc = store_enter(store);
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
