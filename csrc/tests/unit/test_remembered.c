/* States of places in memory, in runs and in none, against plain copies; nothing leaks (under ASan), growth comes back. */
#include "table/remembered.h"

#include "logstore.h"
#include "tests/kit/vfs_test.h"

#include <stdlib.h>

enum { PLACES = 700 };

static void must(bool done) {
    if (!done)
        abort();
}

static struct own_bytes bytes_at(uint64_t lsn, uint32_t bytes) {
    return (struct own_bytes){.lsn = lsn, .record_bytes = 512, .at = 64, .bytes = bytes};
}

static struct remembered some_state(uint64_t *c) {
    struct remembered s = {.own = NULL};

    if (chance(c) % 2 == 0)
        s.not_before_us = 1 + chance(c) % 1000;
    if (chance(c) % 2 == 0)
        s.expires_us = 1 + chance(c) % 1000;
    if (chance(c) % 2 == 0)
        s.delivery_count = 1 + (uint32_t)(chance(c) % 10);
    if (chance(c) % 2 == 0) {
        const struct own_bytes note = bytes_at(8 + chance(c) % 100 * 8, 1 + (uint32_t)(chance(c) % 255));
        must(remembered_set_note(&s, &note));
    }
    if (chance(c) % 2 == 0) {
        const struct own_bytes header = bytes_at(8 + chance(c) % 100 * 8, (uint32_t)(chance(c) % 100));
        must(remembered_set_header(&s, &header));
    }
    return s;
}

static struct remembered copy_of(const struct remembered *s) {
    struct remembered made;

    must(remembered_copy(&made, s));
    return made;
}

static void a_state_outside_runs_is_the_one_given_last(void) {
    struct place p = {.at.order_lsn = 4096, .slot = 77, .queue_id = 3};
    struct table t;
    uint64_t c = 1;

    table_init(&t);
    for (int i = 0; i < 2000; i++) {
        struct remembered s = some_state(&c), wanted = copy_of(&s), got;

        require(unplaced_remember(&t, &p, &s));
        got = unplaced_state(&p);
        check(remembered_equal(&got, &wanted));
        check(unplaced_order_lsn(&p) == 4096 && unplaced_order_index(&p) == 77);
        check(unplaced_remembers(&p) == !remembers_nothing(&wanted));
        if (i % 3 == 0) {
            got = unplaced_forget(&t, &p);
            check(remembered_equal(&got, &wanted) && !unplaced_remembers(&p));
            check(p.at.order_lsn == 4096 && p.slot == 77);
            remembered_free(&got);
        }
        remembered_free(&wanted);
    }
    struct remembered last = unplaced_forget(&t, &p);
    remembered_free(&last);
    table_free(&t);
}

/* The number of a place's last state is its delivery count, and decides which other parts it has. */
static struct remembered numbered_state(uint32_t number) {
    struct remembered s = {.delivery_count = number};

    s.not_before_us = number % 3 == 0 ? number : 0;
    s.expires_us = number % 5 == 0 ? number + 1 : 0;
    if (number % 11 == 0) {
        const struct own_bytes note = bytes_at(number, 1);
        must(remembered_set_note(&s, &note));
    }
    return s;
}

/* So many that their memory has blocks of all sizes; each place takes memory that others gave back. */
static void the_states_of_many_places_outside_runs_stay_apart(void) {
    enum { MANY = 200000, ROUNDS = 3 };
    static struct place places[MANY];
    static uint32_t numbers[MANY];
    struct table t;
    uint64_t c = 5;

    table_init(&t);
    for (uint32_t i = 0; i < MANY; i++) {
        places[i] = (struct place){.at.order_lsn = 4096 + 8 * (uint64_t)i, .slot = i % 50, .queue_id = 1};
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < MANY; i++) {
            uint32_t number = chance(&c) % 4 == 0 ? 0 : 1 + (uint32_t)(chance(&c) % 100000);
            struct remembered s = number != 0 ? numbered_state(number) : (struct remembered){.own = NULL};
            require(unplaced_remember(&t, &places[i], &s));
            numbers[i] = number;
        }
        for (uint32_t i = 0; i < MANY; i++) {
            struct remembered wanted = numbers[i] != 0 ? numbered_state(numbers[i]) : (struct remembered){.own = NULL};
            const struct remembered got = unplaced_state(&places[i]);
            check(remembered_equal(&got, &wanted));
            check(unplaced_order_lsn(&places[i]) == 4096 + 8 * (uint64_t)i);
            check(unplaced_order_index(&places[i]) == i % 50);
            remembered_free(&wanted);
        }
    }
    for (uint32_t i = 0; i < MANY; i++) {
        struct remembered last = unplaced_forget(&t, &places[i]);
        remembered_free(&last);
    }
    table_free(&t);
}

static void states_in_runs_are_those_of_their_places(void) {
    static struct remembered wanted[PLACES];
    static bool alive[PLACES];
    struct table t;
    uint64_t c = 2;

    table_init(&t);
    t.in_runs = true;
    require(table_add_queue(&t, 1));
    for (uint32_t i = 0; i < PLACES; i++) {
        struct queue *q = table_queue(&t, 1);

        require(table_prepare(&t, 1) && queue_prepare(q, 1));
        uint32_t number = table_add(&t, 4096 + i * 80, MESSAGE_PUBLISHED);
        struct message *m = table_message(&t, number);
        require(message_extra(m) != NULL);
        message_add_place(&t, m, queue_append(q, m, number, m->id, 0));
        alive[i] = true;
        wanted[i] = (struct remembered){.own = NULL};
    }
    for (int round = 0; round < 8000; round++) {
        uint32_t i = (uint32_t)(chance(&c) % PLACES), number = table_find(&t, 4096 + i * 80);

        if (!alive[i])
            continue;
        struct message *m = table_message(&t, number);
        struct place *p = message_place(m, 1);
        struct remembered got = place_state(p);
        check(remembered_equal(&got, &wanted[i]));
        check(message_has_states(&t, m) == !remembers_nothing(&wanted[i]));
        if (chance(&c) % 8 == 0) {
            queue_kill(p, m);
            message_drop_place(&t, m, 1);
            table_remove(&t, number);
            remembered_free(&wanted[i]);
            alive[i] = false;
            continue;
        }
        struct remembered s = some_state(&c);
        require(chunk_prepare_states(p->at.chunk, remembered_parts(&s)));
        remembered_free(&wanted[i]);
        wanted[i] = copy_of(&s);
        message_state_changes(&t, m, &got, &s);
        place_remember(p, m, &s);
        remembered_free(&s);
    }
    for (uint32_t i = 0; i < PLACES; i++) {
        if (!alive[i])
            continue;
        remembered_free(&wanted[i]);
        if (i % 2 == 0) { /* the table frees the others */
            uint32_t number = table_find(&t, 4096 + i * 80);
            struct message *m = table_message(&t, number);
            queue_kill(message_place(m, 1), m);
            message_drop_place(&t, m, 1);
            table_remove(&t, number);
        }
    }
    table_free(&t);
}

/* The bytes of a relocated state's rows, counted from the table alone. */
static uint64_t bytes_when_moved(const struct table *t, struct message *m) {
    bool wide = message_has_states(t, m);
    uint64_t bytes = STATE_HEAD_BYTES;

    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct remembered s = table_place_state(t, &message_places(m)[i]);
        bytes += wide ? PLACED_ROW_BYTES + remembered_own_bytes(&s) : RELOCATED_PLACE_BYTES;
    }
    for (const struct work *w = m->extra->work; w != NULL; w = w->next_of_message)
        bytes +=
            (wide ? PLACED_ROW_BYTES : RELOCATED_PLACE_BYTES) + (w->state != NULL ? remembered_own_bytes(w->state) : 0);
    return bytes;
}

static uint64_t counted_bytes(const struct table *t) {
    return STATE_BYTES * t->loose_count + WIDER_ROW_BYTES * t->wide_count + t->growth;
}

static struct tx *transaction_of(struct table *t, uint64_t id) {
    struct tx *tx;

    must(table_prepare_tx(t, &tx));
    table_add_tx(t, tx, id);
    return tx;
}

/* The invariant that admission rests on: what the last move wrote, and the growth since, are enough for the next one. */
static void the_growth_of_a_message_covers_its_next_move(void) {
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct table t;
        uint64_t c = seed, moved_bytes = 0, lsn = 8192;

        table_init(&t);
        require(table_prepare(&t, 1));
        uint32_t number = table_add(&t, 4096, MESSAGE_STAGED);
        struct message *m = table_message(&t, number);
        struct tx *tx = transaction_of(&t, 4096 + 80);
        require(message_extra(m) != NULL);
        m->extra->last_lsn = 4096;
        for (int step = 0; step < 60; step++) {
            uint32_t queue_id = 1 + (uint32_t)(chance(&c) % 4);
            struct place *p = message_place(m, queue_id);
            struct remembered s = some_state(&c), nothing = {.own = NULL};

            lsn += 8;
            switch (chance(&c) % 6) {
            case 0:
            case 1: /* an enqueue, perhaps with a state */
                if (p == NULL) {
                    require(message_prepare_places(m, 1));
                    m->flags &= (uint16_t)~MESSAGE_STAGED;
                    message_grows_places(&t, m, 1);
                    message_add_place(&t, m, (struct place){.at.order_lsn = lsn, .queue_id = queue_id});
                    message_state_changes(&t, m, &nothing, &s);
                    require(unplaced_remember(&t, message_place(m, queue_id), &s));
                    s.own = NULL;
                }
                break;
            case 2: /* a new state */
                if (p != NULL) {
                    struct remembered before = unplaced_state(p);
                    message_state_changes(&t, m, &before, &s);
                    require(unplaced_remember(&t, p, &s));
                    s.own = NULL;
                }
                break;
            case 3:
                if (p != NULL)
                    message_drop_place(&t, m, queue_id);
                break;
            case 4: { /* work begins */
                struct work *w = calloc(1, sizeof *w);
                require(w != NULL);
                w->message = number;
                w->lsn = lsn;
                w->queue_id = queue_id;
                w->kind = WORK_ENQUEUE;
                if (!remembers_nothing(&s)) {
                    w->state = malloc(sizeof *w->state);
                    require(w->state != NULL);
                    *w->state = s;
                    s.own = NULL;
                }
                tx_add_work(&t, tx, w);
                break;
            }
            default: /* or ends */
                if (tx->first != NULL)
                    tx_drop_work(&t, tx->first);
                break;
            }
            remembered_free(&s);
            check(bytes_when_moved(&t, m) <= moved_bytes + counted_bytes(&t));
            if (chance(&c) % 10 == 0) {
                moved_bytes = bytes_when_moved(&t, m);
                message_moved(&t, m);
                check(counted_bytes(&t) == 0);
            }
        }
        while (tx->first != NULL)
            tx_drop_work(&t, tx->first);
        while (m->place_count > 0)
            message_drop_place(&t, m, message_places(m)[0].queue_id);
        table_remove(&t, number);
        check(counted_bytes(&t) == 0 && t.place_count == 0);
        table_remove_tx(&t, tx);
        table_free(&t);
    }
}

int main(void) {
    int failed = 0;

    a_state_outside_runs_is_the_one_given_last();
    failed += failures_here > 0;
    failures_here = 0;
    the_states_of_many_places_outside_runs_stay_apart();
    failed += failures_here > 0;
    failures_here = 0;
    states_in_runs_are_those_of_their_places();
    failed += failures_here > 0;
    failures_here = 0;
    the_growth_of_a_message_covers_its_next_move();
    failed += failures_here > 0;
    return verdict(4 - failed, failed);
}
