/* Opening a scan, and every batch from the base to the end. See scan.h. */
#include "read/scan_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "read/damage.h"
#include "os/error.h"
#include "os/io.h"

/* ---- opening ---- */

size_t scan_find_file(const struct scan *s, uint64_t first_lsn) {
    for (size_t i = 0; i < s->count; i++) {
        if (s->files[i].first_lsn == first_lsn) {
            return i;
        }
    }
    return SIZE_MAX;
}

/* The last valid header below the limit; with direct reading, the last one that is on the disk. */
int scan_find_last(struct scan *s) {
    s->last = SIZE_MAX;
    for (size_t i = s->count; i-- > 0;) {
        if (s->files[i].state != SCAN_VALID || (s->limit_lsn != 0 && s->files[i].first_lsn >= s->limit_lsn)) {
            continue;
        }
        s->last = i;
        if (s->want_direct) {
            s->file_index = SIZE_MAX;
            int rc = scan_open_segment(s, i);
            if (rc == LS_OK) {
                rc = scan_read_header(s, i);
            }
            if (rc != LS_OK) {
                return rc;
            }
            if (s->files[i].state != SCAN_VALID) {
                s->last = SIZE_MAX;
                continue;
            }
        }
        scan_raise_watermark(s, s->files[i].header.prev_end_lsn);
        return LS_OK;
    }
    return LS_OK;
}

uint64_t scan_first_beyond(const struct meta *meta, uint64_t lsn) {
    uint64_t gap = meta->max_undurable_bytes;
    return (lsn + gap) / meta->segment_size * meta->segment_size + meta->segment_size;
}

int scan_refuse(const struct scan *s, const struct verdict_row *row, uint64_t first_lsn, uint64_t lsn,
                enum format_result why) {
    if (row->verdict == VERDICT_NEWER) {
        return scan_fail_newer(first_lsn);
    }
    if (row->verdict != VERDICT_CORRUPT) {
        return LS_OK;
    }
    if (row->found == FOUND_LAST_EPOCH) { /* it concerns no single place */
        return fail(LS_CORRUPT,
                    "the log is damaged: %s. Nothing was changed; run `logstore verify`, then `logstore salvage`",
                    verdict_reason(row->reason));
    }
    char record[48] = "";
    if (s->broken_lsn > lsn && s->broken_lsn - lsn < format_batch_bytes_max(s->meta.segment_size)) {
        (void)snprintf(record, sizeof record, " in its record at LSN %llu", (unsigned long long)s->broken_lsn);
    }
    return fail_at(
        LS_CORRUPT, first_lsn, lsn,
        "the log is damaged: %s (%s%s), although everything below LSN %llu was once durable. Nothing was changed; "
        "run `logstore verify`, then `logstore salvage`",
        verdict_reason(row->reason), format_result_text(why), record, (unsigned long long)s->watermark_lsn);
}

/* Everything below the end of the log at its last orderly close was durable. */
int scan_read_closed(struct scan *s) {
    uint8_t bytes[CLOSED_BYTES];
    struct closed c;
    int file = s->v->open(s->v, s->dir, "CLOSED", 0);
    if (file < 0) {
        return file == -ENOENT ? LS_OK : fail_errno(LS_IO, -file, "CLOSED cannot be opened");
    }
    int64_t got = io_read(s->v, file, bytes, sizeof bytes, 0);
    (void)s->v->close(s->v, file);
    if (got < 0) {
        return fail_errno(LS_IO, (int)-got, "CLOSED cannot be read");
    }
    if (format_get_closed(bytes, (size_t)got, &c) == FORMAT_OK && memcmp(c.uuid, s->meta.uuid, UUID_BYTES) == 0) {
        s->closed_lsn = c.end_lsn;
        scan_raise_watermark(s, c.end_lsn);
    }
    return LS_OK;
}

int scan_prepare(struct scan *s, vfs *v, int dir, const struct meta *meta) {
    *s = (struct scan){.v = v,
                       .dir = dir,
                       .meta = *meta,
                       .file = -1,
                       .last = SIZE_MAX,
                       .known = s->known,
                       .all_durable = s->all_durable};
    s->window_capacity = WINDOW_BYTES < meta->segment_size ? WINDOW_BYTES : (size_t)meta->segment_size;
    s->window = aligned_alloc(BLOCK_BYTES, s->window_capacity);
    return s->window == NULL ? fail_memory() : LS_OK;
}

int scan_fail_no_segment(void) {
    return fail(LS_CORRUPT,
                "the store has no valid segment: its log is missing. Restore the segment files; nothing was changed");
}

int scan_list(struct scan *s, vfs *v, int dir, const struct meta *meta) {
    int rc = scan_prepare(s, v, dir, meta);
    return rc == LS_OK ? scan_list_files(s) : rc;
}

int scan_open(struct scan *s, vfs *v, int dir, const struct meta *meta, bool want_direct, const struct hint *live) {
    int rc = scan_prepare(s, v, dir, meta);
    s->want_direct = want_direct;
    s->limit_lsn = live != NULL ? live->durable_lsn : 0;
    rc = rc == LS_OK ? scan_list_files(s) : rc;
    rc = rc == LS_OK && live == NULL ? scan_read_closed(s) : rc;
    rc = rc == LS_OK && live == NULL ? scan_read_mark(v, dir, meta, &s->mark) : rc;
    rc = rc == LS_OK ? scan_find_last(s) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    /* No store reaches this epoch, and the epoch of the next open would wrap to 0. */
    if (s->epoch_max == UINT64_MAX || s->renamed_epoch == UINT64_MAX) {
        return scan_refuse(s, verdict_of(FOUND_LAST_EPOCH, 0), 0, 0, FORMAT_OK);
    }
    if (live == NULL) {
        scan_find_taken_over(s);
    }
    if (s->last == SIZE_MAX) {
        rc = live != NULL ? LS_OK : scan_look_beyond(s);
        return rc != LS_OK ? rc : scan_fail_no_segment();
    }
    scan_link_chain(s);
    if (live != NULL) {
        s->base_lsn = live->base_lsn;
        s->end_lsn = s->watermark_lsn = live->durable_lsn;
    } else {
        rc = scan_find_ends(s);
    }
    if (rc == LS_OK) {
        rc = scan_find_base(s);
    }
    if (rc == LS_OK) {
        scan_rewind(s);
        s->bytes_read = 0;
    }
    return rc;
}

/* ---- iteration ---- */

void scan_rewind(struct scan *s) {
    s->next_file = s->first;
    s->next_lsn = s->files[s->first].first_lsn + SEGMENT_HEADER_BYTES;
}

static uint64_t log_part_end(const struct scan *s, size_t index) {
    return s->files[index].end_lsn != 0 ? s->files[index].end_lsn : s->end_lsn;
}

static bool next_segment(struct scan *s) {
    while (++s->next_file <= s->last) {
        if (s->files[s->next_file].in_log) {
            s->next_lsn = s->files[s->next_file].first_lsn + SEGMENT_HEADER_BYTES;
            return true;
        }
    }
    return false;
}

bool scan_has_next(struct scan *s) {
    if (s->next_file > s->last) {
        return false;
    }
    while (s->next_lsn >= log_part_end(s, s->next_file)) {
        if (!next_segment(s)) {
            return false;
        }
    }
    return true;
}

int scan_accept_next(struct scan *s, struct scan_batch *b, enum format_result *why) {
    int rc = scan_accept_batch(s, s->next_file, s->next_lsn, log_part_end(s, s->next_file), b, why);
    s->next_lsn += rc == LS_OK && *why == FORMAT_OK ? b->batch.bytes : 0;
    return rc;
}

int scan_next(struct scan *s, struct scan_batch *b) {
    if (!scan_has_next(s)) {
        return LS_END;
    }
    if (s->ahead != NULL && scan_ahead_take(s, b)) {
        s->next_lsn += b->batch.bytes;
        return LS_OK;
    }
    enum format_result why = FORMAT_OK;
    int rc = scan_accept_next(s, b, &why);
    if (rc != LS_OK) {
        return rc;
    }
    return scan_refuse(s, verdict_of(verdict_found(why), BEFORE_END), s->files[s->next_file].first_lsn, s->next_lsn,
                       why);
}

void scan_stop_at(struct scan *s, uint64_t lsn) {
    for (size_t i = s->last + 1; i-- > 0;) {
        struct scan_file *f = &s->files[i];
        if (f->in_log && (f->first_lsn < lsn || i == s->first)) {
            s->last = i;
            f->end_lsn = 0;
            break;
        }
        f->in_log = false;
    }
    s->end_lsn = lsn;
}

void scan_seek(struct scan *s, uint64_t lsn) {
    while (s->next_file < s->last && log_part_end(s, s->next_file) <= lsn) {
        if (!next_segment(s)) {
            s->next_file = s->last + 1;
        }
    }
}

int scan_from_batch(struct scan *s, uint64_t lsn, struct scan_batch *b, bool *found) {
    size_t index = scan_find_file(s, lsn / s->meta.segment_size * s->meta.segment_size);
    enum format_result why = FORMAT_OK;
    *found = false;
    if (index == SIZE_MAX || !s->files[index].in_log || lsn < s->files[index].first_lsn + SEGMENT_HEADER_BYTES ||
        lsn >= log_part_end(s, index)) {
        return LS_OK;
    }
    int rc = scan_accept_batch(s, index, lsn, log_part_end(s, index), b, &why);
    if (rc == LS_OK && why == FORMAT_OK) {
        *found = true;
        s->next_file = index;
        s->next_lsn = lsn + b->batch.bytes;
    }
    return rc;
}

void scan_close(struct scan *s) {
    if (s->file >= 0) {
        (void)s->v->close(s->v, s->file);
        s->file = -1;
    }
    free(s->files);
    free(s->window);
    s->files = NULL;
    s->window = NULL;
}

int scan_read_mark(vfs *v, int dir, const struct meta *meta, struct mark *mark) {
    uint8_t bytes[MARK_SLOTS * MARK_SLOT_BYTES];
    *mark = (struct mark){.sequence = 0};
    int file = v->open(v, dir, "MARK", 0);
    if (file < 0) {
        return file == -ENOENT ? LS_OK : fail_errno(LS_IO, -file, "MARK cannot be opened");
    }
    int64_t got = io_read(v, file, bytes, sizeof bytes, 0);
    (void)v->close(v, file);
    if (got < 0) {
        return fail_errno(LS_IO, (int)-got, "MARK cannot be read");
    }
    for (size_t at = 0; at < (size_t)got; at += MARK_SLOT_BYTES) {
        struct mark one;
        enum format_result result = format_get_mark(bytes + at, (size_t)got - at, &one);
        if (result == FORMAT_NEWER) {
            return fail(LS_VERSION, "a later version of logstore wrote MARK; use that version");
        }
        bool ours = result == FORMAT_OK && memcmp(one.uuid, meta->uuid, UUID_BYTES) == 0;
        bool empty = ours && one.to_lsn == 0;
        if (ours && (empty || one.from_lsn / meta->segment_size == (one.to_lsn - 1) / meta->segment_size) &&
            one.sequence > mark->sequence) {
            *mark = one;
        }
    }
    return LS_OK;
}

int scan_read_meta(vfs *v, int dir, const char *name, struct meta *m) {
    uint8_t bytes[META_BYTES];
    int file = v->open(v, dir, name, 0);
    if (file == -ENOENT) {
        return fail(LS_NOT_A_STORE,
                    "there is no %s in the directory: it is not a store, or not one yet; check the path", name);
    }
    if (file < 0) {
        return fail_errno(LS_IO, -file, "%s cannot be opened", name);
    }
    int64_t got = io_read(v, file, bytes, sizeof bytes, 0);
    (void)v->close(v, file);
    if (got < 0) {
        return fail_errno(LS_IO, (int)-got, "%s cannot be read", name);
    }
    enum format_result result = format_get_meta(bytes, (size_t)got, m);
    if (result == FORMAT_NEWER) {
        return fail(LS_VERSION,
                    "the store is of a newer format version than this program knows (%d); use a newer "
                    "logstore",
                    FORMAT_VERSION);
    }
    if (result == FORMAT_MAGIC) {
        return fail(LS_NOT_A_STORE, "%s is not a logstore's; this directory is not a store", name);
    }
    if (result != FORMAT_OK) {
        return fail(LS_CORRUPT, "%s is damaged (%s); restore it from a backup: it holds the store's UUID and sizes",
                    name, format_result_text(result));
    }
    return LS_OK;
}
