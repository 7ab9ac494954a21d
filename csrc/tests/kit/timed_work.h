/*
 * The operations of generated workloads that give places times: publishes and enqueues with times, delays, and expired places
 * that are taken off or moved, with a clock that jumps. A run draws them if it is `timed`.
 */
#ifndef LOGSTORE_TIMED_WORK_H
#define LOGSTORE_TIMED_WORK_H

#include "tests/kit/store_verdict.h"

enum { TIMES_US = 60000000, JUMP_US = 40000000, STEP_BACK_US = 5000000 };

static inline uint64_t run_draws(struct run *r, uint64_t n) { return chance(&r->chance) % n; }

/* Neither time, one, or both. */
static inline ls_times times_drawn(struct run *r) {
    uint64_t now = r->v->now_us(r->v), which = run_draws(r, 4);
    ls_times times = {0, 0};

    if (which % 2 == 1)
        times.not_before_us = now + 1000 + run_draws(r, TIMES_US);
    if (which >= 2)
        times.expires_us = (times.not_before_us != 0 ? times.not_before_us : now) + 1000 + run_draws(r, TIMES_US);
    return times;
}

/* Forwards mostly: places become due and expire. */
static inline void run_jumps(struct run *r) {
    int64_t back = (int64_t)run_draws(r, STEP_BACK_US), on = (int64_t)run_draws(r, JUMP_US);

    if (r->sim != NULL)
        vfs_sim_advance(r->sim, run_draws(r, 8) == 0 ? -back : on);
}

/* The place of a delivery goes back if its operation was refused. */
static inline void run_gives_back(struct run *r, int queue, const ls_delivery *held, int rc) {
    if (rc != LS_OK && rc != LS_OUTCOME_UNKNOWN)
        (void)ls_release(r->store, (uint32_t)queue, held, 1, LS_UNSEEN);
}

/* Hides a place from now on. A place that is not durable, or hidden, is not acquired. */
static inline struct op run_delays_place(struct run *r, int queue, uint64_t id, bool wait, int *rc) {
    struct op op = {.kind = DELAY, .queues = 1u << queue, .id = id};
    ls_delivery held;
    size_t done = 0;

    op.times.not_before_us = r->v->now_us(r->v) + 1000 + run_draws(r, TIMES_US);
    *rc = ls_acquire_ids(r->store, (uint32_t)queue, &id, 1, &held, 0, &done);
    if (*rc != LS_OK || done == 0) {
        op.kind = NOTHING;
        return op;
    }
    *rc = ls_delay(r->store, (uint32_t)queue, &held, 1, op.times.not_before_us, wait ? LS_WAIT : 0);
    run_gives_back(r, queue, &held, *rc);
    return op;
}

/* Moves the place that is held to the end of the other queue, which may be its own. */
static inline int run_moves_held(struct run *r, const ls_delivery *held, const struct op *op, ls_tx *tx, bool wait) {
    static const uint8_t header[] = "of the place";
    int to = 1;
    uint64_t lsn;

    while ((op->queues & 1u << to) == 0)
        to++;
    const ls_place_move move = {
        .from_queue_id = (uint32_t)op->from,
        .queue_id = (uint32_t)to,
        .reason = 5,
        .header_given = held->id % 2 == 0,
        .header = header,
        .header_bytes = sizeof header,
        .note_given = held->id % 3 == 0,
        .note = header,
        .note_bytes = held->id % 5,
        .times = op->times,
    };
    return ls_move(r->store, held->id, &move, held, tx, wait ? LS_WAIT : 0, &lsn);
}

/* The first place of the queue that has expired, else the first that is offered, is taken off or moved. `other`: a queue where
   the message is not, in any work either; 0: it is taken off. */
static inline struct op run_ends_place(struct run *r, int queue, ls_tx *tx, uint64_t tx_id, bool wait,
                                       int (*other)(struct run *r, int queue, uint64_t id), int *rc) {
    struct op op = {.kind = NOTHING, .tx = tx_id, .from = queue};
    ls_delivery held;
    size_t done = 0;
    uint64_t lsn;
    int to;

    *rc = ls_acquire_expired(r->store, (uint32_t)queue, &held, 1, 0, &done);
    if (*rc == LS_OK && done == 0)
        *rc = ls_acquire(r->store, (uint32_t)queue, &held, 1, 0, &done);
    if (*rc != LS_OK || done == 0)
        return op;
    to = other(r, queue, held.id);
    op.id = held.id;
    op.kind = to != 0 ? MOVE : DEQUEUE;
    op.queues = 1u << (to != 0 ? to : queue);
    op.times = to != 0 ? times_drawn(r) : (ls_times){0, 0};
    *rc = to != 0 ? run_moves_held(r, &held, &op, tx, wait)
                  : ls_settle(r->store, (uint32_t)queue, &held, tx, 6, wait ? LS_WAIT : 0, &lsn);
    run_gives_back(r, queue, &held, *rc);
    return op;
}

#endif
