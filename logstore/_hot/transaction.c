/* TransactionCalls, the base of logstore.Transaction: the core's handle, for calls with `transaction=`. */
#include "hot.h"

bool hot_transaction(const struct store_calls *store, PyObject *given, ls_tx **handle) {
    *handle = NULL;
    if (given == Py_None) {
        return true;
    }
    if (!PyObject_TypeCheck(given, store->state->transaction_type)) {
        return false;
    }
    const struct transaction_calls *transaction = (const struct transaction_calls *)given;
    *handle = transaction->handle;
    return *handle != NULL && transaction->store == (const PyObject *)store;
}

static PyObject *transaction_attach(struct transaction_calls *self, PyObject *args) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    PyObject *store, *owner;
    union owned at;
    if (state == NULL || !PyArg_ParseTuple(args, "O!O:_attach", state->store_type, &store, &owner) ||
        !hot_owned(state, owner, OWNS_TX, &at)) {
        return NULL;
    }
    if (self->owner != NULL) {
        return PyErr_Format(PyExc_ValueError, "a transaction gets one handle, once");
    }
    self->store = Py_NewRef(store);
    self->owner = Py_NewRef(owner);
    self->handle = at.tx;
    Py_RETURN_NONE;
}

static int transaction_traverse(struct transaction_calls *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    Py_VISIT(self->store);
    return 0;
}

/* There is no tp_clear, as for a store. */
static void transaction_dealloc(struct transaction_calls *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->store);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef transaction_methods[] = {
    {"_attach", (PyCFunction)(void (*)(void))transaction_attach, METH_VARARGS,
     PyDoc_STR("_attach($self, store, owner)\n--\n\n")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot transaction_slots[] = {
    {Py_tp_doc, (void *)"The core's handle of a transaction."},
    {Py_tp_methods, transaction_methods},
    {Py_tp_traverse, transaction_traverse},
    {Py_tp_dealloc, transaction_dealloc},
    {0, NULL},
};

PyType_Spec hot_transaction_spec = {
    .name = "logstore._hot.TransactionCalls",
    .basicsize = sizeof(struct transaction_calls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = transaction_slots,
};
