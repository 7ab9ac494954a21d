/*
 * Spares: segment files made ahead of need, or recycled once the base has passed them. A spare is named for the
 * LSNs it will hold, is allocated in full (never sparse), and its directory entry is durable before it is offered.
 *
 * One thread does all of it (the maker; without background threads, whoever needs a spare): only it renames, makes
 * or removes segment files. Failures are counted and survived; what they leave is a store that cannot grow.
 *
 * How a new file gets its blocks is a matter of measured speed: rewriting written blocks is several times faster
 * than writing into fallocated ones, but writing zeros while the log grows quickly takes the disk from it. So a
 * file is filled with zeros when there is time and fallocated when the last segment did not last FAST_SWITCH_US.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "os/io.h"
#include "log/log.h"
#include "log/space/parts.h"

enum {
    ZERO_CHUNK_BYTES = 1 << 20,
    EXPANSION_MOST = 9, /* for a byte of a record: a queue id of 4 bytes becomes ROW_BYTES, and all else grows less */
};

/* At the end: names grow along the list. */
void spares_adopt(struct log *g, struct segment *s) {
    struct segment **end = &g->spares;
    while (*end != NULL) {
        end = &(*end)->next_spare;
    }
    s->next_spare = NULL;
    *end = s;
    g->spare_count++;
}

struct segment *spares_take(struct log *g) {
    struct segment *s = g->spares;
    assert(s != NULL);
    g->spares = s->next_spare;
    g->spare_count--;
    spares_weigh(g);
    g->live_low_before = g->live_low;
    g->live_low = UINT64_MAX;
    spares_reckon(g);
    uint64_t now = g->v->monotonic_us(g->v);
    g->switch_interval_us = now - g->last_switch_us;
    g->last_switch_us = now;
    return s;
}

static int fill_with_zeros(struct log *g, int file) {
    static const uint8_t zeros[ZERO_CHUNK_BYTES];
    for (uint64_t at = 0; at < g->segment_size; at += ZERO_CHUNK_BYTES) {
        uint64_t left = g->segment_size - at;
        int rc =
            io_write(g->v, file, zeros, left < ZERO_CHUNK_BYTES ? (size_t)left : ZERO_CHUNK_BYTES, at, &g->written);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* The file of one more spare, durable under its name; a handle or -errno. */
static int make_file(struct log *g, uint64_t first_lsn, bool zero_fill) {
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, first_lsn);
    int file = g->v->open(g->v, g->dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE);
    if (file == -EEXIST && g->v->unlink(g->v, g->dir, name) == 0) { /* what a failed try could not take away */
        file = g->v->open(g->v, g->dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE);
    }
    if (file < 0) {
        return file;
    }
    int rc = zero_fill ? fill_with_zeros(g, file) : g->v->allocate(g->v, file, g->segment_size);
    if (rc == -EOPNOTSUPP) {
        rc = fill_with_zeros(g, file);
    }
    if (rc == 0) {
        rc = g->v->sync_file(g->v, file);
    }
    if (rc == 0) {
        rc = g->v->sync_dir(g->v, g->dir);
    }
    if (rc != 0) {
        (void)g->v->close(g->v, file);
        (void)g->v->unlink(g->v, g->dir, name);
        return rc;
    }
    return file;
}

/* What a hold alone keeps is the reader's, and limited by the hold; what is dead but not recycled yet has its file. */
size_t spares_segments_kept(const struct log *g) { return g->segment_count - g->held_count; }

size_t spares_files(const struct log *g) { return spares_segments_kept(g) + g->spare_count; }

/* What life can fill of a segment at worst, if a record of `gap` bytes does not fit at its end. */
static uint64_t usable_bytes(const struct log *g, uint64_t gap) {
    return g->segment_size - SEGMENT_HEADER_BYTES - SEGMENT_END_RESERVE - 16 * BATCH_RECORD_BYTES - gap;
}

static bool within_limit(const struct log *g) {
    uint64_t files = spares_files(g) + (g->replacing ? 0 : 1);
    return g->max_log_bytes == 0 || files * g->segment_size <= g->max_log_bytes;
}

static int make_spare(struct log *g, bool zero_fill) {
    if (!within_limit(g)) {
        g->grow_error = 0;
        return fail(LS_FULL, "the log may not grow beyond max_log_bytes (%llu)", (unsigned long long)g->max_log_bytes);
    }
    struct segment *s = segment_new(g, g->next_spare_lsn, g->epoch);
    if (s == NULL) {
        return fail_memory();
    }
    s->header_due = true;
    g->next_spare_lsn += g->segment_size;
    log_unlock_for_io(g);
    int file = make_file(g, s->first_lsn, zero_fill);
    log_relock_after_io(g);
    if (file < 0) {
        g->next_spare_lsn = s->first_lsn;
        g->grow_error = -file;
        segment_free(g, s);
        return fail_errno(file == -ENOSPC || file == -EDQUOT || file == -EFBIG ? LS_FULL : LS_IO, -file,
                          "another segment of %llu bytes cannot be made", (unsigned long long)g->segment_size);
    }
    s->file = file;
    g->open_files++;
    g->stats.segments_created++;
    spares_adopt(g, s);
    return LS_OK;
}

/* On a full disk a checkpoint is given up before the log is: it only saves time. */
int spares_make(struct log *g, bool zero_fill) {
    int rc = make_spare(g, zero_fill);
    bool disk_full = rc == LS_FULL && (g->grow_error == ENOSPC || g->grow_error == EDQUOT);
    if (disk_full && g->owner.give_up_space != NULL && g->owner.give_up_space(g->owner.context)) {
        rc = make_spare(g, zero_fill);
    }
    return rc;
}

size_t spares_segments_used(const struct log *g) { return g->segment_count - g->base_index; }

/* A checkpoint whose contents lie may claim more than the log can hold: it is believed up to that. */
static uint64_t used_bytes(const struct log *g) { return spares_segments_used(g) * g->segment_size; }

/*
 * How many spares are kept, and for what. Whatever lives must be drainable although no other file is to be had: so with
 * `grown`, all that lives as long as it is once it was moved (its records as they are, and the expansion), two things
 * hold from the first message on:
 *   - spares >= SPARES_RESERVED + expansion: while the oldest segments are moved, each as long as it may become, a file
 *     is there for all of it, and one segment is in the making;
 *   - (files - SPARES_RESERVED) * usable >= grown + segment / ROOM_TO_WORK: packed anew and as loosely as its records can
 *     make it, all of it leaves room for what a drain appends. Those records are dead at once, so moving gets the room
 *     back, and what was drained in it besides: the room only grows.
 * What drains makes neither worse: it changes no record into a longer one, and it takes a spare only above the first.
 */
uint64_t spares_expansion(const struct log *g) {
    uint64_t most = EXPANSION_MOST * used_bytes(g);
    uint64_t bytes = g->owner.expansion != NULL ? g->owner.expansion(g->owner.context) : 0;
    return bytes < most ? bytes : most;
}

static uint64_t live_bytes(const struct log *g) {
    uint64_t most = used_bytes(g), bytes = log_live_bytes(g);
    return bytes < most ? bytes : most;
}

/* What came and went within a segment or two does not make the log longer. */
void spares_weigh(struct log *g) {
    uint64_t live = live_bytes(g);
    g->live_low = live < g->live_low ? live : g->live_low;
    g->live_low_lsn = g->append_lsn;
    g->released_bytes = 0;
}

static void reckon_usable(struct log *g) {
    g->gap_bytes = 0;
    for (size_t i = g->base_index; i < g->segment_count; i++) {
        uint64_t bytes = g->segments[i]->largest_bytes;
        g->gap_bytes = bytes > g->gap_bytes ? bytes : g->gap_bytes;
    }
    g->gap_bytes = g->gap_bytes < g->record_bytes_max ? g->gap_bytes : g->record_bytes_max;
    g->usable = usable_bytes(g, g->gap_bytes);
}

void spares_reckon(struct log *g) {
    uint64_t expansion = spares_expansion(g) + g->growth_asked, used = spares_segments_used(g);
    reckon_usable(g);
    g->weighed_bytes = live_bytes(g);
    g->weighed_lsn = g->append_lsn;
    uint64_t grown = g->weighed_bytes + expansion + g->segment_size / ROOM_TO_WORK;
    uint64_t packed = grown / g->usable + 1;
    g->spares_reserved = SPARES_RESERVED + (size_t)((expansion + g->segment_size / 2) / g->segment_size);
    g->spares_wanted = SPARES_RESERVED + (size_t)(packed > used ? packed - used : 0);
    g->spares_wanted = g->spares_wanted > g->spares_reserved ? g->spares_wanted : g->spares_reserved;
    uint64_t lasting = g->weighed_bytes < g->live_low ? g->weighed_bytes : g->live_low;
    lasting = g->live_low_before < lasting ? g->live_low_before : lasting;
    uint64_t twice = (2 * lasting + g->segment_size - 1) / g->segment_size;
    g->files_wanted =
        (size_t)(twice > LOG_SEGMENTS_MIN ? twice : LOG_SEGMENTS_MIN) + 1 + g->spares_reserved - SPARES_RESERVED;
}

static bool suffices(const struct log *g, uint64_t bytes, uint64_t expansion) {
    uint64_t all = spares_expansion(g) + expansion;
    uint64_t grown = g->weighed_bytes + (g->append_lsn - g->weighed_lsn) + bytes + all;
    size_t files = spares_files(g);
    return SPARES_RESERVED * g->segment_size + all <= g->spare_count * g->segment_size + g->segment_size / 2 &&
           files > SPARES_RESERVED && grown + g->segment_size / ROOM_TO_WORK <= (files - SPARES_RESERVED) * g->usable;
}

bool spares_suffice(struct log *g, uint64_t bytes, uint64_t expansion) {
    if (bytes <= g->gap_bytes && suffices(g, bytes, expansion)) {
        return true;
    }
    spares_reckon(g);
    if (bytes > g->gap_bytes) {
        g->gap_bytes = bytes;
        g->usable = usable_bytes(g, bytes);
    }
    return suffices(g, bytes, expansion);
}

/*
 * A log of so many segments has at most so many spares beside it: what must be, and two more as long as all files together
 * are no more than the log is kept to. One of these is made ahead of need; the other may stay when a segment dies, since
 * with fewer, making would always be quicker than dying.
 */
static size_t spares_beside(const struct log *g, size_t segments, size_t ahead) {
    size_t room = g->files_wanted > segments ? g->files_wanted - segments : 0;
    size_t most = g->spares_wanted + ahead;
    most = most < room ? most : room;
    return most > g->spares_wanted ? most : g->spares_wanted;
}

size_t spares_for(const struct log *g, size_t segments) { return spares_beside(g, segments, 1); }

size_t spares_target(const struct log *g) { return spares_for(g, spares_segments_kept(g)); }

size_t spares_most(const struct log *g) { return spares_beside(g, spares_segments_kept(g), 2); }

/*
 * One dead segment becomes a spare under a new name, or goes. It is out of the array already. One that is being read
 * loses only its name: its readers have the file open.
 */
static void recycle(struct log *g, struct segment *s) {
    bool read = s->readers > 0;
    char from[SEGMENT_NAME_BYTES], to[SEGMENT_NAME_BYTES];
    format_segment_name(from, s->first_lsn);
    bool keep = !read && g->spare_count < spares_most(g);
    int rc = -1;
    if (keep) {
        uint64_t first_lsn = g->next_spare_lsn;
        g->next_spare_lsn += g->segment_size;
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
        g->next_spare_lsn = first_lsn; /* no gap: ids stay within max_undurable_bytes of what is durable */
    }
    if (read) {
        s->next_spare = g->unnamed;
        g->unnamed = s;
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

/*
 * The newest spare goes back to the disk. Its name is free again, so that there is no gap: ids stay within
 * max_undurable_bytes of what is durable.
 */
static bool give_back(struct log *g) {
    struct segment **end = &g->spares;
    while (*end != NULL && (*end)->next_spare != NULL) {
        end = &(*end)->next_spare;
    }
    struct segment *s = *end;
    if (s == NULL || s->first_lsn + g->segment_size != g->next_spare_lsn) {
        return false;
    }
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, s->first_lsn);
    *end = NULL;
    g->spare_count--;
    g->next_spare_lsn = s->first_lsn;
    segment_free(g, s);
    log_unlock_for_io(g);
    int rc = g->v->unlink(g->v, g->dir, name);
    rc = rc == 0 ? g->v->sync_dir(g->v, g->dir) : rc; /* should it come back, it is a spare */
    log_relock_after_io(g);
    g->stats.segments_removed++;
    g->stats.spare_failures += rc != 0 ? 1 : 0;
    return rc == 0;
}

/* After a peak the disk has back what is not needed any more; before anything died, what was made ahead stays. */
void spares_give_back_beyond(struct log *g, size_t most) {
    while (g->spare_count > most && give_back(g)) {
    }
}

/*
 * The oldest segment is dead and being read, and its file is needed. Another is made first, so that a full disk costs
 * none; where that fails there is nothing but to wait for the readers. False: nothing was made.
 */
static bool replace_oldest(struct log *g) {
    struct segment *s = g->segments[0];
    g->replacing = true;
    int rc = spares_make(g, false);
    g->replacing = false;
    if (rc == LS_OK && g->segments[0] == s && g->base_index > 0) {
        log_remove_segment(g, 0);
        recycle(g, s);
    }
    return rc == LS_OK;
}

/*
 * Which segments may go is settled before the look at the holds: a reader that takes its hold while we look goes by the
 * hint that it finds then, so whatever the base passes from here on is for the next look.
 */
void spares_recycle(struct log *g) {
    uint64_t below_lsn = log_recyclable_lsn(g);
    if (!oldest_is_dead(g, below_lsn)) {
        g->held_count = 0;
        return;
    }
    struct holds holds;
    log_unlock_for_io(g);
    holds_look(g, &holds);
    log_relock_after_io(g);
    uint64_t kept_from = holds_lowest(g, &holds, below_lsn);
    g->held_count = count_held(g, below_lsn, kept_from);
    while (oldest_is_dead(g, below_lsn) && first_above(g, g->segments[0]) <= kept_from) {
        struct segment *s = g->segments[0];
        if (s->readers > 0) {
            /* Of content that was there when they began; nobody comes after them. A move has pinned what it reads. */
            if (g->spare_count >= g->spares_reserved) {
                break;
            }
            if (replace_oldest(g)) {
                continue;
            }
            if (g->moving) {
                break;
            }
            log_wait(g, &g->maker_wake);
            continue;
        }
        log_remove_segment(g, 0);
        recycle(g, s);
    }
    spares_reckon(g);
    spares_give_back_beyond(g, spares_most(g));
}
