#include "consensus/engine.h"

#include <assert.h>
#include <raft.h>
#include <stdlib.h>
#include <string.h>

#include "consensus/members.h"
#include "consensus/reserve.h"

#ifdef NDEBUG
#error "the assertions of libraft and of the engine stay on"
#endif
#ifndef RAFT__LEGACY_no
#error "the interface of earlier versions of libraft must be off: a library of the system may not be used"
#endif

enum {
    OUT_FIRST = 16, /* frames */
    OUT_MAX = 512,  /* while VOTE is not forced; more are lost, as on a broken link */
    LOST_MS_LEAST = 3,
    LOST_MS_SPREAD = 60, /* voters that lose their leader at the same moment do not stand at the same moment */
    PROGRESS_BYTES = 128,
    BATCH_BYTES_LEAST = 8,
};

static const uint64_t INDEX_MAX = UINT64_C(1) << 62;

enum copy_state { COPY_NONE, COPY_WANTED, COPY_SWITCHING };

/* What the engine itself knows of another member while it leads. */
struct peer {
    uint64_t id;
    uint64_t told;     /* it knows that everything up to here is durable, unless a frame was lost */
    uint64_t heard_ms; /* 0: not in this term */
    bool sent;         /* a frame with what is durable, in this turn */
    bool held;         /* `frame` waits for the term's first batch */
    struct engine_frame frame;
};

struct engine {
    struct raft raft;
    struct engine_options options;
    struct engine_answer answer;
    struct engine_stats stats;
    uint64_t now;
    uint64_t heard_ms;    /* from the leader */
    uint64_t heard_term;  /* of that leader */
    uint64_t beat_ms;     /* the leader's last timeout event */
    uint64_t answered_ms; /* the last result for the leader */

    uint64_t vote_term; /* as told to the program */
    uint64_t voted_for;
    uint64_t vote_number;
    uint64_t vote_forced;

    uint64_t last;
    uint64_t
        given; /* the program has the batches up to here; below `last` only while a leader's first batch is awaited */
    uint64_t durable;
    uint64_t stored; /* as seen at the end of the last turn, and since when something above it is given */
    uint64_t unforced_since_ms;

    uint64_t lead_term; /* libraft leads it; 0: it does not lead */
    uint64_t lead_vote; /* VOTE must have this number before the program hears of it */
    uint64_t told_term; /* the program knows that it leads it */
    uint64_t first_index;
    bool made_first; /* libraft has made the term's first entry itself */
    bool first_given;
    bool serves;
    bool submitting;

    bool draining; /* before and during a transfer */
    uint64_t drain_to;
    uint64_t drain_next_ms;
    uint64_t drain_end_ms;

    enum copy_state copy;
    uint64_t copy_index;
    uint64_t copy_term;
    uint64_t copy_members_index;
    uint8_t *copy_members;
    uint32_t copy_members_bytes;
    uint64_t hold_index; /* what follows it is kept for a peer that is being updated */
    uint64_t hold_until_ms;

    struct engine_frame *out; /* the first `ready` are the answer's */
    uint64_t *out_vote;
    size_t out_count;
    size_t out_capacity;
    size_t ready;
    struct peer peers[ENGINE_MEMBERS_MAX];
};

static struct raft_heap heap = {
    .malloc = reserve_malloc, .free = reserve_free, .calloc = reserve_calloc, .realloc = reserve_realloc};

static _Thread_local uint32_t open_engines;

int engine_raft_version(void) { return raft_version_number(); }

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- what libraft knows ---- */

static bool leads(const engine *e) { return e->raft.state == RAFT_LEADER; }

static bool follows(const engine *e) { return e->raft.state == RAFT_FOLLOWER; }

/* libraft remembers a leader beyond its term. */
static uint64_t last_leader(const engine *e) { return follows(e) ? e->raft.follower_state.current_leader.id : 0; }

static uint64_t leader_of(const engine *e) { return e->heard_term == e->raft.current_term ? last_leader(e) : 0; }

static uint64_t snapshot_index(const engine *e) { return e->raft.trail.snapshot.index; }

/* The term of an entry; 0: it is not kept, and not the snapshot's. */
static uint64_t term_at(const engine *e, uint64_t index) {
    const struct raft_trail *t = &e->raft.trail;
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

static const struct raft_server *server_of(const engine *e, uint64_t id) {
    for (unsigned i = 0; i < e->raft.configuration.n; i++)
        if (e->raft.configuration.servers[i].id == id)
            return &e->raft.configuration.servers[i];
    return NULL;
}

static bool is_voter(const engine *e, uint64_t id) {
    const struct raft_server *server = server_of(e, id);
    return server != NULL && server->role == RAFT_VOTER;
}

static unsigned voters(const engine *e) {
    unsigned n = 0;
    for (unsigned i = 0; i < e->raft.configuration.n; i++)
        n += e->raft.configuration.servers[i].role == RAFT_VOTER;
    return n;
}

static uint64_t acknowledged(const engine *e, uint64_t id) {
    raft_index match = 0;
    return raft_match_index(&e->raft, id, &match) == 0 ? match : 0;
}

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

/* ---- frames to send ---- */

static struct peer *peer_of(engine *e, uint64_t id) {
    struct peer *unused = NULL;
    for (size_t i = 0; i < ENGINE_MEMBERS_MAX; i++) {
        struct peer *p = &e->peers[i];
        if (p->id == id)
            return p;
        if (unused == NULL && (p->id == 0 || server_of(e, p->id) == NULL))
            unused = p;
    }
    if (unused != NULL) {
        memset(unused, 0, sizeof *unused);
        unused->id = id;
    }
    return unused;
}

static bool out_has_room(engine *e) {
    if (e->out_count < e->out_capacity)
        return true;
    size_t capacity = e->out_capacity == 0 ? OUT_FIRST : 2 * e->out_capacity;
    if (capacity > OUT_MAX)
        return false;
    struct engine_frame *out = realloc(e->out, capacity * sizeof *out);
    if (out == NULL)
        return false;
    e->out = out;
    uint64_t *votes = realloc(e->out_vote, capacity * sizeof *votes);
    if (votes == NULL)
        return false;
    e->out_vote = votes;
    e->out_capacity = capacity;
    return true;
}

static void emit(engine *e, struct engine_frame f) {
    if (!out_has_room(e)) {
        e->stats.dropped++;
        return;
    }
    f.group = e->options.group;
    f.entries = NULL;
    e->out_vote[e->out_count] = e->vote_number;
    e->out[e->out_count++] = f;
}

/* Entries that the program does not have yet wait for it; a peer hears from the leader all the same. */
static void send_append(engine *e, struct engine_frame f) {
    struct peer *p = peer_of(e, f.peer);
    /* A member without content never begins with entry 1: what was there before it would be missing. */
    if (f.index == 0) {
        f.index = e->durable;
        f.index_term = term_at(e, e->durable);
        f.count = 0;
        e->answer.flags |= ENGINE_SNAPSHOT;
    }
    if (p != NULL && f.count > 0 && f.index + f.count > e->given) {
        p->held = true;
        p->frame = f;
        f.count = e->given > f.index ? (uint32_t)(e->given - f.index) : 0;
    }
    if (p != NULL) {
        p->sent = true;
        p->told = least(f.other, f.index + f.count);
    }
    emit(e, f);
}

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
        e->hold_index = f.index;
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

/* ---- one event of libraft ---- */

static void note_vote(engine *e) {
    if (e->raft.current_term == e->vote_term && e->raft.voted_for == e->voted_for)
        return;
    e->vote_term = e->raft.current_term;
    e->voted_for = e->raft.voted_for;
    e->vote_number++;
    e->answer.flags |= ENGINE_VOTE;
    e->answer.vote.term = e->vote_term;
    e->answer.vote.voted_for = e->voted_for;
    e->answer.vote.number = e->vote_number;
}

/* The first entry of a term that libraft made and whose batch never came. It would keep this member from standing again. */
static void drop_unmade(engine *e) {
    struct raft_trail *t = &e->raft.trail;
    unsigned newest = t->size == 0 ? 0 : (t->back + t->size - 1) % t->size;
    if (t->front == t->back || t->records[newest].index != e->last || t->records[newest].term != e->lead_term)
        return; /* libraft has cut it */
    t->records[newest].index = 0;
    t->records[newest].term = 0;
    t->back = newest;
    e->last = e->given;
}

static void note_lead(engine *e) {
    if (!leads(e)) {
        if (e->lead_term != 0 && e->made_first && !e->first_given)
            drop_unmade(e);
        e->lead_term = 0;
        e->draining = false;
        return;
    }
    if (e->lead_term == e->raft.current_term)
        return;
    e->lead_term = e->raft.current_term;
    e->lead_vote = e->vote_number;
    e->first_index = e->last + 1;
    e->made_first = false;
    e->first_given = false;
    e->serves = false;
    e->draining = false;
    e->beat_ms = e->now;
    e->unforced_since_ms = 0;
    memset(e->peers, 0, sizeof e->peers);
}

static void note_entries(engine *e, const struct raft_update *u) {
    uint64_t first = u->entries.index;
    if (leads(e)) {
        if (!e->submitting)
            e->made_first = true;
        else
            e->given = first + u->entries.n - 1;
    } else {
        if (first <= e->last) {
            e->answer.flags |= ENGINE_CUT;
            e->answer.cut_index = first;
        }
        if ((e->answer.flags & ENGINE_TAKE) == 0)
            e->answer.take_index = first;
        e->answer.flags |= ENGINE_TAKE;
        e->answer.take_count = first + u->entries.n - e->answer.take_index;
        e->given = first + u->entries.n - 1;
    }
    e->last = first + u->entries.n - 1;
    raft_free(u->entries.batch[0].batch);
}

/* All that one event may allocate: the list of terms doubles, the list of messages doubles, a few configurations are copied. */
static size_t needed_bytes(const engine *e, size_t terms) {
    size_t trail = 4 * (e->raft.trail.size + terms + 2) * sizeof *e->raft.trail.records;
    size_t messages = (2 * (size_t)e->raft.n_messages_cap + 16) * 2 * sizeof(struct raft_message);
    size_t configuration =
        ENGINE_CONFIGURATION_MAX + ENGINE_MEMBERS_MAX * (ENGINE_MEMBERS_MAX + 2) * (sizeof(struct raft_server) + 32);
    return trail + messages + 4 * configuration + 2 * ENGINE_MEMBERS_MAX * PROGRESS_BYTES;
}

static int step_terms(engine *e, struct raft_event *event, size_t terms) {
    if (!reserve_take(needed_bytes(e, terms)))
        return RAFT_NOMEM;
    struct raft_update update = {0};
    event->time = e->now;
    int rv = raft_step(&e->raft, event, &update);
    assert(rv != RAFT_NOMEM);
    note_vote(e); /* a refused frame may have had a new term */
    note_lead(e);
    if (rv != 0)
        return rv;
    if ((update.flags & (RAFT_UPDATE_ENTRIES)) != 0)
        note_entries(e, &update);
    if ((update.flags & (RAFT_UPDATE_MESSAGES)) != 0)
        for (unsigned i = 0; i < update.messages.n; i++)
            send_message(e, &update.messages.batch[i]);
    return 0;
}

static int step(engine *e, struct raft_event *event) { return step_terms(e, event, ENGINE_ENTRIES_MAX); }

/* Once it is known to be durable somewhere, whether this disk has it or not: the next one may follow in the same frame. */
static void confirm_members(engine *e) {
    uint64_t index = e->raft.configuration_uncommitted_index;
    if (index == 0 || index > e->raft.commit_index || !reserve_take(needed_bytes(e, 0)))
        return;
    struct members m;
    struct raft_event event = {.type = RAFT_CONFIGURATION};
    read_members(&e->raft.configuration, &m);
    event.configuration.index = index;
    if (!make_configuration(&m, &event.configuration.conf))
        return;
    if (step(e, &event) != 0)
        raft_configuration_close(&event.configuration.conf);
}

/* ---- the turn ---- */

static void begin_turn(engine *e, uint64_t now_ms) {
    if (now_ms > e->now)
        e->now = now_ms;
    memset(&e->answer, 0, sizeof e->answer);
    if (e->ready > 0) {
        e->out_count -= e->ready;
        memmove(e->out, e->out + e->ready, e->out_count * sizeof *e->out);
        memmove(e->out_vote, e->out_vote + e->ready, e->out_count * sizeof *e->out_vote);
        e->ready = 0;
    }
    for (size_t i = 0; i < ENGINE_MEMBERS_MAX; i++)
        e->peers[i].sent = false;
}

static void note_durable(engine *e) {
    uint64_t known = least(e->raft.commit_index, e->raft.last_stored);
    if (e->copy == COPY_SWITCHING || known <= e->durable)
        return;
    e->durable = known;
    e->answer.flags |= ENGINE_DURABLE;
}

/* A follower to which nothing else went in this turn hears at once of what became durable. */
static void tell_durable(engine *e) {
    for (unsigned i = 0; i < e->raft.configuration.n; i++) {
        uint64_t id = e->raft.configuration.servers[i].id;
        struct peer *p = id == e->options.member ? NULL : peer_of(e, id);
        if (p == NULL || p->sent)
            continue;
        uint64_t has = acknowledged(e, id);
        uint64_t term = term_at(e, has);
        if (term == 0 || least(e->raft.commit_index, has) <= p->told)
            continue;
        send_append(e, (struct engine_frame){.type = ENGINE_APPEND,
                                             .peer = id,
                                             .term = e->lead_term,
                                             .index = has,
                                             .index_term = term,
                                             .other = e->raft.commit_index,
                                             .flags = ENGINE_NO_ANSWER});
    }
}

static void note_unforced(engine *e) {
    if (!leads(e) || e->raft.last_stored >= e->given)
        e->unforced_since_ms = 0;
    else if (e->unforced_since_ms == 0 || e->raft.last_stored != e->stored)
        e->unforced_since_ms = e->now;
    e->stored = e->raft.last_stored;
}

static uint64_t due(const engine *e) {
    uint64_t at = leads(e) ? e->beat_ms + e->options.heartbeat_ms : raft_timeout(&e->raft);
    if (e->draining)
        at = least(at, e->drain_next_ms);
    return at > e->now ? at : e->now + 1;
}

static void try_transfer(engine *e);

static void end_turn(engine *e) {
    confirm_members(e);
    if (leads(e)) {
        try_transfer(e);
        tell_durable(e);
    }
    note_durable(e);
    note_unforced(e);
    struct engine_answer *a = &e->answer;
    if (e->told_term != 0 && e->told_term != e->lead_term) {
        a->flags |= ENGINE_FOLLOW;
        e->told_term = 0;
    }
    if (e->lead_term != 0 && e->told_term == 0 && e->vote_forced >= e->lead_vote) {
        a->flags |= ENGINE_LEAD;
        e->told_term = e->lead_term;
        a->first_index = e->first_index;
    }
    if (e->told_term != 0 && !e->serves && e->first_given && e->durable >= e->first_index) {
        a->flags |= ENGINE_SERVE;
        e->serves = true;
    }
    while (e->ready < e->out_count && e->out_vote[e->ready] <= e->vote_forced)
        e->ready++;
    a->frames = e->out;
    a->frame_count = (uint32_t)e->ready;
    a->term = e->raft.current_term;
    a->leader = e->told_term != 0 ? e->options.member : leader_of(e);
    a->last_index = e->given;
    a->durable_index = e->durable;
    a->due_ms = due(e);
}

const struct engine_answer *engine_answer(const engine *e) { return &e->answer; }

const struct engine_stats *engine_stats(const engine *e) { return &e->stats; }

/* ---- time ---- */

static void forget_leader(engine *e) {
    raft_free(e->raft.follower_state.current_leader.address);
    e->raft.follower_state.current_leader.address = NULL;
    e->raft.follower_state.current_leader.id = 0;
}

static bool is_sole_voter(const engine *e) { return voters(e) == 1 && is_voter(e, e->options.member); }

static void time_out(engine *e) {
    if (e->raft.state == RAFT_CANDIDATE) {
        e->raft.candidate_state.disrupt_leader = false;
        e->raft.candidate_state.in_pre_vote = true;
    }
    if (follows(e) && is_sole_voter(e) && e->raft.last_stored == e->last && e->copy != COPY_SWITCHING &&
        raft_timeout(&e->raft) <= e->now) {
        e->raft.current_term++;
        e->raft.voted_for = e->options.member;
    }
    /* libraft takes a peer that did not answer between two timeouts for lost, and sends it a new entry with the next heartbeat
       only. So at each timeout every peer gets one. */
    raft_set_heartbeat_timeout(&e->raft, 0);
    struct raft_event event = {.type = RAFT_TIMEOUT};
    if (step(e, &event) != 0)
        e->stats.dropped++;
    raft_set_heartbeat_timeout(&e->raft, e->options.heartbeat_ms);
}

/* A higher term makes a leader a follower: there is no other way to cease. */
static void step_down(engine *e) {
    struct raft_message m = {.type = RAFT_APPEND_ENTRIES_RESULT, .server_id = e->options.member, .server_address = ""};
    m.append_entries_result.version = 1;
    m.append_entries_result.term = e->raft.current_term + 1;
    struct raft_event event = {.type = RAFT_RECEIVE, .receive.message = &m};
    if (e->raft.current_term < ENGINE_TERM_MAX && step(e, &event) != 0)
        e->stats.dropped++;
}

int engine_time(engine *e, uint64_t now_ms) {
    begin_turn(e, now_ms);
    bool is_due = leads(e) ? e->now - e->beat_ms >= e->options.heartbeat_ms : raft_timeout(&e->raft) <= e->now;
    if (leads(e) && e->unforced_since_ms != 0 && e->now - e->unforced_since_ms >= 2 * (uint64_t)e->options.election_ms)
        step_down(e);
    if (is_due && (leads(e) || e->raft.current_term < ENGINE_TERM_MAX)) {
        e->beat_ms = e->now;
        time_out(e);
    }
    end_turn(e);
    return ENGINE_OK;
}

size_t engine_time_all(engine *const *engines, size_t count, uint64_t now_ms, engine **answered) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (now_ms < engines[i]->answer.due_ms)
            continue;
        (void)engine_time(engines[i], now_ms);
        answered[n++] = engines[i];
    }
    return n;
}

int engine_lost(engine *e, uint64_t now_ms, uint64_t member) {
    begin_turn(e, now_ms);
    if (member != 0 && last_leader(e) == member) {
        forget_leader(e);
        e->heard_ms = 0;
        uint64_t wait = raft_random(&e->raft.random, LOST_MS_LEAST, LOST_MS_LEAST + LOST_MS_SPREAD);
        e->raft.election_timer_start = e->now + wait - e->raft.follower_state.randomized_election_timeout;
    }
    end_turn(e);
    return ENGINE_OK;
}

int engine_vote_forced(engine *e, uint64_t now_ms, uint64_t number) {
    begin_turn(e, now_ms);
    if (number > e->vote_forced)
        e->vote_forced = least(number, e->vote_number);
    end_turn(e);
    return ENGINE_OK;
}

int engine_forced(engine *e, uint64_t now_ms, uint64_t index, uint64_t term) {
    begin_turn(e, now_ms);
    int code = ENGINE_OK;
    bool counts = e->copy != COPY_SWITCHING && e->raft.state != RAFT_CANDIDATE && index > e->raft.last_stored &&
                  index <= e->given && term_at(e, index) == term;
    if (counts) {
        struct raft_event event = {.type = RAFT_PERSISTED_ENTRIES, .persisted_entries.index = index};
        if (step(e, &event) != 0)
            code = ENGINE_NO_MEMORY;
    }
    end_turn(e);
    return code;
}

/* ---- received frames ---- */

static bool entries_are_possible(const struct engine_frame *f) {
    uint64_t term = f->index_term;
    if (f->count > ENGINE_ENTRIES_MAX || (f->count > 0 && f->entries == NULL))
        return false;
    for (uint32_t i = 0; i < f->count; i++) {
        const struct engine_entry *entry = &f->entries[i];
        struct members m;
        if (entry->term < term || entry->term > f->term || entry->kind < ENGINE_BATCH || entry->kind > ENGINE_MEMBERS)
            return false;
        if (entry->kind == ENGINE_MEMBERS && !members_decode(&m, entry->configuration, entry->configuration_bytes))
            return false;
        term = entry->term;
    }
    return true;
}

/* An acknowledgement that takes back an earlier one: that member has lost what it had forced. */
static bool takes_back(const engine *e, const struct engine_frame *f) {
    return leads(e) && f->term == e->raft.current_term && f->other > 0 &&
           least(f->other, f->index + 1) <= acknowledged(e, f->peer);
}

static bool is_possible(const engine *e, const struct engine_frame *f) {
    if (f->group != e->options.group || f->peer == 0 || f->peer == e->options.member || f->term == 0 ||
        f->term > ENGINE_TERM_MAX || f->index > INDEX_MAX || f->other > INDEX_MAX)
        return false;
    bool same_term = f->term == e->raft.current_term;
    bool has_index = f->index > 0 && f->index_term > 0 && f->index_term <= f->term;
    bool other_leader = same_term && (leads(e) || (leader_of(e) != 0 && leader_of(e) != f->peer));
    switch (f->type) {
    case ENGINE_APPEND:
        return has_index && !other_leader && entries_are_possible(f);
    case ENGINE_APPENDED:
        return (f->other == 0 || f->index < f->other) && !takes_back(e, f);
    case ENGINE_ASK_VOTE:
        return has_index && f->index_term < f->term;
    case ENGINE_VOTED:
        return (f->flags & ~(uint32_t)(ENGINE_PRE_VOTE | ENGINE_GRANTED)) == 0;
    case ENGINE_UPDATE:
        return has_index && !other_leader && f->index >= 2 && f->other > 0 && f->other <= f->index;
    case ENGINE_TIMEOUT_NOW:
        return has_index;
    default:
        return false;
    }
}

static int give(engine *e, struct raft_message *m) {
    struct raft_event event = {.type = RAFT_RECEIVE, .receive.message = m};
    m->server_address = "";
    int rv = step(e, &event);
    if (rv == RAFT_NOMEM)
        e->stats.dropped++;
    return rv;
}

static void answer_leader(engine *e, uint64_t to, uint64_t forced) {
    e->answered_ms = e->now;
    emit(e, (struct engine_frame){.type = ENGINE_APPENDED, .peer = to, .term = e->raft.current_term, .index = forced});
}

/* Entries from f's index + 1 + from on, up to the next configuration: libraft gives a configuration in the middle the index of the
   first entry. False: the rest of the frame counts as lost. */
static bool give_entries(engine *e, const struct engine_frame *f, uint32_t from, uint32_t to) {
    struct raft_entry entries[ENGINE_ENTRIES_MAX];
    size_t bytes = BATCH_BYTES_LEAST;
    const struct engine_entry *first = &f->entries[from];
    if (first->kind == ENGINE_MEMBERS) {
        confirm_members(e);
        uint64_t open = e->raft.configuration_uncommitted_index;
        if (open != 0 && open < f->index + 1 + from) {
            e->stats.refused++;
            return false;
        }
        bytes = first->configuration_bytes;
    }
    uint8_t *batch = reserve_take(needed_bytes(e, ENGINE_ENTRIES_MAX)) ? raft_malloc(bytes) : NULL;
    if (batch == NULL) {
        e->stats.dropped++;
        return false;
    }
    memset(batch, 0, bytes);
    for (uint32_t i = from; i < to; i++) {
        static const enum raft_entry_type types[] = {0, RAFT_COMMAND, RAFT_BARRIER, RAFT_CHANGE};
        entries[i - from] = (struct raft_entry){.term = f->entries[i].term,
                                                .type = types[f->entries[i].kind],
                                                .buf = {batch, BATCH_BYTES_LEAST},
                                                .batch = batch};
    }
    if (first->kind == ENGINE_MEMBERS) {
        memcpy(batch, first->configuration, bytes);
        entries[0].buf.len = bytes;
    }
    struct raft_message m = {.type = RAFT_APPEND_ENTRIES, .server_id = f->peer};
    m.append_entries.term = f->term;
    m.append_entries.prev_log_index = f->index + from;
    m.append_entries.prev_log_term = from == 0 ? f->index_term : f->entries[from - 1].term;
    m.append_entries.leader_commit = f->other;
    m.append_entries.entries = entries;
    m.append_entries.n_entries = to - from;
    int rv = give(e, &m);
    if (rv == RAFT_NOMEM)
        raft_free(batch); /* libraft was not entered */
    if (rv == RAFT_SHUTDOWN) {
        e->stats.conflicts++;
        e->answer.flags |= ENGINE_CONFLICT;
    }
    return rv == 0;
}

/* What a frame says of the entry before and of what is durable. */
static void give_no_entries(engine *e, const struct engine_frame *f) {
    struct raft_message m = {.type = RAFT_APPEND_ENTRIES, .server_id = f->peer};
    m.append_entries.term = f->term;
    m.append_entries.prev_log_index = f->index;
    m.append_entries.prev_log_term = f->index_term;
    m.append_entries.leader_commit = f->other;
    if (give(e, &m) == RAFT_SHUTDOWN) {
        e->stats.conflicts++;
        e->answer.flags |= ENGINE_CONFLICT;
    }
}

/* A frame may begin with a configuration while the one before is open here, as after a start; it may also be the only kind of
   frame that the leader sends until it is taken. So what it says to be durable counts before its entries. */
static void receive_append(engine *e, struct engine_frame f) {
    uint64_t term = e->raft.current_term;
    if (f.term < term) {
        e->stats.stale++;
        answer_leader(e, f.peer, 0);
        return;
    }
    e->heard_ms = e->now;
    e->heard_term = f.term;
    if (e->copy == COPY_SWITCHING && f.term == term) {
        e->raft.election_timer_start = e->now;
        return;
    }
    if (f.index < snapshot_index(e)) {
        uint32_t below = (uint32_t)least(snapshot_index(e) - f.index, f.count);
        f.entries = f.count == below ? NULL : f.entries + below;
        f.count -= below;
        f.index = snapshot_index(e);
        f.index_term = e->raft.trail.snapshot.term;
        e->stats.clipped++;
    }
    if (f.count > 0 && f.term == term && leader_of(e) == f.peer &&
        e->now - e->answered_ms >= e->options.heartbeat_ms / 2)
        answer_leader(e, f.peer, least(e->raft.follower_state.match, e->raft.last_stored));
    size_t before = e->out_count;
    uint64_t answered_ms = e->answered_ms;
    bool no_answer = (f.flags & ENGINE_NO_ANSWER) != 0;
    uint64_t open = e->raft.configuration_uncommitted_index;
    if (f.count == 0 || (f.entries[0].kind == ENGINE_MEMBERS && open != 0 && open <= f.index)) {
        give_no_entries(e, &f);
        if (f.count > 0) {
            confirm_members(e);
            no_answer = e->raft.configuration_uncommitted_index == 0;
        }
        if (no_answer && e->out_count == before + 1 && e->out[before].type == ENGINE_APPENDED &&
            e->out[before].other == 0) {
            e->out_count--;
            e->answered_ms = answered_ms;
        }
    }
    for (uint32_t at = 0, to; at < f.count; at = to) {
        to = at + 1;
        while (to < f.count && f.entries[to].kind != ENGINE_MEMBERS)
            to++;
        if (!give_entries(e, &f, at, to))
            return;
    }
}

/* A vote does not ask what the voter's own configuration says of it: that may be behind. */
static int give_as_voter(engine *e, struct raft_message *m) {
    struct raft_configuration *c = &e->raft.configuration;
    for (unsigned i = 0; i < c->n; i++) {
        if (c->servers[i].id != e->options.member)
            continue;
        int role = c->servers[i].role;
        c->servers[i].role = RAFT_VOTER;
        int rv = give(e, m);
        c->servers[i].role = role;
        return rv;
    }
    struct raft_server with_me[ENGINE_MEMBERS_MAX + 1];
    struct raft_configuration kept = *c;
    assert(c->n <= ENGINE_MEMBERS_MAX);
    if (c->n > 0)
        memcpy(with_me, c->servers, c->n * sizeof *with_me);
    with_me[c->n] = (struct raft_server){.id = e->options.member, .address = e->raft.address, .role = RAFT_VOTER};
    *c = (struct raft_configuration){with_me, kept.n + 1};
    int rv = give(e, m);
    *c = kept;
    return rv;
}

static void receive_ask_vote(engine *e, const struct engine_frame *f) {
    if (e->last == 0) { /* it has nothing that the candidate could lack, and perhaps had */
        uint64_t term = (f->flags & ENGINE_PRE_VOTE) != 0 ? f->term : e->raft.current_term;
        emit(e, (struct engine_frame){
                    .type = ENGINE_VOTED, .peer = f->peer, .term = term, .flags = f->flags & ENGINE_PRE_VOTE});
        return;
    }
    if (last_leader(e) != 0 && e->now - e->heard_ms >= e->options.election_ms)
        forget_leader(e);
    struct raft_message m = {.type = RAFT_REQUEST_VOTE, .server_id = f->peer};
    m.request_vote.version = 2;
    m.request_vote.term = f->term;
    m.request_vote.candidate_id = f->peer;
    m.request_vote.last_log_index = f->index;
    m.request_vote.last_log_term = f->index_term;
    m.request_vote.pre_vote = (f->flags & ENGINE_PRE_VOTE) != 0;
    m.request_vote.disrupt_leader = (f->flags & ENGINE_BY_TRANSFER) != 0;
    if (follows(e))
        (void)give_as_voter(e, &m);
    else
        (void)give(e, &m);
}

static void receive_voted(engine *e, const struct engine_frame *f) {
    if (e->raft.state != RAFT_CANDIDATE) /* libraft would read the candidate's part of a union */
        return;
    bool granted = (f->flags & ENGINE_GRANTED) != 0;
    if (granted && f->term > e->raft.current_term + (e->raft.candidate_state.in_pre_vote ? 1 : 0)) {
        e->stats.refused++;
        return;
    }
    struct raft_message m = {.type = RAFT_REQUEST_VOTE_RESULT, .server_id = f->peer};
    m.request_vote_result.version = 2;
    m.request_vote_result.term = f->term;
    m.request_vote_result.vote_granted = granted;
    m.request_vote_result.pre_vote = (f->flags & ENGINE_PRE_VOTE) != 0;
    (void)give(e, &m);
}

static void receive_update(engine *e, const struct engine_frame *f) {
    uint64_t term = e->raft.current_term;
    if (f->term < term) {
        e->stats.stale++;
        answer_leader(e, f->peer, 0);
        return;
    }
    if (f->term > term || !follows(e))
        return; /* a heartbeat of that term comes first */
    e->heard_ms = e->now;
    e->heard_term = f->term;
    e->raft.election_timer_start = e->now;
    if (e->copy != COPY_NONE)
        return;
    if (snapshot_index(e) >= f->index || term_at(e, f->index) == f->index_term) {
        struct raft_message m = {.type = RAFT_INSTALL_SNAPSHOT, .server_id = f->peer};
        m.install_snapshot.term = f->term;
        m.install_snapshot.last_index = f->index;
        m.install_snapshot.last_term = f->index_term;
        m.install_snapshot.conf_index = f->other;
        (void)give(e, &m);
        return;
    }
    e->copy = COPY_WANTED;
    e->answer.flags |= ENGINE_COPY;
    e->answer.update.from = f->peer;
    e->answer.update.index = f->index;
    e->answer.update.index_term = f->index_term;
}

static void receive_appended(engine *e, const struct engine_frame *f) {
    struct peer *p =
        leads(e) && f->term == e->raft.current_term && server_of(e, f->peer) != NULL ? peer_of(e, f->peer) : NULL;
    if (p != NULL) {
        p->heard_ms = e->now;
        if (f->other != 0)
            p->told = 0;
    }
    struct raft_message m = {.type = RAFT_APPEND_ENTRIES_RESULT, .server_id = f->peer};
    m.append_entries_result.version = 1;
    m.append_entries_result.term = f->term;
    m.append_entries_result.rejected = f->other;
    m.append_entries_result.last_log_index = f->index;
    (void)give(e, &m);
}

static void receive_timeout_now(engine *e, const struct engine_frame *f) {
    struct raft_message m = {.type = RAFT_TIMEOUT_NOW, .server_id = f->peer};
    m.timeout_now.version = 1;
    m.timeout_now.term = f->term;
    m.timeout_now.last_log_index = f->index;
    m.timeout_now.last_log_term = f->index_term;
    if (e->raft.current_term < ENGINE_TERM_MAX)
        (void)give(e, &m);
}

int engine_receive(engine *e, uint64_t now_ms, const struct engine_frame *frame) {
    begin_turn(e, now_ms);
    e->stats.received++;
    if (!is_possible(e, frame)) {
        e->stats.refused++;
        end_turn(e);
        return ENGINE_REFUSED;
    }
    switch (frame->type) {
    case ENGINE_APPEND:
        receive_append(e, *frame);
        break;
    case ENGINE_APPENDED:
        receive_appended(e, frame);
        break;
    case ENGINE_ASK_VOTE:
        receive_ask_vote(e, frame);
        break;
    case ENGINE_VOTED:
        receive_voted(e, frame);
        break;
    case ENGINE_UPDATE:
        receive_update(e, frame);
        break;
    default:
        receive_timeout_now(e, frame);
        break;
    }
    end_turn(e);
    return ENGINE_OK;
}

/* ---- the leader's batches ---- */

static bool is_handing_over(const engine *e) { return e->draining || e->raft.leader_state.transferee != 0; }

bool engine_may_submit(const engine *e) {
    return e->told_term != 0 && e->told_term == e->lead_term && !is_handing_over(e) &&
           (e->given == e->last || (e->made_first && !e->first_given));
}

static bool may_change(const engine *e) {
    return engine_may_submit(e) && e->serves && e->raft.configuration_uncommitted_index == 0;
}

/* From one configuration to the next at most one member differs. Members keep their order, as libraft needs it. */
static bool is_one_change(const struct members *a, const struct members *b) {
    uint32_t differences = 0;
    uint32_t i = 0;
    for (uint32_t j = 0; j < b->count; i++, j++) {
        while (i < a->count && members_find(b, a->all[i].id) == b->count) {
            i++;
            differences++;
        }
        if (i == a->count || a->all[i].id != b->all[j].id) {
            differences += b->count - j;
            return differences == 1 && i == a->count;
        }
        if (strcmp(a->all[i].address, b->all[j].address) != 0 || a->all[i].role > b->all[j].role)
            return false; /* a voter leaves, and does not become a standby */
        differences += a->all[i].role != b->all[j].role;
    }
    return differences + (a->count - i) == 1;
}

static bool is_allowed(const engine *e, const struct engine_entry *entry) {
    struct members now, next;
    if (!engine_may_submit(e) || entry->term != e->lead_term)
        return false;
    if (!e->first_given || entry->kind == ENGINE_FIRST)
        return !e->first_given && entry->kind == ENGINE_FIRST;
    if (entry->kind == ENGINE_BATCH)
        return true;
    if (entry->kind != ENGINE_MEMBERS || !may_change(e) ||
        !members_decode(&next, entry->configuration, entry->configuration_bytes))
        return false;
    read_members(&e->raft.configuration, &now);
    return is_one_change(&now, &next);
}

/* libraft has made the entry, and peers wait for its batch. */
static void send_held(engine *e) {
    for (size_t i = 0; i < ENGINE_MEMBERS_MAX; i++) {
        struct peer *p = &e->peers[i];
        if (!p->held)
            continue;
        p->held = false;
        p->frame.other = e->raft.commit_index;
        send_append(e, p->frame);
    }
}

static int submit(engine *e, const struct engine_entry *entry) {
    size_t bytes = entry->kind == ENGINE_MEMBERS ? entry->configuration_bytes : BATCH_BYTES_LEAST;
    uint8_t *batch = reserve_take(needed_bytes(e, 1)) ? raft_malloc(bytes) : NULL;
    if (batch == NULL)
        return ENGINE_NO_MEMORY;
    memset(batch, 0, bytes);
    struct raft_entry made = {.term = entry->term, .type = RAFT_COMMAND, .buf = {batch, bytes}, .batch = batch};
    if (entry->kind == ENGINE_MEMBERS) {
        made.type = RAFT_CHANGE;
        memcpy(batch, entry->configuration, bytes);
    } else if (entry->kind == ENGINE_FIRST) {
        made.type = RAFT_BARRIER;
    }
    struct raft_event event = {.type = RAFT_SUBMIT, .submit = {.entries = &made, .n = 1}};
    e->given++; /* before its frames are made */
    e->submitting = true;
    int rv = step(e, &event);
    e->submitting = false;
    if (rv != 0) {
        e->given--;
        raft_free(batch);
        return ENGINE_NO_MEMORY;
    }
    return ENGINE_OK;
}

int engine_submit(engine *e, uint64_t now_ms, const struct engine_entry *entry) {
    begin_turn(e, now_ms);
    int code = is_allowed(e, entry) ? ENGINE_OK : ENGINE_REFUSED;
    if (code == ENGINE_OK && entry->kind == ENGINE_FIRST && e->made_first) {
        e->given = e->last;
        send_held(e);
    } else if (code == ENGINE_OK) {
        code = submit(e, entry);
    }
    if (code == ENGINE_OK)
        e->first_given = true;
    end_turn(e);
    return code;
}

static bool voters_are_near(const engine *e) {
    for (unsigned i = 0; i < e->raft.configuration.n; i++) {
        const struct raft_server *s = &e->raft.configuration.servers[i];
        if (s->role != RAFT_VOTER || s->id == e->options.member)
            continue;
        uint64_t has = acknowledged(e, s->id);
        bool reachable = false;
        for (size_t k = 0; k < ENGINE_MEMBERS_MAX; k++)
            reachable = reachable || (e->peers[k].id == s->id && e->peers[k].heard_ms != 0 &&
                                      e->now - e->peers[k].heard_ms < e->options.election_ms);
        if (reachable && (has + e->options.behind_max < e->last || has < e->raft.configuration_committed_index))
            return false;
    }
    return true;
}

int engine_plan(const engine *e, const struct engine_change *change, uint8_t *into, uint32_t *bytes) {
    struct members m;
    if (!may_change(e) || !voters_are_near(e))
        return ENGINE_REFUSED;
    read_members(&e->raft.configuration, &m);
    uint32_t at = members_find(&m, change->member);
    switch (change->what) {
    case ENGINE_ADD:
        /* Else libraft would send entry 1 to a member without content, or nothing for ever. */
        if (snapshot_index(e) < 2 || e->raft.trail.offset < 1)
            return ENGINE_REFUSED;
        if (change->address == NULL || !members_add(&m, change->member, change->address, MEMBER_STANDBY))
            return ENGINE_INVALID;
        break;
    case ENGINE_PROMOTE: {
        uint64_t has = acknowledged(e, change->member);
        if (at == m.count || m.all[at].role == MEMBER_VOTER)
            return ENGINE_INVALID;
        if (has == 0 || has + e->options.behind_max < e->last || has < e->raft.configuration_committed_index)
            return ENGINE_REFUSED;
        m.all[at].role = MEMBER_VOTER;
        break;
    }
    case ENGINE_REMOVE:
        if (at == m.count || change->member == e->options.member)
            return ENGINE_INVALID;
        memmove(&m.all[at], &m.all[at + 1], (m.count - at - 1) * sizeof m.all[0]);
        m.count--;
        break;
    default:
        return ENGINE_INVALID;
    }
    *bytes = members_encode(&m, into);
    return ENGINE_OK;
}

/* ---- transfer ---- */

static uint64_t choose_target(const engine *e, uint64_t not_this) {
    uint64_t best = 0;
    for (unsigned i = 0; i < e->raft.configuration.n; i++) {
        const struct raft_server *s = &e->raft.configuration.servers[i];
        if (s->role != RAFT_VOTER || s->id == e->options.member || s->id == not_this)
            continue;
        if (best == 0 || acknowledged(e, s->id) > acknowledged(e, best))
            best = s->id;
    }
    return best;
}

static void try_transfer(engine *e) {
    if (!e->draining)
        return;
    if (e->now >= e->drain_next_ms) {
        uint64_t other = choose_target(e, e->drain_to);
        e->drain_to = other != 0 ? other : e->drain_to;
        e->drain_next_ms = e->now + e->options.transfer_ms;
        e->raft.leader_state.transferee = 0;
        e->raft.leader_state.transferring = false;
    }
    if (e->now >= e->drain_end_ms) {
        e->draining = false;
        e->raft.leader_state.transferee = 0;
        e->raft.leader_state.transferring = false;
        return;
    }
    if (e->raft.leader_state.transferee != 0 || e->raft.last_stored < e->last ||
        acknowledged(e, e->drain_to) != e->last)
        return;
    struct raft_event event = {.type = RAFT_TRANSFER, .transfer.server_id = e->drain_to};
    (void)step(e, &event); /* without memory: the next turn tries again */
}

int engine_transfer(engine *e, uint64_t now_ms, uint64_t member) {
    begin_turn(e, now_ms);
    uint64_t to = member;
    if (may_change(e) && member == 0)
        to = choose_target(e, 0);
    int code = may_change(e) && to != 0 && to != e->options.member && is_voter(e, to) ? ENGINE_OK : ENGINE_REFUSED;
    if (code == ENGINE_OK) {
        e->draining = true;
        e->drain_to = to;
        e->drain_next_ms = e->now + e->options.transfer_ms;
        e->drain_end_ms = e->now + 3 * (uint64_t)e->options.transfer_ms;
    }
    end_turn(e);
    return code;
}

/* ---- snapshots and updates ---- */

int engine_snapshot(engine *e, uint64_t now_ms, uint64_t snapshot, uint64_t first_kept, uint64_t *kept) {
    begin_turn(e, now_ms);
    uint64_t first = first_kept;
    if (e->now < e->hold_until_ms)
        first = least(first, e->hold_index + 1);
    if (first < e->raft.trail.offset + 1)
        first = e->raft.trail.offset + 1;
    if (first < 2)
        first = 2;
    int code = ENGINE_REFUSED;
    if (e->copy != COPY_SWITCHING && snapshot >= 2 && snapshot > snapshot_index(e) && snapshot <= e->durable &&
        snapshot >= e->raft.configuration_committed_index && e->raft.configuration_committed_index > 0 &&
        first <= snapshot + 1) {
        struct raft_event event = {.type = RAFT_SNAPSHOT};
        event.snapshot.metadata.index = snapshot;
        event.snapshot.metadata.term = term_at(e, snapshot);
        event.snapshot.metadata.configuration_index = e->raft.configuration_committed_index;
        event.snapshot.trailing = (unsigned)(snapshot + 1 - first);
        code = step(e, &event) == 0 ? ENGINE_OK : ENGINE_NO_MEMORY;
    }
    *kept = e->raft.trail.offset + 1;
    end_turn(e);
    return code;
}

static void end_copy(engine *e) {
    free(e->copy_members);
    e->copy_members = NULL;
    e->copy = COPY_NONE;
}

int engine_update_failed(engine *e) {
    if (e->copy == COPY_SWITCHING)
        return ENGINE_REFUSED;
    end_copy(e);
    return ENGINE_OK;
}

static int install(engine *e, uint64_t index, uint64_t index_term, uint64_t members_index, const uint8_t *members,
                   uint32_t members_bytes) {
    struct members m;
    if (index < 2 || index > INDEX_MAX || index_term == 0 || index_term > e->raft.current_term || members_index == 0 ||
        members_index > index || !members_decode(&m, members, members_bytes))
        return ENGINE_INVALID;
    if (e->copy != COPY_WANTED || leader_of(e) == 0 || e->raft.last_stored != e->last)
        return ENGINE_REFUSED;
    if (snapshot_index(e) >= index || term_at(e, index) == index_term || index <= e->durable) {
        end_copy(e);
        return ENGINE_REFUSED;
    }
    uint8_t *kept = malloc(members_bytes);
    if (kept == NULL)
        return ENGINE_NO_MEMORY;
    memcpy(kept, members, members_bytes);
    struct raft_message message = {.type = RAFT_INSTALL_SNAPSHOT, .server_id = leader_of(e)};
    message.install_snapshot.term = e->raft.current_term;
    message.install_snapshot.last_index = index;
    message.install_snapshot.last_term = index_term;
    message.install_snapshot.conf_index = members_index;
    if (give(e, &message) != 0) {
        free(kept);
        return ENGINE_NO_MEMORY;
    }
    assert(e->raft.snapshot.installing);
    e->copy = COPY_SWITCHING;
    e->copy_index = index;
    e->copy_term = index_term;
    e->copy_members_index = members_index;
    e->copy_members = kept;
    e->copy_members_bytes = members_bytes;
    e->last = index;
    e->given = index;
    e->answer.flags |= ENGINE_SWITCH;
    return ENGINE_OK;
}

int engine_updated(engine *e, uint64_t now_ms, uint64_t index, uint64_t index_term, uint64_t members_index,
                   const uint8_t *members, uint32_t members_bytes) {
    begin_turn(e, now_ms);
    int code = install(e, index, index_term, members_index, members, members_bytes);
    end_turn(e);
    return code;
}

int engine_switched(engine *e, uint64_t now_ms) {
    begin_turn(e, now_ms);
    int code = ENGINE_REFUSED;
    struct members m;
    if (e->copy == COPY_SWITCHING && members_decode(&m, e->copy_members, e->copy_members_bytes)) {
        struct raft_event event = {.type = RAFT_PERSISTED_SNAPSHOT, .persisted_snapshot.last = true};
        event.persisted_snapshot.metadata.index = e->copy_index;
        event.persisted_snapshot.metadata.term = e->copy_term;
        event.persisted_snapshot.metadata.configuration_index = e->copy_members_index;
        code = ENGINE_NO_MEMORY;
        if (reserve_take(needed_bytes(e, 0)) &&
            make_configuration(&m, &event.persisted_snapshot.metadata.configuration)) {
            if (step(e, &event) == 0) {
                end_copy(e);
                code = ENGINE_OK;
            } else {
                raft_configuration_close(&event.persisted_snapshot.metadata.configuration);
            }
        }
    }
    end_turn(e);
    return code;
}

/* ---- the start ---- */

static bool log_is_possible(const struct engine_log *log, struct members *newest) {
    uint64_t last = log->first_kept + log->count - 1;
    uint64_t term = 0;
    newest->count = 0;
    if (log->first_kept == 0)
        return log->count == 0 && log->known_durable == 0 && log->members_bytes == 0;
    if (log->vote_term > ENGINE_TERM_MAX || log->header_term > ENGINE_TERM_MAX || last > INDEX_MAX ||
        (log->count > 0 && log->entries == NULL))
        return false;
    uint64_t highest = log->vote_term > log->header_term ? log->vote_term : log->header_term;
    if (log->known_durable >= 2) {
        if (!members_decode(newest, log->members, log->members_bytes) || log->members_index == 0 ||
            log->members_index > log->known_durable || log->known_durable_term == 0 ||
            log->known_durable_term > highest || log->first_kept < 2 || log->first_kept > log->known_durable + 1 ||
            last < log->known_durable)
            return false;
        term = log->first_kept == log->known_durable + 1 ? log->known_durable_term : 0;
    } else if (log->first_kept != 1 || log->count == 0 || log->entries[0].kind != ENGINE_MEMBERS) {
        return false;
    }
    for (uint32_t i = 0; i < log->count; i++) {
        const struct engine_entry *entry = &log->entries[i];
        uint64_t index = log->first_kept + i;
        struct members m;
        if (entry->term == 0 || entry->term < term || entry->term > highest || entry->kind < ENGINE_BATCH ||
            entry->kind > ENGINE_MEMBERS ||
            (index == log->known_durable && log->known_durable >= 2 && entry->term != log->known_durable_term))
            return false;
        if (entry->kind == ENGINE_MEMBERS) {
            if (!members_decode(&m, entry->configuration, entry->configuration_bytes))
                return false;
            if (index > log->members_index || log->known_durable < 2)
                *newest = m;
        }
        term = entry->term;
    }
    return true;
}

/* libraft takes the entries in this form; both blocks are freed after the start. */
static struct raft_entry *make_entries(const struct engine_log *log) {
    static const enum raft_entry_type types[] = {0, RAFT_COMMAND, RAFT_BARRIER, RAFT_CHANGE};
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

static size_t terms_of(const struct engine_log *log) {
    size_t terms = 1;
    for (uint32_t i = 1; i < log->count; i++)
        terms += log->entries[i].term != log->entries[i - 1].term;
    return terms;
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
        event.start.term++; /* libraft would lead the old one again */
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
    if (options->member == 0 || options->heartbeat_ms == 0 || options->election_ms < 2 * options->heartbeat_ms ||
        options->in_flight_max == 0 || options->in_flight_max > ENGINE_ENTRIES_MAX || !log_is_possible(log, &newest))
        return ENGINE_INVALID;
    engine *e = calloc(1, sizeof *e);
    if (e == NULL)
        return ENGINE_NO_MEMORY;
    raft_heap_set(&heap);
    if (raft_init(&e->raft, NULL, NULL, options->member, "") != 0) {
        free(e);
        return ENGINE_NO_MEMORY;
    }
    open_engines++;
    e->options = *options;
    e->raft.tracer = NULL;
    raft_seed(&e->raft, options->seed);
    raft_set_pre_vote(&e->raft, true);
    raft_set_election_timeout(&e->raft, options->election_ms);
    raft_set_heartbeat_timeout(&e->raft, options->heartbeat_ms);
    raft_set_install_snapshot_timeout(&e->raft, options->update_ms);
    raft_set_max_inflight_entries(&e->raft, options->in_flight_max);
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
    raft_close(&e->raft, NULL);
    end_copy(e);
    free(e->out);
    free(e->out_vote);
    free(e);
    if (--open_engines == 0)
        reserve_drop();
}

size_t engine_members(const engine *e, struct engine_member *into) {
    for (unsigned i = 0; i < e->raft.configuration.n; i++) {
        const struct raft_server *s = &e->raft.configuration.servers[i];
        into[i] = (struct engine_member){s->id, acknowledged(e, s->id), s->role == RAFT_VOTER};
    }
    return e->raft.configuration.n;
}

int engine_bootstrap(const uint64_t *members, const char *const *addresses, size_t count, uint8_t *into,
                     uint32_t *bytes) {
    struct members m = {0};
    for (size_t i = 0; i < count; i++)
        if (!members_add(&m, members[i], addresses[i], MEMBER_VOTER))
            return ENGINE_INVALID;
    if (count == 0)
        return ENGINE_INVALID;
    *bytes = members_encode(&m, into);
    return ENGINE_OK;
}
