/*
 * Inspection: the state of a log, without opening it. It takes no lock and writes nothing. It fills a struct state that
 * the caller owns, and does not depend on the store or on the log that a writer uses.
 *
 * While a writer runs, the state is the durable one at the start of the inspection; after a close or a crash it is the
 * one that an open would recover. The log is read in steps, so that the caller can show progress, limit the rate, or
 * stop.
 */
#ifndef LOGSTORE_INSPECT_H
#define LOGSTORE_INSPECT_H

#include "inspect/tail.h"
#include "read/reader.h"
#include "replay/replay.h"

/* Rules that a sound log keeps, although no replay depends on them. */
struct checks {
    uint64_t first_lsn; /* of the segment being read */
    uint32_t type_counts[TYPES_COUNTED];
    uint64_t last_lsn;   /* of the newest record that is no batch record */
    uint64_t before_lsn; /* of the newest record */
    uint64_t durable_lsn;
    uint64_t base_lsn;
    uint64_t copied_id; /* of the chain that is being copied */
    uint64_t copied_lsn;
    uint64_t footers;
};

struct inspection {
    ls_reader *reader;
    struct state *state;
    struct replay replay;
    struct checks checks;
    size_t base_index; /* the first of the state's segments that is needed */
    int flags;
    bool finished;   /* read to the end, and settled */
    bool taken_over; /* take_over has repeated what the writer's open did to older work */
    int result;      /* of the first failure, which every later step repeats */
    ls_error failure;
    uint64_t staged;
    uint64_t stated;
    uint32_t queue_id_max;
    uint64_t start_us;
};

/* The state is new. On failure *made is NULL. */
int inspection_open(vfs *v, const char *store_dir, int flags, struct state *state, struct inspection **made);
/* As ls_inspect_step. */
int inspection_step(struct inspection *i, uint64_t bytes, uint64_t *lsn);
void inspection_free(struct inspection *i); /* NULL is allowed; the caller keeps the state */

/* ---- answers.c: after the last step ---- */

void inspection_describe(const struct inspection *i, ls_inspection *into);
/* The base that a writer would name: the first segment that is needed. */
void inspection_advance_base(struct inspection *i);
uint64_t inspection_base_lsn(const struct inspection *i);
size_t inspection_segments(const struct inspection *i, ls_segment_info *into, size_t n); /* how many there are */
/* LS_NO_MEMORY. Fills in all that tail_explain needs. */
int inspection_take_tail(const struct inspection *i, struct tail_look *k);
/* As ls_inspect_catalog. */
int inspection_drop_queues(struct inspection *i, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id);

/* Each fills up to n and gives the number that there are. */
size_t inspection_queues(const struct table *t, ls_queue_info *into, size_t n);
size_t inspection_transactions(const struct table *t, ls_open_tx *into, size_t n);
int inspection_work(const struct table *t, uint64_t tx_id, ls_open_work *into, size_t n, size_t *count);
size_t inspection_places(struct message *m, ls_message_place *into, size_t n);
/* The next n live messages from *slot on, which is moved behind them. */

/* ---- checkpoint_compare.c ---- */

/* As ls_checkpoint_compare. */
int checkpoint_compare(const struct state *with, const struct state *without, ls_checkpoint_difference *difference);

/* ---- check.c: before the record is replayed. LS_CORRUPT: it contradicts its batch, segment or chain. ---- */

int check_batch(struct inspection *i, const struct scan_batch *b);
int check_record(struct inspection *i, const struct scan_batch *b, const struct record *r);

#endif
