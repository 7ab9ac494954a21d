/* The store's operations without failures: places, content, order, transactions, cursors, handles. */
#include <unistd.h>

#include "tests/kit/one_store.h"

/* The ids that a queue lists, in order, against those given, up to a 0. */
static bool lists(uint32_t queue, const uint64_t *ids) {
    ls_place places[64];
    ls_cursor *c;
    size_t n = 0, i = 0;
    bool same =
        ls_cursor_open(r.store, queue, LS_CURSOR_ALL, &c) == LS_OK && ls_cursor_next(c, places, 64, &n) == LS_OK;

    for (; same && i < n; i++)
        same = places[i].id == ids[i];
    ls_cursor_close(c);
    return same && ids[i] == 0;
}

static void a_fan_out_is_one_message_that_ends_with_its_last_place(void) {
    static const uint32_t all[] = {1, 2, 3}, twice[] = {1, 1}, unknown[] = {1, 7};
    uint64_t id = 0, none;

    fresh();
    check(ls_publish(r.store, all, 3, (const uint8_t *)"h", 1, (const uint8_t *)"abc", 3, NULL, 0, &id) == LS_OK);
    check(ls_publish(r.store, twice, 2, NULL, 0, NULL, 0, NULL, 0, &none) == LS_OPTION);
    check(ls_publish(r.store, unknown, 2, NULL, 0, NULL, 0, NULL, 0, &none) == LS_UNKNOWN_QUEUE);
    check(ls_publish(r.store, all, 0, NULL, 0, NULL, 0, NULL, 0, &none) == LS_OPTION);
    check(add(id, 2, NULL) == LS_ALREADY_ENQUEUED && add(id + 8, 2, NULL) == LS_UNKNOWN_MESSAGE);
    check(take(id, 4, NULL) == LS_NOT_ENQUEUED);
    check(ls_destroy(r.store, id, 0) == LS_MESSAGE_IN_USE);
    check(take(id, 2, NULL) == LS_OK && take(id, 2, NULL) == LS_NOT_ENQUEUED);
    check(add(id, 2, NULL) == LS_OK);
    again();
    check(take(id, 1, NULL) == LS_OK && take(id, 2, NULL) == LS_OK && has(id));
    again();
    check(has(id) && take(id, 3, NULL) == LS_OK && !has(id));
    check(take(id, 3, NULL) == LS_UNKNOWN_MESSAGE);
    again();
    check(!has(id));
    done();
}

static void content_of_any_length_is_read_back_from_any_offset(void) {
    static const uint32_t sizes[] = {0, 1, 7, 8, 4000, 4016, 4024, 4025, 4096, 8191, 50000, 65536};
    static uint8_t content[65536], into[65536];
    uint64_t ids[12];
    uint32_t q = 1;

    fresh();
    fill(content, 9, sizeof content);
    for (int pass = 0; pass < 3; pass++) { /* from buffers, from files, and after recovery */
        for (size_t i = 0; i < 12; i++) {
            size_t n = 0;

            if (pass == 0)
                check(ls_publish(r.store, &q, 1, NULL, 0, content, sizes[i], NULL, 0, &ids[i]) == LS_OK);
            for (uint32_t from = 0; from < sizes[i] + 2; from += 1 + sizes[i] / 5) {
                uint32_t left = from < sizes[i] ? sizes[i] - from : 0;

                check(ls_load_content(r.store, ids[i], from, into, sizeof into, &n) == LS_OK && n == left);
                check(memcmp(into, content + from, n) == 0);
                check(ls_load_content(r.store, ids[i], from, into, 3, &n) == LS_OK && n == (left < 3 ? left : 3));
            }
        }
        if (pass == 0)
            check(ls_force(r.store, 0) == LS_OK);
        else
            again();
    }
    done();
}

static void staged_content_grows_until_it_is_enqueued_and_a_recovery_drops_it(void) {
    uint64_t id, kept, lost;
    uint8_t into[16];
    size_t n;

    fresh();
    check(ls_stage(r.store, (const uint8_t *)"hd", 2, (const uint8_t *)"a", 1, 0, &id) == LS_OK);
    check(ls_stage(r.store, NULL, 0, NULL, 0, 0, &kept) == LS_OK &&
          ls_stage(r.store, NULL, 0, NULL, 0, LS_WAIT, &lost) == LS_OK);
    check(ls_append_content(r.store, id, NULL, 0, 0) == LS_OK);
    check(ls_append_content(r.store, id, (const uint8_t *)"bc", 2, 0) == LS_OK);
    check(add(id, 1, NULL) == LS_OK && add(kept, 1, NULL) == LS_OK);
    check(ls_append_content(r.store, id, (const uint8_t *)"d", 1, 0) == LS_MESSAGE_IN_USE);
    check(ls_load_header(r.store, id, into, sizeof into, &n) == LS_OK && n == 2 && memcmp(into, "hd", 2) == 0);
    again();
    check(ls_load_content(r.store, id, 0, into, sizeof into, &n) == LS_OK && n == 3 && memcmp(into, "abc", 3) == 0);
    check(has(kept) && !has(lost));
    done();
}

static void a_transaction_shows_nothing_before_its_commit_and_orders_by_it(void) {
    ls_tx *tx, *other;
    uint64_t a, b, c, d;

    fresh();
    a = put(1, "a", NULL);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && ls_begin(r.store, NULL, &other) == LS_OK);
    b = put(1, "b", tx);
    check(take(a, 1, tx) == LS_OK && take(a, 1, other) == LS_MESSAGE_LOCKED && take(a, 1, NULL) == LS_MESSAGE_LOCKED);
    check(take(b, 1, NULL) == LS_NOT_ENQUEUED && add(b, 1, NULL) == LS_MESSAGE_LOCKED);
    check(add(b, 2, tx) == LS_OK && take(b, 2, tx) == LS_OK); /* enqueued and dequeued again */
    c = put(1, "c", NULL);
    d = put(1, "d", other);
    check(lists(1, (uint64_t[]){a, c, 0}));
    check(ls_commit(other, LS_WAIT) == LS_OK && ls_commit(tx, LS_WAIT) == LS_OK);
    check(ls_commit(tx, LS_WAIT) == LS_TRANSACTION_ENDED && take(d, 1, tx) == LS_TRANSACTION_ENDED);
    check(lists(1, (uint64_t[]){c, d, b, 0}) && lists(2, (uint64_t[]){0}) && !has(a));
    ls_tx_free(tx);
    ls_tx_free(other);
    again();
    check(lists(1, (uint64_t[]){c, d, b, 0}));
    done();
}

static void a_rollback_puts_everything_back_in_its_old_place(void) {
    uint64_t ids[4] = {0}, staged, published;
    ls_tx *tx;

    fresh();
    for (int i = 0; i < 3; i++)
        ids[i] = put(1, "x", NULL);
    check(ls_stage(r.store, NULL, 0, NULL, 0, 0, &staged) == LS_OK);
    for (int how = 0; how < 3; how++) { /* ended by a call, abandoned, or ended by the close */
        check(ls_begin(r.store, NULL, &tx) == LS_OK);
        published = put(2, "p", tx);
        check(take(ids[0], 1, tx) == LS_OK && add(ids[0], 1, tx) == LS_OK && take(ids[1], 1, tx) == LS_OK);
        check(how == 2 || add(staged, 2, tx) == LS_OK);
        if (how == 0)
            check(ls_rollback(tx, LS_WAIT) == LS_OK);
        if (how == 2)
            again();
        ls_tx_free(tx); /* also after its store is closed */
        check(lists(1, ids) && lists(2, (uint64_t[]){0}) && !has(published));
        check(how == 2 || has(staged));
    }
    check(!has(staged));
    for (int i = 0; i < 3; i++)
        check(take(ids[i], 1, NULL) == LS_OK);
    done();
}

static void a_prepared_branch_stays_in_doubt_until_it_gets_an_outcome(void) {
    ls_xid xid = {.format_id = -3, .gtrid_bytes = 2, .bqual_bytes = 1, .data = "gtb"};
    uint64_t a, b, doubt;
    ls_tx *tx, *none;
    ls_tx_info info;
    size_t n;

    for (int commit = 0; commit < 2; commit++) {
        fresh();
        a = put(1, "a", NULL);
        check(ls_begin(r.store, &xid, &tx) == LS_OK && ls_begin(r.store, &xid, &none) == LS_DUPLICATE_XID);
        b = put(2, "b", tx);
        check(take(a, 1, tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_WRONG_STATE);
        check(ls_tx_end(tx) == LS_OK && take(b, 2, tx) == LS_WRONG_STATE && ls_prepare(tx, LS_WAIT) == LS_OK);
        ls_tx_free(tx);
        for (int i = 0; i < 2; i++) {
            again();
            check(ls_in_doubt(r.store, &doubt, 1, &n) == LS_OK && n == 1);
            check(take(a, 1, NULL) == LS_MESSAGE_LOCKED && lists(2, (uint64_t[]){0}));
        }
        check(ls_in_doubt_take(r.store, doubt, &tx) == LS_OK && ls_in_doubt_take(r.store, doubt, &none) == LS_BUSY);
        ls_tx_describe(tx, &info);
        check(info.state == LS_TX_PREPARED && info.distributed && info.xid.format_id == -3 &&
              memcmp(info.xid.data, "gtb", 3) == 0 && info.prepared_us > 0);
        check((commit ? ls_commit(tx, LS_WAIT) : ls_rollback(tx, LS_WAIT)) == LS_OK);
        ls_tx_free(tx);
        for (int i = 0; i < 2; i++) {
            check(lists(1, (uint64_t[]){commit ? 0 : a, 0}) && lists(2, (uint64_t[]){commit ? b : 0, 0}));
            check(ls_in_doubt(r.store, &doubt, 1, &n) == LS_OK && n == 0);
            again();
        }
        done();
    }
}

static void a_cursor_that_offers_waits_for_durability_and_goes_back_for_what_was_unlocked(void) {
    ls_cursor *c;
    ls_place p[8];
    ls_tx *tx;
    uint64_t a, b, id;
    uint32_t q = 1;
    size_t n;

    fresh();
    a = put(1, "a", NULL);
    b = put(1, "b", NULL);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && take(a, 1, tx) == LS_OK);
    check(ls_cursor_open(r.store, 1, LS_CURSOR_OFFER, &c) == LS_OK);
    check(ls_cursor_next(c, p, 8, &n) == LS_OK && n == 1 && p[0].id == b);
    check(ls_publish(r.store, &q, 1, NULL, 0, NULL, 0, NULL, 0, &id) == LS_OK);
    check(ls_cursor_next(c, p, 8, &n) == LS_OK && n == 0);
    check(ls_rollback(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    check(ls_cursor_next(c, p, 8, &n) == LS_OK && n == 3 && p[0].id == a && p[2].id == id);
    for (int i = 0; i < 300; i++) /* chunks of the run come and go under it */
        check(take(put(1, "x", NULL), 1, NULL) == LS_OK);
    id = put(1, "y", NULL);
    check(ls_cursor_next(c, p, 8, &n) == LS_OK && n == 1 && p[0].id == id);
    check(ls_queue_delete(r.store, 1, LS_WAIT) == LS_OK);
    check(ls_cursor_next(c, p, 8, &n) == LS_UNKNOWN_QUEUE);
    ls_cursor_close(c);
    done();
}

static void deleting_a_queue_ends_only_its_own_places(void) {
    static const uint32_t both[] = {1, 2};
    uint64_t ids[300], shared, only, places, locked;
    ls_tx *tx;

    fresh();
    for (int i = 0; i < 300; i++)
        ids[i] = put(1, "x", NULL);
    check(ls_publish(r.store, both, 2, NULL, 0, NULL, 0, NULL, 0, &shared) == LS_OK);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    only = put(1, "o", tx);
    check(take(ids[5], 1, tx) == LS_OK);
    r.catalog &= ~2u;
    check(ls_queue_delete(r.store, 1, 0) == LS_OK && ls_queue_delete(r.store, 1, 0) == LS_UNKNOWN_QUEUE);
    check(add(shared, 1, NULL) == LS_UNKNOWN_QUEUE);
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    for (int i = 0; i < 2; i++) {
        check(!has(ids[0]) && !has(ids[5]) && !has(only) && lists(2, (uint64_t[]){shared, 0}));
        check(ls_queue_depth(r.store, 2, &places, &locked) == LS_OK && places == 1 && locked == 0);
        again();
    }
    done();
}

static void a_batch_of_dequeues_is_checked_before_the_first(void) {
    uint64_t ids[4];
    size_t n;

    fresh();
    for (int i = 0; i < 3; i++)
        ids[i] = put(1, "x", NULL);
    ids[3] = ids[2] + 8;
    check(ls_dequeue_many(r.store, ids, 4, 1, NULL, 1, LS_WAIT, &n) == LS_UNKNOWN_MESSAGE && n == 0 && has(ids[0]));
    check(ls_dequeue_many(r.store, ids, 3, 1, NULL, 1, LS_WAIT, &n) == LS_OK && n == 3 && !has(ids[2]));
    done();
}

static void one_handle_at_a_time_and_a_closed_one_says_so(void) {
    ls_store *second;
    uint64_t id = 0;
    ls_recovery report;

    fresh();
    check(open_store(&r, r.v, r.catalog, QUEUES + 1, &second) == LS_LOCKED && second == NULL);
    id = put(1, "x", NULL);
    check(ls_close(r.store) == LS_OK && ls_close(r.store) == LS_OK);
    check(take(id, 1, NULL) == LS_CLOSED && ls_force(r.store, 0) == LS_CLOSED);
    ls_free(r.store);
    check(ls_open(r.v, "/nowhere/deep", &(ls_options){.initial_segments = 1, .max_write_buffers = 2}, &second) ==
          LS_NOT_A_STORE);
    check(open_store(&r, r.v, r.catalog, 3, &second) == LS_OK || complain("smaller ids than next"));
    ls_recovery_report(second, &report);
    check(report.clean && report.messages == 1);
    ls_free(second);
    check(open_store(&r, r.v, 0, 1, &second) == LS_CATALOG_MISMATCH);
    check(open_store(&r, r.v, r.catalog, QUEUES + 1, &r.store) == LS_OK && has(id));
    done();
}

/* The generated workload on a real disk: the model's state holds after each close. */
static void a_generated_workload_survives_each_close_on_real_files(void) {
    char path[] = "/tmp/logstore-test-XXXXXX", command[80];
    static struct model_state s;

    require(mkdtemp(path) != NULL);
    memset(&r, 0, sizeof r);
    r.v = vfs_posix();
    r.path = path;
    r.gentle = true;
    run_start(&r, NULL, 3);
    require(!r.lost);
    for (int i = 0; i < 4; i++) {
        run_some(&r, 60);
        reopen(&r);
        require(!r.lost);
        model_after(&r, r.op_count, r.catalog, &s);
        check(store_is(r.store, &s, r.catalog) && contents_are(&r, r.store, &s));
    }
    run_end(&r);
    (void)snprintf(command, sizeof command, "rm -rf %s", path);
    check(system(command) == 0);
}

int main(void) {
    static void (*const tests[])(void) = {
        a_fan_out_is_one_message_that_ends_with_its_last_place,
        content_of_any_length_is_read_back_from_any_offset,
        staged_content_grows_until_it_is_enqueued_and_a_recovery_drops_it,
        a_transaction_shows_nothing_before_its_commit_and_orders_by_it,
        a_rollback_puts_everything_back_in_its_old_place,
        a_prepared_branch_stays_in_doubt_until_it_gets_an_outcome,
        a_cursor_that_offers_waits_for_durability_and_goes_back_for_what_was_unlocked,
        deleting_a_queue_ends_only_its_own_places,
        a_batch_of_dequeues_is_checked_before_the_first,
        one_handle_at_a_time_and_a_closed_one_says_so,
        a_generated_workload_survives_each_close_on_real_files,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
