/*
 * Takers are acquires that wait. Each queue lists its takers in the order in which they came. The due queues are those
 * whose takers the next commit may serve, or whose watches (watches.h) it may tell of arrivals. store/takers.c serves them.
 *
 * In a store that serves, this holds whenever the log's lock is free:
 *   - a queue with takers offers nothing. The thread that makes a place free or durable serves the takers before it lets go
 *     of the lock, so an acquire that does not wait never overtakes one that does;
 *   - a queue that has takers, or a watch of arrivals, and places that are not durable yet, is in the list of due queues.
 *
 * A struct takers stays where it is until its queue is removed, so the lists may point to it.
 */
#ifndef LOGSTORE_TABLE_TAKERS_H
#define LOGSTORE_TABLE_TAKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "table/watches.h"

struct takers;

/* One that waits; embedded in an ls_taker. */
struct taker {
    struct taker *next, *prev; /* of the queue */
    struct takers *of;         /* NULL: it does not wait, or no longer */
};

/* Those of one store. All zero: none waits. */
struct due_queues {
    struct takers *first; /* the due queues, the last to become due first */
    uint64_t waiting;     /* takers of all queues */
    bool came_back;    /* a place came back to a queue with takers, or the first time to come is another; see to it */
    uint64_t watching; /* watches of arrivals */
    uint64_t watching_times; /* watches of what a time may tell */
    struct watcher *every;   /* those that watch every queue */
};

/* Those of one queue, and its watches. */
struct takers {
    struct taker *first, *last;
    struct watched watched;
    struct takers *next, *prev; /* due queues */
    struct due_queues *all;
    uint32_t queue_id;
    bool due;
};

/* NULL: no memory. */
struct takers *takers_new(struct due_queues *all, uint32_t queue_id);
void takers_free(struct takers *t); /* nobody waits or watches; NULL: does nothing */
void takers_add(struct takers *t, struct taker *one);
void takers_remove(struct taker *one);
void takers_set_due(struct takers *t, bool due);
void takers_place_added(struct takers *t, uint64_t order_lsn); /* it is offered once this is durable */
void takers_place_freed(struct takers *t);                     /* it may be acquired again */

#endif
