/*
 * Threads that wait for room in a write buffer: called in the order in which they came, as many for a freed buffer as it can
 * hold; and all of them if the log's write fails or the store is closed.
 */
#include <stdatomic.h>

#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

enum { WRITERS = 24, CONTENT = 4000, BUFFERS = 2, SEGMENTS = 8, STALLED_MS = 20 * 1000 };

#ifdef LOGSTORE_POISON
enum { IN_ORDER = 0 }; /* a thread that was called lets go of the lock once more, and the next may pass it */
#else
enum { IN_ORDER = 1 };
#endif

static vfs stopped, *real;
static atomic_bool go_on;
static atomic_int sync_error, came;

static void nap(void) {
    const struct timespec pause = {.tv_nsec = 1000 * 1000};

    (void)nanosleep(&pause, NULL);
}

static int stopped_sync_data(vfs *w, int file) {
    (void)w;
    while (!atomic_load(&go_on))
        nap();
    return atomic_load(&sync_error) != 0 ? -atomic_load(&sync_error) : real->sync_data(real, file);
}

struct writer {
    pthread_t thread;
    uint32_t bytes;
    bool dequeues; /* the message `id` */
    bool hurries;  /* it does not wait for its message to be durable */
    uint64_t id;
    int rc;
};

static void *write_one(void *of) {
    static uint8_t content[SEGMENT];
    struct writer *w = of;
    uint32_t queue = 1;
    uint64_t lsn;

    w->rc = w->dequeues
                ? ls_dequeue(r.store, w->id, 1, NULL, 1, 0, LS_WAIT, &lsn)
                : ls_publish(r.store, &queue, 1, NULL, 0, content, w->bytes, NULL, w->hurries ? 0 : LS_WAIT, &w->id);
    (void)atomic_fetch_add(&came, 1);
    return NULL;
}

static int waiting(void) {
    struct log *g = r.store->log;
    int n = 0;

    log_lock(g);
    for (struct room_waiter *w = g->front.room_waiters; w != NULL; w = w->next)
        n++;
    log_unlock(g);
    return n;
}

static void start(int background) {
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.max_write_buffers = BUFFERS;
    o.initial_segments = SEGMENTS; /* a thread that is called and then waits for a spare is overtaken */
    o.background = background;
    atomic_store(&go_on, true);
    atomic_store(&sync_error, 0);
    atomic_store(&came, 0);
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    (void)vfs_sim_record(sim, 0);
    real = vfs_sim_table(sim);
    stopped = *real;
    stopped.sync_data = stopped_sync_data;
    r.v = &stopped;
    r.options = o;
    run_start(&r, sim, 1);
    require(!r.lost);
}

/* A buffer has room for one content. The first threads lead and fill the buffers; returns how many do, all others wait for room, in their order. */
static int write_while_the_disk_stands(struct writer *all, int n) {
    int filled = 0;

    atomic_store(&go_on, false);
    for (int i = 0; i < n; i++) {
        int before = waiting();
        uint64_t appended = ls_next_lsn(r.store);
        if (pthread_create(&all[i].thread, NULL, write_one, &all[i]) != 0)
            abort();
        for (int ms = 0; ms < STALLED_MS && waiting() == before && ls_next_lsn(r.store) == appended; ms++)
            nap();
        filled += waiting() == before ? 1 : 0;
    }
    check(waiting() == n - filled && filled > 0 && filled < n / 2);
    return filled;
}

static bool all_come(struct writer *all, int n) {
    for (int ms = 0; ms < STALLED_MS && atomic_load(&came) < n; ms++)
        nap();
    if (atomic_load(&came) < n) {
        check(complain("a thread was not called"));
        exit(1); /* they cannot be joined */
    }
    for (int i = 0; i < n; i++)
        (void)pthread_join(all[i].thread, NULL);
    return true;
}

static void threads_are_called_in_the_order_in_which_they_came_and_once_each(void) {
    for (int background = 0; background < 2; background++) {
        static struct writer all[WRITERS];
        ls_stats before, after;

        memset(all, 0, sizeof all);
        start(background);
        for (int i = 0; i < WRITERS; i++)
            all[i].bytes = CONTENT;
        ls_stats_get(r.store, &before);
        int filled = write_while_the_disk_stands(all, WRITERS);
        atomic_store(&go_on, true);
        check(all_come(all, WRITERS));
        ls_stats_get(r.store, &after);
        for (int i = 0; i < WRITERS; i++)
            check(all[i].rc == LS_OK && (!IN_ORDER || i <= filled || all[i].id > all[i - 1].id));
        /* each waits once, and once more if it is called to write a batch */
        check(after.forced_by_full_buffers - before.forced_by_full_buffers <= (uint64_t)WRITERS + WRITERS / 2);
        done();
    }
}

static void threads_that_do_not_wait_for_the_disk_are_called_too(void) {
    for (int background = 0; background < 2; background++) {
        static struct writer all[WRITERS];

        memset(all, 0, sizeof all);
        start(background);
        for (int i = 0; i < WRITERS; i++) {
            all[i].bytes = CONTENT;
            all[i].hurries = i > 0; /* the first one leads */
        }
        (void)write_while_the_disk_stands(all, WRITERS);
        atomic_store(&go_on, true);
        check(all_come(all, WRITERS));
        for (int i = 0; i < WRITERS; i++)
            check(all[i].rc == LS_OK && has(all[i].id));
        done();
    }
}

static void large_and_small_ones_and_dequeues_all_get_their_turn(void) {
    static struct writer all[WRITERS];
    uint64_t ids[WRITERS];

    start(1);
    memset(all, 0, sizeof all);
    for (int i = 0; i < WRITERS; i++)
        ids[i] = put_bytes(1, 1, 10, 0);
    check(ls_force(r.store, 0) == LS_OK);
    for (int i = 0; i < WRITERS; i++) {
        all[i].bytes = i % 4 == 1 ? 1 : i % 4 == 2 ? 20000 : 3500;
        all[i].dequeues = i % 4 == 3;
        all[i].id = ids[i];
    }
    (void)write_while_the_disk_stands(all, WRITERS);
    atomic_store(&go_on, true);
    check(all_come(all, WRITERS));
    for (int i = 0; i < WRITERS; i++)
        check(all[i].rc == LS_OK && has(all[i].id) == !all[i].dequeues);
    done();
}

static void a_failed_write_calls_all_that_wait(void) {
    static struct writer all[WRITERS];

    start(1);
    memset(all, 0, sizeof all);
    for (int i = 0; i < WRITERS; i++)
        all[i].bytes = CONTENT;
    int filled = write_while_the_disk_stands(all, WRITERS);
    atomic_store(&sync_error, EIO);
    atomic_store(&go_on, true);
    check(all_come(all, WRITERS));
    for (int i = 0; i < WRITERS; i++)
        check(all[i].rc == (i < filled ? LS_OUTCOME_UNKNOWN : LS_POISONED));
    done();
}

static void *close_it(void *unused) {
    (void)unused;
    check(ls_close(r.store) == LS_OK);
    return NULL;
}

static void a_close_leaves_no_thread_waiting(void) {
    static struct writer all[WRITERS];
    pthread_t closer;

    start(1);
    memset(all, 0, sizeof all);
    for (int i = 0; i < WRITERS; i++)
        all[i].bytes = CONTENT;
    int filled = write_while_the_disk_stands(all, WRITERS);
    require(pthread_create(&closer, NULL, close_it, NULL) == 0);
    nap();
    atomic_store(&go_on, true);
    check(all_come(all, WRITERS));
    (void)pthread_join(closer, NULL);
    for (int i = 0; i < WRITERS; i++)
        check(all[i].rc == LS_OK || (i >= filled && all[i].rc == LS_CLOSED));
    done();
}

static void *progress(void *rc) {
    struct log *g = r.store->log;

    log_lock(g);
    *(int *)rc = log_progress(g);
    log_unlock(g);
    return NULL;
}

static struct waiter *first_follower(void) {
    struct log *g = r.store->log;
    struct waiter *w;

    log_lock(g);
    w = g->commit.waiters;
    log_unlock(g);
    return w;
}

/*
 * Without the log's threads no other thread would write: the woken thread's caller may then find the store full, and
 * the threads that follow would wait for ever.
 */
static void a_thread_that_is_woken_to_lead_leads_before_it_returns(void) {
    struct writer one = {.bytes = CONTENT, .hurries = true};
    struct waiter *w;
    pthread_t thread;
    int rc = -1;

    start(0);
    (void)write_one(&one);
    check(one.rc == LS_OK && ls_durable_lsn(r.store) < ls_next_lsn(r.store));
    log_lock(r.store->log);
    r.store->log->commit.leading = true; /* as while another thread writes a part of the batch early */
    log_unlock(r.store->log);
    require(pthread_create(&thread, NULL, progress, &rc) == 0);
    while ((w = first_follower()) == NULL)
        nap();
    log_lock(r.store->log);
    r.store->log->commit.leading = false;
    r.store->log->commit.waiters = NULL;
    r.store->log->commit.waiters_end = &r.store->log->commit.waiters;
    w->result = -1;
    (void)sem_post(&w->wake);
    log_unlock(r.store->log);
    (void)pthread_join(thread, NULL);
    check(rc == LS_OK && r.store->log->front.forced_lsn == ls_next_lsn(r.store));
#ifndef LOGSTORE_TRAIL
    check(ls_durable_lsn(r.store) == ls_next_lsn(r.store));
#endif
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        threads_are_called_in_the_order_in_which_they_came_and_once_each,
        threads_that_do_not_wait_for_the_disk_are_called_too,
        large_and_small_ones_and_dequeues_all_get_their_turn,
        a_failed_write_calls_all_that_wait,
        a_close_leaves_no_thread_waiting,
        a_thread_that_is_woken_to_lead_leads_before_it_returns,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
