/* Scanning a log in which segments are missing or have damaged headers. See scan.h. */
#include "os/error.h"
#include "read/scan_parts.h"

/* No later header gives the end of this segment's part of the log, so it ends at the first invalid batch. */
static int walk(struct scan *s, size_t index, uint64_t *end_lsn, struct scan_batch *last) {
    const struct scan_file *f = &s->files[index];
    uint64_t lsn = f->first_lsn + SEGMENT_HEADER_BYTES, limit = f->first_lsn + s->meta.segment_size;
    limit = s->limit_lsn != 0 && s->limit_lsn < limit ? s->limit_lsn : limit;
    while (lsn < limit) {
        struct scan_batch b = {.lsn = 0};
        enum format_result why = FORMAT_OK;
        int rc = scan_accept_batch(s, index, lsn, limit, &b, &why);
        if (rc == LS_NO_MEMORY) {
            return rc;
        }
        enum verdict verdict = rc == LS_OK ? verdict_of(verdict_found(why), 0)->verdict : VERDICT_CORRUPT;
        if (verdict == VERDICT_NEWER) {
            return scan_fail_newer(f->first_lsn);
        }
        if (verdict != VERDICT_ACCEPTED) {
            break;
        }
        *last = b;
        lsn += b.batch.bytes;
    }
    *end_lsn = lsn;
    return LS_OK;
}

/* Without a writer the last readable batch names the base, and all readable batch records give the watermark. */
static int find_ends(struct scan *s) {
    struct scan_batch last = {.lsn = 0};
    uint64_t end_lsn, found = 0;
    int rc = walk(s, s->last, &s->end_lsn, &last);
    for (size_t i = s->last; rc == LS_OK && last.lsn == 0 && i-- > 0;) {
        rc = s->files[i].state == SCAN_VALID ? walk(s, i, &end_lsn, &last) : LS_OK;
    }
    s->base_lsn = last.lsn != 0 ? last.batch.base_lsn : s->files[s->last].first_lsn;
    scan_raise_watermark(s, last.lsn != 0 ? last.batch.durable_lsn : 0);
    for (size_t i = s->last; rc == LS_OK && i < s->count; i++) {
        bool is_last = i == s->last;
        const struct scan_file *f = &s->files[i];
        rc = scan_search_batches(s, i, is_last ? s->end_lsn - f->first_lsn : SEGMENT_HEADER_BYTES,
                                 is_last ? f->header.epoch : 0, &found);
        rc = rc == LS_NO_MEMORY ? rc : LS_OK;
    }
    return rc;
}

/* The next lower segment that can belong to the same log; SIZE_MAX: none. */
static size_t next_below(const struct scan *s, size_t at) {
    while (at-- > 0 && s->files[at].first_lsn >= s->base_lsn) {
        if (s->files[at].state == SCAN_VALID && s->files[at].header.epoch <= s->files[s->last].header.epoch) {
            return at;
        }
    }
    return SIZE_MAX;
}

/* Links the last segment down to the base, across missing segments. */
static int link_rest(struct scan *s) {
    size_t at = s->last;
    for (size_t i = 0; i < s->count; i++) {
        s->files[i].in_log = false;
        s->files[i].end_lsn = 0;
    }
    s->files[at].in_log = true;
    while (s->files[at].first_lsn > s->base_lsn) {
        uint64_t end = s->files[at].header.prev_end_lsn;
        size_t before =
            end == 0 ? SIZE_MAX : scan_find_file(s, (end - 1) / s->meta.segment_size * s->meta.segment_size);
        if (before == SIZE_MAX || before >= at || s->files[before].state != SCAN_VALID ||
            end <= s->files[before].first_lsn + SEGMENT_HEADER_BYTES) {
            struct scan_batch last;
            before = next_below(s, at);
            int rc = before != SIZE_MAX ? walk(s, before, &end, &last) : LS_OK;
            if (rc != LS_OK || before == SIZE_MAX) {
                s->first = at;
                return rc;
            }
        }
        s->files[before].in_log = true;
        s->files[before].end_lsn = end;
        at = before;
    }
    s->first = at;
    return LS_OK;
}

int scan_open_permissive(struct scan *s, vfs *v, int dir, const struct meta *meta, const struct hint *live,
                         const struct hint *last_writer) {
    int rc = scan_prepare(s, v, dir, meta);
    s->permissive = true;
    s->limit_lsn = live != NULL ? live->durable_lsn : 0;
    rc = rc == LS_OK ? scan_list_files(s) : rc;
    if (rc == LS_OK && live == NULL) {
        (void)scan_read_closed(s); /* optional */
        (void)scan_read_mark(v, dir, meta, &s->mark);
    }
    rc = rc == LS_OK ? scan_find_last(s) : rc;
    if (rc != LS_OK || s->last == SIZE_MAX) {
        return rc != LS_OK ? rc : scan_fail_no_segment();
    }
    if (live != NULL) {
        struct scan_batch last;
        s->base_lsn = live->base_lsn;
        scan_raise_watermark(s, live->durable_lsn);
        rc = walk(s, s->last, &s->end_lsn, &last);
    } else {
        rc = find_ends(s);
        if (last_writer != NULL && last_writer->epoch >= s->epoch_max) {
            s->base_lsn = last_writer->base_lsn > s->base_lsn ? last_writer->base_lsn : s->base_lsn;
            scan_raise_watermark(s, last_writer->durable_lsn);
        }
    }
    rc = rc == LS_OK ? link_rest(s) : rc;
    if (rc == LS_OK) {
        s->seen_lsn = s->end_lsn;
        scan_rewind(s);
        s->bytes_read = 0;
    }
    return rc;
}

size_t scan_missing(const struct scan *s, ls_lsn_range *into, size_t n) {
    uint64_t at = s->base_lsn;
    size_t count = 0;
    for (size_t i = 0; i <= s->last; i++) {
        const struct scan_file *f = &s->files[i];
        if (!f->in_log) {
            continue;
        }
        if (f->first_lsn > at && f->header.prev_end_lsn != at) {
            if (count < n) {
                into[count] = (ls_lsn_range){at, f->first_lsn};
            }
            count++;
        }
        at = f->end_lsn != 0 ? f->end_lsn : s->end_lsn;
    }
    if ((at > s->seen_lsn ? at : s->seen_lsn) < s->watermark_lsn) { /* the last segment may have been set aside */
        if (count < n) {
            into[count] = (ls_lsn_range){at, s->watermark_lsn};
        }
        count++;
    }
    return count;
}

void scan_skip_segment(struct scan *s) {
    s->files[s->next_file].end_lsn = s->next_lsn;
    if (s->next_file == s->last) {
        s->end_lsn = s->seen_lsn = s->next_lsn;
    }
}
