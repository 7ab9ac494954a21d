/*
 * Rules that a sound log keeps although no replay needs them: durable_lsn and base of batches, footers, back-links, and
 * the numbers of a transaction's enqueues. Replay itself checks everything that the state depends on.
 *
 * Back-links of a chain that replay does not know are not checked here: the chain has ended, or is an orphan. The
 * replay in Python keeps all chains and checks these back-links, too.
 */
#include <stdio.h>
#include <string.h>

#include "inspect/inspect.h"
#include "read/damage.h"

static int wrong(const struct scan_batch *b, uint64_t lsn, const char *what) {
    return fail_at(LS_CORRUPT, b->first_lsn, lsn, "the log contradicts itself: %s", what);
}

static int wrong_number(const struct scan_batch *b, uint64_t lsn, const char *what, uint64_t said, uint64_t is) {
    return fail_at(LS_CORRUPT, b->first_lsn, lsn, "the log contradicts itself: %s is %llu, and not %llu", what,
                   (unsigned long long)said, (unsigned long long)is);
}

/* ---- batches ---- */

static void enter_segment(struct checks *c, uint64_t first_lsn) {
    c->first_lsn = first_lsn;
    c->last_lsn = c->before_lsn = 0;
    memset(c->type_counts, 0, sizeof c->type_counts);
}

int check_batch(struct inspection *i, const struct scan_batch *b) {
    struct checks *c = &i->checks;
    if (b->first_lsn != c->first_lsn) {
        enter_segment(c, b->first_lsn);
    }
    c->type_counts[format_type_ordinal(BATCH)]++;
    c->before_lsn = b->lsn;
    const struct batch *said = &b->batch;
    bool opens_segment = b->lsn == b->first_lsn + SEGMENT_HEADER_BYTES;
    if (said->base_lsn > said->durable_lsn && !(opens_segment && said->base_lsn == b->first_lsn)) {
        return wrong(b, b->lsn, "a batch names a base above what was durable");
    }
    if (said->base_lsn % i->reader->meta.segment_size != 0) {
        return wrong(b, b->lsn, "the base that a batch names is not the first LSN of a segment");
    }
    if (said->durable_lsn < c->durable_lsn || said->base_lsn < c->base_lsn) {
        return wrong(b, b->lsn, "a batch's durable LSN or its base lies below that of a batch before it");
    }
    c->durable_lsn = said->durable_lsn;
    c->base_lsn = said->base_lsn;
    return LS_OK;
}

/* ---- footers ---- */

static int check_footer(struct checks *c, const struct scan_batch *b, const struct record *r) {
    struct footer f;
    if (format_get_footer(r, &f) != FORMAT_OK) {
        return wrong(b, r->lsn, "a footer's checksum is right but its contents are impossible");
    }
    c->footers++;
    uint32_t said[TYPES_COUNTED] = {0};
    bool known = true;
    for (uint32_t n = 0; n < f.n; n++) {
        uint32_t stream = f.counts[n].type >> 8;
        if (stream < 1 || stream > STREAMS_COUNTED || format_type_name((uint16_t)f.counts[n].type) == NULL) {
            known = false;
        } else {
            said[format_type_ordinal((uint16_t)f.counts[n].type)] = f.counts[n].count;
        }
    }
    if (!known || memcmp(said, c->type_counts, sizeof said) != 0) {
        return wrong(b, r->lsn, "the records that a segment's footer counts are not those of the segment");
    }
    if (f.last_lsn != c->last_lsn && f.last_lsn != c->before_lsn) {
        return wrong_number(b, r->lsn, "the last LSN of a segment's footer", f.last_lsn, c->before_lsn);
    }
    uint64_t bytes = r->lsn - c->first_lsn - SEGMENT_HEADER_BYTES;
    if (f.bytes != bytes) {
        return wrong_number(b, r->lsn, "the number of bytes in a segment's footer", f.bytes, bytes);
    }
    if (f.batches != c->type_counts[format_type_ordinal(BATCH)]) {
        return wrong_number(b, r->lsn, "the number of batches in a segment's footer", f.batches,
                            c->type_counts[format_type_ordinal(BATCH)]);
    }
    return LS_OK;
}

/* ---- back-links ---- */

static int check_link(const struct scan_batch *b, const struct record *r, uint64_t newest) {
    if (r->prev == newest) {
        return LS_OK;
    }
    return fail_at(LS_CORRUPT, b->first_lsn, r->lsn,
                   "the log contradicts itself: prev is %llu, and the record before it in chain %llu is %llu",
                   (unsigned long long)r->prev, (unsigned long long)r->id, (unsigned long long)newest);
}

/* Copies, parts of a state and the record that completes them are linked to one another. Other records skip them. */
static int check_message(struct inspection *i, const struct scan_batch *b, const struct record *r) {
    struct checks *c = &i->checks;
    bool copied = (r->type == MESSAGE_START || r->type == MESSAGE_CHUNK) && (r->flags & FLAG_COPY) != 0;
    bool relocated = copied || r->type == MESSAGE_RELOCATED || r->type == MESSAGE_RELOCATED_PLACED;
    if ((r->type == MESSAGE_START && !copied) || r->type == MESSAGE_START_PLACED) {
        return LS_OK; /* the codec has checked that its id is its LSN and prev is 0 */
    }
    bool follows_copy = relocated && c->copied_id == r->id && r->prev == c->copied_lsn;
    if (relocated) {
        bool completes = (r->flags & FLAG_INLINE) != 0 || (!copied && (r->flags & FLAG_PART) == 0);
        c->copied_id = completes ? 0 : r->id;
        c->copied_lsn = r->lsn;
    }
    if (follows_copy) {
        return LS_OK;
    }
    uint32_t number = table_find(i->replay.t, r->id);
    if (number != INDEX_NONE) {
        return check_link(b, r, message_last_lsn(table_message(i->replay.t, number)));
    }
    return LS_OK;
}

static int check_transaction(const struct inspection *i, const struct scan_batch *b, const struct record *r) {
    if (r->type == DTX_START || r->type == TX_START) {
        return LS_OK;
    }
    const struct tx *tx = table_tx(i->replay.t, r->id);
    if (tx != NULL && (tx->started || tx->last_lsn != tx->id)) {
        return check_link(b, r, tx->last_lsn);
    }
    return LS_OK;
}

/* A transaction's enqueues are numbered in order. After a relocation of the transaction the count is unknown. */
static int check_number(const struct inspection *i, const struct scan_batch *b, const struct record *r, uint64_t tx_id,
                        uint32_t order_index, uint32_t count) {
    struct tx *tx = tx_id != 0 ? table_tx(i->replay.t, tx_id) : NULL;
    if (tx == NULL) {
        return LS_OK;
    }
    if (tx->started && tx->start_lsn == tx->id && order_index != tx->enqueue_count) {
        return wrong_number(b, r->lsn, "the number of an enqueue in its transaction", order_index, tx->enqueue_count);
    }
    tx->enqueue_count = order_index + count; /* replay does not use this count */
    return LS_OK;
}

static int check_enqueues(const struct inspection *i, const struct scan_batch *b, const struct record *r) {
    struct message_start m;
    struct message_enqueue e;
    struct message_move move;
    struct place_state state;
    if (r->type == MESSAGE_START_PLACED && format_get_start_placed(r, &m, &state) == FORMAT_OK) {
        return check_number(i, b, r, m.tx_id, m.order_index, m.queue_count);
    }
    if (r->type == MESSAGE_MOVE && format_get_move(r, &move) == FORMAT_OK) {
        return check_number(i, b, r, move.tx_id, move.order_index, 1);
    }
    if (r->type == MESSAGE_START && (r->flags & FLAG_COPY) == 0 && format_get_start(r, &m) == FORMAT_OK) {
        return check_number(i, b, r, m.tx_id, m.order_index, m.queue_count);
    }
    if (r->type == MESSAGE_ENQUEUE && format_get_enqueue(r, &e) == FORMAT_OK) {
        return check_number(i, b, r, e.tx_id, e.order_index, e.queue_count);
    }
    return LS_OK;
}

/* Lets another client check its record. */
static int check_client(const struct inspection *i, const struct scan_batch *b, const struct record *r) {
    const struct log_clients *clients = i->replay.state->clients;
    const struct log_client *c = log_client_of(clients, r->type);
    enum format_result why = c != NULL && c->calls->verify != NULL ? c->calls->verify(c->context, r) : FORMAT_OK;
    if (why == FORMAT_OK) {
        return LS_OK;
    }
    const char *name = log_type_name(clients, r->type);
    return fail_at(LS_CORRUPT, b->first_lsn, r->lsn, "the log contradicts itself: a record of type 0x%04x (%s): %s",
                   (unsigned)r->type, name != NULL ? name : "unknown", format_result_text(why));
}

int check_record(struct inspection *i, const struct scan_batch *b, const struct record *r) {
    struct checks *c = &i->checks;
    int rc = LS_OK;
    if (r->type == FOOTER) {
        rc = check_footer(c, b, r);
    } else if (r->type >= MESSAGE_START && r->type <= MESSAGE_RELOCATED_PLACED) {
        rc = check_message(i, b, r);
        rc = rc == LS_OK ? check_enqueues(i, b, r) : rc;
    } else if (r->type >= DTX_START && r->type <= TX_RELOCATED) {
        rc = check_transaction(i, b, r);
    } else if (format_stream_of(r->type) > STREAMS_COUNTED) {
        rc = check_client(i, b, r);
    }
    if ((r->type & TYPE_SKIPPABLE) == 0 && format_stream_of(r->type) <= STREAMS_COUNTED) {
        c->type_counts[format_type_ordinal(r->type)]++;
    }
    c->last_lsn = c->before_lsn = r->lsn;
    return rc;
}
