/*
 * The checks on the calls alone, without the store that was opened again.
 *
 * A call takes effect at one moment between its two stamps. So a place certainly exists from the end of the call that
 * made it visible to the beginning of the first call that may dequeue it. The checks by name:
 *   refused      no call is refused for an impossible reason
 *   ids          no two messages have the same id
 *   once         no place is dequeued twice, or before it was visible
 *   lost         every list, dequeue and read finds a place that certainly exists
 *   invisible    no list has a place that certainly does not exist; no offer has a place that is not durable
 *   order        if a call was acknowledged before another began, the queue lists its places first
 *   positions    a place never changes its position
 *   locks        one transaction at a time holds a place; a held place is not offered or dequeued; only a held place is
 *                reported as locked
 *   acquired     one consumer at a time has a place, and its count goes up by one each time
 *   content      a read gives the bytes that were written
 *   poison       after a store has reported that it is poisoned, it accepts no change
 */
#ifndef LOGSTORE_HISTORY_CHECK_H
#define LOGSTORE_HISTORY_CHECK_H

#include "tests/proof/history_record.h"

/* The verdict of all calls together about one place. */
struct fact {
    struct call *visible; /* that made it visible, or may have; NULL: none */
    uint64_t order;       /* its index among the places of that call */
    uint64_t from, sure_from;
    uint64_t gone_from,
        sure_gone;     /* when the first call that may have dequeued it began, and the call that did it ended */
    uint32_t removals; /* that were acknowledged */
    uint64_t position;
    uint32_t tx;
};

struct place_hold {
    uint32_t place, tx;
    uint64_t may_from, from, to, may_to;
};

struct facts {
    struct fact of[PLACES_MAX];
    struct place_hold holds[PLACES_MAX];
    uint32_t hold_count;
    uint32_t by_id[MESSAGES_MAX]; /* messages that have one, ascending */
    uint32_t id_count;
};

static struct facts facts;

/* Iterates over every call that was begun: by thread, then in the thread's order. */
static inline struct call *call_from(struct thread_record *t, const struct call *after) {
    for (; t < h->threads + THREADS; t++) {
        uint32_t i = after != NULL ? (uint32_t)(after - t->calls) + 1 : 0;

        after = NULL;
        for (; i < t->call_count; i++) {
            if (t->calls[i].begun != 0)
                return &t->calls[i];
        }
    }
    return NULL;
}

static inline struct call *first_call(void) { return call_from(h->threads, NULL); }

static inline struct call *next_call(const struct call *c) { return call_from(c->by, c); }

static inline uint32_t item_of(const struct call *c, uint32_t i) { return c->by->items[c->first + i]; }

static inline bool takes_off(const struct call *c) { return c->kind == DEQUEUE || c->kind == DEQUEUE_MANY; }

static inline bool puts_on(const struct call *c) {
    return c->kind == PUBLISH || c->kind == PUBLISH_MANY || c->kind == ENQUEUE;
}

/* The call changed, or may have changed, this item. */
static inline bool item_applied(const struct call *c, uint32_t item) { return c->ended != 0 && item < c->done; }

static inline bool item_unclear(const struct call *c, uint32_t item) {
    return c->ended == 0 || (c->rc == LS_OUTCOME_UNKNOWN && (c->done == 0 || item < c->done));
}

static inline struct tx_record *tx_record_of(const struct call *c) { return c->tx == 0 ? NULL : &h->txs[c->tx - 1]; }

/* The call that makes `c` take effect on an item: itself, or its transaction's commit; NULL if it has no effect. */
static inline struct call *counts_by(struct call *c, uint32_t item) {
    const struct tx_record *t = tx_record_of(c);

    if (!item_applied(c, item) && !item_unclear(c, item))
        return NULL;
    if (t == NULL)
        return c;
    if (t->outcome == NULL || t->outcome->kind != COMMIT || t->outcome->begun == 0)
        return NULL;
    return call_applied(t->outcome) || call_unclear(t->outcome) ? t->outcome : NULL;
}

static inline bool counts_surely(const struct call *c, uint32_t item) {
    const struct tx_record *t = tx_record_of(c);

    return item_applied(c, item) && (c->rc == LS_OK || c->done > 0) && (t == NULL || call_applied(t->outcome)) &&
           c->rc != LS_OUTCOME_UNKNOWN;
}

/* ---- gathering ---- */

static int compare_ids(const void *a, const void *b) {
    uint64_t x = h->messages[*(const uint32_t *)a].id, y = h->messages[*(const uint32_t *)b].id;

    return x < y ? -1 : x > y;
}

static inline void gather_ids(void) {
    facts.id_count = 0;
    for (uint32_t i = 0; i < h->message_count; i++) {
        if (h->messages[i].id != 0)
            facts.by_id[facts.id_count++] = i;
    }
    qsort(facts.by_id, facts.id_count, sizeof *facts.by_id, compare_ids);
    for (uint32_t i = 1; i < facts.id_count; i++) {
        if (h->messages[facts.by_id[i]].id == h->messages[facts.by_id[i - 1]].id)
            violated("ids", "two messages have the id %llu", (unsigned long long)h->messages[facts.by_id[i]].id);
    }
}

/* 1 + the message's number, or 0. */
static inline uint32_t message_by_id(uint64_t id) {
    uint32_t low = 0, high = facts.id_count;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (h->messages[facts.by_id[middle]].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < facts.id_count && h->messages[facts.by_id[low]].id == id ? facts.by_id[low] + 1 : 0;
}

/* 1 + the place that this message may have on that queue, or 0. */
static inline uint32_t place_of(uint32_t message, uint32_t queue) {
    uint32_t found = 0;

    for (uint32_t next = h->messages[message].places; next != 0; next = h->places[next - 1].next) {
        if (h->places[next - 1].queue == queue && (found == 0 || facts.of[next - 1].visible != NULL))
            found = next;
    }
    return found;
}

static inline void gather_visibility(void) {
    static uint64_t orders[TXS_MAX];

    memset(orders, 0, h->tx_count * sizeof *orders);
    for (uint32_t i = 0; i < h->place_count; i++)
        facts.of[i] = (struct fact){.from = NEVER, .sure_from = NEVER, .gone_from = NEVER, .sure_gone = NEVER};
    for (struct call *c = first_call(); c != NULL;
         c = next_call(c)) { /* a transaction's calls are one thread's, so they come in their order */
        for (uint32_t i = 0; puts_on(c) && i < c->count; i++) {
            struct fact *f = &facts.of[item_of(c, i)];

            f->visible = counts_by(c, i);
            f->tx = c->tx;
            f->order = c->tx != 0 ? orders[c->tx - 1]++ : i;
            if (f->visible != NULL) {
                f->from = f->visible->begun;
                f->sure_from = counts_surely(c, i) ? f->visible->ended : NEVER;
            }
        }
    }
}

static inline void place_goes(uint32_t number, const struct call *by, bool surely) {
    struct fact *f = &facts.of[number];

    f->gone_from = by->begun < f->gone_from ? by->begun : f->gone_from;
    if (surely) {
        f->sure_gone = by->ended < f->sure_gone ? by->ended : f->sure_gone;
        f->removals++;
    }
}

static inline void gather_removals(void) {
    facts.hold_count = 0;
    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        for (uint32_t i = 0; takes_off(c) && i < c->count; i++) {
            const struct call *by = counts_by(c, i);
            const struct tx_record *t = tx_record_of(c);

            if (by != NULL)
                place_goes(item_of(c, i), by, counts_surely(c, i));
            if (t != NULL && item_applied(c, i) && facts.hold_count < PLACES_MAX) {
                bool heard = t->outcome != NULL && call_applied(t->outcome) && t->outcome->value == 0;

                facts.holds[facts.hold_count++] =
                    (struct place_hold){.place = item_of(c, i),
                                        .tx = c->tx,
                                        .may_from = c->begun,
                                        .from = c->ended,
                                        .to = t->outcome != NULL ? (uint64_t)t->outcome->begun : NEVER,
                                        .may_to = heard ? (uint64_t)t->outcome->ended : NEVER};
            }
        }
    }
    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        for (uint32_t i = 0; c->kind == QUEUE_DELETE_CALL && i < h->place_count; i++) {
            if (h->places[i].queue == c->queue && (call_applied(c) || call_unclear(c))) {
                facts.of[i].gone_from = c->begun < facts.of[i].gone_from ? c->begun : facts.of[i].gone_from;
                if (call_applied(c) && c->ended < facts.of[i].sure_gone)
                    facts.of[i].sure_gone = c->ended;
            }
        }
    }
}

static int compare_holds(const void *a, const void *b) {
    const struct place_hold *x = a, *y = b;

    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static inline void gather(void) {
    gather_ids();
    gather_visibility();
    gather_removals();
    qsort(facts.holds, facts.hold_count, sizeof *facts.holds, compare_holds);
}

/* The first hold of a place, and how many there are. */
static inline struct place_hold *holds_of(uint32_t place, uint32_t *n) {
    uint32_t low = 0, high = facts.hold_count;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (facts.holds[middle].place < place)
            low = middle + 1;
        else
            high = middle;
    }
    *n = 0;
    while (low + *n < facts.hold_count && facts.holds[low + *n].place == place)
        (*n)++;
    return &facts.holds[low];
}

/* ---- single places ---- */

static inline bool surely_there(uint32_t place, const struct call *during) {
    return facts.of[place].sure_from < during->begun && facts.of[place].gone_from > ended_of(during);
}

static inline void check_taking(const struct call *c, uint32_t item) {
    uint32_t place = item_of(c, item), n;
    const struct fact *f = &facts.of[place];
    const struct place_hold *holds = holds_of(place, &n);
    bool held = false, its_own = false; /* a transaction that has dequeued it already does not find it */

    if (item_applied(c, item) && (c->tx == 0 || c->tx != f->tx) && (f->visible == NULL || f->from > ended_of(c)))
        violated("once", "place %u was dequeued before it was visible", place);
    for (uint32_t i = 0; i < n; i++) {
        its_own = its_own || (c->tx != 0 && c->tx == holds[i].tx);
        held = held || (holds[i].may_from < ended_of(c) && holds[i].may_to > c->begun);
        if (item_applied(c, item) && c->tx != holds[i].tx && holds[i].from < c->begun && holds[i].to > ended_of(c))
            violated("locks", "place %u was dequeued by a thread while transaction %u held it", place, holds[i].tx);
    }
    if (c->kind != DEQUEUE || c->ended == 0)
        return;
    if (c->rc == LS_MESSAGE_LOCKED && !held)
        violated("locks", "place %u is reported as locked, but no transaction holds it", place);
    if ((c->rc == LS_UNKNOWN_MESSAGE || c->rc == LS_NOT_ENQUEUED) && surely_there(place, c) && !its_own)
        violated("lost", "place %u exists, but a dequeue did not find it", place);
}

static inline void check_holds(void) {
    for (uint32_t i = 1; i < facts.hold_count; i++) {
        const struct place_hold *a = &facts.holds[i - 1], *b = &facts.holds[i];

        if (a->place == b->place && a->tx != b->tx && b->from < a->to && b->from < b->to && a->from < a->to)
            violated("locks", "transactions %u and %u held place %u at the same time", a->tx, b->tx, a->place);
    }
}

static inline void check_removals(void) {
    for (uint32_t i = 0; i < h->place_count; i++) {
        if (facts.of[i].removals > 1)
            violated("once", "place %u was dequeued %u times", i, facts.of[i].removals);
    }
}

#endif
