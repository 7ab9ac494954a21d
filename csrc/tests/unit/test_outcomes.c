/*
 * Two callers on one transaction handle: while the first waits in its call for room in the log, the second ends the
 * transaction or frees the handle. The first then gets LS_TRANSACTION_ENDED, and the outcome is the second's. If the table
 * slot goes to another transaction meanwhile, the first never mistakes that for its own.
 *
 * There are no threads: the second call is made inside the write for which the first one waits.
 */
#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

static vfs table;
static vfs *real;
static ls_tx *shared, *other;
static uint64_t taken_id; /* on queue 1, and taken from there in the transaction */
static uint64_t spare_id; /* on queue 3 */
static uint64_t usual_limit;
static int (*second)(void);
static int second_rc;
static bool came_between;

static const ls_xid branch = {.format_id = 1, .gtrid_bytes = 4, .data = "twig"};

/* ---- the moment ---- */

static int64_t pwrite_between(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    (void)v;
    if (second != NULL) {
        int (*call)(void) = second;

        second = NULL;
        came_between = true;
        r.store->log->max_undurable_bytes = usual_limit;
        second_rc = call();
        /* its slot in the table goes to another */
        check(ls_begin(r.store, NULL, &other) == LS_OK);
    }
    return real->pwrite(real, file, from, bytes, at);
}

static void start(bool distributed) {
    fresh();
    real = r.v;
    table = *real;
    table.pwrite = pwrite_between;
    r.store->log->v = &table;
    usual_limit = r.store->log->max_undurable_bytes;
    taken_id = put(1, "taken", NULL);
    spare_id = put(3, "spare", NULL);
    check(ls_begin(r.store, distributed ? &branch : NULL, &shared) == LS_OK);
    check(take(taken_id, 1, shared) == LS_OK);
    (void)put(2, "put", shared);
    other = NULL;
    came_between = false;
}

/* The next reservation waits until a batch is written. */
static void let_it_wait(int (*call)(void)) {
    uint32_t queue = 4;
    uint64_t id;

    check(ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"", 0, NULL, LS_MORE, &id) == LS_OK);
    second = call;
    r.store->log->max_undurable_bytes = 1;
}

static uint64_t depth(uint32_t queue) {
    uint64_t places = 0, locked = 0;

    check(ls_queue_depth(r.store, queue, &places, &locked) == LS_OK && locked == 0);
    return places;
}

static void finish(bool committed) {
    ls_tx_free(other);
    check(came_between);
    check(depth(1) == (committed ? 0 : 1) && depth(2) == (committed ? 1 : 0) && depth(3) == 1);
    again();
    check(depth(1) == (committed ? 0 : 1) && depth(2) == (committed ? 1 : 0) && depth(3) == 1);
    done();
}

/* ---- calls ---- */

static int ends(void) { return ls_tx_end(shared); }
static int prepares(void) { return ls_prepare(shared, 0); }
static int commits(void) { return ls_commit(shared, 0); }
static int rolls_back(void) { return ls_rollback(shared, 0); }

static int frees(void) {
    ls_tx_free(shared);
    shared = NULL;
    return LS_OK;
}

static int enqueues(void) {
    uint32_t queue = 2;
    uint64_t lsn;
    return ls_enqueue(r.store, spare_id, &queue, 1, shared, 0, &lsn);
}

static int dequeues(void) {
    uint64_t lsn;
    return ls_dequeue(r.store, spare_id, 3, shared, 0, 0, 0, &lsn);
}

static int dequeues_many(void) {
    size_t n;
    return ls_dequeue_many(r.store, &spare_id, 1, 3, shared, 0, 0, &n);
}

static int publishes(void) {
    uint32_t queue = 3;
    uint64_t id;
    return ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"more", 4, shared, 0, &id);
}

static int publishes_many(void) {
    static const uint64_t sizes[3] = {2, 2, 2};
    uint64_t ids[3];
    size_t n;
    return ls_publish_many(r.store, 3, 3, (const uint8_t *)"aabbcc", sizes, NULL, NULL, NULL, shared, 0, ids, &n);
}

static int publishes_in_chunks(void) {
    static uint8_t content[100000];
    uint32_t queue = 3;
    uint64_t id;
    return ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, shared, 0, &id);
}

/* ---- pairs ---- */

enum stage { LOCAL, ACTIVE, ENDED, PREPARED };

static const struct {
    int (*call)(void);
    enum stage stage;
} firsts[] = {
    {ends, ACTIVE},          {prepares, ENDED},   {commits, LOCAL},       {commits, ENDED},
    {commits, PREPARED},     {rolls_back, LOCAL}, {rolls_back, ACTIVE},   {rolls_back, PREPARED},
    {enqueues, LOCAL},       {dequeues, LOCAL},   {dequeues_many, LOCAL}, {publishes, LOCAL},
    {publishes_many, LOCAL}, {enqueues, ACTIVE},  {publishes, ACTIVE},    {publishes_in_chunks, LOCAL},
};

static int (*const seconds[])(void) = {commits, rolls_back, frees};

static void reach(enum stage stage) {
    start(stage != LOCAL);
    if (stage == ENDED || stage == PREPARED)
        check(ls_tx_end(shared) == LS_OK);
    if (stage == PREPARED)
        check(ls_prepare(shared, LS_WAIT) == LS_OK);
}

static void a_call_that_waits_for_room_learns_that_the_transaction_has_ended(void) {
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        for (size_t k = 0; k < sizeof seconds / sizeof *seconds; k++) {
            int before = failures_here, rc;

            if (firsts[i].stage == ACTIVE && seconds[k] == commits)
                continue; /* refused: it is to be ended first */
            if (firsts[i].stage == PREPARED && seconds[k] == frees)
                continue; /* it stays in doubt, see below */
            reach(firsts[i].stage);
            let_it_wait(seconds[k]);
            rc = firsts[i].call();
            check(second_rc == LS_OK);
            check(rc == LS_TRANSACTION_ENDED);
            ls_tx_free(shared);
            finish(seconds[k] == commits);
            if (failures_here != before)
                printf("first %zu, second %zu: %d\n", i, k, rc);
        }
    }
}

/* Freeing a handle does not change the outcome given by another thread. */
static void a_handle_is_freed_while_its_transaction_gets_an_outcome(void) {
    static int (*const outcomes[])(void) = {commits, rolls_back};

    for (size_t k = 0; k < 2; k++) {
        start(false);
        let_it_wait(outcomes[k]);
        (void)frees();
        check(second_rc == LS_OK);
        finish(outcomes[k] == commits);
    }
}

/* The first call gives a prepared branch its outcome although the handle is freed; or the branch stays in doubt. */
static void the_outcome_of_a_prepared_branch_stands_although_its_handle_is_freed_meanwhile(void) {
    for (size_t k = 0; k < 2; k++) {
        reach(PREPARED);
        let_it_wait(frees);
        check((k == 0 ? commits : rolls_back)() == LS_OK);
        finish(k == 0);
    }
}

/* A refused call changes nothing for the call that waits. */
static void a_refused_commit_leaves_the_end_that_waits_as_it_is(void) {
    reach(ACTIVE);
    let_it_wait(commits);
    check(ends() == LS_OK && second_rc == LS_WRONG_STATE);
    check(commits() == LS_OK);
    ls_tx_free(shared);
    finish(true);
}

static void the_second_of_two_prepares_is_refused(void) {
    reach(ENDED);
    let_it_wait(prepares);
    check(prepares() == LS_WRONG_STATE && second_rc == LS_OK);
    check(commits() == LS_OK);
    ls_tx_free(shared);
    finish(true);
}

/* A rollback that waits finds the branch prepared, and rolls that back; freeing the handle leaves it in doubt. */
static void a_branch_that_is_prepared_meanwhile_stays_in_doubt_when_its_handle_is_freed(void) {
    uint64_t id;
    size_t n;

    reach(ENDED);
    let_it_wait(prepares);
    (void)frees();
    check(second_rc == LS_OK && came_between);
    check(ls_in_doubt(r.store, &id, 1, &n) == LS_OK && n == 1);
    check(ls_in_doubt_take(r.store, id, &shared) == LS_OK && commits() == LS_OK);
    ls_tx_free(shared);
    finish(true);
}

static int begins_the_same(void) { return ls_begin(r.store, &branch, &shared); }

static void the_second_of_two_begins_of_a_branch_is_refused(void) {
    ls_tx *mine = NULL;

    start(false);
    ls_tx_free(shared);
    let_it_wait(begins_the_same);
    check(ls_begin(r.store, &branch, &mine) == LS_DUPLICATE_XID && mine == NULL && second_rc == LS_OK);
    ls_tx_free(shared);
    finish(false);
}

static void a_description_says_which_outcome_another_gave(void) {
    ls_tx_info info;

    start(false);
    let_it_wait(commits);
    check(rolls_back() == LS_TRANSACTION_ENDED);
    ls_tx_describe(shared, &info);
    check(info.state == LS_TX_COMMITTED);
    ls_tx_free(shared);
    finish(true);
}

/* ---- messages ---- */

static int enqueues_outside(void) {
    uint32_t queue = 2;
    uint64_t lsn;
    return ls_enqueue(r.store, spare_id, &queue, 1, NULL, 0, &lsn);
}

/* A message that gets a place while its end waits for room is refused, not passed over. */
static void a_destroy_ends_the_message_or_is_refused(void) {
    start(false);
    check(commits() == LS_OK);
    check(ls_stage(r.store, NULL, 0, (const uint8_t *)"staged", 6, 0, &spare_id) == LS_OK);
    let_it_wait(enqueues_outside);
    check(ls_destroy(r.store, spare_id, 0) == LS_MESSAGE_IN_USE && second_rc == LS_OK && has(spare_id));
    check(take(spare_id, 2, NULL) == LS_OK);
    ls_tx_free(shared);
    finish(true);
}

int main(void) {
    static void (*const tests[])(void) = {
        a_call_that_waits_for_room_learns_that_the_transaction_has_ended,
        a_handle_is_freed_while_its_transaction_gets_an_outcome,
        the_outcome_of_a_prepared_branch_stands_although_its_handle_is_freed_meanwhile,
        a_refused_commit_leaves_the_end_that_waits_as_it_is,
        the_second_of_two_prepares_is_refused,
        a_branch_that_is_prepared_meanwhile_stays_in_doubt_when_its_handle_is_freed,
        the_second_of_two_begins_of_a_branch_is_refused,
        a_description_says_which_outcome_another_gave,
        a_destroy_ends_the_message_or_is_refused,
    };

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    return run_tests(tests, sizeof tests / sizeof *tests);
}
