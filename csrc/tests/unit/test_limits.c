/*
 * Unusual amounts: more segments than open files, more items than a report lists, a record larger than the stack, a disk
 * without room. Each works as usual amounts do.
 */
#include "format/format.h"
#include "log/parts.h"
#include "tests/kit/one_store.h"

/* The content is complete, wherever it is. */
static bool reads_back(uint64_t id, uint8_t filling, uint32_t bytes) {
    static uint8_t into[1 << 17];
    size_t n;
    bool same = ls_load_content(r.store, id, 0, into, sizeof into, &n) == LS_OK && n == bytes;

    for (uint32_t i = 0; same && i < bytes; i++)
        same = into[i] == filling;
    return same;
}

static void more_segments_than_files_may_be_open_are_read_all_the_same(void) {
    enum { ALL = 15 * (OPEN_FILES_MAX + 40) };
    static uint64_t ids[ALL];
    ls_stats stats;

    fresh();
    for (int i = 0; i < ALL; i++)
        ids[i] = put_bytes(1, (uint8_t)i, 3900, i % 8 == 0 ? LS_WAIT : 0);
    ls_stats_get(r.store, &stats);
    check(stats.segments > OPEN_FILES_MAX);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < ALL; i += 7)
            check(reads_back(ids[i], (uint8_t)i, 3900));
        check(vfs_sim_handles(sim) < OPEN_FILES_MAX + 20);
        again();
    }
    for (int i = 0; i < ALL; i++) /* the oldest first, so that files go whose handles were closed */
        check(take(ids[i], 1, NULL) == LS_OK);
    check(move_base(r.store) == LS_OK);
    ls_stats_get(r.store, &stats);
    check(stats.messages == 0 && stats.segments < 10);
    done();
}

static void a_record_of_any_size_is_read_from_buffer_and_file(void) {
    static const uint32_t sizes[] = {4000, 4050, 4096, 60000, 65000, 100000};
    ls_options o = {.segment_size = 1 << 20, .create = 1, .initial_segments = 1, .max_write_buffers = 2};
    uint64_t ids[6];

    fresh_with(&o);
    for (int i = 0; i < 6; i++) {
        ids[i] = put_bytes(1, (uint8_t)i, sizes[i], 0);
        check(reads_back(ids[i], (uint8_t)i, sizes[i]));
    }
    for (int pass = 0; pass < 2; pass++) {
        check(ls_force(r.store, 0) == LS_OK);
        for (int i = 0; i < 6; i++)
            check(reads_back(ids[i], (uint8_t)i, sizes[i]));
        again();
    }
    done();
}

static void a_recovery_report_lists_the_first_items_and_counts_all(void) {
    static ls_recovered items[2 * LS_RECOVERED_MAX];
    enum { STAGED = LS_RECOVERED_MAX + 20, OPEN = 30 };
    ls_recovery report;
    ls_tx *txs[OPEN];
    vfs_sim *after;
    const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
    uint64_t id;
    size_t n;

    fresh();
    for (int i = 0; i < STAGED; i++)
        check(ls_stage(r.store, NULL, 0, NULL, 0, 0, &id) == LS_OK);
    for (int i = 0; i < OPEN; i++) {
        ls_xid xid = {.format_id = i, .gtrid_bytes = 3, .data = "abc"};

        check(ls_begin(r.store, i % 2 ? &xid : NULL, &txs[i]) == LS_OK);
    }
    check(ls_force(r.store, 0) == LS_OK);
    after = vfs_sim_crash(sim, &loss);
    for (int i = 0; i < OPEN; i++)
        ls_tx_free(txs[i]);
    done();
    sim = after;
    r.v = vfs_sim_table(sim);
    require(open_again() == LS_OK);
    ls_recovery_report(r.store, &report);
    check(report.staged_dropped == STAGED && report.transactions_abandoned == OPEN);
    ls_recovery_items(r.store, NULL, 0, &n);
    check(n == LS_RECOVERED_MAX + OPEN);
    ls_recovery_items(r.store, items, sizeof items / sizeof *items, &n);
    for (size_t i = 1; i < n; i++)
        check(items[i - 1].kind < items[i].kind ||
              (items[i - 1].kind == items[i].kind && items[i - 1].id < items[i].id));
    check(items[0].kind == LS_RECOVERED_STAGED && items[n - 1].kind == LS_RECOVERED_TRANSACTION &&
          items[n - 1].distributed && items[n - 1].xid.gtrid_bytes == 3 &&
          memcmp(items[n - 1].xid.data, "abc", 3) == 0);
    ls_recovery_items(r.store, items, 1, &n);
    check(n == LS_RECOVERED_MAX + OPEN);
    again();
    ls_recovery_items(r.store, items, 1, &n); /* the report has no items, and says so */
    check(n == 0);
    done();
}

/* Every open needs a segment; on a full disk it reuses the one of the open that failed. */
static void a_full_disk_can_be_opened_again_and_again_by_a_machine_that_fails_each_time(void) {
    ls_options o = {.segment_size = SEGMENT,
                    .max_log_bytes = 8 * SEGMENT,
                    .create = 1,
                    .initial_segments = 2,
                    .max_write_buffers = 3};
    const vfs_sim_loss losses[] = {{.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST},
                                   {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT}};
    static uint64_t ids[4000];
    uint32_t q = 1;
    int n = 0, rc;

    fresh_with(&o);
    while (n < 4000 && (rc = ls_publish(r.store, &q, 1, NULL, 0, (const uint8_t *)"0123456789", 10, NULL, LS_WAIT,
                                        &ids[n])) == LS_OK)
        n++;
    check(rc == LS_FULL && n > 500);
    check(ls_publish(r.store, &q, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &ids[n]) == LS_FULL);
    for (int life = 0; life < 12; life++) {
        vfs_sim *after = vfs_sim_crash(sim, &losses[life % 2]);
        uint64_t places, locked;

        ls_free(r.store);
        vfs_sim_free(sim);
        sim = after;
        r.v = vfs_sim_table(sim);
        vfs_sim_capacity(sim, vfs_sim_used(sim)); /* and not one byte more */
        require(open_again() == LS_OK || complain("a full disk cannot be opened"));
        check(ls_queue_depth(r.store, 1, &places, &locked) == LS_OK && places == (uint64_t)n);
    }
    for (int i = 0; i < n; i++)
        check(take(ids[i], 1, NULL) == LS_OK || complain("a full store cannot be drained"));
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        more_segments_than_files_may_be_open_are_read_all_the_same,
        a_record_of_any_size_is_read_from_buffer_and_file,
        a_recovery_report_lists_the_first_items_and_counts_all,
        a_full_disk_can_be_opened_again_and_again_by_a_machine_that_fails_each_time,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
