/*
 * Spares: segment files made ahead of need, or recycled once the base has passed them. A spare is named for the
 * LSNs it will hold, is allocated in full (never sparse), and its directory entry is durable before it is offered.
 *
 * One thread at a time makes, renames or removes segment files (spare_thread.c). A failure is counted; the store then
 * cannot grow, but stays usable.
 *
 * How a new file gets its blocks follows from measured speed: rewriting written blocks is several times faster than
 * writing into fallocated ones, but writing zeros takes the disk from a log that grows quickly. So a file is filled with
 * zeros when there is time, and fallocated when the last segment did not last FAST_SWITCH_US.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "os/io.h"
#include "log/parts.h"
#include "log/space/parts.h"

/*
 * The page cache keeps a file in folios as large as the writes that filled it, and a write of one block walks all blocks
 * of its folio, several times until it is synced. In folios of 1 MiB that takes 5 µs more for each small batch than in
 * those of 128 KiB. These in turn cost a batch of 2 MiB a sixth more than the large ones.
 */
enum { ZERO_CHUNK_BYTES = 128 << 10 };

/* ---- how many ---- */

size_t spares_target(const struct log *g) { return needed_spares(&g->space.needs, log_segments_kept(g), SPARES_AHEAD); }

size_t spares_most(const struct log *g) {
    size_t most = needed_spares(&g->space.needs, log_segments_kept(g), SPARES_AHEAD + 1);
    size_t asked = g->space.needs.spares_reserved + (ahead_is_asked(g) ? 1 : 0); /* not given back before it is used */
    return most > asked ? most : asked;
}

/* ---- the list ---- */

/* Adds it at the end: names ascend along the list. */
void spares_adopt(struct log *g, struct segment *s) {
    struct segment **end = &g->space.spares;
    while (*end != NULL) {
        end = &(*end)->next_spare;
    }
    s->next_spare = NULL;
    *end = s;
    g->space.spare_count++;
    ahead_tell(g);
}

struct segment *spares_take(struct log *g) {
    struct segment *s = g->space.spares;
    assert(s != NULL);
    g->space.spares = s->next_spare;
    g->space.spare_count--;
    admission_note_live(g);
    g->space.live_low_before = g->space.live_low;
    g->space.live_low = UINT64_MAX;
    admission_compute_needs(g);
    uint64_t now = g->v->monotonic_us(g->v);
    g->space.switch_interval_us = now - g->space.last_switch_us;
    g->space.last_switch_us = now;
    return s;
}

/* ---- files ---- */

static int fill_with_zeros(struct directory *d, int file, uint64_t bytes) {
    static const uint8_t zeros[ZERO_CHUNK_BYTES];
    for (uint64_t at = 0; at < bytes; at += ZERO_CHUNK_BYTES) {
        uint64_t left = bytes - at;
        int rc =
            io_write(d->v, file, zeros, left < ZERO_CHUNK_BYTES ? (size_t)left : ZERO_CHUNK_BYTES, at, &d->written);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

int segment_file_make(struct directory *d, uint64_t first_lsn, uint64_t bytes, bool zero_fill) {
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, first_lsn);
    int file = d->v->open(d->v, d->dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE);
    if (file == -EEXIST && d->v->unlink(d->v, d->dir, name) == 0) { /* what a failed try could not take away */
        file = d->v->open(d->v, d->dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE);
    }
    if (file < 0) {
        return file;
    }
    int rc = zero_fill ? fill_with_zeros(d, file, bytes) : d->v->allocate(d->v, file, bytes);
    if (rc == -EOPNOTSUPP) {
        rc = fill_with_zeros(d, file, bytes);
    }
    if (rc == 0) {
        rc = d->v->sync_file(d->v, file);
    }
    if (rc == 0) {
        rc = d->v->sync_dir(d->v, d->dir);
    }
    if (rc != 0) {
        (void)d->v->close(d->v, file);
        (void)d->v->unlink(d->v, d->dir, name);
        return rc;
    }
    return file;
}

/* A term's own segment always is: what lies below the base goes only in a term, and without it no copy of a full log could lead. */
bool spares_within_limit(const struct log *g) {
    if ((log_is_replicated(g) && !g->serving) || g->space.beyond_limit) {
        return true;
    }
    uint64_t files = log_files(g) + (g->space.replacing ? 0 : 1);
    return g->max_log_bytes == 0 || files * g->segment_size <= g->max_log_bytes;
}

static int make_spare(struct log *g, bool zero_fill) {
    if (!spares_within_limit(g)) {
        g->space.grow_error = 0;
        return fail(LS_FULL, "the log may not grow beyond max_log_bytes (%llu)", (unsigned long long)g->max_log_bytes);
    }
    struct segment *s = segment_new(g, g->space.next_spare_lsn, g->epoch);
    if (s == NULL) {
        return fail_memory();
    }
    s->header_due = true;
    g->space.next_spare_lsn += g->segment_size;
    log_unlock_for_io(g);
    int file = segment_file_make(g->directory, s->first_lsn, g->segment_size, zero_fill);
    log_relock_after_io(g);
    if (file < 0) {
        g->space.next_spare_lsn = s->first_lsn;
        g->space.grow_error = -file;
        segment_free(g, s);
        return fail_errno(file == -ENOSPC || file == -EDQUOT || file == -EFBIG ? LS_FULL : LS_IO, -file,
                          "another segment of %llu bytes cannot be made", (unsigned long long)g->segment_size);
    }
    s->file = file;
    g->open_files++;
    g->stats.segments_created++;
    spares_adopt(g, s);
    return LS_OK;
}

/* On a full disk the clients first give up files that they do not need, such as a checkpoint. */
int spares_make(struct log *g, bool zero_fill) {
    int rc = make_spare(g, zero_fill);
    bool disk_full = rc == LS_FULL && (g->space.grow_error == ENOSPC || g->space.grow_error == EDQUOT);
    for (size_t i = 0; disk_full && rc != LS_OK && i < g->clients.count; i++) {
        const struct log_client *c = &g->clients.all[i];
        if (c->calls->give_up_space != NULL && c->calls->give_up_space(c->context)) {
            rc = make_spare(g, zero_fill);
        }
    }
    return rc;
}

/*
 * Removes the newest spare's file. Its name is free again, so that LSNs have no gap: ids stay within
 * max_undurable_bytes of durable_lsn.
 */
static bool give_back(struct log *g) {
    struct segment **end = &g->space.spares;
    while (*end != NULL && (*end)->next_spare != NULL) {
        end = &(*end)->next_spare;
    }
    struct segment *s = *end;
    if (s == NULL || s->first_lsn + g->segment_size != g->space.next_spare_lsn) {
        return false;
    }
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, s->first_lsn);
    *end = NULL;
    g->space.spare_count--;
    g->space.next_spare_lsn = s->first_lsn;
    segment_free(g, s);
    log_unlock_for_io(g);
    int rc = g->v->unlink(g->v, g->dir, name);
    rc = rc == 0 ? g->v->sync_dir(g->v, g->dir) : rc; /* if a crash undoes the unlink, the file is a spare */
    log_relock_after_io(g);
    g->stats.segments_removed++;
    g->stats.spare_failures += rc != 0 ? 1 : 0;
    return rc == 0;
}

/* After a peak, gives the spares that are no longer needed back to the disk.  */
void spares_give_back_beyond(struct log *g, size_t most) {
    while (g->space.spare_count > most && give_back(g)) {
    }
}
