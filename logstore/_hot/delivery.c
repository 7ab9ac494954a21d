/*
 * Delivery: a message that a consumer has acquired. It settles itself through its queue's methods, which a subclass or a test
 * may replace; header and content are read from the log on access unless they were loaded with the acquisition.
 *
 * The memory of freed deliveries is kept for the next ones, as CPython does for lists: the garbage collector counts new
 * memory only, and would otherwise run for every 700 deliveries. It still tracks and finds a delivery in a cycle.
 *
 * A delivery that is freed before it was settled gives its place back; see dropped.c.
 */
#include "hot.h"

PyObject *hot_delivery(struct hot_state *state, struct queue_calls *queue, const ls_delivery *row) {
    bool spare = state->spare_count > 0;
    struct delivery *made =
        spare ? state->spares[--state->spare_count] : PyObject_GC_New(struct delivery, state->delivery_type);
    if (made == NULL) {
        return NULL;
    }
    if (spare) {
        (void)PyObject_Init((PyObject *)made, state->delivery_type);
    }
    made->queue = (struct queue_calls *)Py_NewRef((PyObject *)queue);
    made->header = made->content = NULL;
    made->row = *row;
    made->settled = made->detached = false;
    PyObject_GC_Track(made);
    return (PyObject *)made;
}

void hot_recycle(struct delivery *freed) {
    PyTypeObject *type = Py_TYPE(freed);
    PyObject *module = ((PyHeapTypeObject *)type)->ht_module; /* NULL, or without this type, if both are being freed */
    struct hot_state *state = module != NULL ? PyModule_GetState(module) : NULL;
    if (state != NULL && state->delivery_type == type && state->spare_count < SPARE_DELIVERIES) {
        state->spares[state->spare_count++] = freed;
    } else {
        PyObject_GC_Del(freed);
    }
    Py_DECREF(type);
}

void hot_free_spares(struct hot_state *state) {
    while (state->spare_count > 0) {
        PyObject_GC_Del(state->spares[--state->spare_count]);
    }
}

static PyObject *delivery_content(struct delivery *self, void *Py_UNUSED(closure)) {
    if (self->content != NULL) {
        return Py_NewRef(self->content);
    }
    const struct store_calls *store = self->queue->store;
    PyObject *content = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->row.content_bytes);
    if (content == NULL) {
        return NULL;
    }
    const ls_calls *calls = store->state->calls;
    ls_store *c_store = store->store;
    uint8_t *into = (uint8_t *)PyBytes_AS_STRING(content);
    size_t bytes = (size_t)self->row.content_bytes, done = 0;
    int rc; /* one byte is requested of an empty content, so that a missing message is an error */
    Py_BEGIN_ALLOW_THREADS
    rc = calls->load_content(c_store, self->row.id, 0, into, bytes > 0 ? bytes : 1, &done);
    Py_END_ALLOW_THREADS
    if (rc != LS_OK) {
        Py_DECREF(content);
        return hot_fail(store->state, rc);
    }
    return content;
}

static PyObject *delivery_header(struct delivery *self, void *Py_UNUSED(closure)) {
    if (self->header != NULL) {
        return Py_NewRef(self->header);
    }
    if (self->row.has_header != 0) {
        return PyObject_CallMethod((PyObject *)self->queue, "_own_header", "KK", (unsigned long long)self->row.id,
                                   (unsigned long long)self->row.position);
    }
    return PyObject_CallMethod((PyObject *)self->queue->store, "header", "K", (unsigned long long)self->row.id);
}

static PyObject *delivery_note(struct delivery *self, void *Py_UNUSED(closure)) {
    return PyObject_CallMethod((PyObject *)self->queue, "_note", "KK", (unsigned long long)self->row.id,
                               (unsigned long long)self->row.position);
}

static PyObject *delivery_expires(struct delivery *self, void *Py_UNUSED(closure)) {
    return PyObject_CallMethod((PyObject *)self->queue, "_expires", "KK", (unsigned long long)self->row.id,
                               (unsigned long long)self->row.position);
}

static PyObject *delivery_enqueued_at(struct delivery *self, void *Py_UNUSED(closure)) {
    return PyObject_CallMethod((PyObject *)self->queue, "_enqueued_at", "KK", (unsigned long long)self->row.id,
                               (unsigned long long)self->row.position);
}

static PyObject *delivery_redelivered(struct delivery *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(self->row.count > 1 || self->row.recovered != 0);
}

static PyObject *delivery_loaded(struct delivery *self, void *Py_UNUSED(closure)) {
    return self->content != NULL ? PyTuple_Pack(2, self->header, self->content) : Py_NewRef(Py_None);
}

static PyObject *delivery_unload(struct delivery *self, PyObject *Py_UNUSED(unused)) {
    Py_CLEAR(self->header);
    Py_CLEAR(self->content);
    Py_RETURN_NONE;
}

/* The queue's method of this name, with the delivery before the given arguments. */
static PyObject *by_queue(struct delivery *self, PyObject *name, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords) {
    Py_ssize_t all = count + (keywords != NULL ? PyTuple_GET_SIZE(keywords) : 0);
    PyObject *passed[6] = {(PyObject *)self->queue, (PyObject *)self};
    if (all > 4 || count > 0) {
        return PyErr_Format(PyExc_TypeError, "%U() takes keyword arguments only", name);
    }
    for (Py_ssize_t i = 0; i < all; i++) {
        passed[2 + i] = args[i];
    }
    return PyObject_VectorcallMethod(name, passed, 2, keywords);
}

static PyObject *delivery_accept(struct delivery *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    return state != NULL ? by_queue(self, state->accept, args, count, keywords) : NULL;
}

static PyObject *delivery_reject(struct delivery *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    return state != NULL ? by_queue(self, state->reject, args, count, keywords) : NULL;
}

static PyObject *delivery_release(struct delivery *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    return state != NULL ? by_queue(self, state->release, args, count, keywords) : NULL;
}

static PyObject *delivery_detach(struct delivery *self, PyObject *Py_UNUSED(unused)) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    PyObject *queue = (PyObject *)self->queue;
    PyObject *token = state != NULL ? PyObject_CallMethodOneArg(queue, state->token_of, (PyObject *)self) : NULL;
    if (token != NULL && self->settled) { /* another thread settled it meanwhile */
        Py_CLEAR(token);
        PyObject *none = PyObject_CallMethodOneArg(queue, state->refuse, (PyObject *)self);
        Py_XDECREF(none); /* it raises */
    }
    if (token != NULL) {
        self->settled = self->detached = true;
    }
    return token;
}

static PyObject *delivery_repr(struct delivery *self) {
    PyObject *name = PyObject_GetAttrString((PyObject *)self->queue, "name");
    PyObject *made = name != NULL ? PyUnicode_FromFormat("<Delivery %llu of %R, number %u>",
                                                         (unsigned long long)self->row.id, name, self->row.count)
                                  : NULL;
    Py_XDECREF(name);
    return made;
}

static int delivery_traverse(struct delivery *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->queue);
    return 0;
}

/* There is no tp_clear, as for a store: hot_drop needs the queue, and the queue its store. */
static void delivery_dealloc(struct delivery *self) {
    struct queue_calls *queue = self->queue;
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->header);
    Py_CLEAR(self->content);
    if (self->settled) {
        hot_recycle(self);
    } else {
        hot_drop(queue->store, self, queue->id);
    }
    Py_DECREF((PyObject *)queue); /* last: it may free the store */
}

#define WITH_KEYWORDS (METH_FASTCALL | METH_KEYWORDS)

static PyMethodDef delivery_methods[] = {
    {"accept", (PyCFunction)(void (*)(void))delivery_accept, WITH_KEYWORDS,
     PyDoc_STR("accept($self, *, transaction=None, wait=True)\n--\n\n"
               "Takes the message off the queue for good: it was processed.")},
    {"release", (PyCFunction)(void (*)(void))delivery_release, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(
         "release($self, *, unseen=False, to_back=False, wait=False, delay=None)\n--\n\n"
         "Puts the message back to its old place, for the next consumer.\n\n"
         "``unseen``: nobody has seen the message, so this delivery does not count: ``delivery_count`` and\n"
         "``redelivered`` of the next one are as if the message had not been acquired.\n\n"
         "``to_back``: to the end of the queue instead, in one record of the log; the message keeps its count,\n"
         "note and header, and the next consumer gets it once the record is durable. The call returns before\n"
         "that, unless ``wait`` is true. Raises ``StoreFull``; the message stays acquired then.\n\n"
         "``delay``: it is offered in so many seconds (or a ``timedelta``) and not before. That is in the log, so\n"
         "``wait`` and ``StoreFull`` are as for ``to_back``, and the delay holds after an open. 0: no delay.")},
    {"reject", (PyCFunction)(void (*)(void))delivery_reject, WITH_KEYWORDS,
     PyDoc_STR("reject($self, *, transaction=None, wait=True)\n--\n\n"
               "Moves the message to the dead-letter queue, in one transaction; without such a queue, removes it.")},
    {"detach", (PyCFunction)(void (*)(void))delivery_detach, METH_NOARGS,
     PyDoc_STR(
         "detach($self)\n--\n\n"
         "Gives a :class:`DeliveryToken` that holds the place instead of this object, which may then be dropped.\n\n"
         "The token settles the message through the queue; this object no longer can. Raises\n"
         ":class:`~logstore.errors.NotEnqueued` if it was settled or detached before.")},
    {"unload", (PyCFunction)(void (*)(void))delivery_unload, METH_NOARGS,
     PyDoc_STR("unload($self)\n--\n\n"
               "Frees the header and content that ``load`` has read; the next access reads them from the log again.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef delivery_members[] = {
    {"id", T_ULONGLONG, offsetof(struct delivery, row.id), READONLY, "The message's persistence ID."},
    {"position", T_ULONGLONG, offsetof(struct delivery, row.position), READONLY,
     "The position of its place on the queue. Positions grow in the order of the queue, and a place keeps its own.\n\n"
     "They count the places that the queue has had since the store was opened, so they are of one open only."},
    {"size", T_ULONGLONG, offsetof(struct delivery, row.content_bytes), READONLY,
     "Bytes of content, the header not counted."},
    {"delivery_count", T_UINT, offsetof(struct delivery, row.count), READONLY,
     "How often this place has been handed out, this time included, in earlier opens too: a release and an orderly "
     "close\n"
     "write it, and a crash can lose the newest counts."},
    {"queue", T_OBJECT, offsetof(struct delivery, queue), READONLY, "The queue that it was acquired from."},
    {"_settled", T_BOOL, offsetof(struct delivery, settled), 0, NULL},
    {"_detached", T_BOOL, offsetof(struct delivery, detached), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef delivery_getset[] = {
    {"redelivered", (getter)(void (*)(void))delivery_redelivered, NULL,
     "Whether a consumer may have seen it before: handed out earlier, or on the queue at a crash.", NULL},
    {"enqueued_at", (getter)(void (*)(void))delivery_enqueued_at, NULL,
     "When the message was put on this queue: a ``datetime`` in UTC, kept through opens and relocation.\n\n"
     "It is the time of the group commit that made the place durable. None: it is not durable yet, or the log does "
     "not\n"
     "have the time any more. The first access to a segment of the log reads it as far as that commit; the times of "
     "three\n"
     "segments are kept in memory. Raises ``UnknownMessage`` or ``NotEnqueued`` if the place has ended.",
     NULL},
    {"content", (getter)(void (*)(void))delivery_content, NULL,
     "The whole content, read from the log at each access unless it was acquired with ``load``.", NULL},
    {"header", (getter)(void (*)(void))delivery_header, NULL,
     "The header that a move gave its place, or else the message's; read from the log at each access unless it was\n"
     "acquired with ``load``.",
     NULL},
    {"note", (getter)(void (*)(void))delivery_note, NULL,
     "The note of its place, b\"\" if there is none; read from the log at each access. Raises ``UnknownMessage`` or\n"
     "``NotEnqueued`` if the place has ended.",
     NULL},
    {"expires", (getter)(void (*)(void))delivery_expires, NULL,
     "When its place expires: a ``datetime`` in UTC; None: never. Raises ``UnknownMessage`` or ``NotEnqueued`` if the\n"
     "place has ended.",
     NULL},
    {"_loaded", (getter)(void (*)(void))delivery_loaded, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    delivery_doc,
    "A message acquired by a consumer. No other consumer gets it until it is accepted, released or rejected.\n\n"
    "A delivery can be settled once; a second attempt raises :class:`~logstore.errors.NotEnqueued`. Accepting\n"
    "and rejecting are durable on return. In a transaction they do not wait, and take effect at its commit;\n"
    "until then, and after a rollback, the message stays acquired.\n\n"
    "A delivery that is dropped before it was settled is released: the message goes back to its old place. A\n"
    "program that keeps no reference to it takes a token with :meth:`detach` first.");

static PyType_Slot delivery_slots[] = {
    {Py_tp_doc, (void *)delivery_doc}, {Py_tp_methods, delivery_methods},
    {Py_tp_members, delivery_members}, {Py_tp_getset, delivery_getset},
    {Py_tp_repr, delivery_repr},       {Py_tp_traverse, delivery_traverse},
    {Py_tp_dealloc, delivery_dealloc}, {0, NULL},
};

PyType_Spec hot_delivery_spec = {
    .name = "logstore.store.deliveries.Delivery",
    .basicsize = sizeof(struct delivery),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = delivery_slots,
};
