/* The threads, continued: transactions, queues that are added and deleted, lists and reads, and a thread's main loop. */
#ifndef LOGSTORE_HISTORY_LOAD_REST_H
#define LOGSTORE_HISTORY_LOAD_REST_H

#include "tests/kit/move_base.h"
#include "tests/proof/history_consume.h"

/* ---- transactions ---- */

static inline void do_begin(struct worker *w, struct tx_slot *slot) {
    uint32_t number = atomic_fetch_add(&h->tx_count, 1);
    ls_xid xid = {.format_id = 11, .gtrid_bytes = 4, .bqual_bytes = 4};
    uint32_t round = (uint32_t)h->nonce;
    struct call *c;

    memcpy(xid.data, &number, 4);
    memcpy(xid.data + 4, &round, 4);
    h->txs[number].distributed = below(w, 3) != 0;
    slot->tx = number + 1;
    c = call_new(w, BEGIN, NULL, false);
    c->tx = slot->tx;
    call_go(c);
    slot->stage = call_end(w, c, ls_begin(w->store, h->txs[number].distributed ? &xid : NULL, &slot->handle))
                      ? STAGE_ACTIVE
                      : STAGE_NONE;
    tx_handles[number] = slot->handle;
}

/* Another thread that ends the same transaction at the same time. */
struct rival {
    pthread_t thread;
    ls_tx *handle;
    int kind, flags, rc;
};

static inline void *give_rival_outcome(void *context) {
    struct rival *v = context;
    ls_tx_info info;

    v->rc = v->kind == COMMIT ? ls_commit(v->handle, v->flags) : ls_rollback(v->handle, v->flags);
    ls_tx_describe(v->handle, &info);
    return NULL;
}

static inline bool was_given(int rc) { return rc == LS_OK || rc == LS_OUTCOME_UNKNOWN; }

/*
 * Exactly one of the two threads decides the outcome, and the call is recorded as that thread's. A commit competes with a
 * rollback only if the transaction is not prepared: until the call has ended its record says COMMIT, whose absence is a
 * rollback. If both or neither succeed, LS_TRANSACTION_ENDED is recorded, which the check refuses.
 */
static inline int give_contested_outcome(struct worker *w, const struct tx_slot *slot, struct call *c) {
    struct rival rival = {.handle = slot->handle, .kind = c->kind, .flags = wait_flag(c)};
    int rc;

    if (c->kind == COMMIT && slot->stage != STAGE_PREPARED && below(w, 2) == 0)
        rival.kind = ROLLBACK;
    if (pthread_create(&rival.thread, NULL, give_rival_outcome, &rival) != 0)
        abort();
    rc = c->kind == COMMIT ? ls_commit(slot->handle, wait_flag(c)) : ls_rollback(slot->handle, wait_flag(c));
    (void)pthread_join(rival.thread, NULL);
    if (!was_given(rival.rc))
        return rc;
    c->kind = rival.kind;
    return was_given(rc) ? LS_TRANSACTION_ENDED : rival.rc;
}

static inline void give_outcome(struct worker *w, struct tx_slot *slot, bool waited) {
    struct call *c = call_new(w, below(w, 4) == 0 ? ROLLBACK : COMMIT, NULL, waited);
    bool abandoned = c->kind == ROLLBACK && slot->stage != STAGE_PREPARED && below(w, 2) == 0;
    int rc = LS_OK;

    c->tx = slot->tx;
    c->waited = c->waited && !abandoned;
    c->value = abandoned; /* its result is not recorded */
    h->txs[slot->tx - 1].outcome = c;
    call_go(c);
    if (!abandoned && below(w, 3) == 0)
        rc = give_contested_outcome(w, slot, c);
    else if (c->kind == COMMIT)
        rc = ls_commit(slot->handle, wait_flag(c));
    else if (!abandoned)
        rc = ls_rollback(slot->handle, wait_flag(c));
    else {
        tx_handles[slot->tx - 1] = NULL;
        ls_tx_free(slot->handle);
    }
    (void)call_end(w, c, rc);
    if (!abandoned) {
        tx_handles[slot->tx - 1] = NULL;
        ls_tx_free(slot->handle);
    }
    slot->stage = STAGE_NONE;
}

static inline void do_prepare(struct worker *w, struct tx_slot *slot, bool waited) {
    struct call *c = call_new(w, PREPARE, NULL, waited);

    c->tx = slot->tx;
    h->txs[slot->tx - 1].prepare = c;
    call_go(c);
    if (!call_end(w, c, ls_prepare(slot->handle, wait_flag(c)))) {
        slot->stage = STAGE_NONE; /* no thread will decide it */
        return;
    }
    slot->stage = STAGE_PREPARED;
    if (below(w, 2) ==
        0) { /* another thread or this one will decide it later; this thread takes the transaction that was in the mailbox */
        uint32_t other = atomic_exchange(&mailbox, slot->tx);

        slot->stage = STAGE_NONE;
        if (other != 0)
            *slot = (struct tx_slot){.tx = other, .handle = tx_handles[other - 1], .stage = STAGE_PREPARED};
    }
}

static inline void step_tx(struct worker *w, struct tx_slot *slot, bool waited) {
    if (slot->stage == STAGE_NONE && below(w, 3) == 0) {
        uint32_t other = atomic_exchange(&mailbox, 0);

        if (other != 0)
            *slot = (struct tx_slot){.tx = other, .handle = tx_handles[other - 1], .stage = STAGE_PREPARED};
    }
    if (slot->stage == STAGE_NONE) {
        do_begin(w, slot);
    } else if (slot->stage == STAGE_ACTIVE && h->txs[slot->tx - 1].distributed) {
        struct call *c = call_new(w, END, NULL, false);

        c->tx = slot->tx;
        call_go(c);
        slot->stage = call_end(w, c, ls_tx_end(slot->handle)) ? STAGE_ENDED : STAGE_NONE;
    } else if (slot->stage == STAGE_ENDED && below(w, 3) != 0) {
        do_prepare(w, slot, waited);
    } else {
        give_outcome(w, slot, waited);
    }
}

/* ---- queues that the first thread adds and deletes, and all threads publish to ---- */

static inline void do_queue(struct worker *w, bool waited) {
    uint32_t queue = h->dynamic;
    struct call *c;

    if (queue == 0 && next_dynamic == QUEUES_MAX_HERE)
        return;
    if (queue != 0) {
        c = call_new(w, QUEUE_DELETE_CALL, NULL, waited);
        c->queue = queue;
        h->queue_states[queue] = 2; /* the catalog commits first */
        call_go(c);
        (void)call_end(w, c, ls_queue_delete(w->store, queue, wait_flag(c)));
        h->dynamic = 0;
        return;
    }
    queue = next_dynamic++;
    c = call_new(w, QUEUE_ADD, NULL, false);
    c->queue = queue;
    h->queue_states[queue] = 1;
    call_go(c);
    if (call_end(w, c, ls_queue_add(w->store, queue)))
        h->dynamic = queue;
}

/* ---- lists and reads ---- */

static inline void check_places(struct worker *w, uint32_t queue, const struct seen *seen, uint32_t n) {
    struct call *c = call_new(w, CHECK_PLACES, NULL, false);
    uint64_t ids[LISTED_AT_ONCE], positions[LISTED_AT_ONCE];
    uint8_t states[LISTED_AT_ONCE] = {0};
    int rc;

    n = n < LISTED_AT_ONCE ? n : LISTED_AT_ONCE;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = seen[i].id;
        positions[i] = seen[i].position;
    }
    c->queue = queue;
    call_go(c);
    rc = ls_places_check(w->store, queue, ids, positions, n, states);
    for (uint32_t i = 0; rc == LS_OK && i < n; i++) {
        w->record->seen[w->record->seen_count++] =
            (struct seen){.id = ids[i], .position = positions[i], .locked = states[i]};
        c->count++;
    }
    (void)call_end(w, c, rc);
}

static inline void do_list(struct worker *w, int kind) {
    struct thread_record *t = w->record;
    struct call *c = call_new(w, kind, NULL, false);
    ls_cursor *cursor = NULL;
    ls_place places[LISTED_AT_ONCE];
    size_t n = LISTED_AT_ONCE;
    int rc;

    c->queue = any_queue(w);
    call_go(c);
    rc = ls_cursor_open(w->store, c->queue, kind == LIST_ALL ? LS_CURSOR_ALL : LS_CURSOR_OFFER, &cursor);
    while (rc == LS_OK && n == LISTED_AT_ONCE && c->count < LISTED_MAX) {
        rc = ls_cursor_next(cursor, places, LISTED_AT_ONCE, &n);
        for (size_t i = 0; rc == LS_OK && i < n; i++) {
            t->seen[t->seen_count++] =
                (struct seen){.id = places[i].id, .position = places[i].position, .locked = (uint8_t)places[i].locked};
            c->count++;
        }
    }
    ls_cursor_close(cursor);
    c->done = rc == LS_OK && n < LISTED_AT_ONCE; /* the list is complete */
    c->value = ls_durable_lsn(w->store);
    if (call_end(w, c, rc) && c->count > 0)
        check_places(w, c->queue, &t->seen[c->first], c->count);
}

/* `done`: the bytes that were read are right. */
static inline void do_read(struct worker *w) {
    uint32_t place = any_place(w);
    uint8_t into[CONTENT_MAX], expected[CONTENT_MAX], header[HEADER_MAX];
    const struct message_record *m;
    ls_message_info info;
    struct call *c;
    size_t done = 0, header_done = 0;
    int rc;

    if (place == UINT32_MAX)
        return;
    m = &h->messages[h->places[place].message];
    c = call_new(w, READ, NULL, false);
    c->value = h->places[place].message;
    call_go(c);
    rc = ls_message(w->store, m->id, &info);
    rc = rc == LS_OK ? ls_load_header(w->store, m->id, header, sizeof header, &header_done) : rc;
    rc = rc == LS_OK ? ls_load_content(w->store, m->id, 0, into, sizeof into, &done) : rc;
    if (rc == LS_OK) {
        uint8_t expected_header[HEADER_MAX];

        make_content(expected, (uint32_t)c->value, m->content_bytes);
        make_header(expected_header, (uint32_t)c->value);
        c->done = done == m->content_bytes && memcmp(into, expected, done) == 0 && info.content_bytes == done &&
                  header_done == m->header_bytes && memcmp(header, expected_header, header_done) == 0;
    }
    (void)call_end(w, c, rc);
}

/* Takes a checkpoint while the other threads continue. A failure matters only if the store is closed or poisoned. */
static inline int take_checkpoint(ls_store *store) {
    int rc = ls_checkpoint(store, NULL);

    return rc == LS_CLOSED || rc == LS_POISONED ? rc : rc == LS_OUTCOME_UNKNOWN ? LS_POISONED : LS_OK;
}

static inline void do_care(struct worker *w, bool waited) {
    uint32_t choice = below(w, 8);
    struct call *c = call_new(w, choice < 4 ? FORCE : choice < 6 ? MOVE_BASE : LOOK, NULL, true);
    ls_segment_info segments[16];
    uint64_t ids[16];
    ls_stats stats;
    size_t n;
    int rc = LS_OK;

    c->waited = c->kind != LOOK;
    call_go(c);
    if (c->kind == FORCE) {
        rc = ls_force(w->store, 0);
    } else if (c->kind == MOVE_BASE) {
        rc = move_base(w->store);
    } else {
        ls_stats_get(w->store, &stats);
        rc = ls_segments(w->store, segments, 16, &n);
        rc = rc == LS_OK ? ls_in_doubt(w->store, ids, 16, &n) : rc;
        rc = rc == LS_OK && waited ? ls_flush_soon(w->store) : rc;
        rc = rc == LS_OK && !waited ? take_checkpoint(w->store) : rc;
    }
    (void)call_end(w, c, rc);
}

/* ---- a thread's main loop ---- */

static inline void one_call(struct worker *w) {
    struct tx_slot *slot = &w->slots[below(w, SLOTS)];
    struct tx_slot *in = slot->stage == STAGE_ACTIVE && below(w, 2) == 0 ? slot : NULL;
    bool waited = below(w, 3) != 0, crowded = live_guess > LIVE_WANTED;
    uint32_t choice = below(w, 100);

    if (w->number == 0 && below(w, 40) == 0)
        do_queue(w, waited);
    else if (choice < (crowded ? 10u : 30u))
        do_publish(w, in, waited);
    else if (choice < (crowded ? 13u : 35u))
        do_publish_many(w, in, waited);
    else if (choice < (crowded ? 15u : 40u))
        do_stage(w, in, waited);
    else if (choice < 49)
        do_dequeue(w, in, waited);
    else if (choice < 60 && w->acquired_count > 0)
        do_give_back(w, in, waited);
    else if (choice < 60)
        do_acquire(w);
    else if (choice < 66)
        do_dequeue_many(w, in, waited);
    else if (choice < 71)
        do_enqueue_more(w, in, waited);
    else if (choice < 86)
        step_tx(w, slot, waited);
    else if (choice < 88)
        do_list(w, LIST_ALL);
    else if (choice < 90)
        do_list(w, LIST_OFFER);
    else if (choice < 96)
        do_read(w);
    else
        do_care(w, waited);
}

static inline void *thread_main(void *context) {
    struct worker *w = context;

    while (!w->over && room_for_more(w) && w->record->call_count < w->calls_wanted)
        one_call(w);
    return NULL;
}

static inline void start_threads(ls_store *store, uint64_t seed, uint32_t calls_each) {
    mailbox = 0;
    live_guess = 0;
    next_dynamic = STATIC_QUEUES + 1;
    memset(tx_handles, 0, sizeof tx_handles);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.number = i,
                                     .store = store,
                                     .record = &h->threads[i],
                                     .chance = seed * 31 + (uint64_t)i * 7919,
                                     .calls_wanted = calls_each};
        if (pthread_create(&workers[i].thread, NULL, thread_main, &workers[i]) != 0)
            abort();
    }
}

static inline void join_threads(void) {
    for (int i = 0; i < THREADS; i++)
        (void)pthread_join(workers[i].thread, NULL);
}

/* Frees the handles of undecided transactions, after the store is closed or before it is freed. */
static inline void free_handles(void) {
    for (uint32_t i = 0; i < h->tx_count; i++) {
        ls_tx_free(tx_handles[i]);
        tx_handles[i] = NULL;
    }
}

#endif
