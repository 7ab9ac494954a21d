/*
 * Memory for libraft, whose code asserts or forgets what it has freed where an allocation fails. So before it is entered the
 * engine takes a reserve for all that one event may allocate; what the C library refuses comes from the reserve. A reserve that was
 * used lives until its last block is freed, and the next event takes a new one.
 *
 * Each thread has one reserve, whatever the number of its engines.
 */
#ifndef LOGSTORE_CONSENSUS_RESERVE_H
#define LOGSTORE_CONSENSUS_RESERVE_H

#include <stdbool.h>
#include <stddef.h>

/* Whether this thread has a reserve of so many bytes now. */
bool reserve_take(size_t bytes);
void reserve_drop(void);

/* The allocator; `data` is not used. */
void *reserve_malloc(void *data, size_t bytes);
void *reserve_calloc(void *data, size_t n, size_t bytes);
void *reserve_realloc(void *data, void *old, size_t bytes);
void reserve_free(void *data, void *block);

#endif
