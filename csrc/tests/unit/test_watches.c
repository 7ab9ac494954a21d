/*
 * Watches: an inbox is told which of its queues have messages that arrived, or places that came back; once for many, never
 * before a message is durable, and again after each look.
 */
#include <pthread.h>
#include <unistd.h>

#include "tests/kit/failing_memory.h"
#include "tests/kit/one_store.h"

enum { ROUNDS = 400, SEEN_MAX = 16 };

static ls_inbox *inbox;
static int event;

static void fresh_inbox(void) {
    fresh();
    check(ls_inbox_new(r.store, &inbox, &event) == LS_OK || complain("inbox"));
}

static void done_inbox(void) {
    ls_inbox_free(inbox);
    done();
}

/* Whether exactly this queue has events, and these. */
static bool told(uint32_t queue_id, uint32_t kinds) {
    ls_event seen[SEEN_MAX];
    size_t n = ls_inbox_events(inbox, seen, SEEN_MAX);
    return kinds == 0 ? n == 0 : n == 1 && seen[0].queue_id == queue_id && seen[0].kinds == kinds;
}

static void a_message_arrives_when_it_is_durable_and_not_before(void) {
    fresh_inbox();
    check(ls_inbox_watch(inbox, 1, LS_ARRIVED) == LS_OK);
    (void)put_bytes(1, 1, 10, LS_MORE);
    check(told(1, 0));
    (void)put_bytes(1, 2, 10, LS_MORE);
    check(ls_force(r.store, 0) == LS_OK);
    check(told(1, LS_ARRIVED) && told(1, 0));
    (void)put(2, "on another queue", NULL);
    check(told(1, 0));
    (void)put(1, "again", NULL);
    check(told(1, LS_ARRIVED));
    done_inbox();
}

static void what_is_not_durable_when_the_watch_begins_arrives(void) {
    fresh_inbox();
    (void)put(1, "there already", NULL);
    check(ls_inbox_watch(inbox, 1, LS_ARRIVED) == LS_OK && told(1, 0));
    check(ls_inbox_watch(inbox, 1, 0) == LS_OK);
    (void)put_bytes(1, 1, 10, LS_MORE);
    check(ls_inbox_watch(inbox, 1, LS_ARRIVED) == LS_OK && told(1, 0));
    check(ls_force(r.store, 0) == LS_OK && told(1, LS_ARRIVED));
    done_inbox();
}

static void only_the_queues_of_a_rollback_are_told(void) {
    ls_tx *tx;

    fresh_inbox();
    uint64_t id = put(1, "one", NULL);
    (void)put(2, "two", NULL);
    check(ls_inbox_watch(inbox, 1, LS_RELEASED) == LS_OK && ls_inbox_watch(inbox, 2, LS_RELEASED) == LS_OK);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && take(id, 1, tx) == LS_OK && told(1, 0));
    check(ls_rollback(tx, 0) == LS_OK);
    ls_tx_free(tx);
    check(told(1, LS_RELEASED) && told(1, 0));
    done_inbox();
}

static void a_release_is_told_also_of_a_place_out_of_the_order(void) {
    ls_delivery got[2];
    size_t n;

    fresh_inbox();
    (void)put(1, "one", NULL);
    uint64_t two = put(1, "two", NULL);
    check(ls_inbox_watch(inbox, 1, LS_RELEASED | LS_ARRIVED) == LS_OK);
    check(ls_acquire_ids(r.store, 1, &two, 1, got, 0, &n) == LS_OK && n == 1);
    check(ls_release(r.store, 1, got, 1, 0) == LS_OK && told(1, LS_RELEASED));
    check(ls_acquire(r.store, 1, got, 2, 0, &n) == LS_OK && n == 2);
    check(ls_release(r.store, 1, got, 2, 0) == LS_OK && told(1, LS_RELEASED) && told(1, 0));
    done_inbox();
}

/* A consumer still holds the place that the rollback unlocks. */
static void a_place_that_stays_acquired_does_not_come_back(void) {
    ls_delivery got[1];
    ls_tx *tx;
    size_t n;
    uint64_t lsn;

    fresh_inbox();
    (void)put(1, "one", NULL);
    check(ls_inbox_watch(inbox, 1, LS_RELEASED) == LS_OK);
    check(ls_acquire(r.store, 1, got, 1, 0, &n) == LS_OK && n == 1 && ls_begin(r.store, NULL, &tx) == LS_OK);
    check(ls_settle(r.store, 1, got, tx, 1, 0, &lsn) == LS_OK && ls_rollback(tx, 0) == LS_OK);
    ls_tx_free(tx);
    check(told(1, 0));
    check(ls_release(r.store, 1, got, 1, 0) == LS_OK && told(1, LS_RELEASED));
    done_inbox();
}

static void a_deleted_queue_is_told_as_its_last_event(void) {
    fresh_inbox();
    check(ls_inbox_watch(inbox, 1, LS_ARRIVED | LS_RELEASED) == LS_OK && ls_inbox_watch(inbox, 2, LS_ARRIVED) == LS_OK);
    (void)put(1, "one", NULL);
    check(ls_queue_delete(r.store, 1, LS_WAIT) == LS_OK);
    check(told(1, LS_ARRIVED | LS_QUEUE_DELETED) && told(1, 0));
    check(ls_inbox_watch(inbox, 1, LS_ARRIVED) == LS_UNKNOWN_QUEUE && ls_inbox_watch(inbox, 1, 0) == LS_OK);
    check(ls_queue_delete(r.store, 2, LS_WAIT) == LS_OK);
    done_inbox(); /* with an event that nobody has taken */
}

static void every_queue_is_watched_also_a_later_one(void) {
    ls_event seen[SEEN_MAX];
    ls_inbox *other;
    int fd;

    fresh_inbox();
    check(ls_inbox_watch(inbox, 0, LS_ARRIVED) == LS_OK);
    check(ls_inbox_watch(inbox, 1, LS_ARRIVED) == LS_OPTION);
    (void)put(1, "one", NULL);
    (void)put(2, "two", NULL);
    check(ls_inbox_events(inbox, seen, SEEN_MAX) == 2 && seen[0].queue_id == 1 && seen[1].queue_id == 2);
    check(ls_queue_add(r.store, QUEUES + 1) == LS_OK);
    (void)put(QUEUES + 1, "three", NULL);
    check(told(QUEUES + 1, LS_ARRIVED));
    (void)put(QUEUES + 1, "four", NULL);
    check(ls_queue_delete(r.store, QUEUES + 1, LS_WAIT) == LS_OK && told(0, 0));
    check(ls_inbox_new(r.store, &other, &fd) == LS_OK && ls_inbox_watch(other, 1, LS_RELEASED) == LS_OK);
    check(ls_inbox_watch(other, 0, LS_RELEASED) == LS_OPTION &&
          ls_inbox_watch(other, 1, LS_QUEUE_DELETED) == LS_OPTION);
    check(ls_inbox_watch(inbox, 0, 0) == LS_OK);
    (void)put(1, "five", NULL);
    check(told(0, 0));
    ls_inbox_free(other);
    done_inbox();
}

static void a_closed_store_has_no_watch_and_its_inbox_may_go_later(void) {
    ls_tx *tx;

    fresh_inbox();
    uint64_t id = put(1, "one", NULL);
    check(ls_inbox_watch(inbox, 1, LS_ARRIVED | LS_RELEASED) == LS_OK);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && take(id, 1, tx) == LS_OK);
    check(ls_close(r.store) == LS_OK); /* which rolls back */
    check(ls_inbox_watch(inbox, 2, LS_ARRIVED) == LS_CLOSED);
    ls_tx_free(tx);
    ls_free(r.store);
    ls_inbox_free(inbox);
    r.store = NULL;
    done();
}

/* ---- no memory ---- */

static int watch_one(void) { return ls_inbox_watch(inbox, 1, LS_ARRIVED); }
static int watch_every_queue(void) { return ls_inbox_watch(inbox, 0, LS_ARRIVED); }
static int add_a_queue(void) { return ls_queue_add(r.store, QUEUES + 1); }

/* The nth allocation of the call fails, n = 1, 2 ...; each failure changes nothing, and the call succeeds at last. */
static void succeeds_in_the_end(int (*call)(void)) {
    int rc;

    fail_at_nth = 0;
    do {
        fail_at_nth++;
        failed = allocations = 0;
        counting = true;
        rc = call();
        counting = false;
        check(failed == 0 ? rc == LS_OK : rc == LS_NO_MEMORY || rc == LS_OK);
        check(rc == LS_OK || told(0, 0));
    } while (failed > 0);
    fail_at_nth = 0;
    check(rc == LS_OK);
}

static void a_watch_for_which_there_is_no_memory_is_refused_whole(void) {
    if (TAKEN_OVER == 0)
        return;
    fresh_inbox();
    succeeds_in_the_end(watch_one);
    (void)put(1, "one", NULL);
    check(told(1, LS_ARRIVED));
    check(ls_inbox_watch(inbox, 1, 0) == LS_OK);
    succeeds_in_the_end(watch_every_queue);
    succeeds_in_the_end(add_a_queue);
    (void)put(QUEUES + 1, "two", NULL);
    check(told(QUEUES + 1, LS_ARRIVED));
    done_inbox();
}

/* ---- threads ---- */

static atomic_bool stop;

static void *publish_always(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        (void)put_bytes(1, 1, 10, i % 2 == 0 ? LS_WAIT : LS_MORE);
    }
    check(ls_force(r.store, 0) == LS_OK);
    atomic_store(&stop, true);
    return NULL;
}

static void *watch_and_leave(void *unused) {
    (void)unused;
    while (!atomic_load(&stop)) {
        ls_inbox *mine;
        int fd;
        check(ls_inbox_new(r.store, &mine, &fd) == LS_OK);
        check(ls_inbox_watch(mine, 1, LS_ARRIVED | LS_RELEASED) == LS_OK);
        check(ls_inbox_watch(mine, 2, LS_ARRIVED) == LS_OK);
        ls_inbox_free(mine);
    }
    return NULL;
}

/* A consumer that looks at the queue only after each event gets every message. */
static void no_message_is_missed_by_who_looks_after_each_event(void) {
    pthread_t publisher, others[2];
    size_t got = 0;

    fresh_inbox();
    atomic_store(&stop, false);
    check(ls_inbox_watch(inbox, 1, LS_ARRIVED) == LS_OK);
    check(pthread_create(&publisher, NULL, publish_always, NULL) == 0);
    for (size_t i = 0; i < 2; i++) {
        check(pthread_create(&others[i], NULL, watch_and_leave, NULL) == 0);
    }
    while (got < ROUNDS) {
        ls_event seen;
        if (ls_inbox_events(inbox, &seen, 1) == 0) {
            continue;
        }
        ls_delivery taken[SEEN_MAX];
        for (size_t n = 1; n > 0; got += n) {
            check(ls_acquire(r.store, 1, taken, SEEN_MAX, 0, &n) == LS_OK);
        }
    }
    (void)pthread_join(publisher, NULL);
    for (size_t i = 0; i < 2; i++) {
        (void)pthread_join(others[i], NULL);
    }
    done_inbox();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_message_arrives_when_it_is_durable_and_not_before,
        what_is_not_durable_when_the_watch_begins_arrives,
        only_the_queues_of_a_rollback_are_told,
        a_release_is_told_also_of_a_place_out_of_the_order,
        a_place_that_stays_acquired_does_not_come_back,
        a_deleted_queue_is_told_as_its_last_event,
        every_queue_is_watched_also_a_later_one,
        a_closed_store_has_no_watch_and_its_inbox_may_go_later,
        a_watch_for_which_there_is_no_memory_is_refused_whole,
        no_message_is_missed_by_who_looks_after_each_event,
    };
    int failed = 0, count = (int)(sizeof tests / sizeof *tests);

    for (int i = 0; i < count; i++) {
        failures_here = 0;
        tests[i]();
        failed += failures_here > 0;
    }
    return verdict(count - failed, failed);
}
