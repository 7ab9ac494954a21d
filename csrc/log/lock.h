/*
 * The log's lock, and the few fields that every operation reads: `struct log` begins with them, so that taking the lock,
 * checking at both ends of it, and reading an LSN need neither a call nor parts.h. lock.c has the rest.
 */
#ifndef LOGSTORE_LOG_LOCK_H
#define LOGSTORE_LOG_LOCK_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct log;
struct room_waiter;

/* Used by the functions below and in log/ only. */
struct log_front {
    pthread_mutex_t lock;   /* guards the whole log, except fields that are atomic, fixed at open, or say otherwise */
    uint64_t let_go;        /* how many times operations have let go of the lock */
    uint64_t reserved_room; /* bytes that may be appended before the next log_reserve; 0 once the lock is let go */
    bool trying;        /* the operation that holds the lock must not let it go: LS_WOULD_WAIT in place of waiting */
    bool wakes_flusher; /* once the lock is let go: awake before that, the flusher would only wait for the lock */
    struct room_waiter *room_waiters; /* threads that wait for room in a buffer, the first to come first */
    uint64_t undurable_bytes_max; /* max_undurable_bytes plus one batch, which is allowed when no other is undurable */
    uint64_t append_lsn;          /* where the next batch would start */
    uint64_t end_lsn;             /* end of the last record: the public next_lsn */
    uint64_t forced_lsn;          /* everything below it is forced on this disk; see durable.c */
    _Atomic uint64_t durable_lsn;
};

static inline struct log_front *log_front(const struct log *g) { return (struct log_front *)(uintptr_t)g; }

#ifdef LOGSTORE_CHECK
void log_check_all(const struct log *g);
#endif

/* Asserts the cheap invariants of log.h; with -DLOGSTORE_CHECK also those that need sums and walks over lists. */
static inline void log_check(const struct log *g) {
    const struct log_front *f = log_front(g);
    uint64_t durable_lsn = atomic_load_explicit(&f->durable_lsn, memory_order_relaxed), end_lsn = f->end_lsn;
    /* this also checks durable_lsn <= end_lsn, since the difference is unsigned */
    assert(end_lsn - durable_lsn <= f->undurable_bytes_max && end_lsn <= f->append_lsn);
#ifdef LOGSTORE_CHECK
    log_check_all(g);
#endif
}

/* The lock is taken and let go by these only, and by waits for a signal. */
static inline void log_lock(struct log *g) {
    (void)pthread_mutex_lock(&log_front(g)->lock);
    log_check(g);
}

/* False: another thread holds the lock. */
static inline bool log_try_lock(struct log *g) {
    if (pthread_mutex_trylock(&log_front(g)->lock) != 0) {
        return false;
    }
    log_check(g);
    return true;
}

/* Before the lock is let go in any way: calls the threads that wait for room in a buffer and now have it. */
void log_call_for_room(struct log *g);

/* Lets go of the lock, and then wakes the flusher. */
void log_unlock_and_wake(struct log *g);

static inline void log_unlock(struct log *g) {
    struct log_front *f = log_front(g);
    if (f->room_waiters != NULL) {
        log_call_for_room(g);
    }
    log_check(g);
    assert(!f->trying);
    if (f->wakes_flusher) {
        log_unlock_and_wake(g);
    } else {
        (void)pthread_mutex_unlock(&f->lock);
    }
}

#ifdef LOGSTORE_POISON
void log_move_given_out(struct log *g); /* what look-ups have given out goes to other memory */
#endif

/* In log/ only. The lock was let go and taken again, by the two functions below or by a wait, so no room is reserved
   any more. */
static inline void log_was_let_go(struct log *g) {
    struct log_front *f = log_front(g);
    assert(!f->trying);
    f->reserved_room = 0;
#ifdef LOGSTORE_POISON
    log_move_given_out(g);
#endif
    f->let_go++;
}

/*
 * An operation lets go of the lock and takes it back by these two or by log_wait (log.h), and a function that may call one of
 * them is marked (waits). log_may_wait (parts.h) stands at the beginning of those that do not always wait.
 */
static inline void log_let_go(struct log *g) { log_unlock(g); }

static inline void log_take_back(struct log *g) {
    log_lock(g);
    log_was_let_go(g);
}

/* Whether the operation that holds the lock must not wait, but return LS_WOULD_WAIT. The flag is reset before the lock
   is let go. */
static inline void log_set_trying(struct log *g, bool trying) { log_front(g)->trying = trying; }
static inline bool log_is_trying(const struct log *g) { return log_front(g)->trying; }

/* A count: if it is unchanged, the lock has not been let go meanwhile. */
static inline uint64_t log_times_let_go(const struct log *g) { return log_front(g)->let_go; }

/* The end of the last record. */
static inline uint64_t log_end_lsn(const struct log *g) { return log_front(g)->end_lsn; }

/* Records below it are read from files. */
static inline uint64_t log_forced_lsn(const struct log *g) { return log_front(g)->forced_lsn; }

/* Also without the lock. */
static inline uint64_t log_durable_lsn(const struct log *g) { return log_front(g)->durable_lsn; }

#endif
