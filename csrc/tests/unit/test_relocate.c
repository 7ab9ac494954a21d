/*
 * Long-lived messages and transactions among short-lived messages in many segments: the log stays small, no number of
 * relocations changes the long-lived state, and every power cut is survived.
 *
 * LOGSTORE_CRASH=n makes n times as many workloads; the argument, if any, is the one seed to run.
 */
#include "tests/kit/store_crash.h"

static struct run r;

enum { CHURN = 1 }; /* the queue of short-lived messages */

static void start(vfs_sim *sim, uint64_t seed, int background) {
    memset(&r, 0, sizeof r);
    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    r.options.max_write_buffers = 4;
    r.options.background = background;
    r.gentle = true;
    if (sim != NULL)
        vfs_sim_seed(sim, seed);
    run_start(&r, sim, seed);
}

static uint64_t newest(void) { return r.told[r.told_count - 1].id; }

static void put(unsigned queues, int slot, uint32_t size) {
    mark(&r, MARK_STARTED, r.op_count + 1);
    publish(&r, PUBLISH, queues, slot, false, size);
}

static void change(int kind, uint64_t id, int queue, int slot) {
    mark(&r, MARK_STARTED, r.op_count + 1);
    change_place(&r, kind, id, queue, slot, false);
}

static void open_tx(int slot, bool distributed) {
    do { /* begin throws a coin */
        mark(&r, MARK_STARTED, r.op_count + 1);
        begin(&r, slot);
        if (r.distributed[slot] == distributed)
            return;
        mark(&r, MARK_STARTED, r.op_count + 1);
        answered(&r, ls_rollback(r.handles[slot], 0), false, (struct op){.kind = ROLLBACK, .tx = r.tx_ids[slot]});
        forget_handle(&r, slot);
    } while (true);
}

static void end_and_prepare(int slot) {
    mark(&r, MARK_STARTED, r.op_count + 1);
    answered(&r, ls_tx_end(r.handles[slot]), false, (struct op){.kind = END});
    r.ended[slot] = true;
    mark(&r, MARK_STARTED, r.op_count + 1);
    answered(&r, ls_prepare(r.handles[slot], LS_WAIT), true, (struct op){.kind = PREPARE, .tx = r.tx_ids[slot]});
}

/* One message of every kind: on one queue and on many, in chunks, from transactions and pending in them, staged. */
static void put_what_stays(void) {
    uint64_t id;

    put(1u << 2, -1, 100);
    put(1u << 2 | 1u << 3 | 1u << 4, -1, 200);
    change(DEQUEUE, newest(), 3, -1);
    put(1u << 3, -1, 0);
    change(ENQUEUE, newest(), 4, -1); /* places of two order keys */
    put(1u << 3, -1, 20000);
    put(1u << 2, -1, 50);
    put(1u << 4, -1, 60);
    open_tx(0, false);
    put(1u << 2 | 1u << 3 | 1u << 4, 0, 300);
    id = newest();
    put(1u << 3, 0, 9000);
    change(ENQUEUE, newest(), 2, 0);
    change(DEQUEUE, r.now.places[2][0].id, 2, 0);
    mark(&r, MARK_STARTED, r.op_count + 1);
    answered(&r, ls_commit(r.handles[0], 0), false, (struct op){.kind = COMMIT, .tx = r.tx_ids[0]});
    forget_handle(&r, 0);
    change(DEQUEUE, id, 3, -1); /* a gap in the numbers of its commit */
    mark(&r, MARK_STARTED, r.op_count + 1);
    publish(&r, STAGE, 0, -1, false, 6000);
    change(ENQUEUE, r.staged[--r.staged_count], 4, -1);
    open_tx(1, true);
    put(1u << 2 | 1u << 4, 1, 400);
    put(1u << 3, 1, 12000);
    change(DEQUEUE, r.now.places[4][1].id, 4, 1);
    change(DEQUEUE, newest(), 3, 1);
    change(DEQUEUE, r.now.places[3][0].id, 3, 1);
    end_and_prepare(1);
    open_tx(2, false);
    put(1u << 2, 2, 100);
    change(DEQUEUE, r.now.places[2][0].id, 2, 2);
    mark(&r, MARK_STARTED, r.op_count + 1);
    publish(&r, STAGE, 0, -1, false, 7000);
}

static void churn(int rounds) {
    for (int i = 0; i < rounds && !r.lost; i++) {
        bool wait = below(&r, 10) == 0;

        mark(&r, MARK_STARTED, r.op_count + 1);
        publish(&r, PUBLISH, 1u << CHURN, -1, wait, 3500);
        if (r.now.depth[CHURN] > 3) {
            mark(&r, MARK_STARTED, r.op_count + 1);
            change_place(&r, DEQUEUE, r.now.places[CHURN][0].id, CHURN, -1, wait);
        }
    }
}

/* For a store in service: open transactions are pending, and staged messages exist. */
static bool as_the_model_says(void) {
    for (size_t i = 0; i < r.told_count; i++) {
        if (model_names(&r.now, r.told[i].id) && !content_is_right(&r, r.store, r.told[i].id))
            return complain("a content is wrong");
    }
    return store_is(r.store, &r.now, r.catalog) || complain("a queue is not as it was");
}

/* While many times the log's size is written, live messages stay readable and in order, and the log small. */
static void long_lived_messages_survive_any_number_of_relocations(void) {
    for (int background = 0; background < 2; background++) {
        vfs_sim *sim = vfs_sim_new();
        ls_stats stats;
        uint64_t highest;

        (void)vfs_sim_record(sim, 0);
        start(sim, 5, background);
        put_what_stays();
        highest = newest();
        for (int i = 0; i < 6; i++) {
            churn(80);
            check(as_the_model_says());
        }
        check(move_base(r.store) == LS_OK);
        ls_stats_get(r.store, &stats);
        check(stats.segments_relocated > 5 && stats.relocation_failures == 0);
        check(ls_base_lsn(r.store) > highest);
        check(stats.segments <= 7);
        check(as_the_model_says());
        run_end(&r);
        vfs_sim_free(sim);
    }
}

/* With many restarts in between, prepared work stays pending, and its outcome takes effect at the end. */
static void prepared_work_survives_moves_and_restarts(void) {
    for (int commit = 0; commit < 2; commit++) {
        vfs_sim *sim = vfs_sim_new();

        (void)vfs_sim_record(sim, 0);
        start(sim, 6, 0);
        put_what_stays();
        for (int i = 0; i < 3; i++) {
            reopen(&r);
            require(!r.lost);
            churn(60);
            check(as_the_model_says());
        }
        answered(&r, commit ? ls_commit(r.handles[0], LS_WAIT) : ls_rollback(r.handles[0], LS_WAIT), true,
                 (struct op){.kind = commit ? COMMIT : ROLLBACK, .tx = r.tx_ids[0]});
        forget_handle(&r, 0);
        check(as_the_model_says());
        churn(60);
        reopen(&r);
        require(!r.lost);
        check(as_the_model_says());
        run_end(&r);
        vfs_sim_free(sim);
    }
}

/* Many queues and chunks make a state of several records. */
static void a_state_of_many_parts_is_moved(void) {
    enum { MANY = 900 };
    static uint32_t queues[MANY];
    static uint8_t content[300000], into[300000];
    vfs_sim *sim = vfs_sim_new();
    ls_options o;
    ls_store *store = NULL;
    uint64_t id, lsn, other;
    ls_stats stats;
    ls_message_info info;
    size_t done;

    (void)vfs_sim_record(sim, 0);
    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = 0;
    for (uint32_t i = 0; i < MANY; i++)
        queues[i] = i + 1;
    fill(content, 3, sizeof content);
    for (int restart = 0; restart < 2; restart++) {
        require(ls_open(vfs_sim_table(sim), "/s", &o, &store) == LS_OK);
        require(ls_serve(store, queues, MANY, MANY + 1) == LS_OK);
        if (restart == 0) {
            check(ls_stage(store, NULL, 0, content, sizeof content, 0, &id) == LS_OK);
            for (uint32_t i = 0; i < MANY; i += 100)
                check(ls_enqueue(store, id, queues + i, 100, NULL, 0, &lsn) == LS_OK);
        }
        for (int i = 0; i < 400; i++) {
            check(ls_publish(store, queues, 1, NULL, 0, content, 3500, NULL, 0, &other) == LS_OK ||
                  complain("publish"));
            check(ls_dequeue(store, other, 1, NULL, 1, 0, 0, &lsn) == LS_OK);
        }
        ls_stats_get(store, &stats);
        check(stats.relocated_bytes > sizeof content && stats.relocation_failures == 0);
        check(ls_base_lsn(store) > id);
        check(ls_message(store, id, &info) == LS_OK && info.places == MANY);
        check(ls_load_content(store, id, 0, into, sizeof into, &done) == LS_OK && done == sizeof into &&
              memcmp(content, into, done) == 0);
        check(ls_close(store) == LS_OK);
        ls_free(store);
    }
    require(ls_open(vfs_sim_table(sim), "/s", &o, &store) == LS_OK);
    require(ls_serve(store, queues, MANY, MANY + 1) == LS_OK);
    for (uint32_t i = 0; i < MANY; i++)
        check(ls_dequeue(store, id, queues[i], NULL, 1, 0, 0, &lsn) == LS_OK);
    ls_stats_get(store, &stats);
    check(stats.messages == 0);
    ls_free(store);
    vfs_sim_free(sim);
}

/* Tiny messages do not grow when moved, and the newest are dequeued first: the worst order for relocation. */
static void a_full_store_of_tiny_messages_is_drained_from_its_end(void) {
    enum { MOST = 20000 };
    static uint64_t ids[MOST];
    vfs_sim *sim = vfs_sim_new();
    ls_options o;
    ls_store *store = NULL;
    uint32_t q = 1;
    uint64_t lsn;
    ls_stats stats;
    int n = 0, rc = LS_OK;

    (void)vfs_sim_record(sim, 0);
    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = 0;
    o.max_log_bytes = (uint64_t)10 * SEGMENT;
    require(ls_open(vfs_sim_table(sim), "/s", &o, &store) == LS_OK && ls_serve(store, &q, 1, 2) == LS_OK);
    while (n < MOST &&
           (rc = ls_publish(store, &q, 1, NULL, 0, NULL, 0, NULL, n % 7 == 0 ? LS_WAIT : 0, &ids[n])) == LS_OK)
        n++;
    check(rc == LS_FULL && n > 1000);
    while (n > 0) {
        if (n % 500 == 0) { /* and a restart now and then */
            check(ls_close(store) == LS_OK);
            ls_free(store);
            require(ls_open(vfs_sim_table(sim), "/s", &o, &store) == LS_OK && ls_serve(store, &q, 1, 2) == LS_OK);
        }
        if (ls_dequeue(store, ids[--n], q, NULL, 1, 0, LS_WAIT, &lsn) != LS_OK) {
            check(complain("a dequeue was refused"));
            break;
        }
    }
    ls_stats_get(store, &stats);
    check(stats.messages == 0);
    ls_free(store);
    vfs_sim_free(sim);
}

static bool cuts_are_survived(uint64_t seed) {
    vfs_sim *sim = vfs_sim_new();
    ls_stats stats;
    bool right;

    start(sim, seed, 0);
    put_what_stays();
    churn(seed % 2 ? 200 : 420);
    ls_stats_get(r.store, &stats);
    right = stats.segments_relocated > 0 && stats.relocation_failures == 0;
    if (seed % 2) {
        mark(&r, MARK_STARTED, r.op_count + 1);
        reopen(&r);
        churn(40);
    }
    if (!right)
        printf("%llu segments were moved\n", (unsigned long long)stats.segments_relocated);
    run_end(&r);
    right = every_cut_is_survived(&r, seed) && right;
    vfs_sim_free(sim);
    return right;
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        long_lived_messages_survive_any_number_of_relocations,
        prepared_work_survives_moves_and_restarts,
        a_state_of_many_parts_is_moved,
        a_full_store_of_tiny_messages_is_drained_from_its_end,
    };
    const char *times = getenv("LOGSTORE_CRASH");
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t last = argc > 1 ? first : 2 * (times != NULL ? strtoull(times, NULL, 10) : 1);
    int passed = 0, failed = 0;

    for (size_t i = 0; argc == 1 && i < sizeof tests / sizeof *tests; i++) {
        int before = failures_here;

        tests[i]();
        if (failures_here == before)
            passed++;
        else
            failed++;
    }
    for (uint64_t seed = first; seed <= last; seed++) {
        if (cuts_are_survived(seed))
            passed++;
        else
            failed++;
    }
    printf("%llu crash states, %llu recoveries cut\n", (unsigned long long)states, (unsigned long long)recoveries_cut);
    return verdict(passed, failed);
}
