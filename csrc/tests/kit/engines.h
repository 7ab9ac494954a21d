/*
 * Members of one group in one thread: each an engine over a model of its log, with FIFO links between them. Time passes by
 * millisecond in run(). Disks and VOTE are forced at once, unless a test holds them. Every answer is checked: nothing
 * durable is cut, what is durable is the same everywhere and forced here, and a term is led once.
 */
#ifndef LOGSTORE_ENGINES_H
#define LOGSTORE_ENGINES_H

#include "consensus/engine.h"
#include "consensus/members.h"
#include "tests/kit/vfs_test.h"

enum { NODES = 5, LOG_MAX = 4096, LINK_MAX = 4096, CONFIGURATIONS = 128, TERMS = 512, GROUP = 77 };
enum { ELECTION_MS = 500, HEARTBEAT_MS = 100 };

struct batch {
    uint64_t term;
    uint32_t kind;
    int configuration; /* in `configurations`; -1: none */
};

struct letter {
    struct engine_frame frame;
    struct engine_entry entries[ENGINE_ENTRIES_MAX];
};

struct link {
    struct letter *letters[LINK_MAX];
    size_t first;
    size_t count;
    bool cut;
};

struct node {
    engine *e; /* NULL: down */
    struct batch log[LOG_MAX];
    uint64_t last;
    uint64_t forced;
    uint64_t first_kept;
    uint64_t durable;
    uint64_t vote_term;
    uint64_t voted_for;
    uint64_t vote_number; /* to be forced; 0: nothing is */
    uint64_t told_vote_term;
    uint64_t told_voted_for;
    uint64_t lead_term; /* 0: it follows */
    uint64_t first_index;
    bool serves;
    bool holds_votes;
    bool holds_disk;
    bool holds_first;
    bool holds_copies;
    bool frozen;
    bool copy_waits;
    bool snapshot_wanted;
    uint64_t copy_from;
    uint64_t copy_index;
    uint64_t cuts;
    uint64_t conflicts;
    uint64_t empty_appends; /* sent */
};

static struct node nodes[NODES + 1];
static struct link links[NODES + 1][NODES + 1];
static struct {
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    uint32_t count;
} configurations[CONFIGURATIONS];
static int configuration_count;
static struct batch durable_log[LOG_MAX];
static uint64_t durable_everywhere;
static uint64_t leader_of_term[TERMS];
static uint64_t now_ms;

static inline void act(struct node *n, const struct engine_frame *received);

static inline uint64_t id_of(const struct node *n) { return (uint64_t)(n - nodes); }

static inline int add_configuration(const uint8_t *bytes, uint32_t count) {
    for (int i = 0; i < configuration_count; i++)
        if (configurations[i].count == count && memcmp(configurations[i].bytes, bytes, count) == 0)
            return i;
    if (configuration_count == CONFIGURATIONS)
        abort();
    memcpy(configurations[configuration_count].bytes, bytes, count);
    configurations[configuration_count].count = count;
    return configuration_count++;
}

static inline struct engine_entry entry_of(const struct batch *b) {
    struct engine_entry entry = {.term = b->term, .kind = b->kind};
    if (b->configuration >= 0) {
        entry.configuration = configurations[b->configuration].bytes;
        entry.configuration_bytes = configurations[b->configuration].count;
    }
    return entry;
}

static inline void lose(struct link *l) {
    while (l->count > 0) {
        free(l->letters[l->first]);
        l->first = (l->first + 1) % LINK_MAX;
        l->count--;
    }
}

static inline void post(struct node *from, const struct engine_frame *f) {
    struct link *l = &links[id_of(from)][f->peer];
    if (f->type == ENGINE_APPEND && f->count == 0)
        from->empty_appends++;
    if (l->cut || l->count == LINK_MAX)
        return;
    struct letter *letter = calloc(1, sizeof *letter);
    letter->frame = *f;
    letter->frame.peer = id_of(from);
    for (uint32_t i = 0; i < f->count; i++) {
        uint64_t index = f->index + 1 + i;
        check(index <= from->last && index >= from->first_kept);
        letter->entries[i] = entry_of(&from->log[index]);
    }
    letter->frame.entries = letter->entries;
    l->letters[(l->first + l->count++) % LINK_MAX] = letter;
}

static inline void force_disk(struct node *n) {
    while (n->e != NULL && !n->holds_disk && n->forced < n->last) {
        uint64_t index = ++n->forced;
        check(engine_forced(n->e, now_ms, index, n->log[index].term) == ENGINE_OK);
        act(n, NULL);
    }
}

static inline void force_vote(struct node *n) {
    uint64_t number = n->vote_number;
    n->vote_number = 0;
    if (number == 0)
        return;
    check(n->told_vote_term > n->vote_term ||
          (n->told_vote_term == n->vote_term && (n->voted_for == 0 || n->voted_for == n->told_voted_for)));
    n->vote_term = n->told_vote_term;
    n->voted_for = n->told_voted_for;
    check(engine_vote_forced(n->e, now_ms, number) == ENGINE_OK);
    act(n, NULL);
}

/* The leader's batch. */
static inline bool put(struct node *n, uint32_t kind, int configuration) {
    if (n->e == NULL || !engine_may_submit(n->e))
        return false;
    struct batch b = {n->lead_term, kind, configuration};
    struct engine_entry entry = entry_of(&b);
    n->log[n->last + 1] = b; /* frames of the answer take it from there */
    n->last++;
    if (engine_submit(n->e, now_ms, &entry) != ENGINE_OK) {
        n->last--;
        return false;
    }
    act(n, NULL);
    force_disk(n);
    return true;
}

static inline void put_first(struct node *n) {
    if (n->lead_term != 0)
        check(put(n, ENGINE_FIRST, -1));
}

static inline int newest_members(const struct node *n, uint64_t up_to, uint64_t *index) {
    for (uint64_t i = up_to; i > 0; i--) {
        if (n->log[i].kind == ENGINE_MEMBERS) {
            *index = i;
            return n->log[i].configuration;
        }
    }
    return -1;
}

/* Brings the wanted copy from any member that has it. */
static inline void bring_copy(struct node *n) {
    struct node *from = &nodes[n->copy_from];
    uint64_t index = n->copy_index;
    n->copy_waits = false;
    uint64_t members_index = 0;
    int members = newest_members(from, index, &members_index);
    require(members >= 0 && from->last >= index);
    int code = engine_updated(n->e, now_ms, index, from->log[index].term, members_index, configurations[members].bytes,
                              configurations[members].count);
    if (code != ENGINE_OK) {
        act(n, NULL);
        (void)engine_update_failed(n->e);
        return;
    }
    check((engine_answer(n->e)->flags & ENGINE_SWITCH) != 0);
    act(n, NULL);
    check(index > n->durable);
    memcpy(n->log, from->log, sizeof n->log);
    n->last = n->forced = index;
    n->first_kept = index + 1;
    check(engine_switched(n->e, now_ms) == ENGINE_OK);
    act(n, NULL);
}

static inline void note_led(struct node *n, const struct engine_answer *a) {
    n->lead_term = a->term;
    n->first_index = a->first_index;
    n->serves = false;
    check(a->first_index == n->last + 1);
    check(n->vote_term == a->term && n->voted_for == id_of(n));
    check(a->term < TERMS && leader_of_term[a->term] == 0);
    leader_of_term[a->term] = id_of(n);
    for (uint64_t i = 1; i <= durable_everywhere; i++)
        check(i <= n->last && n->log[i].term == durable_log[i].term);
}

static inline void note_durable_of(struct node *n, uint64_t index) {
    check(index > n->durable && index <= n->forced);
    n->durable = index;
    for (uint64_t i = 1; i <= index && i <= n->last; i++) {
        if (i > durable_everywhere) {
            durable_everywhere = i;
            durable_log[i] = n->log[i];
        }
        check(durable_log[i].term == n->log[i].term && durable_log[i].kind == n->log[i].kind);
    }
}

/* What the program does with an answer. */
static inline void act(struct node *n, const struct engine_frame *received) {
    struct engine_answer a = *engine_answer(n->e);
    struct engine_frame *frames = a.frame_count > 0 ? malloc(a.frame_count * sizeof *frames) : NULL;
    if (frames != NULL)
        memcpy(frames, a.frames, a.frame_count * sizeof *frames);
    if ((a.flags & ENGINE_FOLLOW) != 0) {
        n->lead_term = 0;
        n->serves = false;
        if ((a.flags & ENGINE_TAKE) == 0 && n->last > a.last_index) {
            n->last = a.last_index;
            n->forced = n->forced < n->last ? n->forced : n->last;
        }
    }
    if ((a.flags & ENGINE_CUT) != 0) {
        check(a.cut_index > n->durable && a.cut_index <= n->last);
        n->last = a.cut_index - 1;
        n->forced = n->forced < n->last ? n->forced : n->last;
        n->cuts++;
    }
    if ((a.flags & ENGINE_TAKE) != 0 && received != NULL) {
        check(a.take_index == n->last + 1);
        for (uint64_t i = a.take_index; i < a.take_index + a.take_count; i++) {
            const struct engine_entry *entry = &received->entries[i - received->index - 1];
            n->log[i] = (struct batch){entry->term, entry->kind, -1};
            if (entry->kind == ENGINE_MEMBERS)
                n->log[i].configuration = add_configuration(entry->configuration, entry->configuration_bytes);
            n->last = i;
        }
    }
    for (uint32_t i = 0; i < a.frame_count; i++) {
        check(frames[i].group == GROUP && frames[i].peer != id_of(n));
        if (frames[i].type != ENGINE_VOTED && (frames[i].flags & ENGINE_PRE_VOTE) == 0)
            check(frames[i].term <= n->vote_term);
        post(n, &frames[i]);
    }
    free(frames);
    if ((a.flags & ENGINE_CONFLICT) != 0)
        n->conflicts++;
    if ((a.flags & ENGINE_SNAPSHOT) != 0)
        n->snapshot_wanted = true;
    if ((a.flags & ENGINE_VOTE) != 0) {
        n->vote_number = a.vote.number;
        n->told_vote_term = a.vote.term;
        n->told_voted_for = a.vote.voted_for;
    }
    if ((a.flags & ENGINE_LEAD) != 0)
        note_led(n, &a);
    if ((a.flags & ENGINE_SERVE) != 0)
        n->serves = true;
    if ((a.flags & ENGINE_DURABLE) != 0)
        note_durable_of(n, a.durable_index);
    if ((a.flags & ENGINE_COPY) != 0) {
        n->copy_waits = true;
        n->copy_from = a.update.from;
        n->copy_index = a.update.index;
    }
    if ((a.flags & ENGINE_VOTE) != 0 && !n->holds_votes)
        force_vote(n);
    if ((a.flags & ENGINE_TAKE) != 0)
        force_disk(n);
    if ((a.flags & ENGINE_LEAD) != 0 && !n->holds_first)
        put_first(n);
    if ((a.flags & ENGINE_COPY) != 0 && !n->holds_copies)
        bring_copy(n);
}

static inline struct engine_options options_of(const struct node *n) {
    return (struct engine_options){.group = GROUP,
                                   .member = id_of(n),
                                   .election_ms = ELECTION_MS,
                                   .heartbeat_ms = HEARTBEAT_MS,
                                   .transfer_ms = 300,
                                   .update_ms = 2000,
                                   .in_flight_max = 40,
                                   .behind_max = 20,
                                   .seed = (uint32_t)(id_of(n) * 7919 + now_ms)};
}

/* Starts a member from what its disk has. */
static inline void boot(struct node *n) {
    static struct engine_entry entries[LOG_MAX];
    struct engine_options options = options_of(n);
    struct engine_log log = {.vote_term = n->vote_term, .voted_for = n->voted_for};
    n->last = n->forced;
    n->vote_number = 0;
    n->lead_term = 0;
    n->serves = n->frozen = n->copy_waits = n->snapshot_wanted = false;
    if (n->last > 0) {
        log.known_durable = n->durable < 2 ? 0 : n->durable;
        log.first_kept = n->durable < 2 ? 1 : n->first_kept < 2 ? 2 : n->first_kept;
        log.count = (uint32_t)(n->last + 1 - log.first_kept);
        for (uint32_t i = 0; i < log.count; i++)
            entries[i] = entry_of(&n->log[log.first_kept + i]);
        log.entries = entries;
        log.header_term = n->log[n->last].term;
    }
    if (log.known_durable >= 2) {
        int members = newest_members(n, log.known_durable, &log.members_index);
        require(members >= 0);
        log.known_durable_term = n->log[log.known_durable].term;
        log.members = configurations[members].bytes;
        log.members_bytes = configurations[members].count;
    }
    n->durable = log.known_durable;
    check(engine_open(&options, &log, now_ms, &n->e) == ENGINE_OK);
    require(n->e != NULL);
    act(n, NULL);
}

static inline void stop(struct node *n) {
    engine_close(n->e);
    n->e = NULL;
    for (int i = 1; i <= NODES; i++) {
        lose(&links[id_of(n)][i]);
        lose(&links[i][id_of(n)]);
    }
}

static inline void begin_group(size_t voters) {
    static const char *const addresses[] = {"one:1", "two:2", "three:3", "four:4", "five:5"};
    uint64_t ids[NODES];
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    uint32_t count = 0;
    memset(nodes, 0, sizeof nodes);
    memset(links, 0, sizeof links);
    memset(leader_of_term, 0, sizeof leader_of_term);
    durable_everywhere = 0;
    configuration_count = 0;
    now_ms = 1000;
    for (size_t i = 0; i < voters; i++)
        ids[i] = i + 1;
    check(engine_bootstrap(ids, addresses, voters, bytes, &count) == ENGINE_OK);
    int first = add_configuration(bytes, count);
    for (size_t i = 1; i <= voters; i++) {
        nodes[i].log[1] = (struct batch){1, ENGINE_MEMBERS, first};
        nodes[i].forced = 1;
        nodes[i].vote_term = 1;
    }
    for (size_t i = 1; i <= NODES; i++)
        nodes[i].first_kept = 1;
    for (size_t i = 1; i <= voters; i++)
        boot(&nodes[i]);
}

static inline void end_group(void) {
    for (int i = 1; i <= NODES; i++)
        stop(&nodes[i]);
}

static inline void deliver_from(int from) {
    for (int to = 1; to <= NODES; to++) {
        struct link *l = &links[from][to];
        while (l->count > 0 && !nodes[to].frozen) {
            struct letter *letter = l->letters[l->first];
            l->first = (l->first + 1) % LINK_MAX;
            l->count--;
            if (nodes[to].e != NULL && !l->cut) {
                check(engine_receive(nodes[to].e, now_ms, &letter->frame) == ENGINE_OK);
                act(&nodes[to], &letter->frame);
            }
            free(letter);
        }
    }
}

/* The leader's snapshot is all that is durable, and so many entries before its end are kept. */
static inline int take_snapshot(struct node *n, uint64_t kept) {
    uint64_t from = 0;
    uint64_t first = n->durable + 1 > kept ? n->durable + 1 - kept : 1;
    int code = engine_snapshot(n->e, now_ms, n->durable, first, &from);
    act(n, NULL);
    if (code == ENGINE_OK)
        n->first_kept = from;
    return code;
}

static inline void run(uint64_t ms) {
    for (uint64_t end = now_ms + ms; now_ms < end; now_ms++) {
        for (int i = 1; i <= NODES; i++) {
            if (nodes[i].e == NULL || nodes[i].frozen)
                continue;
            deliver_from(i);
            if (nodes[i].snapshot_wanted && take_snapshot(&nodes[i], 3) == ENGINE_OK)
                nodes[i].snapshot_wanted = false;
            if (engine_answer(nodes[i].e)->due_ms <= now_ms) {
                check(engine_time(nodes[i].e, now_ms) == ENGINE_OK);
                act(&nodes[i], NULL);
            }
        }
    }
}

/* The member that serves in the highest term. */
static inline struct node *leader(void) {
    struct node *found = NULL;
    for (int i = 1; i <= NODES; i++)
        if (nodes[i].e != NULL && !nodes[i].frozen && nodes[i].serves &&
            (found == NULL || nodes[i].lead_term > found->lead_term))
            found = &nodes[i];
    return found;
}

static inline struct node *elect(void) {
    for (int i = 0; i < 100 && leader() == NULL; i++)
        run(50);
    check(leader() != NULL);
    return leader();
}

static inline void isolate(struct node *n, bool cut) {
    for (int i = 1; i <= NODES; i++) {
        links[id_of(n)][i].cut = links[i][id_of(n)].cut = cut;
        lose(&links[id_of(n)][i]);
        lose(&links[i][id_of(n)]);
    }
}

static inline bool put_many(struct node *n, int count) {
    bool all = true;
    for (int i = 0; i < count; i++) {
        all = put(n, ENGINE_BATCH, -1) && all;
        run(2);
    }
    return all;
}

/* Plans a change and submits it. */
static inline int change_members(struct node *n, uint32_t what, uint64_t member) {
    static const char *const addresses[] = {"none", "one:1", "two:2", "three:3", "four:4", "five:5"};
    struct engine_change change = {what, member, addresses[member]};
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    uint32_t count = 0;
    int code = engine_plan(n->e, &change, bytes, &count);
    if (code == ENGINE_OK)
        check(put(n, ENGINE_MEMBERS, add_configuration(bytes, count)));
    return code;
}

#endif
