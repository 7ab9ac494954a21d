/*
 * Taking messages out of their order: after a position, by their ids, or the publisher its own. The Python methods acquire,
 * acquire_ids and publish check the arguments.
 */
#include "hot.h"

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
    uint64_t after = position;
    return of == NULL ? NULL : hot_acquire_rows(self, of, &after, n, load != 0);
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

/* Makes the delivery first, so that no message is published for which there is no memory. */
static PyObject *publish_acquired(struct queue_calls *self, const struct store_calls *of, const Py_buffer *header,
                                  const Py_buffer *content, uint64_t staged) {
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
    rc = staged != 0 ? calls->enqueue_acquired(store, staged, id, flags, &row)
                     : calls->publish_acquired(store, id, header->buf, (size_t)header->len, content->buf,
                                               (size_t)content->len, flags, &row);
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
    unsigned long long staged;
    if (!PyArg_ParseTuple(args, "y*y*K:_publish_acquired", &header, &content, &staged)) {
        return NULL;
    }
    const struct store_calls *of = store_of(self);
    PyObject *made = of != NULL ? publish_acquired(self, of, &header, &content, staged) : NULL;
    PyBuffer_Release(&header);
    PyBuffer_Release(&content);
    return made;
}
