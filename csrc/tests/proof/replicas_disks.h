/*
 * The disks of the copies' explorer: calls of the core go to a simulated disk whose allocations are not counted and whose hint
 * is durable at once. Each disk has a host in /m. A member dies at an event of its disk's journal, and comes back with all that it
 * had told: how far its log is forced, its term and its vote.
 */
#ifndef LOGSTORE_REPLICAS_DISKS_H
#define LOGSTORE_REPLICAS_DISKS_H

#include <inttypes.h>

#include "log/parts.h"
#include "tests/kit/copies.h"

enum { LIVES_MAX = 200 };

enum check {
    NOTHING_BROKEN,
    REFUSAL,
    FORCED,
    BYTES,
    TABLE,
    MODEL,
    UNDURABLE,
    IDS,
    ANSWER,
    ORDINARY,
    VOTE,
    SURVIVES,
    CHECKS
};

static const char *const check_names[CHECKS] = {
    "", "refusal", "forced", "bytes", "table", "model", "undurable", "ids", "answer", "ordinary", "vote", "survives",
};

static const char *const HOST = "/m";

enum {
    MARK_VOTED = 101,  /* in a disk's journal: 8 * the term + the member for whom this one has voted */
    MARK_SWITCH = 102, /* 1: an update's end begins; 0: it is over */
    LEADS_MAX = 400,
};

/* What others may rely on, by a disk's journal. */
struct promise {
    int last; /* in `sent`, what is forced; -1: nothing */
    uint64_t term, voted_for;
};

/* A disk from the moment that its copy was opened until it failed, with the journal of all calls. */
struct life {
    vfs_sim *sim;
    size_t end;
    int copy;
};

/* A copy's disk. The core never syncs its hint, and most crashed disks would differ only in that; so here it is durable at once. */
struct settling {
    vfs v; /* the first member */
    vfs_sim *sim;
    int hint_file; /* -1: not open */
};

static struct driver {
    uint64_t chance;
    uint64_t term;
    int members;
    struct settling disks[COPIES_MAX];
    uint64_t led[LEADS_MAX];
    size_t led_count;
    int durable; /* in `sent`, the newest that a majority is known to have; -1: none */
    int standby; /* this member's copy was removed: until an update it neither votes nor leads; -1: none */
    int owed;    /* and until it has this batch */
    size_t relied[COPIES_MAX]; /* in the journal: a majority counts on all that the copy had said by then */
    struct life lives[LIVES_MAX];
    int life_count;
    size_t durable_ops;
    uint64_t id_max;
    bool left_alone; /* the leader ceased, as nobody else could make its batches durable */
    bool cut_off;    /* and nobody comes back */
    bool ends;       /* the run ends: others come back until they have all */
    int lag;         /* one of so many times a follower does not get the newest batches */
    bool hints_settle;
    bool fails_calls;
    bool drains; /* now and then the base passes many segments at once */
    bool struck; /* a planned failure has struck since the election */
    enum check broken;
    char why[800];
    uint64_t leads, updates, update_deaths, short_ops, recycled, checkpoints, relocated, files_removed;
} d;

static bool violated(enum check c, const char *why) {
    if (d.broken == NOTHING_BROKEN) {
        d.broken = c;
        (void)snprintf(d.why, sizeof d.why, "%.150s (%.600s)", why, ls_last_error()->text);
    }
    return false;
}

static uint64_t dice(uint64_t n) { return chance(&d.chance) % n; }

/* ---- disks ---- */

/* A call of a disk, whose own allocations are not counted. */
#define ON_DISK(type, name, parameters, ...)                                  \
    static type disk_##name parameters {                                      \
        vfs *real = vfs_sim_table(((const struct settling *)(void *)v)->sim); \
        bool was = counting;                                                  \
        type result;                                                          \
                                                                              \
        counting = false;                                                     \
        result = real->name(real, __VA_ARGS__);                               \
        counting = was;                                                       \
        return result;                                                        \
    }

ON_DISK(int, open_dir, (vfs * v, const char *path), path)
ON_DISK(int, open_subdir, (vfs * v, int dir, const char *name, int create), dir, name, create)
ON_DISK(int, remove_dir, (vfs * v, int dir, const char *name), dir, name)
ON_DISK(int64_t, free_bytes, (vfs * v, int dir), dir)
ON_DISK(int, lock, (vfs * v, int file, int exclusive), file, exclusive)
ON_DISK(int, list, (vfs * v, int dir, vfs_list_fn *each, void *context), dir, each, context)
ON_DISK(int, sync_dir, (vfs * v, int dir), dir)
ON_DISK(int, open, (vfs * v, int dir, const char *name, unsigned flags), dir, name, flags)
ON_DISK(int, close, (vfs * v, int handle), handle)
ON_DISK(int64_t, pread, (vfs * v, int file, void *into, size_t bytes, uint64_t at), file, into, bytes, at)
ON_DISK(int64_t, pwrite, (vfs * v, int file, const void *from, size_t bytes, uint64_t at), file, from, bytes, at)
ON_DISK(int64_t, size, (vfs * v, int file), file)
ON_DISK(int, allocate, (vfs * v, int file, uint64_t bytes), file, bytes)
ON_DISK(int, sync_data, (vfs * v, int file), file)
ON_DISK(int, sync_file, (vfs * v, int file), file)
ON_DISK(int, rename, (vfs * v, int dir, const char *from, const char *to), dir, from, to)
ON_DISK(int, unlink, (vfs * v, int dir, const char *name), dir, name)

static int64_t settling_pwrite(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    const struct settling *s = (const struct settling *)(const void *)v;
    int64_t done = disk_pwrite(v, file, from, bytes, at);

    if (d.hints_settle && file == s->hint_file)
        (void)disk_sync_data(v, file);
    return done;
}

static int settling_open(vfs *v, int dir, const char *name, unsigned flags) {
    struct settling *s = (struct settling *)(void *)v;
    int file = disk_open(v, dir, name, flags);

    if (file >= 0 && (flags & VFS_WRITE) != 0 && strcmp(name, "HINT") == 0)
        s->hint_file = file;
    return file;
}

static int settling_close(vfs *v, int handle) {
    struct settling *s = (struct settling *)(void *)v;

    s->hint_file = handle == s->hint_file ? -1 : s->hint_file;
    return disk_close(v, handle);
}

static vfs table_of(vfs_sim *disk) {
    vfs v = *vfs_sim_table(disk);

    v.open_dir = disk_open_dir;
    v.open_subdir = disk_open_subdir;
    v.remove_dir = disk_remove_dir;
    v.free_bytes = disk_free_bytes;
    v.lock = disk_lock;
    v.list = disk_list;
    v.sync_dir = disk_sync_dir;
    v.open = settling_open;
    v.close = settling_close;
    v.pread = disk_pread;
    v.pwrite = settling_pwrite;
    v.size = disk_size;
    v.allocate = disk_allocate;
    v.sync_data = disk_sync_data;
    v.sync_file = disk_sync_file;
    v.rename = disk_rename;
    v.unlink = disk_unlink;
    return v;
}

static void note_in_journal(int i, int what, uint64_t value) {
    if (vfs_sim_mark(copies[i].sim, what, value) != 0)
        abort();
}

/* Once VOTE has it. */
static void note_vote(int i, uint64_t term, uint64_t voted_for) {
    note_in_journal(i, MARK_VOTED, 8 * term + voted_for);
}

/* The member is on this disk from now on, and has told so much before. */
static void use_disk(int i, vfs_sim *disk, struct promise told) {
    struct settling *s = &d.disks[i];

    *s = (struct settling){.v = table_of(disk), .sim = disk, .hint_file = -1};
    copies[i].sim = disk;
    copies[i].disk = &s->v;
    copies[i].last = told.last;
    d.relied[i] = 0;
    if (vfs_sim_record(disk, 1) != 0)
        abort();
    tell(&copies[i]);
    note_vote(i, told.term, told.voted_for);
}

static size_t journal_end(const struct copy *c) {
    const vfs_sim_event *events;
    return vfs_sim_journal(c->sim, &events);
}

static void add_promise(struct promise *p, const vfs_sim_event *e) {
    if (e->kind == VFS_SIM_MARK && e->mark == MARK_TOLD)
        p->last = (int)e->value - 1;
    if (e->kind == VFS_SIM_MARK && e->mark == MARK_VOTED) {
        p->term = e->value / 8;
        p->voted_for = e->value % 8;
    }
}

/* What the member had told within the first k events. */
static struct promise promised(const vfs_sim *disk, size_t k) {
    const vfs_sim_event *events;
    size_t n = vfs_sim_journal(disk, &events);
    struct promise p = {.last = -1};

    for (size_t i = 0; i < k && i < n; i++)
        add_promise(&p, &events[i]);
    return p;
}

/* ---- opening and failing ---- */

/* From here on an allocation of the core fails, in one of so many calls. */
static void memory_is_short(uint64_t one_in, uint64_t within) {
    failed = 0;
    if (d.fails_calls && dice(one_in) == 0) {
        allocations = 0;
        fail_at_nth = 1 + dice(within);
        counting = true;
    }
}

/* The driver itself has all memory. */
struct shortage {
    bool counting;
    uint64_t allocations, fail_at_nth, failed;
};

static struct shortage shortage_pauses(void) {
    struct shortage was = {counting, allocations, fail_at_nth, failed};

    counting = false;
    return was;
}

static void shortage_goes_on(struct shortage was) {
    counting = was.counting;
    allocations = was.allocations;
    fail_at_nth = was.fail_at_nth;
    failed = was.failed;
}

/* Whether one has failed. */
static bool memory_was_short(void) {
    counting = false;
    return failed > 0;
}

/* VOTE has at least that, and the log reaches VOTE's floor. */
static bool vote_is_kept(const struct host *h, const struct promise *p) {
    const struct vote *now = &h->vote->now;

    if (now->term < p->term || (now->term == p->term && p->voted_for != 0 && now->voted_for != p->voted_for))
        return violated(VOTE, "the member has forgotten its term or its vote");
    if (now->floor_index != 0 && tail_is_before(host_tail(h), (struct tail){now->floor_term, now->floor_index}))
        return violated(VOTE, "a member takes part with less than its floor");
    return true;
}

/* After host_open and host_follow. */
static bool follows_as_promised(int i, const struct promise *p) {
    struct copy *c = &copies[i];

    c->follows = c->host->follows;
    c->last = c->follows != NULL ? last_of(c->follows) : -1;
    if (c->last == UNKNOWN_END)
        return violated(BYTES, "the copy ends with a batch that no leader handed out");
    if (!is_in(c->last, p->last))
        return violated(FORCED, "the copy has less than it had said to be forced");
    tell(c);
    return vote_is_kept(c->host, p);
}

static bool opens_copy(int i, const struct promise *p) {
    struct copy *c = &copies[i];
    int rc;

    memory_is_short(10, 100);
    rc = host_open(c->disk, HOST, &r.options, &c->host);
    if (memory_was_short() && rc == LS_NO_MEMORY)
        rc = host_open(c->disk, HOST, &r.options, &c->host);
    return rc == LS_OK ? follows_as_promised(i, p) : violated(REFUSAL, "a member cannot be opened again");
}

static void let_go_of_handles(void) {
    for (int t = 0; t < TXS; t++)
        forget_handle(&r, t);
    r.staged_count = 0;
}

static void count_what_was_done(const struct copy *c) {
    if (c->follows != NULL) {
        d.recycled += c->follows->stats.segments_recycled;
        d.files_removed += c->follows->stats.files_removed;
    }
    if (c->leads != NULL)
        d.relocated += c->leads->log->stats.segments_relocated;
}

/* Its update, and those for which it is the sender. */
static void updates_end(int i);

static void store_ends(int i) {
    struct copy *c = &copies[i];

    count_what_was_done(c);
    c->follows = NULL;
    if (c->leads != NULL) {
        replica_cease(c->leads);
        let_go_of_handles();
        ls_free(c->leads);
        c->leads = r.store = NULL;
        leader = -1;
    }
}

/* The member's process ends without a word. */
static void end_process(int i) {
    updates_end(i);
    store_ends(i);
    host_close(copies[i].host);
    copies[i].host = NULL;
}

/* It dies, at an event since `since`, and comes back on what a power cut or a kill has left. */
static bool dies(int i, size_t since, bool power) {
    struct copy *c = &copies[i];
    size_t now = journal_end(c), k = since + dice(now - since + 1);
    struct promise told = promised(c->sim, k);
    const vfs_sim_loss loss = {.mode = dice(2) ? VFS_SIM_ALL_LOST : VFS_SIM_RANDOM,
                               .dir_mode = dice(2) ? VFS_SIM_DIRS_LOST : VFS_SIM_DIRS_RANDOM,
                               .seed = chance(&d.chance)};
    vfs_sim *left = power ? vfs_sim_crash_at(c->sim, k, &loss) : vfs_sim_at(c->sim, k);

    end_process(i);
    if (d.life_count == LIVES_MAX)
        abort();
    d.lives[d.life_count++] = (struct life){c->sim, now, i};
    use_disk(i, left, told);
    return opens_copy(i, &told);
}

/* A process with an error of its disk ends, and another opens the host. */
static bool starts_again(int i) {
    struct promise told = promised(copies[i].sim, journal_end(&copies[i]));

    d.struck = d.struck || vfs_sim_fired(copies[i].sim) > 0;
    vfs_sim_fail(copies[i].sim, NULL);
    end_process(i);
    return opens_copy(i, &told);
}

/* A leader goes on as a follower, in the same process. */
static bool ceases(int i) {
    struct promise told = promised(copies[i].sim, journal_end(&copies[i]));
    int rc;

    store_ends(i);
    memory_is_short(6, 80);
    rc = host_follow(copies[i].host);
    if (memory_was_short() && rc == LS_NO_MEMORY)
        rc = host_follow(copies[i].host);
    if (rc != LS_OK && vfs_sim_fired(copies[i].sim) > 0)
        return starts_again(i);
    return rc == LS_OK ? follows_as_promised(i, &told) : violated(REFUSAL, "a leader cannot follow again");
}

/* An error is an answer of this disk. */
static bool was_struck(int i) { return vfs_sim_fired(copies[i].sim) > 0; }

#endif
