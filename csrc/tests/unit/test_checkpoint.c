/*
 * Checkpoints: whatever operations run before, during and after a checkpoint, an open from it gives the same state as a
 * replay of the whole log.
 *
 * Operations during a checkpoint run inside a call that it makes without the lock.
 */
#include "tests/kit/checkpoint_pair.h"

static vfs meddled;
static int meddle_with; /* operations, in the next truncate */

static int truncate_and_meddle(vfs *v, int file, uint64_t bytes) {
    vfs *real = vfs_sim_table(sim);
    int count = meddle_with;

    (void)v;
    meddle_with = 0;
    r.stays = true;
    for (int i = 0; i < count && !r.lost; i++)
        one_operation(&r);
    r.stays = false;
    return real->truncate(real, file, bytes);
}

static void fresh_meddled(uint64_t seed) {
    fresh();
    run_end(&r);
    vfs_sim_free(sim);
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    (void)vfs_sim_record(sim, 0);
    meddled = *vfs_sim_table(sim);
    meddled.truncate = truncate_and_meddle;
    r.v = &meddled;
    run_start(&r, sim, seed);
    check(!r.lost);
}

/* A checkpoint of a store in any state, with any operations during it and after it. */
static void a_checkpoint_in_any_state_gives_the_state_of_the_whole_log(void) {
    int used = 0;

    for (uint64_t seed = 1; seed <= 120; seed++) {
        if (seed % ONE_IN != 0)
            continue;
        fresh_meddled(seed);
        r.busy = seed % 3 == 0;
        r.doubts = seed % 4 == 0;
        if (seed % 2 == 0)
            run_with_moves(&r, 40 + seed % 200);
        else
            run_some(&r, 100 + seed);
        meddle_with = (int)(seed % 7 * 10);
        check(!r.lost && ls_checkpoint(r.store, NULL) == LS_OK);
        used += same_both_ways(sim, r.catalog);
        run_some(&r, 40);
        used += same_both_ways(sim, r.catalog);
        if (seed % 5 == 0)
            run_with_moves(&r, 60);
        used += same_both_ways(sim, r.catalog);
        run_end(&r);
        used += same_both_ways(sim, r.catalog);
        vfs_sim_free(sim);
    }
    check(used > 100 / ONE_IN || complain("too few checkpoints were used"));
}

static void an_empty_store_can_have_a_checkpoint(void) {
    ls_checkpoint_info info;

    fresh();
    check(ls_checkpoint(r.store, &info) == LS_OK || complain("empty"));
    check(info.messages == 0 && info.bytes == 4096);
    check(same_both_ways(sim, r.catalog) == 1);
    done();
}

static void the_size_of_a_checkpoint_is_known_before_it_is_written(void) {
    ls_checkpoint_info info, before;

    fresh();
    for (int i = 0; i < 5000; i++)
        put_bytes(1, 1, 10, 0);
    check(ls_checkpoint_size(r.store, &before) == LS_OK && ls_checkpoint(r.store, &info) == LS_OK);
    check(before.messages == 5000 && info.messages == 5000 && info.places == 5000);
    check(before.bytes >= info.bytes && before.bytes - info.bytes <= 64);
    check(info.bytes == 4096 + 5000 * 24 + 2 * 16);
    done();
}

static void a_second_checkpoint_replaces_the_first(void) {
    ls_checkpoint_info one, two;
    ls_stats stats;

    fresh();
    put(1, "one", NULL);
    check(ls_checkpoint(r.store, &one) == LS_OK);
    put(1, "two", NULL);
    check(ls_checkpoint(r.store, &two) == LS_OK && two.lsn > one.lsn && two.messages == 2);
    ls_stats_get(r.store, &stats);
    check(stats.checkpoints == 2 && stats.checkpoint_lsn == two.lsn && stats.checkpoint_bytes == two.bytes);
    check(same_both_ways(sim, r.catalog) == 1);
    again();
    ls_stats_get(r.store, &stats);
    check(stats.checkpoint_lsn == two.lsn);
    done();
}

/* Its relocated state has neither place nor work; the message exists until the transaction's outcome. */
static void a_message_kept_only_by_work_on_a_deleted_queue_is_in_the_checkpoint(void) {
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 1};
    ls_message_info info;
    ls_stats stats;
    ls_tx *tx;

    fresh();
    uint64_t id = put_bytes(2, 1, 100, LS_WAIT);
    check(ls_begin(r.store, &xid, &tx) == LS_OK && take(id, 2, tx) == LS_OK);
    check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    check(ls_queue_delete(r.store, 2, LS_WAIT) == LS_OK);
    r.catalog &= ~(1u << 2);
    for (int i = 0; i < 5; i++)
        churn(50);
    ls_stats_get(r.store, &stats);
    check(stats.segments_relocated > 0);
    check(ls_message(r.store, id, &info) == LS_OK && info.places == 0 && info.pending == 1);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    check(same_both_ways(sim, r.catalog) == 1);
    check(ls_commit(tx, LS_WAIT) == LS_OK && !has(id));
    check(same_both_ways(sim, r.catalog) == 1);
    ls_tx_free(tx);
    done();
}

/* The deaths in the newest batch move the base past the deletion, and no batch names that base yet. */
static void a_deletion_above_the_base_that_the_log_names_is_in_the_checkpoint(void) {
    ls_checkpoint_info info;

    fresh();
    check(put(2, "on the queue that goes", NULL) != 0);
    uint64_t base_lsn = ls_base_lsn(r.store), last = put(1, "holds the base", NULL);
    check(ls_queue_delete(r.store, 2, LS_WAIT) == LS_OK);
    r.catalog &= ~(1u << 2);
    while (log_head_lsn(r.store->log) == base_lsn)
        churn(1);
    check(ls_base_lsn(r.store) == base_lsn && take(last, 1, NULL) == LS_OK && ls_base_lsn(r.store) > base_lsn);
    check(ls_checkpoint_size(r.store, &info) == LS_OK && ls_checkpoint(r.store, NULL) == LS_OK);
    check(same_both_ways(sim, r.catalog) == 1);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        an_empty_store_can_have_a_checkpoint,
        the_size_of_a_checkpoint_is_known_before_it_is_written,
        a_second_checkpoint_replaces_the_first,
        a_message_kept_only_by_work_on_a_deleted_queue_is_in_the_checkpoint,
        a_deletion_above_the_base_that_the_log_names_is_in_the_checkpoint,
        a_checkpoint_in_any_state_gives_the_state_of_the_whole_log,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
