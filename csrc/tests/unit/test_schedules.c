/*
 * Waiting and waking under schedules that a seed chooses (tests/kit/schedules.h): nobody sleeps for ever beside a message
 * that is durable and free, each message is handed out once, and everyone ends at the close, with the right code.
 *
 * LOGSTORE_CRASH=n runs n times as many schedules; the arguments, if any, are the first seed to run and the one after the
 * last one.
 */
#include "log/parts.h"
#include "tests/kit/one_store.h"
#include "tests/kit/schedules.h"

enum {
    SCHEDULES = IS_SCHEDULED ? 1000 / ONE_IN : 200,
    TAKERS = 3,
    PUBLISHERS = 2,
    PUBLISHED = 6, /* calls of each publisher */
    AT_ONCE = 4,   /* places that one acquire asks for, and takers of the inbox */
    POSITIONS = 512,
    WATCHED_QUEUE = 3 /* queues below it have takers */
};

static atomic_int handed_out[QUEUES + 1][POSITIONS];
static atomic_uint unexpected, settled, published;
static atomic_bool deleting, closing, failing;
static sem_t bell; /* the event of the inbox */
static vfs system_calls;

static int ring(vfs *v, int event) {
    (void)v;
    (void)event;
    return sem_post(&bell);
}

/* Whether the call did its work. It may fail only with the code of what was done to the store meanwhile. */
static bool worked(int rc) {
    bool right = rc == LS_OK || (rc == LS_UNKNOWN_QUEUE && deleting) || (rc == LS_CLOSED && closing) ||
                 (rc == LS_TRANSACTION_ENDED && closing) ||
                 ((rc == LS_POISONED || rc == LS_OUTCOME_UNKNOWN) && failing);
    if (!right) {
        printf("seed %llu: code %d: %s\n", (unsigned long long)schedule.seed, rc, ls_last_error()->text);
        unexpected++;
    }
    return rc == LS_OK;
}

/* ---- what a consumer does with what it got ---- */

static void got_them(uint32_t queue, const ls_delivery *got, size_t n) {
    for (size_t i = 0; i < n; i++)
        unexpected += got[i].position >= POSITIONS || atomic_fetch_add(&handed_out[queue][got[i].position], 1) != 0;
}

static void gives_up(uint32_t queue, const ls_delivery *got, size_t n) {
    for (size_t i = 0; i < n; i++)
        atomic_fetch_sub(&handed_out[queue][got[i].position], 1);
}

/* Settles them, in a transaction or not, or gives them back. */
static void use(uint32_t queue, const ls_delivery *got, size_t n, uint64_t *mine) {
    uint64_t how = chance(mine) % 8;
    size_t done_here = 0;
    ls_tx *tx = NULL;

    if (n == 0)
        return;
    if (how < 2) {
        gives_up(queue, got, n);
        (void)worked(ls_release(r.store, queue, got, n, how == 0 ? LS_UNSEEN : 0));
        return;
    }
    if (how < 4 && !worked(ls_begin(r.store, NULL, &tx)))
        return;
    int rc = ls_settle_all(r.store, queue, got, n, tx, 1, how % 2 == 0 || tx != NULL ? 0 : LS_WAIT, &done_here);
    bool good = worked(rc);
    if (good && how == 2) {
        bool unlocked_last = chance(mine) % 2 == 0;
        gives_up(queue, got, n);
        if (unlocked_last)
            (void)worked(ls_release(r.store, queue, got, n, 0));
        (void)worked(ls_rollback(tx, 0));
        if (!unlocked_last) /* the rollback has left them with this consumer */
            (void)worked(ls_release(r.store, queue, got, n, 0));
        good = false;
    } else if (good && how == 3) {
        good = worked(ls_commit(tx, chance(mine) % 2 == 0 ? LS_WAIT : 0));
    }
    settled += good ? (unsigned)n : 0;
    ls_tx_free(tx);
}

/* False: the queue takes no more acquires. */
static bool ends_one(ls_taker *taker, uint32_t queue, uint64_t *mine) {
    ls_delivery got[AT_ONCE];
    bool unseen = chance(mine) % 6 == 0;
    size_t n;

    bool goes_on = worked(ls_taker_end(taker, got, unseen ? LS_UNSEEN : 0, &n));
    if (goes_on && !unseen) {
        got_them(queue, got, n);
        use(queue, got, n, mine);
    }
    return goes_on;
}

/* ---- the threads ---- */

/* Waits for ever, for a moment or not at all; goes on or gives up after a signal; until neither queue is there. */
static void *takes(void *seed) {
    uint64_t mine = yields = (uint64_t)(uintptr_t)seed;
    bool there[WATCHED_QUEUE] = {false, true, true};

    while (there[1] || there[2]) {
        uint32_t queue = there[1] && (!there[2] || chance(&mine) % 2 == 0) ? 1 : 2;
        uint64_t kind = chance(&mine) % 4;
        uint64_t until = kind == 0 ? 1 : kind == 1 ? schedule_after(chance(&mine) % 50) : NEVER;
        ls_taker *taker;

        there[queue] = worked(ls_taker_new(r.store, queue, 1 + chance(&mine) % AT_ONCE, NULL, 0, 0, &taker));
        if (!there[queue])
            continue;
        int rc = ls_taker_wait(taker, until);
        while (rc == LS_WOULD_WAIT && chance(&mine) % 2 == 0)
            rc = ls_taker_wait(taker, until);
        there[queue] = ends_one(taker, queue, &mine);
    }
    return NULL;
}

/* Acquires without waiting until nothing is left. */
static void takes_all(uint32_t queue, uint64_t *mine) {
    ls_delivery got[AT_ONCE];
    size_t n;

    do {
        n = 0;
        if (worked(ls_acquire(r.store, queue, got, AT_ONCE, 0, &n))) {
            got_them(queue, got, n);
            use(queue, got, n, mine);
        }
    } while (n > 0);
}

/* A program with an event loop: several takers, and a watch of a queue that nobody else consumes. */
static void *loops(void *seed) {
    uint64_t mine = yields = (uint64_t)(uintptr_t)seed, numbers[AT_ONCE];
    bool there[WATCHED_QUEUE] = {false, true, true};
    ls_taker *takers[AT_ONCE] = {NULL};
    uint32_t queues[AT_ONCE] = {0};
    ls_inbox *inbox;
    size_t waiting = 0;
    int fd;

    if (!worked(ls_inbox_new(r.store, &inbox, &fd)))
        return NULL;
    (void)worked(ls_inbox_watch(inbox, WATCHED_QUEUE, LS_ARRIVED | LS_RELEASED));
    takes_all(WATCHED_QUEUE, &mine); /* what arrived before is not told */
    for (;;) {
        for (size_t i = 0; i < AT_ONCE; i++) {
            queues[i] = takers[i] != NULL ? queues[i] : 1 + (uint32_t)(i % 2);
            if (takers[i] == NULL && there[queues[i]]) {
                int rc = ls_taker_new(r.store, queues[i], 1 + chance(&mine) % AT_ONCE, inbox, i, 0, &takers[i]);
                there[queues[i]] = worked(rc);
                waiting += takers[i] != NULL;
            }
        }
        if (waiting == 0)
            break;
        while (sem_wait(&bell) != 0) {
        }
        for (ls_event told; ls_inbox_events(inbox, &told, 1) == 1;)
            takes_all(told.queue_id, &mine);
        for (size_t n; (n = ls_inbox_next(inbox, numbers, AT_ONCE)) > 0;) {
            for (size_t i = 0; i < n; i++) {
                ls_taker *one = takers[numbers[i]];
                takers[numbers[i]] = NULL;
                waiting--;
                there[queues[numbers[i]]] = ends_one(one, queues[numbers[i]], &mine) && there[queues[numbers[i]]];
            }
        }
    }
    ls_inbox_free(inbox);
    return NULL;
}

static void *publishes(void *seed) {
    uint64_t mine = yields = (uint64_t)(uintptr_t)seed;

    for (int i = 0; i < PUBLISHED; i++) {
        static const int how[] = {0, LS_WAIT, LS_MORE};
        uint32_t queues[2] = {1 + (uint32_t)chance(&mine) % WATCHED_QUEUE, 0};
        size_t n = 1 + chance(&mine) % 2;
        uint64_t id, kind = chance(&mine) % 4;
        ls_tx *tx = NULL;

        queues[1] = queues[0] % WATCHED_QUEUE + 1;
        if (kind < 2 && !worked(ls_begin(r.store, NULL, &tx)))
            return NULL;
        bool good = worked(ls_publish(r.store, queues, n, NULL, 0, (const uint8_t *)"x", 1, tx,
                                      tx != NULL ? 0 : how[chance(&mine) % 3], &id));
        if (tx != NULL && good) {
            int rc = kind == 0 ? ls_rollback(tx, 0) : ls_commit(tx, how[chance(&mine) % 2]);
            good = worked(rc) && kind == 1;
        }
        ls_tx_free(tx);
        published += good ? (unsigned)n : 0;
    }
    return NULL;
}

/* ---- one schedule ---- */

static bool is_drained(void) {
    uint64_t depth, locked, all = 0;

    for (uint32_t q = 1; q <= WATCHED_QUEUE; q++)
        all += ls_queue_depth(r.store, q, &depth, &locked) != LS_OK || depth > 0;
    return all == 0;
}

/* With the takers waiting for ever and the loop for its bell, all that is durable has been settled; and with threads of the
   store's own, all is durable. */
static void nobody_sleeps_beside_a_message(void) {
    uint32_t queue = 2;
    uint64_t id;

    (void)worked(ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"x", 1, NULL, 0, &id));
    published++;
    if (!r.options.background)
        check(ls_force(r.store, 0) == LS_OK || complain("force"));
    schedule_quiet();
    while (!IS_SCHEDULED && (!is_drained() || settled != published))
        (void)sched_yield();
    check(is_drained());
    check(settled == published);
}

static void start(uint64_t seed) {
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    memset(handed_out, 0, sizeof handed_out);
    unexpected = settled = published = 0;
    deleting = closing = failing = false;
    (void)vfs_sim_record(sim, 0);
    system_calls = *vfs_sim_table(sim);
    system_calls.event_signal = ring;
    r.v = &system_calls;
    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    r.options.max_write_buffers = 4;
    r.options.background = seed % 2;
    run_start(&r, sim, seed);
    check(!r.lost || complain("the store cannot be made"));
}

/* Delivers all, or the queue is deleted, the store closed or the disk failed while the others are at work. */
static void one_schedule(uint64_t seed) {
    void *(*const bodies[])(void *) = {takes, takes, takes, loops, publishes, publishes};
    enum { THREADS = TAKERS + 1 + PUBLISHERS };
    pthread_t threads[THREADS];
    uint64_t ends_early = seed % 4, id;
    uint32_t queue = WATCHED_QUEUE;

    require(sem_init(&bell, 0, 0) == 0);
    schedule_begin(seed);
    start(seed);
    failing = ends_early == 3;
    if (failing)
        vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_SYNC_DATA, .nth = 1 + seed % 7, .error = EIO});
    for (uintptr_t i = 0; i < THREADS; i++)
        require(pthread_create(&threads[i], NULL, bodies[i], (void *)(seed * THREADS + i + 1)) == 0);
    if (ends_early < 2) {
        for (int i = THREADS - PUBLISHERS; i < THREADS; i++)
            check(pthread_join(threads[i], NULL) == 0);
        nobody_sleeps_beside_a_message();
    }
    for (int i = 0; failing && i < 8; i++)
        (void)worked(ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"x", 1, NULL, LS_WAIT, &id));
    deleting = true;
    (void)worked(ls_queue_delete(r.store, 1, 0));
    closing = true;
    if (seed % 8 < 4)
        schedule_quiet();
    int rc = ls_close(r.store);
    check(rc == LS_OK || failing);
    for (int i = 0; i < (ends_early < 2 ? THREADS - PUBLISHERS : THREADS); i++)
        check(pthread_join(threads[i], NULL) == 0);
    ls_free(r.store);
    r.store = NULL;
    schedule_end();
    (void)sem_destroy(&bell);
    check(unexpected == 0);
    check(vfs_sim_handles(sim) == 0);
    vfs_sim_free(sim);
}

/* A flusher that is woken while its waker has the lock would wait for the lock at once. */
static void a_publisher_wakes_the_flusher_when_it_has_let_go_of_the_lock(uint64_t seed) {
    uint32_t queue = 1;
    uint64_t id;

    schedule_begin(seed);
    start(1); /* with a flusher */
    schedule_quiet();
    schedule.watched = &r.store->log->flusher.wake;
    for (int i = 0; i < PUBLISHED; i++) {
        check(ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"x", 1, NULL, 0, &id) == LS_OK);
        schedule_quiet();
        check(ls_durable_lsn(r.store) > id || !IS_SCHEDULED);
    }
    check(schedule.posts == PUBLISHED || !IS_SCHEDULED);
    check(schedule.locked_posts == 0);
    schedule.watched = NULL;
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    r.store = NULL;
    schedule_end();
    vfs_sim_free(sim);
}

int main(int argc, char **argv) {
    const char *times = getenv("LOGSTORE_CRASH");
    uint64_t first = argc > 2 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t after = argc > 2 ? strtoull(argv[2], NULL, 10)
                              : 1 + SCHEDULES * (times != NULL && *times > '0' ? strtoull(times, NULL, 10) : 1);
    int passed = 0, failed = 0;

    for (uint64_t seed = first; seed < after && failed == 0; seed++) { /* threads of a failed one may still wait */
        failures_here = 0;
        one_schedule(seed);
        if (seed % 16 == 1)
            a_publisher_wakes_the_flusher_when_it_has_let_go_of_the_lock(seed);
        if (failures_here > 0)
            printf("seed %llu failed\n", (unsigned long long)seed);
        failures_here == 0 ? passed++ : failed++;
    }
    return verdict(passed, failed);
}
