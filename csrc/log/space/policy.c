/*
 * When spares are made, when what lives is moved, and who waits for that. One thread does it (the maker); without
 * background threads, whoever needs a spare. docs/decisions/relocation.md has the reasons: "How many files a log has".
 */
#include <assert.h>
#include <errno.h>

#include "log/log.h"
#include "log/space/parts.h"

enum { HELD_AGAIN_S = 1 };

/* A thread stays what it is; whether there is a maker changes while one of these two waits for the other. */
static _Thread_local bool this_is_the_maker;

void log_unlock_for_io(struct log *g) {
    if (this_is_the_maker) {
        log_let_go(g);
    }
}

void log_relock_after_io(struct log *g) {
    if (this_is_the_maker) {
        log_take_back(g);
    } else {
        log_was_let_go(g); /* with a maker it would be */
    }
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
static bool is_long(const struct log *g) { return spares_segments_used(g) + 1 + g->spares_reserved > g->files_wanted; }

/*
 * And what is dead in full segments is worth a round of moves: that round copies no more than what lives, so the bytes
 * copied for each byte gained are bounded (docs/decisions/relocation.md says by how much).
 */
static bool is_worth_moving(const struct log *g) {
    uint64_t full = (spares_segments_used(g) - 1) * g->usable, live = 0;
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
    size_t used = spares_segments_used(g), files = used + g->spare_count;
    if ((pressed && used > g->weighed_bytes / g->usable + 1) || (is_long(g) && is_worth_moving(g))) {
        return true;
    }
    uint64_t end_lsn = g->segments[g->segment_count - 1]->first_lsn + g->segment_size;
    bool full = g->append_lsn + SEGMENT_END_RESERVE + g->segment_size / 64 > end_lsn;
    bool some = files > SPARES_RESERVED &&
                (files - SPARES_RESERVED) * g->usable > g->weighed_bytes + spares_expansion(g); /* once all was moved */
    some = some || used * g->usable > g->weighed_bytes + g->segment_size / ROOM_TO_WORK;
    /* With a spare to take they need no move: where all that lives fills whole segments, moves would go on for ever. */
    return g->room_wanted > 0 && full && some && !spares_allow(g, RESERVE_SHRINKS);
}

/* ---- pace ---- */

/* What others than the mover have appended. */
static uint64_t appended_by_others(const struct log *g) { return g->stats.appended_bytes - g->stats.relocated_bytes; }

/* Somebody waits for what moving gains, or the log has more files than it is kept to, those that died meanwhile too. */
static bool is_urgent(const struct log *g) {
    return !g->serving || g->stopping || g->tries_awaited > 0 || g->cannot_grow || g->compact_to_lsn != 0 ||
           g->spare_count < g->spares_reserved || spares_files(g) > g->files_wanted;
}

void spares_pace(struct log *g, uint64_t bytes) {
    log_may_wait(g);
    if (!this_is_the_maker || !g->threads_running) {
        return;
    }
    uint64_t due = g->pace_from + g->segment_size / PACE_HEAD_START + bytes / PACE_SHARE;
    while (!is_urgent(g) && appended_by_others(g) < due) {
        log_flush_soon(
            g); /* nobody else may want what was moved to be durable, and it may be long until this goes on */
        g->pace_until = due;
        log_wait(g, &g->maker_wake);
    }
    g->pace_until = UINT64_MAX;
}

/* So much died that the log has more files than it need have: they go without waiting for the next segment. */
static bool has_shrunk(struct log *g) {
    size_t before = g->files_wanted;
    spares_reckon(g);
    return g->files_wanted < before && spares_segments_kept(g) + g->spare_count > g->files_wanted;
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
    uint64_t first_lsn = log_base_lsn(g);
    assert(!g->moving); /* replay takes one chain after the other */
    g->moving = true;
    g->pace_from = appended_by_others(g);
    int rc = log_force(g, g->end_lsn);
    log_advance_base(g);
    if (rc == LS_OK && log_base_lsn(g) == first_lsn) {
        rc = g->owner.relocate(g->owner.context, g->segments[g->base_index]);
        rc = rc == LS_OK ? log_force(g, g->end_lsn) : rc;
        log_advance_base(g);
        if (log_base_lsn(g) == first_lsn && (rc == LS_CORRUPT || rc == LS_IO || rc == LS_OK)) {
            /* damage stays; a failing read or a queue that is being deleted is over some time */
            g->segments[g->base_index]->stuck_until_lsn =
                rc == LS_CORRUPT ? UINT64_MAX : g->append_lsn + g->segment_size / 2;
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
    log_may_wait(g);
    if (g->threads_running) {
        name_base(g);
    }
    spares_reckon(g);
    spares_recycle(g);
    int rc = make_missing(g);
    size_t rounds = spares_segments_used(g);
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
        spares_give_back_beyond(g, spares_target(g));
    }
    g->maker_tries++;
    return rc;
}

void spares_try(struct log *g) {
    log_may_wait(g);
    if (g->stopping) {
        return; /* the maker may be at its last file */
    }
    if (!g->threads_running) {
        while (g->moving && !g->stopping) { /* by another caller */
            log_wait(g, &g->maker_done);
        }
        (void)spares_keep(g);
        return;
    }
    uint64_t until = g->maker_tries + (g->maker_trying ? 2 : 1); /* a try that begins after this moment */
    g->maker_wanted = true;
    g->tries_awaited++;
    (void)pthread_cond_signal(&g->maker_wake);
    while (g->maker_tries < until && !g->stopping) {
        log_wait(g, &g->maker_done);
    }
    g->tries_awaited--;
}

int spares_fail_full(const struct log *g) {
    unsigned long long size = g->segment_size;
    switch (g->grow_error) {
    case 0:
        break;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return fail_errno(LS_FULL, g->grow_error,
                          "the store is full: another segment of %llu bytes cannot be made; nothing was changed. "
                          "Consume messages or free disk space",
                          size);
    case EMFILE:
    case ENFILE:
        return fail_errno(LS_FULL, g->grow_error,
                          "another segment of %llu bytes cannot be opened, as too many files are open; nothing was "
                          "changed. Close connections or raise the limit of open files (ulimit -n)",
                          size);
    default:
        return fail_errno(LS_FULL, g->grow_error,
                          "another segment of %llu bytes cannot be made; nothing was changed. See to the disk", size);
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
    log_may_wait(g);
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
    size_t reserved = g->spares_reserved, all = spares_files(g);
    uint64_t weight = log_live_bytes(g) + (g->owner.weight != NULL ? g->owner.weight(g->owner.context) : 0);
    return all <= reserved || weight / 4 * 5 > (all - reserved) * g->segment_size;
}

/* A log that can have no more files still takes what grows while enough of it is dead for relocation. */
int spares_grow(struct log *g, uint64_t bytes, uint64_t expansion) {
    log_may_wait(g);
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
        log_wait(g, &g->maker_wake);
        return;
    }
    int rc = g->v->wait_s(g->v, &g->maker_wake, &g->lock, HELD_AGAIN_S);
    log_was_let_go(g);
    g->maker_wanted = g->maker_wanted || rc == -ETIMEDOUT;
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
