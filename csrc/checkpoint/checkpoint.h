/*
 * Checkpoints: what replaying the log up to an LSN gives, in a file of its own, so that an open need not replay it.
 *
 * What always holds:
 *   - a checkpoint is the exact state that replay gives at the end of one batch, its LSN; it is taken while others go on
 *     working: an operation that is about to change a message first hands over its old state (table_touch);
 *   - it is renamed into place only after everything below its LSN is durable and the file itself was forced;
 *   - it is never needed. Whatever goes wrong with one, being written or being read, is counted or reported, and
 *     survived; and on a full disk it is given up before the log is.
 *
 * checkpoint.c has the policy and the order of things, checkpoint/rows.c what is copied from the table,
 * checkpoint/file.c the file, checkpoint/load.c the way back into the table.
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
    CHECKPOINT_SEGMENTS = 8, /* another is written in the background when this many segments of log have come since, */
    CHECKPOINT_TIMES_ITS_SIZE = 4, /* and when the log behind it is 4 times its size, */
    CHECKPOINT_LOG_MIN = 8 << 20,  /* and at least these bytes, which replay in 10 ms; at close, too */
};

struct checkpoints {
    struct log *log;
    struct state *state;
    struct directory *directory;
    const struct meta *meta;
    bool disabled;
    bool background; /* a thread of its own takes them */
    uint64_t lsn;    /* of the one in place that an open could use; 0: none */
    uint64_t bytes;  /* its size */
    uint64_t epoch;  /* in which it was taken */
    uint64_t taken;  /* how many since the open */
    uint64_t failures;
    uint64_t retry_lsn; /* after a failure: not before the log has come so far */
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
/* (waits) Lock held: one now. */
int checkpoint_take(struct checkpoints *c, ls_checkpoint_info *info);
int checkpoint_start_thread(struct checkpoints *c);
void checkpoint_stop_thread(struct checkpoints *c); /* lock not held */
/* Lock held, everything closed but the files: one more if it is worth it. */
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
    bool failed;                /* no memory, or too much was waiting: what is left is passed over */
    struct deletion *deletions; /* as of the LSN, by queue */
    size_t deletion_count;
    struct walk *walk;
};

/* The table as it is at this moment is what will be copied. LS_NO_MEMORY. */
int rows_begin(struct rows *r, struct state *state, struct checkpoint_header *header);
/* Some more messages; false: there are no more. Others may change the table between two calls. */
bool rows_copy_some(struct rows *r);
struct row_block *rows_take_full(struct rows *r); /* a list */
/* Nothing more is copied. The block that was begun is full now. */
void rows_end(struct rows *r);
void rows_free(struct rows *r);
/* Leaves those out that no checkpoint tells any more; while none is being taken. */
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

/* All: 0 or -errno. */
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
    uint64_t epoch; /* in which it was taken */
};

/*
 * Between the scan and the replay. LS_OK: either *used, the table is as at the checkpoint's LSN, and the scan continues
 * there; or not, and the table is empty. The report says which, and why.
 */
int checkpoint_load(struct replay *p, int dir, struct loaded_checkpoint *loaded, bool *used);
/* The replay found a contradiction: back to an empty table and the base. */
void checkpoint_forget(struct replay *p);

#endif
