/*
 * Keeps apart the batches that are forced on this disk and those that are durable. In a log with one copy both are the
 * same. In a log with several, a batch is durable once a majority of the copies has forced it, so `durable_lsn` trails
 * `forced_lsn` here, and advances when another thread brings word of the majority (log_majority_has). What always
 * holds, under the lock:
 *
 *   - durable_lsn <= forced_lsn <= end_lsn. Both are ends of batches, and durable_lsn is the last such end up to
 *     min(forced_lsn, majority_lsn), unless a thread is about to advance it (`advancing`);
 *   - the ring of buffers has the forced batches first, oldest first, then those left to write; the first of these may
 *     be in write. A buffer is taken until its batch is durable;
 *   - `forced_lsn` is for this disk: which batch is written next, the `durable_lsn` in its record (which says what a crash
 *     leaves here), early writes, the flusher, reading from files and closing them;
 *   - `durable_lsn` is for everyone else: waiters, events, what is offered, releases, the base and recycling, checkpoints, the
 *     close, and max_undurable_bytes;
 *   - the hint says what is durable before durable_lsn does, and so before any waiter is awake;
 *   - with nothing left to write, waiting threads sleep and none is called to lead; another thread, which does not
 *     wait, advances durable_lsn. A poisoned log wakes all threads and makes nothing more durable.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "log/parts.h"

/* ---- one batch ---- */

/* A checkpoint names the batch at whose end it was taken. */
static inline void note_batch(struct log *g, const struct buffer *b) {
    g->commit.last_batch = (struct named_batch){
        .end_lsn = b->end_lsn,
        .lsn = b->start_lsn,
        .checksum = format_record_checksum(log_buffer_at(b, b->start_lsn)),
        .epoch = b->segment->epoch,
    };
    if (g->commit.named_batch.end_lsn == b->end_lsn) {
        g->commit.named_batch = g->commit.last_batch;
    }
}

/* In a replicated log only those bases count whose batch is said to be durable. */
static void name_said_bases(struct log *g, const struct buffer *b) {
    struct leading *t = &g->term;
    uint32_t n = 0;
    while (n < t->named_count && t->named[n].end_lsn <= b->known_lsn) {
        g->named_base_lsn = t->named[n++].base_lsn;
    }
    n = n == 0 && t->named_count == NAMED_BASES ? 1 : n;
    t->named_count -= n;
    memmove(t->named, t->named + n, t->named_count * sizeof *t->named);
    uint64_t newest = t->named_count > 0 ? t->named[t->named_count - 1].base_lsn : g->named_base_lsn;
    if (b->base_lsn > newest) {
        t->named[t->named_count++] = (struct named_base){b->end_lsn, b->base_lsn};
    }
}

/* The oldest batch, which is forced: its releases take effect, and its buffer becomes free. */
static inline void batch_is_durable(struct log *g) {
    struct buffer *b = &g->buffers[g->oldest];
    assert(b->state == BUFFER_FORCED);
    g->front.durable_lsn = b->end_lsn;
    if (log_is_replicated(g)) {
        name_said_bases(g, b);
    } else {
        g->named_base_lsn = b->base_lsn;
    }
    for (size_t i = 0; i < b->released_count; i++) {
        struct segment *s = b->released[i];
        struct release *r = &s->pending[b->index];
        assert(s->live_records >= r->records && s->live_bytes >= r->bytes);
        s->live_records -= r->records;
        s->live_bytes -= r->bytes;
        g->space.released_bytes += r->bytes;
        *r = (struct release){0, 0};
    }
    b->released_count = 0;
    note_batch(g, b);
    b->state = BUFFER_FREE;
    g->busy--;
    g->forced--;
    if (g->busy > 0) { /* an empty ring reuses the same buffer: its memory is in the processor's cache */
        g->oldest = (g->oldest + 1) % g->buffer_count;
    }
}

/* ---- waking ---- */

/* No lock is held. A waiter lies on its thread's stack, which may be gone right after the post. */
static void wake_all(struct waiter *list) {
    while (list != NULL) {
        struct waiter *next = list->next;
        (void)sem_post(&list->wake);
        list = next;
    }
}

/*
 * Takes from the list the served waiters and, if one_leads, one waiter to lead, whose records are not written yet. The
 * leader comes first.
 */
static inline struct waiter *take_waiters(struct log *g, bool one_leads) {
    struct waiter *served = NULL, *leader = NULL, **link = &g->commit.waiters;
    while (*link != NULL) {
        struct waiter *w = *link;
        bool done = w->lsn <= g->front.durable_lsn;
        bool leads = one_leads && leader == NULL && w->lsn > g->front.forced_lsn;
        if (done || g->poison != 0 || leads) {
            *link = w->next;
            w->result = done ? LS_OK : g->poison != 0 ? LS_OUTCOME_UNKNOWN : -1;
            if (w->result == -1) {
                leader = w;
            } else {
                w->next = served;
                served = w;
            }
        } else {
            link = &w->next;
        }
    }
    g->commit.waiters_end = link;
    if (leader != NULL) {
        leader->next = served;
        served = leader;
    }
    return served;
}

static void wake_taken(struct log *g, struct waiter *taken) {
    if (taken != NULL) {
        log_let_go(g);
        wake_all(taken);
        log_take_back(g);
    }
}

static void wake_served(struct log *g) { wake_taken(g, take_waiters(g, false)); }

void log_pass_on(struct log *g) {
    struct waiter *taken = take_waiters(g, true);
    bool one_leads = taken != NULL && taken->result == -1;
    if (!one_leads && g->front.room_waiters != NULL) {
        log_call_to_lead(g);
    }
    if (!one_leads && g->flusher.sleeping && g->flusher.wanted_lsn > g->front.forced_lsn && g->poison == 0) {
        log_wake_flusher(g);
    }
    wake_taken(g, taken);
    (void)log_trail(g, !one_leads && g->commit.waiters != NULL);
}

/*
 * Segments that only a hold keeps do not wake the spare thread: it looks at the holds once a second and at each new
 * segment. Without that thread every commit looks at the holds, since no other event does.
 */
static bool has_dead_segment(const struct log *g) {
    uint64_t recyclable_lsn = log_recyclable_lsn(g);
    bool dead = g->base_index > 0 && g->segments[0]->first_lsn < recyclable_lsn;
    return dead && (recyclable_lsn > g->space.looked_lsn || !g->threads_running);
}

static void tell_clients(struct log *g) {
    for (size_t i = 0; i < g->clients.count; i++) {
        const struct log_client *c = &g->clients.all[i];
        if (c->calls->durable_moved != NULL) {
            c->calls->durable_moved(c->context);
        }
    }
}

static inline void wake_helpers(struct log *g) {
    if (g->flusher.awaiting) {
        tell_clients(g);
    }
    if (g->event_count > 0) {
        log_signal_commit(g);
    }
    bool dead = has_dead_segment(g);
    bool unnamed = g->threads_running && g->busy == 0 && log_base_lsn(g) > g->named_base_lsn;
    if (dead || unnamed) {
        g->spare_thread.wanted = true;
        (void)pthread_cond_signal(&g->spare_thread.wake);
    }
}

/* ---- advancing ---- */

/* Called when the hint is published and durable_lsn has advanced: does everything else that depends on durable_lsn. */
static void end_advance(struct log *g, uint64_t hinted) {
    g->commit.advancing = false;
    hint_published(g, g->named_base_lsn, hinted);
    relocation_after_batch(g);
    log_advance_base(g);
    wake_helpers(g);
}

/* The newest batch that this disk and a majority have forced. NULL: all such batches are durable already. */
static const struct buffer *durable_next(const struct log *g) {
    for (uint32_t i = g->forced; i-- > 0;) {
        const struct buffer *b = &g->buffers[(g->oldest + i) % g->buffer_count];
        if (b->end_lsn <= g->commit.majority_lsn) {
            return b;
        }
    }
    return NULL;
}

/* A freed buffer lets the flusher write the last one, which it has left open. */
static void wake_waiting_flusher(struct log *g) {
    if (g->flusher.sleeping && !g->commit.leading && g->flusher.wanted_lsn > g->front.forced_lsn && g->poison == 0) {
        log_wake_flusher(g);
    }
}

static void advance(struct log *g) {
    const struct buffer *b;
    while (g->poison == 0 && !g->commit.advancing && (b = durable_next(g)) != NULL) {
        uint64_t to_lsn = b->end_lsn, base_lsn = b->base_lsn;
        g->commit.advancing = true;
        log_let_go(g);
        uint64_t hinted = hint_publish(g, to_lsn, base_lsn);
        log_take_back(g);
        while (g->forced > 0 && g->buffers[g->oldest].end_lsn <= to_lsn) {
            batch_is_durable(g);
        }
        end_advance(g, hinted);
        wake_waiting_flusher(g);
        wake_served(g);
    }
}

void log_majority_has(struct log *g, uint64_t lsn) {
    if (lsn > g->commit.majority_lsn) {
        g->commit.majority_lsn = lsn;
        advance(g);
    }
}

/* ---- a term of a replicated log ---- */

void log_replicate(struct log *g, const struct replication *r) {
    g->term = (struct leading){.calls = *r, .index = r->index};
    g->commit.majority_lsn = 0;
#ifdef LOGSTORE_TRAIL
    g->commit.trails = false;
#endif
}

uint64_t log_batch_index(const struct log *g) { return g->term.index; }

bool log_leads(const struct log *g) {
    return log_is_replicated(g) && g->poison == 0 && g->front.durable_lsn > g->term.first_lsn;
}

void log_cease(struct log *g) {
    if (!log_is_replicated(g)) {
        return;
    }
    g->poison = g->poison != 0 ? g->poison : ECANCELED;
    wake_helpers(g);
    log_pass_on(g);
}

uint64_t log_known_durable(const struct log *g) {
    return g->front.durable_lsn > g->term.first_lsn ? g->front.durable_lsn : g->term.calls.known_durable_lsn;
}

/* ---- the leader's batch ---- */

/* A batch of a replicated log was forced here, which alone does not make it durable: how far does a majority reach? */
static void ask_majority(struct log *g, const struct buffer *b) {
    if (log_is_replicated(g)) {
        uint64_t has_lsn = g->term.calls.forced(g->term.calls.context, b->batch_index, b->end_lsn);
        g->commit.majority_lsn = has_lsn > g->commit.majority_lsn ? has_lsn : g->commit.majority_lsn;
    }
}

void log_batch_is_forced(struct log *g, struct buffer *b, bool advances, uint64_t hinted) {
    assert(b->state == BUFFER_WRITING);
    g->front.forced_lsn = b->end_lsn;
    b->segment->header_due = false;
    b->state = BUFFER_FORCED;
    g->forced++;
    if (!advances) {
        ask_majority(g, b);
        log_pass_on(g);
        advance(g); /* a majority may have had the batch before this disk */
        return;
    }
    batch_is_durable(g);
    end_advance(g, hinted);
    log_pass_on(g);
}

void log_batch_failed(struct log *g, int error, bool advances) {
    g->poison = error;
    g->commit.advancing = g->commit.advancing && !advances;
    wake_helpers(g);
    log_pass_on(g);
}

/* ---- a debug build in which durable_lsn trails ---- */

#ifdef LOGSTORE_TRAIL
/*
 * Simulates a majority that is LOGSTORE_TRAIL batches (fewer than there are buffers) behind this disk. The simulated
 * majority catches up when a thread waits and none writes. It also catches up before the flusher sleeps, because some
 * threads wait for an event, and the log cannot see such a wait.
 */
bool log_trail(struct log *g, bool catches_up) {
    uint32_t most = LOGSTORE_TRAIL < g->buffer_count ? LOGSTORE_TRAIL : g->buffer_count - 1;
    uint64_t let_go = g->front.let_go;
    if (!g->commit.trails || g->poison != 0) {
        return false;
    }
    if (catches_up) {
        log_majority_has(g, g->front.forced_lsn);
    } else if (g->forced > most) {
        log_majority_has(g, g->buffers[(g->oldest + g->forced - most - 1) % g->buffer_count].end_lsn);
    }
    if (g->forced > 0 && g->flusher.sleeping && !g->commit.leading) {
        log_wake_flusher(g);
    }
    return g->front.let_go != let_go;
}
#endif
