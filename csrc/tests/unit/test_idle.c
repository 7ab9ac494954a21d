/*
 * The space of dequeued messages is given back although no thread appends any more, regardless of what the spare thread
 * was doing and of the writes at that time.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

enum { FEW_SEGMENTS = 8, PATIENCE_MS = 60 * 1000 };

static void fresh_in_background(void) {
    ls_options options;

    ls_options_default(&options);
    options.segment_size = SEGMENT;
    fresh_with(&options);
}

/* Whether relocation waits for other threads to append. */
static bool keeps_pace(void) {
    struct log *g = r.store->log;

    log_lock(g);
    bool waits = g->relocation.moving && g->relocation.pace_until != UINT64_MAX;
    log_unlock(g);
    return waits;
}

static uint64_t segments(void) {
    ls_stats stats;

    ls_stats_get(r.store, &stats);
    return stats.log_bytes / SEGMENT;
}

static bool log_becomes_small(void) {
    for (int i = 0; i < PATIENCE_MS && segments() > FEW_SEGMENTS; i++)
        (void)usleep(1000);
    return segments() <= FEW_SEGMENTS;
}

static void come_and_go(int messages) {
    for (int i = 0; i < messages; i++) {
        uint64_t id = put_bytes(2, 2, 1000, 0), lsn;

        check(ls_dequeue(r.store, id, 2, NULL, 1, 0, i % 8 == 7 ? LS_WAIT : 0, &lsn) == LS_OK);
    }
    check(ls_force(r.store, 0) == LS_OK);
}

static void a_relocation_that_waits_for_appends_does_not_delay_recycling(void) {
    bool waits = false;

    fresh_in_background();
    for (int i = 0; i < 1600; i++)
        (void)put_bytes(1, 1, 1000, i % 8 == 7 ? LS_WAIT : 0);
    for (int i = 0; i < 2000 && !waits; i++) {
        come_and_go(50);
        (void)usleep(1000);
        waits = keeps_pace();
    }
    check(waits || complain("no move has kept pace"));
    check(segments() > 3 * FEW_SEGMENTS);
    check(ls_queue_delete(r.store, 1, LS_WAIT) == LS_OK);
    check(log_becomes_small() || complain("the space of dequeued messages is kept"));
    done();
}

static atomic_bool enough;

static void *force_all_the_time(void *store) {
    while (!enough)
        (void)ls_force(store, 0);
    return NULL;
}

/* While its places are removed, the batch with its record may become durable; no later batch follows. */
static void the_space_of_a_deleted_queue_is_freed_although_no_batch_follows(void) {
    pthread_t thread;

    fresh_in_background();
    for (int i = 0; i < 40 * 1000; i++)
        (void)put_bytes(1, 1, 16, 0);
    check(ls_force(r.store, 0) == LS_OK && segments() > 3 * FEW_SEGMENTS);
    enough = false;
    require(pthread_create(&thread, NULL, force_all_the_time, r.store) == 0);
    check(ls_queue_delete(r.store, 1, 0) == LS_OK);
    enough = true;
    check(pthread_join(thread, NULL) == 0);
    check(log_becomes_small() || complain("the space of dequeued messages is kept"));
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_relocation_that_waits_for_appends_does_not_delay_recycling,
        the_space_of_a_deleted_queue_is_freed_although_no_batch_follows,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
