/*
 * Two members with a copy each, of which one leads and the other follows, in one thread: what the leader forces reaches the other one at
 * once, and a majority has it then.
 */
#ifndef LOGSTORE_TWO_MEMBERS_H
#define LOGSTORE_TWO_MEMBERS_H

#include "replica/commit.h"
#include "replica/host.h"

#include "log/parts.h"
#include "tests/kit/one_store.h"

enum { TERM = 5, MADE_MAX = 2000 };

static const char *const HOST = "/m";
static const uint32_t queue = 1;

struct member {
    vfs_sim *disk;
    ls_host *host;
    ls_store *leads;
};

static struct member one, two;
static ls_options options;

static struct made {
    ls_replica_batch batch;
    uint8_t *bytes, *header;
} made[MADE_MAX]; /* by index */
static uint64_t newest;

static inline void keep_made(const ls_replica_batch *b) {
    struct made *m = &made[b->index];

    if (b->index >= MADE_MAX)
        abort();
    free(m->bytes);
    free(m->header);
    *m = (struct made){.batch = *b, .bytes = malloc(b->end_lsn - b->lsn)};
    memcpy(m->bytes, b->bytes, b->end_lsn - b->lsn);
    if (b->header != NULL) {
        m->header = malloc(SEGMENT_HEADER_BYTES);
        memcpy(m->header, b->header, SEGMENT_HEADER_BYTES);
    }
    newest = b->index;
}

static inline int open_member(struct member *m) {
    return ls_host_open(vfs_sim_table(m->disk), HOST, &options, &m->host);
}

static inline void enter(uint64_t kept_bytes) {
    ls_member member = {.cluster_uuid = {4}, .member_id = 1, .copy = 1};
    ls_store *store;

    ls_options_default(&options);
    options.segment_size = SEGMENT;
    options.background = 0;
    options.create = 1;
    one = two = (struct member){.disk = NULL};
    one.disk = vfs_sim_new();
    (void)vfs_sim_record(one.disk, 0);
    vfs *v = vfs_sim_table(one.disk);
    check(v->make_dir(v, HOST) == 0 && v->make_dir(v, "/m/copy-1") == 0);
    check(ls_open(v, "/m/copy-1", &options, &store) == LS_OK && ls_serve(store, &queue, 1, 2) == LS_OK);
    check(ls_close(store) == LS_OK);
    ls_free(store);
    two.disk = vfs_sim_clone(one.disk);
    options.kept_bytes = kept_bytes;
    check(ls_host_create(v, HOST, &member) == LS_OK && open_member(&one) == LS_OK);
    member.member_id = 2;
    check(ls_host_create(vfs_sim_table(two.disk), HOST, &member) == LS_OK && open_member(&two) == LS_OK);
}

static inline void free_member(struct member *m) {
    if (m->leads != NULL) {
        check(ls_replica_cease(m->leads) == LS_OK);
        ls_free(m->leads);
    }
    ls_host_close(m->host);
    check(vfs_sim_handles(m->disk) == 0);
    vfs_sim_free(m->disk);
}

static inline void leave(void) {
    free_member(&one);
    free_member(&two);
    for (uint64_t i = 0; i < MADE_MAX; i++) {
        free(made[i].bytes);
        free(made[i].header);
        made[i] = (struct made){.bytes = NULL};
    }
    newest = 0;
}

static struct member *leader, *follower; /* NULL: it is cut off */
static struct replication real;

/* Under the leader's lock: what was handed out reaches the other one, and then a majority has it. */
static inline uint64_t forced_here(void *context, uint64_t index, uint64_t end_lsn) {
    ls_replica_batch b;
    ls_store *store = context;

    (void)real.forced(real.context, index, end_lsn);
    while (ls_replica_next(store, &b) == LS_OK) {
        keep_made(&b);
        check(follower == NULL || ls_replica_take(ls_host_replica(follower->host), &b) == LS_OK || complain("take"));
    }
    check(follower == NULL || ls_replica_durable(ls_host_replica(follower->host), end_lsn) == LS_OK);
    return follower != NULL ? end_lsn : 0;
}

static inline void ship(void *context, const struct shipment *s) {
    (void)context;
    real.ship(real.context, s);
}

/* All that the leader has appended is forced. */
static inline void force_all(void) {
    struct log *g = leader->leads->log;

    log_lock(g);
    while (g->poison == 0 && log_unforced(g) > 0)
        log_lead_one(g);
    log_unlock(g);
}

/* As ls_host_lead, but in one thread. */
static inline void lead(struct member *m, struct member *other, uint64_t term) {
    uint64_t id = m == &one ? 1 : 2;
    bool first = newest == 0;
    struct kept *kept = m->host->follows->kept;
    uint64_t catalog_lsn = m->host->follows->catalog_lsn;

    check(ls_host_vote(m->host, term, id) == LS_OK && ls_host_vote(other->host, term, id) == LS_OK);
    leader = m;
    follower = other;
    check(leader_of(m->host->follows->store, kept, &real) == LS_OK);
    struct replication calls = {.context = m->host->follows->store, .ship = ship, .forced = forced_here};
    check(host_lead(m->host, term, &calls, first ? "1,2" : NULL, first ? 3 : 0, &m->leads) == LS_OK ||
          complain("lead"));
    m->host->kept = kept;
    m->host->options.catalog_lsn = catalog_lsn;
    check(ls_replica_serve(m->leads, &queue, 1, 2) == LS_OK || complain("serve"));
}

static inline void cease_and_follow(struct member *m) {
    check(ls_replica_cease(m->leads) == LS_OK);
    ls_free(m->leads);
    m->leads = NULL;
    check(ls_host_follow(m->host) == LS_OK || complain("follow"));
}

static inline uint64_t send(struct member *from, struct member *to, uint32_t bytes) {
    static const uint8_t content[4000];
    uint64_t id = 0;

    follower = to;
    check(ls_publish(from->leads, &queue, 1, NULL, 0, content, bytes, NULL, 0, &id) == LS_OK || complain("publish"));
    force_all();
    return id;
}

/* Published and dequeued, so that the base passes what was written before. */
static inline void churn_here(struct member *from, struct member *to, int times) {
    for (int i = 0; i < times; i++) {
        uint64_t id = send(from, to, 3900), lsn;

        check(ls_dequeue(from->leads, id, queue, NULL, 1, 0, 0, &lsn) == LS_OK || complain("dequeue"));
        force_all();
    }
}

#endif
