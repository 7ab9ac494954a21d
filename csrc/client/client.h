/*
 * Clients of the log. A client owns one record stream or more, and registers here the functions that the log and its
 * neighbours (replay, relocation, checkpoints, transaction outcomes, verification) call. None of them names a client.
 * The first client is that of messages and their transactions, registered by the store (store/messages_client.c).
 *
 * What always holds:
 *   - a stream has at most one client; a client serves from the open of a store until its memory is freed;
 *   - every call is made with the log's lock held, or before the store serves;
 *   - a function marked (waits) may let go of the lock; all others neither wait nor append records;
 *   - a function may be NULL; then the default in its comment holds.
 *
 * A client keeps the rules of log.h: it changes memory under the same hold of the lock as the append, counts each record
 * that recovery would need with log_live_record, and lets it go with log_release_record, which takes effect when the
 * batch that ends it is durable.
 */
#ifndef LOGSTORE_CLIENT_H
#define LOGSTORE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"

struct log;
struct mover;  /* relocate/relocate.h */
struct replay; /* replay/replay.h */
struct rows;   /* checkpoint/checkpoint.h */
struct tx;     /* table/table.h */

enum { CLIENTS_MAX = 8 };

/* A segment of the log, and its live records. */
struct live_segment {
    uint64_t first_lsn;
    uint64_t epoch;
    uint64_t prev_end_lsn;
    uint64_t end_lsn; /* where the log's records in it end */
    uint64_t records;
    uint64_t bytes;
    uint64_t largest_bytes; /* of one record */
    bool behind;            /* below the base */
};

struct client_calls {
    void (*attach)(void *context, struct log *g); /* called at registration: the log that the client appends to */
    void (*free)(void *context);                  /* the store is freed */

    /* ---- names ---- */
    const char *(*type_name)(uint16_t type); /* of a record type of its streams; NULL: unknown */
    /* Whether the body keeps the rules of its type; the header was checked before. Default: it does. */
    enum format_result (*verify)(const void *context, const struct record *r);

    /* ---- recovery, in this order ---- */
    /* An LS code. Default: the record has no effect. */
    int (*replay)(void *context, struct replay *p, const struct record *r);
    /* The outcome of a transaction, read from the log or decided by replay. Default: does nothing. */
    int (*replay_commit)(void *context, struct replay *p, struct tx *tx, const struct record *r);
    void (*replay_rollback)(void *context, struct replay *p, struct tx *tx);
    /* After all transactions are settled: decides which records live, and counts each with replay_count_live. LS_CORRUPT,
       LS_NO_MEMORY. */
    int (*settle)(void *context, struct replay *p);
    /* After every client's settle: takes the locks of a transaction in doubt. */
    void (*lock_in_doubt)(void *context, struct tx *tx);
    /* Clears the state: replay starts again without the rows that were loaded from a checkpoint. */
    void (*clear)(void *context);

    /* ---- a transaction's outcome while the store serves ---- */
    /* A vote that changes nothing: LS_OK, or the error with which the client refuses. A client does not learn whether
       another one refuses. */
    int (*prepare)(void *context, struct tx *tx);
    bool (*prepare_commit)(void *context, struct tx *tx); /* allocates what the commit needs; false: no memory */
    void (*commit)(void *context, struct tx *tx, uint64_t commit_lsn);
    void (*rollback)(void *context, struct tx *tx);

    /* ---- space ---- */
    /* Bytes that admission counts for it on top of its live records. Default: 0. */
    uint64_t (*weight)(const void *context);
    /* Bytes by which its live records grow at most once all are moved. Default: 0. With a false checkpoint the
       result may be too large, so at most expansion_most bytes for each byte of the log count. */
    uint64_t (*expansion)(const void *context);
    uint32_t expansion_most;
    /* (waits) Copies a record of the segment that is being moved to the head, with FLAG_COPY, if it is live.
       Default: no record is live. If the last segment holds only copies, the next open sets it aside
       (docs/recovery.md). */
    int (*relocate)(void *context, struct mover *v, const struct record *r);
    /* (waits) The pass over the segment ends with `rc`. If that is LS_OK, moves the records that were deferred.
       Default: rc. */
    int (*relocate_end)(void *context, struct mover *v, int rc);
    void (*segment_begun)(void *context); /* the log continues in another segment */
    /* While consumers wait (log_consumers_wait): more is durable, or the log is poisoned and nothing will be. */
    void (*durable_moved)(void *context);
    void (*time_came)(void *context);     /* the time for which log_set_alarm was called */
    bool (*give_up_space)(void *context); /* (waits) frees disk space that it does not need; false: none */

    /* ---- checkpoints ---- */
    /* Writes its present state as rows, with rows_put_client. False: no memory. Default: no rows. */
    bool (*put_rows)(void *context, struct rows *rows);
    /* Loads one of these rows. LS_CORRUPT: the row is impossible, and the checkpoint is ignored. */
    int (*load_row)(void *context, struct replay *p, const uint8_t *bytes, uint32_t length);

#ifdef LOGSTORE_POISON
    void (*move)(void *context); /* moves the items that look-ups returned to other memory */
#endif
};

struct log_client {
    const struct client_calls *calls;
    void *context;
    const uint8_t *streams; /* its stream numbers */
    size_t stream_count;
};

struct log_clients {
    struct log_client all[CLIENTS_MAX];
    size_t count;
    uint8_t of_stream[STREAMS_MAX]; /* index into `all`, plus 1; 0: no client */
    struct stream_set known;        /* the streams with a client: their records are read, all others refused */
    const struct log_client *expanding[CLIENTS_MAX]; /* with live records that may grow: every append calls them */
    size_t expanding_count;
};

/* Call it before the store is opened. LS_OPTION: a stream is out of range or taken, or there are too many clients. */
int clients_register(struct log_clients *c, const struct log_client *client); /* called by log_register */
void log_clients_free(struct log_clients *c);

/* The client of the type's stream; NULL: there is none. */
static inline const struct log_client *log_client_of(const struct log_clients *c, uint16_t type) {
    uint8_t at = c->of_stream[format_stream_of(type)];
    return at != 0 ? &c->all[at - 1] : NULL;
}

/* Bytes that admission counts for what the clients keep. */
static inline uint64_t clients_weight(const struct log_clients *clients) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        bytes += c->calls->weight != NULL ? c->calls->weight(c->context) : 0;
    }
    return bytes;
}

/* Bytes by which live records of a log of log_bytes grow at most once they are moved. */
static inline uint64_t clients_expansion(const struct log_clients *clients, uint64_t log_bytes) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < clients->expanding_count; i++) {
        const struct log_client *c = clients->expanding[i];
        uint64_t asked = c->calls->expansion(c->context), most = c->calls->expansion_most * log_bytes;
        bytes += asked < most ? asked : most;
    }
    return bytes;
}

const char *log_type_name(const struct log_clients *c, uint16_t type); /* NULL: unknown */

#endif
