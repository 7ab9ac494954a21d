/*
 * Rows of logs that are hard for a scanner: lists and bodies that together exceed memory, messages that many queues
 * dequeue at once, and records with right checksums that no writer of this version has written.
 */
#include "analysis/columns.h"
#include "analysis/lookback_parts.h"
#include "analysis/rows.h"
#include "tests/kit/forged_log.h"

static struct forged f;

/* For calls that must succeed but are not under test. */
#define must(condition) ((condition) ? (void)0 : abort())

enum { ROWS_MOST = 100000 };

/* One row with the columns that are requested below. */
struct seen {
    uint64_t lsn, time_us, stream, outcome, enqueue_lsn;
    uint16_t type;
    bool has_outcome, has_enqueue;
};

static ls_hold *hold; /* what is read, if there is one */
static struct seen seen[ROWS_MOST];
static uint64_t seen_count;

#define ASKED                                                                                   \
    (UINT64_C(1) << LS_ROWS_LSN | UINT64_C(1) << LS_ROWS_TYPE | UINT64_C(1) << LS_ROWS_STREAM | \
     UINT64_C(1) << LS_ROWS_TIME | UINT64_C(1) << LS_ROWS_OUTCOME | UINT64_C(1) << LS_ROWS_ENQUEUE_LSN)

static uint64_t number_at(const struct column *c, uint64_t row) {
    uint64_t value;

    memcpy(&value, c->values + 8 * row, sizeof value);
    return value;
}

static bool is_valid(const struct column *c, uint64_t row) { return (c->valid[row / 8] >> (row % 8) & 1) != 0; }

static void see(const ls_rows *rows, const ls_columns *columns) {
    const struct column *at = columns->at;

    for (uint64_t row = 0; row < columns->rows; row++) {
        must(seen_count < ROWS_MOST);
        seen[seen_count++] = (struct seen){
            .lsn = number_at(&at[LS_ROWS_LSN], row),
            .time_us = number_at(&at[LS_ROWS_TIME], row),
            .stream = at[LS_ROWS_STREAM].values[row],
            .outcome = at[LS_ROWS_OUTCOME].values[row],
            .enqueue_lsn = number_at(&at[LS_ROWS_ENQUEUE_LSN], row),
            .type = ls_rows_type(rows, at[LS_ROWS_TYPE].values[row]),
            .has_outcome = is_valid(&at[LS_ROWS_OUTCOME], row),
            .has_enqueue = is_valid(&at[LS_ROWS_ENQUEUE_LSN], row),
        };
    }
}

static ls_reader *open_reader(void) {
    ls_reader *reader;

    must((hold != NULL ? ls_hold_read(hold, 0, &reader) : ls_reader_open(vfs_sim_table(sim), "/s", 0, &reader)) ==
         LS_OK);
    return reader;
}

static int scan(const ls_rows_options *options) {
    ls_reader *reader = open_reader();
    ls_rows *rows;
    int rc;

    seen_count = 0;
    must(ls_rows_open(reader, options, &rows) == LS_OK);
    do {
        ls_columns *columns;

        rc = ls_rows_next(rows, &columns);
        if (rc == LS_OK && columns != NULL)
            see(rows, columns);
        ls_columns_free(columns);
    } while (rc == LS_OK);
    /* freed in the opposite order: a garbage collector frees in any order */
    ls_reader_close(reader);
    ls_rows_free(rows);
    return rc;
}

static const struct seen *row_of(uint64_t lsn) {
    for (uint64_t i = 0; i < seen_count; i++)
        if (seen[i].lsn == lsn)
            return &seen[i];
    abort();
}

static uint64_t plain(uint64_t id, uint64_t prev, enum record_type type) {
    struct slot s = forge_slot(&f, id, prev, 0);

    return forge_add(&f, format_put_plain(&s, type));
}

static const ls_rows_options whole = {.columns = ASKED, .rows_max = 1000};

/* ---- memory ---- */

static void a_scan_may_be_freed_after_its_reader(void) {
    uint64_t id;

    fresh();
    id = put(1, "one", NULL);
    check(add(id, 2, NULL) == LS_OK && take(id, 2, NULL) == LS_OK);
    check(scan(&whole) == LS_END && row_of(id)->type == MESSAGE_START); /* it looked back, with a file open */
    done();
}

/* Puts the row of one record into a batch many times; returns how many the batch took. */
static size_t put_alike(uint64_t columns, const struct row *row, size_t n, uint64_t *bytes) {
    static uint64_t values[LS_ROWS_HEADER * ROWS_STRIDE];
    static struct row block[ROWS_AT_ONCE];
    struct ls_rows rows = {.options = {.rows_max = 1000, .body_max = UINT64_MAX},
                           .block = block,
                           .values = values,
                           .touched = ~row->marks};
    enum column_kind kinds[LS_ROWS_COLUMNS] = {COLUMN_ABSENT};
    ls_columns *c;
    size_t put;
    int rc;

    kinds[LS_ROWS_QUEUE_IDS] = (columns >> LS_ROWS_QUEUE_IDS & 1) != 0 ? COLUMN_LIST : COLUMN_ABSENT;
    kinds[LS_ROWS_QUEUE_IDS_ITEM] = (columns >> LS_ROWS_QUEUE_IDS & 1) != 0 ? COLUMN_64 : COLUMN_ABSENT;
    kinds[LS_ROWS_BODY] = (columns >> LS_ROWS_BODY & 1) != 0 ? COLUMN_BYTES : COLUMN_ABSENT;
    c = columns_new(NULL, kinds, LS_ROWS_COLUMNS, rows.options.rows_max, ROWS_NULL_AT_FIRST);
    must(c != NULL && n <= ROWS_AT_ONCE);
    for (size_t i = 0; i < n; i++) {
        block[i] = *row;
        block[i].values = values + i;
        values[LS_ROWS_QUEUE_COUNT * ROWS_STRIDE + i] = row->queues[0].count;
    }
    rc = rows_put(&rows, c, 0, n, &put);
    check(rc == (put < n ? LS_BUSY : LS_OK));
    check(c->rows == put);
    *bytes = c->at[LS_ROWS_BODY].value_bytes + 8 * c->at[LS_ROWS_QUEUE_IDS_ITEM].rows;
    ls_columns_free(c);
    return put;
}

/* How many of the last 16,384 starts at these distances are remembered. */
static size_t remembered_starts(uint64_t distance) {
    enum { LAST = 1 << 14, ALL = 2 * LOOK_STARTS };
    static struct recent_start starts[LOOK_STARTS];
    struct lookback l = {.starts = starts};
    size_t found = 0;

    memset(starts, 0, sizeof starts);
    for (uint64_t i = 1; i <= ALL; i++)
        lookback_passed(&l, &(struct recent_start){.id = SEGMENT_HEADER_BYTES + i * distance, .time_us = i});
    for (uint64_t i = ALL - LAST + 1; i <= ALL; i++)
        found += look_recent_start(&l, SEGMENT_HEADER_BYTES + i * distance) != NULL;
    return found;
}

static void the_last_starts_of_messages_up_to_4_KiB_are_remembered(void) {
    for (uint64_t distance = 80; distance <= 1024; distance += 8)
        check(remembered_starts(distance) >= 11000);
    check(remembered_starts(2048) >= 11000 && remembered_starts(4096) >= 11000);
}

static void many_rows_of_many_queues_or_bytes_go_into_more_batches(void) {
    enum { MANY = 1 << 20 };
    uint8_t *ids = malloc(4 * MANY);
    struct row row = {.queues = {format_list_queues(ids, MANY)}};
    uint64_t bytes;

    must(ids != NULL);
    memset(ids, 1, 4 * MANY);
    check(put_alike(UINT64_C(1) << LS_ROWS_QUEUE_IDS, &row, 60, &bytes) > 1 && bytes <= 64 << 20);
    row = (struct row){.body = ids, .body_bytes = 4 * MANY};
    check(put_alike(UINT64_C(1) << LS_ROWS_BODY, &row, 60, &bytes) > 1 && bytes <= 64 << 20);
    row.body_bytes = 1000;
    check(put_alike(UINT64_C(1) << LS_ROWS_BODY, &row, 60, &bytes) == 60 && bytes == 60000);
    free(ids);
}

/* ---- chains ---- */

/* Finds the enqueue of every dequeue; returns how many searches in the log that took. */
static uint64_t look_all_up(uint64_t *dequeues) {
    ls_reader *reader = open_reader();
    struct lookback *l = lookback_new(reader, 0);
    uint64_t looked;

    *dequeues = 0;
    must(l != NULL);
    for (uint64_t i = 0; i < seen_count; i++) {
        struct place_found found;
        struct message_dequeue d;
        struct record here;
        uint8_t bytes[DEQUEUE_RECORD_BYTES];

        if (seen[i].type != MESSAGE_DEQUEUE)
            continue;
        must(lookback_record(l, seen[i].lsn, &here) == LS_OK && here.length == sizeof bytes);
        memcpy(bytes, here.bytes, sizeof bytes);
        here.bytes = bytes;
        check(format_get_dequeue(&here, &d) == FORMAT_OK);
        check(lookback_enqueue(l, &here, &(struct place_wanted){d.tx_id, d.queue_id}, &found) == LS_OK &&
              found.lsn == seen[i].enqueue_lsn);
        (*dequeues)++;
    }
    looked = l->clock;
    lookback_free(l);
    ls_reader_close(reader);
    return looked;
}

/* Messages on many queues, dequeued by one queue after the other: each dequeue searches all earlier records. */
static void messages_dequeued_by_many_queues_in_turn_need_no_full_search_each(void) {
    enum { MESSAGES = 1500, SUBSCRIBERS = 24 };
    static uint64_t ids[MESSAGES];
    static const uint8_t content[3000]; /* live bytes are more than half of the log: nothing moves */
    uint32_t queues[SUBSCRIBERS];
    uint64_t lsn, dequeues;

    fresh();
    check(ls_hold_take(r.v, "/s", "all", 0, UINT64_C(1) << 30, UINT64_C(3600) * 1000 * 1000, &hold) == LS_OK);
    for (uint32_t q = 1; q <= SUBSCRIBERS; q++) {
        queues[q - 1] = q;
        check(q <= FIRST_QUEUES || ls_queue_add(r.store, q) == LS_OK);
    }
    for (int i = 0; i < MESSAGES; i++)
        check(ls_publish(r.store, queues, SUBSCRIBERS, NULL, 0, content, sizeof content, NULL,
                         i % 64 == 0 ? LS_WAIT : 0, &ids[i]) == LS_OK);
    for (uint32_t q = 1; q <= SUBSCRIBERS; q++) {
        for (int i = 0; i < MESSAGES; i++)
            check(ls_dequeue(r.store, ids[i], q, NULL, 1, 0, i % 64 == 0 ? LS_WAIT : 0, &lsn) == LS_OK);
    }
    check(ls_force(r.store, 0) == LS_OK);
    check(scan(&whole) == LS_END);
    check(look_all_up(&dequeues) <= 5 * dequeues && dequeues == (uint64_t)MESSAGES * SUBSCRIBERS);
    ls_hold_release(hold);
    hold = NULL;
    done();
}

/* The outcome is behind more segments than there are windows, so looking it up takes the window of the relocated state. */
static void the_rows_of_a_relocated_state_are_read_before_an_outcome_is_looked_up(void) {
    enum { ROUNDS = 12, MESSAGES = 60 }; /* 40 segments */
    ls_tx *tx;
    uint64_t id, relocated, dequeues;

    fresh();
    check(ls_hold_take(r.v, "/s", "all", 0, UINT64_C(1) << 30, UINT64_C(3600) * 1000 * 1000, &hold) == LS_OK);
    id = put(1, "one", NULL);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    for (uint32_t queue = 2; queue <= FIRST_QUEUES; queue++)
        check(add(id, queue, tx) == LS_OK);
    for (int i = 0; i < ROUNDS; i++)
        churn(MESSAGES);
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    check(take(id, 2, NULL) == LS_OK && ls_force(r.store, 0) == LS_OK);
    check(scan(&whole) == LS_END);
    relocated = 0;
    for (uint64_t i = 0; i < seen_count; i++)
        relocated += seen[i].type == MESSAGE_RELOCATED;
    check(relocated > 0);
    (void)look_all_up(&dequeues);
    check(dequeues == ROUNDS * MESSAGES + 1);
    ls_tx_free(tx);
    ls_hold_release(hold);
    hold = NULL;
    done();
}

/* ---- records of other versions, and records whose beginning is recycled ---- */

static void a_transaction_whose_outcome_is_below_the_base_is_not_reported_as_open(void) {
    uint64_t lost, told, commit;

    fresh();
    (void)put(1, "one", NULL);
    forge_begin(&f);
    lost = plain(64, 128, TX_DELETE); /* its commit lies below the base */
    told = plain(0, 0, TX_START);
    commit = plain(told, told, TX_COMMIT);
    commit = plain(told, commit, TX_DELETE);
    forge_end(&f);
    check(scan(&whole) == LS_END);
    check(!row_of(lost)->has_outcome);
    check(row_of(told)->has_outcome && row_of(told)->outcome == LS_OUTCOME_COMMITTED);
    check(row_of(commit)->has_outcome && row_of(commit)->outcome == LS_OUTCOME_COMMITTED);
    done();
}

static uint64_t unknown(uint16_t type) {
    struct slot s = forge_slot(&f, 0, 0, 0);
    uint32_t bytes;

    s.id = 0;
    bytes = format_put_plain(&s, FILLER);
    forge_spoil(s, bytes, 16, 2, type);
    return forge_add(&f, bytes);
}

static void a_type_of_a_later_version_keeps_its_code(void) {
    enum { TYPES = 80 }; /* 128 numbers less those of the types that are known */
    uint64_t lsns[TYPES + 1];

    for (int extra = 0; extra < 2; extra++) {
        fresh();
        (void)put(1, "one", NULL);
        forge_begin(&f);
        for (int i = 0; i < TYPES + extra; i++)
            lsns[i] = unknown((uint16_t)(0x8101 + ((i / 35) << 8) + i % 35));
        forge_end(&f);
        if (extra > 0) {
            check(scan(&whole) == LS_VERSION && seen[seen_count - 1].lsn == lsns[TYPES - 1]);
        } else {
            check(scan(&whole) == LS_END);
        }
        for (int i = 0; i < TYPES; i++) {
            check(row_of(lsns[i])->type == 0x8101 + ((i / 35) << 8) + i % 35);
            check(row_of(lsns[i])->stream == (uint64_t)(i / 35));
        }
        done();
    }
}

static void a_time_that_no_clock_has_is_no_time_before_1970(void) {
    struct batch b;

    fresh();
    (void)put(1, "one", NULL);
    forge_begin(&f);
    (void)plain(0, 0, TX_START);
    forge_end(&f);
    b = (struct batch){.epoch = f.header.epoch,
                       .count = f.count,
                       .bytes = f.bytes,
                       .durable_lsn = f.lsn,
                       .base_lsn = f.base_lsn,
                       .time_us = UINT64_MAX};
    forge_batch(&f, &b);
    check(vfs_sim_put(sim, "/s", f.name, f.image, sizeof f.image) == 0);
    check(scan(&whole) == LS_END && row_of(f.lsn)->time_us == INT64_MAX);
    done();
}

static void housekeeping_records_belong_to_no_chain(void) {
    static const uint64_t none[] = {0};
    ls_rows_options o = whole;

    o.ids = none;
    o.id_count = 1;
    fresh();
    (void)put(1, "one", NULL);
    check(scan(&o) == LS_END && seen_count == 0);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_scan_may_be_freed_after_its_reader,
        the_last_starts_of_messages_up_to_4_KiB_are_remembered,
        many_rows_of_many_queues_or_bytes_go_into_more_batches,
        messages_dequeued_by_many_queues_in_turn_need_no_full_search_each,
        the_rows_of_a_relocated_state_are_read_before_an_outcome_is_looked_up,
        a_transaction_whose_outcome_is_below_the_base_is_not_reported_as_open,
        a_type_of_a_later_version_keeps_its_code,
        a_time_that_no_clock_has_is_no_time_before_1970,
        housekeeping_records_belong_to_no_chain,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
