/* Builds a chain's state for a relocation, and switches the table to the copies. See messages.c. */
#include "relocate/parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- what a message's state is ---- */

void chain_free_state(struct chain_state *s) {
    free(s->chunks);
    free(s->places);
    free(s->pending);
    free(s->place_states);
    free(s->pending_states);
    free(s->located);
    *s = (struct chain_state){.chunks = NULL};
}

/* Places and work count until their queue is deleted, even if the sweep has not reached them yet. */
static bool counts(const struct place *p) { return !p->at.chunk->queue->deleted; }

static bool work_counts(const struct table *t, const struct work *w) { return table_queue(t, w->queue_id) != NULL; }

uint32_t chain_count_places(struct message *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->place_count; i++) {
        n += counts(&message_places(m)[i]) ? 1 : 0;
    }
    return n;
}

uint32_t chain_count_pending(const struct table *t, const struct message *m) {
    uint32_t n = 0;
    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        n += work_counts(t, w) ? 1 : 0;
    }
    return n;
}

static void put_places(const struct move_times *times, struct message *m, struct place_row *rows) {
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        if (counts(p)) {
            const struct entry *e = place_entry(p);
            *rows++ = (struct place_row){.order_lsn = e->order_lsn,
                                         .enqueue_time_us = times_known(times, e->order_lsn),
                                         .queue_id = p->queue_id,
                                         .order_index = e->order_index};
        }
    }
}

static uint32_t chain_pending_kind(const struct work *w) {
    return w->kind == WORK_ENQUEUE ? PENDING_ENQUEUE : w->kind == WORK_DEQUEUE ? PENDING_DEQUEUE : PENDING_NOTE;
}

/* The list has the newest first. */
static void put_pending(const struct table *t, const struct message *m, uint32_t n, struct pending_row *rows) {
    for (const struct work *w = n > 0 ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        if (!work_counts(t, w)) {
            continue;
        }
        rows[--n] = (struct pending_row){
            .tx_id = w->tx->id,
            .lsn = w->lsn,
            .queue_id = w->queue_id,
            .kind = chain_pending_kind(w),
            .order_index = w->order_index,
        };
    }
}

bool chain_has_states(const struct table *t, struct message *m) {
    bool some = false;
    if ((m->flags & MESSAGE_STATED) == 0) {
        return false;
    }
    for (uint32_t i = 0; !some && i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        const struct remembered state = place_state(p);
        some = counts(p) && !remembers_nothing(&state);
    }
    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; !some && w != NULL; w = w->next_of_message) {
        some = work_is_wide(w) && work_counts(t, w);
    }
    return some;
}

/* The states of the rows, in their order: that in which own_gather has read their bytes. False: no memory. */
static bool put_states(const struct table *t, struct message *m, struct own_source *own, struct chain_state *s) {
    uint32_t row = 0, n = s->counts.pending_count;
    s->place_states = calloc(s->counts.place_count + 1u, sizeof *s->place_states);
    s->pending_states = calloc(n + 1u, sizeof *s->pending_states);
    s->located = calloc((size_t)s->counts.place_count + n + 1u, sizeof *s->located);
    if (s->place_states == NULL || s->pending_states == NULL || s->located == NULL) {
        return false;
    }
    own->described = 0;
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        const struct remembered state = place_state(p);
        const struct place_state described = own_describe(own, &state);
        if (counts(p)) {
            s->places[row].delivery_count = described.delivery_count;
            s->place_states[row++] = described;
        }
    }
    for (const struct work *w = m->extra->work; w != NULL; w = w->next_of_message) {
        const struct place_state described = w->state != NULL ? own_describe(own, w->state) : (struct place_state){0};
        if (work_counts(t, w)) {
            s->pending_states[--n] = described;
        }
    }
    return true;
}

/* Takes the state, with the present LSNs of the chunks. False: no memory. */
bool chain_take_state(const struct message_mover *v, struct message *m, uint64_t start_lsn, struct own_source *own,
                      struct chain_state *s) {
    const struct table *t = v->t;
    const struct message_extra *x = m->extra;
    s->counts = (struct message_relocated){
        .content_bytes = message_content_bytes(m),
        .start_lsn = start_lsn,
        .chunk_count = x->chunk_count,
        .place_count = chain_count_places(m),
        .pending_count = chain_count_pending(t, m),
    };
    s->version = x->version;
    s->staged = (m->flags & MESSAGE_STAGED) != 0;
    s->chunks = calloc(s->counts.chunk_count + 1u, sizeof *s->chunks);
    s->places = calloc(s->counts.place_count + 1u, sizeof *s->places);
    s->pending = calloc(s->counts.pending_count + 1u, sizeof *s->pending);
    if (s->chunks == NULL || s->places == NULL || s->pending == NULL) {
        chain_free_state(s);
        return false;
    }
    for (uint32_t i = 0; i < x->chunk_count; i++) {
        s->chunks[i] = (struct chunk_row){
            .lsn = x->chunks[i].lsn, .offset = x->chunks[i].offset, .content_bytes = x->chunks[i].content_bytes};
    }
    put_places(&v->times, m, s->places);
    put_pending(t, m, s->counts.pending_count, s->pending);
    if (chain_has_states(t, m) && !put_states(t, m, own, s)) {
        chain_free_state(s);
        return false;
    }
    return true;
}

uint64_t chain_state_bytes(const struct table *t, struct message *m) {
    uint32_t chunks = m->extra->chunk_count, places = chain_count_places(m), pending = chain_count_pending(t, m);
    if (!chain_has_states(t, m)) {
        return format_relocated_bytes(chunks, places, pending);
    }
    uint64_t rows = PLACED_ROW_BYTES * ((uint64_t)places + pending);
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct remembered state = place_state(&message_places(m)[i]);
        rows += counts(&message_places(m)[i]) ? remembered_own_bytes(&state) : 0;
    }
    for (const struct work *w = m->extra->work; w != NULL; w = w->next_of_message) {
        rows += w->state != NULL && work_counts(t, w) ? remembered_own_bytes(w->state) : 0;
    }
    return format_relocated_placed_bytes(chunks, rows);
}

enum record_type chain_state_type(const struct chain_state *s) {
    return s->place_states != NULL ? MESSAGE_RELOCATED_PLACED : MESSAGE_RELOCATED;
}

/* The row begins at *at in the record; *at moves behind it. */
static struct own locate(const struct place_state *row, uint64_t lsn, uint32_t record_bytes, uint32_t *at) {
    struct own own = {.note.lsn = 0};
    uint32_t from = *at + PLACED_ROW_BYTES;
    if (row->note_bytes > 0) {
        own.note = (struct own_bytes){lsn, record_bytes, from, row->note_bytes};
    }
    if (row->header != NULL) {
        own.header = (struct own_bytes){lsn, record_bytes, from + row->note_bytes, row->header_bytes};
    }
    *at += (uint32_t)format_placed_row_bytes(row);
    return own;
}

uint32_t chain_put_part(const struct slot *at, struct chain_state *s, const struct message_relocated *m,
                        const struct message_relocated *done) {
    const struct chunk_row *chunks = s->chunks + done->chunk_count;
    const struct place_row *places = s->places + done->place_count;
    const struct pending_row *pending = s->pending + done->pending_count;
    if (s->place_states == NULL) {
        return format_put_relocated(at, m, chunks, places, pending);
    }
    const struct place_state *place_states = s->place_states + done->place_count;
    const struct place_state *pending_states = s->pending_states + done->pending_count;
    uint32_t bytes = format_put_relocated_placed(at, m, chunks, places, place_states, pending, pending_states);
    uint32_t from = STATE_HEAD_BYTES + RELOCATED_CHUNK_BYTES * m->chunk_count;
    for (uint32_t i = 0; i < m->place_count; i++) {
        s->located[done->place_count + i] = locate(&place_states[i], at->lsn, bytes, &from);
    }
    for (uint32_t i = 0; i < m->pending_count; i++) {
        s->located[s->counts.place_count + done->pending_count + i] = locate(&pending_states[i], at->lsn, bytes, &from);
    }
    return bytes;
}

void chain_switch_own(const struct table *t, struct message *m, const struct chain_state *s) {
    uint32_t row = 0, n = s->counts.pending_count;
    if (s->place_states == NULL) {
        return;
    }
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        struct own *own = place_state(p).own;
        if (counts(p)) {
            if (own != NULL) {
                *own = s->located[row];
            }
            row++;
        }
    }
    for (const struct work *w = m->extra->work; w != NULL; w = w->next_of_message) {
        if (work_counts(t, w)) {
            n--;
            if (w->state != NULL && w->state->own != NULL) {
                *w->state->own = s->located[s->counts.place_count + n];
            }
        }
    }
}

/*
 * Compares counts, too: a queue's deletion does not change the version, since it ends places and work of many messages
 * at once.
 */
bool chain_is_still(const struct table *t, struct message *m, const struct chain_state *s) {
    return m->extra->version == s->version && chain_count_places(m) == s->counts.place_count &&
           chain_count_pending(t, m) == s->counts.pending_count;
}

/* ---- inline copies ---- */

/* Whether one record can hold the whole chain, and in which form. */
bool chain_has_inline_form(const struct table *t, struct message *m, struct inline_form *f) {
    const struct place *places = message_places(m);
    uint32_t low = UINT32_MAX, high = 0, n = 0;
    bool same_index = true;
    *f = (struct inline_form){.order_lsn = 0};
    if (chain_count_pending(t, m) > 0 || (m->flags & MESSAGE_STAGED) != 0 ||
        (m->extra != NULL && m->extra->chunk_count > 0) || message_has_states(t, m)) {
        return false;
    }
    for (uint32_t i = 0; i < m->place_count; i++) {
        if (!counts(&places[i])) {
            continue;
        }
        const struct entry *e = place_entry(&places[i]);
        if (n > 0 && e->order_lsn != f->order_lsn) {
            return false;
        }
        same_index = same_index && (n == 0 || e->order_index == low);
        f->order_lsn = e->order_lsn;
        low = e->order_index < low ? e->order_index : low;
        high = e->order_index > high ? e->order_index : high;
        n++;
    }
    f->ordered = f->order_lsn != m->id;
    f->order_index = n > 0 ? low : 0;
    f->queue_count = f->ordered ? high - low + 1 : n;
    if (!f->ordered) {
        return n > 0 && same_index && low == 0;
    }
    /* only if a list is shorter than a state: so a message with a list never grows, even after dequeues */
    return n > 0 && (n == 1 || !same_index) && 4 * (uint64_t)f->queue_count <= format_relocated_bytes(0, n, 0);
}

/* False if two places have the same order index. No commit writes that, and a list of queue ids cannot express it. */
bool chain_put_inline_queues(struct message *m, const struct inline_form *f, uint32_t *queue_ids) {
    uint32_t next = 0;
    memset(queue_ids, 0, f->queue_count * sizeof *queue_ids);
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        if (counts(p)) {
            uint32_t at = f->ordered ? place_entry(p)->order_index - f->order_index : next++;
            if (queue_ids[at] != 0) {
                return false;
            }
            queue_ids[at] = p->queue_id;
        }
    }
    return true;
}

/* ---- switching a message over ---- */

void chain_switch_start(struct log *g, struct message *m, uint64_t lsn, uint32_t record_bytes) {
    log_release_record(g, m->extra->start_lsn, message_start_weight(m));
    log_live_record(g, lsn, record_bytes);
    m->extra->start_lsn = lsn;
    m->extra->state_bytes = 0;
    m->record_bytes = record_bytes;
}

/* A state that directly follows the start record lives and dies with it. `bytes` is 0 if there is none. */
void chain_switch_state(struct log *g, struct message *m, uint32_t bytes) {
    log_live_part(g, m->extra->start_lsn, bytes);
    if (m->extra->state_bytes > 0) {
        log_release_part(g, m->extra->start_lsn, m->extra->state_bytes);
    }
    m->extra->state_bytes = bytes;
}

/* Takes ownership of the list. */
void chain_switch_parts(struct log *g, struct message *m, struct chain_record *parts, uint32_t count) {
    struct message_extra *x = m->extra;
    for (uint32_t i = 0; i < x->part_count; i++) {
        log_release_record(g, x->parts[i].lsn, x->parts[i].record_bytes);
    }
    for (uint32_t i = 0; i < count; i++) {
        log_live_record(g, parts[i].lsn, parts[i].record_bytes);
    }
    free(x->parts);
    x->parts = parts;
    x->part_count = count;
}

struct slot chain_slot(const struct message_mover *v, const struct message *m, uint16_t flags) {
    return log_slot(v->g, m->id, message_last_lsn(m), flags);
}

void chain_append(struct message_mover *v, const struct slot *s, enum record_type type, uint32_t bytes) {
    log_append_copy(v->g, s, (uint16_t)type, bytes);
}

uint16_t chain_start_flags(const struct message *m) {
    return FLAG_COPY | ((m->flags & MESSAGE_PUBLISHED) != 0 ? FLAG_PUBLISHED : 0);
}

/* Returns the message if its start record is still the one at this LSN, else NULL. */
struct message *chain_still_there(const struct message_mover *v, uint64_t id, uint64_t start_lsn) {
    uint32_t number = table_find(v->t, id);
    struct message *m = number != INDEX_NONE ? table_message(v->t, number) : NULL;
    return m != NULL && message_start_lsn(m) == start_lsn && !message_is_going(m) ? m : NULL;
}
