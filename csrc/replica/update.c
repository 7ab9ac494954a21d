/*
 * The receiver of an update: the next copy's directory, filled segment by segment. What always holds:
 *
 *   - VOTE names the present copy until the new one is whole: every segment has its checksum, all is forced, and an open of the
 *     log has ended exactly where the manifest says. The present copy is only read;
 *   - the directory has no META before everything else in it is forced;
 *   - a segment that counts as whole has the manifest's bytes, then zeros up to the segment's size, and was forced after that. What
 *     an earlier update left was read past the page cache: after a failed sync the cache may have more than the disk;
 *   - a segment of the present copy is copied, never linked or moved: that copy may yet be cut, and may have to stay.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/xxh64.h"
#include "os/array.h"
#include "os/io.h"
#include "read/damage.h"
#include "replica/host.h"

enum { PIECE_BYTES = 1 << 20 };

struct update {
    struct host *host;
    vfs *v;
    uint64_t copy; /* its number */
    char *path;
    struct directory directory;
    int lock_file;
    int present; /* the directory of the present copy; -1: there is none */
    ls_update_manifest manifest;
    struct meta meta;
    ls_update_segment *segments;
    size_t whole;         /* how many of the segments, from the first on, are complete */
    bool looked;          /* the next segment was looked for and is not here, so it is asked for */
    int file;             /* of that one; -1: not made yet */
    uint64_t offset;      /* the file is written up to here */
    struct xxh64_sum sum; /* of that part */
    uint8_t *piece;
    int error; /* errno of what failed; 0: nothing */
    bool finished;
};

static int fail_disk(struct update *u, int error, const char *what) {
    u->error = error;
    return fail_errno(error == ENOSPC || error == EDQUOT || error == EFBIG ? LS_FULL : LS_IO, error,
                      "the update in %s failed: %s", u->path, what);
}

static int usable(const struct update *u) {
    if (u->error != 0 || u->finished) {
        return fail_errno(LS_POISONED, u->error, "the update in %s takes nothing more: %s", u->path,
                          u->finished ? "it is finished" : "a call failed; free it, and begin again");
    }
    return LS_OK;
}

/* ---- what a manifest must say ---- */

static int refuse(const char *what) {
    return fail(LS_REFUSED, "the manifest of the update is refused: %s. Nothing was written", what);
}

static int check_segments(const ls_update_manifest *m, const ls_update_segment *segments) {
    for (size_t i = 0; i < m->segment_count; i++) {
        const ls_update_segment *g = &segments[i];
        if (g->first_lsn < m->segment_size || g->first_lsn % m->segment_size != 0 ||
            g->first_lsn >= LSN_MAX - 2 * m->segment_size) {
            return refuse("a segment has no place in a log");
        }
        if (g->bytes < SEGMENT_HEADER_BYTES + BATCH_RECORD_BYTES || g->bytes > m->segment_size || g->bytes % 8 != 0) {
            return refuse("the length of a segment is impossible");
        }
        if (g->term == 0 || g->prev_end_lsn > g->first_lsn) {
            return refuse("a segment contradicts itself");
        }
        if (i > 0 && (g->first_lsn <= segments[i - 1].first_lsn || g->term < segments[i - 1].term ||
                      g->prev_end_lsn != segments[i - 1].first_lsn + segments[i - 1].bytes)) {
            return refuse("its segments do not follow one another");
        }
    }
    const ls_update_segment *last = &segments[m->segment_count - 1];
    if (last->first_lsn + last->bytes != m->end_lsn || last->term != m->term) {
        return refuse("its last segment does not end where it says");
    }
    return LS_OK;
}

static int check_manifest(const ls_update_manifest *m, const ls_update_segment *segments, struct meta *meta) {
    uint8_t bytes[META_BYTES];
    *meta = (struct meta){
        .segment_size = m->segment_size, .max_undurable_bytes = m->max_undurable_bytes, .created_us = m->created_us};
    memcpy(meta->uuid, m->uuid, UUID_BYTES);
    format_put_meta(bytes, meta);
    if (format_get_meta(bytes, sizeof bytes, meta) != FORMAT_OK) {
        return refuse("no META can say that");
    }
    if (m->segment_count == 0 || m->segment_count > LS_UPDATE_SEGMENTS_MAX) {
        return refuse("the number of its segments is impossible");
    }
    if (m->index < 2 || m->term == 0 || m->term >= TERM_LIMIT) {
        return refuse("its end is no batch at which a copy may begin");
    }
    return check_segments(m, segments);
}

/* The batches that the member has reported as forced must be in the new copy, or belong to an earlier term, in which
   case another leader has cut them. */
static bool has_more(const struct host *h, const ls_update_manifest *m) {
    const struct vote *now = &h->vote->now;
    struct tail end = {m->term, m->index};
    return tail_is_before(end, (struct tail){now->floor_term, now->floor_index}) ||
           (h->follows != NULL && tail_is_before(end, host_tail(h)));
}

static int check_host(struct host *h, const ls_update_manifest *m, bool *present) {
    const struct vote *now = &h->vote->now;
    if (memcmp(now->uuid, m->uuid, UUID_BYTES) != 0) {
        return refuse("it is of another store");
    }
    if (m->term > now->term) {
        return refuse("VOTE does not have its term; write that first");
    }
    if (has_more(h, m)) {
        return refuse("this member has more");
    }
    int rc = vote_find_copy(h->vote, present);
    return rc == LS_OK && *present && h->follows == NULL ? refuse("the present copy does not follow") : rc;
}

/* ---- room ---- */

struct listing {
    struct update *u;
    int dir;
    uint64_t bytes; /* of segment files */
    int error;
};

static int64_t size_of(vfs *v, int dir, const char *name) {
    int file = v->open(v, dir, name, 0);
    int64_t bytes = file < 0 ? file : v->size(v, file);
    if (file >= 0) {
        (void)v->close(v, file);
    }
    return bytes;
}

static int add_size(void *context, const char *name) {
    struct listing *l = context;
    uint64_t first_lsn;
    int64_t bytes = format_parse_segment_name(name, &first_lsn) ? size_of(l->u->v, l->dir, name) : 0;
    l->bytes += bytes > 0 ? (uint64_t)bytes : 0;
    return 0;
}

/* Called before anything is written. Files of an earlier update are reused or removed first. */
static int check_room(struct update *u, int left) {
    vfs *v = u->v;
    uint64_t needed = u->manifest.segment_count * u->manifest.segment_size + 2 * (uint64_t)BLOCK_BYTES;
    struct listing l = {.u = u, .dir = left};
    int rc = left >= 0 ? v->list(v, left, add_size, &l) : 0;
    int64_t free_bytes = rc == 0 ? v->free_bytes(v, u->host->vote->host.dir) : rc;
    if (free_bytes < 0) {
        return fail_disk(u, (int)-free_bytes, "the disk's room is not known");
    }
    uint64_t there = (uint64_t)free_bytes + l.bytes;
    return needed <= there ? LS_OK
                           : fail(LS_FULL,
                                  "an update in %s needs %llu bytes, and there are %llu: make room, and begin again. "
                                  "Nothing was written",
                                  u->path, (unsigned long long)needed, (unsigned long long)there);
}

/* ---- the directory ---- */

static bool is_in_manifest(const struct update *u, const char *name) {
    uint64_t first_lsn;
    if (!format_parse_segment_name(name, &first_lsn)) {
        return false;
    }
    size_t count = u->manifest.segment_count;
    size_t i = array_lower_bound(ls_update_segment, u->segments, count, first_lsn, first_lsn);
    return i < count && u->segments[i].first_lsn == first_lsn;
}

/* A directory stays: it has holds, or belongs to the catalog, and an open of the log takes no notice of it. */
static int clear_one(void *context, const char *name) {
    struct listing *l = context;
    struct update *u = l->u;
    if (strcmp(name, "LOCK") == 0 || is_in_manifest(u, name)) {
        return 0;
    }
    int rc = u->v->unlink(u->v, u->directory.dir, name);
    return rc == 0 || rc == -ENOENT || rc == -EISDIR ? 0 : rc;
}

static int lock_directory(struct update *u) {
    vfs *v = u->v;
    u->lock_file = v->open(v, u->directory.dir, "LOCK", VFS_WRITE | VFS_CREATE);
    if (u->lock_file < 0) {
        return fail_disk(u, -u->lock_file, "its LOCK cannot be opened");
    }
    int rc = v->lock(v, u->lock_file, 1);
    return rc == -EWOULDBLOCK ? fail(LS_LOCKED, "%s is in use by another update", u->path)
           : rc != 0          ? fail_disk(u, -rc, "its LOCK cannot be locked")
                              : LS_OK;
}

static int make_directory(struct update *u, const char *name) {
    vfs *v = u->v;
    int host = u->host->vote->host.dir;
    u->directory.dir = v->open_subdir(v, host, name, 1);
    if (u->directory.dir < 0) {
        return fail_disk(u, -u->directory.dir, "its directory cannot be made");
    }
    int rc = lock_directory(u);
    if (rc != LS_OK) {
        return rc;
    }
    struct listing l = {.u = u, .dir = u->directory.dir};
    /* META first: without some of its segments the log would be another one. */
    rc = v->unlink(v, u->directory.dir, "META");
    rc = rc == 0 ? v->sync_dir(v, u->directory.dir) : rc == -ENOENT ? 0 : rc;
    rc = rc == 0 ? v->list(v, u->directory.dir, clear_one, &l) : rc;
    rc = rc == 0 ? v->sync_dir(v, u->directory.dir) : rc;
    rc = rc == 0 ? v->sync_dir(v, host) : rc;
    return rc == 0 ? LS_OK : fail_disk(u, -rc, "what an earlier one left cannot be removed");
}

static int open_directories(struct update *u, bool present) {
    vfs *v = u->v;
    int host = u->host->vote->host.dir;
    char name[COPY_NAME_BYTES];
    if (present) {
        vote_copy_name(name, u->host->vote->now.copy);
        u->present = v->open_subdir(v, host, name, 0);
        if (u->present < 0) {
            return fail_disk(u, -u->present, "the present copy cannot be opened");
        }
    }
    vote_copy_name(name, u->copy);
    int left = v->open_subdir(v, host, name, 0);
    if (left < 0 && left != -ENOENT) {
        return fail_disk(u, -left, "its directory cannot be opened");
    }
    int rc = check_room(u, left);
    if (left >= 0) {
        (void)v->close(v, left);
    }
    return rc == LS_OK ? make_directory(u, name) : rc;
}

static struct update *update_new(struct host *h, const ls_update_manifest *m, const ls_update_segment *segments) {
    struct update *u = calloc(1, sizeof *u);
    if (u == NULL) {
        return NULL;
    }
    u->host = h;
    u->v = h->vote->host.v;
    u->copy = h->vote->now.copy + 1;
    u->manifest = *m;
    u->lock_file = u->present = u->file = u->directory.dir = -1;
    u->directory.v = u->v;
    u->path = host_copy_path(h, u->copy);
    u->piece = aligned_alloc(IO_BLOCK_BYTES, PIECE_BYTES);
    u->segments = calloc(m->segment_count, sizeof *u->segments);
    if (u->path == NULL || u->piece == NULL || u->segments == NULL) {
        ls_update_free(u);
        return NULL;
    }
    memcpy(u->segments, segments, m->segment_count * sizeof *segments);
    return u;
}

int ls_update_begin(ls_host *host, const ls_update_manifest *manifest, const ls_update_segment *segments,
                    ls_update **update) {
    struct meta meta;
    bool present = false;
    *update = NULL;
    int rc = check_manifest(manifest, segments, &meta);
    rc = rc == LS_OK ? check_host(host, manifest, &present) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    struct update *u = update_new(host, manifest, segments);
    if (u == NULL) {
        return fail_memory();
    }
    u->meta = meta;
    rc = open_directories(u, present);
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        ls_update_free(u);
        return fail_again(&kept);
    }
    *update = u;
    return LS_OK;
}

static void close_handle(struct update *u, int *handle) {
    if (*handle >= 0) {
        (void)u->v->close(u->v, *handle);
        *handle = -1;
    }
}

void ls_update_free(ls_update *u) {
    if (u == NULL) {
        return;
    }
    close_handle(u, &u->file);
    close_handle(u, &u->present);
    close_handle(u, &u->directory.dir);
    close_handle(u, &u->lock_file);
    free(u->segments);
    free(u->piece);
    free(u->path);
    free(u);
}

const char *ls_update_path(const ls_update *u) { return u->path; }

/* ---- segments that are here already ---- */

static bool is_zero(const uint8_t *at, size_t bytes) {
    return bytes == 0 || (at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0);
}

/* Past the cache; through it where the file system has nothing else. */
static int open_past_cache(const struct update *u, const char *name, bool *direct) {
    int file = u->v->open(u->v, u->directory.dir, name, VFS_WRITE | VFS_DIRECT);
    *direct = file != -EINVAL;
    return *direct ? file : u->v->open(u->v, u->directory.dir, name, VFS_WRITE);
}

/* 1: the file has the bytes of the manifest and nothing else; 0: it does not; below 0: -errno. The file was forced
   before it was read. */
static int agrees(struct update *u, const ls_update_segment *g, int file, bool direct) {
    vfs *v = u->v;
    uint64_t size = u->manifest.segment_size;
    int64_t bytes = v->size(v, file);
    if (bytes < 0 || (uint64_t)bytes != size) {
        return bytes < 0 ? (int)bytes : 0;
    }
    int rc = v->sync_file(v, file);
    struct xxh64_sum sum;
    xxh64_begin(&sum);
    for (uint64_t at = 0; rc == 0 && at < size;) {
        size_t want = size - at < PIECE_BYTES ? (size_t)(size - at) : PIECE_BYTES;
        int64_t got = direct ? io_read_direct(v, file, u->piece, want, at) : io_read(v, file, u->piece, want, at);
        if (got != (int64_t)want) {
            return got < 0 ? (int)got : 0;
        }
        uint64_t of_log = g->bytes > at ? g->bytes - at : 0;
        size_t part = of_log < want ? (size_t)of_log : want;
        xxh64_add(&sum, u->piece, part);
        if (!is_zero(u->piece + part, want - part)) {
            return 0;
        }
        at += want;
    }
    return rc != 0 ? rc : xxh64_end(&sum) == g->checksum;
}

/* The file of an earlier update. If a sync or a read fails there, the file just cannot be used. */
static bool is_left(struct update *u, const ls_update_segment *g) {
    char name[SEGMENT_NAME_BYTES];
    bool direct;
    format_segment_name(name, g->first_lsn);
    int file = open_past_cache(u, name, &direct);
    if (file < 0) {
        return false;
    }
    bool agreed = agrees(u, g, file, direct) == 1;
    (void)u->v->close(u->v, file);
    return agreed;
}

/* A new file, so that no page of an earlier one is under it. */
static int make_file(struct update *u) {
    u->file = segment_file_make(&u->directory, u->segments[u->whole].first_lsn, u->manifest.segment_size, false);
    u->offset = 0;
    xxh64_begin(&u->sum);
    return u->file >= 0 ? LS_OK : fail_disk(u, -u->file, "a segment's file cannot be made");
}

static int put(struct update *u, const uint8_t *from, size_t bytes) {
    int error = io_write(u->v, u->file, from, bytes, u->offset, &u->directory.written);
    if (error != 0) {
        return fail_disk(u, -error, "a segment cannot be written");
    }
    xxh64_add(&u->sum, from, bytes);
    u->offset += bytes;
    return LS_OK;
}

static int force_segment(struct update *u) {
    int error = u->v->sync_data(u->v, u->file);
    close_handle(u, &u->file);
    u->whole += error == 0 ? 1 : 0;
    u->looked = false;
    return error == 0 ? LS_OK : fail_disk(u, -error, "a segment cannot be forced");
}

/* Copies the segment from the present copy. Unless that file has everything in the manifest, nothing stays of the new
   file. */
static int copy_present(struct update *u, const ls_update_segment *g) {
    vfs *v = u->v;
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, g->first_lsn);
    int from = u->present >= 0 ? v->open(v, u->present, name, 0) : -ENOENT;
    if (from < 0) {
        return LS_OK;
    }
    (void)v->advise_sequential(v, from, 0, g->bytes);
    int rc = make_file(u);
    while (rc == LS_OK && u->offset < g->bytes) {
        size_t want = g->bytes - u->offset < PIECE_BYTES ? (size_t)(g->bytes - u->offset) : PIECE_BYTES;
        if (io_read(v, from, u->piece, want, u->offset) != (int64_t)want) {
            break;
        }
        rc = put(u, u->piece, want);
    }
    (void)v->close(v, from);
    if (rc == LS_OK && u->offset == g->bytes && xxh64_end(&u->sum) == g->checksum) {
        return force_segment(u);
    }
    close_handle(u, &u->file);
    return rc;
}

/* ---- the parts that the sender gives ---- */

int ls_update_next(ls_update *u, ls_update_part *part) {
    *part = (ls_update_part){.bytes = 0};
    int rc = usable(u);
    if (rc != LS_OK || u->whole == u->manifest.segment_count) {
        return rc == LS_OK ? LS_END : rc;
    }
    const ls_update_segment *g = &u->segments[u->whole];
    if (!u->looked) {
        size_t before = u->whole;
        if (is_left(u, g)) {
            u->whole++;
            return LS_OK;
        }
        rc = copy_present(u, g);
        if (rc != LS_OK || u->whole > before) {
            return rc;
        }
        u->looked = true;
        u->offset = 0;
    }
    *part = (ls_update_part){.first_lsn = g->first_lsn, .offset = u->offset, .bytes = g->bytes - u->offset};
    return LS_OK;
}

int ls_update_write(ls_update *u, uint64_t first_lsn, uint64_t offset, const uint8_t *from, size_t bytes) {
    int rc = usable(u);
    if (rc != LS_OK) {
        return rc;
    }
    const ls_update_segment *g = u->whole < u->manifest.segment_count ? &u->segments[u->whole] : NULL;
    if (g == NULL || !u->looked || first_lsn != g->first_lsn || offset != u->offset || bytes == 0 ||
        bytes > g->bytes - offset) {
        return fail(LS_REFUSED, "the update did not ask for %zu bytes at %llu of segment %llu", bytes,
                    (unsigned long long)offset, (unsigned long long)first_lsn);
    }
    rc = u->file < 0 ? make_file(u) : LS_OK;
    rc = rc == LS_OK ? put(u, from, bytes) : rc;
    if (rc != LS_OK || u->offset < g->bytes) {
        return rc;
    }
    if (xxh64_end(&u->sum) != g->checksum) {
        close_handle(u, &u->file);
        u->offset = 0;
        return fail_at(LS_REFUSED, g->first_lsn, g->first_lsn,
                       "the bytes of this segment differ from the manifest; they are asked for again");
    }
    return force_segment(u);
}

/* ---- the end ---- */

/* Files that the caller put there. */
static int force_one(void *context, const char *name) {
    struct listing *l = context;
    uint64_t first_lsn;
    if (format_parse_segment_name(name, &first_lsn) || strcmp(name, "LOCK") == 0) {
        return 0;
    }
    vfs *v = l->u->v;
    int file = v->open(v, l->dir, name, VFS_WRITE);
    if (file < 0) {
        return file == -EISDIR ? 0 : file;
    }
    int rc = v->sync_file(v, file);
    (void)v->close(v, file);
    return rc;
}

static int write_meta(struct update *u) {
    vfs *v = u->v;
    static const char *const name = "META.part";
    uint8_t bytes[META_BYTES];
    format_put_meta(bytes, &u->meta);
    int rc = v->unlink(v, u->directory.dir, name);
    int file =
        rc == 0 || rc == -ENOENT ? v->open(v, u->directory.dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE) : rc;
    if (file < 0) {
        return file;
    }
    rc = io_write(v, file, bytes, sizeof bytes, 0, &u->directory.written);
    rc = rc == 0 ? v->sync_file(v, file) : rc;
    (void)v->close(v, file);
    return rc == 0 ? v->rename(v, u->directory.dir, name, "META") : rc;
}

static int force_all(struct update *u) {
    vfs *v = u->v;
    struct listing l = {.u = u, .dir = u->directory.dir};
    int rc = v->list(v, u->directory.dir, force_one, &l);
    rc = rc == 0 ? v->sync_dir(v, u->directory.dir) : rc;
    rc = rc == 0 ? write_meta(u) : rc;
    rc = rc == 0 ? v->sync_dir(v, u->directory.dir) : rc;
    return rc == 0 ? LS_OK : fail_disk(u, -rc, "it cannot be forced");
}

/* Opens the new copy like any copy. Everything in it is durable: the sender says so of its end. */
static int open_copy(struct update *u, struct replica **next) {
    const ls_update_manifest *m = &u->manifest;
    ls_options o = u->host->options;
    o.catalog_lsn = u->segments[0].first_lsn; /* the catalog that the caller put there may lack later changes */
    /* The copy takes ownership; no other process uses this directory while VOTE is locked. */
    close_handle(u, &u->lock_file);
    int rc = replica_open(u->v, u->path, &o, next);
    if (rc != LS_OK) {
        return rc;
    }
    const struct replica_end *end = &(*next)->end;
    if (end->lsn != m->end_lsn || end->term != m->term || end->index != m->index) {
        return fail(LS_CORRUPT,
                    "the update in %s ends with index %llu of term %llu at LSN %llu, and not with index %llu of term "
                    "%llu at LSN %llu",
                    u->path, (unsigned long long)end->index, (unsigned long long)end->term,
                    (unsigned long long)end->lsn, (unsigned long long)m->index, (unsigned long long)m->term,
                    (unsigned long long)m->end_lsn);
    }
    return replica_durable(*next, m->end_lsn);
}

int ls_update_finish(ls_update *u) {
    struct replica *next = NULL;
    int rc = usable(u);
    if (rc != LS_OK) {
        return rc;
    }
    if (u->whole < u->manifest.segment_count) {
        return fail(LS_REFUSED, "the update in %s is not whole: %zu of %zu segments are missing", u->path,
                    u->manifest.segment_count - u->whole, u->manifest.segment_count);
    }
    if (has_more(u->host, &u->manifest)) { /* the present copy may have taken batches meanwhile, and reported them */
        return fail(LS_REFUSED, "the update in %s ends below what this member has by now; its present copy goes on",
                    u->path);
    }
    rc = force_all(u);
    close_handle(u, &u->present);
    rc = rc == LS_OK ? open_copy(u, &next) : rc;
    rc = rc == LS_OK ? host_switch(u->host, u->copy, next) : rc;
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        u->error = u->error != 0 ? u->error : EIO;
        replica_free(next);
        return fail_again(&kept);
    }
    u->finished = true;
    return LS_OK;
}
