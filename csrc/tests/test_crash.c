/*
 * Power cuts at every event of generated workloads. What is promised: an acknowledged change is there, an unacknowledged
 * one wholly or not at all, in order; a crash never reads as corruption; recovery can be cut in turn; ids never return.
 *
 * LOGSTORE_CRASH=n makes n times as many workloads, LOGSTORE_CRASH_FULL=1 limits the log of some; the argument, if any,
 * is the one seed to run.
 */
#include "store_workload.h"

static uint64_t states, recoveries_cut;

static bool crash_is_survived(struct run *r, size_t k, struct bounds b, const vfs_sim_loss *loss, uint64_t seed) {
    vfs_sim *disk = vfs_sim_crash_at(r->sim, k, loss);
    bool right = disk_is_right(r, disk, b, k);

    states++;
    vfs_sim_free(disk);
    if (!right)
        printf("seed %llu event %zu mode %d/%d n %llu/%llu seed %llu\n", (unsigned long long)seed, k, loss->mode,
               loss->dir_mode, (unsigned long long)loss->n, (unsigned long long)loss->dir_n,
               (unsigned long long)loss->seed);
    return right;
}

/* The losses to try after event k: the two extremes always, the rest by turns. */
static bool event_is_survived(struct run *r, size_t k, struct bounds b, uint64_t seed) {
    const vfs_sim_loss losses[] = {
        {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST},
        {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT},
        {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = k * 1009 + seed},
        {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM_SUBSET, .seed = k * 7919 + seed},
        {.mode = VFS_SIM_PREFIX, .dir_mode = VFS_SIM_DIRS_KEPT, .n = k % 17},
        {.mode = VFS_SIM_LAST_GARBAGE, .dir_mode = VFS_SIM_DIRS_KEPT, .n = k % 13},
        {.mode = VFS_SIM_ONE_LOST, .dir_mode = VFS_SIM_DIRS_KEPT, .n = k % 11},
        {.mode = VFS_SIM_ONLY_ONE, .dir_mode = VFS_SIM_DIRS_LOST, .n = k % 7},
        {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_KEPT},
        {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_LOST},
    };
    size_t n = sizeof losses / sizeof *losses;
    bool right = crash_is_survived(r, k, b, &losses[0], seed) && crash_is_survived(r, k, b, &losses[1], seed);

    return right && crash_is_survived(r, k, b, &losses[2 + k % (n - 2)], seed);
}

/* The recovery of one crashed disk, cut at each of its own events. */
static bool recovery_is_cut(struct run *r, size_t k, struct bounds b, uint64_t seed) {
    vfs_sim_loss loss = {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = k + seed};
    vfs_sim *disk = vfs_sim_crash_at(r->sim, k, &loss);
    const vfs_sim_event *events;
    ls_store *store = NULL;
    bool right =
        vfs_sim_record(disk, 1) == 0 && open_store(r, vfs_sim_table(disk), b.catalog, QUEUES + 1, &store) == LS_OK;
    size_t n = vfs_sim_journal(disk, &events);

    ls_free(store);
    for (size_t i = 0; right && i <= n; i++) {
        vfs_sim_loss second = {.mode = i % 3 == 0 ? VFS_SIM_ALL_LOST : VFS_SIM_RANDOM,
                               .dir_mode = i % 2 ? VFS_SIM_DIRS_RANDOM : VFS_SIM_DIRS_LOST,
                               .seed = i + k};
        vfs_sim *cut = vfs_sim_crash_at(disk, i, &second);

        recoveries_cut++;
        right = disk_is_right(r, cut, b, i);
        vfs_sim_free(cut);
        if (!right)
            printf("seed %llu event %zu, then event %zu of the recovery\n", (unsigned long long)seed, k, i);
    }
    vfs_sim_free(disk);
    return right;
}

static bool workload_survives(uint64_t seed, size_t operations) {
    static struct run r;
    vfs_sim *sim = vfs_sim_new();
    struct bounds b = {0};
    const vfs_sim_event *events;
    size_t n, from = 0;
    bool right = true;

    memset(&r, 0, sizeof r);
    r.gentle = true;
    r.lazy = seed % 4 == 0;
    vfs_sim_seed(sim, seed);
    run_start(&r, sim, seed);
    run_some(&r, operations);
    run_end(&r);
    n = vfs_sim_journal(sim, &events);
    if (getenv("LOGSTORE_VERBOSE") != NULL)
        printf("seed %llu: %zu operations, %zu events, lost %d\n", (unsigned long long)seed, r.op_count, n, r.lost);
    for (size_t k = 0; right && k <= n; k++) {
        b = bounds_at(&r, k, b, from);
        from = k;
        if (k < n && events[k].kind == VFS_SIM_MARK)
            continue;
        right =
            !r.lost && event_is_survived(&r, k, b, seed) && (k % 97 != seed % 97 || recovery_is_cut(&r, k, b, seed));
    }
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
    if (seed % 3 == 0 && getenv("LOGSTORE_CRASH_FULL") != NULL) { /* needs relocation: an open costs a segment */
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
