/* The threads, continued: consumers, who acquire places of the lasting queues, waiting or not, load them, and settle or release them. */
#ifndef LOGSTORE_HISTORY_CONSUME_H
#define LOGSTORE_HISTORY_CONSUME_H

#include "tests/proof/history_load.h"

enum { WAIT_NS_MAX = 500000 };

static inline bool has_right_bytes(uint32_t number, const uint8_t *header, const uint8_t *content,
                                   const ls_span *span) {
    uint8_t expected[CONTENT_MAX], expected_header[HEADER_MAX];
    const struct message_record *m = &h->messages[number];

    if (span->header_bytes != m->header_bytes || span->content_bytes != m->content_bytes)
        return false;
    make_header(expected_header, number);
    make_content(expected, number, m->content_bytes);
    return memcmp(header, expected_header, span->header_bytes) == 0 &&
           memcmp(content, expected, span->content_bytes) == 0;
}

/* Loads a delivery, whose header tells the number of its message. False: its place has ended, or it stands alone. */
static inline bool identify(struct worker *w, const ls_delivery *d, struct seen *s, uint32_t *number) {
    uint8_t header[HEADER_MAX], into[2 * CONTENT_MAX];
    ls_span span = {.content_at = 0};
    size_t done = 0;

    if (ls_load_acquired(w->store, d, 1, &span, into, sizeof into, &done) == LS_OK && span.content_at != 0) {
        memcpy(number, into + span.header_at, sizeof *number);
        s->wrong = *number >= h->message_count ||
                   !has_right_bytes(*number, into + span.header_at, into + span.content_at, &span);
        return s->wrong == 0;
    }
    if (ls_load_header(w->store, d->id, header, sizeof header, &done) != LS_OK || done < 8)
        return false;
    memcpy(number, header, sizeof *number);
    return true;
}

/* Waits for a moment; sometimes it gives up what it may have got meanwhile, as if it had never asked. */
static inline int acquire_waiting(struct worker *w, uint32_t queue, ls_delivery *into, size_t n, size_t *done) {
    struct timespec now;
    ls_taker *taker;
    int rc = ls_taker_new(w->store, queue, n, NULL, 0, 0, &taker);

    if (rc != LS_OK)
        return rc;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    rc = ls_taker_wait(taker, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + below(w, WAIT_NS_MAX));
    if (rc != LS_OK && rc != LS_WOULD_WAIT)
        violated("refused", "a wait ended with code %d: %s", rc, ls_last_error()->text);
    bool unseen = below(w, 8) == 0;
    rc = ls_taker_end(taker, into, unseen ? LS_UNSEEN : 0, done);
    *done = unseen ? 0 : *done;
    return rc;
}

static inline void do_acquire(struct worker *w) {
    struct thread_record *t = w->record;
    struct call *c = call_new(w, ACQUIRE, NULL, false);
    ls_delivery acquired[ACQUIRED_MAX];
    size_t n = 1 + below(w, ACQUIRED_MAX), done = 0;
    int rc;

    if (w->acquired_count > 0)
        return;
    c->queue = 1 + below(w, STATIC_QUEUES);
    call_go(c);
    rc = below(w, 2) == 0 ? ls_acquire(w->store, c->queue, acquired, n, 0, &done)
                          : acquire_waiting(w, c->queue, acquired, n, &done);
    for (size_t i = 0; i < done; i++) {
        t->seen[t->seen_count++] =
            (struct seen){.id = acquired[i].id, .position = acquired[i].position, .count = acquired[i].count};
        c->count++;
    }
    c->value = ls_durable_lsn(w->store);
    (void)call_end(w, c, rc);
    for (size_t i = 0; i < done; i++) {
        struct acquired *a = &w->acquired[w->acquired_count];
        uint32_t number, place = 0;

        a->delivery = acquired[i];
        a->seen = &t->seen[c->first + i];
        a->queue = c->queue;
        if (identify(w, &acquired[i], a->seen, &number))
            place = h->messages[number].on[c->queue];
        a->place = place - 1;
        w->acquired_count += place != 0;
    }
}

/* Settles or releases what this thread has acquired, all of it or one; sometimes it settles one twice. */
static inline void do_give_back(struct worker *w, struct tx_slot *slot, bool waited) {
    uint32_t n = below(w, 3) == 0 ? w->acquired_count : 1, choice = below(w, 8);
    int kind = choice < 3 ? RELEASE : n == 1 ? DEQUEUE : DEQUEUE_MANY;
    struct acquired *a = &w->acquired[w->acquired_count - n];
    ls_delivery deliveries[ACQUIRED_MAX];
    struct call *c = call_new(w, kind, kind == DEQUEUE ? slot : NULL, waited && kind != RELEASE);
    uint64_t given_back = stamp(), lsn;
    size_t done = 0;
    int rc;

    for (uint32_t i = 0; i < n; i++) {
        a[i].seen->until = given_back;
        deliveries[i] = a[i].delivery;
        call_names(w, c, a[i].place);
    }
    call_go(c);
    if (kind == RELEASE)
        rc = ls_release(w->store, a->queue, deliveries, n, 0);
    else if (kind == DEQUEUE)
        rc = ls_settle(w->store, a->queue, deliveries, c->tx != 0 ? slot->handle : NULL, 1, wait_flag(c), &lsn);
    else
        rc = ls_settle_all(w->store, a->queue, deliveries, n, NULL, 1, wait_flag(c), &done);
    c->done = (uint32_t)done;
    if ((call_end(w, c, rc) || done > 0) && kind != RELEASE)
        mark_taken(c);
    if (kind == DEQUEUE && choice == 7 && !w->over)
        return; /* it is settled again */
    w->acquired_count -= n;
}

#endif
