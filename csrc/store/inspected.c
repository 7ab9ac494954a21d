/*
 * Inspections as the public API has them: a handle whose state an inspection has filled. Its log is never set up: it
 * has no files, no buffers and no vfs; only its lock is used. Calls that change nothing answer from the state.
 */
#include "inspect/inspect.h"

#include "store/store.h"

static int open_parts(ls_store *store, vfs *system, const char *path, int flags) {
    int rc = fork_register(store);
    rc = rc == LS_OK ? inspection_open(system, path, flags, &store->state, &store->inspection) : rc;
    if (rc == LS_OK) {
        store->meta = store->inspection->reader->meta;
    }
    return rc;
}

int inspect_open_with(vfs *system, const char *store_dir, int flags, const struct log_client *clients, size_t count,
                      ls_store **store) {
    *store = NULL;
    ls_options options;
    ls_options_default(&options);
    ls_store *made;
    int rc = store_new(&options, clients, count, &made);
    if (made == NULL) {
        return rc;
    }
    rc = rc == LS_OK ? open_parts(made, system != NULL ? system : vfs_posix(), store_dir, flags) : rc;
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        ls_free(made);
        return fail_again(&kept);
    }
    *store = made;
    return LS_OK;
}

int ls_inspect_open(vfs *system, const char *store_dir, int flags, ls_store **store) {
    return inspect_open_with(system, store_dir, flags, NULL, 0, store);
}

int ls_inspect_step(ls_store *store, uint64_t bytes, uint64_t *lsn) {
    if (atomic_load(&store->foreign)) {
        return fail(LS_FORKED, "this process is a fork of the one that inspects the store; begin again after fork");
    }
    if (store->inspection == NULL || store->phase == PHASE_CLOSED) {
        return fail(LS_CLOSED, "this is no store under inspection, or it is closed");
    }
    int rc = inspection_step(store->inspection, bytes, lsn);
    if (rc == LS_END) {
        log_lock(store->log);
        store->inspected = true;
        log_unlock(store->log);
    }
    return rc;
}

void ls_inspect_describe(const ls_store *store, ls_inspection *into) {
    *into = (ls_inspection){.queue_id_max = 0};
    if (store->inspection != NULL) {
        inspection_describe(store->inspection, into);
    }
}

static int enter(ls_store *store) {
    int rc = store_look(store);
    if (rc == LS_OK && store->inspection == NULL) {
        (void)store_leave(store, LS_OK, LEAVE_QUIETLY);
        return fail(LS_CLOSED, "this store is open, not inspected");
    }
    return rc;
}

int ls_inspect_catalog(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id) {
    int rc = enter(store);
    return rc == LS_OK ? store_leave(store, inspection_drop_queues(store->inspection, queue_ids, n, next_queue_id),
                                     LEAVE_QUIETLY)
                       : rc;
}

int ls_inspect_queues(ls_store *store, ls_queue_info *into, size_t n, size_t *count) {
    *count = 0;
    int rc = enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    store_times(store);
    *count = inspection_queues(&store->state.table, into, n);
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_inspect_transactions(ls_store *store, ls_open_tx *into, size_t n, size_t *count) {
    *count = 0;
    int rc = enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    *count = inspection_transactions(&store->state.table, into, n);
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_inspect_work(ls_store *store, uint64_t tx_id, ls_open_work *into, size_t n, size_t *count) {
    *count = 0;
    int rc = enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    return store_leave(store, inspection_work(&store->state.table, tx_id, into, n, count), LEAVE_QUIETLY);
}

int ls_inspect_places(ls_store *store, uint64_t id, uint64_t *start_lsn, ls_message_place *into, size_t n,
                      size_t *count) {
    *count = 0;
    int rc = enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    store_times(store);
    uint32_t number = 0;
    struct message *m = NULL;
    rc = message_find(store, id, &number, &m);
    *count = rc == LS_OK ? inspection_places(m, into, n) : 0;
    *start_lsn = rc == LS_OK ? message_start_lsn(m) : 0;
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_checkpoint_compare(ls_store *with, ls_store *without, ls_checkpoint_difference *difference) {
    return checkpoint_compare(&with->state, &without->state, difference);
}
