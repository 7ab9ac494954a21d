/* The rules that always hold. The cheap ones are judged at every event, logs are compared at intervals and at the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/consensus.h"

enum { NOBODY = 0, FIRST_TERM = MEMBERS_MAX + 1, NEAR = 200, STILL_MS = 3000, UPDATED_LONG_MS = 40000 };

struct durable_entry {
    int id;               /* NO_BATCH: not known */
    uint64_t term;        /* in which it became known */
    uint64_t catalog;     /* sum of the changes up to here */
    uint64_t fingerprint; /* of the table after it; 0: not known */
};

static struct {
    struct durable_entry *entries; /* by index */
    size_t capacity;
    size_t count;
    uint64_t largest;
    uint64_t catalog;
    struct table table;
    uint64_t leaders[TERMS];
    uint64_t
        ends[3 * TERMS]; /* of the LSNs that were given, by their upper bits; a detached log's are above all terms */
    uint64_t progress_ms;
} judge;

typedef unsigned long long ull;

void judge_reset(void) {
    judge.count = 0;
    judge.largest = judge.catalog = 0;
    judge.progress_ms = 0;
    table_clear(&judge.table);
    memset(judge.leaders, 0, sizeof judge.leaders);
    memset(judge.ends, 0, sizeof judge.ends);
}

uint64_t judge_largest(void) { return judge.largest; }

const struct table *judge_table(void) { return &judge.table; }

/* ---- batches ---- */

void judge_made(int id) {
    const struct batch *b = batch_of(id);
    uint64_t slot = b->lsn >> TERM_SHIFT;
    if (slot >= 3 * TERMS || b->lsn < judge.ends[slot])
        violation("LSN TWICE: batch %llu of term %llu gets %llx", (ull)b->index, (ull)b->term, (ull)b->lsn);
    judge.ends[slot] = batch_end(id);
}

/* Content from before replication, and the first MEMBERS: all first voters have it. */
void judge_first(int id) {
    judge_made(id);
    if (batch_of(id)->index == 0)
        table_apply(&judge.table, id);
    else
        judge.leaders[batch_of(id)->term] = FIRST_TERM;
}

static struct durable_entry *entry_at(uint64_t index) {
    while (judge.count <= index) {
        judge.entries = grow(judge.entries, &judge.capacity, judge.count, sizeof *judge.entries);
        judge.entries[judge.count++] = (struct durable_entry){.id = NO_BATCH};
    }
    return &judge.entries[index];
}

void judge_durable(const struct member *m, uint64_t index, int id) {
    struct durable_entry *entry = entry_at(index);
    if (entry->id != NO_BATCH && entry->id != id)
        violation("STATE MACHINE SAFETY: batch %llu is of term %llu at member %llu, and was of term %llu", (ull)index,
                  (ull)batch_of(id)->term, (ull)m->id, (ull)batch_of(entry->id)->term);
    if (entry->id != NO_BATCH)
        return;
    entry->id = id;
    entry->term = m->e == NULL ? batch_of(id)->term : engine_answer(m->e)->term;
    judge.largest = index > judge.largest ? index : judge.largest;
    judge.progress_ms = sim.now_ms;
    sim.counts[COUNT_DURABLE]++;
    while (judge.table.applied < judge.largest && judge.entries[judge.table.applied + 1].id != NO_BATCH) {
        entry = &judge.entries[judge.table.applied + 1];
        table_apply(&judge.table, entry->id);
        entry->fingerprint = table_fingerprint(&judge.table);
        judge.catalog += batch_of(entry->id)->catalog;
        entry->catalog = judge.catalog;
    }
}

void judge_durable_up_to(const struct member *m, uint64_t index) {
    for (uint64_t i = index; i >= m->log.first && i > 0; i--) {
        int id = sequence_at(&m->log, i);
        if (i < judge.count && judge.entries[i].id == id)
            break; /* by log matching, so are all entries below it */
        if (id != NO_BATCH)
            judge_durable(m, i, id);
    }
}

void judge_state(const struct member *m) {
    uint64_t i = m->state.applied;
    if (i == 0 || i > judge.table.applied || judge.entries[i].fingerprint == 0)
        return;
    if (judge.entries[i].fingerprint != table_fingerprint(&m->state))
        violation("STATE: the table of member %llu differs behind batch %llu", (ull)m->id, (ull)i);
}

void judge_catalog(const struct member *m) {
    uint64_t i = m->sql.index;
    if (i > 0 && i <= judge.table.applied && judge.entries[i].catalog != m->sql.sum)
        violation("CATALOG: SQL of member %llu differs behind batch %llu", (ull)m->id, (ull)i);
}

void judge_cut(const struct member *m, uint64_t index) {
    for (uint64_t i = index; i <= sequence_last(&m->log) && i < judge.count; i++)
        if (judge.entries[i].id != NO_BATCH && judge.entries[i].id == sequence_at(&m->log, i))
            violation("DURABLE CUT: member %llu cuts batch %llu", (ull)m->id, (ull)i);
}

void judge_offer(const struct member *m, const struct item *item) {
    if (item->born == NO_BATCH || batch_of(item->born)->index == 0)
        return;
    uint64_t index = batch_of(item->born)->index;
    if (index >= judge.count || judge.entries[index].id != item->born)
        violation("OFFERED: member %llu offers message %llx of batch %llu, which is not durable", (ull)m->id,
                  (ull)item->id, (ull)index);
}

/* ---- leaders and frames ---- */

void judge_leads(const struct member *m, uint64_t term) {
    if (term >= TERMS)
        violation("term %llu is too high to be simulated", (ull)term);
    if (judge.leaders[term] == m->id)
        violation("TERM LED TWICE: term %llu by member %llu", (ull)term, (ull)m->id);
    if (judge.leaders[term] != NOBODY)
        violation("ELECTION SAFETY: term %llu is led by member %llu and by %llu", (ull)term, (ull)judge.leaders[term],
                  (ull)m->id);
    judge.leaders[term] = m->id;
    if (m->vote.term != term || m->vote.voted_for != m->id)
        violation("R2: member %llu leads term %llu, its VOTE has %llu", (ull)m->id, (ull)term, (ull)m->vote.term);
    for (uint64_t i = m->log.first; i <= judge.largest; i++) {
        const struct durable_entry *entry = entry_at(i);
        if (entry->id != NO_BATCH && entry->term < term && sequence_at(&m->log, i) != entry->id)
            violation("LEADER COMPLETENESS: member %llu leads term %llu without durable batch %llu", (ull)m->id,
                      (ull)term, (ull)i);
    }
    if (m->log.first > judge.largest + 1)
        violation("the log of leader %llu begins above what is durable", (ull)m->id);
}

/* A frame that waited for VOTE may be of an earlier term, and was correct then. */
void judge_frame(const struct member *m, const struct engine_frame *f, uint64_t term) {
    bool before_vote = (f->flags & ENGINE_PRE_VOTE) != 0;
    if (planted(MUTANT_SEND_EARLY) || planted(MUTANT_ACK_EARLY))
        return; /* for the rules that are broken by them */
    if (f->group != GROUP || f->peer == m->id)
        violation("member %llu sends a frame to %llu of group %llu", (ull)m->id, (ull)f->peer, (ull)f->group);
    if (!before_vote && f->term > m->vote.term)
        violation("R2: a frame of term %llu leaves member %llu, VOTE has term %llu", (ull)f->term, (ull)m->id,
                  (ull)m->vote.term);
    if (f->type == ENGINE_VOTED && !before_vote && (f->flags & ENGINE_GRANTED) != 0 && f->term == m->vote.term &&
        m->vote.voted_for != f->peer)
        violation("R2: member %llu grants term %llu to %llu, VOTE has %llu", (ull)m->id, (ull)f->term, (ull)f->peer,
                  (ull)m->vote.voted_for);
    if (f->type == ENGINE_APPENDED && f->other == 0 && f->term == term && f->index > m->forced && !m->copy.complete)
        violation("R2: member %llu says that %llu is forced, its disk has %llu", (ull)m->id, (ull)f->index,
                  (ull)m->forced);
    if (f->type == ENGINE_APPEND && f->term == term && m->lead_term == term && m->log.count > 0 &&
        f->index + f->count > sequence_last(&m->log))
        violation("member %llu sends %u batches after %llu, its log ends at %llu", (ull)m->id, f->count, (ull)f->index,
                  (ull)sequence_last(&m->log));
}

/* R6: with a batch that its disk does not force for two election timeouts a leader hands over, and after a third it ceases. */
void judge_disk_of_leader(const struct member *m) {
    uint64_t longest_ms = 3 * ELECTION_MS + 2 * HEARTBEAT_MS;
    bool had_time = sim.now_ms > m->frozen_until_ms + 2 * HEARTBEAT_MS;
    if (had_time && m->lead_term != 0 && m->unforced_since_ms != 0 && sim.now_ms - m->unforced_since_ms > longest_ms)
        violation("R6: leader %llu has had a batch unforced for %llu ms", (ull)m->id,
                  (ull)(sim.now_ms - m->unforced_since_ms));
}

/* R3: a voter that answers lacks no more batches than the number at which the leader waits for it, and its updates come to an end. */
void judge_slow_voter(const struct member *leader) {
    struct engine_member all[ENGINE_MEMBERS_MAX];
    size_t count = leader->serves ? engine_members(leader->e, all) : 0;
    for (size_t i = 0; i < count; i++) {
        const struct pace *p = &leader->pace[all[i].member];
        uint64_t last = sequence_last(&leader->log);
        if (!all[i].voter || all[i].member == leader->id || sim.now_ms - p->answered_ms >= ELECTION_MS)
            continue;
        if (!p->is_back && all[i].acknowledged > 0 && all[i].acknowledged + PACED_FROM + 1 < last)
            violation("PACING: member %llu has forced %llu, leader %llu has made %llu", (ull)all[i].member,
                      (ull)all[i].acknowledged, (ull)leader->id, (ull)last);
        if (sim.long_updates && sim.now_ms - p->near_ms > UPDATED_LONG_MS)
            violation("PACING: member %llu has lagged for %d ms, and is updated again and again", (ull)all[i].member,
                      (int)UPDATED_LONG_MS);
    }
}

/* ---- a start ---- */

/* False: an older copy whose floor refuses it. */
bool judge_start(const struct member *m, const struct recovered *r) {
    for (uint64_t i = m->log.first; !m->is_older && m->log.count > 0 && i <= m->told; i++) {
        int was = sequence_at(&m->log, i);
        int is = sequence_at(&r->log, i);
        if (i >= r->log.first && was != NO_BATCH && was != is)
            violation("R2: member %llu had said that batch %llu of term %llu is forced; after a crash it has one of "
                      "term %llu",
                      (ull)m->id, (ull)i, (ull)batch_of(was)->term, (ull)(is == NO_BATCH ? 0 : batch_of(is)->term));
    }
    uint64_t floor = m->vote.floor_index;
    uint64_t last = sequence_last(&r->log);
    int id = sequence_at(&r->log, floor);
    bool reaches = floor == 0 || (last >= floor && (id == NO_BATCH || batch_of(id)->term >= m->vote.floor_term));
    if (!reaches && !m->is_older)
        violation("R10: the log of member %llu ends at %llu, the floor is %llu", (ull)m->id, (ull)last, (ull)floor);
    return reaches;
}

/* ---- at intervals ---- */

static void compare_logs(const struct member *a, const struct member *b) {
    uint64_t low = a->log.first > b->log.first ? a->log.first : b->log.first;
    uint64_t high = sequence_last(&a->log) < sequence_last(&b->log) ? sequence_last(&a->log) : sequence_last(&b->log);
    bool matched = false;
    for (uint64_t i = high; i >= low && i > 0; i--) {
        int of_a = sequence_at(&a->log, i);
        int of_b = sequence_at(&b->log, i);
        matched = matched || batch_of(of_a)->term == batch_of(of_b)->term;
        if (matched && of_a != of_b)
            violation("LOG MATCHING: members %llu and %llu differ at batch %llu", (ull)a->id, (ull)b->id, (ull)i);
    }
}

void judge_deep(void) {
    for (uint64_t a = 1; a <= sim.count; a++)
        for (uint64_t b = a + 1; b <= sim.count; b++) {
            const struct member *one = &sim.members[a];
            const struct member *other = &sim.members[b];
            if (one->up && other->up && !one->copy.complete && !other->copy.complete && one->log.count > 0 &&
                other->log.count > 0)
                compare_logs(one, other);
        }
}

/* ---- the end ---- */

static const struct member *last_leader(void) {
    const struct member *found = NULL;
    for (uint64_t i = 1; i <= sim.count; i++) {
        const struct member *m = &sim.members[i];
        if (m->up && m->lead_term != 0 && (found == NULL || m->lead_term > found->lead_term))
            found = m;
    }
    return found;
}

static void compare_members(const struct member *leader, const struct member *m) {
    struct engine_member of_leader[ENGINE_MEMBERS_MAX];
    struct engine_member of_m[ENGINE_MEMBERS_MAX];
    size_t count = engine_members(leader->e, of_leader);
    if (m->state.applied + 5 < leader->state.applied)
        return;
    bool same = engine_members(m->e, of_m) == count;
    for (size_t i = 0; i < count && same; i++)
        same = of_leader[i].member == of_m[i].member && of_leader[i].voter == of_m[i].voter;
    if (!same)
        violation("CONFIGURATION: that of member %llu differs from that of leader %llu", (ull)m->id, (ull)leader->id);
}

void judge_end(void) {
    struct engine_member members[ENGINE_MEMBERS_MAX];
    const struct member *leader = last_leader();
    judge_deep();
    if (leader == NULL)
        violation("LIVENESS: nobody leads, though all has been well for long");
    if (sim.now_ms - judge.progress_ms > STILL_MS)
        violation("LIVENESS: leader %llu makes nothing durable for %llu ms", (ull)leader->id,
                  (ull)(sim.now_ms - judge.progress_ms));
    size_t count = engine_members(leader->e, members);
    for (size_t i = 0; i < count; i++) {
        const struct member *m = &sim.members[members[i].member];
        if (m->state.applied + NEAR < leader->state.applied)
            violation("LIVENESS: member %llu has applied %llu of %llu", (ull)m->id, (ull)m->state.applied,
                      (ull)leader->state.applied);
        compare_members(leader, m);
    }
    for (uint64_t i = leader->log.first; i <= leader->state.applied && i < judge.count; i++)
        if (judge.entries[i].id != NO_BATCH && sequence_at(&leader->log, i) != judge.entries[i].id)
            violation("DURABLE LOST: batch %llu", (ull)i);
}
