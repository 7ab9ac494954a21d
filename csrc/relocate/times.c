/*
 * Learns when a message's places became visible, for the states that relocations write, and for a caller. No failure here
 * fails a move: a time that cannot be found cheaply and exactly is written as unknown. A caller gets the failure. The
 * sources are an earlier state, an inline copy, or the batch of the order LSN while the log has it. While one segment
 * is being moved, the times of all batches of a few segments are kept.
 */
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "read/damage.h"
#include "relocate/parts.h"

enum {
    WINDOW_BYTES = 64 << 10,
    ASKS_MAX = 4, /* of one place, whose message is moved in between */
};

void messages_forget_times(struct move_times *times) {
    for (unsigned i = 0; i < times->index_count; i++) {
        free(times->indexes[i].at);
    }
    times->index_count = 0;
}

void times_free(struct message_mover *v) { messages_forget_times(&v->times); }

void times_unlock_for_io(const struct message_mover *v) {
    if (v->asks_only) {
        log_let_go(v->g);
    } else {
        log_unlock_for_io(v->g);
    }
}

void times_relock_after_io(const struct message_mover *v) {
    if (v->asks_only) {
        log_take_back(v->g);
    } else {
        log_relock_after_io(v->g);
    }
}

uint64_t times_known(const struct move_times *t, uint64_t order_lsn) {
    for (unsigned i = 0; t != NULL && i < t->known_count; i++) {
        if (t->known[i].lsn == order_lsn) {
            return t->known[i].time_us;
        }
    }
    return 0;
}

/* ---- batches of a segment ---- */

static bool index_batch(struct time_index *x, uint64_t lsn, uint64_t time_us) {
    if (!array_grow(&x->at, &x->capacity, x->count, 1)) {
        return false;
    }
    x->at[x->count++] = (struct lsn_time){.lsn = lsn, .time_us = time_us};
    return true;
}

/* Reads batch after batch up to the limit. No lock is held. LS_NO_MEMORY, LS_IO, LS_CORRUPT. */
static int index_file(const struct log *g, const struct pin *p, uint64_t limit_lsn, uint8_t *window,
                      struct time_index *x) {
    uint64_t lsn = x->end_lsn, window_lsn = lsn, bytes = 0;
    while (lsn < limit_lsn) {
        if (lsn + BATCH_RECORD_BYTES > window_lsn + bytes) {
            int64_t got = log_read(g, p, lsn, window, WINDOW_BYTES);
            if (got < 0) {
                return fail_errno(LS_IO, (int)-got, "a segment cannot be read");
            }
            window_lsn = lsn;
            bytes = (uint64_t)got;
        }
        struct record r;
        struct batch b;
        uint64_t at = lsn - window_lsn;
        if (bytes < at + BATCH_RECORD_BYTES ||
            format_get_record(window + at, (size_t)(bytes - at), p->seed, lsn, &r) != FORMAT_OK ||
            format_get_batch(&r, &b) != FORMAT_OK) {
            return fail_at(LS_CORRUPT, p->first_lsn, lsn, "the record of a batch is damaged");
        }
        if (!index_batch(x, lsn, b.time_us)) {
            return fail_memory();
        }
        lsn += b.bytes;
        x->end_lsn = lsn;
    }
    return LS_OK;
}

/* The index of the segment, perhaps a new one without batches. NULL: there are too many; one that only asks drops the
   oldest instead. */
static struct time_index *find_index(struct move_times *t, uint64_t first_lsn, bool drops) {
    for (unsigned i = 0; i < t->index_count; i++) {
        if (t->indexes[i].first_lsn == first_lsn) {
            return &t->indexes[i];
        }
    }
    if (t->index_count == TIME_INDEXES && !drops) {
        return NULL;
    }
    if (t->index_count == TIME_INDEXES) {
        free(t->indexes[0].at);
        memmove(t->indexes, t->indexes + 1, --t->index_count * sizeof t->indexes[0]);
    }
    struct time_index *x = &t->indexes[t->index_count++];
    *x = (struct time_index){.first_lsn = first_lsn, .end_lsn = first_lsn + SEGMENT_HEADER_BYTES};
    return x;
}

/* (waits) Returns the times of the durable batches in the segment that holds lsn, at least up to that of lsn. */
static const struct time_index *index_segment(struct message_mover *v, uint64_t lsn) {
    struct log *g = v->g;
    struct time_index *x = find_index(&v->times, log_segment_lsn(g, lsn), v->asks_only);
    if (x == NULL || lsn < x->end_lsn) {
        return x;
    }
    uint8_t *window = malloc(WINDOW_BYTES);
    if (window == NULL) {
        v->time_failure = fail_memory();
        return x;
    }
    struct pin p;
    int sys = log_pin(g, lsn, &p);
    if (sys == 0) {
        uint64_t limit_lsn = log_pinned_end_lsn(g, &p);
        times_unlock_for_io(v);
        int rc = index_file(g, &p, limit_lsn, window, x);
        times_relock_after_io(v);
        log_unpin(g, &p);
        v->time_failure = rc != LS_OK ? rc : v->time_failure;
    } else {
        v->time_failure = fail_errno(LS_IO, -sys, "a segment cannot be opened");
    }
    free(window);
    return x;
}

static uint64_t time_of_batch(struct message_mover *v, uint64_t lsn) {
    bool is_there = lsn < log_forced_lsn(v->g) && log_segment_lsn(v->g, lsn) != 0;
    const struct time_index *x = is_there ? index_segment(v, lsn) : NULL;
    if (x == NULL || x->at == NULL || x->count == 0 || lsn < x->at[0].lsn || lsn >= x->end_lsn) {
        return 0;
    }
    return x->at[array_lower_bound(struct lsn_time, x->at, x->count, lsn, lsn + 1) - 1].time_us;
}

/* ---- times from a chain's own records ---- */

static void know(struct move_times *t, uint64_t order_lsn, uint64_t time_us) {
    for (unsigned i = 0; i < t->known_count; i++) {
        if (t->known[i].lsn == order_lsn && t->known[i].time_us == 0) {
            t->known[i].time_us = time_us;
        }
    }
}

static bool all_known(const struct move_times *t) {
    for (unsigned i = 0; i < t->known_count; i++) {
        if (t->known[i].time_us == 0) {
            return false;
        }
    }
    return true;
}

/* (waits) move_read_record; a failure is in v->time_failure. */
static bool read_record(struct message_mover *v, uint64_t lsn, uint32_t bytes, uint8_t **into, struct record *r) {
    int rc = move_read_record(v, lsn, bytes, into, r);
    v->time_failure = rc != LS_OK ? rc : v->time_failure;
    return rc == LS_OK;
}

/* (waits) Learns times from one record of an earlier state; that record and its message may be gone by now. */
static void ask_state(struct message_mover *v, uint64_t lsn, uint32_t bytes) {
    struct record r;
    struct message_relocated m;
    uint8_t *memory = NULL;
    if (log_segment_lsn(v->g, lsn) == 0 || lsn + bytes > log_forced_lsn(v->g) ||
        !read_record(v, lsn, bytes, &memory, &r)) {
        return;
    }
    if (r.type == MESSAGE_RELOCATED && format_get_relocated(&r, &m) == FORMAT_OK) {
        for (uint32_t i = 0; i < m.place_count; i++) {
            struct place_row row = format_place_row(m.places, i);
            know(&v->times, row.order_lsn, row.enqueue_time_us);
        }
    } else if (r.type == MESSAGE_RELOCATED_PLACED && format_get_relocated_placed(&r, &m) == FORMAT_OK) {
        const uint8_t *at = m.places;
        for (uint32_t i = 0; i < m.place_count; i++) {
            struct place_state state;
            struct place_row row = format_placed_place(&at, &state);
            know(&v->times, row.order_lsn, row.enqueue_time_us);
        }
    }
    free(memory);
}

static void ask_states(struct message_mover *v, const struct message *m) {
    struct chain_record parts[TIME_PARTS];
    const struct message_extra *x = m->extra;
    uint32_t count = x == NULL ? 0 : x->part_count < TIME_PARTS ? x->part_count : TIME_PARTS;
    for (uint32_t i = 0; i < count; i++) { /* the message may die while a record is read */
        parts[i] = x->parts[i];
    }
    if (x != NULL && x->state_bytes > 0) {
        parts[0] = (struct chain_record){.lsn = x->start_lsn + m->record_bytes, .record_bytes = x->state_bytes};
        count = 1;
    }
    for (uint32_t i = 0; i < count && !all_known(&v->times); i++) {
        ask_state(v, parts[i].lsn, parts[i].record_bytes);
    }
}

void times_learn(struct message_mover *v, uint64_t id, uint64_t start_lsn, uint64_t inline_us) {
    struct move_times *t = &v->times;
    struct message *m = chain_still_there(v, id, start_lsn);
    t->known_count = 0;
    for (uint32_t i = 0; m != NULL && i < m->place_count && t->known_count < TIMES_KNOWN; i++) {
        uint64_t lsn = place_entry(&message_places(m)[i])->order_lsn;
        bool there = false;
        for (unsigned k = 0; k < t->known_count; k++) {
            there = there || t->known[k].lsn == lsn;
        }
        if (!there) {
            t->known[t->known_count++] = (struct lsn_time){.lsn = lsn};
        }
    }
    know(t, id, inline_us);
    if (m != NULL && !all_known(t)) {
        ask_states(v, m);
    }
    for (unsigned i = 0; i < t->known_count; i++) {
        if (t->known[i].time_us == 0) {
            t->known[i].time_us = time_of_batch(v, t->known[i].lsn);
        }
    }
}

/* ---- one place, for a caller ---- */

/* (waits) The time in a relocated start record, which is that of the places whose order LSN is the id; 0: it has none. */
static uint64_t ask_copy(struct message_mover *v, uint64_t id, uint64_t lsn, uint32_t bytes) {
    struct record r;
    struct message_start from;
    uint8_t *memory = NULL;
    if (lsn == id || lsn + bytes > log_forced_lsn(v->g) || !read_record(v, lsn, bytes, &memory, &r)) {
        return 0;
    }
    bool sound = r.type == MESSAGE_START && r.id == id && format_get_start(&r, &from) == FORMAT_OK;
    uint64_t time_us = sound ? from.enqueue_time_us : 0;
    free(memory);
    return time_us;
}

/* (waits) False: the message was moved meanwhile, so its times may be elsewhere. */
static bool ask_for(struct message_mover *v, uint64_t id, uint64_t order_lsn) {
    struct move_times *t = &v->times;
    uint32_t number = table_find(v->t, id);
    if (number == INDEX_NONE) {
        return true;
    }
    const struct message *m = table_message(v->t, number);
    uint64_t start_lsn = message_start_lsn(m);
    t->known[0] = (struct lsn_time){.lsn = order_lsn};
    t->known_count = 1;
    v->time_failure = LS_OK;
    if (order_lsn == id) {
        know(t, id, ask_copy(v, id, start_lsn, m->record_bytes));
    }
    m = chain_still_there(v, id, start_lsn);
    if (m != NULL && !all_known(t)) {
        ask_states(v, m);
    }
    if (!all_known(t)) {
        t->known[0].time_us = time_of_batch(v, order_lsn);
    }
    return all_known(t) || chain_still_there(v, id, start_lsn) != NULL;
}

int messages_enqueue_time(struct table *t, struct log *g, struct move_times *times, uint64_t id, uint64_t order_lsn,
                          uint64_t *time_us) {
    struct message_mover v = {.t = t, .g = g, .asks_only = true, .times = *times};
    *times = (struct move_times){.index_count = 0}; /* another thread may come meanwhile */
    for (int tries = 0; tries < ASKS_MAX && !ask_for(&v, id, order_lsn); tries++) {
    }
    messages_forget_times(times);
    *times = v.times;
    *time_us = v.times.known_count > 0 ? v.times.known[0].time_us : 0;
    return *time_us != 0 ? LS_OK : v.time_failure;
}
