/*
 * A leader's work: it begins its term, writes the store's batches one at a time and gives each to the engine, and serves. Where the
 * engine takes no batch (while it hands over), what the log has handed out waits; if the lead is lost, it is cut.
 */
#include <stdlib.h>

#include "log/parts.h"
#include "tests/sim/consensus_real.h"

/* ---- the beginning and the end of a term ---- */

static void begin(struct member *m) {
    if (sim.now_ms < m->lead_at_ms || disk_is_forcing(m) || m->pending_count > 0 || !engine_may_submit(m->e))
        return;
    m->last_made = id_last(m);
    update_ends(m);
    int rc = ls_host_lead(m->p->host, m->lead_term, NULL, 0, &m->p->store);
    if (rc == LS_FULL)
        kill_and_restart(m);
    else if (rc != LS_OK)
        core_failed(m, "a copy cannot lead", rc);
    else
        faults_soon(m, 0.06, 6);
}

bool lead_end(struct member *m, uint64_t last) {
    struct process *p = m->p;
    note(m, "leads term %llu no more", (ull)m->lead_term);
    m->lead_term = 0;
    m->serves = m->serve_wanted = false;
    if (p->store == NULL)
        return true;
    if (p->users > 1) { /* a call that waits keeps the store: the process ends, and the next one follows */
        kill_and_restart(m);
        return false;
    }
    (void)ls_replica_cease(p->store);
    for (size_t i = 0; i < TXS; i++) {
        ls_tx_free(p->txs[i]);
        p->txs[i] = NULL;
    }
    ls_free(p->store);
    p->store = NULL;
    int rc = ls_host_follow(p->host);
    if (rc != LS_OK)
        core_failed(m, "RECOVERY: a leader cannot follow again", rc);
    if (p->host->follows->end.index > last && (rc = ls_host_cut(p->host, last)) != LS_OK)
        core_failed(m, "what was never an entry cannot be cut", rc);
    uint64_t first, kept;
    ls_host_kept(p->host, &first, &kept);
    if (first > m->kept) { /* the engine goes by entries that were kept longer than kept_bytes: it begins anew */
        kill_and_restart(m);
        return false;
    }
    ls_host_drop_kept(p->host, NULL, m->kept);
    return true;
}

/* ---- batches ---- */

/* Between the check and the submission nothing else happens to the engine. */
static void hand_out(struct member *m) {
    ls_store *store = m->p->store;
    ls_replica_batch b;
    while (m->p != NULL && m->p->store == store && engine_may_submit(m->e)) {
        int rc = ls_replica_next(store, &b);
        if (rc == LS_END)
            return;
        ls_replica_entry entry;
        if (rc != LS_OK || ls_host_entry(m->p->host, b.index, &entry) != LS_OK)
            core_failed(m, "a leader's batch cannot be taken", rc);
        bool first = batch_of(m->last_made)->b.term != b.term;
        int id = batches_add(m->id, &b, entry.kind, m->last_made);
        if (b.term != m->lead_term || first != (b.index == m->first_index) || first != (entry.kind == ENGINE_FIRST))
            violation("R5: member %llu leads term %llu from batch %llu on, and hands out batch %llu of term %llu, kind "
                      "%u",
                      AT_MEMBER(m), (ull)m->lead_term, (ull)m->first_index, (ull)b.index, (ull)b.term, entry.kind);
        struct engine_entry given = entry_of(id);
        m->last_made = id;
        disk_tell_later(m, (struct telling){TOLD_FORCED, .index = b.index, .term = b.term});
        int code = engine_submit(m->e, sim.now_ms, &given);
        if (code != ENGINE_OK)
            violation("member %llu: engine_submit answers %d", AT_MEMBER(m), code);
        member_act(m, NULL);
    }
}

/* The oldest batch, as a thread of the store would write it. */
static void write_one(struct member *m) {
    struct log *g = m->p->store->log;
    if (disk_is_forcing(m) || sim.now_ms < m->hangs_until_ms || !engine_may_submit(m->e))
        return;
    log_lock(g);
    if (g->poison == 0 && !g->commit.leading && log_unforced(g) > 0)
        log_lead_one(g);
    log_unlock(g);
    hand_out(m);
}

static void serve(struct member *m) {
    static const uint32_t queues[QUEUES] = {1, 2, 3};
    struct process *p = m->p;
    unsigned generation = m->generation;
    m->serve_wanted = false;
    process_use(p);
    int rc = ls_replica_serve(p->store, queues, QUEUES, QUEUES + 1);
    bool goes_on = m->generation == generation && m->lead_term != 0;
    if (rc != LS_OK && goes_on && rc != LS_FULL)
        core_failed(m, "a leader cannot serve", rc);
    if (goes_on && rc == LS_OK) {
        m->serves = true;
        note(m, "serves term %llu", (ull)m->lead_term);
        client_meets(m);
    }
    process_let_go(p);
}

void lead_work(struct member *m) {
    if (m->lead_term == 0)
        return;
    if (m->p->store == NULL)
        begin(m);
    if (m->p == NULL || m->p->store == NULL)
        return;
    hand_out(m);
    if (m->p != NULL && m->p->store != NULL && random_chance(0.5))
        write_one(m);
    if (m->p == NULL || m->p->store == NULL || m->p->users > 1)
        return;
    if (m->serve_wanted)
        serve(m);
    else if (m->serves && random_chance(sim.healing ? 0.05 : 0.25))
        client_works(m);
}

/* ---- members ---- */

static bool choose_change(const struct member *m, struct engine_change *change) {
    static const char *const addresses[] = {"none", "one:1", "two:2", "three:3", "four:4", "five:5"};
    struct engine_member now[ENGINE_MEMBERS_MAX];
    size_t count = engine_members(m->e, now);
    uint64_t id = 1 + random_below(sim.count);
    size_t voters = 0, at = count;
    for (size_t i = 0; i < count; i++) {
        voters += now[i].voter;
        at = now[i].member == id ? i : at;
    }
    *change = (struct engine_change){.what = ENGINE_ADD, .member = id, .address = addresses[id]};
    if (at == count)
        return !sim.members[id].has_copy; /* a removed member comes back only after its copy was deleted */
    change->what = now[at].voter || random_chance(0.1) ? ENGINE_REMOVE : ENGINE_PROMOTE;
    return !now[at].voter || (id != m->id && voters > 1 && (voters > 3 || random_chance(0.27)));
}

bool lead_change(struct member *m) {
    struct engine_change change;
    uint8_t config[ENGINE_CONFIGURATION_MAX];
    uint32_t bytes = 0;
    uint64_t index = 0;
    ls_store *store = m->p->store;
    if (!m->serves || store == NULL || m->p->users > 1 || disk_is_forcing(m))
        return false;
    struct log *g = store->log;
    if (log_unforced(g) > 0 || g->busy + 2 > g->buffer_count || !choose_change(m, &change))
        return false; /* it may not wait */
    if (engine_plan(m->e, &change, config, &bytes) != ENGINE_OK)
        return false;
    struct process *p = m->p;
    unsigned generation = m->generation;
    process_use(p);
    int rc = ls_replica_change_members(store, config, bytes, &index);
    bool goes_on = m->generation == generation && m->p == p && m->p->store == store;
    process_let_go(p);
    if (!goes_on || rc == LS_FULL)
        return false;
    if (rc != LS_OK)
        core_failed(m, "a change of members is refused", rc);
    static const char *const words[] = {"", "adds", "promotes", "removes"};
    note(m, "%s member %llu", words[change.what], (ull)change.member);
    sim.counts[COUNT_CHANGES]++;
    write_one(m);
    return true;
}

void lead_transfer(struct member *m) {
    uint64_t to = random_chance(0.3) ? 0 : 1 + random_below(sim.count);
    if (engine_transfer(m->e, sim.now_ms, to) == ENGINE_OK) {
        sim.counts[COUNT_TRANSFERS]++;
        note(m, "hands over, to member %llu (0: any)", (ull)to);
    }
    member_act(m, NULL);
}
