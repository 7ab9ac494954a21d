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
#include "format/xxh64.h"

uint64_t ls_xxh64(const uint8_t *data, size_t bytes, uint64_t seed) { return xxh64(data, bytes, seed); }

/* ---- around every operation ---- */

/* Gives the lock back. */
static int fail_phase(ls_store *store) {
    bool is_inspection = store->inspection != NULL && store->phase == PHASE_OPENED, inspected = store->inspected;
    log_unlock(&store->log);
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
    log_lock(&store->log);
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
    if (!log_try_lock(&store->log)) {
        return LS_WOULD_WAIT;
    }
    if (store->phase != PHASE_SERVING) {
        return fail_phase(store);
    }
    store->log.front.trying = true;
    return LS_OK;
}

int store_look(ls_store *store) {
    if (atomic_load(&store->foreign)) {
        return fail_forked();
    }
    log_lock(&store->log);
    bool inspected = store->inspected && store->phase == PHASE_OPENED;
    return store->phase == PHASE_SERVING || inspected ? LS_OK : fail_phase(store);
}

int store_leave(ls_store *store, int rc, int flags) {
    struct log *g = &store->log;
    g->front.trying = false;
    if ((flags & LEAVE_QUIETLY) == 0) {
        if (rc == LS_OK && (flags & LS_WAIT) != 0 && !store->relaxed) {
            rc = log_force(g, g->front.end_lsn);
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

static int open_parts(ls_store *store, vfs *v, const char *path, const ls_options *o) {
    struct log *g = &store->log;
    g->v = v;
    int rc = check_options(o);
    rc = rc == LS_OK ? fork_register(store) : rc;
    rc = rc == LS_OK ? directory_open(g, path, o->create != 0) : rc;
    rc = rc == LS_OK ? directory_take_lock(g, path, o->create != 0) : rc;
    rc = rc == LS_OK ? directory_find_meta(store, o) : rc;
    rc = rc == LS_OK ? check_log_limit(o->max_log_bytes, &store->meta) : rc;
    rc = rc == LS_OK && store->creating ? directory_sync_parent(g, path) : rc;
    rc = rc == LS_OK ? log_init(g, v, o, &store->meta) : rc;
    if (rc == LS_OK && !store->creating) {
        rc = recover_replay(store);
    }
    return rc;
}

static int register_clients(ls_store *store, const struct log_client *clients, size_t count) {
    struct log_client messages = messages_client(store);
    int rc = log_register(&store->log, &messages);
    for (size_t i = 0; rc == LS_OK && i < count; i++) {
        rc = log_register(&store->log, &clients[i]);
    }
    return rc;
}

static void init_log(struct log *g) {
    g->dir = g->holds_dir = g->lock_file = g->hint_file = -1;
    g->relocate = relocate_segment;
    (void)pthread_mutex_init(&g->front.lock, NULL);
    (void)pthread_cond_init(&g->spare_thread.wake, NULL);
    (void)pthread_cond_init(&g->spare_thread.done, NULL);
    (void)sem_init(&g->flusher.wake, 0, 0);
}

int store_new(const ls_options *options, const struct log_client *clients, size_t count, ls_store **store) {
    ls_store *made = *store = calloc(1, sizeof *made);
    if (made == NULL) {
        return fail_memory();
    }
    atomic_init(&made->handles, 1);
    made->options = *options;
    made->relaxed = options->relaxed != 0;
    made->scan.file = -1;
    state_init(&made->state, &made->log.clients);
    checkpoints_init(&made->checkpoints, &made->log, &made->state, options->no_checkpoint != 0);
    init_log(&made->log);
    int rc = register_clients(made, clients, count);
    made->scan.known = made->log.clients.known;
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
    struct log *g = &store->log;
    if (atomic_load(&store->foreign)) {
        return fail_forked();
    }
    log_lock(g);
    if (store->phase == PHASE_CLOSED || store->inspection != NULL) {
        return fail_phase(store);
    }
    int rc = check_log_limit(max_log_bytes, &store->meta);
    if (rc == LS_OK) {
        g->max_log_bytes = max_log_bytes;
        g->spare_thread.wanted = g->spare_thread.wanted || g->serving; /* there may be room for one more spare */
        (void)pthread_cond_signal(&g->spare_thread.wake);
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

/* A last batch, then CLOSE in one of its own. Nothing, if nothing was written since the last orderly close. */
static int write_close(ls_store *store) {
    struct log *g = &store->log;
    int rc = roll_back_open_transactions(store);
    if (rc == LS_OK && store->was_clean && g->stats.records == 0 && g->stats.batches == 0) {
        return rc;
    }
    if (rc == LS_OK || rc == LS_FULL) { /* a rollback that cannot be told is derived by the next open */
        rc = log_force(g, g->front.end_lsn);
    }
    rc = rc == LS_OK ? log_reserve(g, PLAIN_RECORD_BYTES, RESERVE_SHRINKS) : rc;
    if (rc == LS_OK) {
        struct slot s = log_slot(g, 0, 0, 0);
        uint64_t end_lsn = g->front.durable_lsn;
        log_append(g, &s, CLOSE, format_put_plain(&s, CLOSE));
        rc = log_force(g, g->front.end_lsn);
        if (rc == LS_OK) {
            log_unlock_for_io(g);
            bool fine = closed_publish(g, end_lsn);
            log_relock_after_io(g);
            g->stats.hint_failures += fine ? 0 : 1;
        }
    }
    return rc == LS_FULL ? LS_OK : rc; /* all is durable; a full log merely has no CLOSE */
}

static void close_handles(ls_store *store) {
    struct log *g = &store->log;
    int *handles[] = {&g->hint_file, &g->holds_dir, &g->dir, &g->lock_file}; /* the lock goes last */
    for (size_t i = 0; i < g->segment_count; i++) {
        if (g->segments[i]->file >= 0) {
            (void)g->v->close(g->v, g->segments[i]->file);
            g->segments[i]->file = -1;
        }
    }
    for (struct segment *s = g->space.spares; s != NULL; s = s->next_spare) {
        if (s->file >= 0) {
            (void)g->v->close(g->v, s->file);
            s->file = -1;
        }
    }
    for (size_t i = 0; i < sizeof handles / sizeof *handles; i++) {
        if (*handles[i] >= 0) {
            (void)g->v->close(g->v, *handles[i]);
            *handles[i] = -1;
        }
    }
}

static bool has_readers(const struct log *g) {
    bool any = g->space.unnamed_segments != NULL;
    for (size_t i = 0; i < g->segment_count; i++) {
        any = any || g->segments[i]->readers > 0;
    }
    return any;
}

int ls_close(ls_store *store) {
    struct log *g = &store->log;
    if (atomic_load(&store->foreign)) {
        return LS_OK;
    }
    log_lock(g);
    if (store->phase == PHASE_CLOSED) {
        log_unlock(g);
        return LS_OK;
    }
    bool was_serving = store->phase == PHASE_SERVING;
    store->phase = PHASE_CLOSED; /* no operation begins, and one that waits for room finds it closed */
    while (g->relocation.moving &&
           g->space.spare_count == 0) { /* it ends by giving a segment back, which the next open may need */
        log_wait(g, &g->spare_thread.done);
    }
    g->serving = false;
    g->closing = true;
    (void)pthread_cond_broadcast(&g->spare_thread.wake); /* a move that keeps pace with others waits no longer */
    g->closer = pthread_self();
    int rc = was_serving && g->poison == 0 ? write_close(store) : LS_OK;
    ls_error kept = *ls_last_error();
    if (was_serving && g->poison == 0) {
        (void)log_force(g, g->front.end_lsn); /* so that a thread that was woken to lead finds nothing left to write */
    }
    while (g->commit.leading || g->commit.waiters != NULL || has_readers(g)) { /* another thread's last batch or read */
        log_let_go(g);
        const struct timespec pause = {.tv_nsec = 100 * 1000};
        (void)nanosleep(&pause, NULL);
        log_take_back(g);
    }
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
    close_handles(store);
    fork_go_on();
    log_unlock(g);
    fork_forget(store);
    return rc == LS_OK ? LS_OK : fail_again(&kept);
}

void store_drop(ls_store *store) {
    if (atomic_fetch_sub(&store->handles, 1) > 1) {
        return;
    }
    struct log *g = &store->log;
    if (atomic_load(&store->foreign)) {
        fork_leave_behind(store);
        return;
    }
    for (int i = 0; i < g->event_count; i++) {
        (void)g->v->event_close(g->v, g->events[i]);
    }
    scan_close(&store->scan);
    log_free(g);
    state_free(&store->state);
    log_clients_free(&g->clients);
    free(store->deaths);
    checkpoints_free(&store->checkpoints);
    inspection_free(store->inspection);
    (void)pthread_mutex_destroy(&g->front.lock);
    (void)pthread_cond_destroy(&g->spare_thread.wake);
    (void)pthread_cond_destroy(&g->spare_thread.done);
    (void)sem_destroy(&g->flusher.wake);
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
    log_lock(&store->log);
    uint64_t value = what(&store->log);
    log_unlock(&store->log);
    return value;
}

uint64_t ls_base_lsn(const ls_store *store) { return read_locked((ls_store *)(uintptr_t)store, log_base_lsn); }

uint64_t ls_durable_lsn(const ls_store *store) { return store->log.front.durable_lsn; }

/* The caller is likely to wait for this LSN, and the last records may be of a move or a transaction, which flush nothing. */
static uint64_t next_lsn_and_unlock(struct log *g) {
    uint64_t lsn = g->front.end_lsn;
    if (g->serving && lsn > g->flusher.wanted_lsn && lsn > g->front.durable_lsn) {
        log_flush_soon(g);
    }
    log_unlock(g);
    return lsn;
}

uint64_t ls_next_lsn(ls_store *store) {
    if (atomic_load(&store->foreign)) {
        return 0;
    }
    log_lock(&store->log);
    return next_lsn_and_unlock(&store->log);
}

uint64_t ls_next_lsn_try(ls_store *store) {
    return atomic_load(&store->foreign) || !log_try_lock(&store->log) ? 0 : next_lsn_and_unlock(&store->log);
}

int ls_poisoned(const ls_store *store) { return atomic_load(&store->foreign) ? 0 : store->log.poison; }

int ls_force(ls_store *store, uint64_t lsn) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    uint64_t end_lsn = store->log.front.end_lsn;
    if (lsn > end_lsn) {
        rc = fail(LS_OPTION, "LSN %" PRIu64 " lies beyond the end of the log, %" PRIu64, lsn, end_lsn);
    } else {
        rc = log_force(&store->log, lsn == 0 ? end_lsn : lsn);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_durable_soon(ls_store *store, uint64_t lsn, int flags) {
    struct log *g = &store->log;
    if (g->front.durable_lsn >= lsn) {
        return 1;
    }
    int rc = store_try(store, flags);
    if (rc == LS_OK) {
        if (g->flusher.wanted_lsn < lsn) {
            log_flush_soon(g);
        }
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
    struct log *g = &store->log;
    if (g->event_count == LS_EVENTS_MAX) {
        rc = fail(LS_OPTION,
                  "%d event loops or threads wait for this store's group commits already; close one, or wait in fewer",
                  LS_EVENTS_MAX);
        return store_leave(store, rc, LEAVE_QUIETLY);
    }
    int made = g->v->event_new(g->v);
    if (made < 0) {
        return store_leave(store, fail_errno(LS_IO, -made, "no eventfd can be made"), LEAVE_QUIETLY);
    }
    g->events[g->event_count++] = *fd = made;
    return store_leave(store, LS_OK, LEAVE_QUIETLY);
}

void ls_event_end(ls_store *store, int fd) {
    struct log *g = &store->log;
    if (atomic_load(&store->foreign)) {
        return;
    }
    log_lock(g);
    for (int i = 0; i < g->event_count; i++) {
        if (g->events[i] == fd) {
            g->events[i] = g->events[--g->event_count];
            (void)g->v->event_close(g->v, fd);
            break;
        }
    }
    log_unlock(g);
}

int ls_move_base(ls_store *store) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    struct log *g = &store->log;
    rc = log_force(g, g->front.end_lsn);
    log_advance_base(g);
    if (rc == LS_OK && log_base_lsn(g) > g->named_base_lsn) {
        rc = log_reserve(g, 0, RESERVE_SHRINKS);
        rc = rc == LS_OK ? log_force_batch(g) : rc;
    }
    if (rc == LS_OK && g->base_index > 0) { /* also what a hold has kept until now */
        spares_try(g);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

void ls_stats_get(ls_store *store, ls_stats *stats) {
    struct log *g = &store->log;
    *stats = (ls_stats){.relaxed = store->relaxed};
    if (atomic_load(&store->foreign)) {
        return;
    }
    log_lock(g);
    *stats = g->stats;
    stats->messages = store->state.table.message_count;
    stats->places = store->state.table.place_count;
    stats->transactions = store->state.table.tx_count;
    stats->live_bytes = log_live_bytes(g) + clients_weight(&g->clients);
    stats->segments = g->segment_count;
    stats->spares = g->space.spare_count;
    stats->log_bytes = (g->segment_count + g->space.spare_count) * g->segment_size;
    stats->held_segments = g->space.held_count;
    stats->held_bytes = g->space.held_count * g->segment_size;
    stats->device_bytes = atomic_load(&g->written.bytes);
    stats->device_writes = atomic_load(&g->written.calls);
    stats->relaxed = store->relaxed;
    stats->checkpoint_lsn = store->checkpoints.lsn;
    stats->checkpoint_bytes = store->checkpoints.bytes;
    stats->full = spares_are_full(g);
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
    const struct log *g = &store->log;
    *count = g->segment_count;
    for (size_t i = 0; i < g->segment_count && i < n; i++) {
        const struct segment *s = g->segments[i];
        into[i] = (ls_segment_info){
            .first_lsn = s->first_lsn,
            .epoch = s->epoch,
            .end_lsn = s->end_lsn != 0 ? s->end_lsn : g->front.end_lsn,
            .live_bytes = s->live_bytes,
            .live_records = s->live_records,
            .current = i + 1 == g->segment_count,
        };
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
