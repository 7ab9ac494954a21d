/*
 * Power cuts at every event of generated workloads. What is promised: an acknowledged change is there, an unacknowledged
 * one wholly or not at all, in order; a crash never reads as corruption; recovery can be cut in turn; ids never return.
 *
 * LOGSTORE_CRASH=n makes n times as many workloads, the argument, if any,
 * is the one seed to run.
 */
#include "store_crash.h"

static bool workload_survives(uint64_t seed, size_t operations) {
    static struct run r;
    vfs_sim *sim = vfs_sim_new();
    bool right;

    memset(&r, 0, sizeof r);
    r.gentle = true;
    r.lazy = seed % 4 == 0;
    vfs_sim_seed(sim, seed);
    run_start(&r, sim, seed);
    run_some(&r, operations);
    run_end(&r);
    right = every_cut_is_survived(&r, seed);
    vfs_sim_free(sim);
    return right;
}

/* What came after the cut never happened: its ids may well be given out now. */
static void forget_after(struct run *r, size_t count) {
    size_t kept = 0;

    r->op_count = count;
    for (size_t i = 0; i < r->told_count; i++) {
        for (size_t k = 0; k < count; k++) {
            if (r->ops[k].id == r->told[i].id) {
                r->told[kept++] = r->told[i];
                break;
            }
        }
    }
    r->told_count = kept;
}

/* Life after life on one disk, each cut anywhere: what is left of one generation must not confuse a later one. */
static bool generations_survive(uint64_t seed, int generations) {
    static struct run r;
    static struct state s;
    vfs_sim *sim = vfs_sim_new();
    struct bounds begin = {0};
    bool right = true;

    memset(&r, 0, sizeof r);
    r.lazy = seed % 2 == 0;
    if (seed % 3 == 0) { /* an open costs a segment of a log that may not grow */
        ls_options_default(&r.options);
        r.options = (ls_options){.segment_size = SEGMENT,
                                 .max_log_bytes = (seed % 4 + 7) * SEGMENT,
                                 .create = 1,
                                 .initial_segments = 2,
                                 .max_write_buffers = 3};
    }
    run_start(&r, sim, seed);
    for (int i = 0; right && i < generations; i++) {
        struct bounds b = begin;
        uint64_t id_max;
        const vfs_sim_event *events;
        vfs_sim_loss loss = {.mode = i % 5 == 0 ? VFS_SIM_ALL_KEPT : VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM};
        size_t k, found = 0, next = 0;
        vfs_sim *disk;

        run_some(&r, 45);
        run_end(&r);
        k = (size_t)below(&r, vfs_sim_journal(sim, &events) + 1);
        loss.seed = chance(&r.chance);
        b = bounds_at(&r, k, b, 0);
        id_max = id_max_of(&r, b.begun < r.op_count ? b.begun : r.op_count);
        disk = vfs_sim_crash_at(sim, k, &loss);
        vfs_sim_free(sim);
        r.sim = sim = disk;
        r.v = vfs_sim_table(disk);
        r.catalog = b.catalog != 0 ? b.catalog : r.catalog;
        right = vfs_sim_record(disk, 1) == 0 && open_store(&r, r.v, r.catalog, QUEUES + 1, &r.store) == LS_OK;
        right = right ? recognise(&r, r.store, b, &s, &found) : complain("a later life cannot be opened");
        right = right && (contents_are(&r, r.store, &s) || complain("a content of an earlier life"));
        states++;
        if (!right)
            printf("seed %llu generation %d event %zu\n", (unsigned long long)seed, i, k);
        forget_after(&r, found);
        r.ops[r.op_count++] = (struct op){.kind = REOPEN};
        r.durable = r.op_count;
        r.staged_count = 0;
        r.now = s;
        for (int t = 0; right && t < s.tx_count && t < TXS; t++) {
            r.tx_ids[t] = s.txs[t].id;
            r.distributed[t] = r.ended[t] = true;
            right = ls_in_doubt_take(r.store, s.txs[t].id, &r.handles[t]) == LS_OK || complain("in doubt");
        }
        if (!right)
            break;
        next = r.op_count;
        begin = (struct bounds){next, next, r.catalog};
        mark(&r, MARK_BEGUN, next + 1);
        publish(&r, PUBLISH, 2, -1, true, 10);
        if (r.op_count > next && r.ops[next].id <= id_max)
            right = complain("an id was given out twice");
    }
    run_end(&r);
    vfs_sim_free(sim);
    return right;
}

int main(int argc, char **argv) {
    const char *times = getenv("LOGSTORE_CRASH");
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t last = argc > 1 ? first : 8 * (times != NULL ? strtoull(times, NULL, 10) : 1);
    int passed = 0, failed = 0;

    for (uint64_t seed = first; seed <= last; seed++) {
        if (workload_survives(seed, seed % 4 == 0 ? 400 : 60))
            passed++;
        else
            failed++;
    }
    for (uint64_t seed = first; seed <= last; seed++) {
        if (generations_survive(seed, 25))
            passed++;
        else
            failed++;
    }
    printf("%llu crash states, %llu recoveries cut\n", (unsigned long long)states, (unsigned long long)recoveries_cut);
    return verdict(passed, failed);
}
