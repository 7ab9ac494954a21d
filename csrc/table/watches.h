/*
 * Watches: which inboxes are told of the events of a queue, or of the store. What always holds, under the log's lock:
 *
 *   - an event sets a bit at each watch that wants it. A watch with a bit is in the list of its watcher, once, however
 *     many events it stands for; the watcher is woken when its list was empty before;
 *   - taking a watch off the list clears all its bits, so a later event is told again;
 *   - events that count once their record is durable are `pending` until then.
 *
 * A watch is allocated when the first listener comes, so an event allocates nothing.
 */
#ifndef LOGSTORE_TABLE_WATCHES_H
#define LOGSTORE_TABLE_WATCHES_H

#include <stdbool.h>
#include <stdint.h>

struct watcher;
struct watched;

struct watch {
    struct watch *next, *prev;           /* of the queue */
    struct watch *next_own, *prev_own;   /* of the watcher */
    struct watch *next_told, *prev_told; /* of the watcher's list; only with a bit in `told` */
    struct watched *of;                  /* NULL: the queue was deleted */
    struct watcher *by;
    uint32_t queue_id; /* 0: of the store */
    uint8_t wanted;    /* LS_ARRIVED ... */
    uint8_t told;      /* events since the last look */
};

/* The side that is told. All zero but `wake`, `arrivals` and `times`: it watches nothing. */
struct watcher {
    struct watch *all;
    struct watch *first, *last; /* with events, the first to have one first */
    void (*wake)(struct watcher *w);
    uint64_t *arrivals;         /* of the store: how many watches want LS_ARRIVED */
    uint64_t *times;            /* the same: LS_RELEASED or LS_EXPIRED, which a time can cause */
    struct watcher *next_every; /* those that watch every queue, also queues that are added later */
    uint8_t every;              /* what such a one wants; 0: it watches single queues */
};

/* Events whose records are not durable yet. All zero: there is none. */
struct pending {
    uint64_t since;  /* none of them has a smaller LSN */
    uint64_t newest; /* LSN of the last one */
};

/* The events of one queue, or of the store. All zero: nobody watches. */
struct watched {
    struct watch *first;
    uint32_t for_arrivals; /* watches that want LS_ARRIVED */
    struct pending arrived;
};

/* The watch of this watcher, with what it wants from now on. NULL: no memory. */
struct watch *watch_set(struct watcher *by, struct watched *of, uint32_t queue_id, uint8_t wanted);
struct watch *watch_find(const struct watcher *by, const struct watched *of); /* or NULL */
void watch_end(struct watch *one); /* frees it; what it was to tell is lost */
void watched_tell(struct watched *of, uint8_t kind);
void watched_end(
    struct watched *of); /* the queue is deleted: LS_QUEUE_DELETED is told, except to those that watch every queue */
/* The queue of the first watch with events, and these; a watch of a deleted queue ends. False: there is none. */
bool watcher_next(struct watcher *w, uint32_t *queue_id, uint8_t *told);

void pending_add(struct pending *p, uint64_t lsn);
/* Whether one of them may have become durable since the last call. */
bool pending_passed(struct pending *p, uint64_t durable_lsn);

#endif
