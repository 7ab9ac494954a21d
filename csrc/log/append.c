/*
 * Appending: the ring of write buffers, one of which is open, and records encoded into it. reserve.c makes the room that
 * an append needs; commit.c writes the buffers. See log.h for what always holds.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "log/parts.h"

_Static_assert((int)BLOCK_BYTES == (int)IO_BLOCK_BYTES,
               "headers and batches are written in whole blocks of the device");

/* ---- memory ---- */

static int init_buffers(struct log *g) {
    g->buffers = calloc(g->buffer_count, sizeof *g->buffers);
    g->commit.tail_block = aligned_alloc(BLOCK_BYTES, BLOCK_BYTES);
    g->commit.header_block = aligned_alloc(BLOCK_BYTES, BLOCK_BYTES);
    if (g->buffers == NULL || g->commit.tail_block == NULL || g->commit.header_block == NULL) {
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

/* Returns an eighth of the largest batch, or half of a small one: many small writes cost more time than they save. */
static uint32_t early_bytes_of(uint32_t batch_bytes_max) {
    uint32_t share = batch_bytes_max / EARLY_SHARE, half = batch_bytes_max / 2;
    uint32_t least = half < EARLY_BYTES_MIN ? half : EARLY_BYTES_MIN;
    return (uint32_t)round_up(share > least ? share : least, BLOCK_BYTES);
}

struct log *log_new(int (*relocate)(struct log *g, const struct pin *victim)) {
    struct log *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return NULL;
    }
    g->dir = g->holds_dir = g->hint_file = -1;
    g->space.kept_lsn = UINT64_MAX;
    g->space.others.spares = SIZE_MAX;
    g->relocate = relocate;
    (void)pthread_mutex_init(&g->front.lock, NULL);
    (void)pthread_cond_init(&g->spare_thread.wake, NULL);
    (void)pthread_cond_init(&g->spare_thread.done, NULL);
    (void)sem_init(&g->flusher.wake, 0, 0);
    g->flusher.alarm_us = UINT64_MAX;
    return g;
}

int log_init(struct log *g, struct directory *directory, const ls_options *options, const struct meta *meta) {
    memcpy(g->uuid, meta->uuid, UUID_BYTES);
    g->v = directory->v;
    g->dir = directory->dir;
    g->written = &directory->written;
    g->directory = directory;
    g->relocation.pace_until = g->space.live_low = g->space.live_low_before = g->space.next.asked_lsn = UINT64_MAX;
    g->segment_size = meta->segment_size;
    g->max_undurable_bytes = meta->max_undurable_bytes;
    g->max_log_bytes = options->max_log_bytes;
    g->record_bytes_max = format_record_bytes_max(meta->segment_size);
    g->batch_bytes_max = format_batch_bytes_max(meta->segment_size);
    g->front.undurable_bytes_max = g->max_undurable_bytes + g->batch_bytes_max;
    g->early_bytes = early_bytes_of(g->batch_bytes_max);
    g->background = options->background != 0;
    g->buffer_count = options->max_write_buffers;
    g->commit.waiters_end = &g->commit.waiters;
    g->commit.majority_lsn = UINT64_MAX;
#ifdef LOGSTORE_TRAIL
    g->commit.trails = true;
    g->commit.majority_lsn = 0;
#endif
    return init_buffers(g);
}

void log_free(struct log *g) {
    if (g == NULL) {
        return;
    }
    log_answer_drop(g);
    for (int i = 0; i < g->event_count; i++) {
        (void)g->v->event_close(g->v, g->events[i]);
    }
    for (size_t i = 0; i < g->segment_count; i++) {
        segment_free(g, g->segments[i]);
    }
    while (g->space.spares != NULL) {
        struct segment *next = g->space.spares->next_spare;
        segment_free(g, g->space.spares);
        g->space.spares = next;
    }
    for (uint32_t i = 0; g->buffers != NULL && i < g->buffer_count; i++) {
        free(g->buffers[i].memory);
        free(g->buffers[i].released);
    }
    free(g->segments);
    free(g->buffers);
    free(g->commit.tail_block);
    free(g->commit.header_block);
    log_clients_free(&g->clients);
    (void)pthread_mutex_destroy(&g->front.lock);
    (void)pthread_cond_destroy(&g->spare_thread.wake);
    (void)pthread_cond_destroy(&g->spare_thread.done);
    (void)sem_destroy(&g->flusher.wake);
    free(g);
}

int log_register(struct log *g, const struct log_client *client) {
    int rc = clients_register(&g->clients, client);
    if (rc == LS_OK && client->calls->attach != NULL) {
        client->calls->attach(client->context, g);
    }
    return rc;
}

struct log_clients *log_clients(struct log *g) {
    return &g->clients;
}

/* ---- buffers ---- */

void log_open_buffer(struct log *g) {
    assert(g->open == NULL && g->busy < g->buffer_count);
    struct buffer *b = &g->buffers[(g->oldest + g->busy) % g->buffer_count];
    assert(b->state == BUFFER_FREE && b->released_count == 0);
    g->busy++;
    b->state = BUFFER_OPEN;
    b->segment = g->segments[g->segment_count - 1];
    b->start_lsn = g->front.append_lsn;
    b->end_lsn = b->start_lsn + BATCH_RECORD_BYTES;
    b->early_lsn = 0;
    b->batch_index = log_is_replicated(g) ? ++g->term.index : 0;
    b->count = 0;
    g->front.append_lsn = b->end_lsn;
    g->open = b;
}

void log_seal_open(struct log *g) {
    g->open->state = BUFFER_SEALED;
    g->front.end_lsn = g->open->end_lsn;
    g->footer.batches++;
    g->open = NULL;
    g->front.reserved_room = 0;
}

uint64_t log_record_bytes_max(const struct log *g) { return g->record_bytes_max; }

uint64_t log_batch_room(const struct log *g) { return g->batch_bytes_max - BATCH_RECORD_BYTES - FOOTER_BYTES_MAX; }

uint64_t log_segment_end(const struct log *g) { return g->segments[g->segment_count - 1]->first_lsn + g->segment_size; }

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

void log_append(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes) {
    struct buffer *b = g->open;
    assert(bytes <= g->front.reserved_room); /* the room was reserved, and the lock has been held since */
    g->front.reserved_room -= bytes;
    assert(s->lsn == b->end_lsn && bytes % 8 == 0);
    b->end_lsn += bytes;
    assert(b->end_lsn - b->start_lsn <= g->batch_bytes_max && b->end_lsn <= log_segment_end(g));
    b->count++;
    g->front.append_lsn = g->front.end_lsn = b->end_lsn;
    g->footer.last_lsn = s->lsn;
    uint32_t ordinal = format_type_ordinal(type);
    if (ordinal < TYPES_COUNTED) { /* other streams are counted by their clients */
        g->footer.type_counts[ordinal]++;
    }
    g->stats.records++;
    g->stats.appended_bytes += bytes;
}

void log_append_live(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes, uint64_t live_bytes) {
    log_live(g->open->segment, 1, live_bytes);
    log_append(g, s, type, bytes);
}

void log_append_copy(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes) {
    g->stats.relocated_bytes += bytes;
    log_append(g, s, type, bytes);
}

void log_append_at_end(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes) {
    g->front.reserved_room += bytes; /* the segment has kept SEGMENT_END_RESERVE for this record */
    log_append(g, s, type, bytes);
}
