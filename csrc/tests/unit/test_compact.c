/*
 * A compaction is carried out if its plan makes the log smaller, and otherwise changes nothing. Its dry run says which.
 */
#include "tests/kit/one_store.h"

enum { MOST = 4000, BYTES = 1000 };

static uint64_t ids[MOST];

static void begin_with(uint64_t max_log_bytes) {
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = 0;
    o.max_log_bytes = max_log_bytes;
    fresh_with(&o);
}

static int publish_some(int n) {
    static const uint8_t content[BYTES];
    uint32_t q = 1;
    int made = 0;

    while (made < n && ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, 0, &ids[made]) == LS_OK)
        made++;
    check(ls_force(r.store, 0) == LS_OK);
    return made;
}

/* Keeps every nth. */
static void dequeue_but(int made, int nth) {
    for (int i = 0; i < made; i++)
        check(i % nth == 0 || take(ids[i], 1, NULL) == LS_OK);
}

static bool nothing_is_done(void) {
    ls_compaction would, done_now;
    ls_stats before, after;
    bool same;

    ls_stats_get(r.store, &before);
    check(ls_compact(r.store, 1, &would) == LS_OK && ls_compact(r.store, 0, &done_now) == LS_OK);
    ls_stats_get(r.store, &after);
    same = memcmp(&would, &done_now, sizeof would) == 0 && memcmp(&before, &after, sizeof before) == 0;
    return same && !would.shrinks && would.planned_bytes >= would.bytes_before &&
           would.bytes_after == would.bytes_before && would.bytes_before == after.log_bytes &&
           would.segments_after == would.segments_before && would.segments_moved == 0 && would.copied_bytes == 0;
}

static void a_full_log_that_would_become_longer_is_left_as_it_is(void) {
    begin_with((uint64_t)8 * SEGMENT);
    check(publish_some(MOST) < MOST && ls_last_error()->code == LS_FULL);
    check(nothing_is_done());
    r.options.max_log_bytes = 0; /* then only the plan keeps the log from growing */
    again();
    check(nothing_is_done());
    done();
}

static void a_log_that_is_dead_in_part_becomes_as_short_as_planned(void) {
    ls_compaction would, made, more;
    ls_stats stats;

    begin_with(0);
    dequeue_but(publish_some(1000), 8);
    check(ls_compact(r.store, 1, &would) == LS_OK && would.shrinks);
    check(would.bytes_after == would.planned_bytes && would.bytes_after < would.bytes_before);
    check(ls_compact(r.store, 0, &made) == LS_OK && made.shrinks && made.bytes_before == would.bytes_before);
    check(made.planned_bytes == would.planned_bytes && made.bytes_after <= would.bytes_after + SEGMENT);
    ls_stats_get(r.store, &stats);
    check(made.bytes_after == stats.log_bytes && made.segments_after == stats.segments);
    check(ls_compact(r.store, 0, &more) == LS_OK && more.bytes_after <= made.bytes_after && more.copied_bytes == 0);
    done();
}

static void what_a_hold_keeps_is_not_moved_and_becomes_free_when_the_hold_ends(void) {
    ls_compaction with, without;
    ls_hold *hold = NULL;

    begin_with(0);
    dequeue_but(publish_some(1000), 8);
    check(ls_hold_take(r.v, "/s", "reader", 0, UINT64_C(1) << 40, UINT64_C(3600) * 1000 * 1000, &hold) == LS_OK);
    check(ls_compact(r.store, 1, &with) == LS_OK && with.segments_moved == 0);
    ls_hold_release(hold);
    check(ls_compact(r.store, 0, &without) == LS_OK && without.shrinks);
    check(without.bytes_after < with.bytes_before && without.held_bytes == 0);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_full_log_that_would_become_longer_is_left_as_it_is,
        a_log_that_is_dead_in_part_becomes_as_short_as_planned,
        what_a_hold_keeps_is_not_moved_and_becomes_free_when_the_hold_ends,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
