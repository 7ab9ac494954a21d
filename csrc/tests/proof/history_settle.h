/* The last checks on a store that was opened again: transactions in doubt are decided, then every place is dequeued. */
#ifndef LOGSTORE_HISTORY_SETTLE_H
#define LOGSTORE_HISTORY_SETTLE_H

#include "tests/proof/history_view.h"

static struct row expected_rows[STATIC_QUEUES + 1];

static inline void expect_commit(uint32_t number) {
    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        for (uint32_t i = 0; c->tx == number + 1 && i < c->count; i++) {
            uint32_t place = item_of(c, i), queue = h->places[place].queue;
            struct row *row = queue <= STATIC_QUEUES ? &expected_rows[queue] : NULL;
            uint32_t at = 0;

            if (row == NULL || !item_applied(c, i))
                continue;
            if (puts_on(c)) {
                row->places[row->n++] = place;
                continue;
            }
            while (takes_off(c) && at < row->n && row->places[at] != place)
                at++;
            if (takes_off(c) && at < row->n)
                memmove(&row->places[at], &row->places[at + 1], (--row->n - at) * sizeof *row->places);
        }
    }
}

/* Decides each transaction; the queues must then differ by exactly its operations. */
static inline void settle_in_doubt(ls_store *store, const struct view *v) {
    uint64_t state = v->seed;

    for (uint32_t q = 1; q <= STATIC_QUEUES; q++)
        expected_rows[q] = found.rows[q];
    for (uint32_t i = 0; i < found.in_doubt_count; i++) {
        ls_tx *tx = NULL;
        bool commits = chance_below(&state, 2) != 0;

        if (ls_in_doubt_take(store, found.in_doubt_ids[i], &tx) != LS_OK ||
            (commits ? ls_commit(tx, LS_WAIT) : ls_rollback(tx, LS_WAIT)) != LS_OK)
            violated("prepared", "transaction %u cannot be decided: %s", found.in_doubt[i], ls_last_error()->text);
        ls_tx_free(tx);
        if (commits)
            expect_commit(found.in_doubt[i]);
    }
    read_store(store, v);
    for (uint32_t q = 1; q <= STATIC_QUEUES; q++) {
        if (found.rows[q].n != expected_rows[q].n ||
            memcmp(found.rows[q].places, expected_rows[q].places, found.rows[q].n * sizeof *found.rows[q].places) != 0)
            violated("prepared", "queue %u does not match the outcomes: %u places instead of %u", q, found.rows[q].n,
                     expected_rows[q].n);
    }
    for (uint32_t i = 0; i < h->place_count; i++) {
        if (found.there[i] == 2)
            violated("prepared", "place %u is locked although every transaction is decided", i);
    }
}

static inline void check_fresh_id(ls_store *store, const struct view *v) {
    uint32_t queue = 1;
    uint64_t id = 0, lsn, largest = 0;

    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        for (uint32_t i = 0; puts_on(c) && c->ended != 0 && c->ended < v->from && i < c->done; i++) {
            uint64_t given = h->messages[h->places[item_of(c, i)].message].id;
            largest = given > largest ? given : largest;
        }
    }
    if (ls_publish(store, &queue, 1, NULL, 0, NULL, 0, NULL, 0, &id) != LS_OK || id <= largest)
        violated("fresh-ids", "id %llu was given again, after %llu", (unsigned long long)id,
                 (unsigned long long)largest);
    else if (ls_dequeue(store, id, queue, NULL, 0, 0, 0, &lsn) != LS_OK)
        violated("fresh-ids", "a new message cannot be dequeued: %s", ls_last_error()->text);
}

/* A staged message whose only enqueue was rolled back is staged again, until it is destroyed. */
static inline void destroy_staged(ls_store *store) {
    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        ls_message_info info = {.staged = 0};
        uint32_t message = c->kind == ENQUEUE && c->tx != 0 ? h->places[item_of(c, 0)].message : 0;

        if (c->kind != ENQUEUE || c->tx == 0 || found.fates[c->tx - 1] != IN_DOUBT || found.message_alive[message])
            continue;
        if (ls_message(store, h->messages[message].id, &info) == LS_OK && info.staged != 0 &&
            ls_destroy(store, h->messages[message].id, 0) != LS_OK)
            violated("leak", "message %u cannot be destroyed: %s", message, ls_last_error()->text);
    }
}

static inline void check_leak(ls_store *store, const struct view *v) {
    uint32_t alive = 0;
    uint64_t lsn;
    ls_stats stats;

    destroy_staged(store);
    for (uint32_t i = 0; i < h->message_count; i++)
        alive += found.message_alive[i];
    ls_stats_get(store, &stats);
    if (stats.messages != alive || stats.transactions != 0)
        violated("leak", "%llu messages and %llu transactions live, and %u messages are on queues",
                 (unsigned long long)stats.messages, (unsigned long long)stats.transactions, alive);
    for (uint32_t q = 1; q < QUEUES_MAX_HERE; q++) {
        for (uint32_t i = 0; v->queue_states[q] == 1 && i < found.rows[q].n; i++) {
            const struct message_record *m = &h->messages[h->places[found.rows[q].places[i]].message];

            if (m->id != 0 && ls_dequeue(store, m->id, q, NULL, 0, 0, 0, &lsn) != LS_OK)
                violated("leak", "place %u cannot be dequeued: %s", found.rows[q].places[i], ls_last_error()->text);
            else if (m->id == 0)
                alive = UINT32_MAX; /* no call returned its id, so it cannot be destroyed */
        }
    }
    if (ls_force(store, 0) != LS_OK)
        violated("leak", "the last force failed: %s", ls_last_error()->text);
    ls_stats_get(store, &stats);
    if (alive != UINT32_MAX && (stats.messages != 0 || stats.places != 0))
        violated("leak", "%llu messages and %llu places are left of an empty store", (unsigned long long)stats.messages,
                 (unsigned long long)stats.places);
}

/* `store` NULL: it did not open. */
static inline void check_view(ls_store *store, const struct view *v) {
    if (store == NULL) {
        violated("open", "%s", ls_last_error()->text);
        return;
    }
    judge_view(store, v);
    settle_in_doubt(store, v);
    check_fresh_id(store, v);
    check_leak(store, v);
}

#endif
