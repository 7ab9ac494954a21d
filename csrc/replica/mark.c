/*
 * A copy that lags writes several batches with one force. Recovery relies on two things that this breaks: a batch is
 * written only when the previous batch is forced, and so its durable_lsn holds on every disk. So a mark [from, to) is
 * forced first, in MARK. While the mark stands, the durable_lsn of batches inside it counts only up to `from`, so a
 * crash in the middle of them leaves a torn tail. The next open erases the part of the mark above the log's end, and
 * only then removes the mark; otherwise a batch that reached the disk without its predecessor would later look like
 * damage.
 *
 * MARK has two slots, which are written in turns. If a crash tears one, its mark was not forced, and no batch was written under it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/io.h"
#include "replica/replica.h"

static int put(struct replica *r, uint64_t from_lsn, uint64_t to_lsn) {
    struct directory *d = &r->store->directory;
    struct mark m = {.sequence = ++r->mark.sequence, .from_lsn = from_lsn, .to_lsn = to_lsn};
    memcpy(m.uuid, r->store->meta.uuid, UUID_BYTES);
    format_put_mark(r->mark.slot, &m);
    uint64_t at = m.sequence % MARK_SLOTS * MARK_SLOT_BYTES;
    int error = io_write(d->v, r->mark.file, r->mark.slot, MARK_SLOT_BYTES, at, &d->written);
    r->stats.forces++;
    return error == 0 ? d->v->sync_data(d->v, r->mark.file) : error;
}

static int put_both(struct replica *r) {
    int error = put(r, 0, 0);
    return error == 0 ? put(r, 0, 0) : error;
}

static int open_file(struct replica *r) {
    struct directory *d = &r->store->directory;
    int file = d->v->open(d->v, d->dir, "MARK", VFS_WRITE | VFS_DIRECT);
    if (file == -EINVAL) {
        file = d->v->open(d->v, d->dir, "MARK", VFS_WRITE); /* a file system in memory */
    }
    r->mark.file = file;
    return file < 0 ? file : 0;
}

/* A new file, so that no page of an earlier failed write is under it. */
static int make_file(struct replica *r) {
    static const char *const name = "MARK.new";
    struct directory *d = &r->store->directory;
    int rc = d->v->unlink(d->v, d->dir, name);
    rc = rc == 0 || rc == -ENOENT ? d->v->open(d->v, d->dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE) : rc;
    if (rc < 0) {
        return rc;
    }
    r->mark.file = rc;
    rc = put_both(r);
    rc = rc == 0 ? d->v->sync_file(d->v, r->mark.file) : rc;
    rc = rc == 0 ? d->v->rename(d->v, d->dir, name, "MARK") : rc;
    rc = rc == 0 ? d->v->sync_dir(d->v, d->dir) : rc;
    replica_mark_close(r);
    if (rc != 0) {
        (void)d->v->unlink(d->v, d->dir, name); /* a full disk needs its blocks */
    }
    return rc == 0 ? open_file(r) : rc;
}

/* Writes zeros over [from, to) of the segment, past the cache if it was read that way. The block in which the range
   begins keeps its other bytes. */
static int erase(struct replica *r, uint64_t first_lsn, uint64_t from_lsn, uint64_t to_lsn) {
    vfs *v = r->store->directory.v;
    bool direct = r->store->scan.direct;
    uint64_t at = (from_lsn - first_lsn) / BLOCK_BYTES * BLOCK_BYTES, to = round_up(to_lsn - first_lsn, BLOCK_BYTES);
    size_t kept = (size_t)(from_lsn - first_lsn - at);
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, first_lsn);
    uint8_t *block = aligned_alloc(BLOCK_BYTES, BLOCK_BYTES);
    if (block == NULL) {
        return -ENOMEM;
    }
    int file = v->open(v, r->store->directory.dir, name, VFS_WRITE | (direct ? VFS_DIRECT : 0)), error = 0;
    int64_t got = file < 0 ? file
                  : direct ? io_read_direct(v, file, block, BLOCK_BYTES, at)
                           : io_read(v, file, block, BLOCK_BYTES, at);
    if (got < (int64_t)kept) {
        error = got < 0 ? (int)got : -EIO;
    }
    for (; error == 0 && at < to; at += BLOCK_BYTES) {
        memset(block + kept, 0, BLOCK_BYTES - kept);
        error = io_write(v, file, block, BLOCK_BYTES, at, &r->store->directory.written);
        kept = 0;
    }
    error = error == 0 ? v->sync_data(v, file) : error;
    if (file >= 0) {
        (void)v->close(v, file);
    }
    free(block);
    return error;
}

int replica_mark_open(struct replica *r) {
    const struct scan *s = &r->store->scan;
    const struct mark *m = &s->mark;
    uint64_t size = s->meta.segment_size;
    int error = open_file(r);
    if (error == -ENOENT) {
        return LS_OK;
    }
    uint64_t first_lsn = m->from_lsn / size * size;
    bool above = m->sequence != 0 && s->end_lsn >= m->from_lsn && s->end_lsn < m->to_lsn;
    if (error == 0 && above && s->last != SIZE_MAX && s->files[s->last].first_lsn == first_lsn) {
        error = erase(r, first_lsn, s->end_lsn, m->to_lsn);
    }
    r->mark.sequence = m->sequence;
    error = error == 0 ? put_both(r) : error;
    error = error == 0 ? r->store->directory.v->sync_dir(r->store->directory.v, r->store->directory.dir)
                       : error; /* a killed process may have renamed the file, and not synced the directory */
    if (error == -ENOMEM) {
        return fail_memory();
    }
    return error == 0 ? LS_OK : replica_fail_disk(r, -error, "MARK, or what it covers, cannot be written");
}

bool replica_mark_finds_no_room(struct replica *r) {
    int error = r->error == 0 && r->mark.file < 0 ? make_file(r) : 0;
    return error == -ENOSPC || error == -EDQUOT;
}

int replica_mark_set(struct replica *r, uint64_t from_lsn, uint64_t to_lsn) {
    int error = r->mark.file < 0 ? make_file(r) : 0;
    error = error == 0 ? put(r, from_lsn, to_lsn) : error;
    return error == 0 ? LS_OK : replica_fail_disk(r, -error, "MARK cannot be written");
}

void replica_mark_close(struct replica *r) {
    if (r->mark.file >= 0) {
        (void)r->store->directory.v->close(r->store->directory.v, r->mark.file);
    }
    r->mark.file = -1;
}
