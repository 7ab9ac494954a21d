/* Carries out an answer of a member's engine, in the order of engine.h, and receives frames. */
#include "tests/sim/consensus_real.h"

/* The batch as it stands on the sender's disk: it must be the one that its leader handed out. */
int letter_batch(uint64_t from, uint64_t index) {
    const struct member *m = &sim.members[from];
    ls_replica_batch b;
    if (index < m->kept || ls_host_read(m->p->host, index, &b) != LS_OK)
        return NO_BATCH;
    int id = batches_find(b.term, index);
    if (id == NO_BATCH || !batches_same_bytes(id, &b))
        violation("BYTES: member %llu sends a batch %llu of term %llu that no leader handed out", AT_MEMBER(m),
                  (ull)index, (ull)b.term);
    return id;
}

/* Older copies come back in the model only. */
void hello_tell(uint64_t from, struct hello *h) { *h = (struct hello){.run = sim.members[from].generation}; }

bool hello_hears(uint64_t to, uint64_t from, const struct hello *h) {
    (void)to;
    (void)from;
    (void)h;
    return true;
}

static void cut(struct member *m, uint64_t index) {
    const struct replica *r = copy_of(m);
    judge_cut(m, index);
    while (m->pending_count > 0 && batch_of(m->pending[m->pending_count - 1])->b.index >= index)
        m->pending_count--;
    if (r == NULL)
        violation("member %llu is to cut at %llu, and has no copy that follows", AT_MEMBER(m), (ull)index);
    if (m->told_index >= index) {
        int left = id_at(m, index - 1);
        m->told_index = left == NO_BATCH ? 0 : index - 1;
        m->told_term = left == NO_BATCH ? 0 : batch_of(left)->b.term;
    }
    note(m, "cuts at %llu, had up to %llu", (ull)index, (ull)r->end.index);
    if (r->end.index < index)
        return;
    int rc = ls_host_cut(m->p->host, index - 1);
    if (rc != LS_OK)
        core_failed(m, "CUT: a cut is refused", rc);
    sim.counts[COUNT_CUTS]++;
    if (sim.churn)
        faults_soon(m, 0.4, 9);
    faults_soon(m, 0.05, 4);
}

static void take(struct member *m, const struct engine_answer *a, const struct letter *received) {
    if (received == NULL)
        violation("member %llu is to take batches of no frame", AT_MEMBER(m));
    for (uint64_t i = a->take_index; i < a->take_index + a->take_count; i++) {
        uint64_t at = i - received->frame.index - 1;
        if (i <= received->frame.index || at >= received->frame.count)
            violation("member %llu is to take batch %llu from a frame that begins above %llu", AT_MEMBER(m), (ull)i,
                      (ull)received->frame.index);
        int id = received->batches[at];
        if (batch_of(id)->b.index != i || batch_of(id)->before != id_last(m))
            violation("R1: member %llu takes a batch %llu that does not follow its log at %llu", AT_MEMBER(m),
                      (ull)batch_of(id)->b.index, (ull)i);
        m->pending = grow(m->pending, &m->pending_capacity, m->pending_count, sizeof *m->pending);
        m->pending[m->pending_count++] = id;
    }
}

static void vote(struct member *m, const struct engine_answer *a) {
    int rc = ls_host_vote(m->p->host, a->vote.term, a->vote.voted_for);
    if (rc != LS_OK)
        core_failed(m, "a vote is refused", rc);
    disk_tell_later(
        m, (struct telling){TOLD_VOTE, .index = a->vote.number, .term = a->vote.term, .voted_for = a->vote.voted_for});
    faults_soon(m, 0.03, 6);
}

static void durable(struct member *m, uint64_t index) {
    ls_replica_entry entry;
    if (copy_of(m) != NULL && index <= copy_of(m)->applied.index)
        return; /* an update, or a batch itself, has said so */
    judge_durable(m, index);
    int rc = ls_host_entry(m->p->host, index, &entry);
    if (rc != LS_OK)
        core_failed(m, "a durable batch is not kept", rc);
    rc = m->p->store != NULL ? ls_replica_majority_has(m->p->store, entry.end_lsn)
                             : ls_replica_durable(m->p->host->follows, entry.end_lsn);
    if (rc != LS_OK)
        core_failed(m, "what is durable is refused", rc);
    if (m->p->store != NULL)
        client_hears(m);
}

static void act_on(struct member *m, const struct engine_answer *a, const struct letter *received) {
    uint64_t last = a->last_index;
    if ((a->flags & ENGINE_TAKE) != 0)
        last = a->take_index - 1;
    if ((a->flags & ENGINE_CUT) != 0)
        last = a->cut_index > last + 1 ? a->cut_index - 1 : last; /* the cut itself is judged below */
    if ((a->flags & ENGINE_FOLLOW) != 0 && !lead_end(m, last))
        return;
    if ((a->flags & ENGINE_CUT) != 0)
        cut(m, a->cut_index);
    if ((a->flags & ENGINE_TAKE) != 0)
        take(m, a, received);
    for (uint32_t i = 0; i < a->frame_count; i++) {
        judge_frame(m, &a->frames[i], a->term);
        net_send(m->id, &a->frames[i]);
    }
    if ((a->flags & ENGINE_CONFLICT) != 0)
        violation("member %llu: a frame contradicts what is durable", AT_MEMBER(m));
    if ((a->flags & ENGINE_VOTE) != 0)
        vote(m, a);
    if ((a->flags & ENGINE_LEAD) != 0) {
        judge_leads(m, a->term);
        m->lead_term = a->term;
        m->first_index = a->first_index;
        m->lead_at_ms = sim.now_ms + random_below(4);
        m->serves = m->serve_wanted = false;
        note(m, "leads term %llu, its first batch is %llu", (ull)a->term, (ull)a->first_index);
        faults_after_lead(m);
    }
    m->serve_wanted = m->serve_wanted || (a->flags & ENGINE_SERVE) != 0;
    if ((a->flags & ENGINE_DURABLE) != 0)
        durable(m, a->durable_index);
    if ((a->flags & ENGINE_COPY) != 0)
        update_wanted(m, a);
    m->snapshot_wanted = m->snapshot_wanted || (a->flags & ENGINE_SNAPSHOT) != 0;
    if (m->p->store == NULL)
        disk_take(m);
}

/* No call below runs the simulation, so the answer stays valid. */
void member_act(struct member *m, const struct letter *received) { act_on(m, engine_answer(m->e), received); }

void member_receive(struct member *m, const struct letter *letter) {
    struct engine_entry entries[ENGINE_ENTRIES_MAX];
    struct engine_frame frame = letter->frame;
    for (uint32_t i = 0; i < frame.count; i++)
        entries[i] = entry_of(letter->batches[i]);
    frame.entries = frame.count > 0 ? entries : NULL;
    int code = engine_receive(m->e, sim.now_ms, &frame);
    if (code != ENGINE_OK && code != ENGINE_REFUSED)
        violation("member %llu: engine_receive answers %d", AT_MEMBER(m), code);
    member_act(m, letter);
}
