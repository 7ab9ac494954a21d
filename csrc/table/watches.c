/* The lists of watches.h. */
#include "table/watches.h"

#include <assert.h>
#include <stdlib.h>

#include "logstore.h"

/* ---- the watcher's list ---- */

static void list(struct watch *one) {
    struct watcher *w = one->by;
    bool was_empty = w->first == NULL;
    one->next_told = NULL;
    one->prev_told = w->last;
    if (was_empty) {
        w->first = one;
    } else {
        w->last->next_told = one;
    }
    w->last = one;
    if (was_empty) {
        w->wake(w);
    }
}

static void unlist(struct watch *one) {
    struct watcher *w = one->by;
    if (one->prev_told != NULL) {
        one->prev_told->next_told = one->next_told;
    } else {
        w->first = one->next_told;
    }
    if (one->next_told != NULL) {
        one->next_told->prev_told = one->prev_told;
    } else {
        w->last = one->prev_told;
    }
    one->told = 0;
}

static void tell_one(struct watch *one, uint8_t kind) {
    bool is_listed = one->told != 0;
    one->told |= kind;
    if (!is_listed) {
        list(one);
    }
}

bool watcher_next(struct watcher *w, uint32_t *queue_id, uint8_t *told) {
    struct watch *one = w->first;
    if (one == NULL) {
        return false;
    }
    *queue_id = one->queue_id;
    *told = one->told;
    unlist(one);
    if (one->of == NULL) {
        watch_end(one);
    }
    return true;
}

/* ---- watches ---- */

enum { BY_TIMES = LS_ARRIVED | LS_RELEASED | LS_EXPIRED };

static void want(struct watch *one, uint8_t wanted) {
    bool wanted_them = (one->wanted & LS_ARRIVED) != 0, wants_them = (wanted & LS_ARRIVED) != 0;
    if (wanted_them && !wants_them) {
        one->of->for_arrivals--;
        --*one->by->arrivals;
    } else if (wants_them && !wanted_them) {
        one->of->for_arrivals++;
        ++*one->by->arrivals;
    }
    bool wanted_times = (one->wanted & BY_TIMES) != 0, wants_times = (wanted & BY_TIMES) != 0;
    *one->by->times += (uint64_t)wants_times - (uint64_t)wanted_times;
    one->wanted = wanted;
}

struct watch *watch_find(const struct watcher *by, const struct watched *of) {
    struct watch *one = of->first;
    while (one != NULL && one->by != by) {
        one = one->next;
    }
    return one;
}

struct watch *watch_set(struct watcher *by, struct watched *of, uint32_t queue_id, uint8_t wanted) {
    struct watch *one = watch_find(by, of);
    if (one == NULL) {
        one = calloc(1, sizeof *one);
        if (one == NULL) {
            return NULL;
        }
        *one = (struct watch){.of = of, .by = by, .queue_id = queue_id, .next = of->first, .next_own = by->all};
        if (one->next != NULL) {
            one->next->prev = one;
        }
        if (one->next_own != NULL) {
            one->next_own->prev_own = one;
        }
        of->first = one;
        by->all = one;
    }
    want(one, wanted);
    return one;
}

/* The queue lists it no longer. */
static void leave_queue(struct watch *one) {
    if (one->of == NULL) {
        return; /* the queue was deleted */
    }
    want(one, 0);
    if (one->prev != NULL) {
        one->prev->next = one->next;
    } else {
        one->of->first = one->next;
    }
    if (one->next != NULL) {
        one->next->prev = one->prev;
    }
    one->of = NULL;
    one->next = one->prev = NULL;
}

void watch_end(struct watch *one) {
    leave_queue(one);
    if (one->told != 0) {
        unlist(one);
    }
    if (one->prev_own != NULL) {
        one->prev_own->next_own = one->next_own;
    } else {
        one->by->all = one->next_own;
    }
    if (one->next_own != NULL) {
        one->next_own->prev_own = one->prev_own;
    }
    free(one);
}

void watched_tell(struct watched *of, uint8_t kind) {
    for (struct watch *one = of->first; one != NULL; one = one->next) {
        if ((one->wanted & kind) != 0) {
            tell_one(one, kind);
        }
    }
}

void watched_end(struct watched *of) {
    for (struct watch *one = of->first, *next; one != NULL; one = next) {
        next = one->next;
        if (one->by->every != 0) {
            watch_end(one);
        } else {
            leave_queue(one);
            tell_one(one, LS_QUEUE_DELETED);
        }
    }
    assert(of->for_arrivals == 0);
}

/* ---- what is not durable yet ---- */

void pending_add(struct pending *p, uint64_t lsn) {
    p->since = p->since == 0 ? lsn : p->since;
    p->newest = lsn;
}

bool pending_passed(struct pending *p, uint64_t durable_lsn) {
    if (p->since == 0 || p->since >= durable_lsn) {
        return false;
    }
    *p = p->newest >= durable_lsn ? (struct pending){durable_lsn, p->newest} : (struct pending){0, 0};
    return true;
}
