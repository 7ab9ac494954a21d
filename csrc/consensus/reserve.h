/*
 * Memory for libraft, whose code asserts or forgets what it has freed where an allocation fails. So before it is entered the
 * engine takes a reserve for all that one event may allocate; what the C library refuses comes from the reserve. A reserve that was
 * used lives until its last block is freed, and the next event takes a new one.
 *
 * An event has a reserve of its own and gives it back at its end, so there are as many as events that run at the same time. The process
 * keeps a few between events, until its last engine is closed, in whichever thread.
 */
#ifndef LOGSTORE_CONSENSUS_RESERVE_H
#define LOGSTORE_CONSENSUS_RESERVE_H

#include <stdbool.h>
#include <stddef.h>

/* An engine is opened, or is closed. */
void reserve_enter(void);
void reserve_leave(void);
/* Takes a reserve of this size for this thread's event; false: no memory. */
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
