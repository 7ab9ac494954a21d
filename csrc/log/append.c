/* Appending: buffers, room in the current segment, and the next one. See log.h for what always holds. */
#include "log/log.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "log/parts.h"

_Static_assert((int)BLOCK_BYTES == (int)IO_BLOCK_BYTES,
               "headers and batches are written in whole blocks of the device");

/* ---- memory ---- */

static int init_buffers(struct log *g) {
    g->buffers = calloc(g->buffer_count, sizeof *g->buffers);
    g->tail_block = aligned_alloc(BLOCK_BYTES, BLOCK_BYTES);
    g->header_block = aligned_alloc(BLOCK_BYTES, BLOCK_BYTES);
    if (g->buffers == NULL || g->tail_block == NULL || g->header_block == NULL) {
        return fail_memory();
    }
    for (uint32_t i = 0; i < g->buffer_count; i++) {
        /* a batch may begin and end inside a block */
        size_t bytes = round_up(g->batch_bytes_max, BLOCK_BYTES) + 2 * BLOCK_BYTES;
        g->buffers[i].memory = aligned_alloc(BLOCK_BYTES, bytes);
        g->buffers[i].index = i;
        if (g->buffers[i].memory == NULL) {
            return fail_memory();
        }
    }
    return LS_OK;
}

/* A sixteenth of the largest batch; of a small one half, since small writes of their own cost more than they hide. */
static uint32_t early_bytes_of(uint32_t batch_bytes_max) {
    uint32_t share = batch_bytes_max / EARLY_SHARE, half = batch_bytes_max / 2;
    uint32_t least = half < EARLY_BYTES_MIN ? half : EARLY_BYTES_MIN;
    return (uint32_t)round_up(share > least ? share : least, BLOCK_BYTES);
}

int log_init(struct log *g, vfs *v, const ls_options *options, const struct meta *meta) {
    memcpy(g->uuid, meta->uuid, UUID_BYTES);
    g->v = v;
    g->hint_file = -1;
    g->pace_until = g->live_low = g->live_low_before = UINT64_MAX;
    g->segment_size = meta->segment_size;
    g->max_undurable_bytes = meta->max_undurable_bytes;
    g->max_log_bytes = options->max_log_bytes;
    g->record_bytes_max = format_record_bytes_max(meta->segment_size);
    g->batch_bytes_max = format_batch_bytes_max(meta->segment_size);
    g->early_bytes = early_bytes_of(g->batch_bytes_max);
    g->background = options->background != 0;
    g->buffer_count = options->max_write_buffers;
    g->waiters_end = &g->waiters;
    return init_buffers(g);
}

void log_free(struct log *g) {
    for (size_t i = 0; i < g->segment_count; i++) {
        segment_free(g, g->segments[i]);
    }
    while (g->spares != NULL) {
        struct segment *next = g->spares->next_spare;
        segment_free(g, g->spares);
        g->spares = next;
    }
    for (uint32_t i = 0; g->buffers != NULL && i < g->buffer_count; i++) {
        free(g->buffers[i].memory);
        free(g->buffers[i].released);
    }
    free(g->segments);
    free(g->buffers);
    free(g->tail_block);
    free(g->header_block);
}

/* ---- letting go of the lock ---- */

#ifdef LOGSTORE_POISON
/* Every time in a small test; in a long one mostly not, since a move copies whole slabs of messages. */
static bool is_moved_now(const struct log *g) {
    enum { EVERY_TIME = 2000, LATER_ONE_IN = 32 };
    return g->let_go < EVERY_TIME || g->let_go % LATER_ONE_IN == 0;
}
#endif

void log_was_let_go(struct log *g) {
    g->reserved_room = 0;
#ifdef LOGSTORE_POISON
    if (is_moved_now(g)) {
        if (g->owner.move != NULL) {
            g->owner.move(g->owner.context);
        }
        log_move_segments(g);
    }
#endif
    g->let_go++;
}

void log_let_go(struct log *g) { (void)pthread_mutex_unlock(&g->lock); }

void log_take_back(struct log *g) {
    (void)pthread_mutex_lock(&g->lock);
    log_was_let_go(g);
}

void log_wait(struct log *g, pthread_cond_t *signal) {
    (void)pthread_cond_wait(signal, &g->lock);
    log_was_let_go(g);
}

void log_may_wait(struct log *g) {
    g->reserved_room = 0;
#ifdef LOGSTORE_POISON
    if (!is_moved_now(g)) {
        g->let_go++;
        return;
    }
    bool others_first = g->let_go % 64 == 0; /* each time would be slow on a busy machine */
    log_let_go(g);
    if (others_first) {
        (void)sched_yield();
    }
    log_take_back(g);
#endif
}

/* ---- buffers ---- */

uint8_t *log_buffer_at(const struct buffer *b, uint64_t lsn) {
    return b->memory + b->start_lsn % BLOCK_BYTES + (lsn - b->start_lsn);
}

void log_open_buffer(struct log *g) {
    assert(g->open == NULL && g->busy < g->buffer_count);
    struct buffer *b = &g->buffers[(g->oldest + g->busy) % g->buffer_count];
    assert(b->state == BUFFER_FREE && b->released_count == 0);
    g->busy++;
    b->state = BUFFER_OPEN;
    b->segment = g->segments[g->segment_count - 1];
    b->start_lsn = g->append_lsn;
    b->end_lsn = b->start_lsn + BATCH_RECORD_BYTES;
    b->early_lsn = 0;
    b->count = 0;
    g->append_lsn = b->end_lsn;
    g->open = b;
}

void log_seal_open(struct log *g) {
    g->open->state = BUFFER_SEALED;
    g->end_lsn = g->open->end_lsn;
    g->segment_batches++;
    g->open = NULL;
    g->reserved_room = 0;
}

uint64_t log_segment_end(const struct log *g) { return g->segments[g->segment_count - 1]->first_lsn + g->segment_size; }

/* Whether the current segment has room for these bytes, and for its end after them. */
static bool segment_has_room(const struct log *g, uint64_t bytes) {
    uint64_t from = g->open != NULL ? g->append_lsn : g->append_lsn + BATCH_RECORD_BYTES;
    return from + bytes + SEGMENT_END_RESERVE <= log_segment_end(g);
}

static bool buffer_has_room(const struct log *g, uint64_t bytes) {
    return g->open->end_lsn - g->open->start_lsn + bytes + FOOTER_BYTES_MAX <= g->batch_bytes_max;
}

struct slot log_slot(struct log *g, uint64_t id, uint64_t prev, uint16_t flags) {
    struct buffer *b = g->open;
    struct slot s = {
        .at = log_buffer_at(b, b->end_lsn),
        .seed = b->segment->seed,
        .lsn = b->end_lsn,
        .id = id,
        .prev = prev,
        .flags = flags,
    };
    return s;
}

static void append(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes) {
    struct buffer *b = g->open;
    assert(s->lsn == b->end_lsn && bytes % 8 == 0);
    b->end_lsn += bytes;
    assert(b->end_lsn - b->start_lsn <= g->batch_bytes_max && b->end_lsn <= log_segment_end(g));
    b->count++;
    g->append_lsn = g->end_lsn = b->end_lsn;
    g->last_lsn = s->lsn;
    g->type_counts[format_type_ordinal(type)]++;
    g->stats.records++;
    g->stats.appended_bytes += bytes;
}

void log_append(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes) {
    assert(bytes <= g->reserved_room); /* reserved, and the lock held ever since */
    g->reserved_room -= bytes;
    append(g, s, type, bytes);
}

const uint8_t *log_buffered(struct log *g, uint64_t lsn) {
    for (uint32_t i = 0; i < g->busy; i++) {
        struct buffer *b = &g->buffers[(g->oldest + i) % g->buffer_count];
        if (lsn >= b->start_lsn && lsn < b->end_lsn) {
            return log_buffer_at(b, lsn);
        }
    }
    return NULL;
}

/* ---- making room ---- */

static void count_types(struct log *g, struct footer *f) {
    static const uint16_t types[TYPES_COUNTED] = {
        MESSAGE_START,
        MESSAGE_CHUNK,
        MESSAGE_ENQUEUE,
        MESSAGE_DEQUEUE,
        MESSAGE_DELETE,
        MESSAGE_RELOCATED,
        0,
        0,
        DTX_START,
        TX_START,
        TX_END,
        TX_PREPARE,
        TX_COMMIT,
        TX_ROLLBACK,
        TX_DELETE,
        TX_RELOCATED,
        BATCH,
        FILLER,
        FOOTER,
        QUEUE_DELETE,
        CLOSE,
    };
    g->type_counts[format_type_ordinal(BATCH)] = g->segment_batches + 1; /* with the batch that holds the footer */
    for (uint32_t i = 0; i < TYPES_COUNTED; i++) {
        if (g->type_counts[i] > 0 && types[i] != FOOTER) {
            f->counts[f->n++] = (struct footer_count){types[i], g->type_counts[i]};
        }
    }
}

/* The current segment ends with its footer and the next one, a spare, begins. Nothing here can fail. */
static void switch_segment(struct log *g, enum purpose purpose) {
    struct segment *old = g->segments[g->segment_count - 1];
    struct slot s = log_slot(g, 0, 0, 0);
    struct footer f = {
        .last_lsn = g->last_lsn > old->first_lsn ? g->last_lsn : g->open->start_lsn,
        .bytes = s.lsn - old->first_lsn - SEGMENT_HEADER_BYTES,
        .batches = g->segment_batches + 1,
    };
    count_types(g, &f);
    append(g, &s, FOOTER, format_put_footer(&s, &f));
    log_seal_open(g);
    old->end_lsn = g->end_lsn;
    memset(g->type_counts, 0, sizeof g->type_counts);
    g->segment_batches = 0;
    struct segment *next = spares_take(g);
    if (purpose != RESERVE_MOVES) { /* who moves looks after spares anyway; else one move would lead to the next */
        g->maker_wanted = true;
        (void)pthread_cond_signal(&g->maker_wake);
    }
    next->prev_end_lsn = old->end_lsn;
    g->segments[g->segment_count++] = next;
    g->append_lsn = next->first_lsn + SEGMENT_HEADER_BYTES;
    log_close_idle_files(g);
    if (g->owner.segment_begun != NULL) {
        g->owner.segment_begun(g->owner.context);
    }
    log_flush_soon(g);
}

/* (waits) A free buffer is open for the footer, a spare is there, and memory for one more segment. */
static int prepare_switch(struct log *g, enum purpose purpose, bool *ready) {
    *ready = false;
    if (!spares_allow(g, purpose)) {
        return spares_need(g, purpose);
    }
    if (purpose == RESERVE_GROWS && spares_are_behind(g)) {
        uint64_t full_lsn = g->segments[g->segment_count - 1]->first_lsn;
        spares_try(g); /* relocation has fallen behind: who makes the log longer waits for it */
        if (full_lsn != g->segments[g->segment_count - 1]->first_lsn || !log_takes_records(g) || g->poison != 0) {
            return LS_OK; /* the move, or somebody else, has begun another segment; or nothing is appended any more */
        }
    }
    if (!spares_allow(g, purpose)) {
        return LS_OK;
    }
    if (g->open == NULL && g->busy == g->buffer_count) {
        g->stats.forced_by_full_buffers++;
        return log_progress(g);
    }
    int rc = log_reserve_segment(g);
    if (rc == LS_OK && g->open == NULL) {
        log_open_buffer(g);
    }
    *ready = rc == LS_OK;
    return rc;
}

/* (waits) One step nearer to having room; LS_OK means: look again. */
static int make_room(struct log *g, uint64_t bytes, enum purpose purpose) {
    if (!segment_has_room(g, bytes)) {
        bool ready;
        int rc = prepare_switch(g, purpose, &ready);
        if (rc == LS_OK && ready) {
            switch_segment(g, purpose);
        }
        return rc;
    }
    if (g->open != NULL) { /* the buffer is full */
        log_seal_open(g);
        log_flush_soon(g);
        return LS_OK;
    }
    if (g->busy == g->buffer_count) {
        g->stats.forced_by_full_buffers++;
        return log_progress(g);
    }
    log_open_buffer(g);
    return LS_OK;
}

/*
 * Whether the log may grow is known only when the maker has tried for one more spare, or has moved what there was to be
 * moved. Until then growing stops half way through the current segment: the rest is for the dequeues that make room.
 */
static bool maker_is_behind(const struct log *g) {
    bool half_way = g->append_lsn + g->segment_size / 2 > log_segment_end(g);
    bool asked = g->asked_lsn == g->segments[g->segment_count - 1]->first_lsn;
    return g->spare_count < g->spares_reserved || (g->spare_count == g->spares_reserved && half_way && !asked);
}

/* Growing has to ask first: the maker for another spare, or where there is none, how much lives. */
static bool must_ask(struct log *g, uint64_t bytes, uint64_t expansion) {
    return !spares_suffice(g, bytes, expansion) || (g->cannot_grow ? spares_are_heavy(g) : maker_is_behind(g));
}

/* Twice round the log, nobody has found room meanwhile, and there is none. */
struct patience {
    uint64_t room_given;
    uint64_t moved_max;
};

static bool is_in_vain(const struct log *g, struct patience *p, enum purpose purpose) {
    if (p->room_given != g->room_given || p->moved_max == 0) {
        p->room_given = g->room_given;
        p->moved_max = g->stats.segments_relocated + 2 * g->segment_count + 16;
    }
    return g->cannot_grow && g->stats.segments_relocated > p->moved_max && !spares_allow(g, purpose);
}

static int reserve(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose) {
    assert(bytes + BATCH_RECORD_BYTES + FOOTER_BYTES_MAX <= g->batch_bytes_max);
    struct patience patience = {.moved_max = 0};
    log_may_wait(g);
    for (;;) {
        int rc = LS_OK;
        if (!log_takes_records(g)) {
            return log_fail_closed();
        }
        if (g->poison != 0) {
            return log_fail_poisoned(g, LS_POISONED);
        }
        if (purpose != RESERVE_MOVES && g->moving && g->spare_count == 0) { /* a move has taken the last spare */
            log_wait(g, &g->maker_done);
            continue;
        }
        if (g->maker_wanted && !g->threads_running && !g->stopping &&
            !g->moving) { /* without threads the caller is the maker */
            g->maker_wanted = false;
            (void)spares_keep(g);
        }
        if (purpose == RESERVE_GROWS && must_ask(g, bytes, expansion)) {
            rc = spares_grow(g, bytes, expansion);
            if (rc != LS_OK) {
                return rc;
            }
            if (!spares_suffice(g, bytes, expansion)) {
                continue; /* what was made has been taken meanwhile */
            }
        }
        if (!log_takes_records(g) || g->poison != 0) {
            continue; /* it happened while we waited to grow */
        }
        if (g->busy > 0 && g->append_lsn + BATCH_RECORD_BYTES + bytes - g->durable_lsn > g->max_undurable_bytes) {
            rc = log_progress(g);
        } else if (purpose == RESERVE_GROWS && log_can_write_early(g)) {
            log_write_early(g);
        } else if (g->open != NULL && segment_has_room(g, bytes) && buffer_has_room(g, bytes)) {
            g->room_given += purpose != RESERVE_MOVES ? 1 : 0;
            g->reserved_room = bytes;
            return LS_OK;
        } else {
            rc = make_room(g, bytes, purpose);
        }
        if (rc == LS_OK && is_in_vain(g, &patience, purpose)) {
            rc = spares_fail_full(g);
        }
        if (rc != LS_OK) {
            return rc;
        }
    }
}

int log_reserve(struct log *g, uint64_t bytes, enum purpose purpose) { return reserve(g, bytes, 0, purpose); }

int log_reserve_to_grow(struct log *g, uint64_t bytes, uint64_t expansion) {
    return reserve(g, bytes, expansion, RESERVE_GROWS);
}

/* ---- threads ---- */

void log_flush_soon(struct log *g) {
    g->flush_wanted_lsn = g->end_lsn;
    if (g->flusher_sleeping && !g->leading) {
        g->flusher_sleeping = false;
        (void)sem_post(&g->flusher_wake);
    }
}

/*
 * Nobody waits for what was flushed, nor listens, and it was little: with a disk that syncs in less than 0.1 ms the flusher
 * would otherwise take half a processor from whoever publishes. Who does wait leads at once, rest or not.
 */
static void rest_a_little(struct log *g, uint64_t flushed_bytes) {
    const struct timespec rest = {.tv_nsec = FLUSHER_RESTS_NS};
    if (g->event_count > 0 || g->waiters != NULL || g->stopping || g->poison != 0 || flushed_bytes >= g->early_bytes) {
        return;
    }
    log_let_go(g);
    (void)nanosleep(&rest, NULL);
    log_take_back(g);
}

static void *flusher_thread(void *log) {
    struct log *g = log;
    pthread_mutex_lock(&g->lock);
    while (!g->stopping) {
        if (g->poison == 0 && g->flush_wanted_lsn > g->durable_lsn) {
            uint64_t before = g->stats.batch_bytes;
            (void)log_force(g, g->flush_wanted_lsn);
            rest_a_little(g, g->stats.batch_bytes - before);
            continue;
        }
        g->flusher_sleeping = true;
        pthread_mutex_unlock(&g->lock);
        while (sem_wait(&g->flusher_wake) != 0) {
            assert(errno == EINTR);
        }
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

int log_start_threads(struct log *g) {
    if (!g->background) {
        return LS_OK;
    }
    int rc = pthread_create(&g->flusher, NULL, flusher_thread, g);
    if (rc != 0) {
        return fail_errno(LS_IO, rc, "the flusher thread cannot be started");
    }
    rc = pthread_create(&g->maker, NULL, spares_thread, g);
    if (rc != 0) {
        pthread_mutex_lock(&g->lock);
        g->stopping = true;
        pthread_mutex_unlock(&g->lock);
        (void)sem_post(&g->flusher_wake);
        (void)pthread_join(g->flusher, NULL);
        return fail_errno(LS_IO, rc, "the thread that makes spares cannot be started");
    }
    pthread_mutex_lock(&g->lock);
    g->threads_running = true;
    pthread_mutex_unlock(&g->lock);
    return LS_OK;
}

void log_stop_threads(struct log *g) {
    pthread_mutex_lock(&g->lock);
    bool running = g->threads_running;
    g->threads_running = false;
    g->stopping = true;
    g->flusher_sleeping = false;
    (void)pthread_cond_broadcast(&g->maker_wake);
    pthread_mutex_unlock(&g->lock);
    if (running) {
        (void)sem_post(&g->flusher_wake);
        (void)pthread_join(g->flusher, NULL);
        (void)pthread_join(g->maker, NULL);
    }
}
