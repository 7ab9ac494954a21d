/*
 * Checkpoints: a file with the state that replaying the log up to an LSN gives, so that an open need not replay that
 * part.
 *
 * What always holds:
 *   - a checkpoint is the exact state that replay gives at the end of one batch, its LSN; other operations continue
 *     meanwhile: an operation that is about to change a message first lets its old state be copied (table_touch);
 *   - it is renamed into place only after everything below its LSN is durable and the file itself was forced;
 *   - no open needs it. A failure to write or read one is counted or reported, and has no other effect; on a full disk
 *     it is given up to make room for the log.
 *
 * checkpoint.c has the policy and the order of things, checkpoint/rows.c what is copied from the table,
 * checkpoint/file.c the file, checkpoint/load.c and checkpoint/load_messages.c the way back into the table.
 */
#ifndef LOGSTORE_CHECKPOINT_H
#define LOGSTORE_CHECKPOINT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/checkpoint.h"
#include "log/log.h"
#include "logstore.h"
#include "os/io.h"
#include "replay/state.h"

enum {
    CHECKPOINT_SEGMENTS = 8,       /* the thread writes another one when the log has grown by this many segments, */
    CHECKPOINT_TIMES_ITS_SIZE = 4, /* by 4 times the size of the checkpoint, */
    CHECKPOINT_LOG_MIN = 8 << 20,  /* and by at least these bytes, which replay in 10 ms; a close does so, too */
};

struct checkpoints {
    struct log *log;
    struct state *state;
    struct directory *directory;
    const struct meta *meta;
    bool disabled;
    bool background; /* a thread of its own takes them */
    uint64_t lsn;    /* of the present checkpoint that an open could use; 0: none */
    uint64_t bytes;  /* its size */
    uint64_t epoch;  /* in which it was taken */
    uint64_t taken;  /* how many since the open */
    uint64_t failures;
    uint64_t retry_lsn; /* after a failure: no new try before the log reaches this LSN */
    bool running;       /* one is being taken */
    bool give_up;       /* ... and should end without result */
    bool stopping;
    bool thread_running;
    pthread_t thread;
    pthread_cond_t wake; /* the thread waits here */
    pthread_cond_t done; /* one is no longer running */
};

struct replay;

void checkpoints_init(struct checkpoints *c, struct log *log, struct state *state, struct directory *directory,
                      const struct meta *meta, const ls_options *options);
void checkpoints_free(struct checkpoints *c);

/* Lock held. Wakes the thread if one is due. */
void checkpoint_consider(struct checkpoints *c);
/* (waits) Lock held: ends a checkpoint that is being taken, and removes the present one. False: there was neither. */
bool checkpoint_give_up(struct checkpoints *c);
/* (waits) Lock held: takes a checkpoint now. */
int checkpoint_take(struct checkpoints *c, ls_checkpoint_info *info);
int checkpoint_start_thread(struct checkpoints *c);
void checkpoint_stop_thread(struct checkpoints *c); /* lock not held */
/* Lock held, only the files still open: takes one more if it is worth it. */
void checkpoint_at_close(struct checkpoints *c);

/* ---- checkpoint/rows.c: from the table to blocks of rows; all with the lock held ---- */

struct row_block {
    struct row_block *next;
    uint64_t index;
    uint32_t used;
    uint8_t bytes[CHECKPOINT_BLOCK_BYTES];
};

struct rows {
    struct state *state;
    struct checkpoint_header *header; /* its counts grow */
    struct row_block *filling;
    struct row_block *full; /* waiting to be written */
    struct row_block **full_end;
    size_t full_count;
    uint64_t block_count;
    bool failed;                /* no memory, or too much waits to be written: the remaining rows are skipped */
    struct deletion *deletions; /* as of the LSN, by queue */
    size_t deletion_count;
    bool unsettled; /* a table between replay and settling: places have their keys, and there are no queues */
    struct walk *walk;
};

/* Begins to copy the table as it is at this moment. LS_NO_MEMORY. */
int rows_begin(struct rows *r, struct state *state, struct checkpoint_header *header, bool unsettled);
/* Copies some more messages; false: there are no more. Other threads may change the table between two calls. */
bool rows_copy_some(struct rows *r);
struct row_block *rows_take_full(struct rows *r); /* a list */
/* Ends the copying: the block that was begun counts as full. */
void rows_end(struct rows *r);
void rows_free(struct rows *r);
/* Removes the deletions that no later checkpoint needs; call it while no checkpoint is being taken. */
void rows_forget_old_deletions(struct state *state, uint64_t base_lsn);
/* For a client's put_rows: memory for one row of `length` bytes (1 to CLIENT_BYTES_MAX), or NULL: the checkpoint fails. */
uint8_t *rows_put_client(struct rows *r, uint32_t stream, uint32_t length);
/* How many bytes the rows of this message take. */
uint64_t rows_bytes_of(struct message *m);

/* ---- checkpoint/file.c; without the lock ---- */

struct checkpoint_file {
    struct directory *directory;
    int file; /* -1: none is open */
    const struct checkpoint_header *header;
};

/* All of these return 0 or -errno. */
int checkpoint_file_begin(struct checkpoint_file *f, struct directory *directory,
                          const struct checkpoint_header *header);
int checkpoint_file_write(struct checkpoint_file *f, struct row_block *block, bool last);
int checkpoint_file_finish(struct checkpoint_file *f); /* forces it, and renames it into place */
void checkpoint_file_abandon(struct checkpoint_file *f);

/* ---- checkpoint/load.c ---- */

/* The checkpoint that a replay begins behind; zeros if there is none. */
struct loaded_checkpoint {
    uint64_t lsn;
    uint64_t bytes;
    uint64_t epoch;    /* in which it was taken */
    uint64_t base_lsn; /* that its batch names */
};

/*
 * Called between the scan and the replay. LS_OK with *used: the table has the state at the checkpoint's LSN, and the
 * scan continues there. LS_OK without *used: the table is empty. The report says why.
 */
int checkpoint_load(struct replay *p, int dir, struct loaded_checkpoint *loaded, bool *used);
/* After a contradiction in the replay: empties the table and sets the scan back to the base. */
void checkpoint_forget(struct replay *p);

#endif
