/*
 * Spares: segment files made ahead of need, or recycled once the base has passed them. A spare is named for the
 * LSNs it will hold, is allocated in full (never sparse), and its directory entry is durable before it is offered.
 *
 * One thread does all of it (the maker; without background threads, whoever needs a spare): only it renames, makes
 * or removes segment files. Failures are counted and survived; what they leave is a store that cannot grow.
 *
 * How a new file gets its blocks is a matter of measured speed: rewriting written blocks is several times faster
 * than writing into fallocated ones, but writing zeros while the log grows quickly takes the disk from it. So a
 * file is filled with zeros when there is time and fallocated when the last segment did not last FAST_SWITCH_US.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "io.h"
#include "log.h"

enum { FAST_SWITCH_US = 500 * 1000, ZERO_CHUNK_BYTES = 1 << 20 };

/* A thread stays what it is; whether there is a maker changes while one of these two waits for the other. */
static _Thread_local bool this_is_the_maker;

static void unlock_for_io(struct log *g) {
    if (this_is_the_maker) {
        pthread_mutex_unlock(&g->lock);
    }
}

static void relock_after_io(struct log *g) {
    if (this_is_the_maker) {
        pthread_mutex_lock(&g->lock);
    }
}

/* At the end: names grow along the list. */
void spares_adopt(struct log *g, struct segment *s) {
    struct segment **end = &g->spares;
    while (*end != NULL) {
        end = &(*end)->next_spare;
    }
    s->next_spare = NULL;
    *end = s;
    g->spare_count++;
}

struct segment *spares_take(struct log *g) {
    struct segment *s = g->spares;
    assert(s != NULL);
    g->spares = s->next_spare;
    g->spare_count--;
    uint64_t now = g->v->monotonic_us(g->v);
    g->switch_interval_us = now - g->last_switch_us;
    g->last_switch_us = now;
    g->maker_wanted = true;
    (void)pthread_cond_signal(&g->maker_wake);
    return s;
}

static int fill_with_zeros(struct log *g, int file) {
    static const uint8_t zeros[ZERO_CHUNK_BYTES];
    for (uint64_t at = 0; at < g->segment_size; at += ZERO_CHUNK_BYTES) {
        uint64_t left = g->segment_size - at;
        int rc = io_write(g->v, file, zeros, left < ZERO_CHUNK_BYTES ? (size_t)left : ZERO_CHUNK_BYTES, at);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* The file of one more spare, durable under its name; a handle or -errno. */
static int make_file(struct log *g, uint64_t first_lsn, bool zero_fill) {
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, first_lsn);
    int file = g->v->open(g->v, g->dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE);
    if (file == -EEXIST && g->v->unlink(g->v, g->dir, name) == 0) { /* what a failed try could not take away */
        file = g->v->open(g->v, g->dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE);
    }
    if (file < 0) {
        return file;
    }
    int rc = zero_fill ? fill_with_zeros(g, file) : g->v->allocate(g->v, file, g->segment_size);
    if (rc == -EOPNOTSUPP) {
        rc = fill_with_zeros(g, file);
    }
    if (rc == 0) {
        rc = g->v->sync_file(g->v, file);
    }
    if (rc == 0) {
        rc = g->v->sync_dir(g->v, g->dir);
    }
    if (rc != 0) {
        (void)g->v->close(g->v, file);
        (void)g->v->unlink(g->v, g->dir, name);
        return rc;
    }
    return file;
}

static bool within_limit(const struct log *g) {
    uint64_t files = g->segment_count + g->spare_count + 1;
    return g->max_log_bytes == 0 || files * g->segment_size <= g->max_log_bytes;
}

int spares_make(struct log *g, bool zero_fill) {
    if (!within_limit(g)) {
        g->grow_error = 0;
        return fail(LS_FULL, "the log may not grow beyond max_log_bytes (%llu)", (unsigned long long)g->max_log_bytes);
    }
    struct segment *s = segment_new(g, g->next_spare_lsn, g->epoch);
    if (s == NULL) {
        return fail_memory();
    }
    s->header_due = true;
    g->next_spare_lsn += g->segment_size;
    unlock_for_io(g);
    int file = make_file(g, s->first_lsn, zero_fill);
    relock_after_io(g);
    if (file < 0) {
        g->next_spare_lsn = s->first_lsn;
        g->grow_error = -file;
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

/* One dead segment becomes a spare under a new name, or goes. It is out of the array already. */
static void recycle(struct log *g, struct segment *s) {
    char from[SEGMENT_NAME_BYTES], to[SEGMENT_NAME_BYTES];
    format_segment_name(from, s->first_lsn);
    bool keep = g->spare_count < SPARES_MAX;
    int rc = -1;
    if (keep) {
        uint64_t first_lsn = g->next_spare_lsn;
        g->next_spare_lsn += g->segment_size;
        format_segment_name(to, first_lsn);
        unlock_for_io(g);
        rc = s->file >= 0 ? 0 : g->v->open(g->v, g->dir, from, VFS_WRITE);
        int opened = s->file < 0 && rc >= 0 ? rc : -1;
        rc = rc < 0 ? rc : g->v->rename(g->v, g->dir, from, to);
        rc = rc < 0 ? rc : g->v->sync_dir(g->v, g->dir);
        relock_after_io(g);
        if (opened >= 0) {
            s->file = opened;
            g->open_files++;
        }
        if (rc == 0) {
            s->first_lsn = first_lsn;
            s->epoch = g->epoch;
            s->seed = format_segment_seed(g->uuid, first_lsn, g->epoch);
            s->end_lsn = s->live_records = s->live_bytes = 0;
            s->header_due = true;
            g->stats.segments_recycled++;
            spares_adopt(g, s);
            return;
        }
        g->stats.spare_failures++;
        g->next_spare_lsn = first_lsn; /* no gap: ids stay within max_undurable_bytes of what is durable */
    }
    segment_free(g, s);
    unlock_for_io(g);
    if (g->v->unlink(g->v, g->dir, from) != 0 && keep) {
        (void)g->v->unlink(g->v, g->dir, to);
    }
    (void)g->v->sync_dir(g->v, g->dir); /* should it come back, it is below the base */
    relock_after_io(g);
    g->stats.segments_removed++;
}

/* Whether the oldest segment is behind the base that a durable batch named, and nobody reads it. */
static bool oldest_is_dead(const struct log *g, uint64_t kept_from) {
    if (g->base_index == 0) {
        return false;
    }
    const struct segment *s = g->segments[0];
    return s->readers == 0 && s->first_lsn < g->named_base_lsn && s->end_lsn <= kept_from;
}

void spares_recycle(struct log *g) {
    if (!oldest_is_dead(g, UINT64_MAX)) {
        return;
    }
    unlock_for_io(g);
    uint64_t kept_from = holds_lowest(g);
    relock_after_io(g);
    while (oldest_is_dead(g, kept_from)) {
        struct segment *s = g->segments[0];
        log_remove_segment(g, 0);
        recycle(g, s);
    }
}

int spares_keep(struct log *g) {
    spares_recycle(g);
    int rc = LS_OK;
    while (rc == LS_OK && g->spare_count < SPARES_TARGET) {
        rc = spares_make(g, g->switch_interval_us >= FAST_SWITCH_US);
        g->stats.spare_failures += rc != LS_OK ? 1 : 0;
    }
    g->cannot_grow = rc != LS_OK;
    g->maker_tries++;
    return rc;
}

void spares_try(struct log *g) {
    if (g->stopping) {
        return; /* the maker may be at its last file */
    }
    if (!g->threads_running) {
        (void)spares_keep(g);
        return;
    }
    uint64_t until = g->maker_tries + (g->maker_trying ? 2 : 1); /* a try that begins after this moment */
    g->maker_wanted = true;
    (void)pthread_cond_signal(&g->maker_wake);
    while (g->maker_tries < until && !g->stopping) {
        (void)pthread_cond_wait(&g->maker_done, &g->lock);
    }
}

static int fail_full(const struct log *g) {
    if (g->grow_error != 0) {
        return fail_errno(
            LS_FULL, g->grow_error,
            "the store is full: another segment of %llu bytes cannot be made; nothing was changed. Consume "
            "messages or free disk space",
            (unsigned long long)g->segment_size);
    }
    return fail(LS_FULL,
                "the store is full: %zu segments of %llu bytes are in use and max_log_bytes is %llu; nothing was "
                "changed. Consume messages or raise max_log_bytes",
                g->segment_count, (unsigned long long)g->segment_size, (unsigned long long)g->max_log_bytes);
}

int spares_need(struct log *g, size_t kept) {
    g->stats.waits_for_spare++;
    spares_try(g);
    if (g->spare_count > kept) {
        return LS_OK;
    }
    int rc =
        spares_grow(g); /* where it can grow, another thread was quicker to take the spare: the caller looks again */
    return g->spare_count > kept ? LS_OK : rc;
}

/*
 * The base may have moved without a batch to name it; then what is behind it is free only after one more. Where that
 * is not enough, deaths on their way to the disk may move it further: they are forced before the answer is no.
 */
int spares_grow(struct log *g) {
    for (int tries = 0; tries < 2; tries++) {
        int rc = tries == 0 ? LS_OK : log_force(g, g->end_lsn);
        log_advance_base(g);
        if (rc == LS_OK && log_base_lsn(g) > g->named_base_lsn) {
            rc = log_force_batch(g);
        }
        if (rc != LS_OK) {
            return rc;
        }
        spares_try(g);
        if (!g->cannot_grow) {
            return LS_OK;
        }
    }
    return fail_full(g);
}

void *spares_thread(void *log) {
    struct log *g = log;
    this_is_the_maker = true;
    pthread_mutex_lock(&g->lock);
    while (!g->stopping) {
        if (!g->maker_wanted) {
            (void)pthread_cond_wait(&g->maker_wake, &g->lock);
            continue;
        }
        g->maker_wanted = false;
        g->maker_trying = true;
        (void)spares_keep(g);
        g->maker_trying = false;
        (void)pthread_cond_broadcast(&g->maker_done);
    }
    (void)pthread_cond_broadcast(&g->maker_done);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}
