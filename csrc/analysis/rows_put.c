/* Puts rows into columns, a block of rows at once, one column after the other. See rows.h. */
#include "analysis/rows.h"

#include <stdio.h>

#include "os/error.h"

/* ---- columns of fixed width ---- */

/* Converts eight bytes of a bitmap into a number whose lowest bit is the first row, or back. */
static uint64_t little(uint64_t bits) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    bits = __builtin_bswap64(bits);
#endif
    return bits;
}

static void put_bits(struct column *c, const uint64_t *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t row = c->rows + i;
        c->values[row / 8] = (uint8_t)(c->values[row / 8] | (unsigned)values[i] << (row % 8));
    }
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

/*
 * Each row has a bit for each null column; each column needs a bit for each null row. So a square of bits is
 * transposed, by swapping halves, then halves of these.
 */
static void transpose(uint64_t square[64]) {
    uint64_t mask = UINT64_C(0x00000000ffffffff);
    for (unsigned half = 32; half > 0; half /= 2, mask ^= mask << half) {
        for (unsigned i = 0; i < 64; i = ((i | half) + 1) & ~half) {
            uint64_t moved = (square[i] >> half ^ square[i | half]) & mask;
            square[i | half] ^= moved;
            square[i] ^= moved << half;
        }
    }
}

/* The next `n` rows from c->rows on; bit i of `nulls`: row i of them is null. */
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

static void put_fixed(struct column *c, const uint64_t *values, size_t n) {
    switch (c->kind) {
    case COLUMN_BITS:
        put_bits(c, values, n);
        break;
    case COLUMN_8:
        put_8(c, values, n);
        break;
    case COLUMN_32:
        put_32(c, values, n);
        break;
    default:
        memcpy(c->values + 8 * c->rows, values, 8 * n);
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

static bool put_xid(struct column *c, const struct row *row) {
    char text[XID_TEXT_BYTES_MAX];
    if (!row->has_xid) {
        return column_put_bytes(c, "", 0);
    }
    int n = snprintf(text, 24, "%lld:", (long long)row->xid.format_id);
    uint32_t used = n > 0 && n < 24 ? (uint32_t)n : 0;
    used += put_hex(text + used, row->xid.data, row->xid.gtrid_bytes);
    text[used++] = ':';
    used += put_hex(text + used, row->xid.data + row->xid.gtrid_bytes, row->xid.bqual_bytes);
    return column_put_bytes(c, text, used);
}

static bool put_queue_ids(struct column *lists, struct column *items, const struct row *row) {
    if (row->queues[0].first == NULL && row_value(row, LS_ROWS_QUEUE_COUNT) > 0) {
        if (!column_grow(items)) {
            return false;
        }
        column_put64(items, row_value(row, LS_ROWS_QUEUE_ID));
    }
    for (int k = 0; k < 2; k++) {
        const uint8_t *at = row->queues[k].first;
        for (uint32_t i = 0; i < row->queues[k].count; i++, at = format_next_queue(&row->queues[k], at)) {
            uint32_t id = format_queue_id(at, 0);
            if (id != 0 && !column_grow(items)) {
                return false;
            }
            if (id != 0) {
                column_put64(items, id);
            }
        }
    }
    column_end_list(lists, items->rows);
    return true;
}

static uint64_t body_bytes(const struct ls_rows *rows, const struct row *row) {
    return row->body_bytes < rows->options.body_max ? row->body_bytes : rows->options.body_max;
}

/* Rows of many bytes go into several batches, so that the size of a batch is limited. */
#define BATCH_BYTES_MAX ((uint64_t)64 << 20)

static bool ends_batch(const ls_columns *columns, const struct ls_rows *rows, const struct row *row) {
    const struct column *at = columns->at, *items = &at[LS_ROWS_QUEUE_IDS_ITEM];
    uint64_t used =
        at[LS_ROWS_HEADER].value_bytes + at[LS_ROWS_BODY].value_bytes + at[LS_ROWS_NOTE].value_bytes + 8 * items->rows;
    uint64_t more = column_asked(&at[LS_ROWS_NOTE]) ? row->note_bytes : 0;
    more += column_asked(items) ? 8 * (1 + (uint64_t)row->queues[0].count + row->queues[1].count) : 0;
    more += column_asked(&at[LS_ROWS_HEADER]) ? row->header_bytes : 0;
    more += column_asked(&at[LS_ROWS_BODY]) ? body_bytes(rows, row) : 0;
    return used > 0 && more > BATCH_BYTES_MAX - used;
}

/* Called before any value is put, so that all columns keep the same length. */
static bool has_room(ls_columns *columns, const struct ls_rows *rows, const struct row *row) {
    struct column *at = columns->at;
    return !ends_batch(columns, rows, row) &&
           (!column_asked(&at[LS_ROWS_XID]) || column_has_room_for(&at[LS_ROWS_XID], XID_TEXT_BYTES_MAX)) &&
           (!column_asked(&at[LS_ROWS_HEADER]) || column_has_room_for(&at[LS_ROWS_HEADER], row->header_bytes)) &&
           (row->note_bytes == 0 || !column_asked(&at[LS_ROWS_NOTE]) ||
            column_has_room_for(&at[LS_ROWS_NOTE], row->note_bytes)) &&
           (!column_asked(&at[LS_ROWS_BODY]) || column_has_room_for(&at[LS_ROWS_BODY], body_bytes(rows, row)));
}

static bool put_variable(const struct ls_rows *rows, ls_columns *columns, const struct row *row) {
    struct column *at = columns->at;
    return (!column_asked(&at[LS_ROWS_QUEUE_IDS]) ||
            put_queue_ids(&at[LS_ROWS_QUEUE_IDS], &at[LS_ROWS_QUEUE_IDS_ITEM], row)) &&
           (!column_asked(&at[LS_ROWS_XID]) || put_xid(&at[LS_ROWS_XID], row)) &&
           (!column_asked(&at[LS_ROWS_HEADER]) ||
            column_put_bytes(&at[LS_ROWS_HEADER], row->header, row->header_bytes)) &&
           (!rows->stated || !column_asked(&at[LS_ROWS_NOTE]) ||
            column_put_bytes(&at[LS_ROWS_NOTE], row->note, row->note_bytes)) &&
           (!column_asked(&at[LS_ROWS_BODY]) || column_put_bytes(&at[LS_ROWS_BODY], row->body, body_bytes(rows, row)));
}

/* ---- both ---- */

static bool is_fixed(enum column_kind kind) {
    return kind == COLUMN_8 || kind == COLUMN_32 || kind == COLUMN_64 || kind == COLUMN_BITS;
}

int rows_put(const struct ls_rows *rows, ls_columns *columns, size_t from, size_t n, size_t *put) {
    const struct row *block = rows->block + from;
    struct column *at = columns->at;
    uint64_t before = columns->rows;
    int rc = LS_OK;
    for (*put = 0; rc == LS_OK && rows->any && *put < n;) {
        if (!has_room(columns, rows, &block[*put])) {
            rc = LS_BUSY;
        } else if (!put_variable(rows, columns, &block[*put])) {
            rc = fail_memory();
        } else {
            (*put)++;
        }
    }
    *put = rows->any ? *put : n;
    if (!rows->stated && column_asked(&at[LS_ROWS_NOTE])) {
        column_put_none(&at[LS_ROWS_NOTE], *put);
    }
    uint64_t nulls[ROWS_AT_ONCE] = {0};
    for (size_t i = 0; i < *put; i++) {
        nulls[i] = block[i].nulls;
    }
    transpose(nulls);
    for (unsigned i = 0; i < LS_ROWS_QUEUE_IDS_ITEM; i++) {
        struct column *c = &at[i];
        if (!column_asked(c)) {
            continue;
        }
        assert(before + *put <= c->capacity);
        c->rows = before; /* go back: columns of variable length have these rows already  */
        if (is_fixed(c->kind)) {
            put_fixed(c, rows->values + (size_t)i * ROWS_AT_ONCE + from, *put);
        }
        put_nulls(c, nulls[i]);
        c->rows = before + *put;
    }
    columns->rows = before + *put;
    return rc;
}
