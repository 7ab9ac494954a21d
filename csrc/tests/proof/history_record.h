/*
 * The record of all calls that many threads made on one store, for the checks: each call with its arguments, a stamp
 * before it began and one after it returned, both from one counter.
 *
 * It is in memory that a forked child shares, so that a parent can read the history of a killed process. Each field is
 * written by one thread; a call was begun if `begun` is not 0, and has returned if `ended` is not 0.
 */
#ifndef LOGSTORE_HISTORY_RECORD_H
#define LOGSTORE_HISTORY_RECORD_H

#include <assert.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "logstore.h"

enum {
    THREADS = 6,
    CALLS_MAX = 4000,    /* of one thread */
    ITEMS_MAX = 1 << 16, /* places that one thread's calls name */
    SEEN_MAX = 1 << 16,  /* what one thread's listings showed */
    MESSAGES_MAX = 40000,
    PLACES_MAX = 60000,
    TXS_MAX = 8000,
    STATIC_QUEUES = 4,
    QUEUES_MAX_HERE = 64, /* including those that are added and deleted */
    CONTENT_MAX = 24000,
    HEADER_MAX = 64,
};

#define NEVER UINT64_MAX

enum call_kind {
    PUBLISH = 1, /* on one queue or several: one record or a chain of records, all or none */
    PUBLISH_MANY,
    STAGE,
    APPEND,
    ENQUEUE,
    DESTROY,
    DEQUEUE,
    DEQUEUE_MANY,
    BEGIN,
    END,
    PREPARE,
    COMMIT,
    ROLLBACK,
    QUEUE_ADD,
    QUEUE_DELETE_CALL,
    LIST_ALL,
    LIST_OFFER,
    CHECK_PLACES,
    READ,
    FORCE,
    MOVE_BASE,
    ACQUIRE,
    RELEASE,
    LOOK, /* reads statistics, segments, transactions in doubt */
};

/* One place that a listing showed, or that was acquired. */
struct seen {
    uint64_t id;
    uint64_t position;
    _Atomic uint64_t until; /* acquired: the stamp before it was settled or released; 0: it still is */
    uint32_t count;         /* acquired: how often */
    uint8_t locked;         /* of a check: 0 gone, 1 there, 2 locked */
    uint8_t wrong;          /* acquired: it was loaded with other bytes */
};

struct call {
    _Atomic uint64_t begun, ended;
    int kind, rc;
    bool waited;
    bool survived, lost;                /* for one recovered store: the evidence of this call */
    uint32_t tx;                        /* 1 + its number, or 0 */
    uint32_t queue;                     /* of lists, and of queues that are added and deleted */
    uint32_t first, count, done;        /* in the thread's items, or in the places it has listed */
    uint64_t value;                     /* the durable LSN after an offer; the message that was read */
    uint32_t first_lost, last_survived; /* items finished, for calls that do them one by one */
    struct thread_record *by;
};

/* Here a message is enqueued on a queue at most once, so (message, queue) identifies a place. */
struct place_record {
    uint32_t message, queue;
    uint32_t item;     /* its index among the items of its call */
    uint32_t next;     /* 1 + the next place of this message, or 0 */
    struct call *call; /* the call that made it, at once or pending */
    _Atomic uint8_t
        state; /* for threads that look for a place to dequeue: 0 not visible yet, PLACE_READY, PLACE_TAKEN */
};

enum { PLACE_READY = 1, PLACE_TAKEN = 2 };

struct message_record {
    _Atomic uint64_t id;
    uint32_t content_bytes, header_bytes;
    uint32_t tried;                         /* queues, by bit */
    uint32_t places;                        /* 1 + the first, or 0 */
    _Atomic uint32_t on[STATIC_QUEUES + 1]; /* by queue: 1 + the place, or 0 */
};

struct tx_record {
    bool distributed;
    struct call *prepare, *outcome;
};

struct thread_record {
    struct call calls[CALLS_MAX];
    _Atomic uint32_t call_count;
    uint32_t items[ITEMS_MAX];
    uint32_t item_count;
    struct seen seen[SEEN_MAX];
    uint32_t seen_count;
};

struct history {
    _Atomic uint64_t clock;
    _Atomic uint32_t message_count, place_count, tx_count;
    _Atomic uint32_t queue_states[QUEUES_MAX_HERE]; /* in the catalog: 0 never, 1 present, 2 deleted */
    _Atomic uint32_t dynamic;                       /* the queue that is added and deleted, or 0 */
    uint64_t nonce;                                 /* number of this round; contents differ between rounds */
    struct message_record messages[MESSAGES_MAX];
    struct place_record places[PLACES_MAX];
    struct tx_record txs[TXS_MAX];
    struct thread_record threads[THREADS];
};

static struct history *h;

static inline void history_new(void) {
    h = mmap(NULL, sizeof *h, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (h == MAP_FAILED)
        abort();
}

/* Forgets the previous round, in time proportional to its calls. */
static inline void history_reset(uint64_t nonce) {
    for (int i = 0; i < THREADS; i++) {
        struct thread_record *t = &h->threads[i];

        memset(t->calls, 0, t->call_count * sizeof *t->calls);
        t->call_count = t->item_count = t->seen_count = 0;
    }
    memset(h->messages, 0, h->message_count * sizeof *h->messages);
    memset(h->places, 0, h->place_count * sizeof *h->places);
    memset(h->txs, 0, h->tx_count * sizeof *h->txs);
    h->message_count = h->place_count = h->tx_count = 0;
    for (int i = 0; i < QUEUES_MAX_HERE; i++)
        h->queue_states[i] = i >= 1 && i <= STATIC_QUEUES;
    h->dynamic = 0;
    h->clock = 1;
    h->nonce = nonce;
}

static inline uint64_t stamp(void) { return atomic_fetch_add(&h->clock, 1); }

static inline uint64_t ended_of(const struct call *c) { return c->ended == 0 ? NEVER : c->ended; }

/* It changed the store, or the outcome is unknown. */
static inline bool call_applied(const struct call *c) { return c->ended != 0 && c->rc == LS_OK; }

static inline bool call_unclear(const struct call *c) { return c->ended == 0 || c->rc == LS_OUTCOME_UNKNOWN; }

static inline bool is_listing(const struct call *c) {
    return c->kind == LIST_ALL || c->kind == LIST_OFFER || c->kind == CHECK_PLACES || c->kind == ACQUIRE;
}

/* ---- random numbers and contents ---- */

static inline uint64_t next_chance(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static inline uint32_t chance_below(uint64_t *state, uint32_t n) { return (uint32_t)(next_chance(state) % n); }

static inline void fill_bytes(uint8_t *into, uint64_t seed, size_t bytes) {
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;

    for (size_t i = 0; i < bytes; i++)
        into[i] = (uint8_t)next_chance(&state);
}

/* A header begins with the message's number and the round, so that a message that is found can be identified. */
static inline void make_header(uint8_t into[HEADER_MAX], uint32_t number) {
    uint32_t round = (uint32_t)h->nonce;

    fill_bytes(into, number ^ h->nonce, HEADER_MAX);
    memcpy(into, &number, 4);
    memcpy(into + 4, &round, 4);
}

static inline void make_content(uint8_t *into, uint32_t number, size_t bytes) {
    fill_bytes(into, (number + UINT64_C(0x100000000)) ^ h->nonce, bytes);
}

/* ---- verdicts ---- */

struct judge {
    const char *without; /* names, separated by commas */
    bool stop_at_first;
    uint64_t violations;
    uint64_t seed, round;
    const char *ending;
    uint64_t told;
    const char *expected; /* for a forgery: only this check's verdict matters */
    bool noticed;
    void (*clean_up)(void); /* taken before an ending during the work; or NULL */
};

static struct judge judge;

static inline bool judges(const char *check) {
    size_t n = strlen(check);

    for (const char *at = judge.without; at != NULL && *at != '\0'; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, check, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return false;
    }
    return true;
}

__attribute__((format(printf, 2, 3))) static inline void violated(const char *check, const char *format, ...) {
    va_list arguments;

    if (!judges(check))
        return;
    if (judge.expected != NULL) {
        judge.noticed = judge.noticed || strcmp(check, judge.expected) == 0;
        return;
    }
    judge.violations++;
    if (judge.told++ < 20) {
        printf("VIOLATION of %s in round %llu (%s, seed %llu): ", check, (unsigned long long)judge.round, judge.ending,
               (unsigned long long)judge.seed);
        va_start(arguments, format);
        (void)vprintf(format, arguments);
        va_end(arguments);
        printf("\n");
    }
    if (judge.stop_at_first) {
        printf("{\"tool\":\"history\",\"violations\":1,\"killed_by\":\"%s\"}\n", check);
        (void)fflush(stdout);
        if (judge.clean_up != NULL)
            judge.clean_up();
        _Exit(1);
    }
}

#endif
