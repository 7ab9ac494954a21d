/*
 * Checkpoints of copies: the table at one LSN, also while batches are applied. A copy of which no thread writes it does a part of the
 * work at each look. See replica/checkpoint.c.
 */
#include <sched.h>

#include "tests/kit/copies.h"

/* The directory with its checkpoint, and without, gives the same state. */
static bool checkpoint_agrees_on(vfs *disk) {
    ls_store *with = read_disk(disk, 0), *without = read_disk(disk, LS_INSPECT_NO_CHECKPOINT);
    bool same = are_equal(with, without) && with->state.report.checkpoint_used != 0;

    ls_free(with);
    ls_free(without);
    return same;
}

static bool checkpoint_agrees(int i) { return checkpoint_agrees_on(disk_of(&copies[i])); }

static void a_checkpoint_of_the_applied_table_replaces_its_replay(void) {
    bool taken = false;
    uint64_t applied;
    ls_tx *tx;
    static const ls_xid xid = {.format_id = 1, .gtrid_bytes = 1, .data = "x"};

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    for (int i = 0; i < 200; i++)
        (void)put_bytes(1 + (uint32_t)i % 2, 'x', 500, i % 8 == 7 ? LS_WAIT : 0);
    check(ls_begin(r.store, &xid, &tx) == LS_OK);
    (void)put(2, "pending", tx);
    check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    (void)put(1, "last", NULL);
    check(replica_checkpoint(copies[1].follows, &taken) == LS_OK && taken);
    check(replica_durable(copies[1].follows, ls_durable_lsn(r.store)) == LS_OK);
    check(checkpoint_agrees(1));
    applied = copies[1].follows->stats.applied_batches;
    replica_free(copies[1].follows);
    check(follow_again(1) == LS_OK || complain("follow"));
    check(copies[1].follows->stats.applied_batches < applied / 4);
    (void)put(1, "for all", NULL);
    check(copies_agree());
    cease();
    check(lead_in(1, 3) == LS_OK && copies_agree());
    copies_end();
}

static void a_leaders_checkpoint_has_the_configuration(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    for (int i = 0; i < 200; i++)
        (void)put_bytes(1, 'x', 500, i % 8 == 7 ? LS_WAIT : 0);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    (void)put(1, "last", NULL);
    check(checkpoint_agrees(0));
    cease();
    check(copies[0].follows->stats.applied_batches < 10);
    check(replication_members(copies[0].follows->store->state.clients)->config_bytes == 5);
    check(copies[0].follows->end.index == sent[copies[0].last].s.index);
    copies_end();
}

static uint64_t begin_segment(void) {
    uint64_t before = log_head_lsn(r.store->log);

    while (log_head_lsn(r.store->log) == before)
        churn(1);
    return log_head_lsn(r.store->log);
}

/* Also where the newest MEMBERS stands. */
static void compact_to(uint64_t lsn) {
    check(store_enter(r.store) == LS_OK);
    check(store_leave(r.store, log_compact_to(r.store->log, lsn), LEAVE_QUIETLY) == LS_OK);
    check(ls_base_lsn(r.store) == lsn);
}

/* The base passes the deletion with the last message below it, and a batch that names that base may still be cut. */
static void a_leaders_checkpoint_has_the_deletions_above_the_base_that_counts(void) {
    vfs_sim *left;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    compact_to(begin_segment());
    uint64_t base_lsn = begin_segment(), last = put(1, "holds the base", NULL);
    check(ls_queue_delete(r.store, 3, LS_WAIT) == LS_OK);
    r.catalog &= ~(1u << 3);
    (void)begin_segment();
    compact_to(base_lsn);
    check(take(last, 1, NULL) == LS_OK && ls_base_lsn(r.store) > base_lsn);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    (void)put(1, "names the base, and makes the checkpoint's batch durable", NULL);
    left = vfs_sim_clone(copies[0].sim); /* without the leader's process, and so without its hint */
    check(checkpoint_agrees_on(vfs_sim_table(left)) && copies_agree());
    vfs_sim_free(left);
    copies_end();
}

/* ---- while batches are applied ---- */

enum { MANY = 3000, SHORT = 40, LONG = 120000 }; /* six slices of rows */

static uint64_t ids[MANY];

static void put_many(void) {
    static const uint8_t content[SHORT];

    for (uint32_t i = 0; i < MANY; i++) {
        const uint32_t queues[] = {1 + i % 3, 4};

        check(ls_publish(r.store, queues, i % 5 == 0 ? 2 : 1, NULL, 0, content, sizeof content, NULL,
                         i % 64 == 63 ? LS_WAIT : 0, &ids[i]) == LS_OK ||
              complain("publish"));
    }
    (void)put(1, "what makes them durable", NULL);
    (void)put(1, "and that", NULL);
}

static ls_tx *begin_with(const char *name, uint64_t dequeued) {
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 1, .data = {(uint8_t)*name}};
    ls_tx *tx;

    check(ls_begin(r.store, &xid, &tx) == LS_OK);
    (void)put(2, name, tx);
    check(take(dequeued, 1, tx) == LS_OK);
    check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    return tx;
}

static uint64_t staged_in_pieces(void) {
    static const uint8_t piece[SHORT];
    uint64_t id;

    check(ls_stage(r.store, NULL, 0, piece, sizeof piece, 0, &id) == LS_OK);
    check(ls_append_content(r.store, id, piece, sizeof piece, LS_WAIT) == LS_OK || complain("append"));
    return id;
}

/* All kinds of changes, to messages that were copied and to those that were not. */
static void change(int step, ls_tx *const *txs, uint64_t staged) {
    static const uint8_t piece[SHORT];
    static const uint32_t five = 5;
    uint64_t lsn;

    for (int i = step; i < MANY - 40; i += 37) {
        if (i % 3 == 0 && i % 5 != 0)
            (void)take(ids[i], 1, NULL);
        else
            (void)ls_enqueue(r.store, ids[i], &five, 1, NULL, 0, &lsn);
    }
    switch (step) {
    case 0:
        for (int i = 0; i < 3; i++)
            check(move_base(r.store) == LS_OK);
        check(ls_commit(txs[0], LS_WAIT) == LS_OK);
        break;
    case 1:
        check(ls_rollback(txs[1], LS_WAIT) == LS_OK);
        check(ls_append_content(r.store, staged, piece, sizeof piece, LS_WAIT) == LS_OK);
        break;
    case 2:
        r.catalog &= ~(1u << 3);
        check(ls_queue_delete(r.store, 3, LS_WAIT) == LS_OK);
        break;
    default:
        break;
    }
    (void)put(1, "durable", NULL);
    (void)put(1, "and that", NULL);
}

/* In the directory as it was when the checkpoint was begun, nothing follows its LSN. */
static bool is_exact(vfs_sim *at_begin, int i) {
    static uint8_t bytes[1 << 20];
    int64_t got = vfs_sim_get(copies[i].sim, VFS_SIM_SEEN, "/s", "CHECKPOINT", bytes, sizeof bytes);
    ls_store *with, *without;
    bool same =
        got > 0 && got < (int64_t)sizeof bytes && vfs_sim_put(at_begin, "/s", "CHECKPOINT", bytes, (size_t)got) == 0;

    with = read_disk(vfs_sim_table(at_begin), 0);
    without = read_disk(vfs_sim_table(at_begin), LS_INSPECT_NO_CHECKPOINT);
    same =
        same && are_equal(with, without) && with->state.report.checkpoint_used != 0 && with->state.report.batches == 0;
    ls_free(with);
    ls_free(without);
    vfs_sim_free(at_begin);
    return same;
}

static void a_checkpoint_is_the_table_of_its_lsn_whatever_is_applied_meanwhile(void) {
    ls_tx *txs[3];
    vfs_sim *at_begin;
    uint64_t staged;
    bool begun = false, ended = false;
    int steps = 0;

    copies_start();
    check(lead_in(0, 2) == LS_OK && ls_queue_add(r.store, 5) == LS_OK);
    r.catalog |= 1u << 5;
    put_many();
    for (int i = 0; i < 3; i++)
        txs[i] = begin_with((const char *[]){"a", "b", "c"}[i], ids[3 * (MANY / 3 - 4 + i)]);
    staged = staged_in_pieces();
    (void)staged_in_pieces(); /* the next leader drops both */
    (void)put(1, "durable", NULL);
    (void)put(1, "and that", NULL);
    check(replica_checkpoint_begin(copies[1].follows, &begun) == LS_OK && begun);
    check(replica_checkpoint_begin(copies[1].follows, &begun) == LS_OK && !begun);
    check(!replica_checkpoint_is_due(copies[1].follows));
    at_begin = vfs_sim_clone(copies[1].sim);
    for (; !ended; steps++) {
        if (steps == 4) {
            cease();
            check(lead_in(2, 3) == LS_OK && ls_queue_add(r.store, 5) != LS_NO_MEMORY);
            (void)put(1, "durable", NULL);
        }
        if (steps < 4)
            change(steps, txs, staged);
        check(replica_checkpoint_ended(copies[1].follows, &ended) == LS_OK);
    }
    check(steps > 5 && copies[1].follows->stats.checkpoints == 1);
    check(is_exact(at_begin, 1));
    (void)put(1, "for all", NULL);
    check(checkpoint_agrees(1) && copies_agree());
    check(has_the_table_of_its_directory(1)); /* and is opened again from it */
    check(replica_checkpoint(copies[1].follows, &begun) == LS_OK && begun && checkpoint_agrees(1));
    for (int i = 0; i < 3; i++)
        ls_tx_free(txs[i]);
    copies_end();
}

/* The thread copies rows while batches come. */
static void a_thread_writes_it_while_batches_are_taken(void) {
    bool begun = false, ended = false;
    uint64_t before;

    copies_start();
    replica_free(copies[1].follows);
    r.options.background = 1;
    check(follow_again(1) == LS_OK);
    r.options.background = 0;
    check(lead_in(0, 2) == LS_OK);
    put_many();
    before = copies[1].follows->applied.lsn;
    check(replica_checkpoint_begin(copies[1].follows, &begun) == LS_OK && begun);
    for (int i = 0; !ended; i++) {
        if (i < MANY - 1 && i % 3 == 0)
            check(take(ids[i], 1, NULL) == LS_OK);
        check(replica_checkpoint_ended(copies[1].follows, &ended) == LS_OK);
        (void)sched_yield();
    }
    check(copies[1].follows->checkpoint_lsn == before);
    (void)put(1, "for all", NULL);
    check(checkpoint_agrees(1) && copies_agree());
    check(replica_checkpoint_begin(copies[1].follows, &begun) == LS_OK && begun);
    check(has_the_table_of_its_directory(1)); /* settles and frees it while the thread is at work */
    copies_end();
}

/* Also where places change their form: at the beginning of a term. */
static void a_copy_that_leads_gives_up_its_checkpoint_and_takes_another(void) {
    bool begun = false, ended = true;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    put_many();
    check(replica_checkpoint_begin(copies[1].follows, &begun) == LS_OK && begun);
    check(replica_checkpoint_ended(copies[1].follows, &ended) == LS_OK && !ended);
    cease();
    check(lead_in(1, 3) == LS_OK || complain("lead"));
    check(take(ids[0], 1, NULL) == LS_OK && take(ids[MANY - 3], 1, NULL) == LS_OK);
    check(ls_checkpoint(r.store, NULL) == LS_OK && checkpoint_agrees(1));
    check(copies_agree());
    copies_end();
}

static void a_checkpoint_that_cannot_be_written_is_tried_again_later(void) {
    static const vfs_sim_plan full = {.kind = VFS_SIM_PWRITE, .nth = 1, .error = ENOSPC};
    bool begun = false, ended = false;
    int rc = LS_OK;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    put_many();
    check(replica_checkpoint_begin(copies[1].follows, &begun) == LS_OK && begun);
    vfs_sim_fail(copies[1].sim, &full);
    while (rc == LS_OK && !ended)
        rc = replica_checkpoint_ended(copies[1].follows, &ended);
    vfs_sim_fail(copies[1].sim, NULL);
    check(rc == LS_FULL && ended && copies[1].follows->stats.checkpoints == 0);
    check(copies[1].follows->checkpoint_retry_lsn > copies[1].follows->applied.lsn);
    check(replica_checkpoint_ended(copies[1].follows, &ended) == LS_OK && ended);
    (void)put(1, "for all", NULL);
    check(replica_checkpoint(copies[1].follows, &begun) == LS_OK && begun);
    (void)put(1, "for all", NULL);
    check(checkpoint_agrees(1) && copies_agree());
    copies_end();
}

/* The copies of a long message's chunks are in earlier batches than the state that completes them. */
static void between_a_chains_copies_and_its_state_no_checkpoint_is_taken(void) {
    struct replica *f;
    int missing[SENT_MAX], n = 0, refused = 0;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    uint64_t id = put_bytes(1, 'x', LONG, LS_WAIT);
    (void)put(1, "durable", NULL);
    copies[1].reached = false;
    for (int i = 0; i < 40; i++) {
        (void)move_base(r.store);
        check(take(put_bytes(1, 'y', 3000, LS_WAIT), 1, NULL) == LS_OK);
    }
    f = copies[1].follows;
    for (int at = copies[0].last; at != copies[1].last; at = sent[at].before)
        missing[n++] = at;
    while (n > 0) {
        bool taken = false;

        check(replica_take(f, &sent[missing[--n]].s) == LS_OK);
        copies[1].last = missing[n];
        check(replica_checkpoint(f, &taken) == LS_OK && taken == (f->mid_chain == 0));
        check(!taken || checkpoint_agrees(1) || complain("checkpoint"));
        refused += !taken;
    }
    check(refused > 0 || complain("no chain was moved in several batches"));
    copies[1].reached = true;
    check(has(id) && put(1, "for all", NULL) != 0 && copies_agree());
    copies_end();
}

/* ---- a full disk ---- */

enum { FULL = 1, BESIDE = 2, WITHOUT, IN_PLACE, UNDER_WAY };

/* Copies 1 and 2 have the log of the leader; the first then has no block left. */
static void fill_the_disk(int checkpoint) {
    bool done = false;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    put_many();
    check(replica_durable(copies[FULL].follows, ls_durable_lsn(r.store)) == LS_OK);
    if (checkpoint == IN_PLACE)
        check(replica_checkpoint(copies[FULL].follows, &done) == LS_OK && done);
    if (checkpoint == UNDER_WAY) {
        check(replica_checkpoint_begin(copies[FULL].follows, &done) == LS_OK && done);
        for (int i = 0; i < 4; i++)
            check(replica_checkpoint_ended(copies[FULL].follows, &done) == LS_OK && !done);
    }
    copies[FULL].reached = false;
    vfs_sim_capacity(copies[FULL].sim, vfs_sim_used(copies[FULL].sim));
}

/* Segments that the copy had room for; then it takes nothing more. */
static uint64_t segments_taken(void) {
    struct replica *f = copies[FULL].follows;
    uint64_t before = f->segment_count + f->stats.segments_recycled;
    int rc = LS_OK;

    for (int i = 0; i < 40 && rc == LS_OK; i++) {
        for (int k = 0; k < 4; k++)
            (void)put_bytes(1, 'x', 3000, LS_WAIT);
        rc = catch_up(&copies[FULL], copies[leader].last);
    }
    check(rc == LS_FULL || complain("it has room for ever"));
    check(catch_up(&copies[FULL], copies[leader].last) == LS_FULL);
    return f->segment_count + f->stats.segments_recycled - before;
}

static void a_full_disk_has_the_blocks_of_the_checkpoint_for_the_next_segment(void) {
    static uint8_t byte[1];
    uint64_t taken[UNDER_WAY + 1];

    for (int checkpoint = WITHOUT; checkpoint <= UNDER_WAY; checkpoint++) {
        fill_the_disk(checkpoint);
        taken[checkpoint] = segments_taken();
        check(vfs_sim_get(copies[FULL].sim, VFS_SIM_SEEN, "/s", "CHECKPOINT", byte, 1) == -ENOENT);
        check(vfs_sim_get(copies[FULL].sim, VFS_SIM_SEEN, "/s", "CHECKPOINT.new", byte, 1) == -ENOENT);
        check(checkpoint == WITHOUT || copies[FULL].follows->checkpoint_retry_lsn > copies[FULL].follows->applied.lsn);
        vfs_sim_capacity(copies[FULL].sim, 0);
        copies[FULL].reached = true; /* it goes on */
        (void)put(1, "for all", NULL);
        check(copies_agree());
        copies_end();
    }
    check(taken[IN_PLACE] > taken[WITHOUT] || complain("the checkpoint kept its blocks"));
    check(taken[UNDER_WAY] > taken[WITHOUT] || complain("the one under way kept its blocks"));
}

/* The term's segment needs a file, and the copy has no spare. */
static void a_copy_leads_on_a_full_disk_with_the_blocks_of_its_checkpoint(void) {
    fill_the_disk(IN_PLACE);
    cease();
    check(lead_in(FULL, 3) == LS_OK || complain("lead"));
    check(copies_agree());
    copies_end();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_checkpoint_of_the_applied_table_replaces_its_replay,
        a_leaders_checkpoint_has_the_configuration,
        a_leaders_checkpoint_has_the_deletions_above_the_base_that_counts,
        a_checkpoint_is_the_table_of_its_lsn_whatever_is_applied_meanwhile,
        a_thread_writes_it_while_batches_are_taken,
        a_copy_that_leads_gives_up_its_checkpoint_and_takes_another,
        a_checkpoint_that_cannot_be_written_is_tried_again_later,
        between_a_chains_copies_and_its_state_no_checkpoint_is_taken,
        a_full_disk_has_the_blocks_of_the_checkpoint_for_the_next_segment,
        a_copy_leads_on_a_full_disk_with_the_blocks_of_its_checkpoint,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
