/*
 * A checkpoint is the state at its LSN, whatever an operation does to a message between that moment and the copy of the
 * message; and it is the whole state, including kinds that other tests rarely reach.
 */
#include "tests/kit/checkpoint_pair.h"

static vfs table;
static void (*meanwhile)(void); /* runs once, when the next checkpoint's file is made */
static uint64_t id, more;
static ls_tx *tx;

static int open_and_more(vfs *v, int dir, const char *name, unsigned flags) {
    vfs *real = vfs_sim_table(sim);
    void (*now)(void) = strcmp(name, "CHECKPOINT.new") == 0 ? meanwhile : NULL;

    (void)v;
    if (now != NULL) {
        meanwhile = NULL;
        now();
    }
    return real->open(real, dir, name, flags);
}

static void fresh_watched(void) {
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = 0;
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    (void)vfs_sim_record(sim, 0);
    table = *vfs_sim_table(sim);
    table.open = open_and_more;
    r.v = &table;
    r.options = o;
    run_start(&r, sim, 1);
    check(!r.lost);
}

/* Takes a checkpoint with this operation during it, then does more work; opens with and without it give the same state. */
static void checked_with(void (*what)(void)) {
    meanwhile = what;
    check(ls_checkpoint(r.store, NULL) == LS_OK && meanwhile == NULL);
    check(ls_force(r.store, 0) == LS_OK);
    check(same_both_ways(sim, r.catalog) == 1);
}

/* ---- in the middle ---- */

static void append(void) {
    static const uint8_t content[300];

    check(ls_append_content(r.store, id, content, sizeof content, LS_WAIT) == LS_OK || complain("append"));
}

static void dequeue(void) { check(take(id, 1, NULL) == LS_OK); }

static void commit(void) { check(ls_commit(tx, LS_WAIT) == LS_OK); }

static void roll_back(void) { check(ls_rollback(tx, LS_WAIT) == LS_OK); }

static void enqueue(void) { check(add(id, 2, NULL) == LS_OK); }

static void move(void) {
    ls_stats stats;
    uint64_t before;

    ls_stats_get(r.store, &stats);
    before = stats.segments_relocated;
    for (int i = 0; i < 400 && stats.segments_relocated == before; i++) {
        churn(1);
        ls_stats_get(r.store, &stats);
    }
    check(stats.segments_relocated > before || complain("nothing was moved"));
}

/* ---- before ---- */

static void content_added_during_a_checkpoint_is_not_in_it(void) {
    fresh_watched();
    check(ls_stage(r.store, NULL, 0, (const uint8_t *)"first", 5, LS_WAIT, &id) == LS_OK);
    more = put(1, "other", NULL);
    meanwhile = append;
    check(ls_checkpoint(r.store, NULL) == LS_OK && meanwhile == NULL);
    check(add(id, 3, NULL) == LS_OK);
    check(same_both_ways(sim, r.catalog) == 1);
    done();
}

static void a_dequeue_during_a_checkpoint_is_not_in_it(void) {
    fresh_watched();
    id = put(1, "goes", NULL);
    more = put(1, "stays", NULL);
    check(add(id, 4, NULL) == LS_OK);
    checked_with(dequeue);
    done();
}

static void an_enqueue_during_a_checkpoint_is_not_in_it(void) {
    fresh_watched();
    id = put(1, "on one queue", NULL);
    checked_with(enqueue);
    done();
}

static void begun(void) {
    uint64_t lsn;

    id = put(1, "goes with the transaction", NULL);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    check(ls_dequeue(r.store, id, 1, tx, 1, 0, 0, &lsn) == LS_OK);
    more = put(2, "comes with the transaction", NULL);
    check(add(more, 3, tx) == LS_OK);
}

static void an_outcome_during_a_checkpoint_is_not_in_it(void) {
    void (*const outcomes[])(void) = {commit, roll_back};

    for (int i = 0; i < 2; i++) {
        fresh_watched();
        begun();
        checked_with(outcomes[i]);
        ls_tx_free(tx);
        done();
    }
}

/* Plain messages, and one of several records: the checkpoint has their old positions; the log after it has the new ones. */
static void a_relocation_during_a_checkpoint_is_not_in_it(void) {
    fresh_watched();
    for (int i = 0; i < 5; i++)
        (void)put(2, "stays and is moved", NULL);
    (void)put_bytes(3, 7, 9000, LS_WAIT);
    move();
    churn(40);
    (void)put(4, "keeps the base from passing the checkpoint", NULL);
    checked_with(move);
    done();
}

/* ---- all of it ---- */

/* It has enough places with different order keys that its state takes several records when moved. */
static void a_checkpoint_has_all_records_of_a_long_state(void) {
    fresh_watched();
    id = put_bytes(2, 9, 30000, LS_WAIT);
    check(add(id, 3, NULL) == LS_OK && add(id, 4, NULL) == LS_OK);
    move();
    id = put(1, "goes", NULL);
    checked_with(dequeue);
    done();
}

static void a_checkpoint_has_staged_messages_as_staged(void) {
    fresh_watched();
    check(ls_stage(r.store, NULL, 0, (const uint8_t *)"staged", 6, LS_WAIT, &more) == LS_OK);
    id = put(1, "goes", NULL);
    checked_with(dequeue);
    done();
}

static void a_checkpoint_has_deleted_queues_with_pending_work(void) {
    uint64_t lsn;

    fresh_watched();
    id = put(1, "goes", NULL);
    more = put(4, "in doubt", NULL);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    check(ls_dequeue(r.store, more, 4, tx, 1, 0, 0, &lsn) == LS_OK);
    check(ls_queue_delete(r.store, 4, LS_WAIT) == LS_OK);
    r.catalog &= ~(1u << 4);
    checked_with(dequeue);
    ls_tx_free(tx);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        content_added_during_a_checkpoint_is_not_in_it, a_dequeue_during_a_checkpoint_is_not_in_it,
        an_enqueue_during_a_checkpoint_is_not_in_it,    an_outcome_during_a_checkpoint_is_not_in_it,
        a_relocation_during_a_checkpoint_is_not_in_it,  a_checkpoint_has_all_records_of_a_long_state,
        a_checkpoint_has_staged_messages_as_staged,     a_checkpoint_has_deleted_queues_with_pending_work,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
