/* A copy's segment files: the one that is written, spares, and those that must not stand above it. See replica.h. */
#include <errno.h>
#include <stdlib.h>

#include "os/array.h"
#include "os/io.h"
#include "replica/replica.h"

int replica_fail_disk(struct replica *r, int error, const char *what) {
    r->error = error;
    return fail_errno(error == ENOSPC || error == EDQUOT ? LS_FULL : LS_IO, error, "%s", what);
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

/* One by one from the top, each before the next: a header whose chain is broken below it would read as damage. */
int replica_remove_above(struct replica *r, uint64_t first_lsn) {
    const struct directory *d = &r->store->directory;
    struct listing l = {.above_lsn = first_lsn};
    if (r->highest_first_lsn <= first_lsn) {
        return LS_OK;
    }
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

/* ---- the next file ---- */

/* A spare is renamed; without one a file is made. One that has the name, and no batch of the log, is replaced. Its name is durable. */
int replica_make_file(struct replica *r, uint64_t first_lsn) {
    struct directory *d = &r->store->directory;
    char name[SEGMENT_NAME_BYTES], from[SEGMENT_NAME_BYTES];
    int rc = 0;
    close_file(r);
    format_segment_name(name, first_lsn);
    forget_file(&r->cut, first_lsn);
    r->file_lsn = first_lsn;
    if (r->spares.count > 0) {
        format_segment_name(from, r->spares.all[--r->spares.count]);
        rc = d->v->rename(d->v, d->dir, from, name);
        r->file = rc == 0 ? d->v->open(d->v, d->dir, name, VFS_WRITE) : rc;
        rc = rc == 0 && r->file >= 0 ? d->v->sync_dir(d->v, d->dir) : rc;
    } else {
        r->file = segment_file_make(d, first_lsn, r->store->meta.segment_size, false);
    }
    rc = rc == 0 && r->file < 0 ? r->file : rc;
    if (rc != 0) {
        return replica_fail_disk(r, -rc, "there is no file for the next segment");
    }
    r->highest_first_lsn = first_lsn > r->highest_first_lsn ? first_lsn : r->highest_first_lsn;
    return LS_OK;
}
