/* The records of a log as rows of columns: what rows.c reads and rows_put.c fills. */
#ifndef LOGSTORE_ROWS_H
#define LOGSTORE_ROWS_H

#include "columns.h"
#include "lookback.h"

enum {
    ROWS_TYPES_KNOWN = 24,   /* as log_type_ordinal numbers them */
    ROWS_TYPES_UNKNOWN = 64, /* that get a number of their own; more share the last one */
    ROWS_TYPE_BIT_UNKNOWN = 31,
};

struct ls_rows {
    ls_reader *reader;
    struct lookback *look;
    ls_rows_options options; /* its pointers lead to what is ours */
    enum column_kind kinds[LS_ROWS_COLUMNS];
    struct scan_batch batch; /* at hand: bytes NULL: none */
    uint32_t offset;         /* in it, of the next record */
    uint64_t passed;         /* bytes of the log since the caller had a turn */
    bool moved;              /* about effects and outcomes */
    bool placed;             /* about the enqueue of a dequeue */
    uint32_t unknown_count;
    uint16_t unknown[ROWS_TYPES_UNKNOWN];
    size_t named_last; /* where the last queue's name was found */
    int result;        /* what ended it, if not LS_OK */
    ls_error failure;
};

/* What one record says, as far as it was asked for. */
struct row {
    struct record r;
    uint64_t tx_id;
    uint64_t content_bytes;
    uint64_t content_offset;
    uint32_t header_bytes;
    uint32_t queue_id; /* the first; 0: none */
    uint32_t queue_count;
    const uint8_t *queues; /* little-endian ids, `queue_rows` of them, `queue_step` bytes apart */
    const uint8_t *more;   /* likewise, after these */
    uint32_t queue_rows;
    uint32_t more_rows;
    uint32_t queue_step;
    uint16_t delivery_count;
    uint16_t reason;
    const uint8_t *header;
    const uint8_t *body;
    uint32_t body_bytes;
    bool operates; /* an enqueue or a dequeue */
    bool has_content;
    bool has_offset;
    bool has_header;
    bool has_xid; /* in the record */
};

/* What a verified record says; else its checksums are right and its contents impossible. */
enum format_result row_read(const struct record *r, struct row *row);
/* One row more, of a batch with room for it. LS_BUSY: it does not fit any more, begin another batch. */
int row_put(struct ls_rows *rows, ls_columns *columns, const struct row *row);

#endif
