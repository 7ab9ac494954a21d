/* Opening a copy, and taking the leader's batches. See replica.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "os/io.h"
#include "replica/replica.h"

/* ---- opening: steps 1 to 4 and 8 of docs/recovery.md ---- */

static int add_waiting(struct replica *r, const struct scan_batch *b) {
    uint8_t *copy = malloc(b->batch.bytes);
    if (copy == NULL || !array_grow(&r->waiting, &r->waiting_capacity, r->waiting_count, 1)) {
        free(copy);
        return fail_memory();
    }
    memcpy(copy, b->bytes, b->batch.bytes);
    r->waiting[r->waiting_count++] = (struct replica_batch){
        .index = b->batch.index,
        .term = b->batch.epoch,
        .first_lsn = b->first_lsn,
        .lsn = b->lsn,
        .end_lsn = b->lsn + b->batch.bytes,
        .known_durable_lsn = b->batch.known_durable_lsn,
        .bytes = copy,
    };
    return LS_OK;
}

static struct replica_end end_of(const struct scan_batch *b) {
    return (struct replica_end){
        .lsn = b->lsn + b->batch.bytes,
        .index = b->batch.index,
        .term = b->batch.epoch,
        .known_durable_lsn = b->batch.known_durable_lsn,
    };
}

/* Whether the window has memory for the batch, if the batch belongs there. */
static bool keep(struct replica *r, const struct scan_batch *b) {
    return r->kept == NULL || b->batch.index == 0 || kept_add(r->kept, b);
}

/* The segment in which the window's log continues: that of its last batch, which this log has. 0: there is none. */
static uint64_t kept_already(struct replica *r) {
    const struct scan *s = &r->store->scan;
    uint64_t first, last;
    ls_replica_entry newest;
    kept_cut(r->kept, s->index); /* batches that were handed out and not written */
    kept_range(r->kept, &first, &last);
    return kept_entry(r->kept, last, &newest) == LS_OK ? newest.first_lsn : 0;
}

/* The window reaches below the checkpoint, and the log is read only from the checkpoint on. Batches that cannot be read
   there are not kept. */
static void read_kept(struct replica *r) {
    struct scan *s = &r->store->scan;
    uint64_t bytes = 0, from_lsn = kept_already(r);
    size_t at = s->last;
    for (size_t i = s->last + 1; i-- > s->first && bytes < r->store->options.kept_bytes;) {
        if (s->files[i].in_log) {
            at = i;
            bytes += (s->files[i].end_lsn != 0 ? s->files[i].end_lsn : s->end_lsn) - s->files[i].first_lsn;
        }
    }
    struct scan_batch b;
    scan_rewind(s);
    scan_seek(s, (from_lsn != 0 ? from_lsn : s->files[at].first_lsn) + SEGMENT_HEADER_BYTES);
    while (scan_next(s, &b) == LS_OK && keep(r, &b)) {
    }
    scan_rewind(s);
}

/* Batches without an index are durable by definition, and so is what a checkpoint covers. */
static int read_log(struct replica *r) {
    ls_store *store = r->store;
    struct scan *s = &store->scan;
    struct loaded_checkpoint loaded = {.lsn = 0};
    struct scan_batch b;
    bool used = false;
    if (r->kept != NULL) {
        read_kept(r);
    }
    int rc =
        store->options.no_checkpoint != 0 ? LS_OK : checkpoint_load(&r->replay, store->directory.dir, &loaded, &used);
    r->changes_from_lsn = rc == LS_OK && used ? loaded.lsn : s->base_lsn;
    if (rc == LS_OK && used) {
        r->applied = (struct replica_end){.lsn = loaded.lsn,
                                          .index = r->replay.newest.index,
                                          .term = loaded.epoch,
                                          .known_durable_lsn = r->replay.newest.known_durable_lsn};
        r->durable_lsn = loaded.lsn > r->durable_lsn ? loaded.lsn : r->durable_lsn;
        r->checkpoint_lsn = loaded.lsn;
        replica_note_base(r, loaded.base_lsn, loaded.lsn);
        replica_sweep_begin(r); /* of queues that this copy has as deleted */
    }
    r->end = r->applied;
    if (store->options.background != 0) {
        scan_ahead_start(s);
    }
    while (rc == LS_OK && (rc = scan_next(s, &b)) == LS_OK) {
        r->end = end_of(&b);
        if (!keep(r, &b)) {
            rc = fail_memory();
            break;
        }
        rc = b.batch.index == 0 || r->end.lsn <= r->durable_lsn ? replica_apply_batch(r, &b) : add_waiting(r, &b);
    }
    scan_ahead_stop(s);
    return rc == LS_END ? LS_OK : rc;
}

/* Takes the log's segments, and removes unused files. A file with a valid header outside the log was cut. It is kept
   until another header is forced, because a power cut can still undo the header that cut it. */
static int take_files(struct replica *r) {
    const struct scan *s = &r->store->scan;
    const struct directory *d = &r->store->directory;
    for (size_t i = 0; i < s->count; i++) {
        const struct scan_file *f = &s->files[i];
        bool behind = f->state == SCAN_VALID && f->first_lsn < s->base_lsn;
        bool fine = true;
        if (f->in_log || behind) {
            fine = array_grow(&r->segments, &r->segment_capacity, r->segment_count, 1);
            if (fine) {
                r->segments[r->segment_count++] =
                    (struct replica_segment){f->first_lsn, f->header.epoch, f->header.prev_end_lsn};
            }
        } else if (f->state == SCAN_VALID) {
            fine = replica_add_file(&r->cut, f->first_lsn);
        } else {
            char name[SEGMENT_NAME_BYTES];
            format_segment_name(name, f->first_lsn);
            (void)d->v->unlink(d->v, d->dir, name);
            continue;
        }
        if (!fine) {
            return fail_memory();
        }
        r->highest_first_lsn = f->first_lsn > r->highest_first_lsn ? f->first_lsn : r->highest_first_lsn;
    }
    return LS_OK;
}

/* The part of the tail's block that the next batch's write must not lose. */
static int load_block(struct replica *r) {
    if (r->segment_count == 0 || r->end.lsn % BLOCK_BYTES == 0) {
        return LS_OK;
    }
    const struct directory *d = &r->store->directory;
    uint64_t first_lsn = r->segments[r->segment_count - 1].first_lsn, used = r->end.lsn % BLOCK_BYTES;
    int file = replica_open_file(r, first_lsn);
    int64_t got = file < 0 ? file : io_read(d->v, file, r->block, BLOCK_BYTES, r->end.lsn - used - first_lsn);
    if (got >= (int64_t)used) {
        return LS_OK;
    }
    return replica_fail_disk(r, got < 0 ? (int)-got : EIO, "the end of the log cannot be read");
}

static int open_log(struct replica *r, const char *store_dir) {
    ls_store *store = r->store;
    struct scan *s = &store->scan;
    int rc = scan_open(s, store->directory.v, store->directory.dir, &store->meta, true, NULL);
    if (rc != LS_OK) {
        return rc;
    }
    r->replay = (struct replay){
        .state = &store->state,
        .scan = s,
        .t = &store->state.table,
        .report = &store->state.report,
        .base_lsn = s->base_lsn,
    };
    r->base_lsn = s->base_lsn;
    r->durable_lsn = s->index != 0 ? s->durable_lsn : s->end_lsn;
    rc = state_take_segments(&store->state, s);
    rc = rc == LS_OK ? store_rewrite_tail(store) : rc; /* before this copy reports anything as forced */
    rc = rc == LS_OK ? replica_mark_open(r) : rc;
    bool begins = store->options.kept_bytes != 0 && r->kept == NULL;
    rc = rc == LS_OK && begins ? kept_new(store->directory.v, store_dir, s, &r->kept) : rc;
    rc = rc == LS_OK ? read_log(r) : rc;
    rc = rc == LS_OK ? take_files(r) : rc;
    rc = rc == LS_OK ? load_block(r) : rc;
    rc = rc == LS_OK ? log_open_holds(store->log) : rc;
    if (rc == LS_OK) {
        replica_publish(r);
    }
    return rc;
}

static int open_as(vfs *system, const char *store_dir, const ls_options *options, bool all_durable, struct kept *kept,
                   struct replica **replica) {
    ls_options o = *options;
    struct replica *r = *replica = NULL;
    r = calloc(1, sizeof *r);
    if (r == NULL) {
        kept_free(kept);
        return fail_memory();
    }
    r->kept = kept;
    o.create = 0;
    r->file = r->mark.file = -1;
    r->catalog_lsn = o.catalog_lsn != 0 ? o.catalog_lsn : UINT64_MAX;
    (void)pthread_mutex_init(&r->table_lock, NULL);
    int rc = store_new(&o, NULL, 0, &r->store);
    if (rc == LS_OK && o.catalog_lsn != 0) {
        replication_collect(r->store);
    }
    rc = rc == LS_OK ? store_open_directory(r->store, system != NULL ? system : vfs_posix(), store_dir, &o) : rc;
    if (rc == LS_OK) {
        r->block_bytes = format_batch_bytes_max(r->store->meta.segment_size);
        r->block = aligned_alloc(BLOCK_BYTES, round_up(r->block_bytes, BLOCK_BYTES) + 2 * BLOCK_BYTES);
        r->mark.slot = aligned_alloc(BLOCK_BYTES, MARK_SLOT_BYTES);
        r->store->scan.all_durable = all_durable;
        rc = r->block == NULL || r->mark.slot == NULL ? fail_memory() : open_log(r, store_dir);
    }
    if (rc != LS_OK) {
        ls_error why = *ls_last_error();
        replica_free(r);
        return fail_again(&why);
    }
    *replica = r;
    return LS_OK;
}

int replica_open(vfs *system, const char *store_dir, const ls_options *options, struct replica **replica) {
    return open_as(system, store_dir, options, false, NULL, replica);
}

int replica_open_again(vfs *system, const char *store_dir, const ls_options *options, struct kept *kept,
                       struct replica **replica) {
    return open_as(system, store_dir, options, false, kept, replica);
}

int replica_open_backup(vfs *system, const char *store_dir, const ls_options *options, struct replica **replica) {
    return open_as(system, store_dir, options, true, NULL, replica);
}

void replica_free(struct replica *r) {
    if (r == NULL) {
        return;
    }
    replica_checkpoint_give_up(r);
    replica_take_spare(r);
    (void)pthread_mutex_destroy(&r->table_lock);
    for (size_t i = r->waiting_from; i < r->waiting_count; i++) {
        free(r->waiting[i].bytes);
    }
    free(r->waiting);
    free(r->segments);
    free(r->spares.all);
    free(r->cut.all);
    free(r->block);
    free(r->mark.slot);
    kept_free(r->kept);
    if (r->store != NULL) {
        replica_mark_close(r);
        if (r->file >= 0) {
            (void)r->store->directory.v->close(r->store->directory.v, r->file);
        }
        replay_free(&r->replay);
        ls_free(r->store);
    }
    free(r);
}

/* ---- what follows, and what does not ---- */

static int refuse(const struct replica *r, const struct shipment *s, const char *what) {
    return fail(
        LS_REFUSED,
        "batch %llu of term %llu at LSN %llu does not follow: %s; this copy ends with index %llu of term %llu at "
        "LSN %llu. Nothing was written",
        (unsigned long long)s->index, (unsigned long long)s->term, (unsigned long long)s->lsn, what,
        (unsigned long long)r->end.index, (unsigned long long)r->end.term, (unsigned long long)r->end.lsn);
}

static int check_header(const struct replica *r, const struct shipment *s) {
    const struct meta *m = &r->store->meta;
    struct segment_header h;
    enum format_result why =
        format_get_segment_header(s->header, SEGMENT_HEADER_BYTES, m->uuid, m->segment_size, s->first_lsn, &h);
    if (why != FORMAT_OK) {
        return refuse(r, s, format_result_text(why));
    }
    uint64_t term = r->segment_count > 0 ? r->segments[r->segment_count - 1].term : 0;
    uint64_t above_lsn = r->segment_count > 0 ? r->segments[r->segment_count - 1].first_lsn : 0;
    bool placed = s->lsn == s->first_lsn + SEGMENT_HEADER_BYTES && s->first_lsn > above_lsn && h.epoch == s->term;
    if (!placed || h.epoch < term ||
        (h.epoch > term && s->first_lsn != round_up(h.epoch << TERM_SHIFT, m->segment_size))) {
        return refuse(r, s, "its segment has no place in this log");
    }
    if (h.prev_end_lsn != r->end.lsn) {
        return refuse(r, s,
                      h.prev_end_lsn < r->applied.lsn ? "its header would cut what is durable"
                                                      : "its header names another end of the log");
    }
    return LS_OK;
}

static int check_place(const struct replica *r, const struct shipment *s) {
    if (s->header != NULL) {
        return check_header(r, s);
    }
    const struct replica_segment *last = r->segment_count > 0 ? &r->segments[r->segment_count - 1] : NULL;
    bool follows = last != NULL && s->first_lsn == last->first_lsn && s->term == last->term && s->lsn == r->end.lsn;
    return follows ? LS_OK : refuse(r, s, "it has no header, and does not go on in the segment");
}

/* Checks all that recovery would check of the batch, and its fields about replication. */
static int check(const struct replica *r, const struct shipment *s, struct batch *b) {
    const struct meta *m = &r->store->meta;
    uint64_t bytes = s->end_lsn - s->lsn, offset = s->lsn - s->first_lsn;
    if (s->index != replica_next_index(r)) {
        return refuse(r, s, "its index is not the next one");
    }
    if (s->end_lsn <= s->lsn || bytes < BATCH_RECORD_BYTES || bytes > format_batch_bytes_max(m->segment_size) ||
        s->lsn < s->first_lsn || offset < SEGMENT_HEADER_BYTES || offset + bytes > m->segment_size) {
        return refuse(r, s, "its length or its place is impossible");
    }
    if (s->term >= TERM_LIMIT || s->term < r->end.term) {
        return refuse(r, s, "its term lies below that of this copy's end");
    }
    if (r->vote != NULL && s->term > r->vote->term) {
        return refuse(r, s, "VOTE does not have its term yet");
    }
    uint64_t seed = format_segment_seed(m->uuid, s->first_lsn, s->term);
    enum format_result why = scan_check_batch(s->bytes, bytes, s->lsn, s->term, seed, &r->store->scan.known, b);
    if (why != FORMAT_OK) {
        return refuse(r, s, format_result_text(why));
    }
    if (b->index != s->index || b->known_durable_lsn < r->end.known_durable_lsn) {
        return refuse(r, s, "what it says of its index or of what is durable contradicts the log");
    }
    if (s->header == NULL && b->durable_lsn > r->end.lsn) {
        return refuse(r, s, "it names more as forced than this copy has");
    }
    struct scan_batch whole = {.bytes = s->bytes, .batch = *b, .lsn = s->lsn};
    uint32_t at = BATCH_RECORD_BYTES;
    struct record first;
    if (r->end.index == 0 && (!scan_record(&whole, &at, &first) || first.type != MEMBERS)) {
        return refuse(r, s, "replication begins with a batch that has no MEMBERS");
    }
    return check_place(r, s);
}

/* ---- taking one ---- */

static int begin_segment(struct replica *r, const struct shipment *s) {
    struct directory *d = &r->store->directory;
    bool new_term = r->segment_count == 0 || r->segments[r->segment_count - 1].term != s->term;
    if (!array_grow(&r->segments, &r->segment_capacity, r->segment_count, 1)) {
        return fail_memory();
    }
    int rc = replica_remove_above(r, s->first_lsn);
    rc = rc == LS_OK ? replica_make_file(r, s->first_lsn) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    memcpy(r->block, s->header, SEGMENT_HEADER_BYTES);
    int error = io_write(d->v, r->file, r->block, SEGMENT_HEADER_BYTES, 0, &d->written);
    if (error == 0 && new_term) { /* a header of the same term is forced together with the batch */
        error = d->v->sync_file(d->v, r->file);
        r->stats.forces++;
    }
    if (error != 0) {
        return replica_fail_disk(r, -error, "a segment's header cannot be written");
    }
    uint64_t prev_end_lsn = r->end.lsn;
    r->segments[r->segment_count++] = (struct replica_segment){s->first_lsn, s->term, prev_end_lsn};
    return LS_OK;
}

/* Writes batches of one segment, one after the other. Whole blocks are written, so that the page cache never has to
   read one first; the rest of the tail's block keeps its content. */
static int write_batches(struct replica *r, const struct shipment *all, size_t n) {
    struct directory *d = &r->store->directory;
    size_t lead = all[0].lsn % BLOCK_BYTES, used = lead;
    int file = replica_open_file(r, all[0].first_lsn);
    if (file < 0) {
        return replica_fail_disk(r, -file, "the segment cannot be opened");
    }
    for (size_t i = 0; i < n; i++) {
        size_t bytes = (size_t)(all[i].end_lsn - all[i].lsn);
        memcpy(r->block + used, all[i].bytes, bytes);
        used += bytes;
    }
    size_t whole = round_up(used, BLOCK_BYTES);
    memset(r->block + used, 0, whole - used);
    int error = io_write(d->v, file, r->block, whole, all[0].lsn - lead - all[0].first_lsn, &d->written);
    error = error == 0 ? d->v->sync_data(d->v, file) : error;
    r->stats.forces++;
    if (error != 0) {
        return replica_fail_disk(r, -error, "a batch cannot be written");
    }
    memmove(r->block, r->block + whole - BLOCK_BYTES, used % BLOCK_BYTES);
    return LS_OK;
}

/* The header that cuts these files is forced. */
static int free_cut_files(struct replica *r) {
    while (r->cut.count > 0) {
        if (!replica_add_file(&r->spares, r->cut.all[r->cut.count - 1])) {
            return fail_memory();
        }
        r->cut.count--;
    }
    return LS_OK;
}

/* Checks the next batch, and copies it to memory. */
static int accept(struct replica *r, const struct shipment *s) {
    struct scan_batch b = {.bytes = s->bytes, .lsn = s->lsn, .first_lsn = s->first_lsn};
    int rc = check(r, s, &b.batch);
    rc = rc == LS_OK && !keep(r, &b) ? fail_memory() : rc;
    rc = rc == LS_OK ? add_waiting(r, &b) : rc;
    if (rc == LS_OK) {
        r->end = end_of(&b);
    }
    return rc;
}

/* How many of these batches may be written with one force. A header is forced, or written, before its batch. */
static size_t count_group(struct replica *r, const struct shipment *all, size_t n) {
    uint64_t bytes = 0;
    size_t count = 0;
    while (count < n && count < GROUP_BATCHES_MAX && all[count].header == NULL &&
           all[count].first_lsn == all[0].first_lsn && all[count].end_lsn - all[count].lsn <= r->block_bytes - bytes) {
        bytes += all[count].end_lsn - all[count].lsn;
        count++;
    }
    return count >= GROUP_BATCHES_MIN && !replica_mark_finds_no_room(r) ? count : 1;
}

int replica_take_many(struct replica *r, const struct shipment *all, size_t n, size_t *taken) {
    struct replica_end before = r->end;
    size_t waiting = r->waiting_count, group = count_group(r, all, n), count = 0;
    int rc = r->error != 0 ? replica_fail_poisoned(r) : LS_OK;
    *taken = 0;
    while (rc == LS_OK && count < group) {
        rc = accept(r, &all[count]);
        count += rc == LS_OK ? 1 : 0;
    }
    if (count < group && r->kept != NULL) {
        kept_cut(r->kept, r->end.index); /* a batch that was kept in the window and not taken */
    }
    if (count == 0) {
        return rc;
    }
    struct replica_end after = r->end;
    r->end = before;
    rc = all[0].header != NULL ? begin_segment(r, &all[0]) : replica_remove_above(r, all[0].first_lsn);
    rc = rc == LS_OK && group > 1 ? replica_mark_set(r, before.lsn, after.lsn) : rc;
    rc = rc == LS_OK ? write_batches(r, all, count) : rc;
    rc = rc == LS_OK ? free_cut_files(r) : rc;
    if (rc != LS_OK) {
        bool unwritten = rc == LS_FULL && r->error == 0;
        if (unwritten && r->kept != NULL) {
            kept_cut(r->kept, before.index);
        }
        if (!unwritten && r->error == 0) {
            r->error = ENOMEM; /* the disk may have more than memory says */
        }
        while (r->waiting_count > waiting) {
            free(r->waiting[--r->waiting_count].bytes);
        }
        return rc;
    }
    r->end = after;
    r->stats.batches += count;
    if (all[0].header != NULL) {
        replica_make_spare(r, true);
    }
    rc = replica_durable(r, after.known_durable_lsn);
    *taken = rc == LS_OK ? count : 0;
    return rc;
}

int replica_take(struct replica *r, const struct shipment *s) {
    size_t taken;
    return replica_take_many(r, s, 1, &taken);
}

/* ---- cutting ---- */

static bool find_end(const struct replica *r, uint64_t index, struct replica_end *end) {
    if (index == r->applied.index) {
        *end = r->applied;
        return true;
    }
    for (size_t i = r->waiting_from; i < r->waiting_count; i++) {
        const struct replica_batch *w = &r->waiting[i];
        if (w->index == index) {
            *end = (struct replica_end){w->end_lsn, w->index, w->term, w->known_durable_lsn};
            return true;
        }
    }
    return false;
}

int replica_find_cut(const struct replica *r, uint64_t index, struct replica_end *end) {
    if (index < r->applied.index || !find_end(r, index, end)) {
        return fail(LS_REFUSED, "index %llu cannot become the end: this copy has %llu to %llu, and %llu is durable",
                    (unsigned long long)index, (unsigned long long)r->applied.index, (unsigned long long)r->end.index,
                    (unsigned long long)r->applied.index);
    }
    return LS_OK;
}

/* Nothing changes on the disk: the header of the next batch, or its place, makes the cut there. */
int replica_cut(struct replica *r, uint64_t index) {
    struct replica_end end;
    int rc = replica_find_cut(r, index, &end);
    if (rc != LS_OK) {
        return rc;
    }
    while (r->waiting_count > r->waiting_from && r->waiting[r->waiting_count - 1].index > index) {
        free(r->waiting[--r->waiting_count].bytes);
        r->stats.cut_batches++;
    }
    r->end = end;
    if (r->kept != NULL) {
        kept_cut(r->kept, end.index);
    }
    while (r->segment_count > 0 && r->segments[r->segment_count - 1].first_lsn >= end.lsn) {
        if (!replica_add_file(&r->cut, r->segments[r->segment_count - 1].first_lsn)) {
            r->error = ENOMEM;
            return fail_memory();
        }
        r->segment_count--;
    }
    return load_block(r);
}
