/*
 * The spare thread: it makes spares, recycles, and relocates. Without background threads the thread that needs a spare does
 * the same work (spares_try).
 */
#include <errno.h>

#include "log/parts.h"
#include "log/space/parts.h"

enum { HELD_AGAIN_S = 1 };

/* A flag for each thread, since threads_running may change while a caller waits. */
static _Thread_local bool this_is_the_spare_thread;

bool in_spare_thread(void) { return this_is_the_spare_thread; }

void log_unlock_for_io(struct log *g) {
    if (this_is_the_spare_thread) {
        log_let_go(g);
    }
}

void log_relock_after_io(struct log *g) {
    if (this_is_the_spare_thread) {
        log_take_back(g);
    } else {
        log_was_let_go(g); /* the same as the spare thread would do */
    }
}

/* ---- one try ---- */

static int make_one(struct log *g) {
    /* a try on a disk that was full takes no blocks that it may have to give back */
    int rc = spares_make(g, g->space.switch_interval_us >= FAST_SWITCH_US && !g->space.cannot_grow);
    g->stats.spare_failures += rc != LS_OK ? 1 : 0;
    return rc;
}

/*
 * A thread waits for a spare beyond the reserved ones, or will soon; or the last try failed, and only a new try can tell
 * whether that has changed.
 */
static bool is_one_due(const struct log *g) {
    return g->space.spares_awaited > 0 || g->space.cannot_grow || ahead_is_due(g);
}

/* A caller wants to know whether the disk has room, which the spares that there are do not tell. */
static bool is_room_asked(const struct log *g) {
    return g->space.room_asked && admission_is_near(g) && spares_within_limit(g) &&
           (g->space.cannot_grow || log_files(g) <= g->space.full.files);
}

/* Makes the missing spares. Makes the next spare too, unless relocation can gain it. */
static int make_missing(struct log *g) {
    int rc = LS_OK;
    while (rc == LS_OK) {
        bool due = is_one_due(g) && !(relocation_is_possible(g) && relocation_is_behind(g));
        size_t target = spares_target(g);
        target = due && target <= g->space.needs.spares_reserved ? g->space.needs.spares_reserved + 1 : target;
        if (g->space.spare_count >= target) {
            return LS_OK;
        }
        rc = make_one(g);
    }
    return rc;
}

/* Only a batch that names the base frees segments; without traffic there would be no batch. */
static void name_base(struct log *g) {
    log_advance_base(g);
    if (g->serving && g->poison == 0 && g->busy == 0 && !g->commit.leading && log_base_lsn(g) > g->named_base_lsn) {
        (void)log_name_base(g);
    }
}

static bool is_to_be_compacted(const struct log *g) { return log_base_lsn(g) < g->relocation.compact_to_lsn; }

/*
 * Makes at most one relocation pass over the log: a second pass over a log that is dense everywhere gains nothing.
 * Without background threads another caller may have begun a move while this one waited for a read.
 */
int spares_keep(struct log *g) {
    log_may_wait(g);
    if (g->threads_running) {
        name_base(g);
    }
    admission_compute_needs(g);
    spares_recycle(g);
    int rc = make_missing(g);
    size_t rounds = log_segments_used(g);
    while (rounds-- > 0) {
        (void)others_wait(g); /* a move needs a file on each disk, and its gain comes when they recycle */
        if (g->relocation.moving || !relocation_is_possible(g) ||
            !(is_to_be_compacted(g) || relocation_is_due(g, rc != LS_OK || others_bound(g))) ||
            relocation_of_oldest(g) != LS_OK) {
            break;
        }
        rc = make_missing(g);
        (void)pthread_cond_broadcast(&g->spare_thread.done);
    }
    if (rc == LS_OK && is_one_due(g) && g->space.spare_count <= g->space.needs.spares_reserved) {
        rc = make_one(g); /* no record could be moved */
    }
    if (rc == LS_OK && is_room_asked(g)) {
        rc = make_one(g);
    }
    g->space.room_asked = false;
    g->space.cannot_grow = rc != LS_OK;
    if (g->relocation.compact_to_lsn != 0) {
        admission_compute_needs(g);
        spares_give_back_beyond(g, spares_target(g));
    }
    g->space.full.near_look_lsn = 0; /* whether the log can grow may have changed */
    admission_look_for_room(g);
    g->spare_thread.tries++;
    ahead_try_ended(g);
    return rc;
}

void spares_try(struct log *g) {
    log_may_wait(g);
    if (g->stopping) {
        return; /* not now: the spare thread may still be finishing its last file */
    }
    if (!g->threads_running) {
        while (g->relocation.moving && !g->stopping) { /* moved by another caller */
            log_wait(g, &g->spare_thread.done);
        }
        (void)spares_keep(g);
        return;
    }
    uint64_t until = g->spare_thread.tries + (g->spare_thread.trying ? 2 : 1); /* a try that begins after this moment */
    g->spare_thread.wanted = true;
    g->spare_thread.tries_awaited++;
    (void)pthread_cond_signal(&g->spare_thread.wake);
    while (g->spare_thread.tries < until && !g->stopping) {
        log_wait(g, &g->spare_thread.done);
    }
    g->spare_thread.tries_awaited--;
}

void log_limit(struct log *g, uint64_t max_log_bytes) {
    g->max_log_bytes = max_log_bytes;
    admission_look_whether_near(g);
    log_look_for_room(g);
}

/* Perhaps there is room for one more spare. */
void log_look_for_room(struct log *g) {
    g->space.room_asked = true;
    g->spare_thread.wanted = g->spare_thread.wanted || g->serving;
    (void)pthread_cond_signal(&g->spare_thread.wake);
}

void spares_finish_tries(struct log *g) {
    log_may_wait(g);
    uint64_t until = g->spare_thread.tries + (g->spare_thread.trying ? 1 : 0) + (g->spare_thread.wanted ? 1 : 0);
    g->spare_thread.tries_awaited++; /* a move that waits for appends continues at once */
    (void)pthread_cond_signal(&g->spare_thread.wake);
    while (g->threads_running && g->spare_thread.tries < until && !g->stopping) {
        log_wait(g, &g->spare_thread.done);
    }
    g->spare_thread.tries_awaited--;
}

void log_wake_waiting(struct log *g) { (void)pthread_cond_broadcast(&g->spare_thread.done); }

/* ---- a disk that hangs ---- */

static bool is_try_awaited(const struct log *g) {
    return g->spare_thread.trying && (g->spare_thread.tries_awaited > 0 || g->space.next.awaited ||
                                      (g->relocation.moving && g->space.spare_count == 0));
}

/* As for log_force_batch, SEGMENT_END_RESERVE has room for such batches; where that is used up, there is none. */
void log_probe_disk(struct log *g) {
    uint64_t this_try = is_try_awaited(g) && log_takes_records(g) && g->poison == 0 ? g->spare_thread.tries + 1 : 0;
    bool waits_on = this_try != 0 && this_try == g->spare_thread.probed_try;
    g->spare_thread.probed_try = this_try;
    if (!waits_on) {
        return;
    }
    if (log_unforced(g) == 0 && g->busy < g->buffer_count &&
        g->front.append_lsn + 2 * BATCH_RECORD_BYTES + FOOTER_BYTES_MAX <= log_segment_end(g)) {
        log_open_buffer(g);
        log_seal_open(g);
    }
    if (log_unforced(g) > 0) {
        log_flush_soon(g);
    }
}

/* ---- the thread ---- */

/* A hold gives no signal when it ends, so this checks the segments that holds keep every HELD_AGAIN_S. */
static void wait_to_be_wanted(struct log *g) {
    if (g->space.held_count == 0) {
        log_wait(g, &g->spare_thread.wake);
        return;
    }
    log_wake_before_wait(g);
    int rc = g->v->wait_s(g->v, &g->spare_thread.wake, &g->front.lock, HELD_AGAIN_S);
    log_was_let_go(g);
    g->spare_thread.wanted = g->spare_thread.wanted || rc == -ETIMEDOUT;
}

void *spares_thread(void *log) {
    struct log *g = log;
    this_is_the_spare_thread = true;
    log_lock(g);
    while (!g->stopping) {
        if (!g->spare_thread.wanted) {
            wait_to_be_wanted(g);
            continue;
        }
        g->spare_thread.wanted = false;
        g->spare_thread.trying = true;
        (void)spares_keep(g);
        g->spare_thread.trying = false;
        (void)pthread_cond_broadcast(&g->spare_thread.done);
    }
    (void)pthread_cond_broadcast(&g->spare_thread.done);
    log_unlock(g);
    return NULL;
}
