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

int directory_open(struct log *g, const char *path, bool create) {
    g->dir = g->v->open_dir(g->v, path);
    if (g->dir == -ENOENT && create) {
        int rc = g->v->make_dir(g->v, path);
        if (rc != 0 && rc != -EEXIST) {
            return fail_errno(LS_IO, -rc, "the store directory %s cannot be made", path);
        }
        g->dir = g->v->open_dir(g->v, path);
    }
    if (g->dir < 0) {
        return fail_errno(g->dir == -ENOENT || g->dir == -ENOTDIR ? LS_NOT_A_STORE : LS_IO, -g->dir,
                          "the store directory %s cannot be opened", path);
    }
    return LS_OK;
}

/*
 * A store's directory is no safer than its own name: the directory above is synced before META can be renamed into
 * place, by the process that finishes the creation. One that may not be read cannot be synced; then its owner made it.
 */
int directory_sync_parent(struct log *g, const char *path) {
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
        return fail_memory();
    }
    memcpy(parent, length > 0 ? path : ".", length > 0 ? length : 1);
    parent[length > 0 ? length : 1] = '\0';
    int dir = g->v->open_dir(g->v, parent);
    int rc = dir < 0 ? dir : g->v->sync_dir(g->v, dir);
    if (dir >= 0) {
        (void)g->v->close(g->v, dir);
    }
    free(parent);
    return rc == 0 || rc == -EACCES ? LS_OK : fail_errno(LS_IO, -rc, "the directory above %s cannot be synced", path);
}

/* A reader may hold it for a moment to see whether a writer lives, so one refusal is not the last word. */
int directory_take_lock(struct log *g, const char *path, bool create) {
    fork_wait();
    g->lock_file = g->v->open(g->v, g->dir, "LOCK", VFS_WRITE | (create ? VFS_CREATE : 0));
    fork_go_on();
    if (g->lock_file < 0) {
        int error = -g->lock_file;
        return fail_errno(error == ENOENT ? LS_NOT_A_STORE : LS_IO, error, "%s/LOCK cannot be opened", path);
    }
    int rc = -EWOULDBLOCK;
    for (int i = 0; i < LOCK_TRIES && rc == -EWOULDBLOCK; i++) {
        rc = g->v->lock(g->v, g->lock_file, 1);
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
 * Into a new file: the pages of a write that failed may stay with their file, and what is written through them later in
 * the same boot is synced without an error and lost with the power (ext4). Until the rename META.new is what it was.
 */
static int write_new_meta(struct log *g, const struct meta *m) {
    static const char *const name = "META.part";
    uint8_t bytes[META_BYTES];
    format_put_meta(bytes, m);
    int file = g->v->unlink(g->v, g->dir, name);
    file = file == 0 || file == -ENOENT ? g->v->open(g->v, g->dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE) : file;
    if (file < 0) {
        return fail_errno(LS_IO, -file, "%s cannot be made", name);
    }
    int rc = io_write(g->v, file, bytes, sizeof bytes, 0, &g->written);
    rc = rc == 0 ? g->v->sync_file(g->v, file) : rc;
    (void)g->v->close(g->v, file);
    rc = rc == 0 ? g->v->rename(g->v, g->dir, name, "META.new") : rc;
    rc = rc == 0 ? g->v->sync_dir(g->v, g->dir) : rc;
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

/* META.new is forced before the first segment is made: where there are segments and neither file, one was lost. */
static int check_no_segments(const struct log *g) {
    int found = g->v->list(g->v, g->dir, is_segment, NULL);
    if (found < 0) {
        return fail_errno(LS_IO, -found, "the store directory cannot be listed");
    }
    return found == 0
               ? LS_OK
               : fail(LS_CORRUPT, "META is missing, but there are segments: it holds the store's UUID and sizes. "
                                  "Restore it from a backup; nothing was changed");
}

/* META, or META.new of a creation that was interrupted, or a new one. */
int directory_find_meta(ls_store *store, const ls_options *o) {
    struct log *g = &store->log;
    int rc = scan_read_meta(g->v, g->dir, "META", &store->meta);
    if (rc != LS_NOT_A_STORE || ls_last_error()->sys_errno != 0) {
        return rc;
    }
    int there = g->v->open(g->v, g->dir, "META", 0);
    if (there >= 0) {
        (void)g->v->close(g->v, there);
        return rc; /* something, but not ours */
    }
    if (o->create == 0) {
        return rc;
    }
    store->creating = true;
    if (scan_read_meta(g->v, g->dir, "META.new", &store->meta) == LS_OK) {
        return write_new_meta(g, &store->meta); /* what we read may be in the page cache only */
    }
    if (ls_last_error()->code == LS_VERSION) {
        return LS_VERSION;
    }
    rc = check_no_segments(g);
    rc = rc == LS_OK ? choose_meta(store, g->v, o) : rc;
    return rc == LS_OK ? write_new_meta(g, &store->meta) : rc;
}
