/*
 * Reading records back: from a write buffer while their batch has it, then from their segment's file without the lock.
 * A pinned segment keeps its place and its open file meanwhile. See log.h.
 */
#include <assert.h>

#include "os/io.h"
#include "log/parts.h"

static inline struct segment *segment_with(struct log *g, uint64_t lsn) {
    struct segment *s = log_segment(g, lsn);
    assert(s != NULL);
    return s;
}

/* ---- files ---- */

/* When too many are open, closes the handles of sealed segments without readers, the oldest first. */
void log_close_idle_files(struct log *g) {
    for (size_t i = 0; i + 1 < g->segment_count && g->open_files >= OPEN_FILES_MAX; i++) {
        struct segment *s = g->segments[i];
        if (s->file >= 0 && s->readers == 0 && s->end_lsn != 0 && s->end_lsn <= g->front.forced_lsn) {
            (void)g->v->close(g->v, s->file);
            s->file = -1;
            g->open_files--;
        }
    }
}

int log_segment_file(struct log *g, struct segment *s) {
    if (s->file < 0) {
        log_close_idle_files(g);
        char name[SEGMENT_NAME_BYTES];
        format_segment_name(name, s->first_lsn);
        s->file = g->v->open(g->v, g->dir, name, VFS_WRITE);
        g->open_files += s->file >= 0 ? 1 : 0;
        s->read_in_order = false;
    }
    return s->file;
}

/* ---- pins ---- */

uint64_t log_segment_lsn(struct log *g, uint64_t lsn) {
    const struct segment *s = log_segment(g, lsn);
    return s != NULL ? s->first_lsn : 0;
}

struct pin segment_pin(struct segment *s) {
    s->readers++;
    return (struct pin){.segment = s, .first_lsn = s->first_lsn, .seed = s->seed, .file = -1};
}

int log_open_pinned(struct log *g, struct pin *p) {
    p->file = log_segment_file(g, p->segment);
    return p->file < 0 ? p->file : 0;
}

/* 0, or -errno. */
static inline int pin_open(struct log *g, struct segment *s, struct pin *p) {
    p->file = s->file >= 0 ? s->file : log_segment_file(g, s);
    if (p->file < 0) {
        return p->file;
    }
    p->segment = s;
    s->readers++;
    return 0;
}

int log_pin(struct log *g, uint64_t lsn, struct pin *p) {
    struct segment *s = segment_with(g, lsn);
    *p = (struct pin){.first_lsn = s->first_lsn, .seed = s->seed};
    return pin_open(g, s, p);
}

/* ---- records ---- */

const uint8_t *log_buffered(struct log *g, uint64_t lsn) {
    for (uint32_t i = 0; i < g->busy; i++) {
        struct buffer *b = &g->buffers[(g->oldest + i) % g->buffer_count];
        if (lsn >= b->start_lsn && lsn < b->end_lsn) {
            return log_buffer_at(b, lsn);
        }
    }
    return NULL;
}

const uint8_t *log_find_record(struct log *g, uint64_t lsn, struct pin *p) {
    struct segment *s = segment_with(g, lsn);
    const uint8_t *buffered = log_buffered(g, lsn);
    p->segment = NULL;
    p->first_lsn = s->first_lsn;
    p->seed = s->seed;
    if (buffered == NULL) {
        (void)pin_open(g, s, p);
    }
    return buffered;
}

int64_t log_read(const struct log *g, const struct pin *p, uint64_t lsn, void *into, size_t bytes) {
    return io_read(g->v, p->file, into, bytes, lsn - p->first_lsn);
}

void log_read_in_order(struct log *g, const struct pin *p) {
    if (!p->segment->read_in_order) {
        (void)g->v->advise_sequential(g->v, p->file, 0, g->segment_size);
        p->segment->read_in_order = true;
    }
}

uint64_t log_pinned_end_lsn(const struct log *g, const struct pin *p) {
    uint64_t end_lsn = p->segment->end_lsn, forced_lsn = g->front.forced_lsn;
    return end_lsn != 0 && end_lsn < forced_lsn ? end_lsn : forced_lsn;
}

/* The last reader of a segment without a name frees it. */
static void last_reader_left(struct log *g, struct segment *s) {
    if (g->space.reader_awaited) {
        g->space.reader_awaited = false;
        g->spare_thread.wanted = true;
        (void)pthread_cond_broadcast(&g->spare_thread.wake);
    }
    for (struct segment **link = &g->space.unnamed_segments; *link != NULL; link = &(*link)->next_spare) {
        if (*link == s) {
            *link = s->next_spare;
            segment_free(g, s);
            return;
        }
    }
}

void log_unpin(struct log *g, struct pin *p) {
    struct segment *s = p->segment;
    p->segment = NULL;
    if (--s->readers == 0) {
        last_reader_left(g, s);
    }
}
