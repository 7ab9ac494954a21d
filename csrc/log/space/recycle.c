/*
 * Recycling: a segment that the base has passed becomes a spare under a new name, or its file is removed. This never
 * happens before a durable batch names a base above it, while a hold keeps it, or while a reader has its file open.
 */
#include <errno.h>

#include "log/parts.h"
#include "log/space/parts.h"

/*
 * Turns a dead segment, which is no longer in the array, into a spare under a new name, or removes its file. A segment
 * that is being read loses only its name: its readers have the file open.
 */
static void recycle(struct log *g, struct segment *s) {
    bool read = s->readers > 0;
    char from[SEGMENT_NAME_BYTES], to[SEGMENT_NAME_BYTES];
    format_segment_name(from, s->first_lsn);
    bool keep = !read && g->space.spare_count < spares_most(g);
    int rc = -1;
    if (keep) {
        uint64_t first_lsn = g->space.next_spare_lsn;
        g->space.next_spare_lsn += g->segment_size;
        format_segment_name(to, first_lsn);
        log_unlock_for_io(g);
        rc = s->file >= 0 ? 0 : g->v->open(g->v, g->dir, from, VFS_WRITE);
        int opened = s->file < 0 && rc >= 0 ? rc : -1;
        rc = rc < 0 ? rc : g->v->rename(g->v, g->dir, from, to);
        rc = rc < 0 ? rc : g->v->sync_dir(g->v, g->dir);
        log_relock_after_io(g);
        if (opened >= 0) {
            s->file = opened;
            g->open_files++;
        }
        if (rc == 0) {
            s->first_lsn = first_lsn;
            s->epoch = g->epoch;
            s->seed = format_segment_seed(g->uuid, first_lsn, g->epoch);
            s->end_lsn = s->live_records = s->live_bytes = s->largest_bytes = 0;
            s->stuck_until_lsn = 0;
            s->header_due = true;
            g->stats.segments_recycled++;
            spares_adopt(g, s);
            return;
        }
        g->stats.spare_failures++;
        g->space.next_spare_lsn = first_lsn; /* no gap: ids stay within max_undurable_bytes of what is durable */
    }
    if (read) {
        s->next_spare = g->space.unnamed_segments;
        g->space.unnamed_segments = s;
    } else {
        segment_free(g, s);
    }
    log_unlock_for_io(g);
    if (g->v->unlink(g->v, g->dir, from) != 0 && keep) {
        (void)g->v->unlink(g->v, g->dir, to);
    }
    (void)g->v->sync_dir(g->v, g->dir); /* if a crash undoes the unlink, the file is below the base and ignored */
    log_relock_after_io(g);
    g->stats.segments_removed++;
}

/* Whether the oldest segment is below the base that a durable batch named and readers know. */
static bool oldest_is_dead(const struct log *g, uint64_t below_lsn) {
    return g->base_index > 0 && g->segments[0]->first_lsn < below_lsn;
}

/*
 * The first LSN above the segment. A hold at a lower LSN keeps the segment, even behind its last record: the reader
 * continues in it.
 */
static uint64_t first_above(const struct log *g, const struct segment *s) { return s->first_lsn + g->segment_size; }

static size_t count_held(const struct log *g, uint64_t below_lsn, uint64_t kept_from) {
    size_t n = 0;
    for (size_t i = g->base_index; i-- > 0 && first_above(g, g->segments[i]) > kept_from;) {
        n += g->segments[i]->first_lsn < below_lsn ? 1 : 0;
    }
    return n;
}

/* Kept by a hold, or for other members or the catalog. */
static uint64_t lowest_kept(struct log *g, const struct holds *holds, uint64_t below_lsn) {
    uint64_t held_lsn = holds_lowest(g, holds, below_lsn);
    return held_lsn < g->space.kept_lsn ? held_lsn : g->space.kept_lsn;
}

uint64_t spares_kept_from(struct log *g) {
    log_may_wait(g);
    struct holds holds;
    log_unlock_for_io(g);
    holds_look(g, &holds);
    log_relock_after_io(g);
    return lowest_kept(g, &holds, log_base_lsn(g));
}

void log_keep_from(struct log *g, uint64_t lsn) {
    bool raised = lsn > g->space.kept_lsn;
    g->space.kept_lsn = lsn;
    if (raised && g->space.held_count > 0) {
        g->space.looked_lsn = 0; /* the spare thread looks again */
        (void)pthread_cond_signal(&g->spare_thread.wake);
    }
}

/*
 * The oldest segment is dead and being read, and its file is needed. Makes another file first, so that no file is lost
 * if the disk is full. False: no file was made, and the caller waits for the readers.
 */
static bool replace_oldest(struct log *g) {
    struct segment *s = g->segments[0];
    g->space.replacing = true;
    int rc = spares_make(g, false);
    g->space.replacing = false;
    if (rc == LS_OK && g->segments[0] == s && g->base_index > 0) {
        log_remove_segment(g, 0);
        recycle(g, s);
    }
    return rc == LS_OK;
}

/*
 * Decides which segments may go before it looks at the holds. A reader that takes a hold meanwhile trusts the hint of
 * that moment, so segments that the base passes later wait for the next look.
 */
void spares_recycle(struct log *g) {
    uint64_t below_lsn = log_recyclable_lsn(g);
    g->space.looked_lsn = below_lsn;
    if (!oldest_is_dead(g, below_lsn)) {
        g->space.held_count = 0;
        return;
    }
    struct holds holds;
    log_unlock_for_io(g);
    holds_look(g, &holds);
    log_relock_after_io(g);
    uint64_t kept_from = lowest_kept(g, &holds, below_lsn);
    g->space.held_count = count_held(g, below_lsn, kept_from);
    while (oldest_is_dead(g, below_lsn) && first_above(g, g->segments[0]) <= kept_from) {
        struct segment *s = g->segments[0];
        if (s->readers > 0) {
            /* These readers began while their content was live; no new ones can begin. A move pins the segment that
               it reads. */
            g->space.reader_awaited = true;
            if (g->space.spare_count >= g->space.needs.spares_reserved) {
                break;
            }
            if (replace_oldest(g)) {
                continue;
            }
            if (g->relocation.moving) {
                break;
            }
            if (g->space.reader_awaited) { /* false if the last reader ended while the lock was let go */
                log_wait(g, &g->spare_thread.wake);
            }
            continue;
        }
        log_remove_segment(g, 0);
        recycle(g, s);
    }
    admission_compute_needs(g);
    spares_give_back_beyond(g, spares_most(g));
}
