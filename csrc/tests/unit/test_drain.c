/*
 * A full store can always be drained: whatever filled it, whatever limited it (max_log_bytes of any size, or the disk),
 * in any order, one by one or in transactions, with restarts in between.
 *
 * A sample of the 1980 cases runs, all of them with LOGSTORE_CRASH set. The arguments, if any, are the kind, or kind, limit
 * (0 max_log_bytes, 1 the disk), segments, order and whether in transactions of the one that is to run.
 */
#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/store_verdict.h"

enum { MOST = 30000, WIDE = 600, SEGMENTS_FEWEST = 6, SEGMENTS_MOST = 20, AT_ONCE = 7 };
enum order { FROM_THE_FRONT, FROM_THE_END, AT_RANDOM, ORDERS };
enum limit { BY_OPTION, BY_DISK, LIMITS };

static uint8_t bytes_of[64 << 10];
static uint32_t queues[WIDE];

struct drain {
    int kind;
    enum limit limit;
    unsigned segments;
    enum order order;
    bool in_transactions;

    vfs_sim *sim;
    ls_options options;
    ls_store *store;
    uint64_t ids[MOST];
    int n;
    uint64_t dice;
};

static struct drain d;

/* ---- what fills it ---- */

typedef int put_fn(ls_store *store, uint64_t *id);

static int put_plain(ls_store *store, uint64_t *id) {
    return ls_publish(store, queues, 1, NULL, 0, NULL, 0, NULL, 0, id);
}

static int put_of_any_size(ls_store *store, uint64_t *id) {
    static const uint32_t sizes[] = {10, 3900, 200, 2500, 0, 4000, 4001, 1200, 60, 3300};
    static unsigned next;

    return ls_publish(store, queues, 1, NULL, 0, bytes_of, sizes[next++ % 10], NULL, 0, id);
}

static int put_of_two_keys(ls_store *store, uint64_t *id) {
    uint64_t lsn;
    int rc = ls_publish(store, queues, 1, NULL, 0, NULL, 0, NULL, 0, id);

    return rc == LS_OK ? ls_enqueue(store, *id, queues + 1, 1, NULL, 0, &lsn) : rc;
}

static int put_of_many_keys_at_once(ls_store *store, uint64_t *id) {
    uint64_t lsn;
    int rc = ls_publish(store, queues, 1, NULL, 0, NULL, 0, NULL, 0, id);

    return rc == LS_OK ? ls_enqueue(store, *id, queues + 1, 11, NULL, 0, &lsn) : rc;
}

static int put_on_very_many(ls_store *store, uint64_t *id) {
    uint64_t lsn;
    int rc = ls_publish(store, queues, 1, NULL, 0, NULL, 0, NULL, 0, id);

    return rc == LS_OK ? ls_enqueue(store, *id, queues + 1, WIDE - 1, NULL, 0, &lsn) : rc;
}

static int put_with_a_chunk(ls_store *store, uint64_t *id) {
    return ls_publish(store, queues, 12, NULL, 0, bytes_of, 4200, NULL, 0, id);
}

static int put_with_small_chunks(ls_store *store, uint64_t *id) {
    uint64_t lsn;
    int rc = ls_stage(store, NULL, 0, NULL, 0, LS_PUBLISHED, id);

    for (int i = 0; rc == LS_OK && i < 10; i++)
        rc = ls_append_content(store, *id, bytes_of, 1, 0);
    return rc == LS_OK ? ls_enqueue(store, *id, queues, 1, NULL, 0, &lsn) : rc;
}

/* Its places have numbers, and gaps between them. */
static int put_in_a_transaction(ls_store *store, uint64_t *id) {
    ls_tx *tx = NULL;
    uint64_t lsn;
    int rc = ls_begin(store, NULL, &tx);

    rc = rc == LS_OK ? ls_publish(store, queues, 60, NULL, 0, NULL, 0, tx, 0, id) : rc;
    rc = rc == LS_OK ? ls_commit(tx, 0) : rc;
    ls_tx_free(tx);
    for (int i = 1; rc == LS_OK && i < 59; i += 1 + (i % 7 == 0))
        rc = ls_dequeue(store, *id, queues[i], NULL, 1, 0, 0, &lsn);
    return rc;
}

static int put_staged_then_enqueued(ls_store *store, uint64_t *id) {
    uint64_t lsn;
    int rc = ls_stage(store, NULL, 0, NULL, 0, 0, id);

    return rc == LS_OK ? ls_enqueue(store, *id, queues, 2, NULL, 0, &lsn) : rc;
}

/* A branch of its own keeps it in doubt. */
static int put_prepared(ls_store *store, uint64_t *id) {
    static uint32_t number;
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 64, .bqual_bytes = 64};
    ls_tx *tx = NULL;
    int rc;

    memcpy(xid.data, &number, sizeof number);
    number++;
    rc = ls_begin(store, &xid, &tx);
    rc = rc == LS_OK ? ls_publish(store, queues, 2, NULL, 0, NULL, 0, tx, 0, id) : rc;
    rc = rc == LS_OK ? ls_tx_end(tx) : rc;
    rc = rc == LS_OK ? ls_prepare(tx, 0) : rc;
    ls_tx_free(tx);
    return rc;
}

/* Forty messages grow in turn, so that each has a chunk in every segment; then plain messages, then the next forty. */
static int put_with_chunks_in_turns(ls_store *store, uint64_t *id) {
    enum { TURNS = 40, PIECES = 100, PLAIN = 1500 };
    static uint64_t staged[TURNS], lsn;
    static int next;
    int rc = LS_OK;

    if (d.n == 0)
        next = 0;
    if (next < TURNS) {
        rc = ls_stage(store, NULL, 0, NULL, 0, LS_PUBLISHED, id);
        staged[next] = *id;
        for (int i = 0; rc == LS_OK && next == TURNS - 1 && i < TURNS * PIECES; i++)
            rc = ls_append_content(store, staged[i % TURNS], bytes_of, 1, 0);
        for (int i = 0; rc == LS_OK && next == TURNS - 1 && i < TURNS; i++)
            rc = ls_enqueue(store, staged[i], queues, 1, NULL, 0, &lsn);
    } else {
        rc = put_plain(store, id);
    }
    next = next + 1 == TURNS + PLAIN ? 0 : next + 1;
    return rc;
}

static const struct {
    const char *name;
    put_fn *put;
} kinds[] = {
    {"plain", put_plain},
    {"of any size", put_of_any_size},
    {"of two keys", put_of_two_keys},
    {"of many keys at once", put_of_many_keys_at_once},
    {"on very many queues", put_on_very_many},
    {"with a chunk", put_with_a_chunk},
    {"with small chunks", put_with_small_chunks},
    {"in a transaction", put_in_a_transaction},
    {"staged, then enqueued", put_staged_then_enqueued},
    {"prepared", put_prepared},
    {"with chunks in turns", put_with_chunks_in_turns},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- the store ---- */

static void fail_drain(const char *what) {
    check(complain(what));
    printf("kind %d (%s), limit %d, %u segments, order %d, transactions %d: %s; %d left: %s\n", d.kind,
           kinds[d.kind].name, (int)d.limit, d.segments, (int)d.order, d.in_transactions, what, d.n,
           ls_last_error()->text);
}

static bool open_it(void) {
    if (ls_open(vfs_sim_table(d.sim), "/s", &d.options, &d.store) != LS_OK ||
        ls_serve(d.store, queues, WIDE, 1 << 20) != LS_OK) {
        fail_drain("it does not open");
        return false;
    }
    return true;
}

static bool open_again(void) {
    bool closed = ls_close(d.store) == LS_OK;

    ls_free(d.store);
    d.store = NULL;
    if (!closed)
        fail_drain("it does not close");
    return closed && open_it();
}

static bool fill_it(void) {
    int rc = LS_OK;

    while (d.n < MOST && rc == LS_OK) {
        d.ids[d.n] = 0;
        rc = kinds[d.kind].put(d.store, &d.ids[d.n]);
        d.n += d.ids[d.n] != 0; /* also a message that was staged and whose last step was refused */
    }
    if (rc == LS_FULL && d.n > 3)
        return true;
    fail_drain("it does not fill");
    return false;
}

/* Live bytes, and the bytes that they will grow by when moved. */
static uint64_t grown_bytes(void) {
    const struct log *g = d.store->log;

    return log_live_bytes(g) + clients_expansion(&g->clients, log_bytes(g));
}

/* ---- draining ---- */

static uint64_t roll(uint64_t below) {
    d.dice = d.dice * 6364136223846793005u + 1442695040888963407u;
    return (d.dice >> 33) % below;
}

/* Takes the next id to dequeue from the list. */
static uint64_t next_id(void) {
    int at = d.order == FROM_THE_END ? d.n - 1 : d.order == AT_RANDOM ? (int)roll((uint64_t)d.n) : 0;
    uint64_t id = d.ids[at];

    if (d.order == FROM_THE_FRONT) /* reversed before */
        id = d.ids[d.n - 1];
    else
        d.ids[at] = d.ids[d.n - 1];
    d.n--;
    return id;
}

static void reverse(void) {
    for (int i = 0; i < d.n / 2; i++) {
        uint64_t id = d.ids[i];

        d.ids[i] = d.ids[d.n - 1 - i];
        d.ids[d.n - 1 - i] = id;
    }
}

static bool went(int rc) { return rc == LS_OK || rc == LS_NOT_ENQUEUED || rc == LS_UNKNOWN_MESSAGE; }

static bool take_one(uint64_t id, ls_tx *tx) {
    bool good = true;

    for (uint32_t i = WIDE; good && i-- > 0;) {
        uint64_t lsn;

        if (i < 60 || kinds[d.kind].put == put_on_very_many)
            good = went(ls_dequeue(d.store, id, queues[i], tx, 1, 0, 0, &lsn));
    }
    return good;
}

/* Places that one message of this kind may have, at most. */
static int places_most(void) {
    return kinds[d.kind].put == put_on_very_many ? WIDE : kinds[d.kind].put == put_in_a_transaction ? 60 : 12;
}

/*
 * In one transaction, if the messages have so few places that the pool has room for all. A transaction with more may be
 * refused, at an operation, for what it is, and not because the store is full: then without one.
 */
static bool take_in_a_transaction(const uint64_t *ids, int n) {
    ls_tx *tx = NULL;
    bool fits = (uint64_t)(places_most() * n) * ROW_BYTES + (uint64_t)n * STATE_BYTES < extent_pool(SEGMENT) / 2;
    bool good = ls_begin(d.store, NULL, &tx) == LS_OK;

    for (int i = 0; good && i < n; i++)
        good = take_one(ids[i], tx);
    if (good) {
        good = ls_commit(tx, LS_WAIT) == LS_OK;
        ls_tx_free(tx);
        return good;
    }
    if (fits || ls_last_error()->code != LS_TRANSACTION_LIMIT)
        return false;
    if (tx != NULL && ls_rollback(tx, LS_WAIT) != LS_OK)
        return false;
    ls_tx_free(tx);
    good = true;
    for (int i = 0; good && i < n; i++)
        good = take_one(ids[i], NULL);
    return good;
}

static bool settle(uint64_t nth) {
    uint64_t id;
    size_t count;
    ls_tx *tx;
    bool good = ls_in_doubt(d.store, &id, 1, &count) == LS_OK;

    if (count == 0)
        return good;
    good = good && ls_in_doubt_take(d.store, id, &tx) == LS_OK;
    good = good && (nth % 2 == 0 ? ls_commit(tx, 0) : ls_rollback(tx, 0)) == LS_OK;
    ls_tx_free(tx);
    return good;
}

static bool drain_it(void) {
    int all = d.n, half = d.n / 2;
    uint64_t ids[AT_ONCE];

    if (d.order == FROM_THE_FRONT)
        reverse();
    for (int i = 0; kinds[d.kind].put == put_prepared && i <= all; i++) {
        if (!settle((uint64_t)i)) {
            fail_drain("an outcome was refused");
            return false;
        }
    }
    while (d.n > 0) {
        int n = d.n < AT_ONCE ? d.n : AT_ONCE;

        for (int i = 0; i < n; i++)
            ids[i] = next_id();
        for (int i = 0; i < (d.in_transactions ? 1 : n); i++) {
            if (!(d.in_transactions ? take_in_a_transaction(ids, n) : take_one(ids[i], NULL))) {
                fail_drain("a dequeue was refused");
                return false;
            }
        }
        if (d.n < half) {
            half = 0;
            if (!open_again())
                return false;
        }
    }
    return true;
}

static void fill_and_drain(void) {
    ls_stats stats;

    d.n = 0;
    d.dice = 77;
    d.sim = vfs_sim_new();
    (void)vfs_sim_record(d.sim, 0);
    ls_options_default(&d.options);
    d.options.segment_size = SEGMENT;
    d.options.background = 0;
    if (d.limit == BY_OPTION)
        d.options.max_log_bytes = (uint64_t)d.segments * SEGMENT;
    else
        vfs_sim_capacity(d.sim, (uint64_t)d.segments * SEGMENT + 5 * BLOCK);
    if (open_it() && fill_it()) {
        uint64_t grown = grown_bytes();

        if (getenv("LOGSTORE_VERBOSE") != NULL)
            printf("kind %d, limit %d, %u segments: %d messages, %llu bytes live when moved\n", d.kind, (int)d.limit,
                   d.segments, d.n, (unsigned long long)grown);
        if (open_again()) {
            if (grown_bytes() > grown)
                fail_drain("a restart made longer what lives");
            if (drain_it() && open_again()) {
                ls_stats_get(d.store, &stats);
                if (stats.messages > 0 || stats.transactions > 0)
                    fail_drain("something is left");
            }
        }
    }
    ls_free(d.store);
    d.store = NULL;
    vfs_sim_free(d.sim);
}

/* One operation may cause growth of more than a segment: it waits for enough spares, but not for ever. */
static void a_transaction_can_dequeue_a_message_from_thousands_of_queues(void) {
    enum { MANY = 6000, IN_ONE = 600 };
    static uint32_t many[MANY];
    uint64_t id, lsn;
    ls_tx *tx;

    d.sim = vfs_sim_new();
    (void)vfs_sim_record(d.sim, 0);
    ls_options_default(&d.options);
    d.options.segment_size = SEGMENT;
    d.options.background = 0;
    for (uint32_t i = 0; i < MANY; i++)
        many[i] = i + 1;
    require(ls_open(vfs_sim_table(d.sim), "/s", &d.options, &d.store) == LS_OK &&
            ls_serve(d.store, many, MANY, 1 << 20) == LS_OK);
    check(ls_publish(d.store, many, 1, NULL, 0, NULL, 0, NULL, 0, &id) == LS_OK);
    check(ls_enqueue(d.store, id, many + 1, IN_ONE - 1, NULL, 0, &lsn) == LS_OK);
    for (int i = IN_ONE; i < MANY; i += IN_ONE)
        check(ls_enqueue(d.store, id, many + i, IN_ONE, NULL, 0, &lsn) == LS_OK);
    check(ls_begin(d.store, NULL, &tx) == LS_OK);
    check(ls_dequeue(d.store, id, many[7], tx, 1, 0, 0, &lsn) == LS_OK);
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    ls_free(d.store);
    d.store = NULL;
    vfs_sim_free(d.sim);
}

int main(int argc, char **argv) {
    const char *times = getenv("LOGSTORE_CRASH");
    unsigned step = times != NULL ? 1 : 19 * ONE_IN, turn = 0;
    int passed = 0, failed = 0;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint32_t i = 0; i < WIDE; i++)
        queues[i] = i + 1;
    if (argc == 1)
        a_transaction_can_dequeue_a_message_from_thousands_of_queues();
    passed += argc == 1 && failures_here == 0;
    failed += failures_here != 0;
    for (d.kind = 0; d.kind < KINDS; d.kind++) {
        for (d.segments = SEGMENTS_FEWEST; d.segments <= SEGMENTS_MOST; d.segments++) {
            for (int way = 0; way < (int)LIMITS * ORDERS * 2; way++) {
                int before = failures_here;

                d.limit = (enum limit)(way % LIMITS);
                d.order = (enum order)(way / LIMITS % ORDERS);
                d.in_transactions = way / LIMITS / ORDERS == 1;
                if (argc > 5 ? atoi(argv[1]) != d.kind || atoi(argv[2]) != (int)d.limit ||
                                   (unsigned)atoi(argv[3]) != d.segments || atoi(argv[4]) != (int)d.order ||
                                   atoi(argv[5]) != d.in_transactions
                    : argc > 1 ? atoi(argv[1]) != d.kind
                               : turn++ % step != 0)
                    continue;
                fill_and_drain();
                if (failures_here == before)
                    passed++;
                else
                    failed++;
            }
        }
    }
    return verdict(passed, failed);
}
