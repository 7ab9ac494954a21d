/*
 * Reads a log without opening it: while a writer has it open, or after a close or a crash. It writes nothing, reads
 * only durable bytes, and holds the lock only for a moment, to see whether a writer lives.
 *
 * With a writer, the hint gives the end and the base. A segment that the base passes while it is read may be recycled.
 * Its batches then fail to validate; the reader reads the hint again and returns LS_RECYCLED. It never reports
 * corruption then, and never returns bytes of the file's next use.
 *
 * Without a writer the log is searched for its end, unless the caller knows one (scan_known_end.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "os/error.h"
#include "os/io.h"
#include "read/reader.h"

enum { OPEN_TRIES = 20, HINT_TRIES = 50, PAUSE_NS = 2 * 1000 * 1000 };

static void pause_shortly(void) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    (void)nanosleep(&pause, NULL);
}

/* Whether a writer holds the lock. */
static int look_for_writer(ls_reader *reader) {
    vfs *v = reader->v;
    reader->live = false;
    int file = v->open(v, reader->dir, "LOCK", 0);
    if (file < 0) {
        return file == -ENOENT ? LS_OK : fail_errno(LS_IO, -file, "LOCK cannot be opened");
    }
    int rc = v->lock(v, file, 0);
    (void)v->close(v, file);
    if (rc != 0 && rc != -EWOULDBLOCK) {
        return fail_errno(LS_IO, -rc, "LOCK cannot be looked at");
    }
    reader->live = rc == -EWOULDBLOCK;
    return LS_OK;
}

/* For a reader that found no writer at first. */
static bool has_writer_now(ls_reader *reader) {
    bool has_writer = look_for_writer(reader) != LS_OK || reader->live;
    reader->live = false;
    return has_writer;
}

/* The writer rewrites the hint in place, so a torn one is read again. */
static bool read_hint(ls_reader *reader, struct hint *h) {
    vfs *v = reader->v;
    for (int i = 0; i < HINT_TRIES; i++) {
        uint8_t bytes[HINT_BYTES];
        int file = v->open(v, reader->dir, "HINT", 0);
        if (file >= 0) {
            int64_t got = io_read(v, file, bytes, sizeof bytes, 0);
            (void)v->close(v, file);
            if (got == HINT_BYTES && format_get_hint(bytes, sizeof bytes, h) == FORMAT_OK &&
                memcmp(h->uuid, reader->meta.uuid, UUID_BYTES) == 0) {
                return true;
            }
        }
        if (!reader->live && !has_writer_now(reader)) {
            return false; /* without a writer it stays torn */
        }
        pause_shortly();
    }
    return false;
}

/* Reads the header of the segment with this first LSN: the bytes read, or -errno. *why is FORMAT_OK if it is valid. */
static int64_t read_header(const ls_reader *reader, uint64_t first_lsn, struct segment_header *header,
                           enum format_result *why) {
    char name[SEGMENT_NAME_BYTES];
    uint8_t bytes[SEGMENT_HEADER_BYTES];
    format_segment_name(name, first_lsn);
    int file = reader->v->open(reader->v, reader->dir, name, 0);
    if (file < 0) {
        return file;
    }
    int64_t got = io_read(reader->v, file, bytes, sizeof bytes, 0);
    (void)reader->v->close(reader->v, file);
    if (got >= 0) {
        *why = format_get_segment_header(bytes, (size_t)got, reader->meta.uuid, reader->meta.segment_size, first_lsn,
                                         header);
    }
    return got;
}

struct next_segment {
    uint64_t from_lsn;
    uint64_t first_lsn;
};

static int note_next(void *context, const char *name) {
    struct next_segment *next = context;
    uint64_t first_lsn;
    if (format_parse_segment_name(name, &first_lsn) && first_lsn >= next->from_lsn && first_lsn < next->first_lsn) {
        next->first_lsn = first_lsn;
    }
    return 0;
}

/*
 * First LSN of the segment that holds the kept LSN. If the log ended at or below that LSN and a later epoch began above
 * it, there may be no such segment; then returns the next one. Spares of a copy that follows may lie between.
 */
static uint64_t find_kept_segment(const ls_reader *reader) {
    uint64_t size = reader->meta.segment_size, from_lsn = reader->keep_lsn / size * size;
    struct next_segment next = {from_lsn, UINT64_MAX};
    while (reader->v->list(reader->v, reader->dir, note_next, &next) == 0 && next.first_lsn != UINT64_MAX) {
        struct segment_header header;
        enum format_result why = FORMAT_SHORT;
        if (next.first_lsn == from_lsn) {
            return from_lsn;
        }
        if (read_header(reader, next.first_lsn, &header, &why) >= 0 && why == FORMAT_OK) {
            return header.prev_end_lsn <= reader->keep_lsn ? next.first_lsn : from_lsn;
        }
        next = (struct next_segment){next.first_lsn + size, UINT64_MAX};
    }
    return from_lsn;
}

/* If the base has passed the hold's LSN, the log begins at the hold. */
static void begin_at_hold(const ls_reader *reader, struct hint *h) {
    if (reader->keep_lsn != 0 && reader->keep_lsn < h->base_lsn) {
        h->base_lsn = find_kept_segment(reader);
    }
}

/*
 * A segment below the base may have been removed or reused. If a hold keeps it, it was recycled only if its file is
 * gone or has another header; any other unreadable part of it is damage.
 */
static bool was_recycled(const ls_reader *reader, uint64_t lsn, uint64_t base_lsn) {
    if (base_lsn <= lsn || reader->keep_lsn == 0) {
        return base_lsn > lsn;
    }
    struct segment_header header;
    enum format_result why = FORMAT_SHORT;
    int64_t got = read_header(reader, lsn / reader->meta.segment_size * reader->meta.segment_size, &header, &why);
    return got < 0 ? got == -ENOENT : why != FORMAT_OK;
}

static int fail_recycled(const ls_reader *reader, uint64_t base_lsn) {
    if (reader->keep_lsn != 0) {
        return fail(
            LS_RECYCLED,
            "the log below LSN %llu was recycled while it was read; begin again: from LSN %llu on no hold keeps it",
            (unsigned long long)base_lsn, (unsigned long long)reader->keep_lsn);
    }
    return fail(LS_RECYCLED, "the log below LSN %llu was recycled while it was read; begin again, or take a hold first",
                (unsigned long long)base_lsn);
}

static int open_scan(ls_reader *reader, const struct hint *live) {
    struct scan *s = &reader->scan;
    if (!s->permissive) {
        return scan_open(s, reader->v, reader->dir, &reader->meta, false, live);
    }
    struct hint h;
    bool has_hint = live == NULL && read_hint(reader, &h);
    return scan_open_permissive(s, reader->v, reader->dir, &reader->meta, live, has_hint ? &h : NULL);
}

/* Without a writer only the scan finds the end. Then the log is scanned again from the hold, as if there were a writer. */
static int begin_again_at_hold(ls_reader *reader) {
    struct scan *s = &reader->scan;
    const struct scan found = *s;
    struct hint h = {.base_lsn = found.base_lsn, .durable_lsn = found.end_lsn};
    begin_at_hold(reader, &h);
    scan_close(s);
    int rc = open_scan(reader, &h);
    s->watermark_lsn = found.watermark_lsn;
    s->torn_bytes = found.torn_bytes;
    s->clean = found.clean;
    s->index = found.index;
    s->term = found.term;
    s->durable_lsn = found.durable_lsn;
    ls_lsn_range missing;
    if (rc == LS_OK && s->permissive && scan_missing(s, &missing, 1) > 0 && missing.first_lsn < found.base_lsn) {
        return was_recycled(reader, missing.first_lsn, found.base_lsn) ? fail_recycled(reader, found.base_lsn) : LS_OK;
    }
    if (rc == LS_CORRUPT) {
        ls_error kept = *ls_last_error();
        rc = kept.lsn < found.base_lsn && was_recycled(reader, kept.lsn, found.base_lsn)
                 ? fail_recycled(reader, found.base_lsn)
                 : fail_again(&kept);
    }
    return rc;
}

/* How much is left of the log that ended at the known end for an earlier reader. */
static uint64_t kept_end(const ls_reader *reader, const struct scan *s) {
    uint64_t kept_lsn = scan_kept_end(s, reader->known_end_lsn);
    return s->end_lsn < kept_lsn ? s->end_lsn : kept_lsn;
}

static int fail_ends_earlier(const ls_reader *reader, const struct scan *s, bool live) {
    bool taken_over = scan_kept_end(s, reader->known_end_lsn) == reader->known_end_lsn;
    return fail(LS_RECYCLED, "the log ends at LSN %llu, and ended at LSN %llu for an earlier reader: %s; begin again",
                (unsigned long long)kept_end(reader, s), (unsigned long long)reader->known_end_lsn,
                live && taken_over ? "its writer has not said yet that the rest is durable"
                                   : "a crash has taken the rest, which was not forced, or held only copies");
}

/*
 * The log that a search finds ends no later than the known end, as far as this reader is concerned. No batch ends at the
 * first position of a segment: there stood a writer that had written nothing. All below was durable then, and the segment
 * may be set aside.
 */
static int stop_at_known(ls_reader *reader) {
    struct scan *s = &reader->scan;
    uint64_t kept_lsn = kept_end(reader, s);
    bool was_empty = reader->known_end_lsn % reader->meta.segment_size == SEGMENT_HEADER_BYTES;
    if (kept_lsn < reader->known_end_lsn && !was_empty) {
        return fail_ends_earlier(reader, s, reader->live);
    }
    if (kept_lsn < s->end_lsn) {
        scan_stop_at(s, kept_lsn);
    }
    return LS_OK;
}

static int try_open(ls_reader *reader) {
    int rc = look_for_writer(reader);
    if (rc == LS_OK && reader->live && !read_hint(reader, &reader->hint)) {
        return fail(LS_LOCKED, "the store is being opened by its writer, and has no readable hint yet; try again");
    }
    if (rc == LS_OK && !reader->live && reader->known_end_lsn != 0) {
        if (scan_open_known(&reader->scan, reader->v, reader->dir, &reader->meta, find_kept_segment(reader),
                            reader->known_end_lsn)) {
            return LS_OK;
        }
        scan_close(&reader->scan);
    }
    if (rc == LS_OK) {
        struct hint h = reader->hint;
        begin_at_hold(reader, &h);
        rc = open_scan(reader, reader->live ? &h : NULL);
    }
    if (rc == LS_OK && reader->scan.index != 0 && !reader->undurable) {
        scan_stop_at(&reader->scan, reader->scan.durable_lsn);
    }
    if (rc == LS_OK && !reader->live && reader->keep_lsn != 0 && reader->keep_lsn < reader->scan.base_lsn) {
        rc = begin_again_at_hold(reader);
    }
    return rc == LS_OK && reader->known_end_lsn != 0 ? stop_at_known(reader) : rc;
}

/* A writer may open, close, or recycle segments meanwhile; then the result is not valid, and the reader tries again. */
static bool has_writer_changed(ls_reader *reader) {
    bool was_live = reader->live;
    struct hint before = reader->hint, now;
    if (look_for_writer(reader) != LS_OK || (!was_live && !reader->live)) {
        return false;
    }
    if (!was_live || !reader->live) {
        return true;
    }
    return !read_hint(reader, &now) || now.base_lsn != before.base_lsn || now.epoch != before.epoch;
}

/*
 * Tries again while a writer changes the segments. If every try fails this way, the result is LS_RECYCLED, not damage.
 */
static int open_patiently(ls_reader *reader) {
    int rc = try_open(reader);
    for (int i = 0; rc == LS_CORRUPT || rc == LS_IO; i++) {
        ls_error kept = *ls_last_error();
        if (!has_writer_changed(reader)) {
            return reader->keep_lsn != 0 && rc == LS_CORRUPT && reader->live && kept.lsn < reader->hint.base_lsn &&
                           was_recycled(reader, kept.lsn, reader->hint.base_lsn)
                       ? fail_recycled(reader, reader->hint.base_lsn)
                       : fail_again(&kept);
        }
        if (i == OPEN_TRIES) {
            return fail_recycled(reader, reader->hint.base_lsn);
        }
        scan_close(&reader->scan);
        rc = try_open(reader);
    }
    return rc;
}

/* If a writer recycles segments, a missing one is not damage. */
static int open_permissively(ls_reader *reader) {
    ls_error strict = *ls_last_error();
    for (int i = 0; i <= OPEN_TRIES; i++) {
        scan_close(&reader->scan);
        reader->scan.permissive = true;
        int rc = try_open(reader);
        ls_error kept = *ls_last_error();
        ls_lsn_range missing = {.first_lsn = 0};
        if (rc == LS_NO_MEMORY || (rc == LS_OK && scan_missing(&reader->scan, &missing, 1) == 0)) {
            return rc;
        }
        if (!has_writer_changed(reader)) {
            bool recycled =
                rc == LS_OK && reader->live && was_recycled(reader, missing.first_lsn, reader->hint.base_lsn);
            return recycled      ? fail_recycled(reader, reader->hint.base_lsn)
                   : rc == LS_OK ? LS_OK
                                 : fail_again(rc == LS_CORRUPT ? &strict : &kept);
        }
    }
    return fail_recycled(reader, reader->hint.base_lsn);
}

struct wish {
    struct stream_set known;
    uint64_t keep_lsn, known_end_lsn, from_lsn;
    bool permissive, undurable;
};

static int open_reader(vfs *system, const char *store_dir, const struct wish *wish, ls_reader **reader) {
    *reader = NULL;
    ls_reader *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return fail_memory();
    }
    made->v = system != NULL ? system : vfs_posix();
    made->keep_lsn = wish->keep_lsn;
    made->known_end_lsn = wish->known_end_lsn;
    made->permissive = wish->permissive;
    made->undurable = wish->undurable;
    made->scan.known = wish->known;
    made->scan.file = -1;
    made->dir = made->v->open_dir(made->v, store_dir);
    int rc = LS_OK;
    if (made->dir < 0) {
        rc = fail_errno(made->dir == -ENOENT || made->dir == -ENOTDIR ? LS_NOT_A_STORE : LS_IO, -made->dir,
                        "the store directory %s cannot be opened", store_dir);
    }
    rc = rc == LS_OK ? scan_read_meta(made->v, made->dir, "META", &made->meta) : rc;
    if (rc == LS_OK) {
        rc = open_patiently(made);
        rc = wish->permissive && (rc == LS_CORRUPT || rc == LS_IO || rc == LS_VERSION) ? open_permissively(made) : rc;
    }
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        ls_reader_close(made);
        return fail_again(&kept);
    }
    scan_seek(&made->scan, wish->from_lsn);
    *reader = made;
    return LS_OK;
}

int reader_open_kept(vfs *v, const char *store_dir, uint64_t keep_lsn, uint64_t from_lsn, ls_reader **reader) {
    return open_reader(v, store_dir, &(struct wish){.keep_lsn = keep_lsn, .from_lsn = from_lsn}, reader);
}

int reader_open_known(vfs *v, const char *store_dir, const struct stream_set *known, bool undurable,
                      ls_reader **reader) {
    return open_reader(v, store_dir, &(struct wish){.known = *known, .undurable = undurable}, reader);
}

int ls_reader_open(vfs *system, const char *store_dir, uint64_t from_lsn, ls_reader **reader) {
    return open_reader(system, store_dir, &(struct wish){.from_lsn = from_lsn}, reader);
}

int ls_reader_open_undurable(vfs *system, const char *store_dir, uint64_t from_lsn, ls_reader **reader) {
    return open_reader(system, store_dir, &(struct wish){.from_lsn = from_lsn, .undurable = true}, reader);
}

int ls_reader_open_kept(vfs *system, const char *store_dir, uint64_t keep_lsn, uint64_t end_lsn, uint64_t from_lsn,
                        ls_reader **reader) {
    *reader = NULL;
    if (keep_lsn == 0 || keep_lsn > LSN_MAX) {
        return fail(LS_OPTION, "keep_lsn is 1 to %llu", (unsigned long long)LSN_MAX);
    }
    if (end_lsn > LSN_MAX) {
        return fail(LS_OPTION, "end_lsn is at most %llu", (unsigned long long)LSN_MAX);
    }
    const struct wish wish = {.keep_lsn = keep_lsn, .known_end_lsn = end_lsn, .from_lsn = from_lsn};
    return open_reader(system, store_dir, &wish, reader);
}

int ls_reader_open_permissive(vfs *system, const char *store_dir, uint64_t keep_lsn, uint64_t from_lsn,
                              ls_reader **reader) {
    *reader = NULL;
    if (keep_lsn > LSN_MAX) {
        return fail(LS_OPTION, "keep_lsn is at most %llu", (unsigned long long)LSN_MAX);
    }
    const struct wish wish = {.keep_lsn = keep_lsn, .from_lsn = from_lsn, .permissive = true};
    return open_reader(system, store_dir, &wish, reader);
}

int ls_reader_missing(const ls_reader *reader, ls_lsn_range *into, size_t n, size_t *count) {
    *count = scan_missing(&reader->scan, into, n);
    return LS_OK;
}

void ls_reader_describe(const ls_reader *reader, ls_reader_info *info) {
    const struct scan *s = &reader->scan;
    *info = (ls_reader_info){
        .segment_size = reader->meta.segment_size,
        .max_undurable_bytes = reader->meta.max_undurable_bytes,
        .base_lsn = s->base_lsn,
        .end_lsn = s->end_lsn,
        .seen_lsn = s->seen_lsn > s->end_lsn ? s->seen_lsn : s->end_lsn,
        .watermark_lsn = s->watermark_lsn,
        .epoch = s->epoch_max,
        .log_bytes = s->count * reader->meta.segment_size,
        .torn_bytes = s->torn_bytes,
        .live = reader->live,
        .clean = s->clean,
        .index = s->index,
        .term = s->term,
        .known_durable_lsn = s->durable_lsn,
    };
    memcpy(info->uuid, reader->meta.uuid, UUID_BYTES);
    for (size_t i = 0; i < s->count; i++) {
        info->segments += s->files[i].in_log ? 1 : 0;
        info->spares += s->files[i].in_log ? 0 : 1;
    }
}

int ls_reader_segments(const ls_reader *reader, ls_segment_info *into, size_t n, size_t *count) {
    const struct scan *s = &reader->scan;
    *count = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct scan_file *f = &s->files[i];
        if (!f->in_log) {
            continue;
        }
        if (*count < n) {
            into[*count] = (ls_segment_info){
                .first_lsn = f->first_lsn,
                .epoch = f->header.epoch,
                .end_lsn = f->end_lsn != 0 ? f->end_lsn : s->end_lsn,
                .current = i == s->last,
            };
        }
        (*count)++;
    }
    return LS_OK;
}

/*
 * The reader's end was not searched for: what would one that searches have said at this LSN? It cannot say more than was
 * said if it can read the batch, unless the batch goes past the known end.
 */
static int judge_by_search(const ls_reader *reader, uint64_t lsn, const ls_error *said) {
    ls_reader searched = {.v = reader->v, .dir = reader->dir, .meta = reader->meta, .keep_lsn = reader->keep_lsn};
    struct scan *s = &searched.scan;
    s->known = reader->scan.known;
    s->file = -1;
    int rc = open_patiently(&searched);
    if (rc == LS_OK && lsn >= kept_end(reader, s)) {
        rc = fail_ends_earlier(reader, s, searched.live);
    } else if (rc == LS_OK) {
        struct scan_batch b;
        scan_seek(s, lsn);
        while (rc == LS_OK && s->next_lsn <= lsn) {
            rc = scan_next(s, &b);
        }
    }
    ls_error found = *ls_last_error();
    uint64_t end_lsn = s->next_lsn;
    scan_close(s);
    if (rc != LS_OK && rc != LS_END) {
        return fail_again(&found);
    }
    return end_lsn <= reader->known_end_lsn
               ? fail_again(said)
               : fail(LS_OPTION,
                      "end_lsn is %llu, where no batch ends: it is what an earlier reader of this log found. If one "
                      "found it, the store was restored or made again since: begin again",
                      (unsigned long long)reader->known_end_lsn);
}

int reader_judge(ls_reader *reader, int rc, uint64_t lsn) {
    ls_error kept = *ls_last_error();
    struct hint now;
    bool hinted = read_hint(reader, &now);
    if (!reader->live) { /* only a writer of a later epoch can have recycled anything */
        hinted = hinted && now.epoch > reader->scan.epoch_max;
    } else if (rc == LS_CORRUPT && !hinted) {
        return fail(LS_LOCKED,
                    "the writer's hint cannot be read, so that damage at LSN %llu cannot be told from "
                    "recycling; try again",
                    (unsigned long long)lsn);
    }
    if (reader->live && hinted && now.epoch != reader->hint.epoch) {
        return fail(LS_RECYCLED, "another writer opened the store while its log was read; begin again");
    }
    if (hinted && was_recycled(reader, lsn, now.base_lsn)) {
        return fail_recycled(reader, now.base_lsn);
    }
    return rc == LS_CORRUPT && reader->known_end_lsn != 0 ? judge_by_search(reader, lsn, &kept) : fail_again(&kept);
}

int reader_next(ls_reader *reader, struct scan_batch *b) {
    for (;;) {
        int rc = scan_next(&reader->scan, b);
        rc = rc == LS_CORRUPT || rc == LS_IO ? reader_judge(reader, rc, reader->scan.next_lsn) : rc;
        if (!reader->permissive || (rc != LS_CORRUPT && rc != LS_IO)) {
            return rc;
        }
        scan_skip_segment(&reader->scan);
    }
}

int ls_reader_next(ls_reader *reader, ls_batch *batch) {
    struct scan_batch b;
    int rc = reader_next(reader, &b);
    if (rc == LS_OK) {
        *batch = (ls_batch){
            .bytes = b.bytes, .size = b.batch.bytes, .lsn = b.lsn, .epoch = b.batch.epoch, .first_lsn = b.first_lsn};
    }
    return rc;
}

void ls_reader_past_cache(ls_reader *reader) {
    reader->scan.all_direct = true;
    reader->scan.file_index = SIZE_MAX; /* the open file is read through the cache */
}

int ls_reader_skim(ls_reader *reader, uint64_t bytes, uint64_t *lsn) {
    int rc = LS_OK;
    for (uint64_t done = 0; rc == LS_OK && done < bytes;) {
        struct scan_batch b;
        rc = reader_next(reader, &b);
        done += rc == LS_OK ? b.batch.bytes : 0;
    }
    *lsn = reader->scan.next_lsn;
    return rc;
}

void ls_reader_close(ls_reader *reader) {
    if (reader == NULL) {
        return;
    }
    scan_close(&reader->scan);
    if (reader->dir >= 0) {
        (void)reader->v->close(reader->v, reader->dir);
    }
    free(reader);
}
