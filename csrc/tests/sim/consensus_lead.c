/* A leader's writes: its term's first batch, batches of messages, and members; and handing over. */
#include <string.h>

#include "consensus/members.h"
#include "tests/sim/consensus.h"

enum { OLD_SEGMENTS = 6, CROWDED = 50, BACKLOG_MAX = 40, LONG_SILENT_MS = 5000 };

#define UNDURABLE_BYTES_MAX UINT64_C(24000)

void lead_begin(struct member *m, const struct engine_answer *a) {
    sim.unprotected = sim.unprotected || m->is_older; /* a sole voter asks nobody */
    judge_leads(m, a->term);
    sim.counts[COUNT_ELECTIONS]++;
    m->lead_term = a->term;
    m->first_index = a->first_index;
    m->first_given = m->serves = false;
    m->backlog = 0;
    memset(m->pace, 0, sizeof m->pace);
    for (uint64_t i = 1; i <= MEMBERS_MAX; i++)
        m->pace[i].near_ms = sim.now_ms;
    m->position = a->term << TERM_SHIFT;
    if (planted(MUTANT_LSN_TWICE))
        m->position = log_end(m, sequence_last(&m->log));
    note(m, "leads term %llu, its first batch is %llu", (unsigned long long)a->term,
         (unsigned long long)a->first_index);
    if (m->first_index != sequence_last(&m->log) + 1)
        violation("member %llu leads with batch %llu after %llu", (unsigned long long)m->id,
                  (unsigned long long)m->first_index, (unsigned long long)sequence_last(&m->log));
    faults_after_lead(m);
}

/* Drops the leader's table; the follower's is built from durable batches. */
void lead_end(struct member *m) {
    note(m, "leads term %llu no more", (unsigned long long)m->lead_term);
    m->lead_term = 0;
    m->unforced_since_ms = 0;
    m->serves = m->first_given = false;
    if (planted(MUTANT_KEEP_TABLE) && m->table.applied > m->state.applied)
        table_copy(&m->state, &m->table);
    m->busy_until_ms = sim.now_ms + 1 + random_below(30);
}

static int stamp(struct member *m, uint32_t kind, uint64_t bytes) {
    uint64_t last = sequence_last(&m->log);
    int id = batch_new();
    struct batch *b = batch_of(id);
    if (m->position % SEGMENT_BYTES == 0)
        m->position += HEADER_BYTES;
    if (m->position % SEGMENT_BYTES + bytes > SEGMENT_BYTES)
        m->position = segment_of(m->position) + SEGMENT_BYTES + HEADER_BYTES;
    b->index = last + 1;
    b->term = m->lead_term;
    b->lsn = m->position;
    b->bytes = bytes;
    b->kind = kind;
    b->prev_end = log_end(m, last);
    b->durable_lsn = log_end(m, m->forced);
    b->known_lsn = log_end(m, m->state.applied);
    b->base = table_base(&m->state, b->known_lsn);
    m->position += bytes;
    return id;
}

/* Between the check and the submission nothing else happens to the engine. */
static void submit(struct member *m, int id) {
    struct engine_entry entry = entry_of(id);
    judge_made(id);
    sequence_put(&m->log, id);
    table_apply(&m->table, id);
    io_write(m, id);
    m->unforced_since_ms = m->unforced_since_ms == 0 ? sim.now_ms : m->unforced_since_ms;
    int code = engine_submit(m->e, sim.now_ms, &entry);
    if (code != ENGINE_OK)
        violation("member %llu: engine_submit answers %d", (unsigned long long)m->id, code);
    member_act(m, NULL);
}

static bool may_write(const struct member *m) {
    return engine_may_submit(m->e) && io_is_idle(m) && m->forced == sequence_last(&m->log);
}

static void write_first(struct member *m) {
    if (!may_write(m) || sim.now_ms < m->busy_until_ms)
        return;
    table_copy(&m->table, &m->state);
    for (uint64_t i = m->table.applied + 1; i <= sequence_last(&m->log); i++)
        table_apply(&m->table, sequence_at(&m->log, i));
    m->first_given = true;
    submit(m, stamp(m, ENGINE_FIRST, 128));
}

/* ---- messages ---- */

static bool is_named(const uint64_t *ids, uint32_t count, uint64_t id) {
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Consumers accept some of what is offered. Every seventh message stays long, and is relocated. */
static void choose_accepted(struct member *m, struct batch *b) {
    const struct table *offered = planted(MUTANT_OFFER) ? &m->table : &m->state;
    uint64_t wanted = m->table.count > CROWDED ? DIED_MAX : random_below(3);
    for (uint64_t i = 0; i < wanted && offered->count > 0; i++) {
        uint64_t among = random_chance(0.7) ? 1 + offered->count / 3 : offered->count;
        const struct item *item = &offered->items[random_below(among)];
        if (!table_has(&m->table, item->id) || (item->id % 7 == 0 && random_chance(0.97)) ||
            is_named(b->died, b->died_count, item->id))
            continue;
        judge_offer(m, item);
        sim.counts[COUNT_OFFERED]++;
        b->died[b->died_count++] = item->id;
    }
}

static void choose_moved(struct member *m, struct batch *b) {
    uint64_t far = OLD_SEGMENTS * SEGMENT_BYTES;
    for (size_t i = 0; i < m->table.count && b->moved_count < MOVED_MAX; i++) {
        const struct item *item = &m->table.items[i];
        if (item->position + far < m->position && random_chance(0.3) && !is_named(b->died, b->died_count, item->id))
            b->moved[b->moved_count++] = item->id;
    }
    if (m->state.members != NO_BATCH && m->state.members == m->table.members &&
        m->table.members_position + far < m->position)
        b->relocated = m->state.members;
}

/* R3: publishers wait while a voter that answers lacks so many batches; and after an update that was no shorter than the one before,
   until it lacks almost none. */
bool lead_waits(struct member *m) {
    struct engine_member all[ENGINE_MEMBERS_MAX];
    size_t count = engine_members(m->e, all);
    bool waits = false;
    for (size_t i = 0; i < count; i++) {
        struct pace *p = &m->pace[all[i].member];
        uint64_t lacks = sequence_last(&m->log) - all[i].acknowledged;
        if (!all[i].voter || all[i].member == m->id)
            continue;
        p->is_back = p->is_back && lacks > PACED_FROM;
        if (lacks <= NEAR_BATCHES)
            *p = (struct pace){.answered_ms = p->answered_ms, .near_ms = sim.now_ms};
        uint64_t silent_ms = sim.now_ms - p->answered_ms; /* it sends no answer while it receives a copy */
        waits = waits || (p->waits && silent_ms < LONG_SILENT_MS) ||
                (all[i].acknowledged > 0 && lacks > PACED_FROM && silent_ms < ELECTION_MS);
    }
    return waits && !planted(MUTANT_NO_PACING);
}

void lead_hears(struct member *m, uint64_t from) {
    struct pace *p = &m->pace[from];
    uint64_t silent_ms = sim.now_ms - p->answered_ms;
    p->is_back = p->is_back || silent_ms >= ELECTION_MS;
    p->near_ms = silent_ms >= LONG_SILENT_MS ? sim.now_ms : p->near_ms;
    p->answered_ms = sim.now_ms;
}

void lead_offers(struct member *m, const struct engine_frame *update) {
    struct pace *p = &m->pace[update->peer];
    uint64_t round = p->offered == 0 || update->index <= p->offered ? 0 : update->index - p->offered;
    p->waits = p->waits || (p->round != 0 && round >= p->round && !planted(MUTANT_NO_ROUNDS));
    p->round = round != 0 ? round : p->round;
    p->offered = update->index;
}

static void write_messages(struct member *m) {
    uint64_t undurable = 0;
    for (uint64_t i = m->durable + 1; i <= sequence_last(&m->log); i++)
        undurable += batch_of(sequence_at(&m->log, i))->bytes;
    if (undurable > UNDURABLE_BYTES_MAX || sequence_last(&m->log) - m->durable >= sim.write_buffers)
        return;
    struct batch chosen = {.relocated = NO_BATCH};
    chosen.born = m->backlog < BORN_MAX ? m->backlog : BORN_MAX;
    choose_accepted(m, &chosen);
    choose_moved(m, &chosen);
    m->backlog -= chosen.born;
    int id = stamp(m, ENGINE_BATCH, 200 + random_below(900));
    struct batch *b = batch_of(id);
    b->born = chosen.born;
    b->died_count = chosen.died_count;
    memcpy(b->died, chosen.died, sizeof b->died);
    b->moved_count = chosen.moved_count;
    memcpy(b->moved, chosen.moved, sizeof b->moved);
    b->relocated = chosen.relocated;
    if (random_chance(0.05)) {
        b->catalog = 1 + random_below(UINT64_C(1) << 40);
        sim.counts[COUNT_CATALOG_CHANGES]++;
    }
    submit(m, id);
}

void lead_work(struct member *m) {
    if (m->lead_term == 0)
        return;
    if (!m->first_given) {
        write_first(m);
        return;
    }
    bool waits = lead_waits(m);
    sim.counts[COUNT_PACED] += waits;
    m->backlog += m->backlog < BACKLOG_MAX && random_chance(sim.load + 0.05) ? 1 : 0;
    if (m->serves && random_chance(sim.healing ? 0.05 : sim.load) && !waits && may_write(m))
        write_messages(m);
}

/* ---- members ---- */

static bool choose_change(const struct member *m, struct engine_change *change) {
    static const char *const addresses[] = {"none", "one:1", "two:2", "three:3", "four:4", "five:5"};
    struct engine_member now[ENGINE_MEMBERS_MAX];
    size_t count = engine_members(m->e, now);
    uint64_t id = 1 + random_below(sim.count);
    size_t voters = 0;
    size_t at = count;
    for (size_t i = 0; i < count; i++) {
        voters += now[i].voter;
        at = now[i].member == id ? i : at;
    }
    *change = (struct engine_change){.what = ENGINE_ADD, .member = id, .address = addresses[id]};
    if (at == count) /* a removed member comes back only after its directory was deleted */
        return sim.members[id].log.count == 0 && sim.members[id].disk.count == 0;
    change->what = now[at].voter || random_chance(0.1) ? ENGINE_REMOVE : ENGINE_PROMOTE;
    if (!now[at].voter)
        return true;
    return (id != m->id || planted(MUTANT_SELF_REMOVE)) && voters > 1 && (voters > 3 || random_chance(0.27));
}

static int plan_self_removal(const struct member *m, uint8_t *into, uint32_t *bytes) {
    struct members all;
    const struct configuration *c = configuration_of(batch_of(m->table.members)->configuration);
    if (!members_decode(&all, c->bytes, c->count))
        return ENGINE_INVALID;
    uint32_t at = members_find(&all, m->id);
    if (at == all.count)
        return ENGINE_INVALID;
    memmove(&all.all[at], &all.all[at + 1], (all.count - at - 1) * sizeof all.all[0]);
    all.count--;
    *bytes = members_encode(&all, into);
    return m->table.members == m->state.members ? ENGINE_OK : ENGINE_REFUSED;
}

bool lead_change(struct member *m) {
    struct engine_change change;
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    uint32_t count = 0;
    if (!m->serves || !may_write(m) || !choose_change(m, &change))
        return false;
    int code = change.what == ENGINE_REMOVE && change.member == m->id ? plan_self_removal(m, bytes, &count)
                                                                      : engine_plan(m->e, &change, bytes, &count);
    if (code != ENGINE_OK)
        return false;
    static const char *const words[] = {"", "adds", "promotes", "removes"};
    note(m, "%s member %llu", words[change.what], (unsigned long long)change.member);
    int id = stamp(m, ENGINE_MEMBERS, 300);
    batch_of(id)->configuration = configuration_new(bytes, count);
    sim.counts[COUNT_CHANGES]++;
    submit(m, id);
    return true;
}

void lead_transfer(struct member *m) {
    uint64_t to = random_chance(0.3) ? 0 : 1 + random_below(sim.count);
    if (engine_transfer(m->e, sim.now_ms, to) == ENGINE_OK) {
        sim.counts[COUNT_TRANSFERS]++;
        note(m, "hands over, to member %llu (0: any)", (unsigned long long)to);
    }
    member_act(m, NULL);
}
