/*
 * From a replayed log to service: cross-check with the catalog, rewrite of the tail, the new epoch's segment, spares
 * from unused files, and the records that recovery owes. Each step may be cut by a crash and is then done again;
 * nothing is served before all of them.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/io.h"
#include "replay/catalog.h"
#include "replay/replay.h"
#include "store/store.h"

/* ---- the tail ---- */

static int copy_blocks(vfs *v, int file, bool direct, uint64_t from, uint64_t to, struct io_written *written,
                       uint64_t *done) {
    enum { STEP_MAX = 1 << 20 };
    if (from >= to) {
        return 0;
    }
    size_t step = to - from < STEP_MAX ? (size_t)round_up(to - from, BLOCK_BYTES) : STEP_MAX;
    uint8_t *memory = aligned_alloc(BLOCK_BYTES, step);
    if (memory == NULL) {
        return -ENOMEM;
    }
    int rc = 0;
    while (rc == 0 && from < to) {
        size_t bytes = to - from < step ? (size_t)(to - from) : step;
        int64_t got = direct ? io_read_direct(v, file, memory, bytes, from) : io_read(v, file, memory, bytes, from);
        rc = got < 0 ? (int)got : (size_t)got < bytes ? -EIO : io_write(v, file, memory, bytes, from, written);
        from += bytes;
        *done += bytes;
    }
    free(memory);
    return rc;
}

/*
 * After a failed sync the page cache may show what the disk does not have, and a later sync says that all is well.
 * So all accepted bytes at or above the watermark, which were read past the cache, are written past it once more and
 * forced, before any other write. They lie in the last segment: a header says that what is before it was durable.
 *
 * Worse, on ext4 the pages of a write that failed into blocks never written before stay with their file: what is later
 * written through them is synced without an error, and is zeros after the power went. So nothing is written through
 * pages that an earlier life may have left: the rest of that segment, and every file that is taken again, are written
 * past the cache too, as they are on the disk, which drops the pages. Behind an orderly close only a later open can have
 * failed: at a header, or having written one.
 */
static int rewrite_tail(ls_store *store) {
    struct log *g = &store->log;
    struct scan *s = &store->scan;
    if (s->last == SIZE_MAX || !s->files[s->last].in_log) {
        return LS_OK;
    }
    uint64_t first_lsn = s->files[s->last].first_lsn;
    uint64_t from = s->watermark_lsn > first_lsn ? s->watermark_lsn - first_lsn : 0;
    uint64_t to = s->clean ? round_up(s->end_lsn - first_lsn, BLOCK_BYTES) : g->segment_size;
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, first_lsn);
    int file = g->v->open(g->v, g->dir, name, VFS_WRITE | (s->direct ? VFS_DIRECT : 0));
    int rc = file < 0 ? file
                      : copy_blocks(g->v, file, s->direct, from / BLOCK_BYTES * BLOCK_BYTES, to, &g->written,
                                    &store->state.report.bytes_rewritten);
    rc = rc == 0 ? g->v->sync_data(g->v, file) : rc;
    if (file >= 0) {
        (void)g->v->close(g->v, file);
    }
    if (rc == -ENOMEM) {
        return fail_memory();
    }
    return rc == 0 ? LS_OK : fail_errno(LS_IO, -rc, "the tail of the log (%s) cannot be rewritten", name);
}

/* ---- unused files ---- */

static bool is_unused_file(const struct scan_file *f, uint64_t base_lsn) {
    return !f->in_log && (f->state != SCAN_VALID || f->first_lsn >= base_lsn);
}

/* The file's pages dropped and its blocks written to, past the cache; whether it may be used. */
static bool renew(ls_store *store, const struct scan_file *f) {
    struct log *g = &store->log;
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, f->first_lsn);
    bool header_only = store->scan.clean && f->state != SCAN_VALID;
    uint64_t to = header_only ? SEGMENT_HEADER_BYTES : g->segment_size, done = 0;
    int file = g->v->open(g->v, g->dir, name, VFS_WRITE | VFS_DIRECT);
    if (file == -EINVAL) {
        return true; /* a file system without VFS_DIRECT, in memory */
    }
    int rc = file < 0 ? file : copy_blocks(g->v, file, true, 0, to, &g->written, &done);
    if (file >= 0) {
        (void)g->v->close(g->v, file);
    }
    return rc == 0;
}

/* Takes an unused file of full size under the name first_lsn, without syncing the directory; -1: there is none. */
static int take_file(ls_store *store, uint64_t first_lsn) {
    struct log *g = &store->log;
    struct scan *s = &store->scan;
    char name[SEGMENT_NAME_BYTES], target[SEGMENT_NAME_BYTES];
    format_segment_name(target, first_lsn);
    for (int pass = 0; pass < 2; pass++) { /* one that has the name already is taken first */
        for (size_t i = 0; i < s->count; i++) {
            struct scan_file *f = &s->files[i];
            if (!is_unused_file(f, s->base_lsn) || (pass == 0 && f->first_lsn != first_lsn) || i == s->last) {
                continue;
            }
            format_segment_name(name, f->first_lsn);
            int file = g->v->open(g->v, g->dir, name, VFS_WRITE);
            bool usable = file >= 0 && g->v->size(g->v, file) == (int64_t)g->segment_size && renew(store, f);
            if (usable && f->first_lsn != first_lsn) {
                usable = g->v->rename(g->v, g->dir, name, target) == 0;
            }
            f->in_log = true; /* no longer unused */
            if (usable) {
                return file;
            }
            if (file >= 0) {
                (void)g->v->close(g->v, file);
            }
            (void)g->v->unlink(g->v, g->dir, name);
        }
    }
    return -1;
}

/* Removes the unused files that are left when there are enough spares. */
static void clear_away(ls_store *store) {
    struct log *g = &store->log;
    struct scan *s = &store->scan;
    for (size_t i = 0; i < s->count; i++) {
        if (is_unused_file(&s->files[i], s->base_lsn)) {
            char name[SEGMENT_NAME_BYTES];
            format_segment_name(name, s->files[i].first_lsn);
            (void)g->v->unlink(g->v, g->dir, name);
        }
    }
}

/* ---- the new epoch ---- */

static int write_first_header(ls_store *store, struct segment *made) {
    struct log *g = &store->log;
    struct segment_header h = {
        .segment_size = g->segment_size,
        .first_lsn = made->first_lsn,
        .epoch = made->epoch,
        .prev_end_lsn = made->prev_end_lsn,
        .created_us = g->v->now_us(g->v),
    };
    memcpy(h.uuid, g->uuid, UUID_BYTES);
    format_put_segment_header(g->commit.header_block, &h);
    int rc = io_write(g->v, made->file, g->commit.header_block, SEGMENT_HEADER_BYTES, 0, &g->written);
    rc = rc == 0 ? g->v->sync_file(g->v, made->file) : rc;
    rc = rc == 0 ? g->v->sync_dir(g->v, g->dir) : rc;
    return rc == 0 ? LS_OK
                   : fail_errno(rc == -ENOSPC ? LS_FULL : LS_IO, -rc, "the new epoch's segment cannot be written");
}

/*
 * If no other file can be had, takes the last epoch's segment if nothing of the log is in it: so a full store opens even
 * in a loop of crashes. Its header goes before the new one is forced, so for that moment damage in the last batches before it
 * would read as a torn tail; everything else waits for the new header.
 */
static bool take_over_empty(ls_store *store, struct segment **made) {
    struct log *g = &store->log;
    struct scan *s = &store->scan;
    if (s->last == SIZE_MAX || s->files[s->last].in_log) {
        return false;
    }
    *made = segment_new(g, g->space.next_spare_lsn, g->epoch);
    if (*made == NULL) {
        return false;
    }
    size_t last = s->last;
    s->last = SIZE_MAX; /* so that it is unused like any other */
    (*made)->file = take_file(store, g->space.next_spare_lsn);
    s->last = last;
    if ((*made)->file < 0) {
        segment_free(g, *made);
        *made = NULL;
        return false;
    }
    g->open_files++;
    g->space.next_spare_lsn += g->segment_size;
    return true;
}

/* A file for the new epoch's segment: an unused one, a dead one, or a new one. */
static int find_file_for(ls_store *store, struct segment **made) {
    struct log *g = &store->log;
    *made = segment_new(g, g->space.next_spare_lsn, g->epoch);
    if (*made == NULL) {
        return fail_memory();
    }
    (*made)->file = take_file(store, g->space.next_spare_lsn);
    if ((*made)->file >= 0) {
        g->open_files++;
        g->space.next_spare_lsn += g->segment_size;
        return LS_OK;
    }
    segment_free(g, *made);
    *made = NULL;
    int rc = spares_make(g, true);
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        spares_recycle(g);
        rc = g->space.spare_count > 0 ? LS_OK : fail_again(&kept);
    }
    if (rc == LS_OK) {
        *made = spares_take(g);
        return LS_OK;
    }
    return take_over_empty(store, made) ? LS_OK : rc;
}

/* Beyond everything that could have been handed out: ids are never reused, not even those that never reached the disk. */
static uint64_t choose_first_lsn(const ls_store *store) {
    const struct scan *s = &store->scan;
    if (store->creating) {
        return store->meta.segment_size;
    }
    uint64_t beyond = s->files[s->last].first_lsn;
    beyond = s->end_lsn > beyond ? s->end_lsn : beyond;
    beyond = s->seen_lsn > beyond ? s->seen_lsn : beyond; /* also where what was there has been left out */
    beyond = s->moved_epoch > s->epoch_max && s->moved_lsn > beyond ? s->moved_lsn : beyond;
    return scan_first_beyond(&store->meta, beyond);
}

static int start_segment(ls_store *store) {
    struct log *g = &store->log;
    struct segment *made;
    const struct scan *s = &store->scan;
    uint64_t epoch = s->moved_epoch > s->epoch_max ? s->moved_epoch : s->epoch_max;
    g->epoch = epoch + 1;
    g->space.next_spare_lsn = choose_first_lsn(store);
    if (!store->creating) { /* before any file is taken: a hint of the last epoch may name what was left out */
        hint_published(g, s->base_lsn, hint_publish(g, s->end_lsn, s->base_lsn));
    }
    int rc = find_file_for(store, &made);
    if (rc != LS_OK) {
        return rc;
    }
    made->prev_end_lsn = store->creating ? 0 : store->scan.end_lsn;
    made->header_due = false;
    rc = write_first_header(store, made);
    rc = rc == LS_OK ? log_add_segment(g, made) : rc;
    if (rc != LS_OK) {
        segment_free(g, made);
        return rc;
    }
    g->front.append_lsn = g->front.end_lsn = made->first_lsn + SEGMENT_HEADER_BYTES;
    g->front.durable_lsn = g->front.end_lsn;
    store->state.report.epoch = g->epoch;
    if (store->creating) {
        g->named_base_lsn = made->first_lsn;
    }
    return LS_OK;
}

/* Only now may the last epoch's empty segment be reused: the new header says that it is not of the log. */
static int gather_spares(ls_store *store) {
    struct log *g = &store->log;
    struct scan *s = &store->scan;
    size_t last = s->last;
    s->last = SIZE_MAX;
    spares_reckon(g);
    size_t wanted = store->creating ? store->options.initial_segments - 1 : spares_target(g);
    int file = 0;
    while (g->space.spare_count < wanted && (file = take_file(store, g->space.next_spare_lsn)) >= 0) {
        struct segment *made = segment_new(g, g->space.next_spare_lsn, g->epoch);
        if (made == NULL) {
            (void)g->v->close(g->v, file);
            return fail_memory();
        }
        made->file = file;
        made->header_due = true;
        g->open_files++;
        g->space.next_spare_lsn += g->segment_size;
        spares_adopt(g, made);
    }
    clear_away(store);
    (void)g->v->unlink(g->v, g->dir, "CHECKPOINT.new"); /* left by a crash */
    s->last = last;
    int rc = g->v->sync_dir(g->v, g->dir);
    if (rc != 0) {
        return fail_errno(LS_IO, -rc, "the store directory cannot be synced");
    }
    while (store->creating && g->space.spare_count < wanted) {
        rc = spares_make(g, true);
        if (rc != LS_OK) {
            return rc;
        }
    }
    g->spare_thread.wanted =
        g->space.spare_count <= g->space.needs.spares_reserved; /* an open without a spare is still an open */
    return LS_OK;
}

/* A creation that was cut left segments that hold nothing. */
static int clear_creation(ls_store *store) {
    struct log *g = &store->log;
    struct scan *s = &store->scan;
    int rc = scan_list(s, g->v, g->dir, &store->meta);
    for (size_t i = 0; rc == LS_OK && i < s->count; i++) {
        s->files[i].state = SCAN_SPARE;
    }
    s->last = SIZE_MAX;
    return rc;
}

static int finish_creation(ls_store *store) {
    struct log *g = &store->log;
    int rc = g->v->rename(g->v, g->dir, "META.new", "META");
    rc = rc == 0 ? g->v->sync_dir(g->v, g->dir) : rc;
    if (rc != 0) {
        return fail_errno(LS_IO, -rc, "META cannot be renamed into place");
    }
    store->state.report.created = 1;
    store->state.report.base_lsn = store->state.report.end_lsn = g->front.end_lsn;
    return LS_OK;
}

/* ---- what recovery owes the log ---- */

static void end_without_work(void *context, uint32_t number) {
    ls_store *store = context;
    if (replay_settle_message(&store->state, table_message(&store->state.table, number))) {
        message_die(store, number);
    }
}

/* Deletions that only the catalog has. Their records come first: what they end may then be relocated without it. */
static int log_deletions(ls_store *store, const uint32_t *sorted, size_t n) {
    struct table *t = &store->state.table;
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < t->queue_count; i++) {
        struct queue *q = t->queues[i];
        if (q == NULL || q->deleted || catalog_has(sorted, n, q->id)) {
            continue;
        }
        store->state.report.queues_dropped++;
        store->state.report.places_dropped += q->depth;
        recovered_note(&store->state.recovered, LS_RECOVERED_QUEUE, q->id, q->depth, NULL);
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

static int log_owed(ls_store *store, const uint32_t *sorted, size_t n) {
    struct log *g = &store->log;
    struct table *t = &store->state.table;
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < t->tx_slots; i++) {
        struct tx *tx = t->txs[i];
        if (tx != NULL && tx->state != LS_TX_PREPARED) {
            rc = tx_roll_back_open(store, tx->id);
        }
    }
    rc = rc == LS_OK ? log_deletions(store, sorted, n) : rc;
    return rc == LS_OK ? log_force(g, g->front.end_lsn) : rc;
}

static int open_side_files(ls_store *store) {
    struct log *g = &store->log;
    g->holds_dir = g->v->open_subdir(g->v, g->dir, "holds", 1);
    if (g->holds_dir < 0) {
        return fail_errno(LS_IO, -g->holds_dir, "the holds directory cannot be opened");
    }
    return LS_OK;
}

/* A log without free segments is relocated before it serves: the next open may need one, and so may relocation. */
static int make_ready(struct log *g) {
    int rc = LS_OK;
    while (rc == LS_OK && g->space.spare_count < SPARES_RESERVED) {
        rc = spares_make(g, false);
    }
    if (rc != LS_OK) {
        (void)spares_keep(g);
    }
    return g->poison == 0 ? LS_OK : fail_errno(LS_IO, g->poison, "the log cannot be written");
}

/* With the lock held; what needs files comes in the order of docs/recovery.md. */
static int serve_locked(ls_store *store, const uint32_t *sorted, size_t n, uint32_t next_queue_id) {
    struct log *g = &store->log;
    vfs *v = g->v;
    int rc = catalog_check(&store->state.table, sorted, n, next_queue_id);
    uint64_t start_us = v->monotonic_us(v);
    rc = rc == LS_OK ? (store->creating ? clear_creation(store) : rewrite_tail(store)) : rc;
    store->state.report.rewrite_us = v->monotonic_us(v) - start_us;
    rc = rc == LS_OK ? open_side_files(store) : rc;
    rc = rc == LS_OK ? start_segment(store) : rc;
    rc = rc == LS_OK ? gather_spares(store) : rc;
    if (rc == LS_OK && store->creating) {
        rc = finish_creation(store);
    }
    if (rc != LS_OK) {
        return rc;
    }
    log_advance_base(g);
    g->space.last_switch_us = v->monotonic_us(v);
    g->space.switch_interval_us = UINT64_MAX;
    hint_published(g, g->named_base_lsn, hint_publish(g, g->front.durable_lsn, g->named_base_lsn));
    g->serving = true;
    store->phase = PHASE_SERVING;
    rc = make_ready(g);
    return rc == LS_OK ? log_owed(store, sorted, n) : rc;
}

int ls_serve(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id) {
    struct log *g = &store->log;
    if (store->phase != PHASE_OPENED || store->inspection != NULL) {
        return fail(LS_CLOSED, "the store is serving already, or closed");
    }
    uint64_t start_us = g->v->monotonic_us(g->v);
    uint32_t *sorted = catalog_sorted(queue_ids, n);
    if (sorted == NULL) {
        return fail_memory();
    }
    log_lock(g);
    int rc = serve_locked(store, sorted, n, next_queue_id);
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
    store->state.report.total_us += g->v->monotonic_us(g->v) - start_us;
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        (void)ls_close(store);
        return fail_again(&kept);
    }
    return LS_OK;
}
