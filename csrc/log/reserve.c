/*
 * Makes room for an append: in the open buffer, in the current segment, or by a switch to the next segment, which takes
 * a spare. Only this file makes an append wait (for a buffer, a spare, relocation, or max_undurable_bytes), and only
 * this file refuses appends to a full store. See log.h for what always holds.
 */
#include <assert.h>
#include <string.h>

#include "log/parts.h"

/* Whether the current segment has room for these bytes, and after them for the end of the segment. */
static bool segment_has_room(const struct log *g, uint64_t bytes) {
    uint64_t from = g->open != NULL ? g->front.append_lsn : g->front.append_lsn + BATCH_RECORD_BYTES;
    return from + bytes + SEGMENT_END_RESERVE <= log_segment_end(g);
}

static void count_types(struct log *g, struct footer *f) {
    g->footer.type_counts[format_type_ordinal(BATCH)] =
        g->footer.batches + 1; /* with the batch that holds the footer */
    for (uint32_t i = 0; i < TYPES_COUNTED; i++) {
        if (g->footer.type_counts[i] > 0 && format_types[i].type != FOOTER) {
            f->counts[f->n++] = (struct footer_count){format_types[i].type, g->footer.type_counts[i]};
        }
    }
}

/* The current segment ends with its footer and the next one, a spare, begins. Nothing here can fail. */
static void switch_segment(struct log *g, enum purpose purpose) {
    struct segment *old = g->segments[g->segment_count - 1];
    struct slot s = log_slot(g, 0, 0, 0);
    struct footer f = {
        .last_lsn = g->footer.last_lsn > old->first_lsn ? g->footer.last_lsn : g->open->start_lsn,
        .bytes = s.lsn - old->first_lsn - SEGMENT_HEADER_BYTES,
        .batches = g->footer.batches + 1,
    };
    count_types(g, &f);
    log_append_at_end(g, &s, FOOTER, format_put_footer(&s, &f));
    log_seal_open(g);
    old->end_lsn = g->front.end_lsn;
    memset(g->footer.type_counts, 0, sizeof g->footer.type_counts);
    g->footer.batches = 0;
    struct segment *next = spares_take(g);
    if (purpose != RESERVE_MOVES) { /* a move checks the spares anyway, and must not cause the next move */
        g->spare_thread.wanted = true;
        (void)pthread_cond_signal(&g->spare_thread.wake);
    }
    next->prev_end_lsn = old->end_lsn;
    g->segments[g->segment_count++] = next;
    others_count(g);
    g->front.append_lsn = next->first_lsn + SEGMENT_HEADER_BYTES;
    log_close_idle_files(g);
    for (size_t i = 0; i < g->clients.count; i++) {
        const struct log_client *c = &g->clients.all[i];
        if (c->calls->segment_begun != NULL) {
            c->calls->segment_begun(c->context);
        }
    }
    log_flush_soon(g);
}

/* A buffer is free, and no other thread comes first. */
static bool may_open_buffer(const struct log *g, bool called) {
    return g->busy < g->buffer_count && (called || !log_room_is_awaited(g));
}

/* (waits) Gets what a switch needs: an open buffer for the footer, a spare, and memory for one more segment. */
static int prepare_switch(struct log *g, uint64_t bytes, enum purpose purpose, bool *called, bool *ready) {
    *ready = false;
    if (!spares_allow(g, purpose)) {
        return spares_need(g, purpose);
    }
    if (purpose == RESERVE_GROWS && relocation_is_behind(g) && !ahead_is_answered(g)) {
        uint64_t full_lsn = g->segments[g->segment_count - 1]->first_lsn;
        spares_try(g); /* relocation has fallen behind: appends that make the log longer wait for it */
        if (full_lsn != g->segments[g->segment_count - 1]->first_lsn || !log_takes_records(g) || g->poison != 0) {
            return LS_OK; /* the move or another thread has begun another segment, or the log takes no more records */
        }
    }
    if (!spares_allow(g, purpose)) {
        return LS_OK;
    }
    if (g->open == NULL && !may_open_buffer(g, *called)) {
        return log_wait_for_room(g, bytes, called);
    }
    int rc = log_reserve_segment(g);
    if (rc == LS_OK && g->open == NULL) {
        log_open_buffer(g);
    }
    *ready = rc == LS_OK;
    return rc;
}

/* (waits) Makes one step towards room. LS_OK: the caller checks again. */
static int make_room(struct log *g, uint64_t bytes, enum purpose purpose, bool *called) {
    if (!segment_has_room(g, bytes)) {
        bool ready;
        int rc = prepare_switch(g, bytes, purpose, called, &ready);
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
    if (!may_open_buffer(g, *called)) {
        return log_wait_for_room(g, bytes, called);
    }
    log_open_buffer(g);
    return LS_OK;
}

/*
 * Only after the spare thread has tried to make one more spare, or has relocated all it can, is it known whether the
 * log may grow. Until then appends that grow the log stop in the middle of the current segment: the rest is for
 * dequeues, which make room.
 */
static bool spare_thread_is_behind(const struct log *g) {
    bool half_way = g->front.append_lsn + g->segment_size / 2 > log_segment_end(g);
    bool asked = g->space.asked_lsn == g->segments[g->segment_count - 1]->first_lsn;
    return log_spares(g) < g->space.needs.spares_reserved ||
           (log_spares(g) == g->space.needs.spares_reserved && half_way && !asked);
}

static bool is_admitted(enum purpose purpose) {
    return purpose == RESERVE_GROWS || purpose == RESERVE_WORK || purpose == RESERVE_EXCHANGE;
}

/* Whether the append must first call admission_admit, which looks for another spare or computes the live bytes. */
static bool must_ask(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose) {
    return is_admitted(purpose) &&
           (!admission_has_room(g, bytes, expansion, purpose) ||
            (purpose == RESERVE_GROWS && (log_cannot_grow(g) ? over_admission_limit(g) : spare_thread_is_behind(g))));
}

/* Gives up after two relocation passes over the log in which no thread got room. */
struct pass_limit {
    uint64_t room_given;
    uint64_t relocated_max;
};

static bool passes_found_no_room(const struct log *g, struct pass_limit *p, enum purpose purpose) {
    if (p->room_given != g->space.room_given || p->relocated_max == 0) {
        p->room_given = g->space.room_given;
        p->relocated_max = g->stats.segments_relocated + 2 * g->segment_count + 16;
    }
    return log_cannot_grow(g) && g->stats.segments_relocated > p->relocated_max && !spares_allow(g, purpose);
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static bool too_much_is_undurable(const struct log *g, uint64_t bytes) {
    return g->busy > 0 &&
           g->front.append_lsn + BATCH_RECORD_BYTES + bytes - g->front.durable_lsn > g->max_undurable_bytes;
}

/* Bytes, at most `room`, that appends put into buffers without waiting for one. */
static uint64_t room_in_buffers(const struct log *g, uint64_t room) {
    if (g->busy == 0) {
        return room;
    }
    if (log_room_is_awaited(g) || (g->busy == g->buffer_count && g->open == NULL)) {
        return 0;
    }
    if (g->busy == g->buffer_count) {
        uint64_t taken = g->open->end_lsn - g->open->start_lsn + FOOTER_BYTES_MAX;
        uint64_t at = g->front.append_lsn + SEGMENT_END_RESERVE, end = log_segment_end(g);
        room = g->batch_bytes_max > taken ? least(room, g->batch_bytes_max - taken) : 0;
        room = end > at ? least(room, end - at) : 0;
    }
    uint64_t undurable = g->front.append_lsn + BATCH_RECORD_BYTES - g->front.durable_lsn;
    return g->max_undurable_bytes > undurable ? least(room, g->max_undurable_bytes - undurable) : 0;
}

uint32_t log_room_percent(struct log *g) {
    uint64_t whole = log_batch_room(g);
    if (g->poison != 0 || !log_takes_records(g)) {
        return 100; /* an append fails at once */
    }
    return (uint32_t)(least(room_in_buffers(g, whole), ahead_room(g, whole)) * 100 / whole);
}

/*
 * Reserves room that is there now. LS_WOULD_WAIT: reserve() would first wait, write or make a spare; nothing was
 * changed.
 */
static int reserve_at_once(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose) {
    bool ready = log_takes_records(g) && g->poison == 0 && !(g->relocation.moving && g->space.spare_count == 0) &&
                 !(g->spare_thread.wanted && !g->threads_running) && segment_has_room(g, bytes) &&
                 !too_much_is_undurable(g, bytes) && !must_ask(g, bytes, expansion, purpose) &&
                 !(is_admitted(purpose) && log_can_write_early(g));
    ready = ready && (g->open != NULL ? log_buffer_has_room(g, bytes) : may_open_buffer(g, false));
    if (!ready) {
        return LS_WOULD_WAIT;
    }
    if (g->open == NULL) {
        log_open_buffer(g);
    }
    g->space.room_given++;
    g->front.reserved_room = bytes;
    if (purpose == RESERVE_GROWS) {
        admission_note_growth(g);
    }
    return LS_OK;
}

static int reserve(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose) {
    assert(bytes <= log_batch_room(g));
    if (g->front.trying) {
        return reserve_at_once(g, bytes, expansion, purpose);
    }
    struct pass_limit limit = {.relocated_max = 0};
    bool called = false; /* this thread waited for room in a buffer, and was called */
    log_may_wait(g);
    for (;;) {
        int rc = LS_OK;
        if (!log_takes_records(g)) {
            return log_fail_closed();
        }
        if (g->poison != 0) {
            return log_fail_poisoned(g, LS_POISONED);
        }
        if (purpose != RESERVE_MOVES && g->relocation.moving &&
            g->space.spare_count == 0) { /* a move has taken the last spare: wait until it ends */
            log_wait(g, &g->spare_thread.done);
            continue;
        }
        if (g->spare_thread.wanted && !g->threads_running && !g->stopping && !g->relocation.moving) {
            /* without threads the caller does the spare thread's work */
            g->spare_thread.wanted = false;
            (void)spares_keep(g);
        }
        if (must_ask(g, bytes, expansion, purpose)) {
            rc = admission_admit(g, bytes, expansion, purpose);
            if (rc != LS_OK) {
                return rc;
            }
            if (!admission_has_room(g, bytes, expansion, purpose)) {
                continue; /* what was made has been taken meanwhile */
            }
        }
        if (!log_takes_records(g) || g->poison != 0) {
            continue; /* a move took the last spare while this thread waited to grow */
        }
        if (too_much_is_undurable(g, bytes)) {
            rc = log_progress(g);
        } else if (is_admitted(purpose) && log_can_write_early(g)) {
            log_write_early(g);
        } else if (g->open != NULL && segment_has_room(g, bytes) && log_buffer_has_room(g, bytes)) {
            g->space.room_given += purpose != RESERVE_MOVES ? 1 : 0;
            g->front.reserved_room = bytes;
            if (purpose == RESERVE_GROWS) {
                admission_note_growth(g);
            }
            return LS_OK;
        } else {
            rc = make_room(g, bytes, purpose, &called);
        }
        if (rc == LS_OK && passes_found_no_room(g, &limit, purpose)) {
            rc = admission_fail_full(g);
        }
        if (rc != LS_OK) {
            return rc;
        }
    }
}

/* ---- a run of records ---- */

/* The first LSN at which reserve() would have to do more than count the bytes. */
static uint64_t run_end_lsn(const struct log *g) {
    uint64_t segment_end = log_segment_end(g);
    uint64_t end = least(g->open->start_lsn + g->batch_bytes_max - FOOTER_BYTES_MAX, segment_end - SEGMENT_END_RESERVE);
    end = least(end, g->front.durable_lsn + g->max_undurable_bytes - BATCH_RECORD_BYTES);
    end = least(end, log_early_at(g));
    bool asked = g->space.asked_lsn == g->segments[g->segment_count - 1]->first_lsn;
    if (log_spares(g) == g->space.needs.spares_reserved && !asked) {
        end = least(end, segment_end - g->segment_size / 2);
    }
    return log_spares(g) < g->space.needs.spares_reserved ? 0 : end;
}

struct run_room log_run_room(const struct log *g, uint64_t expansion) {
    struct run_room none = {0, 0};
    bool is_for_spare_thread = g->spare_thread.wanted && !g->threads_running;
    if (g->open == NULL || g->poison != 0 || !log_takes_records(g) || is_for_spare_thread ||
        (g->relocation.moving && g->space.spare_count == 0)) {
        return none;
    }
    uint64_t end = run_end_lsn(g), room = admission_room(g, expansion);
    return (struct run_room){
        .bytes = end > g->front.append_lsn ? least(end - g->front.append_lsn, room) : 0,
        .record_bytes = least(g->space.needs.gap_bytes, g->record_bytes_max),
    };
}

void log_reserve_run(struct log *g, uint64_t bytes) {
    assert(bytes <= log_run_room(g, 0).bytes);
    admission_note_growth(g);
    g->space.room_given++;
    g->front.reserved_room = bytes;
}

int log_reserve(struct log *g, uint64_t bytes, enum purpose purpose) { return reserve(g, bytes, 0, purpose); }

int log_reserve_to_grow(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose) {
    return reserve(g, bytes, expansion, purpose);
}
