/*
 * Proves that each check works: a forgery changes the record of a small round, or its store, so that one check is violated;
 * that check must detect it.
 */
#ifndef LOGSTORE_HISTORY_FORGE_H
#define LOGSTORE_HISTORY_FORGE_H

#include "tests/proof/history_load_rest.h"
#include "tests/proof/history_settle.h"

struct forgery {
    const char *check;   /* the check that must detect it */
    bool (*forge)(void); /* false: this round has nothing to forge */
    bool (*change)(ls_store *store);
    bool all_unclear; /* the store is judged as if the power was cut at the very beginning */
};

typedef bool call_fits(const struct call *c);

static inline struct call *find_call(call_fits *fits, struct call *from) {
    for (struct call *c = from == NULL ? first_call() : next_call(from); c != NULL; c = next_call(c)) {
        if (fits(c))
            return c;
    }
    return NULL;
}

static inline bool acknowledged(const struct call *c) { return call_applied(c) && c->tx == 0 && c->waited; }

static inline bool is_publish(const struct call *c) { return c->kind == PUBLISH && acknowledged(c) && c->count == 1; }

/* A place of a message that is only on this queue, and still exists. */
static inline bool is_lasting(const struct call *c) {
    uint32_t place = is_publish(c) ? item_of(c, 0) : 0;

    return is_publish(c) && facts.of[place].gone_from == NEVER && h->places[place].queue <= STATIC_QUEUES &&
           h->places[place].next == 0 && h->messages[h->places[place].message].places == place + 1;
}

static inline bool is_fan_out(const struct call *c) {
    uint32_t first = c->kind == PUBLISH && acknowledged(c) && c->count == 2 ? item_of(c, 0) : 0;

    return c->kind == PUBLISH && acknowledged(c) && c->count == 2 && facts.of[first].gone_from == NEVER &&
           facts.of[item_of(c, 1)].gone_from == NEVER && h->places[first].queue <= STATIC_QUEUES &&
           h->places[item_of(c, 1)].queue <= STATIC_QUEUES;
}

static inline bool is_taking(const struct call *c) { return c->kind == DEQUEUE && acknowledged(c); }

static inline bool is_taking_in_tx(const struct call *c) {
    return c->kind == DEQUEUE && call_applied(c) && c->tx != 0 && tx_record_of(c)->outcome != NULL;
}

static inline bool is_full_list(const struct call *c) { return c->kind == LIST_ALL && c->rc == LS_OK && c->count > 20; }

static inline bool is_read(const struct call *c) { return c->kind == READ && c->rc == LS_OK; }

/* ---- histories ---- */

static inline bool forge_refused(void) {
    struct call *c = find_call(is_publish, NULL);

    if (c != NULL)
        c->rc = LS_NO_MEMORY;
    return c != NULL;
}

static inline bool forge_ids(void) {
    if (facts.id_count < 2)
        return false;
    h->messages[facts.by_id[0]].id = h->messages[facts.by_id[1]].id;
    return true;
}

static inline bool forge_once(void) {
    struct call *a = find_call(is_taking, NULL), *b = a != NULL ? find_call(is_taking, a) : NULL;

    if (b != NULL)
        b->by->items[b->first] = item_of(a, 0);
    return b != NULL;
}

static inline bool forge_lost(void) {
    struct call *c = find_call(is_full_list, NULL);
    bool any = c != NULL;

    for (; c != NULL; c = find_call(is_full_list, c))
        c->count /= 2;
    return any;
}

static inline bool forge_invisible(void) {
    const struct call *c = find_call(is_full_list, NULL);
    uint32_t message = c != NULL ? message_by_id(c->by->seen[c->first].id) : 0;
    uint32_t place = message != 0 ? place_of(message - 1, c->queue) : 0;

    if (place == 0)
        return false;
    facts.of[place - 1].visible->begun = facts.of[place - 1].visible->ended = h->clock; /* long after a list had it */
    return true;
}

static inline bool swap_listed(void) {
    for (struct call *c = find_call(is_full_list, NULL); c != NULL; c = find_call(is_full_list, c)) {
        struct seen *row = &c->by->seen[c->first], first = row[0];

        row[0] = row[c->count - 1];
        row[c->count - 1] = first;
    }
    return find_call(is_full_list, NULL) != NULL;
}

static inline bool forge_positions(void) {
    struct call *c = find_call(is_full_list, NULL);

    if (c != NULL)
        c->by->seen[c->first].position += 1;
    return c != NULL;
}

/* One transaction dequeues a place while another one holds it. */
static inline bool forge_locks(void) {
    for (struct call *a = find_call(is_taking_in_tx, NULL); a != NULL; a = find_call(is_taking_in_tx, a)) {
        for (struct call *b = find_call(is_taking_in_tx, NULL); b != NULL; b = find_call(is_taking_in_tx, b)) {
            if (a->tx != b->tx && b->begun > a->ended && b->ended < tx_record_of(a)->outcome->begun) {
                b->by->items[b->first] = item_of(a, 0);
                return true;
            }
        }
    }
    return false;
}

static inline bool is_acquiring(const struct call *c) { return c->kind == ACQUIRE && c->rc == LS_OK && c->count > 0; }

static inline bool forge_acquired(void) {
    bool any = false;

    for (struct call *c = find_call(is_acquiring, NULL); c != NULL; c = find_call(is_acquiring, c)) {
        for (uint32_t i = 0; i < c->count; i++)
            c->by->seen[c->first + i].until = NEVER - 1;
        any = true;
    }
    return any;
}

static inline bool forge_content(void) {
    struct call *c = find_call(is_read, NULL);

    if (c != NULL)
        c->done = 0;
    return c != NULL;
}

static inline bool forge_poison(void) {
    struct call *c = find_call(is_publish, NULL);

    if (c != NULL)
        c->rc = LS_POISONED;
    return c != NULL;
}

/* ---- the store compared with its history ---- */

static inline bool forge_durable(void) {
    struct call *c = find_call(is_taking, NULL);

    if (c != NULL) {
        c->rc = LS_NOT_ENQUEUED;
        c->done = 0;
    }
    return c != NULL;
}

static inline bool forge_never(void) {
    struct call *c = find_call(is_lasting, NULL);

    if (c != NULL) {
        c->rc = LS_FULL;
        c->done = 0;
    }
    return c != NULL;
}

/* The record names a queue other than the message's. */
static inline void misplace(uint32_t place) { h->places[place].queue = 1 + h->places[place].queue % STATIC_QUEUES; }

static inline bool forge_atomic(void) {
    struct call *c = find_call(is_fan_out, NULL);

    for (; c != NULL; c = find_call(is_fan_out, c)) {
        uint32_t to = 1 + h->places[item_of(c, 0)].queue % STATIC_QUEUES;

        if (to != h->places[item_of(c, 1)].queue) {
            misplace(item_of(c, 0));
            return true;
        }
    }
    return false;
}

static inline bool forge_prefix(void) {
    struct call *c = find_call(is_lasting, NULL);

    if (c != NULL)
        misplace(item_of(c, 0));
    return c != NULL;
}

static inline bool forge_prepared(void) {
    for (uint32_t i = 0; i < h->tx_count; i++) {
        if (h->txs[i].prepare != NULL && call_applied(h->txs[i].prepare) && h->txs[i].outcome == NULL) {
            h->txs[i].prepare = NULL;
            return true;
        }
    }
    return false;
}

static inline bool forge_recovered_content(void) {
    struct call *c = find_call(is_lasting, NULL);

    if (c != NULL)
        h->messages[h->places[item_of(c, 0)].message].content_bytes ^= 1;
    return c != NULL;
}

static inline bool forge_fresh_ids(void) {
    struct call *c = find_call(is_taking, NULL);

    if (c != NULL)
        h->messages[h->places[item_of(c, 0)].message].id = UINT64_MAX / 2;
    return c != NULL;
}

static inline bool stage_one_more(ls_store *store) {
    uint64_t id;

    return ls_stage(store, NULL, 0, NULL, 0, 0, &id) == LS_OK;
}

static const struct forgery forgeries[] = {
    {.check = "refused", .forge = forge_refused},
    {.check = "ids", .forge = forge_ids},
    {.check = "once", .forge = forge_once},
    {.check = "lost", .forge = forge_lost},
    {.check = "invisible", .forge = forge_invisible},
    {.check = "order", .forge = swap_listed},
    {.check = "positions", .forge = forge_positions},
    {.check = "locks", .forge = forge_locks},
    {.check = "acquired", .forge = forge_acquired},
    {.check = "content", .forge = forge_content},
    {.check = "poison", .forge = forge_poison},
    {.check = "durable", .forge = forge_durable},
    {.check = "never", .forge = forge_never},
    {.check = "atomic", .forge = forge_atomic, .all_unclear = true},
    {.check = "prefix", .forge = forge_prefix, .all_unclear = true},
    {.check = "prepared", .forge = forge_prepared},
    {.check = "recovered-order", .forge = swap_listed},
    {.check = "recovered-content", .forge = forge_recovered_content},
    {.check = "fresh-ids", .forge = forge_fresh_ids},
    {.check = "leak", .change = stage_one_more},
};

enum { FORGERIES = sizeof forgeries / sizeof *forgeries };

#endif
