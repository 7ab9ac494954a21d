/*
 * A commit that lets a segment die wakes the spare thread, and so does the last reader of a segment that could not be
 * recycled. Reads and commits do not wake it while a hold keeps the dead segments. No wake-up is lost.
 */
#include <stdatomic.h>

#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

enum { LIVES = 40, MOST = 6000, READERS = 3, STALLED_MS = 10 * 1000 };

static vfs slow, *real;
static uint64_t lives[LIVES];
static atomic_int reading, read_out_count;
static atomic_bool go_on, disk_is_full, drained;
static _Thread_local bool is_a_reader;

static void nap(void) {
    const struct timespec pause = {.tv_nsec = 1000 * 1000};

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

/* No timer: only a signal ends the wait. */
static int wait_for_signal(vfs *w, pthread_cond_t *signal, pthread_mutex_t *held, unsigned seconds) {
    (void)w;
    (void)seconds;
    (void)pthread_cond_wait(signal, held);
    return 0;
}

/* The reader ends while a file is being made in place of the one that it reads, and none can be made. */
static int full_allocate(vfs *w, int file, uint64_t bytes) {
    (void)w;
    if (!atomic_load(&disk_is_full))
        return real->allocate(real, file, bytes);
    atomic_store(&go_on, true);
    while (atomic_load(&read_out_count) < READERS)
        nap();
    return -ENOSPC;
}

static void start(uint64_t max_log_bytes) {
    ls_options o;

    atomic_store(&reading, 0);
    atomic_store(&read_out_count, 0);
    atomic_store(&go_on, false);
    atomic_store(&disk_is_full, false);
    atomic_store(&drained, false);
    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.max_log_bytes = max_log_bytes;
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    (void)vfs_sim_record(sim, 0);
    real = vfs_sim_table(sim);
    slow = *real;
    slow.pread = slow_pread;
    slow.wait_s = wait_for_signal;
    slow.allocate = full_allocate;
    r.v = &slow;
    r.options = o;
    run_start(&r, sim, 1);
    require(!r.lost);
}

static void *read_one(void *id) {
    uint8_t into[8];
    size_t n = 0;

    is_a_reader = true;
    check(ls_load_content(r.store, *(uint64_t *)id, 0, into, sizeof into, &n) == LS_OK && n == sizeof into);
    (void)atomic_fetch_add(&read_out_count, 1);
    return NULL;
}

/* Whether the spare thread sleeps, and no thread has asked for a spare. */
static bool is_asleep(uint64_t *tries) {
    struct log *g = r.store->log;

    log_lock(g);
    bool asleep = !g->spare_thread.wanted && !g->spare_thread.trying;
    *tries = g->spare_thread.tries;
    log_unlock(g);
    return asleep;
}

static uint64_t fall_asleep(void) {
    uint64_t tries;

    for (int i = 0; !is_asleep(&tries) && i < STALLED_MS; i++)
        nap();
    check(is_asleep(&tries));
    return tries;
}

static bool is_there(uint64_t lsn) {
    struct log *g = r.store->log;

    log_lock(g);
    bool there = log_segment(g, lsn) != NULL;
    log_unlock(g);
    return there;
}

static void publish_lives(void) {
    for (int i = 0; i < LIVES; i++)
        lives[i] = put_bytes(1, (uint8_t)i, 6000, LS_WAIT);
}

/* Dequeues the first n of them, and names the base above them in a batch. */
static void end_lives(int n) {
    uint64_t lsn;

    for (int i = 0; i < n; i++)
        check(ls_dequeue(r.store, lives[i], 1, NULL, 0, 0, 0, &lsn) == LS_OK);
    (void)put_bytes(2, 1, 10, LS_WAIT);
    (void)put_bytes(2, 1, 10, LS_WAIT);
}

static void reads_and_commits_while_a_hold_keeps_dead_segments_leave_the_spare_thread_asleep(void) {
    ls_hold *hold = NULL;
    uint64_t tries, now;
    int woken = 0;
    uint8_t into[16];
    size_t n;

    start(0);
    log_lock(r.store->log);
    r.store->log->relocate = NULL;
    log_unlock(r.store->log);
    check(ls_hold_take(r.v, "/s", "a", 0, UINT64_C(1) << 40, UINT64_C(3600) * 1000000, &hold) == LS_OK);
    publish_lives();
    end_lives(LIVES / 2);
    tries = fall_asleep();
    check(is_there(lives[0])); /* held */
    for (int i = 0; i < 20; i++) {
        check(ls_load_content(r.store, lives[LIVES - 1], 0, into, sizeof into, &n) == LS_OK);
        check(is_asleep(&now) && now == tries);
        (void)put_bytes(2, 1, 10, LS_WAIT);
        woken += is_asleep(&now) && now == tries ? 0 : 1;
        tries = fall_asleep();
    }
    check(woken < 5); /* the thread may wake for a new segment, or because the log has become shorter */
    ls_hold_release(hold);
    check(move_base(r.store) == LS_OK && !is_there(lives[0]));
    done();
}

/* Spares are left, so no thread waits for the reader; the segment is still recycled when the reader ends. */
static void a_dead_segment_is_recycled_when_its_last_reader_ends(void) {
    pthread_t reader;

    start(0);
    publish_lives();
    check(pthread_create(&reader, NULL, read_one, &lives[0]) == 0);
    while (atomic_load(&reading) == 0)
        nap();
    end_lives(LIVES / 2);
    (void)fall_asleep();
    check(is_there(lives[0]));
    atomic_store(&go_on, true);
    check(pthread_join(reader, NULL) == 0);
    for (int i = 0; is_there(lives[0]) && i < STALLED_MS; i++)
        nap();
    check(!is_there(lives[0]));
    done();
}

/* Signals the spare thread if the drain does not end: the test then fails instead of hanging. */
static void *watch(void *nothing) {
    struct log *g = r.store->log;

    (void)nothing;
    for (int i = 0; !atomic_load(&drained) && i < STALLED_MS; i++)
        nap();
    if (atomic_load(&drained))
        return NULL;
    atomic_store(&go_on, true);
    log_lock(g);
    (void)pthread_cond_broadcast(&g->spare_thread.wake);
    log_unlock(g);
    return &drained;
}

static void a_reader_that_ends_while_another_file_is_sought_is_not_waited_for(void) {
    static const uint8_t content[20];
    static uint64_t ids[MOST];
    pthread_t readers[READERS], watcher;
    uint64_t lsn;
    uint32_t queue = 1;
    void *was_stalled;
    int n = 0, refused = 0;

    start((uint64_t)8 * SEGMENT);
    while (n < MOST && ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, 0, &ids[n]) == LS_OK)
        n++;
    check(ls_last_error()->code == LS_FULL && ls_force(r.store, 0) == LS_OK);
    for (int i = 0; i < READERS; i++) /* one in each of the oldest segments */
        check(pthread_create(&readers[i], NULL, read_one, &ids[i * (SEGMENT / 110)]) == 0);
    while (atomic_load(&reading) < READERS)
        nap();
    atomic_store(&disk_is_full, true);
    check(pthread_create(&watcher, NULL, watch, NULL) == 0);
    for (int i = 0; i < n; i++)
        refused += ls_dequeue(r.store, ids[i], queue, NULL, 0, 0, 0, &lsn) != LS_OK ? 1 : 0;
    check(refused == 0 && atomic_load(&go_on));
    atomic_store(&drained, true);
    atomic_store(&go_on, true);
    for (int i = 0; i < READERS; i++)
        check(pthread_join(readers[i], NULL) == 0);
    check(pthread_join(watcher, &was_stalled) == 0);
    check(was_stalled == NULL);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        reads_and_commits_while_a_hold_keeps_dead_segments_leave_the_spare_thread_asleep,
        a_dead_segment_is_recycled_when_its_last_reader_ends,
        a_reader_that_ends_while_another_file_is_sought_is_not_waited_for,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
