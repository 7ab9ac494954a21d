/*
 * Relocation: the live records of the oldest segment are copied to the head, under their old ids, so that the base can pass
 * it. The segment is read once, and each record is given to the client of its stream.
 *
 * The segment is read and checked without the lock. A client moves a record that it still needs under the lock: log_reserve
 * first (it may wait, so everything is looked up again after it), then the copy of the state at that very moment, then its
 * own memory and the live counts. The old place stays counted until the batch with the new one is durable, so a crash at
 * any moment finds one or the other.
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
    const struct log_client *c = log_client_of(&v->g->clients, r->type);
    return c != NULL && c->calls->relocate != NULL ? c->calls->relocate(c->context, v, r) : LS_OK;
}

/* The records that stand whole in the window, each checked; *used says how many bytes they are. */
static int give_window(struct mover *v, uint64_t lsn, size_t bytes, size_t *used) {
    struct log *g = v->g;
    unsigned since = 0;
    *used = 0;
    while (*used < bytes) {
        struct record r;
        enum format_result why = format_get_known_record(v->window + *used, bytes - *used, v->victim->seed, lsn + *used,
                                                         &g->clients.known, &r);
        if (why == FORMAT_SHORT) {
            return LS_OK;
        }
        if (why != FORMAT_OK) {
            return fail_at(LS_CORRUPT, v->victim->first_lsn, lsn + *used,
                           "a segment that is to be moved is damaged (%s)", format_result_text(why));
        }
        int rc = give_record(v, &r);
        if (rc != LS_OK) {
            return rc;
        }
        *used += r.length;
        if (++since == RECORDS_AT_ONCE) {
            since = 0;
            log_unlock_for_io(g); /* others get their turn */
            log_relock_after_io(g);
        }
        if (g->stopping || !g->serving) {
            return fail(LS_CLOSED, "the store is being closed");
        }
    }
    return LS_OK;
}

/* Records of it that no batch on its way lets go: what is moved counts there until its copy is durable. */
static uint64_t staying_records(const struct log *g, const struct segment *s) {
    uint64_t leaving = 0;
    for (uint32_t i = 0; i < g->buffer_count; i++) {
        leaving += s->pending[i].records;
    }
    assert(s->live_records >= leaving);
    return s->live_records - leaving;
}

static int read_and_move(struct mover *v) {
    struct log *g = v->g;
    struct segment *s = v->victim;
    uint64_t lsn = s->first_lsn + SEGMENT_HEADER_BYTES;
    for (;;) {
        spares_pace(g, lsn - s->first_lsn);
        if (lsn >= s->end_lsn || staying_records(g, s) == 0) {
            return LS_OK;
        }
        if (g->stopping || !g->serving) {
            return fail(LS_CLOSED, "the store is being closed");
        }
        size_t want = s->end_lsn - lsn < v->window_bytes ? (size_t)(s->end_lsn - lsn) : v->window_bytes;
        int file = log_segment_file(g, s);
        log_unlock_for_io(g);
        int64_t got = file < 0 ? file : io_read(g->v, file, v->window, want, lsn - s->first_lsn);
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
    for (size_t i = 0; i < v->g->clients.count; i++) {
        const struct log_client *c = &v->g->clients.all[i];
        int ended = c->calls->relocate_end != NULL ? c->calls->relocate_end(c->context, v, rc) : rc;
        rc = rc != LS_OK ? rc : ended; /* no client hides an earlier failure */
    }
    return rc;
}

int relocate_segment(struct log *g, struct segment *victim) {
    struct mover v = {
        .g = g,
        .victim = victim,
        .head_lsn = g->segments[g->segment_count - 1]->first_lsn,
        .window_bytes = g->batch_bytes_max,
    };
    v.window = malloc(v.window_bytes);
    if (v.window == NULL) {
        return fail_memory();
    }
    victim->readers++; /* its file stays open, and the segment where it is */
    int rc = end_clients(&v, read_and_move(&v));
    log_unpin(g, victim);
    free(v.window);
    return rc;
}

/* ---- for clients ---- */

void relocate_append(struct mover *v, const struct slot *s, uint16_t type, uint32_t bytes) {
    log_append(v->g, s, type, bytes);
    v->g->stats.relocated_bytes += bytes;
}

uint64_t relocate_copy(struct mover *v, const struct record *r, uint16_t flags) {
    struct slot s = log_slot(v->g, r->id, r->lsn, flags | FLAG_COPY);
    uint32_t bytes =
        format_put_body(&s, r->type, r->bytes + RECORD_HEADER_BYTES, r->length - (uint32_t)RECORD_HEADER_BYTES);
    relocate_append(v, &s, r->type, bytes);
    log_release_record(v->g, r->lsn, r->length);
    log_live_record(v->g, s.lsn, bytes);
    return s.lsn;
}
