/*
 * Updates by segments, the kept window, and recycling. A copy begins at the file of its own base, ends at the index that
 * the leader named, and counts once VOTE names it.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/consensus.h"

enum { HOLD_MS = 4000, TRIES_MAX = 100, LONG_UPDATE_MS = 1200 };

/* The base named by the newest batch that another one, at or below `index`, says to be durable. */
uint64_t said_base(const struct member *m, uint64_t index, bool *said) {
    *said = false;
    if (m->log.count == 0 || index < m->log.first)
        return 0;
    uint64_t known_lsn = 0;
    for (uint64_t i = index; i >= m->log.first && i + 8 > index; i--) {
        uint64_t lsn = batch_of(sequence_at(&m->log, i))->known_lsn;
        known_lsn = lsn > known_lsn ? lsn : known_lsn; /* it never decreases along a log */
    }
    for (uint64_t i = index; i >= m->log.first && i > 0; i--) {
        int id = sequence_at(&m->log, i);
        if (batch_end(id) <= known_lsn) {
            *said = true;
            return batch_of(id)->base;
        }
    }
    return 0;
}

/* ---- copies ---- */

static bool can_send(const struct member *from, const struct member *to, uint64_t index, uint64_t term) {
    int id = sequence_at(&from->log, index);
    return from->up && from != to && !net_is_cut(from->id, to->id) && !from->copy.complete && from->forced >= index &&
           id != NO_BATCH && batch_of(id)->term == term;
}

static bool read_copy(struct member *m, const struct member *from) {
    struct copy *c = &m->copy;
    bool said = false;
    uint64_t base = said_base(from, c->index, &said);
    uint64_t first = from->log.first;
    if (from->log.first > 1 && (!said || batch_of(from->log.ids[0])->prev_end > base))
        return false; /* the offer comes again, with a later end */
    base = catalog_keeps(from, base);
    c->sql = from->sql;
    while (first < c->index && segment_of(batch_of(sequence_at(&from->log, first))->lsn) + SEGMENT_BYTES <= base)
        first++;
    c->log.count = c->before.count = 0;
    c->log.first = first;
    for (uint64_t i = first; i <= c->index; i++)
        sequence_put(&c->log, sequence_at(&from->log, i));
    for (size_t i = 0; i < from->before.count; i++)
        if (segment_of(batch_of(from->before.ids[i])->lsn) + SEGMENT_BYTES > base)
            sequence_put(&c->before, from->before.ids[i]);
    return true;
}

void update_give_up(struct member *m) {
    m->copy.wanted = false;
    (void)engine_update_failed(m->e);
}

static void look_again(struct member *m, uint64_t in_ms) {
    event_push((struct event){.at_ms = sim.now_ms + in_ms,
                              .kind = EVENT_COPY,
                              .member = m->id,
                              .generation = m->generation,
                              .value = m->copy.number});
}

void update_begin(struct member *m, const struct engine_answer *a) {
    struct copy *c = &m->copy;
    struct member *from = &sim.members[a->update.from];
    c->wanted = true;
    c->number++;
    c->tries = 0;
    c->from = a->update.from;
    c->from_generation = from->generation;
    c->index = a->update.index;
    c->index_term = a->update.index_term;
    c->log.count = 0;
    note(m, "wants a copy up to %llu from member %llu", (unsigned long long)c->index, (unsigned long long)c->from);
    if (can_send(from, m, c->index, c->index_term) && read_copy(m, from))
        from->hold_until_ms = sim.now_ms + HOLD_MS;
    look_again(m, 5 + random_below(100) + (sim.long_updates ? LONG_UPDATE_MS : 0) +
                      (random_chance(0.2) ? random_below(2500) : 0));
}

/* The sender is gone: another one goes on, if it has all that is missing. */
static bool finds_another(struct member *m) {
    struct copy *c = &m->copy;
    for (uint64_t i = 1; i <= sim.count; i++) {
        struct member *other = &sim.members[i];
        if (i == c->from || !can_send(other, m, c->index, c->index_term) || other->log.first > c->log.first ||
            random_chance(0.5))
            continue;
        c->from = i;
        c->from_generation = other->generation;
        return true;
    }
    return false;
}

static int newest_members(const struct copy *c) {
    int newest = NO_BATCH;
    for (size_t i = 0; i < c->log.count; i++) {
        const struct batch *b = batch_of(c->log.ids[i]);
        int members = b->kind == ENGINE_MEMBERS ? c->log.ids[i] : b->relocated;
        if (members != NO_BATCH && (newest == NO_BATCH || batch_of(members)->index >= batch_of(newest)->index))
            newest = members;
    }
    return newest;
}

void update_arrives(struct member *m, uint64_t number) {
    struct copy *c = &m->copy;
    if (!c->wanted || c->complete || c->number != number)
        return;
    const struct member *from = &sim.members[c->from];
    bool sender_gone = !from->up || from->generation != c->from_generation || net_is_cut(c->from, m->id);
    if (c->log.count == 0 || (sender_gone && c->tries == 0 && !finds_another(m)) || c->tries++ == TRIES_MAX) {
        update_give_up(m);
        return;
    }
    if (sender_gone && c->tries == 1) {
        c->tries = 0;
        look_again(m, 1 + random_below(50));
        return;
    }
    int members = newest_members(c);
    if (members == NO_BATCH)
        violation("a copy for member %llu up to %llu has no MEMBERS", (unsigned long long)m->id,
                  (unsigned long long)c->index);
    if (!io_is_idle(m)) {
        look_again(m, 2);
        return;
    }
    const struct configuration *made = configuration_of(batch_of(members)->configuration);
    int code =
        engine_updated(m->e, sim.now_ms, c->index, c->index_term, batch_of(members)->index, made->bytes, made->count);
    identity_keep_tail(m);
    bool switches = (engine_answer(m->e)->flags & ENGINE_SWITCH) != 0;
    if (code == ENGINE_OK && switches) {
        int known = sequence_at(&m->log, m->durable);
        c->durable = (struct tail){known == NO_BATCH ? 0 : batch_of(known)->term, known == NO_BATCH ? 0 : m->durable};
        c->complete = true;
        catalog_import(m, &c->sql);
        member_act(m, NULL);
        struct vote vote = m->vote_told;
        vote.copy++;
        vote.floor_index = c->index;
        vote.floor_term = c->index_term;
        io_vote(m, (struct vote_write){.vote = vote, .switches = true});
        faults_after_switch(m);
        return;
    }
    if (code != ENGINE_REFUSED)
        violation("member %llu: engine_updated answers %d", (unsigned long long)m->id, code);
    member_act(m, NULL);
    if (m->durable >= c->index)
        update_give_up(m);
    else
        look_again(m, 2);
}

void update_switch(struct member *m) {
    struct copy *c = &m->copy;
    disk_free(&m->disk);
    for (int part = 0; part < 2; part++) {
        const struct sequence *s = part == 0 ? &c->before : &c->log;
        for (size_t i = 0; i < s->count; i++) {
            const struct batch *b = batch_of(s->ids[i]);
            if (disk_find(&m->disk, segment_of(b->lsn)) == NULL)
                disk_header(&m->disk, segment_of(b->lsn), b->term, b->prev_end);
            (void)disk_put(&m->disk, s->ids[i], false);
        }
    }
    checkpoint_drop(m);
    sequence_copy(&m->log, &c->log);
    sequence_copy(&m->before, &c->before);
    m->forced = m->told = c->index;
}

void update_switched(struct member *m) {
    struct copy *c = &m->copy;
    struct recovered r;
    const char *alarm = recover(&m->disk, &r);
    if (alarm != NULL || r.log.count != c->log.count)
        violation("%s (a copy for member %llu)", alarm != NULL ? alarm : "FALSE ALARM: a copy is not read whole",
                  (unsigned long long)m->id);
    recovered_free(&r);
    struct tail durable = c->durable;
    m->kept = c->index + 1;
    m->snapshot = c->index;
    table_clear(&m->state);
    for (size_t i = 0; i < m->before.count; i++)
        table_apply(&m->state, m->before.ids[i]);
    for (size_t i = 0; i < m->log.count; i++)
        table_apply(&m->state, m->log.ids[i]);
    c->wanted = c->complete = false;
    judge_state(m);
    identity_after_update(m, durable);
    sim.counts[COUNT_UPDATES]++;
    note(m, "has a copy, %llu to %llu", (unsigned long long)m->log.first, (unsigned long long)c->index);
    int code = engine_switched(m->e, sim.now_ms);
    if (code != ENGINE_OK)
        violation("member %llu: engine_switched answers %d", (unsigned long long)m->id, code);
    member_act(m, NULL);
}

/* ---- the kept window ---- */

void keep_snapshot(struct member *m) {
    uint64_t index = m->state.applied < m->durable ? m->state.applied : m->durable;
    uint64_t kept = 0;
    if (m->copy.complete || index <= m->snapshot || index < 2 || m->log.count == 0)
        return;
    uint64_t first = index + 1 > m->window + 1 ? index + 1 - m->window : 1;
    first = first < m->kept ? m->kept : first;
    int code = engine_snapshot(m->e, sim.now_ms, index, first, &kept);
    if (code == ENGINE_OK) {
        m->snapshot = index;
        m->kept = kept;
        m->snapshot_wanted = false;
    }
    member_act(m, NULL);
}

/* Removes the files below the newest base that a batch names and a later, durable batch says to be durable; none above the
   snapshot, and none with an entry that the engine keeps. A new leader waits for its first batch. */
void recycle(struct member *m) {
    if (m->copy.complete || m->op_count > 0 || m->log.count == 0 || sim.now_ms < m->hold_until_ms ||
        (m->lead_term != 0 && !m->serves))
        return;
    bool said = false;
    uint64_t up_to = m->snapshot < m->state.applied ? m->snapshot : m->state.applied;
    uint64_t base = said_base(m, up_to, &said);
    base = catalog_keeps(m, base);
    if (planted(MUTANT_RECYC_UNDUR) && m->forced >= m->log.first) {
        base = batch_of(sequence_at(&m->log, m->forced))->base;
        said = true;
    }
    while (said && m->disk.count > 1) {
        const struct segment *s = &m->disk.segments[0];
        if (s->first + SEGMENT_BYTES > base)
            return;
        uint64_t highest = 0;
        bool has_before = false;
        for (size_t i = 0; i < s->count; i++) {
            uint64_t index = batch_of(s->records[i].id)->index;
            has_before = has_before || index == 0;
            if (sequence_at(&m->log, index) == s->records[i].id && index > highest)
                highest = index;
        }
        if (highest >= m->kept || highest > up_to)
            return;
        disk_remove(&m->disk, s->first);
        sim.counts[COUNT_RECYCLED]++;
        if (has_before)
            m->before.count = 0; /* one file has them all */
        if (highest > 0)
            sequence_drop(&m->log, highest);
    }
}
