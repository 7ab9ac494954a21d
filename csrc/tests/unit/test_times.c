/*
 * Times of places: hidden until one, expired after another, never moved and never lost. Random operations are compared with a
 * plain list of places that is walked for every answer; then single promises, of waiting consumers too.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "store/store.h"
#include "tests/kit/failing_memory.h"
#include "tests/kit/move_base.h"
#include "tests/kit/one_store.h"
#include "tests/kit/tallies.h"

enum { LISTED_MAX = 700, LIVE_MAX = 400, TAKEN_MAX = 40 };

static const uint64_t SECOND_US = 1000000;

/* ---- the clock, which goes on by a little at each look ---- */

static uint64_t now_us(void) { return r.v->now_us(r.v); }

static void set_clock(uint64_t us) { vfs_sim_advance(sim, (int64_t)us - (int64_t)now_us()); }

static uint64_t in_seconds(uint64_t n) { return now_us() + n * SECOND_US; }

/* Writes these times of a place, as a record of the log. */
static int set_times(uint64_t id, uint32_t queue, uint64_t not_before_us, uint64_t expires_us) {
    const struct table *t = &r.store->state.table;
    struct state_row row;
    int rc = store_enter(r.store);

    if (rc != LS_OK)
        return rc;
    struct message *m = table_message(t, table_find(t, id));
    rc = log_reserve_to_grow(r.store->log, format_place_states_bytes(1), message_states_grow_at_most(t, m, 1, 0),
                             RESERVE_GROWS);
    m = table_message(t, table_find(t, id));
    const struct place *p = message_place(m, queue);
    struct remembered state = place_state(p);
    state.not_before_us = not_before_us;
    state.expires_us = expires_us;
    check(rc == LS_OK && states_prepare(m, p, &state, &row));
    states_put(r.store, &row, 1);
    return store_leave(r.store, LS_OK, LS_WAIT);
}

static uint64_t put_timed(uint32_t queue, uint64_t not_before_us, uint64_t expires_us) {
    uint64_t id = put(queue, "message", NULL);

    check(set_times(id, queue, not_before_us, expires_us) == LS_OK);
    return id;
}

static ls_queue_counts counts_of(uint32_t queue) {
    ls_queue_counts c = {.depth = 0};

    check(ls_queue_counts_get(r.store, queue, &c) == LS_OK || complain("counts"));
    check(c.depth == c.ready + c.acquired + c.locked + c.hidden + c.expired);
    return c;
}

static bool counts_are(uint32_t queue, uint64_t ready, uint64_t hidden, uint64_t expired) {
    ls_queue_counts c = counts_of(queue);

    return c.ready == ready && c.hidden == hidden && c.expired == expired;
}

/* The only place that is offered, or the only one that has expired; a count of 0: there is none. */
static ls_delivery next_of(uint32_t queue) {
    ls_delivery one = {.count = 0};
    size_t n;

    check(ls_acquire(r.store, queue, &one, 1, 0, &n) == LS_OK);
    return one;
}

static ls_delivery expired_of(uint32_t queue) {
    ls_delivery one = {.count = 0};
    size_t n;

    check(ls_acquire_expired(r.store, queue, &one, 1, 0, &n) == LS_OK);
    return one;
}

static void give_back(uint32_t queue, const ls_delivery *d) { check(ls_release(r.store, queue, d, 1, 0) == LS_OK); }

static int delay(uint32_t queue, const ls_delivery *d, uint64_t seconds) {
    return ls_delay(r.store, queue, d, 1, in_seconds(seconds), LS_WAIT);
}

/* The present process dies; another finds this disk. */
static void on_disk(vfs_sim *found) {
    ls_free(r.store);
    vfs_sim_free(sim);
    sim = r.sim = found;
    r.v = vfs_sim_table(sim);
    check(open_again() == LS_OK || complain("open"));
}

/* ---- random operations, and a list ---- */

struct listed {
    uint64_t id, not_before_us, expires_us; /* id 0: it has ended */
    bool hidden, expired, acquired, locked;
    ls_delivery delivery;
};

static struct listed list[LISTED_MAX];
static uint32_t listed_count, alive;
static uint64_t model_us; /* the clock, in whole seconds; the real one is a little later */
static ls_tx *open_tx;

static uint64_t pick(uint64_t n) { return chance(&r.chance) % n; }

static bool is_held(const struct listed *x) { return x->id == 0 || x->acquired || x->locked; }

static bool is_free(const struct listed *x) { return !is_held(x) && !x->hidden && !x->expired; }

static void pass_one(struct listed *x) {
    if (x->expires_us != 0 && x->expires_us <= model_us)
        x->expired = true;
    x->hidden = x->hidden && !x->expired && x->not_before_us > model_us;
}

static void time_passes(void) {
    for (uint32_t i = 0; i < listed_count; i++) {
        if (!is_held(&list[i]))
            pass_one(&list[i]);
    }
}

static void list_times(struct listed *x, uint64_t not_before_us, uint64_t expires_us) {
    x->not_before_us = not_before_us;
    x->expires_us = expires_us;
    x->hidden = not_before_us != 0;
    x->expired = false;
    pass_one(x);
}

static uint64_t some_time(void) { return model_us + (1 + pick(40)) * SECOND_US; }

static void to_model_time(void) {
    set_clock(model_us + 1000);
    time_passes();
}

static void counts_agree(void) {
    ls_queue_counts want = {.depth = 0}, got = counts_of(1);

    for (uint32_t i = 0; i < listed_count; i++) {
        const struct listed *x = &list[i];

        want.depth += x->id != 0;
        want.ready += is_free(x);
        want.locked += x->id != 0 && x->locked;
        want.acquired += x->id != 0 && x->acquired && !x->locked;
        want.hidden += !is_held(x) && x->hidden;
        want.expired += !is_held(x) && x->expired;
    }
    check(got.depth == want.depth && got.ready == want.ready && got.locked == want.locked);
    check(got.acquired == want.acquired && got.hidden == want.hidden && got.expired == want.expired);
    log_lock(r.store->log);
    check(tallies_are_those_of_a_walk(&r.store->state.table));
    log_unlock(r.store->log);
}

/* The call gave the places that a walk over all of them finds, in the same order. */
static void took(const ls_delivery *got, size_t n, size_t asked, bool expired, uint64_t after) {
    size_t k = 0;

    for (uint32_t i = 0; i < listed_count && k < asked; i++) {
        struct listed *x = &list[i];

        if (x->id <= after || !(expired ? !is_held(x) && x->expired : is_free(x)))
            continue;
        check(k < n && got[k].id == x->id);
        if (k < n) {
            x->acquired = true;
            x->delivery = got[k];
        }
        k++;
    }
    check(n == k);
}

static void op_publish(void) {
    if (listed_count == LISTED_MAX || alive >= LIVE_MAX)
        return;
    static const char words[] = "contents of many lengths, so that those that are counted are the right ones";
    struct listed *x = &list[listed_count++];

    *x = (struct listed){.id = put(1, words + pick(sizeof words), NULL)};
    alive++;
    if (pick(3) != 0) {
        list_times(x, pick(2) != 0 ? some_time() : 0, pick(3) == 0 ? some_time() : 0);
        check(set_times(x->id, 1, x->not_before_us, x->expires_us) == LS_OK);
    }
}

static void op_take(void) {
    ls_delivery got[TAKEN_MAX];
    size_t n, asked = 1 + pick(TAKEN_MAX);

    switch (pick(4)) {
    case 0: {
        const struct listed *x = listed_count > 0 ? &list[pick(listed_count)] : NULL;

        if (x != NULL && x->acquired && !x->locked && x->id != 0) {
            check(ls_acquire_after(r.store, 1, x->delivery.position, got, asked, 0, &n) == LS_OK);
            took(got, n, asked, false, x->id);
        }
        return;
    }
    case 1:
        check(ls_acquire_expired(r.store, 1, got, asked, 0, &n) == LS_OK);
        took(got, n, asked, true, 0);
        return;
    case 2: {
        struct listed *x = listed_count > 0 ? &list[pick(listed_count)] : NULL;

        if (x == NULL || x->id == 0)
            return;
        check(ls_acquire_ids(r.store, 1, &x->id, 1, got, 0, &n) == LS_OK && n == (is_free(x) ? 1 : 0));
        if (n == 1) {
            x->acquired = true;
            x->delivery = got[0];
        }
        return;
    }
    default:
        check(ls_acquire(r.store, 1, got, asked, 0, &n) == LS_OK);
        took(got, n, asked, false, 0);
    }
}

static void op_release(void) {
    ls_delivery some[TAKEN_MAX];
    size_t n = 0, asked = 1 + pick(TAKEN_MAX);
    bool later = pick(2) != 0;
    uint64_t until_us = some_time();

    for (uint32_t i = 0; i < listed_count && n < asked; i++) {
        struct listed *x = &list[i];

        if (x->id == 0 || !x->acquired || pick(3) == 0)
            continue;
        some[n++] = x->delivery;
        x->acquired = false;
        if (later)
            list_times(x, until_us, x->expires_us);
        if (!is_held(x))
            pass_one(x);
    }
    if (later)
        check(ls_delay(r.store, 1, some, n, until_us, pick(2) != 0 ? LS_UNSEEN : LS_WAIT) == LS_OK ||
              complain("delay"));
    else
        check(ls_release(r.store, 1, some, n, 0) == LS_OK);
}

static void ended(struct listed *x) {
    x->id = 0;
    alive--;
}

static void op_dequeue(void) {
    struct listed *x = listed_count > 0 ? &list[pick(listed_count)] : NULL;

    if (x == NULL || x->id == 0 || x->locked)
        return;
    if (pick(3) == 0) {
        if (open_tx == NULL)
            check(ls_begin(r.store, NULL, &open_tx) == LS_OK);
        check(take(x->id, 1, open_tx) == LS_OK);
        x->locked = true;
    } else {
        check(take(x->id, 1, NULL) == LS_OK);
        ended(x);
    }
}

static void op_outcome(void) {
    bool commits = pick(3) == 0;

    if (open_tx == NULL)
        return;
    check((commits ? ls_commit(open_tx, LS_WAIT) : ls_rollback(open_tx, LS_WAIT)) == LS_OK);
    ls_tx_free(open_tx);
    open_tx = NULL;
    for (uint32_t i = 0; i < listed_count; i++) {
        struct listed *x = &list[i];

        if (x->id != 0 && x->locked) {
            x->locked = false;
            if (commits)
                ended(x);
            else if (!is_held(x))
                pass_one(x);
        }
    }
}

/* A clock that is set back for a while changes nothing. */
static void op_clock(void) {
    model_us += pick(8) * SECOND_US;
    to_model_time();
    if (pick(4) == 0) {
        counts_agree();
        set_clock(model_us - (1 + pick(60)) * SECOND_US);
        counts_agree();
        set_clock(model_us + 1000);
    }
}

/* Every place is as its times say. */
static void opened(void) {
    for (uint32_t i = 0; i < listed_count; i++) {
        struct listed *x = &list[i];

        x->acquired = false;
        if (x->id != 0)
            list_times(x, x->not_before_us, x->expires_us);
    }
}

static void op_open(void) {
    op_outcome();
    set_clock(model_us + 1000);
    check(ls_force(r.store, 0) == LS_OK);
    switch (pick(4)) {
    case 0:
        again();
        break;
    case 1:
        on_disk(vfs_sim_clone(sim));
        break;
    case 2:
        check(ls_checkpoint(r.store, NULL) == LS_OK);
        again();
        break;
    default:
        churn(40);
        again();
    }
    opened();
    to_model_time();
}

static void places_are_offered_and_expire_as_a_walk_over_all_would_find(void) {
    static void (*const often[])(void) = {op_publish, op_publish, op_publish, op_publish, op_take,
                                          op_take,    op_release, op_release, op_clock,   op_dequeue};
    enum { SEEDS = 12, STEPS = 2500 };

    for (uint64_t seed = 0; seed < SEEDS / (ONE_IN > 6 ? 6 : ONE_IN); seed++) {
        fresh();
        r.chance = seed + 1;
        listed_count = alive = 0;
        model_us = (now_us() / SECOND_US + 100) * SECOND_US;
        to_model_time();
        for (int step = 0; step < STEPS && failures_here == 0; step++) {
            if (pick(100) == 0)
                op_open();
            else if (pick(20) == 0)
                op_outcome();
            else
                often[pick(sizeof often / sizeof *often)]();
            counts_agree();
            if (listed_count == LISTED_MAX) { /* the list goes on with the places that are left */
                uint32_t left = 0;

                for (uint32_t i = 0; i < listed_count; i++) {
                    if (list[i].id != 0)
                        list[left++] = list[i];
                }
                listed_count = left;
            }
        }
        op_outcome();
        if (failures_here > 0)
            printf("seed %d\n", (int)seed);
        done();
    }
}

/* ---- single promises ---- */

static void a_hidden_place_is_offered_at_its_time_where_it_stood(void) {
    ls_delivery d;
    size_t n;

    fresh();
    uint64_t first = put_timed(1, in_seconds(10), 0), second = put(1, "second", NULL);
    check(counts_are(1, 1, 1, 0));
    check(ls_acquire_ids(r.store, 1, &first, 1, &d, 0, &n) == LS_OK && n == 0);
    d = next_of(1);
    check(d.id == second && next_of(1).count == 0);
    give_back(1, &d);
    vfs_sim_advance(sim, 10 * (int64_t)SECOND_US);
    check(counts_are(1, 2, 0, 0));
    d = next_of(1);
    check(d.id == first && next_of(1).id == second);
    give_back(1, &d); /* its time has passed: it is not hidden again */
    check(next_of(1).id == first);
    done();
}

static void places_of_many_chunks_that_are_due_at_once_are_all_found_in_order(void) {
    enum { PLACES = 20 * CHUNK_PLACES + 7, EACH = PLACES / 3 };
    static uint64_t ids[PLACES];
    static ls_delivery got[PLACES];
    size_t n;

    fresh();
    uint64_t soon_us = in_seconds(100000), late_us = in_seconds(200000);
    for (uint32_t i = 0; i < PLACES; i++) {
        uint64_t not_before_us = i % 3 == 0 ? soon_us - i : i % 3 == 1 ? late_us + i : 0;
        ids[i] = put_timed(1, not_before_us, i % 3 == 2 ? soon_us - i : 0);
    }
    check(counts_are(1, EACH, PLACES - EACH, 0) || complain("before"));
    set_clock(soon_us);
    check(ls_acquire(r.store, 1, got, PLACES, 0, &n) == LS_OK && n == PLACES - 2 * (size_t)EACH);
    for (size_t i = 0; i < n; i++)
        require(got[i].id == ids[3 * i] && got[i].position == got[0].position + 3 * i);
    check(counts_are(1, 0, EACH, EACH) && counts_of(1).acquired == n);
    check(ls_acquire_expired(r.store, 1, got, PLACES, 0, &n) == LS_OK && n == EACH);
    for (size_t i = 0; i < n; i++)
        require(got[i].id == ids[3 * i + 2]);
    set_clock(late_us + PLACES);
    check(counts_are(1, EACH, 0, 0) && ls_acquire(r.store, 1, got, PLACES, 0, &n) == LS_OK && n == EACH);
    for (size_t i = 0; i < n; i++)
        require(got[i].id == ids[3 * i + 1]);
    done();
}

/* Chunks with and without times, of which each call gets a part. */
static void places_that_came_back_are_offered_in_order_whether_their_chunks_have_times_or_not(void) {
    enum { CHUNKS = 5, PLACES = CHUNKS * CHUNK_PLACES, ASKED = 100 };
    static uint64_t ids[PLACES];
    static ls_delivery got[PLACES];
    size_t n, all = 0;

    fresh();
    for (uint32_t i = 0; i < PLACES; i++)
        ids[i] = put(1, i % 2 != 0 ? "odd" : "even message", NULL);
    check(ls_acquire(r.store, 1, got, PLACES, 0, &n) == LS_OK && n == PLACES);
    for (uint32_t i = 0; i < PLACES; i += 3)
        give_back(1, &got[i]);
    for (uint32_t i = 1; i < PLACES; i += 2 * CHUNK_PLACES) /* the first times, of a place that is acquired */
        check(set_times(ids[i], 1, in_seconds(1000), 0) == LS_OK);
    for (uint32_t i = 2; i < PLACES; i += 3)
        give_back(1, &got[i]);
    check(take(ids[0], 1, NULL) == LS_OK && counts_are(1, PLACES / 3 * 2 - 1, 0, 0));
    do {
        check(ls_acquire(r.store, 1, got + all, ASKED, 0, &n) == LS_OK);
        all += n;
    } while (n > 0);
    check(all == PLACES / 3 * 2 - 1);
    for (uint32_t i = 0, k = 0; i < PLACES && k < all; i++) {
        if (i % 3 != 1 && i != 0)
            check(got[k++].id == ids[i]);
    }
    log_lock(r.store->log);
    check(tallies_are_those_of_a_walk(&r.store->state.table));
    log_unlock(r.store->log);
    check(ls_release(r.store, 1, got, all, 0) == LS_OK && counts_are(1, all, 0, 0));
    done();
}

static void the_bytes_of_long_messages_that_are_due_are_counted(void) {
    enum { LONG = UINT16_MAX + 5 };
    static char words[LONG + 1];

    fresh();
    memset(words, 'w', LONG);
    uint64_t id = put(1, words, NULL);
    check(set_times(id, 1, in_seconds(10), 0) == LS_OK && put_timed(1, in_seconds(10), 0) != 0);
    check(counts_of(1).ready_bytes == 0);
    vfs_sim_advance(sim, 10 * (int64_t)SECOND_US);
    check(counts_are(1, 2, 0, 0) && counts_of(1).ready_bytes == LONG + strlen("message"));
    done();
}

static void an_expired_place_is_given_once_and_again_after_a_release(void) {
    fresh();
    uint64_t id = put_timed(1, 0, in_seconds(10)), other = put_timed(1, 0, in_seconds(1000));
    check(expired_of(1).count == 0 && counts_are(1, 2, 0, 0));
    vfs_sim_advance(sim, 10 * (int64_t)SECOND_US);
    check(next_of(1).id == other && next_of(1).count == 0 && counts_are(1, 0, 0, 1));
    ls_delivery d = expired_of(1);
    check(d.id == id && d.count == 1 && expired_of(1).count == 0 && counts_are(1, 0, 0, 0));
    give_back(1, &d);
    check(counts_are(1, 0, 0, 1) && next_of(1).count == 0);
    d = expired_of(1);
    check(d.id == id && d.count == 2);
    size_t n;
    check(ls_settle_all(r.store, 1, &d, 1, NULL, 1, LS_WAIT, &n) == LS_OK && !has(id) && counts_of(1).depth == 1);
    done();
}

static void an_acquired_place_expires_when_it_is_released(void) {
    fresh();
    uint64_t id = put_timed(1, 0, in_seconds(10));
    ls_delivery d = next_of(1);
    vfs_sim_advance(sim, 20 * (int64_t)SECOND_US);
    check(d.id == id && expired_of(1).count == 0 && counts_of(1).acquired == 1);
    give_back(1, &d);
    check(next_of(1).count == 0 && expired_of(1).id == id);
    done();
}

/* Whether its time comes while it is held, or has come before the call. */
static void a_place_that_its_publisher_acquires_expires_when_it_is_released(void) {
    for (int way = 0; way < 4; way++) {
        bool staged = way % 2 == 1, late = way >= 2;
        uint64_t id, expires_us;
        ls_delivery d;

        fresh();
        expires_us = late ? now_us() : in_seconds(10);
        if (staged)
            check(ls_stage(r.store, NULL, 0, content_of(1), 10, 0, &id) == LS_OK &&
                  ls_enqueue_acquired(r.store, id, 1, expires_us, LS_WAIT, &d) == LS_OK);
        else
            check(ls_publish_acquired(r.store, 1, NULL, 0, content_of(1), 10, expires_us, LS_WAIT, &d) == LS_OK);
        check(d.count == 1 && counts_are(1, 0, 0, 0) && next_of(1).count == 0 && expired_of(1).count == 0);
        if (!late) {
            give_back(1, &d);
            check(counts_are(1, 1, 0, 0));
            d = next_of(1);
            vfs_sim_advance(sim, 11 * (int64_t)SECOND_US);
        }
        give_back(1, &d);
        check(counts_are(1, 0, 0, 1) && next_of(1).count == 0 && expired_of(1).id == d.id);
        check(ls_publish_acquired(r.store, 1, NULL, 0, NULL, 0, UINT64_MAX, 0, &d) == LS_OPTION);
        done();
    }
}

static void a_hidden_place_that_reaches_its_expiry_is_expired(void) {
    fresh();
    uint64_t id = put_timed(1, in_seconds(1000), in_seconds(10));
    check(counts_are(1, 0, 1, 0));
    vfs_sim_advance(sim, 11 * (int64_t)SECOND_US);
    check(counts_are(1, 0, 0, 1) && next_of(1).count == 0 && expired_of(1).id == id);
    done();
}

static void a_release_for_later_keeps_the_expiry_and_is_kept_by_a_crash(void) {
    const vfs_sim_loss all = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};

    fresh();
    uint64_t id = put_timed(1, 0, in_seconds(60)), other = put(1, "other", NULL);
    ls_delivery both[2];
    size_t n;
    check(ls_acquire(r.store, 1, both, 2, 0, &n) == LS_OK && n == 2);
    check(ls_delay(r.store, 1, both, 2, in_seconds(30), LS_WAIT) == LS_OK && counts_are(1, 0, 2, 0));
    check(delay(1, &both[0], 1) == LS_NOT_ENQUEUED); /* it was released */
    on_disk(vfs_sim_crash(sim, &all));
    check(counts_are(1, 0, 2, 0) && next_of(1).count == 0);
    vfs_sim_advance(sim, 31 * (int64_t)SECOND_US);
    ls_delivery d = next_of(1);
    check(d.id == id && d.count == 2 && next_of(1).id == other);
    check(delay(1, &d, 100) == LS_OK);
    vfs_sim_advance(sim, 31 * (int64_t)SECOND_US);
    check(counts_are(1, 0, 0, 1) && expired_of(1).id == id);
    done();
}

static void an_unseen_release_for_later_counts_as_none(void) {
    fresh();
    (void)put(1, "message", NULL);
    ls_delivery d = next_of(1);
    check(ls_delay(r.store, 1, &d, 1, in_seconds(5), LS_UNSEEN) == LS_OK);
    again();
    vfs_sim_advance(sim, 6 * (int64_t)SECOND_US);
    d = next_of(1);
    check(d.count == 1);
    done();
}

static void a_release_for_later_is_refused_whole(void) {
    static ls_delivery many[4096];
    ls_delivery d[2];
    size_t n;

    fresh();
    (void)put(1, "one", NULL);
    (void)put(1, "two", NULL);
    check(ls_acquire(r.store, 1, d, 2, 0, &n) == LS_OK && n == 2);
    check(ls_delay(r.store, 1, d, 2, 0, 0) == LS_OPTION);
    check(ls_delay(r.store, 1, many, 4096, in_seconds(5), 0) == LS_OPTION);
    check(ls_delay(r.store, 77, d, 2, in_seconds(5), 0) == LS_UNKNOWN_QUEUE);
    check(ls_delay(r.store, 1, d, 2, in_seconds(5), LS_TRY | LS_WAIT) == LS_OPTION);
    give_back(1, &d[1]);
    check(ls_delay(r.store, 1, d, 2, in_seconds(5), 0) == LS_NOT_ENQUEUED);
    check(counts_of(1).acquired == 1 && counts_of(1).ready == 1);
    check(ls_delay(r.store, 1, d, 0, in_seconds(5), 0) == LS_OK);
    check(take(d[0].id, 1, NULL) == LS_OK);
    check(ls_delay(r.store, 1, d, 1, in_seconds(5), 0) == LS_OK); /* its place has ended */
    done();
}

/* As many as one batch holds, in two records and a rest: a power cut leaves all of them hidden or none. */
static void a_release_of_many_for_later_is_whole_after_a_power_cut(void) {
    static const vfs_sim_loss losses[] = {
        {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST},
        {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT},
        {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_KEPT, .seed = 3},
        {.mode = VFS_SIM_ONE_LOST, .dir_mode = VFS_SIM_DIRS_KEPT, .n = 1},
        {.mode = VFS_SIM_PREFIX, .dir_mode = VFS_SIM_DIRS_KEPT, .n = 1},
    };
    static ls_delivery many[1000];
    const vfs_sim_event *events;
    size_t n, none = 0, all = 0;

    fresh();
    uint64_t most = states_most(r.store->log), one_record = log_record_bytes_max(r.store->log) / STATE_ROW_BYTES;
    require(most > one_record && most < 999);
    for (uint64_t i = 0; i <= most; i++)
        (void)put(1, "message", NULL);
    check(ls_acquire(r.store, 1, many, most + 1, 0, &n) == LS_OK && n == most + 1);
    check(ls_delay(r.store, 1, many, most + 1, in_seconds(1000), LS_WAIT) == LS_OPTION);
    check(strstr(ls_last_error()->text, "fit into one batch") != NULL && counts_of(1).acquired == most + 1);
    check(vfs_sim_record(sim, 1) == 0);
    check(ls_delay(r.store, 1, many, most, in_seconds(1000), LS_WAIT) == LS_OK);
    check(counts_of(1).acquired == 1 && counts_of(1).hidden == most);
    size_t count = vfs_sim_journal(sim, &events);
    for (size_t k = 0; k <= count; k++) {
        for (size_t l = 0; l < sizeof losses / sizeof *losses; l++) {
            vfs_sim *disk = vfs_sim_crash_at(sim, k, &losses[l]);
            ls_store *store = NULL;
            ls_queue_counts c;

            require(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &store) == LS_OK || complain("open"));
            check(ls_queue_counts_get(store, 1, &c) == LS_OK && c.depth == most + 1);
            check(c.hidden == 0 || c.hidden == most);
            *(c.hidden == 0 ? &none : &all) += 1;
            ls_free(store);
            vfs_sim_free(disk);
        }
    }
    check(none > 0 && all > 0);
    done();
}

static void a_full_store_releases_nothing_for_later(void) {
    static const uint8_t content[1000];
    const uint32_t queue = 2;
    ls_options o;
    uint64_t id;
    int rc = LS_OK;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = 0;
    o.max_log_bytes = 8 * SEGMENT;
    fresh_with(&o);
    (void)put(1, "message", NULL);
    ls_delivery d = next_of(1);
    while (rc == LS_OK)
        rc = ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, 0, &id);
    check(rc == LS_FULL);
    check(delay(1, &d, 5) == LS_FULL && counts_of(1).acquired == 1);
    give_back(1, &d); /* that needs no room */
    check(next_of(1).id == d.id);
    done();
}

static void hidden_and_expired_places_are_dequeued_and_purged(void) {
    size_t n;

    fresh();
    uint64_t ids[] = {put_timed(1, in_seconds(10), 0), put_timed(1, 0, in_seconds(1)), put(1, "plain", NULL),
                      put_timed(1, in_seconds(10), in_seconds(20))};
    vfs_sim_advance(sim, 2 * (int64_t)SECOND_US);
    check(counts_are(1, 1, 2, 1));
    check(take(ids[0], 1, NULL) == LS_OK && counts_are(1, 1, 1, 1));
    check(ls_purge(r.store, 1, ids, 4, 1, LS_WAIT, &n) == LS_OK && n == 3 && counts_of(1).depth == 0);
    vfs_sim_advance(sim, 100 * (int64_t)SECOND_US);
    check(counts_are(1, 0, 0, 0) && expired_of(1).count == 0);
    done();
}

static void a_rolled_back_dequeue_leaves_hidden_what_was_hidden(void) {
    ls_tx *tx;

    fresh();
    uint64_t hidden = put_timed(1, in_seconds(10), 0), expired = put_timed(1, 0, in_seconds(1));
    vfs_sim_advance(sim, 2 * (int64_t)SECOND_US);
    for (int later = 0; later < 2; later++) {
        check(ls_begin(r.store, NULL, &tx) == LS_OK && take(hidden, 1, tx) == LS_OK && take(expired, 1, tx) == LS_OK);
        check(counts_of(1).locked == 2 && counts_are(1, 0, 0, 0) && expired_of(1).count == 0);
        if (later)
            vfs_sim_advance(sim, 100 * (int64_t)SECOND_US);
        check(ls_rollback(tx, 0) == LS_OK);
        ls_tx_free(tx);
        check(later ? counts_are(1, 1, 0, 1) : counts_are(1, 0, 1, 1));
    }
    check(next_of(1).id == hidden && expired_of(1).id == expired);
    done();
}

static void a_clock_that_is_set_back_takes_nothing_back(void) {
    fresh();
    uint64_t due = put_timed(1, in_seconds(10), 0), expired = put_timed(1, 0, in_seconds(10)),
             later = put_timed(1, in_seconds(20), 0);
    vfs_sim_advance(sim, 11 * (int64_t)SECOND_US);
    check(counts_are(1, 1, 1, 1));
    vfs_sim_advance(sim, -1000 * (int64_t)SECOND_US);
    check(counts_are(1, 1, 1, 1));
    ls_delivery d = next_of(1), e = expired_of(1);
    check(d.id == due && e.id == expired);
    give_back(1, &d);
    give_back(1, &e);
    check(counts_are(1, 1, 1, 1));
    vfs_sim_advance(sim, 1010 * (int64_t)SECOND_US);
    check(counts_are(1, 2, 0, 1) && next_of(1).id == due && next_of(1).id == later);
    done();
}

/* Each way in which a place gets times, after a clock that was ahead was set right, which nothing has looked at since. */
static void a_place_gets_its_times_by_the_clock_of_now(void) {
    static const uint32_t one[] = {1};

    for (int way = 0; way < 5; way++) {
        uint64_t id = 0, lsn;
        ls_tx *tx = NULL;
        ls_delivery held = {.count = 0};

        fresh();
        uint64_t first = put_timed(1, in_seconds(10), 0);
        if (way == 2 || way == 3)
            id = put(2, "message", NULL);
        if (way == 3)
            held = next_of(2);
        vfs_sim_advance(sim, 1000 * (int64_t)SECOND_US);
        check(counts_are(1, 1, 0, 0));
        vfs_sim_advance(sim, -995 * (int64_t)SECOND_US);
        const ls_times later = {.not_before_us = in_seconds(20), .expires_us = in_seconds(500)};
        switch (way) {
        case 0:
            check(ls_publish_timed(r.store, one, 1, NULL, 0, NULL, 0, &later, NULL, LS_WAIT, &id) == LS_OK);
            break;
        case 1: /* too large for one record */
            check(ls_publish_timed(r.store, one, 1, NULL, 0, content_of(1), 100000, &later, NULL, LS_WAIT, &id) ==
                  LS_OK);
            break;
        case 2:
            check(ls_enqueue_timed(r.store, id, one, 1, &later, NULL, LS_WAIT, &lsn) == LS_OK);
            break;
        case 3: {
            const ls_place_move move = {.queue_id = 1, .from_queue_id = 2, .times = later};
            check(ls_move(r.store, id, &move, &held, NULL, LS_WAIT, &lsn) == LS_OK);
            break;
        }
        default:
            check(ls_begin(r.store, NULL, &tx) == LS_OK &&
                  ls_publish_timed(r.store, one, 1, NULL, 0, NULL, 0, &later, tx, 0, &id) == LS_OK &&
                  ls_commit(tx, LS_WAIT) == LS_OK);
            ls_tx_free(tx);
        }
        check(next_of(1).id == first && next_of(1).count == 0 && counts_are(1, 0, 1, 0)); /* it was due before */
        vfs_sim_advance(sim, 20 * (int64_t)SECOND_US);
        check(next_of(1).id == id);
        done();
    }
}

static void a_place_that_is_not_durable_is_not_offered_at_its_time(void) {
    ls_delivery d;
    size_t n;

    fresh();
    uint64_t id = put_bytes(1, 1, 10, LS_MORE);
    struct remembered state = {.not_before_us = in_seconds(5)};
    log_lock(r.store->log);
    const struct table *t = &r.store->state.table;
    struct message *m = table_message(t, table_find(t, id));
    check(chunk_prepare_states(message_place(m, 1)->at.chunk, remembered_parts(&state)));
    r.store->state.table.has_stated = true;
    place_remember(message_place(m, 1), m, &state); /* as the record that makes the place would */
    log_unlock(r.store->log);
    vfs_sim_advance(sim, 6 * (int64_t)SECOND_US);
    check(ls_acquire(r.store, 1, &d, 1, 0, &n) == LS_OK && n == 0 && counts_of(1).ready == 1);
    check(ls_force(r.store, 0) == LS_OK);
    check(next_of(1).id == id);
    done();
}

/* Fails each allocation in turn: a call that could not be done has done nothing. */
static void without_memory_a_place_is_not_given_back(void) {
    int rc = LS_NO_MEMORY;

    for (fail_at_nth = 1; TAKEN_OVER && rc != LS_OK; fail_at_nth++) { /* each time in a new store */
        fresh();
        (void)put(1, "message", NULL);
        ls_delivery d = next_of(1);
        uint64_t until_us = in_seconds(5);
        allocations = 0;
        counting = true;
        rc = ls_delay(r.store, 1, &d, 1, until_us, 0);
        counting = false;
        check(rc == LS_OK || rc == LS_NO_MEMORY);
        check(rc == LS_OK ? counts_are(1, 0, 1, 0) : counts_of(1).acquired == 1);
        check(rc == LS_OK || delay(1, &d, 5) == LS_OK);
        done();
    }
    check(!TAKEN_OVER || fail_at_nth > 4);
}

/* ---- those that wait ---- */

static void fresh_with_threads(void) {
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    fresh_with(&o);
}

static ls_taker *new_taker(uint32_t queue) {
    ls_taker *taker;

    check(ls_taker_new(r.store, queue, 1, NULL, 0, 0, &taker) == LS_OK || complain("taker"));
    return taker;
}

/* Waits for as long as it takes. */
static uint64_t served(ls_taker *taker) {
    ls_delivery d = {.id = 0};
    size_t n;

    check(ls_taker_wait(taker, UINT64_MAX) == LS_OK && ls_taker_end(taker, &d, 0, &n) == LS_OK);
    return d.id;
}

static void a_call_serves_those_that_wait_for_a_time(void) {
    ls_delivery d;
    size_t n;

    fresh();
    uint64_t id = put_timed(1, in_seconds(10), 0);
    ls_taker *taker = new_taker(1);
    vfs_sim_advance(sim, 11 * (int64_t)SECOND_US);
    check(ls_acquire(r.store, 1, &d, 1, 0, &n) == LS_OK && n == 0); /* the taker came first */
    check(served(taker) == id);
    done();
}

/* The simulated clock does not wake the flusher; a flush does, and then it sees what time it is. */
static void the_flusher_serves_those_that_wait_for_a_time(void) {
    fresh_with_threads();
    uint64_t id = put_timed(1, in_seconds(3600), 0);
    ls_taker *taker = new_taker(1);
    vfs_sim_advance(sim, 3601 * (int64_t)SECOND_US);
    check(ls_flush_soon(r.store) == LS_OK);
    check(served(taker) == id);
    done();
}

static uint64_t real_now_us(vfs *v) {
    (void)v;
    return vfs_posix()->now_us(vfs_posix());
}

static void real_wait_us(vfs *v, sem_t *wake, uint64_t us) {
    (void)v;
    vfs_posix()->wait_us(vfs_posix(), wake, us);
}

/* With threads, and the time of day. */
static void fresh_with_real_time(void) {
    static vfs timed;
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    (void)vfs_sim_record(sim, 0);
    timed = *vfs_sim_table(sim);
    timed.now_us = real_now_us;
    timed.wait_us = real_wait_us;
    r.v = &timed;
    r.options = o;
    run_start(&r, sim, 1);
    check(!r.lost);
}

/* No flush is needed; an earlier time sets the alarm anew. */
static void the_flusher_wakes_at_the_earliest_time(void) {
    fresh_with_real_time();
    uint64_t late = put_timed(1, in_seconds(3600), 0), soon = put(2, "soon", NULL);
    ls_taker *waits_long = new_taker(1);
    ls_delivery d = next_of(2);
    ls_taker *taker = new_taker(2);
    check(d.id == soon && ls_delay(r.store, 2, &d, 1, now_us() + 3000, 0) == LS_OK);
    check(served(taker) == soon);
    check(set_times(late, 1, now_us() + 3000, 0) == LS_OK && served(waits_long) == late);
    done();
}

enum { THREADS = 4, SHARED = 300 };

static atomic_uint settled, unexpected;

/* Takes; settles some, and releases the others for a moment; until the queue is deleted. */
static void *takes_and_delays(void *seed) {
    uint64_t mine = (uint64_t)(uintptr_t)seed;

    for (;;) {
        ls_delivery got[4];
        ls_taker *taker;
        size_t n, done_n;
        int rc = ls_taker_new(r.store, 1, 4, NULL, 0, 0, &taker);

        if (rc != LS_OK) {
            unexpected += rc != LS_UNKNOWN_QUEUE;
            return NULL;
        }
        if (ls_taker_wait(taker, UINT64_MAX) != LS_OK)
            unexpected++;
        rc = ls_taker_end(taker, got, 0, &n);
        unexpected += rc != LS_OK && rc != LS_UNKNOWN_QUEUE;
        if (n > 0 && chance(&mine) % 3 != 0) {
            unexpected += ls_delay(r.store, 1, got, n, now_us() + chance(&mine) % 2000, 0) != LS_OK;
            continue;
        }
        unexpected += ls_settle_all(r.store, 1, got, n, NULL, 1, 0, &done_n) != LS_OK && n > 0;
        if (n > 0 && atomic_fetch_add(&settled, (unsigned)n) + n == SHARED)
            unexpected += ls_queue_delete(r.store, 1, 0) != LS_OK;
    }
}

/* Nothing but the flusher and the takers themselves serves what is due last. */
static void no_place_that_is_released_for_later_is_lost_among_threads(void) {
    pthread_t threads[THREADS];

    fresh_with_real_time();
    for (int i = 0; i < SHARED; i++)
        (void)put_bytes(1, 1, 10, LS_MORE);
    check(ls_flush_soon(r.store) == LS_OK);
    for (uintptr_t i = 0; i < THREADS; i++)
        require(pthread_create(&threads[i], NULL, takes_and_delays, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        check(pthread_join(threads[i], NULL) == 0);
    check(settled == SHARED && unexpected == 0);
    done();
}

static void watchers_are_told_what_is_due_and_what_has_expired(void) {
    ls_inbox *inbox, *refused;
    ls_event e[2];
    int fd;

    fresh();
    check(ls_inbox_new(r.store, &inbox, &fd) == LS_OK && ls_inbox_new(r.store, &refused, &fd) == LS_OK);
    check(ls_inbox_watch(refused, 1, 16) == LS_OPTION);
    ls_inbox_free(refused);
    check(ls_inbox_watch(inbox, 0, LS_ARRIVED | LS_RELEASED | LS_EXPIRED) == LS_OK);
    (void)put_timed(1, in_seconds(10), 0);
    (void)put_timed(2, 0, in_seconds(20));
    check(ls_force(r.store, 0) == LS_OK && ls_inbox_events(inbox, e, 2) == 2); /* there are records of both */
    check(ls_inbox_events(inbox, e, 2) == 0);
    vfs_sim_advance(sim, 11 * (int64_t)SECOND_US);
    (void)counts_of(1);
    check(ls_inbox_events(inbox, e, 2) == 1 && e[0].queue_id == 1 && e[0].kinds == (LS_ARRIVED | LS_RELEASED));
    vfs_sim_advance(sim, 10 * (int64_t)SECOND_US);
    (void)counts_of(1);
    check(ls_inbox_events(inbox, e, 2) == 1 && e[0].queue_id == 2 && e[0].kinds == LS_EXPIRED);
    ls_inbox_free(inbox);
    done();
}

/* Nobody acquires from this queue meanwhile, and the watch is only of arrivals. */
static void the_flusher_tells_watchers_that_a_hidden_place_has_arrived(void) {
    ls_inbox *inbox;
    ls_event e[1];
    int fd;

    fresh_with_threads();
    check(ls_inbox_new(r.store, &inbox, &fd) == LS_OK && ls_inbox_watch(inbox, 1, LS_ARRIVED) == LS_OK);
    (void)put_timed(1, in_seconds(3600), 0);
    check(ls_force(r.store, 0) == LS_OK && ls_inbox_events(inbox, e, 1) == 1); /* its record */
    vfs_sim_advance(sim, 3601 * (int64_t)SECOND_US);
    check(ls_flush_soon(r.store) == LS_OK);
    while (ls_inbox_events(inbox, e, 1) == 0)
        sched_yield();
    check(e[0].kinds == LS_ARRIVED && e[0].queue_id == 1);
    ls_inbox_free(inbox);
    done();
}

/* A watch of expiries is enough for the flusher to look at the clock. */
static void the_flusher_tells_watchers_of_an_expiry(void) {
    ls_inbox *inbox;
    ls_event e[1];
    int fd;

    fresh_with_threads();
    check(ls_inbox_new(r.store, &inbox, &fd) == LS_OK && ls_inbox_watch(inbox, 1, LS_EXPIRED) == LS_OK);
    (void)put_timed(1, 0, in_seconds(3600));
    vfs_sim_advance(sim, 3601 * (int64_t)SECOND_US);
    check(ls_flush_soon(r.store) == LS_OK);
    while (ls_inbox_events(inbox, e, 1) == 0)
        sched_yield();
    check(e[0].kinds == LS_EXPIRED && e[0].queue_id == 1);
    ls_inbox_free(inbox);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_hidden_place_is_offered_at_its_time_where_it_stood,
        places_of_many_chunks_that_are_due_at_once_are_all_found_in_order,
        places_that_came_back_are_offered_in_order_whether_their_chunks_have_times_or_not,
        the_bytes_of_long_messages_that_are_due_are_counted,
        an_expired_place_is_given_once_and_again_after_a_release,
        an_acquired_place_expires_when_it_is_released,
        a_place_that_its_publisher_acquires_expires_when_it_is_released,
        a_hidden_place_that_reaches_its_expiry_is_expired,
        a_release_for_later_keeps_the_expiry_and_is_kept_by_a_crash,
        an_unseen_release_for_later_counts_as_none,
        a_release_for_later_is_refused_whole,
        a_release_of_many_for_later_is_whole_after_a_power_cut,
        a_full_store_releases_nothing_for_later,
        hidden_and_expired_places_are_dequeued_and_purged,
        a_rolled_back_dequeue_leaves_hidden_what_was_hidden,
        a_clock_that_is_set_back_takes_nothing_back,
        a_place_gets_its_times_by_the_clock_of_now,
        a_place_that_is_not_durable_is_not_offered_at_its_time,
        without_memory_a_place_is_not_given_back,
        places_are_offered_and_expire_as_a_walk_over_all_would_find,
        a_call_serves_those_that_wait_for_a_time,
        the_flusher_serves_those_that_wait_for_a_time,
        the_flusher_wakes_at_the_earliest_time,
        no_place_that_is_released_for_later_is_lost_among_threads,
        watchers_are_told_what_is_due_and_what_has_expired,
        the_flusher_tells_watchers_of_an_expiry,
        the_flusher_tells_watchers_that_a_hidden_place_has_arrived,
    };
    int passed = 0, count = (int)(sizeof tests / sizeof *tests);

    /* Those that wait come last, and not after a failure: a time that is lost would make them wait for ever. */
    for (failures_here = 0; passed < count && failures_here == 0; passed += failures_here == 0)
        tests[passed]();
    return verdict(passed, passed < count);
}
