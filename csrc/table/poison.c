/*
 * For builds with -DLOGSTORE_POISON: whenever an operation releases the lock, or could have, the items that look-ups
 * returned move to other memory. A pointer kept across such a call then points to freed memory, and a sanitizer reports
 * its first use, whatever the other threads did. log.h has the rule that this enforces.
 *
 * The last few messages (with their extras), queues and transactions that were looked up move; segment.c moves segments.
 * If there is no memory, an item stays where it is.
 */
#include "table/table.h"

#ifdef LOGSTORE_POISON
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xdb };

static void note(uint32_t *list, uint32_t *count, uint32_t number) {
    if (number != INDEX_NONE && (*count == 0 || list[(*count - 1) % GIVEN_OUT] != number)) {
        list[(*count)++ % GIVEN_OUT] = number;
    }
}

void table_give_out(const struct table *t, uint32_t slab, uint32_t queue, uint32_t tx) {
    struct given_out *g = &((struct table *)(uintptr_t)t)->given_out;
    note(g->slabs, &g->slab_count, slab);
    note(g->queues, &g->queue_count, queue);
    note(g->txs, &g->tx_count, tx);
}

/* Copies the memory, poisons and frees the old one, and returns the copy; without memory for a copy returns `old`. */
static void *at_new_address(void *old, size_t bytes) {
    void *made = old != NULL && bytes > 0 ? malloc(bytes) : NULL;
    if (made == NULL) {
        return old;
    }
    memcpy(made, old, bytes);
    memset(old, POISON, bytes);
    free(old);
    return made;
}

static void move_slab(struct table *t, uint32_t slab) {
    t->slabs[slab] = at_new_address(t->slabs[slab], sizeof(struct slab));
    for (uint32_t i = 0; i < SLAB_MESSAGES && slab * SLAB_MESSAGES + i < t->message_slots; i++) {
        struct message *m = &t->slabs[slab]->messages[i];
        if ((m->flags & MESSAGE_FREE) != 0) {
            continue;
        }
        if (m->listed != 0) {
            m->places.list.all = at_new_address(m->places.list.all, m->places.list.capacity * sizeof(struct place));
        }
        if (m->extra != NULL) {
            m->extra = at_new_address(m->extra, sizeof *m->extra);
            m->extra->chunks = at_new_address(m->extra->chunks, m->extra->chunk_capacity * sizeof *m->extra->chunks);
            m->extra->parts = at_new_address(m->extra->parts, m->extra->part_count * sizeof *m->extra->parts);
        }
    }
}

static void move_queue(struct table *t, uint32_t number) {
    struct queue *q = number < t->queue_count ? t->queues[number] : NULL;
    if (q == NULL) {
        return; /* it was deleted */
    }
    q = t->queues[number] = at_new_address(q, sizeof *q);
    t->found = t->found_before = NULL;
    for (struct queue_chunk *c = q->first; c != NULL; c = c->next) {
        c->queue = q;
    }
    for (struct queue_chunk *c = q->prepared; c != NULL; c = c->next) {
        c->queue = q;
    }
    for (struct cursor *c = q->cursors; c != NULL; c = c->next) {
        c->queue = q;
    }
}

static void move_tx(struct table *t, uint32_t number) {
    struct tx *tx = number < t->tx_slots ? t->txs[number] : NULL;
    if (tx == NULL) {
        return; /* it has ended */
    }
    tx = t->txs[number] = at_new_address(tx, sizeof *tx);
    for (struct work *w = tx->first; w != NULL; w = w->next) {
        w->tx = tx;
    }
}

void table_move(struct table *t) {
    struct given_out g = t->given_out;
    t->given_out = (struct given_out){.slab_count = 0};
    for (uint32_t i = 0; i < g.slab_count && i < GIVEN_OUT; i++) {
        if (g.slabs[i] < t->slab_count) {
            move_slab(t, g.slabs[i]);
        }
    }
    for (uint32_t i = 0; i < g.queue_count && i < GIVEN_OUT; i++) {
        move_queue(t, g.queues[i]);
    }
    for (uint32_t i = 0; i < g.tx_count && i < GIVEN_OUT; i++) {
        move_tx(t, g.txs[i]);
    }
}
#endif
