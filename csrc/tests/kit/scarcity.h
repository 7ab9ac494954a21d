/*
 * A store with live state of every kind on a simulated disk, whose own allocations the failing allocator does not count.
 * Under sanitizers only system calls fail.
 */
#ifndef LOGSTORE_SCARCITY_H
#define LOGSTORE_SCARCITY_H

#include "store/store.h"
#include "tests/kit/failing_memory.h"
#include "tests/kit/one_store.h"

/* ---- a simulated disk whose own allocations never fail ---- */

static vfs *real;

#define PASS_ON(type, name, parameters, ...)                  \
    static type quiet_##name parameters {                     \
        bool was = counting;                                  \
        type result;                                          \
        (void)v;                                              \
        counting = false;                                     \
        result = real->name(real __VA_OPT__(, ) __VA_ARGS__); \
        counting = was;                                       \
        return result;                                        \
    }

PASS_ON(int, open_dir, (vfs * v, const char *path), path)
PASS_ON(int, make_dir, (vfs * v, const char *path), path)
PASS_ON(int, open_subdir, (vfs * v, int dir, const char *name, int create), dir, name, create)
PASS_ON(int, remove_dir, (vfs * v, int dir, const char *name), dir, name)
PASS_ON(int, sync_dir, (vfs * v, int dir), dir)
PASS_ON(int64_t, free_bytes, (vfs * v, int dir), dir)
PASS_ON(int, open, (vfs * v, int dir, const char *name, unsigned flags), dir, name, flags)
PASS_ON(int, close, (vfs * v, int handle), handle)
PASS_ON(int64_t, pread, (vfs * v, int file, void *into, size_t bytes, uint64_t at), file, into, bytes, at)
PASS_ON(int64_t, pwrite, (vfs * v, int file, const void *from, size_t bytes, uint64_t at), file, from, bytes, at)
PASS_ON(int64_t, size, (vfs * v, int file), file)
PASS_ON(int, allocate, (vfs * v, int file, uint64_t bytes), file, bytes)
PASS_ON(int, truncate, (vfs * v, int file, uint64_t bytes), file, bytes)
PASS_ON(int, sync_data, (vfs * v, int file), file)
PASS_ON(int, sync_file, (vfs * v, int file), file)
PASS_ON(int, start_writeback, (vfs * v, int file, uint64_t at, uint64_t bytes), file, at, bytes)
PASS_ON(int, advise_sequential, (vfs * v, int file, uint64_t at, uint64_t bytes), file, at, bytes)
PASS_ON(int, rename, (vfs * v, int dir, const char *from, const char *to), dir, from, to)
PASS_ON(int, unlink, (vfs * v, int dir, const char *name), dir, name)
PASS_ON(int, lock, (vfs * v, int file, int exclusive), file, exclusive)
PASS_ON(int, event_new, (vfs * v))
PASS_ON(int, event_signal, (vfs * v, int event), event)
PASS_ON(int, event_close, (vfs * v, int event), event)
PASS_ON(int, socket_dup, (vfs * v, int socket), socket)
PASS_ON(int, socket_close, (vfs * v, int socket), socket)
PASS_ON(int64_t, send, (vfs * v, int socket, const void *from, size_t bytes), socket, from, bytes)

/* The listing calls back into the core, whose allocations are counted again. */
static vfs_list_fn *list_each;

static int quiet_each(void *context, const char *name) {
    int result;

    counting = true;
    result = list_each(context, name);
    counting = false;
    return result;
}

static int quiet_list(vfs *v, int dir, vfs_list_fn *each, void *context) {
    bool was = counting;
    int result;

    (void)v;
    list_each = each;
    counting = false;
    result = real->list(real, dir, was ? quiet_each : each, context);
    counting = was;
    return result;
}

static vfs *quiet_table(vfs_sim *disk) {
    static vfs table;

    real = vfs_sim_table(disk);
    table = *real;
    table.open_dir = quiet_open_dir;
    table.make_dir = quiet_make_dir;
    table.open_subdir = quiet_open_subdir;
    table.remove_dir = quiet_remove_dir;
    table.list = quiet_list;
    table.sync_dir = quiet_sync_dir;
    table.free_bytes = quiet_free_bytes;
    table.open = quiet_open;
    table.close = quiet_close;
    table.pread = quiet_pread;
    table.pwrite = quiet_pwrite;
    table.size = quiet_size;
    table.allocate = quiet_allocate;
    table.truncate = quiet_truncate;
    table.sync_data = quiet_sync_data;
    table.sync_file = quiet_sync_file;
    table.start_writeback = quiet_start_writeback;
    table.advise_sequential = quiet_advise_sequential;
    table.rename = quiet_rename;
    table.unlink = quiet_unlink;
    table.lock = quiet_lock;
    table.event_new = quiet_event_new;
    table.event_signal = quiet_event_signal;
    table.event_close = quiet_event_close;
    table.socket_dup = quiet_socket_dup;
    table.send = quiet_send;
    table.socket_close = quiet_socket_close;
    return &table;
}

/* ---- a store with live state of every kind ---- */

static vfs_sim *rich;
static const ls_options usual = {.segment_size = SEGMENT, .create = 1, .initial_segments = 2, .max_write_buffers = 3};
static uint64_t large_id, wide_id;

enum { WIDE = 40 };
static uint32_t wide[WIDE];
static uint8_t large[30000];

static ls_tx *branch(const char *name) {
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 4};
    ls_tx *tx = NULL;

    memcpy(xid.data, name, 4);
    check(ls_begin(r.store, &xid, &tx) == LS_OK);
    return tx;
}

static bool checkpointed; /* with a few more records after it */

/* The state as it was written, or after enough traffic that all of it was relocated. */
static inline void make_rich(bool moves) {
    const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
    uint64_t ids[24], staged, lsn;
    uint32_t both[] = {1, 3};
    ls_tx *doubt, *open;

    fresh_with(&usual);
    for (uint32_t i = 0; i < WIDE; i++)
        check(ls_queue_add(r.store, wide[i] = i + 1) == LS_OK);
    check(ls_stage(r.store, large, 100, large, sizeof large, 0, &large_id) == LS_OK);
    check(ls_enqueue(r.store, large_id, both, 2, NULL, 0, &lsn) == LS_OK);
    check(ls_publish(r.store, wide, WIDE, NULL, 0, large, 200, NULL, 0, &wide_id) == LS_OK);
    for (int i = 0; i < 24; i++)
        ids[i] = put_bytes(1 + (uint32_t)i % 3, 7, 300, 0);
    doubt = branch("prep");
    open = branch("open");
    for (int i = 0; i < 4; i++) {
        check(take(ids[i], 1 + (uint32_t)i % 3, doubt) == LS_OK && add(ids[i + 4], 4, doubt) == LS_OK);
        check(take(ids[i + 12], 1 + (uint32_t)i % 3, open) == LS_OK && add(ids[i + 16], 5, open) == LS_OK);
    }
    check(add(large_id, 2, doubt) == LS_OK);
    (void)put(2, "of a branch", doubt);
    check(ls_tx_end(doubt) == LS_OK && ls_prepare(doubt, LS_WAIT) == LS_OK);
    check(ls_stage(r.store, NULL, 0, large, 9000, LS_WAIT, &staged) == LS_OK);
    if (moves)
        churn(90);
    (void)put_bytes(2, 1, 2000, LS_WAIT);
    if (checkpointed) {
        check(ls_checkpoint(r.store, NULL) == LS_OK);
        check(take(ids[20], 3, NULL) == LS_OK && add(ids[21], 4, NULL) == LS_OK);
    }
    (void)put_bytes(2, 2, 2000, 0);
    if (rich != NULL)
        vfs_sim_free(rich);
    rich = vfs_sim_crash(sim, &loss);
    ls_tx_free(doubt);
    ls_tx_free(open);
    done();
    r.store = NULL;
}

#endif
