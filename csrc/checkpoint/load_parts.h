/* What load.c and load_messages.c share: a checkpoint that is being read. */
#ifndef LOGSTORE_CHECKPOINT_LOAD_PARTS_H
#define LOGSTORE_CHECKPOINT_LOAD_PARTS_H

#include "checkpoint/checkpoint.h"
#include "os/io.h"
#include "replay/replay.h"

enum { BLOCKS_AT_ONCE = 16 };

struct loading {
    struct replay *p;
    struct table *t;
    vfs *v;
    int dir;
    int file;
    struct checkpoint_header h;
    uint8_t *window; /* BLOCKS_AT_ONCE blocks */
    uint64_t index;  /* of the next block */
    uint64_t window_from;
    uint64_t window_blocks;
    const uint8_t *at; /* the next row, and where the block's rows end */
    const uint8_t *end;
    size_t next_block_from;    /* bytes from there to the rows of the next block */
    const uint8_t *window_end; /* of what was read */
    int rank_seen;             /* rows come in the order of their kinds */
    const uint8_t *last_row;   /* of the last message; NULL: none */
    size_t apart;              /* bytes from it to the next one, as far as that is known */
    uint32_t number;           /* of the last message */
    struct work *work;         /* its operation that has `later` later ones */
    uint32_t later;
    uint64_t highest_id; /* of a message: a higher id cannot be a duplicate, and is not looked up */
    uint64_t messages, places, operations, transactions, deletions;
    uint64_t batch_index; /* of the batch that it names; 0: that is not replicated */
    uint64_t base_lsn;    /* that this batch names */
};

/* Results besides ls_codes: what is wrong with the checkpoint alone. */
enum { LOAD_DAMAGED = -1, LOAD_UNREADABLE = -2, LOAD_OVER = -3, LOAD_NEWER = -4 };

/* Reads the next row, which must exist: one of `bytes`, or of the length that its kind has if that is 0. */
int load_following_row(struct loading *l, uint32_t bytes, const uint8_t **row);

/* ---- load_messages.c ---- */

/* From the row to the end of the rows that follow it. */
int load_message(struct loading *l, const uint8_t *row);
int load_place_state(struct loading *l, const uint8_t *row); /* of the last message */

#endif
