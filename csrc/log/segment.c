/* The array of segments, in LSN order, and their memory. See log.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "log/parts.h"

struct segment *segment_new(const struct log *g, uint64_t first_lsn, uint64_t epoch) {
    struct segment *s = calloc(1, sizeof *s);
    struct release *pending = calloc(g->buffer_count, sizeof *pending);
    if (s == NULL || pending == NULL) {
        free(s);
        free(pending);
        return NULL;
    }
    s->pending = pending;
    s->first_lsn = first_lsn;
    s->epoch = epoch;
    s->seed = format_segment_seed(g->uuid, first_lsn, epoch);
    s->file = -1;
    return s;
}

void segment_free(struct log *g, struct segment *s) {
    if (s == NULL) {
        return;
    }
    if (s->file >= 0) {
        (void)g->v->close(g->v, s->file);
        g->open_files--;
    }
    free(s->pending);
    free(s);
}

/* Also makes every buffer's list long enough to name every segment, so that a release never allocates. */
int log_reserve_segment(struct log *g) {
    if (g->segment_count + 1 <= g->segment_capacity) {
        return LS_OK;
    }
    size_t capacity = g->segment_capacity == 0 ? 16 : 2 * g->segment_capacity;
    struct segment **segments = realloc(g->segments, capacity * sizeof *segments);
    if (segments == NULL) {
        return fail_memory();
    }
    g->segments = segments;
    for (uint32_t i = 0; i < g->buffer_count; i++) {
        struct segment **released = realloc(g->buffers[i].released, capacity * sizeof *released);
        if (released == NULL) {
            return fail_memory();
        }
        g->buffers[i].released = released;
    }
    g->segment_capacity = capacity;
    return LS_OK;
}

int log_add_segment(struct log *g, struct segment *s) {
    int rc = log_reserve_segment(g);
    if (rc != LS_OK) {
        return rc;
    }
    assert(g->segment_count == 0 || g->segments[g->segment_count - 1]->first_lsn < s->first_lsn);
    g->segments[g->segment_count++] = s;
    return LS_OK;
}

void log_remove_segment(struct log *g, size_t index) {
    assert(index < g->segment_count);
    g->segment_count--;
    memmove(g->segments + index, g->segments + index + 1, (g->segment_count - index) * sizeof *g->segments);
    if (g->base_index > index) {
        g->base_index--;
    }
}

struct segment *log_segment(struct log *g, uint64_t lsn) {
    size_t low = 0, high = g->segment_count;
    if (high > 0 && g->segments[high - 1]->first_lsn <= lsn) {
        low = high - 1; /* the common case: the current one */
    }
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (g->segments[middle]->first_lsn <= lsn) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if (high == 0 || g->segments[low]->first_lsn > lsn || lsn - g->segments[low]->first_lsn >= g->segment_size) {
        return NULL;
    }
#ifdef LOGSTORE_POISON
    g->given_out[g->given_out_next++ % 4] = g->segments[low];
#endif
    return g->segments[low];
}

#ifdef LOGSTORE_POISON
/* No thread reads its file, and no undurable batch is in it. */
static bool can_move(const struct log *g, const struct segment *s) {
    bool can = s->readers == 0;
    for (uint32_t i = 0; i < g->busy; i++) {
        can = can && g->buffers[(g->oldest + i) % g->buffer_count].segment != s;
    }
    return can;
}

static void move_segment(struct log *g, struct segment **at) {
    struct segment *old = *at, *moved = malloc(sizeof *moved);
    if (moved == NULL) {
        return;
    }
    *moved = *old;
    *at = moved;
    for (uint32_t i = 0; i < g->buffer_count; i++) {
        for (size_t k = 0; k < g->buffers[i].released_count; k++) {
            g->buffers[i].released[k] = g->buffers[i].released[k] == old ? moved : g->buffers[i].released[k];
        }
    }
    memset(old, 0xdb, sizeof *old);
    free(old);
}

void log_move_segments(struct log *g) {
    struct segment **segments = g->segment_capacity > 0 ? malloc(g->segment_capacity * sizeof *segments) : NULL;
    if (segments != NULL) {
        memcpy(segments, g->segments, g->segment_count * sizeof *segments);
        memset(g->segments, 0xdb, g->segment_capacity * sizeof *segments);
        free(g->segments);
        g->segments = segments;
    }
    for (size_t i = 0; i < sizeof g->given_out / sizeof *g->given_out; i++) {
        for (size_t k = 0; g->given_out[i] != NULL && k < g->segment_count; k++) {
            if (g->segments[k] == g->given_out[i] && can_move(g, g->segments[k])) {
                move_segment(g, &g->segments[k]);
                break;
            }
        }
        g->given_out[i] = NULL;
    }
}
#endif

static void release_now(struct segment *s, struct release *r) {
    assert(s->live_records >= r->records && s->live_bytes >= r->bytes);
    s->live_records -= r->records;
    s->live_bytes -= r->bytes;
    r->records = 0;
    r->bytes = 0;
}

/* Takes effect when the newest batch is durable: it has the record that ends these. */
void log_release(struct log *g, struct segment *s, uint64_t records, uint64_t bytes) {
    struct release r = {records, bytes};
    if (g->busy == 0) {
        release_now(s, &r);
        return;
    }
    struct buffer *b = &g->buffers[(g->oldest + g->busy - 1) % g->buffer_count];
    struct release *pending = &s->pending[b->index];
    if (pending->records == 0 && pending->bytes == 0) {
        assert(b->released_count < g->segment_capacity);
        b->released[b->released_count++] = s;
    }
    pending->records += records;
    pending->bytes += bytes;
}

static struct segment *segment_with(struct log *g, uint64_t lsn) {
    struct segment *s = log_segment(g, lsn);
    assert(s != NULL);
    return s;
}

void log_live_record(struct log *g, uint64_t lsn, uint64_t bytes) { log_live(segment_with(g, lsn), 1, bytes); }

void log_release_record(struct log *g, uint64_t lsn, uint64_t bytes) {
    struct segment *s = segment_with(g, lsn);
    log_release(g, s, 1, bytes);
}

void log_live_part(struct log *g, uint64_t lsn, uint64_t bytes) { log_live(segment_with(g, lsn), 0, bytes); }

void log_release_part(struct log *g, uint64_t lsn, uint64_t bytes) { log_release(g, segment_with(g, lsn), 0, bytes); }

/* Records that no undurable batch releases: a relocated record counts until its copy is durable. */
uint64_t log_staying_records(const struct log *g, const struct pin *p) {
    const struct segment *s = p->segment;
    uint64_t leaving = 0;
    for (uint32_t i = 0; i < g->buffer_count; i++) {
        leaving += s->pending[i].records;
    }
    assert(s->live_records >= leaving);
    return s->live_records - leaving;
}

uint64_t log_base_lsn(const struct log *g) { return g->segment_count == 0 ? 0 : g->segments[g->base_index]->first_lsn; }

uint64_t log_named_base_lsn(const struct log *g) { return g->named_base_lsn; }

uint64_t log_head_lsn(const struct log *g) { return g->segments[g->segment_count - 1]->first_lsn; }

uint64_t log_live_bytes(const struct log *g) {
    uint64_t bytes = 0;
    for (size_t i = g->base_index; i < g->segment_count; i++) {
        bytes += g->segments[i]->live_bytes;
    }
    return bytes;
}
