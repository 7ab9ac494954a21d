/*
 * The copy of a member that was removed. It is deleted: VOTE gets the next rebuild number, and then the files go. Before that some are
 * detached by their operator, and become a single store: VOTE says so first, and then the log's last batch. A crash may come between.
 */
#include <string.h>

#include "tests/sim/consensus.h"

static bool is_named_anywhere(uint64_t id) {
    const struct table *t = judge_table();
    if (t->members == NO_BATCH || t->applied != judge_largest())
        return true;
    if (configuration_names(batch_of(t->members)->configuration, id))
        return true;
    for (uint64_t i = 1; i <= sim.count; i++) {
        const struct sequence *log = &sim.members[i].log;
        for (size_t k = 0; k < log->count; k++) {
            const struct batch *b = batch_of(log->ids[k]);
            if (b->kind == ENGINE_MEMBERS && b->index > batch_of(t->members)->index &&
                configuration_names(b->configuration, id))
                return true;
        }
    }
    return false;
}

/* ---- a copy becomes a single store ---- */

/* A term above all that it knows; its first batch, without an index, says that all below it is durable. */
static void detach_log(struct member *m) {
    struct recovered before;
    struct recovered after;
    const char *alarm = recover(&m->disk, &before);
    if (alarm != NULL)
        violation("%s (before the detach of member %llu)", alarm, (unsigned long long)m->id);
    uint64_t highest = before.highest_term > m->vote.term ? before.highest_term : m->vote.term;
    uint64_t first = (highest + TERMS) << TERM_SHIFT;
    int id = batch_new();
    struct batch *b = batch_of(id);
    b->lsn = first + HEADER_BYTES;
    b->bytes = 128;
    b->prev_end = b->durable_lsn = b->known_lsn = before.end;
    b->base = before.base;
    disk_header(&m->disk, first, highest + TERMS, before.end);
    (void)disk_put(&m->disk, id, false);
    alarm = recover(&m->disk, &after);
    bool whole = alarm == NULL && after.end == batch_end(id) && after.log.count == before.log.count &&
                 after.before.count == before.before.count + 1;
    for (size_t i = 0; whole && i < before.log.count; i++)
        whole = after.log.ids[i] == before.log.ids[i];
    if (!whole)
        violation("DETACHED: %s (member %llu)", alarm != NULL ? alarm : "a copy lacks what it had before",
                  (unsigned long long)m->id);
    recovered_free(&before);
    recovered_free(&after);
    m->detached_end = batch_end(id);
}

static void detach(struct member *m) {
    bool log_first = planted(MUTANT_DETACH_LOG_FIRST);
    bool crashes = random_chance(0.5);
    note(m, "is detached%s", crashes ? ", and its process ends between VOTE and log" : "");
    sim.counts[COUNT_DETACHED]++;
    m->vote.detached = !log_first || !crashes;
    if (log_first || !crashes)
        detach_log(m);
}

/* ---- a copy is deleted ---- */

static void delete (struct member *m) {
    if (planted(MUTANT_DELETE_FIRST) && m->disk.count > 1 && random_chance(0.5)) {
        disk_remove(&m->disk, m->disk.segments[m->disk.count - 1].first); /* and then it crashes */
        return;
    }
    note(m, "is not a member: its directory is removed");
    disk_free(&m->disk);
    m->log.count = m->before.count = 0;
    m->log.first = 1;
    m->forced = m->told = m->durable = m->detached_end = 0;
    m->sql = (struct sql){0};
    checkpoint_drop(m);
    m->vote.rebuild++;
    m->vote.floor_index = m->vote.floor_term = 0;
    m->vote.detached = false;
    if (planted(MUTANT_WIPE_VOTE))
        m->vote = (struct vote){0};
    sim.counts[COUNT_WIPED]++;
}

void removal_begin(struct member *m) {
    if (m->disk.count == 0 || is_named_anywhere(m->id))
        return;
    if (m->up)
        crash(m);
    if (m->is_older)
        identity_reinstate(m);
    if (m->vote.detached)
        removal_finish(m);
    else if (m->detached_end == 0 && random_chance(0.3))
        detach(m);
    else if (m->detached_end == 0)
        delete (m);
}

/* After a crash VOTE says "detached", and the log may not say so yet. The operator finishes that, and deletes the copy. */
void removal_finish(struct member *m) {
    if (m->detached_end == 0)
        detach_log(m);
    delete (m);
}
