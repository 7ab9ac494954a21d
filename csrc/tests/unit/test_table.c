/* The index against a plain array, through growth and shrinking; queues and cursors against a plain list. */
#include "table/offer.h"

#include "logstore.h"
#include "tests/kit/vfs_test.h"

enum { KEYS = 200000, RUN = 3000 };

static uint64_t keys[KEYS];

static uint64_t key_of(const void *context, uint32_t number) {
    (void)context;
    return keys[number];
}

/* Keys as LSNs are: multiples of 8, rising. Some removals leave the old slots behind, some the new ones. */
static void the_index_finds_exactly_its_keys(bool by_lsn) {
    static bool in[KEYS];
    struct index x;
    uint64_t c = 1, count = 0;

    if (by_lsn)
        index_init_by_lsn(&x, key_of, NULL);
    else
        index_init(&x, key_of, NULL);
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = 65536 + i * UINT64_C(8) * (1 + i % 3 * 0) + (uint64_t)(i / 1000) * 65536 * 7;
    memset(in, 0, sizeof in);
    check(index_find(&x, keys[0]) == INDEX_NONE);
    for (int round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < KEYS; i++) {
            uint32_t other = (uint32_t)(chance(&c) % KEYS);

            if (!in[i] && chance(&c) % 4 != 0) {
                require(index_prepare(&x, 1));
                index_insert(&x, keys[i], i);
                in[i] = true;
                count++;
            }
            if (in[other] && (round % 2 == 1 || chance(&c) % 2 == 0)) {
                index_remove(&x, keys[other], other);
                in[other] = false;
                count--;
            }
            if (i % 64 == 0) {
                check(index_find(&x, keys[other]) == (in[other] ? other : INDEX_NONE));
                check(index_find(&x, keys[i] + 1) == INDEX_NONE);
                index_prefetch(&x, keys[other]);
                check(index_likely(&x, keys[other]) == INDEX_NONE || index_likely(&x, keys[other]) < KEYS);
            }
        }
        check(x.count == count);
        for (uint32_t i = 0; i < KEYS; i++)
            check(index_find(&x, keys[i]) == (in[i] ? i : INDEX_NONE));
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        if (in[i])
            index_remove(&x, keys[i], i);
    }
    check(x.count == 0 && index_find(&x, keys[5]) == INDEX_NONE);
    index_free(&x);
}

/* The hash of index.c, to find keys with the same home slot. */
static uint64_t hash_of(uint64_t key) {
    key ^= key >> 32;
    key *= UINT64_C(0x9E3779B97F4A7C15);
    return key ^ (key >> 29);
}

/* Many keys have the same few home slots, so that most are far from theirs, and some wrap round the end. */
static void the_index_finds_keys_far_from_their_home_slot(void) {
    enum { CROWD = 700, SLOTS = 1024 };
    static bool in[CROWD];
    struct index x;
    uint64_t c = 3, key = 0, count = 0;

    for (uint32_t i = 0; i < CROWD; i++) {
        do
            key += 8;
        while (hash_of(key) % SLOTS < SLOTS - 2 - i % 2 * 400 || hash_of(key) % SLOTS > SLOTS - 1 - i % 2 * 400);
        keys[i] = key;
    }
    memset(in, 0, sizeof in);
    index_init(&x, key_of, NULL);
    require(index_prepare(&x, CROWD));
    require(x.mask == SLOTS - 1);
    for (int step = 0; step < 20000; step++) {
        uint32_t i = (uint32_t)(chance(&c) % CROWD), other = (uint32_t)(chance(&c) % CROWD);

        if (in[i] && chance(&c) % 100 < (step / 2000 % 2 == 0 ? 20 : 80)) {
            index_remove(&x, keys[i], i);
            in[i] = false;
            count--;
        } else if (!in[i]) {
            require(index_prepare(&x, 1));
            index_insert(&x, keys[i], i);
            in[i] = true;
            count++;
        }
        check(index_find(&x, keys[i]) == (in[i] ? i : INDEX_NONE));
        check(index_find(&x, keys[other]) == (in[other] ? other : INDEX_NONE));
        check(index_find(&x, keys[other] + 1) == INDEX_NONE);
        if (step % 500 == 0) {
            for (uint32_t j = 0; j < CROWD; j++)
                check(index_find(&x, keys[j]) == (in[j] ? j : INDEX_NONE));
        }
    }
    check(x.count == count);
    require(index_prepare(&x, SLOTS)); /* grown in the middle: half of it is found in the old slots, half in the new */
    for (uint32_t i = 0; i < CROWD; i++) {
        if (!in[i])
            index_insert(&x, keys[i], i);
        check(index_find(&x, keys[i]) == i &&
              index_find(&x, keys[CROWD - 1 - i]) ==
                  (in[CROWD - 1 - i] || i >= CROWD - 1 - i ? CROWD - 1 - i : INDEX_NONE));
    }
    for (uint32_t i = 0; i < CROWD; i++) {
        index_remove(&x, keys[i], i);
        check(index_find(&x, keys[i]) == INDEX_NONE);
    }
    check(x.count == 0);
    index_free(&x);
}

/* A cursor gives every place that exists when it passes, in order, whatever is removed meanwhile. */
static void a_cursor_misses_nothing_and_repeats_nothing(void) {
    static struct place places[RUN];
    static bool there[RUN];
    static const struct message any = {.content_bytes = 7};
    struct table t;
    struct cursor cursor, late;
    struct queue *q;
    uint64_t c = 2, position, last = 0;
    uint32_t next = 0, seen = 0;

    table_init(&t);
    require(table_add_queue(&t, 9));
    q = table_queue(&t, 9);
    cursor_start(&cursor, q, LS_CURSOR_ALL);
    while (next < RUN || seen == 0) {
        struct entry *e;

        for (uint32_t n = (uint32_t)(chance(&c) % 40); n > 0 && next < RUN; n--, next++) {
            require(queue_prepare(q, 1));
            places[next] = queue_append(q, &any, next, next, 0);
            there[next] = true;
        }
        for (uint64_t n = chance(&c) % 60; n > 0 && next > 0; n--) {
            uint32_t k = (uint32_t)(chance(&c) % next);

            if (there[k])
                queue_kill(&places[k], &any);
            there[k] = false;
        }
        for (uint64_t n = chance(&c) % 30; n > 0 && (e = cursor_entry(&cursor, &position)) != NULL; n--) {
            check(there[e->message] && position == e->message && (seen == 0 || position > last));
            for (uint64_t k = seen == 0 ? 0 : last + 1; k < position; k++)
                check(!there[k]);
            last = position;
            seen++;
            cursor_step(&cursor);
        }
    }
    check(seen > 100);
    cursor_start(&late, q, LS_CURSOR_OFFER);
    for (uint32_t k = 0; k < RUN; k++) {
        if (there[k]) {
            struct entry *e = cursor_entry(&late, &position);

            check(e != NULL && position == k);
            queue_lock(&places[k], &any);
            cursor_step(&late);
        }
    }
    check(cursor_entry(&late, &position) == NULL);
    for (uint32_t k = RUN; k-- > 0;) { /* unlocks from the end: the cursor goes back step by step */
        if (there[k]) {
            queue_unlock(&places[k], &any);
            check(cursor_entry(&late, &position) != NULL && position == k);
        }
    }
    for (uint32_t k = 0; k < RUN; k++) {
        if (there[k])
            queue_kill(&places[k], &any);
    }
    check(queue_depth(q) == 0 && queue_bytes(q) == 0 && cursor_entry(&late, &position) == NULL);
    cursor_stop(&late);
    cursor_stop(&cursor);
    table_free(&t);
}

/* The first place that is free and was not offered before, or came back; RUN: none. */
static uint32_t first_free(const struct place *places, uint32_t count) {
    uint32_t k = 0;

    while (k < count && (places[k].at.chunk == NULL || !entry_is_free(place_entry(&places[k]))))
        k++;
    return k;
}

/* Consumers and transactions take and give back places all over a long queue, and chunks end in between. */
static void the_first_place_that_came_back_is_offered_first(void) {
    static struct place places[RUN];
    static const struct message any = {.content_bytes = 7};
    struct table t;
    struct queue *q;
    struct place found;
    uint64_t c = 4;
    uint32_t count = 0, offered = 0;

    table_init(&t);
    require(table_add_queue(&t, 9));
    q = table_queue(&t, 9);
    memset(places, 0, sizeof places);
    for (uint32_t step = 0; step < 60000; step++) {
        uint64_t what = chance(&c) % 10;
        struct place *p = &places[count > 0 ? chance(&c) % count : 0];
        struct entry *e = p->at.chunk != NULL ? place_entry(p) : NULL;

        if (count < RUN && step % 8 == 0) {
            require(queue_prepare(q, 1));
            places[count] = queue_append(q, &any, count, count, 0);
            count++;
        } else if (e == NULL) {
            continue;
        } else if (what < 4 && (e->state & ENTRY_ACQUIRED) != 0) {
            offer_give_back(p, &any, what == 0);
        } else if (what == 4 && (e->state & ENTRY_LOCKED) == 0) {
            queue_lock(p, &any);
        } else if (what == 5 && (e->state & ENTRY_LOCKED) != 0) {
            queue_unlock(p, &any);
        } else if (what == 6 && step % 5 == 0) {
            queue_kill(p, &any);
            p->at.chunk = NULL;
        } else if (what > 6) {
            uint32_t first = first_free(places, count);
            bool any_free = offer_find(q, UINT64_MAX, &found);

            require(any_free == (first < count));
            if (any_free) {
                require(found.at.chunk == places[first].at.chunk && found.slot == places[first].slot);
                require(offer_prepare(&found));
                (void)offer_acquire(q, &found, &any, 0);
                offered++;
            }
        }
    }
    check(offered > 10000);
    for (uint32_t k = 0; k < count; k++) {
        if (places[k].at.chunk != NULL)
            queue_kill(&places[k], &any);
    }
    check(queue_depth(q) == 0 && q->returned == 0 && q->back.count == 0);
    table_free(&t);
}

/* Unknown ids, live ids and ended ids, of more messages than one slab has. */
static void prefetching_messages_changes_nothing(void) {
    enum { MANY = (SLABS_AT_ONCE + 1) * SLAB_MESSAGES };
    struct table t;
    uint64_t ids[3];

    table_init(&t);
    ids[0] = 8;
    table_prefetch(&t, ids, 1);
    require(table_add_queue(&t, 1));
    for (uint32_t i = 0; i < MANY; i++) {
        uint64_t id = 4096 + UINT64_C(96) * i;

        require(table_prepare(&t, 1) && queue_prepare(table_queue(&t, 1), 1));
        uint32_t number = table_add(&t, id, MESSAGE_PUBLISHED);
        struct message *m = table_message(&t, number);
        message_add_place(&t, m, queue_append(table_queue(&t, 1), m, number, id, 0));
    }
#ifndef LOGSTORE_POISON /* there each slab has memory of its own, so that it can move */
    require(t.slab_count == 2 * SLABS_AT_ONCE);
#endif
    for (uint32_t i = 0; i < MANY; i++) {
        ids[0] = 4096 + UINT64_C(96) * i;
        ids[1] = ids[0] + 8;
        ids[2] = 4096 + UINT64_C(96) * (MANY - 1 - i);
        if (i % 1000 == 0)
            table_prefetch(&t, ids, 3);
        uint32_t number = table_find(&t, ids[0]);
        struct message *m = table_message(&t, number);
        require(m->id == ids[0] && table_find(&t, ids[1]) == INDEX_NONE);
        queue_kill(message_place(m, 1), m);
        message_drop_place(&t, m, 1);
        table_remove(&t, number);
        if (i % 1000 == 0)
            table_prefetch(&t, ids, 3);
    }
    check(t.message_count == 0 && t.place_count == 0 && queue_depth(table_queue(&t, 1)) == 0);
    table_free(&t);
}

int main(void) {
    int failed = 0;

    the_index_finds_exactly_its_keys(false);
    the_index_finds_exactly_its_keys(true);
    prefetching_messages_changes_nothing();
    the_index_finds_keys_far_from_their_home_slot();
    failed += failures_here > 0;
    failures_here = 0;
    a_cursor_misses_nothing_and_repeats_nothing();
    failed += failures_here > 0;
    failures_here = 0;
    the_first_place_that_came_back_is_offered_first();
    failed += failures_here > 0;
    return verdict(3 - failed, failed);
}
