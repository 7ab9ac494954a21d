/* Opening and closing. See store.h and docs/recovery.md; serve.c has what comes between. */
#include "store/store.h"

#include <stdlib.h>

#include "inspect/inspect.h"
#include "relocate/relocate.h"

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
 * Before the directory is touched: a new store's limit must fit its segments. An error of a call is not one of these
 * options; the open itself makes it again and says so.
 */
static int check_limit_of_new(vfs *v, const char *path, const ls_options *o) {
    if (o->create == 0 || o->max_log_bytes == 0 || directory_has_meta(v, path)) {
        return LS_OK;
    }
    const struct meta m = {.segment_size = directory_segment_size(o)};
    return check_log_limit(o->max_log_bytes, &m);
}

int store_open_directory(ls_store *store, vfs *v, const char *path, const ls_options *o) {
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
    return rc == LS_OK ? log_init(store->log, d, o, &store->meta) : rc;
}

static int register_clients(ls_store *store, const struct log_client *clients, size_t count) {
    struct log_client messages = messages_client(store);
    int rc = log_register(store->log, &messages);
    struct log_client replication = replication_client();
    rc = rc == LS_OK && replication.context == NULL ? fail_memory() : rc;
    if (rc == LS_OK) {
        rc = log_register(store->log, &replication);
    } else {
        free(replication.context);
    }
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
        rc = store_open_directory(made, system, store_dir, options);
        rc = rc == LS_OK && !made->creating ? recover_replay(made) : rc;
        made->state.table.in_runs = true; /* that of a new store, too */
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
    int rc = store_enter_opened(store);
    if (rc != LS_OK) {
        return rc;
    }
    rc = check_log_limit(max_log_bytes, &store->meta);
    if (rc == LS_OK) {
        log_limit(store->log, max_log_bytes);
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

/* No record, if none was written since the last orderly close. */
static int write_close(ls_store *store) {
    int rc = roll_back_open_transactions(store);
    bool counted = rc == LS_OK && counts_write_all(store) == LS_OK;
    bool untouched = rc == LS_OK && store->was_clean && log_is_untouched(store->log);
    if (!untouched && (rc == LS_OK || rc == LS_FULL)) { /* the next open derives a rollback that cannot be logged now */
        rc = log_write_close(store->log);
    }
    if (rc == LS_OK && counted) {
        seen_publish(store);
    }
    return rc == LS_FULL ? LS_OK : rc; /* all is durable; a full log merely has no CLOSE */
}

/* The lock on the store goes last. */
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
    store->phase = PHASE_CLOSED; /* no operation begins, and one that waits for room finds it closed */
    takers_end_all(store, LS_CLOSED);
    log_cease(g); /* a leader's log has no end of its own */
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
    if (store->leader != NULL) {
        store->free_leader(store->leader);
    }
    messages_forget_times(&store->times);
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
