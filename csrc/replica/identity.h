/*
 * Identity between members: no member starts with less than it had acknowledged. A peer records what each member said.
 * On each connection it compares the member's state with that record, before it takes any other frame.
 *
 * Everything here is a pure function: no disk, no clock. The member's own check, its floor, is in vote.h.
 */
#ifndef LOGSTORE_IDENTITY_H
#define LOGSTORE_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

/* The last batch of a log, or of a part of a log; index 0: there is none. */
struct tail {
    uint64_t term;
    uint64_t index;
};

/* By term, then by index. Within one log that is the order of its batches. */
static inline bool tail_is_before(struct tail a, struct tail b) {
    return a.term != b.term ? a.term < b.term : a.index < b.index;
}

/* A peer's record of one member, in the peer's memory. All zero: the member has acknowledged nothing yet. */
struct identity_count {
    uint64_t rebuild;      /* the member's number when it acknowledged */
    uint64_t acknowledged; /* the term in which it acknowledged to this peer, which led then; 0: never */
    struct tail tail;      /* the last batch that it acknowledged in that term, as it stands in the peer's own log */
    uint64_t voted;        /* the largest term in which it voted for this peer */
};

/* A member sends this first on each connection, with the values on its disk. */
struct identity_told {
    uint64_t rebuild;
    struct tail tail;
    uint64_t start_term; /* VOTE's term when its process started */
    bool new_run;        /* its process is another one than the process that spoke to this peer before */
};

/* The peer itself. */
struct identity_peer {
    struct tail durable; /* the last batch that it knows to be durable */
    uint64_t leads;      /* the term that it leads; 0: it follows */
};

enum identity_verdict {
    IDENTITY_ACCEPTED = 0,
    IDENTITY_EARLIER_REBUILD, /* the copy was removed, and an older copy is back */
    IDENTITY_SHORT_TAIL,      /* the copy lacks batches that it acknowledged */
    IDENTITY_EARLIER_VOTE,    /* VOTE is older than what the member said */
};

enum identity_verdict identity_judge(const struct identity_count *c, const struct identity_told *told,
                                     const struct identity_peer *peer);
/* For the member's log and its operator; never NULL. */
const char *identity_text(enum identity_verdict verdict);

/* The member has all batches up to this one of the peer's log; the peer leads the term. */
void identity_acknowledged(struct identity_count *c, uint64_t rebuild, uint64_t term, struct tail batch);
void identity_voted(struct identity_count *c, uint64_t term);
/* The peer's own log was cut and now ends at `left`; or an update replaced it, and up to `left` the peer had known it
   to be durable. */
void identity_lower(struct identity_count *c, struct tail left);

#endif
