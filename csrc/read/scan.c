/* Where the log begins and ends, and every batch of it. See scan.h. */
#include "read/scan_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "read/damage.h"
#include "os/error.h"
#include "os/io.h"

/* ---- where the log begins and ends ---- */

size_t scan_find_file(const struct scan *s, uint64_t first_lsn) {
    for (size_t i = 0; i < s->count; i++) {
        if (s->files[i].first_lsn == first_lsn) {
            return i;
        }
    }
    return SIZE_MAX;
}

/* The last valid header below the limit; with direct reading, one that is really on the disk. */
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

/*
 * A power cut while an open took over the only file of a store that had no record yet: it has its new name, and the
 * header of before, which says that nothing comes before it. Only such a file has the name that follows from the one
 * before; a spare made of an earlier segment has a later one.
 */
static void find_taken_over(struct scan *s) {
    for (size_t i = 0; i < s->count && s->last == SIZE_MAX; i++) {
        struct scan_file *f = &s->files[i];
        uint64_t was_lsn = f->header.first_lsn;
        if (f->why == FORMAT_PLACE && f->header.epoch == s->moved_epoch && f->header.prev_end_lsn == 0 &&
            s->moved_lsn == was_lsn + s->meta.segment_size && f->first_lsn == scan_first_beyond(&s->meta, was_lsn)) {
            f->state = SCAN_VALID;
            s->epoch_max = s->moved_epoch;
            s->last = i;
        }
    }
}

uint64_t scan_first_beyond(const struct meta *meta, uint64_t lsn) {
    uint64_t gap = meta->max_undurable_bytes;
    return (lsn + gap) / meta->segment_size * meta->segment_size + meta->segment_size;
}

/*
 * From the last segment backwards along prev_end_lsn: what lies between is cut and not of the log. Stops at the
 * first segment of the store, or where a file is missing, which is well if the base lies above it.
 */
static void link_chain(struct scan *s) {
    size_t at = s->last;
    for (size_t i = 0; i < s->count; i++) {
        s->files[i].in_log = false;
        s->files[i].end_lsn = 0;
    }
    while (at != SIZE_MAX) {
        s->files[at].in_log = true;
        uint64_t end = s->files[at].header.prev_end_lsn;
        if (end == 0) {
            return;
        }
        s->missing_lsn = (end - 1) / s->meta.segment_size * s->meta.segment_size;
        size_t before = scan_find_file(s, s->missing_lsn);
        if (before == SIZE_MAX || before >= at || s->files[before].state != SCAN_VALID ||
            end <= s->files[before].first_lsn + SEGMENT_HEADER_BYTES) {
            return;
        }
        s->missing_lsn = 0;
        s->files[before].end_lsn = end;
        at = before;
    }
}

/* A batch is named by where it stands, and the record in it that is not valid beside that. */
static int corrupt(const struct scan *s, uint64_t first_lsn, uint64_t lsn, const char *what, enum format_result why) {
    char where[48] = "";
    if (s->broken_lsn > lsn && s->broken_lsn - lsn < format_batch_bytes_max(s->meta.segment_size)) {
        (void)snprintf(where, sizeof where, " in its record at LSN %llu", (unsigned long long)s->broken_lsn);
    }
    return fail_at(
        LS_CORRUPT, first_lsn, lsn,
        "the log is damaged: %s (%s%s), although everything below LSN %llu was once durable. Nothing was changed; "
        "keep a copy of the directory and use `logstore verify`",
        what, format_result_text(why), where, (unsigned long long)s->watermark_lsn);
}

/* A record that gives nothing new: what it was copied from is there as long as no durable base relies on the copy. */
static bool is_copy(const struct record *r) {
    bool copied = (r->type == MESSAGE_START || r->type == MESSAGE_CHUNK) && (r->flags & FLAG_COPY) != 0;
    return copied || r->type == MESSAGE_RELOCATED || r->type == TX_RELOCATED || r->type == FILLER;
}

/* An empty batch holds none: a checkpoint may name it, and an open after a crash must find it. */
static bool holds_only_copies(const struct scan_batch *b) {
    struct record r;
    uint32_t offset = BATCH_RECORD_BYTES;
    bool only = b->batch.count > 0;
    while (only && scan_record(b, &offset, &r)) {
        only = is_copy(&r);
    }
    return only;
}

/* Walks one segment to its end, which *end_lsn says; *last is its last accepted batch (lsn 0: none). */
static int walk_to_end(struct scan *s, size_t index, uint64_t *end_lsn, struct scan_batch *last, bool *only_copies,
                       enum format_result *why) {
    const struct scan_file *f = &s->files[index];
    uint64_t lsn = f->first_lsn + SEGMENT_HEADER_BYTES;
    uint64_t limit = f->end_lsn != 0 ? f->end_lsn : f->first_lsn + s->meta.segment_size;
    *why = FORMAT_OK;
    while (lsn < limit) {
        struct scan_batch b = {.lsn = 0};
        int rc = scan_accept_batch(s, index, lsn, limit, &b, why);
        if (rc != LS_OK) {
            return rc;
        }
        if (*why == FORMAT_NEWER) {
            return scan_fail_newer(f->first_lsn);
        }
        if (*why == FORMAT_MALFORMED) { /* right checksums: no crash makes such bytes */
            return corrupt(s, f->first_lsn, lsn, "a batch cannot be meant", *why);
        }
        if (*why != FORMAT_OK) {
            break;
        }
        *last = b;
        *only_copies = *only_copies && holds_only_copies(&b);
        lsn += b.batch.bytes;
    }
    *end_lsn = lsn;
    return LS_OK;
}

/*
 * A batch record that is itself damaged tells no length. But no LSN is ever given twice: a record that names its own
 * place was written there in this segment's life, and so was a batch record whose header check is right for it.
 */
static int measure_broken(struct scan *s, uint64_t lsn) {
    const struct scan_file *f = &s->files[s->last];
    uint64_t offset = lsn - f->first_lsn, seed = format_segment_seed(s->meta.uuid, f->first_lsn, f->header.epoch);
    uint64_t left = s->meta.segment_size > offset ? s->meta.segment_size - offset : 0;
    uint32_t most = format_batch_bytes_max(s->meta.segment_size);
    const uint8_t *at;
    size_t available;
    int rc = scan_look(s, offset, left < most ? (size_t)left : most, &at, &available);
    available = available < most ? available : most;
    for (size_t step = 0; rc == LS_OK && step + RECORD_HEADER_BYTES <= available; step += 8) {
        if (step == 0 ? format_stood_here(at, seed, lsn) : format_names_place(at + step, lsn + step)) {
            s->torn_bytes = step + RECORD_HEADER_BYTES;
        }
    }
    return rc;
}

/* How many bytes stand where the log ends that a write had begun to put there. */
static int measure_torn(struct scan *s, uint64_t lsn) {
    const struct scan_file *f = &s->files[s->last];
    const uint8_t *at;
    size_t available;
    int rc = scan_look(s, lsn - f->first_lsn, BATCH_RECORD_BYTES, &at, &available);
    uint64_t epoch;
    if (rc == LS_OK && format_peek_batch(at, available, lsn, &epoch) && epoch == f->header.epoch) {
        struct batch b;
        uint64_t seed = format_segment_seed(s->meta.uuid, f->first_lsn, epoch);
        bool whole = scan_batch_record(at, available, lsn, epoch, seed, &b) == FORMAT_OK;
        s->torn_bytes = whole ? b.bytes : BATCH_RECORD_BYTES;
    } else if (rc == LS_OK) {
        rc = measure_broken(s, lsn);
    }
    return rc;
}

/* What remains of a crash, or of damage, beyond the last valid header: it raises the watermark if it tells anything. */
static int look_beyond(struct scan *s) {
    size_t from = s->last == SIZE_MAX ? 0 : s->last + 1;
    for (size_t i = from; i < s->count; i++) {
        uint64_t found = 0;
        int rc = scan_search_batches(s, i, SEGMENT_HEADER_BYTES, 0, &found);
        if (rc != LS_OK) {
            return rc;
        }
        s->files[i].state = found > 0 ? SCAN_DAMAGED : SCAN_SPARE;
    }
    for (size_t i = from; i < s->count; i++) {
        const struct scan_file *f = &s->files[i];
        if (f->state == SCAN_DAMAGED && (f->first_lsn < s->watermark_lsn || s->last == SIZE_MAX)) {
            return corrupt(s, f->first_lsn, f->first_lsn, "a segment's header is not valid", f->why);
        }
    }
    return LS_OK;
}

/* The log ends in the segment before the last one, all of which was durable. */
static int end_before_last(struct scan *s, struct scan_batch *last) {
    s->end_lsn = s->files[s->last].header.prev_end_lsn;
    size_t before = s->last;
    do {
        if (before-- == 0) {
            return s->end_lsn == 0 ? LS_OK
                                   : corrupt(s, s->missing_lsn, s->missing_lsn, "a segment is missing", FORMAT_SHORT);
        }
    } while (!s->files[before].in_log);
    uint64_t end_lsn = s->end_lsn;
    enum format_result why = FORMAT_OK;
    bool only_copies = false;
    int rc = walk_to_end(s, before, &end_lsn, last, &only_copies, &why);
    if (rc == LS_OK && why != FORMAT_OK) {
        return corrupt(s, s->files[before].first_lsn, end_lsn, "a batch cannot be read", why);
    }
    return rc;
}

/*
 * The last segment has no accepted batch; or it has only copies, the work of a relocation that was cut before anything
 * relied on it. Then it is left out, and will be a spare: so a crash loop of a full store costs no space.
 */
static int leave_last_out(struct scan *s, bool only_copies, struct scan_batch *last) {
    struct scan_batch before = {.lsn = 0};
    uint64_t end_lsn = s->end_lsn;
    if (last->lsn != 0 && (!only_copies || last->batch.base_lsn >= s->files[s->last].first_lsn)) {
        return LS_OK;
    }
    int rc = end_before_last(s, &before);
    if (rc == LS_OK && last->lsn != 0 && last->batch.base_lsn > before.batch.base_lsn) {
        s->end_lsn = end_lsn;
        return LS_OK;
    }
    *last = before;
    return rc;
}

static int cut_short(const struct scan *s, const struct scan_file *f) {
    return corrupt(s, f->first_lsn, f->first_lsn + f->bytes, "a segment was cut short", FORMAT_SHORT);
}

/* End, watermark and base. The last accepted batch names the base. */
static int find_ends(struct scan *s) {
    const struct scan_file *f = &s->files[s->last];
    struct scan_batch last = {.lsn = 0};
    enum format_result why = FORMAT_OK;
    uint64_t found = 0;
    bool only_copies = true;
    int rc = walk_to_end(s, s->last, &s->end_lsn, &last, &only_copies, &why);
    uint64_t tear_lsn = s->seen_lsn = s->end_lsn;
    if (rc == LS_OK && last.lsn != 0) {
        scan_raise_watermark(s, last.batch.durable_lsn);
    }
    if (rc == LS_OK) {
        rc = scan_search_batches(s, s->last, tear_lsn - f->first_lsn, f->header.epoch, &found);
    }
    if (rc == LS_OK) {
        rc = measure_torn(s, tear_lsn);
    }
    if (rc == LS_OK) {
        rc = look_beyond(s);
    }
    if (rc == LS_OK) {
        rc = leave_last_out(s, only_copies, &last);
    }
    if (rc != LS_OK) {
        return rc;
    }
    if (tear_lsn < s->watermark_lsn) { /* an epoch's first batch names its own place as durable, far beyond end_lsn */
        if (f->bytes < s->meta.segment_size) {
            return cut_short(s, f);
        }
        uint64_t closed_in = (s->closed_lsn - 1) / s->meta.segment_size * s->meta.segment_size;
        if (s->closed_lsn == s->watermark_lsn && (why == FORMAT_OK || closed_in > f->first_lsn)) {
            return corrupt(s, closed_in, tear_lsn > closed_in ? tear_lsn : closed_in,
                           "the log ends before the place where it was closed", FORMAT_SHORT);
        }
        return corrupt(s, f->first_lsn, tear_lsn, "a batch cannot be read", why);
    }
    s->base_lsn = last.lsn != 0 ? last.batch.base_lsn : f->first_lsn;
    s->clean = last.is_close;
    return LS_OK;
}

/* The base's segment must be there, and the chain from the last one must reach it. */
static int find_base(struct scan *s) {
    for (size_t i = 0; i < s->count; i++) {
        const struct scan_file *f = &s->files[i];
        s->files[i].in_log = f->in_log && f->first_lsn >= s->base_lsn;
        if (f->in_log && f->bytes < s->meta.segment_size) { /* what it held cannot be told from a torn tail */
            return cut_short(s, f);
        }
    }
    s->first = scan_find_file(s, s->base_lsn);
    if (s->first == SIZE_MAX || !s->files[s->first].in_log) {
        uint64_t lsn = s->missing_lsn != 0 ? s->missing_lsn : s->base_lsn;
        size_t index = scan_find_file(s, lsn);
        return corrupt(s, lsn, lsn, index == SIZE_MAX ? "a segment is missing" : "a segment's header is not valid",
                       index == SIZE_MAX ? FORMAT_SHORT : s->files[index].why);
    }
    return LS_OK;
}

/* Where the log ended when it was last closed in order: what it held below that is missed. */
int scan_look_at_closed(struct scan *s) {
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
    *s = (struct scan){.v = v, .dir = dir, .meta = *meta, .known = s->known, .file = -1, .last = SIZE_MAX};
    s->window_capacity = WINDOW_BYTES < meta->segment_size ? WINDOW_BYTES : (size_t)meta->segment_size;
    s->window = aligned_alloc(BLOCK_BYTES, s->window_capacity);
    return s->window == NULL ? fail_memory() : LS_OK;
}

int scan_fail_no_segment(void) {
    return fail(LS_CORRUPT,
                "the store has no valid segment: its log is missing. Restore the segment files; nothing was "
                "changed");
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
    rc = rc == LS_OK && live == NULL ? scan_look_at_closed(s) : rc;
    rc = rc == LS_OK ? scan_find_last(s) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    /* No store has come so far: an open would begin with epoch 0, and be forgotten. */
    if (s->epoch_max == UINT64_MAX || s->moved_epoch == UINT64_MAX) {
        return fail(LS_CORRUPT,
                    "the log is damaged: a segment's header names the last epoch that there can be. Nothing "
                    "was changed; keep a copy of the directory and use `logstore verify`");
    }
    if (s->last == SIZE_MAX && live == NULL) {
        find_taken_over(s);
    }
    if (s->last == SIZE_MAX) {
        rc = live != NULL ? LS_OK : look_beyond(s);
        return rc != LS_OK ? rc : scan_fail_no_segment();
    }
    link_chain(s);
    if (live != NULL) {
        s->base_lsn = live->base_lsn;
        s->end_lsn = s->watermark_lsn = live->durable_lsn;
    } else {
        rc = find_ends(s);
    }
    if (rc == LS_OK) {
        rc = find_base(s);
    }
    if (rc == LS_OK) {
        scan_rewind(s);
        s->bytes_read = 0;
    }
    return rc;
}

/* ---- every batch ---- */

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

bool scan_goes_on(struct scan *s) {
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
    if (!scan_goes_on(s)) {
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
    if (why == FORMAT_NEWER) {
        return scan_fail_newer(s->files[s->next_file].first_lsn);
    }
    if (why != FORMAT_OK) {
        return corrupt(s, s->files[s->next_file].first_lsn, s->next_lsn, "a batch cannot be read", why);
    }
    return LS_OK;
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

int scan_read_meta(vfs *v, int dir, const char *name, struct meta *m) {
    uint8_t bytes[META_BYTES];
    int file = v->open(v, dir, name, 0);
    if (file == -ENOENT) {
        return fail(LS_NOT_A_STORE, "there is no %s in the directory: it is not a store, or not one yet", name);
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
