/*
 * Replay: from the accepted log to the table. Writes nothing.
 *
 * Records are replayed in LSN order. What belongs to a transaction pends until its outcome, which always comes later
 * in the same log; when the log ends, transactions are settled first (an outcome that is missing is a rollback,
 * unless the transaction is prepared), and only then messages: the dead go, places are sorted into their queues by
 * the LSN at which they became visible, and what prepared transactions dequeued is locked. docs/recovery.md has the
 * argument for each step.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "replay/replay.h"
#include "os/error.h"
#include "os/vfs.h"

enum {
    RECORDS_AHEAD = 16,
    BYTES_AHEAD = 2048, /* another thread has read them: they come from its cache, */
    LINES_AHEAD = 3,    /* as many lines as a small record has */
    LINE_BYTES = 64,
    FORESEEN_FROM = 1 << 16,
    FORESEEN_TIMES = 3,
};

/* ---- the phases ---- */

void replay_begin_batch(struct replay *p, const struct scan_batch *b) {
    p->report->batches++;
    p->report->records += b->batch.count;
    p->time_us = b->batch.time_us;
}

/*
 * The index grows in few steps: to what there will be in the end if it goes on like this. What is guessed too high is
 * memory that lies idle, and so the guess is at most so many times what there is.
 */
static void foresee(const struct replay *p, const struct scan_batch *b) {
    struct index *x = &p->t->messages;
    uint64_t behind = b->lsn - p->base_lsn, before = p->scan->end_lsn - b->lsn;
    if (x->count < FORESEEN_FROM || index_has_room(x, b->batch.count)) {
        return;
    }
    uint64_t times = before / behind < FORESEEN_TIMES ? before / behind + 1 : FORESEEN_TIMES;
    (void)index_prepare(x, x->count * times); /* without so much memory it grows as ever */
}

/* Its chain will soon be looked for, or made: what the index has there comes nearer meanwhile. */
static void fetch_chain(const struct replay *p, const struct scan_batch *b, uint32_t *offset) {
    struct record r;
    if (*offset + BYTES_AHEAD + LINES_AHEAD * LINE_BYTES < b->batch.bytes) {
        for (int i = 0; i < LINES_AHEAD; i++) {
            __builtin_prefetch(b->bytes + *offset + BYTES_AHEAD + i * LINE_BYTES);
        }
    }
    if (scan_record(b, offset, &r) && r.type <= MESSAGE_RELOCATED) {
        index_prefetch(&p->t->messages, r.id);
    }
}

static int replay_batch(struct replay *p, const struct scan_batch *b) {
    uint32_t offset = BATCH_RECORD_BYTES, ahead = BATCH_RECORD_BYTES;
    struct record r;
    int rc = LS_OK;
    foresee(p, b);
    for (int i = 0; i < RECORDS_AHEAD; i++) {
        fetch_chain(p, b, &ahead);
    }
    while (rc == LS_OK && scan_record(b, &offset, &r)) {
        fetch_chain(p, b, &ahead);
        rc = replay_record(p, &r);
    }
    return rc;
}

int replay_log(struct replay *p) {
    struct scan_batch b;
    int rc;
    while ((rc = scan_next(p->scan, &b)) == LS_OK) {
        replay_begin_batch(p, &b);
        rc = replay_batch(p, &b);
        if (rc != LS_OK) {
            return rc;
        }
    }
    return rc == LS_END ? LS_OK : rc;
}

/* What has no outcome is rolled back, unless it is prepared; its record is owed, and pins its start until then. */
static int settle_transactions(struct replay *p) {
    for (uint32_t i = 0; i < p->t->tx_slots; i++) {
        struct tx *tx = p->t->txs[i];
        if (tx == NULL) {
            continue;
        }
        if (!tx->started) {
            struct record r = {.lsn = tx->first != NULL ? tx->first->lsn : p->base_lsn, .id = tx->id};
            return replay_inconsistent(p, &r, "an operation's transaction has neither start nor outcome");
        }
        if (p->beside && tx->state != LS_TX_PREPARED) { /* the writer's own, or what its open rolled back */
            if (tx->settled) {
                table_remove_tx(p->t, tx);
            }
            continue;
        }
        if (tx->state == LS_TX_PREPARED) {
            p->report->transactions_in_doubt++;
        } else {
            recovered_note(&p->state->recovered, LS_RECOVERED_TRANSACTION, tx->id, tx->work_count, tx);
            p->report->operations_undone += tx->work_count;
            replay_undo(p, tx);
            p->report->transactions_abandoned++;
            if (p->inspects) {
                table_remove_tx(p->t, tx);
            }
        }
    }
    return LS_OK;
}

static bool is_on_deleted(const struct replay *p, const struct work *w) {
    const struct queue *q = table_any_queue(p->t, w->queue_id);
    return q != NULL && q->deleted;
}

/*
 * Work on a deleted queue will have no effect, so no message lives by it: a relocated state leaves it out, and the open
 * drops what was not relocated. It is brought to the front of the list, where dropping takes no search.
 */
static void drop_work_on_deleted(const struct replay *p, struct tx *tx) {
    struct work *dropped = NULL, *kept = NULL, **dropped_end = &dropped, **kept_end = &kept, *last = NULL;
    size_t n = 0;
    for (struct work *w = tx->first; w != NULL; w = w->next) {
        if (is_on_deleted(p, w)) {
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
        tx_drop_work(p->t, tx->first);
    }
}

static bool has_deleted_queues(const struct table *t) {
    bool some = false;
    for (uint32_t i = 0; i < t->queue_count; i++) {
        some = some || (t->queues[i] != NULL && t->queues[i]->deleted);
    }
    return some;
}

void replay_drop_work_on_deleted(const struct replay *p) {
    bool some = has_deleted_queues(p->t);
    for (uint32_t i = 0; some && i < p->t->tx_slots; i++) {
        if (p->t->txs[i] != NULL) {
            drop_work_on_deleted(p, p->t->txs[i]);
        }
    }
}

/* Beside a writer, what its open dropped without a record of that may have lost some of its own since. */
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

/* The queue with this id, made if it is not there yet; NULL: no memory. `near` is the last one: mostly it is that again. */
static struct queue *queue_of(const struct replay *p, struct queue *near, uint32_t id) {
    if (near != NULL && near->id == id) {
        return near;
    }
    if (table_any_queue(p->t, id) == NULL && !table_add_queue(p->t, id)) {
        return NULL;
    }
    return table_any_queue(p->t, id);
}

/* The dead and the never enqueued go; places are counted by queue. */
static int settle_messages(struct replay *p) {
    struct queue *q = NULL;
    bool some_deleted = has_deleted_queues(p->t);
    if (!p->beside) { /* a writer keeps such work until its outcome; what its open dropped is gone already */
        replay_drop_work_on_deleted(p);
    }
    for (uint32_t number = 0; number < p->t->message_slots; number++) {
        struct message *m = table_message(p->t, number);
        if ((m->flags & MESSAGE_FREE) != 0) {
            continue;
        }
        if (some_deleted) {
            replay_drop_deleted(p, m);
        }
        if ((m->flags & MESSAGE_PUBLISHED) != 0 && message_pending(m) == 0) { /* it was to be where its work was */
            m->flags &= (uint16_t)~MESSAGE_STAGED;
        }
        if ((m->flags & MESSAGE_STAGED) != 0 && message_pending(m) == 0 && (!p->beside || !is_whole(p, m))) {
            m->flags &= (uint16_t)~MESSAGE_STAGED;
            p->report->staged_dropped++;
            p->report->staged_bytes += message_content_bytes(m);
            recovered_note(&p->state->recovered, LS_RECOVERED_STAGED, m->id, message_content_bytes(m), NULL);
        }
        if (message_is_dead(m)) {
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

/* ---- what lives where ---- */

/* One record that the table needs; false if it is not in the log. *near: where the last one was, as mostly the next. */
static bool count_record(const struct replay *p, struct live_segment **near, uint64_t lsn, uint64_t bytes) {
    struct live_segment *s = *near;
    if (s == NULL || lsn < s->first_lsn || lsn - s->first_lsn >= p->state->segment_size) {
        s = *near = lsn >= p->base_lsn ? state_segment(p->state, lsn) : NULL;
    }
    if (s != NULL) {
        s->records++;
        s->bytes += bytes;
        s->largest_bytes = bytes > s->largest_bytes ? bytes : s->largest_bytes;
    }
    return s != NULL;
}

static bool count_message(const struct replay *p, struct live_segment **near, const struct message *m) {
    bool there = count_record(p, near, message_start_lsn(m), message_start_weight(m));
    const struct message_extra *x = m->extra;
    for (uint32_t i = 0; x != NULL && i < x->chunk_count; i++) {
        there = count_record(p, near, x->chunks[i].lsn, x->chunks[i].record_bytes) && there;
    }
    for (uint32_t i = 0; x != NULL && i < x->part_count; i++) {
        there = count_record(p, near, x->parts[i].lsn, x->parts[i].record_bytes) && there;
    }
    return there;
}

static int count_live(const struct replay *p) {
    struct record r = {.lsn = p->base_lsn};
    struct live_segment *near = NULL;
    for (uint32_t number = 0; number < p->t->message_slots; number++) {
        const struct message *m = table_message(p->t, number);
        r.id = m->id;
        if ((m->flags & MESSAGE_FREE) == 0 && !count_message(p, &near, m)) {
            return replay_inconsistent(p, &r, "a message that lives has records below the base");
        }
    }
    for (uint32_t i = 0; i < p->t->tx_slots; i++) {
        const struct tx *tx = p->t->txs[i];
        r.id = tx != NULL ? tx->id : 0;
        if (tx != NULL && !count_record(p, &near, tx->start_lsn, tx_start_bytes(tx))) {
            return replay_inconsistent(p, &r, "an open transaction has its start below the base");
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

static int build_run(const struct replay *p, struct queue *q, struct ordered *list, size_t n) {
    if (!queue_prepare(q, n)) {
        return fail_memory();
    }
    if (!is_sorted(list, n)) {
        qsort(list, n, sizeof *list, by_order);
    }
    for (size_t i = 0; i < n; i++) {
        struct place *place = message_place(table_message(p->t, list[i].message), q->id);
        *place = queue_append(q, list[i].message, list[i].order_lsn, list[i].order_index);
        place_entry(place)->state = ENTRY_RECOVERED;
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
            all[ends[near->wanted]++] = (struct ordered){place->at.order_lsn, place->slot, number};
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
    return by_lsn != 0 ? by_lsn : (x->order_index > y->order_index) - (x->order_index < y->order_index);
}

/* A transaction's work in the order in which it was done, whatever was relocated in between. */
static int sort_work(const struct replay *p) {
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

/* The first dequeue of a message on a queue locks the place it found; later ones undo enqueues of their own. */
static void lock_in_doubt(const struct replay *p) {
    for (uint32_t i = 0; i < p->t->tx_slots; i++) {
        struct tx *tx = p->t->txs[i];
        for (struct work *w = tx != NULL ? tx->first : NULL; w != NULL; w = w->next) {
            struct place *place = message_place(table_message(p->t, w->message), w->queue_id);
            if (w->kind == WORK_DEQUEUE && place != NULL && (place_entry(place)->state & ENTRY_LOCKED) == 0) {
                queue_lock(place);
                w->locks = true;
            }
        }
    }
}

static void report_scan(struct replay *p) {
    const struct scan *s = p->scan;
    p->report->clean = s->clean;
    p->report->direct = s->direct;
    p->report->base_lsn = s->base_lsn;
    p->report->end_lsn = s->end_lsn;
    p->report->watermark_lsn = s->watermark_lsn;
    p->report->torn_bytes = s->torn_bytes;
    p->report->bytes_read = s->bytes_read;
}

/* From what the records say to what lives. */
int replay_settle(struct replay *p) {
    vfs *v = p->scan->v;
    ls_recovery *report = p->report;
    report_scan(p);
    uint64_t start_us = v->monotonic_us(v);
    int rc = settle_transactions(p);
    rc = rc == LS_OK ? sort_work(p) : rc;
    uint64_t settled_us = v->monotonic_us(v);
    rc = rc == LS_OK ? settle_messages(p) : rc;
    rc = rc == LS_OK ? count_live(p) : rc;
    rc = rc == LS_OK ? build_runs(p) : rc;
    if (rc == LS_OK) {
        lock_in_doubt(p);
    }
    report->messages = p->t->message_count;
    report->places = p->t->place_count;
    report->transactions_us = settled_us - start_us;
    report->messages_us = v->monotonic_us(v) - settled_us;
    return rc;
}
