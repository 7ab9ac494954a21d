/*
 * A fault in a checkpoint costs only time: power cuts at every event of writing it, failed calls, lack of memory, a full
 * disk, and files that are damaged, of another store, older, newer or false.
 */
#include "log/parts.h"
#include "format/bytes.h"
#include "format/xxh64.h"
#include "tests/kit/checkpoint_pair.h"
#include "tests/kit/store_crash.h"

static uint8_t file[1 << 20];
static size_t file_bytes;

static void take_file(void) {
    int64_t got = vfs_sim_get(sim, VFS_SIM_SEEN, "/s", "CHECKPOINT", file, sizeof file);

    check(got > 0 && got < (int64_t)sizeof file);
    file_bytes = (size_t)got;
}

/* Opens the disk with this file as its checkpoint and returns the checkpoint's state. The store must be the same. */
static int seen_with(const uint8_t *bytes, size_t n) {
    vfs_sim *disk = vfs_sim_clone(sim);
    ls_recovery report = {.checkpoint_state = -1};
    ls_store *store;

    check(vfs_sim_put(disk, "/s", "CHECKPOINT", bytes, n) == 0);
    check(same_both_ways(disk, r.catalog) >= 0);
    store = opened(vfs_sim_table(disk), "/s", 0);
    if (store != NULL)
        ls_recovery_report(store, &report);
    ls_free(store);
    vfs_sim_free(disk);
    return report.checkpoint_state;
}

static void reseal_header(uint8_t *bytes) { put64(bytes + 4088, xxh64(bytes, 4088, 0)); }

static int seen_with_header(size_t at, uint64_t value) {
    static uint8_t copy[sizeof file];

    memcpy(copy, file, file_bytes);
    put64(copy + at, value);
    reseal_header(copy);
    return seen_with(copy, file_bytes);
}

/* With the transactions that the run has left open. */
static void over(void) {
    run_end(&r);
    done();
}

/* ---- power cuts ---- */

static void a_power_cut_while_a_checkpoint_is_written_loses_nothing(void) {
    int used = 0, cuts = 0;

    for (uint64_t seed = 1; seed <= 4; seed++) {
        const vfs_sim_event *events;
        struct bounds b = {0};
        size_t n, from = 0;

        sim = vfs_sim_new();
        memset(&r, 0, sizeof r);

        r.sim = sim;
        run_watch(&r);
        run_start(&r, sim, seed);
        run_some(&r, 60);
        (void)ls_checkpoint(r.store, NULL);
        run_with_moves(&r, 60);
        check(ls_checkpoint(r.store, NULL) == LS_OK);
        run_some(&r, 30);
        run_end(&r);
        n = vfs_sim_journal(sim, &events);
        for (size_t k = 0; k <= n; k++) {
            bool of_it = k > 0 && events[k - 1].name != NULL && strncmp(events[k - 1].name, "CHECKPOINT", 10) == 0;

            b = bounds_at(&r, k, b, from);
            from = k;
            if ((k < n && events[k].kind == VFS_SIM_MARK) || (!of_it && k % (CUTS_EVERY * 11) != seed))
                continue;
            for (int mode = 0; mode < 4; mode++) {
                vfs_sim_loss loss = {.mode = mode == 0   ? VFS_SIM_ALL_LOST
                                             : mode == 1 ? VFS_SIM_ALL_KEPT
                                                         : VFS_SIM_RANDOM,
                                     .dir_mode = mode == 0   ? VFS_SIM_DIRS_LOST
                                                 : mode == 1 ? VFS_SIM_DIRS_KEPT
                                                             : VFS_SIM_DIRS_RANDOM_SUBSET,
                                     .seed = k * 31 + seed + (uint64_t)mode};
                vfs_sim *disk = vfs_sim_crash_at(sim, k, &loss);

                cuts++;
                check(disk_is_right(&r, disk, b, k) || complain("a disk after a power cut"));
                if (b.catalog != 0 && vfs_sim_get(disk, VFS_SIM_SEEN, "/s", "META", file, 1) > 0)
                    used += same_both_ways(disk, b.catalog);
                vfs_sim_free(disk);
            }
        }
        vfs_sim_free(sim);
        (void)cuts;
        if (failures_here > 0)
            return;
    }
    check(used > 20 / ONE_IN || complain("hardly any checkpoint was used"));
}

/* ---- calls that fail ---- */

static void a_failed_call_costs_only_the_checkpoint(void) {
    for (int forever = 0; forever < 2; forever++) {
        ls_stats before, after;
        bool fired = true;

        fresh();
        run_some(&r, 150);
        check(ls_checkpoint(r.store, NULL) == LS_OK);
        run_some(&r, 50);
        check(ls_force(r.store, 0) == LS_OK);
        for (uint64_t nth = 1; fired; nth++) {
            static const int errors[] = {EIO, ENOSPC, EDQUOT, ENOMEM};
            vfs_sim_plan plan = {.nth = nth, .forever = forever, .error = errors[nth % 4]};
            int rc;

            ls_stats_get(r.store, &before);
            vfs_sim_fail(sim, &plan);
            rc = ls_checkpoint(r.store, NULL);
            fired = vfs_sim_fired(sim) > 0;
            vfs_sim_fail(sim, NULL);
            ls_stats_get(r.store, &after);
            check(!ls_poisoned(r.store));
            check(rc == LS_OK || (fired && (rc == LS_IO || rc == LS_FULL)));
            check(after.checkpoints - before.checkpoints == (rc == LS_OK) &&
                  after.checkpoint_failures - before.checkpoint_failures == (rc != LS_OK));
            check(same_both_ways(sim, r.catalog) == 1);
        }
        check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", "CHECKPOINT.new", file, 1) < 0);
        over();
    }
}

/* Where it cannot be read the whole log is replayed. */
static void an_unreadable_checkpoint_is_ignored(void) {
    int unreadable = 0;

    fresh();
    run_some(&r, 150);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    check(ls_force(r.store, 0) == LS_OK);
    for (uint64_t nth = 1; nth < 200; nth++) {
        vfs_sim *disk = vfs_sim_clone(sim);
        vfs_sim_plan plan = {.kind = VFS_SIM_PREAD, .nth = nth, .error = EIO};
        ls_options o;
        ls_store *store = NULL;
        ls_recovery report;
        int rc;

        ls_options_default(&o);
        o.background = 0;
        vfs_sim_fail(disk, &plan);
        rc = ls_open(vfs_sim_table(disk), "/s", &o, &store);
        check(rc == LS_OK || rc == LS_IO);
        if (rc == LS_OK) {
            ls_recovery_report(store, &report);
            unreadable += report.checkpoint_state == LS_CHECKPOINT_UNREADABLE;
            check(report.checkpoint_state == LS_CHECKPOINT_UNREADABLE || report.checkpoint_used);
        }
        ls_free(store);
        vfs_sim_free(disk);
    }
    check(unreadable == 2 || complain("the header's read, and the one of the rows"));
    over();
}

/* ---- files that are not what they should be ---- */

static void a_checkpoint_with_a_flipped_bit_is_ignored(void) {
    fresh();
    run_some(&r, 200);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    run_some(&r, 30);
    take_file();
    for (size_t at = 0; at < file_bytes; at += at < 200 || at > 4080 ? 1 + (at > 4400 ? 97 : 0) : 61 * ONE_IN) {
        int state;

        file[at] ^= (uint8_t)(1 << at % 8);
        state = seen_with(file, file_bytes);
        check(state ==
                  (at >= 8 && at < 12 && state == LS_CHECKPOINT_NEWER ? LS_CHECKPOINT_NEWER : LS_CHECKPOINT_DAMAGED) ||
              complain("a flipped bit"));
        file[at] ^= (uint8_t)(1 << at % 8);
    }
    check(seen_with(file, file_bytes) == LS_CHECKPOINT_USED);
    for (size_t n = 0; n < file_bytes; n += n < 20 ? 1 : 311)
        check(seen_with(file, n) == LS_CHECKPOINT_DAMAGED);
    memset(file + file_bytes, 0, 8);
    check(seen_with(file, file_bytes + 8) == LS_CHECKPOINT_DAMAGED);
    over();
}

static void a_checkpoint_is_used_only_if_its_batch_is_in_the_log_at_or_above_the_base(void) {
    struct checkpoint_header h;

    fresh();
    run_some(&r, 200);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    run_some(&r, 30);
    take_file();
    check(format_get_checkpoint(file, file_bytes, &h) == FORMAT_OK);
    check(seen_with_header(40, h.lsn) == LS_CHECKPOINT_USED);
    check(seen_with_header(16, 1) == LS_CHECKPOINT_FOREIGN);
    check(seen_with_header(32, h.epoch + 1) == LS_CHECKPOINT_NOT_IN_LOG);
    check(seen_with_header(40, h.lsn + 8) == LS_CHECKPOINT_NOT_IN_LOG);
    check(seen_with_header(48, h.batch_lsn + 8) == LS_CHECKPOINT_NOT_IN_LOG || h.lsn - h.batch_lsn < 112);
    check(seen_with_header(56, h.batch_checksum ^ 1) == LS_CHECKPOINT_NOT_IN_LOG);
    check(seen_with_header(40, UINT64_C(1) << 60) == LS_CHECKPOINT_BEYOND);
    check(seen_with_header(72, h.file_bytes + 65536) == LS_CHECKPOINT_DAMAGED);
    check(seen_with_header(80, h.salt + 1) == LS_CHECKPOINT_DAMAGED);
    for (size_t at = 96; at <= 128; at += 8) {
        check(seen_with_header(at, get64(file + at) + 1) == LS_CHECKPOINT_DAMAGED);
        check(seen_with_header(at, UINT64_C(1) << 62) == LS_CHECKPOINT_DAMAGED);
    }
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    churn(400); /* the base passes it */
    check(ls_base_lsn(r.store) > h.lsn || complain("the base did not move"));
    check(seen_with(file, file_bytes) == LS_CHECKPOINT_BELOW);
    over();
}

/* Its checksums are right, but its contents are false. */
static void after_a_checkpoint_that_the_log_contradicts_the_whole_log_is_replayed(void) {
    struct checkpoint_header h;
    uint64_t id;

    fresh();
    id = put(1, "one", NULL);
    put(1, "two", NULL);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    check(take(id, 1, NULL) == LS_OK);
    take_file();
    check(format_get_checkpoint(file, file_bytes, &h) == FORMAT_OK && h.messages == 2);
    h.messages = h.places = 0;
    h.file_bytes = CHECKPOINT_HEADER_BYTES;
    format_put_checkpoint(file, &h);
    check(vfs_sim_put(sim, "/s", "CHECKPOINT", file, CHECKPOINT_HEADER_BYTES) == 0);
    {
        vfs_sim *disk = vfs_sim_clone(sim);
        ls_store *with = opened(vfs_sim_table(disk), "/s", 0);
        ls_recovery report;

        ls_recovery_report(with, &report);
        check(report.checkpoint_state == LS_CHECKPOINT_CONTRADICTS && !report.checkpoint_used);
        check(report.messages == 1 && report.records > 0);
        ls_free(with);
        vfs_sim_free(disk);
    }
    over();
}

static size_t spares_of(vfs_sim *disk) {
    ls_store *store = NULL;
    ls_recovery report;
    uint32_t queue = 2;
    uint64_t id;

    if (open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &store) != LS_OK) {
        check(complain("open"));
        return 0;
    }
    ls_recovery_report(store, &report);
    check(report.checkpoint_state == LS_CHECKPOINT_USED);
    check(ls_publish(store, &queue, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK || complain("publish"));
    size_t spares = store->log->space.spare_count;
    ls_free(store);
    return spares;
}

/* A message claims to grow by 4 GiB when moved, at an LSN that no relocation reaches. */
static void a_checkpoint_with_false_lengths_asks_for_no_more_spares_than_the_log_can_need(void) {
    enum { BLOCK_ROWS = CHECKPOINT_HEADER_BYTES + CHECKPOINT_BLOCK_HEADER_BYTES };
    static const uint32_t fields[] = {64, 68, 72}; /* growth, work_state, work_rows */
    const uint32_t much = 0xfffffff8;
    struct checkpoint_header h;
    struct message_row row;

    fresh();
    check(add(put(1, "two places", NULL), 2, NULL) == LS_OK);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    take_file();
    check(format_get_checkpoint(file, file_bytes, &h) == FORMAT_OK && file[BLOCK_ROWS] == ROW_CHAIN);
    check(format_get_message_row(file + BLOCK_ROWS, h.lsn, &row) == FORMAT_OK);
    row.start_lsn += 8;
    memcpy(file + BLOCK_ROWS + 24, &row.start_lsn, sizeof row.start_lsn);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        static uint8_t lie[sizeof file];
        vfs_sim *disk = vfs_sim_clone(sim);
        uint32_t used = (uint32_t)(file_bytes - CHECKPOINT_HEADER_BYTES);

        vfs_sim_capacity(disk, vfs_sim_used(disk) + (uint64_t)400 * SEGMENT);
        memcpy(lie, file, file_bytes);
        memcpy(lie + BLOCK_ROWS + fields[i], &much, sizeof much);
        format_put_checkpoint_block(lie + CHECKPOINT_HEADER_BYTES, &h, 0, used, used);
        check(vfs_sim_put(disk, "/s", "CHECKPOINT", lie, file_bytes) == 0);
        check(spares_of(disk) < 50 || complain("spares"));
        vfs_sim_free(disk);
    }
    over();
}

/* ---- a full disk ---- */

static void a_checkpoint_that_a_full_disk_refuses_frees_its_blocks(void) {
    uint64_t id, lsn, first = 0;
    ls_stats stats;
    int rc = LS_OK;

    fresh();
    first = put(1, "first", NULL);
    for (int i = 0; i < 3000; i++)
        put_bytes(1, 3, 8, 0);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    vfs_sim_capacity(sim, vfs_sim_used(sim));
    for (int i = 0; i < 4000 && rc == LS_OK; i++) {
        uint32_t queue = 2;
        static uint8_t content[3000];

        rc = ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, 0, &id);
    }
    check(rc == LS_FULL);
    check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", "CHECKPOINT", file, 1) < 0 || complain("it still takes blocks"));
    ls_stats_get(r.store, &stats);
    check(stats.checkpoint_lsn == 0 && stats.full);
    check(r.store->checkpoints.retry_lsn > r.store->log->front.append_lsn ||
          complain("it would be taken again at once"));
    (void)ls_checkpoint(r.store, NULL); /* may find no room, and leaves none behind */
    check(!ls_poisoned(r.store));
    check(ls_dequeue(r.store, first, 1, NULL, 1, 0, LS_WAIT, &lsn) == LS_OK);
    check(same_both_ways(sim, r.catalog) >= 0);
    again();
    over();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_power_cut_while_a_checkpoint_is_written_loses_nothing,
        a_failed_call_costs_only_the_checkpoint,
        an_unreadable_checkpoint_is_ignored,
        a_checkpoint_with_a_flipped_bit_is_ignored,
        a_checkpoint_is_used_only_if_its_batch_is_in_the_log_at_or_above_the_base,
        after_a_checkpoint_that_the_log_contradicts_the_whole_log_is_replayed,
        a_checkpoint_with_false_lengths_asks_for_no_more_spares_than_the_log_can_need,
        a_checkpoint_that_a_full_disk_refuses_frees_its_blocks,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
