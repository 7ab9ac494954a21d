/*
 * The rules behind an acknowledgement, one by one: epochs and gaps, poison, the rewrite of the tail, when a message's end
 * takes effect on the base, and crashes at particular moments.
 */
#include "tests/kit/store_workload.h"

static struct run r; /* options, path and queues of the store under test */

static vfs_sim *fresh(void) {
    vfs_sim *sim = vfs_sim_new();

    memset(&r, 0, sizeof r);
    run_start(&r, sim, 1);
    return sim;
}

static ls_store *opened(vfs_sim *sim) {
    ls_store *store = NULL;

    r.sim = sim;
    if (open_store(&r, vfs_sim_table(sim), r.catalog, QUEUES + 1, &store) != LS_OK)
        (void)complain("open");
    return store;
}

/* Cuts the power and frees the open store. */
static vfs_sim *cut(vfs_sim *sim, ls_store *store, int mode, int dir_mode) {
    vfs_sim *after = vfs_sim_crash(sim, &(vfs_sim_loss){.mode = mode, .dir_mode = dir_mode});

    ls_free(store);
    vfs_sim_free(sim);
    return after;
}

static uint64_t put(ls_store *store, uint32_t queue, size_t bytes, int flags) {
    static uint8_t content[4096];
    uint64_t id = 0;

    memset(content, 'x', sizeof content); /* zeros would be there already */

    check(ls_publish(store, &queue, 1, NULL, 0, content, bytes, NULL, flags, &id) == LS_OK);
    return id;
}

static int take(ls_store *store, uint64_t id, uint32_t queue, int flags) {
    uint64_t lsn;
    return ls_dequeue(store, id, queue, NULL, 0, 0, flags, &lsn);
}

static bool has(ls_store *store, uint64_t id) {
    ls_message_info info;
    return ls_message(store, id, &info) == LS_OK;
}

static int count_name(void *context, const char *name) {
    size_t length = strlen(name);
    *(int *)context += length > 4 && strcmp(name + length - 4, ".seg") == 0;
    return 0;
}

static int files(vfs_sim *sim) {
    vfs *v = vfs_sim_table(sim);
    int dir = v->open_dir(v, "/s"), n = 0;

    check(v->list(v, dir, count_name, &n) == 0);
    check(v->close(v, dir) == 0);
    return n;
}

/* ---- creation ---- */

static void the_name_of_the_store_directory_is_durable(void) {
    vfs_sim *sim = fresh();
    uint64_t id = put(r.store, 1, 10, LS_WAIT);

    sim = cut(sim, r.store, VFS_SIM_ALL_LOST, VFS_SIM_DIRS_LOST);
    r.store = opened(sim);
    check(r.store != NULL && has(r.store, id));
    ls_free(r.store);
    vfs_sim_free(sim);
}

static void meta_left_in_the_page_cache_by_a_failed_sync_is_written_again(void) {
    vfs_sim *sim = vfs_sim_new();
    vfs_sim_plan plan = {.kind = VFS_SIM_SYNC_FILE, .nth = 1, .error = EIO};
    uint64_t id;

    memset(&r, 0, sizeof r);
    vfs_sim_fail(sim, &plan);
    run_start(&r, sim, 1);
    check(r.lost && vfs_sim_fired(sim) == 1);
    r.store = opened(sim);
    require(r.store != NULL);
    id = put(r.store, 1, 10, LS_WAIT);
    sim = cut(sim, r.store, VFS_SIM_ALL_LOST, VFS_SIM_DIRS_LOST);
    r.store = opened(sim);
    check(r.store != NULL && has(r.store, id));
    ls_free(r.store);
    vfs_sim_free(sim);
}

/* After a failed write its pages may lose later writes at a power cut, although their sync succeeded. */
static void meta_is_never_written_again_into_a_file_in_which_a_write_failed(void) {
    const vfs_sim_event *events;
    vfs_sim *sim = vfs_sim_new();
    uint64_t made = 0, written = 0;
    size_t count;

    memset(&r, 0, sizeof r);
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_PWRITE, .nth = 1, .error = EIO});
    run_start(&r, sim, 1);
    check(r.lost && vfs_sim_fired(sim) == 1);
    require(vfs_sim_record(sim, 1) == 0);
    r.store = opened(sim);
    require(r.store != NULL);
    count = vfs_sim_journal(sim, &events);
    for (size_t i = 0; i < count && written == 0; i++) {
        if (events[i].kind == VFS_SIM_OPEN && (events[i].flags & VFS_SIM_CREATED) != 0)
            made = events[i].file;
        else if (events[i].kind == VFS_SIM_PWRITE)
            written = events[i].file;
    }
    check(written != 0 && written == made);
    ls_free(r.store);
    vfs_sim_free(sim);
}

/* ---- epochs ---- */

static void every_open_is_an_epoch_beyond_every_id_that_could_have_been_given_out(void) {
    vfs_sim *sim = fresh();
    uint64_t epoch = 0, beyond = 0;

    for (int i = 0; i < 20; i++) {
        ls_recovery report;
        uint64_t id = 0;

        ls_recovery_report(r.store, &report);
        check(report.epoch > epoch);
        for (int k = 0; k < i % 3 * 20; k++) {
            id = put(r.store, 1, 3000, k % 40 == 39 ? LS_WAIT : 0);
            check(id >= beyond);
        }
        epoch = report.epoch;
        beyond = (id != 0 ? ls_durable_lsn(r.store) : beyond) + (uint64_t)2 * SEGMENT * (id != 0);
        sim = cut(sim, r.store, VFS_SIM_ALL_LOST, VFS_SIM_DIRS_LOST);
        r.store = opened(sim);
        require(r.store != NULL);
    }
    ls_free(r.store);
    vfs_sim_free(sim);
}

static void a_crash_loop_costs_no_space(void) {
    vfs_sim *sim = fresh();
    uint64_t id = put(r.store, 1, 10, LS_WAIT);

    for (int i = 0; i < 100; i++) {
        sim = cut(sim, r.store, i % 2 ? VFS_SIM_ALL_LOST : VFS_SIM_ALL_KEPT,
                  i % 3 ? VFS_SIM_DIRS_KEPT : VFS_SIM_DIRS_LOST);
        r.store = opened(sim);
        require(r.store != NULL && has(r.store, id));
        check(files(sim) <= 6);
    }
    for (int i = 0; i < 50; i++) { /* and an open that only closes */
        check(ls_close(r.store) == LS_OK);
        ls_free(r.store);
        r.store = opened(sim);
        require(r.store != NULL && has(r.store, id));
        check(files(sim) <= 6);
    }
    ls_free(r.store);
    vfs_sim_free(sim);
}

/* The first batch of an epoch names its own position as durable: if torn, it must not be damage below the watermark. */
static void a_torn_first_batch_of_an_epoch_is_a_torn_tail(void) {
    for (int reopen_first = 0; reopen_first < 2; reopen_first++) {
        vfs_sim *sim = fresh();
        uint64_t kept = 0, torn;

        if (reopen_first) {
            kept = put(r.store, 1, 10, LS_WAIT);
            sim = cut(sim, r.store, VFS_SIM_ALL_LOST, VFS_SIM_DIRS_LOST);
            r.store = opened(sim);
            require(r.store != NULL);
        }
        check(vfs_sim_record(sim, 1) == 0);
        torn = put(r.store, 1, 3000, LS_WAIT);
        ls_free(r.store);
        for (uint64_t units = 0; units < 8; units++) { /* the first sectors of its one write */
            const vfs_sim_event *events;
            size_t n = vfs_sim_journal(sim, &events), at = 0;
            vfs_sim *disk;

            while (at < n && events[at].kind != VFS_SIM_SYNC_DATA)
                at++;
            disk = vfs_sim_crash_at(sim, at, &(vfs_sim_loss){.mode = VFS_SIM_PREFIX, .n = units});
            r.store = opened(disk);
            require(r.store != NULL);
            check(!has(r.store, torn) && (kept == 0 || has(r.store, kept)));
            ls_free(r.store);
            vfs_sim_free(disk);
        }
        vfs_sim_free(sim);
    }
}

/* ---- poison ---- */

static void a_failed_sync_poisons_the_store_for_good(void) {
    for (int kind = 0; kind < 2; kind++) {
        vfs_sim *sim = fresh();
        uint64_t good = put(r.store, 1, 10, LS_WAIT), durable = ls_durable_lsn(r.store), id;
        vfs_sim_plan plan = {.kind = kind ? VFS_SIM_PWRITE : VFS_SIM_SYNC_DATA, .nth = 1, .error = kind ? ENOSPC : EIO};
        uint32_t q = 1;
        ls_tx *tx, *other;
        int event;

        check(ls_event_fd(r.store, &event) == LS_OK);
        check(ls_begin(r.store, NULL, &tx) == LS_OK);
        vfs_sim_fail(sim, &plan);
        check(ls_publish(r.store, &q, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OUTCOME_UNKNOWN);
        check(vfs_sim_event_count(sim, event) > 0);
        check(ls_force(r.store, 0) == LS_OUTCOME_UNKNOWN);
        check(ls_force(r.store, durable) == LS_OK); /* durable operations stay durable */
        check(ls_publish(r.store, &q, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_POISONED);
        check(take(r.store, good, 1, LS_WAIT) == LS_POISONED);
        check(ls_commit(tx, LS_WAIT) == LS_POISONED);
        check(ls_begin(r.store, NULL, &other) == LS_POISONED);
        check(ls_queue_delete(r.store, 2, LS_WAIT) == LS_POISONED);
        check(ls_durable_lsn(r.store) == durable && ls_poisoned(r.store) != 0);
        check(vfs_sim_fired(sim) == 1);
        ls_tx_free(tx);
        check(ls_close(r.store) == LS_OK);
        ls_free(r.store);
        check(vfs_sim_handles(sim) == 0);
        r.store = opened(sim);
        check(r.store != NULL && has(r.store, good));
        ls_free(r.store);
        vfs_sim_free(sim);
    }
}

/* No thread waits for a batch that is written early, but an event loop may listen. */
static void a_failed_early_write_is_signalled(void) {
    static const ls_options large = {
        .segment_size = 1 << 22, .create = 1, .initial_segments = 1, .max_write_buffers = 3};
    static const uint8_t content[4096];
    for (int kind = 0; kind < 2; kind++) {
        vfs_sim *sim = vfs_sim_new();
        memset(&r, 0, sizeof r);
        r.options = large;
        run_start(&r, sim, 1);
        vfs_sim_plan plan = {.kind = kind ? VFS_SIM_PWRITE : VFS_SIM_WRITEBACK, .nth = 1, .error = EIO};
        uint64_t id, good = put(r.store, 1, 10, LS_WAIT), before;
        uint32_t q = 1;
        int event, rc = LS_OK;

        check(ls_event_fd(r.store, &event) == LS_OK);
        before = vfs_sim_event_count(sim, event);
        vfs_sim_fail(sim, &plan);
        for (int i = 0; i < 100 && rc == LS_OK; i++)
            rc = ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, LS_MORE, &id);
        check(rc == LS_POISONED && vfs_sim_fired(sim) == 1);
        check(vfs_sim_event_count(sim, event) == before + 1);
        check(has(r.store, good) && ls_close(r.store) == LS_OK);
        ls_free(r.store);
        vfs_sim_free(sim);
    }
}

/* After a failed sync the next process reads pages that the disk may not have, and the next sync succeeds. */
static void batches_that_an_open_accepted_survive_a_power_cut(void) {
    int accepted = 0;

    for (uint64_t survive = 0; survive < 40; survive++) {
        vfs_sim *sim = fresh();
        uint64_t good = put(r.store, 1, 10, LS_WAIT), lost = 0;
        vfs_sim_plan plan = {.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO, .survive = survive};
        uint32_t q = 1;
        bool seen;

        vfs_sim_fail(sim, &plan);
        if (survive % 2) { /* or killed between write and sync */
            vfs_sim *killed;

            check(vfs_sim_record(sim, 1) == 0);
            plan.nth = 2;
            vfs_sim_fail(sim, &plan);
            lost = put(r.store, 1, 100 * survive, LS_WAIT);
            ls_free(r.store);
            killed = vfs_sim_at(sim, 2); /* write, sync: without the sync */
            vfs_sim_free(sim);
            sim = killed;
        } else {
            check(ls_publish(r.store, &q, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &lost) == LS_OUTCOME_UNKNOWN);
            ls_free(r.store);
            vfs_sim_fail(sim, NULL);
        }
        r.store = opened(sim);
        require(r.store != NULL);
        check(has(r.store, good));
        seen = has(r.store, lost);
        accepted += seen;
        check(survive != 0 || !seen); /* nothing reached the disk: the data is only in the page cache */
        sim = cut(sim, r.store, VFS_SIM_ALL_LOST, VFS_SIM_DIRS_LOST);
        r.store = opened(sim);
        require(r.store != NULL);
        check(has(r.store, good) && has(r.store, lost) == seen);
        ls_free(r.store);
        vfs_sim_free(sim);
    }
    check(accepted > 10); /* or the test proves nothing */
}

/* ---- files ---- */

/* From any call on everything fails for a while, also the removal of a half-made file. */
static void a_failure_while_a_spare_is_made_leaves_no_obstacle(void) {
    int survived = 0;

    for (uint64_t nth = 1; nth < 30; nth++) {
        vfs_sim *sim = fresh();
        vfs_sim_plan plan = {.nth = nth, .forever = 1, .error = EIO};
        uint32_t q = 1;
        uint64_t id;

        vfs_sim_fail(sim, &plan); /* the first operation makes the spares that an open leaves to later */
        (void)ls_publish(r.store, &q, 1, NULL, 0, NULL, 0, NULL, 0, &id);
        vfs_sim_fail(sim, NULL);
        if (!ls_poisoned(r.store)) {
            survived++;
            for (int i = 0; i < 100; i++)
                check(put(r.store, 1, 3000, 0) != 0);
        }
        ls_free(r.store);
        vfs_sim_free(sim);
    }
    check(survived > 10);
}

/* Ids must stay within reach of what is durable, or an open could give them out again. */
static void renames_that_fail_leave_no_gap_in_the_lsn_space(void) {
    vfs_sim *sim = fresh();
    vfs_sim_plan plan = {.kind = VFS_SIM_RENAME, .nth = 1, .forever = 1, .error = EIO};
    uint64_t id, before = put(r.store, 1, 3000, LS_WAIT);

    check(take(r.store, before, 1, 0) == LS_OK);
    vfs_sim_fail(sim, &plan);
    for (int round = 0; round < 4; round++) {
        uint64_t ids[200];

        for (int i = 0; i < 200; i++) {
            id = ids[i] = put(r.store, 1, 3000, i % 5 ? 0 : LS_WAIT);
            check(id - before <= (uint64_t)2 * SEGMENT);
            check(ls_next_lsn(r.store) - ls_durable_lsn(r.store) <= (uint64_t)2 * SEGMENT);
            before = id;
        }
        for (int i = 0; i < 200; i++)
            check(take(r.store, ids[i], 1, 0) == LS_OK);
        check(move_base(r.store) == LS_OK);
    }
    check(vfs_sim_fired(sim) > 3 && files(sim) <= 8);
    ls_free(r.store);
    vfs_sim_free(sim);
}

/* ---- when the base may advance ---- */

/* A dequeue in a later buffer must not move the base that an earlier batch names. */
static void a_dequeue_moves_the_base_only_when_it_is_durable(void) {
    vfs_sim *sim = fresh();
    uint64_t first = put(r.store, 1, 3000, LS_WAIT), others[60], id = 0;
    ls_stats stats;

    for (int i = 0; i < 60; i++)
        others[i] = put(r.store, 2, 3000, 0);
    for (int i = 0; i < 60; i++)
        check(take(r.store, others[i], 2, 0) == LS_OK);
    check(ls_force(r.store, 0) == LS_OK);
    for (int i = 0; i < 3; i++) /* one buffer and a half */
        id = i == 2 ? put(r.store, 3, 3500, 0), id : put(r.store, 3, 3500, 0);
    check(take(r.store, first, 1, 0) == LS_OK);
    check(ls_force(r.store, id) == LS_OK); /* the first buffer is written, the one with the dequeue is not */
    ls_stats_get(r.store, &stats);
    check(ls_next_lsn(r.store) > ls_durable_lsn(r.store));
    check(ls_base_lsn(r.store) <= first);
    (void)put(r.store, 3, 10, 0); /* a call that needs room recycles all it can */
    sim = cut(sim, r.store, VFS_SIM_ALL_LOST, VFS_SIM_DIRS_LOST);
    r.store = opened(sim);
    check(r.store != NULL && has(r.store, first));
    ls_free(r.store);
    vfs_sim_free(sim);
}

static void a_drained_log_gives_its_space_back(void) {
    vfs_sim *sim = fresh();
    uint64_t ids[300];
    ls_stats stats;

    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 300; i++)
            ids[i] = put(r.store, 1, 2000, 0);
        for (int i = 0; i < 300; i++)
            check(take(r.store, ids[299 - i], 1, 0) == LS_OK);
    }
    check(move_base(r.store) == LS_OK);
    ls_stats_get(r.store, &stats);
    check(stats.live_bytes == 0 && stats.segments == 1 && files(sim) <= 6);
    ls_free(r.store);
    vfs_sim_free(sim);
}

/* ---- deleted queues ---- */

static void a_queue_deleted_before_the_last_dequeue_is_no_contradiction(void) {
    static const uint32_t both[] = {1, 2};
    vfs_sim *sim = fresh();
    uint64_t direct = 0, by_commit = 0, lsn;
    ls_tx *tx;

    check(ls_publish(r.store, both, 2, NULL, 0, NULL, 0, NULL, 0, &direct) == LS_OK);
    check(ls_publish(r.store, both, 2, NULL, 0, NULL, 0, NULL, 0, &by_commit) == LS_OK);
    check(ls_queue_delete(r.store, 2, 0) == LS_OK);
    check(take(r.store, direct, 1, 0) == LS_OK); /* its last place: the record carries the delete */
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    check(ls_dequeue(r.store, by_commit, 1, tx, 0, 0, 0, &lsn) == LS_OK);
    check(ls_commit(tx, LS_WAIT) == LS_OK); /* replay can derive its death, and a later record notes it */
    ls_tx_free(tx);
    r.catalog &= ~(1u << 2);
    sim = cut(sim, r.store, VFS_SIM_ALL_LOST, VFS_SIM_DIRS_LOST);
    r.store = opened(sim);
    check(r.store != NULL && !has(r.store, direct) && !has(r.store, by_commit));
    ls_free(r.store);
    vfs_sim_free(sim);
}

/* The catalog has committed the deletion, but the log has not, and a prepared branch has an enqueue on the queue. */
static void a_deleted_queue_with_only_prepared_work_is_deleted_in_the_log(void) {
    vfs_sim *sim = fresh();
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 1};
    uint32_t q = 2;
    uint64_t id, doubt = 0;
    size_t n;
    ls_tx *tx;

    check(ls_begin(r.store, &xid, &tx) == LS_OK);
    check(ls_publish(r.store, &q, 1, NULL, 0, NULL, 0, tx, 0, &id) == LS_OK);
    check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    r.catalog &= ~(1u << 2);
    for (int i = 0; i < 2; i++) {
        sim = cut(sim, r.store, VFS_SIM_ALL_LOST, VFS_SIM_DIRS_LOST);
        r.store = opened(sim);
        require(r.store != NULL);
        check(ls_in_doubt(r.store, &doubt, 1, &n) == LS_OK && n == (i == 0 ? 1 : 0));
        if (i == 0) {
            check(ls_in_doubt_take(r.store, doubt, &tx) == LS_OK && ls_commit(tx, LS_WAIT) == LS_OK);
            ls_tx_free(tx);
        }
        check(!has(r.store, id) || i == 0);
    }
    ls_free(r.store);
    vfs_sim_free(sim);
}

int main(void) {
    static void (*const tests[])(void) = {
        the_name_of_the_store_directory_is_durable,
        meta_left_in_the_page_cache_by_a_failed_sync_is_written_again,
        meta_is_never_written_again_into_a_file_in_which_a_write_failed,
        every_open_is_an_epoch_beyond_every_id_that_could_have_been_given_out,
        a_crash_loop_costs_no_space,
        a_torn_first_batch_of_an_epoch_is_a_torn_tail,
        a_failed_sync_poisons_the_store_for_good,
        a_failed_early_write_is_signalled,
        batches_that_an_open_accepted_survive_a_power_cut,
        a_failure_while_a_spare_is_made_leaves_no_obstacle,
        renames_that_fail_leave_no_gap_in_the_lsn_space,
        a_dequeue_moves_the_base_only_when_it_is_durable,
        a_drained_log_gives_its_space_back,
        a_queue_deleted_before_the_last_dequeue_is_no_contradiction,
        a_deleted_queue_with_only_prepared_work_is_deleted_in_the_log,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
