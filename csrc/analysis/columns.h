/*
 * Rows as columns, in Arrow's memory layout: native numbers one after another, a validity bitmap (bit i of byte i / 8,
 * the lowest first), and int32 offsets for items of variable length.
 *
 * A batch is made with room for a number of rows. Values of fixed width go to their row without a check: the caller
 * keeps below that number. Columns of variable length grow, and can fail. A batch has one piece of memory for the rows
 * that it was made for, and one for each buffer that grew. The first goes back to the pool of the batch's scan: memory
 * that is new costs a page fault for each 4 KiB, which is a third of the time of a scan.
 */
#ifndef LOGSTORE_COLUMNS_H
#define LOGSTORE_COLUMNS_H

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "logstore.h"

enum column_kind {
    COLUMN_ABSENT = 0, /* not requested: nothing may be put there */
    COLUMN_8,          /* one byte a row */
    COLUMN_32,
    COLUMN_64,
    COLUMN_BITS,
    COLUMN_BYTES, /* variable length */
    COLUMN_LIST,  /* offsets only: the items are in columns of their own, which grow */
};

#define COLUMN_BYTES_MAX ((uint64_t)INT32_MAX - 64) /* offsets are int32 */
#define COLUMN_ROWS_MAX  ((uint64_t)1 << 24)
#define COLUMNS_MAX      64 /* bits of a mask */
/* The last microsecond of the year 9999: Python has no later time, and "never" may be as late as 2^63 - 1. */
#define COLUMN_TIME_MAX UINT64_C(253402300799999999)

enum {
    COLUMN_SLACK_BYTES = 16, /* after every buffer */
    COLUMN_POOL_MOST = 64,
};

struct column {
    enum column_kind kind;
    bool blank;        /* all rows so far are null, and its memory was not touched yet */
    bool values_grew;  /* `values` is a piece of its own */
    bool rows_grew;    /* so are `offsets` and `valid` */
    uint64_t rows;     /* rows, or items, put so far */
    uint64_t capacity; /* rows */
    uint64_t nulls;
    uint8_t *values;
    uint64_t value_bytes; /* of a COLUMN_BYTES: used */
    uint64_t value_capacity;
    uint8_t *offsets; /* capacity + 1 of them, of a COLUMN_BYTES or _LIST */
    uint8_t *valid;   /* all ones where nothing has been put yet */
};

struct ls_columns {
    uint64_t rows; /* items of lists have counts of their own */
    size_t count;
    struct column *at;
    uint8_t *memory; /* of all buffers that did not grow */
    uint64_t memory_bytes;
    struct column_pool *pool; /* NULL: none */
    uint8_t *zeros; /* in it: the values, offsets and bitmaps of all columns that stayed blank; NULL: none was blank */
};

/*
 * The memory of freed batches, for the next batches of their scan: at most as much as existed at once, and
 * COLUMN_POOL_MOST batches. Batches may be freed by any thread, and after their scan. NULL: no memory.
 */
struct column_pool *column_pool_new(void);
void column_pool_end(struct column_pool *pool); /* the scan makes no more batches; pool may be NULL */

/* Makes a batch with room for `rows` rows, and at first for as many items of a list. The columns of `blank` (bit n:
   column n) begin blank. NULL: no memory. */
ls_columns *columns_new(struct column_pool *pool, const enum column_kind *kinds, size_t count, uint64_t rows_max,
                        uint64_t blank);
/* Ends the blank state of a column before its first value: the rows so far stay null. */
void column_begin(struct column *c);
/* Gives the columns that are still blank their zeros; nothing can be put any more. */
void columns_end(ls_columns *columns);
/* Room for more items in a column that holds the items of a list. False: no memory, or the column is full. */
bool column_has_room_for_items(struct column *c, uint64_t items);
bool column_grow(struct column *c); /* for one */
/* The next row of a COLUMN_BYTES. False: no memory, or the batch is full. */
bool column_put_bytes(struct column *c, const void *bytes, uint64_t n);
bool column_has_room_for(struct column *c, uint64_t bytes);

/* Times are signed in Arrow; no clock gives a larger one. */
static inline uint64_t column_time(uint64_t time_us) { return time_us <= INT64_MAX ? time_us : INT64_MAX; }

/* A time of a place as it is shown. */
static inline uint64_t column_place_time(uint64_t time_us) {
    return time_us <= COLUMN_TIME_MAX ? time_us : COLUMN_TIME_MAX;
}

static inline bool column_asked(const struct column *c) { return c->kind != COLUMN_ABSENT; }

static inline void column_put8(struct column *c, uint8_t value) {
    assert(c->rows < c->capacity);
    c->values[c->rows++] = value;
}

static inline void column_put32(struct column *c, uint32_t value) {
    assert(c->rows < c->capacity);
    memcpy(c->values + 4 * c->rows++, &value, sizeof value);
}

static inline void column_put64(struct column *c, uint64_t value) {
    assert(c->rows < c->capacity);
    memcpy(c->values + 8 * c->rows++, &value, sizeof value);
}

/* Bits that have not been put yet are zero. */
static inline void column_put_bit(struct column *c, bool value) {
    assert(c->rows < c->capacity);
    c->values[c->rows / 8] = (uint8_t)(c->values[c->rows / 8] | (unsigned)value << (c->rows % 8));
    c->rows++;
}

/* Makes the last row null and leaves its value. */
static inline void column_make_null(struct column *c) {
    uint64_t row = c->rows - 1;
    c->valid[row / 8] = (uint8_t)(c->valid[row / 8] & ~(1U << (row % 8)));
    c->nulls++;
}

static inline void column_put64_or_null(struct column *c, uint64_t value, bool is_null) {
    uint64_t row = c->rows;
    column_put64(c, is_null ? 0 : value);
    c->valid[row / 8] = (uint8_t)(c->valid[row / 8] & ~((unsigned)is_null << (row % 8)));
    c->nulls += is_null ? 1 : 0;
}

static inline void column_put32_or_null(struct column *c, uint32_t value, bool is_null) {
    uint64_t row = c->rows;
    column_put32(c, is_null ? 0 : value);
    c->valid[row / 8] = (uint8_t)(c->valid[row / 8] & ~((unsigned)is_null << (row % 8)));
    c->nulls += is_null ? 1 : 0;
}

static inline void column_put8_or_null(struct column *c, uint8_t value, bool is_null) {
    uint64_t row = c->rows;
    column_put8(c, is_null ? 0 : value);
    c->valid[row / 8] = (uint8_t)(c->valid[row / 8] & ~((unsigned)is_null << (row % 8)));
    c->nulls += is_null ? 1 : 0;
}

/* The next `n` rows of a blank column. */
static inline void column_put_blank(struct column *c, uint64_t n) {
    assert(c->blank && n <= c->capacity - c->rows);
    c->rows += n;
    c->nulls += n;
}

/* The next `n` rows of a COLUMN_BYTES, without bytes. */
static inline void column_put_none(struct column *c, uint64_t n) {
    assert(c->kind == COLUMN_BYTES && n <= c->capacity - c->rows);
    const uint32_t end = (uint32_t)c->value_bytes;
    for (uint64_t i = 0; i < n; i++) {
        memcpy(c->offsets + 4 * ++c->rows, &end, sizeof end);
    }
}

/* Ends the row's list at the items put so far. */
static inline void column_end_list(struct column *c, uint64_t items) {
    assert(c->rows < c->capacity && items <= COLUMN_ROWS_MAX);
    const uint32_t end = (uint32_t)items;
    c->rows++;
    memcpy(c->offsets + 4 * c->rows, &end, sizeof end);
}

#endif
