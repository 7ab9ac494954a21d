/* The records of a log as rows of columns: what rows.c reads and rows_put.c fills. */
#ifndef LOGSTORE_ROWS_H
#define LOGSTORE_ROWS_H

#include "analysis/columns.h"
#include "analysis/lookback.h"

enum {
    ROWS_TYPES_KNOWN = 24,    /* as format_type_ordinal numbers them */
    ROWS_TYPES_UNKNOWN = 104, /* the number of a type fits seven bits */
    ROWS_TYPE_BIT_UNKNOWN = 31,
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
    ls_rows_options options; /* its pointers lead to what is ours */
    enum column_kind kinds[LS_ROWS_COLUMNS];
    struct scan_batch batch; /* at hand: bytes NULL: none */
    uint32_t offset;         /* in it, of the next record */
    uint64_t passed;         /* bytes of the log since the caller had a turn */
    bool bodied;             /* a row is asked for what its record's body says */
    bool any;                /* a row is asked for something of any length */
    bool moved;              /* about effects and outcomes */
    bool placed;             /* about the enqueue of a dequeue */
    uint32_t unknown_count;
    uint16_t unknown[ROWS_TYPES_UNKNOWN];
    size_t named_last; /* where the last queue's name was found */
    struct row *block; /* ROWS_AT_ONCE of them: read and not put yet */
    uint64_t *values;  /* of all of them: ROWS_AT_ONCE for each column of fixed width */
    bool dirty;        /* values of the next row are not 0: one that was read was not wanted */
    size_t block_count;
    size_t block_at;
    int result; /* what ended it, if not LS_OK */
    ls_error failure;
};

enum { ROWS_AT_ONCE = 64 }; /* that are read and not yet put */

/*
 * What one record says. Of columns of fixed width the values stand in rows->values, column by column, and nulls has a bit
 * where there is none; the rest is where it is in the record.
 */
struct row {
    struct record r;
    uint64_t nulls;
    uint64_t *values;      /* of column n: values[n * ROWS_AT_ONCE]; 0 where a record does not say */
    const uint8_t *queues; /* little-endian ids, `queue_rows` of them, `queue_step` bytes apart */
    const uint8_t *more;   /* likewise, after these */
    uint32_t queue_rows;
    uint32_t more_rows;
    uint32_t queue_step;
    uint32_t header_bytes;
    uint32_t body_bytes;
    const uint8_t *header; /* NULL: none */
    const uint8_t *body;
    bool operates; /* an enqueue or a dequeue */
    bool has_xid;
    struct xid xid;
};

/* What a verified record says, and the batch that it is in; else its checksums are right and its contents impossible, or
   (FORMAT_NEWER) there are more types unknown to this version than have a number. */
enum format_result row_read(struct ls_rows *rows, const struct record *r, struct row *row);
/* And what the rest of the log says of it. */
int row_resolve(struct ls_rows *rows, struct row *row);

/* So many rows of the block, in a batch with room for them. LS_BUSY: no room for the next row, of *put that are; begin another batch. */
int rows_put(const struct ls_rows *rows, ls_columns *columns, size_t from, size_t n, size_t *put);

static inline uint64_t row_value(const struct row *row, unsigned column) {
    return row->values[(size_t)column * ROWS_AT_ONCE];
}

#endif
