/*
 * The log's lock, beyond lock.h: waiting for a signal, and what debug builds do at both ends of the lock. With
 * -DLOGSTORE_CHECK they assert those invariants of log.h that need walks over buffers, segments and spares; with
 * -DLOGSTORE_POISON they move what look-ups have given out.
 */
#include <assert.h>
#include <sched.h>

#include "log/parts.h"

#ifdef LOGSTORE_CHECK
/*
 * Buffers stand in the order of their LSNs, each in one segment: the forced ones first. Of the others only the oldest
 * may be in write, and only the newest may be open.
 */
static void check_buffers(const struct log *g) {
    uint64_t before_lsn = 0;
    for (uint32_t i = 0; g->buffers != NULL && i < g->buffer_count; i++) { /* NULL: their allocation failed */
        const struct buffer *b = &g->buffers[(g->oldest + i) % g->buffer_count];
        if (i >= g->busy) {
            assert(b->state == BUFFER_FREE && b->released_count == 0);
            continue;
        }
        assert(b->state != BUFFER_FREE && (b->state == BUFFER_FORCED) == (i < g->forced));
        assert(b->state != BUFFER_WRITING || (i == g->forced && (g->commit.leading || g->poison != 0)));
        assert(i < g->forced ? b->end_lsn <= g->front.forced_lsn : b->start_lsn >= g->front.forced_lsn);
        assert((b->state == BUFFER_OPEN) == (b == g->open) && (b->state != BUFFER_OPEN || i + 1 == g->busy));
        assert(b->start_lsn >= before_lsn && b->start_lsn >= g->front.durable_lsn && b->start_lsn < b->end_lsn);
        assert(b->start_lsn >= b->segment->first_lsn && b->end_lsn <= b->segment->first_lsn + g->segment_size);
        before_lsn = b->end_lsn;
    }
}

/* Segments stand in the order of their LSNs. A release that waits for its batch is still counted as live. */
static void check_segments(const struct log *g) {
    for (size_t i = 0; i < g->segment_count; i++) {
        const struct segment *s = g->segments[i];
        uint64_t records = 0, bytes = 0;
        assert(i == 0 || s->first_lsn >= g->segments[i - 1]->first_lsn + g->segment_size);
        for (uint32_t k = 0; k < g->buffer_count; k++) {
            records += s->pending[k].records;
            bytes += s->pending[k].bytes;
        }
        assert(records <= s->live_records && bytes <= s->live_bytes);
        assert(i >= g->base_index || s->live_records == 0);
    }
}

static void check_spares(const struct log *g) {
    size_t count = 0;
    for (const struct segment *s = g->space.spares; s != NULL; s = s->next_spare) {
        assert(s->next_spare == NULL || s->first_lsn < s->next_spare->first_lsn);
        count++;
    }
    assert(count == g->space.spare_count);
}

void log_check_all(const struct log *g) {
    check_buffers(g);
    check_segments(g);
    check_spares(g);
    assert(!g->serving || (g->base_index < g->segment_count && g->named_base_lsn <= log_base_lsn(g)));
    assert(g->forced <= g->busy && g->busy <= g->buffer_count);
    assert((g->open == NULL || log_unforced(g) > 0) && (!g->commit.leading || log_unforced(g) > 0));
    assert(g->front.durable_lsn <= g->front.forced_lsn && g->front.forced_lsn <= g->front.end_lsn);
    assert((g->forced == 0) == (g->front.durable_lsn == g->front.forced_lsn));
}
#endif

/* ---- taking it and letting it go ---- */

#ifdef LOGSTORE_POISON
/* At first every time; in long runs one time in 32, since a move copies whole slabs of messages. */
static bool is_moved_now(const struct log *g) {
    enum { EVERY_TIME = 2000, LATER_ONE_IN = 32 };
    return g->front.let_go < EVERY_TIME || g->front.let_go % LATER_ONE_IN == 0;
}

void log_move_given_out(struct log *g) {
    if (!is_moved_now(g)) {
        return;
    }
    for (size_t i = 0; i < g->clients.count; i++) {
        const struct log_client *c = &g->clients.all[i];
        if (c->calls->move != NULL) {
            c->calls->move(c->context);
        }
    }
    log_move_segments(g);
}
#endif

void log_unlock_and_wake(struct log *g) {
    g->front.wakes_flusher = false;
    (void)pthread_mutex_unlock(&g->front.lock);
    log_post_flusher(g);
}

void log_wake_before_wait(struct log *g) {
    log_call_for_room(g);
    if (g->front.wakes_flusher) {
        g->front.wakes_flusher = false;
        log_post_flusher(g);
    }
}

void log_wait(struct log *g, pthread_cond_t *signal) {
    log_wake_before_wait(g);
    log_check(g);
    (void)pthread_cond_wait(signal, &g->front.lock);
    log_check(g);
    log_was_let_go(g);
}

#ifdef LOGSTORE_POISON
void log_may_wait(struct log *g) {
    g->front.reserved_room = 0;
    if (!is_moved_now(g)) {
        g->front.let_go++;
        return;
    }
    bool others_first = g->front.let_go % 64 == 0; /* each time would be slow on a busy machine */
    log_let_go(g);
    if (others_first) {
        (void)sched_yield();
    }
    log_take_back(g);
}
#endif
