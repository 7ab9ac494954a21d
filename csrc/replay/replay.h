/*
 * Replay, record by record in LSN order: each goes to the client of its stream. Nothing is counted as live before the end:
 * records that are moved or die on the way may lie in segments that are no longer there.
 */
#ifndef LOGSTORE_REPLAY_H
#define LOGSTORE_REPLAY_H

#include "replay/state.h"

/* An unfinished relocation: the newest copied start record, and the parts of its state that were read so far. */
struct moving {
    uint64_t copy_id;
    uint64_t copy_lsn; /* 0: none */
    uint32_t copy_record_bytes;
    uint32_t copy_content_bytes;
    uint16_t copy_flags;
    uint64_t id;
    uint32_t next_part;
    struct chain_record *parts;
    struct chain_record *chunks;
    struct place_row *places;
    struct pending_row *pending;
    struct remembered *place_states; /* of the rows; only with parts of the type that has states */
    struct remembered *pending_states;
    uint16_t type; /* of the parts */
    size_t chunk_count, place_count, pending_count;
    size_t part_capacity, chunk_capacity, place_capacity, pending_capacity;
    size_t place_state_capacity, pending_state_capacity;
};

/* What the newest batch says of itself. */
struct newest_batch {
    uint64_t index; /* 0: it is not replicated */
    uint64_t epoch; /* 0: not known */
    uint32_t count;
    uint64_t known_durable_lsn;
    uint64_t last_index; /* the largest of all, also if replication has ended */
    bool any;            /* there was a batch, or a checkpoint of a replicated log */
};

struct replay {
    struct state *state;
    struct scan *scan;
    struct table *t;     /* the state's */
    ls_recovery *report; /* the state's */
    uint64_t base_lsn;
    uint64_t time_us; /* of the batch */
    bool inspects;    /* for an inspection: transactions that recovery rolls back are removed at once */
    bool orderly; /* the log was closed in order: only places that became visible below seen_lsn are recovered ones */
    uint64_t seen_lsn;
    bool has_writer; /* a writer has the store open: its open transactions and staged messages stay */
    struct moving moving;
    struct newest_batch newest;
    struct live_segment *counted; /* where the last live record was counted, as most often the next one */
    /* Looks at each record before it is replayed; anything but LS_OK ends the replay. May be NULL. */
    int (*look)(void *context, const struct scan_batch *b, const struct record *r);
    void *look_context;
};

/* Replays all batches from the scan's position to its end. */
int replay_log(struct replay *p);
/* Replays one batch, for a caller that reads the batches itself. */
int replay_batch(struct replay *p, const struct scan_batch *b);
/* settle.c: computes the state at the end of the log, once all batches were replayed. */
int replay_settle(struct replay *p);

/* Ends older work as a writer's open and a new term's leader end it before their first batch. */
void replay_take_over(struct replay *p);

void replay_free(struct replay *p);

/* Both fail with LS_CORRUPT: the record contradicts the log before it. */
int replay_inconsistent(const struct replay *p, const struct record *r, const char *what);
int replay_malformed(const struct replay *p, const struct record *r);
/* Finds the transaction of an operation, and makes it if its start lies below the base; its outcome follows above
   the base. */
int replay_find_tx(const struct replay *p, const struct record *r, uint64_t tx_id, struct tx **tx);
/* Gives the outcome of a transaction to every client; then it has no more work. */
int replay_commit(struct replay *p, struct tx *tx, const struct record *r);
void replay_undo(struct replay *p, struct tx *tx);

/* ---- for clients ---- */

/* The record's operation, under a key that only the client understands, waits for the transaction's outcome. */
int replay_add_client_work(struct replay *p, const struct record *r, uint64_t tx_id, uint64_t key);
/* The same from a checkpoint's row. False: no memory. */
bool replay_load_client_work(struct tx *tx, uint32_t stream, uint64_t key);
/* While settling: counts one record that recovery would need. False: it is not in the log. */
bool replay_count_live(struct replay *p, uint64_t lsn, uint64_t bytes);

/* Before the replay is settled: the message loses its places on deleted queues, and goes with the last one. */
void replay_sweep(const struct replay *p, uint32_t number);

/* ---- work on deleted queues: an open drops it, a writer keeps it until its outcome ---- */

/* Called for the message of each operation that was dropped; it may remove the message. */
typedef void work_dropped(void *context, uint32_t message);
void replay_drop_work_on_deleted(struct table *t, work_dropped *dropped, void *context);
/* Ends the staging of a message without work, as recovery does. True: it is dead, and the caller removes it. */
bool replay_unstage(struct state *s, struct message *m);

#endif
