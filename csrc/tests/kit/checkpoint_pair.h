/* Opens one disk twice, with its checkpoint and without, and compares the two tables and all answers. */
#ifndef LOGSTORE_CHECKPOINT_PAIR_H
#define LOGSTORE_CHECKPOINT_PAIR_H

#include "store/store.h"
#include "tests/kit/one_store.h"

static inline ls_store *opened(vfs *v, const char *path, int no_checkpoint) {
    ls_options o;
    ls_store *store = NULL;

    ls_options_default(&o);
    o.background = 0;
    o.create = 0;
    o.no_checkpoint = no_checkpoint;
    if (ls_open(v, path, &o, &store) != LS_OK)
        printf("open %s checkpoint: %s\n", no_checkpoint ? "without" : "with", ls_last_error()->text);
    return store;
}

static inline bool serves(ls_store *store, unsigned catalog) {
    uint32_t ids[QUEUES];
    size_t n = list_queues(catalog, ids);

    if (ls_serve(store, ids, n, QUEUES + 1) == LS_OK)
        return true;
    printf("serve: %s\n", ls_last_error()->text);
    return false;
}

/* Returns 1 if a checkpoint was used, else 0. A difference is a failed check. Both stores must serve and answer alike. */
static inline int same_both_ways(const vfs_sim *disk, unsigned catalog) {
    vfs_sim *a = vfs_sim_clone(disk), *b = vfs_sim_clone(disk);
    ls_store *with = opened(vfs_sim_table(a), "/s", 0), *without = opened(vfs_sim_table(b), "/s", 1);
    ls_checkpoint_difference d = {.differs = 1};
    ls_recovery report = {.checkpoint_used = 0};

    check(with != NULL && without != NULL);
    if (with != NULL && without != NULL) {
        check(ls_checkpoint_compare(with, without, &d) == LS_OK || complain("compared"));
        check(d.differs == 0 || complain(d.text));
        ls_recovery_report(with, &report);
        check(report.checkpoint_state != LS_CHECKPOINT_CONTRADICTS || complain("contradiction"));
        check(serves(with, catalog) && serves(without, catalog));
        check(ls_checkpoint_compare(with, without, &d) == LS_OK && d.differs == 0);
    }
    ls_free(with);
    ls_free(without);
    vfs_sim_free(a);
    vfs_sim_free(b);
    return report.checkpoint_used;
}

#endif
