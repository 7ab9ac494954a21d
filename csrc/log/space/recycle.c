/*
 * Recycling: a segment that the base has passed becomes a spare under a new name, or its file is removed. Never before a
 * durable batch named a base above it, never while a hold keeps it, never under a reader that has its file.
 */
#include <errno.h>

#include "log/parts.h"
#include "log/space/parts.h"

/*
 * One dead segment, out of the array already, becomes a spare under a new name, or its file is removed. One that is being
 * read loses only its name: its readers have the file open.
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
    (void)g->v->sync_dir(g->v, g->dir); /* should it come back, it is below the base */
    log_relock_after_io(g);
    g->stats.segments_removed++;
}

/* Whether the oldest segment is behind the base that a durable batch named and readers know. */
static bool oldest_is_dead(const struct log *g, uint64_t below_lsn) {
    return g->base_index > 0 && g->segments[0]->first_lsn < below_lsn;
}

/* A reader that stands at the end of a segment's part of the log goes on from that segment. */
static uint64_t first_above(const struct log *g, const struct segment *s) { return s->first_lsn + g->segment_size; }

static size_t count_held(const struct log *g, uint64_t below_lsn, uint64_t kept_from) {
    size_t n = 0;
    for (size_t i = g->base_index; i-- > 0 && first_above(g, g->segments[i]) > kept_from;) {
        n += g->segments[i]->first_lsn < below_lsn ? 1 : 0;
    }
    return n;
}

uint64_t spares_kept_from(struct log *g) {
    log_may_wait(g);
    struct holds holds;
    log_unlock_for_io(g);
    holds_look(g, &holds);
    log_relock_after_io(g);
    return holds_lowest(g, &holds, log_base_lsn(g));
}

/*
 * The oldest segment is dead and being read, and its file is needed. Another file is made first, so that a full disk costs
 * none; if that fails the caller waits for the readers. False: nothing was made.
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
 * Which segments may go is decided before the look at the holds: a reader that takes its hold meanwhile goes by the hint
 * that it finds then, so segments that the base passes from here on wait for the next look.
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
    uint64_t kept_from = holds_lowest(g, &holds, below_lsn);
    g->space.held_count = count_held(g, below_lsn, kept_from);
    while (oldest_is_dead(g, below_lsn) && first_above(g, g->segments[0]) <= kept_from) {
        struct segment *s = g->segments[0];
        if (s->readers > 0) {
            /* Readers of content that lived when they began; no new ones come. A move has pinned the segment it reads. */
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
            if (g->space.reader_awaited) { /* else the last reader ended while the lock was let go */
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
