/* One pass over the log, record by record, for the rows of messages. See message_rows.h. */
#include "analysis/message_rows.h"

#include <stdlib.h>

#include "read/damage.h"
#include "os/error.h"

int pass_malformed(const pass *p, const struct record *r) {
    return fail_at(LS_CORRUPT, p->batch.first_lsn, r->lsn,
                   "the log is damaged: a record's checksum is right but its contents are impossible");
}

/* ---- message records ---- */

struct life *pass_counted(const pass *p, const struct record *r, uint32_t *number) {
    struct life *l = lives_find(p, r->id, number);
    if (l != NULL) {
        l->record_count += l->record_count < INT32_MAX ? 1 : 0;
        l->record_bytes += r->length;
    }
    return l;
}

uint64_t pass_time(const pass *p) {
    uint64_t time_us = p->batch.batch.time_us;
    return time_us <= INT64_MAX ? time_us : INT64_MAX;
}

/* `state` is that of each place; NULL: none. */
static int enqueue(pass *p, const struct record *r, uint32_t number, const struct message_enqueue *e,
                   const struct place_state *state) {
    int rc = LS_OK;
    if (e->tx_id == 0 && e->queue_count > 0) {
        life_enqueued(p, life_at(p, number));
    }
    for (uint32_t i = 0; rc == LS_OK && i < e->queue_count; i++) {
        uint32_t queue_id = format_queue_id(e->queues, i);
        struct life_placed *kept = NULL;
        if (state != NULL && !life_placed_new(state, &kept)) {
            return fail_memory();
        }
        if (e->tx_id != 0) {
            const struct life_work work = {.tx_id = e->tx_id,
                                           .lsn = r->lsn,
                                           .state = kept,
                                           .queue_id = queue_id,
                                           .order_index = e->order_index + i,
                                           .kind = PENDING_ENQUEUE};
            rc = life_add_work(p, number, &work);
        } else {
            const struct life_place place = {
                .enqueue_lsn = r->lsn, .enqueue_time_us = pass_time(p), .state = kept, .queue_id = queue_id};
            rc = life_add_place(p, number, &place);
        }
    }
    return rc;
}

static int start(pass *p, const struct record *r) {
    struct message_start m;
    struct place_state state;
    bool placed = r->type == MESSAGE_START_PLACED;
    uint32_t number;
    if ((r->flags & FLAG_COPY) != 0) {
        return moves_start_copy(p, r);
    }
    if ((placed ? format_get_start_placed(r, &m, &state) : format_get_start(r, &m)) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    if (lives_find(p, r->id, &number) != NULL) {
        return LS_OK;
    }
    uint32_t flags = LIFE_WHOLE | LIFE_HEADER | ((r->flags & FLAG_PUBLISHED) != 0 ? LIFE_PUBLISHED : 0U);
    int rc = lives_add(p, r->id, flags, &number);
    if (rc != LS_OK) {
        return rc;
    }
    struct life *l = life_at(p, number);
    l->start_time_us = pass_time(p);
    l->content_bytes = m.content_bytes;
    l->header_bytes = m.header_bytes;
    l->record_count = 1;
    l->record_bytes = r->length;
    body_begins(p, number, r->lsn, m.content_bytes);
    const struct message_enqueue e = {
        .tx_id = m.tx_id, .order_index = m.order_index, .queue_count = m.queue_count, .queues = m.queues};
    return enqueue(p, r, number, &e, placed ? &state : NULL);
}

static int chunk(pass *p, const struct record *r) {
    struct message_chunk c;
    uint32_t number;
    if ((r->flags & FLAG_COPY) != 0) {
        return moves_chunk_copy(p, r);
    }
    if (format_get_chunk(r, &c) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    struct life *l = pass_counted(p, r, &number);
    if (l != NULL && c.content_bytes == 0) { /* undoes an append that failed */
        l->content_bytes = c.offset < l->content_bytes ? c.offset : l->content_bytes;
    } else if (l != NULL) {
        l->content_bytes += c.content_bytes <= CONTENT_BYTES_MAX - l->content_bytes ? c.content_bytes : 0;
    }
    return l != NULL && p->body_bytes > 0 ? body_goes_on(p, life_content(p, number), r->lsn, c.offset, c.content_bytes)
                                          : LS_OK;
}

static int later_enqueue(pass *p, const struct record *r) {
    struct message_enqueue e;
    uint32_t number;
    if (format_get_enqueue(r, &e) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    return pass_counted(p, r, &number) != NULL ? enqueue(p, r, number, &e, NULL) : LS_OK;
}

static int dequeue(pass *p, const struct record *r) {
    struct message_dequeue d;
    uint32_t number;
    if (format_get_dequeue(r, &d) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    struct life *l = pass_counted(p, r, &number);
    if (l == NULL) {
        return LS_OK;
    }
    if (d.tx_id != 0) {
        const struct life_work work = {.tx_id = d.tx_id,
                                       .lsn = r->lsn,
                                       .queue_id = d.queue_id,
                                       .delivery_count = d.delivery_count,
                                       .reason = (uint8_t)d.reason,
                                       .kind = PENDING_DEQUEUE};
        return life_add_work(p, number, &work);
    }
    p->end.how = PLACE_DEQUEUED;
    p->end.delivery_count = d.delivery_count;
    p->end.reason = (uint8_t)d.reason;
    bool over = (r->flags & FLAG_DELETES) != 0;
    if (l->more == NULL && ((l->flags & LIFE_PLACE) == 0 || l->queue_id != d.queue_id)) {
        p->end.how = PLACE_OPEN;
    } else if (l->more == NULL) {
        over = true;
    } else if (life_end_place(p, l, d.queue_id, &p->end)) {
        over = over || (l->more->open_places == 0 && l->more->work_count == 0);
    }
    return over ? lives_close(p, number) : LS_OK;
}

/* ---- outcomes ---- */

static int by_id(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* A message without places and work has ended, unless it is staged and can be enqueued. */
static int after_outcome(pass *p, uint32_t number, bool by_recovery) {
    const struct life *l = life_at(p, number);
    if (life_open_places(l) > 0 || life_work_count(l) > 0) {
        life_simplify(p, number);
        return LS_OK;
    }
    if (!life_is_staged(l) || (l->flags & LIFE_PUBLISHED) != 0 || by_recovery) {
        return lives_close(p, number);
    }
    life_simplify(p, number);
    return LS_OK;
}

/*
 * An open rolled back every transaction that was neither decided nor prepared, and dropped messages that stayed staged.
 */
static int decide(pass *p, const struct record *r) {
    struct life_tx *tx = lives_tx(p, r->id);
    int rc = LS_OK;
    if (tx == NULL) {
        return LS_OK;
    }
    bool commits = r->type == TX_COMMIT;
    bool by_recovery = !commits && !tx->prepared && r->id < p->epoch_lsn;
    p->end.tx_id = r->id;
    p->end.how = PLACE_DEQUEUED;
    if (tx->count > 1) {
        qsort(tx->ids, tx->count, sizeof *tx->ids, by_id);
    }
    for (size_t i = 0; rc == LS_OK && i < tx->count; i++) {
        uint32_t number;
        const struct life *l = i > 0 && tx->ids[i] == tx->ids[i - 1] ? NULL : lives_find(p, tx->ids[i], &number);
        if (l == NULL || l->more == NULL) {
            continue;
        }
        rc = life_decide_work(p, number, r->id, commits ? &p->end : NULL);
        rc = rc == LS_OK ? after_outcome(p, number, by_recovery) : rc;
    }
    lives_remove_tx(p, r->id);
    return rc;
}

static int note_prepared(pass *p, const struct record *r) {
    struct life_tx *tx = lives_tx(p, r->id);
    struct tx_relocated state = {.state = TX_STATE_PREPARED};
    if (r->type == TX_RELOCATED && format_get_tx_relocated(r, &state) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    if (tx != NULL && state.state == TX_STATE_PREPARED) {
        tx->prepared = true;
    }
    return LS_OK;
}

/* ---- records that end many messages ---- */

static int compare_closing(const void *a, const void *b) {
    const struct ended_id *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Messages that one record ended get their rows by id. */
static int sort_closing(pass *p) {
    bool sorted = true;
    for (size_t i = 1; sorted && i < p->closing_count; i++) {
        sorted = life_at(p, p->closing[i - 1])->id < life_at(p, p->closing[i])->id;
    }
    if (sorted) {
        return LS_OK;
    }
    struct ended_id *list = malloc(p->closing_count * sizeof *list);
    if (list == NULL) {
        return fail_memory();
    }
    for (size_t i = 0; i < p->closing_count; i++) {
        list[i] = (struct ended_id){.id = life_at(p, p->closing[i])->id, .number = p->closing[i]};
    }
    qsort(list, p->closing_count, sizeof *list, compare_closing);
    for (size_t i = 0; i < p->closing_count; i++) {
        p->closing[i] = list[i].number;
    }
    free(list);
    return LS_OK;
}

static int delete_queue(pass *p, const struct record *r) {
    uint32_t queue_id;
    if (format_get_queue_delete(r, &queue_id) != FORMAT_OK) {
        return pass_malformed(p, r);
    }
    p->end.how = PLACE_QUEUE_DELETED;
    p->end.reason = DEQUEUE_REASON_MAX; /* queue deleted */
    int rc = lives_delete_queue(p, queue_id, &p->end);
    return rc == LS_OK ? sort_closing(p) : rc;
}

/* An open drops messages that were never enqueued and have no pending work. */
static int begin_epoch(pass *p) {
    const struct scan_batch *b = &p->batch;
    int rc = LS_OK;
    if (p->epoch == b->batch.epoch) {
        return LS_OK;
    }
    if (p->epoch != 0) {
        p->epoch_lsn = b->lsn;
        moves_forget(p);
        p->end = (struct ending){.lsn = b->lsn >= p->start_lsn ? b->lsn : p->start_lsn, .time_us = pass_time(p)};
        p->end_type = BATCH;
        for (uint32_t number = 0; p->staged > 0 && rc == LS_OK && number < p->slots; number++) {
            const struct life *l = life_at(p, number);
            bool dropped = (l->flags & (LIFE_FREE | LIFE_ENQUEUED)) == 0 && life_work_count(l) == 0;
            rc = dropped ? lives_close(p, number) : LS_OK;
        }
        rc = rc == LS_OK ? sort_closing(p) : rc;
    }
    p->epoch = b->batch.epoch;
    return rc;
}

/* ---- the pass ---- */

static int take_record(pass *p, const struct record *r) {
    uint32_t number;
    p->end = (struct ending){.lsn = r->lsn, .time_us = pass_time(p)};
    p->end_type = r->type;
    switch (r->type) {
    case MESSAGE_START:
    case MESSAGE_START_PLACED:
        return start(p, r);
    case MESSAGE_CHUNK:
        return chunk(p, r);
    case MESSAGE_ENQUEUE:
        return later_enqueue(p, r);
    case MESSAGE_DEQUEUE:
        return dequeue(p, r);
    case MESSAGE_DELETE:
        return pass_counted(p, r, &number) != NULL ? lives_close(p, number) : LS_OK;
    case MESSAGE_RELOCATED:
    case MESSAGE_RELOCATED_PLACED:
        return moves_state(p, r);
    case MESSAGE_PLACE:
        return places_note(p, r);
    case MESSAGE_MOVE:
        return places_move(p, r);
    case PLACE_STATES:
        return places_states(p, r);
    case TX_PREPARE:
    case TX_RELOCATED:
        return note_prepared(p, r);
    case TX_COMMIT:
    case TX_ROLLBACK:
        return decide(p, r);
    case QUEUE_DELETE:
        return delete_queue(p, r);
    default:
        return LS_OK; /* types without an effect on messages */
    }
}

/* Puts a row for each message that has ended. LS_END: the batch is full. */
static int put_closing(pass *p, ls_columns *c) {
    int rc = LS_OK;
    while (rc == LS_OK && p->closing_next < p->closing_count) {
        uint32_t number = p->closing[p->closing_next];
        rc = c->rows < p->batch_rows ? message_columns_put(p, c, number, false) : LS_END;
        if (rc == LS_OK) {
            lives_remove(p, number);
            p->closing_next++;
        }
    }
    if (rc == LS_OK) {
        p->closing_count = p->closing_next = 0;
    }
    return rc;
}

/* Checks that the log begins at or below the start; else messages that ended in between would be missing. */
static int begin(pass *p, const ls_reader *reader) {
    const struct scan *s = &reader->scan;
    p->began = true;
    if (s->last == SIZE_MAX || p->start_lsn == 0) {
        return LS_OK;
    }
    const struct scan_file *f = &s->files[s->first];
    return f->first_lsn <= p->start_lsn || f->header.prev_end_lsn <= p->start_lsn
               ? LS_OK
               : fail(LS_RECYCLED, "the log from LSN %llu to %llu was recycled: rows of messages cannot begin there",
                      (unsigned long long)p->start_lsn, (unsigned long long)f->header.prev_end_lsn);
}

/* The next batch. LS_END: there is none below stop_lsn. */
static int next_batch(pass *p, ls_reader *reader) {
    do {
        int rc = p->began ? LS_OK : bodies_begin(p, reader);
        rc = rc == LS_OK && !p->began ? begin(p, reader) : rc;
        rc = rc == LS_OK ? reader_next(reader, &p->batch) : rc;
        if (rc != LS_OK) {
            return rc;
        }
    } while (p->batch.lsn + p->batch.batch.bytes <= p->start_lsn);
    if (p->batch.lsn >= p->stop_lsn) {
        return LS_END;
    }
    if (p->from_lsn == 0) {
        p->from_lsn = p->batch.lsn >= p->start_lsn ? p->batch.lsn : p->start_lsn;
    }
    p->in_batch = true;
    p->offset = 0;
    p->budget -= p->budget < p->batch.batch.bytes ? p->budget : p->batch.batch.bytes;
    return begin_epoch(p);
}

/* LS_OK: the batch of rows is *full, or this call has read enough. LS_END: the log was read to stop_lsn. */
static int fill(pass *p, ls_reader *reader, ls_columns *c, bool *full) {
    int rc = LS_OK;
    *full = false;
    p->budget = p->read_at_once;
    while (rc == LS_OK) {
        rc = p->closing_count > 0 ? put_closing(p, c) : LS_OK;
        *full = rc == LS_END;
        if (*full || (!p->in_batch && p->budget == 0)) {
            return LS_OK;
        }
        struct record r;
        if (rc != LS_OK) {
            break;
        }
        if (!p->in_batch) {
            rc = next_batch(p, reader);
        } else if (!scan_record(&p->batch, &p->offset, &r)) {
            p->in_batch = false;
        } else if (r.lsn >= p->stop_lsn) {
            rc = LS_END;
        } else if (r.lsn >= p->start_lsn) {
            rc = take_record(p, &r);
        }
    }
    return rc;
}

int pass_keep_failure(pass *p, int rc) {
    if (rc != LS_OK && rc != LS_END) {
        p->failure = rc;
        p->error = *ls_last_error();
    }
    return rc;
}

int ls_message_rows_next(ls_message_rows *rows, ls_reader *reader, ls_columns **batch) {
    *batch = NULL;
    if (rows->failure != LS_OK) {
        return fail_again(&rows->error);
    }
    if (rows->ended) {
        return LS_END;
    }
    ls_columns *c = rows->filling != NULL ? rows->filling : message_columns_new(rows, false, rows->batch_rows);
    if (c == NULL) {
        return pass_keep_failure(rows, fail_memory());
    }
    bool full;
    rows->filling = c;
    int rc = pass_keep_failure(rows, fill(rows, reader, c, &full));
    if (rc == LS_END) {
        rows->ended = true;
        full = c->rows > 0;
        rc = full ? LS_OK : LS_END;
    }
    if (rc == LS_OK && full) {
        *batch = c;
        rows->filling = NULL;
    }
    return rc;
}

static int sort_open(pass *p) {
    p->sorted = malloc((p->count + 1) * sizeof *p->sorted);
    if (p->sorted == NULL) {
        return fail_memory();
    }
    for (uint32_t number = 0; number < p->slots; number++) {
        const struct life *l = life_at(p, number);
        if ((l->flags & LIFE_FREE) == 0) {
            p->sorted[p->sorted_count++] = (struct ended_id){.id = l->id, .number = number};
        }
    }
    qsort(p->sorted, p->sorted_count, sizeof *p->sorted, compare_closing);
    return LS_OK;
}

int ls_message_rows_open(ls_message_rows *rows, ls_columns **batch) {
    *batch = NULL;
    if (rows->failure != LS_OK) {
        return fail_again(&rows->error);
    }
    if (!rows->ended) {
        return fail(LS_WRONG_STATE, "open messages are known only after the last row of the ended ones was read");
    }
    int rc = rows->sorted == NULL ? pass_keep_failure(rows, sort_open(rows)) : LS_OK;
    if (rc == LS_OK && rows->sorted_next == rows->sorted_count) {
        rows->sorted_next = 0; /* another call starts from the beginning */
        return LS_END;
    }
    uint64_t left = rows->sorted_count - rows->sorted_next;
    ls_columns *c =
        rc == LS_OK ? message_columns_new(rows, true, left < rows->batch_rows ? left : rows->batch_rows) : NULL;
    rc = rc == LS_OK && c == NULL ? pass_keep_failure(rows, fail_memory()) : rc;
    while (rc == LS_OK && c != NULL && rows->sorted_next < rows->sorted_count && c->rows < rows->batch_rows) {
        rc = message_columns_put(rows, c, rows->sorted[rows->sorted_next].number, true);
        rows->sorted_next += rc == LS_OK ? 1 : 0;
    }
    rc = rc == LS_END && c != NULL && c->rows > 0 ? LS_OK : rc;
    if (rc != LS_OK) {
        ls_columns_free(c);
        return pass_keep_failure(rows, rc);
    }
    *batch = c;
    return LS_OK;
}

/* ---- made and freed ---- */

static int by_queue_id(const void *a, const void *b) {
    const struct name_of *x = a, *y = b;
    return (x->queue_id > y->queue_id) - (x->queue_id < y->queue_id);
}

int ls_message_rows_new(uint64_t start_lsn, uint64_t stop_lsn, const uint32_t *queue_ids, size_t n, uint64_t batch_rows,
                        ls_message_rows **rows) {
    *rows = NULL;
    if (start_lsn > stop_lsn || stop_lsn > LSN_MAX || batch_rows == 0 || batch_rows > LS_MESSAGE_ROWS_MAX ||
        n > LS_MESSAGE_NAMES_MAX) {
        return fail(LS_OPTION,
                    "a range of the log ends at or above its start and below 2^63; a batch has 1 to %d rows, "
                    "and at most %d queues have names",
                    LS_MESSAGE_ROWS_MAX, LS_MESSAGE_NAMES_MAX);
    }
    pass *p = calloc(1, sizeof *p);
    struct name_of *names = calloc(n + 1, sizeof *names);
    struct column_pool *pool = column_pool_new();
    if (p == NULL || names == NULL || pool == NULL) {
        free(p);
        free(names);
        column_pool_end(pool);
        return fail_memory();
    }
    for (size_t i = 0; i < n; i++) {
        names[i] = (struct name_of){.queue_id = queue_ids[i], .index = (uint32_t)i};
    }
    qsort(names, n, sizeof *names, by_queue_id);
    p->start_lsn = start_lsn;
    p->stop_lsn = stop_lsn;
    p->batch_rows = batch_rows;
    p->read_at_once = READ_AT_ONCE;
    p->names = names;
    p->name_count = n;
    p->pool = pool;
    p->body_file = -1;
    lives_init(p);
    *rows = p;
    return LS_OK;
}

void ls_message_rows_free(ls_message_rows *rows) {
    if (rows == NULL) {
        return;
    }
    ls_columns_free(rows->filling);
    column_pool_end(rows->pool);
    lookback_free(rows->look);
    moves_forget(rows);
    lives_free(rows);
    free(rows->names);
    free(rows->closing);
    free(rows->sorted);
    free(rows->keys);
    free(rows->blob);
    free(rows);
}
