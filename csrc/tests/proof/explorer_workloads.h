/*
 * The workloads of the crash explorer, each determined by its number. A workload is one run of a store, or several, each
 * on the disk that a power cut left of the previous run; the last run is recorded and cut after every call.
 */
#ifndef LOGSTORE_EXPLORER_WORKLOADS_H
#define LOGSTORE_EXPLORER_WORKLOADS_H

#include "tests/proof/explorer_beside.h"

enum workload_kind {
    EVERYTHING,
    FILLED_AND_DRAINED,
    MOVES,
    MOVES_IN_A_SMALL_LOG,
    TWO_RUNS,
    TRANSACTIONS,
    THREE_RUNS,
    MOVES_UPON_A_RUN,
    NEVER_WAITING,
    UPON_A_DRAINED_LOG,
    FULL_NOW_AND_THEN,
    READERS_BESIDE,
    WORKLOAD_KINDS,
};

static const char *const workload_names[WORKLOAD_KINDS] = {
    "every operation",
    "filled and drained",
    "moves",
    "moves in a log of few segments",
    "two runs",
    "transactions of all kinds",
    "three runs",
    "moves upon an earlier run",
    "never waiting",
    "upon a drained log",
    "a disk that is full now and then",
    "readers beside moves",
};

static inline void workload_options(struct run *r, uint64_t number, enum workload_kind kind) {
    uint64_t round = number / WORKLOAD_KINDS;

    ls_options_default(&r->options);
    r->options.segment_size = SEGMENT;
    r->options.max_write_buffers = kind == NEVER_WAITING ? 64 : 2 + (uint32_t)(round % 5);
    r->options.initial_segments = 2 + (uint32_t)(number % 3);
    r->options.background = 0;
    if (kind == MOVES_IN_A_SMALL_LOG || (number % 5 == 0 && kind != UPON_A_DRAINED_LOG))
        r->options.max_log_bytes = (7 + round % 4) * SEGMENT;
}

/* Cuts the power at a random event or at the end, and starts the next run on that disk. */
static inline bool cut_and_reopen(struct run *r, struct bounds *b, bool at_the_end) {
    const vfs_sim_event *events;
    vfs_sim_loss loss = {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM};
    size_t k = vfs_sim_journal(r->sim, &events);

    run_end(r);
    if (!at_the_end)
        k = (size_t)below(r, vfs_sim_journal(r->sim, &events) + 1);
    if (at_the_end || below(r, 5) == 0)
        loss = (vfs_sim_loss){.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
    loss.seed = chance(&r->chance);
    *b = bounds_at(r, k, *b, 0);
    return reopens_after_cut(r, vfs_sim_crash_at(r->sim, k, &loss), b);
}

/* Fills many segments and empties them, so that the next open finds spares. */
static inline void fill_and_drain(struct run *r) {
    for (int i = 0; i < 130 && !r->lost; i++) {
        mark(r, MARK_STARTED, r->op_count + 1);
        publish(r, PUBLISH, 2, -1, i % 40 == 39, 3500);
    }
    while (r->now.depth[1] > 0 && !r->lost) {
        mark(r, MARK_STARTED, r->op_count + 1);
        change_place(r, DEQUEUE, r->now.places[1][0].id, 1, -1, r->now.depth[1] == 1);
    }
}

/* Several messages in one call; each is an operation of its own. */
static inline void publish_some(struct run *r, int queue) {
    enum { SOME = 6, BYTES = 1500 };
    static uint8_t headers[SOME][40], contents[SOME][BYTES];
    const uint8_t *each[SOME], *header_of[SOME];
    uint64_t sizes[SOME], header_sizes[SOME], ids[SOME] = {0};
    struct told t[SOME];
    size_t n = 2 + (size_t)below(r, SOME - 1), done = 0;
    int rc;

    mark(r, MARK_STARTED, r->op_count + n);
    for (size_t i = 0; i < n; i++) {
        t[i] = (struct told){.seed = (uint32_t)chance(&r->chance) & 0xffffff,
                             .header_bytes = (uint32_t)below(r, 40),
                             .content_bytes = (uint32_t)below(r, BYTES)};
        fill(headers[i], t[i].seed, t[i].header_bytes);
        fill(contents[i], t[i].seed + 1, t[i].content_bytes);
        header_of[i] = headers[i];
        header_sizes[i] = t[i].header_bytes;
        each[i] = contents[i];
        sizes[i] = t[i].content_bytes;
    }
    rc = ls_publish_gather(r->store, (uint32_t)queue, n, each, sizes, header_of, header_sizes, NULL, NULL, 0, ids,
                           &done);
    for (size_t i = 0; i < done; i++) {
        t[i].id = ids[i];
        r->told[r->told_count++] = t[i];
        answered(r, LS_OK, false, (struct op){.kind = PUBLISH, .queues = 1u << queue, .id = ids[i]});
    }
    if (rc != LS_OK)
        answered(r, rc, false, (struct op){.kind = PUBLISH, .queues = 1u << queue});
}

static inline void run_with_many_at_once(struct run *r) {
    for (int i = 0; i < 10 && !r->lost; i++) {
        run_some(r, 6);
        if (!r->lost)
            publish_some(r, any_queue(r));
    }
}

/* For a while no file can grow or be created. */
static inline void run_short_of_room(struct run *r) {
    for (int i = 0; i < 8 && !r->lost; i++) {
        vfs_sim_capacity(r->sim, i % 2 == 0 ? vfs_sim_used(r->sim) + BLOCK : 0);
        r->hasty = i % 4 == 3;
        run_some(r, 12);
    }
    vfs_sim_capacity(r->sim, 0);
}

static inline int runs_of(uint64_t number, enum workload_kind kind) {
    switch (kind) {
    case TWO_RUNS:
    case MOVES_UPON_A_RUN:
    case UPON_A_DRAINED_LOG:
        return 2;
    case THREE_RUNS:
        return 3;
    case READERS_BESIDE:
        return 1 + (int)(number / WORKLOAD_KINDS % 2);
    default:
        return 1;
    }
}

/*
 * Runs workload `number` to its end. *b: the bounds before the first recorded event. *broken: the broken promise to a
 * reader of the store in use, or NULL.
 */
static inline bool run_one_workload(struct run *r, uint64_t number, struct bounds *b, const char **broken) {
    vfs_sim *sim = vfs_sim_new();
    enum workload_kind kind = (enum workload_kind)(number % WORKLOAD_KINDS);
    int runs = runs_of(number, kind);
    bool right = true, moves = kind == MOVES || kind == MOVES_IN_A_SMALL_LOG || kind == MOVES_UPON_A_RUN;

    memset(r, 0, sizeof *r);
    *b = (struct bounds){0};
    r->sim = sim;
    r->chance = number + 1;
    r->watch_more = kind == READERS_BESIDE && runs == 1 ? beside_joins : NULL;
    run_watch(r);
    r->hint_settles = number % 7 != 6;
    r->lazy = kind == FILLED_AND_DRAINED || (runs > 1 && number / WORKLOAD_KINDS % 2 == 0);
    r->busy = kind == TRANSACTIONS;
    r->checkpoints = (number + number / WORKLOAD_KINDS) % 2 != 0;
    r->short_of_room = kind == FULL_NOW_AND_THEN;
    r->hasty = kind == NEVER_WAITING;
    r->doubts = kind == MOVES || (moves && number / WORKLOAD_KINDS % 2 != 0);
    r->toys = kind != READERS_BESIDE && (number / WORKLOAD_KINDS % 3 == 2 || number % WORKLOAD_KINDS / 3 == 2);
    r->timed = number / WORKLOAD_KINDS % 4 == 3;
    workload_options(r, number, kind);
    vfs_sim_seed(sim, number);
    run_start(r, sim, number + 1);
    for (int i = 1; right && i < runs; i++) {
        if (kind == UPON_A_DRAINED_LOG)
            fill_and_drain(r);
        else if (kind == MOVES_UPON_A_RUN)
            run_with_moves(r, 60);
        else
            run_some(r, 45);
        r->watch_more = kind == READERS_BESIDE && i + 1 == runs ? beside_joins : NULL;
        right = cut_and_reopen(r, b, kind == UPON_A_DRAINED_LOG);
    }
    if (moves || kind == READERS_BESIDE)
        run_with_moves(r, moves ? 90 : 130);
    else if (kind == UPON_A_DRAINED_LOG)
        run_with_moves(r, 40);
    else if (kind == FULL_NOW_AND_THEN)
        run_short_of_room(r);
    else if (kind == NEVER_WAITING)
        run_with_many_at_once(r);
    else
        run_some(r, kind == FILLED_AND_DRAINED ? 200 : kind == TRANSACTIONS ? 90 : 60);
    *broken = beside_leaves(r);
    run_end(r);
    return right && (!r->lost || kind == FULL_NOW_AND_THEN);
}

#endif
