/*
 * A member's directory on the simulated disk: VOTE and the copy that counts, with power cuts at every call, failing calls and
 * allocations, and directories that do not belong there. Whatever happened, an open takes part with all that was told, or it
 * refuses; and a copy never takes part after it became a single store.
 */
#include "replica/host.h"

#include "log/parts.h"
#include "tests/kit/copies.h"

enum { TERM_A = 5, TERM_B = 6, SELF = 3, LEADER_A = 1, LEADER_B = 2 };

static const char *const HOST = "/m";
static const struct vote FIRST = {.cluster_uuid = {9, 8}, .member_id = SELF, .copy = 1};

/* ---- a leader of term 5, whose end no majority has, and the leader of term 6 ---- */

static vfs_sim *single;         /* the disk of the store before it was replicated */
static int early, end_a, end_b; /* in `sent` */

static int failed_before; /* this test */

static bool fine_so_far(void) { return failures_here == failed_before; }

static bool force_here(struct log *g) {
    log_lock(g);
    while (g->poison == 0 && log_unforced(g) > 0)
        log_lead_one(g);
    log_unlock(g);
    return g->poison == 0;
}

static void log_begins(void) {
    failed_before = failures_here;
    copies_start();
    single = vfs_sim_clone(copies[2].sim);
    check(lead_in(0, TERM_A) == LS_OK || complain("lead"));
    for (int i = 0; i < 6; i++) {
        (void)put_bytes(1, 'a', 5000, LS_WAIT);
        early = i == 2 ? copies[0].last : early;
    }
    copies[1].reached = copies[2].reached = false;
    (void)put_bytes(1, 'b', 5000, 0);
    check(force_here(r.store->log));
    (void)put_bytes(1, 'b', 5000, 0);
    check(force_here(r.store->log));
    end_a = copies[0].last;
    cease();
    copies[1].reached = copies[2].reached = true;
    check(lead_in(1, TERM_B) == LS_OK || complain("lead"));
    for (int i = 0; i < 3; i++)
        (void)put_bytes(1, 'c', 5000, LS_WAIT);
    end_b = copies[1].last;
    cease();
    check(common_of(end_a, end_b) < end_a && common_of(end_a, end_b) > early);
}

static void log_ends(void) {
    vfs_sim_free(single);
    copies_end();
}

/* ---- the host on its disk ---- */

static vfs_sim *disk;
static vfs *v;
static struct host *h;

struct copying {
    vfs_sim *from, *to;
    const char *from_path, *to_path;
};

static int copy_one(void *context, const char *name) {
    static uint8_t bytes[1 << 18];
    const struct copying *c = context;
    int64_t size = vfs_sim_get(c->from, VFS_SIM_SEEN, c->from_path, name, bytes, sizeof bytes);

    if (size > (int64_t)sizeof bytes)
        abort();
    if (size >= 0 && vfs_sim_put(c->to, c->to_path, name, bytes, (size_t)size) != 0)
        abort();
    return 0;
}

static void copy_files(vfs_sim *from, const char *from_path, vfs_sim *to, const char *to_path) {
    struct copying c = {from, to, from_path, to_path};
    vfs *t = vfs_sim_table(from);
    int dir = t->open_dir(t, from_path);

    check(dir >= 0 && t->list(t, dir, copy_one, &c) == 0 && t->close(t, dir) == 0);
}

static void sync_place(const char *path) {
    int dir = v->open_dir(v, path);

    check(dir >= 0 && v->sync_dir(v, dir) == 0 && v->close(v, dir) == 0);
}

/* A directory with the single store in copy-1, and no VOTE. */
static void place(void) {
    disk = vfs_sim_new();
    (void)vfs_sim_record(disk, 0);
    v = vfs_sim_table(disk);
    h = NULL;
    check(v->make_dir(v, HOST) == 0 && v->make_dir(v, "/m/copy-1") == 0);
    copy_files(single, "/s", disk, "/m/copy-1");
    sync_place(HOST);
    sync_place("/");
}

static int open_host(void) { return host_open(v, HOST, &r.options, &h); }

static void enter(void) {
    place();
    check(host_create(v, HOST, &FIRST) == LS_OK || complain("create"));
    check(open_host() == LS_OK || complain("open"));
}

static void leave(void) {
    host_close(h);
    h = NULL;
    check(vfs_sim_handles(disk) == 0);
    vfs_sim_free(disk);
}

/* The batches of the log that ends with `to`, from its end on; an LS code. */
static int feed(int to) {
    int missing[SENT_MAX], n = 0, rc = LS_OK, from = last_of(h->follows);

    for (int at = to; at != from && at >= 0; at = sent[at].before)
        missing[n++] = at;
    while (rc == LS_OK && n > 0)
        rc = replica_take(h->follows, &sent[missing[--n]].s);
    return rc;
}

static void keep_nothing(void *context, const struct shipment *s) { (void)context, (void)s; }
static uint64_t alone(void *context, uint64_t index, uint64_t end_lsn) {
    (void)context, (void)index;
    return end_lsn;
}
static const struct replication ALONE = {.ship = keep_nothing, .forced = alone};

/* Leads in VOTE's term, and follows again. */
static int lead_alone(void) {
    bool first = host_tail(h).index == 0;
    ls_store *store;
    uint32_t ids[QUEUES];
    size_t n = list_queues(r.catalog, ids);
    int rc = host_lead(h, h->vote->now.term, &ALONE, first ? "3" : NULL, first ? 1 : 0, &store);

    if (rc != LS_OK)
        return rc;
    rc = replica_serve(store, ids, n, QUEUES + 1);
    replica_cease(store);
    ls_free(store);
    return rc == LS_OK ? host_follow(h) : rc;
}

static bool has_dir(vfs *on, const char *name) {
    int dir = on->open_dir(on, HOST), found;

    if (dir < 0)
        abort();
    found = on->open_subdir(on, dir, name, 0);
    if (found >= 0)
        (void)on->close(on, found);
    (void)on->close(on, dir);
    return found >= 0;
}

static void plant_copy(const char *path) {
    char holds[64];

    (void)snprintf(holds, sizeof holds, "%s/holds", path);
    check(v->make_dir(v, path) == 0);
    copy_files(single, "/s", disk, path);
    check(v->make_dir(v, holds) == 0 && vfs_sim_put(disk, holds, "a.hold", "x", 1) == 0);
}

/* ---- a member's life, in steps ---- */

enum { STEPS = 12 };

static int open_anew(void) {
    host_close(h);
    return open_host();
}

static int step(int i) {
    switch (i) {
    case 0:
        return host_vote(h, TERM_A, LEADER_A);
    case 1:
        return feed(early);
    case 2:
        return host_note_tail(h, host_tail(h));
    case 3:
        return feed(end_a);
    case 4:
        return open_anew();
    case 5:
        return host_vote(h, TERM_B, LEADER_B);
    case 6:
        return host_cut(h, sent[common_of(end_a, end_b)].s.index);
    case 7:
        return feed(end_b);
    case 8:
        return open_anew();
    case 9:
        return host_vote(h, TERM_B + 1, SELF);
    case 10:
        return lead_alone();
    default:
        return host_remove_copy(h);
    }
}

struct seen {
    struct vote vote;
    struct tail tail;
};

static struct seen states[STEPS + 1]; /* [i]: before step i */

static struct seen see(void) { return (struct seen){h->vote->now, host_tail(h)}; }

/* What this disk opens with is at least what was told before the step that was under way. */
static bool opens_between(vfs_sim *cut, const struct seen *before, const struct seen *after) {
    vfs *table = vfs_sim_table(cut);
    struct host *there;
    bool removed = after->vote.rebuild > before->vote.rebuild;
    struct tail least = tail_is_before(after->tail, before->tail) ? after->tail : before->tail;

    if (host_open(table, HOST, &r.options, &there) != LS_OK)
        return complain("open after a power cut");
    const struct vote *now = &there->vote->now;
    bool right =
        now->term >= before->vote.term && now->term <= after->vote.term &&
        (now->term != before->vote.term || before->vote.voted_for == 0 || now->voted_for == before->vote.voted_for) &&
        (now->copy == before->vote.copy || now->copy == after->vote.copy) &&
        (!tail_is_before(host_tail(there), least) || (removed && there->follows == NULL)) &&
        (there->follows == NULL) == (now->copy != 1);
    bool follows = there->follows != NULL;
    host_close(there);
    if (!right)
        return complain("what an open finds");
    return (has_dir(table, "copy-1") == follows && (follows || !has_dir(table, "copy-7"))) ||
           complain("a copy that does not count");
}

static void a_power_cut_anywhere_in_a_members_life_loses_nothing_that_was_told(void) {
    const vfs_sim_event *events;
    size_t n, returned = 0;
    uint64_t disks = 0;

    log_begins();
    enter();
    host_close(h);
    plant_copy("/m/copy-7");
    (void)vfs_sim_record(disk, 1);
    check(open_host() == LS_OK);
    for (int i = 0; i < STEPS; i++) {
        states[i] = see();
        check(vfs_sim_mark(disk, 1, (uint64_t)i) == 0);
        check(step(i) == LS_OK || complain("step"));
    }
    states[STEPS] = see();
    check(vfs_sim_mark(disk, 1, STEPS) == 0);
    n = vfs_sim_journal(disk, &events);
    for (size_t k = 1; k <= n && fine_so_far(); k++) {
        if (events[k - 1].kind == VFS_SIM_MARK)
            returned = (size_t)events[k - 1].value;
        for (uint64_t seed = 0; seed < 8; seed += ONE_IN) {
            vfs_sim_loss loss = {
                .mode = seed == 0   ? VFS_SIM_ALL_LOST
                        : seed == 1 ? VFS_SIM_ALL_KEPT
                                    : VFS_SIM_RANDOM,
                .dir_mode = seed == 0   ? VFS_SIM_DIRS_LOST
                            : seed == 1 ? VFS_SIM_DIRS_KEPT
                                        : VFS_SIM_DIRS_RANDOM,
                .seed = k * 100 + seed,
            };
            vfs_sim *cut = vfs_sim_crash_at(disk, k, &loss);

            check(opens_between(cut, &states[returned], &states[returned < STEPS ? returned + 1 : STEPS]));
            vfs_sim_free(cut);
            disks++;
            if (!fine_so_far())
                printf("  event %zu of %zu, in step %zu, seed %llu\n", k, n, returned, (unsigned long long)seed);
        }
    }
    check(disks > 500 || ONE_IN > 1);
    leave();
    log_ends();
}

/* ---- an end to replication ---- */

static int detach_host(vfs *on, uint64_t highest_term) {
    uint64_t copy;
    int rc = host_detach(on, HOST, &r.options, highest_term, &copy);

    check(rc != LS_OK || copy == 1);
    return rc;
}

/* LS_OK, or why the copy does not open as a single store. */
static int open_single(vfs *on, uint64_t *epoch, uint64_t *messages) {
    ls_store *store;
    int rc = ls_open(on, "/m/copy-1", &r.options, &store);

    if (rc != LS_OK)
        return rc;
    *epoch = store->scan.epoch_max;
    *messages = store->state.table.message_count;
    ls_free(store);
    return LS_OK;
}

static void enter_with_content(void) {
    enter();
    check(host_vote(h, TERM_A, LEADER_A) == LS_OK && feed(end_a) == LS_OK);
}

static bool is_single_or_takes_part(vfs_sim *cut, uint64_t messages) {
    vfs *table = vfs_sim_table(cut);
    struct host *there;
    uint64_t epoch, found;
    int part = host_open(table, HOST, &r.options, &there);
    bool detached = part == LS_NOT_A_STORE && strstr(ls_last_error()->text, "detached") != NULL;
    int alone_opens;

    if (part != LS_OK && !detached)
        return complain("open after a power cut");
    host_close(there);
    alone_opens = open_single(table, &epoch, &found);
    if (alone_opens != LS_OK && alone_opens != LS_REPLICATED)
        return complain("open as a single store");
    if (part == LS_OK && alone_opens == LS_OK)
        return complain("it takes part, and is a single store");
    if (detach_host(table, 0) != LS_OK || open_single(table, &epoch, &found) != LS_OK)
        return complain("the same call again");
    if (host_open(table, HOST, &r.options, &there) != LS_NOT_A_STORE)
        return complain("a detached host opens");
    if (part != LS_OK && epoch < 90 + DETACHED_TERMS)
        return complain("the call that finishes knows less");
    return found == messages || complain("messages");
}

static void a_power_cut_while_replication_ends_leaves_a_member_or_what_the_same_call_finishes(void) {
    const vfs_sim_event *events;
    uint64_t epoch, messages;
    size_t n;

    log_begins();
    enter_with_content();
    host_close(h);
    h = NULL;
    (void)vfs_sim_record(disk, 1);
    check(detach_host(v, 90) == LS_OK || complain("detach"));
    n = vfs_sim_journal(disk, &events);
    (void)vfs_sim_mark(disk, 1, 0);
    check(open_single(v, &epoch, &messages) == LS_OK || complain("open"));
    check(messages == 9);
    for (size_t k = 0; k <= n && fine_so_far(); k++) {
        for (uint64_t seed = 0; seed < 6; seed += ONE_IN) {
            vfs_sim_loss loss = {
                .mode = seed == 0   ? VFS_SIM_ALL_LOST
                        : seed == 1 ? VFS_SIM_ALL_KEPT
                                    : VFS_SIM_RANDOM,
                .dir_mode = seed == 0   ? VFS_SIM_DIRS_LOST
                            : seed == 1 ? VFS_SIM_DIRS_KEPT
                                        : VFS_SIM_DIRS_RANDOM,
                .seed = k * 100 + seed,
            };
            vfs_sim *cut = vfs_sim_crash_at(disk, k, &loss);

            check(is_single_or_takes_part(cut, messages));
            vfs_sim_free(cut);
        }
        vfs_sim *killed = vfs_sim_at(disk, k);

        check(is_single_or_takes_part(killed, messages));
        vfs_sim_free(killed);
    }
    leave();
    log_ends();
}

/* Others may have voted in, and led, terms that this copy never heard of. */
static void what_is_detached_begins_far_above_every_term_that_is_known(void) {
    uint64_t epoch, messages;

    log_begins();
    enter_with_content();
    check(host_vote(h, 40, LEADER_A) == LS_OK);
    host_close(h);
    h = NULL;
    check(detach_host(v, TERM_LIMIT - 10) == LS_OPTION && strstr(ls_last_error()->text, "no term left") != NULL);
    check(open_host() == LS_OK || complain("nothing has changed")); /* it still takes part */
    host_close(h);
    h = NULL;
    check(detach_host(v, 30) == LS_OK && open_single(v, &epoch, &messages) == LS_OK);
    check(epoch >= 40 + DETACHED_TERMS);
    check(detach_host(v, 0) == LS_OK); /* it was done */
    leave();

    place();
    check(host_create(v, HOST, &FIRST) == LS_OK);
    check(detach_host(v, 0) == LS_OPTION && strstr(ls_last_error()->text, "not replicated") != NULL);
    check(open_host() == LS_OK);
    leave();
    log_ends();
}

static void a_log_is_detached_after_vote_and_only_when_the_catalog_has_all_of_it(void) {
    ls_options options;
    uint64_t copy = 0, epoch, messages;

    log_begins();
    enter_with_content();
    host_close(h);
    h = NULL;
    options = r.options;
    options.catalog_lsn = 1;
    check(host_detach(v, HOST, &options, 0, &copy) == LS_WOULD_WAIT && copy == 1);
    check(strstr(ls_last_error()->text, "and the catalog has its changes up to 1:") != NULL);
    check(open_host() == LS_NOT_A_STORE && strstr(ls_last_error()->text, "detached") != NULL);
    check(open_single(v, &epoch, &messages) == LS_REPLICATED);
    options.catalog_lsn = sent[end_a].s.end_lsn - 1;
    check(host_detach(v, HOST, &options, 0, &copy) == LS_WOULD_WAIT);
    options.catalog_lsn = sent[end_a].s.end_lsn;
    check(host_detach(v, HOST, &options, 0, &copy) == LS_OK || complain("detach"));
    check(open_single(v, &epoch, &messages) == LS_OK && messages == 9);
    options.catalog_lsn = 1;
    check(host_detach(v, HOST, &options, 0, &copy) == LS_OK && copy == 1); /* it was done */
    leave();
    log_ends();
}

/* Also where no batch with an index is left: a store at its limit is relocated while it is detached. */
static void a_detach_is_repeated_after_the_store_was_relocated(void) {
    ls_compaction done;
    ls_store *store;
    uint32_t ids[QUEUES];
    uint64_t epoch, messages;

    for (uint32_t q = 0; q < QUEUES; q++)
        ids[q] = q + 1;
    log_begins();
    enter_with_content();
    host_close(h);
    h = NULL;
    check(detach_host(v, 0) == LS_OK || complain("detach"));
    require(ls_open(v, "/m/copy-1", &r.options, &store) == LS_OK);
    check(ls_serve(store, ids, QUEUES, QUEUES + 1) == LS_OK || complain("serve"));
    check(ls_compact(store, 0, &done) == LS_OK && ls_close(store) == LS_OK);
    ls_free(store);
    check(detach_host(v, 0) == LS_OK || complain("detach again"));
    check(open_single(v, &epoch, &messages) == LS_OK && messages == 9);
    check(open_host() == LS_NOT_A_STORE && strstr(ls_last_error()->text, "detached") != NULL);
    leave();
    log_ends();
}

/* A member whose VOTE is not marked would believe its own suffix, and lead with it. */
static void a_single_store_in_a_members_place_is_named_and_detached_as_well(void) {
    struct vote_file *vote;

    log_begins();
    enter_with_content();
    host_close(h);
    h = NULL;
    vfs_sim *before = vfs_sim_clone(disk);
    check(detach_host(v, 0) == LS_OK);
    uint8_t slots[VOTE_SLOTS * VOTE_SLOT_BYTES];
    check(vfs_sim_get(before, VFS_SIM_SEEN, HOST, "VOTE", slots, sizeof slots) == (int64_t)sizeof slots);
    vfs_sim_free(before);
    check(vfs_sim_put(disk, HOST, "VOTE", slots, sizeof slots) == 0);
    check(open_host() == LS_NOT_A_STORE && strstr(ls_last_error()->text, "backup") != NULL);
    check(detach_host(v, 0) == LS_OK);
    check(vote_open(v, HOST, &vote) == LS_OK && vote->now.detached == 1);
    vote_close(vote);
    leave();
    log_ends();
}

static void a_backup_is_detached_and_a_members_copy_is_not(void) {
    uint64_t epoch, messages;

    log_begins();
    enter_with_content();
    host_close(h);
    h = NULL;
    check(host_detach_backup(v, "/m/copy-1", &r.options) == LS_OPTION &&
          strstr(ls_last_error()->text, "belongs to a member") != NULL);
    check(open_single(v, &epoch, &messages) == LS_REPLICATED);
    check(v->make_dir(v, "/backup") == 0);
    copy_files(disk, "/m/copy-1", disk, "/backup");
    check(host_detach_backup(v, "/backup", &r.options) == LS_OK || complain("detach"));
    ls_store *store;
    check(ls_open(v, "/backup", &r.options, &store) == LS_OK && store->state.table.message_count == 9);
    ls_free(store);
    check(host_detach_backup(v, "/backup", &r.options) == LS_OPTION);
    check(open_host() == LS_OK);
    leave();
    log_ends();
}

static uint64_t base_of(int one) {
    struct batch b;
    struct record record;

    format_read_verified(sent[one].bytes, &record);
    return format_get_batch(&record, &b) == FORMAT_OK ? b.base_lsn : 0;
}

/* It begins at the base that its newest batch names. An open of a copy may need more: a majority is not known to have that batch. */
static void a_backup_has_nothing_below_the_base_of_its_newest_batch(void) {
    int newest;

    copies_start();
    check(lead_in(0, TERM_A) == LS_OK || complain("lead"));
    copies[2].reached = false;
    churn(200);
    newest = copies[0].last;
    while (sent[newest].before >= 0 && base_of(newest) == base_of(sent[newest].before))
        newest = sent[newest].before;
    uint64_t base_lsn = base_of(newest);
    require(sent[newest].before >= 0 && catch_up(&copies[2], newest) == LS_OK);
    disk = vfs_sim_new();
    v = vfs_sim_table(disk);
    check(v->make_dir(v, "/backup") == 0);
    copy_files(copies[2].sim, "/s", disk, "/backup");
    int dir = v->open_dir(v, "/backup");
    for (size_t i = 0; i < copies[2].follows->segment_count; i++) {
        char name[SEGMENT_NAME_BYTES];

        format_segment_name(name, copies[2].follows->segments[i].first_lsn);
        if (copies[2].follows->segments[i].first_lsn < base_lsn)
            check(v->unlink(v, dir, name) == 0);
    }
    check(v->close(v, dir) == 0);
    struct replica *copy;
    ls_store *store;
    check(replica_open(v, "/backup", &r.options, &copy) == LS_CORRUPT);
    check(host_detach_backup(v, "/backup", &r.options) == LS_OK || complain("detach"));
    check(ls_open(v, "/backup", &r.options, &store) == LS_OK || complain("open"));
    check(store != NULL && store->state.base_lsn == base_lsn);
    ls_free(store);
    leave();
    copies_end();
}

/* ---- making a host ---- */

static uint64_t hash_of_copy(vfs_sim *on) {
    vfs_sim *only = vfs_sim_new();
    uint64_t hash;

    copy_files(on, "/m/copy-1", only, "/copy");
    hash = vfs_sim_hash(only);
    vfs_sim_free(only);
    return hash;
}

static void a_host_is_made_around_a_store_of_which_no_byte_changes(void) {
    const vfs_sim_event *events;
    size_t n;
    uint64_t before;

    log_begins();
    place();
    before = hash_of_copy(disk);
    (void)vfs_sim_record(disk, 1);
    check(host_create(v, HOST, &FIRST) == LS_OK || complain("create"));
    check(hash_of_copy(disk) == before);
    n = vfs_sim_journal(disk, &events);
    for (size_t k = 0; k <= n; k++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            vfs_sim_loss loss = {.mode = seed == 0 ? VFS_SIM_ALL_LOST : VFS_SIM_RANDOM,
                                 .dir_mode = seed == 0 ? VFS_SIM_DIRS_LOST : VFS_SIM_DIRS_RANDOM_SUBSET,
                                 .seed = k * 10 + seed};
            vfs_sim *cut = vfs_sim_crash_at(disk, k, &loss);
            vfs *table = vfs_sim_table(cut);
            struct host *there;
            int rc = host_open(table, HOST, &r.options, &there);

            if (rc == LS_NOT_A_STORE) {
                check(host_create(table, HOST, &FIRST) == LS_OK || complain("create again"));
                rc = host_open(table, HOST, &r.options, &there);
            }
            require(rc == LS_OK || complain("open"));
            check(memcmp(there->vote->now.uuid, there->follows->store->meta.uuid, UUID_BYTES) == 0);
            host_close(there);
            vfs_sim_free(cut);
        }
    }
    leave();
    log_ends();
}

static void a_host_is_not_made_where_it_could_forget(void) {
    struct vote first = FIRST;
    ls_store *store;

    log_begins();
    enter();
    check(host_create(v, HOST, &FIRST) == LS_LOCKED); /* the copy is in use */
    host_close(h);
    h = NULL;
    check(host_create(v, HOST, &FIRST) == LS_OPTION && strstr(ls_last_error()->text, "VOTE already") != NULL);
    leave();

    place(); /* a VOTE that was lost */
    check(host_create(v, HOST, &FIRST) == LS_OK && open_host() == LS_OK);
    check(host_vote(h, TERM_A, LEADER_A) == LS_OK && feed(end_a) == LS_OK);
    host_close(h);
    h = NULL;
    int dir = v->open_dir(v, HOST);
    check(v->unlink(v, dir, "VOTE") == 0 && v->close(v, dir) == 0);
    check(open_host() == LS_NOT_A_STORE && strstr(ls_last_error()->text, "no VOTE") != NULL);
    check(host_create(v, HOST, &FIRST) == LS_REPLICATED && strstr(ls_last_error()->text, "VOTE") != NULL);
    check(open_host() == LS_NOT_A_STORE);
    leave();

    place();
    first.uuid[3] = 77;
    check(host_create(v, HOST, &first) == LS_NOT_A_STORE && strstr(ls_last_error()->text, "UUID") != NULL);
    first = FIRST;
    first.copy = 2;
    check(host_create(v, HOST, &first) == LS_OPTION && strstr(ls_last_error()->text, "copy-1") != NULL);
    first = FIRST;
    first.member_id = 0;
    check(host_create(v, HOST, &first) == LS_OPTION);
    check(ls_open(v, "/m/copy-1", &r.options, &store) == LS_OK);
    check(host_create(v, HOST, &FIRST) == LS_LOCKED);
    ls_free(store);
    check(v->make_dir(v, "/m/copy-01") == 0 && v->make_dir(v, "/m/copy-") == 0 && v->make_dir(v, "/m/copy-2x") == 0);
    check(host_create(v, "/none", &FIRST) == LS_NOT_A_STORE);
    check(host_create(v, HOST, &FIRST) == LS_OK);
    check(open_host() == LS_OK && has_dir(v, "copy-01") && has_dir(v, "copy-") && has_dir(v, "copy-2x"));
    leave();
    log_ends();
}

/* The old one, which never takes part, or the new one with everything that goes on. */
static void a_power_cut_while_a_detached_host_begins_again_leaves_either(void) {
    const vfs_sim_event *events;
    struct vote again = FIRST;
    size_t n;
    uint64_t old_ones = 0, new_ones = 0;

    again.cluster_uuid[0] = 4;
    again.term = 2;
    log_begins();
    enter_with_content();
    host_close(h);
    h = NULL;
    check(detach_host(v, 90) == LS_OK);
    (void)vfs_sim_record(disk, 1);
    again.copy = 0;
    check(host_create(v, HOST, &again) == LS_OPTION);
    again.copy = 1;
    check(host_create(v, HOST, &again) == LS_OK || complain("create"));
    n = vfs_sim_journal(disk, &events);
    for (size_t k = 0; k <= n && fine_so_far(); k++) {
        for (uint64_t seed = 0; seed < 10; seed += ONE_IN) {
            vfs_sim_loss loss = {
                .mode = seed == 0   ? VFS_SIM_ALL_LOST
                        : seed == 1 ? VFS_SIM_ALL_KEPT
                                    : VFS_SIM_RANDOM,
                .dir_mode = seed == 0   ? VFS_SIM_DIRS_LOST
                            : seed == 1 ? VFS_SIM_DIRS_KEPT
                                        : VFS_SIM_DIRS_RANDOM_SUBSET,
                .seed = k * 100 + seed,
            };
            vfs_sim *cut = vfs_sim_crash_at(disk, k, &loss);
            vfs *table = vfs_sim_table(cut);
            struct host *there;
            int rc = host_open(table, HOST, &r.options, &there);

            if (rc != LS_OK) {
                check((rc == LS_NOT_A_STORE && strstr(ls_last_error()->text, "detached") != NULL) || complain("open"));
                check(host_create(table, HOST, &again) == LS_OK || complain("create again"));
                rc = host_open(table, HOST, &r.options, &there);
                old_ones++;
            } else {
                new_ones++;
            }
            require(rc == LS_OK || complain("open"));
            const struct vote *now = &there->vote->now;
            check(now->rebuild == 1 && now->term == 90 && now->cluster_uuid[0] == 4 && now->detached == 0);
            check(now->floor_index == 0 && now->copy == 1);
            check(replica_next_index(there->follows) == sent[end_a].s.index + 1); /* the indexes go on */
            host_close(there);
            vfs_sim_free(cut);
        }
    }
    check(old_ones > 10 && new_ones > 5);
    check(open_host() == LS_OK);
    check(host_term(h) > DETACHED_TERMS && host_vote(h, host_term(h) + 1, SELF) == LS_OK);
    check(lead_alone() == LS_OK || complain("lead"));
    check(host_tail(h).index > sent[end_a].s.index);
    leave();
    log_ends();
}

/* ---- what a member may do ---- */

static void a_host_without_vote_does_not_open(void) {
    log_begins();
    place();
    check(open_host() == LS_NOT_A_STORE && h == NULL);
    check(strstr(ls_last_error()->text, "no VOTE") != NULL && strstr(ls_last_error()->text, HOST) != NULL);
    leave();
    log_ends();
}

static void a_host_is_open_once(void) {
    struct host *second;

    log_begins();
    enter();
    check(host_open(v, HOST, &r.options, &second) == LS_LOCKED && second == NULL);
    check(host_detach(v, HOST, &r.options, 0, &(uint64_t){0}) == LS_LOCKED);
    leave();
    log_ends();
}

static void no_batch_is_taken_of_a_term_that_vote_does_not_have(void) {
    log_begins();
    enter();
    check(host_vote(h, TERM_A - 1, 0) == LS_OK);
    check(feed(early) == LS_REFUSED && strstr(ls_last_error()->text, "VOTE does not have its term") != NULL);
    check(host_tail(h).index == 0 && h->follows->error == 0);
    check(host_vote(h, TERM_A, 0) == LS_OK && feed(early) == LS_OK);
    leave();
    log_ends();
}

static void a_member_leads_once_in_a_term_in_which_this_run_voted_for_it(void) {
    uint64_t term;

    log_begins();
    enter();
    term = replica_least_term(h->follows);
    check(lead_alone() == LS_REFUSED && strstr(ls_last_error()->text, "in a new term first") != NULL);
    check(host_vote(h, term, LEADER_A) == LS_OK && lead_alone() == LS_REFUSED);
    check(host_vote(h, ++term, 0) == LS_OK && lead_alone() == LS_REFUSED);
    check(host_vote(h, term, SELF) == LS_OK);
    check(open_anew() == LS_OK && host_voted_for(h) == SELF);
    check(lead_alone() == LS_REFUSED); /* the vote of an earlier run */
    check(host_vote(h, term, SELF) == LS_OK && lead_alone() == LS_REFUSED);
    check(host_vote(h, ++term, SELF) == LS_OK && host_vote(h, term, SELF) == LS_OK);
    check(lead_alone() == LS_OK || complain("lead"));
    check(lead_alone() == LS_REFUSED);
    check(host_vote(h, term, SELF) == LS_OK && lead_alone() == LS_REFUSED); /* it has led in that term */
    check(host_vote(h, ++term, SELF) == LS_OK && host_vote(h, term + 1, LEADER_A) == LS_OK);
    check(lead_alone() == LS_REFUSED); /* deposed before it led */
    leave();
    log_ends();
}

/* Put back from before: the log knows a term, and nobody knows for whom this member voted in it. */
static void the_vote_in_a_term_that_only_a_header_has_counts_as_given(void) {
    uint8_t slots[VOTE_SLOTS * VOTE_SLOT_BYTES];

    log_begins();
    enter();
    host_close(h);
    check(vfs_sim_get(disk, VFS_SIM_SEEN, HOST, "VOTE", slots, sizeof slots) == (int64_t)sizeof slots);
    check(open_host() == LS_OK && host_vote(h, TERM_A, LEADER_A) == LS_OK && feed(early) == LS_OK);
    host_close(h);
    check(vfs_sim_put(disk, HOST, "VOTE", slots, sizeof slots) == 0);
    check(open_host() == LS_OK || complain("open"));
    check(h->start_term == 0 && host_term(h) == TERM_A && host_voted_for(h) == SELF && h->vote->now.term == 0);
    check(host_vote(h, TERM_A, LEADER_B) == LS_REFUSED && strstr(ls_last_error()->text, "for whom") != NULL);
    check(host_vote(h, TERM_A - 1, 0) == LS_REFUSED);
    check(host_note_tail(h, host_tail(h)) == LS_OK && h->vote->now.floor_index == 0);
    check(host_vote(h, TERM_A, 0) == LS_OK && host_voted_for(h) == SELF && lead_alone() == LS_REFUSED);
    check(open_anew() == LS_OK && host_vote(h, TERM_A, LEADER_B) == LS_REFUSED);
    check(h->vote->now.floor_index == host_tail(h).index); /* which VOTE may have now */
    leave();
    log_ends();
}

static void the_floor_follows_each_half_second_and_at_a_close(void) {
    struct tail first;

    log_begins();
    enter();
    check(host_vote(h, TERM_A, LEADER_A) == LS_OK && feed(early) == LS_OK);
    first = host_tail(h);
    check(h->vote->now.floor_index == 0);
    check(host_note_tail(h, first) == LS_OK && h->vote->now.floor_index == first.index);
    check(feed(end_a) == LS_OK && host_note_tail(h, host_tail(h)) == LS_OK);
    check(h->vote->now.floor_index == first.index);                        /* not due yet */
    while (v->monotonic_us(v) - h->floor_written_us < VOTE_FLOOR_EVERY_US) /* each look at it is a microsecond */
        ;
    check(host_note_tail(h, host_tail(h)) == LS_OK && h->vote->now.floor_index == host_tail(h).index);
    check(host_vote(h, TERM_B, LEADER_B) == LS_OK && host_cut(h, sent[common_of(end_a, end_b)].s.index) == LS_OK);
    check(h->vote->now.floor_index == host_tail(h).index);
    check(feed(end_b) == LS_OK);
    struct tail last = host_tail(h);
    host_close(h);
    struct vote_file *vote;
    check(vote_open(v, HOST, &vote) == LS_OK && vote->now.floor_index == last.index && vote->now.floor_term == TERM_B);
    vote_close(vote);
    check(open_host() == LS_OK);
    leave();
    log_ends();
}

static void a_refused_cut_leaves_the_floor(void) {
    log_begins();
    enter_with_content();
    check(host_note_tail(h, host_tail(h)) == LS_OK);
    struct vote is = h->vote->now;
    check(host_cut(h, 1) == LS_REFUSED && host_cut(h, 1000) == LS_REFUSED);
    check(memcmp(&is, &h->vote->now, sizeof is) == 0);
    leave();
    log_ends();
}

/* Else a batch of the next leader could follow, and a healthy log would end below the floor. */
static void nothing_is_cut_if_the_floor_cannot_be_lowered(void) {
    log_begins();
    enter_with_content();
    check(host_note_tail(h, host_tail(h)) == LS_OK);
    check(host_vote(h, TERM_B, LEADER_B) == LS_OK);
    vfs_sim_fail(disk, &(vfs_sim_plan){.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO});
    check(host_cut(h, sent[common_of(end_a, end_b)].s.index) == LS_OUTCOME_UNKNOWN);
    check(host_tail(h).index == sent[end_a].s.index);
    vfs_sim_fail(disk, NULL);
    check(host_cut(h, sent[common_of(end_a, end_b)].s.index) == LS_POISONED && feed(end_b) == LS_REFUSED);
    leave();
    log_ends();
}

static void an_older_directory_of_the_copy_is_refused(void) {
    log_begins();
    enter();
    check(host_vote(h, TERM_A, LEADER_A) == LS_OK && feed(early) == LS_OK);
    host_close(h);
    h = NULL;
    vfs_sim *older = vfs_sim_clone(disk);
    check(open_host() == LS_OK && feed(end_a) == LS_OK);
    host_close(h);
    h = NULL;
    copy_files(older, "/m/copy-1", disk, "/m/copy-1");
    vfs_sim_free(older);
    check(open_host() == LS_CORRUPT && strstr(ls_last_error()->text, "cluster rebuild") != NULL);
    uint64_t copy;
    check(host_detach(v, HOST, &r.options, 0, &copy) == LS_CORRUPT);
    check(open_host() == LS_CORRUPT); /* nothing was marked */
    leave();
    log_ends();
}

/* ---- another copy, or none ---- */

static void an_update_is_switched_in_and_the_old_copy_goes(void) {
    const vfs_sim_event *events;
    struct replica *next, *stranger;
    uint64_t switched = 0;

    log_begins();
    enter();
    check(host_vote(h, TERM_A, LEADER_A) == LS_OK && feed(early) == LS_OK);
    plant_copy("/m/copy-2");
    check(replica_open(v, "/m/copy-2", &r.options, &next) == LS_OK || complain("open"));
    struct replica *present = h->follows;
    h->follows = next;
    check(feed(end_a) == LS_OK);
    h->follows = present;
    struct tail end = {next->end.term, next->end.index}, before = host_tail(h);
    check(v->make_dir(v, "/other") == 0);
    r.sim = disk, r.v = v;
    ls_store *other;
    ls_options creating = r.options;
    creating.create = 1;
    vfs_sim_seed(disk, 77); /* another UUID */
    check(ls_open(v, "/other", &creating, &other) == LS_OK && ls_serve(other, NULL, 0, 1) == LS_OK);
    ls_free(other);
    check(replica_open(v, "/other", &r.options, &stranger) == LS_OK || complain("open"));
    check(host_switch(h, 2, stranger) == LS_NOT_A_STORE && h->follows == present);
    replica_free(stranger);
    check(host_switch(h, 1, next) == LS_REFUSED && h->follows == present);
    (void)vfs_sim_record(disk, 1);
    check(host_switch(h, 2, next) == LS_OK || complain("switch"));
    check(h->follows == next && h->vote->now.copy == 2 && h->vote->now.floor_index == end.index);
    check(!has_dir(v, "copy-1") && has_dir(v, "copy-2"));
    size_t n = vfs_sim_journal(disk, &events);
    for (size_t k = 0; k <= n && fine_so_far(); k++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            vfs_sim_loss loss = {.mode = seed == 0 ? VFS_SIM_ALL_LOST : VFS_SIM_RANDOM,
                                 .dir_mode = seed == 0 ? VFS_SIM_DIRS_LOST : VFS_SIM_DIRS_RANDOM_SUBSET,
                                 .seed = k * 10 + seed};
            vfs_sim *cut = vfs_sim_crash_at(disk, k, &loss);
            vfs *table = vfs_sim_table(cut);
            struct host *there;

            require(host_open(table, HOST, &r.options, &there) == LS_OK || complain("open"));
            bool is_new = there->vote->now.copy == 2;
            check(host_tail(there).index == (is_new ? end.index : before.index));
            host_close(there);
            check(has_dir(table, "copy-1") == !is_new && (has_dir(table, "copy-2") || !is_new));
            switched += is_new;
            vfs_sim_free(cut);
        }
    }
    check(switched > 10 && switched < (n + 1) * 4);
    leave();
    log_ends();
}

static void a_member_whose_copy_was_removed_waits_for_the_next(void) {
    struct vote joins = FIRST;

    log_begins();
    enter_with_content();
    check(host_remove_copy(h) == LS_OK && h->follows == NULL && !has_dir(v, "copy-1"));
    check(host_remove_copy(h) == LS_CLOSED && host_cut(h, 1) == LS_CLOSED && lead_alone() == LS_CLOSED);
    check(open_anew() == LS_OK && h->follows == NULL && h->vote->now.copy == 2 && h->vote->now.rebuild == 1);
    check(host_term(h) == TERM_A && host_tail(h).index == 0 && host_follow(h) == LS_OK);
    leave();

    disk = vfs_sim_new(); /* a member that joins: it never had one */
    v = vfs_sim_table(disk);
    check(v->make_dir(v, HOST) == 0);
    check(host_create(v, HOST, &joins) == LS_OK && open_host() == LS_OK && h->follows == NULL);
    leave();
    log_ends();
}

/* After the removal VOTE counts the next copy, and has no floor to judge it by: so what an update had in that directory goes before. */
static void what_an_update_left_never_counts_as_the_copy_after_a_removal(void) {
    const vfs_sim_event *events;
    uint64_t removed = 0;

    log_begins();
    enter_with_content();
    plant_copy("/m/copy-2");
    check(open_anew() == LS_OK && has_dir(v, "copy-2")); /* the next update may go on with it */
    (void)vfs_sim_record(disk, 1);
    check(host_remove_copy(h) == LS_OK && !has_dir(v, "copy-1") && !has_dir(v, "copy-2"));
    size_t n = vfs_sim_journal(disk, &events);
    for (size_t k = 0; k <= n && fine_so_far(); k++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            vfs_sim_loss loss = {.mode = seed == 0 ? VFS_SIM_ALL_LOST : VFS_SIM_RANDOM,
                                 .dir_mode = seed == 0 ? VFS_SIM_DIRS_LOST : VFS_SIM_DIRS_RANDOM_SUBSET,
                                 .seed = k * 10 + seed};
            vfs_sim *cut = vfs_sim_crash_at(disk, k, &loss);
            struct host *there;

            require(host_open(vfs_sim_table(cut), HOST, &r.options, &there) == LS_OK || complain("open"));
            bool gone = there->vote->now.copy == 2;
            check((there->follows == NULL) == gone);
            removed += gone;
            host_close(there);
            vfs_sim_free(cut);
        }
    }
    check(removed > 4 && removed < (n + 1) * 4);
    leave();
    log_ends();
}

/* The copy is never read, so it may be in any state. Until VOTE has the next number each start fails as before. */
static void a_copy_that_does_not_open_is_discarded_and_never_counts_again(void) {
    const vfs_sim_event *events;
    uint64_t copy, discarded = 0;

    log_begins();
    enter_with_content();
    check(host_discard(v, HOST, TERM_B, 6, &copy) == LS_LOCKED && copy == 0);
    host_close(h);
    h = NULL;
    plant_copy("/m/copy-2");
    int dir = v->open_dir(v, "/m/copy-1");
    require(dir >= 0 && v->unlink(v, dir, "META") == 0 && v->sync_dir(v, dir) == 0);
    (void)v->close(v, dir);
    check(open_host() != LS_OK);
    check(host_discard(v, HOST, TERM_LIMIT, 0, &copy) == LS_OPTION);
    check(host_discard(v, HOST, 0, UINT64_MAX, &copy) == LS_OPTION);
    plant_copy("/m/copy-2");
    vfs_sim_fail(disk, &(vfs_sim_plan){.kind = VFS_SIM_UNLINK, .nth = 1, .error = EIO});
    check(host_discard(v, HOST, TERM_B, 6, &copy) == LS_IO && has_dir(v, "copy-1"));
    vfs_sim_fail(disk, NULL);
    (void)vfs_sim_record(disk, 1);
    check(host_discard(v, HOST, TERM_B, 6, &copy) == LS_OK && copy == 2);
    check(!has_dir(v, "copy-1") && !has_dir(v, "copy-2"));
    size_t n = vfs_sim_journal(disk, &events);
    for (size_t k = 0; k <= n && fine_so_far(); k++) {
        vfs_sim_loss loss = {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM_SUBSET, .seed = k};
        vfs_sim *cut = vfs_sim_crash_at(disk, k, &loss);
        struct host *there;

        if (host_open(vfs_sim_table(cut), HOST, &r.options, &there) == LS_OK) {
            check(there->follows == NULL && there->vote->now.copy == 2 && there->vote->now.rebuild == 7);
            host_close(there);
            discarded++;
        }
        vfs_sim_free(cut);
    }
    check(discarded > 1 && discarded <= n);
    require(open_host() == LS_OK);
    check(h->follows == NULL && host_term(h) == TERM_B && host_voted_for(h) == SELF && h->vote->now.floor_index == 0);
    check(host_vote(h, TERM_B, LEADER_B) ==
          LS_REFUSED); /* how it voted in a term that VOTE did not know is not known */
    host_close(h);
    h = NULL;
    check(host_discard(v, HOST, 0, 0, &copy) == LS_OK && copy == 3);
    require(open_host() == LS_OK && h->vote->now.rebuild == 8 && host_term(h) == TERM_B);
    leave();
    log_ends();
}

static void a_copy_goes_on_while_what_an_update_left_cannot_be_removed(void) {
    log_begins();
    enter_with_content();
    plant_copy("/m/copy-2");
    vfs_sim_fail(disk, &(vfs_sim_plan){.kind = VFS_SIM_UNLINK, .nth = 1, .error = EIO});
    check(host_remove_copy(h) == LS_IO && h->follows != NULL && h->vote->now.copy == 1);
    vfs_sim_fail(disk, NULL);
    check(host_remove_copy(h) == LS_OK && h->follows == NULL && !has_dir(v, "copy-2"));
    leave();
    log_ends();
}

/* ---- calls and allocations that fail ---- */

static const vfs_sim_plan FAILURES[] = {
    {.error = EIO},
    {.error = EIO, .survive = 3},
    {.error = ENOSPC},
    {.error = EIO, .forever = 1},
    {.error = EINTR, .forever = 1},
    {.shorten = VFS_SIM_HALF},
};
enum { FAILURE_KINDS = sizeof FAILURES / sizeof *FAILURES };

/* What failed is over: the host opens, with all that was told, and does what was asked for. */
static bool goes_on(int i) {
    struct seen before = states[i], after = states[i + 1], now;
    struct tail least = tail_is_before(after.tail, before.tail) ? after.tail : before.tail;
    bool removed = after.vote.rebuild > before.vote.rebuild;
    int rc = LS_OK;

    host_close(h);
    h = NULL;
    if (open_host() != LS_OK)
        return complain("open after a failure");
    now = see();
    if (now.vote.term < before.vote.term || (!removed && tail_is_before(now.tail, least)))
        return complain("less than was told");
    if (i == 10) { /* the vote was this run's */
        rc = host_vote(h, host_term(h) + 1, SELF);
    } else if (i == 7 && tail_is_before(after.tail, now.tail)) {
        rc = host_cut(h, sent[common_of(end_a, end_b)].s.index);
    }
    if (i == 7 && rc == LS_OK && last_of(h->follows) == end_a) /* the cut itself leaves nothing on the disk */
        rc = host_cut(h, sent[common_of(end_a, end_b)].s.index);
    rc = rc == LS_OK && !(removed && h->follows == NULL) ? step(i) : rc;
    return rc == LS_OK || complain("once more");
}

static bool fail_in_step(int i, uint64_t nth, const vfs_sim_plan *how) {
    vfs_sim_plan plan = *how;
    bool fired;

    enter();
    for (int j = 0; j < i; j++)
        check(step(j) == LS_OK || complain("step"));
    plan.nth = nth;
    vfs_sim_fail(disk, &plan);
    (void)step(i);
    fired = vfs_sim_fired(disk) > 0;
    vfs_sim_fail(disk, NULL);
    check(goes_on(i));
    leave();
    return fired;
}

static void note_states(void) {
    log_begins();
    enter();
    for (int i = 0; i < STEPS; i++) {
        states[i] = see();
        check(step(i) == LS_OK || complain("step"));
    }
    states[STEPS] = see();
    leave();
}

static void after_any_failed_call_the_host_opens_with_all_that_was_told(void) {
    uint64_t cases = 0;

    note_states();
    for (int i = 0; i < STEPS && fine_so_far(); i++) {
        for (int kind = 0; kind < FAILURE_KINDS; kind++) {
            for (uint64_t nth = 1; fail_in_step(i, nth, &FAILURES[kind]); nth += ONE_IN) {
                cases++;
                if (!fine_so_far()) {
                    printf("  step %d, failure %d, call %llu\n", i, kind, (unsigned long long)nth);
                    break;
                }
            }
        }
    }
    check(cases > 300 || ONE_IN > 1);
    log_ends();
}

static void after_a_failed_allocation_the_host_opens_with_all_that_was_told(void) {
    note_states();
    for (int i = 0; i < STEPS && fine_so_far() && TAKEN_OVER; i++) {
        for (uint64_t nth = 1, fired = 1; fired != 0 && fine_so_far(); nth++) {
            enter();
            for (int j = 0; j < i; j++)
                check(step(j) == LS_OK);
            allocations = failed = 0;
            fail_at_nth = nth;
            counting = true;
            (void)step(i);
            counting = false;
            fail_at_nth = 0;
            fired = failed;
            check(goes_on(i));
            if (!fine_so_far())
                printf("  step %d, allocation %llu\n", i, (unsigned long long)nth);
            leave();
        }
    }
    log_ends();
}

static void a_failed_call_while_a_host_is_made_or_detached_leaves_what_the_same_call_finishes(void) {
    log_begins();
    for (int kind = 0; kind < FAILURE_KINDS; kind++) {
        bool fired = true;

        for (uint64_t nth = 1; fired && fine_so_far(); nth += ONE_IN) {
            vfs_sim_plan plan = FAILURES[kind];

            place();
            plan.nth = nth;
            vfs_sim_fail(disk, &plan);
            int rc = host_create(v, HOST, &FIRST);
            fired = vfs_sim_fired(disk) > 0;
            vfs_sim_fail(disk, NULL);
            check(rc == LS_OK || host_create(v, HOST, &FIRST) == LS_OK || ls_last_error()->code == LS_OPTION);
            check(open_host() == LS_OK || complain("open"));
            leave();
        }
        fired = true;
        for (uint64_t nth = 1; fired && fine_so_far(); nth += ONE_IN) {
            vfs_sim_plan plan = FAILURES[kind];
            uint64_t epoch, messages = 0;

            enter_with_content();
            host_close(h);
            h = NULL;
            plan.nth = nth;
            vfs_sim_fail(disk, &plan);
            int rc = detach_host(v, 0);
            fired = vfs_sim_fired(disk) > 0;
            vfs_sim_fail(disk, NULL);
            check(rc == LS_OK || detach_host(v, 0) == LS_OK || complain("detach again"));
            check(open_single(v, &epoch, &messages) == LS_OK && messages == 9);
            leave();
        }
    }
    log_ends();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_power_cut_anywhere_in_a_members_life_loses_nothing_that_was_told,
        a_power_cut_while_replication_ends_leaves_a_member_or_what_the_same_call_finishes,
        what_is_detached_begins_far_above_every_term_that_is_known,
        a_log_is_detached_after_vote_and_only_when_the_catalog_has_all_of_it,
        a_detach_is_repeated_after_the_store_was_relocated,
        a_single_store_in_a_members_place_is_named_and_detached_as_well,
        a_backup_is_detached_and_a_members_copy_is_not,
        a_backup_has_nothing_below_the_base_of_its_newest_batch,
        a_host_is_made_around_a_store_of_which_no_byte_changes,
        a_host_is_not_made_where_it_could_forget,
        a_power_cut_while_a_detached_host_begins_again_leaves_either,
        a_host_without_vote_does_not_open,
        a_host_is_open_once,
        no_batch_is_taken_of_a_term_that_vote_does_not_have,
        a_member_leads_once_in_a_term_in_which_this_run_voted_for_it,
        the_vote_in_a_term_that_only_a_header_has_counts_as_given,
        the_floor_follows_each_half_second_and_at_a_close,
        a_refused_cut_leaves_the_floor,
        nothing_is_cut_if_the_floor_cannot_be_lowered,
        an_older_directory_of_the_copy_is_refused,
        an_update_is_switched_in_and_the_old_copy_goes,
        a_member_whose_copy_was_removed_waits_for_the_next,
        what_an_update_left_never_counts_as_the_copy_after_a_removal,
        a_copy_that_does_not_open_is_discarded_and_never_counts_again,
        a_copy_goes_on_while_what_an_update_left_cannot_be_removed,
        after_any_failed_call_the_host_opens_with_all_that_was_told,
        after_a_failed_allocation_the_host_opens_with_all_that_was_told,
        a_failed_call_while_a_host_is_made_or_detached_leaves_what_the_same_call_finishes,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
