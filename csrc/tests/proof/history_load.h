/*
 * The threads. Each calls any operation of the API at any time and records the call and its result. They share only the
 * list of places to dequeue, and a mailbox that hands prepared transactions from one thread to another.
 */
#ifndef LOGSTORE_HISTORY_LOAD_H
#define LOGSTORE_HISTORY_LOAD_H

#include <pthread.h>

#include "tests/proof/history_record.h"

enum {
    SLOTS = 2,
    OWN_RECENT = 32,
    ACQUIRED_MAX = 8,
    LISTED_AT_ONCE = 64,
    LISTED_MAX = 1200,
    LIVE_WANTED = 260,
    AFTER_POISON = 15
};

enum tx_stage { STAGE_NONE, STAGE_ACTIVE, STAGE_ENDED, STAGE_PREPARED };

struct tx_slot {
    uint32_t tx; /* 1 + its number */
    ls_tx *handle;
    enum tx_stage stage;
};

struct acquired {
    ls_delivery delivery;
    struct seen *seen;
    uint32_t queue, place;
};

struct worker {
    pthread_t thread;
    int number;
    ls_store *store;
    struct thread_record *record;
    uint64_t chance;
    struct tx_slot slots[SLOTS];
    uint32_t own[OWN_RECENT]; /* messages it made */
    uint32_t own_count;
    struct acquired acquired[ACQUIRED_MAX]; /* from one queue */
    uint32_t acquired_count;
    uint32_t calls_wanted;
    int after_poison;
    bool over;
};

static struct worker workers[THREADS];
static ls_tx *tx_handles[TXS_MAX];
static _Atomic uint32_t mailbox;
static atomic_int live_guess;
static uint32_t next_dynamic;

static inline uint32_t below(struct worker *w, uint32_t n) { return chance_below(&w->chance, n); }

static inline ls_tx *slot_handle(const struct tx_slot *s) { return s != NULL ? s->handle : NULL; }

/* ---- calls ---- */

static inline struct call *call_new(struct worker *w, int kind, const struct tx_slot *slot, bool waited) {
    struct thread_record *t = w->record;
    struct call *c = &t->calls[t->call_count];

    c->kind = kind;
    c->waited = waited && slot == NULL;
    c->tx = slot != NULL ? slot->tx : 0;
    c->first = is_listing(c) ? t->seen_count : t->item_count;
    c->count = c->done = 0;
    c->by = t;
    return c;
}

static inline void call_names(struct worker *w, struct call *c, uint32_t place) {
    w->record->items[w->record->item_count++] = place;
    c->count++;
}

static inline void call_go(struct call *c) {
    atomic_fetch_add(&c->by->call_count, 1);
    atomic_store(&c->begun, stamp());
}

static inline bool call_end(struct worker *w, struct call *c, int rc) {
    c->rc = rc;
    c->done = rc == LS_OK && !is_listing(c) && c->kind != READ ? c->count : c->done;
    atomic_store(&c->ended, stamp());
    if (rc == LS_CLOSED)
        w->over = true;
    if (rc == LS_POISONED || rc == LS_OUTCOME_UNKNOWN)
        w->over = ++w->after_poison > AFTER_POISON || w->over;
    return rc == LS_OK;
}

static inline int wait_flag(const struct call *c) { return c->waited ? LS_WAIT : 0; }

/* ---- messages and places ---- */

static inline uint32_t any_size(struct worker *w) {
    static const uint32_t limits[] = {1, 200, 200, 200, 200, 900, 3000, 3900, 4100, CONTENT_MAX};
    uint32_t choice = below(w, 20);

    return below(w, limits[choice < 10 ? choice : 1 + choice % 6]);
}

static inline uint32_t new_message(struct worker *w) {
    uint32_t number = atomic_fetch_add(&h->message_count, 1);
    struct message_record *m = &h->messages[number];

    m->content_bytes = any_size(w);
    m->header_bytes = 8 + below(w, HEADER_MAX - 8);
    w->own[w->own_count++ % OWN_RECENT] = number;
    return number;
}

static inline uint32_t new_place(uint32_t message, uint32_t queue, struct call *c) {
    uint32_t number = atomic_fetch_add(&h->place_count, 1);
    struct place_record *p = &h->places[number];

    p->message = message;
    p->queue = queue;
    p->item = c->count;
    p->call = c;
    p->next = h->messages[message].places;
    h->messages[message].places = number + 1;
    if (queue <= STATIC_QUEUES)
        h->messages[message].on[queue] = number + 1;
    h->messages[message].tried |= queue < 32 ? UINT32_C(1) << queue : 0;
    return number;
}

static inline void show_places(const struct call *c) {
    for (uint32_t i = 0; i < c->done; i++)
        atomic_store(&h->places[c->by->items[c->first + i]].state, PLACE_READY);
    atomic_fetch_add(&live_guess, (int)c->done);
}

static inline bool room_for_more(struct worker *w) {
    const struct thread_record *t = w->record;
    bool room = t->call_count + 8 < CALLS_MAX && t->item_count + 64 < ITEMS_MAX &&
                t->seen_count + LISTED_MAX + LISTED_AT_ONCE < SEEN_MAX && h->message_count + 64 < MESSAGES_MAX &&
                h->place_count + 128 < PLACES_MAX && h->tx_count + 16 < TXS_MAX;

    w->over = w->over || !room;
    return room;
}

static inline uint32_t any_queue(struct worker *w) {
    uint32_t dynamic = h->dynamic;

    return dynamic != 0 && below(w, 12) == 0 ? dynamic : 1 + below(w, STATIC_QUEUES);
}

/* A random place that may still exist, rarely one that is gone; UINT32_MAX if none is found. */
static inline uint32_t any_place(struct worker *w) {
    for (int tries = 0; tries < 30; tries++) {
        uint32_t n = h->place_count;
        uint32_t back = n < 500 ? n : tries % 8 == 7 ? n : 500;
        uint32_t number = n == 0 ? 0 : n - 1 - below(w, back);
        uint8_t state = n == 0 ? 0 : h->places[number].state;

        if (state == PLACE_READY || (state == PLACE_TAKEN && below(w, 30) == 0))
            return number;
    }
    return UINT32_MAX;
}

static inline void do_publish(struct worker *w, struct tx_slot *slot, bool waited) {
    uint8_t header[HEADER_MAX], content[CONTENT_MAX];
    uint32_t number = new_message(w), queues[3] = {any_queue(w)};
    struct message_record *m = &h->messages[number];
    struct call *c = call_new(w, PUBLISH, slot, waited);
    size_t n = 1;
    uint64_t id = 0;
    int rc;

    while (n < 3 && below(w, 6) == 0) {
        uint32_t more = any_queue(w);
        if (more != queues[0] && more != queues[n - 1])
            queues[n++] = more;
    }
    for (size_t i = 0; i < n; i++)
        call_names(w, c, new_place(number, queues[i], c));
    make_header(header, number);
    make_content(content, number, m->content_bytes);
    call_go(c);
    rc = ls_publish(w->store, queues, n, header, m->header_bytes, content, m->content_bytes, slot_handle(slot),
                    wait_flag(c), &id);
    m->id = id;
    if (call_end(w, c, rc))
        show_places(c);
}

static inline void do_publish_many(struct worker *w, struct tx_slot *slot, bool waited) {
    uint8_t headers[10 * HEADER_MAX], *content = malloc(10 * (size_t)CONTENT_MAX);
    uint64_t sizes[10], header_sizes[10], ids[10] = {0};
    uint32_t numbers[10], n = 2 + below(w, 8), queue = any_queue(w);
    struct call *c = call_new(w, PUBLISH_MANY, slot, waited);
    uint8_t *to = content, *header_to = headers;
    size_t done = 0;
    int rc;

    for (uint32_t i = 0; i < n && content != NULL; i++) {
        uint8_t header[HEADER_MAX];

        numbers[i] = new_message(w);
        sizes[i] = h->messages[numbers[i]].content_bytes;
        header_sizes[i] = h->messages[numbers[i]].header_bytes;
        make_header(header, numbers[i]);
        memcpy(header_to, header, header_sizes[i]);
        make_content(to, numbers[i], sizes[i]);
        to += sizes[i];
        header_to += header_sizes[i];
        call_names(w, c, new_place(numbers[i], queue, c));
    }
    call_go(c);
    rc = content == NULL ? LS_NO_MEMORY
                         : ls_publish_many(w->store, queue, n, content, sizes, headers, header_sizes, NULL,
                                           slot_handle(slot), wait_flag(c), ids, &done);
    for (uint32_t i = 0; i < done; i++)
        h->messages[numbers[i]].id = ids[i];
    c->done = (uint32_t)done;
    (void)call_end(w, c, rc);
    show_places(c);
    free(content);
}

/* Stages a message, perhaps appends content, and then enqueues or destroys it. */
static inline void do_stage(struct worker *w, struct tx_slot *slot, bool waited) {
    uint8_t header[HEADER_MAX], content[CONTENT_MAX];
    uint32_t number = new_message(w), queue = 1 + below(w, STATIC_QUEUES);
    struct message_record *m = &h->messages[number];
    uint32_t at = below(w, m->content_bytes + 1);
    struct call *c = call_new(w, STAGE, NULL, waited);
    uint64_t id = 0, lsn;
    int rc;

    make_header(header, number);
    make_content(content, number, m->content_bytes);
    call_go(c);
    rc = ls_stage(w->store, header, m->header_bytes, content, at, wait_flag(c), &id);
    m->id = id;
    if (!call_end(w, c, rc))
        return;
    while (at < m->content_bytes) {
        uint32_t part = 1 + below(w, m->content_bytes - at);

        if (!room_for_more(w))
            return;
        c = call_new(w, APPEND, NULL, false);
        call_go(c);
        if (!call_end(w, c, ls_append_content(w->store, id, content + at, part, 0)))
            return;
        at += part;
    }
    if (below(w, 6) == 0) {
        c = call_new(w, DESTROY, NULL, waited);
        call_go(c);
        (void)call_end(w, c, ls_destroy(w->store, id, wait_flag(c)));
        return;
    }
    c = call_new(w, ENQUEUE, slot, waited);
    call_names(w, c, new_place(number, queue, c));
    call_go(c);
    if (call_end(w, c, ls_enqueue(w->store, id, &queue, 1, slot_handle(slot), wait_flag(c), &lsn)))
        show_places(c);
}

/* Enqueues one of the thread's messages on one more queue. */
static inline void do_enqueue_more(struct worker *w, struct tx_slot *slot, bool waited) {
    uint32_t number, queue = 1 + below(w, STATIC_QUEUES);
    struct call *c;
    uint64_t lsn;

    if (w->own_count < OWN_RECENT)
        return;
    number = w->own[below(w, OWN_RECENT)];
    if (h->messages[number].id == 0 || h->messages[number].places == 0 ||
        (h->messages[number].tried & UINT32_C(1) << queue) != 0)
        return;
    c = call_new(w, ENQUEUE, slot, waited);
    call_names(w, c, new_place(number, queue, c));
    call_go(c);
    if (call_end(w, c, ls_enqueue(w->store, h->messages[number].id, &queue, 1, slot_handle(slot), wait_flag(c), &lsn)))
        show_places(c);
}

static inline void mark_taken(const struct call *c) {
    for (uint32_t i = 0; i < c->done; i++)
        atomic_store(&h->places[c->by->items[c->first + i]].state, PLACE_TAKEN);
    atomic_fetch_sub(&live_guess, (int)c->done);
}

static inline void do_dequeue(struct worker *w, struct tx_slot *slot, bool waited) {
    uint32_t number = any_place(w);
    struct call *c;
    uint64_t lsn;
    int rc;

    if (number == UINT32_MAX)
        return;
    c = call_new(w, DEQUEUE, slot, waited);
    call_names(w, c, number);
    call_go(c);
    rc = ls_dequeue(w->store, h->messages[h->places[number].message].id, h->places[number].queue, slot_handle(slot), 1,
                    0, wait_flag(c), &lsn);
    if (call_end(w, c, rc))
        mark_taken(c);
}

static inline void do_dequeue_many(struct worker *w, struct tx_slot *slot, bool waited) {
    struct call *c = call_new(w, DEQUEUE_MANY, slot, waited);
    uint64_t ids[6];
    uint32_t queue = 0;
    size_t done = 0;
    int rc;

    for (int tries = 0; tries < 20 && c->count < 6; tries++) {
        uint32_t number = any_place(w);
        bool twice = number == UINT32_MAX || (queue != 0 && h->places[number].queue != queue);

        for (uint32_t i = 0; !twice && i < c->count; i++)
            twice = w->record->items[c->first + i] == number;
        if (twice)
            continue;
        queue = h->places[number].queue;
        ids[c->count] = h->messages[h->places[number].message].id;
        call_names(w, c, number);
    }
    if (c->count == 0)
        return;
    call_go(c);
    rc = ls_dequeue_many(w->store, ids, c->count, queue, slot_handle(slot), 1, wait_flag(c), &done);
    c->done = (uint32_t)done;
    (void)call_end(w, c, rc);
    mark_taken(c);
}

#endif
