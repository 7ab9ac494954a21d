/*
 * Loads a checkpoint into the table: finds it, checks that it fits the log, and reads it block by block; every length
 * is checked before it is used. If anything is wrong with it, the table is emptied and the whole log is replayed. See
 * checkpoint.h.
 */
#include "checkpoint/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "os/io.h"
#include "replay/replay.h"
#include "table/remembered.h"

enum { BLOCKS_AT_ONCE = 16, ROWS_AHEAD = 16 };

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
    int rank_seen;     /* rows come in the order of their kinds */
    uint32_t number;   /* of the last message */
    struct work *work; /* its operation that has `later` later ones */
    uint32_t later;
    uint64_t highest_id; /* of a message: a higher id cannot be a duplicate, and is not looked up */
    uint64_t messages, places, operations, transactions, deletions;
    uint64_t batch_index; /* of the batch that it names; 0: that is not replicated */
    uint64_t base_lsn;    /* that this batch names */
};

/* Results besides ls_codes: what is wrong with the checkpoint alone. */
enum { LOAD_DAMAGED = -1, LOAD_UNREADABLE = -2, LOAD_OVER = -3, LOAD_NEWER = -4 };

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

/* The same for a row that must exist. */
static int following_row(struct loading *l, uint32_t bytes, const uint8_t **row) {
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

static int take_chunks(struct loading *l, const struct message_row *r, struct message_extra *x) {
    uint64_t offset = r->content_bytes;
    for (uint32_t i = 0; i < r->chunk_count; i++) {
        const uint8_t *row;
        struct chain_chunk c;
        int rc = following_row(l, CHAIN_CHUNK_BYTES, &row);
        if (rc != LS_OK) {
            return rc;
        }
        if (format_get_chain_chunk(row, l->h.lsn, r->id, &c) != FORMAT_OK || c.offset != offset) {
            return LOAD_DAMAGED;
        }
        if (!message_prepare_chunks(x, i + 1)) {
            return fail_memory();
        }
        x->chunks[i] = (struct chain_record){
            .lsn = c.lsn, .offset = c.offset, .record_bytes = c.record_bytes, .content_bytes = c.content_bytes};
        x->chunk_count = i + 1;
        offset += c.content_bytes;
    }
    return offset == r->content_total ? LS_OK : LOAD_DAMAGED;
}

static int take_parts(struct loading *l, const struct message_row *r, struct message_extra *x) {
    uint32_t capacity = 0;
    for (uint32_t i = 0; i < r->part_count; i++) {
        const uint8_t *row;
        struct chain_part c;
        int rc = following_row(l, CHAIN_PART_BYTES, &row);
        if (rc != LS_OK) {
            return rc;
        }
        if (format_get_chain_part(row, l->h.lsn, r->id, &c) != FORMAT_OK) {
            return LOAD_DAMAGED;
        }
        if (!array_grow(&x->parts, &capacity, i, 1)) {
            return fail_memory();
        }
        x->parts[i] = (struct chain_record){.lsn = c.lsn, .record_bytes = c.record_bytes};
        x->part_count = i + 1;
    }
    return LS_OK;
}

static int take_places(struct loading *l, const struct message_row *r, struct message *m) {
    for (uint32_t i = 0; i < r->place_count; i++) {
        const uint8_t *row;
        struct chain_place c;
        int rc = following_row(l, CHAIN_PLACE_BYTES, &row);
        if (rc != LS_OK) {
            return rc;
        }
        if (format_get_chain_place(row, l->h.lsn, r->id, &c) != FORMAT_OK || message_place(m, c.queue_id) != NULL) {
            return LOAD_DAMAGED;
        }
        if (!message_prepare_places(m, 1)) {
            return fail_memory();
        }
        message_add_place(l->t, m,
                          (struct place){.at.order_lsn = c.order_lsn, .slot = c.order_index, .queue_id = c.queue_id});
    }
    l->places += r->place_count;
    return LS_OK;
}

static int take_operations(struct loading *l, const struct message_row *r, uint32_t number) {
    for (uint32_t i = 0; i < r->operation_count; i++) {
        const uint8_t *row;
        struct chain_operation c;
        int rc = following_row(l, CHAIN_OPERATION_BYTES, &row);
        if (rc != LS_OK) {
            return rc;
        }
        struct tx *tx =
            format_get_chain_operation(row, l->h.lsn, r->id, &c) == FORMAT_OK ? table_tx(l->t, c.tx_id) : NULL;
        if (tx == NULL) {
            return LOAD_DAMAGED;
        }
        struct work *w = calloc(1, sizeof *w);
        if (w == NULL) {
            return fail_memory();
        }
        *w = (struct work){
            .lsn = c.lsn,
            .message = number,
            .queue_id = c.queue_id,
            .order_index = c.order_index,
            .kind = c.kind == PENDING_ENQUEUE   ? WORK_ENQUEUE
                    : c.kind == PENDING_DEQUEUE ? WORK_DEQUEUE
                                                : WORK_NOTE,
        };
        tx_add_work(l->t, tx, w);
    }
    l->operations += r->operation_count;
    return LS_OK;
}

/*
 * Restores the growth that admission counts: it cannot be computed again, since it depends on the order of past
 * operations.
 */
static void set_growth(struct table *t, struct message *m, const struct message_row *r) {
    message_moved(t, m);
    if ((r->flags & ROW_LOOSE) != 0) {
        message_grows(t, m, r->growth);
    } else if (m->extra != NULL) {
        m->extra->growth = r->growth;
        t->growth += r->growth;
    }
    if ((r->flags & ROW_WIDE) != 0) {
        message_widens(t, m);
    }
    if (m->extra != NULL) {
        m->extra->work_state = r->work_state;
        m->extra->work_rows = r->work_rows;
        t->growth += (uint64_t)r->work_state + r->work_rows;
    }
}

static int take_chain(struct loading *l, const struct message_row *r, uint32_t number) {
    struct message *m = table_message(l->t, number);
    struct message_extra *x = message_extra(m);
    if (x == NULL) {
        return fail_memory();
    }
    x->start_lsn = r->start_lsn;
    x->last_lsn = r->last_lsn;
    x->content_bytes = r->content_total;
    x->state_bytes = r->state_bytes;
    int rc = take_chunks(l, r, x);
    rc = rc == LS_OK ? take_parts(l, r, x) : rc;
    rc = rc == LS_OK ? take_places(l, r, m) : rc;
    rc = rc == LS_OK ? take_operations(l, r, number) : rc;
    set_growth(l->t, m, r); /* even if no place is left: work on a deleted queue has no row */
    return rc;
}

static int take_single(struct loading *l, const struct message_row *r, uint32_t number) {
    struct message *m = table_message(l->t, number);
    if (r->start_lsn != r->id || r->last_lsn != r->id || r->growth != 0) {
        struct message_extra *x = message_extra(m);
        if (x == NULL) {
            return fail_memory();
        }
        x->start_lsn = r->start_lsn;
        x->last_lsn = r->last_lsn;
    }
    message_add_place(l->t, m,
                      (struct place){.at.order_lsn = r->order_lsn, .slot = r->order_index, .queue_id = r->queue_id});
    set_growth(l->t, m, r);
    l->places++;
    return LS_OK;
}

/* Plain rows mostly follow plain rows. If there is another row, the wrong memory is fetched, which costs little. */
static void look_ahead(const struct loading *l) {
    uint64_t id;
    if ((size_t)(l->end - l->at) > ROWS_AHEAD * PLAIN_ROW_BYTES) {
        id = format_checkpoint_row_id(l->at + (ROWS_AHEAD - 1) * PLAIN_ROW_BYTES);
        index_prefetch(&l->t->messages, id);
    }
}

static int take_message(struct loading *l, const uint8_t *row) {
    struct message_row r;
    look_ahead(l);
    if (format_get_message_row(row, l->h.lsn, &r) != FORMAT_OK || l->messages == l->h.messages ||
        (r.id <= l->highest_id && table_find(l->t, r.id) != INDEX_NONE)) {
        return LOAD_DAMAGED;
    }
    l->highest_id = r.id > l->highest_id ? r.id : l->highest_id;
    if (!table_prepare(l->t, 1)) {
        return fail_memory();
    }
    uint16_t flags = MESSAGE_RECOVERED | ((r.flags & ROW_STAGED) != 0 ? MESSAGE_STAGED : 0) |
                     ((r.flags & ROW_PUBLISHED) != 0 ? MESSAGE_PUBLISHED : 0);
    uint32_t number = table_add(l->t, r.id, flags);
    struct message *m = table_message(l->t, number);
    m->record_bytes = r.record_bytes;
    m->content_bytes = r.content_bytes;
    l->messages++;
    l->number = number;
    int rc = r.kind == ROW_CHAIN ? take_chain(l, &r, number) : take_single(l, &r, number);
    l->work = m->extra != NULL ? m->extra->work : NULL;
    l->later = 0;
    return rc;
}

/* ---- states of places, behind the rows of their message ---- */

static int take_own(struct loading *l, uint64_t id, bool is_note, struct remembered *state) {
    const uint8_t *row;
    struct own_bytes_row o;
    int rc = following_row(l, OWN_BYTES_ROW_BYTES, &row);
    if (rc != LS_OK) {
        return rc;
    }
    if (format_get_own_bytes_row(row, l->h.lsn, id, is_note, &o) != FORMAT_OK) {
        return LOAD_DAMAGED;
    }
    const struct own_bytes own = {.lsn = o.lsn, .record_bytes = o.record_bytes, .at = o.at, .bytes = o.bytes};
    return (is_note ? remembered_set_note(state, &own) : remembered_set_header(state, &own)) ? LS_OK : fail_memory();
}

/* The place has none yet. */
static int state_place(struct message *m, uint32_t queue_id, struct remembered *state) {
    struct place *place = message_place(m, queue_id);
    if (place == NULL || unplaced_remembers(place)) {
        return LOAD_DAMAGED;
    }
    if (!unplaced_remember(place, state)) {
        return fail_memory();
    }
    state->own = NULL;
    return LS_OK;
}

/* A dequeue has none, a note's is the note. */
static bool may_have(const struct work *w, const struct remembered *state) {
    bool timed = state->not_before_us != 0 || state->expires_us != 0 || state->delivery_count != 0;
    return w->kind == WORK_ENQUEUE || (w->kind == WORK_NOTE && !timed && state->own->header.lsn == 0);
}

/* The states come in the order of the operations, from the newest on. */
static int state_operation(struct loading *l, uint32_t later, struct remembered *state) {
    while (l->work != NULL && l->later < later) {
        l->work = l->work->next_of_message;
        l->later++;
    }
    if (l->work == NULL || l->later != later || l->work->state != NULL || !may_have(l->work, state)) {
        return LOAD_DAMAGED;
    }
    l->work->state = malloc(sizeof *state);
    if (l->work->state == NULL) {
        return fail_memory();
    }
    *l->work->state = *state;
    state->own = NULL;
    return LS_OK;
}

static int take_state(struct loading *l, const uint8_t *row) {
    struct place_state_row r;
    if (format_get_place_state_row(row, &r) != FORMAT_OK || l->messages == 0) {
        return LOAD_DAMAGED;
    }
    struct message *m = table_message(l->t, l->number);
    struct remembered state = {
        .not_before_us = r.not_before_us, .expires_us = r.expires_us, .delivery_count = r.delivery_count};
    int rc = (r.bits & ROW_HAS_NOTE) != 0 ? take_own(l, m->id, true, &state) : LS_OK;
    rc = rc == LS_OK && (r.bits & ROW_HAS_HEADER) != 0 ? take_own(l, m->id, false, &state) : rc;
    if (rc == LS_OK) {
        rc = (r.bits & ROW_OF_OPERATION) != 0 ? state_operation(l, r.of, &state) : state_place(m, r.of, &state);
    }
    remembered_free(&state);
    return rc;
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
             : *row == ROW_STATE       ? take_state(l, row)
                                       : take_message(l, row);
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
