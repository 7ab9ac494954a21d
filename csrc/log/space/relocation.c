/*
 * The relocation policy: when the live records of the oldest segment are moved to the head, and how fast. The clients
 * move them (relocate/). "How many files a log has" in docs/decisions/relocation.md has the reasons.
 */
#include <assert.h>
#include <errno.h>

#include "log/parts.h"
#include "log/space/parts.h"

/* ---- when ---- */

static bool oldest_is_stuck(const struct log *g) {
    return g->front.append_lsn < g->segments[g->base_index]->stuck_until_lsn;
}

/*
 * The log is kept to max(LOG_SEGMENTS_MIN segments, twice the live bytes) plus one segment plus the expansion that
 * relocation needs, all files counted. So its size depends on the live bytes, not on the age of the oldest segment. The
 * log is long when the next segment, with the spares that are kept, would be one file too many.
 */
static bool is_long(const struct log *g) {
    return log_segments_used(g) + 1 + g->space.needs.spares_reserved > g->space.needs.files_wanted;
}

/*
 * The dead bytes in full segments are worth one relocation pass over the log. A pass copies at most the live bytes, so the
 * bytes copied for each byte gained are bounded (docs/decisions/relocation.md says by how much).
 */
static bool is_worth_moving(const struct log *g) {
    uint64_t full = (log_segments_used(g) - 1) * g->space.needs.usable, live = 0;
    for (size_t i = g->base_index; i + 1 < g->segment_count; i++) {
        live += g->segments[i]->live_bytes;
    }
    return full > live + g->segment_size / GAIN_MIN;
}

bool relocation_is_behind(const struct log *g) { return is_long(g) && is_worth_moving(g) && !oldest_is_stuck(g); }

bool relocation_is_possible(const struct log *g) {
    const struct segment *oldest = g->segments[g->base_index];
    return g->serving && !g->stopping && g->poison == 0 && g->relocate != NULL && !oldest_is_stuck(g) &&
           oldest->end_lsn != 0;
}

/*
 * Relocation is due if the log is long and moving is worth it; or if no spare can be made and relocation gains a whole
 * segment; or if a thread waits to make room, the current segment is full, and relocation gains at least some bytes.
 */
bool relocation_is_due(struct log *g, bool pressed) {
    admission_compute_needs(g);
    size_t used = log_segments_used(g), files = used + log_spares(g);
    if ((pressed && used > g->space.needs.live_bytes / g->space.needs.usable + 1) ||
        (is_long(g) && is_worth_moving(g))) {
        return true;
    }
    uint64_t end_lsn = g->segments[g->segment_count - 1]->first_lsn + g->segment_size;
    bool full = g->front.append_lsn + SEGMENT_END_RESERVE + g->segment_size / 64 > end_lsn;
    bool some =
        files > SPARES_RESERVED && (files - SPARES_RESERVED) * g->space.needs.usable >
                                       g->space.needs.live_bytes + admission_expansion(g); /* once all was moved */
    some = some || used * g->space.needs.usable > g->space.needs.live_bytes + g->segment_size / ROOM_TO_WORK;
    /* If a spare may be taken, no move is needed: with live records that fill whole segments, moves would never end. */
    return g->space.room_wanted > 0 && full && some && !spares_allow(g, RESERVE_SHRINKS);
}

/* ---- pace ---- */

/* Bytes appended by other threads than the mover. */
static uint64_t appended_by_others(const struct log *g) { return g->stats.appended_bytes - g->stats.relocated_bytes; }

/* A thread waits for the room that a move gains, or the log has more files, dead ones included, than it should have. */
static bool is_urgent(const struct log *g) {
    return !g->serving || g->stopping || g->spare_thread.tries_awaited > 0 || g->space.next.awaited ||
           log_cannot_grow(g) || g->relocation.compact_to_lsn != 0 || log_spares(g) < g->space.needs.spares_reserved ||
           log_files(g) > g->space.needs.files_wanted;
}

void relocation_keep_pace(struct log *g, uint64_t bytes) {
    log_may_wait(g);
    if (!in_spare_thread() || !g->threads_running) {
        return;
    }
    uint64_t due = g->relocation.pace_from + g->segment_size / PACE_HEAD_START + bytes / PACE_SHARE;
    while (!is_urgent(g) && appended_by_others(g) < due) {
        log_flush_soon(g); /* otherwise the copies may wait long for a batch of other threads */
        g->relocation.pace_until = due;
        log_wait(g, &g->spare_thread.wake);
    }
    g->relocation.pace_until = UINT64_MAX;
}

/*
 * Enough records have died that the log has more files than it needs: these are removed without waiting for the next
 * segment.
 */
static bool has_shrunk(struct log *g) {
    size_t before = g->space.needs.files_wanted;
    admission_compute_needs(g);
    return g->space.needs.files_wanted < before &&
           log_segments_kept(g) + g->space.spare_count > g->space.needs.files_wanted;
}

void relocation_after_batch(struct log *g) {
    bool released = g->space.released_bytes >= g->segment_size / RELEASED_TIMES;
    if (released || g->front.append_lsn - g->space.live_low_lsn >= g->segment_size / LIVE_SUMMED_TIMES) {
        admission_note_live(g);
        /* Only the spare thread finds the room of segments that have died, and publishers may wait for it. */
        if (released && g->threads_running && (has_shrunk(g) || admission_is_near(g))) {
            g->spare_thread.wanted = true;
            (void)pthread_cond_signal(&g->spare_thread.wake);
        }
    }
    if (appended_by_others(g) >= g->relocation.pace_until) {
        g->relocation.pace_until = UINT64_MAX;
        (void)pthread_cond_signal(&g->spare_thread.wake);
    }
    admission_look_for_room(g);
}

/*
 * A sweep ends after the batch with its record was written. There may be no later batch that would wake the spare
 * thread.
 */
void base_after_sweep(struct log *g) {
    admission_note_live(g);
    log_advance_base(g);
    bool shrunk = has_shrunk(g);
    if (g->threads_running && (shrunk || log_base_lsn(g) > g->named_base_lsn)) {
        g->spare_thread.wanted = true;
        (void)pthread_cond_signal(&g->spare_thread.wake);
    }
}

/* ---- one segment ---- */

size_t log_window_bytes(const struct log *g) { return g->batch_bytes_max; }

void log_begin_chain(struct log *g) { g->relocation.mid_chain = true; }

void log_end_chain(struct log *g) {
    g->relocation.mid_chain = false;
    log_wake_waiting(g);
}

static int move_live_records(struct log *g) {
    /* The pinned segment keeps its place and its open file. */
    struct pin victim = segment_pin(g->segments[g->base_index]);
    int rc = g->relocate(g, &victim);
    log_unpin(g, &victim);
    return rc;
}

/* Relocates the live records of the oldest segment so that the base can advance. On failure nothing changes. */
int relocation_of_oldest(struct log *g) {
    uint64_t first_lsn = log_base_lsn(g);
    assert(!g->relocation.moving); /* replay expects one chain after the other */
    g->relocation.moving = true;
    g->relocation.pace_from = appended_by_others(g);
    int rc = log_force(g, g->front.end_lsn);
    log_advance_base(g);
    if (rc == LS_OK && log_base_lsn(g) == first_lsn) {
        rc = move_live_records(g);
        rc = rc == LS_OK ? log_force(g, g->front.end_lsn) : rc;
        log_advance_base(g);
        if (log_base_lsn(g) == first_lsn && (rc == LS_CORRUPT || rc == LS_IO || rc == LS_OK)) {
            /* damage is permanent; a read error or the deletion of a queue may end */
            g->segments[g->base_index]->stuck_until_lsn =
                rc == LS_CORRUPT ? UINT64_MAX : g->front.append_lsn + g->segment_size / 2;
            g->stats.relocation_failures++;
        }
        g->stats.segments_relocated += log_base_lsn(g) > first_lsn ? 1 : 0;
    }
    rc = rc == LS_OK ? log_name_base(g) : rc;
    g->relocation.moving = false;
    log_wake_waiting(g);
    spares_recycle(g);
    return rc;
}

/* ---- on demand ---- */

/* Repeats passes while they make progress. */
int log_compact_to(struct log *g, uint64_t to_lsn) {
    uint64_t before;
    g->relocation.compacting++;
    do {
        before = log_base_lsn(g);
        g->relocation.compact_to_lsn = to_lsn > g->relocation.compact_to_lsn ? to_lsn : g->relocation.compact_to_lsn;
        spares_try(g);
    } while (log_base_lsn(g) < to_lsn && log_base_lsn(g) > before && g->serving && g->poison == 0);
    g->relocation.compacting--;
    g->relocation.compact_to_lsn = g->relocation.compacting > 0 ? g->relocation.compact_to_lsn : 0;
    if (!g->serving) {
        return LS_CLOSED;
    }
    return log_base_lsn(g) >= to_lsn ? LS_OK : oldest_is_stuck(g) ? LS_CORRUPT : LS_FULL;
}
