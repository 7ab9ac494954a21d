/* Room for ids before the core is called, and buffers of the caller. See publish.h. */
#include "publish.h"

enum { ZEROS = 1024 };

/* ---- ids ---- */

static bool export_ids(struct id_room *ids) {
    if (PyObject_GetBuffer(ids->array, &ids->view, PyBUF_WRITABLE) != 0) {
        return false;
    }
    if (ids->view.itemsize != sizeof(uint64_t)) {
        return PyErr_Format(PyExc_ValueError, "ids is an array of 64-bit numbers") != NULL;
    }
    ids->room = (size_t)ids->view.len / sizeof(uint64_t);
    return true;
}

bool hot_ids_begin(struct id_room *ids, PyObject *array) {
    ids->array = array;
    ids->view.obj = NULL;
    ids->count = ids->room = 0;
    if (!export_ids(ids)) {
        return false;
    }
    ids->count = ids->room;
    return true;
}

static bool append_zeros(PyObject *array, size_t n) {
    static const uint64_t zeros[ZEROS];
    bool fine = true;
    while (fine && n > 0) {
        size_t step = n < ZEROS ? n : ZEROS;
        PyObject *view =
            PyMemoryView_FromMemory((char *)(uintptr_t)zeros, (Py_ssize_t)(step * sizeof *zeros), PyBUF_READ);
        PyObject *done = view != NULL ? PyObject_CallMethod(array, "frombytes", "O", view) : NULL;
        fine = done != NULL;
        Py_XDECREF(done);
        Py_XDECREF(view);
        n -= step;
    }
    return fine;
}

bool hot_ids_need(struct id_room *ids, size_t n) {
    if (ids->room - ids->count >= n) {
        return true;
    }
    size_t missing = n - (ids->room - ids->count);
    PyBuffer_Release(&ids->view);
    return append_zeros(ids->array, missing) && export_ids(ids);
}

uint64_t *hot_ids_next(const struct id_room *ids) { return (uint64_t *)ids->view.buf + ids->count; }

void hot_ids_end(struct id_room *ids) {
    PyObject *type, *problem, *trace;
    PyErr_Fetch(&type, &problem, &trace);
    PyBuffer_Release(&ids->view); /* does nothing if it is not exported */
    Py_ssize_t length = PyObject_Size(ids->array), count = (Py_ssize_t)ids->count;
    if (length > count && PySequence_DelSlice(ids->array, count, length) != 0) {
        PyErr_Clear();
        while (length > count && PySequence_DelItem(ids->array, length - 1) == 0) { /* this needs no memory */
            length--;
        }
    }
    PyErr_Restore(type, problem, trace);
}

/* ---- buffers ---- */

/* Replaces the exception for an item that gives no buffer. */
static void refuse_item(struct item_name name) {
    PyObject *type, *problem, *trace;
    bool expected = PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
                    PyErr_ExceptionMatches(PyExc_BufferError);
    if (!expected) {
        return;
    }
    PyErr_Fetch(&type, &problem, &trace);
    PyErr_Format(PyExc_TypeError,
                 "%s is an iterable of bytes or other contiguous buffers; reading it failed: item %zu: %S",
                 name.argument, name.index, problem != NULL ? problem : type);
    Py_XDECREF(type);
    Py_XDECREF(problem);
    Py_XDECREF(trace);
}

bool hot_part(PyObject *item, struct item_name name, struct part *part, Py_buffer *view, bool *exported) {
    *exported = false;
    if (PyBytes_CheckExact(item)) {
        part->at = (const uint8_t *)PyBytes_AS_STRING(item);
        part->bytes = (uint64_t)PyBytes_GET_SIZE(item);
        return true;
    }
    if (PyObject_GetBuffer(item, view, PyBUF_SIMPLE) != 0) {
        refuse_item(name);
        return false;
    }
    *exported = true;
    part->at = view->buf;
    part->bytes = (uint64_t)view->len;
    return true;
}
