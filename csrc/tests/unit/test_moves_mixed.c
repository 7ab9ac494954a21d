/*
 * Any operation between relocations: generated workloads among so many short-lived messages that the others are relocated
 * again and again, in a log of any size, with power cuts. No relocation fails, and no acknowledged operation is lost.
 *
 * LOGSTORE_CRASH=n runs n times as many workloads; the arguments, if any, are the first seed to run and the one after
 * the last.
 */
#include "tests/kit/store_workload.h"

static struct run r;
static uint64_t segments_moved;

static void start(vfs_sim *sim, uint64_t seed) {
    memset(&r, 0, sizeof r);
    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    r.options.max_write_buffers = 2 + (uint32_t)(seed % 9);
    r.options.background = 0;
    if (seed % 3 == 0)
        r.options.max_log_bytes = (6 + seed % 5) * SEGMENT;
    vfs_sim_seed(sim, seed);
    run_start(&r, sim, seed);
}

static bool power_cuts_are_survived(vfs_sim *sim, uint64_t seed) {
    struct bounds b = {r.durable, r.op_count, r.catalog};
    bool right = true;

    for (uint64_t k = 0; right && k < 3; k++) {
        vfs_sim_loss loss = {
            .mode = k > 0 ? VFS_SIM_RANDOM : VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = seed + k};
        vfs_sim *disk = vfs_sim_crash(sim, &loss);

        right = disk_is_right(&r, disk, b, seed + k);
        vfs_sim_free(disk);
    }
    return right;
}

static bool workload_is_survived(uint64_t seed) {
    vfs_sim *sim = vfs_sim_new();
    ls_stats stats = {.records = 0};
    bool right = true;

    (void)vfs_sim_record(sim, 0);
    start(sim, seed);
    for (int round = 0; right && round < 5; round++) {
        run_with_moves(&r, 60);
        right = !r.lost && power_cuts_are_survived(sim, seed);
    }
    if (r.store != NULL)
        ls_stats_get(r.store, &stats);
    segments_moved += stats.segments_relocated;
    right = right && stats.relocation_failures == 0;
    run_end(&r);
    vfs_sim_free(sim);
    if (!right)
        printf("seed %llu: %s\n", (unsigned long long)seed, ls_last_error()->text);
    return right;
}

int main(int argc, char **argv) {
    const char *times = getenv("LOGSTORE_CRASH");
    uint64_t first = argc > 2 ? strtoull(argv[1], NULL, 10) : 100;
    uint64_t after =
        argc > 2 ? strtoull(argv[2], NULL, 10) : 100 + 30 * (times != NULL ? strtoull(times, NULL, 10) : 1);
    uint64_t step = argc > 2 ? 1 : 1 + ONE_IN / 4;
    int passed = 0, failed = 0;

    for (uint64_t seed = first; seed < after; seed += step) {
        if (workload_is_survived(seed))
            passed++;
        else
            failed++;
    }
    check(segments_moved > (uint64_t)(passed + failed));
    printf("%llu segments were moved\n", (unsigned long long)segments_moved);
    return verdict(passed, failed + failures_here);
}
