/*
 * LS_TRY: a call that would have to wait returns LS_WOULD_WAIT and has changed nothing; any other is made as without it.
 * Every wait is made necessary in turn: for the lock, a buffer, a segment, and between the records of a long message.
 */
#include "log/parts.h"
#include "tests/kit/one_store.h"

static const uint32_t queue = 1;

static int try_put(uint32_t bytes, ls_tx *tx, uint64_t *id) {
    static uint8_t content[SEGMENT];
    return ls_publish(r.store, &queue, 1, NULL, 0, content, bytes, tx, LS_TRY, id);
}

static int try_take(uint64_t id, ls_tx *tx) {
    uint64_t lsn;
    return ls_dequeue(r.store, id, queue, tx, 0, 0, LS_TRY, &lsn);
}

/* A store that has the spares it needs: without threads of its own the first call makes them, and so would wait. */
static void ready(void) {
    fresh();
    check(take(put(queue, "first", NULL), queue, NULL) == LS_OK);
}

static uint64_t messages_there(void) {
    ls_stats stats;
    ls_stats_get(r.store, &stats);
    return stats.messages;
}

static void a_call_that_need_not_wait_is_made(void) {
    ls_tx *tx;
    uint64_t id = 0, in_tx = 0;
    ready();
    check(try_put(100, NULL, &id) == LS_OK && id != 0 && messages_there() == 1);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    check(try_put(100, tx, &in_tx) == LS_OK && try_take(id, tx) == LS_OK);
    check(ls_commit(tx, LS_WAIT) == LS_OK && messages_there() == 1);
    ls_tx_free(tx);
    check(try_take(in_tx, NULL) == LS_OK && messages_there() == 0);
    again();
    check(messages_there() == 0);
    done();
}

static void its_errors_are_those_of_the_waiting_call(void) {
    uint64_t id = 0, lsn = 0;
    uint32_t unknown = 1000;
    ready();
    check(ls_publish(r.store, &unknown, 1, NULL, 0, NULL, 0, NULL, LS_TRY, &id) == LS_UNKNOWN_QUEUE);
    check(try_take(12345, NULL) == LS_UNKNOWN_MESSAGE);
    check(ls_publish(r.store, &queue, 1, NULL, 0, NULL, 0, NULL, LS_TRY | LS_WAIT, &id) == LS_OPTION);
    check(ls_dequeue(r.store, 1, queue, NULL, 0, 0, LS_TRY | LS_WAIT, &lsn) == LS_OPTION);
    check(ls_close(r.store) == LS_OK);
    check(try_put(1, NULL, &id) == LS_CLOSED && try_take(1, NULL) == LS_CLOSED);
    done();
}

/* ---- the lock ---- */

static void another_thread_that_holds_the_lock_is_not_waited_for(void) {
    uint64_t id = 0, before;
    ready();
    before = ls_next_lsn(r.store);
    (void)pthread_mutex_lock(
        &r.store->log->front.lock); /* a trylock by the owner fails as one by another thread does */
    int rc = try_put(100, NULL, &id);
    (void)pthread_mutex_unlock(&r.store->log->front.lock);
    check(rc == LS_WOULD_WAIT && id == 0 && ls_next_lsn(r.store) == before);
    check(try_put(100, NULL, &id) == LS_OK);
    done();
}

static void an_lsn_is_told_without_waiting_for_the_lock(void) {
    uint64_t id, next_lsn;
    ready();
    check(try_put(100, NULL, &id) == LS_OK);
    (void)pthread_mutex_lock(&r.store->log->front.lock);
    next_lsn = ls_next_lsn_try(r.store);
    int rc = ls_durable_soon(r.store, id + 1, LS_TRY);
    (void)pthread_mutex_unlock(&r.store->log->front.lock);
    check(next_lsn == 0 && rc == LS_WOULD_WAIT);
    next_lsn = ls_next_lsn_try(r.store);
    check(next_lsn > id && next_lsn == ls_next_lsn(r.store));
    check(ls_durable_soon(r.store, next_lsn, LS_TRY) == 0 && ls_force(r.store, 0) == LS_OK);
    (void)pthread_mutex_lock(&r.store->log->front.lock);
    rc = ls_durable_soon(r.store, next_lsn, LS_TRY);
    (void)pthread_mutex_unlock(&r.store->log->front.lock);
    check(rc == 1);
    done();
}

/* A record of a transaction asks for no flush. */
static void an_lsn_that_is_told_is_flushed(void) {
    ls_tx *tx;
    uint64_t id;
    ready();
    check(ls_force(r.store, 0) == LS_OK && ls_begin(r.store, NULL, &tx) == LS_OK);
    check(try_put(100, tx, &id) == LS_OK && r.store->log->flusher.wanted_lsn <= id);
    uint64_t next_lsn = ls_next_lsn_try(r.store);
    check(next_lsn > id && r.store->log->flusher.wanted_lsn == next_lsn);
    check(try_put(100, tx, &id) == LS_OK && r.store->log->flusher.wanted_lsn <= id);
    check(ls_durable_soon(r.store, id + 1, LS_TRY) == 0 && r.store->log->flusher.wanted_lsn > id);
    check(ls_rollback(tx, 0) == LS_OK);
    ls_tx_free(tx);
    done();
}

/* ---- room ---- */

/* Publishes until it would wait; then nothing has changed, the waiting call succeeds, and trying is possible again. */
static void fills_up(uint32_t bytes, ls_tx *tx) {
    for (int round = 0; round < 4000; round++) {
        uint64_t id = 0, lsn = ls_next_lsn(r.store), there = messages_there();
        int rc = try_put(bytes, tx, &id);
        if (rc == LS_OK) {
            check(id != 0 && messages_there() == there + 1);
            continue;
        }
        check(rc == LS_WOULD_WAIT && id == 0 && ls_next_lsn(r.store) == lsn && messages_there() == there);
        id = put_bytes(queue, 1, bytes, 0);
        check(id != 0 && ls_force(r.store, 0) == LS_OK && try_put(8, tx, &id) == LS_OK);
        return;
    }
    check(complain("no call would have had to wait"));
}

static void a_full_buffer_is_not_waited_for(void) {
    ready();
    fills_up(3000, NULL);
    fills_up(3000, NULL); /* also at the end of a segment, and where blocks could be written early */
    fills_up(1, NULL);
    done();
}

static void a_transaction_waits_for_no_room_either(void) {
    ls_tx *tx;
    ready();
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    fills_up(3000, tx);
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    done();
}

static void a_message_of_several_records_is_not_begun(void) {
    uint64_t id = 0, before, there;
    ready();
    before = ls_next_lsn(r.store);
    there = messages_there();
    check(try_put(SEGMENT / 4, NULL, &id) == LS_WOULD_WAIT);
    check(id == 0 && ls_next_lsn(r.store) == before && messages_there() == there);
    done();
}

/* Trying is admitted as waiting is: what it appends leaves room for the dequeues that make room. */
static void a_store_filled_by_tries_can_be_drained(void) {
    enum { MESSAGES_MAX = 4000, BYTES = 1500 };
    static uint64_t ids[MESSAGES_MAX];
    static const uint8_t content[BYTES];
    ls_options options;
    size_t n = 0;
    int rc = LS_OK;
    ls_options_default(&options);
    options.segment_size = SEGMENT;
    options.background = 0;
    options.max_log_bytes = (uint64_t)10 * SEGMENT;
    fresh_with(&options);
    while (rc == LS_OK && n < MESSAGES_MAX) {
        rc = try_put(BYTES, NULL, &ids[n]);
        if (rc == LS_WOULD_WAIT)
            rc = ls_publish(r.store, &queue, 1, NULL, 0, content, BYTES, NULL, 0, &ids[n]);
        n += rc == LS_OK ? 1 : 0;
    }
    check(rc == LS_FULL && n > 100);
    check(try_put(BYTES, NULL, &ids[n]) == LS_WOULD_WAIT);
    for (size_t i = n; i-- > 0;)
        check(take(ids[i], queue, NULL) == LS_OK || complain("a full store cannot be drained"));
    check(put(queue, "again", NULL) != 0 && messages_there() == 1);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_call_that_need_not_wait_is_made,
        its_errors_are_those_of_the_waiting_call,
        another_thread_that_holds_the_lock_is_not_waited_for,
        an_lsn_is_told_without_waiting_for_the_lock,
        an_lsn_that_is_told_is_flushed,
        a_full_buffer_is_not_waited_for,
        a_transaction_waits_for_no_room_either,
        a_message_of_several_records_is_not_begun,
        a_store_filled_by_tries_can_be_drained,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
