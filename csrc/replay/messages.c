/*
 * Applies the records of messages and transactions to the table; section 7 of docs/format.md has their meaning. See
 * replay.h.
 */
#include <assert.h>
#include <stdlib.h>

#include "os/error.h"
#include "replay/messages.h"

/* Handles a record of an unknown chain: it is an orphan if the chain began below the base. */
static int missing_chain(const struct replay *p, const struct record *r) {
    if (r->id >= p->base_lsn) {
        return replay_inconsistent(p, r, "a record's chain has no start");
    }
    p->report->orphans++;
    *(r->type >= DTX_START ? &p->report->orphan_transactions : &p->report->orphan_messages) += 1;
    return LS_OK;
}

/* To change it. */
static struct message *find(const struct replay *p, uint64_t id, uint32_t *number) {
    *number = table_find(p->t, id);
    if (*number == INDEX_NONE) {
        return NULL;
    }
    struct message *m = table_message(p->t, *number);
    table_touch(p->t, m);
    return m;
}

/* ---- pending work ---- */

int replay_add_work(const struct replay *p, const struct record *r, uint32_t number, uint64_t tx_id,
                    const struct work *like) {
    struct tx *tx;
    int rc = replay_find_tx(p, r, tx_id, &tx);
    if (rc != LS_OK) {
        return rc;
    }
    if (tx->started && tx->state != LS_TX_ACTIVE && r->type != MESSAGE_RELOCATED) {
        return replay_inconsistent(p, r, "an operation of a transaction that takes no more work");
    }
    struct work *w = calloc(1, sizeof *w);
    if (w == NULL || message_extra(table_message(p->t, number)) == NULL) {
        free(w);
        return fail_memory();
    }
    *w = *like;
    w->message = number;
    tx_add_work(p->t, tx, w);
    return LS_OK;
}

/* ---- message records ---- */

static int place_message(const struct replay *p, const struct record *r, uint32_t number, uint64_t tx_id,
                         uint32_t order_index, const uint8_t *queues, uint32_t count) {
    struct message *m = table_message(p->t, number);
    if (tx_id == 0 && count > 0) {
        if (!message_prepare_places(m, count)) {
            return fail_memory();
        }
        m->flags &= (uint16_t)~MESSAGE_STAGED;
        if (r->lsn != m->id) {
            message_grows_places(p->t, m, count);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t queue_id = format_queue_id(queues, i);
        assert(queue_id > 0 && queue_id <= QUEUE_ID_MAX); /* the record was decoded */
        if (tx_id != 0) {
            struct work w = {.lsn = r->lsn, .queue_id = queue_id, .kind = WORK_ENQUEUE, .order_index = order_index + i};
            int rc = replay_add_work(p, r, number, tx_id, &w);
            if (rc != LS_OK) {
                return rc;
            }
            continue;
        }
        if (message_place(m, queue_id) != NULL) {
            return replay_inconsistent(p, r, "a message is enqueued on a queue that has it already");
        }
        message_add_place(p->t, m, (struct place){.at.order_lsn = r->lsn, .slot = 0, .queue_id = queue_id});
    }
    return LS_OK;
}

static int replay_start(const struct replay *p, const struct record *r) {
    struct message_start m;
    if (format_get_start(r, &m) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (!table_prepare(p->t, 1)) {
        return fail_memory();
    }
    bool published = (r->flags & FLAG_PUBLISHED) != 0;
    uint32_t number = table_add(p->t, r->id, MESSAGE_STAGED | MESSAGE_RECOVERED | (published ? MESSAGE_PUBLISHED : 0));
    struct message *made = table_message(p->t, number);
    made->record_bytes = r->length;
    made->content_bytes = m.content_bytes;
    return place_message(p, r, number, m.tx_id, m.order_index, m.queues, m.queue_count);
}

static int replay_chunk(const struct replay *p, const struct record *r) {
    struct message_chunk c;
    uint32_t number;
    struct message *m = find(p, r->id, &number);
    if (format_get_chunk(r, &c) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (m == NULL) {
        return missing_chain(p, r);
    }
    struct message_extra *x = message_extra(m);
    if (x == NULL) {
        return fail_memory();
    }
    if (c.content_bytes == 0) { /* this takes back an append that failed */
        bool was_whole = (m->flags & MESSAGE_STAGED) == 0 || message_pending(m) > 0;
        if (was_whole || !message_cut_content(p->t, m, c.offset)) {
            return replay_inconsistent(p, r, "content is taken back that was not being appended");
        }
        x->last_lsn = r->lsn;
        return LS_OK;
    }
    if (c.offset != x->content_bytes) {
        return replay_inconsistent(p, r, "a chunk does not continue its content");
    }
    if (!message_prepare_chunks(x, x->chunk_count + 1)) {
        return fail_memory();
    }
    x->chunks[x->chunk_count++] = (struct chain_record){
        .lsn = r->lsn, .offset = c.offset, .record_bytes = r->length, .content_bytes = c.content_bytes};
    x->content_bytes += c.content_bytes;
    x->last_lsn = r->lsn;
    message_grows(p->t, m, chunk_grows(r->length));
    return LS_OK;
}

static int replay_enqueue(const struct replay *p, const struct record *r) {
    struct message_enqueue e;
    uint32_t number;
    struct message *m = find(p, r->id, &number);
    if (format_get_enqueue(r, &e) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (m == NULL) {
        return missing_chain(p, r);
    }
    if (message_extra(m) == NULL) {
        return fail_memory();
    }
    message_appended(m, r->lsn);
    return place_message(p, r, number, e.tx_id, e.order_index, e.queues, e.queue_count);
}

void replay_drop_deleted(const struct replay *p, struct message *m) {
    for (uint32_t i = m->place_count; i-- > 0;) {
        uint32_t id = message_places(m)[i].queue_id;
        const struct queue *q = table_any_queue(p->t, id);
        if (q != NULL && q->deleted) {
            message_drop_place(p->t, m, id);
        }
    }
}

static void bury_if_dead(const struct replay *p, uint32_t number) {
    if (message_is_dead(table_message(p->t, number))) {
        table_remove(p->t, number);
    }
}

void replay_sweep(const struct replay *p, uint32_t number) {
    struct message *m = table_message(p->t, number);
    uint32_t before = (m->flags & MESSAGE_FREE) == 0 ? m->place_count : 0;
    if (before > 0) {
        replay_drop_deleted(p, m);
    }
    if (before > 0 && m->place_count < before) {
        bury_if_dead(p, number);
    }
}

static int replay_dequeue(const struct replay *p, const struct record *r) {
    struct message_dequeue d;
    uint32_t number;
    struct message *m = find(p, r->id, &number);
    if (format_get_dequeue(r, &d) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (m == NULL) {
        return missing_chain(p, r);
    }
    if (d.tx_id == 0 && (r->flags & FLAG_DELETES) == 0 && message_extra(m) == NULL) {
        return fail_memory();
    }
    if (d.tx_id != 0) {
        struct work w = {.lsn = r->lsn, .queue_id = d.queue_id, .kind = WORK_DEQUEUE};
        int rc = replay_add_work(p, r, number, d.tx_id, &w);
        message_appended(m, r->lsn);
        return rc;
    }
    message_appended(m, r->lsn);
    if (message_place(m, d.queue_id) == NULL) {
        return replay_inconsistent(p, r, "a message is dequeued where it is not");
    }
    message_drop_place(p->t, m, d.queue_id);
    if ((r->flags & FLAG_DELETES) != 0) {
        replay_drop_deleted(p, m);
    }
    if ((r->flags & FLAG_DELETES) != 0 && !message_is_dead(m)) {
        return replay_inconsistent(p, r, "a message is deleted that is still needed");
    }
    bury_if_dead(p, number);
    return LS_OK;
}

/* MSG_DELETE: the end of a staged message, or of a message whose death replay already knows. */
static int replay_delete(const struct replay *p, const struct record *r) {
    uint32_t number;
    struct message *m = find(p, r->id, &number);
    if (m == NULL) {
        return LS_OK;
    }
    replay_drop_deleted(p, m);
    if (m->place_count > 0 || message_pending(m) > 0) {
        return replay_inconsistent(p, r, "a message is deleted that is still needed");
    }
    m->flags &= (uint16_t)~MESSAGE_STAGED;
    bury_if_dead(p, number);
    return LS_OK;
}

/* ---- transaction records ---- */

static int replay_tx_start(const struct replay *p, const struct record *r) {
    struct tx *tx;
    struct xid x = {0};
    if (r->type == DTX_START && format_get_xid(r, &x) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (table_tx(p->t, r->id) != NULL) {
        return replay_inconsistent(p, r, "a transaction starts twice");
    }
    if (!table_prepare_tx(p->t, &tx)) {
        return fail_memory();
    }
    tx->state = LS_TX_ACTIVE;
    tx->started = true;
    tx->distributed = r->type == DTX_START;
    tx->xid = x;
    tx->started_us = p->time_us;
    table_add_tx(p->t, tx, r->id);
    return LS_OK;
}

static void work_gone(const struct replay *p, uint32_t number) {
    struct message *m = table_message(p->t, number);
    if (message_pending(m) == 0 && m->place_count == 0 && (m->flags & MESSAGE_PUBLISHED) != 0) {
        m->flags &= (uint16_t)~MESSAGE_STAGED;
    }
    bury_if_dead(p, number);
}

void messages_replay_rollback(void *context, struct replay *p, struct tx *tx) {
    (void)context;
    while (tx->first != NULL) {
        uint32_t number = tx->first->message;
        tx_drop_work(p->t, tx->first);
        work_gone(p, number);
    }
}

int messages_replay_commit(void *context, struct replay *p, struct tx *tx, const struct record *r) {
    (void)context;
    while (tx->first != NULL) {
        struct work *w = tx->first;
        uint32_t number = w->message;
        struct message *m = table_message(p->t, number);
        const struct queue *q = table_any_queue(p->t, w->queue_id);
        table_touch(p->t, m);
        bool there = message_place(m, w->queue_id) != NULL;
        bool queue_gone = q != NULL && q->deleted;
        if (there == (w->kind == WORK_ENQUEUE) && !queue_gone) {
            return replay_inconsistent(p, r, "a committed operation does not fit its queue");
        }
        if (w->kind == WORK_ENQUEUE) {
            if (!message_prepare_places(m, 1)) {
                return fail_memory();
            }
            m->flags &= (uint16_t)~MESSAGE_STAGED;
            if (!queue_gone) {
                if (w->lsn != m->id) {
                    message_grows_places(p->t, m, 1);
                }
                message_add_place(
                    p->t, m, (struct place){.at.order_lsn = r->lsn, .slot = w->order_index, .queue_id = w->queue_id});
            }
        } else if (there) {
            message_drop_place(p->t, m, w->queue_id);
        }
        tx_drop_work(p->t, w);
        work_gone(p, number);
    }
    return LS_OK;
}

/* Checks the order of section 7. Of a transaction that began below the base only the end is known. */
static bool is_due(const struct tx *tx, uint16_t type) {
    switch (type) {
    case TX_END:
        return !tx->started || (tx->distributed && tx->state == LS_TX_ACTIVE);
    case TX_PREPARE:
        return !tx->started || (tx->distributed && tx->state == LS_TX_ENDED);
    case TX_COMMIT:
        return !tx->started || !tx->distributed || tx->state != LS_TX_ACTIVE;
    default:
        return true;
    }
}

static int replay_tx_step(struct replay *p, const struct record *r) {
    struct tx *tx = table_tx(p->t, r->id);
    if (r->type == TX_DELETE) {
        return tx == NULL ? LS_OK : replay_inconsistent(p, r, "a transaction is deleted that has no outcome");
    }
    if (tx == NULL) {
        return missing_chain(p, r);
    }
    if (!is_due(tx, r->type)) {
        return replay_inconsistent(p, r, "a step of a transaction is out of turn");
    }
    tx->last_lsn = r->lsn;
    int rc = LS_OK;
    struct xid x;
    switch (r->type) {
    case TX_END:
        tx->state = LS_TX_ENDED;
        break;
    case TX_PREPARE:
        if (format_get_xid(r, &x) != FORMAT_OK) {
            return replay_malformed(p, r);
        }
        if (tx->started && !xid_equal(&x, &tx->xid)) {
            return replay_inconsistent(p, r, "a transaction is prepared under another xid than it began with");
        }
        tx->xid = x;
        tx->distributed = true;
        tx_prepared(p->t, tx, p->time_us);
        break;
    case TX_COMMIT:
        rc = replay_commit(p, tx, r);
        if (rc == LS_OK) {
            p->report->transactions_committed++;
            table_remove_tx(p->t, tx);
        }
        break;
    default: /* TX_ROLLBACK */
        replay_undo(p, tx);
        p->report->transactions_rolled_back++;
        table_remove_tx(p->t, tx);
        break;
    }
    return rc;
}

static int replay_queue_delete(const struct replay *p, const struct record *r) {
    uint32_t id;
    if (format_get_queue_delete(r, &id) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (table_any_queue(p->t, id) == NULL && !table_add_queue(p->t, id)) {
        return fail_memory();
    }
    struct queue *q = table_any_queue(p->t, id);
    if (!q->deleted && !state_prepare_deletions(p->state, 1)) {
        return fail_memory();
    }
    if (!q->deleted) {
        state_note_deletion(p->state, id, r->lsn);
    }
    q->deleted = true;
    return LS_OK;
}

int messages_replay(void *context, struct replay *p, const struct record *r) {
    (void)context;
    switch ((enum record_type)r->type) {
    case MESSAGE_START:
        return (r->flags & FLAG_COPY) != 0 ? replay_copied_start(p, r) : replay_start(p, r);
    case MESSAGE_CHUNK:
        return (r->flags & FLAG_COPY) != 0 ? LS_OK : replay_chunk(p, r);
    case MESSAGE_ENQUEUE:
        return replay_enqueue(p, r);
    case MESSAGE_DEQUEUE:
        return replay_dequeue(p, r);
    case MESSAGE_DELETE:
        return replay_delete(p, r);
    case DTX_START:
    case TX_START:
        return replay_tx_start(p, r);
    case TX_END:
    case TX_PREPARE:
    case TX_COMMIT:
    case TX_ROLLBACK:
    case TX_DELETE:
        return replay_tx_step(p, r);
    case QUEUE_DELETE:
        return replay_queue_delete(p, r);
    case MESSAGE_RELOCATED:
        return replay_relocated(p, r);
    case TX_RELOCATED:
        return replay_tx_relocated(p, r);
    default:
        break;
    }
    return replay_malformed(p, r);
}
