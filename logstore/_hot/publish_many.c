/*
 * _publish_items publishes messages from the buffers that hold them, one piece with each call of the core. The items
 * are a tuple, which no other thread can change; during a call every buffer is exported, so that none moves.
 *
 * _publish_packed publishes contents that stand one after another in memory, with one call.
 */
#include "publish.h"

enum {
    ITEMS_MAX = 1024,     /* items per piece */
    BYTES_MAX = 1 << 20,  /* bytes per piece; a larger single item goes alone */
    EXPORTS_AT_ONCE = 16, /* memory for exported buffers is allocated for this many at a time */
};

struct piece {
    Py_ssize_t most; /* items */
    const uint8_t **contents;
    const uint8_t **headers;
    uint64_t *sizes;
    uint64_t *header_sizes;
    Py_buffer *exports;
    size_t export_count;
    size_t export_room;
};

/* Memory for at most `most` items; a thread's stack is too small for it. False: an exception is set. */
static bool make_piece(struct piece *p, Py_ssize_t most) {
    size_t n = (size_t)(most < ITEMS_MAX ? most : ITEMS_MAX);
    *p = (struct piece){.most = (Py_ssize_t)n};
    uint8_t *memory = PyMem_Malloc(n * 2 * (sizeof *p->contents + sizeof *p->sizes));
    if (memory == NULL) {
        (void)PyErr_NoMemory();
        return false;
    }
    p->contents = (const uint8_t **)(void *)memory;
    p->headers = p->contents + n;
    p->sizes = (uint64_t *)(void *)(p->headers + n);
    p->header_sizes = p->sizes + n;
    return true;
}

static void free_piece(struct piece *p) {
    PyMem_Free(p->exports);
    PyMem_Free((void *)p->contents);
}

static void end_exports(struct piece *p) {
    while (p->export_count > 0) {
        PyBuffer_Release(&p->exports[--p->export_count]);
    }
}

static bool make_room(struct piece *p) {
    if (p->export_count < p->export_room) {
        return true;
    }
    size_t room = p->export_room * 2 + EXPORTS_AT_ONCE;
    Py_buffer *more = PyMem_Malloc(room * sizeof *more);
    if (more == NULL) {
        (void)PyErr_NoMemory();
        return false;
    }
    for (size_t i = 0; i < p->export_count; i++) {
        more[i] = p->exports[i];
    }
    PyMem_Free(p->exports);
    p->exports = more;
    p->export_room = room;
    return true;
}

static bool take_item(struct piece *p, PyObject *item, struct item_name name, const uint8_t **at, uint64_t *bytes) {
    if (PyBytes_CheckExact(item)) { /* the usual case, without a call */
        *at = (const uint8_t *)PyBytes_AS_STRING(item);
        *bytes = (uint64_t)PyBytes_GET_SIZE(item);
        return true;
    }
    struct part part;
    bool exported = false;
    if (!make_room(p) || !hot_part(item, name, &part, p->exports + p->export_count, &exported)) {
        return false;
    }
    p->export_count += exported ? 1 : 0;
    *at = part.at;
    *bytes = part.bytes;
    return true;
}

struct wanted {
    PyObject *contents;
    PyObject *headers; /* NULL: none */
    Py_ssize_t start;
    uint32_t queue_id;
    ls_times times; /* of every place; zeros: none */
    ls_tx *tx;
    int flags; /* LS_WAIT is meant for the last piece */
};

/* The number of items from the start on that make one piece; -1: an exception is set. `published`: the items before. */
static Py_ssize_t gather(struct piece *p, const struct wanted *w, size_t published) {
    Py_ssize_t count = PyTuple_GET_SIZE(w->contents) - w->start, i = 0;
    uint64_t bytes = 0;
    for (; i < count && i < p->most && bytes < BYTES_MAX; i++) {
        Py_ssize_t at = w->start + i;
        const struct item_name content = {"contents", published + (size_t)i}, header = {"headers", content.index};
        if (!take_item(p, PyTuple_GET_ITEM(w->contents, at), content, &p->contents[i], &p->sizes[i]) ||
            (w->headers != NULL &&
             !take_item(p, PyTuple_GET_ITEM(w->headers, at), header, &p->headers[i], &p->header_sizes[i]))) {
            return -1;
        }
        bytes += p->sizes[i];
    }
    return i;
}

/* Publishes one piece, and moves the start past it. */
static bool publish_piece(const struct store_calls *self, struct piece *p, struct wanted *w, struct id_room *ids) {
    Py_ssize_t count = gather(p, w, ids->count);
    if (count < 0 || !hot_ids_need(ids, (size_t)count)) {
        end_exports(p);
        return false;
    }
    bool more_follow = w->start + count < PyTuple_GET_SIZE(w->contents) && (w->flags & LS_WAIT) != 0;
    int flags = more_follow ? LS_MORE : w->flags;
    const ls_calls *calls = self->state->calls;
    ls_store *store = self->store;
    size_t done = 0;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = calls->publish_gather(store, w->queue_id, (size_t)count, p->contents, p->sizes,
                               w->headers != NULL ? p->headers : NULL, w->headers != NULL ? p->header_sizes : NULL,
                               &w->times, w->tx, flags, hot_ids_next(ids), &done);
    Py_END_ALLOW_THREADS
    end_exports(p);
    ids->count += done;
    w->start += count;
    if (rc != LS_OK) {
        (void)hot_fail(self->state, rc);
    }
    return rc == LS_OK;
}

static bool publish_pieces(const struct store_calls *self, struct wanted *w, struct id_room *ids) {
    struct piece p;
    bool fine = make_piece(&p, PyTuple_GET_SIZE(w->contents));
    while (fine && w->start < PyTuple_GET_SIZE(w->contents)) {
        fine = publish_piece(self, &p, w, ids) && PyErr_CheckSignals() == 0;
    }
    free_piece(&p);
    return fine;
}

PyObject *hot_publish_items(struct store_calls *self, PyObject *args) {
    struct wanted w = {.start = 0};
    struct id_room ids;
    PyObject *transaction, *headers, *array;
    unsigned int queue_id;
    unsigned long long not_before_us, expires_us;
    if (!PyArg_ParseTuple(args, "IO!OOKKiO:_publish_items", &queue_id, &PyTuple_Type, &w.contents, &headers,
                          &transaction, &not_before_us, &expires_us, &w.flags, &array)) {
        return NULL;
    }
    w.queue_id = queue_id;
    w.times = (ls_times){.not_before_us = not_before_us, .expires_us = expires_us};
    w.headers = headers != Py_None ? headers : NULL;
    if (self->store == NULL || !hot_transaction(self, transaction, &w.tx) ||
        (w.headers != NULL &&
         (!PyTuple_CheckExact(headers) || PyTuple_GET_SIZE(headers) != PyTuple_GET_SIZE(w.contents)))) {
        return PyErr_Format(PyExc_ValueError,
                            "contents and headers are tuples of one length, for an open store and its own transaction");
    }
    bool fine = hot_ids_begin(&ids, array) && publish_pieces(self, &w, &ids);
    hot_ids_end(&ids);
    return fine ? Py_NewRef(Py_None) : NULL;
}

/* ---- contents one after another ---- */

struct packed {
    Py_buffer data;
    Py_buffer sizes;
};

/* The number of sizes if their sum is not above the data's length; -1: an exception is set. */
static Py_ssize_t check_sizes(const struct packed *p) {
    const uint64_t *sizes = p->sizes.buf;
    Py_ssize_t count = p->sizes.len / (Py_ssize_t)sizeof *sizes;
    uint64_t left = (uint64_t)p->data.len;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (sizes[i] > left) {
            PyErr_SetString(PyExc_ValueError, "the sizes are more than the data has bytes");
            return -1;
        }
        left -= sizes[i];
    }
    return count;
}

static bool publish_packed(const struct store_calls *self, const struct packed *p, uint32_t queue_id,
                           const ls_times *times, ls_tx *tx, int flags, struct id_room *ids) {
    Py_ssize_t count = check_sizes(p);
    if (count < 0 || !hot_ids_need(ids, (size_t)count)) {
        return false;
    }
    const ls_calls *calls = self->state->calls;
    ls_store *store = self->store;
    size_t done = 0;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = calls->publish_many(store, queue_id, (size_t)count, p->data.buf, p->sizes.buf, NULL, NULL, times, tx, flags,
                             hot_ids_next(ids), &done);
    Py_END_ALLOW_THREADS
    ids->count += done;
    if (rc != LS_OK) {
        (void)hot_fail(self->state, rc);
    }
    return rc == LS_OK;
}

PyObject *hot_publish_packed(struct store_calls *self, PyObject *args) {
    struct packed p;
    struct id_room ids;
    PyObject *transaction, *array;
    unsigned int queue_id;
    unsigned long long not_before_us, expires_us;
    int flags;
    ls_tx *tx;
    if (!PyArg_ParseTuple(args, "Iy*y*OKKiO:_publish_packed", &queue_id, &p.data, &p.sizes, &transaction,
                          &not_before_us, &expires_us, &flags, &array)) {
        return NULL;
    }
    const ls_times times = {.not_before_us = not_before_us, .expires_us = expires_us};
    bool fine = self->store != NULL && hot_transaction(self, transaction, &tx);
    if (fine) {
        fine = hot_ids_begin(&ids, array) && publish_packed(self, &p, queue_id, &times, tx, flags, &ids);
        hot_ids_end(&ids);
    } else {
        PyErr_SetString(PyExc_ValueError, "contents are for an open store and its own transaction");
    }
    PyBuffer_Release(&p.data);
    PyBuffer_Release(&p.sizes);
    return fine ? Py_NewRef(Py_None) : NULL;
}
