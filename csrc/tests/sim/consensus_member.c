/* A member: its start from what the disk has, the events of its engine, and what it does with each answer. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/consensus.h"

uint64_t log_end(const struct member *m, uint64_t index) {
    int id = sequence_at(&m->log, index);
    if (id != NO_BATCH)
        return batch_end(id);
    if (m->log.count > 0 && index + 1 == m->log.first)
        return batch_of(m->log.ids[0])->prev_end;
    return m->before.count > 0 ? batch_end(m->before.ids[m->before.count - 1]) : 0;
}

/* ---- the start ---- */

/* The largest index that a batch of this log says to be durable. */
static uint64_t known_durable(const struct member *m) {
    uint64_t known_lsn = 0;
    for (size_t i = 0; i < m->log.count; i++) {
        uint64_t said = batch_of(m->log.ids[i])->known_lsn;
        known_lsn = said > known_lsn ? said : known_lsn;
    }
    uint64_t index = m->log.first - 1;
    while (index < sequence_last(&m->log) && batch_end(sequence_at(&m->log, index + 1)) <= known_lsn)
        index++;
    return index;
}

static void replay(struct member *m, uint64_t up_to) {
    bool said = false;
    uint64_t base = said_base(m, up_to, &said);
    table_clear(&m->state);
    if (checkpoint_counts(m) && batch_of(m->checkpoint.batch)->index <= up_to) {
        table_copy(&m->state, &m->checkpoint.table);
        sim.counts[COUNT_FROM_CHECKPOINT]++;
        for (uint64_t i = m->state.applied + 1; i <= up_to; i++)
            table_apply(&m->state, sequence_at(&m->log, i));
        return;
    }
    for (size_t i = 0; i < m->before.count; i++)
        if (!said || batch_end(m->before.ids[i]) > base)
            table_apply(&m->state, m->before.ids[i]);
    for (uint64_t i = m->log.first; i <= up_to && m->log.count > 0; i++)
        if (!said || batch_end(sequence_at(&m->log, i)) > base)
            table_apply(&m->state, sequence_at(&m->log, i));
    m->state.applied = up_to;
}

static int older_members(const struct member *m) {
    int older = NO_BATCH;
    for (size_t i = 0; i < m->log.count; i++) {
        const struct batch *b = batch_of(m->log.ids[i]);
        int members = b->kind == ENGINE_MEMBERS ? m->log.ids[i] : b->relocated;
        if (members != NO_BATCH && batch_of(members)->index < batch_of(m->state.members)->index)
            older = members;
    }
    return older;
}

static void open_engine(struct member *m, uint64_t header_term) {
    static struct engine_entry *entries;
    static size_t capacity;
    struct engine_options options = {.group = GROUP,
                                     .member = m->id,
                                     .election_ms = ELECTION_MS,
                                     .heartbeat_ms = HEARTBEAT_MS,
                                     .transfer_ms = TRANSFER_MS,
                                     .update_ms = UPDATE_MS,
                                     .in_flight_max = 40,
                                     .behind_max = 20,
                                     .seed = (uint32_t)random_below(UINT32_MAX)};
    struct engine_log log = {.vote_term = m->vote.term,
                             .voted_for = m->vote.voted_for,
                             .header_term = header_term,
                             .known_durable = m->durable};
    if (planted(MUTANT_FORGET_VOTE))
        log.voted_for = 0;
    if (planted(MUTANT_TERM_LOST) && m->log.count > 0) {
        log.vote_term = log.header_term = batch_of(m->log.ids[m->log.count - 1])->term;
        log.voted_for = 0;
    }
    if (m->log.count > 0) {
        log.first_kept = m->kept;
        log.count = (uint32_t)(sequence_last(&m->log) + 1 - m->kept);
    }
    for (uint32_t i = 0; i < log.count; i++) {
        entries = grow(entries, &capacity, i, sizeof *entries);
        entries[i] = entry_of(sequence_at(&m->log, m->kept + i));
    }
    log.entries = entries;
    if (m->durable >= 2) {
        int members = m->state.members;
        if (members == NO_BATCH)
            violation("member %llu has no MEMBERS at or above its base", (unsigned long long)m->id);
        if (planted(MUTANT_STALE_CONF) && older_members(m) != NO_BATCH)
            members = older_members(m);
        const struct configuration *c = configuration_of(batch_of(members)->configuration);
        log.known_durable_term = m->durable < m->log.first ? 0 : batch_of(sequence_at(&m->log, m->durable))->term;
        log.members_index = batch_of(members)->index;
        log.members = c->bytes;
        log.members_bytes = c->count;
    }
    int code = engine_open(&options, &log, sim.now_ms, &m->e);
    if (code != ENGINE_OK)
        violation("member %llu: engine_open answers %d", (unsigned long long)m->id, code);
}

static void end_mark(struct member *m, const struct recovered *r) {
    struct disk *d = &m->disk;
    sim.counts[COUNT_ERASED] += r->end >= d->mark_from && r->end < d->mark_to;
    if (planted(MUTANT_MARK_ISLANDS))
        d->mark_from = d->mark_to = 0;
    disk_end_mark(d, r->end);
}

void member_start(struct member *m) {
    struct recovered r;
    if (m->vote.detached)
        removal_finish(m);
    if (m->detached_end != 0)
        violation("DETACHED: member %llu takes part with a log that counts what no majority had",
                  (unsigned long long)m->id);
    const char *alarm = recover(&m->disk, &r);
    if (alarm != NULL)
        violation("%s (member %llu)", alarm, (unsigned long long)m->id);
    if (!judge_start(m, &r)) {
        recovered_free(&r);
        identity_reinstate(m);
        event_push((struct event){.at_ms = sim.now_ms + 1 + random_below(1500), .kind = EVENT_START, .member = m->id});
        return;
    }
    identity_compare(m, &r);
    if (m->log.count > 0 && r.log.count > 0 &&
        (sequence_last(&r.log) > sequence_last(&m->log) ||
         sequence_at(&m->log, sequence_last(&r.log)) != r.log.ids[r.log.count - 1]))
        sim.counts[COUNT_CAME_BACK]++;
    sequence_copy(&m->log, &r.log);
    sequence_copy(&m->before, &r.before);
    if (!planted(MUTANT_NO_REWRITE))
        disk_rewrite_tail(&m->disk, &r);
    end_mark(m, &r);
    net_reset_connections(m->id); /* letters sent while the member was down are lost */
    m->up = true;
    m->generation++;
    m->forced = m->told = sequence_last(&m->log);
    m->durable = planted(MUTANT_APPLY_RESTART) ? sequence_last(&m->log) : known_durable(m);
    if (checkpoint_counts(m) && batch_of(m->checkpoint.batch)->index > m->durable)
        m->durable = batch_of(m->checkpoint.batch)->index;
    if (m->log.count == 0 || (m->durable < 2 && m->log.first == 1))
        m->durable = 0;
    m->snapshot = m->durable;
    m->kept = m->durable + 1 > m->log.first + m->window ? m->durable + 1 - m->window : m->log.first;
    m->kept = m->durable >= 2 && m->kept < 2 ? 2 : m->kept;
    if (m->durable >= 2 && m->durable < m->log.first)
        violation("member %llu: its log from %llu on does not reach down to what is durable", (unsigned long long)m->id,
                  (unsigned long long)m->log.first);
    replay(m, m->durable);
    judge_durable_up_to(m, m->durable);
    judge_state(m);
    m->lead_term = 0;
    m->serves = m->first_given = m->snapshot_wanted = false;
    m->busy_until_ms = m->frozen_until_ms = m->hold_until_ms = 0;
    m->unforced_since_ms = 0;
    m->copy.wanted = m->copy.complete = false;
    m->backlog = 0;
    m->vote_told = m->vote;
    m->start_term = m->vote.term;
    memset(m->counts, 0, sizeof m->counts);
    memset(m->heard, 0, sizeof m->heard);
    note(m, "starts: VOTE has term %llu and %llu, log %llu to %llu, durable %llu", (unsigned long long)m->vote.term,
         (unsigned long long)m->vote.voted_for, (unsigned long long)m->log.first,
         (unsigned long long)sequence_last(&m->log), (unsigned long long)m->durable);
    open_engine(m, r.highest_term);
    recovered_free(&r);
    member_act(m, NULL);
}

void member_stop(struct member *m) {
    engine_close(m->e);
    m->e = NULL;
    m->up = false;
    m->generation++;
    m->frozen_until_ms = 0;
    m->copy.wanted = m->copy.complete = false;
    net_reset_connections(m->id);
}

/* ---- what is durable ---- */

void member_apply(struct member *m) {
    uint64_t up_to = m->durable;
    if (planted(MUTANT_APPLY_UNDUR))
        up_to = m->forced > up_to ? m->forced : up_to;
    if (sim.now_ms < m->busy_until_ms || m->copy.complete)
        return;
    for (uint64_t i = m->state.applied + 1; i <= up_to; i++) {
        int id = sequence_at(&m->log, i);
        if (id == NO_BATCH)
            violation("member %llu has not got durable batch %llu", (unsigned long long)m->id, (unsigned long long)i);
        judge_durable(m, i, id);
        table_apply(&m->state, id);
        judge_state(m);
    }
}

/* ---- an answer ---- */

static void cut(struct member *m, uint64_t index) {
    note(m, "cuts at %llu, had up to %llu", (unsigned long long)index, (unsigned long long)sequence_last(&m->log));
    if (index <= m->durable)
        violation("member %llu is to cut at %llu, and %llu is durable", (unsigned long long)m->id,
                  (unsigned long long)index, (unsigned long long)m->durable);
    judge_cut(m, index);
    identity_keep_tail(m);
    io_cut(m, index);
    sequence_cut(&m->log, index);
    identity_after_cut(m);
    sim.counts[COUNT_CUTS]++;
    faults_after_cut(m);
}

static void take(struct member *m, const struct engine_answer *a, const struct letter *received) {
    if (received == NULL)
        violation("member %llu is to take batches of no frame", (unsigned long long)m->id);
    for (uint64_t i = a->take_index; i < a->take_index + a->take_count; i++) {
        uint64_t at = i - received->frame.index - 1;
        if (i <= received->frame.index || at >= received->frame.count || i != sequence_last(&m->log) + 1)
            violation("member %llu is to take batch %llu after %llu, from a frame that begins above %llu",
                      (unsigned long long)m->id, (unsigned long long)i, (unsigned long long)sequence_last(&m->log),
                      (unsigned long long)received->frame.index);
        int id = received->batches[at];
        const struct batch *b = batch_of(id);
        if (b->index != i || b->prev_end != log_end(m, i - 1))
            violation("R1: member %llu takes a batch %llu that does not follow its log at %llu",
                      (unsigned long long)m->id, (unsigned long long)b->index, (unsigned long long)i);
        sequence_put(&m->log, id);
        io_write(m, id);
    }
}

static void note_vote(struct member *m, const struct engine_answer *a) {
    struct vote vote = m->vote_told;
    if (a->vote.term < vote.term)
        violation("member %llu: VOTE goes back from term %llu to %llu", (unsigned long long)m->id,
                  (unsigned long long)vote.term, (unsigned long long)a->vote.term);
    vote.term = a->vote.term;
    vote.voted_for = a->vote.voted_for;
    io_vote(m, (struct vote_write){.vote = vote, .number = a->vote.number});
    faults_after_vote(m);
}

static void note_durable(struct member *m, const struct engine_answer *a) {
    uint64_t before = m->durable;
    if (a->durable_index <= before)
        violation("member %llu: durable goes from %llu to %llu", (unsigned long long)m->id, (unsigned long long)before,
                  (unsigned long long)a->durable_index);
    if (a->durable_index > m->forced && !planted(MUTANT_ACK_EARLY))
        violation("member %llu: %llu is durable, its disk has %llu", (unsigned long long)m->id,
                  (unsigned long long)a->durable_index, (unsigned long long)m->forced);
    m->durable = a->durable_index;
    judge_durable_up_to(m, m->durable);
    member_apply(m);
}

/* Planted faults that act at once and do not wait for the event. */
static void act_early(struct member *m) {
    if (planted(MUTANT_SEND_EARLY) && m->vote_count > 0) {
        uint64_t number = m->votes[m->vote_count - 1].number;
        if (number > 0 && engine_vote_forced(m->e, sim.now_ms, number) == ENGINE_OK &&
            (engine_answer(m->e)->flags != 0 || engine_answer(m->e)->frame_count > 0))
            member_act(m, NULL);
    }
    uint64_t last = sequence_last(&m->log);
    if (planted(MUTANT_ACK_EARLY) && m->log.count > 0 && m->told < last && !m->copy.complete) {
        m->told = last;
        m->unforced_since_ms = 0;
        (void)engine_forced(m->e, sim.now_ms, last, batch_of(sequence_at(&m->log, last))->term);
        member_act(m, NULL);
    }
    if (planted(MUTANT_TELL_FORCED) && m->lead_term != 0 && m->forced > judge_largest())
        judge_durable_up_to(m, m->forced);
}

void member_act(struct member *m, const struct letter *received) {
    const struct engine_answer *a = engine_answer(m->e);
    uint32_t flags = a->flags;
    uint64_t term = a->term;
    if ((flags & ENGINE_FOLLOW) != 0)
        lead_end(m);
    if ((flags & ENGINE_CUT) != 0)
        cut(m, a->cut_index);
    if ((flags & ENGINE_TAKE) != 0)
        take(m, a, received);
    for (uint32_t i = 0; i < a->frame_count; i++) {
        judge_frame(m, &a->frames[i], term);
        if (a->frames[i].type == ENGINE_UPDATE)
            lead_offers(m, &a->frames[i]);
        net_send(m->id, &a->frames[i]);
    }
    if (m->log.count > 0 && !m->copy.complete && (flags & ENGINE_SWITCH) == 0 &&
        a->last_index != sequence_last(&m->log))
        violation("member %llu: the engine's log ends at %llu, the disk's at %llu", (unsigned long long)m->id,
                  (unsigned long long)a->last_index, (unsigned long long)sequence_last(&m->log));
    if ((flags & ENGINE_CONFLICT) != 0)
        violation("member %llu: a frame contradicts what is durable", (unsigned long long)m->id);
    if ((flags & ENGINE_VOTE) != 0)
        note_vote(m, a);
    if ((flags & ENGINE_LEAD) != 0)
        lead_begin(m, a);
    if ((flags & ENGINE_SERVE) != 0) {
        m->serves = true;
        note(m, "serves term %llu", (unsigned long long)term);
    }
    if ((flags & ENGINE_DURABLE) != 0)
        note_durable(m, a);
    if ((flags & ENGINE_COPY) != 0)
        update_begin(m, a);
    if ((flags & ENGINE_SNAPSHOT) != 0)
        m->snapshot_wanted = true;
    io_begin(m);
    act_early(m);
}

int letter_batch(uint64_t from, uint64_t index) {
    const struct member *m = &sim.members[from];
    return index < m->kept ? NO_BATCH : sequence_at(&m->log, index);
}

void member_receive(struct member *m, const struct letter *letter) {
    struct engine_entry entries[ENGINE_ENTRIES_MAX];
    struct engine_frame frame = letter->frame;
    identity_count_frame(m, letter);
    if (frame.type == ENGINE_APPENDED)
        lead_hears(m, letter->from);
    for (uint32_t i = 0; i < frame.count; i++)
        entries[i] = entry_of(letter->batches[i]);
    frame.entries = frame.count > 0 ? entries : NULL;
    int code = engine_receive(m->e, sim.now_ms, &frame);
    if (code != ENGINE_OK && code != ENGINE_REFUSED)
        violation("member %llu: engine_receive answers %d", (unsigned long long)m->id, code);
    member_act(m, letter);
}

void member_time(struct member *m) {
    if (engine_time(m->e, sim.now_ms) != ENGINE_OK)
        violation("member %llu: engine_time fails", (unsigned long long)m->id);
    member_act(m, NULL);
}
