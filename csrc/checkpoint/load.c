/*
 * Loads a checkpoint into the table: finds it, checks that it fits the log, and reads it block by block; every length
 * is checked before it is used. If anything is wrong with it, the table is emptied and the whole log is replayed. See
 * checkpoint.h.
 */
#include "checkpoint/load_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/io.h"

/* ---- blocks ---- */

static int read_window(struct loading *l) {
    uint64_t blocks = format_checkpoint_blocks(l->h.file_bytes) - l->index;
    blocks = blocks < BLOCKS_AT_ONCE ? blocks : BLOCKS_AT_ONCE;
    uint64_t from = CHECKPOINT_HEADER_BYTES + l->index * CHECKPOINT_BLOCK_BYTES;
    uint64_t bytes = blocks * CHECKPOINT_BLOCK_BYTES;
    bytes = bytes < l->h.file_bytes - from ? bytes : l->h.file_bytes - from;
    int64_t got = io_read(l->v, l->file, l->window, (size_t)bytes, from);
    if (got < 0) {
        return LOAD_UNREADABLE;
    }
    l->p->report->checkpoint_bytes += (uint64_t)got;
    l->window_end = l->window + got;
    l->window_from = l->index;
    l->window_blocks = blocks;
    return (uint64_t)got == bytes ? LS_OK : LOAD_DAMAGED;
}

/* Moves to the next block after all rows of the last one were read. LOAD_OVER: there is none. */
static int next_block(struct loading *l) {
    if (l->index == format_checkpoint_blocks(l->h.file_bytes)) {
        return LOAD_OVER;
    }
    if (l->index == l->window_from + l->window_blocks) {
        int rc = read_window(l);
        if (rc != LS_OK) {
            return rc;
        }
    }
    const uint8_t *block = l->window + (l->index - l->window_from) * CHECKPOINT_BLOCK_BYTES;
    uint32_t used;
    if (format_get_checkpoint_block(block, &l->h, l->index, &used) != FORMAT_OK) {
        return LOAD_DAMAGED;
    }
    l->index++;
    l->at = block + CHECKPOINT_BLOCK_HEADER_BYTES;
    l->end = block + used;
    l->next_block_from = CHECKPOINT_BLOCK_BYTES - used + CHECKPOINT_BLOCK_HEADER_BYTES;
    return LS_OK;
}

/* Reads `bytes` of a row, or of the rows that follow a chain's row; 0: the length that the row's kind has. */
static int next_row(struct loading *l, uint32_t bytes, const uint8_t **row) {
    if (l->at == l->end) {
        int rc = next_block(l);
        if (rc != LS_OK) {
            return rc;
        }
    }
    bytes = bytes != 0 ? bytes : format_checkpoint_row_bytes(*l->at);
    if (bytes == 0 || bytes > (size_t)(l->end - l->at)) {
        return LOAD_DAMAGED;
    }
    *row = l->at;
    l->at += bytes;
    return LS_OK;
}

int load_following_row(struct loading *l, uint32_t bytes, const uint8_t **row) {
    int rc = next_row(l, bytes, row);
    return rc == LOAD_OVER ? LOAD_DAMAGED : rc;
}

/* ---- rows ---- */

static int take_deletion(struct loading *l, const uint8_t *row) {
    struct deletion_row d;
    struct state *state = l->p->state;
    if (format_get_deletion_row(row, l->h.lsn, &d) != FORMAT_OK || table_any_queue(l->t, d.queue_id) != NULL) {
        return LOAD_DAMAGED;
    }
    if (!table_add_queue(l->t, d.queue_id) || !state_prepare_deletions(state, 1)) {
        return fail_memory();
    }
    table_any_queue(l->t, d.queue_id)->deleted = true;
    state_note_deletion(state, d.queue_id, d.lsn);
    l->deletions++;
    return LS_OK;
}

static int take_transaction(struct loading *l, const uint8_t *row) {
    struct transaction_row r;
    struct tx *tx;
    if (format_get_transaction_row(row, l->h.lsn, &r) != FORMAT_OK || l->transactions == TX_MAX ||
        table_tx(l->t, r.id) != NULL) {
        return LOAD_DAMAGED;
    }
    if (!table_prepare_tx(l->t, &tx)) {
        return fail_memory();
    }
    table_add_tx(l->t, tx, r.id);
    tx->start_lsn = r.start_lsn;
    tx->last_lsn = r.last_lsn;
    tx->started_us = r.start_time_us;
    tx->xid = r.xid;
    tx->distributed = r.kind == TX_KIND_DISTRIBUTED;
    tx->started = true;
    tx->state = r.state == TX_STATE_ENDED ? LS_TX_ENDED : LS_TX_ACTIVE;
    if (r.state == TX_STATE_PREPARED) {
        tx_prepared(l->t, tx, r.prepare_time_us);
    }
    l->transactions++;
    return LS_OK;
}

/* If the stream has no client, the checkpoint has a state that this reader does not know, so all of it is ignored. */
static int take_client(struct loading *l, const uint8_t *row) {
    struct client_row r;
    if (format_get_client_row(row, &r) != FORMAT_OK) {
        return LOAD_DAMAGED;
    }
    uint32_t padded = (uint32_t)round_up(r.length, 8);
    if (padded > (size_t)(l->end - l->at)) {
        return LOAD_DAMAGED;
    }
    const uint8_t *bytes = l->at;
    l->at += padded;
    const struct log_client *c = log_client_of(l->p->state->clients, (uint16_t)(r.stream << 8));
    if (c == NULL || c->calls->load_row == NULL) {
        return LOAD_NEWER;
    }
    int rc = c->calls->load_row(c->context, l->p, bytes, r.length);
    return rc == LS_CORRUPT ? LOAD_DAMAGED : rc;
}

/* The order of the rows; messages of the three kinds come mixed. */
static int rank_of(uint8_t kind) {
    switch (kind) {
    case ROW_DELETION:
        return 1;
    case ROW_TRANSACTION:
        return 2;
    case ROW_CLIENT:
        return 3;
    default:
        return 4;
    }
}

static int take_rows(struct loading *l) {
    const uint8_t *row;
    int rc;
    while ((rc = next_row(l, 0, &row)) == LS_OK) {
        int rank = rank_of(*row);
        if (rank < l->rank_seen) {
            return LOAD_DAMAGED;
        }
        l->rank_seen = rank;
        rc = *row == ROW_DELETION      ? take_deletion(l, row)
             : *row == ROW_TRANSACTION ? take_transaction(l, row)
             : *row == ROW_CLIENT      ? take_client(l, row)
             : *row == ROW_STATE       ? load_place_state(l, row)
                                       : load_message(l, row);
        if (rc != LS_OK) {
            return rc;
        }
    }
    bool whole = l->messages == l->h.messages && l->places == l->h.places && l->operations == l->h.operations &&
                 l->transactions == l->h.transactions && l->deletions == l->h.deletions;
    return rc != LOAD_OVER ? rc : whole ? LS_OK : LOAD_DAMAGED;
}

/* ---- the file ---- */

static int ignore(struct loading *l, int state) {
    l->p->report->checkpoint_state = state;
    return LS_OK;
}

static bool open_file(struct loading *l) {
    ls_recovery *report = l->p->report;
    uint8_t bytes[CHECKPOINT_HEADER_BYTES];
    l->file = l->v->open(l->v, l->dir, "CHECKPOINT", 0);
    if (l->file < 0) {
        report->checkpoint_state = l->file == -ENOENT ? LS_CHECKPOINT_NONE : LS_CHECKPOINT_UNREADABLE;
        return false;
    }
    int64_t got = io_read(l->v, l->file, bytes, sizeof bytes, 0);
    int64_t size = l->v->size(l->v, l->file);
    if (got < 0 || size < 0) {
        report->checkpoint_state = LS_CHECKPOINT_UNREADABLE;
        return false;
    }
    report->checkpoint_bytes = (uint64_t)got;
    enum format_result result = format_get_checkpoint(bytes, (size_t)got, &l->h);
    if (result != FORMAT_OK || l->h.file_bytes != (uint64_t)size) {
        report->checkpoint_state = result == FORMAT_NEWER ? LS_CHECKPOINT_NEWER : LS_CHECKPOINT_DAMAGED;
        return false;
    }
    if (memcmp(l->h.uuid, l->p->scan->meta.uuid, UUID_BYTES) != 0) {
        report->checkpoint_state = LS_CHECKPOINT_FOREIGN;
        return false;
    }
    report->checkpoint_lsn = l->h.lsn;
    return true;
}

/* Whether the checkpoint was taken from this log. */
static int find_its_batch(struct loading *l, bool *found) {
    struct scan *s = l->p->scan;
    struct scan_batch b = {.lsn = 0};
    *found = false;
    if (l->h.lsn > s->end_lsn) {
        return ignore(l, LS_CHECKPOINT_BEYOND);
    }
    if (l->h.batch_lsn < s->base_lsn) {
        return ignore(l, LS_CHECKPOINT_BELOW);
    }
    bool there;
    int rc = scan_from_batch(s, l->h.batch_lsn, &b, &there);
    if (rc != LS_OK) {
        return rc;
    }
    *found = there && b.batch.epoch == l->h.epoch && l->h.batch_lsn + b.batch.bytes == l->h.lsn &&
             format_record_checksum(b.bytes) == l->h.batch_checksum;
    l->batch_index = b.batch.index;
    l->base_lsn = b.batch.base_lsn;
    l->p->newest.known_durable_lsn = *found ? b.batch.known_durable_lsn : 0;
    return *found ? LS_OK : ignore(l, LS_CHECKPOINT_NOT_IN_LOG);
}

/* The index gets its final size at once: the file is long enough for that many messages. */
static int read_rows(struct loading *l) {
    l->window = malloc((size_t)BLOCKS_AT_ONCE * CHECKPOINT_BLOCK_BYTES);
    if (l->window == NULL || !index_prepare(&l->t->messages, l->h.messages)) {
        return fail_memory();
    }
    (void)l->v->advise_sequential(l->v, l->file, 0, l->h.file_bytes);
    int rc = take_rows(l);
    /* Without its row the copy would not know where it is in the sequence. */
    return rc == LS_OK && l->p->newest.index != l->batch_index ? LOAD_DAMAGED : rc;
}

void checkpoint_forget(struct replay *p) {
    state_clear(p->state);
    p->newest = (struct newest_batch){.index = 0};
    scan_rewind(p->scan);
}

int checkpoint_load(struct replay *p, int dir, struct loaded_checkpoint *loaded, bool *used) {
    struct loading l = {.p = p, .t = p->t, .v = p->scan->v, .dir = dir, .file = -1};
    uint64_t start_us = l.v->monotonic_us(l.v);
    bool found = false;
    *used = false;
    *loaded = (struct loaded_checkpoint){.lsn = 0};
    int rc = open_file(&l) ? find_its_batch(&l, &found) : LS_OK;
    if (rc == LS_OK && found) {
        rc = read_rows(&l);
        if (rc == LS_OK) {
            *used = true;
            *loaded = (struct loaded_checkpoint){
                .lsn = l.h.lsn, .bytes = l.h.file_bytes, .epoch = l.h.epoch, .base_lsn = l.base_lsn};
            p->report->checkpoint_state = LS_CHECKPOINT_USED;
        } else if (rc < 0) {
            rc = ignore(&l, rc == LOAD_UNREADABLE ? LS_CHECKPOINT_UNREADABLE
                            : rc == LOAD_NEWER    ? LS_CHECKPOINT_NEWER
                                                  : LS_CHECKPOINT_DAMAGED);
        }
    }
    if (!*used && rc == LS_OK) {
        checkpoint_forget(p);
    }
    if (l.file >= 0) {
        (void)l.v->close(l.v, l.file);
    }
    free(l.window);
    p->report->checkpoint_used = *used;
    p->report->checkpoint_us = l.v->monotonic_us(l.v) - start_us;
    return rc;
}
