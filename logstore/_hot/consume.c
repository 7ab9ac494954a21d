/*
 * The calls of consumers: acquire, accept and accept_many in their usual form; moving.c has release and move. Any other
 * form goes to the Python method with the suffix _slow, and so does a delivery that cannot be settled here: that method
 * raises the error.
 *
 * A delivery's mark `settled` is set before the core is called and cleared if the core refuses, so that a second thread
 * or a signal handler does not settle it, too; no Python code runs in between. But the core, not the mark, guarantees
 * that each place is settled once.
 */
#include "hot.h"

enum {
    SETTLED_HELD_MAX = 64,    /* for more places the interpreter is released */
    LOAD_BYTES = 1 << 20,     /* the most that one acquire loads */
    HEADER_BYTES = 512,       /* assumed size of a header if its size is not known */
    RECORD_BYTES = 64,        /* least bytes of a record that are neither header nor content */
    BUFFER_BYTES = 256 << 10, /* records are read in parts of this size, which a CPU's cache holds */
    REASON_ACCEPTED = 1,
};

/* ---- acquiring ---- */

/*
 * Frees the first deliveries of a list that no Python code has seen, without releasing their places: the caller does
 * that and restores the counts.
 */
static void disown(PyObject *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        ((struct delivery *)PyList_GET_ITEM(list, (Py_ssize_t)i))->settled = true;
    }
    Py_DECREF(list);
}

static PyObject *make_deliveries(struct hot_state *state, struct queue_calls *queue, const struct acquired *a) {
    PyObject *list = PyList_New((Py_ssize_t)a->count);
    for (size_t i = 0; list != NULL && i < a->count; i++) {
        PyObject *made = hot_delivery(state, queue, &a->rows[i]);
        if (made == NULL) {
            disown(list, i);
            return NULL;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, made);
    }
    return list;
}

/* ---- loading ---- */

/* The first messages of an acquire. Contents are allocated before they are read, so that no memory is copied twice. */
struct loading {
    const ls_calls *calls;
    ls_store *store;
    const ls_delivery *rows;
    size_t count;
    PyObject **contents; /* bytes objects of the right sizes */
    ls_span *spans;      /* content_at 0: it cannot be loaded; else header_at is in `headers` */
    uint8_t *buffer;
    uint8_t *headers;
    size_t headers_room, headers_used;
};

/* An estimate of the bytes that the message takes; in several records its header may be longer. */
static uint64_t bytes_of(const ls_delivery *d) {
    return d->start_bytes >= d->content_bytes ? d->start_bytes : d->content_bytes + HEADER_BYTES;
}

static size_t fitting(const struct acquired *a) {
    uint64_t left = LOAD_BYTES;
    size_t count = 0;
    for (; count < a->count && bytes_of(&a->rows[count]) <= left + RECORD_BYTES; count++) {
        uint64_t bytes = bytes_of(&a->rows[count]);
        left -= bytes > RECORD_BYTES ? bytes - RECORD_BYTES : 0;
    }
    return count;
}

/* Copies a header and a content into their places. This and the next functions run without the interpreter. */
static void keep(struct loading *l, size_t i, const uint8_t *header, const uint8_t *content) {
    ls_span *span = &l->spans[i];
    if (l->headers_room - l->headers_used < span->header_bytes) {
        size_t room = 2 * l->headers_room + span->header_bytes;
        uint8_t *grown = PyMem_RawRealloc(l->headers, room);
        if (grown == NULL) {
            span->content_at = 0;
            return;
        }
        l->headers = grown;
        l->headers_room = room;
    }
    if (span->header_bytes > 0) {
        memcpy(l->headers + l->headers_used, header, span->header_bytes);
    }
    span->header_at = l->headers_used;
    l->headers_used += span->header_bytes;
    memcpy(PyBytes_AS_STRING(l->contents[i]), content, span->content_bytes);
}

/* A message in several records, or with a record longer than the buffer. */
static void load_alone(struct loading *l, size_t i) {
    const ls_delivery *d = &l->rows[i];
    size_t room = (size_t)d->start_bytes + (size_t)d->content_bytes, done = 0;
    uint8_t *into = d->has_header == 0 ? PyMem_RawMalloc(room) : NULL; /* with its own header it is read on access */
    uint64_t sizes[2];
    int rc = into != NULL ? l->calls->load_many(l->store, &d->id, 1, into, room, sizes, &done) : LS_NO_MEMORY;
    if (rc == LS_OK && done == 1 && sizes[1] == d->content_bytes) {
        l->spans[i] =
            (ls_span){.content_at = 1, .header_bytes = (uint32_t)sizes[0], .content_bytes = (uint32_t)sizes[1]};
        keep(l, i, into, into + sizes[0]);
    }
    PyMem_RawFree(into);
}

static void load(struct loading *l) {
    int rc = LS_OK;
    for (size_t first = 0, done = 0; rc == LS_OK && first < l->count; first += done) {
        rc = l->calls->load_acquired(l->store, l->rows + first, l->count - first, l->spans + first, l->buffer,
                                     BUFFER_BYTES, &done);
        for (size_t i = first; rc == LS_OK && i < first + done; i++) {
            const ls_span *span = &l->spans[i];
            if (span->content_at == 0) {
                load_alone(l, i);
            } else if (span->content_bytes == l->rows[i].content_bytes) {
                keep(l, i, l->buffer + span->header_at, l->buffer + span->content_at);
            } else {
                l->spans[i].content_at = 0;
            }
        }
    }
}

/*
 * With the interpreter again: gives the deliveries their headers and contents, except those that could not be loaded.
 */
static bool give_loaded(struct loading *l, PyObject *list) {
    for (size_t i = 0; i < l->count; i++) {
        const ls_span *span = &l->spans[i];
        if (span->content_at == 0) {
            continue;
        }
        struct delivery *d = (struct delivery *)PyList_GET_ITEM(list, (Py_ssize_t)i);
        const char *header = l->headers_used > 0 ? (const char *)l->headers + span->header_at : "";
        d->header = PyBytes_FromStringAndSize(header, span->header_bytes);
        if (d->header == NULL) {
            return false;
        }
        d->content = l->contents[i];
        l->contents[i] = NULL;
    }
    return true;
}

static bool load_list(const struct store_calls *of, const struct acquired *a, PyObject *list) {
    struct loading l = {.calls = of->state->calls, .store = of->store, .rows = a->rows, .count = fitting(a)};
    size_t contents = 0;
    l.contents = PyMem_Malloc((l.count + 1) * sizeof *l.contents);
    l.spans = PyMem_Calloc(l.count + 1, sizeof *l.spans);
    l.buffer = PyMem_RawMalloc(BUFFER_BYTES);
    bool ready = l.contents != NULL && l.spans != NULL && l.buffer != NULL;
    for (; ready && contents < l.count; contents++) {
        l.contents[contents] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)a->rows[contents].content_bytes);
        ready = l.contents[contents] != NULL;
    }
    if (ready) {
        Py_BEGIN_ALLOW_THREADS
        load(&l);
        Py_END_ALLOW_THREADS
        ready = give_loaded(&l, list);
    } else {
        PyErr_NoMemory();
    }
    for (size_t i = 0; i < contents; i++) {
        Py_XDECREF(l.contents[i]);
    }
    PyMem_Free(l.contents);
    PyMem_Free(l.spans);
    PyMem_RawFree(l.buffer);
    PyMem_RawFree(l.headers);
    return ready;
}

PyObject *hot_hand_out(struct queue_calls *queue, const struct acquired *a, bool load) {
    const struct store_calls *of = queue->store;
    const ls_calls *calls = of->state->calls;
    ls_store *store = of->store;
    uint32_t id = queue->id;
    PyObject *made = make_deliveries(of->state, queue, a);
    if (made != NULL && load && a->count > 0 && !load_list(of, a, made)) {
        disown(made, a->count);
        made = NULL;
    }
    if (made == NULL && a->count > 0) {
        Py_BEGIN_ALLOW_THREADS(void)
        calls->release(store, id, a->rows, a->count, LS_UNSEEN);
        Py_END_ALLOW_THREADS
    }
    return made;
}

struct store_calls *hot_store_after_drops(const struct queue_calls *self) {
    struct store_calls *store = self->store;
    if (store != NULL && store->dropped != NULL) {
        hot_release_dropped(store);
    }
    return store;
}

PyObject *hot_acquire(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    const struct store_calls *of = hot_store_after_drops(self);
    struct hot_state *state = hot_state_of((PyObject *)self);
    Py_ssize_t keywords = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    bool usual = state != NULL && of != NULL && of->store != NULL && count <= 1 && keywords <= 1, load = false;
    uint64_t n = 1;
    if (state == NULL) {
        return NULL;
    }
    usual = usual && (count == 0 || hot_id(args[0], &n));
    if (usual && keywords == 1) {
        usual = PyTuple_GET_ITEM(names, 0) == state->load && PyBool_Check(args[count]);
        load = args[count] == Py_True;
    }
    return usual ? hot_acquire_rows(self, of, TAKE_FRONT, 0, n, load)
                 : hot_slow((PyObject *)self, state->acquire_slow, args, count, names);
}

/* ---- settling ---- */

struct delivery *hot_held(const struct hot_state *state, const struct queue_calls *queue, PyObject *given) {
    struct delivery *d = (struct delivery *)given;
    bool is_held = Py_IS_TYPE(given, state->delivery_type) && d->queue == queue && !d->settled && !queue->deleted;
    return is_held ? d : NULL;
}

bool hot_is_lost(int rc) {
    return rc == LS_UNKNOWN_MESSAGE || rc == LS_NOT_ENQUEUED || rc == LS_UNKNOWN_QUEUE || rc == LS_OUTCOME_UNKNOWN;
}

/* The keyword arguments may be `wait`, a bool, and `transaction`; false: the slow path must look at them. */
static bool take_keywords(const struct hot_state *state, PyObject *const *values, PyObject *names, bool *waits,
                          PyObject **transaction) {
    Py_ssize_t count = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    *waits = true;
    *transaction = Py_None;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (name == state->wait && PyBool_Check(values[i])) {
            *waits = values[i] == Py_True;
        } else if (name == state->transaction) {
            *transaction = values[i];
        } else {
            return false;
        }
    }
    return true;
}

PyObject *hot_accept(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    const struct store_calls *of = hot_store_after_drops(self);
    if (state == NULL) {
        return NULL;
    }
    struct delivery *d = of != NULL && of->store != NULL && count == 1 ? hot_held(state, self, args[0]) : NULL;
    PyObject *transaction;
    bool waits;
    if (d == NULL || !take_keywords(state, args + count, names, &waits, &transaction) || transaction != Py_None) {
        return hot_slow((PyObject *)self, state->accept_slow, args, count, names);
    }
    const ls_calls *calls = state->calls;
    ls_store *store = of->store;
    uint64_t lsn;
    waits = waits && !of->relaxed;
    d->settled = true;
    int rc = waits ? LS_WOULD_WAIT : calls->settle(store, self->id, &d->row, NULL, REASON_ACCEPTED, LS_TRY, &lsn);
    if (rc == LS_WOULD_WAIT) {
        int flags = waits ? LS_WAIT : 0;
        Py_BEGIN_ALLOW_THREADS
        rc = calls->settle(store, self->id, &d->row, NULL, REASON_ACCEPTED, flags, &lsn);
        Py_END_ALLOW_THREADS
    }
    if (rc != LS_OK) {
        d->settled = hot_is_lost(rc);
        return hot_fail(state, rc);
    }
    Py_RETURN_NONE;
}

/* Sets the attribute `dequeued` of the exception that is being raised, if its class has room for it. */
static PyObject *fail_after(size_t done) {
    PyObject *type, *problem, *trace;
    PyErr_Fetch(&type, &problem, &trace);
    PyErr_NormalizeException(&type, &problem, &trace);
    for (int tries = 0; tries < 2; tries++) { /* the first try may fail in an allocation */
        PyObject *dequeued = PyLong_FromSize_t(done);
        PyObject *name = PyUnicode_FromString("dequeued");
        bool is_set = dequeued != NULL && name != NULL &&
                      PyObject_GenericSetAttr(problem, name, dequeued) == 0; /* a method of the class may refuse */
        PyErr_Clear();
        Py_XDECREF(dequeued);
        Py_XDECREF(name);
        if (is_set) {
            break;
        }
    }
    PyErr_Restore(type, problem, trace);
    return NULL;
}

/* Makes a row of a token's (id, position, count). False: an exception is set. */
static bool row_of_token(PyObject *given, ls_delivery *row) {
    unsigned long long id, position;
    unsigned count;
    if (!PyArg_ParseTuple(given, "KKI:_accept_batch", &id, &position, &count)) {
        return false;
    }
    *row = (ls_delivery){.id = id, .position = position, .count = count};
    return true;
}

/* False: it cannot be settled. An exception may be set. A token has no mark: the core knows whether it holds the place. */
static bool claim_one(const struct hot_state *state, const struct queue_calls *self, PyObject *given,
                      ls_delivery *row) {
    if (PyTuple_CheckExact(given)) {
        return row_of_token(given, row);
    }
    struct delivery *d = hot_held(state, self, given);
    if (d != NULL) {
        *row = d->row;
        d->settled = true;
    }
    return d != NULL;
}

static void unclaim(PyObject *batch, Py_ssize_t i) {
    PyObject *given = PyTuple_GET_ITEM(batch, i);
    if (!PyTuple_CheckExact(given)) {
        ((struct delivery *)given)->settled = false;
    }
}

/* Marks all deliveries; or marks none and raises the error. */
static bool claim(const struct hot_state *state, struct queue_calls *self, PyObject *batch, ls_delivery *rows) {
    Py_ssize_t n = PyTuple_GET_SIZE(batch), i = 0;
    while (i < n && claim_one(state, self, PyTuple_GET_ITEM(batch, i), &rows[i])) {
        i++;
    }
    if (i == n) {
        return true;
    }
    if (PyErr_Occurred() == NULL) {
        PyObject *none = PyObject_CallMethodOneArg((PyObject *)self, state->refuse, PyTuple_GET_ITEM(batch, i));
        Py_XDECREF(none); /* it raises */
    }
    while (i-- > 0) {
        unclaim(batch, i);
    }
    return false;
}

bool hot_pend(const struct hot_state *state, PyObject *transaction, PyObject *batch, size_t done) {
    PyObject *part = done > 0 ? PyTuple_GetSlice(batch, 0, (Py_ssize_t)done) : NULL;
    PyObject *none = part != NULL ? PyObject_CallMethodOneArg(transaction, state->settles, part) : NULL;
    bool pends = done == 0 || none != NULL;
    Py_XDECREF(none);
    Py_XDECREF(part);
    return pends;
}

/* In a transaction no delivery stays marked: each is settled by the commit. */
static PyObject *accept_batch(const struct hot_state *state, struct queue_calls *self, PyObject *batch, bool waits,
                              PyObject *transaction, ls_tx *tx) {
    const ls_calls *calls = state->calls;
    ls_store *store = self->store->store;
    size_t n = (size_t)PyTuple_GET_SIZE(batch), done = 0, more = 0;
    ls_delivery *rows = PyMem_Malloc((n + 1) * sizeof *rows);
    if (rows == NULL) {
        PyErr_NoMemory();
        return fail_after(0);
    }
    if (!claim(state, self, batch, rows)) {
        PyMem_Free(rows);
        return fail_after(0);
    }
    int rc = LS_WOULD_WAIT;
    waits = waits && tx == NULL && !self->store->relaxed;
    if (!waits && n <= SETTLED_HELD_MAX) {
        rc = calls->settle_all(store, self->id, rows, n, tx, REASON_ACCEPTED, LS_TRY, &done);
    }
    if (rc == LS_WOULD_WAIT) {
        int flags = waits ? LS_WAIT : 0;
        Py_BEGIN_ALLOW_THREADS
        rc = calls->settle_all(store, self->id, rows + done, n - done, tx, REASON_ACCEPTED, flags, &more);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(rows);
    done += more;
    for (size_t i = tx != NULL ? 0 : done; i < n; i++) {
        unclaim(batch, (Py_ssize_t)i);
    }
    bool pends = tx == NULL || hot_pend(state, transaction, batch, done);
    if (pends && rc != LS_OK) {
        (void)hot_fail(state, rc);
    }
    return pends && rc == LS_OK ? Py_NewRef(Py_None) : fail_after(done);
}

PyObject *hot_accept_many(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    const struct store_calls *of = hot_store_after_drops(self);
    PyObject *transaction;
    ls_tx *tx;
    bool waits;
    if (state == NULL) {
        return NULL;
    }
    if (of == NULL || of->store == NULL || count != 1 ||
        (!PyList_CheckExact(args[0]) && !PyTuple_CheckExact(args[0])) ||
        !take_keywords(state, args + count, names, &waits, &transaction) || !hot_transaction(of, transaction, &tx)) {
        return hot_slow((PyObject *)self, state->accept_many_slow, args, count, names);
    }
    PyObject *batch = PySequence_Tuple(args[0]); /* another thread may change the list */
    for (Py_ssize_t i = 0; batch != NULL && i < PyTuple_GET_SIZE(batch); i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(batch, i), state->delivery_type)) {
            Py_DECREF(batch);
            return hot_slow((PyObject *)self, state->accept_many_slow, args, count, names);
        }
    }
    PyObject *made = batch != NULL ? accept_batch(state, self, batch, waits, transaction, tx) : NULL;
    Py_XDECREF(batch);
    return made;
}

PyObject *hot_accept_batch(struct queue_calls *self, PyObject *args) {
    const struct hot_state *state = hot_state_of((PyObject *)self);
    PyObject *batch, *transaction;
    ls_tx *tx;
    int waits;
    if (state == NULL || !PyArg_ParseTuple(args, "O!pO:_accept_batch", &PyTuple_Type, &batch, &waits, &transaction)) {
        return NULL;
    }
    if (self->store == NULL || !hot_transaction(self->store, transaction, &tx)) {
        PyErr_SetString(PyExc_ValueError, "deliveries are for a queue of a store, and a transaction of the same store");
        return NULL;
    }
    return accept_batch(state, self, batch, waits != 0, transaction, tx);
}

PyObject *hot_mark_settled(PyObject *module, PyObject *batch) {
    const struct hot_state *state = PyModule_GetState(module);
    for (Py_ssize_t i = 0; PyTuple_Check(batch) && i < PyTuple_GET_SIZE(batch); i++) {
        PyObject *given = PyTuple_GET_ITEM(batch, i);
        if (Py_IS_TYPE(given, state->delivery_type)) {
            ((struct delivery *)given)->settled = true;
        }
    }
    Py_RETURN_NONE;
}
