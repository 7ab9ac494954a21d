/* Single files and single batches of the log: reading, headers, validity. See scan_parts.h. */
#include "read/scan_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "read/damage.h"
#include "os/array.h"
#include "os/error.h"
#include "os/io.h"

/* ---- the window ---- */

static int64_t read_blocks(const struct scan *s, uint8_t *into, size_t want, uint64_t from) {
    return s->file_direct ? io_read_direct(s->v, s->file, into, want, from) : io_read(s->v, s->file, into, want, from);
}

static int open_file(struct scan *s, size_t index, bool direct) {
    if (s->file >= 0) {
        (void)s->v->close(s->v, s->file);
    }
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, s->files[index].first_lsn);
    s->file = s->v->open(s->v, s->dir, name, direct ? VFS_DIRECT : 0);
    s->file_direct = direct;
    s->file_index = index;
    s->window_bytes = 0;
    s->window_at = 0;
    if (s->file < 0) {
        int error = -s->file;
        s->file = -1;
        return error;
    }
    if (!direct) {
        (void)s->v->advise_sequential(s->v, s->file, 0, s->meta.segment_size);
    }
    return 0;
}

/* Reads the last segment past the page cache if wanted and possible, and all others through it. */
int scan_open_segment(struct scan *s, size_t index) {
    if (s->file >= 0 && s->file_index == index) {
        return LS_OK;
    }
    bool direct = (s->want_direct && index == s->last) || s->all_direct;
    int error = open_file(s, index, direct);
    if (direct) {
        s->direct = error == 0;
        if (error == EINVAL) {
            error = open_file(s, index, false);
        }
    }
    if (error != 0) {
        char name[SEGMENT_NAME_BYTES];
        format_segment_name(name, s->files[index].first_lsn);
        return fail_errno(LS_IO, error, "segment %s cannot be opened", name);
    }
    return LS_OK;
}

int scan_look(struct scan *s, uint64_t offset, size_t bytes, const uint8_t **at, size_t *available) {
    if (offset < s->window_at || offset + bytes > s->window_at + s->window_bytes) {
        uint64_t from = offset / BLOCK_BYTES * BLOCK_BYTES;
        uint64_t left = s->meta.segment_size > from ? s->meta.segment_size - from : 0;
        size_t want = left < s->window_capacity ? (size_t)left : s->window_capacity;
        int64_t got = read_blocks(s, s->window, want, from);
        if (got < 0) {
            return fail_at(LS_IO, s->files[s->file_index].first_lsn, s->files[s->file_index].first_lsn + offset,
                           "a segment cannot be read: %s", strerror((int)-got));
        }
        s->window_at = from;
        s->window_bytes = (size_t)got;
        s->bytes_read += (uint64_t)got;
    }
    uint64_t skip = offset - s->window_at;
    *available = skip < s->window_bytes ? s->window_bytes - (size_t)skip : 0;
    *at = s->window + (skip < s->window_bytes ? skip : 0);
    return LS_OK;
}

bool scan_fill_window(struct scan *s, size_t bytes) {
    uint64_t from = s->window_at + s->window_bytes;
    uint64_t left = s->meta.segment_size > from ? s->meta.segment_size - from : 0;
    size_t room = s->window_capacity - s->window_bytes, want = bytes < room ? bytes : room;
    want = (left < want ? (size_t)left : want) / BLOCK_BYTES * BLOCK_BYTES;
    int64_t got = want > 0 && from % BLOCK_BYTES == 0 ? read_blocks(s, s->window + s->window_bytes, want, from) : 0;
    if (got <= 0) {
        return false;
    }
    s->window_bytes += (size_t)got;
    s->bytes_read += (uint64_t)got;
    return true;
}

/* ---- one batch ---- */

bool scan_record(const struct scan_batch *b, uint32_t *offset, struct record *r) {
    if (*offset >= b->batch.bytes) {
        return false;
    }
    format_read_verified(b->bytes + *offset, r);
    *offset += r->length;
    return true;
}

enum format_result scan_batch_record(const uint8_t *at, size_t available, uint64_t lsn, uint64_t epoch, uint64_t seed,
                                     struct batch *b) {
    struct record r;
    enum format_result result = format_get_record(at, available, seed, lsn, &r);
    if (result == FORMAT_OK) {
        result = format_get_batch(&r, b);
    }
    if (result == FORMAT_OK && (b->epoch != epoch || b->base_lsn == 0)) {
        result = FORMAT_MALFORMED;
    }
    return result;
}

/* Verifies every record inside the batch's count and bytes. */
static enum format_result verify_batch(const uint8_t *at, uint64_t lsn, uint64_t seed,
                                       const struct stream_set *known_streams, struct batch *b, uint64_t *broken_lsn) {
    uint32_t offset = BATCH_RECORD_BYTES, count = 0;
    while (offset < b->bytes) {
        struct record r;
        enum format_result result =
            format_get_known_record(at + offset, b->bytes - offset, seed, lsn + offset, known_streams, &r);
        if (result != FORMAT_OK) {
            *broken_lsn = lsn + offset;
            return result;
        }
        if (r.type == BATCH) {
            return FORMAT_MALFORMED;
        }
        offset += r.length;
        count++;
    }
    return count == b->count ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result scan_check_batch(const uint8_t *at, size_t bytes, uint64_t lsn, uint64_t epoch, uint64_t seed,
                                    const struct stream_set *known, struct batch *b) {
    uint64_t broken_lsn;
    enum format_result why = scan_batch_record(at, bytes, lsn, epoch, seed, b);
    return why != FORMAT_OK    ? why
           : b->bytes != bytes ? FORMAT_MALFORMED
                               : verify_batch(at, lsn, seed, known, b, &broken_lsn);
}

int scan_accept_batch(struct scan *s, size_t index, uint64_t lsn, uint64_t end_lsn, struct scan_batch *b,
                      enum format_result *why) {
    const struct scan_file *f = &s->files[index];
    int rc = scan_open_segment(s, index);
    if (rc != LS_OK) {
        return rc;
    }
    const uint8_t *at;
    size_t available;
    rc = scan_look(s, lsn - f->first_lsn, BATCH_RECORD_BYTES, &at, &available);
    if (rc != LS_OK) {
        return rc;
    }
    b->seed = format_segment_seed(s->meta.uuid, f->first_lsn, f->header.epoch);
    *why = scan_batch_record(at, available, lsn, f->header.epoch, b->seed, &b->batch);
    if (*why != FORMAT_OK) {
        return LS_OK;
    }
    if (lsn + b->batch.bytes > end_lsn || b->batch.bytes > format_batch_bytes_max(s->meta.segment_size)) {
        *why = FORMAT_MALFORMED;
        return LS_OK;
    }
    rc = scan_look(s, lsn - f->first_lsn, b->batch.bytes, &at, &available);
    if (rc != LS_OK) {
        return rc;
    }
    *why = available < b->batch.bytes ? FORMAT_SHORT
                                      : verify_batch(at, lsn, b->seed, &s->known, &b->batch, &s->broken_lsn);
    b->bytes = at;
    b->lsn = lsn;
    b->first_lsn = f->first_lsn;
    if (*why == FORMAT_OK) {
        struct record r;
        uint32_t offset = BATCH_RECORD_BYTES;
        b->is_close = scan_record(b, &offset, &r) && r.type == CLOSE;
    }
    return LS_OK;
}

/* ---- files ---- */

struct listing {
    struct scan *s;
    bool no_memory;
};

static int add_file(void *context, const char *name) {
    struct listing *listing = context;
    struct scan *s = listing->s;
    uint64_t first_lsn;
    if (!format_parse_segment_name(name, &first_lsn)) {
        return 0;
    }
    if (!array_grow(&s->files, &s->capacity, s->count, 1)) {
        listing->no_memory = true;
        return 1;
    }
    s->files[s->count] = (struct scan_file){.first_lsn = first_lsn};
    s->count++;
    return 0;
}

static int by_lsn(const void *a, const void *b) {
    uint64_t x = ((const struct scan_file *)a)->first_lsn, y = ((const struct scan_file *)b)->first_lsn;
    return (x > y) - (x < y);
}

int scan_fail_newer(uint64_t first_lsn) {
    return fail_at(LS_VERSION, first_lsn, first_lsn,
                   "a segment is of a newer format version than this program knows (%d); use a newer logstore",
                   FORMAT_VERSION);
}

/* Reads the header of the open file into its entry. */
int scan_read_header(struct scan *s, size_t index) {
    struct scan_file *f = &s->files[index];
    int64_t got = read_blocks(s, s->window, SEGMENT_HEADER_BYTES, 0);
    s->window_bytes = 0;
    if (got < 0) {
        return fail_at(LS_IO, f->first_lsn, f->first_lsn, "a segment cannot be read: %s", strerror((int)-got));
    }
    f->why =
        format_get_segment_header(s->window, (size_t)got, s->meta.uuid, s->meta.segment_size, f->first_lsn, &f->header);
    bool valid = f->why == FORMAT_OK && f->first_lsn < LSN_MAX - 2 * s->meta.segment_size;
    enum found found = valid ? FOUND_HEADER : f->why == FORMAT_NEWER ? FOUND_NEWER : FOUND_BAD_HEADER;
    const struct verdict_row *row = verdict_of(found, 0);
    f->state = row->verdict == VERDICT_ACCEPTED ? SCAN_VALID : SCAN_SPARE;
    return s->permissive ? LS_OK : scan_refuse(s, row, f->first_lsn, f->first_lsn, f->why);
}

/*
 * A header that is valid for another name belongs to a file that was renamed and has no new header yet. If an open took
 * over the last epoch's segment, this header alone shows that the epoch existed.
 */
static void note_moved(struct scan *s, const struct scan_file *f) {
    const struct segment_header *h = &f->header;
    bool renamed = f->why == FORMAT_PLACE && memcmp(h->uuid, s->meta.uuid, UUID_BYTES) == 0 &&
                   h->segment_size == s->meta.segment_size && h->first_lsn < f->first_lsn;
    if (renamed && h->epoch > s->renamed_epoch) {
        s->renamed_epoch = h->epoch;
        s->renamed_lsn = h->first_lsn + h->segment_size;
    }
}

int scan_list_files(struct scan *s) {
    struct listing listing = {s, false};
    int rc = s->v->list(s->v, s->dir, add_file, &listing);
    if (listing.no_memory) {
        return fail_memory();
    }
    if (rc != 0) {
        return fail_errno(LS_IO, -rc, "the store directory cannot be listed");
    }
    if (s->count > 0) {
        qsort(s->files, s->count, sizeof *s->files, by_lsn);
    }
    for (size_t i = 0; i < s->count; i++) {
        int error = open_file(s, i, false);
        if (error != 0 && s->permissive) {
            s->files[i].state = SCAN_SPARE;
            continue;
        }
        if (error == ENOENT && s->limit_lsn != 0) {
            s->files[i].state = SCAN_SPARE; /* recycled since the listing */
            continue;
        }
        if (error != 0) {
            char name[SEGMENT_NAME_BYTES];
            format_segment_name(name, s->files[i].first_lsn);
            return fail_errno(LS_IO, error, "segment %s cannot be opened", name);
        }
        rc = scan_read_header(s, i);
        if (rc == LS_IO && s->permissive) {
            s->files[i].state = SCAN_SPARE;
            continue;
        }
        if (rc != LS_OK) {
            return rc;
        }
        note_moved(s, &s->files[i]);
        int64_t bytes = s->v->size(s->v, s->file);
        s->files[i].bytes = bytes < 0 ? s->meta.segment_size : (uint64_t)bytes;
        if (s->files[i].state == SCAN_VALID && s->files[i].header.epoch > s->epoch_max) {
            s->epoch_max = s->files[i].header.epoch;
        }
    }
    return LS_OK;
}

void scan_raise_watermark(struct scan *s, uint64_t lsn) {
    if (lsn > s->watermark_lsn) {
        s->watermark_lsn = lsn;
    }
}

/*
 * A valid batch record proves that everything below its durable_lsn was durable, even if its batch is torn. epoch 0:
 * accepts the epoch in each record, for a file whose header is not valid.
 */
int scan_search_batches(struct scan *s, size_t index, uint64_t offset, uint64_t epoch, uint64_t *found) {
    struct scan_file *f = &s->files[index];
    int rc = scan_open_segment(s, index);
    while (rc == LS_OK && offset + BATCH_RECORD_BYTES <= s->meta.segment_size) {
        const uint8_t *at;
        size_t available;
        rc = scan_look(s, offset, BATCH_RECORD_BYTES, &at, &available);
        if (rc != LS_OK || available < BATCH_RECORD_BYTES) {
            break;
        }
        size_t step = 0;
        uint64_t clear_epoch;
        while (format_find_batch(at, available, f->first_lsn + offset, &step, &clear_epoch)) {
            uint64_t lsn = f->first_lsn + offset + step;
            uint64_t as = epoch != 0 ? epoch : clear_epoch;
            uint64_t seed = format_segment_seed(s->meta.uuid, f->first_lsn, as);
            struct batch b;
            if (scan_batch_record(at + step, available - step, lsn, as, seed, &b) == FORMAT_OK) {
                bool marked = lsn >= s->mark.from_lsn && lsn < s->mark.to_lsn;
                scan_raise_watermark(s, marked && b.durable_lsn > s->mark.from_lsn ? s->mark.from_lsn : b.durable_lsn);
                (*found)++;
            }
            step += 8;
        }
        offset += step;
    }
    return rc;
}
