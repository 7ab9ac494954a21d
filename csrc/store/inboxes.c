/*
 * Inboxes and their watches: how a program is told that something happened, without a thread that asks. table/watches.h
 * has the lists and what always holds, takers.c who tells of arrivals.
 *
 * A thread that makes a place free or durable sets the bits under the log's lock. An inbox's eventfd is signalled when a list of
 * it that was empty gets an entry, so one read of the eventfd is followed by taking everything off both lists. A queue
 * that nobody watches costs one test of a pointer.
 *
 * An inbox is freed after ls_inbox_free, when its last taker has ended.
 */
#include "store/inboxes.h"

#include <assert.h>
#include <stdlib.h>

enum { OF_QUEUES = LS_ARRIVED | LS_RELEASED | LS_EXPIRED };

void inbox_signal(ls_inbox *inbox) {
    vfs *v = inbox->store->directory.v;
    (void)v->event_signal(v, inbox->event);
}

static void wake(struct watcher *w) { inbox_signal((ls_inbox *)w); }

void inbox_drop(ls_inbox *inbox) {
    if (inbox != NULL && --inbox->users == 0) {
        notices_free(inbox->deaths); /* only in a fork they are still there */
        notices_free(inbox->in_doubt);
        free(inbox);
    }
}

int ls_inbox_new(ls_store *store, ls_inbox **inbox, int *fd) {
    *inbox = NULL;
    ls_inbox *made = calloc(1, sizeof *made);
    int rc = made == NULL ? fail_memory() : store_enter(store);
    if (rc != LS_OK) {
        free(made);
        return rc;
    }
    vfs *v = store->directory.v;
    int event = v->event_new(v);
    if (event < 0) {
        free(made);
        rc = fail_errno(LS_IO, -event, "no eventfd can be made");
    } else {
        struct watcher watcher = {.wake = wake,
                                  .arrivals = &store->state.table.due.watching,
                                  .times = &store->state.table.due.watching_times};
        *made = (ls_inbox){.watcher = watcher, .store = store, .event = event, .users = 1};
        atomic_fetch_add(&store->handles, 1);
        *inbox = made;
        *fd = event;
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

size_t ls_inbox_next(ls_inbox *inbox, uint64_t *numbers, size_t n) {
    ls_store *store = inbox->store;
    if (atomic_load(&store->foreign)) {
        return 0;
    }
    log_lock(store->log);
    size_t count = inbox_take(inbox, numbers, n);
    log_unlock(store->log);
    return count;
}

size_t ls_inbox_events(ls_inbox *inbox, ls_event *into, size_t n) {
    ls_store *store = inbox->store;
    size_t count = 0;
    uint8_t told;
    if (atomic_load(&store->foreign)) {
        return 0;
    }
    log_lock(store->log);
    while (count < n && store->phase == PHASE_SERVING && watcher_next(&inbox->watcher, &into[count].queue_id, &told)) {
        into[count++].kinds = told;
    }
    log_unlock(store->log);
    return count;
}

/* ---- watching ---- */

/* Places that are not durable yet arrive, too: the last one of the run tells whether there are any. */
static void expect_arrivals(ls_store *store, struct queue *q) {
    uint64_t durable_lsn = log_durable_lsn(store->log);
    struct takers *t = q->takers;
    const struct queue_chunk *last = q->last;
    if (last != NULL && last->used > 0 && last->entries[last->used - 1].order_lsn >= durable_lsn) {
        t->watched.arrived = (struct pending){.since = durable_lsn, .newest = last->entries[last->used - 1].order_lsn};
        takers_set_due(t, true);
    }
}

static int watch_queue(ls_inbox *inbox, struct queue *q, uint8_t kinds) {
    ls_store *store = inbox->store;
    struct takers *t = takers_of(store, q);
    if (t == NULL) {
        return fail_memory();
    }
    bool was_expected = t->watched.for_arrivals > 0;
    if (watch_set(&inbox->watcher, &t->watched, q->id, kinds) == NULL) {
        return fail_memory();
    }
    if (!was_expected && t->watched.for_arrivals > 0) {
        expect_arrivals(store, q);
    }
    return LS_OK;
}

static void watch_nothing(ls_inbox *inbox) {
    struct due_queues *all = &inbox->store->state.table.due;
    struct watcher **link = &all->every;
    while (*link != NULL && *link != &inbox->watcher) {
        link = &(*link)->next_every;
    }
    if (*link != NULL) {
        *link = inbox->watcher.next_every;
    }
    inbox->watcher.every = 0;
    while (inbox->watcher.all != NULL) {
        watch_end(inbox->watcher.all);
    }
}

static int watch_every(ls_inbox *inbox, uint8_t kinds) {
    const struct table *t = &inbox->store->state.table;
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < t->queue_count; i++) {
        if (t->queues[i] != NULL && !t->queues[i]->deleted) {
            rc = watch_queue(inbox, t->queues[i], kinds);
        }
    }
    if (rc != LS_OK) {
        watch_nothing(inbox);
        return rc;
    }
    if (inbox->watcher.every == 0) {
        inbox->watcher.next_every = inbox->store->state.table.due.every;
        inbox->store->state.table.due.every = &inbox->watcher;
    }
    inbox->watcher.every = kinds;
    return LS_OK;
}

int inboxes_add_queue(ls_store *store, struct queue *q) {
    int rc = LS_OK;
    for (struct watcher *w = store->state.table.due.every; rc == LS_OK && w != NULL; w = w->next_every) {
        rc = watch_queue((ls_inbox *)w, q, w->every);
    }
    return rc;
}

void inboxes_end_queue(ls_store *store, const struct queue *q) {
    if (q->takers != NULL) {
        watched_end(&q->takers->watched);
        takers_await(store);
    }
}

static int watch(ls_inbox *inbox, uint32_t queue_id, uint8_t kinds) {
    ls_store *store = inbox->store;
    bool has_single = inbox->watcher.all != NULL && inbox->watcher.every == 0;
    if ((queue_id == 0 && has_single) || (queue_id != 0 && inbox->watcher.every != 0)) {
        return fail(LS_OPTION, "an inbox watches single queues or every queue; make another inbox");
    }
    if (queue_id == 0) {
        if (kinds != 0) {
            return watch_every(inbox, kinds);
        }
        watch_nothing(inbox);
        return LS_OK;
    }
    struct queue *q = table_queue(&store->state.table, queue_id);
    if (kinds != 0) {
        return q != NULL ? watch_queue(inbox, q, kinds) : store_check_queues(store, &queue_id, 1);
    }
    struct watch *one = q != NULL && q->takers != NULL ? watch_find(&inbox->watcher, &q->takers->watched) : NULL;
    if (one != NULL) {
        watch_end(one);
    }
    return LS_OK;
}

int ls_inbox_watch(ls_inbox *inbox, uint32_t queue_id, int kinds) {
    ls_store *store = inbox->store;
    if ((kinds & ~OF_QUEUES) != 0) {
        return fail(LS_OPTION, "an inbox watches LS_ARRIVED, LS_RELEASED and LS_EXPIRED, not %d", kinds);
    }
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    rc = watch(inbox, queue_id, (uint8_t)kinds);
    takers_await(store);
    return store_leave(store, rc, LEAVE_QUIETLY);
}

void ls_inbox_free(ls_inbox *inbox) {
    if (inbox == NULL) {
        return;
    }
    ls_store *store = inbox->store;
    vfs *v = store->directory.v;
    bool foreign = atomic_load(&store->foreign);
    if (!foreign) {
        log_lock(store->log);
        watch_nothing(inbox); /* a fork leaves the table behind, and so the watches and notices */
        notices_end(inbox);
        takers_await(store);
    }
    (void)v->event_close(v, inbox->event);
    inbox->event = -1;
    uint64_t number;
    while (inbox_take(inbox, &number, 1) == 1) {
    }
    inbox_drop(inbox);
    if (!foreign) {
        log_unlock(store->log);
    }
    store_drop(store);
}
