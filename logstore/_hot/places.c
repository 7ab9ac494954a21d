/*
 * The places of a queue as logstore.Message objects, many with one call. Message is a dataclass with slots, which are
 * filled here where its __init__ would fill them, at a tenth of the time.
 *
 * Contents come in one bytes object for all messages of a call. A content is a copy of its part, or a view: a memoryview
 * that keeps the whole object alive and whose memory is never written again.
 */
#include "hot.h"

enum {
    PLACES_MAX = 256,
    LOADED_BYTES_MAX = 512 << 10, /* of records; a longer one is read on access */
};

enum slot {
    SLOT_STORE,
    SLOT_QUEUE_ID,
    SLOT_ID,
    SLOT_POSITION,
    SLOT_SIZE,
    SLOT_LOCKED,
    SLOT_REDELIVERED,
    SLOT_HAS_HEADER,
    SLOT_HEADER,
    SLOT_CONTENT,
    SLOTS
};

static const char *const slot_names[SLOTS] = {"_store", "_queue_id",   "id",          "position", "size",
                                              "locked", "redelivered", "_has_header", "_header",  "_content"};

/* The state of one call. */
struct batch {
    PyTypeObject *type; /* Message */
    Py_ssize_t offsets[SLOTS];
    PyObject *store;
    PyObject *queue_id;
    PyObject *loaded; /* bytes; NULL: contents are read on access */
    PyObject *view;   /* of `loaded`; NULL: contents are copied */
    PyObject *size;   /* of the message made last; NULL: none yet */
    uint64_t size_bytes;
    size_t count;
    ls_place places[PLACES_MAX];
    ls_span spans[PLACES_MAX];
};

static int find_slots(struct batch *b) {
    for (int i = 0; i < SLOTS; i++) {
        PyObject *found = PyObject_GetAttrString((PyObject *)b->type, slot_names[i]);
        if (found == NULL) {
            return -1;
        }
        bool is_slot = Py_IS_TYPE(found, &PyMemberDescr_Type) && PyType_IsSubtype(b->type, PyDescr_TYPE(found));
        b->offsets[i] = is_slot ? ((PyMemberDescrObject *)found)->d_member->offset : 0;
        Py_DECREF(found);
        if (!is_slot) {
            (void)PyErr_Format(PyExc_TypeError, "%s is not a slot of this class", slot_names[i]);
            return -1;
        }
    }
    return 0;
}

/* Takes the reference; false: it is NULL, because an exception is set. */
static bool set_slot(const struct batch *b, PyObject *message, enum slot slot, PyObject *value) {
    *(PyObject **)(void *)((char *)message + b->offsets[slot]) = value;
    return value != NULL;
}

static PyObject *copy_of(const struct batch *b, uint64_t at, uint64_t bytes) {
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(b->loaded) + at, (Py_ssize_t)bytes);
}

/* Makes a slice of `view` without a slice object: it makes a new view, which no other code has seen, and narrows it. */
static PyObject *view_of(const struct batch *b, uint64_t at, uint64_t bytes) {
    PyObject *made = PyMemoryView_FromObject(b->view);
    if (made != NULL) {
        Py_buffer *part = PyMemoryView_GET_BUFFER(made);
        part->buf = (char *)part->buf + at;
        part->len = part->shape[0] = (Py_ssize_t)bytes;
    }
    return made;
}

/* Neighbours often have the same size. */
static PyObject *size_of(struct batch *b, uint64_t bytes) {
    if (b->size == NULL || b->size_bytes != bytes) {
        Py_XSETREF(b->size, PyLong_FromUnsignedLongLong(bytes));
        b->size_bytes = bytes;
    }
    return Py_XNewRef(b->size);
}

static PyObject *content_of(const struct batch *b, const ls_span *span) {
    return b->view != NULL ? view_of(b, span->content_at, span->content_bytes)
                           : copy_of(b, span->content_at, span->content_bytes);
}

static PyObject *make_message(struct batch *b, size_t i) {
    const ls_place *place = &b->places[i];
    const ls_span *span = &b->spans[i];
    bool loaded = b->loaded != NULL && span->content_at != 0;
    PyObject *made = b->type->tp_alloc(b->type, 0);
    bool whole =
        made != NULL && set_slot(b, made, SLOT_STORE, Py_NewRef(b->store)) &&
        set_slot(b, made, SLOT_QUEUE_ID, Py_NewRef(b->queue_id)) &&
        set_slot(b, made, SLOT_ID, PyLong_FromUnsignedLongLong(place->id)) &&
        set_slot(b, made, SLOT_POSITION, PyLong_FromUnsignedLongLong(place->position)) &&
        set_slot(b, made, SLOT_SIZE, size_of(b, place->content_bytes)) &&
        set_slot(b, made, SLOT_LOCKED, PyBool_FromLong(place->locked != 0)) &&
        set_slot(b, made, SLOT_REDELIVERED, PyBool_FromLong(place->recovered != 0)) &&
        set_slot(b, made, SLOT_HAS_HEADER, PyBool_FromLong(place->has_header != 0)) &&
        set_slot(b, made, SLOT_HEADER, loaded ? copy_of(b, span->header_at, span->header_bytes) : Py_NewRef(Py_None)) &&
        set_slot(b, made, SLOT_CONTENT, loaded ? content_of(b, span) : Py_NewRef(Py_None));
    if (!whole) {
        Py_CLEAR(made);
    }
    return made;
}

static PyObject *make_list(struct batch *b) {
    PyObject *list = PyList_New((Py_ssize_t)b->count);
    for (size_t i = 0; list != NULL && i < b->count; i++) {
        PyObject *message = make_message(b, i);
        if (message == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, message);
        }
    }
    return list;
}

/* The core's next places, and their contents if `loaded` has memory for them. */
static int read_places(const ls_calls *calls, ls_cursor *cursor, struct batch *b) {
    uint8_t *into = b->loaded != NULL ? (uint8_t *)PyBytes_AS_STRING(b->loaded) : NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = into != NULL ? calls->cursor_load(cursor, b->places, b->spans, PLACES_MAX, into, LOADED_BYTES_MAX, &b->count)
                      : calls->cursor_next(cursor, b->places, PLACES_MAX, &b->count);
    Py_END_ALLOW_THREADS
    return rc;
}

static PyObject *read_batch(const struct store_calls *self, ls_cursor *cursor, struct batch *b, int load, int views) {
    if (find_slots(b) < 0) {
        return NULL;
    }
    if (load || views) {
        b->loaded = PyBytes_FromStringAndSize(NULL, LOADED_BYTES_MAX);
        b->view = views && b->loaded != NULL ? PyMemoryView_FromObject(b->loaded) : NULL;
        if (b->loaded == NULL || (views && b->view == NULL)) {
            return NULL;
        }
    }
    int rc = read_places(self->state->calls, cursor, b);
    return rc == LS_OK ? make_list(b) : hot_fail(self->state, rc);
}

PyObject *hot_read_places(struct store_calls *self, PyObject *args) {
    PyObject *cursor, *queue_id, *type;
    union owned at;
    int load, views;
    if (!PyArg_ParseTuple(args, "OO!O!pp:_read_places", &cursor, &PyLong_Type, &queue_id, &PyType_Type, &type, &load,
                          &views) ||
        !hot_owned(self->state, cursor, OWNS_CURSOR, &at)) {
        return NULL;
    }
    struct batch *b = PyMem_Calloc(1, sizeof *b);
    if (b == NULL) {
        return PyErr_NoMemory();
    }
    b->type = (PyTypeObject *)type;
    b->store = (PyObject *)self;
    b->queue_id = queue_id;
    PyObject *list = read_batch(self, at.cursor, b, load, views);
    Py_XDECREF(b->size);
    Py_XDECREF(b->view);
    Py_XDECREF(b->loaded);
    PyMem_Free(b);
    return list;
}
