/*
 * The checks on a store that was opened again after its threads were interrupted by a close, a poisoned disk, a power cut
 * or SIGKILL. By name:
 *   open       it opens
 *   durable    every acknowledged durable call has its effect
 *   never      a call that was rolled back, refused or not begun has no effect
 *   atomic     of one call, or one transaction, all effects survive or none
 *   prefix     if a call survived, so did every call that had ended before it began
 *   prepared   a prepared transaction is in doubt with all its work, its places locked and its messages invisible; an
 *              outcome given now has exactly the effects of that work
 *   recovered-order   a queue's order is that of acknowledgement, and that of every list made before
 *   recovered-content every byte is as it was written
 *   fresh-ids  no id is given out again
 *   leak       no other message is live, and after every place is dequeued, none at all
 */
#ifndef LOGSTORE_HISTORY_VIEW_H
#define LOGSTORE_HISTORY_VIEW_H

#include "tests/proof/history_check_calls.h"

struct view {
    uint64_t from, to; /* the interruption is between these stamps */
    bool closed;       /* an orderly close: everything acknowledged is durable */
    uint32_t queue_states[QUEUES_MAX_HERE];
    uint64_t seed;
};

enum sureness { NO, MAYBE, SURE };

enum fate { ROLLED_BACK, IN_DOUBT, COMMIT_MAYBE, COMMITTED };

struct row {
    uint32_t places[PLACES_MAX];
    uint32_t n;
};

struct found {
    struct row rows[QUEUES_MAX_HERE];
    uint8_t there[PLACES_MAX]; /* 1: free, 2: locked */
    uint8_t fates[TXS_MAX];
    uint32_t in_doubt[TXS_MAX]; /* numbers */
    uint64_t in_doubt_ids[TXS_MAX];
    uint32_t in_doubt_count;
    uint32_t alive; /* messages on some queue or in doubt */
    uint8_t message_alive[MESSAGES_MAX];
    uint64_t forced_from; /* when the last force that was acknowledged before the interruption began */
};

static struct found found;

/* ---- certainty about a call ---- */

static inline enum sureness call_sureness(const struct call *c, const struct view *v, bool applied, bool unclear) {
    if (c == NULL || c->begun == 0 || c->begun > v->to)
        return NO;
    if (applied && v->closed)
        return SURE;
    if (applied && ended_of(c) < v->from && ((c->waited && c->rc == LS_OK) || c->ended < found.forced_from))
        return SURE;
    return applied || unclear ? MAYBE : NO;
}

static inline enum sureness outcome_sureness(const struct call *c, const struct view *v) {
    return c == NULL ? NO : call_sureness(c, v, call_applied(c), call_unclear(c));
}

/* For one item, with the outcome of its transaction that was found. */
static inline enum sureness item_sureness(const struct call *c, uint32_t item, const struct view *v) {
    if (!item_applied(c, item) && !item_unclear(c, item))
        return NO;
    if (c->tx == 0)
        return call_sureness(c, v, item_applied(c, item), item_unclear(c, item));
    switch (found.fates[c->tx - 1]) {
    case COMMITTED:
        return item_applied(c, item) ? SURE : MAYBE;
    case COMMIT_MAYBE:
        return MAYBE;
    default:
        return NO;
    }
}

/* An abandoned transaction, and a rollback of one that was not certainly prepared, leave no evidence. */
static inline void judge_fate(uint32_t number, bool in_doubt, const struct view *v) {
    const struct tx_record *t = &h->txs[number];
    enum sureness prepared = outcome_sureness(t->prepare, v), outcome = outcome_sureness(t->outcome, v);
    bool commits = t->outcome != NULL && t->outcome->kind == COMMIT;

    if (in_doubt) {
        found.fates[number] = IN_DOUBT;
        if (prepared == NO || outcome == SURE)
            violated("prepared", "transaction %u is in doubt, but was %s", number,
                     prepared == NO ? "never prepared" : "decided");
        if (prepared == MAYBE)
            t->prepare->survived = true;
        if (outcome == MAYBE)
            t->outcome->lost = true;
        return;
    }
    if (prepared == SURE && outcome == NO)
        violated("prepared", "transaction %u was prepared, but is not in doubt", number);
    if (prepared == SURE && outcome == MAYBE)
        t->outcome->survived = true;
    found.fates[number] = !commits || outcome == NO                            ? ROLLED_BACK
                          : outcome == SURE || (prepared == SURE && !in_doubt) ? COMMITTED
                                                                               : COMMIT_MAYBE;
}

static inline void judge_fates(ls_store *store, const struct view *v) {
    static uint8_t in_doubt[TXS_MAX];
    size_t n = 0;

    memset(in_doubt, 0, sizeof in_doubt);
    found.in_doubt_count = 0;
    if (ls_in_doubt(store, found.in_doubt_ids, TXS_MAX, &n) != LS_OK)
        violated("prepared", "the transactions in doubt cannot be listed");
    for (size_t i = 0; i < n; i++) {
        ls_tx_info info = {.id = 0};
        ls_tx *tx = NULL;
        uint32_t number = UINT32_MAX;

        if (ls_in_doubt_take(store, found.in_doubt_ids[i], &tx) == LS_OK) {
            ls_tx_describe(tx, &info);
            memcpy(&number, info.xid.data, 4);
            ls_tx_free(tx);
        }
        if (number >= h->tx_count || in_doubt[number]) {
            violated("prepared", "transaction %u is in doubt, but no thread has prepared it", number);
            continue;
        }
        in_doubt[number] = 1;
        found.in_doubt_ids[found.in_doubt_count] = found.in_doubt_ids[i];
        found.in_doubt[found.in_doubt_count++] = number;
    }
    for (uint32_t i = 0; i < h->tx_count; i++)
        judge_fate(i, in_doubt[i] != 0, v);
}

/* ---- reading the store ---- */

/* The message's number, from its header; UINT32_MAX if header or content has wrong bytes. */
static inline uint32_t recognise(ls_store *store, uint64_t id) {
    static uint8_t into[CONTENT_MAX + 1], expected[CONTENT_MAX + 1];
    uint8_t header[HEADER_MAX], expected_header[HEADER_MAX];
    uint32_t number = UINT32_MAX;
    size_t bytes = 0;
    const struct message_record *m;

    if (ls_load_header(store, id, header, sizeof header, &bytes) != LS_OK || bytes < 8)
        return UINT32_MAX;
    memcpy(&number, header, 4);
    if (number >= h->message_count)
        return UINT32_MAX;
    m = &h->messages[number];
    make_header(expected_header, number);
    make_content(expected, number, m->content_bytes);
    if (bytes != m->header_bytes || memcmp(header, expected_header, bytes) != 0 || (m->id != 0 && m->id != id))
        return UINT32_MAX;
    if (ls_load_content(store, id, 0, into, sizeof into, &bytes) != LS_OK || bytes != m->content_bytes ||
        memcmp(into, expected, bytes) != 0)
        return UINT32_MAX;
    return number;
}

static inline void read_queue(ls_store *store, uint32_t queue, struct row *row) {
    ls_cursor *cursor = NULL;
    ls_place places[64];
    uint64_t depth = 0, locked = 0, counted = 0;
    size_t n = 64;

    row->n = 0;
    if (ls_queue_depth(store, queue, &depth, &locked) != LS_OK ||
        ls_cursor_open(store, queue, LS_CURSOR_ALL, &cursor) != LS_OK) {
        violated("durable", "queue %u cannot be read", queue);
        return;
    }
    while (n == 64 && ls_cursor_next(cursor, places, 64, &n) == LS_OK) {
        for (size_t i = 0; i < n; i++) {
            uint32_t message = recognise(store, places[i].id), place = 0;

            counted++;
            if (message == UINT32_MAX || (place = place_of(message, queue)) == 0) {
                violated("recovered-content", "queue %u has a message with id %llu that was never published there",
                         queue, (unsigned long long)places[i].id);
                continue;
            }
            if (found.there[place - 1] != 0)
                violated("never", "place %u exists twice", place - 1);
            found.there[place - 1] = places[i].locked ? 2 : 1;
            found.message_alive[message] = 1;
            row->places[row->n++] = place - 1;
        }
    }
    ls_cursor_close(cursor);
    if (counted != depth)
        violated("leak", "queue %u has depth %llu but lists %llu places", queue, (unsigned long long)depth,
                 (unsigned long long)counted);
}

static inline void read_store(ls_store *store, const struct view *v) {
    memset(found.there, 0, h->place_count);
    memset(found.message_alive, 0, h->message_count);
    for (uint32_t q = 1; q < QUEUES_MAX_HERE; q++) {
        found.rows[q].n = 0;
        if (v->queue_states[q] == 1)
            read_queue(store, q, &found.rows[q]);
    }
}

/* ---- every place ---- */

static inline void evidence(struct call *c, uint32_t item, bool survived) {
    struct call *by = c->tx != 0 ? h->txs[c->tx - 1].outcome : c;

    if (by == NULL)
        return;
    if (by == c && (c->kind == PUBLISH_MANY || c->kind == DEQUEUE_MANY)) { /* one by one, in their order */
        if (survived && item + 1 > c->last_survived)
            c->last_survived = item + 1;
        if (!survived && item + 1 < c->first_lost)
            c->first_lost = item + 1;
    }
    by->survived = by->survived || survived;
    by->lost = by->lost || !survived;
}

struct removal {
    struct call *call;
    uint32_t item, next; /* 1 + the next of the same place */
    uint32_t place;
};

static struct removal removals[PLACES_MAX * 2];
static uint32_t removal_count, removals_of[PLACES_MAX];

static inline void gather_possible_removals(void) {
    removal_count = 0;
    memset(removals_of, 0, h->place_count * sizeof *removals_of);
    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        for (uint32_t i = 0; takes_off(c) && i < c->count && removal_count < PLACES_MAX * 2; i++) {
            uint32_t place = item_of(c, i);

            if (!item_applied(c, i) && !item_unclear(c, i))
                continue;
            removals[removal_count] =
                (struct removal){.call = c, .item = i, .next = removals_of[place], .place = place};
            removals_of[place] = ++removal_count;
        }
    }
}

static inline void judge_place(uint32_t number, const struct view *v) {
    struct place_record *p = &h->places[number];
    enum sureness put = p->call == NULL ? NO : item_sureness(p->call, p->item, v);
    struct removal *possible = NULL;
    uint32_t n = 0;
    bool gone = false, held = false;

    for (uint32_t next = removals_of[number]; next != 0; next = removals[next - 1].next) {
        struct removal *r = &removals[next - 1];
        enum sureness s = item_sureness(r->call, r->item, v);

        held = held || (r->call->tx != 0 && found.fates[r->call->tx - 1] == IN_DOUBT && item_applied(r->call, r->item));
        if (s == NO)
            continue;
        possible = r;
        n++;
        gone = gone || s == SURE;
        if (found.there[number] != 0)
            evidence(r->call, r->item, false);
    }
    if (found.there[number] != 0) {
        if (put == NO)
            violated("never", "place %u exists, but its enqueue must have no effect", number);
        if (gone)
            violated("durable", "place %u exists, but its dequeue was acknowledged", number);
        if (put == MAYBE)
            evidence(p->call, p->item, true);
        if ((found.there[number] == 2) != held)
            violated("prepared", "place %u is %s", number,
                     held ? "not locked, but a transaction in doubt has dequeued it" : "locked without a transaction");
        return;
    }
    if (put == SURE && n == 0)
        violated("durable", "place %u (message %u, queue %u) is lost", number, p->message, p->queue);
    else if (put == SURE && n == 1)
        evidence(possible->call, possible->item, true);
    else if (put == MAYBE && n == 0)
        evidence(p->call, p->item, false);
}

/* ---- calls against each other ---- */

static inline void judge_calls(void) {
    const struct call *lost = NULL, *survived = NULL;

    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        bool one_by_one = c->tx == 0 && (c->kind == PUBLISH_MANY || c->kind == DEQUEUE_MANY);

        if (c->survived && c->lost && (!one_by_one || c->first_lost < c->last_survived))
            violated("atomic", "a call of kind %d survived in part", c->kind);
        if (c->survived && (survived == NULL || c->begun > survived->begun))
            survived = c;
        if (c->lost && (lost == NULL || ended_of(c) < ended_of(lost)))
            lost = c;
    }
    if (lost != NULL && survived != NULL && ended_of(lost) < survived->begun)
        violated("prefix", "a call of kind %d is lost, but one of kind %d that began after it had ended survived",
                 lost->kind, survived->kind);
}

/* The order must be that of every earlier list. */
static inline void judge_order(const struct view *v) {
    static uint32_t ranks[PLACES_MAX];

    memset(ranks, 0, h->place_count * sizeof *ranks);
    for (uint32_t q = 1; q < QUEUES_MAX_HERE; q++) {
        check_order(found.rows[q].places, found.rows[q].n, "recovered,");
        for (uint32_t i = 0; i < found.rows[q].n; i++)
            ranks[found.rows[q].places[i]] = i + 1;
    }
    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        uint32_t last = 0;

        for (uint32_t i = 0; c->kind == LIST_ALL && c->begun < v->to && i < c->count; i++) {
            uint32_t message = message_by_id(c->by->seen[c->first + i].id);
            uint32_t place = message != 0 ? place_of(message - 1, c->queue) : 0;
            uint32_t rank = place != 0 ? ranks[place - 1] : 0;

            if (rank != 0 && rank <= last)
                violated("recovered-order", "place %u is at another position than it was listed", place - 1);
            last = rank != 0 ? rank : last;
        }
    }
}

static inline void judge_view(ls_store *store, const struct view *v) {
    found.forced_from = 0;
    for (struct call *c = first_call(); c != NULL; c = next_call(c)) {
        c->survived = c->lost = false;
        c->last_survived = 0;
        c->first_lost = UINT32_MAX;
        if (call_applied(c) && c->waited && c->ended < v->from && c->begun > found.forced_from)
            found.forced_from = c->begun;
    }
    judge_fates(store, v);
    gather_possible_removals();
    read_store(store, v);
    for (uint32_t i = 0; i < h->place_count; i++) {
        if (v->queue_states[h->places[i].queue] == 1)
            judge_place(i, v);
    }
    judge_calls();
    judge_order(v);
}

#endif
