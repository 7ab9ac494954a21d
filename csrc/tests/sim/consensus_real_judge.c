/* The rules for starts, frames and leaders, and for the end of a run. */
#include <string.h>

#include "tests/sim/consensus_real.h"

enum { TERMS = 1 << 16, STILL_MS = 3000, NEAR = 200 };

static struct {
    uint64_t leaders[TERMS];
    uint64_t durable;
    uint64_t progress_ms;
} judge;

void core_failed(const struct member *m, const char *what, int rc) {
    violation("member %llu: %s: %d %.250s", AT_MEMBER(m), what, rc, ls_last_error()->text);
}

void judge_reset(void) { memset(&judge, 0, sizeof judge); }

uint64_t judge_leader_of(uint64_t term) { return term < TERMS ? judge.leaders[term] : 0; }

void judge_start(const struct member *m) {
    const struct vote *v = &m->p->host->vote->now;
    const struct replica *r = m->p->host->follows;
    if (v->term < m->told_vote_term ||
        (v->term == m->told_vote_term && m->told_voted_for != 0 && v->voted_for != m->told_voted_for))
        violation("R2: member %llu had said term %llu and a vote for %llu; its VOTE has %llu and %llu", AT_MEMBER(m),
                  (ull)m->told_vote_term, (ull)m->told_voted_for, (ull)v->term, (ull)v->voted_for);
    if (m->told_index == 0)
        return;
    int told = batches_find(m->told_term, m->told_index);
    int last = r == NULL || r->end.index == 0 ? NO_BATCH : batches_find(r->end.term, r->end.index);
    if (last == NO_BATCH || batch_of(last)->b.index < m->told_index || !is_in_log(last, told))
        violation("R2: member %llu had said that batch %llu of term %llu is forced; after a crash its log ends with "
                  "%llu of term %llu",
                  AT_MEMBER(m), (ull)m->told_index, (ull)m->told_term, (ull)(r == NULL ? 0 : r->end.index),
                  (ull)(r == NULL ? 0 : r->end.term));
    if (durable_at(r->applied.index) != batches_find(r->applied.term, r->applied.index) && r->applied.index > 0 &&
        durable_at(r->applied.index) != NO_BATCH)
        violation("UNDURABLE: member %llu has applied batch %llu of term %llu, which is not durable", AT_MEMBER(m),
                  (ull)r->applied.index, (ull)r->applied.term);
}

void judge_leads(const struct member *m, uint64_t term) {
    const struct vote *v = &m->p->host->vote->now;
    if (term >= TERMS)
        violation("term %llu is too high to be simulated", (ull)term);
    if (judge.leaders[term] == m->id)
        violation("TERM LED TWICE: term %llu by member %llu", (ull)term, AT_MEMBER(m));
    if (judge.leaders[term] != 0)
        violation("ELECTION SAFETY: term %llu is led by member %llu and by %llu", (ull)term, (ull)judge.leaders[term],
                  AT_MEMBER(m));
    judge.leaders[term] = m->id;
    sim.counts[COUNT_ELECTIONS]++;
    if (v->term != term || v->voted_for != m->id || m->told_vote_term != term)
        violation("R2: member %llu leads term %llu, its VOTE has %llu", AT_MEMBER(m), (ull)term, (ull)v->term);
    judge_completeness(m->id, term, id_last(m));
}

void judge_frame(const struct member *m, const struct engine_frame *f, uint64_t term) {
    bool before_vote = (f->flags & ENGINE_PRE_VOTE) != 0;
    if (f->group != GROUP || f->peer == m->id)
        violation("member %llu sends a frame to %llu of group %llu", AT_MEMBER(m), (ull)f->peer, (ull)f->group);
    if (!before_vote && f->term > m->told_vote_term)
        violation("R2: a frame of term %llu leaves member %llu, VOTE has term %llu", (ull)f->term, AT_MEMBER(m),
                  (ull)m->told_vote_term);
    if (f->type == ENGINE_VOTED && !before_vote && (f->flags & ENGINE_GRANTED) != 0 && f->term == m->told_vote_term &&
        m->told_voted_for != f->peer)
        violation("R2: member %llu grants term %llu to %llu, VOTE has %llu", AT_MEMBER(m), (ull)f->term, (ull)f->peer,
                  (ull)m->told_voted_for);
    if (f->type == ENGINE_APPENDED && f->other == 0 && f->term == term && f->index > m->told_index && !m->switching)
        violation("R2: member %llu says that %llu is forced, its disk has %llu", AT_MEMBER(m), (ull)f->index,
                  (ull)m->told_index);
}

void judge_cut(const struct member *m, uint64_t index) {
    int last = id_last(m);
    for (int id = last; id != NO_BATCH && batch_of(id)->b.index >= index; id = batch_of(id)->before)
        if (durable_at(batch_of(id)->b.index) == id)
            violation("DURABLE CUT: member %llu cuts batch %llu", AT_MEMBER(m), (ull)batch_of(id)->b.index);
}

void judge_durable(const struct member *m, uint64_t index) {
    int id = id_at(m, index);
    if (id == NO_BATCH)
        violation("member %llu has not got durable batch %llu", AT_MEMBER(m), (ull)index);
    durable_up_to(m->id, id, engine_answer(m->e)->term);
    if (durable_last() > judge.durable) {
        judge.durable = durable_last();
        judge.progress_ms = sim.now_ms;
    }
}

static const struct member *last_leader(void) {
    const struct member *found = NULL;
    for (uint64_t i = 1; i <= sim.count; i++) {
        const struct member *m = &sim.members[i];
        if (m->up && m->serves && (found == NULL || m->lead_term > found->lead_term))
            found = m;
    }
    return found;
}

void judge_end(void) {
    struct engine_member members[ENGINE_MEMBERS_MAX];
    const struct member *leader = last_leader();
    if (leader == NULL)
        violation("LIVENESS: nobody serves, though all has been well for long");
    if (sim.now_ms - judge.progress_ms > STILL_MS)
        violation("LIVENESS: leader %llu makes nothing durable for %llu ms", AT_MEMBER(leader),
                  (ull)(sim.now_ms - judge.progress_ms));
    size_t count = engine_members(leader->e, members);
    for (size_t i = 0; i < count; i++) {
        const struct member *m = &sim.members[members[i].member];
        uint64_t applied = m == leader ? durable_last() : m->up && copy_of(m) != NULL ? copy_of(m)->applied.index : 0;
        if (applied + NEAR < durable_last())
            violation("LIVENESS: member %llu has applied %llu of %llu", AT_MEMBER(m), (ull)applied,
                      (ull)durable_last());
    }
}
