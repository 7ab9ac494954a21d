/* The records of a log as rows of columns. rows.c scans, rows_read.c makes rows, rows_put.c fills columns. */
#ifndef LOGSTORE_ROWS_H
#define LOGSTORE_ROWS_H

#include "analysis/columns.h"
#include "analysis/lookback.h"

enum {
    ROWS_TYPES_UNKNOWN = 128 - TYPES_KNOWN, /* a type's number has seven bits; those known have format_type_ordinal */
    ROWS_TYPE_BIT_UNKNOWN = 63,
};

/* Every column, once: how its values are kept, and its type as ls_rows_column gives it. */
struct row_column {
    enum column_kind kind;
    const char *type;
};
extern const struct row_column row_columns[LS_ROWS_COLUMNS];

struct ls_rows {
    ls_reader *reader;
    struct lookback *look;
    struct column_pool *pool;
    ls_rows_options options; /* with copies of its lists */
    enum column_kind kinds[LS_ROWS_COLUMNS];
    struct scan_batch batch; /* the current one */
    uint32_t offset;         /* of the next record in it */
    uint32_t end;            /* the offset of the first record that is not wanted */
    bool filtered;           /* its records must pass the filters of headers */
    uint64_t passed;         /* bytes of the log read by this call without a row */
    bool bodied;             /* some column needs the record's body */
    bool needs_outcomes;     /* some column needs effects or outcomes */
    bool placed;             /* some column needs the enqueue of a place that ends */
    uint32_t unknown_count;
    uint16_t unknown[ROWS_TYPES_UNKNOWN];
    size_t named_last; /* index of the last queue in options.named */
    struct row *block; /* ROWS_AT_ONCE of them: read, not put yet */
    uint64_t *values;  /* ROWS_STRIDE for each column of fixed width */
    bool dirty;        /* the next row's values still hold those of a row that was filtered out */
    uint64_t touched;  /* bit n: some row of the block has a value in column n, which is null at first */
    size_t block_count;
    size_t block_at;
    int result; /* of the failure that ended the scan */
    ls_error failure;
};

enum {
    ROWS_AT_ONCE = 64, /* read, not put yet */
    ROWS_STRIDE =
        ROWS_AT_ONCE + 8, /* of values: a power of two would put the values of a row into few sets of a cache */
};

/* A COLUMN_BITS has no values in rows->values: bit n + ROW_BITS_SHIFT of `marks` is the row's value in column n. */
enum { ROW_BITS_SHIFT = 16 };
static_assert(LS_ROWS_COLUMNS <= LS_ROWS_RELOCATED + ROW_BITS_SHIFT && LS_ROWS_REDELIVERED + ROW_BITS_SHIFT < 64,
              "the marks of a row have a bit for each column, then one for each column of bits");

/* Columns that are null unless a record gives a value. */
#define ROWS_NULL_AT_FIRST                                                                                            \
    (ROW_BIT(LS_ROWS_QUEUE_ID) | ROW_BIT(LS_ROWS_QUEUE) | ROW_BIT(LS_ROWS_QUEUE_IDS) | ROW_BIT(LS_ROWS_TX_ID) |       \
     ROW_BIT(LS_ROWS_OUTCOME) | ROW_BIT(LS_ROWS_ENQUEUE_LSN) | ROW_BIT(LS_ROWS_ENQUEUE_TIME) | ROW_BIT(LS_ROWS_XID) | \
     ROW_BIT(LS_ROWS_HEADER_BYTES) | ROW_BIT(LS_ROWS_CONTENT_BYTES) | ROW_BIT(LS_ROWS_CONTENT_OFFSET) |               \
     ROW_BIT(LS_ROWS_DELIVERY_COUNT) | ROW_BIT(LS_ROWS_REDELIVERED) | ROW_BIT(LS_ROWS_REASON) |                       \
     ROW_BIT(LS_ROWS_FROM_QUEUE_ID) | ROW_BIT(LS_ROWS_NOT_BEFORE) | ROW_BIT(LS_ROWS_EXPIRES) |                        \
     ROW_BIT(LS_ROWS_HEADER) | ROW_BIT(LS_ROWS_NOTE) | ROW_BIT(LS_ROWS_BODY))
#define ROW_BIT(column) (UINT64_C(1) << (column))

/*
 * One record as a row. Values of fixed width stand in rows->values, column by column, and `marks` has a bit for each
 * null; values of variable length stay in the record. What all records of a batch have in common is in rows->batch.
 */
struct row {
    struct record r;
    uint64_t marks;
    uint64_t *values;            /* of column n: values[n * ROWS_STRIDE]; 0 if null */
    struct queue_rows queues[2]; /* the ids of the first, then those of the second */
    uint32_t header_bytes;
    uint32_t body_bytes;
    uint32_t note_bytes;
    const uint8_t *header; /* NULL: none */
    const uint8_t *body;
    const uint8_t *note;
    bool operates; /* an operation on places */
    bool has_xid;
    struct xid xid;
};

/* Makes a row of row->r, a verified record. FORMAT_MALFORMED: impossible contents. FORMAT_NEWER: too many unknown types
   to number them. */
enum format_result row_read(struct ls_rows *rows, struct row *row);
/* Adds the values that come from the rest of the log. */
int row_resolve(struct ls_rows *rows, struct row *row);

/* The values of the column, one for each row of the block. */
static inline const uint64_t *rows_values(const struct ls_rows *rows, unsigned column) {
    return rows->values + (size_t)column * ROWS_STRIDE;
}

/* Puts up to `n` rows from row `from` of the block; *put is how many. LS_BUSY: the next row needs another batch. */
int rows_put(const struct ls_rows *rows, ls_columns *columns, size_t from, size_t n, size_t *put);

static inline uint64_t row_value(const struct row *row, unsigned column) {
    return row->values[(size_t)column * ROWS_STRIDE];
}

#endif
