/*
 * Places that consumers have acquired, and those that they give back. table/offer.c has the order; take.c acquires out of
 * it; dequeue.c settles.
 *
 * Acquiring writes nothing, and a release writes counts only if that needs no wait (counts.c), so no call waits; takers.c has those that wait for a message. A delivery names its place by
 * message, position and count: after a release and another acquisition the count differs, and a message that is enqueued
 * again has another position.
 */
#include "store/store.h"

enum {
    TENTH_US = 100 * 1000,
    STEP_CHUNKS = 1024, /* chunks of a run that one call of ls_acquisitions looks at */
};

bool delivery_holds(const ls_delivery *d, const struct place *p) {
    return place_position(p) == d->position && offer_is_acquired(p, d->count);
}

int delivery_fail(uint64_t id, uint32_t queue_id) {
    return fail(LS_NOT_ENQUEUED, "message %llu is no longer acquired from queue %u: it was settled before",
                (unsigned long long)id, (unsigned)queue_id);
}

uint32_t acquire_time(const ls_store *store) {
    uint64_t tenths = store->directory.v->monotonic_us(store->directory.v) / TENTH_US;
    return tenths < UINT32_MAX ? (uint32_t)tenths : UINT32_MAX;
}

/* A chunk of which places are acquired. */
struct step {
    struct timed_chunk of;
    ls_delivery *into;
    uint8_t slots[CHUNK_PLACES];
};

/* Returns the bytes of their contents. */
static uint64_t deliver(const struct table *t, const struct queue *q, const struct step *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->of.places; i++) {
        const struct place p = {.at.chunk = s->of.chunk, .slot = s->slots[i], .queue_id = q->id};
        const struct message *m = table_message(t, place_entry(&p)->message);
        s->into[i] = delivery_of(m, &p, offer_count(&p));
        bytes += s->into[i].content_bytes;
    }
    return bytes;
}

/* Places that came back in chunks with times. Each chunk takes the steps of offer.h, and the others take theirs between. */
__attribute__((noinline)) static size_t acquire_timed(const ls_store *store, struct queue *q, ls_delivery *into,
                                                      size_t n) {
    enum { STEPS = 8, FETCH = 2, ACQUIRE = 4, DELIVER = 6 };
    const struct table *t = &store->state.table;
    uint32_t tenths = acquire_time(store);
    struct step steps[STEPS];
    struct tally acquired = {.places = 0};
    size_t count = SIZE_MAX; /* of chunks; not known yet */
    for (size_t i = 0; i < count || i - count < DELIVER; i++) {
        struct step *next = &steps[i % STEPS];
        if (i < count && offer_take_chunk(q, n - acquired.places, &next->of)) {
            next->into = into + acquired.places;
            acquired.places += next->of.places;
        } else if (i < count) {
            count = i;
        }
        if (i >= FETCH && i - FETCH < count) {
            offer_fetch_chunk(&steps[(i - FETCH) % STEPS].of);
        }
        if (i >= ACQUIRE && i - ACQUIRE < count) {
            struct step *s = &steps[(i - ACQUIRE) % STEPS];
            offer_acquire_chunk(t, &s->of, tenths, s->slots);
        }
        if (i >= DELIVER && i - DELIVER < count) {
            acquired.bytes += deliver(t, q, &steps[(i - DELIVER) % STEPS]);
        }
    }
    queue_tally_all(q, &acquired, STANDING_READY, STANDING_ACQUIRED);
    return acquired.places;
}

/* False: there was no memory for more. */
__attribute__((noinline)) static bool acquire_each(const ls_store *store, struct queue *q, ls_delivery *into, size_t n,
                                                   size_t *done) {
    const struct table *t = &store->state.table;
    struct place p;
    uint64_t durable_lsn = log_durable_lsn(store->log);
    uint32_t tenths = 0;
    size_t acquired = 0;
    bool ready = true;
    while (acquired < n && offer_find(q, durable_lsn, &p)) {
        ready = p.at.chunk->handed_out != NULL || offer_prepare(&p);
        if (!ready) {
            break;
        }
        tenths = acquired == 0 ? acquire_time(store) : tenths;
        const struct message *m = table_message(t, place_entry(&p)->message);
        uint32_t count = offer_acquire(q, &p, m, tenths);
        into[acquired++] = delivery_of(m, &p, count);
    }
    *done = acquired;
    return ready;
}

int acquire_from(const ls_store *store, struct queue *q, ls_delivery *into, size_t n, size_t *done) {
    size_t timed = offer_is_timed(q) ? acquire_timed(store, q, into, n) : 0;
    bool ready = acquire_each(store, q, into + timed, n - timed, done);
    *done += timed;
    return *done == 0 && !ready ? fail_memory() : LS_OK;
}

int ls_acquire(ls_store *store, uint32_t queue_id, ls_delivery *into, size_t n, int flags, size_t *done) {
    *done = 0;
    int rc = store_try(store, flags);
    if (rc != LS_OK) {
        return rc;
    }
    store_times(store);
    rc = store_check_queues(store, &queue_id, 1);
    if (rc == LS_OK) {
        rc = acquire_from(store, table_queue(&store->state.table, queue_id), into, n, done);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

struct place *delivery_place(const struct table *t, uint32_t queue_id, const ls_delivery *d, struct message **m) {
    uint32_t number = table_find_at(t, d->number, d->id);
    *m = number != INDEX_NONE ? table_message(t, number) : NULL;
    struct place *p = *m != NULL ? message_place(*m, queue_id) : NULL;
    return p != NULL && place_position(p) == d->position ? p : NULL;
}

void acquire_give_back(const ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, bool unseen) {
    const struct table *t = &store->state.table;
    for (size_t i = 0; i < n; i++) {
        struct message *m;
        struct place *p = delivery_place(t, queue_id, &deliveries[i], &m);
        if (p != NULL && delivery_holds(&deliveries[i], p)) { /* false if the list has it twice */
            offer_give_back(p, m, unseen);
        }
    }
}

int release_check(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n) {
    const struct table *t = &store->state.table;
    int rc = store_check_queues(store, &queue_id, 1);
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        struct message *m;
        const struct place *p = delivery_place(t, queue_id, &deliveries[i], &m);
        rc = p == NULL || delivery_holds(&deliveries[i], p) ? LS_OK : delivery_fail(deliveries[i].id, queue_id);
    }
    return rc;
}

int ls_release(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, int flags) {
    int rc = store_try(store, flags);
    if (rc != LS_OK) {
        return rc;
    }
    rc = release_check(store, queue_id, deliveries, n);
    if (rc == LS_OK) {
        acquire_give_back(store, queue_id, deliveries, n, (flags & LS_UNSEEN) != 0);
        counts_note(store, queue_id, deliveries, (flags & LS_UNSEEN) != 0 ? 0 : n);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

struct clocks {
    uint64_t wall_us, monotonic_us;
};

/* From a time of the monotonic clock to that of the wall clock. */
static uint64_t wall_us(const struct clocks *now, uint32_t tenths) {
    uint64_t since_us = (uint64_t)tenths * TENTH_US;
    uint64_t ago_us = now->monotonic_us > since_us ? now->monotonic_us - since_us : 0;
    return now->wall_us > ago_us ? now->wall_us - ago_us : 0;
}

static void list_acquired(const ls_store *store, struct cursor *c, ls_acquisition *into, size_t n, size_t *done) {
    vfs *v = store->directory.v;
    const struct clocks now = {.wall_us = v->now_us(v), .monotonic_us = v->monotonic_us(v)};
    for (unsigned chunks = 0; c->chunk != NULL && *done < n && chunks < STEP_CHUNKS;) {
        if (c->chunk->handed_out == NULL || c->slot >= c->chunk->used) {
            c->chunk = c->chunk->next;
            c->slot = 0;
            chunks++;
            continue;
        }
        const struct entry *e = &c->chunk->entries[c->slot];
        if ((e->state & ENTRY_ACQUIRED) != 0) {
            const struct hand_out *h = &c->chunk->handed_out[c->slot];
            into[(*done)++] = (ls_acquisition){
                .position = c->chunk->first_position + c->slot,
                .id = table_message(&store->state.table, e->message)->id,
                .since_us = wall_us(&now, h->since_tenths),
                .count = h->count,
                .locked = (e->state & ENTRY_LOCKED) != 0,
            };
        }
        c->slot++;
    }
}

int ls_acquisitions(ls_store *store, uint32_t queue_id, uint64_t *from, ls_acquisition *into, size_t n, size_t *done) {
    *done = 0;
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    rc = store_check_queues(store, &queue_id, 1);
    if (rc == LS_OK) {
        struct queue *q = table_queue(&store->state.table, queue_id);
        struct cursor c = {.queue = q}; /* in no list: used only while the lock is held */
        cursor_seek(&c, q, *from);
        list_acquired(store, &c, into, n, done);
        *from = c.chunk != NULL ? c.chunk->first_position + c.slot : UINT64_MAX;
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
