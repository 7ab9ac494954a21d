/*
 * Compares two replays of one log, one from a checkpoint and one without it. Everything that the store uses later must
 * agree. Only times may differ: no decision uses them, and a checkpoint has more of them.
 */
#include <stdio.h>

#include "format/checkpoint.h"
#include "inspect/inspect.h"
#include "os/error.h"
#include "table/remembered.h"

struct sides {
    const struct state *with;
    const struct state *without;
    ls_checkpoint_difference *d;
    bool growths_open; /* the log does not determine all growth */
};

static bool differ(const struct sides *s, uint64_t id, uint32_t queue_id, const char *what) {
    s->d->differs = 1;
    s->d->id = id;
    s->d->queue_id = queue_id;
    (void)snprintf(s->d->text, sizeof s->d->text, "%s", what);
    return true;
}

/* ---- one message ---- */

static bool same_chunk(const struct chain_record *a, const struct chain_record *b) {
    return a->lsn == b->lsn && a->offset == b->offset && a->record_bytes == b->record_bytes &&
           a->content_bytes == b->content_bytes;
}

static bool chunks_differ(const struct message *a, const struct message *b) {
    const struct message_extra none = {.chunks = NULL};
    const struct message_extra *x = a->extra != NULL ? a->extra : &none, *y = b->extra != NULL ? b->extra : &none;
    bool same = x->chunk_count == y->chunk_count && x->part_count == y->part_count && x->state_bytes == y->state_bytes;
    for (uint32_t i = 0; same && i < x->chunk_count; i++) {
        same = same_chunk(&x->chunks[i], &y->chunks[i]);
    }
    for (uint32_t i = 0; same && i < x->part_count; i++) {
        same = x->parts[i].lsn == y->parts[i].lsn && x->parts[i].record_bytes == y->parts[i].record_bytes;
    }
    return !same;
}

/*
 * Replay keeps a place on a deleted queue to the end of the log, and counts it into the growth of later changes. The
 * store that took the checkpoint had swept the place, and counts less.
 */
static bool is_same_growth(uint32_t with, uint32_t without) {
    return with <= without && (without - with) % ROW_FOR_ID_BYTES == 0;
}

/*
 * How long a place on a deleted queue keeps its state decides how the states of the message's other places count. So the
 * growth of a message with states is open once a queue was deleted.
 */
static bool is_open_growth(struct sides *s, struct message *a, struct message *b) {
    bool states = ((a->flags | b->flags) & MESSAGE_WIDE) != 0 || message_has_states(&s->with->table, a) ||
                  message_has_states(&s->without->table, b);
    bool open = states && (s->with->deletions.count > 0 || s->without->deletions.count > 0);
    s->growths_open = s->growths_open || open;
    return open;
}

static bool growths_differ(const struct message *a, const struct message *b) {
    const struct message_extra none = {.chunks = NULL};
    const struct message_extra *x = a->extra != NULL ? a->extra : &none, *y = b->extra != NULL ? b->extra : &none;
    return !is_same_growth(x->growth, y->growth) || !is_same_growth(x->work_state, y->work_state) ||
           x->work_rows != y->work_rows || ((a->flags ^ b->flags) & (MESSAGE_LOOSE | MESSAGE_WIDE)) != 0;
}

static bool places_differ(struct message *a, struct message *b) {
    bool same = a->place_count == b->place_count;
    for (uint32_t i = 0; same && i < a->place_count; i++) {
        const struct place *p = &message_places(a)[i], *q = message_place(b, p->queue_id);
        const struct entry *x = place_entry(p), *y = q != NULL ? place_entry(q) : NULL;
        same = y != NULL && x->order_lsn == y->order_lsn && x->order_index == y->order_index && x->state == y->state;
    }
    return !same;
}

static bool states_differ(struct message *a, struct message *b) {
    bool same = true;
    for (uint32_t i = 0; same && i < a->place_count; i++) {
        const struct place *p = &message_places(a)[i];
        const struct remembered x = place_state(p), y = place_state(message_place(b, p->queue_id));
        same = remembered_equal(&x, &y);
    }
    return !same;
}

static bool work_states_differ(const struct work *x, const struct work *y) {
    return (x->state == NULL) != (y->state == NULL) || (x->state != NULL && !remembered_equal(x->state, y->state));
}

static bool work_differs(const struct message *a, const struct message *b) {
    const struct work *x = a->extra != NULL ? a->extra->work : NULL, *y = b->extra != NULL ? b->extra->work : NULL;
    while (x != NULL && y != NULL && x->tx->id == y->tx->id && x->lsn == y->lsn && x->queue_id == y->queue_id &&
           x->kind == y->kind && x->order_index == y->order_index && x->locks == y->locks &&
           !work_states_differ(x, y)) {
        x = x->next_of_message;
        y = y->next_of_message;
    }
    return x != NULL || y != NULL;
}

static bool message_differs(struct sides *s, struct message *a, struct message *b) {
    enum { TOLD_FLAGS = MESSAGE_STAGED | MESSAGE_PUBLISHED | MESSAGE_RECOVERED };
    const char *what = NULL;
    if (((a->flags ^ b->flags) & TOLD_FLAGS) != 0) {
        what = "whether the message was enqueued, or how it was made";
    } else if (message_start_lsn(a) != message_start_lsn(b) || message_last_lsn(a) != message_last_lsn(b) ||
               a->record_bytes != b->record_bytes) {
        what = "where the message's records stand";
    } else if (message_content_bytes(a) != message_content_bytes(b) || a->content_bytes != b->content_bytes) {
        what = "how long the message's content is";
    } else if (chunks_differ(a, b)) {
        what = "where the message's chunks, or the parts of its state, stand";
    } else if (places_differ(a, b)) {
        what = "the message's places";
    } else if (states_differ(a, b)) {
        what = "the states of the message's places";
    } else if (work_differs(a, b)) {
        what = "the message's pending work";
    } else if (!is_open_growth(s, a, b) && growths_differ(a, b)) {
        what = "how much the message grows when it is relocated";
    }
    return what != NULL && differ(s, a->id, 0, what);
}

static bool messages_differ(struct sides *s) {
    const struct table *t = &s->with->table, *u = &s->without->table;
    for (uint32_t number = 0; number < t->message_slots; number++) {
        struct message *a = table_message(t, number);
        if ((a->flags & MESSAGE_FREE) != 0) {
            continue;
        }
        uint32_t other = table_find(u, a->id);
        if (other == INDEX_NONE) {
            return differ(s, a->id, 0, "a message that only the checkpoint has");
        }
        if (message_differs(s, a, table_message(u, other))) {
            return true;
        }
    }
    for (uint32_t number = 0; t->message_count != u->message_count && number < u->message_slots; number++) {
        const struct message *b = table_message(u, number);
        if ((b->flags & MESSAGE_FREE) == 0 && table_find(t, b->id) == INDEX_NONE) {
            return differ(s, b->id, 0, "a message that only the log has");
        }
    }
    return false;
}

/* ---- queues, transactions, segments ---- */

static bool run_differs(const struct sides *s, const struct queue *q, const struct queue *r) {
    struct cursor x = {.chunk = q->first}, y = {.chunk = r->first};
    for (;;) {
        uint64_t position;
        const struct entry *a = cursor_entry(&x, &position), *b = cursor_entry(&y, &position);
        if (a == NULL || b == NULL) {
            return (a != NULL || b != NULL) && differ(s, 0, q->id, "how many places the queue has");
        }
        uint64_t id = table_message(&s->with->table, a->message)->id;
        if (id != table_message(&s->without->table, b->message)->id) {
            return differ(s, id, q->id, "the queue's order");
        }
        cursor_step(&x);
        cursor_step(&y);
    }
}

static bool queues_differ(const struct sides *s) {
    const struct table *t = &s->with->table, *u = &s->without->table;
    for (uint32_t i = 0; i < t->queue_count; i++) {
        const struct queue *q = t->queues[i];
        const struct queue *r = q != NULL ? table_any_queue(u, q->id) : NULL;
        if (q != NULL && r == NULL && queue_depth(q) > 0) {
            return differ(s, 0, q->id, "a queue that only the checkpoint has");
        }
        if (q != NULL && r != NULL && (queue_locked(q) != queue_locked(r) || q->deleted != r->deleted)) {
            return differ(s, 0, q->id, "the queue's locked places, or whether it was deleted");
        }
        if (q != NULL && r != NULL && run_differs(s, q, r)) {
            return true;
        }
    }
    for (uint32_t i = 0; i < u->queue_count; i++) {
        const struct queue *r = u->queues[i];
        if (r != NULL && table_any_queue(t, r->id) == NULL) {
            return differ(s, 0, r->id, "a queue, or its deletion, that only the log has");
        }
    }
    return false;
}

static bool transactions_differ(const struct sides *s) {
    const struct table *t = &s->with->table, *u = &s->without->table;
    for (uint32_t i = 0; i < t->tx_slots; i++) {
        const struct tx *a = t->txs[i];
        const struct tx *b = a != NULL ? table_tx(u, a->id) : NULL;
        if (a == NULL) {
            continue;
        }
        if (b == NULL) {
            return differ(s, a->id, 0, "a transaction that only the checkpoint has");
        }
        const struct work *x = a->first, *y = b->first;
        while (x != NULL && y != NULL && x->lsn == y->lsn && x->order_index == y->order_index) {
            x = x->next;
            y = y->next;
        }
        if (a->state != b->state || a->distributed != b->distributed || a->start_lsn != b->start_lsn ||
            a->last_lsn != b->last_lsn || !xid_equal(&a->xid, &b->xid) || x != NULL || y != NULL) {
            return differ(s, a->id, 0, "the transaction's state, records or work");
        }
    }
    return t->tx_count != u->tx_count && differ(s, 0, 0, "a transaction that only the log has");
}

static bool segments_differ(const struct sides *s) {
    const struct state *a = s->with, *b = s->without;
    bool same = a->segment_count == b->segment_count;
    for (size_t i = 0; same && i < a->segment_count; i++) {
        const struct live_segment *x = &a->segments[i], *y = &b->segments[i];
        same = x->first_lsn == y->first_lsn && x->records == y->records && x->bytes == y->bytes &&
               x->largest_bytes == y->largest_bytes;
    }
    bool grows_alike = a->table.growth <= b->table.growth && a->table.loose_count == b->table.loose_count &&
                       a->table.wide_count == b->table.wide_count;
    if (same && (grows_alike || s->growths_open)) {
        return false;
    }
    return differ(s, 0, 0, same ? "the growth that admission expects" : "the live records of a segment");
}

/*
 * While a writer runs, the log does not say whether work on a deleted queue still exists. The writer drops such work
 * when it opens the store; if the queue is deleted later, the work stays until the outcome of its transaction. The
 * checkpoint has the writer's state.
 */
static bool cannot_tell(const struct state *with, const struct state *without) {
    const struct table *t = &without->table;
    bool less = t->work_count > with->table.work_count;
    for (uint32_t i = 0; less && i < t->tx_slots; i++) {
        for (const struct work *w = t->txs[i] != NULL ? t->txs[i]->first : NULL; w != NULL; w = w->next) {
            const struct queue *q = table_any_queue(t, w->queue_id);
            if (q != NULL && q->deleted) {
                return true;
            }
        }
    }
    return false;
}

int checkpoint_compare(const struct state *with, const struct state *without, ls_checkpoint_difference *difference) {
    *difference = (ls_checkpoint_difference){.differs = 0};
    struct sides s = {.with = with, .without = without, .d = difference};
    const ls_recovery *a = &with->report, *b = &without->report;
    if (a->base_lsn != b->base_lsn || a->end_lsn != b->end_lsn) {
        return fail(LS_OPTION, "the two were not read to the same end, so they cannot be compared");
    }
    (void)(cannot_tell(with, without) || messages_differ(&s) || queues_differ(&s) || transactions_differ(&s) ||
           segments_differ(&s));
    return LS_OK;
}
