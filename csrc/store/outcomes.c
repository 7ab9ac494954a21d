/*
 * Applies a transaction's outcome in memory, while the store serves: calls every client with the transaction, messages
 * first. transactions.c has appended the records of the outcome before.
 */
#include <stdlib.h>

#include "store/store.h"

/* ---- the work on messages ---- */

/* Called when a message's last pending work is gone: it is then dead, staged again, or unchanged. */
static void work_gone(ls_store *store, uint32_t number) {
    struct message *m = table_message(&store->state.table, number);
    if (message_pending(m) > 0 || m->place_count > 0) {
        return;
    }
    if ((m->flags & MESSAGE_PUBLISHED) != 0) {
        m->flags &= (uint16_t)~MESSAGE_STAGED;
    }
    if (message_is_dead(m)) {
        message_die_derived(store, number);
    }
}

void messages_roll_back(void *context, struct tx *tx) {
    ls_store *store = context;
    while (tx->first != NULL) {
        struct work *w = tx->first;
        uint32_t number = w->message;
        struct message *m = table_message(&store->state.table, number);
        struct place *p = w->locks ? message_place(m, w->queue_id) : NULL;
        if (p != NULL) {
            queue_unlock(p, m);
        }
        tx_drop_work(&store->state.table, w);
        work_gone(store, number);
    }
}

/* A note may be of a place that is there, or of one that the same transaction makes. */
static bool prepare_state(struct table *t, const struct work *w) {
    struct queue *q = w->state != NULL ? table_queue_cached(t, w->queue_id) : NULL;
    const struct place *p = q != NULL ? message_place(table_message(t, w->message), w->queue_id) : NULL;
    unsigned parts = q != NULL ? remembered_parts(w->state) : 0;
    return q == NULL || (queue_prepare_states(q, parts) && (p == NULL || chunk_prepare_states(p->at.chunk, parts)));
}

bool messages_prepare_commit(void *context, struct tx *tx) {
    struct table *t = &((ls_store *)context)->state.table;
    bool ready = true, some_state = false;
    for (struct work *w = tx->first; w != NULL; w = w->next) {
        struct queue *q = w->kind == WORK_ENQUEUE ? table_queue_cached(t, w->queue_id) : NULL;
        some_state = some_state || w->state != NULL;
        if (q != NULL) {
            struct message *m = table_message(t, w->message);
            q->wanted++;
            ready = ready && message_prepare_places(m, message_pending(m));
        }
    }
    for (struct work *w = tx->first; w != NULL; w = w->next) {
        struct queue *q = w->kind == WORK_ENQUEUE ? table_queue_cached(t, w->queue_id) : NULL;
        if (q != NULL && q->wanted > 0) {
            ready = ready && queue_prepare(q, q->wanted);
            q->wanted = 0;
        }
    }
    for (const struct work *w = some_state ? tx->first : NULL; ready && w != NULL; w = w->next) {
        ready = prepare_state(t, w);
    }
    return ready;
}

/* The place that an enqueue has made gets its state. */
static void take_state(struct table *t, struct message *m, uint32_t queue_id, const struct remembered *state) {
    const struct remembered nothing = {.own = NULL};
    if (!remembers_nothing(state)) {
        message_state_changes(t, m, &nothing, state);
        place_begins(message_place(m, queue_id), m, state);
    }
}

/* The end of the operation's work, and its effect on its place; replay counts growth in the same order. */
static void apply_work(struct table *t, struct message *m, struct work *w, uint64_t commit_lsn) {
    bool counts = w->lsn != m->id || w->state != NULL; /* else the start record's list has the place */
    bool locks = w->locks;
    uint32_t queue_id = w->queue_id, order_index = w->order_index, number = w->message;
    uint8_t kind = w->kind;
    struct queue *q = table_queue_cached(t, queue_id);
    struct place *p = kind != WORK_ENQUEUE ? message_place(m, queue_id) : NULL;
    struct remembered *state = tx_end_work(t, w);
    if (kind == WORK_ENQUEUE) {
        m->flags &= (uint16_t)~MESSAGE_STAGED;
    }
    if (kind == WORK_ENQUEUE && q != NULL) {
        if (counts) {
            message_grows_places(t, m, 1);
        } else {
            message_grows_listed_place(t, m);
        }
        message_add_place(t, m, queue_append(q, m, number, commit_lsn, order_index));
        if (state != NULL) {
            take_state(t, m, queue_id, state);
        }
    } else if (kind == WORK_NOTE && p != NULL) {
        if (locks) {
            queue_unlock(p, m);
        }
        place_take_note(t, m, p, state);
    } else if (kind == WORK_DEQUEUE && p != NULL) {
        queue_kill(p, m);
        message_drop_place(t, m, queue_id);
    }
    remembered_free_made(state);
}

/* Work on a queue that was deleted meanwhile has no effect. */
void messages_commit(void *context, struct tx *tx, uint64_t commit_lsn) {
    ls_store *store = context;
    struct table *t = &store->state.table;
    while (tx->first != NULL) {
        struct work *w = tx->first;
        uint32_t number = w->message;
        if (w->state != NULL) {
            store_time_for(store, w->state);
        }
        apply_work(t, table_message(t, number), w, commit_lsn);
        work_gone(store, number);
    }
}

/* ---- every client's work ---- */

int tx_prepare_clients(const ls_store *store, struct tx *tx) {
    const struct log_clients *clients = store->state.clients;
    int rc = LS_OK;
    for (size_t i = 0; rc == LS_OK && i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        rc = c->calls->prepare != NULL ? c->calls->prepare(c->context, tx) : LS_OK;
    }
    return rc;
}

bool tx_prepare_commit(const ls_store *store, struct tx *tx) {
    const struct log_clients *clients = store->state.clients;
    bool ready = true;
    for (size_t i = 0; ready && i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        ready = c->calls->prepare_commit == NULL || c->calls->prepare_commit(c->context, tx);
    }
    return ready;
}

void tx_apply_work(const ls_store *store, struct tx *tx, uint64_t commit_lsn) {
    const struct log_clients *clients = store->state.clients;
    for (size_t i = 0; i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        if (c->calls->commit != NULL) {
            c->calls->commit(c->context, tx, commit_lsn);
        }
    }
    tx_end_client_work(tx);
}

void tx_undo_work(const ls_store *store, struct tx *tx) {
    const struct log_clients *clients = store->state.clients;
    for (size_t i = 0; i < clients->count; i++) {
        const struct log_client *c = &clients->all[i];
        if (c->calls->rollback != NULL) {
            c->calls->rollback(c->context, tx);
        }
    }
    tx_end_client_work(tx);
}

struct client_work *tx_make_client_work(uint32_t stream, uint64_t key) {
    struct client_work *w = calloc(1, sizeof *w);
    if (w != NULL) {
        *w = (struct client_work){.key = key, .stream = stream};
    }
    return w;
}
