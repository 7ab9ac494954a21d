/* Shared by the files of lookback: windows, and digests of segments. See lookback.h. */
#ifndef LOGSTORE_LOOKBACK_PARTS_H
#define LOGSTORE_LOOKBACK_PARTS_H

#include "analysis/lookback.h"

enum {
    LOOK_WINDOWS = 24,
    LOOK_WINDOW_BYTES = 256 << 10, /* read at once, of a segment that is read to its end */
    LOOK_RECORD_BYTES = 32 << 10,  /* read at once, for single records */
    LOOK_STARTS = 1 << 16,         /* in sets of two; powers of two, for the hashes */
    LOOK_OUTCOMES = 1 << 10,
    LOOK_CHAINS = 1 << 18, /* in sets of LOOK_WAYS */
    LOOK_WAYS = 4,
};

struct window {
    const struct scan_file *file; /* NULL: none */
    uint64_t at;                  /* offset in the file */
    size_t bytes;
    size_t capacity;
    uint8_t *data;
    uint64_t used; /* time of the last use */
};

struct batch_time {
    uint64_t lsn;
    uint64_t time_us;
};

/* The times and outcomes in one segment. */
struct digest {
    struct batch_time *times; /* ascending */
    size_t time_count;
    size_t time_capacity;
    struct outcome *outcomes; /* by transaction, then LSN */
    size_t outcome_count;
    size_t outcome_capacity;
    uint64_t cut_lsn; /* a permissive reader could not read beyond this; 0: it is whole */
    bool has_times;
    bool has_outcomes;
    uint64_t used; /* time of the last use */
};

/* Between `next` and `top` a chain has dequeues and notes only. */
struct dequeues_only {
    uint64_t id;
    uint64_t top;
    uint64_t next;
};

struct lookback {
    ls_reader *reader;
    vfs *v;              /* the reader's; a copy, because the reader may be closed before this is freed */
    size_t digest_count; /* number of the reader's files; a copy for the same reason */
    uint64_t as_of_lsn;
    uint64_t floor_lsn; /* the first segment that is used */
    uint64_t clock;
    struct window windows[LOOK_WINDOWS];
    struct window *last;
    uint64_t verified_lsn; /* of the last verified record, still in `last` */
    int file;              /* the one file that is open */
    const struct scan_file *file_of;
    struct digest *digests; /* one for each of the scan's files */
    uint64_t digest_bytes;  /* of all of them */
    struct recent_start *starts;
    struct outcome *outcomes;
    struct dequeues_only *chains;
    const ls_rows_options *known; /* places that the caller knows; NULL: none */
};

static inline size_t look_slot(uint64_t id, size_t slots) {
    return (size_t)((id * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (slots - 1);
}

/*
 * The first slot of a start's set. Starts that follow each other in the log have neighbouring sets: a scan notes them in
 * that order, and most are asked for in that order. The multiplier spreads the groups of 4 KiB of the log, so that large
 * messages use all slots, too.
 */
static inline size_t look_start_set(uint64_t id) {
    enum { SETS = LOOK_STARTS / 2, SETS_OF_GROUP = 32 };
    return ((size_t)((id >> 12) * 28411 + (id >> 7) % SETS_OF_GROUP) & (SETS - 1)) * 2;
}

/* NULL: it is not remembered. */
static inline const struct recent_start *look_recent_start(const struct lookback *l, uint64_t id) {
    const struct recent_start *start = &l->starts[look_start_set(id)];
    start += start->id != id ? 1 : 0;
    return start->id == id ? start : NULL;
}

/* The segment in which an LSN of the log lies; NULL: none. */
const struct scan_file *look_segment(const struct lookback *l, uint64_t lsn);
/* Where the log's records in the segment end. */
uint64_t look_segment_end(const struct lookback *l, const struct scan_file *f);
/* `bytes` of a segment from this offset on, of which *available are there. If no window has them, at least `ahead` bytes are
   read. */
int look_bytes(struct lookback *l, const struct scan_file *f, uint64_t offset, size_t bytes, size_t ahead,
               const uint8_t **at, size_t *available);
/* True if the reader is permissive and the failure is damage: the answer is then unknown. */
static inline bool look_is_unreadable(const struct lookback *l, int rc) {
    return l->reader->permissive && (rc == LS_CORRUPT || rc == LS_IO);
}
/* The record at this LSN is invalid: damaged, or recycled while it was read. */
int look_failed(struct lookback *l, uint64_t lsn, enum format_result why);
/* lookback_digest.c: the segment's digest, with times, outcomes, or both. */
int look_digest(struct lookback *l, const struct scan_file *f, bool times, bool outcomes, struct digest **d);
void look_digests_free(struct lookback *l);

#endif
