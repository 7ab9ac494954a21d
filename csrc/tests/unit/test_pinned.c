/*
 * Reads of content pin their segment until they end. A dequeue in a full store does not wait for a reader: if it needs the
 * file of a dead segment that is being read, it uses another file instead.
 */
#include <stdatomic.h>

#include "store/store.h"
#include "tests/kit/one_store.h"

enum { MOST = 6000, READERS = 3 };

static vfs slow, *real;
static atomic_int reading, drained, released_early;
static atomic_bool go_on;
static _Thread_local bool is_a_reader;

static void nap(void) {
    const struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};

    (void)nanosleep(&pause, NULL);
}

static int64_t slow_pread(vfs *w, int file, void *into, size_t bytes, uint64_t at) {
    (void)w;
    if (is_a_reader) {
        (void)atomic_fetch_add(&reading, 1);
        while (!atomic_load(&go_on))
            nap();
    }
    return real->pread(real, file, into, bytes, at);
}

static void *read_one(void *id) {
    uint8_t into[8];
    size_t done_bytes = 0;

    is_a_reader = true;
    check(ls_load_content(r.store, *(uint64_t *)id, 0, into, sizeof into, &done_bytes) == LS_OK && done_bytes == 8);
    return NULL;
}

/* Lets the readers continue if the drain makes no progress: the test then fails instead of hanging. */
static void *release_readers(void *nothing) {
    int before = -1, now;

    (void)nothing;
    while ((now = atomic_load(&drained)) != before && !atomic_load(&go_on)) {
        before = now;
        for (int i = 0; i < 2500 && !atomic_load(&go_on); i++)
            nap();
    }
    (void)atomic_fetch_add(&released_early, atomic_load(&go_on) ? 0 : 1);
    atomic_store(&go_on, true);
    return NULL;
}

static void drain_while_dead_segments_are_read(int background) {
    static uint64_t ids[MOST];
    ls_options o;
    pthread_t readers[READERS], releaser;
    ls_stats stats;
    int n = 0, refused = 0;
    uint64_t lsn, pinned[READERS];
    uint32_t q = 1;
    static const uint8_t content[20];

    atomic_store(&reading, 0);
    atomic_store(&drained, 0);
    atomic_store(&go_on, false);
    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = background;
    o.max_log_bytes = (uint64_t)8 * SEGMENT;
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    (void)vfs_sim_record(sim, 0);
    real = vfs_sim_table(sim);
    slow = *real;
    slow.pread = slow_pread;
    r.v = &slow;
    r.options = o;
    run_start(&r, sim, 1);
    require(!r.lost);
    while (n < MOST && ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, 0, &ids[n]) == LS_OK)
        n++;
    check(ls_last_error()->code == LS_FULL && ls_force(r.store, 0) == LS_OK);
    for (int i = 0; i < READERS; i++) { /* one in each of the oldest segments */
        pinned[i] = ids[i * (SEGMENT / 110)];
        check(pthread_create(&readers[i], NULL, read_one, &pinned[i]) == 0);
    }
    while (atomic_load(&reading) < READERS)
        nap();
    check(pthread_create(&releaser, NULL, release_readers, NULL) == 0);
    for (int i = 0; i < n; i++) {
        refused += ls_dequeue(r.store, ids[i], q, NULL, 1, 0, 0, &lsn) != LS_OK ? 1 : 0;
        (void)atomic_fetch_add(&drained, 1);
    }
    check(ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, 0, &lsn) == LS_OK);
    atomic_store(&go_on, true);
    for (int i = 0; i < READERS; i++)
        check(pthread_join(readers[i], NULL) == 0);
    check(pthread_join(releaser, NULL) == 0);
    check(refused == 0 && atomic_load(&released_early) == 0);
    check(move_base(r.store) == LS_OK);
    ls_stats_get(r.store, &stats);
    check(stats.log_bytes <= o.max_log_bytes);
    done();
}

static void a_full_store_is_drained_although_readers_sleep_in_dead_segments(void) {
    drain_while_dead_segments_are_read(1);
}

static void it_is_drained_without_background_threads_too(void) { drain_while_dead_segments_are_read(0); }

int main(void) {
    static void (*const tests[])(void) = {a_full_store_is_drained_although_readers_sleep_in_dead_segments,
                                          it_is_drained_without_background_threads_too};

    return run_tests(tests, sizeof tests / sizeof *tests);
}
