/*
 * Looking elsewhere in a log while it is read front to back: at a record by its LSN, at the time of a batch, at what became
 * of a transaction, at the enqueue that a dequeue ends. Whatever is told was verified where it stands.
 *
 * It keeps windows onto the files and what it learnt of whole segments, within limits, and nothing that grows with the log:
 * so any part of a log can be read by itself, with the same answers.
 */
#ifndef LOGSTORE_LOOKBACK_H
#define LOGSTORE_LOOKBACK_H

#include "read/reader.h"

enum look_outcome { LOOK_COMMITTED, LOOK_ROLLED_BACK, LOOK_PREPARED, LOOK_OPEN, LOOK_UNKNOWN };

/* LOOK_UNKNOWN: a permissive reader lacks what may have decided it. */

struct outcome {
    uint64_t tx_id;
    uint64_t lsn; /* of the record that decided it, as TX_COMMIT; 0 if open or prepared */
    uint64_t time_us;
    enum look_outcome what;
};

/* What is known of a message's start record: one of the last that passed. */
struct recent_start {
    uint64_t id;
    uint64_t tx_id;
    uint64_t time_us;
};

struct place_found {
    uint64_t lsn; /* where it became visible; 0: the log does not tell */
    uint64_t time_us;
};

struct lookback;

/* Up to as_of_lsn (at most the end of what the reader reads). NULL: no memory. */
struct lookback *lookback_new(ls_reader *reader, uint64_t as_of_lsn);
void lookback_free(struct lookback *l);

/* Places that are known from elsewhere: what the options point to is used as long as this is. */
void lookback_know(struct lookback *l, const ls_rows_options *options);

/* A start record with inline enqueues went by: its dequeue is likely to follow soon. */
void lookback_passed(struct lookback *l, const struct recent_start *start);

/* The record at this LSN, valid until the next call; LS_END: the log has none there (any more). */
int lookback_record(struct lookback *l, uint64_t lsn, struct record *r);
/* The time of the batch that holds this LSN; 0: the log does not tell. */
int lookback_time(struct lookback *l, uint64_t lsn, uint64_t *time_us);
/* What became of a transaction that a record at from_lsn is part of. */
int lookback_outcome(struct lookback *l, uint64_t tx_id, uint64_t from_lsn, struct outcome *o);
/* Where the place became visible that this dequeue ends. */
int lookback_enqueue(struct lookback *l, const struct record *dequeue, uint32_t queue_id, struct place_found *found);

#endif
