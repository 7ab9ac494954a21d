/*
 * The state that replay gives: the table, the deleted queues that the log still names, the live records of each segment,
 * and the report of how it was recovered. Replay fills it in; it knows neither a store nor a log that is written.
 *
 * Replay sets the live counters; a log that continues from this state takes them over (log.h counts from then on).
 */
#ifndef LOGSTORE_STATE_H
#define LOGSTORE_STATE_H

#include "client/client.h"
#include "logstore.h"
#include "read/scan.h"
#include "table/table.h"

/* A QUEUE_DELETE in the log: records below it may still have the id of the deleted queue. */
struct deletion {
    uint64_t lsn;
    uint32_t queue_id;
};

struct deletions {
    struct deletion *items; /* the newest last; those below the base are forgotten from time to time */
    size_t count;
    size_t capacity;
};

/* The names of what recovery ended: of each kind the first LS_RECOVERED_MAX. */
struct recovered {
    ls_recovered *items;
    size_t count;
    size_t capacity;
    uint32_t kept[LS_RECOVERED_QUEUE + 1]; /* by kind */
};

struct state {
    struct log_clients *clients;
    struct table table;
    struct deletions deletions;
    struct recovered recovered;
    ls_recovery report;
    struct live_segment *segments; /* by first_lsn */
    size_t segment_count;
    uint64_t segment_size;
    uint64_t base_lsn;
};

void state_init(struct state *s, struct log_clients *clients);
void state_free(struct state *s);
/* Takes over the segments of the scanned log, those below the base first; counts no live records yet. LS_NO_MEMORY. */
int state_take_segments(struct state *s, struct scan *scan);
struct live_segment *state_segment(const struct state *s, uint64_t lsn); /* the segment that holds the LSN, or NULL */
/* Empties the table and the clients, and sets all live counts to 0. The report stays. */
void state_clear(struct state *s);

/* Allocates memory for as many more deletions, so that noting them cannot fail. */
bool state_prepare_deletions(struct state *s, size_t more);
void state_note_deletion(struct state *s, uint32_t queue_id, uint64_t lsn);

/* recovered.c. `tx` gives the xid, or is NULL. If memory runs out, the name is left out of the report. */
void recovered_note(struct recovered *r, int kind, uint64_t id, uint64_t count, const struct tx *tx);
void recovered_finish(struct recovered *r); /* sorts them */

#endif
