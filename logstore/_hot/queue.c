/* QueueCalls, the base of logstore.Queue: its id, by which calls of the store recognize a handle, and its calls (consume.c, take.c, moving.c). */
#include "hot.h"

static PyObject *queue_attach(struct queue_calls *self, PyObject *args) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    PyObject *store, *key;
    if (state == NULL || !PyArg_ParseTuple(args, "O!O:_attach", state->store_type, &store, &key)) {
        return NULL;
    }
    unsigned long id = PyLong_Check(key) ? PyLong_AsUnsignedLong(key) : ULONG_MAX;
    if (id > UINT32_MAX || self->key != NULL) {
        return PyErr_Occurred() != NULL ? NULL : PyErr_Format(PyExc_ValueError, "a handle gets one id, once");
    }
    self->id = (uint32_t)id;
    self->store = (struct store_calls *)Py_NewRef(store);
    self->key = PyLong_FromUnsignedLong(id);
    return self->key != NULL ? Py_NewRef(Py_None) : NULL;
}

static int queue_traverse(struct queue_calls *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->store);
    return 0;
}

/* There is no tp_clear, as for a store: a delivery that is freed later needs the queue and its store. */
static void queue_dealloc(struct queue_calls *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->store);
    Py_CLEAR(self->key);
    type->tp_free(self);
    Py_DECREF(type);
}

#define WITH_KEYWORDS (METH_FASTCALL | METH_KEYWORDS)

static PyMethodDef queue_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))hot_acquire, WITH_KEYWORDS,
     PyDoc_STR(
         "acquire($self, n=1, *, after=None, load=False, timeout=None)\n--\n\n"
         "Acquires up to ``n`` messages from the front, in order. Only durable, unlocked, not acquired ones count.\n\n"
         "With ``after``, the position of a place, only places after it count. Those before are left for other\n"
         "calls, and what is taken so and released is offered in its old order: 1 comes before 7.\n\n"
         "With ``timeout`` it waits so many seconds (``math.inf``: for ever) until there is one, then returns what\n"
         "there is, up to 1,024; an empty list when the time is over. Those that wait for one queue are served in\n"
         "the order in which they came, and before an acquire that does not wait. Ctrl-C ends a wait; nothing\n"
         "that it got is lost or marked. While it waits, the deletion of the queue raises\n"
         ":class:`~logstore.errors.UnknownQueue`, the close of the store :class:`~logstore.errors.StoreClosed`, a\n"
         "failed write, and the end of the term of a copy that led, :class:`~logstore.errors.OutcomeUnknown`.\n\n"
         "With ``load`` their headers and contents are read in one call, up to 1 MiB together, which is much\n"
         "cheaper than one by one. A message that could not be loaded is read on access, which raises the error\n"
         "if that fails again.\n\n"
         "Raises :class:`~logstore.errors.UnknownQueue` after the queue was deleted, and\n"
         ":class:`~logstore.errors.OptionError` for a position that no place of the queue has had in this open.")},
    {"_acquire_after", (PyCFunction)(void (*)(void))hot_acquire_after, METH_VARARGS,
     PyDoc_STR("_acquire_after($self, n, position, load, /)\n--\n\n``acquire`` with ``after``.")},
    {"_acquire_expired", (PyCFunction)(void (*)(void))hot_acquire_expired, METH_VARARGS,
     PyDoc_STR("_acquire_expired($self, n, load, /)\n--\n\n``expired``, of a limited number.")},
    {"_acquire_ids", (PyCFunction)(void (*)(void))hot_acquire_ids, METH_VARARGS,
     PyDoc_STR("_acquire_ids($self, ids, load, /)\n--\n\n``acquire_ids`` of an array of numbers of 64 bits.")},
    {"_publish_acquired", (PyCFunction)(void (*)(void))hot_publish_acquired, METH_VARARGS,
     PyDoc_STR("_publish_acquired($self, header, content, staged, expires_us, /)\n--\n\n"
               "``publish`` with ``acquire`` on this queue; or enqueues the message whose id is ``staged``, if not 0.\n"
               "``expires_us``: microseconds since 1970, or 0.")},
    {"accept", (PyCFunction)(void (*)(void))hot_accept, WITH_KEYWORDS,
     PyDoc_STR("accept($self, delivery, *, transaction=None, wait=True)\n--\n\n"
               "See :meth:`Delivery.accept`. Takes a delivery or its token.")},
    {"accept_many", (PyCFunction)(void (*)(void))hot_accept_many, WITH_KEYWORDS,
     PyDoc_STR("accept_many($self, deliveries, *, transaction=None, wait=True)\n--\n\n"
               "Accepts all of them, with one force. All are checked before the first is dequeued. Tokens of\n"
               ":meth:`Delivery.detach` may stand among the deliveries. In a transaction they stay acquired until its\n"
               "commit, and after a rollback.\n\n"
               "Raises the errors of :meth:`Delivery.accept`. The exception's attribute ``dequeued`` is the number of\n"
               "deliveries, from the first on, that were accepted; the others stay acquired. In a transaction that\n"
               "number is part of its work, so roll it back.")},
    {"release", (PyCFunction)(void (*)(void))hot_release, WITH_KEYWORDS,
     PyDoc_STR("release($self, delivery, *, unseen=False, to_back=False, wait=False, delay=None)\n--\n\n"
               "See :meth:`Delivery.release`. Takes a delivery or its token.")},
    {"move", (PyCFunction)(void (*)(void))hot_move, WITH_KEYWORDS,
     PyDoc_STR(
         "move($self, delivery, to, *, header=None, note=None, not_before=None, expires=None, transaction=None, "
         "wait=True)\n--\n\n"
         "Moves the message to the end of the queue ``to``, which may be this one, and settles the delivery.\n\n"
         "One record of the log, whatever the size of the message: it is on one of the queues at every moment, after "
         "a\n"
         "crash, too. The new place was handed out to nobody, so its count is 0. It has the given ``header`` (bytes,\n"
         "which stands for the message's there) and ``note`` (at most 255 bytes); None: what the old place has of its\n"
         "own. Its times are those that are given, as in ``publish``; None: none, whatever the old place has. Takes a\n"
         "delivery or its token. In a transaction it takes effect at the commit.\n\n"
         "Raises ``AlreadyEnqueued`` if ``to`` has the message, ``StoreFull`` (in a transaction a full store takes "
         "moves),\n"
         "``OptionError`` for a long note or header or a wrong time, and the errors of ``accept``; then the place "
         "stays\n"
         "acquired. Raises ``WrongState`` while a member of the cluster runs a program that does not know moves.")},
    {"_accept_batch", (PyCFunction)(void (*)(void))hot_accept_batch, METH_VARARGS,
     PyDoc_STR("_accept_batch($self, batch, wait, transaction)\n--\n\n"
               "``accept_many`` of a tuple of deliveries, and (id, position, count) of tokens.")},
    {"_taker", (PyCFunction)(void (*)(void))hot_taker, METH_VARARGS,
     PyDoc_STR("_taker($self, n, inbox=None, number=0, /)\n--\n\nAn acquire that waits.")},
    {"_attach", (PyCFunction)(void (*)(void))queue_attach, METH_VARARGS,
     PyDoc_STR("_attach($self, store, queue_id)\n--\n\n")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef queue_members[] = {
    {"_id", T_OBJECT_EX, offsetof(struct queue_calls, key), READONLY, NULL},
    {"_is_deleted", T_BOOL, offsetof(struct queue_calls, deleted), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_doc, (void *)"The queue's id, and the calls of its consumers."},
    {Py_tp_methods, queue_methods},
    {Py_tp_members, queue_members},
    {Py_tp_traverse, queue_traverse},
    {Py_tp_dealloc, queue_dealloc},
    {0, NULL},
};

PyType_Spec hot_queue_spec = {
    .name = "logstore._hot.QueueCalls",
    .basicsize = sizeof(struct queue_calls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = queue_slots,
};
