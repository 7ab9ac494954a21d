/*
 * Identity (R10): a hello before any other frame of a connection, judged by the functions that a member uses; and older copies of a
 * directory that come back. An older copy that no peer had counted is accepted: then nothing protects the group, and what
 * happens later is not counted. A refused one is replaced by the true copy.
 */
#include <string.h>

#include "tests/sim/consensus.h"

struct truth {
    struct disk disk;
    struct vote vote;
    struct sql sql;
    struct sequence log;
    struct sequence before;
    uint64_t told;
};

static struct older {
    struct disk disk;
    struct vote vote;
    struct sql sql;
    bool exists;
    struct truth truth; /* while the older copy is in its place */
} older[MEMBERS_MAX + 1];

void identity_reset(void) {
    for (size_t i = 0; i <= MEMBERS_MAX; i++)
        older[i].exists = false;
}

static struct tail tail_at(const struct member *m, uint64_t index) {
    int id = sequence_at(&m->log, index);
    if (id == NO_BATCH) /* below what is kept: the update's end, or nothing */
        return (struct tail){0};
    return (struct tail){batch_of(id)->term, index};
}

/* ---- counts ---- */

/* The old tail stands until the VOTE of a cut or a switch is forced. */
struct tail identity_tail(const struct member *m) {
    bool old = (m->floor_waits > 0 || m->copy.complete);
    return old ? m->old_tail : tail_at(m, m->forced);
}

void identity_keep_tail(struct member *m) {
    if (m->floor_waits == 0 && !m->copy.complete)
        m->old_tail = tail_at(m, m->forced);
}

void identity_after_cut(struct member *m) {
    if (planted(MUTANT_COUNT_KEPT))
        return;
    struct tail left = tail_at(m, sequence_last(&m->log));
    for (size_t i = 1; i <= MEMBERS_MAX; i++)
        identity_lower(&m->counts[i], left);
}

void identity_after_update(struct member *m, struct tail durable) {
    for (size_t i = 1; i <= MEMBERS_MAX; i++)
        identity_lower(&m->counts[i], durable);
}

void identity_count_frame(struct member *m, const struct letter *letter) {
    const struct engine_frame *f = &letter->frame;
    struct identity_count *c = &m->counts[letter->from];
    if (f->type == ENGINE_VOTED && (f->flags & (ENGINE_GRANTED | ENGINE_PRE_VOTE)) == ENGINE_GRANTED)
        identity_voted(c, f->term);
    if (f->type != ENGINE_APPENDED || m->lead_term == 0 || f->term != m->lead_term || f->other != 0)
        return;
    struct tail acknowledged = tail_at(m, f->index);
    if (acknowledged.index > 0)
        identity_acknowledged(c, m->heard[letter->from].rebuild, f->term, acknowledged);
}

/* ---- hello ---- */

void hello_tell(uint64_t from, struct hello *h) {
    const struct member *m = &sim.members[from];
    *h = (struct hello){.told = {.rebuild = m->vote.rebuild, .tail = identity_tail(m), .start_term = m->start_term},
                        .run = m->generation};
}

static bool lacks(const struct sequence *log, const struct sequence *truth, uint64_t index) {
    int id = sequence_at(truth, index);
    return id != NO_BATCH && index >= log->first && sequence_at(log, index) != id;
}

/* Judges by the true disk whether the peer had counted more than the older copy has. */
static bool must_be_refused(const struct member *peer, const struct member *m, const struct hello *h) {
    const struct identity_count *c = &peer->counts[m->id];
    const struct truth *t = &older[m->id].truth;
    if (!m->is_older || c->acknowledged == 0 || c->rebuild != m->vote.rebuild)
        return false;
    bool all = peer->lead_term != 0 && peer->lead_term == c->acknowledged;
    uint64_t index = all || c->tail.index <= peer->durable ? c->tail.index : peer->durable;
    if (h->told.tail.term > c->acknowledged)
        return false;
    return index <= t->told && lacks(&m->log, &t->log, index);
}

bool hello_hears(uint64_t to, uint64_t from, const struct hello *h) {
    struct member *peer = &sim.members[to];
    struct member *m = &sim.members[from];
    struct heard *heard = &peer->heard[from];
    struct identity_told told = h->told;
    struct identity_peer self = {.durable = tail_at(peer, peer->durable), .leads = peer->lead_term};
    told.new_run = heard->run != h->run;
    enum identity_verdict verdict = identity_judge(&peer->counts[from], &told, &self);
    sim.counts[COUNT_HELLOS]++;
    if (planted(MUTANT_NO_HELLO))
        verdict = IDENTITY_ACCEPTED;
    bool is_same_run = m->up && m->generation == h->run;
    if (verdict != IDENTITY_ACCEPTED && is_same_run && !m->is_older)
        violation("R10: healthy member %llu is refused by member %llu: %s (tail %llu of term %llu, counted %llu of "
                  "term %llu)",
                  (unsigned long long)from, (unsigned long long)peer->id, identity_text(verdict),
                  (unsigned long long)told.tail.index, (unsigned long long)told.tail.term,
                  (unsigned long long)peer->counts[from].tail.index,
                  (unsigned long long)peer->counts[from].acknowledged);
    if (verdict == IDENTITY_ACCEPTED && is_same_run && must_be_refused(peer, m, h))
        violation("R10: an older copy of member %llu is accepted by member %llu, which had counted more",
                  (unsigned long long)from, (unsigned long long)peer->id);
    if (verdict == IDENTITY_ACCEPTED) {
        heard->run = h->run;
        heard->rebuild = told.rebuild;
        sim.unprotected = sim.unprotected || (is_same_run && m->is_older);
        return true;
    }
    if (is_same_run && m->is_older) {
        note(m, "is an older copy: member %llu refuses it", (unsigned long long)peer->id);
        sim.counts[COUNT_REFUSED]++;
        event_push(
            (struct event){.at_ms = sim.now_ms, .kind = EVENT_REFUSED, .member = from, .generation = m->generation});
    }
    return false;
}

/* ---- older copies ---- */

void identity_keep_copy(struct member *m) {
    struct older *o = &older[m->id];
    if (m->is_older)
        return;
    disk_copy(&o->disk, &m->disk);
    o->vote = m->vote;
    o->sql = m->sql;
    o->exists = true;
}

/* After a crash, with or without its VOTE. */
void identity_restore(struct member *m) {
    struct older *o = &older[m->id];
    struct truth *t = &o->truth;
    if (!o->exists || m->is_older)
        return;
    bool with_vote = random_chance(0.7) || o->vote.copy != m->vote.copy; /* VOTE names the directory */
    disk_copy(&t->disk, &m->disk);
    t->vote = m->vote;
    t->sql = m->sql;
    sequence_copy(&t->log, &m->log);
    sequence_copy(&t->before, &m->before);
    t->told = m->told;
    disk_copy(&m->disk, &o->disk);
    if (with_vote)
        m->vote = o->vote;
    m->sql = o->sql;
    checkpoint_drop(m);
    m->is_older = true;
    o->exists = false;
    sim.counts[COUNT_RESTORED]++;
    note(m, "gets an older copy of its directory%s", with_vote ? " and of VOTE" : "");
}

/* An older copy that has everything the member acknowledged is equal to the true one. */
void identity_compare(struct member *m, const struct recovered *r) {
    const struct truth *t = &older[m->id].truth;
    if (!m->is_older)
        return;
    bool stale =
        m->vote.term != t->vote.term || m->vote.voted_for != t->vote.voted_for || m->vote.rebuild != t->vote.rebuild;
    for (uint64_t i = t->log.first; i <= t->told && !stale; i++)
        stale = lacks(&r->log, &t->log, i);
    m->is_older = stale;
    sim.counts[COUNT_STALE] += stale;
}

/* The operator brings the true copy. Acknowledgements of the older one, to peers that had not counted, remain. */
void identity_reinstate(struct member *m) {
    struct truth *t = &older[m->id].truth;
    if (sim.unprotected) {
        sim.over = true;
        return;
    }
    disk_copy(&m->disk, &t->disk);
    m->vote = t->vote;
    m->sql = t->sql;
    checkpoint_drop(m);
    sequence_copy(&m->log, &t->log);
    sequence_copy(&m->before, &t->before);
    m->told = t->told;
    m->is_older = false;
}
