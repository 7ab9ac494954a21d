/*
 * libraft behind plain calls: its events, its state, start and close. No other file includes raft.h.
 */
#include <assert.h>
#include <pthread.h>
#include <raft.h>
#include <stdlib.h>
#include <string.h>

#include "consensus/engine_parts.h"
#include "consensus/reserve.h"

#ifndef RAFT__LEGACY_no
#error "the interface of earlier versions of libraft must be off: a library of the system may not be used"
#endif

enum {
    LOST_MS_LEAST = 3,
    /* Voters that lose their leader at the same moment must not become candidates at the same moment. */
    LOST_MS_SPREAD = 60,
    PROGRESS_BYTES = 128,
    BATCH_BYTES_LEAST = 8,
};

struct with_libraft {
    engine e; /* the first */
    struct raft raft;
};

static struct raft_heap heap = {
    .malloc = reserve_malloc, .free = reserve_free, .calloc = reserve_calloc, .realloc = reserve_realloc};

/* libraft has one allocator for the whole process. Several threads may open engines at once. */
static pthread_once_t heap_is_set = PTHREAD_ONCE_INIT;

static void set_heap(void) { raft_heap_set(&heap); }

int engine_raft_version(void) { return raft_version_number(); }

/* ---- what libraft knows ---- */

bool leads(const engine *e) { return e->raft->state == RAFT_LEADER; }

bool follows(const engine *e) { return e->raft->state == RAFT_FOLLOWER; }

bool is_candidate(const engine *e) { return e->raft->state == RAFT_CANDIDATE; }

bool is_in_pre_vote(const engine *e) { return e->raft->candidate_state.in_pre_vote; }

uint64_t current_term(const engine *e) { return e->raft->current_term; }

uint64_t voted_for(const engine *e) { return e->raft->voted_for; }

uint64_t last_leader(const engine *e) { return follows(e) ? e->raft->follower_state.current_leader.id : 0; }

uint64_t known_leader(const engine *e) { return e->heard_term == e->raft->current_term ? last_leader(e) : 0; }

uint64_t stored_index(const engine *e) { return e->raft->last_stored; }

uint64_t committed_index(const engine *e) { return e->raft->commit_index; }

uint64_t matched_index(const engine *e) { return e->raft->follower_state.match; }

uint64_t snapshot_index(const engine *e) { return e->raft->trail.snapshot.index; }

uint64_t first_kept_index(const engine *e) { return e->raft->trail.offset + 1; }

uint64_t term_at(const engine *e, uint64_t index) {
    const struct raft_trail *t = &e->raft->trail;
    if (index == 0)
        return 0;
    if (index == t->snapshot.index)
        return t->snapshot.term;
    uint64_t end = t->offset;
    for (unsigned i = t->front; i != t->back; i = (i + 1) % t->size) {
        if (index > end && index <= t->records[i].index)
            return t->records[i].term;
        end = t->records[i].index;
    }
    return 0;
}

static void read_members(const struct raft_configuration *c, struct members *into) {
    into->count = 0;
    for (unsigned i = 0; i < c->n; i++) {
        bool added = members_add(into, c->servers[i].id, c->servers[i].address, (uint32_t)c->servers[i].role);
        assert(added);
    }
}

void read_configuration(const engine *e, struct members *into) { read_members(&e->raft->configuration, into); }

static const struct raft_server *server_of(const engine *e, uint64_t id) {
    for (unsigned i = 0; i < e->raft->configuration.n; i++)
        if (e->raft->configuration.servers[i].id == id)
            return &e->raft->configuration.servers[i];
    return NULL;
}

bool is_member(const engine *e, uint64_t id) { return server_of(e, id) != NULL; }

bool is_voter(const engine *e, uint64_t id) {
    const struct raft_server *server = server_of(e, id);
    return server != NULL && server->role == RAFT_VOTER;
}

static unsigned voters(const engine *e) {
    unsigned n = 0;
    for (unsigned i = 0; i < e->raft->configuration.n; i++)
        n += e->raft->configuration.servers[i].role == RAFT_VOTER;
    return n;
}

uint64_t acknowledged(const engine *e, uint64_t id) {
    raft_index match = 0;
    return raft_match_index(e->raft, id, &match) == 0 ? match : 0;
}

size_t engine_members(const engine *e, struct engine_member *into) {
    for (unsigned i = 0; i < e->raft->configuration.n; i++) {
        const struct raft_server *s = &e->raft->configuration.servers[i];
        into[i] = (struct engine_member){s->id, acknowledged(e, s->id), s->address, s->role == RAFT_VOTER};
    }
    return e->raft->configuration.n;
}

uint64_t open_change_index(const engine *e) { return e->raft->configuration_uncommitted_index; }

uint64_t last_change_index(const engine *e) { return e->raft->configuration_committed_index; }

uint64_t timeout_ms(const engine *e) { return raft_timeout(e->raft); }

bool is_transferring(const engine *e) { return e->raft->leader_state.transferee != 0; }

bool has_told_to_stand(const engine *e) { return e->raft->leader_state.transferring; }

static bool make_configuration(const struct members *m, struct raft_configuration *made) {
    raft_configuration_init(made);
    for (uint32_t i = 0; i < m->count; i++) {
        if (raft_configuration_add(made, m->all[i].id, m->all[i].address, (int)m->all[i].role) != 0) {
            raft_configuration_close(made);
            return false;
        }
    }
    return true;
}

/* ---- one event of libraft ---- */

static void send_message(engine *e, const struct raft_message *m) {
    struct engine_frame f = {.peer = m->server_id};
    switch (m->type) {
    case RAFT_APPEND_ENTRIES:
        f.type = ENGINE_APPEND;
        f.term = m->append_entries.term;
        f.index = m->append_entries.prev_log_index;
        f.index_term = m->append_entries.prev_log_term;
        f.other = m->append_entries.leader_commit;
        f.count = m->append_entries.n_entries;
        send_append(e, f);
        return;
    case RAFT_APPEND_ENTRIES_RESULT:
        f.type = ENGINE_APPENDED;
        f.term = m->append_entries_result.term;
        f.other = m->append_entries_result.rejected;
        f.index = m->append_entries_result.last_log_index;
        e->answered_ms = e->now;
        break;
    case RAFT_REQUEST_VOTE:
        f.type = ENGINE_ASK_VOTE;
        f.term = m->request_vote.term;
        f.index = m->request_vote.last_log_index;
        f.index_term = m->request_vote.last_log_term;
        f.flags = (m->request_vote.pre_vote ? ENGINE_PRE_VOTE : 0U) |
                  (m->request_vote.disrupt_leader ? ENGINE_BY_TRANSFER : 0U);
        break;
    case RAFT_REQUEST_VOTE_RESULT:
        f.type = ENGINE_VOTED;
        f.term = m->request_vote_result.term;
        f.flags = (m->request_vote_result.pre_vote ? ENGINE_PRE_VOTE : 0U) |
                  (m->request_vote_result.vote_granted ? ENGINE_GRANTED : 0U);
        break;
    case RAFT_INSTALL_SNAPSHOT:
        f.type = ENGINE_UPDATE;
        f.term = m->install_snapshot.term;
        f.index = m->install_snapshot.last_index;
        f.index_term = m->install_snapshot.last_term;
        f.other = m->install_snapshot.conf_index;
        e->hold_index = e->sends_update ? least(e->hold_index, f.index) : f.index;
        e->hold_until_ms = e->now + 2 * (uint64_t)e->options.update_ms;
        break;
    case RAFT_TIMEOUT_NOW:
        f.type = ENGINE_TIMEOUT_NOW;
        f.term = m->timeout_now.term;
        f.index = m->timeout_now.last_log_index;
        f.index_term = m->timeout_now.last_log_term;
        break;
    default:
        return;
    }
    emit(e, f);
}

void drop_unmade(engine *e) {
    struct raft_trail *t = &e->raft->trail;
    unsigned newest = t->size == 0 ? 0 : (t->back + t->size - 1) % t->size;
    if (t->front == t->back || t->records[newest].index != e->last || t->records[newest].term != e->lead_term)
        return; /* libraft has cut it */
    t->records[newest].index = 0;
    t->records[newest].term = 0;
    t->back = newest;
    e->last = e->given;
}

/* All memory that one event may allocate: the list of terms doubles, the list of messages doubles, a few configurations
   are copied. */
static size_t needed_bytes(const engine *e, size_t terms) {
    size_t trail = 4 * (e->raft->trail.size + terms + 2) * sizeof *e->raft->trail.records;
    size_t messages = (2 * (size_t)e->raft->n_messages_cap + 16) * 2 * sizeof(struct raft_message);
    size_t configuration =
        ENGINE_CONFIGURATION_MAX + ENGINE_MEMBERS_MAX * (ENGINE_MEMBERS_MAX + 2) * (sizeof(struct raft_server) + 32);
    return trail + messages + 4 * configuration + 2 * ENGINE_MEMBERS_MAX * PROGRESS_BYTES;
}

static int step_terms(engine *e, struct raft_event *event, size_t terms) {
    if (!reserve_take(needed_bytes(e, terms)))
        return RAFT_NOMEM;
    struct raft_update update = {0};
    event->time = e->now;
    int rv = raft_step(e->raft, event, &update);
    assert(rv != RAFT_NOMEM);
    note_vote(e); /* a refused frame may have had a new term */
    note_lead(e);
    if (rv != 0)
        return rv;
    if ((update.flags & RAFT_UPDATE_ENTRIES) != 0) {
        note_entries(e, update.entries.index, update.entries.index + update.entries.n - 1);
        raft_free(update.entries.batch[0].batch);
    }
    if ((update.flags & RAFT_UPDATE_MESSAGES) != 0)
        for (unsigned i = 0; i < update.messages.n; i++)
            send_message(e, &update.messages.batch[i]);
    return 0;
}

static int step(engine *e, struct raft_event *event) { return step_terms(e, event, ENGINE_ENTRIES_MAX); }

static enum taken taken(int rv) {
    return rv == 0 ? TAKEN : rv == RAFT_NOMEM ? NO_MEMORY : rv == RAFT_SHUTDOWN ? CONTRADICTS : NOT_TAKEN;
}

/* A configuration is confirmed once a majority has it, even if this disk lacks it, because the next one may follow in
   the same frame. */
void confirm_members(engine *e) {
    uint64_t index = e->raft->configuration_uncommitted_index;
    if (index == 0 || index > e->raft->commit_index || !reserve_take(needed_bytes(e, 0)))
        return;
    struct members m;
    struct raft_event event = {.type = RAFT_CONFIGURATION};
    read_members(&e->raft->configuration, &m);
    event.configuration.index = index;
    if (!make_configuration(&m, &event.configuration.conf))
        return;
    if (step(e, &event) != 0)
        raft_configuration_close(&event.configuration.conf);
}

void forget_leader(engine *e) {
    raft_free(e->raft->follower_state.current_leader.address);
    e->raft->follower_state.current_leader.address = NULL;
    e->raft->follower_state.current_leader.id = 0;
}

void restart_timer(engine *e) { e->raft->election_timer_start = e->now; }

void stand_soon(engine *e) {
    uint64_t wait = raft_random(&e->raft->random, LOST_MS_LEAST, LOST_MS_LEAST + LOST_MS_SPREAD);
    e->raft->election_timer_start = e->now + wait - e->raft->follower_state.randomized_election_timeout;
}

static bool is_sole_voter(const engine *e) { return voters(e) == 1 && is_voter(e, e->options.member); }

void time_out(engine *e) {
    if (e->raft->state == RAFT_CANDIDATE) {
        e->raft->candidate_state.disrupt_leader = false;
        e->raft->candidate_state.in_pre_vote = true;
    }
    if (follows(e) && is_sole_voter(e) && e->raft->last_stored == e->last && e->copy != COPY_SWITCHING &&
        raft_timeout(e->raft) <= e->now) {
        e->raft->current_term++;
        e->raft->voted_for = e->options.member;
    }
    /* If a peer does not answer between two timeouts, libraft considers it lost, and sends it a new entry only with the
       next heartbeat. So each peer gets a heartbeat at each timeout. */
    raft_set_heartbeat_timeout(e->raft, 0);
    struct raft_event event = {.type = RAFT_TIMEOUT};
    if (step(e, &event) != 0)
        e->stats.dropped++;
    raft_set_heartbeat_timeout(e->raft, e->options.heartbeat_ms);
}

/* A higher term is Raft's own reason to cease, so no step is left half done; it costs one term. There is no other way:
   libraft also ceases at a timeout without a majority, but a sole voter always has a majority, and this file cannot
   make libraft forget peers that answer. */
void step_down(engine *e) {
    struct raft_message m = {.type = RAFT_APPEND_ENTRIES_RESULT, .server_id = e->options.member, .server_address = ""};
    m.append_entries_result.version = 1;
    m.append_entries_result.term = e->raft->current_term + 1;
    struct raft_event event = {.type = RAFT_RECEIVE, .receive.message = &m};
    if (e->raft->current_term < ENGINE_TERM_MAX && step(e, &event) != 0)
        e->stats.dropped++;
}

enum taken note_forced(engine *e, uint64_t index) {
    struct raft_event event = {.type = RAFT_PERSISTED_ENTRIES, .persisted_entries.index = index};
    return taken(step(e, &event));
}

enum taken start_transfer(engine *e, uint64_t to) {
    struct raft_event event = {.type = RAFT_TRANSFER, .transfer.server_id = to};
    return taken(step(e, &event));
}

void end_transfer(engine *e) {
    e->raft->leader_state.transferee = 0;
    e->raft->leader_state.transferring = false;
}

enum taken take_snapshot(engine *e, uint64_t index, uint64_t first_kept) {
    struct raft_event event = {.type = RAFT_SNAPSHOT};
    event.snapshot.metadata.index = index;
    event.snapshot.metadata.term = term_at(e, index);
    event.snapshot.metadata.configuration_index = last_change_index(e);
    event.snapshot.trailing = (unsigned)(index + 1 - first_kept);
    return taken(step(e, &event));
}

void set_update_timeout(engine *e, uint32_t ms) { raft_set_install_snapshot_timeout(e->raft, ms); }

enum taken note_switched(engine *e, const struct members *m) {
    struct raft_event event = {.type = RAFT_PERSISTED_SNAPSHOT, .persisted_snapshot.last = true};
    struct raft_snapshot_metadata *metadata = &event.persisted_snapshot.metadata;
    metadata->index = e->copy_index;
    metadata->term = e->copy_term;
    metadata->configuration_index = e->copy_members_index;
    if (!reserve_take(needed_bytes(e, 0)) || !make_configuration(m, &metadata->configuration))
        return NO_MEMORY;
    enum taken done = taken(step(e, &event));
    if (done != TAKEN)
        raft_configuration_close(&metadata->configuration);
    return done;
}

/* ---- frames and entries in the form that libraft uses ---- */

static const enum raft_entry_type types[] = {0, RAFT_COMMAND, RAFT_BARRIER, RAFT_CHANGE};

/* The block that all entries of an event share; libraft frees it. Only configurations have bytes that libraft reads. */
static uint8_t *make_batch(engine *e, const struct engine_entry *first, size_t terms) {
    size_t bytes = first->kind == ENGINE_MEMBERS ? first->configuration_bytes : BATCH_BYTES_LEAST;
    uint8_t *batch = reserve_take(needed_bytes(e, terms)) ? raft_malloc(bytes) : NULL;
    if (batch == NULL)
        return NULL;
    memset(batch, 0, bytes);
    if (first->kind == ENGINE_MEMBERS)
        memcpy(batch, first->configuration, bytes);
    return batch;
}

static struct raft_entry make_entry(const struct engine_entry *entry, uint8_t *batch) {
    size_t bytes = entry->kind == ENGINE_MEMBERS ? entry->configuration_bytes : BATCH_BYTES_LEAST;
    return (struct raft_entry){.term = entry->term, .type = types[entry->kind], .buf = {batch, bytes}, .batch = batch};
}

static enum taken receive_message(engine *e, struct raft_message *m) {
    struct raft_event event = {.type = RAFT_RECEIVE, .receive.message = m};
    m->server_address = "";
    int rv = step(e, &event);
    if (rv == RAFT_NOMEM)
        e->stats.dropped++;
    return taken(rv);
}

static enum taken give_append(engine *e, const struct engine_frame *f) {
    struct raft_message m = {.type = RAFT_APPEND_ENTRIES, .server_id = f->peer};
    struct raft_entry entries[ENGINE_ENTRIES_MAX];
    uint8_t *batch = f->count == 0 ? NULL : make_batch(e, f->entries, ENGINE_ENTRIES_MAX);
    if (f->count > 0 && batch == NULL) {
        e->stats.dropped++;
        return NO_MEMORY;
    }
    for (uint32_t i = 0; i < f->count; i++)
        entries[i] = make_entry(&f->entries[i], batch);
    m.append_entries.term = f->term;
    m.append_entries.prev_log_index = f->index;
    m.append_entries.prev_log_term = f->index_term;
    m.append_entries.leader_commit = f->other;
    m.append_entries.entries = f->count == 0 ? NULL : entries;
    m.append_entries.n_entries = f->count;
    enum taken done = receive_message(e, &m);
    if (done == NO_MEMORY)
        raft_free(batch); /* libraft was not entered */
    return done;
}

enum taken give(engine *e, const struct engine_frame *f) {
    struct raft_message m = {.server_id = f->peer};
    switch (f->type) {
    case ENGINE_APPEND:
        return give_append(e, f);
    case ENGINE_APPENDED:
        m.type = RAFT_APPEND_ENTRIES_RESULT;
        m.append_entries_result.version = 1;
        m.append_entries_result.term = f->term;
        m.append_entries_result.rejected = f->other;
        m.append_entries_result.last_log_index = f->index;
        break;
    case ENGINE_ASK_VOTE:
        m.type = RAFT_REQUEST_VOTE;
        m.request_vote.version = 2;
        m.request_vote.term = f->term;
        m.request_vote.candidate_id = f->peer;
        m.request_vote.last_log_index = f->index;
        m.request_vote.last_log_term = f->index_term;
        m.request_vote.pre_vote = (f->flags & ENGINE_PRE_VOTE) != 0;
        m.request_vote.disrupt_leader = (f->flags & ENGINE_BY_TRANSFER) != 0;
        break;
    case ENGINE_VOTED:
        m.type = RAFT_REQUEST_VOTE_RESULT;
        m.request_vote_result.version = 2;
        m.request_vote_result.term = f->term;
        m.request_vote_result.vote_granted = (f->flags & ENGINE_GRANTED) != 0;
        m.request_vote_result.pre_vote = (f->flags & ENGINE_PRE_VOTE) != 0;
        break;
    case ENGINE_UPDATE:
        m.type = RAFT_INSTALL_SNAPSHOT;
        m.install_snapshot.term = f->term;
        m.install_snapshot.last_index = f->index;
        m.install_snapshot.last_term = f->index_term;
        m.install_snapshot.conf_index = f->other;
        break;
    default:
        m.type = RAFT_TIMEOUT_NOW;
        m.timeout_now.version = 1;
        m.timeout_now.term = f->term;
        m.timeout_now.last_log_index = f->index;
        m.timeout_now.last_log_term = f->index_term;
        break;
    }
    return receive_message(e, &m);
}

enum taken give_as_voter(engine *e, const struct engine_frame *f) {
    struct raft_configuration *c = &e->raft->configuration;
    for (unsigned i = 0; i < c->n; i++) {
        if (c->servers[i].id != e->options.member)
            continue;
        int role = c->servers[i].role;
        c->servers[i].role = RAFT_VOTER;
        enum taken done = give(e, f);
        c->servers[i].role = role;
        return done;
    }
    struct raft_server with_me[ENGINE_MEMBERS_MAX + 1];
    struct raft_configuration kept = *c;
    assert(c->n <= ENGINE_MEMBERS_MAX);
    if (c->n > 0)
        memcpy(with_me, c->servers, c->n * sizeof *with_me);
    with_me[c->n] = (struct raft_server){.id = e->options.member, .address = e->raft->address, .role = RAFT_VOTER};
    *c = (struct raft_configuration){with_me, kept.n + 1};
    enum taken done = give(e, f);
    *c = kept;
    return done;
}

enum taken submit(engine *e, const struct engine_entry *entry) {
    uint8_t *batch = make_batch(e, entry, 1);
    if (batch == NULL)
        return NO_MEMORY;
    struct raft_entry made = make_entry(entry, batch);
    struct raft_event event = {.type = RAFT_SUBMIT, .submit = {.entries = &made, .n = 1}};
    e->given++; /* before its frames are made */
    e->submitting = true;
    enum taken done = taken(step(e, &event));
    e->submitting = false;
    if (done != TAKEN) {
        e->given--;
        raft_free(batch);
    }
    return done;
}

/* ---- the start ---- */

/* libraft takes the entries in this form; both blocks are freed after the start. */
static struct raft_entry *make_entries(const struct engine_log *log) {
    size_t bytes = BATCH_BYTES_LEAST;
    for (uint32_t i = 0; i < log->count; i++)
        bytes += log->entries[i].kind == ENGINE_MEMBERS ? log->entries[i].configuration_bytes : 0;
    struct raft_entry *entries = raft_calloc(log->count, sizeof *entries);
    uint8_t *batch = raft_calloc(1, bytes);
    if (entries == NULL || batch == NULL) {
        raft_free(entries);
        raft_free(batch);
        return NULL;
    }
    uint8_t *at = batch + BATCH_BYTES_LEAST;
    for (uint32_t i = 0; i < log->count; i++) {
        const struct engine_entry *entry = &log->entries[i];
        entries[i] = (struct raft_entry){
            .term = entry->term, .type = types[entry->kind], .buf = {batch, BATCH_BYTES_LEAST}, .batch = batch};
        if (entry->kind != ENGINE_MEMBERS)
            continue;
        memcpy(at, entry->configuration, entry->configuration_bytes);
        entries[i].buf.base = at;
        entries[i].buf.len = entry->configuration_bytes;
        at += entry->configuration_bytes;
    }
    return entries;
}

static int start(engine *e, const struct engine_log *log, const struct members *newest) {
    struct raft_snapshot_metadata metadata = {0};
    struct raft_event event = {.type = RAFT_START};
    struct members m;
    size_t terms = terms_of(log);
    event.start.term = log->vote_term;
    event.start.voted_for = log->voted_for;
    if (log->header_term > log->vote_term) {
        event.start.term = log->header_term;
        event.start.voted_for = 0;
    }
    uint32_t me = members_find(newest, e->options.member);
    if (members_voters(newest) == 1 && me < newest->count && newest->all[me].role == MEMBER_VOTER) {
        event.start.term++; /* libraft would otherwise lead the old term again */
        event.start.voted_for = e->options.member;
    }
    event.start.start_index = log->first_kept == 0 ? 1 : log->first_kept;
    if (log->count > 0) {
        event.start.entries = make_entries(log);
        event.start.n_entries = log->count;
        if (event.start.entries == NULL)
            return ENGINE_NO_MEMORY;
    }
    void *batch = log->count > 0 ? event.start.entries[0].batch : NULL;
    int code = ENGINE_NO_MEMORY;
    bool made = true;
    if (log->known_durable >= 2) {
        metadata.index = log->known_durable;
        metadata.term = log->known_durable_term;
        metadata.configuration_index = log->members_index;
        bool decoded = members_decode(&m, log->members, log->members_bytes);
        assert(decoded);
        made = reserve_take(needed_bytes(e, terms)) && make_configuration(&m, &metadata.configuration);
        event.start.metadata = &metadata;
    }
    e->last = log->first_kept == 0 ? 0 : log->first_kept + log->count - 1;
    e->given = e->last;
    if (made && step_terms(e, &event, terms) == 0)
        code = ENGINE_OK;
    else if (made)
        raft_configuration_close(&metadata.configuration);
    raft_free(batch);
    raft_free(event.start.entries);
    return code;
}

int engine_open(const struct engine_options *options, const struct engine_log *log, uint64_t now_ms, engine **made) {
    struct members newest;
    *made = NULL;
    if (!options_are_possible(options) || !log_is_possible(log, &newest))
        return ENGINE_INVALID;
    struct with_libraft *both = calloc(1, sizeof *both);
    if (both == NULL)
        return ENGINE_NO_MEMORY;
    engine *e = &both->e;
    e->raft = &both->raft;
    (void)pthread_once(&heap_is_set, set_heap);
    if (raft_init(e->raft, NULL, NULL, options->member, "") != 0) {
        free(both);
        return ENGINE_NO_MEMORY;
    }
    reserve_enter();
    e->options = *options;
    e->raft->tracer = NULL;
    raft_seed(e->raft, options->seed);
    raft_set_pre_vote(e->raft, true);
    raft_set_election_timeout(e->raft, options->election_ms);
    raft_set_heartbeat_timeout(e->raft, options->heartbeat_ms);
    set_update_timeout(e, options->update_ms);
    raft_set_max_inflight_entries(e->raft, options->in_flight_max);
    e->vote_term = log->vote_term;
    e->voted_for = log->voted_for;
    e->durable = log->known_durable;
    begin_turn(e, now_ms);
    int code = out_has_room(e) ? start(e, log, &newest) : ENGINE_NO_MEMORY;
    if (code != ENGINE_OK) {
        engine_close(e);
        return code;
    }
    end_turn(e);
    *made = e;
    return ENGINE_OK;
}

void engine_close(engine *e) {
    if (e == NULL)
        return;
    raft_close(e->raft, NULL);
    end_copy(e);
    free(e->out);
    free(e->out_vote);
    free((struct with_libraft *)e);
    reserve_leave();
}
