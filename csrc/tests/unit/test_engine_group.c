/*
 * The consensus engine: members in one thread elect, replicate, cut, transfer, change their number, and are updated.
 */
#include "tests/kit/engines.h"

static void three_members_elect_one_and_all_of_them_learn_what_is_durable(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL);
    require(put_many(l, 50));
    run(20);
    for (int i = 1; i <= 3; i++) {
        check(nodes[i].last == l->last);
        check(nodes[i].durable == l->last);
        check(engine_answer(nodes[i].e)->leader == id_of(l));
    }
    end_group();
}

static void what_no_majority_has_is_cut_when_another_has_led(void) {
    begin_group(3);
    struct node *old = elect();
    require(old != NULL && put_many(old, 5));
    run(20);
    uint64_t before = durable_everywhere;
    isolate(old, true);
    for (int i = 0; i < 7; i++)
        check(put(old, ENGINE_BATCH, -1));
    check(old->durable == before);
    run(3000);
    check(old->lead_term == 0);
    struct node *next = elect();
    require(next != NULL && next != old && put_many(next, 3));
    isolate(old, false);
    run(1000);
    check(old->cuts > 0);
    check(old->last == next->last && old->durable == next->last);
    end_group();
}

static void a_killed_leader_is_replaced_and_comes_back_as_a_follower(void) {
    begin_group(3);
    for (int round = 0; round < 10; round++) {
        struct node *l = elect();
        require(l != NULL && put_many(l, 4));
        stop(l);
        struct node *next = elect();
        require(next != NULL && next != l && put_many(next, 4));
        boot(l);
        run(400);
        check(l->last == leader()->last && l->durable == leader()->last);
    }
    end_group();
}

static void a_transfer_takes_no_batch_and_hands_over_within_two_hundred_milliseconds(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 10));
    uint64_t to = id_of(l) % 3 + 1;
    uint64_t began = now_ms;
    check(engine_transfer(l->e, now_ms, to) == ENGINE_OK);
    act(l, NULL);
    check(!engine_may_submit(l->e));
    while (now_ms < began + 200 && leader() != &nodes[to])
        run(1);
    check(leader() == &nodes[to]);
    check(l->lead_term == 0);
    require(put_many(&nodes[to], 3));
    end_group();
}

static void a_transfer_to_a_member_that_does_not_answer_takes_another(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 10));
    struct node *dead = &nodes[id_of(l) % 3 + 1];
    isolate(dead, true);
    check(engine_transfer(l->e, now_ms, id_of(dead)) == ENGINE_OK);
    act(l, NULL);
    run(500);
    struct node *next = leader();
    require(next != NULL);
    check(next != l && next != dead);
    end_group();
}

static void members_join_by_an_update_become_voters_and_leave(void) {
    begin_group(1);
    struct node *l = elect();
    require(l == &nodes[1]);
    require(put_many(l, 30));
    check(take_snapshot(l, 4) == ENGINE_OK);
    for (uint64_t id = 2; id <= 3; id++) {
        boot(&nodes[id]);
        require(change_members(l, ENGINE_ADD, id) == ENGINE_OK);
        run(500);
        check(nodes[id].last == l->last && nodes[id].durable == l->durable);
        require(change_members(l, ENGINE_PROMOTE, id) == ENGINE_OK);
        run(100);
    }
    struct engine_member all[ENGINE_MEMBERS_MAX];
    check(engine_members(l->e, all) == 3 && all[0].voter && all[1].voter && all[2].voter);
    require(put_many(l, 5));
    stop(l);
    struct node *next = elect();
    require(next != NULL && next != l);
    require(change_members(next, ENGINE_REMOVE, 1) == ENGINE_OK);
    run(100);
    check(engine_members(next->e, all) == 2);
    require(put_many(next, 5));
    check(next->durable == next->last);
    end_group();
}

static void a_member_behind_the_kept_entries_is_updated(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 10));
    struct node *late = &nodes[id_of(l) % 3 + 1];
    isolate(late, true);
    require(put_many(l, 100));
    check(take_snapshot(l, 3) == ENGINE_OK);
    isolate(late, false);
    run(3000);
    check(late->last == l->last && late->durable == l->durable);
    check(late->first_kept > 1);
    require(put_many(l, 10));
    run(20);
    check(late->durable == l->last);
    end_group();
}

static void a_group_comes_back_after_all_were_killed(void) {
    begin_group(3);
    for (int round = 0; round < 5; round++) {
        struct node *l = elect();
        require(l != NULL && put_many(l, 20));
        uint64_t had = durable_everywhere;
        (void)take_snapshot(l, 8);
        for (int i = 1; i <= 3; i++)
            stop(&nodes[i]);
        for (int i = 1; i <= 3; i++)
            boot(&nodes[i]);
        l = elect();
        require(l != NULL);
        check(l->last >= had && l->durable >= had);
    }
    end_group();
}

/* A leader that has given its first batch, and whose disk hangs in the term's header, of which the engine knows nothing. */
static struct node *lead_with_a_hanging_header(bool undurable) {
    begin_group(3);
    struct node *old = elect();
    if (old == NULL || !put_many(old, 3))
        return NULL;
    if (undurable) { /* then libraft makes the next leader's first entry itself */
        for (int i = 1; i <= 3; i++)
            links[i][id_of(old)].cut = true;
        check(put(old, ENGINE_BATCH, -1));
        run(5);
    }
    stop(old);
    for (int i = 1; i <= 3; i++)
        nodes[i].holds_first = true;
    struct node *l = NULL;
    for (int i = 0; i < 3000 && l == NULL; i++) {
        run(1);
        for (int k = 1; k <= 3; k++)
            l = nodes[k].e != NULL && nodes[k].lead_term != 0 ? &nodes[k] : l;
    }
    for (int i = 1; i <= 3; i++)
        nodes[i].holds_first = links[i][id_of(old)].cut = false;
    if (l != NULL)
        l->holds_disk = true;
    boot(old);
    return l;
}

static void a_leader_whose_disk_hangs_in_its_terms_header_hands_over(void) {
    for (int undurable = 0; undurable < 2; undurable++) {
        struct node *l = lead_with_a_hanging_header(undurable);
        require(l != NULL);
        uint64_t term = l->lead_term;
        put_first(l);
        run(2 * ELECTION_MS - 1);
        check(l->lead_term == term && !l->serves);
        run(30);
        struct node *next = leader();
        require(next != NULL);
        check(next != l && l->lead_term == 0 && next->lead_term == term + 1);
        check(next->durable > l->forced); /* the first batch that its own disk never had */
        l->holds_disk = false;
        force_disk(l);
        run(300);
        check(l->cuts == 0 && l->durable == next->last);
        end_group();
    }
}

static void a_leader_whose_disk_hangs_in_its_terms_header_ceases_if_nobody_has_its_first_batch(void) {
    for (int undurable = 0; undurable < 2; undurable++) {
        struct node *l = lead_with_a_hanging_header(undurable);
        require(l != NULL);
        uint64_t had = l->forced;
        for (int i = 1; i <= 3; i++)
            nodes[i].holds_disk = true;
        put_first(l);
        run(3 * ELECTION_MS - 1);
        check(l->lead_term != 0 && !engine_may_submit(l->e));
        run(2);
        check(l->lead_term == 0 && l->forced == had);
        run(1000);
        check(l->lead_term == 0); /* its own entry is not forced */
        for (int i = 1; i <= 3; i++) {
            nodes[i].holds_disk = false;
            force_disk(&nodes[i]);
        }
        struct node *next = elect();
        require(next != NULL && put_many(next, 3));
        end_group();
    }
}

/* ---- random runs ---- */

static uint64_t seed;

static uint64_t some(uint64_t n) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (seed >> 33) % n;
}

static void heal(void) {
    for (int i = 1; i <= NODES; i++) {
        isolate(&nodes[i], false);
        nodes[i].frozen = false;
        nodes[i].holds_disk = nodes[i].holds_votes = nodes[i].holds_first = nodes[i].holds_copies = false;
        if (nodes[i].e == NULL && nodes[i].forced > 0)
            boot(&nodes[i]);
        if (nodes[i].e == NULL)
            continue;
        force_vote(&nodes[i]);
        force_disk(&nodes[i]);
        if (nodes[i].lead_term != 0 && !nodes[i].serves && engine_may_submit(nodes[i].e) &&
            nodes[i].last < nodes[i].first_index)
            put_first(&nodes[i]);
        if (nodes[i].copy_waits)
            bring_copy(&nodes[i]);
    }
}

static void disturb(void) {
    struct node *n = &nodes[1 + some(NODES)];
    struct node *l = leader();
    if (some(12) == 0)
        heal();
    switch (some(20)) {
    case 0:
        if (n->e != NULL)
            stop(n);
        break;
    case 1:
    case 2:
        if (n->e == NULL)
            boot(n);
        break;
    case 3:
        isolate(some(2) == 0 && l != NULL ? l : n, some(2) == 0);
        break;
    case 4:
        links[id_of(n)][1 + some(NODES)].cut = some(3) == 0;
        break;
    case 5:
        n->frozen = some(3) == 0;
        break;
    case 6:
        n->holds_disk = some(3) == 0;
        if (n->e != NULL)
            force_disk(n);
        break;
    case 7:
        n->holds_votes = some(3) == 0;
        if (n->e != NULL && !n->holds_votes)
            force_vote(n);
        break;
    case 8:
        if (l != NULL)
            (void)change_members(l, ENGINE_ADD + (uint32_t)some(3), id_of(n));
        break;
    case 9:
        if (l != NULL) {
            (void)engine_transfer(l->e, now_ms, some(2) == 0 ? 0 : id_of(n));
            act(l, NULL);
        }
        break;
    case 10:
        if (n->e != NULL && n->durable > 0)
            (void)take_snapshot(n, some(20));
        break;
    case 11:
        if (n->e != NULL) {
            (void)engine_lost(n->e, now_ms, 1 + some(NODES));
            act(n, NULL);
        }
        break;
    case 12:
        n->holds_first = some(3) == 0;
        break;
    case 13:
        n->holds_copies = some(3) == 0;
        break;
    default:
        for (uint64_t i = some(8); l != NULL && l->serves && i > 0; i--)
            (void)put(l, ENGINE_BATCH, -1);
        break;
    }
}

static void whatever_happens_nothing_durable_is_lost_and_a_healed_group_goes_on(void) {
    const char *more = getenv("LOGSTORE_SEEDS");
    uint64_t seeds = more != NULL ? strtoull(more, NULL, 10) : 100 / ONE_IN;
    for (uint64_t s = 1; s <= seeds; s++) {
        int failures = failures_here;
        seed = s;
        begin_group(s % 3 == 0 ? 1 : 3);
        for (int i = 0; i < 300; i++) {
            disturb();
            run(some(some(8) == 0 ? 1500 : 40));
        }
        heal();
        run(4000);
        struct node *l = elect();
        if (l != NULL) {
            check(put_many(l, 5));
            run(3000);
            l = elect();
            check(l != NULL && l->durable == l->last);
        }
        if (failures != failures_here)
            printf("  seed %llu\n", (unsigned long long)s);
        end_group();
        if (failures_here > failures + 20 || failures_here > 60)
            return;
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        three_members_elect_one_and_all_of_them_learn_what_is_durable,
        what_no_majority_has_is_cut_when_another_has_led,
        a_killed_leader_is_replaced_and_comes_back_as_a_follower,
        a_transfer_takes_no_batch_and_hands_over_within_two_hundred_milliseconds,
        a_transfer_to_a_member_that_does_not_answer_takes_another,
        members_join_by_an_update_become_voters_and_leave,
        a_member_behind_the_kept_entries_is_updated,
        a_group_comes_back_after_all_were_killed,
        a_leader_whose_disk_hangs_in_its_terms_header_hands_over,
        a_leader_whose_disk_hangs_in_its_terms_header_ceases_if_nobody_has_its_first_batch,
        whatever_happens_nothing_durable_is_lost_and_a_healed_group_goes_on,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
