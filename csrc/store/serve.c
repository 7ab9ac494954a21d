/*
 * From a replayed log to service: cross-check with the catalog, the beginning of the log (log/begin.c), and the records
 * that recovery must still write. A crash may interrupt any step; the next open repeats it. Nothing is served before
 * all steps are done.
 */
#include <stdlib.h>

#include "replay/catalog.h"
#include "replay/replay.h"
#include "store/store.h"

/* ---- the input for the log ---- */

int store_rewrite_tail(ls_store *store) {
    const struct scan *s = &store->scan;
    if (s->last == SIZE_MAX || !s->files[s->last].in_log) {
        return LS_OK;
    }
    uint64_t first_lsn = s->files[s->last].first_lsn;
    struct tail_part t = {
        .first_lsn = first_lsn,
        .from = s->watermark_lsn > first_lsn ? s->watermark_lsn - first_lsn : 0,
        .to = s->clean ? round_up(s->end_lsn - first_lsn, BLOCK_BYTES) : store->meta.segment_size,
        .direct = s->direct,
    };
    return log_rewrite_tail(store->log, &t, &store->state.report.bytes_rewritten);
}

/* Removes segments without records, which an interrupted creation has left. */
static int clear_creation(ls_store *store) {
    struct scan *s = &store->scan;
    int rc = scan_list(s, store->directory.v, store->directory.dir, &store->meta);
    for (size_t i = 0; rc == LS_OK && i < s->count; i++) {
        s->files[i].state = SCAN_SPARE;
    }
    s->last = SIZE_MAX;
    return rc;
}

/*
 * Finds the files that are no segments of the log. Segments below its base count as its segments until they are
 * recycled.
 */
static int find_unused(const struct scan *s, struct unused_files *u) {
    *u = (struct unused_files){.all = calloc(s->count + 1, sizeof *u->all)};
    if (u->all == NULL) {
        return fail_memory();
    }
    for (size_t i = 0; i < s->count; i++) {
        const struct scan_file *f = &s->files[i];
        if (!f->in_log && (f->state != SCAN_VALID || f->first_lsn >= s->base_lsn)) {
            u->all[u->count++] = (struct unused_file){
                .first_lsn = f->first_lsn,
                .header_only = s->clean && f->state != SCAN_VALID,
                .last = i == s->last,
            };
        }
    }
    return LS_OK;
}

/* Above every LSN that was ever given to a caller: ids are never reused, not even those that did not reach the disk. */
static uint64_t choose_first_lsn(const ls_store *store) {
    const struct scan *s = &store->scan;
    if (store->creating) {
        return store->meta.segment_size;
    }
    uint64_t beyond = s->files[s->last].first_lsn;
    beyond = s->end_lsn > beyond ? s->end_lsn : beyond;
    beyond = s->seen_lsn > beyond ? s->seen_lsn : beyond; /* including a last segment that was set aside */
    beyond = s->renamed_epoch > s->epoch_max && s->renamed_lsn > beyond ? s->renamed_lsn : beyond;
    return scan_first_beyond(&store->meta, beyond);
}

static struct log_epoch choose_epoch(const ls_store *store) {
    const struct scan *s = &store->scan;
    uint64_t epoch = s->renamed_epoch > s->epoch_max ? s->renamed_epoch : s->epoch_max;
    return (struct log_epoch){
        .epoch = epoch + 1,
        .first_lsn = choose_first_lsn(store),
        .prev_end_lsn = store->creating ? 0 : s->end_lsn,
        .creating = store->creating,
        .initial_segments = store->options.initial_segments,
    };
}

static int begin_epoch(ls_store *store) {
    const struct directory *d = &store->directory;
    struct log_epoch e = choose_epoch(store);
    struct unused_files unused;
    int rc = find_unused(&store->scan, &unused);
    rc = rc == LS_OK ? log_begin_epoch(store->log, &e, &unused) : rc;
    if (rc == LS_OK) {
        store->state.report.epoch = e.epoch;
        (void)d->v->unlink(d->v, d->dir, "CHECKPOINT.new"); /* left by a crash */
        rc = log_gather_spares(store->log, &e, &unused);
    }
    free(unused.all);
    return rc;
}

static int finish_creation(ls_store *store) {
    const struct directory *d = &store->directory;
    int rc = d->v->rename(d->v, d->dir, "META.new", "META");
    rc = rc == 0 ? d->v->sync_dir(d->v, d->dir) : rc;
    if (rc != 0) {
        return fail_errno(LS_IO, -rc, "META cannot be renamed into place");
    }
    store->state.report.created = 1;
    store->state.report.base_lsn = store->state.report.end_lsn = log_end_lsn(store->log);
    return LS_OK;
}

/* ---- records that recovery must still write ---- */

static void end_without_work(void *context, uint32_t number) {
    ls_store *store = context;
    if (replay_unstage(&store->state, table_message(&store->state.table, number))) {
        message_die(store, number);
    }
}

/*
 * Deletions that only the catalog has. Their records come first: what they end may then be relocated without it. In a term of a
 * replicated log there are none: each is in the log.
 */
static int log_deletions(ls_store *store, const uint32_t *sorted, size_t n, bool of_catalog) {
    struct table *t = &store->state.table;
    int rc = LS_OK;
    for (uint32_t i = 0; of_catalog && rc == LS_OK && i < t->queue_count; i++) {
        struct queue *q = t->queues[i];
        if (q == NULL || q->deleted || catalog_has(sorted, n, q->id)) {
            continue;
        }
        store->state.report.queues_dropped++;
        store->state.report.places_dropped += queue_depth(q);
        recovered_note(&store->state.recovered, LS_RECOVERED_QUEUE, q->id, queue_depth(q), NULL);
        rc = queue_end(store, q->id);
    }
    if (rc == LS_OK) {
        replay_drop_work_on_deleted(t, end_without_work, store);
    }
    for (uint32_t i = 0; rc == LS_OK && i < t->queue_count; i++) {
        if (t->queues[i] != NULL && t->queues[i]->deleted) {
            queue_remove(store, t->queues[i]->id);
        }
    }
    return rc;
}

static int log_owed(ls_store *store, const uint32_t *sorted, size_t n, bool of_catalog) {
    struct log *g = store->log;
    struct table *t = &store->state.table;
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < t->tx_slots; i++) {
        struct tx *tx = t->txs[i];
        if (tx != NULL && tx->state != LS_TX_PREPARED) {
            rc = tx_roll_back_open(store, tx->id);
        }
    }
    rc = rc == LS_OK ? log_deletions(store, sorted, n, of_catalog) : rc;
    return rc == LS_OK ? log_force(g, log_end_lsn(g)) : rc;
}

/* Lock held. The steps that change files are in the order of docs/recovery.md. */
static int serve_locked(ls_store *store, const uint32_t *sorted, size_t n, uint32_t next_queue_id) {
    vfs *v = store->directory.v;
    int rc = catalog_check(&store->state.table, sorted, n, next_queue_id);
    uint64_t start_us = v->monotonic_us(v);
    rc = rc == LS_OK ? (store->creating ? clear_creation(store) : store_rewrite_tail(store)) : rc;
    store->state.report.rewrite_us = v->monotonic_us(v) - start_us;
    rc = rc == LS_OK ? log_open_holds(store->log) : rc;
    rc = rc == LS_OK ? begin_epoch(store) : rc;
    if (rc == LS_OK && store->creating) {
        rc = finish_creation(store);
    }
    if (rc != LS_OK) {
        return rc;
    }
    store->phase = PHASE_SERVING;
    store->remembers = true;
    rc = log_serve(store->log);
    return rc == LS_OK ? log_owed(store, sorted, n, true) : rc;
}

/* Lock held. The log has begun. */
static int serve_term_locked(ls_store *store, const uint32_t *sorted, size_t n, uint32_t next_queue_id) {
    int rc = catalog_check(&store->state.table, sorted, n, next_queue_id);
    if (rc != LS_OK) {
        return rc;
    }
    store->phase = PHASE_SERVING;
    store->remembers = store->state.table.has_stated; /* then every member knew the records */
    rc = log_make_ready(store->log);
    return rc == LS_OK ? log_owed(store, sorted, n, false) : rc;
}

typedef int serve_steps(ls_store *store, const uint32_t *sorted, size_t n, uint32_t next_queue_id);

static int serve(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id, serve_steps *steps) {
    struct log *g = store->log;
    if (store->phase != PHASE_OPENED || store->inspection != NULL) {
        return fail(LS_CLOSED, "the store is serving already, or closed");
    }
    vfs *v = store->directory.v;
    uint64_t start_us = v->monotonic_us(v);
    uint32_t *sorted = catalog_sorted(queue_ids, n);
    if (sorted == NULL) {
        return fail_memory();
    }
    log_lock(g);
    int rc = steps(store, sorted, n, next_queue_id);
    log_unlock(g);
    free(sorted);
    if (rc == LS_OK) {
        rc = log_start_threads(g);
    }
    if (rc == LS_OK) {
        rc = checkpoint_start_thread(&store->checkpoints);
    }
    scan_close(&store->scan);
    recovered_finish(&store->state.recovered);
    store->state.report.messages = store->state.table.message_count;
    store->state.report.places = store->state.table.place_count;
    store->state.report.total_us += v->monotonic_us(v) - start_us;
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        (void)ls_close(store);
        return fail_again(&kept);
    }
    return LS_OK;
}

int ls_serve(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id) {
    return serve(store, queue_ids, n, next_queue_id, serve_locked);
}

int store_serve_term(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id) {
    return serve(store, queue_ids, n, next_queue_id, serve_term_locked);
}
