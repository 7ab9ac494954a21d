/*
 * Beginning: takes over a recovered log, rewrites its tail, begins a new epoch in a segment of its own, makes spares of
 * unused files, and lets the log serve. docs/recovery.md has the order. A crash may interrupt any step; the next open
 * then repeats it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/io.h"
#include "log/parts.h"
#include "log/space/parts.h"

int log_recover(struct log *g, const struct live_segment *segments, size_t n, uint64_t base_lsn) {
    for (size_t i = 0; i < n; i++) {
        const struct live_segment *from = &segments[i];
        struct segment *made = segment_new(g, from->first_lsn, from->epoch);
        if (made == NULL) {
            return fail_memory();
        }
        made->prev_end_lsn = from->prev_end_lsn;
        made->end_lsn = from->end_lsn;
        made->live_records = from->records;
        made->live_bytes = from->bytes;
        made->largest_bytes = from->largest_bytes;
        int rc = log_add_segment(g, made);
        if (rc != LS_OK) {
            segment_free(g, made);
            return rc;
        }
        g->base_index += from->behind ? 1 : 0;
    }
    g->named_base_lsn = base_lsn;
    return LS_OK;
}

/* ---- the tail ---- */

/* Reads [from, to) of the file and writes it again; past the cache, if `direct`. */
static int copy_blocks(struct log *g, int file, bool direct, uint64_t from, uint64_t to, uint64_t *done) {
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
        int64_t got =
            direct ? io_read_direct(g->v, file, memory, bytes, from) : io_read(g->v, file, memory, bytes, from);
        rc = got < 0 ? (int)got : (size_t)got < bytes ? -EIO : io_write(g->v, file, memory, bytes, from, g->written);
        from += bytes;
        *done += bytes;
    }
    free(memory);
    return rc;
}

/*
 * After a failed sync the page cache may show bytes that the disk does not have, and a later sync succeeds. So the open
 * writes all accepted bytes at or above the watermark, which it read past the cache, past the cache once more and
 * forces them, before any other write. They lie in the last segment: a segment's header says that everything before it
 * was durable.
 *
 * Worse, on ext4 the pages of a failed write into blocks never written before stay with their file: later writes
 * through them sync without an error, and the blocks are zeros after a power loss. So the log never writes through
 * pages that an earlier process may have left. It rewrites the rest of that segment, and every file that it takes for
 * reuse, past the cache with the bytes that the disk has; that drops the pages. After an orderly close only a later
 * open can have failed, while it wrote a header or after that.
 */
int log_rewrite_tail(struct log *g, const struct tail_part *t, uint64_t *bytes) {
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, t->first_lsn);
    int file = g->v->open(g->v, g->dir, name, VFS_WRITE | (t->direct ? VFS_DIRECT : 0));
    int rc = file < 0 ? file : copy_blocks(g, file, t->direct, t->from / BLOCK_BYTES * BLOCK_BYTES, t->to, bytes);
    rc = rc == 0 ? g->v->sync_data(g->v, file) : rc;
    if (file >= 0) {
        (void)g->v->close(g->v, file);
    }
    if (rc == -ENOMEM) {
        return fail_memory();
    }
    return rc == 0 ? LS_OK : fail_errno(LS_IO, -rc, "the tail of the log (%s) cannot be rewritten", name);
}

int log_open_holds(struct log *g) {
    g->holds_dir = g->v->open_subdir(g->v, g->dir, "holds", 1);
    return g->holds_dir >= 0 ? LS_OK : fail_errno(LS_IO, -g->holds_dir, "the holds directory cannot be opened");
}

/* ---- unused files ---- */

/* Rewrites the file's blocks past the cache, which drops its pages. Returns whether the file may be used. */
static bool renew(struct log *g, const struct unused_file *f) {
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, f->first_lsn);
    uint64_t to = f->header_only ? SEGMENT_HEADER_BYTES : g->segment_size, done = 0;
    int file = g->v->open(g->v, g->dir, name, VFS_WRITE | VFS_DIRECT);
    if (file == -EINVAL) {
        return true; /* a file system in memory, which has no VFS_DIRECT */
    }
    int rc = file < 0 ? file : copy_blocks(g, file, true, 0, to, &done);
    if (file >= 0) {
        (void)g->v->close(g->v, file);
    }
    return rc == 0;
}

/*
 * Renames the file to first_lsn, without syncing the directory. Returns a handle, or -1 if the file could not be used
 * and was removed.
 */
static int take_this(struct log *g, struct unused_file *f, uint64_t first_lsn) {
    char name[SEGMENT_NAME_BYTES], target[SEGMENT_NAME_BYTES];
    format_segment_name(name, f->first_lsn);
    format_segment_name(target, first_lsn);
    int file = g->v->open(g->v, g->dir, name, VFS_WRITE);
    bool usable = file >= 0 && g->v->size(g->v, file) == (int64_t)g->segment_size && renew(g, f);
    if (usable && f->first_lsn != first_lsn) {
        usable = g->v->rename(g->v, g->dir, name, target) == 0;
    }
    f->gone = true;
    if (usable) {
        return file;
    }
    if (file >= 0) {
        (void)g->v->close(g->v, file);
    }
    (void)g->v->unlink(g->v, g->dir, name);
    return -1;
}

/*
 * Takes an unused file of full size and names it first_lsn. Returns a handle, or -1 if there is none. Skips the last
 * epoch's segment unless it is free.
 */
static int take_file(struct log *g, struct unused_files *u, uint64_t first_lsn) {
    for (int pass = 0; pass < 2; pass++) { /* the first pass takes a file that already has the name */
        for (size_t i = 0; i < u->count; i++) {
            struct unused_file *f = &u->all[i];
            if (f->gone || (pass == 0 && f->first_lsn != first_lsn) || (f->last && !u->last_is_free)) {
                continue;
            }
            int file = take_this(g, f, first_lsn);
            if (file >= 0) {
                return file;
            }
        }
    }
    return -1;
}

/* The next segment, in an unused file. LS_END: there is none. */
static int take_segment(struct log *g, struct unused_files *u, struct segment **made) {
    struct segment *s = segment_new(g, g->space.next_spare_lsn, g->epoch);
    *made = NULL;
    if (s == NULL) {
        return fail_memory();
    }
    s->file = take_file(g, u, s->first_lsn);
    if (s->file < 0) {
        segment_free(g, s);
        return LS_END;
    }
    g->open_files++;
    g->space.next_spare_lsn += g->segment_size;
    *made = s;
    return LS_OK;
}

/* Removes the unused files that are left when there are enough spares. */
static void clear_away(struct log *g, struct unused_files *u) {
    for (size_t i = 0; i < u->count; i++) {
        if (!u->all[i].gone) {
            char name[SEGMENT_NAME_BYTES];
            format_segment_name(name, u->all[i].first_lsn);
            (void)g->v->unlink(g->v, g->dir, name);
        }
    }
}

/* ---- the new epoch ---- */

static int write_first_header(struct log *g, struct segment *made) {
    int rc = log_write_header(g, made, g->v->now_us(g->v));
    rc = rc == 0 ? g->v->sync_file(g->v, made->file) : rc;
    rc = rc == 0 ? g->v->sync_dir(g->v, g->dir) : rc;
    return rc == 0 ? LS_OK
                   : fail_errno(rc == -ENOSPC ? LS_FULL : LS_IO, -rc, "the new epoch's segment cannot be written");
}

/*
 * Finds a file for the new epoch's segment: an unused one, a new one, or a dead segment's. The last epoch's empty
 * segment may be reused only once the new header, which excludes it from the log, is on disk. This function makes one
 * exception: if there is no other file and none can be made, it takes that segment, so that a full store opens even in
 * a loop of crashes. The old header is then lost before the new one is forced; until then, damage in the last batches
 * before it would look like a torn tail. Where only max_log_bytes prevents a new file, the new one may be beyond it: a store of
 * which only the log was put back, or a copy whose detach was interrupted while it relocated, has no other.
 */
static int find_file_for(struct log *g, struct unused_files *u, struct segment **made) {
    int rc = take_segment(g, u, made);
    if (rc != LS_END) {
        return rc;
    }
    rc = spares_make(g, !log_is_replicated(g)); /* a new leader must begin soon, so its file is not filled with zeros */
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        spares_recycle(g);
        rc = g->space.spare_count > 0 ? LS_OK : fail_again(&kept);
    }
    if (rc == LS_OK) {
        *made = spares_take(g);
        return LS_OK;
    }
    ls_error kept = *ls_last_error();
    if (log_is_replicated(g)) { /* a leader may have counted the content of this file */
        (void)fail_again(&kept);
        return rc;
    }
    u->last_is_free = true;
    bool taken = take_segment(g, u, made) == LS_OK;
    u->last_is_free = false;
    if (!taken && rc == LS_FULL && g->space.grow_error == 0) {
        g->space.beyond_limit = true;
        taken = spares_make(g, true) == LS_OK;
        g->space.beyond_limit = false;
        *made = taken ? spares_take(g) : NULL;
    }
    if (!taken) {
        (void)fail_again(&kept);
        return rc;
    }
    return LS_OK;
}

/*
 * In a term no file is removed before a batch of the term says that all of the log before it is durable. The copy began
 * with the base that its newest batch names; a batch that is known to be durable may name a lower one.
 */
static void hold_base_back(struct log *g, uint64_t prev_end_lsn) {
    struct leading *t = &g->term;
    t->named[0] = (struct named_base){prev_end_lsn, g->named_base_lsn};
    t->named_count = 1;
    g->named_base_lsn = g->segments[0]->first_lsn;
}

int log_begin_epoch(struct log *g, const struct log_epoch *e, struct unused_files *u) {
    struct segment *made;
    g->epoch = e->epoch;
    g->space.next_spare_lsn = e->first_lsn;
    /* Called before any file is taken: a hint of the last epoch may name segments that were left out. A new term leaves
       out none. */
    if (!e->creating && !log_is_replicated(g)) {
        hint_published(g, g->named_base_lsn, hint_publish(g, e->prev_end_lsn, g->named_base_lsn));
    }
    if (log_is_replicated(g)) {
        hold_base_back(g, e->prev_end_lsn);
    }
    int rc = find_file_for(g, u, &made);
    if (rc != LS_OK) {
        return rc;
    }
    made->prev_end_lsn = e->prev_end_lsn;
    made->header_due = false;
    rc = write_first_header(g, made);
    rc = rc == LS_OK ? log_add_segment(g, made) : rc;
    if (rc != LS_OK) {
        segment_free(g, made);
        return rc;
    }
    g->front.append_lsn = g->front.end_lsn = made->first_lsn + SEGMENT_HEADER_BYTES;
    g->front.durable_lsn = g->front.forced_lsn = g->front.end_lsn;
    u->last_is_free = true;
    if (e->creating) {
        g->named_base_lsn = made->first_lsn;
    }
    /* All of the log below this counts as durable from the start: the log's further work waits for the first batch of
       the term, and when that batch is durable, everything before it is. */
    g->term.first_lsn = g->front.end_lsn;
    return LS_OK;
}

int log_gather_spares(struct log *g, const struct log_epoch *e, struct unused_files *u) {
    admission_compute_needs(g);
    size_t wanted = e->creating ? e->initial_segments - 1 : spares_target(g);
    int rc = LS_OK;
    while (rc == LS_OK && g->space.spare_count < wanted) {
        struct segment *made;
        rc = take_segment(g, u, &made);
        if (rc == LS_OK) {
            made->header_due = true;
            spares_adopt(g, made);
        }
    }
    if (rc != LS_OK && rc != LS_END) {
        return rc;
    }
    clear_away(g, u);
    rc = g->v->sync_dir(g->v, g->dir);
    if (rc != 0) {
        return fail_errno(LS_IO, -rc, "the store directory cannot be synced");
    }
    while (e->creating && g->space.spare_count < wanted) {
        rc = spares_make(g, true);
        if (rc != LS_OK) {
            return rc;
        }
    }
    g->spare_thread.wanted =
        g->space.spare_count <= g->space.needs.spares_reserved; /* an open succeeds even without a spare */
    return LS_OK;
}

/* ---- service ---- */

static int make_reserved(struct log *g) {
    int rc = LS_OK;
    while (rc == LS_OK && g->space.spare_count < SPARES_RESERVED) {
        rc = spares_make(g, false);
    }
    return rc;
}

/*
 * A log without free segments is relocated before it serves, because the next open and relocation itself may need a
 * free segment. Some logs cannot be relocated without one, for example a store of which only the log was restored. Then
 * the free segments may exceed max_log_bytes; otherwise such a log could not be drained.
 */
int log_make_ready(struct log *g) {
    int rc = make_reserved(g);
    if (rc != LS_OK) {
        (void)spares_keep(g);
        g->space.beyond_limit = true;
        (void)make_reserved(g);
        g->space.beyond_limit = false;
    }
    return g->poison == 0 ? LS_OK : fail_errno(LS_IO, g->poison, "the log cannot be written");
}

int log_serve(struct log *g) {
    log_advance_base(g);
    g->space.last_switch_us = g->v->monotonic_us(g->v);
    g->space.switch_interval_us = UINT64_MAX;
    if (!log_is_replicated(g)) {
        hint_published(g, g->named_base_lsn, hint_publish(g, g->front.durable_lsn, g->named_base_lsn));
    }
    g->serving = true;
    return log_is_replicated(g) ? LS_OK : log_make_ready(g);
}
