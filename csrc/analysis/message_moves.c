/*
 * Relocations in a pass over messages. A complete relocation gives a chain's whole state. If the pass knows the chain,
 * the relocation repeats its state and is only counted. If the chain began before the pass, the pass knows it from here
 * on. See message_rows.h, and replay/moved.c for what makes a relocation complete.
 */
#include <stdlib.h>

#include "os/array.h"
#include "os/error.h"
#include "analysis/message_rows.h"
#include "analysis/relocated.h"

static void forget_parts(struct life_moving *v) {
    for (uint32_t i = 0; i < v->place_count; i++) {
        free(v->places[i].state);
    }
    for (uint32_t i = 0; i < v->work_count; i++) {
        free(v->work[i].state);
    }
    v->named_bytes = 0;
    v->next_part = v->place_count = v->work_count = 0;
    body_forget(&v->content);
}

void moves_forget(pass *p) {
    forget_parts(&p->moving);
    free(p->moving.copies);
    free(p->moving.places);
    free(p->moving.work);
    p->moving = (struct life_moving){.id = 0};
}

bool moves_take_place(struct life_moving *v, const struct life_place *place) {
    if (!array_grow(&v->places, &v->place_capacity, v->place_count, 1)) {
        free(place->state);
        return false;
    }
    v->places[v->place_count++] = *place;
    return true;
}

bool moves_take_work(struct life_moving *v, const struct life_work *work) {
    if (!array_grow(&v->work, &v->work_capacity, v->work_count, 1)) {
        free(work->state);
        return false;
    }
    v->work[v->work_count++] = *work;
    return true;
}

/* Fills a new life from a complete relocation. */
struct adopted {
    uint64_t start_lsn; /* of the record with the first content */
    uint64_t content_bytes;
    uint64_t copied_bytes;
    bool staged;
    bool header_known;
    uint32_t header_bytes;
    bool published;
};

static int adopt_places(pass *p, uint32_t number) {
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < p->moving.place_count; i++) {
        const struct life_place place = p->moving.places[i];
        p->moving.places[i].state = NULL;
        rc = life_add_place(p, number, &place);
    }
    return rc;
}

/* An open rolls back work that is not prepared. So relocated work of an earlier epoch is prepared. */
static int adopt_work(pass *p, uint32_t number) {
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < p->moving.work_count; i++) {
        const struct life_work work = p->moving.work[i];
        p->moving.work[i].state = NULL;
        rc = life_add_work(p, number, &work);
        if (rc == LS_OK && work.tx_id < p->epoch_lsn) {
            lives_tx(p, work.tx_id)->prepared = true;
        }
    }
    return rc;
}

/* False: the message has ended, because it began in this pass and has no life now. */
static bool may_adopt(const pass *p, uint64_t id) { return id < p->from_lsn; }

static int adopt_life(pass *p, uint64_t id, const struct adopted *a, uint32_t *number) {
    uint32_t flags =
        (a->staged ? 0U : LIFE_ENQUEUED) | (a->published ? LIFE_PUBLISHED : 0U) | (a->header_known ? LIFE_HEADER : 0U);
    int rc = lives_add(p, id, flags, number);
    if (rc == LS_OK) {
        struct life *l = life_at(p, *number);
        l->content_bytes = a->content_bytes;
        l->header_bytes = a->header_bytes;
        l->copy_count = 1;
        l->copied_bytes = a->copied_bytes;
        if (p->body_bytes > 0) {
            body_moved(p, *number, a->start_lsn, a->content_bytes);
        }
    }
    return rc;
}

/* Does nothing if the message has ended; then it may have neither places nor work. */
static int adopt(pass *p, uint64_t id, const struct adopted *a) {
    const struct life_moving *v = &p->moving;
    uint32_t number;
    if ((v->place_count == 0 && v->work_count == 0 && !a->staged) || !may_adopt(p, id)) {
        return LS_OK;
    }
    int rc = adopt_life(p, id, a, &number);
    rc = rc == LS_OK ? adopt_places(p, number) : rc;
    return rc == LS_OK ? adopt_work(p, number) : rc;
}

static void count_move(struct life *l, uint64_t bytes, bool header_known, uint32_t header_bytes) {
    l->copy_count += l->copy_count < INT32_MAX ? 1 : 0;
    l->copied_bytes += bytes;
    if (header_known) {
        l->header_bytes = header_bytes;
        l->flags |= LIFE_HEADER;
    }
}

/* An inline copy: the whole state in one record. */
static int move_inline(pass *p, const struct record *r, const struct message_start *m) {
    uint32_t number;
    struct life *l = lives_find(p, r->id, &number);
    moves_forget(p);
    if (l != NULL) {
        count_move(l, r->length, true, m->header_bytes);
        if (body_is_unknown(p, number)) {
            body_moved(p, number, r->lsn, m->content_bytes);
        }
        return LS_OK;
    }
    if (!may_adopt(p, r->id)) {
        return LS_OK;
    }
    const struct adopted a = {.start_lsn = r->lsn,
                              .content_bytes = m->content_bytes,
                              .copied_bytes = r->length,
                              .header_known = true,
                              .header_bytes = m->header_bytes,
                              .published = (r->flags & FLAG_PUBLISHED) != 0};
    bool ordered = (r->flags & FLAG_ORDERED) != 0;
    uint64_t told_us = m->enqueue_time_us <= INT64_MAX ? m->enqueue_time_us : INT64_MAX;
    int rc = adopt_life(p, r->id, &a, &number);
    for (uint32_t i = 0; rc == LS_OK && i < m->queue_count; i++) {
        const struct life_place place = {.enqueue_lsn = m->order_lsn,
                                         .enqueue_time_us = ordered ? 0 : told_us,
                                         .queue_id = format_queue_id(m->queues, i),
                                         .order_index = m->order_index + (ordered ? i : 0)};
        rc = place.queue_id != 0 ? life_add_place(p, number, &place) : LS_OK;
    }
    return rc;
}

int moves_start_copy(pass *p, const struct record *r) {
    struct message_start m;
    if (format_get_start(r, &m) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    if ((r->flags & FLAG_INLINE) != 0) {
        return move_inline(p, r, &m);
    }
    moves_forget(p);
    p->moving.id = r->id;
    p->moving.start_bytes = r->length;
    p->moving.start_lsn = r->lsn;
    p->moving.header_bytes = m.header_bytes;
    p->moving.published = (r->flags & FLAG_PUBLISHED) != 0;
    return LS_OK;
}

int moves_chunk_copy(pass *p, const struct record *r) {
    if (p->moving.id != r->id) {
        moves_forget(p);
        p->moving.id = r->id;
    }
    if (!array_grow(&p->moving.copies, &p->moving.copy_capacity, p->moving.copy_count, 1)) {
        return fail_memory();
    }
    p->moving.copies[p->moving.copy_count++] = (struct life_copy){.lsn = r->lsn, .bytes = r->length};
    return LS_OK;
}

/* Bytes of the chunk's copy at this LSN; 0: it was not seen. */
static uint32_t copied_at(const struct life_moving *v, uint64_t lsn) {
    size_t low = array_lower_bound(struct life_copy, v->copies, v->copy_count, lsn, lsn);
    return low < v->copy_count && v->copies[low].lsn == lsn ? v->copies[low].bytes : 0;
}

static int gather(pass *p, const struct record *r, const struct message_relocated *m) {
    struct life_moving *v = &p->moving;
    bool taken = true, sound = true;
    if (m->place_count > LIFE_PLACES_MAX - v->place_count || m->pending_count > LIFE_WORK_MAX - v->work_count) {
        return fail(LS_BUSY, "message %llu has more places or pending operations than a row can hold",
                    (unsigned long long)v->id);
    }
    const uint8_t *at = m->places;
    for (uint32_t i = 0; taken && i < m->place_count; i++) {
        struct place_state state;
        const struct place_row row = relocated_place(r, &at, &state);
        struct life_place place = {.enqueue_lsn = row.order_lsn,
                                   .enqueue_time_us =
                                       row.enqueue_time_us <= INT64_MAX ? row.enqueue_time_us : INT64_MAX,
                                   .queue_id = row.queue_id,
                                   .order_index = row.order_index};
        sound = sound && row.order_index <= ORDER_INDEX_MAX;
        taken = life_placed_new(&state, &place.state) && moves_take_place(v, &place);
    }
    at = m->pending;
    for (uint32_t i = 0; taken && i < m->pending_count; i++) {
        struct place_state state;
        const struct pending_row row = relocated_pending(r, &at, &state);
        struct life_work work = {.tx_id = row.tx_id,
                                 .lsn = row.lsn,
                                 .queue_id = row.queue_id,
                                 .order_index = row.order_index,
                                 .kind = (uint8_t)row.kind};
        sound = sound && row.order_index <= ORDER_INDEX_MAX;
        taken = life_placed_new(&state, &work.state) && moves_take_work(v, &work);
    }
    return !taken ? fail_memory() : sound ? LS_OK : pass_malformed(p, r);
}

static int gather_chunks(pass *p, const struct message_relocated *m) {
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < m->chunk_count; i++) {
        const struct chunk_row row = format_chunk_row(m->chunks, i);
        rc =
            row.content_bytes > 0 ? body_goes_on(p, &p->moving.content, row.lsn, row.offset, row.content_bytes) : LS_OK;
    }
    return rc;
}

int moves_state(pass *p, const struct record *r) {
    struct message_relocated m;
    struct life_moving *v = &p->moving;
    uint32_t number;
    if (relocated_get(r, &m) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    struct life *l = lives_find(p, r->id, &number);
    if (m.part == 0 && v->id != r->id) {
        moves_forget(p);
        v->id = r->id;
    }
    if (m.part == 0) {
        forget_parts(v);
    }
    if (v->id != r->id || v->next_part != m.part) { /* its first parts lie before this pass, so it was superseded */
        return LS_OK;
    }
    v->next_part++;
    v->named_bytes += r->length;
    for (uint32_t i = 0; i < m.chunk_count; i++) {
        v->named_bytes += copied_at(v, format_chunk_row(m.chunks, i).lsn);
    }
    int rc = l == NULL ? gather(p, r, &m) : LS_OK;
    bool bodied = p->body_bytes > 0 && (l == NULL || body_is_unknown(p, number));
    rc = rc == LS_OK && bodied ? gather_chunks(p, &m) : rc;
    if (rc != LS_OK || (r->flags & FLAG_PART) != 0) {
        return rc;
    }
    bool copy_seen = v->start_lsn == m.start_lsn;
    uint64_t bytes = v->named_bytes + (copy_seen ? v->start_bytes : 0);
    if (l != NULL) {
        count_move(l, bytes, copy_seen, v->header_bytes);
        if (bodied) {
            body_moved(p, number, m.start_lsn, m.content_bytes);
        }
    } else {
        const struct adopted a = {.start_lsn = m.start_lsn,
                                  .content_bytes = m.content_bytes,
                                  .copied_bytes = bytes,
                                  .staged = (r->flags & FLAG_STAGED) != 0,
                                  .header_known = copy_seen,
                                  .header_bytes = copy_seen ? v->header_bytes : 0,
                                  .published = copy_seen && v->published};
        rc = adopt(p, r->id, &a);
    }
    moves_forget(p);
    return rc;
}
