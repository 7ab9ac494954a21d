/*
 * A copy of a replicated log: it follows the leader's log batch by batch, applies what is durable, and can lead. The log is
 * that of an ordinary store (docs/format.md, section 10), and its files are ordinary segment files. A copy that leads
 * is an ordinary store.
 *
 *   replica_open ──▶ replica_take, replica_cut ──▶ replica_lead ──▶ replica_serve ──▶ the store serves
 *                    replica_durable                    (its first batch is durable)
 *
 * What always holds while it follows:
 *   - everything below end_lsn is forced on this disk, and was checked as recovery checks it before it was written;
 *   - the table is the replay of the log below applied_lsn, which is the end of the last batch that is known to be
 *     durable; batches above it wait in memory, and may be cut;
 *   - no file with a first LSN above the batch that is written next stands on the disk then: its header would cut the batch;
 *   - files of a cut part become spares only when the header that cuts them is forced;
 *   - a file below the base is removed only when a durable batch says that the batch which named the base is durable.
 *
 * One thread at a time uses a replica; the caller ensures this. After an error of the disk, or if memory runs out while
 * a batch is applied, the replica takes no more batches (LS_POISONED); free it and open it again.
 */
#ifndef LOGSTORE_REPLICA_H
#define LOGSTORE_REPLICA_H

#include "replay/replay.h"
#include "replica/kept.h"
#include "store/store.h"

enum { REPLICA_SPARES = 4, REPLICA_BASES = 32, DETACHED_TERMS = 1 << 16 };
enum { GROUP_BATCHES_MIN = 3, GROUP_BATCHES_MAX = 24 }; /* that are written with one force */

/* A segment of the log; the last one is the current one. */
struct replica_segment {
    uint64_t first_lsn;
    uint64_t term; /* its epoch */
    uint64_t prev_end_lsn;
};

/* A batch that is not known to be durable. */
struct replica_batch {
    uint64_t index;
    uint64_t term;
    uint64_t first_lsn; /* of its segment */
    uint64_t lsn;
    uint64_t end_lsn;
    uint64_t known_durable_lsn;
    uint8_t *bytes;
};

/* The end of a batch. */
struct replica_end {
    uint64_t lsn;
    uint64_t index;
    uint64_t term;              /* the batch's epoch, even if the batch has no index */
    uint64_t known_durable_lsn; /* the largest one that a batch up to here names */
};

/* Files that are not part of the log, by first LSN. */
struct replica_files {
    uint64_t *all;
    size_t count;
    size_t capacity;
};

struct replica {
    ls_store *store; /* not served */
    /* VOTE of its host, which has a term before the log has it; NULL: a copy without a host, in a test. */
    const struct vote *vote;
    struct replay replay;
    struct replica_segment *segments; /* the segments from the base on, and before them those that must be kept */
    size_t segment_count;
    size_t segment_capacity;
    struct replica_files spares;
    struct replica_files cut;
    struct replica_spare *spare; /* that a thread makes; NULL: none */
    uint64_t turned_us;          /* when the last segment began */
    uint64_t highest_first_lsn;  /* of all files, in the log or not */
    struct {
        int error;         /* errno of the last attempt to make a file; 0: it succeeded */
        uint64_t again_us; /* when a thread tries again */
    } no_room;

    int file; /* of the last segment; -1: not open */
    uint64_t file_lsn;
    uint8_t *block;       /* the tail's block, and room for a batch */
    uint64_t block_bytes; /* that room */
    struct {
        int file;          /* MARK; -1: there is none yet */
        uint64_t sequence; /* of what was written last */
        uint8_t *slot;
    } mark;
    int error; /* errno of the failed write or sync, or ENOMEM if a batch was applied in part */

    struct replica_end end;     /* forced here */
    struct replica_end applied; /* what the table has */
    struct {
        uint64_t lsn; /* 0: none since it was opened */
        uint64_t checksum;
    } applied_batch; /* the newest one of them */
    struct {
        uint32_t next;          /* messages from this number on */
        uint32_t end;           /* and below this one may have places on deleted queues */
        bool again;             /* another pass over all follows: a queue was deleted since this one began */
        uint64_t forgotten_lsn; /* queues that were deleted below it are gone */
    } sweep;
    /* Copies of this chain were applied, and the state that completes them was not; 0: no chain is open. */
    uint64_t mid_chain;
    uint64_t checkpoint_lsn;               /* of the checkpoint in place; 0: none */
    uint64_t checkpoint_retry_lsn;         /* after a failure no checkpoint is due before this LSN is applied */
    struct replica_checkpoint *checkpoint; /* that is being taken; NULL: none */
    /* Held by the thread that changes the table, and by the thread that copies it. */
    pthread_mutex_t table_lock;
    uint64_t durable_lsn; /* a majority has everything below it, as far as this copy knows */

    struct replica_batch *waiting; /* from `applied` to `end`, oldest first */
    size_t waiting_from;
    size_t waiting_count;
    size_t waiting_capacity;

    uint64_t base_lsn; /* that the newest applied batch names */
    /* The newest base that counts: a durable batch says that the batch which named it is durable. */
    uint64_t safe_base_lsn;
    uint64_t hinted_base_lsn;  /* no reader uses a lower one */
    uint64_t changes_from_lsn; /* where replay began: changes of the catalog are collected from there on */
    uint64_t catalog_lsn;      /* the catalog may lack a change from this LSN on, so its segment is kept */
    struct kept *kept;         /* NULL: no batches are kept for other members */
    uint64_t said_lsn;         /* the largest known_durable_lsn of an applied batch */
    struct {
        uint64_t end_lsn;
        uint64_t base_lsn;
    } named[REPLICA_BASES]; /* bases that count once their batch is said to be durable */
    uint32_t named_count;

    ls_replica_stats stats; /* but for device_bytes */
};

/* Opens the copy. The store must exist. The tail is forced again before this returns. LS codes of ls_open. */
int replica_open(vfs *system, const char *store_dir, const ls_options *options, struct replica **replica);
/* The same for a log that this process wrote until now: the batches in the window stay kept. The replica owns the
   window, also after a failure; NULL: there is none. */
int replica_open_again(vfs *system, const char *store_dir, const ls_options *options, struct kept *kept,
                       struct replica **replica);
/* The same for the log of a backup, in which everything counts as durable, whatever its batches say: it ends where a
   majority's log ended, and has nothing below the base that its newest batch names. */
int replica_open_backup(vfs *system, const char *store_dir, const ls_options *options, struct replica **replica);
/* Takes the next batch: checks, writes and forces it; then applies the part of the log that the batch says is durable.
   LS_REFUSED: the batch does not follow, and nothing was written. LS_POISONED. */
int replica_take(struct replica *r, const struct shipment *s);
/* The same for the first *taken of these batches, at least one. If this copy lags by GROUP_BATCHES_MIN or more, batches
   of one segment are written with one force, under a mark (mark.c). LS_REFUSED: the first of them does not follow. */
int replica_take_many(struct replica *r, const struct shipment *all, size_t n, size_t *taken);
/* The end that the log would have after replica_cut; the same errors. */
int replica_find_cut(const struct replica *r, uint64_t index, struct replica_end *end);
/* Abandons everything above this index. LS_REFUSED: some of it is durable, or there is no such batch. */
int replica_cut(struct replica *r, uint64_t index);
/* A majority has everything below lsn, the end of a batch: applies the part of it that is here. */
int replica_durable(struct replica *r, uint64_t lsn);
/* Begins a checkpoint of the table as it is now. *begun is false if none can be taken at this moment, or one is in
   progress. Batches are taken meanwhile. With options.background a thread copies and writes the rows, else each call of
   replica_checkpoint_ended does a part of that. LS_IO, LS_NO_MEMORY. */
int replica_checkpoint_begin(struct replica *r, bool *begun);
/* Whether the checkpoint has ended, and then its result. LS_FULL, LS_IO, LS_NO_MEMORY: there is no new checkpoint, and
   nothing else has changed. */
int replica_checkpoint_ended(struct replica *r, bool *ended);
/* Begins a checkpoint, and waits until its file is forced. */
int replica_checkpoint(struct replica *r, bool *taken);
bool replica_checkpoint_is_due(const struct replica *r); /* a checkpoint is due: an open would have to replay much */
uint64_t replica_highest_term(const struct replica *r);  /* of a header in its directory */
/* The lowest term in which it may lead. */
uint64_t replica_least_term(const struct replica *r);
/*
 * Begins the term: applies and settles everything, begins the term's segment, writes its first batch, hands it out, and
 * forces it here. That batch is empty, or has the first MEMBERS of a log that becomes replicated. On LS_OK the replica
 * is freed, *store has the store, which does not serve yet, and the caller owns the kept window; after a failure the
 * replica can only be freed.
 */
int replica_lead(struct replica *r, uint64_t term, const struct replication *calls, const void *config,
                 uint32_t config_bytes, ls_store **store);
/* Called once the first batch is durable: writes the records that an open still has to write, and serves.
   LS_WOULD_WAIT: the batch is not durable yet. */
int replica_serve(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id);
/*
 * Makes the copy a single store: from then on everything in it counts, including batches that no majority had. Its next
 * epoch lies DETACHED_TERMS above the highest term that the caller or the copy knows. On LS_OK the replica is freed,
 * and ls_open opens the directory. LS_OPTION: the copy is not replicated; after any other failure the replica can only
 * be freed.
 */
int replica_detach(struct replica *r, uint64_t highest_term);
/* Whether the copy can be detached, and the epoch in which: LS_OPTION, LS_POISONED. Writes nothing. */
int replica_check_detach(const struct replica *r, uint64_t highest_term, uint64_t *epoch);
/* Ends leading: operations in progress have an unknown outcome, and no new ones are accepted. Then call ls_free and
   replica_open. */
void replica_cease(ls_store *store);
void replica_free(struct replica *r);

/* ---- between its files ---- */

/* After replication has ended and begins again, the indexes go on. */
static inline uint64_t replica_next_index(const struct replica *r) {
    return (r->end.index != 0 ? r->end.index : r->replay.newest.last_index) + 1;
}

/* apply.c */
int replica_apply(struct replica *r, uint64_t lsn); /* applies the waiting batches up to there, and does nothing else */
int replica_apply_batch(struct replica *r, const struct scan_batch *b);
/* A batch with this end names the base. */
void replica_note_base(struct replica *r, uint64_t base_lsn, uint64_t end_lsn);
void replica_publish(struct replica *r); /* publishes the hint, and makes spares of files that are no longer needed */

/* mark.c */
/* Erases the part of an open mark above the end of the log, and ends the mark. */
int replica_mark_open(struct replica *r);
bool replica_mark_finds_no_room(struct replica *r); /* there is no MARK, and a full disk has no blocks for one */
int replica_mark_set(struct replica *r, uint64_t from_lsn, uint64_t to_lsn); /* forced when it returns */
void replica_mark_close(struct replica *r);

/* sweep.c */
void replica_sweep_begin(struct replica *r); /* a queue was deleted */
void replica_sweep_some(struct replica *r);  /* after a batch was applied */

/* checkpoint.c */
void replica_checkpoint_give_up(struct replica *r); /* ends the checkpoint in progress, if any */
/* Does that, and removes the finished checkpoint, because the log needs the last blocks of the disk. Returns whether
   there was any. */
bool replica_checkpoint_give_up_space(struct replica *r);

/* files.c */
int replica_remove_above(struct replica *r, uint64_t first_lsn);
int replica_open_file(struct replica *r, uint64_t first_lsn); /* a handle or -errno */
int replica_make_file(struct replica *r, uint64_t first_lsn); /* as the open one */
/* Lets a thread make one more spare, unless there are enough. turned: a segment has begun. */
void replica_make_spare(struct replica *r, bool turned);
/* Makes a spare if one is missing; the replica's own field for it is not set. */
void replica_room(struct replica *r, struct other_room *room);
void replica_take_spare(
    struct replica *r); /* waits for that spare, which is then one of the spares unless it could not be made */
bool replica_add_file(struct replica_files *files, uint64_t first_lsn);
int replica_fail_disk(struct replica *r, int error, const char *what);
int replica_fail_poisoned(const struct replica *r);

#endif
