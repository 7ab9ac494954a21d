/* The lists of takers.h. */
#include "table/takers.h"

#include <assert.h>
#include <stdlib.h>

#include "logstore.h"

struct takers *takers_new(struct due_queues *all, uint32_t queue_id) {
    struct takers *t = calloc(1, sizeof *t);
    if (t != NULL) {
        t->all = all;
        t->queue_id = queue_id;
    }
    return t;
}

void takers_free(struct takers *t) {
    if (t != NULL) {
        assert(t->first == NULL && t->watched.first == NULL);
        takers_set_due(t, false);
        free(t);
    }
}

void takers_add(struct takers *t, struct taker *one) {
    *one = (struct taker){.prev = t->last, .of = t};
    if (t->last != NULL) {
        t->last->next = one;
    } else {
        t->first = one;
    }
    t->last = one;
    t->all->waiting++;
}

void takers_remove(struct taker *one) {
    struct takers *t = one->of;
    assert(t != NULL && t->all->waiting > 0);
    if (one->prev != NULL) {
        one->prev->next = one->next;
    } else {
        t->first = one->next;
    }
    if (one->next != NULL) {
        one->next->prev = one->prev;
    } else {
        t->last = one->prev;
    }
    t->all->waiting--;
    *one = (struct taker){.of = NULL};
}

void takers_set_due(struct takers *t, bool due) {
    if (t->due == due) {
        return;
    }
    if (due) {
        t->prev = NULL;
        t->next = t->all->first;
        t->all->first = t;
    } else if (t->prev != NULL) {
        t->prev->next = t->next;
    } else {
        t->all->first = t->next;
    }
    if (t->next != NULL) {
        t->next->prev = due ? t : t->prev;
    }
    t->due = due;
}

void takers_place_added(struct takers *t, uint64_t order_lsn) {
    if (t->watched.for_arrivals > 0) {
        pending_add(&t->watched.arrived, order_lsn);
        takers_set_due(t, true);
    } else if (t->first != NULL) {
        takers_set_due(t, true);
    }
}

void takers_place_freed(struct takers *t) {
    if (t->first != NULL) {
        takers_set_due(t, true);
        t->all->came_back = true;
    }
    watched_tell(&t->watched, LS_RELEASED);
}
