/*
 * A member's writes: one force at a time for its log (R3) and one for VOTE. A new term's header is forced before that term's
 * first batch; later headers share the batch's force. Before a batch is written all files above it are removed; a crash keeps any
 * part of what was under way.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/consensus.h"

enum { GROUP_MIN = 3, GROUP_MAX = 24 };

uint64_t force_ms(void) {
    static const uint64_t delays_ms[] = {1, 1, 2, 3, 20};
    uint64_t ms = delays_ms[random_below(random_chance(sim.calm ? 0.02 : 0.15) ? 5 : 4)];
    return !sim.calm && random_chance(0.002) ? ms + random_below(600) : ms;
}

bool io_is_idle(const struct member *m) { return m->op_count == 0 && m->pending_count == 0; }

/* ---- the log ---- */

static void add_op(struct member *m, struct op op) { m->ops[m->op_count++] = op; }

static bool has_term(const struct disk *d, uint64_t term) {
    for (size_t i = d->count; i > 0; i--)
        if (d->segments[i - 1].has_header && d->segments[i - 1].term == term)
            return true;
    return false;
}

static struct op header_for(const struct member *m, int id) {
    const struct batch *b = batch_of(id);
    uint64_t first = segment_of(b->lsn);
    const struct segment *s = disk_find(&m->disk, first);
    bool has_batches = s != NULL && s->count > 0 && batch_of(s->records[0].id)->lsn < b->lsn;
    uint64_t prev_end = has_batches ? batch_of(s->records[0].id)->prev_end : b->prev_end;
    return (struct op){.kind = OP_HEADER, .batch = NO_BATCH, .first = first, .term = b->term, .prev_end = prev_end};
}

/* How many batches a copy that lags writes with one force. A segment's first batch comes with its header, alone: below it the log
   ends in another segment, and a mark over it would say more than is forced. */
static size_t count_group(const struct member *m) {
    size_t count = 1;
    bool is_first = batch_of(m->pending[0])->lsn % SEGMENT_BYTES == HEADER_BYTES;
    if (m->lead_term != 0 || is_first || sim.without_mark || planted(MUTANT_TWO))
        return 1;
    while (count < m->pending_count && count < GROUP_MAX &&
           segment_of(batch_of(m->pending[count])->lsn) == segment_of(batch_of(m->pending[0])->lsn) &&
           batch_of(m->pending[count])->prev_end == batch_end(m->pending[count - 1]))
        count++;
    return count < GROUP_MIN ? 1 : count;
}

/* True: the mark over them is forced first. */
static bool plan_mark(struct member *m, size_t group) {
    uint64_t from = batch_of(m->pending[0])->lsn;
    uint64_t to = batch_end(m->pending[group - 1]);
    if (m->disk.mark_from == from && m->disk.mark_to == to)
        return false;
    add_op(m, (struct op){.kind = OP_MARK, .batch = NO_BATCH, .first = from, .prev_end = to});
    return !planted(MUTANT_MARK_LATE);
}

static void plan(struct member *m) {
    int id = m->pending[0];
    const struct batch *b = batch_of(id);
    uint64_t first = segment_of(b->lsn);
    const struct disk *d = &m->disk;
    const struct segment *s = disk_find(d, first);
    if (d->count > 0 && d->segments[d->count - 1].first > first && !planted(MUTANT_KEEP_ABOVE)) {
        add_op(m, (struct op){.kind = OP_REMOVE, .batch = NO_BATCH, .first = d->segments[d->count - 1].first});
        return;
    }
    bool late = planted(MUTANT_CUT_BEFORE_HDR) && m->lead_term == 0 && b->kind == ENGINE_FIRST;
    if ((s == NULL || !s->has_header) && !late) {
        add_op(m, header_for(m, id));
        if (!has_term(d, b->term))
            return;
    }
    size_t group = d->segments[d->count - 1].first == first ? count_group(m) : 1;
    if (group > 1 && plan_mark(m, group))
        return;
    size_t most = planted(MUTANT_TWO) && m->lead_term == 0 ? 4 : group;
    for (size_t i = 0; i < most && i < m->pending_count; i++)
        if (segment_of(batch_of(m->pending[i])->lsn) == first)
            add_op(m, (struct op){.kind = OP_BATCH, .batch = m->pending[i]});
}

/* The extra time of a force of the third voter, in the scenario slow-voter. */
static uint64_t slow_ms(const struct member *m) {
    return sim.scenario == SCENARIO_SLOW_VOTER && m->id == 3 && !sim.healing ? 100 + random_below(100) : 0;
}

static uint64_t forced_at(const struct member *m) {
    uint64_t at = sim.now_ms + force_ms() + slow_ms(m);
    return at < m->hangs_until_ms ? m->hangs_until_ms : at;
}

void io_begin(struct member *m) {
    if (m->op_count > 0 || m->pending_count == 0 || m->floor_waits > 0 || sim.now_ms < m->full_until_ms)
        return;
    plan(m);
    event_push(
        (struct event){.at_ms = forced_at(m), .kind = EVENT_FORCED, .member = m->id, .generation = m->generation});
}

void io_retry(struct member *m) {
    if (m->full_until_ms != 0 && sim.now_ms >= m->full_until_ms) {
        m->full_until_ms = 0;
        io_begin(m);
    }
}

void io_write(struct member *m, int id) {
    m->pending = grow(m->pending, &m->pending_capacity, m->pending_count, sizeof *m->pending);
    m->pending[m->pending_count++] = id;
}

/* The files that the header cuts off become spares. */
static void make_spares(struct member *m, const struct op *op) {
    for (size_t i = m->disk.count; i > 0; i--)
        if (m->disk.segments[i - 1].first < op->first && m->disk.segments[i - 1].has_header &&
            m->disk.segments[i - 1].term == op->term)
            return; /* not the term's first */
    disk_remove_between(&m->disk, op->prev_end, op->first);
}

static void carry_out(struct member *m, const struct op *op) {
    switch (op->kind) {
    case OP_HEADER:
        disk_header(&m->disk, op->first, op->term, op->prev_end);
        break;
    case OP_BATCH:
        if (!disk_put(&m->disk, op->batch, false))
            violation("R1: member %llu finds other bytes at LSN %llx", (unsigned long long)m->id,
                      (unsigned long long)batch_of(op->batch)->lsn);
        break;
    case OP_REMOVE:
        disk_remove(&m->disk, op->first);
        sim.counts[COUNT_REMOVED_ABOVE]++;
        break;
    case OP_MARK:
        m->disk.mark_from = op->first;
        m->disk.mark_to = op->prev_end;
        sim.counts[COUNT_MARKS]++;
        break;
    }
}

static void note_forced(struct member *m, int id) {
    uint64_t index = batch_of(id)->index;
    if (m->pending_count > 0 && m->pending[0] == id) {
        m->pending_count--;
        memmove(m->pending, m->pending + 1, m->pending_count * sizeof *m->pending);
    }
    if (sequence_at(&m->log, index) == id && m->forced + 1 == index)
        m->forced = index;
}

static void tell_forced(struct member *m) {
    if (m->forced <= m->told || m->copy.complete)
        return;
    m->told = m->forced;
    if (m->told == sequence_last(&m->log))
        m->unforced_since_ms = 0;
    int code = engine_forced(m->e, sim.now_ms, m->told, batch_of(sequence_at(&m->log, m->told))->term);
    if (code != ENGINE_OK)
        violation("member %llu: engine_forced answers %d", (unsigned long long)m->id, code);
    member_act(m, NULL);
}

void io_forced(struct member *m) {
    struct op done[OPS_MAX];
    size_t count = m->op_count;
    memcpy(done, m->ops, count * sizeof *done);
    m->op_count = 0;
    for (size_t i = 0; i < count; i++) {
        carry_out(m, &done[i]);
        if (done[i].kind == OP_HEADER)
            make_spares(m, &done[i]);
        if (done[i].kind == OP_BATCH)
            note_forced(m, done[i].batch);
    }
    tell_forced(m);
    io_begin(m);
}

/* ---- VOTE ---- */

static void begin_vote(struct member *m) {
    if (m->votes_under_way > 0 || m->vote_count == 0)
        return;
    m->votes_under_way = m->vote_count;
    event_push((struct event){.at_ms = forced_at(m) + (sim.slow_vote ? random_below(60) : 0),
                              .kind = EVENT_VOTE_FORCED,
                              .member = m->id,
                              .generation = m->generation});
}

void io_vote(struct member *m, struct vote_write w) {
    m->votes = grow(m->votes, &m->vote_capacity, m->vote_count, sizeof *m->votes);
    m->votes[m->vote_count++] = w;
    m->vote_told = w.vote;
    begin_vote(m);
}

void io_vote_forced(struct member *m) {
    size_t count = m->votes_under_way;
    uint64_t number = 0;
    bool switches = false;
    for (size_t i = 0; i < count; i++) {
        number = m->votes[i].number > number ? m->votes[i].number : number;
        switches = switches || m->votes[i].switches;
    }
    m->vote = m->votes[count - 1].vote;
    m->vote_count -= count;
    memmove(m->votes, m->votes + count, m->vote_count * sizeof *m->votes);
    m->votes_under_way = 0;
    m->floor_waits -= m->floor_waits < count ? m->floor_waits : count;
    if (switches)
        update_switch(m);
    if (number > 0 && !planted(MUTANT_SEND_EARLY)) {
        (void)engine_vote_forced(m->e, sim.now_ms, number);
        member_act(m, NULL);
    }
    if (switches)
        update_switched(m);
    begin_vote(m);
    io_begin(m);
}

void io_floor(struct member *m) {
    int tail = m->copy.complete ? NO_BATCH : sequence_at(&m->log, m->forced);
    if (tail == NO_BATCH || m->vote_told.floor_index == m->forced || m->floor_waits > 0)
        return;
    struct vote vote = m->vote_told;
    vote.floor_index = m->forced;
    vote.floor_term = batch_of(tail)->term;
    io_vote(m, (struct vote_write){.vote = vote});
}

/* A cut waits until the lowered floor is forced. */
static void lower_floor(struct member *m, uint64_t index) {
    if (m->vote_told.floor_index < index)
        return;
    int tail = sequence_at(&m->log, index - 1);
    struct vote vote = m->vote_told;
    vote.floor_index = tail == NO_BATCH ? 0 : index - 1;
    vote.floor_term = tail == NO_BATCH ? 0 : batch_of(tail)->term;
    io_vote(m, (struct vote_write){.vote = vote});
    m->floor_waits = m->vote_count;
}

void io_cut(struct member *m, uint64_t index) {
    size_t kept = 0;
    for (size_t i = 0; i < m->pending_count; i++)
        if (batch_of(m->pending[i])->index < index)
            m->pending[kept++] = m->pending[i];
    m->pending_count = kept;
    m->forced = m->forced < index ? m->forced : index - 1;
    m->told = m->told < index ? m->told : index - 1;
    lower_floor(m, index);
    int last = sequence_at(&m->log, index - 1);
    struct segment *s =
        planted(MUTANT_CUT_ZERO) && last != NO_BATCH ? disk_find(&m->disk, segment_of(batch_of(last)->lsn)) : NULL;
    for (size_t i = 0; s != NULL && i < s->count; i++)
        s->records[i].torn = s->records[i].torn || s->records[i].id == last;
}

/* ---- a crash ---- */

static void mix_files(struct member *m) {
    for (size_t i = 0; i < m->copy.log.count; i++) {
        int id = m->copy.log.ids[i];
        const struct batch *b = batch_of(id);
        if ((segment_of(b->lsn) / SEGMENT_BYTES + m->generation) % 2 == 0)
            continue;
        if (disk_find(&m->disk, segment_of(b->lsn)) == NULL)
            disk_header(&m->disk, segment_of(b->lsn), b->term, b->prev_end);
        (void)disk_put(&m->disk, id, false);
    }
}

static void make_phantom(struct member *m, int id) {
    struct segment *s = disk_find(&m->disk, segment_of(batch_of(id)->lsn));
    for (size_t i = 0; s != NULL && i < s->count; i++)
        s->records[i].phantom = s->records[i].phantom || s->records[i].id == id;
}

/* The power fails, and takes with it what an earlier force did not write. Or a force fails: the process ends, and what it could not
   write stays in the page cache, where the next start finds it. */
void io_crash(struct member *m) {
    bool force_fails = m->op_count > 0 && random_chance(0.2);
    sim.counts[COUNT_FAILED_FORCES] += force_fails;
    if (!force_fails)
        disk_lose_cache(&m->disk);
    for (size_t i = 0; i < m->op_count; i++) {
        const struct op *op = &m->ops[i];
        bool kept = random_chance(0.5);
        if (force_fails && kept && op->kind == OP_BATCH && !disk_has(&m->disk, op->batch)) {
            carry_out(m, op);
            make_phantom(m, op->batch);
        } else if (kept) {
            carry_out(m, op);
        } else if (op->kind == OP_BATCH && random_chance(0.4) && !disk_has(&m->disk, op->batch)) {
            (void)disk_put(&m->disk, op->batch, true);
            sim.counts[COUNT_TORN]++;
        }
    }
    size_t done = random_below(m->votes_under_way + 1);
    for (size_t i = 0; i < m->votes_under_way; i++) {
        if (i < done && m->votes[i].switches)
            update_switch(m);
        if (m->votes[i].switches && planted(MUTANT_PIECEMEAL))
            mix_files(m);
    }
    if (done > 0)
        m->vote = m->votes[done - 1].vote;
    m->op_count = m->pending_count = 0;
    m->vote_count = m->votes_under_way = 0;
    m->floor_waits = 0;
}
