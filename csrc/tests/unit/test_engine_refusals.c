/*
 * What the engine refuses by name, and that nothing changes then: options, logs at a start, batches, changes, snapshots, copies.
 */
#include "tests/kit/failing_memory.h"

#include "tests/kit/engines.h"

static uint8_t other_bytes[ENGINE_CONFIGURATION_MAX];

/* A log with entries 5 and 6 behind a snapshot at 5. */
static struct engine_entry kept[2];

static struct engine_log good_log(void) {
    kept[0] = (struct engine_entry){.term = 3, .kind = ENGINE_BATCH};
    kept[1] = (struct engine_entry){.term = 3, .kind = ENGINE_BATCH};
    return (struct engine_log){.vote_term = 4,
                               .header_term = 3,
                               .known_durable = 5,
                               .known_durable_term = 3,
                               .members_index = 1,
                               .members = configurations[0].bytes,
                               .members_bytes = configurations[0].count,
                               .first_kept = 5,
                               .count = 2,
                               .entries = kept};
}

static int code_of(const struct engine_options *options, const struct engine_log *log) {
    engine *e = NULL;
    int code = engine_open(options, log, now_ms, &e);
    check((code == ENGINE_OK) == (e != NULL));
    engine_close(e);
    return code;
}

static void each_impossible_option_is_refused(void) {
    begin_group(1);
    struct engine_options good = options_of(&nodes[1]);
    struct engine_options bad[6];
    for (size_t i = 0; i < 6; i++)
        bad[i] = good;
    bad[0].member = 0;
    bad[1].heartbeat_ms = 0;
    bad[2].election_ms = 2 * good.heartbeat_ms - 1;
    bad[3].in_flight_max = 0;
    bad[4].in_flight_max = ENGINE_ENTRIES_MAX + 1;
    bad[5].election_ms = 0;
    struct engine_log log = good_log();
    check(code_of(&good, &log) == ENGINE_OK);
    for (size_t i = 0; i < 6; i++)
        check(code_of(&bad[i], &log) == ENGINE_INVALID);
    end_group();
}

static void each_impossible_log_is_refused(void) {
    begin_group(1);
    struct engine_options options = options_of(&nodes[1]);
    struct engine_log good = good_log();
    struct engine_log bad[20];
    size_t n = 0;
    for (size_t i = 0; i < 20; i++)
        bad[i] = good;
    bad[n++].vote_term = ENGINE_TERM_MAX + UINT64_C(1);
    bad[n++].header_term = ENGINE_TERM_MAX + UINT64_C(1);
    bad[n++].entries = NULL;
    bad[n++].first_kept = UINT64_C(1) << 62;
    bad[n++].members = NULL;
    bad[n++].members_index = 0;
    bad[n++].members_index = 6;
    bad[n++].known_durable_term = 0;
    bad[n++].known_durable_term = 5;
    bad[n++].first_kept = 1;
    bad[n++].first_kept = 7;
    bad[n++].known_durable = 7;
    bad[n].known_durable = 4; /* another term than the entry behind it has */
    bad[n++].known_durable_term = 4;
    bad[n].first_kept = 0; /* nothing is kept, and something is durable */
    bad[n++].count = 0;
    bad[n].first_kept = 0;
    bad[n].known_durable = 0;
    bad[n++].count = 0;
    bad[n++].known_durable_term = 2; /* not that of the entry */
    bad[n].known_durable = 1;        /* the log of a group's beginning has its members */
    bad[n++].first_kept = 1;
    bad[n].known_durable = 0;
    bad[n].first_kept = 1;
    bad[n++].count = 0;
    check(code_of(&options, &good) == ENGINE_OK);
    for (size_t i = 0; i < n; i++)
        if (!check_at(code_of(&options, &bad[i]) == ENGINE_INVALID, "a log is refused", __FILE__, __func__, (int)i))
            printf("  log %zu\n", i);
    struct engine_entry entries[][2] = {{{.term = 0, .kind = ENGINE_BATCH}, kept[1]},
                                        {kept[0], {.term = 5, .kind = ENGINE_BATCH}},
                                        {kept[0], {.term = 3, .kind = 0}},
                                        {kept[0], {.term = 3, .kind = ENGINE_MEMBERS + 1}},
                                        {kept[0], {.term = 3, .kind = ENGINE_MEMBERS}},
                                        {{.term = 2, .kind = ENGINE_BATCH}, kept[1]}};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        struct engine_log log = good;
        log.entries = entries[i];
        check(code_of(&options, &log) == ENGINE_INVALID);
    }
    struct engine_log nothing = {0};
    check(code_of(&options, &nothing) == ENGINE_OK);
    nothing.members_bytes = 8;
    check(code_of(&options, &nothing) == ENGINE_INVALID);
    end_group();
}

/* The newest configuration counts from the log behind what is durable; the one that the disk has at or below it does not. */
static void the_members_at_a_start_are_those_of_the_newest_configuration(void) {
    begin_group(1);
    struct engine_options options = options_of(&nodes[1]);
    struct engine_log log = good_log();
    struct members m;
    require(members_decode(&m, configurations[0].bytes, configurations[0].count));
    check(members_add(&m, 2, "two:2", MEMBER_STANDBY));
    kept[1] = (struct engine_entry){.term = 3, .kind = ENGINE_MEMBERS, .configuration = other_bytes};
    kept[1].configuration_bytes = members_encode(&m, other_bytes);
    for (int as_known = 0; as_known < 2; as_known++) {
        struct engine_member all[ENGINE_MEMBERS_MAX];
        engine *e = NULL;
        if (as_known) {
            log.known_durable = log.members_index = 6;
            log.members = other_bytes;
            log.members_bytes = kept[1].configuration_bytes;
        }
        check(engine_open(&options, &log, now_ms, &e) == ENGINE_OK);
        require(e != NULL);
        check(engine_members(e, all) == 2);
        engine_close(e);
    }
    end_group();
}

/* ---- batches and changes ---- */

static int submit_members(struct node *l, const struct members *m) {
    struct engine_entry entry = {.term = l->lead_term, .kind = ENGINE_MEMBERS, .configuration = other_bytes};
    entry.configuration_bytes = members_encode(m, other_bytes);
    uint64_t last = engine_answer(l->e)->last_index;
    int code = engine_submit(l->e, now_ms, &entry);
    check(engine_answer(l->e)->last_index == last);
    return code;
}

static void a_batch_that_a_leader_may_not_make_is_refused(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    struct engine_entry entry = {.term = l->lead_term, .kind = ENGINE_FIRST};
    check(engine_submit(l->e, now_ms, &entry) == ENGINE_REFUSED); /* it had one */
    entry = (struct engine_entry){.term = l->lead_term - 1, .kind = ENGINE_BATCH};
    check(engine_submit(l->e, now_ms, &entry) == ENGINE_REFUSED);
    entry = (struct engine_entry){.term = l->lead_term, .kind = 9};
    check(engine_submit(l->e, now_ms, &entry) == ENGINE_REFUSED);
    entry = (struct engine_entry){.term = l->lead_term, .kind = ENGINE_MEMBERS};
    check(engine_submit(l->e, now_ms, &entry) == ENGINE_REFUSED);
    struct node *other = &nodes[id_of(l) % 3 + 1];
    entry.kind = ENGINE_BATCH;
    check(engine_submit(other->e, now_ms, &entry) == ENGINE_REFUSED);
    end_group();
}

static void a_configuration_that_differs_by_more_or_less_than_one_member_is_refused(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    check(take_snapshot(l, 1) == ENGINE_OK);
    struct members now, next;
    require(members_decode(&now, configurations[0].bytes, configurations[0].count));
    check(submit_members(l, &now) == ENGINE_REFUSED); /* the same */
    next = now;
    check(members_add(&next, 4, "four:4", MEMBER_STANDBY) && members_add(&next, 5, "five:5", MEMBER_STANDBY));
    check(submit_members(l, &next) == ENGINE_REFUSED); /* two come */
    next = now;
    next.count = 1;
    check(submit_members(l, &next) == ENGINE_REFUSED); /* two go */
    next = now;
    next.all[0] = now.all[1];
    next.all[1] = now.all[0];
    check(submit_members(l, &next) == ENGINE_REFUSED); /* in another order */
    next = now;
    memcpy(next.all[2].address, "other:3", sizeof "other:3");
    check(submit_members(l, &next) == ENGINE_REFUSED); /* a member with another address */
    next = now;
    next.all[2].role = MEMBER_STANDBY;
    check(submit_members(l, &next) == ENGINE_REFUSED); /* a voter as a standby */
    next = now;
    next.count = 2;
    check(members_add(&next, 4, "four:4", MEMBER_STANDBY));
    check(submit_members(l, &next) == ENGINE_REFUSED); /* one goes, and one comes */
    next.count = 0;
    check(members_add(&next, 4, "four:4", MEMBER_VOTER));
    check(submit_members(l, &next) == ENGINE_REFUSED); /* all others */
    end_group();
}

static int plan(const struct node *n, uint32_t what, uint64_t member, const char *address) {
    struct engine_change change = {what, member, address};
    uint32_t bytes = 0;
    return engine_plan(n->e, &change, other_bytes, &bytes);
}

static void a_change_of_which_no_configuration_comes_is_not_planned(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    uint64_t me = id_of(l);
    uint64_t other = me % 3 + 1;
    check(plan(l, ENGINE_ADD, 4, "four:4") == ENGINE_REFUSED); /* without a snapshot */
    check(take_snapshot(l, 1) == ENGINE_OK);
    check(plan(l, ENGINE_ADD, 4, NULL) == ENGINE_INVALID);
    check(plan(l, ENGINE_ADD, other, "new:9") == ENGINE_INVALID);
    check(plan(l, ENGINE_ADD, 4, "two:2") == ENGINE_INVALID);
    check(plan(l, ENGINE_ADD, 4, "four:4") == ENGINE_OK);
    check(plan(l, ENGINE_PROMOTE, 4, NULL) == ENGINE_INVALID);
    check(plan(l, ENGINE_PROMOTE, other, NULL) == ENGINE_INVALID);
    check(plan(l, ENGINE_REMOVE, 4, NULL) == ENGINE_INVALID);
    check(plan(l, ENGINE_REMOVE, me, NULL) == ENGINE_INVALID);
    check(plan(l, 77, other, NULL) == ENGINE_INVALID);
    check(plan(&nodes[other], ENGINE_ADD, 4, "four:4") == ENGINE_REFUSED);
    require(change_members(l, ENGINE_ADD, 4) == ENGINE_OK); /* and it never starts */
    run(20);
    check(plan(l, ENGINE_PROMOTE, 4, NULL) == ENGINE_REFUSED);
    end_group();
}

static void a_standby_that_lags_is_not_promoted(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 5));
    check(take_snapshot(l, 1) == ENGINE_OK);
    boot(&nodes[4]);
    require(change_members(l, ENGINE_ADD, 4) == ENGINE_OK);
    run(500);
    check(nodes[4].last == l->last);
    isolate(&nodes[4], true);
    require(put_many(l, 30)); /* `behind_max` is 20 */
    check(plan(l, ENGINE_PROMOTE, 4, NULL) == ENGINE_REFUSED);
    isolate(&nodes[4], false);
    run(500);
    check(plan(l, ENGINE_PROMOTE, 4, NULL) == ENGINE_OK);
    end_group();
}

static void a_first_configuration_has_members_and_each_once(void) {
    static const char *const addresses[] = {"one:1", "one:1"};
    const uint64_t ids[] = {1, 2};
    const uint64_t none = 0;
    uint32_t bytes = 0;
    check(engine_bootstrap(ids, addresses, 0, other_bytes, &bytes) == ENGINE_INVALID);
    check(engine_bootstrap(ids, addresses, 2, other_bytes, &bytes) == ENGINE_INVALID);
    check(engine_bootstrap(&none, addresses, 1, other_bytes, &bytes) == ENGINE_INVALID);
    check(engine_bootstrap(ids, addresses, 1, other_bytes, &bytes) == ENGINE_OK);
}

/* ---- snapshots and copies ---- */

static void a_snapshot_is_durable_and_goes_forward(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 10));
    uint64_t from = 0;
    uint64_t durable = l->durable;
    check(engine_snapshot(l->e, now_ms, 1, 2, &from) == ENGINE_REFUSED);
    check(engine_snapshot(l->e, now_ms, durable + 1, 2, &from) == ENGINE_REFUSED);
    check(engine_snapshot(l->e, now_ms, durable - 2, durable, &from) == ENGINE_REFUSED); /* a gap */
    check(from == 1);
    check(engine_snapshot(l->e, now_ms, durable - 2, 4, &from) == ENGINE_OK && from == 4);
    l->first_kept = from;
    check(engine_snapshot(l->e, now_ms, durable - 2, 5, &from) == ENGINE_REFUSED && from == 4);
    check(engine_snapshot(l->e, now_ms, durable - 3, 4, &from) == ENGINE_REFUSED);
    check(engine_snapshot(l->e, now_ms, durable, 2, &from) == ENGINE_OK && from == 4); /* what is gone stays gone */
    end_group();
}

/* A member that is told of a copy, which the test brings. */
static struct node *begin_copy(struct node **leading) {
    begin_group(3);
    struct node *l = elect();
    if (l == NULL || !put_many(l, 10))
        return NULL;
    struct node *late = &nodes[id_of(l) % 3 + 1];
    isolate(late, true);
    bool all = put_many(l, 60);
    check(take_snapshot(l, 3) == ENGINE_OK);
    late->holds_copies = true;
    isolate(late, false);
    for (int i = 0; i < 3000 && !late->copy_waits; i++)
        run(1);
    *leading = l;
    return all && late->copy_waits ? late : NULL;
}

static int bring(struct node *n, uint64_t index, uint64_t term, uint64_t members_index, uint32_t members_bytes) {
    int code = engine_updated(n->e, now_ms, index, term, members_index, configurations[0].bytes, members_bytes);
    check(code == ENGINE_OK || (engine_answer(n->e)->flags & ENGINE_SWITCH) == 0);
    return code;
}

static void a_copy_that_contradicts_itself_is_refused_and_the_true_one_is_taken(void) {
    struct node *l = NULL;
    struct node *n = begin_copy(&l);
    require(n != NULL);
    uint64_t index = n->copy_index;
    uint64_t term = l->log[index].term;
    uint32_t bytes = configurations[0].count;
    check(bring(n, 1, term, 1, bytes) == ENGINE_INVALID);
    check(bring(n, UINT64_MAX, term, 1, bytes) == ENGINE_INVALID);
    check(bring(n, index, 0, 1, bytes) == ENGINE_INVALID);
    check(bring(n, index, term + 1, 1, bytes) == ENGINE_INVALID);
    check(bring(n, index, term, 0, bytes) == ENGINE_INVALID);
    check(bring(n, index, term, index + 1, bytes) == ENGINE_INVALID);
    check(bring(n, index, term, 1, bytes - 8) == ENGINE_INVALID);
    check(engine_switched(n->e, now_ms) == ENGINE_REFUSED);
    n->holds_copies = false;
    bring_copy(n);
    check(n->last == index && n->durable <= index);
    check(engine_switched(n->e, now_ms) == ENGINE_REFUSED); /* it was */
    run(300);
    check(n->durable == l->last);
    end_group();
}

static void a_copy_that_nobody_wants_is_refused(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 5));
    struct node *n = &nodes[id_of(l) % 3 + 1];
    check(bring(n, 5, l->lead_term, 1, configurations[0].count) == ENGINE_REFUSED);
    check(engine_update_failed(n->e) == ENGINE_OK);
    end_group();
}

/* Its own log came so far while the copy was on its way. */
static void a_copy_that_has_become_useless_ends(void) {
    struct node *l = NULL;
    struct node *n = begin_copy(&l);
    require(n != NULL);
    check(bring(n, n->durable, l->lead_term, 1, configurations[0].count) == ENGINE_REFUSED);
    check(bring(n, n->copy_index, l->log[n->copy_index].term, 1, configurations[0].count) == ENGINE_REFUSED);
    n->copy_waits = n->holds_copies = false;
    run(5000); /* it is offered again */
    check(n->durable == l->last);
    end_group();
}

static void a_copy_waits_for_a_leader(void) {
    struct node *l = NULL;
    struct node *n = begin_copy(&l);
    require(n != NULL);
    check(engine_lost(n->e, now_ms, id_of(l)) == ENGINE_OK);
    check(bring(n, n->copy_index, l->log[n->copy_index].term, 1, configurations[0].count) == ENGINE_REFUSED);
    n->holds_copies = false;
    run(200);
    bring_copy(n);
    run(5000);
    check(n->durable == leader()->last);
    end_group();
}

static void nothing_ends_a_copy_while_it_is_switched_in(void) {
    struct node *l = NULL;
    struct node *n = begin_copy(&l);
    require(n != NULL);
    uint64_t index = n->copy_index;
    uint64_t from = 0;
    check(bring(n, index, l->log[index].term, 1, configurations[0].count) == ENGINE_OK);
    check((engine_answer(n->e)->flags & ENGINE_SWITCH) != 0);
    check(engine_update_failed(n->e) == ENGINE_REFUSED);
    check(engine_snapshot(n->e, now_ms, n->durable, 2, &from) == ENGINE_REFUSED);
    check(bring(n, index, l->log[index].term, 1, configurations[0].count) == ENGINE_REFUSED);
    end_group();
}

static void a_copy_without_memory_is_asked_for_again(void) {
    struct node *l = NULL;
    for (uint64_t nth = 1; TAKEN_OVER && nth < 8; nth++) {
        struct node *n = begin_copy(&l);
        require(n != NULL);
        uint64_t index = n->copy_index;
        uint64_t term = l->log[index].term;
        for_ever = true;
        fail_at_nth = nth;
        allocations = 0;
        counting = true;
        int code = engine_updated(n->e, now_ms, index, term, 1, configurations[0].bytes, configurations[0].count);
        int switched = code == ENGINE_OK ? engine_switched(n->e, now_ms) : ENGINE_NO_MEMORY;
        uint64_t kept_from = 0;
        int snapshot = engine_snapshot(l->e, now_ms, l->durable, l->durable, &kept_from);
        counting = false;
        fail_at_nth = 0;
        check(code == ENGINE_OK || code == ENGINE_NO_MEMORY);
        check(switched == ENGINE_OK || switched == ENGINE_NO_MEMORY);
        check(snapshot != ENGINE_INVALID);
        if (code == ENGINE_NO_MEMORY)
            check(bring(n, index, term, 1, configurations[0].count) == ENGINE_OK);
        if (switched == ENGINE_NO_MEMORY)
            check(engine_switched(n->e, now_ms) == ENGINE_OK);
        check(engine_answer(n->e)->last_index == index);
        end_group();
    }
    for_ever = false;
}

int main(void) {
    static void (*const tests[])(void) = {
        each_impossible_option_is_refused,
        each_impossible_log_is_refused,
        the_members_at_a_start_are_those_of_the_newest_configuration,
        a_batch_that_a_leader_may_not_make_is_refused,
        a_configuration_that_differs_by_more_or_less_than_one_member_is_refused,
        a_change_of_which_no_configuration_comes_is_not_planned,
        a_standby_that_lags_is_not_promoted,
        a_first_configuration_has_members_and_each_once,
        a_snapshot_is_durable_and_goes_forward,
        a_copy_that_contradicts_itself_is_refused_and_the_true_one_is_taken,
        a_copy_that_nobody_wants_is_refused,
        a_copy_that_has_become_useless_ends,
        a_copy_waits_for_a_leader,
        nothing_ends_a_copy_while_it_is_switched_in,
        a_copy_without_memory_is_asked_for_again,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
