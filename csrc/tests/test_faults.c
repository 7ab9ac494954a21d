/*
 * The Nth call of the file system fails, for every N, once and for ever, in several ways. What is promised: the store
 * is poisoned or unchanged, never wrong; and whether the process then ends, or the machine loses power, opening finds
 * what was promised.
 *
 * LOGSTORE_FAULTS=n sweeps n workloads; the arguments, if any, are one seed, one plan, one N.
 */
#include "store_workload.h"

static uint64_t sweeps, verdicts;

static const vfs_sim_plan plans[] = {
    {.error = EIO},
    {.error = EIO, .survive = 11},
    {.error = EIO, .forever = 1, .survive = 5},
    {.error = ENOSPC},
    {.error = ENOSPC, .forever = 1},
    {.error = EINTR},
    {.error = ENOMEM},
    {.shorten = VFS_SIM_HALF},
    {.shorten = VFS_SIM_ONE_BYTE},
    {.shorten = VFS_SIM_HALF, .forever = 1},
    {.kind = VFS_SIM_SYNC_DATA, .error = EIO, .survive = 3},
    {.kind = VFS_SIM_PWRITE, .error = ENOSPC, .forever = 1},
    {.kind = VFS_SIM_ALLOCATE, .error = EOPNOTSUPP, .forever = 1},
    {.kind = VFS_SIM_RENAME, .error = EIO, .forever = 1},
    {.kind = VFS_SIM_UNLINK, .error = EIO, .forever = 1},
    {.kind = VFS_SIM_SYNC_DIR, .error = EIO, .forever = 1},
};
enum { PLANS = sizeof plans / sizeof *plans, WITH_MOVES = 300 };

static ls_stats unhurt; /* of the last run without a fault */

/* As the next process finds it, and as the machine finds it after a power cut in several ways. */
static bool aftermath_is_right(struct run *r, uint64_t seed) {
    const vfs_sim_loss losses[] = {
        {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST},
        {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT},
        {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = seed},
    };
    struct bounds b = {r->durable, r->op_count, r->catalog};
    bool right = true;

    for (size_t i = 0; right && i <= sizeof losses / sizeof *losses; i++) {
        vfs_sim *disk = i == 0 ? vfs_sim_clone(r->sim) : vfs_sim_crash(r->sim, &losses[i - 1]);

        verdicts++;
        right = disk_is_right(r, disk, b, seed + i);
        if (!right)
            printf("... in the aftermath %zu\n", i);
        vfs_sim_free(disk);
    }
    return right;
}

/* False: wrong. *fired says whether there was an Nth call at all. */
static bool fault_is_survived(uint64_t seed, size_t plan, uint64_t nth, size_t operations, bool *fired) {
    static struct run r;
    vfs_sim_plan p = plans[plan];
    vfs_sim *sim = vfs_sim_new();
    bool right;

    p.nth = nth;
    memset(&r, 0, sizeof r);
    r.lazy = operations > 100;
    vfs_sim_seed(sim, seed);
    vfs_sim_fail(sim, &p);
    run_start(&r, sim, seed);
    if (operations >= WITH_MOVES)
        run_with_moves(&r, operations);
    else
        run_some(&r, operations);
    if (r.store != NULL && p.nth == UINT64_MAX)
        ls_stats_get(r.store, &unhurt);
    run_end(&r);
    *fired = vfs_sim_fired(sim) > 0;
    right = vfs_sim_handles(sim) == 0 || complain("a handle was left open");
    vfs_sim_fail(sim, NULL);
    right = right && aftermath_is_right(&r, nth + seed);
    if (!right)
        printf("seed %llu plan %zu call %llu\n", (unsigned long long)seed, plan, (unsigned long long)nth);
    vfs_sim_free(sim);
    return right;
}

static bool sweep(uint64_t seed, size_t plan, size_t operations, uint64_t step) {
    bool fired = true, right = true;

    for (uint64_t nth = 1 + (seed + plan) % step; fired && right; nth += step) {
        right = fault_is_survived(seed, plan, nth, operations, &fired);
        sweeps++;
    }
    return right;
}

int main(int argc, char **argv) {
    const char *times = getenv("LOGSTORE_FAULTS");
    uint64_t seeds = times != NULL ? strtoull(times, NULL, 10) : 1;
    int passed = 0, failed = 0;
    bool fired;

    if (argc > 3)
        return !fault_is_survived(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10),
                                  argc > 4 ? strtoull(argv[4], NULL, 10) : 40, &fired);
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        for (size_t plan = 0; plan < PLANS; plan++) {
            if (sweep(seed, plan, seed % 4 == 0 ? 150 : 40, 1))
                passed++;
            else
                failed++;
        }
    }
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        bool right = fault_is_survived(seed, 0, UINT64_MAX, WITH_MOVES, &fired) && unhurt.segments_relocated > 3;
        if (!right)
            printf("%llu segments were moved\n", (unsigned long long)unhurt.segments_relocated);

        for (size_t plan = 0; right && plan < PLANS; plan++)
            right = sweep(seed, plan, WITH_MOVES, seeds > 1 ? 5 : 37);
        if (right)
            passed++;
        else
            failed++;
    }
    printf("%llu calls failed, %llu aftermaths\n", (unsigned long long)sweeps, (unsigned long long)verdicts);
    return verdict(passed, failed);
}
