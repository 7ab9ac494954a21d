/*
 * Notices: an inbox is told of messages that died and of transactions in doubt, each once, in order, and never before a crash
 * can no longer take it back.
 */
#include <pthread.h>
#include <unistd.h>

#include "store/store.h"
#include "table/notices.h"
#include "tests/kit/failing_memory.h"
#include "tests/kit/one_store.h"

enum { SEEN_MAX = 512, THREADS = 3, ROUNDS = 150, SEEDS = 40 };

static ls_inbox *inbox;
static int event;
static uint64_t died[SEEN_MAX], missed;
static ls_tx_info changes[SEEN_MAX];

static void fresh_inbox(int kinds) {
    fresh();
    check(ls_inbox_new(r.store, &inbox, &event) == LS_OK || complain("inbox"));
    check(ls_inbox_notice(inbox, kinds) == LS_OK);
}

static void done_inbox(void) {
    ls_inbox_free(inbox);
    done();
}

/* Whether exactly these n messages have died, in this order. */
static bool deaths_are(const uint64_t *ids, size_t n) {
    size_t found = ls_inbox_deaths(inbox, died, SEEN_MAX, &missed);
    return found == n && missed == 0 && (n == 0 || memcmp(died, ids, n * sizeof *ids) == 0);
}

static bool death_is(uint64_t id) { return deaths_are(&id, 1); }
static bool none_died(void) { return deaths_are(NULL, 0); }

static ls_tx *begin_tx(const char *name) {
    ls_tx *tx = NULL;
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 1};

    if (name != NULL)
        xid.data[0] = (uint8_t)name[0];
    check(ls_begin(r.store, name != NULL ? &xid : NULL, &tx) == LS_OK);
    return tx;
}

static void end_tx(ls_tx *tx, bool commit, int flags) {
    check((commit ? ls_commit(tx, flags) : ls_rollback(tx, flags)) == LS_OK);
    ls_tx_free(tx);
}

/* ---- the ring ---- */

static void a_full_ring_counts_what_it_drops_once_that_is_durable(void) {
    struct notices *n = notices_new(sizeof(uint64_t), 3);
    uint64_t got[4];

    for (uint64_t id = 1; id <= 5; id++)
        notices_add(n, &id, id * 10);
    check(!notices_ready(n, 9) && notices_take(n, 9, got, 4, &missed) == 0 && missed == 0);
    check(notices_ready(n, 20) && notices_take(n, 20, got, 1, &missed) == 1 && got[0] == 1 && missed == 0);
    check(notices_take(n, 49, got, 4, &missed) == 2 && got[0] == 2 && got[1] == 3 && missed == 0);
    check(!notices_ready(n, 49) && notices_ready(n, 50));
    check(notices_take(n, 50, got, 4, &missed) == 0 && missed == 2 && !notices_ready(n, 50));
    for (uint64_t id = 6; id <= 8; id++)
        notices_add(n, &id, id * 10);
    check(notices_take(n, 80, got, 4, &missed) == 3 && got[0] == 6 && got[2] == 8 && missed == 0);
    notices_free(n);
}

/* The newest of those that are dropped is never durable, and yet the others are told. */
static void an_endless_flood_of_dropped_ones_is_counted(void) {
    struct notices *n = notices_new(sizeof(uint64_t), 1);
    uint64_t got[1], all = 0;

    for (uint64_t id = 1; id <= 100; id++) {
        notices_add(n, &id, id);
        check(notices_ready(n, id - 1) || id < 3);
        all += notices_take(n, id - 1, got, 1, &missed);
        check(missed < 4);
        all += missed;
    }
    check(all >= 97 && all < 100);
    all += notices_take(n, 100, got, 1, &missed);
    check(all + missed == 100);
    notices_free(n);
}

/* ---- deaths ---- */

static void a_death_is_told_when_it_is_durable_and_not_before(void) {
    uint64_t lsn;

    fresh_inbox(LS_NOTICE_DEATHS);
    uint64_t one = put(1, "one", NULL), two = put(1, "two", NULL);
    check(ls_dequeue(r.store, two, 1, NULL, 1, 0, LS_MORE, &lsn) == LS_OK && none_died());
    check(ls_dequeue(r.store, one, 1, NULL, 1, 0, LS_MORE, &lsn) == LS_OK && none_died());
    check(vfs_sim_event_count(sim, event) == 0);
    check(ls_force(r.store, 0) == LS_OK && vfs_sim_event_count(sim, event) == 1);
    check(deaths_are((uint64_t[]){two, one}, 2) && none_died());
    done_inbox();
}

static void a_message_dies_with_its_last_place(void) {
    uint64_t id;
    uint32_t both[] = {1, 2};

    fresh_inbox(LS_NOTICE_DEATHS);
    check(ls_publish(r.store, both, 2, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK);
    check(take(id, 1, NULL) == LS_OK && none_died());
    check(add(id, 3, NULL) == LS_OK && take(id, 2, NULL) == LS_OK && none_died());
    check(take(id, 3, NULL) == LS_OK && death_is(id));
    done_inbox();
}

static void every_cause_of_death_is_told(void) {
    size_t n;
    uint64_t staged;

    fresh_inbox(LS_NOTICE_DEATHS);
    uint64_t a = put(1, "a", NULL), b = put(1, "b", NULL), c = put(2, "c", NULL), d = put(2, "d", NULL);
    check(ls_purge(r.store, 1, (uint64_t[]){a, b}, 2, 2, LS_WAIT, &n) == LS_OK && n == 2);
    check(deaths_are((uint64_t[]){a, b}, 2));
    ls_tx *tx = begin_tx(NULL);
    check(take(d, 2, tx) == LS_OK);
    uint64_t e = put(1, "e", tx);
    check(none_died());
    end_tx(tx, true, LS_WAIT);
    check(death_is(d));
    check(ls_stage(r.store, NULL, 0, NULL, 0, LS_WAIT, &staged) == LS_OK);
    check(ls_destroy(r.store, staged, LS_WAIT) == LS_OK && death_is(staged));
    check(ls_queue_delete(r.store, 1, LS_WAIT) == LS_OK && death_is(e));
    tx = begin_tx(NULL);
    uint64_t f = put(2, "f", tx);
    check(take(c, 2, tx) == LS_OK);
    end_tx(tx, false, LS_WAIT);
    check(death_is(f) && has(c));
    tx = begin_tx(NULL);
    uint64_t g = put(2, "given up with its handle", tx);
    ls_tx_free(tx);
    check(ls_force(r.store, 0) == LS_OK && death_is(g));
    done_inbox();
}

static void a_publish_that_fails_tells_of_no_death(void) {
    static uint8_t large[1 << 20];
    uint32_t queue = 1;
    uint64_t id;
    ls_options options;

    ls_options_default(&options);
    options.segment_size = SEGMENT;
    options.background = 0;
    options.max_log_bytes = 8 * SEGMENT;
    fresh_with(&options);
    check(ls_inbox_new(r.store, &inbox, &event) == LS_OK && ls_inbox_notice(inbox, LS_NOTICE_DEATHS) == LS_OK);
    check(ls_publish(r.store, &queue, 1, NULL, 0, large, sizeof large, NULL, LS_WAIT, &id) == LS_FULL);
    check(ls_force(r.store, 0) == LS_OK && none_died());
    done_inbox();
}

/* The record of the deletion is durable before the sweep ends the messages. */
static void a_death_that_is_durable_at_once_signals_at_once(void) {
    uint64_t ids[3];

    fresh_inbox(LS_NOTICE_DEATHS);
    for (size_t i = 0; i < 3; i++)
        ids[i] = put(1, "x", NULL);
    log_lock(r.store->log);
    check(queue_end(r.store, 1) == LS_OK);
    log_unlock(r.store->log);
    check(ls_force(r.store, 0) == LS_OK &&
          vfs_sim_event_count(sim, event) == 0); /* another thread, between two steps */
    log_lock(r.store->log);
    queue_remove(r.store, 1);
    log_unlock(r.store->log);
    check(vfs_sim_event_count(sim, event) == 1);
    check(deaths_are(ids, 3));
    done_inbox();
}

/* ---- signals ---- */

static void an_inbox_is_signalled_again_only_after_all_was_taken(void) {
    fresh_inbox(LS_NOTICE_DEATHS);
    for (int i = 0; i < 3; i++) {
        uint64_t id = put(1, "x", NULL);
        check(take(id, 1, NULL) == LS_OK);
    }
    check(vfs_sim_event_count(sim, event) == 1);
    check(ls_inbox_deaths(inbox, died, 2, &missed) == 2);
    uint64_t id = put(1, "x", NULL);
    check(take(id, 1, NULL) == LS_OK && vfs_sim_event_count(sim, event) == 1);
    check(ls_inbox_deaths(inbox, died, SEEN_MAX, &missed) == 2 && died[1] == id);
    id = put(1, "x", NULL);
    check(take(id, 1, NULL) == LS_OK && vfs_sim_event_count(sim, event) == 2 && death_is(id));
    done_inbox();
}

/* A death comes after the inbox has taken the deaths and before it takes the changes. */
static void each_kind_is_signalled_for_itself(void) {
    fresh_inbox(LS_NOTICE_DEATHS | LS_NOTICE_IN_DOUBT);
    uint64_t one = put(1, "one", NULL), two = put(1, "two", NULL);
    ls_tx *tx = begin_tx("a");
    check(take(one, 1, NULL) == LS_OK && ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    check(vfs_sim_event_count(sim, event) == 2 && death_is(one));
    check(take(two, 1, NULL) == LS_OK && vfs_sim_event_count(sim, event) == 3);
    check(ls_inbox_in_doubt(inbox, changes, SEEN_MAX, &missed) == 1 && death_is(two));
    end_tx(tx, true, LS_WAIT);
    check(vfs_sim_event_count(sim, event) == 4);
    done_inbox();
}

static void each_inbox_is_told_what_it_wants(void) {
    ls_inbox *other;
    int fd;
    ls_tx *tx;

    fresh_inbox(LS_NOTICE_DEATHS);
    check(ls_inbox_new(r.store, &other, &fd) == LS_OK && ls_inbox_notice(other, LS_NOTICE_IN_DOUBT) == LS_OK);
    check(ls_inbox_notice(other, 4) == LS_OPTION);
    uint64_t id = put(1, "x", NULL);
    check(take(id, 1, NULL) == LS_OK && vfs_sim_event_count(sim, fd) == 0 && death_is(id));
    check(ls_inbox_deaths(other, died, SEEN_MAX, &missed) == 0);
    tx = begin_tx("a");
    check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    check(vfs_sim_event_count(sim, fd) == 1 && vfs_sim_event_count(sim, event) == 1);
    check(ls_inbox_in_doubt(inbox, changes, SEEN_MAX, &missed) == 0);
    check(ls_inbox_notice(other, LS_NOTICE_DEATHS) == LS_OK); /* the notice of the prepare goes */
    id = put(1, "x", NULL);
    check(take(id, 1, NULL) == LS_OK && vfs_sim_event_count(sim, fd) == 2);
    check(ls_inbox_deaths(other, died, SEEN_MAX, &missed) == 1 && death_is(id));
    check(ls_inbox_notice(inbox, 0) == LS_OK && ls_inbox_notice(other, 0) == LS_OK);
    id = put(1, "x", NULL);
    check(take(id, 1, NULL) == LS_OK && none_died());
    ls_inbox_free(other);
    end_tx(tx, true, LS_WAIT);
    done_inbox();
}

/* ---- in doubt ---- */

static bool change_is(const ls_tx *tx, int state) {
    ls_tx_info now = {0};

    ls_tx_describe((ls_tx *)(uintptr_t)tx, &now);
    return ls_inbox_in_doubt(inbox, changes, SEEN_MAX, &missed) == 1 && missed == 0 && changes[0].state == state &&
           changes[0].id == now.id && changes[0].xid.data[0] == now.xid.data[0];
}

static bool nothing_changed(void) { return ls_inbox_in_doubt(inbox, changes, SEEN_MAX, &missed) == 0 && missed == 0; }

static void a_transaction_in_doubt_is_told_and_then_its_outcome(void) {
    fresh_inbox(LS_NOTICE_IN_DOUBT);
    for (int commits = 0; commits < 2; commits++) {
        ls_tx *tx = begin_tx(commits ? "c" : "r");
        (void)put(1, "x", tx);
        check(ls_tx_end(tx) == LS_OK && nothing_changed());
        check(ls_prepare(tx, LS_MORE) == LS_OK && nothing_changed());
        check(ls_force(r.store, 0) == LS_OK && change_is(tx, LS_TX_PREPARED));
        check((commits ? ls_commit(tx, LS_MORE) : ls_rollback(tx, LS_MORE)) == LS_OK && nothing_changed());
        check(ls_force(r.store, 0) == LS_OK && change_is(tx, commits ? LS_TX_COMMITTED : LS_TX_ROLLED_BACK));
        ls_tx_free(tx);
    }
    done_inbox();
}

static void a_transaction_that_was_never_prepared_is_not_told(void) {
    fresh_inbox(LS_NOTICE_IN_DOUBT);
    ls_tx *tx = begin_tx("a");
    check(ls_tx_end(tx) == LS_OK);
    end_tx(tx, true, LS_WAIT);
    end_tx(begin_tx("b"), false, LS_WAIT);
    end_tx(begin_tx(NULL), true, LS_WAIT);
    ls_tx_free(begin_tx("c"));
    check(ls_force(r.store, 0) == LS_OK && nothing_changed());
    done_inbox();
}

static void the_outcome_of_a_transaction_that_an_open_found_in_doubt_is_told(void) {
    uint64_t ids[2];
    size_t n;

    fresh();
    ls_tx *tx = begin_tx("a");
    check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    again();
    check(ls_inbox_new(r.store, &inbox, &event) == LS_OK && ls_inbox_notice(inbox, LS_NOTICE_IN_DOUBT) == LS_OK);
    check(nothing_changed() && ls_in_doubt(r.store, ids, 2, &n) == LS_OK && n == 1);
    check(ls_in_doubt_take(r.store, ids[0], &tx) == LS_OK && ls_rollback(tx, LS_WAIT) == LS_OK);
    check(change_is(tx, LS_TX_ROLLED_BACK));
    ls_tx_free(tx);
    done_inbox();
}

/* ---- the end, no memory ---- */

static void a_closed_store_tells_nothing_and_its_inbox_may_go_later(void) {
    fresh_inbox(LS_NOTICE_DEATHS | LS_NOTICE_IN_DOUBT);
    uint64_t id = put(1, "one", NULL);
    ls_tx *tx = begin_tx(NULL);
    (void)put(1, "rolled back by the close", tx);
    check(take(id, 1, NULL) == LS_OK && ls_close(r.store) == LS_OK);
    check(none_died() && nothing_changed() && ls_inbox_notice(inbox, LS_NOTICE_DEATHS) == LS_CLOSED);
    ls_tx_free(tx);
    ls_free(r.store);
    ls_inbox_free(inbox);
    r.store = NULL;
    done();
}

static void a_failed_log_tells_of_no_death(void) {
    uint64_t lsn;

    fresh_inbox(LS_NOTICE_DEATHS);
    uint64_t id = put(1, "one", NULL);
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO});
    check(ls_dequeue(r.store, id, 1, NULL, 1, 0, LS_WAIT, &lsn) == LS_OUTCOME_UNKNOWN);
    check(none_died());
    done_inbox();
}

static void notices_for_which_there_is_no_memory_are_refused_whole(void) {
    int rc;

    if (TAKEN_OVER == 0)
        return;
    fresh_inbox(LS_NOTICE_DEATHS);
    uint64_t id = put(1, "one", NULL);
    check(take(id, 1, NULL) == LS_OK);
    fail_at_nth = 0;
    do {
        fail_at_nth++;
        failed = allocations = 0;
        counting = true;
        rc = ls_inbox_notice(inbox, LS_NOTICE_IN_DOUBT);
        counting = false;
        check(failed == 0 ? rc == LS_OK : rc == LS_NO_MEMORY);
        check(failed == 0 || fail_at_nth > 1 || death_is(id)); /* what it had is kept */
    } while (failed > 0);
    fail_at_nth = 0;
    check(fail_at_nth == 0 && ls_inbox_notice(inbox, 0) == LS_OK);
    done_inbox();
}

/* ---- crashes ---- */

static uint64_t told[OPS_MAX];
static size_t told_count;

static bool was_told(uint64_t id) {
    for (size_t i = 0; i < told_count; i++) {
        if (told[i] == id)
            return true;
    }
    return false;
}

static void look(void) {
    size_t n = ls_inbox_deaths(inbox, died, SEEN_MAX, &missed);

    check(missed == 0);
    for (size_t i = 0; i < n; i++) {
        check(!was_told(died[i]) && !has(died[i]));
        told[told_count++] = died[i];
    }
}

static bool gave_out(const struct op *op) { return op->kind == PUBLISH || op->kind == STAGE; }

/* Random work, at whose end what was told is what has died; then more of it, and a power cut, after which it is dead still. */
static void what_was_told_is_what_died_and_no_power_cut_brings_it_back(void) {
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        size_t deaths = 0;

        fresh_inbox(LS_NOTICE_DEATHS);
        told_count = 0;
        r.chance = seed;
        r.stays = true;
        for (int i = 0; i < 60; i++) {
            run_some(&r, 3);
            if (below(&r, 3) == 0)
                look();
        }
        check(ls_force(r.store, 0) == LS_OK);
        look();
        for (size_t i = 0; i < r.op_count; i++) {
            if (gave_out(&r.ops[i]) && !has(r.ops[i].id)) {
                check(was_told(r.ops[i].id));
                deaths++;
            }
        }
        check(deaths == told_count && deaths > 10);
        for (int i = 0; i < 10; i++) {
            run_some(&r, 2);
            look();
        }
        vfs_sim *after =
            vfs_sim_crash(sim, &(vfs_sim_loss){.mode = VFS_SIM_RANDOM, .seed = seed, .dir_mode = VFS_SIM_DIRS_RANDOM});
        ls_inbox_free(inbox);
        run_end(&r);
        vfs_sim_free(sim);
        sim = r.sim = after;
        r.v = vfs_sim_table(sim);
        require(open_again() == LS_OK || complain("open"));
        for (size_t i = 0; i < told_count; i++)
            check(!has(told[i]));
        done();
    }
}

/* ---- threads ---- */

static atomic_int running;
static atomic_size_t ended;

static void *publish_and_take(void *queue) {
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t id, lsn;
        check(ls_publish(r.store, queue, 1, NULL, 0, (const uint8_t *)"x", 1, NULL, LS_MORE, &id) == LS_OK);
        check(ls_dequeue(r.store, id, *(uint32_t *)queue, NULL, 1, 0, i % 3 == 0 ? LS_WAIT : 0, &lsn) == LS_OK);
        atomic_fetch_add(&ended, 1);
    }
    check(ls_force(r.store, 0) == LS_OK);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

static void *notice_and_leave(void *unused) {
    (void)unused;
    while (atomic_load(&running) > 0) {
        ls_inbox *mine;
        uint64_t ids[4], dropped;
        int fd;
        check(ls_inbox_new(r.store, &mine, &fd) == LS_OK);
        check(ls_inbox_notice(mine, LS_NOTICE_DEATHS | LS_NOTICE_IN_DOUBT) == LS_OK);
        (void)ls_inbox_deaths(mine, ids, 4, &dropped);
        ls_inbox_free(mine);
    }
    return NULL;
}

static void no_death_is_missed_while_others_come_and_go(void) {
    static uint32_t queues[THREADS] = {1, 2, 3};
    pthread_t threads[THREADS], other;
    size_t got = 0;

    fresh_inbox(LS_NOTICE_DEATHS);
    atomic_store(&running, THREADS);
    atomic_store(&ended, 0);
    for (size_t i = 0; i < THREADS; i++)
        check(pthread_create(&threads[i], NULL, publish_and_take, &queues[i]) == 0);
    check(pthread_create(&other, NULL, notice_and_leave, NULL) == 0);
    while (got < (size_t)THREADS * ROUNDS && (atomic_load(&running) > 0 || got < atomic_load(&ended))) {
        size_t n = ls_inbox_deaths(inbox, died, 64, &missed);
        check(missed == 0);
        got += n;
    }
    for (size_t i = 0; i < THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    (void)pthread_join(other, NULL);
    check(got == (size_t)THREADS * ROUNDS && none_died());
    done_inbox();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_full_ring_counts_what_it_drops_once_that_is_durable,
        an_endless_flood_of_dropped_ones_is_counted,
        a_death_is_told_when_it_is_durable_and_not_before,
        a_message_dies_with_its_last_place,
        every_cause_of_death_is_told,
        a_publish_that_fails_tells_of_no_death,
        a_death_that_is_durable_at_once_signals_at_once,
        an_inbox_is_signalled_again_only_after_all_was_taken,
        each_kind_is_signalled_for_itself,
        each_inbox_is_told_what_it_wants,
        a_transaction_in_doubt_is_told_and_then_its_outcome,
        a_transaction_that_was_never_prepared_is_not_told,
        the_outcome_of_a_transaction_that_an_open_found_in_doubt_is_told,
        a_closed_store_tells_nothing_and_its_inbox_may_go_later,
        a_failed_log_tells_of_no_death,
        notices_for_which_there_is_no_memory_are_refused_whole,
        what_was_told_is_what_died_and_no_power_cut_brings_it_back,
        no_death_is_missed_while_others_come_and_go,
    };
    int failed_tests = 0, count = (int)(sizeof tests / sizeof *tests);

    for (int i = 0; i < count; i++) {
        failures_here = 0;
        tests[i]();
        failed_tests += failures_here > 0;
    }
    return verdict(count - failed_tests, failed_tests);
}
