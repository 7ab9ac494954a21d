/*
 * Places that wait for a time: hidden ones, and those that will expire. What always holds, under the log's lock:
 *
 *   - a place is hidden (ENTRY_HIDDEN), expired (ENTRY_EXPIRED) or neither, and goes only from the first to the last to the
 *     second of these, unless it gets another time: a clock that is set back takes nothing back;
 *   - a place that a consumer or a transaction holds keeps its bit, which counts again once it is given back;
 *   - a place that nobody holds and that a time will change has its bit in `opening` or `ending` of its chunk, the first time
 *     of its group of 8 is that time or an earlier one, and the chunk stands in the table's heap at that time or an earlier
 *     one. A bit may be left of a place that is held now, and a group's time of one that ended: a look when that time has
 *     come takes it away. A chunk without a time to come stands in the heap at UINT64_MAX;
 *   - `content_bytes` of a place with a time is that of its message, whose content does not change, or 0: look there;
 *   - a place that came back in a chunk with times has its bit in `back` of the chunk. A bit may be left of one that is held
 *     now, or ended;
 *   - a queue's heap has the chunks with expired places that nobody holds.
 *
 * So a place that is due costs a look at its group, and a part of one step in the heap; its message is not read. No change
 * allocates: chunk_prepare_states makes the heaps' room.
 */
#ifndef LOGSTORE_TABLE_TIMES_H
#define LOGSTORE_TABLE_TIMES_H

#include "table/offer.h"
#include "table/remembered.h"

/* The first time to come, perhaps too early; UINT64_MAX: none. */
static inline uint64_t times_next(const struct table *t) {
    return t->times.heap.count > 0 ? t->times.heap.times[0] : UINT64_MAX;
}

bool times_prepare(struct times *times);           /* memory for one chunk more; false: no memory */
void times_pass(struct table *t, uint64_t now_us); /* it is this time: what is due is offered, or expires */
/* The place's times have been replaced. */
void times_replaced(const struct place *p, const struct message *m);
/* The same for a place that was just appended: nobody knows of it yet. */
void times_begin(const struct place *p, const struct message *m);
/* A place of a chunk with times, which is given back: sets its bit, before it is counted again. */
void times_given_back(const struct place *p);
/* An expired place of the chunk which nobody holds is one more, or one less (times_expired_went, in table.h). */
void times_expired_came(struct queue_chunk *c);
void times_leave(struct queue_chunk *c); /* the chunk is being freed */
/* The next expired place of the queue that is durable, from *p on if its chunk is set; it stays. False: none. */
bool times_find_expired(const struct queue *q, uint64_t durable_lsn, struct place *p);

#endif
