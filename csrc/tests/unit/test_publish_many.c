/*
 * Many messages in one call: each is admitted, placed and stored as if it were published alone.
 */
#include <inttypes.h>

#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

static const uint32_t one = 1;
enum { MANY_MAX = 1000, LIVE_MAX = 1 << 16 };

/* ---- the same decisions ---- */

struct situation {
    const char *name;
    ls_options options;
    uint32_t most;       /* messages in a call */
    uint32_t most_bytes; /* of a content */
    uint32_t calls;
    unsigned dequeued; /* of 8 messages */
};

static const struct situation situations[] = {
    {"a small log that is full now and then",
     {.segment_size = SEGMENT,
      .max_log_bytes = 8 * SEGMENT,
      .create = 1,
      .initial_segments = 2,
      .max_write_buffers = 2},
     40,
     900,
     300,
     0},
    {"a small log with large messages",
     {.segment_size = SEGMENT,
      .max_log_bytes = 12 * SEGMENT,
      .create = 1,
      .initial_segments = 2,
      .max_write_buffers = 4},
     12,
     9000,
     300,
     0},
    {"little may be undurable",
     {.segment_size = 1 << 20,
      .max_undurable_bytes = 1 << 20,
      .create = 1,
      .initial_segments = 3,
      .max_write_buffers = 64},
     MANY_MAX,
     3000,
     20,
     8},
    {"parts are written early",
     {.segment_size = 1 << 22, .create = 1, .initial_segments = 2, .max_write_buffers = 3},
     MANY_MAX,
     2000,
     30,
     8},
    {"empty messages",
     {.segment_size = 1 << 20, .create = 1, .initial_segments = 1, .max_write_buffers = 2},
     MANY_MAX,
     1,
     60,
     6},
};
enum { SITUATIONS = sizeof situations / sizeof *situations };

enum { FIGURES = 9 };

struct trace {
    uint64_t calls[512][FIGURES]; /* what came of each call */
    uint64_t ids[LIVE_MAX];
    size_t made;
    size_t refused;
    ls_stats stats;
};

enum way { ONE_BY_ONE, CONTIGUOUS, GATHERED };

static const ls_times *given; /* the times of all messages that are published; NULL: none */

static int publish_these(enum way way, size_t n, const uint64_t *sizes, uint64_t *ids, size_t *count) {
    static uint8_t all[MANY_MAX * 9000];
    static const uint8_t *each[MANY_MAX];
    int rc = LS_OK;

    for (size_t i = 0; i < n; i++)
        each[i] = all + i * 8;
    if (way == CONTIGUOUS)
        return ls_publish_many(r.store, 1, n, all, sizes, NULL, NULL, given, NULL, LS_MORE, ids, count);
    if (way == GATHERED)
        return ls_publish_gather(r.store, 1, n, each, sizes, NULL, NULL, given, NULL, LS_MORE, ids, count);
    for (*count = 0; rc == LS_OK && *count < n; *count += rc == LS_OK ? 1 : 0)
        rc = ls_publish_timed(r.store, &one, 1, NULL, 0, all, sizes[*count], given, NULL, LS_MORE, ids + *count);
    return rc;
}

static void run_situation(const struct situation *s, enum way way, struct trace *t) {
    static uint64_t sizes[MANY_MAX];
    uint64_t c = 1;
    size_t dequeued = 0, n;

    memset(t, 0, sizeof *t);
    fresh_with(&s->options);
    for (uint32_t call = 0; call < s->calls; call++) {
        size_t count = 1 + chance(&c) % s->most;
        for (size_t i = 0; i < count; i++)
            sizes[i] = chance(&c) % s->most_bytes;
        int rc = publish_these(way, count, sizes, t->ids + t->made, &n);
        ls_stats_get(r.store, &t->stats);
        uint64_t came[] = {(uint64_t)rc,
                           n,
                           t->stats.batches,
                           t->stats.early_writes,
                           t->stats.segments_created,
                           t->stats.live_bytes,
                           t->stats.segments_relocated,
                           r.store->state.table.growth,
                           ls_next_lsn(r.store)};
        memcpy(t->calls[call], came, sizeof came);
        t->refused += rc != LS_OK;
        check(rc == LS_OK || rc == LS_FULL);
        t->made += n;
        size_t until =
            rc == LS_FULL ? t->made - (t->made - dequeued) / 8 : dequeued + (t->made - dequeued) * s->dequeued / 8;
        check(ls_dequeue_many(r.store, t->ids + dequeued, until - dequeued, 1, NULL, 1,
                              chance(&c) % 4 == 0 ? LS_WAIT : LS_MORE, &n) == LS_OK);
        dequeued = until;
    }
    done();
}

static void compare_ways(void) {
    static struct trace traces[3];

    for (int i = 0; i < SITUATIONS; i++) {
        const struct situation *s = &situations[i];
        for (enum way way = ONE_BY_ONE; way <= GATHERED; way++) {
            struct trace *t = &traces[way];
            run_situation(s, way, t);
            for (uint32_t call = 0; call < s->calls; call++) {
                for (int k = 0; k < FIGURES; k++) {
                    if (t->calls[call][k] != traces[0].calls[call][k]) {
                        printf("%s, way %d, call %u, figure %d: %" PRIu64 ", and one by one %" PRIu64 "\n", s->name,
                               way, call, k, t->calls[call][k], traces[0].calls[call][k]);
                        check(false);
                        return;
                    }
                }
            }
            check(t->made == traces[0].made && memcmp(t->ids, traces[0].ids, t->made * sizeof *t->ids) == 0);
        }
        check(i > 1 || traces[0].refused > 3);
        check(i != 3 || traces[0].stats.early_writes > 5);
        check(traces[0].stats.batches > 10 && traces[0].made > 1000);
    }
}

static const ls_times some_times = {.not_before_us = 5, .expires_us = PLACE_TIME_MAX};

static void many_are_admitted_placed_and_written_as_one_by_one(void) {
    compare_ways();
    given = &some_times;
    compare_ways();
    given = NULL;
}

/* Room is reserved once for all, and all have the times: at once, and after an open. */
static void many_with_times_are_one_run(void) {
    enum { N = 50 };
    static uint64_t sizes[N], ids[N];
    size_t n;
    ls_times found;

    for (int many = 0; many < 2; many++) {
        fresh();
        (void)put_bytes(1, 1, 100, LS_MORE); /* so that there is a run */
        for (uint32_t i = 0; i < N; i++)
            sizes[i] = i;
        uint64_t room_given = r.store->log->space.room_given;
        given = &some_times;
        check(publish_these(many ? CONTIGUOUS : GATHERED, N, sizes, ids, &n) == LS_OK && n == N);
        given = NULL;
        check(r.store->log->space.room_given == room_given + 1);
        check(ls_force(r.store, 0) == LS_OK);
        for (int opens = 0; opens < 2; opens++) {
            for (uint32_t i = 0; i < N; i++) {
                check(ls_place_times(r.store, 1, ids[i], i + 1, &found) == LS_OK);
                check(found.not_before_us == some_times.not_before_us && found.expires_us == some_times.expires_us);
            }
            check(tallies_are_those_of_a_walk(&r.store->state.table));
            again();
        }
        done();
    }
}

static void many_that_come_later_are_hidden(void) {
    static const uint64_t sizes[] = {3, 3, 3};
    uint64_t ids[3];
    ls_queue_counts counts;
    size_t n;

    fresh();
    (void)put_bytes(1, 1, 100, LS_MORE);
    const ls_times later = {.not_before_us = r.v->now_us(r.v) + 1000000};
    check(ls_publish_many(r.store, 1, 3, content_of(1), sizes, NULL, NULL, &later, NULL, LS_WAIT, ids, &n) == LS_OK);
    check(ls_queue_counts_get(r.store, 1, &counts) == LS_OK && counts.ready == 1 && counts.hidden == 3);
    const ls_times wrong = {.not_before_us = 9, .expires_us = 8};
    check(ls_publish_many(r.store, 1, 3, content_of(1), sizes, NULL, NULL, &wrong, NULL, 0, ids, &n) == LS_OPTION);
    check(n == 0 && ls_queue_counts_get(r.store, 1, &counts) == LS_OK && counts.depth == 4);
    done();
}

static void a_run_has_room_in_an_open_buffer_only(void) {
    struct log *g;

    fresh();
    g = r.store->log;
    check(log_run_room(g, 0).bytes == 0);
    (void)put_bytes(1, 1, 100, LS_MORE);
    log_lock(g);
    check(log_run_room(g, 0).bytes > 100 && log_run_room(g, 0).record_bytes >= 100);
    check(log_run_room(g, 0).bytes <= g->batch_bytes_max);
    g->poison = EIO;
    check(log_run_room(g, 0).bytes == 0);
    g->poison = 0;
    log_unlock(g);
    check(ls_force(r.store, 0) == LS_OK && log_run_room(g, 0).bytes == 0);
    done();
}

/* ---- the same messages ---- */

static void gathered_headers_and_contents_come_back_byte_for_byte(void) {
    enum { N = 60 };
    static const uint8_t *contents[N], *headers[N];
    static uint64_t sizes[N], header_sizes[N], ids[N];
    size_t n;

    fresh();
    for (int times = 0; times < 20; times++) {
        for (uint32_t i = 0; i < N; i++) {
            struct told t = {.seed = (uint32_t)(times * N) + i + 7, .header_bytes = i % 5 * 9, .content_bytes = i * 11};
            if (i == 41)
                t.content_bytes = 20000; /* more than fits into a record */
            headers[i] = content_of(t.seed);
            header_sizes[i] = t.header_bytes;
            contents[i] = content_of(t.seed + 1);
            sizes[i] = t.content_bytes;
            r.told[i] = t;
        }
        check(ls_publish_gather(r.store, 1, N, contents, sizes, headers, header_sizes, NULL, NULL, LS_WAIT, ids, &n) ==
                  LS_OK &&
              n == N);
        r.told_count = N;
        for (uint32_t i = 0; i < N; i++)
            r.told[i].id = ids[i];
        for (int pass = 0; pass < 2; pass++) {
            for (uint32_t i = 0; i < N; i++) {
                check((i == 0 || ids[i] > ids[i - 1]) && content_is_right(&r, r.store, ids[i]));
            }
            if (times % 5 == 0)
                again();
        }
        check(ls_dequeue_many(r.store, ids, N, 1, NULL, 1, LS_WAIT, &n) == LS_OK);
    }
    done();
}

static void gathering_stops_at_the_first_message_that_fails(void) {
    static const uint64_t sizes[] = {3, 3, 3, 3}, header_sizes[] = {1, 1, 5000, 1};
    const uint8_t *abc = content_of(2), *each[] = {abc, abc, abc, abc}, *headers[] = {abc, abc, abc, abc};
    uint64_t ids[4] = {0}, places, locked;
    size_t n;
    ls_tx *tx;

    fresh();
    (void)put_bytes(1, 1, 100, LS_MORE); /* so that there is a run */
    check(ls_publish_gather(r.store, 1, 4, each, sizes, headers, header_sizes, NULL, NULL, 0, ids, &n) == LS_OPTION);
    check(n == 2 && has(ids[0]) && has(ids[1]) && ids[2] == 0 && ids[3] == 0);
    check(ls_queue_depth(r.store, 1, &places, &locked) == LS_OK && places == 3);
    check(ls_publish_gather(r.store, 77, 4, each, sizes, NULL, NULL, NULL, NULL, 0, ids, &n) == LS_UNKNOWN_QUEUE &&
          n == 0);
    check(ls_publish_gather(r.store, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, LS_WAIT, NULL, &n) == LS_OK && n == 0);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    check(ls_publish_gather(r.store, 1, 4, each, sizes, NULL, NULL, NULL, tx, 0, ids, &n) == LS_OK && n == 4);
    check(ls_queue_depth(r.store, 1, &places, &locked) == LS_OK && places == 3);
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    check(ls_publish_gather(r.store, 1, 4, each, sizes, NULL, NULL, NULL, tx, 0, ids, &n) == LS_TRANSACTION_ENDED &&
          n == 0);
    ls_tx_free(tx);
    check(ls_queue_depth(r.store, 1, &places, &locked) == LS_OK && places == 7);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        many_are_admitted_placed_and_written_as_one_by_one,
        many_with_times_are_one_run,
        many_that_come_later_are_hidden,
        a_run_has_room_in_an_open_buffer_only,
        gathered_headers_and_contents_come_back_byte_for_byte,
        gathering_stops_at_the_first_message_that_fails,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
