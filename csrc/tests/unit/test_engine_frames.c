/*
 * Bad input and too little memory: nothing reaches an assertion of libraft, and a group goes on afterwards.
 */
#include "tests/kit/failing_memory.h"

#include "tests/kit/engines.h"

#if defined(UNDER_ASAN) || defined(UNDER_TSAN)
enum { FORGED = 100000 };
#else
enum { FORGED = 1000000 };
#endif

static uint64_t seed;

static uint64_t some(uint64_t n) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (seed >> 33) % n;
}

static uint64_t near(uint64_t value) {
    static const uint64_t far[] = {0, 1, UINT64_C(1) << 62, UINT64_MAX, ENGINE_TERM_MAX + UINT64_C(1)};
    if (some(40) == 0)
        return far[some(sizeof far / sizeof *far)];
    return value + some(5) - (value > 2 ? 2 : value);
}

/* A frame as a member could send it, and then changed. */
static struct engine_frame forge(const struct node *to, struct engine_entry *entries) {
    uint64_t term = engine_answer(to->e)->term;
    uint64_t last = engine_answer(to->e)->last_index;
    struct engine_frame f = {.group = some(50) == 0 ? 0 : GROUP,
                             .peer = some(20) == 0 ? some(8) : id_of(to) % 3 + 1,
                             .type = (uint32_t)(1 + some(some(20) == 0 ? 10 : 6)),
                             .term = some(4) == 0 ? near(term) : term,
                             .flags = (uint32_t)some(8)};
    f.index = near(some(2) == 0 ? last : some(last + 1));
    f.index_term = f.index <= last && some(8) != 0 ? to->log[f.index].term : near(term);
    f.other = near(some(2) == 0 ? last : 0);
    if (f.type == ENGINE_APPEND)
        f.count = (uint32_t)(some(100) == 0 ? some(UINT32_MAX) : some(4));
    for (uint32_t i = 0; i < f.count && i < ENGINE_ENTRIES_MAX; i++) {
        uint64_t index = f.index + 1 + i;
        entries[i] = (struct engine_entry){.term = term, .kind = ENGINE_BATCH};
        if (index <= last && some(16) != 0)
            entries[i] = entry_of(&to->log[index]);
        if (some(32) == 0)
            entries[i].term = near(term);
        if (some(32) == 0)
            entries[i].kind = (uint32_t)some(6);
        if (some(32) == 0) {
            entries[i].configuration = configurations[0].bytes;
            entries[i].configuration_bytes = (uint32_t)some(configurations[0].count + 1);
        }
    }
    f.entries = f.type == ENGINE_APPEND && some(50) != 0 ? entries : NULL;
    return f;
}

/* What a forged frame brings about is not judged: a liar of the group can say anything. Nothing may fail. */
static void a_million_forged_frames_reach_no_assertion(void) {
    static struct engine_entry entries[ENGINE_ENTRIES_MAX];
    uint64_t refused = 0;
    for (int round = 0; round < FORGED / 500; round++) {
        seed = (uint64_t)round + 1;
        int failures = failures_here;
        begin_group(3);
        struct node *n = elect();
        require(n != NULL && put_many(n, 10));
        check(take_snapshot(n, 3) == ENGINE_OK);
        require(failures == failures_here);
        n = &nodes[1 + some(3)];
        uint64_t began = engine_stats(n->e)->refused;
        for (int i = 0; i < 500; i++) {
            now_ms += some(30);
            struct engine_frame f = forge(n, entries);
            if (some(8) == 0)
                (void)engine_time(n->e, now_ms);
            (void)engine_receive(n->e, now_ms, &f);
            const struct engine_answer *a = engine_answer(n->e);
            if ((a->flags & ENGINE_VOTE) != 0 && some(4) != 0)
                (void)engine_vote_forced(n->e, now_ms, a->vote.number);
            if (some(2) == 0)
                (void)engine_forced(n->e, now_ms, engine_answer(n->e)->last_index, engine_answer(n->e)->term);
        }
        refused += engine_stats(n->e)->refused - began;
        end_group();
    }
    check(refused > FORGED / 20);
}

static void configurations_are_read_to_their_end_and_no_further(void) {
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    struct members m = {0};
    struct members read;
    check(members_add(&m, 1, "one:1", MEMBER_VOTER) && members_add(&m, 2, "", MEMBER_STANDBY));
    check(!members_add(&m, 1, "other", MEMBER_VOTER) && !members_add(&m, 3, "one:1", MEMBER_VOTER));
    check(!members_add(&m, 0, "zero", MEMBER_VOTER) && !members_add(&m, 3, "three", 2));
    uint32_t n = members_encode(&m, bytes);
    check(members_decode(&read, bytes, n) && read.count == 2 && read.all[1].id == 2);
    for (uint32_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut + 1); /* so that ASan sees a read behind it */
        require(exact != NULL);
        memcpy(exact, bytes, cut);
        check(!members_decode(&read, exact, cut));
        free(exact);
    }
    for (uint32_t bit = 0; bit < 8 * n; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
        (void)members_decode(&read, bytes, n);
        bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
    }
    struct members standbys = {0};
    check(members_add(&standbys, 1, "one", MEMBER_STANDBY));
    check(!members_decode(&read, bytes, members_encode(&standbys, bytes)));
}

/* Addresses of the longest kind, then one that fills the configuration to its last byte. */
static void a_configuration_is_never_longer_than_the_log_takes(void) {
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    char address[ENGINE_ADDRESS_MAX + 1];
    struct members m = {0};
    struct members read;
    uint64_t id = 1;
    memset(address, 'a', ENGINE_ADDRESS_MAX);
    address[ENGINE_ADDRESS_MAX] = 0;
    for (; id <= ENGINE_MEMBERS_MAX; id++) {
        address[0] = (char)('a' + id);
        if (!members_add(&m, id, address, MEMBER_VOTER))
            break;
    }
    check(m.count == ENGINE_MEMBERS_MAX - 1);
    while (strlen(address) > 0 && !members_add(&m, id, address, MEMBER_STANDBY))
        address[strlen(address) - 1] = 0;
    check(m.count == ENGINE_MEMBERS_MAX && strlen(address) > 0);
    check(members_encode(&m, bytes) == ENGINE_CONFIGURATION_MAX);
    check(members_decode(&read, bytes, ENGINE_CONFIGURATION_MAX) && read.count == ENGINE_MEMBERS_MAX);
}

/* A sole voter with as many standbys as have room. */
static void a_change_whose_configuration_the_log_would_refuse_is_not_planned(void) {
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    char address[ENGINE_ADDRESS_MAX + 1];
    struct members m = {0};
    memset(address, 'a', ENGINE_ADDRESS_MAX);
    address[ENGINE_ADDRESS_MAX] = 0;
    for (uint64_t id = 1; members_add(&m, id, address, id == 1 ? MEMBER_VOTER : MEMBER_STANDBY); id++)
        address[0] = (char)('a' + id);
    check(m.count == ENGINE_MEMBERS_MAX - 1);
    begin_group(1);
    struct engine_options options = options_of(&nodes[1]);
    struct engine_entry kept = {.term = 3, .kind = ENGINE_BATCH};
    struct engine_log log = {.vote_term = 3, .known_durable = 5, .known_durable_term = 3, .members_index = 1};
    log.members = bytes;
    log.members_bytes = members_encode(&m, bytes);
    log.first_kept = 5;
    log.count = 1;
    log.entries = &kept;
    engine *e = NULL;
    require(engine_open(&options, &log, now_ms, &e) == ENGINE_OK);
    check(engine_vote_forced(e, now_ms, engine_answer(e)->vote.number) == ENGINE_OK);
    struct engine_entry first = {.term = engine_answer(e)->term, .kind = ENGINE_FIRST};
    check(engine_submit(e, now_ms, &first) == ENGINE_OK);
    check(engine_forced(e, now_ms, 6, first.term) == ENGINE_OK);
    check((engine_answer(e)->flags & ENGINE_SERVE) != 0);
    struct engine_change change = {ENGINE_ADD, 40, address};
    uint8_t made[ENGINE_CONFIGURATION_MAX];
    uint32_t count = 0;
    check(engine_plan(e, &change, made, &count) == ENGINE_INVALID);
    change.address = "short:1";
    check(engine_plan(e, &change, made, &count) == ENGINE_OK && count <= ENGINE_CONFIGURATION_MAX);
    engine_close(e);
    end_group();
}

static void an_answer_to_a_pre_vote_that_comes_late_disturbs_no_leader(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    struct engine_frame f = {.group = GROUP, .type = ENGINE_VOTED, .peer = id_of(l) % 3 + 1, .term = l->lead_term + 1};
    for (int granted = 0; granted < 2; granted++) {
        f.flags = granted ? ENGINE_PRE_VOTE | ENGINE_GRANTED : ENGINE_PRE_VOTE;
        check(engine_receive(l->e, now_ms, &f) == ENGINE_OK);
        act(l, &f);
        check(l->lead_term != 0);
    }
    end_group();
}

static void a_second_leader_of_the_same_term_is_refused(void) {
    begin_group(3);
    struct node *l = elect();
    require(l != NULL && put_many(l, 3));
    struct node *n = &nodes[id_of(l) % 3 + 1];
    struct engine_frame f = {.group = GROUP, .type = ENGINE_APPEND, .peer = 5, .term = l->lead_term, .index = 1};
    f.index_term = 1;
    check(engine_receive(n->e, now_ms, &f) == ENGINE_REFUSED);
    check(engine_receive(l->e, now_ms, &f) == ENGINE_REFUSED);
    f.group = GROUP + 1;
    f.peer = id_of(l);
    check(engine_receive(n->e, now_ms, &f) == ENGINE_REFUSED);
    check(engine_stats(n->e)->refused == 2);
    end_group();
}

/* A life in which everything happens, with one allocation refused. Only the engine's allocations are counted. */
static uint64_t live_with_one_refused(uint64_t nth) {
    counting = false;
    begin_group(3);
    struct node *l = elect();
    if (l == NULL || !put_many(l, 10))
        return 0;
    (void)take_snapshot(l, 3);
    allocations = failed = 0;
    fail_at_nth = nth;
    struct engine_entry entries[2] = {{.term = l->lead_term, .kind = ENGINE_BATCH}, {.term = l->lead_term}};
    struct members m;
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    check(members_decode(&m, configurations[0].bytes, configurations[0].count));
    check(members_add(&m, 4, "four:4", MEMBER_STANDBY));
    entries[1].kind = ENGINE_MEMBERS;
    entries[1].configuration = bytes;
    entries[1].configuration_bytes = members_encode(&m, bytes);
    struct node *n = &nodes[id_of(l) % 3 + 1];
    struct engine_frame f = {.group = GROUP, .type = ENGINE_APPEND, .peer = id_of(l), .term = l->lead_term};
    f.index = f.other = n->last;
    f.index_term = n->log[n->last].term;
    f.count = 2;
    f.entries = entries;
    counting = true;
    (void)engine_receive(n->e, now_ms, &f);
    counting = false;
    uint64_t last = engine_answer(n->e)->last_index;
    counting = true;
    (void)engine_forced(n->e, now_ms, last, l->lead_term);
    f.index = last;
    f.index_term = f.term;
    f.other = last;
    f.count = 0;
    f.entries = NULL;
    (void)engine_receive(n->e, now_ms, &f);
    f.type = ENGINE_APPEND; /* of the next leader, who cuts the configuration */
    f.peer = 3 + 2 * (id_of(l) == 3);
    f.term++;
    f.index = last - 1;
    f.index_term = engine_answer(l->e)->term;
    f.count = 1;
    entries[0].term = f.term;
    f.entries = entries;
    (void)engine_receive(n->e, now_ms, &f);
    (void)engine_vote_forced(n->e, now_ms, 1000);
    (void)engine_time(n->e, now_ms + 2000);
    struct engine_options options = options_of(n);
    struct engine_log log = {.vote_term = 9, .known_durable = 5, .known_durable_term = 3, .members_index = 1};
    struct engine_entry kept[3] = {{.term = 3, .kind = ENGINE_BATCH}, {.term = 4, .kind = ENGINE_MEMBERS}, {.term = 5}};
    kept[1].configuration = bytes;
    kept[1].configuration_bytes = entries[1].configuration_bytes;
    kept[2].kind = ENGINE_BATCH;
    log.members = configurations[0].bytes;
    log.members_bytes = configurations[0].count;
    log.first_kept = 5;
    log.count = 3;
    log.entries = kept;
    engine *other = NULL;
    int code = engine_open(&options, &log, now_ms, &other);
    counting = false;
    check((code == ENGINE_OK && other != NULL) || (code == ENGINE_NO_MEMORY && other == NULL));
    engine_close(other);
    uint64_t made = allocations;
    fail_at_nth = 0;
    end_group();
    return made;
}

static void whichever_allocation_fails_an_event_happens_or_does_not(void) {
    if (!TAKEN_OVER)
        return;
    for_ever = false;
    uint64_t made = live_with_one_refused(0);
    check(made > 20);
    for (uint64_t nth = 1; nth <= made + 3; nth++)
        (void)live_with_one_refused(nth);
    for_ever = true;
    for (uint64_t nth = 1; nth <= made + 3; nth++)
        (void)live_with_one_refused(nth);
    for_ever = false;
}

static void a_log_that_contradicts_itself_is_refused_at_the_start(void) {
    begin_group(1);
    struct engine_options options = options_of(&nodes[1]);
    struct engine_entry kept[2] = {{.term = 3, .kind = ENGINE_BATCH}, {.term = 2, .kind = ENGINE_BATCH}};
    struct engine_log log = {.vote_term = 4, .known_durable = 5, .known_durable_term = 3, .members_index = 1};
    log.members = configurations[0].bytes;
    log.members_bytes = configurations[0].count;
    log.first_kept = 5;
    log.entries = kept;
    engine *e = NULL;
    log.count = 2; /* terms go back */
    check(engine_open(&options, &log, 0, &e) == ENGINE_INVALID);
    log.count = 0; /* what is durable is missing */
    check(engine_open(&options, &log, 0, &e) == ENGINE_INVALID);
    log.count = 1;
    log.members_bytes -= 8;
    check(engine_open(&options, &log, 0, &e) == ENGINE_INVALID);
    log.members_bytes += 8;
    log.vote_term = 2; /* VOTE and headers are below the log */
    check(engine_open(&options, &log, 0, &e) == ENGINE_INVALID);
    log.header_term = 3;
    log.first_kept = 1; /* entry 1 may not be kept behind a snapshot */
    check(engine_open(&options, &log, 0, &e) == ENGINE_INVALID);
    log.first_kept = 5;
    check(engine_open(&options, &log, 0, &e) == ENGINE_OK);
    engine_close(e);
    end_group();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_million_forged_frames_reach_no_assertion,
        configurations_are_read_to_their_end_and_no_further,
        a_configuration_is_never_longer_than_the_log_takes,
        a_change_whose_configuration_the_log_would_refuse_is_not_planned,
        an_answer_to_a_pre_vote_that_comes_late_disturbs_no_leader,
        a_second_leader_of_the_same_term_is_refused,
        whichever_allocation_fails_an_event_happens_or_does_not,
        a_log_that_contradicts_itself_is_refused_at_the_start,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
