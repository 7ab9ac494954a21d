/*
 * The Nth file system call fails, for every N, in every way that such a call can fail. Then the store is poisoned or
 * unchanged, never wrong; and after the end of the process or a power cut the next open finds all acknowledged operations.
 *
 * A long workload has too many calls to fail each one in the fast tier; there each site in the core meets each failure at
 * least at its first and last call, and in the full tier at every call.
 */
#ifndef LOGSTORE_SWEEPS_CALLS_H
#define LOGSTORE_SWEEPS_CALLS_H

#include "format/format.h"
#include "tests/proof/sweeps.h"

static const struct {
    const char *name;
    vfs_sim_plan plan;
} failures[] = {
    {"EIO once", {.error = EIO}},
    {"EIO once, some of it on the disk", {.error = EIO, .survive = 11}},
    {"EIO for ever", {.error = EIO, .forever = 1, .survive = 5}},
    {"ENOSPC once", {.error = ENOSPC}},
    {"ENOSPC for ever", {.error = ENOSPC, .forever = 1}},
    {"EINTR once", {.error = EINTR}},
    {"ENOMEM once", {.error = ENOMEM}},
    {"half a transfer once", {.shorten = VFS_SIM_HALF}},
    {"half a transfer for ever", {.shorten = VFS_SIM_HALF, .forever = 1}},
    {"one byte of a transfer once", {.shorten = VFS_SIM_ONE_BYTE}},
    {"EIO of a data sync", {.kind = VFS_SIM_SYNC_DATA, .error = EIO, .survive = 3}},
    {"ENOSPC of writes for ever", {.kind = VFS_SIM_PWRITE, .error = ENOSPC, .forever = 1}},
    {"no fallocate", {.kind = VFS_SIM_ALLOCATE, .error = EOPNOTSUPP, .forever = 1}},
    {"EIO of renames for ever", {.kind = VFS_SIM_RENAME, .error = EIO, .forever = 1}},
    {"EIO of unlinks for ever", {.kind = VFS_SIM_UNLINK, .error = EIO, .forever = 1}},
    {"EIO of directory syncs for ever", {.kind = VFS_SIM_SYNC_DIR, .error = EIO, .forever = 1}},
    {"EINTR for ever", {.error = EINTR, .forever = 1}},
    {"ESTALE for ever", {.error = ESTALE, .forever = 1}},
    {"EDQUOT for ever", {.error = EDQUOT, .forever = 1}},
    {"EROFS for ever", {.error = EROFS, .forever = 1}},
    {"ENODEV for ever", {.error = ENODEV, .forever = 1}},
};
enum { FAILURES = sizeof failures / sizeof *failures };

/* ---- the sites of calls ---- */

static struct sites call_sites;
static vfs *real;         /* the simulator's own table */
static vfs_sim *real_sim; /* and itself */

#define SEEN(kind, call)                                                                            \
    uint64_t nth = vfs_sim_calls(real_sim, 0) + 1, nth_of_kind = vfs_sim_calls(real_sim, kind) + 1; \
    uint64_t before = vfs_sim_fired(real_sim);                                                      \
    __typeof__(call) result = (call);                                                               \
    site_comes(&call_sites, __builtin_return_address(0), kind, nth, nth_of_kind, before == 0,       \
               vfs_sim_fired(real_sim) != before);                                                  \
    return result

static int seen_open_dir(vfs *v, const char *path) {
    (void)v;
    SEEN(VFS_SIM_OPEN_DIR, real->open_dir(real, path));
}
static int seen_make_dir(vfs *v, const char *path) {
    (void)v;
    SEEN(VFS_SIM_MAKE_DIR, real->make_dir(real, path));
}
static int seen_open_subdir(vfs *v, int dir, const char *name, int create) {
    (void)v;
    SEEN(VFS_SIM_OPEN_SUBDIR, real->open_subdir(real, dir, name, create));
}
static int seen_list(vfs *v, int dir, vfs_list_fn *each, void *context) {
    (void)v;
    SEEN(VFS_SIM_LIST, real->list(real, dir, each, context));
}
static int seen_sync_dir(vfs *v, int dir) {
    (void)v;
    SEEN(VFS_SIM_SYNC_DIR, real->sync_dir(real, dir));
}
static int seen_open(vfs *v, int dir, const char *name, unsigned flags) {
    (void)v;
    SEEN(VFS_SIM_OPEN, real->open(real, dir, name, flags));
}
static int seen_close(vfs *v, int handle) {
    (void)v;
    SEEN(VFS_SIM_CLOSE, real->close(real, handle));
}
static int64_t seen_pread(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    (void)v;
    SEEN(VFS_SIM_PREAD, real->pread(real, file, into, bytes, at));
}
static int64_t seen_pwrite(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    (void)v;
    SEEN(VFS_SIM_PWRITE, real->pwrite(real, file, from, bytes, at));
}
static int64_t seen_size(vfs *v, int file) {
    (void)v;
    SEEN(VFS_SIM_SIZE, real->size(real, file));
}
static int seen_allocate(vfs *v, int file, uint64_t bytes) {
    (void)v;
    SEEN(VFS_SIM_ALLOCATE, real->allocate(real, file, bytes));
}
static int seen_truncate(vfs *v, int file, uint64_t bytes) {
    (void)v;
    SEEN(VFS_SIM_TRUNCATE, real->truncate(real, file, bytes));
}
static int seen_sync_data(vfs *v, int file) {
    (void)v;
    SEEN(VFS_SIM_SYNC_DATA, real->sync_data(real, file));
}
static int seen_sync_file(vfs *v, int file) {
    (void)v;
    SEEN(VFS_SIM_SYNC_FILE, real->sync_file(real, file));
}
static int seen_start_writeback(vfs *v, int file, uint64_t at, uint64_t bytes) {
    (void)v;
    SEEN(VFS_SIM_WRITEBACK, real->start_writeback(real, file, at, bytes));
}
static int seen_advise(vfs *v, int file, uint64_t at, uint64_t bytes) {
    (void)v;
    SEEN(VFS_SIM_ADVISE, real->advise_sequential(real, file, at, bytes));
}
static int seen_rename(vfs *v, int dir, const char *from, const char *to) {
    (void)v;
    SEEN(VFS_SIM_RENAME, real->rename(real, dir, from, to));
}
static int seen_unlink(vfs *v, int dir, const char *name) {
    (void)v;
    SEEN(VFS_SIM_UNLINK, real->unlink(real, dir, name));
}
static int seen_lock(vfs *v, int file, int exclusive) {
    (void)v;
    SEEN(VFS_SIM_LOCK, real->lock(real, file, exclusive));
}
static int seen_random(vfs *v, void *into, size_t bytes) {
    (void)v;
    SEEN(VFS_SIM_GETRANDOM, real->random(real, into, bytes));
}
static int seen_event_new(vfs *v) {
    (void)v;
    SEEN(VFS_SIM_EVENT_NEW, real->event_new(real));
}
static int seen_event_signal(vfs *v, int event) {
    (void)v;
    SEEN(VFS_SIM_EVENT_SIGNAL, real->event_signal(real, event));
}
static int seen_event_close(vfs *v, int event) {
    (void)v;
    SEEN(VFS_SIM_EVENT_CLOSE, real->event_close(real, event));
}
static int seen_socket_dup(vfs *v, int socket) {
    (void)v;
    SEEN(VFS_SIM_SOCKET_DUP, real->socket_dup(real, socket));
}
static int seen_socket_close(vfs *v, int socket) {
    (void)v;
    return real->socket_close(real, socket);
}
static int64_t seen_send(vfs *v, int socket, const void *from, size_t bytes) {
    (void)v;
    SEEN(VFS_SIM_SEND, real->send(real, socket, from, bytes));
}
static int seen_wait_s(vfs *v, pthread_cond_t *signal, pthread_mutex_t *held, unsigned seconds) {
    (void)v;
    return real->wait_s(real, signal, held, seconds);
}

static void seen_wait_us(vfs *v, sem_t *wake, uint64_t us) {
    (void)v;
    real->wait_us(real, wake, us);
}

static uint64_t seen_now_us(vfs *v) {
    (void)v;
    return real->now_us(real);
}
static uint64_t seen_monotonic_us(vfs *v) {
    (void)v;
    return real->monotonic_us(real);
}

static vfs seen_table = {
    .open_dir = seen_open_dir,
    .make_dir = seen_make_dir,
    .open_subdir = seen_open_subdir,
    .list = seen_list,
    .sync_dir = seen_sync_dir,
    .open = seen_open,
    .close = seen_close,
    .pread = seen_pread,
    .pwrite = seen_pwrite,
    .size = seen_size,
    .allocate = seen_allocate,
    .truncate = seen_truncate,
    .sync_data = seen_sync_data,
    .sync_file = seen_sync_file,
    .start_writeback = seen_start_writeback,
    .advise_sequential = seen_advise,
    .rename = seen_rename,
    .unlink = seen_unlink,
    .lock = seen_lock,
    .now_us = seen_now_us,
    .wait_s = seen_wait_s,
    .wait_us = seen_wait_us,
    .monotonic_us = seen_monotonic_us,
    .random = seen_random,
    .event_new = seen_event_new,
    .event_signal = seen_event_signal,
    .event_close = seen_event_close,
    .socket_dup = seen_socket_dup,
    .send = seen_send,
    .socket_close = seen_socket_close,
};

/* ---- one failure ---- */

static int held_file; /* of the hold that this process owns; below 0: none */

/*
 * Visitors whose calls fail, too: a hold with a dead owner, one with a live owner, an event to signal, and later a
 * reader of the store in use.
 */
static void visitors_join(struct run *r) {
    struct hold h = {.limit_bytes = 2 * SEGMENT, .expires_us = UINT64_MAX / 4, .created_us = 1};
    uint8_t bytes[HOLD_BYTES];
    int event, dir;

    held_file = -1;
    if (r->store == NULL)
        return;
    ls_uuid(r->store, h.uuid);
    h.hold_lsn = ls_base_lsn(r->store);
    format_put_hold(bytes, &h);
    if (vfs_sim_put(r->sim, "/s/holds", "left.hold", "?", 1) != 0 ||
        vfs_sim_put(r->sim, "/s/holds", "kept.hold", bytes, sizeof bytes) != 0)
        abort();
    (void)ls_event_fd(r->store, &event);
    dir = real->open_dir(real, "/s/holds");
    held_file = dir >= 0 ? real->open(real, dir, "kept.hold", VFS_WRITE) : -1;
    if (held_file >= 0)
        (void)real->lock(real, held_file, 1); /* without the lock it is another hold with a dead owner */
    if (dir >= 0)
        (void)real->close(real, dir);
}

static void visitors_leave(void) {
    if (held_file >= 0)
        (void)real->close(real, held_file);
    held_file = -1;
}

static bool reader_sees_no_damage(const struct run *r) {
    ls_reader *reader = NULL;
    int rc = ls_reader_open(r->v, r->path, 0, &reader);

    while (rc == LS_OK) {
        ls_batch batch;

        rc = ls_reader_next(reader, &batch);
    }
    ls_reader_close(reader);
    return rc != LS_CORRUPT;
}

static bool poisoned_store_refuses(struct run *r) {
    uint32_t q = 1;
    uint64_t id;

    return r->store == NULL || !ls_poisoned(r->store) ||
           ls_publish(r->store, &q, 1, NULL, 0, NULL, 0, NULL, 0, &id) == LS_POISONED;
}

static uint64_t aftermaths;

/* Judges the store as the next process finds it, and as several power cuts leave it. */
static enum check aftermath_broke(struct run *r, uint64_t seed) {
    static struct judge j;
    const vfs_sim_loss losses[] = {
        {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST},
        {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT},
        {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = seed},
    };
    struct bounds b = {r->durable, r->op_count, r->catalog};
    enum check c = NOTHING_BROKEN;

    j.run = r;
    j.known = false;
    for (size_t i = 0; c == NOTHING_BROKEN && i <= sizeof losses / sizeof *losses; i++) {
        vfs_sim *disk = i == 0 ? vfs_sim_clone(r->sim) : vfs_sim_crash(r->sim, &losses[i - 1]);
        size_t found;

        aftermaths++;
        c = judge_disk(&j, disk, b, true, stir(seed + i), &found);
        if (c != NOTHING_BROKEN)
            printf("%s: %s; in the aftermath %zu\n", check_names[c], j.why, i);
        vfs_sim_free(disk);
    }
    return c;
}

/* There was an Nth call; it could fail in that way. */
struct outcome {
    bool came;
    bool fired;
};

/* Runs the workload; its Nth call of the failure's kind fails; nth UINT64_MAX: none fails. */
static enum check call_failure_broke(const struct workload *w, size_t failure, uint64_t nth, struct outcome *out) {
    static struct run r;
    vfs_sim_plan p = failures[failure].plan;
    vfs_sim *sim = vfs_sim_new();
    ls_stats stats = {.records = 0};
    enum check c = NOTHING_BROKEN;

    p.nth = nth;
    memset(&r, 0, sizeof r);
    r.lazy = w->moves || w->operations > 100;
    real_sim = sim;
    real = vfs_sim_table(sim);
    r.v = &seen_table;
    (void)vfs_sim_record(sim, 0);
    vfs_sim_seed(sim, w->seed);
    vfs_sim_fail(sim, &p);
    run_start(&r, sim, w->seed);
    visitors_join(&r);
    run_workload(&r, w);
    if (!poisoned_store_refuses(&r))
        c = broken_here(POISONED, "a poisoned store accepted work");
    if (c == NOTHING_BROKEN && !reader_sees_no_damage(&r))
        c = broken_here(DAMAGE, "a failed call is reported as damage");
    if (r.store != NULL)
        ls_stats_get(r.store, &stats);
    run_end(&r);
    visitors_leave();
    *out = (struct outcome){vfs_sim_calls(sim, p.kind) >= nth, vfs_sim_fired(sim) > 0};
    if (c == NOTHING_BROKEN && vfs_sim_handles(sim) != 0)
        c = broken_here(HANDLES, "a handle was left open");
    if (c == NOTHING_BROKEN && nth == UINT64_MAX && w->moves && stats.segments_relocated == 0)
        c = broken_here(SITES, "a workload for relocation relocated nothing");
    vfs_sim_fail(sim, NULL);
    c = c == NOTHING_BROKEN ? aftermath_broke(&r, nth + w->seed) : c;
    if (c != NOTHING_BROKEN)
        printf("VIOLATED %s: %s, workload seed %llu, %zu operations%s; call %llu\n  again: sweeps --seed %llu "
               "--operations %zu%s%s --failure %zu --nth %llu\n",
               check_names[c], failures[failure].name, (unsigned long long)w->seed, w->operations,
               w->moves ? " with moves" : "", (unsigned long long)nth, (unsigned long long)w->seed, w->operations,
               w->moves ? " --moves" : "", w->timed ? " --timed" : "", failure, (unsigned long long)nth);
    vfs_sim_free(sim);
    return c;
}

/* ---- the sweeps ---- */

/* Every call. */
static void sweep_calls(const struct workload *w, size_t failure, uint64_t step) {
    uint64_t nth = 1 + (w->seed + failure) % step, struck = 0;
    struct outcome out = {.came = true};
    enum check c = NOTHING_BROKEN;

    while (out.came && c == NOTHING_BROKEN && !time_is_over()) {
        c = call_failure_broke(w, failure, nth, &out);
        struck += out.fired;
        note(c);
        counts.largest = out.came && nth > counts.largest ? nth : counts.largest;
        nth += step;
    }
    counts.sweeps += struck;
    if (step == 1 && c == NOTHING_BROKEN && !out.came)
        printf("%s: %llu of %llu calls failed, there is no call %llu\n", failures[failure].name,
               (unsigned long long)struck, (unsigned long long)nth - 2, (unsigned long long)nth - 1);
}

/* Fails the first and the last call of each site. */
static void sweep_sites(const struct workload *w) {
    static struct sites unhurt;
    struct outcome out;

    sites_begin(&call_sites);
    note(call_failure_broke(w, 0, UINT64_MAX, &out));
    unhurt = call_sites;
    for (size_t i = 0; i < unhurt.count; i++) {
        for (size_t f = 0; f < FAILURES && !time_is_over(); f++) {
            const struct site *s = &unhurt.all[i];
            int kind = failures[f].plan.kind;

            if (!s->now || (kind != 0 && kind != s->kind))
                continue;
            for (int last = 0; last < 2; last++) {
                uint64_t nth = kind == 0 ? (last ? s->last : s->first) : last ? s->last_of_kind : s->first_of_kind;

                note(call_failure_broke(w, f, nth, &out));
                counts.sweeps += out.fired;
            }
        }
    }
}

#endif
