/* See identity.h. docs/decisions/vote-and-identity.md has the proof of the exception for later terms. */
#include "replica/identity.h"

/*
 * The smaller of the acknowledged batch and the durable one: a batch that was acknowledged and never became durable may
 * have been cut by another leader. While the peer leads that term, its majorities include the acknowledgement, so the
 * whole acknowledged log must still be there.
 */
static struct tail needed(const struct identity_count *c, const struct identity_peer *peer) {
    bool all = peer->leads != 0 && peer->leads == c->acknowledged;
    return all || c->tail.index <= peer->durable.index ? c->tail : peer->durable;
}

/*
 * Once a member's disk has a batch of a term, the member acknowledges nothing in an earlier term. So a tail of a later
 * term than the acknowledgement was written after it. It is no older copy, even if its index is lower.
 */
static bool reaches(const struct identity_count *c, struct tail told, struct tail need) {
    return told.term > c->acknowledged || (told.index >= need.index && told.term >= need.term);
}

enum identity_verdict identity_judge(const struct identity_count *c, const struct identity_told *told,
                                     const struct identity_peer *peer) {
    if (c->acknowledged != 0 && told->rebuild < c->rebuild) {
        return IDENTITY_EARLIER_REBUILD;
    }
    if (c->acknowledged != 0 && told->rebuild == c->rebuild && !reaches(c, told->tail, needed(c, peer))) {
        return IDENTITY_SHORT_TAIL;
    }
    uint64_t said = c->acknowledged > c->voted ? c->acknowledged : c->voted;
    return told->new_run && told->start_term < said ? IDENTITY_EARLIER_VOTE : IDENTITY_ACCEPTED;
}

const char *identity_text(enum identity_verdict verdict) {
    switch (verdict) {
    case IDENTITY_ACCEPTED:
        return "accepted";
    case IDENTITY_EARLIER_REBUILD:
        return "this copy is from before its last rebuild; rebuild it with logstore cluster rebuild";
    case IDENTITY_SHORT_TAIL:
        return "this copy lacks batches that it had acknowledged; rebuild it with logstore cluster rebuild";
    case IDENTITY_EARLIER_VOTE:
        return "VOTE is older than what this member had said; rebuild its copy with logstore cluster rebuild";
    }
    return "unknown";
}

void identity_acknowledged(struct identity_count *c, uint64_t rebuild, uint64_t term, struct tail batch) {
    if (c->acknowledged != term || c->rebuild != rebuild) {
        c->acknowledged = term;
        c->rebuild = rebuild;
        c->tail = batch;
    } else if (batch.index > c->tail.index) {
        c->tail = batch;
    }
}

void identity_voted(struct identity_count *c, uint64_t term) { c->voted = term > c->voted ? term : c->voted; }

void identity_lower(struct identity_count *c, struct tail left) {
    if (c->tail.index > left.index) {
        c->tail = left;
    }
}
