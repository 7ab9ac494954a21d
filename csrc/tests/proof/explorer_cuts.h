/*
 * The disks that the crash explorer examines for a power cut after a given call.
 *
 * Unsynced data is a sequence of units (vfs_sim.h): sectors and changes of size. If there are few, every combination of
 * fates gives a disk; else there are families of disks: a prefix of units survives, one unit is lost, only one survives,
 * one is garbled, the last one is torn, or fates are random. Unsynced names survive as every combination of prefixes, or
 * in the weak mode as any subset that is closed under dependency.
 */
#ifndef LOGSTORE_EXPLORER_CUTS_H
#define LOGSTORE_EXPLORER_CUTS_H

#include "tests/kit/vfs_test.h"

typedef struct {
    void *context;
    bool (*each)(void *context, const vfs_sim_loss *loss); /* returns false to stop */
    uint64_t per_family;                                   /* disks of one family at one cut, at most */
    uint64_t turn; /* seed that chooses them, if not all are examined; differs from cut to cut */
} cuts;

enum { UNITS_FEW = 3, UNITS_SEVERAL = 6, NAMES_FEW = 3, COMBINATIONS_MAX = 256, COMBINATIONS_OF_ONE = 24 };

/* Calls it for each combination of names, or for a few of them. */
static inline bool with_names(const cuts *c, const vfs_sim_choices *choices, vfs_sim_loss loss) {
    if (choices->dir_prefixes <= 4) {
        loss.dir_mode = VFS_SIM_DIRS_PREFIX;
        for (loss.dir_n = 0; loss.dir_n < choices->dir_prefixes; loss.dir_n++) {
            if (!c->each(c->context, &loss))
                return false;
        }
        return true;
    }
    loss.dir_mode = VFS_SIM_DIRS_LOST;
    if (!c->each(c->context, &loss))
        return false;
    loss.dir_mode = VFS_SIM_DIRS_KEPT;
    if (!c->each(c->context, &loss))
        return false;
    loss.dir_mode = VFS_SIM_DIRS_RANDOM;
    return c->each(c->context, &loss);
}

/* Every combination of `fates` fates for `units` units. */
static inline bool all_masks(const cuts *c, const vfs_sim_choices *choices, unsigned fates) {
    uint8_t mask[UNITS_SEVERAL] = {0};
    vfs_sim_loss loss = {
        .mode = VFS_SIM_MASK, .mask = mask, .mask_count = (size_t)choices->units, .seed = c->turn * 31 + 7};

    for (;;) {
        size_t i = 0;

        if (!with_names(c, choices, loss))
            return false;
        while (i < choices->units && ++mask[i] == fates)
            mask[i++] = 0;
        if (i == choices->units)
            return true;
    }
}

static inline bool family(const cuts *c, const vfs_sim_choices *choices, int mode, uint64_t members) {
    uint64_t step = members > c->per_family ? (members + c->per_family - 1) / c->per_family : 1;
    vfs_sim_loss loss = {.mode = mode, .dir_mode = VFS_SIM_DIRS_KEPT, .seed = c->turn * 17 + (uint64_t)mode};

    for (loss.n = c->turn % step; loss.n < members; loss.n += step) {
        loss.dir_mode = choices->dir_ops == 0 ? VFS_SIM_DIRS_KEPT : VFS_SIM_DIRS_KEPT - (int)((loss.n + c->turn) % 2);
        if (!c->each(c->context, &loss))
            return false;
    }
    return true;
}

static inline bool by_chance(const cuts *c, const vfs_sim_choices *choices, uint64_t count) {
    vfs_sim_loss loss = {.mode = VFS_SIM_RANDOM};

    for (uint64_t i = 0; i < count; i++) {
        loss.seed = c->turn * 7919 + i * 104729 + 1;
        loss.dir_mode = choices->dir_ops == 0 ? VFS_SIM_DIRS_KEPT
                        : i % 2 != 0          ? VFS_SIM_DIRS_RANDOM
                                              : VFS_SIM_DIRS_RANDOM_SUBSET;
        if (!c->each(c->context, &loss))
            return false;
    }
    return true;
}

/* The weak mode: any subset of the names' operations that is closed under dependency. */
static inline bool any_names(const cuts *c, const vfs_sim_choices *choices) {
    uint8_t mask[NAMES_FEW];
    vfs_sim_loss loss = {.dir_mode = VFS_SIM_DIRS_MASK, .dir_mask = mask, .dir_mask_count = (size_t)choices->dir_ops};

    if (choices->dir_ops < 2 || choices->dir_ops > NAMES_FEW)
        return true; /* a single operation has only prefixes; of many subsets some are chosen at random */
    for (unsigned bits = 0; bits < 1u << choices->dir_ops; bits++) {
        for (size_t i = 0; i < choices->dir_ops; i++)
            mask[i] = bits >> i & 1;
        loss.mode = VFS_SIM_ALL_KEPT;
        if (!c->each(c->context, &loss))
            return false;
        loss.mode = VFS_SIM_ALL_LOST;
        if (!c->each(c->context, &loss))
            return false;
    }
    return true;
}

/* Calls it for every loss that is examined for this cut. */
static inline bool for_each_loss(const cuts *c, const vfs_sim_choices *choices) {
    static const int families[] = {VFS_SIM_PREFIX, VFS_SIM_ONE_LOST, VFS_SIM_ONLY_ONE, VFS_SIM_ONE_GARBAGE,
                                   VFS_SIM_LAST_GARBAGE};
    uint64_t names = choices->dir_prefixes <= 4 ? choices->dir_prefixes : 3;
    uint64_t most = c->per_family > 1 ? COMBINATIONS_MAX : COMBINATIONS_OF_ONE;
    vfs_sim_loss all = {.mode = VFS_SIM_ALL_LOST};

    if (!any_names(c, choices))
        return false;
    if (choices->units <= UNITS_FEW && (names << 2 * choices->units) <= most)
        return all_masks(c, choices, 4);
    if (choices->units <= UNITS_SEVERAL && (names << choices->units) <= most) {
        if (!all_masks(c, choices, 2))
            return false;
    } else {
        if (!with_names(c, choices, all))
            return false;
        all.mode = VFS_SIM_ALL_KEPT;
        if (!with_names(c, choices, all))
            return false;
    }
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (!family(c, choices, families[i], choices->units))
            return false;
    }
    return by_chance(c, choices, 2 * c->per_family);
}

#endif
