/*
 * Readers in their own threads, while a writer recycles quickly: each batch is complete, in order, and as it was
 * written. Without a hold a reader may be overtaken, which is never reported as damage; with a hold it never is.
 */
#include <stdatomic.h>

#include "store/store.h"
#include "tests/kit/one_store.h"

enum { MESSAGES = 4000, FREE_READERS = 2, HELD_READERS = 2 };

static _Atomic uint64_t ids[MESSAGES]; /* by number, which its content begins with */
static atomic_bool over;
static atomic_int whole, overtaken, compared;

/* All starts of one batch; the next record after each is where the last one ended. */
static void look_at(const ls_batch *b) {
    uint64_t at = 0;
    uint8_t uuid[16];

    ls_uuid(r.store, uuid);
    while (at < b->size) {
        struct record record;
        struct message_start start;
        uint64_t seed = format_segment_seed(uuid, b->first_lsn, b->epoch);

        require(format_get_record(b->bytes + at, b->size - at, seed, b->lsn + at, &record) == FORMAT_OK);
        if (record.type == MESSAGE_START && format_get_start(&record, &start) == FORMAT_OK && start.content_bytes > 8) {
            uint32_t number;

            memcpy(&number, start.content, sizeof number);
            check(number < MESSAGES);
            if (number < MESSAGES && atomic_load(&ids[number]) != 0) {
                check(atomic_load(&ids[number]) == record.id);
                (void)atomic_fetch_add(&compared, 1);
            }
        }
        at += record.length;
    }
}

static int read_through(ls_reader *reader, uint64_t *end_lsn) {
    ls_reader_info info;
    ls_batch b;
    uint64_t last_lsn = 0;
    int rc;

    ls_reader_describe(reader, &info);
    while ((rc = ls_reader_next(reader, &b)) == LS_OK) {
        check(b.lsn >= last_lsn && b.lsn + b.size <= info.end_lsn);
        last_lsn = b.lsn + b.size;
        look_at(&b);
    }
    check(rc != LS_END || last_lsn == info.end_lsn || last_lsn == 0);
    *end_lsn = info.end_lsn;
    ls_reader_close(reader);
    return rc;
}

static void *read_freely(void *nothing) {
    (void)nothing;
    while (!atomic_load(&over)) {
        ls_reader *reader;
        uint64_t end_lsn;
        int rc = ls_reader_open(r.v, "/s", 0, &reader);

        rc = rc == LS_OK ? read_through(reader, &end_lsn) : rc;
        check(rc == LS_END || rc == LS_RECYCLED || complain(ls_last_error()->text));
        (void)atomic_fetch_add(rc == LS_END ? &whole : &overtaken, 1);
    }
    return NULL;
}

static void *read_held(void *name) {
    ls_hold *hold = NULL;
    uint64_t from_lsn = 0;

    check(ls_hold_take(r.v, "/s", name, 0, (uint64_t)1 << 40, (uint64_t)1 << 40, &hold) == LS_OK || complain("take"));
    while (hold != NULL && !atomic_load(&over)) {
        ls_reader *reader;
        int rc = ls_hold_read(hold, from_lsn, &reader);

        rc = rc == LS_OK ? read_through(reader, &from_lsn) : rc;
        check(rc == LS_END || complain(ls_last_error()->text));
        check(ls_hold_advance(hold, from_lsn, (uint64_t)1 << 40) == LS_OK || complain(ls_last_error()->text));
        (void)atomic_fetch_add(&whole, 1);
    }
    ls_hold_release(hold);
    return NULL;
}

static void readers_beside_a_fast_writer_get_what_was_written(void) {
    static char names[HELD_READERS][8] = {"one", "two"};
    static uint8_t content[2500];
    pthread_t readers[FREE_READERS + HELD_READERS];
    ls_options o;
    ls_stats stats;
    uint32_t q = 1;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    fresh_with(&o);
    for (int i = 0; i < FREE_READERS + HELD_READERS; i++)
        check(pthread_create(&readers[i], NULL, i < FREE_READERS ? read_freely : read_held,
                             i < FREE_READERS ? NULL : names[i - FREE_READERS]) == 0);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint64_t id = 0, lsn;

        memcpy(content, &i, sizeof i);
        check(ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, i % 8 == 0 ? LS_WAIT : 0, &id) ==
              LS_OK);
        atomic_store(&ids[i], id);
        if (i % 50 != 0) /* the others stay for a while, and are moved */
            check(ls_dequeue(r.store, id, q, NULL, 1, 0, 0, &lsn) == LS_OK);
        else if (i >= 500)
            check(ls_dequeue(r.store, atomic_load(&ids[i - 500]), q, NULL, 1, 0, 0, &lsn) == LS_OK);
    }
    atomic_store(&over, true);
    for (int i = 0; i < FREE_READERS + HELD_READERS; i++)
        check(pthread_join(readers[i], NULL) == 0);
    ls_stats_get(r.store, &stats);
    check(stats.segments_recycled + stats.segments_removed > 50 && stats.segments_relocated > 0);
    check(atomic_load(&whole) > 4 && atomic_load(&compared) > 1000);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {readers_beside_a_fast_writer_get_what_was_written};

    return run_tests(tests, sizeof tests / sizeof *tests);
}
