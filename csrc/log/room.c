/*
 * Threads that wait for room in a write buffer, because all buffers wait to be written. They are called in the order of
 * their arrival, each when its bytes fit in addition to those of threads called before it. So a freed buffer wakes only
 * as many threads as it has room for.
 *
 * Whenever the lock is free, the following holds. There is no room for the first waiting thread, because each thread that
 * releases the lock calls it when there is. No thread opens a buffer before those that came earlier. If no thread writes and
 * a buffer is left to write, one was called to write; if all are forced, they are free when their batches are durable.
 */
#include <assert.h>
#include <errno.h>

#include "log/parts.h"

/* In the open buffer, in addition to the threads that were called, or in a free one. */
static bool has_room(const struct log *g, const struct room_waiter *w) {
    uint64_t called = g->commit.room_called;
    if (g->open != NULL && log_buffer_has_room(g, called + w->bytes)) {
        return true;
    }
    bool fits_a_new_one = BATCH_RECORD_BYTES + called + w->bytes + FOOTER_BYTES_MAX <= g->batch_bytes_max;
    return g->busy < g->buffer_count && (g->open == NULL ? called == 0 || fits_a_new_one : called == 0);
}

static void call_first(struct log *g) {
    struct room_waiter *w = g->front.room_waiters;
    g->front.room_waiters = w->next;
    g->commit.room_called += w->bytes;
    (void)sem_post(&w->wake); /* its memory stays valid: the thread cannot return before it has the lock */
}

void log_call_for_room(struct log *g) {
    while (g->front.room_waiters != NULL && (g->poison != 0 || has_room(g, g->front.room_waiters))) {
        call_first(g);
    }
    if (!g->threads_running && !g->commit.leading && g->commit.room_called == 0) {
        log_call_to_lead(g); /* the threads that filled the buffers may not wait for them, and no flusher runs */
    }
}

/* All buffers are taken, and one of them is left to write. */
static bool can_lead_for_room(const struct log *g) { return g->busy == g->buffer_count && log_unforced(g) > 0; }

void log_call_to_lead(struct log *g) {
    if (g->front.room_waiters != NULL && can_lead_for_room(g)) {
        g->front.room_waiters->is_to_lead = true;
        call_first(g);
    }
}

int log_wait_for_room(struct log *g, uint64_t bytes, bool *called) {
    g->stats.forced_by_full_buffers++;
    if (!g->commit.leading && can_lead_for_room(g)) {
        log_lead_one(g);
        return LS_OK;
    }
    struct room_waiter w = {.bytes = bytes}, **at = &g->front.room_waiters;
    if (sem_init(&w.wake, 0, 0) != 0) {
        return fail_errno(LS_IO, errno, "no semaphore to wait with");
    }
    while (!*called && *at != NULL) {
        at = &(*at)->next;
    }
    w.next = *at;
    *at = &w;
    *called = true;
    log_let_go(g);
    while (sem_wait(&w.wake) != 0) {
        assert(errno == EINTR);
    }
    log_take_back(g);
    (void)sem_destroy(&w.wake);
    if (w.is_to_lead && !g->commit.leading && g->poison == 0 && can_lead_for_room(g)) {
        log_lead_one(g); /* a buffer that this frees stays reserved for this thread */
    }
    g->commit.room_called -= bytes;
    return LS_OK;
}
