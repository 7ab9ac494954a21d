/*
 * What the crash explorer cuts: generated workloads, each following from its number alone. One is the life of a store,
 * or several, each upon the disk that a power cut left of the one before; the last one is recorded and cut everywhere.
 */
#ifndef LOGSTORE_EXPLORER_LIVES_H
#define LOGSTORE_EXPLORER_LIVES_H

#include "../tests/store_workload.h"

enum { LIFE_KINDS = 8 };

static const char *const life_names[LIFE_KINDS] = {
    "every operation", "filled and drained",        "moves",       "moves in a log of few segments",
    "two lives",       "transactions of all kinds", "three lives", "moves upon an earlier life",
};

static inline void life_options(struct run *r, uint64_t number) {
    ls_options_default(&r->options);
    r->options.segment_size = SEGMENT;
    r->options.max_write_buffers = 2 + (uint32_t)(number / LIFE_KINDS % 5);
    r->options.background = 0;
    if (number % LIFE_KINDS == 3 || number % 5 == 0)
        r->options.max_log_bytes = (7 + number / LIFE_KINDS % 4) * SEGMENT;
}

/* Cuts the run anywhere, and lives on. */
static inline bool cut_and_go_on(struct run *r, struct bounds *b) {
    const vfs_sim_event *events;
    vfs_sim_loss loss = {.mode = below(r, 5) == 0 ? VFS_SIM_ALL_KEPT : VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM};
    size_t k;

    run_end(r);
    k = (size_t)below(r, vfs_sim_journal(r->sim, &events) + 1);
    loss.seed = chance(&r->chance);
    *b = bounds_at(r, k, *b, 0);
    return next_life(r, vfs_sim_crash_at(r->sim, k, &loss), b);
}

/* Runs workload `number` to its end. *b is what was promised before the first recorded event. */
static inline bool live(struct run *r, uint64_t number, struct bounds *b) {
    vfs_sim *sim = vfs_sim_new();
    int kind = (int)(number % LIFE_KINDS), lives = kind == 4 || kind == 7 ? 2 : kind == 6 ? 3 : 1;
    bool right = true;

    memset(r, 0, sizeof *r);
    *b = (struct bounds){0};
    r->lazy = kind == 1 || (lives > 1 && number / LIFE_KINDS % 2 == 0);
    r->busy = kind == 5;
    life_options(r, number);
    vfs_sim_seed(sim, number);
    run_start(r, sim, number + 1);
    for (int i = 1; right && i < lives; i++) {
        if (kind == 7)
            run_with_moves(r, 60);
        else
            run_some(r, 45);
        right = cut_and_go_on(r, b);
    }
    if (kind == 2 || kind == 3 || kind == 7)
        run_with_moves(r, 90);
    else
        run_some(r, kind == 1 ? 200 : kind == 5 ? 90 : 60);
    run_end(r);
    return right && !r->lost;
}

#endif
