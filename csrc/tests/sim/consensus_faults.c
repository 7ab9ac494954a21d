/* Faults, chosen by the run's random numbers: crashes, some aimed; cuts, freezes, transfers, members that come and go. */
#include <string.h>

#include "tests/sim/consensus.h"

static bool faulty(void) { return sim.now_ms < sim.faults_end_ms && sim.election == ELECTION_NONE; }

static void crash_soon(const struct member *m, uint64_t within_ms) {
    event_push((struct event){.at_ms = sim.now_ms + random_below(within_ms),
                              .kind = EVENT_CRASH,
                              .member = m->id,
                              .generation = m->generation});
}

static double aimed(double p) { return sim.scenario == SCENARIO_AIMED ? 10 * p : p; }

void faults_after_vote(struct member *m) {
    if (faulty() && random_chance(aimed(0.03) * sim.fault_rate))
        crash_soon(m, 6);
}

void faults_after_cut(struct member *m) {
    if (faulty() && (sim.churn || sim.scenario == SCENARIO_AIMED) && random_chance(0.5))
        crash_soon(m, 9);
}

void faults_after_switch(struct member *m) {
    if (faulty() && random_chance(aimed(0.05)))
        crash_soon(m, 6);
}

/* New leaders are cut off, or die before a majority has what they wrote. */
void faults_after_lead(struct member *m) {
    if (!faulty() || !sim.churn)
        return;
    if (random_chance(0.5)) {
        for (uint64_t i = 1; i <= sim.count; i++)
            if (i != m->id && random_chance(0.8))
                net_cut(m->id, i, true);
        event_push((struct event){.at_ms = sim.now_ms + 1500, .kind = EVENT_LINKS_BACK, .member = m->id});
    }
    if (random_chance(0.4))
        crash_soon(m, 25);
}

static void lose_forced(struct member *m) {
    if (planted(MUTANT_OLDCOPY) && m->has_old && random_chance(0.1)) {
        disk_copy(&m->disk, &m->old_disk);
        m->vote = m->old_vote;
    } else if (planted(MUTANT_OLDCOPY) && random_chance(0.3)) {
        disk_copy(&m->old_disk, &m->disk);
        m->old_vote = m->vote;
        m->has_old = true;
    }
    if (planted(MUTANT_LYING) && m->disk.count > 0 && random_chance(0.2)) {
        struct segment *s = &m->disk.segments[m->disk.count - 1];
        size_t lost = 1 + random_below(3);
        s->count = s->count > lost ? s->count - lost : 0;
    }
}

void crash(struct member *m) {
    double told =
        sim.election == ELECTION_NONE ? 0.5 : sim.election == ELECTION_RESET; /* a peer, by a reset connection */
    sim.counts[COUNT_CRASHES]++;
    note(m, "crashes");
    io_crash(m);
    lose_forced(m);
    member_stop(m);
    if (sim.scenario == SCENARIO_IDENTITY && faulty() && random_chance(0.12))
        identity_restore(m);
    for (uint64_t i = 1; i <= sim.count; i++)
        if (sim.members[i].up && !net_is_cut(m->id, i) && random_chance(told))
            event_push((struct event){.at_ms = sim.now_ms + 1 + random_below(5),
                                      .kind = EVENT_LOST,
                                      .member = i,
                                      .generation = sim.members[i].generation,
                                      .value = m->id});
}

/* ---- a millisecond of faults ---- */

static void start_all(void) {
    for (uint64_t i = 1; i <= sim.count; i++)
        if (!sim.members[i].up)
            member_start(&sim.members[i]);
}

void faults_begin(void) {
    static const double rates[] = {0.1, 0.3, 1, 1.6};
    sim.fault_rate = rates[random_below(4)];
}

static void cut_some(void) {
    for (uint64_t a = 1; a <= sim.count; a++)
        for (uint64_t b = 1; b <= sim.count; b++)
            net_cut(a, b, a != b && random_chance(0.35));
}

static void cut_none(void) {
    for (uint64_t a = 1; a <= sim.count; a++)
        for (uint64_t b = 1; b <= sim.count; b++)
            net_cut(a, b, false);
}

/* A disk is full or hangs for a while. */
static void stop_disk(struct member *m) {
    uint64_t until_ms = sim.now_ms + 100 + random_below(random_chance(0.3) ? 4000 : 900);
    if (random_chance(0.5))
        m->full_until_ms = until_ms;
    else
        m->hangs_until_ms = until_ms;
    sim.counts[COUNT_STOPPED_DISKS]++;
    note(m, "has a disk that %s for %llu ms", m->full_until_ms == until_ms ? "is full" : "hangs",
         (unsigned long long)(until_ms - sim.now_ms));
}

void faults_now(void) {
    double x = random_unit() / sim.fault_rate;
    struct member *m = &sim.members[1 + random_below(sim.count)];
    if (x < 0.002) {
        if (m->up)
            crash(m);
        else
            member_start(m);
    } else if (x < 0.004 && sim.scenario != SCENARIO_TWO) {
        cut_some();
    } else if (x < 0.007) {
        cut_none();
    } else if (x < 0.010) {
        start_all();
    } else if (x < 0.011 && m->up) {
        m->frozen_until_ms = sim.now_ms + random_below(random_chance(0.3) ? 3000 : 700);
    } else if (x < 0.0120) {
        removal_begin(m);
    } else if (x < 0.0126) {
        stop_disk(m);
    }
    if (sim.scenario == SCENARIO_IDENTITY && m->up && !m->copy.complete && random_chance(0.002))
        identity_keep_copy(m);
    bool members = sim.scenario == SCENARIO_MEMBERS || sim.scenario == SCENARIO_TWO;
    for (uint64_t i = 1; i <= sim.count; i++) {
        struct member *leader = &sim.members[i];
        if (!leader->up || leader->frozen_until_ms > sim.now_ms || leader->lead_term == 0)
            continue;
        if (!random_chance(members ? 0.03 : 0.004) || !lead_change(leader))
            if (random_chance(0.001))
                lead_transfer(leader);
    }
}
