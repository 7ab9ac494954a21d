/*
 * Scans a log into columns: the reader's verified batches become rows, pass the filters, and fill batches of rows.
 *
 * Rows come in the order of the log. At damage the scan first returns all rows before it, then the error. A batch that
 * was not accepted gives no rows.
 */
#include "analysis/rows.h"

#include <stdlib.h>

#include "read/damage.h"
#include "os/array.h"
#include "os/error.h"

#define PASSED_BYTES_MAX ((uint64_t)256 << 20) /* most bytes that a call reads without a row before it returns */

static bool asked(const struct ls_rows *rows, unsigned column) { return rows->kinds[column] != COLUMN_ABSENT; }

/* Columns that need only the record's header and its batch. */
#define HEADER_COLUMNS                                                                                 \
    (UINT64_C(1) << LS_ROWS_LSN | UINT64_C(1) << LS_ROWS_TYPE | UINT64_C(1) << LS_ROWS_STREAM |        \
     UINT64_C(1) << LS_ROWS_ID | UINT64_C(1) << LS_ROWS_PREV | UINT64_C(1) << LS_ROWS_EPOCH |          \
     UINT64_C(1) << LS_ROWS_TIME | UINT64_C(1) << LS_ROWS_BATCH_LSN | UINT64_C(1) << LS_ROWS_SEGMENT | \
     UINT64_C(1) << LS_ROWS_RECORD_BYTES | UINT64_C(1) << LS_ROWS_FLAGS)

static void choose_columns(struct ls_rows *rows) {
    uint64_t columns = rows->options.columns & ~(UINT64_C(1) << LS_ROWS_QUEUE_IDS_ITEM);
    if ((columns >> LS_ROWS_QUEUE_IDS & 1) != 0) {
        columns |= UINT64_C(1) << LS_ROWS_QUEUE_IDS_ITEM;
    }
    for (unsigned i = 0; i < LS_ROWS_COLUMNS; i++) {
        rows->kinds[i] = (columns >> i & 1) != 0 ? row_columns[i].kind : COLUMN_ABSENT;
    }
    rows->bodied = (columns & ~HEADER_COLUMNS) != 0 || rows->options.queue_ids != NULL;
    rows->needs_outcomes =
        asked(rows, LS_ROWS_OUTCOME) || asked(rows, LS_ROWS_EFFECT_LSN) || asked(rows, LS_ROWS_EFFECT_TIME);
    rows->placed = asked(rows, LS_ROWS_ENQUEUE_LSN) || asked(rows, LS_ROWS_ENQUEUE_TIME);
}

/* Copies a list; NULL stays NULL. */
static bool copy_list(const uint64_t **list, size_t count) {
    if (*list == NULL) {
        return true;
    }
    uint64_t *own = malloc((count + 1) * sizeof *own);
    if (own != NULL && count > 0) {
        memcpy(own, *list, count * sizeof *own);
    }
    *list = own;
    return own != NULL;
}

static bool ascends(const uint64_t *list, size_t count) {
    for (size_t i = 1; list != NULL && i < count; i++) {
        if (list[i - 1] >= list[i]) {
            return false;
        }
    }
    return true;
}

static bool places_ascend(const ls_rows_options *o) {
    for (size_t i = 1; i < o->place_count; i++) {
        if (o->place_ids[i - 1] > o->place_ids[i] ||
            (o->place_ids[i - 1] == o->place_ids[i] && o->place_queue_ids[i - 1] >= o->place_queue_ids[i])) {
            return false;
        }
    }
    return true;
}

static int check_options(const ls_rows_options *o) {
    if (o->columns >> LS_ROWS_COLUMNS != 0) {
        return fail(LS_OPTION, "the mask of columns has a bit beyond the %d columns", LS_ROWS_COLUMNS);
    }
    if (o->rows_max == 0 || o->rows_max > LS_ROWS_MOST) {
        return fail(LS_OPTION, "a batch has 1 to %d rows, not %llu", LS_ROWS_MOST, (unsigned long long)o->rows_max);
    }
    if (!ascends(o->queue_ids, o->queue_id_count) || !ascends(o->ids, o->id_count) ||
        !ascends(o->named, o->named_count) || (o->named == NULL && o->named_count > 0)) {
        return fail(LS_OPTION, "a list of ids must ascend, without duplicates");
    }
    bool all = o->place_ids != NULL && o->place_queue_ids != NULL && o->place_lsns != NULL && o->place_times != NULL;
    if (o->place_count > 0 && (!all || !places_ascend(o))) {
        return fail(LS_OPTION, "known places must ascend by id and queue, without duplicates, each with LSN and time");
    }
    return LS_OK;
}

/* Replaces all lists by copies. False: no memory; lists that were not copied are NULL. */
static bool copy_lists(ls_rows_options *o) {
    bool copied = copy_list(&o->queue_ids, o->queue_id_count);
    copied = copy_list(&o->ids, o->id_count) && copied;
    copied = copy_list(&o->named, o->named_count) && copied;
    copied = copy_list(&o->place_ids, o->place_count) && copied;
    copied = copy_list(&o->place_queue_ids, o->place_count) && copied;
    copied = copy_list(&o->place_lsns, o->place_count) && copied;
    return copy_list(&o->place_times, o->place_count) && copied;
}

static void free_lists(ls_rows_options *o) {
    const uint64_t *lists[] = {o->queue_ids,       o->ids,        o->named,      o->place_ids,
                               o->place_queue_ids, o->place_lsns, o->place_times};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        free((void *)(uintptr_t)lists[i]);
    }
}

int ls_rows_open(ls_reader *reader, const ls_rows_options *options, ls_rows **rows) {
    *rows = NULL;
    int rc = check_options(options);
    if (rc != LS_OK) {
        return rc;
    }
    struct ls_rows *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return fail_memory();
    }
    made->reader = reader;
    made->options = *options;
    choose_columns(made);
    bool copied = copy_lists(&made->options);
    made->look = lookback_new(reader, options->as_of_lsn);
    made->pool = column_pool_new();
    made->block = calloc(ROWS_AT_ONCE, sizeof *made->block);
    made->values = calloc((size_t)LS_ROWS_HEADER * ROWS_STRIDE, sizeof *made->values);
    if (!copied || made->look == NULL || made->pool == NULL || made->block == NULL || made->values == NULL) {
        ls_rows_free(made);
        return fail_memory();
    }
    for (size_t i = 0; i < ROWS_AT_ONCE; i++) {
        made->block[i].values = made->values + i;
    }
    lookback_know(made->look, &made->options);
    scan_seek(&reader->scan, options->start_lsn);
    *rows = made;
    return LS_OK;
}

void ls_rows_free(ls_rows *rows) {
    if (rows == NULL) {
        return;
    }
    lookback_free(rows->look);
    column_pool_end(rows->pool);
    free_lists(&rows->options);
    free(rows->block);
    free(rows->values);
    free(rows);
}

const char *ls_rows_column(unsigned column) { return column < LS_ROWS_COLUMNS ? row_columns[column].type : NULL; }

uint16_t ls_rows_type(const ls_rows *rows, unsigned number) {
    if (number < TYPES_KNOWN) {
        return (uint16_t)((number / TYPES_PER_STREAM + 1) << 8 | (number % TYPES_PER_STREAM + 1));
    }
    number -= TYPES_KNOWN;
    return number < rows->unknown_count ? rows->unknown[number] : 0;
}

/* ---- filters ---- */

static bool is_in(const uint64_t *list, size_t count, uint64_t id) {
    size_t low = array_lower_bound_of(list, count, id);
    return low < count && list[low] == id;
}

static bool passes_header(const ls_rows_options *o, const struct record *r) {
    if (r->lsn < o->start_lsn) {
        return false;
    }
    if (o->types != 0) {
        unsigned bit = (r->type & TYPE_SKIPPABLE) != 0 ? ROWS_TYPE_BIT_UNKNOWN : format_type_ordinal(r->type);
        if ((o->types >> bit & 1) == 0) {
            return false;
        }
    }
    return o->ids == NULL || (r->id != 0 && is_in(o->ids, o->id_count, r->id));
}

static bool passes_queue(const ls_rows_options *o, const struct row *row) {
    return o->queue_ids == NULL || (row_value(row, LS_ROWS_QUEUE_COUNT) > 0 &&
                                    is_in(o->queue_ids, o->queue_id_count, row_value(row, LS_ROWS_QUEUE_ID)));
}

/* ---- batches ---- */

/* The next batch of the log; its BATCH record is the first record. A batch outside the range is left empty. */
static int next_batch(struct ls_rows *rows) {
    const ls_rows_options *o = &rows->options;
    struct scan_batch *b = &rows->batch;
    int rc = reader_next(rows->reader, b);
    bool stops = rc == LS_OK && o->stop_lsn != 0 && b->lsn >= o->stop_lsn;
    rows->offset = rows->end = 0;
    if (rc != LS_OK || stops) {
        return stops ? LS_END : rc;
    }
    bool in_time = o->timed == 0 || (b->batch.time_us >= o->start_us && b->batch.time_us < o->stop_us);
    bool wanted = in_time && b->lsn + b->batch.bytes > o->start_lsn;
    if (wanted) { /* a record's LSN is that of its batch plus its offset */
        bool ends_inside = o->stop_lsn != 0 && o->stop_lsn - b->lsn < b->batch.bytes;
        rows->end = ends_inside ? (uint32_t)(o->stop_lsn - b->lsn) : b->batch.bytes;
    }
    rows->filtered = o->types != 0 || o->ids != NULL || b->lsn < o->start_lsn;
    rows->passed += b->batch.bytes;
    return LS_OK;
}

static bool is_start(const struct record *r) { return r->type == MESSAGE_START || r->type == MESSAGE_START_PLACED; }

/* A dequeue that follows soon then finds the start without a read. */
static void note_start(struct ls_rows *rows, const struct row *row) {
    if (is_start(&row->r) && row->operates && row_value(row, LS_ROWS_TX_ID) == 0) {
        const struct recent_start start = {row->r.id, rows->batch.batch.time_us};
        lookback_passed(rows->look, &start);
    }
}

/* Keeps the record, which is the next row of the block, if it passes the filters. */
static int take(struct ls_rows *rows, struct row *row) {
    const struct record *r = &row->r;
    bool wanted = !rows->filtered || passes_header(&rows->options, r);
    if (!wanted && !(rows->placed && is_start(r))) {
        return LS_OK;
    }
    enum format_result why = row_read(rows, row);
    if (why == FORMAT_NEWER) {
        return fail_at(
            LS_VERSION, rows->batch.first_lsn, r->lsn,
            "the log has records of more than %d types that this program does not know; use a newer logstore",
            ROWS_TYPES_UNKNOWN);
    }
    if (why != FORMAT_OK) {
        return fail_at(LS_CORRUPT, rows->batch.first_lsn, r->lsn,
                       "the log is damaged: a record's checksums are right, but its contents are %s",
                       format_result_text(why));
    }
    if (rows->placed) {
        note_start(rows, row);
    }
    int rc = LS_OK;
    if (wanted && passes_queue(&rows->options, row)) {
        rc = row_resolve(rows, row);
        rows->block_count += rc == LS_OK ? 1 : 0;
        rows->dirty = rc != LS_OK;
    }
    rows->touched |= ~row->marks & ROWS_NULL_AT_FIRST;
    return rc;
}

/* Reads records into the block until it is full, the batch ends, or one fails, which a next call reads again. */
static int read_block(struct ls_rows *rows) {
    int rc = LS_OK;
    while (rc == LS_OK && rows->offset < rows->end && rows->block_count < ROWS_AT_ONCE) {
        struct row *row = &rows->block[rows->block_count];
        format_read_verified(rows->batch.bytes + rows->offset, &row->r);
        const uint32_t length = row->r.length;
        rc = take(rows, row);
        rows->offset += rc == LS_OK ? length : 0;
    }
    return rc;
}

/* Makes the values of null rows zero again; row_read sets those of all other columns in every row. */
static void clear_values(struct ls_rows *rows) {
    for (unsigned column = 0; column < LS_ROWS_HEADER; column++) {
        if ((rows->touched >> column & 1) != 0) {
            memset(rows->values + (size_t)column * ROWS_STRIDE, 0, ROWS_AT_ONCE * sizeof *rows->values);
        }
    }
    rows->touched = 0;
    rows->dirty = false;
}

/* Puts the rows of the block. Rows point into the current batch, so this must run before the next batch is read. */
static int put_block(struct ls_rows *rows, ls_columns *columns) {
    size_t put = 0, left = rows->block_count - rows->block_at;
    uint64_t room = rows->options.rows_max - columns->rows;
    int rc = rows_put(rows, columns, rows->block_at, left < room ? left : (size_t)room, &put);
    rows->block_at += put;
    if (rows->block_at == rows->block_count) {
        rows->block_at = rows->block_count = 0;
        clear_values(rows);
    }
    return rc;
}

static int fill(struct ls_rows *rows, ls_columns *columns) {
    int rc = LS_OK;
    rows->passed = 0;
    while (rc == LS_OK && columns->rows < rows->options.rows_max &&
           (columns->rows > 0 || rows->passed < PASSED_BYTES_MAX)) {
        int read = rows->block_at == 0 ? read_block(rows) : LS_OK;
        if (rows->block_count > 0) {
            rc = put_block(rows, columns);
        } else {
            rc = read != LS_OK ? read : next_batch(rows);
        }
    }
    return rc;
}

int ls_rows_next(ls_rows *rows, ls_columns **batch) {
    *batch = NULL;
    if (rows->result != LS_OK) {
        return rows->result == LS_END ? LS_END : fail_again(&rows->failure);
    }
    ls_columns *columns =
        columns_new(rows->pool, rows->kinds, LS_ROWS_COLUMNS, rows->options.rows_max, ROWS_NULL_AT_FIRST);
    if (columns == NULL) {
        return fail_memory();
    }
    int rc = fill(rows, columns);
    if (rc == LS_BUSY && columns->rows == 0) {
        rc = fail_memory(); /* an empty batch may hold the largest record */
    }
    if (rc != LS_OK && (rc != LS_BUSY || columns->rows == 0)) {
        rows->result = rc;
        rows->failure = *ls_last_error();
    }
    if (columns->rows > 0) {
        columns_end(columns);
        *batch = columns;
        return LS_OK;
    }
    ls_columns_free(columns);
    return rc;
}
