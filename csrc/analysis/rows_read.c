/* Makes a row of a record, with values from the rest of the log. See rows.h. */
#include "analysis/relocated.h"
#include "analysis/rows.h"

#include "os/array.h"
#include "os/error.h"

const struct row_column row_columns[LS_ROWS_COLUMNS] = {
    [LS_ROWS_LSN] = {COLUMN_64, "int64!"},
    [LS_ROWS_TYPE] = {COLUMN_8, "name!"},
    [LS_ROWS_STREAM] = {COLUMN_8, "name!"},
    [LS_ROWS_ID] = {COLUMN_64, "int64"},
    [LS_ROWS_PREV] = {COLUMN_64, "int64"},
    [LS_ROWS_EPOCH] = {COLUMN_64, "int64!"},
    [LS_ROWS_TIME] = {COLUMN_64, "time!"},
    [LS_ROWS_BATCH_LSN] = {COLUMN_64, "int64!"},
    [LS_ROWS_SEGMENT] = {COLUMN_64, "int64!"},
    [LS_ROWS_QUEUE_ID] = {COLUMN_64, "int64"},
    [LS_ROWS_QUEUE] = {COLUMN_32, "name"},
    [LS_ROWS_QUEUE_COUNT] = {COLUMN_32, "int32!"},
    [LS_ROWS_QUEUE_IDS] = {COLUMN_LIST, "list"},
    [LS_ROWS_TX_ID] = {COLUMN_64, "int64"},
    [LS_ROWS_OUTCOME] = {COLUMN_8, "name"},
    [LS_ROWS_EFFECT_LSN] = {COLUMN_64, "int64"},
    [LS_ROWS_EFFECT_TIME] = {COLUMN_64, "time"},
    [LS_ROWS_ENQUEUE_LSN] = {COLUMN_64, "int64"},
    [LS_ROWS_ENQUEUE_TIME] = {COLUMN_64, "time"},
    [LS_ROWS_XID] = {COLUMN_BYTES, "string"},
    [LS_ROWS_RECORD_BYTES] = {COLUMN_32, "int32!"},
    [LS_ROWS_HEADER_BYTES] = {COLUMN_32, "int32"},
    [LS_ROWS_CONTENT_BYTES] = {COLUMN_64, "int64"},
    [LS_ROWS_CONTENT_OFFSET] = {COLUMN_64, "int64"},
    [LS_ROWS_FLAGS] = {COLUMN_32, "int32!"},
    [LS_ROWS_RELOCATED] = {COLUMN_BITS, "bool!"},
    [LS_ROWS_INLINE_ENQUEUE] = {COLUMN_BITS, "bool!"},
    [LS_ROWS_DELETES] = {COLUMN_BITS, "bool!"},
    [LS_ROWS_DELIVERY_COUNT] = {COLUMN_32, "int32"},
    [LS_ROWS_REDELIVERED] = {COLUMN_BITS, "bool"},
    [LS_ROWS_REASON] = {COLUMN_8, "name"},
    [LS_ROWS_FROM_QUEUE_ID] = {COLUMN_64, "int64"},
    [LS_ROWS_NOT_BEFORE] = {COLUMN_64, "time"},
    [LS_ROWS_EXPIRES] = {COLUMN_64, "time"},
    [LS_ROWS_HEADER] = {COLUMN_BYTES, "binary"},
    [LS_ROWS_NOTE] = {COLUMN_BYTES, "binary"},
    [LS_ROWS_BODY] = {COLUMN_BYTES, "binary"},
    [LS_ROWS_QUEUE_IDS_ITEM] = {COLUMN_64, "int64!"},
};

/* For a column that is never null, or not requested. */
static void set_value(struct row *row, unsigned column, uint64_t value) {
    row->values[(size_t)column * ROWS_STRIDE] = value;
}

/* These columns are not null. A record of a frequent type does this once: each time waits for the one before. */
static void has_values(struct row *row, uint64_t columns) { row->marks &= ~columns; }

static void put_value(struct row *row, unsigned column, uint64_t value) {
    set_value(row, column, value);
    has_values(row, ROW_BIT(column));
}

/* A COLUMN_BITS. */
static void set_bit(struct row *row, unsigned column, bool value) {
    row->marks |= (uint64_t)value << (column + ROW_BITS_SHIFT);
}

static void put_row_tx(struct row *row, uint64_t tx_id) {
    if (tx_id != 0) {
        put_value(row, LS_ROWS_TX_ID, tx_id);
    }
}

static uint64_t tx_of(const struct row *row) { return row_value(row, LS_ROWS_TX_ID); }

/* ---- queues ---- */

/* Index of the queue in options.named; named_count: it has no name. */
static size_t name_number(struct ls_rows *rows, uint32_t queue_id) {
    const ls_rows_options *o = &rows->options;
    if (rows->named_last < o->named_count && o->named[rows->named_last] == queue_id) {
        return rows->named_last;
    }
    size_t low = array_lower_bound_of(o->named, o->named_count, queue_id);
    if (low < o->named_count && o->named[low] == queue_id) {
        rows->named_last = low;
        return low;
    }
    return o->named_count;
}

static void put_row_queue(struct ls_rows *rows, struct row *row, uint32_t queue_id, uint32_t count) {
    if (count > 0) {
        size_t number = name_number(rows, queue_id);
        bool named = number < rows->options.named_count;
        set_value(row, LS_ROWS_QUEUE_ID, queue_id);
        set_value(row, LS_ROWS_QUEUE_COUNT, count);
        set_value(row, LS_ROWS_QUEUE, named ? number : 0);
        has_values(row, ROW_BIT(LS_ROWS_QUEUE_ID) | ROW_BIT(LS_ROWS_QUEUE_IDS) | (named ? ROW_BIT(LS_ROWS_QUEUE) : 0));
    }
}

/* The ids other than 0; 0 is a place that no longer exists. */
static void put_row_queues(struct ls_rows *rows, struct row *row) {
    uint32_t first = 0, count = 0;
    for (int k = 0; k < 2; k++) {
        const uint8_t *at = row->queues[k].first;
        for (uint32_t i = 0; i < row->queues[k].count; i++, at = format_next_queue(&row->queues[k], at)) {
            uint32_t id = format_queue_id(at, 0);
            first = first == 0 ? id : first;
            count += id != 0 ? 1 : 0;
        }
    }
    put_row_queue(rows, row, first, count);
}

static void take_queues(struct ls_rows *rows, struct row *row, const uint8_t *queues, uint32_t count) {
    if (count == 1) {
        uint32_t id = format_queue_id(queues, 0);
        put_row_queue(rows, row, id, id != 0 ? 1 : 0);
        return;
    }
    row->queues[0] = format_list_queues(queues, count);
    put_row_queues(rows, row);
}

/* ---- records ---- */

static void put_delivery_count(struct row *row, uint32_t count) {
    if (count != 0) {
        put_value(row, LS_ROWS_DELIVERY_COUNT, count <= INT32_MAX ? count : INT32_MAX);
        set_bit(row, LS_ROWS_REDELIVERED, count > 1);
        has_values(row, ROW_BIT(LS_ROWS_REDELIVERED));
    }
}

static void put_times(struct row *row, uint64_t not_before_us, uint64_t expires_us) {
    if (not_before_us != 0) {
        put_value(row, LS_ROWS_NOT_BEFORE, column_place_time(not_before_us));
    }
    if (expires_us != 0) {
        put_value(row, LS_ROWS_EXPIRES, column_place_time(expires_us));
    }
}

static void put_note(struct row *row, const uint8_t *note, uint32_t note_bytes) {
    row->note = note;
    row->note_bytes = note_bytes;
    has_values(row, ROW_BIT(LS_ROWS_NOTE));
}

static void put_header(struct row *row, const uint8_t *header, uint32_t header_bytes) {
    set_value(row, LS_ROWS_HEADER_BYTES, header_bytes);
    row->header = header;
    row->header_bytes = header_bytes;
    has_values(row, ROW_BIT(LS_ROWS_HEADER_BYTES) | ROW_BIT(LS_ROWS_HEADER));
}

static void put_state(struct row *row, const struct place_state *state) {
    put_delivery_count(row, state->delivery_count);
    put_times(row, state->not_before_us, state->expires_us);
    if (state->note_bytes > 0) {
        put_note(row, state->note, state->note_bytes);
    }
    if (state->header != NULL) {
        put_header(row, state->header, state->header_bytes);
    }
}

/* `also`: other columns that have values. */
static void put_content(struct row *row, const uint8_t *content, uint32_t bytes, uint64_t offset, uint64_t also) {
    set_value(row, LS_ROWS_CONTENT_BYTES, bytes);
    set_value(row, LS_ROWS_CONTENT_OFFSET, offset);
    row->body = content;
    row->body_bytes = bytes;
    has_values(row, also | ROW_BIT(LS_ROWS_CONTENT_BYTES) | ROW_BIT(LS_ROWS_CONTENT_OFFSET) | ROW_BIT(LS_ROWS_BODY));
}

static enum format_result read_start(struct ls_rows *rows, struct row *row) {
    struct message_start m;
    struct place_state state;
    bool placed = row->r.type == MESSAGE_START_PLACED;
    enum format_result why = placed ? format_get_start_placed(&row->r, &m, &state) : format_get_start(&row->r, &m);
    if (why != FORMAT_OK) {
        return why;
    }
    put_row_tx(row, m.tx_id);
    set_value(row, LS_ROWS_HEADER_BYTES, m.header_bytes);
    row->header = m.header;
    row->header_bytes = m.header_bytes;
    put_content(row, m.content, m.content_bytes, 0, ROW_BIT(LS_ROWS_HEADER_BYTES) | ROW_BIT(LS_ROWS_HEADER));
    take_queues(rows, row, m.queues, m.queue_count);
    row->operates = m.queue_count > 0 && (row->r.flags & FLAG_COPY) == 0;
    set_bit(row, LS_ROWS_INLINE_ENQUEUE, m.queue_count > 0);
    set_bit(row, LS_ROWS_RELOCATED, (row->r.flags & FLAG_COPY) != 0);
    if (placed) {
        put_state(row, &state);
    }
    return FORMAT_OK;
}

static enum format_result read_chunk(struct row *row) {
    struct message_chunk m;
    enum format_result why = format_get_chunk(&row->r, &m);
    if (why == FORMAT_OK) {
        put_content(row, m.content, m.content_bytes, m.offset, 0);
        set_bit(row, LS_ROWS_RELOCATED, (row->r.flags & FLAG_COPY) != 0);
    }
    return why;
}

static enum format_result read_enqueue(struct ls_rows *rows, struct row *row) {
    struct message_enqueue m;
    enum format_result why = format_get_enqueue(&row->r, &m);
    if (why == FORMAT_OK) {
        put_row_tx(row, m.tx_id);
        row->operates = true;
        take_queues(rows, row, m.queues, m.queue_count);
    }
    return why;
}

static enum format_result read_dequeue(struct ls_rows *rows, struct row *row) {
    struct message_dequeue m;
    enum format_result why = format_get_dequeue(&row->r, &m);
    if (why != FORMAT_OK) {
        return why;
    }
    put_row_tx(row, m.tx_id);
    row->operates = true;
    put_row_queue(rows, row, m.queue_id, 1);
    set_bit(row, LS_ROWS_DELETES, (row->r.flags & FLAG_DELETES) != 0);
    put_delivery_count(row, m.delivery_count);
    if (m.reason != 0) {
        put_value(row, LS_ROWS_REASON, m.reason - 1U);
    }
    return FORMAT_OK;
}

/* Its note is there, perhaps of no bytes: then it takes the place's note away. */
static enum format_result read_place(struct ls_rows *rows, struct row *row) {
    struct message_place m;
    enum format_result why = format_get_place(&row->r, &m);
    if (why == FORMAT_OK) {
        put_row_tx(row, m.tx_id);
        row->operates = true;
        put_row_queue(rows, row, m.queue_id, 1);
        put_note(row, m.note, m.note_bytes);
    }
    return why;
}

/* The row has the queue and the state of the new place; what it keeps stands in earlier records. */
static enum format_result read_move(struct ls_rows *rows, struct row *row) {
    struct message_move m;
    enum format_result why = format_get_move(&row->r, &m);
    if (why != FORMAT_OK) {
        return why;
    }
    put_row_tx(row, m.tx_id);
    row->operates = true;
    put_row_queue(rows, row, m.queue_id, 1);
    put_state(row, &m.state);
    if (m.from_queue_id != 0) {
        put_value(row, LS_ROWS_FROM_QUEUE_ID, m.from_queue_id);
    }
    if (m.reason != 0) {
        put_value(row, LS_ROWS_REASON, m.reason - 1U);
    }
    return FORMAT_OK;
}

/* The count and the times are those of the first place, as is queue_id. */
static enum format_result read_place_states(struct ls_rows *rows, struct row *row) {
    struct place_states m;
    enum format_result why = format_get_place_states(&row->r, &m);
    if (why == FORMAT_OK) {
        struct state_row first = format_state_row(m.rows, 0);
        row->queues[0] = format_state_queues(&m);
        put_row_queues(rows, row);
        put_delivery_count(row, first.delivery_count);
        put_times(row, first.not_before_us, first.expires_us);
    }
    return why;
}

static enum format_result read_relocated(struct ls_rows *rows, struct row *row) {
    struct message_relocated m;
    enum format_result why = relocated_get(&row->r, &m);
    if (why == FORMAT_OK) {
        bool placed = row->r.type == MESSAGE_RELOCATED_PLACED;
        put_value(row, LS_ROWS_CONTENT_BYTES, m.content_bytes);
        set_bit(row, LS_ROWS_RELOCATED, true);
        row->queues[0] = placed ? format_placed_queues(m.places, m.place_count) : format_place_queues(&m);
        row->queues[1] = placed ? format_placed_queues(m.pending, m.pending_count) : format_pending_queues(&m);
        put_row_queues(rows, row);
    }
    return why;
}

static enum format_result read_queue_delete(struct ls_rows *rows, struct row *row) {
    uint32_t queue_id;
    enum format_result why = format_get_queue_delete(&row->r, &queue_id);
    if (why == FORMAT_OK) {
        put_row_queue(rows, row, queue_id, 1);
    }
    return why;
}

/* The xid of a distributed transaction; a local one has none. */
static enum format_result read_xid(struct row *row) {
    struct tx_relocated t = {.kind = TX_KIND_DISTRIBUTED};
    bool moved = row->r.type == TX_RELOCATED;
    enum format_result why = moved ? format_get_tx_relocated(&row->r, &t) : format_get_xid(&row->r, &t.xid);
    put_row_tx(row, row->r.id);
    set_bit(row, LS_ROWS_RELOCATED, moved);
    row->has_xid = why == FORMAT_OK && t.kind == TX_KIND_DISTRIBUTED;
    if (row->has_xid) {
        row->xid = t.xid;
        has_values(row, ROW_BIT(LS_ROWS_XID));
    }
    return why;
}

static enum format_result read_body(struct ls_rows *rows, struct row *row) {
    switch (row->r.type) {
    case MESSAGE_START:
    case MESSAGE_START_PLACED:
        return read_start(rows, row);
    case MESSAGE_CHUNK:
        return read_chunk(row);
    case MESSAGE_ENQUEUE:
        return read_enqueue(rows, row);
    case MESSAGE_DEQUEUE:
        return read_dequeue(rows, row);
    case MESSAGE_DELETE:
        set_bit(row, LS_ROWS_DELETES, true);
        return FORMAT_OK;
    case MESSAGE_RELOCATED:
    case MESSAGE_RELOCATED_PLACED:
        return read_relocated(rows, row);
    case MESSAGE_PLACE:
        return read_place(rows, row);
    case MESSAGE_MOVE:
        return read_move(rows, row);
    case PLACE_STATES:
        return read_place_states(rows, row);
    case QUEUE_DELETE:
        return read_queue_delete(rows, row);
    case DTX_START:
    case TX_PREPARE:
    case TX_RELOCATED:
        return read_xid(row);
    case TX_START:
    case TX_END:
    case TX_COMMIT:
    case TX_ROLLBACK:
    case TX_DELETE:
        put_row_tx(row, row->r.id);
        return FORMAT_OK;
    case MEMBERS:
        set_bit(row, LS_ROWS_RELOCATED, (row->r.flags & FLAG_COPY) != 0);
        return FORMAT_OK;
    default:
        return FORMAT_OK;
    }
}

/* False: all numbers are in use. */
static bool type_number(struct ls_rows *rows, uint16_t type, uint64_t *number) {
    if ((type & TYPE_SKIPPABLE) == 0) {
        *number = format_type_ordinal(type);
        return true;
    }
    uint32_t i = 0;
    while (i < rows->unknown_count && rows->unknown[i] != type) {
        i++;
    }
    *number = TYPES_KNOWN + i;
    if (i == rows->unknown_count && i < ROWS_TYPES_UNKNOWN) {
        rows->unknown[rows->unknown_count++] = type;
    }
    return i < ROWS_TYPES_UNKNOWN;
}

/* Also for a type of a later version. */
static uint8_t stream_number(uint16_t type) {
    uint32_t stream = format_stream_of(type);
    return stream == format_stream_of(MESSAGE_START)   ? 0
           : stream == format_stream_of(DTX_START)     ? 1
           : type >= MEMBERS && type <= CATALOG_CHANGE ? 3
                                                       : 2;
}

enum format_result row_read(struct ls_rows *rows, struct row *row) {
    const struct record *r = &row->r;
    row->marks =
        ROWS_NULL_AT_FIRST | (r->id == 0 ? ROW_BIT(LS_ROWS_ID) : 0) | (r->prev == 0 ? ROW_BIT(LS_ROWS_PREV) : 0);
    if (rows->dirty) {
        for (unsigned column = LS_ROWS_QUEUE_ID; column < LS_ROWS_HEADER; column++) {
            set_value(row, column, 0);
        }
    }
    rows->dirty = true;
    row->queues[0] = row->queues[1] = (struct queue_rows){.first = NULL};
    row->header = row->body = row->note = NULL;
    row->header_bytes = row->body_bytes = row->note_bytes = 0;
    row->operates = row->has_xid = false;
    set_value(row, LS_ROWS_LSN, r->lsn);
    uint64_t number;
    bool numbered = type_number(rows, r->type, &number) || rows->kinds[LS_ROWS_TYPE] == COLUMN_ABSENT;
    set_value(row, LS_ROWS_TYPE, number);
    set_value(row, LS_ROWS_STREAM, stream_number(r->type));
    set_value(row, LS_ROWS_ID, r->id);
    set_value(row, LS_ROWS_PREV, r->prev);
    set_value(row, LS_ROWS_RECORD_BYTES, r->length);
    set_value(row, LS_ROWS_FLAGS, r->flags);
    set_value(row, LS_ROWS_EFFECT_LSN, r->lsn);
    set_value(row, LS_ROWS_EFFECT_TIME, column_time(rows->batch.batch.time_us));
    set_value(row, LS_ROWS_QUEUE_COUNT, 0);
    if (!numbered) {
        return FORMAT_NEWER;
    }
    return rows->bodied ? read_body(rows, row) : FORMAT_OK;
}

/* ---- the rest of the log ---- */

/* For a TX_DELETE, which follows the outcome: the transaction has ended, even if the outcome was recycled. */
static int outcome_before(struct ls_rows *rows, const struct record *r, struct outcome *o) {
    struct record before;
    bool in_time = rows->options.as_of_lsn == 0 || r->prev < rows->options.as_of_lsn;
    int rc = in_time ? lookback_record(rows->look, r->prev, &before) : LS_END;
    *o = (struct outcome){.what = LOOK_OPEN};
    if (rc != LS_OK) {
        return rc == LS_END ? LS_OK : rc;
    }
    if (before.id == r->id && (before.type == TX_COMMIT || before.type == TX_ROLLBACK)) {
        o->what = before.type == TX_COMMIT ? LOOK_COMMITTED : LOOK_ROLLED_BACK;
    }
    return LS_OK;
}

static int resolve_outcome(struct ls_rows *rows, struct row *row) {
    struct outcome o;
    int rc = row->r.type == TX_DELETE ? outcome_before(rows, &row->r, &o)
                                      : lookback_outcome(rows->look, tx_of(row), row->r.lsn, &o);
    if (rc != LS_OK) {
        return rc;
    }
    if (o.what != LOOK_UNKNOWN && (row->r.type != TX_DELETE || o.what != LOOK_OPEN)) {
        put_value(row, LS_ROWS_OUTCOME, (uint64_t)o.what);
    }
    if (row->operates) {
        bool took = o.what == LOOK_COMMITTED;
        set_value(row, LS_ROWS_EFFECT_LSN, took ? o.lsn : 0);
        set_value(row, LS_ROWS_EFFECT_TIME, took ? column_time(o.time_us) : 0);
        row->marks |= took ? 0 : ROW_BIT(LS_ROWS_EFFECT_LSN) | ROW_BIT(LS_ROWS_EFFECT_TIME);
    }
    return LS_OK;
}

static int resolve_place(struct ls_rows *rows, struct row *row, unsigned queue_column) {
    struct place_found place;
    const struct place_wanted wanted = {.tx_id = tx_of(row), .queue_id = (uint32_t)row_value(row, queue_column)};
    int rc = lookback_enqueue(rows->look, &row->r, &wanted, &place);
    if (rc == LS_OK && place.lsn != 0) {
        put_value(row, LS_ROWS_ENQUEUE_LSN, place.lsn);
    }
    if (rc == LS_OK && place.time_us != 0) {
        put_value(row, LS_ROWS_ENQUEUE_TIME, column_time(place.time_us));
    }
    return rc;
}

int row_resolve(struct ls_rows *rows, struct row *row) {
    int rc = rows->needs_outcomes && tx_of(row) != 0 ? resolve_outcome(rows, row) : LS_OK;
    if (rc != LS_OK || !rows->placed || (row->r.type != MESSAGE_DEQUEUE && row->r.type != MESSAGE_MOVE)) {
        return rc;
    }
    unsigned queue_column = row->r.type == MESSAGE_MOVE ? LS_ROWS_FROM_QUEUE_ID : LS_ROWS_QUEUE_ID;
    return row_value(row, queue_column) != 0 ? resolve_place(rows, row, queue_column) : LS_OK;
}
