/*
 * Some copies of a replicated log, each on a simulated disk of its own, in one thread: the leader's batches reach the others when it
 * says that they are forced, and then what a majority has is durable. Tests decide who is reached.
 */
#ifndef LOGSTORE_COPIES_H
#define LOGSTORE_COPIES_H

#include "inspect/inspect.h"
#include "replica/host.h"
#include "tests/kit/equal_tables.h"
#include "tests/kit/failing_memory.h"
#include "tests/kit/one_store.h"

enum { COPIES = 3, COPIES_MAX = 5, SENT_MAX = 4000 };

/* A batch that some leader has handed out. */
struct sent {
    struct shipment s;
    uint8_t *header, *bytes;
    int before; /* in this leader's log; -1: none */
};

struct copy {
    vfs_sim *sim;
    vfs *disk;         /* its table, or one that stands before it */
    struct host *host; /* owns `follows`; NULL: the copy stands alone, in /s */
    struct replica *follows;
    ls_store *leads;
    bool reached;
    int last; /* in `sent`, of its newest batch; -1: none */
};

static struct copy copies[COPIES_MAX];
static struct sent sent[SENT_MAX];
static int sent_count;
static int leader = -1;

static inline vfs *disk_of(const struct copy *c) { return c->disk; }

enum { MARK_TOLD = 100 }; /* in a disk's journal: 1 + the newest batch that the copy has said to be forced */

static inline void tell(const struct copy *c) {
    bool was = counting;

    counting = false;
    if (vfs_sim_mark(c->sim, MARK_TOLD, (uint64_t)(c->last + 1)) != 0)
        abort();
    counting = was;
}

static inline void keep_sent(void *context, const struct shipment *s) {
    struct copy *c = &copies[leader];
    struct sent *k = &sent[sent_count];
    (void)context;
    if (sent_count == SENT_MAX)
        abort();
    *k = (struct sent){.s = *s, .bytes = malloc(s->end_lsn - s->lsn), .before = c->last};
    memcpy(k->bytes, s->bytes, s->end_lsn - s->lsn);
    k->s.bytes = k->bytes;
    if (s->header != NULL) {
        k->header = malloc(SEGMENT_HEADER_BYTES);
        memcpy(k->header, s->header, SEGMENT_HEADER_BYTES);
        k->s.header = k->header;
    }
    c->last = sent_count++;
}

/* The newest batch that the logs which end with these two have in common; -1: none. */
static inline int common_of(int a, int b) {
    while (a != b) {
        uint64_t index_a = a >= 0 ? sent[a].s.index : 0, index_b = b >= 0 ? sent[b].s.index : 0;

        a = index_a >= index_b && a >= 0 ? sent[a].before : a;
        b = index_b >= index_a && b >= 0 ? sent[b].before : b;
    }
    return a;
}

static inline bool is_in(int last, int one) { return common_of(last, one) == one; }

enum { UNKNOWN_END = -2 };

/* The batch with which this copy ends, in `sent`; -1: it has none with an index. */
static inline int last_of(const struct replica *f) {
    int at = f->end.index == 0 ? -1 : UNKNOWN_END;

    for (int i = sent_count; f->end.index != 0 && at == UNKNOWN_END && i-- > 0;) {
        if (sent[i].s.term == f->end.term && sent[i].s.index == f->end.index && sent[i].s.end_lsn == f->end.lsn)
            at = i;
    }
    return at;
}

static uint64_t cuts_made; /* each abandoned something */

static inline int abandon(struct copy *c, uint64_t index) {
    return c->host != NULL ? host_cut(c->host, index) : replica_cut(c->follows, index);
}

/* A host takes no batch of a term that its VOTE does not have. */
static inline int learn_term(struct copy *c, uint64_t term) {
    return c->host != NULL && c->host->vote->now.term < term ? host_vote(c->host, term, 0) : LS_OK;
}

/* Sends this copy what it lacks of the log that ends with `last`; an LS code. */
static inline int catch_up(struct copy *c, int last) {
    int missing[SENT_MAX], n = 0, common = common_of(c->last, last);
    int rc = learn_term(c, last >= 0 ? sent[last].s.term : 0);

    for (int at = last; at != common; at = sent[at].before)
        missing[n++] = at;
    if (rc == LS_OK && n > 0 && common != c->last) {
        rc = abandon(c, common >= 0 ? sent[common].s.index : 0);
        cuts_made += rc == LS_OK;
        c->last = rc == LS_OK ? common : c->last;
        tell(c);
    }
    while (rc == LS_OK && n > 0) {
        struct shipment next[GROUP_BATCHES_MAX];
        size_t count = 0, taken;

        for (int at = n; at > 0 && count < GROUP_BATCHES_MAX; count++)
            next[count] = sent[missing[--at]].s;
        rc = replica_take_many(c->follows, next, count, &taken);
        if (taken > 0) {
            n -= (int)taken;
            c->last = missing[n];
            tell(c);
        }
    }
    return rc;
}

/* How far a majority has the leader's log; 0 if less than a majority is reached. */
static inline uint64_t ask_the_others(void *context, uint64_t index, uint64_t end_lsn) {
    int have = 1;

    (void)context;
    (void)index;
    for (int i = 0; i < COPIES; i++) {
        if (i == leader || !copies[i].reached || copies[i].follows == NULL)
            continue;
        check(catch_up(&copies[i], copies[leader].last) == LS_OK || complain("take"));
        have++;
    }
    return have > COPIES / 2 ? end_lsn : 0;
}

static inline int follow_again(int i) {
    return replica_open(disk_of(&copies[i]), "/s", &r.options, &copies[i].follows);
}

/* The store is closed and copied: three copies of it follow. */
static inline void copies_of_store(void) {
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    r.store = NULL;
    sent_count = 0;
    leader = -1;
    for (int i = 0; i < COPIES; i++) {
        copies[i] = (struct copy){.sim = i == 0 ? sim : vfs_sim_clone(sim), .reached = true, .last = -1};
        copies[i].disk = vfs_sim_table(copies[i].sim);
        check(follow_again(i) == LS_OK || complain("follow"));
    }
}

/* One store is made, with a message on queue 1, and copied. */
static inline void copies_start(void) {
    fresh();
    (void)put(1, "before", NULL);
    copies_of_store();
}

/* It leads in this term, and does not serve yet; an LS code. */
static inline int begin_leading(int i, uint64_t term, const struct replication *calls) {
    bool first = copies[i].last < 0;

    leader = i;
    r.sim = copies[i].sim;
    r.v = disk_of(&copies[i]);
    const char *config = first ? "1,2,3" : NULL;
    uint32_t bytes = first ? 5 : 0;
    int rc = copies[i].host != NULL ? host_lead(copies[i].host, term, calls, config, bytes, &copies[i].leads)
                                    : replica_lead(copies[i].follows, term, calls, config, bytes, &copies[i].leads);
    if (rc == LS_OK) {
        copies[i].follows = NULL;
        r.store = copies[i].leads;
    }
    return rc;
}

/* It leads in this term and serves; LS codes of both steps. */
static inline int lead_in(int i, uint64_t term) {
    struct replication calls = {.ship = keep_sent, .forced = ask_the_others};
    uint32_t ids[QUEUES];
    size_t n = list_queues(r.catalog, ids);
    int rc = begin_leading(i, term, &calls);

    return rc == LS_OK ? replica_serve(r.store, ids, n, QUEUES + 1) : rc;
}

/* It ceases to lead, and follows. */
static inline void cease(void) {
    struct copy *c = &copies[leader];

    replica_cease(c->leads);
    ls_free(c->leads);
    c->leads = r.store = NULL;
    check(follow_again(leader) == LS_OK || complain("follow again"));
    leader = -1;
}

/* ---- comparing ---- */

/* The state that this store's directory gives, or NULL. */
static inline ls_store *read_store_in(vfs *disk, const char *path, int flags) {
    ls_store *seen = NULL;
    uint64_t lsn;
    int rc = ls_inspect_open(disk, path, flags, &seen);

    while (rc == LS_OK)
        rc = ls_inspect_step(seen, 1 << 20, &lsn);
    if (rc == LS_END)
        return seen;
    (void)complain("the copy cannot be read");
    ls_free(seen);
    return NULL;
}

static inline ls_store *read_disk(vfs *disk, int flags) { return read_store_in(disk, "/s", flags); }

/* The follower's table, which is the replay of the whole log, is that of the directory. It can only be freed then. */
static inline bool settles_as(struct replica *f, const ls_store *seen) {
    if (!settles(f, seen->state.base_lsn))
        return complain("settle");
    f->store->state.report.base_lsn = seen->state.report.base_lsn;
    f->store->state.report.end_lsn = seen->state.report.end_lsn;
    return are_equal(f->store, seen);
}

/* The follower, to which all is durable, is opened again then. */
static inline bool has_the_table_of_its_directory(int i) {
    vfs_sim *left = vfs_sim_clone(copies[i].sim); /* without a process that has it open */
    ls_store *seen = read_disk(vfs_sim_table(left), LS_INSPECT_CHECK);
    bool same = replica_durable(copies[i].follows, copies[i].follows->end.lsn) == LS_OK && seen != NULL &&
                settles_as(copies[i].follows, seen);

    ls_free(seen);
    vfs_sim_free(left);
    replica_free(copies[i].follows);
    return follow_again(i) == LS_OK && same;
}

/* All have what the leader has; then every copy's directory verifies, and gives the same state. */
static inline bool copies_agree(void) {
    for (int i = 0; i < COPIES; i++)
        if (copies[i].follows != NULL && replica_durable(copies[i].follows, ls_durable_lsn(r.store)) != LS_OK)
            return complain("durable");
    ls_store *first = read_disk(disk_of(&copies[0]), LS_INSPECT_CHECK);
    bool same = first != NULL;

    for (int i = 1; i < COPIES; i++) {
        ls_store *other = read_disk(disk_of(&copies[i]), LS_INSPECT_CHECK);

        same = same && are_equal(first, other);
        ls_free(other);
    }
    ls_free(first);
    return same;
}

static inline void copies_end(void) {
    for (int i = 0; i < COPIES; i++) {
        replica_free(copies[i].follows);
        if (copies[i].leads != NULL)
            replica_cease(copies[i].leads);
        ls_free(copies[i].leads);
        check(vfs_sim_handles(copies[i].sim) == 0);
        vfs_sim_free(copies[i].sim);
    }
    for (int i = 0; i < sent_count; i++) {
        free(sent[i].header);
        free(sent[i].bytes);
    }
    r.store = NULL;
}

#endif
