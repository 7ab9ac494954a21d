/*
 * _publish_items: messages are published from the buffers that hold them, a piece of them with each call of the core. What
 * is given is a tuple, which no other thread can change; for the time of a call each buffer is exported, so that none moves.
 */
#include "hot.h"

enum {
    ITEMS_MAX = 1024,     /* of a piece */
    BYTES_MAX = 1 << 20,  /* ... unless it is one item */
    EXPORTS_AT_ONCE = 16, /* buffers other than bytes that memory is allocated for at a time */
};

struct piece {
    const uint8_t *contents[ITEMS_MAX];
    const uint8_t *headers[ITEMS_MAX];
    uint64_t sizes[ITEMS_MAX];
    uint64_t header_sizes[ITEMS_MAX];
    uint64_t ids[ITEMS_MAX];
    Py_buffer *exports;
    size_t export_count;
    size_t export_room;
};

static void end_exports(struct piece *p) {
    while (p->export_count > 0) {
        PyBuffer_Release(&p->exports[--p->export_count]);
    }
}

/* Replaces the exception for an item of which no buffer can be had. */
static void refuse_item(const char *name) {
    PyObject *type, *problem, *trace;
    bool expected = PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
                    PyErr_ExceptionMatches(PyExc_BufferError);
    if (!expected) {
        return;
    }
    PyErr_Fetch(&type, &problem, &trace);
    PyErr_Format(PyExc_TypeError, "%s is an iterable of bytes or other contiguous buffers; reading it failed: %S", name,
                 problem != NULL ? problem : type);
    Py_XDECREF(type);
    Py_XDECREF(problem);
    Py_XDECREF(trace);
}

static bool export_item(struct piece *p, PyObject *item, const uint8_t **at, uint64_t *bytes) {
    if (p->export_count == p->export_room) {
        size_t room = p->export_room * 2 + EXPORTS_AT_ONCE;
        Py_buffer *more = PyMem_Malloc(room * sizeof *more);
        if (more == NULL) {
            PyErr_NoMemory();
            return false;
        }
        for (size_t i = 0; i < p->export_count; i++) {
            more[i] = p->exports[i];
        }
        PyMem_Free(p->exports);
        p->exports = more;
        p->export_room = room;
    }
    Py_buffer *b = &p->exports[p->export_count];
    if (PyObject_GetBuffer(item, b, PyBUF_SIMPLE) != 0) {
        return false;
    }
    p->export_count++;
    *at = b->buf;
    *bytes = (uint64_t)b->len;
    return true;
}

static bool take_item(struct piece *p, PyObject *item, const char *name, const uint8_t **at, uint64_t *bytes) {
    if (PyBytes_CheckExact(item)) {
        *at = (const uint8_t *)PyBytes_AS_STRING(item);
        *bytes = (uint64_t)PyBytes_GET_SIZE(item);
        return true;
    }
    if (export_item(p, item, at, bytes)) {
        return true;
    }
    refuse_item(name);
    return false;
}

/* The number of items from `start` on that make one piece; -1: an exception is set. */
static Py_ssize_t gather(struct piece *p, PyObject *contents, PyObject *headers, Py_ssize_t start) {
    Py_ssize_t count = PyTuple_GET_SIZE(contents) - start, i = 0;
    uint64_t bytes = 0;
    for (; i < count && i < ITEMS_MAX && bytes < BYTES_MAX; i++) {
        if (!take_item(p, PyTuple_GET_ITEM(contents, start + i), "contents", &p->contents[i], &p->sizes[i]) ||
            (headers != NULL &&
             !take_item(p, PyTuple_GET_ITEM(headers, start + i), "headers", &p->headers[i], &p->header_sizes[i]))) {
            return -1;
        }
        bytes += p->sizes[i];
    }
    return i;
}

/* They are appended to an array of 64-bit numbers. */
static bool keep_ids(const struct piece *p, size_t count, PyObject *ids) {
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)p->ids, (Py_ssize_t)(count * sizeof *p->ids));
    PyObject *result = bytes != NULL ? PyObject_CallMethod(ids, "frombytes", "O", bytes) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(result);
    return result != NULL;
}

struct wanted {
    PyObject *contents;
    PyObject *headers; /* NULL: none */
    PyObject *ids;
    Py_ssize_t start;
    uint32_t queue_id;
    ls_tx *tx;
    int flags; /* LS_WAIT is meant for the last piece */
};

/* Publishes one piece. Returns where the next begins. */
static PyObject *publish_piece(const struct store_calls *self, struct piece *p, const struct wanted *w) {
    Py_ssize_t count = gather(p, w->contents, w->headers, w->start);
    if (count < 0) {
        end_exports(p);
        return NULL;
    }
    Py_ssize_t next = w->start + count;
    bool more_follow = next < PyTuple_GET_SIZE(w->contents) && (w->flags & LS_WAIT) != 0;
    int flags = more_follow ? LS_MORE : w->flags;
    const ls_calls *calls = self->state->calls;
    ls_store *store = self->store;
    size_t done = 0;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = calls->publish_gather(store, w->queue_id, (size_t)count, p->contents, p->sizes,
                               w->headers != NULL ? p->headers : NULL, w->headers != NULL ? p->header_sizes : NULL,
                               w->tx, flags, p->ids, &done);
    Py_END_ALLOW_THREADS
    end_exports(p);
    if (!keep_ids(p, done, w->ids)) {
        return NULL;
    }
    return rc == LS_OK ? PyLong_FromSsize_t(next) : hot_fail(self->state, rc);
}

PyObject *hot_publish_items(struct store_calls *self, PyObject *args) {
    struct wanted w;
    PyObject *transaction, *headers;
    unsigned int queue_id;
    if (!PyArg_ParseTuple(args, "IO!OnOiO:_publish_items", &queue_id, &PyTuple_Type, &w.contents, &headers, &w.start,
                          &transaction, &w.flags, &w.ids)) {
        return NULL;
    }
    w.queue_id = queue_id;
    w.headers = headers != Py_None ? headers : NULL;
    if (self->store == NULL || !hot_transaction(self, transaction, &w.tx) || w.start < 0 ||
        w.start > PyTuple_GET_SIZE(w.contents) ||
        (w.headers != NULL &&
         (!PyTuple_CheckExact(headers) || PyTuple_GET_SIZE(headers) != PyTuple_GET_SIZE(w.contents)))) {
        return PyErr_Format(PyExc_ValueError,
                            "contents and headers are tuples of one length, for an open store and its own transaction");
    }
    struct piece p;
    p.exports = NULL;
    p.export_count = p.export_room = 0;
    PyObject *next = publish_piece(self, &p, &w);
    PyMem_Free(p.exports);
    return next;
}
