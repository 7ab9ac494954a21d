/* Queues that the leader deletes: a copy that follows frees their places, a few after each batch. See replica/sweep.c. */
#include "replica/commit.h"
#include "tests/kit/copies.h"

enum {
    MANY = 2600,
    ON_BOTH = 7,
    SHORT = 40
}; /* more than two steps; every seventh is on queues 1 and 2, the others on 2 alone */

static void put_many(int n) {
    static const uint8_t content[SHORT];
    static const uint32_t both[] = {2, 1};
    uint64_t id;

    for (int i = 0; i < n; i++)
        check(ls_publish(r.store, both, i % ON_BOTH == 0 ? 2 : 1, NULL, 0, content, sizeof content, NULL,
                         i % 64 == 63 ? LS_WAIT : 0, &id) == LS_OK ||
              complain("publish"));
}

static void delete_queue_2(void) {
    r.catalog &= ~(1u << 2);
    check(ls_queue_delete(r.store, 2, LS_WAIT) == LS_OK || complain("delete"));
}

static uint64_t messages_of(int i) {
    ls_replica_info info;

    ls_replica_describe(copies[i].follows, &info);
    return info.messages;
}

static const struct state *state_of(int i) { return &copies[i].follows->store->state; }

/* But for the newest batch, which is not durable there yet and has one message. */
static bool has_what_the_leader_has(int i) { return messages_of(i) + 1 == r.store->state.table.message_count; }

/* How many batches it takes. */
static int batches_until_swept(void) {
    int n = 0;

    for (; !has_what_the_leader_has(1) && n < 20; n++)
        (void)put(1, "another batch", NULL);
    return n;
}

static void lead_with_many(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    put_many(MANY);
    (void)put(1, "what makes them durable", NULL);
    (void)put(1, "and what makes that durable", NULL);
    check(messages_of(1) > MANY);
    delete_queue_2();
}

static void a_copy_frees_a_deleted_queue_in_steps(void) {
    uint64_t before, left;
    int n;

    lead_with_many();
    before = messages_of(1);
    (void)put(1, "what makes it durable", NULL);
    check(messages_of(1) < before && messages_of(1) > before / 2); /* one step */
    n = batches_until_swept();
    check(n >= 2 && n <= MANY / 1024);
    check(state_of(1)->table.place_count == messages_of(1));
    left = r.store->state.table.message_count;
    check(copies_agree());
    cease();
    check(lead_in(1, 3) == LS_OK && r.store->state.table.message_count == left && copies_agree());
    copies_end();
}

static void after_each_step_the_table_is_that_of_an_open(void) {
    for (int steps = 0; steps < 5; steps++) {
        lead_with_many();
        for (int i = 0; i < steps; i++)
            (void)put(1, "another batch", NULL);
        check(has_the_table_of_its_directory(1));
        copies_end();
    }
}

static void a_deletion_during_a_sweep_gets_a_pass_of_its_own(void) {
    static const uint8_t content[SHORT];
    static const uint32_t three = 3;
    uint64_t ids[200];

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    for (int i = 0; i < 200; i++)
        check(ls_publish(r.store, &three, 1, NULL, 0, content, sizeof content, NULL, i % 64 == 63 ? LS_WAIT : 0,
                         &ids[i]) == LS_OK);
    put_many(2 * MANY);
    delete_queue_2();
    (void)put(1, "one step", NULL);
    (void)put(1, "and another", NULL); /* the pass is beyond the messages of queue 3 */
    r.catalog &= ~(1u << 3);
    check(ls_queue_delete(r.store, 3, LS_WAIT) == LS_OK);
    (void)put(1, "what makes it durable", NULL);
    check(copies[1].follows->sweep.next > 200 && copies[1].follows->sweep.next < copies[1].follows->sweep.end);
    for (int i = 0; i < 20; i++)
        (void)put(1, "another batch", NULL);
    check(has_what_the_leader_has(1));
    check(copies_agree() && has_the_table_of_its_directory(1));
    copies_end();
}

static void a_deleted_queue_is_forgotten_when_the_base_has_passed_its_deletion(void) {
    lead_with_many();
    (void)batches_until_swept();
    check(state_of(1)->deletions.count == 1 && state_of(1)->table.live_queues == 1);
    churn(200);
    (void)put(1, "last", NULL);
    (void)put(1, "and what made it durable", NULL);
    check(state_of(1)->deletions.count == 0 && state_of(1)->table.live_queues == 0);
    check(copies_agree() && has_the_table_of_its_directory(1));
    cease();
    check(lead_in(1, 3) == LS_OK && table_any_queue(&r.store->state.table, 2) == NULL);
    check(copies_agree());
    copies_end();
}

static void a_deleted_queue_is_not_forgotten_while_a_checkpoint_copies_the_table(void) {
    bool begun = false, ended = false;

    lead_with_many();
    (void)batches_until_swept();
    check(replica_checkpoint_begin(copies[1].follows, &begun) == LS_OK && begun);
    churn(200);
    (void)put(1, "last", NULL);
    (void)put(1, "and what made it durable", NULL);
    check(state_of(1)->deletions.count == 1 && table_any_queue(&state_of(1)->table, 2) != NULL);
    while (!ended)
        check(replica_checkpoint_ended(copies[1].follows, &ended) == LS_OK);
    (void)put(1, "another batch", NULL);
    check(state_of(1)->deletions.count == 0 && table_any_queue(&state_of(1)->table, 2) == NULL);
    check(copies_agree() && has_the_table_of_its_directory(1));
    copies_end();
}

/* Its work on the deleted queue has no effect, and no place comes back with it. */
static void a_commit_after_the_sweep_leaves_no_place_on_the_deleted_queue(void) {
    static const uint32_t both[] = {2, 1};
    uint64_t id;
    ls_tx *tx;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    check(ls_publish(r.store, both, 2, NULL, 0, (const uint8_t *)"x", 1, tx, LS_WAIT, &id) == LS_OK);
    delete_queue_2();
    for (int i = 0; i < 3; i++)
        (void)put(1, "another batch", NULL);
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    (void)put(1, "what makes it durable", NULL);
    check(state_of(1)->deletions.count == 1 && state_of(1)->table.place_count == messages_of(1));
    check(copies_agree() && has_the_table_of_its_directory(1));
    copies_end();
}

static void a_transaction_in_doubt_over_a_deleted_queue_commits_as_at_the_leader(void) {
    static const ls_xid xid = {.format_id = 1, .gtrid_bytes = 1, .data = "x"};
    uint64_t taken, both;
    ls_tx *tx;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    taken = put(2, "to be dequeued", NULL);
    check(ls_begin(r.store, &xid, &tx) == LS_OK);
    (void)put(2, "pending there", tx);
    both = put(1, "pending here", tx);
    check(take(taken, 2, tx) == LS_OK);
    check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    delete_queue_2();
    churn(200);
    (void)put(1, "durable", NULL);
    check(copies_agree() && has_the_table_of_its_directory(2));
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    churn(200);
    (void)put(1, "last", NULL);
    (void)put(1, "and what made it durable", NULL);
    check(has(both) && !has(taken));
    check(has_what_the_leader_has(1) && state_of(1)->table.live_queues == 0);
    check(copies_agree() && has_the_table_of_its_directory(1));
    copies_end();
}

static void a_checkpoint_in_the_middle_of_a_sweep_goes_on_with_it(void) {
    bool taken = false;

    lead_with_many();
    (void)put(1, "what makes it durable", NULL);
    check(!has_what_the_leader_has(1));
    check(replica_checkpoint(copies[1].follows, &taken) == LS_OK && taken);
    check(copies_agree() && has_the_table_of_its_directory(1)); /* opened again, from its checkpoint */
    check(copies[1].follows->checkpoint_lsn != 0);
    for (int i = 0; i < 6; i++)
        (void)put(1, "another batch", NULL);
    check(has_what_the_leader_has(1));
    check(replica_checkpoint(copies[1].follows, &taken) == LS_OK && taken);
    check(copies_agree() && has_the_table_of_its_directory(1));
    cease();
    check(lead_in(1, 3) == LS_OK && copies_agree());
    copies_end();
}

/* A copy has swept it already, and would not know the message. */
static void a_message_that_only_the_sweep_keeps_gets_no_other_place(void) {
    static const uint32_t one = 1;
    uint64_t id, both, lsn;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    id = put(2, "on a queue that goes", NULL);
    both = put(2, "on another as well", NULL);
    check(ls_enqueue(r.store, both, (const uint32_t[]){3}, 1, NULL, LS_WAIT, &lsn) == LS_OK);
    r.catalog &= ~(1u << 2);
    log_lock(r.store->log);
    check(queue_end(r.store, 2) == LS_OK); /* the thread that deletes it is held up before its sweep */
    log_unlock(r.store->log);
    for (int i = 0; i < 3; i++)
        (void)put(1, "another batch", NULL);
    check(ls_enqueue(r.store, id, &one, 1, NULL, LS_WAIT, &lsn) == LS_UNKNOWN_MESSAGE);
    check(ls_enqueue(r.store, both, &one, 1, NULL, LS_WAIT, &lsn) == LS_OK);
    check(take(both, 3, NULL) == LS_OK && take(both, 1, NULL) == LS_OK);
    log_lock(r.store->log);
    queue_remove(r.store, 2);
    log_unlock(r.store->log);
    check(!has(id) && !has(both));
    (void)put(1, "for all", NULL);
    check(copies_agree() && has_the_table_of_its_directory(1));
    copies_end();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_copy_frees_a_deleted_queue_in_steps,
        after_each_step_the_table_is_that_of_an_open,
        a_deletion_during_a_sweep_gets_a_pass_of_its_own,
        a_deleted_queue_is_forgotten_when_the_base_has_passed_its_deletion,
        a_deleted_queue_is_not_forgotten_while_a_checkpoint_copies_the_table,
        a_commit_after_the_sweep_leaves_no_place_on_the_deleted_queue,
        a_transaction_in_doubt_over_a_deleted_queue_commits_as_at_the_leader,
        a_checkpoint_in_the_middle_of_a_sweep_goes_on_with_it,
        a_message_that_only_the_sweep_keeps_gets_no_other_place,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
