/*
 * A second client of the log in addition to messages (tests/kit/toy_client.h): its records survive crashes, recycling,
 * relocation, checkpoints and outcomes in doubt, and the log and its neighbours call the functions that it registers.
 */
#include "log/parts.h"
#include "inspect/inspect.h"
#include "tests/kit/one_store.h"

static void fresh_toys(const ls_options *options) {
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    r.toys = true;
    if (options != NULL)
        r.options = *options;
    (void)vfs_sim_record(sim, 0);
    run_start(&r, sim, 1);
    require(!r.lost || complain("the store cannot be made"));
}

static int set(uint32_t key, uint64_t value, ls_tx *tx) { return toy_set(r.store, key, value, tx, LS_WAIT); }

static uint64_t get(uint32_t key) {
    uint64_t value = 0, locked_by;

    check(toy_get(r.store, key, &value, &locked_by) == LS_OK);
    return value;
}

static uint64_t lock_of(uint32_t key) {
    uint64_t value, locked_by = 0;

    check(toy_get(r.store, key, &value, &locked_by) == LS_OK);
    return locked_by;
}

/* Cuts the power: everything that was not forced is lost. */
static void crash(void) {
    const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    vfs_sim *left = vfs_sim_crash(sim, &loss);

    ls_free(r.store);
    r.store = NULL;
    vfs_sim_free(sim);
    sim = r.sim = left;
    r.v = vfs_sim_table(sim);
    check(open_again() == LS_OK || complain("open after a crash"));
}

static ls_tx *begin_tx(uint32_t unique) {
    ls_xid xid = xid_of(unique);
    ls_tx *tx = NULL;

    check(ls_begin(r.store, unique != 0 ? &xid : NULL, &tx) == LS_OK);
    return tx;
}

static void prepare(ls_tx *tx) { check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK); }

static ls_tx *take_in_doubt(void) {
    uint64_t id = 0;
    size_t n = 0;
    ls_tx *tx = NULL;

    check(ls_in_doubt(r.store, &id, 1, &n) == LS_OK && n == 1);
    check(ls_in_doubt_take(r.store, id, &tx) == LS_OK);
    return tx;
}

/* Bytes that live, as counted while it served and as the next open counts them. */
static void counts_agree(void) {
    ls_stats before, after;

    check(ls_force(r.store, 0) == LS_OK);
    ls_stats_get(r.store, &before);
    crash();
    ls_stats_get(r.store, &after);
    check(before.live_bytes == after.live_bytes);
}

/* ---- outcomes ---- */

static void the_last_committed_value_survives_a_power_cut(void) {
    fresh_toys(NULL);
    check(set(1, 11, NULL) == LS_OK && set(1, 12, NULL) == LS_OK && set(2, 21, NULL) == LS_OK);
    ls_tx *tx = begin_tx(0);
    uint64_t id = put(1, "beside it", tx);
    check(set(2, 22, tx) == LS_OK && set(3, 31, tx) == LS_OK && get(2) == 21 && get(3) == 0);
    check(ls_commit(tx, LS_WAIT) == LS_OK && get(2) == 22 && get(3) == 31 && lock_of(2) == 0);
    ls_tx_free(tx);
    crash();
    check(get(1) == 12 && get(2) == 22 && get(3) == 31 && has(id));
    counts_agree();
    done();
}

static void a_transaction_without_outcome_leaves_the_values_as_they_were(void) {
    fresh_toys(NULL);
    check(set(1, 11, NULL) == LS_OK);
    ls_tx *tx = begin_tx(0);
    check(set(1, 12, tx) == LS_OK && set(1, 13, tx) == LS_OK && lock_of(1) != 0);
    check(set(1, 14, NULL) == LS_MESSAGE_LOCKED && ls_force(r.store, 0) == LS_OK);
    const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
    vfs_sim *left = vfs_sim_crash(sim, &loss);
    check(ls_rollback(tx, LS_WAIT) == LS_OK && get(1) == 11 && lock_of(1) == 0);
    ls_tx_free(tx);
    check(set(1, 15, NULL) == LS_OK);
    counts_agree();
    check(get(1) == 15);
    ls_free(r.store);
    vfs_sim_free(sim);
    sim = r.sim = left;
    r.v = vfs_sim_table(sim);
    require(open_again() == LS_OK);
    check(get(1) == 11 && lock_of(1) == 0 && set(1, 16, NULL) == LS_OK);
    counts_agree();
    check(get(1) == 16);
    done();
}

static void a_client_may_refuse_a_prepare(void) {
    fresh_toys(NULL);
    ls_tx *tx = begin_tx(7);
    check(set(1, 11, tx) == LS_OK && ls_tx_end(tx) == LS_OK);
    toy_of(r.store)->prepare_code = LS_BUSY;
    check(ls_prepare(tx, LS_WAIT) == LS_BUSY);
    toy_of(r.store)->prepare_code = LS_OK;
    check(ls_prepare(tx, LS_WAIT) == LS_OK && toy_of(r.store)->prepared == 2);
    check(ls_commit(tx, LS_WAIT) == LS_OK && get(1) == 11);
    ls_tx_free(tx);
    done();
}

/* Moved after it was prepared or not, by a checkpoint or by the log alone: the outcome decides. */
static void in_doubt(bool moves, bool checkpoint, bool commit) {
    ls_recovery report;

    fresh_toys(NULL);
    check(set(1, 11, NULL) == LS_OK && set(2, 21, NULL) == LS_OK);
    ls_tx *tx = begin_tx(7);
    uint64_t id = put(1, "beside it", tx);
    check(set(1, 12, tx) == LS_OK && set(3, 31, tx) == LS_OK);
    prepare(tx);
    ls_tx_free(tx);
    if (moves) {
        churn(200);
        check(ls_base_lsn(r.store) > toy_of(r.store)->keys[1].pending.id);
    }
    check(!checkpoint || ls_checkpoint(r.store, NULL) == LS_OK);
    crash();
    ls_recovery_report(r.store, &report);
    check((report.checkpoint_used != 0) == checkpoint);
    check(get(1) == 11 && get(2) == 21 && get(3) == 0 && lock_of(1) != 0 && lock_of(3) == lock_of(1));
    check(set(1, 13, NULL) == LS_MESSAGE_LOCKED);
    if (moves)
        churn(200);
    tx = take_in_doubt();
    check((commit ? ls_commit(tx, LS_WAIT) : ls_rollback(tx, LS_WAIT)) == LS_OK);
    ls_tx_free(tx);
    for (int life = 0; life < 2; life++) {
        check(get(1) == (commit ? 12u : 11u) && get(2) == 21 && get(3) == (commit ? 31u : 0u) && lock_of(1) == 0);
        check(has(id) == commit);
        counts_agree();
    }
    done();
}

static void an_outcome_in_doubt_is_given_after_the_next_open(void) {
    for (int i = 0; i < 8; i++)
        in_doubt((i & 1) != 0, (i & 2) != 0, (i & 4) != 0);
}

/* ---- space ---- */

static void values_survive_relocation_and_recycling_beside_messages(void) {
    ls_stats stats;

    fresh_toys(NULL);
    for (uint32_t key = 0; key < TOY_KEYS; key++)
        check(set(key, 100 + key, NULL) == LS_OK);
    ls_tx *tx = begin_tx(0);
    check(set(5, 205, tx) == LS_OK && ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    uint64_t id = put(1, "stays", NULL);
    churn(300);
    ls_stats_get(r.store, &stats);
    check(stats.segments_recycled > 0 && stats.relocated_bytes >= TOY_KEYS * toy_record_bytes());
    for (int life = 0; life < 3; life++) {
        for (uint32_t key = 0; key < TOY_KEYS; key++) {
            const struct toy_value *v = &toy_of(r.store)->keys[key].now;
            check(get(key) == (key == 5 ? 205 : 100 + key) && v->lsn > v->id && v->id < ls_base_lsn(r.store));
        }
        check(has(id));
        counts_agree();
        churn(100);
    }
    check(toy_of(r.store)->segments_begun > 0);
    done();
}

static uint64_t room_in_segment(const struct log *g) {
    return g->segments[g->segment_count - 1]->first_lsn + g->segment_size - g->front.append_lsn;
}

/* As for messages: a full store must open in a loop of crashes. */
static void a_last_segment_of_copies_alone_is_set_aside(void) {
    ls_recovery report;
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = 0;
    fresh_toys(&o);
    for (uint32_t key = 0; key < TOY_KEYS; key++)
        check(set(key, 100 + key, NULL) == LS_OK);
    struct log *g = r.store->log;
    while (g->segment_count < 2 || room_in_segment(g) > SEGMENT_END_RESERVE + TOY_KEYS / 2 * toy_record_bytes())
        check(take(put_bytes(1, 0, 40, 0), 1, NULL) == LS_OK);
    require(store_enter(r.store) == LS_OK);
    g->relocation.moving = true;
    struct pin victim = segment_pin(g->segments[g->base_index]);
    check(relocate_segment(g, &victim) == LS_OK);
    log_unpin(g, &victim);
    g->relocation.moving = false;
    uint64_t copies_lsn = g->segments[g->segment_count - 1]->first_lsn;
    check(g->segment_count == 3 && toy_of(r.store)->keys[TOY_KEYS - 1].now.lsn > copies_lsn);
    check(store_leave(r.store, LS_OK, LS_WAIT) == LS_OK);
    crash();
    ls_recovery_report(r.store, &report);
    check(report.end_lsn < copies_lsn);
    for (uint32_t key = 0; key < TOY_KEYS; key++)
        check(get(key) == 100 + key);
    counts_agree();
    done();
}

static void a_dead_value_does_not_keep_its_segment(void) {
    fresh_toys(NULL);
    check(set(1, 11, NULL) == LS_OK);
    uint64_t first = toy_of(r.store)->keys[1].now.id;
    r.store->log->relocate = NULL; /* what dies in order moves the base in order */
    churn(100);
    check(ls_base_lsn(r.store) <= first);
    check(set(1, 12, NULL) == LS_OK);
    churn(4);
    check(ls_base_lsn(r.store) > first);
    done();
}

static void admission_counts_what_every_client_weighs_and_how_it_grows(void) {
    ls_options o;
    ls_stats stats, heavy;
    uint32_t q = 1;
    uint64_t id;
    static const uint8_t content[3500];

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = 0;
    o.max_log_bytes = (uint64_t)10 * SEGMENT;
    fresh_toys(&o);
    check(set(1, 11, NULL) == LS_OK);
    ls_stats_get(r.store, &stats);
    toy_of(r.store)->weight = 1000;
    ls_stats_get(r.store, &heavy);
    check(heavy.counted_bytes == stats.counted_bytes + 1000 && heavy.live_bytes == stats.live_bytes);
    toy_of(r.store)->weight = 0;
    churn(200); /* the log has all files that it may have */
    toy_of(r.store)->expansion = (uint64_t)4 * SEGMENT;
    check(ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &id) == LS_OK);
    toy_of(r.store)->expansion = (uint64_t)40 * SEGMENT;
    check(ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &id) == LS_FULL);
    toy_of(r.store)->expansion = 0;
    int rc = LS_OK;
    toy_of(r.store)->weight = (uint64_t)40 * SEGMENT;
    for (int i = 0; i < 400 && rc == LS_OK; i++)
        rc = ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &id);
    check(rc == LS_FULL && set(2, 21, NULL) == LS_FULL);
    toy_of(r.store)->weight = 0;
    check(set(2, 21, NULL) == LS_OK);
    done();
}

static void a_full_disk_asks_every_client_for_space(void) {
    fresh_toys(NULL);
    vfs_sim_capacity(sim, vfs_sim_used(sim));
    for (int i = 0; i < 200 && toy_of(r.store)->asked_for_space == 0; i++) {
        uint32_t q = 1;
        uint64_t id;
        static const uint8_t content[3500];

        (void)ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, 0, &id);
    }
    check(toy_of(r.store)->asked_for_space > 0);
    vfs_sim_capacity(sim, 0);
    done();
}

/* ---- checkpoints ---- */

static void a_checkpoint_has_the_values_and_the_log_behind_it_goes_on(void) {
    ls_recovery report;

    fresh_toys(NULL);
    check(set(1, 11, NULL) == LS_OK && set(2, 21, NULL) == LS_OK);
    churn(150);
    check(ls_checkpoint(r.store, NULL) == LS_OK && set(2, 22, NULL) == LS_OK);
    crash();
    ls_recovery_report(r.store, &report);
    check(report.checkpoint_used != 0 && get(1) == 11 && get(2) == 22);
    counts_agree();
    done();
}

/* ---- without the client, and with too many ---- */

static void a_store_that_is_opened_without_its_client_refuses(void) {
    ls_reader *reader = NULL;
    ls_store *store = NULL;

    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
        fresh_toys(NULL);
        check(set(1, 11, NULL) == LS_OK);
        for (int i = 0; checkpoint && i < 60; i++) /* no record of it is left behind the checkpoint */
            (void)put_bytes(1, 0, 3900, LS_WAIT);
        check(!checkpoint || ls_checkpoint(r.store, NULL) == LS_OK);
        (void)put(1, "the last", NULL);
        check(ls_close(r.store) == LS_OK);
        ls_free(r.store);
        check(ls_open(r.v, r.path, &r.options, &store) == LS_VERSION && store == NULL);
        int rc = ls_reader_open(r.v, r.path, 0, &reader);
        for (uint64_t lsn; rc == LS_OK;)
            rc = ls_reader_skim(reader, UINT64_MAX, &lsn);
        check(rc == LS_VERSION);
        ls_reader_close(reader);
        require(open_again() == LS_OK);
        check(get(1) == 11);
        done();
    }
}

static void a_stream_has_one_client(void) {
    struct log_client two[] = {toy_client(), toy_client()};
    ls_store *store = NULL;
    ls_options o;

    ls_options_default(&o);
    sim = vfs_sim_new();
    check(store_open_with(vfs_sim_table(sim), "/s", &o, two, 2, &store) == LS_OPTION && store == NULL);
    free(two[1].context); /* the store has freed the first one */
    two[0] = toy_client();
    two[0].streams = (const uint8_t[]){2};
    check(store_open_with(vfs_sim_table(sim), "/s", &o, two, 1, &store) == LS_OPTION && store == NULL);
    free(two[0].context);
    vfs_sim_free(sim);
}

/* ---- looking at it ---- */

static int inspect(ls_store **store) {
    struct log_client toy = toy_client();
    uint64_t lsn;
    int rc = inspect_open_with(r.v, r.path, LS_INSPECT_CHECK, &toy, 1, store);

    while (rc == LS_OK)
        rc = ls_inspect_step(*store, UINT64_MAX, &lsn);
    return rc;
}

static void an_inspection_sees_its_values_and_knows_its_names(void) {
    ls_store *seen = NULL;
    uint64_t value, locked_by;

    fresh_toys(NULL);
    check(set(1, 11, NULL) == LS_OK);
    churn(150); /* footers do not count its records */
    ls_tx *tx = begin_tx(7);
    check(set(2, 21, tx) == LS_OK);
    prepare(tx);
    ls_tx_free(tx);
    for (int closed = 0; closed < 2; closed++) {
        check(inspect(&seen) == LS_END || complain("inspect"));
        check(toy_get(seen, 1, &value, &locked_by) == LS_OK && value == 11 && locked_by == 0);
        check(toy_get(seen, 2, &value, &locked_by) == LS_OK && value == 0 && locked_by != 0);
        check(strcmp(log_type_name(seen->state.clients, TOY_SET), "TOY_SET") == 0);
        check(strcmp(log_type_name(seen->state.clients, MESSAGE_START), "MESSAGE_START") == 0);
        check(log_type_name(seen->state.clients, 0x0501) == NULL);
        ls_free(seen);
        check(ls_close(r.store) == LS_OK);
    }
    done();
}

static void a_check_asks_the_client_whether_a_record_is_sound(void) {
    ls_store *seen = NULL;
    uint8_t body[TOY_BODY_BYTES];

    fresh_toys(NULL);
    toy_body(body, 1, 11, 0);
    body[TOY_BODY_BYTES - 1] ^= 1;
    require(store_enter(r.store) == LS_OK && log_reserve(r.store->log, toy_record_bytes(), RESERVE_GROWS) == LS_OK);
    struct slot s = log_slot(r.store->log, 0, 0, 0);
    s.id = s.lsn;
    log_append(r.store->log, &s, TOY_SET, format_put_body(&s, TOY_SET, body, TOY_BODY_BYTES));
    check(store_leave(r.store, LS_OK, LS_WAIT) == LS_OK && ls_close(r.store) == LS_OK);
    check(inspect(&seen) == LS_CORRUPT && strstr(ls_last_error()->text, "TOY_SET") != NULL);
    ls_free(seen);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        the_last_committed_value_survives_a_power_cut,
        a_transaction_without_outcome_leaves_the_values_as_they_were,
        a_client_may_refuse_a_prepare,
        an_outcome_in_doubt_is_given_after_the_next_open,
        values_survive_relocation_and_recycling_beside_messages,
        a_last_segment_of_copies_alone_is_set_aside,
        a_dead_value_does_not_keep_its_segment,
        admission_counts_what_every_client_weighs_and_how_it_grows,
        a_full_disk_asks_every_client_for_space,
        a_checkpoint_has_the_values_and_the_log_behind_it_goes_on,
        a_store_that_is_opened_without_its_client_refuses,
        a_stream_has_one_client,
        an_inspection_sees_its_values_and_knows_its_names,
        a_check_asks_the_client_whether_a_record_is_sound,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
