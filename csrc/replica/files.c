/* A copy's segment files: the current one, spares, and those that must not stand above it. See replica.h. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "os/array.h"
#include "os/io.h"
#include "replica/replica.h"

enum { ROOM_AGAIN_US = 1000000 };

static bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

int replica_fail_disk(struct replica *r, int error, const char *what) {
    r->error = error;
    return fail_errno(is_full(error) ? LS_FULL : LS_IO, error, "%s", what);
}

int replica_fail_poisoned(const struct replica *r) {
    return fail_errno(
        LS_POISONED, r->error,
        "this copy takes nothing more since a write or sync failed, or memory ran out; free it and open it again");
}

bool replica_add_file(struct replica_files *files, uint64_t first_lsn) {
    if (!array_grow(&files->all, &files->capacity, files->count, 1)) {
        return false;
    }
    files->all[files->count++] = first_lsn;
    return true;
}

static void forget_file(struct replica_files *files, uint64_t first_lsn) {
    size_t kept = 0;
    for (size_t i = 0; i < files->count; i++) {
        if (files->all[i] != first_lsn) {
            files->all[kept++] = files->all[i];
        }
    }
    files->count = kept;
}

static void close_file(struct replica *r) {
    if (r->file >= 0) {
        (void)r->store->directory.v->close(r->store->directory.v, r->file);
        r->file = -1;
    }
}

int replica_open_file(struct replica *r, uint64_t first_lsn) {
    const struct directory *d = &r->store->directory;
    char name[SEGMENT_NAME_BYTES];
    if (r->file >= 0 && r->file_lsn == first_lsn) {
        return r->file;
    }
    close_file(r);
    format_segment_name(name, first_lsn);
    r->file = d->v->open(d->v, d->dir, name, VFS_WRITE);
    r->file_lsn = first_lsn;
    return r->file;
}

/* ---- what stands above ---- */

struct listing {
    struct replica_files found;
    uint64_t above_lsn;
    bool no_memory;
};

static int note_above(void *context, const char *name) {
    struct listing *l = context;
    uint64_t first_lsn;
    if (format_parse_segment_name(name, &first_lsn) && first_lsn > l->above_lsn) {
        l->no_memory = l->no_memory || !replica_add_file(&l->found, first_lsn);
    }
    return 0;
}

static int from_the_top(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* Removes them one by one from the top, each durably before the next: a header whose chain is broken below it would
   look like damage. */
int replica_remove_above(struct replica *r, uint64_t first_lsn) {
    const struct directory *d = &r->store->directory;
    struct listing l = {.above_lsn = first_lsn};
    if (r->highest_first_lsn <= first_lsn) {
        return LS_OK;
    }
    replica_take_spare(r); /* its file could appear above */
    int rc = d->v->list(d->v, d->dir, note_above, &l);
    if (l.no_memory) {
        free(l.found.all);
        return fail_memory();
    }
    if (l.found.count > 0) {
        qsort(l.found.all, l.found.count, sizeof *l.found.all, from_the_top);
    }
    for (size_t i = 0; rc == 0 && i < l.found.count; i++) {
        uint64_t lsn = l.found.all[i];
        char name[SEGMENT_NAME_BYTES];
        format_segment_name(name, lsn);
        if (r->file_lsn == lsn) {
            close_file(r);
        }
        rc = d->v->unlink(d->v, d->dir, name);
        rc = rc == 0 ? d->v->sync_dir(d->v, d->dir) : rc;
        forget_file(&r->spares, lsn);
        forget_file(&r->cut, lsn);
        r->stats.files_removed++;
    }
    free(l.found.all);
    if (rc != 0) {
        return replica_fail_disk(r, -rc, "files of an abandoned part of the log cannot be removed");
    }
    r->highest_first_lsn = first_lsn;
    return LS_OK;
}

/* ---- a spare ahead of need ---- */

struct replica_spare {
    struct directory *directory;
    uint64_t first_lsn;
    uint64_t bytes;
    bool zero_fill;
    int result; /* -errno, or the open file */
    atomic_bool ended;
    pthread_t thread;
};

static void *spare_thread(void *context) {
    struct replica_spare *s = context;
    s->result = segment_file_make(s->directory, s->first_lsn, s->bytes, s->zero_fill);
    atomic_store(&s->ended, true);
    return NULL;
}

static bool has_name(const struct replica_files *files, uint64_t first_lsn) {
    bool has = false;
    for (size_t i = 0; i < files->count; i++) {
        has = has || files->all[i] == first_lsn;
    }
    return has;
}

static bool is_in_use(const struct replica *r, uint64_t first_lsn) {
    bool in_use = has_name(&r->spares, first_lsn) || has_name(&r->cut, first_lsn);
    for (size_t i = 0; i < r->segment_count; i++) {
        in_use = in_use || r->segments[i].first_lsn == first_lsn;
    }
    return in_use;
}

/* The first LSN for a new spare's name: it lies below the term's first segment, so it is not above the batch that is
   written next. */
static uint64_t name_of_spare(const struct replica *r) {
    uint64_t size = r->store->meta.segment_size, term = r->segments[r->segment_count - 1].term;
    uint64_t first_lsn = round_up(term << TERM_SHIFT, size) - size;
    while (is_in_use(r, first_lsn)) {
        first_lsn -= size;
    }
    return first_lsn;
}

/* made: a handle, or -errno. */
static void note_room(struct replica *r, int made) {
    vfs *v = r->store->directory.v;
    r->no_room.error = made >= 0 ? 0 : -made;
    r->no_room.again_us = v->monotonic_us(v) + ROOM_AGAIN_US;
}

void replica_take_spare(struct replica *r) {
    struct replica_spare *s = r->spare;
    if (s == NULL) {
        return;
    }
    (void)pthread_join(s->thread, NULL);
    note_room(r, s->result);
    if (s->result >= 0) {
        (void)s->directory->v->close(s->directory->v, s->result);
        if (!replica_add_file(&r->spares, s->first_lsn)) {
            char name[SEGMENT_NAME_BYTES];
            format_segment_name(name, s->first_lsn);
            (void)s->directory->v->unlink(s->directory->v, s->directory->dir, name);
        }
    }
    r->spare = NULL;
    free(s);
}

/* As in a store that serves, the file that replaces a used spare is filled with zeros unless the log grows fast. The
   other spares are a reserve for the time when the disk has no room: with them the log can still be drained and led. */
void replica_make_spare(struct replica *r, bool turned) {
    vfs *v = r->store->directory.v;
    if (r->store->options.background == 0) {
        return;
    }
    uint64_t now_us = v->monotonic_us(v), lasted_us = now_us - r->turned_us;
    r->turned_us = turned ? now_us : r->turned_us;
    if (r->spare != NULL && atomic_load(&r->spare->ended)) {
        replica_take_spare(r);
    }
    bool waits = r->no_room.error != 0 && now_us < r->no_room.again_us;
    if (r->spare != NULL || r->spares.count >= REPLICA_SPARES || r->segment_count == 0 || waits) {
        return;
    }
    uint64_t first_lsn = name_of_spare(r);
    struct replica_spare *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return; /* otherwise the file of the next segment is made when it is needed */
    }
    s->directory = &r->store->directory;
    s->first_lsn = first_lsn;
    s->bytes = r->store->meta.segment_size;
    s->zero_fill = turned && lasted_us >= FAST_SWITCH_US;
    if (pthread_create(&s->thread, NULL, spare_thread, s) != 0) {
        free(s);
        return;
    }
    r->spare = s;
}

void replica_room(struct replica *r, struct other_room *room) {
    replica_make_spare(r, false);
    *room = (struct other_room){
        .spares = r->spares.count,
        .first_lsn = r->segment_count > 0 ? r->segments[r->segment_count - 1].first_lsn : 0,
        .applied_lsn = r->applied.lsn,
        .error = r->no_room.error,
    };
}

/* ---- the next file ---- */

static int rename_spare(struct replica *r, const char *name) {
    struct directory *d = &r->store->directory;
    char from[SEGMENT_NAME_BYTES];
    format_segment_name(from, r->spares.all[--r->spares.count]);
    int rc = d->v->rename(d->v, d->dir, from, name);
    r->file = rc == 0 ? d->v->open(d->v, d->dir, name, VFS_WRITE) : rc;
    return r->file >= 0 ? d->v->sync_dir(d->v, d->dir) : r->file;
}

/* On a full disk this waits for the spare that is being made, and then removes the checkpoint, as in a store that
   serves. */
static int make_file(struct replica *r, uint64_t first_lsn, const char *name) {
    struct directory *d = &r->store->directory;
    uint64_t bytes = r->store->meta.segment_size;
    r->file = segment_file_make(d, first_lsn, bytes, false);
    bool disk_full = is_full(-r->file);
    if (disk_full) {
        replica_take_spare(r);
    }
    if (disk_full && r->spares.count > 0) {
        return rename_spare(r, name);
    }
    if (disk_full && replica_checkpoint_give_up_space(r)) {
        r->file = segment_file_make(d, first_lsn, bytes, false);
    }
    note_room(r, r->file);
    return r->file < 0 ? r->file : 0;
}

/* Renames a spare, or makes a file if there is none. A file that has the name and no batch of the log is replaced. The
   name is durable. LS_FULL: nothing has changed, and the same call may be made again. */
int replica_make_file(struct replica *r, uint64_t first_lsn) {
    char name[SEGMENT_NAME_BYTES];
    close_file(r);
    if (r->spare != NULL && (atomic_load(&r->spare->ended) || r->spares.count < REPLICA_SPARES)) {
        /* The spare was begun one segment ago: whether the disk has room is known before the reserve is used up. */
        replica_take_spare(r);
    }
    format_segment_name(name, first_lsn);
    forget_file(&r->cut, first_lsn);
    r->file_lsn = first_lsn;
    bool has_spare = r->spares.count > 0;
    int rc = has_spare ? rename_spare(r, name) : make_file(r, first_lsn, name);
    if (!has_spare && is_full(-rc) && r->file < 0) {
        return fail_errno(
            LS_FULL, -rc,
            "this disk has no room for the next segment of %llu bytes; nothing was written. Free space, and it goes on",
            (unsigned long long)r->store->meta.segment_size);
    }
    if (rc != 0) {
        return replica_fail_disk(r, -rc, "there is no file for the next segment");
    }
    r->highest_first_lsn = first_lsn > r->highest_first_lsn ? first_lsn : r->highest_first_lsn;
    return LS_OK;
}
