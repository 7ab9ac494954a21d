/*
 * The sender of an update: its own log from a base on, up to the end of a durable batch. The core's caller moves the bytes, and
 * sends the batches that follow. What always holds:
 *
 *   - only bytes below the end are sent, and the end is that of a batch which a majority has;
 *   - the log that ends there, and begins where the manifest says, can be opened. Its first segment is at or below a
 *     base; a batch in the log names this base, and another batch in the log says that the first is durable. The
 *     segment is also at or below the LSN that the sender's catalog has reached;
 *   - each segment was verified as recovery does it while its checksum was made;
 *   - the newest MEMBERS of a log stands at or above its base, so all steps together see it;
 *   - bytes are given only of a file that still has its name after they were read: a file gets another name before it is used
 *     again, and no name is given twice.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/xxh64.h"
#include "os/array.h"
#include "os/io.h"
#include "read/damage.h"
#include "read/hold_list.h"
#include "read/reader.h"

enum { LOOKS_MAX = 4, RENEWED_AFTER = 4 /* a hold is renewed after this part of its time */ };

struct update_source {
    vfs *v;
    int dir;
    ls_hold *hold;
    uint64_t lasts_us;
    uint64_t renewed_us; /* by the monotonic clock */
    ls_update_manifest manifest;
    ls_update_segment *segments;

    ls_reader *reader; /* NULL: the manifest is complete */
    size_t at;         /* the segment that it is in */
    uint64_t next_lsn; /* where the next batch begins; 0: the segment's header is not in the sum yet */
    struct xxh64_sum sum;
    uint64_t members_index; /* 0: no MEMBERS was seen yet */
    uint32_t config_bytes;
    uint8_t config[MEMBERS_CONFIG_MAX];

    int file; /* of the last read; -1: none */
    uint64_t file_lsn;
};

static int fail_recycled(uint64_t first_lsn) {
    return fail_at(LS_RECYCLED, first_lsn, first_lsn,
                   "a segment was recycled during an update: its hold had reached its limit or its time; begin anew, "
                   "with a larger limit if that happens again");
}

/* The error for a directory whose copy was replaced or removed; META is removed first. */
static int judge(struct update_source *s, int rc) {
    if (rc == LS_OK || rc == LS_END || rc == LS_RECYCLED || rc == LS_OPTION) {
        return rc;
    }
    ls_error kept = *ls_last_error();
    int meta = s->v->open(s->v, s->dir, "META", 0);
    if (meta >= 0) {
        (void)s->v->close(s->v, meta);
    }
    return meta == -ENOENT
               ? fail(LS_RECYCLED, "the copy that was sent has been replaced or removed; begin anew, with another copy")
               : fail_again(&kept);
}

/* ---- where it begins and ends ---- */

static uint64_t part_end(const struct scan *s, size_t index) {
    return s->files[index].end_lsn != 0 ? s->files[index].end_lsn : s->end_lsn;
}

/* The first segment of the log that ends above the LSN. */
static size_t segment_from(const struct scan *s, uint64_t lsn) {
    size_t i = s->first;
    while (i < s->last && (!s->files[i].in_log || part_end(s, i) <= lsn)) {
        i++;
    }
    return i;
}

static bool reaches_down_to(const struct scan *s, uint64_t lsn) {
    const struct scan_file *f = &s->files[s->first];
    return f->first_lsn <= lsn || f->header.prev_end_lsn <= lsn;
}

/* Reads the ends of the log under the hold. *from_lsn: where the update begins; the log that was read may begin above that. */
static int look(struct update_source *s, uint64_t applied_lsn, uint64_t *from_lsn) {
    ls_reader_close(s->reader);
    int rc = ls_hold_read(s->hold, 0, &s->reader);
    if (rc != LS_OK) {
        return rc;
    }
    struct scan *scan = &s->reader->scan;
    bool said = false;
    rc = scan->end_lsn > scan->files[scan->first].first_lsn ? scan_find_said_base(scan, &said) : LS_OK;
    if (rc == LS_CORRUPT || rc == LS_IO) {
        return reader_judge(s->reader, rc, scan->end_lsn);
    }
    if (rc != LS_OK) {
        return rc;
    }
    if (scan->index < 2 || (!said && scan->durable_lsn == 0)) {
        return fail(LS_WOULD_WAIT, "the durable part of the log does not have two batches with an index yet");
    }
    /* The batch that names it lies at or below this one. */
    uint64_t base_lsn = said ? scan->base_lsn : scan->durable_lsn - 1;
    *from_lsn = applied_lsn != 0 && applied_lsn < base_lsn ? applied_lsn : base_lsn;
    if (!said && reaches_down_to(scan, *from_lsn)) {
        return fail(LS_WOULD_WAIT, "the durable part of the log does not say yet where it begins");
    }
    return LS_OK;
}

/* The hold begins at the base that readers use. An open of the log may need segments below that base; they are there as
   well. */
static int find_ends(struct update_source *s, uint64_t applied_lsn, uint64_t *from_lsn) {
    for (int i = 0; i < LOOKS_MAX; i++) {
        int rc = look(s, applied_lsn, from_lsn);
        if (rc == LS_RECYCLED && i > 0) {
            break; /* recycled by a program that had looked at the holds before this hold was lowered */
        }
        if (rc != LS_OK || reaches_down_to(&s->reader->scan, *from_lsn)) {
            return rc;
        }
        rc = hold_lower(s->hold, *from_lsn);
        if (rc == LS_RECYCLED && *from_lsn != applied_lsn) {
            break;
        }
        if (rc != LS_OK) {
            return rc;
        }
    }
    return fail(LS_WOULD_WAIT, "the log moves on while an update looks for its base; try again");
}

/* ---- the manifest ---- */

static int list_segments(struct update_source *s, uint64_t from_lsn) {
    const struct scan *scan = &s->reader->scan;
    const struct meta *m = &s->reader->meta;
    size_t first = segment_from(scan, from_lsn), count = 0;
    s->segments = calloc(scan->last - first + 1, sizeof *s->segments);
    if (s->segments == NULL) {
        return fail_memory();
    }
    for (size_t i = first; i <= scan->last; i++) {
        const struct scan_file *f = &scan->files[i];
        if (f->in_log) {
            s->segments[count++] = (ls_update_segment){
                .first_lsn = f->first_lsn,
                .term = f->header.epoch,
                .prev_end_lsn = f->header.prev_end_lsn,
                .bytes = part_end(scan, i) - f->first_lsn,
            };
        }
    }
    s->manifest = (ls_update_manifest){
        .segment_size = m->segment_size,
        .max_undurable_bytes = m->max_undurable_bytes,
        .created_us = m->created_us,
        .end_lsn = scan->end_lsn,
        .term = scan->term,
        .index = scan->index,
        .segment_count = count,
    };
    memcpy(s->manifest.uuid, m->uuid, UUID_BYTES);
    if (count > LS_UPDATE_SEGMENTS_MAX) {
        return fail(LS_OPTION, "an update has at most %d segments", LS_UPDATE_SEGMENTS_MAX);
    }
    scan_rewind(&s->reader->scan);
    scan_seek(&s->reader->scan, from_lsn);
    return LS_OK;
}

static int open_source(struct update_source *s, const char *store_dir, const char *hold_name, uint64_t limit_bytes,
                       uint64_t applied_lsn) {
    uint64_t from_lsn = 0;
    int rc = ls_hold_take(s->v, store_dir, hold_name, 0, limit_bytes, s->lasts_us, &s->hold);
    if (rc != LS_OK) {
        return rc;
    }
    s->renewed_us = s->v->monotonic_us(s->v);
    s->dir = s->v->open_dir(s->v, store_dir);
    if (s->dir < 0) {
        return fail_errno(LS_IO, -s->dir, "the store directory %s cannot be opened", store_dir);
    }
    rc = find_ends(s, applied_lsn, &from_lsn);
    return judge(s, rc == LS_OK ? list_segments(s, from_lsn) : rc);
}

int ls_update_source_open(vfs *system, const char *store_dir, const char *hold_name, uint64_t limit_bytes,
                          uint64_t lasts_us, uint64_t applied_lsn, ls_update_source **source) {
    struct update_source *s = *source = NULL;
    if (applied_lsn > LSN_MAX) {
        return fail(LS_OPTION, "an LSN is at most %llu", (unsigned long long)LSN_MAX);
    }
    s = calloc(1, sizeof *s);
    if (s == NULL) {
        return fail_memory();
    }
    s->v = system != NULL ? system : vfs_posix();
    s->dir = s->file = -1;
    s->lasts_us = lasts_us;
    int rc = open_source(s, store_dir, hold_name, limit_bytes, applied_lsn);
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        ls_update_source_close(s);
        return fail_again(&kept);
    }
    *source = s;
    return LS_OK;
}

void ls_update_source_close(ls_update_source *s) {
    if (s == NULL) {
        return;
    }
    if (s->file >= 0) {
        (void)s->v->close(s->v, s->file);
    }
    if (s->dir >= 0) {
        (void)s->v->close(s->v, s->dir);
    }
    ls_reader_close(s->reader);
    ls_hold_release(s->hold);
    free(s->segments);
    free(s);
}

int ls_update_source_keep(ls_update_source *s, uint64_t lsn) {
    ls_hold_info held;
    ls_hold_describe(s->hold, &held);
    int rc = ls_hold_advance(s->hold, lsn > held.lsn ? lsn : 0, s->lasts_us);
    s->renewed_us = rc == LS_OK ? s->v->monotonic_us(s->v) : s->renewed_us;
    return judge(s, rc);
}

static int renew_if_due(struct update_source *s) {
    bool due = s->v->monotonic_us(s->v) - s->renewed_us > s->lasts_us / RENEWED_AFTER;
    return due ? ls_update_source_keep(s, 0) : LS_OK;
}

/* ---- bytes ---- */

static int open_segment(struct update_source *s, uint64_t first_lsn) {
    char name[SEGMENT_NAME_BYTES];
    if (s->file >= 0 && s->file_lsn == first_lsn) {
        return LS_OK;
    }
    if (s->file >= 0) {
        (void)s->v->close(s->v, s->file);
    }
    format_segment_name(name, first_lsn);
    s->file = s->v->open(s->v, s->dir, name, 0);
    s->file_lsn = first_lsn;
    if (s->file < 0) {
        return s->file == -ENOENT ? fail_recycled(first_lsn)
                                  : fail_errno(LS_IO, -s->file, "segment %s cannot be opened", name);
    }
    return LS_OK;
}

/* Whether the file kept its name until it had been read. */
static int check_name(struct update_source *s, uint64_t first_lsn) {
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, first_lsn);
    int there = s->v->open(s->v, s->dir, name, 0);
    if (there >= 0) {
        (void)s->v->close(s->v, there);
        return LS_OK;
    }
    (void)s->v->close(s->v, s->file);
    s->file = -1;
    return there == -ENOENT ? fail_recycled(first_lsn) : fail_errno(LS_IO, -there, "segment %s cannot be opened", name);
}

static int read_part(struct update_source *s, uint64_t first_lsn, uint64_t offset, uint8_t *into, size_t bytes) {
    int rc = open_segment(s, first_lsn);
    if (rc != LS_OK) {
        return rc;
    }
    int64_t got = io_read(s->v, s->file, into, bytes, offset);
    if (got < 0) {
        return fail_at(LS_IO, first_lsn, first_lsn + offset, "a segment cannot be read: %s", strerror((int)-got));
    }
    rc = check_name(s, first_lsn);
    return rc != LS_OK || (uint64_t)got == bytes
               ? rc
               : fail_at(LS_CORRUPT, first_lsn, first_lsn + (uint64_t)got, "a segment's file is too short");
}

/* Begins the checksum of the segment that has the next batch. */
static int add_header(struct update_source *s) {
    const ls_update_segment *g = &s->segments[s->at];
    uint8_t bytes[SEGMENT_HEADER_BYTES];
    struct segment_header h;
    int rc = read_part(s, g->first_lsn, 0, bytes, sizeof bytes);
    if (rc != LS_OK) {
        return rc;
    }
    enum format_result why =
        format_get_segment_header(bytes, sizeof bytes, s->manifest.uuid, s->manifest.segment_size, g->first_lsn, &h);
    if (why != FORMAT_OK || h.epoch != g->term || h.prev_end_lsn != g->prev_end_lsn) {
        return fail_at(LS_CORRUPT, g->first_lsn, g->first_lsn, "a segment's header has changed");
    }
    xxh64_begin(&s->sum);
    xxh64_add(&s->sum, bytes, sizeof bytes);
    s->next_lsn = g->first_lsn + SEGMENT_HEADER_BYTES;
    return LS_OK;
}

/* A copy of MEMBERS is one of the newest records, so the last one counts. */
static void note_members(struct update_source *s, const struct scan_batch *b) {
    struct record r;
    struct members m;
    uint32_t at = BATCH_RECORD_BYTES;
    while (scan_record(b, &at, &r)) {
        if (r.type == MEMBERS && format_get_members(&r, &m) == FORMAT_OK) {
            s->members_index = m.index;
            s->config_bytes = m.config_bytes;
            memcpy(s->config, m.config, m.config_bytes);
        }
    }
}

/* Batches come without a gap: the reader ensures that within a segment, and the list of segments has the end of
   each. */
static int add_batch(struct update_source *s, const struct scan_batch *b) {
    int rc = s->next_lsn == 0 ? add_header(s) : LS_OK;
    if (rc != LS_OK) {
        return rc;
    }
    ls_update_segment *g = &s->segments[s->at];
    uint64_t end_lsn = b->lsn + b->batch.bytes;
    if (b->first_lsn != g->first_lsn || b->lsn != s->next_lsn || end_lsn > g->first_lsn + g->bytes) {
        return fail_at(LS_CORRUPT, b->first_lsn, b->lsn, "a batch is not where the log's segments have it");
    }
    xxh64_add(&s->sum, b->bytes, b->batch.bytes);
    note_members(s, b);
    s->next_lsn = end_lsn;
    if (end_lsn == g->first_lsn + g->bytes) {
        g->checksum = xxh64_end(&s->sum);
        s->at++;
        s->next_lsn = 0;
    }
    return LS_OK;
}

int ls_update_source_step(ls_update_source *s, uint64_t bytes) {
    int rc = s->reader != NULL ? renew_if_due(s) : LS_END;
    for (uint64_t done = 0; rc == LS_OK && s->at < s->manifest.segment_count && done < bytes;) {
        struct scan_batch b;
        rc = reader_next(s->reader, &b);
        if (rc == LS_END) {
            rc = fail_at(LS_CORRUPT, s->segments[s->at].first_lsn, s->next_lsn, "the log ends before its durable end");
            break;
        }
        rc = rc == LS_OK ? add_batch(s, &b) : rc;
        done += rc == LS_OK ? b.batch.bytes : 0;
    }
    if (rc == LS_OK && s->at == s->manifest.segment_count) {
        ls_reader_close(s->reader);
        s->reader = NULL;
        rc = LS_END;
    }
    return judge(s, rc);
}

int ls_update_source_manifest(const ls_update_source *s, ls_update_manifest *manifest, ls_update_segment *segments,
                              size_t n) {
    *manifest = s->manifest;
    if (s->reader != NULL) {
        return fail(LS_WOULD_WAIT, "the manifest is not complete yet");
    }
    size_t most = n < s->manifest.segment_count ? n : s->manifest.segment_count;
    if (most > 0) {
        memcpy(segments, s->segments, most * sizeof *segments);
    }
    return LS_OK;
}

int ls_update_source_members(const ls_update_source *s, uint64_t *index, const uint8_t **config, size_t *config_bytes) {
    bool found = s->reader == NULL && s->members_index != 0;
    *index = found ? s->members_index : 0;
    *config = found ? s->config : NULL;
    *config_bytes = found ? s->config_bytes : 0;
    if (s->reader != NULL) {
        return fail(LS_WOULD_WAIT, "the manifest is not complete yet");
    }
    return found ? LS_OK : fail(LS_CORRUPT, "the log of an update is replicated, and no MEMBERS stands in it");
}

int ls_update_source_read(ls_update_source *s, uint64_t first_lsn, uint64_t offset, uint8_t *into, size_t bytes) {
    size_t count = s->manifest.segment_count;
    size_t i = array_lower_bound(ls_update_segment, s->segments, count, first_lsn, first_lsn);
    if (i == count || s->segments[i].first_lsn != first_lsn || offset > s->segments[i].bytes ||
        bytes > s->segments[i].bytes - offset) {
        return fail(LS_OPTION, "the update has no %zu bytes at %llu of segment %llu", bytes, (unsigned long long)offset,
                    (unsigned long long)first_lsn);
    }
    int rc = renew_if_due(s);
    return judge(s, rc == LS_OK ? read_part(s, first_lsn, offset, into, bytes) : rc);
}
