/*
 * StoreCalls, the base of logstore.MessageStore: publish, dequeue, annotate, load_content and header in their usual form. Any
 * other form (several queues, buffers other than bytes, numbers of other types, unknown keywords) goes to the Python
 * method with the suffix _slow, which also raises the errors for wrong arguments.
 */
#include "publish.h"

enum { SMALL_BYTES = 8 << 10 }; /* a content that fits with its header and record is read by one call */

bool hot_queue_id(const struct store_calls *store, PyObject *given, uint32_t *id) {
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

/* The keyword arguments of publish, dequeue and annotate. */
struct keywords {
    PyObject *header; /* bytes; NULL: none */
    ls_tx *tx;
    bool waits;
};

static bool take_keyword(const struct store_calls *self, PyObject *name, PyObject *value, struct keywords *k) {
    const struct hot_state *state = self->state;
    if (name == state->wait) {
        k->waits = value == Py_True;
        return value == Py_True || value == Py_False;
    }
    if (name == state->transaction) {
        return hot_transaction(self, value, &k->tx);
    }
    k->header = value;
    return name == state->header && PyBytes_CheckExact(value);
}

/* False: the slow path must look at them. */
static bool take_keywords(const struct store_calls *self, PyObject *const *values, PyObject *names,
                          struct keywords *k) {
    Py_ssize_t count = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!take_keyword(self, PyTuple_GET_ITEM(names, i), values[i], k)) {
            return false;
        }
    }
    k->waits = k->waits && k->tx == NULL && !self->relaxed;
    return true;
}

/* The bytes of a new message. */
struct message {
    const uint8_t *header, *content;
    size_t header_bytes, content_bytes;
};

/* The flags are LS_WAIT; or 0; or LS_MORE, if the caller wakes the flusher at once. */
static int publish_one(const struct store_calls *self, uint32_t queue, const struct message *m, ls_tx *tx, int flags,
                       uint64_t *id) {
    const ls_calls *calls = self->state->calls;
    ls_store *store = self->store;
    int rc = LS_WOULD_WAIT;
    if ((flags & LS_WAIT) == 0 && m->content_bytes + m->header_bytes <= HELD_BYTES_MAX) {
        rc = calls->publish(store, &queue, 1, m->header, m->header_bytes, m->content, m->content_bytes, tx,
                            LS_TRY | flags, id);
    }
    if (rc == LS_WOULD_WAIT) {
        Py_BEGIN_ALLOW_THREADS
        rc = calls->publish(store, &queue, 1, m->header, m->header_bytes, m->content, m->content_bytes, tx, flags, id);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

PyDoc_STRVAR(
    publish_doc,
    "publish($self, queue, content, *, header=b'', transaction=None, wait=True, acquire=False, not_before=None, "
    "expires=None)\n--\n\n"
    "Puts a new message on the queue, or atomically on several queues. Returns its id.\n\n"
    "With ``acquire`` returns a :class:`Delivery` instead: the caller has acquired the message, which is\n"
    "offered to nobody before it is released. Then there is one queue and no transaction, and the call waits.\n\n"
    "``not_before`` and ``expires``: seconds since 1970, or a ``datetime`` with a time zone. Before the first time "
    "the\n"
    "message is hidden: no consumer gets it. From the second on it has expired: only :meth:`Queue.expired` gives it,\n"
    "hidden or not. Its place in the queue's order stays. In a transaction they count from the commit on.\n\n"
    "``content`` is any buffer, or an iterable of buffers, of which one at a time is held in memory. Raises\n"
    "``UnknownQueue``, ``StoreFull``, ``OptionError``; a failed publish leaves no message behind.");

static PyObject *store_publish(struct store_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    struct keywords k = {.waits = true};
    uint32_t queue;
    if (self->store == NULL || count != 2 || !PyBytes_CheckExact(args[1]) || !hot_queue_id(self, args[0], &queue) ||
        !take_keywords(self, args + count, names, &k)) {
        return hot_slow((PyObject *)self, self->state->publish_slow, args, count, names);
    }
    struct message m = {.content = (const uint8_t *)PyBytes_AS_STRING(args[1]),
                        .content_bytes = (size_t)PyBytes_GET_SIZE(args[1])};
    if (k.header != NULL) {
        m.header = (const uint8_t *)PyBytes_AS_STRING(k.header);
        m.header_bytes = (size_t)PyBytes_GET_SIZE(k.header);
    }
    uint64_t id = 0;
    int rc = publish_one(self, queue, &m, k.tx, k.waits ? LS_WAIT : 0, &id);
    return rc == LS_OK ? PyLong_FromUnsignedLongLong(id) : hot_fail(self->state, rc);
}

/* Leaves the answer for everything appended so far. The end of it; negative if the store does not have the answer. */
static int64_t leave_answer(const struct store_calls *self, int fd, int socket, const uint8_t *bytes, size_t count) {
    const ls_calls *calls = self->state->calls;
    ls_store *store = self->store;
    uint64_t lsn = 0;
    int rc = calls->event_answer_all(store, fd, socket, bytes, count, LS_TRY, &lsn);
    if (lsn == 0) {
        Py_BEGIN_ALLOW_THREADS
        rc = calls->event_answer_all(store, fd, socket, bytes, count, 0, &lsn);
        lsn = lsn != 0 ? lsn : calls->next_lsn(store);
        Py_END_ALLOW_THREADS
    }
    return rc == LS_OK ? (int64_t)lsn : -(int64_t)lsn;
}

PyDoc_STRVAR(
    publish_answered_doc,
    "_publish_answered($self, queue, header, data, start, end, fd, socket, answer, /)\n--\n\n"
    "Publishes a part of ``data`` without waiting, and leaves the answer to its client with the store; see\n"
    "``ls_event_answer_all``. Returns the LSN from which on it is durable, negative if the answer was not left.\n"
    "0: nothing was done, as the store refuses the message: ``publish`` says why.");

static PyObject *store_publish_answered(struct store_calls *self, PyObject *args) {
    PyObject *given, *data, *header, *answer;
    Py_ssize_t start, end;
    int fd, socket;
    uint32_t queue;
    if (!PyArg_ParseTuple(args, "OSSnniiS:_publish_answered", &given, &header, &data, &start, &end, &fd, &socket,
                          &answer)) {
        return NULL;
    }
    if (start < 0 || end < start || end > PyBytes_GET_SIZE(data)) {
        return PyErr_Format(PyExc_ValueError, "there are no bytes from %zd to %zd", start, end);
    }
    struct message m = {.header = (const uint8_t *)PyBytes_AS_STRING(header),
                        .header_bytes = (size_t)PyBytes_GET_SIZE(header),
                        .content = (const uint8_t *)PyBytes_AS_STRING(data) + start,
                        .content_bytes = (size_t)(end - start)};
    uint64_t id = 0;
    if (self->store == NULL || !hot_queue_id(self, given, &queue) ||
        publish_one(self, queue, &m, NULL, LS_MORE, &id) != LS_OK) {
        return PyLong_FromLong(0);
    }
    return PyLong_FromLongLong(
        leave_answer(self, fd, socket, (const uint8_t *)PyBytes_AS_STRING(answer), (size_t)PyBytes_GET_SIZE(answer)));
}

PyDoc_STRVAR(dequeue_doc,
             "dequeue($self, message_id, queue, transaction=None, *, wait=True)\n--\n\n"
             "Takes the message off the queue. Returns the LSN of the record. Without a place left, the message is\n"
             "removed.\n\n"
             "In a transaction the place is locked until the outcome. Raises ``UnknownMessage``, ``UnknownQueue``,\n"
             "``NotEnqueued``, ``MessageLocked``.");

static PyObject *store_dequeue(struct store_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    struct keywords k = {.waits = true};
    uint32_t queue;
    uint64_t id;
    if (self->store == NULL || count < 2 || count > 3 || !hot_id(args[0], &id) ||
        !hot_queue_id(self, args[1], &queue) ||
        (count == 3 && (names != NULL || !hot_transaction(self, args[2], &k.tx))) ||
        !take_keywords(self, args + count, names, &k) || k.header != NULL) {
        return hot_slow((PyObject *)self, self->state->dequeue_slow, args, count, names);
    }
    const ls_calls *calls = self->state->calls;
    ls_store *store = self->store;
    uint64_t lsn = 0;
    int rc = k.waits ? LS_WOULD_WAIT : calls->dequeue(store, id, queue, k.tx, 0, 0, LS_TRY, &lsn);
    if (rc == LS_WOULD_WAIT) {
        int flags = k.waits ? LS_WAIT : 0;
        Py_BEGIN_ALLOW_THREADS
        rc = calls->dequeue(store, id, queue, k.tx, 0, 0, flags, &lsn);
        Py_END_ALLOW_THREADS
    }
    return rc == LS_OK ? PyLong_FromUnsignedLongLong(lsn) : hot_fail(self->state, rc);
}

PyDoc_STRVAR(
    annotate_doc,
    "annotate($self, message_id, queue, note, transaction=None, *, wait=True)\n--\n\n"
    "Gives the message's place on the queue this note, at most 255 bytes, in place of the one it has.\n\n"
    "Empty bytes take the note away. Returns the LSN of the record. The note stays with the place through opens; a\n"
    "move and a rejection take it along. Raises ``UnknownMessage``, ``UnknownQueue``, ``NotEnqueued``, ``StoreFull``,\n"
    "``OptionError`` for a long note, ``MessageLocked`` if another transaction has work on the place, and\n"
    "``WrongState`` while a member of the cluster runs a program that does not know notes.");

static PyObject *store_annotate(struct store_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    struct keywords k = {.waits = true};
    uint32_t queue;
    uint64_t id;
    if (self->store == NULL || count < 3 || count > 4 || !hot_id(args[0], &id) ||
        !hot_queue_id(self, args[1], &queue) || !PyBytes_CheckExact(args[2]) ||
        PyBytes_GET_SIZE(args[2]) > LS_NOTE_BYTES ||
        (count == 4 && (names != NULL || !hot_transaction(self, args[3], &k.tx))) ||
        !take_keywords(self, args + count, names, &k) || k.header != NULL) {
        return hot_slow((PyObject *)self, self->state->annotate_slow, args, count, names);
    }
    const ls_calls *calls = self->state->calls;
    ls_store *store = self->store;
    const uint8_t *note = (const uint8_t *)PyBytes_AS_STRING(args[2]);
    size_t bytes = (size_t)PyBytes_GET_SIZE(args[2]);
    uint64_t lsn = 0;
    int rc = k.waits ? LS_WOULD_WAIT : calls->annotate(store, id, queue, note, bytes, k.tx, LS_TRY, &lsn);
    if (rc == LS_WOULD_WAIT) {
        int flags = k.waits ? LS_WAIT : 0;
        Py_BEGIN_ALLOW_THREADS
        rc = calls->annotate(store, id, queue, note, bytes, k.tx, flags, &lsn);
        Py_END_ALLOW_THREADS
    }
    return rc == LS_OK ? PyLong_FromUnsignedLongLong(lsn) : hot_fail(self->state, rc);
}

/* ---- reading ---- */

/* A message read by one call. Too large for a thread's stack. */
struct small {
    bool fits;         /* false: nothing was read */
    uint64_t sizes[2]; /* of header and content, one after the other */
    char bytes[SMALL_BYTES];
};

/* Each call has its own memory: that of the last call, unless another call uses it. NULL: an exception is set. */
static struct small *take_small(struct store_calls *self) {
    struct small *small = self->spare;
    self->spare = NULL;
    small = small != NULL ? small : PyMem_Malloc(sizeof *small);
    return small != NULL ? small : (struct small *)PyErr_NoMemory();
}

static void keep_small(struct store_calls *self, struct small *small) {
    if (self->spare == NULL) {
        self->spare = small;
    } else {
        PyMem_Free(small);
    }
}

static int load_small(const struct store_calls *self, uint64_t id, struct small *small) {
    const ls_calls *calls = self->state->calls;
    ls_store *store = self->store;
    size_t done = 0;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = calls->load_many(store, &id, 1, (uint8_t *)small->bytes, SMALL_BYTES, small->sizes, &done);
    Py_END_ALLOW_THREADS
    small->fits = done == 1;
    return rc;
}

/* Loads a content that did not fit: asks for its size first, then reads it into the bytes object that it returns. */
static PyObject *load_large(const struct store_calls *self, uint64_t id) {
    const ls_calls *calls = self->state->calls;
    ls_store *store = self->store;
    ls_message_info info;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = calls->message(store, id, &info);
    Py_END_ALLOW_THREADS
    if (rc != LS_OK) {
        return hot_fail(self->state, rc);
    }
    PyObject *content = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)info.content_bytes);
    if (content == NULL) {
        return NULL;
    }
    uint8_t *into = (uint8_t *)PyBytes_AS_STRING(content);
    size_t done = 0;
    Py_BEGIN_ALLOW_THREADS
    rc = calls->load_content(store, id, 0, into, (size_t)info.content_bytes, &done);
    Py_END_ALLOW_THREADS
    if (rc != LS_OK) {
        Py_DECREF(content);
        return hot_fail(self->state, rc);
    }
    if (done < info.content_bytes) {
        (void)_PyBytes_Resize(&content, (Py_ssize_t)done);
    }
    return content;
}

PyDoc_STRVAR(load_content_doc,
             "load_content($self, message_id, offset=0, length=None)\n--\n\n"
             "The content from ``offset`` on, at most ``length`` bytes; negative values count as in a Python slice.\n\n"
             "Every record that is read is verified first. Raises ``UnknownMessage``, ``CorruptLog``.");

static PyObject *store_load_content(struct store_calls *self, PyObject *const *args, Py_ssize_t count,
                                    PyObject *names) {
    uint64_t id;
    if (self->store == NULL || count != 1 || names != NULL || !hot_id(args[0], &id)) {
        return hot_slow((PyObject *)self, self->state->load_content_slow, args, count, names);
    }
    struct small *small = take_small(self);
    if (small == NULL) {
        return NULL;
    }
    int rc = load_small(self, id, small);
    bool fits = rc == LS_OK && small->fits;
    PyObject *content =
        fits ? PyBytes_FromStringAndSize(small->bytes + small->sizes[0], (Py_ssize_t)small->sizes[1]) : NULL;
    keep_small(self, small);
    if (rc != LS_OK) {
        return hot_fail(self->state, rc);
    }
    return fits ? content : load_large(self, id);
}

PyDoc_STRVAR(header_doc, "header($self, message_id)\n--\n\n"
                         "The message's header. Raises ``UnknownMessage``, ``CorruptLog``.");

static PyObject *store_header(struct store_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    uint64_t id;
    if (self->store == NULL || count != 1 || names != NULL || !hot_id(args[0], &id)) {
        return hot_slow((PyObject *)self, self->state->header_slow, args, count, names);
    }
    struct small *small = take_small(self);
    if (small == NULL) {
        return NULL;
    }
    int rc = load_small(self, id, small);
    bool fits = rc == LS_OK && small->fits;
    PyObject *header = fits ? PyBytes_FromStringAndSize(small->bytes, (Py_ssize_t)small->sizes[0]) : NULL;
    keep_small(self, small);
    if (rc != LS_OK) {
        return hot_fail(self->state, rc);
    }
    return fits ? header : hot_slow((PyObject *)self, self->state->header_slow, args, count, names);
}

/* ---- durability ---- */

static PyObject *store_next_lsn(struct store_calls *self, void *Py_UNUSED(closure)) {
    uint64_t lsn = self->store != NULL ? self->state->calls->next_lsn_try(self->store) : 0;
    return lsn != 0 ? PyLong_FromUnsignedLongLong(lsn)
                    : hot_slow((PyObject *)self, self->state->next_lsn_slow, (PyObject *[]){NULL}, 0, NULL);
}

static PyObject *store_durable_lsn(struct store_calls *self, void *Py_UNUSED(closure)) {
    uint64_t lsn = self->store != NULL ? self->state->calls->durable_lsn(self->store) : 0;
    return lsn != 0 ? PyLong_FromUnsignedLongLong(lsn)
                    : hot_slow((PyObject *)self, self->state->durable_lsn_slow, (PyObject *[]){NULL}, 0, NULL);
}

static PyObject *store_room_percent(struct store_calls *self, void *Py_UNUSED(closure)) {
    int percent = self->store != NULL ? self->state->calls->room_percent_try(self->store) : -1;
    return percent >= 0 ? PyLong_FromLong(percent)
                        : hot_slow((PyObject *)self, self->state->room_percent_slow, (PyObject *[]){NULL}, 0, NULL);
}

static PyObject *store_nearly_full(struct store_calls *self, void *Py_UNUSED(closure)) {
    const ls_calls *calls = self->state->calls;
    if (self->store == NULL || calls->durable_lsn(self->store) == 0) { /* or this process is a fork */
        return hot_slow((PyObject *)self, self->state->nearly_full_slow, (PyObject *[]){NULL}, 0, NULL);
    }
    return PyBool_FromLong((long)(calls->near_full_changes(self->store) & 1));
}

PyDoc_STRVAR(undurable_doc, "_undurable($self, lsn, /)\n--\n\n"
                            "0 if everything below the LSN is durable; else the LSN, after asking for a flush.");

static PyObject *store_undurable(struct store_calls *self, PyObject *lsn) {
    int overflow = 1, rc = LS_WOULD_WAIT;
    long long wanted = PyLong_CheckExact(lsn) ? PyLong_AsLongLongAndOverflow(lsn, &overflow) : 0;
    if (self->store != NULL && overflow == 0 && wanted >= 0) {
        rc = self->state->calls->durable_soon(self->store, (uint64_t)wanted, LS_TRY);
    }
    if (rc == LS_WOULD_WAIT) {
        return hot_slow((PyObject *)self, self->state->undurable_slow, &lsn, 1, NULL);
    }
    return rc == 0 ? Py_NewRef(lsn) : PyLong_FromLong(0);
}

/* ---- the type ---- */

PyDoc_STRVAR(attach_doc, "_attach($self, owner, queues, relaxed)\n--\n\nGives the open store to the calls.");

static PyObject *store_attach(struct store_calls *self, PyObject *args) {
    PyObject *owner, *queues;
    union owned at;
    int relaxed;
    if (!PyArg_ParseTuple(args, "OO!p:_attach", &owner, &PyDict_Type, &queues, &relaxed) ||
        !hot_owned(self->state, owner, OWNS_STORE, &at)) {
        return NULL;
    }
    if (self->owner != NULL) {
        return PyErr_Format(PyExc_ValueError, "an object gets one store, once");
    }
    self->queues = Py_NewRef(queues);
    self->owner = Py_NewRef(owner);
    self->relaxed = relaxed != 0;
    self->store = at.store;
    Py_RETURN_NONE;
}

static PyObject *store_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords)) {
    struct store_calls *self = (struct store_calls *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = hot_state_of((PyObject *)self);
    if (self->state == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int store_traverse(struct store_calls *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    Py_VISIT(self->queues);
    Py_VISIT(self->notify);
    return hot_visit_dropped(self, visit, arg);
}

/*
 * There is no tp_clear: a finalizer that runs later may still call the store. The garbage collector breaks cycles at
 * the dict of handles and at the attributes of the subclass.
 */
static void store_dealloc(struct store_calls *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->queues);
    Py_CLEAR(self->notify);
    hot_free_dropped(self);
    Py_CLEAR(self->owner);
    PyMem_Free(self->spare);
    type->tp_free(self);
    Py_DECREF(type);
}

#define WITH_KEYWORDS (METH_FASTCALL | METH_KEYWORDS)

static PyMethodDef store_methods[] = {
    {"publish", (PyCFunction)(void (*)(void))store_publish, WITH_KEYWORDS, publish_doc},
    {"_publish_answered", (PyCFunction)store_publish_answered, METH_VARARGS, publish_answered_doc},
    {"dequeue", (PyCFunction)(void (*)(void))store_dequeue, WITH_KEYWORDS, dequeue_doc},
    {"annotate", (PyCFunction)(void (*)(void))store_annotate, WITH_KEYWORDS, annotate_doc},
    {"header", (PyCFunction)(void (*)(void))store_header, WITH_KEYWORDS, header_doc},
    {"load_content", (PyCFunction)(void (*)(void))store_load_content, WITH_KEYWORDS, load_content_doc},
    {"_publish_items", (PyCFunction)(void (*)(void))hot_publish_items, METH_VARARGS,
     PyDoc_STR("_publish_items($self, queue_id, contents, headers, transaction, not_before_us, "
               "expires_us, flags, ids)\n--\n\n"
               "Publishes the items of a tuple and appends the ids of those that are stored.")},
    {"_publish_packed", (PyCFunction)(void (*)(void))hot_publish_packed, METH_VARARGS,
     PyDoc_STR("_publish_packed($self, queue_id, data, sizes, transaction, not_before_us, expires_us, "
               "flags, ids)\n--\n\n"
               "Publishes contents that stand one after another, as _publish_items.")},
    {"_publish_each", (PyCFunction)(void (*)(void))hot_publish_each, METH_VARARGS,
     PyDoc_STR("_publish_each($self, queue_id, contents, headers, transaction, not_before_us, expires_us, ids)\n--\n\n"
               "Publishes each item of an iterator before it asks for the next. Returns 1 if there are more headers\n"
               "than contents, -1 if there are fewer, else 0.")},
    {"_read_places", (PyCFunction)(void (*)(void))hot_read_places, METH_VARARGS,
     PyDoc_STR(
         "_read_places($self, cursor, queue_id, kind, load, views)\n--\n\nThe next messages of a cursor of the core.")},
    {"_undurable", (PyCFunction)(void (*)(void))store_undurable, METH_O, undurable_doc},
    {"_release_dropped", (PyCFunction)(void (*)(void))hot_release_dropped_now, METH_NOARGS,
     PyDoc_STR("_release_dropped($self)\n--\n\nGives back the places of deliveries that were dropped.")},
    {"_released_queues", (PyCFunction)(void (*)(void))hot_released_queues, METH_NOARGS,
     PyDoc_STR("_released_queues($self)\n--\n\n"
               "As _release_dropped; gives the ids of the queues whose listeners must be called, each once.")},
    {"_attach", (PyCFunction)(void (*)(void))store_attach, METH_VARARGS, attach_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef store_fields[] = {
    {"_notify", T_OBJECT, offsetof(struct store_calls, notify), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef store_members[] = {
    {"next_lsn", (getter)store_next_lsn, NULL,
     PyDoc_STR("The end of the appended log: the LSN to wait for after an operation with ``wait=False``."), NULL},
    {"durable_lsn", (getter)store_durable_lsn, NULL, PyDoc_STR("The durable LSN: everything below it is on disk."),
     NULL},
    {"nearly_full", (getter)store_nearly_full, NULL,
     PyDoc_STR(
         "Whether publishers should wait: little is left by which the log may grow, and growth is refused soon.\n\n"
         "True while live records may grow by less than half a segment, and then until they may grow by 3/4 of one\n"
         "(:attr:`Fullness.growth_bytes_left`). Dequeues and outcomes need none of that. Takes no lock."),
     NULL},
    {"room_percent", (getter)store_room_percent, NULL,
     PyDoc_STR(
         "How much can be appended without waiting until an earlier batch is durable or the next segment is made.\n\n"
         "In percent of the largest batch, 100 at most, and 50 at least where only a publish would wait for the\n"
         "segment. It is the state of a moment: another thread may append meanwhile. Asks for the next segment in\n"
         "time."),
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot store_slots[] = {
    {Py_tp_doc, (void *)"The calls of an open store that are made once a message."},
    {Py_tp_methods, store_methods},
    {Py_tp_members, store_fields},
    {Py_tp_getset, store_members},
    {Py_tp_new, store_new},
    {Py_tp_traverse, store_traverse},
    {Py_tp_dealloc, store_dealloc},
    {0, NULL},
};

PyType_Spec hot_store_spec = {
    .name = "logstore._hot.StoreCalls",
    .basicsize = sizeof(struct store_calls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = store_slots,
};
