/* The store's directory: made if need be, locked, and META read or, in a new store, written under another name. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "os/io.h"
#include "store/store.h"

enum { LOCK_TRIES = 20, LOCK_PAUSE_NS = 10 * 1000 * 1000 };

bool directory_has_meta(vfs *v, const char *path) {
    static const char *const names[] = {"META", "META.new"};
    int dir = v->open_dir(v, path);
    int found = dir < 0 ? dir : -ENOENT;
    for (size_t i = 0; dir >= 0 && found == -ENOENT && i < sizeof names / sizeof *names; i++) {
        found = v->open(v, dir, names[i], 0);
    }
    if (found >= 0) {
        (void)v->close(v, found);
    }
    if (dir >= 0) {
        (void)v->close(v, dir);
    }
    return found != -ENOENT;
}

int directory_open(struct directory *d, const char *path, bool create) {
    d->dir = d->v->open_dir(d->v, path);
    if (d->dir == -ENOENT && create) {
        int rc = d->v->make_dir(d->v, path);
        if (rc != 0 && rc != -EEXIST) {
            return fail_errno(LS_IO, -rc, "the store directory %s cannot be made", path);
        }
        d->dir = d->v->open_dir(d->v, path);
    }
    if (d->dir < 0) {
        return fail_errno(d->dir == -ENOENT || d->dir == -ENOTDIR ? LS_NOT_A_STORE : LS_IO, -d->dir,
                          "the store directory %s cannot be opened", path);
    }
    return LS_OK;
}

/*
 * The name of a store's directory must be durable, too: the process that finishes the creation syncs the directory above
 * before it renames META into place. If it may not read that directory, it cannot sync it; then another user made
 * the store's.
 */
int directory_sync_parent(const struct directory *d, const char *path) {
    int dir = directory_open_parent(d->v, path);
    int rc = dir < 0 ? dir : d->v->sync_dir(d->v, dir);
    if (dir >= 0) {
        (void)d->v->close(d->v, dir);
    }
    if (rc == -ENOMEM) {
        return fail_memory();
    }
    return rc == 0 || rc == -EACCES ? LS_OK : fail_errno(LS_IO, -rc, "the directory above %s cannot be synced", path);
}

int directory_open_parent(vfs *v, const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    while (length > 0 && path[length - 1] != '/') {
        length--;
    }
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    char *parent = malloc(length + 2);
    if (parent == NULL) {
        return -ENOMEM;
    }
    memcpy(parent, length > 0 ? path : ".", length > 0 ? length : 1);
    parent[length > 0 ? length : 1] = '\0';
    int dir = v->open_dir(v, parent);
    free(parent);
    return dir;
}

/* Tries more than once: a reader may hold the lock for a moment to see whether a writer lives. */
int directory_take_lock(ls_store *store, const char *path, bool create) {
    const struct directory *d = &store->directory;
    fork_wait();
    store->lock_file = d->v->open(d->v, d->dir, "LOCK", VFS_WRITE | (create ? VFS_CREATE : 0));
    fork_go_on();
    if (store->lock_file < 0) {
        int error = -store->lock_file;
        return fail_errno(error == ENOENT ? LS_NOT_A_STORE : LS_IO, error, "%s/LOCK cannot be opened", path);
    }
    int rc = -EWOULDBLOCK;
    for (int i = 0; i < LOCK_TRIES && rc == -EWOULDBLOCK; i++) {
        rc = d->v->lock(d->v, store->lock_file, 1);
        if (rc == -EWOULDBLOCK) {
            const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};
            (void)nanosleep(&pause, NULL);
        }
    }
    if (rc == -EWOULDBLOCK) {
        return fail(LS_LOCKED, "the store %s is open in another process or handle; close it there first", path);
    }
    return rc == 0 ? LS_OK : fail_errno(LS_IO, -rc, "%s/LOCK cannot be locked", path);
}

/*
 * On ext4, pages of a failed write can stay with their file; later writes through them sync without error and vanish at
 * power loss. So META goes into a new file; META.new stays unchanged until the rename.
 */
static int write_new_meta(struct directory *d, const struct meta *m) {
    static const char *const name = "META.part";
    uint8_t bytes[META_BYTES];
    format_put_meta(bytes, m);
    int file = d->v->unlink(d->v, d->dir, name);
    file = file == 0 || file == -ENOENT ? d->v->open(d->v, d->dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE) : file;
    if (file < 0) {
        return fail_errno(LS_IO, -file, "%s cannot be made", name);
    }
    int rc = io_write(d->v, file, bytes, sizeof bytes, 0, &d->written);
    rc = rc == 0 ? d->v->sync_file(d->v, file) : rc;
    (void)d->v->close(d->v, file);
    rc = rc == 0 ? d->v->rename(d->v, d->dir, name, "META.new") : rc;
    rc = rc == 0 ? d->v->sync_dir(d->v, d->dir) : rc;
    return rc == 0 ? LS_OK : fail_errno(rc == -ENOSPC ? LS_FULL : LS_IO, -rc, "META.new cannot be written");
}

uint64_t directory_segment_size(const ls_options *o) {
    uint64_t size = o->segment_size != 0 ? o->segment_size : (uint64_t)16 << 20;
    return size < SEGMENT_BYTES_MIN ? SEGMENT_BYTES_MIN : round_up(size, BLOCK_BYTES);
}

static int choose_meta(ls_store *store, vfs *v, const ls_options *o) {
    struct meta *m = &store->meta;
    uint64_t size = directory_segment_size(o);
    *m = (struct meta){.segment_size = size, .created_us = v->now_us(v)};
    m->max_undurable_bytes = o->max_undurable_bytes > 2 * size ? o->max_undurable_bytes : 2 * size;
    int rc = v->random(v, m->uuid, UUID_BYTES);
    return rc == 0 ? LS_OK : fail_errno(LS_IO, -rc, "no random bytes for the store's UUID");
}

static int is_segment(void *context, const char *name) {
    (void)context;
    uint64_t first_lsn;
    return format_parse_segment_name(name, &first_lsn) ? 1 : 0;
}

/* META.new is durable before the first segment is made: segments without META and META.new mean that META was lost. */
static int check_no_segments(const struct directory *d) {
    int found = d->v->list(d->v, d->dir, is_segment, NULL);
    if (found < 0) {
        return fail_errno(LS_IO, -found, "the store directory cannot be listed");
    }
    return found == 0
               ? LS_OK
               : fail(LS_CORRUPT, "META is missing, but there are segments: it holds the store's UUID and sizes. "
                                  "Restore it from a backup; nothing was changed");
}

/* Reads META, or META.new of an interrupted creation, or makes a new one. */
int directory_find_meta(ls_store *store, const ls_options *o) {
    struct directory *d = &store->directory;
    int rc = scan_read_meta(d->v, d->dir, "META", &store->meta);
    if (rc != LS_NOT_A_STORE || ls_last_error()->sys_errno != 0) {
        return rc;
    }
    int there = d->v->open(d->v, d->dir, "META", 0);
    if (there >= 0) {
        (void)d->v->close(d->v, there);
        return rc; /* there is a META.new, but not a usable one */
    }
    if (o->create == 0) {
        return rc;
    }
    store->creating = true;
    if (scan_read_meta(d->v, d->dir, "META.new", &store->meta) == LS_OK) {
        return write_new_meta(d, &store->meta); /* the bytes that were read may be in the page cache only */
    }
    if (ls_last_error()->code == LS_VERSION) {
        return LS_VERSION;
    }
    rc = check_no_segments(d);
    rc = rc == LS_OK ? choose_meta(store, d->v, o) : rc;
    return rc == LS_OK ? write_new_meta(d, &store->meta) : rc;
}
