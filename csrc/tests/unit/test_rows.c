/*
 * A log as rows: parts of a log give the same rows as the whole, wherever it is divided; a failure is reported at its row
 * and has no other effect; a damaged log gives no row that was not written.
 */
#include "analysis/columns.h"
#include "analysis/rows.h"
#include "tests/kit/scarcity.h"

/* All rows one after another, each as the bytes of its values. */
struct list {
    uint8_t *bytes;
    size_t size, capacity;
    uint64_t rows;
    uint64_t *lsns;
    size_t *ends; /* of each row in `bytes` */
};

enum { ROWS_MOST = 8000, TOLD_BYTES = 16 << 20 };

static struct list list_new(void) {
    struct list t = {.capacity = TOLD_BYTES};

    t.bytes = malloc(TOLD_BYTES);
    t.lsns = calloc(ROWS_MOST, sizeof *t.lsns);
    t.ends = calloc(ROWS_MOST, sizeof *t.ends);
    return t;
}

static void list_free(struct list *t) {
    free(t->bytes);
    free(t->lsns);
    free(t->ends);
}

static void tell(struct list *t, const void *bytes, size_t n) {
    require(t->size + n <= t->capacity);
    memcpy(t->bytes + t->size, bytes, n);
    t->size += n;
}

static uint32_t offset_at(const struct column *c, uint64_t row) {
    uint32_t at;

    memcpy(&at, c->offsets + 4 * row, sizeof at);
    return at;
}

/* Appends one value in a form that differs for different values: whether it is null, and its bytes. */
static void tell_value(struct list *t, const ls_columns *columns, size_t i, uint64_t row) {
    const struct column *c = &columns->at[i], *items = &columns->at[LS_ROWS_QUEUE_IDS_ITEM];
    uint8_t valid = c->valid[row / 8] >> (row % 8) & 1, bit;
    uint32_t from, to;

    tell(t, &valid, 1);
    switch (c->kind) {
    case COLUMN_8:
        tell(t, c->values + row, 1);
        break;
    case COLUMN_32:
        tell(t, c->values + 4 * row, 4);
        break;
    case COLUMN_64:
        tell(t, c->values + 8 * row, 8);
        break;
    case COLUMN_BITS:
        bit = c->values[row / 8] >> (row % 8) & 1;
        tell(t, &bit, 1);
        break;
    default:
        from = offset_at(c, row);
        to = offset_at(c, row + 1);
        tell(t, &(uint32_t){to - from}, 4);
        if (c->kind == COLUMN_LIST)
            tell(t, items->values + 8 * (size_t)from, 8 * (size_t)(to - from));
        else
            tell(t, c->values + from, to - from);
    }
}

static void tell_batch(struct list *t, const ls_columns *columns) {
    for (uint64_t row = 0; row < columns->rows; row++) {
        require(t->rows < ROWS_MOST);
        memcpy(&t->lsns[t->rows], columns->at[LS_ROWS_LSN].values + 8 * row, 8);
        for (size_t i = 0; i < LS_ROWS_QUEUE_IDS_ITEM; i++)
            tell_value(t, columns, i, row);
        t->ends[t->rows++] = t->size;
    }
}

static const uint64_t names[] = {1, 2, 3, 5, 8};
static const ls_rows_options everything = {.columns = (UINT64_C(1) << LS_ROWS_COLUMNS) - 1,
                                           .rows_max = 64,
                                           .body_max = 100,
                                           .named = names,
                                           .named_count = sizeof names / sizeof *names};

/* Scans everything from there on into `t`; returns the code at the end. */
static int scan_into(vfs *system, const ls_rows_options *options, struct list *t) {
    ls_reader *reader;
    ls_rows *rows = NULL;
    int rc = ls_reader_open(system, "/s", options->start_lsn, &reader);

    rc = rc == LS_OK ? ls_rows_open(reader, options, &rows) : rc;
    while (rc == LS_OK) {
        ls_columns *columns;
        bool was = counting;

        rc = ls_rows_next(rows, &columns);
        counting = false;
        if (rc == LS_OK && columns != NULL)
            tell_batch(t, columns);
        ls_columns_free(columns);
        counting = was;
    }
    ls_rows_free(rows);
    ls_reader_close(reader);
    return rc;
}

static struct list whole;

static void scan_whole(void) {
    list_free(&whole);
    whole = list_new();
    require(scan_into(vfs_sim_table(rich), &everything, &whole) == LS_END);
    check(whole.rows > 60 || complain("too little to scan"));
}

static bool is_prefix(const struct list *t) {
    return t->rows <= whole.rows && (t->rows == 0 || t->ends[t->rows - 1] == whole.ends[t->rows - 1]) &&
           memcmp(t->bytes, whole.bytes, t->rows > 0 ? t->ends[t->rows - 1] : 0) == 0;
}

/* ---- the promises ---- */

static void parts_of_a_log_give_the_rows_of_the_whole_wherever_it_is_divided(void) {
    for (uint64_t cut = 0; cut < whole.rows; cut++) {
        struct list t = list_new();
        ls_rows_options o = everything;

        o.stop_lsn = whole.lsns[cut];
        o.rows_max = 1 + cut % 70;
        check(scan_into(vfs_sim_table(rich), &o, &t) == LS_END && t.rows == cut);
        o.start_lsn = o.stop_lsn;
        o.stop_lsn = 0;
        check(scan_into(vfs_sim_table(rich), &o, &t) == LS_END);
        check(t.rows == whole.rows && is_prefix(&t));
        list_free(&t);
    }
}

static void a_scan_without_memory_says_so_and_gives_only_complete_rows(void) {
    for (int forever = 0; TAKEN_OVER && forever < 2; forever++) {
        for (uint64_t nth = 1;; nth++) {
            struct list t = list_new();
            int rc;

            allocations = failed = 0;
            fail_at_nth = nth;
            for_ever = forever != 0;
            counting = true;
            rc = scan_into(quiet_table(rich), &everything, &t);
            counting = false;
            check(failed > 0 ? rc == LS_NO_MEMORY || rc == LS_END : rc == LS_END);
            check(is_prefix(&t) && (rc != LS_END || t.rows == whole.rows));
            list_free(&t);
            if (failed == 0)
                break;
        }
        check(fail_at_nth > 20);
    }
}

static void a_scan_reports_a_failed_call_and_gives_only_complete_rows(void) {
    static const int errors[] = {EIO, EINTR, EMFILE};

    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        for (uint64_t nth = 1;; nth++) {
            vfs_sim_plan p = {.nth = nth, .error = errors[e]};
            vfs_sim *disk = vfs_sim_clone(rich);
            struct list t = list_new();
            bool fired;
            int rc;

            vfs_sim_fail(disk, &p);
            rc = scan_into(vfs_sim_table(disk), &everything, &t);
            fired = vfs_sim_fired(disk) > 0;
            check(rc == LS_END || (fired && rc == LS_IO));
            check(is_prefix(&t) && (rc != LS_END || t.rows == whole.rows));
            check(vfs_sim_handles(disk) == 0);
            list_free(&t);
            vfs_sim_free(disk);
            if (!fired)
                break;
        }
    }
}

/* It gives the rows before the damage, and no row that was not written. */
static void a_damaged_log_gives_no_row_that_was_not_written(void) {
    static uint8_t image[SEGMENT];
    uint64_t first_lsn = whole.lsns[0] / SEGMENT * SEGMENT, refused = 0;
    char name[SEGMENT_NAME_BYTES];

    for (uint64_t row = 0; row < whole.rows; row += 1 + row % 7) {
        uint64_t lsn = whole.lsns[row];
        vfs_sim *disk = vfs_sim_clone(rich);
        struct list t = list_new();
        int rc;

        format_segment_name(name, lsn / SEGMENT * SEGMENT);
        check(vfs_sim_get(disk, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
        image[lsn % SEGMENT + row % 48] ^= 1;
        check(vfs_sim_put(disk, "/s", name, image, sizeof image) == 0);
        rc = scan_into(vfs_sim_table(disk), &everything, &t);
        check(rc == LS_END || rc == LS_CORRUPT || rc == LS_VERSION);
        /* in what follows the last watermark it is a torn tail, which is no part of the log */
        check(t.rows <= row);
        refused += rc == LS_CORRUPT ? 1 : 0;
        for (uint64_t k = 0; rc != LS_END && k < t.rows; k++)
            check(t.lsns[k] == whole.lsns[k]);
        list_free(&t);
        vfs_sim_free(disk);
    }
    check(refused > 20 && first_lsn > 0);
}

static void impossible_options_are_refused(void) {
    static const uint64_t falling[] = {2, 1}, ones[] = {1, 1};
    const ls_rows_options refused[] = {
        {.columns = UINT64_C(1) << LS_ROWS_COLUMNS, .rows_max = 1},
        {.rows_max = 0},
        {.rows_max = LS_ROWS_MOST + 1},
        {.rows_max = 1, .ids = falling, .id_count = 2},
        {.rows_max = 1, .queue_ids = ones, .queue_id_count = 2},
        {.rows_max = 1, .named = falling, .named_count = 2},
        {.rows_max = 1,
         .place_ids = falling,
         .place_queue_ids = falling,
         .place_lsns = ones,
         .place_times = ones,
         .place_count = 2},
        {.rows_max = 1, .place_ids = falling, .place_count = 1},
    };

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ls_reader *reader;
        ls_rows *rows;

        check(ls_reader_open(vfs_sim_table(rich), "/s", 0, &reader) == LS_OK);
        check(ls_rows_open(reader, &refused[i], &rows) == LS_OPTION && rows == NULL);
        ls_reader_close(reader);
    }
}

static void the_same_holds_before_any_relocation(void) {
    make_rich(false);
    scan_whole();
    parts_of_a_log_give_the_rows_of_the_whole_wherever_it_is_divided();
    a_scan_reports_a_failed_call_and_gives_only_complete_rows();
}

int main(void) {
    static void (*const tests[])(void) = {
        scan_whole,
        parts_of_a_log_give_the_rows_of_the_whole_wherever_it_is_divided,
        a_scan_without_memory_says_so_and_gives_only_complete_rows,
        a_scan_reports_a_failed_call_and_gives_only_complete_rows,
        a_damaged_log_gives_no_row_that_was_not_written,
        impossible_options_are_refused,
        the_same_holds_before_any_relocation,
    };
    static char buffer[4096];
    int result;

    (void)setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    make_rich(true);
    result = run_tests(tests, sizeof tests / sizeof *tests);
    list_free(&whole);
    vfs_sim_free(rich);
    return result;
}
