/*
 * Group commit. A thread that needs everything below an LSN durable calls log_force, and then:
 *
 *   1. It leads if no thread does (`leading`) and its LSN is not forced, else it follows: it queues as a waiter and sleeps on
 *      its own semaphore.
 *   2. The leader takes the oldest buffer that is not forced, sealing it if it is still open. Other threads fill the next
 *      buffer meanwhile.
 *   3. It names the base and, as durable_lsn, the forced_lsn of this moment in the batch record, and lets go of the lock.
 *   4. It writes the segment's header if that is due, then the whole blocks of the batch, and syncs the file.
 *      A replicated log hands the batch out between the two.
 *   5. If the batch is durable with that, it publishes the hint for readers: durable_lsn and the base.
 *   6. With the lock it advances forced_lsn, and if the batch is durable durable_lsn, takes the releases of this batch out of
 *      the live counts, and frees the buffer.
 *      If the write or the sync failed, the log is poisoned instead: whether the batch is on disk is not known.
 *   7. It signals the events, wakes the waiters whose LSN is durable, and one more to lead if work is left; without waiters
 *      the flusher, if a flush is wanted.
 *
 * One batch is written at a time, so batches are forced in their order. A large open batch may be written early, in part,
 * by the thread that fills it: without its batch record, which goes out last, those blocks mean nothing.
 *
 * See durable.c for what is durable, and log.h for what always holds.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "os/io.h"
#include "log/parts.h"

/* ---- failing and waiting ---- */

int log_fail_poisoned(const struct log *g, int code) {
    if (log_is_replicated(g) && g->poison == ECANCELED) {
        return fail(
            code,
            "this copy no longer leads, so it accepts nothing more, and what was on its way may be durable or not; go "
            "on with the copy that leads");
    }
    return fail_errno(code, g->poison,
                      code == LS_POISONED
                          ? "the store refuses writes since a write or sync of its log failed; close it, look at the "
                            "disk, and open it again"
                          : "a write or sync of the log failed, so whether this change is on disk is not known; close "
                            "the store, look at the disk, and open it again to see");
}

/* Once ls_close has begun, only its own thread appends: a thread that waited meanwhile finds the store closed. */
bool log_takes_records(const struct log *g) {
    return g->serving || (g->closing && pthread_equal(g->closer, pthread_self()));
}

int log_fail_closed(void) { return fail(LS_CLOSED, "the store is closed; open it again"); }

/*
 * Waits as a follower until lsn is durable or the store is poisoned. -1: this thread must check again, and may have to
 * lead.
 */
static int follow(struct log *g, uint64_t lsn) {
    struct waiter w = {.lsn = lsn, .result = -1};
    if (!g->commit.leading && log_trail(g, true)) {
        return -1;
    }
    if (sem_init(&w.wake, 0, 0) != 0) {
        return fail_errno(LS_IO, errno, "no semaphore to wait with");
    }
    *g->commit.waiters_end = &w;
    g->commit.waiters_end = &w.next;
    log_let_go(g);
    while (sem_wait(&w.wake) != 0) {
        assert(errno == EINTR);
    }
    log_take_back(g);
    (void)sem_destroy(&w.wake);
    return w.result;
}

/* ---- writing one batch ---- */

struct outgoing {
    struct batch batch;
    bool header_due;
    bool advances;   /* see log_begin_advance */
    uint64_t hinted; /* what hint_publish gave */
    uint64_t sync_us;
};

int log_write_header(struct log *g, const struct segment *s, uint64_t time_us) {
    struct segment_header h = {
        .segment_size = g->segment_size,
        .first_lsn = s->first_lsn,
        .epoch = s->epoch,
        .prev_end_lsn = s->prev_end_lsn,
        .created_us = time_us,
    };
    memcpy(h.uuid, g->uuid, UUID_BYTES);
    format_put_segment_header(g->commit.header_block, &h);
    return io_write(g->v, s->file, g->commit.header_block, SEGMENT_HEADER_BYTES, 0, g->written);
}

static int sync_batch(struct log *g, int file) { return g->v->sync_data(g->v, file); }

/* The blocks of the batch, without those that were written early. */
static int write_blocks(struct log *g, const struct buffer *b, size_t whole) {
    uint64_t from = b->start_lsn / BLOCK_BYTES * BLOCK_BYTES, at = from - b->segment->first_lsn;
    if (b->early_lsn == 0) {
        return io_write(g->v, b->segment->file, b->memory, whole, at, g->written);
    }
    size_t head = (size_t)(round_up(b->start_lsn + BATCH_RECORD_BYTES, BLOCK_BYTES) - from);
    size_t early = (size_t)(b->early_lsn - from);
    int rc =
        whole > early ? io_write(g->v, b->segment->file, b->memory + early, whole - early, at + early, g->written) : 0;
    return rc == 0 ? io_write(g->v, b->segment->file, b->memory, head, at, g->written) : rc;
}

/* Hands the batch to the other copies, which may force it at the same time as this disk. */
static void ship(const struct log *g, const struct buffer *b, const struct outgoing *out) {
    const struct segment *s = b->segment;
    const struct shipment sent = {
        .term = s->epoch,
        .index = b->batch_index,
        .lsn = b->start_lsn,
        .end_lsn = b->end_lsn,
        .first_lsn = s->first_lsn,
        .known_durable_lsn = out->batch.known_durable_lsn,
        .header = b->start_lsn == s->first_lsn + SEGMENT_HEADER_BYTES ? g->commit.header_block : NULL,
        .bytes = log_buffer_at(b, b->start_lsn),
    };
    g->term.calls.ship(g->term.calls.context, &sent);
}

/*
 * Without the lock: only the leader touches a sealed buffer, the tail block and the header block. Whole blocks are
 * written, so that the page cache never has to read one first; the bytes before the batch in its first block are
 * those that stand there already.
 */
static int write_batch(struct log *g, struct buffer *b, struct outgoing *out) {
    struct segment *s = b->segment;
    struct slot slot = {.at = log_buffer_at(b, b->start_lsn), .seed = s->seed, .lsn = b->start_lsn};
    (void)format_put_batch(&slot, &out->batch);
    size_t lead = b->start_lsn % BLOCK_BYTES;
    size_t bytes = lead + (size_t)(b->end_lsn - b->start_lsn);
    size_t whole = round_up(bytes, BLOCK_BYTES);
    memcpy(b->memory, g->commit.tail_block, lead);
    memset(b->memory + bytes, 0, whole - bytes);
    int rc = 0;
    if (out->header_due) {
        rc = log_write_header(g, s, out->batch.time_us);
    }
    if (rc == 0) {
        rc = write_blocks(g, b, whole);
    }
    if (rc == 0 && log_is_replicated(g)) {
        ship(g, b, out);
    }
    if (rc == 0) {
        uint64_t from_us = g->v->monotonic_us(g->v);
        rc = sync_batch(g, s->file);
        out->sync_us = g->v->monotonic_us(g->v) - from_us;
    }
    if (rc == 0) {
        memcpy(g->commit.tail_block, b->memory + whole - BLOCK_BYTES, bytes % BLOCK_BYTES);
    }
    if (rc == 0 && out->advances) {
        out->hinted = hint_publish(g, b->end_lsn, b->base_lsn);
    }
    return rc;
}

static void count_batch(struct log *g, uint64_t bytes, uint64_t sync_us) {
    g->stats.batches++;
    g->stats.syncs++;
    g->stats.sync_us += sync_us;
    g->stats.sync_us_max = sync_us > g->stats.sync_us_max ? sync_us : g->stats.sync_us_max;
    g->stats.batch_bytes += bytes;
}

/* The lock is held at both ends and let go in between. */
void log_lead_one(struct log *g) {
    assert(!g->commit.leading && g->poison == 0 && log_unforced(g) > 0);
    struct buffer *b = &g->buffers[(g->oldest + g->forced) % g->buffer_count];
    if (b->state == BUFFER_OPEN) {
        log_seal_open(g);
    }
    b->state = BUFFER_WRITING;
    g->commit.leading = true;
    log_advance_base(g);
    b->base_lsn = g->segments[g->base_index]->first_lsn;
    b->known_lsn = log_is_replicated(g) ? log_known_durable(g) : 0;
    struct outgoing out = {
        .batch =
            {
                .epoch = b->segment->epoch,
                .count = b->count,
                .bytes = (uint32_t)(b->end_lsn - b->start_lsn),
                .durable_lsn = g->front.forced_lsn,
                .base_lsn = b->base_lsn,
                .time_us = g->v->now_us(g->v),
                .index = b->batch_index,
                .known_durable_lsn = b->known_lsn,
            },
        .header_due = b->segment->header_due,
        .advances = log_begin_advance(g, b->end_lsn),
    };
    log_let_go(g);
    int rc = write_batch(g, b, &out);
    log_take_back(g);
    g->commit.leading = false;
    if (rc != 0) {
        log_batch_failed(g, -rc, out.advances);
        return;
    }
    count_batch(g, b->end_lsn - b->start_lsn, out.sync_us);
    log_batch_is_forced(g, b, out.advances, out.hinted);
}

/* The first block that holds no part of the batch record. Until that record is written, later blocks do not count. */
static uint64_t early_from(const struct buffer *b) {
    return b->early_lsn != 0 ? b->early_lsn : round_up(b->start_lsn + BATCH_RECORD_BYTES, BLOCK_BYTES);
}

/* Some thread waits for records that are not forced yet. */
static bool is_awaited(const struct log *g) {
    const struct waiter *w = g->commit.waiters;
    while (w != NULL && w->lsn <= g->front.forced_lsn) {
        w = w->next;
    }
    return w != NULL;
}

uint64_t log_early_at(const struct log *g) {
    const struct buffer *b = g->open;
    if (b == NULL || log_unforced(g) != 1 || g->commit.leading || is_awaited(g) ||
        g->flusher.wanted_lsn > g->front.forced_lsn) {
        return UINT64_MAX; /* another batch is not forced yet, or this one is about to be written as a whole */
    }
    return early_from(b) + g->early_bytes;
}

bool log_can_write_early(const struct log *g) { return g->open != NULL && g->open->end_lsn >= log_early_at(g); }

void log_write_early(struct log *g) {
    struct buffer *b = g->open;
    assert(log_can_write_early(g) && g->poison == 0);
    struct segment *s = b->segment;
    uint64_t from = early_from(b), to = b->end_lsn / BLOCK_BYTES * BLOCK_BYTES;
    g->commit.leading = true;
    log_let_go(g);
    int rc = io_write(g->v, s->file, log_buffer_at(b, from), (size_t)(to - from), from - s->first_lsn, g->written);
    rc = rc == 0 ? g->v->start_writeback(g->v, s->file, from - s->first_lsn, to - from) : rc;
    log_take_back(g);
    g->commit.leading = false;
    if (rc != 0) {
        log_batch_failed(g, -rc, false);
        return;
    }
    b->early_lsn = to;
    g->stats.early_writes++;
    log_pass_on(g);
}

int log_progress(struct log *g) {
    if (g->poison != 0) {
        return log_fail_poisoned(g, LS_POISONED);
    }
    if (!g->commit.leading && log_unforced(g) > 0) {
        log_lead_one(g);
        return LS_OK;
    }
    int rc = follow(g, g->buffers[g->oldest].end_lsn);
    if (rc == -1) { /* write now: the caller may next find the store full, and no other thread was woken to lead */
        if (!g->commit.leading && g->poison == 0 && log_unforced(g) > 0) {
            log_lead_one(g);
        }
        return LS_OK;
    }
    return rc == LS_OUTCOME_UNKNOWN ? log_fail_poisoned(g, LS_POISONED) : rc;
}

int log_force(struct log *g, uint64_t lsn) {
    log_may_wait(g);
    if (lsn > g->front.end_lsn) {
        lsn = g->front.end_lsn;
    }
    while (g->front.durable_lsn < lsn) {
        int rc = -1;
        if (g->poison != 0) {
            rc = LS_OUTCOME_UNKNOWN;
        } else if (g->commit.leading || g->front.forced_lsn >= lsn) {
            rc = follow(g, lsn);
        } else {
            log_lead_one(g);
        }
        if (rc == LS_OUTCOME_UNKNOWN) {
            return log_fail_poisoned(g, LS_OUTCOME_UNKNOWN);
        }
        if (rc > 0) {
            return rc;
        }
    }
    return LS_OK;
}

/* ---- the base, which each batch names ---- */

/* The base passes segments that are wholly durable and have no live record; it never passes the current one. */
void log_advance_base(struct log *g) {
    while (g->base_index + 1 < g->segment_count) {
        struct segment *s = g->segments[g->base_index];
        if (s->live_records > 0 || s->end_lsn == 0 || s->end_lsn > g->front.durable_lsn) {
            return;
        }
        g->base_index++;
    }
}

/* SEGMENT_END_RESERVE has room for such batches; if that is used up, a later batch names the base. */
int log_force_batch(struct log *g) {
    log_may_wait(g);
    while (g->open == NULL && g->busy == g->buffer_count) {
        int rc = log_progress(g);
        if (rc != LS_OK) {
            return rc;
        }
    }
    if (!log_takes_records(g)) {
        return log_fail_closed();
    }
    if (g->open == NULL) {
        if (g->front.append_lsn + 2 * BATCH_RECORD_BYTES + FOOTER_BYTES_MAX > log_segment_end(g)) {
            return LS_OK;
        }
        log_open_buffer(g);
    }
    uint64_t end_lsn = g->open->end_lsn;
    log_seal_open(g);
    return log_force(g, end_lsn);
}

void log_begin_first_batch(struct log *g, uint64_t bytes) {
    assert(g->busy == 0);
    log_open_buffer(g);
    g->front.reserved_room = bytes;
}

int log_force_first_batch(struct log *g) {
    log_seal_open(g);
    log_lead_one(g);
    return g->poison == 0 ? LS_OK : log_fail_poisoned(g, LS_OUTCOME_UNKNOWN);
}

int log_begin_batch(struct log *g, uint64_t bytes) {
    int rc = LS_OK;
    do {
        rc = log_reserve(g, bytes, RESERVE_SHRINKS);
        if (rc == LS_OK && g->open != NULL && g->open->count > 0) {
            log_seal_open(g); /* then there may be no buffer */
        }
    } while (rc == LS_OK && (g->open == NULL || g->open->count > 0));
    return rc;
}

void log_end_batch(struct log *g) { log_seal_open(g); }

/* In a replicated log the base counts only once a second batch says that the first is durable. */
int log_name_base(struct log *g) {
    int rc = LS_OK;
    log_may_wait(g);
    log_advance_base(g);
    for (int i = 0; rc == LS_OK && i < (log_is_replicated(g) ? 2 : 1) && log_base_lsn(g) > g->named_base_lsn; i++) {
        rc = log_force_batch(g);
    }
    return rc;
}

int log_move_base(struct log *g) {
    int rc = log_force(g, g->front.end_lsn);
    log_advance_base(g);
    if (rc == LS_OK && log_base_lsn(g) > g->named_base_lsn) {
        rc = log_reserve(g, 0, RESERVE_SHRINKS);
        rc = rc == LS_OK ? log_name_base(g) : rc;
    }
    return rc;
}

/* ---- the batch that a checkpoint names ---- */

static void name_batch(struct log *g) {
    if (g->open != NULL) {
        log_seal_open(g);
    }
    g->commit.named_batch = g->busy == 0 ? g->commit.last_batch : (struct named_batch){.end_lsn = g->front.end_lsn};
}

bool log_ends_in_batch(const struct log *g) {
    return g->commit.last_batch.end_lsn != 0 && g->commit.last_batch.end_lsn == g->front.end_lsn;
}

int log_name_batch(struct log *g, bool *named) {
    *named = false;
    if (g->relocation.mid_chain) { /* replay from this batch would need the copies that were made before it */
        log_wait(g, &g->spare_thread.done);
        return LS_OK;
    }
    if (g->open == NULL && g->busy == 0 && g->commit.last_batch.end_lsn != g->front.end_lsn) {
        return log_reserve(g, 0, RESERVE_SHRINKS); /* the first batch of this epoch */
    }
    name_batch(g);
    *named = true;
    return LS_OK;
}

struct named_batch log_named_batch(const struct log *g) {
    return g->commit.named_batch;
}
