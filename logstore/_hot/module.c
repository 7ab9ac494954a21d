/* The module logstore._hot: its types, its state, and the core that it calls. */
#include "hot.h"

struct hot_state *hot_state_of(PyObject *object) {
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(object), &hot_module);
    struct hot_state *state = module != NULL ? PyModule_GetState(module) : NULL;
    if (state != NULL && state->calls == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "logstore._hot is not bound to a core: import logstore first");
        return NULL;
    }
    return state;
}

PyObject *hot_fail(const struct hot_state *state, int code) {
    if (state->failure == NULL) { /* the interpreter is ending and has taken the module apart */
        return PyErr_Format(PyExc_RuntimeError, "logstore has failed with code %d while the interpreter ends", code);
    }
    PyObject *number = PyLong_FromLong(code);
    PyObject *problem = number != NULL ? PyObject_CallOneArg(state->failure, number) : NULL;
    Py_XDECREF(number);
    if (problem != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(problem), problem);
        Py_DECREF(problem);
    }
    return NULL;
}

PyObject *hot_slow(PyObject *self, PyObject *name, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
    PyObject *method = PyObject_GetAttr(self, name);
    PyObject *result = method != NULL ? PyObject_Vectorcall(method, args, (size_t)count, keywords) : NULL;
    Py_XDECREF(method);
    return result;
}

bool hot_id(PyObject *given, uint64_t *id) {
    if (!PyLong_CheckExact(given)) {
        return false;
    }
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(given, &overflow);
    *id = (uint64_t)value;
    return overflow == 0 && value > 0;
}

PyDoc_STRVAR(bind_doc, "bind(calls, failure)\n--\n\n"
                       "Names the core: the address of its table of calls, and the function that makes an exception of "
                       "a code.");

static PyObject *bind(PyObject *module, PyObject *args) {
    struct hot_state *state = PyModule_GetState(module);
    PyObject *address, *failure;
    if (!PyArg_ParseTuple(args, "OO:bind", &address, &failure)) {
        return NULL;
    }
    const ls_calls *calls = PyLong_AsVoidPtr(address);
    if (calls == NULL) {
        return PyErr_Occurred() != NULL ? NULL : PyErr_Format(PyExc_ValueError, "the table of calls is at NULL");
    }
    if (calls->bytes != sizeof *calls) {
        return PyErr_Format(PyExc_ImportError,
                            "logstore._hot and logstore._core were not built together: build both again");
    }
    if (state->calls != NULL && state->calls != calls) {
        return PyErr_Format(PyExc_RuntimeError, "logstore._hot is bound to another core already");
    }
    state->calls = calls;
    Py_XSETREF(state->failure, Py_NewRef(failure));
    Py_RETURN_NONE;
}

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type != NULL ? PyModule_AddType(module, *type) : -1;
}

/* The names in the state. */
static const struct {
    const char *text;
    size_t offset;
} names[] = {
    {"header", offsetof(struct hot_state, header)},
    {"transaction", offsetof(struct hot_state, transaction)},
    {"wait", offsetof(struct hot_state, wait)},
    {"_publish_slow", offsetof(struct hot_state, publish_slow)},
    {"_dequeue_slow", offsetof(struct hot_state, dequeue_slow)},
    {"_annotate_slow", offsetof(struct hot_state, annotate_slow)},
    {"_load_content_slow", offsetof(struct hot_state, load_content_slow)},
    {"note", offsetof(struct hot_state, note)},
    {"not_before", offsetof(struct hot_state, not_before)},
    {"expires", offsetof(struct hot_state, expires)},
    {"unseen", offsetof(struct hot_state, unseen)},
    {"to_back", offsetof(struct hot_state, to_back)},
    {"delay", offsetof(struct hot_state, delay)},
    {"load", offsetof(struct hot_state, load)},
    {"accept", offsetof(struct hot_state, accept)},
    {"reject", offsetof(struct hot_state, reject)},
    {"release", offsetof(struct hot_state, release)},
    {"_acquire_slow", offsetof(struct hot_state, acquire_slow)},
    {"_accept_slow", offsetof(struct hot_state, accept_slow)},
    {"_accept_many_slow", offsetof(struct hot_state, accept_many_slow)},
    {"_release_slow", offsetof(struct hot_state, release_slow)},
    {"_move_slow", offsetof(struct hot_state, move_slow)},
    {"_refuse", offsetof(struct hot_state, refuse)},
    {"_token_of", offsetof(struct hot_state, token_of)},
    {"_came_back", offsetof(struct hot_state, came_back)},
    {"_settles", offsetof(struct hot_state, settles)},
    {"_header_slow", offsetof(struct hot_state, header_slow)},
    {"_next_lsn_slow", offsetof(struct hot_state, next_lsn_slow)},
    {"_durable_lsn_slow", offsetof(struct hot_state, durable_lsn_slow)},
    {"_room_percent_slow", offsetof(struct hot_state, room_percent_slow)},
    {"_nearly_full_slow", offsetof(struct hot_state, nearly_full_slow)},
    {"_undurable_slow", offsetof(struct hot_state, undurable_slow)},
};

enum { NAMES = sizeof names / sizeof *names };

static PyObject **name_at(struct hot_state *state, size_t i) {
    return (PyObject **)(void *)((char *)state + names[i].offset);
}

static int hot_exec(PyObject *module) {
    struct hot_state *state = PyModule_GetState(module);
    bool named = true;
    for (size_t i = 0; named && i < NAMES; i++) {
        *name_at(state, i) = PyUnicode_InternFromString(names[i].text);
        named = *name_at(state, i) != NULL;
    }
    if (!named || add_type(module, &hot_store_spec, &state->store_type) < 0 ||
        add_type(module, &hot_queue_spec, &state->queue_type) < 0 ||
        add_type(module, &hot_delivery_spec, &state->delivery_type) < 0 ||
        add_type(module, &hot_waiters_spec, &state->waiters_type) < 0 ||
        add_type(module, &hot_waiter_spec, &state->waiter_type) < 0 ||
        add_type(module, &hot_owner_spec, &state->owner_type) < 0 ||
        add_type(module, &hot_taker_spec, &state->taker_type) < 0) {
        return -1;
    }
    return add_type(module, &hot_transaction_spec, &state->transaction_type);
}

static int hot_traverse(PyObject *module, visitproc visit, void *arg) {
    struct hot_state *state = PyModule_GetState(module);
    Py_VISIT(state->failure);
    Py_VISIT(state->store_type);
    Py_VISIT(state->queue_type);
    Py_VISIT(state->transaction_type);
    Py_VISIT(state->delivery_type);
    Py_VISIT(state->waiters_type);
    Py_VISIT(state->waiter_type);
    Py_VISIT(state->owner_type);
    Py_VISIT(state->taker_type);
    return 0;
}

static int hot_clear(PyObject *module) {
    struct hot_state *state = PyModule_GetState(module);
    hot_free_spares(state); /* the type tells where their memory begins; without the type no memory is kept */
    Py_CLEAR(state->failure);
    Py_CLEAR(state->store_type);
    Py_CLEAR(state->queue_type);
    Py_CLEAR(state->transaction_type);
    Py_CLEAR(state->delivery_type);
    Py_CLEAR(state->waiters_type);
    Py_CLEAR(state->waiter_type);
    Py_CLEAR(state->owner_type);
    Py_CLEAR(state->taker_type);
    return 0;
}

/* Frees the names last: they are in no cycle, and a late call may need them. */
static void hot_free(void *module) {
    struct hot_state *state = PyModule_GetState(module);
    (void)hot_clear(module);
    for (size_t i = 0; i < NAMES; i++) {
        Py_CLEAR(*name_at(state, i));
    }
}

static PyMethodDef hot_methods[] = {
    {"bind", bind, METH_VARARGS, bind_doc},
    {"mark_settled", hot_mark_settled, METH_O,
     PyDoc_STR("mark_settled($module, batch, /)\n--\n\n"
               "Marks the deliveries in a tuple: the transaction that settles them has committed.")},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot hot_slots[] = {
    {Py_mod_exec, hot_exec},
    {0, NULL},
};

struct PyModuleDef hot_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "logstore._hot",
    .m_doc = "CPython's own calls for the hot paths of logstore.",
    .m_size = sizeof(struct hot_state),
    .m_methods = hot_methods,
    .m_slots = hot_slots,
    .m_traverse = hot_traverse,
    .m_clear = hot_clear,
    .m_free = hot_free,
};

PyMODINIT_FUNC PyInit__hot(void) { return PyModuleDef_Init(&hot_module); }
