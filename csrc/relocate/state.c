/* Builds a chain's state for a relocation, and switches the table to the copies. See messages.c. */
#include "relocate/parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- what a message's state is ---- */

void chain_free_state(struct chain_state *s) {
    free(s->chunks);
    free(s->places);
    free(s->pending);
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
            .kind = w->kind == WORK_ENQUEUE ? PENDING_ENQUEUE : PENDING_DEQUEUE,
            .order_index = w->order_index,
        };
    }
}

/* Takes the state, with the present LSNs of the chunks. False: no memory. */
bool chain_take_state(const struct message_mover *v, struct message *m, uint64_t start_lsn, struct chain_state *s) {
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
    return true;
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
        (m->extra != NULL && m->extra->chunk_count > 0)) {
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
