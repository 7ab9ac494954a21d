/*
 * Replay: from the accepted log to the state of every client. Writes nothing.
 *
 * Records are replayed in LSN order. The work of a transaction pends until its outcome, which always comes later in the
 * same log. When the log ends, transactions are settled first (one without outcome is rolled back, unless it is prepared),
 * then each client decides what lives, and at last prepared transactions take their locks. docs/recovery.md has the
 * argument for each step.
 */
#include "replay/messages.h"

enum {
    RECORDS_AHEAD = 16,
    BYTES_AHEAD = 2048, /* another thread has read them: they come from its cache, */
    LINES_AHEAD = 3,    /* as many lines as a small record has */
    LINE_BYTES = 64,
    FORESEEN_FROM = 1 << 16,
    FORESEEN_TIMES = 3,
};

/* ---- the phases ---- */

void replay_begin_batch(struct replay *p, const struct scan_batch *b) {
    p->report->batches++;
    p->report->records += b->batch.count;
    p->time_us = b->batch.time_us;
}

/*
 * The index grows in few steps, to the size that it will have if the rest of the log is like this part. A guess that is too
 * high leaves memory idle, so it is at most FORESEEN_TIMES the present size.
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
    if (scan_record(b, offset, &r) && r.type <= MESSAGE_RELOCATED) {
        index_prefetch(&p->t->messages, r.id);
    }
}

static int replay_batch(struct replay *p, const struct scan_batch *b) {
    uint32_t offset = BATCH_RECORD_BYTES, ahead = BATCH_RECORD_BYTES;
    struct record r;
    int rc = LS_OK;
    foresee(p, b);
    for (int i = 0; i < RECORDS_AHEAD; i++) {
        fetch_chain(p, b, &ahead);
    }
    while (rc == LS_OK && scan_record(b, &offset, &r)) {
        fetch_chain(p, b, &ahead);
        rc = replay_record(p, &r);
    }
    return rc;
}

int replay_log(struct replay *p) {
    struct scan_batch b;
    int rc;
    while ((rc = scan_next(p->scan, &b)) == LS_OK) {
        replay_begin_batch(p, &b);
        rc = replay_batch(p, &b);
        if (rc != LS_OK) {
            return rc;
        }
    }
    return rc == LS_END ? LS_OK : rc;
}

/* Rolls back transactions without outcome that are not prepared; the record of that is owed, and pins the start until then. */
static int settle_transactions(struct replay *p) {
    for (uint32_t i = 0; i < p->t->tx_slots; i++) {
        struct tx *tx = p->t->txs[i];
        if (tx == NULL) {
            continue;
        }
        if (!tx->started) {
            struct record r = {.lsn = tx->first != NULL ? tx->first->lsn : p->base_lsn, .id = tx->id};
            return replay_inconsistent(p, &r, "an operation's transaction has neither start nor outcome");
        }
        if (p->beside && tx->state != LS_TX_PREPARED) { /* the writer's own, or what its open rolled back */
            if (tx->settled) {
                table_remove_tx(p->t, tx);
            }
            continue;
        }
        if (tx->state == LS_TX_PREPARED) {
            p->report->transactions_in_doubt++;
        } else {
            recovered_note(&p->state->recovered, LS_RECOVERED_TRANSACTION, tx->id, tx->work_count, tx);
            p->report->operations_undone += tx->work_count;
            replay_undo(p, tx);
            p->report->transactions_abandoned++;
            if (p->inspects) {
                table_remove_tx(p->t, tx);
            }
        }
    }
    return LS_OK;
}

/* ---- what lives where ---- */

bool replay_count_live(struct replay *p, uint64_t lsn, uint64_t bytes) {
    struct live_segment *s = p->counted;
    if (s == NULL || lsn < s->first_lsn || lsn - s->first_lsn >= p->state->segment_size) {
        s = p->counted = lsn >= p->base_lsn ? state_segment(p->state, lsn) : NULL;
    }
    if (s != NULL) {
        s->records++;
        s->bytes += bytes;
        s->largest_bytes = bytes > s->largest_bytes ? bytes : s->largest_bytes;
    }
    return s != NULL;
}

static void report_scan(struct replay *p) {
    const struct scan *s = p->scan;
    p->report->clean = s->clean;
    p->report->direct = s->direct;
    p->report->base_lsn = s->base_lsn;
    p->report->end_lsn = s->end_lsn;
    p->report->watermark_lsn = s->watermark_lsn;
    p->report->torn_bytes = s->torn_bytes;
    p->report->bytes_read = s->bytes_read;
}

static int settle_clients(struct replay *p) {
    const struct log_clients *clients = p->state->clients;
    int rc = LS_OK;
    p->counted = NULL;
    for (size_t i = 0; rc == LS_OK && i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        rc = c->calls->settle != NULL ? c->calls->settle(c->context, p) : LS_OK;
    }
    return rc;
}

static void lock_in_doubt(const struct replay *p) {
    const struct log_clients *clients = p->state->clients;
    for (uint32_t i = 0; i < p->t->tx_slots; i++) {
        for (size_t k = 0; p->t->txs[i] != NULL && k < clients->count; k++) {
            const struct log_client *c = &clients->all[k];
            if (c->calls->lock_in_doubt != NULL) {
                c->calls->lock_in_doubt(c->context, p->t->txs[i]);
            }
        }
    }
}

/* From the effect of the records to the state that a store serves. */
int replay_settle(struct replay *p) {
    vfs *v = p->scan->v;
    ls_recovery *report = p->report;
    report_scan(p);
    uint64_t start_us = v->monotonic_us(v);
    int rc = settle_transactions(p);
    rc = rc == LS_OK ? messages_sort_work(p) : rc;
    uint64_t settled_us = v->monotonic_us(v);
    rc = rc == LS_OK ? settle_clients(p) : rc;
    if (rc == LS_OK) {
        lock_in_doubt(p);
    }
    report->messages = p->t->message_count;
    report->places = p->t->place_count;
    report->transactions_us = settled_us - start_us;
    report->messages_us = v->monotonic_us(v) - settled_us;
    return rc;
}
