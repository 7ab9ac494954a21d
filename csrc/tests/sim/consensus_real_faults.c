/* The faults of a run: crashes, some aimed; cuts, freezes, disks that hang, transfers, members that come and go. */
#include <string.h>

#include "tests/sim/consensus_real.h"

static bool faulty(void) { return sim.now_ms < sim.faults_end_ms; }

void faults_begin(void) {
    static const double rates[] = {0.1, 0.3, 1, 1.6};
    sim.fault_rate = rates[random_below(4)];
}

void faults_soon(struct member *m, double p, uint64_t within_ms) {
    if (faulty() && random_chance(p * (sim.scenario == SCENARIO_AIMED ? 5 : 1)))
        event_push((struct event){.at_ms = sim.now_ms + random_below(within_ms),
                                  .kind = EVENT_CRASH,
                                  .member = m->id,
                                  .generation = m->generation});
}

/* New leaders are cut off, or die before a majority has what they wrote. */
void faults_after_lead(struct member *m) {
    if (!faulty() || !random_chance(sim.churn ? 1 : 0.1))
        return;
    if (random_chance(0.5)) {
        for (uint64_t i = 1; i <= sim.count; i++)
            if (i != m->id && random_chance(0.8))
                net_cut(m->id, i, true);
        event_push((struct event){.at_ms = sim.now_ms + 1500, .kind = EVENT_LINKS_BACK, .member = m->id});
    }
    faults_soon(m, 0.4, 25);
}

static void connections_are_lost(const struct member *m) {
    for (uint64_t i = 1; i <= sim.count; i++)
        if (sim.members[i].up && i != m->id && !net_is_cut(m->id, i) && random_chance(0.5))
            event_push((struct event){.at_ms = sim.now_ms + 1 + random_below(5),
                                      .kind = EVENT_LOST,
                                      .member = i,
                                      .generation = sim.members[i].generation,
                                      .value = m->id});
}

void crash(struct member *m) {
    sim.counts[COUNT_CRASHES]++;
    note(m, "crashes");
    vfs_sim *left = disk_power_cut(m);
    tables_compare(m);
    member_ends(m, left);
    connections_are_lost(m);
}

/* The process is killed; everything that it wrote stays. */
void kill_and_restart(struct member *m) {
    vfs_sim *left = vfs_sim_clone(m->p->disk);
    if (left == NULL)
        run_failed("no memory for a disk");
    note(m, "ends");
    member_ends(m, left);
    connections_are_lost(m);
    event_push((struct event){.at_ms = sim.now_ms + 1 + random_below(20), .kind = EVENT_START, .member = m->id});
}

/* A removed member deletes its copy, on which no other member relies any more. */
static void wipe(struct member *m) {
    if (!m->up || copy_of(m) == NULL || m->p->users > 1 || m->telling_count > 0 || m->pending_count > 0 ||
        m->switching || is_named_anywhere(m->id))
        return;
    note(m, "is not a member: its copy is removed");
    tables_compare(m);
    if (m->p == NULL || vfs_sim_record(m->p->disk, 1) != 0)
        run_failed("no memory for a journal");
    m->relied = 0;
    update_ends(m);
    int rc = ls_host_remove_copy(m->p->host);
    if (rc != LS_OK)
        core_failed(m, "a copy cannot be removed", rc);
    m->told_index = m->told_term = 0;
    sim.counts[COUNT_WIPED]++;
    vfs_sim *left = disk_power_cut(m);
    member_ends(m, left);
    event_push((struct event){.at_ms = sim.now_ms + 1 + random_below(400), .kind = EVENT_START, .member = m->id});
}

static void cut_links(double p) {
    for (uint64_t a = 1; a <= sim.count; a++)
        for (uint64_t b = 1; b <= sim.count; b++)
            net_cut(a, b, a != b && random_chance(p));
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
        cut_links(0.35);
    } else if (x < 0.007) {
        cut_links(0);
    } else if (x < 0.010) {
        for (uint64_t i = 1; i <= sim.count; i++)
            if (!sim.members[i].up)
                member_start(&sim.members[i]);
    } else if (x < 0.011 && m->up) {
        m->frozen_until_ms = sim.now_ms + random_below(random_chance(0.3) ? 3000 : 700);
    } else if (x < 0.0125) {
        wipe(m);
    } else if (x < 0.0130) {
        m->hangs_until_ms = sim.now_ms + 100 + random_below(random_chance(0.3) ? 4000 : 900);
        sim.counts[COUNT_STOPPED_DISKS]++;
    }
    bool members = sim.scenario == SCENARIO_MEMBERS || sim.scenario == SCENARIO_TWO;
    for (uint64_t i = 1; i <= sim.count; i++) {
        struct member *leader = &sim.members[i];
        if (!leader->up || leader->frozen_until_ms > sim.now_ms || leader->lead_term == 0)
            continue;
        if (!random_chance(members ? 0.03 : 0.006) || !lead_change(leader))
            if (leader->up && leader->lead_term != 0 && random_chance(0.001))
                lead_transfer(leader);
    }
}
