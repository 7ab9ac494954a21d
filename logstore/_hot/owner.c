/*
 * Owner: the object that frees what the core has made for Python, such as a store, a cursor or a reader.
 *
 * Every object that keeps the core's pointer keeps the owner, too, so the pointer is valid as long as anything can use
 * it. The owner refers to no Python object, so the garbage collector does not know it: it is freed after the last
 * object that keeps it, in whatever order a cycle is taken apart. A finalizer (__del__, tp_finalize, weakref) would run
 * too early: other objects of the same cycle may still call the library.
 *
 * The slot exists before the core fills it, so an exception of a signal handler right after that call leaks nothing.
 */
#include "hot.h"

#include <unistd.h>

/* The names as Python gives them. `guarded`: in a forked child the core itself leaves the parent's memory alone. */
static const struct {
    const char *name;
    bool guarded;
} kinds[] = {
    [OWNS_STORE] = {"store", true},
    [OWNS_CURSOR] = {"cursor", true},
    [OWNS_TX] = {"tx", true},
    [OWNS_HOLD] = {"hold", false},
    [OWNS_READER] = {"reader", false},
    [OWNS_ROWS] = {"rows", false},
    [OWNS_MESSAGE_ROWS] = {"message_rows", false},
    [OWNS_COLUMNS] = {"columns", false},
    [OWNS_INBOX] = {"inbox", true},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

static PyObject *owner_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    const char *name;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0) {
        return PyErr_Format(PyExc_TypeError, "Owner() takes no keyword arguments");
    }
    if (!PyArg_ParseTuple(args, "s:Owner", &name)) {
        return NULL;
    }
    size_t kind = 0;
    while (kind < KINDS && strcmp(kinds[kind].name, name) != 0) {
        kind++;
    }
    if (kind == KINDS) {
        return PyErr_Format(PyExc_ValueError, "the core makes no %s", name);
    }
    struct owner *self = (struct owner *)type->tp_alloc(type, 0);
    const struct hot_state *state = self != NULL ? hot_state_of((PyObject *)self) : NULL;
    if (state == NULL) {
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    self->calls = state->calls;
    self->kind = (enum owns)kind;
    self->process = kinds[kind].guarded ? 0 : getpid();
    return (PyObject *)self;
}

/* The interpreter is released: the end of a store waits for its threads, and a cursor's for the store's lock. */
static void free_now(const ls_calls *calls, enum owns kind, union owned at) {
    switch (kind) {
    case OWNS_STORE:
        calls->free(at.store);
        break;
    case OWNS_CURSOR:
        calls->cursor_close(at.cursor);
        break;
    case OWNS_TX:
        calls->tx_free(at.tx);
        break;
    case OWNS_HOLD:
        calls->hold_release(at.hold);
        break;
    case OWNS_READER:
        calls->reader_close(at.reader);
        break;
    case OWNS_ROWS:
        calls->rows_free(at.rows);
        break;
    case OWNS_MESSAGE_ROWS:
        calls->message_rows_free(at.message_rows);
        break;
    case OWNS_COLUMNS:
        calls->columns_free(at.columns);
        break;
    case OWNS_INBOX:
        calls->inbox_free(at.inbox);
        break;
    }
}

/* Frees at most once: the slot is emptied before the interpreter is released. */
static void end(struct owner *self) {
    union owned at = self->at;
    if (at.any == NULL) {
        return;
    }
    self->at.any = NULL;
    if (self->process != 0 && self->process != getpid()) {
        return; /* a forked child does not touch its parent's objects: files are shared, and threads are missing */
    }
    const ls_calls *calls = self->calls;
    enum owns kind = self->kind;
    PyObject *type, *problem, *trace;
    PyErr_Fetch(&type, &problem, &trace);
    Py_BEGIN_ALLOW_THREADS
    free_now(calls, kind, at);
    Py_END_ALLOW_THREADS
    PyErr_Restore(type, problem, trace);
}

static void owner_dealloc(struct owner *self) {
    PyTypeObject *type = Py_TYPE(self);
    end(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *owner_free(struct owner *self, PyObject *Py_UNUSED(unused)) {
    end(self);
    Py_RETURN_NONE;
}

static PyObject *owner_slot(struct owner *self, void *Py_UNUSED(closure)) { return PyLong_FromVoidPtr(&self->at); }

bool hot_owned(const struct hot_state *state, PyObject *given, enum owns kind, union owned *at) {
    const struct owner *owner = (const struct owner *)given;
    if (!Py_IS_TYPE(given, state->owner_type) || owner->kind != kind || owner->at.any == NULL) {
        (void)PyErr_Format(PyExc_ValueError, "this needs an owner that holds a %s of the core", kinds[kind].name);
        return false;
    }
    *at = owner->at;
    return true;
}

static PyMethodDef owner_methods[] = {
    {"free", (PyCFunction)(void (*)(void))owner_free, METH_NOARGS,
     PyDoc_STR(
         "free($self)\n--\n\nFrees what it holds now. Nothing may use that any more. A second call does nothing.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef owner_members[] = {
    {"slot", (getter)(void (*)(void))owner_slot, NULL,
     PyDoc_STR("The address that the core writes its pointer to, valid while this object lives."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot owner_slots[] = {
    {Py_tp_doc, (void *)"Frees what the core has made, after the last object that keeps it."},
    {Py_tp_new, owner_new},
    {Py_tp_methods, owner_methods},
    {Py_tp_getset, owner_members},
    {Py_tp_dealloc, owner_dealloc},
    {0, NULL},
};

PyType_Spec hot_owner_spec = {
    .name = "logstore._hot.Owner",
    .basicsize = sizeof(struct owner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = owner_slots,
};
