/*
 * Replay, record by record in LSN order: what the accepted log holds becomes messages, places and open transactions in
 * the table. Places stand there without their run (see table.h), and nothing is counted as live yet: what is moved
 * or dies on the way may lie in segments that are no longer there.
 */
#ifndef LOGSTORE_REPLAY_H
#define LOGSTORE_REPLAY_H

#include "replay/state.h"

/* A relocation on its way: the newest copied start record, and the parts of a state that were seen so far. */
struct moving {
    uint64_t copy_id;
    uint64_t copy_lsn; /* 0: none */
    uint32_t copy_record_bytes;
    uint32_t copy_content_bytes;
    uint16_t copy_flags;
    uint64_t id;
    uint32_t next_part;
    struct chunk_place *parts;
    struct chunk_place *chunks;
    struct place_row *places;
    struct pending_row *pending;
    size_t chunk_count, place_count, pending_count;
};

struct replay {
    struct state *state;
    struct scan *scan;
    struct table *t;     /* the state's */
    ls_recovery *report; /* the state's */
    uint64_t base_lsn;
    uint64_t time_us; /* of the batch */
    bool inspects;    /* nothing will be served: what recovery ends is forgotten at once */
    bool beside;      /* ... beside a writer: what it has open stays */
    struct moving moving;
};

/* settle.c: the phases, in this order. */
int replay_log(struct replay *p);                                      /* from where the scan stands to its end */
void replay_begin_batch(struct replay *p, const struct scan_batch *b); /* then replay_record for each of its records */
int replay_settle(struct replay *p);

int replay_record(struct replay *p, const struct record *r);
void replay_free(struct replay *p);

/* LS_CORRUPT: the log says what cannot be. */
int replay_inconsistent(const struct replay *p, const struct record *r, const char *what);
int replay_malformed(const struct replay *p, const struct record *r);
/* Pending work of this transaction goes as if it had never been. */
void replay_undo(const struct replay *p, struct tx *tx);
/* QUEUE_DELETE ended them; the message learns it when somebody asks whether it still has a place. */
void replay_drop_deleted(const struct replay *p, struct message *m);
/* Pending work on queues that are deleted goes: an open does this, a writer keeps such work until its outcome. */
void replay_drop_work_on_deleted(const struct replay *p);
/* The operation pends on the message until its transaction's outcome. */
int replay_add_work(const struct replay *p, const struct record *r, uint32_t number, uint64_t tx_id,
                    const struct work *like);

/* replay/moved.c: MESSAGE_RELOCATED, TX_RELOCATED, and copies. */
int replay_copied_start(struct replay *p, const struct record *r);
int replay_relocated(struct replay *p, const struct record *r);
int replay_tx_relocated(const struct replay *p, const struct record *r);

#endif
