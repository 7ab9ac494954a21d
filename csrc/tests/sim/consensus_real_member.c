/* A member's process: its start from the disk, the engine that it opens, and its end. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/consensus_real.h"

enum { WINDOW_MIN = 10 };

static uint64_t serial;

/* ---- its log ---- */

struct replica *copy_of(const struct member *m) {
    return m->p == NULL || m->p->store != NULL ? NULL : m->p->host->follows;
}

/* Of a batch that it keeps, or that its table ends with. */
int id_at(const struct member *m, uint64_t index) {
    ls_replica_entry entry;
    const struct replica *r = copy_of(m);
    if (index == 0)
        return NO_BATCH;
    if (r != NULL && index == r->applied.index)
        return batches_find(r->applied.term, index);
    if (ls_host_entry(m->p->host, index, &entry) == LS_OK)
        return batches_find(entry.term, index);
    for (size_t i = 0; i < m->pending_count; i++)
        if (batch_of(m->pending[i])->b.index == index)
            return m->pending[i];
    return NO_BATCH;
}

int id_last(const struct member *m) {
    const struct replica *r = copy_of(m);
    if (m->pending_count > 0)
        return m->pending[m->pending_count - 1];
    if (m->p->store != NULL)
        return m->last_made;
    return r == NULL || r->end.index == 0 ? NO_BATCH : batches_find(r->end.term, r->end.index);
}

/* It led, wrote the batch, and ended before it took it from its log. */
static int add_untaken(const struct member *m, const ls_replica_batch *b) {
    ls_replica_entry before, entry;
    if (ls_host_entry(m->p->host, b->index - 1, &before) != LS_OK ||
        ls_host_entry(m->p->host, b->index, &entry) != LS_OK)
        return NO_BATCH;
    return batches_add(m->id, b, entry.kind, batches_find(before.term, before.index));
}

/* Every batch of the window has the bytes that its leader handed out. */
static void read_window(const struct member *m, uint64_t first, uint64_t last) {
    for (uint64_t i = first; i <= last; i++) {
        ls_replica_batch b;
        int rc = ls_host_read(m->p->host, i, &b);
        if (rc != LS_OK)
            core_failed(m, "a batch of the kept window cannot be read", rc);
        int id = batches_find(b.term, i);
        if (id == NO_BATCH && judge_leader_of(b.term) == m->id)
            id = add_untaken(m, &b);
        if (id == NO_BATCH || !batches_same_bytes(id, &b))
            violation("BYTES: member %llu has a batch %llu of term %llu that its leader did not hand out", AT_MEMBER(m),
                      (ull)i, (ull)b.term);
        if (i > first && batch_of(id)->before != batches_find(batch_of(batch_of(id)->before)->b.term, i - 1))
            violation("BYTES: the log of member %llu has batch %llu behind another than its leader", AT_MEMBER(m),
                      (ull)i);
    }
}

/* ---- the start ---- */

static void open_engine(struct member *m) {
    static struct engine_entry *entries;
    static size_t capacity;
    const struct host *h = m->p->host;
    const struct replica *r = h->follows;
    struct engine_options o = {.group = GROUP,
                               .member = m->id,
                               .election_ms = ELECTION_MS,
                               .heartbeat_ms = HEARTBEAT_MS,
                               .transfer_ms = TRANSFER_MS,
                               .update_ms = UPDATE_MS,
                               .in_flight_max = 40,
                               .behind_max = 20,
                               .seed = (uint32_t)random_below(UINT32_MAX)};
    struct engine_log log = {
        .vote_term = h->vote->now.term, .voted_for = h->vote->now.voted_for, .header_term = h->header_term};
    uint64_t first, last;
    ls_host_kept(h, &first, &last);
    if (r != NULL && r->end.index != 0) {
        uint64_t known = r->applied.index;
        if (last != r->end.index || first > known + 1)
            violation("member %llu keeps %llu to %llu, its log ends at %llu, of which %llu is durable", AT_MEMBER(m),
                      (ull)first, (ull)last, (ull)r->end.index, (ull)known);
        known = known < 2 ? 0 : known;
        m->kept = first;
        if (known + 1 > first + m->window)
            m->kept = known + 1 - m->window;
        m->kept = known >= 2 && m->kept < 2 ? 2 : m->kept;
        ls_host_drop_kept(m->p->host, NULL, m->kept);
        log.first_kept = m->kept;
        log.count = (uint32_t)(last + 1 - m->kept);
        log.known_durable = known;
        for (uint32_t i = 0; i < log.count; i++) {
            entries = grow(entries, &capacity, i, sizeof *entries);
            entries[i] = entry_of(id_at(m, m->kept + i));
        }
        log.entries = entries;
        if (known >= 2) {
            size_t bytes = 0;
            int rc = ls_host_members(h, &log.members_index, &log.members, &bytes);
            if (rc != LS_OK)
                core_failed(m, "no configuration is known", rc);
            log.known_durable_term = r->applied.term;
            log.members_bytes = (uint32_t)bytes;
        }
        durable_up_to(m->id, id_at(m, r->applied.index), h->vote->now.term);
    }
    m->snapshot = log.known_durable;
    int code = engine_open(&o, &log, sim.now_ms, &m->e);
    if (code != ENGINE_OK)
        violation("member %llu: engine_open answers %d", AT_MEMBER(m), code);
}

static void clear(struct member *m) {
    m->pending_count = m->telling_count = 0;
    m->relied = 0;
    m->switching = m->serve_wanted = m->serves = m->snapshot_wanted = false;
    m->lead_term = m->frozen_until_ms = m->hangs_until_ms = 0;
    m->last_made = NO_BATCH;
    memset(&m->update, 0, sizeof m->update);
}

void member_first(struct member *m, vfs_sim *disk) {
    m->disk = disk;
    m->window = WINDOW_MIN + random_below(random_chance(0.5) ? 40 : 400);
}

void member_start(struct member *m) {
    struct process *p = calloc(1, sizeof *p);
    if (p == NULL)
        run_failed("no memory for a process");
    *p = (struct process){.serial = ++serial, .disk = m->disk, .users = 1};
    m->p = p;
    m->disk = NULL;
    m->up = true;
    m->generation++;
    clear(m);
    net_reset_connections(m->id);
    int rc = ls_host_open(vfs_sim_table(p->disk), "/m", &options, &p->host);
    if (rc != LS_OK)
        core_failed(m, "RECOVERY: a crash reads as a refusal to start", rc);
    if (vfs_sim_record(p->disk, 1) != 0)
        run_failed("no memory for a journal");
    const struct replica *r = p->host->follows;
    m->has_copy = r != NULL;
    if (r != NULL) {
        uint64_t first, last;
        ls_host_kept(p->host, &first, &last);
        read_window(m, first, last);
        note(m, "starts: VOTE has term %llu and %llu, log up to %llu, durable %llu, kept from %llu",
             (ull)p->host->vote->now.term, (ull)p->host->vote->now.voted_for, (ull)r->end.index, (ull)r->applied.index,
             (ull)first);
    } else {
        note(m, "starts without a copy");
    }
    judge_start(m);
    m->told_index = r == NULL ? 0 : r->end.index;
    m->told_term = r == NULL ? 0 : r->end.term;
    m->told_vote_term = p->host->vote->now.term;
    m->told_voted_for = p->host->vote->now.voted_for;
    open_engine(m);
    member_act(m, NULL);
}

/* ---- its end ---- */

void process_use(struct process *p) { p->users++; }

void process_let_go(struct process *p) {
    if (--p->users > 0)
        return;
    for (size_t i = 0; i < TXS; i++)
        ls_tx_free(p->txs[i]);
    ls_free(p->store);
    ls_host_close(p->host);
    if (vfs_sim_handles(p->disk) != 0)
        violation("a process has left %zu handles open", vfs_sim_handles(p->disk));
    vfs_sim_free(p->disk);
    free(p);
}

void member_ends(struct member *m, vfs_sim *left) {
    struct process *p = m->p;
    if (copy_of(m) != NULL)
        sim.counts[COUNT_RECYCLED] += copy_of(m)->stats.segments_recycled;
    updates_from_end(p);
    update_ends(m);
    engine_close(m->e);
    m->e = NULL;
    m->p = NULL;
    m->disk = left;
    m->up = false;
    m->generation++;
    m->pending_count = m->telling_count = 0;
    m->lead_term = 0;
    m->serves = m->serve_wanted = false;
    net_reset_connections(m->id);
    p->ended = true;
    (void)vfs_sim_record(p->disk, 0);
    if (p->store != NULL)
        (void)ls_replica_cease(p->store); /* who waits in it returns */
    process_let_go(p);
}
