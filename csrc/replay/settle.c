/*
 * The end of a replay: turns the effect of the records into the state that a store serves. Writes nothing.
 *
 * Transactions are settled first: one without outcome is rolled back, unless it is prepared. Then each client decides
 * which records live; last, prepared transactions take their locks. docs/recovery.md has the argument for each step.
 */
#include "replay/messages.h"

/*
 * Rolls back transactions without outcome that are not prepared. The record of that is still to be written, and keeps
 * the start record live until then.
 */
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
        if (p->has_writer && tx->state != LS_TX_PREPARED) { /* it is the writer's own, or its open has rolled it back */
            if (tx->undone_at_open) {
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

/*
 * The log does not say all that an open does to older work at once: a rollback is logged, but a staged message is dropped
 * without a record.
 */
void replay_take_over(struct replay *p) {
    for (uint32_t n = 0; n < p->t->tx_slots; n++) {
        struct tx *tx = p->t->txs[n];
        if (tx != NULL && tx->started &&
            tx->state != LS_TX_PREPARED) { /* of others, the state or the outcome follows */
            tx->undone_at_open = true;     /* the rollback may not be logged yet */
            replay_undo(p, tx);
        }
    }
    replay_drop_work_on_deleted(p->t, NULL, NULL);
    for (uint32_t number = 0; number < p->t->message_slots; number++) {
        struct message *m = table_message(p->t, number);
        bool alive = message_pending(m) > 0 || ((m->flags & MESSAGE_STAGED) == 0 && m->place_count > 0);
        if ((m->flags & MESSAGE_FREE) == 0 && !alive) {
            table_touch(p->t, m);
            table_remove(p->t, number);
        }
    }
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

/* Turns the effect of the records into the state that a store serves. */
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
