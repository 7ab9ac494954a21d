/*
 * What a member keeps beside its log. SQL: the catalog changes of durable batches, with the LSN up to which it has them, in one
 * transaction; it follows late. A checkpoint: the table after a durable batch, from which a start replays. Files above
 * applied_lsn stay, whatever the base, and an update begins at or below the sender's.
 */
#include <string.h>

#include "tests/sim/consensus.h"

/* The batches whose changes SQL lacks, up to what is durable. */
void catalog_apply(struct member *m) {
    if (m->copy.complete || m->state.applied <= m->sql.index)
        return;
    for (uint64_t i = m->sql.index + 1; i <= m->state.applied; i++) {
        int id = sequence_at(&m->log, i);
        if (id == NO_BATCH)
            violation("CATALOG: SQL of member %llu has applied %llu, its log begins at %llu", (unsigned long long)m->id,
                      (unsigned long long)m->sql.index, (unsigned long long)m->log.first);
        m->sql.sum += batch_of(id)->catalog;
        m->sql.index = i;
        m->sql.lsn = batch_end(id);
    }
    judge_catalog(m);
}

/* The sender's SQL comes with a copy, before VOTE names it. */
void catalog_import(struct member *m, const struct sql *from) {
    if (from->index > m->sql.index)
        m->sql = *from;
    judge_catalog(m);
}

uint64_t catalog_keeps(const struct member *m, uint64_t base) {
    bool ignored = planted(MUTANT_CATALOG_LOST);
    return ignored || base < m->sql.lsn ? base : m->sql.lsn;
}

/* ---- checkpoints ---- */

void checkpoint_take(struct member *m) {
    struct checkpoint *c = &m->checkpoint;
    int id = sequence_at(&m->log, m->state.applied);
    if (m->copy.complete || id == NO_BATCH || m->state.applied < 2 || m->state.applied > m->forced)
        return;
    table_copy(&c->table, &m->state);
    c->batch = id;
    c->exists = true;
    sim.counts[COUNT_CHECKPOINTS]++;
}

/* Whether it belongs to this log: the log has its batch, or that batch was the last to be recycled. */
bool checkpoint_counts(const struct member *m) {
    const struct checkpoint *c = &m->checkpoint;
    if (!c->exists || m->log.count == 0)
        return false;
    uint64_t index = batch_of(c->batch)->index;
    return sequence_at(&m->log, index) == c->batch;
}

void checkpoint_drop(struct member *m) { m->checkpoint.exists = false; }
