/*
 * Memory for libraft. If an allocation fails, libraft's code runs into an assertion, or forgets which blocks it has
 * freed. So before each call of libraft the engine takes a reserve for all that one event may allocate; if the C
 * library refuses a block, the block comes from the reserve. A reserve that was used lives until its last block is
 * freed, and the next event takes a new one.
 *
 * Each event has a reserve of its own and gives it back at its end, so there are as many reserves as events that run at
 * the same time. The process keeps a few between events, until its last engine is closed, in whichever thread.
 */
#ifndef LOGSTORE_CONSENSUS_RESERVE_H
#define LOGSTORE_CONSENSUS_RESERVE_H

#include <stdbool.h>
#include <stddef.h>

/* An engine is opened, or is closed. */
void reserve_enter(void);
void reserve_leave(void);
/* Takes a reserve of this size for the event of this thread. False: no memory. */
bool reserve_take(size_t bytes);
/* The event ends. */
void reserve_give_back(void);
/* The number of reserves that exist. For tests. */
unsigned reserve_count(void);

/* The allocator; `data` is not used. */
void *reserve_malloc(void *data, size_t bytes);
void *reserve_calloc(void *data, size_t n, size_t bytes);
void *reserve_realloc(void *data, void *old, size_t bytes);
void reserve_free(void *data, void *block);

#endif
