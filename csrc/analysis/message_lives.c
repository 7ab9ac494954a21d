/* The open messages of a pass, with their places, pending work, queues and transactions. See message_rows.h. */
#include "analysis/message_rows.h"

#include <stdlib.h>

#include "os/array.h"
#include "os/error.h"

/* ---- memory ---- */

static uint64_t id_of_life(const void *context, uint32_t number) { return life_at(context, number)->id; }
static uint64_t id_of_queue(const void *context, uint32_t number) { return ((const pass *)context)->queues[number].id; }
static uint64_t id_of_tx(const void *context, uint32_t number) { return ((const pass *)context)->txs[number].id; }

void lives_init(pass *p) {
    p->free_life = p->free_queue = p->free_tx = LIFE_NONE;
    p->with_more = p->near_queue = LIFE_NONE;
    index_init_by_lsn(&p->lives, id_of_life, p);
    index_init(&p->queue_index, id_of_queue, p);
    index_init(&p->tx_index, id_of_tx, p);
}

static void free_more(struct life *l) {
    if (l->more != NULL) {
        for (uint32_t i = 0; i < l->more->place_count; i++) {
            free(l->more->places[i].state);
        }
        for (uint32_t i = 0; i < l->more->work_count; i++) {
            free(l->more->work[i].state);
        }
        free(l->more->places);
        free(l->more->work);
        free(l->more);
        l->more = NULL;
    }
}

void lives_free(pass *p) {
    for (uint32_t number = 0; number < p->slots; number++) {
        free_more(life_at(p, number));
        if (p->body_bytes > 0) {
            body_forget(life_content(p, number));
        }
    }
    for (uint32_t i = 0; i < p->slab_count; i++) {
        free(p->slabs[i]->contents);
        free(p->slabs[i]);
    }
    for (uint32_t i = 0; i < p->tx_count; i++) {
        free(p->txs[i].ids);
    }
    free(p->slabs);
    free(p->queues);
    free(p->txs);
    index_free(&p->lives);
    index_free(&p->queue_index);
    index_free(&p->tx_index);
}

static bool prepare_slot(pass *p) {
    if (p->free_life != LIFE_NONE || p->slots < p->slab_count * LIVES_IN_SLAB) {
        return true;
    }
    if (p->slab_count >= (LIFE_NONE - 1) / LIVES_IN_SLAB ||
        !array_grow(&p->slabs, &p->slab_capacity, p->slab_count, 1)) {
        return false;
    }
    struct life_slab *slab = malloc(sizeof *slab);
    struct life_content *contents = p->body_bytes > 0 ? calloc(LIVES_IN_SLAB, sizeof *contents) : NULL;
    if (slab == NULL || (p->body_bytes > 0 && contents == NULL)) {
        free(slab);
        free(contents);
        return false;
    }
    slab->contents = contents;
    p->slabs[p->slab_count++] = slab;
    return true;
}

/* ---- lives ---- */

struct life *lives_find(const pass *p, uint64_t id, uint32_t *number) {
    *number = index_find(&p->lives, id);
    return *number == INDEX_NONE ? NULL : life_at(p, *number);
}

int lives_add(pass *p, uint64_t id, uint32_t flags, uint32_t *number) {
    if (!prepare_slot(p) || !index_prepare(&p->lives, 1)) {
        return fail_memory();
    }
    *number = p->free_life;
    if (*number != LIFE_NONE) {
        p->free_life = life_at(p, *number)->next;
    } else {
        *number = p->slots++;
    }
    *life_at(p, *number) = (struct life){.id = id, .next = LIFE_NONE, .prev = LIFE_NONE, .flags = flags};
    index_insert(&p->lives, id, *number);
    p->count++;
    p->staged += (flags & LIFE_ENQUEUED) == 0 ? 1 : 0;
    return LS_OK;
}

void life_enqueued(pass *p, struct life *l) {
    if (life_is_staged(l)) {
        l->flags |= LIFE_ENQUEUED;
        p->staged--;
    }
}

/* ---- queues, and the messages on them ---- */

static struct life_queue *find_queue(pass *p, uint32_t queue_id) {
    if (p->near_queue != LIFE_NONE && p->queues[p->near_queue].id == queue_id) {
        return &p->queues[p->near_queue];
    }
    uint32_t number = index_find(&p->queue_index, queue_id);
    if (number == INDEX_NONE) {
        return NULL;
    }
    p->near_queue = number;
    return &p->queues[number];
}

static struct life_queue *need_queue(pass *p, uint32_t queue_id) {
    struct life_queue *q = find_queue(p, queue_id);
    if (q != NULL) {
        return q;
    }
    if (!index_prepare(&p->queue_index, 1)) {
        return NULL;
    }
    uint32_t number = p->free_queue;
    if (number != LIFE_NONE) {
        p->free_queue = p->queues[number].first;
    } else {
        if (!array_grow(&p->queues, &p->queue_capacity, p->queue_count, 1)) {
            return NULL;
        }
        number = p->queue_count++;
    }
    p->queues[number] = (struct life_queue){.id = queue_id, .first = LIFE_NONE};
    index_insert(&p->queue_index, queue_id, number);
    p->near_queue = number;
    return &p->queues[number];
}

static void link_into(pass *p, uint32_t *first, uint32_t number) {
    struct life *l = life_at(p, number);
    l->prev = LIFE_NONE;
    l->next = *first;
    if (*first != LIFE_NONE) {
        life_at(p, *first)->prev = number;
    }
    *first = number;
    l->flags |= LIFE_LINKED;
}

/* The head of the list that the life is in. */
static uint32_t *list_of(pass *p, const struct life *l) {
    return l->more != NULL ? &p->with_more : &find_queue(p, l->queue_id)->first;
}

static void unlink_from(pass *p, struct life *l) {
    if ((l->flags & LIFE_LINKED) == 0) {
        return;
    }
    if (l->prev == LIFE_NONE) {
        *list_of(p, l) = l->next;
    } else {
        life_at(p, l->prev)->next = l->next;
    }
    if (l->next != LIFE_NONE) {
        life_at(p, l->next)->prev = l->prev;
    }
    l->next = l->prev = LIFE_NONE;
    l->flags &= ~(uint32_t)LIFE_LINKED;
}

static void leave_queue(pass *p, uint32_t queue_id) {
    struct life_queue *q = find_queue(p, queue_id);
    if (q != NULL) {
        assert(q->others > 0);
        q->others--;
    }
}

void lives_remove(pass *p, uint32_t number) {
    struct life *l = life_at(p, number);
    unlink_from(p, l);
    for (uint32_t i = 0; l->more != NULL && i < l->more->place_count; i++) {
        if (l->more->places[i].end.how == PLACE_OPEN) {
            leave_queue(p, l->more->places[i].queue_id);
        }
    }
    for (uint32_t i = 0; l->more != NULL && i < l->more->work_count; i++) {
        if (!l->more->work[i].queue_gone) {
            leave_queue(p, l->more->work[i].queue_id);
        }
    }
    index_remove(&p->lives, l->id, number);
    p->count--;
    p->staged -= life_is_staged(l) ? 1 : 0;
    free_more(l);
    if (p->body_bytes > 0) {
        body_forget(life_content(p, number));
    }
    l->flags = LIFE_FREE;
    l->next = p->free_life;
    p->free_life = number;
}

/* ---- places ---- */

/* Makes room for more than one place. */
static int need_more(pass *p, uint32_t number) {
    struct life *l = life_at(p, number);
    if (l->more != NULL) {
        return LS_OK;
    }
    struct life_more *x = calloc(1, sizeof *x);
    if (x == NULL || !array_grow(&x->places, &x->place_capacity, 0, 1)) {
        free(x);
        return fail_memory();
    }
    if ((l->flags & LIFE_PLACE) != 0) {
        unlink_from(p, l);
        x->places[0] = (struct life_place){.enqueue_lsn = l->enqueue_lsn,
                                           .enqueue_time_us = l->enqueue_time_us,
                                           .enqueue_tx = l->enqueue_tx,
                                           .queue_id = l->queue_id,
                                           .order_index = l->order_index};
        x->place_count = x->open_places = 1;
        find_queue(p, l->queue_id)->others++;
        l->flags &= ~(uint32_t)LIFE_PLACE;
    }
    l->more = x;
    link_into(p, &p->with_more, number);
    return LS_OK;
}

void life_simplify(pass *p, uint32_t number) {
    struct life *l = life_at(p, number);
    struct life_more *x = l->more;
    if (x == NULL || x->work_count > 0 || x->place_count > 1 || x->open_places != x->place_count ||
        (x->place_count == 1 && x->places[0].state != NULL)) {
        return;
    }
    unlink_from(p, l);
    if (x->place_count == 1) {
        const struct life_place *only = &x->places[0];
        l->enqueue_lsn = only->enqueue_lsn;
        l->enqueue_time_us = only->enqueue_time_us;
        l->enqueue_tx = only->enqueue_tx;
        l->queue_id = only->queue_id;
        l->order_index = only->order_index;
        l->flags |= LIFE_PLACE;
        struct life_queue *q = find_queue(p, l->queue_id);
        q->others--;
        free_more(l);
        link_into(p, &q->first, number);
        return;
    }
    free_more(l);
}

static struct life_place *open_place(const struct life_more *x, uint32_t queue_id) {
    uint32_t left = x->open_places; /* searches from the newest, which is most often the right one */
    for (uint32_t i = x->place_count; left > 0 && i-- > 0;) {
        bool open = x->places[i].end.how == PLACE_OPEN;
        if (open && x->places[i].queue_id == queue_id) {
            return &x->places[i];
        }
        left -= open ? 1 : 0;
    }
    return NULL;
}

int life_need_place(pass *p, uint32_t number, uint32_t queue_id, struct life_place **place) {
    struct life *l = life_at(p, number);
    *place = NULL;
    if (l->more == NULL && ((l->flags & LIFE_PLACE) == 0 || l->queue_id != queue_id)) {
        return LS_OK;
    }
    int rc = need_more(p, number);
    *place = rc == LS_OK ? open_place(l->more, queue_id) : NULL;
    return rc;
}

const struct life_placed *life_state_on(const struct life *l, uint32_t queue_id) {
    const struct life_place *place = l->more != NULL ? open_place(l->more, queue_id) : NULL;
    return place != NULL ? place->state : NULL;
}

/* *put: the place is in the list, and its state with it. */
static int put_place(pass *p, uint32_t number, const struct life_place *place, bool *put) {
    int rc = need_more(p, number);
    struct life_queue *q = rc == LS_OK ? need_queue(p, place->queue_id) : NULL;
    if (rc != LS_OK || q == NULL) {
        return rc != LS_OK ? rc : fail_memory();
    }
    struct life *l = life_at(p, number);
    struct life_more *x = l->more;
    if (place->end.how == PLACE_OPEN && open_place(x, place->queue_id) != NULL) {
        return LS_OK;
    }
    if (x->place_count >= LIFE_PLACES_MAX) {
        return fail(LS_BUSY, "message %llu was enqueued more than %d times, the most that a row can hold",
                    (unsigned long long)l->id, (int)LIFE_PLACES_MAX);
    }
    if (!array_grow(&x->places, &x->place_capacity, x->place_count, 1)) {
        return fail_memory();
    }
    x->places[x->place_count++] = *place;
    *put = true;
    if (place->end.how == PLACE_OPEN) {
        x->open_places++;
        q->others++;
    } else {
        x->ended_places++;
    }
    return LS_OK;
}

static int add_to_more(pass *p, uint32_t number, const struct life_place *place) {
    bool put = false;
    int rc = put_place(p, number, place, &put);
    if (!put) {
        free(place->state);
    }
    return rc;
}

int life_add_place(pass *p, uint32_t number, const struct life_place *place) {
    struct life *l = life_at(p, number);
    if (l->more != NULL || (l->flags & LIFE_PLACE) != 0 || place->end.how != PLACE_OPEN || place->state != NULL) {
        return add_to_more(p, number, place);
    }
    struct life_queue *q = need_queue(p, place->queue_id);
    if (q == NULL) {
        return fail_memory();
    }
    l->enqueue_lsn = place->enqueue_lsn;
    l->enqueue_time_us = place->enqueue_time_us;
    l->enqueue_tx = place->enqueue_tx;
    l->queue_id = place->queue_id;
    l->order_index = place->order_index;
    l->flags |= LIFE_PLACE;
    link_into(p, &q->first, number);
    return LS_OK;
}

bool life_end_place(pass *p, struct life *l, uint32_t queue_id, const struct ending *end) {
    struct life_place *place = open_place(l->more, queue_id);
    if (place == NULL) {
        return false;
    }
    place->end = *end;
    place->ended_as = ++l->more->ended_places;
    l->more->open_places--;
    leave_queue(p, queue_id);
    return true;
}

/* ---- transactions and their work ---- */

struct life_tx *lives_tx(const pass *p, uint64_t tx_id) {
    uint32_t number = index_find(&p->tx_index, tx_id);
    return number == INDEX_NONE ? NULL : &p->txs[number];
}

static struct life_tx *need_tx(pass *p, uint64_t tx_id) {
    struct life_tx *tx = lives_tx(p, tx_id);
    if (tx != NULL) {
        return tx;
    }
    if (!index_prepare(&p->tx_index, 1)) {
        return NULL;
    }
    uint32_t number = p->free_tx;
    if (number != LIFE_NONE) {
        p->free_tx = p->txs[number].next_free;
    } else {
        if (!array_grow(&p->txs, &p->tx_capacity, p->tx_count, 1)) {
            return NULL;
        }
        number = p->tx_count++;
    }
    p->txs[number] = (struct life_tx){.id = tx_id};
    index_insert(&p->tx_index, tx_id, number);
    return &p->txs[number];
}

void lives_remove_tx(pass *p, uint64_t tx_id) {
    struct life_tx *tx = lives_tx(p, tx_id);
    if (tx != NULL) {
        uint32_t number = (uint32_t)(tx - p->txs);
        index_remove(&p->tx_index, tx_id, number);
        free(tx->ids);
        *tx = (struct life_tx){.next_free = p->free_tx};
        p->free_tx = number;
    }
}

static bool tx_names(struct life_tx *tx, uint64_t id) {
    if (tx->count > 0 && tx->ids[tx->count - 1] == id) {
        return true;
    }
    if (!array_grow(&tx->ids, &tx->capacity, tx->count, 1)) {
        return false;
    }
    tx->ids[tx->count++] = id;
    return true;
}

static int put_work(pass *p, uint32_t number, const struct life_work *work) {
    int rc = need_more(p, number);
    struct life_queue *q = rc == LS_OK && !work->queue_gone ? need_queue(p, work->queue_id) : NULL;
    struct life_tx *tx = rc == LS_OK ? need_tx(p, work->tx_id) : NULL;
    if (rc != LS_OK || tx == NULL || (q == NULL && !work->queue_gone)) {
        return rc != LS_OK ? rc : fail_memory();
    }
    struct life *l = life_at(p, number);
    struct life_more *x = l->more;
    if (x->work_count >= LIFE_WORK_MAX) {
        return fail(LS_BUSY, "message %llu has more than %d pending operations, the most that a row can hold",
                    (unsigned long long)l->id, (int)LIFE_WORK_MAX);
    }
    if (!array_grow(&x->work, &x->work_capacity, x->work_count, 1) || !tx_names(tx, l->id)) {
        return fail_memory();
    }
    x->work[x->work_count++] = *work;
    if (q != NULL) {
        q->others++;
    }
    return LS_OK;
}

int life_add_work(pass *p, uint32_t number, const struct life_work *work) {
    int rc = put_work(p, number, work);
    if (rc != LS_OK) {
        free(work->state);
    }
    return rc;
}

/* Takes the work's state over. */
static int apply(pass *p, uint32_t number, const struct life_work *w, const struct ending *commit) {
    if (w->kind == PENDING_ENQUEUE) {
        life_enqueued(p, life_at(p, number));
    }
    if (w->queue_gone) {
        free(w->state);
        return LS_OK;
    }
    if (w->kind == PENDING_NOTE) {
        struct life_place *place = open_place(life_at(p, number)->more, w->queue_id);
        const struct place_state with_note = life_placed_view(w->state);
        int rc = place != NULL ? life_placed_replace_note(&place->state, &with_note) : LS_OK;
        free(w->state);
        return rc;
    }
    if (w->kind == PENDING_ENQUEUE) {
        const struct life_place place = {.enqueue_lsn = commit->lsn,
                                         .enqueue_time_us = commit->time_us,
                                         .enqueue_tx = w->tx_id,
                                         .state = w->state,
                                         .queue_id = w->queue_id,
                                         .order_index = w->order_index};
        return add_to_more(p, number, &place);
    }
    struct ending end = *commit;
    end.delivery_count = w->delivery_count;
    end.reason = w->reason;
    (void)life_end_place(p, life_at(p, number), w->queue_id, &end);
    return LS_OK;
}

int life_decide_work(pass *p, uint32_t number, uint64_t tx_id, const struct ending *commit) {
    struct life_more *x = life_at(p, number)->more;
    uint32_t kept = 0;
    int rc = LS_OK;
    for (uint32_t i = 0; i < x->work_count; i++) {
        if (x->work[i].tx_id != tx_id) {
            x->work[kept++] = x->work[i];
            continue;
        }
        const struct life_work w = x->work[i];
        if (!w.queue_gone) {
            leave_queue(p, w.queue_id);
        }
        if (commit != NULL && rc == LS_OK) {
            rc = apply(p, number, &w, commit);
        } else {
            free(w.state);
        }
    }
    x->work_count = kept;
    return rc;
}

/* ---- ends of many ---- */

int lives_close(pass *p, uint32_t number) {
    if (!array_grow(&p->closing, &p->closing_capacity, p->closing_count, 1)) {
        return fail_memory();
    }
    p->closing[p->closing_count++] = number;
    return LS_OK;
}

static void drop_queue(pass *p, uint32_t queue_id) {
    struct life_queue *q = find_queue(p, queue_id);
    uint32_t number = (uint32_t)(q - p->queues);
    index_remove(&p->queue_index, queue_id, number);
    *q = (struct life_queue){.first = p->free_queue};
    p->free_queue = number;
    p->near_queue = LIFE_NONE;
}

int lives_delete_queue(pass *p, uint32_t queue_id, const struct ending *end) {
    struct life_queue *q = find_queue(p, queue_id);
    int rc = LS_OK;
    if (q == NULL) {
        return LS_OK;
    }
    for (uint32_t number = p->with_more; rc == LS_OK && q->others > 0 && number != LIFE_NONE;) {
        struct life *l = life_at(p, number);
        uint32_t next = l->next;
        for (uint32_t i = 0; i < l->more->work_count; i++) {
            struct life_work *w = &l->more->work[i];
            if (w->queue_id == queue_id && !w->queue_gone) {
                w->queue_gone = true;
                q->others--;
            }
        }
        if (life_end_place(p, l, queue_id, end) && l->more->open_places == 0 && l->more->work_count == 0) {
            rc = lives_close(p, number);
        }
        number = next;
    }
    while (rc == LS_OK && q->first != LIFE_NONE) {
        rc = lives_close(p, q->first);
        unlink_from(p, life_at(p, q->first));
    }
    if (rc == LS_OK) {
        drop_queue(p, queue_id);
    }
    return rc;
}
