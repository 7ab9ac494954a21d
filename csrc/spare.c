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

#include "io.h"
#include "log.h"
#include "mutants.h"

enum { FAST_SWITCH_US = 500 * 1000, ZERO_CHUNK_BYTES = 1 << 20, HELD_AGAIN_S = 1 };

/* A thread stays what it is; whether there is a maker changes while one of these two waits for the other. */
static _Thread_local bool this_is_the_maker;

void log_unlock_for_io(struct log *g) {
    if (this_is_the_maker) {
        pthread_mutex_unlock(&g->lock);
    }
}

void log_relock_after_io(struct log *g) {
    if (this_is_the_maker) {
        pthread_mutex_lock(&g->lock);
    }
}

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
        int rc = io_write(g->v, file, zeros, left < ZERO_CHUNK_BYTES ? (size_t)left : ZERO_CHUNK_BYTES, at);
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
    if (rc == 0 && !MUTANT(NO_DIR_SYNC_FOR_A_NEW_FILE)) {
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
static size_t segments_kept(const struct log *g) {
    return g->segment_count - (MUTANT(HELD_IS_OF_THE_LOG) ? 0 : g->held_count);
}

static size_t files_of_log(const struct log *g) { return segments_kept(g) + g->spare_count; }

/* What life can fill of a segment at worst, if a record of `gap` bytes does not fit at its end. */
static uint64_t usable_bytes(const struct log *g, uint64_t gap) {
    return g->segment_size - SEGMENT_HEADER_BYTES - SEGMENT_END_RESERVE - 16 * BATCH_RECORD_BYTES - gap;
}

static bool within_limit(const struct log *g) {
    uint64_t files = files_of_log(g) + 1;
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
        g->next_spare_lsn = MUTANT(GAP_AFTER_A_FAILED_SPARE) ? g->next_spare_lsn : s->first_lsn;
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
static uint64_t expansion_of(const struct log *g) {
    return g->owner.expansion != NULL ? g->owner.expansion(g->owner.context) : 0;
}

static size_t segments_used(const struct log *g) { return g->segment_count - g->base_index; }

/* What came and went within a segment or two does not make the log longer. */
void spares_weigh(struct log *g) {
    uint64_t live = log_live_bytes(g);
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
    uint64_t expansion = expansion_of(g) + g->growth_asked, used = segments_used(g);
    reckon_usable(g);
    g->weighed_bytes = log_live_bytes(g);
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
    uint64_t all = expansion_of(g) + expansion;
    uint64_t grown = g->weighed_bytes + (g->append_lsn - g->weighed_lsn) + bytes + all;
    size_t files = files_of_log(g);
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

size_t spares_target(const struct log *g) { return spares_for(g, segments_kept(g)); }

static size_t spares_most(const struct log *g) { return spares_beside(g, segments_kept(g), 2); }

/* One dead segment becomes a spare under a new name, or goes. It is out of the array already. */
static void recycle(struct log *g, struct segment *s) {
    char from[SEGMENT_NAME_BYTES], to[SEGMENT_NAME_BYTES];
    format_segment_name(from, s->first_lsn);
    bool keep = g->spare_count < spares_most(g);
    int rc = -1;
    if (keep) {
        uint64_t first_lsn = g->next_spare_lsn;
        g->next_spare_lsn += MUTANT(RECYCLED_UNDER_ONE_NAME) ? 0 : g->segment_size;
        format_segment_name(to, first_lsn);
        log_unlock_for_io(g);
        rc = s->file >= 0 ? 0 : g->v->open(g->v, g->dir, from, VFS_WRITE);
        int opened = s->file < 0 && rc >= 0 ? rc : -1;
        rc = rc < 0 ? rc : g->v->rename(g->v, g->dir, from, to);
        rc = rc < 0 || MUTANT(NO_DIR_SYNC_FOR_A_RECYCLED_FILE) ? rc : g->v->sync_dir(g->v, g->dir);
        log_relock_after_io(g);
        if (opened >= 0) {
            s->file = opened;
            g->open_files++;
        }
        if (rc == 0) {
            s->first_lsn = first_lsn;
            s->epoch = g->epoch;
            s->seed = MUTANT(RECYCLED_WITH_ITS_SEED) ? s->seed : format_segment_seed(g->uuid, first_lsn, g->epoch);
            s->end_lsn = s->live_records = s->live_bytes = s->largest_bytes = 0;
            s->stuck_until_lsn = MUTANT(RECYCLED_AS_STUCK) ? s->stuck_until_lsn : 0;
            s->header_due = !MUTANT(RECYCLED_WITH_ITS_HEADER);
            g->stats.segments_recycled++;
            spares_adopt(g, s);
            return;
        }
        g->stats.spare_failures++;
        g->next_spare_lsn = first_lsn; /* no gap: ids stay within max_undurable_bytes of what is durable */
    }
    segment_free(g, s);
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
    return g->base_index > 0 && (g->segments[0]->first_lsn < below_lsn || MUTANT(RECYCLED_TOO_EARLY));
}

static size_t count_held(const struct log *g, uint64_t below_lsn, uint64_t kept_from) {
    size_t n = 0;
    for (size_t i = g->base_index; i-- > 0 && g->segments[i]->end_lsn > kept_from;) {
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
static void give_back_beyond(struct log *g, size_t most) {
    while (g->spare_count > most && give_back(g)) {
    }
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
    while (oldest_is_dead(g, below_lsn) &&
           (MUTANT(HELD_FROM_THE_NEXT_ON) ? g->segments[0]->first_lsn : g->segments[0]->end_lsn) <= kept_from) {
        struct segment *s = g->segments[0];
        if (s->readers > 0 && !MUTANT(RECYCLED_UNDER_A_READ)) {
            /* Of content that was there when they began; nobody comes after them. A move has pinned what it reads. */
            if (g->moving || g->spare_count >= g->spares_reserved) {
                break;
            }
            (void)pthread_cond_wait(&g->maker_wake, &g->lock);
            continue;
        }
        log_remove_segment(g, 0);
        recycle(g, s);
    }
    spares_reckon(g);
    give_back_beyond(g, spares_most(g));
}

/* ---- how many, and when to relocate ---- */

/*
 * What is reserved is for moves and for the next open; what makes room again waits for them. A move may take the last one:
 * until it is done nobody else writes (see log_reserve), so that, should it be cut, the last segment holds only copies
 * and the next open takes it back. The last records of a close leave one.
 */
bool spares_allow(const struct log *g, enum purpose purpose) {
    size_t kept = g->spares_reserved;
    if (purpose == RESERVE_MOVES) {
        kept = 0;
    } else if (purpose == RESERVE_SHRINKS && g->closing) {
        kept = 1;
    }
    return g->spare_count > kept;
}

static bool oldest_is_stuck(const struct log *g) { return g->append_lsn < g->segments[g->base_index]->stuck_until_lsn; }

/*
 * The log, every file counted, is kept to max(LOG_SEGMENTS_MIN segments, twice what lives) and one more, and what moving
 * takes more on top: a function of what lives, not of the age of the oldest. It is long when the next segment would be
 * one too many beside the spares that are kept.
 */
static bool is_long(const struct log *g) { return segments_used(g) + 1 + g->spares_reserved > g->files_wanted; }

/*
 * And what is dead in full segments is worth a round of moves: that round copies no more than what lives, so the bytes
 * copied for each byte gained are bounded (docs/decisions.md says by how much).
 */
static bool is_worth_moving(const struct log *g) {
    uint64_t full = (segments_used(g) - 1) * g->usable, live = 0;
    for (size_t i = g->base_index; i + 1 < g->segment_count; i++) {
        live += g->segments[i]->live_bytes;
    }
    return full > live + g->segment_size / GAIN_MIN;
}

bool spares_are_behind(const struct log *g) { return is_long(g) && is_worth_moving(g) && !oldest_is_stuck(g); }

static bool can_relocate(const struct log *g) {
    const struct segment *oldest = g->segments[g->base_index];
    return g->serving && !g->stopping && g->poison == 0 && g->owner.relocate != NULL && !oldest_is_stuck(g) &&
           oldest->end_lsn != 0;
}

/*
 * The log is long, and it is worth it; or no spare can be made and a whole segment can be gained; or somebody
 * waits to make room, the current segment is full, and there is some to be gained.
 */
static bool should_relocate(struct log *g, bool pressed) {
    spares_reckon(g);
    size_t used = segments_used(g), files = used + g->spare_count;
    if ((pressed && used > g->weighed_bytes / g->usable + 1) || (is_long(g) && is_worth_moving(g))) {
        return true;
    }
    uint64_t end_lsn = g->segments[g->segment_count - 1]->first_lsn + g->segment_size;
    bool full = g->append_lsn + SEGMENT_END_RESERVE + g->segment_size / 64 > end_lsn;
    bool some = files > SPARES_RESERVED &&
                (files - SPARES_RESERVED) * g->usable > g->weighed_bytes + expansion_of(g); /* once all was moved */
    some = some || used * g->usable > g->weighed_bytes + g->segment_size / ROOM_TO_WORK;
    return g->room_wanted > 0 && full && some;
}

/* ---- pace ---- */

/* What others than the mover have appended. */
static uint64_t appended_by_others(const struct log *g) { return g->stats.appended_bytes - g->stats.relocated_bytes; }

/* Somebody waits for what moving gains, or the log has more files than it is kept to, those that died meanwhile too. */
static bool is_urgent(const struct log *g) {
    return !g->serving || g->stopping || g->tries_awaited > 0 || g->cannot_grow || g->compact_to_lsn != 0 ||
           g->spare_count < g->spares_reserved || files_of_log(g) > g->files_wanted;
}

void spares_pace(struct log *g, uint64_t bytes) {
    if (!this_is_the_maker || !g->threads_running) {
        return;
    }
    uint64_t due = g->pace_from + g->segment_size / PACE_HEAD_START + bytes / PACE_SHARE;
    while (!is_urgent(g) && appended_by_others(g) < due) {
        g->pace_until = due;
        (void)pthread_cond_wait(&g->maker_wake, &g->lock);
    }
    g->pace_until = UINT64_MAX;
}

/* So much died that the log has more files than it need have: they go without waiting for the next segment. */
static bool has_shrunk(struct log *g) {
    size_t before = g->files_wanted;
    spares_reckon(g);
    return g->files_wanted < before && segments_kept(g) + g->spare_count > g->files_wanted;
}

void spares_appended(struct log *g) {
    bool released = g->released_bytes >= g->segment_size / RELEASED_TIMES;
    if (released || g->append_lsn - g->live_low_lsn >= g->segment_size / WEIGHED_TIMES) {
        spares_weigh(g);
        if (released && g->threads_running && has_shrunk(g)) {
            g->maker_wanted = true;
            (void)pthread_cond_signal(&g->maker_wake);
        }
    }
    if (appended_by_others(g) >= g->pace_until) {
        g->pace_until = UINT64_MAX;
        (void)pthread_cond_signal(&g->maker_wake);
    }
}

/* A sweep goes on after the batch with its record was written: no other may come that would have the maker look. */
void spares_swept(struct log *g) {
    spares_weigh(g);
    log_advance_base(g);
    bool shrunk = has_shrunk(g);
    if (g->threads_running && (shrunk || log_base_lsn(g) > g->named_base_lsn)) {
        g->maker_wanted = true;
        (void)pthread_cond_signal(&g->maker_wake);
    }
}

/* The oldest segment's life goes to the head, and the base past it. Every way to fail leaves it as it was. */
static int relocate_oldest(struct log *g) {
    struct segment *oldest = g->segments[g->base_index];
    uint64_t first_lsn = oldest->first_lsn;
    assert(!g->moving); /* replay takes one chain after the other */
    g->moving = true;
    g->pace_from = appended_by_others(g);
    int rc = log_force(g, g->end_lsn);
    log_advance_base(g);
    if (rc == LS_OK && g->segments[g->base_index] == oldest) {
        rc = g->owner.relocate(g->owner.context, oldest);
        rc = rc == LS_OK ? log_force(g, g->end_lsn) : rc;
        log_advance_base(g);
        if (rc == LS_CORRUPT || rc == LS_IO || (rc == LS_OK && log_base_lsn(g) == first_lsn)) {
            /* damage stays; a failing read or a queue that is being deleted is over some time */
            oldest->stuck_until_lsn = rc == LS_CORRUPT ? UINT64_MAX : g->append_lsn + g->segment_size / 2;
            g->stats.relocation_failures++;
        }
        g->stats.segments_relocated += log_base_lsn(g) > first_lsn ? 1 : 0;
    }
    if (rc == LS_OK && log_base_lsn(g) > g->named_base_lsn) {
        rc = log_force_batch(g);
    }
    g->moving = false;
    (void)pthread_cond_broadcast(&g->maker_done);
    spares_recycle(g);
    return rc;
}

static int make_one(struct log *g) {
    int rc = spares_make(g, g->switch_interval_us >= FAST_SWITCH_US);
    g->stats.spare_failures += rc != LS_OK ? 1 : 0;
    return rc;
}

/* Somebody waits for one more than are reserved; or the last try failed, and whether that is over must be tried. */
static bool is_one_due(const struct log *g) { return g->spares_awaited > 0 || g->cannot_grow; }

/* With one that is due, unless moving gains it. */
static int make_missing(struct log *g) {
    int rc = LS_OK;
    while (rc == LS_OK) {
        bool due = is_one_due(g) && !(can_relocate(g) && spares_are_behind(g));
        size_t target = spares_target(g);
        target = due && target <= g->spares_reserved ? g->spares_reserved + 1 : target;
        if (g->spare_count >= target) {
            return LS_OK;
        }
        rc = make_one(g);
    }
    return rc;
}

/* What died last is behind the base only once a batch says so; with no traffic none would come. */
static void name_base(struct log *g) {
    log_advance_base(g);
    if (g->serving && g->poison == 0 && g->busy == 0 && !g->leading && log_base_lsn(g) > g->named_base_lsn) {
        (void)log_force_batch(g);
    }
}

static bool is_to_be_compacted(const struct log *g) { return log_base_lsn(g) < g->compact_to_lsn; }

/*
 * At most once round the log: a log that is dense all over gains nothing from more. Without background threads another
 * caller may have begun a move while this one waited for a read.
 */
int spares_keep(struct log *g) {
    if (g->threads_running) {
        name_base(g);
    }
    spares_reckon(g);
    spares_recycle(g);
    int rc = make_missing(g);
    size_t rounds = segments_used(g);
    while (rounds-- > 0 && !g->moving && can_relocate(g) &&
           (is_to_be_compacted(g) || should_relocate(g, rc != LS_OK))) {
        if (relocate_oldest(g) != LS_OK) {
            break;
        }
        rc = make_missing(g);
        (void)pthread_cond_broadcast(&g->maker_done);
    }
    if (rc == LS_OK && is_one_due(g) && g->spare_count <= g->spares_reserved) {
        rc = make_one(g); /* nothing could be moved */
    }
    g->cannot_grow = rc != LS_OK;
    if (g->compact_to_lsn != 0) {
        spares_reckon(g);
        give_back_beyond(g, spares_target(g));
    }
    g->maker_tries++;
    return rc;
}

void spares_try(struct log *g) {
    if (g->stopping) {
        return; /* the maker may be at its last file */
    }
    if (!g->threads_running) {
        while (g->moving && !g->stopping) { /* by another caller */
            (void)pthread_cond_wait(&g->maker_done, &g->lock);
        }
        (void)spares_keep(g);
        return;
    }
    uint64_t until = g->maker_tries + (g->maker_trying ? 2 : 1); /* a try that begins after this moment */
    g->maker_wanted = true;
    g->tries_awaited++;
    (void)pthread_cond_signal(&g->maker_wake);
    while (g->maker_tries < until && !g->stopping) {
        (void)pthread_cond_wait(&g->maker_done, &g->lock);
    }
    g->tries_awaited--;
}

int spares_fail_full(const struct log *g) {
    if (g->grow_error != 0) {
        return fail_errno(
            LS_FULL, g->grow_error,
            "the store is full: another segment of %llu bytes cannot be made; nothing was changed. Consume "
            "messages or free disk space",
            (unsigned long long)g->segment_size);
    }
    return fail(LS_FULL,
                "the store is full: %zu segments of %llu bytes are in use and max_log_bytes is %llu; nothing was "
                "changed. Consume messages or raise max_log_bytes",
                g->segment_count, (unsigned long long)g->segment_size, (unsigned long long)g->max_log_bytes);
}

/* For a move there is nobody to wait for: what can be recycled or made is, or it ends. */
static int need_for_move(struct log *g) {
    spares_recycle(g);
    return spares_allow(g, RESERVE_MOVES) ? LS_OK : spares_make(g, false);
}

/*
 * The base may have moved without a batch to name it; then what is behind it is free only after one more. Where that
 * is not enough, deaths on their way to the disk may move it further: they are forced before the answer is no.
 */
static int free_what_died(struct log *g) {
    for (int tries = 0; tries < 2; tries++) {
        int rc = tries == 0 ? LS_OK : log_force(g, g->end_lsn);
        log_advance_base(g);
        if (rc == LS_OK && log_base_lsn(g) > g->named_base_lsn) {
            rc = log_force_batch(g);
        }
        if (rc != LS_OK) {
            return rc;
        }
        spares_try(g);
        if (!g->cannot_grow) {
            return LS_OK;
        }
    }
    return LS_OK;
}

int spares_need(struct log *g, enum purpose purpose) {
    g->stats.waits_for_spare++;
    if (purpose == RESERVE_MOVES) {
        return need_for_move(g);
    }
    uint64_t moved = g->stats.segments_relocated;
    g->spares_awaited++;
    g->room_wanted += purpose == RESERVE_SHRINKS ? 1 : 0;
    spares_try(g);
    g->room_wanted -= purpose == RESERVE_SHRINKS ? 1 : 0;
    /* where a segment was moved there may be room behind it: the caller looks again */
    bool again = spares_allow(g, purpose) || g->stats.segments_relocated != moved;
    int rc = LS_OK;
    if (!again) {
        rc = purpose == RESERVE_GROWS ? spares_grow(g, 0, 0) : free_what_died(g);
    }
    g->spares_awaited--;
    if (g->stopping) {
        return LS_OK; /* it was closed meanwhile, and the caller says so */
    }
    if (again || spares_allow(g, purpose) || (rc == LS_OK && !g->cannot_grow)) {
        return LS_OK; /* a spare was made, and somebody else may have taken it: the caller looks again */
    }
    return rc != LS_OK ? rc : spares_fail_full(g);
}

/* Above it growing stops: the rest is what relocation and opening need to work with. */
bool spares_are_heavy(const struct log *g) {
    size_t reserved = g->spares_reserved, all = files_of_log(g);
    uint64_t weight = log_live_bytes(g) + (g->owner.weight != NULL ? g->owner.weight(g->owner.context) : 0);
    return all <= reserved || weight / 4 * 5 > (all - reserved) * g->segment_size;
}

/* A log that can have no more files still takes what grows while enough of it is dead for relocation. */
int spares_grow(struct log *g, uint64_t bytes, uint64_t expansion) {
    g->growth_asked += bytes + expansion;
    int rc = free_what_died(g);
    g->growth_asked -= bytes + expansion;
    spares_reckon(g);
    bool full = g->cannot_grow && (!spares_suffice(g, bytes, expansion) || spares_are_heavy(g));
    g->asked_lsn = g->segments[g->segment_count - 1]->first_lsn;
    return rc == LS_OK && full ? spares_fail_full(g) : rc;
}

/* A hold says nothing when it goes, so what it kept is looked at now and then. */
static void wait_to_be_wanted(struct log *g) {
    if (g->held_count == 0) {
        (void)pthread_cond_wait(&g->maker_wake, &g->lock);
        return;
    }
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HELD_AGAIN_S;
    g->maker_wanted = pthread_cond_timedwait(&g->maker_wake, &g->lock, &until) == ETIMEDOUT || g->maker_wanted;
}

void *spares_thread(void *log) {
    struct log *g = log;
    this_is_the_maker = true;
    pthread_mutex_lock(&g->lock);
    while (!g->stopping) {
        if (!g->maker_wanted) {
            wait_to_be_wanted(g);
            continue;
        }
        g->maker_wanted = false;
        g->maker_trying = true;
        (void)spares_keep(g);
        g->maker_trying = false;
        (void)pthread_cond_broadcast(&g->maker_done);
    }
    (void)pthread_cond_broadcast(&g->maker_done);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}
