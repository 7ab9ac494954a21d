/* What a record says, and a row of it. See rows.h. */
#include "rows.h"

#include <stdio.h>

#include "error.h"
#include "log.h"

/* ---- reading ---- */

static void take_queues(struct row *row, const uint8_t *queues, uint32_t count, uint32_t step) {
    row->queues = queues;
    row->queue_rows = count;
    row->queue_step = step;
}

/* The ids that are not 0, which stands for a place that is gone. */
static void count_queues(struct row *row) {
    const uint8_t *lists[] = {row->queues, row->more};
    const uint32_t counts[] = {row->queue_rows, row->more_rows};
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < counts[k]; i++) {
            uint32_t id = format_queue_id(lists[k] + (size_t)i * row->queue_step, 0);
            row->queue_id = row->queue_id == 0 ? id : row->queue_id;
            row->queue_count += id != 0 ? 1 : 0;
        }
    }
}

static enum format_result read_start(struct row *row) {
    struct message_start m;
    enum format_result why = format_get_start(&row->r, &m);
    if (why != FORMAT_OK) {
        return why;
    }
    row->tx_id = m.tx_id;
    row->header = m.header;
    row->header_bytes = m.header_bytes;
    row->body = m.content;
    row->body_bytes = m.content_bytes;
    row->content_bytes = m.content_bytes;
    row->has_content = row->has_offset = row->has_header = true;
    take_queues(row, m.queues, m.queue_count, 4);
    count_queues(row);
    row->operates = m.queue_count > 0 && (row->r.flags & FLAG_COPY) == 0;
    return FORMAT_OK;
}

static enum format_result read_chunk(struct row *row) {
    struct message_chunk m;
    enum format_result why = format_get_chunk(&row->r, &m);
    if (why == FORMAT_OK) {
        row->body = m.content;
        row->body_bytes = m.content_bytes;
        row->content_bytes = m.content_bytes;
        row->content_offset = m.offset;
        row->has_content = row->has_offset = true;
    }
    return why;
}

static enum format_result read_enqueue(struct row *row) {
    struct message_enqueue m;
    enum format_result why = format_get_enqueue(&row->r, &m);
    if (why == FORMAT_OK) {
        row->tx_id = m.tx_id;
        row->operates = true;
        take_queues(row, m.queues, m.queue_count, 4);
        count_queues(row);
    }
    return why;
}

static enum format_result read_dequeue(struct row *row) {
    struct message_dequeue m;
    enum format_result why = format_get_dequeue(&row->r, &m);
    if (why == FORMAT_OK) {
        row->tx_id = m.tx_id;
        row->operates = true;
        row->queue_id = m.queue_id;
        row->queue_count = 1;
        row->delivery_count = m.delivery_count;
        row->reason = m.reason;
    }
    return why;
}

enum { RELOCATED_ROW_BYTES = 32, RELOCATED_ROW_QUEUE = 16 }; /* of places and pending work alike */

static enum format_result read_relocated(struct row *row) {
    struct message_relocated m;
    enum format_result why = format_get_relocated(&row->r, &m);
    if (why == FORMAT_OK) {
        row->content_bytes = m.content_bytes;
        row->has_content = true;
        take_queues(row, m.places + RELOCATED_ROW_QUEUE, m.place_count, RELOCATED_ROW_BYTES);
        row->more = m.pending + RELOCATED_ROW_QUEUE;
        row->more_rows = m.pending_count;
        count_queues(row);
    }
    return why;
}

static enum format_result read_queue_delete(struct row *row) {
    row->queue_count = 1;
    return format_get_queue_delete(&row->r, &row->queue_id);
}

/* Who a distributed transaction is; a local one is nobody. */
static enum format_result read_xid(struct row *row, struct xid *x) {
    struct tx_relocated t;
    enum format_result why;
    row->tx_id = row->r.id;
    if (row->r.type == TX_RELOCATED) {
        why = format_get_tx_relocated(&row->r, &t);
        row->has_xid = why == FORMAT_OK && t.kind == TX_KIND_DISTRIBUTED;
        *x = row->has_xid ? t.xid : *x;
        return why;
    }
    row->has_xid = true;
    return format_get_xid(&row->r, x);
}

enum format_result row_read(const struct record *r, struct row *row) {
    enum format_result why = FORMAT_OK;
    struct xid x;
    *row = (struct row){.r = *r};
    switch (r->type) {
    case MESSAGE_START:
        why = read_start(row);
        break;
    case MESSAGE_CHUNK:
        why = read_chunk(row);
        break;
    case MESSAGE_ENQUEUE:
        why = read_enqueue(row);
        break;
    case MESSAGE_DEQUEUE:
        why = read_dequeue(row);
        break;
    case MESSAGE_RELOCATED:
        why = read_relocated(row);
        break;
    case QUEUE_DELETE:
        why = read_queue_delete(row);
        break;
    case DTX_START:
    case TX_PREPARE:
    case TX_RELOCATED:
        why = read_xid(row, &x);
        break;
    default:
        row->tx_id = r->type > DTX_START && r->type <= TX_RELOCATED ? r->id : 0;
        break;
    }
    return why;
}

/* ---- filling ---- */

static uint8_t type_number(struct ls_rows *rows, uint16_t type) {
    if ((type & TYPE_SKIPPABLE) == 0) {
        return (uint8_t)log_type_ordinal(type);
    }
    uint32_t i = 0;
    while (i < rows->unknown_count && rows->unknown[i] != type && i + 1 < ROWS_TYPES_UNKNOWN) {
        i++;
    }
    if (i == rows->unknown_count) {
        rows->unknown[rows->unknown_count++] = type;
    }
    return (uint8_t)(ROWS_TYPES_KNOWN + i);
}

static uint8_t stream_number(uint16_t type) { return type < DTX_START ? 0 : type < BATCH ? 1 : 2; }

/* Where a queue's name stands among those that have one; `named_count`: nowhere. */
static size_t name_number(struct ls_rows *rows, uint32_t queue_id) {
    const ls_rows_options *o = &rows->options;
    if (rows->named_last < o->named_count && o->named[rows->named_last] == queue_id) {
        return rows->named_last;
    }
    size_t low = 0, high = o->named_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (o->named[middle] < queue_id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low < o->named_count && o->named[low] == queue_id) {
        rows->named_last = low;
        return low;
    }
    return o->named_count;
}

static bool put_queue_ids(struct column *lists, struct column *items, const struct row *row) {
    const uint8_t *of[] = {row->queues, row->more};
    const uint32_t counts[] = {row->queue_rows, row->more_rows};
    if (row->queues == NULL && row->queue_id != 0) {
        if (!column_grow(items)) {
            return false;
        }
        column_put64(items, row->queue_id);
    }
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < counts[k]; i++) {
            uint32_t id = format_queue_id(of[k] + (size_t)i * row->queue_step, 0);
            if (id != 0 && !column_grow(items)) {
                return false;
            }
            if (id != 0) {
                column_put64(items, id);
            }
        }
    }
    column_end_list(lists, items->rows);
    if (row->queue_count == 0) {
        column_make_null(lists);
    }
    return true;
}

enum { XID_TEXT_BYTES_MAX = 24 + 2 + 4 * XID_PART_BYTES_MAX };

static uint32_t put_hex(char *into, const uint8_t *bytes, uint32_t n) {
    static const char digits[] = "0123456789abcdef";
    for (uint32_t i = 0; i < n; i++) {
        into[2 * i] = digits[bytes[i] >> 4];
        into[2 * i + 1] = digits[bytes[i] & 15];
    }
    return 2 * n;
}

static bool put_xid(struct column *c, const struct row *row) {
    char text[XID_TEXT_BYTES_MAX];
    struct row again = {.r = row->r};
    struct xid x;
    if (read_xid(&again, &x) != FORMAT_OK || !again.has_xid) {
        return false; /* it was read before */
    }
    int n = snprintf(text, 24, "%lld:", (long long)x.format_id);
    uint32_t used = n > 0 && n < 24 ? (uint32_t)n : 0;
    used += put_hex(text + used, x.data, x.gtrid_bytes);
    text[used++] = ':';
    used += put_hex(text + used, x.data + x.gtrid_bytes, x.bqual_bytes);
    return column_put_bytes(c, text, used);
}

/* What of a row takes looking elsewhere: done before anything is put, since it may fail. */
struct resolved {
    struct outcome outcome;
    struct place_found place;
    uint64_t effect_lsn; /* 0: none */
    uint64_t effect_us;
};

/* Of a TX_DELETE, which alone follows the outcome. */
static int outcome_before(struct ls_rows *rows, const struct record *r, struct outcome *o) {
    struct record before;
    int rc = lookback_record(rows->look, r->prev, &before);
    if (rc != LS_OK) {
        return rc == LS_END ? LS_OK : rc;
    }
    if (before.id != r->id || (before.type != TX_COMMIT && before.type != TX_ROLLBACK)) {
        return LS_OK;
    }
    o->what = before.type == TX_COMMIT ? LOOK_COMMITTED : LOOK_ROLLED_BACK;
    return LS_OK;
}

static int resolve(struct ls_rows *rows, const struct row *row, struct resolved *x) {
    const struct record *r = &row->r;
    int rc = LS_OK;
    x->effect_lsn = r->lsn;
    x->effect_us = rows->batch.batch.time_us;
    x->outcome = (struct outcome){.what = LOOK_OPEN};
    x->place = (struct place_found){.lsn = 0};
    if (rows->moved && row->tx_id != 0) {
        if (r->type == TX_DELETE) {
            rc = outcome_before(rows, r, &x->outcome);
        } else {
            rc = lookback_outcome(rows->look, row->tx_id, r->lsn, &x->outcome);
        }
        if (row->operates) {
            bool took = x->outcome.what == LOOK_COMMITTED;
            x->effect_lsn = took ? x->outcome.lsn : 0;
            x->effect_us = took ? x->outcome.time_us : 0;
        }
    }
    if (rc == LS_OK && rows->placed && r->type == MESSAGE_DEQUEUE) {
        rc = lookback_enqueue(rows->look, r, row->queue_id, &x->place);
    }
    return rc;
}

/* Columns of any length: the only ones that may not fit any more. */
static bool has_room(ls_columns *columns, const struct ls_rows *rows, const struct row *row) {
    struct column *at = columns->at;
    uint64_t body = row->body_bytes < rows->options.body_max ? row->body_bytes : rows->options.body_max;
    return (!column_asked(&at[LS_ROWS_XID]) || column_has_room_for(&at[LS_ROWS_XID], XID_TEXT_BYTES_MAX)) &&
           (!column_asked(&at[LS_ROWS_HEADER]) || column_has_room_for(&at[LS_ROWS_HEADER], row->header_bytes)) &&
           (!column_asked(&at[LS_ROWS_BODY]) || column_has_room_for(&at[LS_ROWS_BODY], body));
}

static void put_place(struct ls_rows *rows, struct column *at, const struct row *row) {
    if (column_asked(&at[LS_ROWS_QUEUE_ID])) {
        column_put64_or_null(&at[LS_ROWS_QUEUE_ID], row->queue_id, row->queue_id == 0);
    }
    if (column_asked(&at[LS_ROWS_QUEUE])) {
        size_t number = row->queue_id != 0 ? name_number(rows, row->queue_id) : rows->options.named_count;
        column_put32_or_null(&at[LS_ROWS_QUEUE], (uint32_t)number, number == rows->options.named_count);
    }
    if (column_asked(&at[LS_ROWS_QUEUE_COUNT])) {
        column_put32(&at[LS_ROWS_QUEUE_COUNT], row->queue_count);
    }
}

static void put_effect(const struct ls_rows *rows, struct column *at, const struct row *row, const struct resolved *x) {
    if (column_asked(&at[LS_ROWS_TX_ID])) {
        column_put64_or_null(&at[LS_ROWS_TX_ID], row->tx_id, row->tx_id == 0);
    }
    if (rows->moved) {
        if (column_asked(&at[LS_ROWS_OUTCOME])) {
            column_put8_or_null(&at[LS_ROWS_OUTCOME], (uint8_t)x->outcome.what, row->tx_id == 0);
        }
        if (column_asked(&at[LS_ROWS_EFFECT_LSN])) {
            column_put64_or_null(&at[LS_ROWS_EFFECT_LSN], x->effect_lsn, x->effect_lsn == 0);
        }
        if (column_asked(&at[LS_ROWS_EFFECT_TIME])) {
            column_put64_or_null(&at[LS_ROWS_EFFECT_TIME], x->effect_us, x->effect_lsn == 0);
        }
    }
    if (rows->placed) {
        if (column_asked(&at[LS_ROWS_ENQUEUE_LSN])) {
            column_put64_or_null(&at[LS_ROWS_ENQUEUE_LSN], x->place.lsn, x->place.lsn == 0);
        }
        if (column_asked(&at[LS_ROWS_ENQUEUE_TIME])) {
            column_put64_or_null(&at[LS_ROWS_ENQUEUE_TIME], x->place.time_us, x->place.time_us == 0);
        }
    }
}

static void put_sizes(struct column *at, const struct row *row) {
    const struct record *r = &row->r;
    if (column_asked(&at[LS_ROWS_RECORD_BYTES])) {
        column_put32(&at[LS_ROWS_RECORD_BYTES], r->length);
    }
    if (column_asked(&at[LS_ROWS_HEADER_BYTES])) {
        column_put32_or_null(&at[LS_ROWS_HEADER_BYTES], row->header_bytes, !row->has_header);
    }
    if (column_asked(&at[LS_ROWS_CONTENT_BYTES])) {
        column_put64_or_null(&at[LS_ROWS_CONTENT_BYTES], row->content_bytes, !row->has_content);
    }
    if (column_asked(&at[LS_ROWS_CONTENT_OFFSET])) {
        column_put64_or_null(&at[LS_ROWS_CONTENT_OFFSET], row->content_offset, !row->has_offset);
    }
}

static void put_flags(struct column *at, const struct row *row) {
    const struct record *r = &row->r;
    bool dequeues = r->type == MESSAGE_DEQUEUE;
    bool copied = (r->type == MESSAGE_START || r->type == MESSAGE_CHUNK) && (r->flags & FLAG_COPY) != 0;
    if (column_asked(&at[LS_ROWS_FLAGS])) {
        column_put32(&at[LS_ROWS_FLAGS], r->flags);
    }
    if (column_asked(&at[LS_ROWS_RELOCATED])) {
        column_put_bit(&at[LS_ROWS_RELOCATED], copied || r->type == MESSAGE_RELOCATED || r->type == TX_RELOCATED);
    }
    if (column_asked(&at[LS_ROWS_INLINE_ENQUEUE])) {
        column_put_bit(&at[LS_ROWS_INLINE_ENQUEUE], r->type == MESSAGE_START && row->queue_count > 0);
    }
    if (column_asked(&at[LS_ROWS_DELETES])) {
        bool deletes = r->type == MESSAGE_DELETE || (dequeues && (r->flags & FLAG_DELETES) != 0);
        column_put_bit(&at[LS_ROWS_DELETES], deletes);
    }
    if (column_asked(&at[LS_ROWS_DELIVERY_COUNT])) {
        column_put32_or_null(&at[LS_ROWS_DELIVERY_COUNT], row->delivery_count, row->delivery_count == 0);
    }
    if (column_asked(&at[LS_ROWS_REDELIVERED])) {
        column_put_bit(&at[LS_ROWS_REDELIVERED], row->delivery_count > 1);
        if (row->delivery_count == 0) {
            column_make_null(&at[LS_ROWS_REDELIVERED]);
        }
    }
    if (column_asked(&at[LS_ROWS_REASON])) {
        column_put8_or_null(&at[LS_ROWS_REASON], (uint8_t)(row->reason - 1), row->reason == 0);
    }
}

/* There is room for all of it. */
static bool put_bytes(const struct ls_rows *rows, struct column *at, const struct row *row) {
    bool put = true;
    if (column_asked(&at[LS_ROWS_XID])) {
        put = row->has_xid ? put_xid(&at[LS_ROWS_XID], row) : column_put_bytes(&at[LS_ROWS_XID], "", 0);
        if (!row->has_xid) {
            column_make_null(&at[LS_ROWS_XID]);
        }
    }
    if (put && column_asked(&at[LS_ROWS_HEADER])) {
        put = column_put_bytes(&at[LS_ROWS_HEADER], row->header, row->header_bytes);
        if (!row->has_header) {
            column_make_null(&at[LS_ROWS_HEADER]);
        }
    }
    if (put && column_asked(&at[LS_ROWS_BODY])) {
        uint64_t bytes = row->body_bytes < rows->options.body_max ? row->body_bytes : rows->options.body_max;
        put = column_put_bytes(&at[LS_ROWS_BODY], row->body, bytes);
        if (row->body == NULL) {
            column_make_null(&at[LS_ROWS_BODY]);
        }
    }
    return put;
}

static void put_head(struct ls_rows *rows, struct column *at, const struct record *r) {
    const struct scan_batch *b = &rows->batch;
    if (column_asked(&at[LS_ROWS_LSN])) {
        column_put64(&at[LS_ROWS_LSN], r->lsn);
    }
    if (column_asked(&at[LS_ROWS_TYPE])) {
        column_put8(&at[LS_ROWS_TYPE], type_number(rows, r->type));
    }
    if (column_asked(&at[LS_ROWS_STREAM])) {
        column_put8(&at[LS_ROWS_STREAM], stream_number(r->type));
    }
    if (column_asked(&at[LS_ROWS_ID])) {
        column_put64_or_null(&at[LS_ROWS_ID], r->id, r->id == 0);
    }
    if (column_asked(&at[LS_ROWS_PREV])) {
        column_put64_or_null(&at[LS_ROWS_PREV], r->prev, r->prev == 0);
    }
    if (column_asked(&at[LS_ROWS_EPOCH])) {
        column_put64(&at[LS_ROWS_EPOCH], b->batch.epoch);
    }
    if (column_asked(&at[LS_ROWS_TIME])) {
        column_put64(&at[LS_ROWS_TIME], b->batch.time_us);
    }
    if (column_asked(&at[LS_ROWS_BATCH_LSN])) {
        column_put64(&at[LS_ROWS_BATCH_LSN], b->lsn);
    }
    if (column_asked(&at[LS_ROWS_SEGMENT])) {
        column_put64(&at[LS_ROWS_SEGMENT], b->first_lsn);
    }
}

int row_put(struct ls_rows *rows, ls_columns *columns, const struct row *row) {
    struct column *at = columns->at;
    struct resolved x;
    int rc = resolve(rows, row, &x);
    if (rc != LS_OK) {
        return rc;
    }
    if (!has_room(columns, rows, row)) {
        return LS_BUSY;
    }
    if (column_asked(&at[LS_ROWS_QUEUE_IDS]) &&
        !put_queue_ids(&at[LS_ROWS_QUEUE_IDS], &at[LS_ROWS_QUEUE_IDS_ITEM], row)) {
        return fail_memory();
    }
    put_head(rows, at, &row->r);
    put_place(rows, at, row);
    put_effect(rows, at, row, &x);
    put_sizes(at, row);
    put_flags(at, row);
    if (!put_bytes(rows, at, row)) {
        return fail_memory();
    }
    columns->rows++;
    return LS_OK;
}
