/*
 * The simulator's table: each call of vfs.h on the simulated disk.
 *
 * Changes the disk only between sim_begin, which takes the mutex and consults the plan of failures, and sim_finish,
 * which records the event. So the journal has the one order of all events, and replaying it gives the same disk.
 */
#include "tests/sim/vfs_sim_state.h"

#undef NDEBUG /* assertions stay on in release */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

static int file_of(sim_call *c, int number, sim_handle **h, sim_node **n) {
    int result = sim_handle_of(c->sim, number, SIM_HANDLE_FILE, h);

    if (result != 0)
        return result;
    *n = sim_find(&c->sim->disk, (*h)->node);
    c->event.file = (*h)->node;
    c->event.flags |= (*h)->flags & VFS_DIRECT ? VFS_SIM_UNBUFFERED : 0;
    return 0;
}

static int dir_of(sim_call *c, int number, sim_node **n) {
    sim_handle *h;
    int result = sim_handle_of(c->sim, number, SIM_HANDLE_DIR, &h);

    if (result != 0)
        return result;
    *n = sim_find(&c->sim->disk, h->node);
    c->event.dir = h->node;
    return 0;
}

/* Checks the directory and the name of a call. */
static int place_of(sim_call *c, int dir, const char *name, sim_node **n) {
    int result = sim_check_name(name);

    if (result == 0)
        result = sim_hold_name(c, SIM_HELD_NAME, name);
    return result != 0 ? result : dir_of(c, dir, n);
}

/* ---- directories ---- */

static int sim_table_open_dir(vfs *v, const char *path) {
    sim_call c;
    uint64_t dir = 0;
    int result = sim_begin(&c, v, VFS_SIM_OPEN_DIR, -1);

    if (result == 0)
        result = sim_hold_name(&c, SIM_HELD_NAME, path);
    if (result == 0)
        result = sim_reserve_handle(c.sim);
    if (result == 0)
        result = sim_resolve(&c.sim->disk, path, &dir);
    if (result == 0)
        result = sim_new_handle(&c, SIM_HANDLE_DIR, dir, 0);
    return (int)sim_finish(&c, result);
}

static int sim_table_make_dir(vfs *v, const char *path) {
    sim_call c;
    uint64_t above = 0;
    sim_blob *last = NULL;
    int result = sim_begin(&c, v, VFS_SIM_MAKE_DIR, -1);

    if (result == 0)
        result = sim_hold_name(&c, SIM_HELD_NAME, path);
    if (result == 0)
        result = sim_resolve_new(&c.sim->disk, path, &above, &last);
    if (result == 0)
        result = sim_create(&c.sim->disk, sim_find(&c.sim->disk, above), last, true, &c.event.file);
    if (result == 0) {
        c.event.dir = above;
        c.event.flags |= VFS_SIM_CREATED;
    }
    sim_blob_drop(last, 1);
    return (int)sim_finish(&c, result);
}

static int sim_table_open_subdir(vfs *v, int dir, const char *name, int create) {
    sim_call c;
    sim_node *above;
    uint64_t id = 0;
    int result = sim_begin(&c, v, VFS_SIM_OPEN_SUBDIR, -1);

    if (result == 0)
        result = place_of(&c, dir, name, &above);
    if (result == 0)
        result = sim_reserve_handle(c.sim);
    if (result == 0) {
        id = sim_lookup(&above->now, name);
        if (id == 0 && create) {
            result = sim_create(&c.sim->disk, above, c.held.blob[SIM_HELD_NAME], true, &id);
            c.event.flags |= result == 0 ? VFS_SIM_CREATED : 0;
        } else if (id == 0) {
            result = -ENOENT;
        } else if (!sim_find(&c.sim->disk, id)->is_dir) {
            result = -ENOTDIR;
        }
    }
    if (result == 0)
        result = sim_new_handle(&c, SIM_HANDLE_DIR, id, 0);
    return (int)sim_finish(&c, result);
}

/* Lists a copy of the names without holding the mutex, because `each` may call the table. */
static int sim_table_list(vfs *v, int dir, vfs_list_fn *each, void *context) {
    sim_call c;
    sim_node *n;
    sim_names names = {.count = 0};
    int result = sim_begin(&c, v, VFS_SIM_LIST, dir);

    if (result == 0)
        result = dir_of(&c, dir, &n);
    if (result == 0)
        result = sim_names_copy(&names, &n->now);
    result = (int)sim_finish(&c, result);
    for (size_t i = 0; result == 0 && i < names.count; i++)
        result = each(context, (const char *)names.entries[i].name->data);
    sim_names_free(&names);
    return result;
}

static int sim_table_sync_dir(vfs *v, int dir) {
    sim_call c;
    sim_node *n;
    int result = sim_begin(&c, v, VFS_SIM_SYNC_DIR, dir);

    if (result == 0)
        result = dir_of(&c, dir, &n);
    if (result == 0)
        result = sim_sync_dir(&c.sim->disk, n);
    return (int)sim_finish(&c, result);
}

static int64_t sim_table_free_bytes(vfs *v, int dir) {
    sim_call c;
    sim_node *n;
    int64_t result = sim_begin(&c, v, VFS_SIM_FREE_BYTES, dir);

    if (result == 0)
        result = dir_of(&c, dir, &n);
    if (result == 0) {
        uint64_t used = sim_disk_used(&c.sim->disk) * SIM_PAGE, most = c.sim->capacity;

        result = most == 0 ? INT64_MAX : most > used ? (int64_t)(most - used) : 0;
    }
    return sim_finish(&c, result);
}

/* ---- files ---- */

static int sim_table_open(vfs *v, int dir, const char *name, unsigned flags) {
    sim_call c;
    sim_node *above;
    uint64_t id = 0;
    int result = sim_begin(&c, v, VFS_SIM_OPEN, -1);

    if (result == 0)
        result = place_of(&c, dir, name, &above);
    if (result == 0)
        result = sim_reserve_handle(c.sim);
    if (result == 0) {
        id = sim_lookup(&above->now, name);
        if (id != 0 && flags & VFS_CREATE && flags & VFS_EXCLUSIVE) {
            result = -EEXIST;
        } else if (id != 0 && sim_find(&c.sim->disk, id)->is_dir) {
            result = -EISDIR;
        } else if (id == 0 && flags & VFS_CREATE) {
            result = sim_create(&c.sim->disk, above, c.held.blob[SIM_HELD_NAME], false, &id);
            c.event.flags |= result == 0 ? VFS_SIM_CREATED : 0;
        } else if (id == 0) {
            result = -ENOENT;
        }
    }
    if (result == 0)
        result = sim_new_handle(&c, SIM_HANDLE_FILE, id, flags);
    return (int)sim_finish(&c, result);
}

static int sim_table_close(vfs *v, int handle) {
    sim_call c;
    sim_handle *h;
    int result = sim_begin(&c, v, VFS_SIM_CLOSE, handle);
    int found = sim_handle_of(c.sim, handle, 0, &h);

    if (found == 0 && h->kind == SIM_HANDLE_EVENT)
        found = -EBADF;
    if (found == 0) { /* whatever the plan says */
        c.event.file = h->node;
        sim_drop_handle(c.sim, h);
    }
    return (int)sim_finish(&c, result != 0 ? result : found);
}

static uint64_t shortened(sim_call *c, uint64_t bytes) {
    uint64_t part = c->shorten == VFS_SIM_HALF ? bytes / 2 : 1;

    if (c->shorten == 0)
        return bytes;
    part = part != 0 ? part : 1;
    if (c->event.flags & VFS_SIM_UNBUFFERED)
        part = part < SIM_SECTOR ? SIM_SECTOR : part / SIM_SECTOR * SIM_SECTOR;
    if (part >= bytes)
        return bytes;
    c->sim->fired++;
    c->event.flags |= VFS_SIM_INJECTED;
    return part;
}

static int check_transfer(const sim_call *c, const void *memory, size_t bytes, uint64_t at) {
    if (at > INT64_MAX || bytes > INT64_MAX)
        return -EINVAL;
    if (!(c->event.flags & VFS_SIM_UNBUFFERED))
        return 0;
    return ((uintptr_t)memory | bytes | at) % SIM_SECTOR != 0 ? -EINVAL : 0;
}

static int64_t sim_table_pread(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    sim_call c;
    sim_handle *h;
    sim_node *n;
    int64_t result = sim_begin(&c, v, VFS_SIM_PREAD, file);

    c.event.offset = at;
    c.event.bytes = bytes;
    if (result == 0)
        result = file_of(&c, file, &h, &n);
    if (result == 0)
        result = check_transfer(&c, into, bytes, at);
    if (result == 0) {
        uint64_t left = at < n->size ? n->size - at : 0;
        uint64_t part = shortened(&c, left < bytes ? left : bytes);

        sim_read(n, h->flags & VFS_DIRECT ? VFS_SIM_DEVICE : VFS_SIM_SEEN, into, (size_t)part, at);
        result = (int64_t)part;
    }
    return sim_finish(&c, result);
}

static int64_t sim_table_pwrite(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    sim_call c;
    sim_handle *h;
    sim_node *n;
    int64_t result = sim_begin(&c, v, VFS_SIM_PWRITE, file);

    c.event.offset = at;
    c.event.bytes = bytes;
    if (result == 0)
        result = file_of(&c, file, &h, &n);
    if (result == 0 && !(h->flags & VFS_WRITE))
        result = -EBADF;
    if (result == 0)
        result = check_transfer(&c, from, bytes, at);
    if (result == 0) {
        uint64_t part = shortened(&c, bytes);

        if (c.sim->capacity != 0)
            part = sim_room_for(&c.sim->disk, n, part, at, c.sim->capacity);
        if (part == 0 && bytes != 0) {
            result = -ENOSPC;
        } else {
            c.held.blob[SIM_HELD_DATA] = sim_blob_new((size_t)part, from, 1);
            result = c.held.blob[SIM_HELD_DATA] == NULL ? -ENOMEM
                                                        : sim_write(&c.sim->disk, n, c.held.blob[SIM_HELD_DATA], part,
                                                                    at, (h->flags & VFS_DIRECT) != 0);
        }
        if (result == 0)
            result = (int64_t)part;
    }
    return sim_finish(&c, result);
}

static int64_t sim_table_size(vfs *v, int file) {
    sim_call c;
    sim_handle *h;
    sim_node *n;
    int64_t result = sim_begin(&c, v, VFS_SIM_SIZE, file);

    if (result == 0)
        result = file_of(&c, file, &h, &n);
    if (result == 0)
        result = (int64_t)n->size;
    return sim_finish(&c, result);
}

static int sim_table_allocate(vfs *v, int file, uint64_t bytes) {
    sim_call c;
    sim_handle *h;
    sim_node *n;
    int result = sim_begin(&c, v, VFS_SIM_ALLOCATE, file);

    c.event.bytes = bytes;
    if (result == 0)
        result = file_of(&c, file, &h, &n);
    if (result == 0 && !(h->flags & VFS_WRITE))
        result = -EBADF;
    if (result == 0 && bytes > INT64_MAX)
        result = -EFBIG;
    if (result == 0 && c.sim->capacity != 0 && sim_room_for(&c.sim->disk, n, bytes, 0, c.sim->capacity) < bytes)
        result = -ENOSPC;
    if (result == 0)
        result = sim_allocate(&c.sim->disk, n, bytes);
    return (int)sim_finish(&c, result);
}

static int sim_table_truncate(vfs *v, int file, uint64_t bytes) {
    sim_call c;
    sim_handle *h;
    sim_node *n;
    int result = sim_begin(&c, v, VFS_SIM_TRUNCATE, file);

    c.event.bytes = bytes;
    if (result == 0)
        result = file_of(&c, file, &h, &n);
    if (result == 0 && !(h->flags & VFS_WRITE))
        result = -EINVAL;
    if (result == 0)
        result = sim_truncate(&c.sim->disk, n, bytes);
    return (int)sim_finish(&c, result);
}

/* A planned failure loses the data that the sync should have saved. Afterwards the next sync of every other handle reports
 * the error once, too, although it saves the data written since. */
static int sync_file(vfs *v, int kind, int file) {
    sim_call c;
    sim_handle *h;
    sim_node *n;
    int result = sim_begin(&c, v, kind, file);
    int found = file_of(&c, file, &h, &n);

    if (result == 0)
        result = found;
    if (found == 0 && c.event.flags & VFS_SIM_INJECTED) {
        c.event.seed = c.sim->plan.survive;
        if (sim_sync_failed(&c.sim->disk, n, -result, c.event.seed) == 0) {
            h->error_seen = n->error_seq;
        } else {
            result = -ENOMEM;
            c.event.flags &= ~(unsigned)VFS_SIM_INJECTED;
        }
    } else if (result == 0) {
        sim_sync(&c.sim->disk, n);
        if (h->error_seen != n->error_seq)
            result = -n->error;
        else if (n->names == 0)
            result = -ESTALE;
        h->error_seen = n->error_seq;
    }
    return (int)sim_finish(&c, result);
}

static int sim_table_sync_data(vfs *v, int file) { return sync_file(v, VFS_SIM_SYNC_DATA, file); }

static int sim_table_sync_file(vfs *v, int file) { return sync_file(v, VFS_SIM_SYNC_FILE, file); }

/* Calls without a visible effect. */
static int of_range(vfs *v, int kind, int file, uint64_t at, uint64_t bytes) {
    sim_call c;
    sim_handle *h;
    sim_node *n;
    int result = sim_begin(&c, v, kind, file);

    c.event.offset = at;
    c.event.bytes = bytes;
    if (result == 0)
        result = file_of(&c, file, &h, &n);
    if (result == 0 && (at > INT64_MAX || bytes > INT64_MAX))
        result = -EINVAL;
    return (int)sim_finish(&c, result);
}

static int sim_table_start_writeback(vfs *v, int file, uint64_t at, uint64_t bytes) {
    return of_range(v, VFS_SIM_WRITEBACK, file, at, bytes);
}

static int sim_table_advise(vfs *v, int file, uint64_t at, uint64_t bytes) {
    return of_range(v, VFS_SIM_ADVISE, file, at, bytes);
}

/* ---- names and locks ---- */

static int sim_table_rename(vfs *v, int dir, const char *from, const char *to) {
    sim_call c;
    sim_node *n;
    int result = sim_begin(&c, v, VFS_SIM_RENAME, -1);

    if (result == 0)
        result = place_of(&c, dir, from, &n);
    if (result == 0)
        result = sim_check_name(to);
    if (result == 0)
        result = sim_hold_name(&c, SIM_HELD_TO, to);
    if (result == 0) {
        c.event.file = sim_lookup(&n->now, from);
        result = sim_rename(&c.sim->disk, n, c.held.blob[SIM_HELD_NAME], c.held.blob[SIM_HELD_TO]);
    }
    return (int)sim_finish(&c, result);
}

static int sim_table_unlink(vfs *v, int dir, const char *name) {
    sim_call c;
    sim_node *n;
    int result = sim_begin(&c, v, VFS_SIM_UNLINK, -1);

    if (result == 0)
        result = place_of(&c, dir, name, &n);
    if (result == 0) {
        c.event.file = sim_lookup(&n->now, name);
        result = sim_unlink(&c.sim->disk, n, c.held.blob[SIM_HELD_NAME]);
    }
    return (int)sim_finish(&c, result);
}

static int sim_table_remove_dir(vfs *v, int dir, const char *name) {
    sim_call c;
    sim_node *n;
    int result = sim_begin(&c, v, VFS_SIM_REMOVE_DIR, -1);

    if (result == 0)
        result = place_of(&c, dir, name, &n);
    if (result == 0) {
        c.event.file = sim_lookup(&n->now, name);
        result = sim_remove_dir(&c.sim->disk, n, c.held.blob[SIM_HELD_NAME]);
    }
    return (int)sim_finish(&c, result);
}

/* As flock: a change of lock type on a handle first releases the old lock, even if the new one is refused. */
static int sim_table_lock(vfs *v, int file, int exclusive) {
    sim_call c;
    sim_handle *h;
    sim_node *n;
    int wanted = exclusive ? LOCK_EX : LOCK_SH;
    int result = sim_begin(&c, v, VFS_SIM_LOCK, file);

    if (result == 0)
        result = file_of(&c, file, &h, &n);
    if (result == 0 && h->lock != wanted) {
        h->lock = 0;
        for (size_t i = 0; i < c.sim->handle_count; i++) {
            const sim_handle *other = &c.sim->handles[i];

            if (other->node == h->node && (other->lock == LOCK_EX || (other->lock == LOCK_SH && exclusive)))
                result = -EWOULDBLOCK;
        }
        h->lock = result == 0 ? wanted : 0;
    }
    return (int)sim_finish(&c, result);
}

/* ---- clocks, randomness, events ---- */

/* Waits without a timeout: the simulated clock stands still while a thread waits. */
static int sim_table_wait_s(vfs *v, pthread_cond_t *signal, pthread_mutex_t *held, unsigned seconds) {
    (void)v;
    (void)seconds;
    return -pthread_cond_wait(signal, held);
}

static void sim_table_wait_us(vfs *v, sem_t *wake, uint64_t us) {
    (void)v;
    while ((us == 0 ? sem_trywait(wake) : sem_wait(wake)) != 0 && errno == EINTR) {
    }
}

static uint64_t sim_table_now_us(vfs *v) {
    vfs_sim *s = sim_lock(v->context);
    uint64_t now = ++s->disk.now_us;

    s->disk.monotonic_us++;
    sim_unlock(s);
    return now;
}

static uint64_t sim_table_monotonic_us(vfs *v) {
    vfs_sim *s = sim_lock(v->context);
    uint64_t now = ++s->disk.monotonic_us;

    s->disk.now_us++;
    sim_unlock(s);
    return now;
}

static int sim_table_random(vfs *v, void *into, size_t bytes) {
    sim_call c;
    int result = sim_begin(&c, v, VFS_SIM_GETRANDOM, -1);

    c.event.bytes = bytes;
    if (result == 0)
        sim_fill(&c.sim->disk.random, into, bytes);
    return (int)sim_finish(&c, result);
}

static int sim_table_event_new(vfs *v) {
    sim_call c;
    int result = sim_begin(&c, v, VFS_SIM_EVENT_NEW, -1);

    if (result == 0)
        result = sim_reserve_handle(c.sim);
    if (result == 0)
        result = sim_new_handle(&c, SIM_HANDLE_EVENT, 0, 0);
    return (int)sim_finish(&c, result);
}

static int sim_table_event_signal(vfs *v, int event) {
    sim_call c;
    sim_handle *h;
    int result = sim_begin(&c, v, VFS_SIM_EVENT_SIGNAL, event);

    if (result == 0)
        result = sim_handle_of(c.sim, event, SIM_HANDLE_EVENT, &h);
    if (result == 0)
        h->signals++;
    return (int)sim_finish(&c, result);
}

static int sim_table_event_close(vfs *v, int event) {
    sim_call c;
    sim_handle *h;
    int result = sim_begin(&c, v, VFS_SIM_EVENT_CLOSE, event);
    int found = sim_handle_of(c.sim, event, SIM_HANDLE_EVENT, &h);

    if (found == 0)
        sim_drop_handle(c.sim, h);
    return (int)sim_finish(&c, result != 0 ? result : found);
}

/* The sockets are not simulated: the program that runs the simulation made them. */
static int sim_table_socket_dup(vfs *v, int socket) {
    sim_call c;
    int64_t result = sim_begin(&c, v, VFS_SIM_SOCKET_DUP, -1);

    if (result == 0) {
        result = fcntl(socket, F_DUPFD_CLOEXEC, 0);
        result = result < 0 ? -errno : result;
    }
    return (int)sim_finish(&c, result);
}

static int sim_table_socket_close(vfs *v, int socket) {
    (void)v;
    return close(socket) == 0 ? 0 : -errno;
}

static int64_t sim_table_send(vfs *v, int socket, const void *from, size_t bytes) {
    sim_call c;
    int64_t result = sim_begin(&c, v, VFS_SIM_SEND, -1);

    c.event.bytes = bytes;
    if (result == 0) {
        result = send(socket, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        result = result < 0 ? -errno : result;
    }
    return sim_finish(&c, result);
}

const vfs sim_table = {
    .open_dir = sim_table_open_dir,
    .make_dir = sim_table_make_dir,
    .open_subdir = sim_table_open_subdir,
    .remove_dir = sim_table_remove_dir,
    .list = sim_table_list,
    .sync_dir = sim_table_sync_dir,
    .free_bytes = sim_table_free_bytes,
    .open = sim_table_open,
    .close = sim_table_close,
    .pread = sim_table_pread,
    .pwrite = sim_table_pwrite,
    .size = sim_table_size,
    .allocate = sim_table_allocate,
    .truncate = sim_table_truncate,
    .sync_data = sim_table_sync_data,
    .sync_file = sim_table_sync_file,
    .start_writeback = sim_table_start_writeback,
    .advise_sequential = sim_table_advise,
    .rename = sim_table_rename,
    .unlink = sim_table_unlink,
    .lock = sim_table_lock,
    .now_us = sim_table_now_us,
    .wait_s = sim_table_wait_s,
    .wait_us = sim_table_wait_us,
    .monotonic_us = sim_table_monotonic_us,
    .random = sim_table_random,
    .event_new = sim_table_event_new,
    .event_signal = sim_table_event_signal,
    .event_close = sim_table_event_close,
    .socket_dup = sim_table_socket_dup,
    .send = sim_table_send,
    .socket_close = sim_table_socket_close,
};
