/*
 * The next segment, asked for ahead of need. An event loop must not wait in an append, so it looks at log_room_percent first.
 * That asks the spare thread for a spare beyond the reserved ones while the current segment still has room, and counts
 * only the bytes before the first append that would wait, until the spare thread has answered.
 *
 * Invariant: a missing segment makes the room small only while a try of the spare thread is due. The end of that try signals
 * the events. After it the room is whole, whether or not the try made a segment. So a log that can have no more files is not waited for
 * here: appends are refused, or wait for relocation, as they do for callers that do not ask.
 */
#include "log/parts.h"
#include "log/space/parts.h"

enum {
    ASKED_TIMES = 4, /* asked for when a 1/4 of the current segment is used: by then dead segments were recycled */
    NEAR_BATCHES = 2 /* or, if only relocation can gain a file, when this many largest batches are left */
};

static uint64_t current_lsn(const struct log *g) { return g->segments[g->segment_count - 1]->first_lsn; }

bool ahead_is_asked(const struct log *g) { return g->space.next.asked_lsn == current_lsn(g); }

bool ahead_is_due(const struct log *g) { return ahead_is_asked(g) && g->spare_thread.tries < g->space.next.until; }

bool ahead_is_answered(const struct log *g) {
    return ahead_is_asked(g) && g->spare_thread.tries >= g->space.next.until;
}

static void ask(struct log *g) {
    g->space.next.asked_lsn = current_lsn(g);
    /* the end of a try that begins after this moment */
    g->space.next.until = g->spare_thread.tries + (g->spare_thread.trying ? 2 : 1);
    g->spare_thread.wanted = true;
    (void)pthread_cond_signal(&g->spare_thread.wake);
}

/* The room is small until a try ends. A move no longer waits for appends, as there may be none. */
static uint64_t awaited(struct log *g, uint64_t room) {
    g->space.next.awaited = true;
    if (g->relocation.moving) {
        (void)pthread_cond_signal(&g->spare_thread.wake);
    }
    return room;
}

static uint64_t between(uint64_t from, uint64_t to, uint64_t most) {
    uint64_t bytes = to > from ? to - from : 0;
    return bytes < most ? bytes : most;
}

/*
 * Bytes before an append that makes the log grow waits, see reserve.c. The room that this leaves is half of `most` at least,
 * so that the records that do not wait yet are appended.
 */
static uint64_t room_to_grow(const struct log *g, uint64_t at, uint64_t most) {
    uint64_t half_way = log_segment_end(g) - g->segment_size / 2;
    uint64_t room = log_spares(g) < g->space.needs.spares_reserved ? 0 : between(at, half_way, most);
    return room > most / 2 ? room : most / 2;
}

/* Asks for what is missing, once in a segment; also for the reserved spares, if a need for more of them came up since. */
static bool is_to_be_asked(const struct log *g, bool is_near, bool is_short) {
    return is_short ? !g->spare_thread.wanted && !g->spare_thread.trying
                    : !ahead_is_asked(g) && (is_near || spares_within_limit(g));
}

uint64_t ahead_room(struct log *g, uint64_t most) {
    uint64_t at = g->front.append_lsn + (g->open == NULL ? BATCH_RECORD_BYTES : 0) + SEGMENT_END_RESERVE;
    uint64_t end = log_segment_end(g);
    if (!g->threads_running || g->stopping) {
        return most;
    }
    if (g->relocation.moving && g->space.spare_count == 0) { /* nothing is appended until the move ends */
        return awaited(g, 0);
    }
    size_t spares = log_spares(g), reserved = g->space.needs.spares_reserved;
    bool is_short = spares < reserved;
    if (log_cannot_grow(g) || (at < current_lsn(g) + g->segment_size / ASKED_TIMES && !is_short)) {
        return most;
    }
    bool is_near = at + NEAR_BATCHES * most > end;
    if (spares > reserved && !(is_near && relocation_is_behind(g))) {
        return most;
    }
    if (is_to_be_asked(g, is_near, is_short)) {
        ask(g);
    }
    if (!is_short && !ahead_is_due(g)) {
        return most;
    }
    uint64_t room = between(at, end, most);
    if (spares <= reserved && (is_short || g->space.asked_lsn != current_lsn(g))) {
        uint64_t to_grow = room_to_grow(g, at, most);
        room = to_grow < room ? to_grow : room;
    }
    return room < most ? awaited(g, room) : most;
}

void ahead_tell(struct log *g) {
    if (g->space.next.awaited) {
        log_signal(g);
    }
}

void ahead_try_ended(struct log *g) {
    if (ahead_is_answered(g)) {
        g->space.asked_lsn = current_lsn(g);
    }
    if (g->space.next.awaited && g->spare_thread.tries >= g->space.next.until) {
        g->space.next.awaited = false;
        log_signal(g);
    }
}
