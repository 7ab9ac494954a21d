/*
 * The three disks of the copies' explorer: calls of the core go to a simulated disk whose allocations are not counted and whose hint
 * is durable at once; a copy dies at an event of its disk's journal, and comes back with all that it had said to be forced.
 */
#ifndef LOGSTORE_REPLICAS_DISKS_H
#define LOGSTORE_REPLICAS_DISKS_H

#include "log/parts.h"
#include "tests/kit/copies.h"

enum { LIVES_MAX = 200 };

enum check { NOTHING_BROKEN, REFUSAL, FORCED, BYTES, TABLE, MODEL, UNDURABLE, IDS, ANSWER, ORDINARY, SURVIVES, CHECKS };

static const char *const check_names[CHECKS] = {
    "", "refusal", "forced", "bytes", "table", "model", "undurable", "ids", "answer", "ordinary", "survives",
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
    struct settling disks[COPIES];
    size_t relied[COPIES]; /* in the journal: a majority counts on all that the copy had said by then */
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
    uint64_t leads, recycled, checkpoints, relocated, files_removed;
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

/* The copy is on this disk from now on. `told`: in `sent`, what it has said to be forced before; -1: nothing. */
static void use_disk(int i, vfs_sim *disk, int told) {
    struct settling *s = &d.disks[i];

    *s = (struct settling){.v = table_of(disk), .sim = disk, .hint_file = -1};
    copies[i].sim = disk;
    copies[i].disk = &s->v;
    copies[i].last = told;
    d.relied[i] = 0;
    if (vfs_sim_record(disk, 1) != 0)
        abort();
    tell(&copies[i]);
}

static size_t journal_end(const struct copy *c) {
    const vfs_sim_event *events;
    return vfs_sim_journal(c->sim, &events);
}

/* What the copy had said to be forced within the first k events. */
static int told_within(const vfs_sim *disk, size_t k) {
    const vfs_sim_event *events;
    size_t n = vfs_sim_journal(disk, &events);
    int last = -1;

    for (size_t i = 0; i < k && i < n; i++) {
        if (events[i].kind == VFS_SIM_MARK && events[i].mark == MARK_TOLD)
            last = (int)events[i].value - 1;
    }
    return last;
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

static bool opens_copy(int i, int must) {
    struct copy *c = &copies[i];
    int rc;

    memory_is_short(10, 80);
    rc = follow_again(i);
    if (memory_was_short() && rc == LS_NO_MEMORY)
        rc = follow_again(i);
    if (rc != LS_OK)
        return violated(REFUSAL, "a copy cannot be opened again");
    c->last = last_of(c->follows);
    if (c->last == UNKNOWN_END)
        return violated(BYTES, "the copy ends with a batch that no leader handed out");
    if (!is_in(c->last, must))
        return violated(FORCED, "the copy has less than it had said to be forced");
    tell(c);
    return true;
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

/* The process that has this copy ends without a word. */
static void end_process(int i) {
    struct copy *c = &copies[i];

    count_what_was_done(c);
    replica_free(c->follows);
    c->follows = NULL;
    if (c->leads != NULL) {
        replica_cease(c->leads);
        let_go_of_handles();
        ls_free(c->leads);
        c->leads = r.store = NULL;
        leader = -1;
    }
}

/* It dies, at an event since `since`, and comes back on what a power cut or a kill has left. */
static bool dies(int i, size_t since, bool power) {
    struct copy *c = &copies[i];
    size_t now = journal_end(c), k = since + dice(now - since + 1);
    int must = told_within(c->sim, k);
    const vfs_sim_loss loss = {.mode = dice(2) ? VFS_SIM_ALL_LOST : VFS_SIM_RANDOM,
                               .dir_mode = dice(2) ? VFS_SIM_DIRS_LOST : VFS_SIM_DIRS_RANDOM,
                               .seed = chance(&d.chance)};
    vfs_sim *left = power ? vfs_sim_crash_at(c->sim, k, &loss) : vfs_sim_at(c->sim, k);

    end_process(i);
    if (d.life_count == LIVES_MAX)
        abort();
    d.lives[d.life_count++] = (struct life){c->sim, now, i};
    use_disk(i, left, must);
    return opens_copy(i, must);
}

/* A process with an error of its disk ends, and another opens the copy. */
static bool starts_again(int i) {
    int must = told_within(copies[i].sim, journal_end(&copies[i]));

    d.struck = d.struck || vfs_sim_fired(copies[i].sim) > 0;
    vfs_sim_fail(copies[i].sim, NULL);
    end_process(i);
    return opens_copy(i, must);
}

/* An error is an answer of this disk. */
static bool was_struck(int i) { return vfs_sim_fired(copies[i].sim) > 0; }

#endif
