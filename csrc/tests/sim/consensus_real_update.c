/*
 * Copies by segments, and the kept window. The receiver asks a member for its log, takes it in parts while everybody works on, and
 * switches it in; if the sender is lost, another one goes on.
 */
#include <stdio.h>
#include <string.h>

#include "tests/sim/consensus_real.h"

enum { PART_BYTES = 24 << 10, TRIES_MAX = 60 };

static void sender_is_lost(struct updating *u) {
    struct process *p = u->sender;
    ls_update_free(u->at);
    ls_update_source_close(u->source);
    u->at = NULL;
    u->source = NULL;
    u->sender = NULL;
    u->described = false;
    if (p != NULL)
        process_let_go(p);
}

void update_ends(struct member *m) {
    sender_is_lost(&m->update);
    m->update.wanted = false;
}

void updates_from_end(const struct process *p) {
    for (uint64_t i = 1; i <= sim.count; i++)
        if (sim.members[i].update.sender == p)
            sender_is_lost(&sim.members[i].update);
}

static void give_up(struct member *m) {
    update_ends(m);
    (void)engine_update_failed(m->e);
}

void update_wanted(struct member *m, const struct engine_answer *a) {
    update_ends(m);
    m->update.wanted = true;
    m->update.from = a->update.from;
    m->update.index = a->update.index;
    m->update.tries = 0;
    m->update.next_ms = sim.now_ms + 1 + random_below(20);
    note(m, "wants a copy up to %llu from member %llu", (ull)a->update.index, (ull)a->update.from);
}

/* ---- the sender ---- */

static bool can_send(const struct member *from, const struct member *m) {
    return from->up && from->has_copy && from != m && !from->switching && from->frozen_until_ms <= sim.now_ms &&
           !net_is_cut(from->id, m->id) && !net_is_cut(m->id, from->id);
}

static void find_sender(struct member *m) {
    struct updating *u = &m->update;
    char path[64], name[32];
    struct member *from = &sim.members[u->from];
    if (!can_send(from, m))
        from = &sim.members[u->from = 1 + random_below(sim.count)];
    if (!can_send(from, m))
        return;
    (void)snprintf(path, sizeof path, "/m/copy-%llu", (ull)from->p->host->vote->now.copy);
    (void)snprintf(name, sizeof name, "update-%llu", AT_MEMBER(m));
    uint64_t limit = random_chance(0.3) ? 4 * options.segment_size : UINT64_C(1) << 40;
    int rc = ls_update_source_open(vfs_sim_table(from->p->disk), path, name, limit, UINT64_C(86400) * 1000000, 0,
                                   &u->source);
    if (rc == LS_OK) {
        u->sender = from->p;
        process_use(from->p);
    } else if (rc != LS_WOULD_WAIT && rc != LS_RECYCLED) {
        core_failed(from, "an update cannot be sent", rc);
    }
}

static void describe(struct member *m) {
    struct updating *u = &m->update;
    int rc = ls_update_source_step(u->source, 1 + random_below(UINT64_C(200000)));
    if (rc == LS_OK)
        return;
    if (rc == LS_END)
        rc = ls_update_source_manifest(u->source, &u->manifest, u->segments, UPDATE_SEGMENTS);
    u->described = rc == LS_OK && u->manifest.segment_count <= UPDATE_SEGMENTS;
    if (u->described && durable_at(u->manifest.index) != batches_find(u->manifest.term, u->manifest.index))
        violation("UPDATE: a copy from member %llu ends with batch %llu of term %llu, which is not durable",
                  (ull)u->from, (ull)u->manifest.index, (ull)u->manifest.term);
    if (rc != LS_OK && rc != LS_RECYCLED)
        core_failed(&sim.members[u->from], "the log to be sent cannot be described", rc);
    if (!u->described)
        sender_is_lost(u);
}

/* ---- the receiver ---- */

static void begin(struct member *m) {
    struct updating *u = &m->update;
    if (m->p->host->vote->now.term < u->manifest.term)
        return;
    int rc = ls_update_begin(m->p->host, &u->manifest, u->segments, &u->at);
    if (rc == LS_REFUSED)
        give_up(m); /* it has more by now */
    else if (rc != LS_OK)
        core_failed(m, "a member refuses an update", rc);
}

/* LS_END: all is here. */
static int move_part(struct updating *u) {
    static uint8_t bytes[PART_BYTES];
    ls_update_part part;
    int rc = ls_update_next(u->at, &part);
    if (rc != LS_OK || part.bytes == 0)
        return rc;
    size_t n = 1 + random_below(PART_BYTES);
    n = part.bytes < n ? (size_t)part.bytes : n;
    rc = ls_update_source_read(u->source, part.first_lsn, part.offset, bytes, n);
    return rc == LS_OK ? ls_update_write(u->at, part.first_lsn, part.offset, bytes, n) : rc;
}

/* The engine first says whether the copy is of use. */
static void finish(struct member *m) {
    struct updating *u = &m->update;
    uint64_t index = u->manifest.index, term = u->manifest.term;
    int members = durable_members(index);
    if (members == NO_BATCH)
        violation("UPDATE: there is no configuration up to batch %llu", (ull)index);
    struct engine_entry newest = entry_of(members);
    int code = engine_updated(m->e, sim.now_ms, index, term, batch_of(members)->b.index, newest.configuration,
                              newest.configuration_bytes);
    bool switches = (engine_answer(m->e)->flags & ENGINE_SWITCH) != 0;
    if (code != ENGINE_OK && code != ENGINE_REFUSED)
        violation("member %llu: engine_updated answers %d", AT_MEMBER(m), code);
    if (!switches) {
        member_act(m, NULL);
        if (m->up && (m->p->store != NULL || u->tries++ > TRIES_MAX || index < u->index ||
                      (copy_of(m) != NULL && copy_of(m)->applied.index >= index)))
            give_up(m);
        return;
    }
    m->switching = true;
    m->pending_count = 0;
    for (int id = batches_find(m->told_term, m->told_index); m->told_index > 0; id = batch_of(id)->before) {
        m->told_index = id == NO_BATCH ? 0 : batch_of(id)->b.index;
        m->told_term = id == NO_BATCH ? 0 : batch_of(id)->b.term;
        if (id == NO_BATCH || (m->told_index <= index && is_in_log(batches_find(term, index), id)))
            break; /* no majority had what the copy lacks */
    }
    int rc = ls_update_finish(u->at);
    if (rc != LS_OK)
        core_failed(m, "UPDATE: an update cannot be switched in", rc);
    updates_from_end(m->p); /* the directory that was sent is gone */
    update_ends(m);
    m->has_copy = true;
    m->kept = index + 1;
    m->snapshot = index;
    ls_host_drop_kept(m->p->host, NULL, m->kept);
    const struct replica *r = copy_of(m);
    if (r->applied.index != index || r->applied.term != term || r->end.index != index)
        violation("UPDATE: the copy of member %llu ends with %llu, and its update with %llu", AT_MEMBER(m),
                  (ull)r->end.index, (ull)index);
    durable_up_to(m->id, batches_find(term, index), engine_answer(m->e)->term);
    disk_tell_later(m, (struct telling){TOLD_SWITCHED, .index = index, .term = term});
    sim.counts[COUNT_UPDATES]++;
    note(m, "has a copy, up to %llu", (ull)index);
    member_act(m, NULL);
    faults_soon(m, 0.1, 5);
}

static void move_parts(struct member *m) {
    struct updating *u = &m->update;
    int rc = LS_OK;
    for (uint64_t n = 1 + random_below(4); n > 0 && rc == LS_OK; n--)
        rc = move_part(u);
    if (rc == LS_END)
        finish(m);
    else if (rc == LS_RECYCLED)
        sender_is_lost(u);
    else if (rc != LS_OK)
        core_failed(m, "UPDATE: a part of an update is refused", rc);
}

void update_work(struct member *m) {
    struct updating *u = &m->update;
    if (!u->wanted || sim.now_ms < u->next_ms || m->p->store != NULL || m->switching)
        return;
    u->next_ms = sim.now_ms + 1 + random_below(6);
    if (u->sender != NULL && (u->sender->ended || !can_send(&sim.members[u->from], m)))
        sender_is_lost(u);
    if (u->source == NULL) {
        find_sender(m);
        if (u->source == NULL && u->tries++ > TRIES_MAX)
            give_up(m);
    } else if (!u->described) {
        describe(m);
    } else if (u->at == NULL) {
        begin(m);
    } else {
        move_parts(m);
    }
}

/* ---- the kept window ---- */

void keep_snapshot(struct member *m) {
    uint64_t index = engine_answer(m->e)->durable_index, kept = 0;
    if (m->switching || !m->has_copy || index <= m->snapshot || index < 2)
        return;
    uint64_t first = index > m->window ? index + 1 - m->window : 1;
    first = first < m->kept ? m->kept : first;
    if (engine_snapshot(m->e, sim.now_ms, index, first, &kept) == ENGINE_OK) {
        m->snapshot = index;
        m->kept = kept;
        m->snapshot_wanted = false;
        ls_host_drop_kept(m->p->host, m->p->store, kept);
    }
    member_act(m, NULL);
}
