/* The checks of history_check.h, continued: listings, reads, refusals, and all of them together. */
#ifndef LOGSTORE_HISTORY_CHECK_CALLS_H
#define LOGSTORE_HISTORY_CHECK_CALLS_H

#include "tests/proof/history_check.h"

/* `a` certainly became visible before `b`. */
static inline bool surely_before(const struct fact *a, const struct fact *b) {
    if (a->visible == b->visible)
        return a->order < b->order;
    return a->sure_from < b->from;
}

/* Checks places in the order of a queue: none is after a place that certainly became visible later. */
static inline void check_order(const uint32_t *places, uint32_t n, const char *where) {
    const struct fact *earliest = NULL; /* of the places behind, the one whose publish ended first */

    for (uint32_t i = n; i > 0; i--) {
        const struct fact *f = &facts.of[places[i - 1]];

        if (f->visible == NULL)
            continue;
        if (earliest != NULL && surely_before(earliest, f))
            violated("order", "%s place %u is before a place that was acknowledged before its own call began", where,
                     places[i - 1]);
        if (i < n && facts.of[places[i]].visible == f->visible && surely_before(&facts.of[places[i]], f))
            violated("order", "%s place %u is before its predecessor of the same call", where, places[i - 1]);
        if (earliest == NULL || f->sure_from < earliest->sure_from)
            earliest = f;
    }
}

static inline void check_offer(const struct call *c, uint32_t place) {
    uint32_t n;
    const struct place_hold *holds = holds_of(place, &n);

    for (uint32_t i = 0; i < n; i++) {
        if (holds[i].from < c->begun && holds[i].to > ended_of(c))
            violated("locks", "place %u was offered while transaction %u held it", place, holds[i].tx);
    }
    /* 0: the thread was killed between the offer and the look at the durable LSN */
    if (c->value != 0 && h->messages[h->places[place].message].id >= c->value)
        violated("invisible", "place %u was offered before it was durable", place);
}

static inline void check_listed(const struct call *c, uint32_t place, const struct seen *s) {
    struct fact *f = &facts.of[place];

    if (f->visible == NULL || f->from > ended_of(c))
        violated("invisible", "place %u is listed before it was visible", place);
    if (f->sure_gone < c->begun)
        violated("invisible", "place %u is listed after it was taken off", place);
    if (f->position != 0 && f->position != s->position + 1)
        violated("positions", "place %u has been at %llu and is at %llu", place, (unsigned long long)(f->position - 1),
                 (unsigned long long)s->position);
    f->position = s->position + 1;
    if (c->kind == LIST_OFFER || c->kind == ACQUIRE)
        check_offer(c, place);
}

/* Checks that a complete list has every place that certainly exists. */
static inline void check_left_out(const struct call *c, const uint8_t *listed) {
    for (uint32_t i = 0; i < h->place_count; i++) {
        if (h->places[i].queue == c->queue && !listed[i] && surely_there(i, c))
            violated("lost", "place %u is on queue %u, but was not listed", i, c->queue);
    }
}

static inline void check_listing(const struct call *c) {
    static uint8_t listed[PLACES_MAX];
    static uint32_t row[SEEN_MAX];
    uint32_t n = 0;
    uint64_t last = 0;

    memset(listed, 0, h->place_count);
    for (uint32_t i = 0; i < c->count; i++) {
        const struct seen *s = &c->by->seen[c->first + i];
        uint32_t message = message_by_id(s->id), place = message != 0 ? place_of(message - 1, c->queue) : 0;

        if (place == 0) { /* its publisher may have died before it got the id */
            continue;
        }
        place--;
        if (c->kind == CHECK_PLACES && s->locked == 0) {
            if (surely_there(place, c))
                violated("lost", "place %u exists, but a check did not find it", place);
            continue;
        }
        check_listed(c, place, s);
        if (c->kind == LIST_ALL && (listed[place] || (i > 0 && s->position <= last))) /* an offer goes back */
            violated("positions", "place %u is listed out of turn", place);
        last = s->position;
        listed[place] = 1;
        row[n++] = place;
    }
    if (c->kind == LIST_ALL)
        check_order(row, n, "while running,");
    if (c->kind == LIST_ALL && c->done != 0)
        check_left_out(c, listed);
}

static inline void check_read(const struct call *c) {
    bool there = false;

    for (uint32_t next = h->messages[c->value].places; next != 0; next = h->places[next - 1].next)
        there = there || surely_there(next - 1, c);
    if (c->rc == LS_OK && c->done == 0)
        violated("content", "message %llu was read with wrong bytes", (unsigned long long)c->value);
    if (c->rc == LS_UNKNOWN_MESSAGE && there)
        violated("lost", "message %llu is on a queue, but a read did not find it", (unsigned long long)c->value);
}

/* ---- acquisitions ---- */

/* One consumer certainly had the place from the end of its ACQUIRE until it began to give it back. */
struct acquisition {
    uint32_t place, count;
    uint64_t from, to;
};

static int compare_acquisitions(const void *a, const void *b) {
    const struct acquisition *x = a, *y = b;

    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}

static inline void check_acquired(void) {
    static struct acquisition all[THREADS * SEEN_MAX];
    uint32_t n = 0;

    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        for (uint32_t i = 0; c->kind == ACQUIRE && c->ended != 0 && i < c->count; i++) {
            const struct seen *s = &c->by->seen[c->first + i];
            uint32_t message = message_by_id(s->id), place = message != 0 ? place_of(message - 1, c->queue) : 0;

            if (s->wrong != 0)
                violated("content", "message %llu was loaded with wrong bytes", (unsigned long long)s->id);
            if (place != 0)
                all[n++] = (struct acquisition){.place = place - 1,
                                                .count = s->count,
                                                .from = c->ended,
                                                .to = s->until != 0 ? (uint64_t)s->until : NEVER};
        }
    }
    qsort(all, n, sizeof *all, compare_acquisitions);
    for (uint32_t i = 0; i < n; i++) {
        bool first = i == 0 || all[i - 1].place != all[i].place;

        if (all[i].count != (first ? 1 : all[i - 1].count + 1))
            violated("acquired", "place %u was acquired with the count %u", all[i].place, all[i].count);
        if (!first && all[i].from < all[i - 1].to && all[i - 1].from < all[i].to)
            violated("acquired", "place %u was acquired by two consumers at the same time", all[i].place);
    }
}

/* ---- refusals ---- */

struct ending {
    const char *name;
    bool closes, poisons; /* while they work */
};

static inline bool may_be_refused(const struct call *c, struct ending e) {
    bool grows = puts_on(c) || c->kind == STAGE || c->kind == APPEND;
    bool is_work = c->kind == BEGIN || ((takes_off(c) || puts_on(c)) && c->tx != 0);

    switch (c->rc) {
    case LS_OK:
        return true;
    case LS_CLOSED:
        return e.closes;
    case LS_POISONED:
    case LS_OUTCOME_UNKNOWN:
    case LS_IO:
        return e.poisons;
    case LS_FULL:
        return grows;
    case LS_TRANSACTION_LIMIT:
        return is_work;
    case LS_UNKNOWN_MESSAGE:
    case LS_NOT_ENQUEUED:
    case LS_MESSAGE_LOCKED:
        return takes_off(c) || c->kind == READ || (c->kind == ENQUEUE && c->rc == LS_UNKNOWN_MESSAGE);
    case LS_UNKNOWN_QUEUE:
        return puts_on(c) || takes_off(c) || is_listing(c);
    case LS_MESSAGE_IN_USE:
    case LS_ALREADY_ENQUEUED:
        return c->kind == ENQUEUE;
    default:
        return false;
    }
}

static inline void check_refusal(const struct call *c, struct ending e) {
    if (c->ended != 0 && !may_be_refused(c, e))
        violated("refused", "a call of kind %d was refused with %d", c->kind, c->rc);
}

/* `told` is the stamp at which the first thread got LS_POISONED. */
static inline void check_poison(const struct call *c, uint64_t told) {
    bool changes = puts_on(c) || takes_off(c) || c->kind == STAGE || c->kind == COMMIT || c->kind == PREPARE ||
                   c->kind == BEGIN || (c->kind == FORCE && c->ended != 0);

    if (changes && c->begun > told && c->ended != 0 && c->rc == LS_OK && c->count > 0)
        violated("poison", "a call of kind %d was acknowledged by a poisoned store", c->kind);
}

static inline void check_calls(struct ending e) {
    uint64_t told = NEVER;

    gather();
    check_removals();
    check_holds();
    check_acquired();
    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        if ((c->rc == LS_POISONED || c->rc == LS_OUTCOME_UNKNOWN) && c->ended != 0 && c->ended < told)
            told = c->ended;
    }
    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        check_refusal(c, e);
        check_poison(c, told);
        for (uint32_t i = 0; takes_off(c) && i < c->count; i++)
            check_taking(c, i);
        if (is_listing(c))
            check_listing(c);
        if (c->kind == READ && c->ended != 0)
            check_read(c);
    }
}

#endif
