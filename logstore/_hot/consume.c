/*
 * The calls of consumers: acquire, accept, accept_many and release in their usual form. Any other form is for the Python
 * method with the suffix _slow, as is a delivery that cannot be settled here, which has the error.
 *
 * A delivery's mark `settled` is set before the core is called and taken back if that refuses, so that a second thread or a
 * signal handler does not settle it, too; no Python code runs in between. That each place is settled once is the core's
 * promise, not the mark's.
 */
#include "hot.h"

enum {
    ROWS_FIRST = 1024,    /* memory for this many, then for twice as many */
    HELD_ROWS_MAX = 64,   /* for more the interpreter is released */
    LOAD_BYTES = 1 << 20, /* the most that one acquire loads */
    HEADER_BYTES = 512,   /* room for a header and its record's overhead; a longer header is read on access */
    REASON_ACCEPTED = 1,
    NO_ROWS = -1, /* no memory in the binding; the core has codes from 0 on */
};

/* ---- acquiring ---- */

/* One call's deliveries, and what is loaded of them. */
struct acquired {
    ls_delivery *rows;
    size_t count;
    uint8_t *loaded;      /* headers and contents, in order; NULL: none */
    uint64_t (*sizes)[2]; /* of each; SIZE_NOT_LOADED: it is not there */
};

#define SIZE_NOT_LOADED UINT64_MAX
#define ROWS_MAX        (SIZE_MAX / 4 / sizeof(ls_delivery)) /* more than memory has */

/* Up to n, without the interpreter unless `flags` has LS_TRY. */
static int acquire_rows(const ls_calls *calls, ls_store *store, uint32_t queue, size_t n, int flags,
                        struct acquired *a) {
    for (size_t room = n < ROWS_FIRST ? n : ROWS_FIRST;; room = n / 2 < room ? n : 2 * room) {
        ls_delivery *rows = PyMem_RawRealloc(a->rows, room * sizeof *rows);
        size_t done = 0;
        if (rows == NULL) {
            return NO_ROWS;
        }
        a->rows = rows;
        int rc = calls->acquire(store, queue, rows + a->count, room - a->count, flags, &done);
        a->count += done;
        if (rc != LS_OK || a->count < room || room == n) {
            return rc;
        }
    }
}

/* How many from `first` on fit into the rest of the memory, and how much of it they take. */
static size_t fitting(const struct acquired *a, size_t first, size_t left, size_t *room) {
    size_t last = first;
    for (*room = 0; last < a->count; last++) {
        uint64_t bytes = a->rows[last].content_bytes;
        if (bytes > left || bytes + HEADER_BYTES > left - *room) {
            break;
        }
        *room += (size_t)bytes + HEADER_BYTES;
    }
    return last;
}

static bool concerns_one_message(int rc) { return rc == LS_UNKNOWN_MESSAGE || rc == LS_CORRUPT || rc == LS_IO; }

/* Those that fit into LOAD_BYTES and can be read; the others are read on access. */
static void load_rows(const ls_calls *calls, ls_store *store, struct acquired *a) {
    size_t first = 0, left = LOAD_BYTES, room, used = 0;
    size_t last = fitting(a, 0, left, &room);
    uint64_t *ids = PyMem_RawMalloc((last + 1) * sizeof *ids);
    a->sizes = PyMem_RawMalloc((a->count + 1) * sizeof *a->sizes);
    a->loaded = PyMem_RawMalloc(room + 1);
    if (ids == NULL || a->sizes == NULL || a->loaded == NULL) {
        PyMem_RawFree(a->loaded);
        a->loaded = NULL;
    }
    for (size_t i = 0; a->loaded != NULL && i < a->count; i++) {
        a->sizes[i][1] = SIZE_NOT_LOADED;
    }
    for (size_t i = 0; ids != NULL && i < last; i++) {
        ids[i] = a->rows[i].id;
    }
    while (a->loaded != NULL && first < last) {
        size_t done = 0;
        int rc =
            calls->load_many(store, ids + first, last - first, a->loaded + used, room - used, a->sizes[first], &done);
        for (size_t end = first + done; first < end; first++) {
            used += (size_t)(a->sizes[first][0] + a->sizes[first][1]);
        }
        if (first < last) {
            a->sizes[first++][1] = SIZE_NOT_LOADED; /* its header does not fit, or it cannot be read */
        }
        if (rc != LS_OK && !concerns_one_message(rc)) {
            break;
        }
    }
    for (size_t i = first; a->loaded != NULL && i < last; i++) {
        a->sizes[i][1] = SIZE_NOT_LOADED;
    }
    PyMem_RawFree(ids);
}

static PyObject *make_deliveries(const struct hot_state *state, struct queue_calls *queue, const struct acquired *a) {
    const char *at = (const char *)a->loaded;
    PyObject *list = PyList_New((Py_ssize_t)a->count);
    for (size_t i = 0; list != NULL && i < a->count; i++) {
        struct delivery *made = (struct delivery *)hot_delivery(state, queue, &a->rows[i]);
        bool whole = made != NULL;
        if (whole && a->loaded != NULL && a->sizes[i][1] != SIZE_NOT_LOADED) {
            Py_ssize_t header_bytes = (Py_ssize_t)a->sizes[i][0], content_bytes = (Py_ssize_t)a->sizes[i][1];
            made->header = PyBytes_FromStringAndSize(at, header_bytes);
            made->content = PyBytes_FromStringAndSize(at + header_bytes, content_bytes);
            at += header_bytes + content_bytes;
            whole = made->header != NULL && made->content != NULL;
        }
        if (whole) {
            PyList_SET_ITEM(list, (Py_ssize_t)i, (PyObject *)made);
        } else {
            Py_XDECREF((PyObject *)made);
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *acquire(struct queue_calls *self, const struct store_calls *of, size_t n, bool load) {
    const ls_calls *calls = of->state->calls;
    ls_store *store = of->store;
    struct acquired a = {.rows = NULL};
    int rc = LS_WOULD_WAIT;
    if (n <= HELD_ROWS_MAX && !load) {
        rc = acquire_rows(calls, store, self->id, n, LS_TRY, &a);
    }
    if (rc == LS_WOULD_WAIT) {
        Py_BEGIN_ALLOW_THREADS rc = acquire_rows(calls, store, self->id, n, 0, &a);
        if (rc == LS_OK && load && a.count > 0) {
            load_rows(calls, store, &a);
        }
        Py_END_ALLOW_THREADS
    }
    PyObject *made = rc == LS_OK     ? make_deliveries(of->state, self, &a)
                     : rc == NO_ROWS ? PyErr_NoMemory()
                                     : hot_fail(of->state, rc);
    if (made == NULL && a.count > 0) {
        Py_BEGIN_ALLOW_THREADS(void) calls->release(store, self->id, a.rows, a.count, LS_UNSEEN);
        Py_END_ALLOW_THREADS
    }
    PyMem_RawFree(a.rows);
    PyMem_RawFree(a.loaded);
    PyMem_RawFree(a.sizes);
    return made;
}

PyObject *hot_acquire(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    const struct store_calls *of = self->store;
    struct hot_state *state = hot_state_of((PyObject *)self);
    Py_ssize_t keywords = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    bool usual = state != NULL && of != NULL && of->store != NULL && count <= 1 && keywords <= 1, load = false;
    uint64_t n = 1;
    if (state == NULL) {
        return NULL;
    }
    usual = usual && (count == 0 || hot_id(args[0], &n));
    n = n < ROWS_MAX ? n : ROWS_MAX;
    if (usual && keywords == 1) {
        usual = PyTuple_GET_ITEM(names, 0) == state->load && PyBool_Check(args[count]);
        load = args[count] == Py_True;
    }
    return usual ? acquire(self, of, (size_t)n, load)
                 : hot_slow((PyObject *)self, state->acquire_slow, args, count, names);
}

/* ---- settling ---- */

/* The delivery if it can be settled on this queue; NULL for anything else. Raises nothing. */
static struct delivery *held(const struct hot_state *state, const struct queue_calls *queue, PyObject *given) {
    struct delivery *d = (struct delivery *)given;
    bool is_held = Py_IS_TYPE(given, state->delivery_type) && d->queue == queue && !d->settled && !queue->deleted;
    return is_held ? d : NULL;
}

/* Whether the place is no longer this delivery's, whatever comes next. */
static bool is_lost(int rc) {
    return rc == LS_UNKNOWN_MESSAGE || rc == LS_NOT_ENQUEUED || rc == LS_UNKNOWN_QUEUE || rc == LS_OUTCOME_UNKNOWN;
}

/* The only keyword argument may be `wait`, a bool; false: the slow path must look at them. */
static bool take_wait(const struct hot_state *state, PyObject *const *values, PyObject *names, bool *waits) {
    Py_ssize_t count = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    *waits = true;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (name == state->wait && PyBool_Check(values[i])) {
            *waits = values[i] == Py_True;
        } else if (name != state->transaction || values[i] != Py_None) {
            return false;
        }
    }
    return true;
}

PyObject *hot_accept(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    const struct store_calls *of = self->store;
    if (state == NULL) {
        return NULL;
    }
    struct delivery *d = of != NULL && of->store != NULL && count == 1 ? held(state, self, args[0]) : NULL;
    bool waits;
    if (d == NULL || !take_wait(state, args + count, names, &waits)) {
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
        Py_BEGIN_ALLOW_THREADS rc = calls->settle(store, self->id, &d->row, NULL, REASON_ACCEPTED, flags, &lsn);
        Py_END_ALLOW_THREADS
    }
    if (rc != LS_OK) {
        d->settled = is_lost(rc);
        return hot_fail(state, rc);
    }
    Py_RETURN_NONE;
}

/* Sets the attribute `dequeued` of the exception that is being raised. */
static PyObject *fail_after(size_t done) {
    PyObject *type, *problem, *trace;
    PyErr_Fetch(&type, &problem, &trace);
    PyErr_NormalizeException(&type, &problem, &trace);
    PyObject *dequeued = PyLong_FromSize_t(done);
    if (dequeued != NULL) {
        (void)PyObject_SetAttrString(problem, "dequeued", dequeued);
    }
    PyErr_Clear();
    Py_XDECREF(dequeued);
    PyErr_Restore(type, problem, trace);
    return NULL;
}

/* Marks all, or none and raises the error. */
static bool claim(const struct hot_state *state, struct queue_calls *self, PyObject *batch, ls_delivery *rows) {
    Py_ssize_t n = PyTuple_GET_SIZE(batch), i = 0;
    for (; i < n; i++) {
        struct delivery *d = held(state, self, PyTuple_GET_ITEM(batch, i));
        if (d == NULL) {
            break;
        }
        rows[i] = d->row;
        d->settled = true;
    }
    if (i == n) {
        return true;
    }
    PyObject *none = PyObject_CallMethodOneArg((PyObject *)self, state->refuse, PyTuple_GET_ITEM(batch, i));
    Py_XDECREF(none); /* it raises */
    while (i-- > 0) {
        ((struct delivery *)PyTuple_GET_ITEM(batch, i))->settled = false;
    }
    return false;
}

static PyObject *accept_batch(const struct hot_state *state, struct queue_calls *self, PyObject *batch, bool waits) {
    const ls_calls *calls = state->calls;
    ls_store *store = self->store->store;
    size_t n = (size_t)PyTuple_GET_SIZE(batch), done = 0, more = 0;
    ls_delivery *rows = PyMem_Malloc((n + 1) * sizeof *rows);
    if (rows == NULL) {
        return PyErr_NoMemory();
    }
    if (!claim(state, self, batch, rows)) {
        PyMem_Free(rows);
        return fail_after(0);
    }
    int rc = LS_WOULD_WAIT;
    if (!waits && n <= HELD_ROWS_MAX) {
        rc = calls->settle_all(store, self->id, rows, n, REASON_ACCEPTED, LS_TRY, &done);
    }
    if (rc == LS_WOULD_WAIT) {
        int flags = waits ? LS_WAIT : 0;
        Py_BEGIN_ALLOW_THREADS rc =
            calls->settle_all(store, self->id, rows + done, n - done, REASON_ACCEPTED, flags, &more);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(rows);
    for (size_t i = done + more; i < n; i++) {
        ((struct delivery *)PyTuple_GET_ITEM(batch, (Py_ssize_t)i))->settled = false;
    }
    if (rc != LS_OK) {
        (void)hot_fail(state, rc);
        return fail_after(done + more);
    }
    Py_RETURN_NONE;
}

PyObject *hot_accept_many(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    const struct store_calls *of = self->store;
    bool waits;
    if (state == NULL) {
        return NULL;
    }
    if (of == NULL || of->store == NULL || count != 1 ||
        (!PyList_CheckExact(args[0]) && !PyTuple_CheckExact(args[0])) ||
        !take_wait(state, args + count, names, &waits)) {
        return hot_slow((PyObject *)self, state->accept_many_slow, args, count, names);
    }
    PyObject *batch = PySequence_Tuple(args[0]); /* another thread may change the list */
    for (Py_ssize_t i = 0; batch != NULL && i < PyTuple_GET_SIZE(batch); i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(batch, i), state->delivery_type)) {
            Py_DECREF(batch);
            return hot_slow((PyObject *)self, state->accept_many_slow, args, count, names);
        }
    }
    PyObject *made = batch != NULL ? accept_batch(state, self, batch, waits && !of->relaxed) : NULL;
    Py_XDECREF(batch);
    return made;
}

PyObject *hot_release(struct queue_calls *self, PyObject *given) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    const struct store_calls *of = self->store;
    struct delivery *d = state != NULL && of != NULL && of->store != NULL ? held(state, self, given) : NULL;
    if (d == NULL) {
        return state != NULL ? PyObject_CallMethodOneArg((PyObject *)self, state->refuse, given) : NULL;
    }
    const ls_calls *calls = state->calls;
    ls_store *store = of->store;
    d->settled = true;
    int rc = calls->release(store, self->id, &d->row, 1, LS_TRY);
    if (rc == LS_WOULD_WAIT) {
        Py_BEGIN_ALLOW_THREADS rc = calls->release(store, self->id, &d->row, 1, 0);
        Py_END_ALLOW_THREADS
    }
    if (rc != LS_OK && rc != LS_CLOSED && rc != LS_FORKED) { /* after those, nothing is acquired */
        d->settled = is_lost(rc);
        return hot_fail(state, rc);
    }
    return PyObject_CallMethodNoArgs((PyObject *)self, state->came_back);
}
