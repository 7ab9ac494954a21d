/*
 * Cuts the power at every event of a recorded run, and checks every disk that such a cut may leave.
 */
#ifndef LOGSTORE_STORE_CRASH_H
#define LOGSTORE_STORE_CRASH_H

#include "tests/kit/store_workload.h"

/* Under a sanitizer only every n-th cut: the others differ in the disk's contents, not in the code that runs. */
#if defined(UNDER_TSAN)
enum { CUTS_EVERY = 100 };
#elif defined(UNDER_ASAN)
enum { CUTS_EVERY = 10 };
#else
enum { CUTS_EVERY = 1 };
#endif

static uint64_t states, recoveries_cut;

static inline bool crash_is_survived(struct run *r, size_t k, struct bounds b, const vfs_sim_loss *loss,
                                     uint64_t seed) {
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

/* Tries losses after event k: the two extremes always, the other kinds in turn. */
static inline bool event_is_survived(struct run *r, size_t k, struct bounds b, uint64_t seed) {
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

/* Recovers one crashed disk and cuts that recovery at each of its events. */
static inline bool recovery_is_cut(struct run *r, size_t k, struct bounds b, uint64_t seed) {
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

/* Call it after the run has ended. For every 97th disk the recovery is cut, too. */
static inline bool every_cut_is_survived(struct run *r, uint64_t seed) {
    struct bounds b = {0};
    const vfs_sim_event *events;
    size_t n = vfs_sim_journal(r->sim, &events), from = 0;
    bool right = !r->lost;

    if (getenv("LOGSTORE_VERBOSE") != NULL)
        printf("seed %llu: %zu operations, %zu events, lost %d\n", (unsigned long long)seed, r->op_count, n, r->lost);
    for (size_t k = 0; right && k <= n; k++) {
        b = bounds_at(r, k, b, from);
        from = k;
        if ((k < n && events[k].kind == VFS_SIM_MARK) || k % CUTS_EVERY != seed % CUTS_EVERY)
            continue;
        right = event_is_survived(r, k, b, seed) && (k % 97 != seed % 97 || recovery_is_cut(r, k, b, seed));
    }
    return right;
}

#endif
