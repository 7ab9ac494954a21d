/*
 * Changes of the catalog in a replicated log: a leader writes each in one record, with the deletion of a queue in the same batch; and every
 * copy gives each change once it is durable, in order, after an open too. See replica/commit.h.
 */
#include <pthread.h>

#include "tests/kit/failing_memory.h"
#include "tests/kit/two_members.h"

enum { ROWS_MAX = 1 << 16, HERE = 40, FIRST = 100 };

static uint8_t rows[ROWS_MAX];

/* One row, which puts or deletes a configuration entry of this many bytes. */
static uint32_t make_row(uint8_t action, uint32_t bytes, char fill) {
    static uint8_t data[ROWS_MAX];

    memset(data, fill, sizeof data);
    const struct catalog_row row = {.action = action, .object = CATALOG_CONFIG, .bytes = bytes, .data = data};
    return format_put_catalog_row(rows, &row);
}

static uint64_t change_deleting(ls_store *store, char fill, const uint32_t *deleted, size_t n) {
    uint64_t lsn = 0;
    uint32_t bytes = make_row(CATALOG_PUT, 20, fill);

    check(ls_replica_change_catalog(store, rows, bytes, 1, deleted, n, &lsn) == LS_OK || complain("change"));
    return lsn;
}

static uint64_t change(ls_store *store, char fill, uint32_t deleted_queue) {
    return change_deleting(store, fill, &deleted_queue, deleted_queue != 0 ? 1 : 0);
}

/* The next change of this member is that one; 0: there is none. */
static bool gives_next(const struct member *m, char fill, uint64_t end_lsn) {
    ls_catalog_rows c;
    int rc = ls_host_next_change(m->host, m->leads, &c);
    uint32_t bytes = make_row(CATALOG_PUT, 20, fill);

    if (fill == 0)
        return rc == LS_END || complain("there is one");
    if (rc != LS_OK)
        return complain("next");
    return c.end_lsn == end_lsn && c.lsn < end_lsn && c.row_count == 1 && c.bytes == bytes &&
           memcmp(c.rows, rows, bytes) == 0;
}

static ls_replica_info info_of(const struct member *m) {
    ls_replica_info info;

    ls_replica_describe(ls_host_replica(m->host), &info);
    return info;
}

/* It has all, and is told that a majority has it, which its log does not say of the last batch. */
static void hears_what_is_durable(const struct member *m) {
    check(ls_replica_durable(ls_host_replica(m->host), made[newest].batch.end_lsn) == LS_OK || complain("durable"));
}

static void with_catalog(void) {
    enter(1 << 20);
    options.catalog_lsn = 1;
    for (int i = 0; i < 2; i++) {
        struct member *m = i == 0 ? &one : &two;

        ls_host_close(m->host);
        check(open_member(m) == LS_OK);
    }
    lead(&one, &two, TERM);
}

static void every_copy_gives_each_change_in_order_once_it_is_durable(void) {
    uint64_t a, b, c;

    with_catalog();
    check(gives_next(&two, 0, 0) && gives_next(&one, 0, 0));
    a = change(one.leads, 'a', 0);
    (void)send(&one, &two, 100);
    b = change(one.leads, 'b', 0);
    check(gives_next(&two, 'a', a) && gives_next(&two, 'b', b) && gives_next(&two, 0, 0));
    c = change(one.leads, 'c', 0);
    check(gives_next(&two, 'c', c) && gives_next(&two, 0, 0));
    check(gives_next(&one, 0, 0)); /* its caller has its own */
    ls_host_close(two.host);
    check(open_member(&two) == LS_OK);
    hears_what_is_durable(&two);
    check(gives_next(&two, 'a', a) && gives_next(&two, 'b', b) && gives_next(&two, 'c', c) && gives_next(&two, 0, 0));
    check(info_of(&two).changes_from_lsn <= a);
    cease_and_follow(&one);
    hears_what_is_durable(&one);
    check(gives_next(&one, 'a', a) && gives_next(&one, 'b', b) && gives_next(&one, 'c', c) && gives_next(&one, 0, 0));
    leave();
}

static bool applies(const struct member *m, uint64_t index, ls_applied *done) {
    ls_replica_info before = info_of(m), after;

    if (ls_host_apply(m->host, index, done) != LS_OK)
        return false;
    after = info_of(m);
    return after.applied_index == (index != 0 ? index : before.applied_index) &&
           done->room.applied_lsn == after.applied_lsn && done->copy == 1 && done->term == (index != 0 ? TERM : 0);
}

static void one_call_applies_and_says_whether_there_is_a_change(void) {
    ls_applied done;
    uint64_t a, b, index;

    with_catalog();
    check(applies(&two, 0, &done) && done.has_change == 0);
    a = change(one.leads, 'a', 0);
    index = made[newest].batch.index;
    check(applies(&two, index, &done) && done.has_change == 1);
    check(applies(&two, 0, &done) && done.has_change == 1 && gives_next(&two, 'a', a));
    check(applies(&two, 0, &done) && done.has_change == 0); /* it was given */
    b = change(one.leads, 'b', 0);
    check(applies(&two, index + 1, &done) && done.has_change == 1 && gives_next(&two, 'b', b) &&
          gives_next(&two, 0, 0));
    check(ls_host_apply(two.host, index + 2, &done) == LS_REFUSED);
    check(ls_host_apply(one.host, index, &done) == LS_CLOSED); /* it leads */
    leave();
}

static void a_new_leader_gives_what_the_log_had_before_its_term(void) {
    ls_catalog_rows none;
    uint64_t a, b;

    with_catalog();
    a = change(one.leads, 'a', 0);
    check(gives_next(&two, 'a', a));
    b = change(one.leads, 'b', 0);
    cease_and_follow(&one);
    lead(&two, &one, TERM + 1);
    check(gives_next(&two, 'b', b) && gives_next(&two, 0, 0));
    check(gives_next(&one, 'a', a) && gives_next(&one, 'b', b));
    check(ls_host_next_change(two.host, NULL, &none) == LS_CLOSED);
    leave();
}

/* What no majority had is not given, neither before nor after it is cut. */
static void a_change_that_is_not_durable_is_not_given(void) {
    ls_replica_batch b;
    uint64_t a, lsn = 0;

    with_catalog();
    a = change(one.leads, 'a', 0);
    follower = NULL; /* cut off */
    uint32_t bytes = make_row(CATALOG_PUT, 20, 'x');
    log_lock(one.leads->log);
    check(log_reserve_to_grow(one.leads->log, format_catalog_change_bytes(bytes), 0, RESERVE_GROWS) == LS_OK);
    struct slot s = log_slot(one.leads->log, 0, 0, 0);
    lsn = s.lsn;
    log_append(one.leads->log, &s, CATALOG_CHANGE, format_put_catalog_change(&s, 0, 1, rows, bytes));
    log_unlock(one.leads->log);
    force_all();
    while (ls_replica_next(one.leads, &b) == LS_OK)
        keep_made(&b);
    cease_and_follow(&one);
    check(info_of(&one).end_lsn > lsn && gives_next(&one, 'a', a) && gives_next(&one, 0, 0));
    ls_host_close(one.host);
    check(open_member(&one) == LS_OK && info_of(&one).end_lsn > lsn);
    check(gives_next(&one, 'a', a) && gives_next(&one, 0, 0));
    leave();
}

static size_t records_of(const struct made *m, uint16_t type) {
    struct scan_batch b = {.bytes = m->bytes, .lsn = m->batch.lsn};
    struct record r;
    uint32_t at = BATCH_RECORD_BYTES;
    size_t found = 0;

    format_read_verified(b.bytes, &r);
    check(format_get_batch(&r, &b.batch) == FORMAT_OK);
    while (scan_record(&b, &at, &r))
        found += r.type == type ? 1 : 0;
    return found;
}

static size_t batches_with_a_deletion_and_a_change(void) {
    size_t found = 0;

    for (uint64_t i = 1; i <= newest; i++) {
        bool deletes = records_of(&made[i], QUEUE_DELETE) != 0;
        check(deletes == (records_of(&made[i], CATALOG_CHANGE) != 0));
        found += deletes ? 1 : 0;
    }
    return found;
}

static void a_queue_and_its_row_go_in_one_batch(void) {
    uint64_t a, b, places, locked, lsn;

    with_catalog();
    for (int i = 0; i < 5; i++)
        (void)send(&one, &two, 100);
    check(ls_queue_depth(one.leads, queue, &places, &locked) == LS_OK && places == 5);
    check(ls_replica_change_catalog(one.leads, rows, 3, 1, &queue, 1, &lsn) == LS_OPTION);
    check(ls_queue_depth(one.leads, queue, &places, &locked) == LS_OK && places == 5);
    a = change(one.leads, 'a', queue);
    check(ls_queue_depth(one.leads, queue, &places, &locked) == LS_UNKNOWN_QUEUE);
    check(info_of(&two).messages == 5 || info_of(&two).messages == 0); /* it frees them step by step */
    check(gives_next(&two, 'a', a) && batches_with_a_deletion_and_a_change() == 1);
    b = change(one.leads, 'b', 77); /* it never had a message */
    check(gives_next(&two, 'b', b));
    ls_host_close(two.host);
    check(open_member(&two) == LS_OK);
    hears_what_is_durable(&two);
    check(gives_next(&two, 'a', a) && gives_next(&two, 'b', b) && gives_next(&two, 0, 0));
    leave();
}

/* Ids that no queue has, or that stand there twice, have no record. */
static void many_queues_and_their_rows_go_in_one_batch(void) {
    uint32_t deleted[HERE + 3];
    uint64_t a, places, locked, id, lsn;
    size_t n = 0;

    with_catalog();
    for (uint32_t i = 0; i < HERE; i++) {
        check(ls_queue_add(one.leads, FIRST + i) == LS_OK);
        deleted[n++] = FIRST + i;
    }
    check(ls_publish(one.leads, deleted, 2, NULL, 0, (const uint8_t *)"x", 1, NULL, LS_WAIT, &id) == LS_OK);
    deleted[n++] = FIRST;
    deleted[n++] = 9999;
    deleted[n++] = FIRST + 1;
    a = change_deleting(one.leads, 'a', deleted, n);
    check(deleted[0] == FIRST && deleted[HERE + 1] == 9999);
    for (uint32_t i = 0; i < HERE; i++)
        check(ls_queue_depth(one.leads, FIRST + i, &places, &locked) == LS_UNKNOWN_QUEUE);
    check(ls_queue_depth(one.leads, queue, &places, &locked) == LS_OK);
    check(records_of(&made[newest], QUEUE_DELETE) == HERE && records_of(&made[newest], CATALOG_CHANGE) == 1);
    check(gives_next(&two, 'a', a) && batches_with_a_deletion_and_a_change() == 1);

    uint64_t end = ls_next_lsn(one.leads);
    uint32_t bytes = make_row(CATALOG_PUT, 20, 'b');
    check(ls_replica_change_catalog(one.leads, rows, bytes, 1, deleted, 1 << 20, &lsn) == LS_OPTION && lsn == 0 &&
          strstr(ls_last_error()->text, "make several") != NULL);
    check(ls_replica_change_catalog(one.leads, rows, bytes, 1, deleted, SIZE_MAX, &lsn) == LS_OPTION && lsn == 0);
    check(ls_next_lsn(one.leads) == end);
    cease_and_follow(&one);
    leave();
}

static void without_memory_for_the_deletions_nothing_is_written(void) {
    uint64_t places, locked, lsn = 0, end;

    with_catalog();
    end = ls_next_lsn(one.leads);
    uint32_t bytes = make_row(CATALOG_PUT, 20, 'a');
    fail_at_nth = TAKEN_OVER ? 1 : 0;
    allocations = failed = 0;
    counting = TAKEN_OVER;
    int rc = TAKEN_OVER ? ls_replica_change_catalog(one.leads, rows, bytes, 1, &queue, 1, &lsn) : LS_NO_MEMORY;
    counting = false;
    fail_at_nth = 0;
    check(rc == LS_NO_MEMORY && ls_next_lsn(one.leads) == end && (!TAKEN_OVER || (failed == 1 && lsn == 0)));
    check(ls_queue_depth(one.leads, queue, &places, &locked) == LS_OK);
    check(gives_next(&two, 'a', change(one.leads, 'a', queue)));
    check(ls_queue_depth(one.leads, queue, &places, &locked) == LS_UNKNOWN_QUEUE);
    cease_and_follow(&one);
    leave();
}

static void a_change_that_is_none_or_too_long_is_refused_and_nothing_is_written(void) {
    uint64_t lsn, end;

    with_catalog();
    end = ls_next_lsn(one.leads);
    uint32_t bytes = make_row(CATALOG_PUT, 20, 'a');
    check(ls_replica_change_catalog(one.leads, rows, bytes, 2, NULL, 0, &lsn) == LS_OPTION);
    check(ls_replica_change_catalog(one.leads, rows, bytes - 8, 1, NULL, 0, &lsn) == LS_OPTION);
    check(ls_replica_change_catalog(one.leads, rows, 0, 0, NULL, 0, &lsn) == LS_OPTION);
    check(ls_replica_change_catalog(one.leads, rows, bytes, UINT32_MAX, NULL, 0, &lsn) == LS_OPTION);
    rows[0] = 3;
    check(ls_replica_change_catalog(one.leads, rows, bytes, 1, NULL, 0, &lsn) == LS_OPTION);
    bytes = make_row(CATALOG_PUT, ROWS_MAX - 32, 'a');
    check(ls_replica_change_catalog(one.leads, rows, bytes, 1, NULL, 0, &lsn) == LS_OPTION &&
          strstr(ls_last_error()->text, "make several") != NULL);
    check(ls_next_lsn(one.leads) == end && lsn == 0);
    cease_and_follow(&one);
    leave();
}

static void the_thread_that_moves_the_log_waits_for_nothing(void) {
    const uint8_t *content = (const uint8_t *)"x";
    uint64_t lsn, end, id = 0, batch = 0;
    size_t done;

    with_catalog();
    uint32_t bytes = make_row(CATALOG_PUT, 20, 'a');
    end = ls_next_lsn(one.leads);
    ls_replica_moved_by(one.leads, (uint64_t)pthread_self());
    for (int flags = 0; flags <= LS_WAIT; flags += LS_WAIT) {
        check(ls_publish(one.leads, &queue, 1, NULL, 0, content, 1, NULL, flags, &id) == LS_OPTION && id == 0);
        check(ls_dequeue(one.leads, 1, queue, NULL, 0, 0, flags, &batch) == LS_OPTION);
        check(ls_dequeue_many(one.leads, &end, 1, queue, NULL, 0, flags, &done) == LS_OPTION);
    }
    check(ls_force(one.leads, 0) == LS_OPTION);
    check(strstr(ls_last_error()->text, "make it in another thread") != NULL);
    check(ls_replica_change_catalog(one.leads, rows, bytes, 1, NULL, 0, &lsn) == LS_OPTION && lsn == 0);
    check(ls_next_lsn(one.leads) == end);
    check(ls_publish(one.leads, &queue, 1, NULL, 0, content, 1, NULL, LS_TRY, &id) == LS_WOULD_WAIT);
    ls_replica_moved_by(one.leads, 0);
    check(change(one.leads, 'a', 0) > end);
    cease_and_follow(&one);
    leave();
}

/* From below a checkpoint they are not replayed; the log has them until the catalog does. */
static void below_a_checkpoint_the_log_still_has_them(void) {
    uint64_t a, b;
    int taken;

    with_catalog();
    a = change(one.leads, 'a', 0);
    churn_here(&one, &two, 60);
    check(ls_replica_checkpoint(ls_host_replica(two.host), &taken) == LS_OK && taken == 1);
    b = change(one.leads, 'b', 0);
    ls_host_close(two.host);
    check(open_member(&two) == LS_OK && info_of(&two).base_lsn > a);
    hears_what_is_durable(&two);
    check(info_of(&two).changes_from_lsn > a && gives_next(&two, 'b', b) && gives_next(&two, 0, 0));

    ls_reader *reader;
    ls_batch batch;
    bool found = false;
    check(ls_reader_open_kept(vfs_sim_table(two.disk), "/m/copy-1", a - 1, 0, a - 1, &reader) == LS_OK ||
          complain("reader"));
    while (!found && ls_reader_next(reader, &batch) == LS_OK)
        found = batch.lsn < a && batch.lsn + batch.size >= a;
    ls_reader_close(reader);
    check(found);
    leave();
}

/* A store that nobody asks for changes keeps none. */
static void without_a_catalog_none_wait(void) {
    enter(1 << 20);
    lead(&one, &two, TERM);
    (void)change(one.leads, 'a', 0);
    check(gives_next(&two, 0, 0));
    leave();
}

static void without_memory_for_a_change_the_copy_stops_and_an_open_gives_it(void) {
    bool done = false;

    for (fail_at_nth = 1; TAKEN_OVER && !done && fail_at_nth < 60; fail_at_nth++) {
        with_catalog();
        uint64_t a = change(one.leads, 'a', 0);
        struct member *kept = follower;
        follower = NULL;
        ls_replica *copy = ls_host_replica(two.host);
        uint32_t bytes = make_row(CATALOG_PUT, 20, 'b');
        log_lock(one.leads->log);
        check(log_reserve_to_grow(one.leads->log, format_catalog_change_bytes(bytes), 0, RESERVE_GROWS) == LS_OK);
        struct slot s = log_slot(one.leads->log, 0, 0, 0);
        uint64_t end = s.lsn + format_catalog_change_bytes(bytes), before = newest;
        log_append(one.leads->log, &s, CATALOG_CHANGE, format_put_catalog_change(&s, 0, 1, rows, bytes));
        log_unlock(one.leads->log);
        force_all();
        follower = kept;
        for (uint64_t i = before + 1; i <= newest; i++) {
            struct made *m = &made[i];
            ls_replica_batch batch = m->batch;

            batch.bytes = m->bytes;
            batch.header = m->header;
            check(ls_replica_take(copy, &batch) == LS_OK || complain("take"));
        }
        counting = true;
        allocations = failed = 0;
        int rc = ls_replica_durable(copy, made[newest].batch.end_lsn);
        counting = false;
        done = failed == 0;
        check(done ? rc == LS_OK : rc == LS_OK || rc == LS_NO_MEMORY);
        check(ls_replica_majority_has(one.leads, made[newest].batch.end_lsn) == LS_OK);
        if (rc != LS_OK) {
            ls_host_close(two.host);
            check(open_member(&two) == LS_OK);
            check(ls_replica_durable(ls_host_replica(two.host), made[newest].batch.end_lsn) == LS_OK);
        }
        check(gives_next(&two, 'a', a) && gives_next(&two, 'b', end) && gives_next(&two, 0, 0));
        leave();
    }
    check(!TAKEN_OVER || (done && fail_at_nth > 3));
    fail_at_nth = 0;
}

int main(void) {
    static void (*const tests[])(void) = {
        every_copy_gives_each_change_in_order_once_it_is_durable,
        one_call_applies_and_says_whether_there_is_a_change,
        a_new_leader_gives_what_the_log_had_before_its_term,
        a_change_that_is_not_durable_is_not_given,
        a_queue_and_its_row_go_in_one_batch,
        many_queues_and_their_rows_go_in_one_batch,
        without_memory_for_the_deletions_nothing_is_written,
        a_change_that_is_none_or_too_long_is_refused_and_nothing_is_written,
        the_thread_that_moves_the_log_waits_for_nothing,
        below_a_checkpoint_the_log_still_has_them,
        without_a_catalog_none_wait,
        without_memory_for_a_change_the_copy_stops_and_an_open_gives_it,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
