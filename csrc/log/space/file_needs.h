/*
 * Computes how many files a log needs from plain numbers, for the log of a writer (admission.c) and for the plan of a
 * compaction of a log that is only inspected.
 */
#ifndef LOGSTORE_FILE_NEEDS_H
#define LOGSTORE_FILE_NEEDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"

enum {
    /* Room for a footer, in a batch of its own if needed, and before it for two empty batches that name a base. */
    SEGMENT_END_RESERVE = 3 * BATCH_RECORD_BYTES + FOOTER_BYTES_MAX,
    SPARES_RESERVED = 2, /* for relocation and for opening */
    /* Made ahead of need. One more may stay when a segment dies, so that it is not given back and made again at once. */
    SPARES_AHEAD = 1,
    /* Fractions of a segment are given as 1 / N. */
    ROOM_TO_WORK = 8,     /* 1/8 of a segment is kept free of live records, for the records that a drain appends */
    POOL_OF_WORK = 4,     /* 1/4 of a segment is kept from growth, for transactions that drain */
    LOG_SEGMENTS_MIN = 4, /* with up to this many files plus one, no record is moved to make the log smaller */
};

/* The live contents of a log. */
struct extent {
    uint64_t segment_size;
    uint64_t segments; /* from the base on */
    uint64_t live_bytes;
    uint64_t live_low; /* the least live bytes since the segment before the current one began; UINT64_MAX: not known */
    uint64_t largest_bytes; /* of one live record */
    uint64_t expansion;     /* bytes by which the live records grow at most once they are moved */
    uint64_t growth_asked;  /* bytes that threads wait to append, and will add when these are moved */
    uint64_t longest_asked; /* the most that one of them waits for: it may be longer than any live record */
};

struct file_needs {
    size_t spares_reserved; /* kept from appends that grow the log; computed again at each new segment */
    size_t spares_wanted; /* needed before the log grows, so that all live records, packed again, leave room to work */
    size_t files_wanted;  /* the most files that the log should have, spares included */
    uint64_t usable;      /* bytes of a segment that live records fill in the worst case */
    uint64_t gap_bytes;   /* the longest record that `usable` assumes not to fit at a segment's end */
    uint64_t live_bytes;  /* the live bytes used to compute this */
};

struct file_needs extent_needs(const struct extent *e);
uint64_t extent_pool(uint64_t segment_size); /* bytes that growth leaves for the work of transactions */
uint64_t extent_usable(uint64_t segment_size, uint64_t gap_bytes); /* as file_needs.usable */
/* A checkpoint with false contents may claim more than the log can hold; the claim counts only up to that size. */
static inline uint64_t extent_live_bytes(uint64_t live_bytes, uint64_t used_bytes) {
    return live_bytes < used_bytes ? live_bytes : used_bytes;
}
/*
 * The most spares for a log of this many segments: the required ones, and up to `ahead` more as long as the log has at
 * most files_wanted files.
 */
size_t needed_spares(const struct file_needs *needs, size_t segments, size_t ahead);

/* The bytes of files that a log must have, or be able to get, before live bytes and their expansion may grow to
   `weight`; see over_admission_limit. */
static inline uint64_t needed_bytes_for(uint64_t weight, uint64_t spares_reserved, uint64_t segment_size) {
    return spares_reserved * segment_size + weight / 4 * 5;
}

struct planned_segment {
    uint64_t first_lsn;
    uint64_t records; /* live ones, once everything appended is durable */
    uint64_t bytes;
    bool stuck; /* its records cannot be moved at present */
};

/* A log as the plan of a compaction sees it: one that serves, or one that an open of an inspected store would recover. */
struct planned_log {
    struct planned_segment *segments; /* allocated; the last is the current one, whose records do not count */
    size_t segment_count;
    size_t base_index;
    uint64_t current_bytes; /* that the current one holds */
    struct extent extent;
    struct file_needs needs;
    uint64_t kept_from_lsn; /* holds keep the files from here on; UINT64_MAX: there are none, or they are not known */
};

#endif
