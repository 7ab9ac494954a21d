/*
 * Places that wait for a time: hidden ones, and those that will expire. What always holds, under the log's lock:
 *
 *   - a place is hidden (ENTRY_HIDDEN), expired (ENTRY_EXPIRED) or neither, and goes only from the first to the last to the
 *     second of these, unless it gets another time: a clock that is set back takes nothing back;
 *   - a place that a consumer or a transaction holds keeps its bit, which counts again once it is given back;
 *   - states->next_us of a chunk is not later than the next change of a place of it that nobody holds. It may be earlier: a
 *     look at the chunk then finds nothing and sets it anew;
 *   - the table's heap has the chunks with a next_us, and a queue's heap those with expired places that nobody holds.
 *
 * So the places that are due cost one step each in the heap, and a look at the 126 places of their chunk. Nothing here
 * allocates: chunk_prepare_states has made the heaps' room.
 */
#ifndef LOGSTORE_TABLE_TIMES_H
#define LOGSTORE_TABLE_TIMES_H

#include "table/offer.h"
#include "table/remembered.h"

/* The first time to come, perhaps too early; UINT64_MAX: none. */
static inline uint64_t times_next(const struct table *t) {
    return t->times.heap.count > 0 ? t->times.heap.all[0]->states->next_us : UINT64_MAX;
}

void times_pass(struct table *t, uint64_t now_us); /* it is this time: what is due is offered, or expires */
/* The place's times have been replaced. */
void times_replaced(const struct place *p, const struct message *m);
/* A place of a chunk with states, which nobody holds any more: sets its bits, before it is counted again. */
void times_given_back(const struct place *p);
/* An expired place of the chunk which nobody holds is one more, or one less (times_expired_went, in table.h). */
void times_expired_came(struct queue_chunk *c);
void times_leave(struct queue_chunk *c); /* the chunk is being freed */
/* The next expired place of the queue that is durable, from *p on if its chunk is set; it stays. False: none. */
bool times_find_expired(const struct queue *q, uint64_t durable_lsn, struct place *p);

#endif
