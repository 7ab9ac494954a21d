/*
 * Loading many messages at once, by their ids or from the places of a queue.
 *
 * One round looks up a number of messages under the lock and pins their segments. Without the lock it reads the start
 * records straight into the caller's buffer, neighbours of the log with one call, and verifies each. A message that is
 * not complete in its start record, or whose record cannot be read, is loaded alone by content.c, which also reports
 * the errors.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

enum {
    ROUND_MESSAGES = 256,
    ROUND_FEW = 8,           /* messages of a round with its memory on the calling thread's stack, which may be small */
    ROUND_BYTES = 256 << 10, /* small enough that records are still in the CPU's cache when they are verified */
    COPIED_BYTES = 64 << 10, /* most bytes copied from the write buffers under one hold of the lock */
    RUN_GAP_BYTES = 4096,    /* a smaller gap between two neighbours is read with them, in one call */
};

/* A start record that holds its whole message, and its place in the caller's buffer. */
struct wanted {
    struct pin pin; /* without a segment: the record came from a write buffer */
    uint64_t lsn;
    uint64_t id;
    size_t at;
    uint32_t record_bytes;
    uint32_t content_bytes;
    size_t row; /* index in the caller's spans */
};

struct round {
    uint8_t *into;
    size_t bytes;
    size_t used;
    size_t first; /* first byte of the buffer that this round uses */
    size_t copied;
    size_t count;
    size_t most; /* most messages in this round */
    struct wanted *all;
    ls_span *spans; /* as many spans, for a caller that has none */
};

struct large_round {
    struct wanted all[ROUND_MESSAGES];
    ls_span spans[ROUND_MESSAGES];
};

/* The memory of a call's rounds. */
struct round_memory {
    struct large_round *large; /* NULL: only few are loaded, or there is no memory for more */
    struct wanted few[ROUND_FEW];
    ls_span few_spans[ROUND_FEW];
};

enum fit {
    FITS,
    FITS_ANOTHER_ROUND, /* the round or the buffer is full */
    FITS_NOWHERE,       /* it must be loaded alone */
};

/* Makes memory for n messages. The caller frees memory->large. */
static void make_memory(struct round_memory *memory, size_t n) {
    memory->large = n > ROUND_FEW ? malloc(sizeof *memory->large) : NULL;
}

static void begin_round(struct round *r, struct round_memory *memory, uint8_t *into, size_t bytes, size_t used) {
    r->most = memory->large != NULL ? ROUND_MESSAGES : ROUND_FEW;
    r->all = memory->large != NULL ? memory->large->all : memory->few;
    r->spans = memory->large != NULL ? memory->large->spans : memory->few_spans;
    r->into = into;
    r->bytes = bytes;
    r->used = r->first = used;
    r->copied = r->count = 0;
}

/*
 * Where the record goes in the buffer: at the same distance from the record before it as in the log, if that is short.
 */
static size_t place_of(const struct round *r, const struct pin *pin, uint64_t lsn, uint32_t record_bytes) {
    const struct wanted *before = r->count > 0 ? &r->all[r->count - 1] : NULL;
    if (before == NULL || before->pin.segment != pin->segment || lsn < before->lsn + before->record_bytes) {
        return r->used;
    }
    uint64_t gap = lsn - before->lsn - before->record_bytes;
    return gap <= RUN_GAP_BYTES && gap + record_bytes <= r->bytes - r->used ? r->used + (size_t)gap : r->used;
}

/* Lock held. Copies a record that is still in a write buffer; others are read later. */
static enum fit add(struct log *g, struct round *r, const struct message *m, bool own_header, size_t row) {
    if (own_header || message_content_bytes(m) != m->content_bytes || m->record_bytes > r->bytes) {
        return FITS_NOWHERE;
    }
    if (m->record_bytes > r->bytes - r->used || r->count == r->most || r->copied > COPIED_BYTES ||
        (r->count > 0 && r->used + m->record_bytes - r->first > ROUND_BYTES)) {
        return FITS_ANOTHER_ROUND;
    }
    uint64_t lsn = message_start_lsn(m);
    struct wanted *w = &r->all[r->count];
    const uint8_t *buffered = log_find_record(g, lsn, &w->pin);
    if (buffered == NULL && w->pin.segment == NULL) {
        return FITS_NOWHERE;
    }
    w->lsn = lsn;
    w->id = m->id;
    w->at = place_of(r, &w->pin, lsn, m->record_bytes);
    w->record_bytes = m->record_bytes;
    w->content_bytes = m->content_bytes;
    w->row = row;
    if (buffered != NULL) {
        memcpy(r->into + w->at, buffered, m->record_bytes);
        r->copied += m->record_bytes;
    }
    r->used = w->at + m->record_bytes;
    r->count++;
    return FITS;
}

/* The end of the run of records from `i` on that have the same distances in the buffer as in their file. */
static size_t run_end(const struct round *r, size_t i) {
    const struct wanted *first = &r->all[i], *next = first + 1;
    while (next < r->all + r->count && next->pin.segment == first->pin.segment &&
           next->at - first->at == next->lsn - first->lsn) {
        next++;
    }
    return (size_t)(next - r->all);
}

static bool read_records(const struct log *g, const struct round *r, size_t i, size_t end) {
    const struct wanted *first = &r->all[i], *last = &r->all[end - 1];
    size_t bytes = last->at + last->record_bytes - first->at;
    return log_read(g, &first->pin, first->lsn, r->into + first->at, bytes) == (int64_t)bytes;
}

/* Where header and content are; all zero if the record differs from the table. */
static ls_span span_of(const struct round *round, const struct wanted *w) {
    const uint8_t *at = round->into + w->at;
    struct record r;
    struct message_start m;
    if (format_get_record(at, w->record_bytes, w->pin.seed, w->lsn, &r) != FORMAT_OK || r.id != w->id ||
        format_get_either_start(&r, &m) != FORMAT_OK || m.content_bytes != w->content_bytes) {
        return (ls_span){.content_at = 0};
    }
    return (ls_span){
        .header_at = (uint64_t)(m.header - round->into),
        .content_at = (uint64_t)(m.content - round->into),
        .header_bytes = m.header_bytes,
        .content_bytes = m.content_bytes,
    };
}

static void unpin_round(struct log *g, const struct round *r) {
    for (size_t i = 0; i < r->count; i++) {
        if (r->all[i].pin.segment != NULL) {
            log_unpin(g, &r->all[i].pin);
        }
    }
}

/* The lock is held at call and return, and let go while the device is read. */
static void read_round(struct log *g, const struct round *r, ls_span *spans) {
    if (r->count == 0) {
        return;
    }
    log_let_go(g);
    for (size_t i = 0; i < r->count;) {
        size_t end = run_end(r, i);
        bool there = r->all[i].pin.segment == NULL || read_records(g, r, i, end);
        if (!there && end > i + 1) { /* reads the records one by one */
            end = i + 1;
            there = read_records(g, r, i, end);
        }
        for (; i < end; i++) {
            spans[r->all[i].row] = there ? span_of(r, &r->all[i]) : (ls_span){.content_at = 0};
        }
    }
    log_take_back(g);
    unpin_round(g, r);
}

/* ---- by their ids ---- */

static void gather_ids(ls_store *store, const uint64_t *ids, size_t n, struct round *r) {
    const struct table *t = &store->state.table;
    for (size_t i = 0; i < n && r->count == i; i++) {
        uint32_t number = table_find(t, ids[i]);
        if (number == INDEX_NONE || add(store->log, r, table_message(t, number), false, i) != FITS) {
            return;
        }
    }
}

/* Moves header and content to *used, directly after the message before. */
static void pack(uint8_t *into, const ls_span *span, uint64_t sizes[2], size_t *used) {
    assert(span->header_at >= *used && span->content_at >= span->header_at + span->header_bytes);
    memmove(into + *used, into + span->header_at, span->header_bytes);
    *used += span->header_bytes;
    memmove(into + *used, into + span->content_at, span->content_bytes);
    *used += span->content_bytes;
    sizes[0] = span->header_bytes;
    sizes[1] = span->content_bytes;
}

static int load_many(ls_store *store, struct round_memory *memory, const uint64_t *ids, size_t n, uint8_t *into,
                     size_t bytes, uint64_t *sizes, size_t *done) {
    int rc = LS_OK;
    bool fits = true;
    size_t used = 0;
    while (rc == LS_OK && fits && *done < n) {
        struct round r;
        size_t loaded = 0;
        begin_round(&r, memory, into, bytes, used);
        gather_ids(store, ids + *done, n - *done, &r);
        read_round(store->log, &r, r.spans);
        for (; loaded < r.count && r.spans[loaded].content_at != 0; loaded++, (*done)++) {
            pack(into, &r.spans[loaded], &sizes[2 * *done], &used);
        }
        if (r.count == 0 || loaded < r.count) {
            uint64_t *both = &sizes[2 * *done];
            rc = content_load_whole(store, ids[*done], into + used, bytes - used, both, &fits);
            if (rc == LS_OK && fits) {
                used += (size_t)(both[0] + both[1]);
                (*done)++;
            }
        }
    }
    return rc;
}

int ls_load_many(ls_store *store, const uint64_t *ids, size_t n, uint8_t *into, size_t bytes, uint64_t *sizes,
                 size_t *done) {
    *done = 0;
    struct round_memory memory;
    make_memory(&memory, n);
    int rc = store_enter(store);
    if (rc == LS_OK) {
        rc = load_many(store, &memory, ids, n, into, bytes, sizes, done);
        rc = store_leave(store, rc, LEAVE_QUIETLY);
    }
    free(memory.large);
    return rc;
}

/* ---- of deliveries ---- */

/* False: all are looked up, or the buffer is full. */
static bool gather_deliveries(ls_store *store, const ls_delivery *deliveries, ls_span *spans, size_t n, struct round *r,
                              size_t *done) {
    const struct table *t = &store->state.table;
    enum fit fit = FITS;
    while (*done < n && fit != FITS_ANOTHER_ROUND) {
        const ls_delivery *d = &deliveries[*done];
        uint32_t number = table_find_at(t, d->number, d->id);
        const struct message *m = number != INDEX_NONE ? table_message(t, number) : NULL;
        spans[*done] = (ls_span){.content_at = 0};
        fit = m != NULL ? add(store->log, r, m, d->has_header != 0, *done) : FITS_NOWHERE;
        if (fit != FITS_ANOTHER_ROUND) {
            (*done)++;
        } else if (m->record_bytes > r->bytes - r->used) {
            return false;
        }
    }
    return *done < n;
}

int ls_load_acquired(ls_store *store, const ls_delivery *deliveries, size_t n, ls_span *spans, uint8_t *into,
                     size_t bytes, size_t *done) {
    *done = 0;
    struct round_memory memory;
    make_memory(&memory, n);
    int rc = store_enter(store);
    if (rc == LS_OK) {
        size_t used = 0;
        for (bool more = n > 0; more;) {
            struct round r;
            begin_round(&r, &memory, into, bytes, used);
            more = gather_deliveries(store, deliveries, spans, n, &r, done);
            used = r.used;
            read_round(store->log, &r, spans);
        }
        rc = store_leave(store, LS_OK, LEAVE_QUIETLY);
    }
    free(memory.large);
    return rc;
}

/* ---- from the places of a queue ---- */

/* False: no place is left for now, or the buffer is full. */
static bool gather_places(ls_cursor *cursor, ls_place *places, ls_span *spans, size_t n, struct round *r,
                          size_t *done) {
    enum fit fit = FITS;
    while (*done < n && fit != FITS_ANOTHER_ROUND) {
        const struct message *m = cursor_place(cursor, &places[*done]);
        if (m == NULL) {
            return false;
        }
        spans[*done] = (ls_span){.content_at = 0};
        fit = add(cursor->store->log, r, m, places[*done].has_header != 0, *done);
        if (fit == FITS && r->all[r->count - 1].pin.segment != NULL) {
            log_read_in_order(cursor->store->log, &r->all[r->count - 1].pin);
        }
        if (fit != FITS_ANOTHER_ROUND) {
            cursor_step(&cursor->cursor);
            (*done)++;
        } else if (m->record_bytes > r->bytes - r->used) {
            return false;
        }
    }
    return *done < n;
}

static int load_places(ls_cursor *cursor, struct round_memory *memory, ls_place *places, ls_span *spans, size_t n,
                       uint8_t *into, size_t bytes, size_t *done) {
    if (cursor->cursor.queue == NULL) {
        return fail(LS_UNKNOWN_QUEUE, "the queue was deleted");
    }
    size_t used = 0;
    for (bool more = true; more;) {
        struct round r;
        begin_round(&r, memory, into, bytes, used);
        more = gather_places(cursor, places, spans, n, &r, done);
        used = r.used;
        read_round(cursor->store->log, &r, spans);
    }
    return LS_OK;
}

int ls_cursor_load(ls_cursor *cursor, ls_place *places, ls_span *spans, size_t n, uint8_t *into, size_t bytes,
                   size_t *done) {
    *done = 0;
    struct round_memory memory;
    make_memory(&memory, n);
    int rc = store_enter(cursor->store);
    if (rc == LS_OK) {
        rc = load_places(cursor, &memory, places, spans, n, into, bytes, done);
        rc = store_leave(cursor->store, rc, LEAVE_QUIETLY);
    }
    free(memory.large);
    return rc;
}
