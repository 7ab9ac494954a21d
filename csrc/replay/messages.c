/*
 * Applies the records of messages and transactions to the table; section 7 of docs/format.md has their meaning. See
 * replay.h.
 */
#include <assert.h>
#include <stdlib.h>

#include "os/error.h"
#include "replay/messages.h"

int replay_missing_chain(const struct replay *p, const struct record *r) {
    if (r->id >= p->base_lsn) {
        return replay_inconsistent(p, r, "a record's chain has no start");
    }
    p->report->orphans++;
    *(r->type >= DTX_START ? &p->report->orphan_transactions : &p->report->orphan_messages) += 1;
    return LS_OK;
}

struct message *replay_find_message(const struct replay *p, const struct record *r, uint32_t *number) {
    *number = table_find(p->t, r->id);
    if (*number == INDEX_NONE) {
        return NULL;
    }
    struct message *m = table_message(p->t, *number);
    table_touch(p->t, m);
    return m;
}

/* ---- pending work ---- */

int replay_add_work(const struct replay *p, const struct record *r, uint32_t number, uint64_t tx_id,
                    const struct work *like, struct remembered *state) {
    struct tx *tx = NULL;
    int rc = replay_find_tx(p, r, tx_id, &tx);
    bool copied = r->type == MESSAGE_RELOCATED || r->type == MESSAGE_RELOCATED_PLACED;
    if (rc == LS_OK && tx->started && tx->state != LS_TX_ACTIVE && !copied) {
        rc = replay_inconsistent(p, r, "an operation of a transaction that takes no more work");
    }
    bool stated = !remembers_nothing(state);
    struct work *w = rc == LS_OK ? calloc(1, sizeof *w) : NULL;
    struct remembered *kept = w != NULL && stated ? malloc(sizeof *kept) : NULL;
    if (w == NULL || (stated && kept == NULL) || message_extra(table_message(p->t, number)) == NULL) {
        free(w);
        free(kept);
        remembered_free(state);
        return rc != LS_OK ? rc : fail_memory();
    }
    *w = *like;
    w->message = number;
    w->state = kept;
    if (kept != NULL) {
        *kept = *state;
    }
    tx_add_work(p->t, tx, w);
    return LS_OK;
}

/* ---- message records ---- */

static const struct remembered nothing = {.own = NULL};

static int add_pending_enqueue(const struct replay *p, const struct record *r, uint32_t number,
                               const struct message_enqueue *e, uint32_t i, const struct remembered *state) {
    struct remembered copied;
    if (!remembered_copy(&copied, state)) {
        return fail_memory();
    }
    struct work w = {.lsn = r->lsn,
                     .queue_id = format_queue_id(e->queues, i),
                     .kind = WORK_ENQUEUE,
                     .order_index = e->order_index + i};
    return replay_add_work(p, r, number, e->tx_id, &w, &copied);
}

/* The new places of the message get copies of the state. */
static int state_places(const struct replay *p, struct message *m, const struct message_enqueue *e,
                        const struct remembered *state) {
    int rc = m->place_count == 1 || message_extra(m) != NULL ? LS_OK : fail_memory();
    for (uint32_t i = 0; rc == LS_OK && i < e->queue_count; i++) {
        struct remembered copied;
        rc = remembered_copy(&copied, state)
                 ? replay_set_state(p, m, message_place(m, format_queue_id(e->queues, i)), &copied)
                 : fail_memory();
    }
    return rc;
}

int replay_enqueues(const struct replay *p, const struct record *r, uint32_t number, const struct message_enqueue *e,
                    const struct remembered *state) {
    struct message *m = table_message(p->t, number);
    uint32_t count = e->queue_count;
    if (e->tx_id == 0 && count > 0) {
        if (!message_prepare_places(m, count)) {
            return fail_memory();
        }
        m->flags &= (uint16_t)~MESSAGE_STAGED;
        if (r->lsn != m->id) {
            message_grows_places(p->t, m, count);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t queue_id = format_queue_id(e->queues, i);
        assert(queue_id > 0 && queue_id <= QUEUE_ID_MAX); /* the record was decoded */
        if (e->tx_id != 0) {
            int rc = add_pending_enqueue(p, r, number, e, i, state != NULL ? state : &nothing);
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
    return state != NULL && e->tx_id == 0 ? state_places(p, m, e, state) : LS_OK;
}

int replay_add_message(const struct replay *p, const struct record *r, uint32_t content_bytes, uint32_t *number) {
    if (!table_prepare(p->t, 1)) {
        return fail_memory();
    }
    bool published = (r->flags & FLAG_PUBLISHED) != 0;
    *number = table_add(p->t, r->id, MESSAGE_STAGED | MESSAGE_RECOVERED | (published ? MESSAGE_PUBLISHED : 0));
    struct message *made = table_message(p->t, *number);
    made->record_bytes = r->length;
    made->content_bytes = content_bytes;
    return LS_OK;
}

static int replay_start(const struct replay *p, const struct record *r) {
    struct message_start m;
    if (format_get_start(r, &m) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    uint32_t number;
    const struct message_enqueue e = {m.tx_id, m.order_index, m.queue_count, m.queues};
    int rc = replay_add_message(p, r, m.content_bytes, &number);
    return rc == LS_OK ? replay_enqueues(p, r, number, &e, NULL) : rc;
}

static int replay_chunk(const struct replay *p, const struct record *r) {
    struct message_chunk c;
    uint32_t number;
    struct message *m = replay_find_message(p, r, &number);
    if (format_get_chunk(r, &c) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (m == NULL) {
        return replay_missing_chain(p, r);
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
    struct message *m = replay_find_message(p, r, &number);
    if (format_get_enqueue(r, &e) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (m == NULL) {
        return replay_missing_chain(p, r);
    }
    if (message_extra(m) == NULL) {
        return fail_memory();
    }
    message_appended(m, r->lsn);
    return replay_enqueues(p, r, number, &e, NULL);
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
    struct message *m = replay_find_message(p, r, &number);
    if (format_get_dequeue(r, &d) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    if (m == NULL) {
        return replay_missing_chain(p, r);
    }
    if (d.tx_id == 0 && (r->flags & FLAG_DELETES) == 0 && message_extra(m) == NULL) {
        return fail_memory();
    }
    if (d.tx_id != 0) {
        struct work w = {.lsn = r->lsn, .queue_id = d.queue_id, .kind = WORK_DEQUEUE};
        struct remembered none = {.own = NULL};
        int rc = replay_add_work(p, r, number, d.tx_id, &w, &none);
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
    struct message *m = replay_find_message(p, r, &number);
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

/* The end of a committed operation's work, and its effect on its place. */
static int apply_work(const struct replay *p, struct message *m, struct work *w, uint64_t commit_lsn, bool queue_gone) {
    bool counts = w->lsn != m->id || w->state != NULL; /* else the start record's list has the place */
    uint32_t queue_id = w->queue_id, order_index = w->order_index;
    uint8_t kind = w->kind;
    struct remembered *state = tx_end_work(p->t, w);
    struct place *place = message_place(m, queue_id);
    int rc = LS_OK;
    if (kind == WORK_ENQUEUE) {
        m->flags &= (uint16_t)~MESSAGE_STAGED;
    }
    if (kind == WORK_ENQUEUE && !queue_gone) {
        if (counts) {
            message_grows_places(p->t, m, 1);
        } else {
            message_grows_listed_place(p->t, m);
        }
        message_add_place(p->t, m,
                          (struct place){.at.order_lsn = commit_lsn, .slot = order_index, .queue_id = queue_id});
        if (state != NULL && !remembers_nothing(state)) {
            rc = replay_set_state(p, m, message_place(m, queue_id), state);
            state->own = NULL;
        }
    } else if (kind == WORK_DEQUEUE && place != NULL) {
        message_drop_place(p->t, m, queue_id);
    } else if (kind == WORK_NOTE && place != NULL) {
        rc = replay_set_note(p, m, place, state != NULL && state->own != NULL ? &state->own->note : NULL);
    }
    remembered_free_made(state);
    return rc;
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
        if (w->kind == WORK_ENQUEUE && !message_prepare_places(m, 1)) {
            return fail_memory();
        }
        int rc = apply_work(p, m, w, r->lsn, queue_gone);
        if (rc != LS_OK) {
            return rc;
        }
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
        return replay_missing_chain(p, r);
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
    case MESSAGE_START_PLACED:
        return replay_start_placed(p, r);
    case MESSAGE_PLACE:
        return replay_place(p, r);
    case MESSAGE_MOVE:
        return replay_move(p, r);
    case PLACE_STATES:
        return replay_place_states(p, r);
    case MESSAGE_RELOCATED:
    case MESSAGE_RELOCATED_PLACED:
        return replay_relocated(p, r);
    case TX_RELOCATED:
        return replay_tx_relocated(p, r);
    default:
        break;
    }
    return replay_malformed(p, r);
}
