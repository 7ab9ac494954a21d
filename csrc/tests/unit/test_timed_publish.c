/*
 * Messages that are published and enqueued with times: which records that writes, that a power cut leaves the message on all
 * of its queues or on none, transactions, refusals, a full store, and calls without memory.
 */
#include "tests/kit/failing_memory.h"

#include "tests/kit/move_base.h"
#include "tests/kit/one_store.h"
#include "tests/kit/tallies.h"

enum { LARGE = 30000, LARGER_THAN_A_RECORD = 5000, SMALL = 40 };

static const ls_times times = {.not_before_us = 5, .expires_us = PLACE_TIME_MAX - 7}; /* they hide nothing */
static const uint32_t two[] = {1, 3}, three[] = {1, 2, 4};

static int put_timed(const uint32_t *queues, size_t n, size_t bytes, const ls_times *t, ls_tx *tx, int flags,
                     uint64_t *id) {
    return ls_publish_timed(r.store, queues, n, content_of(1), 9, content_of(2), bytes, t, tx, flags, id);
}

static struct message *in_table(uint64_t id) {
    struct table *t = &r.store->state.table;
    uint32_t number = table_find(t, id);

    return number != INDEX_NONE ? table_message(t, number) : NULL;
}

static bool is_on(ls_store *store, uint32_t queue, uint64_t id, const ls_times *wanted) {
    ls_place places[8];
    ls_times found = {1, 1};
    ls_cursor *c;
    size_t n = 0;
    bool there = false;

    check(ls_cursor_open(store, queue, LS_CURSOR_ALL, &c) == LS_OK && ls_cursor_next(c, places, 8, &n) == LS_OK);
    ls_cursor_close(c);
    for (size_t i = 0; i < n; i++) {
        if (places[i].id != id)
            continue;
        there = true;
        check(ls_place_times(store, queue, id, places[i].position, &found) == LS_OK);
        check(found.not_before_us == wanted->not_before_us && found.expires_us == wanted->expires_us);
    }
    return there;
}

static size_t queues_of(ls_store *store, uint64_t id, const uint32_t *queues, size_t n) {
    size_t on = 0;

    for (size_t i = 0; i < n; i++)
        on += is_on(store, queues[i], id, &times);
    return on;
}

static bool loads(ls_store *store, uint64_t id, size_t bytes) {
    static uint8_t into[LARGE + 1];
    size_t n;
    bool right =
        ls_load_header(store, id, into, sizeof into, &n) == LS_OK && n == 9 && memcmp(into, content_of(1), n) == 0;

    return right && ls_load_content(store, id, 0, into, sizeof into, &n) == LS_OK && n == bytes &&
           memcmp(into, content_of(2), n) == 0;
}

/* ---- records ---- */

/* The record at this LSN, which is still in a write buffer. */
static struct record record_at(uint64_t lsn) {
    struct record found = {.type = 0};
    struct pin pin;

    check(store_enter(r.store) == LS_OK);
    const uint8_t *bytes = log_find_record(r.store->log, lsn, &pin);
    check(bytes != NULL &&
          format_get_record(bytes, log_record_bytes_max(r.store->log), pin.seed, lsn, &found) == FORMAT_OK);
    check(store_leave(r.store, LS_OK, LEAVE_QUIETLY) == LS_OK);
    return found;
}

static void a_small_message_is_one_record_with_its_times(void) {
    const ls_times none = {0, 0};
    struct message_start m;
    struct place_state state;
    struct record start;
    uint64_t id, end;

    fresh();
    check(put_timed(two, 2, SMALL, &times, NULL, 0, &id) == LS_OK);
    start = record_at(id);
    check(start.type == MESSAGE_START_PLACED && format_get_start_placed(&start, &m, &state) == FORMAT_OK);
    check(id + start.length == ls_next_lsn(r.store) && start.length == 160);
    check(m.queue_count == 2 && m.tx_id == 0 && m.header_bytes == 9 && m.content_bytes == SMALL);
    check(state.not_before_us == times.not_before_us && state.expires_us == times.expires_us && state.note_bytes == 0);
    check(queues_of(r.store, id, three, 3) == 1 && queues_of(r.store, id, two, 2) == 2 && loads(r.store, id, SMALL));
    check(put_timed(two, 1, SMALL, &times, NULL, 0, &id) == LS_OK && in_table(id)->extra == NULL);
    end = ls_next_lsn(r.store);
    check(put_timed(two, 1, SMALL, &none, NULL, 0, &id) == LS_OK && record_at(id).type == MESSAGE_START && id == end);
    check(put_timed(two, 1, SMALL, NULL, NULL, 0, &id) == LS_OK && record_at(id).type == MESSAGE_START);
    check(tallies_are_those_of_a_walk(&r.store->state.table));
    done();
}

static void a_large_message_has_a_move_for_each_queue(void) {
    struct message_move m;
    struct record rec;
    uint64_t id, lsn, staged;

    fresh();
    check(ls_stage(r.store, content_of(1), 9, content_of(2), SMALL, 0, &staged) == LS_OK);
    lsn = ls_next_lsn(r.store);
    check(ls_enqueue_timed(r.store, staged, three, 3, &times, NULL, 0, &id) == LS_OK);
    for (size_t i = 0; i < 3; i++, lsn += rec.length) {
        rec = record_at(lsn);
        check(rec.type == MESSAGE_MOVE && rec.id == staged && format_get_move(&rec, &m) == FORMAT_OK);
        check(m.queue_id == three[i] && m.from_queue_id == 0 && m.state.not_before_us == times.not_before_us &&
              m.state.expires_us == times.expires_us && m.state.header == NULL);
    }
    check(id == rec.lsn && lsn == ls_next_lsn(r.store) && queues_of(r.store, staged, three, 3) == 3);
    check(put_timed(three, 3, LARGE, &times, NULL, LS_WAIT, &id) == LS_OK && loads(r.store, id, LARGE));
    again();
    check(queues_of(r.store, id, three, 3) == 3 && loads(r.store, id, LARGE));
    check(queues_of(r.store, staged, three, 3) == 3 && tallies_are_those_of_a_walk(&r.store->state.table));
    done();
}

static void times_stay_when_messages_are_relocated(void) {
    uint64_t ids[6];
    ls_stats before, after;

    fresh();
    for (size_t i = 0; i < 6; i++)
        check(put_timed(three, 1 + i % 3, i < 3 ? SMALL : LARGE, &times, NULL, 0, &ids[i]) == LS_OK);
    for (int pass = 0; pass < 3; pass++) {
        ls_stats_get(r.store, &before);
        churn(120);
        ls_stats_get(r.store, &after);
        check(after.segments_relocated > before.segments_relocated);
        for (size_t i = 0; i < 6; i++) {
            check(queues_of(r.store, ids[i], three, 3) == 1 + i % 3);
            check(loads(r.store, ids[i], i < 3 ? SMALL : LARGE));
        }
        again();
    }
    done();
}

/* ---- power cuts ---- */

/* On each disk that a cut during the operation may leave, the message is on all queues or on none. */
static void cut_the_power(uint64_t id, const uint32_t *queues, size_t n, size_t bytes) {
    static const vfs_sim_loss losses[] = {
        {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST},
        {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT},
        {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_KEPT, .seed = 3},
        {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_KEPT, .seed = 11},
        {.mode = VFS_SIM_ONE_LOST, .dir_mode = VFS_SIM_DIRS_KEPT, .n = 5},
        {.mode = VFS_SIM_PREFIX, .dir_mode = VFS_SIM_DIRS_KEPT, .n = 9},
    };
    const vfs_sim_event *events;
    size_t count = vfs_sim_journal(sim, &events), all = 0, nowhere = 0;

    for (size_t k = 0; k <= count; k++) {
        for (size_t l = 0; l < sizeof losses / sizeof *losses; l++) {
            vfs_sim *disk = vfs_sim_crash_at(sim, k, &losses[l]);
            ls_store *store = NULL;
            size_t on;

            require(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &store) == LS_OK || complain("open"));
            on = queues_of(store, id, queues, n);
            check(on == 0 || (on == n && loads(store, id, bytes)));
            *(on == n ? &all : &nowhere) += 1;
            ls_free(store);
            vfs_sim_free(disk);
        }
    }
    check(all > 0 && nowhere > 0);
}

static void a_power_cut_leaves_a_large_message_on_all_queues_or_on_none(void) {
    ls_tx *tx;
    uint64_t id;

    fresh();
    (void)put(1, "before", NULL);
    check(vfs_sim_record(sim, 1) == 0);
    check(put_timed(three, 3, LARGE, &times, NULL, LS_WAIT, &id) == LS_OK);
    cut_the_power(id, three, 3, LARGE);
    done();
    fresh();
    (void)put(1, "before", NULL);
    check(vfs_sim_record(sim, 1) == 0);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && put_timed(three, 3, LARGE, &times, tx, 0, &id) == LS_OK);
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    cut_the_power(id, three, 3, LARGE);
    done();
}

/* ---- transactions ---- */

static uint64_t doubtful(size_t bytes, uint64_t *tx_id) {
    const ls_xid xid = xid_of((uint32_t)bytes);
    ls_tx_info info;
    ls_tx *tx;
    uint64_t id;

    check(ls_begin(r.store, &xid, &tx) == LS_OK && put_timed(two, 2, bytes, &times, tx, 0, &id) == LS_OK);
    ls_tx_describe(tx, &info);
    *tx_id = info.id;
    check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    return id;
}

static void a_transaction_publishes_with_times_at_its_commit(void) {
    static const size_t sizes[] = {SMALL, LARGE};

    for (size_t i = 0; i < 2; i++) {
        ls_tx *tx;
        uint64_t id, tx_id;

        fresh();
        check(ls_begin(r.store, NULL, &tx) == LS_OK && put_timed(two, 2, sizes[i], &times, tx, 0, &id) == LS_OK);
        check(queues_of(r.store, id, two, 2) == 0 && ls_commit(tx, 0) == LS_OK);
        check(queues_of(r.store, id, two, 2) == 2);
        ls_tx_free(tx);
        again();
        check(queues_of(r.store, id, two, 2) == 2 && loads(r.store, id, sizes[i]));
        check(ls_begin(r.store, NULL, &tx) == LS_OK && put_timed(two, 2, sizes[i], &times, tx, 0, &id) == LS_OK);
        check(ls_rollback(tx, 0) == LS_OK && !has(id));
        ls_tx_free(tx);
        for (int commits = 0; commits < 2; commits++) {
            id = doubtful(sizes[i], &tx_id);
            churn(80);
            again();
            check(queues_of(r.store, id, two, 2) == 0 && ls_in_doubt_take(r.store, tx_id, &tx) == LS_OK);
            check((commits ? ls_commit(tx, LS_WAIT) : ls_rollback(tx, LS_WAIT)) == LS_OK);
            ls_tx_free(tx);
            check(commits ? queues_of(r.store, id, two, 2) == 2 && loads(r.store, id, sizes[i]) : !has(id));
        }
        again();
        check(tallies_are_those_of_a_walk(&r.store->state.table));
        done();
    }
}

/* ---- refusals ---- */

static void what_cannot_be_is_refused_and_changes_nothing(void) {
    static const ls_times bad[] = {{PLACE_TIME_MAX + 1, 0}, {0, PLACE_TIME_MAX + 1}, {8, 8}, {9, 8}};
    static uint32_t many[60];
    const uint32_t unknown[] = {1, 99}, twice[] = {2, 2};
    ls_times found;
    uint64_t id, placed, staged, lsn, before;
    uint32_t count;

    fresh();
    check(put_timed(two, 1, SMALL, &times, NULL, 0, &placed) == LS_OK);
    check(ls_stage(r.store, NULL, 0, content_of(2), SMALL, 0, &staged) == LS_OK);
    before = ls_next_lsn(r.store);
    for (size_t i = 0; i < 4; i++) {
        const ls_place_move move = {.from_queue_id = 1, .queue_id = 2, .times = bad[i]};

        check(put_timed(two, 2, SMALL, &bad[i], NULL, 0, &id) == LS_OPTION);
        check(ls_enqueue_timed(r.store, staged, two, 2, &bad[i], NULL, 0, &lsn) == LS_OPTION);
        check(ls_move(r.store, placed, &move, NULL, NULL, 0, &lsn) == LS_OPTION);
    }
    check(put_timed(two, 0, SMALL, &times, NULL, 0, &id) == LS_OPTION);
    check(ls_enqueue_timed(r.store, staged, two, 0, &times, NULL, 0, &lsn) == LS_OPTION);
    check(ls_enqueue_timed(r.store, staged, many, 60, &times, NULL, 0, &lsn) == LS_OPTION);
    check(put_timed(unknown, 2, SMALL, &times, NULL, 0, &id) == LS_UNKNOWN_QUEUE);
    check(put_timed(twice, 2, LARGE, &times, NULL, 0, &id) == LS_OPTION);
    check(ls_enqueue_timed(r.store, placed, two, 2, &times, NULL, 0, &lsn) == LS_ALREADY_ENQUEUED);
    check(ls_enqueue_timed(r.store, 12345, two, 2, &times, NULL, 0, &lsn) == LS_UNKNOWN_MESSAGE);
    check(put_timed(two, 1, LARGE, &times, NULL, LS_TRY, &id) == LS_WOULD_WAIT);
    check(ls_place_times(r.store, 1, placed, 77, &found) == LS_NOT_ENQUEUED);
    check(ls_place_times(r.store, 1, 12345, 0, &found) == LS_UNKNOWN_MESSAGE);
    check(ls_place_count(r.store, 1, placed, 77, &count) == LS_NOT_ENQUEUED);
    check(ls_place_count(r.store, 1, 12345, 0, &count) == LS_UNKNOWN_MESSAGE && count == 0);
    r.store->remembers = false; /* as while a member of the cluster does not know such records */
    check(put_timed(two, 1, SMALL, &times, NULL, 0, &id) == LS_WRONG_STATE);
    check(put_timed(two, 1, LARGE, &times, NULL, 0, &id) == LS_WRONG_STATE);
    check(ls_enqueue_timed(r.store, staged, two, 2, &times, NULL, 0, &lsn) == LS_WRONG_STATE);
    check(ls_next_lsn(r.store) == before && put_timed(two, 1, SMALL, NULL, NULL, 0, &id) == LS_OK);
    r.store->remembers = true;
    done();
}

/* ---- a full store ---- */

static void a_full_store_refuses_times_and_can_be_emptied(void) {
    ls_options o;
    uint64_t ids[4000], lsn;
    size_t n = 0;
    int rc;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.max_write_buffers = 4;
    o.background = 0;
    o.max_log_bytes = (uint64_t)8 * SEGMENT;
    fresh_with(&o);
    do
        rc = put_timed(two, 1 + n % 2, n % 7 == 0 ? 5000 : SMALL, &times, NULL, 0, &ids[n]);
    while (rc == LS_OK && ++n < 4000);
    check(rc == LS_FULL && n > 100 && n < 4000);
    again();
    for (size_t i = 0; i < n; i++) {
        check(ls_dequeue(r.store, ids[i], 1, NULL, 1, 0, 0, &lsn) == LS_OK);
        check(i % 2 == 0 || ls_dequeue(r.store, ids[i], 3, NULL, 1, 0, 0, &lsn) == LS_OK);
    }
    check(ls_force(r.store, 0) == LS_OK && put_timed(two, 2, LARGE, &times, NULL, LS_WAIT, ids) == LS_OK);
    done();
}

/* ---- no memory ---- */

static uint64_t staged_id;

static int publish_small(ls_tx *tx, uint64_t *id) { return put_timed(two, 2, SMALL, &times, tx, 0, id); }
static int publish_large(ls_tx *tx, uint64_t *id) { return put_timed(two, 2, LARGER_THAN_A_RECORD, &times, tx, 0, id); }
static int enqueue_staged(ls_tx *tx, uint64_t *id) {
    uint64_t lsn;

    *id = staged_id;
    return ls_enqueue_timed(r.store, staged_id, two, 2, &times, tx, 0, &lsn);
}

static void a_call_without_memory_changes_nothing(void) {
    static int (*const calls[])(ls_tx *, uint64_t *) = {publish_small, publish_large, enqueue_staged};

    for (size_t c = 0; TAKEN_OVER && c < 6; c++) {
        uint64_t refused_calls = 0, nth = 0;
        int rc;

        do { /* each time in a new store, which has no memory that an earlier call left */
            ls_tx *tx = NULL;
            uint64_t id = 0;
            ls_stats before, after;

            fresh();
            check(ls_stage(r.store, content_of(1), 9, content_of(2), SMALL, 0, &staged_id) == LS_OK);
            check(c % 2 == 0 || ls_begin(r.store, NULL, &tx) == LS_OK);
            ls_stats_get(r.store, &before);
            allocations = failed = 0;
            fail_at_nth = ++nth;
            for_ever = false;
            counting = true;
            rc = calls[c / 2](tx, &id);
            counting = false;
            check(rc == LS_OK || (rc == LS_NO_MEMORY && failed > 0));
            if (rc == LS_NO_MEMORY) {
                refused_calls++;
                ls_stats_get(r.store, &after);
                check(after.messages == before.messages && calls[c / 2](tx, &id) == LS_OK);
            }
            check(tx == NULL || ls_commit(tx, 0) == LS_OK);
            check(queues_of(r.store, id, two, 2) == 2 && loads(r.store, id, c / 2 == 1 ? LARGER_THAN_A_RECORD : SMALL));
            ls_tx_free(tx);
            done();
        } while (rc == LS_NO_MEMORY);
        check(refused_calls > 0);
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        a_small_message_is_one_record_with_its_times,     a_large_message_has_a_move_for_each_queue,
        times_stay_when_messages_are_relocated,           a_power_cut_leaves_a_large_message_on_all_queues_or_on_none,
        a_transaction_publishes_with_times_at_its_commit, what_cannot_be_is_refused_and_changes_nothing,
        a_full_store_refuses_times_and_can_be_emptied,    a_call_without_memory_changes_nothing,
    };
    int failed_count = 0, count = (int)(sizeof tests / sizeof *tests);

    for (int i = 0; i < count; i++) {
        failures_here = 0;
        tests[i]();
        failed_count += failures_here > 0;
    }
    return verdict(count - failed_count, failed_count);
}
