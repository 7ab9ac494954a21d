/*
 * Waiters: the tasks of one event loop that wait for group commits.
 *
 * Every task awaits this one object, which follows asyncio's protocol of futures: the task hands over a function that
 * resumes it, and its context. A group commit resumes the tasks whose LSN it has reached in one callback of the loop, in
 * the order of their LSNs, with no future and no handle for each. A cancelled task is resumed in the loop's next turn;
 * the others keep waiting.
 *
 * A task may be resumed early, so it compares `reported_lsn` again. The object is used in its loop's thread only.
 */
#include "hot.h"

struct waiting {
    uint64_t lsn;
    PyObject *resume;
    PyObject *context;
};

struct waiters {
    PyObject ob_base;
    PyObject *loop;
    PyObject *failure;       /* for every task that would still wait; NULL while there is none */
    PyObject *done;          /* a future with a result; a task that is resumed gets it as the one that it waited for */
    struct waiting *waiting; /* `count` items from `first` on, ordered by LSN, then by arrival */
    size_t first;
    size_t count;
    size_t room;
    unsigned long long reported_lsn;
    uint64_t awaited_lsn; /* of the task that is about to wait */
    bool yields;          /* a task has asked for the iterator, and not yet for its item */
    bool cancelling;      /* _wake_cancelled is scheduled */
    char blocking;        /* of the protocol: the task yielded this object by an await */
};

static int waiters_init(struct waiters *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"loop", "done", NULL};
    PyObject *loop, *done;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO:Waiters", names, &loop, &done)) {
        return -1;
    }
    Py_XSETREF(self->loop, Py_NewRef(loop));
    Py_XSETREF(self->done, Py_NewRef(done));
    return 0;
}

/* The items are no longer part of the object. */
static void drop(struct waiting *items, size_t count) {
    for (size_t i = 0; i < count; i++) {
        Py_DECREF(items[i].resume);
        Py_DECREF(items[i].context);
    }
}

static int waiters_traverse(struct waiters *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->loop);
    Py_VISIT(self->failure);
    Py_VISIT(self->done);
    for (size_t i = self->first; i < self->first + self->count; i++) {
        Py_VISIT(self->waiting[i].resume);
        Py_VISIT(self->waiting[i].context);
    }
    return 0;
}

static int waiters_clear(struct waiters *self) {
    struct waiting *items = self->waiting;
    size_t first = self->first, count = self->count;
    self->waiting = NULL;
    self->first = self->count = self->room = 0;
    if (items != NULL) {
        drop(items + first, count);
    }
    PyMem_Free(items);
    Py_CLEAR(self->loop);
    Py_CLEAR(self->failure);
    Py_CLEAR(self->done);
    return 0;
}

static void waiters_dealloc(struct waiters *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)waiters_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- waiting ---- */

PyDoc_STRVAR(until_doc,
             "until($self, lsn, /)\n--\n\n"
             "The object itself, for the running task to await at once. Raises the failure if there is one.");

static PyObject *waiters_until(struct waiters *self, PyObject *lsn) {
    PyObject *number = PyNumber_Long(lsn);
    unsigned long long value = number != NULL ? PyLong_AsUnsignedLongLong(number) : ULLONG_MAX;
    Py_XDECREF(number);
    if (value == ULLONG_MAX && PyErr_Occurred() != NULL) {
        return NULL;
    }
    if (self->failure != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(self->failure), self->failure);
        return NULL;
    }
    self->awaited_lsn = value;
    return Py_NewRef(self);
}

static PyObject *waiters_await(struct waiters *self) {
    self->yields = true;
    return Py_NewRef(self);
}

/* No other code runs between waiters_await and this, so the flag is that of the task that asks. */
static PyObject *waiters_next(struct waiters *self) {
    if (!self->yields) {
        return NULL; /* the task was resumed */
    }
    self->yields = false;
    self->blocking = 1;
    return Py_NewRef(self);
}

static PyObject *waiters_get_loop(struct waiters *self, PyObject *Py_UNUSED(none)) { return Py_NewRef(self->loop); }

static bool make_room(struct waiters *self) {
    if (self->first + self->count < self->room) {
        return true;
    }
    if (self->first > self->count) {
        memmove(self->waiting, self->waiting + self->first, self->count * sizeof *self->waiting);
        self->first = 0;
        return true;
    }
    size_t room = 2 * self->count + 16;
    struct waiting *items = PyMem_Malloc(room * sizeof *items);
    if (items == NULL) {
        (void)PyErr_NoMemory();
        return false;
    }
    if (self->count > 0) {
        memcpy(items, self->waiting + self->first, self->count * sizeof *items);
    }
    PyMem_Free(self->waiting);
    self->waiting = items;
    self->first = 0;
    self->room = room;
    return true;
}

/* add_done_callback(resume, *, context), as a task calls it. */
static PyObject *waiters_add(struct waiters *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    if (count != 1 || names == NULL || PyTuple_GET_SIZE(names) != 1 || !PyContext_CheckExact(args[1])) {
        return PyErr_Format(PyExc_TypeError, "only a task can wait here, with its context");
    }
    if (!make_room(self)) {
        return NULL;
    }
    size_t at = self->first + self->count;
    for (; at > self->first && self->waiting[at - 1].lsn > self->awaited_lsn; at--) { /* rare: LSNs usually grow */
        self->waiting[at] = self->waiting[at - 1];
    }
    self->waiting[at] = (struct waiting){self->awaited_lsn, Py_NewRef(args[0]), Py_NewRef(args[1])};
    self->count++;
    Py_RETURN_NONE;
}

/* Called by a task that is cancelled, which notes it if this is false, and raises CancelledError when it is resumed. */
static PyObject *waiters_cancel(struct waiters *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords)) {
    if (!self->cancelling) {
        PyObject *wake = PyObject_GetAttrString((PyObject *)self, "_wake_cancelled");
        PyObject *handle = wake != NULL ? PyObject_CallMethod(self->loop, "call_soon", "O", wake) : NULL;
        Py_XDECREF(wake);
        if (handle == NULL) {
            return NULL;
        }
        Py_DECREF(handle);
        self->cancelling = true;
    }
    Py_RETURN_FALSE;
}

/* ---- waking ---- */

static bool resume_now(PyObject *done, const struct waiting *item) {
    if (PyContext_Enter(item->context) != 0) {
        return false;
    }
    PyObject *result = PyObject_CallOneArg(item->resume, done);
    PyObject *kind, *problem, *traceback;
    PyErr_Fetch(&kind, &problem, &traceback);
    int left = PyContext_Exit(item->context);
    Py_XDECREF(result);
    if (result != NULL) {
        return left == 0;
    }
    PyErr_Restore(kind, problem, traceback);
    return false;
}

static void resume_later(PyObject *loop, PyObject *done, const struct waiting *item) {
    PyObject *call_soon = PyObject_GetAttrString(loop, "call_soon");
    PyObject *args = PyTuple_Pack(2, item->resume, done);
    PyObject *keywords = Py_BuildValue("{sO}", "context", item->context);
    PyObject *handle =
        call_soon != NULL && args != NULL && keywords != NULL ? PyObject_Call(call_soon, args, keywords) : NULL;
    if (handle == NULL) {
        PyErr_WriteUnraisable(loop); /* the loop was closed by a task that was resumed before */
    }
    Py_XDECREF(call_soon);
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    Py_XDECREF(handle);
}

/* Takes over the items. After a task has raised, as KeyboardInterrupt ends the loop's run, the others are scheduled. */
static PyObject *resume_all(struct waiters *self, struct waiting *items, size_t count) {
    PyObject *loop = Py_NewRef(self->loop), *done = Py_NewRef(self->done);
    size_t resumed = 0;
    while (resumed < count && resume_now(done, &items[resumed])) {
        resumed++;
    }
    if (resumed < count) {
        PyObject *kind, *problem, *traceback;
        PyErr_Fetch(&kind, &problem, &traceback);
        for (size_t i = resumed + 1; i < count; i++) {
            resume_later(loop, done, &items[i]);
        }
        PyErr_Restore(kind, problem, traceback);
    }
    drop(items, count);
    PyMem_Free(items);
    Py_DECREF(loop);
    Py_DECREF(done);
    return resumed < count ? NULL : Py_NewRef(Py_None);
}

static struct waiting *new_items(size_t count) {
    struct waiting *items = PyMem_Malloc((count + 1) * sizeof *items); /* never 0 bytes */
    if (items == NULL) {
        (void)PyErr_NoMemory();
    }
    return items;
}

PyDoc_STRVAR(wake_doc, "_wake($self, lsn, /)\n--\n\nResumes every task that waits for this LSN or a lower one.");

static PyObject *waiters_wake(struct waiters *self, PyObject *lsn) {
    unsigned long long end = PyLong_AsUnsignedLongLong(lsn);
    if (end == ULLONG_MAX && PyErr_Occurred() != NULL) {
        return NULL;
    }
    size_t count = 0;
    while (count < self->count && self->waiting[self->first + count].lsn <= end) {
        count++;
    }
    struct waiting *items = new_items(count);
    if (items == NULL) {
        return NULL;
    }
    if (count > 0) {
        memcpy(items, self->waiting + self->first, count * sizeof *items);
    }
    self->first += count;
    self->count -= count;
    return resume_all(self, items, count);
}

PyDoc_STRVAR(take_doc, "_take($self, /)\n--\n\n"
                       "Removes all waiting tasks. Returns for each its LSN, its resuming function, and its context.");

static PyObject *waiters_take(struct waiters *self, PyObject *Py_UNUSED(none)) {
    size_t count = self->count;
    self->cancelling = false; /* for tasks cancelled from now on */
    PyObject *taken = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; taken != NULL && i < count; i++) {
        const struct waiting *item = &self->waiting[self->first + i];
        PyObject *row = Py_BuildValue("KOO", (unsigned long long)item->lsn, item->resume, item->context);
        if (row == NULL) {
            Py_CLEAR(taken);
        } else {
            PyList_SET_ITEM(taken, (Py_ssize_t)i, row);
        }
    }
    if (taken != NULL && count > 0) {
        struct waiting *items = self->waiting;
        size_t first = self->first;
        self->waiting = NULL;
        self->first = self->count = self->room = 0;
        drop(items + first, count);
        PyMem_Free(items);
    }
    return taken;
}

static PyMethodDef waiters_methods[] = {
    {"until", (PyCFunction)(void (*)(void))waiters_until, METH_O, until_doc},
    {"get_loop", (PyCFunction)(void (*)(void))waiters_get_loop, METH_NOARGS, NULL},
    {"add_done_callback", (PyCFunction)(void (*)(void))waiters_add, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"cancel", (PyCFunction)(void (*)(void))waiters_cancel, METH_VARARGS | METH_KEYWORDS, NULL},
    {"_wake", (PyCFunction)(void (*)(void))waiters_wake, METH_O, wake_doc},
    {"_take", (PyCFunction)(void (*)(void))waiters_take, METH_NOARGS, take_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef waiters_members[] = {
    {"_asyncio_future_blocking", T_BOOL, offsetof(struct waiters, blocking), 0, NULL},
    {"failure", T_OBJECT, offsetof(struct waiters, failure), 0, NULL},
    {"loop", T_OBJECT_EX, offsetof(struct waiters, loop), READONLY, NULL},
    {"reported_lsn", T_ULONGLONG, offsetof(struct waiters, reported_lsn), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot waiters_slots[] = {
    {Py_tp_doc, (void *)"The tasks of one event loop that wait for group commits."},
    {Py_tp_init, waiters_init},
    {Py_tp_methods, waiters_methods},
    {Py_tp_members, waiters_members},
    {Py_am_await, waiters_await},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, waiters_next},
    {Py_tp_traverse, waiters_traverse},
    {Py_tp_clear, waiters_clear},
    {Py_tp_dealloc, waiters_dealloc},
    {0, NULL},
};

PyType_Spec hot_waiters_spec = {
    .name = "logstore._hot.Waiters",
    .basicsize = sizeof(struct waiters),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = waiters_slots,
};
