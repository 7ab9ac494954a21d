/* The table of a copy that follows, as a checkpoint: the state at the end of the newest batch that was applied. See replica.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/io.h"
#include "replica/replica.h"

/*
 * Where a checkpoint can stand: not between a chain's copies and the state that completes them, which replay would have to see
 * together; and not while a transaction that a new leader undid has no record of that, or one has no start yet.
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
    return r->store->options.no_checkpoint == 0 && segments * r->store->meta.segment_size > much && is_possible(r);
}

/* Writes and frees the blocks; the last of the file only with `all`. 0 or -errno. */
static int write_blocks(struct checkpoint_file *file, struct row_block *list, bool all) {
    int error = 0;
    while (list != NULL) {
        struct row_block *next = list->next;
        error = error == 0 ? checkpoint_file_write(file, list, all && next == NULL) : error;
        free(list);
        list = next;
    }
    return error;
}

static int write_rows(struct rows *rows, struct checkpoint_file *file, struct checkpoint_header *h) {
    int error = 0;
    while (rows_copy_some(rows)) {
        int failed = write_blocks(file, rows_take_full(rows), false);
        error = error == 0 ? failed : error;
        rows->failed = rows->failed || error != 0;
    }
    rows_end(rows);
    struct row_block *last = rows_take_full(rows);
    h->file_bytes = CHECKPOINT_HEADER_BYTES;
    for (const struct row_block *b = last; b != NULL; b = b->next) {
        h->file_bytes = CHECKPOINT_HEADER_BYTES + b->index * CHECKPOINT_BLOCK_BYTES + b->used;
    }
    int failed = write_blocks(file, last, true);
    error = error == 0 ? failed : error;
    return error == 0 && rows->failed ? -ENOMEM : error;
}

int replica_checkpoint(struct replica *r, bool *taken) {
    ls_store *store = r->store;
    vfs *v = store->directory.v;
    struct checkpoint_header h = {
        .lsn = r->applied.lsn,
        .epoch = r->applied.term,
        .batch_lsn = r->applied_batch.lsn,
        .batch_checksum = r->applied_batch.checksum,
        .base_lsn = r->base_lsn,
        .created_us = v->now_us(v),
    };
    struct rows rows;
    struct checkpoint_file file;
    *taken = false;
    if (!is_possible(r)) {
        return LS_OK;
    }
    memcpy(h.uuid, store->meta.uuid, UUID_BYTES);
    int error = v->random(v, &h.salt, sizeof h.salt);
    if (error != 0) {
        return fail_errno(LS_IO, -error, "no random bytes for a checkpoint");
    }
    replication_note_index(store, r->applied.index);
    int rc = rows_begin(&rows, &store->state, &h, true);
    if (rc != LS_OK) {
        return rc;
    }
    error = checkpoint_file_begin(&file, &store->directory, &h);
    rows.failed = error != 0;
    int failed = write_rows(&rows, &file, &h);
    error = error == 0 ? failed : error;
    rows_free(&rows);
    error = error == 0 ? checkpoint_file_finish(&file) : error;
    if (error != 0) {
        checkpoint_file_abandon(&file);
        return error == -ENOMEM ? fail_memory()
                                : fail_errno(error == -ENOSPC || error == -EDQUOT ? LS_FULL : LS_IO, -error,
                                             "the checkpoint cannot be written");
    }
    r->checkpoint_lsn = h.lsn;
    r->stats.checkpoints++;
    *taken = true;
    return LS_OK;
}
