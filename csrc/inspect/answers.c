/* Lists and figures of a finished inspection. See inspect.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/inspect.h"
#include "os/error.h"
#include "replay/catalog.h"
#include "table/remembered.h"

void inspection_describe(const struct inspection *i, ls_inspection *into) {
    *into = (ls_inspection){
        .footers = i->checks.footers,
        .staged = i->staged,
        .stated = i->stated,
        .queue_id_max = i->queue_id_max,
        .next_lsn = i->reader->scan.next_lsn,
        .bytes_read = i->reader->scan.bytes_read,
    };
    ls_reader_describe(i->reader, &into->log);
}

/* ---- segments ---- */

void inspection_advance_base(struct inspection *i) {
    const struct state *s = i->state;
    while (i->base_index + 1 < s->segment_count && s->segments[i->base_index].records == 0) {
        i->base_index++;
    }
}

uint64_t inspection_base_lsn(const struct inspection *i) {
    const struct state *s = i->state;
    return s->segment_count == 0 ? 0 : s->segments[i->base_index].first_lsn;
}

size_t inspection_segments(const struct inspection *i, ls_segment_info *into, size_t n) {
    const struct state *s = i->state;
    for (size_t k = 0; k < s->segment_count && k < n; k++) {
        into[k] = (ls_segment_info){
            .first_lsn = s->segments[k].first_lsn,
            .epoch = s->segments[k].epoch,
            .end_lsn = s->segments[k].end_lsn,
            .live_bytes = s->segments[k].bytes,
            .live_records = s->segments[k].records,
            .current = k + 1 == s->segment_count,
        };
    }
    return s->segment_count;
}

int inspection_take_tail(const struct inspection *i, struct tail_look *k) {
    const struct state *s = i->state;
    uint64_t end_lsn = i->reader->scan.end_lsn, live_bytes = 0;
    k->segments = calloc(s->segment_count + 1, sizeof *k->segments);
    if (k->segments == NULL) {
        return fail_memory();
    }
    for (size_t n = 0; n < s->segment_count; n++) {
        bool current = n + 1 == s->segment_count;
        k->segments[n] = (ls_tail_segment){
            .first_lsn = s->segments[n].first_lsn,
            .epoch = s->segments[n].epoch,
            .end_lsn = s->segments[n].end_lsn,
            .live_bytes = s->segments[n].bytes,
            .live_records = s->segments[n].records,
            .state = n < i->base_index ? LS_SEGMENT_DEAD
                     : current         ? LS_SEGMENT_CURRENT
                                       : LS_SEGMENT_NEEDED,
        };
        live_bytes += n < i->base_index ? 0 : s->segments[n].bytes;
    }
    k->segment_count = s->segment_count;
    k->table = &i->state->table;
    k->v = i->reader->v;
    k->dir = i->reader->dir;
    k->uuid = i->reader->meta.uuid;
    *k->tail = (ls_tail){
        .segment_size = s->segment_size,
        .base_lsn = inspection_base_lsn(i),
        .durable_lsn = end_lsn,
        .next_lsn = end_lsn,
        .live_bytes = live_bytes,
        .segments = s->segment_count,
    };
    return LS_OK;
}

/* ---- the catalog ---- */

static void release(struct state *s, uint64_t lsn, uint64_t bytes) {
    struct live_segment *from = state_segment(s, lsn);
    assert(from != NULL && from->records > 0 && from->bytes >= bytes);
    from->records--;
    from->bytes -= bytes;
}

static void remove_message(struct state *s, uint32_t number) {
    const struct message *m = table_message(&s->table, number);
    const struct message_extra *x = m->extra;
    release(s, message_start_lsn(m), message_start_weight(m));
    for (uint32_t i = 0; x != NULL && i < x->chunk_count; i++) {
        release(s, x->chunks[i].lsn, x->chunks[i].record_bytes);
    }
    for (uint32_t i = 0; x != NULL && i < x->part_count; i++) {
        release(s, x->parts[i].lsn, x->parts[i].record_bytes);
    }
    table_remove(&s->table, number);
}

static void drop_places(struct state *s, struct queue *q) {
    for (;;) {
        struct cursor c = {.chunk = q->first};
        uint64_t position;
        const struct entry *e = cursor_entry(&c, &position);
        if (e == NULL) {
            return;
        }
        uint32_t number = e->message;
        struct message *m = table_message(&s->table, number);
        queue_kill(message_place(m, q->id), m);
        message_drop_place(&s->table, m, q->id);
        if (message_is_dead(m)) {
            remove_message(s, number);
        }
    }
}

static void end_without_work(void *context, uint32_t number) {
    struct state *s = context;
    if (replay_unstage(s, table_message(&s->table, number))) {
        remove_message(s, number);
    }
}

int inspection_drop_queues(struct inspection *i, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id) {
    struct state *s = i->state;
    struct table *t = &s->table;
    uint32_t *sorted = catalog_sorted(queue_ids, n);
    if (sorted == NULL) {
        return fail_memory();
    }
    int rc = catalog_check(t, sorted, n, next_queue_id);
    for (uint32_t k = 0; rc == LS_OK && k < t->queue_count; k++) {
        struct queue *q = t->queues[k];
        if (q == NULL || q->deleted || catalog_has(sorted, n, q->id)) {
            continue;
        }
        s->report.queues_dropped++;
        s->report.places_dropped += queue_depth(q);
        recovered_note(&s->recovered, LS_RECOVERED_QUEUE, q->id, queue_depth(q), NULL);
        q->deleted = true;
    }
    if (rc == LS_OK) {
        replay_drop_work_on_deleted(t, end_without_work, s);
    }
    for (uint32_t k = 0; rc == LS_OK && k < t->queue_count; k++) {
        if (t->queues[k] != NULL && t->queues[k]->deleted) {
            drop_places(s, t->queues[k]);
        }
    }
    recovered_finish(&s->recovered);
    inspection_advance_base(i);
    s->report.messages = t->message_count;
    s->report.places = t->place_count;
    free(sorted);
    return rc;
}

/* ---- lists ---- */

size_t inspection_queues(const struct table *t, ls_queue_info *into, size_t n) {
    size_t count = 0;
    for (uint32_t k = 0; k < t->queue_count; k++) {
        const struct queue *q = t->queues[k];
        if (q != NULL && count < n) {
            into[count] = (ls_queue_info){
                .id = q->id,
                .deleted = q->deleted,
                .depth = queue_depth(q),
                .locked = queue_locked(q),
                .content_bytes = queue_bytes(q),
                .ready_bytes = q->tallies[STANDING_READY].bytes,
                .hidden = q->tallies[STANDING_HIDDEN].places,
                .expired = q->tallies[STANDING_EXPIRED].places,
            };
        }
        count += q != NULL ? 1 : 0;
    }
    return count;
}

size_t inspection_transactions(const struct table *t, ls_open_tx *into, size_t n) {
    size_t count = 0;
    for (uint32_t k = 0; k < t->tx_slots; k++) {
        const struct tx *tx = t->txs[k];
        if (tx != NULL && count < n) {
            ls_open_tx *made = &into[count];
            *made = (ls_open_tx){
                .id = tx->id,
                .start_lsn = tx->start_lsn,
                .started_us = tx->started_us,
                .prepared_us = tx->state == LS_TX_PREPARED ? tx->prepared_us : 0,
                .operations = tx->work_count,
                .state = tx->state,
                .distributed = tx->distributed,
            };
            tail_copy_xid(&made->xid, tx);
        }
        count += tx != NULL ? 1 : 0;
    }
    return count;
}

int inspection_work(const struct table *t, uint64_t tx_id, ls_open_work *into, size_t n, size_t *count) {
    const struct tx *tx = table_tx(t, tx_id);
    *count = 0;
    if (tx == NULL) {
        return fail(LS_UNKNOWN_XID, "no open transaction has id %llu", (unsigned long long)tx_id);
    }
    for (const struct work *w = tx->first; w != NULL; w = w->next) {
        if (*count < n) {
            into[*count] = (ls_open_work){
                .message_id = table_message(t, w->message)->id,
                .lsn = w->lsn,
                .queue_id = w->queue_id,
                .order_index = w->order_index,
                .enqueues = w->kind == WORK_ENQUEUE,
                .locks = w->locks,
            };
        }
        (*count)++;
    }
    return LS_OK;
}

static ls_own_bytes shown(const struct own_bytes *own) {
    return (ls_own_bytes){.lsn = own->lsn, .at = own->at, .bytes = own->bytes};
}

size_t inspection_places(struct message *m, ls_message_place *into, size_t n) {
    const struct own none = {.note = {.lsn = 0}};
    for (uint32_t i = 0; i < m->place_count && i < n; i++) {
        const struct place *place = &message_places(m)[i];
        const struct entry *e = place_entry(place);
        const struct remembered state = place_state(place);
        const struct own *own = state.own != NULL ? state.own : &none;
        into[i] = (ls_message_place){
            .order_lsn = e->order_lsn,
            .queue_id = place->queue_id,
            .order_index = e->order_index,
            .times = {state.not_before_us, state.expires_us},
            .note = shown(&own->note),
            .header = shown(&own->header),
            .delivery_count = state.delivery_count,
            .locked = (e->state & ENTRY_LOCKED) != 0,
            .hidden = (e->state & ENTRY_HIDDEN) != 0,
            .expired = (e->state & ENTRY_EXPIRED) != 0,
        };
    }
    return m->place_count;
}
