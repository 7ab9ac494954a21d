/* The simulator as an opaque handle for Python. See testing.h. */
#include "tests/sim/testing.h"

#include "tests/sim/vfs_sim.h"

vfs *ls_sim_new(void) {
    vfs_sim *sim = vfs_sim_new();
    if (sim == NULL) {
        return NULL;
    }
    (void)vfs_sim_record(sim, 0);
    return vfs_sim_table(sim);
}

vfs *ls_sim_crash(vfs *sim, int losses, uint64_t seed) {
    static const int modes[] = {VFS_SIM_ALL_LOST, VFS_SIM_ALL_KEPT, VFS_SIM_RANDOM};
    static const int dir_modes[] = {VFS_SIM_DIRS_LOST, VFS_SIM_DIRS_KEPT, VFS_SIM_DIRS_RANDOM};
    if (losses < 0 || losses > 2) {
        return NULL;
    }
    vfs_sim_loss loss = {.mode = modes[losses], .dir_mode = dir_modes[losses], .seed = seed};
    vfs_sim *after = vfs_sim_crash(sim->context, &loss);
    return after == NULL ? NULL : vfs_sim_table(after);
}

void ls_sim_fail(vfs *sim, uint64_t nth, int forever, int sys_errno) {
    vfs_sim_plan plan = {.nth = nth, .forever = forever, .error = sys_errno};
    vfs_sim_fail(sim->context, sys_errno != 0 ? &plan : NULL);
}

uint64_t ls_sim_now(vfs *sim) { return sim->now_us(sim); }

void ls_sim_advance(vfs *sim, int64_t us) { vfs_sim_advance(sim->context, us); }

void ls_sim_free(vfs *sim) { vfs_sim_free(sim->context); }
