/*
 * Taking messages: in their order, after a position, those that have expired, by their ids, or the publisher its own. The Python
 * methods acquire, expired, acquire_ids and publish check the arguments.
 */
#include "hot.h"

#define ROWS_MAX (SIZE_MAX / 4 / sizeof(ls_delivery)) /* more than memory has */

enum {
    ROWS_FIRST = 1024,        /* first memory for this many rows, then for twice as many */
    ACQUIRED_HELD_MAX = 1024, /* for more places the interpreter is released */
    NO_ROWS = -1,             /* no memory in the binding; the core has codes from 0 on */
};

struct taking {
    enum taken what;
    uint64_t after;
};

/* One call of the core, which may be repeated for more of the same. */
static int acquire_more(const ls_calls *calls, ls_store *store, uint32_t queue, const struct taking *t,
                        ls_delivery *into, size_t n, int flags, size_t *done) {
    return t->what == TAKE_FRONT   ? calls->acquire(store, queue, into, n, flags, done)
           : t->what == TAKE_AFTER ? calls->acquire_after(store, queue, t->after, into, n, flags, done)
                                   : calls->acquire_expired(store, queue, into, n, flags, done);
}

static int acquire_rows(const ls_calls *calls, ls_store *store, uint32_t queue, struct taking t, size_t n, int flags,
                        struct acquired *a) {
    for (size_t room = n < ROWS_FIRST ? n : ROWS_FIRST;; room = n / 2 < room ? n : 2 * room) {
        ls_delivery *rows = PyMem_RawRealloc(a->rows, room * sizeof *rows);
        size_t done = 0;
        if (rows == NULL) {
            return NO_ROWS;
        }
        a->rows = rows;
        t.after = a->count > 0 ? rows[a->count - 1].position : t.after;
        int rc = acquire_more(calls, store, queue, &t, rows + a->count, room - a->count, flags, &done);
        a->count += done;
        if (rc != LS_OK || a->count < room || room == n) {
            return rc;
        }
    }
}

PyObject *hot_acquire_rows(struct queue_calls *self, const struct store_calls *of, enum taken what, uint64_t after,
                           uint64_t most, bool load) {
    size_t n = (size_t)(most < ROWS_MAX ? most : ROWS_MAX);
    const ls_calls *calls = of->state->calls;
    ls_store *store = of->store;
    const struct taking t = {.what = what, .after = after};
    struct acquired a = {.rows = NULL};
    int rc = n <= ACQUIRED_HELD_MAX ? acquire_rows(calls, store, self->id, t, n, LS_TRY, &a) : LS_WOULD_WAIT;
    if (rc == LS_WOULD_WAIT) {
        Py_BEGIN_ALLOW_THREADS
        rc = acquire_rows(calls, store, self->id, t, n, 0, &a);
        Py_END_ALLOW_THREADS
    }
    PyObject *made = NULL;
    if (rc == LS_OK) {
        made = hot_hand_out(self, &a, load);
    } else {
        made = rc == NO_ROWS ? PyErr_NoMemory() : hot_fail(of->state, rc);
        if (a.count > 0) {
            Py_BEGIN_ALLOW_THREADS(void)
            calls->release(store, self->id, a.rows, a.count, LS_UNSEEN);
            Py_END_ALLOW_THREADS
        }
    }
    PyMem_RawFree(a.rows);
    return made;
}

/* NULL: an exception is set. */
static const struct store_calls *store_of(const struct queue_calls *queue) {
    const struct store_calls *of = hot_store_after_drops(queue);
    if (of == NULL || of->store == NULL) {
        PyErr_SetString(PyExc_ValueError, "this queue is of no store: call _attach first");
        return NULL;
    }
    return of;
}

PyObject *hot_acquire_after(struct queue_calls *self, PyObject *args) {
    unsigned long long n, position;
    int load;
    if (!PyArg_ParseTuple(args, "KKp:_acquire_after", &n, &position, &load)) {
        return NULL;
    }
    const struct store_calls *of = store_of(self);
    return of == NULL ? NULL : hot_acquire_rows(self, of, TAKE_AFTER, position, n, load != 0);
}

PyObject *hot_acquire_ids(struct queue_calls *self, PyObject *args) {
    Py_buffer ids;
    int load, rc;
    if (!PyArg_ParseTuple(args, "y*p:_acquire_ids", &ids, &load)) {
        return NULL;
    }
    const struct store_calls *of = store_of(self);
    size_t n = (size_t)ids.len / sizeof(uint64_t);
    struct acquired a = {.rows = of != NULL ? PyMem_RawMalloc((n + 1) * sizeof *a.rows) : NULL};
    PyObject *made = NULL;
    if (a.rows != NULL) {
        const ls_calls *calls = of->state->calls;
        ls_store *store = of->store;
        uint32_t id = self->id;
        Py_BEGIN_ALLOW_THREADS
        rc = calls->acquire_ids(store, id, ids.buf, n, a.rows, 0, &a.count);
        Py_END_ALLOW_THREADS
        made = rc == LS_OK ? hot_hand_out(self, &a, load != 0) : hot_fail(of->state, rc);
    } else if (of != NULL) {
        PyErr_NoMemory();
    }
    PyMem_RawFree(a.rows);
    PyBuffer_Release(&ids);
    return made;
}

PyObject *hot_acquire_expired(struct queue_calls *self, PyObject *args) {
    unsigned long long n;
    int load;
    if (!PyArg_ParseTuple(args, "Kp:_acquire_expired", &n, &load)) {
        return NULL;
    }
    const struct store_calls *of = store_of(self);
    return of == NULL ? NULL : hot_acquire_rows(self, of, TAKE_EXPIRED, 0, n, load != 0);
}

/* Makes the delivery first, so that no message is published for which there is no memory. */
static PyObject *publish_acquired(struct queue_calls *self, const struct store_calls *of, const Py_buffer *header,
                                  const Py_buffer *content, uint64_t staged, uint64_t expires_us) {
    const ls_calls *calls = of->state->calls;
    ls_store *store = of->store;
    ls_delivery row = {.id = 0};
    PyObject *made = hot_delivery(of->state, self, &row);
    if (made == NULL) {
        return NULL;
    }
    struct delivery *d = (struct delivery *)made;
    uint32_t id = self->id;
    int flags = of->relaxed ? 0 : LS_WAIT, rc;
    d->settled = true; /* it holds no place yet */
    Py_BEGIN_ALLOW_THREADS
    rc = staged != 0 ? calls->enqueue_acquired(store, staged, id, expires_us, flags, &row)
                     : calls->publish_acquired(store, id, header->buf, (size_t)header->len, content->buf,
                                               (size_t)content->len, expires_us, flags, &row);
    Py_END_ALLOW_THREADS
    if (rc != LS_OK) {
        Py_DECREF(made);
        return hot_fail(of->state, rc);
    }
    d->row = row;
    d->settled = false;
    return made;
}

PyObject *hot_publish_acquired(struct queue_calls *self, PyObject *args) {
    Py_buffer header, content;
    unsigned long long staged, expires_us;
    if (!PyArg_ParseTuple(args, "y*y*KK:_publish_acquired", &header, &content, &staged, &expires_us)) {
        return NULL;
    }
    const struct store_calls *of = store_of(self);
    PyObject *made = of != NULL ? publish_acquired(self, of, &header, &content, staged, expires_us) : NULL;
    PyBuffer_Release(&header);
    PyBuffer_Release(&content);
    return made;
}
