/*
 * Consumers: places are acquired in order and once, come back to their old place with their count, and are settled only
 * by the delivery that holds them. A model in plain arrays does the same steps.
 */
#include <pthread.h>

#include "tests/kit/one_store.h"
#include "tests/kit/tallies.h"

enum { MOST = 3000, AT_ONCE = 40, TAKERS = 6, SHARED = 4000 };

enum what_is_there { GONE, FREE, HELD, LOCKED, LOCKED_AND_HELD };

/* One place of queue 1, at its position. */
struct known {
    uint64_t id;
    enum what_is_there state;
    bool durable;
    uint32_t count;
    ls_delivery delivery; /* valid while it is held */
    int tx;
};

static struct known known[MOST];
static size_t places;
static ls_tx *txs[4];
static uint64_t luck;

static bool is_held(const struct known *k) { return k->state == HELD || k->state == LOCKED_AND_HELD; }

/* A place in one of two states, or NULL. */
static struct known *any(enum what_is_there one, enum what_is_there other) {
    for (size_t i = 0, at = places > 0 ? chance(&luck) % places : 0; i < places; i++) {
        struct known *k = &known[(at + i) % places];

        if (k->state == one || k->state == other)
            return k;
    }
    return NULL;
}

static void step_publish(void) {
    for (uint64_t n = chance(&luck) % 20; n > 0 && places < MOST; n--) {
        bool wait = chance(&luck) % 3 == 0;

        known[places++] = (struct known){.id = put_bytes(1, 1, 10, wait ? LS_WAIT : 0), .state = FREE};
        for (size_t i = 0; i < places; i++)
            known[i].durable = known[i].id < ls_durable_lsn(r.store);
    }
}

/* From the front, or after any place, also one that is gone. */
static void step_acquire(void) {
    ls_delivery got[AT_ONCE];
    size_t n = chance(&luck) % AT_ONCE, done, at = 0;
    size_t from = chance(&luck) % 3 == 0 && places > 0 ? 1 + chance(&luck) % places : 0;

    if (from == 0)
        check(ls_acquire(r.store, 1, got, n, 0, &done) == LS_OK);
    else
        check(ls_acquire_after(r.store, 1, from - 1, got, n, 0, &done) == LS_OK);
    for (size_t i = from; i < places && at < n; i++) {
        struct known *k = &known[i];

        if (k->state != FREE || !k->durable)
            continue;
        require(at < done);
        check(got[at].id == k->id && got[at].position == i && got[at].count == ++k->count);
        check(got[at].content_bytes == 10 && got[at].recovered == 0);
        k->state = HELD;
        k->delivery = got[at++];
    }
    check(at == done);
}

/* By their ids: free ones, and others that are left out; some occur twice. */
static void step_take(void) {
    ls_delivery got[AT_ONCE];
    uint64_t ids[AT_ONCE];
    size_t n = 0, done, at = 0;

    while (n < AT_ONCE && places > 0 && chance(&luck) % 10 > 0)
        ids[n++] = known[chance(&luck) % places].id + (chance(&luck) % 20 == 0 ? 1 : 0);
    check(ls_acquire_ids(r.store, 1, ids, n, got, 0, &done) == LS_OK);
    for (size_t i = 0; i < n; i++) {
        struct known *k = known;

        while (k < known + places && k->id != ids[i])
            k++;
        if (k == known + places || k->state != FREE || !k->durable)
            continue;
        require(at < done);
        check(got[at].id == k->id && got[at].position == (uint64_t)(k - known) && got[at].count == ++k->count);
        k->state = HELD;
        k->delivery = got[at++];
    }
    check(at == done);
}

/* The publisher holds its message from the start, durable or not. */
static void step_publish_acquired(void) {
    ls_delivery made;
    uint64_t id;
    bool staged = chance(&luck) % 3 == 0;
    int flags = staged || chance(&luck) % 2 == 0 ? LS_WAIT : 0;
    static const uint8_t content[10];

    if (places == MOST)
        return;
    if (staged) {
        check(ls_stage(r.store, NULL, 0, content, 10, 0, &id) == LS_OK);
        check(ls_enqueue_acquired(r.store, id, 1, 0, flags, &made) == LS_OK && made.id == id);
    } else {
        check(ls_publish_acquired(r.store, 1, NULL, 0, content, 10, 0, flags, &made) == LS_OK);
    }
    check(made.position == places && made.count == 1 && made.content_bytes == 10);
    known[places++] = (struct known){.id = made.id, .state = HELD, .count = 1, .delivery = made};
}

static void step_release(void) {
    ls_delivery back[AT_ONCE] = {{.id = 0}};
    size_t n = 0;
    bool unseen = chance(&luck) % 4 == 0;

    for (uint64_t k = chance(&luck) % AT_ONCE; n < k;) {
        struct known *one = any(HELD, LOCKED_AND_HELD);

        if (one == NULL)
            break;
        back[n++] = one->delivery;
        one->state = one->state == HELD ? FREE : LOCKED;
        one->count -= unseen ? 1 : 0;
    }
    check(ls_release(r.store, 1, back, n, unseen ? LS_UNSEEN : 0) == LS_OK);
    check(n == 0 || ls_release(r.store, 1, back, n, 0) == LS_NOT_ENQUEUED);
}

static void step_settle(void) {
    ls_delivery taken[AT_ONCE] = {{.id = 0}};
    size_t n = 0, done;
    uint64_t lsn;

    for (uint64_t k = chance(&luck) % AT_ONCE; n < k;) {
        struct known *one = any(HELD, HELD);

        if (one == NULL)
            break;
        taken[n++] = one->delivery;
        one->state = GONE;
    }
    if (n == 1)
        check(ls_settle(r.store, 1, taken, NULL, 1, 0, &lsn) == LS_OK);
    else
        check(ls_settle_all(r.store, 1, taken, n, NULL, 1, 0, &done) == LS_OK && done == n);
    for (size_t i = 0; i < n; i++) {
        check(ls_settle(r.store, 1, &taken[i], NULL, 1, 0, &lsn) == LS_UNKNOWN_MESSAGE);
        check(ls_release(r.store, 1, &taken[i], 1, 0) == LS_OK);
    }
}

/* A transaction dequeues by id, or settles what is held. */
static void step_lock(void) {
    int t = (int)(chance(&luck) % 4);
    struct known *k = any(FREE, HELD);
    ls_delivery stale;
    uint64_t lsn;
    size_t done;

    if (k == NULL)
        return;
    if (txs[t] == NULL)
        check(ls_begin(r.store, NULL, &txs[t]) == LS_OK);
    k->tx = t;
    if (is_held(k)) {
        stale = k->delivery;
        stale.count++;
        check(ls_settle(r.store, 1, &stale, txs[t], 1, 0, &lsn) == LS_NOT_ENQUEUED);
        check(ls_settle_all(r.store, 1, &k->delivery, 1, txs[t], 1, 0, &done) == LS_OK && done == 1);
        check(ls_settle(r.store, 1, &k->delivery, txs[t], 1, 0, &lsn) == LS_NOT_ENQUEUED);
        check(ls_settle_all(r.store, 1, &k->delivery, 1, txs[t], 1, 0, &done) == LS_NOT_ENQUEUED && done == 0);
        check(ls_settle(r.store, 1, &k->delivery, NULL, 1, 0, &lsn) == LS_MESSAGE_LOCKED);
        k->state = LOCKED_AND_HELD;
    } else {
        check(ls_dequeue(r.store, k->id, 1, txs[t], 0, 0, 0, &lsn) == LS_OK);
        k->state = LOCKED;
    }
}

static void step_outcome(void) {
    int t = (int)(chance(&luck) % 4);
    bool commit = chance(&luck) % 2 == 0;

    if (txs[t] == NULL)
        return;
    check((commit ? ls_commit : ls_rollback)(txs[t], 0) == LS_OK);
    ls_tx_free(txs[t]);
    txs[t] = NULL;
    for (size_t i = 0; i < places; i++) {
        struct known *k = &known[i];

        if ((k->state == LOCKED || k->state == LOCKED_AND_HELD) && k->tx == t)
            k->state = commit ? GONE : k->state == LOCKED ? FREE : HELD;
    }
}

/* Dequeues by id, held or not; and purges some free places. */
static void step_dequeue(void) {
    struct known *k = any(FREE, chance(&luck) % 4 == 0 ? HELD : FREE);
    uint64_t ids[30];
    size_t n = 0, expected = 0, done;

    if (k != NULL) {
        check(take(k->id, 1, NULL) == LS_OK);
        k->state = GONE;
    }
    for (size_t at = places > 0 ? chance(&luck) % places : 0; n < 30 && at < places && chance(&luck) % 8 > 0; at++) {
        ids[n++] = known[at].id;
        expected += known[at].state == FREE ? 1 : 0;
        known[at].state = known[at].state == FREE ? GONE : known[at].state;
    }
    check(ls_purge(r.store, 1, ids, n, 4, 0, &done) == LS_OK && done == expected);
}

/* A cursor that is moved behind any place lists the places from there on. */
static void step_look(void) {
    ls_cursor *c;
    ls_place got[AT_ONCE];
    size_t from = places > 0 ? chance(&luck) % places : 0, done, at = 0;

    check(ls_cursor_open(r.store, 1, LS_CURSOR_ALL, &c) == LS_OK);
    check(ls_cursor_after(c, places) == LS_OPTION);
    if (places > 0)
        check(ls_cursor_after(c, from++) == LS_OK);
    check(ls_cursor_next(c, got, AT_ONCE, &done) == LS_OK);
    for (size_t i = from; i < places && at < AT_ONCE; i++) {
        if (known[i].state == GONE)
            continue;
        require(at < done);
        check(got[at++].position == i);
    }
    check(at == done);
    ls_cursor_close(c);
}

/* In order, each since a time that has passed. */
static void the_list_of_what_is_acquired_is_right(void) {
    ls_acquisition all[MOST];
    uint64_t from = 0;
    size_t n, seen = 0, known_at = 0;

    do {
        check(ls_acquisitions(r.store, 1, &from, all + seen, 1 + chance(&luck) % (MOST - seen), &n) == LS_OK);
        seen += n;
    } while (from != UINT64_MAX && seen < MOST);
    for (size_t i = 0; i < seen; i++, known_at++) {
        while (known_at < places && !is_held(&known[known_at]))
            known_at++;
        check(known_at < places && all[i].position == known_at && all[i].id == known[known_at].id &&
              all[i].count == known[known_at].count &&
              (all[i].locked != 0) == (known[known_at].state == LOCKED_AND_HELD));
        check(all[i].since_us > 0);
    }
    while (known_at < places && !is_held(&known[known_at]))
        known_at++;
    check(known_at == places);
}

static void counts_are_right(void) {
    ls_queue_counts counts;
    uint64_t all = 0, lock = 0, held = 0;

    for (size_t i = 0; i < places; i++) {
        all += known[i].state != GONE ? 1 : 0;
        lock += known[i].state == LOCKED || known[i].state == LOCKED_AND_HELD ? 1 : 0;
        held += known[i].state == HELD ? 1 : 0;
        known[i].durable = known[i].durable || known[i].id < ls_durable_lsn(r.store);
    }
    check(ls_queue_counts_get(r.store, 1, &counts) == LS_OK && counts.depth == all && counts.locked == lock);
    check(counts.acquired == held && counts.ready == all - lock - held);
    check(counts.bytes == 10 * all && counts.ready_bytes == 10 * counts.ready);
    the_list_of_what_is_acquired_is_right();
    check(tallies_are_those_of_a_walk(&r.store->state.table));
}

static void a_place_that_is_taken_out_of_order_and_given_back_stands_where_it_stood(void) {
    ls_delivery seventh, got[10];
    size_t n;

    fresh();
    for (int i = 0; i < 10; i++)
        put_bytes(1, 1, 10, LS_WAIT);
    check(ls_acquire_after(r.store, 1, 6, &seventh, 1, 0, &n) == LS_OK && n == 1 && seventh.position == 7);
    check(ls_acquire(r.store, 1, got, 2, 0, &n) == LS_OK && n == 2 && got[0].position == 0);
    check(ls_release(r.store, 1, &seventh, 1, 0) == LS_OK && ls_release(r.store, 1, got, 2, 0) == LS_OK);
    check(ls_acquire(r.store, 1, got, 10, 0, &n) == LS_OK && n == 10);
    for (size_t i = 0; i < n; i++)
        check(got[i].position == i && got[i].count == (i < 2 || i == 7 ? 2 : 1));
    check(ls_acquire_after(r.store, 1, 0, got, 10, 0, &n) == LS_OK && n == 0);
    check(ls_acquire_after(r.store, 1, 10, got, 10, 0, &n) == LS_OPTION && n == 0);
    check(ls_acquire_after(r.store, 1, UINT64_MAX, got, 10, 0, &n) == LS_OPTION && n == 0);
    check(ls_acquire_after(r.store, 2, 0, got, 10, 0, &n) == LS_OPTION && n == 0);
    check(ls_acquire_after(r.store, 9, 0, got, 10, 0, &n) == LS_UNKNOWN_QUEUE && n == 0);
    done();
}

static void a_chunk_of_places_that_were_all_taken_offers_the_one_that_comes_back(void) {
    ls_delivery got[3 * 126];
    size_t n;
    uint64_t lsn;

    fresh();
    for (int i = 0; i < 3 * 126; i++)
        put_bytes(1, 1, 10, i == 3 * 126 - 1 ? LS_WAIT : 0);
    check(ls_acquire_after(r.store, 1, 125, got, 126, 0, &n) == LS_OK && n == 126 && got[125].position == 251);
    check(ls_settle(r.store, 1, &got[0], NULL, 1, 0, &lsn) == LS_OK);
    check(ls_release(r.store, 1, &got[60], 1, 0) == LS_OK);
    check(ls_acquire_after(r.store, 1, 125, got, 2, 0, &n) == LS_OK && n == 2);
    check(got[0].position == 186 && got[0].count == 2 && got[1].position == 252);
    check(ls_release(r.store, 1, &got[0], 1, 0) == LS_OK);
    check(ls_acquire(r.store, 1, got, 128, 0, &n) == LS_OK && n == 128);
    check(got[125].position == 125 && got[126].position == 186 && got[127].position == 253);
    check(ls_release(r.store, 1, &got[126], 1, 0) == LS_OK);
    check(ls_acquire_after(r.store, 1, 3, got, 1, 0, &n) == LS_OK && n == 1 && got[0].position == 186);
    done();
}

static void whatever_the_steps_the_first_free_places_are_acquired_with_their_counts(void) {
    static void (*const steps[])(void) = {step_publish, step_acquire, step_acquire, step_acquire,          step_take,
                                          step_release, step_settle,  step_lock,    step_publish_acquired, step_outcome,
                                          step_dequeue, step_look};

    for (uint64_t seed = 1; seed <= 60; seed += ONE_IN) {
        fresh();
        places = 0;
        luck = seed;
        for (int i = 0; i < 400 && failures_here == 0; i++) {
            steps[chance(&luck) % 12]();
            counts_are_right();
        }
        for (int t = 0; t < 4; t++) {
            ls_tx_free(txs[t]);
            txs[t] = NULL;
        }
        done();
    }
}

static void a_stale_delivery_settles_nothing(void) {
    ls_delivery old, now, both[2];
    ls_queue_counts counts;
    uint64_t id, lsn;
    size_t n;

    fresh();
    id = put(1, "one", NULL);
    (void)put(1, "two", NULL);
    check(ls_acquire(r.store, 1, &old, 1, 0, &n) == LS_OK && n == 1 && old.id == id && old.count == 1);
    check(ls_release(r.store, 1, &old, 1, 0) == LS_OK);
    check(ls_settle(r.store, 1, &old, NULL, 1, 0, &lsn) == LS_NOT_ENQUEUED);
    check(ls_acquire(r.store, 1, &now, 1, 0, &n) == LS_OK && n == 1 && now.id == id && now.count == 2);
    both[0] = now;
    both[1] = old;
    check(ls_settle(r.store, 1, &old, NULL, 1, 0, &lsn) == LS_NOT_ENQUEUED);
    check(ls_release(r.store, 1, &old, 1, 0) == LS_NOT_ENQUEUED);
    check(ls_settle_all(r.store, 1, both, 2, NULL, 1, 0, &n) == LS_NOT_ENQUEUED && n == 0);
    check(ls_release(r.store, 1, both, 2, 0) == LS_NOT_ENQUEUED);
    check(ls_queue_counts_get(r.store, 1, &counts) == LS_OK && counts.acquired == 1);
    check(add(id, 2, NULL) == LS_OK && ls_settle(r.store, 2, &now, NULL, 1, 0, &lsn) == LS_NOT_ENQUEUED);
    check(take(id, 1, NULL) == LS_OK && add(id, 1, NULL) == LS_OK); /* a new place, behind the other one */
    check(ls_settle(r.store, 1, &now, NULL, 1, 0, &lsn) == LS_NOT_ENQUEUED);
    check(ls_release(r.store, 1, &now, 1, 0) == LS_OK);
    check(ls_acquire(r.store, 1, both, 2, 0, &n) == LS_OK && n == 2 && both[1].id == id && both[1].count == 1);
    check(ls_settle_all(r.store, 1, both, 2, NULL, 1, LS_WAIT, &n) == LS_OK && n == 2 && has(id));
    done();
}

/* The second of two equal deliveries in a list finds nothing to settle; a list to release may have it twice. */
static void a_delivery_that_is_in_a_list_twice_counts_once(void) {
    ls_delivery twice[2];
    size_t n;

    fresh();
    (void)put(1, "one", NULL);
    check(ls_acquire(r.store, 1, twice, 2, 0, &n) == LS_OK && n == 1);
    twice[1] = twice[0];
    check(ls_release(r.store, 1, twice, 2, LS_UNSEEN) == LS_OK);
    check(ls_acquire(r.store, 1, twice, 2, 0, &n) == LS_OK && n == 1 && twice[0].count == 1);
    check(ls_settle_all(r.store, 1, twice, 2, NULL, 1, 0, &n) == LS_UNKNOWN_MESSAGE && n == 1);
    done();
}

static void a_deleted_queue_has_no_deliveries(void) {
    ls_delivery had[2], none;
    ls_queue_counts counts;
    uint64_t lsn;
    size_t n;

    fresh();
    (void)put(1, "one", NULL);
    (void)put(1, "two", NULL);
    check(ls_acquire(r.store, 1, had, 2, 0, &n) == LS_OK && n == 2 && ls_release(r.store, 1, had, 1, 0) == LS_OK);
    check(ls_queue_delete(r.store, 1, LS_WAIT) == LS_OK);
    check(ls_acquire(r.store, 1, &none, 1, 0, &n) == LS_UNKNOWN_QUEUE && n == 0);
    check(ls_settle(r.store, 1, &had[1], NULL, 1, 0, &lsn) == LS_UNKNOWN_QUEUE);
    check(ls_settle_all(r.store, 1, &had[1], 1, NULL, 1, 0, &n) == LS_UNKNOWN_QUEUE);
    check(ls_release(r.store, 1, &had[1], 1, 0) == LS_UNKNOWN_QUEUE);
    check(ls_queue_counts_get(r.store, 1, &counts) == LS_UNKNOWN_QUEUE);
    check(ls_queue_add(r.store, 1) == LS_OK && ls_acquire(r.store, 1, &none, 1, 0, &n) == LS_OK && n == 0);
    (void)put(1, "three", NULL);
    check(ls_acquire(r.store, 1, &none, 1, 0, &n) == LS_OK && n == 1 && none.count == 1);
    done();
}

static void after_an_open_nothing_is_acquired_and_counts_go_on(void) {
    ls_delivery one;
    size_t n;

    fresh();
    (void)put(1, "one", NULL);
    for (uint32_t i = 1; i <= 3; i++) {
        check(ls_acquire(r.store, 1, &one, 1, 0, &n) == LS_OK && n == 1 && one.count == i && one.recovered == 0);
        check(i == 3 || ls_release(r.store, 1, &one, 1, 0) == LS_OK);
    }
    again();
    check(ls_acquire(r.store, 1, &one, 1, 0, &n) == LS_OK && n == 1 && one.count == 4 && one.recovered == 0);
    check(ls_close(r.store) == LS_OK && ls_acquire(r.store, 1, &one, 1, 0, &n) == LS_CLOSED && n == 0);
    done();
}

/*
 * Loads messages of one record with and without a header, then one of several records, one that has ended, and one that
 * does not fit.
 */
static void acquired_messages_are_loaded_until_the_buffer_is_full(void) {
    static uint8_t into[20000], large[SEGMENT / 2];
    uint64_t ids[6];
    ls_delivery got[6];
    ls_span spans[6];
    uint32_t queue = 1;
    size_t n, done_count;

    fresh();
    for (uint8_t i = 0; i < 4; i++)
        check(ls_publish(r.store, &queue, 1, (const uint8_t *)"head", i % 2 * 4u, (const uint8_t *)"content", i, NULL,
                         LS_WAIT, &ids[i]) == LS_OK);
    check(ls_publish(r.store, &queue, 1, NULL, 0, large, sizeof large, NULL, LS_WAIT, &ids[4]) == LS_OK);
    ids[5] = put_bytes(1, 7, 3000, LS_WAIT);
    check(ls_acquire(r.store, 1, got, 6, 0, &n) == LS_OK && n == 6);
    check(take(ids[2], 1, NULL) == LS_OK);
    got[3].number = 12345; /* only a hint */
    check(ls_load_acquired(r.store, got, 6, spans, into, sizeof into, &n) == LS_OK && n == 6);
    for (size_t i = 0; i < 4; i++) {
        const ls_span *s = &spans[i];

        check(got[i].content_bytes == i && (s->content_at == 0) == (i == 2));
        check(i == 2 || (s->content_bytes == i && s->header_bytes == i % 2 * 4));
        check(i == 2 || (memcmp(into + s->content_at, "content", i) == 0 &&
                         memcmp(into + s->header_at, "head", s->header_bytes) == 0));
    }
    check(spans[4].content_at == 0 && spans[5].content_bytes == 3000 && into[spans[5].content_at + 2999] == 7);
    check(ls_load_acquired(r.store, got, 6, spans, into, 3100, &n) == LS_OK && n == 5);
    check(ls_load_acquired(r.store, got, 0, spans, into, 3100, &n) == LS_OK && n == 0);
    check(ls_settle_all(r.store, 1, got + 3, 3, NULL, 1, 0, &done_count) == LS_OK && done_count == 3);
    check(ls_load_acquired(r.store, got + 3, 3, spans, into, sizeof into, &n) == LS_OK && n == 3);
    check(spans[0].content_at == 0 && spans[2].content_at == 0);
    done();
}

/* ---- threads ---- */

static atomic_uint settled[SHARED], handed_out[SHARED];
static uint64_t first_id, last_id;
static atomic_int unexpected;

static void *takes(void *seed) {
    uint64_t mine = (uint64_t)(uintptr_t)seed;
    ls_delivery got[16];
    size_t n, done, kept;

    do {
        if (ls_acquire(r.store, 1, got, 1 + chance(&mine) % 16, 0, &n) != LS_OK)
            unexpected++;
        kept = n == 0 ? 0 : chance(&mine) % (n + 1);
        for (size_t i = 0; i < n; i++) {
            size_t at = got[i].position;

            if (got[i].count != ++handed_out[at])
                unexpected++;
            if (i < kept)
                settled[at]++;
        }
        if (ls_settle_all(r.store, 1, got, kept, NULL, 1, chance(&mine) % 20 == 0 ? LS_WAIT : 0, &done) != LS_OK ||
            done != kept || ls_release(r.store, 1, got + kept, n - kept, 0) != LS_OK)
            unexpected++;
    } while (n > 0);
    return NULL;
}

static void many_threads_settle_each_place_once_and_count_each_time(void) {
    pthread_t threads[TAKERS];
    ls_queue_counts counts;
    uint64_t depth, locked;
    ls_delivery rest[32];
    size_t n;

    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    const ls_options options = r.options;
    fresh_with(&options);
    for (int i = 0; i < SHARED; i++) {
        last_id = put_bytes(1, 1, 8, 0);
        first_id = i == 0 ? last_id : first_id;
    }
    check(ls_force(r.store, 0) == LS_OK);
    for (uintptr_t i = 0; i < TAKERS; i++)
        require(pthread_create(&threads[i], NULL, takes, (void *)(i + 1)) == 0);
    for (size_t i = 0; i < TAKERS; i++)
        check(pthread_join(threads[i], NULL) == 0);
    while (ls_acquire(r.store, 1, rest, 32, 0, &n) == LS_OK &&
           n > 0) { /* the last call released it, after the others had ended */
        for (size_t i = 0; i < n; i++)
            settled[rest[i].position]++;
        check(ls_settle_all(r.store, 1, rest, n, NULL, 1, 0, &n) == LS_OK);
    }
    for (int i = 0; i < SHARED; i++)
        check(settled[i] == 1);
    check(unexpected == 0 && ls_queue_depth(r.store, 1, &depth, &locked) == LS_OK && depth == 0);
    check(ls_queue_counts_get(r.store, 1, &counts) == LS_OK && counts.acquired == 0 && counts.bytes == 0);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        whatever_the_steps_the_first_free_places_are_acquired_with_their_counts,
        a_place_that_is_taken_out_of_order_and_given_back_stands_where_it_stood,
        a_chunk_of_places_that_were_all_taken_offers_the_one_that_comes_back,
        a_stale_delivery_settles_nothing,
        a_delivery_that_is_in_a_list_twice_counts_once,
        a_deleted_queue_has_no_deliveries,
        after_an_open_nothing_is_acquired_and_counts_go_on,
        acquired_messages_are_loaded_until_the_buffer_is_full,
        many_threads_settle_each_place_once_and_count_each_time,
    };
    int failed = 0, count = (int)(sizeof tests / sizeof *tests);

    for (int i = 0; i < count; i++) {
        failures_here = 0;
        tests[i]();
        failed += failures_here > 0;
    }
    return verdict(count - failed, failed);
}
