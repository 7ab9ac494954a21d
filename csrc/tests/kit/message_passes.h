/*
 * Passes over the messages of a log on the disk `rich`: in one part, in two, with failing allocations, and from states that were
 * changed.
 */
#ifndef LOGSTORE_MESSAGE_PASSES_H
#define LOGSTORE_MESSAGE_PASSES_H

#include "analysis/columns.h"
#include "analysis/message_rows.h"
#include "format/bytes.h"
#include "format/xxh64.h"
#include "os/io.h"
#include "tests/kit/scarcity.h"

#define must(what)   \
    do {             \
        if (!(what)) \
            abort(); \
    } while (0)

enum {
    TOLD_MOST = 16 << 20,
    OPEN_MOST = 4000,
    RECORDS_MOST = 20000,
    FIRST_OF_PLACES = 28,
    COLUMN_STATE = 26,
    COLUMN_BODY = 27
};

/* Rows one after another, as the bytes of their values. */
struct told_rows {
    uint8_t *bytes;
    size_t size;
    uint64_t rows;
};

/* The open set that a pass leaves. */
struct left {
    uint64_t ids[OPEN_MOST];
    size_t from[OPEN_MOST + 1];
    size_t count;
    uint8_t states[TOLD_MOST];
    uint64_t bodies_from[OPEN_MOST + 1];
    bool has_body[OPEN_MOST];
    uint8_t bodies[TOLD_MOST];
    uint8_t rest[1 << 21];
    size_t rest_bytes;
};

static uint64_t body_limit; /* of the bodies that passes give; 0: none */

static struct told_rows rows_new(void) { return (struct told_rows){.bytes = malloc(TOLD_MOST)}; }

static void tell(struct told_rows *t, const void *bytes, size_t n) {
    must(t->size + n <= TOLD_MOST);
    memcpy(t->bytes + t->size, bytes, n);
    t->size += n;
}

static uint32_t offset_at(const struct column *c, uint64_t row) {
    uint32_t at;

    memcpy(&at, c->offsets + 4 * row, sizeof at);
    return at;
}

static uint64_t value64(const ls_columns *columns, size_t i, uint64_t row) {
    uint64_t value;

    memcpy(&value, columns->at[i].values + 8 * row, sizeof value);
    return value;
}

static bool valid_at(const struct column *c, uint64_t row) { return (c->valid[row / 8] >> (row % 8) & 1) != 0; }

static void tell_value(struct told_rows *t, const ls_columns *columns, size_t i, uint64_t row) {
    const struct column *c = &columns->at[i];
    uint8_t valid, bit;
    uint32_t from, to;

    if (c->kind == COLUMN_ABSENT)
        return;
    valid = valid_at(c, row);
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
        if (c->kind == COLUMN_BYTES)
            tell(t, c->values + from, to - from);
        for (uint32_t item = from; c->kind == COLUMN_LIST && item < to; item++) {
            for (size_t k = FIRST_OF_PLACES; k < LS_MESSAGE_COLUMNS; k++)
                tell_value(t, columns, k, item);
        }
    }
}

static void tell_batch(struct told_rows *t, const ls_columns *columns) {
    for (uint64_t row = 0; row < columns->rows; row++) {
        for (size_t i = 0; i < FIRST_OF_PLACES; i++)
            tell_value(t, columns, i, row);
        t->rows++;
    }
}

static void keep_body(struct left *left, const struct column *c, uint64_t row) {
    uint32_t from = offset_at(c, row), bytes = offset_at(c, row + 1) - from;
    uint64_t at = left->bodies_from[left->count];

    must(at + bytes <= sizeof left->bodies);
    left->has_body[left->count] = c->nulls == 0 || valid_at(c, row);
    must(left->has_body[left->count] || bytes == 0);
    memcpy(left->bodies + at, c->values + from, bytes);
    left->bodies_from[left->count + 1] = at + bytes;
}

static void keep_states(struct left *left, const ls_columns *columns) {
    const struct column *c = &columns->at[COLUMN_STATE];

    for (uint64_t row = 0; row < columns->rows; row++) {
        uint32_t from = offset_at(c, row), bytes = offset_at(c, row + 1) - from;
        size_t at = left->from[left->count];

        must(left->count < OPEN_MOST && at + bytes <= sizeof left->states);
        memcpy(left->states + at, c->values + from, bytes);
        if (body_limit > 0)
            keep_body(left, &columns->at[COLUMN_BODY], row);
        left->ids[left->count++] = value64(columns, 0, row);
        left->from[left->count] = at + bytes;
    }
}

/* Counts the core's allocations, not those of the test. */
static int take_batches(ls_message_rows *p, ls_reader *reader, struct told_rows *t, struct left *left) {
    int rc = LS_OK;

    while (rc == LS_OK) {
        ls_columns *columns;
        bool was = counting;

        rc = reader != NULL ? ls_message_rows_next(p, reader, &columns) : ls_message_rows_open(p, &columns);
        counting = false;
        if (rc == LS_OK && columns != NULL) {
            tell_batch(t, columns);
            if (left != NULL)
                keep_states(left, columns);
        }
        ls_columns_free(columns);
        counting = was;
    }
    return rc;
}

static const uint32_t names[] = {1, 2, 3, 5, 8};

static int seed_one(ls_message_rows *p, uint64_t id, const uint8_t *state, size_t bytes) {
    int64_t ids[1] = {(int64_t)id};
    int32_t offsets[2] = {0, (int32_t)bytes};

    return ls_message_rows_seed_all(p, ids, state, offsets, 1);
}

/* The bodies of a seed, in a file as the pass takes them; -1: there are none. */
static int bodies_file(vfs *system, const struct left *seed) {
    int dir, file;

    if (seed == NULL || body_limit == 0)
        return -1;
    (void)system->make_dir(system, "/b");
    dir = system->open_dir(system, "/b");
    file = system->open(system, dir, "bodies", VFS_WRITE | VFS_CREATE);
    must(dir >= 0 && file >= 0 && system->close(system, dir) == 0);
    must(io_write(system, file, seed->bodies, seed->bodies_from[seed->count], 0, NULL) == 0);
    return file;
}

static int seed_bodies(ls_message_rows *p, const struct left *seed) {
    int rc = LS_OK;

    for (size_t i = 0; rc == LS_OK && body_limit > 0 && i < seed->count; i++) {
        int64_t ids[1] = {(int64_t)seed->ids[i]};
        uint64_t starts[1] = {seed->bodies_from[i]}, sizes[1] = {seed->bodies_from[i + 1] - starts[0]};

        rc = seed->has_body[i] ? ls_message_rows_seed_bodies(p, ids, starts, sizes, 1) : rc;
    }
    return rc;
}

/* One pass, seeded with `seed`, into `t`; the messages open at its end into `left` and, as rows, after the others. */
static int pass_over(vfs *system, uint64_t start, uint64_t stop, uint64_t batch_rows, const struct left *seed,
                     struct told_rows *t, struct left *left) {
    ls_reader *reader;
    ls_message_rows *p = NULL;
    const uint8_t *rest;
    bool was = counting;
    int file, rc;

    counting = false;
    file = bodies_file(system, seed);
    counting = was;
    rc = ls_reader_open(system, "/s", start, &reader);
    left->count = left->from[0] = left->rest_bytes = left->bodies_from[0] = 0;
    rc = rc == LS_OK ? ls_message_rows_new(start, stop, names, 5, batch_rows, &p) : rc;
    rc = rc == LS_OK && body_limit > 0 ? ls_message_rows_bodies(p, body_limit, file) : rc;
    if (rc == LS_OK && batch_rows % 2 == 0)
        p->read_at_once = 1 + 100 * batch_rows; /* so that calls end before anything else does */
    if (rc == LS_OK && seed != NULL && seed->rest_bytes > 0)
        rc = ls_message_rows_seed_rest(p, seed->rest, seed->rest_bytes);
    for (size_t i = 0; rc == LS_OK && seed != NULL && i < seed->count; i++)
        rc = seed_one(p, seed->ids[i], seed->states + seed->from[i], seed->from[i + 1] - seed->from[i]);
    rc = rc == LS_OK && seed != NULL ? seed_bodies(p, seed) : rc;
    rc = rc == LS_OK ? take_batches(p, reader, t, NULL) : rc;
    if (rc == LS_END) {
        struct told_rows open = {.bytes = t->bytes + t->size};

        rc = take_batches(p, NULL, &open, left);
        t->size += stop == LSN_MAX ? open.size : 0;
        t->rows += stop == LSN_MAX ? open.rows : 0;
    }
    if (rc == LS_END && ls_message_rows_rest(p, &rest, &left->rest_bytes) != LS_OK)
        rc = LS_NO_MEMORY;
    if (rc == LS_END && left->rest_bytes > 0) {
        must(left->rest_bytes <= sizeof left->rest);
        memcpy(left->rest, rest, left->rest_bytes);
    }
    ls_message_rows_free(p);
    ls_reader_close(reader);
    must(file < 0 || system->close(system, file) == 0);
    return rc;
}

static struct told_rows whole;
static struct left left, other;
static uint64_t lsns[RECORDS_MOST];
static size_t lsn_count;

static void read_lsns(vfs *system) {
    ls_reader *reader;
    struct scan_batch b;

    lsn_count = 0;
    must(ls_reader_open(system, "/s", 0, &reader) == LS_OK);
    while (reader_next(reader, &b) == LS_OK) {
        struct record record;

        for (uint32_t offset = 0; scan_record(&b, &offset, &record);) {
            must(lsn_count < RECORDS_MOST);
            lsns[lsn_count++] = record.lsn;
        }
    }
    ls_reader_close(reader);
}

static void pass_over_all(vfs_sim *disk) {
    whole.size = whole.rows = 0;
    must(pass_over(vfs_sim_table(disk), 0, LSN_MAX, 64, NULL, &whole, &left) == LS_END);
    read_lsns(vfs_sim_table(disk));
}

static bool is_whole(const struct told_rows *t) {
    return t->rows == whole.rows && t->size == whole.size && memcmp(t->bytes, whole.bytes, t->size) == 0;
}

static void cut_at(vfs_sim *disk, uint64_t lsn, uint64_t batch_rows) {
    struct told_rows t = rows_new();

    check(pass_over(vfs_sim_table(disk), 0, lsn, batch_rows, NULL, &t, &left) == LS_END);
    check(pass_over(vfs_sim_table(disk), lsn, LSN_MAX, batch_rows, &left, &t, &other) == LS_END ||
          complain("the second part"));
    check(is_whole(&t) || !printf("cut at %llu: %llu rows of %llu\n", (unsigned long long)lsn,
                                  (unsigned long long)t.rows, (unsigned long long)whole.rows));
    free(t.bytes);
}

/* A pass from this LSN on, seeded with `left`, while the nth allocation fails, and perhaps all that follow. */
static void starve_from(uint64_t lsn) {
    for (int forever = 0; TAKEN_OVER && forever < 2; forever++) {
        for (uint64_t nth = 1;; nth++) {
            struct told_rows t = rows_new();
            int rc;

            allocations = failed = 0;
            fail_at_nth = nth;
            for_ever = forever != 0;
            counting = true;
            rc = pass_over(quiet_table(rich), lsn, LSN_MAX, 9, &left, &t, &other);
            counting = false;
            check(failed > 0 ? rc == LS_NO_MEMORY || rc == LS_END : rc == LS_END);
            free(t.bytes);
            if (failed == 0)
                break;
        }
    }
}

/* Seeds one state that was changed, and continues with it if it is accepted. */
static int try_state(uint64_t id, const uint8_t *state, size_t bytes, uint64_t start) {
    ls_message_rows *p;
    ls_reader *reader;
    struct told_rows t = {.bytes = whole.bytes + whole.size};
    uint8_t *own = malloc(bytes + 1); /* of just this size, so that reading beyond is seen */
    int rc;

    memcpy(own, state, bytes);
    must(ls_message_rows_new(start, LSN_MAX, names, 5, 16, &p) == LS_OK);
    must(body_limit == 0 || ls_message_rows_bodies(p, body_limit, -1) == LS_OK);
    must(ls_reader_open(vfs_sim_table(rich), "/s", start, &reader) == LS_OK);
    rc = id != 0 ? seed_one(p, id, own, bytes) : ls_message_rows_seed_rest(p, own, bytes);
    if (rc == LS_OK) {
        check(take_batches(p, reader, &t, NULL) == LS_END || complain("a pass from a forged state"));
        other.count = other.from[0] = other.bodies_from[0] = 0;
        check(take_batches(p, NULL, &t, &other) == LS_END);
        for (size_t i = 0; i < other.count; i++) { /* the remaining state can seed another pass */
            ls_message_rows *next;

            must(ls_message_rows_new(LSN_MAX, LSN_MAX, NULL, 0, 1, &next) == LS_OK);
            check(seed_one(next, other.ids[i], other.states + other.from[i], other.from[i + 1] - other.from[i]) ==
                      LS_OK ||
                  complain("its own state"));
            ls_message_rows_free(next);
        }
    } else {
        check(rc == LS_OPTION && take_batches(p, reader, &t, NULL) == LS_OPTION);
    }
    ls_message_rows_free(p);
    ls_reader_close(reader);
    free(own);
    return rc;
}

static uint64_t forged_ok, forged_refused;

static void forge(uint64_t id, const uint8_t *state, size_t bytes, uint64_t start, bool reseal) {
    static uint8_t image[1 << 16];
    uint64_t luck = 99;

    must(bytes <= sizeof image);
    for (size_t at = 0; at < bytes; at++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(image, state, bytes);
            image[at] ^= (uint8_t)(1u << bit);
            if (reseal)
                put64(image + 8, xxh64(image + 16, bytes - 16, id));
            if (!reseal) {
                check(try_state(id, image, bytes, start) == LS_OPTION);
            } else if (chance(&luck) % 4 == 0) {
                *(try_state(id, image, bytes, start) == LS_OK ? &forged_ok : &forged_refused) += 1;
            }
        }
        if (!reseal) {
            check(try_state(id, state, at, start) == LS_OPTION);
            continue;
        }
        memcpy(image, state, bytes);
        memset(image + at, 0xff, bytes - at < 8 ? bytes - at : 8);
        put64(image + 8, xxh64(image + 16, bytes - 16, id));
        (void)try_state(id, image, bytes, start);
    }
}

#endif
