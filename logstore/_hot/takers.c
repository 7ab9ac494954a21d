/*
 * Taker: one acquire that waits, of a thread, which calls wait(), or of an event loop's task, which the inbox resumes.
 *
 * No Python code runs between the end of a taker and the deliveries of what it got, so nothing is lost on the way. A Taker
 * that is freed gives its places back, as give_back() does, but it calls no listener.
 */
#include "hot.h"

struct taker_object {
    PyObject ob_base;
    const ls_calls *calls; /* a copy: the module's state may be gone when this is freed */
    ls_taker *taker;       /* NULL: it has ended */
    struct queue_calls *queue;
    PyObject *owner; /* of its inbox; or NULL */
};

/* The interpreter is released for the call, so the field is emptied before. */
static ls_taker *take_out(struct taker_object *self) {
    ls_taker *taker = self->taker;
    self->taker = NULL;
    return taker;
}

static size_t give_back(const ls_calls *calls, ls_taker *taker) {
    size_t done = 0;
    Py_BEGIN_ALLOW_THREADS(void)
    calls->taker_end(taker, NULL, LS_UNSEEN, &done);
    Py_END_ALLOW_THREADS
    return done;
}

static PyObject *taker_wait(struct taker_object *self, PyObject *args) {
    const ls_calls *calls = self->calls;
    const struct hot_state *state = hot_state_of((PyObject *)self);
    unsigned long long until_ns;
    int rc = LS_WOULD_WAIT;
    if (state == NULL || !PyArg_ParseTuple(args, "K:wait", &until_ns)) {
        return NULL;
    }
    while (rc == LS_WOULD_WAIT) {
        ls_taker *taker = self->taker;
        if (taker == NULL || self->owner != NULL) {
            return PyErr_Format(PyExc_RuntimeError, "no thread can wait for this taker");
        }
        Py_BEGIN_ALLOW_THREADS
        rc = calls->taker_wait(taker, until_ns);
        Py_END_ALLOW_THREADS
        if (rc == LS_WOULD_WAIT && PyErr_CheckSignals() != 0) {
            return NULL;
        }
    }
    return rc == LS_OK ? Py_NewRef(Py_None) : hot_fail(state, rc);
}

static PyObject *taker_take(struct taker_object *self, PyObject *args) {
    const ls_calls *calls = self->calls;
    const struct hot_state *state = hot_state_of((PyObject *)self);
    struct acquired a = {.rows = NULL};
    int load, rc;
    if (state == NULL || !PyArg_ParseTuple(args, "p:take", &load)) {
        return NULL;
    }
    if (self->taker == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "this taker has ended");
    }
    a.rows = PyMem_RawMalloc(LS_TAKER_MAX * sizeof *a.rows);
    if (a.rows == NULL) {
        return PyErr_NoMemory();
    }
    ls_taker *taker = take_out(self);
    Py_BEGIN_ALLOW_THREADS
    rc = calls->taker_end(taker, a.rows, 0, &a.count);
    Py_END_ALLOW_THREADS
    PyObject *made = rc == LS_OK ? hot_hand_out(self->queue, &a, load != 0) : hot_fail(state, rc);
    PyMem_RawFree(a.rows);
    return made;
}

static PyObject *taker_give_back(struct taker_object *self, PyObject *Py_UNUSED(unused)) {
    const struct hot_state *state = hot_state_of((PyObject *)self);
    if (state == NULL) {
        return NULL;
    }
    ls_taker *taker = take_out(self);
    if (taker == NULL || give_back(self->calls, taker) == 0) {
        Py_RETURN_NONE;
    }
    return PyObject_CallMethodNoArgs((PyObject *)self->queue, state->came_back);
}

static void taker_dealloc(struct taker_object *self) {
    PyTypeObject *type = Py_TYPE(self);
    ls_taker *taker = take_out(self);
    if (taker != NULL) {
        PyObject *kind, *problem, *traceback;
        PyErr_Fetch(&kind, &problem, &traceback);
        (void)give_back(self->calls, taker);
        PyErr_Restore(kind, problem, traceback);
    }
    Py_XDECREF((PyObject *)self->queue);
    Py_XDECREF(self->owner);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject *hot_taker(struct queue_calls *self, PyObject *args) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    PyObject *owner = Py_None;
    unsigned long long n, number = 0;
    union owned inbox = {.any = NULL};
    if (state == NULL || !PyArg_ParseTuple(args, "K|OK:_taker", &n, &owner, &number) ||
        (owner != Py_None && !hot_owned(state, owner, OWNS_INBOX, &inbox))) {
        return NULL;
    }
    if (self->store == NULL || self->store->store == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "this queue is of no store: call _attach first");
    }
    struct taker_object *made = (struct taker_object *)state->taker_type->tp_alloc(state->taker_type, 0);
    if (made == NULL) {
        return NULL;
    }
    made->calls = state->calls;
    made->queue = (struct queue_calls *)Py_NewRef((PyObject *)self);
    made->owner = owner != Py_None ? Py_NewRef(owner) : NULL;
    const ls_calls *calls = state->calls;
    ls_store *store = self->store->store;
    uint32_t id = self->id;
    int rc = calls->taker_new(store, id, (size_t)n, inbox.inbox, number, LS_TRY, &made->taker);
    if (rc == LS_WOULD_WAIT) {
        ls_taker *taker;
        Py_BEGIN_ALLOW_THREADS
        rc = calls->taker_new(store, id, (size_t)n, inbox.inbox, number, 0, &taker);
        Py_END_ALLOW_THREADS
        made->taker = taker;
    }
    if (rc != LS_OK) {
        Py_DECREF((PyObject *)made);
        return hot_fail(state, rc);
    }
    return (PyObject *)made;
}

static PyMethodDef taker_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))taker_wait, METH_VARARGS,
     PyDoc_STR(
         "wait($self, until_ns, /)\n--\n\n"
         "Waits until it is served or has ended, or until this time of the monotonic clock; 2**64 - 1: for ever.")},
    {"take", (PyCFunction)(void (*)(void))taker_take, METH_VARARGS,
     PyDoc_STR("take($self, load, /)\n--\n\nEnds it. Returns the deliveries of what it got, possibly none.")},
    {"give_back", (PyCFunction)(void (*)(void))taker_give_back, METH_NOARGS,
     PyDoc_STR("give_back($self)\n--\n\nEnds it, and gives back unseen what it got. Does nothing after its end.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot taker_slots[] = {
    {Py_tp_doc, (void *)"One acquire that waits."},
    {Py_tp_methods, taker_methods},
    {Py_tp_dealloc, taker_dealloc},
    {0, NULL},
};

PyType_Spec hot_taker_spec = {
    .name = "logstore._hot.Taker",
    .basicsize = sizeof(struct taker_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = taker_slots,
};
