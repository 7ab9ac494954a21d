/*
 * Random access to a log that is read front to back: a record by its LSN, the time of a batch, the outcome of a
 * transaction, the enqueue of a dequeued place. Every record is verified before it is used.
 *
 * Windows onto the files and digests of whole segments are kept within limits; nothing grows with the log. So any part
 * of a log can be read alone, with the same answers.
 */
#ifndef LOGSTORE_LOOKBACK_H
#define LOGSTORE_LOOKBACK_H

#include "read/reader.h"

enum look_outcome { LOOK_COMMITTED, LOOK_ROLLED_BACK, LOOK_PREPARED, LOOK_OPEN, LOOK_UNKNOWN };

/* LOOK_UNKNOWN: a permissive reader misses a segment that may hold the outcome. */

struct outcome {
    uint64_t tx_id;
    uint64_t lsn; /* of the record that decided it; 0 if open or prepared */
    uint64_t time_us;
    enum look_outcome what;
};

/* One of the last start records that were read whose enqueues took effect with them. */
struct recent_start {
    uint64_t id;
    uint64_t time_us;
};

/* A place that a record ends. */
struct place_wanted {
    uint64_t tx_id; /* of that record; 0: none */
    uint32_t queue_id;
};

struct place_found {
    uint64_t lsn; /* where it became visible; 0: unknown */
    uint64_t time_us;
};

/* The content in a start or a chunk. */
struct content_found {
    uint64_t offset; /* in the content; of a start 0 */
    const uint8_t *bytes;
    uint32_t count;
};

struct lookback;

/* Answers as of as_of_lsn, at most the end of the reader's log. NULL: no memory. */
struct lookback *lookback_new(ls_reader *reader, uint64_t as_of_lsn);
void lookback_free(struct lookback *l);

/* Takes known places from the caller. The options must live as long as `l`. */
void lookback_know(struct lookback *l, const ls_rows_options *options);

/* Remembers a start record with inline enqueues and without a transaction: its dequeue is likely to follow soon. */
void lookback_passed(struct lookback *l, const struct recent_start *start);

/* The record at this LSN, valid until the next call. LS_END: there is none, or it was recycled. */
int lookback_record(struct lookback *l, uint64_t lsn, struct record *r);
/* Whether the segment with this LSN is there. */
bool lookback_has(const struct lookback *l, uint64_t lsn);
/* The content in this record of a chain, a start or a chunk; valid until the next call. LS_END as above. */
int lookback_content(struct lookback *l, uint64_t id, uint64_t lsn, struct content_found *found);
/* The time of the batch that holds this LSN; 0: unknown. */
int lookback_time(struct lookback *l, uint64_t lsn, uint64_t *time_us);
/* The outcome of a transaction that has a record at from_lsn. */
int lookback_outcome(struct lookback *l, uint64_t tx_id, uint64_t from_lsn, struct outcome *o);
/* Where the place that this dequeue, or this move, ends became visible. */
int lookback_enqueue(struct lookback *l, const struct record *dequeue, const struct place_wanted *wanted,
                     struct place_found *found);

#endif
