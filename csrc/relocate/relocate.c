/*
 * Relocation: the live records of the oldest segment are copied to the head, under their old ids, so that the base can pass
 * it. The segment is read once, and each record is given to the client of its stream.
 *
 * The segment is read and checked without the lock. A client moves a record that it still needs under the lock:
 * log_reserve first (it may wait, so everything is looked up again after it), then the copy of the state at that very
 * moment, then its own memory and the live counts. The old record stays counted until the batch with its copy is
 * durable, so after a crash at any moment one of the two is in the log.
 */
#include "relocate/relocate.h"

#include <assert.h>
#include <stdlib.h>

#include "os/io.h"
#include "read/damage.h"

enum { RECORDS_AT_ONCE = 64 };

static int give_record(struct mover *v, const struct record *r) {
    struct batch b;
    if (r->type == BATCH) {
        v->time_us = format_get_batch(r, &b) == FORMAT_OK ? b.time_us : 0;
        return LS_OK;
    }
    const struct log_client *c = log_client_of(log_clients(v->g), r->type);
    return c != NULL && c->calls->relocate != NULL ? c->calls->relocate(c->context, v, r) : LS_OK;
}

/* Checks the records that are complete in the window and gives each to its client; *used is their size in bytes. */
static int give_window(struct mover *v, uint64_t lsn, size_t bytes, size_t *used) {
    struct log *g = v->g;
    unsigned since = 0;
    *used = 0;
    while (*used < bytes) {
        struct record r;
        enum format_result why = format_get_known_record(v->window + *used, bytes - *used, v->victim.seed, lsn + *used,
                                                         &log_clients(g)->known, &r);
        if (why == FORMAT_SHORT) {
            return LS_OK;
        }
        if (why != FORMAT_OK) {
            return fail_at(LS_CORRUPT, v->victim.first_lsn, lsn + *used,
                           "a segment that is to be moved is damaged (%s)", format_result_text(why));
        }
        int rc = give_record(v, &r);
        if (rc != LS_OK) {
            return rc;
        }
        *used += r.length;
        if (++since == RECORDS_AT_ONCE) {
            since = 0;
            log_unlock_for_io(g); /* lets other threads take the lock */
            log_relock_after_io(g);
        }
        if (!log_serves(g)) {
            return fail(LS_CLOSED, "the store is being closed");
        }
    }
    return LS_OK;
}

static int read_and_move(struct mover *v) {
    struct log *g = v->g;
    struct pin *s = &v->victim;
    uint64_t lsn = s->first_lsn + SEGMENT_HEADER_BYTES;
    for (;;) {
        relocation_keep_pace(g, lsn - s->first_lsn);
        if (lsn >= v->end_lsn || log_staying_records(g, s) == 0) {
            return LS_OK;
        }
        if (!log_serves(g)) {
            return fail(LS_CLOSED, "the store is being closed");
        }
        size_t want = v->end_lsn - lsn < v->window_bytes ? (size_t)(v->end_lsn - lsn) : v->window_bytes;
        int opened = log_open_pinned(g, s);
        log_unlock_for_io(g);
        int64_t got = opened < 0 ? opened : log_read(g, s, lsn, v->window, want);
        log_relock_after_io(g);
        if (got < 0) {
            return fail_errno(LS_IO, (int)-got, "a segment cannot be read");
        }
        size_t used;
        int rc = give_window(v, lsn, (size_t)got, &used);
        if (rc != LS_OK) {
            return rc;
        }
        if (used == 0) {
            return fail_at(LS_CORRUPT, s->first_lsn, lsn, "a segment that is to be moved is cut short");
        }
        lsn += used;
    }
}

static int end_clients(struct mover *v, int rc) {
    const struct log_clients *clients = log_clients(v->g);
    for (size_t i = 0; i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        int ended = c->calls->relocate_end != NULL ? c->calls->relocate_end(c->context, v, rc) : rc;
        rc = rc != LS_OK ? rc : ended; /* keeps an earlier failure */
    }
    return rc;
}

int relocate_segment(struct log *g, const struct pin *victim) {
    struct mover v = {
        .g = g,
        .victim = *victim,
        .end_lsn = log_pinned_end_lsn(g, victim),
        .head_lsn = log_head_lsn(g),
        .window_bytes = log_window_bytes(g),
    };
    v.window = malloc(v.window_bytes);
    if (v.window == NULL) {
        return fail_memory();
    }
    int rc = end_clients(&v, read_and_move(&v));
    free(v.window);
    return rc;
}

/* ---- for clients ---- */

uint64_t relocate_copy(struct mover *v, const struct record *r, uint16_t flags) {
    struct slot s = log_slot(v->g, r->id, r->lsn, flags | FLAG_COPY);
    uint32_t bytes =
        format_put_body(&s, r->type, r->bytes + RECORD_HEADER_BYTES, r->length - (uint32_t)RECORD_HEADER_BYTES);
    log_append_copy(v->g, &s, r->type, bytes);
    log_release_record(v->g, r->lsn, r->length);
    log_live_record(v->g, s.lsn, bytes);
    return s.lsn;
}
