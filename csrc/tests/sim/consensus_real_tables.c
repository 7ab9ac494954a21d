/*
 * Equal tables at equal durable index. A copy of its own, which takes durable batches and no others, in order, is the reference. It goes
 * up to the index at which a table is judged, so it is never ahead of most members.
 */
#include "tests/kit/equal_tables.h"
#include "tests/sim/consensus_real.h"

static struct {
    vfs_sim *disk;
    struct replica *r;
} reference;

static const char *const PATH = "/m/copy-1";

void tables_reset(void) {
    replica_free(reference.r);
    vfs_sim_free(reference.disk);
    reference.r = NULL;
    reference.disk = NULL;
}

void tables_first(vfs_sim *disk) {
    ls_options o = options;
    o.kept_bytes = o.max_log_bytes = 0;
    reference.disk = disk;
    (void)vfs_sim_record(disk, 0);
    if (replica_open(vfs_sim_table(disk), PATH, &o, &reference.r) != LS_OK)
        violation("the reference cannot be opened: %.250s", ls_last_error()->text);
}

static bool goes_to(uint64_t index) {
    while (reference.r->end.index < index) {
        int id = durable_at(reference.r->end.index + 1);
        if (id == NO_BATCH)
            return false;
        const ls_replica_batch *b = &batch_of(id)->b;
        int rc = ls_replica_take(reference.r, b);
        rc = rc == LS_OK ? replica_durable(reference.r, b->end_lsn) : rc;
        if (rc != LS_OK)
            violation("the reference refuses durable batch %llu: %.250s", (ull)b->index, ls_last_error()->text);
    }
    return reference.r->end.index == index;
}

/* It can only be freed then. */
static void compare(const struct member *m, struct replica *r) {
    uint64_t index = r->applied.index;
    ls_options o = options;
    struct replica *same = NULL;
    if (index == 0 || !goes_to(index) || replica_cut(r, index) != LS_OK)
        return;
    vfs_sim *disk = vfs_sim_clone(reference.disk);
    o.kept_bytes = o.max_log_bytes = 0;
    int rc = disk == NULL ? LS_NO_MEMORY : replica_open(vfs_sim_table(disk), PATH, &o, &same);
    rc = rc == LS_OK ? replica_durable(same, same->end.lsn) : rc;
    if (rc != LS_OK)
        core_failed(m, "the reference cannot be opened", rc);
    if (!settles(same, same->base_lsn) || !settles(r, same->base_lsn))
        core_failed(m, "a table cannot be settled", ls_last_error()->code);
    r->store->state.report.base_lsn = same->store->state.report.base_lsn;
    r->store->state.report.end_lsn = same->store->state.report.end_lsn;
    if (!are_equal(r->store, same->store))
        violation("TABLE: the table of member %llu differs behind batch %llu", AT_MEMBER(m), (ull)index);
    sim.counts[COUNT_TABLES]++;
    replica_free(same);
    vfs_sim_free(disk);
}

void tables_compare(struct member *m) {
    struct replica *r = copy_of(m);
    if (r != NULL && r->error == 0 && r->applied.index >= reference.r->end.index)
        compare(m, r);
}

/* Compares the table that the member's disk gives at a start; the member ends for that. */
void tables_compare_at_end(struct member *m) {
    uint64_t index = durable_last();
    ls_host *host = NULL;
    if (!m->has_copy || !m->up)
        return;
    vfs_sim *left = vfs_sim_clone(m->p->disk);
    member_ends(m, NULL);
    int rc = left == NULL ? LS_NO_MEMORY : ls_host_open(vfs_sim_table(left), "/m", &options, &host);
    if (rc != LS_OK)
        core_failed(m, "RECOVERY: a member cannot be opened at the end", rc);
    struct replica *r = ls_host_replica(host);
    int last = r == NULL ? NO_BATCH : batches_find(r->end.term, r->end.index);
    if (last != NO_BATCH && is_in_log(last, durable_at(index))) {
        rc = replica_durable(r, batch_of(durable_at(index))->b.end_lsn);
        if (rc != LS_OK)
            core_failed(m, "what is durable is refused at the end", rc);
        compare(m, r);
    }
    ls_host_close(host);
    vfs_sim_free(left);
}
