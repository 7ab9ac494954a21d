/* Open transactions and their pending work. See table.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "logstore.h"
#include "os/array.h"
#include "table/remembered.h"

struct tx *table_tx(const struct table *t, uint64_t id) {
    uint32_t number = index_find(&t->tx_index, id);
    return number == INDEX_NONE ? NULL : table_tx_at(t, number, id);
}

struct tx *table_tx_at(const struct table *t, uint32_t number, uint64_t id) {
    struct tx *tx = number < t->tx_slots ? t->txs[number] : NULL;
#ifdef LOGSTORE_POISON
    table_give_out(t, INDEX_NONE, INDEX_NONE, number);
#endif
    return tx != NULL && tx->id == id ? tx : NULL;
}

bool xid_equal(const struct xid *a, const struct xid *b) {
    return a->format_id == b->format_id && a->gtrid_bytes == b->gtrid_bytes && a->bqual_bytes == b->bqual_bytes &&
           memcmp(a->data, b->data, (size_t)a->gtrid_bytes + a->bqual_bytes) == 0;
}

struct tx *table_find_xid(const struct table *t, const struct xid *x) {
    for (uint32_t i = 0; i < t->tx_slots; i++) {
        if (t->txs[i] != NULL && t->txs[i]->distributed && xid_equal(&t->txs[i]->xid, x)) {
            return t->txs[i];
        }
    }
    return NULL;
}

static bool grow_slots(struct table *t) {
    uint32_t before = t->tx_slots;
    if (!array_grow(&t->txs, &t->tx_slots, before, before == 0 ? 16 : 1)) {
        return false;
    }
    memset((void *)(t->txs + before), 0, (t->tx_slots - before) * sizeof *t->txs);
    return true;
}

bool table_prepare_tx(struct table *t, struct tx **fresh) {
    if (t->tx_count == t->tx_slots && !grow_slots(t)) {
        return false;
    }
    if (!index_prepare(&t->tx_index, 1)) {
        return false;
    }
    *fresh = calloc(1, sizeof **fresh);
    return *fresh != NULL;
}

void table_add_tx(struct table *t, struct tx *tx, uint64_t id) {
    uint32_t number = t->tx_count; /* the first free slot, if none was freed before */
    while (t->txs[number % t->tx_slots] != NULL) {
        number++;
    }
    tx->id = tx->start_lsn = tx->last_lsn = id;
    tx->number = number % t->tx_slots;
    t->txs[tx->number] = tx;
    t->tx_count++;
    index_insert(&t->tx_index, id, tx->number);
}

void table_remove_tx(struct table *t, struct tx *tx) {
    assert(tx->first == NULL && tx->client_first == NULL);
    index_remove(&t->tx_index, tx->id, tx->number);
    t->txs[tx->number] = NULL;
    t->tx_count--;
    t->prepared_count -= tx->state == LS_TX_PREPARED ? 1 : 0;
    free(tx);
}

uint32_t tx_start_bytes(const struct tx *tx) { return format_tx_relocated_bytes(&tx->xid); }

void tx_prepared(struct table *t, struct tx *tx, uint64_t time_us) {
    t->prepared_count += tx->state == LS_TX_PREPARED ? 0 : 1;
    tx->state = LS_TX_PREPARED;
    tx->prepared_us = time_us;
}

/* The caller has made the message's `extra`. */
void tx_add_work(struct table *t, struct tx *tx, struct work *w) {
    struct message *m = table_message(t, w->message);
    table_touch(t, m);
    w->tx = tx;
    w->next = NULL;
    if (tx->last != NULL) {
        tx->last->next = w;
    } else {
        tx->first = w;
    }
    tx->last = w;
    tx->work_count++;
    w->next_of_message = m->extra->work;
    m->extra->work = w;
    m->extra->pending++;
    if (work_is_wide(w)) {
        table_note_state(t, m);
    }
    message_grows_work(t, m, w);
    t->work_count++;
    message_changed(m);
}

void tx_add_client_work(struct tx *tx, struct client_work *w) {
    w->next = NULL;
    *(tx->client_last != NULL ? &tx->client_last->next : &tx->client_first) = w;
    tx->client_last = w;
}

void tx_end_client_work(struct tx *tx) {
    while (tx->client_first != NULL) {
        struct client_work *next = tx->client_first->next;
        free(tx->client_first);
        tx->client_first = next;
    }
    tx->client_last = NULL;
}

void work_free_one(struct work *w) {
    remembered_free_made(w->state);
    free(w);
}

struct remembered *tx_end_work(struct table *t, struct work *w) {
    struct remembered *state = w->state;
    struct message *m = table_message(t, w->message);
    table_touch(t, m);
    struct work **link = &m->extra->work;
    while (*link != w) {
        link = &(*link)->next_of_message;
    }
    *link = w->next_of_message;
    m->extra->pending--;
    message_shrinks_work(t, m, w);
    t->work_count--;
    message_changed(m);
    struct tx *tx = w->tx;
    struct work *before = NULL;
    link = &tx->first; /* a short search: an outcome drops the oldest first */
    while (*link != w) {
        before = *link;
        link = &before->next;
    }
    *link = w->next;
    tx->last = tx->last == w ? before : tx->last;
    tx->work_count--;
    free(w);
    return state;
}

void tx_drop_work(struct table *t, struct work *w) { remembered_free_made(tx_end_work(t, w)); }

struct work *message_last_work(const struct message *m, uint32_t queue_id) {
    struct work *w = m->extra != NULL ? m->extra->work : NULL;
    while (w != NULL && w->queue_id != queue_id) {
        w = w->next_of_message;
    }
    return w;
}
