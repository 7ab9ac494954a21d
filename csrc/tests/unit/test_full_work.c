/*
 * What transactions may do in a full store: take messages, put them on other queues, prepare and end. They are refused only
 * when they have used the pool that growth leaves for them, at an operation, and never by LS_FULL.
 */
#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/store_verdict.h"

enum { MOST = 30000, FROM = 1, TO = 2, THIRD = 3, QUEUE_COUNT = 3, SEGMENTS = 8 };
enum limit { BY_OPTION, BY_DISK, LIMITS };
enum kind { PLAIN, IN_CHUNKS, KINDS };

static const uint32_t queues[QUEUE_COUNT] = {FROM, TO, THIRD};

static vfs_sim *sim;
static ls_options options;
static ls_store *store;
static uint64_t ids[MOST];
static int count;

/* ---- a full store ---- */

static void open_it(void) {
    require(ls_open(vfs_sim_table(sim), "/s", &options, &store) == LS_OK &&
            ls_serve(store, queues, QUEUE_COUNT, 1 << 20) == LS_OK);
}

static void open_again(bool in_order) {
    check(!in_order || ls_close(store) == LS_OK);
    ls_free(store);
    open_it();
}

/* Small chunks make a message longer when it is moved: only then the pool, and not the rule of four fifths, binds. */
static int put_in_chunks(void) {
    uint64_t lsn;
    uint64_t id;
    int rc = ls_stage(store, NULL, 0, NULL, 0, LS_PUBLISHED, &id), done = rc;

    for (int i = 0; done == LS_OK && i < 10; i++)
        done = ls_append_content(store, id, (const uint8_t *)"x", 1, 0);
    done = done == LS_OK ? ls_enqueue(store, id, queues, 1, NULL, 0, &lsn) : done;
    if (done == LS_OK)
        ids[count++] = id;
    else if (rc == LS_OK)
        check(ls_destroy(store, id, 0) == LS_OK);
    return done;
}

static int put(enum kind kind) {
    if (kind == IN_CHUNKS)
        return put_in_chunks();
    int rc = ls_publish(store, queues, 1, NULL, 0, NULL, 0, NULL, 0, &ids[count]);

    count += rc == LS_OK ? 1 : 0;
    return rc;
}

static void start(enum limit limit) {
    sim = vfs_sim_new();
    (void)vfs_sim_record(sim, 0);
    ls_options_default(&options);
    options.segment_size = SEGMENT;
    options.background = 0;
    if (limit == BY_OPTION)
        options.max_log_bytes = (uint64_t)SEGMENTS * SEGMENT;
    else
        vfs_sim_capacity(sim, (uint64_t)SEGMENTS * SEGMENT + 5 * BLOCK);
    count = 0;
    open_it();
}

static void fill_up(enum kind kind) {
    int rc = LS_OK;

    while (rc == LS_OK && count < MOST)
        rc = put(kind);
    check(rc == LS_FULL && count > 100);
    for (rc = LS_OK; rc == LS_OK && count < MOST;) /* a plain one may still fit */
        rc = put(PLAIN);
}

static void end(void) {
    ls_free(store);
    store = NULL;
    vfs_sim_free(sim);
}

static int take(uint64_t id, uint32_t queue, ls_tx *tx) {
    uint64_t lsn;

    return ls_dequeue(store, id, queue, tx, 1, 0, 0, &lsn);
}

static int enqueue(uint64_t id, uint32_t queue, ls_tx *tx) {
    uint64_t lsn;

    return ls_enqueue(store, id, &queue, 1, tx, 0, &lsn);
}

/* Without transactions, from each queue; true: no dequeue was refused, and nothing is left. */
static bool drains(void) {
    ls_stats stats;

    for (int i = 0; i < count; i++) {
        for (int q = 0; q < QUEUE_COUNT; q++) {
            int rc = take(ids[i], queues[q], NULL);

            if (rc != LS_OK && rc != LS_NOT_ENQUEUED && rc != LS_UNKNOWN_MESSAGE)
                return complain("a dequeue was refused");
        }
    }
    open_again(true);
    ls_stats_get(store, &stats);
    return stats.messages == 0 && stats.transactions == 0;
}

/* Relocation may have made room meanwhile: messages in chunks grow less than is counted before. */
static bool is_full(enum kind kind) { return put(PLAIN) == LS_FULL || kind == IN_CHUNKS; }

/* ---- the promises ---- */

static void a_transaction_from_before_takes_messages_prepares_and_commits_over_a_crash(void) {
    for (enum limit limit = BY_OPTION; limit < LIMITS; limit++) {
        for (enum kind kind = PLAIN; kind < KINDS; kind++) {
            ls_xid xid = {.format_id = 1, .gtrid_bytes = 64, .bqual_bytes = 64};
            ls_tx *tx;
            uint64_t id;
            size_t found;

            start(limit);
            check(ls_begin(store, &xid, &tx) == LS_OK);
            fill_up(kind);
            for (int i = 0; i < 20; i++)
                check(take(ids[i], FROM, tx) == LS_OK || complain("in the transaction"));
            check(is_full(kind));
            check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
            ls_tx_free(tx);
            open_again(false);
            check(ls_in_doubt(store, &id, 1, &found) == LS_OK && found == 1);
            check(ls_in_doubt_take(store, id, &tx) == LS_OK && ls_commit(tx, LS_WAIT) == LS_OK);
            ls_tx_free(tx);
            check(take(ids[0], FROM, NULL) == LS_UNKNOWN_MESSAGE);
            check(drains());
            end();
        }
    }
}

static void what_exceeds_the_pool_is_refused_at_the_operation_and_every_outcome_is_taken(void) {
    enum { TXS = 400, EACH = 30 };
    static ls_tx *txs[TXS];

    for (enum limit limit = BY_OPTION; limit < LIMITS; limit++) {
        for (enum kind kind = PLAIN; kind < KINDS; kind++) {
            int open = 0, next = 0, rc = LS_OK;

            start(limit);
            fill_up(kind);
            while (rc == LS_OK && open < TXS && next + EACH < count) {
                ls_xid xid = {.format_id = 1, .gtrid_bytes = 4, .data = {(uint8_t)open, (uint8_t)(open >> 8)}};

                rc = ls_begin(store, &xid, &txs[open]);
                open += rc == LS_OK ? 1 : 0;
                for (int i = 0; rc == LS_OK && i < EACH; i++)
                    rc = take(ids[next++], FROM, txs[open - 1]);
            }
            check(rc == LS_TRANSACTION_LIMIT || kind == IN_CHUNKS || complain("not the pool")); /* too few to fill it */
            check(next > 50);
            check(is_full(kind));
            check(take(ids[count - 1], FROM, NULL) == LS_OK); /* without a transaction */
            for (int i = 0; i < open; i++) {
                check(ls_tx_end(txs[i]) == LS_OK && ls_prepare(txs[i], LS_WAIT) == LS_OK);
                check((i % 2 == 0 ? ls_commit(txs[i], LS_WAIT) : ls_rollback(txs[i], LS_WAIT)) == LS_OK);
                ls_tx_free(txs[i]);
            }
            check(drains());
            end();
        }
    }
}

/* One message in one transaction. */
static int exchange(uint64_t id, uint32_t from, uint32_t to) {
    ls_tx *tx;
    int rc = ls_begin(store, NULL, &tx);

    if (rc != LS_OK)
        return rc;
    rc = take(id, from, tx);
    rc = rc == LS_OK ? enqueue(id, to, tx) : rc;
    check((rc == LS_OK ? ls_commit(tx, LS_WAIT) : ls_rollback(tx, LS_WAIT)) == LS_OK);
    ls_tx_free(tx);
    return rc;
}

static void messages_are_put_on_another_queue_and_the_rest_of_the_pool_still_takes_them(void) {
    for (enum limit limit = BY_OPTION; limit < LIMITS; limit++) {
        for (enum kind kind = PLAIN; kind < KINDS; kind++) {
            int moved = 0, rc = LS_OK;
            ls_tx *tx;

            start(limit);
            fill_up(kind);
            while (rc == LS_OK && moved < count) {
                rc = exchange(ids[moved], FROM, TO);
                moved += rc == LS_OK ? 1 : 0;
            }
            check(rc == LS_TRANSACTION_LIMIT || moved == count || complain("not the pool"));
            check(moved > 50);
            check(is_full(kind));
            check(ls_begin(store, NULL, &tx) == LS_OK);
            for (int i = 0; i < 40; i++)
                check(take(ids[i], TO, tx) == LS_OK || complain("after the exchanges"));
            check(ls_commit(tx, LS_WAIT) == LS_OK);
            ls_tx_free(tx);
            open_again(true);
            check(drains());
            end();
        }
    }
}

static void an_enqueue_without_a_dequeue_of_the_same_message_is_growth(void) {
    ls_tx *tx;

    start(BY_OPTION);
    fill_up(PLAIN);
    check(ls_begin(store, NULL, &tx) == LS_OK);
    check(take(ids[0], FROM, tx) == LS_OK && enqueue(ids[0], TO, tx) == LS_OK);
    check(enqueue(ids[0], THIRD, tx) == LS_FULL);
    check(enqueue(ids[1], TO, tx) == LS_FULL);
    check(ls_publish(store, queues, 1, NULL, 0, NULL, 0, tx, 0, &ids[count]) == LS_FULL);
    check(take(ids[0], TO, tx) == LS_OK && enqueue(ids[0], FROM, tx) == LS_OK); /* as many as were taken off */
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    check(take(ids[0], FROM, NULL) == LS_OK);
    check(drains());
    end();
}

/* Work that relocation copies, and that is rolled back then, leaves its messages longer until they are moved again. */
static void work_that_is_rolled_back_again_and_again_leaves_a_store_that_drains(void) {
    enum { AT_ONCE = 25, ROUNDS = 6 };

    for (enum limit limit = BY_OPTION; limit < LIMITS; limit++) {
        for (enum kind kind = PLAIN; kind < KINDS; kind++) {
            int refused = 0;

            start(limit);
            fill_up(kind);
            for (int round = 0; round < ROUNDS; round++) {
                for (int first = 0; first + AT_ONCE <= count; first += AT_ONCE) {
                    ls_tx *tx;
                    int rc = ls_begin(store, NULL, &tx);

                    for (int i = 0; rc == LS_OK && i < AT_ONCE; i++)
                        rc = take(ids[first + i], FROM, tx);
                    check(rc == LS_OK || rc == LS_TRANSACTION_LIMIT || complain("not the pool"));
                    refused += rc != LS_OK ? 1 : 0;
                    if (tx != NULL)
                        check(ls_rollback(tx, LS_WAIT) == LS_OK);
                    ls_tx_free(tx);
                }
            }
            if (getenv("LOGSTORE_VERBOSE") != NULL)
                printf("limit %d, kind %d: %d of %d transactions were refused\n", (int)limit, (int)kind, refused,
                       ROUNDS * count / AT_ONCE);
            open_again(false);
            check(drains());
            end();
        }
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        a_transaction_from_before_takes_messages_prepares_and_commits_over_a_crash,
        what_exceeds_the_pool_is_refused_at_the_operation_and_every_outcome_is_taken,
        messages_are_put_on_another_queue_and_the_rest_of_the_pool_still_takes_them,
        an_enqueue_without_a_dequeue_of_the_same_message_is_growth,
        work_that_is_rolled_back_again_and_again_leaves_a_store_that_drains,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
