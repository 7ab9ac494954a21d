/*
 * The table of a copy that follows, as a checkpoint: the state at the end of the newest batch that was applied. Batches are taken and
 * applied while its rows are copied: a message that is about to change is copied first, as in a store that serves
 * (checkpoint/rows.c). See replica.h.
 */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "os/io.h"
#include "replica/replica.h"

/*
 * Where a checkpoint can be taken: not between the copies of a chain and the state that completes them, because a
 * replay must see both; and not while a transaction that a new leader has rolled back has no record of its outcome, or
 * a transaction has no start record yet.
 */
static bool is_possible(const struct replica *r) {
    const struct table *t = &r->store->state.table;
    bool possible = r->applied_batch.lsn != 0 && r->mid_chain == 0 && r->error == 0;
    for (uint32_t i = 0; possible && i < t->tx_slots; i++) {
        const struct tx *tx = t->txs[i];
        possible = tx == NULL || (tx->started && !tx->undone_at_open);
    }
    return possible;
}

bool replica_checkpoint_is_due(const struct replica *r) {
    const struct table *t = &r->store->state.table;
    uint64_t size = (uint64_t)PLAIN_ROW_BYTES * t->message_count + (uint64_t)TRANSACTION_ROW_BYTES * t->tx_count;
    uint64_t much = CHECKPOINT_SEGMENTS * r->store->meta.segment_size, segments = 0;
    much = much > CHECKPOINT_LOG_MIN ? much : CHECKPOINT_LOG_MIN;
    much = CHECKPOINT_TIMES_ITS_SIZE * size > much ? CHECKPOINT_TIMES_ITS_SIZE * size : much;
    for (size_t i = r->segment_count; i-- > 0 && r->segments[i].first_lsn >= r->checkpoint_lsn;) {
        segments++;
    }
    bool may =
        r->store->options.no_checkpoint == 0 && r->checkpoint == NULL && r->applied.lsn >= r->checkpoint_retry_lsn;
    return may && segments * r->store->meta.segment_size > much && is_possible(r);
}

/* ---- one that is being taken ---- */

struct replica_checkpoint {
    struct replica *r;
    struct checkpoint_header header;
    struct checkpoint_file file;
    struct rows rows;
    int error; /* errno */
    bool opened;
    bool has_thread;
    atomic_bool gives_up;
    atomic_bool ended;
    pthread_t thread;
};

/* Writes and frees the full blocks; the last block of the file only if `all`. */
static void write_blocks(struct replica_checkpoint *k, struct row_block *list, bool all) {
    while (list != NULL) {
        struct row_block *next = list->next;
        if (k->error == 0) {
            k->error = -checkpoint_file_write(&k->file, list, all && next == NULL);
        }
        free(list);
        list = next;
    }
}

/* Every message is visited, even after a failure, so that all have the same mark for the next checkpoint. */
static bool copy_some(struct replica_checkpoint *k, struct row_block **list) {
    (void)pthread_mutex_lock(&k->r->table_lock);
    k->rows.failed = k->rows.failed || k->error != 0 || atomic_load(&k->gives_up);
    bool more = rows_copy_some(&k->rows);
    if (!more) {
        rows_end(&k->rows);
    }
    *list = more ? rows_take_full(&k->rows) : NULL;
    (void)pthread_mutex_unlock(&k->r->table_lock);
    return more;
}

static void finish(struct replica_checkpoint *k) {
    struct row_block *list = rows_take_full(&k->rows);
    k->error = k->error == 0 && k->rows.failed ? ENOMEM : k->error;
    k->header.file_bytes = CHECKPOINT_HEADER_BYTES;
    for (const struct row_block *b = list; b != NULL; b = b->next) {
        k->header.file_bytes = CHECKPOINT_HEADER_BYTES + b->index * CHECKPOINT_BLOCK_BYTES + b->used;
    }
    write_blocks(k, list, true);
    rows_free(&k->rows);
    if (k->error == 0) {
        k->error = -checkpoint_file_finish(&k->file);
    }
    if (k->error != 0) {
        checkpoint_file_abandon(&k->file);
    }
}

/* Does a part of the work. False: all work is done. */
static bool go_on(struct replica_checkpoint *k) {
    struct row_block *list;
    if (!k->opened) {
        k->opened = true;
        k->error = -checkpoint_file_begin(&k->file, &k->r->store->directory, &k->header);
    }
    bool more = copy_some(k, &list);
    if (more && list == NULL && k->has_thread) {
        (void)sched_yield(); /* others wait for the lock */
    }
    write_blocks(k, list, false);
    if (!more) {
        finish(k);
    }
    return more;
}

static void *checkpoint_thread(void *context) {
    struct replica_checkpoint *k = context;
    while (go_on(k)) {
    }
    atomic_store(&k->ended, true);
    return NULL;
}

/* Frees a checkpoint that has ended, and returns its errno. */
static int take_away(struct replica *r) {
    struct replica_checkpoint *k = r->checkpoint;
    if (k->has_thread) {
        (void)pthread_join(k->thread, NULL);
    }
    int error = k->error;
    r->checkpoint_lsn = error == 0 ? k->header.lsn : r->checkpoint_lsn;
    r->checkpoint = NULL;
    free(k);
    return error;
}

static void wait_for_more(struct replica *r) {
    r->checkpoint_retry_lsn = r->applied.lsn + CHECKPOINT_SEGMENTS * r->store->meta.segment_size;
}

static int note_result(struct replica *r) {
    int error = take_away(r);
    if (error == 0) {
        r->stats.checkpoints++;
        return LS_OK;
    }
    wait_for_more(r);
    return error == ENOMEM ? fail_memory()
                           : fail_errno(error == ENOSPC || error == EDQUOT ? LS_FULL : LS_IO, error,
                                        "the checkpoint cannot be written");
}

void replica_checkpoint_give_up(struct replica *r) {
    struct replica_checkpoint *k = r->checkpoint;
    if (k == NULL) {
        return;
    }
    atomic_store(&k->gives_up, true);
    while (!k->has_thread && go_on(k)) {
    }
    (void)take_away(r);
}

/* The next checkpoint waits; otherwise it would take the freed blocks at once. */
bool replica_checkpoint_give_up_space(struct replica *r) {
    const struct directory *d = &r->store->directory;
    bool any = r->checkpoint != NULL;
    replica_checkpoint_give_up(r);
    any = d->v->unlink(d->v, d->dir, "CHECKPOINT") == 0 || any;
    r->checkpoint_lsn = 0;
    wait_for_more(r);
    return any;
}

/* ---- begin and end ---- */

static int describe(const struct replica *r, struct checkpoint_header *h) {
    vfs *v = r->store->directory.v;
    *h = (struct checkpoint_header){
        .lsn = r->applied.lsn,
        .epoch = r->applied.term,
        .batch_lsn = r->applied_batch.lsn,
        .batch_checksum = r->applied_batch.checksum,
        .base_lsn = r->base_lsn,
        .created_us = v->now_us(v),
    };
    memcpy(h->uuid, r->store->meta.uuid, UUID_BYTES);
    int error = v->random(v, &h->salt, sizeof h->salt);
    return error == 0 ? LS_OK : fail_errno(LS_IO, -error, "no random bytes for a checkpoint");
}

int replica_checkpoint_begin(struct replica *r, bool *begun) {
    *begun = false;
    if (r->checkpoint != NULL || !is_possible(r)) {
        return LS_OK;
    }
    struct replica_checkpoint *k = calloc(1, sizeof *k);
    int rc = k == NULL ? fail_memory() : describe(r, &k->header);
    if (rc == LS_OK) {
        k->r = r;
        k->file.file = -1;
        replication_note_index(r->store, r->applied.index);
        rc = rows_begin(&k->rows, &r->store->state, &k->header, true);
    }
    if (rc != LS_OK) {
        free(k);
        return rc;
    }
    r->checkpoint = k;
    k->has_thread = r->store->options.background != 0;
    if (k->has_thread && pthread_create(&k->thread, NULL, checkpoint_thread, k) != 0) {
        k->has_thread = false; /* then the caller does the work */
    }
    *begun = true;
    return LS_OK;
}

int replica_checkpoint_ended(struct replica *r, bool *ended) {
    struct replica_checkpoint *k = r->checkpoint;
    *ended = k == NULL || (k->has_thread ? atomic_load(&k->ended) : !go_on(k));
    return k != NULL && *ended ? note_result(r) : LS_OK;
}

int replica_checkpoint(struct replica *r, bool *taken) {
    int rc = replica_checkpoint_begin(r, taken);
    if (rc != LS_OK || !*taken) {
        return rc;
    }
    while (!r->checkpoint->has_thread && go_on(r->checkpoint)) {
    }
    rc = note_result(r);
    *taken = rc == LS_OK;
    return rc;
}
