/*
 * The places that consumers acquire and give back; offer.c has what always holds.
 */
#ifndef LOGSTORE_TABLE_OFFER_H
#define LOGSTORE_TABLE_OFFER_H

#include "table/remembered.h"

bool offer_find(struct queue *q, uint64_t durable_lsn, struct place *p); /* the first that is free; false: none */
bool offer_prepare(const struct place *p); /* memory to acquire it and to give it back; false: no memory */
void offer_use_counts(struct queue_chunk *c, struct hand_out *zeros); /* for a chunk that has none: CHUNK_PLACES */
/* Both at this time; they return the place's count, this time included. */
uint32_t offer_acquire(struct queue *q, const struct place *p, const struct message *m, uint32_t tenths);
/*
 * The same for places that came back in chunks with times, a chunk at once: they lie scattered, so each step fetches into the
 * cache what the next one reads, and the caller takes several chunks before it reads the messages of the first.
 */
struct timed_chunk {
    struct queue_chunk *chunk;
    uint32_t places; /* to be acquired; the chunk has them */
};
/* The next chunk that is offered, and n of its places at most. False: no chunk with times is next, or there is no memory. */
bool offer_take_chunk(struct queue *q, size_t n, struct timed_chunk *taken);
void offer_fetch_chunk(const struct timed_chunk *taken); /* its places */
/* Acquires the places, of which it gives the slots; the caller counts them (queue_tally_all). Fetches their messages. */
void offer_acquire_chunk(const struct table *t, const struct timed_chunk *taken, uint32_t tenths, uint8_t *slots);
bool offer_next(struct cursor *c, uint64_t durable_lsn, struct place *p); /* as offer_find, from the cursor on */
uint32_t offer_take(const struct place *p, const struct message *m, uint32_t tenths); /* for any place that is free */
uint32_t offer_take_expired(const struct place *p, const struct message *m, uint32_t tenths); /* for an expired one */
bool offer_is_acquired(const struct place *p, uint32_t count); /* and this was its acquisition number `count` */
/* To its old position; unseen: this acquisition does not count. */
void offer_give_back(struct place *p, const struct message *m, bool unseen);
/* For queues.c and times.c: it was unlocked, or its time has come. */
void offer_came_back(const struct place *p);
/* The same for places of a chunk with times, by their bits: those before `fresh`, which are free now. Takers are not told. */
void offer_came_back_all(struct queue_chunk *c, const uint64_t *bits);
/* The chunk gets memory for times: marks the places that came back before. */
void offer_mark_back(struct queue_chunk *c);
void offer_none_back(struct queue_chunk *c); /* the last of its returned places went */

/* The next place that is offered came back, in a chunk with times. */
static inline bool offer_is_timed(const struct queue *q) { return q->returned > 0 && chunk_has_times(q->back.all[0]); }

/* A free place that came back: as long as there is one, it is acquired before new places. */
static inline bool entry_came_back(const struct entry *e) {
    return (e->state & (ENTRY_DEAD | ENTRY_LOCKED | ENTRY_ACQUIRED | ENTRY_HIDDEN | ENTRY_EXPIRED | ENTRY_PASSED)) ==
           ENTRY_PASSED;
}

static inline bool entry_is_free(const struct entry *e) {
    return (e->state & (ENTRY_DEAD | ENTRY_LOCKED | ENTRY_ACQUIRED | ENTRY_HIDDEN | ENTRY_EXPIRED)) == 0;
}

/* Expired, and nobody holds it. */
static inline bool entry_is_expired(const struct entry *e) {
    return (e->state & (ENTRY_DEAD | ENTRY_LOCKED | ENTRY_ACQUIRED | ENTRY_EXPIRED)) == ENTRY_EXPIRED;
}

/* Counted in chunk.ahead. */
static inline bool entry_is_ahead(const struct entry *e) {
    return (e->state & (ENTRY_DEAD | ENTRY_PASSED)) == 0 &&
           (e->state & (ENTRY_ACQUIRED | ENTRY_HIDDEN | ENTRY_EXPIRED)) != 0;
}

void times_expired_went(struct queue_chunk *c); /* table/times.h */

/* Call it before a place is acquired, locked or ended. */
static inline void offer_went(const struct place *p) {
    if (entry_came_back(place_entry(p))) {
        struct queue_chunk *c = p->at.chunk;
        c->queue->returned--;
        if (--c->returned == 0) {
            offer_none_back(c);
        }
    } else if (entry_is_expired(place_entry(p))) {
        times_expired_went(p->at.chunk);
    }
}

#endif
