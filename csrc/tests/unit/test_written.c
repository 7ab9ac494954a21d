/* The store's counts of bytes and calls written are exactly those of its files. */
#include "tests/kit/one_store.h"

struct sum {
    uint64_t bytes;
    uint64_t calls;
};

static struct sum journalled(void) {
    const vfs_sim_event *events;
    size_t n = vfs_sim_journal(sim, &events);
    struct sum s = {0, 0};

    for (size_t i = 0; i < n; i++) {
        if (events[i].kind == VFS_SIM_PWRITE && events[i].result > 0) {
            s.bytes += (uint64_t)events[i].result;
            s.calls++;
        }
    }
    return s;
}

static struct sum counted(void) {
    ls_stats stats;

    ls_stats_get(r.store, &stats);
    return (struct sum){stats.device_bytes, stats.device_writes};
}

/* Batches, new segments, headers, the hint, moves, a checkpoint. */
static void every_write_is_counted_once(void) {
    fresh();
    struct sum before = counted();

    check(vfs_sim_record(sim, 1) == 0);
    (void)put(1, "stays", NULL);
    churn(200);
    check(ls_checkpoint(r.store, NULL) == LS_OK);
    (void)put(2, "stays too", NULL);
    struct sum after = counted(), seen = journalled();
    check(seen.calls > 10 && seen.bytes > 200 * 3900);
    check(after.bytes - before.bytes == seen.bytes && after.calls - before.calls == seen.calls);
    done();
}

/* Writes of an open count for the store that it opens. */
static void the_writes_of_an_open_are_counted(void) {
    fresh();
    (void)put(1, "before", NULL);
    vfs_sim *after = vfs_sim_clone(sim);

    require(after != NULL);
    done();
    sim = after;
    r.v = vfs_sim_table(sim);
    check(vfs_sim_record(sim, 1) == 0);
    check(open_again() == LS_OK || complain("open"));
    struct sum now = counted(), seen = journalled();
    check(now.bytes == seen.bytes && now.calls == seen.calls && now.bytes >= SEGMENT);
    done();
}

/* A short write counts the bytes it moved, and so does the write that completes it. */
static void a_short_write_counts_the_bytes_it_moved(void) {
    static const vfs_sim_plan plan = {.kind = VFS_SIM_PWRITE, .nth = 1, .shorten = VFS_SIM_HALF};
    fresh();
    struct sum before = counted();

    check(vfs_sim_record(sim, 1) == 0);
    vfs_sim_fail(sim, &plan);
    (void)put_bytes(1, 7, 3000, LS_WAIT);
    check(vfs_sim_fired(sim) == 1);
    vfs_sim_fail(sim, NULL);
    struct sum after = counted(), seen = journalled();
    check(seen.calls >= 3 && after.bytes - before.bytes == seen.bytes && after.calls - before.calls == seen.calls);
    done();
}

/* The page cache keeps a file in folios as large as these writes, and large ones make each small batch dearer. */
static void a_new_segment_is_filled_by_writes_of_128_kib_at_most(void) {
    enum { LARGE_SEGMENT = 1 << 20, FILLING_MOST = 128 << 10 };
    const ls_options large = {
        .segment_size = LARGE_SEGMENT, .create = 1, .initial_segments = 2, .max_write_buffers = 3};
    const vfs_sim_event *events;

    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    r.options = large;
    check(vfs_sim_record(sim, 1) == 0);
    run_start(&r, sim, 1);
    check(!r.lost || complain("the store cannot be made"));
    size_t n = vfs_sim_journal(sim, &events);
    for (size_t i = 0; i < n; i++)
        check(events[i].kind != VFS_SIM_PWRITE || events[i].result <= FILLING_MOST);
    check(journalled().bytes >= (uint64_t)2 * LARGE_SEGMENT);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        every_write_is_counted_once,
        the_writes_of_an_open_are_counted,
        a_short_write_counts_the_bytes_it_moved,
        a_new_segment_is_filled_by_writes_of_128_kib_at_most,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
