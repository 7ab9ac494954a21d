/*
 * Dropped deliveries: freed by Python before they were settled. Their places return to their old positions.
 *
 * A delivery can be freed at any moment on any thread. So its freeing only puts it into a list of its store, in its own
 * memory, which cannot fail. The next consumer's call on the store takes it from the list and calls the core. If there
 * are listeners, the store's thread is woken and does this (store/releases.py).
 *
 * The lists change only with the interpreter held. A delivery in them is memory without a reference, except to its type.
 */
#include "hot.h"

enum { RELEASED_HELD_MAX = 64 }; /* with more, the interpreter is released for the call */

static void push(struct delivery **list, struct delivery *one) {
    one->next = *list;
    *list = one;
}

static struct delivery *pop(struct delivery **list) {
    struct delivery *one = *list;
    *list = one->next;
    return one;
}

/*
 * Calls `notify`, a method in C that runs no Python code. If it fails because memory ran out, the next drop notifies.
 */
static void notify(struct store_calls *store) {
    if (store->notify == NULL || store->notified) {
        return;
    }
    PyObject *type, *problem, *trace;
    PyErr_Fetch(&type, &problem, &trace);
    store->notified = true;
    PyObject *done = PyObject_CallOneArg(store->notify, Py_None);
    if (done == NULL) {
        store->notified = false;
    }
    Py_XDECREF(done);
    PyErr_Restore(type, problem, trace);
}

void hot_drop(struct store_calls *store, struct delivery *freed, uint32_t queue_id) {
    freed->queue_id = queue_id;
    push(&store->dropped, freed);
    notify(store);
}

static int release_one(const struct store_calls *store, const struct delivery *one, bool held) {
    const ls_calls *calls = store->state->calls;
    ls_store *c_store = store->store;
    int rc = held ? calls->release(c_store, one->queue_id, &one->row, 1, LS_TRY) : LS_WOULD_WAIT;
    if (rc == LS_WOULD_WAIT) {
        Py_BEGIN_ALLOW_THREADS
        rc = calls->release(c_store, one->queue_id, &one->row, 1, 0);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

/* An error means that nothing is acquired any more: the queue or the store has ended, or the process is a fork. */
void hot_release_dropped(struct store_calls *store) {
    for (unsigned turn = 1; store->dropped != NULL; turn++) {
        struct delivery *one = pop(&store->dropped);
        if (release_one(store, one, turn % RELEASED_HELD_MAX != 0) == LS_OK && store->notify != NULL) {
            push(&store->released, one);
        } else {
            hot_recycle(one);
        }
    }
    if (store->released != NULL) {
        notify(store); /* once more: the thread may have looked during the call of the core */
    }
}

PyObject *hot_release_dropped_now(struct store_calls *self, PyObject *Py_UNUSED(unused)) {
    if (self->store != NULL) {
        hot_release_dropped(self);
    }
    Py_RETURN_NONE;
}

PyObject *hot_released_queues(struct store_calls *self, PyObject *Py_UNUSED(unused)) {
    PyObject *ids = PySet_New(NULL);
    if (ids == NULL || self->store == NULL) {
        return ids;
    }
    hot_release_dropped(self);
    self->notified = false; /* a place that comes back after this is not in the result */
    while (ids != NULL && self->released != NULL) {
        PyObject *id = PyLong_FromUnsignedLong(self->released->queue_id);
        if (id == NULL || PySet_Add(ids, id) < 0) {
            Py_CLEAR(ids);
        } else {
            hot_recycle(pop(&self->released));
        }
        Py_XDECREF(id);
    }
    return ids;
}

/* Each of them has a reference to its type. */
int hot_visit_dropped(const struct store_calls *store, visitproc visit, void *arg) {
    for (const struct delivery *one = store->dropped; one != NULL; one = one->next) {
        Py_VISIT(Py_TYPE(one));
    }
    for (const struct delivery *one = store->released; one != NULL; one = one->next) {
        Py_VISIT(Py_TYPE(one));
    }
    return 0;
}

void hot_free_dropped(struct store_calls *store) {
    while (store->dropped != NULL) {
        hot_recycle(pop(&store->dropped));
    }
    while (store->released != NULL) {
        hot_recycle(pop(&store->released));
    }
}
