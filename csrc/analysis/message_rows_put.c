/* The columns of messages, and how a life becomes a row. See message_rows.h. */
#include <stdlib.h>

#include "os/array.h"
#include "os/error.h"
#include "analysis/message_rows.h"

enum column_name {
    C_ID,
    C_QUEUE_ID,
    C_QUEUE,
    C_START_TIME,
    C_ENQUEUE_LSN,
    C_ENQUEUE_TIME,
    C_DEQUEUE_LSN,
    C_DEQUEUE_TIME,
    C_END_LSN,
    C_END_TIME,
    C_OUTCOME,
    C_REASON,
    C_DELIVERY_COUNT,
    C_PLACE_COUNT,
    C_HEADER_BYTES,
    C_CONTENT_BYTES,
    C_RECORD_COUNT,
    C_RECORD_BYTES,
    C_COPY_COUNT,
    C_COPIED_BYTES,
    C_ENQUEUE_TX,
    C_DEQUEUE_TX,
    C_WHOLE,
    C_PLACES,
    C_PENDING,
    C_STAGED,
    C_STATE,
    C_BODY,
    P_QUEUE_ID,
    P_QUEUE,
    P_ENQUEUE_LSN,
    P_ENQUEUE_TIME,
    P_ENQUEUE_TX,
    P_DEQUEUE_LSN,
    P_DEQUEUE_TIME,
    P_DEQUEUE_TX,
    P_REASON,
    P_DELIVERY_COUNT,
    P_NOT_BEFORE,
    P_EXPIRES,
    P_NOTE,
    P_HEADER_BYTES,
    COLUMNS_IN_ALL,
};

static_assert(COLUMNS_IN_ALL == LS_MESSAGE_COLUMNS, "LS_MESSAGE_COLUMNS counts these");

enum { BOTH = LS_MESSAGES_CLOSED | LS_MESSAGES_OPEN };

/* Every column, once: how its values are kept, the tables that have it, and its name and type. */
static const struct {
    enum column_kind kind;
    int tables;
    const char *column;
} message_columns[COLUMNS_IN_ALL] = {
    [C_ID] = {COLUMN_64, BOTH, "id:int64!"},
    [C_QUEUE_ID] = {COLUMN_64, BOTH, "queue_id:int64"},
    [C_QUEUE] = {COLUMN_32, BOTH, "queue:name"},
    [C_START_TIME] = {COLUMN_64, BOTH, "start_time:time"},
    [C_ENQUEUE_LSN] = {COLUMN_64, BOTH, "enqueue_lsn:int64"},
    [C_ENQUEUE_TIME] = {COLUMN_64, BOTH, "enqueue_time:time"},
    [C_DEQUEUE_LSN] = {COLUMN_64, BOTH, "dequeue_lsn:int64"},
    [C_DEQUEUE_TIME] = {COLUMN_64, BOTH, "dequeue_time:time"},
    [C_END_LSN] = {COLUMN_64, LS_MESSAGES_CLOSED, "end_lsn:int64!"},
    [C_END_TIME] = {COLUMN_64, LS_MESSAGES_CLOSED, "end_time:time!"},
    [C_OUTCOME] = {COLUMN_8, LS_MESSAGES_CLOSED, "outcome:name!"},
    [C_REASON] = {COLUMN_8, BOTH, "reason:name"},
    [C_DELIVERY_COUNT] = {COLUMN_32, BOTH, "delivery_count:int32"},
    [C_PLACE_COUNT] = {COLUMN_32, BOTH, "place_count:int32!"},
    [C_HEADER_BYTES] = {COLUMN_64, BOTH, "header_bytes:int64"},
    [C_CONTENT_BYTES] = {COLUMN_64, BOTH, "content_bytes:int64!"},
    [C_RECORD_COUNT] = {COLUMN_32, BOTH, "record_count:int32!"},
    [C_RECORD_BYTES] = {COLUMN_64, BOTH, "record_bytes:int64!"},
    [C_COPY_COUNT] = {COLUMN_32, BOTH, "copy_count:int32!"},
    [C_COPIED_BYTES] = {COLUMN_64, BOTH, "copied_bytes:int64!"},
    [C_ENQUEUE_TX] = {COLUMN_64, BOTH, "enqueue_tx:int64"},
    [C_DEQUEUE_TX] = {COLUMN_64, BOTH, "dequeue_tx:int64"},
    [C_WHOLE] = {COLUMN_BITS, BOTH, "whole:bool!"},
    [C_PLACES] = {COLUMN_LIST, BOTH, "places:places!"},
    [C_PENDING] = {COLUMN_32, LS_MESSAGES_OPEN, "pending:int32!"},
    [C_STAGED] = {COLUMN_BITS, LS_MESSAGES_OPEN, "staged:bool!"},
    [C_STATE] = {COLUMN_BYTES, LS_MESSAGES_OPEN, "state:binary!"},
    [C_BODY] = {COLUMN_BYTES, BOTH | LS_MESSAGES_BODY, "body:binary"},
    [P_QUEUE_ID] = {COLUMN_64, LS_MESSAGES_PLACE, "queue_id:int64"},
    [P_QUEUE] = {COLUMN_32, LS_MESSAGES_PLACE, "queue:name"},
    [P_ENQUEUE_LSN] = {COLUMN_64, LS_MESSAGES_PLACE, "enqueue_lsn:int64"},
    [P_ENQUEUE_TIME] = {COLUMN_64, LS_MESSAGES_PLACE, "enqueue_time:time"},
    [P_ENQUEUE_TX] = {COLUMN_64, LS_MESSAGES_PLACE, "enqueue_tx:int64"},
    [P_DEQUEUE_LSN] = {COLUMN_64, LS_MESSAGES_PLACE, "dequeue_lsn:int64"},
    [P_DEQUEUE_TIME] = {COLUMN_64, LS_MESSAGES_PLACE, "dequeue_time:time"},
    [P_DEQUEUE_TX] = {COLUMN_64, LS_MESSAGES_PLACE, "dequeue_tx:int64"},
    [P_REASON] = {COLUMN_8, LS_MESSAGES_PLACE, "reason:name"},
    [P_DELIVERY_COUNT] = {COLUMN_32, LS_MESSAGES_PLACE, "delivery_count:int32"},
    [P_NOT_BEFORE] = {COLUMN_64, LS_MESSAGES_PLACE, "not_before:time"},
    [P_EXPIRES] = {COLUMN_64, LS_MESSAGES_PLACE, "expires:time"},
    [P_NOTE] = {COLUMN_BYTES, LS_MESSAGES_PLACE, "note:binary"},
    [P_HEADER_BYTES] = {COLUMN_64, LS_MESSAGES_PLACE, "header_bytes:int64"},
};

const char *ls_message_rows_column(unsigned column, int *tables) {
    *tables = column < COLUMNS_IN_ALL ? message_columns[column].tables : 0;
    return column < COLUMNS_IN_ALL ? message_columns[column].column : NULL;
}

ls_columns *message_columns_new(const pass *p, bool open, uint64_t rows) {
    int wanted = (open ? LS_MESSAGES_OPEN : LS_MESSAGES_CLOSED) | LS_MESSAGES_PLACE;
    enum column_kind kinds[COLUMNS_IN_ALL];
    for (size_t i = 0; i < COLUMNS_IN_ALL; i++) {
        kinds[i] = (message_columns[i].tables & wanted) != 0 ? message_columns[i].kind : COLUMN_ABSENT;
    }
    kinds[C_BODY] = p->body_bytes > 0 ? COLUMN_BYTES : COLUMN_ABSENT;
    return columns_new(p->pool, kinds, COLUMNS_IN_ALL, rows, 0);
}

/* ---- places ---- */

static int by_key(const void *a, const void *b) {
    const struct place_key *x = a, *y = b;
    int by_lsn = (x->lsn > y->lsn) - (x->lsn < y->lsn);
    int by_order = (x->order_index > y->order_index) - (x->order_index < y->order_index);
    return by_lsn != 0 ? by_lsn : by_order != 0 ? by_order : (x->index > y->index) - (x->index < y->index);
}

/* Sorts the life's places into p->keys. */
static bool sort_places(pass *p, const struct life_more *x) {
    bool sorted = true;
    for (uint32_t i = 0; i < x->place_count; i++) {
        if (!array_grow(&p->keys, &p->key_capacity, i, 1)) {
            return false;
        }
        p->keys[i] = (struct place_key){x->places[i].enqueue_lsn, x->places[i].order_index, i};
        sorted = sorted && (i == 0 || by_key(&p->keys[i - 1], &p->keys[i]) < 0);
    }
    if (!sorted) {
        qsort(p->keys, x->place_count, sizeof *p->keys, by_key);
    }
    return true;
}

/* The queue's index among the names. False: it has no name. */
static bool name_of(pass *p, uint32_t queue_id, uint32_t *index) {
    if (p->named.queue_id == queue_id && queue_id != 0) {
        *index = p->named.index;
        return true;
    }
    size_t low = array_lower_bound(struct name_of, p->names, p->name_count, queue_id, queue_id);
    if (low == p->name_count || p->names[low].queue_id != queue_id) {
        *index = 0;
        return false;
    }
    p->named = p->names[low];
    *index = p->named.index;
    return true;
}

static void put_queue(pass *p, struct column *ids, struct column *names, uint32_t queue_id) {
    uint32_t index = 0;
    bool named = queue_id != 0 && name_of(p, queue_id, &index);
    column_put64_or_null(ids, queue_id, queue_id == 0);
    column_put32_or_null(names, index, !named);
}

static void put_end(struct column *at, const struct ending *e, int lsn, int time, int tx, int reason) {
    column_put64_or_null(&at[lsn], e->lsn, e->lsn == 0);
    column_put64_or_null(&at[time], e->time_us, e->time_us == 0);
    column_put64_or_null(&at[tx], e->tx_id, e->tx_id == 0);
    column_put8_or_null(&at[reason], (uint8_t)(e->reason - (e->reason > 0 ? 1 : 0)), e->reason == 0);
}

/* All columns of items have the same number of rows, so one is checked for all. */
static bool grow_places(struct column *at) {
    if (at[P_QUEUE_ID].rows < at[COLUMNS_IN_ALL - 1].capacity) {
        return true;
    }
    for (int i = P_QUEUE_ID; i < COLUMNS_IN_ALL; i++) {
        if (!column_grow(&at[i])) {
            return false;
        }
    }
    return true;
}

/* The count that a dequeue recorded, else that of the place's state; 0: not known. */
static uint32_t delivery_count_of(const struct life_place *place) {
    uint32_t kept = place->state != NULL ? place->state->delivery_count : 0;
    kept = kept <= INT32_MAX ? kept : INT32_MAX;
    return place->end.delivery_count != 0 ? place->end.delivery_count : kept;
}

static bool put_state(struct column *at, const struct life_placed *s) {
    column_put64_or_null(&at[P_NOT_BEFORE], column_place_time(s->not_before_us), s->not_before_us == 0);
    column_put64_or_null(&at[P_EXPIRES], column_place_time(s->expires_us), s->expires_us == 0);
    column_put64_or_null(&at[P_HEADER_BYTES], s->header_bytes, !s->has_header);
    if (!column_put_bytes(&at[P_NOTE], s->note, s->note_bytes)) {
        return false;
    }
    if (s->note_bytes == 0) {
        column_make_null(&at[P_NOTE]);
    }
    return true;
}

/* Most places have none. */
static void put_no_state(struct column *at) {
    column_put64(&at[P_NOT_BEFORE], 0);
    column_put64(&at[P_EXPIRES], 0);
    column_put64(&at[P_HEADER_BYTES], 0);
    column_put_none(&at[P_NOTE], 1);
    for (int i = P_NOT_BEFORE; i < COLUMNS_IN_ALL; i++) {
        column_make_null(&at[i]);
    }
}

static bool put_place(pass *p, struct column *at, const struct life_place *place) {
    if (!grow_places(at)) {
        return false;
    }
    uint32_t count = delivery_count_of(place);
    put_queue(p, &at[P_QUEUE_ID], &at[P_QUEUE], place->queue_id);
    column_put64(&at[P_ENQUEUE_LSN], place->enqueue_lsn);
    column_put64_or_null(&at[P_ENQUEUE_TIME], place->enqueue_time_us, place->enqueue_time_us == 0);
    column_put64_or_null(&at[P_ENQUEUE_TX], place->enqueue_tx, place->enqueue_tx == 0);
    put_end(at, &place->end, P_DEQUEUE_LSN, P_DEQUEUE_TIME, P_DEQUEUE_TX, P_REASON);
    column_put32_or_null(&at[P_DELIVERY_COUNT], count, count == 0);
    if (place->state != NULL) {
        return put_state(at, place->state);
    }
    put_no_state(at);
    return true;
}

/* Columns that summarize all places. */
struct summary {
    struct life_place first;
    struct ending last;
    uint32_t place_count;
    uint32_t delivery_count;
};

static void look_at(struct summary *s, const struct life_place *place, uint32_t *ended_as) {
    const struct ending *e = &place->end;
    uint32_t count = delivery_count_of(place);
    s->delivery_count = count > s->delivery_count ? count : s->delivery_count;
    if (place->ended_as > *ended_as) {
        s->last = *e;
        *ended_as = place->ended_as;
    }
}

static bool put_places(pass *p, struct column *at, const struct life *l, bool open, struct summary *s) {
    uint32_t ended_as = 0;
    *s = (struct summary){.place_count = 0};
    if (l->more != NULL) {
        if (!sort_places(p, l->more)) {
            return false;
        }
        for (uint32_t i = 0; i < l->more->place_count; i++) {
            const struct life_place *place = &l->more->places[p->keys[i].index];
            s->first = i == 0 ? *place : s->first;
            look_at(s, place, &ended_as);
            if (!put_place(p, at, place)) {
                return false;
            }
        }
        s->place_count = l->more->place_count;
    } else if ((l->flags & LIFE_PLACE) != 0) {
        s->first = (struct life_place){.enqueue_lsn = l->enqueue_lsn,
                                       .enqueue_time_us = l->enqueue_time_us,
                                       .enqueue_tx = l->enqueue_tx,
                                       .queue_id = l->queue_id,
                                       .order_index = l->order_index};
        if (!open && p->end.how != PLACE_OPEN) {
            s->first.end = p->end;
            s->first.ended_as = 1;
        }
        look_at(s, &s->first, &ended_as);
        s->place_count = 1;
        if (!put_place(p, at, &s->first)) {
            return false;
        }
    }
    column_end_list(&at[C_PLACES], at[P_QUEUE_ID].rows);
    return true;
}

/* ---- the row ---- */

static uint8_t outcome_of(const pass *p, const struct life *l, const struct summary *s) {
    if (!life_is_staged(l)) {
        return s->last.how == PLACE_DEQUEUED ? LS_LIFE_DEQUEUED : LS_LIFE_QUEUE_DELETED;
    }
    switch (p->end_type) {
    case MESSAGE_DELETE:
        return LS_LIFE_DESTROYED;
    case TX_ROLLBACK:
        return (l->flags & LIFE_PUBLISHED) != 0 ? LS_LIFE_ROLLED_BACK : LS_LIFE_DROPPED;
    default:
        return LS_LIFE_DROPPED;
    }
}

static void put_facts(pass *p, struct column *at, const struct life *l, const struct summary *s) {
    const struct life_place *first = &s->first;
    column_put64(&at[C_ID], l->id);
    put_queue(p, &at[C_QUEUE_ID], &at[C_QUEUE], first->queue_id);
    column_put64_or_null(&at[C_START_TIME], l->start_time_us, l->start_time_us == 0);
    column_put64_or_null(&at[C_ENQUEUE_LSN], first->enqueue_lsn, first->enqueue_lsn == 0);
    column_put64_or_null(&at[C_ENQUEUE_TIME], first->enqueue_time_us, first->enqueue_time_us == 0);
    column_put64_or_null(&at[C_ENQUEUE_TX], first->enqueue_tx, first->enqueue_tx == 0);
    put_end(at, &s->last, C_DEQUEUE_LSN, C_DEQUEUE_TIME, C_DEQUEUE_TX, C_REASON);
    column_put32_or_null(&at[C_DELIVERY_COUNT], s->delivery_count, s->delivery_count == 0);
    column_put32(&at[C_PLACE_COUNT], s->place_count);
    column_put64_or_null(&at[C_HEADER_BYTES], l->header_bytes, (l->flags & LIFE_HEADER) == 0);
    column_put64(&at[C_CONTENT_BYTES], l->content_bytes);
    column_put32(&at[C_RECORD_COUNT], l->record_count);
    column_put64(&at[C_RECORD_BYTES], l->record_bytes);
    column_put32(&at[C_COPY_COUNT], l->copy_count);
    column_put64(&at[C_COPIED_BYTES], l->copied_bytes);
    column_put_bit(&at[C_WHOLE], (l->flags & LIFE_WHOLE) != 0);
}

static int put_open(pass *p, struct column *at, const struct life *l, size_t state_bytes) {
    column_put32(&at[C_PENDING], life_work_count(l));
    column_put_bit(&at[C_STAGED], life_is_staged(l));
    return column_put_bytes(&at[C_STATE], p->blob, state_bytes) ? LS_OK : fail_memory();
}

/* Whether the next row goes into another batch, so that the size of a batch is limited. */
static bool is_full(const pass *p, const ls_columns *c, uint32_t number) {
    const struct life *l = life_at(p, number);
    const struct column *at = c->at;
    uint64_t items = l->more != NULL ? l->more->place_count : 1;
    return c->rows > 0 && (at[P_QUEUE_ID].rows + items > BATCH_ITEMS_MAX ||
                           at[C_BODY].value_bytes + body_bytes_most(p, number) > BATCH_BODIES_MAX);
}

int message_columns_put(pass *p, ls_columns *c, uint32_t number, bool open) {
    const struct life *l = life_at(p, number);
    struct column *at = c->at;
    struct summary s;
    size_t state_bytes = 0;
    if (is_full(p, c, number)) {
        return LS_END;
    }
    int rc = open ? life_state_put(p, l, &state_bytes) : LS_OK;
    if (rc != LS_OK) {
        return rc;
    }
    if (open && c->rows > 0 && state_bytes > COLUMN_BYTES_MAX - at[C_STATE].value_bytes) {
        return LS_END;
    }
    rc = p->body_bytes > 0 ? body_put(p, &at[C_BODY], number) : LS_OK;
    if (rc != LS_OK) {
        return rc;
    }
    if (!put_places(p, at, l, open, &s)) {
        return fail_memory();
    }
    put_facts(p, at, l, &s);
    if (open) {
        rc = put_open(p, at, l, state_bytes);
    } else {
        column_put64(&at[C_END_LSN], p->end.lsn);
        column_put64(&at[C_END_TIME], p->end.time_us);
        column_put8(&at[C_OUTCOME], outcome_of(p, l, &s));
    }
    c->rows += rc == LS_OK ? 1 : 0;
    return rc;
}
