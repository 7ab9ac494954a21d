/* Gives each record to the client of its stream, and the outcomes of transactions to every client. See replay.h. */
#include "replay/replay.h"

#include <stdio.h>
#include <stdlib.h>

#include "read/damage.h"

enum {
    RECORDS_AHEAD = 16,
    BYTES_AHEAD = 2048, /* another thread has read them: they come from its cache, */
    LINES_AHEAD = 3,    /* as many lines as a small record has */
    LINE_BYTES = 64,
    FORESEEN_FROM = 1 << 16,
    FORESEEN_TIMES = 3,
};

int replay_inconsistent(const struct replay *p, const struct record *r, const char *what) {
    const struct live_segment *s = state_segment(p->state, r->lsn);
    return fail_at(LS_CORRUPT, s != NULL ? s->first_lsn : 0, r->lsn,
                   "the log contradicts itself: %s (chain %llu). Nothing was changed; "
                   "run `logstore verify`, then `logstore salvage`",
                   what, (unsigned long long)r->id);
}

int replay_malformed(const struct replay *p, const struct record *r) {
    return replay_inconsistent(p, r, "a record's checksum is right but its contents are impossible");
}

/* ---- a transaction's work ---- */

/* Finds the transaction, and makes it if its start lies below the base; its outcome follows above the base. */
int replay_find_tx(const struct replay *p, const struct record *r, uint64_t tx_id, struct tx **tx) {
    *tx = table_tx(p->t, tx_id);
    if (*tx != NULL) {
        return LS_OK;
    }
    if (tx_id >= p->base_lsn) {
        char what[96];
        (void)snprintf(what, sizeof what, "an operation's transaction %llu is not open", (unsigned long long)tx_id);
        return replay_inconsistent(p, r, what);
    }
    if (!table_prepare_tx(p->t, tx)) {
        return fail_memory();
    }
    (*tx)->state = LS_TX_ACTIVE;
    table_add_tx(p->t, *tx, tx_id);
    return LS_OK;
}

int replay_add_client_work(struct replay *p, const struct record *r, uint64_t tx_id, uint64_t key) {
    struct tx *tx;
    int rc = replay_find_tx(p, r, tx_id, &tx);
    if (rc != LS_OK) {
        return rc;
    }
    if (tx->started && tx->state != LS_TX_ACTIVE && (r->flags & FLAG_COPY) == 0) {
        return replay_inconsistent(p, r, "an operation of a transaction that takes no more work");
    }
    return replay_load_client_work(tx, format_stream_of(r->type), key) ? LS_OK : fail_memory();
}

bool replay_load_client_work(struct tx *tx, uint32_t stream, uint64_t key) {
    struct client_work *w = calloc(1, sizeof *w);
    if (w != NULL) {
        w->key = key;
        w->stream = stream;
        tx_add_client_work(tx, w);
    }
    return w != NULL;
}

int replay_commit(struct replay *p, struct tx *tx, const struct record *r) {
    const struct log_clients *clients = p->state->clients;
    int rc = LS_OK;
    for (size_t i = 0; rc == LS_OK && i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        rc = c->calls->replay_commit != NULL ? c->calls->replay_commit(c->context, p, tx, r) : LS_OK;
    }
    tx_end_client_work(tx);
    return rc;
}

void replay_undo(struct replay *p, struct tx *tx) {
    const struct log_clients *clients = p->state->clients;
    for (size_t i = 0; i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        if (c->calls->replay_rollback != NULL) {
            c->calls->replay_rollback(c->context, p, tx);
        }
    }
    tx_end_client_work(tx);
}

/* ---- one record ---- */

/* A QUEUE_DELETE and PLACE_STATES are in the log's own stream, but the client of messages replays them. */
static int replay_record(struct replay *p, const struct record *r) {
    if ((r->type & TYPE_SKIPPABLE) != 0) {
        return LS_OK;
    }
    if (r->type == BATCH || r->type == FILLER || r->type == FOOTER || r->type == CLOSE) {
        return LS_OK;
    }
    bool of_messages = r->type == QUEUE_DELETE || r->type == PLACE_STATES;
    const struct log_client *c = log_client_of(p->state->clients, of_messages ? MESSAGE_START : r->type);
    if (c == NULL) {
        return replay_malformed(p, r); /* cannot happen: the scan refuses such a record */
    }
    return c->calls->replay != NULL ? c->calls->replay(c->context, p, r) : LS_OK;
}

/* ---- the loop ---- */

static int contradicts(const struct scan_batch *b, const char *what) {
    return fail_at(
        LS_CORRUPT, b->first_lsn, b->lsn,
        "the log contradicts itself: %s. Nothing was changed; run `logstore verify`, then `logstore salvage`", what);
}

/* A term has a TiB of LSNs of its own, and its first batch begins its first segment. */
static bool has_its_term(const struct replay *p, const struct scan_batch *b) {
    uint64_t epoch = b->batch.epoch;
    if (epoch >= TERM_LIMIT) {
        return false;
    }
    uint64_t first_lsn = round_up(epoch << TERM_SHIFT, p->scan->meta.segment_size);
    bool begins = p->newest.epoch != 0 && p->newest.epoch != epoch;
    return begins ? b->lsn == first_lsn + SEGMENT_HEADER_BYTES : b->lsn > first_lsn;
}

/* Whether a batch with an index follows from what was replayed; docs/format.md, section 10. */
static int judge_index(const struct replay *p, const struct scan_batch *b) {
    uint32_t offset = BATCH_RECORD_BYTES;
    struct record r;
    bool first = b->batch.index == 1 || (p->newest.any && p->newest.index == 0);
    if (p->newest.last_index != 0 && b->batch.index != p->newest.last_index + 1) {
        return contradicts(b, "a batch's index does not follow that of the batch before it");
    }
    if (b->batch.known_durable_lsn < p->newest.known_durable_lsn) {
        return contradicts(b, "a batch knows less to be durable than a batch before it");
    }
    if (first && (!scan_record(b, &offset, &r) || r.type != MEMBERS)) {
        return contradicts(b, "replication begins with a batch that has no MEMBERS");
    }
    if (!has_its_term(p, b)) {
        return contradicts(b, "a batch does not stand where its term begins");
    }
    return LS_OK;
}

static int begin_batch(struct replay *p, const struct scan_batch *b) {
    int rc = b->batch.index != 0 ? judge_index(p, b) : LS_OK;
    p->report->batches++;
    p->report->records += b->batch.count;
    p->time_us = b->batch.time_us;
    p->newest.any = true;
    p->newest.index = b->batch.index;
    p->newest.epoch = b->batch.epoch;
    p->newest.count = b->batch.count;
    if (b->batch.index != 0) {
        p->newest.known_durable_lsn = b->batch.known_durable_lsn;
        p->newest.last_index = b->batch.index;
    }
    return rc;
}

/*
 * The index grows in few steps, to the size that it will have if the rest of the log is like this part. A guess that is
 * too high wastes memory, so it is at most FORESEEN_TIMES the present size.
 */
static void foresee(const struct replay *p, const struct scan_batch *b) {
    struct index *x = &p->t->messages;
    uint64_t behind = b->lsn - p->base_lsn, before = p->scan->end_lsn - b->lsn;
    if (x->count < FORESEEN_FROM || index_has_room(x, b->batch.count)) {
        return;
    }
    uint64_t times = before / behind < FORESEEN_TIMES ? before / behind + 1 : FORESEEN_TIMES;
    (void)index_prepare(x, x->count * times); /* without that memory it grows step by step */
}

/* Fetches the index entry of a chain that will soon be looked up or made. */
static void fetch_chain(const struct replay *p, const struct scan_batch *b, uint32_t *offset) {
    struct record r;
    if (*offset + BYTES_AHEAD + LINES_AHEAD * LINE_BYTES < b->batch.bytes) {
        for (int i = 0; i < LINES_AHEAD; i++) {
            __builtin_prefetch(b->bytes + *offset + BYTES_AHEAD + i * LINE_BYTES);
        }
    }
    if (scan_record(b, offset, &r) && r.type <= MESSAGE_RELOCATED_PLACED) {
        index_prefetch(&p->t->messages, r.id);
    }
}

int replay_batch(struct replay *p, const struct scan_batch *b) {
    uint32_t offset = BATCH_RECORD_BYTES, ahead = BATCH_RECORD_BYTES;
    struct record r;
    int rc = begin_batch(p, b);
    foresee(p, b);
    for (int i = 0; i < RECORDS_AHEAD; i++) {
        fetch_chain(p, b, &ahead);
    }
    while (rc == LS_OK && scan_record(b, &offset, &r)) {
        fetch_chain(p, b, &ahead);
        rc = p->look != NULL ? p->look(p->look_context, b, &r) : LS_OK;
        rc = rc == LS_OK ? replay_record(p, &r) : rc;
    }
    return rc;
}

int replay_log(struct replay *p) {
    struct scan_batch b;
    int rc;
    while ((rc = scan_next(p->scan, &b)) == LS_OK) {
        rc = replay_batch(p, &b);
        if (rc != LS_OK) {
            return rc;
        }
    }
    return rc == LS_END ? LS_OK : rc;
}
