/*
 * Where the log begins and ends: the chain of segments, the last accepted batch, the watermark, the base. See scan.h.
 *
 * This file collects facts. Each decision about torn and corrupt is a row of verdict.c.
 */
#include "read/scan_parts.h"

static bool is_accepted(enum found found, unsigned facts) {
    return verdict_of(found, facts)->verdict == VERDICT_ACCEPTED;
}

/*
 * Whether the file holds the header of the store's only segment, which had no record yet, and was renamed by an open
 * that lost power before it wrote the new header. Only such a file has the name that follows from the header; a spare
 * made of an earlier segment has a later name.
 */
static bool has_moved_header(const struct scan *s, const struct scan_file *f) {
    uint64_t was_lsn = f->header.first_lsn;
    return f->why == FORMAT_PLACE && f->header.epoch == s->renamed_epoch && f->header.prev_end_lsn == 0 &&
           s->renamed_lsn == was_lsn + s->meta.segment_size && f->first_lsn == scan_first_beyond(&s->meta, was_lsn);
}

void scan_find_taken_over(struct scan *s) {
    for (size_t i = 0; i < s->count; i++) {
        struct scan_file *f = &s->files[i];
        if (has_moved_header(s, f) && is_accepted(FOUND_MOVED_HEADER, s->last == SIZE_MAX ? NO_HEADER : 0)) {
            f->state = SCAN_VALID;
            s->epoch_max = s->renamed_epoch;
            s->last = i;
        }
    }
}

/*
 * Follows prev_end_lsn backwards from the last segment. Files between two segments of this chain do not belong to the log.
 * Stops at the first segment of the store, or where a file is missing, which is allowed below the base.
 */
void scan_link_chain(struct scan *s) {
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

/* Refuses the log because of the chain's segment with this first LSN: it is missing, or its header is not valid. */
static int judge_missing(const struct scan *s, uint64_t first_lsn, unsigned facts) {
    size_t index = scan_find_file(s, first_lsn);
    bool is_there = index != SIZE_MAX;
    return scan_refuse(s, verdict_of(is_there ? FOUND_BAD_HEADER : FOUND_NO_FILE, facts), first_lsn, first_lsn,
                       is_there ? s->files[index].why : FORMAT_SHORT);
}

/* A copy may be dropped: its original is in the log as long as no durable base relies on the copy. */
static bool is_copy(const struct record *r) {
    bool of_client = format_stream_of(r->type) > STREAMS_COUNTED && (r->type & TYPE_SKIPPABLE) == 0;
    bool has_flag = r->type == MESSAGE_START || r->type == MESSAGE_CHUNK || of_client;
    return (has_flag && (r->flags & FLAG_COPY) != 0) || r->type == MESSAGE_RELOCATED ||
           r->type == MESSAGE_RELOCATED_PLACED || r->type == TX_RELOCATED || r->type == FILLER;
}

/* False for an empty batch: a checkpoint may name it, and an open after a crash must find it. False for a replicated one:
   other copies may have it, and its leader counts on it. */
static bool holds_only_copies(const struct scan_batch *b) {
    struct record r;
    uint32_t offset = BATCH_RECORD_BYTES;
    bool only = b->batch.count > 0 && b->batch.index == 0;
    while (only && scan_record(b, &offset, &r)) {
        only = is_copy(&r);
    }
    return only;
}

/* Where the walk through one segment stopped. */
struct stop {
    uint64_t lsn;
    enum format_result why; /* FORMAT_OK: at the end of the segment's part of the log */
    struct scan_batch last; /* the last accepted batch; lsn 0: none */
    bool only_copies;       /* in all accepted batches */
};

/*
 * Walks one segment to its first batch that is not accepted. W is not known yet: this refuses a batch that is invalid
 * at or above W, and the caller judges the others again with all facts.
 */
static int walk_to_end(struct scan *s, size_t index, struct stop *stop) {
    const struct scan_file *f = &s->files[index];
    uint64_t limit = f->end_lsn != 0 ? f->end_lsn : f->first_lsn + s->meta.segment_size;
    *stop = (struct stop){.lsn = f->first_lsn + SEGMENT_HEADER_BYTES, .only_copies = true};
    while (stop->lsn < limit) {
        struct scan_batch b = {.lsn = 0};
        int rc = scan_accept_batch(s, index, stop->lsn, limit, &b, &stop->why);
        if (rc != LS_OK) {
            return rc;
        }
        const struct verdict_row *row = verdict_of(verdict_found(stop->why), 0);
        if (row->verdict != VERDICT_ACCEPTED) {
            return scan_refuse(s, row, f->first_lsn, stop->lsn, stop->why);
        }
        stop->last = b;
        stop->only_copies = stop->only_copies && holds_only_copies(&b);
        stop->lsn += b.batch.bytes;
    }
    return LS_OK;
}

/*
 * A damaged batch record gives no length. But no LSN is ever given twice: a record that names its own place was written
 * there in this use of the file, and so was a batch record whose header check is right for that place.
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

/* Measures the bytes of an unfinished write at the end of the log. */
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

int scan_look_beyond(struct scan *s) {
    size_t from = s->last == SIZE_MAX ? 0 : s->last + 1;
    for (size_t i = from; i < s->count; i++) {
        uint64_t found = 0;
        int rc = scan_search_batches(s, i, SEGMENT_HEADER_BYTES, 0, &found);
        if (rc != LS_OK) {
            return rc;
        }
        s->files[i].state = found > 0 ? SCAN_TRACES : SCAN_SPARE;
    }
    for (size_t i = from; i < s->count; i++) { /* only now is W known */
        const struct scan_file *f = &s->files[i];
        unsigned facts = (f->first_lsn < s->watermark_lsn ? BELOW_W : 0u) | (s->last == SIZE_MAX ? NO_HEADER : 0u);
        enum found found = f->state == SCAN_TRACES ? FOUND_TRACES : FOUND_BAD_HEADER;
        int rc = scan_refuse(s, verdict_of(found, facts), f->first_lsn, f->first_lsn, f->why);
        if (rc != LS_OK) {
            return rc;
        }
    }
    return LS_OK;
}

/* The log ends in the segment before the last one. All of that segment's part was durable. */
static int end_before_last(struct scan *s, struct scan_batch *last) {
    s->end_lsn = s->files[s->last].header.prev_end_lsn;
    size_t before = s->last;
    do {
        if (before-- == 0) {
            return s->end_lsn == 0 ? LS_OK : judge_missing(s, s->missing_lsn, IN_LOG);
        }
    } while (!s->files[before].in_log);
    struct stop stop;
    int rc = walk_to_end(s, before, &stop);
    *last = stop.last;
    return rc != LS_OK ? rc
                       : scan_refuse(s, verdict_of(verdict_found(stop.why), BEFORE_END), s->files[before].first_lsn,
                                     stop.lsn, stop.why);
}

/*
 * A last segment that holds nothing, or only the copies of a relocation that a crash interrupted, is set aside and
 * becomes a spare. So a store that is full and crashes again and again uses no more space.
 */
static int set_last_aside(struct scan *s, const struct stop *stop, struct scan_batch *last) {
    uint64_t end_lsn = s->end_lsn, base_lsn = stop->last.batch.base_lsn;
    enum found found = stop->last.lsn == 0 ? FOUND_EMPTY : stop->only_copies ? FOUND_ONLY_COPIES : FOUND_BATCH;
    if (is_accepted(found, base_lsn >= s->files[s->last].first_lsn ? RELIED_ON : 0)) {
        return LS_OK;
    }
    struct scan_batch before = {.lsn = 0};
    int rc = end_before_last(s, &before);
    if (rc == LS_OK && is_accepted(found, base_lsn > before.batch.base_lsn ? RELIED_ON : 0)) {
        s->end_lsn = end_lsn;
        return LS_OK;
    }
    *last = before;
    return rc;
}

static int refuse_cut(const struct scan *s, const struct scan_file *f, const struct verdict_row *row) {
    return scan_refuse(s, row, f->first_lsn, f->first_lsn + f->bytes, FORMAT_SHORT);
}

/* Judges the bytes behind the last accepted batch of the last segment, with every fact known: a torn tail, or damage. */
static int judge_tail(const struct scan *s, uint64_t tear_lsn, enum format_result why) {
    const struct scan_file *f = &s->files[s->last];
    uint64_t closed_in = (s->closed_lsn - 1) / s->meta.segment_size * s->meta.segment_size;
    bool closed_gives_w = s->closed_lsn == s->watermark_lsn;
    unsigned facts = 0;
    /* An epoch's first batch names its own place as durable, far beyond end_lsn. So tear_lsn decides. */
    facts |= tear_lsn < s->watermark_lsn ? BELOW_W : 0u;
    facts |= f->bytes < s->meta.segment_size ? FILE_CUT : 0u;
    facts |= closed_gives_w && (why == FORMAT_OK || closed_in > f->first_lsn) ? CLOSED_BEYOND : 0u;
    const struct verdict_row *row = verdict_of(FOUND_NO_BATCH, facts);
    if (row->reason == SEGMENT_CUT) {
        return refuse_cut(s, f, row);
    }
    if (row->reason == ENDS_TOO_EARLY) {
        return scan_refuse(s, row, closed_in, tear_lsn > closed_in ? tear_lsn : closed_in, FORMAT_SHORT);
    }
    return scan_refuse(s, row, f->first_lsn, tear_lsn, why);
}

/* Whether a segment has a batch that ends at or below lsn; then *base_lsn is what the last of them names. */
static int find_base_below(struct scan *s, size_t index, uint64_t lsn, uint64_t *base_lsn, bool *found) {
    const struct scan_file *f = &s->files[index];
    uint64_t end_lsn = f->end_lsn != 0 ? f->end_lsn : s->end_lsn, at_lsn = f->first_lsn + SEGMENT_HEADER_BYTES;
    int rc = LS_OK;
    *found = false;
    while (rc == LS_OK && at_lsn < end_lsn) {
        struct scan_batch b;
        enum format_result why;
        rc = scan_accept_batch(s, index, at_lsn, end_lsn, &b, &why);
        if (rc != LS_OK || why != FORMAT_OK || at_lsn + b.batch.bytes > lsn) {
            break; /* one that is damaged is refused by scan_next, unless it lies below the base */
        }
        *base_lsn = b.batch.base_lsn;
        *found = true;
        at_lsn += b.batch.bytes;
    }
    return rc;
}

/*
 * The newest batch has an index: another leader's header may cut what no majority is known to have. So the base is that of the
 * newest batch below the LSN that is known durable, and a CLOSE makes nothing clean.
 */
static int end_replicated(struct scan *s, const struct batch *newest, bool *said) {
    s->index = newest->index;
    s->term = newest->epoch;
    s->durable_lsn = s->all_durable ? s->end_lsn : newest->known_durable_lsn;
    s->clean = false;
    bool found = s->all_durable; /* then the base of the newest batch is the one */
    int rc = LS_OK;
    for (size_t i = s->last + 1; rc == LS_OK && !found && i-- > 0;) {
        uint64_t base_lsn = 0;
        if (s->files[i].in_log && s->files[i].first_lsn < s->durable_lsn) {
            rc = find_base_below(s, i, s->durable_lsn, &base_lsn, &found);
            s->base_lsn = found && base_lsn < s->base_lsn ? base_lsn : s->base_lsn;
        }
    }
    *said = found;
    return rc;
}

int scan_find_said_base(struct scan *s, bool *said) {
    struct scan_file *f = &s->files[s->last];
    uint64_t kept_lsn = f->end_lsn;
    struct stop stop;
    f->end_lsn = s->end_lsn;
    int rc = walk_to_end(s, s->last, &stop);
    rc = rc == LS_OK ? scan_refuse(s, verdict_of(verdict_found(stop.why), BEFORE_END), f->first_lsn, stop.lsn, stop.why)
                     : rc;
    *said = false;
    s->index = s->term = s->durable_lsn = 0;
    if (rc == LS_OK && stop.last.lsn != 0) {
        s->base_lsn = stop.last.batch.base_lsn;
        rc = stop.last.batch.index != 0 ? end_replicated(s, &stop.last.batch, said) : LS_OK;
    }
    f->end_lsn = kept_lsn;
    return rc;
}

int scan_find_ends(struct scan *s) {
    const struct scan_file *f = &s->files[s->last];
    struct stop stop;
    uint64_t found = 0;
    int rc = walk_to_end(s, s->last, &stop);
    uint64_t tear_lsn = s->seen_lsn = s->end_lsn = stop.lsn;
    if (rc == LS_OK && stop.last.lsn != 0) {
        scan_raise_watermark(s, stop.last.batch.durable_lsn);
    }
    if (rc == LS_OK) {
        rc = scan_search_batches(s, s->last, tear_lsn - f->first_lsn, f->header.epoch, &found);
    }
    if (rc == LS_OK) {
        rc = measure_torn(s, tear_lsn);
    }
    if (rc == LS_OK) {
        rc = scan_look_beyond(s);
    }
    struct scan_batch last = stop.last;
    if (rc == LS_OK) {
        rc = set_last_aside(s, &stop, &last);
    }
    if (rc == LS_OK) {
        rc = judge_tail(s, tear_lsn, stop.why);
    }
    if (rc == LS_OK) {
        s->base_lsn = last.lsn != 0 ? last.batch.base_lsn : f->first_lsn;
        s->clean = last.is_close;
        if (last.lsn != 0 && last.batch.index != 0) {
            bool said;
            rc = end_replicated(s, &last.batch, &said);
        }
    }
    return rc;
}

int scan_find_base(struct scan *s) {
    for (size_t i = 0; i < s->count; i++) {
        struct scan_file *f = &s->files[i];
        f->in_log = f->in_log && f->first_lsn >= s->base_lsn;
        unsigned facts = (f->in_log ? IN_LOG : 0u) | (f->bytes < s->meta.segment_size ? FILE_CUT : 0u);
        int rc = refuse_cut(s, f, verdict_of(FOUND_HEADER, facts));
        if (rc != LS_OK) {
            return rc;
        }
    }
    s->first = scan_find_file(s, s->base_lsn);
    bool reached = s->first != SIZE_MAX && s->files[s->first].in_log;
    if (reached && s->missing_lsn == 0) {
        return LS_OK;
    }
    return judge_missing(s, s->missing_lsn != 0 ? s->missing_lsn : s->base_lsn, reached ? 0 : IN_LOG);
}
