/*
 * Acquires that wait for a message. table/takers.h has the lists and what always holds.
 *
 * A queue's takers are served under the log's lock, by the thread that made a place free or durable: it hands over the
 * places, then wakes the taker's thread or signals the event of its inbox (inboxes.c). So a taker needs no second look at the
 * queue, and one that gives up takes the lock and finds out whether it was served meanwhile. In the same moment the watches
 * of the queue are told of arrivals.
 *
 * The caller of ls_taker_new owns the taker until ls_taker_end.
 */
#include <assert.h>
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "store/inboxes.h"

enum { WAITING = -1 };

struct ls_taker {
    struct taker place;    /* the first field; among those that wait */
    ls_taker *next, *prev; /* in its inbox, if it is `listed` */
    ls_store *store;
    ls_inbox *inbox; /* NULL: a thread waits for `wake` */
    sem_t wake;
    uint64_t number;
    uint32_t queue_id;
    bool listed;
    int result; /* WAITING, or the code with which it was served or ended */
    size_t asked, done;
    ls_delivery rows[]; /* `asked` of them */
};

/* ---- its inbox, with the lock ---- */

static void inbox_put(ls_inbox *inbox, ls_taker *one) {
    if (inbox->event < 0) {
        return;
    }
    bool is_quiet = inbox->first == NULL;
    one->prev = inbox->last;
    one->next = NULL;
    one->listed = true;
    if (is_quiet) {
        inbox->first = one;
        inbox_signal(inbox);
    } else {
        inbox->last->next = one;
    }
    inbox->last = one;
}

static void inbox_remove(ls_inbox *inbox, ls_taker *one) {
    if (one->prev != NULL) {
        one->prev->next = one->next;
    } else {
        inbox->first = one->next;
    }
    if (one->next != NULL) {
        one->next->prev = one->prev;
    } else {
        inbox->last = one->prev;
    }
    one->listed = false;
}

size_t inbox_take(ls_inbox *inbox, uint64_t *numbers, size_t n) {
    size_t count = 0;
    while (count < n && inbox->first != NULL) {
        numbers[count++] = inbox->first->number;
        inbox_remove(inbox, inbox->first);
    }
    return count;
}

/* ---- serving, with the lock ---- */

struct takers *takers_of(ls_store *store, struct queue *q) {
    if (q->takers == NULL) {
        q->takers = takers_new(&store->state.table.due, q->id);
    }
    return q->takers;
}

/* A first time to come that is later leaves the alarm early, which costs one look. */
void takers_await(ls_store *store) {
    const struct due_queues *all = &store->state.table.due;
    log_consumers_wait(store->log, all->waiting > 0 || all->watching > 0 || store->noticing.first != NULL);
    log_set_alarm(store->log,
                  all->waiting > 0 || all->watching_times > 0 ? times_next(&store->state.table) : UINT64_MAX);
}

static void leave(ls_taker *one) {
    takers_remove(&one->place);
    takers_await(one->store);
}

/* It waits no longer. */
static void finish(ls_taker *one, int code) {
    assert(one->result == WAITING);
    leave(one);
    one->result = code;
    if (one->inbox != NULL) {
        inbox_put(one->inbox, one);
    } else {
        (void)sem_post(&one->wake); /* its memory stays: ls_taker_end needs the lock */
    }
}

static void serve(ls_store *store, struct takers *t) {
    struct queue *q = table_queue(&store->state.table, t->queue_id);
    int rc = LS_OK;
    while (q != NULL && t->first != NULL) {
        ls_taker *one = (ls_taker *)t->first;
        rc = acquire_from(store, q, one->rows, one->asked, &one->done);
        if (rc == LS_OK && one->done == 0) {
            break;
        }
        finish(one, rc);
    }
    uint64_t position;
    bool more_comes = q != NULL && t->first != NULL && cursor_entry(&q->fresh, &position) != NULL;
    if (pending_passed(&t->watched.arrived, log_durable_lsn(store->log))) {
        watched_tell(&t->watched, LS_ARRIVED);
    }
    takers_set_due(t, more_comes || t->watched.arrived.since != 0);
}

void takers_serve_due(ls_store *store) {
    struct due_queues *all = &store->state.table.due;
    vfs *v = store->directory.v;
    if (times_next(&store->state.table) != UINT64_MAX) {
        times_pass(&store->state.table, v->now_us(v));
    }
    all->came_back = false;
    if (log_poison(store->log) != 0) {
        takers_end_all(store, LS_OUTCOME_UNKNOWN);
    }
    for (struct takers *t = all->first, *next; t != NULL; t = next) {
        next = t->next;
        serve(store, t);
    }
    takers_await(store);
    notices_serve(store);
}

void takers_end_queue(struct queue *q, int code) {
    while (q->takers != NULL && q->takers->first != NULL) {
        finish((ls_taker *)q->takers->first, code);
    }
}

void takers_end_all(ls_store *store, int code) {
    const struct table *t = &store->state.table;
    for (uint32_t i = 0; t->due.waiting > 0 && i < t->queue_count; i++) {
        if (t->queues[i] != NULL) {
            takers_end_queue(t->queues[i], code);
        }
    }
}

/* ---- the calls ---- */

static int join(ls_store *store, uint32_t queue_id, ls_taker *one) {
    int rc = store_check_queues(store, &queue_id, 1);
    if (rc != LS_OK) {
        return rc;
    }
    if (log_poison(store->log) != 0) {
        return log_fail_poisoned(store->log, LS_POISONED);
    }
    struct takers *t = takers_of(store, table_queue(&store->state.table, queue_id));
    if (t == NULL) {
        return fail_memory();
    }
    store_times(store);
    takers_add(t, &one->place);
    takers_await(store);
    serve(store, t);
    return LS_OK;
}

int ls_taker_new(ls_store *store, uint32_t queue_id, size_t n, ls_inbox *inbox, uint64_t number, int flags,
                 ls_taker **taker) {
    *taker = NULL;
    if (n == 0 || (inbox != NULL && inbox->store != store)) {
        return fail(LS_OPTION, n == 0 ? "a taker takes at least one place" : "the inbox belongs to another store");
    }
    size_t asked = n < LS_TAKER_MAX ? n : LS_TAKER_MAX;
    ls_taker *made = calloc(1, sizeof *made + asked * sizeof *made->rows);
    if (made == NULL) {
        return fail_memory();
    }
    made->store = store;
    made->inbox = inbox;
    made->number = number;
    made->queue_id = queue_id;
    made->asked = asked;
    made->result = WAITING;
    if (sem_init(&made->wake, 0, 0) != 0) {
        free(made);
        return fail_errno(LS_IO, errno, "no semaphore to wait with");
    }
    int rc = store_try(store, flags);
    if (rc == LS_OK) {
        rc = join(store, queue_id, made);
        if (rc == LS_OK) {
            atomic_fetch_add(&store->handles, 1);
            if (inbox != NULL) {
                inbox->users++;
            }
            *taker = made;
        }
        rc = store_leave(store, rc, LEAVE_QUIETLY);
    }
    if (*taker == NULL) {
        (void)sem_destroy(&made->wake);
        free(made);
    }
    return rc;
}

int ls_taker_wait(ls_taker *taker, uint64_t until_ns) {
    int rc = atomic_load(&taker->store->foreign) ? fail(LS_FORKED, "the store was opened in another process")
                                                 : store_may_wait(taker->store);
    if (rc != LS_OK) {
        return rc;
    }
    int error = -vfs_wait_until(&taker->wake, until_ns);
    assert(error == 0 || error == EINTR || error == ETIMEDOUT);
    return error == EINTR ? LS_WOULD_WAIT : LS_OK;
}

static int fail_ended(const ls_taker *one) {
    if (one->result == LS_UNKNOWN_QUEUE) {
        return fail(LS_UNKNOWN_QUEUE, "queue %u was deleted while an acquire waited for a message",
                    (unsigned)one->queue_id);
    }
    if (one->result == LS_CLOSED) {
        return fail(LS_CLOSED, "the store was closed while an acquire waited for a message; open it again");
    }
    return one->result == LS_OUTCOME_UNKNOWN ? log_fail_poisoned(one->store->log, one->result) : fail_memory();
}

static void free_taker(ls_taker *taker) {
    inbox_drop(taker->inbox);
    (void)sem_destroy(&taker->wake);
    free(taker);
}

int ls_taker_end(ls_taker *taker, ls_delivery *into, int flags, size_t *done) {
    ls_store *store = taker->store;
    *done = 0;
    if (atomic_load(&store->foreign)) {
        free_taker(taker);
        store_drop(store);
        return fail(LS_FORKED, "the acquire waited in another process");
    }
    log_lock(store->log);
    int rc = LS_OK;
    if (taker->result == WAITING) {
        struct takers *of = taker->place.of;
        leave(taker);
        serve(store, of);
    } else if (taker->result != LS_OK) {
        rc = fail_ended(taker);
    } else if (store->phase == PHASE_SERVING && (flags & LS_UNSEEN) != 0) {
        acquire_give_back(store, taker->queue_id, taker->rows, taker->done, true);
        *done = taker->done;
    } else if ((flags & LS_UNSEEN) == 0) {
        memcpy(into, taker->rows, taker->done * sizeof *into);
        *done = taker->done;
    }
    if (taker->listed) {
        inbox_remove(taker->inbox, taker);
    }
    free_taker(taker);
    rc = store_leave(store, rc, LEAVE_QUIETLY);
    store_drop(store);
    return rc;
}
