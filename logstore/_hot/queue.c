/* QueueCalls, the base of logstore.Queue: the queue's id, so that calls of the store recognize a handle without Python. */
#include "hot.h"

bool hot_queue(const struct store_calls *store, PyObject *given, uint32_t *id) {
    if (!PyObject_TypeCheck(given, store->state->queue_type)) {
        return false;
    }
    const struct queue_calls *queue = (const struct queue_calls *)given;
    if (queue->key == NULL || PyDict_GetItemWithError(store->queues, queue->key) != given) {
        return false; /* deleted, in question, or another store's; hashing an int raises nothing */
    }
    *id = queue->id;
    return true;
}

static PyObject *queue_attach(struct queue_calls *self, PyObject *key) {
    unsigned long id = PyLong_Check(key) ? PyLong_AsUnsignedLong(key) : ULONG_MAX;
    if (id > UINT32_MAX || self->key != NULL) {
        return PyErr_Occurred() != NULL ? NULL : PyErr_Format(PyExc_ValueError, "a handle gets one id, once");
    }
    self->id = (uint32_t)id;
    self->key = PyLong_FromUnsignedLong(id);
    return self->key != NULL ? Py_NewRef(Py_None) : NULL;
}

static int queue_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void queue_dealloc(struct queue_calls *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->key);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef queue_methods[] = {
    {"_attach", (PyCFunction)(void (*)(void))queue_attach, METH_O, PyDoc_STR("_attach(queue_id)\n--\n\n")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef queue_members[] = {
    {"_id", T_OBJECT_EX, offsetof(struct queue_calls, key), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_doc, (void *)"The queue's id."}, {Py_tp_methods, queue_methods}, {Py_tp_members, queue_members},
    {Py_tp_traverse, queue_traverse},       {Py_tp_dealloc, queue_dealloc}, {0, NULL},
};

PyType_Spec hot_queue_spec = {
    .name = "logstore._hot.QueueCalls",
    .basicsize = sizeof(struct queue_calls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = queue_slots,
};
