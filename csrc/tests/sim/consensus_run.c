/* One run: its members and their first log, a loop over milliseconds, and an end without faults. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/consensus.h"

enum {
    HEALED_MS = 15000,
    LONGER_MS = 6000,
    DEEP_EVERY_MS = 500,
    FLOOR_EVERY_MS = 500,
    BEFORE_MAX = 8,
    LONG_WINDOW = 4000,
    SHORT_WINDOW = 100
};

static struct member members[MEMBERS_MAX + 1];

const char *const run_mode = "";
const char *const run_mutants[] = {"NONE",           "SEND_EARLY",  "ACK_EARLY",     "FORGET_VOTE",  "TERM_LOST",
                                   "CUT_BEFORE_HDR", "APPLY_UNDUR", "APPLY_RESTART", "OFFER",        "TWO",
                                   "LSN_TWICE",      "STALE_CONF",  "OLDCOPY",       "LYING",        "KEEP_TABLE",
                                   "WIPE_VOTE",      "PIECEMEAL",   "CUT_ZERO",      "RECYC_UNDUR",  "SELF_REMOVE",
                                   "TELL_FORCED",    "COUNT_KEPT",  "NO_HELLO",      "CATALOG_LOST", "KEEP_ABOVE",
                                   "NO_REWRITE",     "NO_PACING",   "NO_ROUNDS",     "DELETE_FIRST", "DETACH_LOG_FIRST",
                                   "MARK_LATE",      "MARK_ISLANDS"};
const size_t run_mutant_count = MUTANTS;
const size_t run_scenario_count = SCENARIO_SLOW_VOTER + 1;

void note(const struct member *m, const char *format, ...) {
    if (!sim.trace)
        return;
    va_list arguments;
    va_start(arguments, format);
    (void)printf("%8.3f s  member %llu  ", (double)sim.now_ms / 1000, (unsigned long long)m->id);
    (void)vprintf(format, arguments);
    (void)printf("\n");
    va_end(arguments);
}

/* ---- the beginning ---- */

static void free_member(struct member *m) {
    sequence_free(&m->log);
    sequence_free(&m->before);
    sequence_free(&m->copy.log);
    sequence_free(&m->copy.before);
    table_free(&m->state);
    table_free(&m->table);
    table_free(&m->checkpoint.table);
    disk_free(&m->disk);
    disk_free(&m->old_disk);
    free(m->pending);
    free(m->votes);
}

static void new_member(struct member *m, uint64_t id) {
    free_member(m);
    *m = (struct member){.id = id};
    m->log.first = m->before.first = m->copy.log.first = m->copy.before.first = 1;
    bool is_long = sim.election != ELECTION_NONE || sim.scenario == SCENARIO_SLOW_VOTER;
    m->window = 10 + random_below(random_chance(0.5) ? 40 : 400);
    m->window = !is_long ? m->window : sim.long_updates ? SHORT_WINDOW : LONG_WINDOW;
    table_clear(&m->state);
    table_clear(&m->table);
}

/* A store that had messages before it became replicated. */
static uint64_t write_before(int *ids, uint64_t count) {
    uint64_t lsn = HEADER_BYTES;
    for (uint64_t i = 0; i < count; i++) {
        ids[i] = batch_new();
        struct batch *b = batch_of(ids[i]);
        b->lsn = lsn;
        b->bytes = 300;
        b->prev_end = b->durable_lsn = i == 0 ? 0 : lsn;
        b->born = 1 + (uint32_t)random_below(BORN_MAX);
        lsn += b->bytes;
        judge_first(ids[i]);
    }
    return count == 0 ? 0 : lsn;
}

static int write_first_members(uint64_t voters, uint64_t prev_end) {
    static const char *const addresses[] = {"one:1", "two:2", "three:3", "four:4", "five:5"};
    uint64_t ids[MEMBERS_MAX];
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    uint32_t count = 0;
    for (uint64_t i = 0; i < voters; i++)
        ids[i] = i + 1;
    if (engine_bootstrap(ids, addresses, voters, bytes, &count) != ENGINE_OK)
        run_failed("no first configuration");
    int id = batch_new();
    *batch_of(id) = (struct batch){.index = 1,
                                   .term = 1,
                                   .lsn = (UINT64_C(1) << TERM_SHIFT) + HEADER_BYTES,
                                   .bytes = 300,
                                   .prev_end = prev_end,
                                   .durable_lsn = prev_end,
                                   .known_lsn = prev_end,
                                   .kind = ENGINE_MEMBERS,
                                   .configuration = configuration_new(bytes, count),
                                   .relocated = NO_BATCH};
    judge_first(id);
    return id;
}

static void begin(uint64_t voters) {
    int before[BEFORE_MAX];
    uint64_t before_count = random_chance(0.5) ? 1 + random_below(BEFORE_MAX) : 0;
    uint64_t prev_end = write_before(before, before_count);
    int first = write_first_members(voters, prev_end);
    for (uint64_t i = 1; i <= sim.count; i++) {
        struct member *m = &sim.members[i];
        new_member(m, i);
        if (i <= voters) {
            if (before_count > 0)
                disk_header(&m->disk, 0, 0, 0);
            for (uint64_t k = 0; k < before_count; k++)
                (void)disk_put(&m->disk, before[k], false);
            disk_header(&m->disk, UINT64_C(1) << TERM_SHIFT, 1, prev_end);
            (void)disk_put(&m->disk, first, false);
            m->vote.term = 1;
        }
        member_start(m);
    }
}

/* ---- a millisecond ---- */

static void happen(const struct event *e) {
    struct member *m = &sim.members[e->member];
    bool same_process = m->up && e->generation == m->generation;
    if (m->up && m->frozen_until_ms > sim.now_ms && (e->kind == EVENT_LETTER || same_process)) {
        event_defer(*e, m->frozen_until_ms);
        return;
    }
    switch (e->kind) {
    case EVENT_LETTER:
        if (m->up && letter_arrives(e))
            member_receive(m, e->letter);
        free(e->letter);
        break;
    case EVENT_FORCED:
        if (same_process)
            io_forced(m);
        break;
    case EVENT_VOTE_FORCED:
        if (same_process)
            io_vote_forced(m);
        break;
    case EVENT_COPY:
        if (same_process)
            update_arrives(m, e->value);
        break;
    case EVENT_CRASH:
        if (!same_process || sim.now_ms >= sim.faults_end_ms)
            break;
        crash(m);
        if (random_chance(0.7))
            event_push((struct event){
                .at_ms = sim.now_ms + 1 + random_below(sim.churn ? 900 : 40), .kind = EVENT_START, .member = m->id});
        break;
    case EVENT_START:
        if (!m->up)
            member_start(m);
        break;
    case EVENT_LINKS_BACK:
        for (uint64_t i = 1; i <= sim.count; i++)
            net_cut(m->id, i, false);
        break;
    case EVENT_REFUSED:
        if (!same_process || !m->is_older)
            break;
        crash(m);
        identity_reinstate(m);
        event_push((struct event){.at_ms = sim.now_ms + 1 + random_below(1500), .kind = EVENT_START, .member = m->id});
        break;
    case EVENT_LOST:
        if (same_process && engine_lost(m->e, sim.now_ms, e->value) == ENGINE_OK)
            member_act(m, NULL);
        break;
    }
}

static void work(struct member *m) {
    if (!m->up || m->frozen_until_ms > sim.now_ms)
        return;
    if (engine_answer(m->e)->due_ms <= sim.now_ms)
        member_time(m);
    judge_disk_of_leader(m);
    if (sim.scenario == SCENARIO_SLOW_VOTER)
        judge_slow_voter(m);
    io_retry(m);
    member_apply(m);
    lead_work(m);
    if (random_chance(m->snapshot_wanted ? 0.2 : 0.01))
        keep_snapshot(m);
    if (random_chance(0.02))
        recycle(m);
    if (random_chance(0.01))
        catalog_apply(m);
    if (random_chance(0.002))
        checkpoint_take(m);
    if ((sim.now_ms + m->id * 97) % FLOOR_EVERY_MS == 0)
        io_floor(m);
}

static void heal(void) {
    sim.healing = true;
    net_heal();
    for (uint64_t i = 1; i <= sim.count; i++) {
        sim.members[i].full_until_ms = sim.members[i].hangs_until_ms = 0;
        if (!sim.members[i].up)
            member_start(&sim.members[i]);
    }
}

static bool somebody_serves(void) {
    for (uint64_t i = 1; i <= sim.count; i++)
        if (sim.members[i].up && sim.members[i].serves)
            return true;
    return false;
}

static void choose(uint64_t seed) {
    bool by_seed = sim.scenario == SCENARIO_DEFAULT;
    sim.churn = sim.scenario == SCENARIO_CHURN || (by_seed && seed % 8 == 3);
    sim.slow_vote = sim.scenario == SCENARIO_SLOW_VOTE || (by_seed && seed % 8 == 5);
    sim.count = sim.scenario == SCENARIO_TWO ? 2 : MEMBERS_MAX;
    sim.write_buffers = 2 + random_below(random_chance(0.5) ? 4 : 14);
    sim.long_updates = sim.scenario == SCENARIO_SLOW_VOTER && seed % 2 == 1;
    sim.load = sim.scenario == SCENARIO_SLOW_VOTER ? 1 : 0.3;
    sim.calm = sim.election == ELECTION_NONE ? sim.scenario == SCENARIO_SLOW_VOTER : sim.calm;
}

void run_seed(uint64_t seed, uint64_t ms) {
    sim.members = members;
    random_seed(seed);
    model_reset();
    judge_reset();
    identity_reset();
    sim.unprotected = sim.over = false;
    sim.now_ms = 0;
    sim.healing = false;
    choose(seed);
    ms *= sim.long_updates ? 2 : 1;
    sim.faults_end_ms = ms;
    net_reset(sim.scenario == SCENARIO_TWO ? 0 : random_below(60));
    faults_begin();
    if (sim.election != ELECTION_NONE)
        elections_begin();
    begin(sim.election == ELECTION_NONE && sim.scenario != SCENARIO_SLOW_VOTER &&
                  (sim.scenario == SCENARIO_TWO || random_below(3) == 0)
              ? 1
              : 3);
    while (!sim.over &&
           (sim.now_ms < ms + HEALED_MS || (sim.now_ms < ms + HEALED_MS + LONGER_MS && !somebody_serves()))) {
        struct event e;
        sim.now_ms++;
        if (sim.now_ms == ms)
            heal();
        while (event_next(&e))
            happen(&e);
        for (uint64_t i = 1; i <= sim.count; i++)
            work(&sim.members[i]);
        if (!sim.healing && sim.election == ELECTION_NONE && sim.scenario != SCENARIO_SLOW_VOTER)
            faults_now();
        else if (!sim.healing && sim.election != ELECTION_NONE)
            elections_now();
        if (sim.now_ms % DEEP_EVERY_MS == 0)
            judge_deep();
    }
    if (sim.over)
        sim.counts[COUNT_UNPROTECTED]++;
    else
        judge_end();
    for (uint64_t i = 1; i <= sim.count; i++)
        if (sim.members[i].up)
            member_stop(&sim.members[i]);
    net_reset(0);
}
