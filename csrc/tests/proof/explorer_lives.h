/*
 * What the crash explorer cuts: generated workloads, each following from its number alone. One is the life of a store,
 * or several, each upon the disk that a power cut left of the one before; the last one is recorded and cut everywhere.
 */
#ifndef LOGSTORE_EXPLORER_LIVES_H
#define LOGSTORE_EXPLORER_LIVES_H

#include "tests/proof/explorer_beside.h"

enum life {
    EVERYTHING,
    FILLED_AND_DRAINED,
    MOVES,
    MOVES_IN_A_SMALL_LOG,
    TWO_LIVES,
    TRANSACTIONS,
    THREE_LIVES,
    MOVES_UPON_A_LIFE,
    NEVER_WAITING,
    UPON_A_DRAINED_LOG,
    FULL_NOW_AND_THEN,
    READERS_BESIDE,
    LIFE_KINDS,
};

static const char *const life_names[LIFE_KINDS] = {
    "every operation",
    "filled and drained",
    "moves",
    "moves in a log of few segments",
    "two lives",
    "transactions of all kinds",
    "three lives",
    "moves upon an earlier life",
    "never waiting",
    "upon a drained log",
    "a disk that is full now and then",
    "readers beside moves",
};

static inline void life_options(struct run *r, uint64_t number, enum life kind) {
    uint64_t round = number / LIFE_KINDS;

    ls_options_default(&r->options);
    r->options.segment_size = SEGMENT;
    r->options.max_write_buffers = kind == NEVER_WAITING ? 64 : 2 + (uint32_t)(round % 5);
    r->options.initial_segments = 2 + (uint32_t)(number % 3);
    r->options.background = 0;
    if (kind == MOVES_IN_A_SMALL_LOG || (number % 5 == 0 && kind != UPON_A_DRAINED_LOG))
        r->options.max_log_bytes = (7 + round % 4) * SEGMENT;
}

/* Cuts the run, anywhere or at its end, and lives on. */
static inline bool cut_and_go_on(struct run *r, struct bounds *b, bool at_the_end) {
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
    return next_life(r, vfs_sim_crash_at(r->sim, k, &loss), b);
}

/* Many segments, and nothing left in them: the next open finds its spares lying about. */
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

/* Files that grow or come meet no room for a while. */
static inline void run_short_of_room(struct run *r) {
    for (int i = 0; i < 8 && !r->lost; i++) {
        vfs_sim_capacity(r->sim, i % 2 == 0 ? vfs_sim_used(r->sim) + BLOCK : 0);
        r->hasty = i % 4 == 3;
        run_some(r, 12);
    }
    vfs_sim_capacity(r->sim, 0);
}

static inline int lives_of(uint64_t number, enum life kind) {
    switch (kind) {
    case TWO_LIVES:
    case MOVES_UPON_A_LIFE:
    case UPON_A_DRAINED_LOG:
        return 2;
    case THREE_LIVES:
        return 3;
    case READERS_BESIDE:
        return 1 + (int)(number / LIFE_KINDS % 2);
    default:
        return 1;
    }
}

/*
 * Runs workload `number` to its end. *b is what was promised before the first recorded event; *broken what was promised
 * to readers beside it and broken, or NULL.
 */
static inline bool live(struct run *r, uint64_t number, struct bounds *b, const char **broken) {
    vfs_sim *sim = vfs_sim_new();
    enum life kind = (enum life)(number % LIFE_KINDS);
    int lives = lives_of(number, kind);
    bool right = true, moves = kind == MOVES || kind == MOVES_IN_A_SMALL_LOG || kind == MOVES_UPON_A_LIFE;

    memset(r, 0, sizeof *r);
    *b = (struct bounds){0};
    r->sim = sim;
    r->chance = number + 1;
    r->watch_more = kind == READERS_BESIDE && lives == 1 ? beside_comes : NULL;
    run_watch(r);
    r->hint_settles = number % 7 != 6;
    r->lazy = kind == FILLED_AND_DRAINED || (lives > 1 && number / LIFE_KINDS % 2 == 0);
    r->busy = kind == TRANSACTIONS;
    r->checkpoints = (number + number / LIFE_KINDS) % 2 != 0;
    r->short_of_room = kind == FULL_NOW_AND_THEN;
    r->hasty = kind == NEVER_WAITING;
    r->doubts = kind == MOVES || (moves && number / LIFE_KINDS % 2 != 0);
    r->toys = kind != READERS_BESIDE && (number / LIFE_KINDS % 3 == 2 || number % LIFE_KINDS / 3 == 2);
    life_options(r, number, kind);
    vfs_sim_seed(sim, number);
    run_start(r, sim, number + 1);
    for (int i = 1; right && i < lives; i++) {
        if (kind == UPON_A_DRAINED_LOG)
            fill_and_drain(r);
        else if (kind == MOVES_UPON_A_LIFE)
            run_with_moves(r, 60);
        else
            run_some(r, 45);
        r->watch_more = kind == READERS_BESIDE && i + 1 == lives ? beside_comes : NULL;
        right = cut_and_go_on(r, b, kind == UPON_A_DRAINED_LOG);
    }
    if (moves || kind == READERS_BESIDE)
        run_with_moves(r, moves ? 90 : 130);
    else if (kind == UPON_A_DRAINED_LOG)
        run_with_moves(r, 40);
    else if (kind == FULL_NOW_AND_THEN)
        run_short_of_room(r);
    else
        run_some(r, kind == FILLED_AND_DRAINED ? 200 : kind == TRANSACTIONS ? 90 : 60);
    *broken = beside_goes(r);
    run_end(r);
    return right && (!r->lost || kind == FULL_NOW_AND_THEN);
}

#endif
