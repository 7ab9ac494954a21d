/*
 * Messages once the transactions are settled: dead ones and those never enqueued are removed, places are sorted into
 * their queues by the LSN at which they became visible, records are counted, and prepared transactions take their locks.
 */
#include <stdlib.h>

#include "os/error.h"
#include "os/vfs.h"
#include "replay/messages.h"
#include "table/remembered.h"

static const char below_base[] = "a place that lives has its note or header below the base";

static bool is_on_deleted(const struct table *t, const struct work *w) {
    const struct queue *q = table_any_queue(t, w->queue_id);
    return q != NULL && q->deleted;
}

/*
 * Work on a deleted queue will have no effect, so it keeps no message alive: a relocated state leaves it out, and an open
 * drops the rest of it here. It is moved to the front of the list first, where dropping needs no search.
 */
static void drop_work_of(struct table *t, struct tx *tx, work_dropped *dropped_one, void *context) {
    struct work *dropped = NULL, *kept = NULL, **dropped_end = &dropped, **kept_end = &kept, *last = NULL;
    size_t n = 0;
    for (struct work *w = tx->first; w != NULL; w = w->next) {
        if (is_on_deleted(t, w)) {
            *dropped_end = w;
            dropped_end = &w->next;
            n++;
        } else {
            *kept_end = last = w;
            kept_end = &w->next;
        }
    }
    if (n == 0) {
        return;
    }
    tx->last = last != NULL ? last : tx->last;
    *kept_end = NULL;
    *dropped_end = kept;
    tx->first = dropped;
    while (n-- > 0) {
        uint32_t number = tx->first->message;
        tx_drop_work(t, tx->first);
        if (dropped_one != NULL) {
            dropped_one(context, number);
        }
    }
}

static bool has_deleted_queues(const struct table *t) {
    bool some = false;
    for (uint32_t i = 0; i < t->queue_count; i++) {
        some = some || (t->queues[i] != NULL && t->queues[i]->deleted);
    }
    return some;
}

void replay_drop_work_on_deleted(struct table *t, work_dropped *dropped, void *context) {
    bool some = has_deleted_queues(t);
    for (uint32_t i = 0; some && i < t->tx_slots; i++) {
        if (t->txs[i] != NULL) {
            drop_work_of(t, t->txs[i], dropped, context);
        }
    }
}

bool replay_unstage(struct state *s, struct message *m) {
    if (message_pending(m) > 0) {
        return false;
    }
    if ((m->flags & MESSAGE_PUBLISHED) != 0) { /* part of a publish: not reported as staged */
        m->flags &= (uint16_t)~MESSAGE_STAGED;
    }
    if ((m->flags & MESSAGE_STAGED) != 0) {
        m->flags &= (uint16_t)~MESSAGE_STAGED;
        s->report.staged_dropped++;
        s->report.staged_bytes += message_content_bytes(m);
        recovered_note(&s->recovered, LS_RECOVERED_STAGED, m->id, message_content_bytes(m), NULL);
    }
    return message_is_dead(m);
}

/* With a writer: a message that its open dropped without a record may have lost some of its records since. */
static bool is_whole(const struct replay *p, const struct message *m) {
    const struct message_extra *x = m->extra;
    uint64_t lowest = message_start_lsn(m);
    for (uint32_t i = 0; x != NULL && i < x->chunk_count; i++) {
        lowest = x->chunks[i].lsn < lowest ? x->chunks[i].lsn : lowest;
    }
    for (uint32_t i = 0; x != NULL && i < x->part_count; i++) {
        lowest = x->parts[i].lsn < lowest ? x->parts[i].lsn : lowest;
    }
    return lowest >= p->base_lsn;
}

/*
 * With a writer: its open may have dropped pending work on a queue, and logged the queue's deletion itself. A deletion that
 * the writer logged later looks the same, but then it keeps such work. The two differ only if the base has passed a record
 * of the message: then the open dropped the work.
 */
static void drop_lost_work(const struct replay *p, const struct message *m) {
    struct work *w = m->place_count == 0 && message_pending(m) > 0 && !is_whole(p, m) ? m->extra->work : NULL;
    while (w != NULL) {
        struct work *next = w->next_of_message;
        if (is_on_deleted(p->t, w)) {
            tx_drop_work(p->t, w);
        }
        w = next;
    }
}

/* The writer has staged it and may still enqueue it. */
static bool stays_staged(const struct replay *p, const struct message *m) {
    return p->has_writer && (m->flags & (MESSAGE_STAGED | MESSAGE_PUBLISHED)) == MESSAGE_STAGED && is_whole(p, m);
}

/*
 * Finds or makes the queue with this id; NULL: no memory. `near` is the last result, and is most often the right one
 * again.
 */
static struct queue *queue_of(const struct replay *p, struct queue *near, uint32_t id) {
    if (near != NULL && near->id == id) {
        return near;
    }
    if (table_any_queue(p->t, id) == NULL && !table_add_queue(p->t, id)) {
        return NULL;
    }
    return table_any_queue(p->t, id);
}

/* Removes dead messages and those never enqueued; counts places by queue. */
static int settle_messages(struct replay *p) {
    struct queue *q = NULL;
    bool some_deleted = has_deleted_queues(p->t);
    if (!p->has_writer) { /* a writer keeps such work until its outcome; work that its open dropped is gone already */
        replay_drop_work_on_deleted(p->t, NULL, NULL);
    }
    for (uint32_t number = 0; number < p->t->message_slots; number++) {
        struct message *m = table_message(p->t, number);
        if ((m->flags & MESSAGE_FREE) != 0) {
            continue;
        }
        if (some_deleted) {
            replay_drop_deleted(p, m);
        }
        if (some_deleted && p->has_writer) {
            drop_lost_work(p, m);
        }
        if (!stays_staged(p, m) && replay_unstage(p->state, m)) {
            table_remove(p->t, number);
            continue;
        }
        for (uint32_t i = 0; i < m->place_count; i++) {
            q = queue_of(p, q, message_places(m)[i].queue_id);
            if (q == NULL) {
                return fail_memory();
            }
            q->wanted++;
        }
    }
    return LS_OK;
}

static bool count_message(struct replay *p, const struct message *m) {
    bool there = replay_count_live(p, message_start_lsn(m), message_start_weight(m));
    const struct message_extra *x = m->extra;
    for (uint32_t i = 0; x != NULL && i < x->chunk_count; i++) {
        there = replay_count_live(p, x->chunks[i].lsn, x->chunks[i].record_bytes) && there;
    }
    for (uint32_t i = 0; x != NULL && i < x->part_count; i++) {
        there = replay_count_live(p, x->parts[i].lsn, x->parts[i].record_bytes) && there;
    }
    return there;
}

/* Notes and headers are read from records that count as live by themselves, or lie above one that does. */
static bool is_own_there(const struct replay *p, const struct own *own) {
    return own == NULL || ((own->note.lsn == 0 || own->note.lsn >= p->base_lsn) &&
                           (own->header.lsn == 0 || own->header.lsn >= p->base_lsn));
}

static int count_live(struct replay *p) {
    struct record r = {.lsn = p->base_lsn};
    for (uint32_t number = 0; number < p->t->message_slots; number++) {
        const struct message *m = table_message(p->t, number);
        r.id = m->id;
        if ((m->flags & MESSAGE_FREE) == 0 && !count_message(p, m)) {
            return replay_inconsistent(p, &r, "a message that lives has records below the base");
        }
    }
    for (uint32_t i = 0; i < p->t->tx_slots; i++) {
        const struct tx *tx = p->t->txs[i];
        r.id = tx != NULL ? tx->id : 0;
        if (tx != NULL && !replay_count_live(p, tx->start_lsn, tx_start_bytes(tx))) {
            return replay_inconsistent(p, &r, "an open transaction has its start below the base");
        }
        for (const struct work *w = tx != NULL ? tx->first : NULL; w != NULL; w = w->next) {
            if (w->state != NULL && !is_own_there(p, w->state->own)) {
                return replay_inconsistent(p, &r, below_base);
            }
        }
    }
    return LS_OK;
}

struct ordered {
    uint64_t order_lsn;
    uint32_t order_index;
    uint32_t message;
};

static int by_order(const void *a, const void *b) {
    const struct ordered *x = a, *y = b;
    int by_lsn = (x->order_lsn > y->order_lsn) - (x->order_lsn < y->order_lsn);
    return by_lsn != 0 ? by_lsn : (x->order_index > y->order_index) - (x->order_index < y->order_index);
}

static bool is_sorted(const struct ordered *list, size_t n) {
    for (size_t i = 1; i < n; i++) {
        if (by_order(&list[i - 1], &list[i]) > 0) {
            return false;
        }
    }
    return true;
}

/* The place, in its run now, gets the state that it had outside. */
static int put_state(const struct replay *p, const struct message *m, const struct place *place,
                     struct remembered *state) {
    const struct record r = {.lsn = p->base_lsn, .id = m->id};
    bool there = is_own_there(p, state->own);
    bool ready = there && chunk_prepare_state(place->at.chunk, remembered_parts(state));
    if (ready) {
        place_begins(place, m, state);
    }
    remembered_free(state);
    return ready ? LS_OK : there ? fail_memory() : replay_inconsistent(p, &r, below_base);
}

static int build_run(const struct replay *p, struct queue *q, struct ordered *list, size_t n) {
    if (!queue_prepare(q, n)) {
        return fail_memory();
    }
    if (!is_sorted(list, n)) {
        qsort(list, n, sizeof *list, by_order);
    }
    for (size_t i = 0; i < n; i++) {
        struct message *m = table_message(p->t, list[i].message);
        struct place *place = message_place(m, q->id);
        bool remembers = unplaced_remembers(place);
        struct remembered state = unplaced_state(place); /* its words end with all others */
        *place = queue_append(q, m, list[i].message, list[i].order_lsn, list[i].order_index);
        place_entry(place)->state = !p->orderly || list[i].order_lsn < p->seen_lsn ? ENTRY_RECOVERED : 0;
        int rc = remembers ? put_state(p, m, place, &state) : LS_OK;
        if (rc != LS_OK) {
            return rc;
        }
    }
    return LS_OK;
}

/* One array for all queues: each has a stretch of it, as long as its count. */
static int build_runs(struct replay *p) {
    struct table *t = p->t;
    if (t->place_count == 0) {
        return LS_OK;
    }
    struct ordered *all = calloc(t->place_count, sizeof *all);
    size_t *ends = calloc(t->queue_count + 1, sizeof *ends);
    if (all != NULL) {
        vfs_advise_large_pages(all, t->place_count * sizeof *all);
    }
    int rc = all == NULL || ends == NULL ? fail_memory() : LS_OK;
    size_t at = 0;
    for (uint32_t i = 0; rc == LS_OK && i < t->queue_count; i++) {
        ends[i] = at;
        if (t->queues[i] != NULL) {
            at += t->queues[i]->wanted;
            t->queues[i]->wanted = i; /* from here on: where its stretch is in `ends` */
        }
    }
    const struct queue *near = NULL;
    for (uint32_t number = 0; rc == LS_OK && number < t->message_slots; number++) {
        struct message *m = table_message(t, number);
        for (uint32_t i = 0; (m->flags & MESSAGE_FREE) == 0 && i < m->place_count; i++) {
            const struct place *place = &message_places(m)[i];
            if (near == NULL || near->id != place->queue_id) {
                near = table_any_queue(t, place->queue_id);
            }
            all[ends[near->wanted]++] =
                (struct ordered){unplaced_order_lsn(place), unplaced_order_index(place), number};
        }
    }
    size_t from = 0;
    for (uint32_t i = 0; i < t->queue_count; i++) {
        if (t->queues[i] != NULL) {
            t->queues[i]->wanted = 0;
            if (rc == LS_OK && ends[i] > from) {
                rc = build_run(p, t->queues[i], all + from, ends[i] - from);
            }
            from = rc == LS_OK ? ends[i] : from;
        }
    }
    free(all);
    free(ends);
    return rc;
}

static int by_work_order(const void *a, const void *b) {
    const struct work *x = *(struct work *const *)a, *y = *(struct work *const *)b;
    int by_lsn = (x->lsn > y->lsn) - (x->lsn < y->lsn);
    int by_end = (x->kind != WORK_DEQUEUE) - (y->kind != WORK_DEQUEUE); /* a move ends a place first */
    int by_index = (x->order_index > y->order_index) - (x->order_index < y->order_index);
    return by_lsn != 0 ? by_lsn : by_end != 0 ? by_end : by_index;
}

/* Sorts each transaction's work into the order in which it was done: relocation can change the order of the records. */
int messages_sort_work(const struct replay *p) {
    for (uint32_t i = 0; i < p->t->tx_slots; i++) {
        struct tx *tx = p->t->txs[i];
        bool sorted = true;
        for (struct work *w = tx != NULL ? tx->first : NULL; w != NULL && w->next != NULL; w = w->next) {
            sorted = sorted && by_work_order(&w, &w->next) <= 0;
        }
        if (sorted) {
            continue;
        }
        struct work **list = calloc(tx->work_count, sizeof(struct work *));
        if (list == NULL) {
            return fail_memory();
        }
        size_t n = 0;
        for (struct work *w = tx->first; w != NULL; w = w->next) {
            list[n++] = w;
        }
        qsort(list, n, sizeof *list, by_work_order);
        for (size_t k = 0; k < n; k++) {
            list[k]->next = k + 1 < n ? list[k + 1] : NULL;
        }
        tx->first = list[0];
        tx->last = list[n - 1];
        free(list);
    }
    return LS_OK;
}

/*
 * The first dequeue or note of a message on a queue locks the place that it found; later ones are about a place that the
 * transaction locks already, or that it makes.
 */
void messages_lock_in_doubt(const struct table *t, struct tx *tx) {
    for (struct work *w = tx->first; w != NULL; w = w->next) {
        struct message *m = table_message(t, w->message);
        struct place *place = message_place(m, w->queue_id);
        if (w->kind != WORK_ENQUEUE && place != NULL && (place_entry(place)->state & ENTRY_LOCKED) == 0) {
            queue_lock(place, m);
            w->locks = true;
        }
    }
}

int messages_settle(void *context, struct replay *p) {
    (void)context;
    int rc = settle_messages(p);
    rc = rc == LS_OK ? count_live(p) : rc;
    p->t->times.now_us = p->scan->v->now_us(p->scan->v);
    rc = rc == LS_OK ? build_runs(p) : rc;
    p->t->in_runs = rc == LS_OK;
    if (rc == LS_OK) {
        unplaced_free_pool(p->t);
    }
    return rc;
}
