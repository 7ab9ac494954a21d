/* Forces of a member's disk, when the engine hears of them, and power cuts. */
#include <string.h>

#include "tests/sim/consensus_real.h"

enum { JOURNAL_MAX = 600 };

static uint64_t force_ms(void) {
    static const uint64_t times_ms[] = {1, 1, 2, 3, 10, 60};
    return times_ms[random_below(random_chance(0.04) ? 6 : 4)];
}

static size_t journal_end(const struct member *m) {
    const vfs_sim_event *events;
    return vfs_sim_journal(m->p->disk, &events);
}

/* In the order of the calls: what is told covers all before it. */
void disk_tell_later(struct member *m, struct telling t) {
    t.at_ms = sim.now_ms + force_ms();
    if (t.what == TOLD_VOTE && sim.slow_vote)
        t.at_ms += random_below(60);
    t.at_ms = t.at_ms < m->hangs_until_ms ? m->hangs_until_ms : t.at_ms;
    if (m->telling_count > 0 && t.at_ms < m->tellings[m->telling_count - 1].at_ms)
        t.at_ms = m->tellings[m->telling_count - 1].at_ms;
    t.journal = journal_end(m);
    m->tellings = grow(m->tellings, &m->telling_capacity, m->telling_count, sizeof *m->tellings);
    m->tellings[m->telling_count++] = t;
}

bool disk_is_forcing(const struct member *m) {
    for (size_t i = 0; i < m->telling_count; i++)
        if (m->tellings[i].what != TOLD_VOTE)
            return true;
    return false;
}

static void tell(struct member *m, const struct telling *t) {
    int code = ENGINE_OK;
    switch (t->what) {
    case TOLD_FORCED: {
        int id = batches_find(t->term, t->index);
        int last = id_last(m);
        if (last != NO_BATCH && batch_of(last)->b.index >= t->index && is_in_log(last, id)) { /* else it was cut */
            m->told_index = t->index;
            m->told_term = t->term;
        }
        code = engine_forced(m->e, sim.now_ms, t->index, t->term);
        break;
    }
    case TOLD_VOTE:
        m->told_vote_term = t->term;
        m->told_voted_for = t->voted_for;
        code = engine_vote_forced(m->e, sim.now_ms, t->index);
        break;
    case TOLD_SWITCHED:
        m->told_index = t->index;
        m->told_term = t->term;
        m->switching = false;
        code = engine_switched(m->e, sim.now_ms);
        break;
    }
    if (code != ENGINE_OK)
        violation("member %llu: the engine answers %d when it is told of a force", AT_MEMBER(m), code);
    member_act(m, NULL);
}

void disk_tell_due(struct member *m) {
    while (m->up && m->telling_count > 0 && m->tellings[0].at_ms <= sim.now_ms) {
        struct telling t = m->tellings[0];
        memmove(m->tellings, m->tellings + 1, --m->telling_count * sizeof t);
        m->relied = t.journal > m->relied ? t.journal : m->relied;
        tell(m, &t);
    }
    if (!m->up || m->telling_count > 0 || journal_end(m) < JOURNAL_MAX)
        return;
    if (vfs_sim_record(m->p->disk, 1) != 0)
        run_failed("no memory for a journal");
    m->relied = 0;
}

/* One write and its force: those that replica_take_many puts together. */
void disk_take(struct member *m) {
    ls_replica_batch next[GROUP_BATCHES_MAX];
    size_t n = 0, taken = 0;
    struct replica *r = copy_of(m);
    if (m->pending_count == 0 || m->switching || disk_is_forcing(m) || sim.now_ms < m->hangs_until_ms)
        return;
    if (r == NULL)
        violation("member %llu is to take batches, and has no copy that follows", AT_MEMBER(m));
    while (n < m->pending_count && n < GROUP_BATCHES_MAX) {
        next[n] = batch_of(m->pending[n])->b;
        n++;
    }
    int rc = ls_replica_take_many(r, next, n, &taken);
    if (rc != LS_OK || taken == 0)
        core_failed(m, "a follower refuses the leader's batches", rc);
    int id = m->pending[taken - 1];
    m->pending_count -= taken;
    memmove(m->pending, m->pending + taken, m->pending_count * sizeof *m->pending);
    disk_tell_later(m, (struct telling){TOLD_FORCED, .index = batch_of(id)->b.index, .term = batch_of(id)->b.term});
    if (taken > 1 || next[0].header != NULL)
        faults_soon(m, 0.04, 3);
}

/* The floor follows the log each half second of simulated time; the disk's own clock stands nearly still. */
void disk_floor(struct member *m) {
    if (m->p->store == NULL && m->p->host->follows == NULL)
        return;
    m->p->host->floor_written_us = 0;
    int rc = ls_host_note_tail(m->p->host, m->p->store);
    if (rc != LS_OK)
        core_failed(m, "the floor cannot be raised", rc);
}

/* At any call since what others may rely on, or now; of what was not forced anything is left. */
vfs_sim *disk_power_cut(struct member *m) {
    static const int modes[] = {VFS_SIM_ALL_LOST, VFS_SIM_ALL_KEPT, VFS_SIM_RANDOM, VFS_SIM_RANDOM};
    static const int dir_modes[] = {VFS_SIM_DIRS_LOST, VFS_SIM_DIRS_KEPT, VFS_SIM_DIRS_RANDOM};
    size_t end = journal_end(m);
    size_t k = random_chance(0.3) ? end : m->relied + random_below(end + 1 - m->relied);
    vfs_sim_loss loss = {
        .mode = modes[random_below(4)], .dir_mode = dir_modes[random_below(3)], .seed = 1 + random_below(UINT32_MAX)};
    vfs_sim *left = random_chance(0.2) ? vfs_sim_at(m->p->disk, k) : vfs_sim_crash_at(m->p->disk, k, &loss);
    if (left == NULL)
        run_failed("no memory for a disk");
    sim.counts[COUNT_TORN] += k < end;
    return left;
}
