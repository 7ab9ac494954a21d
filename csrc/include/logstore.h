/*
 * logstore: an append-only, log-structured message store. This is the public C API: the Python package binds it
 * through cffi, and a broker written in C links it.
 *
 * Results. A function that can fail returns an ls_code; 0 is LS_OK. ls_last_error() then tells the calling thread what
 * failed and where. Any call may also return LS_NO_MEMORY or LS_IO, any call on a store LS_CLOSED or LS_FORKED, and any
 * call that appends LS_FULL, LS_POISONED or LS_OUTCOME_UNKNOWN. Comments below name the other codes.
 *
 * Threads. Any thread may call any function, with two exceptions: only one thread at a time uses a cursor, a reader or
 * a scan; no call may begin on a handle after the call that frees it. If several threads end one transaction, one succeeds
 * and the others get LS_TRANSACTION_ENDED. ls_tx_free may run while another thread is in a call on that handle.
 *
 * Durability. With LS_WAIT a change is durable when the call returns, unless the store was opened relaxed. Without
 * it, the change is durable once ls_durable_lsn() >= the value that ls_next_lsn() gives after the call.
 *
 * Values. LSNs and ids are byte positions in the log; 0 is never a valid one. Names that end in _bytes and _us give
 * the unit; times named _us are microseconds, and wall-clock times count from 1970.
 *
 * Lists. A function that takes `into`, `n` and `count` writes at most n items and sets *count to the number that exist.
 *
 * Arguments. `system` NULL means the operating system's files. `xid`, `info`, `tx` may be NULL only where said.
 *
 * Fork. In a child process after fork() every call returns LS_FORKED; the child may only free its handles.
 */
#ifndef LOGSTORE_H
#define LOGSTORE_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

/* cffi:begin */

typedef enum ls_code {
    LS_OK = 0,
    LS_NO_MEMORY,
    LS_IO,     /* a system call failed, and nothing was changed; see ls_error.sys_errno */
    LS_OPTION, /* an argument or option is out of its range */
    LS_NOT_A_STORE,
    LS_LOCKED,           /* another process or handle has the store open */
    LS_FULL,             /* no room within max_log_bytes or on the disk */
    LS_POISONED,         /* an earlier write or sync failed; the store accepts no more changes */
    LS_OUTCOME_UNKNOWN,  /* a write or sync failed during this call; the change may or may not be on disk */
    LS_CLOSED,           /* the store is closed, not served yet, or only inspected */
    LS_FORKED,           /* this process is a fork of the one that opened the store */
    LS_CORRUPT,          /* the log is damaged where it must not be */
    LS_VERSION,          /* a later version of logstore wrote this */
    LS_CATALOG_MISMATCH, /* the catalog and the log contradict each other */
    LS_UNKNOWN_MESSAGE,
    LS_UNKNOWN_QUEUE,
    LS_MESSAGE_LOCKED, /* by a transaction's dequeue */
    LS_MESSAGE_IN_USE, /* it has places or pending operations */
    LS_ALREADY_ENQUEUED,
    LS_NOT_ENQUEUED,
    LS_UNKNOWN_XID,
    LS_DUPLICATE_XID,
    LS_TRANSACTION_ENDED, /* it is committed or rolled back */
    LS_WRONG_STATE,       /* the transaction's state does not allow this call */
    LS_TRANSACTION_LIMIT, /* too many transactions are open or prepared, or one has too many operations */
    LS_BUSY,              /* a limit on open handles is reached, or another handle uses it */
    LS_RECYCLED,          /* the log that is to be read has been recycled */
    LS_END,               /* a reader or scan has nothing more */
    LS_WOULD_WAIT,        /* the call would have to wait, and LS_TRY forbids that; nothing was changed */
    LS_REPLICATED,        /* the log is a copy of a replicated one, which only its member opens */
    LS_REFUSED            /* a batch, a cut or a vote does not follow from what this copy has; nothing was written */
} ls_code;

typedef struct ls_error {
    int code;
    int sys_errno;    /* 0 if no system call was involved */
    uint64_t offset;  /* in `segment`, if known */
    uint64_t lsn;     /* 0 if not known */
    char segment[24]; /* a segment's file name, or "" */
    char text[400];   /* what happened, where, and what to do next */
} ls_error;

/* The calling thread's last failure. Valid until its next failing call. */
const ls_error *ls_last_error(void);

typedef struct ls_store ls_store;
typedef struct ls_tx ls_tx;
typedef struct ls_cursor ls_cursor;
typedef struct ls_reader ls_reader;
typedef struct ls_calls ls_calls;
typedef struct vfs vfs;

/* The version of this core, with the compiler that built it: "0.1.0 (gcc 12.2.0)". */
const char *ls_version_text(void);

/* The addresses of the functions that logstore_calls.h lists, for a binding that is not linked with the core. */
const ls_calls *ls_calls_table(void);

/* ---- opening and closing ---- */
typedef struct ls_options {
    uint64_t segment_size;        /* bytes; 0: 16 MiB for a new store, the stored size for an existing one */
    uint64_t max_undurable_bytes; /* used when the store is created; 0: two segments */
    uint64_t max_log_bytes;       /* at least 6 segments; what only holds keep is not counted; 0: limited by the disk */
    uint32_t initial_segments;    /* of a new store */
    uint32_t max_write_buffers;   /* 2 to LS_BUFFERS_MAX */
    uint32_t max_prepared;        /* transactions; 0: only the limit on open ones applies */
    int create;                   /* make the store if there is none */
    int relaxed;                  /* LS_WAIT does not wait */
    int background;               /* run threads that flush, make spares, checkpoint; 0: callers do the first two */
    int no_checkpoint;            /* use no checkpoint, and write one only when ls_checkpoint is called */
    uint64_t catalog_lsn;         /* of a member's copy, see ls_host_catalog_has; 0: its catalog has all */
    uint64_t kept_bytes;          /* of a member's copy, see ls_host_kept; 0: none are kept for others */
} ls_options;

#define LS_BUFFERS_MAX 64

void ls_options_default(ls_options *options);

typedef struct ls_xid {
    int64_t format_id;
    uint32_t gtrid_bytes; /* 0 to 64 */
    uint32_t bqual_bytes; /* 0 to 64 */
    uint8_t data[128];    /* gtrid, directly followed by bqual */
} ls_xid;

/* The report of a recovery. */
typedef struct ls_recovery {
    int created;            /* the store is new: nothing below applies */
    int clean;              /* the log ended in an orderly close */
    int direct;             /* the tail was read past the page cache */
    uint64_t epoch;         /* of this open */
    uint64_t base_lsn;      /* the first LSN that is still needed */
    uint64_t end_lsn;       /* where the recovered log ended */
    uint64_t watermark_lsn; /* known to be durable: damage below it is corruption, not a torn tail */
    uint64_t segments, batches, records, bytes_read, bytes_rewritten;
    uint64_t torn_bytes; /* the torn tail: bytes of an unfinished write after the last accepted batch */
    uint64_t messages;   /* live */
    uint64_t places, transactions_committed;
    uint64_t transactions_rolled_back; /* by a rollback record */
    uint64_t transactions_abandoned;   /* without an outcome: rolled back by this recovery */
    uint64_t transactions_in_doubt;
    uint64_t operations_undone; /* of the abandoned transactions */
    uint64_t staged_dropped;    /* messages that were never enqueued */
    uint64_t staged_bytes;      /* their content */
    uint64_t orphans;           /* records of chains that began below the base */
    uint64_t orphan_messages, orphan_transactions;
    uint64_t places_dropped;   /* on queues that the catalog no longer has */
    uint64_t queues_dropped;   /* the number of these queues */
    int checkpoint_used;       /* 1: only the log after the checkpoint was replayed and counted */
    int checkpoint_state;      /* LS_CHECKPOINT_USED, or why no checkpoint was used */
    uint64_t checkpoint_lsn;   /* of the checkpoint that was used or ignored; 0: unknown */
    uint64_t checkpoint_bytes; /* read from it */
    uint64_t checkpoint_us;
    uint64_t scan_us; /* includes checkpoint_us */
    uint64_t transactions_us, messages_us, rewrite_us, total_us;
} ls_recovery;

#define LS_CHECKPOINT_NONE        0 /* there is none, or ls_options.no_checkpoint is set */
#define LS_CHECKPOINT_USED        1
#define LS_CHECKPOINT_DAMAGED     2 /* a checksum differs, it is cut short, or its contents are impossible */
#define LS_CHECKPOINT_NEWER       3 /* of a later version of the format */
#define LS_CHECKPOINT_FOREIGN     4 /* of another store */
#define LS_CHECKPOINT_BEYOND      5 /* the log ends before it */
#define LS_CHECKPOINT_BELOW       6 /* the base has passed it */
#define LS_CHECKPOINT_NOT_IN_LOG  7 /* the log does not have the batch that it names */
#define LS_CHECKPOINT_CONTRADICTS 8 /* the log after it cannot follow from it */
#define LS_CHECKPOINT_UNREADABLE  9 /* a system call failed */

/* One of LS_CHECKPOINT_... as text for people. */
const char *ls_checkpoint_state_text(int state);

/*
 * Opening has two steps, so that the caller can compare the catalog with the log before service begins:
 *   ls_open   takes the lock. For an existing store it replays the log in memory and writes to no segment; for a new
 *             one it makes META.new and the first segment.
 *   ls_serve  takes the catalog's queues, rewrites the tail, starts the new epoch and begins service. For a new store
 *             it renames META.new to META.
 * ls_open: LS_OPTION (no directory was made or changed), LS_NOT_A_STORE, LS_LOCKED, LS_CORRUPT, LS_VERSION.
 * ls_serve: LS_CATALOG_MISMATCH; LS_CLOSED if it is called twice.
 */
int ls_open(vfs *system, const char *store_dir, const ls_options *options, ls_store **store);
int ls_serve(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id);
/* Replaces ls_options.max_log_bytes, at any time after ls_open; 0: no limit. A log that is longer already does not
   grow. LS_OPTION: less than 6 segments. */
int ls_limit_log(ls_store *store, uint64_t max_log_bytes);
/* Closes in order: forces everything, appends CLOSE, releases the lock. Later calls get LS_CLOSED until ls_free. */
int ls_close(ls_store *store);
/* Closes the store if it is open, and frees it. Its transactions and cursors may be freed before or after. */
void ls_free(ls_store *store);

/* Between ls_open and ls_serve. 1: the store is being created, so the caller must create its catalog too. */
int ls_creating(const ls_store *store);
void ls_uuid(const ls_store *store, uint8_t uuid[16]);
void ls_recovery_report(const ls_store *store, ls_recovery *report);

/* The items that recovery ended, by id. The list has the first LS_RECOVERED_MAX of each kind; ls_recovery counts all. */
#define LS_RECOVERED_MAX         1000
#define LS_RECOVERED_STAGED      1 /* id: a message that was never enqueued; count: bytes of its content */
#define LS_RECOVERED_TRANSACTION 2 /* id: an abandoned transaction; count: its operations, undone */
#define LS_RECOVERED_QUEUE       3 /* id: a queue that the catalog no longer has; count: its places, dropped */

typedef struct ls_recovered {
    uint64_t id, count;
    int kind;
    int distributed; /* the transaction has an xid */
    ls_xid xid;
} ls_recovered;

/* Ordered by kind, then id. Complete from ls_serve until ls_free. */
void ls_recovery_items(const ls_store *store, ls_recovered *into, size_t n, size_t *count);
uint64_t ls_segment_size(const ls_store *store);

/* ---- durability ---- */
uint64_t ls_base_lsn(const ls_store *store);
uint64_t ls_durable_lsn(const ls_store *store); /* everything below it is durable; 0 in a forked child */
/* The LSN of the next record. Also asks the background flusher to make everything below it durable. */
uint64_t ls_next_lsn(ls_store *store);
uint64_t ls_next_lsn_try(ls_store *store); /* 0 instead of waiting for the store's lock */
/* How much can be appended without waiting until an earlier batch is durable or the next segment is made: percent of the
   largest batch, 100 or less; 50 at least, if only records that make the log grow would wait for the segment. Asks the
   spare thread for the segment in time; its answer signals the eventfds. */
uint32_t ls_room_percent(ls_store *store);
int ls_room_percent_try(ls_store *store); /* -1 instead of waiting for the store's lock, and in a forked child */
int ls_poisoned(const ls_store *store);
/* Waits until everything below `lsn` is durable; 0: everything appended so far. LS_OPTION: beyond the end of the log. */
int ls_force(ls_store *store, uint64_t lsn);
/* Asks the background flusher to make everything appended so far durable; returns at once. */
int ls_flush_soon(ls_store *store);
#define LS_EVENTS_MAX 64
/* Gives the caller an eventfd of its own. It counts group commits, and is signalled when the store is poisoned or
   closed. The store closes it in ls_event_end or ls_free. LS_OPTION: there are LS_EVENTS_MAX already. */
int ls_event_fd(ls_store *store, int *fd);
void ls_event_end(ls_store *store, int fd);
#define LS_ANSWER_BYTES_MAX 64
/*
 * Leaves an answer for a client with the store: the thread that makes `lsn` durable sends these bytes, at most
 * LS_ANSWER_BYTES_MAX, to this socket, without waiting, and does not signal the eventfd for that group commit unless more
 * than `lsn` is durable or not all bytes could be sent. A store has one answer at a time; one that was sent as a whole makes
 * way for the next one of its eventfd. LS_WOULD_WAIT: there is one, or `lsn` is durable already, or it never will be, or no
 * descriptor is left, and nothing is sent. LS_OPTION: no eventfd of this store, or too many
 * bytes. The caller takes the answer back with ls_event_answered before it closes the socket, writes to it, or waits
 * for any LSN up to this one.
 */
int ls_event_answer(ls_store *store, int fd, uint64_t lsn, int socket, const uint8_t *bytes, size_t count);
/* The same for everything appended so far, which the flusher is asked for. *lsn is its end, 0 if the call failed before it
   was known; with LS_TRY that is LS_WOULD_WAIT where the store's lock is held. */
int ls_event_answer_all(ls_store *store, int fd, int socket, const uint8_t *bytes, size_t count, int flags,
                        uint64_t *lsn);
/* Takes the answer back. Returns how many of its bytes were sent; -1: `lsn` was not durable, or there is no answer, and
   none will be sent. */
int64_t ls_event_answered(ls_store *store, int fd);
/* 1: everything below `lsn` is durable. 0: not yet; the flusher is asked for everything appended so far. LS_WOULD_WAIT:
   not yet, and with LS_TRY in the flags the store's lock is not waited for. */
int ls_durable_soon(ls_store *store, uint64_t lsn, int flags);

/* ---- queues ---- */
/* Call it after the catalog has committed the queue. LS_OPTION: the id is out of range; LS_BUSY: too many queues. */
int ls_queue_add(ls_store *store, uint32_t queue_id);
/* Ends all places of the queue; ends messages that have no other place. LS_UNKNOWN_QUEUE. */
int ls_queue_delete(ls_store *store, uint32_t queue_id, int flags);
/* The same for all queues with ids from first_id to last_id; `done` is their number. After an error some are deleted. */
int ls_queues_delete(ls_store *store, uint32_t first_id, uint32_t last_id, int flags, size_t *done);
/* The number of places, and how many of them a transaction has locked. LS_UNKNOWN_QUEUE. */
int ls_queue_depth(ls_store *store, uint32_t queue_id, uint64_t *places, uint64_t *locked);

/* Counts of a queue at one moment: depth == ready + acquired + locked + hidden + expired. A message counts on each of its
   queues. */
typedef struct ls_queue_counts {
    uint64_t depth;
    uint64_t ready;           /* none of the others; also one that is not durable yet, which no consumer gets */
    uint64_t acquired;        /* by consumers, and not locked */
    uint64_t locked;          /* by a transaction's dequeue, acquired before or not */
    uint64_t acquired_locked; /* those of the locked ones that a consumer has acquired */
    uint64_t bytes;           /* of content, of all places */
    uint64_t ready_bytes;     /* of the ready ones */
    uint64_t hidden;          /* until a time that has not come; neither acquired nor locked */
    uint64_t expired;         /* their time has passed; neither acquired nor locked */
} ls_queue_counts;
/* Takes the same time for a queue of any length. LS_UNKNOWN_QUEUE. */
int ls_queue_counts_get(ls_store *store, uint32_t queue_id, ls_queue_counts *into);

/*
 * ---- messages ----
 * A message is staged, gets content, and is enqueued on one or more queues; ls_publish does all at once. It has one
 * place on each of these queues, and ends with its last place. With a transaction (`tx`) the effect waits for the commit;
 * NULL: it takes effect at once. `lsn` gets the LSN of the record. Errors: LS_UNKNOWN_MESSAGE, LS_UNKNOWN_QUEUE,
 * LS_OPTION (no queue, one queue twice, too large, unknown reason), and with a transaction LS_TRANSACTION_ENDED,
 * LS_WRONG_STATE, LS_TRANSACTION_LIMIT.
 */
#define LS_WAIT      1 /* return when the change is durable */
#define LS_PUBLISHED 2 /* ls_stage: part of a publish; a rollback of the enqueue ends the message */
#define LS_MORE      4 /* more changes follow at once: do not wake the flusher for this one; see ls_flush_soon */
/* ls_publish, ls_dequeue, and the calls of consumers: return LS_WOULD_WAIT, without a text in ls_last_error, instead of
   waiting for the store's lock, for room or for the disk. LS_OPTION together with LS_WAIT. */
#define LS_TRY 8

int ls_stage(ls_store *store, const uint8_t *header, size_t header_bytes, const uint8_t *content, size_t content_bytes,
             int flags, uint64_t *id);
/* Adds content at the end. LS_MESSAGE_IN_USE: the message is enqueued already. */
int ls_append_content(ls_store *store, uint64_t id, const uint8_t *content, size_t content_bytes, int flags);
/* LS_ALREADY_ENQUEUED, LS_MESSAGE_LOCKED. */
int ls_enqueue(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, ls_tx *tx, int flags, uint64_t *lsn);
int ls_publish(ls_store *store, const uint32_t *queue_ids, size_t n, const uint8_t *header, size_t header_bytes,
               const uint8_t *content, size_t content_bytes, ls_tx *tx, int flags, uint64_t *id);
/*
 * Times of places: wall clock, µs since 1970; 0: none. Before not_before_us a place is hidden: no consumer gets it. From
 * expires_us on it has expired: only ls_acquire_expired gives it, hidden or not. Both stay places of the queue, in the same
 * order. In a transaction the times count from the commit on.
 */
typedef struct ls_times {
    uint64_t not_before_us, expires_us;
} ls_times;
/* ls_publish and ls_enqueue, and each new place has these times; NULL or zeros: none. LS_OPTION: a time is above 2^63 - 1, or a
   place would expire before it is offered. LS_WRONG_STATE: as for ls_annotate. */
int ls_publish_timed(ls_store *store, const uint32_t *queue_ids, size_t n, const uint8_t *header, size_t header_bytes,
                     const uint8_t *content, size_t content_bytes, const ls_times *times, ls_tx *tx, int flags,
                     uint64_t *id);
int ls_enqueue_timed(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, const ls_times *times,
                     ls_tx *tx, int flags, uint64_t *lsn);
/* Publishes n messages on one queue. `content` has their contents one after another, sizes[i] bytes each; `headers`
   likewise; header_sizes NULL: no headers. `times`: of all of them, as for ls_publish_timed. On failure the first *done
   messages are published and their ids set. */
int ls_publish_many(ls_store *store, uint32_t queue_id, size_t n, const uint8_t *content, const uint64_t *sizes,
                    const uint8_t *headers, const uint64_t *header_sizes, const ls_times *times, ls_tx *tx, int flags,
                    uint64_t *ids, size_t *done);
/* ls_publish_many of contents and headers where they stand: contents[i] has sizes[i] bytes; headers NULL: none. */
int ls_publish_gather(ls_store *store, uint32_t queue_id, size_t n, const uint8_t *const *contents,
                      const uint64_t *sizes, const uint8_t *const *headers, const uint64_t *header_sizes,
                      const ls_times *times, ls_tx *tx, int flags, uint64_t *ids, size_t *done);
/* Ends a place. `reason` is 0 to 6, as in the format. LS_NOT_ENQUEUED, LS_MESSAGE_LOCKED. */
int ls_dequeue(ls_store *store, uint64_t id, uint32_t queue_id, ls_tx *tx, int reason, int delivery_count, int flags,
               uint64_t *lsn);
/* Checks all ids before it dequeues the first. On failure the first *done are dequeued, and ids[*done] is the one that
   failed. Errors as ls_dequeue. */
int ls_dequeue_many(ls_store *store, const uint64_t *ids, size_t n, uint32_t queue_id, ls_tx *tx, int reason, int flags,
                    size_t *done);
/* Ends a staged message. LS_MESSAGE_IN_USE: it has places or pending operations. */
int ls_destroy(ls_store *store, uint64_t id, int flags);

typedef struct ls_message_info {
    uint64_t id, content_bytes;
    uint32_t start_bytes; /* size of its start record; the header is smaller */
    uint32_t places;
    uint32_t pending; /* operations of open transactions */
    int staged;       /* not enqueued yet */
} ls_message_info;

int ls_message(ls_store *store, uint64_t id, ls_message_info *info);
/* Both copy at most `bytes` into `into` and set *done to the bytes copied. LS_CORRUPT: the record is damaged. */
int ls_load_header(ls_store *store, uint64_t id, uint8_t *into, size_t bytes, size_t *done);
int ls_load_content(ls_store *store, uint64_t id, uint64_t offset, uint8_t *into, size_t bytes, size_t *done);
/* The note of a place, or its own header. *has is 0 if it has none. LS_NOT_ENQUEUED: the place at this position has ended. */
#define LS_PLACE_NOTE   0
#define LS_PLACE_HEADER 1
int ls_load_place(ls_store *store, uint32_t queue_id, uint64_t id, uint64_t position, int what, uint8_t *into,
                  size_t bytes, size_t *done, int *has);
/* The times of a place. LS_UNKNOWN_MESSAGE; LS_NOT_ENQUEUED: the place at this position has ended. */
int ls_place_times(ls_store *store, uint32_t queue_id, uint64_t id, uint64_t position, ls_times *times);
/* How often the place was acquired, as in ls_delivery; 0: never. Fails as ls_place_times. */
int ls_place_count(ls_store *store, uint32_t queue_id, uint64_t id, uint64_t position, uint32_t *count);
/* Loads several messages, each header before its content: sizes[2i] and sizes[2i + 1] bytes for message i. Stops after
   *done messages if the next may not fit into the rest of `bytes` (LS_OK) or cannot be loaded (its error). */
int ls_load_many(ls_store *store, const uint64_t *ids, size_t n, uint8_t *into, size_t bytes, uint64_t *sizes,
                 size_t *done);

/* ---- the places of a queue, in order ---- */
typedef struct ls_place {
    uint64_t position; /* grows along the queue; never changes for a place */
    uint64_t id, content_bytes;
    uint32_t locked;    /* by a transaction's dequeue, note or move */
    uint8_t recovered;  /* a consumer may have had the place before this open */
    uint8_t has_header; /* it has a header of its own: see ls_load_place */
    uint16_t zero;
} ls_place;

#define LS_CURSOR_ALL   0 /* every place, also locked and not yet durable ones */
#define LS_CURSOR_OFFER 1 /* durable, unlocked places only; a rollback that unlocks a place moves it back there */

/* LS_UNKNOWN_QUEUE: the queue does not exist, or (ls_cursor_next) was deleted since. */
int ls_cursor_open(ls_store *store, uint32_t queue_id, int kind, ls_cursor **cursor);
/* Gives the next *done places, at most n; 0 for now at the end. */
int ls_cursor_next(ls_cursor *cursor, ls_place *places, size_t n, size_t *done);

/* Where a message is in the buffer that it was loaded into. */
typedef struct ls_span {
    uint64_t header_at;
    uint64_t content_at; /* 0: it was not loaded */
    uint32_t header_bytes, content_bytes;
} ls_span;

/* As ls_cursor_next, and loads the messages: `into` gets their records as they are in the log, and spans[i] says where
   header and content of places[i] are. Stops before a message that does not fit into the rest of `bytes`. A message is not
   loaded if its record is longer than `bytes`, damaged or unreadable, or if its content is in several records:
   ls_load_content loads it or has the error. */
int ls_cursor_load(ls_cursor *cursor, ls_place *places, ls_span *spans, size_t n, uint8_t *into, size_t bytes,
                   size_t *done);
/* Moves the cursor to the first place after this position. LS_OPTION: no place of the queue ever had it. */
int ls_cursor_after(ls_cursor *cursor, uint64_t position);
void ls_cursor_close(ls_cursor *cursor);
/* When the message's place at this position of the queue became visible: µs since 1970, of the batch that made it durable;
   0: it is not durable yet, or the time is not known any more. The first call for a segment reads it as far as that batch,
   without the store's lock; later calls find the time in memory. LS_UNKNOWN_MESSAGE, LS_NOT_ENQUEUED; LS_IO, LS_CORRUPT
   or LS_NO_MEMORY if a read fails: the next call reads again. */
int ls_enqueued_us(ls_store *store, uint32_t queue_id, uint64_t id, uint64_t position, uint64_t *time_us);
/* Checks whether ids[i] still has its place at positions[i] of the queue. states[i]: 0 gone, 1 there, 2 locked. */
int ls_places_check(ls_store *store, uint32_t queue_id, const uint64_t *ids, const uint64_t *positions, size_t n,
                    uint8_t *states);

/*
 * ---- consuming ---- A consumer acquires places, and settles or releases each. In between, no other consumer acquires
 * them. The log has no record of this: after an open no place is acquired. How often a place was acquired is written when it
 * is released, if that needs no wait, and by an orderly close. An ls_delivery is
 * valid until it is settled or released, or until its place ends in another way; if a transaction settles it, it ends
 * at the commit; after a rollback its place is still acquired.
 */
typedef struct ls_delivery {
    uint64_t position; /* as in ls_place */
    uint64_t id, content_bytes;
    uint32_t start_bytes; /* as in ls_message_info */
    uint32_t count;       /* how often the place was acquired, this time included, also in earlier opens */
    uint8_t recovered;    /* as in ls_place */
    uint8_t has_header;   /* as in ls_place */
    uint16_t zero;
    uint32_t number; /* a hint where the message is in the core's table; 0 is allowed */
} ls_delivery;

#define LS_UNSEEN 16 /* ls_release: no consumer has seen the messages, so their counts return to the values before */

/* Acquires the first *done places of the queue that are durable, not locked and not acquired: at most n, in order.
   LS_UNKNOWN_QUEUE. After LS_NO_MEMORY none is acquired. */
int ls_acquire(ls_store *store, uint32_t queue_id, ls_delivery *into, size_t n, int flags, size_t *done);
/* The same for places after this position; those before stay for other calls. LS_OPTION: no place of the queue ever had
   it. */
int ls_acquire_after(ls_store *store, uint32_t queue_id, uint64_t position, ls_delivery *into, size_t n, int flags,
                     size_t *done);
/* Acquires those of the messages whose places on the queue are durable, not locked and not acquired; `into` gets *done of
   them, in the order of the ids. LS_UNKNOWN_QUEUE. After LS_NO_MEMORY none is acquired. */
int ls_acquire_ids(ls_store *store, uint32_t queue_id, const uint64_t *ids, size_t n, ls_delivery *into, int flags,
                   size_t *done);
/*
 * Times of a place, wall clock, µs since 1970. Before `not_before_us` the place is hidden: the calls above do not give it.
 * From `expires_us` on it is expired, whatever the other time is: only this call gives it. Neither moves it: it is given in its
 * old position. An acquired place expires when it is released; a delivery of an expired place is settled, moved
 * and released like any other. Where the clock is set back, what was due stays due.
 */
/* ls_acquire of the first *done places of the queue that have expired. */
int ls_acquire_expired(ls_store *store, uint32_t queue_id, ls_delivery *into, size_t n, int flags, size_t *done);
/* ls_publish_timed and ls_enqueue_timed on one queue, without a transaction, and the caller acquires the place: no other
   consumer gets it in between. From expires_us on it expires when it is released; 0: never. */
int ls_publish_acquired(ls_store *store, uint32_t queue_id, const uint8_t *header, size_t header_bytes,
                        const uint8_t *content, size_t content_bytes, uint64_t expires_us, int flags,
                        ls_delivery *made);
int ls_enqueue_acquired(ls_store *store, uint64_t id, uint32_t queue_id, uint64_t expires_us, int flags,
                        ls_delivery *made);
/* Loads the messages of the first *done deliveries, as ls_cursor_load those of places; at least one, unless n is 0. */
int ls_load_acquired(ls_store *store, const ls_delivery *deliveries, size_t n, ls_span *spans, uint8_t *into,
                     size_t bytes, size_t *done);
/* ls_dequeue of an acquired place, with its count. Also LS_NOT_ENQUEUED: it was settled or released since. */
int ls_settle(ls_store *store, uint32_t queue_id, const ls_delivery *delivery, ls_tx *tx, int reason, int flags,
              uint64_t *lsn);
/* ls_settle of n. Checks all before it settles the first. On failure the first *done are settled, and deliveries[*done] is
   the one that failed. */
int ls_settle_all(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, ls_tx *tx, int reason,
                  int flags, size_t *done);

/*
 * A place has what it remembers: a note of at most LS_NOTE_BYTES bytes, and perhaps a header of its own, which stands for the
 * message's. Each of these calls writes one record, whatever the size of the message. LS_NOT_ENQUEUED, LS_MESSAGE_LOCKED,
 * LS_OPTION (too long), and LS_WRONG_STATE while another member of the cluster does not know such records.
 */
#define LS_NOTE_BYTES 255
/* Replaces the place's note; no bytes take it away. */
int ls_annotate(ls_store *store, uint64_t id, uint32_t queue_id, const uint8_t *note, size_t note_bytes, ls_tx *tx,
                int flags, uint64_t *lsn);
typedef struct {
    uint32_t from_queue_id; /* the place that ends; 0: none */
    uint32_t queue_id;      /* of the new place, at the end of the queue; may be the same */
    int reason;             /* why the place ends, as for ls_dequeue */
    int keeps_count;        /* the new place has the delivery count of the delivery */
    int header_given;       /* else the place has the own header of the one that ends, if that has one */
    int note_given;         /* the same */
    const uint8_t *header;
    size_t header_bytes;
    const uint8_t *note;
    size_t note_bytes;
    int keeps_expiry; /* the new place expires when that of the delivery does, whatever `times` says */
    ls_times times;   /* of the new place: as for ls_publish_timed */
} ls_place_move;
/* `held`: the delivery that holds the place that ends, or NULL. LS_ALREADY_ENQUEUED. */
int ls_move(ls_store *store, uint64_t id, const ls_place_move *move, const ls_delivery *held, ls_tx *tx, int flags,
            uint64_t *lsn);

/* Gives n places back, each to its old position with its count; a place that has ended is skipped. All or none.
   LS_NOT_ENQUEUED: one was settled or released since. */
int ls_release(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, int flags);
/*
 * The same, and the places are hidden until `not_before_us`, which is in the log, as are their counts; their expiry stays. All or
 * none. LS_OPTION: no time, or more places than one batch has rows for. LS_FULL, LS_WRONG_STATE (as ls_annotate): they are still acquired.
 * LS_UNSEEN and LS_WAIT may be in the flags. A place that a transaction has settled keeps its times.
 */
int ls_delay(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, uint64_t not_before_us,
             int flags);

typedef struct ls_acquisition {
    uint64_t position, id;
    uint64_t since_us; /* wall clock, µs since 1970; up to a tenth of a second early. Recomputed at each call */
    uint32_t count;    /* as in ls_delivery */
    uint32_t locked;   /* a transaction has settled it and has no outcome yet */
} ls_acquisition;
/*
 * Lists *done places that are acquired, at most n, in the order of the queue and from the position *from on, which becomes
 * that of the next call; UINT64_MAX: the list is complete. One call looks at a limited part of the queue, so *done may be
 * 0 before the end. The calls of one list are moments of their own. LS_UNKNOWN_QUEUE.
 */
int ls_acquisitions(ls_store *store, uint32_t queue_id, uint64_t *from, ls_acquisition *into, size_t n, size_t *done);

/* ---- waiting for messages ---- */

/*
 * One acquire that waits. A queue serves its takers in the order in which they came, each with what it offers at that
 * moment, at most what the taker asked for; meanwhile ls_acquire gets nothing. One thread waits for a taker at a time
 * (ls_taker_wait); or the taker has an inbox, which an event loop watches, and nobody waits.
 */
typedef struct ls_taker ls_taker;
typedef struct ls_inbox ls_inbox;

#define LS_TAKER_MAX 1024 /* places that one taker gets at most */

/* `fd` is an eventfd, readable when a taker of the inbox is served, a queue that it watches has an event, or something is
   durable that it notices. It belongs to the inbox. */
int ls_inbox_new(ls_store *store, ls_inbox **inbox, int *fd);
/* The numbers of up to n takers that were served, or ended, since; each is told once. Read the eventfd first. */
size_t ls_inbox_next(ls_inbox *inbox, uint64_t *numbers, size_t n);
/* Kinds of events of a queue since the last look, as bits; a bit stands for one event or for many. */
#define LS_ARRIVED       1 /* places may be acquired that could not before: durable now, or no longer hidden */
#define LS_RELEASED      2 /* places may be acquired again: released, unlocked by a rollback, or no longer hidden */
#define LS_QUEUE_DELETED 4 /* the last event of the queue */
#define LS_EXPIRED       8 /* places have expired; see ls_acquire_expired */

typedef struct ls_event {
    uint32_t queue_id;
    uint32_t kinds;
} ls_event;

/*
 * From now on the inbox is told of these kinds of events (LS_ARRIVED, LS_RELEASED, LS_EXPIRED) of the queue; 0: of none. It takes the
 * place of an earlier call for the queue. Queue 0: every queue, those that are added later included; an inbox watches
 * either single queues or every queue, and the latter is not told of deletions. Places that are there already are not
 * told; those whose records are not durable yet arrive. LS_UNKNOWN_QUEUE, LS_OPTION.
 */
int ls_inbox_watch(ls_inbox *inbox, uint32_t queue_id, int kinds);
/* Up to n queues with events, each once. The next look finds only what happened after this one. Read the eventfd first. A
   closed store has none. */
size_t ls_inbox_events(ls_inbox *inbox, ls_event *into, size_t n);
/* Closes the eventfd. Takers of the inbox remain, and are told nowhere. NULL: does nothing. */
void ls_inbox_free(ls_inbox *inbox);

/* A taker of at most n places (more than LS_TAKER_MAX are not asked for). `inbox` NULL: a thread waits. LS_UNKNOWN_QUEUE,
   LS_OPTION: n is 0; LS_POISONED. Flags: LS_TRY. */
int ls_taker_new(ls_store *store, uint32_t queue_id, size_t n, ls_inbox *inbox, uint64_t number, int flags,
                 ls_taker **taker);
/* Waits until the taker is served, or has ended, or until this time of CLOCK_MONOTONIC; UINT64_MAX: for ever.
   LS_WOULD_WAIT: a signal came; the taker waits on. LS_OPTION: the thread must not wait (ls_host). */
int ls_taker_wait(ls_taker *taker, uint64_t until_ns);
/*
 * Ends the taker and frees it, in any case. What it was served is in `into`, which has room for what it asked for; *done is
 * 0 if nothing was. With LS_UNSEEN in the flags these *done places go back instead, as if nobody had waited, and `into` may
 * be NULL.
 * LS_UNKNOWN_QUEUE: the queue was deleted while it waited; LS_CLOSED, LS_OUTCOME_UNKNOWN: so ended the store.
 */
int ls_taker_end(ls_taker *taker, ls_delivery *into, int flags, size_t *done);
/* Dequeues those of the messages that are on the queue and neither acquired nor locked. *done: their number, also after a
   failure. */
int ls_purge(ls_store *store, uint32_t queue_id, const uint64_t *ids, size_t n, int reason, int flags, size_t *done);

/*
 * ---- transactions ----
 * Local: begin, commit or rollback. Distributed (with an xid): begin, end, prepare, commit or rollback; a commit may
 * follow the end directly. A prepared transaction survives close and crash, and is then in doubt. Every call on a
 * transaction: LS_TRANSACTION_ENDED if it has an outcome, LS_WRONG_STATE if its state does not allow the call.
 */
#define LS_TX_ACTIVE      1
#define LS_TX_ENDED       2 /* takes no more operations; may be prepared */
#define LS_TX_PREPARED    3
#define LS_TX_COMMITTED   4
#define LS_TX_ROLLED_BACK 5

typedef struct ls_tx_info {
    uint64_t id;
    uint64_t prepared_us; /* wall clock; 0: not prepared */
    uint64_t operations;
    int state;
    int distributed; /* it has an xid */
    ls_xid xid;
} ls_tx_info;

/* xid NULL: local. LS_OPTION, LS_DUPLICATE_XID: a transaction with this xid is open; LS_TRANSACTION_LIMIT. */
int ls_begin(ls_store *store, const ls_xid *xid, ls_tx **handle);
int ls_tx_end(ls_tx *handle);
int ls_prepare(ls_tx *handle, int flags); /* LS_TRANSACTION_LIMIT: ls_options.max_prepared is reached */
int ls_commit(ls_tx *handle, int flags);
int ls_rollback(ls_tx *handle, int flags);
void ls_tx_describe(ls_tx *handle, ls_tx_info *info);
/* Rolls the transaction back, unless it is prepared or has an outcome. Later calls on the handle get
   LS_TRANSACTION_ENDED, and so does a call that is in progress in another thread; a prepared transaction can be taken
   again. */
void ls_tx_abandon(ls_tx *handle);
/* Frees the handle. Rolls the transaction back, unless it is prepared or has an outcome. NULL is allowed. */
void ls_tx_free(ls_tx *handle);
/* The ids of prepared transactions, in no particular order. */
int ls_in_doubt(ls_store *store, uint64_t *ids, size_t n, size_t *count);
/* A handle for a prepared transaction. LS_UNKNOWN_XID: there is none; LS_BUSY: another handle has it. */
int ls_in_doubt_take(ls_store *store, uint64_t id, ls_tx **handle);

/* ---- notices of deaths, and of transactions in doubt ---- */

/* Kinds of notices, as bits. */
#define LS_NOTICE_DEATHS   1     /* of messages: nothing keeps them any more */
#define LS_NOTICE_IN_DOUBT 2     /* transactions that are prepared, or that were and have their outcome */
#define LS_DEATHS_MAX      65536 /* that wait for an inbox to look: 1 MiB */
#define LS_IN_DOUBT_MAX    4096  /* the same, of transactions: 736 KiB */

/*
 * From now on the inbox notices these kinds; it takes the place of an earlier call, and 0 ends it. Each death or change
 * that happens from now on is told once, after its record is durable, in the order in which they happened. Those that the
 * inbox has no place for are dropped and counted. LS_OPTION, LS_NO_MEMORY.
 */
int ls_inbox_notice(ls_inbox *inbox, int kinds);
/* Up to n messages that have died, and in *missed how many more were dropped since the last look. Read the eventfd first,
   and look until there are fewer than n. A closed store has none. */
size_t ls_inbox_deaths(ls_inbox *inbox, uint64_t *ids, size_t n, uint64_t *missed);
/* The same of transactions: `state` is LS_TX_PREPARED, LS_TX_COMMITTED or LS_TX_ROLLED_BACK. */
size_t ls_inbox_in_doubt(ls_inbox *inbox, ls_tx_info *into, size_t n, uint64_t *missed);

/* ---- statistics and maintenance ---- */
typedef struct ls_stats {
    uint64_t batches, batch_bytes, syncs, records, appended_bytes, messages, places, transactions;
    uint64_t live_bytes;    /* of live records in the log */
    uint64_t counted_bytes; /* these, and 128 for each place and transaction: what admission compares with the log */
    uint64_t log_bytes;     /* allocated, including spares */
    uint64_t segments;      /* in the log */
    uint64_t spares, segments_created, segments_recycled, segments_removed;
    uint64_t spare_failures; /* the store continues */
    uint64_t hint_failures;  /* the store continues */
    uint64_t forced_by_full_buffers;
    uint64_t early_writes; /* a part of a batch was written while the rest was still being filled */
    uint64_t waits_for_spare, segments_relocated;
    uint64_t relocated_bytes;     /* appended copies of live records; part of batch_bytes */
    uint64_t relocation_failures; /* a segment could not be read; the store continues */
    uint64_t held_segments;       /* dead, kept only by holds when last checked; part of `segments` */
    uint64_t held_bytes, checkpoints;
    uint64_t checkpoint_failures; /* the store continues */
    uint64_t checkpoint_lsn;      /* of the checkpoint in place; 0: none */
    uint64_t checkpoint_bytes;    /* its size */
    uint64_t device_bytes;        /* written to all files since the open: batches, headers, hint, zeros of new segments,
                                     checkpoints, and what recovery rewrote */
    uint64_t device_writes;       /* the pwrite calls for device_bytes */
    uint64_t sync_us;             /* total time of `syncs` */
    uint64_t sync_us_max;         /* time of the slowest sync */
    uint64_t waiting;             /* acquires that wait for a message */
    int relaxed, full;
} ls_stats;

void ls_stats_get(ls_store *store, ls_stats *stats);

/* Whether the log may grow. A store is full from the first append that it refuses because there is no room (LS_FULL)
   until there is room for half a segment. */
typedef struct ls_fullness {
    uint64_t since_us; /* wall clock of that refusal; 0: not full, or nothing was refused since the open */
    uint64_t segment_size;
    uint64_t log_bytes;     /* of all files, spares included, except those that only holds keep */
    uint64_t held_bytes;    /* of files that only holds keep; 0 for an inspected store */
    uint64_t max_log_bytes; /* 0: no limit; 0 for an inspected store */
    uint64_t live_bytes;    /* as in ls_stats */
    uint64_t counted_bytes; /* as in ls_stats */
    uint64_t needed_bytes;  /* size of the files that live records need; the store is full if it cannot have them */
    uint64_t pool_bytes;    /* that growth leaves for the work of open transactions */
    uint64_t pool_left;     /* by which this work may grow now; UINT64_MAX: the log may grow, or it is inspected */
    uint64_t growth_left;   /* by which live records may grow before growth is refused; UINT64_MAX: no bound is known,
                               or it is inspected */
    int full;               /* the store is full; 0 for an inspected store */
    int near;               /* it is nearly full: see ls_near_full_changes; 0 for an inspected store */
    int sys_errno; /* why the last try to make one more file failed; 0: it succeeded, or max_log_bytes is the reason */
} ls_fullness;

int ls_fullness_get(ls_store *store, ls_fullness *fullness);
/* How many times the store became full or had room again since the open. Each change signals the events of
   ls_event_fd. Never waits. */
uint64_t ls_fullness_changes(const ls_store *store);
/* How many times the store became nearly full or had enough room again since the open: odd while it is nearly full. That
   begins before growth is refused, when live records may grow by less than half a segment, and ends when they may grow by
   3/4 of one. That a disk has no room is known once another file could not be made: that may be with the first
   refusal. Each change signals the events of ls_event_fd. Never waits. */
uint64_t ls_near_full_changes(const ls_store *store);
/* Asks the spare thread to look whether the log may grow again, for example because its disk has room; what it finds
   signals the events. Without background threads the next append looks. Does not wait for it. */
void ls_look_for_room(ls_store *store);

typedef struct ls_segment_info {
    uint64_t first_lsn, epoch;
    uint64_t end_lsn; /* where the log ends in this segment */
    uint64_t live_bytes, live_records;
    int current;
} ls_segment_info;

int ls_segments(ls_store *store, ls_segment_info *into, size_t n, size_t *count);

/* ---- checkpoint: a file with the state as of one LSN, so that an open need not replay the log below it ---- */
typedef struct ls_checkpoint_info {
    uint64_t lsn; /* everything below it is in the checkpoint */
    uint64_t bytes, messages, places;
    uint64_t operations; /* pending */
    uint64_t transactions, took_us;
} ls_checkpoint_info;

/* Writes a checkpoint while other calls continue; on LS_OK it is in place and durable. On failure the store and an
   earlier checkpoint do not change. `info` may be NULL. */
int ls_checkpoint(ls_store *store, ls_checkpoint_info *info);
/* The contents of a checkpoint taken now; all fields but `lsn` and `took_us`. */
int ls_checkpoint_size(ls_store *store, ls_checkpoint_info *info);

typedef struct ls_checkpoint_difference {
    int differs;
    uint64_t id;       /* of the message or transaction that differs; 0: it is neither */
    uint32_t queue_id; /* of the queue that differs, or 0 */
    char text[120];    /* what differs */
} ls_checkpoint_difference;

/* Compares the state read from a checkpoint with the state that the log alone gives. Both stores are opened and not yet
   served, or inspected to the end; neither has changed since. Times are not compared. */
int ls_checkpoint_compare(ls_store *with, ls_store *without, ls_checkpoint_difference *difference);

/* ---- the tail: what keeps the base where it is; making the log shorter ---- */
#define LS_SEGMENT_DEAD    1 /* below the base: will be recycled, or is kept by a hold */
#define LS_SEGMENT_NEEDED  2
#define LS_SEGMENT_CURRENT 3
#define LS_SEGMENT_SPARE   4

typedef struct ls_tail_segment {
    uint64_t first_lsn; /* of a spare: from its file name */
    uint64_t epoch, end_lsn, live_bytes, live_records;
    uint64_t moved_bytes; /* the part of live_bytes that was relocated before */
    int state;
} ls_tail_segment;

typedef struct ls_tail {
    uint64_t segment_size, base_lsn;
    uint64_t needed_lsn; /* of the lowest live record; the end of the log if there is none */
    uint64_t durable_lsn, next_lsn, live_bytes;
    uint64_t segments; /* in the log, including dead ones */
    uint64_t spares, held_segments;
    uint64_t files_wanted;         /* the number of files, including spares, to which relocation shortens the log */
    uint64_t holding_messages;     /* with live records in the oldest segment */
    uint64_t holding_transactions; /* likewise */
    uint64_t holding_bytes;        /* these live records, in the oldest segment */
    int will_move;                 /* the log is longer than files_wanted and is being shortened */
} ls_tail;

#define LS_HOLDER_MESSAGE     1
#define LS_HOLDER_TRANSACTION 2

#define LS_HOLDS_PLACE   1 /* a place on a queue */
#define LS_HOLDS_LOCKED  2 /* a place that an open transaction has dequeued */
#define LS_HOLDS_ENQUEUE 3 /* an enqueue of an open transaction */
#define LS_HOLDS_DEQUEUE 4 /* a dequeue that undoes an enqueue of the same transaction */
#define LS_HOLDS_HIDDEN  5 /* a place that is not offered yet */
#define LS_HOLDS_EXPIRED 6 /* a place that is not offered any more */
#define LS_HOLDS_NOTE    7 /* a note on an enqueue of the same transaction */

typedef struct ls_holder_item {
    uint64_t tx_id;    /* 0: none */
    uint64_t position; /* on its queue */
    ls_times times;    /* of a place; of an enqueue zero */
    uint32_t queue_id;
    int kind, tx_state, distributed;
    ls_xid xid;
} ls_holder_item;

#define LS_HOLDER_ITEMS_MAX 16

/* A message or transaction with live records in the oldest segment. */
typedef struct ls_holder {
    uint64_t id;
    uint64_t lsn;       /* of its lowest live record */
    uint64_t start_lsn; /* of its start record, or the newest copy of that */
    uint64_t bytes;     /* of all its live records */
    uint64_t content_bytes;
    uint64_t time_us;     /* wall clock when it began; 0: not known */
    uint64_t prepared_us; /* wall clock; 0: not a prepared transaction */
    uint64_t operations;  /* of a transaction */
    uint64_t item_count;  /* all items; `items` has the first LS_HOLDER_ITEMS_MAX */
    uint32_t record_bytes;
    int kind;
    int at_least; /* time_us is the time of its relocation: it began earlier */
    int staged;   /* a message that was never enqueued */
    int moved;    /* it was relocated */
    int state;    /* of a transaction */
    int distributed;
    ls_xid xid;
    ls_holder_item items[16];
} ls_holder;

/* The log's segments, then the spares, as a list; and *done holders, at most holders_max, by their lowest LSN. Works on
   an inspected store too. */
int ls_tail_read(ls_store *store, ls_tail *tail, ls_tail_segment *segments, size_t n, size_t *count, ls_holder *holders,
                 size_t holders_max, size_t *done);

typedef struct ls_compaction {
    uint64_t bytes_before; /* of all files of the log */
    uint64_t bytes_after;
    uint64_t planned_bytes;   /* of all files after the shortest log that relocation can make */
    uint64_t segments_before; /* without spares */
    uint64_t segments_after, segments_moved, copied_bytes, live_bytes;
    uint64_t held_bytes; /* the part of planned_bytes that holds keep */
    int shrinks;         /* planned_bytes < bytes_before: only then the plan is carried out */
} ls_compaction;

/* Plans which of the oldest segments to relocate, and which spares to remove, so that the log becomes as short as it
   can be. Carries the plan out only if the log becomes shorter. With dry_run it only reports the plan. */
int ls_compact(ls_store *store, int dry_run, ls_compaction *report);

/* ---- readers: the log of a store that is closed or that a writer has open; they take no lock and write nothing ---- */
typedef struct ls_batch {
    const uint8_t *bytes; /* the whole batch, verified; valid until the next call */
    uint64_t size, lsn, epoch;
    uint64_t first_lsn; /* of its segment */
} ls_batch;

typedef struct ls_reader_info {
    uint8_t uuid[16];
    uint64_t segment_size, max_undurable_bytes, base_lsn;
    uint64_t end_lsn;  /* of the accepted log; while a writer runs, the durable LSN */
    uint64_t seen_lsn; /* end of the valid batches, including those of a last segment that was left out */
    uint64_t watermark_lsn, epoch, segments, spares, log_bytes, torn_bytes;
    int live;                   /* a writer has the store open */
    int clean;                  /* the log ends in an orderly close */
    uint64_t index;             /* of the newest batch that was read; 0: the log is not replicated */
    uint64_t term;              /* of that batch; 0 if index is */
    uint64_t known_durable_lsn; /* that it names: a majority had everything below; 0 if index is */
} ls_reader_info;

/* Opens at from_lsn; 0: at the base. Of a replicated log without a writer it gives what a majority is known to have.
   LS_NOT_A_STORE, LS_VERSION, LS_CORRUPT, LS_RECYCLED. */
int ls_reader_open(vfs *system, const char *store_dir, uint64_t from_lsn, ls_reader **reader);
/* As ls_reader_open, and also what another leader may still cut. */
int ls_reader_open_undurable(vfs *system, const char *store_dir, uint64_t from_lsn, ls_reader **reader);
/* The log of this reader begins at the segment of keep_lsn, even below the base, because another process holds it (see
   ls_hold_take). LS_RECYCLED: that segment is gone. Below the present base it gives the held records or an error.
   end_lsn: where an earlier reader of the log found its end (not one that was opened undurable); 0: unknown. This reader
   ends there. It then need not search for the end, and does not say how the log was left; `index` is then that of an
   earlier batch. LS_RECYCLED also if the log ends earlier now; ls_reader_next: LS_OPTION if no batch ends there. */
int ls_reader_open_kept(vfs *system, const char *store_dir, uint64_t keep_lsn, uint64_t end_lsn, uint64_t from_lsn,
                        ls_reader **reader);
/* This reader skips unreadable parts: missing segments, damaged files and headers, and the rest of a segment after a
   damaged batch. LS_CORRUPT only if no segment is left. keep_lsn 0: from the base. */
int ls_reader_open_permissive(vfs *system, const char *store_dir, uint64_t keep_lsn, uint64_t from_lsn,
                              ls_reader **reader);
typedef struct ls_lsn_range {
    uint64_t first_lsn;
    uint64_t end_lsn; /* not included */
} ls_lsn_range;

/* The parts of the log that a permissive reader has skipped so far, ascending. */
int ls_reader_missing(const ls_reader *reader, ls_lsn_range *into, size_t n, size_t *count);
void ls_reader_describe(const ls_reader *reader, ls_reader_info *info);
int ls_reader_segments(const ls_reader *reader, ls_segment_info *into, size_t n, size_t *count);
/* The next accepted batch. LS_END: no more; LS_CORRUPT: the log is damaged here; LS_RECYCLED: this part is gone. */
int ls_reader_next(ls_reader *reader, ls_batch *batch);
void ls_reader_close(ls_reader *reader);
/* Verifies about `bytes` more without returning batches; *lsn is where it stopped. LS_OK: there is more. Other
   results as ls_reader_next. */
int ls_reader_skim(ls_reader *reader, uint64_t bytes, uint64_t *lsn);
/* From now on the reader bypasses the page cache where the file system can. */
void ls_reader_past_cache(ls_reader *reader);

/* ---- rows as columns: the scanners below fill them in Arrow's layout ---- */
typedef struct ls_columns ls_columns; /* a batch of rows */

typedef struct ls_column {
    const uint8_t *values;
    uint64_t value_bytes;
    const uint8_t *offsets; /* int32, rows + 1 of them; NULL: items have a fixed width */
    const uint8_t *valid;   /* a bitmap; NULL: no value is null */
    uint64_t rows;          /* in the column of a list's items: the number of items */
    uint64_t nulls;
} ls_column;

/* Fills at most n of the batch's columns and returns how many it has. A column that was not requested is all zero. The
   pointers are valid until ls_columns_free. */
size_t ls_columns_get(const ls_columns *columns, ls_column *into, size_t n, uint64_t *rows);
void ls_columns_free(ls_columns *columns);

/* The columns of a record scan, those of fixed width first; docs/spark.md has their meanings. A dictionary column has the
   index only: type (see ls_rows_type), stream (message, transaction, log), queue (in ls_rows_options.named), outcome
   (LS_OUTCOME_...), reason (as in the format, 0 for accepted). */
#define LS_ROWS_LSN            0
#define LS_ROWS_TYPE           1
#define LS_ROWS_STREAM         2
#define LS_ROWS_ID             3
#define LS_ROWS_PREV           4
#define LS_ROWS_EPOCH          5
#define LS_ROWS_TIME           6
#define LS_ROWS_BATCH_LSN      7
#define LS_ROWS_SEGMENT        8
#define LS_ROWS_QUEUE_ID       9
#define LS_ROWS_QUEUE          10
#define LS_ROWS_QUEUE_COUNT    11
#define LS_ROWS_QUEUE_IDS      12
#define LS_ROWS_TX_ID          13
#define LS_ROWS_OUTCOME        14
#define LS_ROWS_EFFECT_LSN     15
#define LS_ROWS_EFFECT_TIME    16
#define LS_ROWS_ENQUEUE_LSN    17
#define LS_ROWS_ENQUEUE_TIME   18
#define LS_ROWS_XID            19
#define LS_ROWS_RECORD_BYTES   20
#define LS_ROWS_HEADER_BYTES   21
#define LS_ROWS_CONTENT_BYTES  22
#define LS_ROWS_CONTENT_OFFSET 23
#define LS_ROWS_FLAGS          24
#define LS_ROWS_RELOCATED      25
#define LS_ROWS_INLINE_ENQUEUE 26
#define LS_ROWS_DELETES        27
#define LS_ROWS_DELIVERY_COUNT 28
#define LS_ROWS_REDELIVERED    29
#define LS_ROWS_REASON         30
#define LS_ROWS_FROM_QUEUE_ID  31
#define LS_ROWS_NOT_BEFORE     32
#define LS_ROWS_EXPIRES        33
#define LS_ROWS_HEADER         34
#define LS_ROWS_NOTE           35
#define LS_ROWS_BODY           36
#define LS_ROWS_QUEUE_IDS_ITEM 37 /* the items of LS_ROWS_QUEUE_IDS */
#define LS_ROWS_COLUMNS        38

#define LS_OUTCOME_COMMITTED   0
#define LS_OUTCOME_ROLLED_BACK 1
#define LS_OUTCOME_PREPARED    2
#define LS_OUTCOME_OPEN        3

#define LS_ROWS_MOST 1048576 /* rows in one batch */

typedef struct ls_rows_options {
    uint64_t columns;   /* bit n: fill column n */
    uint64_t start_lsn; /* first LSN of the range */
    uint64_t stop_lsn;  /* stop before this LSN; 0: at the end */
    uint64_t as_of_lsn; /* outcomes as known below this LSN; 0: at the end */
    uint64_t rows_max;  /* of one batch */
    uint64_t body_max;  /* give at most this many bytes of a body */
    uint64_t types;     /* bit n: records of type number n (see ls_rows_type); the highest bit: unknown types; 0: all */
    int timed;          /* 1: only records of batches with start_us <= time < stop_us */
    uint64_t start_us, stop_us;
    const uint64_t *queue_ids; /* ascending: only rows with one of these queue ids; NULL: all */
    size_t queue_id_count;
    const uint64_t *ids; /* ascending: only these chains; NULL: all */
    size_t id_count;
    const uint64_t *named; /* ascending: the queues that have a name */
    size_t named_count;
    /* Places known from elsewhere, for records that the log no longer has. Ascending by id, then queue. */
    const uint64_t *place_ids, *place_queue_ids;
    const uint64_t *place_lsns;  /* where each became visible */
    const uint64_t *place_times; /* µs; 0: not known */
    size_t place_count;
} ls_rows_options;

typedef struct ls_rows ls_rows; /* a scan of records */

/* Scans the records of a reader from which nothing was read yet. The caller keeps the reader, and uses it for nothing
   else until the scan is freed. The scan copies all that the options point to. LS_OPTION. */
int ls_rows_open(ls_reader *reader, const ls_rows_options *options, ls_rows **rows);
/* Gives the next batch, of at least one row; the caller frees it. LS_OK with NULL: this part of the log had no matching
   row, call again. LS_END: no more. LS_CORRUPT: the log is damaged; all rows before that were given. LS_RECYCLED. */
int ls_rows_next(ls_rows *rows, ls_columns **batch);
/* The type of a column: int32, int64, bool, string, binary, time (microseconds in UTC), name (an index of strings) or list
   (of int64), followed by "!" if it is never null. NULL: no such column. */
const char *ls_rows_column(unsigned column);
/* The record type with this number in the type column; 0: none so far. A type that this version does not know gets its
   number when the scan meets it. */
uint16_t ls_rows_type(const ls_rows *rows, unsigned number);
void ls_rows_free(ls_rows *rows);

/*
 * Messages as rows: one for each message that has ended, by (end_lsn, id), and one for each that is still open. The columns
 * are those of ls_message_rows_column, the items of places last. A queue is its index in `queue_ids`, an outcome is
 * LS_LIFE_..., a reason is the log's code less one.
 */
#define LS_MESSAGE_COLUMNS   42
#define LS_MESSAGE_ROWS_MAX  1048576
#define LS_MESSAGE_NAMES_MAX 16777216

/* The tables that have a column: messages that have ended, open ones, and the items of places in both. A column with
   LS_MESSAGES_BODY is there only if bodies were asked for. */
#define LS_MESSAGES_CLOSED 1
#define LS_MESSAGES_OPEN   2
#define LS_MESSAGES_PLACE  4
#define LS_MESSAGES_BODY   8

#define LS_LIFE_DEQUEUED      0
#define LS_LIFE_QUEUE_DELETED 1
#define LS_LIFE_DESTROYED     2
#define LS_LIFE_ROLLED_BACK   3
#define LS_LIFE_DROPPED       4

typedef struct ls_message_rows ls_message_rows; /* one pass over the log */

/* A column of messages as name:type, with the types of ls_rows_column; that of the column `places` is places. *tables has
   the tables that have it. NULL: no such column. */
const char *ls_message_rows_column(unsigned column, int *tables);

/* A pass over the records from start_lsn up to, but not including, stop_lsn. LS_OPTION. */
int ls_message_rows_new(uint64_t start_lsn, uint64_t stop_lsn, const uint32_t *queue_ids, size_t n, uint64_t batch_rows,
                        ls_message_rows **rows);
/* Call it before anything else is given to the pass. The rows then have the column `body`: the first body_bytes of the
   whole content, null if a part of it cannot be read any more. The reader must stay open as long as rows are read.
   `file` is an open file with the bodies that ls_message_rows_seed_bodies names, or -1. LS_OPTION, LS_WRONG_STATE. */
int ls_message_rows_bodies(ls_message_rows *rows, uint64_t body_bytes, int file);
/* Call it after ls_message_rows_seed_all, for those of its messages whose bodies the earlier pass could read. The body of
   ids[i] is in the file: sizes[i] bytes from starts[i] on. LS_OPTION: one is not open, or has an impossible place. */
int ls_message_rows_seed_bodies(ls_message_rows *rows, const int64_t *ids, const uint64_t *starts,
                                const uint64_t *sizes, size_t n);
/* Call it before the first rows. Gives the pass the states of n messages that an earlier pass left open at
   start_lsn, as Arrow arrays; the state of ids[i] is at states[offsets[i]] up to offsets[i + 1]. LS_OPTION: one is
   not a state. */
int ls_message_rows_seed_all(ls_message_rows *rows, const int64_t *ids, const uint8_t *states, const int32_t *offsets,
                             size_t n);
/* The same for the bytes that ls_message_rows_rest returned after the earlier pass. */
int ls_message_rows_seed_rest(ls_message_rows *rows, const uint8_t *rest, size_t bytes);
/* Gives the next rows; the caller frees them. `reader` was opened at start_lsn and is used for nothing else. LS_OK with
   NULL: this part of the log gave no row, call again. LS_END: no more. LS_RECYCLED: the log at start_lsn is gone. */
int ls_message_rows_next(ls_message_rows *rows, ls_reader *reader, ls_columns **batch);
/* After LS_END: the messages that are still open, by id. */
int ls_message_rows_open(ls_message_rows *rows, ls_columns **batch);
/* After LS_END: the state that belongs to no message, for a later pass; 0 bytes if there is none. Valid until the next
   call. */
int ls_message_rows_rest(ls_message_rows *rows, const uint8_t **rest, size_t *bytes);
void ls_message_rows_free(ls_message_rows *rows);

/* ---- a copy of a replicated log ---- */

typedef struct ls_replica_stats {
    uint64_t batches, applied_batches; /* taken, and in the table */
    uint64_t cut_batches;              /* taken and abandoned */
    uint64_t forces;
    uint64_t files_removed;     /* of abandoned parts of the log */
    uint64_t segments_recycled; /* below the base */
    uint64_t checkpoints;
    uint64_t device_bytes; /* written to files of the store */
} ls_replica_stats;

/*
 * A replicated log has several copies, each in the directory of a member; a program moves batches from the copy that leads to those
 * that follow, says which batches a majority has, and says which copy leads in which term. docs/replication.md
 * describes all of it.
 *
 * A member's directory is a host: VOTE, and the copy in copy-N. One thread at a time uses a host and its copy that follows. The copy
 * that leads is a store, and its batches are taken by one thread.
 */
typedef struct host ls_host;
typedef struct replica ls_replica; /* the copy of a host that follows */

typedef struct ls_replica_batch {
    uint64_t term, index;
    uint64_t lsn, end_lsn; /* of the batch */
    uint64_t first_lsn;    /* of its segment */
    uint64_t known_durable_lsn;
    const uint8_t *header; /* 4096 bytes, of its segment, if it is the segment's first batch; else NULL */
    const uint8_t *bytes;  /* end_lsn - lsn of them */
} ls_replica_batch;

#define LS_ENTRY_BATCH   1
#define LS_ENTRY_FIRST   2 /* the empty first batch of a term */
#define LS_ENTRY_MEMBERS 3 /* a configuration, alone in its batch */

typedef struct ls_replica_entry {
    uint64_t index, term;
    uint64_t lsn, end_lsn; /* of the batch */
    uint64_t first_lsn;    /* of its segment */
    uint32_t kind;         /* LS_ENTRY */
} ls_replica_entry;

/* The files that a copy has room for. */
typedef struct ls_replica_room {
    uint64_t member;
    uint64_t spares;      /* files in addition to those of its log */
    uint64_t first_lsn;   /* of the segment that it writes */
    uint64_t applied_lsn; /* as in ls_replica_info */
    int32_t sys_errno;    /* the reason why it can make no more files; 0: it can */
} ls_replica_room;

/* The results of ls_host_apply. */
typedef struct ls_applied {
    uint64_t term; /* of the batch; 0: none was asked for */
    uint64_t copy; /* the copy's number */
    ls_replica_room room;
    int32_t has_change; /* 1: ls_host_next_change gives one */
} ls_applied;

typedef struct ls_replica_info {
    /* Of the copy's newest batch, which is forced here; 0: the log is not replicated yet. */
    uint64_t term, index, end_lsn;
    uint64_t applied_term, applied_index, applied_lsn; /* of the newest batch that is durable, and in the table */
    /* A majority has everything below it, as far as the copy knows. */
    uint64_t durable_lsn;
    uint64_t base_lsn;
    uint64_t least_term;       /* the lowest term in which it may lead */
    uint64_t messages;         /* in the table */
    uint64_t changes_from_lsn; /* ls_host_next_change gives changes from here on; the log may have earlier ones, too */
    ls_replica_stats stats;
} ls_replica_info;

typedef struct ls_member {
    uint8_t uuid[16]; /* of the store; zeros: take the UUID of the store in copy-N */
    uint8_t cluster_uuid[16];
    uint64_t member_id; /* from 1 on, and never given again */
    uint64_t copy;      /* N, from 1 on */
} ls_member;

typedef struct ls_host_info {
    ls_member member;
    uint64_t term,
        voted_for; /* 0: no vote. Where only the log has the term, the vote counts as given to the member itself */
    uint64_t start_term;              /* that VOTE had when the host was opened */
    uint64_t rebuild;                 /* how often the copy was removed and made again */
    uint64_t floor_term, floor_index; /* the log must reach this batch at a start */
    uint64_t tail_term, tail_index; /* the newest batch with an index that is forced here; 0: none, or the copy leads */
} ls_host_info;

/* Makes host_dir/VOTE. The store in copy-N becomes the member's copy, and no byte of it is written; without that directory an update
   brings one. A VOTE that is detached is replaced. LS_OPTION: there is a VOTE that is not, or another copy; LS_NOT_A_STORE: copy-N
   is none, or has another UUID; LS_REPLICATED: it is a member's copy that lost its VOTE; LS_LOCKED, LS_FULL. */
int ls_host_create(vfs *system, const char *host_dir, const ls_member *member);
/* Reads and locks VOTE, reads the log and forces it again, and applies its durable part. LS codes of ls_open;
   options.create has no effect. LS_NOT_A_STORE: without VOTE nothing opens; or it is detached. LS_CORRUPT: VOTE is
   damaged, or the log ends below its floor: it is older than what the member had acknowledged. */
int ls_host_open(vfs *system, const char *host_dir, const ls_options *options, ls_host **host);
void ls_host_describe(const ls_host *host, ls_host_info *info);
/* On return the vote is forced in VOTE, so other members may learn of it. LS_REFUSED: the term decreases, or another
   vote was given in it; nothing was written. LS_OUTCOME_UNKNOWN, then LS_POISONED: close the host and open it again. */
int ls_host_vote(ls_host *host, uint64_t term, uint64_t voted_for);
ls_replica *ls_host_replica(
    ls_host *host); /* NULL: the copy leads, or there is none. Valid until a call that leads or removes it */
/* Everything above this index is abandoned, once VOTE allows it. LS_REFUSED: some of that is durable, or there is no such index. */
int ls_host_cut(ls_host *host, uint64_t index);
/*
 * The copy leads in this term from now on, for which the member voted in this run and has not led in it. `config` is the configuration
 * with which replication begins, if the log is not replicated yet; else NULL. Its first batch was written, handed out and forced
 * here. The caller frees the store, and then calls ls_host_follow or ls_host_close. LS_REFUSED: not in that term; LS_OPTION: the
 * term lies below least_term. After another failure ls_host_follow opens the copy again.
 */
int ls_host_lead(ls_host *host, uint64_t term, const uint8_t *config, size_t config_bytes, ls_store **store);
int ls_host_follow(ls_host *host); /* the copy follows again; as ls_host_open */
/* Lets VOTE note, at most each half second, how far the log reaches. Call it now and then while batches are forced,
   when no peer waits for an answer. `leads`: the store of the copy that leads; NULL: it follows. */
int ls_host_note_tail(ls_host *host, const ls_store *leads);
/*
 * The kept window: the newest batches, which the copy can still give to other members. With options.kept_bytes an open
 * puts the batches of the last kept_bytes bytes into the window, and never fewer than are not known to be durable.
 * Later batches are added; those of a leader by ls_replica_next. Batches stay in the window, with their segments, until
 * the program drops them, which it must do before the log needs the space. The thread that uses the host takes the
 * leader's batches, too.
 */
void ls_host_kept(const ls_host *host, uint64_t *first, uint64_t *last); /* indexes; last below first: there are none */
void ls_host_drop_kept(ls_host *host, ls_store *leads,
                       uint64_t index); /* those below it; leads: NULL: the copy follows */
int ls_host_entry(const ls_host *host, uint64_t index, ls_replica_entry *entry); /* LS_REFUSED: it is not kept */
/* One of them, with its bytes, which were read and verified, and are valid until the next call. LS_REFUSED: it is not kept; LS_CORRUPT,
   LS_IO, LS_NO_MEMORY. */
int ls_host_read(ls_host *host, uint64_t index, ls_replica_batch *batch);
/* The configuration in a batch of the kind LS_ENTRY_MEMBERS; it points into the batch. LS_OPTION: there is none. */
int ls_replica_members(const ls_replica_batch *batch, const uint8_t **config, size_t *config_bytes);
/* The newest configuration that is known to be durable, of a copy that follows; valid until the next call for the host. LS_OPTION: there
   is none. */
int ls_host_members(const ls_host *host, uint64_t *index, const uint8_t **config, size_t *config_bytes);
/* The copy's catalog has every change below lsn, which never decreases. Segments from there on are kept, whatever the
   base is, while the copy follows and while it leads. */
void ls_host_catalog_has(ls_host *host, ls_store *leads, uint64_t lsn);
/* A change of the catalog, which the log has and the catalog may lack. The rows are those of docs/format.md, section 6. */
typedef struct ls_catalog_rows {
    uint64_t lsn, end_lsn; /* of its record, the last one if it has several parts */
    uint32_t row_count;
    uint64_t bytes;
    const uint8_t *rows;
} ls_catalog_rows;

/*
 * The next durable change, in the order of the log, valid until the next call; LS_END: there is none now. With
 * options.catalog_lsn the calls give the changes from changes_from_lsn on (ls_replica_info) after an open, and then
 * those that the copy applies while it follows. A copy that leads has the changes of the log before its term. The
 * program takes these, with `leads`, before the store serves (LS_WOULD_WAIT before its first batch is durable).
 */
int ls_host_next_change(ls_host *host, ls_store *leads, ls_catalog_rows *change);
/*
 * Of a copy that follows: a majority has everything up to the kept batch of this index (0: nothing new), and that is applied, as
 * ls_replica_durable does. Also gives the result of ls_replica_room_here, so that a program makes one call for the
 * batches that arrived. LS_REFUSED: the batch is not kept.
 */
int ls_host_apply(ls_host *host, uint64_t index, ls_applied *applied);
/* Removes the copy's directory, after VOTE names the next copy. */
int ls_host_remove_copy(ls_host *host);
/*
 * The same for a host that is not open; its copy need not be readable. Before the call the group has removed this
 * member durably, in `term`. Afterwards VOTE has at least that term, and a rebuild number above its own and above
 * `counted`, which another member knows (0: none). *copy is the number of the copy that an update will bring.
 * LS_REFUSED: VOTE is detached.
 */
int ls_host_discard(vfs *system, const char *host_dir, uint64_t term, uint64_t counted, uint64_t *copy);
/* Free a store that leads before this call. NULL: does nothing. */
void ls_host_close(ls_host *host);
/* Ends replication in a host that is not open: its copy becomes a single store with everything in it, including batches
   that no majority had. `highest_term` is the highest term that the program knows of. On LS_OK ls_open opens copy-N, N
   = *copy. After a failure or a crash the same call finishes, and nothing else opens the copy. LS_OPTION: it is not
   replicated. LS_WOULD_WAIT: options.catalog_lsn is given and lies below the end of the log. The member no longer takes
   part; the program gives the catalog all changes of the log, including those that no majority had, and calls again
   with the end of the log as catalog_lsn. *copy is valid then, too. */
int ls_host_detach(vfs *system, const char *host_dir, const ls_options *options, uint64_t highest_term, uint64_t *copy);
/* The same for a backup of a copy. LS_OPTION: it is not replicated, or VOTE lies next to it. */
int ls_backup_detach(vfs *system, const char *store_dir, const ls_options *options);

/* Takes the next batch: checks it as recovery would, writes it, forces it. LS_REFUSED: the batch does not follow the
   end of this log, or VOTE does not have its term; LS_FULL: the disk has no room for the next segment, and the same
   call may succeed later; nothing was written in either case. LS_POISONED after a failed write: ls_host_follow opens it
   again. */
int ls_replica_take(ls_replica *replica, const ls_replica_batch *batch);
/*
 * The same for the first *taken of n batches, at least one on LS_OK, so that a copy that lags catches up: where three or more lie in
 * one segment, up to 24 of them are written with one force, under a mark that is forced before (docs/format.md, section
 * 8). The codes are those of the first batch; a later batch that does not follow is left for the next call.
 */
int ls_replica_take_many(ls_replica *replica, const ls_replica_batch *batches, size_t n, size_t *taken);
/* A majority has everything below lsn, the end of a batch. LS_REFUSED: lsn lies beyond the end of this log. */
int ls_replica_durable(ls_replica *replica, uint64_t lsn);
/*
 * Begins a checkpoint of the table as it is now; *begun 0: none can be taken at this moment, or one is. Batches can be taken
 * meanwhile. With options.background a thread writes it, else each call of ls_replica_checkpoint_ended does a part of that. LS_IO,
 * LS_NO_MEMORY.
 */
int ls_replica_checkpoint_begin(ls_replica *replica, int *begun);
/* *ended 1: no checkpoint is in progress. The code is then the result of the last one: LS_FULL, LS_IO or LS_NO_MEMORY
   if there is no new checkpoint; nothing else has changed. */
int ls_replica_checkpoint_ended(ls_replica *replica, int *ended);
/* Begins a checkpoint, and returns when its file is forced. */
int ls_replica_checkpoint(ls_replica *replica, int *taken);
int ls_replica_checkpoint_is_due(const ls_replica *replica);
void ls_replica_describe(const ls_replica *replica, ls_replica_info *info);
/* The room that the copy has; `member` is 0. If the copy has fewer spares than its reserve, a thread tries to make one,
   at most once a second; so while there is an error, a program calls this repeatedly. */
void ls_replica_room_here(ls_replica *replica, ls_replica_room *room);

int ls_replica_leads(ls_store *store); /* its first batch is durable */
/* The thread (pthread_self) that takes the batches and says what a majority has. Calls that it makes and that may wait for that return
   LS_OPTION, and do nothing; those with LS_TRY go on. Call it before other threads use the store. */
void ls_replica_moved_by(ls_store *store, uint64_t thread);
/* The same as ls_serve, once the first batch is durable; LS_WOULD_WAIT: it is not durable yet. A queue that is not
   among the ids stays. */
int ls_replica_serve(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id);
/* The next batch that was handed out, valid until the next call. LS_END: there is none now. */
int ls_replica_next(ls_store *store, ls_replica_batch *batch);
uint64_t ls_replica_forced(const ls_store *store); /* the index up to which batches are forced here */
/* Signalled when a batch is handed out and when one is forced; closed with the store. -1: the store does not lead. */
int ls_replica_event_fd(const ls_store *store);
int ls_replica_majority_has(ls_store *store, uint64_t lsn); /* LS_REFUSED: it lies beyond the batches that were taken */
/* The room of the other voters' copies, as each reported it last; a voter that is not connected is left out. A copy
   that can make no more files limits the growth of the log as the leader's own disk does. LS_OPTION: more than 16. */
int ls_replica_others_have(ls_store *store, const ls_replica_room *all, size_t n);
/*
 * Call it a few times a second. If appends have waited since the call before for one file, or one directory, to be
 * forced, nothing may be left that shows the program whether this disk hangs. So an empty batch is handed out then,
 * without a wait; on a disk that hangs it stays unforced. LS_CLOSED: the store does not lead.
 */
int ls_replica_probe_disk(ls_store *store);
/* Every member of the configuration runs a program that knows the states of places: from now on this leader writes them
   (R12). Until then it drops delivery counts, and ls_annotate, ls_move and times get LS_WRONG_STATE. A log that has states
   already is written with them. *remembers is the answer, with `every` 0 too. LS_CLOSED: the store does not lead. */
int ls_replica_remember(ls_store *store, int every, int *remembers);
/* Writes a new configuration, alone in a batch; *index is the index of the batch. LS_OPTION. */
int ls_replica_change_members(ls_store *store, const uint8_t *config, size_t config_bytes, uint64_t *index);
/*
 * A change of the catalog, in a record of the log; *lsn is its end. The deletions of the queues that it deletes stand in
 * the same batch, so no copy has one without the other. The call waits until a majority has the change; then the caller
 * changes its catalog. LS_OPTION: these are no rows, or too many for one record together with the deletions; LS_FULL,
 * LS_NO_MEMORY: nothing was written; LS_OUTCOME_UNKNOWN: it may take effect.
 */
int ls_replica_change_catalog(ls_store *store, const uint8_t *rows, size_t bytes, uint32_t row_count,
                              const uint32_t *deleted_queue_ids, size_t deleted, uint64_t *lsn);
/* Ends leading: waiting calls return LS_OUTCOME_UNKNOWN, others LS_POISONED. Then call ls_free and ls_host_follow. */
int ls_replica_cease(ls_store *store);

/* ---- identity: no member starts with less than it had acknowledged ---- */

/* A peer's record of one member, in the peer's memory; all zero: the member has acknowledged nothing yet. Only the functions below
   change it. */
typedef struct ls_identity {
    uint64_t rebuild, acknowledged, tail_term, tail_index, voted;
} ls_identity;

/* A member sends this first on each connection, with the values on its disk (ls_host_info). */
typedef struct ls_identity_told {
    uint64_t rebuild, tail_term, tail_index, start_term;
    int new_run; /* its process is another one than the process that spoke to this peer before */
} ls_identity_told;

/* A text says why the member is refused; NULL: it is accepted. durable_...: the last batch that the peer knows to be durable; leads: the
   term that it leads, 0: it follows. */
const char *ls_identity_judge(const ls_identity *counted, const ls_identity_told *told, uint64_t durable_term,
                              uint64_t durable_index, uint64_t leads);
/* The member has all batches up to this one of the peer's log; the peer leads the term. */
void ls_identity_acknowledged(ls_identity *counted, uint64_t rebuild, uint64_t term, uint64_t batch_term,
                              uint64_t batch_index);
void ls_identity_voted(ls_identity *counted, uint64_t term); /* for the peer */
/* The peer's own log was cut and now ends at `left`; or an update replaced it, and up to `left` the peer had known it
   to be durable. */
void ls_identity_lower(ls_identity *counted, uint64_t left_term, uint64_t left_index);

/* ---- an update: a copy is brought up to date by whole segments, when batches alone cannot ---- */
#define LS_UPDATE_SEGMENTS_MAX 1048576

typedef struct update_source ls_update_source;
typedef struct update ls_update;

/* Of a segment of the log, the part that belongs to the log and lies below the update's end. */
typedef struct ls_update_segment {
    uint64_t first_lsn;
    uint64_t term;         /* its epoch */
    uint64_t prev_end_lsn; /* where the log before it ends */
    uint64_t bytes;        /* from the file's start, the header included */
    uint64_t checksum;     /* XXH64, seed 0, of these bytes */
} ls_update_segment;

/* Everything that an update sends, except the catalog: the values of META, the end of the log, and its segments. */
typedef struct ls_update_manifest {
    uint8_t uuid[16];
    uint64_t segment_size, max_undurable_bytes, created_us;
    uint64_t end_lsn, term, index; /* of the batch at the end, which a majority has */
    size_t segment_count;
} ls_update_manifest;

/*
 * The sender. It works while a program has the copy open, in the same process or in another. One thread at a time uses
 * it.
 *
 * Opens it: takes a hold on the log, which keeps these segments and all later ones (name, limit_bytes, lasts_us: as
 * ls_hold_take; reads renew the time of the hold when that is due). The end is that of a durable batch, and the
 * beginning is the base that an open of a log with this end finds, or the segment of `applied_lsn`, if that is lower.
 * `applied_lsn`: the LSN that the sender's catalog has reached; 0: it has no catalog. LS_WOULD_WAIT: the durable part
 * of the log does not say yet where it begins, or has fewer than two batches with an index; try again. LS_RECYCLED: the
 * log at applied_lsn is gone. LS codes of ls_hold_take. In each call LS_RECYCLED also means that the copy itself was
 * replaced or removed meanwhile.
 */
int ls_update_source_open(vfs *system, const char *store_dir, const char *hold_name, uint64_t limit_bytes,
                          uint64_t lasts_us, uint64_t applied_lsn, ls_update_source **source);
/* Reads and verifies about `bytes` more, for the manifest. LS_END: the manifest is complete. LS_RECYCLED,
   LS_CORRUPT. */
int ls_update_source_step(ls_update_source *source, uint64_t bytes);
/* Fills up to n of the segments. LS_WOULD_WAIT: steps are left, and only *manifest was filled. */
int ls_update_source_manifest(const ls_update_source *source, ls_update_manifest *manifest, ls_update_segment *segments,
                              size_t n);
/* The newest configuration in the log that is sent, and the index of its batch; valid until the close. LS_WOULD_WAIT: steps are left.
   LS_CORRUPT: there is none. */
int ls_update_source_members(const ls_update_source *source, uint64_t *index, const uint8_t **config,
                             size_t *config_bytes);
/* Bytes of one segment. LS_OPTION: the manifest has no such part; LS_RECYCLED: the hold was lost; begin a new
   update. */
int ls_update_source_read(ls_update_source *source, uint64_t first_lsn, uint64_t offset, uint8_t *into, size_t bytes);
/* Lets the log below `lsn` go (0: nothing), and begins the time of the hold again, as ls_hold_advance. */
int ls_update_source_keep(ls_update_source *source, uint64_t lsn);
void ls_update_source_close(ls_update_source *source); /* releases the hold; NULL: nothing */

/*
 * The receiver: a host that follows, or has no copy yet; the host stays open. ls_update_begin and ls_update_finish use the host, so
 * they are for its thread. The other calls use the update alone, one thread at a time: the host may take batches meanwhile.
 *
 * Begins the update in the directory of the next copy. Files that an earlier update left there are used again if they
 * agree with the manifest. The directory is locked. LS_REFUSED: the manifest contradicts itself, is of another store,
 * or does not reach what this member has; the host leads, or VOTE does not have the manifest's term. LS_FULL: the disk
 * has no room. In both cases nothing was written.
 */
int ls_update_begin(ls_host *host, const ls_update_manifest *manifest, const ls_update_segment *segments,
                    ls_update **update);

typedef struct ls_update_part {
    uint64_t first_lsn; /* of the segment */
    uint64_t offset;
    uint64_t bytes; /* from there on; 0: none yet, call again */
} ls_update_part;

/*
 * The part that the sender is to give next. Before that the call looks at one segment that is here already: in this directory, or in
 * the present copy, from which it is copied. LS_END: everything is here.
 */
int ls_update_next(ls_update *update, ls_update_part *part);
/* Writes bytes from the beginning of that part. LS_REFUSED: the bytes do not belong there; or the segment is complete
   now and differs from the manifest, and is asked for again. LS_IO, LS_FULL, LS_POISONED: only ls_update_free is
   possible. */
int ls_update_write(ls_update *update, uint64_t first_lsn, uint64_t offset, const uint8_t *from, size_t bytes);
/* The new copy's directory, for the catalog, which is put there before the end; it is forced with the rest. */
const char *ls_update_path(const ls_update *update);
/*
 * Forces everything, opens the new copy like any copy, and lets VOTE name it: the host follows with it, and the
 * previous copy is removed. LS_REFUSED: something is missing, or the member has taken batches beyond the end meanwhile.
 * LS_CORRUPT: the log does not end where the manifest says. After a failure the previous copy counts, unchanged; after
 * LS_OUTCOME_UNKNOWN the next open of the host finds out which copy counts.
 */
int ls_update_finish(ls_update *update);
/* Ends the update; NULL: does nothing. Unless the update was finished, the received bytes stay for the next update. */
void ls_update_free(ls_update *update);

/* ---- inspection: the state that a log gives, without opening the store; takes no lock and writes nothing ---- */
/* Also compare back-links, batches and footers with each other; also what is undurable. */
#define LS_INSPECT_CHECK         1
#define LS_INSPECT_DIRECT        2 /* bypass the page cache where the file system can */
#define LS_INSPECT_NO_CHECKPOINT 4 /* replay all of the log; LS_INSPECT_CHECK implies it */

typedef struct ls_inspection {
    ls_reader_info log;
    uint64_t next_lsn; /* where the reading stopped */
    uint64_t bytes_read;
    uint64_t footers;      /* checked */
    uint64_t staged;       /* messages without an enqueue, also without a pending one */
    uint64_t stated;       /* places with a count, a time, a note or a header of their own */
    uint32_t queue_id_max; /* the highest that a record names */
} ls_inspection;

typedef struct ls_queue_info {
    uint32_t id;
    int deleted;                                        /* the log deletes it; it has no places */
    uint64_t depth, locked, content_bytes, ready_bytes; /* ready: those that are not locked, hidden or expired */
    uint64_t hidden, expired;                           /* at this moment, by the wall clock */
} ls_queue_info;

typedef struct ls_open_tx {
    uint64_t id;
    uint64_t start_lsn;   /* of its start record, or of the newest copy of that */
    uint64_t started_us;  /* wall clock of that batch; 0: not known */
    uint64_t prepared_us; /* wall clock; 0: not prepared */
    uint64_t operations;
    int state, distributed;
    ls_xid xid;
} ls_open_tx;

/* A pending operation of a transaction. */
typedef struct ls_open_work {
    uint64_t message_id;
    uint64_t lsn; /* of its record */
    uint32_t queue_id;
    uint32_t order_index; /* of an enqueue, within its transaction */
    int enqueues;         /* 1: an enqueue; 0: a dequeue */
    int locks;            /* a dequeue that locks an existing place */
} ls_open_work;

/* Bytes inside a record of the log. */
typedef struct ls_own_bytes {
    uint64_t lsn;       /* of the record; 0: there are none */
    uint32_t at, bytes; /* where they begin in it, and their number */
} ls_own_bytes;

typedef struct ls_message_place {
    uint64_t order_lsn; /* of the record that made it visible */
    uint32_t queue_id, order_index;
    ls_times times;
    ls_own_bytes note, header; /* header: its own, which stands for the message's and may be of 0 bytes */
    uint32_t delivery_count;   /* that the log has */
    int locked;
    int hidden, expired; /* at this moment, by the wall clock */
} ls_message_place;

/*
 * Opens a store for inspection only. While a writer runs, this shows the durable state at this moment; otherwise, the
 * state that an open would recover. One thread calls ls_inspect_step until LS_END. After that these work: the functions
 * below, ls_queue_depth, ls_cursor_... (LS_CURSOR_ALL), ls_message, ls_segments, ls_in_doubt, ls_tail_read,
 * ls_recovery_report, ls_recovery_items. A call that would change the store gets LS_CLOSED. ls_free frees it.
 * LS_RECYCLED: the writer recycled a segment that was still to be read; begin again. LS_CORRUPT: the log is damaged or
 * contradicts itself.
 */
int ls_inspect_open(vfs *system, const char *store_dir, int flags, ls_store **store);
/* Reads about `bytes` more; *lsn is where it stopped. LS_OK: there is more; LS_END: all is read. */
int ls_inspect_step(ls_store *store, uint64_t bytes, uint64_t *lsn);
void ls_inspect_describe(const ls_store *store, ls_inspection *into);
/* Call it once. Compares with the catalog's queues as ls_serve does, with the same errors, and drops the queues that
   ls_serve would drop. Later answers are the same as after an open. */
int ls_inspect_catalog(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id);
int ls_inspect_queues(ls_store *store, ls_queue_info *into, size_t n, size_t *count);
int ls_inspect_transactions(ls_store *store, ls_open_tx *into, size_t n, size_t *count);
int ls_inspect_work(ls_store *store, uint64_t tx_id, ls_open_work *into, size_t n, size_t *count);
/* The message's places; *start_lsn: of its start record, or of the newest copy of that. LS_UNKNOWN_MESSAGE. */
int ls_inspect_places(ls_store *store, uint64_t id, uint64_t *start_lsn, ls_message_place *into, size_t n,
                      size_t *count);

/* ---- holds: a reader in another process keeps a part of the log from being recycled, within limits ---- */
#define LS_HOLDS_MAX     64  /* at once; more are refused, or not honoured */
#define LS_HOLD_NAME_MAX 64  /* bytes, of A-Z a-z 0-9 . _ - */
#define LS_HOLD_DAYS_MAX 366 /* the longest time without renewal */

#define LS_HOLD_HONOURED   1
#define LS_HOLD_EXPIRED    2
#define LS_HOLD_OVER_LIMIT 3
#define LS_HOLD_ABANDONED  4 /* its process has ended; the writer removes it */
#define LS_HOLD_DAMAGED    5
#define LS_HOLD_FOREIGN    6 /* of another store */
#define LS_HOLD_OVERTAKEN  7 /* it ran out, and a part of the log that it kept is recycled */

typedef struct ls_hold ls_hold;

typedef struct ls_hold_info {
    char name[256];       /* without .hold */
    uint64_t lsn;         /* it keeps everything from here on */
    uint64_t limit_bytes; /* the most that it may keep; 0: no limit */
    uint64_t kept_bytes;  /* of segments that the writer no longer needs */
    uint64_t created_us;  /* wall clock */
    uint64_t expires_us;  /* wall clock */
    int state;
} ls_hold_info;

/* Keeps everything from `lsn` on (0: from the base on) readable until one of these: the hold is released; its process
   ends; `lasts_us` pass since it was taken or advanced; it alone would keep more than `limit_bytes`. LS_RECYCLED: `lsn`
   is below the base and no other hold keeps it. LS_BUSY: the name is taken, or there are LS_HOLDS_MAX. LS_OPTION. */
int ls_hold_take(vfs *system, const char *store_dir, const char *name, uint64_t lsn, uint64_t limit_bytes,
                 uint64_t lasts_us, ls_hold **hold);
/* Keeps from `lsn` on (0: as before), and starts the time again. LS_RECYCLED: it had run out by time or limit, and a
   part from there on is gone. */
int ls_hold_advance(ls_hold *hold, uint64_t lsn, uint64_t lasts_us);
void ls_hold_describe(const ls_hold *hold, ls_hold_info *info); /* as last written */
/* Only the process that took the hold may release it. */
void ls_hold_release(ls_hold *hold);
/* A reader whose log begins at the hold's segment, even below the base; it may outlive the hold. */
int ls_hold_read(const ls_hold *hold, uint64_t from_lsn, ls_reader **reader);
/* All holds of a store, by name. Changes nothing. */
int ls_holds(vfs *system, const char *store_dir, ls_hold_info *into, size_t n, size_t *count);

/* ---- for bindings ---- */

/* The sizes of n items from the n + 1 offsets of an Arrow array, 4 or 8 bytes wide. Reads each offset once. LS_OPTION: they
   do not ascend, or one is negative or above data_bytes. No other thread may change them during the call. */
int ls_sizes_of_offsets(const uint8_t *offsets, size_t width, size_t n, uint64_t data_bytes, uint64_t *sizes);

/* cffi:end */

#pragma GCC visibility pop

#endif
