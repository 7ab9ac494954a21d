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
    uint64_t changes;     /* how often tasks came or went */
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

/* False, with an exception: __init__ was not called, or the garbage collector has taken the object apart. */
static bool is_set_up(const struct waiters *self) {
    if (self->loop == NULL || self->done == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "these waiters have no event loop: call __init__ first");
        return false;
    }
    return true;
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
    self->changes++;
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
    if (!is_set_up(self)) {
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

static PyObject *waiters_get_loop(struct waiters *self, PyObject *Py_UNUSED(none)) {
    return is_set_up(self) ? Py_NewRef(self->loop) : NULL;
}

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
    if (!is_set_up(self) || !make_room(self)) {
        return NULL;
    }
    size_t at = self->first + self->count;
    for (; at > self->first && self->waiting[at - 1].lsn > self->awaited_lsn; at--) { /* rare: LSNs usually grow */
        self->waiting[at] = self->waiting[at - 1];
    }
    self->waiting[at] = (struct waiting){self->awaited_lsn, Py_NewRef(args[0]), Py_NewRef(args[1])};
    self->count++;
    self->changes++;
    Py_RETURN_NONE;
}

/* Called by a task that is cancelled, which notes it if this is false, and raises CancelledError when it is resumed. */
static PyObject *waiters_cancel(struct waiters *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords)) {
    if (!is_set_up(self)) {
        return NULL;
    }
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

/* In the loop's next turn. */
static bool schedule(PyObject *loop, PyObject *done, const struct waiting *item) {
    PyObject *call_soon = PyObject_GetAttrString(loop, "call_soon");
    PyObject *args = PyTuple_Pack(2, item->resume, done);
    PyObject *keywords = Py_BuildValue("{sO}", "context", item->context);
    PyObject *handle =
        call_soon != NULL && args != NULL && keywords != NULL ? PyObject_Call(call_soon, args, keywords) : NULL;
    Py_XDECREF(call_soon);
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    Py_XDECREF(handle);
    return handle != NULL;
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
            if (!schedule(loop, done, &items[i])) {
                PyErr_WriteUnraisable(loop); /* the loop was closed by a task that was resumed before */
            }
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
    if ((end == ULLONG_MAX && PyErr_Occurred() != NULL) || !is_set_up(self)) {
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
    self->changes++;
    return resume_all(self, items, count);
}

/* 1: the task is chosen; 0: it is not; -1: an exception. */
static int is_chosen(const struct waiters *self, size_t at, PyObject *choose) {
    PyObject *resume = Py_NewRef(self->waiting[self->first + at].resume);
    PyObject *answer = PyObject_CallOneArg(choose, resume);
    int chosen = answer != NULL ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    Py_DECREF(resume);
    return chosen;
}

/* A mark for each task, which the caller frees. Begins anew if tasks have come or gone meanwhile. NULL: an exception. */
static char *mark_chosen(const struct waiters *self, PyObject *choose, size_t *count) {
    for (;;) {
        uint64_t changes = self->changes;
        char *marks = PyMem_Malloc(self->count + 1);
        int chosen = marks != NULL ? 0 : -1;
        *count = 0;
        for (size_t at = 0; chosen >= 0 && changes == self->changes && at < self->count; at++) {
            chosen = is_chosen(self, at, choose);
            marks[at] = (char)(chosen == 1);
            *count += chosen == 1 ? 1 : 0;
        }
        if (chosen >= 0 && changes == self->changes) {
            return marks;
        }
        if (marks == NULL) {
            (void)PyErr_NoMemory();
        }
        PyMem_Free(marks);
        if (chosen < 0) {
            return NULL;
        }
    }
}

/* Takes over the items. Those after one whose scheduling raised are scheduled all the same. */
static PyObject *schedule_all(const struct waiters *self, struct waiting *items, size_t count) {
    PyObject *loop = Py_NewRef(self->loop), *done = Py_NewRef(self->done);
    PyObject *kind = NULL, *problem = NULL, *traceback = NULL;
    for (size_t i = 0; i < count; i++) {
        if (schedule(loop, done, &items[i])) {
            continue;
        }
        if (kind == NULL) {
            PyErr_Fetch(&kind, &problem, &traceback);
        } else {
            PyErr_WriteUnraisable(loop);
        }
    }
    drop(items, count);
    PyMem_Free(items);
    Py_DECREF(loop);
    Py_DECREF(done);
    if (kind != NULL) {
        PyErr_Restore(kind, problem, traceback);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(wake_chosen_doc,
             "_wake_chosen($self, choose, /)\n--\n\n"
             "Schedules every task for whose resuming function ``choose`` is true. If that raises, none is scheduled.");

/* The tasks are removed and scheduled in one call, so that an exception of a signal handler keeps none from either. */
static PyObject *waiters_wake_chosen(struct waiters *self, PyObject *choose) {
    self->cancelling = false; /* for tasks cancelled from now on */
    size_t count = 0, kept = 0, taken = 0;
    char *marks = is_set_up(self) ? mark_chosen(self, choose, &count) : NULL;
    struct waiting *items = marks != NULL && is_set_up(self) ? new_items(count) : NULL;
    if (items == NULL) {
        PyMem_Free(marks);
        return NULL;
    }
    struct waiting *all = self->waiting + self->first;
    for (size_t at = 0; at < self->count; at++) {
        if (marks[at] != 0) {
            items[taken++] = all[at];
        } else {
            all[kept++] = all[at];
        }
    }
    self->count = kept;
    self->changes++;
    PyMem_Free(marks);
    return schedule_all(self, items, taken);
}

static PyMethodDef waiters_methods[] = {
    {"until", (PyCFunction)(void (*)(void))waiters_until, METH_O, until_doc},
    {"get_loop", (PyCFunction)(void (*)(void))waiters_get_loop, METH_NOARGS, NULL},
    {"add_done_callback", (PyCFunction)(void (*)(void))waiters_add, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"cancel", (PyCFunction)(void (*)(void))waiters_cancel, METH_VARARGS | METH_KEYWORDS, NULL},
    {"_wake", (PyCFunction)(void (*)(void))waiters_wake, METH_O, wake_doc},
    {"_wake_chosen", (PyCFunction)(void (*)(void))waiters_wake_chosen, METH_O, wake_chosen_doc},
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
