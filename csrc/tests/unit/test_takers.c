/*
 * Acquires that wait: a queue serves its takers in the order in which they came, as soon as a place is durable or comes
 * back; one that gives up keeps what it got or gives it back; every one is told how it ended.
 */
#include <pthread.h>
#include <signal.h>

#include "tests/kit/one_store.h"

enum { WAITERS = 6, SHARED = 1500, INBOXES = 3 };

static ls_inbox *no_inbox;

static ls_taker *new_taker(uint32_t queue, size_t n) {
    ls_taker *taker;

    check(ls_taker_new(r.store, queue, n, no_inbox, 0, 0, &taker) == LS_OK || complain("taker"));
    return taker;
}

/* Whether it is served, without waiting: the time is long over. */
static bool is_served(ls_taker *taker, uint64_t id) {
    ls_delivery got[8];
    size_t n;

    check(ls_taker_wait(taker, 1) == LS_OK);
    check(ls_taker_end(taker, got, 0, &n) == LS_OK);
    return n == 1 && got[0].id == id;
}

static void takers_are_served_in_their_order_with_what_is_durable(void) {
    ls_delivery got[8];
    size_t n;

    fresh();
    ls_taker *first = new_taker(1, 2), *second = new_taker(1, 8), *third = new_taker(1, 1), *other = new_taker(2, 1);
    uint64_t id = put_bytes(1, 1, 10, LS_MORE);

    check(ls_acquire(r.store, 1, got, 8, 0, &n) == LS_OK && n == 0); /* it is not durable, and the takers come first */
    (void)put_bytes(1, 2, 10, LS_MORE);
    (void)put_bytes(1, 3, 10, LS_MORE);
    (void)put_bytes(1, 4, 10, LS_WAIT);
    check(ls_acquire(r.store, 1, got, 8, 0, &n) == LS_OK && n == 0); /* the second took what the first left */
    check(ls_taker_wait(first, 1) == LS_OK && ls_taker_end(first, got, 0, &n) == LS_OK);
    check(n == 2 && got[0].id == id && got[0].count == 1 && got[0].content_bytes == 10);
    check(ls_taker_wait(second, 1) == LS_OK && ls_taker_end(second, got, 0, &n) == LS_OK && n == 2);
    id = put(1, "for the third", NULL);
    check(is_served(third, id));
    id = put(2, "for the other", NULL);
    check(is_served(other, id));
    done();
}

static void a_taker_gets_at_once_what_is_there(void) {
    fresh();
    uint64_t id = put(1, "there", NULL);
    check(is_served(new_taker(1, 3), id));
    done();
}

static void a_release_a_rollback_and_a_commit_serve_takers(void) {
    ls_delivery got[2];
    size_t n;
    ls_tx *tx;

    fresh();
    uint64_t id = put(1, "one", NULL);
    check(ls_acquire(r.store, 1, got, 1, 0, &n) == LS_OK && n == 1);
    ls_taker *taker = new_taker(1, 1);
    check(ls_release(r.store, 1, got, 1, 0) == LS_OK);
    check(ls_taker_wait(taker, 1) == LS_OK && ls_taker_end(taker, got, 0, &n) == LS_OK);
    check(n == 1 && got[0].id == id && got[0].count == 2);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && ls_release(r.store, 1, got, 1, 0) == LS_OK);
    check(take(id, 1, tx) == LS_OK);
    taker = new_taker(1, 1);
    check(ls_rollback(tx, 0) == LS_OK);
    ls_tx_free(tx);
    check(is_served(taker, id));
    taker = new_taker(1, 1);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    id = put(1, "in a transaction", tx);
    check(ls_acquire(r.store, 1, got, 1, 0, &n) == LS_OK && n == 0);
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    check(is_served(taker, id));
    done();
}

static void what_a_taker_gives_back_unseen_goes_to_the_next(void) {
    ls_delivery got[4];
    size_t n;

    fresh();
    ls_taker *first = new_taker(1, 4), *gone = new_taker(1, 4), *next = new_taker(1, 4);
    uint64_t one = put(1, "one", NULL);
    check(ls_taker_end(gone, NULL, LS_UNSEEN, &n) == LS_OK && n == 0);
    check(ls_taker_end(first, NULL, LS_UNSEEN, &n) == LS_OK && n == 1);
    check(ls_taker_wait(next, 1) == LS_OK && ls_taker_end(next, got, 0, &n) == LS_OK);
    check(n == 1 && got[0].id == one && got[0].count == 1);
    done();
}

/* Places that were settled or ended meanwhile are not given back. */
static void a_place_that_ended_is_not_given_back(void) {
    ls_delivery got[4];
    size_t n;

    fresh();
    ls_taker *first = new_taker(1, 4);
    uint64_t one = put(1, "one", NULL);
    check(take(one, 1, NULL) == LS_OK);
    check(ls_taker_end(first, NULL, LS_UNSEEN, &n) == LS_OK);
    check(ls_acquire(r.store, 1, got, 4, 0, &n) == LS_OK && n == 0);
    done();
}

static void takers_of_a_deleted_queue_and_a_closed_store_end_at_once(void) {
    ls_delivery got[1];
    ls_taker *taker;
    size_t n;

    fresh();
    ls_taker *deleted = new_taker(1, 1), *closed = new_taker(2, 1), *unseen = new_taker(2, 1);
    check(ls_queue_delete(r.store, 1, 0) == LS_OK);
    check(ls_taker_wait(deleted, 1) == LS_OK && ls_taker_end(deleted, got, 0, &n) == LS_UNKNOWN_QUEUE);
    check(ls_taker_new(r.store, 1, 1, NULL, 0, 0, &taker) == LS_UNKNOWN_QUEUE && taker == NULL);
    check(ls_taker_new(r.store, 2, 0, NULL, 0, 0, &taker) == LS_OPTION && taker == NULL);
    check(ls_queue_add(r.store, 1) == LS_OK);
    uint64_t id = put(1, "of the new queue", NULL);
    check(is_served(new_taker(1, 1), id));
    check(ls_close(r.store) == LS_OK);
    check(ls_taker_wait(closed, 1) == LS_OK && ls_taker_end(closed, got, 0, &n) == LS_CLOSED);
    check(ls_taker_end(unseen, NULL, LS_UNSEEN, &n) == LS_CLOSED);
    check(ls_taker_new(r.store, 2, 1, NULL, 0, 0, &taker) == LS_CLOSED && taker == NULL);
    done();
}

static void after_a_failed_sync_the_takers_know_that_the_outcome_is_unknown(void) {
    ls_delivery got[1];
    ls_taker *taker;
    uint64_t id;
    uint32_t queue = 1;
    size_t n;

    fresh();
    taker = new_taker(1, 1);
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO});
    check(ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"x", 1, NULL, LS_WAIT, &id) == LS_OUTCOME_UNKNOWN);
    check(ls_taker_wait(taker, 1) == LS_OK && ls_taker_end(taker, got, 0, &n) == LS_OUTCOME_UNKNOWN && n == 0);
    check(ls_taker_new(r.store, 1, 1, NULL, 0, 0, &taker) == LS_POISONED && taker == NULL);
    done();
}

static void an_inbox_tells_each_taker_once(void) {
    ls_inbox *inbox, *unused;
    ls_taker *takers[4], *refused;
    ls_delivery got[4];
    uint64_t numbers[4];
    size_t n;
    int fd;

    fresh();
    check(ls_inbox_new(r.store, &inbox, &fd) == LS_OK && ls_inbox_new(r.store, &unused, &fd) == LS_OK);
    ls_inbox_free(unused);
    for (uint64_t i = 0; i < 4; i++)
        check(ls_taker_new(r.store, 1, 1, inbox, 70 + i, 0, &takers[i]) == LS_OK);
    check(ls_inbox_next(inbox, numbers, 4) == 0);
    for (int i = 0; i < 3; i++)
        (void)put(1, "content", NULL);
    check(ls_inbox_next(inbox, numbers, 2) == 2 && numbers[0] == 70 && numbers[1] == 71);
    check(ls_taker_end(takers[2], NULL, LS_UNSEEN, &n) == LS_OK); /* served, but not told: the fourth gets its place */
    check(ls_inbox_next(inbox, numbers, 4) == 1 && numbers[0] == 73 && ls_inbox_next(inbox, numbers, 4) == 0);
    check(ls_taker_end(takers[0], got, 0, &n) == LS_OK && n == 1);
    check(ls_taker_end(takers[1], got, 0, &n) == LS_OK && n == 1);
    check(ls_taker_new(r.store, 1, 1, inbox, 1, 0, &takers[0]) == LS_OK);
    ls_inbox_free(inbox);
    (void)put(1, "nobody is told", NULL);
    check(ls_taker_end(takers[0], got, 0, &n) == LS_OK && n == 1);
    check(ls_taker_end(takers[3], got, 0, &n) == LS_OK && n == 1);
    check(ls_close(r.store) == LS_OK && ls_inbox_new(r.store, &inbox, &fd) == LS_CLOSED);
    check(ls_taker_new(r.store, 1, 1, NULL, 0, LS_TRY, &refused) == LS_CLOSED);
    done();
}

/* ---- threads ---- */

static atomic_uint got_it[SHARED], unexpected;
static atomic_bool over;
static pthread_barrier_t all_are_there;

static uint64_t soon(uint64_t *seed) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + chance(seed) % 200000;
}

/* Takes, waits for ever, for a moment or not at all; gives up sometimes; until the queue is deleted. */
static void *takes(void *seed) {
    uint64_t mine = (uint64_t)(uintptr_t)seed;
    ls_delivery got[8];
    size_t n, done;

    (void)pthread_barrier_wait(&all_are_there);
    for (;;) {
        ls_taker *taker;
        uint64_t kind = chance(&mine) % 4;
        int rc = ls_taker_new(r.store, 1, 1 + chance(&mine) % 8, NULL, 0, 0, &taker);

        if (rc != LS_OK) {
            unexpected += rc != LS_UNKNOWN_QUEUE;
            return NULL;
        }
        if (ls_taker_wait(taker, kind == 0 ? 1 : kind == 1 ? soon(&mine) : UINT64_MAX) != LS_OK)
            unexpected++;
        bool unseen = chance(&mine) % 5 == 0;
        rc = ls_taker_end(taker, got, unseen ? LS_UNSEEN : 0, &n);
        n = unseen ? 0 : n;
        if (rc != LS_OK && rc != LS_UNKNOWN_QUEUE)
            unexpected++;
        if (n > 0 && chance(&mine) % 5 == 0) {
            if (ls_release(r.store, 1, got, n, chance(&mine) % 2 == 0 ? LS_UNSEEN : 0) != LS_OK)
                unexpected++;
            continue;
        }
        for (size_t i = 0; i < n; i++)
            got_it[got[i].position]++;
        if (n > 0 && ls_settle_all(r.store, 1, got, n, NULL, 1, 0, &done) != LS_OK)
            unexpected++;
    }
}

static void *publishes(void *seed) {
    uint64_t mine = (uint64_t)(uintptr_t)seed;
    uint32_t queue = 1;

    (void)pthread_barrier_wait(&all_are_there);
    for (int i = 0; i < SHARED / 2; i++) {
        static const int how[] = {0, LS_WAIT, LS_MORE};
        uint64_t id;
        ls_tx *tx = NULL;

        if (chance(&mine) % 8 == 0 && ls_begin(r.store, NULL, &tx) != LS_OK)
            unexpected++;
        if (ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"x", 1, tx,
                       tx != NULL ? 0 : how[chance(&mine) % 3], &id) != LS_OK)
            unexpected++;
        if (tx != NULL && ls_commit(tx, how[chance(&mine) % 2]) != LS_OK)
            unexpected++;
        ls_tx_free(tx);
    }
    return NULL;
}

/* A lost wake-up would leave places on the queue for ever, since nothing else takes them. */
static void many_threads_get_each_message_once_and_none_waits_beside_one(void) {
    pthread_t takers[WAITERS], publishers[2];
    uint64_t depth = 1, locked;

    fresh();
    require(pthread_barrier_init(&all_are_there, NULL, WAITERS + 2) == 0);
    for (uintptr_t i = 0; i < WAITERS; i++)
        require(pthread_create(&takers[i], NULL, takes, (void *)(i + 1)) == 0);
    for (uintptr_t i = 0; i < 2; i++)
        require(pthread_create(&publishers[i], NULL, publishes, (void *)(i + 100)) == 0);
    for (int i = 0; i < 2; i++)
        check(pthread_join(publishers[i], NULL) == 0);
    check(ls_force(r.store, 0) == LS_OK);
    while (ls_queue_depth(r.store, 1, &depth, &locked) == LS_OK && depth > 0)
        sched_yield();
    check(ls_queue_delete(r.store, 1, 0) == LS_OK);
    for (int i = 0; i < WAITERS; i++)
        check(pthread_join(takers[i], NULL) == 0);
    for (int i = 0; i < SHARED / 2 * 2; i++)
        check(got_it[i] == 1);
    check(unexpected == 0);
    (void)pthread_barrier_destroy(&all_are_there);
    done();
}

static void *waits_long(void *taker) {
    check(ls_taker_wait(taker, UINT64_MAX) == LS_WOULD_WAIT);
    over = true;
    return NULL;
}

static void nothing(int signal) { (void)signal; }

static void a_signal_interrupts_a_wait_and_the_taker_keeps_its_turn(void) {
    struct sigaction action = {.sa_handler = nothing}, before;
    pthread_t thread;

    fresh();
    ls_taker *first = new_taker(1, 1), *second = new_taker(1, 1);
    require(sigaction(SIGUSR1, &action, &before) == 0);
    require(pthread_create(&thread, NULL, waits_long, first) == 0);
    while (!over) {
        (void)pthread_kill(thread, SIGUSR1);
        sched_yield();
    }
    check(pthread_join(thread, NULL) == 0);
    require(sigaction(SIGUSR1, &before, NULL) == 0);
    uint64_t one = put(1, "one", NULL), two = put(1, "two", NULL);
    check(is_served(first, one) && is_served(second, two));
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        takers_are_served_in_their_order_with_what_is_durable,
        a_taker_gets_at_once_what_is_there,
        a_release_a_rollback_and_a_commit_serve_takers,
        what_a_taker_gives_back_unseen_goes_to_the_next,
        a_place_that_ended_is_not_given_back,
        takers_of_a_deleted_queue_and_a_closed_store_end_at_once,
        after_a_failed_sync_the_takers_know_that_the_outcome_is_unknown,
        an_inbox_tells_each_taker_once,
        many_threads_get_each_message_once_and_none_waits_beside_one,
        a_signal_interrupts_a_wait_and_the_taker_keeps_its_turn,
    };
    int failed = 0, count = (int)(sizeof tests / sizeof *tests);

    for (int i = 0; i < count && failed == 0; i++) { /* after a failure the threads of a later test may wait for ever */
        failures_here = 0;
        tests[i]();
        failed += failures_here > 0;
    }
    return verdict(count - failed, failed);
}
