/*
 * Each guard of the engine, with the shortest run that shows what it is for. tools/mutants.toml removes them one by one.
 */
#include "tests/kit/engines.h"

static struct engine_frame frame_of(uint32_t type, uint64_t peer, uint64_t term) {
    return (struct engine_frame){.group = GROUP, .type = type, .peer = peer, .term = term};
}

static int receive(struct node *n, const struct engine_frame *f) {
    int code = engine_receive(n->e, now_ms, f);
    act(n, f);
    return code;
}

/* The newest frame of this type that waits on the way to that member. */
static const struct engine_frame *sent(const struct node *from, uint64_t to, uint32_t type) {
    const struct link *l = &links[id_of(from)][to];
    for (size_t i = l->count; i > 0; i--) {
        const struct engine_frame *f = &l->letters[(l->first + i - 1) % LINK_MAX]->frame;
        if (f->type == type)
            return f;
    }
    return NULL;
}

static void lose_all(struct node *from) {
    for (int i = 1; i <= NODES; i++)
        lose(&links[id_of(from)][i]);
}

/* A member that the test speaks to in the leader's place. */
static struct node *begin_follower(uint64_t entries) {
    begin_group(3);
    struct node *n = &nodes[1];
    struct engine_entry all[ENGINE_ENTRIES_MAX];
    stop(&nodes[2]);
    stop(&nodes[3]);
    for (uint64_t i = 0; i < entries; i++)
        all[i] = (struct engine_entry){.term = 2, .kind = ENGINE_BATCH};
    struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = f.index_term = 1;
    f.count = (uint32_t)entries;
    f.entries = all;
    f.other = 1 + entries;
    check(receive(n, &f) == ENGINE_OK);
    check(n->last == 1 + entries && n->durable == n->last);
    lose_all(n);
    return n;
}

static void entries_at_or_below_the_snapshot_are_cut_off_and_not_taken_again(void) {
    struct node *n = begin_follower(10);
    check(take_snapshot(n, 0) == ENGINE_OK);
    struct engine_entry all[12];
    for (int i = 0; i < 12; i++)
        all[i] = (struct engine_entry){.term = 2, .kind = ENGINE_BATCH};
    struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = 1;
    f.index_term = 1;
    f.count = 12;
    f.entries = all;
    f.other = 13;
    check(receive(n, &f) == ENGINE_OK);
    check(n->cuts == 0 && n->last == 13 && n->durable == 13);
    check(engine_stats(n->e)->clipped == 1);
    end_group();
}

static void a_configuration_in_the_middle_of_a_frame_counts_once_its_own_index_is_durable(void) {
    struct node *n = begin_follower(3);
    struct members m;
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    require(members_decode(&m, configurations[0].bytes, configurations[0].count));
    check(members_add(&m, 4, "four:4", MEMBER_STANDBY));
    struct engine_entry all[3] = {{.term = 2, .kind = ENGINE_BATCH}, {.term = 2}, {.term = 2, .kind = ENGINE_BATCH}};
    all[1].kind = ENGINE_MEMBERS;
    all[1].configuration = bytes;
    all[1].configuration_bytes = members_encode(&m, bytes);
    struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = 4;
    f.index_term = 2;
    f.count = 3;
    f.entries = all;
    f.other = 5; /* all but the configuration and what follows */
    check(receive(n, &f) == ENGINE_OK);
    /* Another leader cuts it: the members are those before. */
    f = frame_of(ENGINE_APPEND, 3, 3);
    struct engine_entry other = {.term = 3, .kind = ENGINE_BATCH};
    f.index = 5;
    f.index_term = 2;
    f.count = 1;
    f.entries = &other;
    f.other = 5;
    check(receive(n, &f) == ENGINE_OK);
    struct engine_member all_members[ENGINE_MEMBERS_MAX];
    check(n->cuts == 1 && n->last == 6);
    check(engine_members(n->e, all_members) == 3);
    end_group();
}

static void two_configurations_in_one_frame_are_confirmed_one_after_the_other(void) {
    struct node *n = begin_follower(1);
    struct members m;
    uint8_t bytes[2][ENGINE_CONFIGURATION_MAX];
    struct engine_entry all[2] = {{.term = 2, .kind = ENGINE_MEMBERS}, {.term = 2, .kind = ENGINE_MEMBERS}};
    require(members_decode(&m, configurations[0].bytes, configurations[0].count));
    check(members_add(&m, 4, "four:4", MEMBER_STANDBY));
    all[0].configuration = bytes[0];
    all[0].configuration_bytes = members_encode(&m, bytes[0]);
    check(members_add(&m, 5, "five:5", MEMBER_STANDBY));
    all[1].configuration = bytes[1];
    all[1].configuration_bytes = members_encode(&m, bytes[1]);
    struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = 2;
    f.index_term = 2;
    f.count = 2;
    f.entries = all;
    f.other = 3; /* the first is durable elsewhere; this disk does not have it yet */
    n->holds_disk = true;
    check(receive(n, &f) == ENGINE_OK);
    check(n->last == 4 && n->durable == 2);
    /* The second is cut: the first stays. */
    struct engine_entry other = {.term = 3, .kind = ENGINE_BATCH};
    f = frame_of(ENGINE_APPEND, 3, 3);
    f.index = 3;
    f.index_term = 2;
    f.count = 1;
    f.entries = &other;
    f.other = 3;
    check(receive(n, &f) == ENGINE_OK);
    struct engine_member all_members[ENGINE_MEMBERS_MAX];
    check(engine_members(n->e, all_members) == 4);
    end_group();
}

/* After a start the newest configuration is open, and the leader sends nothing but the frame that begins with the next one. */
static void a_frame_that_begins_with_a_configuration_confirms_the_one_before_it(void) {
    struct node *n = begin_follower(3);
    struct members m;
    uint8_t bytes[2][ENGINE_CONFIGURATION_MAX];
    struct engine_entry all[2] = {{.term = 2, .kind = ENGINE_MEMBERS}, {.term = 2, .kind = ENGINE_MEMBERS}};
    require(members_decode(&m, configurations[0].bytes, configurations[0].count));
    for (uint32_t i = 0; i < 2; i++) {
        check(members_add(&m, 4 + i, i == 0 ? "four:4" : "five:5", MEMBER_STANDBY));
        all[i].configuration = bytes[i];
        all[i].configuration_bytes = members_encode(&m, bytes[i]);
    }
    struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = 4;
    f.index_term = 2;
    f.count = 1;
    f.entries = all;
    f.other = 4;
    check(receive(n, &f) == ENGINE_OK);
    check(n->last == 5 && n->forced == 5 && n->durable == 4);
    stop(n);
    boot(n);
    f.index = f.other = 5;
    f.entries = &all[1];
    check(receive(n, &f) == ENGINE_OK);
    check(n->last == 6 && n->durable == 5);
    end_group();
}

/* Else a program that handles an event each millisecond, before it looks at the time, never comes to a timeout. */
static void another_event_does_not_put_off_a_timeout_that_has_passed(void) {
    struct node *n = begin_follower(1);
    uint64_t due_ms = engine_answer(n->e)->due_ms;
    now_ms = due_ms + 3;
    check(engine_lost(n->e, now_ms, 99) == ENGINE_OK);
    check(engine_answer(n->e)->due_ms <= now_ms);
    check(engine_time(n->e, now_ms) == ENGINE_OK);
    check(engine_answer(n->e)->due_ms > now_ms);
    end_group();
}

static void a_follower_takes_nothing_for_durable_that_its_disk_does_not_have(void) {
    struct node *n = begin_follower(1);
    n->holds_disk = true;
    struct engine_entry all[5];
    for (int i = 0; i < 5; i++)
        all[i] = (struct engine_entry){.term = 2, .kind = ENGINE_BATCH};
    struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = 2;
    f.index_term = 2;
    f.count = 5;
    f.entries = all;
    f.other = 7;
    check(receive(n, &f) == ENGINE_OK);
    check(n->last == 7 && n->durable == 2);
    uint64_t kept;
    check(engine_snapshot(n->e, now_ms, 7, 7, &kept) == ENGINE_REFUSED);
    n->holds_disk = false;
    force_disk(n);
    check(n->durable == 7);
    end_group();
}

static void a_follower_whose_disk_hangs_answers_its_leader(void) {
    struct node *n = begin_follower(1);
    n->holds_disk = true;
    now_ms += HEARTBEAT_MS;
    struct engine_entry entry = {.term = 2, .kind = ENGINE_BATCH};
    struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = 2;
    f.index_term = 2;
    f.count = 1;
    f.entries = &entry;
    check(receive(n, &f) == ENGINE_OK);
    const struct engine_frame *said = sent(n, 2, ENGINE_APPENDED);
    require(said != NULL);
    check(said->index == 2 && said->other == 0);
    end_group();
}

static struct engine_frame ask(uint64_t peer, uint64_t term, uint64_t index, uint64_t index_term, uint32_t flags) {
    struct engine_frame f = frame_of(ENGINE_ASK_VOTE, peer, term);
    f.index = index;
    f.index_term = index_term;
    f.flags = flags;
    return f;
}

static bool votes(struct node *n, uint64_t peer, uint64_t term, uint64_t index, uint64_t index_term) {
    struct engine_frame f = ask(peer, term, index, index_term, 0);
    lose_all(n);
    check(receive(n, &f) == ENGINE_OK);
    const struct engine_frame *said = sent(n, peer, ENGINE_VOTED);
    return said != NULL && (said->flags & ENGINE_GRANTED) != 0;
}

static void a_follower_forgets_a_leader_that_is_silent_for_an_election_timeout(void) {
    struct node *n = begin_follower(3);
    now_ms += ELECTION_MS - 1;
    check(!votes(n, 3, 3, 9, 2));
    now_ms += 1;
    check(votes(n, 3, 3, 9, 2));
    end_group();
}

static void a_voter_asks_no_configuration_of_its_own_whether_it_may_vote(void) {
    /* In one it is a standby; in the other it is missing. */
    for (int missing = 0; missing < 2; missing++) {
        struct node *n = begin_follower(3);
        struct members m = {0};
        uint8_t bytes[ENGINE_CONFIGURATION_MAX];
        check(missing || members_add(&m, 1, "one:1", MEMBER_STANDBY));
        check(members_add(&m, 2, "two:2", MEMBER_VOTER) && members_add(&m, 3, "three:3", MEMBER_VOTER));
        struct engine_entry entry = {.term = 2, .kind = ENGINE_MEMBERS, .configuration = bytes};
        entry.configuration_bytes = members_encode(&m, bytes);
        struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
        f.index = 4;
        f.index_term = 2;
        f.count = 1;
        f.entries = &entry;
        f.other = 5;
        check(receive(n, &f) == ENGINE_OK);
        now_ms += ELECTION_MS;
        check(votes(n, 3, 3, 9, 2));
        struct engine_member all[ENGINE_MEMBERS_MAX];
        check(engine_members(n->e, all) == (missing ? 2 : 3) && (missing || !all[0].voter));
        end_group();
    }
}

static void a_member_without_content_grants_no_vote(void) {
    begin_group(1);
    boot(&nodes[2]);
    check(!votes(&nodes[2], 3, 3, 9, 2));
    check(nodes[2].vote_term == 0);
    end_group();
}

static void a_sole_voter_leads_each_time_in_a_new_term_and_only_when_vote_has_it(void) {
    begin_group(1);
    struct node *n = &nodes[1];
    uint64_t term = n->lead_term;
    check(term == 2);
    for (int i = 0; i < 3; i++) {
        stop(n);
        n->holds_votes = true;
        boot(n);
        check(n->lead_term == 0 && n->vote_number != 0 && !engine_may_submit(n->e));
        force_vote(n);
        check(n->lead_term == ++term && n->serves);
    }
    end_group();
}

static void the_last_voter_of_two_leads_alone_in_a_new_term(void) {
    begin_group(2);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    struct node *other = &nodes[3 - id_of(l)];
    require(change_members(l, ENGINE_REMOVE, id_of(other)) == ENGINE_OK);
    run(100);
    check(l->durable == l->last);
    stop(other);
    /* It ceases, and its term passes. */
    struct engine_frame f = frame_of(ENGINE_APPENDED, id_of(other), l->lead_term + 1);
    check(receive(l, &f) == ENGINE_OK);
    check(l->lead_term == 0);
    uint64_t term = l->vote_term;
    run(3000);
    check(l->lead_term == term + 1 && l->serves);
    end_group();
}

static void a_leader_with_nothing_undurable_writes_a_first_batch_of_its_own(void) {
    begin_group(1);
    struct node *n = &nodes[1];
    check(n->first_index == 2 && n->last == 2 && n->log[2].kind == ENGINE_FIRST && n->log[2].term == 2);
    check(n->serves);
    end_group();
}

static void no_batch_goes_before_the_first_and_peers_wait_for_it_and_hear_from_the_leader(void) {
    begin_group(3);
    for (int i = 1; i <= 3; i++)
        nodes[i].holds_first = true;
    for (int i = 0; i < 100 && nodes[1].lead_term + nodes[2].lead_term + nodes[3].lead_term == 0; i++)
        run(50);
    struct node *l = nodes[1].lead_term != 0 ? &nodes[1] : nodes[2].lead_term != 0 ? &nodes[2] : &nodes[3];
    require(l->lead_term != 0);
    check(!put(l, ENGINE_BATCH, -1));
    run(2000);
    check(l->lead_term != 0 && !l->serves); /* it keeps the lead while it gets ready */
    put_first(l);
    run(10);
    check(l->serves);
    for (int i = 1; i <= 3; i++)
        check(nodes[i].durable == l->last);
    end_group();
}

static void a_leader_that_ceases_before_its_first_batch_may_stand_again(void) {
    begin_group(3);
    struct node *first = elect();
    require(first != NULL && put_many(first, 2));
    /* A batch that no majority has: the next leader's first entry is libraft's own. */
    isolate(first, true);
    check(put(first, ENGINE_BATCH, -1));
    stop(&nodes[id_of(first) % 3 + 1]);
    stop(&nodes[(id_of(first) + 1) % 3 + 1]);
    stop(first);
    isolate(first, false);
    boot(first);
    first->holds_first = true;
    boot(&nodes[id_of(first) % 3 + 1]);
    nodes[id_of(first) % 3 + 1].holds_disk = true; /* so it does not stand itself */
    for (int i = 0; i < 100 && first->lead_term == 0; i++)
        run(50);
    require(first->lead_term != 0);
    uint64_t had = first->last;
    struct engine_frame f = frame_of(ENGINE_APPENDED, id_of(first) % 3 + 1, first->lead_term + 1);
    check(receive(first, &f) == ENGINE_OK);
    check(first->lead_term == 0 && first->last == had && engine_answer(first->e)->last_index == had);
    first->holds_first = false;
    for (int i = 0; i < 100 && first->lead_term == 0; i++)
        run(50);
    check(first->lead_term != 0);
    end_group();
}

static void an_earlier_term_is_answered_with_nothing_rejected_and_nothing_forced(void) {
    struct node *n = begin_follower(3);
    struct engine_frame f = frame_of(ENGINE_APPEND, 3, 1);
    f.index = f.index_term = 1;
    check(receive(n, &f) == ENGINE_OK);
    const struct engine_frame *said = sent(n, 3, ENGINE_APPENDED);
    require(said != NULL);
    check(said->index == 0 && said->other == 0 && said->term == 2);
    lose_all(n);
    f = frame_of(ENGINE_UPDATE, 3, 1);
    f.index = 9;
    f.index_term = f.other = 1;
    check(receive(n, &f) == ENGINE_OK);
    said = sent(n, 3, ENGINE_APPENDED);
    require(said != NULL);
    check(said->index == 0 && said->other == 0 && said->term == 2);
    check(engine_stats(n->e)->stale == 2);
    end_group();
}

static void a_candidate_by_transfer_asks_again_with_a_pre_vote(void) {
    struct node *n = begin_follower(3);
    struct engine_frame f = frame_of(ENGINE_TIMEOUT_NOW, 2, 2);
    f.index = 4;
    f.index_term = 2;
    check(receive(n, &f) == ENGINE_OK);
    const struct engine_frame *said = sent(n, 2, ENGINE_ASK_VOTE);
    require(said != NULL);
    check(said->flags == ENGINE_BY_TRANSFER && said->term == 3);
    lose_all(n);
    for (int i = 0; i < 40 && sent(n, 2, ENGINE_ASK_VOTE) == NULL; i++) {
        now_ms += 50;
        check(engine_time(n->e, now_ms) == ENGINE_OK);
        act(n, NULL);
    }
    said = sent(n, 2, ENGINE_ASK_VOTE);
    require(said != NULL);
    check(said->flags == ENGINE_PRE_VOTE && said->term == 4 && n->vote_term == 3);
    end_group();
}

static void an_isolated_leader_ceases_within_an_election_timeout_and_a_heartbeat(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    run(300);
    uint64_t began = now_ms;
    isolate(l, true);
    while (l->lead_term != 0 && now_ms < began + 5000) {
        if (now_ms % 10 == 0)
            (void)put(l, ENGINE_BATCH, -1); /* busy: libraft's own timer does not run out */
        run(1);
    }
    check(now_ms - began <= ELECTION_MS + HEARTBEAT_MS + 1);
    end_group();
}

static void an_idle_group_sends_a_batch_at_once(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    for (int i = 0; i < 20; i++) {
        run(137);
        check(put(l, ENGINE_BATCH, -1));
        run(5);
        check(l->durable == l->last);
    }
    end_group();
}

static void what_became_durable_is_told_at_once_and_not_with_the_next_heartbeat(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    run(350);
    check(put(l, ENGINE_BATCH, -1));
    run(6);
    for (int i = 1; i <= 3; i++)
        check(nodes[i].durable == l->last);
    end_group();
}

static void only_a_rejection_answers_a_frame_that_tells_what_is_durable(void) {
    struct node *n = begin_follower(3);
    struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = 4;
    f.index_term = 2;
    f.other = 4;
    check(receive(n, &f) == ENGINE_OK);
    check(sent(n, 2, ENGINE_APPENDED) != NULL); /* a heartbeat */
    lose_all(n);
    f.flags = ENGINE_NO_ANSWER;
    check(receive(n, &f) == ENGINE_OK);
    check(sent(n, 2, ENGINE_APPENDED) == NULL);
    f.index = 9;
    check(receive(n, &f) == ENGINE_OK);
    require(sent(n, 2, ENGINE_APPENDED) != NULL);
    check(sent(n, 2, ENGINE_APPENDED)->other == 9);
    end_group();
}

/* A leader of so many voters, with a batch that its disk does not force. */
static struct node *begin_hang(size_t members) {
    begin_group(members);
    struct node *l = elect();
    if (l == NULL || !put_many(l, 3))
        return NULL;
    run(50);
    l->holds_disk = true;
    return put(l, ENGINE_BATCH, -1) ? l : NULL;
}

static void a_leader_whose_disk_hangs_hands_over_after_two_election_timeouts(void) {
    struct node *l = begin_hang(3);
    require(l != NULL);
    struct node *behind = &nodes[id_of(l) % 3 + 1];
    isolate(behind, true);
    check(put(l, ENGINE_BATCH, -1));
    run(10);
    isolate(behind, false);
    links[id_of(l)][id_of(behind)].cut = true; /* it answers, and gets nothing */
    uint64_t had = l->last;
    run(2 * ELECTION_MS - 11);
    check(l->lead_term != 0 && engine_may_submit(l->e));
    uint64_t term = l->lead_term;
    run(2);
    check(!engine_may_submit(l->e));
    run(20);
    struct node *next = leader();
    require(next != NULL);
    check(next != l && next != behind && next->lead_term == term + 1); /* nobody stood in between */
    check(l->lead_term == 0 && next->durable > had && l->cuts == 0);
    l->holds_disk = false;
    force_disk(l);
    links[id_of(l)][id_of(behind)].cut = false;
    run(300);
    check(l->durable == next->last && behind->durable == next->last);
    end_group();
}

static void a_leader_whose_disk_hangs_ceases_if_nobody_can_take_over(void) {
    struct node *l = begin_hang(3);
    require(l != NULL);
    for (int i = 1; i <= 3; i++)
        nodes[i].holds_disk = true;
    check(put(l, ENGINE_BATCH, -1));
    run(2 * ELECTION_MS + 1);
    check(l->lead_term != 0 && !engine_may_submit(l->e));
    run(ELECTION_MS - 2);
    check(l->lead_term != 0);
    run(2);
    check(l->lead_term == 0);
    for (int i = 1; i <= 3; i++) {
        nodes[i].holds_disk = false;
        force_disk(&nodes[i]);
    }
    struct node *next = elect();
    require(next != NULL && put_many(next, 3));
    run(200);
    for (int i = 1; i <= 3; i++)
        check(nodes[i].durable == next->last);
    end_group();
}

static void a_disk_that_is_slow_and_moves_does_not_end_the_lead(void) {
    struct node *l = begin_hang(3);
    require(l != NULL);
    for (int i = 0; i < 20; i++)
        check(put(l, ENGINE_BATCH, -1));
    uint64_t term = l->lead_term;
    for (int i = 0; i < 10; i++) {
        run(2 * ELECTION_MS - 1);
        check(l->lead_term == term && engine_may_submit(l->e));
        uint64_t index = ++l->forced;
        check(engine_forced(l->e, now_ms, index, term) == ENGINE_OK);
        act(l, NULL);
    }
    end_group();
}

static void a_leader_whose_disk_moves_before_another_was_told_to_stand_leads_on(void) {
    struct node *l = begin_hang(3);
    require(l != NULL);
    for (int i = 1; i <= 3; i++)
        nodes[i].holds_disk = true;
    check(put(l, ENGINE_BATCH, -1));
    run(2 * ELECTION_MS + ELECTION_MS / 2);
    check(l->lead_term != 0 && !engine_may_submit(l->e));
    l->holds_disk = false;
    force_disk(l);
    check(engine_may_submit(l->e));
    for (int i = 1; i <= 3; i++) {
        nodes[i].holds_disk = false;
        force_disk(&nodes[i]);
    }
    uint64_t term = l->lead_term;
    run(5 * ELECTION_MS);
    check(l->lead_term == term && l->durable == l->last);
    end_group();
}

static void a_sole_voter_whose_disk_hangs_ceases_and_leads_in_a_new_term_when_it_moves(void) {
    struct node *l = begin_hang(1);
    require(l != NULL);
    uint64_t term = l->lead_term;
    uint64_t had = l->last;
    run(2 * ELECTION_MS + 1);
    check(l->lead_term == 0 && l->last == had);
    run(10 * ELECTION_MS);
    check(l->lead_term == 0);
    l->holds_disk = false;
    force_disk(l);
    check(elect() == l);
    check(l->lead_term > term && l->durable > had && l->cuts == 0);
    require(put_many(l, 3));
    end_group();
}

static void a_leader_that_was_killed_is_replaced_at_once_where_its_connection_broke(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    stop(l);
    uint64_t began = now_ms;
    for (int i = 1; i <= 3; i++) {
        if (nodes[i].e == NULL)
            continue;
        check(engine_lost(nodes[i].e, now_ms, id_of(l)) == ENGINE_OK);
        act(&nodes[i], NULL);
    }
    while (leader() == NULL && now_ms < began + 5000)
        run(1);
    check(now_ms - began < 200);
    end_group();
}

static void a_change_waits_for_the_terms_first_batch_and_for_the_one_before(void) {
    begin_group(3);
    for (int i = 1; i <= 3; i++)
        nodes[i].holds_disk = false;
    struct node *l = elect();
    require(l != NULL && put_many(l, 5));
    check(take_snapshot(l, 2) == ENGINE_OK);
    lose_all(l);
    isolate(l, true);
    require(change_members(l, ENGINE_ADD, 4) == ENGINE_OK);
    check(change_members(l, ENGINE_ADD, 5) == ENGINE_REFUSED);
    isolate(l, false);
    run(200);
    check(change_members(l, ENGINE_ADD, 5) == ENGINE_OK);
    check(change_members(l, ENGINE_REMOVE, id_of(l)) != ENGINE_OK);
    end_group();
    begin_group(3);
    nodes[1].holds_first = nodes[2].holds_first = nodes[3].holds_first = true;
    run(3000);
    l = nodes[1].lead_term != 0 ? &nodes[1] : nodes[2].lead_term != 0 ? &nodes[2] : &nodes[3];
    check(change_members(l, ENGINE_REMOVE, id_of(l) % 3 + 1) == ENGINE_REFUSED);
    end_group();
}

static void nobody_is_added_before_the_snapshot_is_at_two(void) {
    begin_group(1);
    struct node *l = &nodes[1];
    require(l->serves && put_many(l, 3));
    check(change_members(l, ENGINE_ADD, 2) == ENGINE_REFUSED);
    check(take_snapshot(l, 1000) == ENGINE_OK);
    check(l->first_kept == 2);
    boot(&nodes[2]);
    check(change_members(l, ENGINE_ADD, 2) == ENGINE_OK);
    run(500);
    check(nodes[2].last == l->last && nodes[2].first_kept > 2); /* by an update */
    end_group();
}

static void a_leader_without_a_snapshot_asks_for_one_and_sends_no_first_entry(void) {
    begin_group(2);
    struct node *l = elect();
    require(l != NULL && put_many(l, 5));
    check(take_snapshot(l, 2) == ENGINE_OK);
    nodes[3].frozen = true;
    boot(&nodes[3]);
    nodes[3].frozen = true;
    require(change_members(l, ENGINE_ADD, 3) == ENGINE_OK);
    run(50);
    struct node *next = &nodes[3 - id_of(l)]; /* it has never had one */
    check(engine_transfer(l->e, now_ms, id_of(next)) == ENGINE_OK);
    act(l, NULL);
    run(200);
    require(leader() == next);
    nodes[3].frozen = false;
    run(1000);
    check(nodes[3].durable == next->last && nodes[3].first_kept > 2);
    end_group();
}

static void members_change_only_while_the_reachable_voters_are_near(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 5));
    struct node *slow = &nodes[id_of(l) % 3 + 1];
    slow->holds_disk = true;
    require(put_many(l, 39)); /* more than behind_max, less than a link takes */
    run(300);
    check(change_members(l, ENGINE_REMOVE, id_of(slow)) == ENGINE_REFUSED);
    slow->holds_disk = false;
    force_disk(slow);
    run(300);
    check(change_members(l, ENGINE_REMOVE, id_of(slow)) == ENGINE_OK);
    end_group();
}

static void a_voter_becomes_no_standby(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 5));
    struct members m;
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    require(members_decode(&m, configurations[0].bytes, configurations[0].count));
    m.all[id_of(l) % 3].role = MEMBER_STANDBY;
    uint32_t count = members_encode(&m, bytes);
    check(!put(l, ENGINE_MEMBERS, add_configuration(bytes, count)));
    check(put(l, ENGINE_BATCH, -1)); /* nothing is left of it */
    run(10);
    check(l->durable == l->last);
    end_group();
}

static void while_a_copy_is_switched_in_no_frame_changes_the_log(void) {
    struct node *n = begin_follower(3);
    n->holds_copies = true;
    struct engine_frame f = frame_of(ENGINE_UPDATE, 2, 2);
    f.index = 50;
    f.index_term = 2;
    f.other = 1;
    check(receive(n, &f) == ENGINE_OK);
    check((engine_answer(n->e)->flags & ENGINE_COPY) != 0 && n->copy_index == 50);
    check(receive(n, &f) == ENGINE_OK);
    check((engine_answer(n->e)->flags & ENGINE_COPY) == 0); /* said once */
    /* one from elsewhere may have a configuration that the group has left */
    check(engine_updated(n->e, now_ms, 49, 2, 1, configurations[0].bytes, configurations[0].count) == ENGINE_REFUSED);
    check((engine_answer(n->e)->flags & ENGINE_SWITCH) == 0);
    check(engine_updated(n->e, now_ms, 50, 2, 1, configurations[0].bytes, configurations[0].count) == ENGINE_OK);
    check((engine_answer(n->e)->flags & ENGINE_SWITCH) != 0);
    act(n, NULL);
    struct engine_entry entry = {.term = 2, .kind = ENGINE_BATCH};
    f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = 50;
    f.index_term = 2;
    f.count = 1;
    f.entries = &entry;
    f.other = 51;
    lose_all(n);
    check(receive(n, &f) == ENGINE_OK);
    f.count = 0;
    check(receive(n, &f) == ENGINE_OK);
    check(sent(n, 2, ENGINE_APPENDED) == NULL && engine_answer(n->e)->last_index == 50);
    check(engine_forced(n->e, now_ms, 4, 2) == ENGINE_OK);
    n->last = n->forced = 50;
    check(engine_switched(n->e, now_ms) == ENGINE_OK);
    act(n, NULL);
    check(engine_answer(n->e)->durable_index == 50);
    const struct engine_frame *said = sent(n, 2, ENGINE_APPENDED);
    require(said != NULL);
    check(said->index == 50);
    end_group();
}

static void forced_is_believed_of_what_was_not_cut_meanwhile(void) {
    struct node *n = begin_follower(3);
    n->holds_disk = true;
    struct engine_entry entry = {.term = 2, .kind = ENGINE_BATCH};
    struct engine_frame f = frame_of(ENGINE_APPEND, 2, 2);
    f.index = 4;
    f.index_term = 2;
    f.count = 1;
    f.entries = &entry;
    check(receive(n, &f) == ENGINE_OK);
    struct engine_entry other = {.term = 3, .kind = ENGINE_BATCH};
    f.term = 3;
    f.peer = 3;
    f.entries = &other;
    f.other = 5;
    check(receive(n, &f) == ENGINE_OK);
    check(n->cuts == 1);
    check(engine_forced(n->e, now_ms, 5, 2) == ENGINE_OK); /* the write of the batch that was cut ends now */
    check(engine_answer(n->e)->durable_index == 4);
    n->holds_disk = false;
    force_disk(n);
    check(n->durable == 5);
    end_group();
}

static void a_member_that_takes_back_what_it_acknowledged_is_refused(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 20));
    struct node *other = &nodes[id_of(l) % 3 + 1];
    stop(other);
    run(450);
    struct engine_frame f = frame_of(ENGINE_APPENDED, id_of(other), l->lead_term);
    f.other = l->last;
    f.index = 3;
    check(engine_receive(l->e, now_ms, &f) == ENGINE_REFUSED);
    check(engine_stats(l->e)->refused == 1);
    end_group();
}

static void a_frame_that_contradicts_what_is_durable_changes_nothing_and_is_told(void) {
    struct node *n = begin_follower(5);
    struct engine_entry other = {.term = 3, .kind = ENGINE_BATCH};
    struct engine_frame f = frame_of(ENGINE_APPEND, 3, 3);
    f.index = 2;
    f.index_term = 2;
    f.count = 1;
    f.entries = &other;
    check(receive(n, &f) == ENGINE_OK);
    check(n->conflicts == 1 && n->cuts == 0 && n->last == 6);
    check(engine_stats(n->e)->conflicts == 1);
    end_group();
}

static void no_frame_of_a_term_leaves_before_vote_has_it(void) {
    begin_group(3);
    for (int i = 1; i <= 3; i++)
        nodes[i].holds_votes = true;
    run(3000);
    for (int i = 1; i <= 3; i++)
        check(nodes[i].lead_term == 0 && nodes[i].vote_term == 1);
    for (int i = 1; i <= 3; i++)
        nodes[i].holds_votes = false;
    for (int i = 1; i <= 3; i++)
        force_vote(&nodes[i]);
    check(elect() != NULL);
    end_group();
}

static void the_term_at_a_start_is_the_larger_of_vote_and_the_highest_header(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 5));
    struct node *n = &nodes[id_of(l) % 3 + 1];
    stop(n);
    uint64_t term = n->vote_term;
    n->vote_term = 1; /* an older VOTE */
    n->voted_for = 0;
    n->holds_votes = true;
    boot(n);
    check(engine_answer(n->e)->term == term && n->told_vote_term == term && n->told_voted_for == 0);
    end_group();
}

static void a_transfer_stops_batches_and_starts_when_its_target_has_all(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 5));
    struct node *to = &nodes[id_of(l) % 3 + 1];
    to->holds_disk = true;
    require(put_many(l, 5));
    check(engine_transfer(l->e, now_ms, id_of(to)) == ENGINE_OK);
    act(l, NULL);
    check(!engine_may_submit(l->e));
    run(5);
    uint64_t index = ++to->forced; /* one of five: libraft would begin now, in vain */
    check(engine_forced(to->e, now_ms, index, to->log[index].term) == ENGINE_OK);
    act(to, NULL);
    run(5);
    check(l->lead_term != 0);
    to->holds_disk = false;
    force_disk(to);
    run(30);
    check(leader() == to);
    end_group();
}

static void the_sender_of_an_update_keeps_what_follows_it(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 10));
    struct node *late = &nodes[id_of(l) % 3 + 1];
    isolate(late, true);
    require(put_many(l, 100));
    check(take_snapshot(l, 3) == ENGINE_OK);
    late->holds_copies = true;
    isolate(late, false);
    run(300);
    require(late->copy_index != 0);
    require(put_many(l, 50));
    check(take_snapshot(l, 0) == ENGINE_OK);
    check(l->first_kept <= late->copy_index + 1);
    bring_copy(late);
    late->holds_copies = false;
    run(300);
    check(late->durable == l->last);
    end_group();
}

static void what_follows_an_update_is_kept_while_it_is_sent(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 10));
    struct node *late = &nodes[id_of(l) % 3 + 1];
    isolate(late, true);
    require(put_many(l, 100));
    check(take_snapshot(l, 3) == ENGINE_OK);
    late->holds_copies = true;
    isolate(late, false);
    run(300);
    require(late->copy_index != 0);
    engine_sends_update(l->e, (uint64_t)now_ms, true);
    for (int i = 0; i < 5; i++) {
        require(put_many(l, 10));
        run(10000);
        check(take_snapshot(l, 0) == ENGINE_OK);
    }
    check(l->first_kept <= late->copy_index + 1);
    engine_sends_update(l->e, (uint64_t)now_ms, false);
    bring_copy(late);
    late->holds_copies = false;
    run(300);
    check(late->durable == l->last);
    end_group();
}

static void a_clock_that_goes_back_stands_still(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 5));
    now_ms -= 900;
    require(put(l, ENGINE_BATCH, -1));
    run(1500);
    check(leader() != NULL);
    require(put_many(leader(), 3));
    end_group();
}

int main(void) {
    static void (*const tests[])(void) = {
        entries_at_or_below_the_snapshot_are_cut_off_and_not_taken_again,
        a_configuration_in_the_middle_of_a_frame_counts_once_its_own_index_is_durable,
        two_configurations_in_one_frame_are_confirmed_one_after_the_other,
        a_frame_that_begins_with_a_configuration_confirms_the_one_before_it,
        another_event_does_not_put_off_a_timeout_that_has_passed,
        a_follower_takes_nothing_for_durable_that_its_disk_does_not_have,
        a_follower_whose_disk_hangs_answers_its_leader,
        a_follower_forgets_a_leader_that_is_silent_for_an_election_timeout,
        a_voter_asks_no_configuration_of_its_own_whether_it_may_vote,
        a_member_without_content_grants_no_vote,
        a_sole_voter_leads_each_time_in_a_new_term_and_only_when_vote_has_it,
        the_last_voter_of_two_leads_alone_in_a_new_term,
        a_leader_with_nothing_undurable_writes_a_first_batch_of_its_own,
        no_batch_goes_before_the_first_and_peers_wait_for_it_and_hear_from_the_leader,
        a_leader_that_ceases_before_its_first_batch_may_stand_again,
        an_earlier_term_is_answered_with_nothing_rejected_and_nothing_forced,
        a_candidate_by_transfer_asks_again_with_a_pre_vote,
        an_isolated_leader_ceases_within_an_election_timeout_and_a_heartbeat,
        an_idle_group_sends_a_batch_at_once,
        what_became_durable_is_told_at_once_and_not_with_the_next_heartbeat,
        only_a_rejection_answers_a_frame_that_tells_what_is_durable,
        a_leader_whose_disk_hangs_hands_over_after_two_election_timeouts,
        a_leader_whose_disk_hangs_ceases_if_nobody_can_take_over,
        a_disk_that_is_slow_and_moves_does_not_end_the_lead,
        a_leader_whose_disk_moves_before_another_was_told_to_stand_leads_on,
        a_sole_voter_whose_disk_hangs_ceases_and_leads_in_a_new_term_when_it_moves,
        a_leader_that_was_killed_is_replaced_at_once_where_its_connection_broke,
        a_change_waits_for_the_terms_first_batch_and_for_the_one_before,
        nobody_is_added_before_the_snapshot_is_at_two,
        a_leader_without_a_snapshot_asks_for_one_and_sends_no_first_entry,
        members_change_only_while_the_reachable_voters_are_near,
        a_voter_becomes_no_standby,
        while_a_copy_is_switched_in_no_frame_changes_the_log,
        forced_is_believed_of_what_was_not_cut_meanwhile,
        a_member_that_takes_back_what_it_acknowledged_is_refused,
        a_frame_that_contradicts_what_is_durable_changes_nothing_and_is_told,
        no_frame_of_a_term_leaves_before_vote_has_it,
        the_term_at_a_start_is_the_larger_of_vote_and_the_highest_header,
        a_transfer_stops_batches_and_starts_when_its_target_has_all,
        the_sender_of_an_update_keeps_what_follows_it,
        what_follows_an_update_is_kept_while_it_is_sent,
        a_clock_that_goes_back_stands_still,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
