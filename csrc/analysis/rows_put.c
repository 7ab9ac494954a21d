/* Puts rows into columns, a block of rows at once, one column after the other. See rows.h. */
#include "analysis/rows.h"

#include <stdio.h>

#include "os/error.h"
#include "os/prefetch.h"

/*
 * The rows that are put at once: `n` rows of the block, from row `from`. Bit i of bits[k] is bit k of the marks of row i of them.
 */
struct put {
    const struct ls_rows *rows;
    const struct row *block;
    size_t from;
    size_t n;
    uint64_t bits[64];
};

/* ---- columns of fixed width ---- */

/* Converts eight bytes of a bitmap into a number whose lowest bit is the first row, or back. */
static uint64_t little(uint64_t bits) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    bits = __builtin_bswap64(bits);
#endif
    return bits;
}

static void put_8(struct column *c, const uint64_t *values, size_t n) {
    uint8_t *into = c->values + c->rows;
    for (size_t i = 0; i < n; i++) {
        into[i] = (uint8_t)values[i];
    }
}

static void put_32(struct column *c, const uint64_t *values, size_t n) {
    uint8_t *into = c->values + 4 * c->rows;
    for (size_t i = 0; i < n; i++) {
        uint32_t value = (uint32_t)values[i];
        memcpy(into + 4 * i, &value, sizeof value);
    }
}

/* Swaps the upper right and the lower left quarter of every square of 2 * half rows; inlined, so that `half` is a constant. */
static inline void swap_quarters(uint64_t square[64], unsigned half, uint64_t mask) {
    for (unsigned from = 0; from < 64; from += 2 * half) {
        for (unsigned i = from; i < from + half; i++) {
            uint64_t moved = (square[i] >> half ^ square[i + half]) & mask;
            square[i + half] ^= moved;
            square[i] ^= moved << half;
        }
    }
}

/* Each row has a bit for each null column; each column needs a bit for each null row. So a square of bits is transposed. */
static void transpose(uint64_t square[64]) {
    swap_quarters(square, 32, UINT64_C(0x00000000ffffffff));
    swap_quarters(square, 16, UINT64_C(0x0000ffff0000ffff));
    swap_quarters(square, 8, UINT64_C(0x00ff00ff00ff00ff));
    swap_quarters(square, 4, UINT64_C(0x0f0f0f0f0f0f0f0f));
    swap_quarters(square, 2, UINT64_C(0x3333333333333333));
    swap_quarters(square, 1, UINT64_C(0x5555555555555555));
}

/* Sets up to 64 bits of a bitmap from bit `row` on; the buffer has COLUMN_SLACK_BYTES more than the rows need. */
static void put_ones(uint8_t *bitmap, uint64_t row, uint64_t ones) {
    uint8_t *at = bitmap + row / 8;
    unsigned shift = (unsigned)(row % 8);
    uint64_t word;
    memcpy(&word, at, sizeof word);
    word |= little(ones << shift);
    memcpy(at, &word, sizeof word);
    at[8] = (uint8_t)(at[8] | (shift > 0 ? ones >> (64 - shift) : 0));
}

/* The next rows from c->rows on; bit i of `nulls`: row i of them is null. */
static void put_nulls(struct column *c, uint64_t nulls) {
    if (nulls == 0) {
        return;
    }
    uint8_t *at = c->valid + c->rows / 8; /* the buffer has COLUMN_SLACK_BYTES more than the rows need */
    unsigned shift = (unsigned)(c->rows % 8);
    uint64_t valid;
    memcpy(&valid, at, sizeof valid);
    valid &= ~little(nulls << shift);
    memcpy(at, &valid, sizeof valid);
    at[8] = (uint8_t)(at[8] & ~(shift > 0 ? nulls >> (64 - shift) : 0));
    c->nulls += (uint64_t)__builtin_popcountll(nulls);
}

static void put_same(struct column *c, uint64_t value, size_t n) {
    uint8_t *into = c->values + 8 * c->rows;
    for (size_t i = 0; i < n; i++) {
        memcpy(into + 8 * i, &value, sizeof value);
    }
}

static void put_fixed(struct column *c, const struct put *p, unsigned column) {
    const uint64_t *values = rows_values(p->rows, column) + p->from;
    const struct scan_batch *b = &p->rows->batch;
    switch (column) {
    case LS_ROWS_EPOCH:
        put_same(c, b->batch.epoch, p->n);
        return;
    case LS_ROWS_TIME:
        put_same(c, column_time(b->batch.time_us), p->n);
        return;
    case LS_ROWS_BATCH_LSN:
        put_same(c, b->lsn, p->n);
        return;
    case LS_ROWS_SEGMENT:
        put_same(c, b->first_lsn, p->n);
        return;
    default:
        break;
    }
    switch (c->kind) {
    case COLUMN_BITS:
        put_ones(c->values, c->rows, p->bits[column + ROW_BITS_SHIFT]);
        break;
    case COLUMN_8:
        put_8(c, values, p->n);
        break;
    case COLUMN_32:
        put_32(c, values, p->n);
        break;
    default:
        memcpy(c->values + 8 * c->rows, values, 8 * p->n);
        break;
    }
}

/* ---- columns of variable length ---- */

enum { XID_TEXT_BYTES_MAX = 24 + 2 + 4 * XID_PART_BYTES_MAX };

static uint32_t put_hex(char *into, const uint8_t *bytes, uint32_t n) {
    static const char digits[] = "0123456789abcdef";
    for (uint32_t i = 0; i < n; i++) {
        into[2 * i] = digits[bytes[i] >> 4];
        into[2 * i + 1] = digits[bytes[i] & 15];
    }
    return 2 * n;
}

static uint32_t put_xid(uint8_t *into, const struct row *row) {
    char text[XID_TEXT_BYTES_MAX];
    int n = snprintf(text, 24, "%lld:", (long long)row->xid.format_id);
    uint32_t used = n > 0 && n < 24 ? (uint32_t)n : 0;
    used += put_hex(text + used, row->xid.data, row->xid.gtrid_bytes);
    text[used++] = ':';
    used += put_hex(text + used, row->xid.data + row->xid.gtrid_bytes, row->xid.bqual_bytes);
    memcpy(into, text, used);
    return used;
}

static uint64_t body_bytes(const struct ls_rows *rows, const struct row *row) {
    return row->body_bytes < rows->options.body_max ? row->body_bytes : rows->options.body_max;
}

/* The bytes of a row's value in a column other than XID. */
static inline uint64_t value_of(const struct ls_rows *rows, unsigned column, const struct row *row,
                                const uint8_t **from) {
    switch (column) {
    case LS_ROWS_NOTE:
        *from = row->note;
        return row->note_bytes;
    case LS_ROWS_BODY:
        *from = row->body;
        return body_bytes(rows, row);
    default:
        *from = row->header;
        return row->header_bytes;
    }
}

/* Puts the bytes of one row's value; returns how many. There is room for them. */
static inline uint64_t put_value_bytes(const struct ls_rows *rows, unsigned column, const struct row *row,
                                       uint8_t *into) {
    if (column == LS_ROWS_XID) {
        return row->has_xid ? put_xid(into, row) : 0;
    }
    const uint8_t *from;
    uint64_t n = value_of(rows, column, row, &from);
    if (n == 0) {
        return 0;
    }
    /* Most headers are short. The buffer has COLUMN_SLACK_BYTES behind what it needs to hold. */
    if (n <= COLUMN_SLACK_BYTES && from + COLUMN_SLACK_BYTES <= row->r.bytes + row->r.length) {
        memcpy(into, from, COLUMN_SLACK_BYTES);
    } else {
        memcpy(into, from, n);
    }
    return n;
}

/* Inlined for each column, so that its rows do not ask which one it is. */
static inline void put_bytes_of(struct column *c, const struct put *p, unsigned column) {
    uint64_t used = c->value_bytes;
    uint8_t *offsets = c->offsets + 4 * (c->rows + 1);
    for (size_t i = 0; i < p->n; i++) {
        used += put_value_bytes(p->rows, column, &p->block[i], c->values + used);
        const uint32_t end = (uint32_t)used;
        memcpy(offsets + 4 * i, &end, sizeof end);
    }
    c->value_bytes = used;
}

static void put_bytes(struct column *c, const struct put *p, unsigned column) {
    switch (column) {
    case LS_ROWS_XID:
        put_bytes_of(c, p, LS_ROWS_XID);
        break;
    case LS_ROWS_NOTE:
        put_bytes_of(c, p, LS_ROWS_NOTE);
        break;
    case LS_ROWS_BODY:
        put_bytes_of(c, p, LS_ROWS_BODY);
        break;
    default:
        put_bytes_of(c, p, LS_ROWS_HEADER);
        break;
    }
}

/* Puts the ids of a row of several queues; returns how many. */
static uint64_t put_several_ids(const struct row *row, uint8_t *into) {
    uint64_t used = 0;
    for (int k = 0; k < 2; k++) {
        const uint8_t *at = row->queues[k].first;
        for (uint32_t j = 0; j < row->queues[k].count; j++, at = format_next_queue(&row->queues[k], at)) {
            const uint64_t id = format_queue_id(at, 0);
            memcpy(into + 8 * used, &id, sizeof id);
            used += id != 0 ? 1 : 0;
        }
    }
    return used;
}

/* An id that is 0 is written behind the items, where the buffer has COLUMN_SLACK_BYTES, and not counted. */
static void put_queue_ids(struct column *lists, struct column *items, const struct put *p) {
    const uint64_t *counts = rows_values(p->rows, LS_ROWS_QUEUE_COUNT) + p->from;
    const uint64_t *ids = rows_values(p->rows, LS_ROWS_QUEUE_ID) + p->from;
    uint64_t used = items->rows;
    uint8_t *offsets = lists->offsets + 4 * (lists->rows + 1);
    for (size_t i = 0; i < p->n; i++) {
        if (counts[i] > 1) {
            used += put_several_ids(&p->block[i], items->values + 8 * used);
        } else {
            memcpy(items->values + 8 * used, &ids[i], sizeof ids[i]);
            used += counts[i];
        }
        const uint32_t end = (uint32_t)used;
        memcpy(offsets + 4 * i, &end, sizeof end);
    }
    items->rows = used;
}

/* ---- room ---- */

/* The bytes that rows need in columns of variable length; 0 for a column that is not requested. */
struct need {
    uint64_t header_bytes, body_bytes, note_bytes, xid_bytes, items;
};

/* Rows of many bytes go into several batches, so that the size of a batch is limited. */
#define BATCH_BYTES_MAX ((uint64_t)64 << 20)

/* The first rows, at most `n`, that fit into the batch, and what they need. */
static size_t fitting(const ls_columns *columns, const struct ls_rows *rows, const struct row *block, size_t n,
                      struct need *need) {
    const struct column *at = columns->at;
    const bool header = column_asked(&at[LS_ROWS_HEADER]), body = column_asked(&at[LS_ROWS_BODY]),
               note = column_asked(&at[LS_ROWS_NOTE]), items = column_asked(&at[LS_ROWS_QUEUE_IDS_ITEM]);
    uint64_t used = at[LS_ROWS_HEADER].value_bytes + at[LS_ROWS_BODY].value_bytes + at[LS_ROWS_NOTE].value_bytes +
                    8 * at[LS_ROWS_QUEUE_IDS_ITEM].rows;
    size_t i = 0;
    for (; i < n; i++) {
        const struct row *row = &block[i];
        struct need more = {
            .header_bytes = header ? row->header_bytes : 0,
            .body_bytes = body ? body_bytes(rows, row) : 0,
            .note_bytes = note ? row->note_bytes : 0,
            .items = items ? row_value(row, LS_ROWS_QUEUE_COUNT) : 0,
        };
        uint64_t bytes = more.header_bytes + more.body_bytes + more.note_bytes + 8 * more.items;
        if (used > 0 && (used > BATCH_BYTES_MAX || bytes > BATCH_BYTES_MAX - used)) {
            break;
        }
        used += bytes;
        need->header_bytes += more.header_bytes;
        need->body_bytes += more.body_bytes;
        need->note_bytes += more.note_bytes;
        need->xid_bytes += row->has_xid ? XID_TEXT_BYTES_MAX : 0;
        need->items += more.items;
    }
    return i;
}

static bool bytes_fit(struct column *c, uint64_t bytes) {
    return c->kind == COLUMN_ABSENT || c->blank || column_has_room_for(c, bytes);
}

static bool has_room(struct column *at, const struct need *need) {
    return bytes_fit(&at[LS_ROWS_HEADER], need->header_bytes) && bytes_fit(&at[LS_ROWS_BODY], need->body_bytes) &&
           bytes_fit(&at[LS_ROWS_NOTE], need->note_bytes) && bytes_fit(&at[LS_ROWS_XID], need->xid_bytes) &&
           (!column_asked(&at[LS_ROWS_QUEUE_IDS_ITEM]) ||
            column_has_room_for_items(&at[LS_ROWS_QUEUE_IDS_ITEM], need->items));
}

/* Blank columns in which a row of the block has a value. */
static void begin_columns(struct column *at, uint64_t touched) {
    for (unsigned i = 0; i < LS_ROWS_QUEUE_IDS_ITEM; i++) {
        if (at[i].blank && (touched >> i & 1) != 0) {
            column_begin(&at[i]);
        }
    }
}

/* ---- both ---- */

/* A batch of all columns is larger than the cache; so the places of the next block are loaded while its records are read. */
static void prefetch_next(const struct column *c) {
    static const uint8_t widths[] = {[COLUMN_8] = 1, [COLUMN_32] = 4, [COLUMN_64] = 8, [COLUMN_LIST] = 0};
    prefetch_bytes(c->values + (size_t)widths[c->kind] * c->rows, (size_t)widths[c->kind] * ROWS_AT_ONCE);
    if (c->offsets != NULL) {
        prefetch_bytes(c->offsets + 4 * (c->rows + 1), 4 * (size_t)ROWS_AT_ONCE);
    }
}

static void put_column(struct column *at, unsigned column, const struct put *p) {
    struct column *c = &at[column];
    if (c->blank) {
        column_put_blank(c, p->n);
        return;
    }
    if (column == LS_ROWS_QUEUE_IDS) {
        put_queue_ids(c, &at[LS_ROWS_QUEUE_IDS_ITEM], p);
    } else if (c->kind == COLUMN_BYTES) {
        put_bytes(c, p, column);
    } else {
        put_fixed(c, p, column);
    }
    put_nulls(c, p->bits[column]);
    c->rows += p->n;
    prefetch_next(c);
}

/* Everything that can fail comes before the first value, so that all columns keep the same length. */
int rows_put(const struct ls_rows *rows, ls_columns *columns, size_t from, size_t n, size_t *put) {
    struct put p = {.rows = rows, .block = rows->block + from, .from = from, .bits = {0}};
    struct need need = {.items = 0};
    *put = 0;
    p.n = fitting(columns, rows, p.block, n, &need);
    begin_columns(columns->at, rows->touched);
    if (p.n == 0 || !has_room(columns->at, &need)) {
        return LS_BUSY;
    }
    assert(p.n <= columns->at[LS_ROWS_LSN].capacity - columns->rows);
    for (size_t i = 0; i < p.n; i++) {
        p.bits[i] = p.block[i].marks;
    }
    transpose(p.bits);
    for (unsigned i = 0; i < LS_ROWS_QUEUE_IDS_ITEM; i++) {
        if (column_asked(&columns->at[i])) {
            put_column(columns->at, i, &p);
        }
    }
    columns->rows += p.n;
    *put = p.n;
    return p.n < n ? LS_BUSY : LS_OK;
}
