/*
 * logstore: an append-only, log-structured message store. The public C API: what the Python package binds through
 * cffi, and what a broker written in C links.
 *
 * Conventions
 *   - Every function that can fail returns an ls_code (0 is LS_OK); ls_last_error() then says, for the calling
 *     thread, what happened and where.
 *   - All functions are safe from many threads, except that one thread at a time uses a cursor or a reader. Of several
 *     threads that give one transaction its outcome, one does, and the others get LS_TRANSACTION_ENDED; ls_tx_free may
 *     come while another thread is inside a call with that handle, and no call may begin after it.
 *   - LS_WAIT makes a change durable before the call returns (unless the store was opened relaxed). Without it,
 *     the change is durable once ls_durable_lsn() >= the ls_next_lsn() read after the call.
 *   - LSNs and ids are byte positions in the log; 0 is never one.
 *   - After fork() the child gets LS_FORKED from everything and may only free.
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
    LS_IO,     /* a system call failed; ls_error.sys_errno says how. Nothing was changed. */
    LS_OPTION, /* an argument or option is out of its range */
    LS_NOT_A_STORE,
    LS_LOCKED, /* another process or handle has the store open */
    LS_FULL,
    LS_POISONED,        /* a write or sync failed earlier; nothing more is accepted */
    LS_OUTCOME_UNKNOWN, /* ... and whether this change is on disk cannot be known */
    LS_CLOSED,
    LS_FORKED,
    LS_CORRUPT,
    LS_VERSION,
    LS_CATALOG_MISMATCH,
    LS_UNKNOWN_MESSAGE,
    LS_UNKNOWN_QUEUE,
    LS_MESSAGE_LOCKED, /* by a transaction's dequeue */
    LS_MESSAGE_IN_USE,
    LS_ALREADY_ENQUEUED,
    LS_NOT_ENQUEUED,
    LS_UNKNOWN_XID,
    LS_DUPLICATE_XID,
    LS_TRANSACTION_ENDED,
    LS_WRONG_STATE,
    LS_TRANSACTION_LIMIT, /* too many open or prepared, or too much work in one */
    LS_BUSY,              /* a limit on open things is reached */
    LS_RECYCLED,          /* a reader beside the writer was overtaken by the base */
    LS_END                /* a reader or cursor has nothing more */
} ls_code;

typedef struct ls_error {
    int code;
    int sys_errno;   /* 0 if no system call was involved */
    uint64_t offset; /* in `segment`, where that is known */
    uint64_t lsn;
    char segment[24]; /* a segment's file name, or "" */
    char text[400];
} ls_error;

/* The calling thread's last failure. Valid until its next failing call. */
const ls_error *ls_last_error(void);

typedef struct ls_store ls_store;
typedef struct ls_tx ls_tx;
typedef struct ls_cursor ls_cursor;
typedef struct ls_reader ls_reader;
typedef struct vfs vfs;

typedef struct ls_options {
    uint64_t segment_size;        /* bytes; 0: 16 MiB for a new store, the stored one for an old */
    uint64_t max_undurable_bytes; /* 0: two segments; used when the store is created */
    uint64_t max_log_bytes;       /* 0: only the disk's; else at least 6 segments, without what holds keep */
    uint32_t initial_segments;    /* of a new store */
    uint32_t max_write_buffers;   /* 2 to 64 */
    uint32_t max_prepared;        /* transactions; 0: no limit but that on open ones */
    int create;                   /* make the store if there is none */
    int relaxed;                  /* LS_WAIT does not wait */
    int background;               /* threads for flushing, spares and checkpoints; without, callers do the first two */
    int no_checkpoint;            /* none is used, none is written unless ls_checkpoint is called */
} ls_options;

#define LS_BUFFERS_MAX 64

void ls_options_default(ls_options *options);

typedef struct ls_xid {
    int64_t format_id;
    uint32_t gtrid_bytes;
    uint32_t bqual_bytes;
    uint8_t data[128]; /* gtrid, then bqual at once */
} ls_xid;

/* What recovery found and did. Times are microseconds. */
typedef struct ls_recovery {
    int created;    /* a new store: nothing below applies */
    int clean;      /* the log ended in an orderly close */
    int direct;     /* the tail was read past the page cache */
    uint64_t epoch; /* of this open */
    uint64_t base_lsn;
    uint64_t end_lsn;       /* where the recovered log ended */
    uint64_t watermark_lsn; /* damage below it would have been corruption */
    uint64_t segments;
    uint64_t batches;
    uint64_t records;
    uint64_t bytes_read;
    uint64_t bytes_rewritten;
    uint64_t torn_bytes; /* behind the last accepted batch, of a write that was begun: a torn tail, kept aside */
    uint64_t messages;   /* live */
    uint64_t places;
    uint64_t transactions_committed;
    uint64_t transactions_rolled_back; /* by their own record */
    uint64_t transactions_abandoned;   /* rolled back by this recovery */
    uint64_t transactions_in_doubt;
    uint64_t operations_undone; /* of the abandoned transactions */
    uint64_t staged_dropped;    /* messages never enqueued */
    uint64_t staged_bytes;      /* their content */
    uint64_t orphans;           /* records of chains that began below the base */
    uint64_t orphan_messages;
    uint64_t orphan_transactions;
    uint64_t places_dropped; /* on queues that the catalog no longer has */
    uint64_t queues_dropped;
    int checkpoint_used;       /* 1: only the log behind it was replayed; then counts of records are of that part */
    int checkpoint_state;      /* LS_CHECKPOINT_USED, or why there was none to use */
    uint64_t checkpoint_lsn;   /* of the one that was used or ignored; 0: unknown */
    uint64_t checkpoint_bytes; /* read of it */
    uint64_t checkpoint_us;
    uint64_t scan_us; /* with the checkpoint's reading */
    uint64_t transactions_us;
    uint64_t messages_us;
    uint64_t rewrite_us;
    uint64_t total_us;
} ls_recovery;

#define LS_CHECKPOINT_NONE        0 /* there is none, or ls_options.no_checkpoint says not to look */
#define LS_CHECKPOINT_USED        1
#define LS_CHECKPOINT_DAMAGED     2 /* a checksum differs, it is cut short, or its contents are impossible */
#define LS_CHECKPOINT_NEWER       3 /* of a later version of the format */
#define LS_CHECKPOINT_FOREIGN     4 /* another store's */
#define LS_CHECKPOINT_BEYOND      5 /* the log ends before it */
#define LS_CHECKPOINT_BELOW       6 /* the base has passed it */
#define LS_CHECKPOINT_NOT_IN_LOG  7 /* the batch that it names is not in the log */
#define LS_CHECKPOINT_CONTRADICTS 8 /* the log behind it cannot follow from it */
#define LS_CHECKPOINT_UNREADABLE  9 /* a system call failed */

/* In words, for people. */
const char *ls_checkpoint_state_text(int state);

/*
 * Opening happens in two steps, so that the catalog can be checked between log and service:
 *   ls_open   takes the lock, makes META.new and the first segment or reads the log, and replays it in memory;
 *             writes nothing to an existing segment.
 *   ls_serve  given the catalog's queues, rewrites the tail, starts the new epoch and begins service; for a store
 *             being created it renames META into place.
 * `system` may be NULL for the operating system's files.
 */
int ls_open(vfs *system, const char *store_dir, const ls_options *options, ls_store **store);
int ls_serve(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id);
/* Orderly close: a last batch and CLOSE, then the lock. The handle stays valid, answering LS_CLOSED, until freed. */
int ls_close(ls_store *store);
/* Closes it if need be. Handles of its transactions and cursors may be freed before or after. */
void ls_free(ls_store *store);

/* Between ls_open and ls_serve: whether the store is being created, so that its catalog is to be made too. */
int ls_creating(const ls_store *store);
void ls_uuid(const ls_store *store, uint8_t uuid[16]);
void ls_recovery_report(const ls_store *store, ls_recovery *report);

/* What recovery ended, by name: of each kind the first LS_RECOVERED_MAX; ls_recovery counts all. */
#define LS_RECOVERED_MAX         1000
#define LS_RECOVERED_STAGED      1 /* id: a message never enqueued; count: bytes of its content */
#define LS_RECOVERED_TRANSACTION 2 /* id: a transaction without an outcome; count: its operations, undone */
#define LS_RECOVERED_QUEUE       3 /* id: a queue that the catalog no longer has; count: its places, dropped */

typedef struct ls_recovered {
    uint64_t id;
    uint64_t count;
    int kind;
    int distributed;
    ls_xid xid;
} ls_recovered;

/* From ls_serve on, until the handle is freed; ordered by kind and id. Fills up to n and says how many there are. */
void ls_recovery_items(const ls_store *store, ls_recovered *into, size_t n, size_t *count);
uint64_t ls_segment_size(const ls_store *store);

uint64_t ls_base_lsn(const ls_store *store);
uint64_t ls_durable_lsn(const ls_store *store);
uint64_t ls_next_lsn(ls_store *store); /* and the flusher is asked for what is below it */
int ls_poisoned(const ls_store *store);
/* Everything up to `lsn` durable; 0: everything appended so far. */
int ls_force(ls_store *store, uint64_t lsn);
/* Asks the background flusher for everything appended so far; returns at once. */
int ls_flush_soon(ls_store *store);
#define LS_EVENTS_MAX 64
/* An eventfd of the caller's own, which counts group commits, and fires when the store is poisoned or closed. The store
   closes it when it is freed, or when told that nobody waits there any more. */
int ls_event_fd(ls_store *store, int *fd);
void ls_event_end(ls_store *store, int fd);
/* 1: everything below `lsn` is durable. 0: not yet, and the flusher is asked for what was appended so far. */
int ls_durable_soon(ls_store *store, uint64_t lsn);

/* ---- queues ---- */
int ls_queue_add(ls_store *store, uint32_t queue_id); /* after the catalog has committed it */
int ls_queue_delete(ls_store *store, uint32_t queue_id, int flags);
int ls_queue_depth(ls_store *store, uint32_t queue_id, uint64_t *places, uint64_t *locked);

/* ---- messages ---- */
#define LS_WAIT      1
#define LS_PUBLISHED 2 /* ls_stage: part of a publish; goes with a rollback of its enqueue */
#define LS_MORE      4 /* the caller adds more at once: the flusher is not woken for this part; see ls_flush_soon */

int ls_stage(ls_store *store, const uint8_t *header, size_t header_bytes, const uint8_t *content, size_t content_bytes,
             int flags, uint64_t *id);
int ls_append_content(ls_store *store, uint64_t id, const uint8_t *content, size_t content_bytes, int flags);
int ls_enqueue(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, ls_tx *tx, int flags, uint64_t *lsn);
int ls_publish(ls_store *store, const uint32_t *queue_ids, size_t n, const uint8_t *header, size_t header_bytes,
               const uint8_t *content, size_t content_bytes, ls_tx *tx, int flags, uint64_t *id);
/* Contents stand one after another in `content`, as long as sizes[i] says; headers likewise, or header_sizes NULL.
   On failure *done messages are published, and their ids set. */
int ls_publish_many(ls_store *store, uint32_t queue_id, size_t n, const uint8_t *content, const uint64_t *sizes,
                    const uint8_t *headers, const uint64_t *header_sizes, ls_tx *tx, int flags, uint64_t *ids,
                    size_t *done);
int ls_dequeue(ls_store *store, uint64_t id, uint32_t queue_id, ls_tx *tx, int reason, int delivery_count, int flags,
               uint64_t *lsn);
/* All ids are checked before the first is dequeued. On failure *done are dequeued, and *done is the culprit. */
int ls_dequeue_many(ls_store *store, const uint64_t *ids, size_t n, uint32_t queue_id, ls_tx *tx, int reason, int flags,
                    size_t *done);
/* As ls_dequeue_many outside transactions, with how often each was delivered. */
int ls_settle_many(ls_store *store, const uint64_t *ids, const uint16_t *delivery_counts, size_t n, uint32_t queue_id,
                   int reason, int flags, size_t *done);
/* ls_publish and ls_dequeue in the form that most calls have: one queue, no transaction, and what was made is returned,
   the id and the record's LSN; 0: ls_last_error() says why not. For callers to whom every argument is a cost. */
uint64_t ls_publish_one(ls_store *store, uint32_t queue_id, const uint8_t *header, size_t header_bytes,
                        const uint8_t *content, size_t content_bytes, int flags);
uint64_t ls_dequeue_one(ls_store *store, uint64_t id, uint32_t queue_id, int flags);
int ls_destroy(ls_store *store, uint64_t id, int flags);

typedef struct ls_message_info {
    uint64_t id;
    uint64_t content_bytes;
    uint32_t start_bytes; /* of its start record: more than its header can have */
    uint32_t places;
    uint32_t pending; /* operations of open transactions */
    int staged;       /* never enqueued yet */
} ls_message_info;

int ls_message(ls_store *store, uint64_t id, ls_message_info *info);
int ls_load_header(ls_store *store, uint64_t id, uint8_t *into, size_t bytes, size_t *done);
int ls_load_content(ls_store *store, uint64_t id, uint64_t offset, uint8_t *into, size_t bytes, size_t *done);
/* Headers and contents of several, each header before its content: sizes[2i] and sizes[2i + 1] bytes of message i.
   Stops, with *done of them, at the first that may not fit into what is left of `bytes`, or cannot be loaded. */
int ls_load_many(ls_store *store, const uint64_t *ids, size_t n, uint8_t *into, size_t bytes, uint64_t *sizes,
                 size_t *done);

/* ---- a queue's places in order ---- */
typedef struct ls_place {
    uint64_t position; /* grows along the queue; the place's for ever */
    uint64_t id;
    uint64_t content_bytes;
    uint32_t locked;    /* by a transaction's dequeue */
    uint32_t recovered; /* was there when the store was opened */
} ls_place;

/* ALL: every place, locked ones too, also not yet durable ones. OFFER: only what may be offered to a consumer, durable
   and unlocked; it goes back for what a rollback unlocked behind it. */
#define LS_CURSOR_ALL   0
#define LS_CURSOR_OFFER 1

int ls_cursor_open(ls_store *store, uint32_t queue_id, int kind, ls_cursor **cursor);
int ls_cursor_next(ls_cursor *cursor, ls_place *places, size_t n, size_t *done);
void ls_cursor_close(ls_cursor *cursor);
/* Whether each id still has its place at that position of the queue: states[i] is 0 gone, 1 there, 2 locked. */
int ls_places_check(ls_store *store, uint32_t queue_id, const uint64_t *ids, const uint64_t *positions, size_t n,
                    uint8_t *states);

/* ---- transactions ---- */
#define LS_TX_ACTIVE      1
#define LS_TX_ENDED       2
#define LS_TX_PREPARED    3
#define LS_TX_COMMITTED   4
#define LS_TX_ROLLED_BACK 5

typedef struct ls_tx_info {
    uint64_t id;
    uint64_t prepared_us; /* wall clock, 0 if not prepared */
    uint64_t operations;
    int state;
    int distributed;
    ls_xid xid;
} ls_tx_info;

int ls_begin(ls_store *store, const ls_xid *xid, ls_tx **handle); /* xid NULL: local */
int ls_tx_end(ls_tx *handle);
int ls_prepare(ls_tx *handle, int flags);
int ls_commit(ls_tx *handle, int flags);
int ls_rollback(ls_tx *handle, int flags);
void ls_tx_describe(ls_tx *handle, ls_tx_info *info);
/* The handle goes; an unprepared transaction without outcome is rolled back. */
void ls_tx_free(ls_tx *handle);
/* Of the handle that stands there (NULL: none), for a binding whose garbage collector knows only where. */
void ls_tx_free_at(ls_tx **handle);
/* Prepared transactions: fills up to n ids and says how many there are. */
int ls_in_doubt(ls_store *store, uint64_t *ids, size_t n, size_t *count);
int ls_in_doubt_take(ls_store *store, uint64_t id, ls_tx **handle);

/* ---- care ---- */
typedef struct ls_stats {
    uint64_t batches;
    uint64_t batch_bytes;
    uint64_t syncs;
    uint64_t records;
    uint64_t appended_bytes;
    uint64_t messages;
    uint64_t places;
    uint64_t transactions;
    uint64_t live_bytes;
    uint64_t log_bytes; /* allocated, spares included */
    uint64_t segments;  /* in the log */
    uint64_t spares;
    uint64_t segments_created;
    uint64_t segments_recycled;
    uint64_t segments_removed;
    uint64_t spare_failures; /* survived */
    uint64_t hint_failures;
    uint64_t forced_by_full_buffers;
    uint64_t early_writes; /* of parts of a batch while the rest was still being filled in */
    uint64_t waits_for_spare;
    uint64_t segments_relocated;
    uint64_t relocated_bytes;     /* appended to move what lives, in batch_bytes too */
    uint64_t relocation_failures; /* a segment that could not be read; survived */
    uint64_t held_segments;       /* dead, kept for holds alone, as of the last look; part of `segments` */
    uint64_t held_bytes;
    uint64_t checkpoints;
    uint64_t checkpoint_failures; /* survived */
    uint64_t checkpoint_lsn;      /* of the one in place; 0: none */
    uint64_t checkpoint_bytes;    /* its size */
    uint64_t
        device_bytes; /* written to all files of the store since it was opened: whole blocks, headers, the hint, zeros
                              of new segments, checkpoints and what recovery rewrote */
    uint64_t device_writes; /* pwrite calls that did it */
    int relaxed;
    int full;
} ls_stats;

void ls_stats_get(ls_store *store, ls_stats *stats);

typedef struct ls_segment_info {
    uint64_t first_lsn;
    uint64_t epoch;
    uint64_t end_lsn; /* of the log's part in it */
    uint64_t live_bytes;
    uint64_t live_records;
    int current;
} ls_segment_info;

int ls_segments(ls_store *store, ls_segment_info *into, size_t n, size_t *count);
/* Makes an empty batch durable, so that the base which the last one gave is named, and recycles. */
int ls_move_base(ls_store *store);

/* ---- checkpoint: what the log gives up to an LSN, in a file, so that an open need not replay it ---- */
typedef struct ls_checkpoint_info {
    uint64_t lsn; /* everything below it is in the checkpoint */
    uint64_t bytes;
    uint64_t messages;
    uint64_t places;
    uint64_t operations; /* pending */
    uint64_t transactions;
    uint64_t took_us;
} ls_checkpoint_info;

/* Writes one now, while others go on working; on LS_OK it is in place and durable. `info` may be NULL. A failure leaves
   the store and an earlier checkpoint as they were. */
int ls_checkpoint(ls_store *store, ls_checkpoint_info *info);
/* What one would take now; all but `lsn` and `took_us`. */
int ls_checkpoint_size(ls_store *store, ls_checkpoint_info *info);

typedef struct ls_checkpoint_difference {
    int differs;
    uint64_t id;       /* of the message or transaction, 0 if it is neither */
    uint32_t queue_id; /* of the queue, or 0 */
    char text[120];    /* what of it */
} ls_checkpoint_difference;

/* Whether a store that was read from a checkpoint is what the log alone gives: both opened and not yet served, or inspected
   to the end, the one with the checkpoint and the other without, and not changed in between. Times are not compared. */
int ls_checkpoint_compare(ls_store *with, ls_store *without, ls_checkpoint_difference *difference);

/* ---- the tail: what holds the base, and making the log as small as it can be ---- */
#define LS_SEGMENT_DEAD    1 /* behind the base: about to be recycled, or kept by a hold */
#define LS_SEGMENT_NEEDED  2
#define LS_SEGMENT_CURRENT 3
#define LS_SEGMENT_SPARE   4

typedef struct ls_tail_segment {
    uint64_t first_lsn; /* of a spare: the name it has */
    uint64_t epoch;
    uint64_t end_lsn;
    uint64_t live_bytes;
    uint64_t live_records;
    uint64_t moved_bytes; /* of what lives: of chains that were relocated before */
    int state;
} ls_tail_segment;

typedef struct ls_tail {
    uint64_t segment_size;
    uint64_t base_lsn;
    uint64_t needed_lsn; /* the lowest record that is needed; the end if none is */
    uint64_t durable_lsn;
    uint64_t next_lsn;
    uint64_t live_bytes;
    uint64_t segments; /* in the log, dead ones too */
    uint64_t spares;
    uint64_t held_segments;
    uint64_t files_wanted;     /* that the log is kept to, spares counted */
    uint64_t holding_messages; /* with something in the oldest segment */
    uint64_t holding_transactions;
    uint64_t holding_bytes; /* of these, in the oldest segment */
    int will_move;          /* the log is longer than it is kept to, and is being made shorter */
} ls_tail;

#define LS_HOLDER_MESSAGE     1
#define LS_HOLDER_TRANSACTION 2

#define LS_HOLDS_PLACE   1 /* waits on a queue */
#define LS_HOLDS_LOCKED  2 /* there, dequeued by a transaction without an outcome */
#define LS_HOLDS_ENQUEUE 3 /* will be there if the transaction commits */
#define LS_HOLDS_DEQUEUE 4 /* that enqueue, taken back in the same transaction */

typedef struct ls_holder_item {
    uint64_t tx_id;    /* 0: none */
    uint64_t position; /* on its queue */
    uint32_t queue_id;
    int kind;
    int tx_state;
    int distributed;
    ls_xid xid;
} ls_holder_item;

#define LS_HOLDER_ITEMS_MAX 16

typedef struct ls_holder {
    uint64_t id;
    uint64_t lsn;       /* of its lowest record */
    uint64_t start_lsn; /* of its start, or the newest copy of it */
    uint64_t bytes;     /* of all its records that are needed */
    uint64_t content_bytes;
    uint64_t time_us;     /* since when: wall clock; 0: not known */
    uint64_t prepared_us; /* of a transaction; 0: it is not */
    uint64_t operations;  /* of a transaction */
    uint64_t item_count;  /* all of them; the first are told */
    uint32_t record_bytes;
    int kind;
    int at_least; /* time_us is when it was moved: it is older */
    int staged;   /* a message that was never enqueued */
    int moved;
    int state; /* of a transaction */
    int distributed;
    ls_xid xid;
    ls_holder_item items[16];
} ls_holder;

/* Fills up to n segments (then the spares) and says how many there are, and up to holders_max of those that need something
   in the oldest segment, the lowest first. Works on an inspected store too. */
int ls_tail_read(ls_store *store, ls_tail *tail, ls_tail_segment *segments, size_t n, size_t *count, ls_holder *holders,
                 size_t holders_max, size_t *done);

typedef struct ls_compaction {
    uint64_t bytes_before; /* of all files of the log */
    uint64_t bytes_after;
    uint64_t segments_before; /* without spares */
    uint64_t segments_after;
    uint64_t segments_moved;
    uint64_t copied_bytes;
    uint64_t live_bytes;
    uint64_t held_bytes; /* of these files: kept by holds */
} ls_compaction;

/* Moves the oldest segments until the log is as short as moving can make it, and gives back the spares beyond need. With
   dry_run it says what would come of it and changes nothing. */
int ls_compact(ls_store *store, int dry_run, ls_compaction *report);

/* ---- reading beside a writer, or a closed store; takes no lock and writes nothing ---- */
typedef struct ls_batch {
    const uint8_t *bytes; /* the whole batch; verified; valid until the next call */
    uint64_t size;
    uint64_t lsn;
    uint64_t epoch;
    uint64_t first_lsn; /* of its segment */
} ls_batch;

typedef struct ls_reader_info {
    uint8_t uuid[16];
    uint64_t segment_size;
    uint64_t max_undurable_bytes;
    uint64_t base_lsn;
    uint64_t end_lsn;  /* of the accepted log, or the durable LSN beside a writer */
    uint64_t seen_lsn; /* end of the valid batches, those of a last segment that is left out included */
    uint64_t watermark_lsn;
    uint64_t epoch;
    uint64_t segments;
    uint64_t spares;
    uint64_t log_bytes;
    uint64_t torn_bytes;
    int live;  /* a writer has it open */
    int clean; /* ends in an orderly close */
} ls_reader_info;

int ls_reader_open(vfs *system, const char *store_dir, uint64_t from_lsn, ls_reader **reader);
/* One whose log begins at the segment of keep_lsn, though the base may have passed it, since another process holds it
   (see ls_hold_take); LS_RECYCLED once that is gone. What is below a base of now is thus read, or refused. */
int ls_reader_open_kept(vfs *system, const char *store_dir, uint64_t keep_lsn, uint64_t from_lsn, ls_reader **reader);
/* One that passes over what cannot be read: segments that are missing, files and headers that are damaged, and the rest of a
   segment from a damaged batch on. LS_CORRUPT only where no segment is left. keep_lsn 0: from the base on. */
int ls_reader_open_permissive(vfs *system, const char *store_dir, uint64_t keep_lsn, uint64_t from_lsn,
                              ls_reader **reader);
typedef struct ls_lsn_range {
    uint64_t first_lsn;
    uint64_t end_lsn;
} ls_lsn_range;

/* The parts of the log that were passed over so far, ascending. Fills up to n; *count is their number. */
int ls_reader_missing(const ls_reader *reader, ls_lsn_range *into, size_t n, size_t *count);
void ls_reader_describe(const ls_reader *reader, ls_reader_info *info);
int ls_reader_segments(const ls_reader *reader, ls_segment_info *into, size_t n, size_t *count);
/* The next accepted batch; LS_END after the last, LS_CORRUPT where the log is damaged. */
int ls_reader_next(ls_reader *reader, ls_batch *batch);
void ls_reader_close(ls_reader *reader);
/* Verifies about so many bytes more and hands nothing out; *lsn: up to where. LS_OK: there is more, LS_END, LS_CORRUPT. */
int ls_reader_skim(ls_reader *reader, uint64_t bytes, uint64_t *lsn);
/* From here on segments are read past the page cache, where the file system can. */
void ls_reader_past_cache(ls_reader *reader);

/* ---- rows as columns: what the scanners below fill, in Arrow's layout ---- */
typedef struct ls_columns ls_columns; /* a batch of rows */

typedef struct ls_column {
    const uint8_t *values;
    uint64_t value_bytes;
    const uint8_t *offsets; /* int32, one more than rows; NULL: items are of fixed width */
    const uint8_t *valid;   /* a bitmap; NULL: nothing is null */
    uint64_t rows;          /* of a list's items: how many of them */
    uint64_t nulls;
} ls_column;

/* Fills up to n of the batch's columns and says how many it has; what was not asked for is all zero. Valid until freed. */
size_t ls_columns_get(const ls_columns *columns, ls_column *into, size_t n, uint64_t *rows);
void ls_columns_free(ls_columns *columns);

/* The columns of records, by number, those of fixed width first; docs/spark.md has their meanings. Of a column that is a dictionary's there is
   the index: type (as ls_rows_type counts), stream (message, transaction, log), queue (into ls_rows_options.named), outcome
   (LS_OUTCOME_...), reason (as in the format, from 0 for accepted). */
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
#define LS_ROWS_HEADER         31
#define LS_ROWS_BODY           32
#define LS_ROWS_QUEUE_IDS_ITEM 33 /* the items of LS_ROWS_QUEUE_IDS */
#define LS_ROWS_COLUMNS        34

#define LS_OUTCOME_COMMITTED   0
#define LS_OUTCOME_ROLLED_BACK 1
#define LS_OUTCOME_PREPARED    2
#define LS_OUTCOME_OPEN        3

#define LS_ROWS_MOST 1048576 /* rows in one batch */

typedef struct ls_rows_options {
    uint64_t columns;   /* bit n: column n is asked for */
    uint64_t start_lsn; /* rows from here on ... */
    uint64_t stop_lsn;  /* ... and below this; 0: to the end */
    uint64_t as_of_lsn; /* outcomes as known below it; 0: at the end */
    uint64_t rows_max;  /* of one batch */
    uint64_t body_max;  /* bytes of a body that are given */
    uint32_t types; /* bit n: records of type n as ls_rows_type counts, the highest for all that are unknown; 0: all */
    int timed;      /* only of batches whose time is in the range: */
    uint64_t start_us;
    uint64_t stop_us;          /* not included */
    const uint64_t *queue_ids; /* ascending; only rows with one of these as their queue id; NULL: all */
    size_t queue_id_count;
    const uint64_t *ids; /* ascending; only these chains; NULL: all */
    size_t id_count;
    const uint64_t *named; /* ascending: queues that have a name */
    size_t named_count;
    /* Places that are known from elsewhere, for what the log no longer tells: ascending by id, then queue. */
    const uint64_t *place_ids;
    const uint64_t *place_queue_ids;
    const uint64_t *place_lsns;  /* where each became visible */
    const uint64_t *place_times; /* µs; 0: not known */
    size_t place_count;
} ls_rows_options;

typedef struct ls_rows ls_rows;

/*
 * The records that a reader gives, as rows. The reader, of which nothing was read yet, stays the caller's: nobody else uses
 * it until the scan is freed. What the options point to is copied.
 */
int ls_rows_open(ls_reader *reader, const ls_rows_options *options, ls_rows **rows);
/* The next batch, of at least one row, which is the caller's to free; NULL with LS_OK: much of the log was passed and nothing
   in it was asked for, call again. LS_END after the last; LS_CORRUPT where the log is damaged, after all rows before that
   place; LS_RECYCLED. */
int ls_rows_next(ls_rows *rows, ls_columns **batch);
/* A column's type: int32, int64, bool, string, binary, time (microseconds in UTC), name (an index of strings), list (of
   int64); "!" follows where it is never null. NULL: there is no such column. */
const char *ls_rows_column(unsigned column);
/* The type that has this number in the type column: 0 if none has (yet: types that this version does not know get theirs
   as they are met). */
uint16_t ls_rows_type(const ls_rows *rows, unsigned number);
void ls_rows_free(ls_rows *rows);

/*
 * Messages as rows: one for each whose life has ended, by (end_lsn, id). The columns, in order: id, queue_id, queue, start_time,
 * enqueue_lsn, enqueue_time, dequeue_lsn, dequeue_time, end_lsn, end_time, outcome, reason, delivery_count, place_count,
 * header_bytes, content_bytes, record_count, record_bytes, copy_count, copied_bytes, enqueue_tx, dequeue_tx, whole, places;
 * pending, staged, state (of open ones, which have no end and no outcome); then the items of places: queue_id, queue,
 * enqueue_lsn, enqueue_time, enqueue_tx, dequeue_lsn, dequeue_time, dequeue_tx, reason, delivery_count. A queue is told as its
 * index in `queue_ids`, an outcome as LS_LIFE_*, a reason as the log's code less one.
 */
#define LS_MESSAGE_COLUMNS   37
#define LS_MESSAGE_ROWS_MAX  1048576
#define LS_MESSAGE_NAMES_MAX 16777216

#define LS_LIFE_DEQUEUED      0
#define LS_LIFE_QUEUE_DELETED 1
#define LS_LIFE_DESTROYED     2
#define LS_LIFE_ROLLED_BACK   3
#define LS_LIFE_DROPPED       4

typedef struct ls_message_rows ls_message_rows; /* one pass over the log */

/* Of the records from start_lsn up to, and without, stop_lsn. */
int ls_message_rows_new(uint64_t start_lsn, uint64_t stop_lsn, const uint32_t *queue_ids, size_t n, uint64_t batch_rows,
                        ls_message_rows **rows);
/* Before the first rows: what an earlier pass left open where this one begins. LS_OPTION: that is not such a state. */
int ls_message_rows_seed(ls_message_rows *rows, uint64_t id, const uint8_t *state, size_t bytes);
/* Many at once, as Arrow has them: the state of ids[i] stands from offsets[i] to offsets[i + 1]. */
int ls_message_rows_seed_all(ls_message_rows *rows, const int64_t *ids, const uint8_t *states, const int32_t *offsets,
                             size_t n);
/* ... and what it left that is no message's. */
int ls_message_rows_seed_rest(ls_message_rows *rows, const uint8_t *rest, size_t bytes);
/* The next rows, by a reader made for start_lsn that nobody else uses; the caller frees them. LS_OK without any: enough was
   read for one call, and there is more. LS_END: no more. LS_RECYCLED also if the log at start_lsn is gone. */
int ls_message_rows_next(ls_message_rows *rows, ls_reader *reader, ls_columns **batch);
/* After the last: those that are open, by id. */
int ls_message_rows_open(ls_message_rows *rows, ls_columns **batch);
/* Valid until the next call; of no bytes if there is nothing to tell. */
int ls_message_rows_rest(ls_message_rows *rows, const uint8_t **rest, size_t *bytes);
void ls_message_rows_free(ls_message_rows *rows);

/* ---- inspection: the state that a log comes to, without opening it; takes no lock and writes nothing ---- */
#define LS_INSPECT_CHECK         1 /* also hold back-links, batches and footers against each other */
#define LS_INSPECT_DIRECT        2 /* read past the page cache where the file system can */
#define LS_INSPECT_NO_CHECKPOINT 4 /* replay all of the log; so does LS_INSPECT_CHECK */

typedef struct ls_inspection {
    ls_reader_info log;
    uint64_t next_lsn; /* how far it was read */
    uint64_t bytes_read;
    uint64_t footers;      /* checked */
    uint64_t staged;       /* messages that were never enqueued, by a transaction neither */
    uint32_t queue_id_max; /* of all that records name */
} ls_inspection;

typedef struct ls_queue_info {
    uint32_t id;
    int deleted; /* the log says so: nothing is on it */
    uint64_t depth;
    uint64_t locked;
    uint64_t content_bytes;
} ls_queue_info;

typedef struct ls_open_tx {
    uint64_t id;
    uint64_t start_lsn;   /* of its start, or of its newest relocation */
    uint64_t started_us;  /* wall clock, of the batch; 0: not known */
    uint64_t prepared_us; /* 0: not prepared */
    uint64_t operations;
    int state;
    int distributed;
    ls_xid xid;
} ls_open_tx;

typedef struct ls_open_work {
    uint64_t message_id;
    uint64_t lsn; /* of its record */
    uint32_t queue_id;
    uint32_t order_index; /* of an enqueue, in its transaction */
    int enqueues;         /* else it dequeues */
    int locks;            /* a place that is there */
} ls_open_work;

typedef struct ls_message_place {
    uint64_t order_lsn; /* of the record that made it visible */
    uint32_t queue_id;
    uint32_t order_index;
    int locked;
} ls_message_place;

/*
 * A store that is only looked at: beside its writer as it was durable when this was opened, after a close or a crash as
 * an open would recover it. It is read in steps, by one thread; when ls_inspect_step has said LS_END it answers
 * the functions below, ls_queue_depth, ls_cursor_* (LS_CURSOR_ALL), ls_message, ls_segments, ls_in_doubt,
 * ls_recovery_report and ls_recovery_items; whatever would change it gets LS_CLOSED. ls_free ends it.
 * LS_RECYCLED: a writer was faster, begin again. LS_CORRUPT: the log is damaged, or contradicts itself.
 */
int ls_inspect_open(vfs *system, const char *store_dir, int flags, ls_store **store);
/* Reads about so many bytes more; LS_OK: there is more. *lsn: up to where it was read. */
int ls_inspect_step(ls_store *store, uint64_t bytes, uint64_t *lsn);
void ls_inspect_describe(const ls_store *store, ls_inspection *into);
/* Once, given the catalog's queues: refuses what ls_serve would, and drops the queues that it would; then the answers,
   and ls_recovery, are as after an open. */
int ls_inspect_catalog(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id);
/* Each fills up to n and says how many there are. */
int ls_inspect_queues(ls_store *store, ls_queue_info *into, size_t n, size_t *count);
int ls_inspect_transactions(ls_store *store, ls_open_tx *into, size_t n, size_t *count);
int ls_inspect_work(ls_store *store, uint64_t tx_id, ls_open_work *into, size_t n, size_t *count);
/* Where a message stands: on which queues, and in the log its start record or the newest copy of that. */
int ls_inspect_places(ls_store *store, uint64_t id, uint64_t *start_lsn, ls_message_place *into, size_t n,
                      size_t *count);
/* Messages that live, in no order: the next n, where *slot (0 at first) remembers how far it came; 0 done: no more. */
int ls_inspect_messages(ls_store *store, uint32_t *slot, ls_message_info *into, size_t n, size_t *done);

/* ---- holds: what a reader beside the writer asks to keep, for as long as it lives, within limits ---- */
#define LS_HOLDS_MAX     64  /* at once; more are refused, or not honoured */
#define LS_HOLD_NAME_MAX 64  /* bytes, of A-Z a-z 0-9 . _ - */
#define LS_HOLD_DAYS_MAX 366 /* the longest that one may last without being renewed */

#define LS_HOLD_HONOURED   1
#define LS_HOLD_EXPIRED    2
#define LS_HOLD_OVER_LIMIT 3
#define LS_HOLD_ABANDONED  4 /* nobody owns it any more; the writer clears it away */
#define LS_HOLD_DAMAGED    5
#define LS_HOLD_FOREIGN    6 /* of another store */
#define LS_HOLD_OVERTAKEN  7 /* it had run out, and something that it was to keep is gone */

typedef struct ls_hold ls_hold;

typedef struct ls_hold_info {
    char name[256];       /* without .hold */
    uint64_t lsn;         /* everything at or above it is kept */
    uint64_t limit_bytes; /* the most that it may keep; 0 no limit */
    uint64_t kept_bytes;  /* segments that the writer has no more need of */
    uint64_t created_us;  /* wall clock */
    uint64_t expires_us;
    int state;
} ls_hold_info;

/*
 * Everything at or above `lsn`, or the base if that is 0, stays readable while the hold is honoured: until it is
 * released, its process ends, `lasts_us` have passed since it was taken or renewed, or it alone would keep more than
 * `limit_bytes`. LS_RECYCLED if `lsn` is below the base already and no other hold keeps it; LS_BUSY if the name is
 * taken, or too many are.
 */
int ls_hold_take(vfs *system, const char *store_dir, const char *name, uint64_t lsn, uint64_t limit_bytes,
                 uint64_t lasts_us, ls_hold **hold);
/* Lets go of what is below `lsn` (0: of nothing), and begins its time anew. LS_RECYCLED if it had run out, by time or
   limit, and something from there on is gone. */
int ls_hold_advance(ls_hold *hold, uint64_t lsn, uint64_t lasts_us);
void ls_hold_describe(const ls_hold *hold, ls_hold_info *info); /* as it was written last */
/* In the process that took it. */
void ls_hold_release(ls_hold *hold);
/* A reader whose log begins at the hold's segment, though the base may have passed it; it may outlive the hold. */
int ls_hold_read(const ls_hold *hold, uint64_t from_lsn, ls_reader **reader);
/* All that are there, by name; fills up to n and says how many. Changes nothing. */
int ls_holds(vfs *system, const char *store_dir, ls_hold_info *into, size_t n, size_t *count);

/* ---- what a binding needs besides ---- */

/* The sizes of n items from the n + 1 offsets of an Arrow array, 4 or 8 bytes wide; LS_OPTION if they do not ascend. */
int ls_sizes_of_offsets(const uint8_t *offsets, size_t width, size_t n, uint64_t *sizes);
uint64_t ls_xxh64(const uint8_t *data, size_t bytes, uint64_t seed);

/* cffi:end */

#pragma GCC visibility pop

#endif
